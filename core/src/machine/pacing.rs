use core::time::Duration;

use super::{
    CloseCause, ConnectionMachine, Epoch, FailureClass, Output, Outputs, ParkReason, ReadyFlags, State, Then,
    Timestamp, WakeCause,
};
use crate::backoff::Backoff;
use crate::config::Restart;
use crate::failure::Failure;
use crate::time::nanos;

/// The longest step of the ladder while a caller waits and nobody listens, in nanoseconds.
const QUICK_MAX: u64 = 3_000_000_000;

/// What the next dial is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) enum Purpose {
    /// Its own schedule.
    Schedule,
    /// A caller brought it forward.
    Caller,
    /// A wake, perhaps one that had to wait for the end of an attempt.
    Wake(WakeCause),
}

impl ConnectionMachine {
    /// Notes a failed dial or session and decides what follows the close.
    pub(super) fn plan(&mut self, failure: Failure, out: &mut Outputs) -> Then {
        let was_ready = matches!(self.state, State::Ready { .. });
        self.refused = failure.class == FailureClass::Refused && !was_ready;
        let open = matches!(self.state, State::Ready { oldest: Some(_), .. });
        let proven = self.leave_ready(Some(failure.class));
        self.note(failure);
        if proven && self.rests(failure.class, open) {
            return Then::Rest;
        }
        self.stats.failures += 1;
        self.stats.failures_in_a_row += 1;
        let limited = failure.class == FailureClass::RateLimited;
        let begins_outage = self.outage_since.is_none() && !limited;
        if begins_outage {
            self.outage_since = Some(self.now);
        }
        let (reason, gives_up) = match failure.class {
            FailureClass::Permanent => (ParkReason::Permanent, true),
            FailureClass::NeedsAuth => (ParkReason::NeedsAuth, true),
            FailureClass::Unauthorized => (ParkReason::Permanent, false),
            FailureClass::Transport
            | FailureClass::SessionGone
            | FailureClass::RateLimited
            | FailureClass::StartTimeout
            | FailureClass::Unresponsive
            | FailureClass::Refused
            | FailureClass::Finished => (if was_ready { ParkReason::Flapping } else { ParkReason::Exhausted }, false),
        };
        if let Purpose::Wake(_) = self.purpose {
            self.failures = self.failures.saturating_add(1); // R11
            self.parked = self.parked.map(|_| reason);
            return Then::Retry { at: self.wake_time() };
        }
        if gives_up || self.parked.is_some() {
            return self.park(reason, out);
        }
        let wait = if was_ready && begins_outage {
            let spread = if failure.class.spreads() { nanos(self.config.redial_spread()) } else { 0 };
            Duration::from_nanos(self.rng.up_to(spread)) // R13
        } else {
            let step = self.climb(!limited && self.demand.is_some_and(|until| until > self.now));
            self.rng.upper_half(step) // R12
        };
        let at = self.no_earlier(self.now + wait);
        match self.outage_since {
            Some(since) if at > since + self.config.park_after() && !limited => self.park(reason, out), // R16
            Some(_) | None => Then::Retry { at },
        }
    }

    /// The next step of the ladder; `demanded`: a caller waits. Quick steps are none of the ladder's: who comes after
    /// these callers finds it as if they had not been there.
    fn climb(&mut self, demanded: bool) -> u64 {
        let cap = if demanded { nanos(self.config.demand_interval()) } else { u64::MAX }; // R14
        let ladder = Backoff { first: nanos(self.config.backoff()), max: nanos(self.config.backoff_max()) };
        let step = ladder.step(self.failures).min(cap);
        if let Some(quick) = self.quick_step(self.now).filter(|quick| demanded && *quick < step) {
            return quick;
        }
        self.failures = self.failures.saturating_add(1);
        step
    }

    /// While a caller waits and nobody listens, a step is as long as the outage is old at this time, from
    /// `demand_backoff` up to 3 s.
    fn quick_step(&self, at: Timestamp) -> Option<u64> {
        let first = nanos(self.config.demand_backoff());
        let quick = self.failure == Some(FailureClass::Refused) && self.parked.is_none() && first > 0;
        quick.then(|| nanos(at.since(self.outage_since.unwrap_or(at))).min(QUICK_MAX).max(first))
    }

