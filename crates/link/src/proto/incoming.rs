//! What one end of a stream receives: in order, each byte once, within the given credit.
//!
//! # Model
//! ```text
//!    delivered        received        gap     later ...        limit = delivered + window
//!       │ for the local socket │       │  │ pieces │                │
//! ```
//! The window begins at [`INITIAL_CREDIT`] and doubles each time that a sender has used half of it within
//! [`GROWTH`]; the session bounds the sum ([`super::session`]).
//!
//! # Invariants
//! * delivered is what the local socket has taken, and nothing is acknowledged before
//! * bytes at or after `limit`, or after the announced end, are a protocol violation
//! * pieces in `later` do not overlap, and hold at most `limit - received` bytes; two that touch have more
//!   than [`JOINED_BYTES_MAX`] together, so what [`LATER_MAX`] bounds is gaps

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use hawser_time::Time;

use super::outgoing::Lie;

/// What a sender may send before the first acknowledgement.
pub const INITIAL_CREDIT: u64 = 256 << 10;
/// The largest window of a stream: twice 217 ms of 290 Mbit/s.
pub const WINDOW_MAX: u64 = 16 << 20;
/// A window that is used up in less time is too small for the path.
const GROWTH: Duration = Duration::from_secs(2);
/// Pieces that touch are joined up to so many bytes: one frame costs a copy of no more. (A compressed
/// frame may be a longer piece, which is joined with none.)
pub const JOINED_BYTES_MAX: usize = 16 << 10;
/// Pieces that may wait for what comes before them: a window of [`WINDOW_MAX`] has as many only where
/// every second frame is missing and has fewer than 128 bytes. At some 100 bytes each they cost less
/// than the window itself.
pub const LATER_MAX: usize = 64 << 10;

/// What happened to received bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Put {
    /// There is more for the local socket than before.
    Ready,
    /// They are duplicates, or wait for earlier bytes.
    Kept,
    /// There are [`LATER_MAX`] pieces: a part of them was dropped. It is not acknowledged, and the
    /// sender, to which TCP has said that it arrived, sends it again only when its path ends.
    Dropped,
}

/// One direction of a stream, at its receiver.
#[derive(Debug)]
pub(super) struct Incoming {
    /// In order, not written yet.
    ready: VecDeque<u8>,
    delivered: u64,
    later: BTreeMap<u64, Vec<u8>>,
    /// Where it ends, once that is known.
    length: Option<u64>,
    window: u64,
    limit: u64,
    /// The local socket has its end.
    pub(super) finished: bool,
    /// What was acknowledged last.
    acked: u64,
    grew: Time,
    grew_at: u64,
}

impl Incoming {
    pub(super) fn new() -> Self {
        Self {
            ready: VecDeque::new(),
            delivered: 0,
            later: BTreeMap::new(),
            length: None,
            window: INITIAL_CREDIT,
            limit: INITIAL_CREDIT,
            finished: false,
            acked: 0,
            grew: Time::ZERO,
            grew_at: 0,
        }
    }

    pub(super) fn delivered(&self) -> u64 {
        self.delivered
    }

