//! One lane: messages in the order in which they go, and the connection that carries them.
//!
//! # Model
//! ```text
//!   begin        sent (in the middle of a message, maybe)            end
//!     │ given to the connection │ not yet                             │
//!     └─ goes when TCP has acknowledged a message's last byte         └─ push()
//! ```
//! A message never changes its number, except probes ([`Lane::rewind`]). When the connection
//! breaks, `sent` goes back to `begin`: what was given to it, if only in part, is flagged as
//! possibly received before. Congestion maps are no part of the sequence: they go between two
//! messages, and a map under way is forgotten when the connection breaks.
//! ```text
//!   Down ──► Dialling ──► Up ──► Draining ──► Down       an accepted connection is Up at once;
//!    ▲          │ failed   │ broken               │       Draining: nothing more is sent, what the
//!    └──────────┴──────────┴──────────────────────┘       peer has sent is read to its end
//! ```
//! # Invariants
//! * what was given to a connection is a beginning of the queue
//! * bytes are kept until TCP has acknowledged the last one of their message
//! # Limits
//! An idle peer has eight of these: state that only a busy lane needs is boxed ([`Outgoing`]).

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use hawser_multipath::paths::spread;
use hawser_time::Time;
use serde::Serialize;

use super::assembly::Assembly;
use super::congestion::MAP_BYTES;
use super::header::{FLAG_AGAIN, FLAGS_AT, HEADER_BYTES, Header, PROBE_PORT};
use super::numbers::Numbers;

/// The first and the longest wait before a lane is dialled again (rds_sysctl_reconnect_min_jiffies
/// and _max_: a jiffy and a second).
pub const BACK_OFF_MIN: Duration = Duration::from_millis(1);
/// See [`BACK_OFF_MIN`].
pub const BACK_OFF_MAX: Duration = Duration::from_secs(1);
/// A connection that was up for so long, and brought something, counts as no failure.
pub const SOUND_AFTER: Duration = Duration::from_secs(1);
/// Pings that wait to be answered on a lane; further ones are not answered.
pub const ANSWERS_MAX: usize = 1024;
/// The same on all lanes of all peers; each lane may have [`ANSWERS_EACH`] all the same, so that pings
/// of some do not keep others' from being answered, and probes least of all.
pub const ANSWERS_ALL_MAX: usize = 64 << 10;
/// See [`ANSWERS_ALL_MAX`].
pub const ANSWERS_EACH: usize = 4;
/// A connection that has been busy for so long is as fast as it can be, whatever TCP says.
const SETTLED_AFTER: Duration = Duration::from_secs(5);
/// Memory for bytes that an empty lane keeps while it is busy.
const ROOM_KEPT: usize = 1 << 20;

/// The state of a lane's connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum State {
    /// There is none.
    #[default]
    Down,
    /// It was requested.
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
    /// The peer's generation, once it has named one by it.
    pub(crate) named: u32,
    /// Its remote port, if the peer dialled it.
    pub(crate) accepted_from: Option<u16>,
    /// A map that goes before the next message. Most lanes are sent the same, and share it.
    pub(crate) map: Option<Arc<MapMessage>>,
    map_sent: u32,
    /// A map is due.
    pub(crate) map_due: bool,
    /// Bytes that were given to it.
    written: u64,
    /// Why no message is given to it yet.
    pub(crate) held: Option<Held>,
    /// Since when it is up.
    pub(crate) up_at: Time,
    /// Something has come by it.
    pub(crate) has_spoken: bool,
    /// A message has been taken by it.
    has_taken: bool,
    /// It has carried messages before its peer named its start. Others of the peer carry none until this
    /// one has ended, or what it has carried could come after what they do.
    pub(crate) goes_first: bool,
    /// A write has been requested.
    pub(crate) asked: bool,
    /// An older connection that must be read to its end before reading of this one continues.
    pub(crate) waits_for: Option<Connection>,
    /// Its peer was probed by it for the number of lanes.
    pub(crate) was_probed: bool,
    /// A probe was given to it.
    pub(crate) has_probed: bool,
    /// Reading continues only after its peer has answered a probe by another connection.
    pub(crate) waits_for_answer: bool,
    /// The port that its next message is for, and since when that was full. Another one may fill it again
    /// each time that there is some room.
    pub(crate) waits: Option<(u16, Time)>,
    /// Nothing is read from it for now.
    pub(crate) paused: bool,
}

impl Link {
    /// Bytes that were given to its connection.
    pub(crate) fn written(&self) -> u64 {
        self.written
    }
}

