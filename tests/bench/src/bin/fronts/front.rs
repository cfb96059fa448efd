//! A fake server that is a process, and a connection to it or to what is in front of it.

use std::time::Duration;

use mcp_reconnect::core::{Config, Epoch, Status};
use mcp_reconnect::http::HttpConnector;
use mcp_reconnect::{CallError, CallOptions, Connection, Event, Events, HttpServer};
use mcp_reconnect_tests::fake::{FakeProcess, Ledger, LedgerWatch, ReservedPort};
use rmcp::model::{CallToolRequestParams, CallToolResponse, JsonObject};
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::Command;
use tokio::time::timeout;

use mcp_reconnect_bench::programs::{PATIENCE, Process};

/// A session counts as proven so early that what a check does to it is not taken for flapping.
const STABLE_AFTER: Duration = Duration::from_secs(1);

/// The fake server, on a port that stays its own while it is away.
pub(crate) struct Server {
    process: Option<Process>,
    fake: FakeProcess,
    port: ReservedPort,
}

impl Server {
    pub(crate) async fn start(script: &str) -> Result<Self, String> {
        let program = std::env::current_exe().map_err(|error| error.to_string())?.with_file_name("fake-server");
        let fake = FakeProcess::new(program, script).map_err(|error| error.to_string())?;
        let port = ReservedPort::new().map_err(|error| error.to_string())?;
        let mut server = Self { process: None, fake, port };
        server.start_again().await?;
        Ok(server)
    }

    pub(crate) fn port(&self) -> Result<u16, String> {
        self.port.address().map(|address| address.port()).map_err(|error| error.to_string())
    }

    /// A fresh process: it knows no session.
    pub(crate) async fn start_again(&mut self) -> Result<(), String> {
        let port = self.port()?;
        let mut command = Command::new(self.fake.program());
        command.args(self.fake.http_args(port));
        self.process = Some(Process::start(&mut command, &port.to_string()).await?);
        Ok(())
    }

    pub(crate) async fn kill(&mut self) -> Result<(), String> {
        match self.process.take() {
            Some(process) => process.kill().await,
            None => Ok(()),
        }
    }

    /// To its process.
    pub(crate) fn signal(&self, signal: Signal) -> Result<(), String> {
        let pid = self.ledger()?.live_pids().pop().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        kill_process(pid.ok_or("no process")?, signal).map_err(|error| error.to_string())
    }

    pub(crate) fn ledger(&self) -> Result<Ledger, String> {
        self.fake.ledger().map_err(|error| error.to_string())
    }

    /// Waits until its ledger says so.
    pub(crate) async fn until(&self, what: &str, done: impl Fn(&Ledger) -> bool) -> Result<Ledger, String> {
        let watch: LedgerWatch = self.fake.watch();
        let waited = timeout(PATIENCE, watch.wait_until(done)).await;
        waited.map_err(|_| format!("not in the ledger within {PATIENCE:?}: {what}"))
    }
}

/// A connection to what listens at this loopback port, in its first session and with its standing stream.
pub(crate) async fn connect(server: &Server, port: u16) -> Result<(Connection, Events), String> {
    let config = Config::builder().stable_after(STABLE_AFTER).build().map_err(|error| error.to_string())?;
    let url = HttpServer::new(&format!("http://127.0.0.1:{port}/mcp")).map_err(|error| error.to_string())?;
    let options = CallOptions { timeout: PATIENCE, max_wait: PATIENCE / 2, ..CallOptions::default() };
    let connection = Connection::builder(HttpConnector::new(url)).config(config).call_options(options);
    let connection = connection.build().map_err(|error| error.to_string())?;
    let mut events = connection.events();
    ready_after(&mut events, None).await?;
    server.until("a standing stream", |ledger| ledger.open_streams() == 1).await?;
    Ok((connection, events))
}

/// Waits for a later session than this one.
pub(crate) async fn ready_after(events: &mut Events, epoch: Option<Epoch>) -> Result<Epoch, String> {
    let later = |event: &Event| match event {
        Event::Status { status: Status::Ready(ready), .. } if Some(*ready) > epoch => Some(*ready),
        _ => None,
    };
    next(events, later).await
}

/// The first event that is wanted.
pub(crate) async fn next<T>(events: &mut Events, wanted: impl Fn(&Event) -> Option<T>) -> Result<T, String> {
    let mut seen = Vec::new();
    let found = async {
        while let Some(event) = events.next().await {
            if let Some(found) = wanted(&event) {
                return Some(found);
            }
            seen.push(event);
        }
        None
    };
    let found = timeout(PATIENCE, found).await.ok().flatten();
    found.ok_or_else(|| format!("not the event that was waited for, only {seen:?}"))
}

/// Shuts the connection down: every status that was told since the events were subscribed to, but for that.
pub(crate) async fn statuses(connection: &Connection, events: &mut Events) -> Result<Vec<Status>, String> {
    timeout(PATIENCE, connection.shutdown()).await.map_err(|_| "the connection does not shut down")?;
    let mut seen = Vec::new();
    while let Some(event) = events.next().await {
        match event {
            Event::Status { status: Status::Shutdown, .. } => break,
            Event::Status { status, .. } => seen.push(status),
            _ => {}
        }
    }
    Ok(seen)
}

/// Outcome of a call.
#[derive(Debug)]
pub(crate) enum Outcome {
    Answered,
    /// It may have run, and its caller was told so.
    Unknown(String),
}

/// Calls a tool with this text, and expects it back. Anything but an answer or an outcome that is told as unknown is a
/// lost call.
pub(crate) async fn call(connection: &Connection, tool: &'static str, said: &str) -> Result<Outcome, String> {
    let mut arguments = JsonObject::new();
    arguments.insert("text".into(), said.into());
    let params = CallToolRequestParams::new(tool).with_arguments(arguments);
    let outcome = timeout(PATIENCE * 2, connection.call_tool(params)).await;
    match outcome.map_err(|_| format!("{tool} {said}: no outcome, long after its deadline"))? {
        Ok(CallToolResponse::Complete(result))
            if result.content.iter().any(|block| block.as_text().is_some_and(|text| text.text == said)) =>
        {
            Ok(Outcome::Answered)
        }
        Err(CallError::OutcomeUnknown { cause, .. }) => Ok(Outcome::Unknown(cause.to_string())),
        other => Err(format!("{tool} {said}: lost: {other:?}")),
    }
}

/// [`call`] that must be answered.
pub(crate) async fn answered(connection: &Connection, tool: &'static str, said: &str) -> Result<(), String> {
    match call(connection, tool, said).await? {
        Outcome::Answered => Ok(()),
        Outcome::Unknown(cause) => Err(format!("{tool} {said}: outcome unknown: {cause}")),
    }
}

/// [`call`] whose outcome must be unknown; its cause.
pub(crate) async fn unknown(connection: &Connection, tool: &'static str, said: &str) -> Result<String, String> {
    match call(connection, tool, said).await? {
        Outcome::Unknown(cause) => Ok(cause),
        Outcome::Answered => Err(format!("{tool} {said}: answered, against all odds")),
    }
}

/// Fails with these words unless it holds.
pub(crate) fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise()) }
}
