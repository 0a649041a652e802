//! A world of one or two engines, with clients and servers that a test plays by hand.

use std::collections::VecDeque;
use std::io;
use std::sync::{Arc, Mutex};

use crate::ids::{BackendId, ClientId, LoopId, PoolId, ServerAddressId};
use crate::lending::{PoolSettings, SharedPool};
use crate::parts::identity::hand_over::HandOverKey;
use crate::parts::identity::process_ids::OwnProcessIds;
use crate::parts::report::text::Report;
use crate::parts::sequences::asking::TextClass;
use crate::parts::start_values::parameters::ServerParameters;
use crate::relay::backend::{Backend, PoolRef};
use crate::relay::client_info::{ClientAbout, ClientSecret, ClientState, PeerAddress, PoolMode};
use crate::relay::message::{Event, NewClient, ToLoop};
use crate::relay::succession::MovedClient;
use crate::relay::table::Holder;
use crate::relay::{BackendSeed, CancelRequest, Engine, Host, Readiness, Socket, Token};
use crate::session::settings::{Settings, SettingsBuilder};
use crate::time::Time;
use crate::wire::build;
use crate::wire::error::{ClientError, SqlState};

/// One connection: bytes sent each way and not read.
#[derive(Default)]
struct Pipe {
    to_engine: VecDeque<u8>,
    from_engine: Vec<u8>,
    /// The other side has closed.
    closed: bool,
    /// Writes fail; then these bytes can be read, and the end.
    last_words: Option<Vec<u8>>,
    /// The engine has closed.
    dropped: bool,
    /// Bytes that the other side still takes.
    room: usize,
    /// Writes of the engine's.
    writes: usize,
    /// Written bytes are taken and held, as by TLS whose socket is full.
    holds: Option<Vec<u8>>,
    /// Watched by this loop under this token.
    watch: Option<(LoopId, Token)>,
}

/// The engine's end of a connection.
pub(crate) struct Fake(Arc<Mutex<Pipe>>);

impl std::fmt::Debug for Fake {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Fake")
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.0.lock().unwrap().dropped = true;
    }
}

