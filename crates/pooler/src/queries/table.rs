//! What one loop has counted for each statement of each database and user.
//!
//! # Model   a statement has a place from its first call on, and what is in flight keeps a
//!           [`QueryRef`] to it. If all places are taken, the eighth that was used least recently is
//!           forgotten at once: what it had counted goes to [`Queries::other`], as do later calls of it
//!           that were in flight.
//! # Invariants  the sum over all places and `other` is what has run since counting began
//! # Limits  [`QUERIES_MAX`] places a loop, [`TEXT_BYTES_MAX`] of each text. The address with the most calls is
//!           found by a vote of one call in [`VOTES_EVERY`]: it is right if one has the majority.

use core::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::Arc;

use crate::hash::IdMap;
use crate::queries::digest::{Digest, digest};
use crate::queries::durations::Durations;
use crate::relay::client_info::PeerAddress;
use crate::time::Time;

/// The most statements that one loop counts apart.
pub const QUERIES_MAX: usize = 1024;
/// The bytes that are kept of a normalised text, and of an example.
pub const TEXT_BYTES_MAX: usize = 1024;
/// One call in so many votes for its client's address.
const VOTES_EVERY: u64 = 16;

/// A statement that is counted, for what is in flight.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct QueryRef {
    /// Its place, plus one.
    place: NonZeroU32,
    /// How often the place had been given out before.
    generation: u32,
}

impl QueryRef {
    /// One whose text is not known.
    pub(crate) const OTHER: Self = Self { place: NonZeroU32::MAX, generation: 0 };
}

/// Whose statement it is.
#[derive(Clone, Copy)]
pub(crate) struct Owner<'a> {
    /// Tells owners of this loop apart.
    pub(crate) key: u64,
    pub(crate) database: &'a str,
    pub(crate) user: &'a str,
    /// Whether a text with its constants is kept.
    pub(crate) keeps_example: bool,
}

/// One execution that has ended.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct Execution {
    pub(crate) failed: bool,
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
    pub(crate) time_us: u64,
    pub(crate) wait_us: u64,
}

/// Counters of a statement.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct QueryCounts {
    /// Executions that have ended, with an error or without.
    pub calls: u64,
    /// Of these, those that ended with an error, or with the loss of their server connection.
    pub errors: u64,
    /// Rows that were returned or changed, as the command tags say.
    pub rows: u64,
    /// Bytes of the server's answers.
    pub bytes: u64,
    /// The sum of their times at the server, in microseconds.
    pub time_us: u64,
    /// The sum of the times that their clients had waited for a server connection, in microseconds.
    pub wait_us: u64,
    /// Their times at the server.
    pub times: Durations,
}

impl QueryCounts {
    /// Adds what was counted elsewhere.
    pub fn add(&mut self, other: &Self) {
        self.calls += other.calls;
        self.errors += other.errors;
        self.rows += other.rows;
        self.bytes += other.bytes;
        self.time_us += other.time_us;
        self.wait_us += other.wait_us;
        self.times.add(&other.times);
    }

    /// The sum of its times by the number of its calls, in microseconds.
    pub fn mean_us(&self) -> u64 {
        self.time_us.checked_div(self.calls).unwrap_or(0)
    }

    #[inline]
    fn count(&mut self, execution: &Execution) {
        self.calls += 1;
        self.errors += u64::from(execution.failed);
        self.rows += execution.rows;
        self.bytes += execution.bytes;
        self.time_us += execution.time_us;
        self.wait_us += execution.wait_us;
        self.times.record(execution.time_us);
    }
}

/// A statement, and what one loop has counted for it.
#[derive(Clone, Debug)]
pub struct QueryRow {
    /// Its digest.
    pub digest: Digest,
    /// The database.
    pub database: Arc<str>,
    /// The user.
    pub user: Arc<str>,
    /// The normalised text.
    pub text: Arc<str>,
    /// The text that was sent first, if it may be kept.
    pub example: Option<Arc<str>>,
    /// Counters.
    pub counts: QueryCounts,
    /// When it ended last, or began first.
    pub last_seen: Time,
    /// The client address with the most calls, and by how many votes. `None`: a unix socket.
    pub address: (Option<IpAddr>, u64),
}

impl QueryRow {
    /// One more vote for an address (Boyer and Moore).
    fn vote(&mut self, peer: &PeerAddress) {
        let address = peer.ip();
        match &mut self.address {
            (most, votes) if *most == address => *votes += 1,
            (_, votes) if *votes > 0 => *votes -= 1,
            other => *other = (address, 1),
        }
    }
}

