//! Engines, and all that is around them: sockets, epoll, the dialler, messages on their way.
//!
//! # Model
//! Nothing happens by itself: bytes lie in pipes, readiness and messages wait until
//! [`World::raise`] and [`World::deliver`] bring them, in any order with two limits: messages of
//! one sender to one loop keep theirs, and readiness is edge-triggered as in epoll.
//!
//! # Invariants
//! [`World::check`] compares the pool's books with what can be seen from outside.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::SocketAddrV4;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};

use hawser_pooler::ids::{BackendId, ClientId, LoopId, PoolId, ServerAddressId};
use hawser_pooler::lending::{PoolSettings, SharedPool};
use hawser_pooler::parts::identity::process_ids::OwnProcessIds;
use hawser_pooler::parts::start_values::parameters::ServerParameters;
use hawser_pooler::relay::backend::PoolRef;
use hawser_pooler::relay::client_info::ClientState;
use hawser_pooler::relay::message::{BackendState, Event, Listed, Page, PageRequest};
use hawser_pooler::relay::{
    Backend, BackendSeed, CancelRequest, ClientAbout, ClientSecret, Engine, Host, NewClient,
    PeerAddress, PoolMode, Readiness, Socket, ToLoop, Token,
};
use hawser_pooler::session::settings::SettingsBuilder;
use hawser_pooler::time::Time;

use super::server::{REPORTED, SETTINGS};

/// One connection: what has been sent each way and not been read.
#[derive(Default)]
pub(crate) struct State {
    /// From the peer to the engine.
    pub(crate) to_engine: VecDeque<u8>,
    /// From the engine to the peer.
    pub(crate) from_engine: Vec<u8>,
    /// The peer has closed.
    pub(crate) closed: bool,
    /// The engine has closed.
    pub(crate) dropped: bool,
    /// Bytes that the peer still takes.
    pub(crate) room: usize,
    /// The loop that watches it, and under which token.
    watch: Option<(LoopId, Token)>,
    /// Something has changed since the loop's last event.
    edge: bool,
}

/// The peer's end of a connection.
#[derive(Clone)]
pub(crate) struct Pipe(Arc<Mutex<State>>);

impl Pipe {
    fn new() -> Self {
        Self(Arc::new(Mutex::new(State { room: usize::MAX, ..State::default() })))
    }

    /// What is in it.
    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        // Also where an engine has panicked: the connections are dropped all the same.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The peer sends bytes.
    pub(crate) fn send(&self, bytes: &[u8]) {
        let mut state = self.state();
        if !state.closed {
            state.to_engine.extend(bytes);
            state.edge = true;
        }
    }

    /// The peer closes.
    pub(crate) fn close(&self) {
        let mut state = self.state();
        state.closed = true;
        state.edge = true;
    }

    /// The peer takes this many bytes from now on.
    pub(crate) fn set_room(&self, room: usize) {
        let mut state = self.state();
        state.edge |= room > state.room;
        state.room = room;
    }

    /// Whether the engine has closed the connection.
    pub(crate) fn is_dropped(&self) -> bool {
        self.state().dropped
    }

    /// What the engine has sent since the last look.
    pub(crate) fn received(&self) -> Vec<u8> {
        std::mem::take(&mut self.state().from_engine)
    }
}

/// The engine's end of a connection.
pub(crate) struct Fake(Pipe);

impl Drop for Fake {
    fn drop(&mut self) {
        self.0.state().dropped = true;
    }
}

impl Socket for Fake {
    type Permit = ();

    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut state = self.0.state();
        if state.to_engine.is_empty() {
            return if state.closed { Ok(0) } else { Err(io::ErrorKind::WouldBlock.into()) };
        }
        let count = state.to_engine.len().min(buf.len());
        for (to, from) in buf.iter_mut().zip(state.to_engine.drain(..count)) {
            *to = from;
        }
        Ok(count)
    }

    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let mut state = self.0.state();
        if state.closed {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let count = buf.len().min(state.room);
        if count == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        state.room -= count;
        state.from_engine.extend_from_slice(&buf[..count]);
        Ok(count)
    }
}

