//! Events of a fleet as JSON lines.

use std::path::Path;
use std::sync::Arc;

use mcp_reconnect::config::{ConfigErrors, Parsed};
use mcp_reconnect::core::{Epoch, FailureClass, ParkReason, Status};
use mcp_reconnect::fleet::{FleetEvent, Outcome};
use mcp_reconnect::{Changes, Event, ServerState, ServerStatus};
use serde::Serialize;
use tokio::time::Instant;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};

#[derive(Serialize)]
struct Line<'a> {
    time: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    server: Option<&'a str>,
    #[serde(flatten)]
    entry: &'a Entry,
}

/// One thing to tell. The names of variants and fields are those of the JSON lines: they are documented in `--help`.
#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub(super) enum Entry {
    Config {
        file: String,
        warnings: Vec<String>,
        errors: Vec<String>,
    },
    Applied {
        outcome: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        error: Option<String>,
    },
    Status {
        state: ServerState,
        epoch: Option<Epoch>,
        #[serde(skip_serializing_if = "Option::is_none")]
        park_reason: Option<ParkReason>,
        failure: Option<FailureClass>,
        cause: Option<Arc<str>>,
    },
    Breaker {
        open_for: Option<f64>,
    },
    Catalogue {
        tools: Diff,
        prompts: Diff,
        resources: Diff,
        templates: Diff,
    },
    Withdrawn,
    Tools {
        #[serde(flatten)]
        diff: Diff,
        notices: Vec<String>,
    },
    SetupFailed {
        what: Arc<str>,
        cause: Arc<str>,
    },
    ServerChanged {
        version: Arc<str>,
    },
    Suspect {
        code: i64,
    },
    Snapshot {
        servers: Vec<ServerStatus>,
    },
    Missed {
        count: u64,
    },
}

#[derive(Debug, Serialize)]
pub(super) struct Diff {
    added: Vec<String>,
    removed: Vec<String>,
    changed: Vec<String>,
}

impl From<&Changes> for Diff {
    fn from(changes: &Changes) -> Self {
        let Changes { added, removed, changed } = changes.clone();
        Self { added, removed, changed }
    }
}

impl Entry {
    /// A version of the config's file.
    pub(super) fn of_config(file: &Path, version: &Result<Parsed, ConfigErrors>) -> Self {
        let (warnings, errors) = match version {
            Ok(parsed) => (&parsed.warnings[..], &[][..]),
            Err(errors) => (&errors.warnings[..], &errors.problems[..]),
        };
        let words = |problems: &[mcp_reconnect::config::Problem]| problems.iter().map(ToString::to_string).collect();
        Self::Config { file: file.display().to_string(), warnings: words(warnings), errors: words(errors) }
    }

    fn of_outcome(outcome: &Outcome) -> Self {
        match outcome {
            Outcome::Failed(error) => Self::Applied { outcome: "failed".into(), error: Some(error.to_string()) },
            outcome => Self::Applied { outcome: outcome.to_string(), error: None },
        }
    }

    fn of_event(event: Event) -> Option<Self> {
        Some(match event {
            Event::Status { status, failure, cause } => {
                let (epoch, park_reason) = match status {
                    Status::Ready(epoch) => (Some(epoch), None),
                    Status::Parked(reason) => (None, Some(reason)),
                    Status::Idle | Status::Connecting | Status::TransientFailure | Status::Shutdown => (None, None),
                };
                Self::Status { state: status.into(), epoch, park_reason, failure, cause }
            }
            Event::Breaker { open_until } => {
                let left = |until: Instant| until.saturating_duration_since(Instant::now()).as_secs_f64();
                Self::Breaker { open_for: open_until.map(left) }
            }
            Event::Catalogue(diff) => Self::Catalogue {
                tools: Diff::from(&diff.tools),
                prompts: Diff::from(&diff.prompts),
                resources: Diff::from(&diff.resources),
                templates: Diff::from(&diff.templates),
            },
            Event::Withdrawn => Self::Withdrawn,
            Event::SetupFailed { what, cause } => Self::SetupFailed { what, cause },
            Event::ServerChanged { version } => Self::ServerChanged { version },
            Event::Suspect { code } => Self::Suspect { code },
            Event::Missed { count } => Self::Missed { count },
            _ => return None,
        })
    }

