//! The handle that a host keeps: one server, whatever becomes of its sessions.

#![expect(deprecated, reason = "rmcp deprecates logging levels, which are how legacy servers are told")]

use std::fmt;
use std::hash::{BuildHasher as _, RandomState};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use mcp_reconnect_core::{
    Admission, Config, ConnectionMachine, Epoch, Failure, FailureClass, Input, Snapshot, State, Then, WakeCause, Want,
};
use rmcp::RoleClient;
use rmcp::Service;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ClientRequest, CompleteRequestParams, CompleteResult,
    CreateTaskResult, GetPromptRequestParams, GetPromptResult, LoggingLevel, ReadResourceRequestParams,
    ReadResourceResult, ServerResult, SetLevelRequestParams, SubscribeRequestParams, UnsubscribeRequestParams,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::{broadcast, mpsc, oneshot, watch};
use tokio::time::{Instant, timeout_at};
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use crate::call::{CallOptions, Performance, Target};
use crate::catalogue::Catalogue;
use crate::clock::{Clock, SuspendDetector};
use crate::epoch::{Dialler, Require, Spec};
use crate::era::{EraFacts, EraMemory, EraPolicy};
use crate::error::CallError;
use crate::event::{EVENT_CAPACITY, Events};
use crate::link::Connector;
use crate::owner::{Command, Owner, Published};
use crate::session::Session;
use crate::setup::Wanted;
use crate::view::Handler;
use crate::wire::RequestIds;

/// A connection to one MCP server that is rebuilt for as long as it lives.
///
/// A cheap handle: clones share the connection. When the last one is dropped, or after [`shutdown`](Self::shutdown),
/// the session is closed and nothing is left: no task, no process, no timer.
#[derive(Clone)]
pub struct Connection(Arc<Shared>);

/// What the handles share.
pub(crate) struct Shared {
    commands: mpsc::UnboundedSender<Command>,
    published: watch::Receiver<Published>,
    events: broadcast::WeakSender<crate::event::Event>,
    spec: Arc<Spec>,
    config: Config,
    clock: Clock,
    options: CallOptions,
}

/// Sets up a [`Connection`].
#[must_use]
pub struct Builder {
    connector: Box<dyn Connector>,
    name: Arc<str>,
    config: Config,
    options: CallOptions,
    handler: Box<dyn Fn(Epoch) -> Handler + Send + Sync>,
    policy: EraPolicy,
    facts: EraFacts,
    require: Require,
    probe_patience: Duration,
    seed: u64,
}

/// Why a connection could not be set up.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum BuildError {
    /// `close_timeout` would end a close before the transport's own ladder is through.
    CloseTimeout {
        /// The knob's value.
        close_timeout: Duration,
        /// How long the transport's ladder may take.
        ladder: Duration,
    },
    /// There is no tokio runtime here.
    NoRuntime,
}

impl fmt::Display for BuildError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CloseTimeout { close_timeout, ladder } => {
                write!(
                    f,
                    "`close_timeout` is {close_timeout:?}, not above the close ladder of the transport ({ladder:?})"
                )
            }
            Self::NoRuntime => f.write_str("a connection must be built inside a tokio runtime"),
        }
    }
}

impl std::error::Error for BuildError {}

impl Builder {
    /// What the server is called in logs. Default `server`.
    pub fn name(mut self, name: impl Into<Arc<str>>) -> Self {
        self.name = name.into();
        self
    }

    /// The knobs of the machine.
    pub fn config(mut self, config: Config) -> Self {
        self.config = config;
        self
    }

    /// What calls may take and do, unless they say otherwise.
    pub fn call_options(mut self, options: CallOptions) -> Self {
        self.options = options;
        self
    }

    /// Makes the client handler of each epoch: what the server may ask of us, and tell us. Default: rmcp's `()`.
    pub fn handler<H: Service<RoleClient>>(mut self, handler: impl Fn(Epoch) -> H + Send + Sync + 'static) -> Self {
        self.handler = Box::new(move |epoch| Handler::new(handler(epoch)));
        self
    }

