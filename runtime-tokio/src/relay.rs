//! The raw view of a connection: what a server asks and tells goes to a [`Relay`] as it came, and any request can be
//! sent as it is. Nothing is read as a type, so nothing that a type does not know is lost.

use std::sync::{Arc, OnceLock};

use async_trait::async_trait;
use mcp_reconnect_core::Epoch;
use serde_json::value::RawValue;

use crate::call::{Performance, Target};
use crate::client::{CLIENT_CAPABILITIES, CLIENT_INFO, LOG_LEVEL, PROTOCOL_VERSION};
pub use crate::client::{Client, NoClient};
use crate::connection::Connection;
use crate::era::Era;
use crate::error::CallError;
use crate::frame::{self, Object, member, set_member, with_first};
use crate::options::CallOptions;
use crate::session::Session;

/// Takes a server's own messages as they come, in the place of a typed handler.
#[async_trait]
pub trait Relay: Send + Sync + 'static {
    /// The server asks for this; the answer goes to the session that asked, a result or an error as it is. `ping` is
    /// not among it.
    ///
    /// Dropped when the server takes the request back, or its session ends.
    ///
    /// # Errors
    ///
    /// The `error` member of the answer.
    async fn ask(&self, ask: Ask<'_>) -> Result<Box<RawValue>, Box<RawValue>>;

    /// The server tells this. Must not wait.
    fn told(&self, epoch: Epoch, method: &str, params: Option<&RawValue>);
}

/// A request of a server.
#[derive(Clone, Copy, Debug)]
pub struct Ask<'a> {
    /// The session that asks.
    pub epoch: Epoch,
    /// What it asks for.
    pub method: &'a str,
    /// The parameters as they came.
    pub params: Option<&'a RawValue>,
    /// Whether it is the input that an `input_required` result asks for, and not a request of its own.
    pub input: bool,
    /// What the server says when it takes the request back, which is before the request is dropped.
    pub taken_back: &'a TakenBack,
}

/// What is said when a request is taken back: the parameters of `notifications/cancelled`.
#[derive(Clone, Debug, Default)]
pub struct TakenBack(Arc<OnceLock<Box<RawValue>>>);

impl TakenBack {
    /// Says it; heard once.
    pub(crate) fn say(&self, params: Option<&RawValue>) {
        if let Some(params) = params {
            self.0.get_or_init(|| params.to_owned());
        }
    }

    /// The notification for a side that knows the request under this id; `reason` where nothing was said.
    pub(crate) fn notification(&self, id: u64, reason: &str) -> Box<str> {
        let said = self.0.get().and_then(|params| set_member(params, "requestId", &id.to_string()));
        let params = match &said {
            Some(said) => said.get().to_owned(),
            None => serde_json::json!({ "requestId": id, "reason": reason }).to_string(),
        };
        frame::notification("notifications/cancelled", Some(&params))
    }

    /// Whether both are of the same request.
    #[cfg(feature = "front")]
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// A request to be sent as it is.
#[derive(Clone, Copy, Debug)]
pub struct RawRequest<'a> {
    /// The method.
    pub method: &'a str,
    /// The parameters.
    pub params: Option<&'a RawValue>,
    /// The era that they are written for. For a session of the other one `_meta` is adapted: the client's context is added,
    /// or taken out. A result of a legacy server gets what a modern client insists on (`resultType`; `ttlMs` and
    /// `cacheScope` where they belong). Nothing else is touched.
    pub era: Era,
}

impl<'a> RawRequest<'a> {
    /// Whether a server of the session's era knows no such request: it is answered with an empty result, and what it
    /// says is [kept](crate::spec::Wanted::keep).
    pub(crate) fn needs_no_server(&self, session: &Session) -> bool {
        self.era == Era::Legacy
            && !session.server().protocol_version.has_initialize()
            && ["ping", "logging/setLevel", "resources/subscribe", "resources/unsubscribe"].contains(&self.method)
    }

    /// The parameters as this session knows them, where they are written otherwise.
    pub(crate) fn adapted(&self, session: &Session, params: Option<&RawValue>) -> Option<Box<RawValue>> {
        params.filter(|_| self.is_modern_before_legacy(session)).and_then(without_context)
    }

    /// The result as the client knows it.
    fn result(&self, session: &Session, result: Box<RawValue>) -> Box<RawValue> {
        let completed = if self.is_modern_before_legacy(session) { completed(self.method, &result) } else { None };
        completed.unwrap_or(result)
    }

