//! What the model check does to a machine.

use super::{ConnectionMachine, PingSupport, Purpose, State, Timestamp, WakeCause};
use crate::breaker::Breaker;
use crate::config::Config;
use crate::id::Epoch;
use crate::normal::{Draw, Frame, View};
use crate::snapshot::Stats;

impl ConnectionMachine {
    /// Makes this machine the one that stands for all that no later step tells apart from it.
    pub fn normalise(&mut self, frame: &Frame) {
        let view = View::new(frame, self.now, self.epoch);
        if let State::Ready { since, inbound, .. } = self.state {
            self.served |= inbound.since(since) >= frame.stable;
        } else {
            (self.served, self.answered_to) = (false, Timestamp::ZERO);
        }
        self.state = view.state(self.state, self.served);
        self.status = view.status(self.status);
        self.epoch = self.epoch.map(|epoch| view.epoch(epoch));
        self.refused &= frame.quick && self.dialled.is_some_and(|at| self.now.since(at) < frame.pace);
        self.dialled = self.dialled.map(|at| view.past(at, frame.pace));
        if self.purpose == Purpose::Wake(WakeCause::Credentials) {
            self.purpose = Purpose::Wake(WakeCause::Config); // told apart when they come, never later
        }
        self.demand = view.future(self.demand);
        self.failures = self.failures.min(frame.ladder);
        self.outage_since = self.outage_since.map(|at| view.past(at, frame.outage));
        self.hint_until = view.future(self.hint_until);
        self.probe_doublings = self.probe_doublings.min(frame.probes);
        self.failure = self.failure.map(|class| view.class(class));
        self.demand_doublings = self.demand_doublings.min(frame.asks);
        self.listing = view.listing(self.listing);
        if let Breaker::Open { until } = &mut self.breaker {
            *until = view.due(*until);
        }
        self.struck = view.sent(self.struck);
        self.answered_to = view.sent(self.answered_to);
        self.stats = Stats::default();
        self.now = View::NOW;
        self.since = self.now; // only ever told
    }

    /// The epoch of the last dial.
    pub const fn newest(&self) -> Option<Epoch> {
        self.epoch
    }

    /// Decides the next draw of the jitter, where at most three values are possible.
    pub const fn draw(&mut self, draw: Draw) {
        self.rng = draw.rng();
    }

    /// Sets what is known about the server's pings.
    pub const fn set_pings(&mut self, pings: PingSupport) {
        self.pings = pings;
    }

    /// A copy with these knobs, and a breaker that has seen nothing.
    #[must_use]
    pub fn with_breaker_of(&self, config: Config) -> Self {
        Self { config, breaker: Breaker::CLOSED, ..self.clone() }
    }
}
