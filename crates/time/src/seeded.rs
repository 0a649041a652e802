//! Numbers for seeded simulations in tests.

/// Marsaglia's xorshift, so that a seed is a run.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// From any seed, also 0.
    pub fn of_seed(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// A number below `most`; 0 if that is 0.
    pub fn below(&mut self, most: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) as usize % most.max(1)
    }

    /// Whether one case of `count` has come up.
    pub fn one_in(&mut self, count: usize) -> bool {
        self.below(count) == 0
    }
}
