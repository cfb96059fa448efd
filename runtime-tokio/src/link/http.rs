//! A server behind streamable HTTP as a [`Link`]: the parts of `mcp-reconnect-http`, assembled and driven.

use std::convert::Infallible;
use std::future::pending;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use futures::FutureExt;
use futures::future::BoxFuture;
use mcp_reconnect_core::replay::Sent;
use mcp_reconnect_core::{Config, Failure, FailureClass};
use mcp_reconnect_http::{ExchangeError, HttpClient, HttpServer, OnStage, Reach, Stage, Standing, StandingEvent};
use serde_json::value::RawValue;
use tokio::sync::{Mutex, mpsc, watch};
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::link::{
    Attempt, ConnectError, Connector, Ended, INBOUND_CAPACITY, Link, LinkControl, LinkFacts, OUTBOUND_CAPACITY,
    Outbound, REDIAL_SPREAD, SendFailure,
};

/// How long exchanges that are under way may go on when the link ends: what the server has refused with its session is
/// told apart from what may have run.
const SETTLE: Duration = Duration::from_secs(1);
/// How long a probe of a doubtful session may take.
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);
/// How long the sender of a frame waits for the probe before it is told that the frame failed.
const DOUBT: Duration = Duration::from_millis(500);

/// How long the standing stream of a session without a request waits for one.
const STANDS_BACK: Duration = Duration::from_millis(10);

/// How the handshake's last message begins, as the runtime writes it.
const INITIALIZED: &str = r#"{"jsonrpc":"2.0","method":"notifications/initialized""#;

/// Opens links to a server behind streamable HTTP: each has its own session and its own sockets, which end with it. Only
/// when a server has told that it knows a session no more, the next session is asked for where that was told.
#[derive(Clone, Debug)]
pub struct HttpConnector {
    server: HttpServer,
    left: Left,
}

/// The client of a session that its server has disowned, for the next link.
type Left = Arc<std::sync::Mutex<Option<Arc<HttpClient>>>>;

impl HttpConnector {
    /// Reaches this server.
    pub fn new(server: HttpServer) -> Self {
        Self { server, left: Left::default() }
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
            end: End::default(),
            stop: attempt.cancel.child_token(),
            established: CancellationToken::new(),
            initialized: CancellationToken::new(),
            begun: CancellationToken::new(),
            probing: Mutex::new(0),
            doubts: watch::Sender::new(0),
            served: AtomicBool::new(false),
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

    fn close_bound(&self) -> Duration {
        self.server.close_bound()
    }
}

/// What the tasks of a link share.
struct Shared {
    client: Arc<HttpClient>,
    left: Left,
    end: End,
    /// Stops the link's tasks.
    stop: CancellationToken,
    /// The handshake has settled: from now on a failure may end the link. Before, it is the handshake's to judge.
    established: CancellationToken,
    /// The server knows that the session has begun.
    initialized: CancellationToken,
    /// The first exchange of the session is on its way.
    begun: CancellationToken,
    /// How many probes have ended; held while one is under way.
    probing: Mutex<u64>,
    /// How many failed exchanges wait for a probe.
    doubts: watch::Sender<usize>,
    /// Whether something else than a ping was answered since the session is established.
    served: AtomicBool,
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
        if failure.class == FailureClass::SessionGone {
            self.client.disown();
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
            frame.finish(Err(SendFailure { failure, sent: Sent::No, cause }));
        }
    }

