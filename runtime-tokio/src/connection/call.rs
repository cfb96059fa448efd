//! One call, from its caller's deadline to a fresh session and a second sending where that is safe.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use mcp_reconnect_core::replay::{Effect, ReplayDecision, Sent};
use mcp_reconnect_core::{Breaker, FailureClass, Want};
use rmcp::model::{ErrorCode, ErrorData};
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::clock::deadline;
use crate::connection::RawRequest;
use crate::connection::messages::Command;
use crate::connection::wait::Shared;
use crate::error::CallError;
use crate::options::CallOptions;
use crate::protocol::Era;
use crate::protocol::client::LOG_LEVEL;
use crate::protocol::frame::{Meta, Object, RpcError, empty_result, is_null, member};
use crate::session::{Session, disowns_session};
use crate::wire::relay::TakenBack;
use crate::wire::{Answer, CallFailure, ProgressToken, RequestOptions};

/// How long nothing must have come in for a call that its caller drops to count as one without a reply.
const SILENCE: Duration = Duration::from_secs(5);
/// How many `input_required` rounds one call may take (what the other SDKs allow).
const MAX_ROUNDS: u32 = 10;

/// The subject of a call, apart from its parameters.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target<'a> {
    /// A tool, which the session must offer.
    Tool(&'a str),
    /// Another method of the protocol.
    Method(&'a str),
    /// Any request of a relay's client.
    Raw(RawRequest<'a>),
}

impl<'a> Target<'a> {
    const fn method(self) -> &'a str {
        match self {
            Self::Tool(_) => "tools/call",
            Self::Method(method) | Self::Raw(RawRequest { method, .. }) => method,
        }
    }

    /// The effect of a second run, by the catalogue of the session that is asked.
    fn effect(self, session: &Session) -> Effect {
        match self {
            Self::Tool(name) => session.effect(name),
            Self::Raw(RawRequest { method: "tools/call", params, .. }) => {
                session.effect(&params.and_then(tool_of).unwrap_or_default())
            }
            Self::Method(method) | Self::Raw(RawRequest { method, .. }) => match method {
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

    /// Whether a server may ask for input instead of answering, and it is for us to give it: a modern client goes
    /// through the rounds by itself.
    fn has_rounds(self) -> bool {
        !matches!(self, Self::Raw(RawRequest { era: Era::Modern, .. }))
            && matches!(self.method(), "tools/call" | "prompts/get" | "resources/read")
    }

    /// Whether it is answered at its end only, however long that takes.
    fn is_stream(self) -> bool {
        self.method() == "subscriptions/listen"
    }
}

/// The name of the tool that is called.
fn tool_of(params: &RawValue) -> Option<String> {
    #[derive(serde::Deserialize)]
    struct Named {
        name: String,
    }
    serde_json::from_str::<Named>(params.get()).ok().map(|named| named.name)
}

/// A call under way.
pub(crate) struct Call<'a> {
    shared: &'a Shared,
    target: Target<'a>,
    options: &'a CallOptions,
    /// The words that the server is told when the call is dropped.
    taken_back: Option<&'a TakenBack>,
    /// The end, unless progress puts it off.
    until: Instant,
    /// The end, whatever happens.
    cap: Instant,
}

impl<'a> Call<'a> {
    pub(crate) fn new(shared: &'a Shared, target: Target<'a>, options: &'a CallOptions) -> Self {
        let cap = deadline(options.max_timeout.unwrap_or_else(|| options.timeout.saturating_mul(10)));
        let until = cap.min(deadline(options.timeout));
        Self { shared, target, options, taken_back: None, until, cap }
    }

    pub(crate) const fn taken_back_with(self, taken_back: &'a TakenBack) -> Self {
        Self { taken_back: Some(taken_back), ..self }
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
        // The outcome of an earlier sending that may have run, or of an earlier round.
        let mut unknown = None;
        loop {
            let wait_until = self.until.min(deadline(self.options.max_wait));
            let session = match self.shared.acquire(want, wait_until).await {
                Ok(session) => session,
                Err(error) => return Err(unknown.unwrap_or(error)),
            };
            // A place is for calls at the server: one that waits for a session takes none.
            if place.is_none() {
                let entered = timeout_at(self.until, self.shared.in_flight.enter()).await;
                place = Some(entered.map_err(|_| CallError::Busy)?);
            }
            if let Target::Tool(tool) = self.target
                && !session.offers(tool, self.until).await
            {
                let not_offered = CallError::NotOffered { epoch: session.epoch(), tool: tool.into() };
                return Err(unknown.unwrap_or(not_offered));
            }
            let effect = self.target.effect(&session);
            let adapted = match self.target {
                Target::Raw(request) if request.needs_no_server(&session) => return Ok((session, empty_result())),
                Target::Raw(request) => request.adapted(&session, params.as_deref()),
                Target::Tool(_) | Target::Method(_) => None,
            };
            let repeatable = self.options.replay.decide(Sent::Maybe, effect, resends, round) == ReplayDecision::Resend;
            let asked = match self.ask(&session, adapted.as_deref().or(params.as_deref()), repeatable).await {
                Ok(asked) => asked,
                // The outcome of this sending says nothing of the one before.
                Err(error) if error.not_run() => return Err(unknown.unwrap_or(error)),
                Err(error) => return Err(error),
            };
            let failure = match asked {
                Ok(Ok(result)) if self.target.has_rounds() && asks_for_input(&result) => {
                    round += 1;
                    params = Some(Cow::Owned(self.next_round(&session, &result, params.as_deref(), round).await?));
                    // It ran in part, even if the answer never reaches the server.
                    let cause = "the server had begun it, and asked for input".into();
                    let (epoch, class) = (session.epoch(), FailureClass::Transport);
                    unknown = Some(CallError::OutcomeUnknown { epoch, class, cause });
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
                    if matches!(self.target, Target::Tool(_)) && may_mean_unknown(&error) {
                        session.doubt_tools();
                    }
                    let (epoch, json) = (session.epoch(), error.json);
                    let error = ErrorData::new(ErrorCode(i32_code(error.code)), error.message, error.data);
                    return Err(CallError::Server { epoch, error, json });
                }
                Err(failure) => failure,
            };
            let CallFailure { sent, failure, cause } = failure;
            let (epoch, class) = (session.epoch(), failure.class);
            if class == FailureClass::RateLimited {
                let limited = CallError::RateLimited { epoch, retry_after: failure.retry_after, cause };
                return Err(unknown.unwrap_or(limited));
            }
            let verdict = self.options.replay.decide(sent, effect, resends, round);
            // Where the session goes on there will be no fresh one: once more on the same.
            let survives = verdict == ReplayDecision::Resend
                && class != FailureClass::SessionGone
                && timeout_at(self.until, session.wire().control().settled()).await.unwrap_or(false);
            match verdict {
                // A request that this session refuses as it is, it will refuse again.
                ReplayDecision::Resend if survives && (sent == Sent::Refused || resends > 0) => {
                    return Err(unknown.unwrap_or(CallError::NotSent { epoch, class, cause }));
                }
                ReplayDecision::Resend => {
                    tracing::debug!(%epoch, method = self.target.method(), ?sent, "sent again on a fresh session");
                    if sent != Sent::No || survives {
                        resends += 1;
                    }
                    if sent == Sent::Maybe {
                        unknown = Some(CallError::OutcomeUnknown { epoch, class, cause });
                    }
                    want = if survives { Want::Session } else { Want::SessionAfter(epoch) };
                }
                ReplayDecision::NotSent => return Err(unknown.unwrap_or(CallError::NotSent { epoch, class, cause })),
                ReplayDecision::OutcomeUnknown => return Err(CallError::OutcomeUnknown { epoch, class, cause }),
            }
        }
    }

    /// Sends the request on this session and waits for its answer, as long as the caller does.
    async fn ask(
        &mut self,
        session: &Session,
        params: Option<&RawValue>,
        repeatable: bool,
    ) -> Result<Result<Answer, CallFailure>, CallError> {
        let sent = Instant::now();
        if sent.saturating_duration_since(session.wire().last_inbound()) > self.shared.keepalive() {
            self.shared.command(Command::Silent);
        }
        let meta = self.meta(session);
        let token = params.filter(|_| matches!(self.target, Target::Raw(_))).and_then(progress_token);
        let options = RequestOptions {
            meta: &meta,
            progress: match (self.target, &token) {
                (Target::Raw(_), Some(token)) => ProgressToken::Callers(token),
                (Target::Raw(_), None) => ProgressToken::None,
                (Target::Tool(_) | Target::Method(_), _) if self.target.has_rounds() => ProgressToken::Own,
                (Target::Tool(_) | Target::Method(_), _) => ProgressToken::None,
            },
            uncounted: self.target.is_stream(),
            counts_until: self.options.hung_after.filter(|_| repeatable).map(|after| sent + after),
            ..Default::default()
        };
        let mut call = session.wire().request(self.target.method(), params, options);
        if let Some(taken_back) = self.taken_back {
            call.taken_back_with(taken_back);
        }
        let progress = call.progress();
        let mut dropped = Dropped { shared: self.shared, session, sent, armed: !self.target.is_stream() };
        loop {
            tokio::select! {
                biased;
                answer = call.answer() => {
                    dropped.armed = false;
                    if answer.is_ok() && self.shared.snapshot().breaker != (Breaker::Closed { strikes: 0 }) {
                        self.shared.command(Command::Answered);
                    }
                    return Ok(answer);
                }
                () = progress.bumped() => self.until = self.cap.min(deadline(self.options.timeout)),
                () = sleep_until(self.until), if !self.target.is_stream() => {
                    dropped.armed = false;
                    let epoch = session.epoch();
                    let reached = call.abandon("the caller's deadline passed");
                    let (noted, done) = oneshot::channel();
                    self.shared.command(Command::NoReply { epoch, sent, noted });
                    // The caller's next request is younger than the ping that this may lead to, and sees the strike.
                    _ = done.await; // an owner that is gone notes nothing
                    return Err(CallError::DeadlineExceeded { epoch, sent: reached });
                }
            }
        }
    }

    /// The `_meta` members that the session wants beside the caller's own: a modern one knows no other way to be told
    /// the log level.
    fn meta<'s>(&self, session: &'s Session) -> Cow<'s, Meta> {
        let own = session.meta();
        if own.is_empty() || matches!(self.target, Target::Raw(RawRequest { era: Era::Modern, .. })) {
            return Cow::Borrowed(&[]);
        }
        let level = self.shared.spec.wanted.look(|wanted| wanted.log_level);
        match level.and_then(|level| serde_json::value::to_raw_value(&level).ok()) {
            Some(level) => Cow::Owned(own.iter().cloned().chain([(LOG_LEVEL.into(), level)]).collect()),
            None => Cow::Borrowed(own),
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
        let asked: Object<'_> = serde_json::from_str(result.get()).map_err(|error| unexpected(error.to_string()))?;
        let present = |name| member(&asked.0, name).filter(|value| !is_null(value));
        let (requests, state) = (present("inputRequests"), present("requestState"));
        if requests.is_none() && state.is_none() {
            return Err(unexpected("the server asks for input and does not say what for".into()));
        }
        let requests: Object<'_> = requests
            .map_or(Ok(Object::default()), |requests| serde_json::from_str(requests.get()))
            .map_err(|error| unexpected(format!("inputRequests: {error}")))?;
        let mut text = String::from("{");
        let mut push = |name: &str, value: &str| {
            let comma = if text.len() > 1 { "," } else { "" };
            text.push_str(&format!("{comma}{}:{value}", serde_json::Value::from(name)));
        };
        let Object(own) = params
            .map_or(Ok(Object::default()), |params| serde_json::from_str(params.get()))
            .map_err(CallError::invalid_params)?;
        for (name, value) in own.iter().filter(|(name, _)| !["inputResponses", "requestState"].contains(&&**name)) {
            push(name, value.get());
        }
        if !requests.0.is_empty() {
            let answers = timeout_at(self.cap, session.answer_input(requests)).await;
            let answers = answers.map_err(|_| CallError::DeadlineExceeded { epoch, sent: Sent::Maybe })??;
            push("inputResponses", &serde_json::to_string(&answers).map_err(CallError::invalid_params)?);
        }
        if let Some(state) = state {
            push("requestState", state.get());
        }
        text.push('}');
        RawValue::from_string(text).map_err(CallError::invalid_params)
    }
}

/// A call that its caller stopped waiting for after a silence is one without a reply, as one whose deadline passed.
struct Dropped<'a> {
    shared: &'a Shared,
    session: &'a Session,
    sent: Instant,
    armed: bool,
}

impl Drop for Dropped<'_> {
    fn drop(&mut self) {
        let silent = self.session.wire().last_inbound() <= self.sent && self.sent.elapsed() >= SILENCE;
        if self.armed && silent {
            let (noted, _) = oneshot::channel();
            self.shared.command(Command::NoReply { epoch: self.session.epoch(), sent: self.sent, noted });
        }
    }
}

/// The progress token that a caller has put into its parameters.
fn progress_token(params: &RawValue) -> Option<Box<RawValue>> {
    if !params.get().contains("\"progressToken\"") {
        return None;
    }
    let Object(members) = serde_json::from_str(params.get()).ok()?;
    let Object(meta) = serde_json::from_str(member(&members, "_meta")?.get()).ok()?;
    member(&meta, "progressToken").map(ToOwned::to_owned)
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

fn i32_code(code: i64) -> i32 {
    i32::try_from(code).unwrap_or(ErrorCode::INTERNAL_ERROR.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_result_type_asks_for_input() {
        let raw = |text: &str| RawValue::from_string(text.to_owned()).unwrap();
        assert!(asks_for_input(&raw(r#"{"resultType":"input_required","requestState":"x"}"#)));
        assert!(!asks_for_input(&raw(r#"{"content":[{"type":"text","text":"\"input_required\""}]}"#)));
        assert!(!asks_for_input(&raw(r#"{"content":[],"structuredContent":{"a":"input_required"}}"#)));
    }
}
