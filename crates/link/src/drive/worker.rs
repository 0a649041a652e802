//! One thread for a link: listeners, sessions, signals.
//!
//! # Model
//! ```text
//!   near   programs ─► listener ─► open a stream of the one session there is; when it ends, a new one
//!   far    paths ─► listener ─► TLS ─► Hello ─► the session of that token, or a new one
//! ```
//! # Invariants
//! * a path that has not greeted holds one connection of [`GREETINGS_MAX`], for [`GREETING_MAX`]
//! * a session takes paths of the key that began it only
//! * nothing is answered to a peer that is not proved

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hawser_congestion::cc::Congestion;
use hawser_congestion::cc::usage::CongestionUsage;
use hawser_sys::clock::monotonic_micros;
use hawser_sys::epoll::{Epoll, Events};
use hawser_sys::listen::{
    BoundPath, SocketFile, accept_tcp, is_of_one_connection, listen_tcp, listen_unix,
};
use hawser_sys::precision::ask_for_short_slices;
use hawser_sys::process::{catch_signals, next_signal};
use hawser_sys::random::random_bytes;
use hawser_time::Time;
use tracing::{error, info, warn};

use super::carrier::{Around, Carrier, Dialling, Mark, Pair};
use super::connection::{Connection, Phase};
use super::control::{Control, Order};
use super::keys::{Key, PublicKey, read_peers};
use super::proof::{self, Peers};
use super::report::{Report, Totals};
use super::resolving::Resolving;
use crate::proto::Token;
use crate::proto::compression::Compression;
use crate::proto::frame::Refusal;
use crate::proto::greeting::{Greeted, Greeting, NotGreeted, refusal};
use crate::proto::path::GREETING_MAX;
use crate::proto::session::{Config, PATHS_MAX, Paths, Session};

/// Read at once from a socket.
const READ_BYTES: usize = 256 << 10;
/// Connections taken from a listener in a turn.
const ACCEPTS_MAX: usize = 64;
/// Paths that have not greeted yet; of more, the oldest gives way.
pub const GREETINGS_MAX: usize = 256;
/// Sessions of a far end.
pub const SESSIONS_MAX: usize = 64;
const BACKLOG: i32 = 256;
/// After an error of accept(2) that would come again at once.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);
/// So long the thread sleeps at most.
const WAIT_MAX: Duration = Duration::from_secs(60);
/// How long paths may take to tell their peers that the process ends.
const LEAVE_MAX: Duration = Duration::from_millis(200);
/// How often a worker within `hawser serve` says what it is doing.
const PUBLISH_EACH: Duration = Duration::from_secs(1);
/// The thread's slices of processor time, and its priority where the process may have it (nice). Measured on two
/// cores with a load of 32, unoptimised: with -10 a query beside bulk took 30 ms in the median, without 47 to 62.
const SLICE: Duration = Duration::from_micros(500);
const NICE: i32 = -10;
/// How long a reader of the report may take.
const REPORT_WAIT: Duration = Duration::from_millis(200);

const SIGHUP: i32 = 1;
const SIGINT: i32 = 2;
const SIGTERM: i32 = 15;

const KIND: u64 = 7 << 61;
const LISTENER: u64 = 0;
const SIGNALS: u64 = 1 << 61;
const RESOLVED: u64 = 2 << 61;
const GREETING: u64 = 3 << 61;
const REPORTS: u64 = 6 << 61;
const ORDERS: u64 = 7 << 61;
/// Numbers of sessions, as far as [`Mark`] can say them.
const CARRIERS: u64 = 1 << 21;

/// What programs connect to, and where that leads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Forward {
    /// Where programs connect.
    pub listen: SocketAddr,
    /// Where the far end connects: `host:port`.
    pub target: String,
}

/// The end that dials.
#[derive(Clone, PartialEq, Debug)]
pub struct Near {
    /// Far ends' `host:port`.
    pub to: Vec<String>,
    /// This machine's addresses to dial from.
    pub from: Vec<std::net::IpAddr>,
    /// TCP connections.
    pub paths: Paths,
    /// What is forwarded.
    pub forwards: Vec<Forward>,
}

