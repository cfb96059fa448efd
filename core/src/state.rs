use core::fmt;

use crate::id::Epoch;
use crate::time::Timestamp;

/// What the machine waits for. Every deadline is part of the state that it ends, so none can be forgotten.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum State {
    /// Nothing is wanted yet, or the session was put to rest.
    Idle,
    /// A dial is under way.
    Connecting {
        /// Its epoch.
        epoch: Epoch,
        /// When it counts as timed out: `connect_timeout_max` until the first flag, the start deadline after it.
        deadline: Timestamp,
        /// How far it got.
        ready: ReadyFlags,
    },
    /// The session is up.
    Ready {
        /// Its epoch.
        epoch: Epoch,
        /// Since when.
        since: Timestamp,
        /// When the last message came in, as last sampled.
        inbound: Timestamp,
        /// When the oldest open call was sent, as last sampled.
        oldest: Option<Timestamp>,
        /// How its life is watched.
        liveness: Liveness,
        /// When it is put to rest unless used.
        rest_at: Option<Timestamp>,
        /// When it is replaced for its age.
        renew_at: Option<Timestamp>,
    },
    /// The epoch is being closed; nothing else is dialled meanwhile.
    Closing {
        /// Its epoch.
        epoch: Epoch,
        /// When it counts as gone.
        deadline: Timestamp,
        /// What follows.
        then: Then,
    },
    /// The next dial is due then.
    TransientFailure {
        /// When.
        retry_at: Timestamp,
    },
    /// Dialled now and then only.
    Parked {
        /// When next; `None`: not before a wake.
        probe_at: Option<Timestamp>,
    },
    /// The end.
    Shutdown,
}

impl State {
    /// The epoch that is alive in some part: the only one whose reports count.
    pub const fn live_epoch(&self) -> Option<Epoch> {
        match *self {
            Self::Connecting { epoch, .. } | Self::Ready { epoch, .. } | Self::Closing { epoch, .. } => Some(epoch),
            Self::Idle | Self::TransientFailure { .. } | Self::Parked { .. } | Self::Shutdown => None,
        }
    }

    /// When the machine wants to be called again.
    pub fn next_timeout(&self) -> Option<Timestamp> {
        match *self {
            Self::Idle | Self::Shutdown => None,
            Self::Connecting { deadline, .. } | Self::Closing { deadline, .. } => Some(deadline),
            Self::TransientFailure { retry_at } => Some(retry_at),
            Self::Parked { probe_at } => probe_at,
            Self::Ready { liveness, rest_at, renew_at, .. } => {
                [Some(liveness.deadline()), rest_at, renew_at].into_iter().flatten().min()
            }
        }
    }
}

/// What follows a close.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Then {
    /// A dial, at that time or when the close is over, whichever is later.
    Retry {
        /// The earliest time.
        at: Timestamp,
    },
    /// Parked.
    Park,
    /// Idle.
    Rest,
    /// The end.
    Shutdown,
}

/// How the life of a session is watched.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Liveness {
    /// It is asked then, unless something comes in or a call is open.
    Quiet {
        /// When.
        ask_at: Timestamp,
    },
    /// The host slept: it is asked then, unless something comes in that is newer than the gap.
    Verify {
        /// When.
        ask_at: Timestamp,
        /// When the gap ended.
        resumed: Timestamp,
    },
    /// It was pinged.
    Asked {
        /// When the first ping that is unanswered was sent.
        since: Timestamp,
        /// When the last one counts as missed.
        deadline: Timestamp,
        /// How many were missed.
        missed: u8,
    },
    /// It was asked to list something: its silence is the verdict.
    Listing {
        /// When the first ping that is unanswered was sent; where there was none, when it was asked.
        since: Timestamp,
        /// When it counts as unresponsive.
        deadline: Timestamp,
    },
}

impl Liveness {
    const fn deadline(self) -> Timestamp {
        match self {
            Self::Quiet { ask_at: at }
            | Self::Verify { ask_at: at, .. }
            | Self::Asked { deadline: at, .. }
            | Self::Listing { deadline: at, .. } => at,
        }
    }
}

