//! Upkeep of pools, once a second: closes backends that are too old, too idle or too large, opens
//! `min_pool_size`, removes unused pools.
//!
//! # Limits  One pass looks at each idle backend once.

use std::sync::Arc;
use std::time::Duration;

use hawser_pooler::ids::BackendId;
use hawser_pooler::session::options::Replication;
use hawser_pooler::wire::error::SqlState;

use super::enquiry::Enquiries;
use super::lines::Lines;
use super::spare::Spare;
use super::{PoolEntry, Pools, Wanted, idle, lock_waits, locked};
use crate::config::ANY_DATABASE;
use crate::dial::Dialler;
use crate::loops::Pool;
use crate::phase::Phase;
use crate::process::private_memory;
use crate::shared::Shared;
use crate::takeover::Succession;
use crate::tls::accept::Acceptor;

/// Time between passes.
const PERIOD: Duration = Duration::from_secs(1);
/// How long a replication connection's own pool, which no other client asks for, is kept.
const FORGET_REPLICATION_AFTER: Duration = Duration::from_secs(5);
/// Passes between looks at certificate files.
const FILES_EVERY: u64 = 10;

/// Passes between sweeps of statements that no client has asked for meanwhile: they are kept for
/// one to two of these.
const STATEMENTS_EVERY: u64 = 15;

/// What keeps pools in order.
pub struct Upkeep {
    /// The configuration, and the loops.
    pub shared: Arc<Shared>,
    /// Those to keep in order.
    pub pools: Arc<Pools>,
    /// Counts lock waits.
    pub enquiries: Arc<Enquiries>,
    /// The control side's own lines.
    pub lines: Arc<Lines>,
    /// Knows which servers are on this host.
    pub dialler: Arc<Dialler>,
    /// Its certificate is looked at.
    pub acceptor: Arc<Acceptor>,
    /// Whether clients come here.
    pub succession: Arc<Succession>,
}

/// Keeps pools in order until the process ends.
pub async fn run(upkeep: Upkeep) {
    let Upkeep { shared, pools, .. } = &upkeep;
    let mut tick = tokio::time::interval(PERIOD);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut spare = Spare::default();
    for pass in 0u64.. {
        tick.tick().await;
        if shared.phase() == Phase::Ending {
            return;
        }
        make_those_always_wanted(shared, pools);
        let mut freed = 0;
        for entry in pools.all() {
            look_after(&upkeep, &entry);
            entry.pool.statements.make_room();
            if pass.is_multiple_of(STATEMENTS_EVERY) {
                freed += entry.pool.statements.forget_idle();
            }
        }
        spare.give_back(pass, freed).await;
        upkeep.lines.close_idle();
        if pass.is_multiple_of(FILES_EVERY) {
            refresh_certificates(shared, &upkeep.acceptor).await;
        }
    }
}

/// Makes the pools that keep a minimum size without a client: those of databases with a name and a
/// user of their own.
fn make_those_always_wanted(shared: &Shared, pools: &Pools) {
    let (config, access) = (shared.config.load_full(), shared.access.load());
    for database in config.databases() {
        let (name, gates) = (&database.name, &shared.gates);
        let Some(forced) = &database.forced_user else { continue };
        if name == ANY_DATABASE
            || config.resolve(database, &forced.name).pool.min_pool_size == 0
            || gates.is_paused(name)
            || gates.is_disabled(name)
            || pools.exists(name, &forced.name, database.is_shared_by_users())
        {
            continue;
        }
        // Loading the files has refused unusable passwords.
        let Ok(credentials) = access.credentials_of(forced, name) else { continue };
        let wanted = Wanted {
            database: name,
            user: &forced.name,
            connect_only: &[],
            replication: Replication::None,
            credentials,
        };
        // Only settings that a client asks for are refused.
        let made = pools.get_or_create(&shared.config, &config, database, &wanted);
        if let Ok(entry) = made {
            gates.pause_pool(name, || entry.pool.lock().pause()); // PAUSE may have come meanwhile
        }
    }
}

