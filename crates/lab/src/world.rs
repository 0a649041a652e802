//! The real engines between simulated clients and simulated servers.
//!
//! # Model
//! Several [`Engine`]s, each a loop of its own, share pools of few backends. Everything around
//! them is simulated: connections that cut and delay bytes, messages between loops that take any
//! time and come in any order between pairs, servers that are opened late or not at all, cancel
//! requests on their way, logins. One unit of work of one loop is done at a time, on a loop drawn
//! at random among those that have something to do; a loop may lag.
//!
//! # Invariants
//! - each client receives what a server of its own would have sent, byte for byte
//! - those of [`invariants`], at each step
//! - every client comes to its end, and then nothing is left of any of them on any server
//!
//! # Why not     threads: a failure could not be repeated
//! # Limits      no replication, no TLS, no drain; pools are not changed while they are in use

mod host;
mod invariants;
mod lobby;
mod servers;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use hawser_pooler::ids::{LoopId, PoolId};
use hawser_pooler::lending::{PoolSettings, SharedPool};
use hawser_pooler::parts::identity::process_ids::OwnProcessIds;
use hawser_pooler::relay::backend::PoolRef;
use hawser_pooler::relay::{Engine, Readiness, ToLoop, Token};

pub use self::host::{Sabotage, Stream};
pub use self::lobby::Seat;
pub use self::servers::Faults;

use self::host::{CLIENTS, LOBBY, OUTSIDE, Outside, SimHost, delay, moment, owner};
use self::invariants::{Census, Queue};
use self::lobby::Lobby;
use self::servers::Servers;
use crate::model::client::{ClientConfig, ModelClient};
use crate::model::{ModelServer, ServerConfig, frontend};
use crate::net::mailbox::Mailbox;
use crate::net::{self, Net, NetConfig};
use crate::rng::Rng;

/// Virtual time after the last client's end in which everything must have come to rest: also what
/// listens for clients, which is closed half a minute after the last of them, and found so with the
/// next tick. (An end of the run at that very moment would see it half closed.)
const AFTERMATH: Duration = Duration::from_secs(40);

/// Units of work without a pause of the clock from which something is held to spin.
const UNITS_AT_ONCE_MAX: u64 = 1_000_000;

/// What a world is like.
#[derive(Debug, Clone)]
pub struct WorldConfig {
    /// All chance follows from it.
    pub seed: u64,
    /// Event loops.
    pub loops: u16,
    /// Settings of each pool.
    pub pools: Vec<PoolSettings>,
    /// How bytes travel.
    pub network: NetConfig,
    /// Longest way of a message between loops.
    pub message_max: Duration,
    /// After how many of a hundred units of work a loop lags, and how long at most.
    pub lags_percent: u64,
    /// See `lags_percent`.
    pub lag_max: Duration,
    /// Longest login of a client.
    pub login_max: Duration,
    /// Longest opening of a backend.
    pub opening_max: Duration,
    /// Longest way of a cancel request, and of the news that it is done.
    pub cancel_max: Duration,
    /// What goes wrong with servers.
    pub faults: Faults,
    /// Servers have the extension, and are asked what sessions hold.
    pub reports: bool,
    /// Users share the pools' backends.
    pub shared: bool,
    /// What is done wrongly on purpose.
    pub sabotage: Sabotage,
    /// The engines have their plain lane.
    pub plain_lane: bool,
    /// So many clients of each loop at a time leave it as for another process, and come back as from one.
    pub moving: usize,
    /// Of how many units of work one is followed by a look at everything.
    pub look_every: u64,
    /// The clock's smallest step.
    pub step: Duration,
    /// Virtual time in which all must be done.
    pub limit: Duration,
}

impl Default for WorldConfig {
    fn default() -> Self {
        Self {
            seed: 1,
            loops: 2,
            pools: vec![PoolSettings::default()],
            network: NetConfig::default(),
            message_max: Duration::from_micros(300),
            lags_percent: 10,
            lag_max: Duration::from_micros(400),
            login_max: Duration::from_millis(2),
            opening_max: Duration::from_millis(5),
            cancel_max: Duration::from_millis(2),
            faults: Faults::default(),
            reports: false,
            shared: false,
            sabotage: Sabotage::None,
            plain_lane: true,
            moving: 0,
            look_every: 1,
            step: Duration::from_micros(1),
            limit: Duration::from_secs(600),
        }
    }
}

/// What was not as it must be.
#[derive(Debug, thiserror::Error)]
#[error("at {at:?}: {what}")]
pub struct Failure {
    /// When.
    pub at: Duration,
    /// What.
    pub what: String,
}

