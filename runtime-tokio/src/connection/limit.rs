//! How many calls a server gets at once.

use std::collections::VecDeque;
use std::num::NonZeroU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::connection::metrics::Meters;

/// Counts the calls in flight, and holds back what is beyond the limit: first come, first served.
pub(crate) struct InFlight {
    state: Mutex<State>,
    meters: Arc<Meters>,
}

#[derive(Default)]
struct State {
    limit: Option<NonZeroU32>,
    running: u32,
    waiting: VecDeque<oneshot::Sender<Permit>>,
}

impl State {
    fn has_room(&self) -> bool {
        self.limit.is_none_or(|limit| self.running < limit.get())
    }
}

/// A call in flight, until it is dropped.
pub(crate) struct Permit(Arc<InFlight>);

impl InFlight {
    pub(crate) fn new(limit: Option<NonZeroU32>, meters: Arc<Meters>) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new(State { limit, ..State::default() }), meters })
    }

    /// A place that was counted.
    fn permit(self: &Arc<Self>) -> Permit {
        self.meters.call_began();
        Permit(self.clone())
    }

    /// Waits for a place. Cancel safe: a place that nobody takes goes to the next.
    pub(crate) async fn enter(self: &Arc<Self>) -> Permit {
        let turn = {
            let mut state = self.lock();
            if state.waiting.is_empty() && state.has_room() {
                state.running += 1;
                return self.permit();
            }
            if state.waiting.len() == state.waiting.capacity() {
                // Before the queue grows, callers that gave up leave it.
                state.waiting.retain(|place| !place.is_closed());
            }
            let (place, turn) = oneshot::channel();
            state.waiting.push_back(place);
            turn
        };
        match turn.await {
            Ok(permit) => permit,
            // The queue lives as long as `self`.
            Err(_) => std::future::pending().await,
        }
    }

    /// Another limit from now on. What is in flight goes on.
    pub(crate) fn set_limit(self: &Arc<Self>, limit: Option<NonZeroU32>) {
        self.lock().limit = limit;
        self.admit();
    }

    /// How many calls are in flight, and how many wait.
    pub(crate) fn count(&self) -> (u32, usize) {
        let state = self.lock();
        (state.running, state.waiting.iter().filter(|place| !place.is_closed()).count())
    }

    /// Admits waiting calls while there is room.
    fn admit(self: &Arc<Self>) {
        let mut state = self.lock();
        while state.has_room() {
            let Some(place) = state.waiting.pop_front() else { return };
            if place.is_closed() {
                continue;
            }
            state.running += 1;
            drop(state);
            // A caller that goes in this very moment gives the place back by dropping it.
            drop(place.send(self.permit()));
            state = self.lock();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.0.lock().running -= 1;
        self.0.meters.call_over();
        self.0.admit();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    fn one_at_a_time() -> Arc<InFlight> {
        InFlight::new(NonZeroU32::new(1), Arc::new(Meters::new(&"server".into())))
    }

    #[test]
    fn places_go_in_order_and_an_untaken_one_goes_to_the_next() {
        let limit = one_at_a_time();
        let first = limit.enter().now_or_never().expect("there is room");
        let mut second = Box::pin(limit.enter());
        let mut third = Box::pin(limit.enter());
        let mut fourth = Box::pin(limit.enter());
        assert!(second.as_mut().now_or_never().is_none());
        assert!(third.as_mut().now_or_never().is_none());
        assert!(fourth.as_mut().now_or_never().is_none());
        assert_eq!(limit.count(), (1, 3));
        drop(second);
        drop(first);
        let third = third.now_or_never().expect("the second has gone");
        assert!(fourth.as_mut().now_or_never().is_none());
        drop(third);
        assert!(fourth.now_or_never().is_some());
        assert_eq!(limit.count(), (0, 0));
    }

    #[test]
    fn a_place_that_was_given_and_not_taken_is_not_lost() {
        let limit = one_at_a_time();
        let first = limit.enter().now_or_never().expect("there is room");
        let mut second = Box::pin(limit.enter());
        assert!(second.as_mut().now_or_never().is_none());
        drop(first); // now the second's, which never looks
        drop(second);
        assert!(limit.enter().now_or_never().is_some());
    }

    #[test]
    fn however_many_gave_up_the_next_one_gets_the_place() {
        let limit = one_at_a_time();
        let first = limit.enter().now_or_never().expect("there is room");
        for _ in 0..100_000 {
            assert!(limit.enter().now_or_never().is_none());
        }
        assert!(limit.lock().waiting.capacity() < 100, "who gave up is not kept");
        let mut gone: Vec<_> = (0..100_000).map(|_| Box::pin(limit.enter())).collect();
        assert!(gone.iter_mut().all(|turn| turn.as_mut().now_or_never().is_none()));
        let mut last = Box::pin(limit.enter());
        assert!(last.as_mut().now_or_never().is_none());
        drop(gone);
        drop(first); // the stack is not as deep as the queue was long
        assert!(last.now_or_never().is_some());
        assert_eq!(limit.count(), (0, 0));
    }

    #[test]
    fn another_limit_holds_from_now_on() {
        let limit = one_at_a_time();
        let _first = limit.enter().now_or_never().expect("there is room");
        let mut second = Box::pin(limit.enter());
        assert!(second.as_mut().now_or_never().is_none());
        limit.set_limit(None);
        let second = second.now_or_never().expect("there is no limit");
        limit.set_limit(NonZeroU32::new(2));
        assert!(limit.enter().now_or_never().is_none());
        drop(second);
        assert!(limit.enter().now_or_never().is_some());
    }
}