/// Who has sent a message: messages of one sender to one loop keep their order.
type Sender = Option<LoopId>;

/// What is on its way.
#[derive(Default)]
struct Asked {
    messages: Vec<(Sender, LoopId, ToLoop<Fake>)>,
    openings: Vec<(PoolRef<Fake>, LoopId)>,
    cancels: Vec<CancelRequest>,
}

struct FakeHost<'a> {
    id: LoopId,
    asked: &'a mut Asked,
}

impl Host<Fake> for FakeHost<'_> {
    fn watch(&mut self, socket: &Fake, token: Token) -> io::Result<()> {
        let mut state = socket.0.state();
        assert!(state.watch.is_none(), "a connection is watched twice");
        state.watch = Some((self.id, token));
        state.edge = true;
        Ok(())
    }
    fn unwatch(&mut self, socket: &Fake, home: LoopId) {
        let mut state = socket.0.state();
        assert_eq!(state.watch.map(|(at, _)| at), Some(home), "unwatched where it is not watched");
        state.watch = None;
    }
    fn send(&mut self, to: LoopId, message: ToLoop<Fake>) {
        self.asked.messages.push((Some(self.id), to, message));
    }
    fn open(&mut self, pool: &PoolRef<Fake>, home: LoopId) {
        self.asked.openings.push((pool.clone(), home));
    }
    fn cancel(&mut self, request: CancelRequest) {
        self.asked.cancels.push(request);
    }
    fn event(&mut self, _: Event<'_>) {}
}

/// What is left to bring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Undone {
    /// Messages to loops.
    pub(crate) messages: usize,
    /// Backends to be opened.
    pub(crate) openings: usize,
    /// Cancel requests to be sent.
    pub(crate) cancels: usize,
}

/// Engines and the world around them.
pub(crate) struct World {
    engines: Vec<Engine<Fake>>,
    asked: Asked,
    /// The pool.
    pub(crate) pool: PoolRef<Fake>,
    /// All client connections in the order of their making.
    pub(crate) clients: Vec<Pipe>,
    /// All server connections in the order of their opening; the backend's id is the place.
    pub(crate) servers: Vec<Pipe>,
    /// The time.
    pub(crate) now: Time,
    parameters: Arc<ServerParameters>,
}

impl World {
    /// Idle engines with an empty pool.
    pub(crate) fn new(loops: u16, settings: PoolSettings) -> Self {
        let pool = SharedPool::new(PoolId(1), "db", "me", settings, usize::from(loops), 7);
        let mut parameters = ServerParameters::default();
        for (name, value) in &SETTINGS[..REPORTED] {
            parameters.set(name.as_bytes(), value.as_bytes());
        }
        Self {
            engines: (0..loops)
                .map(|id| Engine::new(LoopId(id), loops, 7, OwnProcessIds::all(0)))
                .collect(),
            asked: Asked::default(),
            pool: Arc::new(pool),
            clients: Vec::new(),
            servers: Vec::new(),
            now: Time::from_micros(1_000_000),
            parameters: Arc::new(parameters),
        }
    }

    /// How many loops there are.
    pub(crate) fn loops(&self) -> usize {
        self.engines.len()
    }

