use crate::config::Config;
use crate::failure::Failure;
use crate::id::Epoch;
use crate::state::ReadyFlag;
use crate::time::Timestamp;

/// What a driver tells the machine. Everything that changes it is one of these, so a list of them with their times
/// is a whole trace.
///
/// A report that names any epoch but the live one equals a [`Tick`](Self::Tick).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Input {
    /// Time has passed.
    Tick,
    /// Somebody asks for a session and waits until then. A registration waits until now.
    ///
    /// Answered in its own step by [`Output::Admit`](crate::Output::Admit).
    Connect {
        /// Until when the caller waits.
        until: Timestamp,
    },
    /// A reason to try now, whatever the wait was: without a live epoch it dials, `min_dial_interval` after the last.
    Wake(WakeCause),
    /// Close, and rest until woken.
    Park,
    /// Close, for good.
    Shutdown,
    /// These knobs from now on. What runs is not touched; of what waits, only a session's rest, renewal and next
    /// question are set anew, and no dial comes before the new `min_dial_interval`.
    Retune(Config),
    /// The host slept, or the network changed. Given before the first [`Tick`](Self::Tick) after the gap.
    Resumed,
    /// The dial of this epoch got this far.
    Reached {
        /// Whose.
        epoch: Epoch,
        /// How far.
        flag: ReadyFlag,
    },
    /// The epoch is broken, whoever saw it; something of it may be left, so it is closed.
    Lost {
        /// Which.
        epoch: Epoch,
        /// Why.
        failure: Failure,
    },
    /// Nothing of the epoch is left.
    Gone {
        /// Which.
        epoch: Epoch,
        /// Why. Ignored where it was closed on order.
        failure: Failure,
    },
    /// A sample of the session's traffic: due before a tick whose deadline has come, and before a
    /// [`NoReply`](Self::NoReply) or a [`Silence`](Self::Silence).
    Traffic {
        /// Whose.
        epoch: Epoch,
        /// When the last message came in.
        inbound: Timestamp,
        /// Whether a call was answered since the last sample, by a result or an error: the session is in use.
        answered: bool,
        /// Whether a call got a result since the last sample.
        #[cfg_attr(feature = "serde", serde(default))]
        served: bool,
        /// The latest time at which anything was sent that has been answered since the last sample, pings included.
        #[cfg_attr(feature = "serde", serde(default))]
        answered_to: Option<Timestamp>,
        /// When the oldest call that is still open was sent.
        oldest: Option<Timestamp>,
    },
    /// A call ended at its deadline, unanswered.
    NoReply {
        /// On which session.
        epoch: Epoch,
        /// When it was sent.
        sent: Timestamp,
    },
    /// The server answered a ping by saying that it knows none.
    PingUnsupported {
        /// On which session.
        epoch: Epoch,
    },
    /// A call was dropped by its caller, after some seconds of silence: a reason to ask, and no strike.
    Silence {
        /// On which session.
        epoch: Epoch,
        /// When it was sent.
        sent: Timestamp,
    },
}

/// Who wakes a machine.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum WakeCause {
    /// A user: the dial may ask for a login.
    Operator,
    /// The server's configuration or environment changed.
    Config,
    /// New credentials are there. Does not lift a park that was requested.
    Credentials,
}
