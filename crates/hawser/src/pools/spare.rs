//! Returns free memory to the system.
//!
//! # Model
//! The allocator keeps freed memory (see [`hawser_sys::memory`]), and has no cheap count of it. So
//! this tries every [`EVERY`] passes if the process has more than [`WORTH_BYTES`]. After each try
//! that frees little, and while the memory stays the same, the pause doubles, up to [`PAUSE_MAX`];
//! a change resets it.
//!
//! # Why not after each burst
//! Allocations from an arena wait while it is searched: milliseconds if much is free, and at most
//! once in [`EVERY`] seconds.

use crate::process::private_memory;

/// Passes (seconds) between two attempts, at first.
const EVERY: u64 = 10;
/// The same if nothing can be freed.
const PAUSE_MAX: u64 = 40;
/// A process with less is left alone: it has 3 MB when it has just started.
const WORTH_BYTES: u64 = 6 << 20;
/// The smallest difference that counts as a change.
const CHANGE_BYTES: u64 = 2 << 20;

/// When it was last tried, and what it freed.
#[derive(Debug, Default)]
pub(super) struct Spare {
    next: u64,
    pause: u64,
    after: u64,
}

impl Spare {
    /// To be called at each pass, with the bytes that are known to have been freed in it.
    pub(super) async fn give_back(&mut self, pass: u64, freed: usize) {
        if freed as u64 >= CHANGE_BYTES {
            self.next = pass;
        }
        if !pass.is_multiple_of(EVERY) {
            return;
        }
        let Some(before) = private_memory(std::process::id()) else { return };
        if !self.is_due(pass, before) {
            return;
        }
        // Not on this thread: it takes locks that the thread's other tasks need as well.
        if tokio::task::spawn_blocking(hawser_sys::memory::give_back).await.is_err() {
            return;
        }
        let after = private_memory(std::process::id()).unwrap_or(before);
        self.tried(pass, before, after);
        if before.saturating_sub(after) >= CHANGE_BYTES {
            tracing::debug!(before, after, "free memory has been returned to the system");
        }
    }

    fn is_due(&self, pass: u64, now: u64) -> bool {
        now >= WORTH_BYTES && (pass >= self.next || now.abs_diff(self.after) >= CHANGE_BYTES)
    }

    fn tried(&mut self, pass: u64, before: u64, after: u64) {
        let brought = before.saturating_sub(after) >= CHANGE_BYTES;
        let same = before.abs_diff(self.after) < CHANGE_BYTES;
        self.pause =
            if brought || !same { EVERY } else { (self.pause * 2).clamp(EVERY, PAUSE_MAX) };
        (self.next, self.after) = (pass + self.pause, after);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1 << 20;

    #[test]
    fn a_process_that_stays_as_it_is_is_asked_ever_less_often() {
        let (mut spare, mut tries) = (Spare::default(), Vec::new());
        for pass in (0..1000).step_by(10) {
            if spare.is_due(pass, 40 * MB) {
                tries.push(pass);
                spare.tried(pass, 40 * MB, 40 * MB);
            }
        }
        assert_eq!(tries[..6], [0, 10, 30, 70, 110, 150]);
        assert_eq!(tries.len(), 27);
    }

    #[test]
    fn a_change_restarts_the_pause_and_a_small_process_is_left_alone() {
        let mut spare = Spare::default();
        for pass in (0..200).step_by(10) {
            if spare.is_due(pass, 40 * MB) {
                spare.tried(pass, 40 * MB, 40 * MB);
            }
        }
        assert!(!spare.is_due(200, 40 * MB));
        assert!(spare.is_due(200, 60 * MB));
        spare.tried(200, 60 * MB, 7 * MB);
        assert!(spare.is_due(210, 7 * MB));
        assert!(!spare.is_due(10_000, 5 * MB));
    }
}