/// What has happened in a run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Report {
    /// Virtual time that it took.
    pub took: Duration,
    /// Units of work of all loops.
    pub units: u64,
    /// Messages that clients sent.
    pub messages: u64,
    /// How often a client has left its loop as for another process, and come back.
    pub moved: u64,
    /// Pipelines that have gone by the plain lane.
    pub plain_pipelines: u64,
    /// Sessions that ended by no will of the client's.
    pub sessions_lost: u64,
    /// Sessions that ended in order.
    pub sessions_settled: u64,
    /// Backends that were opened, and connections of them that were made to fail.
    pub backends: (u64, u64),
    /// Why backends' connections ended, and how many.
    pub backends_closed: BTreeMap<String, u64>,
    /// The same of clients' connections.
    pub clients_closed: BTreeMap<String, u64>,
}

/// One loop.
struct EventLoop {
    /// Edges that it has received and not looked at yet.
    events: VecDeque<net::Event>,
    inbox: VecDeque<ToLoop<Stream>>,
    busy_until: Duration,
    ticks_at: Duration,
}

impl EventLoop {
    fn has_work(&self, now: Duration) -> bool {
        self.busy_until <= now
            && (!self.events.is_empty() || !self.inbox.is_empty() || self.ticks_at <= now)
    }
}

/// A client with its place in the world.
struct Seated {
    model: ModelClient,
    seat: Seat,
    done: bool,
}

/// The world.
pub struct World {
    config: WorldConfig,
    net: Net,
    rng: Rng,
    servers: Servers,
    lobby: Lobby,
    outside: Outside,
    engines: Vec<Engine<Stream>>,
    loops: Vec<EventLoop>,
    pools: Vec<PoolRef<Stream>>,
    queues: Vec<Queue>,
    clients: Vec<Seated>,
    /// The client of each connection that was ever dialled.
    dialled: Vec<usize>,
    /// Clients that want to act at a moment.
    alarms: BinaryHeap<Reverse<(Duration, usize)>>,
    left: usize,
    units: u64,
}

impl World {
    /// A world with these clients; they come within the first `arrive_within`.
    #[must_use]
    pub fn new(
        config: WorldConfig,
        clients: Vec<(Seat, ClientConfig)>,
        arrive_within: Duration,
    ) -> Self {
        let mut rng = Rng::new(config.seed);
        let slots = clients.iter().map(|(_, client)| client.slots.end).max().unwrap_or(0);
        let server = ModelServer::new(ServerConfig {
            slots: 0..slots,
            connections_max: 10_000,
            seed: rng.next_u64(),
            reports: config.reports,
            ..ServerConfig::default()
        });
        let pools: Vec<PoolRef<Stream>> = (0u32..)
            .zip(&config.pools)
            .map(|(number, settings)| {
                let (id, loops) = (PoolId(number), usize::from(config.loops));
                let user = format!("pool{number}");
                let hash_key = rng.next_u64();
                let pool = SharedPool::new(id, "app", &user, settings.clone(), loops, hash_key);
                Arc::new(if config.shared { pool.shared_by_users() } else { pool })
            })
            .collect();
        let outside = Outside {
            now: Duration::ZERO,
            rng: rng.fork(),
            mailbox: Mailbox::new(rng.next_u64(), config.message_max),
            openings: Vec::new(),
            cancels: Vec::new(),
            opening_max: config.opening_max,
            cancel_max: config.cancel_max,
            moved: 0,
            sabotage: config.sabotage,
            backends_closed: BTreeMap::new(),
            clients_closed: BTreeMap::new(),
        };
        let mut alarms = BinaryHeap::new();
        let clients: Vec<Seated> = clients
            .into_iter()
            .enumerate()
            .map(|(number, (seat, client))| {
                alarms.push(Reverse((delay(&mut rng, arrive_within), number)));
                Seated { model: ModelClient::new(client), seat, done: false }
            })
            .collect();
        let fresh = || EventLoop {
            events: VecDeque::new(),
            inbox: VecDeque::new(),
            busy_until: Duration::ZERO,
            ticks_at: Duration::ZERO,
        };
        Self {
            net: Net::new(rng.next_u64(), config.network.clone()),
            servers: Servers::new(server, config.faults.clone(), config.reports, rng.fork()),
            lobby: Lobby::new(config.login_max),
            outside,
            engines: (0..config.loops)
                .map(|id| {
                    let processes = OwnProcessIds::all(config.seed as u32); // any will do
                    let engine = Engine::new(LoopId(id), config.loops, config.seed, processes);
                    if config.plain_lane { engine } else { engine.without_plain_lane() }
                })
                .collect(),
            loops: (0..config.loops).map(|_| fresh()).collect(),
            queues: pools.iter().map(|_| Queue::default()).collect(),
            pools,
            left: clients.len(),
            clients,
            dialled: Vec::new(),
            alarms,
            units: 0,
            rng,
            config,
        }
    }

