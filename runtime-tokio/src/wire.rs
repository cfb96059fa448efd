//! The one reader of an epoch's link: matches answers, keeps the facts of liveness, passes the rest to the view.

pub(crate) mod asks;
mod call;
pub(crate) mod mailbox;
mod open;
pub(crate) mod progress;
mod queue;
pub(crate) mod relay;
mod relayed;
#[cfg(test)]
pub(crate) mod testlink;

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use mcp_reconnect_core::{Epoch, Failure, FailureClass};
use rmcp::model::ErrorCode;
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use crate::link::{Ended, Fate, Link, LinkControl, Outbound, Refusal, SendFailure, WHY_TIMEOUT};
use crate::protocol::frame::{self, Frame, Meta, RpcError, id_number};
use crate::watched::Watched;

pub(crate) use call::{Answer, Call, CallFailure};
pub(crate) use relayed::Relayed;

use asks::{Asks, StandStill};
use mailbox::{Mailbox, MailboxReader, mailbox};
use open::{Noted, OpenCall, OpenRequests};
use progress::{CallProgress, Tellings, Told};

/// Our own request ids start here; a view counts from 0, so answers are told apart by id alone.
pub(crate) const FIRST_ID: u64 = 1 << 30;

/// How many answers that we give to the server by ourselves may wait for the pipe; what is more goes unanswered.
const REPLIES: usize = 64;

/// The ids of our requests: shared by the epochs of a connection, so that a late answer of an old one, sent again by a
/// new incarnation of the server, is nobody's.
#[derive(Clone, Debug)]
pub(crate) struct RequestIds(Arc<AtomicU64>);

impl Default for RequestIds {
    fn default() -> Self {
        Self(Arc::new(AtomicU64::new(FIRST_ID)))
    }
}

impl RequestIds {
    fn next(&self) -> u64 {
        self.0.fetch_add(1, Ordering::Relaxed)
    }
}

/// A cheap handle on the multiplexer of one link.
#[derive(Clone)]
pub(crate) struct Wire(Arc<Shared>);

struct Shared {
    epoch: Epoch,
    outbound: mpsc::Sender<Outbound>,
    notices: Mutex<Notices>,
    /// Where the link's tasks run.
    runtime: Handle,
    tasks: TaskTracker,
    control: Arc<dyn LinkControl>,
    token: CancellationToken,
    given_up: AtomicBool,
    news: Watched<News>,
    open: OpenRequests,
    /// What the server has asked and was not answered.
    asks: Asks,
    /// Progress on its way to a typed handler.
    tellings: Tellings,
    view: Mutex<Option<MailboxReader>>,
    /// Takes what the server asks and tells, until the end.
    relayed: Mutex<Option<Box<Relayed>>>,
    attached: AtomicBool,
    ids: RequestIds,
    /// The start that `last_inbound` counts from.
    base: Instant,
    last_inbound: AtomicU64,
    /// What was answered with a result, of what can be asked again without harm.
    known: AtomicU8,
    /// Takes what raises doubt and has no caller that settles it.
    doubts: OnceLock<Doubts>,
    answers: Mutex<Answers>,
    stats: Stats,
}

/// Takes what may concern the session: the method that was asked, where that is known, and what came of it.
pub(crate) type Doubts = Box<dyn Fn(&str, Raised<'_>) + Send + Sync>;

/// What came of a request whose caller does not ask the session itself.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Raised<'a> {
    /// An error under the request's own id.
    Error(&'a RpcError),
    /// The transport doubts it.
    Failed(&'a Refusal),
}

/// The requests that a session can be asked again without harm, by method.
pub(crate) const HARMLESS: [&str; 6] =
    ["tools/list", "resources/list", "prompts/list", "resources/templates/list", "ping", "server/discover"];

/// News that others wait for.
#[derive(Default)]
struct News {
    changes: ListChanges,
    /// The owner's verdict, where the end was ours; how the link ended, when it has.
    why: Option<Ended>,
    over: bool,
}

/// Frames that found no room in the link's queue.
#[derive(Default)]
struct Notices {
    waiting: VecDeque<Notice>,
    /// How many of them are replies.
    replies: usize,
    /// A task sends them, so that they keep their order.
    sending: bool,
}

/// A frame that takes its place at once.
enum Notice {
    Cancel(Box<str>),
    Reply(Box<str>),
    /// One whose sender waits for its fate.
    Frame(Outbound),
}

#[derive(Default)]
struct Stats {
    late: AtomicU64,
    unreadable: AtomicU64,
    dropped: AtomicU64,
    refused: AtomicU64,
}

/// Counts of the frames that a wire left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct WireStats {
    /// Answers to requests of ours that were settled already, or never asked.
    pub(crate) late: u64,
    /// Frames that were no message, or an error that names no request.
    pub(crate) unreadable: u64,
    /// Frames that found no room: too many before a view was attached, or pings faster than their answers can leave.
    pub(crate) dropped: u64,
    /// Requests and notifications of the server beyond what is taken at once.
    pub(crate) refused: u64,
}

/// The answers since they were last looked at.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answers {
    /// A call was answered.
    pub(crate) answered: bool,
    /// A call got a result that is none of an error (`isError`).
    pub(crate) served: bool,
    /// The latest time at which anything was sent that was answered, pings and listings included.
    pub(crate) sent: Option<Instant>,
}

