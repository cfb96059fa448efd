//! The host's requests under way, and how its messages are read and refused.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::value::RawValue;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use super::dispatch::{INVALID_REQUEST, MAX_OPEN, PARSE_ERROR};
use crate::protocol::frame::{self, Object, excerpt, member};
use crate::wire::relay::TakenBack;

/// The requests of a host that are not settled, by their ids as it wrote them.
#[derive(Default)]
pub(super) struct OpenRequests(Mutex<BTreeMap<Box<str>, Open>>);

struct Open {
    task: AbortHandle,
    /// Also tells it from one that had the same id before.
    taken_back: TakenBack,
}

impl OpenRequests {
    /// Why there cannot be one more with this id.
    pub(super) fn refusal(&self, id: &RawValue) -> Option<&'static str> {
        let open = self.lock();
        if open.contains_key(id.get()) {
            Some("a request with this id is open")
        } else {
            (open.len() >= MAX_OPEN).then_some("too many requests are open")
        }
    }

    /// Notes a request and the task that `spawn` begins for it, which may be through before `spawn` returns.
    pub(super) fn begin(&self, id: &RawValue, spawn: impl FnOnce(TakenBack) -> AbortHandle) {
        let mut open = self.lock();
        let taken_back = TakenBack::default();
        let task = spawn(taken_back.clone());
        open.insert(id.get().into(), Open { task, taken_back });
    }

    /// Notes that a request is settled; `false` where it was taken back. From here on a cancellation comes too late, and
    /// the id may be used again.
    pub(super) fn close(&self, id: &RawValue, taken_back: &TakenBack) -> bool {
        let mut open = self.lock();
        let is_open = open.get(id.get()).is_some_and(|open| open.taken_back.is(taken_back));
        if is_open {
            open.remove(id.get());
        }
        is_open
    }

    /// Takes in `notifications/cancelled`: the request is dropped, which tells the server under the id that it knows.
    pub(super) fn take_back(&self, params: Option<&RawValue>) {
        let id = params.and_then(|params| frame::member_of(params, "requestId"));
        if let Some(Open { task, taken_back }) = id.and_then(|id| self.lock().remove(id.get())) {
            taken_back.say(params);
            task.abort();
        }
    }

    /// Gives up all of them.
    pub(super) fn abort(&self) {
        for Open { task, .. } in std::mem::take(&mut *self.lock()).into_values() {
            task.abort();
        }
    }

    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Box<str>, Open>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The host's next message; `None` when it has said all, hears nothing any more, or is not to be served longer.
pub(super) async fn next(
    said: &mut mpsc::Receiver<Box<str>>,
    told: &mpsc::Sender<Box<str>>,
    stop: &CancellationToken,
) -> Option<Box<str>> {
    tokio::select! {
        biased;
        () = stop.cancelled() => None,
        () = told.closed() => None,
        frame = said.recv() => frame,
    }
}

/// The refusal of a message that cannot be read; `None` for an answer, since two sides that answer what they cannot read
/// would go on for ever.
pub(super) fn unreadable(text: &str, why: impl std::fmt::Display) -> Option<Box<str>> {
    tracing::warn!("the host's message cannot be read: {why}");
    let code = match serde_json::from_str::<Object<'_>>(text) {
        Ok(Object(members)) => {
            let has = |name| member(&members, name).is_some();
            if !has("method") && (has("result") || has("error")) {
                return None;
            }
            INVALID_REQUEST
        }
        Err(_) if serde_json::from_str::<&RawValue>(text).is_ok() => INVALID_REQUEST,
        Err(_) => PARSE_ERROR,
    };
    Some(frame::error(RawValue::NULL, code, &format!("no JSON-RPC message: {}", excerpt(text))))
}