    /// Which protocol era to speak. Default [`EraPolicy::Auto`].
    pub fn era(mut self, policy: EraPolicy) -> Self {
        self.policy = policy;
        self
    }

    /// What an earlier process learnt about the server's era.
    pub fn era_facts(mut self, facts: EraFacts) -> Self {
        self.facts = facts;
        self
    }

    /// What a session must have reached to be Ready. Default [`Require::Tools`].
    pub fn require(mut self, require: Require) -> Self {
        self.require = require;
        self
    }

    /// How long a server of unknown era may leave the probe of the modern era unanswered, from its first byte on,
    /// before it is asked to initialize as well. Default 2 s.
    pub fn probe_patience(mut self, patience: Duration) -> Self {
        self.probe_patience = patience;
        self
    }

    /// The seed of the jitter: the same seed waits the same. Default: random.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// Starts the connection: the first dial begins at once, and nobody waits for it.
    ///
    /// # Errors
    ///
    /// A `close_timeout` that is not above the transport's close ladder; no tokio runtime.
    pub fn build(self) -> Result<Connection, BuildError> {
        let ladder = self.connector.close_bound();
        let close_timeout = self.config.close_timeout();
        if close_timeout <= ladder {
            return Err(BuildError::CloseTimeout { close_timeout, ladder });
        }
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| BuildError::NoRuntime)?;
        let spec = Arc::new(Spec {
            name: self.name,
            connector: self.connector,
            handler: self.handler,
            memory: EraMemory::new(self.facts),
            policy: self.policy,
            require: self.require,
            probe_patience: self.probe_patience,
            drain: close_timeout - ladder,
            wanted: watch::Sender::new(Wanted::default()),
            ids: RequestIds::default(),
            met: Mutex::new(None),
            known: Mutex::new(Catalogue::default()),
        });
        let clock = Clock::start();
        let machine = ConnectionMachine::new(self.config, self.seed, clock.now());
        let (commands, orders) = mpsc::unbounded_channel();
        let (note, notes) = mpsc::unbounded_channel();
        let events = broadcast::Sender::new(EVENT_CAPACITY);
        let initial = Published { snapshot: machine.snapshot(), session: None, catalogue: None, cause: None };
        let (publisher, published) = watch::channel(initial);
        let shared = Shared {
            commands,
            published,
            events: events.downgrade(),
            spec: spec.clone(),
            config: self.config,
            clock,
            options: self.options,
        };
        let span = tracing::info_span!("connection", server = %spec.name);
        let owner = Owner {
            machine,
            clock,
            suspend: SuspendDetector::start(),
            dialler: Dialler { spec, notes: note, tasks: TaskTracker::new() },
            commands: orders,
            notes,
            published: publisher,
            events,
            live: None,
            cause: None,
            flapped_before: false,
        };
        shared.command(Command::Input(Input::Connect { until: clock.now() }));
        runtime.spawn(owner.run().instrument(span));
        Ok(Connection(Arc::new(shared)))
    }
}

impl fmt::Debug for Builder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("name", &self.name).field("config", &self.config).finish_non_exhaustive()
    }
}

impl Connection {
    /// Begins a connection to the server that `connector` reaches.
    pub fn builder(connector: impl Connector) -> Builder {
        Builder {
            connector: Box::new(connector),
            name: "server".into(),
            config: Config::default(),
            options: CallOptions::default(),
            handler: Box::new(|_| Handler::new(())),
            policy: EraPolicy::Auto,
            facts: EraFacts::default(),
            require: Require::default(),
            probe_patience: Duration::from_secs(2),
            seed: RandomState::new().hash_one(0_u8),
        }
    }

    /// Calls a tool, with the connection's own options.
    ///
    /// Waits for a session where there is none, and is sent again on a fresh one where that is safe. A task that the
    /// server makes of the call is returned as such.
    ///
    /// # Errors
    ///
    /// See [`CallError`]: each says whether the tool may have run.
    pub async fn call_tool(&self, params: CallToolRequestParams) -> Result<CallToolResponse, CallError> {
        self.call_tool_with(params, &self.0.options).await
    }

