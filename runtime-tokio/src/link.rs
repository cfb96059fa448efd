//! The seam between the runtime and a transport: whole JSON-RPC messages as text, both ways.

#[cfg(feature = "http")]
pub mod http;
#[cfg(unix)]
pub mod lines;
#[cfg(feature = "oauth")]
pub mod oauth;
#[cfg(unix)]
pub mod stdio;

use std::error::Error;
use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use async_trait::async_trait;
use futures::future::BoxFuture;
use mcp_reconnect_core::replay::Sent;
use mcp_reconnect_core::{Config, Epoch, Failure, FailureClass};
use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Opens channels to one MCP server: the part of a transport that knows where the server is.
#[async_trait]
pub trait Connector: Send + Sync + 'static {
    /// Opens the channel (spawns the child, builds the client); no handshake.
    ///
    /// Called once per epoch, and once more in the same epoch where a server of unknown era died on the probe; the
    /// first link is closed before that. Dropping the future undoes what it began.
    ///
    /// # Errors
    ///
    /// The failure that kept the channel from opening, classified.
    async fn connect(&self, attempt: Attempt) -> Result<Link, ConnectError>;

    /// The knobs that suit servers of this kind, unless [`Builder::config`](crate::Builder::config) sets others.
    fn config(&self) -> Config {
        Config::default()
    }

    /// A digest of the credentials that the next channel would be opened with. `None`, the default: it has none that
    /// change.
    ///
    /// Where a server has refused the credentials and only a user could renew them, a caller that comes later finds out
    /// by this whether other ones are at hand.
    async fn credentials(&self) -> Option<u64> {
        None
    }

    /// How long a call that may be sent again may leave a silent server unasked, where the caller has no wish of its own
    /// ([`CallOptions::hung_after`](crate::CallOptions::hung_after) of a front). Default: 65 s, longer than hosts wait, for
    /// a new session may cost a process.
    fn hung_after(&self) -> Duration {
        HUNG_AFTER
    }

    /// How long [`LinkControl::close`] may take at most; `close_timeout` must be above it. Default: no time.
    fn close_bound(&self) -> Duration {
        Duration::ZERO
    }
}

/// See [`Connector::hung_after`].
const HUNG_AFTER: Duration = Duration::from_secs(65);

/// The terms of one attempt, for a [`Connector`].
#[derive(Clone, Debug)]
pub struct Attempt {
    /// The epoch that the link will serve.
    pub epoch: Epoch,
    /// Whether a user asked for this attempt, so that a login window may open.
    pub interactive: bool,
    /// Cancelled when the epoch is given up: the link's tasks end with it, at once.
    pub cancel: CancellationToken,
    /// Where the link's tasks are spawned; the runtime waits for all of them before the next epoch dials.
    pub tasks: TaskTracker,
}

/// An open channel to a server.
pub struct Link {
    /// Frames to the server, bounded.
    pub outbound: mpsc::Sender<Outbound>,
    /// Frames from the server, one message each; closed when the link has ended, which is also when it takes no more
    /// frames to the server.
    pub inbound: mpsc::Receiver<Box<str>>,
    /// The way around the frames: kill, close, facts.
    pub control: Arc<dyn LinkControl>,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link").field("facts", &self.control.facts()).finish_non_exhaustive()
    }
}

/// One frame on its way to the server, with the sender's wish to know what became of it.
///
/// Dropping it reports how far it got: [`Sent::No`] until [`begin`](Self::begin) was called, [`Sent::Maybe`] after.
#[derive(Debug)]
pub struct Outbound {
    frame: Box<str>,
    stage: Arc<AtomicU8>,
    done: Option<oneshot::Sender<Result<(), SendFailure>>>,
}

/// The stages of a frame: the transport begins with it, or its sender gives it up; the first of the two decides.
const WAITING: u8 = 0;
const BEGUN: u8 = 1;
const GIVEN_UP: u8 = 2;

impl Outbound {
    /// A frame, and its fate.
    pub fn new(frame: Box<str>) -> (Self, Fate) {
        let (sender, receiver) = oneshot::channel();
        let stage = Arc::new(AtomicU8::new(WAITING));
        (Self { frame, stage: stage.clone(), done: Some(sender) }, Fate { done: receiver, stage })
    }

    /// A frame whose fate interests nobody.
    pub fn detached(frame: Box<str>) -> Self {
        Self { frame, stage: Arc::new(AtomicU8::new(WAITING)), done: None }
    }

    /// The message, without its line end.
    pub fn frame(&self) -> &str {
        &self.frame
    }

