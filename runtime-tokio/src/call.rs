//! One call, from its caller's deadline to a fresh session and a second sending where that is safe.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use mcp_reconnect_core::replay::{Effect, Replay, Sent, Verdict};
use mcp_reconnect_core::{Breaker, FailureClass, Want};
use rmcp::model::{ErrorCode, ErrorData, InputRequiredResult};
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::clock::deadline;
use crate::error::CallError;
use crate::frame::RpcError;
use crate::owner::Command;
use crate::pending::{Answer, CallFailure};
use crate::session::Session;
use crate::shared::Shared;
use crate::wire::RequestOptions;

/// How many `input_required` rounds one call may take (what the other SDKs allow).
const MAX_ROUNDS: u32 = 10;

/// What a caller allows a call to take, and to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallOptions {
    /// How long the call may take from when it is made, the wait for a session included; each progress notification
    /// with the call's own token gives it this long again. Default 60 s.
    pub timeout: Duration,
    /// How long it may take at most, however much progress it makes. `None`: ten times `timeout`. Default `None`.
    pub max_timeout: Option<Duration>,
    /// How long it may wait for a session, within its `timeout`. Default 15 s.
    pub max_wait: Duration,
    /// Whether it may be sent again when its session fails. Default [`Replay::Annotated`].
    pub replay: Replay,
}

impl Default for CallOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(60),
            max_timeout: None,
            max_wait: Duration::from_secs(15),
            replay: Replay::default(),
        }
    }
}

/// What is asked, apart from its parameters.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target<'a> {
    /// A tool, which the session must offer.
    Tool(&'a str),
    /// Another method of the protocol.
    Method(&'a str),
}

impl<'a> Target<'a> {
    const fn method(self) -> &'a str {
        match self {
            Self::Tool(_) => "tools/call",
            Self::Method(method) => method,
        }
    }

    /// What a second run does, by the catalogue of the session that is asked.
    fn effect(self, session: &Session) -> Effect {
        match self {
            Self::Tool(name) => session.catalogue().effect(name),
            Self::Method(method) => match method {
                "ping"
                | "server/discover"
                | "completion/complete"
                | "logging/setLevel"
                | "prompts/get"
                | "prompts/list"
                | "resources/list"
                | "resources/read"
                | "resources/subscribe"
                | "resources/templates/list"
                | "resources/unsubscribe"
                | "tasks/get"
                | "tools/list" => Effect::Listing,
                _ => Effect::Unknown,
            },
        }
    }

    /// Whether a server may ask for input instead of answering.
    fn has_rounds(self) -> bool {
        matches!(self.method(), "tools/call" | "prompts/get" | "resources/read")
    }
}

/// A call under way.
pub(crate) struct Performance<'a> {
    shared: &'a Shared,
    target: Target<'a>,
    options: &'a CallOptions,
    /// The end, unless progress puts it off.
    until: Instant,
    /// The end, whatever happens.
    cap: Instant,
}

impl<'a> Performance<'a> {
    pub(crate) fn new(shared: &'a Shared, target: Target<'a>, options: &'a CallOptions) -> Self {
        let cap = deadline(options.max_timeout.unwrap_or_else(|| options.timeout.saturating_mul(10)));
        Self { shared, target, options, until: cap.min(deadline(options.timeout)), cap }
    }

    /// Runs the call to its end. The session that answered, and the result as it came.
    pub(crate) async fn run(self, params: Option<&RawValue>) -> Result<(Arc<Session>, Box<RawValue>), CallError> {
        let (meters, began) = (&self.shared.meters, Instant::now());
        let result = self.run_in_turn(params).await;
        meters.call_ended(began.elapsed(), &result);
        result
    }

