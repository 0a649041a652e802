//! One lane: messages in the order in which they go, and the connection that carries them.
//!
//! # Model
//! ```text
//!   begin        sent (in the middle of a message, maybe)            end
//!     │ given to the connection │ not yet                             │
//!     └─ goes when TCP has acknowledged a message's last byte         └─ push()
//! ```
//! A message keeps its number for good. When the connection breaks, `sent` goes back to `begin`: what
//! was given to it, if only in part, gets the flag of what may have come before. Congestion maps are no
//! part of the sequence: they go between two messages, and a map under way is forgotten when the
//! connection breaks.
//! ```text
//!   Down ──► Dialling ──► Up ──► Draining ──► Down       an accepted connection is Up at once;
//!    ▲          │ failed   │ broken               │       Draining: nothing more is sent, what the
//!    └──────────┴──────────┴──────────────────────┘       peer has sent is read to its end
//! ```
//! # Invariants
//! * what was given to a connection is a beginning of the queue
//! * bytes are kept until TCP has acknowledged the last one of their message
//! # Limits
//! An idle peer has eight of these: what only a busy lane needs is in a box ([`Outgoing`]).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::assembly::Assembly;
use super::congestion::MAP_BYTES;
use super::header::{FLAG_AGAIN, FLAGS_AT, HEADER_BYTES, Header};
use super::spread;
use crate::time::Time;

/// The first and the longest wait before a lane is dialled again (rds_sysctl_reconnect_min_jiffies
/// and _max_: a jiffy and a second).
pub const BACK_OFF_MIN: Duration = Duration::from_millis(1);
/// See [`BACK_OFF_MIN`].
pub const BACK_OFF_MAX: Duration = Duration::from_secs(1);
/// Pings that wait to be answered on a lane; further ones are not answered.
pub const ANSWERS_MAX: usize = 1024;
/// Memory for bytes that an empty lane keeps while it is busy.
const ROOM_KEPT: usize = 1 << 20;

/// How a lane's connection is.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum State {
    /// There is none.
    #[default]
    Down,
    /// It was asked for.
    Dialling,
    /// It carries messages.
    Up,
    /// What the peer has sent is read; nothing more is sent.
    Draining,
}

impl State {
    /// One word.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Down => "down",
            Self::Dialling => "dialling",
            Self::Up => "up",
            Self::Draining => "draining",
        }
    }
}

/// A congestion map with its header.
pub(crate) type MapMessage = [u8; HEADER_BYTES + MAP_BYTES];

/// A connection of a lane.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Connection(pub u64);

/// What belongs to a connection and ends with it.
#[derive(Debug, Default)]
pub(crate) struct Link {
    pub(crate) state: State,
    pub(crate) connection: Option<Connection>,
    pub(crate) assembly: Assembly,
    /// Its remote port, if the peer dialled it.
    pub(crate) accepted_from: Option<u16>,
    /// A map that goes before the next message. Most lanes are sent the same, and share it.
    pub(crate) map: Option<Arc<MapMessage>>,
    map_sent: u32,
    /// A map is due.
    pub(crate) map_due: bool,
    /// Bytes that were given to it, and those of them that TCP has acknowledged.
    written: u64,
    /// No message is given to it until the peer has said who it is, or until this moment.
    pub(crate) held: Option<Time>,
    /// That there is something to write was said.
    pub(crate) asked: bool,
    /// Nothing is read from it for now.
    pub(crate) paused: bool,
}

/// A message in the queue.
#[derive(Clone, Copy, Debug)]
struct Queued {
    /// Where it ends among all bytes that were ever queued.
    end: u64,
    /// Where it ends among the connection's bytes, once it was given to it whole.
    written: u64,
    from: u16,
    is_answer: bool,
    /// It was given to a connection, if only in part.
    tried: bool,
}

/// What a lane has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Messages queued.
    pub sent: u64,
    /// Messages taken.
    pub received: u64,
    /// Messages that were given to a connection once more.
    pub again: u64,
    /// Messages that had come before, and were dropped.
    pub duplicates: u64,
    /// Messages that were dropped because the peer has started anew.
    pub dropped: u64,
    /// Connections.
    pub connections: u64,
    /// Bytes given to connections, headers included.
    pub bytes_sent: u64,
    /// Bytes that came.
    pub bytes_received: u64,
}

