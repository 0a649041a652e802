//! Byte pipes in virtual time, with the manners of non-blocking stream sockets under epoll.
//!
//! # Model
//! A connection is two pipes. What is written leaves in chunks of random size, each of which
//! arrives after a random delay, in order. [`SimSocket`] reads and writes as a non-blocking
//! socket does; each loop ("owner") takes edge-triggered [`Event`]s for its tokens.
//!
//! # Invariants
//! - bytes out are bytes in: none lost, doubled or reordered within a pipe
//! - a pipe holds at most its capacity, on the way and arrived together
//! - a read gives all that has arrived, up to its buffer: a short read means the pipe is empty,
//!   which is what Linux promises for streams (epoll(7)) and loops may rely on
//! - an edge is given for every arrival, and for space only after a write was refused
//! - the same seed and the same calls give the same bytes at the same times
//!
//! # Why not     threads and real sockets in a name space: neither can be repeated
//! # Limits      no urgent data; a delay is drawn for each chunk, bandwidth is not modelled

pub mod mailbox;
mod pipe;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use self::pipe::Pipe;
use crate::rng::Rng;

/// Whose events these are: one event loop, or one simulated peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(pub usize);

/// A socket's name within its owner's loop, as in `epoll_event.data`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// An event of a socket for a loop; edges that were not yet taken are merged, as epoll does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Event {
    /// Which socket.
    pub token: Token,
    /// There is something to read: bytes, their end, or an error (EPOLLIN).
    pub readable: bool,
    /// There is space again (EPOLLOUT).
    pub writable: bool,
    /// The peer will send no more, or the connection is broken (EPOLLRDHUP, EPOLLHUP, EPOLLERR).
    pub hangup: bool,
}

/// How the network behaves.
#[derive(Debug, Clone)]
pub struct NetConfig {
    /// Bytes that a pipe holds, drawn for each between these.
    pub capacity_bytes: (u64, u64),
    /// Longest piece that travels by itself; pieces are drawn from 1 up to it.
    pub chunk_bytes_max: u64,
    /// Delay of a piece, drawn between these.
    pub delay: (Duration, Duration),
}

impl Default for NetConfig {
    fn default() -> Self {
        Self {
            capacity_bytes: (256, 16 << 10),
            chunk_bytes_max: 4096,
            delay: (Duration::from_micros(1), Duration::from_micros(200)),
        }
    }
}

#[derive(Debug)]
struct End {
    registered: Option<(Owner, Token)>,
    /// A write was refused: an edge is due when there is space.
    wants_space: bool,
    open: bool,
}

#[derive(Debug)]
struct Connection {
    ends: [End; 2],
    /// `pipes[n]` carries what end `n` writes.
    pipes: [Pipe; 2],
    /// The arrival of each pipe's next piece, as [`State::arrivals`] has it.
    noted: [Option<Duration>; 2],
}

#[derive(Debug)]
struct State {
    config: NetConfig,
    rng: Rng,
    now: Duration,
    connections: BTreeMap<usize, Connection>,
    next_connection: usize,
    /// When something arrives, and in which pipe (connection and writing end). An entry may be out
    /// of date: its pipe tells.
    arrivals: BinaryHeap<Reverse<(Duration, usize, usize)>>,
    events: BTreeMap<Owner, VecDeque<Event>>,
}

/// A network. Clones are handles to the same one.
#[derive(Debug, Clone)]
pub struct Net {
    state: Arc<Mutex<State>>,
}

/// One end of a connection; dropping it closes it.
#[derive(Debug)]
pub struct SimSocket {
    net: Net,
    connection: usize,
    side: usize,
}

