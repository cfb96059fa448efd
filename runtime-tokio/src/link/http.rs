//! A server behind streamable HTTP as a [`Link`]: the parts of `mcp-reconnect-http`, assembled and driven.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::future::pending;
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use futures::future::BoxFuture;
use mcp_reconnect_core::replay::Sent;
use mcp_reconnect_core::{Config, Failure, FailureClass};
use mcp_reconnect_http::{ExchangeError, HttpClient, HttpServer, OnStage, Reach, Stage, Standing, StandingEvent};
use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::link::{
    Attempt, ConnectError, Connector, Ended, INBOUND_CAPACITY, Link, LinkControl, LinkFacts, LinkNews,
    OUTBOUND_CAPACITY, Outbound, REDIAL_SPREAD, Refusal, Report, SendFailure,
};

/// How long exchanges that are under way may go on when the link ends: what the server has refused with its session is
/// told apart from what may have run.
const SETTLE: Duration = Duration::from_secs(1);
/// How long the standing stream of a session without a request waits for one.
const STANDS_BACK: Duration = Duration::from_millis(10);

/// How the handshake's last message begins, as the runtime writes it.
const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized""#;

/// How long a silent server goes unasked behind a front: a new session ends no process.
const HUNG_AFTER: Duration = Duration::from_secs(25);

/// Opens links to a server behind streamable HTTP: each has its own session and its own sockets, which end with it. Only
/// when a server has told that it knows a session no more, the next session is asked for where that was told.
#[derive(Clone, Debug)]
pub struct HttpConnector {
    server: HttpServer,
    left: Left,
    orphans: Orphans,
}

/// The client of a session that its server has disowned, for the next link.
type Left = Arc<std::sync::Mutex<Option<Arc<HttpClient>>>>;

/// The ids of sessions that were given up and that the server may still hold: released when the next one is up.
type Orphans = Arc<std::sync::Mutex<VecDeque<Arc<str>>>>;

/// How many such ids are kept; the oldest goes.
const ORPHANS: usize = 16;

impl HttpConnector {
    /// Reaches this server.
    pub fn new(server: HttpServer) -> Self {
        // The session is asked, whatever the words.
        Self { server: server.without_words(), left: Left::default(), orphans: Orphans::default() }
    }

    /// The server.
    pub fn server(&self) -> &HttpServer {
        &self.server
    }
}

#[async_trait]
impl Connector for HttpConnector {
    /// # Panics
    ///
    /// Outside a tokio runtime with I/O and time enabled.
    async fn connect(&self, attempt: Attempt) -> Result<Link, ConnectError> {
        let left = self.left.lock().unwrap_or_else(PoisonError::into_inner).take();
        let client = match left {
            Some(left) => Ok(left.another(attempt.interactive)),
            None => self.server.open(attempt.interactive),
        };
        let client = client.map_err(|error| ConnectError::new(error.class, error.to_string()))?;
        let (outbound, frames_out) = mpsc::channel(OUTBOUND_CAPACITY);
        let (frames_in, inbound) = mpsc::channel(INBOUND_CAPACITY);
        let shared = Arc::new(Shared {
            client: Arc::new(client),
            left: self.left.clone(),
            orphans: self.orphans.clone(),
            end: End::default(),
            stop: attempt.cancel.child_token(),
            established: CancellationToken::new(),
            initialized: CancellationToken::new(),
            begun: CancellationToken::new(),
            report: OnceLock::new(),
            exchanges: TaskTracker::new(),
            tasks: attempt.tasks.clone(),
        });
        shared.spawn(shared.clone().send(frames_out, frames_in.clone()));
        shared.spawn(shared.clone().stand(frames_in));
        attempt.tasks.spawn(shared.clone().finish());
        Ok(Link { outbound, inbound, control: Arc::new(HttpControl(shared)) })
    }

    /// The first redials after a loss are spread over 250 ms: the server is shared with other clients.
    fn config(&self) -> Config {
        let config = Config::builder().redial_spread(REDIAL_SPREAD).build();
        config.unwrap_or_default()
    }

    async fn credentials(&self) -> Option<u64> {
        self.server.credentials_digest().await
    }

