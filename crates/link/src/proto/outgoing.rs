//! What one end of a stream sends: kept until the peer has written it to its local socket.
//!
//! # Model
//! ```text
//!      base          received         next             end       limit
//!       │ delivered ... │ on paths ...  │ not sent yet ... │         │
//!       └── kept ───────┴───────────────┴──────────────────┘         └ the peer's credit
//! ```
//! A *piece* is what one frame carried: its range, its path, when. When a path dies, its pieces at and
//! after `received` are sent again, before anything new.
//!
//! # Invariants
//! * base <= received <= next <= end; nothing at or after `limit` is sent
//! * each byte in received..next is in a piece or in `again`, and neither begins before `received`

use std::collections::{BTreeMap, VecDeque};

use hawser_time::Time;

use super::PathId;
use super::run::Run;

/// Bytes of a stream that are kept: the most that may be under way.
pub const SEND_BYTES_MAX: u64 = 16 << 20;
/// Bytes that a stream may always keep: as many as a peer's first credit. Above, all streams of a
/// session share [`super::session::SEND_SHARED_BYTES_MAX`].
pub const SEND_OWN_BYTES: u64 = 256 << 10;
/// How many paths must die in a row with the bytes that the receiver waits for, before the time
/// counts: one path may be cut, and the next one slow.
const DEATHS_MIN: u32 = 2;
/// A message that is sent on two paths beside bulk streams.
pub const TWICE_BYTES_MAX: u64 = 1400;
/// How many of a stream's last bytes are sent on two paths.
pub const TAIL_BYTES_MAX: u64 = 16 << 10;

#[derive(Clone, Copy, Debug)]
struct Piece {
    end: u64,
    path: PathId,
    at: Time,
    /// Sent on another path as well.
    twice: bool,
}

/// The state of a stream's end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ending {
    /// More may come.
    No,
    /// No more will come; its length must be sent to the peer.
    Due,
    /// Its length was sent to the peer.
    Said,
    /// The peer's local socket has all of it and its end.
    Done,
}

/// A false acknowledgement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Lie;

/// One direction of a stream, at its sender.
#[derive(Debug)]
pub(super) struct Outgoing {
    bytes: VecDeque<u8>,
    base: u64,
    received: u64,
    next: u64,
    limit: u64,
    pieces: BTreeMap<u64, Piece>,
    /// Start and end of what is to be sent again.
    again: BTreeMap<u64, u64>,
    pub(super) ending: Ending,
    /// When the receiver's local socket last took bytes, or when more was sent after it had all.
    moved: Time,
    /// When the receiver last had more than before, and how many paths have died since with what it waits
    /// for.
    progress: Time,
    deaths: u32,
    /// Since when there has always been something to send.
    backlog: Option<Time>,
    run: Run,
}

impl Outgoing {
    pub(super) fn new(limit: u64) -> Self {
        Self {
            bytes: VecDeque::new(),
            base: 0,
            received: 0,
            next: 0,
            limit,
            pieces: BTreeMap::new(),
            again: BTreeMap::new(),
            ending: Ending::No,
            moved: Time::ZERO,
            progress: Time::ZERO,
            deaths: 0,
            backlog: None,
            run: Run::default(),
        }
    }

    fn end(&self) -> u64 {
        self.base + self.bytes.len() as u64
    }

    /// How much more may be put in, where `shared` is left of what all streams share.
    pub(super) fn room(&self, shared: u64) -> usize {
        if self.ending != Ending::No {
            return 0;
        }
        let kept = self.bytes.len() as u64;
        let own = SEND_OWN_BYTES.saturating_sub(kept) + shared;
        let most = self.limit.min(self.base + SEND_BYTES_MAX);
        usize::try_from(most.saturating_sub(self.end()).min(own)).unwrap_or(usize::MAX)
    }

    /// Bytes that are kept out of what all streams share.
    pub(super) fn shared(&self) -> u64 {
        (self.bytes.len() as u64).saturating_sub(SEND_OWN_BYTES)
    }

    /// Puts bytes in, at most [`Outgoing::room`].
    pub(super) fn put(&mut self, bytes: &[u8], now: Time) {
        self.run.add(bytes.len(), !self.bytes.is_empty(), now);
        self.bytes.extend(bytes);
        self.note_backlog(now);
    }

    fn note_backlog(&mut self, now: Time) {
        self.backlog = self.has_sendable().then(|| self.backlog.unwrap_or(now));
    }

    /// Since when there has always been something to send: the paths take less than there is.
    pub(super) fn backlog_since(&self) -> Option<Time> {
        self.backlog
    }

