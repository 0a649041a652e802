//! Chance for simulations: small, fast, and the same on every machine.
//!
//! # Model       SplitMix64 (Steele, Lea, Flood 2014): a counter and a mixing function
//! # Invariants  the sequence depends on the seed alone; two forks never share a sequence
//!
//! # Why not
//! The `rand` crate: its generators may change with its version, and a failing seed must fail
//! again years later.

/// A seeded generator of random numbers. Not for secrets.
#[derive(Debug, Clone)]
pub struct Rng {
    state: u64,
}

impl Rng {
    /// A generator whose whole sequence follows from `seed`.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self { state: seed }
    }

    /// The next 64 random bits.
    pub fn next_u64(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number in `0..bound`; 0 where `bound` is 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        // The bias of the remainder is below 2^-32 for the bounds that simulations use.
        if bound == 0 { 0 } else { self.next_u64() % bound }
    }

    /// A number in `low..=high`.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high.saturating_sub(low) + 1)
    }

    /// An index into something of `len` elements.
    pub fn index(&mut self, len: usize) -> usize {
        usize::try_from(self.below(len as u64)).expect("smaller than len, which is a usize")
    }

    /// True in `percent` of a hundred cases.
    pub fn percent(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    /// One of `choices`.
    ///
    /// # Panics
    /// Where there is nothing to choose from.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.index(choices.len())]
    }

    /// The index of one of `weights`, each as likely as it is heavy.
    pub fn weighted(&mut self, weights: &[u32]) -> usize {
        let total: u64 = weights.iter().map(|&weight| u64::from(weight)).sum();
        let mut left = self.below(total);
        for (index, &weight) in weights.iter().enumerate() {
            if left < u64::from(weight) {
                return index;
            }
            left -= u64::from(weight);
        }
        weights.len() - 1
    }

    /// A generator of its own, so that one part's draws do not shift another's.
    pub fn fork(&mut self) -> Self {
        Self::new(self.next_u64())
    }
}

#[cfg(test)]
mod tests {
    use super::Rng;

    #[test]
    fn the_sequence_is_the_published_one() {
        // First outputs of the reference implementation for seed 1234567.
        let mut rng = Rng::new(1_234_567);
        assert_eq!(rng.next_u64(), 6_457_827_717_110_365_317);
        assert_eq!(rng.next_u64(), 3_203_168_211_198_807_973);
    }

    #[test]
    fn a_weight_of_zero_is_never_drawn() {
        let mut rng = Rng::new(1);
        assert!((0..1000).all(|_| rng.weighted(&[3, 0, 2]) != 1));
    }
}
