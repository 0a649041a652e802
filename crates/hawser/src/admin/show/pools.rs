//! SHOW POOLS, DATABASES, USERS and LISTS: from the registry and the configuration; for POOLS the
//! loops say what their server connections are doing.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::atomic::Ordering;

use hawser_pooler::ids::PoolId;
use hawser_pooler::relay::message::{BackendRow, BackendState, Listed};

use crate::admin::pooler::{PoolEntry, Pooler};
use crate::admin::table::{Cell, Columns, Table, columns};
use crate::config::{ANY_DATABASE, DatabaseConfig, ServerAddress, UserEntry};
use crate::loops::pages::{LoopSilent, Pages};

pub(super) const POOLS_COLUMNS: Columns = columns![
    Text "database", Text "user", Int4 "cl_active", Int4 "cl_waiting",
    Int4 "cl_active_cancel_req", Int4 "cl_waiting_cancel_req", Int4 "sv_active",
    Int4 "sv_active_cancel", Int4 "sv_being_canceled", Int4 "sv_idle", Int4 "sv_used",
    Int4 "sv_tested", Int4 "sv_login", Int4 "maxwait", Int4 "maxwait_us", Text "pool_mode",
    Text "load_balance_hosts",
    // Ours: backends that sit idle in a transaction, the bounds, and why none can be opened.
    Int4 "sv_parked", Int4 "pool_size", Int4 "reserve_pool_size", Int4 "paused",
    Text "last_error",
    // What listens for clients, beside the pool's size, and on how many channels.
    Int4 "sv_listen", Int4 "channels",
    // Kept by clients between transactions.
    Int4 "sv_pinned",
    // Whose servers tell exactly what their sessions hold: those with the extension.
    Int4 "sv_exact",
    // Closed because they reported other settings than they were given.
    Int8 "settings_mismatches",
    // On which Hawser asks the server questions of its own, beside the pool's size.
    Int4 "sv_asking",
];

pub(super) const DATABASES_COLUMNS: Columns = columns![
    Text "name", Text "host", Int4 "port", Text "database", Text "force_user", Int4 "pool_size",
    Int4 "min_pool_size", Int4 "reserve_pool_size", Int4 "server_lifetime", Text "pool_mode",
    Text "load_balance_hosts", Int4 "max_connections", Int4 "current_connections",
    Int4 "max_client_connections", Int4 "current_client_connections", Int4 "paused",
    Int4 "disabled",
    // Ours.
    Text "target_session_attrs", Int4 "idle_transaction_reserve",
];

pub(super) const USERS_COLUMNS: Columns = columns![
    Text "name", Text "pool_size", Text "reserve_pool_size", Text "pool_mode",
    Int4 "max_user_connections", Int4 "current_connections", Int4 "max_user_client_connections",
    Int4 "current_client_connections",
];

pub(super) const LISTS_COLUMNS: Columns = columns![Text "list", Int4 "items"];

/// What the loops know of a pool's server connections.
///
/// A client's cancel request is handed over and its connection closed at once; the two columns of
/// clients count requests: those that wait until none of our own queries could be hit, and those
/// that are on their way to the server.
#[derive(Default)]
struct AtLoops {
    /// No client has them: they are being reset, or their answers thrown away.
    tested: u32,
    /// No client has them, and a cancel request could still hit them.
    being_canceled: u32,
    cancels: u32,
    cancels_of_clients: u32,
    cancels_waiting: u32,
}

impl AtLoops {
    async fn by_pool(pooler: &dyn Pooler) -> Result<HashMap<PoolId, Self>, LoopSilent> {
        let mut by_pool: HashMap<_, Self> = HashMap::new();
        let mut pages = Pages::new(pooler.loops(), Listed::Backends, false);
        while let Some(page) = pages.next().await? {
            for backend in &page.backends {
                by_pool.entry(backend.pool).or_default().add(backend);
            }
        }
        Ok(by_pool)
    }

    fn add(&mut self, backend: &BackendRow) {
        self.cancels += backend.cancels;
        match backend.state {
            BackendState::Tested if backend.cancels > 0 => self.being_canceled += 1,
            BackendState::Tested => self.tested += 1,
            BackendState::Active => {
                self.cancels_of_clients += backend.cancels;
                self.cancels_waiting += u32::from(backend.cancel_waits);
            }
            BackendState::Idle | BackendState::Listening => {}
        }
    }
}