/// How often the server said that a list changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListChanges {
    pub(crate) tools: u64,
    pub(crate) prompts: u64,
    pub(crate) resources: u64,
}

/// How a request is sent and watched.
#[derive(Clone, Copy, Default)]
pub(crate) struct RequestOptions<'a> {
    /// `_meta` members to send along where the parameters do not bring their own.
    pub(crate) meta: &'a Meta,
    /// Which progress is reported, see [`Call::progress`].
    pub(crate) progress: ProgressToken<'a>,
    /// The server is not told when the call is dropped (`initialize` and probes must not be cancelled).
    pub(crate) uncancelled: bool,
    /// Not counted as an open call: pings and probes, and what is answered only at its end (`subscriptions/listen`).
    pub(crate) uncounted: bool,
    /// Until when it counts as open, for a request that loses nothing by the end of its session.
    pub(crate) counts_until: Option<Instant>,
    /// Its caller settles doubts about its answer. Without this the wire raises them.
    pub(crate) held: bool,
    /// What was told of the progress of the caller's own token, by earlier sendings too.
    pub(crate) told: Option<&'a Arc<Told>>,
    /// The deadline of its caller, which stands still while the server asks for something.
    pub(crate) still: Option<&'a Arc<StandStill>>,
}

/// How a request asks for progress notifications.
#[derive(Clone, Copy, Default)]
pub(crate) enum ProgressToken<'a> {
    /// Not at all.
    #[default]
    None,
    /// With a token of ours.
    Own,
    /// With the caller's own, which its parameters hold.
    Callers(&'a RawValue),
}

impl Wire {
    /// Takes over a link; its tasks are spawned on `tasks`.
    ///
    /// `token` is this link's own: cancelling it ends the wire, and the end of the link cancels it.
    pub(crate) fn new(
        epoch: Epoch,
        link: Link,
        token: CancellationToken,
        tasks: &TaskTracker,
        ids: RequestIds,
    ) -> Self {
        let (mailbox, reader) = mailbox();
        let wire = Self(Arc::new(Shared {
            epoch,
            outbound: link.outbound,
            notices: Mutex::default(),
            runtime: Handle::current(),
            tasks: tasks.clone(),
            control: link.control,
            token,
            given_up: AtomicBool::new(false),
            news: Watched::default(),
            open: OpenRequests::default(),
            asks: Asks::default(),
            tellings: Tellings::default(),
            view: Mutex::new(Some(reader)),
            relayed: Mutex::default(),
            attached: AtomicBool::new(false),
            ids,
            base: Instant::now(),
            last_inbound: AtomicU64::new(0),
            known: AtomicU8::new(0),
            doubts: OnceLock::new(),
            answers: Mutex::default(),
            stats: Stats::default(),
        }));
        tasks.spawn(wire.clone().pump(link.inbound, mailbox).in_current_span());
        wire
    }

    /// The epoch that this link serves.
    pub(crate) fn epoch(&self) -> Epoch {
        self.0.epoch
    }

    /// The way around the frames.
    pub(crate) fn control(&self) -> &Arc<dyn LinkControl> {
        &self.0.control
    }

