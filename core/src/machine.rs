//! The machine: what each input does. [`pacing`] decides when to dial, [`liveness`] watches a Ready session.

mod liveness;
#[cfg(feature = "testing")]
mod normal;
mod pacing;

use core::time::Duration;

use crate::breaker::Breaker;
use crate::config::{Config, LONGEST};
use crate::failure::FailureClass;
use crate::id::Epoch;
use crate::input::{Input, WakeCause};
use crate::output::{Admission, CloseCause, Event, Output, Outputs};
use crate::rng::Rng;
use crate::snapshot::{Memory, Snapshot, Stats, Want};
use crate::state::{Liveness, ParkReason, PingSupport, ReadyFlag, ReadyFlags, State, Status, Then};
use crate::time::{Timestamp, nanos};
use pacing::Purpose;

/// The recovery logic of one connection: told what happens and what time it is, says what to do and when to come back.
///
/// Total, deterministic, and without memory of its orders: carry out what [`handle`](Self::handle) returns, in order,
/// and call it again at [`Outputs::wake_at`] or when something happens, whichever is first.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ConnectionMachine {
    config: Config,
    rng: Rng,
    now: Timestamp,
    state: State,
    /// The status last announced, and since when.
    status: Status,
    since: Timestamp,
    /// The last epoch, and when it was dialled.
    epoch: Option<Epoch>,
    dialled: Option<Timestamp>,
    /// Whether nobody listened there.
    refused: bool,
    /// What the next dial is for.
    purpose: Purpose,
    /// Until when the most patient caller waits.
    demand: Option<Timestamp>,
    /// Failures on the ladder since the last proven session.
    failures: u32,
    outage_since: Option<Timestamp>,
    /// The longest that the server's `Retry-After` asked for since the last Ready or wake: a later shorter one never
    /// shortens it. No dial but a wake's comes before it is over.
    hint: Duration,
    hint_until: Option<Timestamp>,
    start_timeout: Duration,
    /// Set from a park until the next Ready: the status is Parked whatever is tried.
    parked: Option<ParkReason>,
    probe_doublings: u8,
    /// How often a caller's dial of a park for a permanent failure came later: twice as late after each.
    demand_doublings: u8,
    /// The last failure since the last Ready.
    failure: Option<FailureClass>,
    published: bool,
    /// Whether the session has given a result to a call.
    served: bool,
    breaker: Breaker,
    /// The latest time at which a call was sent that is a strike.
    struck: Timestamp,
    /// The latest time at which anything was sent on this session that has been answered.
    answered_to: Timestamp,
    /// How long the longest listing of this epoch took.
    listing: Duration,
    pings: PingSupport,
    stats: Stats,
}

impl ConnectionMachine {
    /// An idle machine. `seed` draws the jitter: different for each connection, the same for a replay.
    pub fn new(config: Config, seed: u64, now: Timestamp) -> Self {
        let now = Timestamp::from_nanos(now.as_nanos()); // at most `MAX`
        Self {
            config,
            rng: Rng::new(seed),
            now,
            state: State::Idle,
            status: Status::Idle,
            since: now,
            epoch: None,
            dialled: None,
            refused: false,
            purpose: Purpose::Schedule,
            demand: None,
            failures: 0,
            outage_since: None,
            hint: Duration::ZERO,
            hint_until: None,
            start_timeout: config.connect_timeout(),
            parked: None,
            probe_doublings: 0,
            demand_doublings: 0,
            failure: None,
            published: false,
            served: false,
            breaker: Breaker::CLOSED,
            struck: Timestamp::ZERO,
            answered_to: Timestamp::ZERO,
            listing: Duration::ZERO,
            pings: PingSupport::Unknown,
            stats: Stats::default(),
        }
    }

    /// A machine that goes on where one of an earlier process stopped: a parked server stays parked until the rest of
    /// its wait is over, a lost one is dialled when it would have been. A start is one try of a server that is parked as
    /// [`NeedsAuth`](ParkReason::NeedsAuth) or [`Permanent`](ParkReason::Permanent). That try, and a caller who brings a
    /// dial forward, come `demand_interval` after the last dial of the earlier process (where that is not known, after
    /// now), and never before a hint is over: a host which is started again and again does not dial each time. Any other
    /// server is dialled as by a new machine. Values out of range are cut to it.
    pub fn restore(config: Config, seed: u64, now: Timestamp, memory: Memory) -> Self {
        let mut machine = Self::new(config, seed, now);
        machine.start_timeout = memory.start_timeout.clamp(config.connect_timeout(), config.connect_timeout_max());
        machine.pings = memory.pings;
        machine.probe_doublings = memory.probe_doublings;
        machine.failure = memory.failure;
        let now = machine.now;
        machine.hint = memory.hint_in.unwrap_or_default().min(config.retry_after_max());
        machine.hint_until = memory.hint_in.map(|_| now + machine.hint);
        let waits = matches!(memory.status, Status::Parked(_) | Status::TransientFailure);
        let ago = waits.then(|| memory.last_dial_ago.unwrap_or_default()).filter(|ago| *ago < config.demand_interval());
        machine.dialled = ago.map(|ago| Timestamp::from_nanos(now.as_nanos().saturating_sub(nanos(ago))));
        let longest = config.park_probe_max().max(config.retry_after_max());
        // Up to 20 % late, as a fresh park would be.
        let next_dial = memory.next_dial_in.map(|left| now + left.min(longest + longest / 5));
        match memory.status {
            Status::Parked(reason) => {
                machine.parked = Some(reason);
                let probe_at = match reason {
                    ParkReason::Requested => None,
                    ParkReason::NeedsAuth | ParkReason::Permanent => {
                        Some(machine.no_earlier(machine.after_last_dial(config.demand_interval())))
                    }
                    ParkReason::Exhausted | ParkReason::Flapping => next_dial.or_else(|| Some(machine.probe_time())),
                };
                machine.state = State::Parked { probe_at };
            }
            Status::TransientFailure => {
                machine.outage_since = (memory.failure != Some(FailureClass::RateLimited)).then_some(now);
                machine.state = State::TransientFailure { retry_at: next_dial.unwrap_or(now) };
            }
            Status::Idle | Status::Connecting | Status::Ready(_) | Status::Shutdown => {}
        }
        machine.status = machine.visible_status();
        machine
    }

