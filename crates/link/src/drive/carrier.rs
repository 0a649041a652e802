//! Sockets for one session: its paths, and the local connections of its streams.
//!
//! # Model
//! The session gives requests ([`Session::poll`]); this carries them out and reports the results.
//! The worker reports events, and calls [`Carrier::turn`] after them.
//!
//! # Invariants
//! * of a local socket no more is read than the session has room for
//! * a stream that ends with a reason has its local socket reset, never closed in order
//! * what a local socket gave before it broke is delivered before the stream is reset, and has reached the
//!   host of the program there before that one's connection is

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use hawser_congestion::cc::Congestion;
use hawser_congestion::cc::usage::CongestionUsage;
use hawser_multipath::paths::action::PairId;
use hawser_sys::dial::{close_with_reset, dial_from, dial_result};
use hawser_sys::epoll::{Epoll, Event};
use hawser_sys::stream::{TcpOptions, recv, send_vectored, set_tcp_options, shutdown_sending};
use hawser_sys::tcp_info::{TcpInfo, tcp_info};
use hawser_time::Time;
use tracing::{info, warn};

use super::connection::{Broken, Connection, Phase};
use super::keys::PublicKey;
use super::resolving::Resolving;
use crate::proto::frame::Reason;
use crate::proto::past::PAST_MAX;
use crate::proto::path::PathEnd;
use crate::proto::session::{Notice, Request, Session, Unsent};
use crate::proto::{PathId, StreamId};

/// Bytes that a path is given at once.
const WRITE_BYTES: usize = 64 << 10;
/// Reads of a local socket before others have their turn.
const READS_MAX: usize = 4;
/// TCP and TLS of a path, and TCP to a target, have so long.
pub const DIAL_MAX: Duration = Duration::from_secs(5);
/// Pairs of addresses that a far end tells apart.
const PAIRS_MAX: usize = 256;
/// How often local sockets are looked at that still hold a broken peer's last bytes.
const DRAIN_EACH: Duration = Duration::from_millis(20);
/// Keepalive of local sockets: a program whose host has gone is found out.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// The kinds of what epoll watches for a session, in the upper bits of its number.
const PATH: u64 = 4 << 61;
const LOCAL: u64 = 5 << 61;
const KIND: u64 = 7 << 61;
const CARRIER_SHIFT: u32 = 40;
const ID: u64 = (1 << CARRIER_SHIFT) - 1;

/// What a number that epoll gives means, if it is a session's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// A path of this session.
    Path(u64, PathId),
    /// A local socket of this session.
    Local(u64, StreamId),
}

impl Mark {
    /// The number for epoll and for lookups.
    #[must_use]
    pub fn number(self) -> u64 {
        match self {
            Self::Path(carrier, PathId(id)) => PATH | carrier << CARRIER_SHIFT | id & ID,
            Self::Local(carrier, StreamId(id)) => LOCAL | carrier << CARRIER_SHIFT | id & ID,
        }
    }

    /// What a number stands for.
    #[must_use]
    pub fn of(number: u64) -> Option<Self> {
        let (carrier, id) = ((number & !KIND) >> CARRIER_SHIFT, number & ID);
        match number & KIND {
            PATH => Some(Self::Path(carrier, PathId(id))),
            LOCAL => Some(Self::Local(carrier, StreamId(id))),
            _ => None,
        }
    }
}

/// What dials paths.
pub struct Dialling {
    /// Between which addresses.
    pub pairs: Vec<Pair>,
    /// TLS.
    pub tls: std::sync::Arc<rustls::ClientConfig>,
}

/// Addresses between which paths are dialled.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pair {
    /// This machine's; none: the route's.
    pub from: Option<IpAddr>,
    /// The far end's `host:port`.
    pub to: String,
}

