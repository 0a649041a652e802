//! Plays a byte string as a sequence of things that happen to two engines.
//!
//! # Model
//! The first [`HEAD`] bytes set the scene, each further [`OPERATION`] bytes are one operation:
//! what, who, how. Whatever the bytes are, something is played, so a fuzzer may change any of
//! them, and a failing input is shrunk by leaving out operations.
//!
//! # Invariants, checked after each operation
//! * nothing panics, debug assertions included
//! * the pool's books agree with what can be seen from outside: [`World::check`]
//! * what a client has read is what a server of its own would have said: [`Judge`]
//! * a backend that lies idle has nothing of a client left
//!
//! # And in the end
//! Everything on its way arrives, servers answer, and each client leaves once it has its answers:
//! all who may expect one have it, and nothing stays lent, queued or attached. Then every backend
//! serves a newcomer as if it were new.

pub(crate) mod clients;
pub(crate) mod server;
pub(crate) mod world;

use std::time::Duration;

use hawser_pooler::ids::LoopId;
use hawser_pooler::lending::PoolSettings;
use hawser_pooler::relay::limits::WHOLE_MESSAGE_BYTES;
use hawser_pooler::relay::{PoolMode, ToLoop};
use hawser_pooler::wire::error::{ClientError, SqlState};

use self::clients::{Excuse, Judge, is_bound, messages, split};
use self::server::Session;
use self::world::{Undone, World};

/// Bytes that set the scene.
pub(crate) const HEAD: usize = 3;
/// Bytes of one operation.
pub(crate) const OPERATION: usize = 3;
/// Operations that are played at most; the rest of an input is not looked at.
const OPERATIONS_MAX: usize = 400;
/// Clients at the same time.
const CLIENTS_MAX: usize = 6;
/// Of the first byte of an operation: what a client sends is bound with a parameter that streams.
const LONG: u8 = 0x60;
/// The length of such a parameter: more than a message that is passed on only when it is complete.
const LONG_BYTES: usize = 3 * WHOLE_MESSAGE_BYTES / 2;
/// Rounds that the end may take.
const ROUNDS_MAX: usize = 2_000;

struct Client {
    judge: Judge,
    /// What it will send next.
    unsent: Vec<u8>,
    open: bool,
    slow: bool,
}

struct Server {
    session: Session,
    inbox: Vec<u8>,
    /// Flushed, but not sent yet.
    outbox: Vec<u8>,
    /// What it says cannot be relied on.
    lies: bool,
}

struct Play {
    world: World,
    clients: Vec<Client>,
    servers: Vec<Server>,
    timeouts: bool,
    mode: PoolMode,
    trace: bool,
}

/// Plays an input. What went wrong, if anything; panics are the caller's to catch.
pub(crate) fn play(input: &[u8], trace: bool) -> Result<(), String> {
    let Some((head, operations)) = input.split_at_checked(HEAD) else { return Ok(()) };
    let mut play = Play::new(head, trace);
    for operation in operations.chunks_exact(OPERATION).take(OPERATIONS_MAX) {
        let [what, who, how] = *operation else { continue };
        play.operate(what, usize::from(who), usize::from(how))?;
    }
    play.end()
}

impl Play {
    fn new(head: &[u8], trace: bool) -> Self {
        let timeouts = head[2] & 3 == 3;
        let mut settings = PoolSettings {
            query_wait_timeout: Duration::ZERO,
            max_prepared_statements: [200, 200, 2, 0][usize::from(head[1] & 3)],
            server_max_transactions: [0, 0, 0, 3][usize::from(head[1] >> 2 & 3)],
            ..PoolSettings::default()
        };
        if timeouts {
            settings.query_wait_timeout = Duration::from_secs(2);
            settings.query_timeout = Duration::from_secs(3);
            settings.idle_transaction_timeout = Duration::from_secs(4);
            settings.transaction_timeout = Duration::from_secs(5);
            settings.client_idle_timeout = Duration::from_secs(6);
        }
        settings.limits.size = 1 + u32::from(head[0] >> 2) % 3;
        settings.limits.reserve_size = u32::from(head[0] >> 6 & 1);
        settings.limits.reserve_timeout = Duration::from_secs(1);
        settings.limits.idle_transaction_reserve = u32::from(head[0] >> 7);
        let loops = if head[0] & 3 == 0 { 1 } else { 2 };
        Self {
            world: World::new(loops, settings),
            clients: Vec::new(),
            servers: Vec::new(),
            timeouts,
            mode: if head[1] >> 4 == 15 { PoolMode::Session } else { PoolMode::Transaction },
            trace,
        }
    }

