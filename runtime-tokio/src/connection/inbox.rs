//! The messages to the owner of a connection: from its handles, and from the tasks of its epochs.
//!
//! Unlike two channels it takes no room while it is empty. Without a bound: a handle waits for the answer to its request,
//! and an epoch has little to report.

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use futures::task::AtomicWaker;

use crate::connection::messages::{Command, Note};

/// The owner's end. Dropping it drops what is in it and what comes later.
pub(crate) struct Inbox(Arc<Shared>);

/// The end of the handles: there are none left when it is dropped.
pub(crate) struct Commands(Arc<Shared>);

/// The end of an epoch's tasks.
#[derive(Clone)]
pub(crate) struct Notes(Arc<Shared>);

/// A message in an [`Inbox`].
pub(crate) enum Message {
    Note(Note),
    Command(Command),
    /// Nobody has a handle any more: no command comes after this.
    NoHandles,
}

#[derive(Default)]
struct Shared {
    waiting: Mutex<Waiting>,
    /// Woken when there is something to look at.
    owner: AtomicWaker,
}

#[derive(Default)]
struct Waiting {
    notes: VecDeque<Note>,
    commands: VecDeque<Command>,
    no_handles: bool,
    closed: bool,
}

/// An empty one.
pub(crate) fn inbox() -> (Inbox, Commands, Notes) {
    let shared = Arc::<Shared>::default();
    (Inbox(shared.clone()), Commands(shared.clone()), Notes(shared))
}

impl Inbox {
    /// The next message. The notes of epochs come first: a call that failed with its session finds the session gone.
    /// Cancel safe.
    pub(crate) fn next(&mut self) -> impl Future<Output = Message> + Send {
        poll_fn(|cx| {
            // In this order: what is put in after the look wakes the owner.
            self.0.owner.register(cx.waker());
            self.0.lock().next().map_or(Poll::Pending, Poll::Ready)
        })
    }
}

impl Drop for Inbox {
    fn drop(&mut self) {
        let closed = Waiting { closed: true, ..Waiting::default() };
        // Dropped when it is unlocked.
        let waiting = std::mem::replace(&mut *self.0.lock(), closed);
        drop(waiting);
    }
}

impl Commands {
    pub(crate) fn send(&self, command: Command) {
        self.0.put(|waiting| waiting.commands.push_back(command));
    }

    /// Whether the owner is gone.
    pub(crate) fn is_closed(&self) -> bool {
        self.0.lock().closed
    }
}

impl Drop for Commands {
    fn drop(&mut self) {
        self.0.put(|waiting| waiting.no_handles = true);
    }
}

impl Notes {
    pub(crate) fn send(&self, note: Note) {
        self.0.put(|waiting| waiting.notes.push_back(note));
    }
}

impl Shared {
    /// Puts something in, unless the owner is gone: then it is dropped, when this is unlocked.
    fn put(&self, put: impl FnOnce(&mut Waiting)) {
        let mut waiting = self.lock();
        if !waiting.closed {
            put(&mut waiting);
            drop(waiting);
            self.owner.wake();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn next(&mut self) -> Option<Message> {
        if let Some(note) = pop(&mut self.notes) {
            return Some(Message::Note(note));
        }
        if let Some(command) = pop(&mut self.commands) {
            return Some(Message::Command(command));
        }
        std::mem::take(&mut self.no_handles).then_some(Message::NoHandles)
    }
}

/// Takes the first item. No room is kept while it is empty.
fn pop<T>(queue: &mut VecDeque<T>) -> Option<T> {
    let first = queue.pop_front();
    if queue.is_empty() {
        *queue = VecDeque::new();
    }
    first
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;
    use mcp_reconnect_core::Epoch;
    use tokio::sync::oneshot;

    use super::*;
    use crate::connection::messages::What;

    fn note() -> Note {
        Note { epoch: Epoch::FIRST, what: What::PingUnsupported }
    }

    #[tokio::test]
    async fn notes_come_first_and_the_end_of_the_handles_last() {
        let (mut inbox, commands, notes) = inbox();
        let (reply, _) = oneshot::channel();
        commands.send(Command::Answered);
        commands.send(Command::Turn(reply));
        drop(commands);
        notes.send(note());
        assert!(matches!(inbox.next().await, Message::Note(_)));
        assert!(matches!(inbox.next().await, Message::Command(Command::Answered)));
        assert!(matches!(inbox.next().await, Message::Command(Command::Turn(_))));
        assert!(matches!(inbox.next().await, Message::NoHandles));
        assert!(inbox.next().now_or_never().is_none(), "said once");
        let next = tokio::spawn(async move { inbox.next().await });
        tokio::task::yield_now().await;
        notes.send(note());
        assert!(matches!(next.await.unwrap(), Message::Note(_)));
    }

    #[tokio::test]
    async fn what_no_owner_takes_is_dropped_before_the_end_and_after() {
        let (inbox, commands, _notes) = inbox();
        let (reply, before) = oneshot::channel();
        commands.send(Command::Turn(reply));
        assert!(!commands.is_closed());
        drop(inbox);
        assert!(commands.is_closed());
        before.await.unwrap_err();
        let (reply, after) = oneshot::channel();
        commands.send(Command::Turn(reply));
        after.await.unwrap_err();
    }
}
