//! What the rules say must happen, from nothing but the inputs and the outputs: the jitter is an interval here.

use core::time::Duration;

use crate::config::Config;
use crate::failure::{Failure, FailureClass};
use crate::id::Epoch;
use crate::input::{Input, WakeCause};
use crate::output::{Admission, CloseCause, Event, Output, Outputs, Refusal};
use crate::snapshot::Snapshot;
use crate::state::{Liveness, ParkReason, ReadyFlag, State, Status};
use crate::time::Timestamp;

/// One call of the machine, as seen from outside.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    /// The time, never before the last.
    pub(super) now: Timestamp,
    pub(super) input: Input,
    pub(super) out: Outputs,
    pub(super) after: Snapshot,
}

impl Step {
    pub(super) fn find<T>(&self, what: impl FnMut(Output) -> Option<T>) -> Option<T> {
        self.out.iter().find_map(what)
    }

    pub(super) fn count(&self, what: impl Fn(Output) -> bool) -> usize {
        self.out.iter().filter(|output| what(*output)).count()
    }

    pub(super) fn dial(&self) -> Option<(Epoch, Duration, bool)> {
        self.find(|output| match output {
            Output::Dial { epoch, timeout, interactive } => Some((epoch, timeout, interactive)),
            _ => None,
        })
    }

    pub(super) fn close(&self) -> Option<(Epoch, CloseCause)> {
        self.find(|output| match output {
            Output::Close { epoch, cause } => Some((epoch, cause)),
            _ => None,
        })
    }

    pub(super) fn ping(&self) -> bool {
        self.out.iter().any(|output| matches!(output, Output::Ping { .. }))
    }

    pub(super) fn admission(&self) -> Option<Admission> {
        self.find(|output| match output {
            Output::Admit(admission) => Some(admission),
            _ => None,
        })
    }

    pub(super) fn status(&self) -> Option<(Status, Option<FailureClass>)> {
        self.find(|output| match output {
            Output::Event(Event::StatusChanged { status, failure }) => Some((status, failure)),
            _ => None,
        })
    }

    pub(super) fn breaker(&self) -> Option<Option<Timestamp>> {
        self.find(|output| match output {
            Output::Event(Event::BreakerChanged { open_until }) => Some(open_until),
            _ => None,
        })
    }
}

/// What is alive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    Nothing,
    Dialling { epoch: Epoch, deadline: Timestamp, flags: u8 },
    Up { epoch: Epoch, since: Timestamp },
    Closing { epoch: Epoch, deadline: Timestamp },
}

impl Phase {
    pub(super) const fn epoch(self) -> Option<Epoch> {
        match self {
            Self::Nothing => None,
            Self::Dialling { epoch, .. } | Self::Up { epoch, .. } | Self::Closing { epoch, .. } => Some(epoch),
        }
    }
}

/// What follows when nothing is alive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Plan {
    Rest,
    Dial,
    Park,
    Shutdown,
}

/// Which rule sets the time of the next dial.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pace {
    /// The ladder's step (R12), cut where a caller waits (R14).
    Ladder,
    /// At once, spread: the loss of a session that begins an outage (R13).
    First,
    /// A parked server's own probe (R17).
    Probe,
    /// A caller, or the end of a suspend (R14, R18).
    Caller,
    /// A wake (R5, R11).
    Wake,
    /// Idle, or a session that was replaced for its age (R5, R24).
    AtOnce,
}

/// The time of the next dial, or where in between it lies.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Window {
    pub(super) from: Timestamp,
    pub(super) to: Timestamp,
    pub(super) pace: Pace,
}

impl Window {
    const fn at(at: Timestamp, pace: Pace) -> Self {
        Self { from: at, to: at, pace }
    }
}

/// On whose behalf the next dial comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Why {
    Schedule,
    Caller,
    Wake { operator: bool },
}

/// An unanswered question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Asked {
    pub(super) since: Timestamp,
    pub(super) deadline: Timestamp,
    pub(super) pings: u8,
    pub(super) prompted: bool,
}

/// What the rules know about a Ready session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Life {
    pub(super) heard: Timestamp,
    pub(super) open: Option<Timestamp>,
    pub(super) asked: Option<Asked>,
    /// When it is asked next, if nothing comes in.
    pub(super) ask: Option<(Timestamp, Timestamp)>,
    /// The end of a suspend since which nothing has come in.
    pub(super) resumed: Option<Timestamp>,
    pub(super) rest_at: Option<Timestamp>,
    pub(super) renew_at: Option<Timestamp>,
}

