//! The frames that wait for a view: bounded in number and in bytes.

use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use tokio::sync::Semaphore;

use crate::wire::queue::Queue;

/// How many frames may wait, if none is large.
pub(crate) const FRAMES: usize = 1024;
/// How many bytes may wait, in units of [`UNIT`].
const UNITS: usize = 8192;
const UNIT: usize = 1024;

/// The end that is filled.
pub(crate) struct Mailbox(Arc<Frames>);

/// The end that is read.
pub(crate) struct MailboxReader(Arc<Frames>);

struct Frames {
    /// Each with its units.
    queue: Queue<(Box<str>, u32)>,
    /// Closed when nobody reads any more.
    room: Semaphore,
    /// Nothing more will come.
    ended: AtomicBool,
}

/// An empty mailbox for [`FRAMES`] frames and 8 MiB; a larger frame fits when it is alone.
pub(crate) fn mailbox() -> (Mailbox, MailboxReader) {
    let frames = Frames { queue: Queue::default(), room: Semaphore::new(UNITS), ended: AtomicBool::new(false) };
    let frames = Arc::new(frames);
    (Mailbox(frames.clone()), MailboxReader(frames))
}

impl Mailbox {
    /// Adds a frame if there is room for it, or gives it back.
    pub(crate) fn try_put(&self, frame: Box<str>) -> Result<(), Box<str>> {
        let cost = cost(&frame);
        let Ok(permit) = self.0.room.try_acquire_many(cost) else { return Err(frame) };
        permit.forget();
        self.0.queue.push((frame, cost));
        Ok(())
    }

    /// Adds a frame as soon as there is room for it. A frame that nobody reads any more is dropped.
    pub(crate) async fn put(&self, frame: Box<str>) {
        let cost = cost(&frame);
        if let Ok(permit) = self.0.room.acquire_many(cost).await {
            permit.forget();
            self.0.queue.push((frame, cost));
        }
    }
}

impl Drop for Mailbox {
    fn drop(&mut self) {
        self.0.ended.store(true, Ordering::Release);
        self.0.queue.wake();
    }
}

impl MailboxReader {
    /// A frame that is there.
    pub(crate) fn try_next(&mut self) -> Option<Box<str>> {
        let (frame, cost) = self.0.queue.try_pop()?;
        self.0.room.add_permits(cost as usize);
        Some(frame)
    }

    /// The next frame; `None` when no more will come. Cancel safe.
    pub(crate) fn next(&mut self) -> impl Future<Output = Option<Box<str>>> + Send {
        poll_fn(|cx| {
            self.0.queue.register(cx);
            // In this order: what was put before the end is found after it.
            let ended = self.0.ended.load(Ordering::Acquire);
            match self.try_next() {
                None if !ended => Poll::Pending,
                next => Poll::Ready(next),
            }
        })
    }
}

impl Drop for MailboxReader {
    fn drop(&mut self) {
        self.0.room.close();
        self.0.queue.clear();
    }
}

fn cost(frame: &str) -> u32 {
    let units = frame.len().div_ceil(UNIT).clamp(UNITS / FRAMES, UNITS);
    u32::try_from(units).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn what_was_put_is_read_before_the_end_is() {
        let (mailbox, mut reader) = mailbox();
        assert!(mailbox.try_put("a".into()).is_ok());
        assert!(reader.next().now_or_never().is_some());
        let mut waiting = Box::pin(reader.next());
        assert!(waiting.as_mut().now_or_never().is_none());
        assert!(mailbox.try_put("b".into()).is_ok());
        drop(mailbox);
        assert_eq!(waiting.now_or_never(), Some(Some("b".into())));
        assert_eq!(reader.next().now_or_never(), Some(None));
        assert_eq!(reader.next().now_or_never(), Some(None));
    }

    #[tokio::test]
    async fn the_end_wakes_the_reader() {
        let (mailbox, mut reader) = mailbox();
        let read = tokio::spawn(async move { reader.next().await });
        tokio::task::yield_now().await;
        drop(mailbox);
        assert_eq!(read.await.unwrap(), None);
    }

    #[test]
    fn a_frame_without_room_waits_unless_the_reader_is_gone() {
        let (mailbox, mut reader) = mailbox();
        while mailbox.try_put("a".into()).is_ok() {}
        let mut waiting = Box::pin(mailbox.put("b".into()));
        assert!(waiting.as_mut().now_or_never().is_none());
        assert!(reader.try_next().is_some());
        assert!(waiting.now_or_never().is_some());
        let waiting = Box::pin(mailbox.put("c".into()));
        let mut count = 0;
        while reader.try_next().is_some() {
            count += 1;
        }
        assert_eq!(count, FRAMES);
        assert!(waiting.now_or_never().is_some());
        drop(reader);
        assert!(mailbox.try_put("d".into()).is_err());
        assert!(mailbox.put("d".into()).now_or_never().is_some());
    }
}
