//! SHOW CLIENTS, SERVERS, SOCKETS, FDS and PINS: single connections.
//!
//! # Ids
//! PgBouncer's `id` is an int4. A client's is made of its place: 20 bits for the place among all
//! loops, and above them 11 bits of how often the place has been given out, so that an id that has
//! been read a moment ago does not hit the next client of that place. `ptr` is exact.

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use hawser_core::engine::Socket;
use hawser_core::engine::about::{ClientState, PeerAddress};
use hawser_core::engine::message::{BackendRow, BackendState, ClientRow};
use hawser_core::ids::{ClientId, PoolId};
use hawser_core::session::options::Replication;

use super::Everything;
use super::pools::host_and_port;
use crate::admin::command::Topic;
use crate::admin::table::{Cell, Columns, Table, columns};
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

pub(super) fn fill(mut table: Table, topic: Topic, all: &Everything<'_>) -> Table {
    let low_level = matches!(topic, Topic::Sockets | Topic::ActiveSockets);
    if topic != Topic::Servers {
        for client in all.snapshots.iter().flat_map(|snapshot| &snapshot.clients) {
            // What lies in buffers is the loops' own: a connection at work stands for it.
            if topic == Topic::ActiveSockets && client.state == ClientState::Idle {
                continue;
            }
            table.push(match topic {
                Topic::Fds => client_fd(client),
                _ => client_row(client, low_level, all),
            });
        }
    }
    if topic == Topic::Clients {
        return table;
    }
    let lent = all.snapshots.iter().flat_map(|snapshot| snapshot.backends.iter().cloned());
    let mut backends: Vec<BackendRow> = lent.collect();
    let mut epochs = HashMap::new();
    for entry in all.pooler.pools() {
        let channels = entry.pool.stats.listen.channels.load(Ordering::Relaxed);
        epochs.insert(entry.pool.id, (entry.pool.epoch(), channels));
        let queue = entry.pool.lock();
        // An exception from the rule that no system call is made under this lock: getsockname waits
        // for nothing, and an idle connection can be asked nowhere else.
        let idle = queue.idle_backends().map(|(_, backend)| {
            let mut row = backend.row(BackendState::Idle, None);
            row.local = (topic != Topic::Fds).then(|| backend.socket().local_address()).flatten();
            row
        });
        backends.extend(idle);
    }
    for backend in &backends {
        if topic == Topic::ActiveSockets && backend.state == BackendState::Idle {
            continue;
        }
        let stale = epochs.get(&backend.pool).is_some_and(|(epoch, _)| *epoch != backend.epoch);
        let listens = backend.state == BackendState::Listening;
        let channels = epochs.get(&backend.pool).filter(|_| listens).map_or(0, |(_, all)| *all);
        table.push(match topic {
            Topic::Fds => server_fd(backend, all),
            _ => server_row(backend, stale, channels, low_level, all),
        });
    }
    table
}

fn client_state(state: ClientState, low_level: bool) -> &'static str {
    match (state, low_level) {
        (ClientState::Idle, false) => "idle",
        (ClientState::Waiting, false) => "waiting",
        (ClientState::Active, false) => "active",
        (ClientState::Closing, false) => "closing",
        // SOCKETS has no word of its own for those that want nothing.
        (ClientState::Idle | ClientState::Active, true) => "cl_active",
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

fn server_transport(backend: &BackendRow, all: &Everything<'_>) -> Transport {
    all.pooler.place(backend.server).map_or(Transport::Tcp, |place| place.transport)
}

/// Our end of a connection.
fn local(local: Option<&(String, u16)>) -> [Cell; 2] {
    match local {
        Some((address, port)) => [address.as_str().into(), (*port).into()],
        None => [Cell::Null, Cell::Null],
    }
}

/// PgBouncer's words.
fn replication(pool: PoolId, kinds: &HashMap<PoolId, Replication>) -> &'static str {
    match kinds.get(&pool) {
        Some(Replication::Physical) => "physical",
        Some(Replication::Database) => "logical",
        Some(Replication::None) | None => "none",
    }
}

fn client_row(client: &ClientRow, low_level: bool, all: &Everything<'_>) -> Vec<Cell> {
    let [local_address, local_port] = local(client.local.as_ref());
    let mut row = vec![
        "C".into(),
        client.user.as_str().into(),
        client.database.as_str().into(),
        replication(client.pool, &all.replication).into(),
        client_state(client.state, low_level).into(),
        client.about.peer.to_string().into(),
        client.about.peer.port().into(),
        local_address,
        local_port,
        all.clock.date(client.about.connected).into(),
        all.clock.date(client.last_request).into(),
        (client.wait_us / 1_000_000).into(),
        (client.wait_us % 1_000_000).into(),
        0u32.into(),
        client.id.to_string().into(),
        client.backend.map(|backend| backend.to_string()).unwrap_or_default().into(),
        client.process.into(),
        client.about.tls().into(),
        client.application_name.as_str().into(),
        client.statements.into(),
        client_number(client.id, all.pooler.loops().count()).into(),
    ];
    let pins = if client.pins.is_empty() { String::new() } else { client.pins.to_string() };
    row.extend(rest(low_level, pins, false, client_transport(client), client.channels));
    if !low_level {
        row.push(pinned_seconds(client, all));
    }
    row
}

/// For how long a client has kept its server connection between transactions.
fn pinned_seconds(client: &ClientRow, all: &Everything<'_>) -> Cell {
    let now = all.pooler.loops().now();
    client.pinned_since.map_or(Cell::Null, |since| now.since(since).as_secs().into())
}

fn server_row(
    backend: &BackendRow,
    stale: bool,
    channels: u32,
    low_level: bool,
    all: &Everything<'_>,
) -> Vec<Cell> {
    let (host, port) = address(backend, all);
    let [local_address, local_port] = local(backend.local.as_ref());
    let mut row = vec![
        "S".into(),
        backend.user.as_str().into(),
        backend.database.as_str().into(),
        replication(backend.pool, &all.replication).into(),
        server_state(backend.state, low_level).into(),
        host.into(),
        port.into(),
        local_address,
        local_port,
        all.clock.date(backend.connected).into(),
        all.clock.date(backend.connected).into(),
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
    let transport = server_transport(backend, all);
    row.extend(rest(low_level, String::new(), backend.parked, transport, channels as usize));
    if !low_level {
        row.push(Cell::Null);
    }
    row
}

fn address(backend: &BackendRow, all: &Everything<'_>) -> (String, u16) {
    match all.pooler.place(backend.server) {
        Some(place) => host_and_port(&place.configured),
        None => (String::new(), 0),
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

fn server_fd(backend: &BackendRow, all: &Everything<'_>) -> Vec<Cell> {
    let (host, port) = address(backend, all);
    fd_row("server", &backend.user, &backend.database, &host, port)
}

pub(super) fn pins(mut table: Table, all: &Everything<'_>) -> Table {
    for client in all.snapshots.iter().flat_map(|snapshot| &snapshot.clients) {
        for part in client.pins.iter() {
            table.push(vec![
                client.database.as_str().into(),
                client.user.as_str().into(),
                part.name().into(),
                client.id.to_string().into(),
                client.backend.map(|backend| backend.to_string()).into(),
                client.about.peer.to_string().into(),
                client.about.peer.port().into(),
                client.application_name.as_str().into(),
                all.clock.date(client.last_request).into(),
                client_number(client.id, all.pooler.loops().count()).into(),
                pinned_seconds(client, all),
            ]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use hawser_core::ids::{LoopId, Slot};

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