/// What is known about the server's pings.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Pings {
    pub(super) answered: bool,
    pub(super) refused: bool,
    pub(super) mute: bool,
    /// Verdicts in a row without an answer and without a call behind them.
    pub(super) verdicts: u8,
}

impl Pings {
    pub(super) const fn periodic(self) -> bool {
        !self.refused && !self.mute
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Model {
    pub(super) config: Config,
    pub(super) now: Timestamp,
    pub(super) phase: Phase,
    pub(super) plan: Plan,
    pub(super) next: Option<Window>,
    pub(super) why: Why,
    pub(super) last: Option<(Epoch, Timestamp)>,
    pub(super) ladder: u32,
    pub(super) outage: Option<Timestamp>,
    pub(super) hint: Duration,
    pub(super) hint_until: Option<Timestamp>,
    pub(super) class: Option<FailureClass>,
    pub(super) demand: Option<Timestamp>,
    pub(super) start_timeout: Duration,
    pub(super) parked: Option<ParkReason>,
    pub(super) probes: u32,
    pub(super) published: bool,
    pub(super) strikes: u8,
    pub(super) open_until: Option<Timestamp>,
    pub(super) pings: Pings,
    pub(super) life: Option<Life>,
    pub(super) status: Status,
    /// The newest epoch that was lost, closed or gone.
    pub(super) dead: Option<Epoch>,
}

/// What the rules expect of one step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Expected {
    pub(super) dial: Option<Dial>,
    pub(super) close: Option<CloseCause>,
    pub(super) ping: Option<Sure>,
    pub(super) publish: Option<Epoch>,
    pub(super) withdraw: bool,
    pub(super) breaker: Option<Option<Timestamp>>,
    pub(super) admission: Option<Admission>,
    pub(super) failure: Option<FailureClass>,
    /// Where the next dial must lie, decided in this step.
    pub(super) window: Option<Window>,
}

/// Whether something whose time is drawn at random is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Sure {
    Must,
    May,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Dial {
    pub(super) sure: Sure,
    pub(super) window: Window,
    pub(super) why: Why,
}

impl Model {
    pub(super) fn new(config: Config, now: Timestamp) -> Self {
        Self {
            config,
            now,
            phase: Phase::Nothing,
            plan: Plan::Rest,
            next: None,
            why: Why::Schedule,
            last: None,
            ladder: 0,
            outage: None,
            hint: Duration::ZERO,
            hint_until: None,
            class: None,
            demand: None,
            start_timeout: config.connect_timeout(),
            parked: None,
            probes: 0,
            published: false,
            strikes: 0,
            open_until: None,
            pings: Pings::default(),
            life: None,
            status: Status::Idle,
            dead: None,
        }
    }

    /// Takes the step and says what the rules wanted of it.
    pub(super) fn apply(&mut self, step: &Step) -> Expected {
        self.now = step.now;
        let mut want = Expected::default();
        self.on_input(step, &mut want);
        self.on_due(step, &mut want);
        if let Input::Connect { until } = step.input {
            want.admission = Some(self.admit(until, step));
        }
        self.status = self.visible();
        want
    }

    fn on_input(&mut self, step: &Step, want: &mut Expected) {
        let live = |epoch: Epoch| self.phase.epoch() == Some(epoch);
        match step.input {
            Input::Tick => {}
            Input::Connect { .. } => match (self.phase, self.plan) {
                (Phase::Up { .. }, _) => self.used(),
                (Phase::Nothing | Phase::Closing { .. }, Plan::Rest) => {
                    self.plan = Plan::Dial;
                    self.set_next(Window::at(self.soonest(), Pace::AtOnce), want);
                }
                _ => self.caller(want),
            },
            Input::Wake(cause) => self.wake(cause, want),
            Input::Park => self.park(want),
            Input::Shutdown => self.shutdown(want),
            Input::Resumed => self.resumed(want),
            Input::Reached { epoch, flag } if live(epoch) => self.reached(flag, want),
            Input::Lost { epoch, failure } if live(epoch) => {
                if let Phase::Dialling { .. } | Phase::Up { .. } = self.phase {
                    self.failed(failure, step, want);
                    self.close(CloseCause::Failed(failure.class), want);
                }
            }
            Input::Gone { epoch, failure } if live(epoch) => {
                if let Phase::Dialling { .. } | Phase::Up { .. } = self.phase {
                    self.failed(failure, step, want);
                }
                self.ended(want);
            }
            Input::Traffic { epoch, inbound, answered, oldest } if live(epoch) => {
                self.traffic(inbound, answered, oldest, want);
            }
            Input::NoReply { epoch, sent } if live(epoch) => self.no_reply(sent, want),
            Input::PingUnsupported { epoch } if live(epoch) => {
                if let Some(life) = &mut self.life {
                    self.pings = Pings { refused: true, mute: false, ..self.pings }; // it did answer
                    life.ask = None;
                    life.asked = None;
                    life.resumed = None;
                }
            }
            Input::Reached { .. }
            | Input::Lost { .. }
            | Input::Gone { .. }
            | Input::Traffic { .. }
            | Input::NoReply { .. }
            | Input::PingUnsupported { .. } => {}
        }
    }

