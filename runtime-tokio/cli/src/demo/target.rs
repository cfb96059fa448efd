//! The targets of calls, and the outcome of each call.

use std::sync::Arc;
use std::time::Duration;

use mcp_reconnect::core::replay::Effect;
use mcp_reconnect::core::{Epoch, Status};
use mcp_reconnect::{CallError, CallOptions, Catalogue, Connection, Era, Session};
use rmcp::model::{CallToolRequestParams, CallToolResponse, ClientRequest, DiscoverRequest, PingRequest, Tool};
use serde_json::{Map, Value};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::server::{APPEND, ECHO};

/// A caller's pause between two calls.
const PAUSE: Duration = Duration::from_millis(50);
/// Time after its deadline at which a call without any outcome counts as lost.
const GRACE: Duration = Duration::from_secs(10);

/// The name of [`Outcome::Lost`] in JSON lines.
pub(super) const LOST: &str = "lost";

/// The request that one caller repeats.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Target {
    /// The tool, or the method of a ping.
    pub(super) name: Arc<str>,
    /// Whether it may be sent again although it may have run.
    pub(super) annotated: bool,
    what: What,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    /// A tool of the embedded server: it must return the text that it was sent.
    Text,
    /// A tool without arguments: whatever it returns is right.
    Bare,
    Ping,
}

impl Target {
    /// The tools of the embedded server.
    pub(super) fn embedded() -> Vec<Self> {
        [(ECHO, true), (APPEND, false)]
            .map(|(name, annotated)| Self { name: name.into(), annotated, what: What::Text })
            .into()
    }

    /// The tool that was asked for, or the most harmless one that needs no arguments; pings where there is none.
    ///
    /// # Errors
    ///
    /// The tool that was asked for is not offered.
    pub(super) fn of(session: &Session, wanted: Option<&str>) -> Result<Self, String> {
        let catalogue = session.catalogue();
        let tools = || catalogue.tools.items().iter().map(|tool| &**tool);
        match wanted {
            Some(name) if catalogue.tool(name).is_none() => {
                let names: Vec<_> = tools().map(|tool| &*tool.name).collect();
                Err(format!("the server offers no tool `{name}`, only: {}", names.join(", ")))
            }
            Some(name) => Ok(Self::bare(&catalogue, name)),
            None => {
                Ok(choose(tools()).map_or_else(|| Self::ping(session.era()), |tool| Self::bare(&catalogue, &tool.name)))
            }
        }
    }

    fn bare(catalogue: &Catalogue, name: &str) -> Self {
        Self { name: name.into(), annotated: catalogue.effect(name) == Effect::Annotated, what: What::Bare }
    }

    fn ping(era: Era) -> Self {
        let method = if era == Era::Legacy { "ping" } else { "server/discover" };
        Self { name: method.into(), annotated: true, what: What::Ping }
    }

    /// Its name in the summary.
    pub(super) fn describe(&self) -> String {
        match (self.what, self.annotated) {
            (What::Ping, _) => format!("{} (no tool)", self.name),
            (What::Text | What::Bare, true) => format!("{} (annotated)", self.name),
            (What::Text | What::Bare, false) => format!("{} (not annotated)", self.name),
        }
    }

    async fn call(&self, connection: &Connection, options: &CallOptions, label: &str) -> (Outcome, Option<Epoch>) {
        let result = match self.what {
            What::Ping => {
                let request = match &*self.name {
                    "ping" => ClientRequest::PingRequest(PingRequest::default()),
                    _ => ClientRequest::DiscoverRequest(DiscoverRequest::default()),
                };
                connection.request(request, options).await.map(|_| None)
            }
            What::Bare | What::Text => {
                let mut params = CallToolRequestParams::new(self.name.to_string());
                if self.what == What::Text {
                    params.arguments = Some(Map::from_iter([("text".to_owned(), Value::from(label))]));
                }
                connection.call_tool_with(params, options).await.map(Some)
            }
        };
        let answered_by = || match connection.snapshot().status {
            Status::Ready(epoch) => Some(epoch),
            Status::Idle | Status::Connecting | Status::TransientFailure | Status::Parked(_) | Status::Shutdown => None,
        };
        match result {
            Ok(answer) if self.what == What::Text && text(answer.as_ref()) != Some(label) => {
                let wrong = format!("wrong answer: {:?}", text(answer.as_ref()).unwrap_or_default());
                (Outcome::Lost(wrong), answered_by())
            }
            Ok(_) => (Outcome::Answered, answered_by()),
            Err(error) => (Outcome::of(&error, self.what == What::Text), epoch(&error)),
        }
    }
}