impl Pair {
    /// Each own address with each of the far end's; where there are as many of both, the first with the
    /// first and so on: a line has one of each.
    #[must_use]
    pub fn all(from: &[IpAddr], to: &[String]) -> Vec<Self> {
        let pair =
            |from: Option<&IpAddr>, to: &String| Self { from: from.copied(), to: to.clone() };
        match from {
            [] => to.iter().map(|to| pair(None, to)).collect(),
            from if from.len() == to.len() => {
                from.iter().zip(to).map(|(from, to)| pair(Some(from), to)).collect()
            }
            from => {
                let each = to.iter().flat_map(|to| from.iter().map(move |from| (from, to)));
                each.map(|(from, to)| pair(Some(from), to)).collect()
            }
        }
    }
}

/// What a carrier needs of its worker.
pub struct Around<'a> {
    /// The worker's epoll set.
    pub epoll: &'a Epoll,
    /// What looks names up.
    pub resolving: &'a Resolving,
    /// Where reads go first.
    pub buffer: &'a mut [u8],
    /// The near end.
    pub dialling: Option<&'a Dialling>,
    /// The far end: what may be reached.
    pub targets: &'a BTreeSet<String>,
    /// What congestion control paths have.
    pub congestion: (&'a CongestionUsage, Congestion),
    /// Now.
    pub now: Time,
}

enum LocalPhase {
    /// The far end: its address is looked up.
    Resolving,
    /// The far end: TCP is on its way; these addresses are left.
    Connecting(Vec<SocketAddr>),
    Open,
    /// Nothing can be written to it any more: what it has sent is read, then the stream is reset.
    Broken,
    /// The stream has ended, and is reset here once the program's host has all.
    Draining,
}

impl LocalPhase {
    fn is_early(&self) -> bool {
        matches!(self, Self::Resolving | Self::Connecting(_))
    }
}

/// How far the end is that a local socket is given.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Finish {
    No,
    /// It is to be given once all before it is.
    Due,
    Given,
}

struct Local {
    fd: Option<OwnedFd>,
    phase: LocalPhase,
    since: Time,
    readable: bool,
    writable: bool,
    /// It has given its end.
    ended: bool,
    finish: Finish,
}

/// A session and its sockets.
pub struct Carrier {
    number: u64,
    /// The link's name, or the peer's key.
    name: String,
    peer: Option<PublicKey>,
    session: Session,
    paths: BTreeMap<PathId, Connection>,
    locals: BTreeMap<StreamId, Local>,
    paths_to_read: BTreeSet<PathId>,
    locals_to_serve: BTreeSet<StreamId>,
    /// Local sockets that still hold a broken peer's last bytes, and when they are looked at next.
    draining: BTreeSet<StreamId>,
    drain_at: Time,
    sampled: Time,
    dials: usize,
    /// Near: paths whose far end's name is looked up. Far: the pairs of addresses that paths came by.
    resolving: BTreeMap<PathId, PairId>,
    pairs: BTreeMap<(IpAddr, IpAddr), PairId>,
    /// Addresses of paths that have ended, for as many as the session reports.
    past: VecDeque<(PathId, (IpAddr, SocketAddr))>,
    /// Streams that had sent nothing when the session ended.
    unsent: Vec<(OwnedFd, Unsent)>,
    over: bool,
}

impl Carrier {
    /// Of a session; `number` is its own among the worker's.
    #[must_use]
    pub fn new(number: u64, name: String, peer: Option<PublicKey>, session: Session) -> Self {
        Self {
            number,
            name,
            peer,
            session,
            paths: BTreeMap::new(),
            locals: BTreeMap::new(),
            paths_to_read: BTreeSet::new(),
            locals_to_serve: BTreeSet::new(),
            draining: BTreeSet::new(),
            drain_at: Time::ZERO,
            sampled: Time::ZERO,
            dials: number as usize,
            resolving: BTreeMap::new(),
            pairs: BTreeMap::new(),
            past: VecDeque::new(),
            unsent: Vec::new(),
            over: false,
        }
    }

    /// What it carries.
    #[must_use]
    pub fn session(&self) -> &Session {
        &self.session
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The key of the end that began it: only that one may add paths.
    #[must_use]
    pub fn peer(&self) -> Option<PublicKey> {
        self.peer
    }

    /// Whether the session has ended, and nothing of it is left.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.over
    }