    /// Prepares a request. Nothing is sent before the call's answer is awaited; dropping the call gives it up.
    ///
    /// Parameters that are no object are sent as they are, without `_meta`.
    pub(crate) fn request(&self, method: &str, params: Option<&RawValue>, options: RequestOptions<'_>) -> Call {
        let id = self.0.ids.next();
        let params = params.map(RawValue::get);
        let own = matches!(options.progress, ProgressToken::Own).then_some(id);
        let text = if own.is_some() || !options.meta.is_empty() {
            frame::with_meta(params, options.meta, own).ok()
        } else {
            None
        };
        let (outbound, fate) = Outbound::new(frame::request(id, method, text.as_deref().or(params)));
        let (sender, answer) = oneshot::channel();
        let progress = (!matches!(options.progress, ProgressToken::None)).then(Arc::<CallProgress>::default);
        let token = match options.progress {
            ProgressToken::Callers(token) => Some(frame::canonical(token)),
            ProgressToken::None | ProgressToken::Own => None,
        };
        let call = OpenCall {
            sent: Instant::now(),
            uncounted: options.uncounted,
            counts_until: options.counts_until,
            harmless: HARMLESS.iter().position(|harmless| *harmless == method),
            token,
            told: options.told.cloned(),
            told_before: options.told.and_then(|told| told.highest()),
            answer: sender,
            progress: progress.clone(),
            still: options.still.cloned(),
        };
        self.0.open.open(id, call);
        let mut call = Call::new(self.clone(), id, (outbound, fate), answer, progress, options.uncancelled);
        if !options.held {
            call.raises(method);
        }
        call
    }

    /// Sends a notification; returns when it is written (stdio) or accepted (HTTP).
    ///
    /// # Errors
    ///
    /// How far it got, and why not further.
    pub(crate) async fn notify(&self, method: &str, params: Option<&RawValue>) -> Result<(), SendFailure> {
        match self.send(frame::notification(method, params.map(RawValue::get))).await {
            Ok(()) => Ok(()),
            Err(failure) => Err(self.explain(failure).await),
        }
    }

    /// A frame that was lost with its link is explained by the link's end, which is about to be known. A pipe that fails
    /// is such an end: what the process died of says more.
    pub(crate) async fn explain(&self, failed: SendFailure) -> SendFailure {
        let ends_link = failed.is_link_end() || self.control().facts().pid.is_some();
        if (ends_link || self.end_cause().is_some())
            && let Ok(Ended { failure, cause }) = timeout(WHY_TIMEOUT * 4, self.ended()).await
        {
            return SendFailure { failure, cause, doubt: None, ..failed };
        }
        failed
    }

    /// Sends a frame as it is; dropping the future gives up what was not begun.
    ///
    /// # Errors
    ///
    /// How far it got, and why not further.
    pub(crate) fn send(&self, frame: Box<str>) -> Fate {
        let (outbound, fate) = Outbound::new(frame);
        // In the order in which they were given, with room and without: a frame that is lost here is told by its fate.
        self.notice(Notice::Frame(outbound));
        fate
    }

    /// Hands over the frames for a view, those that came so far first. `None` when it was taken already.
    pub(crate) fn attach(&self) -> Option<MailboxReader> {
        let reader = self.0.view.lock().unwrap_or_else(PoisonError::into_inner).take();
        self.0.attached.store(true, Ordering::Release);
        reader
    }

    /// From now on what the server asks and tells goes there at once, in its place between the answers; what came before,
    /// which waits in `early`, goes first.
    pub(crate) fn relay_to(&self, relayed: Relayed, early: &mut MailboxReader) {
        let mut relay = self.0.relayed.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(text) = early.try_next() {
            relayed.take(&Frame::parse(&text));
        }
        // The wire's end, which empties this, may have come before.
        if self.end_cause().is_none() {
            *relay = Some(Box::new(relayed));
        }
    }

    /// Notes a request of the view as open, until its answer passes by or it is given up.
    pub(crate) fn view_asked(&self, id: u64) {
        self.0.open.open_view(id);
    }

    /// The view no longer waits for this request.
    pub(crate) fn view_gave_up(&self, id: u64) {
        self.0.open.close_view(id);
    }