/// The session that an error comes from.
const fn epoch(error: &CallError) -> Option<Epoch> {
    match error {
        CallError::Server { epoch, .. }
        | CallError::NotOffered { epoch, .. }
        | CallError::NotSent { epoch, .. }
        | CallError::OutcomeUnknown { epoch, .. }
        | CallError::DeadlineExceeded { epoch, .. }
        | CallError::UnexpectedAnswer { epoch, .. } => Some(*epoch),
        _ => None,
    }
}

/// Of the tools that need no arguments: a read-only one, else an idempotent one, else one that does not say what it
/// does; never one that says that it destroys.
fn choose<'a>(tools: impl Iterator<Item = &'a Tool>) -> Option<&'a Tool> {
    let rank = |tool: &Tool| {
        let needs_none = match tool.input_schema.get("required") {
            None => true,
            Some(required) => required.as_array().is_some_and(Vec::is_empty),
        };
        let Some(hints) = &tool.annotations else { return needs_none.then_some(2) };
        match (hints.destructive_hint, hints.read_only_hint, hints.idempotent_hint) {
            _ if !needs_none => None,
            (Some(true), ..) => None,
            (_, Some(true), _) => Some(0),
            (_, _, Some(true)) => Some(1),
            _ => Some(2),
        }
    };
    tools.filter_map(|tool| Some((rank(tool)?, tool))).min_by_key(|&(rank, _)| rank).map(|(_, tool)| tool)
}

fn text(answer: Option<&CallToolResponse>) -> Option<&str> {
    match answer {
        Some(CallToolResponse::Complete(result)) if result.is_error != Some(true) => match &result.content[..] {
            [block] => block.as_text().map(|text| &*text.text),
            _ => None,
        },
        Some(_) | None => None,
    }
}

/// The outcome of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Outcome {
    Answered,
    /// The server answered, with an error of its own.
    ServerError(String),
    /// It was in flight when the session died: it may have run.
    Unknown(String),
    /// No answer by the deadline; whether it is certain that it did not run.
    DeadlineExceeded {
        not_run: bool,
    },
    /// It was never sent, and its caller was told so.
    NotSent(String),
    /// No outcome, or a wrong one.
    Lost(String),
}

impl Outcome {
    /// The outcome that an error stands for. From a server that `must_answer` right, an error is a wrong answer.
    fn of(error: &CallError, must_answer: bool) -> Self {
        let text = error.to_string();
        match error {
            CallError::OutcomeUnknown { cause, .. } => Self::Unknown(cause.to_string()),
            CallError::DeadlineExceeded { .. } => Self::DeadlineExceeded { not_run: error.not_run() },
            CallError::Refused { .. } | CallError::NotSent { .. } => Self::NotSent(text),
            CallError::Server { .. } | CallError::UnexpectedAnswer { .. } if !must_answer => Self::ServerError(text),
            // The server may have come back with other tools.
            CallError::NotOffered { .. } if !must_answer => Self::NotSent(text),
            _ => Self::Lost(text),
        }
    }

    /// Whether the server answered.
    pub(super) const fn is_answer(&self) -> bool {
        matches!(self, Self::Answered | Self::ServerError(_))
    }

    /// The name in JSON lines.
    pub(super) const fn name(&self) -> &'static str {
        match self {
            Self::Answered => "answered",
            Self::ServerError(_) => "server_error",
            Self::Unknown(_) => "outcome_unknown",
            Self::DeadlineExceeded { .. } => "deadline_exceeded",
            Self::NotSent(_) => "not_sent",
            Self::Lost(_) => LOST,
        }
    }

    /// The reason, where there is one.
    pub(super) fn cause(&self) -> Option<&str> {
        match self {
            Self::Answered => None,
            Self::ServerError(cause) | Self::Unknown(cause) | Self::NotSent(cause) | Self::Lost(cause) => Some(cause),
            Self::DeadlineExceeded { not_run: true } => Some("it did not reach the server"),
            Self::DeadlineExceeded { not_run: false } => Some("it may have run"),
        }
    }
}

/// One call that is over.
#[derive(Debug)]
pub(super) struct Record {
    /// The target, by its place.
    pub(super) target: usize,
    /// The call's own text.
    pub(super) label: String,
    pub(super) outcome: Outcome,
    /// The session that answered it, or failed.
    pub(super) epoch: Option<Epoch>,
    pub(super) at: Instant,
}

