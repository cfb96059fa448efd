//! A session of the era that has them: one host, one front, many streams.

use std::collections::{HashMap, VecDeque};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::answer::{given_up, lost};
use super::edit::{find, one_line, same};
use super::stream::Stream;
use super::{Opener, SessionKind};
use crate::front::HostEnd;
use crate::protocol::frame::Frame;

/// How many requests of a session may be open.
const OPEN: usize = 1024;
/// How many streams stay after their answer, for hosts that did not get it.
const ANSWERED: usize = 16;

/// The sessions of a listener.
pub(super) struct Sessions {
    table: Mutex<HashMap<Box<str>, Arc<Session>>>,
    opener: Opener,
    bound: usize,
    idle: Duration,
    stop: CancellationToken,
    tasks: TaskTracker,
}

/// Why there is no new session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NoSession {
    /// There are as many as there may be.
    Full,
    /// The listener is being closed.
    Closing,
    /// The system gave no randomness.
    NoRandomness,
}

impl Sessions {
    pub(super) fn new(
        opener: Opener,
        bound: usize,
        idle: Duration,
        stop: CancellationToken,
        tasks: TaskTracker,
    ) -> Arc<Self> {
        Arc::new(Self { table: Mutex::default(), opener, bound, idle, stop, tasks })
    }

    pub(super) fn get(&self, id: &str) -> Option<Arc<Session>> {
        self.table().get(id).cloned()
    }

    /// Opens a session and its front.
    ///
    /// # Errors
    ///
    /// Why there is none.
    pub(super) fn open(self: &Arc<Self>) -> Result<Arc<Session>, NoSession> {
        let id = random_id().ok_or(NoSession::NoRandomness)?;
        let mut table = self.table();
        if self.stop.is_cancelled() {
            return Err(NoSession::Closing);
        }
        if table.len() >= self.bound {
            return Err(NoSession::Full);
        }
        let HostEnd { to_front, from_front } = (self.opener)(SessionKind::Legacy);
        let session = Arc::new(Session {
            id: id.clone(),
            to_front: Mutex::new(Some(to_front)),
            ended: self.stop.child_token(),
            streams: Mutex::default(),
            standing: Stream::new(0, None, None),
            activity: watch::Sender::new(Activity { busy: 0, since: Instant::now() }),
            version: OnceLock::new(),
        });
        table.insert(id, session.clone());
        self.tasks.spawn(self.clone().run(session.clone(), from_front));
        Ok(session)
    }

    /// Carries what the front says to the host's streams, until the session ends.
    async fn run(self: Arc<Self>, session: Arc<Session>, mut from_front: mpsc::Receiver<Box<str>>) {
        {
            let mut idle = pin!(session.idle(self.idle));
            loop {
                tokio::select! {
                    biased;
                    () = session.ended.cancelled() => break,
                    () = &mut idle => {
                        tracing::info!("a session without requests for {:?} ends", self.idle);
                        break;
                    }
                    message = from_front.recv() => match message {
                        Some(message) => session.route(message).await,
                        None => break,
                    },
                }
            }
        }
        self.table().remove(&session.id);
        session.close();
        while from_front.recv().await.is_some() {} // nobody is there to be told
    }

    fn table(&self) -> MutexGuard<'_, HashMap<Box<str>, Arc<Session>>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// 128 bits of the system's randomness, in hexadecimal digits.
fn random_id() -> Option<Box<str>> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).ok()?;
    Some(bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>().into())
}

/// One session.
pub(super) struct Session {
    pub(super) id: Box<str>,
    to_front: Mutex<Option<mpsc::Sender<Box<str>>>>,
    ended: CancellationToken,
    streams: Mutex<Streams>,
    /// What belongs to no request.
    pub(super) standing: Arc<Stream>,
    activity: watch::Sender<Activity>,
    /// The protocol version that was agreed on.
    pub(super) version: OnceLock<Box<str>>,
}

#[derive(Default)]
struct Streams {
    /// Of requests that wait for their answer, in the order in which they came.
    open: Vec<Arc<Stream>>,
    answered: VecDeque<Arc<Stream>>,
    last: u64,
    closed: bool,
}

struct Activity {
    busy: usize,
    since: Instant,
}

/// Why a request was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NotTaken {
    /// A request with the same id is open.
    IdInUse,
    /// Too many are open.
    Full,
    /// The session has ended.
    Ended,
}

impl Session {
    /// Notes a request, before it is sent.
    ///
    /// # Errors
    ///
    /// Why it was not taken.
    pub(super) fn ask(&self, id: &str, message: &str) -> Result<Arc<Stream>, NotTaken> {
        let token = find(message, &["params", "_meta", "progressToken"]);
        let mut streams = self.streams();
        if streams.closed {
            return Err(NotTaken::Ended);
        }
        if streams.open.iter().any(|stream| stream.request.as_deref() == Some(id)) {
            return Err(NotTaken::IdInUse);
        }
        if streams.open.len() >= OPEN {
            return Err(NotTaken::Full);
        }
        streams.last += 1;
        let stream = Stream::new(streams.last, Some(id.into()), token.map(Into::into));
        streams.open.push(stream.clone());
        Ok(stream)
    }

