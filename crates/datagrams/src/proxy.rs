//! `hawser rds proxy`: reliable datagrams for any program of this machine, by a unix socket.
//!
//! # Model
//! A SOCK_SEQPACKET socket, so each message is whole. Numbers are big-endian; an address has 16 bytes,
//! IPv4 mapped into IPv6. A datagram that is longer than a part comes in several: `s` or `r` with bytes
//! only, and the last one as `S` or `R`.
//! ```text
//!   client  B port(2)                 take a port, 0 for any; once, and first
//!           s bytes                   a part of the next datagram
//!           S port(2) address(16) bytes   its last part: send it
//!           I                         what is the proxy doing
//!   proxy   B port(2)                 the port that was taken
//!           r bytes, R port(2) address(16) bytes   a datagram that came
//!           i bytes, I bytes          the answer, JSON
//!           E code(1) text            1 no port, 2 too long, 3 no such address, 4 no such message
//! ```
//! # Invariants
//! * a client has one port, and gets what comes for that port only
//! * of a client whose datagram cannot be sent yet nothing more is read: its own sends wait. Once it has
//!   left, it has [`LEAVES_AFTER`] to have them sent, or until another asks for its port
//!
//! # Limits
//! A client that does not read is congested, and its senders wait. If more was under way to it than
//! the bound allows, lanes of its senders stop; if they do for [`STALLED_MAX`] it is ended,
//! whatever it has read meanwhile. So is one that asks what the proxy is doing and does not read
//! the answer.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::{self, IoSlice};
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use hawser_sys::listen::{BoundPath, SocketFile, is_of_one_connection};
use hawser_sys::packets;
use hawser_sys::process::{catch_signals, effective_uid, next_signal};
use hawser_sys::stream::peer_uid;
use tracing::warn;

use super::endpoint::{Endpoint, PortEvent};
use super::info::Info;
use super::proto::node::report::Report;
use crate::proto::header::MESSAGE_BYTES_MAX;
use crate::proto::node::{Datagram, SendError};

/// Clients at a time; more are turned away.
pub const CLIENTS_MAX: usize = 1024;
/// Bytes of a part: a message of a unix socket must fit into its send buffer.
pub const PART_BYTES: usize = 32 << 10;
/// The longest message that a client may send.
const MESSAGE_MAX: usize = 64 << 10;
/// Port and address before the bytes of `S` and `R`.
const HEAD: usize = 1 + 2 + 16;
/// Messages of one client before the others have their turn.
const MESSAGES_A_TURN: usize = 64;
/// Programs that are accepted before the others have their turn.
const ACCEPTS_A_TURN: usize = 64;
/// A client for which lanes stand still for so long is ended.
pub const STALLED_MAX: Duration = Duration::from_secs(5);
/// Datagrams that a client has sent before it left, and that cannot be sent, are dropped after this; so is
/// what is not acknowledged so long after the proxy was asked to end.
pub const LEAVES_AFTER: Duration = Duration::from_secs(5);
/// Lines of the log about peers in [`LINES_EACH`], and as many about programs. Each is said once of a peer, but peers are forgotten, and
/// come again.
const LINES_MAX: u32 = 200;
/// See [`LINES_MAX`].
const LINES_EACH: Duration = Duration::from_secs(60);
/// How often that is looked at.
const LOOK_EACH: Duration = Duration::from_secs(1);
/// How often memory that is free goes back to the system: to each new peer eight congestion maps of 8 KiB
/// go, and what they took stays the process's otherwise, between the few hundred bytes of a lane.
const MEMORY_EACH: Duration = Duration::from_secs(3);

const SIGINT: i32 = 2;
const SIGTERM: i32 = 15;
const LISTENER: u64 = 0;
const SIGNALS: u64 = 1;
const FIRST_CLIENT: u64 = 2;

/// Codes of `E`.
const NO_PORT: u8 = 1;
const TOO_LONG: u8 = 2;
const NO_ADDRESS: u8 = 3;
const NO_MESSAGE: u8 = 4;