    fn say(&self, what: impl FnOnce() -> String) {
        if self.trace {
            println!("{}", what());
        }
    }

    /// The open clients, in order; `who` chooses one.
    fn client(&self, who: usize) -> Option<usize> {
        let open: Vec<usize> = (0..self.clients.len()).filter(|n| self.clients[*n].open).collect();
        (!open.is_empty()).then(|| open[who % open.len()])
    }

    fn server(&self, who: usize) -> Option<usize> {
        let live: Vec<usize> =
            (0..self.servers.len()).filter(|n| !self.world.servers[*n].is_dropped()).collect();
        (!live.is_empty()).then(|| live[who % live.len()])
    }

    fn operate(&mut self, what: u8, who: usize, how: usize) -> Result<(), String> {
        // A lie, and a death, may be noticed, and the server be gone, by the end of this.
        let faulty = self.faulty_servers() || matches!(what % 32, 19 | 20);
        match what % 32 {
            0..=8 => self.client_sends(who, how, what & LONG == LONG),
            9 => self.client_sends_part(who, how, what & LONG == LONG),
            10 => self.client_sends_nonsense(who, how),
            11 => self.client_leaves(who, how),
            12 => self.connect(who, how),
            13..=17 => self.server_answers(who, how, usize::MAX),
            18 => self.server_answers(who, 1, how),
            19 => self.server_fails(who, how),
            20 => self.server_lies(who, how),
            21..=24 => {
                let refused = self.world.deliver(how);
                self.say(|| format!("a message arrives, {:?}", self.world.undone()));
                for client in refused {
                    self.clients[client].judge.excuse(Excuse::Cut);
                }
            }
            25 => self.raise(who, how),
            26 | 27 => self.open(who, how),
            28 => self.wait(who, how),
            29 => self.room(who, how),
            30 => self.cancel(who, how),
            _ => self.administer(who, how),
        }
        self.raise_most(what, how);
        self.observe(faulty)
    }

    /// Mostly readiness is reported at once.
    fn raise_most(&mut self, what: u8, how: usize) {
        if what & 0x80 != 0 && how & 0x80 != 0 {
            return;
        }
        self.raise_all();
    }

    fn raise_all(&mut self) -> bool {
        let mut any = false;
        for at in 0..self.world.clients.len() + self.world.servers.len() {
            let pipe = match at.checked_sub(self.world.clients.len()) {
                None => self.world.clients[at].clone(),
                Some(at) => self.world.servers[at].clone(),
            };
            any |= self.world.raise(&pipe);
        }
        any
    }

    fn raise(&mut self, who: usize, how: usize) {
        let pipe = if how & 1 == 0 {
            let Some(client) = self.client(who) else { return };
            self.world.clients[client].clone()
        } else {
            let Some(server) = self.server(who) else { return };
            self.world.servers[server].clone()
        };
        if how & 2 == 0 {
            self.world.raise(&pipe);
        } else {
            self.world.raise_for_nothing(&pipe);
        }
    }

    fn connect(&mut self, who: usize, how: usize) {
        if self.clients.iter().filter(|client| client.open).count() == CLIENTS_MAX {
            return;
        }
        let home = LoopId((who % self.world.loops()) as u16);
        let mode = self.mode;
        let start: &[(&str, &str)] = match how >> 3 & 3 {
            // Known: in session mode RESET goes back to the server's start values.
            _ if mode == PoolMode::Session => &[],
            0 | 1 => &[],
            2 => &[("application_name", "mine")],
            _ => &[("TimeZone", "Z"), ("application_name", "other")],
        };
        let number = self.world.connect(home, mode, start);
        self.say(|| format!("client {number} of loop {home} comes, {mode:?}, {start:?}"));
        let judge = Judge::new(number, start);
        self.clients.push(Client { judge, unsent: Vec::new(), open: true, slow: false });
    }