    /// Whether the end of a proven session is no reason to begin another. `open`: a call was open.
    fn rests(&self, class: FailureClass, open: bool) -> bool {
        match (class, self.config.restart()) {
            (FailureClass::Permanent | FailureClass::NeedsAuth, _) | (_, Restart::Always) => false,
            (FailureClass::Finished, Restart::OnFailure) => !open,
            (_, restart) => restart == Restart::Never,
        }
    }

    /// Keeps the failure and its hint.
    fn note(&mut self, failure: Failure) {
        self.failure = Some(failure.class);
        if let Some(hint) = failure.retry_after {
            self.hint = self.hint.max(hint.min(self.config.retry_after_max()));
            self.hint_until = self.hint_until.max(Some(self.now + self.hint));
        }
    }

    /// Begins a park episode (or goes on with one, for this reason now): the status is Parked until the next Ready.
    pub(super) fn park(&mut self, reason: ParkReason, out: &mut Outputs) -> Then {
        self.parked = Some(reason);
        self.withdraw(out);
        Then::Park
    }

    /// What a close, or the end of an epoch that needed none, leads to.
    pub(super) fn enter_after(&mut self, then: Then) {
        self.state = match (then, self.parked) {
            (Then::Retry { at }, None) => State::TransientFailure { retry_at: at },
            (Then::Retry { at }, Some(_)) => State::Parked { probe_at: Some(at) },
            (Then::Park, reason) => {
                let probes = reason.is_some_and(ParkReason::probes); // R5
                State::Parked { probe_at: probes.then(|| self.probe_time()) }
            }
            (Then::Rest, _) => State::Idle,
            (Then::Shutdown, _) => State::Shutdown,
        };
    }

    /// When a server that parks now is probed: up to 20 % late, and never before a hint is over.
    pub(super) fn probe_time(&mut self) -> Timestamp {
        let interval = self.probe_interval();
        let late = self.rng.up_to(interval / 5); // R17
        self.no_earlier(self.now + Duration::from_nanos(interval + late))
    }

    fn probe_interval(&self) -> u64 {
        let probe = Backoff { first: nanos(self.config.park_probe()), max: nanos(self.config.park_probe_max()) };
        probe.step(self.probe_doublings.into())
    }

    /// A parked server's timer: its own probe, unless a caller or a wake brought the dial forward.
    pub(super) fn dial_parked(&mut self, out: &mut Outputs) {
        match self.purpose {
            Purpose::Schedule => {
                self.probe_doublings = self.probe_doublings.saturating_add(1); // R17
                self.stats.probes += 1;
            }
            Purpose::Caller if self.parked == Some(ParkReason::Permanent) => {
                self.demand_doublings = self.demand_doublings.saturating_add(1);
            }
            Purpose::Caller | Purpose::Wake(_) => {}
        }
        self.dial(out);
    }

    /// The only place that dials.
    pub(super) fn dial(&mut self, out: &mut Outputs) {
        let epoch = self.epoch.map_or(Epoch::FIRST, Epoch::next); // R6
        let interactive = self.purpose == Purpose::Wake(WakeCause::Operator); // R17
        self.purpose = Purpose::Schedule;
        self.epoch = Some(epoch);
        self.dialled = Some(self.now);
        self.refused = false;
        self.listing = Duration::ZERO;
        self.stats.dials += 1;
        out.push(Output::Dial { epoch, timeout: self.start_timeout, interactive });
        let deadline = self.now + self.config.connect_timeout_max();
        self.state = State::Connecting { epoch, deadline, ready: ReadyFlags::default() }; // R9
    }

    pub(super) fn on_start_timeout(&mut self, epoch: Epoch, ready: ReadyFlags, out: &mut Outputs) {
        if !ready.is_empty() {
            self.start_timeout = (self.start_timeout * 2).min(self.config.connect_timeout_max()); // R15
        }
        let then = self.plan(FailureClass::StartTimeout.into(), out);
        self.enter_closing(epoch, CloseCause::Failed(FailureClass::StartTimeout), then, out);
    }

