//! This host: its ports and its peers. Bytes and time in, bytes and requests out.
//!
//! # Model
//! The host of a node dials, accepts, reads and writes for it:
//! ```text
//!   poll() ─► Dial ─► connected(), failed(), slow() accept() ─► a connection, or wait, or refuse
//!          ─► Write ─► to_write(), wrote()          received(), acknowledged(), closed()
//!          ─► Drain, Close, Pause, Resume, Vacant   tick() at next_tick()
//!          ─► GiveUp                                 received() to the last byte, then give_up()
//!          ─► Readable, Room, Notice                for those who use ports
//! ```
//! A *port* has a queue of what came and a count of what it has sent that is not acknowledged. A queue
//! of more than its bound marks the port as congested, until it is under half of that (
//! rds_recv_rcvbuf_delta, net/rds/recv.c). With [`OVERRUN_BYTES`] beyond its bound the port is *full*:
//! while one is, `may_take` says before each reading how much comes before a message to it, and the
//! connection waits there.
//!
//! # Invariants
//! * a connection's name is used only once: late events of it change nothing
//! * a message to an unbound port is dropped and counted, as the kernel does
//! * a full port gets at most what one read brought before it was full
//!
//! # Limits
//! One address a node. A full port stops the reading of the lanes whose next message is for it,
//! including later messages for other ports: `stopping` says since when, so that its owner can be
//! ended.

use core::net::{IpAddr, Ipv6Addr};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use hawser_time::Time;
use hawser_time::seeded::SplitMix;
use serde::Serialize;

use super::congestion::{MAP_BYTES, Map};
use super::hash::Shares;
use super::header::{
    Announcement, FLAG_MAP, HEADER_BYTES, Header, LANES_MAX, MESSAGE_BYTES_MAX, PROBE_PORT,
};
use super::lane::{ANSWERS_ALL_MAX, Binding, Counts, Freed, MapMessage, State, is_of_no_port};
pub use super::lane::{Connection, Progress};
use super::peer::{Busy, NoticeKind, Peer};

mod connections;
mod incoming;
mod leaving;
mod partials;
pub mod report;
mod starts;

pub use leaving::LEAVING_BYTES_MAX;
pub use partials::PARTIAL_BYTES_MAX;
use partials::Partials;

/// Hosts at a time. Beyond that, those that were down and idle for longest are forgotten; if none
/// is, a new one is refused.
pub const PEERS_MAX: usize = 4096;
/// Hosts to which a port has sent and that have never answered: to another one it may not send. If
/// there are too many peers, those of the port with the most give way.
pub const UNANSWERED_MAX: usize = 256;
/// What the queue of a port may have beyond its bound: what was under way when it was announced as
/// congested. Then the lanes that bring more are not read, until a quarter of it is taken.
pub const OVERRUN_BYTES: usize = 8 << 20;
/// Connections of a peer that wait for a lane. Beyond that, its last one is reset.
pub const WAITING_MAX: usize = LANES_MAX;
/// Connections of all peers that wait. Beyond that, the last one of the peer with the most is
/// reset.
pub const WAITING_ALL_MAX: usize = 1024;
/// How long a peer that has broken the protocol is kept out.
pub const SHUT_OUT: Duration = Duration::from_secs(1);
/// How long such a peer has to take its lanes down before one is dialled again.
pub const COMES_DOWN: Duration = Duration::from_millis(50);
/// A larger address that still has something to send knocks again after this.
pub const KNOCK_AGAIN: Duration = Duration::from_secs(1);
/// A peer that does not answer and to which no port has anything queued is dialled no more after this;
/// what was queued to it and is of no port any more is dropped.
pub const GIVE_UP: Duration = Duration::from_secs(60);
/// After TCP's window to a peer has been full for so long in all, a notice says that it is slow.
pub const SLOW: Duration = Duration::from_secs(10);
/// Memory that an idle lane does not need is given back after this.
pub const IDLE: Duration = Duration::from_secs(1);

