//! Reads what the host says and sees to it that each request is answered once.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use async_trait::async_trait;
use mcp_reconnect_core::Epoch;
use serde_json::value::RawValue;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::AbortHandle;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use super::asks::{Answer, Asks};
use super::changes::Changes;
use super::greet::Greeting;
use super::open::{self, OpenRequests};
use super::outbox::Outbox;
use super::status::Seat;
use super::streams::Streams;
use super::{Front, FrontOptions};
use crate::connection::{Builder, Connection};
use crate::protocol::client::PROTOCOL_VERSION;
use crate::protocol::frame::{self, Frame, Object, member};
use crate::protocol::{Client, Era};
use crate::wire::relay::{Ask, Relay};

pub(super) const INVALID_REQUEST: i32 = -32_600;
pub(super) const METHOD_NOT_FOUND: i32 = -32_601;
pub(super) const INVALID_PARAMS: i32 = -32_602;
pub(super) const PARSE_ERROR: i32 = -32_700;
/// How many requests of the host may be open; one more is refused.
pub(super) const MAX_OPEN: usize = 4_096;
/// How many messages may wait for a side that does not read, each way; what is more is dropped.
const MAX_WAITING: usize = 4_096;
/// How many tasks there may be for one more request to be served: answers that a host does not read are among them.
const MAX_TASKS: usize = 4 * MAX_OPEN;
/// How long the last messages may wait for the host to read them.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// What the parts of a host's session share.
pub(super) struct Session {
    pub(super) options: FrontOptions,
    pub(super) outbox: Outbox,
    pub(super) asks: Asks,
    pub(super) changes: Changes,
    pub(super) streams: Streams,
    /// Since the host's first message.
    upstream: OnceLock<Upstream>,
    /// The host's requests under way.
    open: OpenRequests,
    /// What an earlier run was told by the server.
    cached: OnceLock<Greeting>,
    seat: Seat,
    tasks: TaskTracker,
    /// For what the host is owed that nothing else waits for.
    owed: Arc<Semaphore>,
    /// For what the host tells the server.
    noted: Arc<Semaphore>,
}

/// What the host's first message has begun.
pub(super) struct Upstream {
    pub(super) connection: Connection,
    /// The era of the host's first message.
    era: Era,
    /// The version that it asked for.
    version: Box<str>,
    /// The version that a host asked for that began with the modern era, and then with `initialize`: some do where
    /// `server/discover` is not answered soon.
    initialized: OnceLock<Box<str>>,
}

impl Upstream {
    /// The host's era.
    pub(super) fn era(&self) -> Era {
        if self.initialized.get().is_some() { Era::Legacy } else { self.era }
    }

    /// The version that the host asked for.
    pub(super) fn version(&self) -> &str {
        self.initialized.get().unwrap_or(&self.version)
    }
}

