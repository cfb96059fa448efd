use core::time::Duration;

use super::{
    CloseCause, ConnectionMachine, Epoch, FailureClass, Output, Outputs, ParkReason, ReadyFlags, State, Then,
    Timestamp, WakeCause,
};
use crate::backoff::Backoff;
use crate::failure::Failure;
use crate::time::nanos;

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

/// What the server's `Retry-After` asks for, since the last Ready or wake.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct Hint {
    /// The longest so far: a later shorter one never shortens.
    longest: Duration,
    /// No dial but a wake's comes before.
    pub(super) until: Option<Timestamp>,
}

impl Hint {
    pub(super) const NONE: Self = Self { longest: Duration::ZERO, until: None };
}

impl ConnectionMachine {
    /// Notes a failed dial or session and decides what follows the close.
    pub(super) fn plan(&mut self, failure: Failure, out: &mut Outputs) -> Then {
        let was_ready = matches!(self.state, State::Ready { .. });
        self.leave_ready();
        let begins_outage = self.note(failure);
        let (reason, gives_up) = match failure.class {
            FailureClass::Permanent => (ParkReason::Permanent, true),
            FailureClass::NeedsAuth => (ParkReason::NeedsAuth, true),
            FailureClass::Transport
            | FailureClass::SessionGone
            | FailureClass::RateLimited
            | FailureClass::StartTimeout
            | FailureClass::Unresponsive
            | FailureClass::Refused
            | FailureClass::Unauthorized
            | FailureClass::Finished => (if was_ready { ParkReason::Flapping } else { ParkReason::Exhausted }, false),
        };
        if let Purpose::Wake(_) = self.purpose {
            self.failures = self.failures.saturating_add(1);
            self.parked = self.parked.map(|_| reason);
            return Then::Retry { at: self.wake_time() };
        }
        if gives_up || self.parked.is_some() {
            return self.park(reason, out);
        }
        let limited = failure.class == FailureClass::RateLimited;
        let wait = if was_ready && begins_outage {
            let spread = if failure.class == FailureClass::Transport { nanos(self.config.redial_spread()) } else { 0 };
            Duration::from_nanos(self.rng.up_to(spread))
        } else {
            let demanded = !limited && self.demand.is_some_and(|until| until > self.now);
            let cap = if demanded { nanos(self.config.demand_interval()) } else { u64::MAX };
            let ladder = Backoff { first: nanos(self.config.backoff()), max: nanos(self.config.backoff_max()) };
            let wait = ladder.wait(self.failures, cap, &mut self.rng);
            self.failures = self.failures.saturating_add(1);
            wait
        };
        let at = self.no_earlier(self.now + wait);
        match self.outage_since {
            Some(since) if at > since + self.config.park_after() && !limited => self.park(reason, out),
            Some(_) | None => Then::Retry { at },
        }
    }

