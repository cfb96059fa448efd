//! How long a call may take: its deadline, what puts it off, and what it stands still for.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep_until};

use crate::clock::deadline;
use crate::options::CallOptions;
use crate::wire::asks::StandStill;

/// For how long in all the deadline of a call may stand still, where its timeout is shorter.
const STAND_STILL: Duration = Duration::from_secs(120);

/// The deadline of one call.
pub(crate) struct Patience {
    timeout: Duration,
    /// The end, were nothing to stand still from here on.
    base: Instant,
    /// How long it had stood still when `base` was set.
    before: Duration,
    /// For how long it may stand still in all.
    allowed: Duration,
    /// The end, whatever happens.
    cap: Instant,
    still: Arc<StandStill>,
}

impl Patience {
    pub(crate) fn new(options: &CallOptions) -> Self {
        let cap = deadline(options.max_timeout.unwrap_or_else(|| options.timeout.saturating_mul(10)));
        Self {
            timeout: options.timeout,
            base: deadline(options.timeout),
            before: Duration::ZERO,
            allowed: options.timeout.max(STAND_STILL),
            cap,
            still: Arc::default(),
        }
    }

    /// The reasons to stand still.
    pub(crate) fn still(&self) -> &Arc<StandStill> {
        &self.still
    }

    /// The call makes progress: it has its whole timeout again.
    pub(crate) fn renew(&mut self) {
        self.base = deadline(self.timeout);
        self.before = self.stood(self.still.stood());
    }

    /// The end, were nothing to stand still from now on.
    pub(crate) fn until(&self) -> Instant {
        self.end(self.still.stood())
    }

    /// Resolves when the deadline has passed. Cancel safe.
    pub(crate) async fn over(&self) {
        loop {
            let changed = self.still.changed();
            tokio::select! {
                () = sleep_until(self.end(self.still.may_stand())) => {
                    // Something may have come to stand still for.
                    if self.until() <= Instant::now() {
                        return;
                    }
                }
                () = changed => {}
            }
        }
    }

    fn end(&self, stood: Duration) -> Instant {
        let later = self.stood(stood).saturating_sub(self.before);
        self.cap.min(self.base.checked_add(later).unwrap_or(self.cap))
    }

    fn stood(&self, stood: Duration) -> Duration {
        stood.min(self.allowed)
    }
}
