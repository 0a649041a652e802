//! SHOW CLIENTS, SERVERS, SOCKETS, FDS and PINS: single connections.
//!
//! # Ids
//! PgBouncer's `id` is an int4. A client's is made of its place: 20 bits for the place among all
//! loops, and above them 11 bits of how often the place has been given out, so that an id that has
//! been read a moment ago does not hit the next client of that place. `ptr` is exact.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::Ordering;
use std::time::SystemTime;

use hawser_pooler::ids::{BackendId, ClientId, PoolId};
use hawser_pooler::relay::Socket;
use hawser_pooler::relay::client_info::{ClientState, PeerAddress};
use hawser_pooler::relay::message::{BackendRow, BackendState, ClientRow, Listed};
use hawser_pooler::session::options::Replication;
use hawser_pooler::session::part::Part;

use super::pools::host_and_port;
use crate::admin::clock::Clock;
use crate::admin::command::Topic;
use crate::admin::pooler::{PoolEntry, Pooler};
use crate::admin::table::{Cell, Columns, Table, columns};
use crate::loops::Pool;
use crate::loops::pages::{LoopSilent, Pages};
use crate::mptcp::usage::Transport;

/// PgBouncer's columns of a connection, those that only SOCKETS has, and ours.
macro_rules! socket_columns {
    ($($kind:ident $name:literal),* $(,)?) => {
        columns![
            Text "type", Text "user", Text "database", Text "replication", Text "state",
            Text "addr", Int4 "port", Text "local_addr", Int4 "local_port", Text "connect_time",
            Text "request_time", Int4 "wait", Int4 "wait_us", Int4 "close_needed", Text "ptr",
            Text "link", Int4 "remote_pid", Text "tls", Text "application_name",
            Int4 "prepared_statements", Int4 "id",
            $($kind $name),*
        ]
    };
}

pub(super) const COLUMNS: Columns = socket_columns![
    Text "pins", Int4 "parked", Text "transport", Int4 "channels", Int4 "pinned_seconds",
];

pub(super) const LOW_LEVEL_COLUMNS: Columns = socket_columns![
    Int4 "recv_pos", Int4 "pkt_pos", Int4 "pkt_remain", Int4 "send_pos", Int4 "send_remain",
    Int4 "pkt_avail", Int4 "send_avail", Text "transport",
];

pub(super) const FDS_COLUMNS: Columns = columns![
    Int4 "fd", Text "task", Text "user", Text "database", Text "addr", Int4 "port", Int8 "cancel",
    Int4 "link", Text "client_encoding", Text "std_strings", Text "datestyle", Text "timezone",
    Text "password", Text "scram_client_key", Text "scram_server_key",
];

pub(super) const PINS_COLUMNS: Columns = columns![
    Text "database", Text "user", Text "reason", Text "client", Text "server", Text "addr",
    Int4 "port", Text "application_name", Text "request_time", Int4 "id", Int4 "seconds",
];

const PLACE_BITS: u32 = 20;
const GENERATION_BITS: u32 = 11;

/// The number of a client in SHOW CLIENTS; never 0.
pub fn client_number(id: ClientId, loops: usize) -> u32 {
    let loops = u32::try_from(loops).unwrap_or(u32::MAX).max(1);
    let place =
        id.slot.index.wrapping_mul(loops).wrapping_add(u32::from(id.home.0)).wrapping_add(1);
    let generation = id.slot.generation & ((1 << GENERATION_BITS) - 1);
    generation << PLACE_BITS | place & ((1 << PLACE_BITS) - 1)
}

/// Connections of a topic that are still to be shown: clients, then the backends at the loops, then
/// those in the pools.
pub(super) struct Connections<'a> {
    topic: Topic,
    pooler: &'a dyn Pooler,
    clock: Clock,
    pools: HashMap<PoolId, OfPool>,
    clients: Option<Pages<'a>>,
    lent: Option<Pages<'a>>,
    idle: std::vec::IntoIter<Pool>,
    /// Backends that have been shown: one is lent or given back meanwhile.
    shown: HashSet<BackendId>,
}

