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
                *self = Self::Open { until: now + open }; // R21
                true
            }
            Self::Open { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::{Breaker, Timestamp};

    const OPEN: Duration = Duration::from_secs(30);

    fn at(seconds: u64) -> Timestamp {
        Timestamp::from_origin(Duration::from_secs(seconds))
    }

    #[test]
    fn strikes_in_a_row_open_it_and_an_answer_between_them_does_not() {
        let mut breaker = Breaker::CLOSED;
        assert!(!breaker.strike(at(0), 3, OPEN));
        assert!(!breaker.strike(at(1), 3, OPEN));
        assert!(!breaker.close(), "closing a closed one is no news");
        assert!(!breaker.strike(at(2), 3, OPEN));
        assert!(!breaker.strike(at(3), 3, OPEN));
        assert!(breaker.strike(at(4), 3, OPEN));
        assert_eq!(breaker, Breaker::Open { until: at(34) });
        assert!(!breaker.strike(at(5), 3, OPEN), "it is open already");
        assert_eq!(breaker, Breaker::Open { until: at(34) }, "a late strike does not lengthen it");
    }

    #[test]
    fn one_strike_may_be_the_limit_and_so_may_the_most_there_are() {
        let mut breaker = Breaker::CLOSED;
        assert!(breaker.strike(at(0), 1, OPEN));
        breaker = Breaker::CLOSED;
        let opened = (0..255).filter(|_| breaker.strike(at(0), u8::MAX, OPEN)).count();
        assert_eq!((opened, breaker), (1, Breaker::Open { until: at(30) }));
    }

    #[test]
    fn while_open_one_caller_is_let_through_per_open_time() {
        let mut breaker = Breaker::Open { until: at(30) };
        assert!(!breaker.admit(at(29), OPEN));
        assert!(breaker.admit(at(30), OPEN));
        assert!(!breaker.admit(at(30), OPEN), "the time starts anew with the one let through");
        assert!(!breaker.admit(at(59), OPEN));
        assert!(breaker.admit(at(60), OPEN));
        assert!(breaker.close());
        assert!(breaker.admit(at(60), OPEN));
        assert!(breaker.admit(at(60), OPEN), "a closed one lets everybody through");
    }
}
