//! Pools and process -> Prometheus's families of metrics.
//!
//! # Invariants
//! * one pass over the pools, none over clients: a scrape costs the same with 100,000 of them
//! * pools of the same database and user (they differ in settings that only a connect can set) are
//!   one series

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{SystemTime, UNIX_EPOCH};

use hawser_multipath::mptcp::keeper::Standing;
use hawser_pooler::lending::{HISTOGRAM_BOUNDS_US, Histogram, Return};
use hawser_pooler::parts::rules::Counts;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use super::families::{counts, gauges};
use super::process::ProcessFigures;
use crate::admin::pooler::{PoolEntry, Pooler};
use crate::bypass::usage::BypassUsage;
use crate::dial::server_row::{ServerRow, ServerState};
use crate::holders::Pins;
use crate::limits::shared::{SharedLimit, State};
use crate::lock::locked;
use crate::logging::audit;
use crate::loops::Pool;
use crate::queries::Queries;
use crate::spans::Spans;
use crate::totals::Totals;

const MICROSECONDS: f64 = 1e6;
const CLASSES: usize = HISTOGRAM_BOUNDS_US.len() + 1;

/// What the loops said last; `None`: they have not been asked yet.
#[derive(Clone, Debug, Default)]
pub(super) struct Looked {
    pub(super) pins: Option<Pins>,
    /// The statements that have taken the most time.
    pub(super) queries: Queries,
}

/// Everything that `/metrics` shows.
#[derive(derive_more::Debug)]
#[debug("Collect {{ .. }}")]
pub struct Collect {
    pub(super) pooler: Arc<dyn Pooler>,
    pub(super) looked: Arc<Mutex<Looked>>,
}

/// A histogram over all loops and pools of a series.
#[derive(Clone, Copy, Default)]
struct Classes {
    counts: [u64; CLASSES],
    sum_us: u64,
}

impl Classes {
    fn add(&mut self, histogram: &Histogram) {
        for (sum, count) in self.counts.iter_mut().zip(histogram.classes()) {
            *sum += count;
        }
        self.sum_us += histogram.sum_us();
    }
}

#[derive(Default)]
struct Series {
    totals: Totals,
    wait: Classes,
    query: Classes,
    transaction: Classes,
    clients: u64,
    waiting: u64,
    lent: u64,
    idle: u64,
    opening: u64,
    parked: u64,
    pinned: u64,
    exact: u64,
    settings_mismatches: u64,
    crossings: u64,
    inside: u64,
    returns: [u64; Return::ALL.len()],
    listening: u64,
    channels: u64,
    heard: u64,
    notified: u64,
    size: u64,
    is_before_pooler: bool,
    paused: bool,
    oldest_wait_us: u64,
}

impl Series {
    fn add(&mut self, entry: &PoolEntry, pooler: &dyn Pooler) {
        let pool: &Pool = &entry.pool;
        self.totals = self.totals.plus(Totals::of(&pool.stats));
        for stats in pool.stats.iter() {
            self.wait.add(&stats.wait);
            self.query.add(&stats.query);
            self.transaction.add(&stats.transaction);
        }
        let listen = &pool.stats.listen;
        self.listening += u64::from(listen.connections.load(Ordering::Relaxed));
        self.channels += u64::from(listen.channels.load(Ordering::Relaxed));
        self.heard += listen.heard.get();
        self.notified += pool.stats.sum(|stats| stats.notifications.get());
        let now = pooler.loops().now();
        self.pinned += u64::from(pool.pins.get());
        self.exact += u64::from(pool.reporting.get());
        self.settings_mismatches += pool.stats.sum(|stats| stats.settings_mismatches.get());
        self.crossings += pool.stats.sum(|stats| stats.crossings.get());
        self.inside += pool.stats.inside().transactions.get();
        for (sum, (why, _)) in self.returns.iter_mut().zip(Return::ALL) {
            *sum += pool.stats.returns.of(why);
        }
        self.is_before_pooler |= entry.is_before_pooler;
        let queue = pool.lock();
        self.clients += entry.clients as u64;
        self.waiting += u64::from(entry.waiting(&queue));
        self.lent += u64::from(queue.lent_count());
        self.idle += u64::from(queue.idle_count());
        self.opening += u64::from(queue.opening_count());
        self.parked += u64::from(queue.parked_count());
        self.size += u64::from(queue.limits().size);
        self.paused |= queue.is_paused();
        let waited = entry.oldest_wait_us(&queue, now);
        self.oldest_wait_us = self.oldest_wait_us.max(waited);
    }
}

