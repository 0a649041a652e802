//! A histogram of durations that is small, and exact enough for percentiles.
//!
//! # Model   four classes for each doubling: a percentile is off by an eighth at most.
//!           1, 2, 3, 4, 5, 6, 7, 8-9, 10-11, 12-13, 14-15, 16-19 ... microseconds

/// Classes: up to some 19 hours; the last has what is longer.
const CLASSES: usize = 140;

/// How often a duration fell into each class.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Durations([u32; CLASSES]);

impl Default for Durations {
    fn default() -> Self {
        Self([0; CLASSES])
    }
}

/// The class of a duration in microseconds.
#[inline]
fn class(micros: u64) -> usize {
    if micros < 4 {
        return micros as usize;
    }
    let doublings = 63 - micros.leading_zeros();
    let quarter = (micros >> (doublings - 2)) & 3;
    ((doublings as usize - 1) * 4 + quarter as usize).min(CLASSES - 1)
}

/// The middle of a class, in microseconds.
fn middle(class: usize) -> u64 {
    if class < 4 {
        return class as u64;
    }
    let shift = class / 4 - 1;
    ((4 + class as u64 % 4) << shift) + (1 << shift) / 2
}

impl Durations {
    /// Counts one, in microseconds.
    #[inline]
    pub fn record(&mut self, micros: u64) {
        let count = &mut self.0[class(micros)];
        *count = count.saturating_add(1);
    }

    /// Adds what another has counted.
    pub fn add(&mut self, other: &Self) {
        for (count, more) in self.0.iter_mut().zip(&other.0) {
            *count = count.saturating_add(*more);
        }
    }

    /// The duration in microseconds that so many of a thousand do not exceed; 0 if none was counted.
    pub fn per_mille(&self, of_thousand: u64) -> u64 {
        let all: u64 = self.0.iter().map(|count| u64::from(*count)).sum();
        let rank = (all * of_thousand).div_ceil(1000).max(1);
        let mut seen = 0;
        let found = self.0.iter().position(|count| {
            seen += u64::from(*count);
            seen >= rank
        });
        found.map_or(0, middle)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_follow_each_other_and_have_their_middles() {
        let mut last = 0;
        for micros in 0..100_000 {
            let now = class(micros);
            assert!(now == last || now == last + 1, "{micros}");
            assert!(middle(now).abs_diff(micros) <= micros / 8 + 1, "{micros}: {}", middle(now));
            last = now;
        }
        assert_eq!(class(u64::MAX), CLASSES - 1);
    }

    #[test]
    fn percentiles_are_those_of_what_was_counted() {
        let mut durations = Durations::default();
        assert_eq!(durations.per_mille(500), 0);
        for micros in 1..=1000 {
            durations.record(micros);
        }
        let mut twice = durations.clone();
        twice.add(&durations);
        for one in [durations, twice] {
            assert!(one.per_mille(500).abs_diff(500) <= 63, "{}", one.per_mille(500));
            assert!(one.per_mille(990).abs_diff(990) <= 124, "{}", one.per_mille(990));
            assert_eq!(one.per_mille(1), 1);
        }
    }
}
