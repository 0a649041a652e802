//! How many places of a limit each node should have.
//!
//! # Model
//! Each node asks for what it holds and what it lacks. The smallest requests are met first; those that are
//! left get the same number each, the level, and what does not divide goes to some of them, one place each:
//! ```text
//!   level >= 1   to those that hold most: shares that differ by one stay as they are
//!   level == 0   to those that have waited longest without a place; then to those that hold theirs for the
//!                shortest time: so nodes take turns where there is not a place for each
//! ```
//! All nodes come to the same result, because they see the same keys.

use super::scope::{LeaseId, Revision};

/// What one node asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Claim {
    /// Who.
    pub owner: LeaseId,
    /// Places that it holds and needs.
    pub held: u32,
    /// Since when it has held the oldest.
    pub since: Revision,
    /// Places that it lacks.
    pub lacking: u32,
    /// Since when it has said so.
    pub lacking_since: Revision,
}

impl Claim {
    fn asked(&self, limit: u32) -> u32 {
        self.held.saturating_add(self.lacking).min(limit)
    }
}

/// How many places of `limit` one of `claims` should have.
#[must_use]
pub fn share(limit: u32, claims: &[Claim], own: LeaseId) -> u32 {
    let mut asked: Vec<u32> = claims.iter().map(|claim| claim.asked(limit)).collect();
    asked.sort_unstable();
    let (mut left, mut count) = (limit, u32::try_from(asked.len()).unwrap_or(u32::MAX));
    let mut level = u32::MAX;
    for one in asked {
        if one > left / count {
            level = left / count;
            break;
        }
        left -= one;
        count -= 1;
    }
    let Some(claim) = claims.iter().find(|claim| claim.owner == own) else { return 0 };
    if claim.asked(limit) <= level {
        return claim.asked(limit);
    }
    let rest = (left - level * count) as usize;
    let mut more: Vec<&Claim> = claims.iter().filter(|claim| claim.asked(limit) > level).collect();
    more.sort_by_key(|claim| order(claim, level));
    let place = more.iter().position(|claim| claim.owner == own);
    level + u32::from(place.is_some_and(|place| place < rest))
}

/// Smaller ones first.
fn order(claim: &Claim, level: u32) -> (u32, i64, LeaseId) {
    match (level, claim.held) {
        (1.., held) => (u32::MAX - held, claim.since.0, claim.owner),
        (0, 0) => (0, claim.lacking_since.0, claim.owner),
        (0, _) => (1, -claim.since.0, claim.owner),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(owner: i64, held: u32, since: i64, lacking: u32, lacking_since: i64) -> Claim {
        Claim {
            owner: LeaseId(owner),
            held,
            since: Revision(since),
            lacking,
            lacking_since: Revision(lacking_since),
        }
    }

    fn shares(limit: u32, claims: &[Claim]) -> Vec<u32> {
        claims.iter().map(|claim| share(limit, claims, claim.owner)).collect()
    }

    #[test]
    fn small_requests_are_met_and_the_others_get_the_same() {
        assert_eq!(
            shares(6, &[claim(1, 6, 1, 0, 0), claim(2, 0, 0, 3, 9), claim(3, 0, 0, 1, 9)]),
            [3, 2, 1]
        );
        assert_eq!(shares(10, &[claim(1, 3, 1, 0, 0), claim(2, 0, 0, 9, 9)]), [3, 7]);
        assert_eq!(shares(10, &[claim(1, 3, 1, 0, 0), claim(2, 0, 0, 2, 9)]), [3, 2]);
        assert_eq!(shares(10, &[]), [0; 0]);
        assert_eq!(share(10, &[claim(1, 3, 1, 0, 0)], LeaseId(2)), 0);
    }

    #[test]
    fn shares_that_differ_by_one_stay() {
        assert_eq!(shares(5, &[claim(1, 2, 1, 5, 3), claim(2, 3, 2, 5, 4)]), [2, 3]);
        assert_eq!(shares(5, &[claim(1, 3, 1, 5, 3), claim(2, 2, 2, 5, 4)]), [3, 2]);
        assert_eq!(shares(5, &[claim(1, 4, 1, 5, 3), claim(2, 1, 2, 5, 4)]), [3, 2]);
    }

    #[test]
    fn where_there_is_not_a_place_for_each_nodes_take_turns() {
        // The third waits; of those that hold one the first gives way, which has had it longest.
        let (a, b, c) = (claim(1, 1, 5, 4, 6), claim(2, 1, 8, 4, 9), claim(3, 0, 0, 4, 10));
        assert_eq!(shares(2, &[a, b, c]), [0, 1, 1]);
        let (a, c) = (claim(1, 0, 0, 4, 12), claim(3, 1, 11, 3, 10));
        assert_eq!(shares(2, &[a, b, c]), [1, 0, 1]);
        // The one of two that has waited longer goes first.
        assert_eq!(
            shares(1, &[claim(1, 1, 5, 1, 6), claim(2, 0, 0, 1, 8), claim(3, 0, 0, 1, 7)]),
            [0, 0, 1]
        );
    }

    #[test]
    fn no_more_is_given_than_there_is() {
        let mut random = crate::seeded::Random::of_seed(7);
        for _ in 0..20_000 {
            let limit = u32::try_from(random.below(12)).unwrap();
            let claims: Vec<_> = (0..1 + random.below(5))
                .map(|owner| {
                    let mut number = |most| u32::try_from(random.below(most)).unwrap();
                    let (held, lacking) = (number(6), number(6));
                    let since = i64::from(number(100));
                    claim(i64::try_from(owner).unwrap(), held, since, lacking, since + 1)
                })
                .collect();
            let given = shares(limit, &claims);
            let asked: u32 = claims.iter().map(|claim| claim.asked(limit)).sum();
            assert_eq!(given.iter().sum::<u32>(), asked.min(limit), "{limit} {claims:?}");
        }
    }
}
