//! A server's requests and notifications, given to a relay as they came.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Deserialize;
use serde_json::value::RawValue;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use crate::protocol::frame::{self, Frame};
use crate::wire::Wire;
use crate::wire::relay::{Ask, Relay, TakenBack};

/// The requests of one epoch's server that the relay has not answered.
pub(crate) struct Relayed {
    wire: Wire,
    relay: Arc<dyn Relay>,
    /// Cancelled at the end of the session.
    end: CancellationToken,
    tasks: TaskTracker,
    /// By the id as the server wrote it.
    open: Open,
}

type Open = Arc<Mutex<HashMap<Box<str>, (CancellationToken, TakenBack)>>>;

impl Relayed {
    pub(crate) fn new(wire: Wire, relay: Arc<dyn Relay>, end: CancellationToken, tasks: TaskTracker) -> Self {
        Self { wire, relay, end, tasks, open: Arc::default() }
    }

    /// Takes what is for the relay. Whether it was.
    pub(crate) fn take(&self, frame: &Frame<'_>) -> bool {
        match frame {
            Frame::Request { id, method, params } => self.ask(id, method, *params),
            Frame::Notification { method, params } if method == "notifications/cancelled" => self.take_back(*params),
            Frame::Notification { method, params } => self.relay.told(self.wire.epoch(), method, *params),
            Frame::Response { .. } | Frame::Unreadable(_) => return false,
        }
        true
    }

    fn ask(&self, id: &RawValue, method: &str, params: Option<&RawValue>) {
        let (end, taken_back) = (self.end.child_token(), TakenBack::default());
        let key: Box<str> = id.get().into();
        // The wire has seen to it that there are not too many, and none twice.
        let opened = (end.clone(), taken_back.clone());
        self.open.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone(), opened);
        let asking = Asking { wire: self.wire.clone(), open: self.open.clone(), key };
        let (relay, method, params) = (self.relay.clone(), method.to_owned(), params.map(ToOwned::to_owned));
        let run = async move {
            let (epoch, params) = (asking.wire.epoch(), params.as_deref());
            let ask = Ask { epoch, method: &method, params, input: false, taken_back: &taken_back };
            tokio::select! {
                biased;
                () = end.cancelled() => {}
                answer = relay.ask(ask) => asking.answer(answer).await,
            }
        };
        self.tasks.spawn(run.in_current_span());
    }

    fn take_back(&self, params: Option<&RawValue>) {
        #[derive(Deserialize)]
        struct Cancelled<'a> {
            #[serde(borrow, rename = "requestId")]
            id: &'a RawValue,
        }
        let cancelled = params.and_then(|params| serde_json::from_str::<Cancelled<'_>>(params.get()).ok());
        if let Some(Cancelled { id }) = cancelled
            && let Some((end, taken_back)) = self.open.lock().unwrap_or_else(PoisonError::into_inner).get(id.get())
        {
            taken_back.say(params);
            end.cancel();
        }
    }
}

/// One of them. It is no longer open when this is dropped.
struct Asking {
    wire: Wire,
    open: Open,
    key: Box<str>,
}

impl Asking {
    async fn answer(&self, answer: Result<Box<RawValue>, Box<RawValue>>) {
        let Ok(id) = serde_json::from_str::<&RawValue>(&self.key) else { return };
        let frame = match &answer {
            Ok(result) => frame::result(id, result.get()),
            Err(error) => frame::error_raw(id, error.get()),
        };
        if let Err(failure) = self.wire.send(frame).await {
            tracing::debug!(epoch = %self.wire.epoch(), cause = %failure.cause, "an answer to the server was lost");
        }
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.key);
        if let Ok(id) = serde_json::from_str(&self.key) {
            self.wire.ask_over(id);
        }
    }
}