struct Client {
    fd: OwnedFd,
    port: Option<u16>,
    /// Parts of the datagram that it is sending.
    parts: Vec<u8>,
    /// A datagram that could not be sent yet.
    waits: Option<((IpAddr, u16), Vec<u8>)>,
    /// A datagram that it is given, and how much of it it has.
    gives: Option<(Datagram, usize)>,
    /// Answers that it has not taken.
    answers: Vec<Answer>,
    readable: bool,
    writable: bool,
    took: Instant,
    /// When it asked for the first of the reports that it has not taken.
    asked: Instant,
    /// A part was too long: the rest of its datagram is nothing.
    skips: bool,
    /// It may see what the proxy does for others: it runs as the proxy's user, or as root.
    sees_all: bool,
    /// That it reads nothing was said.
    said: bool,
    /// Since when it has left, though what it has sent was not read yet, or could not be sent.
    left: Option<Instant>,
    /// It takes nothing any more.
    is_deaf: bool,
    /// It was seen to leave with unread messages: the kernel reports that before what it has sent.
    was_reset: bool,
}

impl Client {
    /// Whether it was given a report that it has not taken.
    fn has_report(&self) -> bool {
        self.answers.iter().any(|answer| matches!(answer, Answer::Report(..)))
    }

    /// It takes nothing any more. What it has sent is to be read.
    fn takes_no_more(&mut self) {
        self.left.get_or_insert_with(Instant::now);
        self.is_deaf = true;
        self.gives = None;
        self.answers.clear();
    }
}

/// How many lines were written of late.
struct Lines {
    about: &'static str,
    since: Instant,
    count: u32,
}

impl Lines {
    fn new(about: &'static str) -> Self {
        Self { about, since: Instant::now(), count: 0 }
    }

    /// Whether one more may be written.
    fn may(&mut self, now: Instant) -> bool {
        if now.duration_since(self.since) >= LINES_EACH {
            (self.since, self.count) = (now, 0);
        }
        self.count = self.count.saturating_add(1);
        self.count <= LINES_MAX
    }

    fn say(&mut self, line: &dyn Display) {
        if self.may(Instant::now()) {
            warn!("{line}");
        } else if self.count == LINES_MAX + 1 {
            let about = self.about;
            warn!("{LINES_MAX} lines about {about} in a minute: further ones are left out");
        }
    }
}

/// What a client is answered.
enum Answer {
    Message(Vec<u8>),
    /// To `I`, in parts: and how much of it was taken.
    Report(Arc<[u8]>, usize),
}

/// Answers that a client may leave untaken before nothing more is read from it.
const ANSWERS_MAX: usize = 16;

/// What ends a client.
enum End {
    /// It has left, or is broken.
    Left,
    /// It says what it may not.
    Wrong,
}

/// The proxy.
pub struct Proxy {
    endpoint: Endpoint,
    listener: OwnedFd,
    path: Option<BoundPath>,
    signals: OwnedFd,
    clients: BTreeMap<u64, Client>,
    by_port: BTreeMap<u16, u64>,
    next_client: u64,
    /// Since descriptors have run out: nothing is accepted for a while.
    accepts_no_more: Option<Instant>,
    lines: Lines,
    /// Any program may connect and be ended as often as it likes.
    program_lines: Lines,
    looked: Instant,
    gave_memory_back: Instant,
    /// What was answered to `I` last.
    report: Option<(Instant, Arc<[u8]>)>,
    buffer: Vec<u8>,
}

/// Where it listens for programs.
#[derive(Clone, Debug)]
pub struct Place {
    /// The socket's file.
    pub path: PathBuf,
    /// Its mode.
    pub mode: u32,
}

impl Proxy {
    /// Listens.
    ///
    /// # Errors
    /// As bind(2), of the unix socket.
    pub fn open(endpoint: Endpoint, place: &Place) -> io::Result<Self> {
        let file = SocketFile { mode: Some(place.mode), ..SocketFile::default() };
        let (listener, path) = packets::listen(&place.path, file, 64)?;
        let signals = catch_signals(&[SIGINT, SIGTERM])?;
        endpoint.watch(&listener, LISTENER)?;
        endpoint.watch(&signals, SIGNALS)?;
        Ok(Self {
            endpoint,
            listener,
            path: Some(path),
            signals,
            clients: BTreeMap::new(),
            by_port: BTreeMap::new(),
            next_client: FIRST_CLIENT,
            accepts_no_more: None,
            lines: Lines::new("peers"),
            program_lines: Lines::new("programs"),
            looked: Instant::now(),
            gave_memory_back: Instant::now(),
            report: None,
            buffer: vec![0; MESSAGE_MAX],
        })
    }

