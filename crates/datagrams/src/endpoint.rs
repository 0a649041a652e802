//! A host of reliable datagrams: ports, and the TCP connections that carry them.
//!
//! # Model
//! One thread has it. It takes and gives datagrams without waiting; connections are dialled, read and
//! written in [`Endpoint::turn`], which waits for as long as it may.
//! ```text
//!   bind() ─► send(), receive() ... turn() ─► next_event(): Readable(port), Room(port)
//! ```
//! [`Endpoint::close`] waits until what was sent is acknowledged. To drop an endpoint drops that.
//!
//! # Invariants
//! * what a connection has received is handed over before its end is
//! * a connection that is not taken yet is kept unread, never reset: its peer may have sent messages that
//!   TCP has acknowledged
//!
//! # Limits
//! Linux 4.1, for `tcpi_bytes_acked`. One address.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, IoSlice};
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, SystemTime};

use hawser_sys::clock::monotonic_micros;
use hawser_sys::dial::{close_with_reset, dial_from, dial_result};
use hawser_sys::epoll::{Epoll, Event, Events};
use hawser_sys::listen::{accept_tcp, is_of_one_connection, listen_tcp};
use hawser_sys::process::raise_descriptor_limit;
use hawser_sys::random::random_u64;
use hawser_sys::stream::{
    TcpOptions, peek, recv, send_vectored, set_tcp_options, set_unsent_bytes_max, shutdown_sending,
};
use hawser_sys::tcp_info::tcp_info;
use hawser_time::Time;
use tracing::warn;

use crate::proto::TCP_PORT;
use crate::proto::header::LANES_MAX;
use crate::proto::node::report::Report;
use crate::proto::node::{
    BindError, Config, Connection, Datagram, Node, NotTaken, Notice, Progress, Request, SendError,
    TooManyWait, WAITING_ALL_MAX, WAITING_MAX,
};

/// Read at once from a connection.
const READ_BYTES: usize = 256 << 10;
/// Reads of one connection before the others have their turn.
const READS_MAX: usize = 4;
/// Reads of one that is to be read before another: what lay in it when that one came was less (8 MiB;
/// net.ipv4.tcp_rmem has 6).
const READS_BEFORE_MAX: usize = 32;
/// Connections taken in a turn.
const ACCEPTS_MAX: usize = 64;
/// A peer has so long to end a connection that this end has ended, since something came by it last, or was
/// acknowledged.
const DRAIN_MAX: Duration = Duration::from_secs(1);
/// TCP is asked what it has acknowledged after so many bytes, or after a time that doubles, up to one
/// time, and where nothing is acknowledged up to another one: a peer that does not read may do so for long.
const ACKNOWLEDGED_EACH_BYTES: u32 = 64 << 10;
const ACKNOWLEDGED_AFTER: Duration = Duration::from_millis(2);
const ACKNOWLEDGED_AFTER_MAX: Duration = Duration::from_millis(64);
const UNACKNOWLEDGED_AFTER_MAX: Duration = Duration::from_secs(1);
/// What TCP has beyond what it has sent. A lane that is dialled again has to send it first, and by a
/// slow one that takes long.
const UNSENT_BYTES_MAX: u32 = 128 << 10;
/// Where slow start ends before anything is known of that (TCP_INFINITE_SSTHRESH, include/net/tcp.h).
const NO_THRESHOLD: u32 = 0x7fff_ffff;
/// Source ports that are tried for a dial.
const PORTS_TRIED: u32 = 64;
/// What Linux's rds_tcp sets (rds_tcp_keepalive, net/rds/tcp_listen.c).
const KEEPALIVE: Duration = Duration::from_secs(5);
const KEEPALIVE_PROBES: u32 = 5;
const BACKLOG: i32 = 256;

/// In epoll: the listener, and what others watch; connections have their own numbers.
const LISTENER: u64 = 0;
const OTHERS: u64 = 1 << 63;

