//! The handle that a host keeps: one server, whatever becomes of its sessions.

#![expect(deprecated, reason = "rmcp deprecates logging levels, which are how legacy servers are told")]

use std::fmt;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use mcp_reconnect_core::{Epoch, Failure, FailureClass, Input, Memory, Snapshot, State, Status, Then, WakeCause, Want};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ClientRequest, CompleteRequestParams, CompleteResult,
    CreateTaskResult, GetPromptRequestParams, GetPromptResult, LoggingLevel, ReadResourceRequestParams,
    ReadResourceResult, ServerResult, SetLevelRequestParams, SubscribeRequestParams, UnsubscribeRequestParams,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use tokio::sync::oneshot;

use crate::builder::{BuildError, Builder, check_close_timeout};
use crate::call::{CallOptions, Performance, Target};
use crate::catalogue::Catalogue;
use crate::clock::deadline;
use crate::era::EraFacts;
use crate::error::CallError;
use crate::event::Events;
use crate::link::Connector;
use crate::owner::{Command, Published};
use crate::session::Session;
use crate::shared::{Shared, Tuning};

/// A connection to one MCP server that is rebuilt for as long as it lives.
///
/// A cheap handle: clones share the connection. When the last one is dropped, or after [`shutdown`](Self::shutdown),
/// the session is closed and nothing is left: no task, no process, no timer.
#[derive(Clone)]
pub struct Connection(pub(crate) Arc<Shared>);

