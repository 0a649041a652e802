//! Two hosts in virtual time, and a network that cuts connections at any byte.
//!
//! # Model
//! A connection takes bytes, has them under way, and puts them into the other end's receive buffer,
//! where they are acknowledged, as TCP does. When it is cut, what is under way is lost, and maybe
//! acknowledgements too, but for those that came with data of the other end's; each end reads what
//! is in its buffer and then gets the end. Nothing arrives by it any more: a stream of bytes has no
//! holes. A connection that waits to be taken does so also when it was cut. A host that restarts
//! loses what is in its buffers.
//!
//! `RDS_SEED=5` runs one seed, `RDS_SEED=0..600` all of a range, and says which of them fail.
//!
//! # Invariants
//! * without a new start: each message arrives, once, and those of one port to one port in order
//! * with new starts, which may have another number of lanes: none arrives twice, whichever start gets it,
//!   and the order holds
//! * the same where a start is a program that says nothing of its start, as an old kernel, and the one
//!   before it and after it are not

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::Duration;

use hawser_time::Time;
use hawser_time::seeded::Random;

use super::{Config, Connection, LARGE, Node, Request, SMALL, address};
use crate::proto::node::{NotTaken, Notice, Progress};

#[derive(Default)]
struct End {
    connection: Option<Connection>,
    writable: bool,
    paused: bool,
    /// Given to the connection, and not at the other end yet.
    under_way: VecDeque<u8>,
    /// Came from the other end, and not read yet.
    inbox: VecDeque<u8>,
    /// The part of what this end has written that has reached the other's inbox.
    acknowledged: u64,
    /// As much of that as this end knows.
    seen: u64,
    /// As much of it as its TCP knows: what comes from the other end acknowledges what that one has got.
    known: u64,
    /// Where what is under way begins that acknowledges so much of the other end's.
    acknowledges: VecDeque<(u64, u64)>,
    finished: bool,
    /// It was reset, or read to its end.
    gone: bool,
}

struct Tcp {
    ends: [End; 2],
    dialled_by: usize,
    source_port: u16,
    established: bool,
    cut: bool,
    /// It has arrived, and waits to be taken: what the host to which it was dialled calls it.
    waits: Option<Connection>,
}

impl End {
    fn is_there(&self) -> bool {
        self.connection.is_some()
    }
}

struct Host {
    node: Node,
    start: u32,
    says_no_start: bool,
    sent: BTreeMap<(u16, u16), u32>,
}

struct World {
    random: Random,
    now: Time,
    hosts: [Host; 2],
    connections: Vec<Tcp>,
    next_port: u16,
    /// By sender, its start, its port and the receiver's: what arrived.
    arrived: BTreeMap<(usize, u32, u16, u16), Vec<Arrived>>,
    all_sent: BTreeMap<(usize, u32, u16, u16), u32>,
    duplicates: u64,
    strangers: u8,
    /// No connection is cut.
    is_whole: bool,
}

/// A message that arrived.
#[derive(Clone, Copy)]
struct Arrived {
    number: u32,
    /// By which start of the receiver's, and whether that says nothing of itself.
    by: (u32, bool),
    /// That one takes connections for any of its lanes.
    mixed: bool,
}

const ADDRESSES: [&str; 2] = [SMALL, LARGE];
const PORTS: [u16; 4] = [4001, 4002, 4003, 4004];

fn config_of(host: usize, start: u32, seed: u64) -> Config {
    let mut config = Config::new(address(ADDRESSES[host]), start * 2 + 1, seed + host as u64);
    config.receive_buffer = 60_000;
    config.send_buffer = 80_000;
    // So little that ports are full often, and messages that are not whole are too much.
    (config.overrun, config.partials) = (20_000, 200_000);
    config
}

fn host_of(config: Config, start: u32) -> Host {
    let says_no_start = config.says_no_start;
    let mut node = Node::new(config);
    for port in PORTS {
        node.bind(port).unwrap();
    }
    Host { node, start, says_no_start, sent: BTreeMap::new() }
}

