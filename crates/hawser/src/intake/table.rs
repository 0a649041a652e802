//! A loop's table of connections, and the handling of completions.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use hawser_core::engine::Token;
use hawser_core::ids::{LoopId, Slot};
use hawser_sys::epoll::Event;
use hawser_sys::eventfd::EventFd;
use hawser_sys::ring::{BUFFERS, Completion, Ring, Waited};

use super::{Crossing, Place};

/// Bytes that an unread connection may keep before its receiving stops.
pub const KEPT_BYTES_MAX: usize = 16 * 1024;
/// Calls within which a cancelled request must have completed. One suffices, unless there are more
/// completions than the kernel handles in one call.
const CANCEL_CALLS_MAX: u32 = 256;
/// Ends a chain.
const NONE: u16 = u16::MAX;

/// The intake's requests to a ring.
pub(super) trait Requests {
    /// See [`Ring::receive`].
    fn receive(&mut self, socket: BorrowedFd<'_>, data: u64);
    /// See [`Ring::poll_readable`].
    fn poll_readable(&mut self, fd: &EventFd, data: u64);
    /// See [`Ring::poll`].
    fn poll(&mut self, socket: RawFd, waited: Waited, data: u64);
    /// See [`Ring::cancel`].
    fn cancel(&mut self, data: u64);
    /// See [`Ring::submit_and_wait`].
    fn submit_and_wait(&mut self, timeout: Duration) -> io::Result<()>;
    /// See [`Ring::take`].
    fn take(&mut self, into: &mut Vec<Completion>);
    /// See [`Ring::bytes`].
    fn bytes(&self, buffer: u16, count: usize) -> &[u8];
    /// See [`Ring::give_back`].
    fn give_back(&mut self, buffer: u16);
}

impl Requests for Ring {
    fn receive(&mut self, socket: BorrowedFd<'_>, data: u64) {
        Self::receive(self, socket, data);
    }
    fn poll_readable(&mut self, fd: &EventFd, data: u64) {
        Self::poll_readable(self, fd, data);
    }
    fn poll(&mut self, socket: RawFd, waited: Waited, data: u64) {
        Self::poll(self, socket, waited, data);
    }
    fn cancel(&mut self, data: u64) {
        Self::cancel(self, data);
    }
    fn submit_and_wait(&mut self, timeout: Duration) -> io::Result<()> {
        Self::submit_and_wait(self, timeout)
    }
    fn take(&mut self, into: &mut Vec<Completion>) {
        Self::take(self, into);
    }
    fn bytes(&self, buffer: u16, count: usize) -> &[u8] {
        Self::bytes(self, buffer, count)
    }
    fn give_back(&mut self, buffer: u16) {
        Self::give_back(self, buffer);
    }
}

/// How a connection has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// The other side has closed its sending half.
    Closed,
    /// It is broken: the error's number.
    Broken(i32),
}

impl Ended {
    /// From the error of a read.
    pub(super) fn of(error: &io::Error) -> Self {
        // EIO: it had no number, which recv(2) does not do.
        Self::Broken(error.raw_os_error().unwrap_or(5))
    }

    pub(super) fn into_result(self) -> io::Result<usize> {
        match self {
            Self::Closed => Ok(0),
            Self::Broken(number) => Err(io::Error::from_raw_os_error(number)),
        }
    }
}

/// Received bytes of a connection that are not read.
#[derive(Default, PartialEq, Eq, Debug)]
pub struct Received {
    bytes: Vec<u8>,
    ended: Option<Ended>,
}

impl Received {
    /// Whether the connection cannot be read any more.
    pub(super) fn is_broken(&self) -> bool {
        matches!(self.ended, Some(Ended::Broken(_)))
    }

    /// Whether there is nothing, not even an end.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.ended.is_none()
    }
}

/// What reads a connection's socket.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Receiving {
    /// The place is free.
    Free,
    /// Only the engine.
    Off,
    /// The ring.
    On,
    /// The ring, until it completes the request, which has been cancelled.
    Stopping,
    /// The ring of another loop, until that sends [`super::Crossing::Arrived`].
    Arriving,
}