    /// Serves until SIGINT or SIGTERM. Then what was taken of programs goes on its way, for [`LEAVES_AFTER`] at
    /// most, or until another signal comes.
    ///
    /// # Errors
    /// As epoll_wait(2).
    pub fn run(&mut self) -> io::Result<()> {
        loop {
            self.endpoint.turn(LOOK_EACH)?;
            for event in self.endpoint.take_others() {
                match event.token {
                    LISTENER => self.accept_all(),
                    SIGNALS => {
                        if next_signal(&self.signals).is_ok() {
                            return self.leave();
                        }
                    }
                    client => {
                        if let Some(client) = self.clients.get_mut(&client) {
                            client.readable = true;
                            client.writable = true;
                            if event.hangup {
                                client.left.get_or_insert_with(Instant::now);
                            }
                        }
                        self.serve(client);
                    }
                }
            }
            while let Some(event) = self.endpoint.next_event() {
                let (PortEvent::Readable(port) | PortEvent::Room(port)) = event;
                if let Some(client) = self.by_port.get(&port) {
                    self.serve(*client);
                }
            }
            while let Some(notice) = self.endpoint.next_notice() {
                self.lines.say(&notice);
            }
            if self.looked.elapsed() >= LOOK_EACH {
                self.looked = Instant::now();
                self.end_stalled();
            }
            if self.accepts_no_more.is_some_and(|since| since.elapsed() >= LOOK_EACH) {
                self.accepts_no_more = None;
                self.accept_all();
            }
            if self.gave_memory_back.elapsed() >= MEMORY_EACH {
                self.gave_memory_back = Instant::now();
                hawser_sys::memory::give_back();
            }
        }
    }

