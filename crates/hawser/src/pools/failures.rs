//! A pool's failed openings, and how long the next one waits after them.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::locked;

/// The first pause after a failed opening; it doubles.
pub const RETRY_AFTER_FIRST: Duration = Duration::from_millis(50);

/// A pool's record of failed openings.
#[derive(Debug, Default)]
pub struct Failures(Mutex<Failing>);

#[derive(Debug, Default)]
struct Failing {
    /// Failures in a row. Attempts that were under way together count as one.
    times: u32,
    /// When the last was counted.
    last: Option<Instant>,
    /// When the first of these attempts began.
    since: Option<Instant>,
}

impl Failures {
    /// An attempt that began then has failed. Returns how many failed before it; `None` if it
    /// counts with the last one.
    pub fn add(&self, begun: Instant) -> Option<u32> {
        let mut failing = locked(&self.0);
        if failing.last.is_some_and(|last| begun <= last) {
            return None;
        }
        failing.last = Some(Instant::now());
        failing.since.get_or_insert(begun);
        failing.times = failing.times.saturating_add(1);
        Some(failing.times - 1)
    }

    /// The pause after so many failures.
    pub fn pause(&self, longest: Duration) -> Duration {
        let doublings = locked(&self.0).times.saturating_sub(1).min(16);
        RETRY_AFTER_FIRST.saturating_mul(1 << doublings).min(longest)
    }

    /// For how long attempts have failed.
    pub fn lasts(&self) -> Duration {
        locked(&self.0).since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// Whether the last attempt has failed.
    pub fn is_failing(&self) -> bool {
        locked(&self.0).times > 0
    }

    /// An attempt has succeeded. True if others had failed before.
    pub fn end(&self) -> bool {
        std::mem::take(&mut *locked(&self.0)).times > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attempts_that_were_under_way_together_count_as_one_failure() {
        let failures = Failures::default();
        let longest = Duration::from_secs(15);
        let begun = Instant::now();
        assert_eq!(failures.add(begun), Some(0));
        for _ in 0..9 {
            assert_eq!(failures.add(begun), None);
        }
        assert_eq!(failures.pause(longest), RETRY_AFTER_FIRST);
        std::thread::sleep(Duration::from_millis(1));
        assert_eq!(failures.add(Instant::now()), Some(1));
        assert_eq!(failures.pause(longest), 2 * RETRY_AFTER_FIRST);
        for _ in 0..40 {
            std::thread::sleep(Duration::from_millis(1));
            failures.add(Instant::now());
        }
        assert_eq!(failures.pause(longest), longest);
        assert!(failures.end() && !failures.end());
        assert_eq!(failures.add(Instant::now()), Some(0));
    }
}