/// The end that accepts.
#[derive(Clone, PartialEq, Debug)]
pub struct Far {
    /// Where near ends connect.
    pub listen: Vec<SocketAddr>,
    /// What may be reached: `host:port`.
    pub allow: Vec<String>,
}

/// Which end.
#[derive(Clone, PartialEq, Debug)]
pub enum Role {
    /// The end that dials.
    Near(Near),
    /// The end that accepts.
    Far(Far),
}

/// Where a worker runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Within {
    /// A process of its own, whose signals are for it.
    Process,
    /// `hawser serve`, which gives it orders and reads what it publishes.
    Serve,
}

/// One end of a link, as it is started.
#[derive(Clone, PartialEq, Debug)]
pub struct Options {
    /// Its name, for logs and reports.
    pub name: String,
    /// The file of this end's key.
    pub key: PathBuf,
    /// The other end's keys, and a file of more, which SIGHUP reads again.
    pub peers: Vec<PublicKey>,
    /// See `peers`.
    pub peers_file: Option<PathBuf>,
    /// For how long streams wait where no path works.
    pub grace: Duration,
    /// Congestion control of paths.
    pub congestion: Congestion,
    /// Whether this end compresses what it sends.
    pub compression: Compression,
    /// Where reports are asked for.
    pub socket: Option<PathBuf>,
    /// Which end.
    pub role: Role,
}

struct Listening {
    listener: TcpListener,
    /// Near: where its connections lead.
    target: Option<String>,
    readable: bool,
    /// After a failed accept (EMFILE), the time of the next attempt.
    pauses: Option<Time>,
}

impl Listening {
    fn may_accept(&self, moment: Time) -> bool {
        self.readable && self.pauses.is_none_or(|until| until <= moment)
    }
}

struct Newcomer {
    connection: Connection,
    greeting: Greeting,
}

/// The thread's state.
pub struct Worker {
    name: String,
    grace: Duration,
    epoll: Epoll,
    signals: Option<OwnedFd>,
    control: Arc<Control>,
    resolving: Resolving,
    reports: Option<(UnixListener, BoundPath)>,
    listeners: Vec<Listening>,
    peers: Peers,
    fixed_peers: Vec<PublicKey>,
    peers_file: Option<PathBuf>,
    dialling: Option<Dialling>,
    paths: Paths,
    accepting: Option<Arc<rustls::ServerConfig>>,
    targets: BTreeSet<String>,
    congestion: (CongestionUsage, Congestion),
    compression: Compression,
    carriers: BTreeMap<u64, Carrier>,
    next_carrier: u64,
    newcomers: BTreeMap<u64, Newcomer>,
    next_newcomer: u64,
    buffer: Vec<u8>,
    began: Time,
    /// What sessions have counted that have ended.
    past: Totals,
    /// When [`Control::report`] is due to be made again, if it is read.
    publish_at: Option<Time>,
}

fn now() -> Time {
    Time::from_micros(monotonic_micros())
}

/// The keys of peers that are given, and those of the file.
///
/// # Errors
/// What is wrong with the file.
/// All keys of the other end: those that are given, and those of a file.
///
/// # Errors
/// What is wrong with the file.
pub fn peers_of(fixed: &[PublicKey], file: Option<&Path>) -> Result<Vec<PublicKey>, String> {
    let mut all = fixed.to_vec();
    if let Some(file) = file {
        all.extend(read_peers(file)?);
    }
    Ok(all)
}