type BySeries = BTreeMap<(String, String), Series>;

impl Collector for Collect {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let pooler = self.pooler.as_ref();
        let mut series = BySeries::new();
        for entry in pooler.pools() {
            let key = (entry.pool.database.clone(), entry.pool.user.clone());
            series.entry(key).or_default().add(&entry, pooler);
        }
        connections(&mut encoder, &series)?;
        counters(&mut encoder, &series)?;
        histograms(&mut encoder, &series)?;
        let Looked { pins, queries } = locked(&self.looked).clone();
        if let Some(pins) = pins {
            let help = "Clients that keep their server connection between transactions, by reason";
            let values = pins.iter().map(|(reason, (count, _))| ([("reason", *reason)], *count));
            gauges(&mut encoder, "pinned_clients", help, None, values)?;
            let help = "Longest time that a client has kept its server connection, by reason";
            let values = pins.iter().map(|(reason, (_, age))| ([("reason", *reason)], *age));
            gauges(&mut encoder, "oldest_pin_seconds", help, None, values)?;
        }
        super::queries::encode(&mut encoder, &queries)?;
        standings(&mut encoder, pooler)?;
        sharing(&mut encoder, pooler)?;
        rules(&mut encoder, pooler)?;
        tallies(&mut encoder, pooler)?;
        process(&mut encoder, pooler)
    }
}