/// Events of a connection that the engine does not know yet, and open requests.
mod flag {
    pub(super) const READABLE: u8 = 1;
    pub(super) const WRITABLE: u8 = 2;
    pub(super) const HANGUP: u8 = 4;
    pub(super) const BROKEN: u8 = 8;
    pub(super) const EVENT: u8 = READABLE | WRITABLE | HANGUP | BROKEN;
    /// It is among those that have events.
    pub(super) const QUEUED: u8 = 16;
    /// The ring will report room.
    pub(super) const ROOM: u8 = 32;
    /// The ring will report when the other side closes.
    pub(super) const CLOSING: u8 = 64;
}

/// A connection.
#[derive(Debug)]
pub(super) struct Entry {
    generation: u32,
    fd: RawFd,
    /// Bytes that were copied out of buffers.
    #[expect(
        clippy::box_collection,
        reason = "one word of each connection, of which few keep any"
    )]
    kept: Option<Box<Vec<u8>>>,
    ended: Option<Ended>,
    /// Received buffers, in order; they follow `kept`.
    first: u16,
    last: u16,
    /// Bytes of the first that the engine has.
    read: u16,
    receiving: Receiving,
    flags: u8,
}

impl Entry {
    const FREE: Self = Self {
        generation: 0,
        fd: -1,
        kept: None,
        ended: None,
        first: NONE,
        last: NONE,
        read: 0,
        receiving: Receiving::Free,
        flags: 0,
    };
}

/// The result of a read.
#[derive(PartialEq, Eq, Debug)]
pub(super) enum Taken {
    /// So many bytes; there may be more.
    Bytes(usize),
    /// Nothing now.
    Nothing,
    /// So many bytes, and the rest is to be read from the socket.
    Direct(usize),
    /// The end.
    Ended(Ended),
}

/// Kinds of requests, in the bits of `data` that generations leave.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Receive,
    Room,
    Closing,
}

const BACKEND_BIT: u64 = 1 << 63;
const KIND_SHIFT: u32 = 60;
/// Generations are compared in as many bits as a request carries.
const GENERATION_MASK: u32 = 0x0fff_ffff;
/// The data of the poll of the loop's eventfd.
const WAKE: u64 = 7 << KIND_SHIFT;

fn data_of(token: Token, kind: Kind) -> u64 {
    let (slot, backend) = match token {
        Token::Client(slot) => (slot, 0),
        Token::Backend(slot) => (slot, BACKEND_BIT),
    };
    let kind = match kind {
        Kind::Receive => 0,
        Kind::Room => 1,
        Kind::Closing => 2,
    };
    backend
        | kind << KIND_SHIFT
        | u64::from(slot.generation & GENERATION_MASK) << 32
        | u64::from(slot.index)
}

fn parse(data: u64) -> Option<(Token, Kind)> {
    let kind = match data >> KIND_SHIFT & 7 {
        0 => Kind::Receive,
        1 => Kind::Room,
        2 => Kind::Closing,
        _ => return None,
    };
    let slot = Slot { index: data as u32, generation: (data >> 32) as u32 & GENERATION_MASK };
    let token = if data & BACKEND_BIT == 0 { Token::Client(slot) } else { Token::Backend(slot) };
    Some((token, kind))
}

/// What a connection's end means for the engine.
fn flags_of(ended: Option<Ended>) -> u8 {
    match ended {
        None => 0,
        Some(Ended::Closed) => flag::HANGUP,
        Some(Ended::Broken(_)) => flag::HANGUP | flag::BROKEN | flag::WRITABLE,
    }
}

fn slot_of(token: Token) -> Slot {
    match token {
        Token::Client(slot) | Token::Backend(slot) => slot,
    }
}

/// Where a connection that comes from another loop is going.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Passage {
    /// To this place here.
    Here(Token),
    /// Another loop has taken it before it arrived here, for this passage of its own.
    Onward(LoopId, u32),
}

/// The intake of a loop's ring.
pub(super) struct Intake<R> {
    id: LoopId,
    ring: R,
    clients: Vec<Entry>,
    backends: Vec<Entry>,
    /// For each buffer, the next of its chain, and its bytes.
    next: Box<[u16]>,
    filled: Box<[u16]>,
    /// Connections with events, in order.
    queue: VecDeque<Token>,
    completions: Vec<Completion>,
    /// Connections that come from other loops.
    passages: Vec<(u32, Passage)>,
    next_passage: u32,
    wake_ended: bool,
    dry: u64,
}