impl Socket for Fake {
    type Permit = ();

    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut pipe = self.0.lock().unwrap();
        if pipe.to_engine.is_empty() {
            return if pipe.closed { Ok(0) } else { Err(io::ErrorKind::WouldBlock.into()) };
        }
        let count = pipe.to_engine.len().min(buf.len());
        for (to, from) in buf.iter_mut().zip(pipe.to_engine.drain(..count)) {
            *to = from;
        }
        Ok(count)
    }

    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        let mut pipe = self.0.lock().unwrap();
        pipe.writes += 1;
        if let Some(words) = &mut pipe.last_words {
            let words = std::mem::take(words);
            pipe.to_engine.extend(words);
            pipe.closed = true;
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if let Some(held) = &mut pipe.holds {
            held.extend_from_slice(buf);
            return Ok(buf.len());
        }
        let count = buf.len().min(pipe.room);
        if count == 0 {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        pipe.room -= count;
        pipe.from_engine.extend_from_slice(&buf[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.has_unsent() { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(()) }
    }

    fn has_unsent(&self) -> bool {
        self.0.lock().unwrap().holds.as_ref().is_some_and(|held| !held.is_empty())
    }
}

/// The requests of the engines.
#[derive(Default)]
pub(super) struct Asked {
    messages: VecDeque<(LoopId, ToLoop<Fake>)>,
    openings: VecDeque<(PoolRef<Fake>, LoopId, bool)>,
    /// Connections can be opened that listen.
    pub(super) opens_listeners: bool,
    pub(super) cancels: Vec<CancelRequest>,
    /// A server whose received bytes are counted when each cancel request is sent.
    pub(super) cancelled: Option<Peer>,
    pub(super) received_at_cancel: Vec<usize>,
    /// Databases that were to be emptied, and for which clients.
    pub(super) vacancies: Vec<(ClientId, Vec<u8>)>,
    /// The test answers them.
    keeps_vacancies: bool,
    pub(super) start_values_changed: u32,
    pub(super) unreadable_reports: u32,
    pub(super) mismatches: u32,
    pub(super) closed: Vec<String>,
    pub(super) told: Vec<SqlState>,
    /// Clients that have left for a successor.
    pub(super) given: Vec<MovedClient<Fake>>,
    /// Each error for a client panics.
    pub(super) panics_on_error: bool,
    /// Wait and duration of slow transactions.
    pub(super) slow: Vec<(u64, u64)>,
}

/// The host of one engine.
pub(crate) struct FakeHost<'a> {
    id: LoopId,
    asked: &'a mut Asked,
}

impl Host<Fake> for FakeHost<'_> {
    fn watch(&mut self, socket: &Fake, token: Token) -> io::Result<()> {
        socket.0.lock().unwrap().watch = Some((self.id, token));
        Ok(())
    }
    fn unwatch(&mut self, socket: &Fake, home: LoopId) {
        let mut pipe = socket.0.lock().unwrap();
        assert_eq!(pipe.watch.map(|(at, _)| at), Some(home), "unwatched where it is not watched");
        pipe.watch = None;
    }
    fn send(&mut self, to: LoopId, message: ToLoop<Fake>) {
        self.asked.messages.push_back((to, message));
    }
    fn open(&mut self, pool: &PoolRef<Fake>, home: LoopId) {
        self.asked.openings.push_back((pool.clone(), home, false));
    }
    fn open_listener(&mut self, pool: &PoolRef<Fake>, home: LoopId) {
        if self.asked.opens_listeners {
            self.asked.openings.push_back((pool.clone(), home, true));
            return;
        }
        let error =
            ClientError::error(SqlState::FEATURE_NOT_SUPPORTED, "LISTEN is not supported here");
        self.send(home, ToLoop::ListenerFailed { pool: pool.clone(), error });
    }
    fn vacate(&mut self, _: &PoolRef<Fake>, database: &[u8], client: ClientId) {
        if self.asked.keeps_vacancies {
            self.asked.vacancies.push((client, database.to_vec()));
        } else {
            self.send(client.home, ToLoop::Vacated { client, kept: Arc::new(()) });
        }
    }

    fn cancel(&mut self, request: CancelRequest) {
        if let Some(Peer(pipe)) = &self.asked.cancelled {
            self.asked.received_at_cancel.push(pipe.lock().unwrap().from_engine.len());
        }
        self.asked.cancels.push(request);
    }
    fn give(&mut self, _: LoopId, client: MovedClient<Fake>) {
        self.asked.given.push(client);
    }
    fn event(&mut self, event: Event<'_>) {
        match event {
            Event::CatalogChanged { start_values, .. } => {
                self.asked.start_values_changed += u32::from(start_values);
            }
            Event::BackendClosed { reason, .. } => self.asked.closed.push(reason.to_owned()),
            Event::ErrorSent { error } => {
                assert!(!self.asked.panics_on_error, "told");
                self.asked.told.push(error.code);
            }
            Event::SettingsMismatch { .. } => self.asked.mismatches += 1,
            Event::ReportUnreadable { .. } => self.asked.unreadable_reports += 1,
            Event::SlowTransaction { wait_us, duration_us, .. } => {
                self.asked.slow.push((wait_us, duration_us));
            }
            Event::ClientEntered { .. }
            | Event::ClientClosed { .. }
            | Event::RuleMatched { .. } => {}
        }
    }
}

/// The test's end of a connection.
#[derive(Clone)]
pub(crate) struct Peer(Arc<Mutex<Pipe>>);

impl Peer {
    pub(crate) fn new() -> (Self, Fake) {
        let pipe = Arc::new(Mutex::new(Pipe { room: usize::MAX, ..Pipe::default() }));
        (Self(pipe.clone()), Fake(pipe))
    }

    /// The bytes that the engine has sent since the last call.
    pub(crate) fn received(&self) -> Vec<u8> {
        std::mem::take(&mut self.0.lock().unwrap().from_engine)
    }

    /// The kinds of the messages that the engine has sent since the last call.
    pub(super) fn kinds(&self) -> String {
        kinds(&self.received())
    }

