//! The clients, and their calls.

use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

use mcp_reconnect::core::Config;
use mcp_reconnect::http::HttpConnector;
use mcp_reconnect::{CallError, CallOptions, Connection, HttpServer, Require};
use mcp_reconnect_bench::programs::{Host, Kind, Runs, beside, node};
use rmcp::model::{CallToolRequestParams, CallToolResponse, JsonObject};
use serde_json::json;
use tokio::time::timeout;

use super::bare::{Bare, Before};
use super::server::Server;
use crate::Race;
use crate::contenders::{Contender, OURS, Told, call};

/// When a session of ours is proven.
pub(super) const STABLE_AFTER: Duration = Duration::from_millis(500);

#[derive(Clone, Copy)]
pub(super) enum Who {
    Bare(Before),
    /// Ours, in the process that measures, as the bare exchanges.
    Embedded(Require),
    /// A program on an SDK.
    Program(Contender),
    /// A front, before a program that speaks stdio to it.
    Front(Front),
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Front {
    Ours,
    McpRemote,
}

/// The host before a front: one that never gives its child up.
const BEFORE_A_FRONT: Kind =
    Kind { name: "TypeScript SDK 1.32.2", runs: Runs::Node("ts1.mjs"), options: &[], other_era: "modern" };

impl Who {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Bare(Before::List) => "bare: initialize, initialized, tools/list, call",
            Self::Bare(Before::Refusal) => "bare: the refused call, and these four",
            Self::Bare(Before::Library) => "bare, by way of reqwest: the refused call, and these four",
            Self::Bare(Before::Handshake) => "bare: initialize, initialized, call",
            Self::Embedded(Require::None) => "mcp-reconnect, embedded, `require = none`",
            Self::Embedded(_) => "mcp-reconnect, embedded",
            Self::Program(contender) => contender.kind.name,
            Self::Front(Front::Ours) => "TypeScript SDK 1.32.2 behind mcp-reconnect proxy",
            Self::Front(Front::McpRemote) => "TypeScript SDK 1.32.2 behind mcp-remote 0.15.1",
        }
    }

    pub(super) fn is_ours(self) -> bool {
        match self {
            Self::Bare(_) => false,
            Self::Embedded(_) => true,
            Self::Program(contender) => contender.kind.name == OURS.kind.name,
            Self::Front(front) => front == Front::Ours,
        }
    }

    pub(super) async fn start(self, race: &Race, server: &Server, redial_spread: Duration) -> Result<Client, String> {
        let url = server.url()?;
        let (kind, server) = match self {
            Self::Bare(before) => return Ok(Client::Bare(Bare::new(server.address()?, before))),
            Self::Embedded(require) => return embedded(&url, require, redial_spread),
            Self::Program(contender) => (contender.kind, vec!["--url".into(), url.into()]),
            Self::Front(front) => {
                let file = race.scratch.path().join(format!("front-{}.json", server.address()?.port()));
                let command = front.command(&race.installed, &url, &file, redial_spread)?;
                (BEFORE_A_FRONT, command)
            }
        };
        Host::start(kind, &race.installed, server, race.scratch.path()).await.map(Client::Program)
    }
}

impl Front {
    fn command(self, installed: &Path, url: &str, file: &Path, spread: Duration) -> Result<Vec<OsString>, String> {
        let words = |words: &[&str]| words.iter().map(OsString::from).collect::<Vec<_>>();
        match self {
            Self::Ours => {
                let milliseconds = |time: Duration| format!("{}ms", time.as_millis());
                let knobs =
                    json!({ "stable_after": milliseconds(STABLE_AFTER), "redial_spread": milliseconds(spread) });
                let config = json!({ "mcpServers": { "race": { "url": url, "mcp-reconnect": knobs } } });
                std::fs::write(file, config.to_string()).map_err(|error| error.to_string())?;
                let mut command = vec![beside("mcp-reconnect")?.into()];
                command.extend(words(&["proxy", "--no-cache", "--server", "race", "--config"]));
                command.push(file.into());
                Ok(command)
            }
            Self::McpRemote => {
                let program = installed.join("node/node_modules/mcp-remote/dist/proxy.js");
                let mut command = vec![node(installed).into(), program.into()];
                command.extend(words(&[url, "--transport", "http-only"]));
                Ok(command)
            }
        }
    }
}

pub(super) enum Client {
    Bare(Bare),
    Embedded(Connection),
    Program(Host),
}

/// Outcome of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    Answered,
    /// It was told that the call may have run.
    Unknown,
    Failed,
    /// Nothing was told before the time was over.
    Hung,
}

impl Client {
    /// Calls a tool with this text.
    pub(super) async fn call(&mut self, patience: Duration, tool: &str, text: &str) -> Outcome {
        match self {
            Self::Bare(bare) => match timeout(patience, bare.call(tool, text)).await {
                Ok(Ok(said)) if said == text => Outcome::Answered,
                Ok(_) => Outcome::Failed,
                Err(_) => Outcome::Hung,
            },
            Self::Embedded(connection) => embedded_call(connection, patience, tool, text).await,
            Self::Program(host) => program_call(host, patience, tool, text).await,
        }
    }

    pub(super) async fn end(self) {
        match self {
            Self::Bare(_) => {}
            Self::Embedded(connection) => connection.shutdown().await,
            Self::Program(host) => drop(host.end().await),
        }
    }
}

pub(super) async fn program_call(host: &Host, patience: Duration, tool: &str, text: &str) -> Outcome {
    let began = Instant::now();
    match call(host, patience, tool, text).await {
        Told::Answered => Outcome::Answered,
        Told::Unknown => Outcome::Unknown,
        Told::Failed if began.elapsed() >= patience => Outcome::Hung,
        Told::Failed => Outcome::Failed,
    }
}

fn embedded(url: &str, require: Require, redial_spread: Duration) -> Result<Client, String> {
    let server = HttpServer::new(url).map_err(|error| error.to_string())?;
    let config = Config::builder().stable_after(STABLE_AFTER).redial_spread(redial_spread).build();
    let builder = Connection::builder(HttpConnector::new(server)).config(config.map_err(|error| error.to_string())?);
    builder.require(require).build().map(Client::Embedded).map_err(|error| error.to_string())
}

async fn embedded_call(connection: &Connection, patience: Duration, tool: &str, text: &str) -> Outcome {
    let mut arguments = JsonObject::new();
    arguments.insert("text".to_owned(), text.into());
    let params = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
    let options = CallOptions { timeout: patience, ..CallOptions::default() };
    match connection.call_tool_with(params, &options).await {
        Ok(CallToolResponse::Complete(result)) => {
            let said = result.content.first().and_then(|content| content.as_text());
            if said.is_some_and(|said| said.text == text) { Outcome::Answered } else { Outcome::Failed }
        }
        Err(error) if !matches!(error, CallError::Server { .. }) && !error.not_run() => Outcome::Unknown,
        _ => Outcome::Failed,
    }
}