    /// Runs to the end of all clients, and on until all is at rest.
    ///
    /// # Errors
    /// The first thing that is not as it must be.
    pub fn run(&mut self) -> Result<Report, Failure> {
        if self.config.moving > 0 {
            for id in (0..self.config.loops).map(LoopId) {
                self.outside.send(OUTSIDE, id, ToLoop::GiveClients(self.config.moving));
            }
        }
        while self.left > 0 {
            self.instant()?;
            if self.outside.now > self.config.limit {
                return Err(self.hangs());
            }
            self.advance();
        }
        self.servers.end_faults();
        let end = self.outside.now + AFTERMATH;
        while self.outside.now < end {
            self.instant()?;
            self.advance();
        }
        self.look().and_then(|()| self.is_at_rest()).map_err(|what| self.failure(what))?;
        Ok(self.report())
    }

    fn report(&self) -> Report {
        let clients = || self.clients.iter().map(|seated| &seated.model);
        Report {
            took: self.outside.now.saturating_sub(AFTERMATH),
            units: self.units,
            messages: clients().map(ModelClient::messages).sum(),
            moved: self.outside.moved,
            plain_pipelines: self.engines.iter().map(Engine::plain_pipelines).sum(),
            sessions_lost: clients().map(ModelClient::sessions_lost).sum(),
            sessions_settled: clients().map(|client| client.settled().len() as u64).sum(),
            backends: (self.servers.opened, self.servers.died),
            backends_closed: self.outside.backends_closed.clone(),
            clients_closed: self.outside.clients_closed.clone(),
        }
    }

    fn failure(&self, what: String) -> Failure {
        Failure { at: self.outside.now, what }
    }

    fn hangs(&mut self) -> Failure {
        let stuck: Vec<String> = self
            .clients
            .iter()
            .filter(|seated| !seated.done)
            .take(3)
            .map(|seated| seated.model.describe())
            .collect();
        let mut what = format!("{} clients hang:\n{}", self.left, stuck.join("\n"));
        for pool in &self.pools {
            let pool = pool.lock();
            what += &format!(
                "\npool: {} idle, {} lent, {} being opened, {} wait",
                pool.idle_count(),
                pool.lent_count(),
                pool.opening_count(),
                pool.waiting_count()
            );
        }
        match Census::take(&mut self.engines, &mut self.outside) {
            Ok(census) => what += &format!("\n{census}"),
            Err(error) => what += &error,
        }
        for (id, endpoint) in &self.servers.endpoints {
            let model = &endpoint.backend;
            what += &format!("\n{id}: {:?}, waits: {}", model.block(), model.is_waiting());
        }
        self.failure(what)
    }

    /// Moves the clock to the next thing that happens.
    fn advance(&mut self) {
        let now = self.outside.now;
        let busy = self.loops.iter().filter(|l| l.busy_until > now && l.has_work(l.busy_until));
        let next = self
            .net
            .next_arrival()
            .into_iter()
            .chain(self.outside.mailbox.next_arrival())
            .chain(self.outside.openings.iter().map(|opening| opening.due))
            .chain(self.outside.cancels.iter().map(|cancel| cancel.due))
            .chain(self.lobby.next_due())
            .chain(self.servers.next_due())
            .chain(self.alarms.peek().map(|Reverse((due, _))| *due))
            .chain(busy.map(|l| l.busy_until))
            .chain(self.loops.iter().map(|l| l.ticks_at))
            .min()
            .unwrap_or(now);
        let now = next.max(now + self.config.step);
        self.outside.now = now;
        self.net.advance_to(now);
        self.servers.model.advance_to(now);
    }

    /// Does all that can be done without the clock moving on.
    fn instant(&mut self) -> Result<(), Failure> {
        let now = self.outside.now;
        self.servers.go_wrong(now);
        self.outside_world();
        let mut units = 0u64;
        loop {
            self.servers.run();
            let acted = self.run_clients()?;
            for event in self.net.take_events(LOBBY) {
                let loops = self.config.loops;
                self.lobby.on_event(event.token, &self.pools, loops, &mut self.outside);
            }
            let before = units;
            while let Some(id) = self.pick_loop() {
                self.unit(id);
                units += 1;
                self.judge().map_err(|what| self.failure(what))?;
                if units > UNITS_AT_ONCE_MAX {
                    return Err(self.failure(format!("loop {id} spins")));
                }
            }
            if !acted && units == before {
                return Ok(());
            }
        }
    }

