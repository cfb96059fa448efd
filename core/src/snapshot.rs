use core::time::Duration;

use crate::breaker::Breaker;
use crate::failure::FailureClass;
use crate::id::Epoch;
use crate::output::{Admission, Refusal};
use crate::state::{PingSupport, State, Status, Then};
use crate::time::Timestamp;

/// What a caller wants.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Want {
    /// Any session.
    Session,
    /// A session that is not this one and not an older one.
    SessionAfter(Epoch),
}

/// Counts since the machine was made.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Stats {
    /// Dials ordered.
    pub dials: u64,
    /// Of these, probes of a parked server.
    pub probes: u64,
    /// Sessions that became Ready.
    pub sessions: u64,
    /// Dials and sessions that failed, but for sessions whose end is no reason to begin another.
    pub failures: u64,
    /// Failures since the last proven session.
    pub failures_in_a_row: u64,
    /// Pings ordered.
    pub pings: u64,
    /// Listings ordered, in place of pings.
    pub asks: u64,
    /// Calls without a reply.
    pub no_replies: u64,
    /// Times that the breaker opened.
    pub breaker_opened: u64,
}

/// A copy of everything that may be looked at. It does not change; a newer one comes with each step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[non_exhaustive]
pub struct Snapshot {
    /// What the world sees; equal to the last event's.
    pub status: Status,
    /// Since when the status is this.
    pub since: Timestamp,
    /// What the machine waits for.
    pub state: State,
    /// The last failure since the last Ready, where there was one.
    pub failure: Option<FailureClass>,
    /// When it last dialled.
    pub dialled: Option<Timestamp>,
    /// Until when the server asked to be left alone (`Retry-After`), since the last Ready or wake.
    pub hint_until: Option<Timestamp>,
    /// The circuit breaker.
    pub breaker: Breaker,
    /// Whether a catalogue is published.
    pub published: bool,
    /// The current start deadline: grows with start timeouts, and what worked is kept.
    pub start_timeout: Duration,
    /// What is known about the server's pings.
    pub pings: PingSupport,
    /// How often the probe interval has doubled.
    pub probe_doublings: u8,
    /// Counts.
    pub stats: Stats,
}

impl Snapshot {
    /// Whether somebody who waits until `until` may go on in this state.
    ///
    /// Looking is not asking: a [`Connect`](crate::Input::Connect) may bring the next dial forward, or begin one, and
    /// is answered by the state after that.
    ///
    /// An open breaker is always a refusal here; only the machine lets the one caller through.
    pub fn admission(&self, want: Want, until: Timestamp) -> Admission {
        // R22
        let parked = match self.status {
            Status::Parked(reason) => Some(reason),
            Status::Idle | Status::Connecting | Status::Ready(_) | Status::TransientFailure | Status::Shutdown => None,
        };
        match self.state {
            State::Ready { epoch, .. } => match (want, self.breaker) {
                (Want::SessionAfter(old), _) if epoch <= old => Admission::Wait { next: None }, // R10
                (_, Breaker::Closed { .. }) => Admission::Go(epoch),
                (_, Breaker::Open { until }) => Admission::Refuse { why: Refusal::BreakerOpen, retry_at: Some(until) },
            },
            State::Idle | State::Connecting { .. } | State::Closing { then: Then::Rest, .. } => {
                Admission::Wait { next: None }
            }
            State::TransientFailure { .. }
            | State::Parked { .. }
            | State::Closing { then: Then::Retry { .. } | Then::Park, .. } => match self.state.next_dial() {
                Some(at) if at <= until => Admission::Wait { next: Some(at) },
                retry_at => Admission::Refuse { why: parked.map_or(Refusal::NotInTime, Refusal::Parked), retry_at },
            },
            State::Closing { then: Then::Shutdown, .. } | State::Shutdown => {
                Admission::Refuse { why: Refusal::Shutdown, retry_at: None }
            }
        }
    }

    /// What a state file keeps, times relative to `now`; see
    /// [`ConnectionMachine::restore`](crate::ConnectionMachine::restore).
    pub fn memory(&self, now: Timestamp) -> Memory {
        Memory {
            status: self.status,
            next_dial_in: self.state.next_dial().map(|at| at.since(now)),
            start_timeout: self.start_timeout,
            pings: self.pings,
            probe_doublings: self.probe_doublings,
            failure: self.failure,
            hint_in: self.hint_until.map(|until| until.since(now)).filter(|left| !left.is_zero()),
            last_dial_ago: self.dialled.map(|at| now.since(at)),
        }
    }
}

impl State {
    /// When the next dial is due, where that is settled and none is under way.
    pub fn next_dial(mut self) -> Option<Timestamp> {
        self.next_dial_mut().copied()
    }

    /// See [`next_dial`](Self::next_dial).
    pub(crate) const fn next_dial_mut(&mut self) -> Option<&mut Timestamp> {
        match self {
            Self::TransientFailure { retry_at: at }
            | Self::Parked { probe_at: Some(at) }
            | Self::Closing { then: Then::Retry { at }, .. } => Some(at),
            Self::Idle
            | Self::Connecting { .. }
            | Self::Ready { .. }
            | Self::Closing { then: Then::Park | Then::Rest | Then::Shutdown, .. }
            | Self::Parked { probe_at: None }
            | Self::Shutdown => None,
        }
    }
}

/// What is worth keeping when the host ends and starts again.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Memory {
    /// The status.
    pub status: Status,
    /// How long the next dial was still away.
    pub next_dial_in: Option<Duration>,
    /// The start deadline.
    pub start_timeout: Duration,
    /// What is known about the server's pings.
    pub pings: PingSupport,
    /// How often the probe interval has doubled.
    pub probe_doublings: u8,
    /// The last failure since the last Ready, where there was one.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub failure: Option<FailureClass>,
    /// How long the server still asked to be left alone (`Retry-After`).
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub hint_in: Option<Duration>,
    /// How long ago the last dial was. A state file keeps its wall time; where that clock went back since, this is zero.
    #[cfg_attr(feature = "serde", serde(default, skip_serializing_if = "Option::is_none"))]
    pub last_dial_ago: Option<Duration>,
}