/// Until when no message is given to a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Held {
    /// Until the peer has sent something, or until this moment.
    Until(Time),
    /// Until the peer has sent something, which names its start.
    UntilItSpeaks,
    /// Until connections that go first have ended ([`Link::goes_first`]).
    UntilOthersEnd,
}

/// A message in the queue.
#[derive(Clone, Copy, Debug)]
struct Queued {
    /// Where it ends among all bytes that were ever queued.
    end: u64,
    /// Where it ends among the connection's bytes, once it was given to it whole.
    written: u64,
    sent: Sent,
}

/// What is known about a queued message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Sent {
    /// The port.
    pub(crate) from: u16,
    /// It was given to a connection, if only in part.
    pub(crate) tried: bool,
    /// The binding of the port: another may have the port now.
    pub(crate) binding: Binding,
}

/// One binding of a port, until it is released. Messages of no port have the default one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Binding(pub(crate) u32);

/// What a lane has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Messages queued.
    pub sent: u64,
    /// Messages taken.
    pub received: u64,
    /// Messages that were given to a connection once more.
    #[serde(rename = "retransmitted")]
    pub again: u64,
    /// Messages that had come before, and were dropped.
    pub duplicates: u64,
    /// Messages that were dropped because the peer has restarted.
    pub dropped: u64,
    /// Connections.
    pub connections: u64,
    /// Bytes given to connections, headers included.
    pub bytes_sent: u64,
    /// Bytes that came.
    pub bytes_received: u64,
}

/// TCP's data about a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes that the peer has acknowledged since it is up.
    pub acknowledged: u64,
    /// Some wait to be sent.
    pub has_unsent: bool,
    /// The least round trip; zero if it is not known.
    pub rtt: Duration,
    /// Time in which there was something to send or under way; `None` if it is not known.
    pub busy: Option<Duration>,
    /// Of that, time in which the peer's window was full.
    pub held_by_peer: Duration,
    /// It has left slow start: it was as fast as it can be.
    pub left_slow_start: bool,
}

/// Messages that are kept until TCP has acknowledged them.
#[derive(Debug, Default)]
struct Outgoing {
    bytes: VecDeque<u8>,
    queue: VecDeque<Queued>,
    /// None for a lane that never had more to send than the network took.
    pace: Option<Box<Pace>>,
}

/// What the peer has acknowledged, for the search for lanes that share a limit.
#[derive(Clone, Copy, Debug)]
struct Pace {
    bytes: u64,
    asked: Time,
    busy: Duration,
    held_by_peer: Duration,
    /// TCP's last data about this connection.
    of_connection: Progress,
}

/// The state of a lane that was idle for long.
static NOTHING: Outgoing = Outgoing { bytes: VecDeque::new(), queue: VecDeque::new(), pace: None };

#[derive(Debug, Default)]
pub(crate) struct Lane {
    pub(crate) link: Link,
    outgoing: Option<Box<Outgoing>>,
    begin: u64,
    sent: u64,
    /// The index of the message in the queue that contains `sent`.
    next: u32,
    /// Messages in the queue that are of no port: answers to pings, and the probe.
    of_no_port: u32,
    /// TCP had nothing left to send since the search for lanes that share a limit looked last.
    ran_dry: bool,
    sequence: u64,
    /// Of the messages that have come.
    pub(crate) numbers: Numbers,
    /// The peer's generation to which the numbers and what was tried belong, as far as it said so on this
    /// lane.
    pub(crate) generation: u32,
    back_off_us: u32,
    pub(crate) dial_at: Option<Time>,
    /// Remaining dials that wait only for a quick answer.
    pub(crate) quick_dials: u8,
    pub(crate) counts: Counts,
}

/// A message that was taken off a queue, to go to another one.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) sent: Sent,
    message: Vec<u8>,
}

/// Messages that are gone from a queue, and their bytes: their ports get room.
pub(crate) type Freed = Vec<(Sent, usize)>;

/// Whether messages from here are answers to pings, or probes.
pub(crate) fn is_of_no_port(from: u16) -> bool {
    from <= PROBE_PORT
}

impl Lane {
    /// A lane whose first message has the number after this one.
    pub(crate) fn numbered_after(sequence: u64) -> Self {
        Self { sequence, ..Self::default() }
    }