/// What TCP says of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that the peer has acknowledged since it is up.
    pub acknowledged: u64,
    /// Some wait to be sent.
    pub has_unsent: bool,
    /// The least round trip; zero if it is not known.
    pub rtt: Duration,
}

/// Messages that are kept until TCP has acknowledged them.
#[derive(Debug, Default)]
struct Outgoing {
    bytes: VecDeque<u8>,
    queue: VecDeque<Queued>,
    pace: Option<Pace>,
}

/// What the peer has acknowledged, for the search for lanes that share a limit.
#[derive(Clone, Copy, Debug)]
struct Pace {
    bytes: u64,
    /// Those of this connection.
    of_connection: u64,
    asked: Time,
    rtt: Duration,
}

/// What a lane has that was idle for long.
static NOTHING: Outgoing = Outgoing { bytes: VecDeque::new(), queue: VecDeque::new(), pace: None };

#[derive(Debug, Default)]
pub(crate) struct Lane {
    pub(crate) link: Link,
    outgoing: Option<Box<Outgoing>>,
    begin: u64,
    sent: u64,
    /// Which of the queue `sent` lies in.
    next: u32,
    answers: u16,
    /// TCP had nothing left to send since the search for lanes that share a limit looked last.
    ran_dry: bool,
    sequence: u64,
    /// The least number that is new.
    pub(crate) expected: u64,
    /// The peer's generation to which the numbers belong, as far as it said so on this lane.
    pub(crate) generation: u32,
    back_off_us: u32,
    pub(crate) dial_at: Option<Time>,
    pub(crate) counts: Counts,
}

/// Messages that are gone from a queue: whose port gets room, and how much.
pub(crate) type Freed = Vec<(u16, usize)>;

impl Lane {
    /// Queues a message. Returns its number.
    pub(crate) fn push(&mut self, mut header: Header, body: &[u8]) -> u64 {
        self.sequence += 1;
        header.sequence = self.sequence;
        let is_answer = header.from == 0;
        self.answers += u16::from(is_answer);
        let Outgoing { bytes, queue, .. } = &mut **self.outgoing.get_or_insert_default();
        bytes.extend(&header.encode());
        bytes.extend(body);
        let end = self.begin + bytes.len() as u64;
        queue.push_back(Queued { end, written: 0, from: header.from, is_answer, tried: false });
        self.counts.sent += 1;
        self.sequence
    }

    /// Whether no further ping may be answered.
    pub(crate) fn answers_are_full(&self) -> bool {
        usize::from(self.answers) >= ANSWERS_MAX
    }

    pub(crate) fn is_up(&self) -> bool {
        self.link.state == State::Up
    }

    fn outgoing(&self) -> &Outgoing {
        self.outgoing.as_deref().unwrap_or(&NOTHING)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.outgoing().queue.is_empty()
    }

    /// Whether all messages were given to the connection.
    fn is_written(&self) -> bool {
        self.next as usize >= self.outgoing().queue.len()
    }

    /// Messages and bytes that are kept, and the number of the next one.
    pub(crate) fn queued(&self) -> (usize, usize, u64) {
        let Outgoing { bytes, queue, .. } = self.outgoing();
        (queue.len(), bytes.len(), self.sequence + 1)
    }

    fn start_of(&self, at: usize) -> u64 {
        match at.checked_sub(1).and_then(|before| self.outgoing().queue.get(before)) {
            Some(before) => before.end,
            None => self.begin,
        }
    }

    fn is_between_messages(&self) -> bool {
        self.sent == self.start_of(self.next as usize)
    }

    /// For the search for lanes that share a limit.
    pub(crate) fn look(&mut self) -> spread::Lane {
        let is_up = self.is_up();
        let held_up = !std::mem::take(&mut self.ran_dry) && is_up && !self.is_empty();
        let outgoing = self.outgoing();
        match outgoing.pace {
            Some(Pace { bytes, asked, rtt, .. }) => {
                spread::Lane { bytes, at: asked, is_up, held_up, rtt }
            }
            None => spread::Lane { is_up, ..spread::Lane::default() },
        }
    }