    pub(super) fn received(&self) -> u64 {
        self.delivered + self.ready.len() as u64
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    pub(super) fn window(&self) -> u64 {
        self.window
    }

    /// Bytes that are held.
    pub(super) fn held(&self) -> usize {
        self.ready.len() + self.later.values().map(Vec::len).sum::<usize>()
    }

    /// Whether any of `length` bytes at `offset` is new.
    pub(super) fn wants(&self, offset: u64, length: usize) -> Result<bool, Lie> {
        let end = offset + length as u64;
        if end > self.limit || self.length.is_some_and(|length| end > length) {
            return Err(Lie);
        }
        Ok(end > self.received())
    }

    /// Takes bytes.
    pub(super) fn put(&mut self, offset: u64, bytes: &[u8]) -> Result<Put, Lie> {
        if !self.wants(offset, bytes.len())? {
            return Ok(Put::Kept);
        }
        let received = self.received();
        if offset > received {
            return Ok(self.keep(offset, bytes));
        }
        self.ready.extend(&bytes[(received - offset) as usize..]);
        while let Some(entry) = self.later.first_entry() {
            let received = self.delivered + self.ready.len() as u64;
            if *entry.key() > received {
                break;
            }
            let (start, piece) = entry.remove_entry();
            if let Some(new) = piece.get((received - start) as usize..) {
                self.ready.extend(new);
            }
        }
        Ok(Put::Ready)
    }

    /// Keeps bytes that came too early, without duplicates.
    fn keep(&mut self, offset: u64, bytes: &[u8]) -> Put {
        let end = offset + bytes.len() as u64;
        let mut start = offset;
        if let Some((before, piece)) = self.later.range(..=offset).next_back() {
            start = start.max(before + piece.len() as u64);
        }
        while start < end {
            let after = self.later.range(start..).next();
            let (upto, then) = match after {
                Some((at, piece)) if *at < end => (*at, at + piece.len() as u64),
                _ => (end, end),
            };
            if upto > start {
                let part = &bytes[(start - offset) as usize..(upto - offset) as usize];
                if !self.insert(start, part) {
                    return Put::Dropped;
                }
            }
            start = then;
        }
        Put::Kept
    }

    /// Inserts a piece that overlaps none, joined with those that it touches. False: there was no
    /// room.
    fn insert(&mut self, start: u64, part: &[u8]) -> bool {
        let (mut start, end) = (start, start + part.len() as u64);
        let fits = |piece: &[u8], more: usize| piece.len() + more <= JOINED_BYTES_MAX;
        let is_full = self.later.len() >= LATER_MAX;
        let before = self.later.range_mut(..start).next_back();
        let before = before.filter(|(at, piece)| **at + piece.len() as u64 == start);
        match before.filter(|(_, piece)| fits(piece, part.len())) {
            Some((at, piece)) => {
                piece.extend_from_slice(part);
                start = *at;
            }
            None if is_full => return false,
            None => drop(self.later.insert(start, part.to_vec())),
        }
        let length = (end - start) as usize;
        if self.later.get(&end).is_some_and(|after| fits(after, length))
            && let Some(after) = self.later.remove(&end)
            && let Some(piece) = self.later.get_mut(&start)
        {
            piece.extend_from_slice(&after);
        }
        true
    }

    /// Panics where an invariant of `later` is broken.
    #[cfg(test)]
    pub(super) fn check_later(&self) {
        let pieces: Vec<_> = self.later.iter().collect();
        for pair in pieces.windows(2) {
            let (end, next) = (pair[0].0 + pair[0].1.len() as u64, *pair[1].0);
            let both = pair[0].1.len() + pair[1].1.len();
            assert!(end < next || end == next && both > JOINED_BYTES_MAX, "{end} {next} {both}");
        }
    }

    /// The sender announces the end.
    pub(super) fn ends(&mut self, length: u64) -> Result<(), Lie> {
        let last = self.later.last_key_value().map(|(at, piece)| at + piece.len() as u64);
        let least = self.received().max(last.unwrap_or(0));
        if length < least || length > self.limit || self.length.is_some_and(|old| old != length) {
            return Err(Lie);
        }
        self.length = Some(length);
        Ok(())
    }

    /// The bytes for the local socket.
    pub(super) fn ready(&self) -> [&[u8]; 2] {
        let (first, second) = self.ready.as_slices();
        [first, second]
    }

    /// Whether the local socket has all of it, and may be given its end.
    pub(super) fn is_whole(&self) -> bool {
        self.length == Some(self.delivered)
    }

    /// The local socket has taken `count` bytes. `spare`: by how much the window may grow. Returns
    /// by how much it grew.
    pub(super) fn wrote(&mut self, count: usize, spare: u64, now: Time) -> u64 {
        self.ready.drain(..count);
        if self.ready.is_empty() {
            self.ready = VecDeque::new(); // an idle stream keeps none
        }
        self.delivered += count as u64;
        let mut growth = 0;
        if self.delivered - self.grew_at >= self.window / 2 {
            let doubled = self.window.min(WINDOW_MAX - self.window);
            if self.grew != Time::ZERO && now.since(self.grew) < GROWTH && doubled <= spare {
                growth = doubled;
                self.window += growth;
            }
            self.grew = now;
            self.grew_at = self.delivered;
        }
        growth
    }

    /// Whether an acknowledgement is worth its frame at once: the sender needs the room, or waits for
    /// the end.
    pub(super) fn is_ack_urgent(&self) -> bool {
        self.finished || self.delivered - self.acked >= self.window / 8
    }

    /// An acknowledgement is sent now: it opens the window.
    pub(super) fn acknowledge(&mut self) -> (u64, u64, u64) {
        self.limit = self.limit.max(self.delivered + self.window);
        self.acked = self.delivered;
        (self.delivered, self.received(), self.limit)
    }
}