fn fresh(host: usize, start: u32, lanes: usize, says_no_start: bool, seed: u64) -> Host {
    let config = config_of(host, start, seed);
    host_of(Config { lanes, says_no_start, ..config }, start)
}

impl World {
    fn new(seed: u64) -> Self {
        let mut random = Random::of_seed(seed);
        random.below(9);
        let lanes = [1, 2, 4, 8][random.below(4)];
        let host = |host| fresh(host, 0, if host == 0 { lanes } else { 8 }, false, seed);
        Self {
            random,
            now: Time::ZERO,
            hosts: [host(0), host(1)],
            connections: Vec::new(),
            next_port: 32_768,
            arrived: BTreeMap::new(),
            all_sent: BTreeMap::new(),
            duplicates: 0,
            strangers: 0,
            is_whole: false,
        }
    }

    /// One of the two is a kernel, of which generation the seed says, and the network is whole.
    fn with_a_kernel(seed: u64) -> Self {
        let mut world = Self::new(seed);
        let kernel = world.random.below(2);
        let mut config = config_of(kernel, 0, seed);
        (config.is_a_kernel, config.says_no_start) = (true, world.random.below(2) == 0);
        world.hosts[kernel] = host_of(config, 0);
        world.is_whole = true;
        world
    }

    fn requests(&mut self, host: usize) {
        while let Some(request) = self.hosts[host].node.poll() {
            match request {
                Request::Dial { connection, port_remainder, .. } => {
                    self.next_port = self.next_port.checked_add(8).unwrap_or(32_768);
                    let mut ends = [End::default(), End::default()];
                    ends[host].connection = Some(connection);
                    self.connections.push(Tcp {
                        ends,
                        dialled_by: host,
                        source_port: self.next_port / 8 * 8 + port_remainder,
                        established: false,
                        cut: false,
                        waits: None,
                    });
                }
                Request::Write(connection) => {
                    if let Some(end) = self.end(host, connection) {
                        end.writable = true;
                    }
                }
                Request::Drain(connection) => {
                    if let Some(end) = self.end(host, connection) {
                        end.finished = true;
                    }
                }
                Request::Close(connection) => {
                    if let Some(at) = self.find(host, connection) {
                        let end = &mut self.connections[at].ends[host];
                        (end.connection, end.gone) = (None, true);
                        self.connections[at].cut = true;
                    }
                }
                Request::GiveUp(connection) => {
                    if let Some(at) = self.find(host, connection) {
                        self.read(at, host, usize::MAX);
                    }
                    self.hosts[host].node.give_up(connection, self.now);
                }
                Request::Pause(connection) | Request::Resume(connection) => {
                    let paused = matches!(request, Request::Pause(_));
                    if let Some(end) = self.end(host, connection) {
                        end.paused = paused;
                    }
                }
                Request::Vacant(peer) => {
                    let is_of_peer = |tcp: &Tcp| peer == address(ADDRESSES[tcp.dialled_by]);
                    let waiting = self.connections.iter().enumerate();
                    let waiting = waiting.filter(|(_, tcp)| is_of_peer(tcp));
                    let mut waiting: Vec<_> =
                        waiting.filter_map(|(at, tcp)| Some((tcp.waits?, at))).collect();
                    waiting.sort_unstable();
                    waiting.into_iter().for_each(|(_, at)| self.offer(at));
                }
                Request::Readable(_) | Request::Room(_) => {}
                Request::Notice(notice) => assert!(
                    matches!(
                        notice,
                        Notice::Restarted(..) | Notice::Unreachable(..) | Notice::Partial(..)
                    ),
                    "{notice} without a reason"
                ),
            }
        }
    }

    fn find(&self, host: usize, connection: Connection) -> Option<usize> {
        self.connections.iter().position(|tcp| tcp.ends[host].connection == Some(connection))
    }

    fn end(&mut self, host: usize, connection: Connection) -> Option<&mut End> {
        let at = self.find(host, connection)?;
        Some(&mut self.connections[at].ends[host])
    }