    /// Asks for leave to send: from `true` on the server may have seen some of it, on `false` it was given up and must
    /// be left out.
    #[must_use = "a frame that was given up must not be sent"]
    pub fn begin(&mut self) -> bool {
        self.progress().begin()
    }

    /// Tells how far it is, for a transport that learns it while the frame is on its way.
    pub fn progress(&self) -> Progress {
        Progress(self.stage.clone())
    }

    /// Whether its sender has given it up before it was begun.
    pub(crate) fn is_given_up(&self) -> bool {
        self.stage.load(Ordering::Acquire) == GIVEN_UP
    }

    /// Resolves when its sender has given it up, whether it was begun or not: an exchange of it may be ended. Never for
    /// a frame whose fate interests nobody.
    pub async fn given_up(&mut self) {
        match &mut self.done {
            Some(done) => done.closed().await,
            None => std::future::pending().await,
        }
    }

    /// Reports its fate.
    pub fn finish(mut self, fate: Result<(), SendFailure>) {
        self.report(fate);
    }

    fn report(&mut self, fate: Result<(), SendFailure>) {
        if let Some(done) = self.done.take() {
            drop(done.send(fate));
        }
    }
}

/// How far an [`Outbound`] is.
#[derive(Clone, Debug)]
pub struct Progress(Arc<AtomicU8>);

impl Progress {
    /// As [`Outbound::begin`].
    #[must_use = "a frame that was given up must not be sent"]
    pub fn begin(&self) -> bool {
        match self.0.compare_exchange(WAITING, BEGUN, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => true,
            Err(stage) => stage == BEGUN,
        }
    }

    /// Takes that back: what was sent is known not to have run, and waits to be sent again.
    pub fn wait(&self) {
        _ = self.0.compare_exchange(BEGUN, WAITING, Ordering::AcqRel, Ordering::Acquire); // given up it stays
    }
}

impl Drop for Outbound {
    fn drop(&mut self) {
        if self.done.is_some() {
            let sent = if self.stage.load(Ordering::Acquire) == BEGUN { Sent::Maybe } else { Sent::No };
            self.report(Err(SendFailure::link_ended(sent)));
        }
    }
}

/// The future of an [`Outbound`]: resolves to `Ok` when it was written (stdio) or its exchange is over (HTTP).
///
/// Dropping it gives the frame up: a transport that has not begun with it leaves it out.
#[derive(Debug)]
pub struct Fate {
    done: oneshot::Receiver<Result<(), SendFailure>>,
    stage: Arc<AtomicU8>,
}

impl Fate {
    /// Gives the frame up. [`Sent::No`]: nothing of it was sent, nor will be.
    pub fn give_up(&self) -> Sent {
        match self.stage.compare_exchange(WAITING, GIVEN_UP, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) | Err(GIVEN_UP) => Sent::No,
            Err(_) => Sent::Maybe,
        }
    }
}

impl Future for Fate {
    type Output = Result<(), SendFailure>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        // An `Outbound` reports before its sender is dropped, so the channel never closes in silence.
        Pin::new(&mut self.done).poll(cx).map(|fate| fate.unwrap_or_else(|_| Err(SendFailure::link_ended(Sent::Maybe))))
    }
}

impl Drop for Fate {
    fn drop(&mut self) {
        self.give_up();
    }
}

/// The failure of a frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendFailure {
    /// The class, as the machine will see it.
    pub failure: Failure,
    /// How far the frame got.
    pub sent: Sent,
    /// The cause in words.
    pub cause: Arc<str>,
    /// Present where the failure may concern the session, or only this frame: the session is asked which.
    pub doubt: Option<Refusal>,
}

/// How a request was refused, as far as a transport can tell: compared with how the session answers when it is asked
/// something else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The status of HTTP; `None` where the exchange broke.
    pub status: Option<u16>,
    /// The code of the JSON-RPC error that came in place of an answer.
    pub code: Option<i64>,
    /// The message of that error, or the cause.
    pub message: Box<str>,
    /// Whether no handler has run where something else is refused with the same status, code and message.
    pub gate: bool,
}

impl SendFailure {
    /// The failure of a frame whose link ended around it: the link's own end says why.
    fn link_ended(sent: Sent) -> Self {
        Self { failure: Failure::new(FailureClass::Transport), sent, cause: LINK_ENDED.into(), doubt: None }
    }

    /// A message that could not even be written down.
    pub(crate) fn unwritable(error: &serde_json::Error) -> Self {
        let cause = error.to_string().into();
        Self { failure: Failure::new(FailureClass::Permanent), sent: Sent::No, cause, doubt: None }
    }

    /// Whether it only says that the link ended.
    pub(crate) fn is_link_end(&self) -> bool {
        &*self.cause == LINK_ENDED
    }
}