impl Net {
    /// A network whose every delay and cut follows from `seed`.
    #[must_use]
    pub fn new(seed: u64, config: NetConfig) -> Self {
        let state = State {
            config,
            rng: Rng::new(seed),
            now: Duration::ZERO,
            connections: BTreeMap::new(),
            next_connection: 0,
            arrivals: BinaryHeap::new(),
            events: BTreeMap::new(),
        };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere is already the test's failure.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new connection, established at once.
    #[must_use]
    pub fn pair(&self) -> (SimSocket, SimSocket) {
        let mut state = self.lock();
        let (low, high) = state.config.capacity_bytes;
        let mut pipe = || {
            let capacity = state.rng.between(low.max(1), high);
            Pipe::new(usize::try_from(capacity).expect("capacities are small"))
        };
        let pipes = [pipe(), pipe()];
        let end = || End { registered: None, wants_space: false, open: true };
        let connection = state.next_connection;
        state.next_connection += 1;
        state
            .connections
            .insert(connection, Connection { ends: [end(), end()], pipes, noted: [None; 2] });
        let socket = |side| SimSocket { net: self.clone(), connection, side };
        (socket(0), socket(1))
    }

    /// The time now, since the network's start.
    #[must_use]
    pub fn now(&self) -> Duration {
        self.lock().now
    }

    /// When the next piece arrives; `None` while nothing is on its way.
    #[must_use]
    pub fn next_arrival(&self) -> Option<Duration> {
        let state = &mut *self.lock();
        while let Some(&Reverse((due, connection, side))) = state.arrivals.peek() {
            let pipes = state.connections.get(&connection).map(|found| &found.pipes);
            if pipes.is_some_and(|pipes| pipes[side].next_due() == Some(due)) {
                return Some(due);
            }
            state.arrivals.pop();
        }
        None
    }

    /// Moves the clock, and with it all that arrives by then.
    pub fn advance_to(&self, now: Duration) {
        let mut state = self.lock();
        state.now = state.now.max(now);
        let now = state.now;
        while let Some(&Reverse((due, connection, side))) = state.arrivals.peek()
            && due <= now
        {
            state.arrivals.pop();
            let Some(found) = state.connections.get_mut(&connection) else { continue };
            let news = found.pipes[side].arrive(now);
            let hangup = found.pipes[side].is_finished() || found.pipes[side].is_broken();
            let registered = found.ends[1 - side].registered;
            state.note_arrivals(connection);
            if let Some((owner, token)) = registered
                && news
            {
                state.edge(owner, Event { token, readable: true, writable: false, hangup });
            }
        }
    }

    /// Takes the owner's events, in the order of their first edge.
    pub fn take_events(&self, owner: Owner) -> Vec<Event> {
        self.lock().events.remove(&owner).map(Vec::from).unwrap_or_default()
    }

    /// Whether any owner has events that were not taken.
    #[must_use]
    pub fn has_events(&self) -> bool {
        self.lock().events.values().any(|events| !events.is_empty())
    }

    /// Connections of which at least one end is open.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.lock().connections.len()
    }
}

impl State {
    /// Puts what comes next in each pipe of a connection among the arrivals.
    fn note_arrivals(&mut self, connection: usize) {
        let Some(found) = self.connections.get_mut(&connection) else { return };
        for side in 0..2 {
            let due = found.pipes[side].next_due();
            if std::mem::replace(&mut found.noted[side], due) != due
                && let Some(due) = due
            {
                self.arrivals.push(Reverse((due, connection, side)));
            }
        }
    }

    fn edge(&mut self, owner: Owner, event: Event) {
        let events = self.events.entry(owner).or_default();
        if let Some(waiting) = events.iter_mut().find(|waiting| waiting.token == event.token) {
            waiting.readable |= event.readable;
            waiting.writable |= event.writable;
            waiting.hangup |= event.hangup;
        } else {
            events.push_back(event);
        }
    }

    fn forget(&mut self, registered: Option<(Owner, Token)>) {
        if let Some((owner, token)) = registered
            && let Some(events) = self.events.get_mut(&owner)
        {
            events.retain(|event| event.token != token);
        }
    }
}

impl SimSocket {
    /// Asks for this socket's events, and ends what was asked before. What is ready now is an
    /// edge at once, as with `EPOLL_CTL_ADD`.
    pub fn register(&self, owner: Owner, token: Token) {
        let mut state = self.net.lock();
        let connection = state.connections.get_mut(&self.connection).expect("this end is open");
        let before = connection.ends[self.side].registered.replace((owner, token));
        let (incoming, outgoing) = (&connection.pipes[1 - self.side], &connection.pipes[self.side]);
        let event = Event {
            token,
            readable: incoming.is_readable(),
            writable: outgoing.space() > 0 || outgoing.is_broken(),
            hangup: incoming.is_finished() || incoming.is_broken(),
        };
        state.forget(before);
        if event.readable || event.writable || event.hangup {
            state.edge(owner, event);
        }
    }

    /// Ends what [`register`](Self::register) asked for, and drops edges not yet taken.
    pub fn deregister(&self) {
        let mut state = self.net.lock();
        let connection = state.connections.get_mut(&self.connection).expect("this end is open");
        let before = connection.ends[self.side].registered.take();
        state.forget(before);
    }