    /// Whether it has proved to be a transfer, and may use all paths.
    pub(super) fn is_bulk(&self) -> bool {
        self.run.is_bulk()
    }

    pub(super) fn run(&self) -> &Run {
        &self.run
    }

    pub(super) fn delivered(&self) -> u64 {
        self.base
    }

    /// Since when the receiver's local socket has taken no sent bytes; none: it has all.
    pub(super) fn waits_since(&self) -> Option<Time> {
        (self.base < self.next).then_some(self.moved)
    }

    pub(super) fn length(&self) -> u64 {
        self.end()
    }

    /// A copy of what is kept.
    pub(super) fn all(&self) -> Vec<u8> {
        self.bytes.iter().copied().collect()
    }

    /// Bytes that are kept.
    pub(super) fn kept(&self) -> usize {
        self.bytes.len()
    }

    /// What can be sent now.
    pub(super) fn sendable(&self) -> u64 {
        let again: u64 = self.again.iter().map(|(start, end)| end - start).sum();
        again + self.end().min(self.limit).saturating_sub(self.next)
    }

    pub(super) fn has_sendable(&self) -> bool {
        !self.again.is_empty() || self.next < self.end().min(self.limit)
    }

    /// Whether what is sent next was sent before.
    pub(super) fn sends_again(&self) -> bool {
        !self.again.is_empty()
    }

    /// Whether all that there is was sent, and nothing of it is to be sent again.
    pub(super) fn is_all_sent(&self) -> bool {
        self.again.is_empty() && self.next == self.end()
    }

    /// Whether bytes are on paths.
    pub(super) fn has_pieces(&self) -> bool {
        !self.pieces.is_empty()
    }

    /// The next bytes to send, at most `most`, as two slices, and their offset; noted as sent on `path`.
    pub(super) fn take(
        &mut self,
        most: usize,
        path: PathId,
        now: Time,
    ) -> Option<(u64, [&[u8]; 2])> {
        let (start, upto) = self.next_range(most)?;
        if let Some((start, end)) = self.again.pop_first() {
            if upto < end {
                self.again.insert(upto, end);
            }
            debug_assert!(start < upto);
        } else {
            if self.next == self.base {
                self.moved = now;
            }
            if self.next == self.received {
                (self.progress, self.deaths) = (now, 0);
            }
            self.next = upto;
        }
        self.pieces.insert(start, Piece { end: upto, path, at: now, twice: false });
        self.note_backlog(now);
        Some((start, self.slices(start, upto)))
    }

    /// The next bytes to send, at most `most`, as two slices, and their offset; nothing is noted.
    pub(super) fn peek(&self, most: usize) -> Option<(u64, [&[u8]; 2])> {
        let (start, end) = self.next_range(most)?;
        Some((start, self.slices(start, end)))
    }

    /// Start and end of what is sent next.
    fn next_range(&self, most: usize) -> Option<(u64, u64)> {
        let (start, end) = match self.again.first_key_value() {
            Some((start, end)) => (*start, *end),
            None => (self.next, self.end().min(self.limit)),
        };
        (start < end && most > 0).then(|| (start, end.min(start + most as u64)))
    }

    fn slices(&self, start: u64, end: u64) -> [&[u8]; 2] {
        let range = (start - self.base) as usize..(end - self.base) as usize;
        let (first, second) = self.bytes.as_slices();
        let of = |slice: &[u8], before: usize| {
            let start = range.start.saturating_sub(before).min(slice.len());
            let end = range.end.saturating_sub(before).min(slice.len());
            start..end
        };
        [&first[of(first, 0)], &second[of(second, first.len())]]
    }

    /// The last piece of the tail that went by one path only, but not by `not_by`, and where it begins. The tail is what was sent last before there was nothing more to send: an eighth of the bytes
    /// since the last pause, or a small message, [`TAIL_BYTES_MAX`] at most.
    fn tail(&self, not_by: Option<PathId>) -> Option<(u64, Piece)> {
        if !self.is_all_sent() {
            return None;
        }
        let bytes = (self.run.bytes() / 8).clamp(TWICE_BYTES_MAX, TAIL_BYTES_MAX);
        let from = self.next.saturating_sub(bytes).max(self.received);
        let tail = self.pieces.iter().rev().take_while(|(_, piece)| piece.end > from);
        let mut once = tail.filter(|(_, piece)| !piece.twice && Some(piece.path) != not_by);
        let (start, piece) = once.next()?;
        Some((from.max(*start), *piece))
    }

