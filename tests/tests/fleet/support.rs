//! A fleet of fake servers in memory.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt as _;
use mcp_reconnect::config::{Custom, FleetConfig, ServerConfig};
use mcp_reconnect::core::{Failure, FailureClass, ParkReason, Status};
use mcp_reconnect::fleet::{ApplyReport, Fleet, FleetCallError, FleetEvent, FleetEvents, Select, ToolsDiff};
use mcp_reconnect::link::{Attempt, ConnectError, Connector, Link, LinkControl};
use mcp_reconnect::{ServerState, ServerStatus};
use mcp_reconnect_tests::fake::{Event, FakeServer, Ledger};
use mcp_reconnect_tests::link::MemoryConnector;
use rmcp::model::CallToolResponse;

use crate::support::secs;

/// What a config says of this server; another `version` is another configuration of it.
pub(crate) fn server(server: &Arc<FakeServer>, version: u32) -> ServerConfig {
    by(version, MemoryConnector(server.clone()))
}

/// The same, reached in another way.
pub(crate) fn by(version: u32, connector: impl Connector) -> ServerConfig {
    ServerConfig::new(Custom::new(version.to_string(), connector))
}

/// The first version of this server, with something else about it.
pub(crate) fn with(server: &Arc<FakeServer>, change: impl FnOnce(&mut ServerConfig)) -> ServerConfig {
    let mut config = self::server(server, 1);
    change(&mut config);
    config
}

/// A config with these servers, in their first version.
pub(crate) fn config(servers: &[(&str, &Arc<FakeServer>)]) -> FleetConfig {
    servers.iter().fold(FleetConfig::default(), |config, (name, fake)| config.with(*name, server(fake, 1)))
}

/// A config with one server.
pub(crate) fn only(name: &str, server: ServerConfig) -> FleetConfig {
    FleetConfig::default().with(name, server)
}

/// A fleet with a fixed seed and nothing in it.
pub(crate) fn fleet() -> Fleet {
    Fleet::builder().seed(7).build().unwrap()
}

/// The same, and what it tells from the beginning.
pub(crate) fn watched() -> (Fleet, FleetEvents) {
    let fleet = fleet();
    let events = fleet.events();
    (fleet, events)
}

/// `name: outcome` of every server, in order.
pub(crate) fn outcomes(report: &ApplyReport) -> Vec<String> {
    report.servers.iter().map(|(name, outcome)| format!("{name}: {outcome}")).collect()
}

/// Waits until every one of these is Ready.
pub(crate) async fn all_ready(fleet: &Fleet, names: &[&str]) {
    let select = Select::Named(names.iter().map(|name| (*name).into()).collect());
    let readiness = fleet.ready(&select, secs(3_600)).await;
    assert!(readiness.is_complete(), "{readiness:?}");
}

/// The names of all tools that are offered.
pub(crate) fn tools(fleet: &Fleet) -> Vec<String> {
    fleet.tools().iter().map(|tool| tool.name.to_string()).collect()
}

/// How a server stands.
pub(crate) fn status(fleet: &Fleet, name: &str) -> ServerStatus {
    fleet.status().into_iter().find(|status| *status.name == *name).unwrap_or_else(|| panic!("no server {name}"))
}

/// The same in a word.
pub(crate) fn state(fleet: &Fleet, name: &str) -> ServerState {
    status(fleet, name).state
}

/// The epoch of a server that is Ready.
pub(crate) fn epoch_of(fleet: &Fleet, name: &str) -> u64 {
    status(fleet, name).session.unwrap_or_else(|| panic!("{name} has no session")).epoch.get()
}

/// The next event; on paused time, no test waits for ever.
pub(crate) async fn next(events: &mut FleetEvents) -> FleetEvent {
    match tokio::time::timeout(secs(86_400), events.next()).await.expect("nothing in a day") {
        Some(FleetEvent::Missed { count }) => panic!("missed {count} events"),
        Some(event) => event,
        None => panic!("the fleet has ended"),
    }
}

