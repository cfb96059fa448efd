//! One server's front, as the host of it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use mcp_reconnect_core::Status;
use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use super::Server;
use crate::config::ToolFilter;
use crate::connection::Connection;
use crate::front::HostEnd;
use crate::front::asks::Answer;
use crate::front::status::Seat;
use crate::protocol::frame::{self, Object, id_number, member};
use crate::session::catalogue::Catalogue;
use crate::wire::mailbox::{Mailbox, MailboxReader, mailbox};
use crate::wire::relay::TakenBack;

/// A server, and what is under way with its front.
pub(super) struct Member {
    pub(super) name: Arc<str>,
    pub(super) tools: ToolFilter,
    seat: Seat,
    /// A front that takes nothing in must not hold up what is for others.
    mailbox: Mailbox,
    next: AtomicU64,
    /// Our requests under way; `None` when the front has ended.
    open: Mutex<Option<HashMap<u64, oneshot::Sender<Answer>>>>,
    /// The host's ids of its streams, by our ids of them.
    streams: Mutex<HashMap<u64, Box<RawValue>>>,
    /// What it asks the host, by its ids.
    asked: Mutex<HashMap<Box<str>, Asked>>,
    /// The capabilities that the host was told.
    pub(super) promised: OnceLock<Box<RawValue>>,
}

/// A request for the host under way.
pub(super) struct Asked {
    pub(super) task: AbortHandle,
    /// By which the host may tell of its progress.
    pub(super) token: Option<Box<str>>,
    pub(super) taken_back: TakenBack,
}

impl Member {
    /// The member; what carries to its front; what its front says; and its front.
    pub(super) fn open(
        Server { name, tools, front }: Server,
        stop: CancellationToken,
    ) -> (Self, impl Future<Output = ()> + Send, mpsc::Receiver<Box<str>>, impl Future<Output = ()> + Send) {
        let seat = front.seat.clone();
        let (HostEnd { to_front, from_front }, session) = front.open(stop);
        let (mailbox, reader) = mailbox();
        let member = Self {
            name,
            tools,
            seat,
            mailbox,
            next: AtomicU64::new(0),
            open: Mutex::new(Some(HashMap::new())),
            streams: Mutex::default(),
            asked: Mutex::default(),
            promised: OnceLock::new(),
        };
        (member, carry(reader, to_front), from_front, session)
    }

    /// Its connection, once the host has begun.
    pub(super) fn connection(&self) -> Option<Connection> {
        self.seat.connection()
    }

    /// Resolves when it has said what it has, or it is not to be expected soon; at once where something is known of it.
    pub(super) async fn known(&self) {
        let connection = self.seat.begun().await;
        if connection.known_catalogue().is_unlisted() {
            connection.settled().await;
        }
    }

    /// Whether it has a session.
    pub(super) fn is_ready(&self) -> bool {
        self.connection().is_some_and(|connection| matches!(connection.snapshot().status, Status::Ready(_)))
    }

    /// What it is known to have, whether it is there or not.
    pub(super) fn catalogue(&self) -> Catalogue {
        self.connection().map(|connection| connection.known_catalogue()).unwrap_or_default()
    }

    /// Whether it says that it has this capability, or may have it.
    pub(super) fn declares(&self, capability: &str) -> bool {
        let session = self.connection().and_then(|connection| connection.0.published.borrow().session.clone());
        let declared = match (&session, self.promised.get()) {
            (Some(session), _) => frame::member_of(session.server_raw(), "capabilities"),
            (None, Some(promised)) => Some(&**promised),
            (None, None) => return true,
        };
        declared.is_some_and(|declared| frame::member_of(declared, capability).is_some())
    }

    /// Asks its front for this. When this is dropped, the request is taken back, in the host's words if it said any.
    pub(super) async fn request(&self, method: &str, params: Option<&RawValue>, taken_back: &TakenBack) -> Answer {
        self.request_as(self.next.fetch_add(1, Ordering::Relaxed), method, params, taken_back).await
    }

