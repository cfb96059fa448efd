use core::time::Duration;

use super::{
    CloseCause, ConnectionMachine, Epoch, Event, FailureClass, Hint, Output, Outputs, PingSupport, Purpose, State,
    Then, Timestamp,
};
use crate::state::Liveness;
use crate::time::nanos;

impl ConnectionMachine {
    pub(super) fn enter_ready(&mut self, epoch: Epoch, out: &mut Outputs) {
        self.parked = None;
        self.purpose = Purpose::Schedule;
        self.hint = Hint::NONE;
        self.demand_doublings = 0;
        self.failure = None;
        self.published = true;
        self.served = false;
        self.answered_to = Timestamp::ZERO;
        self.stats.sessions += 1;
        out.push(Output::Publish { epoch });
        self.close_breaker(out);
        self.state = State::Ready {
            epoch,
            since: self.now,
            inbound: self.now,
            oldest: None,
            liveness: self.first_question(),
            rest_at: self.config.idle_timeout().map(|idle| self.now + idle),
            renew_at: self.config.max_lifetime().map(|age| self.now + age),
        };
    }

    /// The first question comes up to 20 % late, so that sessions that began together are not asked together.
    fn first_question(&mut self) -> Liveness {
        if !self.pings.periodic() {
            return Liveness::Off;
        }
        let late = self.rng.up_to(nanos(self.config.keepalive()) / 5);
        Liveness::Quiet { ask_at: self.now + self.config.keepalive() + Duration::from_nanos(late) }
    }

    /// A proven session refunds ladder, outage clock and probe interval; nothing else does. Proven is one that was Ready
    /// long enough; where the server disowned it, it must have given a result to a call, or said anything when it was
    /// that old: a server that greets everybody and then knows nobody has proven nothing.
    pub(super) fn leave_ready(&mut self, by: Option<FailureClass>) {
        let stable = self.config.stable_after();
        if let State::Ready { since, inbound, .. } = self.state
            && self.now.since(since) >= stable
            && (by != Some(FailureClass::SessionGone) || self.served || inbound.since(since) >= stable)
        {
            self.failures = 0;
            self.outage_since = None;
            self.probe_doublings = 0;
            self.stats.failures_in_a_row = 0;
        }
    }

    pub(super) fn on_traffic(&mut self, heard: Timestamp, open: Option<Timestamp>) {
        let State::Ready { inbound, oldest, liveness, .. } = &mut self.state else { return };
        *inbound = (*inbound).max(heard.min(self.now));
        *oldest = open;
        let heard = *inbound;
        let next = heard + self.config.keepalive();
        match *liveness {
            Liveness::Off => {}
            Liveness::Quiet { ask_at } => *liveness = Liveness::Quiet { ask_at: ask_at.max(next) },
            Liveness::Verify { resumed, .. } if heard < resumed => {}
            Liveness::Asked { since, .. } if heard < since => {}
            Liveness::Verify { .. } => *liveness = self.pings.watch(next),
            Liveness::Asked { .. } => {
                self.pings = self.pings.answered();
                *liveness = self.pings.watch(next);
            }
        }
    }

    /// An answered call is use, and clears the strikes; so does an answer to anything that was sent later than they were.
    pub(super) fn on_answers(&mut self, answered: bool, answered_to: Option<Timestamp>, out: &mut Outputs) {
        let State::Ready { inbound, .. } = self.state else { return };
        if answered {
            self.used(inbound);
        }
        self.answered_to = self.answered_to.max(answered_to.unwrap_or_default().min(self.now));
        if answered || self.answered_to > self.struck {
            self.close_breaker(out);
        }
    }

    /// A call ended unanswered. A strike, unless the server has answered what was sent after it: strikes are for the deaf.
    pub(super) fn on_no_reply(&mut self, from: Epoch, sent: Timestamp, out: &mut Outputs) {
        if !self.prompt(from, sent, out) {
            return;
        }
        self.stats.no_replies += 1;
        if self.answered_to > sent {
            return;
        }
        self.struck = self.struck.max(sent.min(self.now));
        if self.breaker.strike(self.now, self.config.breaker_strikes(), self.config.breaker_open()) {
            self.stats.breaker_opened += 1;
            let open_until = Some(self.now + self.config.breaker_open());
            out.push(Output::Event(Event::BreakerChanged { open_until }));
        }
    }

    /// Asks a session on which nothing has come in since that call was sent. False for another than the live one.
    pub(super) fn prompt(&mut self, from: Epoch, sent: Timestamp, out: &mut Outputs) -> bool {
        let State::Ready { epoch, inbound, liveness, .. } = self.state else { return false };
        if epoch != from {
            return false;
        }
        match liveness {
            Liveness::Asked { since, deadline, missed, .. } if inbound <= sent => {
                self.watch(Liveness::Asked { since, deadline, missed, prompted: true });
            }
            Liveness::Off | Liveness::Quiet { .. } | Liveness::Verify { .. } if inbound <= sent => self.ask(true, out),
            Liveness::Off | Liveness::Quiet { .. } | Liveness::Verify { .. } | Liveness::Asked { .. } => {}
        }
        true
    }

    pub(super) fn on_ping_unsupported(&mut self, from: Epoch) {
        if let State::Ready { epoch, liveness, .. } = &mut self.state
            && *epoch == from
        {
            self.pings = PingSupport::Refuses;
            *liveness = Liveness::Off;
        }
    }