    /// Keeps the failure, its hint, and the outage clock. True if an outage began.
    fn note(&mut self, failure: Failure) -> bool {
        self.failure = Some(failure.class);
        self.stats.failures += 1;
        self.stats.failures_in_a_row += 1;
        if let Some(hint) = failure.retry_after {
            self.hint.longest = self.hint.longest.max(hint.min(self.config.retry_after_max()));
            self.hint.until = self.hint.until.max(Some(self.now + self.hint.longest));
        }
        let begins = self.outage_since.is_none() && failure.class != FailureClass::RateLimited;
        if begins {
            self.outage_since = Some(self.now);
        }
        begins
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
                let probes = reason.is_some_and(ParkReason::probes);
                State::Parked { probe_at: probes.then(|| self.probe_time()) }
            }
            (Then::Rest, _) => State::Idle,
            (Then::Shutdown, _) => State::Shutdown,
        };
    }

    /// When a server that parks now is probed: up to 20 % late, and never before a hint is over.
    pub(super) fn probe_time(&mut self) -> Timestamp {
        let probe = Backoff { first: nanos(self.config.park_probe()), max: nanos(self.config.park_probe_max()) };
        let interval = probe.step(self.probe_doublings.into());
        let late = self.rng.up_to(interval / 5);
        self.no_earlier(self.now + Duration::from_nanos(interval + late))
    }

    /// A parked server's timer: its own probe, unless a caller or a wake brought the dial forward.
    pub(super) fn dial_parked(&mut self, out: &mut Outputs) {
        if self.purpose == Purpose::Schedule {
            self.probe_doublings = self.probe_doublings.saturating_add(1);
            self.stats.probes += 1;
        }
        self.dial(out);
    }

    /// The only place that dials.
    pub(super) fn dial(&mut self, out: &mut Outputs) {
        let epoch = self.epoch.map_or(Epoch::FIRST, Epoch::next);
        let interactive = self.purpose == Purpose::Wake(WakeCause::Operator);
        self.purpose = Purpose::Schedule;
        self.epoch = Some(epoch);
        self.dialled = Some(self.now);
        self.stats.dials += 1;
        out.push(Output::Dial { epoch, timeout: self.start_timeout, interactive });
        let deadline = self.now + self.config.connect_timeout_max();
        self.state = State::Connecting { epoch, deadline, ready: ReadyFlags::default() };
    }

    pub(super) fn on_start_timeout(&mut self, epoch: Epoch, ready: ReadyFlags, out: &mut Outputs) {
        if !ready.is_empty() {
            self.start_timeout = (self.start_timeout * 2).min(self.config.connect_timeout_max());
        }
        let then = self.plan(FailureClass::StartTimeout.into(), out);
        self.enter_closing(epoch, CloseCause::Failed(FailureClass::StartTimeout), then, out);
    }

    pub(super) fn on_connect(&mut self) {
        match self.state {
            State::Idle => self.state = State::TransientFailure { retry_at: self.wake_time() },
            State::Closing { epoch, deadline, then: Then::Rest } => {
                self.state = State::Closing { epoch, deadline, then: Then::Retry { at: self.wake_time() } };
            }
            State::Ready { .. } => self.used(self.now),
            State::Connecting { .. }
            | State::Closing { .. }
            | State::TransientFailure { .. }
            | State::Parked { .. }
            | State::Shutdown => self.bring_forward(),
        }
    }

    /// A caller makes the next dial come `demand_interval` after the last one, where it was due later.
    ///
    /// Not where the server limits our rate, nor where asking cannot help.
    pub(super) fn bring_forward(&mut self) {
        if self.failure == Some(FailureClass::RateLimited) || self.parked.is_some_and(|reason| !reason.heeds_callers())
        {
            return;
        }
        let soon = self.no_earlier(self.after_last_dial(self.config.demand_interval()));
        match &mut self.state {
            State::TransientFailure { retry_at: at }
            | State::Parked { probe_at: Some(at) }
            | State::Closing { then: Then::Retry { at }, .. }
                if soon < *at =>
            {
                *at = soon;
            }
            State::Closing { then: then @ Then::Park, .. } => *then = Then::Retry { at: soon },
            State::Idle
            | State::Connecting { .. }
            | State::Ready { .. }
            | State::Closing { .. }
            | State::TransientFailure { .. }
            | State::Parked { .. }
            | State::Shutdown => return,
        }
        if self.purpose == Purpose::Schedule {
            self.purpose = Purpose::Caller;
        }
    }

    pub(super) fn on_wake(&mut self, cause: WakeCause) {
        match self.state {
            State::Ready { .. } | State::Shutdown | State::Closing { then: Then::Shutdown, .. } => return,
            State::Connecting { .. } => {}
            State::Idle | State::TransientFailure { .. } | State::Parked { .. } | State::Closing { .. } => {
                if self.parked == Some(ParkReason::Requested) {
                    if cause == WakeCause::Credentials {
                        return;
                    }
                    self.parked = None;
                }
            }
        }
        self.hint = Hint::NONE;
        // A user's wake may show a login; a later wake of another kind does not take that back.
        if self.purpose != Purpose::Wake(WakeCause::Operator) {
            self.purpose = Purpose::Wake(cause);
        }
        let at = self.wake_time();
        match self.state {
            State::Closing { epoch, deadline, .. } => {
                self.state = State::Closing { epoch, deadline, then: Then::Retry { at } };
            }
            State::Idle | State::TransientFailure { .. } | State::Parked { .. } => self.enter_after(Then::Retry { at }),
            State::Connecting { .. } | State::Ready { .. } | State::Shutdown => {}
        }
    }

    /// When a dial may come that nothing but the pace holds back.
    pub(super) fn wake_time(&self) -> Timestamp {
        self.after_last_dial(self.config.min_dial_interval())
    }

    fn after_last_dial(&self, interval: Duration) -> Timestamp {
        self.dialled.map_or(self.now, |dialled| self.now.max(dialled + interval))
    }

    /// `at`, put off by the pace and by the server's hint.
    fn no_earlier(&self, at: Timestamp) -> Timestamp {
        at.max(self.wake_time()).max(self.hint.until.unwrap_or(self.now))
    }
}