    /// The far end: takes a path that has greeted, with the version that both ends speak. The connection is given back where there are too many.
    ///
    /// # Errors
    /// The connection: it is to be refused.
    pub fn join(
        &mut self,
        mut connection: Connection,
        version: u8,
        around: &mut Around<'_>,
    ) -> Result<(), Box<Connection>> {
        connection.use_congestion(around.congestion.0, around.congestion.1);
        let pair = self.pair_of(&connection);
        let Ok(path) = self.session.join(pair, version, around.now) else {
            return Err(Box::new(connection));
        };
        let mark = Mark::Path(self.number, path).number();
        if around
            .epoll
            .delete(connection.fd())
            .and_then(|()| around.epoll.add(connection.fd(), mark))
            .is_err()
        {
            self.session.lost(path, PathEnd::Closed, around.now);
            return Err(Box::new(connection));
        }
        self.paths.insert(path, connection);
        self.paths_to_read.insert(path);
        Ok(())
    }

    /// The number of the addresses that a path came by.
    fn pair_of(&mut self, connection: &Connection) -> PairId {
        let Some((own, peer)) = connection.addresses() else { return PairId(u32::MAX) };
        if self.pairs.len() >= PAIRS_MAX {
            self.pairs.clear(); // a peer with ever new addresses: paths that are there keep their numbers
        }
        let next = PairId(self.pairs.values().map(|pair| pair.0 + 1).max().unwrap_or(0));
        *self.pairs.entry((own, peer.ip())).or_insert(next)
    }

    /// Its paths' addresses, its own and the peer's: also of the last that have ended.
    #[must_use]
    pub fn addresses(&self, path: PathId) -> Option<(IpAddr, SocketAddr)> {
        let past = || self.past.iter().find(|(id, _)| *id == path).map(|(_, addresses)| *addresses);
        self.paths.get(&path).map_or_else(past, Connection::addresses)
    }

    /// Which congestion control a path has.
    #[must_use]
    pub fn congestion(&self, path: PathId) -> Option<String> {
        self.paths.get(&path).and_then(Connection::congestion)
    }

    /// The session has no use for a path any more.
    fn drop_path(&mut self, id: PathId) {
        self.resolving.remove(&id);
        // Refusals and the like are on their way; a dead one has nothing to lose.
        let Some(path) = self.paths.remove(&id) else { return };
        if let Some(addresses) = path.addresses() {
            if self.past.len() == PAST_MAX {
                self.past.pop_front();
            }
            self.past.push_back((id, addresses));
        }
    }

    /// The near end: a program has connected and wants to reach `target`.
    pub fn open(&mut self, fd: OwnedFd, target: &str, around: &mut Around<'_>) {
        self.open_stream(fd, target, around);
    }

    /// The near end: a stream of a session that the far end has forgotten, which had sent nothing.
    pub fn reopen(&mut self, fd: OwnedFd, unsent: &Unsent, around: &mut Around<'_>) {
        let Some(stream) = self.open_stream(fd, &unsent.target, around) else { return };
        self.session.put(stream, &unsent.bytes, around.now);
        if unsent.ended {
            self.session.ended(stream);
        }
        if let Some(local) = self.locals.get_mut(&stream) {
            local.ended = unsent.ended;
        }
    }

    /// What is to be opened in the next session.
    pub fn take_unsent(&mut self) -> Vec<(OwnedFd, Unsent)> {
        std::mem::take(&mut self.unsent)
    }

    fn open_stream(
        &mut self,
        fd: OwnedFd,
        target: &str,
        around: &mut Around<'_>,
    ) -> Option<StreamId> {
        let stream = match self.session.open(target, around.now) {
            Ok(stream) => stream,
            Err(error) => {
                warn!(link = self.name, target, ?error, "a connection is turned away");
                close_with_reset(fd);
                return None;
            }
        };
        let mut local = Local {
            fd: None,
            phase: LocalPhase::Open,
            since: around.now,
            readable: true,
            writable: true,
            ended: false,
            finish: Finish::No,
        };
        if let Err(error) = self.watch_local(stream, &fd, around) {
            warn!(link = self.name, target, "a connection cannot be watched: {error}");
            close_with_reset(fd);
            self.session.failed(stream, Reason::Local);
            return None;
        }
        local.fd = Some(fd);
        self.locals.insert(stream, local);
        self.locals_to_serve.insert(stream);
        Some(stream)
    }

