//! The server's requests that are open at our side, and the calls whose deadlines stand still for them.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rmcp::model::ErrorCode;
use serde_json::value::RawValue;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;
use tokio::time::Instant;

use crate::protocol::frame::canonical;

/// How many requests a server may have open at once; one more is refused.
pub(crate) const MAX_ASKS: usize = 256;
/// How long a deadline stands still for a request that no user answers (`roots/list`).
const WITHOUT_USER: Duration = Duration::from_secs(5);

/// The requests of one server that are not answered, by their ids.
#[derive(Default)]
pub(crate) struct Asks(Mutex<HashMap<Box<str>, Vec<Standing>>>);

impl Asks {
    /// Notes a request, for which these calls' deadlines stand still; an error is the refusal.
    pub(crate) fn begin(
        &self,
        id: &RawValue,
        method: &str,
        calls: impl FnOnce() -> Vec<Arc<StandStill>>,
    ) -> Result<(), (ErrorCode, &'static str)> {
        let mut asks = self.lock();
        if asks.len() >= MAX_ASKS {
            return Err((ErrorCode::INTERNAL_ERROR, "too many requests are open"));
        }
        let key = canonical(id);
        if asks.contains_key(&key) {
            return Err((ErrorCode::INVALID_REQUEST, "a request with this id is open"));
        }
        let standing = match standing_for(method) {
            Some(bound) => calls().into_iter().map(|call| call.stand(bound)).collect(),
            None => Vec::new(),
        };
        asks.insert(key, standing);
        Ok(())
    }

    /// The request is open no more.
    pub(crate) fn end(&self, id: &RawValue) {
        let ended = self.lock().remove(&canonical(id));
        drop(ended); // not under the lock
    }

    /// Whether it is open.
    pub(crate) fn is_open(&self, id: &RawValue) -> bool {
        self.lock().contains_key(&canonical(id))
    }

    /// No request is open any more.
    pub(crate) fn clear(&self) {
        let ended = std::mem::take(&mut *self.lock());
        drop(ended);
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Box<str>, Vec<Standing>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long the deadline of a call stands still while the server asks for this; `None`: it does not.
pub(crate) fn standing_for(method: &str) -> Option<Bound> {
    match method {
        "sampling/createMessage" | "elicitation/create" => Some(Bound(None)),
        "roots/list" => Some(Bound(Some(WITHOUT_USER))),
        _ => None,
    }
}

/// How long a deadline may stand still for one request; `None`: as long as it is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Bound(Option<Duration>);

impl Bound {
    /// The longer one.
    pub(crate) fn longer(self, other: Self) -> Self {
        match (self.0, other.0) {
            (Some(one), Some(other)) => Self(Some(one.max(other))),
            _ => Self(None),
        }
    }
}

/// How long a call's deadline has stood still.
pub(crate) struct StandStill {
    state: Mutex<State>,
    /// Notified when a reason is gone.
    changed: Notify,
}

struct State {
    /// The reasons, and how long each counts.
    open: Vec<(u64, Option<Instant>)>,
    next: u64,
    /// Up to when `sum` counts.
    counted: Instant,
    sum: Duration,
}

impl State {
    /// Counts up to now.
    fn count(&mut self, now: Instant) {
        let until = match self.latest() {
            Some(Some(until)) => now.min(until),
            Some(None) => now,
            None => self.counted,
        };
        self.sum += until.saturating_duration_since(self.counted);
        self.counted = now;
    }

    /// Until when it stands still with the reasons that there are; `None`: there is none.
    fn latest(&self) -> Option<Option<Instant>> {
        let bounded = self.open.iter().map(|(_, until)| *until).collect::<Option<Vec<_>>>();
        match bounded {
            Some(bounds) => bounds.into_iter().max().map(Some),
            None => Some(None),
        }
    }
}

impl Default for StandStill {
    fn default() -> Self {
        let state = State { open: Vec::new(), next: 0, counted: Instant::now(), sum: Duration::ZERO };
        Self { state: Mutex::new(state), changed: Notify::new() }
    }
}

impl StandStill {
    /// A reason to stand still, until it is dropped.
    pub(crate) fn stand(self: &Arc<Self>, bound: Bound) -> Standing {
        let now = Instant::now();
        let mut state = self.lock();
        state.count(now);
        let key = state.next;
        state.next += 1;
        state.open.push((key, bound.0.map(|bound| now + bound)));
        Standing(self.clone(), key)
    }

    /// How long it has stood still so far.
    pub(crate) fn stood(&self) -> Duration {
        let mut state = self.lock();
        state.count(Instant::now());
        state.sum
    }

    /// How long it will have stood still if no reason goes away.
    pub(crate) fn may_stand(&self) -> Duration {
        let mut state = self.lock();
        state.count(Instant::now());
        match state.latest() {
            Some(Some(until)) => state.sum + until.saturating_duration_since(state.counted),
            Some(None) => Duration::MAX,
            None => state.sum,
        }
    }

    /// Resolves when a reason goes away after this call.
    pub(crate) fn changed(&self) -> Notified<'_> {
        self.changed.notified()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A reason for a deadline to stand still.
pub(crate) struct Standing(Arc<StandStill>, u64);

impl Drop for Standing {
    fn drop(&mut self) {
        {
            let mut state = self.0.lock();
            state.count(Instant::now());
            state.open.retain(|(key, _)| *key != self.1);
        }
        self.0.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[tokio::test(start_paused = true)]
    async fn what_overlaps_is_counted_once() {
        let still = Arc::<StandStill>::default();
        let sampling = standing_for("sampling/createMessage").unwrap();
        advance(SECOND).await;
        assert_eq!((still.stood(), still.may_stand()), (Duration::ZERO, Duration::ZERO));
        let first = still.stand(sampling);
        advance(SECOND).await;
        let second = still.stand(sampling);
        assert_eq!(still.may_stand(), Duration::MAX);
        advance(SECOND).await;
        drop(first);
        advance(SECOND).await;
        drop(second);
        advance(SECOND).await;
        assert_eq!((still.stood(), still.may_stand()), (SECOND * 3, SECOND * 3));
    }

    #[tokio::test(start_paused = true)]
    async fn roots_count_for_five_seconds() {
        let still = Arc::<StandStill>::default();
        let roots = still.stand(standing_for("roots/list").unwrap());
        advance(SECOND * 2).await;
        assert_eq!((still.stood(), still.may_stand()), (SECOND * 2, SECOND * 5));
        advance(SECOND * 8).await;
        assert_eq!((still.stood(), still.may_stand()), (SECOND * 5, SECOND * 5));
        drop(roots);
        assert_eq!(still.stood(), SECOND * 5);
        assert!(standing_for("ping").is_none());
    }
}