/// How an endpoint is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// Its address, one of this machine's.
    pub address: IpAddr,
    /// The TCP port at which it listens and to which it connects: 16385 among kernels.
    pub tcp_port: u16,
    /// Lanes to each peer at most: 1, 2, 4 or 8.
    pub lanes: usize,
    /// Bytes that may wait in a port's queue, and bytes that a port may have under way.
    pub buffer_bytes: usize,
}

impl Options {
    /// Eight lanes on the usual port.
    #[must_use]
    pub fn new(address: IpAddr) -> Self {
        Self { address, tcp_port: TCP_PORT, lanes: LANES_MAX, buffer_bytes: 2 << 20 }
    }
}

/// What a reading has brought.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Came {
    /// Something, and there may be more.
    Some,
    /// Something, and there is no more (epoll(7): what comes next is another event).
    All,
    Nothing,
    /// The end, after all else.
    End,
    /// The connection is paused, or gone.
    Waits,
}

/// What has become possible with a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PortEvent {
    /// There is something to receive.
    Readable(u16),
    /// What was refused may be sent again.
    Room(u16),
}

/// Something that is watched for others: what it was given with, and whether it was hung up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OtherEvent {
    /// What [`Endpoint::watch`] was given.
    pub token: u64,
    /// The other side has gone.
    pub hangup: bool,
}

struct Socket {
    fd: OwnedFd,
    dialling: bool,
    readable: bool,
    /// Its end is to be read, after what came before.
    hangup: bool,
    writable: bool,
    wants_write: bool,
    paused: bool,
    /// What TCP had acknowledged when it was established: the SYN, on one side.
    acknowledged_before: u32,
    unasked_bytes: u32,
}

/// When TCP is asked what it has acknowledged.
#[derive(Default)]
struct Asking {
    at: Option<Time>,
    after: Duration,
    /// What TCP said last.
    acknowledged: u64,
}

impl Asking {
    /// TCP has said what it has acknowledged, and that was not all.
    fn again(&mut self, acknowledged: u64, now: Time) {
        let before = std::mem::replace(&mut self.acknowledged, acknowledged);
        let goes_on = acknowledged > before;
        let most = if goes_on { ACKNOWLEDGED_AFTER_MAX } else { UNACKNOWLEDGED_AFTER_MAX };
        self.after = (self.after * 2).min(most);
        self.at = Some(now.after(self.after));
    }
}

struct Waiting {
    connection: Connection,
    from: IpAddr,
    port: u16,
    fd: OwnedFd,
}

/// Which of those that wait is to be reset, now that one more of this peer does: its last one where the
/// peer has too many, and where all together are too many the last one of the peer that has most.
fn one_too_many(waiting: &[Waiting], from: IpAddr) -> Option<(usize, TooManyWait)> {
    let mut of_peers = BTreeMap::<IpAddr, usize>::new();
    waiting.iter().for_each(|one| *of_peers.entry(one.from).or_default() += 1);
    let (most, too_many) = if of_peers.get(&from).is_some_and(|count| *count > WAITING_MAX) {
        (from, TooManyWait::OfPeer)
    } else if waiting.len() > WAITING_ALL_MAX {
        (of_peers.into_iter().max_by_key(|(_, count)| *count)?.0, TooManyWait::OfAll)
    } else {
        return None;
    };
    waiting.iter().rposition(|one| one.from == most).map(|at| (at, too_many))
}

/// Connections in the order in which they are read: the one after that which was `first` in the last turn
/// comes first. What is left of a full port goes to those that are read first, and not to the same each time.
fn in_turn(mut these: BTreeSet<Connection>, first: &mut Connection) -> Vec<Connection> {
    let after = these.split_off(&Connection(first.0 + 1));
    let all: Vec<Connection> = after.into_iter().chain(these).collect();
    *first = all.first().copied().unwrap_or(*first);
    all
}