impl<R: Requests> Intake<R> {
    pub(super) fn new(id: LoopId, ring: R) -> Self {
        Self {
            id,
            ring,
            clients: Vec::new(),
            backends: Vec::new(),
            next: vec![NONE; usize::from(BUFFERS)].into(),
            filled: vec![0; usize::from(BUFFERS)].into(),
            queue: VecDeque::new(),
            completions: Vec::new(),
            passages: Vec::new(),
            next_passage: 0,
            wake_ended: false,
            dry: 0,
        }
    }

    pub(super) fn id(&self) -> LoopId {
        self.id
    }

    pub(super) fn dry(&self) -> u64 {
        self.dry
    }

    /// The connection of this token, whose generation may be cut to 16 bits or more.
    #[inline]
    fn entry(&mut self, token: Token, mask: u32) -> Option<&mut Entry> {
        let slot = slot_of(token);
        let table = match token {
            Token::Client(_) => &mut self.clients,
            Token::Backend(_) => &mut self.backends,
        };
        let entry = table.get_mut(slot.index as usize)?;
        let is_it =
            entry.receiving != Receiving::Free && (entry.generation ^ slot.generation) & mask == 0;
        is_it.then_some(entry)
    }

    /// The full token of a place, if it is in use.
    fn token_at(&mut self, place: Place) -> Option<Token> {
        let generation = self.entry(place.token, 0xffff)?.generation;
        let index = slot_of(place.token).index;
        let slot = Slot { index, generation };
        Some(match place.token {
            Token::Client(_) => Token::Client(slot),
            Token::Backend(_) => Token::Backend(slot),
        })
    }

    /// Gives a connection a place. Another thread has dropped the former one there.
    fn enter(&mut self, fd: BorrowedFd<'_>, token: Token, receiving: Receiving) -> Place {
        let slot = slot_of(token);
        let index = slot.index as usize;
        let table = match token {
            Token::Client(_) => &mut self.clients,
            Token::Backend(_) => &mut self.backends,
        };
        if table.len() <= index {
            table.resize_with(index + 1, || Entry::FREE);
        }
        let before = std::mem::replace(
            &mut table[index],
            Entry { generation: slot.generation, fd: fd.as_raw_fd(), receiving, ..Entry::FREE },
        );
        self.give_back_from(before.first);
        Place { home: self.id, token }
    }

    pub(super) fn watch(&mut self, fd: BorrowedFd<'_>, token: Token) -> Place {
        self.ring.receive(fd, data_of(token, Kind::Receive));
        self.enter(fd, token, Receiving::On)
    }

    /// The same for one that comes from another loop, with what that had received.
    pub(super) fn watch_with(
        &mut self,
        fd: BorrowedFd<'_>,
        token: Token,
        received: Received,
    ) -> Place {
        let place = self.enter(fd, token, Receiving::Off);
        self.put(token, received);
        place
    }

    /// The number of a connection's way here.
    pub(super) fn passage(&mut self) -> u32 {
        self.next_passage = self.next_passage.wrapping_add(1);
        self.next_passage
    }

    /// Gives a place to a connection whose home has been asked to let go of it.
    pub(super) fn expect(&mut self, fd: BorrowedFd<'_>, token: Token, passage: u32) -> Place {
        self.passages.push((passage, Passage::Here(token)));
        self.enter(fd, token, Receiving::Arriving)
    }

    /// Its home has released a connection. Returns the message for a further loop.
    pub(super) fn arrived(
        &mut self,
        passage: u32,
        received: Received,
    ) -> Option<(LoopId, Crossing)> {
        // If there is none, it has been closed on its way.
        let at = self.passages.iter().position(|(number, _)| *number == passage)?;
        match self.passages.swap_remove(at).1 {
            Passage::Onward(to, passage) => Some((to, Crossing::Arrived { passage, received })),
            Passage::Here(token) => {
                let entry = self.entry(token, u32::MAX);
                if entry.is_some_and(|entry| entry.receiving == Receiving::Arriving) {
                    self.put(token, received);
                }
                None
            }
        }
    }

    /// Releases a connection for another loop. Returns the message for that; none as long as it has
    /// not arrived here: another ring still reads it.
    pub(super) fn release(
        &mut self,
        place: Place,
        to: LoopId,
        passage: u32,
    ) -> Option<(LoopId, Crossing)> {
        if let Some(token) = self.token_at(place)
            && let Some((_, way)) =
                self.passages.iter_mut().find(|(_, way)| *way == Passage::Here(token))
        {
            *way = Passage::Onward(to, passage);
            self.free(token);
            return None;
        }
        let received = self.detach(place);
        Some((to, Crossing::Arrived { passage, received }))
    }

