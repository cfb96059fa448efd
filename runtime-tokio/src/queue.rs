//! A queue for one reader. Unlike a channel, which has room for 32 from the start, it takes no room while it is empty.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// How much room an empty queue keeps.
const KEPT: usize = 8;

/// See the module. Without a bound: who pushes sees to one.
pub(crate) struct Queue<T> {
    items: Mutex<VecDeque<T>>,
    /// Notified when there is something to look at.
    changed: Notify,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { items: Mutex::default(), changed: Notify::new() }
    }
}

impl<T> Queue<T> {
    pub(crate) fn push(&self, item: T) {
        self.lock().push_back(item);
        self.changed.notify_one();
    }

    /// What is first in it.
    pub(crate) fn try_pop(&self) -> Option<T> {
        let mut items = self.lock();
        let item = items.pop_front();
        if items.is_empty() && items.capacity() > KEPT {
            *items = VecDeque::new();
        }
        item
    }

    /// Resolves when something was pushed, or [`wake`](Self::wake) was called, since this last resolved.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Lets the reader look again.
    pub(crate) fn wake(&self) {
        self.changed.notify_one();
    }

    pub(crate) fn clear(&self) {
        // Dropped when it is unlocked.
        let items = std::mem::take(&mut *self.lock());
        drop(items);
    }

    fn lock(&self) -> MutexGuard<'_, VecDeque<T>> {
        self.items.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
