//! Problems with a state file.

use std::path::{Path, PathBuf};
use std::{fmt, io};

/// The largest state file that is read or written, in bytes.
pub(super) const MAX_SIZE: u64 = 64 << 20;

/// Why a state file, or a part of it, is not used or not written. Nothing but a warning: a host starts and runs without.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateWarning {
    /// The file.
    pub path: PathBuf,
    /// The problem.
    pub problem: StateProblem,
}

/// A problem with a state file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum StateProblem {
    /// It is of another program. Neither read nor written.
    Foreign,
    /// It is of another version of the format: this one, as the file says it. Neither read nor written.
    Version(String),
    /// It is a folder, a device or a pipe. Neither read nor written.
    NotAFile,
    /// It is, or would be, larger than 64 MiB. Neither read nor written.
    TooLarge,
    /// It is damaged: what is in it is not used.
    Damaged(String),
    /// The entry of one server cannot be read, and is not used.
    Server {
        /// Which.
        name: String,
        /// Why not.
        reason: String,
    },
    /// The file system refused.
    Io {
        /// The action that failed.
        action: &'static str,
        /// The kind of error.
        kind: io::ErrorKind,
        /// In words.
        reason: String,
    },
    /// It was not written in time, or the fleet's runtime went down.
    Unfinished,
}

impl StateProblem {
    pub(super) fn at(self, path: &Path) -> StateWarning {
        StateWarning { path: path.to_owned(), problem: self }
    }

    pub(super) fn io(action: &'static str) -> impl Fn(io::Error) -> Self {
        move |error| Self::Io { action, kind: error.kind(), reason: error.to_string() }
    }
}

impl fmt::Display for StateWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "state file {}: {}", self.path.display(), self.problem)
    }
}

impl fmt::Display for StateProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Foreign => f.write_str("not a state file of this program; left as it is"),
            Self::Version(version) => write!(f, "version {version} of the format is not known; left as it is"),
            Self::NotAFile => f.write_str("not a regular file"),
            Self::TooLarge => write!(f, "larger than {MAX_SIZE} bytes"),
            Self::Damaged(reason) => write!(f, "damaged, not used: {reason}"),
            Self::Server { name, reason } => write!(f, "the entry of server {name:?} is not used: {reason}"),
            Self::Io { action, reason, .. } => write!(f, "cannot {action}: {reason}"),
            Self::Unfinished => f.write_str("the last state was not written in time"),
        }
    }
}

impl std::error::Error for StateWarning {}