    /// A connection's SYN arrives.
    fn arrive(&mut self, at: usize) {
        let tcp = &mut self.connections[at];
        if tcp.cut || std::mem::replace(&mut tcp.established, true) {
            return;
        }
        let (dialler, other) = (tcp.dialled_by, 1 - tcp.dialled_by);
        if let Some(connection) = tcp.ends[dialler].connection {
            self.hosts[dialler].node.connected(connection, self.now);
            self.requests(dialler);
        }
        self.connections[at].waits = Some(self.hosts[other].node.arrived());
        self.offer(at);
        self.requests(other);
    }

    /// A connection that has arrived is offered, when it does and whenever its peer may have a lane free: the
    /// oldest first. Also if it has ended meanwhile: what came by it is read once it is taken.
    fn offer(&mut self, at: usize) {
        let tcp = &mut self.connections[at];
        let Some(connection) = tcp.waits else { return };
        let (dialler, other) = (tcp.dialled_by, 1 - tcp.dialled_by);
        let from = address(ADDRESSES[dialler]);
        let node = &mut self.hosts[other].node;
        // An old kernel resets what it has no lane for (rds_tcp_accept_one, net/rds/tcp_listen.c).
        let waits = !(node.config().is_a_kernel && node.config().says_no_start);
        match node.accept_arrived(connection, from, tcp.source_port, self.now) {
            Ok(()) => (tcp.ends[other].connection, tcp.waits) = (Some(connection), None),
            Err(NotTaken::Wait) if waits => {}
            Err(NotTaken::Wait | NotTaken::Refuse) => {
                (tcp.cut, tcp.waits) = (true, None);
                tcp.ends[other].inbox.clear();
            }
        }
    }

    /// A handshake takes too long.
    fn give_up_dial(&mut self, at: usize) {
        let tcp = &self.connections[at];
        let host = tcp.dialled_by;
        if let Some(connection) = tcp.ends[host].connection.filter(|_| !tcp.established) {
            self.hosts[host].node.slow(connection, self.now);
            self.requests(host);
        }
    }

    fn write(&mut self, at: usize, host: usize, most: usize) {
        let Tcp { ends, cut, .. } = &mut self.connections[at];
        let end = &mut ends[host];
        let may_write = end.writable && !end.finished && !*cut;
        let Some(connection) = end.connection.filter(|_| may_write) else { return };
        let count = {
            let parts = self.hosts[host].node.to_write(connection);
            let bytes = parts[0].iter().chain(parts[1]).take(most);
            let before = end.under_way.len();
            end.under_way.extend(bytes);
            let count = end.under_way.len() - before;
            if count > 0 {
                let begins = end.acknowledged + before as u64;
                let got = ends[1 - host].acknowledged;
                ends[host].acknowledges.push_back((begins, got));
            }
            count
        };
        if count == 0 {
            ends[host].writable = false;
        }
        self.hosts[host].node.wrote(connection, count);
    }

    fn deliver(&mut self, at: usize, from: usize, most: usize) {
        let tcp = &mut self.connections[at];
        if tcp.cut || tcp.ends[1 - from].gone {
            return;
        }
        let count = most.min(tcp.ends[from].under_way.len());
        let bytes: Vec<u8> = tcp.ends[from].under_way.drain(..count).collect();
        tcp.ends[from].acknowledged += count as u64;
        tcp.ends[1 - from].inbox.extend(bytes);
        let came = tcp.ends[from].acknowledged;
        while let Some((_, got)) =
            tcp.ends[from].acknowledges.pop_front_if(|(begins, _)| *begins < came)
        {
            let known = &mut tcp.ends[1 - from].known;
            *known = got.max(*known);
        }
        // A kernel forgets at once what was acknowledged (rds_tcp_write_space, net/rds/tcp_send.c).
        let (known, config) = (tcp.ends[1 - from].known, self.hosts[1 - from].node.config());
        if config.is_a_kernel || config.says_no_start {
            self.acknowledge(at, 1 - from, known);
        }
    }