    fn on_due(&mut self, step: &Step, want: &mut Expected) {
        match self.phase {
            Phase::Dialling { deadline, flags, .. } if deadline <= self.now => {
                if flags != 0 {
                    self.start_timeout = (self.start_timeout * 2).min(self.config.connect_timeout_max());
                }
                self.failed(FailureClass::StartTimeout.into(), step, want);
                self.close(CloseCause::Failed(FailureClass::StartTimeout), want);
            }
            Phase::Up { .. } => self.session_due(step, want),
            Phase::Closing { deadline, .. } if deadline <= self.now => self.ended(want),
            Phase::Nothing | Phase::Dialling { .. } | Phase::Closing { .. } => {}
        }
        if let (Phase::Nothing, Some(window)) = (self.phase, self.next)
            && window.from <= self.now
        {
            let sure = if window.to <= self.now { Sure::Must } else { Sure::May };
            want.dial = Some(Dial { sure, window, why: self.why });
            if let Some((epoch, ..)) = step.dial() {
                self.dialled(epoch);
            }
        }
        // From here on the times that were drawn are known.
        if let (Some(next), Some(drawn)) = (&mut self.next, step.after.state.next_dial()) {
            next.from = drawn;
            next.to = drawn;
        }
        if let (Some(Life { ask: Some(ask), .. }), State::Ready { liveness, .. }) = (&mut self.life, step.after.state)
            && let Liveness::Quiet { ask_at } | Liveness::Verify { ask_at, .. } = liveness
            && (ask.0..=ask.1).contains(&ask_at)
        {
            *ask = (ask_at, ask_at);
        }
    }

    fn dialled(&mut self, epoch: Epoch) {
        if self.parked.is_some() && self.why == Why::Schedule {
            self.probes += 1;
        }
        self.phase = Phase::Dialling { epoch, deadline: self.now + self.config.connect_timeout_max(), flags: 0 };
        self.last = Some((epoch, self.now));
        self.why = Why::Schedule;
        self.next = None;
    }

    fn reached(&mut self, flag: ReadyFlag, want: &mut Expected) {
        let Phase::Dialling { epoch, deadline, flags } = self.phase else { return };
        let deadline = if flags == 0 { self.now + self.start_timeout } else { deadline };
        let flags = flags | 1 << (flag as u8).trailing_zeros();
        if flags.count_ones() < 4 {
            self.phase = Phase::Dialling { epoch, deadline, flags };
            return;
        }
        self.phase = Phase::Up { epoch, since: self.now };
        self.parked = None;
        self.why = Why::Schedule;
        self.no_hint();
        self.class = None;
        self.published = true;
        want.publish = Some(epoch);
        self.answer(want);
        let keepalive = self.config.keepalive();
        self.life = Some(Life {
            heard: self.now,
            open: None,
            asked: None,
            ask: self.pings.periodic().then(|| (self.now + keepalive, self.now + keepalive + keepalive / 5)),
            resumed: None,
            rest_at: self.config.idle_timeout().map(|idle| self.now + idle),
            renew_at: self.config.max_lifetime().map(|age| self.now + age),
        });
    }