impl Worker {
    /// Listens; nothing is dialled yet.
    ///
    /// # Errors
    /// What cannot be had, in words.
    pub fn open(options: Options, within: Within) -> Result<Self, String> {
        let Options { name, key, peers, peers_file, grace, congestion, compression, socket, role } =
            options;
        let key = Key::load(&key).map_err(|error| error.to_string())?;
        let known = peers_of(&peers, peers_file.as_deref())?;
        match &peers_file {
            None if known.is_empty() => {
                return Err("no key of the other end is given: give --peer or --peers".to_owned());
            }
            Some(file) if known.is_empty() => {
                warn!("\"{}\" has no key: no peer can connect", file.display());
            }
            _ => {}
        }
        let known: Peers = Arc::new(arc_swap::ArcSwap::from_pointee(known));
        let text = |error: &dyn ToString| error.to_string();
        let epoll = Epoll::new().map_err(|e| text(&e))?;
        let resolving = Resolving::new().map_err(|e| text(&e))?;
        let control = Arc::new(Control::new().map_err(|e| text(&e))?);
        let signals = match within {
            Within::Process => {
                Some(catch_signals(&[SIGHUP, SIGINT, SIGTERM]).map_err(|e| text(&e))?)
            }
            Within::Serve => None,
        };
        let own = SocketFile { mode: Some(0o600), ..SocketFile::default() };
        let reports = socket
            .map(|path| {
                listen_unix(&path, own, 16).map_err(|error| format!("{}: {error}", path.display()))
            })
            .transpose()?;
        let mut worker = Self {
            name,
            grace,
            epoll,
            signals,
            control,
            resolving,
            reports,
            listeners: Vec::new(),
            peers: known,
            fixed_peers: peers,
            peers_file,
            dialling: None,
            paths: Paths::Auto,
            accepting: None,
            targets: BTreeSet::new(),
            congestion: (CongestionUsage::default(), congestion),
            compression,
            carriers: BTreeMap::new(),
            next_carrier: 0,
            newcomers: BTreeMap::new(),
            next_newcomer: 0,
            buffer: vec![0; READ_BYTES],
            began: now(),
            past: Totals::default(),
            publish_at: (within == Within::Serve).then(now),
        };
        worker.take_role(role, &key)?;
        worker.watch().map_err(|error| format!("epoll: {error}"))?;
        Ok(worker)
    }

    fn take_role(&mut self, role: Role, key: &Key) -> Result<(), String> {
        let of_key = |error: rustls::Error| format!("the key cannot be used: {error}");
        match role {
            Role::Near(near) => {
                let tls = proof::near(key, &self.peers).map_err(of_key)?;
                let pairs = Pair::all(&near.from, &near.to);
                if !(1..=PATHS_MAX).contains(&pairs.len()) {
                    return Err(format!("there may be 1 to {PATHS_MAX} pairs of addresses"));
                }
                self.dialling = Some(Dialling { pairs, tls });
                self.paths = near.paths;
                for forward in near.forwards {
                    self.listen(forward.listen, Some(forward.target))?;
                }
            }
            Role::Far(far) => {
                self.accepting = Some(proof::far(key, &self.peers).map_err(of_key)?);
                self.targets = far.allow.iter().map(|target| target.to_ascii_lowercase()).collect();
                for address in far.listen {
                    self.listen(address, None)?;
                }
            }
        }
        Ok(())
    }

    fn listen(&mut self, address: SocketAddr, target: Option<String>) -> Result<(), String> {
        let listener =
            listen_tcp(address, BACKLOG).map_err(|error| format!("{address}: {error}"))?;
        self.listeners.push(Listening { listener, target, readable: true, pauses: None });
        Ok(())
    }

    fn watch(&self) -> io::Result<()> {
        for (at, listening) in self.listeners.iter().enumerate() {
            self.epoll.add_readable(&listening.listener, LISTENER | at as u64)?;
        }
        if let Some(signals) = &self.signals {
            self.epoll.add_readable(signals, SIGNALS)?;
        }
        if let Some((reports, _)) = &self.reports {
            self.epoll.add_readable(reports, REPORTS)?;
        }
        self.epoll.add_readable(self.resolving.fd(), RESOLVED)?;
        self.epoll.add_readable(&self.control.wake, ORDERS)
    }

    /// Where it listens.
    pub fn addresses(&self) -> Vec<SocketAddr> {
        self.listeners.iter().filter_map(|one| one.listener.local_addr().ok()).collect()
    }