    /// Answers a request of the server by ourselves, without waiting.
    pub(crate) fn reply(&self, frame: Box<str>) {
        if self.notices().replies < REPLIES {
            self.notice(Notice::Reply(frame));
        } else {
            self.0.stats.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A request of the server is open no more: it was answered, refused or taken back.
    pub(crate) fn ask_over(&self, id: &RawValue) {
        self.0.asks.end(id);
    }

    /// Whether a request of the server is open.
    pub(crate) fn is_asked(&self, id: &RawValue) -> bool {
        self.0.asks.is_open(id)
    }

    /// Progress with this token has been told to the handler.
    pub(crate) fn progress_told(&self, token: &RawValue) {
        self.0.tellings.end(&frame::canonical(token));
    }

    /// Counts a message of the server that is more than is taken at once.
    pub(crate) fn note_refused(&self) {
        if self.0.stats.refused.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!(epoch = %self.0.epoch, "the server asks or tells more than is taken at once");
        }
    }

    /// Ends the wire for this reason, which its calls are told.
    pub(crate) fn end(&self, verdict: Ended) {
        self.0.news.update(|news| _ = news.why.get_or_insert(verdict));
        self.0.token.cancel();
    }

    /// How the link ended, once it has: from then on no call is open.
    pub(crate) fn ended(&self) -> impl Future<Output = Ended> + Send {
        self.0.news.when(News::end)
    }

    /// How the link ended, if it has.
    pub(crate) fn end_cause(&self) -> Option<Ended> {
        self.0.news.look(News::end)
    }

    /// Whether the wire ended because this side gave it up, not because the link did.
    pub(crate) fn was_given_up(&self) -> bool {
        self.0.given_up.load(Ordering::Acquire)
    }

    /// When the last frame came in; when the wire was made, before the first.
    pub(crate) fn last_inbound(&self) -> Instant {
        self.0.base + Duration::from_nanos(self.0.last_inbound.load(Ordering::Acquire))
    }

    /// Notes a sign of life that was no frame.
    pub(crate) fn touch(&self) {
        let now = Instant::now().saturating_duration_since(self.0.base);
        self.0.last_inbound.store(u64::try_from(now.as_nanos()).unwrap_or(u64::MAX), Ordering::Release);
    }

    /// The server may have been another one for a moment: every list may have changed.
    pub(crate) fn presume_changes(&self) {
        self.0.news.update(|News { changes, .. }| {
            changes.tools += 1;
            changes.prompts += 1;
            changes.resources += 1;
        });
    }

    /// Whether a request of this method, one of [`HARMLESS`], was answered with a result.
    pub(crate) fn knows(&self, method: &str) -> bool {
        let known = self.0.known.load(Ordering::Acquire);
        HARMLESS.iter().position(|harmless| *harmless == method).is_some_and(|bit| known & 1 << bit != 0)
    }

    /// Where doubts are raised that no caller settles; set once.
    pub(crate) fn raise_to(&self, doubts: Doubts) {
        drop(self.0.doubts.set(doubts)); // an error says that it was set before
    }

    /// Raises a doubt that no caller settles.
    pub(crate) fn raise(&self, method: &str, raised: Raised<'_>) {
        if let Some(doubts) = self.0.doubts.get() {
            doubts(method, raised);
        }
    }

    /// Runs this beside the link; its end is waited for when the link is closed.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.tasks.spawn_on(task.in_current_span(), &self.0.runtime);
    }