/// The configuration of a node.
#[derive(Clone, Debug)]
pub struct Config {
    /// Its address.
    pub address: IpAddr,
    /// Lanes to each peer: 1, 2, 4 or 8.
    pub lanes: usize,
    /// Another number at each start, and not 0.
    pub generation: u32,
    /// For the lanes of ports, and for random waits.
    pub seed: u64,
    /// The value of a clock that continues over restarts when [`Time`] is zero, in ms: so messages
    /// to an unknown host have numbers above those of any earlier start.
    pub clock_ms: u64,
    /// Bytes that may wait in a port's queue before it is congested.
    pub receive_buffer: usize,
    /// Bytes of a port's messages that are not acknowledged, and of its largest message.
    pub send_buffer: usize,
    /// See [`OVERRUN_BYTES`].
    pub overrun: usize,
    /// See [`PARTIAL_BYTES_MAX`].
    pub partials: usize,
    /// It says what an old kernel says of itself, and takes connections for any of its lanes.
    #[cfg(test)]
    pub(crate) says_no_start: bool,
    /// It neither says what it is in maps nor reads it there, and sends by lane 0 until a probe or its
    /// answer has said how many lanes the peer has.
    #[cfg(test)]
    pub(crate) is_a_kernel: bool,
}

impl Config {
    /// Eight lanes and buffers of 2 MiB, which take the largest message.
    #[must_use]
    pub fn new(address: IpAddr, generation: u32, seed: u64) -> Self {
        let buffer = 2 * MESSAGE_BYTES_MAX;
        let generation = generation.max(1);
        Self {
            address,
            lanes: LANES_MAX,
            generation,
            seed,
            clock_ms: 0,
            receive_buffer: buffer,
            send_buffer: buffer,
            overrun: OVERRUN_BYTES,
            partials: PARTIAL_BYTES_MAX,
            #[cfg(test)]
            says_no_start: false,
            #[cfg(test)]
            is_a_kernel: false,
        }
    }
}

/// A message that came.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Datagram {
    /// From which host.
    pub from: IpAddr,
    /// From which of its ports; 0 is the answer to a ping.
    pub port: u16,
    /// Its bytes.
    pub body: Vec<u8>,
}

/// A request to the host.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// Connect; `port_remainder` is what the source port leaves when it is divided by eight.
    Dial {
        /// The new connection.
        connection: Connection,
        /// To whom.
        to: IpAddr,
        /// Which source port.
        port_remainder: u16,
        /// If the handshake takes longer, [`Node::slow`] is to be called.
        within: Option<Duration>,
    },
    /// There is something to write to it.
    Write(Connection),
    /// End sending, read to the end, and then report that it is closed.
    Drain(Connection),
    /// Reset it; the node has forgotten it.
    Close(Connection),
    /// It holds memory which others need. Read what has come by it, and then call [`Node::give_up`].
    GiveUp(Connection),
    /// Read no more from it for now.
    Pause(Connection),
    /// Read again.
    Resume(Connection),
    /// Connections of this peer that wait may be offered again.
    Vacant(IpAddr),
    /// The port's queue was empty, and is not.
    Readable(u16),
    /// The port could not send, and may try again.
    Room(u16),
    /// A notice for operators, given once.
    Notice(Notice),
}

