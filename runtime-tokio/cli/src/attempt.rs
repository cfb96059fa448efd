//! One attempt to reach each server of a config.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use mcp_reconnect::config::{Connect, FleetConfig};
use mcp_reconnect::core::{FailureClass, ParkReason, Status};
use mcp_reconnect::fleet::{Fleet, FleetEvent, Outcome};
use mcp_reconnect::{Event, ServerState, ServerStatus};
use tokio::time::{Instant, timeout_at};

use super::signals::Signals;
use super::text::{printable, state_name};

/// Exit status of a command that had no session, or lost it.
pub(super) const NO_SESSION: u8 = 3;

/// The result of one server's attempt.
#[derive(Debug)]
pub(super) struct Attempt {
    /// Time since the server was wanted.
    pub(super) took: Duration,
    pub(super) result: Result<Box<ServerStatus>, Failed>,
}

/// Why a server cannot be used.
#[derive(Debug)]
pub(super) enum Failed {
    /// It is not wanted, by the config.
    Disabled,
    /// There was neither a session nor a failure when the time was over.
    Late { state: ServerState },
    /// It failed.
    Down { state: ServerState, reason: Option<ParkReason>, class: Option<FailureClass>, cause: Option<Arc<str>> },
    /// Its config cannot be used.
    Config(String),
}

impl Failed {
    /// In words: state, class and cause.
    pub(super) fn words(&self) -> String {
        match self {
            Self::Disabled => "disabled".into(),
            Self::Config(error) => printable(error).into_owned(),
            Self::Late { state } => format!("{}: no session in time", state_name(*state)),
            Self::Down { state, reason, class, cause } => {
                let reason = reason.map_or_else(String::new, |reason| format!(" ({reason})"));
                let class = class.map_or_else(String::new, |class| format!(", {class}"));
                let cause = cause.as_deref().map(|cause| format!(": {}", printable(cause))).unwrap_or_default();
                format!("{}{reason}{class}{cause}", state_name(*state))
            }
        }
    }

    fn of(status: Status, class: Option<FailureClass>, cause: Option<Arc<str>>) -> Self {
        let reason = match status {
            Status::Parked(reason) => Some(reason),
            Status::Idle | Status::Connecting | Status::Ready(_) | Status::TransientFailure | Status::Shutdown => None,
        };
        Self::Down { state: status.into(), reason, class, cause }
    }
}

/// A fleet whose servers were each tried once: those that failed are not tried again.
pub(super) struct Tried {
    pub(super) fleet: Fleet,
    pub(super) attempts: BTreeMap<Arc<str>, Attempt>,
}

/// Tries to reach each of these servers once, side by side; none is waited for longer than `within`.
///
/// # Errors
///
/// The exit status of the signal that came first, or of the problem that was told on stderr; then no server is left.
pub(super) async fn try_each(config: FleetConfig, within: Duration) -> Result<Tried, u8> {
    let failed = |error: &dyn std::fmt::Display| {
        anstream::eprintln!("error: {error}");
        1
    };
    let mut signals = Signals::new().map_err(|error| failed(&error))?;
    let fleet = Fleet::builder().build().map_err(|error| failed(&error))?;
    let tried = tokio::select! {
        biased;
        status = signals.next() => Err(status),
        attempts = attempts(&fleet, config, within) => Ok(attempts),
    };
    match tried {
        Ok(attempts) => Ok(Tried { fleet, attempts }),
        Err(status) => {
            fleet.shutdown().await;
            Err(status)
        }
    }
}

async fn attempts(fleet: &Fleet, mut config: FleetConfig, within: Duration) -> BTreeMap<Arc<str>, Attempt> {
    for server in config.servers.values_mut() {
        server.connect = Connect::Eager;
    }
    let start = Instant::now();
    let mut events = fleet.events();
    let report = fleet.apply(config);
    let mut attempts = BTreeMap::new();
    let mut settle = |attempts: &mut BTreeMap<Arc<str>, Attempt>, server: Arc<str>, result: Result<_, Failed>| {
        if result.is_err()
            && let Some(connection) = fleet.connection(&server)
        {
            // Its second attempt would be for nobody.
            tokio::spawn(async move { connection.shutdown().await });
        }
        attempts.entry(server).or_insert(Attempt { took: start.elapsed(), result });
    };
    let expected = report.servers.len();
    for (server, outcome) in report.servers {
        match outcome {
            Outcome::Disabled => settle(&mut attempts, server, Err(Failed::Disabled)),
            Outcome::Failed(error) => settle(&mut attempts, server, Err(Failed::Config(error.to_string()))),
            _ => {}
        }
    }
    while attempts.len() < expected {
        let Ok(Some(event)) = timeout_at(start + within, events.next()).await else { break };
        match event {
            FleetEvent::Server { server, event: Event::Status { status, failure, cause } } => match status {
                Status::Idle | Status::Connecting => {}
                Status::Ready(_) => {
                    if let Some(connection) = fleet.connection(&server) {
                        settle(&mut attempts, server, Ok(Box::new(connection.status())));
                    }
                }
                Status::TransientFailure | Status::Parked(_) | Status::Shutdown => {
                    settle(&mut attempts, server, Err(Failed::of(status, failure, cause)));
                }
            },
            FleetEvent::Missed { .. } => look(fleet, &mut attempts, &mut settle),
            _ => {}
        }
    }
    // The servers that are left.
    for status in fleet.status() {
        if !attempts.contains_key(&status.name) {
            settle(&mut attempts, status.name.clone(), Err(Failed::Late { state: status.state }));
        }
    }
    attempts
}

/// Takes results from the servers' states where events were missed.
fn look(
    fleet: &Fleet,
    attempts: &mut BTreeMap<Arc<str>, Attempt>,
    settle: &mut impl FnMut(&mut BTreeMap<Arc<str>, Attempt>, Arc<str>, Result<Box<ServerStatus>, Failed>),
) {
    for status in fleet.status() {
        let (server, state, reason) = (status.name.clone(), status.state, status.park_reason);
        match state {
            ServerState::Ready => settle(attempts, server, Ok(Box::new(status))),
            ServerState::TransientFailure | ServerState::Parked | ServerState::Shutdown => {
                let (class, cause) = status.last_failure.map(|last| (last.class, last.cause)).unzip();
                settle(attempts, server, Err(Failed::Down { state, reason, class, cause: cause.flatten() }));
            }
            _ => {}
        }
    }
}

/// Ends the servers, and the command with this status.
pub(super) async fn end(fleet: &Fleet, status: u8) -> ExitCode {
    fleet.shutdown().await;
    ExitCode::from(status)
}