/// What the world sees of a [`State`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Status {
    /// Nothing is wanted.
    Idle,
    /// A dial is under way.
    Connecting,
    /// This session serves calls.
    Ready(Epoch),
    /// The session is lost; a dial follows.
    TransientFailure,
    /// Dialled now and then only, until one attempt becomes Ready.
    Parked(ParkReason),
    /// The end.
    Shutdown,
}

impl Status {
    /// The name used in events, metrics and logs (gRPC's connectivity states, where they exist).
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Idle => "IDLE",
            Self::Connecting => "CONNECTING",
            Self::Ready(_) => "READY",
            Self::TransientFailure => "TRANSIENT_FAILURE",
            Self::Parked(_) => "PARKED",
            Self::Shutdown => "SHUTDOWN",
        }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ready(epoch) => write!(f, "{}({epoch})", self.as_str()),
            Self::Parked(reason) => write!(f, "{}({reason})", self.as_str()),
            Self::Idle | Self::Connecting | Self::TransientFailure | Self::Shutdown => f.write_str(self.as_str()),
        }
    }
}

/// Why a server is parked.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum ParkReason {
    /// The outage lasted longer than `park_after`.
    Exhausted,
    /// So did a series of sessions that were never proven.
    Flapping,
    /// Trying again is not expected to help. Probed all the same, and dialled for callers, each time later.
    Permanent,
    /// A user must log in. Neither probed nor dialled for callers.
    NeedsAuth,
    /// Somebody asked for it.
    Requested,
}

impl ParkReason {
    /// Whether a parked server of this kind is probed by itself, and dialled for callers.
    pub const fn probes(self) -> bool {
        matches!(self, Self::Exhausted | Self::Flapping | Self::Permanent)
    }

    /// The name used in events, metrics and logs.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Exhausted => "exhausted",
            Self::Flapping => "flapping",
            Self::Permanent => "permanent",
            Self::NeedsAuth => "needs_auth",
            Self::Requested => "requested",
        }
    }
}

impl fmt::Display for ParkReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// One thing that a dial must reach.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
#[repr(u8)]
pub enum ReadyFlag {
    /// It left the driver's gate: the start deadline counts from here.
    Started = 1,
    /// The channel is open.
    Transport = 2,
    /// The handshake is over.
    Initialized = 4,
    /// The catalogue is listed, or the server announces none.
    Catalogue = 8,
}

/// What a dial has reached; Ready is entered when nothing is missing.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ReadyFlags(u8);

impl ReadyFlags {
    /// Every flag, in the order in which dials reach them.
    pub const ALL: [ReadyFlag; 4] =
        [ReadyFlag::Started, ReadyFlag::Transport, ReadyFlag::Initialized, ReadyFlag::Catalogue];

    /// These and `flag`.
    #[must_use]
    pub const fn with(self, flag: ReadyFlag) -> Self {
        Self(self.0 | flag as u8)
    }

    /// Whether `flag` was reached.
    pub const fn contains(self, flag: ReadyFlag) -> bool {
        self.0 & flag as u8 != 0
    }

    /// Whether nothing was reached yet.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether nothing is missing.
    pub const fn is_complete(self) -> bool {
        self.0 == 15
    }
}

/// What is known about this server's pings, across its sessions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum PingSupport {
    /// Nothing yet.
    #[default]
    Unknown,
    /// It has answered one.
    Answers,
    /// It left pings unanswered and answered a listing after them: it is asked to list, each five `keepalive`.
    #[cfg_attr(feature = "serde", serde(alias = "mute"))]
    Silent,
    /// It says that it knows no pings: it is asked to list, each five `keepalive`.
    Refuses,
}

impl PingSupport {
    pub(crate) const fn periodic(self) -> bool {
        matches!(self, Self::Unknown | Self::Answers)
    }
}
