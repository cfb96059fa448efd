//! What the scenarios share: a connection to a fake server, and words for what it must show.

use std::sync::Arc;
use std::time::Duration;

use mcp_reconnect::core::{Config, ConfigBuilder, Epoch, Status};
use mcp_reconnect::{Builder, CallError, CallOptions, Catalogue, Connection, Era, Event, Events};
use mcp_reconnect_tests::fake::{Event as Entry, FakeProcess, FakeServer, Ledger};
use mcp_reconnect_tests::link::{MemoryConnector, process_connector};
use rmcp::model::{CallToolRequestParams, CallToolResponse, ContentBlock};
use serde_json::Value;

/// A fake server in memory; time may be paused.
pub(crate) fn memory(script: &str) -> Arc<FakeServer> {
    Arc::new(FakeServer::new(script).unwrap_or_else(|error| panic!("{error}")))
}

/// A connection to it, with a fixed seed and default knobs.
pub(crate) fn connect(server: &Arc<FakeServer>) -> Connection {
    builder(server).build().unwrap()
}

/// A Ready connection with its first session, and what it tells from then on.
pub(crate) async fn ready(script: &str) -> (Arc<FakeServer>, Connection, Events) {
    let server = memory(script);
    let connection = connect(&server);
    let mut events = connection.events();
    assert_eq!(until_ready(&mut events).await, 1);
    (server, connection, events)
}

/// The same before it is built.
pub(crate) fn builder(server: &Arc<FakeServer>) -> Builder {
    Connection::builder(MemoryConnector(server.clone())).name("fake").seed(7)
}

/// A fake server that is a process for each spawn.
pub(crate) fn process(script: &str) -> FakeProcess {
    FakeProcess::new(env!("CARGO_BIN_EXE_fake-server"), script).unwrap_or_else(|error| panic!("{error}"))
}

/// A connection to it.
pub(crate) fn connect_process(server: &FakeProcess) -> Connection {
    Connection::builder(process_connector(server)).name("fake").seed(7).build().unwrap()
}

/// Default knobs but for these.
pub(crate) fn config(change: impl FnOnce(ConfigBuilder) -> ConfigBuilder) -> Config {
    change(Config::builder()).build().unwrap()
}

pub(crate) const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

pub(crate) const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// A call of a tool without arguments.
pub(crate) fn tool(name: &'static str) -> CallToolRequestParams {
    CallToolRequestParams::new(name)
}

/// A call of a tool with the argument `text`, which a well-behaved fake server answers with.
pub(crate) fn tool_with(name: &'static str, text: &str) -> CallToolRequestParams {
    let mut arguments = rmcp::model::JsonObject::new();
    arguments.insert("text".into(), text.into());
    CallToolRequestParams::new(name).with_arguments(arguments)
}

/// Options with this timeout.
pub(crate) fn within(timeout: Duration) -> CallOptions {
    CallOptions { timeout, ..CallOptions::default() }
}

/// The text of a call's result.
pub(crate) fn text(result: Result<CallToolResponse, CallError>) -> String {
    match result {
        Ok(CallToolResponse::Complete(result)) => match result.content.as_slice() {
            [ContentBlock::Text(text)] => text.text.clone(),
            content => panic!("no text: {content:?}"),
        },
        other => panic!("no result: {other:?}"),
    }
}

/// Waits for the next status event, whatever else happens.
pub(crate) async fn next_status(events: &mut Events) -> Status {
    loop {
        match events.next().await {
            Some(Event::Status { status, .. }) => return status,
            Some(Event::Missed { count }) => panic!("missed {count} events"),
            Some(_) => {}
            None => panic!("the connection has ended"),
        }
    }
}

/// Waits for a status, and gives all that were seen on the way, that one included.
pub(crate) async fn until_status(events: &mut Events, wanted: impl Fn(Status) -> bool) -> Vec<Status> {
    let mut seen = Vec::new();
    loop {
        // On paused time a connection that goes on trying would keep a failing test from ending.
        let Ok(status) = tokio::time::timeout(secs(24 * 3600), next_status(events)).await else {
            panic!("nothing more in a day after {seen:?}");
        };
        seen.push(status);
        assert!(seen.len() < 10_000, "not among ten thousand");
        if wanted(status) {
            return seen;
        }
    }
}

/// Waits until a session is Ready, and gives its epoch.
pub(crate) async fn until_ready(events: &mut Events) -> u64 {
    match until_status(events, |status| matches!(status, Status::Ready(_))).await.last() {
        Some(Status::Ready(epoch)) => epoch.get(),
        other => unreachable!("{other:?}"),
    }
}

/// The epoch with this number.
pub(crate) fn epoch(number: u64) -> Epoch {
    Epoch::new(number).unwrap()
}

/// Every status that is waiting to be read.
pub(crate) async fn drain_statuses(connection: Connection, mut events: Events) -> Vec<Status> {
    connection.shutdown().await;
    drop(connection);
    let mut seen = Vec::new();
    while let Some(event) = events.next().await {
        if let Event::Status { status, .. } = event {
            seen.push(status);
        }
    }
    seen
}

/// The tools of a catalogue.
pub(crate) fn tool_names(catalogue: &Catalogue) -> Vec<String> {
    let mut names: Vec<_> = catalogue.tools.items().iter().map(|tool| tool.name.to_string()).collect();
    names.sort_unstable();
    names
}

/// What is offered; `None`: nothing may be.
pub(crate) fn offered(connection: &Connection) -> Option<Vec<String>> {
    connection.catalogue().map(|catalogue| tool_names(&catalogue))
}

/// An event as a word: what matters of it to whoever offers tools. `None`: nothing.
pub(crate) fn word(event: &Event) -> Option<String> {
    Some(match event {
        Event::Status { status: Status::TransientFailure | Status::Connecting, .. } => return None,
        Event::Status { status, .. } => status.to_string(),
        Event::Withdrawn => "withdrawn".into(),
        Event::Catalogue(diff) => {
            let of =
                |sign: char, names: &[String]| names.iter().map(|name| format!(" {sign}{name}")).collect::<String>();
            let tools = &diff.tools;
            format!("tools{}{}{}", of('+', &tools.added), of('-', &tools.removed), of('~', &tools.changed))
        }
        other => format!("{other:?}"),
    })
}

/// The protocol version of the session.
pub(crate) async fn version(connection: &Connection) -> String {
    connection.session().await.unwrap().server().protocol_version.as_str().to_owned()
}

/// The era of the session.
pub(crate) async fn era(connection: &Connection) -> Era {
    connection.session().await.unwrap().era()
}

/// The version that each `initialize` asked for.
pub(crate) fn versions_asked_for(ledger: &Ledger) -> Vec<String> {
    let offers = ledger.entries().iter().filter_map(|entry| match &entry.event {
        Entry::Request { method, params, .. } if method == "initialize" => {
            params["protocolVersion"].as_str().map(str::to_owned)
        }
        _ => None,
    });
    offers.collect()
}

/// The request ids of this tool's calls, by spawn.
pub(crate) fn call_ids(ledger: &Ledger, wanted: &str) -> Vec<(u32, Value)> {
    let ids = ledger.entries().iter().filter_map(|entry| match &entry.event {
        Entry::Request { id, tool: Some(tool), .. } if tool == wanted => Some((entry.spawn, id.clone())),
        _ => None,
    });
    ids.collect()
}

/// The cancellations that the server read, by spawn.
pub(crate) fn cancellations(ledger: &Ledger) -> Vec<(u32, Value)> {
    ledger.cancelled().into_iter().map(|(spawn, id)| (spawn, id.clone())).collect()
}