    /// Whether the engine has closed the connection.
    pub(super) fn is_dropped(&self) -> bool {
        self.0.lock().unwrap().dropped
    }

    /// How often the engine has written.
    pub(super) fn writes(&self) -> usize {
        self.0.lock().unwrap().writes
    }

    /// How many bytes the engine has not read.
    pub(super) fn unread(&self) -> usize {
        self.0.lock().unwrap().to_engine.len()
    }

    /// The engine's TLS holds what is sent to it from now on.
    pub(super) fn hold(&self) {
        self.0.lock().unwrap().holds = Some(Vec::new());
    }

    /// TLS sends what it has held.
    pub(super) fn let_go(&self) {
        let mut pipe = self.0.lock().unwrap();
        let held = pipe.holds.take().unwrap_or_default();
        pipe.from_engine.extend_from_slice(&held);
    }

    /// Takes only this many bytes from now on.
    pub(super) fn take_only(&self, room: usize) {
        self.0.lock().unwrap().room = room;
    }
}

/// The kinds of messages. A [`block`] of Hawser's counts as the Query that it ends with.
pub(super) fn kinds(mut bytes: &[u8]) -> String {
    let mut kinds = String::new();
    let begins = [BEGIN, BEGIN_TO_DISCARD].map(begin);
    loop {
        for begin in &begins {
            let block = bytes.strip_prefix(&begin[..]).filter(|rest| rest.first() == Some(&b'Q'));
            bytes = block.unwrap_or(bytes);
        }
        let crate::wire::frame::Framed::Header(header) = crate::wire::frame::header(bytes) else {
            break;
        };
        kinds.push(char::from(header.kind));
        bytes = &bytes[header.total().min(bytes.len())..];
    }
    assert!(bytes.is_empty(), "not whole messages: {bytes:?}");
    kinds
}

/// The texts of queries, `->` and what `of_call` says of the body of each call, [`BEGIN`] of each
/// [`block`] of Hawser's, kinds of everything else.
pub(super) fn texts(mut bytes: &[u8], of_call: impl Fn(&[u8]) -> String) -> Vec<String> {
    use crate::wire::frame::{Framed, HEADER_BYTES, header};
    let mut all = Vec::new();
    while let Framed::Header(header) = header(bytes) {
        if let Some(after) = bytes.strip_prefix(&begin(BEGIN)[..]) {
            all.push(BEGIN.into());
            bytes = after;
            continue;
        }
        let body = &bytes[HEADER_BYTES..header.total()];
        all.push(match header.kind {
            b'Q' => String::from_utf8_lossy(&body[..body.len() - 1]).into_owned(),
            b'F' => format!("-> {}", of_call(body)),
            kind => char::from(kind).to_string(),
        });
        bytes = &bytes[header.total()..];
    }
    all
}

/// The world.
pub(super) struct World {
    engines: Vec<Engine<Fake>>,
    pub(super) asked: Asked,
    pub(super) pool: PoolRef<Fake>,
    /// Server connections in the order in which they were opened.
    pub(super) servers: Vec<Peer>,
    pub(super) now: Time,
    /// The version that servers report.
    pub(super) server_version: &'static str,
    pub(super) in_hot_standby: &'static str,
    /// Further settings that servers opened from now on report.
    pub(super) own: Vec<(&'static str, &'static str)>,
    opens_nothing: bool,
    /// The server's address.
    pub(super) server_address: ServerAddressId,
    /// What they report of their sessions, if they report.
    pub(super) report: Option<&'static str>,
    /// They can be handed over to clients.
    pub(super) hands_over: bool,
}

/// The key that hands servers over to clients.
pub(super) fn key() -> HandOverKey {
    HandOverKey { key: [7; 16], function: 4242, pooler: 9, sent: 1, takes_transport: true }
}

impl World {
    /// One loop, and a pool that users share.
    pub(super) fn shared(size: u32) -> Self {
        let mut world = Self::new(size);
        let settings = (*world.pool.settings()).clone();
        let pool = SharedPool::new(PoolId(1), "db", "me", settings, 1, 7);
        world.pool = Arc::new(pool.shared_by_users());
        world.own = vec![("session_authorization", "me"), ("is_superuser", "off")];
        world.hands_over = true;
        world
    }

