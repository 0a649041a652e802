//! SHOW CONFIG, MEM, VERSION, STATE, DNS_HOSTS and HOSTS: the process itself, and where it connects.

use super::dialect::{Dialect, release};
use crate::admin::pooler::Pooler;
use crate::admin::table::{Cell, Columns, Table, columns};
use crate::config::{Config, Peer, ServerAddress};
use crate::dial::server_row::ServerRole;
use crate::limits::shared::SharedLimit;
use crate::metrics::process::ProcessFigures;
use crate::peers::IN_FLIGHT_MAX;
use crate::rules::InForce;

pub(super) const CONFIG_COLUMNS: Columns =
    columns![Text "key", Text "value", Text "default", Text "changeable"];
pub(super) const MEM_COLUMNS: Columns =
    columns![Text "name", Int4 "size", Int4 "used", Int4 "free", Int4 "memtotal"];
pub(super) const VERSION_COLUMNS: Columns = columns![Text "version"];
pub(super) const STATE_COLUMNS: Columns = columns![Text "key", Text "value"];
pub(super) const DNS_HOSTS_COLUMNS: Columns = columns![Text "hostname", Int8 "ttl", Text "addrs"];
pub(super) const HOSTS_COLUMNS: Columns = columns![
    Text "database", Text "server", Text "state", Text "role", Int8 "lag_ms", Int4 "failures",
    Text "reason",
];
pub(super) const LIMITS_COLUMNS: Columns = columns![
    Text "setting", Text "name", Int4 "limit", Int4 "used", Int4 "held", Int4 "wanted", Int4 "unsure",
];

pub(super) const RULES_COLUMNS: Columns = columns![
    Text "name", Text "of", Text "matches_on", Text "action", Int8 "expires_in", Int8 "matches", Int8 "refused",
    Int8 "cut_off", Int4 "running",
];

pub(super) fn rules(mut table: Table, pooler: &dyn Pooler) -> Table {
    let now = pooler.loops().now();
    for InForce { entry, by_hand, rule } in pooler.rules().all() {
        let (when, does) = entry.in_words();
        let left = rule.expires.map(|expires| expires.micros_since(now) / 1_000_000);
        table.push(vec![
            String::from(&*rule.name).into(),
            if by_hand { "console" } else { "file" }.into(),
            when.into(),
            does.into(),
            left.map_or(Cell::Null, Cell::Number),
            rule.counts.matches().into(),
            rule.counts.refused().into(),
            rule.counts.cut_off().into(),
            rule.counts.running().into(),
        ]);
    }
    table
}

pub(super) fn config(mut table: Table, config: &Config) -> Table {
    for setting in config.show() {
        let changeable = if setting.changeable { "yes" } else { "no" };
        table.push(vec![
            setting.name.into(),
            setting.value.into(),
            setting.default.into(),
            changeable.into(),
        ]);
    }
    table
}

/// PgBouncer shows its slab caches. There are none here: what the kernel says of the process, in
/// units of a KiB, and the queues that are known.
pub(super) fn memory(mut table: Table, pooler: &dyn Pooler) -> Table {
    const KIB: u64 = 1024;
    let figures = ProcessFigures::read();
    for (name, bytes) in [
        ("private", figures.private_bytes),
        ("resident", figures.resident_bytes),
        ("virtual", figures.virtual_bytes),
    ] {
        let used = bytes / KIB;
        table.push(vec![name.into(), KIB.into(), used.into(), 0u32.into(), bytes.into()]);
    }
    let pool = size_of::<hawser_pooler::lending::Pool<()>>() as u64;
    let count = pooler.pools().len() as u64;
    table.push(vec!["pool".into(), pool.into(), count.into(), 0u32.into(), (pool * count).into()]);
    table
}

pub(super) fn version(mut table: Table, dialect: Dialect) -> Table {
    let version = match dialect {
        Dialect::Hawser => crate::VERSION.to_owned(),
        // Tools look for PgBouncer's name at the beginning, and for its number.
        Dialect::PgBouncer(version) => {
            format!("PgBouncer {} (Hawser {})", release(version), env!("CARGO_PKG_VERSION"))
        }
    };
    table.push(vec![version.into()]);
    table
}

pub(super) fn state(mut table: Table, pooler: &dyn Pooler, dialect: Dialect) -> Table {
    let paused = pooler.gates().all_paused();
    let word = |yes| if yes { "yes" } else { "no" };
    for (key, value) in [("active", !paused), ("paused", paused), ("suspended", false)] {
        table.push(vec![key.into(), word(value).into()]);
    }
    if dialect != Dialect::Hawser {
        return table;
    }
    table.push(vec!["ready".into(), word(pooler.ready().is_ok()).into()]);
    let manager = pooler.mptcp().and_then(|mptcp| mptcp.manager.standing().in_words());
    table.push(vec!["mptcp_manager".into(), manager.unwrap_or_else(|| "off".to_owned()).into()]);
    table
}

pub(super) fn dns_hosts(mut table: Table, pooler: &dyn Pooler) -> Table {
    let ttl = pooler.config().reload.servers.dns_max_ttl;
    for host in pooler.hosts() {
        let left = ttl.saturating_sub(host.age).as_secs();
        let addresses: Vec<_> = host.addresses.iter().map(ToString::to_string).collect();
        table.push(vec![host.name.into(), left.into(), addresses.join(",").into()]);
    }
    table
}

pub(super) fn peers(mut table: Table, config: &Config) -> Table {
    for Peer { id, address } in &config.reload.peers.peers {
        let (host, port) = match address {
            ServerAddress::Tcp { host, port, .. } | ServerAddress::Link { host, port, .. } => {
                (host.clone(), Cell::Number(u64::from(*port)))
            }
            ServerAddress::Unix(path) => (path.display().to_string(), Cell::Null),
        };
        table.push(vec![u64::from(*id).into(), host.into(), port, u64::from(IN_FLIGHT_MAX).into()]);
    }
    table
}

pub(super) fn peer_pools(mut table: Table, pooler: &dyn Pooler) -> Table {
    for Peer { id, .. } in &pooler.config().reload.peers.peers {
        // A request is sent on by a connection of its own, without a login.
        let under_way = u64::from(pooler.cancels_to_peer(*id));
        let (waiting, logging_in) = (0_u64, 0_u64);
        table.push(vec![
            u64::from(*id).into(),
            under_way.into(),
            waiting.into(),
            under_way.into(),
            logging_in.into(),
        ]);
    }
    table
}

pub(super) fn limits(mut table: Table, pooler: &dyn Pooler) -> Table {
    let shared = pooler.limits().sharing().map_or_else(Vec::new, |(_, shared)| shared);
    for SharedLimit { scope, limit, used, bound } in shared {
        table.push(vec![
            scope.kind.setting().into(),
            String::from(scope.name).into(),
            limit.into(),
            used.into(),
            bound.held.into(),
            bound.wanted.into(),
            bound.unsure.into(),
        ]);
    }
    table
}

pub(super) fn hosts(mut table: Table, pooler: &dyn Pooler) -> Table {
    for row in pooler.servers() {
        let lag = row.role.and_then(ServerRole::lag);
        let lag_ms = lag.map(|lag| u64::try_from(lag.as_millis()).unwrap_or(u64::MAX));
        table.push(vec![
            row.database.into(),
            row.server.into(),
            row.state.name().into(),
            row.role.map(|role| role.name().to_owned()).into(),
            lag_ms.map_or(Cell::Null, Cell::Number),
            row.state.failures().into(),
            row.state.reason().map(str::to_owned).into(),
        ]);
    }
    table
}
