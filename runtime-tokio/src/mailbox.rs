//! The frames that wait for a view: bounded in number and in bytes.

use std::sync::Arc;

use tokio::sync::{Semaphore, mpsc};

/// How many frames may wait, if none is large.
pub(crate) const FRAMES: usize = 1024;
/// How many bytes may wait, in units of [`UNIT`].
const UNITS: usize = 8192;
const UNIT: usize = 1024;

/// The end that is filled.
pub(crate) struct Mailbox {
    frames: mpsc::UnboundedSender<(Box<str>, u32)>,
    room: Arc<Semaphore>,
}

/// The end that is read.
pub(crate) struct MailboxReader {
    frames: mpsc::UnboundedReceiver<(Box<str>, u32)>,
    room: Arc<Semaphore>,
}

/// An empty mailbox for [`FRAMES`] frames and 8 MiB; a larger frame fits when it is alone.
pub(crate) fn mailbox() -> (Mailbox, MailboxReader) {
    let (sender, receiver) = mpsc::unbounded_channel();
    let room = Arc::new(Semaphore::new(UNITS));
    (Mailbox { frames: sender, room: room.clone() }, MailboxReader { frames: receiver, room })
}

impl Mailbox {
    /// Adds a frame if there is room for it.
    pub(crate) fn try_put(&self, frame: Box<str>) -> bool {
        let cost = cost(&frame);
        match self.room.try_acquire_many(cost) {
            Ok(permit) => {
                permit.forget();
                self.frames.send((frame, cost)).is_ok()
            }
            Err(_) => false,
        }
    }

    /// Adds a frame as soon as there is room for it. A frame that nobody reads any more is dropped.
    pub(crate) async fn put(&self, frame: Box<str>) {
        let cost = cost(&frame);
        tokio::select! {
            permit = self.room.acquire_many(cost) => if let Ok(permit) = permit {
                permit.forget();
                drop(self.frames.send((frame, cost)));
            },
            () = self.frames.closed() => {}
        }
    }
}

impl MailboxReader {
    /// A frame that is there.
    pub(crate) fn try_next(&mut self) -> Option<Box<str>> {
        let (frame, cost) = self.frames.try_recv().ok()?;
        self.room.add_permits(cost as usize);
        Some(frame)
    }

    /// The next frame; `None` when no more will come. Cancel safe.
    pub(crate) async fn next(&mut self) -> Option<Box<str>> {
        let (frame, cost) = self.frames.recv().await?;
        self.room.add_permits(cost as usize);
        Some(frame)
    }
}

fn cost(frame: &str) -> u32 {
    let units = frame.len().div_ceil(UNIT).clamp(UNITS / FRAMES, UNITS);
    u32::try_from(units).unwrap_or(u32::MAX)
}