    /// Tells the machine what happened and what time it is.
    ///
    /// Never fails: a report of an old epoch is normal and does nothing, an earlier `now` counts as the last one.
    /// Within a step: the input, then what is due, then the answer to a [`Connect`](Input::Connect), then at most one
    /// [`StatusChanged`](Event::StatusChanged).
    pub fn handle(&mut self, now: Timestamp, input: Input) -> Outputs {
        self.now = self.now.max(now.min(Timestamp::MAX)); // R3
        let mut out = Outputs::new();
        self.on_input(input, &mut out);
        self.fire_due(&mut out); // R3
        if let Input::Connect { until } = input {
            out.push(Output::Admit(self.admit(until))); // R22
        }
        self.announce(&mut out);
        out.wake_at = self.next_timeout();
        // R2
        debug_assert!(out.wake_at.is_none_or(|at| at > self.now), "a timer that is due must leave its state: {self:?}");
        out
    }

    /// A copy of everything that may be looked at.
    pub const fn snapshot(&self) -> Snapshot {
        Snapshot {
            status: self.status,
            since: self.since,
            state: self.state,
            failure: self.failure,
            dialled: self.dialled,
            hint_until: self.hint_until,
            breaker: self.breaker,
            published: self.published,
            start_timeout: self.start_timeout,
            pings: self.pings,
            probe_doublings: self.probe_doublings,
            stats: self.stats,
        }
    }

    /// When to call [`handle`](Self::handle) again if nothing happens before: the last
    /// [`wake_at`](Outputs::wake_at); in the past only for a machine that was just restored.
    pub fn next_timeout(&self) -> Option<Timestamp> {
        self.state.next_timeout()
    }

    /// The knobs.
    pub const fn config(&self) -> &Config {
        &self.config
    }

    fn on_input(&mut self, input: Input, out: &mut Outputs) {
        if let Some(epoch) = input.epoch()
            && !self.is_up(epoch)
        {
            if let (Input::Gone { .. }, State::Closing { epoch: live, then, .. }) = (input, self.state)
                && live == epoch
            {
                self.enter_after(then);
            }
            return;
        }
        match input {
            Input::Tick => {}
            Input::Connect { .. } => self.on_connect(),
            Input::Wake(cause) => self.on_wake(cause),
            Input::Park => self.on_park(out),
            Input::Shutdown => self.on_shutdown(out),
            Input::Retune(config) => self.on_retune(config),
            Input::Resumed { by_call } => self.on_resumed(by_call),
            Input::Reached { flag, .. } => self.on_reached(flag, out),
            Input::Lost { epoch, failure } => {
                let then = self.plan(failure, out); // R8
                self.enter_closing(epoch, CloseCause::Failed(failure.class), then, out);
            }
            Input::Gone { failure, .. } => {
                let then = self.plan(failure, out);
                self.enter_after(then);
            }
            Input::Traffic { inbound, answered, served, answered_to, oldest, .. } => {
                self.served |= served;
                self.on_traffic(inbound, oldest);
                self.on_answers(answered, answered_to, out);
            }
            Input::NoReply { sent, .. } => {
                self.prompt(sent, out);
                self.on_no_reply(sent, out);
            }
            Input::Silence { sent, .. } => self.prompt(sent, out),
            Input::PingUnsupported { .. } => self.on_ping_unsupported(),
            Input::Pong { .. } => self.on_pings(PingSupport::Answers),
            Input::ServerChanged { .. } => self.on_pings(PingSupport::Unknown),
            Input::Listed { took, .. } => self.listing = self.listing.max(took.min(LONGEST)),
            Input::Renew { .. } => {
                if let State::Ready { renew_at, .. } = &mut self.state {
                    *renew_at = Some(self.now);
                }
            }
        }
    }