/// Calls one target, one call after the other, until told to stop or nobody reads the records any more.
pub(super) async fn call_steadily(
    connection: Connection,
    place: usize,
    target: Target,
    options: CallOptions,
    records: mpsc::UnboundedSender<Record>,
    stop: CancellationToken,
) {
    for number in 1_u64.. {
        let label = format!("{}-{number}", target.name);
        let outcome = timeout(options.timeout + GRACE, target.call(&connection, &options, &label)).await;
        let (outcome, epoch) =
            outcome.unwrap_or_else(|_| (Outcome::Lost("no outcome, long after its deadline".into()), None));
        let record = Record { target: place, label, outcome, epoch, at: Instant::now() };
        if records.send(record).is_err() || stop.run_until_cancelled(sleep(PAUSE)).await.is_none() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use mcp_reconnect::core::replay::Sent;
    use mcp_reconnect::core::{FailureClass, ParkReason, Refusal};
    use rmcp::model::ErrorData;
    use serde_json::json;

    use super::*;

    fn tool(name: &str, required: Value, annotations: Value) -> Tool {
        let schema = json!({ "type": "object", "required": required });
        serde_json::from_value(json!({ "name": name, "inputSchema": schema, "annotations": annotations })).unwrap()
    }

    fn chosen(tools: &[Tool]) -> Option<&str> {
        choose(tools.iter()).map(|tool| &*tool.name)
    }

    #[test]
    fn the_most_harmless_tool_without_arguments_is_chosen() {
        let silent = tool("silent", json!([]), json!({}));
        let idempotent = tool("idempotent", json!([]), json!({ "idempotentHint": true }));
        let read_only = tool("read_only", json!([]), json!({ "readOnlyHint": true }));
        let needy = tool("needy", json!(["path"]), json!({ "readOnlyHint": true }));
        let tools = [needy.clone(), silent.clone(), idempotent.clone(), read_only];
        assert_eq!(chosen(&tools), Some("read_only"));
        assert_eq!(chosen(&tools[..3]), Some("idempotent"));
        assert_eq!(chosen(&tools[..2]), Some("silent"));
        assert_eq!(chosen(&tools[..1]), None);
    }

    #[test]
    fn a_tool_that_destroys_is_never_chosen() {
        let tools = [
            tool("wipe", json!([]), json!({ "destructiveHint": true })),
            tool("wipe_again", json!([]), json!({ "destructiveHint": true, "idempotentHint": true })),
            tool("contradiction", json!([]), json!({ "destructiveHint": true, "readOnlyHint": true })),
        ];
        assert_eq!(chosen(&tools), None);
    }

    #[test]
    fn a_schema_that_cannot_be_read_counts_as_needing_arguments() {
        assert_eq!(chosen(&[tool("odd", json!("path"), json!({}))]), None);
    }

    #[test]
    fn every_error_has_its_line() {
        let epoch = Epoch::FIRST;
        let class = FailureClass::Transport;
        let cause: Arc<str> = "killed".into();
        let name = |error: CallError| Outcome::of(&error, true).name();
        assert_eq!(name(CallError::OutcomeUnknown { epoch, class, cause: cause.clone() }), "outcome_unknown");
        assert_eq!(name(CallError::NotSent { epoch, class, cause: cause.clone() }), "not_sent");
        let refused = CallError::Refused { why: Refusal::Parked(ParkReason::Exhausted), retry_at: None, cause: None };
        assert_eq!(name(refused), "not_sent");
        for (sent, not_run) in [(Sent::No, true), (Sent::Maybe, false)] {
            let outcome = Outcome::of(&CallError::DeadlineExceeded { epoch, sent }, true);
            assert_eq!(outcome, Outcome::DeadlineExceeded { not_run });
        }
        assert_eq!(name(CallError::Closed), "lost");
        assert_eq!(name(CallError::InvalidParams(cause.clone())), "lost");
    }

    #[test]
    fn only_the_embedded_server_owes_a_right_answer() {
        let error = CallError::Server {
            epoch: Epoch::FIRST,
            error: ErrorData::internal_error("no", None),
            json: r#"{"code":-32603,"message":"no"}"#.into(),
        };
        assert_eq!(Outcome::of(&error, false).name(), "server_error");
        assert_eq!(Outcome::of(&error, true).name(), "lost");
    }
}
