//! The last paths that have ended, for operators.

use std::collections::VecDeque;
use std::time::Duration;

use hawser_multipath::paths::action::PairId;
use hawser_time::Time;

use super::PathId;
use super::path::{Origin, Path, PathEnd};

/// So many are remembered.
pub const PAST_MAX: usize = 16;

/// A path that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PastPath {
    /// Its id; for failed dials, that of the last.
    pub id: PathId,
    /// Its pair of addresses.
    pub pair: PairId,
    /// Why there was one.
    pub origin: Origin,
    /// Why it has ended.
    pub end: PathEnd,
    /// When it ended.
    pub ended: Time,
    /// How long it lived.
    pub lived: Duration,
    /// Bytes to and from the peer.
    pub bytes: (u64, u64),
    /// Dials between these addresses that have failed for this reason count as one path.
    pub times: u32,
}

#[derive(Debug, Default)]
pub(super) struct Past(VecDeque<PastPath>);

impl Past {
    pub(super) fn add(&mut self, path: &Path, end: PathEnd, now: Time) {
        let mut past = PastPath {
            id: path.id,
            pair: path.pair,
            origin: path.origin,
            end,
            ended: now,
            lived: now.since(path.since),
            bytes: (path.sent_bytes, path.received_bytes),
            times: 1,
        };
        // A dead line is dialled repeatedly: other events must stay visible.
        let same = |other: &PastPath| {
            other.end == end && other.pair == past.pair && end == PathEnd::NotDialled
        };
        if let Some(at) = self.0.iter().position(same)
            && let Some(before) = self.0.remove(at)
        {
            past.times = before.times.saturating_add(1);
        }
        if self.0.len() == PAST_MAX {
            self.0.pop_front();
        }
        self.0.push_back(past);
    }

    /// The oldest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &PastPath> {
        self.0.iter()
    }
}
