//! The machine up to what no later step can tell apart: for the model check.

use super::{ConnectionMachine, PingSupport, Purpose, State, Timestamp, WakeCause};
use crate::breaker::Breaker;
use crate::config::Config;
use crate::id::Epoch;
use crate::rng::Rng;
use crate::snapshot::Stats;
use crate::testing::{Frame, View};

impl ConnectionMachine {
    pub(crate) fn normalise(&mut self, frame: &Frame) {
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
        self.now = view.now();
        self.since = self.now; // only ever told
    }

    pub(crate) const fn newest(&self) -> Option<Epoch> {
        self.epoch
    }

    pub(crate) const fn set_rng(&mut self, rng: Rng) {
        self.rng = rng;
    }

    pub(crate) const fn set_pings(&mut self, pings: PingSupport) {
        self.pings = pings;
    }

    /// The same machine with a breaker under these knobs that has seen nothing.
    pub(crate) fn with_breaker_of(&self, config: Config) -> Self {
        Self { config, breaker: Breaker::CLOSED, ..self.clone() }
    }
}
