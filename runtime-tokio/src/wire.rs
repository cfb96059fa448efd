//! The one reader of an epoch's link: matches answers, keeps the facts of liveness, passes the rest to the view.

mod call;
pub(crate) mod mailbox;
mod open;
mod queue;
pub(crate) mod relay;
mod relayed;
#[cfg(test)]
pub(crate) mod testlink;

use std::collections::VecDeque;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::future::Either;
use mcp_reconnect_core::{Epoch, Failure, FailureClass};
use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::runtime::Handle;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use crate::link::{Ended, Fate, Link, LinkControl, Outbound, SendFailure, WHY_TIMEOUT};
use crate::protocol::frame::{self, Frame, Meta, id_number};
use crate::watched::Watched;

pub(crate) use call::{Answer, Call, CallFailure};
pub(crate) use relayed::Relayed;

use mailbox::{Mailbox, MailboxReader, mailbox};
use open::{OpenCall, OpenRequests};

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
    view: Mutex<Option<MailboxReader>>,
    /// Takes what the server asks and tells, until the end.
    relayed: Mutex<Option<Box<Relayed>>>,
    attached: AtomicBool,
    ids: RequestIds,
    /// The start that `last_inbound` counts from.
    base: Instant,
    last_inbound: AtomicU64,
    answered: AtomicBool,
    stats: Stats,
}

/// News that others wait for.
#[derive(Default)]
struct News {
    /// A frame has come in.
    heard: bool,
    changes: ListChanges,
    announced: Announced,
    /// There is no stream over which changes could be told.
    mute: bool,
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

/// A frame that nobody waits for.
enum Notice {
    Cancel(Box<str>),
    Reply(Box<str>),
}

#[derive(Default)]
struct Stats {
    late: AtomicU64,
    unreadable: AtomicU64,
    dropped: AtomicU64,
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
}

/// How much came over streams of changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Announced {
    /// How many such streams were begun.
    pub(crate) streams: u64,
    /// How many changes were told, of lists and of resources.
    pub(crate) events: u64,
}

/// Why lists may not be what they were.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ListChanges {
    pub(crate) tools: Change,
    pub(crate) prompts: Change,
    pub(crate) resources: Change,
}