    /// Calls a tool.
    ///
    /// # Errors
    ///
    /// As [`call_tool`](Self::call_tool).
    pub async fn call_tool_with(
        &self,
        params: CallToolRequestParams,
        options: &CallOptions,
    ) -> Result<CallToolResponse, CallError> {
        #[derive(serde::Deserialize)]
        struct Kind<'a> {
            #[serde(rename = "resultType", borrow, default)]
            result_type: Option<&'a RawValue>,
        }
        let target = Target::Tool(&params.name);
        let (session, result) = self.0.perform(target, Some(&params), options).await?;
        let kind = serde_json::from_str::<Kind<'_>>(result.get()).ok().and_then(|kind| kind.result_type);
        if kind.is_some_and(|kind| kind.get() == "\"task\"") {
            return read::<CreateTaskResult>(&session, &result).map(CallToolResponse::Task);
        }
        read::<CallToolResult>(&session, &result).map(CallToolResponse::Complete)
    }

    /// Reads a resource.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn read_resource(&self, params: ReadResourceRequestParams) -> Result<ReadResourceResult, CallError> {
        self.ask("resources/read", &params).await
    }

    /// Gets a prompt.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn get_prompt(&self, params: GetPromptRequestParams) -> Result<GetPromptResult, CallError> {
        self.ask("prompts/get", &params).await
    }

    /// Asks for completions.
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn complete(&self, params: CompleteRequestParams) -> Result<CompleteResult, CallError> {
        self.ask("completion/complete", &params).await
    }

    /// Sends any request of the protocol. A tool call is checked and annotated as by [`call_tool`](Self::call_tool).
    ///
    /// # Errors
    ///
    /// See [`CallError`].
    pub async fn request(&self, request: ClientRequest, options: &CallOptions) -> Result<ServerResult, CallError> {
        #[derive(serde::Deserialize)]
        struct Parts {
            #[serde(default)]
            params: Option<Box<RawValue>>,
        }
        let text = serde_json::to_string(&request).map_err(invalid)?;
        let Parts { params } = serde_json::from_str(&text).map_err(invalid)?;
        let target = match &request {
            ClientRequest::CallToolRequest(call) => Target::Tool(&call.params.name),
            other => Target::Method(other.method()),
        };
        let (session, result) = Performance::new(&self.0, target, options).run(params.as_deref()).await?;
        read(&session, &result)
    }

    /// Wants this resource's updates in every session from now on, and in this one.
    ///
    /// # Errors
    ///
    /// The server's refusal, and then nothing is wanted; without a session it is set up when there is one.
    pub async fn subscribe(&self, uri: impl Into<String>) -> Result<(), CallError> {
        let uri = uri.into();
        self.0.spec.wanted.send_modify(|wanted| _ = wanted.subscriptions.insert(uri.clone()));
        let answer = self.set_now("resources/subscribe", &SubscribeRequestParams::new(uri.clone())).await;
        if answer.is_err() {
            self.0.spec.wanted.send_modify(|wanted| _ = wanted.subscriptions.remove(&uri));
        }
        answer
    }

    /// No longer wants this resource's updates.
    ///
    /// # Errors
    ///
    /// The server's refusal; later sessions are not asked for it in any case.
    pub async fn unsubscribe(&self, uri: impl Into<String>) -> Result<(), CallError> {
        let uri = uri.into();
        self.0.spec.wanted.send_modify(|wanted| _ = wanted.subscriptions.remove(&uri));
        self.set_now("resources/unsubscribe", &UnsubscribeRequestParams::new(uri)).await
    }

    /// Wants log messages of this level and above in every session. In the modern era the level goes with each
    /// request of the sessions that follow.
    ///
    /// # Errors
    ///
    /// The server's refusal; later sessions are asked again in any case.
    pub async fn set_log_level(&self, level: LoggingLevel) -> Result<(), CallError> {
        self.0.spec.wanted.send_modify(|wanted| wanted.log_level = Some(level));
        self.set_now("logging/setLevel", &SetLevelRequestParams::new(level)).await
    }

    /// Sets something up in the session that is there; one that comes later is set up with what is wanted.
    async fn set_now(&self, method: &str, params: &(impl Serialize + Sync)) -> Result<(), CallError> {
        let session = self.0.published.borrow().session.clone();
        match session {
            Some(session) if session.server().protocol_version.has_initialize() => {
                self.0.perform(Target::Method(method), Some(params), &self.0.options).await.map(drop)
            }
            Some(_) | None => Ok(()),
        }
    }

    /// The session, as soon as there is one; waits as long as calls do by default.
    ///
    /// # Errors
    ///
    /// [`CallError::Refused`] with the time at which to ask again; [`CallError::Closed`].
    pub async fn session(&self) -> Result<Arc<Session>, CallError> {
        self.0.acquire(Want::Session, Instant::now() + self.0.options.max_wait).await
    }

    /// A session that is newer than this epoch's, as soon as there is one.
    ///
    /// # Errors
    ///
    /// As [`session`](Self::session).
    pub async fn session_after(&self, epoch: Epoch) -> Result<Arc<Session>, CallError> {
        self.0.acquire(Want::SessionAfter(epoch), Instant::now() + self.0.options.max_wait).await
    }

    /// Says that a session is broken, whatever its transport looks like: it is never handed out again, and rebuilt.
    /// Of an epoch that is not the live one it says nothing.
    pub fn invalidate(&self, epoch: Epoch, cause: impl Into<Arc<str>>) {
        let failure = Failure::new(FailureClass::SessionGone);
        self.0.lost(epoch, failure, cause.into());
    }

    /// Tries now, if there is no session: a user asked, the configuration changed, or new credentials are there. A
    /// session that is there is left alone.
    pub fn wake(&self, cause: WakeCause) {
        self.0.command(Command::Input(Input::Wake(cause)));
    }

    /// Closes the session and rests until woken.
    pub fn park(&self) {
        self.0.command(Command::Input(Input::Park));
    }

    /// Tells that the host slept or its network changed: the session is verified before it is trusted further.
    pub fn resumed(&self) {
        self.0.command(Command::Input(Input::Resumed));
    }

    /// Everything that may be looked at, as of now; its status is the last event's.
    pub fn snapshot(&self) -> Snapshot {
        self.0.snapshot()
    }

    /// The last failure since the last Ready, in words.
    pub fn last_failure(&self) -> Option<Arc<str>> {
        self.0.published.borrow().cause.clone()
    }

    /// What may be offered: kept while the session is rebuilt, `None` before the first session and while the server is
    /// parked.
    pub fn catalogue(&self) -> Option<Arc<Catalogue>> {
        self.0.published.borrow().catalogue.clone()
    }

    /// What happens from now on, in order.
    pub fn events(&self) -> Events {
        // Without an owner there is nothing to come: the receiver of a channel without sender ends at once.
        Events(
            self.0.events.upgrade().map_or_else(|| broadcast::Sender::new(1).subscribe(), |events| events.subscribe()),
        )
    }

    /// What was learnt about the server's protocol era, for the next process.
    pub fn era_facts(&self) -> EraFacts {
        self.0.spec.memory.facts()
    }

    /// The server's name, as it was given to the builder.
    pub fn name(&self) -> &str {
        &self.0.spec.name
    }

    /// Closes the connection for good and waits until nothing of it is left; bounded by the close ladder. Callers that
    /// wait are told at once.
    pub async fn shutdown(&self) {
        self.0.command(Command::Input(Input::Shutdown));
        let mut published = self.0.published.clone();
        // The owner drops its end when it has left nothing.
        while published.changed().await.is_ok() {}
    }

    async fn ask<T: DeserializeOwned>(&self, method: &str, params: &(impl Serialize + Sync)) -> Result<T, CallError> {
        let (session, result) = self.0.perform(Target::Method(method), Some(params), &self.0.options).await?;
        read(&session, &result)
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = self.snapshot().status;
        f.debug_struct("Connection").field("name", &self.name()).field("status", &status).finish_non_exhaustive()
    }
}