/// What rows say of a pool.
struct OfPool {
    epoch: u32,
    channels: u32,
    replication: Replication,
}

impl<'a> Connections<'a> {
    /// `None`: the topic lists no connections.
    pub(super) fn of(topic: Topic, pooler: &'a dyn Pooler) -> Option<Self> {
        let (clients, backends, addresses) = match topic {
            Topic::Clients => (true, false, true),
            Topic::Servers => (false, true, true),
            Topic::Sockets | Topic::ActiveSockets => (true, true, true),
            Topic::Fds => (true, true, false),
            Topic::Pins => (true, false, false),
            _ => return None,
        };
        let clock = Clock { now: pooler.loops().now(), wall: SystemTime::now() };
        let pages = |listed| Pages::new(pooler.loops(), listed, addresses);
        let mut all = Self {
            topic,
            pooler,
            clock,
            pools: HashMap::new(),
            clients: clients.then(|| pages(Listed::Clients)),
            lent: backends.then(|| pages(Listed::Backends)),
            idle: Vec::new().into_iter(),
            shown: HashSet::new(),
        };
        let pools = all.look_at_pools();
        if backends {
            all.idle = pools.into_iter();
        }
        Some(all)
    }

    fn look_at_pools(&mut self) -> Vec<Pool> {
        let entries = self.pooler.pools();
        self.pools.extend(entries.iter().map(|PoolEntry { pool, replication, .. }| {
            let channels = pool.stats.listen.channels.load(Ordering::Relaxed);
            let replication = *replication;
            (pool.id, OfPool { epoch: pool.epoch(), channels, replication })
        }));
        entries.into_iter().map(|entry| entry.pool).collect()
    }

    /// A pool may be new.
    fn know(&mut self, pool: PoolId) {
        if !self.pools.contains_key(&pool) {
            self.look_at_pools();
        }
    }

    /// Appends the next rows, or none of a page that has none to show. `false`: there are no more.
    pub(super) async fn next(&mut self, table: &mut Table) -> Result<bool, LoopSilent> {
        if let Some(pages) = &mut self.clients {
            match pages.next().await? {
                Some(page) => {
                    page.clients.iter().for_each(|client| self.client(client, table));
                    return Ok(true);
                }
                None => self.clients = None,
            }
        }
        if let Some(pages) = &mut self.lent {
            match pages.next().await? {
                Some(page) => {
                    page.backends.iter().for_each(|backend| self.backend(backend, table));
                    return Ok(true);
                }
                None => self.lent = None,
            }
        }
        let Some(pool) = self.idle.next() else { return Ok(false) };
        // An exception from the rule that no system call is made under this lock: getsockname waits
        // for nothing, and an idle connection can be asked nowhere else.
        let has_address = self.topic != Topic::Fds;
        let idle: Vec<BackendRow> = pool
            .lock()
            .idle_backends()
            .map(|(_, backend)| BackendRow {
                local: has_address.then(|| backend.socket().local_address()).flatten(),
                ..backend.row(BackendState::Idle, None)
            })
            .collect();
        idle.iter().for_each(|backend| self.backend(backend, table));
        Ok(true)
    }

    fn client(&mut self, client: &ClientRow, table: &mut Table) {
        self.know(client.pool);
        match self.topic {
            // What lies in buffers is the loops' own: a connection at work stands for it.
            Topic::ActiveSockets if client.state == ClientState::Idle => {}
            Topic::Fds => table.push(client_fd(client)),
            Topic::Pins => {
                client.pins.iter().for_each(|part| table.push(self.pin(client, part)));
            }
            _ => table.push(self.client_row(client)),
        }
    }

    fn backend(&mut self, backend: &BackendRow, table: &mut Table) {
        self.know(backend.pool);
        if !self.shown.insert(backend.id) {
            return;
        }
        match self.topic {
            Topic::ActiveSockets if backend.state == BackendState::Idle => {}
            Topic::Fds => table.push(self.server_fd(backend)),
            _ => table.push(self.server_row(backend)),
        }
    }
}

