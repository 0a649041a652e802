//! Failed logins: from which addresses, and as whom, further ones are refused for a while.
//!
//! # Model
//! Logins as one user from one address may fail [`FREE`] times, and an address may fail as so many users.
//! After each further failure the pair, or the address, is refused for a time that doubles, up to the
//! setting `failed_login_delay_max`:
//! ```text
//!   delay of a pair      after(its failures - free)    free = FREE, or 0 if logins as the user have failed
//!                                                             from more than FREE addresses
//!   delay of an address  after(users as whom it has failed - FREE)
//!   after(n)             min(FIRST_DELAY * 2^(n - 1), failed_login_delay_max), and none for n < 1
//! ```
//! Failures are forgotten [`QUIET`] after the last delay. A login that is refused here is no failure: its
//! password was not looked at.
//!
//! # Invariants
//! * a user is never refused as such: from an address that has not failed it gets in, whatever others do.
//!   Guesses from many addresses cost each of them its free ones, and nobody else anything
//! * a user is not refused where it has logged in from: neither a neighbour within the same network nor a
//!   program with an old password keeps it out
//! * a program with a wrong password keeps out no other user of its address
//! * memory is bounded; the entry that was used least recently goes
//!
//! # Limits
//! Who shares an address with a user's clients may guess that user's password as fast as without this.

use std::hash::{Hash, RandomState};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use lru::LruCache;

use super::half_open::Network;
use crate::lock::locked;

/// Failures before the first delay.
const FREE: u32 = 10;
/// The first delay.
const FIRST_DELAY: Duration = Duration::from_secs(1);
/// How long after the last delay failures are forgotten.
const QUIET: Duration = Duration::from_secs(15 * 60);
/// Pairs of address and user, addresses, and users, whose failures are known.
const FAILURES_MAX: usize = 8192;
/// Pairs of address and user that have logged in.
const PROVEN_MAX: usize = 16_384;

/// Clients that fail together: their network, and on a unix socket the user of their process.
pub type Place = (Network, Option<u32>);

#[derive(Clone, Copy, Debug)]
struct Failures {
    count: u32,
    /// Logins are refused until then: the last failure, if it brought no delay.
    until: Instant,
}

impl Failures {
    /// One more after these. Returns its delay, too.
    fn one_more(
        before: Option<&Self>,
        free: u32,
        delay_max: Duration,
        now: Instant,
    ) -> (Self, Option<Duration>) {
        let known = before.filter(|before| now < before.until + QUIET);
        let count = known.map_or(0, |known| known.count).saturating_add(1);
        let beyond = count.checked_sub(free + 1);
        let delay = beyond.map(|n| FIRST_DELAY.saturating_mul(1 << n.min(30)).min(delay_max));
        (Self { count, until: now + delay.unwrap_or_default() }, delay)
    }
}

/// Entries of which the one that was used least recently goes.
type Recent<K, V> = LruCache<K, V, RandomState>;

/// Adds an entry. Returns whether another had to go.
fn put<K: Hash + Eq, V>(recent: &mut Recent<K, V>, most: usize, key: K, value: V) -> bool {
    recent.put(key, value);
    recent.len() > most && recent.pop_lru().is_some()
}

/// Who has failed, or logged in, and where.
type Pair = (Place, Box<str>);

#[derive(Debug)]
struct Known {
    pairs: Recent<Pair, Failures>,
    /// How many users each has failed as.
    places: Recent<Place, Failures>,
    /// From how many places each has failed.
    users: Recent<Box<str>, Failures>,
    proven: Recent<Pair, ()>,
    forgotten: u64,
}

/// What is known of failed logins.
#[derive(Debug)]
pub struct FailedLogins(Mutex<Known>);

impl Default for FailedLogins {
    fn default() -> Self {
        // (Not LruCache::new: it takes the memory for all entries at once.)
        Self(Mutex::new(Known {
            pairs: LruCache::unbounded_with_hasher(RandomState::new()),
            places: LruCache::unbounded_with_hasher(RandomState::new()),
            users: LruCache::unbounded_with_hasher(RandomState::new()),
            proven: LruCache::unbounded_with_hasher(RandomState::new()),
            forgotten: 0,
        }))
    }
}

impl FailedLogins {
    /// How long logins as `user` from here are still refused; `None`: they are not.
    pub fn refused_for(&self, place: Place, user: &str, now: Instant) -> Option<Duration> {
        let mut known = locked(&self.0);
        if known.pairs.is_empty() {
            return None;
        }
        let pair: Pair = (place, user.into());
        let failures = [known.pairs.peek(&pair), known.places.peek(&place)];
        let until = failures.into_iter().flatten().map(|failures| failures.until).max()?;
        let is_refused = now < until && known.proven.get(&pair).is_none();
        is_refused.then(|| until - now)
    }

    /// A login as `user` has proven itself.
    pub fn succeeded(&self, place: Place, user: &str) {
        put(&mut locked(&self.0).proven, PROVEN_MAX, (place, user.into()), ());
    }