    /// Reads what has arrived. `Ok(0)` is the end of the stream.
    ///
    /// # Errors
    /// `WouldBlock` where nothing has arrived; `ConnectionReset` where the peer has broken the
    /// connection and all that arrived before has been read.
    pub fn read(&self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        let mut state = self.net.lock();
        let connection = state.connections.get_mut(&self.connection).expect("this end is open");
        let pipe = &mut connection.pipes[1 - self.side];
        let taken = pipe.read(buffer)?;
        // As sk_stream_write_space(): an edge for space once a third of the pipe is free.
        let roomy = pipe.space() * 3 >= pipe.capacity();
        let peer = &mut connection.ends[1 - self.side];
        if taken > 0 && roomy && peer.wants_space {
            peer.wants_space = false;
            if let Some((owner, token)) = peer.registered {
                state.edge(owner, Event { token, readable: false, writable: true, hangup: false });
            }
        }
        Ok(taken)
    }

    /// Writes what there is space for, which may be less than all.
    ///
    /// # Errors
    /// `WouldBlock` where there is no space; `BrokenPipe` or `ConnectionReset` where the peer
    /// reads no more.
    pub fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let state = &mut *self.net.lock();
        let connection = state.connections.get_mut(&self.connection).expect("this end is open");
        let peer_open = connection.ends[1 - self.side].open;
        let pipe = &mut connection.pipes[self.side];
        if pipe.is_broken() {
            return Err(io::ErrorKind::ConnectionReset.into());
        }
        if pipe.is_shut() {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if !peer_open {
            // The first write to a closed peer is taken, and answered by a reset (RFC 9293 3.5.2).
            connection.pipes[self.side].abort();
            connection.pipes[1 - self.side].abort_at_end();
            state.note_arrivals(self.connection);
            return Ok(bytes.len());
        }
        let taken = bytes.len().min(pipe.space());
        if taken < bytes.len() {
            connection.ends[self.side].wants_space = true;
        }
        if taken == 0 && !bytes.is_empty() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        for piece in pieces(&mut state.rng, state.config.chunk_bytes_max, &bytes[..taken]) {
            let (low, high) = state.config.delay;
            let nanos = |delay: Duration| u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX);
            let delay = Duration::from_nanos(state.rng.between(nanos(low), nanos(high)));
            connection.pipes[self.side].send(state.now + delay, piece);
        }
        state.note_arrivals(self.connection);
        Ok(taken)
    }

    /// Sends the end of the stream; reading goes on (`shutdown(SHUT_WR)`).
    pub fn shutdown_write(&self) {
        let state = &mut *self.net.lock();
        let due = state.now + state.config.delay.1;
        let connection = state.connections.get_mut(&self.connection).expect("this end is open");
        connection.pipes[self.side].shut(due);
        state.note_arrivals(self.connection);
    }

    /// Breaks the connection: what is on its way is lost, both directions end in an error.
    pub fn reset(&self) {
        let state = &mut *self.net.lock();
        let connection = state.connections.get_mut(&self.connection).expect("this end is open");
        connection.break_at(self.side, state.now + state.config.delay.0);
        state.note_arrivals(self.connection);
    }
}

impl Connection {
    /// End `side` breaks it: its own pipe loses what is on its way.
    fn break_at(&mut self, side: usize, due: Duration) {
        self.pipes[side].reset(due);
        self.pipes[1 - side].abort();
    }
}

impl Drop for SimSocket {
    fn drop(&mut self) {
        let state = &mut *self.net.lock();
        let due = state.now + state.config.delay.1;
        let Some(connection) = state.connections.get_mut(&self.connection) else { return };
        connection.ends[self.side].open = false;
        let registered = connection.ends[self.side].registered.take();
        // A socket that is closed with unread bytes answers with a reset (tcp_close()).
        if connection.pipes[1 - self.side].is_unread() {
            connection.break_at(self.side, due);
        } else {
            connection.pipes[self.side].shut(due);
        }
        if connection.ends.iter().all(|end| !end.open) {
            state.connections.remove(&self.connection);
        }
        state.note_arrivals(self.connection);
        state.forget(registered);
    }
}

/// Cuts bytes into pieces that travel by themselves.
fn pieces(rng: &mut Rng, bytes_max: u64, bytes: &[u8]) -> Vec<Vec<u8>> {
    let mut pieces = Vec::new();
    let mut rest = bytes;
    while !rest.is_empty() {
        let length = usize::try_from(rng.between(1, bytes_max.max(1))).unwrap_or(usize::MAX);
        let (piece, after) = rest.split_at(length.min(rest.len()));
        pieces.push(piece.to_vec());
        rest = after;
    }
    pieces
}

#[cfg(test)]
mod tests;