fn client_state(state: ClientState, low_level: bool) -> &'static str {
    match (state, low_level) {
        (ClientState::Idle, false) => "idle",
        (ClientState::Waiting, false) => "waiting",
        (ClientState::Active, false) => "active",
        (ClientState::Inside, false) => "inside",
        (ClientState::Closing, false) => "closing",
        // SOCKETS has no word of its own for those that want nothing.
        (ClientState::Idle | ClientState::Active | ClientState::Inside, true) => "cl_active",
        (ClientState::Waiting, true) => "cl_waiting",
        (ClientState::Closing, true) => "cl_closing",
    }
}

fn server_state(state: BackendState, low_level: bool) -> &'static str {
    match (state, low_level) {
        (BackendState::Active, false) => "active",
        (BackendState::Tested, false) => "tested",
        (BackendState::Idle, false) => "idle",
        (BackendState::Listening, false) => "listen",
        (BackendState::Listening, true) => "sv_listen",
        (BackendState::Active, true) => "sv_active",
        (BackendState::Tested, true) => "sv_tested",
        (BackendState::Idle, true) => "sv_idle",
    }
}

/// The columns that only SOCKETS has, or ours.
fn rest(
    low_level: bool,
    pins: String,
    parked: bool,
    transport: Transport,
    channels: usize,
) -> Vec<Cell> {
    let mut cells =
        if low_level { vec![Cell::Number(0); 7] } else { vec![pins.into(), parked.into()] };
    cells.push(transport.name().into());
    if !low_level {
        cells.push(channels.into());
    }
    cells
}

fn client_transport(client: &ClientRow) -> Transport {
    match (&client.about.peer, client.about.mptcp()) {
        (PeerAddress::Unix, _) => Transport::Unix,
        (_, true) => Transport::Mptcp,
        (_, false) => Transport::Tcp,
    }
}

/// Our end of a connection.
fn local(local: Option<&(String, u16)>) -> [Cell; 2] {
    match local {
        Some((address, port)) => [address.as_str().into(), (*port).into()],
        None => [Cell::Null, Cell::Null],
    }
}

/// Descriptors and keys are never given away: a row says whose connection there is, and no more.
fn fd_row(task: &str, user: &str, database: &str, address: &str, port: u16) -> Vec<Cell> {
    let mut row =
        vec![Cell::Null, task.into(), user.into(), database.into(), address.into(), port.into()];
    row.resize(FDS_COLUMNS.len(), Cell::Null);
    row
}

fn client_fd(client: &ClientRow) -> Vec<Cell> {
    fd_row(
        "client",
        &client.user,
        &client.database,
        &client.about.peer.to_string(),
        client.about.peer.port(),
    )
}