impl Shared {
    pub(crate) fn command(&self, command: Command) {
        // An error says that the connection was shut down; whoever waits sees that.
        drop(self.commands.send(command));
    }

    /// Condemns the session at once, and tells the owner.
    pub(crate) fn lost(&self, epoch: Epoch, failure: Failure, cause: Arc<str>) {
        if let Some(session) = self.published.borrow().session.as_ref().filter(|session| session.epoch() == epoch) {
            session.condemn();
        }
        self.command(Command::Lost { epoch, failure, cause });
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.published.borrow().snapshot
    }

    pub(crate) fn keepalive(&self) -> Duration {
        self.config.keepalive()
    }

    async fn perform(
        &self,
        target: Target<'_>,
        params: Option<&(impl Serialize + Sync)>,
        options: &CallOptions,
    ) -> Result<(Arc<Session>, Box<RawValue>), CallError> {
        let params = params.map(to_raw_value).transpose().map_err(invalid)?;
        Performance::new(self, target, options).run(params.as_deref()).await
    }

    /// A session that satisfies `want`, within this time. While one is Ready and the breaker is closed nothing but the
    /// published state is looked at.
    pub(crate) async fn acquire(&self, want: Want, until: Instant) -> Result<Arc<Session>, CallError> {
        let at = self.clock.timestamp(until);
        let mut published = self.published.clone();
        let mut asked = false;
        loop {
            if self.commands.is_closed() {
                return Err(CallError::Closed);
            }
            let seen = published.borrow_and_update().clone();
            match seen.snapshot.admission(want, at) {
                Admission::Go(_) => {
                    if let Some(session) = seen.session.filter(|session| !session.is_condemned()) {
                        return Ok(session);
                    }
                }
                // The machine may let this caller through, and a caller brings the next dial forward.
                Admission::Wait { .. } | Admission::Refuse { .. } if !asked || needs_asking(&seen.snapshot) => {
                    asked = true;
                    match self.ask_owner(until).await? {
                        Admission::Go(epoch) if satisfies(epoch, want) => {
                            if let Some(session) =
                                published.borrow().session.clone().filter(|session| session.epoch() == epoch)
                            {
                                return Ok(session);
                            }
                        }
                        Admission::Go(_) | Admission::Wait { .. } => {}
                        Admission::Refuse { why, retry_at } => return Err(self.refused(why, retry_at)),
                    }
                    if published.has_changed().unwrap_or(true) {
                        continue;
                    }
                }
                Admission::Wait { .. } => {}
                Admission::Refuse { why, retry_at } => return Err(self.refused(why, retry_at)),
            }
            match timeout_at(until, published.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(CallError::Closed),
                Err(_) => {
                    let retry_at = self.snapshot().state.next_dial();
                    return Err(self.refused(mcp_reconnect_core::Refusal::NotInTime, retry_at));
                }
            }
        }
    }