    /// For orders from other threads.
    #[must_use]
    pub fn control(&self) -> Arc<Control> {
        self.control.clone()
    }

    /// Serves until SIGTERM, SIGINT or [`Order::End`].
    ///
    /// # Errors
    /// As epoll_wait(2).
    pub fn run(&mut self) -> io::Result<()> {
        come_soon(&self.name);
        let mut events = Events::with_capacity(256);
        loop {
            self.begin_session();
            let moment = now();
            self.publish(moment);
            let wait = self.longest_wait(moment);
            self.epoll.wait(&mut events, wait)?;
            let moment = now();
            if self.take_events(&events, moment) {
                return Ok(());
            }
            self.accept_all(moment);
            self.greet_all(moment);
            self.turn_all(moment);
        }
    }

    /// The near end always has a session. It goes on with what was never sent in the one before.
    fn begin_session(&mut self) {
        let mut unsent = Vec::new();
        for (_, mut over) in self.carriers.extract_if(.., |_, carrier| carrier.is_over()) {
            self.past = self.past.plus(over.session().counts());
            unsent.extend(over.take_unsent());
        }
        if self.dialling.is_none() || !self.carriers.is_empty() {
            return;
        }
        let mut token = [0; 16];
        random_bytes(&mut token);
        let pairs = self.dialling.as_ref().map_or(1, |dialling| dialling.pairs.len() as u32);
        let (token, grace, compression) = (Token(token), self.grace, self.compression);
        let config = Config { token, grace, paths: self.paths, pairs, compression };
        let session = Session::near(config, now());
        let number = self.add_carrier(self.name.clone(), None, session);
        for (fd, unsent) in unsent {
            self.with(number, now(), |carrier, around| carrier.reopen(fd, &unsent, around));
        }
    }

    fn add_carrier(&mut self, name: String, peer: Option<PublicKey>, session: Session) -> u64 {
        while self.carriers.contains_key(&self.next_carrier) {
            self.next_carrier = (self.next_carrier + 1) % CARRIERS;
        }
        let number = self.next_carrier;
        self.next_carrier = (number + 1) % CARRIERS;
        self.carriers.insert(number, Carrier::new(number, name, peer, session));
        number
    }

    fn longest_wait(&self, moment: Time) -> Duration {
        let busy = self.carriers.values().any(Carrier::is_busy)
            || self.listeners.iter().any(|one| one.may_accept(moment))
            || self.newcomers.values().any(|one| one.connection.is_readable());
        if busy {
            return Duration::ZERO;
        }
        let carriers = self.carriers.values().map(|carrier| carrier.longest_wait(moment));
        let greetings = self.newcomers.values();
        let greetings = greetings.map(|one| one.connection.since.after(GREETING_MAX).since(moment));
        let pauses = self.listeners.iter().filter(|one| one.readable);
        let pauses = pauses.filter_map(|one| one.pauses).map(|until| until.since(moment));
        let publishes = self.publish_at.map(|at| at.since(moment));
        let all = carriers.chain(greetings).chain(pauses).chain(publishes);
        all.min().unwrap_or(WAIT_MAX).min(WAIT_MAX)
    }

    /// Whether it is to end.
    fn take_events(&mut self, events: &Events, moment: Time) -> bool {
        for at in 0..events.len() {
            let Some(event) = events.get(at) else { break };
            match Mark::of(event.data) {
                Some(Mark::Path(carrier, path)) => {
                    if let Some(carrier) = self.carriers.get_mut(&carrier) {
                        carrier.path_happened(path, event);
                    }
                    continue;
                }
                Some(Mark::Local(carrier, stream)) => {
                    if let Some(carrier) = self.carriers.get_mut(&carrier) {
                        carrier.local_happened(stream, event);
                    }
                    continue;
                }
                None => {}
            }
            match event.data & KIND {
                LISTENER => {
                    if let Some(one) = self.listeners.get_mut((event.data & !KIND) as usize) {
                        one.readable = true;
                    }
                }
                SIGNALS => {
                    if self.take_signals(moment) {
                        return true;
                    }
                }
                RESOLVED => self.take_addresses(moment),
                GREETING => {
                    if let Some(one) = self.newcomers.get_mut(&(event.data & !KIND)) {
                        one.connection.happened(event.readable, event.writable);
                    }
                }
                REPORTS => self.answer_reports(moment),
                _ => {
                    if self.take_orders(moment) {
                        return true;
                    }
                }
            }
        }
        false
    }