    fn read(&mut self, at: usize, host: usize, most: usize) {
        if let Some(connection) = self.connections[at].ends[host].connection {
            for before in self.hosts[host].node.read_before(connection, self.now) {
                if let Some(before) = self.find(host, before) {
                    self.read_one(before, host, usize::MAX);
                }
            }
        }
        self.read_one(at, host, most);
    }

    fn read_one(&mut self, at: usize, host: usize, most: usize) {
        let end = &mut self.connections[at].ends[host];
        let Some(connection) = end.connection.filter(|_| !end.paused) else { return };
        let mut count = most.min(end.inbox.len());
        let node = &mut self.hosts[host].node;
        if node.must_ask(connection, self.now) {
            let bytes: Vec<u8> = end.inbox.range(..count).copied().collect();
            count = node.may_take(connection, &bytes, self.now);
        }
        let bytes: Vec<u8> = end.inbox.drain(..count).collect();
        self.hosts[host].node.received(connection, &bytes, self.now);
        self.requests(host);
    }

    fn acknowledge_all(&mut self, at: usize, host: usize) {
        let count = self.connections[at].ends[host].acknowledged;
        self.acknowledge(at, host, count);
    }

    fn acknowledge(&mut self, at: usize, host: usize, count: u64) {
        let end = &mut self.connections[at].ends[host];
        if let Some(connection) = end.connection.filter(|_| count >= end.seen) {
            end.seen = count;
            let left = !end.under_way.is_empty();
            let progress = Progress {
                acknowledged: count,
                has_unsent: left,
                rtt: Duration::from_millis(1),
                ..Progress::default()
            };
            self.hosts[host].node.acknowledged(connection, progress, self.now);
            self.requests(host);
        }
    }

    /// Both ends of what was cut, or was finished by one of them, get that; in any order.
    fn bury(&mut self, at: usize) {
        let tcp = &mut self.connections[at];
        if !tcp.cut && tcp.ends.iter().any(|end| end.finished) {
            // What was written before the end comes before the end.
            for from in [0, 1] {
                self.deliver(at, from, usize::MAX);
            }
            self.connections[at].cut = true;
        }
        if !self.connections[at].cut {
            return;
        }
        let host = self.random.below(2);
        for host in [host, 1 - host] {
            let lost = self.random.below(2) == 0;
            let end = &mut self.connections[at].ends[host];
            end.under_way.clear();
            if lost {
                end.acknowledged = end.seen.max(end.known);
            }
            self.read(at, host, usize::MAX);
            let end = &mut self.connections[at].ends[host];
            if end.paused || (end.connection.is_some() && !end.inbox.is_empty()) {
                continue; // it gets the end after what came before
            }
            end.gone = true;
            self.acknowledge_all(at, host);
            let tcp = &mut self.connections[at];
            let dialling = host == tcp.dialled_by && !tcp.established;
            if let Some(connection) = tcp.ends[host].connection.take() {
                let node = &mut self.hosts[host].node;
                if dialling {
                    node.failed(connection, "refused", self.now);
                } else {
                    node.closed(connection, self.now);
                }
                self.requests(host);
            }
        }
    }

    fn send(&mut self, host: usize) {
        let (from, to) = (PORTS[self.random.below(4)], PORTS[self.random.below(4)]);
        let size = match self.random.below(20) {
            0 => self.random.below(70_000),
            1..5 => self.random.below(3000),
            _ => self.random.below(60),
        };
        let start = self.hosts[host].start;
        let number = self.hosts[host].sent.get(&(from, to)).copied().unwrap_or(0);
        let mut body = Vec::with_capacity(16 + size);
        for word in [host as u32, start, u32::from(from), number] {
            body.extend(word.to_be_bytes());
        }
        body.resize(16 + size, number as u8);
        let other = address(ADDRESSES[1 - host]);
        if self.hosts[host].node.send(from, (other, to), &body, self.now).is_ok() {
            self.hosts[host].sent.insert((from, to), number + 1);
            self.all_sent.insert((host, start, from, to), number + 1);
        }
        self.requests(host);
    }