    async fn ask_owner(&self, until: Instant) -> Result<Admission, CallError> {
        let (reply, admission) = oneshot::channel();
        self.command(Command::Connect { until, reply });
        admission.await.map_err(|_| CallError::Closed)
    }

    fn refused(&self, why: mcp_reconnect_core::Refusal, retry_at: Option<mcp_reconnect_core::Timestamp>) -> CallError {
        if why == mcp_reconnect_core::Refusal::Shutdown {
            return CallError::Closed;
        }
        let cause = self.published.borrow().cause.clone();
        CallError::Refused { why, retry_at: retry_at.map(|at| self.clock.instant(at)), cause }
    }
}

/// Whether nothing will come of waiting unless somebody asks.
fn needs_asking(snapshot: &Snapshot) -> bool {
    matches!(snapshot.state, State::Idle | State::Closing { then: Then::Rest, .. })
}

fn satisfies(epoch: Epoch, want: Want) -> bool {
    match want {
        Want::Session => true,
        Want::SessionAfter(old) => epoch > old,
    }
}

fn read<T: DeserializeOwned>(session: &Session, result: &RawValue) -> Result<T, CallError> {
    serde_json::from_str(result.get())
        .map_err(|error| CallError::UnexpectedAnswer { epoch: session.epoch(), cause: error.to_string().into() })
}

fn invalid(error: serde_json::Error) -> CallError {
    CallError::InvalidParams(error.to_string().into())
}
