//! The table of requests without an answer.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::value::RawValue;
use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::protocol::frame::{canonical, id_number};
use crate::wire::asks::StandStill;
use crate::wire::progress::{CallProgress, Told};

/// The server's answer as it came: a result, or an error.
pub(crate) type RawAnswer = Result<Box<RawValue>, Box<RawValue>>;

/// The answer, or why the one that came cannot be read.
pub(crate) type Settled = Result<RawAnswer, Arc<str>>;

/// The open requests of a wire: our own, and the view's. Locked for moments only.
#[derive(Default)]
pub(crate) struct OpenRequests {
    table: Mutex<Table>,
    /// Notified when a request is no longer open.
    settled: Notify,
}

/// Both sides count their ids up, so the first of each is its oldest.
#[derive(Default)]
struct Table {
    own: BTreeMap<u64, OpenCall>,
    view: BTreeMap<u64, Instant>,
    closed: bool,
}

impl Table {
    /// An empty map keeps the room of eleven.
    fn shrink(&mut self) {
        if self.own.is_empty() {
            self.own = BTreeMap::new();
        }
        if self.view.is_empty() {
            self.view = BTreeMap::new();
        }
    }
}

/// A request of ours. Dropping it tells its call that there will be no answer.
pub(crate) struct OpenCall {
    pub(crate) sent: Instant,
    pub(crate) uncounted: bool,
    /// Until when it counts, for one that loses nothing by the end of its session.
    pub(crate) counts_until: Option<Instant>,
    /// Its place in [`HARMLESS`](crate::wire::HARMLESS).
    pub(crate) harmless: Option<usize>,
    /// The caller's own progress token, if it has one; otherwise the token is the id.
    pub(crate) token: Option<Box<str>>,
    /// What was told of the caller's progress, by this sending and those before it.
    pub(crate) told: Option<Arc<Told>>,
    /// What was told by those before it.
    pub(crate) told_before: Option<f64>,
    pub(crate) answer: oneshot::Sender<Settled>,
    pub(crate) progress: Option<Arc<CallProgress>>,
    /// The deadline that stands still while the server asks for something.
    pub(crate) still: Option<Arc<StandStill>>,
}

impl OpenCall {
    /// Notes progress of the call. Whether it is told: what an earlier sending has told is not told again.
    fn note_progress(&self, value: Option<f64>) -> bool {
        if let Some(progress) = &self.progress {
            progress.bump();
        }
        let Some(value) = value else { return true };
        if self.told_before.is_some_and(|before| value <= before) {
            return false;
        }
        if let Some(told) = &self.told {
            told.tell(value);
        }
        true
    }
}

/// What to do with a progress notification.
pub(crate) enum Noted {
    /// It is passed on; the call that it is of, if it is of one of ours.
    Passed(Option<Arc<CallProgress>>),
    /// It was told before.
    HeldBack,
}

impl OpenRequests {
    /// Opens a request of ours, unless the table is closed.
    pub(crate) fn open(&self, id: u64, call: OpenCall) {
        let mut table = self.lock();
        if !table.closed {
            table.own.insert(id, call);
        }
    }

    /// Takes a request of ours out; `None` when it is not open.
    pub(crate) fn close(&self, id: u64) -> Option<OpenCall> {
        let call = {
            let mut table = self.lock();
            let call = table.own.remove(&id)?;
            table.shrink();
            call
        };
        self.settled.notify_waiters();
        Some(call)
    }

    /// Opens a request of the view, unless the table is closed.
    pub(crate) fn open_view(&self, id: u64) {
        let mut table = self.lock();
        if !table.closed {
            table.view.insert(id, Instant::now());
        }
    }

    /// Takes a request of the view out, and tells when it was sent; `None` when it is not open.
    pub(crate) fn close_view(&self, id: u64) -> Option<Instant> {
        let sent = {
            let mut table = self.lock();
            let sent = table.view.remove(&id);
            table.shrink();
            sent
        };
        self.settled.notify_waiters();
        sent
    }

    /// Notes a progress notification. A token that callers have given is theirs, whatever it looks like.
    pub(crate) fn note_progress(&self, token: &RawValue, value: Option<f64>) -> Noted {
        let (table, key) = (self.lock(), canonical(token));
        let mut callers = table.own.values().filter(|call| call.token.as_ref() == Some(&key)).peekable();
        if callers.peek().is_some() {
            let (mut passed, mut progress) = (false, None);
            for call in callers {
                if call.note_progress(value) {
                    (passed, progress) = (true, call.progress.clone());
                }
            }
            return if passed { Noted::Passed(progress) } else { Noted::HeldBack };
        }
        let own = id_number(token).and_then(|id| table.own.get(&id)).filter(|call| call.token.is_none());
        Noted::Passed(own.and_then(|call| {
            call.note_progress(value);
            call.progress.clone()
        }))
    }

    /// The deadlines of the calls that are open now.
    pub(crate) fn deadlines(&self) -> Vec<Arc<StandStill>> {
        self.lock().own.values().filter_map(|call| call.still.clone()).collect()
    }

    /// When the oldest request that counts was made.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        let (table, now) = (self.lock(), Instant::now());
        let counts = |call: &&OpenCall| !call.uncounted && call.counts_until.is_none_or(|until| now < until);
        let own = table.own.values().find(counts).map(|call| call.sent);
        let view = table.view.values().next().copied();
        own.into_iter().chain(view).min()
    }

    /// How many requests are open that count.
    pub(crate) fn count(&self) -> usize {
        let table = self.lock();
        table.own.values().filter(|call| !call.uncounted).count() + table.view.len()
    }

    /// Resolves when none is open that counts.
    pub(crate) async fn drained(&self) {
        loop {
            let settled = self.settled.notified();
            if self.count() == 0 {
                return;
            }
            settled.await;
        }
    }

    /// Closes the table with all that is in it; says how many of our requests that were.
    pub(crate) fn close_all(&self) -> usize {
        let mut table = self.lock();
        table.closed = true;
        table.view.clear();
        let calls = std::mem::take(&mut table.own);
        drop(table);
        self.settled.notify_waiters();
        calls.len()
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
