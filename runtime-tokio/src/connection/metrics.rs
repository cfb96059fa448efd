//! A connection's figures through the `metrics` facade (feature `metrics`).
//!
//! Install the recorder before connections are built: each looks up its metrics once. All have the label `server`.
//!
//! | metric | kind | |
//! |---|---|---|
//! | `mcp_reconnect_state` | gauge | 1 for the state that holds, 0 for the others; label `state`, in the words of [`Status`] |
//! | `mcp_reconnect_dials_total` | counter | dials |
//! | `mcp_reconnect_probes_total` | counter | of these, probes of a parked server |
//! | `mcp_reconnect_sessions_total` | counter | sessions that became ready |
//! | `mcp_reconnect_failures_total` | counter | dials and sessions that failed |
//! | `mcp_reconnect_failures_in_a_row` | gauge | failures since the last session that proved itself |
//! | `mcp_reconnect_pings_total` | counter | pings |
//! | `mcp_reconnect_no_replies_total` | counter | calls without a reply |
//! | `mcp_reconnect_breaker_opened_total` | counter | times that the circuit breaker opened |
//! | `mcp_reconnect_calls_total` | counter | calls that ended; label `outcome`: `ok`, `server_error`, `not_run`, `unknown` |
//! | `mcp_reconnect_call_seconds` | histogram | how long they took, waiting included |
//! | `mcp_reconnect_in_flight` | gauge | calls that were let through and have not ended |

use std::sync::Arc;
use std::time::Duration;

use mcp_reconnect_core::{Epoch, ParkReason, Snapshot, Status};
use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

use crate::error::CallError;

/// One of each, for the names.
const STATES: [Status; 6] = [
    Status::Idle,
    Status::Connecting,
    Status::Ready(Epoch::FIRST),
    Status::TransientFailure,
    Status::Parked(ParkReason::Requested),
    Status::Shutdown,
];

pub(crate) struct Meters {
    states: [Gauge; 6],
    dials: Counter,
    probes: Counter,
    sessions: Counter,
    failures: Counter,
    failures_in_a_row: Gauge,
    pings: Counter,
    no_replies: Counter,
    breaker_opened: Counter,
    answered: Counter,
    server_error: Counter,
    not_run: Counter,
    unknown: Counter,
    seconds: Histogram,
    in_flight: Gauge,
}

impl Meters {
    pub(crate) fn new(server: &Arc<str>) -> Self {
        let name = || server.to_string();
        let state = |state: Status| gauge!("mcp_reconnect_state", "server" => name(), "state" => state.as_str());
        let calls =
            |outcome: &'static str| counter!("mcp_reconnect_calls_total", "server" => name(), "outcome" => outcome);
        Self {
            states: STATES.map(state),
            dials: counter!("mcp_reconnect_dials_total", "server" => name()),
            probes: counter!("mcp_reconnect_probes_total", "server" => name()),
            sessions: counter!("mcp_reconnect_sessions_total", "server" => name()),
            failures: counter!("mcp_reconnect_failures_total", "server" => name()),
            failures_in_a_row: gauge!("mcp_reconnect_failures_in_a_row", "server" => name()),
            pings: counter!("mcp_reconnect_pings_total", "server" => name()),
            no_replies: counter!("mcp_reconnect_no_replies_total", "server" => name()),
            breaker_opened: counter!("mcp_reconnect_breaker_opened_total", "server" => name()),
            answered: calls("ok"),
            server_error: calls("server_error"),
            not_run: calls("not_run"),
            unknown: calls("unknown"),
            seconds: histogram!("mcp_reconnect_call_seconds", "server" => name()),
            in_flight: gauge!("mcp_reconnect_in_flight", "server" => name()),
        }
    }

    pub(crate) fn published(&self, snapshot: &Snapshot) {
        let now = snapshot.status.as_str();
        for (state, gauge) in STATES.iter().zip(&self.states) {
            gauge.set(if state.as_str() == now { 1.0 } else { 0.0 });
        }
        let stats = &snapshot.stats;
        self.dials.absolute(stats.dials);
        self.probes.absolute(stats.probes);
        self.sessions.absolute(stats.sessions);
        self.failures.absolute(stats.failures);
        self.pings.absolute(stats.pings);
        self.no_replies.absolute(stats.no_replies);
        self.breaker_opened.absolute(stats.breaker_opened);
        #[expect(clippy::cast_precision_loss, reason = "a gauge is a float")]
        self.failures_in_a_row.set(stats.failures_in_a_row as f64);
    }

    pub(crate) fn call_began(&self) {
        self.in_flight.increment(1.0);
    }

    /// A call that began is no longer in flight, whatever became of it.
    pub(crate) fn call_over(&self) {
        self.in_flight.decrement(1.0);
    }

    pub(crate) fn call_ended<T>(&self, took: Duration, result: &Result<T, CallError>) {
        self.seconds.record(took);
        let outcome = match result {
            Ok(_) => &self.answered,
            Err(CallError::Server { .. }) => &self.server_error,
            Err(error) if error.not_run() => &self.not_run,
            Err(_) => &self.unknown,
        };
        outcome.increment(1);
    }
}