    fn receive(&mut self, host: usize, port: u16) -> bool {
        let Some(datagram) = self.hosts[host].node.receive(port) else { return false };
        let word =
            |at: usize| u32::from_be_bytes(datagram.body[at * 4..at * 4 + 4].try_into().unwrap());
        assert_eq!(
            (datagram.from, word(2)),
            (address(ADDRESSES[word(0) as usize]), u32::from(datagram.port))
        );
        let number = word(3);
        assert!(datagram.body[16..].iter().all(|byte| *byte == number as u8));
        let key = (word(0) as usize, word(1), datagram.port, port);
        let Host { node, start, says_no_start, .. } = &self.hosts[host];
        let mixed = *says_no_start && node.config().lanes > 1;
        let arrived = Arrived { number, by: (*start, *says_no_start), mixed };
        self.arrived.entry(key).or_default().push(arrived);
        self.requests(host);
        true
    }

    fn restart(&mut self, host: usize, as_kernel: bool) {
        self.duplicates += self.count_duplicates(host);
        for at in 0..self.connections.len() {
            let tcp = &mut self.connections[at];
            tcp.ends[host].connection = None;
            tcp.ends[host].inbox.clear();
            tcp.ends[host].gone = true;
            tcp.waits = tcp.waits.filter(|_| tcp.dialled_by == host);
            tcp.cut = true;
        }
        let start = self.hosts[host].start + 1;
        let says_no_start =
            as_kernel && !self.hosts[host].says_no_start && self.random.below(2) == 0;
        let lanes = [1, 2, 4, 8][self.random.below(4)];
        self.hosts[host] = fresh(host, start, lanes, says_no_start, u64::from(start) * 77);
    }

    fn count_duplicates(&self, host: usize) -> u64 {
        let report = self.hosts[host].node.report();
        let lanes = report.peers.iter().flat_map(|peer| &peer.lanes);
        lanes.map(|lane| lane.counts.duplicates).sum()
    }

    fn pass(&mut self, micros: u64) {
        self.now = self.now.after(Duration::from_micros(micros));
        for host in [0, 1] {
            self.hosts[host].node.tick(self.now);
            self.requests(host);
        }
    }

    fn chaos(&mut self, steps: usize, restarts: Restarts) {
        for _ in 0..steps {
            let host = self.random.below(2);
            let size = [1, 30, 48, 500, 9000, 100_000][self.random.below(6)];
            let most = 1 + self.random.below(size);
            let count = self.connections.len();
            let at = self.random.below(count);
            match self.random.below(100) {
                0..15 => self.send(host),
                15..25 => {
                    self.receive(host, PORTS[most % 4]);
                }
                25..32 => {
                    let micros = self.random.below(3000) as u64;
                    self.pass(micros);
                    // A lane that breaks again and again is dialled a second later.
                    if most.is_multiple_of(8) {
                        self.exchange();
                        self.pass(100 * micros);
                    }
                }
                _ if count == 0 => {}
                32 | 96..99 if self.is_whole => {}
                32 => self.give_up_dial(at),
                33..45 => self.arrive(at),
                45..62 => self.write(at, host, most),
                62..79 => self.deliver(at, host, most),
                79..92 => self.read(at, host, most),
                92..96 => self.acknowledge_all(at, host),
                96..98 => self.bury(at),
                98 => self.connections[at].cut = true,
                _ if restarts != Restarts::None && self.random.below(20) == 0 => {
                    self.restart(host, restarts == Restarts::AsKernels);
                }
                _ => {}
            }
            self.bury_those_gone();
        }
    }

    fn bury_those_gone(&mut self) {
        self.connections
            .retain(|tcp| !tcp.cut || tcp.waits.is_some() || tcp.ends.iter().any(End::is_there));
    }