    /// Does what other threads have asked for; whether it is to end.
    fn take_orders(&mut self, moment: Time) -> bool {
        for order in self.control.take() {
            match order {
                Order::End => {
                    self.end(moment);
                    return true;
                }
                Order::Peers { fixed, file } => {
                    (self.fixed_peers, self.peers_file) = (fixed, file);
                    self.reload(moment);
                }
                Order::Open(stream, target) => self.forward(stream.into(), &target, moment),
            }
        }
        false
    }

    fn take_signals(&mut self, moment: Time) -> bool {
        while let Some(Ok(signal)) = self.signals.as_ref().map(next_signal) {
            if signal == SIGHUP {
                self.reload(moment);
            } else {
                info!("ends: signal received");
                self.end(moment);
                return true;
            }
        }
        false
    }

    fn end(&mut self, moment: Time) {
        let mut paths = Vec::new();
        self.each(moment, |carrier, around| paths.extend(carrier.bye(around)));
        if let Err(error) = leave(paths, &mut self.buffer) {
            warn!("the other ends may not know that this one ends: {error}");
        }
    }

    /// Reads the file of keys again; paths of keys that are no longer in it end.
    fn reload(&mut self, moment: Time) {
        match peers_of(&self.fixed_peers, self.peers_file.as_deref()) {
            Ok(known) => {
                if known.is_empty() {
                    warn!(
                        "no key of a peer is left: all paths are closed, and no peer can connect"
                    );
                }
                info!(keys = known.len(), "the keys of peers were read again");
                self.peers.store(Arc::new(known.clone()));
                self.newcomers.clear();
                self.each(moment, |carrier, around| carrier.end_unknown(&known, around));
            }
            Err(error) => error!("reload refused, the old keys stay: {error}"),
        }
    }

    fn take_addresses(&mut self, moment: Time) {
        while let Some((asker, found)) = self.resolving.next() {
            let Some(mark) = Mark::of(asker) else { continue };
            let (Mark::Path(number, _) | Mark::Local(number, _)) = mark;
            self.with(number, moment, |carrier, around| carrier.resolved(mark, found, around));
        }
    }