    /// The failure of a dial or a session, and what follows by R12–R14, R16 and R17.
    fn failed(&mut self, failure: Failure, step: &Step, want: &mut Expected) {
        let was_up = matches!(self.phase, Phase::Up { .. });
        self.leave_up();
        want.failure = Some(failure.class);
        self.class = Some(failure.class);
        if let Some(hint) = failure.retry_after {
            self.hint = self.hint.max(hint.min(self.config.retry_after_max()));
            self.hint_until = self.hint_until.max(Some(self.now + self.hint));
        }
        let limited = failure.class == FailureClass::RateLimited;
        let begins = self.outage.is_none() && !limited;
        if begins {
            self.outage = Some(self.now);
        }
        let reason = match failure.class {
            FailureClass::Permanent => ParkReason::Permanent,
            FailureClass::NeedsAuth => ParkReason::NeedsAuth,
            _ if was_up => ParkReason::Flapping,
            _ => ParkReason::Exhausted,
        };
        let gives_up = matches!(reason, ParkReason::Permanent | ParkReason::NeedsAuth);
        if let Why::Wake { .. } = self.why {
            self.ladder = self.ladder.saturating_add(1);
            self.parked = self.parked.map(|_| reason);
            self.plan = Plan::Dial;
            return self.set_next(Window::at(self.soonest(), Pace::Wake), want);
        }
        if gives_up || self.parked.is_some() {
            return self.parks(reason, want);
        }
        let window = if was_up && begins {
            let spread = failure.class == FailureClass::Transport;
            let to = if spread { self.now + self.config.redial_spread() } else { self.now };
            Window { from: self.now, to, pace: Pace::First }
        } else {
            let asked = !limited && self.demand.is_some_and(|until| until > self.now);
            let mut wait = self.config.backoff_max();
            if let Some(step) = self.config.backoff().checked_mul(1 << self.ladder.min(30)) {
                wait = wait.min(step);
            }
            if asked {
                wait = wait.min(self.config.demand_interval());
            }
            self.ladder = self.ladder.saturating_add(1);
            // The upper half, to the nanosecond.
            Window { from: self.now + wait / 2, to: self.now + wait, pace: Pace::Ladder }
        };
        let mut window =
            Window { from: self.no_earlier(window.from), to: self.no_earlier(window.to), pace: window.pace };
        let limit = self.outage.map(|since| since + self.config.park_after()).filter(|_| !limited);
        if let Some(limit) = limit {
            let parked = matches!(step.after.status, Status::Parked(_));
            if window.from > limit || (window.to > limit && parked) {
                return self.parks(reason, want);
            }
            window.to = window.to.min(limit);
        }
        self.plan = Plan::Dial;
        self.set_next(window, want);
    }

    fn parks(&mut self, reason: ParkReason, want: &mut Expected) {
        self.parked = Some(reason);
        self.plan = Plan::Park;
        self.next = None;
        self.withdraw(want);
    }

    fn withdraw(&mut self, want: &mut Expected) {
        want.withdraw |= self.published;
        self.published = false;
    }

    fn close(&mut self, cause: CloseCause, want: &mut Expected) {
        if let Phase::Dialling { epoch, .. } | Phase::Up { epoch, .. } = self.phase {
            want.close = Some(cause);
            self.dead = Some(epoch);
            self.life = None;
            self.phase = Phase::Closing { epoch, deadline: self.now + self.config.close_timeout() };
        }
    }

    fn ended(&mut self, want: &mut Expected) {
        self.dead = self.phase.epoch();
        self.life = None;
        self.phase = Phase::Nothing;
        if self.plan == Plan::Park && self.parked.is_some_and(ParkReason::probes) {
            let mut interval = self.config.park_probe_max();
            if let Some(step) = self.config.park_probe().checked_mul(1 << self.probes.min(30)) {
                interval = interval.min(step);
            }
            let (from, to) = (self.now + interval, self.now + interval + interval / 5);
            let window = Window { from: self.no_earlier(from), to: self.no_earlier(to), pace: Pace::Probe };
            self.set_next(window, want);
        }
    }

    fn leave_up(&mut self) {
        if let Phase::Up { since, .. } = self.phase
            && self.now.since(since) >= self.config.stable_after()
        {
            self.ladder = 0;
            self.outage = None;
            self.probes = 0;
        }
    }

    fn set_next(&mut self, window: Window, want: &mut Expected) {
        self.next = Some(window);
        want.window = Some(window);
    }

    fn no_hint(&mut self) {
        self.hint = Duration::ZERO;
        self.hint_until = None;
    }

    /// `min_dial_interval` after the last dial.
    pub(super) fn soonest(&self) -> Timestamp {
        self.last.map_or(self.now, |(_, at)| self.now.max(at + self.config.min_dial_interval()))
    }

    fn no_earlier(&self, at: Timestamp) -> Timestamp {
        at.max(self.soonest()).max(self.hint_until.unwrap_or(at))
    }

    /// R14: whether a caller may bring the next dial forward.
    pub(super) fn heeds_callers(&self) -> bool {
        let parked = matches!(self.parked, None | Some(ParkReason::Exhausted | ParkReason::Flapping));
        parked && self.class != Some(FailureClass::RateLimited)
    }

