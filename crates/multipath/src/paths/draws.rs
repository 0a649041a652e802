//! How many dials are enough.
//!
//! # Model
//! Let `found` limits be known after `dials` dials, each of which hits any limit with the same
//! chance. Were there one more, a dial would miss it with chance `found / (found + 1)`; and any of
//! `found + 1` might be the one that was missed:
//! ```text
//!   chance that one was missed <= (found + 1) * (found / (found + 1)) ^ dials
//! ```
//! The dials that bring it to [`MISSED_MAX`]: 10 where one limit is known, 19 for two, 63 for seven,
//! 72 for eight. So a bottleneck that all flows share costs 10 flows for a second or two, once.
//!
//! # Why not less
//! 2 % in place of 0.2 % (45 dials for seven, 52 for eight) missed the eighth limit in 4 of 40 simulated
//! runs: searches end as soon as the bound is met, at each number of limits. What later dials cost is
//! little: each batch that adds nothing rests after a second.
//!
//! # Limits
//! Unequal chances (weighted hashes) need more; what was missed is found later, when time has passed.

/// How likely a limit may have been missed when dialling stops.
pub const MISSED_MAX: f64 = 0.002;
/// Whatever is found: no more.
pub const DIALS_MAX: u32 = 200;

/// How likely a limit was missed where `found` are known after `dials`, at most.
#[must_use]
pub fn missed(found: u32, dials: u32) -> f64 {
    let found = f64::from(found.max(1));
    ((found + 1.0) * (found / (found + 1.0)).powf(f64::from(dials))).min(1.0)
}

/// Dials after which no more are worth it where `found` limits are known.
#[must_use]
pub fn enough(found: u32) -> u32 {
    let found = f64::from(found.max(1));
    let missed_by_one = found / (found + 1.0);
    let mut chance = found + 1.0;
    let mut dials = 0;
    while chance > MISSED_MAX && dials < DIALS_MAX {
        chance *= missed_by_one;
        dials += 1;
    }
    dials
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_dials_that_are_documented() {
        let of = [1, 2, 4, 7, 8].map(enough);
        assert_eq!(of, [10, 19, 36, 63, 72]);
        assert_eq!(enough(0), enough(1));
        assert_eq!(enough(1_000_000), DIALS_MAX);
        for found in [1, 2, 4, 7, 8] {
            assert!(missed(found, enough(found)) <= MISSED_MAX);
            assert!(missed(found, enough(found) - 1) > MISSED_MAX);
        }
    }
}