/// What tells statements of one loop apart.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    /// Mixed with a secret: who sends texts can find digests that a table would keep in one place.
    digest: u64,
    owner: u64,
}

struct Place {
    key: Key,
    generation: u32,
    /// `None`: it is free.
    row: Option<Box<QueryRow>>,
}

/// The statements of one loop.
pub struct Queries {
    secret: u64,
    index: IdMap<Key, u32>,
    places: Vec<Place>,
    free: Vec<u32>,
    other: QueryCounts,
    /// Statements that were forgotten.
    forgotten: u64,
}

impl Queries {
    pub(crate) fn new(secret: u64) -> Self {
        Self {
            secret,
            index: IdMap::default(),
            places: Vec::new(),
            free: Vec::new(),
            other: QueryCounts::default(),
            forgotten: 0,
        }
    }

    /// The place of a statement, which gets one if it has none.
    #[inline]
    pub(crate) fn find(
        &mut self,
        digest: Digest,
        owner: &Owner<'_>,
        text: &[u8],
        now: Time,
    ) -> QueryRef {
        let key = Key { digest: digest.0 ^ self.secret, owner: owner.key };
        match self.index.get(&key) {
            Some(place) => self.reference(*place),
            None => self.begin(key, owner, text, now),
        }
    }

    #[inline]
    fn reference(&self, place: u32) -> QueryRef {
        let generation = self.places[place as usize].generation;
        QueryRef { place: NonZeroU32::MIN.saturating_add(place), generation }
    }

    #[cold]
    fn begin(&mut self, key: Key, owner: &Owner<'_>, text: &[u8], now: Time) -> QueryRef {
        if self.index.len() >= QUERIES_MAX {
            self.forget_oldest();
        }
        let (digest, normal) = digest(text);
        let row = Box::new(QueryRow {
            digest,
            database: owner.database.into(),
            user: owner.user.into(),
            text: start_of(&normal).into(),
            example: owner.keeps_example.then(|| start_of(&String::from_utf8_lossy(text)).into()),
            counts: QueryCounts::default(),
            last_seen: now,
            address: (None, 0),
        });
        let place = match self.free.pop() {
            Some(place) => {
                let free = &mut self.places[place as usize];
                (free.key, free.row) = (key, Some(row));
                place
            }
            None => {
                self.places.push(Place { key, generation: 0, row: Some(row) });
                u32::try_from(self.places.len() - 1).expect("at most QUERIES_MAX")
            }
        };
        self.index.insert(key, place);
        self.reference(place)
    }

    /// Forgets the eighth that was used least recently.
    fn forget_oldest(&mut self) {
        let rows = self.places.iter().zip(0_u32..);
        let mut ages: Vec<_> =
            rows.filter_map(|(place, at)| Some((place.row.as_ref()?.last_seen, at))).collect();
        let count = (ages.len() / 8).max(1).min(ages.len());
        if count < ages.len() {
            ages.select_nth_unstable(count);
        }
        for (_, at) in &ages[..count] {
            let place = &mut self.places[*at as usize];
            place.generation = place.generation.wrapping_add(1);
            self.index.remove(&place.key);
            if let Some(row) = place.row.take() {
                self.other.add(&row.counts);
            }
            self.free.push(*at);
        }
        self.forgotten += count as u64;
    }

    /// An execution has ended.
    #[inline]
    pub(crate) fn count(
        &mut self,
        query: QueryRef,
        execution: &Execution,
        peer: impl FnOnce() -> Option<PeerAddress>,
        now: Time,
    ) {
        let place = self.places.get_mut(query.place.get() as usize - 1);
        let row = place.filter(|place| place.generation == query.generation);
        let Some(row) = row.and_then(|place| place.row.as_deref_mut()) else {
            self.other.count(execution);
            return;
        };
        if row.counts.calls % VOTES_EVERY == 0
            && let Some(peer) = peer()
        {
            row.vote(&peer);
        }
        row.counts.count(execution);
        row.last_seen = now;
    }

    /// Forgets everything.
    pub(crate) fn clear(&mut self) {
        if !self.places.is_empty() || self.other.calls > 0 {
            *self = Self::new(self.secret);
        }
    }