    fn hung_after(&self) -> Duration {
        HUNG_AFTER
    }

    fn close_bound(&self) -> Duration {
        self.server.close_bound()
    }
}

/// What the tasks of a link share.
struct Shared {
    client: Arc<HttpClient>,
    left: Left,
    orphans: Orphans,
    end: End,
    /// Stops the link's tasks.
    stop: CancellationToken,
    /// The handshake has settled: from now on a failure may end the link. Before, it is the handshake's to judge.
    established: CancellationToken,
    /// The server knows that the session has begun.
    initialized: CancellationToken,
    /// The first exchange of the session is on its way.
    begun: CancellationToken,
    report: OnceLock<Report>,
    exchanges: TaskTracker,
    tasks: TaskTracker,
}

/// The end of a link.
#[derive(Default)]
struct End {
    token: CancellationToken,
    cause: OnceLock<Ended>,
}

impl Shared {
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.tasks.spawn(self.stop.clone().run_until_cancelled_owned(task));
    }

    /// Ends the link: nothing new is sent, what is under way may settle. The first cause stays.
    fn end(&self, failure: Failure, cause: Arc<str>) {
        self.client.disown();
        if let Some(id) = self.client.left_behind() {
            let mut orphans = self.orphans.lock().unwrap_or_else(PoisonError::into_inner);
            if !orphans.contains(&id) {
                orphans.truncate(ORPHANS - 1);
                orphans.push_front(id);
            }
        }
        if failure.class == FailureClass::SessionGone {
            // Who answers is reached as well by the next session, without a new connection.
            *self.left.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.client.clone());
        }
        self.end.cause.get_or_init(|| Ended { failure, cause });
        self.end.token.cancel();
    }

    /// Lets exchanges under way settle, then closes the link.
    async fn finish(self: Arc<Self>) {
        tokio::select! {
            () = self.end.token.cancelled() => {
                self.exchanges.close();
                drop(timeout(SETTLE, self.exchanges.wait()).await); // what has not settled by then is cut off
                self.stop.cancel();
            }
            () = self.stop.cancelled() => {}
        }
    }

    /// Carries frames out, each in an exchange of its own.
    async fn send(self: Arc<Self>, mut frames: mpsc::Receiver<Outbound>, inbound: mpsc::Sender<Box<str>>) {
        loop {
            let frame = tokio::select! {
                biased;
                () = self.end.token.cancelled() => break,
                frame = frames.recv() => frame,
            };
            let Some(frame) = frame else { break };
            let exchange = self.clone().exchange(frame, inbound.clone());
            self.spawn(self.exchanges.track_future(exchange));
        }
        // What comes too late is told so at once.
        frames.close();
        while let Some(frame) = frames.recv().await {
            self.refuse(frame);
        }
    }

    /// The link is ending: the frame is not sent.
    fn refuse(&self, frame: Outbound) {
        if let Some(Ended { failure, cause }) = self.end.cause.get().cloned() {
            frame.finish(Err(SendFailure { failure, sent: Sent::No, cause, doubt: None }));
        }
    }

    async fn exchange(self: Arc<Self>, mut outbound: Outbound, inbound: mpsc::Sender<Box<str>>) {
        let frame: Box<str> = outbound.frame().into();
        let progress = outbound.progress();
        let on_stage: OnStage = Arc::new(move |stage| match stage {
            Stage::Sent => progress.begin(),
            Stage::Waiting => {
                progress.wait();
                true
            }
        });
        let exchanged = tokio::select! {
            biased;
            exchanged = self.client.exchange_in_stages(&frame, &inbound, on_stage) => exchanged,
            () = outbound.given_up() => return,
            never = self.begins() => match never {},
        };
        let error = match exchanged {
            Ok(rest) => {
                if frame.starts_with(INITIALIZED) {
                    self.initialized.cancel();
                }
                outbound.finish(Ok(()));
                return rest.drain().await;
            }
            Err(error) => error,
        };
        tracing::debug!(%error, sent = ?error.sent, reach = ?error.reach, "an exchange failed");
        let established = self.established.is_cancelled();
        if established && error.reach == Reach::Session {
            self.end(error.failure, error.cause.clone());
        }
        let doubt = (established && error.reach == Reach::Doubt).then(|| refusal(&error));
        let ExchangeError { failure, sent, cause, .. } = error;
        outbound.finish(Err(SendFailure { failure, sent, cause, doubt }));
    }

    /// Tells that an exchange of the session has its connection, or waits for one.
    async fn begins(&self) -> Infallible {
        if self.initialized.is_cancelled() {
            self.begun.cancel();
        }
        pending().await
    }

    /// Keeps the standing stream of a legacy session.
    async fn stand(self: Arc<Self>, inbound: mpsc::Sender<Box<str>>) {
        self.initialized.cancelled().await;
        self.spawn(self.clone().release());
        // It keeps its connection: the one that is open is for those who wait for an answer.
        drop(timeout(STANDS_BACK, self.begun.cancelled()).await);
        let mut standing = Standing::new(self.client.clone());
        loop {
            match standing.run(&inbound).await {
                StandingEvent::Reopened => self.report(LinkNews::Reopened),
                StandingEvent::Absent(why) => return tracing::debug!(%why, "no standing stream in this session"),
                StandingEvent::Session(error) => return self.end(error.failure, error.cause),
                StandingEvent::Doubt(error) => self.report(LinkNews::Doubt(refusal(&error))),
            }
        }
    }

    /// Ends the sessions before this one at the server, which may still hold them.
    async fn release(self: Arc<Self>) {
        loop {
            let id = self.orphans.lock().unwrap_or_else(PoisonError::into_inner).pop_back();
            let Some(id) = id else { return };
            self.client.release(&id).await;
        }
    }

    fn report(&self, news: LinkNews) {
        if let Some(report) = self.report.get() {
            report(news);
        }
    }
}