    /// Calls `act` with a session and what it needs.
    fn with(&mut self, number: u64, moment: Time, act: impl FnOnce(&mut Carrier, &mut Around<'_>)) {
        let mut around = Around {
            epoll: &self.epoll,
            resolving: &self.resolving,
            buffer: &mut self.buffer,
            dialling: self.dialling.as_ref(),
            targets: &self.targets,
            congestion: (&self.congestion.0, self.congestion.1),
            now: moment,
        };
        if let Some(carrier) = self.carriers.get_mut(&number) {
            act(carrier, &mut around);
        }
    }

    fn each(&mut self, moment: Time, mut act: impl FnMut(&mut Carrier, &mut Around<'_>)) {
        for number in self.carriers.keys().copied().collect::<Vec<_>>() {
            self.with(number, moment, &mut act);
        }
    }

    fn turn_all(&mut self, moment: Time) {
        self.each(moment, Carrier::turn);
    }

    fn accept_all(&mut self, moment: Time) {
        for at in 0..self.listeners.len() {
            for _ in 0..ACCEPTS_MAX {
                let one = &mut self.listeners[at];
                if !one.may_accept(moment) {
                    break;
                }
                match accept_tcp(&one.listener) {
                    Ok((fd, from)) => match one.target.clone() {
                        Some(target) => self.forward(fd, &target, moment),
                        None => self.newcomer(fd, from, moment),
                    },
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => one.readable = false,
                    Err(error) if is_of_one_connection(&error) => {}
                    Err(error) => {
                        // No descriptor or no memory is left: the connection waits in the queue.
                        warn!("connections cannot be accepted for a second: {error}");
                        one.pauses = Some(moment.after(ACCEPT_PAUSE));
                    }
                }
            }
        }
    }

    fn forward(&mut self, fd: OwnedFd, target: &str, moment: Time) {
        self.begin_session();
        let Some(number) = self.carriers.keys().next_back().copied() else { return };
        self.with(number, moment, |carrier, around| carrier.open(fd, target, around));
    }

    fn newcomer(&mut self, fd: OwnedFd, from: SocketAddr, moment: Time) {
        let Some(accepting) = &self.accepting else { return };
        if self.newcomers.len() >= GREETINGS_MAX
            && let Some((_, oldest)) = self.newcomers.pop_first()
        {
            oldest.connection.close();
        }
        let number = self.next_newcomer;
        self.next_newcomer += 1;
        let begun = proof::begin_far(accepting).map_err(io::Error::other).and_then(|tls| {
            let connection = Connection::new(fd, tls, Phase::Shaking, moment)?;
            self.epoll.add(connection.fd(), GREETING | number)?;
            Ok(connection)
        });
        match begun {
            Ok(connection) => {
                let one = Newcomer { connection, greeting: Greeting::default() };
                self.newcomers.insert(number, one);
            }
            Err(error) => warn!(%from, "a path could not be taken: {error}"),
        }
    }

    fn greet_all(&mut self, moment: Time) {
        for number in self.newcomers.keys().copied().collect::<Vec<_>>() {
            let Some(one) = self.newcomers.get_mut(&number) else { continue };
            if moment.since(one.connection.since) >= GREETING_MAX {
                self.newcomers.remove(&number);
                continue;
            }
            if !one.connection.is_readable() && !one.connection.is_writable() {
                continue;
            }
            match greet(one, &mut self.buffer) {
                Ok(None) => {}
                Ok(Some(greeted)) => {
                    if let Some(one) = self.newcomers.remove(&number) {
                        self.greeted(one.connection, greeted, moment);
                    }
                }
                Err(Refused::Answer(mut refused)) => {
                    if let Some(one) = self.newcomers.get_mut(&number) {
                        let _ = one.connection.write(&std::mem::take(&mut refused));
                    }
                    self.newcomers.remove(&number);
                }
                Err(Refused::Silently(why)) => {
                    if let Some(one) = self.newcomers.remove(&number) {
                        let from = one.connection.addresses().map(|(_, peer)| peer.to_string());
                        info!(from = from.unwrap_or_default(), "a path is refused: {why}");
                        one.connection.close();
                    }
                }
            }
        }
    }

    fn greeted(&mut self, mut connection: Connection, greeted: Greeted, moment: Time) {
        let Some(key) = connection.peer() else { return };
        let known = self.carriers.iter().find(|(_, carrier)| {
            carrier.session().token() == greeted.token && !carrier.session().has_ended()
        });
        let number = match known {
            // A token that another key has learnt: as if there were no such session.
            Some((_, carrier)) if carrier.peer() != Some(key) => None,
            Some((number, _)) => Some(*number),
            None if greeted.fresh => {
                if self.carriers.len() >= SESSIONS_MAX {
                    warn!(%key, "a session is refused: there are {SESSIONS_MAX}");
                    let _ = connection.write(&refusal(Refusal::Full));
                    return;
                }
                let (token, grace, compression) = (greeted.token, self.grace, self.compression);
                let config = Config { token, grace, paths: Paths::Auto, pairs: 1, compression };
                info!(%key, "a session begins");
                let session = Session::far(config, moment);
                Some(self.add_carrier(key.to_string(), Some(key), session))
            }
            None => None,
        };
        let Some(number) = number else {
            let _ = connection.write(&refusal(Refusal::Session));
            return;
        };
        let mut left = None;
        let version = greeted.version;
        self.with(number, moment, |carrier, around| {
            left = carrier.join(connection, version, around).err();
        });
        if let Some(mut connection) = left {
            let _ = connection.write(&refusal(Refusal::Full));
        }
    }

    /// What it is doing.
    #[must_use]
    pub fn report(&self, moment: Time) -> Report {
        let sessions = self.carriers.values().filter(|carrier| !carrier.is_over());
        let report = Report::of(&self.name, self.past, sessions, moment.since(self.began), moment);
        Report { fallbacks: self.congestion.0.fallbacks(), ..report }
    }

    /// Renews the report that others read, if that is due.
    fn publish(&mut self, moment: Time) {
        if self.publish_at.is_some_and(|at| at <= moment) {
            self.control.publish(self.report(moment));
            self.publish_at = Some(moment.after(PUBLISH_EACH));
        }
    }

    fn answer_reports(&self, moment: Time) {
        let Some((reports, _)) = &self.reports else { return };
        while let Ok((stream, _)) = reports.accept() {
            let report = serde_json::to_vec(&self.report(moment)).unwrap_or_default();
            let _ = answer(stream, &report); // one who breaks off gets no report
        }
    }
}

/// Has this thread run soon after something has come, as far as the process may ask for it: what waits for a
/// processor is added to what a query waits for.
fn come_soon(link: &str) {
    if let Err(error) = ask_for_short_slices(SLICE, NICE) {
        info!(
            link,
            "the thread's slices stay as they are: small queries may wait on a busy machine: {error}"
        );
    }
}

fn answer(mut stream: UnixStream, report: &[u8]) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_write_timeout(Some(REPORT_WAIT))?;
    stream.write_all(report)
}

/// Has paths say what they have to say, for as long as [`LEAVE_MAX`].
fn leave(mut paths: Vec<Connection>, buffer: &mut [u8]) -> io::Result<()> {
    let epoll = Epoll::new()?;
    for (at, path) in paths.iter().enumerate() {
        epoll.add(path.fd(), at as u64)?;
    }
    let mut events = Events::with_capacity(PATHS_MAX);
    let mut left: BTreeSet<usize> = (0..paths.len()).collect();
    let until = now().after(LEAVE_MAX);
    loop {
        left.retain(|at| !paths[*at].leave(buffer));
        let wait = until.since(now());
        if left.is_empty() || wait.is_zero() {
            return Ok(());
        }
        let busy = left.iter().any(|at| paths[*at].is_readable());
        epoll.wait(&mut events, if busy { Duration::ZERO } else { wait })?;
        for event in (0..events.len()).filter_map(|at| events.get(at)) {
            if let Some(path) = paths.get_mut(event.data as usize) {
                path.happened(event.readable, event.writable);
            }
        }
    }
}

/// Why a path is not taken.
enum Refused {
    /// Nothing is said: it is not proved, or speaks something else.
    Silently(String),
    /// It is proved, and is given the reason.
    Answer(Vec<u8>),
}

/// Goes on with a newcomer; what its Hello says, once that is whole.
fn greet(one: &mut Newcomer, buffer: &mut [u8]) -> Result<Option<Greeted>, Refused> {
    let broken = |broken: super::connection::Broken| Refused::Silently(broken.to_string());
    if !one.connection.advance(buffer).map_err(broken)? {
        return Ok(None);
    }
    let mut greeted = Ok(None);
    let greeting = &mut one.greeting;
    let read = one.connection.read(buffer, |plain| {
        greeted = greeting.feed(plain);
        matches!(greeted, Ok(None))
    });
    match greeted {
        Ok(Some(greeted)) => Ok(Some(greeted)),
        Ok(None) => read.map(|()| None).map_err(broken),
        Err(NotGreeted::Version(from, upto)) => {
            warn!("a peer speaks versions {from} to {upto} of the link's protocol");
            Err(Refused::Answer(refusal(Refusal::Version)))
        }
        Err(NotGreeted::Wrong) => {
            Err(Refused::Silently("it does not speak the link's protocol".to_owned()))
        }
    }
}
