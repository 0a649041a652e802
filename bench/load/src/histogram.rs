//! Latencies in nanoseconds, in buckets of at most 1/32 relative width.
//!
//! # Model
//! Values below 64 have a bucket each. Above, every power of two is cut into 32 equal buckets, so
//! that a value is known to 3 %, and half of that on average: the middle of the bucket is reported.
//!
//! # Why not
//! A list of all samples: 100,000 transactions a second for minutes, in each of many workers.

/// log2 of the buckets in one power of two.
const SUB_BITS: u32 = 5;
/// Values from 2^LARGEST_BITS ns (about 18 minutes) on share the last bucket.
const LARGEST_BITS: u32 = 40;
const BUCKETS: usize = ((LARGEST_BITS - SUB_BITS + 1) << SUB_BITS) as usize;

/// Counts of latencies.
pub(crate) struct Histogram {
    counts: Vec<u64>,
    total: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        Self { counts: vec![0; BUCKETS], total: 0 }
    }
}

fn bucket_of(ns: u64) -> usize {
    let bits = u64::BITS - ns.leading_zeros();
    let shift = bits.saturating_sub(SUB_BITS + 1);
    let index = (u64::from(shift) << SUB_BITS) + (ns >> shift);
    usize::try_from(index).map_or(BUCKETS - 1, |index| index.min(BUCKETS - 1))
}

/// The middle of a bucket, in nanoseconds.
fn middle_of(bucket: usize) -> f64 {
    let bucket = bucket as u64;
    let first_wide = 2_u64 << SUB_BITS;
    if bucket < first_wide {
        return bucket as f64;
    }
    let shift = (bucket >> SUB_BITS) - 1;
    let low = (bucket - (shift << SUB_BITS)) << shift;
    low as f64 + (1_u64 << shift) as f64 / 2.0
}

impl Histogram {
    /// Counts one latency.
    pub(crate) fn record(&mut self, ns: u64) {
        self.counts[bucket_of(ns)] += 1;
        self.total += 1;
    }

    /// Adds the counts that another worker or process has made.
    pub(crate) fn merge(&mut self, sparse: &[(usize, u64)]) {
        for &(bucket, count) in sparse {
            self.counts[bucket.min(BUCKETS - 1)] += count;
            self.total += count;
        }
    }

    /// The buckets that are not empty, as (bucket, count): how workers and processes pass them on.
    pub(crate) fn sparse(&self) -> Vec<(usize, u64)> {
        self.counts.iter().copied().enumerate().filter(|&(_, count)| count > 0).collect()
    }

    /// The latency in microseconds that `share` (0 to 1) of all samples do not exceed;
    /// `None` without samples.
    pub(crate) fn quantile_us(&self, share: f64) -> Option<f64> {
        let rank = ((self.total as f64 * share).ceil() as u64).max(1);
        let mut seen = 0;
        for (bucket, &count) in self.counts.iter().enumerate() {
            seen += count;
            if seen >= rank {
                return Some(middle_of(bucket) / 1000.0);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_known_to_three_percent() {
        for ns in [1, 63, 64, 65, 1_000, 23_456, 1_000_000, 59_999_999_999] {
            let middle = middle_of(bucket_of(ns));
            assert!((middle - ns as f64).abs() <= ns as f64 * 0.032, "{ns} became {middle}");
        }
    }

    #[test]
    fn buckets_never_go_down_as_values_go_up() {
        let mut last = 0;
        for ns in (0..200_000).chain((1..40).map(|bit| 200_000_u64 << bit)) {
            let bucket = bucket_of(ns);
            assert!(bucket >= last, "{ns} fell back to bucket {bucket} from {last}");
            last = bucket;
        }
    }

    #[test]
    fn quantiles_are_ranks_and_survive_a_merge() {
        let mut one = Histogram::default();
        let mut other = Histogram::default();
        (1..=50).for_each(|us| one.record(us * 1000));
        (51..=100).for_each(|us| other.record(us * 1000));
        one.merge(&other.sparse());
        for (share, us) in [(0.5, 50.0), (0.99, 99.0), (1.0, 100.0)] {
            let found = one.quantile_us(share).unwrap();
            assert!((found - us).abs() <= us * 0.032, "{share} gave {found}");
        }
        assert_eq!(Histogram::default().quantile_us(0.5), None);
    }
}
