use core::time::Duration;

use crate::failure::FailureClass;
use crate::id::Epoch;
use crate::state::{ParkReason, Status};
use crate::time::Timestamp;

/// An order or a fact, to be carried out in the order given. Exhaustive: a driver that ignores a new order should
/// not compile.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Output {
    /// Dial, and report how far it gets.
    Dial {
        /// The epoch of this attempt.
        epoch: Epoch,
        /// The start deadline, counted from [`ReadyFlag::Started`](crate::ReadyFlag::Started). The machine keeps it.
        timeout: Duration,
        /// Whether a user asked, so that a login may be shown.
        interactive: bool,
    },
    /// Close the epoch, and report [`Gone`](crate::Input::Gone) when nothing of it is left.
    Close {
        /// Which.
        epoch: Epoch,
        /// Why; after [`CloseCause::Idle`] and [`CloseCause::Lifetime`] calls that slipped in end first, within
        /// `close_timeout`.
        cause: CloseCause,
    },
    /// Ask the session for a sign of life; whatever it answers is seen as [`Traffic`](crate::Input::Traffic).
    Ping {
        /// Which.
        epoch: Epoch,
    },
    /// Ask the session the first thing that it has answered before: a listing, or a ping where nothing can be listed. Its
    /// answer is seen as [`Traffic`](crate::Input::Traffic).
    Ask {
        /// Which.
        epoch: Epoch,
    },
    /// The catalogue of this epoch may be offered.
    Publish {
        /// Which.
        epoch: Epoch,
    },
    /// What was published must be taken back.
    Withdraw,
    /// The answer to [`Connect`](crate::Input::Connect).
    Admit(Admission),
    /// Something to tell.
    Event(Event),
}

/// Why an epoch is closed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum CloseCause {
    /// It failed.
    Failed(FailureClass),
    /// A park was asked for.
    Parked,
    /// `idle_timeout` passed.
    Idle,
    /// `max_lifetime` passed.
    Lifetime,
    /// Shutdown.
    Shutdown,
}

/// Whether a caller may go on.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Admission {
    /// Call on this session.
    Go(Epoch),
    /// A dial is under way, or due then.
    Wait {
        /// When the next dial is due, where one is not under way.
        next: Option<Timestamp>,
    },
    /// No session by the time named.
    Refuse {
        /// Why.
        why: Refusal,
        /// When it makes sense to ask again, where that is known.
        retry_at: Option<Timestamp>,
    },
}

/// Why a caller is refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Refusal {
    /// The server is parked.
    Parked(ParkReason),
    /// The circuit breaker is open.
    BreakerOpen,
    /// The next dial is due later than the caller waits.
    NotInTime,
    /// The connection was shut down.
    Shutdown,
}

/// What happened, for whoever listens.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum Event {
    /// The status changed; emitted then and only then.
    StatusChanged {
        /// What it is now.
        status: Status,
        /// The last failure since the last Ready, where there was one.
        failure: Option<FailureClass>,
    },
    /// The circuit breaker opened or closed.
    BreakerChanged {
        /// Until when it refuses calls; `None`: it closed.
        open_until: Option<Timestamp>,
    },
}

/// All that one step wants: orders and facts in order, and when to come back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "the orders must be carried out, in order"]
pub struct Outputs {
    list: [Option<Output>; Self::MAX],
    len: u8,
    pub(crate) wake_at: Option<Timestamp>,
}

impl Outputs {
    /// One step never wants more.
    pub const MAX: usize = 8;

    pub(crate) const fn new() -> Self {
        Self { list: [None; Self::MAX], len: 0, wake_at: None }
    }

    pub(crate) fn push(&mut self, output: Output) {
        self.list[usize::from(self.len)] = Some(output);
        self.len += 1;
    }

    /// When to call [`handle`](crate::ConnectionMachine::handle) again if nothing happens before; later than now.
    /// `None`: not at all.
    pub const fn wake_at(&self) -> Option<Timestamp> {
        self.wake_at
    }

    /// The orders and facts, in order.
    pub fn iter(&self) -> impl Iterator<Item = Output> + '_ {
        self.list.iter().flatten().copied()
    }
}

impl IntoIterator for Outputs {
    type Item = Output;
    type IntoIter = core::iter::Flatten<core::array::IntoIter<Option<Output>, { Self::MAX }>>;

    fn into_iter(self) -> Self::IntoIter {
        self.list.into_iter().flatten()
    }
}
