//! Two tools of the front's own, for a model that wonders what has become of a server.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use mcp_reconnect_core::{Status, WakeCause};
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::asks::Answer;
use crate::connection::{Connection, ServerState, ServerStatus};
use crate::protocol::frame::{Object, member};

/// What is put before a name that a server's tool has already.
const PREFIX: &str = "mcp_reconnect_";

/// One of the tools.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tool {
    Status,
    Reconnect,
}

/// A server that they are about.
pub(super) struct Subject {
    pub(super) name: Arc<str>,
    /// `None` before the host's first message, and where the server is not wanted.
    pub(super) connection: Option<Connection>,
    pub(super) enabled: bool,
}

impl Tool {
    const ALL: [Self; 2] = [Self::Status, Self::Reconnect];

    const fn name(self) -> &'static str {
        match self {
            Self::Status => "connection_status",
            Self::Reconnect => "reconnect",
        }
    }

    /// What it is called beside tools of which these names are taken; `None`: it has no name left.
    fn offered_as(self, taken: impl Fn(&str) -> bool) -> Option<String> {
        let names = [self.name().to_owned(), format!("{PREFIX}{}", self.name())];
        names.into_iter().find(|name| !taken(name))
    }

    /// The one that is called by this name.
    pub(super) fn called(name: &str, taken: impl Fn(&str) -> bool) -> Option<Self> {
        Self::ALL.into_iter().find(|tool| tool.offered_as(&taken).as_deref() == Some(name))
    }

    /// The entries for a list of tools.
    pub(super) fn definitions(taken: impl Fn(&str) -> bool) -> Vec<String> {
        let offered = Self::ALL.into_iter().filter_map(|tool| Some((tool, tool.offered_as(&taken)?)));
        offered.map(|(tool, name)| tool.definition(&name).to_string()).collect()
    }

    fn definition(self, name: &str) -> Value {
        let server = json!({ "type": "string", "description": "The server's name; without it, every server." });
        match self {
            Self::Status => json!({
                "name": name,
                "title": "Connection status",
                "description": "How the connections to the MCP servers behind this one stand: whether each can be \
                    used now, what went wrong last, and when it is tried again. Look here when a call has failed.",
                "inputSchema": { "type": "object", "properties": { "server": server }, "additionalProperties": false },
                "annotations": { "readOnlyHint": true, "openWorldHint": false },
            }),
            Self::Reconnect => json!({
                "name": name,
                "title": "Reconnect",
                "description": "Tries now to have a server back that is not connected, without waiting for the next \
                    automatic try. One that is connected is left alone, unless `force` is true: then its session is \
                    replaced, and its calls in flight fail.",
                "inputSchema": {
                    "type": "object",
                    "properties": {
                        "server": server,
                        "force": { "type": "boolean", "description": "Replace a session that is there. Default false." },
                    },
                    "additionalProperties": false,
                },
                "annotations": {
                    "readOnlyHint": false, "destructiveHint": true, "idempotentHint": false, "openWorldHint": false,
                },
            }),
        }
    }

    /// Runs it with the parameters of a call; a server that is tried has this long to be there.
    pub(super) async fn run(self, params: Option<&RawValue>, subjects: &[Subject], patience: Duration) -> Answer {
        let arguments = match Arguments::of(params) {
            Ok(arguments) => arguments,
            Err(why) => return Ok(said(&[why], &[], true)),
        };
        let meant = |subject: &&Subject| arguments.server.as_deref().is_none_or(|server| *subject.name == *server);
        let meant: Vec<_> = subjects.iter().filter(meant).collect();
        if let (Some(server), true) = (&arguments.server, meant.is_empty()) {
            let names: Vec<_> = subjects.iter().map(|subject| format!("`{}`", subject.name)).collect();
            return Ok(said(&[format!("There is no server `{server}`. There is: {}.", names.join(", "))], &[], true));
        }
        let mut failed = false;
        let mut lines = Vec::new();
        if self == Self::Reconnect {
            // Of a server that is not wanted there is nothing to say, unless it was named.
            let tried = meant.iter().filter(|subject| subject.enabled || arguments.server.is_some());
            for outcome in join_all(tried.map(|subject| subject.reconnect(arguments.force, patience))).await {
                failed |= outcome.is_err();
                lines.push(outcome.unwrap_or_else(|why| why));
            }
        }
        let statuses: Vec<_> = meant.iter().map(|subject| subject.status()).collect();
        if self == Self::Status {
            lines.extend(statuses.iter().map(words));
        }
        Ok(said(&lines, &statuses, failed))
    }
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Arguments {
    server: Option<String>,
    force: bool,
}

impl Arguments {
    fn of(params: Option<&RawValue>) -> Result<Self, String> {
        let Object(members) = params.and_then(|params| serde_json::from_str(params.get()).ok()).unwrap_or_default();
        match member(&members, "arguments") {
            Some(arguments) if arguments.get() != "null" => {
                serde_json::from_str(arguments.get()).map_err(|error| format!("Wrong arguments: {error}."))
            }
            Some(_) | None => Ok(Self::default()),
        }
    }
}

impl Subject {
    fn status(&self) -> ServerStatus {
        let without = if self.enabled { ServerState::Idle } else { ServerState::Disabled };
        match &self.connection {
            Some(connection) => connection.status(),
            None => ServerStatus::without_connection(self.name.clone(), without),
        }
    }