/// Why one list may not be what it was: how often there was which reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Change {
    /// The server said that it changed.
    pub(crate) told: u64,
    /// What the server may have said was lost.
    pub(crate) presumed: u64,
    /// A caller has asked for something that is not in it.
    pub(crate) asked: u64,
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
            view: Mutex::new(Some(reader)),
            relayed: Mutex::default(),
            attached: AtomicBool::new(false),
            ids,
            base: Instant::now(),
            last_inbound: AtomicU64::new(0),
            answered: AtomicBool::new(false),
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
        let progress = (!matches!(options.progress, ProgressToken::None)).then(Arc::<Notify>::default);
        let token = match options.progress {
            ProgressToken::Callers(token) => Some(token.get().into()),
            ProgressToken::None | ProgressToken::Own => None,
        };
        let call = OpenCall {
            sent: Instant::now(),
            uncounted: options.uncounted,
            counts_until: options.counts_until,
            token,
            answer: sender,
            progress: progress.clone(),
        };
        self.0.open.open(id, call);
        Call::new(self.clone(), id, (outbound, fate), answer, progress, options.uncancelled)
    }

    /// Sends a notification; returns when it is written (stdio) or accepted (HTTP).
    ///
    /// # Errors
    ///
    /// How far it got, and why not further.
    pub(crate) async fn notify(&self, method: &str, params: Option<&RawValue>) -> Result<(), SendFailure> {
        self.send(frame::notification(method, params.map(RawValue::get))).await
    }

    /// Sends a frame as it is; dropping the future gives up what was not begun.
    ///
    /// # Errors
    ///
    /// How far it got, and why not further.
    pub(crate) fn send(
        &self,
        frame: Box<str>,
    ) -> impl Future<Output = Result<(), SendFailure>> + Send + 'static + use<> {
        let (outbound, fate) = Outbound::new(frame);
        // Frames that find room are queued in the order in which they were given.
        match self.0.outbound.try_send(outbound) {
            Ok(()) => Either::Left(fate),
            // Boxed, for it is rare, and rmcp's service has room for this future all the time.
            Err(mpsc::error::TrySendError::Full(outbound) | mpsc::error::TrySendError::Closed(outbound)) => {
                Either::Right(Box::pin(self.clone().wait_and_send(outbound, fate)))
            }
        }
    }

    async fn wait_and_send(self, outbound: Outbound, fate: Fate) -> Result<(), SendFailure> {
        tokio::select! {
            biased;
            sent = self.0.outbound.send(outbound) => drop(sent), // an error has dropped the frame: its fate says so
            () = self.0.token.cancelled() => {}
        }
        fate.await
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

    /// Resolves when the first frame has come in.
    pub(crate) async fn heard(&self) {
        self.0.news.when(|news| news.heard.then_some(())).await;
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

    /// What the server may have told of its lists was lost: each that it announces changes of may have changed.
    pub(crate) fn presume_changes(&self) {
        self.0.news.update(|News { changes: ListChanges { tools, prompts, resources }, .. }| {
            [tools, prompts, resources].into_iter().for_each(|list| list.presumed += 1);
        });
    }

    /// The server is another one than before: its lists are others, as if it had said so.
    pub(crate) fn server_changed(&self) {
        self.0.news.update(|News { changes: ListChanges { tools, prompts, resources }, .. }| {
            [tools, prompts, resources].into_iter().for_each(|list| list.told += 1);
        });
    }

    /// Has the tools listed for a caller, unless that is under way: more was asked for than what is `covered`. The count
    /// that covers the caller.
    pub(crate) fn ask_for_tools(&self, covered: u64) -> u64 {
        let mut count = 0;
        self.0.news.update(|News { changes: ListChanges { tools, .. }, .. }| {
            tools.asked = tools.asked.max(covered + 1);
            count = tools.asked;
        });
        count
    }

    /// Notes whether the server has a way to tell of changes.
    pub(crate) fn set_announcing(&self, announcing: bool) {
        self.0.news.update(|news| news.mute = !announcing);
    }

    /// Whether the server has a way to tell of changes, as far as is known.
    pub(crate) fn is_announcing(&self) -> bool {
        self.0.news.look(|news| !news.mute)
    }

    /// What came over streams of changes.
    pub(crate) fn announced(&self) -> Announced {
        self.0.news.look(|news| news.announced)
    }

    /// Resolves when more came over streams of changes than this; `begun`: when another stream was begun.
    pub(crate) async fn announced_since(&self, seen: Announced, begun: bool) {
        let more = |now: Announced| if begun { now.streams != seen.streams } else { now != seen };
        self.0.news.when(|news| more(news.announced).then_some(())).await;
    }

    /// Whether a request was answered since this was last asked.
    pub(crate) fn take_answered(&self) -> bool {
        self.0.answered.swap(false, Ordering::AcqRel)
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

    /// Why lists may not be what they were when the wire was made.
    pub(crate) fn list_changes(&self) -> ListChanges {
        self.0.news.look(|news| news.changes)
    }

    /// Resolves when there are more reasons than these. An error is the end of the link.
    pub(crate) fn list_changes_since(&self, seen: ListChanges) -> impl Future<Output = Result<(), Ended>> + Send {
        let more = move |news: &News| match news.end() {
            Some(ended) => Some(Err(ended)),
            None => (news.changes != seen).then_some(Ok(())),
        };
        self.0.news.when(more)
    }

    /// Counts the frames that were left out so far.
    pub(crate) fn stats(&self) -> WireStats {
        let Stats { late, unreadable, dropped } = &self.0.stats;
        WireStats {
            late: late.load(Ordering::Relaxed),
            unreadable: unreadable.load(Ordering::Relaxed),
            dropped: dropped.load(Ordering::Relaxed),
        }
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
        let lost = self.0.open.close_all();
        tracing::debug!(epoch = %self.0.epoch, lost, stats = ?self.stats(), "the wire is at its end");
        self.0.token.cancel();
    }

    /// Takes a frame to where it belongs. One for the view is given back when the view has no room for it yet.
    fn route(&self, text: Box<str>, mailbox: &Mailbox) -> Option<Box<str>> {
        let now = Instant::now().saturating_duration_since(self.0.base);
        let now = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
        if self.0.last_inbound.swap(now, Ordering::AcqRel) == 0 {
            self.0.news.update(|news| news.heard = true);
        }
        let frame = Frame::parse(&text);
        match &frame {
            Frame::Response { id, outcome } => match id_number(id) {
                Some(number) if number >= FIRST_ID => {
                    self.settle(number, *outcome);
                    return None;
                }
                Some(number) if self.0.open.close_view(number) => self.0.answered.store(true, Ordering::Release),
                Some(_) | None => {}
            },
            Frame::Request { id, method, .. } if method == "ping" => {
                self.reply(frame::result(id, "{}"));
                return None;
            }
            Frame::Request { .. } => {}
            Frame::Notification { method, params } => self.note(method, *params),
            Frame::Unreadable(why) => {
                self.0.stats.unreadable.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(epoch = %self.0.epoch, "skipped a frame: {why}");
                return None;
            }
        }
        if self.relayed(&frame) {
            return None;
        }
        let attached = self.0.attached.load(Ordering::Acquire);
        let text = mailbox.try_put(text).err()?;
        if attached {
            return Some(text);
        }
        let dropped = self.0.stats.dropped.fetch_add(1, Ordering::Relaxed);
        if dropped == 0 {
            tracing::warn!(epoch = %self.0.epoch, "the server sends more before the handshake than is kept for it");
        }
        None
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
        // A pong is a sign of life, but no call was answered.
        if !call.uncounted {
            self.0.answered.store(true, Ordering::Release);
        }
        drop(call.answer.send(outcome.map(ToOwned::to_owned).map_err(ToOwned::to_owned)));
    }

    fn note(&self, method: &str, params: Option<&RawValue>) {
        match method {
            "notifications/progress" => {
                #[derive(Deserialize)]
                struct Progress<'a> {
                    #[serde(borrow, rename = "progressToken")]
                    token: &'a RawValue,
                }
                let token = params.and_then(|params| serde_json::from_str::<Progress<'_>>(params.get()).ok());
                if let Some(Progress { token }) = token {
                    id_number(token).into_iter().for_each(|id| self.0.open.bump(id));
                    self.0.open.bump_token(token.get());
                }
            }
            "notifications/tools/list_changed" => self.event(|changes| changes.tools.told += 1),
            "notifications/prompts/list_changed" => self.event(|changes| changes.prompts.told += 1),
            "notifications/resources/list_changed" => self.event(|changes| changes.resources.told += 1),
            "notifications/resources/updated" => self.event(|_| {}),
            "notifications/subscriptions/acknowledged" => self.0.news.update(|news| news.announced.streams += 1),
            _ => {}
        }
    }

    fn event(&self, change: impl FnOnce(&mut ListChanges)) {
        self.0.news.update(|news| {
            news.announced.events += 1;
            change(&mut news.changes);
        });
    }

    /// Sends what nobody waits for: neither the reader nor a dropped call ever waits for the pipe.
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
        self.replies += usize::from(matches!(notice, Notice::Reply(_)));
        self.waiting.push_back(notice);
    }

    /// The next one. When there is none, the next one that comes is sent at once.
    fn pop(&mut self) -> Option<Notice> {
        let next = self.waiting.pop_front();
        match &next {
            Some(Notice::Reply(_)) => self.replies -= 1,
            Some(Notice::Cancel(_)) => {}
            None => *self = Self::default(),
        }
        next
    }
}

impl From<Notice> for Outbound {
    fn from((Notice::Cancel(frame) | Notice::Reply(frame)): Notice) -> Self {
        Self::detached(frame)
    }
}

/// However the reader ends, calls in other runtimes included are settled: its own may be going down.
struct Ending<'a>(&'a Wire);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.finish(closed_here());
    }
}

fn closed_here() -> Ended {
    Ended { failure: Failure::new(FailureClass::Transport), cause: "the connection was closed".into() }
}

#[cfg(test)]
mod tests;