    /// Queues a message of a port, or of none. Returns its number.
    pub(crate) fn push(&mut self, binding: Binding, mut header: Header, body: &[u8]) -> u64 {
        self.sequence += 1;
        header.sequence = self.sequence;
        self.of_no_port += u32::from(is_of_no_port(header.from));
        let Outgoing { bytes, queue, .. } = &mut **self.outgoing.get_or_insert_default();
        bytes.extend(&header.encode());
        bytes.extend(body);
        let end = self.begin + bytes.len() as u64;
        let sent = Sent { from: header.from, tried: false, binding };
        queue.push_back(Queued { end, written: 0, sent });
        self.counts.sent += 1;
        self.sequence
    }

    /// Answers to pings that wait, and the probe.
    pub(crate) fn of_no_port(&self) -> usize {
        self.of_no_port as usize
    }

    /// Messages of ports that are queued or not acknowledged.
    pub(crate) fn of_ports(&self) -> usize {
        self.outgoing().queue.len() - self.of_no_port()
    }

    /// Whether nothing of a port's is queued. What is not is no reason to have a connection.
    pub(crate) fn has_nothing_of_ports(&self) -> bool {
        self.of_ports() == 0
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

    /// Whether its connection has no message that may have to be sent again.
    pub(crate) fn carries_nothing(&self) -> bool {
        self.unacknowledged() == 0
    }

    /// Whether its connection has got a message, which the peer has maybe not read.
    pub(crate) fn has_carried(&self) -> bool {
        !self.carries_nothing() || self.link.has_taken
    }

    fn is_between_messages(&self) -> bool {
        self.sent == self.start_of(self.next as usize)
    }

    /// For the search for lanes that share a limit.
    pub(crate) fn look(&mut self) -> spread::Lane {
        let is_up = self.is_up();
        let held_up = !std::mem::take(&mut self.ran_dry) && is_up && !self.is_empty();
        let outgoing = self.outgoing();
        match outgoing.pace.as_deref() {
            Some(&Pace { bytes, asked, busy, held_by_peer, of_connection }) => spread::Lane {
                bytes,
                at: asked,
                is_up,
                held_up,
                busy,
                held_by_peer,
                settled: of_connection.left_slow_start
                    || of_connection.busy.is_none_or(|busy| busy >= SETTLED_AFTER),
                rtt: of_connection.rtt,
            },
            None => spread::Lane { is_up, ..spread::Lane::default() },
        }
    }

    /// Bytes that were given to the connection and are kept.
    pub(crate) fn unacknowledged(&self) -> usize {
        (self.sent - self.begin) as usize
    }

    /// Whether there is something to write.
    pub(crate) fn has_to_write(&self) -> bool {
        let link = &self.link;
        link.state == State::Up
            && (link.map_due || link.map.is_some() || (link.held.is_none() && !self.is_written()))
    }

    /// The next bytes to write, in two parts.
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

    /// The connection has taken `count` of these bytes.
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
        let (before, mut start) = (self.sent, self.start_of(self.next as usize));
        self.sent += count as u64;
        let Some(outgoing) = &mut self.outgoing else { return };
        // Counted at its beginning: a message dropped before that is not sent again.
        let is_again = |start: u64, sent: Sent| u64::from(start >= before && sent.tried);
        while let Some(current) = outgoing.queue.get_mut(self.next as usize)
            && current.end <= self.sent
        {
            self.counts.again += is_again(start, current.sent);
            start = current.end;
            current.sent.tried = true;
            self.link.has_probed |= current.sent.from == PROBE_PORT;
            current.written = self.link.written - (self.sent - current.end);
            self.next += 1;
        }
        if !self.is_between_messages()
            && let Some(outgoing) = &mut self.outgoing
            && let Some(current) = outgoing.queue.get_mut(self.next as usize)
        {
            self.counts.again += is_again(start, current.sent);
            current.sent.tried = true;
        }
    }