    pub(super) fn on_connect(&mut self) {
        let at = self.no_earlier(self.now);
        match &mut self.state {
            State::Idle => self.state = State::TransientFailure { retry_at: at },
            State::Closing { then: then @ Then::Rest, .. } => *then = Then::Retry { at },
            State::Ready { .. } => self.used(self.now),
            State::Connecting { .. }
            | State::Closing { .. }
            | State::TransientFailure { .. }
            | State::Parked { .. }
            | State::Shutdown => self.bring_forward(),
        }
    }

    /// A caller makes the next dial come `demand_interval` after the last one, where it was due later; twice as late
    /// after each such dial of a park for a permanent failure, up to the probe interval. Where nobody listens it finds
    /// the ladder as if it had been there from the start.
    ///
    /// Not where the server limits our rate, nor where asking cannot help. What is due within `redial_spread` stays: a
    /// crowd that is spread stays so though callers wait.
    pub(super) fn bring_forward(&mut self) {
        if self.failure == Some(FailureClass::RateLimited) || self.parked.is_some_and(|reason| !reason.probes()) {
            return;
        }
        let first = nanos(self.config.demand_interval());
        let interval = if self.parked == Some(ParkReason::Permanent) {
            Backoff { first, max: self.probe_interval() }.step(self.demand_doublings.into())
        } else {
            self.quick_step(self.dialled.unwrap_or(self.now)).map_or(first, |quick| first.min(quick))
        };
        let soon = self.no_earlier(self.after_last_dial(Duration::from_nanos(interval)));
        let near = self.now + self.config.redial_spread();
        if let Some(at) = self.state.next_dial_mut() {
            if *at <= soon.max(near) {
                return;
            }
            *at = soon;
        } else if let State::Closing { then: then @ Then::Park, .. } = &mut self.state {
            *then = Then::Retry { at: soon };
        } else {
            return;
        }
        if self.purpose == Purpose::Schedule {
            self.purpose = Purpose::Caller;
        }
    }

    pub(super) fn on_wake(&mut self, cause: WakeCause) {
        let dialling = match self.state {
            State::Ready { .. } | State::Shutdown | State::Closing { then: Then::Shutdown, .. } => return, // R11
            State::Connecting { .. } => true,
            State::Idle | State::TransientFailure { .. } | State::Parked { .. } | State::Closing { .. } => false,
        };
        if self.parked == Some(ParkReason::Requested) && !dialling {
            if cause == WakeCause::Credentials {
                return;
            }
            self.parked = None;
        }
        self.hint = Duration::ZERO;
        self.hint_until = None;
        self.demand_doublings = 0;
        // A user's wake may show a login; a later wake of another kind does not take that back.
        if self.purpose != Purpose::Wake(WakeCause::Operator) {
            self.purpose = Purpose::Wake(cause);
        }
        let at = self.wake_time();
        let at = self.state.next_dial().map_or(at, |due| at.min(due)); // it may be sooner after a refused one
        if let State::Closing { then, .. } = &mut self.state {
            *then = Then::Retry { at };
        } else if !dialling {
            self.enter_after(Then::Retry { at });
        }
    }

    /// When a dial for a wake may come, or any other that nothing but the pace holds back.
    pub(super) fn wake_time(&self) -> Timestamp {
        self.after_last_dial(self.config.min_dial_interval()) // R14
    }

    /// When a dial of the ladder or of a caller may come.
    pub(super) fn pace(&self) -> Timestamp {
        let (pace, refused) = (self.config.min_dial_interval(), self.config.refused_interval());
        let quick = self.refused && self.parked.is_none() && !refused.is_zero();
        self.after_last_dial(if quick { pace.min(refused) } else { pace })
    }

    pub(super) fn after_last_dial(&self, interval: Duration) -> Timestamp {
        self.dialled.map_or(self.now, |dialled| self.now.max(dialled + interval))
    }

    /// `at`, put off by the pace and by the server's hint.
    pub(super) fn no_earlier(&self, at: Timestamp) -> Timestamp {
        at.max(self.pace()).max(self.hint_until.unwrap_or(self.now))
    }
}