pub(super) async fn pools(mut table: Table, pooler: &dyn Pooler) -> Result<Table, LoopSilent> {
    let at_loops = AtLoops::by_pool(pooler).await?;
    let config = pooler.config();
    let now = pooler.loops().now();
    for entry in pooler.pools() {
        let PoolEntry { pool, clients, .. } = &entry;
        let none = AtLoops::default();
        let at_loops = at_loops.get(&pool.id).unwrap_or(&none);
        let database = config.database(&pool.database);
        let mode = database
            .map(|database| config.resolve(database, &pool.user).pool.pool_mode.to_string());
        let several = database.and_then(balancing);
        let (waiting, lent, idle, opening, parked, paused, limits, wait_us) = {
            let queue = pool.lock();
            let wait_us = entry.oldest_wait_us(&queue, now);
            (
                entry.waiting(&queue),
                queue.lent_count(),
                queue.idle_count(),
                queue.opening_count(),
                queue.parked_count(),
                queue.is_paused(),
                queue.limits().clone(),
                wait_us,
            )
        };
        table.push(vec![
            pool.database.as_str().into(),
            pool.user.as_str().into(),
            // As PgBouncer: those that want nothing count as active.
            clients.saturating_sub(waiting as usize).into(),
            waiting.into(),
            at_loops.cancels_of_clients.into(),
            at_loops.cancels_waiting.into(),
            // The loops were asked a moment before.
            lent.saturating_sub(at_loops.tested + at_loops.being_canceled).into(),
            at_loops.cancels.into(),
            at_loops.being_canceled.into(),
            idle.into(),
            // PgBouncer's are those that wait for server_check_query, which there is none of.
            0u32.into(),
            at_loops.tested.into(),
            opening.into(),
            (wait_us / 1_000_000).into(),
            (wait_us % 1_000_000).into(),
            mode.into(),
            several.into(),
            parked.into(),
            limits.size.into(),
            limits.reserve_size.into(),
            paused.into(),
            entry.last_error().into(),
            pool.stats.listen.connections.load(Ordering::Relaxed).into(),
            pool.stats.listen.channels.load(Ordering::Relaxed).into(),
            pool.pins.get().into(),
            pool.reporting.get().into(),
            pool.stats.sum(|stats| stats.settings_mismatches.get()).into(),
            entry.asking.into(),
        ]);
    }
    Ok(table)
}

/// `load_balance_hosts`, where there is a choice.
fn balancing(database: &DatabaseConfig) -> Option<String> {
    (database.servers.len() > 1).then(|| database.load_balance_hosts.to_string())
}

/// Host as PgBouncer has it: a name, an address, or the directory of a unix socket.
pub(super) fn host_and_port(server: &ServerAddress) -> (String, u16) {
    match server {
        ServerAddress::Tcp { host, port, .. } => (host.clone(), *port),
        ServerAddress::Link { link, host, port } => (format!("link://{link}/{host}"), *port),
        ServerAddress::Unix(path) => {
            let port = path.extension().and_then(|port| port.to_str()?.parse().ok());
            let directory = path.parent().unwrap_or(path);
            (directory.display().to_string(), port.unwrap_or(0))
        }
    }
}

#[derive(Default)]
struct InUse {
    clients: usize,
    servers: u32,
}

fn in_use<'a>(
    entries: &'a [PoolEntry],
    key: impl Fn(&'a PoolEntry) -> &'a str,
) -> BTreeMap<&'a str, InUse> {
    let mut by_key = BTreeMap::<_, InUse>::new();
    for entry in entries {
        let sum = by_key.entry(key(entry)).or_default();
        sum.clients += entry.clients;
        sum.servers += entry.pool.lock().total();
    }
    by_key
}

