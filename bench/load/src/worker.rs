//! One thread's share of the connections, on one epoll.
//!
//! # States of a connection
//! ```text
//! Closed -> Asking (TLS?) -> Handshaking -> LoggingIn -> Preparing -> Idle <-> Running -> Resting
//!              ^ without TLS, from Closed straight to LoggingIn        (Resting: thinks, then Running)
//! ```
//! # Invariants
//! A connection that is Idle, Running or Resting owes no answer of its login. One statement of a
//! connection is on its way at most: an answer's ReadyForQuery belongs to it.
//!
//! # Why not
//! Edge-triggered events save nothing where every event is followed by one read that takes all.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::mem::MaybeUninit;
use std::net::Ipv4Addr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};

use crate::histogram::Histogram;
use crate::script::{Random, ScriptId, Scripts, Values};
use crate::stream::{Stream, Target};
use crate::wire::{self, Walker};

/// Events taken from the kernel in one turn.
const EVENTS_PER_TURN: usize = 256;
/// A read's buffer: more than the answer to any statement of the workloads.
const READ_BUFFER_BYTES: usize = 64 * 1024;
/// Logins under way in one worker while connections are opened.
const LOGINS_AT_ONCE: usize = 64;
/// Without any login finished for so long, opening gives up.
const LOGIN_STALL: Duration = Duration::from_secs(20);
/// Connections that one source address carries: of its 28,000 ephemeral ports.
pub(crate) const CONNECTIONS_PER_SOURCE: usize = 20_000;

/// Source addresses of a storm of logins, as of so many hosts. One address has 28,000 ports for one
/// destination, and a port rests in TIME_WAIT for a second at least: above some 10,000 logins a
/// second, connect(2) mostly looks for a free one, and that is measured in place of the pooler.
const STORM_SOURCES: usize = 1024;

/// The address that connection `number` of all comes from, in login `login` of its worker's storm.
///
/// None: the kernel's own choice, for the first block of connections that stay. Each further block
/// has an address of its own, from 127.0.1.1; those of a storm are in 127.64.0.0/14.
fn source(number: usize, login: Option<usize>) -> Option<Ipv4Addr> {
    if let Some(login) = login {
        let host = login % STORM_SOURCES;
        return Some(Ipv4Addr::new(127, 64 + (host >> 8) as u8, host as u8, 1));
    }
    let block = number / CONNECTIONS_PER_SOURCE;
    (block > 0).then(|| Ipv4Addr::new(127, 0, (block >> 8) as u8 + 1, block as u8))
}

/// What all workers have in common.
pub(crate) struct Plan {
    pub(crate) target: Target,
    pub(crate) tls: Option<Arc<rustls::ClientConfig>>,
    pub(crate) user: String,
    pub(crate) database: String,
    pub(crate) scripts: Scripts,
    pub(crate) sessions: wire::Sessions,
    /// Rest between two transactions of a client.
    pub(crate) think: Duration,
    /// Time between two logins of one worker in a storm; zero: as fast as it goes.
    pub(crate) login_interval: Duration,
    /// A client that has finished hands its turn to the one that is idle for longest.
    pub(crate) rotate: bool,
}

impl Plan {
    /// Writes the first message of session `number`.
    fn startup(&self, out: &mut Vec<u8>, number: usize) {
        wire::startup(out, &self.user, &self.database, self.sessions, number);
    }
}

/// What a worker has counted.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) done: u64,
    pub(crate) errors: u64,
    pub(crate) lost: u64,
    pub(crate) latencies: Histogram,
    /// The first error, for people.
    pub(crate) first_error: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Closed,
    Asking,
    Handshaking,
    LoggingIn,
    Preparing,
    Idle,
    Running,
    Resting,
}

/// What the worker does with a connection that has nothing to do.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    Opening,
    Once,
    Running,
    Churning,
}

struct Connection {
    stream: Option<Stream>,
    state: State,
    walker: Walker,
    script: ScriptId,
    step: usize,
    values: Values,
    started: Instant,
    failed: bool,
    wants_write: bool,
}

