//! The one place that reads clocks.

use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, SystemTime};

use mcp_reconnect_core::Timestamp;
use tokio::time::Instant;

/// How far the wall clock must run ahead of the monotonic one to count as a suspend: more than clock discipline does.
const SUSPEND: Duration = Duration::from_secs(5);

/// Further away than any process lives, and still within what every platform can express.
const FAR: Duration = Duration::from_secs(u32::MAX as u64);

/// Translates between tokio's time and the machine's.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    origin: Instant,
    /// The time at the origin.
    before: Duration,
}

impl Clock {
    pub(crate) fn start() -> Self {
        Self::start_after(Duration::ZERO)
    }

    /// A clock that shows this much already.
    pub(crate) fn start_after(before: Duration) -> Self {
        Self { origin: Instant::now(), before }
    }

    pub(crate) fn now(self) -> Timestamp {
        self.timestamp(Instant::now())
    }

    pub(crate) fn timestamp(self, at: Instant) -> Timestamp {
        Timestamp::from_origin(self.before.saturating_add(at.saturating_duration_since(self.origin)))
    }

    pub(crate) fn instant(self, at: Timestamp) -> Instant {
        let since_origin = Duration::from_nanos(at.as_nanos()).saturating_sub(self.before);
        self.origin.checked_add(since_origin).unwrap_or_else(|| self.origin + FAR)
    }
}

/// The time `after` from now; what is further away than any process lives is cut.
pub(crate) fn deadline(after: Duration) -> Instant {
    let now = Instant::now();
    now.checked_add(after).unwrap_or_else(|| now + FAR)
}

/// The wall clock: milliseconds since 1970, zero before. Only for what is kept from one process to the next.
#[expect(clippy::disallowed_methods, reason = "this is the one place")]
pub(crate) fn unix_millis() -> u64 {
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since_1970.as_millis()).unwrap_or(u64::MAX)
}

/// Notices that the host slept: the wall clock went on, the monotonic one did not.
///
/// Real clocks on purpose: they are what a suspend tears apart, and tokio's may be paused. Shared by all that look: each
/// suspend is noticed once.
#[derive(Debug)]
pub(crate) struct SuspendDetector {
    origin: std::time::Instant,
    /// How far the wall clock was ahead of the monotonic one when somebody looked last, in milliseconds.
    ahead: AtomicI64,
}

impl SuspendDetector {
    #[expect(clippy::disallowed_methods, reason = "this is the one place")]
    pub(crate) fn start() -> Self {
        let detector = Self { origin: std::time::Instant::now(), ahead: AtomicI64::new(0) };
        detector.resumed();
        detector
    }

    /// Whether the host slept since this was last asked.
    pub(crate) fn resumed(&self) -> bool {
        let wall = i64::try_from(unix_millis()).unwrap_or(i64::MAX);
        let monotonic = i64::try_from(self.origin.elapsed().as_millis()).unwrap_or(i64::MAX);
        self.noted(wall.saturating_sub(monotonic))
    }

    /// A wall clock that was set back is no suspend.
    fn noted(&self, ahead: i64) -> bool {
        let before = self.ahead.swap(ahead, Ordering::AcqRel);
        u64::try_from(ahead.saturating_sub(before)).is_ok_and(|gap| Duration::from_millis(gap) > SUSPEND)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_wall_clock_that_ran_ahead_is_a_suspend_and_is_noticed_once() {
        let detector = SuspendDetector::start();
        let now = detector.ahead.load(Ordering::Acquire);
        assert!(!detector.noted(now + 5_000));
        assert!(detector.noted(now + 8 * 3_600_000));
        assert!(!detector.noted(now + 8 * 3_600_000));
        assert!(!detector.noted(now), "set back");
        assert!(!detector.resumed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_timestamp_translates_there_and_back() {
        let clock = Clock::start();
        tokio::time::advance(Duration::from_millis(1500)).await;
        let now = clock.now();
        assert_eq!(now, Timestamp::from_origin(Duration::from_millis(1500)));
        assert_eq!(clock.instant(now), Instant::now());
        let later = Clock::start_after(Duration::from_secs(7));
        assert_eq!(later.now(), Timestamp::from_origin(Duration::from_secs(7)));
        assert_eq!(later.instant(later.now()), Instant::now());
        let beyond = clock.instant(Timestamp::MAX);
        assert!(beyond > Instant::now() + Duration::from_secs(3600));
    }
}
