//! A value that can be waited on: what a `watch` channel is, in a tenth of its room.

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// See the module. Nobody is told when the last one that could change it is gone.
pub(crate) struct Watched<T> {
    value: Mutex<T>,
    changed: Notify,
}

impl<T> Watched<T> {
    pub(crate) fn new(value: T) -> Self {
        Self { value: Mutex::new(value), changed: Notify::new() }
    }

    /// Applies `look` to it.
    pub(crate) fn look<R>(&self, look: impl FnOnce(&T) -> R) -> R {
        look(&self.lock())
    }

    /// Changes it, and lets every waiter look again.
    pub(crate) fn update(&self, update: impl FnOnce(&mut T)) {
        update(&mut self.lock());
        self.changed.notify_waiters();
    }

    /// Resolves with the first value that `look` finds in it. Cancel safe.
    pub(crate) async fn when<R>(&self, mut look: impl FnMut(&T) -> Option<R>) -> R {
        loop {
            // In this order: a change after the look is heard of.
            let changed = self.changed.notified();
            if let Some(found) = self.look(&mut look) {
                return found;
            }
            changed.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, T> {
        self.value.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T: Clone> Watched<T> {
    pub(crate) fn get(&self) -> T {
        self.lock().clone()
    }
}

impl<T: Default> Default for Watched<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> fmt::Debug for Watched<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watched").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[test]
    fn who_waits_looks_at_every_change_and_at_nothing_else() {
        let watched = Watched::new(0);
        let mut looks = 0;
        let waiting = watched.when(|value| {
            looks += 1;
            (*value > 1).then_some(*value)
        });
        let mut waiting = Box::pin(waiting);
        assert!(waiting.as_mut().now_or_never().is_none());
        assert!(waiting.as_mut().now_or_never().is_none());
        watched.update(|value| *value = 1);
        assert!(waiting.as_mut().now_or_never().is_none());
        watched.update(|value| *value = 2);
        assert_eq!(waiting.as_mut().now_or_never(), Some(2));
        drop(waiting);
        assert_eq!(looks, 3);
        assert_eq!(watched.get(), 2);
    }

    #[test]
    fn everybody_is_told_and_what_was_there_before_is_found_at_once() {
        let watched = Watched::<Option<char>>::default();
        let wait = || Box::pin(watched.when(|value| *value));
        let mut waiting = [wait(), wait()];
        assert!(waiting.iter_mut().all(|waiting| waiting.as_mut().now_or_never().is_none()));
        watched.update(|value| *value = Some('a'));
        assert!(waiting.into_iter().all(|waiting| waiting.now_or_never() == Some('a')));
        assert_eq!(wait().now_or_never(), Some('a'));
    }
}
