use core::time::Duration;

/// A small generator for jitter (SplitMix64): the same seed gives the same waits, on every target.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Rng(u64);

impl Rng {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15); // R4
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number from 0 to `max`, both included: the high half of a 128-bit product, so the bias is below `max / 2^64`.
    pub(crate) const fn up_to(&mut self, max: u64) -> u64 {
        ((self.next() as u128 * (max as u128 + 1)) >> 64) as u64
    }

    /// A wait from the upper half of `step`, in nanoseconds: peers that failed together do not come back together.
    pub(crate) const fn upper_half(&mut self, step: u64) -> Duration {
        Duration::from_nanos(step - step / 2 + self.up_to(step / 2))
    }
}

#[cfg(test)]
mod tests {
    use super::Rng;

    #[test]
    fn numbers_fill_the_range_with_both_ends() {
        let mut rng = Rng::new(1);
        let mut seen = [0_u32; 4];
        for _ in 0..4_000 {
            seen[usize::try_from(rng.up_to(3)).unwrap()] += 1;
        }
        assert!(seen.iter().all(|count| (800..1_200).contains(count)), "{seen:?}");
        assert_eq!(rng.up_to(0), 0);
        let _any = rng.up_to(u64::MAX);
    }

    #[test]
    fn waits_fill_the_upper_half_of_the_step_and_nothing_else() {
        let mut rng = Rng::new(7);
        let waits: [u128; 1000] = core::array::from_fn(|_| rng.upper_half(2_000_000_000).as_millis());
        assert!(waits.iter().all(|wait| (1000..=2000).contains(wait)));
        for tenth in 0..10 {
            let bucket = 1000 + tenth * 100..1100 + tenth * 100;
            assert!(waits.iter().any(|wait| bucket.contains(wait)), "no wait in {bucket:?} ms");
        }
        assert_eq!(rng.upper_half(1).as_nanos(), 1);
    }
}
