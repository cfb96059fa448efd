use core::time::Duration;

use crate::time::Timestamp;

/// The circuit breaker: counts calls that got no reply, and only those.
///
/// It speaks about calls on a live session and never touches dialling. While open it lets one caller through per open
/// time; there is nothing else that could close it but an answer or a fresh session, and nothing that could be lost.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(rename_all = "snake_case"))]
pub enum Breaker {
    /// Calls pass; `strikes` of them in a row got no reply.
    Closed {
        /// Calls without a reply since the last answer.
        strikes: u8,
    },
    /// Calls are refused until then; the first one after it is let through (half-open).
    Open {
        /// When the next caller is let through.
        until: Timestamp,
    },
}

impl Breaker {
    pub(crate) const CLOSED: Self = Self::Closed { strikes: 0 };

    /// A call got no reply. True if that opened the breaker.
    pub(crate) fn strike(&mut self, now: Timestamp, limit: u8, open: Duration) -> bool {
        match *self {
            Self::Closed { strikes } if strikes + 1 < limit => {
                *self = Self::Closed { strikes: strikes + 1 };
                false
            }
            Self::Closed { .. } => {
                *self = Self::Open { until: now + open };
                true
            }
            Self::Open { .. } => false,
        }
    }

    /// Something answered, or a fresh session is up. True if that closed an open breaker.
    pub(crate) fn close(&mut self) -> bool {
        let was_open = matches!(self, Self::Open { .. });
        *self = Self::CLOSED;
        was_open
    }

    /// Whether this caller may pass: at most one per open time.
    pub(crate) fn admit(&mut self, now: Timestamp, open: Duration) -> bool {
        match *self {
            Self::Closed { .. } => true,
            Self::Open { until } if until <= now => {
                *self = Self::Open { until: now + open };
                true
            }
            Self::Open { .. } => false,
        }
    }
}
