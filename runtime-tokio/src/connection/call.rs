//! One call, from its caller's deadline to a fresh session and a second sending where that is safe.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use mcp_reconnect_core::replay::{Effect, ReplayDecision, Sent};
use mcp_reconnect_core::{Breaker, Failure, FailureClass, Want};
use rmcp::model::{ErrorCode, ErrorData, Tool};
use serde_json::value::RawValue;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use crate::clock::deadline;
use crate::connection::limit::Permit;
use crate::connection::messages::Command;
use crate::connection::patience::Patience;
use crate::connection::wait::Shared;
use crate::connection::{Event, RawRequest};
use crate::error::CallError;
use crate::options::CallOptions;
use crate::protocol::Era;
use crate::protocol::client::LOG_LEVEL;
use crate::protocol::frame::{Meta, Object, RpcError, empty_result, is_null, member};
use crate::session::Session;
use crate::session::catalogue::list;
use crate::session::doubt::{HEADER_MISMATCH, Order, Verdict};
use crate::wire::asks::{Bound, standing_for};
use crate::wire::progress::Told;
use crate::wire::relay::TakenBack;
use crate::wire::{Answer, Call as Sending, CallFailure, ProgressToken, RequestOptions};

/// How long nothing must have come in for a call that its caller drops to be a reason to ask the server.
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

    /// The tool that is called, if one is.
    fn tool(self, params: Option<&RawValue>) -> Option<Cow<'a, str>> {
        match self {
            Self::Tool(name) => Some(Cow::Borrowed(name)),
            Self::Raw(RawRequest { method: "tools/call", .. }) => params.and_then(tool_of).map(Cow::Owned),
            Self::Method(_) | Self::Raw(_) => None,
        }
    }

    /// The effect of a second run, by the catalogue of the session that is asked.
    fn effect(self, session: &Session) -> Effect {
        match self {
            Self::Tool(name) => session.catalogue().effect(name),
            Self::Raw(RawRequest { method: "tools/call", params, .. }) => {
                session.catalogue().effect(&params.and_then(tool_of).unwrap_or_default())
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

    /// Whether it asks for progress where its caller does not.
    fn wants_progress(self) -> bool {
        !matches!(self, Self::Raw(_)) && self.has_rounds()
    }

    /// The tool or the method, as a name for how long it takes.
    fn name(self, params: Option<&RawValue>) -> Cow<'a, str> {
        match self {
            Self::Tool(name) => Cow::Borrowed(name),
            Self::Raw(RawRequest { method: "tools/call", .. }) => {
                Cow::Owned(params.and_then(tool_of).unwrap_or_default())
            }
            Self::Method(method) | Self::Raw(RawRequest { method, .. }) => Cow::Borrowed(method),
        }
    }

    /// Whether it is answered at its end only, however long that takes.
    fn is_stream(self) -> bool {
        self.method() == "subscriptions/listen"
    }
}

/// What is known of a call from its sendings so far.
struct SoFar {
    want: Want,
    resends: u32,
    round: u32,
    /// The tools were listed for it once more.
    relisted: bool,
    /// What became of an earlier sending that may have run, or of an earlier round.
    unknown: Option<CallError>,
}

/// The outcome of a sending, about which there is no doubt left.
enum Settled {
    Result(Box<RawValue>),
    /// The server's own answer.
    Error(RpcError),
    Failed(Failed),
}

/// A sending that came to no answer.
struct Failed {
    sent: Sent,
    failure: Failure,
    cause: Arc<str>,
    /// Whether the session has ended with it.
    over: bool,
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
    patience: Patience,
    /// The progress that was told so far.
    told: Arc<Told>,
}

impl<'a> Call<'a> {
    pub(crate) fn new(shared: &'a Shared, target: Target<'a>, options: &'a CallOptions) -> Self {
        Self { shared, target, options, taken_back: None, patience: Patience::new(options), told: Arc::default() }
    }

    pub(crate) fn taken_back_with(self, taken_back: &'a TakenBack) -> Self {
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
        let mut so_far = SoFar { want: Want::Session, resends: 0, round: 1, relisted: false, unknown: None };
        loop {
            let session = match self.enter(so_far.want, &mut place).await {
                Ok(session) => session,
                Err(error) => return Err(so_far.unknown.unwrap_or(error)),
            };
            let adapted = match self.target {
                Target::Raw(request) if request.needs_no_server(&session) => return Ok((session, empty_result())),
                Target::Raw(request) => request.adapted(&session, params.as_deref()),
                Target::Tool(_) | Target::Method(_) => None,
            };
            let effect = self.target.effect(&session);
            let replay = self.options.replay;
            let repeatable = replay.decide(Sent::Maybe, effect, so_far.resends, so_far.round) == ReplayDecision::Resend;
            let asked = match self.ask(&session, adapted.as_deref().or(params.as_deref()), repeatable).await {
                Ok(asked) => asked,
                // The outcome of this sending says nothing of the one before.
                Err(error) if error.not_run() => return Err(so_far.unknown.unwrap_or(error)),
                Err(error) => return Err(error),
            };
            match self.settle(&session, params.as_deref(), asked, repeatable).await {
                Settled::Result(result) if self.target.has_rounds() && asks_for_input(&result) => {
                    so_far.round += 1;
                    let next = self.next_round(&session, &result, params.as_deref(), so_far.round).await?;
                    params = Some(Cow::Owned(next));
                    // It ran in part, even if the answer never reaches the server.
                    let cause = "the server had begun it, and asked for input".into();
                    let (epoch, class) = (session.epoch(), FailureClass::Transport);
                    so_far.unknown = Some(CallError::OutcomeUnknown { epoch, class, cause });
                }
                Settled::Result(result) => return Ok((session, result)),
                Settled::Error(error) if error.code == HEADER_MISMATCH && !so_far.relisted => {
                    so_far.relisted = true;
                    self.list_again(&session).await;
                }
                Settled::Error(error) => return Err(self.server_error(&session, error)),
                Settled::Failed(failed) => self.send_again(&session, effect, failed, &mut so_far)?,
            }
        }
    }

    /// A session that the request may go to, and a place among those in flight.
    async fn enter(&self, want: Want, place: &mut Option<Permit>) -> Result<Arc<Session>, CallError> {
        let wait_until = self.patience.until().min(deadline(self.options.max_wait));
        let session = self.shared.acquire(want, wait_until).await?;
        // A place is for what the server gets: a call that waits for a session keeps no other from it.
        if place.is_none() {
            let entered = timeout_at(self.patience.until(), self.shared.in_flight.enter()).await;
            *place = Some(entered.map_err(|_| CallError::Busy)?);
        }
        match self.target {
            Target::Tool(tool) if !session.catalogue().offers(tool) => {
                Err(CallError::NotOffered { epoch: session.epoch(), tool: tool.into() })
            }
            Target::Tool(_) | Target::Method(_) | Target::Raw(_) => Ok(session),
        }
    }

    /// Settles the doubt about an answer, if there is any: the session is asked, for as long as the caller waits.
    async fn settle(
        &self,
        session: &Arc<Session>,
        params: Option<&RawValue>,
        answer: Result<Answer, CallFailure>,
        repeatable: bool,
    ) -> Settled {
        let asker = session.asker();
        let (doubt, order) = asker.hear(self.target.method(), self.target.tool(params).as_deref(), &answer);
        let asked = match &doubt {
            Some(doubt) => asker.settle(doubt, self.patience.until()).await,
            None => Verdict::Well,
        };
        let rebuilt = match order.filter(|_| matches!(asked, Verdict::Well | Verdict::Silent)) {
            Some(Order::Rebuild(cause)) => asker.rebuild(cause),
            Some(Order::Suspect(code)) if asker.spend() => {
                self.shared.command(Command::Tell(Event::Suspect { code }));
                false
            }
            Some(Order::Suspect(_)) | None => false,
        };
        let gone = matches!(asked, Verdict::Gone(_));
        let over = gone || rebuilt || matches!(asked, Verdict::Lost | Verdict::Ended);
        let never_ran = doubt.is_some_and(|doubt| doubt.never_ran(&asked));
        match answer {
            // An error as a result (`isError`), of a session that is gone.
            Ok(Ok(_)) if gone && repeatable => {
                let cause = "the server has lost the session".into();
                Settled::Failed(Failed { sent: Sent::Maybe, failure: FailureClass::SessionGone.into(), cause, over })
            }
            Ok(Ok(result)) => Settled::Result(result),
            Ok(Err(error)) if !gone => Settled::Error(error),
            Ok(Err(error)) => {
                let sent = if never_ran { Sent::Refused } else { Sent::Maybe };
                let cause = format!("the server has lost the session: {error}").into();
                Settled::Failed(Failed { sent, failure: FailureClass::SessionGone.into(), cause, over })
            }
            Err(CallFailure { sent, failure, cause, doubt }) => {
                let over = over || doubt.is_none() && !session.wire().control().survives();
                let failure = if gone { FailureClass::SessionGone.into() } else { failure };
                let sent = if never_ran { Sent::Refused } else { sent };
                Settled::Failed(Failed { sent, failure, cause, over })
            }
        }
    }

    /// Notes in `so_far` that the request goes out once more, on this session or a fresh one.
    ///
    /// # Errors
    ///
    /// What its caller is told where it does not.
    fn send_again(
        &self,
        session: &Session,
        effect: Effect,
        Failed { sent, failure, cause, over }: Failed,
        so_far: &mut SoFar,
    ) -> Result<(), CallError> {
        let (epoch, class) = (session.epoch(), failure.class);
        if class == FailureClass::RateLimited {
            let bound = self.shared.tuning().config.retry_after_max();
            let retry_after = failure.retry_after.map(|after| after.min(bound));
            let limited = CallError::RateLimited { epoch, retry_after, cause };
            return Err(so_far.unknown.take().unwrap_or(limited));
        }
        let mut decision = self.options.replay.decide(sent, effect, so_far.resends, so_far.round);
        if decision == ReplayDecision::Resend && !over {
            // A session that goes on will refuse again what it has refused as it is; and its caller may have no time left.
            let in_vain = sent == Sent::Refused || so_far.resends > 0 || Instant::now() >= self.patience.until();
            decision = match sent {
                _ if !in_vain => ReplayDecision::Resend,
                Sent::Maybe => ReplayDecision::OutcomeUnknown,
                Sent::No | Sent::Refused => ReplayDecision::NotSent,
            };
        }
        match decision {
            ReplayDecision::Resend => {}
            ReplayDecision::NotSent => {
                return Err(so_far.unknown.take().unwrap_or(CallError::NotSent { epoch, class, cause }));
            }
            ReplayDecision::OutcomeUnknown => return Err(CallError::OutcomeUnknown { epoch, class, cause }),
        }
        let on = if over { "a fresh session" } else { "the same session" };
        tracing::debug!(%epoch, method = self.target.method(), ?sent, "sent again on {on}");
        if sent != Sent::No || !over {
            so_far.resends += 1;
        }
        if sent == Sent::Maybe {
            so_far.unknown = Some(CallError::OutcomeUnknown { epoch, class, cause });
        }
        so_far.want = if over { Want::SessionAfter(epoch) } else { Want::Session };
        Ok(())
    }

    /// Lists the tools once: the headers that their arguments are wanted in may have changed.
    async fn list_again(&self, session: &Session) {
        drop(timeout_at(self.patience.until(), list::<Tool>(session.wire(), session.established())).await);
        session.wire().presume_changes();
    }

    fn server_error(&self, session: &Session, error: RpcError) -> CallError {
        if matches!(self.target, Target::Tool(_)) && may_mean_unknown(&error) && !session.announces_tools() {
            session.wire().presume_changes();
        }
        let (epoch, json) = (session.epoch(), error.json);
        let error = ErrorData::new(ErrorCode(i32_code(error.code)), error.message, error.data);
        CallError::Server { epoch, error, json }
    }

    /// Sends the request on this session and waits for its answer, as long as the caller does.
    async fn ask(
        &mut self,
        session: &Session,
        params: Option<&RawValue>,
        repeatable: bool,
    ) -> Result<Result<Answer, CallFailure>, CallError> {
        self.shared.notice_suspend().await;
        let (sent, name) = (Instant::now(), self.target.name(params));
        let hung_after = self.options.hung_after.filter(|_| repeatable);
        let hung_after = hung_after.and_then(|after| self.shared.durations.hung_after(&name, after));
        let meta = self.meta(session);
        let token = params.and_then(progress_token);
        let options = RequestOptions {
            meta: &meta,
            progress: match &token {
                Some(token) => ProgressToken::Callers(token),
                None if self.target.wants_progress() => ProgressToken::Own,
                None => ProgressToken::None,
            },
            uncounted: self.target.is_stream(),
            held: true,
            counts_until: hung_after.map(|after| sent + after),
            told: token.is_some().then_some(&self.told),
            still: Some(self.patience.still()),
            ..Default::default()
        };
        let mut call = session.wire().request(self.target.method(), params, options);
        if let Some(taken_back) = self.taken_back {
            call.taken_back_with(taken_back);
        }
        let progress = call.progress();
        let mut dropped = Dropped { shared: self.shared, session, sent, armed: !self.target.is_stream() };
        let answer = loop {
            tokio::select! {
                biased;
                answer = call.answer() => break answer,
                () = progress.bumped() => self.patience.renew(),
                () = self.patience.over(), if !self.target.is_stream() => {
                    dropped.armed = false;
                    return Err(self.not_in_time(session, call, sent).await);
                }
            }
        };
        dropped.armed = false;
        match (&answer, hung_after) {
            (Ok(_), _) => {
                self.shared.durations.answered(&name, sent.elapsed());
                if self.shared.snapshot().breaker != (Breaker::Closed { strikes: 0 }) {
                    self.shared.command(Command::Answered);
                }
                progress.told().await;
            }
            (Err(failure), Some(after))
                if failure.failure.class == FailureClass::Unresponsive && sent.elapsed() >= after =>
            {
                self.shared.durations.given_up(&name, after);
            }
            (Err(_), _) => {}
        }
        Ok(answer)
    }

    /// The caller's deadline has passed.
    async fn not_in_time(&self, session: &Session, call: Sending, sent: Instant) -> CallError {
        let epoch = session.epoch();
        let reached = call.abandon("the caller's deadline passed");
        let (noted, done) = oneshot::channel();
        self.shared.command(Command::NoReply { epoch, sent, noted });
        // The caller's next request is younger than the ping that this may lead to, and sees the strike.
        _ = done.await; // an owner that is gone notes nothing
        CallError::DeadlineExceeded { epoch, sent: reached }
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
            // The user has time for it: the deadline stands still.
            let bounds = requests.0.iter().filter_map(|(_, request)| method_of(request).and_then(standing_for));
            let _standing = bounds.reduce(Bound::longer).map(|bound| self.patience.still().stand(bound));
            let answers = tokio::select! {
                biased;
                answers = session.answer_input(requests) => answers?,
                () = self.patience.over() => return Err(CallError::DeadlineExceeded { epoch, sent: Sent::Maybe }),
            };
            push("inputResponses", &serde_json::to_string(&answers).map_err(CallError::invalid_params)?);
        }
        if let Some(state) = state {
            push("requestState", state.get());
        }
        text.push('}');
        RawValue::from_string(text).map_err(CallError::invalid_params)
    }
}

/// A call that its caller stops waiting for: after a silence that is a reason to ask the server for a sign of life.
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
            self.shared.command(Command::Silence { epoch: self.session.epoch(), sent: self.sent });
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
    member(&meta, "progressToken").filter(|token| !is_null(token)).map(ToOwned::to_owned)
}

/// The method of a request that stands in an `input_required` result.
fn method_of(request: &RawValue) -> Option<&str> {
    let Object(members) = serde_json::from_str(request.get()).ok()?;
    serde_json::from_str(member(&members, "method")?.get()).ok()
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
