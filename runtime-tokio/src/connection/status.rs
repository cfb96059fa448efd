//! How a connection stands, as plain data for people and programs.

use std::sync::Arc;
use std::time::Duration;

use mcp_reconnect_core::{Breaker, Epoch, FailureClass, ParkReason, Stats, Status};
use serde::Serialize;

use crate::connection::Connection;
use crate::protocol::Era;

/// How a server stands at one moment. Times are relative to it; durations are serialised as seconds.
#[derive(Clone, PartialEq, Debug, Serialize)]
#[non_exhaustive]
pub struct ServerStatus {
    /// The server's name.
    pub name: Arc<str>,
    /// How its connection stands.
    pub state: ServerState,
    /// Why it is parked, where it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub park_reason: Option<ParkReason>,
    /// For how long it has been so.
    #[serde(serialize_with = "seconds")]
    pub since: Duration,
    /// The session that is there.
    pub session: Option<SessionStatus>,
    /// The last failure since the last Ready: what kind, and in words.
    pub last_failure: Option<LastFailure>,
    /// Failures since the last session that proved itself.
    pub failures_in_a_row: u64,
    /// How long until the next dial, where one is due.
    #[serde(serialize_with = "maybe_seconds")]
    pub next_dial: Option<Duration>,
    /// How long the circuit breaker stays open; `None`: it is closed.
    #[serde(serialize_with = "maybe_seconds")]
    pub breaker_open: Option<Duration>,
    /// Calls that were sent and have no answer yet.
    pub in_flight: u32,
    /// Calls that wait for their turn ([`Tuning::max_in_flight`](crate::Tuning::max_in_flight)).
    pub waiting: usize,
    /// How many tools may be offered, by the server's own list.
    pub tools: usize,
    /// Counts since the connection was made.
    pub stats: Stats,
}

/// The states of a server, in the words of gRPC's connectivity states.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum ServerState {
    /// Nothing wanted yet, or put to rest.
    Idle,
    /// A session is being set up.
    Connecting,
    /// There is a session.
    Ready,
    /// The session was lost or could not be set up; it is tried again.
    TransientFailure,
    /// Withdrawn; probed from time to time, or waiting for somebody.
    Parked,
    /// Closed for good.
    Shutdown,
    /// Not wanted by the configuration.
    Disabled,
}

/// The state of a session.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct SessionStatus {
    /// Its epoch.
    pub epoch: Epoch,
    /// How it began.
    pub era: Era,
    /// The protocol version that is spoken.
    pub version: String,
    /// The server's name and version, as it says.
    pub server: Option<(String, String)>,
    /// The child's process id.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The URL that is reached, without what may be a secret.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<Arc<str>>,
}

/// A failure that is not over.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct LastFailure {
    /// Its kind.
    pub class: FailureClass,
    /// In words: exit status and the last lines of stderr, HTTP status, ….
    pub cause: Option<Arc<str>>,
}

impl From<Status> for ServerState {
    fn from(status: Status) -> Self {
        match status {
            Status::Idle => Self::Idle,
            Status::Connecting => Self::Connecting,
            Status::Ready(_) => Self::Ready,
            Status::TransientFailure => Self::TransientFailure,
            Status::Parked(_) => Self::Parked,
            Status::Shutdown => Self::Shutdown,
        }
    }
}

impl Connection {
    /// How the connection stands.
    pub fn status(&self) -> ServerStatus {
        let published = self.0.published.borrow().clone();
        let now = self.0.clock.now();
        let snapshot = published.snapshot;
        let park_reason = match snapshot.status {
            Status::Parked(reason) => Some(reason),
            Status::Idle | Status::Connecting | Status::Ready(_) | Status::TransientFailure | Status::Shutdown => None,
        };
        let session = published.session.map(|session| {
            let (facts, peer) = (session.facts(), session.server());
            SessionStatus {
                epoch: session.epoch(),
                era: session.era(),
                version: peer.protocol_version.to_string(),
                server: peer.server_info.as_ref().map(|server| (server.name.clone(), server.version.clone())),
                pid: facts.pid,
                address: facts.address,
            }
        });
        let (in_flight, waiting) = self.calls();
        ServerStatus {
            name: self.0.spec.name.clone(),
            state: snapshot.status.into(),
            park_reason,
            since: now.since(snapshot.since),
            session,
            last_failure: snapshot.failure.map(|class| LastFailure { class, cause: published.cause }),
            failures_in_a_row: snapshot.stats.failures_in_a_row,
            next_dial: snapshot.state.next_dial().map(|at| at.since(now)),
            breaker_open: match snapshot.breaker {
                Breaker::Open { until } => Some(until.since(now)),
                Breaker::Closed { .. } => None,
            },
            in_flight,
            waiting,
            tools: published.catalogue.map_or(0, |catalogue| catalogue.tools.items().len()),
            stats: snapshot.stats,
        }
    }
}

impl ServerStatus {
    /// A server that has no connection.
    pub(crate) fn without_connection(name: Arc<str>, state: ServerState) -> Self {
        Self {
            name,
            state,
            park_reason: None,
            since: Duration::ZERO,
            session: None,
            last_failure: None,
            failures_in_a_row: 0,
            next_dial: None,
            breaker_open: None,
            in_flight: 0,
            waiting: 0,
            tools: 0,
            stats: Stats::default(),
        }
    }
}

fn seconds<S: serde::Serializer>(duration: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(duration.as_secs_f64())
}

#[expect(clippy::ref_option, reason = "the signature is serde's")]
fn maybe_seconds<S: serde::Serializer>(duration: &Option<Duration>, serializer: S) -> Result<S::Ok, S::Error> {
    duration.as_ref().map(Duration::as_secs_f64).serialize(serializer)
}
