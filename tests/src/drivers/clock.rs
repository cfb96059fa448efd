//! Virtual time, for drivers whose executor has none of its own.
//!
//! It moves only when everything waits, and then straight to what comes first, on whole milliseconds: the resolution of
//! tokio's timers, so that all drivers see the same times.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use mcp_reconnect_core::{Input, Timestamp};

use super::{Act, Deed, Plan, Server};

/// The whole millisecond that is not before `at`.
pub const fn whole_millis(at: Timestamp) -> Timestamp {
    Timestamp::from_nanos(at.as_nanos().next_multiple_of(1_000_000))
}

/// Things to do at a time, in the order of their times and, at the same time, in the order in which they were added.
#[derive(Debug)]
pub struct Agenda<T> {
    due: BTreeMap<(Timestamp, u64), T>,
    added: u64,
}

impl<T> Default for Agenda<T> {
    fn default() -> Self {
        Self { due: BTreeMap::new(), added: 0 }
    }
}

impl<T> Agenda<T> {
    /// Adds one; returns its place.
    pub fn add(&mut self, at: Timestamp, what: T) -> (Timestamp, u64) {
        self.added += 1;
        self.due.insert((at, self.added), what);
        (at, self.added)
    }

    /// When the first is due.
    pub fn next(&self) -> Option<Timestamp> {
        self.due.first_key_value().map(|((at, _), _)| *at)
    }

    /// Takes the first, if it is due at `now`.
    pub fn take(&mut self, now: Timestamp) -> Option<T> {
        self.next().filter(|at| *at <= now).and_then(|_| self.due.pop_first()).map(|(_, what)| what)
    }
}

/// A clock that stands still until it is moved, and wakes the futures that wait for a time.
#[derive(Clone, Debug, Default)]
pub struct VirtualClock(Arc<Mutex<Sleepers>>);

#[derive(Debug, Default)]
struct Sleepers {
    now: Timestamp,
    agenda: Agenda<Waker>,
}

impl VirtualClock {
    /// What time it is.
    pub fn now(&self) -> Timestamp {
        self.lock().now
    }

    /// Moves on to `at`; never back.
    pub fn set(&self, at: Timestamp) {
        let mut sleepers = self.lock();
        sleepers.now = sleepers.now.max(at);
    }

    /// Moves on to the time that the first future waits for, and wakes it; whether there was one. To be called when
    /// every task waits.
    pub fn advance(&self) -> bool {
        let mut sleepers = self.lock();
        let Some(at) = sleepers.agenda.next() else { return false };
        sleepers.now = sleepers.now.max(at);
        let waker = sleepers.agenda.take(at);
        drop(sleepers);
        waker.inspect(Waker::wake_by_ref).is_some()
    }

    /// Waits until it is `at`.
    pub fn sleep_until(&self, at: Timestamp) -> impl Future<Output = ()> + Send + use<> {
        Sleep { clock: self.clone(), at: whole_millis(at), place: None }
    }

    fn lock(&self) -> MutexGuard<'_, Sleepers> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Sleep {
    clock: VirtualClock,
    at: Timestamp,
    place: Option<(Timestamp, u64)>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let this = &mut *self;
        let mut sleepers = this.clock.lock();
        if sleepers.now >= this.at {
            return Poll::Ready(());
        }
        let waker = context.waker().clone();
        match this.place.and_then(|place| sleepers.agenda.due.get_mut(&place)) {
            Some(slept) => *slept = waker,
            None => this.place = Some(sleepers.agenda.add(this.at, waker)),
        }
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(place) = self.place {
            self.clock.lock().agenda.due.remove(&place);
        }
    }
}

/// Everything around a driver that has no executor to play the plans of the server and the acts of the script: one thing
/// happens, then the driver has its turn, then the next.
#[derive(Debug)]
pub struct World {
    clock: VirtualClock,
    server: Arc<Server>,
    plans: Agenda<Plan>,
    acts: Agenda<Act>,
}

/// The next thing that concerns the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Happening {
    /// The transport reports this.
    Report(Input),
    /// Somebody does this.
    Deed(Deed),
    /// The driver's timer is due.
    Due,
    /// The script did something that the driver does not see at once.
    Unseen,
}

impl World {
    /// A world whose script has these acts, in milliseconds from the origin.
    pub fn new(clock: VirtualClock, server: Arc<Server>, script: &[(u64, Act)]) -> Self {
        let mut acts = Agenda::default();
        for (millis, act) in script {
            acts.add(Timestamp::from_origin(Duration::from_millis(*millis)), *act);
        }
        Self { clock, server, plans: Agenda::default(), acts }
    }

    /// The server will do this, from now on.
    pub fn plan(&mut self, plan: Plan) {
        if let Some(step) = plan.front() {
            self.plans.add(self.clock.now() + step.after, plan);
        }
    }

    /// Moves time to what comes first, with the driver's timer set to `timer`. `None`: nothing will ever happen.
    ///
    /// # Panics
    ///
    /// Where the script leaves the order of two things open, because they fall on the same millisecond. In life either
    /// may come first; in a script that all drivers play alike, none does.
    pub fn next(&mut self, timer: Option<Timestamp>) -> Option<Happening> {
        let timer = timer.map(whole_millis);
        let times = [self.plans.next(), self.acts.next(), timer];
        let at = times.into_iter().flatten().min()?;
        let tied = times.iter().filter(|time| **time == Some(at)).count() > 1;
        assert!(!tied, "the script leaves open what comes first at {at:?}");
        self.clock.set(at);
        Some(if let Some(act) = self.acts.take(at) {
            self.server.act(act).map_or(Happening::Unseen, Happening::Deed)
        } else if let Some(mut plan) = self.plans.take(at) {
            let report = plan.pop_front().and_then(|step| self.server.happens(&step));
            self.plan(plan);
            report.map_or(Happening::Unseen, Happening::Report)
        } else {
            Happening::Due
        })
    }
}
