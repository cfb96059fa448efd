use core::time::Duration;

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
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "snake_case", remote = "Self")
)]
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
    Resumed {
        /// Whether a call noticed it: the session is asked at once, and not within `redial_spread`.
        by_call: bool,
    },
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
    /// A sample of the session's traffic: due before a tick whose deadline has come, and before other reports of a Ready
    /// session (see [`needs_traffic`](Self::needs_traffic)).
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
    /// A ping was answered by a result. Nothing else tells that the server answers pings.
    Pong {
        /// On which session.
        epoch: Epoch,
    },
    /// A listing was answered. To be told where it took longer than any before it in this epoch, set-up included.
    Listed {
        /// On which session.
        epoch: Epoch,
        /// How long it took.
        took: Duration,
    },
    /// The session is to be renewed as for `max_lifetime`, now or when no call is open.
    Renew {
        /// Which.
        epoch: Epoch,
    },
    /// The handshake met another server than the last one did: what was known about pings is not known of this one.
    ServerChanged {
        /// Whose.
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

impl Input {
    /// The epoch that it reports of; `None` for what is no report.
    pub const fn epoch(&self) -> Option<Epoch> {
        let (Self::Reached { epoch, .. }
        | Self::Lost { epoch, .. }
        | Self::Gone { epoch, .. }
        | Self::Traffic { epoch, .. }
        | Self::NoReply { epoch, .. }
        | Self::PingUnsupported { epoch }
        | Self::Pong { epoch }
        | Self::Listed { epoch, .. }
        | Self::Renew { epoch }
        | Self::ServerChanged { epoch }
        | Self::Silence { epoch, .. }) = *self
        else {
            return None;
        };
        Some(epoch)
    }

    /// Whether a [`Traffic`](Self::Traffic) of the Ready session goes before it: what it is judged by must be known first.
    pub const fn needs_traffic(&self) -> bool {
        self.epoch().is_some() && !matches!(self, Self::Traffic { .. } | Self::Reached { .. })
    }
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

#[cfg(feature = "serde")]
mod format {
    use core::fmt;

    use serde::de::value::MapAccessDeserializer;
    use serde::de::{Error, IntoDeserializer, MapAccess, Visitor};
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::Input;

    impl Serialize for Input {
        fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
            Self::serialize(self, to)
        }
    }

    impl<'de> Deserialize<'de> for Input {
        fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
            from.deserialize_any(NameOrMap)
        }
    }

    /// Reads an input, also as version 0.1.0 wrote it: `"resumed"` had no members.
    struct NameOrMap;

    impl<'de> Visitor<'de> for NameOrMap {
        type Value = Input;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an input")
        }

        fn visit_str<E: Error>(self, name: &str) -> Result<Input, E> {
            if name == "resumed" {
                return Ok(Input::Resumed { by_call: false });
            }
            Input::deserialize(name.into_deserializer())
        }

        fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Input, A::Error> {
            Input::deserialize(MapAccessDeserializer::new(map))
        }
    }
}