    /// A client of this user that has come to loop 0, and has not been greeted.
    pub(super) fn client_as(
        &mut self,
        user: Option<&str>,
        mode: PoolMode,
        start: &[(&str, &str)],
    ) -> Peer {
        let (peer, socket) = Peer::new();
        let client = self.new_client(socket, mode, start, user);
        self.asked.messages.push_back((LoopId(0), ToLoop::Adopt(Box::new(client))));
        self.settle();
        peer
    }

    fn new_client(
        &self,
        socket: Fake,
        mode: PoolMode,
        start: &[(&str, &str)],
        user: Option<&str>,
    ) -> NewClient<Fake> {
        let start: Settings = start
            .iter()
            .map(|(name, value)| (name.as_bytes(), value.as_bytes()))
            .collect::<SettingsBuilder>()
            .build();
        NewClient {
            socket,
            pool: self.pool.clone(),
            mode,
            start,
            greeting: Vec::new(),
            secret: ClientSecret::Short([9; 4]),
            about: Box::new(ClientAbout::new(PeerAddress::Unix, user, "", self.now)),
            permit: (),
            early: Vec::new(),
            exclusive: false,
        }
    }

    /// One loop, a pool of this size.
    pub(super) fn new(size: u32) -> Self {
        Self::with_loops(1, size)
    }

    pub(super) fn with_loops(loops: u16, size: u32) -> Self {
        let mut settings = PoolSettings::default();
        settings.limits.size = size;
        settings.limits.idle_transaction_reserve = 0;
        let pool = SharedPool::new(PoolId(1), "db", "me", settings, usize::from(loops), 7);
        // No client keeps its server connection after an INSERT: see `in_which_none_has_drawn`.
        while pool.asking().tries() {
            pool.asking().note_waste(TextClass::default());
        }
        Self {
            engines: (0..loops)
                .map(|id| Engine::new(LoopId(id), loops, 7, OwnProcessIds::all(0)))
                .collect(),
            asked: Asked::default(),
            pool: Arc::new(pool),
            servers: Vec::new(),
            now: Time::from_micros(1_000_000),
            server_version: "",
            in_hot_standby: "",
            own: Vec::new(),
            opens_nothing: false,
            server_address: ServerAddressId(0),
            report: None,
            hands_over: false,
        }
    }

    /// The same with a database in which no client has drawn from a sequence yet: those that do keep their
    /// server connection to ask.
    pub(super) fn in_which_none_has_drawn(mut self) -> Self {
        let settings = (*self.pool.settings()).clone();
        self.pool =
            Arc::new(SharedPool::new(PoolId(1), "db", "me", settings, self.engines.len(), 7));
        self
    }

    /// The same without the plain lane.
    pub(super) fn without_plain_lane(mut self) -> Self {
        self.engines = self.engines.into_iter().map(Engine::without_plain_lane).collect();
        self
    }

    /// How often the plain lane was taken.
    pub(super) fn plain_pipelines(&self) -> u64 {
        self.engines.iter().map(Engine::plain_pipelines).sum()
    }

    /// Whether databases are emptied at once, or when the test does so.
    pub(super) fn empties_databases(&mut self, at_once: bool) {
        self.asked.keeps_vacancies = !at_once;
    }

    /// From now on opening a connection takes forever, or not any more.
    pub(super) fn opens_nothing(&mut self, nothing: bool) {
        self.opens_nothing = nothing;
    }

    /// The server refuses the next requested connection, and would refuse others.
    pub(super) fn refuse_opening(&mut self) {
        let (pool, home, _) = self.asked.openings.pop_front().expect("none is asked for");
        let error = ClientError::fatal(SqlState::INVALID_PASSWORD, "it takes no sessions");
        let retry_after = std::time::Duration::from_secs(1);
        self.deliver(home, ToLoop::OpenFailed { pool, error, fatal: true, retry_after });
    }