/// A share of the connections and their epoll.
pub(crate) struct Worker {
    plan: Arc<Plan>,
    epoll: OwnedFd,
    connections: Vec<Connection>,
    /// Number of this worker's first connection among all: source addresses follow from it.
    first: usize,
    /// Logins begun, from `first` on: workers do not take the same addresses at one time.
    logins: usize,
    stage: Stage,
    idle: VecDeque<usize>,
    resting: BinaryHeap<Reverse<(Instant, usize)>>,
    /// When the next login of a storm with a fixed rate is due.
    next_login: Instant,
    random: Random,
    counting_from: Instant,
    tally: Tally,
    buffer: Vec<u8>,
    scratch: Vec<u8>,
}

impl Worker {
    /// A worker for connections `first` to `first + count` of all.
    ///
    /// # Errors
    /// That of epoll_create1(2).
    pub(crate) fn new(
        plan: Arc<Plan>,
        first: usize,
        count: usize,
        now: Instant,
    ) -> io::Result<Self> {
        let connection = || Connection {
            stream: None,
            state: State::Closed,
            walker: Walker::default(),
            script: ScriptId::default(),
            step: 0,
            values: Values::default(),
            started: now,
            failed: false,
            wants_write: false,
        };
        Ok(Self {
            plan,
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            connections: std::iter::repeat_with(connection).take(count).collect(),
            first,
            logins: first,
            stage: Stage::Opening,
            idle: VecDeque::with_capacity(count),
            resting: BinaryHeap::new(),
            next_login: now,
            random: Random::new(first as u64 + 1),
            counting_from: now,
            tally: Tally::default(),
            buffer: vec![0; READ_BUFFER_BYTES],
            scratch: Vec::new(),
        })
    }

    /// Opens all connections and brings each so far that it can run transactions.
    /// Returns how many are open; the rest stands in the tally as errors.
    pub(crate) fn open(&mut self) -> usize {
        self.stage = Stage::Opening;
        let total = self.connections.len();
        let (mut next, mut progress, mut settled) = (0, Instant::now(), 0);
        loop {
            let finished = self.idle.len() + self.tally.lost as usize;
            if finished > settled {
                (settled, progress) = (finished, Instant::now());
            }
            if settled >= total || progress.elapsed() > LOGIN_STALL {
                break;
            }
            while next < total && next - settled.min(next) < LOGINS_AT_ONCE {
                self.dial(next);
                next += 1;
            }
            self.turn(Duration::from_millis(100));
        }
        if settled < total {
            let text = format!("{} logins are not answered", total - settled);
            self.tally.first_error.get_or_insert(text);
        }
        self.idle.len()
    }

    /// Lets every connection run one transaction.
    pub(crate) fn run_once(&mut self, limit: Duration) {
        self.stage = Stage::Once;
        let deadline = Instant::now() + limit;
        let all: Vec<usize> = self.idle.drain(..).collect();
        let (mut next, open) = (0, all.len());
        while (self.tally.done + self.tally.errors + self.tally.lost) < open as u64 {
            while next < open && next - self.idle.len().min(next) < LOGINS_AT_ONCE {
                self.begin(all[next], Instant::now());
                next += 1;
            }
            self.turn(Duration::from_millis(100));
            if Instant::now() > deadline {
                break;
            }
        }
    }

    /// Keeps `active` connections at work until `end`; counts what ends after `from`.
    pub(crate) fn run(&mut self, active: usize, from: Instant, end: Instant) {
        self.stage = Stage::Running;
        self.counting_from = from;
        for _ in 0..active {
            if let Some(index) = self.idle.pop_front() {
                self.begin(index, Instant::now());
            }
        }
        self.turn_until(end);
    }

    /// Opens and closes connections until `end`; counts logins that finish after `from`.
    pub(crate) fn churn(&mut self, from: Instant, end: Instant) {
        self.stage = Stage::Churning;
        self.counting_from = from;
        self.next_login = Instant::now();
        for index in 0..self.connections.len() {
            self.dial_in_turn(index);
        }
        self.turn_until(end);
    }