    /// One more peer sends the beginning of a message, and not the rest.
    fn stranger(&mut self, host: usize) {
        self.strangers = self.strangers.wrapping_add(1);
        let from = core::net::IpAddr::from([9, 0, 0, self.strangers]);
        let node = &mut self.hosts[host].node;
        if let Ok(connection) = node.accept(from, 40_000, self.now) {
            let whole = super::message(1, 9, 9, 0, &[7; 60_000]);
            node.received(connection, &[super::kernel_map(), whole].concat()[..60_000], self.now);
            self.requests(host);
        }
    }

    /// All that is under way arrives: messages to a host that says nothing for a second after the
    /// first contact may come twice if it restarts then.
    fn exchange(&mut self) {
        for at in 0..self.connections.len() {
            self.arrive(at);
            for host in [0, 1] {
                self.write(at, host, 9000);
                self.deliver(at, host, usize::MAX);
            }
            for host in [0, 1] {
                self.read(at, host, usize::MAX);
            }
        }
    }

    /// The network does its best until nothing is left to do.
    fn settle(&mut self) {
        let mut quiet = 0;
        for _ in 0..4000 {
            let mut any = false;
            for at in 0..self.connections.len() {
                self.bury(at);
            }
            self.bury_those_gone();
            for at in 0..self.connections.len() {
                self.arrive(at);
                for host in [0, 1] {
                    self.write(at, host, usize::MAX);
                    self.deliver(at, host, usize::MAX);
                }
                for host in [0, 1] {
                    self.read(at, host, usize::MAX);
                    self.acknowledge_all(at, host);
                }
            }
            for host in [0, 1] {
                for port in PORTS {
                    while self.receive(host, port) {
                        any = true;
                    }
                }
            }
            self.pass(20_000);
            let idle = self.hosts.iter().all(|host| {
                let report = host.node.report();
                let known = |address| ADDRESSES.iter().any(|text| super::address(text) == address);
                let mut peers = report.peers.iter().filter(|peer| known(peer.address));
                peers.all(|peer| peer.lanes.iter().all(|lane| lane.queued == 0))
            });
            // A connection may wait for a while before it is read on.
            let is_read = |end: &End| end.connection.is_none() || end.inbox.is_empty();
            let all_read = self.connections.iter().flat_map(|tcp| &tcp.ends).all(is_read);
            quiet = if any || !idle || !all_read { 0 } else { quiet + 1 };
            if quiet > 3 {
                return;
            }
        }
        for host in &self.hosts {
            eprintln!("{:#?}", host.node.report());
        }
        panic!("messages are left that nothing moves");
    }

    fn check(&self, complete: bool) {
        for (key, all) in &self.arrived {
            // A host with several lanes compares what it gets with the numbers of any of them. And
            // if a host says nothing, no peer can know that another program has taken its place.
            let again = |one: &Arrived| {
                all.iter().any(|other| other.number == one.number && other.by != one.by)
            };
            let numbers = all.iter().filter(|one| !(one.mixed || one.by.1 && again(one)));
            let numbers: Vec<u32> = numbers.map(|one| one.number).collect();
            let once: BTreeSet<u32> = numbers.iter().copied().collect();
            assert_eq!(once.len(), numbers.len(), "{key:?} has one twice: {numbers:?}");
            assert!(numbers.is_sorted(), "{key:?} is out of order: {numbers:?}");
        }
        if complete {
            (0..2).for_each(|host| self.check_all_of(host));
        }
    }

    /// All that a host has sent has arrived.
    fn check_all_of(&self, host: usize) {
        for (key, count) in self.all_sent.iter().filter(|(key, _)| key.0 == host) {
            let arrived = self.arrived.get(key).map_or(0, Vec::len);
            assert_eq!(arrived, *count as usize, "{key:?}");
        }
    }
}