    /// The path of the last piece of the tail that went by one path only, and when that was.
    pub(super) fn tail_sent(&self) -> Option<(PathId, Time)> {
        self.tail(None).map(|(_, piece)| (piece.path, piece.at))
    }

    /// The last piece of the tail that went by another path than `path` and by no second one, or what of the
    /// tail is in it: sent on `path` as well.
    pub(super) fn take_tail(&mut self, path: PathId) -> Option<(u64, [&[u8]; 2])> {
        let (start, piece) = self.tail(Some(path))?;
        // Bytes before the tail stay a piece that went once.
        if let Some((_, before)) = self.pieces.range_mut(..start).next_back()
            && before.end > start
        {
            before.end = start;
        }
        self.pieces.insert(start, Piece { twice: true, ..piece });
        Some((start, self.slices(start, piece.end)))
    }

    /// The piece for which the receiver waits, if it has been under way on another path than `path`
    /// since before `since`: sent on `path` as well, once.
    pub(super) fn take_late(&mut self, path: PathId, since: Time) -> Option<(u64, [&[u8]; 2])> {
        let (start, piece) = self.pieces.iter_mut().next()?;
        let first = *start <= self.received && self.received < piece.end;
        if !first || piece.twice || piece.path == path || piece.at > since {
            return None;
        }
        piece.twice = true;
        let (start, end) = (*start, piece.end);
        Some((start, self.slices(start, end)))
    }

    /// Since when no bytes have got through, although several paths were tried.
    pub(super) fn stalls_since(&self) -> Option<Time> {
        (self.received < self.next && self.deaths >= DEATHS_MIN).then_some(self.progress)
    }

    /// The path of what the receiver waits for.
    pub(super) fn first_path(&self) -> Option<PathId> {
        self.pieces.values().next().map(|piece| piece.path)
    }

    /// What the receiver waits for, since when and on which path.
    pub(super) fn waits_for(&self) -> Option<(PathId, Time)> {
        let (start, piece) = self.pieces.iter().next()?;
        (*start <= self.received && !piece.twice).then_some((piece.path, piece.at))
    }

    /// An acknowledgement came. One that a later one has overtaken changes nothing.
    pub(super) fn acknowledged(
        &mut self,
        delivered: u64,
        received: u64,
        limit: u64,
        now: Time,
    ) -> Result<(), Lie> {
        // The receiver can have no more than was sent.
        if delivered > received || received > self.next || limit < received {
            return Err(Lie);
        }
        self.limit = self.limit.max(limit);
        if received > self.received {
            self.received = received;
            (self.progress, self.deaths) = (now, 0);
            while let Some(entry) = self.pieces.first_entry() {
                if *entry.key() >= received {
                    break;
                }
                // Its first bytes may leave `bytes` now, so no copy of it may begin with them.
                let piece = entry.remove();
                if piece.end > received {
                    self.pieces.insert(received, piece);
                }
            }
            while let Some(entry) = self.again.first_entry() {
                if *entry.key() >= received {
                    break;
                }
                let (_, end) = entry.remove_entry();
                if end > received {
                    self.again.insert(received, end);
                }
            }
        }
        self.note_backlog(now);
        if delivered > self.base {
            self.moved = now;
            self.bytes.drain(..(delivered - self.base) as usize);
            self.base = delivered;
            if self.bytes.is_empty() {
                self.bytes = VecDeque::new(); // an idle stream keeps none
            }
        }
        Ok(())
    }

    /// The peer has all of it and its end.
    pub(super) fn done(&mut self) {
        self.base = self.end();
        self.received = self.base;
        self.next = self.base;
        self.bytes = VecDeque::new();
        self.pieces.clear();
        self.again.clear();
        self.ending = Ending::Done;
    }

    /// A path has died: what it carried is sent again.
    pub(super) fn path_died(&mut self, path: PathId) {
        let received = self.received;
        if self.first_path() == Some(path) {
            self.deaths += 1;
        }
        let lost = self.pieces.extract_if(.., |_, piece| piece.path == path && !piece.twice);
        let lost: Vec<_> = lost.map(|(start, piece)| (start.max(received), piece.end)).collect();
        for (start, end) in lost {
            if start < end {
                self.again.insert(start, end);
            }
        }
        // Pieces that were sent twice: the second path is not known, so they are sent a third time.
        let twice = self.pieces.extract_if(.., |_, piece| piece.twice);
        let twice: Vec<_> = twice.map(|(start, piece)| (start.max(received), piece.end)).collect();
        self.again.extend(twice.into_iter().filter(|(start, end)| start < end));
        if self.ending == Ending::Said {
            self.ending = Ending::Due;
        }
    }
}
