//! Reads what the host says and sees to it that each request is answered once.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use async_trait::async_trait;
use mcp_reconnect_core::Epoch;
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use super::FrontOptions;
use super::asks::{Answer, Asks};
use super::changes::Changes;
use super::greet::Greeting;
use super::outbox::Outbox;
use super::streams::Streams;
use crate::builder::Builder;
use crate::client::{Client, PROTOCOL_VERSION};
use crate::connection::Connection;
use crate::era::{Era, EraFacts};
use crate::frame::{self, Frame, Object, excerpt, member};
use crate::relay::{Ask, Relay};

pub(super) const INVALID_REQUEST: i32 = -32_600;
pub(super) const METHOD_NOT_FOUND: i32 = -32_601;
const PARSE_ERROR: i32 = -32_700;
/// How many requests of the host may be open; one more is refused.
const MAX_OPEN: usize = 4_096;

/// What the parts of a host's session share.
pub(super) struct Session {
    pub(super) options: FrontOptions,
    pub(super) outbox: Outbox,
    pub(super) asks: Asks,
    pub(super) changes: Changes,
    pub(super) streams: Streams,
    /// Since the host's first message.
    upstream: OnceLock<Upstream>,
    /// The host's requests under way, by their ids as it wrote them.
    open: Mutex<BTreeMap<Box<str>, AbortHandle>>,
    /// What an earlier run was told by the server.
    cached: OnceLock<Greeting>,
    tasks: TaskTracker,
}

/// What the host's first message has begun.
pub(super) struct Upstream {
    pub(super) connection: Connection,
    /// The host's era.
    pub(super) era: Era,
    /// The version that a legacy host asked for.
    pub(super) version: Box<str>,
}