fn labels(key: &(String, String)) -> [(&'static str, &str); 2] {
    [("database", key.0.as_str()), ("user", key.1.as_str())]
}

fn connections(encoder: &mut DescriptorEncoder<'_>, series: &BySeries) -> fmt::Result {
    let with_state = |key, state| {
        let [database, user] = labels(key);
        [database, user, ("state", state)]
    };
    let clients = series.iter().flat_map(|(key, series)| {
        let busy = series.lent.min(series.clients.saturating_sub(series.waiting));
        let idle = series.clients.saturating_sub(series.waiting + busy);
        [("active", busy), ("waiting", series.waiting), ("idle", idle)]
            .map(|(state, count)| (with_state(key, state), count))
    });
    gauges(
        encoder,
        "clients",
        "Clients that have logged in, by what they are doing",
        None,
        clients,
    )?;
    let servers = series.iter().flat_map(|(key, series)| {
        let active = series.lent.saturating_sub(series.parked);
        [
            ("active", active),
            ("parked", series.parked),
            ("idle", series.idle),
            ("opening", series.opening),
            ("listening", series.listening),
        ]
        .map(|(state, count)| (with_state(key, state), count))
    });
    let help = "Server connections, by what they are doing; parked is idle in a transaction while \
                others wait; listening is beside the pool's size";
    gauges(encoder, "servers", help, None, servers)?;
    type Read = fn(&Series) -> u64;
    let all: [(&str, &str, Read); 6] = [
        ("pinned_servers", "Server connections that clients keep between transactions", |s| {
            s.pinned
        }),
        (
            "exact_servers",
            "Server connections whose server reports session state (the extension)",
            |s| s.exact,
        ),
        (
            "server_is_pooler",
            "Whether the server was found to be another pooler, which may mix clients' sessions",
            |s| s.is_before_pooler.into(),
        ),
        ("listened_channels", "Channels on which a connection listens for clients", |s| s.channels),
        ("pool_size", "Server connections that may be at work", |s| s.size),
        ("pool_paused", "1 where PAUSE or KILL is in force", |s| s.paused.into()),
    ];
    for (name, help, read) in all {
        let values = series.iter().map(|(key, series)| (labels(key), read(series)));
        gauges(encoder, name, help, None, values)?;
    }
    let help = "Longest time that a waiting client has waited";
    let waits = series
        .iter()
        .map(|(key, series)| (labels(key), series.oldest_wait_us as f64 / MICROSECONDS));
    gauges(encoder, "oldest_wait", help, Some(&Unit::Seconds), waits)
}

fn labels_of_server(row: &ServerRow) -> [(&'static str, &str); 2] {
    [("database", &row.database), ("server", &row.server)]
}

fn standings(encoder: &mut DescriptorEncoder<'_>, pooler: &dyn Pooler) -> fmt::Result {
    let rows = pooler.servers();
    let help = "1 where a server takes connections, also where its database asks for another kind \
                (spare), 0 where it is left or down (SHOW HOSTS)";
    let up =
        rows.iter().filter_map(|row| Some((labels_of_server(row), u64::from(row.state.is_up()?))));
    gauges(encoder, "server_up", help, None, up)?;
    let help = "1 if the database, or one of its users, uses the server now";
    let known = rows.iter().filter(|row| row.state != ServerState::Unknown);
    let fit = known.map(|row| (labels_of_server(row), u64::from(row.state == ServerState::Up)));
    gauges(encoder, "server_fit", help, None, fit)?;
    let help = "1, with the role of a server (primary or standby), where servers are probed";
    let roles = rows.iter().filter_map(|row| {
        let [database, server] = labels_of_server(row);
        Some(([database, server, ("role", row.role?.name())], 1_u64))
    });
    gauges(encoder, "server_role", help, None, roles)?;
    let help = "Replication lag of a standby, where the primary is probed, too";
    let lags =
        rows.iter().filter_map(|row| Some((labels_of_server(row), row.role?.lag()?.as_secs_f64())));
    gauges(encoder, "server_lag", help, Some(&Unit::Seconds), lags)
}

/// What the operator's rules have done.
fn rules(encoder: &mut DescriptorEncoder<'_>, pooler: &dyn Pooler) -> fmt::Result {
    let rules = pooler.rules().all();
    type Read = fn(&Counts) -> u64;
    let all: [(&str, &str, Read); 3] = [
        ("rule_matches", "Statements that a rule has matched", Counts::matches),
        ("rule_refusals", "Statements that a rule has refused", Counts::refused),
        ("rule_cut_offs", "Queries that a rule has cancelled", Counts::cut_off),
    ];
    for (name, help, read) in all {
        let values =
            rules.iter().map(|known| ([("rule", &*known.rule.name)], read(&known.rule.counts)));
        counts(encoder, name, help, None, values)?;
    }
    let help = "Statements under the bound of a rule that run, or wait for a server connection";
    let bounded = rules.iter().filter(|known| known.entry.max_running > 0);
    let values = bounded.map(|known| ([("rule", &*known.rule.name)], known.rule.counts.running()));
    gauges(encoder, "rule_running", help, None, values)
}

/// Limits that several poolers share.
fn sharing(encoder: &mut DescriptorEncoder<'_>, pooler: &dyn Pooler) -> fmt::Result {
    // (Families without a value where limits are this pooler's own: alerts name them.)
    let (state, limits) = pooler.limits().sharing().unzip();
    let limits = limits.unwrap_or_default();
    type Read = fn(&SharedLimit) -> u32;
    let families: [(&str, &str, Read); 5] = [
        (
            "shared_limit",
            "The limit of all poolers together, where limits are shared by etcd",
            |l| l.limit,
        ),
        ("shared_limit_used", "Server connections of this pooler under a shared limit", |l| l.used),
        ("shared_limit_held", "Places of a shared limit that this pooler holds", |l| l.bound.held),
        (
            "shared_limit_wanted",
            "Places of a shared limit that this pooler lacks, for openings that wait",
            |l| l.bound.wanted,
        ),
        (
            "shared_limit_unsure",
            "Server connections whose places other poolers may hold, because the lease in etcd has ended or may have",
            |l| l.bound.unsure,
        ),
    ];
    for (name, help, read) in families {
        let values = limits.iter().map(|limit| {
            let labels = [("limit", limit.scope.kind.setting()), ("name", &*limit.scope.name)];
            (labels, u64::from(read(limit)))
        });
        gauges(encoder, name, help, None, values)?;
    }
    let state = state.as_ref();
    let is_sure =
        |state: &State| u64::from(state.standing == hawser_pooler::shares::Standing::Sure);
    let help =
        "1 while this pooler's lease in etcd lasts, 0 while it has none or it may have ended";
    gauges(encoder, "shared_lease_sure", help, None, state.map(|state| ([], is_sure(state))))?;
    let help = "Requests to etcd that failed";
    let failures = state.map(|state| ([], state.failures));
    counts(encoder, "shared_limit_request_failures", help, None, failures)?;
    let help = "Leases in etcd that ended, or may have, while this pooler held places by them";
    counts(encoder, "shared_lease_losses", help, None, state.map(|state| ([], state.losses)))
}

fn counters(encoder: &mut DescriptorEncoder<'_>, series: &BySeries) -> fmt::Result {
    type Read = fn(&Series) -> u64;
    let all: [(&str, &str, Option<Unit>, Read); 13] = [
        ("notifications_heard", "Notifications that came for clients", None, |s| s.heard),
        ("notifications", "Notifications sent to clients", None, |s| s.notified),
        (
            "settings_mismatches",
            "Server connections closed because their servers reported other settings than they \
             were given (the extension)",
            None,
            |s| s.settings_mismatches,
        ),
        (
            "loop_crossings",
            "Server connections moved to another event loop, for a client of that",
            None,
            |s| s.crossings,
        ),
        (
            "transactions_inside",
            "Transactions that servers have run for clients inside them",
            None,
            |s| s.inside,
        ),
        ("transactions", "Transactions ended", None, |s| s.totals.transactions),
        ("queries", "Queries ended", None, |s| s.totals.queries),
        ("received", "Bytes from clients", Some(Unit::Bytes), |s| s.totals.received),
        ("sent", "Bytes to clients", Some(Unit::Bytes), |s| s.totals.sent),
        ("assignments", "Times that a client was given a server connection", None, |s| {
            s.totals.assignments
        }),
        ("client_parses", "Statements that clients have prepared", None, |s| {
            s.totals.client_parses
        }),
        ("server_parses", "Statements prepared on servers", None, |s| s.totals.server_parses),
        ("binds", "Executions of prepared statements", None, |s| s.totals.binds),
    ];
    for (name, help, unit, read) in all {
        let values = series.iter().map(|(key, series)| (labels(key), read(series)));
        counts(encoder, name, help, unit.as_ref(), values)?;
    }
    let help = "Clients that came back from the server that served them itself, by reason";
    let values = series.iter().flat_map(|(key, series)| {
        let [database, user] = labels(key);
        let named = Return::ALL.iter().zip(series.returns);
        named.map(move |((_, name), count)| ([database, user, ("reason", *name)], count))
    });
    counts(encoder, "inside_returns", help, None, values)
}

fn histograms(encoder: &mut DescriptorEncoder<'_>, series: &BySeries) -> fmt::Result {
    type Read = fn(&Series) -> Classes;
    let all: [(&str, &str, Read); 3] = [
        ("wait", "Time that clients waited for a server connection", |s| s.wait),
        ("query", "Time of queries", |s| s.query),
        ("transaction", "Time of transactions", |s| s.transaction),
    ];
    for (name, help, read) in all {
        let unit = Some(&Unit::Seconds);
        let mut family = encoder.encode_descriptor(name, help, unit, MetricType::Histogram)?;
        for (key, series) in series {
            let Classes { counts, sum_us } = read(series);
            let bounds = HISTOGRAM_BOUNDS_US.iter().map(|bound| *bound as f64 / MICROSECONDS);
            let buckets: Vec<_> = bounds.chain([f64::INFINITY]).zip(counts).collect();
            let count = counts.iter().sum();
            let sum = sum_us as f64 / MICROSECONDS;
            let exemplars: Option<&HashMap<usize, _>> = None;
            family
                .encode_family(&labels(key))?
                .encode_histogram::<NoLabelSet>(sum, count, &buckets, exemplars)?;
        }
    }
    Ok(())
}

fn tallies(encoder: &mut DescriptorEncoder<'_>, pooler: &dyn Pooler) -> fmt::Result {
    let tally = pooler.tally();
    for (name, help, count) in [
        ("connections", "Connections of clients accepted", &tally.connections),
        (
            "connections_abandoned",
            "Connections of clients that ended before they were logged in",
            &tally.abandoned,
        ),
        ("logins", "Clients that have logged in", &tally.logins),
        (
            "authentication_failures",
            "Logins refused by a rule or for a wrong proof",
            &tally.authentication_failures,
        ),
        (
            "limit_refusals",
            "Logins refused because a limit on clients was reached",
            &tally.limit_refusals,
        ),
        (
            "logins_throttled",
            "Logins refused because others from the same address had failed",
            &tally.throttled,
        ),
        (
            "logins_displaced",
            "Logins that gave their place to another while they waited for their client",
            &tally.displaced,
        ),
        ("cancel_requests", "Cancel requests from clients", &tally.cancel_requests),
        (
            "cancel_requests_sent_on",
            "Cancel requests forwarded to another pooler of `peers`",
            &tally.cancel_requests_sent_on,
        ),
        (
            "accept_failures",
            "Times that no connection could be accepted, for lack of descriptors or memory",
            &tally.accept_failures,
        ),
    ] {
        counts(encoder, name, help, None, [([], count.get())])?;
    }
    forgotten(encoder, pooler)?;
    let errors = tally.errors.by_class();
    let help = "Errors of Hawser itself, not of a server, that clients were told, by the class of \
                their SQLSTATE";
    let by_class = errors.iter().map(|(class, count)| ([("class", class.as_str())], *count));
    counts(encoder, "errors", help, None, by_class)?;
    for (name, help, done, failed) in [
        (
            "tls_handshakes",
            "TLS handshakes with clients",
            &tally.tls_handshakes,
            &tally.tls_failures,
        ),
        (
            "server_logins",
            "Attempts to open server connections",
            &tally.server_logins,
            &tally.server_login_failures,
        ),
    ] {
        let outcomes =
            [([("outcome", "done")], done.get()), ([("outcome", "failed")], failed.get())];
        counts(encoder, name, help, None, outcomes)?;
    }
    let help = "Connections of clients that are logging in";
    gauges(encoder, "logging_in", help, None, [([], tally.logging_in())])
}

/// What had no room.
fn forgotten(encoder: &mut DescriptorEncoder<'_>, pooler: &dyn Pooler) -> fmt::Result {
    if let Some(lost) = pooler.tally().spans.get().and_then(Spans::lost) {
        let help = "Slow transactions that the collector of otlp_endpoint has not taken";
        counts(encoder, "spans_lost", help, None, [([], lost)])?;
    }
    if let Some((all, lost)) = audit::counts() {
        let help = "Statements for the audit";
        counts(encoder, "audit_statements", help, None, [([], all)])?;
        let help = "Statements that the file or syslog of the audit has not taken";
        counts(encoder, "audit_statements_lost", help, None, [([], lost)])?;
    }
    let help = "Addresses and users whose failed logins were forgotten to make room";
    let forgotten = pooler.limits().failed_logins.forgotten();
    counts(encoder, "failed_logins_forgotten", help, None, [([], forgotten)])
}

fn process(encoder: &mut DescriptorEncoder<'_>, pooler: &dyn Pooler) -> fmt::Result {
    encoder
        .encode_descriptor("build", "Version", None, MetricType::Info)?
        .encode_info(&[("version", env!("CARGO_PKG_VERSION"))])?;
    let figures = ProcessFigures::read();
    let config = pooler.config();
    for (name, help, value) in [
        ("ready", "1 if new clients are served", pooler.ready().is_ok().into()),
        ("paused", "1 if everything is paused", pooler.gates().all_paused().into()),
        ("event_loops", "Event loops", pooler.loops().count() as u64),
        (
            "fallbacks",
            "Fallbacks in use: what this host or a server does not support, see hawser status",
            pooler.fallbacks().len() as u64,
        ),
        ("max_clients", "Clients that there may be", config.reload.limits.max_client_conn.into()),
        ("process_open_fds", "Descriptors in use", figures.descriptors),
        ("process_max_fds", "Descriptors that the process may have", figures.descriptors_max),
    ] {
        gauges(encoder, name, help, None, [([], value)])?;
    }
    mptcp(encoder, pooler)?;
    bypass(encoder, pooler)?;
    super::links::encode(encoder, &pooler.links())?;
    if let Some(congestion) = pooler.congestion() {
        let help = "Decisions of the congestion setting auto about a destination, see the log";
        let decisions = congestion.decisions();
        let rows = decisions.map(|(name, count)| ([("decision", name)], count));
        counts(encoder, "congestion_decisions", help, None, rows)?;
    }
    // All pools share it.
    let statements =
        pooler.pools().first().map_or(0, |entry| entry.pool.statements.memory().bytes() as u64);
    for (name, help, value) in [
        ("process_private_memory", "Memory of this process alone", figures.private_bytes),
        ("process_resident_memory", "Memory in RAM", figures.resident_bytes),
        (
            "prepared_statements_memory",
            "Memory for texts and names of prepared statements, see prepared_statements_memory",
            statements,
        ),
    ] {
        gauges(encoder, name, help, Some(&Unit::Bytes), [([], value)])?;
    }
    let seconds = Some(&Unit::Seconds);
    let help = "Processor time, user and system";
    counts(encoder, "process_cpu", help, seconds, [([], figures.cpu_seconds)])?;
    let since_1970 =
        |at: SystemTime| at.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    let help = "When the process began to serve, since 1970";
    gauges(encoder, "process_start_time", help, seconds, [([], since_1970(pooler.started()))])?;
    let reload = pooler.last_reload();
    let help = "1 if the last reload, or the start, has put the configuration in force, 0 if it was refused";
    let success = u64::from(reload.refused.is_none());
    gauges(encoder, "last_reload_success", help, None, [([], success)])?;
    let help = "When the last reload, or the start, was, since the Unix epoch";
    gauges(encoder, "last_reload_time", help, seconds, [([], since_1970(reload.at))])?;
    let clients = pooler.predecessor().map_or(0, |predecessor| predecessor.clients as u64);
    let help = "Clients of the process from which this one has taken over";
    gauges(encoder, "predecessor_clients", help, None, [([], clients)])
}

/// Of the pooler's own connections; nothing where they are not opened to be MPTCP.
fn mptcp(encoder: &mut DescriptorEncoder<'_>, pooler: &dyn Pooler) -> fmt::Result {
    let Some(mptcp) = pooler.mptcp() else { return Ok(()) };
    let manages = matches!(mptcp.manager.standing(), Standing::Manages { .. });
    let help = "1 if the path manager of mptcp_manage runs";
    gauges(encoder, "mptcp_manager", help, None, [([], u64::from(manages))])?;
    let opened = mptcp.counts();
    let help = "Connections that were opened to be MPTCP, by what they became";
    let rows = [
        ([("side", "client"), ("transport", "mptcp")], opened.accepted),
        ([("side", "client"), ("transport", "tcp")], opened.accepted_plain),
        ([("side", "server"), ("transport", "mptcp")], opened.dialled),
        ([("side", "server"), ("transport", "tcp")], opened.dialled_plain),
    ];
    counts(encoder, "mptcp_connections", help, None, rows)
}

/// For all of this machine, including programs of `hawser bypass run`; nothing if it is not used.
fn bypass(encoder: &mut DescriptorEncoder<'_>, pooler: &dyn Pooler) -> fmt::Result {
    let Some(standing) = pooler.bypass().and_then(BypassUsage::standing) else { return Ok(()) };
    let help = "1 if local connections go past TCP, 0 after hawser bypass off";
    gauges(encoder, "bypass_on", help, None, [([], u64::from(standing.on))])?;
    let help = "Local connections that bypass TCP";
    gauges(encoder, "bypass_connections", help, None, [([], standing.pairs)])?;
    let counters = standing.counters;
    let help = "Messages of local connections, by what carried them and why, see docs/bypass.md";
    let rows = [
        ([("path", "bypass"), ("reason", "")], counters.redirected),
        ([("path", "tcp"), ("reason", "full")], counters.passed_full),
        ([("path", "tcp"), ("reason", "unread")], counters.passed_unread),
        ([("path", "tcp"), ("reason", "other")], counters.passed_other),
    ];
    counts(encoder, "bypass_messages", help, None, rows)?;
    let help = "Local connections that were not taken in: the program that connects waits in recv";
    counts(encoder, "bypass_not_taken_in", help, None, [([], counters.not_taken_in)])?;
    let help = "Bytes that went past TCP";
    counts(encoder, "bypass", help, Some(&Unit::Bytes), [([], counters.redirected_bytes)])
}
