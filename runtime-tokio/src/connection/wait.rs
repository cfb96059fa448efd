//! The part that the handles of a connection share, and how a caller comes to a session.

use std::sync::{Arc, PoisonError, RwLock, Weak};

use mcp_reconnect_core::{
    Admission, Epoch, Failure, Input, ParkReason, Refusal, Snapshot, Status, Timestamp, WakeCause, Want,
};
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout_at};

use crate::clock::{Clock, SuspendDetector};
use crate::connection::durations::Durations;
use crate::connection::event::Telling;
use crate::connection::inbox::Commands;
use crate::connection::limit::InFlight;
use crate::connection::messages::Command;
use crate::connection::metrics::Meters;
use crate::connection::published::{Published, needs_asking};
use crate::error::CallError;
use crate::options::Tuning;
use crate::session::Session;
use crate::session::spec::Spec;

/// The part that the handles share.
pub(crate) struct Shared {
    pub(crate) commands: Commands,
    pub(crate) published: watch::Receiver<Published>,
    pub(crate) events: Weak<Telling>,
    pub(crate) spec: Arc<Spec>,
    pub(crate) clock: Clock,
    pub(crate) tuning: RwLock<Tuning>,
    pub(crate) in_flight: Arc<InFlight>,
    pub(crate) meters: Arc<Meters>,
    pub(crate) suspend: Arc<SuspendDetector>,
    /// How long calls have taken.
    pub(crate) durations: Durations,
}

impl Shared {
    pub(crate) fn command(&self, command: Command) {
        // Dropped when the connection was shut down; waiters see that.
        self.commands.send(command);
    }

    /// Condemns the session at once, and tells the owner.
    pub(crate) fn lost(&self, epoch: Epoch, failure: Failure, cause: Arc<str>) {
        if let Some(session) = self.published.borrow().session.as_ref().filter(|session| session.epoch() == epoch) {
            session.condemn();
        }
        self.command(Command::Lost { epoch, failure, cause });
    }

    pub(crate) fn snapshot(&self) -> Snapshot {
        self.published.borrow().snapshot
    }

    pub(crate) fn tuning(&self) -> Tuning {
        *self.tuning.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn retune(&self, tuning: Tuning) {
        *self.tuning.write().unwrap_or_else(PoisonError::into_inner) = tuning;
        self.in_flight.set_limit(tuning.max_in_flight);
        self.spec.doubts.retune(tuning.config.retry_after_max());
        self.command(Command::Input(Input::Retune(tuning.config)));
    }

    /// Notices that the host slept: the session is asked before it gets the next call, and not waited for.
    pub(crate) async fn notice_suspend(&self) {
        if self.suspend.resumed() {
            let (noted, done) = oneshot::channel();
            self.command(Command::Resumed(noted));
            _ = done.await; // an owner that is gone asks nobody
        }
    }

    /// A session that satisfies `want`, within this time. While one is Ready and the breaker is closed nothing but the
    /// published state is looked at.
    pub(crate) async fn acquire(&self, want: Want, until: Instant) -> Result<Arc<Session>, CallError> {
        let at = self.clock.timestamp(until);
        let mut published = self.published.clone();
        let mut asked = false;
        loop {
            if self.commands.is_closed() {
                return Err(CallError::Closed);
            }
            let seen = published.borrow_and_update().clone();
            match seen.snapshot.admission(want, at) {
                Admission::Go(_) => {
                    if let Some(session) = seen.session.filter(|session| !session.is_condemned()) {
                        return Ok(session);
                    }
                }
                Admission::Wait { .. } if asked && !needs_asking(&seen.snapshot) => {}
                // The machine may let this caller through, and a caller brings the next dial forward: also of a server
                // that was parked while the caller waited.
                Admission::Wait { .. } | Admission::Refuse { .. } => {
                    asked = true;
                    if seen.snapshot.status == Status::Parked(ParkReason::NeedsAuth) && self.renewed(until).await {
                        self.command(Command::Input(Input::Wake(WakeCause::Credentials)));
                    }
                    match self.ask_owner(until).await? {
                        Admission::Go(epoch) if satisfies(epoch, want) => {
                            if let Some(session) =
                                published.borrow().session.clone().filter(|session| session.epoch() == epoch)
                            {
                                return Ok(session);
                            }
                        }
                        // Of the session that failed: the machine has not heard of it, and so not of this caller's wait.
                        Admission::Go(_) => asked = false,
                        Admission::Wait { .. } => {}
                        Admission::Refuse { why, retry_at } => return Err(self.refused(why, retry_at)),
                    }
                    if published.has_changed().unwrap_or(true) {
                        continue;
                    }
                }
            }
            match timeout_at(until, published.changed()).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(CallError::Closed),
                Err(_) => {
                    let retry_at = self.snapshot().state.next_dial();
                    return Err(self.refused(Refusal::NotInTime, retry_at));
                }
            }
        }
    }

    /// Whether other credentials are at hand than those that were refused; looked at once in `demand_interval`.
    async fn renewed(&self, until: Instant) -> bool {
        let credentials = || self.spec.credentials.lock().unwrap_or_else(PoisonError::into_inner);
        if !credentials().look(self.tuning().config.demand_interval()) {
            return false;
        }
        let digest = timeout_at(until, self.spec.connector.credentials()).await.unwrap_or_default();
        credentials().differs(digest)
    }

    async fn ask_owner(&self, until: Instant) -> Result<Admission, CallError> {
        let (reply, admission) = oneshot::channel();
        self.command(Command::Connect { until, reply });
        admission.await.map_err(|_| CallError::Closed)
    }

    fn refused(&self, why: Refusal, retry_at: Option<Timestamp>) -> CallError {
        if why == Refusal::Shutdown {
            return CallError::Closed;
        }
        let cause = self.published.borrow().cause.clone();
        CallError::Refused { why, retry_at: retry_at.map(|at| self.clock.instant(at)), cause }
    }
}

fn satisfies(epoch: Epoch, want: Want) -> bool {
    match want {
        Want::Session => true,
        Want::SessionAfter(old) => epoch > old,
    }
}