    /// Whether something was given to the connection that is kept.
    pub(crate) fn has_unacknowledged(&self) -> bool {
        self.sent > self.begin
    }

    /// Whether there is something to write.
    pub(crate) fn has_to_write(&self) -> bool {
        let link = &self.link;
        link.state == State::Up
            && (link.map_due || link.map.is_some() || (link.held.is_none() && !self.is_written()))
    }

    /// What goes next, in two parts.
    pub(crate) fn to_write(&self) -> [&[u8]; 2] {
        if self.link.state != State::Up {
            return [&[], &[]];
        }
        let between = self.is_between_messages();
        if let Some(map) = self.link.map.as_ref().filter(|_| between) {
            return [&map[self.link.map_sent as usize..], &[]];
        }
        if self.link.held.is_some() {
            return [&[], &[]];
        }
        let Outgoing { bytes, queue, .. } = self.outgoing();
        // A map that waits goes after the message that is under way.
        let end = match queue.get(self.next as usize) {
            Some(current) if self.link.map.is_some() => current.end,
            _ => self.begin + bytes.len() as u64,
        };
        let (from, to) = ((self.sent - self.begin) as usize, (end - self.begin) as usize);
        let (first, second) = bytes.as_slices();
        let middle = first.len();
        [
            &first[from.min(middle)..to.min(middle)],
            &second[from.max(middle) - middle..to.max(middle) - middle],
        ]
    }

    /// So many bytes of that were given to the connection.
    pub(crate) fn wrote(&mut self, count: usize) {
        self.link.written += count as u64;
        self.counts.bytes_sent += count as u64;
        if self.link.map.is_some() && self.is_between_messages() {
            self.link.map_sent += count as u32;
            if self.link.map_sent as usize >= size_of::<MapMessage>() {
                (self.link.map, self.link.map_sent) = (None, 0);
            }
            return;
        }
        self.sent += count as u64;
        let Some(outgoing) = &mut self.outgoing else { return };
        while let Some(current) = outgoing.queue.get_mut(self.next as usize)
            && current.end <= self.sent
        {
            current.tried = true;
            current.written = self.link.written - (self.sent - current.end);
            self.next += 1;
        }
        if !self.is_between_messages()
            && let Some(outgoing) = &mut self.outgoing
            && let Some(current) = outgoing.queue.get_mut(self.next as usize)
        {
            current.tried = true;
        }
    }

    /// TCP has acknowledged so many bytes of the connection.
    pub(crate) fn acknowledged(&mut self, progress: &Progress, now: Time, freed: &mut Freed) {
        // With nothing left to send it is the sender that limits the lane, and not the network.
        self.ran_dry |= !progress.has_unsent && self.is_written();
        let Some(outgoing) = &mut self.outgoing else { return };
        outgoing.pace = Some(Pace::next(outgoing.pace, progress, now));
        let total = progress.acknowledged;
        let mut end = self.begin;
        while self.next > 0
            && let Some(first) = outgoing.queue.front()
            && first.written <= total
        {
            freed.push((first.from, (first.end - end) as usize));
            self.answers -= u16::from(first.is_answer);
            end = first.end;
            self.next -= 1;
            outgoing.queue.pop_front();
        }
        outgoing.bytes.drain(..(end - self.begin) as usize);
        self.begin = end;
        if outgoing.bytes.is_empty() && outgoing.bytes.capacity() > ROOM_KEPT {
            self.give_back_memory();
        }
    }

    /// Gives back what an idle lane does not need.
    pub(crate) fn give_back_memory(&mut self) {
        if self.is_empty() {
            self.outgoing = None;
        }
    }

