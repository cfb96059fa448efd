//! One server under one running connection: killed and restarted four times.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::future::join_all;
use mcp_reconnect::core::{Config, Status};
use mcp_reconnect::http::HttpConnector;
use mcp_reconnect::{CallError, CallOptions, Connection, Era, Event, Events, HttpServer};
use rmcp::model::CallToolResponse;
use tokio::time::{Instant, sleep, timeout};

use crate::servers::{Server, ToolKind};
use mcp_reconnect_bench::programs::{PATIENCE, Process};

/// How long the server is away while callers wait.
const DOWNTIME: Duration = Duration::from_secs(10);
/// How many callers wait meanwhile, half of them with a tool that is not annotated.
const CALLERS: usize = 50;
/// How long a call takes that is under way when its server is killed.
const SLOW: u32 = 3;
/// A session counts as proven so early that the kills of one trial are not taken for flapping.
const STABLE_AFTER: Duration = Duration::from_secs(1);

/// Result of a run, or its failure.
pub(crate) type Shown = Result<String, String>;

/// Outcome of a call.
enum Outcome {
    Answered,
    /// It may have run, and its caller was told so.
    Unknown(String),
    /// Anything else: no outcome, or a wrong one.
    Lost(String),
}

/// A server and the connection to it.
pub(crate) struct Trial<'a> {
    server: Server,
    installed: &'a Path,
    ledger: PathBuf,
    port: u16,
    process: Option<Process>,
    connection: Connection,
}

impl<'a> Trial<'a> {
    /// Starts the server, and waits for the first session.
    pub(crate) async fn begin(server: Server, installed: &'a Path, ledger: PathBuf, port: u16) -> Result<Self, String> {
        let process = Process::start(&mut server.command(installed, port, &ledger, false), server.ready()).await?;
        let config = Config::builder().stable_after(STABLE_AFTER).build().map_err(|error| error.to_string())?;
        let url = HttpServer::new(&format!("http://127.0.0.1:{port}/mcp")).map_err(|error| error.to_string())?;
        let options = CallOptions { timeout: PATIENCE, max_wait: PATIENCE / 2, ..CallOptions::default() };
        let connection = Connection::builder(HttpConnector::new(url)).name(server.name).era(server.era);
        let connection = connection.config(config).call_options(options).build().map_err(|error| error.to_string())?;
        let trial = Self { server, installed, ledger, port, process: Some(process), connection };
        trial.answered(ToolKind::Echo, "first").await?;
        Ok(trial)
    }

    /// The era and version of its sessions.
    pub(crate) async fn speaks(&self) -> Result<(Era, String), String> {
        let session = self.connection.session().await.map_err(|error| error.to_string())?;
        Ok((session.era(), session.server().protocol_version.to_string()))
    }

    /// Closes the connection, then ends the server.
    pub(crate) async fn end(mut self) -> Result<(), String> {
        timeout(PATIENCE, self.connection.shutdown()).await.map_err(|_| "the connection does not shut down")?;
        self.kill().await
    }

    /// Kills the server with one call of each kind under way, and starts it again.
    pub(crate) async fn call_in_flight(&mut self) -> Shown {
        let process = self.process.as_ref().ok_or("no process")?;
        let kinds = [("flight-slow", ToolKind::Slow(SLOW)), ("flight-append", ToolKind::Append(SLOW))];
        let kinds = &kinds[..if self.server.is_ours() { 2 } else { 1 }];
        let mut calls = Vec::new();
        for &(text, tool) in kinds {
            let line = self.server.running(text);
            let before = process.count(&line);
            calls.push(tokio::spawn(call(self.connection.clone(), self.server, tool, text.to_owned())));
            let running = |lines: &[String]| lines.iter().filter(|said| said.contains(&line)).count() > before;
            process.until(PATIENCE, running).await.map_err(|error| format!("{text} does not run: {error}"))?;
        }
        self.restart(false).await?;
        let mut outcomes = join_all(calls).await.into_iter().map(|done| done.map_err(|error| error.to_string()));
        match outcomes.next().ok_or("no call")?? {
            Outcome::Answered => {}
            Outcome::Unknown(why) | Outcome::Lost(why) => return Err(format!("the annotated call: {why}")),
        }
        let Some(second) = outcomes.next() else { return Ok("read-only: answered".to_owned()) };
        let runs = self.runs()?.get("flight-append").copied().unwrap_or_default();
        match (second?, runs) {
            (Outcome::Answered, 1) => Ok("read-only: answered; other: answered, run once".to_owned()),
            (Outcome::Unknown(_), 1) => Ok("read-only: answered; other: outcome unknown, run once".to_owned()),
            (Outcome::Lost(why), _) => Err(format!("the other call, run {runs} times: {why}")),
            (Outcome::Answered | Outcome::Unknown(_), _) => Err(format!("the other call ran {runs} times")),
        }
    }