    /// Opens a stream on behalf of a request of the host; it is closed when this is dropped.
    pub(super) async fn listen(&self, host: &RawValue, params: Option<&RawValue>) -> Answer {
        struct Stream<'a>(&'a Member, u64);
        impl Drop for Stream<'_> {
            fn drop(&mut self) {
                lock(&self.0.streams).remove(&self.1);
            }
        }
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        lock(&self.streams).insert(id, host.to_owned());
        let _stream = Stream(self, id);
        self.request_as(id, "subscriptions/listen", params, &TakenBack::default()).await
    }

    async fn request_as(&self, id: u64, method: &str, params: Option<&RawValue>, taken_back: &TakenBack) -> Answer {
        let (sender, answer) = oneshot::channel();
        let ended = || Err(frame::error_body(-32_603, &format!("the front of `{}` has ended", self.name), None));
        match &mut *lock(&self.open) {
            Some(open) => open.insert(id, sender),
            None => return ended(),
        };
        let _open = Open { member: self, id, taken_back };
        self.mailbox.put(frame::request(id, method, params.map(RawValue::get))).await;
        answer.await.unwrap_or_else(|_| ended())
    }

    /// Tells its front something that it may do without.
    pub(super) fn tell(&self, method: &str, params: Option<&RawValue>) {
        self.put(frame::notification(method, params.map(RawValue::get)));
    }

    fn put(&self, notification: Box<str>) {
        if self.mailbox.try_put(notification).is_err() {
            tracing::debug!(server = %self.name, "its front takes nothing in: a notification is left out");
        }
    }

    /// Answers what it asked the host.
    pub(super) async fn answer(&self, id: &RawValue, answer: &Answer) {
        let frame = match answer {
            Ok(result) => frame::result(id, result.get()),
            Err(error) => frame::error_raw(id, error.get()),
        };
        self.mailbox.put(frame).await;
    }

    /// Takes the answer to one of our requests.
    pub(super) fn answered(&self, id: &RawValue, answer: Answer) {
        let open = id_number(id).and_then(|id| lock(&self.open).as_mut()?.remove(&id));
        if let Some(open) = open {
            drop(open.send(answer)); // nobody may wait any more
        }
    }

    /// What it asks the host.
    pub(super) fn asked(&self) -> MutexGuard<'_, HashMap<Box<str>, Asked>> {
        lock(&self.asked)
    }

    /// Whether it waits for something of the host with this progress token.
    pub(super) fn waits_for_progress(&self, token: Option<&str>) -> bool {
        token.is_some() && self.asked().values().any(|asked| asked.token.as_deref() == token)
    }

    /// The host's id of the stream that these parameters are for.
    pub(super) fn stream_of(&self, stream: &RawValue) -> Option<Box<RawValue>> {
        id_number(stream).and_then(|id| lock(&self.streams).get(&id).cloned())
    }

    /// Settles everything: its front has ended.
    pub(super) fn ended(&self) {
        lock(&self.open).take();
        for asked in std::mem::take(&mut *self.asked()).into_values() {
            asked.task.abort();
        }
    }
}

/// The token by which a request's progress is told.
pub(super) fn progress_token(params: Option<&RawValue>) -> Option<Box<str>> {
    let Object(members) = serde_json::from_str(params?.get()).ok()?;
    let Object(meta) = serde_json::from_str(member(&members, "_meta")?.get()).ok()?;
    member(&meta, "progressToken").map(|token| token.get().into())
}

/// One of our requests under way.
struct Open<'a> {
    member: &'a Member,
    id: u64,
    taken_back: &'a TakenBack,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        let open = lock(&self.member.open).as_mut().and_then(|open| open.remove(&self.id));
        if open.is_some() {
            self.member.put(self.taken_back.notification(self.id, "the host no longer waits for it"));
        }
    }
}

/// Carries to a front until it takes nothing any more.
async fn carry(mut reader: MailboxReader, to_front: mpsc::Sender<Box<str>>) {
    loop {
        let frame = tokio::select! {
            () = to_front.closed() => return,
            frame = reader.next() => frame,
        };
        let Some(frame) = frame else { return };
        if to_front.send(frame).await.is_err() {
            return;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