const LINK_ENDED: &str = "the link ended";

/// The way around a link's frames.
pub trait LinkControl: Send + Sync {
    /// Ends the link now: synchronous, idempotent, takes no lock, works while a write is stuck.
    fn kill(&self);

    /// Ends the link politely and completely: when it returns nothing of it is left. Bounded by the transport.
    fn close(&self) -> BoxFuture<'_, Ended>;

    /// Ends the link of a server that has read nothing for long as completely as [`close`](Self::close), but without
    /// waiting for it to heed a polite end. Default: as [`close`](Self::close).
    fn close_wedged(&self) -> BoxFuture<'_, Ended> {
        self.close()
    }

    /// The facts about the link as of now.
    fn facts(&self) -> LinkFacts;

    /// Resolves once the server has shown a first sign of life below the level of frames (a child: its first byte, on
    /// stdout or stderr). At once, where the transport has proof by
    /// being connected (HTTP); never, where it cannot tell.
    fn first_byte(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::pending())
    }

    /// The handshake settled on this protocol version (HTTP sends it as a header from now on).
    fn negotiated(&self, version: &str) {
        let _ = version;
    }

    /// A tool that the server lists, as it is listed. HTTP notes which of its arguments are wanted as headers.
    ///
    /// # Errors
    ///
    /// Why the tool cannot be offered over this link: it is left out of the list.
    fn offered(&self, tool: &RawValue) -> Result<(), String> {
        _ = tool;
        Ok(())
    }

    /// Asked right after a frame has failed: whether the link goes on all the same, as a session over HTTP does after
    /// one request that was refused, and a child after one answer that cannot be read. Default: no, the end of the link
    /// is near.
    fn survives(&self) -> bool {
        false
    }

    /// The session was asked and is lost: the link takes no more frames, lets exchanges under way settle, and ends with
    /// this. `false`, the default: it does nothing of the kind, and is ended as it is.
    fn give_up(&self, ended: &Ended) -> bool {
        _ = ended;
        false
    }

    /// Where the link reports to, for as long as the session lasts. Default: it has nothing to report.
    fn report_to(&self, report: Report) {
        drop(report);
    }

    /// Why the frames ended: exit status and the last lines of stderr, where they come within 250 ms (which the
    /// transport keeps), what is known by then otherwise.
    fn why(&self) -> BoxFuture<'_, Ended>;
}

/// Takes the news of a link. It must not wait.
pub type Report = Box<dyn Fn(LinkNews) + Send + Sync>;

/// Something about a link's session that is neither a frame nor the fate of one.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkNews {
    /// A stream that was open before broke, or is refused now.
    Doubt(Refusal),
    /// A stream of changes was opened anew without going on where it ended: what was announced in between is lost.
    Reopened,
}

/// How a link ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The class, as the machine will see it.
    pub failure: Failure,
    /// The cause in words: exit status and the last lines of stderr, HTTP status, ….
    pub cause: Arc<str>,
}

/// Facts about a link.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LinkFacts {
    /// The process, for a child.
    pub pid: Option<u32>,
    /// Where the server is, for HTTP.
    pub address: Option<Arc<str>>,
    /// The session id that the server gave, for HTTP.
    pub session_id: Option<Arc<str>>,
    /// When the last byte came in.
    pub last_byte: Option<Instant>,
    /// How many lines came in that were no protocol message.
    pub noise: u64,
    /// The last lines that a child wrote to stderr.
    pub stderr_tail: Vec<String>,
    /// How many requests and notifications of the server were more than is taken at once: 256 requests and, for a typed
    /// handler, 1,024 notifications.
    pub refused: u64,
}

/// Why a channel could not be opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectError {
    /// The class, as the machine will see it.
    pub failure: Failure,
    /// The cause in words.
    pub cause: Arc<str>,
}

impl ConnectError {
    /// An error of this class, with its cause.
    pub fn new(failure: impl Into<Failure>, cause: impl Into<Arc<str>>) -> Self {
        Self { failure: failure.into(), cause: cause.into() }
    }
}

impl fmt::Display for ConnectError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.cause)
    }
}

impl Error for ConnectError {}

/// How many outbound frames a link queues before its senders wait.
pub(crate) const OUTBOUND_CAPACITY: usize = 64;
/// How many inbound frames a link queues before its reader waits.
pub(crate) const INBOUND_CAPACITY: usize = 64;
/// How long a link may take to say why it ended, once its frames have.
pub(crate) const WHY_TIMEOUT: Duration = Duration::from_millis(250);
/// Over how long the clients of a shared server spread their first redials, and their questions after a suspend.
pub(crate) const REDIAL_SPREAD: Duration = Duration::from_millis(250);