    /// A login as `user` has failed. Returns how long others are refused now, if that is so.
    pub fn failed(
        &self,
        place: Place,
        user: &str,
        delay_max: Duration,
        now: Instant,
    ) -> Option<Duration> {
        let known = &mut *locked(&self.0);
        let one_more =
            |before: Option<&Failures>, free: u32| Failures::one_more(before, free, delay_max, now);
        let pair: Pair = (place, user.into());
        let is_new = one_more(known.pairs.peek(&pair), FREE).0.count == 1;
        let (mut of_place, mut of_user) = (None, known.users.peek(user).map(|of| of.count));
        if is_new {
            let (failures, delay) = one_more(known.places.peek(&place), FREE);
            of_place = delay;
            let gone = put(&mut known.places, FAILURES_MAX, place, failures);
            known.forgotten += u64::from(gone);
            let failures = Failures { until: now, ..one_more(known.users.peek(user), FREE).0 };
            of_user = Some(failures.count);
            let gone = put(&mut known.users, FAILURES_MAX, pair.1.clone(), failures);
            known.forgotten += u64::from(gone);
        }
        let free = if of_user.is_some_and(|places| places > FREE) { 0 } else { FREE };
        let (failures, of_pair) = one_more(known.pairs.peek(&pair), free);
        let gone = put(&mut known.pairs, FAILURES_MAX, pair, failures);
        known.forgotten += u64::from(gone);
        of_place.max(of_pair)
    }

    /// How many entries had to be forgotten.
    pub fn forgotten(&self) -> u64 {
        locked(&self.0).forgotten
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: Place = (Network::V4(0), None);
    const MAX: Duration = Duration::from_secs(60);

    fn place(number: u32) -> Place {
        (Network::V4(number), None)
    }

    /// Fails so many times, one after the other as soon as it may, and returns the delays in seconds.
    fn fails(failed: &FailedLogins, times: u32, now: &mut Instant) -> Vec<u64> {
        let mut delays = Vec::new();
        for _ in 0..times {
            assert_eq!(failed.refused_for(HERE, "ann", *now), None);
            let delay = failed.failed(HERE, "ann", MAX, *now);
            assert_eq!(failed.refused_for(HERE, "ann", *now), delay);
            delays.push(delay.unwrap_or_default().as_secs());
            *now += delay.unwrap_or_default();
        }
        delays
    }

    #[test]
    fn the_delay_doubles_to_its_bound_and_ends_after_a_quiet_time() {
        let (failed, mut now) = (FailedLogins::default(), Instant::now());
        assert_eq!(fails(&failed, FREE, &mut now), [0; FREE as usize]);
        assert_eq!(fails(&failed, 9, &mut now), [1, 2, 4, 8, 16, 32, 60, 60, 60]);
        now += QUIET;
        assert_eq!(
            fails(&failed, FREE + 1, &mut now),
            [[0; FREE as usize].as_slice(), &[1]].concat()
        );
    }

    #[test]
    fn a_program_with_a_wrong_password_keeps_out_no_other_user_of_its_host() {
        let (failed, now) = (FailedLogins::default(), Instant::now());
        for _ in 0..1000 {
            failed.failed(HERE, "ann", MAX, now);
        }
        assert_eq!(failed.refused_for(HERE, "ann", now), Some(MAX));
        assert_eq!(failed.refused_for(HERE, "bob", now), None);
    }

    #[test]
    fn an_address_that_tries_one_user_after_the_other_is_refused() {
        let (failed, now) = (FailedLogins::default(), Instant::now());
        let delays = (0..FREE + 3).map(|n| failed.failed(HERE, &format!("user {n}"), MAX, now));
        let delays: Vec<_> = delays.flatten().map(|delay| delay.as_secs()).collect();
        assert_eq!(delays, [1, 2, 4]);
        assert!(failed.refused_for(HERE, "any", now).is_some());
        failed.succeeded(HERE, "bob");
        assert_eq!(failed.refused_for(HERE, "bob", now), None, "it has logged in from there");
        assert_eq!(failed.refused_for(place(1), "any", now), None);
    }

    #[test]
    fn many_addresses_that_guess_at_a_user_keep_it_out_nowhere_else() {
        let (failed, now) = (FailedLogins::default(), Instant::now());
        let delayed = (1..100).filter(|n| failed.failed(place(*n), "ann", MAX, now).is_some());
        assert_eq!(delayed.count(), 99 - FREE as usize, "the others have no failure free");
        assert_eq!(failed.refused_for(HERE, "ann", now), None);
        assert_eq!(failed.failed(HERE, "ann", MAX, now), Some(FIRST_DELAY));
        assert_eq!(failed.refused_for(HERE, "bob", now), None);
    }

    #[test]
    fn users_of_one_host_are_told_apart_on_a_unix_socket() {
        let (failed, now) = (FailedLogins::default(), Instant::now());
        for _ in 0..=FREE {
            failed.failed((Network::Unix, Some(7)), "ann", MAX, now);
        }
        assert!(failed.refused_for((Network::Unix, Some(7)), "ann", now).is_some());
        assert_eq!(failed.refused_for((Network::Unix, Some(8)), "ann", now), None);
    }

    #[test]
    fn memory_is_bounded_and_what_is_forgotten_is_counted() {
        let (failed, now) = (FailedLogins::default(), Instant::now());
        let most = u32::try_from(FAILURES_MAX).expect("small");
        for number in 0..most + 10 {
            failed.failed(place(number), &format!("user {number}"), MAX, now);
        }
        for number in 0..PROVEN_MAX + 10 {
            failed.succeeded(HERE, &format!("user {number}"));
        }
        assert_eq!(failed.forgotten(), 30);
        let known = locked(&failed.0);
        assert_eq!((known.pairs.len(), known.places.len()), (FAILURES_MAX, FAILURES_MAX));
        assert_eq!((known.users.len(), known.proven.len()), (FAILURES_MAX, PROVEN_MAX));
        assert!(known.places.contains(&place(10)) && !known.places.contains(&place(9)));
    }
}