impl Session {
    /// Serves the host until it has said all, or is told to stop; then nothing of the server is left.
    pub(super) async fn run(
        builder: Builder,
        options: FrontOptions,
        mut said: mpsc::Receiver<Box<str>>,
        told: mpsc::Sender<Box<str>>,
        stop: CancellationToken,
    ) {
        let host_gone = told.clone();
        let (outbox, carry) = Outbox::new(told);
        let tasks = TaskTracker::new();
        tasks.spawn(carry);
        let session = Arc::new(Self {
            asks: Asks::new(outbox.clone()),
            outbox,
            options,
            changes: Changes::default(),
            streams: Streams::default(),
            upstream: OnceLock::new(),
            open: Mutex::default(),
            cached: OnceLock::new(),
            tasks: tasks.clone(),
        });
        let mut builder = Some(builder);
        loop {
            let frame = tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = host_gone.closed() => break,
                frame = said.recv() => frame,
            };
            let Some(frame) = frame else { break };
            session.take(&frame, &mut builder).await;
        }
        drop(host_gone);
        session.end().await;
        drop(session);
        tasks.close();
        tasks.wait().await;
    }

    /// What the host's first message began.
    ///
    /// Nothing that needs it runs before.
    pub(super) fn upstream(&self) -> Option<&Upstream> {
        self.upstream.get()
    }

    pub(super) fn cached(&self) -> Option<&Greeting> {
        self.cached.get()
    }

    pub(super) fn remember(&self, greeting: Greeting) {
        drop(self.cached.set(greeting)); // read once
    }

    /// A task of the session.
    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) -> AbortHandle {
        self.tasks.spawn(task.in_current_span()).abort_handle()
    }

    /// Answers a request of the host.
    pub(super) async fn answer(&self, id: &RawValue, answer: &Answer) {
        let frame = match answer {
            Ok(result) => frame::result(id, result.get()),
            Err(error) => frame::error_raw(id, error.get()),
        };
        self.outbox.owe(frame).await;
    }

    async fn refuse(&self, id: &RawValue, code: i32, why: &str) {
        self.outbox.owe(frame::error(id, code, why)).await;
    }

    async fn take(self: &Arc<Self>, text: &str, builder: &mut Option<Builder>) {
        match Frame::parse(text) {
            Frame::Response { id, outcome } => {
                self.asks.answer(id, outcome.map(ToOwned::to_owned).map_err(ToOwned::to_owned));
            }
            Frame::Notification { method, params } => self.note(&method, params).await,
            Frame::Request { id, method } => {
                let params = params_of(text);
                if method == "ping" {
                    return self.outbox.owe(frame::result(id, "{}")).await;
                }
                if self.upstream().is_none()
                    && let Err((code, why)) = self.begin(&method, params, builder)
                {
                    return self.refuse(id, code, &why).await;
                } else if self.open().contains_key(id.get()) {
                    return self.refuse(id, INVALID_REQUEST, "a request with this id is open").await;
                } else if self.open().len() >= MAX_OPEN {
                    return self.refuse(id, INVALID_REQUEST, "too many requests are open").await;
                }
                self.serve(id, &method, params);
            }
            Frame::Unreadable(why) => {
                tracing::warn!("the host's message cannot be read: {why}");
                let is_json = serde_json::from_str::<&RawValue>(text).is_ok();
                let code = if is_json { INVALID_REQUEST } else { PARSE_ERROR };
                self.refuse(RawValue::NULL, code, &format!("no JSON-RPC message: {}", excerpt(text))).await;
            }
        }
    }

    /// Dials the server in the host's era and words.
    fn begin(
        self: &Arc<Self>,
        method: &str,
        params: Option<&RawValue>,
        builder: &mut Option<Builder>,
    ) -> Result<(), (i32, String)> {
        let invalid = |error: &dyn std::fmt::Display| (-32_602, error.to_string());
        let members =
            params.and_then(|params| serde_json::from_str::<Object<'_>>(params.get()).ok()).unwrap_or_default();
        let meta = member(&members.0, "_meta");
        let (era, client, version) = match (method, params, meta) {
            ("initialize", Some(params), _) => {
                let client = Client::from_initialize(params).map_err(|error| invalid(&error))?;
                let version = client.version().as_str().into();
                (Era::Legacy, client, version)
            }
            (_, _, Some(meta)) if meta.get().contains(PROTOCOL_VERSION) => {
                let client = Client::from_meta(meta).map_err(|error| invalid(&error))?;
                let version = client.version().as_str().into();
                (Era::Modern, client, version)
            }
            ("server/discover", ..) => {
                let why = format!("server/discover: `{PROTOCOL_VERSION}` is missing in _meta");
                return Err((-32_602, why));
            }
            _ => return Err((INVALID_REQUEST, format!("`{method}` comes before `initialize`"))),
        };
        // A server that speaks both eras is spoken to in the host's.
        let facts = EraFacts { era: (era == Era::Legacy).then_some(Era::Legacy), ..EraFacts::default() };
        let Some(builder) = builder.take() else { return Ok(()) };
        let builder = self.with_cache(builder.era_facts(facts));
        let connection = builder.relay(client, Arc::new(Side(Arc::downgrade(self)))).build();
        let connection = connection.map_err(|error| (-32_603, error.to_string()))?;
        // Nobody else sets it.
        let upstream = self.upstream.get_or_init(|| Upstream { connection, era, version });
        self.spawn(self.clone().watch(upstream.connection.clone()));
        Ok(())
    }

    fn serve(self: &Arc<Self>, id: &RawValue, method: &str, params: Option<&RawValue>) {
        let (session, key) = (self.clone(), Box::<str>::from(id.get()));
        let (id, method, params) = (id.to_owned(), method.to_owned(), params.map(ToOwned::to_owned));
        // The task may be through before it is noted here.
        let mut open = self.open();
        let handle = self.spawn(async move {
            let answer = session.answer_of(&id, &method, params.as_deref()).await;
            // From here on a cancellation comes too late, and the id may be used again.
            session.open().remove(id.get());
            session.answer(&id, &answer).await;
        });
        open.insert(key, handle);
    }

    async fn note(&self, method: &str, params: Option<&RawValue>) {
        match method {
            "notifications/cancelled" => {
                let id = params.and_then(|params| serde_json::from_str::<Object<'_>>(params.get()).ok());
                let id = id.as_ref().and_then(|members| member(&members.0, "requestId"));
                if let Some(id) = id
                    && let Some(open) = self.open().remove(id.get())
                {
                    // The call is dropped, which tells the server under the id that it knows.
                    open.abort();
                }
            }
            // Each session with the server has its own.
            "notifications/initialized" => {}
            _ => {
                if let Some(Upstream { connection, .. }) = self.upstream() {
                    connection.notify_raw(method, params).await;
                }
            }
        }
    }

    async fn end(&self) {
        for open in std::mem::take(&mut *self.open()).into_values() {
            open.abort();
        }
        if let Some(Upstream { connection, .. }) = self.upstream() {
            connection.shutdown().await;
        }
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<Box<str>, AbortHandle>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The server's side of a session.
struct Side(std::sync::Weak<Session>);

#[async_trait]
impl Relay for Side {
    async fn ask(&self, ask: Ask<'_>) -> Answer {
        let Some(session) = self.0.upgrade() else {
            return Err(frame::error_body(-32_603, "the host has ended its session", None));
        };
        if session.upstream().is_some_and(|upstream| upstream.era == Era::Modern) {
            tracing::warn!(epoch = %ask.epoch, method = ask.method, "a modern host cannot be asked this: refused");
            let why = format!("the client takes no requests: `{}`", ask.method);
            return Err(frame::error_body(METHOD_NOT_FOUND, &why, None));
        }
        let asks = session.asks.clone();
        drop(session);
        asks.ask(ask.method, ask.params).await
    }

    fn told(&self, _epoch: Epoch, method: &str, params: Option<&RawValue>) {
        if let Some(session) = self.0.upgrade() {
            session.told(method, params);
        }
    }
}

fn params_of(text: &str) -> Option<&RawValue> {
    #[derive(serde::Deserialize)]
    struct Parts<'a> {
        #[serde(borrow, default)]
        params: Option<&'a RawValue>,
    }
    serde_json::from_str::<Parts<'_>>(text).ok().and_then(|parts| parts.params)
}