    /// Leaves a transaction open on every connection: BEGIN, a query, and nothing more.
    pub(crate) fn leave_open(&mut self, limit: Duration) {
        self.stage = Stage::Once;
        let deadline = Instant::now() + limit;
        let all: Vec<usize> = self.idle.drain(..).collect();
        for &index in &all {
            let connection = &mut self.connections[index];
            connection.state = State::Running;
            connection.step = usize::MAX - 1;
            self.scratch.clear();
            wire::query(&mut self.scratch, |out| out.extend_from_slice(b"BEGIN; SELECT 1"));
            self.send_scratch(index);
        }
        while self.idle.len() < all.len() && Instant::now() < deadline {
            self.turn(Duration::from_millis(100));
        }
    }

    /// Connections with nothing under way.
    pub(crate) fn idle(&self) -> usize {
        self.idle.len()
    }

    /// What was counted since the last call.
    pub(crate) fn take_tally(&mut self) -> Tally {
        std::mem::take(&mut self.tally)
    }

    fn turn_until(&mut self, end: Instant) {
        loop {
            let now = Instant::now();
            if now >= end {
                return;
            }
            let mut wait = end - now;
            while let Some(&Reverse((at, index))) = self.resting.peek() {
                if at > now {
                    wait = wait.min(at - now);
                    break;
                }
                self.resting.pop();
                if self.stage == Stage::Churning {
                    self.dial(index);
                } else {
                    self.begin(index, now);
                }
            }
            self.turn(wait);
        }
    }