    /// A client has something to send; all that it has is sent.
    fn client_sends(&mut self, who: usize, how: usize, long: bool) {
        let Some(number) = self.client(who) else {
            self.connect(who, how);
            return;
        };
        self.enqueue(number, how, long);
        self.push_out(number, usize::MAX);
    }

    fn enqueue(&mut self, number: usize, how: usize, long: bool) {
        let client = &mut self.clients[number];
        let mut token = client.judge.token();
        if long && is_bound(how as u8) {
            token.extend(std::iter::repeat_n('.', LONG_BYTES));
        }
        let bytes = messages(how as u8, &token);
        if !client.judge.may_send(&bytes) {
            return;
        }
        client.judge.sends(&bytes);
        client.unsent.extend_from_slice(&bytes);
        self.say(|| {
            let kinds: String = split(&bytes).0.iter().map(|(kind, _)| char::from(*kind)).collect();
            let text = String::from_utf8_lossy(&bytes[..bytes.len().min(60)]).into_owned();
            format!("client {number} sends {kinds}: {text:?}")
        });
    }

    fn push_out(&mut self, number: usize, most: usize) {
        let unsent = &mut self.clients[number].unsent;
        let part: Vec<u8> = unsent.drain(..most.min(unsent.len())).collect();
        self.world.clients[number].send(&part);
    }

    /// What a client has to send breaks off somewhere, also in the middle of a message that streams.
    fn client_sends_part(&mut self, who: usize, how: usize, long: bool) {
        let Some(number) = self.client(who) else { return };
        if self.clients[number].unsent.is_empty() {
            self.enqueue(number, how, long);
        }
        let unsent = self.clients[number].unsent.len();
        let part = match who >> 5 {
            0..=3 => 1 + how % 40,
            4 => WHOLE_MESSAGE_BYTES + how % 40,
            5 => unsent.saturating_sub(1 + how % 40),
            6 => unsent / 2,
            _ => unsent * (1 + how) / 257,
        };
        self.push_out(number, part);
        self.say(|| format!("client {number}: only a part is sent"));
    }

    /// From here on it is not held to the reference.
    fn client_sends_nonsense(&mut self, who: usize, how: usize) {
        let Some(number) = self.client(who) else { return };
        // Changed bytes must not make a token of another out of its own.
        let mut bytes = messages(how as u8, "nonsense");
        let at = how * 7 % bytes.len();
        match who >> 4 {
            0..=3 => bytes[at] ^= 1 << (how % 8),
            4..=6 => bytes.truncate(at.max(1)),
            7 => bytes.insert(at, how as u8),
            8 => bytes = vec![how as u8; 1 + how % 9],
            9 => bytes = [&[b'Q'][..], &(how as u32 * 999).to_be_bytes(), b"SELECT 1\0"].concat(),
            10 => bytes = vec![b'Q', 0xff, 0xff, 0xff, how as u8],
            11 => drop(bytes.drain(..at)),
            // Whole messages, but at a moment when no application would send them.
            _ => {}
        }
        let client = &mut self.clients[number];
        client.judge.excuse(Excuse::Cut);
        client.unsent.extend_from_slice(&bytes);
        self.push_out(number, usize::MAX);
        self.say(|| {
            format!("client {number} sends nonsense: {:?}", bytes.escape_ascii().to_string())
        });
    }

    fn client_leaves(&mut self, who: usize, how: usize) {
        let Some(number) = self.client(who) else { return };
        if !how.is_multiple_of(4) {
            return; // not so often
        }
        self.clients[number].open = false;
        self.world.clients[number].close();
        self.say(|| format!("client {number} leaves"));
    }

    /// A server takes messages in and sends `most` bytes of what it has to say.
    fn server_answers(&mut self, who: usize, how: usize, most: usize) {
        let Some(number) = self.server(who) else { return };
        self.serve(number, how & 15, most);
    }