    fn caller(&mut self, want: &mut Expected) {
        let waits = matches!(self.phase, Phase::Nothing | Phase::Closing { .. });
        if !waits || !self.heeds_callers() || !matches!(self.plan, Plan::Dial | Plan::Park) {
            return;
        }
        let after = self.last.map_or(self.now, |(_, at)| at + self.config.demand_interval());
        let soon = self.no_earlier(self.now.max(after));
        if self.next.is_none_or(|next| soon < next.from) {
            self.plan = if let Phase::Closing { .. } = self.phase { Plan::Dial } else { self.plan };
            if self.why == Why::Schedule {
                self.why = Why::Caller;
            }
            self.set_next(Window::at(soon, Pace::Caller), want);
        }
    }

    fn wake(&mut self, cause: WakeCause, want: &mut Expected) {
        if matches!(self.phase, Phase::Up { .. }) || self.plan == Plan::Shutdown {
            return;
        }
        let dialling = matches!(self.phase, Phase::Dialling { .. });
        if !dialling && self.parked == Some(ParkReason::Requested) {
            if cause == WakeCause::Credentials {
                return;
            }
            self.parked = None;
        }
        self.no_hint();
        let operator = cause == WakeCause::Operator || self.why == Why::Wake { operator: true };
        self.why = Why::Wake { operator };
        if !dialling {
            self.plan = Plan::Dial;
            self.set_next(Window::at(self.soonest(), Pace::Wake), want);
        }
    }

    fn park(&mut self, want: &mut Expected) {
        if self.plan == Plan::Shutdown {
            return;
        }
        self.leave_up();
        self.parks(ParkReason::Requested, want);
        self.why = Why::Schedule;
        self.demand = None;
        self.close(CloseCause::Parked, want);
    }

    fn shutdown(&mut self, want: &mut Expected) {
        self.withdraw(want);
        self.plan = Plan::Shutdown;
        self.next = None;
        self.close(CloseCause::Shutdown, want);
    }

    fn resumed(&mut self, want: &mut Expected) {
        self.outage = self.outage.map(|_| self.now);
        match &mut self.life {
            Some(life) if !self.pings.mute => {
                life.asked = None;
                life.resumed = Some(self.now);
                life.ask = Some((self.now, self.now + self.config.redial_spread()));
            }
            Some(_) => {}
            None if self.phase == Phase::Nothing && self.plan != Plan::Rest => self.caller(want),
            None => {}
        }
    }

    fn visible(&self) -> Status {
        match (self.plan, self.phase, self.parked) {
            (Plan::Shutdown, ..) => Status::Shutdown,
            (.., Some(reason)) => Status::Parked(reason),
            (_, Phase::Dialling { .. }, _) => Status::Connecting,
            (_, Phase::Up { epoch, .. }, _) => Status::Ready(epoch),
            (Plan::Rest, ..) => Status::Idle,
            (Plan::Dial | Plan::Park, ..) => Status::TransientFailure,
        }
    }

    /// R22, by the state after the step.
    fn admit(&mut self, until: Timestamp, step: &Step) -> Admission {
        let admission = match (self.phase, self.plan) {
            (Phase::Up { epoch, .. }, _) => match self.open_until {
                None => Admission::Go(epoch),
                Some(open) if open <= self.now => {
                    self.open_until = Some(self.now + self.config.breaker_open());
                    Admission::Go(epoch)
                }
                open => Admission::Refuse { why: Refusal::BreakerOpen, retry_at: open },
            },
            (Phase::Dialling { .. }, _) => Admission::Wait { next: None },
            (_, Plan::Shutdown) => Admission::Refuse { why: Refusal::Shutdown, retry_at: None },
            (_, Plan::Rest) => Admission::Wait { next: None }, // never: a Connect ends it
            (_, Plan::Dial | Plan::Park) => {
                let at = self.next.and(step.after.state.next_dial());
                let why = self.parked.map_or(Refusal::NotInTime, Refusal::Parked);
                let refused = matches!(
                    self.parked,
                    Some(ParkReason::Permanent | ParkReason::NeedsAuth | ParkReason::Requested)
                );
                match at {
                    Some(at) if at <= until && !refused => Admission::Wait { next: Some(at) },
                    retry_at => Admission::Refuse { why, retry_at },
                }
            }
        };
        if let Admission::Wait { .. } = admission {
            self.demand = self.demand.max(Some(until));
        }
        admission
    }
}

/// Liveness and breaker.
impl Model {
    fn used(&mut self) {
        if let (Some(life), Some(idle)) = (&mut self.life, self.config.idle_timeout()) {
            life.rest_at = Some(self.now + idle);
        }
    }