    fn with_engine(
        &mut self,
        id: LoopId,
        act: impl FnOnce(&mut Engine<Fake>, &mut FakeHost<'_>, Time),
    ) {
        let mut host = FakeHost { id, asked: &mut self.asked };
        let engine = &mut self.engines[usize::from(id.0)];
        act(engine, &mut host, self.now);
        engine.flush(&mut host, self.now);
    }

    /// A client that has just logged in is on its way to its loop. Its key is its place, four
    /// times.
    pub(crate) fn connect(
        &mut self,
        home: LoopId,
        mode: PoolMode,
        start: &[(&str, &str)],
    ) -> usize {
        let pipe = Pipe::new();
        let number = self.clients.len();
        self.clients.push(pipe.clone());
        let start = start
            .iter()
            .map(|(name, value)| (name.to_ascii_lowercase(), (*value).to_owned()))
            .collect::<Vec<_>>();
        let client = NewClient {
            socket: Fake(pipe),
            pool: self.pool.clone(),
            mode,
            start: start
                .iter()
                .map(|(name, value)| (name.as_bytes(), value.as_bytes()))
                .collect::<SettingsBuilder>()
                .build(),
            greeting: Vec::new(),
            secret: ClientSecret::Short([number as u8; 4]),
            about: Box::new(ClientAbout::new(address_of(number), None, "", self.now)),
            permit: (),
            early: Vec::new(),
            exclusive: false,
        };
        self.asked.messages.push((None, home, ToLoop::Adopt(Box::new(client))));
        number
    }

    /// A message from outside is on its way to a loop.
    pub(crate) fn post(&mut self, to: LoopId, message: ToLoop<Fake>) {
        self.asked.messages.push((None, to, message));
    }

    /// What is left to bring, but for readiness.
    pub(crate) fn undone(&self) -> Undone {
        Undone {
            messages: self.asked.messages.len(),
            openings: self.asked.openings.len(),
            cancels: self.asked.cancels.len(),
        }
    }

    /// Brings one message, the `choice`-th or the one of its sender that must come before it.
    /// Gives the clients that it may disconnect for no fault of theirs.
    pub(crate) fn deliver(&mut self, choice: usize) -> Vec<usize> {
        let messages = &self.asked.messages;
        if messages.is_empty() {
            return Vec::new();
        }
        let (from, to, _) = messages[choice % messages.len()];
        let first = messages
            .iter()
            .position(|(other, at, _)| (*other, *at) == (from, to))
            .expect("the chosen one at least");
        let (_, to, message) = self.asked.messages.remove(first);
        let refused = match &message {
            ToLoop::OpenFailed { fatal: true, .. } | ToLoop::Refuse { .. } => self.waiting(to),
            _ => Vec::new(),
        };
        self.with_engine(to, |engine, host, now| engine.on_message(host, message, now));
        refused
    }

    /// Opens a backend that was asked for. `Ok`: its place.
    pub(crate) fn open(&mut self, choice: usize) -> Option<usize> {
        let (pool, home) = self.take_opening(choice)?;
        let pipe = Pipe::new();
        let number = self.servers.len();
        self.servers.push(pipe.clone());
        let seed = BackendSeed {
            id: BackendId(number as u64),
            socket: Fake(pipe),
            pool: pool.clone(),
            parameters: self.parameters.clone(),
            hand_over: None,
            report: None,
            process: process(number),
            key: Box::new([number as u8; 4]),
            server: ServerAddressId(0),
            epoch: pool.epoch(),
            opened: self.now,
            permit: Box::new(()),
        };
        self.post(home, ToLoop::Opened(Box::new(seed)));
        Some(number)
    }

    /// A backend that was asked for cannot be opened.
    pub(crate) fn fail_to_open(&mut self, choice: usize, fatal: bool) {
        use hawser_pooler::wire::error::{ClientError, SqlState};
        let Some((pool, home)) = self.take_opening(choice) else { return };
        let error = ClientError::fatal(SqlState::CONNECTION_FAILURE, "no server");
        let retry_after = std::time::Duration::from_millis(100);
        self.post(home, ToLoop::OpenFailed { pool, error, fatal, retry_after });
    }

    fn take_opening(&mut self, choice: usize) -> Option<(PoolRef<Fake>, LoopId)> {
        let count = self.asked.openings.len();
        (count > 0).then(|| self.asked.openings.remove(choice % count))
    }

    /// A cancel request reaches its server: gives the server's place. The request's end is on its
    /// way from then on.
    pub(crate) fn send_cancel(&mut self, choice: usize) -> Option<usize> {
        let count = self.asked.cancels.len();
        if count == 0 {
            return None;
        }
        let request = self.asked.cancels.remove(choice % count);
        self.post(request.reply_to, ToLoop::CancelDone(request.backend));
        let number = (request.process - process(0)) as usize;
        assert_eq!(*request.key, [number as u8; 4], "a cancel request with another's key");
        Some(number)
    }

    /// Tells a loop what has happened on a connection, if anything has.
    pub(crate) fn raise(&mut self, pipe: &Pipe) -> bool {
        let (home, token, ready) = {
            let mut state = pipe.state();
            let Some((home, token)) = state.watch.filter(|_| state.edge && !state.dropped) else {
                return false;
            };
            state.edge = false;
            let ready = Readiness {
                readable: !state.to_engine.is_empty() || state.closed,
                writable: state.room > 0,
                hangup: state.closed,
                broken: false,
            };
            (home, token, ready)
        };
        self.with_engine(home, |engine, host, now| engine.on_event(host, token, ready, now));
        true
    }

    /// Wakes a loop for a connection on which nothing has happened.
    pub(crate) fn raise_for_nothing(&mut self, pipe: &Pipe) {
        pipe.state().edge = true;
        self.raise(pipe);
    }

    /// Time passes.
    pub(crate) fn wait_ms(&mut self, ms: u64) {
        self.now = Time::from_micros(self.now.as_micros() + ms * 1000);
        for id in 0..self.engines.len() as u16 {
            self.with_engine(LoopId(id), |engine, host, now| engine.tick(host, now));
        }
    }

    /// Lets the loops go on that must not sleep. Whether there were any.
    pub(crate) fn go_on(&mut self) -> bool {
        let mut any = false;
        for id in 0..self.engines.len() as u16 {
            if self.engines[usize::from(id)].next_tick().is_zero() {
                any = true;
                self.with_engine(LoopId(id), |engine, host, now| engine.tick(host, now));
            }
        }
        any
    }

    /// What one loop holds.
    fn connections(&mut self, id: LoopId) -> Page {
        let mut all = Page::default();
        for listed in [Listed::Clients, Listed::Backends] {
            let mut from = Some(0);
            while let Some(next) = from {
                let (reply, page) = mpsc::channel();
                let request = PageRequest { listed, addresses: false, from: next };
                let message = ToLoop::Page(
                    request,
                    Box::new(move |page| {
                        // The world waits for it below.
                        let _ = reply.send(page);
                    }),
                );
                self.with_engine(id, |engine, host, now| engine.on_message(host, message, now));
                let page = page.try_recv().expect("an engine answers at once");
                all.clients.extend(page.clients);
                all.backends.extend(page.backends);
                from = page.next;
            }
        }
        all
    }

    fn of_all_loops(&mut self) -> Vec<Page> {
        (0..self.engines.len() as u16).map(|id| self.connections(LoopId(id))).collect()
    }

    /// Clients of this loop that wait.
    fn waiting(&mut self, id: LoopId) -> Vec<usize> {
        let rows = self.connections(id).clients;
        rows.iter().filter(|c| c.state == ClientState::Waiting).map(|c| number(&c.about)).collect()
    }

    /// Where a client is, and its state.
    pub(crate) fn find_client(&mut self, client: usize) -> Option<(ClientId, ClientState)> {
        let rows = self.of_all_loops().into_iter().flat_map(|page| page.clients);
        rows.into_iter().find(|row| number(&row.about) == client).map(|row| (row.id, row.state))
    }

    /// Which client has which server, or is about to get it.
    pub(crate) fn attached(&mut self) -> Vec<(usize, usize)> {
        let mut pairs = Vec::new();
        let mut places = BTreeMap::new();
        for row in self.of_all_loops().into_iter().flat_map(|page| page.clients) {
            places.insert(row.id, number(&row.about));
            if let Some(backend) = row.backend {
                pairs.push((number(&row.about), backend.0 as usize));
            }
        }
        for (_, _, message) in &self.asked.messages {
            if let ToLoop::Lend { client, backend } = message
                && let Some(client) = places.get(client)
            {
                pairs.push((*client, backend.id().0 as usize));
            }
        }
        pairs
    }

    /// Idle backends by their places.
    pub(crate) fn idle(&self) -> Vec<usize> {
        let pool = self.pool.lock();
        pool.idle_backends().map(|(_, backend)| place(backend)).collect()
    }

    /// Clients that all engines have.
    pub(crate) fn client_count(&self) -> usize {
        self.engines.iter().map(Engine::client_count).sum()
    }

    /// Checks the books.
    pub(crate) fn check(&mut self) -> Result<(), String> {
        let pages = self.of_all_loops();
        let (mut lent, mut opening, mut fresh) = (0, self.asked.openings.len(), 0);
        let mut in_transit = 0;
        for (_, _, message) in &self.asked.messages {
            match message {
                ToLoop::Lend { .. } => in_transit += 1,
                ToLoop::Opened(_) => {
                    opening += 1;
                    fresh += 1;
                }
                ToLoop::OpenFailed { .. } => opening += 1,
                _ => {}
            }
        }
        let mut holders = BTreeMap::new();
        let mut waiting = 0;
        for page in &pages {
            for row in &page.backends {
                lent += 1;
                if let Some(before) = holders.insert(row.id, row.client) {
                    return Err(format!("{} is with {before:?} and {:?}", row.id, row.client));
                }
                if (row.state == BackendState::Active) != row.client.is_some() {
                    return Err(format!("{} is {:?} with {:?}", row.id, row.state, row.client));
                }
            }
            for row in &page.clients {
                waiting += u32::from(row.state == ClientState::Waiting);
                if (row.state == ClientState::Active) != row.backend.is_some() {
                    return Err(format!("{} is {:?} with {:?}", row.id, row.state, row.backend));
                }
            }
        }
        let live = self.servers.iter().filter(|server| !server.is_dropped()).count();
        let pool = self.pool.lock();
        let books = [pool.idle_count(), pool.lent_count(), pool.opening_count()];
        let seen = [live - fresh - lent - in_transit, lent + in_transit, opening];
        if books.map(|count| count as usize) != seen {
            return Err(format!("idle, lent, opening: the pool says {books:?}, seen are {seen:?}"));
        }
        if pool.parked_count() > pool.lent_count() {
            return Err(format!("{} of {} parked", pool.parked_count(), pool.lent_count()));
        }
        if pool.waiting_count() > 0 && pool.idle_count() > 0 {
            return Err("a client waits while a backend is idle".to_owned());
        }
        if pool.waiting_count() > waiting {
            return Err(format!("{} wait, {} are queued", waiting, pool.waiting_count()));
        }
        if waiting > pool.waiting_count() + in_transit as u32 {
            return Err(format!(
                "{waiting} wait, but {} are queued and {in_transit} backends are on their way",
                pool.waiting_count()
            ));
        }
        Ok(())
    }
}

fn process(server: usize) -> u32 {
    100 + server as u32
}

/// An address that says which client it is.
fn address_of(number: usize) -> PeerAddress {
    let ip = u32::try_from(number).expect("the world has few clients").into();
    PeerAddress::V4(SocketAddrV4::new(ip, 0))
}

fn number(about: &ClientAbout) -> usize {
    let PeerAddress::V4(address) = &about.peer else { unreachable!("`address_of` made it") };
    address.ip().to_bits() as usize
}

fn place(backend: &Backend<Fake>) -> usize {
    backend.id().0 as usize
}
