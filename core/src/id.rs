use core::fmt;
use core::num::NonZeroU64;

/// One incarnation of the connection: names a dial and the session that it becomes.
///
/// Epochs only grow. A session id, a process id or a protocol version is an attribute of an epoch, never its identity.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Epoch(NonZeroU64);

impl Epoch {
    /// The first epoch of a connection.
    pub const FIRST: Self = Self(NonZeroU64::MIN);

    /// The epoch with this number; `None` for zero.
    pub const fn new(number: u64) -> Option<Self> {
        match NonZeroU64::new(number) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }

    /// Its number, counted from 1.
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// The epoch after this one.
    pub(crate) const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "#{}", self.0)
    }
}