    /// The entry as a line without its end.
    pub(super) fn line(&self, server: Option<&str>) -> serde_json::Result<String> {
        serde_json::to_string(&Line { time: &now(), server, entry: self })
    }
}

/// The entry of an event and the server it is about; `None` for an event that nobody needs to know.
pub(super) fn entry(event: FleetEvent) -> Option<(Option<Arc<str>>, Entry)> {
    match event {
        FleetEvent::Applied { server, outcome } => Some((Some(server), Entry::of_outcome(&outcome))),
        FleetEvent::Server { server, event } => Some((Some(server), Entry::of_event(event)?)),
        FleetEvent::Tools(diff) if diff.is_empty() && diff.notices.is_empty() => None,
        FleetEvent::Tools(diff) => {
            let notices = diff.notices.iter().map(ToString::to_string).collect();
            let (added, removed, changed) = (diff.added.clone(), diff.removed.clone(), diff.changed.clone());
            Some((None, Entry::Tools { diff: Diff { added, removed, changed }, notices }))
        }
        FleetEvent::Missed { count } => Some((None, Entry::Missed { count })),
        _ => None,
    }
}

/// The time as the log has it: RFC 3339, UTC, microseconds.
fn now() -> String {
    let mut text = String::new();
    _ = SystemTime.format_time(&mut Writer::new(&mut text)); // writing to a string cannot fail
    text
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn told(event: FleetEvent) -> Value {
        let (server, entry) = entry(event).expect("worth telling");
        let mut line: Value = serde_json::from_str(&entry.line(server.as_deref()).unwrap()).unwrap();
        let time = line.as_object_mut().unwrap().remove("time").expect("a time");
        // 2026-11-29T23:24:42.123456Z
        let time = time.as_str().unwrap();
        assert!(time.len() == 27 && &time[10..11] == "T" && time.ends_with('Z'), "{time}");
        line
    }

    #[test]
    fn every_event_has_its_line() {
        let of = |event| told(FleetEvent::Server { server: "time".into(), event });
        let parked = Status::Parked(ParkReason::NeedsAuth);
        let status =
            Event::Status { status: parked, failure: Some(FailureClass::NeedsAuth), cause: Some("401".into()) };
        assert_eq!(
            of(status),
            json!({ "server": "time", "event": "status", "state": "parked", "epoch": null, "park_reason": "needs_auth",
                "failure": "needs_auth", "cause": "401" })
        );
        let ready = Event::Status { status: Status::Ready(Epoch::FIRST), failure: None, cause: None };
        assert_eq!(
            of(ready),
            json!({ "server": "time", "event": "status", "state": "ready", "epoch": 1, "failure": null, "cause": null })
        );
        assert_eq!(of(Event::Withdrawn), json!({ "server": "time", "event": "withdrawn" }));
        assert_eq!(
            of(Event::Breaker { open_until: None }),
            json!({ "server": "time", "event": "breaker", "open_for": null })
        );
        let outcome = Outcome::Started;
        assert_eq!(
            told(FleetEvent::Applied { server: "time".into(), outcome }),
            json!({ "server": "time", "event": "applied", "outcome": "started" })
        );
        assert_eq!(told(FleetEvent::Missed { count: 3 }), json!({ "event": "missed", "count": 3 }));
        let mut diff = mcp_reconnect::fleet::ToolsDiff::default();
        assert!(entry(FleetEvent::Tools(Arc::new(diff.clone()))).is_none());
        diff.added.push("time__now".into());
        assert_eq!(
            told(FleetEvent::Tools(Arc::new(diff))),
            json!({ "event": "tools", "added": ["time__now"], "removed": [], "changed": [], "notices": [] })
        );
    }
}