    fn is_modern_before_legacy(&self, session: &Session) -> bool {
        self.era == Era::Modern && session.server().protocol_version.has_initialize()
    }
}

/// What a modern client wants to find in a result: its kind, and how long it may be kept.
const KIND: (&str, &str) = ("resultType", "\"complete\"");
const KEPT: [(&str, &str); 2] = [("ttlMs", "0"), ("cacheScope", "\"private\"")];
/// The requests whose results say how long they may be kept.
const CACHEABLE: [&str; 5] =
    ["tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read"];

/// A result with the members that only modern servers write, before its own; `None` where it has them.
fn completed(method: &str, result: &RawValue) -> Option<Box<RawValue>> {
    let Object(members) = serde_json::from_str(result.get()).ok()?;
    let kept = KEPT.into_iter().filter(|_| CACHEABLE.contains(&method));
    let missing: Vec<_> = kept.chain([KIND]).filter(|(name, _)| member(&members, name).is_none()).collect();
    if missing.is_empty() {
        return None;
    }
    let add = |text: String, (name, value): (&str, &str)| with_first(&text, name, value);
    RawValue::from_string(missing.into_iter().fold(result.get().to_owned(), add)).ok()
}

/// Parameters without the context that modern clients put into `_meta`; `None` where there is none of it.
fn without_context(params: &RawValue) -> Option<Box<RawValue>> {
    const CONTEXT: [&str; 4] = [PROTOCOL_VERSION, CLIENT_INFO, CLIENT_CAPABILITIES, LOG_LEVEL];
    let Object(members) = serde_json::from_str(params.get()).ok()?;
    let Object(meta) = serde_json::from_str(member(&members, "_meta")?.get()).ok()?;
    let kept: Vec<_> = meta.iter().filter(|(name, _)| !CONTEXT.contains(&&**name)).collect();
    if kept.len() == meta.len() {
        return None;
    }
    let kept = kept.into_iter().map(|(name, value)| format!("{}:{}", serde_json::Value::from(&**name), value.get()));
    set_member(params, "_meta", &format!("{{{}}}", kept.collect::<Vec<_>>().join(",")))
}

impl Connection {
    /// Sends any request as it is: the session that answered, and the `result` as it came.
    ///
    /// Waits for a session where there is none. What may be sent again goes by the method, for a tool by its
    /// annotations. For a legacy client the rounds of an `input_required` result are gone through with the
    /// [`Relay`], as with a typed handler. A log level and subscriptions are set up again in later sessions.
    ///
    /// # Errors
    ///
    /// See [`CallError`]; the error of [`CallError::Server`] has its text.
    pub async fn request_raw(
        &self,
        request: RawRequest<'_>,
        options: &CallOptions,
    ) -> Result<(Arc<Session>, Box<RawValue>), CallError> {
        self.request_raw_until(request, options, &TakenBack::default()).await
    }

    /// The same; when it is dropped the server is told what was said with `taken_back`.
    pub(crate) async fn request_raw_until(
        &self,
        request: RawRequest<'_>,
        options: &CallOptions,
        taken_back: &TakenBack,
    ) -> Result<(Arc<Session>, Box<RawValue>), CallError> {
        let performance = Performance::new(&self.0, Target::Raw(request), options).taken_back_with(taken_back);
        let (session, result) = performance.run(request.params).await?;
        if let Some(params) = request.params {
            self.set_later(request.method, params);
        }
        let result = request.result(&session, result);
        Ok((session, result))
    }

    /// Takes what a request sets up for the sessions to come.
    pub(crate) fn set_later(&self, method: &str, params: &RawValue) {
        self.0.spec.wanted.update(|wanted| wanted.keep(method, params));
    }

    /// Sends a notification as it is to the session that is there; without one it is dropped.
    ///
    /// It has its place among what is sent when this returns; the future resolves when it is written (stdio) or accepted
    /// (HTTP), or lost, and gives up what was not begun when it is dropped.
    pub fn notify_raw(
        &self,
        method: &str,
        params: Option<&RawValue>,
    ) -> impl Future<Output = ()> + Send + 'static + use<> {
        let session = self.0.published.borrow().session.clone();
        let sent = session.map(|session| {
            let sending = session.wire().send(frame::notification(method, params.map(RawValue::get)));
            (session, sending)
        });
        async move {
            if let Some((session, sending)) = sent
                && let Err(failure) = sending.await
            {
                tracing::debug!(epoch = %session.epoch(), cause = %failure.cause, "a notification was lost");
            }
        }
    }
}