impl Session {
    /// Serves the host until it has said all, or is told to stop; then nothing of the server is left.
    pub(super) async fn run(
        front: Front,
        mut said: mpsc::Receiver<Box<str>>,
        told: mpsc::Sender<Box<str>>,
        stop: CancellationToken,
    ) {
        let Front { upstream, options, seat } = front;
        let host_gone = told.clone();
        let (outbox, carry) = Outbox::new(told);
        let carrying = tokio::spawn(carry);
        let tasks = TaskTracker::new();
        let session = Arc::new(Self {
            asks: Asks::new(outbox.clone()),
            outbox,
            options,
            changes: Changes::default(),
            streams: Streams::default(),
            upstream: OnceLock::new(),
            open: OpenRequests::default(),
            cached: OnceLock::new(),
            seat,
            tasks: tasks.clone(),
            owed: Arc::new(Semaphore::new(MAX_WAITING)),
            noted: Arc::new(Semaphore::new(MAX_WAITING)),
        });
        let session = Running(session);
        let mut builder = Some(upstream);
        while let Some(frame) = open::next(&mut said, &host_gone, &stop).await {
            session.0.take(&frame, &mut builder);
        }
        drop(host_gone);
        session.0.open.abort();
        if let Some(Upstream { connection, .. }) = session.0.upstream() {
            connection.shutdown().await;
        }
        drop(session);
        tasks.close();
        let give_up = carrying.abort_handle();
        let flushed = async {
            tasks.wait().await;
            drop(carrying.await); // it only ends
        };
        if timeout(FLUSH_TIMEOUT, flushed).await.is_err() {
            tracing::warn!("the host does not read: the last messages are dropped");
            give_up.abort();
            tasks.wait().await;
        }
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

    /// Gives the host something that nothing else waits for: not the reader, where the host does not read.
    fn owe(&self, frame: Box<str>) {
        let Ok(place) = self.owed.clone().try_acquire_owned() else {
            tracing::warn!("the host does not read: an answer is dropped");
            return;
        };
        let outbox = self.outbox.clone();
        self.spawn(async move {
            outbox.owe(frame).await;
            drop(place);
        });
    }

    fn refuse(&self, id: &RawValue, code: i32, why: &str) {
        self.owe(frame::error(id, code, why));
    }

    fn take(self: &Arc<Self>, text: &str, builder: &mut Option<Builder>) {
        match Frame::parse(text) {
            Frame::Response { id, outcome } => {
                self.asks.answer(id, outcome.map(ToOwned::to_owned).map_err(ToOwned::to_owned));
            }
            Frame::Notification { method, params } => self.note(&method, params),
            Frame::Request { id, method, params } => {
                if method == "ping" {
                    self.owe(frame::result(id, "{}"));
                } else if let Err((code, why)) = self.admit(id, &method, params, builder) {
                    self.refuse(id, code, &why);
                } else {
                    self.serve(id, &method, params);
                }
            }
            Frame::Unreadable(why) => {
                if let Some(refusal) = open::unreadable(text, why) {
                    self.owe(refusal);
                }
            }
        }
    }

    /// Whether a request is served, and if not, why.
    fn admit(
        self: &Arc<Self>,
        id: &RawValue,
        method: &str,
        params: Option<&RawValue>,
        builder: &mut Option<Builder>,
    ) -> Result<(), (i32, String)> {
        let invalid = |why: &str| Err((INVALID_REQUEST, why.to_owned()));
        match self.upstream() {
            None => self.begin(method, params, builder)?,
            Some(upstream) if method == "initialize" && upstream.era() == Era::Legacy => {
                return invalid("the session is initialized already");
            }
            Some(upstream) if method == "initialize" => {
                let client = params.map(Client::from_initialize).transpose();
                let client = client.map_err(|error| (-32_602, error.to_string()))?;
                // Its other words were said when the server was dialled.
                let version = client.map_or_else(Box::default, |client| client.version().as_str().into());
                upstream.initialized.get_or_init(|| version);
            }
            Some(_) => {}
        }
        match self.open.refusal(id) {
            Some(why) => invalid(why),
            None if self.tasks.len() >= MAX_TASKS => invalid("too many requests are open"),
            None => Ok(()),
        }
    }

    /// Dials the server in the host's era and words.
    fn begin(
        self: &Arc<Self>,
        method: &str,
        params: Option<&RawValue>,
        builder: &mut Option<Builder>,
    ) -> Result<(), (i32, String)> {
        let (era, client) = opening(method, params)?;
        let version = client.version().as_str().into();
        let Some(builder) = builder.take() else { return Err((-32_603, "the server cannot be begun".into())) };
        let connection = self.with_cache(builder).relay(client, Arc::new(Side(Arc::downgrade(self)))).build();
        let connection = connection.map_err(|error| (-32_603, error.to_string()))?;
        // Nobody else sets it.
        let upstream =
            self.upstream.get_or_init(|| Upstream { connection, era, version, initialized: OnceLock::new() });
        self.seat.take(self);
        self.spawn(self.clone().watch(upstream.connection.clone()));
        if era == Era::Modern {
            self.spawn(self.clone().keep_subscribed(upstream.connection.clone()));
        }
        Ok(())
    }

    fn serve(self: &Arc<Self>, id: &RawValue, method: &str, params: Option<&RawValue>) {
        let session = self.clone();
        let (id, method, params) = (id.to_owned(), method.to_owned(), params.map(ToOwned::to_owned));
        self.open.begin(&id.clone(), |taken_back| {
            self.spawn(async move {
                let answer = session.answer_of(&id, &method, params.as_deref(), &taken_back).await;
                if session.open.close(&id, &taken_back) {
                    session.answer(&id, &answer).await;
                }
            })
        });
    }

    fn note(&self, method: &str, params: Option<&RawValue>) {
        match method {
            "notifications/cancelled" => self.open.take_back(params),
            // Each session with the server has its own.
            "notifications/initialized" => {}
            _ => {
                let Some(Upstream { connection, .. }) = self.upstream() else { return };
                let Ok(place) = self.noted.clone().try_acquire_owned() else {
                    tracing::warn!(method, "the server does not read: a notification is dropped");
                    return;
                };
                let told = connection.notify_raw(method, params);
                self.spawn(async move {
                    told.await;
                    drop(place);
                });
            }
        }
    }

    /// How many requests of the host are under way.
    pub(super) fn open_requests(&self) -> usize {
        self.open.len()
    }
}

/// A session that is polled; one that is not any more ends by itself.
struct Running(Arc<Session>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.open.abort();
        if let Some(Upstream { connection, .. }) = self.0.upstream() {
            connection.begin_shutdown();
        }
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
        if session.upstream().is_some_and(|upstream| upstream.era() == Era::Modern) {
            tracing::warn!(epoch = %ask.epoch, method = ask.method, "a modern host cannot be asked this: refused");
            let why = format!("the client takes no requests: `{}`", ask.method);
            return Err(frame::error_body(METHOD_NOT_FOUND, &why, None));
        }
        let asks = session.asks.clone();
        drop(session);
        asks.ask(ask.method, ask.params, ask.taken_back).await
    }

    fn told(&self, epoch: Epoch, method: &str, params: Option<&RawValue>) {
        if let Some(session) = self.0.upgrade() {
            session.told(epoch, method, params);
        }
    }
}

/// The host's era and words, by its first request.
pub(super) fn opening(method: &str, params: Option<&RawValue>) -> Result<(Era, Client), (i32, String)> {
    let invalid = |error: &dyn std::fmt::Display| (INVALID_PARAMS, error.to_string());
    let members = params.and_then(|params| serde_json::from_str::<Object<'_>>(params.get()).ok()).unwrap_or_default();
    match (method, params, member(&members.0, "_meta")) {
        ("initialize", Some(params), _) => {
            Client::from_initialize(params).map(|client| (Era::Legacy, client)).map_err(|error| invalid(&error))
        }
        (_, _, Some(meta)) if meta.get().contains(PROTOCOL_VERSION) => {
            Client::from_meta(meta).map(|client| (Era::Modern, client)).map_err(|error| invalid(&error))
        }
        ("server/discover", ..) => {
            Err((INVALID_PARAMS, format!("server/discover: `{PROTOCOL_VERSION}` is missing in _meta")))
        }
        _ => Err((INVALID_REQUEST, format!("`{method}` comes before `initialize`"))),
    }
}