    /// Waits for events and works them off.
    fn turn(&mut self, wait: Duration) {
        let timeout =
            Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) };
        let mut room = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS_PER_TURN];
        let Ok((events, _)) = epoll::wait(&self.epoll, &mut room[..], Some(&timeout)) else {
            return; // interrupted: the next turn asks again
        };
        for event in events {
            let epoll::Event { flags, data, .. } = *event;
            let index = data.u64() as usize;
            if flags.contains(epoll::EventFlags::OUT) {
                self.writable(index);
            }
            if flags.intersects(!epoll::EventFlags::OUT) {
                self.readable(index);
            }
        }
    }

    /// Dials when the rate of logins allows it. A slot that comes late does not make up for it:
    /// the storm has a highest rate, not a fixed number.
    fn dial_in_turn(&mut self, index: usize) {
        if self.plan.login_interval.is_zero() {
            return self.dial(index);
        }
        let at = self.next_login.max(Instant::now());
        self.next_login = at + self.plan.login_interval;
        self.resting.push(Reverse((at, index)));
    }

    fn dial(&mut self, index: usize) {
        let number = self.first + index;
        let login = (self.stage == Stage::Churning).then_some(self.logins);
        self.logins += 1;
        let connection = &mut self.connections[index];
        connection.started = Instant::now();
        connection.walker = Walker::default();
        connection.failed = false;
        let socket = match self.plan.target.dial(source(number, login)) {
            Ok(socket) => socket,
            Err(error) => return self.lose(index, &format!("connect: {error}")),
        };
        connection.stream = Some(Stream::new(socket));
        self.scratch.clear();
        if self.plan.tls.is_some() {
            connection.state = State::Asking;
            self.scratch.extend_from_slice(&wire::SSL_REQUEST);
        } else {
            connection.state = State::LoggingIn;
            self.plan.startup(&mut self.scratch, self.first + index);
        }
        // On loopback the connection is there already, as a rule; if not, the write waits.
        let sent =
            connection.stream.as_mut().map_or(Ok(false), |stream| stream.send(&self.scratch));
        let waits = match sent {
            Ok(waits) => waits,
            Err(error) if error.kind() == io::ErrorKind::NotConnected => true,
            Err(error) => return self.lose(index, &format!("connect: {error}")),
        };
        connection.wants_write = waits;
        let Some(stream) = &connection.stream else { return };
        let data = epoll::EventData::new_u64(index as u64);
        if let Err(error) = epoll::add(&self.epoll, stream.fd(), data, interest(waits)) {
            self.lose(index, &format!("epoll: {error}"));
        }
    }

    /// Sends what was built in `scratch`.
    fn send_scratch(&mut self, index: usize) {
        let Some(stream) = &mut self.connections[index].stream else { return };
        match stream.send(&self.scratch) {
            Ok(waits) => self.set_interest(index, waits),
            Err(error) => self.lose(index, &format!("write: {error}")),
        }
    }

    fn writable(&mut self, index: usize) {
        let Some(stream) = &mut self.connections[index].stream else { return };
        match stream.flush() {
            Ok(waits) => self.set_interest(index, waits),
            Err(error) => self.lose(index, &format!("write: {error}")),
        }
    }

    fn set_interest(&mut self, index: usize, waits: bool) {
        let connection = &mut self.connections[index];
        if connection.wants_write == waits {
            return;
        }
        connection.wants_write = waits;
        let Some(stream) = &connection.stream else { return };
        let data = epoll::EventData::new_u64(index as u64);
        if let Err(error) = epoll::modify(&self.epoll, stream.fd(), data, interest(waits)) {
            self.lose(index, &format!("epoll: {error}"));
        }
    }

    fn readable(&mut self, index: usize) {
        loop {
            let connection = &mut self.connections[index];
            let Some(stream) = &mut connection.stream else { return };
            let received = match connection.state {
                // One byte, as libpq reads it: nothing after it is trusted before TLS.
                State::Asking => stream.receive(&mut self.buffer[..1]),
                _ => stream.receive(&mut self.buffer),
            };
            let got = match received {
                Ok(Some(0)) => return self.lose(index, "the server has closed the connection"),
                Ok(Some(got)) => got,
                Ok(None) => 0,
                Err(error) => return self.lose(index, &format!("read: {error}")),
            };
            match connection.state {
                State::Asking if got == 1 => self.start_tls(index),
                State::Handshaking if !stream.is_handshaking() => {
                    connection.state = State::LoggingIn;
                    self.scratch.clear();
                    self.plan.startup(&mut self.scratch, self.first + index);
                    self.send_scratch(index);
                }
                State::Handshaking => {}
                _ if got > 0 => self.answer(index, got),
                _ => {}
            }
            let again = got > 0
                && self.connections[index].stream.as_ref().is_some_and(|stream| {
                    // A plain read that did not fill the buffer has taken everything.
                    stream.is_tls() || got == self.buffer.len()
                });
            if !again {
                return;
            }
        }
    }

    fn start_tls(&mut self, index: usize) {
        if self.buffer[0] != b'S' {
            return self.lose(index, "the server does no TLS");
        }
        let plan = Arc::clone(&self.plan);
        let connection = &mut self.connections[index];
        connection.state = State::Handshaking;
        if let (Some(stream), Some(config)) = (&mut connection.stream, &plan.tls)
            && let Err(error) = stream.start_tls(config)
        {
            self.lose(index, &format!("TLS: {error}"));
        }
    }

    /// Works off `got` bytes of the buffer.
    fn answer(&mut self, index: usize, got: usize) {
        let connection = &mut self.connections[index];
        let mut ready = None;
        let mut refusal = None;
        let mut error = None;
        let logging_in = connection.state == State::LoggingIn;
        connection.walker.walk(&self.buffer[..got], |message| match message.kind {
            b'Z' => ready = Some(message.status),
            b'E' => error = Some(wire::error_text(message.body)),
            b'R' if logging_in && message.body.len() >= 4 && message.body[..4] != [0; 4] => {
                refusal = Some("the server asks for a password; this program knows none");
            }
            _ => {}
        });
        if let Some(text) = error {
            connection.failed = true;
            self.tally.first_error.get_or_insert(text);
        }
        if let Some(text) = refusal {
            return self.lose(index, text);
        }
        if let Some(status) = ready {
            self.ready(index, status);
        }
    }

    /// The server is ready for the connection's next statement.
    fn ready(&mut self, index: usize, status: u8) {
        let connection = &mut self.connections[index];
        match connection.state {
            State::LoggingIn if self.stage == Stage::Churning => {
                let now = Instant::now();
                if now >= self.counting_from {
                    self.tally.done += 1;
                    let taken = now - connection.started;
                    self.tally.latencies.record(taken.as_nanos() as u64);
                }
                self.close(index);
                self.dial_in_turn(index);
            }
            State::LoggingIn => {
                connection.state = State::Preparing;
                self.scratch.clear();
                self.plan.scripts.prepare(&mut self.scratch);
                if self.scratch.is_empty() {
                    self.rest(index);
                } else {
                    self.send_scratch(index);
                }
            }
            State::Preparing => {
                if connection.failed {
                    return self.lose(index, "the statements could not be prepared");
                }
                self.rest(index);
            }
            State::Running => self.next_step(index, status),
            _ => self.lose(index, "an answer that nobody asked for"),
        }
    }

    fn next_step(&mut self, index: usize, status: u8) {
        let connection = &mut self.connections[index];
        connection.step += 1;
        if connection.step == usize::MAX {
            return self.rest(index); // a transaction that is to stay open
        }
        let steps = self.plan.scripts.steps(connection.script);
        self.scratch.clear();
        if connection.failed && status != b'I' {
            connection.step = steps;
            wire::query(&mut self.scratch, |out| out.extend_from_slice(b"ROLLBACK"));
            return self.send_scratch(index);
        }
        if connection.step < steps && !connection.failed {
            let (script, step) = (connection.script, connection.step);
            self.plan.scripts.encode(&mut self.scratch, script, step, &connection.values);
            return self.send_scratch(index);
        }
        let now = Instant::now();
        if now >= self.counting_from {
            if connection.failed {
                self.tally.errors += 1;
            } else {
                self.tally.done += 1;
                self.tally.latencies.record((now - connection.started).as_nanos() as u64);
            }
        }
        connection.failed = false;
        if self.stage != Stage::Running {
            return self.rest(index);
        }
        if self.plan.rotate {
            self.rest(index);
            if let Some(next) = self.idle.pop_front() {
                self.begin(next, now);
            }
        } else if self.plan.think.is_zero() {
            self.begin(index, now);
        } else {
            connection.state = State::Resting;
            // Between half and one and a half of the mean: clients do not march in step.
            let percent = 50 + self.random.below(100) as u32;
            self.resting.push(Reverse((now + self.plan.think * percent / 100, index)));
        }
    }

    fn rest(&mut self, index: usize) {
        self.connections[index].state = State::Idle;
        self.idle.push_back(index);
    }

    fn begin(&mut self, index: usize, now: Instant) {
        let connection = &mut self.connections[index];
        (connection.script, connection.values) = self.plan.scripts.draw(&mut self.random);
        connection.step = 0;
        connection.started = now;
        connection.state = State::Running;
        self.scratch.clear();
        self.plan.scripts.encode(&mut self.scratch, connection.script, 0, &connection.values);
        self.send_scratch(index);
    }

    fn close(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        connection.state = State::Closed;
        if let Some(mut stream) = connection.stream.take() {
            // The close that follows says the same to a peer that takes no more.
            let _unsent = stream.send(&wire::TERMINATE);
            stream.send_close_notify();
        }
    }

    /// Gives a connection up, but for a storm of logins, which goes on with a new one.
    fn lose(&mut self, index: usize, why: &str) {
        let connection = &mut self.connections[index];
        let churned = connection.state != State::Closed && self.stage == Stage::Churning;
        connection.stream = None;
        connection.state = State::Closed;
        self.tally.lost += 1;
        self.tally.first_error.get_or_insert_with(|| why.to_owned());
        if churned {
            self.dial_in_turn(index);
        }
    }
}

fn interest(waits: bool) -> epoll::EventFlags {
    if waits { epoll::EventFlags::IN | epoll::EventFlags::OUT } else { epoll::EventFlags::IN }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    #[test]
    fn connections_that_stay_share_addresses_by_blocks() {
        assert_eq!(source(CONNECTIONS_PER_SOURCE - 1, None), None);
        assert_eq!(source(CONNECTIONS_PER_SOURCE, None), Some(Ipv4Addr::new(127, 0, 1, 1)));
        assert_eq!(source(2 * CONNECTIONS_PER_SOURCE, None), Some(Ipv4Addr::new(127, 0, 1, 2)));
    }

    #[test]
    fn logins_of_a_storm_come_from_all_addresses_alike() {
        let mut seen = BTreeMap::new();
        for login in 0..10 * STORM_SOURCES {
            *seen.entry(source(0, Some(login))).or_insert(0) += 1;
        }
        assert_eq!(seen.len(), STORM_SOURCES);
        assert!(seen.values().all(|&logins| logins == 10), "{seen:?}");
    }
}