    /// TCP has acknowledged so many bytes of the connection.
    pub(crate) fn acknowledged(&mut self, progress: &Progress, now: Time, freed: &mut Freed) {
        // With nothing left to send it is the sender that limits the lane, and not the network.
        self.ran_dry |= !progress.has_unsent && self.is_written();
        let Some(outgoing) = &mut self.outgoing else { return };
        match &mut outgoing.pace {
            Some(pace) => **pace = Pace::next(Some(**pace), progress, now),
            None if progress.has_unsent => {
                outgoing.pace = Some(Box::new(Pace::next(None, progress, now)));
            }
            None => {}
        }
        let total = progress.acknowledged;
        let mut end = self.begin;
        while self.next > 0
            && let Some(first) = outgoing.queue.front()
            && first.written <= total
        {
            freed.push((first.sent, (first.end - end) as usize));
            self.link.has_taken = true;
            self.of_no_port -= u32::from(is_of_no_port(first.sent.from));
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

    /// The connection is gone: all that it may not have carried must be sent again.
    pub(crate) fn rewind(&mut self) {
        self.take_back();
        self.link = Link::default();
        self.drop_tried_probes();
    }

    /// Nothing more goes by the connection, not even the rest of a message: all that it may not
    /// have carried must be sent again, or dropped.
    pub(crate) fn take_back(&mut self) {
        let begun = self.begun();
        if let Some(outgoing) = &mut self.outgoing {
            let Outgoing { bytes, queue, pace } = &mut **outgoing;
            if let Some(pace) = pace {
                pace.of_connection = Progress { busy: Some(Duration::ZERO), ..Progress::default() };
            }
            let mut start = 0;
            for queued in queue.iter_mut().take(begun) {
                bytes[start + FLAGS_AT] |= FLAG_AGAIN;
                queued.written = 0;
                queued.sent.tried = true;
                start = (queued.end - self.begin) as usize;
            }
        }
        self.sent = self.begin;
        self.next = 0;
    }

    /// A probe that is still wanted is sent as a new message, never resent with the flag. A kernel
    /// that knew the last start of this host compares flagged numbers with that one's, and learns
    /// of this start by the probe. Without the flag, a low number would make it take again what
    /// follows.
    fn drop_tried_probes(&mut self) {
        let is_one = |sent: Sent| sent.tried && sent.from == PROBE_PORT;
        if self.outgoing().queue.iter().any(|queued| is_one(queued.sent)) {
            self.drop_queued(&mut Freed::new(), is_one);
        }
    }

    /// The peer proves to be another one than assumed, which may have got what its connection has
    /// carried.
    pub(crate) fn stop_if_it_has_carried(&mut self) {
        if self.has_carried() {
            self.take_back();
            self.link.goes_first = true;
        }
    }

    /// Whether a probe is queued that no connection was given yet.
    pub(crate) fn has_probe(&self) -> bool {
        self.has_untried(|sent| sent.from == PROBE_PORT)
    }

    /// The peer has restarted: messages that may have reached its last start are not for this one.
    pub(crate) fn drop_tried(&mut self, freed: &mut Freed) {
        let before = freed.len();
        let mut is_tried = true;
        self.drop_queued(freed, |sent| {
            is_tried &= sent.tried;
            is_tried
        });
        self.counts.dropped += (freed.len() - before) as u64;
    }

    /// Messages that its connection has begun to carry.
    fn begun(&self) -> usize {
        self.next as usize + usize::from(!self.is_between_messages())
    }

    /// Drops at most `count` messages of a port. The search starts at the end, so that a port that
    /// has sent little, and recently, need not search through what others have queued.
    pub(crate) fn drop_of_port(&mut self, binding: Binding, mut count: usize, freed: &mut Freed) {
        let begun = self.begun();
        let mut first = self.outgoing().queue.len();
        for (at, queued) in self.outgoing().queue.iter().enumerate().rev() {
            if count == 0 || at < begun {
                break;
            }
            if queued.sent.binding == binding {
                (first, count) = (at, count - 1);
            }
        }
        self.drop_after(first, freed, |sent| sent.binding == binding);
    }

    /// Drops messages. What this connection has begun to carry must be whole, and stays.
    pub(crate) fn drop_queued(&mut self, freed: &mut Freed, is_dropped: impl FnMut(Sent) -> bool) {
        self.drop_after(self.begun(), freed, is_dropped);
    }

    fn drop_after(
        &mut self,
        kept: usize,
        freed: &mut Freed,
        mut is_dropped: impl FnMut(Sent) -> bool,
    ) {
        let (from, begin) = (self.start_of(kept), self.begin);
        let Some(outgoing) = &mut self.outgoing else { return };
        let Outgoing { bytes, queue, .. } = &mut **outgoing;
        let (mut start, mut end) = (from, from);
        let dropped_before = freed.len();
        for at in kept..queue.len() {
            let mut queued = queue[at];
            let (place, size) = (start, queued.end - start);
            start = queued.end;
            if is_dropped(queued.sent) {
                freed.push((queued.sent, size as usize));
                self.of_no_port -= u32::from(is_of_no_port(queued.sent.from));
                continue;
            }
            if freed.len() > dropped_before {
                for byte in 0..size {
                    bytes[(end - begin + byte) as usize] = bytes[(place - begin + byte) as usize];
                }
            }
            end += size;
            queued.end = end;
            queue[at - (freed.len() - dropped_before)] = queued;
        }
        queue.truncate(queue.len() - (freed.len() - dropped_before));
        bytes.truncate((end - begin) as usize);
    }

    /// Messages that a connection has seen, if only in part.
    fn tried(&self) -> usize {
        self.outgoing().queue.iter().take_while(|queued| queued.sent.tried).count()
    }

    /// Whether there is one among those that no connection has seen.
    pub(crate) fn has_untried(&self, is: impl Fn(Sent) -> bool) -> bool {
        self.outgoing().queue.range(self.tried()..).any(|queued| is(queued.sent))
    }

    /// Takes all messages that no connection has seen, the oldest first.
    pub(crate) fn take_untried(&mut self) -> Vec<Taken> {
        self.take_after(self.tried())
    }

    /// Gives all messages of a lane without a connection to another one.
    pub(crate) fn move_all_to(&mut self, other: &mut Lane) {
        debug_assert_eq!(self.sent, self.begin, "a connection has some of them");
        self.take_after(0).into_iter().for_each(|taken| other.put(taken));
    }

    fn take_after(&mut self, kept: usize) -> Vec<Taken> {
        let from = self.start_of(kept);
        let Some(outgoing) = &mut self.outgoing else { return Vec::new() };
        let Outgoing { bytes, queue, .. } = &mut **outgoing;
        let mut start = from;
        let mut all = Vec::with_capacity(queue.len() - kept);
        for Queued { end, sent, .. } in queue.drain(kept..) {
            let place = (start - self.begin) as usize..(end - self.begin) as usize;
            all.push(Taken { sent, message: bytes.range(place).copied().collect() });
            start = end;
            self.of_no_port -= u32::from(is_of_no_port(sent.from));
            self.counts.sent -= 1;
        }
        bytes.truncate((from - self.begin) as usize);
        all
    }

    /// Queues a message that had a number of another lane.
    pub(crate) fn put(&mut self, taken: Taken) {
        let Taken { sent, message } = taken;
        let Some((header, body)) = message.split_first_chunk::<HEADER_BYTES>() else { return };
        let mut header = Header::parse(header);
        header.flags &= !FLAG_AGAIN;
        self.push(sent.binding, header, body);
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

    /// Whether its connection carries messages, or did until just now: it was up for [`SOUND_AFTER`], and
    /// the peer has said or taken something. A peer that accepts and closes repeatedly is dialled
    /// with growing pauses.
    pub(crate) fn is_sound(&self, now: Time) -> bool {
        // (A kernel sends nothing on a lane on which it only receives.)
        let carries = self.link.has_spoken || self.link.has_taken;
        carries && now.since(self.link.up_at) >= SOUND_AFTER
    }

    /// The next failure is a first one.
    pub(crate) fn forget_failures(&mut self) {
        self.back_off_us = 0;
    }

    /// Whether it was dialled without success many times.
    pub(crate) fn fails_again_and_again(&self) -> bool {
        self.back_off_us >= (BACK_OFF_MAX / 4).as_micros() as u32
    }

    /// Bytes of memory, itself included.
    pub(crate) fn memory(&self) -> usize {
        let outgoing = self.outgoing.as_ref().map_or(0, |outgoing| {
            let Outgoing { bytes, queue, pace } = &**outgoing;
            let pace = if pace.is_some() { size_of::<Pace>() } else { 0 };
            size_of::<Outgoing>() + pace + bytes.capacity() + queue.capacity() * size_of::<Queued>()
        });
        size_of::<Self>() + outgoing + self.link.assembly.memory()
    }
}

impl Pace {
    fn next(before: Option<Self>, progress: &Progress, now: Time) -> Self {
        let Some(before) = before else {
            // Of the first one it is not known since when.
            let none = Duration::ZERO;
            let of_connection = *progress;
            return Self { bytes: 0, asked: now, busy: none, held_by_peer: none, of_connection };
        };
        let last = &before.of_connection;
        let busy = match progress.busy {
            Some(busy) => busy.saturating_sub(last.busy.unwrap_or_default()),
            None => now.since(before.asked),
        };
        Self {
            bytes: before.bytes + progress.acknowledged.saturating_sub(last.acknowledged),
            asked: now,
            busy: before.busy + busy,
            held_by_peer: before.held_by_peer
                + progress.held_by_peer.saturating_sub(last.held_by_peer),
            of_connection: *progress,
        }
    }
}
