use core::time::Duration;

use crate::rng::Rng;

/// Exponential backoff: the step doubles from `first` to `max`; each wait is drawn from the upper half of its step,
/// the first one too, so that peers that failed together do not come back together.
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

    /// A wait from the upper half of that step, the step cut at `cap`.
    pub(crate) fn wait(self, failures: u32, cap: u64, rng: &mut Rng) -> Duration {
        let step = self.step(failures).min(cap);
        Duration::from_nanos(step - step / 2 + rng.up_to(step / 2))
    }
}

#[cfg(test)]
mod tests {
    use super::{Backoff, Rng};

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn steps_double_up_to_the_maximum_and_never_overflow() {
        let backoff = Backoff { first: SECOND, max: 60 * SECOND };
        let steps = [0, 1, 2, 3, 4, 5, 6, 63, 64, u32::MAX].map(|n| backoff.step(n) / SECOND);
        assert_eq!(steps, [1, 2, 4, 8, 16, 32, 60, 60, 60, 60]);
    }

    #[test]
    fn waits_fill_the_upper_half_of_the_step_and_nothing_else() {
        let backoff = Backoff { first: SECOND, max: 60 * SECOND };
        let mut rng = Rng::new(7);
        let waits: [u128; 1000] = core::array::from_fn(|_| backoff.wait(1, u64::MAX, &mut rng).as_millis());
        assert!(waits.iter().all(|wait| (1000..=2000).contains(wait)));
        for tenth in 0..10 {
            let bucket = 1000 + tenth * 100..1100 + tenth * 100;
            assert!(waits.iter().any(|wait| bucket.contains(wait)), "no wait in {bucket:?} ms");
        }
    }

    #[test]
    fn a_cap_cuts_the_step_and_not_the_wait() {
        let backoff = Backoff { first: SECOND, max: 60 * SECOND };
        let mut rng = Rng::new(7);
        let wait = backoff.wait(6, 5 * SECOND, &mut rng).as_millis();
        assert!((2500..=5000).contains(&wait), "{wait} ms");
    }
}