    fn watch_local(&self, stream: StreamId, fd: &OwnedFd, around: &Around<'_>) -> io::Result<()> {
        let options =
            TcpOptions { keepalive: true, keepalive_idle: KEEPALIVE, ..TcpOptions::default() };
        // A pool's is no TCP socket; it works without them.
        let _ = set_tcp_options(fd, &options);
        around.epoll.add(fd, Mark::Local(self.number, stream).number())
    }

    /// Epoll has an event of a path.
    pub fn path_happened(&mut self, id: PathId, event: Event) {
        if let Some(path) = self.paths.get_mut(&id) {
            path.happened(event.readable, event.writable);
            self.paths_to_read.insert(id);
        }
    }

    /// Epoll has an event of a local socket.
    pub fn local_happened(&mut self, id: StreamId, event: Event) {
        if let Some(local) = self.locals.get_mut(&id) {
            local.readable |= event.readable;
            local.writable |= event.writable;
            self.locals_to_serve.insert(id);
        }
    }

    /// A lookup has ended.
    pub fn resolved(&mut self, mark: Mark, found: Vec<SocketAddr>, around: &mut Around<'_>) {
        match mark {
            Mark::Path(_, path) => {
                if let Some(pair) = self.resolving.remove(&path) {
                    self.dial_at(path, pair, &found, around);
                }
            }
            Mark::Local(_, stream) => self.connect_at(stream, found, around),
        }
    }

    /// The process ends: the goodbye to the peer goes before all else that waits for a path. The
    /// rest of the paths must be sent ([`Connection::leave`]).
    pub fn bye(&mut self, around: &mut Around<'_>) -> Vec<Connection> {
        self.session.bye();
        let mut left = Vec::new();
        for (id, mut path) in std::mem::take(&mut self.paths) {
            let mut plain = Vec::new();
            self.session.fill(id, &mut plain, 0, around.now); // what the path itself has to say
            if path.phase() == Phase::Open && path.write(&plain).is_ok() {
                left.push(path);
            }
        }
        for (_, local) in std::mem::take(&mut self.locals) {
            if let Some(fd) = local.fd {
                close_with_reset(fd);
            }
        }
        left
    }

    /// Ends the paths of peers whose keys are no longer known, and those whose peers are not proved yet:
    /// a key may have been looked up before it was revoked. These are dialled again.
    pub fn end_unknown(&mut self, known: &[PublicKey], around: &mut Around<'_>) {
        let unknown = |path: &Connection| path.peer().is_none_or(|key| !known.contains(&key));
        let ids: Vec<PathId> =
            self.paths.iter().filter(|(_, path)| unknown(path)).map(|(id, _)| *id).collect();
        for id in ids {
            self.session.lost(id, PathEnd::Closed, around.now);
        }
        self.requests(around);
    }

