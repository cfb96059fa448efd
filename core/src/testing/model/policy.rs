//! What follows a failure, a wake, a caller: R11 to R17, R22 and R23.

use core::time::Duration;

use crate::failure::{Failure, FailureClass};
use crate::input::WakeCause;
use crate::output::{Admission, CloseCause, Refusal};
use crate::state::{ParkReason, Status};
use crate::time::Timestamp;

use super::{Expected, Model, Pace, Phase, Plan, Step, Why, Window};

impl Model {
    /// The failure of a dial or a session, and what follows by R12–R14, R16 and R17.
    pub(super) fn failed(&mut self, failure: Failure, step: &Step, want: &mut Expected) {
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
            use FailureClass::{Finished, Refused, Transport, Unauthorized};
            let spread = matches!(failure.class, Transport | Refused | Unauthorized | Finished);
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

    pub(super) fn parks(&mut self, reason: ParkReason, want: &mut Expected) {
        self.parked = Some(reason);
        self.plan = Plan::Park;
        self.next = None;
        self.withdraw(want);
    }

    pub(super) fn withdraw(&mut self, want: &mut Expected) {
        want.withdraw |= self.published;
        self.published = false;
    }

    pub(super) fn close(&mut self, cause: CloseCause, want: &mut Expected) {
        if let Phase::Dialling { epoch, .. } | Phase::Up { epoch, .. } = self.phase {
            want.close = Some(cause);
            self.dead = Some(epoch);
            self.life = None;
            self.phase = Phase::Closing { epoch, deadline: self.now + self.config.close_timeout() };
        }
    }

    pub(super) fn ended(&mut self, want: &mut Expected) {
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

    pub(super) fn leave_up(&mut self) {
        if let Phase::Up { since, .. } = self.phase
            && self.now.since(since) >= self.config.stable_after()
        {
            self.ladder = 0;
            self.outage = None;
            self.probes = 0;
        }
    }

    pub(super) fn set_next(&mut self, window: Window, want: &mut Expected) {
        self.next = Some(window);
        want.window = Some(window);
    }

    pub(super) fn no_hint(&mut self) {
        self.hint = Duration::ZERO;
        self.hint_until = None;
    }

    /// `min_dial_interval` after the last dial.
    pub(in super::super) fn soonest(&self) -> Timestamp {
        self.last.map_or(self.now, |(_, at)| self.now.max(at + self.config.min_dial_interval()))
    }

    pub(super) fn no_earlier(&self, at: Timestamp) -> Timestamp {
        at.max(self.soonest()).max(self.hint_until.unwrap_or(at))
    }

    /// R14: whether a caller may bring the next dial forward.
    pub(in super::super) fn heeds_callers(&self) -> bool {
        let parked = matches!(self.parked, None | Some(ParkReason::Exhausted | ParkReason::Flapping));
        parked && self.class != Some(FailureClass::RateLimited)
    }

    pub(super) fn caller(&mut self, want: &mut Expected) {
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

    pub(super) fn wake(&mut self, cause: WakeCause, want: &mut Expected) {
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

    pub(super) fn park(&mut self, want: &mut Expected) {
        if self.plan == Plan::Shutdown {
            return;
        }
        self.leave_up();
        self.parks(ParkReason::Requested, want);
        self.why = Why::Schedule;
        self.demand = None;
        self.close(CloseCause::Parked, want);
    }

    pub(super) fn shutdown(&mut self, want: &mut Expected) {
        self.withdraw(want);
        self.plan = Plan::Shutdown;
        self.next = None;
        self.close(CloseCause::Shutdown, want);
    }

    pub(super) fn resumed(&mut self, want: &mut Expected) {
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

    pub(super) fn visible(&self) -> Status {
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
    pub(super) fn admit(&mut self, until: Timestamp, step: &Step) -> Admission {
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
                let refused =
                    matches!(self.parked, Some(ParkReason::Permanent | ParkReason::NeedsAuth | ParkReason::Requested));
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