    /// Openings, cancels and logins that are due.
    fn outside_world(&mut self) {
        let now = self.outside.now;
        let (due, later): (Vec<_>, Vec<_>) =
            self.outside.openings.drain(..).partition(|opening| opening.due <= now);
        self.outside.openings = later;
        for opening in due {
            self.servers.open(opening, &self.net, &mut self.outside);
        }
        let (due, later): (Vec<_>, Vec<_>) =
            self.outside.cancels.drain(..).partition(|cancel| cancel.due <= now);
        self.outside.cancels = later;
        for cancel in due {
            let request = cancel.request;
            self.servers.cancel(request.process, &request.key);
            if self.config.sabotage != Sabotage::CancelsLate {
                let done = ToLoop::CancelDone(request.backend);
                self.outside.send(OUTSIDE, request.reply_to, done);
            }
        }
        self.lobby.run(&mut self.outside);
        self.sabotage();
    }

    fn sabotage(&mut self) {
        let soil = match self.config.sabotage {
            Sabotage::Soils(text) => frontend::query(text).encode(),
            Sabotage::ReplacesUnnamed => servers::other_unnamed(),
            _ => return,
        };
        if self.rng.below(50) != 0 {
            return;
        }
        for pool in &self.pools {
            let idle = pool.lock().idle_backends().map(|(_, backend)| backend.id()).next();
            if let Some(id) = idle {
                self.servers.soil(id, &soil);
            }
        }
    }

    /// Lets clients act that have received something or want to. True if any did.
    fn run_clients(&mut self) -> Result<bool, Failure> {
        let now = self.outside.now;
        let mut due: Vec<usize> = Vec::new();
        for event in self.net.take_events(CLIENTS) {
            let connection = usize::try_from(event.token.0).unwrap_or(usize::MAX);
            due.extend(self.dialled.get(connection));
        }
        while let Some(Reverse((at, client))) = self.alarms.peek().copied()
            && at <= now
        {
            self.alarms.pop();
            due.push(client);
        }
        due.sort_unstable();
        due.dedup();
        for &number in &due {
            self.run_client(number)?;
        }
        Ok(!due.is_empty())
    }

    fn run_client(&mut self, number: usize) -> Result<(), Failure> {
        let now = self.outside.now;
        let Self { clients, net, lobby, dialled, .. } = self;
        let seated = &mut clients[number];
        if seated.done {
            return Ok(());
        }
        let seat = seated.seat;
        let run = seated.model.run(now, &mut || {
            let (near, far) = net.pair();
            near.register(CLIENTS, net::Token(dialled.len() as u64));
            dialled.push(number);
            lobby.accept(far, seat);
            near
        });
        if let Err(mismatch) = run {
            let what = format!("client {number} ({seat:?}):\n{mismatch}");
            return Err(self.failure(what));
        }
        if seated.model.is_done() {
            seated.done = true;
            self.left -= 1;
        } else if let Some(at) = seated.model.wakes_at(now) {
            self.alarms.push(Reverse((at, number)));
        } else if seated.model.socket().is_none() {
            self.alarms.push(Reverse((now + self.config.step, number)));
        }
        Ok(())
    }

    /// A loop that has something to do now.
    fn pick_loop(&mut self) -> Option<LoopId> {
        let now = self.outside.now;
        let mut ready = Vec::new();
        for (id, event_loop) in (0u16..).zip(&mut self.loops) {
            let of = owner(LoopId(id));
            for event in self.net.take_events(of) {
                let lost = match self.config.sabotage {
                    Sabotage::LosesEdges(of) => self.rng.below(of) == 0,
                    _ => false,
                };
                if !lost {
                    event_loop.events.push_back(event);
                }
            }
            let arrived = self.outside.mailbox.take(now, of);
            event_loop.inbox.extend(arrived.into_iter().map(|(_, message)| message));
            if event_loop.has_work(now) {
                ready.push(LoopId(id));
            }
        }
        (!ready.is_empty()).then(|| *self.rng.pick(&ready))
    }