    /// Waits until what programs have sent is acknowledged.
    fn leave(&mut self) -> io::Result<()> {
        // No program finds it any more, and its present ones are notified that it ends.
        self.path = None;
        for token in self.clients.keys().copied().collect::<Vec<_>>() {
            self.serve(token);
        }
        self.clients.clear();
        let until = Instant::now() + LEAVES_AFTER;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let unacknowledged = self.endpoint.unacknowledged();
            let mut others = self.endpoint.take_others().into_iter();
            let another =
                others.any(|event| event.token == SIGNALS) && next_signal(&self.signals).is_ok();
            if unacknowledged > 0 && (left.is_zero() || another) {
                warn!(
                    "{unacknowledged} datagrams of programs were not acknowledged, and are dropped"
                );
            }
            if unacknowledged == 0 || left.is_zero() || another {
                return Ok(());
            }
            self.endpoint.turn_of_leaving(left)?;
            while let Some(notice) = self.endpoint.next_notice() {
                self.lines.say(&notice);
            }
        }
    }

    fn accept_all(&mut self) {
        // Edge-triggered: until there is none.
        for _ in 0..ACCEPTS_A_TURN {
            let fd = match packets::accept(&self.listener) {
                Ok(fd) => fd,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if is_of_one_connection(&error) => continue,
                Err(error) => {
                    warn!("no program is accepted for a second: {error}");
                    self.accepts_no_more = Some(Instant::now());
                    return;
                }
            };
            if self.clients.len() >= CLIENTS_MAX {
                let line =
                    format_args!("a program is turned away: there are {CLIENTS_MAX} already");
                self.program_lines.say(&line);
                continue;
            }
            let token = self.next_client;
            self.next_client += 1;
            if let Err(error) = self.endpoint.watch(&fd, token) {
                self.program_lines.say(&format_args!("a program is turned away: {error}"));
                continue;
            }
            let client = Client {
                port: None,
                parts: Vec::new(),
                waits: None,
                gives: None,
                answers: Vec::new(),
                readable: true,
                writable: true,
                took: Instant::now(),
                asked: Instant::now(),
                sees_all: peer_uid(&fd).is_ok_and(|uid| uid == 0 || uid == effective_uid()),
                said: false,
                skips: false,
                left: None,
                is_deaf: false,
                was_reset: false,
                fd,
            };
            self.clients.insert(token, client);
            self.serve(token);
        }
        self.endpoint.again(LISTENER);
    }

    fn serve(&mut self, token: u64) {
        self.give(token);
        match self.take(token) {
            Ok(()) => self.give(token),
            Err(end) => self.end(token, &end),
        }
    }

    fn end(&mut self, token: u64, end: &End) {
        let Some(client) = self.clients.remove(&token) else { return };
        if let Some(port) = client.port {
            self.by_port.remove(&port);
            self.endpoint.unbind(port);
        }
        if matches!(end, End::Wrong) {
            self.program_lines.say(&"a program was ended: it sent what no message is");
        }
    }

    /// Takes what a client sends, until there is no more or a datagram has to wait.
    fn take(&mut self, token: u64) -> Result<(), End> {
        for _ in 0..MESSAGES_A_TURN {
            self.send_what_waits(token)?;
            let Some(client) = self.clients.get_mut(&token) else { return Ok(()) };
            if client.waits.is_some() || client.answers.len() >= ANSWERS_MAX || !client.readable {
                return Ok(());
            }
            let count = match packets::recv(&client.fd, &mut self.buffer, false) {
                Ok(0) => return Err(End::Left),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    client.readable = false;
                    return Ok(());
                }
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    client.parts = Vec::new();
                    client.skips = self.buffer.first() == Some(&b's');
                    self.answer(token, error_message(TOO_LONG, "the message is too long"));
                    continue;
                }
                Err(error)
                    if error.kind() == io::ErrorKind::ConnectionReset && !client.was_reset =>
                {
                    client.was_reset = true;
                    client.takes_no_more();
                    continue;
                }
                Err(_) => return Err(End::Left),
            };
            let message = self.buffer[..count].to_vec();
            self.message(token, &message)?;
            if message == b"I" {
                break; // it takes as long as many datagrams do
            }
        }
        // There may be more: others have their turn first.
        self.endpoint.again(token);
        Ok(())
    }

    fn message(&mut self, token: u64, message: &[u8]) -> Result<(), End> {
        let Some(client) = self.clients.get_mut(&token) else { return Ok(()) };
        match message {
            [b's', ..] if client.skips => {}
            [b'S', ..] if client.skips => client.skips = false,
            [b'B', high, low] if client.port.is_none() => {
                let wanted = u16::from_be_bytes([*high, *low]);
                self.make_leave(wanted);
                let bound = self.endpoint.bind(wanted);
                let Some(client) = self.clients.get_mut(&token) else { return Ok(()) };
                match bound {
                    Ok(port) => {
                        client.port = Some(port);
                        self.by_port.insert(port, token);
                        let [high, low] = port.to_be_bytes();
                        self.answer(token, vec![b'B', high, low]);
                    }
                    Err(error) => self.answer(token, error_message(NO_PORT, &error.to_string())),
                }
            }
            [b'B', _, _] => self.answer(token, error_message(NO_PORT, "it has a port already")),
            [b's', part @ ..] | [b'S', _, _, part @ ..]
                if client.parts.len() + part.len() > MESSAGE_BYTES_MAX + HEAD =>
            {
                client.parts = Vec::new();
                client.skips = message[0] == b's';
                self.answer(token, error_message(TOO_LONG, "a datagram has 1 MiB at most"));
            }
            [b's', part @ ..] => client.parts.extend_from_slice(part),
            [b'S', high, low, rest @ ..] if rest.len() >= 16 => {
                let (address, part) = rest.split_at(16);
                let mut bytes = [0; 16];
                bytes.copy_from_slice(address);
                let to = Ipv6Addr::from(bytes).to_canonical();
                let mut body = std::mem::take(&mut client.parts);
                body.extend_from_slice(part);
                client.waits = Some(((to, u16::from_be_bytes([*high, *low])), body));
            }
            [b'I'] => {
                let report = match (client.sees_all, client.port) {
                    (true, _) => self.report(),
                    (false, port) => self.report_of(port),
                };
                let report = Answer::Report(report, 0);
                if let Some(client) = self.clients.get_mut(&token).filter(|client| !client.is_deaf)
                {
                    if !client.has_report() {
                        client.asked = Instant::now();
                    }
                    client.answers.push(report);
                }
            }
            _ => {
                self.answer(token, error_message(NO_MESSAGE, "no message begins so"));
                self.give(token);
                return Err(End::Wrong);
            }
        }
        Ok(())
    }

    fn send_what_waits(&mut self, token: u64) -> Result<(), End> {
        let Some(client) = self.clients.get_mut(&token) else { return Ok(()) };
        let Some((to, body)) = &client.waits else { return Ok(()) };
        let Some(port) = client.port else {
            client.waits = None;
            self.answer(token, error_message(NO_PORT, "it has no port: B comes first"));
            return Ok(());
        };
        let refused = match self.endpoint.send(port, *to, body) {
            Ok(()) => None,
            Err(SendError::Full | SendError::Congested) => return Ok(()),
            Err(error @ SendError::TooLong) => Some((TOO_LONG, error)),
            Err(error @ SendError::NotBound) => Some((NO_PORT, error)),
            Err(error @ (SendError::Address | SendError::Peers | SendError::Unanswered)) => {
                Some((NO_ADDRESS, error))
            }
        };
        client.waits = None;
        if let Some((code, error)) = refused {
            self.answer(token, error_message(code, &error.to_string()));
        }
        Ok(())
    }

    fn answer(&mut self, token: u64, message: Vec<u8>) {
        if let Some(client) = self.clients.get_mut(&token).filter(|client| !client.is_deaf) {
            client.answers.push(Answer::Message(message));
        }
    }

    /// What this is doing, as JSON. Of many peers that is megabytes: clients that ask at one time, and do
    /// not take what they were given, share one.
    fn report(&mut self) -> Arc<[u8]> {
        if let Some((made, report)) = &self.report
            && made.elapsed() < LOOK_EACH
            && Arc::strong_count(report) > 1
        {
            return Arc::clone(report);
        }
        let report = self.json(self.endpoint.report());
        self.report = Some((Instant::now(), Arc::clone(&report)));
        report
    }

    /// What it is doing for a port, and for no other.
    fn report_of(&self, own: Option<u16>) -> Arc<[u8]> {
        let mut report = self.endpoint.report_of_ports();
        report.ports.retain(|port| Some(port.port) == own);
        self.json(report)
    }

    fn json(&self, report: Report) -> Arc<[u8]> {
        let info = Info { tcp_port: self.endpoint.options().tcp_port, report };
        // Of these types it does not fail.
        serde_json::to_vec(&info).unwrap_or_default().into()
    }

    /// Gives a client its answers and what has come for its port, as far as it takes them.
    fn give(&mut self, token: u64) {
        let Some(client) = self.clients.get_mut(&token).filter(|client| !client.is_deaf) else {
            return;
        };
        while client.writable
            && client.gives.is_none()
            && let Some(answer) = client.answers.first()
        {
            let (sent, after) = match answer {
                Answer::Message(message) => {
                    (packets::send(&client.fd, &[IoSlice::new(message)], false), None)
                }
                Answer::Report(report, at) => {
                    let end = report.len().min(at + PART_BYTES);
                    let is_last = end == report.len();
                    let kind = if is_last { b"I" } else { b"i" };
                    let parts = [IoSlice::new(kind), IoSlice::new(&report[*at..end])];
                    (packets::send(&client.fd, &parts, false), (!is_last).then_some(end))
                }
            };
            if took(client, sent) {
                match (client.answers.first_mut(), after) {
                    (Some(Answer::Report(_, at)), Some(end)) => *at = end,
                    _ => drop(client.answers.remove(0)),
                }
            }
        }
        let Some(port) = client.port else { return };
        while client.writable && !client.is_deaf {
            let Some((datagram, at)) = &mut client.gives else {
                if !client.answers.is_empty() {
                    return;
                }
                match self.endpoint.receive(port) {
                    Some(datagram) => client.gives = Some((datagram, 0)),
                    None => return,
                }
                continue;
            };
            let rest = &datagram.body[*at..];
            let (from, here) = (datagram.from, rest.len().min(PART_BYTES));
            let is_last = here == rest.len();
            let head = if is_last { head(from, datagram.port) } else { [b'r'; HEAD] };
            let head = if is_last { &head[..] } else { &head[..1] };
            let parts = [IoSlice::new(head), IoSlice::new(&rest[..here])];
            *at += here;
            let sent = packets::send(&client.fd, &parts, false);
            if !took(client, sent) {
                if let Some((_, at)) = &mut client.gives {
                    *at -= here;
                }
            } else if is_last {
                client.gives = None;
            }
        }
    }

    /// A program asks for this port. One that has it, and has left, is waited for no longer.
    fn make_leave(&mut self, port: u16) {
        if let Some(token) = self.by_port.get(&port).copied()
            && self.clients.get(&token).is_some_and(|client| client.left.is_some())
        {
            self.end_left(token, &"another program takes the port");
        }
    }

    /// Ends a program that has left before all that it had sent could be queued, and says why what is left
    /// of that is not waited for.
    fn end_left(&mut self, token: u64, why: &dyn Display) {
        let port = self.clients.get(&token).and_then(|client| client.port);
        if let Some(port) = port {
            self.program_lines.say(&format_args!(
                "the program with port {port} has left, and the datagrams that it sent last are dropped: \
                 they were still waiting for room, and {why}"
            ));
        }
        self.end(token, &End::Left);
    }

    fn end_stalled(&mut self) {
        let has_left =
            |client: &Client| client.left.is_some_and(|since| since.elapsed() >= LEAVES_AFTER);
        let left = self.clients.iter().filter(|(_, client)| has_left(client));
        for token in left.map(|(token, _)| *token).collect::<Vec<_>>() {
            let why = format_args!("have done so for {} s", LEAVES_AFTER.as_secs());
            self.end_left(token, &why);
        }
        // A report without holders is not kept.
        self.report = self.report.take().filter(|(_, report)| Arc::strong_count(report) > 1);
        let is_stalled = |client: &Client| {
            let since = client.took.max(client.asked);
            client.has_report() && since.elapsed() > STALLED_MAX
        };
        let stalled: Vec<u64> = self
            .clients
            .iter()
            .filter(|(_, client)| is_stalled(client))
            .map(|(token, _)| *token)
            .collect();
        for token in stalled {
            let line = "a program is ended: it asked what the proxy is doing, and reads nothing";
            self.program_lines.say(&line);
            self.end(token, &End::Left);
        }
        let report = self.endpoint.report_of_ports();
        for port in report.ports.iter().filter(|port| port.congested) {
            let client = self.by_port.get(&port.port).and_then(|at| self.clients.get_mut(at));
            if let Some(client) = client
                && client.took.elapsed() > STALLED_MAX
                && !std::mem::replace(&mut client.said, true)
            {
                self.program_lines.say(&format_args!(
                    "the program with port {} reads nothing: {} bytes wait for it, and its senders wait",
                    port.port, port.queued_bytes
                ));
            }
        }
        for port in self.endpoint.stopping_for(STALLED_MAX) {
            let Some(token) = self.by_port.get(&port).copied() else { continue };
            self.program_lines.say(&format_args!(
                "the program with port {port} is ended: so much waits for it that lanes have stood still \
                 for {} s",
                STALLED_MAX.as_secs()
            ));
            self.end(token, &End::Left);
        }
    }
}