/// A notice about a peer for operators.
#[derive(Clone, PartialEq, Eq, Debug, derive_more::Display)]
pub enum Notice {
    /// It sent a header that says more than a message may have.
    #[display(
        "{_0} sent a message of {_1} bytes, and {MESSAGE_BYTES_MAX} are the most: the \
         connection is reset"
    )]
    TooLong(IpAddr, u32),
    /// It sends to an unbound port.
    #[display("{_0} sends to port {_1}, which no program has: its messages are dropped")]
    NoPort(IpAddr, u16),
    /// It sends pings and does not read the answers.
    #[display("{_0} sends pings and does not read the answers: further ones are not answered")]
    Answers(IpAddr),
    /// So many answers to pings wait in all that further ones are not answered.
    #[display(
        "{ANSWERS_ALL_MAX} answers to pings wait for peers to read them: most further pings, of \
         any peer, are not answered until fewer do"
    )]
    AnswersOfAll,
    /// It sent a congestion map of another length.
    #[display("{_0} sent a congestion map that is not {MAP_BYTES} bytes long: it is ignored")]
    BadMap(IpAddr),
    /// A probe of its has an extension header of this type, which is unknown or cut off.
    #[display(
        "{_0} sent an extension header of type {_1}, which is unknown or cut off: it is \
         ignored, and those after it are"
    )]
    Extension(IpAddr, u8),
    /// It opens more connections than there are lanes, and than may wait for one.
    #[display("{_0} {_1}")]
    Lanes(IpAddr, TooManyWait),
    /// It resets what is dialled for this lane.
    #[display(
        "{_0} resets each connection of lane {_1}, whose messages go by another lane now. \
         Linux up to 6.18 does that where it has missed a reset. To mend it, unload rds_tcp \
         there and load it again"
    )]
    Refused(IpAddr, usize),
    /// It cannot be connected to, for this reason.
    #[display("{_0} cannot be reached: {_1}")]
    Unreachable(IpAddr, String),
    /// It announces this number of lanes, which cannot be.
    #[display(
        "{_0} announces {_1} lanes, and there are 1 to {LANES_MAX}: the nearest of these \
         is taken"
    )]
    Announced(IpAddr, u16),
    /// It has left TCP's window full for long.
    #[display("{_0} does not read what it is sent, or reads slowly: its window has been full for \
               {} s in all, and ports that send to it wait", SLOW.as_secs())]
    Slow(IpAddr),
    /// There are too many peers.
    #[display("{_0} is refused: there are {PEERS_MAX} peers already")]
    Peers(IpAddr),
    /// It has never answered, and its place was needed.
    #[display(
        "{_0} has never answered, and there are {PEERS_MAX} peers: what was sent to it is \
         dropped"
    )]
    Displaced(IpAddr),
    /// It withholds the rest of a message, and others need the memory.
    #[display("{_0} has not sent the rest of a message for longest, and there are more than {} MiB \
               of such: the connection is reset", PARTIAL_BYTES_MAX >> 20)]
    Partial(IpAddr),
    /// It has restarted: messages that may have reached its last start were dropped.
    #[display("{_0} has restarted{}", dropped(*_1))]
    Restarted(IpAddr, u64),
    /// It has named two starts of its on one connection.
    #[display("{_0} says on one connection that it has restarted: the connection is reset")]
    TwoStarts(IpAddr),
}

/// Of a peer that has started anew.
fn dropped(messages: u64) -> String {
    match messages {
        0 => String::new(),
        _ => format!(": {messages} messages that its last start may have got are not sent again"),
    }
}

/// Why a message was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SendError {
    /// It is longer than any message may be, or than the send buffer.
    #[error("the message is longer than the send buffer or than 1 MiB")]
    TooLong,
    /// The port's send buffer is full: there will be a [`Request::Room`].
    #[error("the send buffer is full")]
    Full,
    /// The receiving port is congested: there will be a [`Request::Room`].
    #[error("the receiving port is congested")]
    Congested,
    /// The port is not bound.
    #[error("the port is not bound")]
    NotBound,
    /// No host has this address, or it is of another family than the node's.
    #[error("no such address can be sent to from here")]
    Address,
    /// There are too many peers.
    #[error("there are too many peers")]
    Peers,
    /// Too many hosts to which the port has sent have never answered.
    #[error("256 hosts that the port has sent to have never answered")]
    Unanswered,
}

/// Why a port cannot be bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum BindError {
    /// It is taken, or all are.
    #[error("the port is in use")]
    InUse,
    /// Port 1 is for probes.
    #[error("port 1 is for probes")]
    Reserved,
}

/// Why a connection is not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotTaken {
    /// Keep it, unread, and offer it again when the peer has a lane free.
    Wait,
    /// Reset it.
    Refuse,
}

/// The reached bound on connections that wait for a lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug, derive_more::Display)]
pub enum TooManyWait {
    /// [`WAITING_MAX`].
    #[display(
        "opens more connections than there are lanes: {WAITING_MAX} of them wait, and further ones \
         are reset"
    )]
    OfPeer,
    /// [`WAITING_ALL_MAX`].
    #[display(
        "has more connections that wait for lanes than any other peer, and {WAITING_ALL_MAX} wait in \
         all: its last ones are reset"
    )]
    OfAll,
}

/// The behaviour of a peer that reaches it.
/// A port of this host.
#[derive(Debug, Default)]
struct Port {
    /// Of [`LANES_MAX`] lanes, the one that carries what it sends.
    lane: usize,
    queue: VecDeque<Datagram>,
    queued_bytes: usize,
    binding: Binding,
    sent_bytes: usize,
    /// How many of the messages in `sent_bytes` are for each peer.
    sent_to: BTreeMap<u32, usize>,
    congested: bool,
    /// Hosts to which it has sent and that have never answered, at most.
    unanswered: usize,
    /// It was refused room, and wants a [`Request::Room`].
    wants_room: bool,
    /// Connections that are not read because of it.
    pausing: Vec<Connection>,
    received: u64,
    sent: u64,
}

