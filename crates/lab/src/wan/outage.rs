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

    /// When it next begins or ends, after `now`; `None` if it is over.
    #[must_use]
    pub fn next_change(self, now: Duration) -> Option<Duration> {
        let Some(since) = now.checked_sub(self.at) else { return Some(self.at) };
        let (begin, every) = match self.every.filter(|every| !every.is_zero()) {
            Some(every) => {
                let within = since.as_nanos() % every.as_nanos();
                let within = Duration::from_nanos(u64::try_from(within).unwrap_or(u64::MAX));
                (now.saturating_sub(within), Some(every))
            }
            None => (self.at, None),
        };
        let end = begin + self.lasts;
        if now < end { Some(end) } else { every.map(|every| begin + every) }
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

    #[test]
    fn it_changes_when_it_begins_and_when_it_ends() {
        let once = Outage { at: 10 * S, lasts: 2 * S, every: None };
        let changes = |outage: Outage, now: u32| outage.next_change(now * S);
        assert_eq!(changes(once, 0), Some(10 * S));
        assert_eq!(changes(once, 10), Some(12 * S), "after now, not at it");
        assert_eq!(changes(once, 12), None);
        let again = Outage { every: Some(20 * S), ..once };
        assert_eq!(changes(again, 12), Some(30 * S));
        assert_eq!(changes(again, 31), Some(32 * S));
        assert_eq!(changes(again, 32), Some(50 * S));
    }
}