    fn serve(&mut self, number: usize, count: usize, most: usize) -> bool {
        let pipe = self.world.servers[number].clone();
        let server = &mut self.servers[number];
        server.inbox.extend_from_slice(&pipe.received());
        let mut fed = String::new();
        for _ in 0..count {
            if server.session.is_ended() || !server.feed_one(&mut fed) {
                break;
            }
        }
        server.outbox.extend_from_slice(&server.session.take_flushed());
        let part: Vec<u8> = server.outbox.drain(..most.min(server.outbox.len())).collect();
        let ended = server.session.is_ended() && server.outbox.is_empty();
        let (did, said) = (!fed.is_empty() || !part.is_empty(), part.len());
        if said > 0 {
            pipe.send(&part);
        }
        if ended && !pipe.state().closed {
            pipe.close();
        }
        self.say(|| {
            let kinds: String = split(&part).0.iter().map(|(kind, _)| char::from(*kind)).collect();
            format!("server {number} takes {fed} and sends {said} bytes: {kinds}")
        });
        did
    }

    fn server_fails(&mut self, who: usize, how: usize) {
        let Some(number) = self.server(who) else { return };
        if !how.is_multiple_of(4) {
            return; // not so often
        }
        if how & 4 == 0 {
            let mut fatal = Vec::new();
            ClientError::fatal(SqlState::ADMIN_SHUTDOWN, "terminating").write(&mut fatal);
            self.world.servers[number].send(&fatal);
        }
        self.servers[number].lies = true;
        self.world.servers[number].close();
        self.say(|| format!("server {number} dies"));
        self.blame();
    }

    fn server_lies(&mut self, who: usize, how: usize) {
        let Some(number) = self.server(who) else { return };
        if who & 0x40 != 0 {
            return; // not so often
        }
        if self.world.undone().messages > 0 {
            // It may be on its way to a loop, and to any client that waits there: which one got the
            // false answer is then unknown.
            return;
        }
        let lie = match how % 16 {
            0 => b"Z\0\0\0\x05I".to_vec(),
            1 => b"Z\0\0\0\x05T".to_vec(),
            2 => b"Z\0\0\0\x05?".to_vec(),
            3 => b"C\0\0\0\x07OK\0".to_vec(),
            4 => b"1\0\0\0\x04".to_vec(),
            5 => b"2\0\0\0\x04".to_vec(),
            6 => b"D\0\0\0\x03".to_vec(),
            7 => b"D\0\0\x40\0half".to_vec(),
            8 => b"E\0\0\0\x05\0".to_vec(),
            9 => b"S\0\0\0\x06TZ".to_vec(),
            10 => b"S\0\0\0\x0fTimeZone\0B\0".to_vec(),
            11 => b"G\0\0\0\x07\0\0\0".to_vec(),
            12 => b"T\0\x10\0\0".to_vec(),
            13 => b"E\x7f\xff\xff\xff".to_vec(),
            14 => vec![who as u8, 0, 0, 0, 4],
            _ => vec![how as u8; 1 + who % 8],
        };
        self.servers[number].lies = true;
        self.world.servers[number].send(&lie);
        self.say(|| format!("server {number} lies: {:?}", lie.escape_ascii().to_string()));
        self.blame();
    }

    /// Clients of servers that cannot be relied on are excused.
    fn blame(&mut self) {
        if !self.servers.iter().any(|server| server.lies) {
            return;
        }
        for (client, server) in self.world.attached() {
            if self.servers[server].lies {
                self.clients[client].judge.excuse(Excuse::LiedTo);
            }
        }
    }

    /// Whether the engine still has a server that has died or lied.
    fn faulty_servers(&self) -> bool {
        (0..self.servers.len()).any(|at| {
            let pipe = &self.world.servers[at];
            !pipe.is_dropped() && (self.servers[at].lies || self.servers[at].session.is_ended())
        })
    }

    fn open(&mut self, who: usize, how: usize) {
        if how % 16 == 15 {
            self.world.fail_to_open(who, how & 0x20 != 0);
            self.say(|| "a backend cannot be opened".to_owned());
            return;
        }
        let Some(number) = self.world.open(who) else { return };
        self.say(|| format!("server {number} is opened"));
        self.servers.push(Server {
            session: Session::new(&[]),
            inbox: Vec::new(),
            outbox: Vec::new(),
            lies: false,
        });
    }

    fn wait(&mut self, who: usize, how: usize) {
        let ms = [1, 10, 60, 200, 1_000, 2_500, 11_000, 31_000][who % 8] + how as u64;
        self.say(|| format!("{ms} ms pass"));
        self.raise_all();
        self.world.wait_ms(ms);
    }

