//! The outcome of applying a configuration.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::error::BuildError;

/// The outcome for a server when a configuration was applied.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Outcome {
    /// It was not there, disabled, or shut down by its handle: its connection begins.
    Started,
    /// It needs another connection, by its configuration: the old one is shut down before the new one dials.
    Replaced,
    /// Knobs, limits or filters changed: the connection goes on with them. Woken too, if it had no session.
    Retuned,
    /// It had no session: it is dialled sooner.
    Woken,
    /// It has a session, or an attempt is under way, or asking cannot help: nothing was done.
    Untouched,
    /// It is not wanted: it has no connection, and what it had is shut down.
    Disabled,
    /// The configuration does not have it any more: its connection is shut down.
    Removed,
    /// Its configuration cannot be used: what was there is left as it was.
    Failed(BuildError),
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Started => f.write_str("started"),
            Self::Replaced => f.write_str("replaced"),
            Self::Retuned => f.write_str("retuned"),
            Self::Woken => f.write_str("woken"),
            Self::Untouched => f.write_str("untouched"),
            Self::Disabled => f.write_str("disabled"),
            Self::Removed => f.write_str("removed"),
            Self::Failed(error) => write!(f, "failed: {error}"),
        }
    }
}

/// The outcome for every server when a configuration was applied.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ApplyReport {
    /// By name: those of the configuration, and those that were removed.
    pub servers: BTreeMap<Arc<str>, Outcome>,
}

impl fmt::Display for ApplyReport {
    /// `files: started, time: untouched`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, (server, outcome)) in self.servers.iter().enumerate() {
            write!(f, "{}{server}: {outcome}", if at == 0 { "" } else { ", " })?;
        }
        Ok(())
    }
}
