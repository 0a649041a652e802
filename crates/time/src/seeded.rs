//! Numbers that follow from a seed.

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

/// SplitMix64 (Steele, Lea, Flood 2014): a counter and a mixing function.
#[derive(Clone, Debug)]
pub struct SplitMix(u64);

impl SplitMix {
    /// From a seed.
    pub fn new(seed: u64) -> Self {
        let mut random = Self(seed.wrapping_mul(0xd129_0d3a_7c15_9e37));
        random.number();
        random
    }

    /// With this number as its state.
    pub const fn of_state(state: u64) -> Self {
        Self(state)
    }

    /// The next 64 bits.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Any byte.
    pub fn byte(&mut self) -> u8 {
        self.number() as u8
    }

    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.number() % bound
    }
}
