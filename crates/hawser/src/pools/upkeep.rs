//! Upkeep of pools, once a second: closes backends that are too old, too idle or too large, opens
//! `min_pool_size`, removes unused pools.
//!
//! # Limits  One pass looks at each idle backend once.

use std::sync::Arc;
use std::time::Duration;

use hawser_core::engine::{Backend, Socket, ToLoop};
use hawser_core::ids::BackendId;
use hawser_core::session::options::Replication;
use hawser_core::wire::build;
use hawser_core::wire::error::SqlState;

use super::spare::Spare;
use super::{PoolEntry, Wanted, locked};
use crate::config::ANY_DATABASE;
use crate::dial::Dialler;
use crate::loops::Pool;
use crate::phase::Phase;
use crate::process::private_memory;
use crate::service::Service;
use crate::socket::Conn;

/// Time between passes.
const PERIOD: Duration = Duration::from_secs(1);
/// How long a replication connection's own pool, which no other client asks for, is kept.
const FORGET_REPLICATION_AFTER: Duration = Duration::from_secs(5);
/// Passes between looks at certificate files.
const FILES_EVERY: u64 = 10;

/// Passes between sweeps of statements that no client has asked for meanwhile: they are kept for
/// one to two of these.
const STATEMENTS_EVERY: u64 = 15;

/// Keeps pools in order until the process ends.
pub async fn run(service: Arc<Service>) {
    let mut tick = tokio::time::interval(PERIOD);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut spare = Spare::default();
    for pass in 0u64.. {
        tick.tick().await;
        if service.phase() == Phase::Ending {
            return;
        }
        make_those_always_wanted(&service);
        let mut freed = 0;
        for entry in service.pools.all() {
            look_after(&service, &entry);
            entry.pool.statements.make_room();
            if pass.is_multiple_of(STATEMENTS_EVERY) {
                freed += entry.pool.statements.forget_idle();
            }
        }
        spare.give_back(pass, freed).await;
        service.enquiries.close_idle();
        if pass.is_multiple_of(FILES_EVERY) {
            refresh_certificates(&service).await;
        }
    }
}

/// Makes the pools that keep a minimum size without a client: those of databases with a name and a
/// user of their own.
fn make_those_always_wanted(service: &Service) {
    let (config, access) = (service.config.load_full(), service.access.load());
    for database in config.databases() {
        let (name, gates) = (&database.name, &service.gates);
        let Some(forced) = &database.forced_user else { continue };
        if name == ANY_DATABASE
            || config.resolve(database, &forced.name).min_pool_size == 0
            || gates.is_paused(name)
            || gates.is_disabled(name)
            || service.pools.exists(name, &forced.name, database.is_shared_by_users())
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
        let made = service.pools.get_or_create(&service.config, &config, database, &wanted);
        if let Ok(entry) = made {
            gates.pause_pool(name, || entry.pool.lock().pause()); // PAUSE may have come meanwhile
        }
    }
}

async fn refresh_certificates(service: &Arc<Service>) {
    let service = service.clone();
    let refresh = move || {
        let config = service.config.load();
        match service.acceptor.refresh(&config.reload.client_tls) {
            Ok(true) => tracing::info!("the certificate for clients has been read again"),
            Ok(false) => {}
            Err(error) => tracing::warn!(%error, "the changed certificate for clients is not used"),
        }
    };
    // A panic in there has been reported by the runtime.
    let _ = tokio::task::spawn_blocking(refresh).await;
}

fn look_after(service: &Arc<Service>, entry: &Arc<PoolEntry>) {
    let pool = &entry.pool;
    let now = service.loops.now();
    let settings = pool.settings();
    let epoch = pool.epoch();
    let route = entry.route.load();
    let mut spare = {
        let pool = pool.lock();
        pool.total().saturating_sub(pool.limits().min_size)
    };
    let bloated = match route.memory_max {
        Some(bytes) => bloated(&service.dialler, pool, bytes),
        None => Vec::new(),
    };
    close_idle(service, pool, |backend, idle| {
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

    let wants_min_size = entry.client_count() > 0 || entry.is_always_wanted(service);
    let serves = service.phase() == Phase::Serving && service.succession.serves();
    if wants_min_size && serves {
        let due = pool.lock().openings_for_min_size(now);
        for _ in 0..due {
            service.control.open(pool.clone(), service.loops.least_loaded());
        }
    }
    entry.forget_limit();
    super::lock_waits::look(service, entry);
    if let Some(after) = entry.forget_after(service)
        && !wants_min_size
    {
        service.pools.forget(entry, after);
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
    fn forget_after(&self, service: &Service) -> Option<Duration> {
        if self.key.replication.is_some() {
            return Some(FORGET_REPLICATION_AFTER);
        }
        let config = service.config.load();
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
    fn is_always_wanted(&self, service: &Service) -> bool {
        let config = service.config.load();
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

/// Begins a new epoch of a pool: idle backends are closed now, the others as they become free.
pub fn renew(service: &Service, entry: &PoolEntry) {
    entry.begin_epoch();
    close_idle(service, &entry.pool, |_, _| true);
}

/// Takes the idle backends for which `unwanted(backend, idle time)` holds out of the pool and closes
/// them. Returns how many.
pub fn close_idle(
    service: &Service,
    pool: &Pool,
    mut unwanted: impl FnMut(&Backend<Conn>, Duration) -> bool,
) -> usize {
    let now = service.loops.now();
    let taken = pool.lock().take_idle_if(now, |backend, idle| unwanted(backend, idle));
    let count = taken.len();
    for (home, mut backend) in taken {
        let place = backend.place();
        let socket = backend.socket_mut();
        // An idle backend's socket has room for five bytes; if not, the server sees the connection
        // end.
        let _ = socket.write(&build::TERMINATE);
        let _ = socket.flush();
        socket.shutdown();
        // The loop forgets the place; epoll forgets the socket when it is closed.
        service.loops.send(home, ToLoop::Departed(place));
        drop(backend);
    }
    count
}