impl World {
    /// After all that, nothing is lost of what the two send each other from now on.
    fn goes_on(&mut self) {
        let arrived = |world: &Self| world.arrived.values().map(Vec::len).sum::<usize>();
        let sent = |world: &Self| world.all_sent.values().sum::<u32>() as usize;
        let before = (arrived(self), sent(self));
        (0..200).for_each(|number| self.send(number % 2));
        self.settle();
        assert_eq!(arrived(self) - before.0, sent(self) - before.1);
        self.check(false);
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Restarts {
    None,
    AsHawsers,
    AsKernels,
}

/// The seeds that `RDS_SEED` asks for.
fn asked_for() -> Option<std::ops::Range<u64>> {
    let text = std::env::var("RDS_SEED").ok()?;
    let (from, to) = text.split_once("..").unwrap_or((&text, ""));
    let from = from.parse().expect("RDS_SEED is a number or a range of them");
    Some(from..to.parse().unwrap_or(from + 1))
}

/// Runs each seed, and says which ones fail. Returns how many messages came again in all.
fn play(
    default: std::ops::Range<u64>,
    run: impl Fn(u64) -> u64 + std::panic::RefUnwindSafe,
) -> u64 {
    let mut failed = Vec::new();
    let mut duplicates = 0;
    for seed in asked_for().unwrap_or(default) {
        match std::panic::catch_unwind(|| run(seed)) {
            Ok(count) => duplicates += count,
            Err(_) => failed.push(seed),
        }
    }
    assert!(failed.is_empty(), "RDS_SEED={} repeats it; all of them: {failed:?}", failed[0]);
    duplicates
}

#[test]
fn each_message_arrives_once_and_in_order_however_often_connections_are_cut() {
    let duplicates = play(0..40, |seed| {
        let mut world = World::new(seed);
        world.chaos(2500, Restarts::None);
        world.settle();
        world.check(true);
        world.count_duplicates(0) + world.count_duplicates(1)
    });
    assert!(duplicates > 0 || asked_for().is_some(), "nothing was sent again");
}

/// A port's messages went by the first lane until its kernel knew of others, and the next one overtook them.
#[test]
fn what_kernels_send_before_they_know_of_lanes_is_in_order() {
    play(4000..4200, |seed| {
        let mut world = World::with_a_kernel(seed);
        world.chaos(1000, Restarts::None);
        world.settle();
        world.check(true);
        0
    });
}

/// (What is cut before both know how many lanes there are may be taken for another lane's.)
#[test]
fn what_kernels_send_once_lanes_are_known_is_in_order_however_often_connections_are_cut() {
    play(5000..5040, |seed| {
        let mut world = World::with_a_kernel(seed);
        world.chaos(300, Restarts::None);
        world.settle();
        world.is_whole = false;
        world.chaos(2500, Restarts::None);
        world.settle();
        world.check(false);
        // (An old one loses something of what it is sent: docs/datagrams.md.)
        for host in (0..2).filter(|host| !world.hosts[1 - host].says_no_start) {
            world.check_all_of(host);
        }
        world.count_duplicates(0) + world.count_duplicates(1)
    });
}

/// A connection that waits for a full port was reset for the memory of its half message, and what TCP had
/// acknowledged of it was lost.
#[test]
fn beginnings_of_messages_by_strangers_cost_others_nothing() {
    let duplicates = play(3000..3030, |seed| {
        let mut world = World::new(seed);
        for _ in 0..60 {
            world.chaos(40, Restarts::None);
            let host = world.random.below(2);
            world.stranger(host);
        }
        world.settle();
        world.check(true);
        world.count_duplicates(0) + world.count_duplicates(1)
    });
    assert!(duplicates > 0 || asked_for().is_some(), "nothing was sent again");
}

#[test]
fn hosts_that_restart_get_nothing_twice() {
    play(1000..1040, |seed| {
        let mut world = World::new(seed);
        world.chaos(3000, Restarts::AsHawsers);
        world.settle();
        world.check(false);
        world.goes_on();
        world.duplicates
    });
}

#[test]
fn hosts_that_become_other_programs_get_nothing_twice() {
    play(2000..2040, |seed| {
        let mut world = World::new(seed);
        world.chaos(3000, Restarts::AsKernels);
        world.settle();
        world.check(false);
        world.goes_on();
        world.duplicates
    });
}