impl Connections<'_> {
    fn is_low_level(&self) -> bool {
        matches!(self.topic, Topic::Sockets | Topic::ActiveSockets)
    }

    /// PgBouncer's words.
    fn replication(&self, pool: PoolId) -> &'static str {
        match self.pools.get(&pool).map(|pool| pool.replication) {
            Some(Replication::Physical) => "physical",
            Some(Replication::Database) => "logical",
            Some(Replication::None) | None => "none",
        }
    }

    fn client_row(&self, client: &ClientRow) -> Vec<Cell> {
        let low_level = self.is_low_level();
        let [local_address, local_port] = local(client.local.as_ref());
        let mut row = vec![
            "C".into(),
            client.user.as_str().into(),
            client.database.as_str().into(),
            self.replication(client.pool).into(),
            client_state(client.state, low_level).into(),
            client.about.peer.to_string().into(),
            client.about.peer.port().into(),
            local_address,
            local_port,
            self.clock.date(client.about.connected).into(),
            self.clock.date(client.last_request).into(),
            (client.wait_us / 1_000_000).into(),
            (client.wait_us % 1_000_000).into(),
            0u32.into(),
            client.id.to_string().into(),
            client.backend.map(|backend| backend.to_string()).unwrap_or_default().into(),
            client.process.into(),
            client.about.tls().into(),
            client.application_name.as_str().into(),
            client.statements.into(),
            self.number(client).into(),
        ];
        let pins = if client.pins.is_empty() { String::new() } else { client.pins.to_string() };
        row.extend(rest(low_level, pins, false, client_transport(client), client.channels));
        if !low_level {
            row.push(self.pinned_seconds(client));
        }
        row
    }

    fn number(&self, client: &ClientRow) -> u32 {
        client_number(client.id, self.pooler.loops().count())
    }

    /// For how long a client has kept its server connection between transactions.
    fn pinned_seconds(&self, client: &ClientRow) -> Cell {
        let now = self.pooler.loops().now();
        client.pinned_since.map_or(Cell::Null, |since| now.since(since).as_secs().into())
    }

    fn pin(&self, client: &ClientRow, part: Part) -> Vec<Cell> {
        vec![
            client.database.as_str().into(),
            client.user.as_str().into(),
            part.name().into(),
            client.id.to_string().into(),
            client.backend.map(|backend| backend.to_string()).into(),
            client.about.peer.to_string().into(),
            client.about.peer.port().into(),
            client.application_name.as_str().into(),
            self.clock.date(client.last_request).into(),
            self.number(client).into(),
            self.pinned_seconds(client),
        ]
    }

    fn server_row(&self, backend: &BackendRow) -> Vec<Cell> {
        let low_level = self.is_low_level();
        let pool = self.pools.get(&backend.pool);
        let stale = pool.is_some_and(|pool| pool.epoch != backend.epoch);
        let listens = backend.state == BackendState::Listening;
        let channels = pool.filter(|_| listens).map_or(0, |pool| pool.channels);
        let (host, port) = self.address(backend);
        let [local_address, local_port] = local(backend.local.as_ref());
        let mut row = vec![
            "S".into(),
            backend.user.as_str().into(),
            backend.database.as_str().into(),
            self.replication(backend.pool).into(),
            server_state(backend.state, low_level).into(),
            host.into(),
            port.into(),
            local_address,
            local_port,
            self.clock.date(backend.connected).into(),
            self.clock.date(backend.connected).into(),
            0u32.into(),
            0u32.into(),
            stale.into(),
            backend.id.to_string().into(),
            backend.client.map(|client| client.to_string()).unwrap_or_default().into(),
            backend.process.into(),
            if backend.encrypted { "TLS" } else { "" }.into(),
            backend.application_name.as_str().into(),
            backend.statements.into(),
            (backend.id.0 & i32::MAX as u64).into(),
        ];
        let transport =
            self.pooler.place(backend.server).map_or(Transport::Tcp, |place| place.transport);
        row.extend(rest(low_level, String::new(), backend.parked, transport, channels as usize));
        if !low_level {
            row.push(Cell::Null);
        }
        row
    }

    fn server_fd(&self, backend: &BackendRow) -> Vec<Cell> {
        let (host, port) = self.address(backend);
        fd_row("server", &backend.user, &backend.database, &host, port)
    }

    fn address(&self, backend: &BackendRow) -> (String, u16) {
        match self.pooler.place(backend.server) {
            Some(place) => host_and_port(&place.configured),
            None => (String::new(), 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use hawser_pooler::ids::{LoopId, Slot};

    use super::*;

    fn id(home: u16, index: u32, generation: u32) -> ClientId {
        ClientId { home: LoopId(home), slot: Slot { index, generation } }
    }

    #[test]
    fn numbers_are_small_and_differ_and_the_next_client_of_a_place_has_another() {
        let mut numbers: Vec<u32> = (0..100)
            .flat_map(|index| (0..3).map(move |home| client_number(id(home, index, 0), 3)))
            .collect();
        assert_eq!(numbers[0], 1);
        numbers.sort_unstable();
        numbers.dedup();
        assert_eq!(numbers.len(), 300);
        assert_eq!(numbers.last(), Some(&300));
        assert_ne!(client_number(id(0, 5, 1), 2), client_number(id(0, 5, 2), 2));
        let largest = client_number(id(1, u32::MAX, u32::MAX), 2);
        assert!(i32::try_from(largest).is_ok(), "{largest}");
    }
}