/// A host of reliable datagrams.
#[derive(derive_more::Debug)]
#[debug("Endpoint {{ options: {options:?}, .. }}")]
pub struct Endpoint {
    node: Node,
    options: Options,
    epoll: Epoll,
    events: Events,
    listener: TcpListener,
    listener_is_readable: bool,
    /// Descriptors have run out: nothing is accepted before this.
    accepts_at: Option<Time>,
    sockets: BTreeMap<Connection, Socket>,
    to_read: BTreeSet<Connection>,
    /// Which one was read first in the last turn.
    read_first: Connection,
    to_write: BTreeSet<Connection>,
    /// Until when their peers may end them, and what these had acknowledged.
    draining: BTreeMap<Connection, (Time, u64)>,
    /// Until when they may come up, and how long that was.
    quick: BTreeMap<Connection, (Time, Duration)>,
    asking: BTreeMap<Connection, Asking>,
    waiting: Vec<Waiting>,
    port_events: VecDeque<PortEvent>,
    others: Vec<OtherEvent>,
    notices: VecDeque<Notice>,
    /// Connections that hold memory which others need.
    given_up: Vec<Connection>,
    buffer: Box<[u8]>,
    source_ports: (u16, u16),
    next_source: u32,
}

/// When it is tried again to accept after descriptors, or memory, have run out.
const ACCEPTS_AGAIN: Duration = Duration::from_secs(1);

pub(crate) fn now() -> Time {
    Time::from_micros(monotonic_micros())
}

/// What the clock of the system said when [`now`] was zero, in ms.
fn clock_ms() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    (since.as_millis() as u64).saturating_sub(monotonic_micros() / 1000)
}

/// The ports that outgoing connections are made from.
fn source_ports() -> (u16, u16) {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range");
    let mut numbers = text.iter().flat_map(|text| text.split_whitespace()).flat_map(str::parse);
    match (numbers.next(), numbers.next()) {
        (Some(low), Some(high)) if high > low => (low, high),
        _ => (32_768, 60_999),
    }
}

fn set_options(fd: &OwnedFd) -> io::Result<()> {
    let options = TcpOptions {
        keepalive: true,
        keepalive_idle: KEEPALIVE,
        keepalive_interval: KEEPALIVE,
        keepalive_count: KEEPALIVE_PROBES,
        ..TcpOptions::default()
    };
    set_tcp_options(fd, &options)?;
    set_unsent_bytes_max(fd, UNSENT_BYTES_MAX)
}

impl Endpoint {
    /// Listens, and connects to no peer yet.
    ///
    /// # Errors
    /// As listen(2) and bind(2): the address is not this machine's, or the port is taken.
    pub fn open(options: Options) -> io::Result<Self> {
        let _ = raise_descriptor_limit(); // each peer has up to eight lanes
        let listener = listen_tcp(SocketAddr::new(options.address, options.tcp_port), BACKLOG)?;
        let epoll = Epoll::new()?;
        epoll.add_readable(&listener, LISTENER)?;
        let mut config = Config::new(options.address, random_u64() as u32, random_u64());
        config.clock_ms = clock_ms();
        config.lanes = options.lanes;
        config.send_buffer = options.buffer_bytes;
        config.receive_buffer = options.buffer_bytes;
        Ok(Self {
            node: Node::new(config),
            epoll,
            events: Events::with_capacity(256),
            listener,
            listener_is_readable: true,
            accepts_at: None,
            sockets: BTreeMap::new(),
            to_read: BTreeSet::new(),
            read_first: Connection(0),
            to_write: BTreeSet::new(),
            draining: BTreeMap::new(),
            quick: BTreeMap::new(),
            asking: BTreeMap::new(),
            waiting: Vec::new(),
            port_events: VecDeque::new(),
            others: Vec::new(),
            notices: VecDeque::new(),
            given_up: Vec::new(),
            buffer: vec![0; READ_BYTES].into_boxed_slice(),
            source_ports: source_ports(),
            next_source: random_u64() as u32,
            options,
        })
    }

    /// Takes a port; 0 is any that is free.
    ///
    /// # Errors
    /// [`BindError`].
    pub fn bind(&mut self, port: u16) -> Result<u16, BindError> {
        self.node.bind(port)
    }

    /// Gives a port back, with what waits in its queue.
    pub fn unbind(&mut self, port: u16) {
        self.node.unbind(port);
    }

