//! Counts a pool's backends that are lent to clients of each event loop.
//!
//! # Why it is counted by loop
//! A loop whose clients wait longer than another's gets backends of that one ([`crate::lending::queue`]).
//! Clients of one loop wait longer by chance as often as by load: its thread did not run for a few
//! milliseconds. If its present number did not count, it would then get one backend after the
//! other, up to all of them, until the other loop's clients are those that have waited longer: all
//! backends moved to and fro every 40 ms, and one loop was idle at any time (two loops, 1,000
//! clients, 10 backends). So the more of them a loop has, beyond its share, the longer its clients
//! wait before it gets another.

use crate::ids::LoopId;

/// How many more may overtake the first of a line for each backend that its loop has beyond its
/// share.
pub const UNEVEN: u32 = 32;

/// Lent backends, by the loop of the client.
#[derive(Debug, Default)]
pub(super) struct LentCount {
    all: u32,
    /// By the loop's number.
    by_loop: Vec<u32>,
}

impl LentCount {
    /// All of them.
    pub(super) fn all(&self) -> u32 {
        self.all
    }

    fn at(&mut self, home: LoopId) -> &mut u32 {
        let at = usize::from(home.0);
        if at >= self.by_loop.len() {
            self.by_loop.resize(at + 1, 0);
        }
        &mut self.by_loop[at]
    }

    /// One more, to a client of this loop.
    pub(super) fn add(&mut self, home: LoopId) {
        *self.at(home) += 1;
        self.all += 1;
    }

    /// One of this loop comes back, or is gone.
    pub(super) fn remove(&mut self, home: LoopId) {
        let here = self.at(home);
        debug_assert!(*here > 0, "a backend comes back that was not lent");
        *here = here.saturating_sub(1);
        self.all = self.all.saturating_sub(1);
    }

    /// One of loop `from` goes to a client of loop `to`.
    pub(super) fn cross(&mut self, from: LoopId, to: LoopId) {
        if from != to {
            self.remove(from);
            self.add(to);
        }
    }

    /// How often the first waiter of loop `home` may be overtaken before its turn; `size` is the
    /// bound for a loop with no more than its share. `here` and `all` clients wait, of that loop
    /// and of all.
    pub(super) fn bound(&self, size: u32, home: usize, here: usize, all: usize) -> u32 {
        let has = self.by_loop.get(home).copied().unwrap_or(0);
        let wanted = |waiting: usize, lent: u32| waiting as u64 + u64::from(lent);
        let (of_it, of_all) = (wanted(here, has), wanted(all, self.all).max(1));
        let share = (u64::from(self.all) * of_it + of_all / 2) / of_all;
        let share = u32::try_from(share.max(1)).unwrap_or(u32::MAX);
        let beyond = (has + 1).saturating_sub(share);
        size.saturating_add(beyond.saturating_mul(UNEVEN))
    }

    /// The most that [`LentCount::bound`] may be in a pool of this size.
    #[cfg(test)]
    pub(super) fn bound_max(size: u32) -> u32 {
        size.saturating_mul(UNEVEN + 1)
    }
}