    /// The answers since this was last asked.
    pub(crate) fn take_answers(&self) -> Answers {
        std::mem::take(&mut *self.0.answers.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// When the oldest open request was made.
    pub(crate) fn oldest_open(&self) -> Option<Instant> {
        self.0.open.oldest()
    }

    /// How many requests are open.
    #[cfg(test)]
    pub(crate) fn open_count(&self) -> usize {
        self.0.open.count()
    }

    /// Resolves when no request is open, or the wire has ended.
    pub(crate) async fn drained(&self) {
        self.0.open.drained().await;
    }

    /// How many `list_changed` notifications came.
    pub(crate) fn list_changes(&self) -> ListChanges {
        self.0.news.look(|news| news.changes)
    }

    /// Resolves when more of them came than these. An error is the end of the link.
    pub(crate) fn list_changes_since(&self, seen: ListChanges) -> impl Future<Output = Result<(), Ended>> + Send {
        let more = move |news: &News| match news.end() {
            Some(ended) => Some(Err(ended)),
            None => (news.changes != seen).then_some(Ok(())),
        };
        self.0.news.when(more)
    }

    /// Counts the frames that were left out so far.
    pub(crate) fn stats(&self) -> WireStats {
        let Stats { late, unreadable, dropped, refused } = &self.0.stats;
        WireStats {
            late: late.load(Ordering::Relaxed),
            unreadable: unreadable.load(Ordering::Relaxed),
            dropped: dropped.load(Ordering::Relaxed),
            refused: refused.load(Ordering::Relaxed),
        }
    }

    /// Queues a frame where there is room, or gives it back.
    pub(crate) fn try_queue(&self, frame: Outbound) -> Result<(), Outbound> {
        self.0.outbound.try_send(frame).map_err(mpsc::error::TrySendError::into_inner)
    }

    /// Waits for room in the link's queue; an error when the link takes no more.
    pub(crate) async fn reserve(&self) -> Result<mpsc::Permit<'_, Outbound>, mpsc::error::SendError<()>> {
        self.0.outbound.reserve().await
    }

    /// Closes an open request of ours; `false` when it was settled already.
    pub(crate) fn forget(&self, id: u64) -> bool {
        self.0.open.close(id).is_some()
    }

    /// Tells the server that a request of ours is given up, without waiting.
    pub(crate) fn cancel(&self, notification: Box<str>) {
        self.notice(Notice::Cancel(notification));
    }

    async fn pump(self, mut inbound: mpsc::Receiver<Box<str>>, mailbox: Mailbox) {
        let _ending = Ending(&self);
        let mut cancelled = pin!(self.0.token.cancelled());
        loop {
            tokio::select! {
                biased;
                () = &mut cancelled => {
                    self.0.given_up.store(true, Ordering::Release);
                    // Frames that have arrived count.
                    for _ in 0..inbound.len() {
                        if let Ok(frame) = inbound.try_recv() {
                            drop(self.route(frame, &mailbox));
                        }
                    }
                    break;
                }
                frame = inbound.recv() => match frame {
                    Some(frame) => {
                        if let Some(frame) = self.route(frame, &mailbox) {
                            Box::pin(self.wait_for_room(frame, &mailbox)).await;
                        }
                    }
                    None => break,
                },
            }
        }
        // The view hears of the end before the cause is known: handlers of a dead epoch stop at once.
        drop(mailbox);
        let ended = match self.0.news.look(|news| news.why.clone()) {
            Some(verdict) => verdict,
            None if self.was_given_up() => closed_here(),
            None => Box::pin(self.why()).await,
        };
        self.finish(ended);
    }

    async fn why(&self) -> Ended {
        timeout(WHY_TIMEOUT * 2, self.0.control.why()).await.unwrap_or_else(|_| Ended {
            failure: Failure::new(FailureClass::Transport),
            cause: "the server closed the connection".into(),
        })
    }

    /// Settles everything that is open, with this as the reason; the first one stays.
    fn finish(&self, ended: Ended) {
        self.0.news.update(|news| {
            if !news.over {
                news.why = Some(ended);
                news.over = true;
            }
        });
        // It holds this wire.
        drop(self.0.relayed.lock().unwrap_or_else(PoisonError::into_inner).take());
        self.0.asks.clear();
        self.drop_notices();
        let lost = self.0.open.close_all();
        tracing::debug!(epoch = %self.0.epoch, lost, stats = ?self.stats(), "the wire is at its end");
        self.0.token.cancel();
    }

    /// Takes a frame to where it belongs. One for the view is given back when the view has no room for it yet.
    fn route(&self, text: Box<str>, mailbox: &Mailbox) -> Option<Box<str>> {
        let now = Instant::now().saturating_duration_since(self.0.base);
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        self.0.last_inbound.store(now, Ordering::Release);
        let frame = Frame::parse(&text);
        let mut telling = None;
        match &frame {
            Frame::Response { id, outcome } => match id_number(id) {
                Some(number) if number >= FIRST_ID => {
                    self.settle(number, *outcome);
                    return None;
                }
                Some(number) => {
                    if let Some(sent) = self.0.open.close_view(number) {
                        self.note_answer(sent, true);
                        match outcome {
                            Ok(result) if is_error(result) => {}
                            Ok(_) => self.note_served(),
                            Err(error) => self.raise("", Raised::Error(&RpcError::parse(error))),
                        }
                    }
                }
                None => {}
            },
            Frame::Request { id, method, .. } if method == "ping" => {
                self.reply(frame::result(id, "{}"));
                return None;
            }
            Frame::Request { id, method, .. } => {
                if let Err((code, why)) = self.0.asks.begin(id, method, || self.0.open.deadlines()) {
                    self.note_refused();
                    self.reply(frame::error(id, code.0, why));
                    return None;
                }
            }
            Frame::Notification { method, params } if method == "notifications/progress" => {
                match self.note_progress(*params) {
                    Some((_, Noted::HeldBack)) => return None,
                    Some((token, Noted::Passed(Some(progress)))) => telling = Some((token, progress)),
                    Some((_, Noted::Passed(None))) | None => {}
                }
            }
            Frame::Notification { method, .. } => self.note(method),
            Frame::Unreadable(why) => {
                self.0.stats.unreadable.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(epoch = %self.0.epoch, "skipped a frame: {why}");
                return self.settle_broken(&text).and_then(|error| self.to_view(error, mailbox));
            }
        }
        if self.relayed(&frame) {
            return None;
        }
        if let Some((token, progress)) = &telling {
            self.0.tellings.begin(token, progress);
        }
        self.to_view(text, mailbox)
    }

    /// Gives the view a message, or gives it back when there is no room for it yet.
    fn to_view(&self, text: Box<str>, mailbox: &Mailbox) -> Option<Box<str>> {
        let attached = self.0.attached.load(Ordering::Acquire);
        let text = mailbox.try_put(text).err()?;
        if attached {
            return Some(text);
        }
        self.not_seen(&Frame::parse(&text));
        let dropped = self.0.stats.dropped.fetch_add(1, Ordering::Relaxed);
        if dropped == 0 {
            tracing::warn!(epoch = %self.0.epoch, "the server sends more before the handshake than is kept for it");
        }
        None
    }

    /// A message does not get to its handler: nothing waits for it there.
    pub(crate) fn not_seen(&self, frame: &Frame<'_>) {
        match frame {
            Frame::Request { id, .. } => self.ask_over(id),
            Frame::Notification { method, params: Some(params) } if method == "notifications/progress" => {
                if let Some((token, _)) = progress_of(params) {
                    self.progress_told(token);
                }
            }
            Frame::Notification { .. } | Frame::Response { .. } | Frame::Unreadable(_) => {}
        }
    }

    async fn wait_for_room(&self, text: Box<str>, mailbox: &Mailbox) {
        tokio::select! {
            biased;
            () = mailbox.put(text) => {}
            () = self.0.token.cancelled() => {}
        }
    }

    /// Gives a message to the relay, if there is one and it is for it.
    fn relayed(&self, frame: &Frame<'_>) -> bool {
        let relay = self.0.relayed.lock().unwrap_or_else(PoisonError::into_inner);
        relay.as_ref().is_some_and(|relay| relay.take(frame))
    }

    fn settle(&self, id: u64, outcome: Result<&RawValue, &RawValue>) {
        let Some(call) = self.0.open.close(id) else {
            self.0.stats.late.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(epoch = %self.0.epoch, id, "dropped an answer that nobody waits for");
            return;
        };
        if let (Some(bit), Ok(_)) = (call.harmless, outcome) {
            self.0.known.fetch_or(1 << bit, Ordering::AcqRel);
        }
        self.note_answer(call.sent, !call.uncounted);
        drop(call.answer.send(Ok(outcome.map(ToOwned::to_owned).map_err(ToOwned::to_owned))));
    }

    /// Settles the request that a broken message answers. For one of the view that takes an error, which is returned.
    fn settle_broken(&self, text: &str) -> Option<Box<str>> {
        let id = frame::broken_answer(text)?;
        let cause = format!("the answer cannot be read: {}", frame::excerpt(text).replace(char::is_control, " "));
        if let Some(call) = self.0.open.close(id) {
            drop(call.answer.send(Err(cause.into())));
            return None;
        }
        let id = serde_json::value::to_raw_value(&id).ok().filter(|_| self.0.open.close_view(id).is_some())?;
        Some(frame::error(&id, ErrorCode::INTERNAL_ERROR.0, &cause))
    }

    /// Notes an answer to something that was sent then. A pong is a sign of life, but no call was answered.
    fn note_answer(&self, sent: Instant, call: bool) {
        let mut answers = self.0.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.answered |= call;
        answers.sent = answers.sent.max(Some(sent));
    }

    /// Notes that a call has had a result.
    pub(crate) fn note_served(&self) {
        self.0.answers.lock().unwrap_or_else(PoisonError::into_inner).served = true;
    }

    /// Notes the progress of a call: its token, and what to do with it.
    fn note_progress(&self, params: Option<&RawValue>) -> Option<(Box<str>, Noted)> {
        let (token, value) = progress_of(params?)?;
        Some((frame::canonical(token), self.0.open.note_progress(token, value)))
    }

    fn note(&self, method: &str) {
        match method {
            "notifications/tools/list_changed" => self.0.news.update(|news| news.changes.tools += 1),
            "notifications/prompts/list_changed" => self.0.news.update(|news| news.changes.prompts += 1),
            "notifications/resources/list_changed" => self.0.news.update(|news| news.changes.resources += 1),
            _ => {}
        }
    }

    /// Sends what takes its place at once: neither the reader nor a dropped call ever waits for the pipe.
    fn notice(&self, notice: Notice) {
        let mut notices = self.notices();
        if !notices.sending {
            match self.0.outbound.try_reserve() {
                Ok(room) => return room.send(notice.into()),
                Err(mpsc::error::TrySendError::Closed(())) => return,
                Err(mpsc::error::TrySendError::Full(())) => {
                    notices.sending = true;
                    // The caller may be outside a runtime.
                    self.0.tasks.spawn_on(self.clone().send_notices().in_current_span(), &self.0.runtime);
                }
            }
        }
        notices.push(notice);
    }

    fn notices(&self) -> MutexGuard<'_, Notices> {
        self.0.notices.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends what found no room, for as long as there is any.
    async fn send_notices(self) {
        let send = async {
            loop {
                let Some(notice) = self.notices().pop() else { break };
                if self.0.outbound.send(notice.into()).await.is_err() {
                    break;
                }
            }
        };
        tokio::select! {
            () = send => {}
            () = self.0.token.cancelled() => {}
        }
        self.drop_notices();
    }

    /// What still waits is lost: who waits for its fate is told.
    fn drop_notices(&self) {
        let waiting = std::mem::take(&mut *self.notices());
        drop(waiting); // not under the lock
    }
}

impl News {
    /// How the link ended, if it has.
    fn end(&self) -> Option<Ended> {
        self.why.clone().filter(|_| self.over)
    }
}

impl Notices {
    fn push(&mut self, notice: Notice) {
        if self.waiting.len() == self.waiting.capacity() {
            // Before the queue grows: what was given up.
            self.waiting.retain(|notice| !matches!(notice, Notice::Frame(frame) if frame.is_given_up()));
        }
        self.replies += usize::from(matches!(notice, Notice::Reply(_)));
        self.waiting.push_back(notice);
    }