    /// One unit of a loop's work.
    fn unit(&mut self, id: LoopId) {
        self.units += 1;
        let now = self.outside.now;
        let at = usize::from(id.0);
        let (engine, event_loop) = (&mut self.engines[at], &mut self.loops[at]);
        let mut host = SimHost { id, outside: &mut self.outside };
        if event_loop.ticks_at <= now {
            engine.tick(&mut host, moment(now));
            event_loop.ticks_at = now + engine.next_tick();
        } else if !event_loop.inbox.is_empty()
            && (event_loop.events.is_empty() || self.rng.percent(50))
        {
            if let Some(message) = event_loop.inbox.pop_front() {
                engine.on_message(&mut host, message, moment(now));
            }
        } else if let Some(event) = event_loop.events.pop_front() {
            let ready = Readiness {
                readable: event.readable,
                writable: event.writable,
                hangup: event.hangup,
                broken: false,
            };
            engine.on_event(&mut host, Token::from_bits(event.token.0), ready, moment(now));
        }
        // A turn ends when nothing is left to do, or sooner.
        let more = !event_loop.events.is_empty() || !event_loop.inbox.is_empty();
        if !more || self.rng.percent(50) {
            engine.flush(&mut host, moment(now));
        }
        // A tick is due sooner once there is something to wait for.
        event_loop.ticks_at = event_loop.ticks_at.min(now + engine.next_tick());
        if self.rng.percent(self.config.lags_percent) {
            event_loop.busy_until = now + delay(&mut self.rng, self.config.lag_max);
        }
    }

    /// What must hold after each unit of work; now and then, after a look at everything.
    fn judge(&mut self) -> Result<(), String> {
        for pool in &self.pools {
            invariants::glance(pool, &self.servers)?;
        }
        if self.units.is_multiple_of(self.config.look_every) { self.look() } else { Ok(()) }
    }

    fn look(&mut self) -> Result<(), String> {
        let waiting: Vec<&ToLoop<Stream>> =
            self.loops.iter().flat_map(|event_loop| &event_loop.inbox).collect();
        let census = Census::take(&mut self.engines, &mut self.outside)?;
        for (pool, queue) in self.pools.iter().zip(&mut self.queues) {
            census.audit(pool, &self.outside, &waiting)?;
            census.watch_queue(queue, pool, &self.outside, &waiting)?;
            if self.config.sabotage == Sabotage::None {
                invariants::is_clean(pool, &self.servers)?;
            }
        }
        if self.config.sabotage == Sabotage::None {
            let resting = self.engines.iter().flat_map(Engine::resting_books);
            for (id, books) in resting {
                let endpoint = self.servers.endpoints.get(&id);
                let Some(endpoint) = endpoint.filter(|e| e.backend.ending().is_none()) else {
                    continue;
                };
                invariants::are_in_the_books(id, &endpoint.backend, books)?;
            }
        }
        census.check_no_waiter_is_forgotten(&self.pools, &self.outside, &waiting)?;
        Ok(())
    }

    /// All clients are gone: nothing is left of them.
    fn is_at_rest(&self) -> Result<(), String> {
        // At the end only: the client that it hit shows what went before.
        for reason in self.outside.backends_closed.keys() {
            if reason.starts_with("the server sent")
                || reason.starts_with("the server was")
                || reason.starts_with("the server reported")
                || reason == "it could not be tidied"
                || reason == "its transaction could not be ended"
            {
                return Err(format!("a backend was closed because {reason}"));
            }
        }
        for (number, engine) in self.engines.iter().enumerate() {
            if engine.client_count() > 0 {
                return Err(format!("loop {number} still has {} clients", engine.client_count()));
            }
        }
        for pool in &self.pools {
            let pool = pool.lock();
            let (lent, opening) = (pool.lent_count(), pool.opening_count());
            if lent + opening + pool.waiting_count() + pool.parked_count() > 0 {
                return Err(format!("at the end {lent} are lent and {opening} being opened"));
            }
        }
        let watched: usize = self.engines.iter().map(Engine::resident_count).sum();
        let idle: u32 = self.pools.iter().map(|pool| pool.lock().idle_count()).sum();
        let listening: usize = self.engines.iter().map(Engine::listener_count).sum();
        if watched != idle as usize || listening > 0 {
            return Err(format!("{watched} are watched, {idle} idle, {listening} listen"));
        }
        let model = &self.servers.model;
        let left = model.listeners();
        if !model.locks().is_empty() || !left.is_empty() {
            return Err(format!("left: {:?} {left:?}", model.locks()));
        }
        if model.processes().len() != idle as usize {
            return Err(format!("{} processes, {idle} idle", model.processes().len()));
        }
        for (table, rows) in self.clients.iter().flat_map(|seated| seated.model.settled()) {
            let mut found = model.rows(table).unwrap_or_default();
            found.sort_unstable();
            if found != *rows {
                return Err(format!("{table} holds {found:?}, not {rows:?}"));
            }
        }
        Ok(())
    }
}