    async fn exchange(self: Arc<Self>, mut outbound: Outbound, inbound: mpsc::Sender<Box<str>>) {
        let frame: Box<str> = outbound.frame().into();
        let asks_for_life = asks_for_life(&frame);
        let progress = outbound.progress();
        let on_stage: OnStage = Arc::new(move |stage| match stage {
            Stage::Sent => progress.begin(),
            Stage::Waiting => {
                progress.wait();
                true
            }
        });
        let mut repeated = false;
        loop {
            let exchanged = tokio::select! {
                biased;
                exchanged = self.client.exchange_in_stages(&frame, &inbound, on_stage.clone()) => exchanged,
                () = outbound.given_up() => return,
                never = self.begins() => match never {},
            };
            let error = match exchanged {
                Ok(rest) => {
                    if frame.starts_with(INITIALIZED) {
                        self.initialized.cancel();
                    }
                    if !asks_for_life && self.established.is_cancelled() {
                        self.served.store(true, Ordering::Release);
                    }
                    outbound.finish(Ok(()));
                    return rest.drain().await;
                }
                Err(error) => error,
            };
            tracing::debug!(%error, sent = ?error.sent, reach = ?error.reach, "an exchange failed");
            let failure = SendFailure { failure: error.failure, sent: error.sent, cause: error.cause.clone() };
            if !self.established.is_cancelled() {
                return outbound.finish(Err(failure));
            }
            match error.reach {
                // Some servers refuse the question after life, and serve everything else.
                Reach::Doubt if asks_for_life && error.status.is_some_and(|status| status.is_client_error()) => {
                    return outbound.finish(Err(failure));
                }
                Reach::Exchange => return outbound.finish(Err(failure)),
                Reach::Session => {
                    self.end(error.failure, error.cause);
                    return outbound.finish(Err(failure));
                }
                Reach::Doubt => {}
            }
            self.doubts.send_modify(|doubts| *doubts += 1);
            let mut probe = pin!(self.probe(&error, asks_for_life));
            let probed = timeout(DOUBT, &mut probe).await;
            if error.sent == Sent::No && !repeated && matches!(probed, Ok(true)) {
                // Nothing of it has left us, and the server is there.
                self.doubts.send_modify(|doubts| *doubts -= 1);
                repeated = true;
                continue;
            }
            if probed.is_ok() {
                self.doubts.send_modify(|doubts| *doubts -= 1);
                return outbound.finish(Err(failure));
            }
            outbound.finish(Err(failure));
            probe.await;
            self.doubts.send_modify(|doubts| *doubts -= 1);
            return;
        }
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
        // It keeps its connection: the one that is open is for those who wait for an answer.
        drop(timeout(STANDS_BACK, self.begun.cancelled()).await);
        let mut standing = Standing::new(self.client.clone());
        loop {
            match standing.run(&inbound).await {
                // What was missed in between is not known yet.
                StandingEvent::Reopened => {}
                StandingEvent::Absent(why) => return tracing::debug!(%why, "no standing stream in this session"),
                StandingEvent::Session(error) => return self.end(error.failure, error.cause),
                StandingEvent::Doubt(error) => {
                    if !self.probe(&error, false).await {
                        return;
                    }
                }
            }
        }
    }

    /// Finds out whether the session is alive, after this failure; if not, the link ends. One probe for all who doubt
    /// at the same time.
    async fn probe(&self, doubt: &ExchangeError, about_ping: bool) -> bool {
        let before = self.probing.try_lock().map(|probes| *probes).ok();
        let mut probes = self.probing.lock().await;
        if self.end.token.is_cancelled() {
            return false;
        }
        // Whoever waited for a probe that another one made has its result: the link has not ended.
        if before.is_none_or(|before| before != *probes) && *probes > 0 {
            return true;
        }
        let probed = timeout(PROBE_TIMEOUT, self.client.probe()).await;
        *probes += 1;
        let error = match probed {
            Ok(Ok(())) => return true,
            // Who limits our rate, or forbids just this, is there.
            Ok(Err(error)) if matches!(error.status.map(|status| status.as_u16()), Some(403 | 429)) => {
                return true;
            }
            Ok(Err(error)) => error,
            Err(_) => {
                let cause = format!("{}; a probe got no answer within {PROBE_TIMEOUT:?}", doubt.cause);
                self.end(FailureClass::Transport.into(), cause.into());
                return false;
            }
        };
        let class = if about_ping && error.sent != Sent::No && self.served.load(Ordering::Acquire) {
            // The same question again, to a server that serves everything else: perhaps it knows no pings.
            FailureClass::Unresponsive
        } else if error.status.is_some() && (self.client.session_id().is_some() || self.client.is_modern()) {
            // The endpoint answers, but not with this session: one without an id is worth a try before it counts as down.
            FailureClass::SessionGone
        } else {
            error.failure.class
        };
        let cause = format!("{}; a probe of the session: {}", doubt.cause, error.cause);
        self.end(Failure { class, ..error.failure }, cause.into());
        false
    }
}

/// Whether a frame is one of our pings, in either era.
fn asks_for_life(frame: &str) -> bool {
    let method = frame.split_once(r#""method":"#).map(|(_, rest)| rest);
    method.is_some_and(|method| method.starts_with(r#""ping""#) || method.starts_with(r#""server/discover""#))
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
        !self.0.end.token.is_cancelled() && !self.0.stop.is_cancelled() && *self.0.doubts.borrow() == 0
    }

    fn settled(&self) -> BoxFuture<'_, bool> {
        async {
            let mut doubts = self.0.doubts.subscribe();
            tokio::select! {
                () = self.0.end.token.cancelled() => {}
                () = self.0.stop.cancelled() => {}
                _ = doubts.wait_for(|doubts| *doubts == 0) => {} // the sender lives in `self`
            }
            self.survives()
        }
        .boxed()
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