    fn answer(&mut self, want: &mut Expected) {
        self.strikes = 0;
        if self.open_until.take().is_some() {
            want.breaker = Some(None);
        }
    }

    fn traffic(&mut self, inbound: Timestamp, answered: bool, oldest: Option<Timestamp>, want: &mut Expected) {
        let Some(life) = &mut self.life else { return };
        life.heard = life.heard.max(inbound.min(self.now));
        life.open = oldest;
        let next = life.heard + self.config.keepalive();
        if let Some(asked) = life.asked {
            if life.heard >= asked.since {
                self.pings.answered |= self.pings.periodic();
                life.asked = None;
                life.ask = self.pings.periodic().then_some((next, next));
            }
        } else if let Some(resumed) = life.resumed {
            if life.heard >= resumed {
                life.resumed = None;
                life.ask = self.pings.periodic().then_some((next, next));
            }
        } else if let Some((from, to)) = life.ask {
            life.ask = Some((from.max(next), to.max(next)));
        }
        if answered {
            self.used();
            self.answer(want);
        }
    }

    fn no_reply(&mut self, sent: Timestamp, want: &mut Expected) {
        let Some(life) = &mut self.life else { return };
        if life.heard < sent {
            match &mut life.asked {
                Some(asked) => asked.prompted = true,
                None => {
                    want.ping = Some(Sure::Must);
                    life.asked = Some(Asked {
                        since: self.now,
                        deadline: self.now + self.config.ping_timeout(),
                        pings: 1,
                        prompted: true,
                    });
                    life.ask = None;
                    life.resumed = None;
                }
            }
        }
        if self.open_until.is_none() {
            self.strikes += 1;
            if self.strikes == self.config.breaker_strikes() {
                self.strikes = 0;
                self.open_until = Some(self.now + self.config.breaker_open());
                want.breaker = Some(self.open_until);
            }
        }
    }

    fn session_due(&mut self, step: &Step, want: &mut Expected) {
        let Some(life) = &mut self.life else { return };
        let now = self.now;
        if let Some(asked) = &mut life.asked {
            if asked.deadline <= now {
                if life.open.is_some_and(|sent| sent <= asked.since) {
                    asked.deadline = now + self.config.ping_timeout();
                } else if asked.pings < self.config.ping_misses() {
                    want.ping = Some(Sure::Must);
                    asked.pings += 1;
                    asked.deadline = now + self.config.ping_timeout();
                } else {
                    let prompted = asked.prompted;
                    self.verdict(prompted);
                    self.failed(FailureClass::Unresponsive.into(), step, want);
                    return self.close(CloseCause::Failed(FailureClass::Unresponsive), want);
                }
            }
        } else if let Some((from, to)) = life.ask
            && from <= now
        {
            if life.open.is_some() && life.resumed.is_none() {
                life.ask = Some((now + self.config.keepalive(), now + self.config.keepalive()));
            } else {
                want.ping = Some(if to <= now { Sure::Must } else { Sure::May });
                if step.ping() {
                    let deadline = now + self.config.ping_timeout();
                    life.asked = Some(Asked { since: now, deadline, pings: 1, prompted: false });
                    life.ask = None;
                    life.resumed = None;
                }
            }
        }
        let later = now + self.config.keepalive();
        let due = |at: Option<Timestamp>| at.is_some_and(|at| at <= now);
        match (due(life.rest_at), due(life.renew_at)) {
            (false, false) => {}
            (rest, renew) if life.open.is_some() => {
                life.rest_at = if rest { Some(later) } else { life.rest_at };
                life.renew_at = if renew { Some(later) } else { life.renew_at };
            }
            (true, _) => {
                self.leave_up();
                self.plan = Plan::Rest;
                self.next = None;
                self.close(CloseCause::Idle, want);
            }
            (false, true) => {
                self.leave_up();
                self.plan = Plan::Dial;
                self.set_next(Window::at(self.soonest(), Pace::AtOnce), want);
                self.close(CloseCause::Lifetime, want);
            }
        }
    }

    fn verdict(&mut self, prompted: bool) {
        let pings = &mut self.pings;
        if pings.answered || !pings.periodic() {
            return;
        }
        pings.verdicts = if prompted { 0 } else { pings.verdicts + 1 };
        pings.mute = pings.verdicts == 2;
    }
}