    /// Passes a message of the host on; `false` where the session has ended.
    pub(super) async fn send(&self, message: Box<str>) -> bool {
        let to_front = self.to_front.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(to_front) = to_front else { return false };
        tokio::select! {
            biased;
            () = self.ended.cancelled() => false,
            sent = to_front.send(message) => sent.is_ok(),
        }
    }

    /// Settles a request that its host no longer waits for: servers leave those unanswered.
    pub(super) fn cancelled(&self, id: &str) {
        let stream = {
            let mut streams = self.streams();
            let at = streams.open.iter().position(|stream| stream.request.as_deref() == Some(id));
            at.map(|at| streams.open.remove(at))
        };
        if let Some(stream) = stream {
            stream.push(given_up(id));
            stream.finish();
        }
    }

    /// The stream that can be resumed under this number.
    pub(super) fn stream(&self, number: u64) -> Option<Arc<Stream>> {
        if number == 0 {
            return Some(self.standing.clone());
        }
        let streams = self.streams();
        streams.open.iter().chain(&streams.answered).find(|stream| stream.number() == number).cloned()
    }

    /// While the guard is held the session is not idle.
    pub(super) fn busy(self: &Arc<Self>) -> Busy {
        self.activity.send_modify(|activity| activity.busy += 1);
        Busy(self.clone())
    }

    /// Resolves when nothing was asked of the session for this long.
    async fn idle(&self, patience: Duration) {
        let mut activity = self.activity.subscribe();
        loop {
            let wait = {
                let activity = activity.borrow_and_update();
                (activity.busy == 0).then(|| activity.since.checked_add(patience)).flatten()
            };
            match wait {
                Some(deadline) => tokio::select! {
                    () = sleep_until(deadline) => return,
                    changed = activity.changed() => drop(changed), // the sender lives in `self`
                },
                None => drop(activity.changed().await),
            }
        }
    }

    /// Ends the session: its front sees the end of the host's input.
    pub(super) fn end(&self) {
        self.ended.cancel();
    }

    /// Lets the front go, and settles what is open.
    fn close(&self) {
        self.ended.cancel();
        drop(self.to_front.lock().unwrap_or_else(PoisonError::into_inner).take());
        let open = {
            let mut streams = self.streams();
            streams.closed = true;
            std::mem::take(&mut streams.open)
        };
        for stream in open {
            if let Some(id) = &stream.request {
                stream.push(lost(id));
            }
            stream.finish();
        }
        self.standing.finish();
    }

    /// Gives a message of the front to the stream that it belongs to.
    async fn route(&self, message: Box<str>) {
        let message = one_line(message.into());
        let stream = match Frame::parse(&message) {
            Frame::Response { id, .. } => {
                let Some(stream) = self.answered(id.get()) else {
                    return tracing::debug!("an answer that nobody waits for");
                };
                stream.push(message);
                return stream.finish();
            }
            Frame::Notification { method, params } if method == "notifications/progress" => {
                let token = params.and_then(|params| find(params.get(), &["progressToken"]));
                token.and_then(|token| self.with_token(token)).unwrap_or_else(|| self.unrelated())
            }
            Frame::Notification { .. } | Frame::Request { .. } => self.unrelated(),
            Frame::Unreadable(why) => return tracing::debug!("a front wrote {why}"),
        };
        tokio::select! {
            biased;
            () = self.ended.cancelled() => {}
            () = stream.room() => stream.push(message),
        }
    }

    /// Takes the stream of the request that was answered; it stays for a while.
    fn answered(&self, id: &str) -> Option<Arc<Stream>> {
        let mut streams = self.streams();
        let at = streams.open.iter().position(|stream| stream.request.as_deref() == Some(id))?;
        let stream = streams.open.remove(at);
        streams.answered.push_back(stream.clone());
        if streams.answered.len() > ANSWERED {
            streams.answered.pop_front();
        }
        Some(stream)
    }

    fn with_token(&self, token: &str) -> Option<Arc<Stream>> {
        let streams = self.streams();
        let has = |stream: &&Arc<Stream>| stream.token.as_deref().is_some_and(|known| same(known, token));
        streams.open.iter().find(has).cloned()
    }

    /// The stream for what names no request: that of the only request, else the standing one where the host reads it,
    /// else the oldest; where the host reads none, the standing one keeps it.
    fn unrelated(&self) -> Arc<Stream> {
        let streams = self.streams();
        let mut read = streams.open.iter().filter(|stream| stream.is_read());
        match (read.next(), read.next()) {
            (Some(only), None) => only.clone(),
            (Some(oldest), Some(_)) if !self.standing.is_read() => oldest.clone(),
            _ => self.standing.clone(),
        }
    }

    fn streams(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// See [`Session::busy`].
pub(super) struct Busy(Arc<Session>);

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.activity.send_modify(|activity| {
            activity.busy -= 1;
            activity.since = Instant::now();
        });
    }
}