    /// Takes a message, without waiting; it goes in the next [`Endpoint::turn`]. To port 0 it is a ping,
    /// which the other host answers from its port 0.
    ///
    /// # Errors
    /// [`SendError`]; after `Full` and `Congested` there will be a [`PortEvent::Room`].
    pub fn send(&mut self, from: u16, to: (IpAddr, u16), body: &[u8]) -> Result<(), SendError> {
        self.node.send(from, to, body, now())
    }

    /// Takes what came for a port, the oldest first.
    pub fn receive(&mut self, port: u16) -> Option<Datagram> {
        self.node.receive(port)
    }

    /// Messages that ports have sent and that TCP has not acknowledged.
    #[must_use]
    pub fn unacknowledged(&self) -> usize {
        self.node.unacknowledged()
    }

    /// Ends, once TCP has acknowledged what ports have sent, or when `most` has passed. What comes meanwhile is
    /// dropped. Returns how many messages are dropped because they were not acknowledged.
    ///
    /// # Errors
    /// As [`Endpoint::turn`].
    pub fn close(mut self, most: Duration) -> io::Result<usize> {
        let until = now().after(most);
        while self.unacknowledged() > 0 && now() < until {
            self.turn_of_leaving(until.since(now()))?;
        }
        Ok(self.unacknowledged())
    }

    /// A turn in which what comes for ports is dropped. (A full port would keep lanes from being read.)
    pub(super) fn turn_of_leaving(&mut self, most: Duration) -> io::Result<()> {
        self.turn(most)?;
        while let Some(event) = self.next_event() {
            let (PortEvent::Readable(port) | PortEvent::Room(port)) = event;
            while self.receive(port).is_some() {}
        }
        Ok(())
    }

    /// What has become possible since this was asked for last.
    pub fn next_event(&mut self) -> Option<PortEvent> {
        self.port_events.pop_front()
    }

    /// What an operator should know.
    pub fn next_notice(&mut self) -> Option<Notice> {
        self.notices.pop_front()
    }

    /// What it is like now.
    #[must_use]
    pub fn report(&self) -> Report {
        self.node.report()
    }

    /// The same, but for peers: of many that is much less.
    #[must_use]
    pub fn report_of_ports(&self) -> Report {
        self.node.report_of_ports()
    }

    /// Ports whose queues are so full that lanes have not been read because of them for so long.
    #[must_use]
    pub fn stopping_for(&self, time: Duration) -> Vec<u16> {
        let now = now();
        let stopping = self.node.stopping().filter(|(_, since)| now.since(*since) > time);
        stopping.map(|(port, _)| port).collect()
    }

    /// Its options.
    #[must_use]
    pub fn options(&self) -> &Options {
        &self.options
    }

    /// Has another descriptor end the waits of [`Endpoint::turn`], edge-triggered.
    ///
    /// # Errors
    /// As epoll_ctl(2).
    pub fn watch(&self, fd: impl AsFd, token: u64) -> io::Result<()> {
        self.epoll.add(fd, token | OTHERS)
    }

    /// Has the next [`Endpoint::turn`] give an event of what is watched: there is more to do with it.
    pub fn again(&mut self, token: u64) {
        self.others.push(OtherEvent { token, hangup: false });
    }

    /// Events of what is watched, since this was asked for last.
    pub fn take_others(&mut self) -> Vec<OtherEvent> {
        std::mem::take(&mut self.others)
    }

    /// Writes what is to be written, waits until something happens, but no longer than `most`, and reads.
    ///
    /// # Errors
    /// As epoll_wait(2). What goes wrong with a connection ends that connection only.
    pub fn turn(&mut self, most: Duration) -> io::Result<()> {
        self.work(now());
        let began = now();
        let idle = self.to_read.is_empty()
            && self.port_events.is_empty()
            && self.others.is_empty()
            && !self.listener_is_readable;
        let wait = if idle { self.longest_wait(began).min(most) } else { Duration::ZERO };
        self.epoll.wait(&mut self.events, wait)?;
        let now = now();
        for at in 0..self.events.len() {
            let Some(event) = self.events.get(at) else { break };
            if event.data & OTHERS != 0 {
                let token = event.data & !OTHERS;
                self.others.push(OtherEvent { token, hangup: event.hangup });
            } else if event.data == LISTENER {
                self.listener_is_readable = true;
            } else {
                self.happened(Connection(event.data), event, now);
            }
        }
        if self.accepts_at.is_some_and(|at| now >= at) {
            (self.accepts_at, self.listener_is_readable) = (None, true);
        }
        self.accept_all(now);
        self.read_all(now);
        self.give_up_slow_dials(now);
        self.node.tick(now);
        self.work(now);
        Ok(())
    }