    async fn run_in_turn(mut self, params: Option<&RawValue>) -> Result<(Arc<Session>, Box<RawValue>), CallError> {
        let mut place = None;
        let mut params = params.map(Cow::Borrowed);
        let mut want = Want::Session;
        let (mut resends, mut round) = (0, 1);
        // What became of an earlier sending that may have run.
        let mut unknown = None;
        loop {
            let wait_until = self.until.min(deadline(self.options.max_wait));
            let session = match self.shared.acquire(want, wait_until).await {
                Ok(session) => session,
                Err(error) => return Err(unknown.unwrap_or(error)),
            };
            // A place is for what the server gets: who waits for a session keeps nobody from it.
            if place.is_none() {
                let entered = timeout_at(self.until, self.shared.in_flight.enter()).await;
                place = Some(entered.map_err(|_| CallError::Busy)?);
            }
            if let Target::Tool(tool) = self.target
                && !session.catalogue().offers(tool)
            {
                let not_offered = CallError::NotOffered { epoch: session.epoch(), tool: tool.into() };
                return Err(unknown.unwrap_or(not_offered));
            }
            let effect = self.target.effect(&session);
            let failure = match self.ask(&session, params.as_deref()).await? {
                Ok(Ok(result)) if self.target.has_rounds() && asks_for_input(&result) => {
                    round += 1;
                    params = Some(Cow::Owned(self.next_round(&session, &result, params.as_deref(), round).await?));
                    continue;
                }
                Ok(Ok(result)) => return Ok((session, result)),
                Ok(Err(error)) if disowns_session(&error) => {
                    let cause: Arc<str> = format!("the server has lost the session: {error}").into();
                    let failure = FailureClass::SessionGone.into();
                    self.shared.lost(session.epoch(), failure, cause.clone());
                    CallFailure { sent: Sent::Refused, failure, cause }
                }
                Ok(Err(error)) => {
                    if matches!(self.target, Target::Tool(_)) && may_mean_unknown(&error) && !session.announces_tools()
                    {
                        session.wire().presume_changes();
                    }
                    let error = ErrorData::new(ErrorCode(code(&error)), error.message, error.data);
                    return Err(CallError::Server { epoch: session.epoch(), error });
                }
                Err(failure) => failure,
            };
            let CallFailure { sent, failure, cause } = failure;
            let (epoch, class) = (session.epoch(), failure.class);
            if class == FailureClass::RateLimited {
                let limited = CallError::RateLimited { epoch, retry_after: failure.retry_after, cause };
                return Err(unknown.unwrap_or(limited));
            }
            let verdict = self.options.replay.verdict(sent, effect, resends, round);
            // Where the session goes on there will be no fresh one: once more on the same.
            let survives = verdict == Verdict::Resend
                && class != FailureClass::SessionGone
                && timeout_at(self.until, session.wire().control().settled()).await.unwrap_or(false);
            match verdict {
                // What this session refuses as it is, it will refuse again.
                Verdict::Resend if survives && (sent == Sent::Refused || resends > 0) => {
                    return Err(unknown.unwrap_or(CallError::NotSent { epoch, class, cause }));
                }
                Verdict::Resend => {
                    tracing::debug!(%epoch, method = self.target.method(), ?sent, "sent again on a fresh session");
                    if sent != Sent::No || survives {
                        resends += 1;
                    }
                    if sent == Sent::Maybe {
                        unknown = Some(CallError::OutcomeUnknown { epoch, class, cause });
                    }
                    want = if survives { Want::Session } else { Want::SessionAfter(epoch) };
                }
                Verdict::NotSent => return Err(unknown.unwrap_or(CallError::NotSent { epoch, class, cause })),
                Verdict::OutcomeUnknown => return Err(CallError::OutcomeUnknown { epoch, class, cause }),
            }
        }
    }

    /// Sends the request on this session and waits for its answer, as long as the caller does.
    async fn ask(
        &mut self,
        session: &Session,
        params: Option<&RawValue>,
    ) -> Result<Result<Answer, CallFailure>, CallError> {
        let sent = Instant::now();
        if sent.saturating_duration_since(session.wire().last_inbound()) > self.shared.keepalive() {
            self.shared.command(Command::Silent);
        }
        let options = RequestOptions { meta: session.meta(), progress: self.target.has_rounds(), ..Default::default() };
        let mut call = session.wire().request(self.target.method(), params, options);
        let progress = call.progress();
        loop {
            tokio::select! {
                biased;
                answer = call.answer() => {
                    if answer.is_ok() && self.shared.snapshot().breaker != (Breaker::Closed { strikes: 0 }) {
                        self.shared.command(Command::Answered);
                    }
                    return Ok(answer);
                }
                () = progress.bumped() => self.until = self.cap.min(deadline(self.options.timeout)),
                () = sleep_until(self.until) => {
                    let epoch = session.epoch();
                    let reached = call.abandon("the caller's deadline passed");
                    let (noted, done) = oneshot::channel();
                    self.shared.command(Command::NoReply { epoch, sent, noted });
                    // What the caller asks next is younger than the ping that this may lead to, and sees the strike.
                    _ = done.await; // an owner that is gone notes nothing
                    return Err(CallError::DeadlineExceeded { epoch, sent: reached });
                }
            }
        }
    }

