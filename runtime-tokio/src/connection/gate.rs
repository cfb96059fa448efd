//! The admission of dials: one connection at a time under one name, and not too many names at once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mcp_reconnect_core::{DialGate, Gate, MaxDialsError, Slot};
use tokio::sync::{Notify, OnceCell, OwnedSemaphorePermit, Semaphore};
use tokio::time::sleep_until;

use crate::clock::Clock;

/// The queue in front of a [`DialGate`]: first come, first served.
pub(crate) struct DialQueue {
    gate: Mutex<DialGate>,
    /// Held by the first in the queue.
    first: tokio::sync::Mutex<()>,
    released: Notify,
    clock: Clock,
}

impl DialQueue {
    pub(crate) fn new(gate: DialGate) -> Self {
        Self {
            gate: Mutex::new(gate),
            first: tokio::sync::Mutex::new(()),
            released: Notify::new(),
            clock: Clock::start(),
        }
    }

    /// Another number of slots.
    pub(crate) fn resize(&self, max_dials: u8) -> Result<(), MaxDialsError> {
        self.lock().resize(max_dials)?;
        self.released.notify_waiters();
        Ok(())
    }

    /// Waits for a slot. A place in the queue is given up by dropping the future.
    async fn enter(&self) -> Slot {
        let _first = self.first.lock().await;
        loop {
            let released = self.released.notified();
            let until = match self.lock().admit(self.clock.now()) {
                Gate::Go(slot) => return slot,
                Gate::Wait { until } => self.clock.instant(until),
            };
            tokio::select! {
                () = released => {}
                () = sleep_until(until) => {}
            }
        }
    }

    fn release(&self, slot: Slot) {
        self.lock().release(slot);
        // Only the first in the queue waits for this.
        self.released.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, DialGate> {
        self.gate.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The entrance of a connection's dials. Dropped with all that the connection ran: then its successor may dial.
#[derive(Default)]
pub(crate) struct Entrance {
    /// The right to be the connection of this name; taken before the first dial, and kept.
    tenancy: Option<Box<(Arc<Semaphore>, OnceCell<OwnedSemaphorePermit>)>>,
    queue: Option<Arc<DialQueue>>,
}

/// Room for one tenant.
pub(crate) fn tenancy() -> Arc<Semaphore> {
    Arc::new(Semaphore::new(1))
}

impl Entrance {
    pub(crate) fn new(tenancy: Arc<Semaphore>, queue: Arc<DialQueue>) -> Self {
        Self { tenancy: Some(Box::new((tenancy, OnceCell::new()))), queue: Some(queue) }
    }

    /// Resolves when a dial may begin.
    pub(crate) async fn enter(self: &Arc<Self>) -> Entered {
        if let Some((tenancy, permit)) = self.tenancy.as_deref() {
            // Nobody closes the semaphore.
            drop(permit.get_or_try_init(|| tenancy.clone().acquire_owned()).await);
        }
        let slot = match &self.queue {
            Some(queue) => Some((queue.clone(), queue.enter().await)),
            None => None,
        };
        Entered(slot)
    }
}

/// A dial that may begin. It keeps its slot for a second, if it does not become ready before.
pub(crate) struct Entered(Option<(Arc<DialQueue>, Slot)>);

impl Entered {
    /// The dial is ready: the next one may begin.
    pub(crate) fn ready(self) {
        if let Some((queue, slot)) = self.0 {
            queue.release(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use futures::FutureExt as _;
    use tokio::time::{Instant, advance, timeout};

    use super::*;

    fn queue(max_dials: u8) -> Arc<DialQueue> {
        Arc::new(DialQueue::new(DialGate::new(max_dials).unwrap()))
    }

    #[tokio::test(start_paused = true)]
    async fn dials_that_hang_pass_at_the_pace_of_the_gate_and_in_order() {
        let queue = queue(2);
        let began = Instant::now();
        let dial = |number: u32| {
            let queue = queue.clone();
            async move {
                queue.enter().await;
                (number, began.elapsed().as_millis())
            }
        };
        let dials = futures::future::join_all((0..6).map(dial)).await;
        assert_eq!(dials, [(0, 0), (1, 0), (2, 1_000), (3, 1_000), (4, 2_000), (5, 2_000)]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_dial_that_is_ready_lets_the_next_one_in() {
        let queue = queue(1);
        let first = queue.enter().await;
        let mut second = Box::pin(queue.enter());
        assert!(second.as_mut().now_or_never().is_none());
        queue.release(first);
        assert!(second.now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn who_gives_up_waiting_holds_nobody_up() {
        let queue = queue(1);
        queue.enter().await;
        let gone = timeout(Duration::from_millis(10), queue.enter()).await;
        assert!(gone.is_err());
        let waiting = queue.enter();
        advance(Duration::from_millis(990)).await;
        assert!(waiting.now_or_never().is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_tenant_enters_again_and_its_successor_when_it_is_gone() {
        let (tenancy, queue) = (tenancy(), queue(32));
        let first = Arc::new(Entrance::new(tenancy.clone(), queue.clone()));
        let second = Arc::new(Entrance::new(tenancy, queue));
        first.enter().await.ready();
        first.enter().await.ready();
        assert!(second.enter().now_or_never().is_none());
        drop(first);
        assert!(second.enter().now_or_never().is_some());
    }
}