    fn longest_wait(&self, now: Time) -> Duration {
        let tick = self.node.until_tick(now);
        let drained = self.draining.values().map(|(then, _)| *then);
        let quick = self.quick.values().map(|(until, _)| *until);
        let asked = self.asking.values().filter_map(|asking| asking.at);
        let accepts = self.accepts_at.into_iter();
        let first =
            drained.chain(quick).chain(asked).chain(accepts).map(|then| then.since(now)).min();
        tick.into_iter().chain(first).min().unwrap_or(Duration::MAX)
    }

    fn happened(&mut self, at: Connection, event: Event, now: Time) {
        let Event { readable, writable, hangup, .. } = event;
        let Some(socket) = self.sockets.get_mut(&at) else { return };
        socket.hangup |= hangup;
        if socket.dialling {
            if !writable {
                return;
            }
            if let Err(error) = dial_result(&socket.fd) {
                self.forget(at);
                return self.dial_failed(at, &error, now);
            }
            socket.dialling = false;
            socket.acknowledged_before = acknowledged_before(&socket.fd);
            // This thread may come late: what counts is how long TCP says that it took.
            let took = tcp_info(&socket.fd).map_or(0, |info| info.rtt_us);
            let most = self.quick.remove(&at).map(|(_, most)| most);
            if most.is_some_and(|most| Duration::from_micros(took.into()) > most) {
                return self.node.slow(at, now);
            }
            self.node.connected(at, now);
        }
        let Some(socket) = self.sockets.get_mut(&at) else { return };
        if readable {
            socket.readable = true;
            if !socket.paused {
                self.to_read.insert(at);
            }
        }
        if writable {
            socket.writable = true;
            if socket.wants_write {
                self.to_write.insert(at);
            }
        }
    }

    fn dial_failed(&mut self, at: Connection, why: &io::Error, now: Time) {
        self.node.failed(at, &why.to_string(), now);
    }

    /// (After the events: what has come up meanwhile is judged by the time that it took.)
    fn give_up_slow_dials(&mut self, now: Time) {
        let late = self.quick.iter().filter(|(_, (until, _))| *until <= now);
        for at in late.map(|(at, _)| *at).collect::<Vec<_>>() {
            self.quick.remove(&at);
            self.node.slow(at, now);
        }
    }

    fn accept_all(&mut self, now: Time) {
        for _ in 0..ACCEPTS_MAX {
            if !self.listener_is_readable {
                return;
            }
            match accept_tcp(&self.listener) {
                Ok((fd, from)) => {
                    // A connection without them works, and is found dead later.
                    let _ = set_options(&fd);
                    let (from, port) = (from.ip().to_canonical(), from.port());
                    let connection = self.node.arrived();
                    self.offer(Waiting { connection, from, port, fd }, now);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.listener_is_readable = false;
                }
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => {
                    warn!("no connection is accepted for a second: {error}");
                    self.listener_is_readable = false;
                    self.accepts_at = Some(now.after(ACCEPTS_AGAIN));
                }
            }
        }
    }

    fn offer(&mut self, one: Waiting, now: Time) {
        let Waiting { connection, from, port, .. } = one;
        match self.node.accept_arrived(connection, from, port, now) {
            Ok(()) => {
                if self.epoll.add(&one.fd, connection.0).is_err() {
                    return self.node.closed(connection, now);
                }
                self.sockets.insert(connection, Socket::new(one.fd, false));
            }
            Err(NotTaken::Wait) => {
                self.waiting.push(one);
                if let Some((at, too_many)) = one_too_many(&self.waiting, from) {
                    let Waiting { from, fd, .. } = self.waiting.remove(at);
                    self.node.refused_to_wait(from, too_many);
                    close_with_reset(fd);
                }
            }
            Err(NotTaken::Refuse) => close_with_reset(one.fd),
        }
    }

