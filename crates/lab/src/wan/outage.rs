//! When a path is down, by a time table.

use std::time::Duration;

/// The path loses everything from `at` until `at + lasts`, and again each `every` after that.
///
/// Times count from the laboratory's start. A packet is lost if it enters while the path is down;
/// one that is on its way already arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outage {
    /// The first time.
    pub at: Duration,
    /// For how long.
    pub lasts: Duration,
    /// From one beginning to the next; `None` is once. Longer than `lasts`.
    pub every: Option<Duration>,
}

impl Outage {
    /// Whether the path is down.
    #[must_use]
    pub fn covers(self, now: Duration) -> bool {
        let Some(since) = now.checked_sub(self.at) else { return false };
        let within = match self.every {
            Some(every) => since.as_nanos() % every.as_nanos().max(1),
            None => since.as_nanos(),
        };
        within < self.lasts.as_nanos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn an_outage_covers_its_beginning_and_not_its_end() {
        let once = Outage { at: 10 * S, lasts: 2 * S, every: None };
        let covered: Vec<u32> = (0..60).filter(|&t| once.covers(t * S)).collect();
        assert_eq!(covered, [10, 11]);
        let again = Outage { every: Some(20 * S), ..once };
        let covered: Vec<u32> = (0..60).filter(|&t| again.covers(t * S)).collect();
        assert_eq!(covered, [10, 11, 30, 31, 50, 51]);
    }
}