/// Whether a client has taken a message.
fn took(client: &mut Client, sent: io::Result<()>) -> bool {
    match sent {
        Ok(()) => {
            client.took = Instant::now();
            true
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            client.writable = false;
            false
        }
        Err(_) => {
            client.takes_no_more();
            false
        }
    }
}

fn head(from: IpAddr, port: u16) -> [u8; HEAD] {
    let mut bytes = [0; HEAD];
    bytes[0] = b'R';
    bytes[1..3].copy_from_slice(&port.to_be_bytes());
    let address = match from {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    bytes[3..].copy_from_slice(&address.octets());
    bytes
}

fn error_message(code: u8, text: &str) -> Vec<u8> {
    [&[b'E', code][..], text.as_bytes()].concat()
}

/// Asks a running proxy what it is doing.
///
/// # Errors
/// As connect(2), if there is no listener.
pub fn ask(path: &Path) -> io::Result<serde_json::Value> {
    let fd = packets::connect(path)?;
    packets::send(fd.as_fd(), &[IoSlice::new(b"I")], true)?;
    let (mut json, mut buffer) = (Vec::new(), vec![0; MESSAGE_MAX]);
    loop {
        let count = packets::recv(&fd, &mut buffer, true)?;
        match &buffer[..count] {
            [b'i', part @ ..] => json.extend_from_slice(part),
            [b'I', part @ ..] => {
                json.extend_from_slice(part);
                return serde_json::from_slice(&json).map_err(io::Error::other);
            }
            _ => return Err(io::Error::new(io::ErrorKind::InvalidData, "it is no proxy")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_about_peers_are_so_many_in_a_minute() {
        let start = Instant::now();
        let mut lines = Lines { about: "peers", since: start, count: 0 };
        let written = |lines: &mut Lines, now| (0..5000).filter(|_| lines.may(now)).count();
        assert_eq!(written(&mut lines, start), LINES_MAX as usize);
        assert_eq!(written(&mut lines, start + LINES_EACH / 2), 0);
        assert_eq!(written(&mut lines, start + LINES_EACH), LINES_MAX as usize);
    }
}