    /// Adds what was received for it elsewhere, and the engine reads on.
    fn put(&mut self, token: Token, received: Received) {
        let Some(entry) = self.entry(token, u32::MAX) else { return };
        entry.receiving = Receiving::Off;
        if !received.bytes.is_empty() {
            entry.kept = Some(Box::new(received.bytes));
        }
        entry.ended = received.ended;
        let flags = flag::READABLE | flags_of(received.ended);
        self.note(token, flags);
    }

    /// Ends a connection's receiving; gives what the engine has not read. The place is free.
    pub(super) fn detach(&mut self, place: Place) -> Received {
        let Some(token) = self.token_at(place) else { return Received::default() };
        let data = data_of(token, Kind::Receive);
        let receives = |receiving| matches!(receiving, Receiving::On | Receiving::Stopping);
        let mut calls = 0;
        if self.entry(token, u32::MAX).is_some_and(|entry| entry.receiving == Receiving::On) {
            self.ring.cancel(data);
        }
        while self.entry(token, u32::MAX).is_some_and(|entry| receives(entry.receiving)) {
            calls += 1;
            if calls > CANCEL_CALLS_MAX || self.ring.submit_and_wait(Duration::ZERO).is_err() {
                // Two rings must not read one socket: the connection is lost.
                if let Some(entry) = self.entry(token, u32::MAX) {
                    entry.ended = Some(Ended::Broken(5));
                }
                break;
            }
            self.collect();
        }
        self.keep_chain(token);
        let Some(entry) = self.entry(token, u32::MAX) else { return Received::default() };
        if entry.receiving == Receiving::Arriving {
            // Another ring still reads it, and what that receives would have no way to the next
            // owner.
            entry.ended = Some(Ended::Broken(5));
        }
        let bytes = entry.kept.take().map_or_else(Vec::new, |kept| *kept);
        let received = Received { bytes, ended: entry.ended };
        self.free(token);
        received
    }

    /// A connection is closed.
    pub(super) fn forget(&mut self, place: Place) {
        if place.home == self.id
            && let Some(token) = self.token_at(place)
        {
            self.free(token);
        }
    }

    fn free(&mut self, token: Token) {
        let Some(entry) = self.entry(token, u32::MAX) else { return };
        let entry = std::mem::replace(entry, Entry::FREE);
        self.give_back_from(entry.first);
        // They would keep the descriptor's file open.
        for (flag, kind) in [(flag::ROOM, Kind::Room), (flag::CLOSING, Kind::Closing)] {
            if entry.flags & flag != 0 {
                self.ring.cancel(data_of(token, kind));
            }
        }
        if entry.receiving == Receiving::Arriving {
            self.passages.retain(|(_, way)| *way != Passage::Here(token));
        }
    }

    fn give_back_from(&mut self, first: u16) {
        let mut buffer = first;
        while buffer != NONE {
            let next = self.next[usize::from(buffer)];
            self.ring.give_back(buffer);
            buffer = next;
        }
    }

    /// Waits for events, unless there are some.
    pub(super) fn wait(&mut self, timeout: Duration, wake: &EventFd) -> io::Result<()> {
        if std::mem::take(&mut self.wake_ended) {
            self.watch_wake(wake);
        }
        let timeout = if self.queue.is_empty() { timeout } else { Duration::ZERO };
        self.ring.submit_and_wait(timeout)?;
        self.collect();
        Ok(())
    }

    /// The loop's eventfd ends waits from now on.
    pub(super) fn watch_wake(&mut self, wake: &EventFd) {
        self.ring.poll_readable(wake, WAKE);
    }

    /// Takes completions, and records their meaning.
    pub(super) fn collect(&mut self) {
        let mut completions = std::mem::take(&mut self.completions);
        self.ring.take(&mut completions);
        for completion in completions.drain(..) {
            self.completed(completion);
        }
        self.completions = completions;
    }

