//! The progress of calls: what puts a deadline off, what is told, and whether it has been told.

use std::collections::HashMap;
use std::future::pending;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::timeout;

use crate::watched::Watched;

/// How long a result waits for the handler of the progress that came before it.
const TELLING: Duration = Duration::from_secs(1);

/// The highest progress that was told of one call, over all its sendings.
#[derive(Debug, Default)]
pub(crate) struct Told(Mutex<Option<f64>>);

impl Told {
    /// The highest so far.
    pub(crate) fn highest(&self) -> Option<f64> {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes progress that is told now.
    pub(crate) fn tell(&self, progress: f64) {
        let mut highest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *highest = Some(highest.map_or(progress, |highest| highest.max(progress)));
    }
}

/// What the reader of a wire tells a call of its progress.
#[derive(Default)]
pub(crate) struct CallProgress {
    bumped: Notify,
    /// How many notifications wait for the handler.
    untold: Watched<u32>,
}

impl CallProgress {
    /// The call makes progress.
    pub(crate) fn bump(&self) {
        self.bumped.notify_one();
    }
}

/// Tells of the progress of one call.
#[derive(Clone)]
pub(crate) struct Progress(pub(crate) Option<Arc<CallProgress>>);

impl Progress {
    /// Resolves at the next progress notification for the call, or at once for one that came since this was last awaited.
    pub(crate) async fn bumped(&self) {
        match &self.0 {
            Some(progress) => progress.bumped.notified().await,
            None => pending().await,
        }
    }

    /// Resolves when the handler is through with the progress that has come, or has taken too long.
    pub(crate) async fn told(&self) {
        if let Some(progress) = &self.0
            && progress.untold.get() > 0
        {
            let told = progress.untold.when(|untold| (*untold == 0).then_some(()));
            drop(timeout(TELLING, told).await);
        }
    }
}

/// The progress that waits for a handler, by its token.
#[derive(Default)]
pub(crate) struct Tellings(Mutex<HashMap<Box<str>, (Arc<CallProgress>, u32)>>);

impl Tellings {
    /// A notification with this token is on its way to the handler.
    pub(crate) fn begin(&self, token: &str, progress: &Arc<CallProgress>) {
        progress.untold.update(|untold| *untold += 1);
        let mut tellings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        tellings.entry(token.into()).or_insert_with(|| (progress.clone(), 0)).1 += 1;
    }

    /// The handler is through with one, or it never gets there.
    pub(crate) fn end(&self, token: &str) {
        let mut tellings = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((progress, count)) = tellings.get_mut(token) else { return };
        *count -= 1;
        let (progress, last) = (progress.clone(), *count == 0);
        if last {
            tellings.remove(token);
        }
        drop(tellings);
        progress.untold.update(|untold| *untold = untold.saturating_sub(1));
    }
}