    /// The connection is gone: all that it may not have carried is to be sent again.
    pub(crate) fn rewind(&mut self) {
        let begun = self.next as usize + usize::from(!self.is_between_messages());
        if let Some(outgoing) = &mut self.outgoing {
            let Outgoing { bytes, queue, pace } = &mut **outgoing;
            if let Some(pace) = pace {
                pace.of_connection = 0;
            }
            let mut start = 0;
            for queued in queue.iter_mut().take(begun) {
                bytes[start + FLAGS_AT] |= FLAG_AGAIN;
                queued.written = 0;
                queued.tried = true;
                start = (queued.end - self.begin) as usize;
                self.counts.again += 1;
            }
        }
        self.sent = self.begin;
        self.next = 0;
        self.link = Link::default();
    }

    /// The peer has started anew: what its last start may have got is not for this one.
    pub(crate) fn drop_tried(&mut self, freed: &mut Freed) {
        // What this connection has begun to carry went to the new start, and must be whole.
        let kept = self.next as usize + usize::from(!self.is_between_messages());
        let tried = self.tried();
        if tried <= kept {
            return;
        }
        let (from, to) = (self.start_of(kept), self.start_of(tried));
        let Some(outgoing) = &mut self.outgoing else { return };
        let Outgoing { bytes, queue, .. } = &mut **outgoing;
        let mut start = from;
        for queued in queue.drain(kept..tried) {
            freed.push((queued.from, (queued.end - start) as usize));
            start = queued.end;
            self.answers -= u16::from(queued.is_answer);
            self.counts.dropped += 1;
        }
        bytes.drain((from - self.begin) as usize..(to - self.begin) as usize);
        for queued in queue.range_mut(kept..) {
            queued.end -= to - from;
        }
    }

    /// Messages that a connection has seen, if only in part.
    fn tried(&self) -> usize {
        self.outgoing().queue.iter().take_while(|queued| queued.tried).count()
    }

    /// Gives all messages that no connection has seen to another lane.
    pub(crate) fn move_to(&mut self, other: &mut Lane) {
        let kept = self.tried();
        let from = self.start_of(kept);
        let Some(outgoing) = &mut self.outgoing else { return };
        let Outgoing { bytes, queue, .. } = &mut **outgoing;
        let moved: Vec<u8> = bytes.drain((from - self.begin) as usize..).collect();
        let mut rest = &moved[..];
        for queued in queue.drain(kept..) {
            let size = queued.end - from - (moved.len() - rest.len()) as u64;
            let (message, after) = rest.split_at(size as usize);
            rest = after;
            if let Some((header, body)) = message.split_first_chunk::<HEADER_BYTES>() {
                other.push(Header::parse(header), body);
            }
            self.answers -= u16::from(queued.is_answer);
            self.counts.sent -= 1;
        }
    }

    /// When it may be dialled again after a failure: at once, then after a random part of a time that
    /// doubles (rds_queue_reconnect, net/rds/threads.c).
    pub(crate) fn back_off(&mut self, random: u64) -> Duration {
        if self.back_off_us == 0 {
            self.back_off_us = BACK_OFF_MIN.as_micros() as u32;
            return Duration::ZERO;
        }
        let wait = random % u64::from(self.back_off_us);
        self.back_off_us = (self.back_off_us * 2).min(BACK_OFF_MAX.as_micros() as u32);
        Duration::from_micros(wait)
    }

    /// It is up: the next failure is a first one.
    pub(crate) fn forget_failures(&mut self) {
        self.back_off_us = 0;
        self.dial_at = None;
    }

    /// Bytes of memory, itself included.
    pub(crate) fn memory(&self) -> usize {
        let outgoing = self.outgoing.as_ref().map_or(0, |outgoing| {
            let Outgoing { bytes, queue, .. } = &**outgoing;
            size_of::<Outgoing>() + bytes.capacity() + queue.capacity() * size_of::<Queued>()
        });
        size_of::<Self>() + outgoing + self.link.assembly.memory()
    }
}

impl Pace {
    fn next(before: Option<Self>, progress: &Progress, now: Time) -> Self {
        let Progress { acknowledged, rtt, .. } = *progress;
        // Of the first one it is not known since when.
        let more = before.map_or(0, |before| acknowledged.saturating_sub(before.of_connection));
        let bytes = before.map_or(0, |before| before.bytes) + more;
        Self { bytes, of_connection: acknowledged, asked: now, rtt }
    }
}