    /// The next one. When there is none, the next one that comes is sent at once.
    fn pop(&mut self) -> Option<Notice> {
        let next = self.waiting.pop_front();
        match &next {
            Some(Notice::Reply(_)) => self.replies -= 1,
            Some(Notice::Cancel(_) | Notice::Frame(_)) => {}
            None => *self = Self::default(),
        }
        next
    }
}

impl From<Notice> for Outbound {
    fn from(notice: Notice) -> Self {
        match notice {
            Notice::Cancel(frame) | Notice::Reply(frame) => Self::detached(frame),
            Notice::Frame(frame) => frame,
        }
    }
}

/// However the reader ends, calls in other runtimes included are settled: its own may be going down.
struct Ending<'a>(&'a Wire);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.finish(closed_here());
    }
}

/// The token of a progress notification, and how far it got.
fn progress_of(params: &RawValue) -> Option<(&RawValue, Option<f64>)> {
    #[derive(Deserialize)]
    struct Progress<'a> {
        #[serde(borrow, rename = "progressToken")]
        token: &'a RawValue,
        #[serde(borrow, default)]
        progress: Option<&'a RawValue>,
    }
    let Progress { token, progress } = serde_json::from_str(params.get()).ok()?;
    Some((token, progress.and_then(|progress| progress.get().parse().ok())))
}

/// Whether a result is a tool's way to say that it failed, without reading it where the word does not occur.
fn is_error(result: &RawValue) -> bool {
    #[derive(Deserialize)]
    struct Outcome {
        #[serde(rename = "isError", default)]
        is_error: bool,
    }
    result.get().contains("\"isError\"")
        && serde_json::from_str::<Outcome>(result.get()).is_ok_and(|outcome| outcome.is_error)
}

fn closed_here() -> Ended {
    Ended { failure: Failure::new(FailureClass::Transport), cause: "the connection was closed".into() }
}

#[cfg(test)]
mod tests;