    /// Whether this is the live epoch, and not being closed.
    fn is_up(&self, epoch: Epoch) -> bool {
        self.state.live_epoch() == Some(epoch) && !matches!(self.state, State::Closing { .. }) // R1
    }

    fn on_reached(&mut self, flag: ReadyFlag, out: &mut Outputs) {
        let State::Connecting { epoch, deadline, ready } = self.state else { return };
        let deadline = if ready.is_empty() { self.now + self.start_timeout } else { deadline }; // R7
        let ready = ready.with(flag);
        if ready.is_complete() {
            self.enter_ready(epoch, out); // R9
        } else {
            self.state = State::Connecting { epoch, deadline, ready };
        }
    }

    fn on_retune(&mut self, config: Config) {
        self.config = config;
        self.start_timeout = self.start_timeout.clamp(config.connect_timeout(), config.connect_timeout_max());
        let interval = self.interval();
        let soonest = self.pace();
        if let Some(at) = self.state.next_dial_mut() {
            *at = soonest.max(*at);
        }
        if let State::Ready { since, inbound, liveness, rest_at, renew_at, .. } = &mut self.state {
            *rest_at = config.idle_timeout().map(|idle| self.now + idle);
            *renew_at = config.max_lifetime().map(|age| *since + age);
            if let Liveness::Quiet { ask_at } = liveness {
                *ask_at = *inbound + interval;
            }
        }
    }

    fn on_park(&mut self, out: &mut Outputs) {
        if self.visible_status() == Status::Shutdown {
            return;
        }
        self.leave_ready(None);
        self.park(ParkReason::Requested, out);
        self.purpose = Purpose::Schedule;
        self.demand = None;
        self.end(CloseCause::Parked, Then::Park, out);
    }

    fn on_shutdown(&mut self, out: &mut Outputs) {
        self.withdraw(out);
        self.end(CloseCause::Shutdown, Then::Shutdown, out); // R23
    }

    /// Closes what is up; a close under way leads to `next`, too.
    fn end(&mut self, cause: CloseCause, next: Then, out: &mut Outputs) {
        match &mut self.state {
            State::Connecting { epoch, .. } | State::Ready { epoch, .. } => {
                let epoch = *epoch;
                self.enter_closing(epoch, cause, next, out);
            }
            State::Closing { then, .. } => *then = next,
            State::Idle | State::TransientFailure { .. } | State::Parked { .. } | State::Shutdown => {
                self.enter_after(next);
            }
        }
    }

    /// Fires what is due, each timer once. Two rounds are enough: a close that ends may be followed by the dial it held
    /// back, an open call may put off both rest and renewal; every other deadline that is set lies in the future.
    fn fire_due(&mut self, out: &mut Outputs) {
        for _ in 0..2 {
            if self.next_timeout().is_none_or(|at| at > self.now) {
                return;
            }
            match self.state {
                State::Connecting { epoch, ready, .. } => self.on_start_timeout(epoch, ready, out),
                State::Closing { then, .. } => self.enter_after(then),
                State::TransientFailure { .. } => self.dial(out),
                State::Parked { .. } => self.dial_parked(out),
                State::Ready { .. } => self.on_ready_due(out),
                State::Idle | State::Shutdown => {}
            }
        }
    }

    fn admit(&mut self, until: Timestamp) -> Admission {
        if let State::Ready { epoch, .. } = self.state
            && self.breaker.admit(self.now, self.config.breaker_open())
        {
            return Admission::Go(epoch); // R21
        }
        let admission = Snapshot { status: self.visible_status(), ..self.snapshot() }.admission(Want::Session, until);
        if matches!(admission, Admission::Wait { .. }) {
            self.demand = self.demand.max(Some(until));
        }
        admission
    }

    fn announce(&mut self, out: &mut Outputs) {
        let status = self.visible_status();
        if status != self.status {
            self.status = status; // R17
            self.since = self.now;
            out.push(Output::Event(Event::StatusChanged { status, failure: self.failure }));
        }
    }

    /// What the world sees: a close shows as what it leads to, a park until the next Ready.
    const fn visible_status(&self) -> Status {
        match (self.state, self.parked) {
            (State::Closing { then: Then::Shutdown, .. } | State::Shutdown, _) => Status::Shutdown,
            (_, Some(reason)) => Status::Parked(reason), // R17
            (State::Idle | State::Closing { then: Then::Rest, .. }, None) => Status::Idle,
            (State::Connecting { .. }, None) => Status::Connecting,
            (State::Ready { epoch, .. }, None) => Status::Ready(epoch),
            (State::Closing { .. } | State::TransientFailure { .. } | State::Parked { .. }, None) => {
                Status::TransientFailure
            }
        }
    }

    fn withdraw(&mut self, out: &mut Outputs) {
        if self.published {
            self.published = false; // R16
            out.push(Output::Withdraw);
        }
    }

    fn enter_closing(&mut self, epoch: Epoch, cause: CloseCause, then: Then, out: &mut Outputs) {
        out.push(Output::Close { epoch, cause });
        self.state = State::Closing { epoch, deadline: self.now + self.config.close_timeout(), then }; // R7
    }
}
