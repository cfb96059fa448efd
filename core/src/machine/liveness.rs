use core::time::Duration;

use super::{
    CloseCause, ConnectionMachine, Epoch, Event, FailureClass, Output, Outputs, PingSupport, Purpose, State, Then,
    Timestamp,
};
use crate::state::Liveness;
use crate::time::nanos;

impl ConnectionMachine {
    pub(super) fn enter_ready(&mut self, epoch: Epoch, out: &mut Outputs) {
        self.parked = None;
        self.purpose = Purpose::Schedule;
        self.hint = Duration::ZERO;
        self.hint_until = None;
        self.demand_doublings = 0;
        self.failure = None;
        self.published = true;
        self.served = false;
        self.answered_to = Timestamp::ZERO;
        self.stats.sessions += 1;
        out.push(Output::Publish { epoch }); // R16
        self.close_breaker(out);
        // The first question comes up to 20 % late, so that sessions that began together are not asked together.
        let late = self.rng.up_to(nanos(self.interval()) / 5);
        self.state = State::Ready {
            epoch,
            since: self.now,
            inbound: self.now,
            oldest: None,
            liveness: Liveness::Quiet { ask_at: self.now + self.interval() + Duration::from_nanos(late) },
            rest_at: self.config.idle_timeout().map(|idle| self.now + idle),
            renew_at: self.config.max_lifetime().map(|age| self.now + age),
        };
    }

    /// How long nothing may come in before the session is asked.
    pub(super) fn interval(&self) -> Duration {
        let keepalive = self.config.keepalive();
        if self.pings.periodic() { keepalive } else { keepalive * 5 }
    }

    /// A proven session refunds ladder, outage clock and probe interval; nothing else does. True if it is proven: it was
    /// Ready long enough; and where the server disowned it, it has given a result to a call, or said anything when it was
    /// that old. A server that greets everybody and then knows nobody has proven nothing.
    pub(super) fn leave_ready(&mut self, by: Option<FailureClass>) -> bool {
        let stable = self.config.stable_after();
        let State::Ready { since, inbound, .. } = self.state else { return false };
        let proven = self.now.since(since) >= stable
            && (by != Some(FailureClass::SessionGone) || self.served || inbound.since(since) >= stable);
        if proven {
            self.failures = 0; // R13
            self.outage_since = None;
            self.probe_doublings = 0;
            self.stats.failures_in_a_row = 0;
        }
        proven
    }

    /// Anything that came in since the session was asked is life. Where pings were unanswered until a listing was asked,
    /// the server is asked to list from then on.
    pub(super) fn on_traffic(&mut self, heard: Timestamp, open: Option<Timestamp>) {
        let State::Ready { inbound, oldest, liveness, .. } = &mut self.state else { return };
        *inbound = (*inbound).max(heard.min(self.now));
        *oldest = open;
        let (heard, asked) = (*inbound, *liveness);
        let soonest = match asked {
            Liveness::Quiet { ask_at } => ask_at,
            Liveness::Verify { resumed: since, .. }
            | Liveness::Asked { since, .. }
            | Liveness::Listing { since, .. } => {
                if heard < since {
                    return;
                }
                Timestamp::ZERO
            }
        };
        if matches!(asked, Liveness::Listing { .. }) && self.pings.periodic() {
            self.pings = PingSupport::Silent;
        }
        self.watch(Liveness::Quiet { ask_at: soonest.max(heard + self.interval()) });
    }

    /// An answered call is use, and clears the strikes; so does an answer to anything that was sent later than they were.
    pub(super) fn on_answers(&mut self, answered: bool, answered_to: Option<Timestamp>, out: &mut Outputs) {
        let State::Ready { inbound, .. } = self.state else { return };
        if answered {
            self.used(inbound);
        }
        self.answered_to = self.answered_to.max(answered_to.unwrap_or_default().min(self.now));
        if answered || self.answered_to > self.struck {
            // R21
            self.close_breaker(out);
        }
    }

    /// A call ended unanswered. A strike, unless the server has answered what was sent after it: strikes are for the deaf.
    pub(super) fn on_no_reply(&mut self, sent: Timestamp, out: &mut Outputs) {
        let State::Ready { .. } = self.state else { return };
        self.stats.no_replies += 1;
        if self.answered_to > sent {
            return;
        }
        self.struck = self.struck.max(sent.min(self.now));
        if self.breaker.strike(self.now, self.config.breaker_strikes(), self.config.breaker_open()) {
            self.stats.breaker_opened += 1; // R21
            let open_until = Some(self.now + self.config.breaker_open());
            out.push(Output::Event(Event::BreakerChanged { open_until }));
        }
    }

