/// SplitMix64: the same seed, the same run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Dice(u64);

impl Dice {
    pub(crate) const fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(crate) const fn roll(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// From zero to `most`, both included.
    pub(crate) const fn up_to(&mut self, most: u64) -> u64 {
        ((self.roll() as u128 * (most as u128 + 1)) >> 64) as u64
    }

    /// True once in `times`.
    pub(crate) const fn once_in(&mut self, times: u64) -> bool {
        self.up_to(times - 1) == 0
    }

    /// Below `count`, which is at least one.
    pub(crate) fn index(&mut self, count: usize) -> usize {
        usize::try_from(self.up_to(count as u64 - 1)).unwrap_or(0)
    }

    pub(crate) fn one<T: Copy, const N: usize>(&mut self, of: [T; N]) -> T {
        of[self.index(N)]
    }
}