impl Port {
    /// One of its messages to a peer is not under way any more.
    fn gets_back(&mut self, to: u32, bytes: usize) {
        self.sent_bytes = self.sent_bytes.saturating_sub(bytes);
        if let Some(count) = self.sent_to.get_mut(&to) {
            *count -= 1;
            if *count == 0 {
                self.sent_to.remove(&to);
            }
        }
    }
}

/// What a message takes of a buffer beyond its bytes: otherwise empty messages would have no bound.
const MESSAGE_COST: usize = HEADER_BYTES;

/// What a node has counted.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// Messages to unbound ports.
    #[serde(rename = "messages_to_no_port")]
    pub no_port: u64,
    /// Pings that came.
    pub pings: u64,
    /// Pings that were not answered: the lane was full of answers, or the port that asked was congested.
    pub pings_unanswered: u64,
    /// Congestion maps that came.
    pub maps_received: u64,
    /// Congestion maps that were sent.
    pub maps_sent: u64,
    /// Connections that were refused.
    #[serde(rename = "connections_refused")]
    pub refused: u64,
    /// Dropped messages of released ports.
    pub left_behind: u64,
}

/// The owner of a connection.
#[derive(Clone, Copy, Debug)]
struct Place {
    peer: u32,
    lane: u8,
}

/// A host that speaks RDS.
#[derive(Debug)]
pub struct Node {
    config: Config,
    key: u32,
    random: SplitMix,
    ports: BTreeMap<u16, Port>,
    /// Those whose queues have all that was under way, and more.
    full: BTreeSet<u16>,
    shares: Shares,
    /// Boxed, because a map's nodes are half empty.
    peers: BTreeMap<u32, Box<Peer>>,
    by_address: BTreeMap<IpAddr, u32>,
    connections: BTreeMap<Connection, Place>,
    partials: Partials,
    /// Bytes that released ports have queued.
    leaving_bytes: usize,
    /// Answers to pings that are queued, to all peers.
    answers: usize,
    next_connection: u64,
    next_peer: u32,
    last_binding: Binding,
    congested: Map,
    /// How often it has changed, and 1.
    map_number: u64,
    /// The map that was sent last, with its header.
    last_map: Option<Arc<MapMessage>>,
    timers: BTreeSet<(Time, u32)>,
    requests: VecDeque<Request>,
    freed: Freed,
    totals: Totals,
    /// The notice of too many peers was given, and no peer was taken since.
    peers_reported: bool,
    /// The same for waiting answers to pings, whose number has not fallen to half since.
    answers_reported: bool,
}

/// An address as the kernel compares it: as IPv6, IPv4 mapped into it.
fn as_ipv6(address: IpAddr) -> Ipv6Addr {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    }
}

/// Whether something can be sent there.
fn is_a_host(address: IpAddr) -> bool {
    !address.is_unspecified()
        && !address.is_multicast()
        && address != IpAddr::V4(core::net::Ipv4Addr::BROADCAST)
}

impl Node {
    /// A node with no ports and no peers.
    #[must_use]
    pub fn new(config: Config) -> Self {
        let mut node = Self {
            key: 0,
            random: SplitMix::of_state(config.seed),
            config,
            ports: BTreeMap::new(),
            full: BTreeSet::new(),
            shares: Shares::default(),
            peers: BTreeMap::new(),
            by_address: BTreeMap::new(),
            connections: BTreeMap::new(),
            partials: Partials::default(),
            leaving_bytes: 0,
            answers: 0,
            next_connection: 1,
            next_peer: 0,
            last_binding: Binding::default(),
            congested: Map::default(),
            map_number: 1,
            last_map: None,
            timers: BTreeSet::new(),
            requests: VecDeque::new(),
            freed: Freed::new(),
            totals: Totals::default(),
            peers_reported: false,
            answers_reported: false,
        };
        node.key = node.draw() as u32;
        node
    }

    fn draw(&mut self) -> u64 {
        self.random.number()
    }

