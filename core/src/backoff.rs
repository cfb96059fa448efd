/// Exponential backoff: the step doubles from `first` to `max`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Backoff {
    pub(crate) first: u64,
    pub(crate) max: u64,
}

impl Backoff {
    /// The step after `failures` earlier ones, in nanoseconds.
    pub(crate) fn step(self, failures: u32) -> u64 {
        // Past 2^63 the product exceeds every knob, which are at most 30 days.
        let factor = 1_u64 << failures.min(63);
        self.first.saturating_mul(factor).min(self.max)
    }
}

#[cfg(test)]
mod tests {
    use super::Backoff;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn steps_double_up_to_the_maximum_and_never_overflow() {
        let backoff = Backoff { first: SECOND, max: 60 * SECOND };
        let steps = [0, 1, 2, 3, 4, 5, 6, 63, 64, u32::MAX].map(|n| backoff.step(n) / SECOND);
        assert_eq!(steps, [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]);
    }
}
