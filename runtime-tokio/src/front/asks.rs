//! What the server asks of the host: under ids of the front's own, for as long as the session that asks lasts.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::value::RawValue;
use tokio::sync::oneshot;

use super::outbox::Outbox;
use crate::protocol::frame::{self, id_number};
use crate::wire::relay::TakenBack;

pub(super) type Answer = Result<Box<RawValue>, Box<RawValue>>;

/// The requests that the host has not answered.
#[derive(Clone)]
pub(super) struct Asks {
    outbox: Outbox,
    table: Arc<Mutex<Table>>,
}

#[derive(Default)]
struct Table {
    next: u64,
    open: HashMap<u64, oneshot::Sender<Answer>>,
}

impl Asks {
    pub(super) fn new(outbox: Outbox) -> Self {
        Self { outbox, table: Arc::default() }
    }

    /// Asks the host. When this is dropped the host is told that nobody waits any more, in the server's words if it took
    /// the request back.
    pub(super) async fn ask(&self, method: &str, params: Option<&RawValue>, taken_back: &TakenBack) -> Answer {
        let (sender, answer) = oneshot::channel();
        let id = {
            let mut table = self.lock();
            let id = table.next;
            table.next += 1;
            table.open.insert(id, sender);
            id
        };
        let mut open = Open { asks: self, id, taken_back, told: false };
        self.outbox.owe(frame::request(id, method, params.map(RawValue::get))).await;
        open.told = true;
        answer.await.unwrap_or_else(|_| Err(frame::error_body(-32603, "the host has ended its session", None)))
    }

    /// How many the host has not answered.
    pub(super) fn open(&self) -> usize {
        self.lock().open.len()
    }

    /// Takes the host's answer to one of them; what it answers late, or was never asked, is dropped.
    pub(super) fn answer(&self, id: &RawValue, answer: Answer) {
        let asked = id_number(id).and_then(|id| self.lock().open.remove(&id));
        match asked {
            Some(asked) => drop(asked.send(answer)),
            None => tracing::debug!(id = id.get(), "dropped an answer of the host that nobody waits for"),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Open<'a> {
    asks: &'a Asks,
    id: u64,
    taken_back: &'a TakenBack,
    /// Whether the host has it.
    told: bool,
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if self.asks.lock().open.remove(&self.id).is_some() && self.told {
            self.asks.outbox.tell(self.taken_back.notification(self.id, "the server no longer waits for it"));
        }
    }
}