    /// Asks a session on which nothing has come in since a call was sent, unless it is being asked.
    pub(super) fn prompt(&mut self, sent: Timestamp, out: &mut Outputs) {
        if let State::Ready { inbound, liveness: Liveness::Quiet { .. } | Liveness::Verify { .. }, .. } = self.state
            && inbound <= sent
        {
            self.ping(self.now, 0, out); // R20
        }
    }

    /// The server knows no pings. It said so now, which is life.
    pub(super) fn on_ping_unsupported(&mut self) {
        let State::Ready { .. } = self.state else { return };
        self.pings = PingSupport::Refuses;
        self.watch(Liveness::Quiet { ask_at: self.now + self.interval() });
    }

    /// Something is known about pings, or nothing any more.
    pub(super) fn on_pings(&mut self, pings: PingSupport) {
        self.pings = pings;
        let next = self.now + self.interval();
        if let State::Ready { liveness: Liveness::Quiet { ask_at }, .. } = &mut self.state {
            *ask_at = next.min(*ask_at);
        }
    }

    pub(super) fn on_resumed(&mut self, by_call: bool) {
        if let Some(since) = &mut self.outage_since {
            *since = self.now; // R18
        }
        match self.state {
            State::Ready { .. } => {
                let spread = if by_call { 0 } else { self.rng.up_to(nanos(self.config.redial_spread())) };
                self.watch(Liveness::Verify { ask_at: self.now + Duration::from_nanos(spread), resumed: self.now });
            }
            State::TransientFailure { .. } | State::Parked { .. } => self.bring_forward(), // R18
            State::Idle | State::Connecting { .. } | State::Closing { .. } | State::Shutdown => {}
        }
    }

    /// A caller or an answered call: the session was in use then.
    pub(super) fn used(&mut self, when: Timestamp) {
        if let State::Ready { rest_at: Some(at), .. } = &mut self.state
            && let Some(idle) = self.config.idle_timeout()
        {
            *at = (*at).max(when + idle); // R24
        }
    }

    /// What of a Ready session's timers is due, if anything: a question or a verdict first, then rest and renewal.
    pub(super) fn on_ready_due(&mut self, out: &mut Outputs) {
        let State::Ready { epoch, liveness, oldest, .. } = self.state else { return };
        let due = |at: Timestamp| at <= self.now;
        // A server that works on a call may be too busy to answer.
        let busy = |since| oldest.is_some_and(|sent| sent < since);
        match liveness {
            Liveness::Quiet { ask_at } if due(ask_at) && oldest.is_some() => {
                self.watch(Liveness::Quiet { ask_at: self.now + self.interval() });
            }
            Liveness::Quiet { ask_at } | Liveness::Verify { ask_at, .. } if due(ask_at) => {
                if self.pings.periodic() {
                    self.ping(self.now, 0, out)
                } else {
                    self.ask(self.now, out) // R19
                }
            }
            Liveness::Asked { since, deadline, missed } if due(deadline) => {
                if busy(since) {
                    let deadline = self.now + self.config.ping_timeout();
                    self.watch(Liveness::Asked { since, deadline, missed });
                } else if missed + 1 < self.config.ping_misses() {
                    self.ping(since, missed + 1, out);
                } else {
                    self.ask(since, out);
                }
            }
            Liveness::Listing { since, deadline } if due(deadline) => {
                if busy(since) {
                    self.watch(Liveness::Listing { since, deadline: self.now + self.patience() });
                } else {
                    let then = self.plan(FailureClass::Unresponsive.into(), out); // R19
                    self.enter_closing(epoch, CloseCause::Failed(FailureClass::Unresponsive), then, out);
                    return;
                }
            }
            Liveness::Quiet { .. } | Liveness::Verify { .. } | Liveness::Asked { .. } | Liveness::Listing { .. } => {}
        }
        let later = self.now + self.config.keepalive();
        let State::Ready { rest_at, renew_at, .. } = &mut self.state else { return };
        match (rest_at, renew_at) {
            // R24
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

    fn ping(&mut self, since: Timestamp, missed: u8, out: &mut Outputs) {
        let State::Ready { epoch, .. } = self.state else { return };
        self.stats.pings += 1;
        out.push(Output::Ping { epoch });
        self.watch(Liveness::Asked { since, deadline: self.now + self.config.ping_timeout(), missed });
    }

    fn ask(&mut self, since: Timestamp, out: &mut Outputs) {
        let State::Ready { epoch, .. } = self.state else { return };
        self.stats.asks += 1;
        out.push(Output::Ask { epoch });
        self.watch(Liveness::Listing { since, deadline: self.now + self.patience() });
    }

    /// How long a listing may stay unanswered.
    fn patience(&self) -> Duration {
        self.config.ping_timeout().max(self.listing * 2)
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