    fn room(&mut self, who: usize, how: usize) {
        let room = [0, 1, 7, 100, 5_000, usize::MAX, usize::MAX, usize::MAX][how % 8];
        if how & 8 == 0 {
            let Some(number) = self.client(who) else { return };
            self.clients[number].slow |= room != usize::MAX;
            self.world.clients[number].set_room(room);
            self.say(|| format!("client {number} takes {room} bytes"));
        } else {
            let Some(number) = self.server(who) else { return };
            self.world.servers[number].set_room(room);
            self.say(|| format!("server {number} takes {room} bytes"));
        }
    }

    fn cancel(&mut self, who: usize, how: usize) {
        if how & 1 == 0 {
            let Some(number) = self.world.send_cancel(who) else { return };
            let pipe = self.world.servers[number].clone();
            let server = &mut self.servers[number];
            server.inbox.extend_from_slice(&pipe.received());
            let running = split(&server.inbox).0.iter().any(|(kind, _)| b"QE".contains(kind));
            server.session.cancel(running);
            self.say(|| format!("a cancel request reaches server {number}"));
            return;
        }
        let Some(number) = self.client(who) else { return };
        let Some(process) = self.clients[number].judge.process else { return };
        let right = how & 2 == 0;
        let key = if right { number as u8 } else { 0xee };
        if right {
            self.clients[number].judge.excuse(Excuse::Cut);
        }
        for at in 0..self.world.loops() {
            let cancel = ToLoop::Cancel { process, key: [key; 4].into() };
            self.world.post(LoopId(at as u16), cancel);
        }
        self.say(|| format!("client {number} asks for a cancel, key right: {right}"));
    }

    fn administer(&mut self, who: usize, how: usize) {
        match how % 8 {
            0 => {
                let Some(number) = self.client(who) else { return };
                let Some((client, _)) = self.world.find_client(number) else { return };
                self.clients[number].judge.excuse(Excuse::Cut);
                let error = ClientError::fatal(SqlState::ADMIN_SHUTDOWN, "killed");
                self.world.post(client.home, ToLoop::Kill { client, error });
                self.say(|| format!("client {number} is killed"));
            }
            1 => {
                self.world.pool.begin_epoch();
                self.say(|| "a new epoch begins".to_owned());
            }
            2 => {
                let pool = self.world.pool.clone();
                self.world.post(LoopId((who % self.world.loops()) as u16), ToLoop::Poke(pool));
            }
            _ => {
                let Some(number) = self.server(who) else { return };
                self.servers[number].session.notify();
                self.say(|| format!("server {number} notifies"));
            }
        }
    }

    /// Looks at everything.
    fn observe(&mut self, faulty: bool) -> Result<(), String> {
        self.blame();
        let excused = faulty || self.faulty_servers();
        for (number, client) in self.clients.iter_mut().enumerate() {
            let pipe = &self.world.clients[number];
            let received = pipe.received();
            let dropped = pipe.is_dropped();
            if dropped && client.open {
                client.open = false;
                let expected = client.judge.is_over() && client.unsent.is_empty();
                // Half a message that does not go on is cut off, as is who reads nothing.
                let stalled = client.slow || !client.unsent.is_empty();
                if excused || self.timeouts || stalled {
                    client.judge.excuse(Excuse::Cut);
                } else if !expected && client.judge.excuse.is_none() {
                    let said = String::from_utf8_lossy(&received).into_owned();
                    return Err(format!("client {number} was disconnected: {said:?}"));
                }
            }
            client.judge.reads(&received)?;
        }
        self.world.check()?;
        for number in self.world.idle() {
            let server = &mut self.servers[number];
            if server.lies || server.session.is_ended() {
                continue;
            }
            server.inbox.extend_from_slice(&self.world.servers[number].received());
            let (undone, half) = split(&server.inbox);
            // A Flush, and copy data that was not asked for, have no answer.
            if !half.is_empty() || undone.iter().any(|(kind, _)| !b"Hdcf".contains(kind)) {
                return Err(format!("server {number} is idle and has something to do"));
            }
            if let Some(left) = server.session.leftover() {
                return Err(format!("server {number} is idle with a client's state: {left}"));
            }
        }
        Ok(())
    }

