use core::fmt;
use core::ops::Add;
use core::time::Duration;

/// A point in time: nanoseconds since an origin that the caller chose once (the start of the process, say).
///
/// One that is given is at most [`Timestamp::MAX`], half the range of `u64` (about 292 years); deadlines, which are
/// computed from one and a knob, have the other half, so that none saturates.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(transparent))]
pub struct Timestamp(u64);

impl Timestamp {
    /// The origin.
    pub const ZERO: Self = Self(0);
    /// The latest time that counts: half the range of `u64`, about 292 years after the origin. Only deadlines are later.
    pub const MAX: Self = Self(u64::MAX / 2);

    /// The time `nanos` nanoseconds after the origin; [`Timestamp::MAX`] where that is later.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(if nanos > Self::MAX.0 { Self::MAX.0 } else { nanos })
    }

    /// The time `since_origin` after the origin; [`Timestamp::MAX`] where that is later.
    pub fn from_origin(since_origin: Duration) -> Self {
        Self::from_nanos(nanos(since_origin))
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// How long after `earlier` this is; zero where it is not later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Self;

    fn add(self, rhs: Duration) -> Self {
        Self(self.0.saturating_add(nanos(rhs)))
    }
}

impl From<u64> for Timestamp {
    fn from(nanos: u64) -> Self {
        Self::from_nanos(nanos)
    }
}

impl From<Timestamp> for u64 {
    fn from(at: Timestamp) -> Self {
        at.0
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", Duration::from_nanos(self.0))
    }
}

/// Whole nanoseconds of `duration`, saturating.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use core::time::Duration;

    use super::Timestamp;

    #[test]
    fn what_is_given_is_cut_and_a_deadline_after_it_is_later() {
        assert_eq!(Timestamp::from_nanos(u64::MAX), Timestamp::MAX);
        assert_eq!(Timestamp::from_origin(Duration::MAX), Timestamp::MAX);
        assert_eq!(Timestamp::from(u64::MAX), Timestamp::MAX);
        assert_eq!(u64::from(Timestamp::from(7)), 7);
        assert!(Timestamp::MAX + Duration::from_nanos(1) > Timestamp::MAX);
        assert!(Timestamp::MAX + Duration::MAX >= Timestamp::MAX + crate::config::LONGEST);
    }

    #[test]
    fn a_span_to_the_past_is_zero() {
        let (early, late) = (Timestamp::from_nanos(3), Timestamp::from_nanos(10));
        assert_eq!(late.since(early), Duration::from_nanos(7));
        assert_eq!(early.since(late), Duration::ZERO);
    }
}