/// `as_pgbouncer`: without the entry that stands for others, and with no mode that is not the entry's own.
pub(super) fn databases(mut table: Table, pooler: &dyn Pooler, as_pgbouncer: bool) -> Table {
    let config = pooler.config();
    let entries = pooler.pools();
    let used = in_use(&entries, |entry| &entry.pool.database);
    // Those of the file, and then those that `*` stands for at present.
    let named: BTreeSet<&str> = config.databases().iter().map(|d| d.name.as_str()).collect();
    let own = config.databases().iter().map(|database| (database.name.as_str(), database));
    let through_any = used
        .keys()
        .filter(|name| !named.contains(**name))
        .filter_map(|name| Some((*name, config.database(name)?)));
    for (name, database) in own.chain(through_any) {
        if as_pgbouncer && name == ANY_DATABASE {
            continue;
        }
        let inherited = &database.inherited;
        let (pool, limits) = (&inherited.pool, &inherited.limits);
        let mode = if as_pgbouncer { database.own_mode } else { Some(pool.pool_mode) };
        let servers: Vec<_> = database.servers.iter().map(host_and_port).collect();
        let hosts: Vec<_> = servers.iter().map(|(host, _)| host.as_str()).collect();
        let none = InUse::default();
        let used = used.get(name).unwrap_or(&none);
        let gates = pooler.gates();
        table.push(vec![
            name.into(),
            hosts.join(",").into(),
            servers.first().map_or(0, |(_, port)| *port).into(),
            database.dbname_for(name).into(),
            database.forced_user.as_ref().map(|user| user.name.clone()).into(),
            pool.pool_size.into(),
            pool.min_pool_size.into(),
            pool.reserve_pool_size.into(),
            inherited.servers.server_lifetime.as_secs().into(),
            mode.map(|mode| mode.to_string()).into(),
            balancing(database).into(),
            limits.max_db_connections.get().unwrap_or(0).into(),
            used.servers.into(),
            limits.max_db_client_connections.get().unwrap_or(0).into(),
            used.clients.into(),
            gates.is_paused(name).into(),
            gates.is_disabled(name).into(),
            database.target_session_attrs.to_string().into(),
            inherited.idle_transaction_reserve().into(),
        ]);
    }
    table
}

pub(super) fn users(mut table: Table, pooler: &dyn Pooler) -> Table {
    let config = pooler.config();
    let entries = pooler.pools();
    let used = in_use(&entries, |entry| &entry.pool.user);
    let known = pooler.known_users();
    let named = config.users().iter().map(UserEntry::name);
    let named = named.chain(known.iter().map(String::as_str));
    let names: BTreeSet<&str> = named.chain(used.keys().copied()).collect();
    let limits = pooler.limits();
    for name in names {
        let user = config.user(name);
        let general = config.general_for(name).limits;
        let size = |size: Option<u32>| Cell::from(size.map(|size| size.to_string()));
        table.push(vec![
            name.into(),
            size(user.and_then(|user| user.pool_size)),
            size(user.and_then(|user| user.reserve_pool_size)),
            user.and_then(|user| user.pool_mode).map(|mode| mode.to_string()).into(),
            general.max_user_connections.get().unwrap_or(0).into(),
            used.get(name).map_or(0, |used| used.servers).into(),
            general.max_user_client_connections.get().unwrap_or(0).into(),
            limits.user_client_count(name).into(),
        ]);
    }
    table
}

/// How many rows each table of SHOW has.
pub(super) fn lists(mut table: Table, pooler: &dyn Pooler, as_pgbouncer: bool) -> Table {
    let entries = pooler.pools();
    let config = pooler.config();
    let databases = databases(Table::new(DATABASES_COLUMNS), pooler, as_pgbouncer).rows.len();
    let users = users(Table::new(USERS_COLUMNS), pooler).rows.len();
    let servers: u32 = entries.iter().map(|entry| entry.pool.lock().total()).sum();
    let peers = config.reload.peers.peers.len();
    for (list, items) in [
        ("databases", databases as u64),
        ("users", users as u64),
        ("peers", peers as u64),
        ("pools", entries.len() as u64),
        ("peer_pools", peers as u64),
        // Nothing is kept for connections that are gone.
        ("free_clients", 0),
        ("used_clients", pooler.limits().client_count() as u64),
        ("login_clients", pooler.tally().logging_in()),
        ("free_servers", 0),
        ("used_servers", servers.into()),
        ("dns_names", pooler.hosts().len() as u64),
        ("dns_zones", 0),
        ("dns_queries", 0),
        ("dns_pending", 0),
    ] {
        table.push(vec![list.into(), items.into()]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_host_of_a_unix_socket_is_its_directory() {
        let unix = ServerAddress::new("/run/postgresql", 5433).unwrap();
        assert_eq!(host_and_port(&unix), ("/run/postgresql".to_owned(), 5433));
        let tcp = ServerAddress::new("db", 1).unwrap();
        assert_eq!(host_and_port(&tcp), ("db".to_owned(), 1));
    }
}