/// A failed exchange as the session compares it with others.
fn refusal(error: &ExchangeError) -> Refusal {
    let status = error.status.map(|status| status.as_u16());
    let (code, message) = match &error.rpc {
        Some((code, message)) => (Some(*code), message.clone()),
        None => (None, error.cause.as_ref().into()),
    };
    Refusal { status, code, message, gate: error.gate }
}

/// Dropping it ends what is left of the link.
struct HttpControl(Arc<Shared>);

impl LinkControl for HttpControl {
    fn kill(&self) {
        self.0.stop.cancel();
    }

    fn close(&self) -> BoxFuture<'_, Ended> {
        async {
            self.0.stop.cancel();
            // A link that broke has no session to release.
            if self.0.end.cause.get().is_none() {
                self.0.client.close().await;
            }
            self.ended()
        }
        .boxed()
    }

    fn facts(&self) -> LinkFacts {
        LinkFacts {
            address: Some(self.0.client.target().into()),
            session_id: self.0.client.session_id(),
            last_byte: self.0.client.last_byte(),
            ..LinkFacts::default()
        }
    }

    fn first_byte(&self) -> BoxFuture<'_, ()> {
        std::future::ready(()).boxed()
    }

    fn negotiated(&self, version: &str) {
        self.0.client.negotiated(version);
        self.0.established.cancel();
    }

    fn offered(&self, tool: &RawValue) -> Result<(), String> {
        self.0.client.note_tool(tool.get())
    }

    fn survives(&self) -> bool {
        !self.0.end.token.is_cancelled() && !self.0.stop.is_cancelled()
    }

    fn give_up(&self, Ended { failure, cause }: &Ended) -> bool {
        self.0.end(*failure, cause.clone());
        true
    }

    fn report_to(&self, report: Report) {
        drop(self.0.report.set(report)); // an error says that the link has a session already
    }

    fn why(&self) -> BoxFuture<'_, Ended> {
        std::future::ready(self.ended()).boxed()
    }
}

impl HttpControl {
    fn ended(&self) -> Ended {
        self.0
            .end
            .cause
            .get()
            .cloned()
            .unwrap_or_else(|| Ended { failure: FailureClass::Transport.into(), cause: "the link was closed".into() })
    }
}

impl Drop for HttpControl {
    fn drop(&mut self) {
        self.0.stop.cancel();
    }
}