    /// Only before anything is prepared.
    pub(super) fn limit_statement_memory(&mut self, bytes: usize) {
        self.pool.statements.memory().set_max(bytes);
    }

    pub(super) fn change_settings(&mut self, change: impl FnOnce(&mut PoolSettings)) {
        let mut settings = (*self.pool.settings()).clone();
        change(&mut settings);
        self.pool.lock().set_limits(settings.limits.clone(), self.now);
        self.pool.set_settings(settings);
        self.tick();
    }

    pub(super) fn with_engine(
        &mut self,
        id: LoopId,
        act: impl FnOnce(&mut Engine<Fake>, &mut FakeHost<'_>, Time),
    ) {
        let mut host = FakeHost { id, asked: &mut self.asked };
        let engine = &mut self.engines[usize::from(id.0)];
        act(engine, &mut host, self.now);
        engine.flush(&mut host, self.now);
    }

    /// Delivers messages and opens requested connections, until there is nothing left to do.
    pub(super) fn settle(&mut self) {
        loop {
            if let Some((to, message)) = self.asked.messages.pop_front() {
                self.with_engine(to, |engine, host, now| engine.on_message(host, message, now));
            } else if !self.opens_nothing
                && let Some((pool, home, listens)) = self.asked.openings.pop_front()
            {
                let (peer, socket) = Peer::new();
                self.servers.push(peer);
                let number = self.servers.len() as u32;
                let mut parameters = ServerParameters::default();
                for (name, value) in
                    [("TimeZone", "UTC"), ("application_name", ""), ("DateStyle", "ISO, MDY")]
                {
                    parameters.set(name.as_bytes(), value.as_bytes());
                }
                for (name, value) in [
                    (&b"server_version"[..], self.server_version),
                    (b"in_hot_standby", self.in_hot_standby),
                ] {
                    if !value.is_empty() {
                        parameters.set(name, value.as_bytes());
                    }
                }
                for (name, value) in &self.own {
                    parameters.set(name.as_bytes(), value.as_bytes());
                }
                let seed = BackendSeed {
                    id: BackendId(u64::from(number)),
                    socket,
                    pool: pool.clone(),
                    parameters: Arc::new(parameters),
                    hand_over: self.hands_over.then(key),
                    report: self.report.map(|text| Report::read(text.as_bytes()).unwrap()),
                    process: 100 + number,
                    key: vec![number as u8; 4].into(),
                    server: self.server_address,
                    epoch: pool.epoch(),
                    opened: self.now,
                    permit: Box::new(()),
                };
                let seed = Box::new(seed);
                let message =
                    if listens { ToLoop::ListenerOpened(seed) } else { ToLoop::Opened(seed) };
                self.asked.messages.push_back((home, message));
            } else if let Some(id) = self.unread_loop() {
                self.with_engine(id, |engine, host, now| engine.tick(host, now));
            } else {
                self.check_books();
                return;
            }
        }
    }

    /// A loop that must not sleep.
    fn unread_loop(&self) -> Option<LoopId> {
        (0..)
            .map(LoopId)
            .zip(&self.engines)
            .find(|(_, e)| e.next_tick().is_zero())
            .map(|(id, _)| id)
    }

    /// With no message in flight, the pool's figures match the loops' own tables, and no client
    /// waits while a backend is idle.
    fn check_books(&self) {
        let (mut lent, mut parked, mut waiting) = (0, 0, 0);
        for engine in &self.engines {
            assert_eq!(engine.forgets_a_message(), None, "idle, and its next message is there");
            for (slot, client) in engine.clients.iter() {
                waiting += u32::from(client.serving.state == ClientState::Waiting);
                assert_eq!(client.backend.is_some(), client.serving.state == ClientState::Active);
                let Some(backend) = &client.backend else { continue };
                lent += 1;
                parked += u32::from(backend.lending.parked);
                let resident =
                    engine.resident.get(backend.place()).expect("a lent one is resident");
                assert!(matches!(resident.holder, Holder::Client(holder) if holder == slot));
                backend.requests.check();
            }
            for (_, resident) in engine.resident.iter() {
                if let Holder::Engine(backend) = &resident.holder {
                    lent += 1;
                    parked += u32::from(backend.lending.parked);
                }
            }
        }
        let pool = self.pool.lock();
        assert_eq!(pool.lent_count(), lent, "lent");
        assert_eq!(pool.parked_count(), parked, "parked");
        assert_eq!(pool.waiting_count(), waiting, "waiting");
        assert_eq!(pool.opening_count() as usize, self.asked.openings.len(), "opening");
        assert!(
            pool.is_paused() || waiting == 0 || pool.idle_count() == 0,
            "waits for an idle one"
        );
    }

    /// A pool like the world's own.
    pub(super) fn another_pool(&self, id: u32) -> PoolRef<Fake> {
        let settings = (*self.pool.settings()).clone();
        Arc::new(SharedPool::new(PoolId(id), "db", "another", settings, self.engines.len(), 7))
    }

    /// How many pools loop 0 knows.
    pub(super) fn views(&self) -> usize {
        self.engines[0].pools.len()
    }

    /// A client of loop 0 in transaction mode that has prepared a statement, and its server.
    pub(super) fn client_with(&mut self, name: &str, text: &str) -> (Peer, Peer) {
        let client = self.client();
        self.send(&client, &[parse(name, text), sync()].concat());
        let server = self.servers[0].clone();
        self.send(&server, &answers("1I"));
        assert_eq!(client.kinds(), "1Z");
        server.received();
        (client, server)
    }

    /// A client of loop 0 in transaction mode.
    pub(super) fn client(&mut self) -> Peer {
        self.client_of(LoopId(0), PoolMode::Transaction, &[])
    }

    pub(super) fn client_of(
        &mut self,
        home: LoopId,
        mode: PoolMode,
        start: &[(&str, &str)],
    ) -> Peer {
        let (peer, socket) = Peer::new();
        let client = self.new_client(socket, mode, start, None);
        self.asked.messages.push_back((home, ToLoop::Adopt(Box::new(client))));
        self.settle();
        if mode != PoolMode::Session {
            assert_eq!(peer.kinds(), "KZ");
        }
        peer
    }

    /// Gives a loop one event of a connection, and nothing else.
    pub(super) fn only_raise(&mut self, peer: &Peer) {
        let watch = peer.0.lock().unwrap().watch;
        let Some((home, token)) = watch else { return };
        let ready = Readiness { readable: true, ..Readiness::default() };
        self.with_engine(home, |engine, host, now| engine.on_event(host, token, ready, now));
    }

    /// A peer sends bytes, before the engine reads them.
    pub(super) fn put(&self, peer: &Peer, bytes: &[u8]) {
        peer.0.lock().unwrap().to_engine.extend(bytes);
    }

    /// How long loop 0 may sleep.
    pub(super) fn next_tick(&self) -> std::time::Duration {
        self.engines[0].next_tick()
    }

    fn raise(&mut self, peer: &Peer, ready: Readiness) {
        let watch = peer.0.lock().unwrap().watch;
        if let Some((home, token)) = watch {
            self.with_engine(home, |engine, host, now| engine.on_event(host, token, ready, now));
        }
        self.settle();
    }

    /// A peer sends bytes.
    pub(super) fn send(&mut self, peer: &Peer, bytes: &[u8]) {
        peer.0.lock().unwrap().to_engine.extend(bytes);
        self.raise(peer, Readiness { readable: true, ..Readiness::default() });
    }

    /// A client's loop, and its place there.
    fn place_of(peer: &Peer) -> (usize, crate::ids::Slot) {
        match peer.0.lock().unwrap().watch {
            Some((home, Token::Client(slot))) => (home.0.into(), slot),
            _ => panic!("not a client that is watched"),
        }
    }

    /// A client's place in its loop.
    pub(super) fn slot_of(&self, peer: &Peer) -> crate::ids::Slot {
        Self::place_of(peer).1
    }

    /// Works on the backend of a client in a way that no message of the client does.
    pub(super) fn with_backend_of(&mut self, peer: &Peer, work: impl FnOnce(&mut Backend<Fake>)) {
        let (home, slot) = Self::place_of(peer);
        let client = self.engines[home].clients.get_mut(slot).unwrap();
        work(client.backend.as_mut().unwrap());
    }

    /// The names that a client of loop 0 has given.
    pub(super) fn names_of(&self, slot: crate::ids::Slot) -> Vec<Vec<u8>> {
        let names = self.engines[0]
            .clients
            .get(slot)
            .and_then(|client| client.prepared.statements.as_deref());
        let names = names.into_iter().flat_map(|names| names.names().pairs());
        names.map(|(name, _)| name.to_vec()).collect()
    }

    /// Bytes that wait in loop 0 for this client.
    pub(super) fn kept_for(&self, peer: &Peer) -> usize {
        match peer.0.lock().unwrap().watch {
            Some((_, Token::Client(slot))) => {
                self.engines[0].clients.get(slot).map_or(0, |client| client.output.len())
            }
            _ => 0,
        }
    }

    /// A peer takes everything again.
    pub(super) fn take_all(&mut self, peer: &Peer) {
        peer.take_only(usize::MAX);
        self.takes(peer);
    }

    /// A peer takes bytes again.
    pub(super) fn takes(&mut self, peer: &Peer) {
        self.raise(peer, Readiness { writable: true, ..Readiness::default() });
    }

    /// A peer closes its connection.
    pub(super) fn close(&mut self, peer: &Peer) {
        peer.0.lock().unwrap().closed = true;
        self.raise(peer, Readiness { readable: true, hangup: true, ..Readiness::default() });
    }

    /// A peer's connection is reset.
    pub(super) fn breaks(&mut self, peer: &Peer) {
        peer.0.lock().unwrap().closed = true;
        let ready = Readiness { readable: true, writable: true, hangup: true, broken: true };
        self.raise(peer, ready);
    }

    /// A peer sends bytes and closes its connection before the engine reads them.
    pub(super) fn say_and_close(&mut self, peer: &Peer, bytes: &[u8]) {
        peer.0.lock().unwrap().to_engine.extend(bytes);
        self.close(peer);
    }

    /// A peer has sent bytes and closed its connection, which is noticed at a write.
    pub(super) fn is_gone_after(&self, peer: &Peer, bytes: &[u8]) {
        peer.0.lock().unwrap().last_words = Some(bytes.to_vec());
    }

    /// A message comes to a loop.
    pub(super) fn deliver(&mut self, to: LoopId, message: ToLoop<Fake>) {
        self.asked.messages.push_back((to, message));
        self.settle();
    }

    /// Time passes.
    pub(super) fn wait_ms(&mut self, ms: u64) {
        self.now = Time::from_micros(self.now.as_micros() + ms * 1000);
        self.tick();
    }

    /// Time passes for loop 0, whose host writes no answers. Returns how long it may sleep then.
    pub(super) fn only_tick(&mut self, ms: u64) -> std::time::Duration {
        self.now = Time::from_micros(self.now.as_micros() + ms * 1000);
        let mut host = FakeHost { id: LoopId(0), asked: &mut self.asked };
        self.engines[0].tick(&mut host, self.now);
        self.next_tick()
    }

    fn tick(&mut self) {
        for id in 0..self.engines.len() as u16 {
            self.with_engine(LoopId(id), |engine, host, now| engine.tick(host, now));
        }
        self.settle();
    }

    pub(super) fn idle_backends(&self) -> u32 {
        self.pool.lock().idle_count()
    }
}

/// Messages of a client, and of a server.
pub(super) fn query(text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    build::query(&mut out, text.as_bytes());
    out
}

/// Commands of Hawser's without which no message of a client's must run.
pub(super) fn block(text: &str) -> Vec<u8> {
    [begin(BEGIN), query(&format!("{text};COMMIT"))].concat()
}

/// What it begins with.
pub(super) fn begin(text: &str) -> Vec<u8> {
    [parse("", text), bind(""), execute()].concat()
}

pub(super) const BEGIN: &str = "BEGIN";
pub(super) const BEGIN_TO_DISCARD: &str = "BEGIN ISOLATION LEVEL READ COMMITTED, NOT DEFERRABLE";

pub(super) fn parse(name: &str, text: &str) -> Vec<u8> {
    let mut out = Vec::new();
    build::parse(&mut out, name.as_bytes(), &[text.as_bytes(), &[0, 0, 0]].concat());
    out
}

pub(super) fn bind(statement: &str) -> Vec<u8> {
    let mut out = Vec::new();
    build::bind_plain(&mut out, b"", statement.as_bytes());
    out
}

pub(super) fn execute() -> Vec<u8> {
    let mut out = Vec::new();
    build::execute(&mut out, b"");
    out
}

pub(super) fn sync() -> Vec<u8> {
    build::SYNC.to_vec()
}

/// A message with this body.
pub(super) fn message(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    build::message(&mut out, kind, |out| out.extend_from_slice(body));
    out
}

/// Answers of a server: each letter a message, `I`, `T` and `F` being ReadyForQuery in that
/// status (F: failed), `C` `CommandComplete`, `E` an error, `U` that
/// a prepared statement already exists.
pub(super) fn answers(script: &str) -> Vec<u8> {
    let mut out = Vec::new();
    for letter in script.chars() {
        match letter {
            'I' => out.extend(message(b'Z', b"I")),
            'T' => out.extend(message(b'Z', b"T")),
            'F' => out.extend(message(b'Z', b"E")),
            'C' => out.extend(message(b'C', b"SELECT 1\0")),
            'E' => out.extend(message(b'E', b"SERROR\0VERROR\0C42601\0Mwrong\0\0")),
            'U' => out.extend(message(b'E', b"SERROR\0VERROR\0C42P05\0Mit is there\0\0")),
            'D' => out.extend(message(b'D', b"\0\0")),
            kind => out.extend(message(kind as u8, b"")),
        }
    }
    out
}

/// A server's ParameterStatus.
pub(super) fn parameter(name: &str, value: &str) -> Vec<u8> {
    let mut out = Vec::new();
    build::parameter_status(&mut out, name.as_bytes(), value.as_bytes());
    out
}

/// The row of an answer about one part.
pub(super) fn row(held: bool) -> Vec<u8> {
    let value = if held { b't' } else { b'f' };
    message(b'D', &[0, 1, 0, 0, 0, 1, value])
}

pub(super) fn columns() -> Vec<u8> {
    message(b'T', b"\0\0")
}

/// The server's answer to a question about one part.
pub(super) fn told(held: bool) -> Vec<u8> {
    [columns(), row(held), answers("CI")].concat()
}

/// The server's answer about statements of SQL's PREPARE: those of these names, without parameters.
pub(super) fn told_prepared(names: &[&str]) -> Vec<u8> {
    let all: Vec<_> = names
        .iter()
        .map(|name| format!("{{{name},\"PREPARE {name} AS SELECT 1\",\"\"}}"))
        .collect();
    if names.is_empty() {
        let row = message(b'D', &[&[0, 1], &[0xff; 4][..]].concat());
        return [columns(), row, answers("CI")].concat();
    }
    value(&format!("{{{}}}", all.join(",")))
}

/// The server's answer to a question about one setting.
pub(super) fn value(text: &str) -> Vec<u8> {
    let length = u32::try_from(text.len()).unwrap().to_be_bytes();
    let body = [&[0, 1][..], &length, text.as_bytes()].concat();
    [columns(), message(b'D', &body), answers("CI")].concat()
}

/// A client, and the only backend, on which another has drawn from a sequence.
pub(super) fn after_one_that_has_drawn(world: &mut World) -> (Peer, Peer) {
    let (one, two) = (world.client(), world.client());
    world.send(&one, &query("SELECT nextval('s')"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("DCI"));
    server.received();
    (two, server)
}

/// A Bind of one parameter, as text.
pub(super) fn bind_to(name: &str, value: &str) -> Vec<u8> {
    let length = u32::try_from(value.len()).unwrap().to_be_bytes();
    let parameters = [b"\0\0\0\x01", &length[..], value.as_bytes(), b"\0\0"].concat();
    message(b'B', &[b"\0", name.as_bytes(), b"\0", &parameters].concat())
}