/// What has been told so far.
pub(crate) fn told(events: &mut FleetEvents) -> Vec<FleetEvent> {
    // Without tokio's budget, which would end it in the middle.
    std::iter::from_fn(|| tokio::task::unconstrained(events.next()).now_or_never().flatten()).collect()
}

/// The status in this event, if it is of this server.
pub(crate) fn status_in(event: &FleetEvent, name: &str) -> Option<Status> {
    match event {
        FleetEvent::Server { server, event: mcp_reconnect::Event::Status { status, .. } } if **server == *name => {
            Some(*status)
        }
        _ => None,
    }
}

/// Waits until this server is told to be so.
pub(crate) async fn until(events: &mut FleetEvents, name: &str, wanted: impl Fn(Status) -> bool) -> Status {
    loop {
        if let Some(status) = status_in(&next(events).await, name).filter(|status| wanted(*status)) {
            return status;
        }
    }
}

/// Waits until it is told to be Ready: a parked server says that it is parked until then.
pub(crate) async fn until_ready(events: &mut FleetEvents, name: &str) {
    until(events, name, |status| matches!(status, Status::Ready(_))).await;
}

/// Waits until it is parked for this reason.
pub(crate) async fn until_parked(events: &mut FleetEvents, name: &str, reason: ParkReason) {
    until(events, name, |status| status == Status::Parked(reason)).await;
}

/// An event as a word: what matters of it for the tools of a server.
pub(crate) fn word(event: &FleetEvent) -> Option<String> {
    Some(match event {
        FleetEvent::Tools(diff) if diff.is_empty() && diff.notices.is_empty() => return None, // approvals
        FleetEvent::Tools(diff) => diff_words(diff),
        FleetEvent::Server { event: mcp_reconnect::Event::Status { status, .. }, .. } => match status {
            Status::Connecting | Status::TransientFailure => return None,
            status => status.to_string(),
        },
        FleetEvent::Applied { outcome, .. } => outcome.to_string(),
        FleetEvent::Server { event: mcp_reconnect::Event::ServerChanged { version }, .. } => {
            format!("changed to {version}")
        }
        FleetEvent::Server { .. } => return None,
        other => format!("{other:?}"),
    })
}

/// The words of all events within this time.
pub(crate) async fn words(events: &mut FleetEvents, time: Duration) -> Vec<String> {
    let mut words = Vec::new();
    let read = async {
        while let Some(event) = events.next().await {
            words.extend(word(&event));
        }
    };
    drop(tokio::time::timeout(time, read).await);
    words
}

fn diff_words(diff: &ToolsDiff) -> String {
    let of = |sign: char, names: &[String]| names.iter().map(|name| format!(" {sign}{name}")).collect::<String>();
    format!("tools{}{}{}", of('+', &diff.added), of('-', &diff.removed), of('~', &diff.changed))
}

/// How many links to this server were open at the same time, at most.
pub(crate) fn most_live(server: &FakeServer) -> usize {
    let mut live = 0_usize;
    let ledger = server.ledger();
    let counts = ledger.entries().iter().map(|entry| {
        match entry.event {
            Event::Spawned { .. } => live += 1,
            Event::Ended => live -= 1,
            _ => {}
        }
        live
    });
    counts.max().unwrap_or(0)
}

/// When its requests of this method were read, in milliseconds.
pub(crate) fn times(ledger: &Ledger, method: &str) -> Vec<u64> {
    let of = |event: &Event| matches!(event, Event::Request { method: read, .. } if read == method);
    ledger.entries().iter().filter(|entry| of(&entry.event)).map(|entry| entry.at).collect()
}

/// The text of a call's result.
pub(crate) fn text(result: Result<CallToolResponse, FleetCallError>) -> String {
    crate::support::text(result.map_err(|error| match error {
        FleetCallError::Call { error, .. } => error,
        error => panic!("{error}"),
    }))
}