    /// Brings all that is on its way, until nothing moves.
    fn settle(&mut self) -> Result<(), String> {
        for _ in 0..ROUNDS_MAX {
            let faulty = self.faulty_servers();
            let before = self.world.undone();
            let mut moved = self.raise_all() || before != Undone::default();
            moved |= self.world.go_on();
            for number in 0..self.clients.len() {
                if self.clients[number].open && !self.clients[number].unsent.is_empty() {
                    self.push_out(number, usize::MAX);
                    moved = true;
                }
            }
            for client in self.world.deliver(0) {
                self.clients[client].judge.excuse(Excuse::Cut);
            }
            self.cancel(0, 0);
            self.open(0, 0);
            for number in 0..self.servers.len() {
                if !self.world.servers[number].is_dropped() {
                    moved |= self.serve(number, 16, usize::MAX);
                }
            }
            self.observe(faulty)?;
            if !moved && self.world.undone() == Undone::default() {
                return Ok(());
            }
        }
        Err("it does not come to rest".to_owned())
    }

    fn end(&mut self) -> Result<(), String> {
        self.say(|| "the end".to_owned());
        for pipe in self.world.clients.iter().chain(&self.world.servers) {
            pipe.set_room(usize::MAX);
        }
        for (server, pipe) in self.servers.iter().zip(&self.world.servers) {
            if server.lies {
                pipe.close();
            }
        }
        self.settle()?;
        // Who has its answers leaves, and makes room for those who wait. An opening that failed
        // is tried again after a while, and tidying takes its time.
        for _ in 0..2 * CLIENTS_MAX {
            self.world.wait_ms(1_500);
            self.settle()?;
            let ready = (0..self.clients.len()).find(|number| {
                let client = &self.clients[*number];
                client.open && (client.judge.excuse.is_some() || client.judge.is_satisfied())
            });
            let Some(number) = ready else {
                if self.client(0).is_none() {
                    break;
                }
                continue;
            };
            self.say(|| format!("client {number} leaves"));
            self.clients[number].open = false;
            self.world.clients[number].close();
            self.settle()?;
        }
        if let Some(number) = self.client(0) {
            let state = self.world.find_client(number).map(|(_, state)| state);
            let awaited = self.clients[number].judge.awaited();
            return Err(format!("client {number} ({state:?}) waits for ever for {awaited}"));
        }
        self.world.wait_ms(15_000);
        self.settle()?;
        {
            let pool = self.world.pool.lock();
            let left = [pool.lent_count(), pool.opening_count(), pool.waiting_count()];
            if left != [0; 3] {
                return Err(format!("all have left; lent, opening, waiting: {left:?}"));
            }
        }
        if self.world.client_count() != 0 {
            return Err("all have left, and an engine has a client".to_owned());
        }
        self.newcomers()
    }

    /// Each backend serves a newcomer as if it were new.
    fn newcomers(&mut self) -> Result<(), String> {
        let first = self.clients.len();
        let count = self.world.pool.lock().limits().size as usize;
        for at in 0..count {
            let home = at % self.world.loops();
            self.connect(home, 0);
            let number = self.clients.len() - 1;
            for which in [45, 1, 0, 4, 7] {
                // a statement that no PREPARE of its own has made; BEGIN; a simple query; the extended
                // protocol; a statement that it has not prepared
                self.enqueue(number, which, false);
            }
        }
        self.settle()?;
        for (number, client) in self.clients.iter().enumerate().skip(first) {
            if !client.judge.is_satisfied() {
                let awaited = client.judge.awaited();
                return Err(format!("newcomer {number} waits for ever for {awaited}"));
            }
        }
        Ok(())
    }
}

impl Server {
    /// Feeds the session one message. Bytes that are no message end it, as they end a server.
    fn feed_one(&mut self, fed: &mut String) -> bool {
        use hawser_pooler::wire::frame::{Framed, header};
        let header = match header(&self.inbox) {
            Framed::Short => return false,
            Framed::Header(header) if header.total() > self.inbox.len() => {
                return false;
            }
            Framed::Header(header) => header,
            Framed::BadLength { kind, .. } => {
                self.session.feed(kind.max(0x80), &[]);
                return false;
            }
        };
        let rest = self.inbox.split_off(header.total());
        let message = std::mem::replace(&mut self.inbox, rest);
        fed.push(char::from(header.kind));
        self.session.feed(header.kind, &message[5..]);
        true
    }
}