    /// Lets the client's handler answer what the server asks for, and makes the parameters of the next round.
    async fn next_round(
        &self,
        session: &Session,
        result: &RawValue,
        params: Option<&RawValue>,
        round: u32,
    ) -> Result<Box<RawValue>, CallError> {
        let epoch = session.epoch();
        let unexpected = |cause: String| CallError::UnexpectedAnswer { epoch, cause: cause.into() };
        if round > MAX_ROUNDS {
            return Err(unexpected(format!("the server asked for input {MAX_ROUNDS} times")));
        }
        let asked: InputRequiredResult =
            serde_json::from_str(result.get()).map_err(|error| unexpected(error.to_string()))?;
        if asked.input_requests.is_none() && asked.request_state.is_none() {
            return Err(unexpected("the server asks for input and does not say what for".into()));
        }
        let mut members: serde_json::Map<String, serde_json::Value> = params
            .map_or(Ok(serde_json::Map::new()), |params| serde_json::from_str(params.get()))
            .map_err(CallError::invalid_params)?;
        members.remove("inputResponses");
        members.remove("requestState");
        let requests = asked.input_requests.unwrap_or_default();
        if !requests.is_empty() {
            let answers = timeout_at(self.cap, session.answer_input(requests)).await;
            let answers = answers.map_err(|_| CallError::DeadlineExceeded { epoch, sent: Sent::Maybe })??;
            members.insert("inputResponses".into(), serde_json::Value::Object(answers));
        }
        if let Some(state) = asked.request_state {
            members.insert("requestState".into(), state.into());
        }
        serde_json::value::to_raw_value(&members).map_err(CallError::invalid_params)
    }
}

/// Whether a result is an `input_required` one, without reading it where the word does not occur.
fn asks_for_input(result: &RawValue) -> bool {
    #[derive(serde::Deserialize)]
    struct Kind<'a> {
        #[serde(rename = "resultType", borrow, default)]
        result_type: Cow<'a, str>,
    }
    result.get().contains("\"input_required\"")
        && serde_json::from_str::<Kind<'_>>(result.get()).is_ok_and(|kind| kind.result_type == "input_required")
}

/// Whether an error may say that the tool is not there: by code alone, for the words differ among servers.
fn may_mean_unknown(error: &RpcError) -> bool {
    [ErrorCode::METHOD_NOT_FOUND, ErrorCode::INVALID_PARAMS].map(|code| i64::from(code.0)).contains(&error.code)
}

fn code(error: &RpcError) -> i32 {
    i32::try_from(error.code).unwrap_or(ErrorCode::INTERNAL_ERROR.0)
}

/// Whether an error is the server's session gate speaking: no handler ran, and no later request will fare better on
/// this session.
pub(crate) fn disowns_session(error: &RpcError) -> bool {
    mcp_reconnect_http::classify::is_gate_error(error.code, &error.message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(code: i64, message: &str) -> RpcError {
        RpcError { code, message: message.into(), data: None }
    }

    #[test]
    fn the_gate_speaks_in_whole_sentences() {
        for (code, message) in [
            (-32000, "Bad Request: Server not initialized"),
            (-32000, "Bad Request: No valid session ID provided"),
            (-32001, "Session not found"),
            (-32600, "Session terminated"),
            (32600, "Session terminated."),
        ] {
            assert!(disowns_session(&error(code, message)), "{code} {message}");
        }
    }

    #[test]
    fn a_tools_own_words_about_sessions_are_not_the_gate() {
        for (code, message) in [
            (-32602, "Session not found"),
            (-32000, "browser session not found: tab 3"),
            (-32603, "Server not initialized"),
            (-32000, "database server not initialized yet, call init first"),
        ] {
            assert!(!disowns_session(&error(code, message)), "{code} {message}");
        }
    }

    #[test]
    fn only_the_result_type_asks_for_input() {
        let raw = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
        assert!(asks_for_input(&raw(r#"{"resultType":"input_required","requestState":"x"}"#)));
        assert!(!asks_for_input(&raw(r#"{"content":[{"type":"text","text":"\"input_required\""}]}"#)));
        assert!(!asks_for_input(&raw(r#"{"content":[],"structuredContent":{"a":"input_required"}}"#)));
    }
}
