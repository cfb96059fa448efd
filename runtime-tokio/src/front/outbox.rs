//! What waits for the host to be read.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::mpsc;

use crate::wire::mailbox::{Mailbox, MailboxReader, mailbox};

/// Bounded in bytes: what the host is told beyond that is left out, what it is owed waits.
#[derive(Clone)]
pub(super) struct Outbox {
    mailbox: Arc<Mailbox>,
    dropped: Arc<AtomicU64>,
}

impl Outbox {
    /// An outbox, and what carries it to the host, until the host or the outbox is gone.
    pub(super) fn new(told: mpsc::Sender<Box<str>>) -> (Self, impl Future<Output = ()> + Send + 'static) {
        let (mailbox, reader) = mailbox();
        (Self { mailbox: Arc::new(mailbox), dropped: Arc::default() }, carry(reader, told))
    }

    /// Adds what the host is owed, as soon as there is room for it.
    pub(super) async fn owe(&self, frame: Box<str>) {
        self.mailbox.put(frame).await;
    }

    /// Adds what the host may do without: a notification.
    pub(super) fn tell(&self, frame: Box<str>) {
        if self.mailbox.try_put(frame).is_err() && self.dropped.fetch_add(1, Ordering::Relaxed) == 0 {
            tracing::warn!("the host reads too slowly: notifications are left out");
        }
    }
}

async fn carry(mut reader: MailboxReader, told: mpsc::Sender<Box<str>>) {
    while let Some(frame) = reader.next().await {
        if told.send(frame).await.is_err() {
            break;
        }
    }
}