    /// Takes a port; 0 is any that is free.
    ///
    /// # Errors
    /// [`BindError`].
    pub fn bind(&mut self, port: u16) -> Result<u16, BindError> {
        let port = match port {
            0 => {
                let first = (self.draw() as u16).max(2);
                (first..=u16::MAX)
                    .chain(2..first)
                    .find(|port| !self.ports.contains_key(port))
                    .ok_or(BindError::InUse)?
            }
            PROBE_PORT => return Err(BindError::Reserved),
            port if self.ports.contains_key(&port) => return Err(BindError::InUse),
            port => port,
        };
        let lane = self.shares.take(port, self.key);
        self.last_binding = Binding(self.last_binding.0.wrapping_add(1).max(1));
        self.ports.insert(port, Port { lane, binding: self.last_binding, ..Port::default() });
        Ok(port)
    }

    /// Gives a port back, with all that waits in its queue. Its sent messages stay on their way, as
    /// long as those of all such ports are at most [`LEAVING_BYTES_MAX`].
    pub fn unbind(&mut self, port: u16) {
        let Some(gone) = self.ports.remove(&port) else { return };
        self.shares.give_back(gone.lane);
        self.full.remove(&port);
        if gone.congested {
            self.set_congested(port, false);
        }
        for connection in &gone.pausing {
            self.resume(*connection);
        }
        self.leave(&gone);
    }

    /// Takes a message to send. Never waits.
    ///
    /// # Errors
    /// [`SendError`]: it was not taken.
    pub fn send(
        &mut self,
        from: u16,
        to: (IpAddr, u16),
        body: &[u8],
        now: Time,
    ) -> Result<(), SendError> {
        let port = self.ports.get_mut(&from).ok_or(SendError::NotBound)?;
        if body.len() > MESSAGE_BYTES_MAX.min(self.config.send_buffer) {
            return Err(SendError::TooLong);
        }
        if !is_a_host(to.0) || to.0.is_ipv4() != self.config.address.is_ipv4() {
            return Err(SendError::Address);
        }
        if port.sent_bytes >= self.config.send_buffer {
            port.wants_room = true;
            return Err(SendError::Full);
        }
        if to.0 == self.config.address {
            return self.send_to_itself(from, to.1, body);
        }
        let at = self.peer_at(to.0, Some(from), now)?;
        let (Some(peer), Some(port)) = (self.peers.get_mut(&at), self.ports.get_mut(&from)) else {
            return Err(SendError::NotBound);
        };
        if peer.congested.is_set(to.1) {
            port.wants_room = true;
            return Err(SendError::Congested);
        }
        peer.used = now;
        port.sent += 1;
        port.sent_bytes += body.len() + MESSAGE_COST;
        *port.sent_to.entry(at).or_default() += 1;
        let binding = port.binding;
        let lane = peer.carrier(peer.lane_of(port.lane, self.config.lanes));
        #[cfg(test)]
        let lane = if self.config.is_a_kernel && peer.paths == 0 { 0 } else { lane };
        let length = body.len() as u32;
        let header = Header { length, from, to: to.1, ..Header::default() };
        peer.lane(lane).push(binding, header, body);
        self.go_on(at, lane, now);
        Ok(())
    }

    fn send_to_itself(&mut self, from: u16, to: u16, body: &[u8]) -> Result<(), SendError> {
        // A ping is answered at once: its answer goes to the queue of the port that sent it.
        let (to, answers) = if to == 0 { (from, true) } else { (to, false) };
        if self.congested.is_set(to) {
            if let Some(port) = self.ports.get_mut(&from) {
                port.wants_room = true;
            }
            return Err(SendError::Congested);
        }
        if let Some(port) = self.ports.get_mut(&from) {
            port.sent += 1;
        }
        let address = self.config.address;
        let (from, body) = if answers { (0, Vec::new()) } else { (from, body.to_vec()) };
        if !self.deliver(to, Datagram { from: address, port: from, body }) {
            self.totals.no_port += 1;
        }
        Ok(())
    }

    /// Takes what came for a port, the oldest first.
    pub fn receive(&mut self, port: u16) -> Option<Datagram> {
        let at = port;
        let port = self.ports.get_mut(&at)?;
        let datagram = port.queue.pop_front()?;
        port.queued_bytes -= datagram.body.len() + MESSAGE_COST;
        let Config { receive_buffer, overrun, .. } = self.config;
        let cleared = port.queued_bytes < receive_buffer / 2 && std::mem::take(&mut port.congested);
        if port.queued_bytes <= receive_buffer + overrun - overrun / 4 && self.full.remove(&at) {
            let paused = std::mem::take(&mut port.pausing);
            for connection in paused {
                self.resume(connection);
            }
        }
        if cleared {
            self.set_congested(at, false);
        }
        Some(datagram)
    }