    fn completed(&mut self, completion: Completion) {
        if completion.data == WAKE {
            self.wake_ended |= !completion.more;
            return;
        }
        let known = parse(completion.data).and_then(|(token, kind)| {
            let generation = self.entry(token, GENERATION_MASK)?.generation;
            let slot = Slot { index: slot_of(token).index, generation };
            Some(match token {
                Token::Client(_) => (Token::Client(slot), kind),
                Token::Backend(_) => (Token::Backend(slot), kind),
            })
        });
        match known {
            Some((token, Kind::Receive)) => self.received(token, completion),
            Some((token, kind)) => self.polled(token, kind, completion),
            // Of a connection that is closed.
            None => {
                if let Some(buffer) = completion.buffer {
                    self.ring.give_back(buffer);
                }
            }
        }
    }

    fn received(&mut self, token: Token, completion: Completion) {
        let result = completion.result;
        match completion.buffer {
            Some(buffer) if result > 0 => self.append(token, buffer, result),
            Some(buffer) => self.ring.give_back(buffer),
            None => {}
        }
        self.dry += u64::from(completion.is_dry());
        let Some(entry) = self.entry(token, u32::MAX) else { return };
        if !completion.more {
            entry.receiving = Receiving::Off;
        }
        if result == 0 {
            entry.ended = Some(Ended::Closed);
        } else if let Some(number) = completion.failure() {
            entry.ended = Some(Ended::Broken(number));
        }
        // Otherwise the engine reads on, and so turns receiving On.
        let flags = flag::READABLE | flags_of(entry.ended);
        self.note(token, flags);
    }

    fn append(&mut self, token: Token, buffer: u16, count: i32) {
        self.next[usize::from(buffer)] = NONE;
        // Buffers have 4 KiB.
        self.filled[usize::from(buffer)] = u16::try_from(count).unwrap_or(0);
        let Some(entry) = self.entry(token, u32::MAX) else { return };
        let last = std::mem::replace(&mut entry.last, buffer);
        if entry.first == NONE {
            (entry.first, entry.read) = (buffer, 0);
        } else {
            self.next[usize::from(last)] = buffer;
        }
    }

    fn polled(&mut self, token: Token, kind: Kind, completion: Completion) {
        let Some(entry) = self.entry(token, u32::MAX) else { return };
        entry.flags &= !if kind == Kind::Room { flag::ROOM } else { flag::CLOSING };
        if completion.result < 0 {
            return;
        }
        let flags = match (kind, completion.says_broken()) {
            (_, true) => flag::EVENT,
            (Kind::Room, false) => flag::WRITABLE,
            (_, false) => flag::HANGUP | flag::READABLE,
        };
        self.note(token, flags);
    }

    fn note(&mut self, token: Token, flags: u8) {
        let Some(entry) = self.entry(token, u32::MAX) else { return };
        entry.flags |= flags;
        if entry.flags & flag::QUEUED == 0 {
            entry.flags |= flag::QUEUED;
            self.queue.push_back(token);
        }
    }

    /// The next event for the engine.
    pub(super) fn next(&mut self) -> Option<Event> {
        loop {
            let token = self.queue.pop_front()?;
            let Some(entry) = self.entry(token, u32::MAX) else { continue };
            let flags = entry.flags;
            entry.flags &= !(flag::EVENT | flag::QUEUED);
            return Some(Event {
                data: token.to_bits(),
                readable: flags & flag::READABLE != 0,
                writable: flags & flag::WRITABLE != 0,
                hangup: flags & flag::HANGUP != 0,
                broken: flags & flag::BROKEN != 0,
            });
        }
    }

    /// The engine has handled an event of this connection: the bytes that it has left are copied,
    /// and if there are many, receiving stops.
    #[inline]
    pub(super) fn settle(&mut self, token: Token) {
        if self.entry(token, u32::MAX).is_some_and(|entry| entry.first != NONE) {
            self.keep_chain(token);
            self.bound(token);
        }
    }

    #[cold]
    fn bound(&mut self, token: Token) {
        let Some(entry) = self.entry(token, u32::MAX) else { return };
        let kept = entry.kept.as_ref().map_or(0, |kept| kept.len());
        if kept <= KEPT_BYTES_MAX || entry.receiving != Receiving::On {
            return;
        }
        entry.receiving = Receiving::Stopping;
        let (fd, asked) = (entry.fd, entry.flags & flag::CLOSING != 0);
        entry.flags |= flag::CLOSING;
        self.ring.cancel(data_of(token, Kind::Receive));
        if !asked {
            // The end of a waiting client is still noticed.
            self.ring.poll(fd, Waited::Hangup, data_of(token, Kind::Closing));
        }
    }