    /// What has been counted, in the next places. (One that has not ended yet has no calls.)
    pub(crate) fn rows(&self, places: std::ops::Range<u32>) -> Vec<QueryRow> {
        let places = self.places.iter().skip(places.start as usize).take(places.len());
        let rows = places.filter_map(|place| place.row.as_deref());
        rows.filter(|row| row.counts.calls > 0).cloned().collect()
    }

    /// Every place is below this.
    pub(crate) fn end(&self) -> u32 {
        u32::try_from(self.places.len()).unwrap_or(u32::MAX)
    }

    /// What was counted for statements that were forgotten, and how many these were.
    pub(crate) fn other(&self) -> (&QueryCounts, u64) {
        (&self.other, self.forgotten)
    }
}

/// As much of a text as is kept.
fn start_of(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_BYTES_MAX)]
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: Owner<'static> =
        Owner { key: 1, database: "shop", user: "web", keeps_example: true };

    fn run(queries: &mut Queries, text: &str, time_us: u64, now: u64) -> QueryRef {
        let now = Time::from_micros(now);
        let query = queries.find(digest(text.as_bytes()).0, &OWNER, text.as_bytes(), now);
        let execution = Execution { rows: 1, time_us, ..Execution::default() };
        queries.count(query, &execution, || Some(PeerAddress::Unix), now);
        query
    }

    fn calls(queries: &Queries) -> u64 {
        queries.rows(0..queries.end()).iter().map(|row| row.counts.calls).sum()
    }

    #[test]
    fn a_statement_is_counted_for_each_owner() {
        let mut queries = Queries::new(7);
        run(&mut queries, "SELECT 1", 100, 1);
        run(&mut queries, "select 2", 100, 2);
        let other = Owner { key: 2, user: "batch", keeps_example: false, ..OWNER };
        let query = queries.find(digest(b"SELECT 3").0, &other, b"SELECT 3", Time::from_micros(3));
        assert_eq!(queries.rows(0..queries.end()).len(), 1, "it has not ended yet");
        queries.count(query, &Execution::default(), || None, Time::from_micros(4));
        let rows = queries.rows(0..queries.end());
        assert_eq!(rows.len(), 2);
        let row = &rows[0];
        assert_eq!((row.counts.calls, row.counts.rows, row.counts.time_us), (2, 2, 200));
        assert_eq!((&*row.text, row.example.as_deref()), ("select ?", Some("SELECT 1")));
        assert_eq!((&*rows[1].user, rows[1].example.as_deref()), ("batch", None));
    }

    #[test]
    fn a_flood_of_texts_is_bounded_and_counted_as_other() {
        let mut queries = Queries::new(7);
        for turn in 0..20_000 {
            run(&mut queries, "SELECT often", 1, turn);
            run(&mut queries, &format!("SELECT c{turn}"), 1, turn);
        }
        assert!(queries.end() as usize <= QUERIES_MAX);
        let (other, forgotten) = queries.other();
        assert_eq!(calls(&queries) + other.calls, 40_000);
        assert_eq!(forgotten as usize + queries.index.len(), 20_001);
        let rows = queries.rows(0..queries.end());
        let often = rows.iter().find(|row| &*row.text == "select often").expect("it is in use");
        assert_eq!(often.counts.calls, 20_000);
    }

    #[test]
    fn what_ends_after_its_statement_was_forgotten_is_other() {
        let mut queries = Queries::new(7);
        let early = run(&mut queries, "SELECT early", 1, 0);
        for turn in 1..2_000 {
            run(&mut queries, &format!("SELECT c{turn}"), 1, turn);
        }
        let before = queries.other().0.calls;
        let now = Time::from_micros(3_000);
        queries.count(early, &Execution::default(), || None, now);
        queries.count(QueryRef::OTHER, &Execution::default(), || None, now);
        assert_eq!(queries.other().0.calls, before + 2);
    }

    #[test]
    fn the_address_of_most_calls_is_found() {
        let mut queries = Queries::new(7);
        let query = run(&mut queries, "SELECT 1", 1, 0);
        let peer = |last| PeerAddress::V4(core::net::SocketAddrV4::new([10, 0, 0, last].into(), 5));
        for turn in 0..VOTES_EVERY * 30 {
            let last = if (turn / VOTES_EVERY).is_multiple_of(3) { 1 } else { 2 };
            queries.count(query, &Execution::default(), || Some(peer(last)), Time::ZERO);
        }
        let rows = queries.rows(0..1);
        assert_eq!(rows[0].address.0, Some([10, 0, 0, 2].into()));
    }
}