    /// Connections that wait are offered again.
    fn offer_again(&mut self, from: IpAddr, now: Time) {
        let (again, others): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.waiting).into_iter().partition(|w| w.from == from);
        self.waiting = others;
        again.into_iter().for_each(|one| self.offer(one, now));
    }

    fn read_all(&mut self, now: Time) {
        for at in in_turn(std::mem::take(&mut self.to_read), &mut self.read_first) {
            for before in self.node.read_before(at, now) {
                self.read_times(before, READS_BEFORE_MAX, now);
            }
            self.read_times(at, READS_MAX, now);
            self.give_up(now);
        }
    }

    fn read_times(&mut self, at: Connection, most: usize, now: Time) {
        for _ in 0..most {
            match self.read(at, now) {
                Came::Some => drop(self.to_read.insert(at)),
                Came::All | Came::Nothing => {
                    self.to_read.remove(&at);
                    break;
                }
                Came::End => {
                    self.ended(at, now);
                    break;
                }
                Came::Waits => break,
            }
        }
    }

    /// Reads once from a connection, and hands over what came.
    fn read(&mut self, at: Connection, now: Time) -> Came {
        let Some(socket) = self.sockets.get_mut(&at).filter(|socket| !socket.paused) else {
            return Came::Waits;
        };
        let mut most = self.buffer.len();
        let mut result = Ok(most);
        if self.node.must_ask(at, now) {
            result = peek(&socket.fd, &mut self.buffer);
            if let Ok(count @ 1..) = result {
                most = self.node.may_take(at, &self.buffer[..count], now);
                if most == 0 {
                    self.requests(now);
                    return Came::Waits;
                }
            }
        }
        if matches!(result, Ok(1..)) {
            result = recv(&socket.fd, &mut self.buffer[..most]);
        }
        match result {
            Ok(0) => Came::End,
            Ok(count) => {
                let is_all = count < most && !socket.hangup;
                socket.readable &= !is_all;
                if let Some((then, _)) = self.draining.get_mut(&at) {
                    *then = now.after(DRAIN_MAX);
                }
                self.node.received(at, &self.buffer[..count], now);
                self.requests(now);
                if is_all { Came::All } else { Came::Some }
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                socket.readable = false;
                Came::Nothing
            }
            Err(_) => Came::End,
        }
    }

    /// Resets connections that hold memory which others need. What TCP has acknowledged is read before, and
    /// one whose message is whole then stays.
    fn give_up(&mut self, now: Time) {
        while let Some(at) = self.given_up.pop() {
            while self.node.is_given_up(at) {
                match self.read(at, now) {
                    Came::Some => drop(self.to_read.insert(at)),
                    Came::All => {}
                    Came::Nothing => self.node.give_up(at, now),
                    Came::End => self.ended(at, now),
                    Came::Waits => break,
                }
                self.requests(now);
            }
        }
    }

    /// A connection has ended, and was read to its end.
    fn ended(&mut self, at: Connection, now: Time) {
        if let Some(socket) = self.forget(at) {
            if let Some(progress) = socket.progress() {
                self.node.acknowledged(at, progress, now);
            }
            drop(socket);
            self.node.closed(at, now);
        }
    }

    fn forget(&mut self, at: Connection) -> Option<Socket> {
        self.to_read.remove(&at);
        self.to_write.remove(&at);
        self.draining.remove(&at);
        self.quick.remove(&at);
        self.asking.remove(&at);
        self.sockets.remove(&at)
    }

    fn work(&mut self, now: Time) {
        self.requests(now);
        self.write_all();
        self.ask_all(now);
        self.end_drained(now);
        // Acknowledgements and ends may have led to more.
        self.requests(now);
        self.write_all();
    }

    /// Ends connections by which nothing has come for a while, and whose peers have neither ended them nor
    /// acknowledged anything. What TCP has acknowledged is read before: such a peer will not send it again.
    fn end_drained(&mut self, now: Time) {
        let drained = self.draining.iter().filter(|(_, (then, _))| *then <= now);
        for at in drained.map(|(at, _)| *at).collect::<Vec<_>>() {
            match self.read(at, now) {
                Came::Nothing if self.acknowledges(at) => self.drain_on(at, now),
                Came::Nothing => self.end_stalled(at, now),
                Came::End => self.ended(at, now),
                // It has more time since that.
                Came::Some | Came::All => {}
                // It is paused, and read when it goes on.
                Came::Waits => self.drain_on(at, now),
            }
            self.give_up(now);
        }
    }

    fn drain_on(&mut self, at: Connection, now: Time) {
        if let Some((then, _)) = self.draining.get_mut(&at) {
            *then = now.after(DRAIN_MAX);
        }
    }

    /// Whether the peer of a connection that is ended has acknowledged more than when this was asked last.
    fn acknowledges(&mut self, at: Connection) -> bool {
        let progress = self.sockets.get(&at).and_then(Socket::progress);
        let (Some(progress), Some((_, before))) = (progress, self.draining.get_mut(&at)) else {
            return false;
        };
        let acknowledged = progress.acknowledged;
        std::mem::replace(before, acknowledged) < acknowledged
    }

    /// A connection that was ended stands still. What it has not carried goes by another one, or is dropped, and
    /// must not arrive by this one later.
    fn end_stalled(&mut self, at: Connection, now: Time) {
        let Some(socket) = self.forget(at) else { return };
        if let Some(progress) = socket.progress() {
            self.node.acknowledged(at, progress, now);
        }
        if self.node.has_unacknowledged(at) {
            close_with_reset(socket.fd);
        }
        self.node.closed(at, now);
    }

    /// Ends sending, and reads on.
    fn drain(&mut self, at: Connection, now: Time) {
        if let Some(socket) = self.sockets.get_mut(&at) {
            let _ = shutdown_sending(&socket.fd); // it fails where it has ended anyway
            let acknowledged = socket.progress().map_or(0, |progress| progress.acknowledged);
            self.draining.insert(at, (now.after(DRAIN_MAX), acknowledged));
            self.to_read.insert(at);
        }
    }

    fn requests(&mut self, now: Time) {
        while let Some(request) = self.node.poll() {
            match request {
                Request::Dial { connection, to, port_remainder, within } => {
                    match self.dial(to, port_remainder).and_then(|fd| {
                        set_options(&fd)?;
                        self.epoll.add(&fd, connection.0)?;
                        Ok(fd)
                    }) {
                        Ok(fd) => {
                            self.sockets.insert(connection, Socket::new(fd, true));
                            if let Some(within) = within {
                                self.quick.insert(connection, (now.after(within), within));
                            }
                        }
                        Err(error) => self.dial_failed(connection, &error, now),
                    }
                }
                Request::Write(at) => {
                    if let Some(socket) = self.sockets.get_mut(&at) {
                        socket.wants_write = true;
                        self.to_write.insert(at);
                    }
                }
                Request::Drain(at) => self.drain(at, now),
                Request::Close(at) => {
                    if let Some(socket) = self.forget(at) {
                        close_with_reset(socket.fd);
                    }
                }
                Request::GiveUp(at) => self.given_up.push(at),
                Request::Pause(at) => self.pause(at, true),
                Request::Resume(at) => self.pause(at, false),
                Request::Vacant(peer) => self.offer_again(peer, now),
                Request::Readable(port) => self.port_events.push_back(PortEvent::Readable(port)),
                Request::Room(port) => self.port_events.push_back(PortEvent::Room(port)),
                Request::Notice(notice) => self.notices.push_back(notice),
            }
        }
    }

    fn pause(&mut self, at: Connection, paused: bool) {
        if let Some(socket) = self.sockets.get_mut(&at) {
            socket.paused = paused;
            if paused {
                self.to_read.remove(&at);
            } else if socket.readable {
                self.to_read.insert(at);
            }
        }
    }

    /// Begins to connect from a source port with this remainder.
    fn dial(&mut self, to: IpAddr, port_remainder: u16) -> io::Result<OwnedFd> {
        let lanes = LANES_MAX as u32;
        let (low, high) = self.source_ports;
        let low = u32::from(low).next_multiple_of(lanes);
        let groups = (u32::from(high) + 1).saturating_sub(low) / lanes;
        let to = SocketAddr::new(to, self.options.tcp_port);
        let mut result = Err(io::ErrorKind::AddrInUse.into());
        for _ in 0..PORTS_TRIED.min(groups) {
            self.next_source = self.next_source.wrapping_add(1);
            let port = low + self.next_source % groups * lanes + u32::from(port_remainder);
            result = dial_from(self.options.address, port as u16, to);
            let taken = [io::ErrorKind::AddrInUse, io::ErrorKind::AddrNotAvailable];
            if !result.as_ref().is_err_and(|error| taken.contains(&error.kind())) {
                break;
            }
        }
        result
    }

    fn write_all(&mut self) {
        for at in std::mem::take(&mut self.to_write) {
            while let Some(socket) = self.sockets.get_mut(&at).filter(|s| s.writable) {
                let parts = self.node.to_write(at);
                let bufs = [IoSlice::new(parts[0]), IoSlice::new(parts[1])];
                if parts[0].is_empty() && parts[1].is_empty() {
                    socket.wants_write = false;
                    break;
                }
                match send_vectored(&socket.fd, &bufs) {
                    Ok(count) => {
                        self.node.wrote(at, count);
                        socket.unasked_bytes = socket.unasked_bytes.saturating_add(count as u32);
                        self.asking.entry(at).or_default();
                    }
                    // Broken: reading reports it, after what came before.
                    Err(_) => socket.writable = false,
                }
            }
        }
    }

    /// Asks TCP what it has acknowledged, where that may matter.
    fn ask_all(&mut self, now: Time) {
        let mut done = Vec::new();
        for (at, asking) in &mut self.asking {
            let Some(socket) = self.sockets.get_mut(at) else {
                done.push(*at);
                continue;
            };
            let then = match asking.at {
                Some(then) => then,
                None => {
                    asking.after = ACKNOWLEDGED_AFTER;
                    *asking.at.insert(now.after(asking.after))
                }
            };
            if then > now && socket.unasked_bytes < ACKNOWLEDGED_EACH_BYTES {
                continue;
            }
            let Some(progress) = socket.progress() else { continue };
            self.node.acknowledged(*at, progress, now);
            socket.unasked_bytes = 0;
            if self.node.has_unacknowledged(*at) {
                asking.again(progress.acknowledged, now);
            } else {
                done.push(*at);
            }
        }
        for at in done {
            self.asking.remove(&at);
        }
    }
}

impl Socket {
    fn new(fd: OwnedFd, dialling: bool) -> Self {
        let acknowledged_before = if dialling { 0 } else { acknowledged_before(&fd) };
        Self {
            fd,
            dialling,
            readable: false,
            hangup: false,
            writable: !dialling,
            wants_write: false,
            paused: false,
            acknowledged_before,
            unasked_bytes: 0,
        }
    }

    fn progress(&self) -> Option<Progress> {
        let info = tcp_info(&self.fd).ok()?;
        Some(Progress {
            acknowledged: info.bytes_acked?.saturating_sub(self.acknowledged_before.into()),
            has_unsent: info.unsent.is_some_and(|bytes| bytes > 0),
            rtt: Duration::from_micros(info.rtt_min_us.unwrap_or(0).into()),
            busy: info.busy_us.map(Duration::from_micros),
            held_by_peer: Duration::from_micros(info.receiver_limited_us.unwrap_or(0)),
            left_slow_start: info.threshold < NO_THRESHOLD,
        })
    }
}

fn acknowledged_before(fd: &OwnedFd) -> u32 {
    tcp_info(fd).ok().and_then(|info| info.bytes_acked).unwrap_or(0) as u32
}

#[cfg(test)]
mod tests;