    /// Tries to have it back; in words what has come of it, as an error where it is not there.
    async fn reconnect(&self, force: bool, patience: Duration) -> Result<String, String> {
        let name = &self.name;
        let Some(connection) = &self.connection else {
            return Err(format!("Server `{name}` is disabled by its configuration."));
        };
        match connection.snapshot().status {
            Status::Ready(epoch) if force => connection.invalidate(epoch, "a new session was asked for"),
            Status::Ready(_) => {
                return Ok(format!("Server `{name}` is connected, and was left alone (`force` replaces its session)."));
            }
            Status::Idle | Status::Connecting | Status::TransientFailure | Status::Parked(_) | Status::Shutdown => {}
        }
        connection.wake(WakeCause::Operator);
        // Whether it was settled in time shows below.
        drop(timeout(patience, connection.settled()).await);
        let status = connection.status();
        let outcome = words(&status);
        if status.state == ServerState::Ready { Ok(outcome) } else { Err(outcome) }
    }
}

/// How a server stands, in a sentence or two.
fn words(status: &ServerStatus) -> String {
    let state = match status.state {
        ServerState::Ready => "connected",
        ServerState::Connecting => "being connected",
        ServerState::TransientFailure => "not connected, and tried again",
        ServerState::Parked => "not connected: it has failed for long, and is tried from time to time",
        ServerState::Idle => "not connected: nobody has asked for it",
        ServerState::Disabled => "disabled by its configuration",
        ServerState::Shutdown => "closed",
    };
    let mut words = format!("Server `{}` is {state}", status.name);
    if let Some(session) = &status.session {
        let pid = session.pid.map_or_else(String::new, |pid| format!(", pid {pid}"));
        let version = &session.version;
        let tools = status.tools;
        words += &format!(" (session {}, protocol {version}{pid}, {tools} tools)", session.epoch);
    }
    if !matches!(status.state, ServerState::Disabled | ServerState::Idle) {
        words += &format!(", for {:.0?}", status.since);
    }
    words.push('.');
    if let Some(failure) = &status.last_failure {
        let cause = failure.cause.as_deref().unwrap_or("no cause is known");
        words += &format!(" Last failure ({}): {cause}.", failure.class);
    }
    if let Some(next) = status.next_dial {
        words += &format!(" Next try in {next:.0?}.");
    }
    if let Some(open) = status.breaker_open {
        words += &format!(" It did not answer; calls are refused for {open:.0?}.");
    }
    if status.in_flight > 0 {
        words += &format!(" Calls in flight: {}.", status.in_flight);
    }
    words
}

/// The result of a call.
fn said(lines: &[String], statuses: &[ServerStatus], is_error: bool) -> Box<RawValue> {
    let result = json!({
        "content": [{ "type": "text", "text": lines.join("\n") }],
        "structuredContent": { "servers": statuses },
        "isError": is_error,
        "resultType": "complete",
    });
    serde_json::value::to_raw_value(&result).unwrap_or_else(|_| RawValue::NULL.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_is_taken_is_left_to_the_server() {
        let taken = |names: &'static [&'static str]| move |name: &str| names.contains(&name);
        assert_eq!(Tool::called("reconnect", taken(&[])), Some(Tool::Reconnect));
        assert_eq!(Tool::called("mcp_reconnect_reconnect", taken(&[])), None);
        assert_eq!(Tool::called("reconnect", taken(&["reconnect"])), None);
        assert_eq!(Tool::called("mcp_reconnect_reconnect", taken(&["reconnect"])), Some(Tool::Reconnect));
        assert_eq!(Tool::called("connection_status", taken(&["reconnect"])), Some(Tool::Status));
        let names = Tool::definitions(taken(&["reconnect", "mcp_reconnect_reconnect"]));
        assert_eq!(names.len(), 1, "a tool without a name is not offered: {names:?}");
    }

    #[tokio::test]
    async fn what_was_asked_wrongly_is_told_so() {
        let subject = |name: &str, enabled| Subject { name: name.into(), connection: None, enabled };
        let subjects = [subject("a", true), subject("b", false)];
        let run = async |tool: Tool, params: &str| {
            let params = RawValue::from_string(params.to_owned()).unwrap();
            let result = tool.run(Some(&params), &subjects, Duration::ZERO).await.unwrap();
            let result: Value = serde_json::from_str(result.get()).unwrap();
            (result["isError"].as_bool().unwrap(), result["content"][0]["text"].as_str().unwrap().to_owned())
        };
        let (failed, text) = run(Tool::Reconnect, r#"{"arguments":{"server":"c"}}"#).await;
        assert!(failed && text.contains("no server `c`") && text.contains("`a`, `b`"), "{text}");
        let (failed, text) = run(Tool::Reconnect, r#"{"arguments":{"forced":true}}"#).await;
        assert!(failed && text.contains("forced"), "{text}");
        let (failed, text) = run(Tool::Reconnect, r#"{"arguments":{"server":"b"}}"#).await;
        assert!(failed && text.contains("disabled"), "{text}");
        let (failed, text) = run(Tool::Status, r#"{"arguments":null}"#).await;
        assert!(!failed && text.lines().count() == 2 && text.contains("`b` is disabled"), "{text}");
    }
}