async fn refresh_certificates(shared: &Arc<Shared>, acceptor: &Arc<Acceptor>) {
    let (shared, acceptor) = (shared.clone(), acceptor.clone());
    let refresh = move || {
        let config = shared.config.load();
        match acceptor.refresh(&config.reload.client_tls) {
            Ok(true) => tracing::info!("the certificate for clients has been read again"),
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, "the changed certificate for clients is not used"),
        }
    };
    // A panic in there has been reported by the runtime.
    let _ = tokio::task::spawn_blocking(refresh).await;
}

fn look_after(upkeep: &Upkeep, entry: &Arc<PoolEntry>) {
    let Upkeep { shared, pools, .. } = upkeep;
    let pool = &entry.pool;
    let now = shared.loops.now();
    let settings = pool.settings();
    let epoch = pool.epoch();
    let route = entry.route.load();
    let mut spare = {
        let pool = pool.lock();
        pool.total().saturating_sub(pool.limits().min_size)
    };
    let bloated = match route.memory_max {
        Some(bytes) => bloated(&upkeep.dialler, pool, bytes),
        None => Vec::new(),
    };
    idle::close_idle(&shared.loops, pool, |backend, idle| {
        let stale = backend.epoch() != epoch
            || (!settings.server_lifetime.is_zero()
                && now.since(backend.opened()) >= settings.server_lifetime)
            || bloated.contains(&backend.id());
        let unneeded = !settings.server_idle_timeout.is_zero()
            && idle >= settings.server_idle_timeout
            && spare > 0;
        spare -= u32::from(unneeded && !stale);
        stale || unneeded
    });

    let wants_min_size = entry.client_count() > 0 || entry.is_always_wanted(shared);
    let serves = shared.phase() == Phase::Serving && upkeep.succession.serves();
    if wants_min_size && serves {
        let due = pool.lock().openings_for_min_size(now);
        shared.open(pool, due);
    }
    entry.forget_limit();
    lock_waits::look(shared, &upkeep.enquiries, entry);
    if let Some(after) = entry.forget_after(shared)
        && !wants_min_size
    {
        pools.forget(entry, after);
    }
}

impl PoolEntry {
    /// Forgets that a limit kept a server connection from being opened, once no client waits for
    /// one: those that waited were served by another, and nothing else shows that the limit is no
    /// longer reached.
    fn forget_limit(&self) {
        if !self.pool.anybody_waits() && self.waiting_at_login().0 == 0 {
            self.pool.forget_last_error_if(|error| {
                error.code == SqlState::TOO_MANY_CONNECTIONS && !error.of_server
            });
        }
    }

    /// How long it is kept, with its counters, without clients and server connections.
    fn forget_after(&self, shared: &Shared) -> Option<Duration> {
        if self.key.replication.is_some() {
            return Some(FORGET_REPLICATION_AFTER);
        }
        let config = shared.config.load();
        let servers = &config.reload.servers;
        let own = servers.pool_idle_timeout.get();
        match config.database(&self.key.database) {
            Some(database) if database.is_any() => {
                own.into_iter().chain(servers.autodb_idle_timeout.get()).min()
            }
            _ => own,
        }
    }

    /// Whether it keeps its minimum size without a client: with a forced user it can be opened by
    /// itself.
    fn is_always_wanted(&self, shared: &Shared) -> bool {
        let config = shared.config.load();
        self.key.replication.is_none()
            && self.pool.settings().limits.min_size > 0
            && config.database(&self.key.database).is_some_and(|database| {
                database.forced_user.is_some() && database.is_shared_by_users() == self.key.shared
            })
            && locked(&self.refusal).is_none()
    }
}

/// Idle backends on this host whose private memory exceeds `bytes`.
fn bloated(dialler: &Dialler, pool: &Pool, bytes: u64) -> Vec<BackendId> {
    let idle: Vec<_> = pool
        .lock()
        .idle_backends()
        .map(|(_, backend)| (backend.id(), backend.server(), backend.process()))
        .collect();
    // Read outside of the lock: it is a system call.
    let is_local = |server| dialler.place(server).is_some_and(|place| place.configured.is_local());
    idle.into_iter()
        .filter(|(_, server, process)| {
            is_local(*server) && private_memory(*process).is_some_and(|size| size > bytes)
        })
        .map(|(id, _, _)| id)
        .collect()
}
