//! Counters of a pool: one block for each event loop, written by that loop alone, read by anyone.
//!
//! # Why not one block with atomic additions
//! A locked addition costs about 5 ns and moves the cache line between cores; a load and a store
//! by the only writer cost nothing that can be measured.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Upper bounds of a histogram's classes, in microseconds; the last class has none.
pub const HISTOGRAM_BOUNDS_US: [u64; 20] = [
    50, 100, 200, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 51_200, 102_400, 204_800, 409_600,
    819_200, 1_638_400, 3_276_800, 6_553_600, 13_107_200, 26_214_400,
];

/// A number with one writer.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds to it. Only the loop to which it belongs may call this.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Its value.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How often a duration fell into each class, and the sum.
#[derive(Debug, Default)]
pub struct Histogram {
    classes: [Counter; HISTOGRAM_BOUNDS_US.len() + 1],
    sum_us: Counter,
}

impl Histogram {
    /// Counts a duration. Only the loop to which it belongs may call this.
    #[inline]
    pub fn record(&self, micros: u64) {
        // Bounds double from 50: the class is the bit length of the multiple of the first bound.
        let class = (64 - (micros.saturating_sub(1) / 50).leading_zeros()) as usize;
        self.classes[class.min(HISTOGRAM_BOUNDS_US.len())].add(1);
        self.sum_us.add(micros);
    }

    /// Count in each class, in the order of [`HISTOGRAM_BOUNDS_US`], then those above the last.
    pub fn classes(&self) -> [u64; HISTOGRAM_BOUNDS_US.len() + 1] {
        std::array::from_fn(|at| self.classes[at].get())
    }

    /// Adds what another has counted. Only the writer of this one may call this.
    pub fn add(&self, classes: &[u32; HISTOGRAM_BOUNDS_US.len() + 1], sum_us: u32) {
        for (class, n) in self.classes.iter().zip(classes) {
            class.add(u64::from(*n));
        }
        self.sum_us.add(u64::from(sum_us));
    }

    /// Sum of all durations in microseconds.
    pub fn sum_us(&self) -> u64 {
        self.sum_us.get()
    }
}

/// What one loop has counted for one pool. Times in microseconds.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct LoopStats {
    /// Transactions ended.
    pub transactions: Counter,
    /// Queries ended (ReadyForQuery that answered a client's message).
    pub queries: Counter,
    /// Bytes from clients.
    pub received: Counter,
    /// Bytes from servers.
    pub sent: Counter,
    /// Times that a client was given a backend.
    pub assignments: Counter,
    /// Parse messages from clients.
    pub client_parses: Counter,
    /// Parse messages sent to servers.
    pub server_parses: Counter,
    /// Bind messages.
    pub binds: Counter,
    /// Notifications for clients that listen by another connection than their backend.
    pub notifications: Counter,
    /// Backends that were closed because their servers reported other settings than the books.
    pub settings_mismatches: Counter,
    /// Backends that have come from another loop for a client of this one.
    pub crossings: Counter,
    /// Time that clients waited for a backend.
    pub wait: Histogram,
    /// Time of queries.
    pub query: Histogram,
    /// Time of transactions.
    pub transaction: Histogram,
}

/// Counters of the connection that listens for a pool's clients. One loop writes them.
#[derive(Debug, Default)]
pub struct ListenStats {
    /// 1 while there is one.
    pub connections: AtomicU32,
    /// Channels on which it listens.
    pub channels: AtomicU32,
    /// Notifications that it has received.
    pub heard: Counter,
}

/// Why a client that its server has served itself comes back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Return {
    /// It has sent what servers do not serve themselves.
    Message,
    /// Its transaction has left what the next client must not find, or what only the pooler can keep.
    State,
    /// It is wanted back: the schema has changed, or an administrator or a limit asks for it.
    Recalled,
    /// Its connection has ended, or the server's.
    Ended,
}

impl Return {
    /// Each with its name.
    pub const ALL: [(Self, &str); 4] = [
        (Self::Message, "message"),
        (Self::State, "state"),
        (Self::Recalled, "recalled"),
        (Self::Ended, "ended"),
    ];
}

/// How often clients that their servers have served themselves came back, by the reason.
#[derive(Debug, Default)]
pub struct Returns([AtomicU64; Return::ALL.len()]);

impl Returns {
    /// Counts one.
    pub fn count(&self, why: Return) {
        self.0[why as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// How often it was for this reason.
    pub fn of(&self, why: Return) -> u64 {
        self.0[why as usize].load(Ordering::Relaxed)
    }
}

/// The counters of a pool.
#[derive(Debug)]
pub struct PoolStats {
    /// One for each loop, and the one of [`PoolStats::inside`].
    loops: Box<[LoopStats]>,
    /// Counters of its listening connection.
    pub listen: ListenStats,
    /// Clients that came back from its server.
    pub returns: Returns,
}

impl PoolStats {
    /// Zero, for this many loops.
    pub fn new(loops: usize) -> Self {
        let loops = (0..=loops).map(|_| LoopStats::default()).collect();
        Self { loops, listen: ListenStats::default(), returns: Returns::default() }
    }

    /// The block of a loop.
    ///
    /// # Panics
    /// If the loop does not exist.
    #[inline]
    pub fn of(&self, home: crate::ids::LoopId) -> &LoopStats {
        &self.loops[home.0 as usize]
    }

    /// The block of what the server has run for clients inside it.
    #[expect(clippy::missing_panics_doc, reason = "it is always there")]
    pub fn inside(&self) -> &LoopStats {
        self.loops.last().expect("one more than loops")
    }

    /// The sum over all blocks of what `read` reads.
    pub fn sum(&self, read: impl Fn(&LoopStats) -> u64) -> u64 {
        self.loops.iter().map(read).sum()
    }

    /// All blocks.
    pub fn iter(&self) -> impl Iterator<Item = &LoopStats> {
        self.loops.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_falls_into_the_first_class_whose_bound_it_does_not_exceed() {
        for micros in [0, 1, 49, 50, 51, 100, 101, 200, 201, 6_400, 26_214_400, 26_214_401, 1 << 60]
        {
            let histogram = Histogram::default();
            histogram.record(micros);
            let expected = HISTOGRAM_BOUNDS_US
                .iter()
                .position(|bound| micros <= *bound)
                .unwrap_or(HISTOGRAM_BOUNDS_US.len());
            let found = histogram.classes().iter().position(|n| *n == 1);
            assert_eq!(found, Some(expected), "{micros} us");
        }
    }
}
