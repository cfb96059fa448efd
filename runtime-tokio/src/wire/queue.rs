//! A queue for one reader. Unlike a channel, which has room for 32 from the start, it takes no room while it is empty.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::task::Context;

use futures::task::AtomicWaker;

/// How much room an empty queue keeps.
const KEPT: usize = 8;

/// See the module. Without a bound: the pushing side sees to one.
pub(crate) struct Queue<T> {
    items: Mutex<VecDeque<T>>,
    reader: AtomicWaker,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { items: Mutex::default(), reader: AtomicWaker::new() }
    }
}

impl<T> Queue<T> {
    pub(crate) fn push(&self, item: T) {
        self.lock().push_back(item);
        self.reader.wake();
    }

    /// Takes the first item.
    pub(crate) fn try_pop(&self) -> Option<T> {
        let mut items = self.lock();
        let item = items.pop_front();
        if items.is_empty() && items.capacity() > KEPT {
            *items = VecDeque::new();
        }
        item
    }

    /// The reader is woken by what is pushed from now on, and by [`wake`](Self::wake): to be called before it looks.
    pub(crate) fn register(&self, cx: &Context<'_>) {
        self.reader.register(cx.waker());
    }

    /// Lets the reader look again.
    pub(crate) fn wake(&self) {
        self.reader.wake();
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
