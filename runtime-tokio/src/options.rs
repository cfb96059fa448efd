//! How a connection and its calls behave: the values that a host sets.

use std::hash::{BuildHasher as _, RandomState};
use std::num::NonZeroU32;
use std::time::Duration;

use mcp_reconnect_core::Config;
use mcp_reconnect_core::replay::ReplayPolicy;
use serde::{Deserialize, Serialize};

use crate::error::BuildError;

/// The default of [`Builder::probe_patience`](crate::Builder::probe_patience).
pub(crate) const PROBE_PATIENCE: Duration = Duration::from_secs(2);

/// The settings that can be changed while the connection lives.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tuning {
    /// The knobs of the machine.
    pub config: Config,
    /// The limits of calls that set none of their own.
    pub options: CallOptions,
    /// How many calls the server gets at once; `None`: any number. What is beyond waits its turn, first come, first
    /// served, within the call's own deadline. Default `None`; 1 for servers that cannot do more.
    pub max_in_flight: Option<NonZeroU32>,
}

/// How long a call may take, and whether it may be repeated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CallOptions {
    /// How long the call may take from when it is made, the wait for a session included; each progress notification
    /// with the call's own token gives it this long again. Default 60 s.
    pub timeout: Duration,
    /// How long it may take at most, however much progress it makes. `None`: ten times `timeout`. Default `None`.
    pub max_timeout: Option<Duration>,
    /// How long it may wait for a session, within its `timeout`. Default 15 s.
    pub max_wait: Duration,
    /// Whether it may be sent again when its session fails. Default [`ReplayPolicy::Annotated`].
    pub replay: ReplayPolicy,
    /// How long one that may be sent again, and is not answered, keeps a server that is silent otherwise too from
    /// being asked for a sign of life and given up (rule R19). `None`: until it has ended. Default `None`.
    pub hung_after: Option<Duration>,
}

impl Default for CallOptions {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(60),
            max_timeout: None,
            max_wait: Duration::from_secs(15),
            replay: ReplayPolicy::default(),
            hung_after: None,
        }
    }
}

/// When a server is dialled first.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Connect {
    /// As soon as it is known.
    #[default]
    Eager,
    /// When somebody asks for it.
    OnDemand,
}

/// Whether a session must list its tools to be Ready.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Require {
    /// It is Ready after the handshake.
    None,
    /// It is Ready when its tools are listed, where the server announces any.
    #[default]
    Tools,
}

/// The tools of a server that is parked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnPark {
    /// They are withdrawn until it is back.
    #[default]
    Withdraw,
    /// They stay offered, so that no host has to see its list change; a call dials.
    Keep,
}

/// The reaction to a tool that is not as it was when it was first seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum CataloguePolicy {
    /// It is offered as it is now.
    #[default]
    Accept,
    /// It is offered as it is now, and reported.
    Warn,
    /// It is withheld, and reported, until it is approved or is again what it was.
    Refuse,
}

/// A machine must not give a close up before the transport's own ladder is through.
pub(crate) fn check_close_timeout(config: &Config, ladder: Duration) -> Result<(), BuildError> {
    let close_timeout = config.close_timeout();
    if close_timeout <= ladder { Err(BuildError::CloseTimeout { close_timeout, ladder }) } else { Ok(()) }
}

pub(crate) fn random_seed() -> u64 {
    RandomState::new().hash_one(0_u8)
}