impl Connection {
    /// Begins a connection to the server that `connector` reaches.
    pub fn builder(connector: impl Connector) -> Builder {
        Builder::new(Box::new(connector))
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
        self.call_tool_with(params, &self.0.tuning().options).await
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
        let text = serde_json::to_string(&request).map_err(CallError::invalid_params)?;
        let Parts { params } = serde_json::from_str(&text).map_err(CallError::invalid_params)?;
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
    /// The server's refusal, and then nothing is wanted; without a session, and when it fails, it is set up when there is one.
    pub async fn subscribe(&self, uri: impl Into<String>) -> Result<(), CallError> {
        let uri = uri.into();
        self.0.spec.wanted.update(|wanted| _ = wanted.subscriptions.insert(uri.clone()));
        let answer = self.set_now("resources/subscribe", &SubscribeRequestParams::new(uri.clone())).await;
        if matches!(answer, Err(CallError::Server { .. })) {
            self.0.spec.wanted.update(|wanted| _ = wanted.subscriptions.remove(&uri));
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
        self.0.spec.wanted.update(|wanted| _ = wanted.subscriptions.remove(&uri));
        self.set_now("resources/unsubscribe", &UnsubscribeRequestParams::new(uri)).await
    }

    /// Wants log messages of this level and above in every session. In the modern era the level goes with each
    /// request of the sessions that follow.
    ///
    /// # Errors
    ///
    /// The server's refusal; later sessions are asked again in any case.
    pub async fn set_log_level(&self, level: LoggingLevel) -> Result<(), CallError> {
        self.0.spec.wanted.update(|wanted| wanted.log_level = Some(level));
        self.set_now("logging/setLevel", &SetLevelRequestParams::new(level)).await
    }

    /// Sets something up in the session that is there; one that comes later is set up with what is wanted.
    async fn set_now(&self, method: &str, params: &(impl Serialize + Sync)) -> Result<(), CallError> {
        let session = self.0.published.borrow().session.clone();
        match session {
            Some(session) if session.server().protocol_version.has_initialize() => {
                self.0.perform(Target::Method(method), Some(params), &self.0.tuning().options).await.map(drop)
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
        self.0.acquire(Want::Session, deadline(self.0.tuning().options.max_wait)).await
    }

    /// A session that is newer than this epoch's, as soon as there is one.
    ///
    /// # Errors
    ///
    /// As [`session`](Self::session).
    pub async fn session_after(&self, epoch: Epoch) -> Result<Arc<Session>, CallError> {
        self.0.acquire(Want::SessionAfter(epoch), deadline(self.0.tuning().options.max_wait)).await
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

    /// How the connection is tuned.
    pub fn tuning(&self) -> Tuning {
        self.0.tuning()
    }

    /// Tunes it otherwise, from now on: a session that is there stays, calls under way keep their deadlines.
    ///
    /// # Errors
    ///
    /// A `close_timeout` that is not above the transport's close ladder; then nothing has changed.
    pub fn retune(&self, tuning: Tuning) -> Result<(), BuildError> {
        check_close_timeout(&tuning.config, self.0.spec.connector.close_bound())?;
        self.0.retune(tuning);
        Ok(())
    }

    /// The patience of later probes; see [`Builder::probe_patience`].
    pub(crate) fn set_probe_patience(&self, patience: Duration) {
        *self.0.spec.probe_patience.lock().unwrap_or_else(PoisonError::into_inner) = patience;
    }

    /// How many calls are in flight, and how many wait for their turn.
    pub fn calls(&self) -> (u32, usize) {
        self.0.in_flight.count()
    }

    /// Tells that the host slept or its network changed: the session is verified before it is trusted further.
    pub fn resumed(&self) {
        self.0.command(Command::Input(Input::Resumed { by_call: false }));
    }

    /// Everything that may be looked at, as of now; its status is the last event's.
    pub fn snapshot(&self) -> Snapshot {
        self.0.snapshot()
    }

    /// The last failure since the last Ready, in words.
    pub fn last_failure(&self) -> Option<Arc<str>> {
        self.0.published.borrow().cause.clone()
    }

    /// What may be offered: kept while the session is rebuilt, `None` while the server is parked, and before the first
    /// session unless it was [known](Builder::known_catalogue) before.
    pub fn catalogue(&self) -> Option<Arc<Catalogue>> {
        self.0.published.borrow().catalogue.clone()
    }

    /// What was listed last in any session, whether it may be offered now or not: for the next process.
    pub fn known_catalogue(&self) -> Catalogue {
        let session = self.0.published.borrow().session.clone();
        (*session.map_or_else(|| self.0.spec.known(), |session| session.catalogue())).clone()
    }

    /// Where the machine stands, for the next process; see [`Builder::restore`].
    pub fn memory(&self) -> Memory {
        self.0.snapshot().memory(self.0.clock.now())
    }

    /// What happens from now on, in order.
    pub fn events(&self) -> Events {
        self.0.events.upgrade().map_or_else(Events::ended, |events| events.subscribe())
    }

    /// What was learnt about the server's protocol era, for the next process.
    pub fn era_facts(&self) -> EraFacts {
        self.0.spec.memory.facts()
    }

    /// The server's name, as it was given to the builder.
    pub fn name(&self) -> &str {
        &self.0.spec.name
    }

    /// Whether both are handles of the same connection.
    pub(crate) fn is(&self, other: Option<&Self>) -> bool {
        other.is_some_and(|other| Arc::ptr_eq(&self.0, &other.0))
    }

    /// Asks for a session without waiting for it: what a registration is.
    pub(crate) fn demand(&self) {
        self.0.command(Command::Input(Input::Connect { until: self.0.clock.now() }));
    }

    /// Resolves when there is a session, or none is to be expected soon: it is parked, and neither tried now nor as soon
    /// as for a caller.
    pub(crate) async fn settled(&self) {
        // What was asked for before is under way then.
        let (reply, done) = oneshot::channel();
        self.0.command(Command::Turn(reply));
        drop(done.await); // an owner that is gone has settled everything
        let settled = |published: &Published| match (published.snapshot.status, published.snapshot.state) {
            (Status::Ready(_) | Status::Shutdown, _) => true,
            (Status::Parked(_), State::Parked { probe_at: Some(at) }) => {
                at > self.0.clock.now() + self.tuning().config.demand_interval()
            }
            (Status::Parked(_), State::Parked { probe_at: None } | State::Closing { then: Then::Park, .. }) => true,
            _ => false,
        };
        // An error says that the connection has ended.
        drop(self.0.published.clone().wait_for(settled).await);
    }

    /// The first half of [`shutdown`](Self::shutdown): nothing is dialled or published any more.
    pub(crate) fn begin_shutdown(&self) {
        self.0.command(Command::Input(Input::Shutdown));
    }

    /// Closes the connection for good and waits until nothing of it is left; bounded by the close ladder. Callers that
    /// wait are told at once.
    pub async fn shutdown(&self) {
        self.begin_shutdown();
        let mut published = self.0.published.clone();
        // The owner drops its end when it has left nothing.
        while published.changed().await.is_ok() {}
    }

    async fn ask<T: DeserializeOwned>(&self, method: &str, params: &(impl Serialize + Sync)) -> Result<T, CallError> {
        let (session, result) = self.0.perform(Target::Method(method), Some(params), &self.0.tuning().options).await?;
        read(&session, &result)
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let status = self.snapshot().status;
        f.debug_struct("Connection").field("name", &self.name()).field("status", &status).finish_non_exhaustive()
    }
}

fn read<T: DeserializeOwned>(session: &Session, result: &RawValue) -> Result<T, CallError> {
    serde_json::from_str(result.get())
        .map_err(|error| CallError::UnexpectedAnswer { epoch: session.epoch(), cause: error.to_string().into() })
}