    fn keep_chain(&mut self, token: Token) {
        let Some(entry) = self.entry(token, u32::MAX) else { return };
        let (mut buffer, mut read) = (entry.first, usize::from(entry.read));
        if buffer == NONE {
            return;
        }
        (entry.first, entry.last, entry.read) = (NONE, NONE, 0);
        let mut kept = entry.kept.take().unwrap_or_default();
        while buffer != NONE {
            let filled = usize::from(self.filled[usize::from(buffer)]);
            kept.extend_from_slice(&self.ring.bytes(buffer, filled)[read..]);
            let next = self.next[usize::from(buffer)];
            self.ring.give_back(buffer);
            (buffer, read) = (next, 0);
        }
        if let Some(entry) = self.entry(token, u32::MAX) {
            entry.kept = Some(kept);
        }
    }

    /// Gives the engine what was received.
    #[inline]
    pub(super) fn take(&mut self, place: Place, buf: &mut [u8]) -> Taken {
        let Some(entry) = self.entry(place.token, 0xffff) else { return Taken::Nothing };
        let mut filled = 0;
        if let Some(kept) = &mut entry.kept {
            filled = kept.len().min(buf.len());
            buf[..filled].copy_from_slice(&kept[..filled]);
            if filled == kept.len() {
                entry.kept = None;
            } else {
                kept.drain(..filled);
                return Taken::Bytes(filled);
            }
        }
        let (mut buffer, mut read) = (entry.first, usize::from(entry.read));
        while buffer != NONE && filled < buf.len() {
            let bytes = self.ring.bytes(buffer, usize::from(self.filled[usize::from(buffer)]));
            let count = (bytes.len() - read).min(buf.len() - filled);
            buf[filled..filled + count].copy_from_slice(&bytes[read..read + count]);
            (filled, read) = (filled + count, read + count);
            if read == bytes.len() {
                let next = self.next[usize::from(buffer)];
                self.ring.give_back(buffer);
                (buffer, read) = (next, 0);
            }
        }
        let Some(entry) = self.entry(place.token, 0xffff) else { return Taken::Nothing };
        // Below 4 KiB.
        (entry.first, entry.read) = (buffer, read as u16);
        if buffer != NONE {
            return Taken::Bytes(filled);
        }
        entry.last = NONE;
        match (entry.ended, entry.receiving) {
            (Some(ended), _) if filled == 0 => Taken::Ended(ended),
            (None, Receiving::Off) if filled < buf.len() => Taken::Direct(filled),
            _ if filled == 0 => Taken::Nothing,
            _ => Taken::Bytes(filled),
        }
    }

    /// The most that is kept of one connection.
    #[cfg(test)]
    pub(super) fn kept_max(&self) -> usize {
        let all = self.clients.iter().chain(&self.backends);
        all.filter_map(|entry| Some(entry.kept.as_ref()?.len())).max().unwrap_or(0)
    }

    /// The engine has found the socket empty.
    pub(super) fn receive(&mut self, place: Place, fd: BorrowedFd<'_>) {
        let Some(token) = self.token_at(place) else { return };
        let Some(entry) = self.entry(token, u32::MAX) else { return };
        if entry.receiving == Receiving::Off && entry.ended.is_none() {
            entry.receiving = Receiving::On;
            self.ring.receive(fd, data_of(token, Kind::Receive));
        }
    }

    /// The engine's own read has found the end, after bytes.
    pub(super) fn note_end(&mut self, place: Place, ended: Ended) {
        let Some(token) = self.token_at(place) else { return };
        if let Some(entry) = self.entry(token, u32::MAX) {
            entry.ended = Some(ended);
        }
        self.note(token, flag::READABLE | flags_of(Some(ended)));
    }

    /// The socket has not taken all.
    pub(super) fn await_room(&mut self, place: Place) {
        let Some(token) = self.token_at(place) else { return };
        let Some(entry) = self.entry(token, u32::MAX) else { return };
        if entry.flags & flag::ROOM == 0 {
            entry.flags |= flag::ROOM;
            let fd = entry.fd;
            self.ring.poll(fd, Waited::Room, data_of(token, Kind::Room));
        }
    }
}