/// What is offered, by what was told alone.
#[derive(Default)]
pub(crate) struct Mirror(BTreeSet<String>);

impl Mirror {
    /// Applies everything that was told, and compares.
    pub(crate) fn follow(&mut self, fleet: &Fleet, events: impl IntoIterator<Item = FleetEvent>) {
        for event in events {
            if let FleetEvent::Tools(diff) = &event {
                for removed in &diff.removed {
                    assert!(self.0.remove(removed), "{removed} was not offered");
                }
                for added in &diff.added {
                    assert!(self.0.insert(added.clone()), "{added} was offered");
                }
                assert!(diff.changed.iter().all(|changed| self.0.contains(changed)), "{diff:?}");
            }
        }
        let mut offered = tools(fleet);
        offered.sort_unstable();
        assert_eq!(self.0.iter().cloned().collect::<Vec<_>>(), offered);
    }
}

/// A way to a fake server that takes its time, or leads nowhere.
pub(crate) struct Detour {
    pub(crate) to: MemoryConnector,
    pub(crate) after: Duration,
    pub(crate) fails: Option<FailureClass>,
}

/// A way to a fake server that is shut, with a hint or without, until somebody opens it.
#[derive(Clone)]
pub(crate) struct Gate {
    pub(crate) to: MemoryConnector,
    shut: Arc<Mutex<Option<Failure>>>,
    tries: Arc<AtomicUsize>,
}

impl Gate {
    pub(crate) fn shut(server: &Arc<FakeServer>, failure: impl Into<Failure>) -> Self {
        Self {
            to: MemoryConnector(server.clone()),
            shut: Arc::new(Mutex::new(Some(failure.into()))),
            tries: Arc::default(),
        }
    }

    pub(crate) fn open(&self) {
        *self.shut.lock().unwrap() = None;
    }

    pub(crate) fn tries(&self) -> usize {
        self.tries.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl Connector for Gate {
    async fn connect(&self, attempt: Attempt) -> Result<Link, ConnectError> {
        self.tries.fetch_add(1, Ordering::SeqCst);
        let shut = *self.shut.lock().unwrap();
        match shut {
            Some(failure) => Err(ConnectError::new(failure, "the gate is shut")),
            None => self.to.connect(attempt).await,
        }
    }

    fn close_bound(&self) -> Duration {
        self.to.close_bound()
    }
}

/// A server that nobody can reach, for this reason.
pub(crate) fn unreachable(class: FailureClass, server: &Arc<FakeServer>) -> ServerConfig {
    by(1, Detour { to: MemoryConnector(server.clone()), after: Duration::ZERO, fails: Some(class) })
}

#[async_trait]
impl Connector for Detour {
    async fn connect(&self, attempt: Attempt) -> Result<Link, ConnectError> {
        tokio::time::sleep(self.after).await;
        match self.fails {
            Some(class) => Err(ConnectError::new(class, "a test")),
            None => self.to.connect(attempt).await,
        }
    }

    fn close_bound(&self) -> Duration {
        self.to.close_bound()
    }
}

/// A way to a fake server whose spawns can be killed from outside.
#[derive(Clone)]
pub(crate) struct Killable {
    pub(crate) to: MemoryConnector,
    last: Arc<Mutex<Option<Arc<dyn LinkControl>>>>,
}

impl Killable {
    pub(crate) fn new(server: &Arc<FakeServer>) -> Self {
        Self { to: MemoryConnector(server.clone()), last: Arc::default() }
    }

    /// Kills the last spawn.
    pub(crate) fn kill(&self) {
        if let Some(control) = self.last.lock().unwrap().take() {
            control.kill();
        }
    }
}

#[async_trait]
impl Connector for Killable {
    async fn connect(&self, attempt: Attempt) -> Result<Link, ConnectError> {
        let link = self.to.connect(attempt).await?;
        *self.last.lock().unwrap() = Some(link.control.clone());
        Ok(link)
    }

    fn close_bound(&self) -> Duration {
        self.to.close_bound()
    }
}