    /// Restarts the server while nobody calls.
    pub(crate) async fn idle_restart(&mut self) -> Shown {
        let session = self.connection.session().await.map_err(|error| error.to_string())?;
        let (epoch, sessionful) = (session.epoch(), session.facts().session_id.is_some());
        drop(session);
        let mut events = self.connection.events();
        self.restart(false).await?;
        let back = Instant::now();
        let noticed = if sessionful {
            let next = next(&mut events, |event| match event {
                Event::Status { status: Status::Ready(next), .. } if *next > epoch => Some(*next),
                _ => None,
            });
            let next = next.await?;
            let waited = back.elapsed().as_secs_f32();
            format!("noticed, session {epoch} → {next} after {waited:.1} s")
        } else {
            "no session to lose".to_owned()
        };
        self.answered(ToolKind::Echo, "idle").await?;
        Ok(format!("{noticed}; next call answered"))
    }

    /// Leaves the server away for a while, with many callers waiting.
    pub(crate) async fn downtime(&mut self) -> Shown {
        self.answered(ToolKind::Echo, "warm").await?;
        self.kill().await?;
        let texts: Vec<_> = (0..CALLERS).map(|caller| format!("waiting-{caller}")).collect();
        let tools = [ToolKind::Echo, if self.server.is_ours() { ToolKind::Append(0) } else { ToolKind::Echo }];
        let calls = texts.iter().enumerate().map(|(caller, text)| {
            tokio::spawn(call(self.connection.clone(), self.server, tools[caller % 2], text.clone()))
        });
        let calls: Vec<_> = calls.collect();
        sleep(DOWNTIME).await;
        self.start(false).await?;
        let back = Instant::now();
        let outcomes = join_all(calls).await;
        let waited = back.elapsed().as_secs_f32();
        let runs = self.runs()?;
        let (mut answered, mut unknown) = (0, 0);
        for (caller, (text, outcome)) in texts.iter().zip(outcomes).enumerate() {
            let counted = tools[caller % 2] == ToolKind::Append(0);
            let runs = runs.get(text).copied().unwrap_or_default();
            match outcome.map_err(|error| error.to_string())? {
                Outcome::Answered if !counted || runs == 1 => answered += 1,
                Outcome::Unknown(_) if counted && runs <= 1 => unknown += 1,
                Outcome::Answered => return Err(format!("{text}: answered, and run {runs} times")),
                Outcome::Unknown(why) => return Err(format!("{text}: run {runs} times: {why}")),
                Outcome::Lost(why) => return Err(format!("{text}: lost, run {runs} times: {why}")),
            }
        }
        let unknown = if unknown == 0 { String::new() } else { format!(", {unknown} of unknown outcome") };
        Ok(format!("{answered} answered{unknown}, 0 lost, 0 doubled; {waited:.1} s after it was back"))
    }