    pub(super) fn on_resumed(&mut self) {
        if let Some(since) = &mut self.outage_since {
            *since = self.now;
        }
        match &mut self.state {
            State::Ready { liveness, .. } if self.pings != PingSupport::Mute => {
                let spread = self.rng.up_to(nanos(self.config.redial_spread()));
                *liveness = Liveness::Verify { ask_at: self.now + Duration::from_nanos(spread), resumed: self.now };
            }
            State::TransientFailure { .. } | State::Parked { .. } => self.bring_forward(),
            State::Idle | State::Connecting { .. } | State::Ready { .. } | State::Closing { .. } | State::Shutdown => {}
        }
    }

    /// A caller or an answered call: the session was in use then.
    pub(super) fn used(&mut self, when: Timestamp) {
        if let State::Ready { rest_at: Some(at), .. } = &mut self.state
            && let Some(idle) = self.config.idle_timeout()
        {
            *at = (*at).max(when + idle);
        }
    }

    /// What of a Ready session's timers is due, if anything: a question or a verdict first, then rest and renewal.
    pub(super) fn on_ready_due(&mut self, out: &mut Outputs) {
        let State::Ready { epoch, liveness, oldest, .. } = self.state else { return };
        let due = |at: Timestamp| at <= self.now;
        match liveness {
            Liveness::Quiet { ask_at } if due(ask_at) && oldest.is_some() => {
                self.watch(Liveness::Quiet { ask_at: self.now + self.config.keepalive() });
            }
            Liveness::Quiet { ask_at } | Liveness::Verify { ask_at, .. } if due(ask_at) => self.ask(false, out),
            Liveness::Asked { since, deadline, missed, prompted } if due(deadline) => {
                if oldest.is_some_and(|sent| sent < since) {
                    // A server that works on a call may be too busy to answer.
                    let deadline = self.now + self.config.ping_timeout();
                    self.watch(Liveness::Asked { since, deadline, missed, prompted });
                } else if missed + 1 < self.config.ping_misses() {
                    self.ping(since, missed + 1, prompted, out);
                } else {
                    self.note_verdict(FailureClass::Unresponsive);
                    let then = self.plan(FailureClass::Unresponsive.into(), out);
                    self.enter_closing(epoch, CloseCause::Failed(FailureClass::Unresponsive), then, out);
                    return;
                }
            }
            Liveness::Off | Liveness::Quiet { .. } | Liveness::Verify { .. } | Liveness::Asked { .. } => {}
        }
        let later = self.now + self.config.keepalive();
        let State::Ready { rest_at, renew_at, .. } = &mut self.state else { return };
        match (rest_at, renew_at) {
            (Some(at), _) | (_, Some(at)) if *at <= self.now && oldest.is_some() => *at = later,
            (Some(at), _) if *at <= self.now => {
                self.leave_ready(None);
                self.enter_closing(epoch, CloseCause::Idle, Then::Rest, out);
            }
            (_, Some(at)) if *at <= self.now => {
                self.leave_ready(None);
                let at = self.wake_time();
                self.enter_closing(epoch, CloseCause::Lifetime, Then::Retry { at }, out);
            }
            (Some(_) | None, Some(_) | None) => {}
        }
    }

    /// A session is given up as unresponsive, by us or by a link whose pings failed.
    pub(super) fn note_verdict(&mut self, class: FailureClass) {
        if let (FailureClass::Unresponsive, State::Ready { liveness, .. }) = (class, self.state) {
            let prompted = matches!(liveness, Liveness::Asked { prompted: true, .. });
            self.pings = self.pings.silent(prompted);
        }
    }

    fn ask(&mut self, prompted: bool, out: &mut Outputs) {
        self.ping(self.now, 0, prompted, out);
    }

    fn ping(&mut self, since: Timestamp, missed: u8, prompted: bool, out: &mut Outputs) {
        let State::Ready { epoch, .. } = self.state else { return };
        self.stats.pings += 1;
        out.push(Output::Ping { epoch });
        self.watch(Liveness::Asked { since, deadline: self.now + self.config.ping_timeout(), missed, prompted });
    }

    fn watch(&mut self, by: Liveness) {
        if let State::Ready { liveness, .. } = &mut self.state {
            *liveness = by;
        }
    }

    fn close_breaker(&mut self, out: &mut Outputs) {
        self.struck = Timestamp::ZERO;
        if self.breaker.close() {
            out.push(Output::Event(Event::BreakerChanged { open_until: None }));
        }
    }
}

impl PingSupport {
    /// How a session is watched until `ask_at`.
    const fn watch(self, ask_at: Timestamp) -> Liveness {
        if self.periodic() { Liveness::Quiet { ask_at } } else { Liveness::Off }
    }

    const fn answered(self) -> Self {
        match self {
            Self::Unknown | Self::Answers | Self::Silent => Self::Answers,
            Self::Mute | Self::Refuses => self,
        }
    }

    /// A session was given up for unanswered pings; `prompted`: a call without a reply was behind them.
    const fn silent(self, prompted: bool) -> Self {
        match (self, prompted) {
            (Self::Unknown, false) => Self::Silent,
            (Self::Silent, false) => Self::Mute,
            (Self::Silent, true) => Self::Unknown,
            (Self::Unknown, true) | (Self::Answers | Self::Mute | Self::Refuses, _) => self,
        }
    }
}