    /// Whether something is to be done without waiting.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        !self.paths_to_read.is_empty() || !self.locals_to_serve.is_empty()
    }

    /// How long it may be left alone.
    #[must_use]
    pub fn longest_wait(&self, now: Time) -> Duration {
        let mut wait = self.session.until_tick(now).unwrap_or(Duration::MAX);
        if self.paths.keys().any(|path| self.session.wants_sample(*path)) {
            wait = wait.min(self.session.samples_each());
        }
        if !self.draining.is_empty() {
            wait = wait.min(self.drain_at.since(now));
        }
        let dialling = self.paths.values().filter(|path| path.phase() != Phase::Open);
        let dials = dialling.map(|path| path.since);
        let connects = self.locals.values().filter(|local| local.phase.is_early());
        let first = dials.chain(connects.map(|local| local.since)).min();
        first.map_or(wait, |since| wait.min(since.after(DIAL_MAX).since(now)))
    }

    /// Reads, writes and does what is due.
    pub fn turn(&mut self, around: &mut Around<'_>) {
        for id in std::mem::take(&mut self.paths_to_read) {
            self.read_path(id, around);
            self.requests(around);
        }
        for id in std::mem::take(&mut self.locals_to_serve) {
            self.serve_local(id, around);
        }
        self.drain(around.now);
        self.sample(around);
        self.expire(around);
        self.session.tick(around.now);
        self.requests(around);
    }

    fn read_path(&mut self, id: PathId, around: &mut Around<'_>) {
        let Some(path) = self.paths.get_mut(&id) else { return };
        if path.phase() != Phase::Open {
            match path.advance(around.buffer) {
                Ok(true) => {
                    path.use_congestion(around.congestion.0, around.congestion.1);
                    // Whether that end takes this one's key is known by its Welcome.
                    info!(link = self.name, path = id.0, "the far end is authenticated");
                    self.session.dialled(id, around.now);
                }
                Ok(false) => return,
                Err(broken) => return self.path_broke(id, &broken, around.now),
            }
        }
        let session = &mut self.session;
        let read = path.read(around.buffer, |plain| {
            session.received(id, plain, around.now);
            !session.has_ended()
        });
        if let Err(broken) = read {
            return self.path_broke(id, &broken, around.now);
        }
        if path.is_readable() {
            self.paths_to_read.insert(id);
        }
        // There may be room again.
        self.write_path(id, around);
    }

    fn path_broke(&mut self, id: PathId, broken: &Broken, now: Time) {
        let end = match self.paths.get(&id).map(Connection::phase) {
            Some(Phase::Open) if self.session.greets(id) => PathEnd::NotGreeted,
            Some(Phase::Open) => PathEnd::Closed,
            _ => PathEnd::NotDialled,
        };
        info!(link = self.name, path = id.0, "a path broke: {broken}");
        self.session.lost(id, end, now);
    }

    fn write_path(&mut self, id: PathId, around: &mut Around<'_>) {
        let Some(path) = self.paths.get_mut(&id) else { return };
        if path.phase() != Phase::Open {
            return;
        }
        let mut plain = Vec::new();
        let result = loop {
            if let Err(broken) = path.flush() {
                break Err(broken);
            }
            if !path.is_writable() {
                self.session.full(id);
                break Ok(());
            }
            plain.clear();
            self.session.fill(id, &mut plain, WRITE_BYTES, around.now);
            if plain.is_empty() {
                break Ok(());
            }
            if let Err(broken) = path.write(&plain) {
                break Err(broken);
            }
        };
        if let Err(broken) = result {
            self.read_last(id, around);
            self.path_broke(id, &broken, around.now);
        }
    }

    /// A path can be written no more. What its peer has said before may still be there to read: that its
    /// process ends, for one.
    fn read_last(&mut self, id: PathId, around: &mut Around<'_>) {
        let Some(path) = self.paths.get_mut(&id) else { return };
        path.happened(true, false);
        let session = &mut self.session;
        // Nothing comes after: what the kernel holds is the bound.
        while path.is_readable() && !session.has_ended() {
            let read = path.read(around.buffer, |plain| {
                session.received(id, plain, around.now);
                !session.has_ended()
            });
            if read.is_err() {
                return;
            }
        }
    }

    fn sample(&mut self, around: &Around<'_>) {
        if around.now.since(self.sampled) < self.session.samples_each() {
            return;
        }
        self.sampled = around.now;
        for (id, path) in &mut self.paths {
            if self.session.wants_sample(*id)
                && let Some(sample) = path.sample()
            {
                self.session.sampled(*id, sample, around.now);
            }
        }
    }

    fn expire(&mut self, around: &mut Around<'_>) {
        let late = |since: Time| around.now.since(since) >= DIAL_MAX;
        let paths =
            self.paths.iter().filter(|(_, path)| path.phase() != Phase::Open && late(path.since));
        for id in paths.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.session.lost(id, PathEnd::NotDialled, around.now);
        }
        let waits = |local: &Local| local.phase.is_early() && late(local.since);
        let locals = self.locals.iter().filter(|(_, local)| waits(local));
        for id in locals.map(|(id, _)| *id).collect::<Vec<_>>() {
            self.connect_next(id, around);
        }
    }

    /// Does what the session asks for.
    fn requests(&mut self, around: &mut Around<'_>) {
        while let Some(request) = self.session.poll() {
            match request {
                Request::Dial(path, pair) => self.dial(path, pair, around),
                Request::Write(path) => self.write_path(path, around),
                Request::Drop(path) => self.drop_path(path),
                Request::Connect(stream, target) => self.connect(stream, &target, around),
                Request::Deliver(stream) | Request::Room(stream) => {
                    self.serve_local(stream, around);
                }
                Request::Finish(stream) => {
                    // A peer may say it twice.
                    if let Some(local) = self.locals.get_mut(&stream)
                        && local.finish == Finish::No
                    {
                        local.finish = Finish::Due;
                    }
                    self.serve_local(stream, around);
                }
                Request::Drain(stream) => {
                    self.locals_to_serve.remove(&stream);
                    // One that is not connected yet was given nothing.
                    if let Some(local) = self.locals.get_mut(&stream)
                        && !local.phase.is_early()
                    {
                        local.phase = LocalPhase::Draining;
                    }
                    self.draining.insert(stream);
                    self.drain_at = around.now;
                    self.drain(around.now);
                }
                Request::Reopen(stream, unsent) => self.release(stream, unsent, around),
                Request::Close(stream, reason) => self.close(stream, reason),
                Request::Ended(reason) => {
                    if let Some(reason) = reason {
                        warn!(link = self.name, "the session has ended: {reason}");
                    }
                    self.over = true;
                }
                Request::Notice(Notice::Search(event)) => {
                    info!(link = self.name, "{event}");
                }
                Request::Notice(Notice::PathUp(path)) => {
                    info!(link = self.name, path = path.0, "a path is up");
                }
                Request::Notice(Notice::PathLost(path, end, left)) => {
                    info!(link = self.name, path = path.0, left, "a path has ended: {end}");
                }
            }
        }
    }

    /// Looks whether the programs' hosts have what local sockets were given before their streams ended.
    fn drain(&mut self, now: Time) {
        if self.draining.is_empty() || now < self.drain_at {
            return;
        }
        self.drain_at = now.after(DRAIN_EACH);
        for id in &self.draining {
            let local = self.locals.get(id);
            let local = local.filter(|local| matches!(local.phase, LocalPhase::Draining));
            let fd = local.and_then(|local| local.fd.as_ref());
            // (A pool's is no TCP socket: the kernel has all at once.)
            let info = fd.and_then(|fd| tcp_info(fd).ok());
            let holds = |info: &TcpInfo| info.unacked_segments > 0 || info.unsent > Some(0);
            if !info.is_some_and(|info| !info.is_closed && holds(&info)) {
                self.session.drained(*id);
            }
        }
    }

    fn close(&mut self, stream: StreamId, reason: Option<Reason>) {
        self.locals_to_serve.remove(&stream);
        self.draining.remove(&stream);
        let Some(local) = self.locals.remove(&stream) else { return };
        match (local.fd, reason) {
            (Some(fd), Some(reason)) => {
                info!(link = self.name, stream = stream.0, "a connection was ended: {reason}");
                close_with_reset(fd);
            }
            (fd, _) => drop(fd),
        }
    }

    /// A stream goes to the next session.
    fn release(&mut self, stream: StreamId, unsent: Unsent, around: &mut Around<'_>) {
        self.locals_to_serve.remove(&stream);
        let Some(fd) = self.locals.remove(&stream).and_then(|local| local.fd) else { return };
        match around.epoll.delete(&fd) {
            Ok(()) => self.unsent.push((fd, unsent)),
            Err(_) => close_with_reset(fd),
        }
    }

    fn dial(&mut self, path: PathId, pair: PairId, around: &mut Around<'_>) {
        let Some(to) = around.dialling.and_then(|dialling| dialling.pairs.get(pair.0 as usize))
        else {
            return self.session.lost(path, PathEnd::NotDialled, around.now);
        };
        // If a lookup takes longer, the session bounds it.
        match around.resolving.ask(Mark::Path(self.number, path).number(), &to.to) {
            Some(found) => self.dial_at(path, pair, &found, around),
            None => drop(self.resolving.insert(path, pair)),
        }
    }

    fn dial_at(&mut self, id: PathId, pair: PairId, found: &[SocketAddr], around: &mut Around<'_>) {
        let Some(dialling) = around.dialling else { return };
        let from = dialling.pairs.get(pair.0 as usize).and_then(|pair| pair.from);
        self.dials += 1;
        let number = Mark::Path(self.number, id).number();
        let begun = (|| -> io::Result<Connection> {
            let none = || io::Error::new(io::ErrorKind::NotFound, "the far end has no address");
            let same = |to: &&SocketAddr| from.is_none_or(|ip| ip.is_ipv4() == to.is_ipv4());
            let usable: Vec<&SocketAddr> = found.iter().filter(same).collect();
            let to = **usable.get(self.dials % usable.len().max(1)).ok_or_else(none)?;
            let fd = dial_from(from.unwrap_or(any(to)), 0, to)?;
            let tls = super::proof::begin_near(&dialling.tls).map_err(io::Error::other)?;
            let mut connection = Connection::new(fd, tls, Phase::Connecting, around.now)?;
            connection.dials(from.unwrap_or(any(to)), to);
            around.epoll.add(connection.fd(), number)?;
            Ok(connection)
        })();
        match begun {
            Ok(connection) => drop(self.paths.insert(id, connection)),
            Err(error) => {
                info!(link = self.name, path = id.0, "a path cannot be dialled: {error}");
                self.session.lost(id, PathEnd::NotDialled, around.now);
            }
        }
    }

    fn connect(&mut self, stream: StreamId, target: &str, around: &mut Around<'_>) {
        if !around.targets.contains(&target.to_ascii_lowercase()) {
            // What a peer has written: without control characters.
            let target = hawser_sys::terminal::without_control(target);
            warn!(link = self.name, %target, "a target is refused: it is not allowed");
            return self.session.failed(stream, Reason::NotAllowed);
        }
        let local = Local {
            fd: None,
            phase: LocalPhase::Resolving,
            since: around.now,
            readable: false,
            writable: false,
            ended: false,
            finish: Finish::No,
        };
        self.locals.insert(stream, local);
        let asked = around.resolving.ask(Mark::Local(self.number, stream).number(), target);
        if let Some(found) = asked {
            self.connect_at(stream, found, around);
        }
    }

    fn connect_at(
        &mut self,
        stream: StreamId,
        mut found: Vec<SocketAddr>,
        around: &mut Around<'_>,
    ) {
        let Some(local) = self.locals.get_mut(&stream) else { return };
        found.reverse();
        local.phase = LocalPhase::Connecting(found);
        self.connect_next(stream, around);
    }

    /// Connects a stream to the next address of its target.
    fn connect_next(&mut self, stream: StreamId, around: &mut Around<'_>) {
        let mark = Mark::Local(self.number, stream).number();
        let Some(local) = self.locals.get_mut(&stream) else { return };
        local.fd = None;
        local.since = around.now;
        // What epoll has said was of the address before.
        (local.readable, local.writable) = (false, false);
        while let LocalPhase::Connecting(left) = &mut local.phase {
            let Some(to) = left.pop() else { break };
            if let Ok(fd) = dial_from(any(to), 0, to)
                && around.epoll.add(&fd, mark).is_ok()
            {
                local.fd = Some(fd);
                return;
            }
        }
        warn!(link = self.name, stream = stream.0, "a target cannot be reached");
        self.session.failed(stream, Reason::Unreachable);
    }

    /// Whether a local socket is connected now.
    fn is_connected(&mut self, stream: StreamId, around: &mut Around<'_>) -> bool {
        let Some(local) = self.locals.get_mut(&stream) else { return false };
        match (&local.phase, &local.fd) {
            (LocalPhase::Open | LocalPhase::Broken, Some(_)) => true,
            (LocalPhase::Connecting(_), Some(fd)) if local.writable => {
                if dial_result(fd).is_err() {
                    self.connect_next(stream, around);
                    return false;
                }
                let options = TcpOptions {
                    keepalive: true,
                    keepalive_idle: KEEPALIVE,
                    ..TcpOptions::default()
                };
                let _ = set_tcp_options(fd, &options); // it works without them
                local.phase = LocalPhase::Open;
                local.readable = true;
                true
            }
            _ => false,
        }
    }

    /// Gives a local socket what there is for it, and takes what it gives.
    fn serve_local(&mut self, stream: StreamId, around: &mut Around<'_>) {
        if !self.is_connected(stream, around) {
            return;
        }
        if let Err(error) = self.give(stream, around.now) {
            info!(link = self.name, stream = stream.0, "a local connection broke: {error}");
            if let Some(local) = self.locals.get_mut(&stream) {
                // Its last words may be there to read.
                (local.phase, local.readable) = (LocalPhase::Broken, true);
            }
        }
        if let Err(error) = self.take(stream, around)
            && let Some(local) = self.locals.get_mut(&stream)
        {
            if matches!(local.phase, LocalPhase::Open) {
                info!(link = self.name, stream = stream.0, "a local connection broke: {error}");
            }
            if let Some(fd) = local.fd.take() {
                close_with_reset(fd);
            }
            self.session.broke(stream, Reason::Local, around.now);
        }
    }

    fn give(&mut self, stream: StreamId, now: Time) -> io::Result<()> {
        let Some(local) = self.locals.get_mut(&stream) else { return Ok(()) };
        let (Some(fd), LocalPhase::Open) = (&local.fd, &local.phase) else { return Ok(()) };
        while local.writable {
            let parts = self.session.ready(stream);
            if parts[0].is_empty() && parts[1].is_empty() {
                break;
            }
            match send_vectored(fd, &[IoSlice::new(parts[0]), IoSlice::new(parts[1])]) {
                Ok(count) => self.session.wrote(stream, count, now),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => local.writable = false,
                Err(error) => return Err(error),
            }
        }
        let nothing_left = self.session.ready(stream).iter().all(|part| part.is_empty());
        if local.finish == Finish::Due && nothing_left {
            local.finish = Finish::Given;
            shutdown_sending(fd)?;
            self.session.finished(stream, now);
        }
        Ok(())
    }

    fn take(&mut self, stream: StreamId, around: &mut Around<'_>) -> io::Result<()> {
        let Some(local) = self.locals.get_mut(&stream) else { return Ok(()) };
        let Some(fd) = &local.fd else { return Ok(()) };
        let is_broken = matches!(local.phase, LocalPhase::Broken);
        let nothing_more = || Err(io::ErrorKind::BrokenPipe.into());
        if is_broken && local.ended {
            return nothing_more();
        }
        for _ in 0..READS_MAX {
            let room = self.session.room(stream).min(around.buffer.len());
            if !local.readable || local.ended || room == 0 {
                return Ok(());
            }
            match recv(fd, &mut around.buffer[..room]) {
                Ok(0) if is_broken => return nothing_more(),
                Ok(0) => {
                    local.ended = true;
                    self.session.ended(stream);
                }
                Ok(count) => self.session.put(stream, &around.buffer[..count], around.now),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && !is_broken => {
                    local.readable = false;
                }
                Err(error) => return Err(error),
            }
        }
        self.locals_to_serve.insert(stream);
        Ok(())
    }
}

fn any(like: SocketAddr) -> IpAddr {
    if like.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() }
}

#[cfg(test)]
mod tests;