    /// Puts a message into a port's queue. Returns whether the port is bound.
    fn deliver(&mut self, to: u16, datagram: Datagram) -> bool {
        let Some(port) = self.ports.get_mut(&to) else { return false };
        port.queued_bytes += datagram.body.len() + MESSAGE_COST;
        port.received += 1;
        if port.queue.is_empty() {
            self.requests.push_back(Request::Readable(to));
        }
        port.queue.push_back(datagram);
        let bytes = port.queued_bytes;
        if bytes > self.config.receive_buffer && !port.congested {
            port.congested = true;
            self.set_congested(to, true);
        }
        if bytes > self.config.receive_buffer + self.config.overrun {
            self.full.insert(to);
        }
        true
    }

    /// Full ports for which connections are paused, and since when the first of these has waited with the same
    /// message to the port: [`Time::ZERO`], which is too long, where paused connections hold more of messages
    /// that are not whole than they may.
    pub fn stopping(&self) -> impl Iterator<Item = (u16, Time)> {
        let ports = self.full.iter().filter_map(|at| Some((at, self.ports.get(at)?)));
        let is_too_much = self.partials.paused_bytes() > self.config.partials;
        ports.filter(|(_, port)| !port.pausing.is_empty()).filter_map(move |(at, port)| {
            let waiting = port.pausing.iter().filter_map(|paused| self.waits_since(*paused));
            let first = waiting.min()?;
            Some((*at, if is_too_much { Time::ZERO } else { first }))
        })
    }

    fn waits_since(&self, connection: Connection) -> Option<Time> {
        let (at, lane) = self.place_of(connection)?;
        self.peers.get(&at)?.lanes[lane].link.waits.map(|(_, since)| since)
    }

    /// Marks a port of this host as congested or not, and announces that to all peers.
    fn set_congested(&mut self, port: u16, congested: bool) {
        self.congested.set(port, congested);
        self.map_number += 1;
        for peer in self.peers.values_mut() {
            if let Some(lane) = peer.lanes.iter_mut().find(|lane| lane.is_up()) {
                lane.link.map_due = true;
                Self::ask_to_write(&mut self.requests, lane);
            }
        }
        if !congested {
            self.tell_of_room();
        }
    }

    /// Ports that were refused may try again.
    fn tell_of_room(&mut self) {
        for (at, port) in &mut self.ports {
            if port.wants_room && port.sent_bytes < self.config.send_buffer {
                port.wants_room = false;
                self.requests.push_back(Request::Room(*at));
            }
        }
    }

    /// The next request.
    pub fn poll(&mut self) -> Option<Request> {
        self.requests.pop_front()
    }

    /// Its configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    fn announcement(&self) -> Announcement {
        #[cfg(test)]
        if self.config.says_no_start {
            let lanes = Some(self.config.lanes as u16);
            return Announcement { lanes, ..Announcement::default() };
        }
        Announcement {
            lanes: Some(self.config.lanes as u16),
            generation: self.config.generation,
            port_is_lane: true,
        }
    }

    /// An old kernel takes no notice of source ports.
    #[cfg(test)]
    fn as_a_kernel_reads(&self, said: Announcement) -> Announcement {
        Announcement { port_is_lane: said.port_is_lane && !self.config.says_no_start, ..said }
    }

    fn notice(&mut self, peer: u32, what: NoticeKind, notice: impl FnOnce(IpAddr) -> Notice) {
        if let Some(peer) = self.peers.get_mut(&peer)
            && peer.give_once(what)
        {
            self.requests.push_back(Request::Notice(notice(peer.address)));
        }
    }

    /// Gives ports back the room of messages that are no longer under way to a peer.
    fn give_room(&mut self, at: u32) {
        let mut any = false;
        for (sent, bytes) in self.freed.drain(..) {
            match self.ports.get_mut(&sent.from) {
                _ if sent.from == 0 => self.answers = self.answers.saturating_sub(1),
                _ if is_of_no_port(sent.from) => {}
                Some(port) if port.binding == sent.binding => {
                    port.gets_back(at, bytes);
                    any |= port.wants_room;
                }
                _ => self.leaving_bytes = self.leaving_bytes.saturating_sub(bytes),
            }
        }
        self.answers_reported &= self.answers > ANSWERS_ALL_MAX / 2;
        if any {
            self.tell_of_room();
        }
    }
}