    /// Restarts the server with other tools, and a caller waiting.
    pub(crate) async fn other_tools(&mut self) -> Shown {
        if !self.server.is_ours() {
            return Ok("(its tools are fixed)".to_owned());
        }
        let mut events = self.connection.events();
        self.kill().await?;
        let waiting = tokio::spawn(call(self.connection.clone(), self.server, ToolKind::Echo, "others".to_owned()));
        // A server without sessions and streams that is back at once is not missed by anybody.
        let noticed = next(&mut events, |event| match event {
            Event::Status { status, .. } if !matches!(status, Status::Ready(_)) => Some(()),
            _ => None,
        });
        noticed.await?;
        self.start(true).await?;
        expect_answer("the call that waited", waiting.await.map_err(|error| error.to_string())?)?;
        let diff = next(&mut events, |event| match event {
            Event::Catalogue(diff) => Some(diff.clone()),
            _ => None,
        });
        let diff = diff.await?;
        if diff.tools.added != ["extra"] || diff.tools.removed != ["append"] || !diff.tools.changed.is_empty() {
            return Err(format!("a wrong catalogue diff: {:?}", diff.tools));
        }
        self.answered(ToolKind::Extra, "new").await?;
        let (params, _) = self.server.call(ToolKind::Append(0), "gone");
        match self.connection.call_tool(params).await {
            Err(CallError::NotOffered { .. }) => {}
            other => return Err(format!("a tool that is gone was called: {other:?}")),
        }
        Ok("one diff; new tool answered, old one not offered".to_owned())
    }

    async fn answered(&self, tool: ToolKind, text: &str) -> Result<(), String> {
        expect_answer(text, call(self.connection.clone(), self.server, tool, text.to_owned()).await).map_err(|why| {
            let said = self.process.as_ref().map(Process::tail).unwrap_or_default();
            format!("{why}; {:?}; the server's last lines: {said:?}", self.connection)
        })
    }

    async fn restart(&mut self, other_tools: bool) -> Result<(), String> {
        self.kill().await?;
        self.start(other_tools).await
    }

    async fn kill(&mut self) -> Result<(), String> {
        match self.process.take() {
            Some(process) => process.kill().await,
            None => Ok(()),
        }
    }

    async fn start(&mut self, other_tools: bool) -> Result<(), String> {
        let mut command = self.server.command(self.installed, self.port, &self.ledger, other_tools);
        self.process = Some(Process::start(&mut command, self.server.ready()).await?);
        Ok(())
    }

    /// How often each text was appended.
    fn runs(&self) -> Result<HashMap<String, u32>, String> {
        let mut runs = HashMap::new();
        if self.server.is_ours() {
            for line in std::fs::read_to_string(&self.ledger).map_err(|error| error.to_string())?.lines() {
                *runs.entry(line.to_owned()).or_default() += 1;
            }
        }
        Ok(runs)
    }
}

/// The first event that is wanted.
async fn next<T>(events: &mut Events, wanted: impl Fn(&Event) -> Option<T>) -> Result<T, String> {
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

async fn call(connection: Connection, server: Server, tool: ToolKind, text: String) -> Outcome {
    let (params, answer) = server.call(tool, &text);
    match timeout(PATIENCE * 2, connection.call_tool(params)).await {
        Err(_) => Outcome::Lost("no outcome, long after its deadline".to_owned()),
        Ok(Err(CallError::OutcomeUnknown { cause, .. })) => Outcome::Unknown(cause.to_string()),
        Ok(Err(error)) => Outcome::Lost(error.to_string()),
        Ok(Ok(CallToolResponse::Complete(result))) if result.is_error != Some(true) => {
            let right =
                result.content.iter().any(|block| block.as_text().is_some_and(|text| text.text.contains(&answer)));
            if right { Outcome::Answered } else { Outcome::Lost(format!("a wrong answer: {result:?}")) }
        }
        Ok(Ok(other)) => Outcome::Lost(format!("a wrong answer: {other:?}")),
    }
}

fn expect_answer(what: &str, outcome: Outcome) -> Result<(), String> {
    match outcome {
        Outcome::Answered => Ok(()),
        Outcome::Unknown(why) => Err(format!("{what}: outcome unknown: {why}")),
        Outcome::Lost(why) => Err(format!("{what}: {why}")),
    }
}
