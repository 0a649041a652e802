//! Opens backends for pools: what the event loops ask for, and what logins wait for.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use hawser_core::engine::{BackendSeed, ToLoop};
use hawser_core::ids::LoopId;
use hawser_core::pool::ServerParameters;
use hawser_core::wire::error::{ClientError, SqlState};
use tokio::sync::mpsc;
use tokio::time::timeout;

use super::{PoolEntry, Route, locked};
use crate::dial::talk::{Talk, TalkError};
use crate::dial::{DialError, Dialled};
use crate::limits::{AddressPermit, Full, ServerPermit};
use crate::loops::{Order, Pool};
use crate::service::Service;
use crate::socket::Conn;

/// The first pause after a failed opening; it doubles up to `server_login_retry`.
const RETRY_AFTER_FIRST: Duration = Duration::from_millis(50);
/// How long an opening waits for a place under the limits before it gives up for the time being.
const PLACE_WAIT: Duration = Duration::from_secs(2);
/// How long a pool is asked for a backend that it is to give up; asked again every
/// [`EVICTION_PERIOD`] as long as it is needed.
const GIVE_UP_WAIT: Duration = Duration::from_millis(100);
/// How often an opening looks for an idle backend to close in favour of its own.
const EVICTION_PERIOD: Duration = Duration::from_millis(20);
/// How long a login that found the pool busy waits before it asks the server itself.
const PARAMETERS_POLL: Duration = Duration::from_millis(100);

/// A place under all limits on server connections.
#[derive(Debug)]
pub struct Permit {
    _server: ServerPermit,
    _address: AddressPermit,
}

/// Does what the event loops ask for, until the process ends.
pub async fn take_orders(service: Arc<Service>, mut orders: mpsc::UnboundedReceiver<Order>) {
    while let Some(order) = orders.recv().await {
        let service = service.clone();
        match order {
            Order::Open { pool, home } => {
                tokio::spawn(async move { open_for(&service, pool, home).await });
            }
            Order::ExpectChange(pool) => super::enquiry::expect_change(&service, pool),
            Order::Cancel(request) => {
                tokio::spawn(async move { crate::cancel::send(&service, request).await });
            }
        }
    }
}

/// Opens a backend, which the pool counts as opening already, and tells loop `home` of it.
async fn open_for(service: &Arc<Service>, pool: Pool, home: LoopId) {
    let Some(entry) = service.pools.by_id(pool.id) else {
        let error = ClientError::fatal(SqlState::CONNECTION_FAILURE, "the pool has been removed");
        let retry_after = Duration::ZERO;
        let failed = ToLoop::OpenFailed { pool, error, fatal: true, retry_after };
        service.loops.send(home, failed);
        return;
    };
    let epoch = pool.epoch();
    match open(service, &entry).await {
        Ok((seed_socket, parameters, opened)) => {
            let parameters = keep_parameters(&entry, epoch, parameters);
            let recovered = entry.failures.swap(0, Ordering::Relaxed) > 0;
            if recovered {
                tracing::info!(
                    database = entry.key.database,
                    user = entry.key.user,
                    "server connections can be opened again"
                );
            }
            *locked(&entry.refusal) = None;
            pool.set_last_error(None);
            service.tally.server_logins.increment();
            let (process, key, server, permit) = opened;
            let seed = BackendSeed {
                id: service.pools.backend_id(),
                socket: seed_socket,
                pool,
                parameters,
                process,
                key,
                server,
                epoch,
                opened: service.loops.now(),
                permit: Box::new(permit),
            };
            service.loops.send(home, ToLoop::Opened(Box::new(seed)));
        }
        Err(error) => {
            service.tally.server_login_failures.increment();
            let fatal = error.is_fatal();
            let route = entry.route.load();
            // A limit that is reached says nothing of the server: the next attempt waits in its turn.
            let is_full = matches!(error, DialError::Full(_));
            let times = entry.failures.fetch_add(1, Ordering::Relaxed);
            let doublings = if is_full { 0 } else { times.min(16) };
            let pause = RETRY_AFTER_FIRST.saturating_mul(1 << doublings);
            if times == 0 {
                tracing::warn!(
                    database = entry.key.database, user = entry.key.user, %error,
                    "no server connection can be opened"
                );
            }
            let error = error.to_client_error();
            pool.set_last_error(Some(error.clone()));
            *locked(&entry.refusal) = fatal.then(|| error.clone());
            let retry_after = pause.min(route.target.retry_after_max);
            let failed = ToLoop::OpenFailed { pool, error, fatal, retry_after };
            service.loops.send(home, failed);
        }
    }
    entry.changed.notify_waiters();
}

fn keep_parameters(
    entry: &PoolEntry,
    epoch: u32,
    parameters: ServerParameters,
) -> Arc<ServerParameters> {
    if let Some(kept) = entry.pool.parameters().filter(|kept| **kept == parameters) {
        return kept; // one object for all backends
    }
    let parameters = Arc::new(parameters);
    // Those of an older epoch say nothing of new sessions.
    if entry.pool.epoch() == epoch {
        entry.pool.set_parameters(parameters.clone());
    }
    parameters
}

type Opened = (u32, Box<[u8]>, hawser_core::engine::ServerAddressId, Permit);

async fn open(
    service: &Arc<Service>,
    entry: &PoolEntry,
) -> Result<(Conn, ServerParameters, Opened), DialError> {
    let route = entry.route.load_full();
    let (mut dialled, server_permit) = dial(service, entry, &route).await?;
    if let Some(query) = &route.connect_query {
        match timeout(route.target.connect_timeout, dialled.talk.query(query)).await {
            Ok(Ok(_)) => {}
            Ok(Err(TalkError::Server(error))) => tracing::warn!(
                database = entry.key.database,
                error = error.message,
                "connect_query failed"
            ),
            Ok(Err(source)) => {
                return Err(DialError::Talk { server: "the server".to_owned(), source });
            }
            Err(_) => {
                let after = route.target.connect_timeout;
                return Err(DialError::Timeout { server: "connect_query".to_owned(), after });
            }
        }
    }
    let Dialled { talk, entered, server, place } = dialled;
    let broken = |what: &str| DialError::Talk {
        server: "the server".to_owned(),
        source: TalkError::Protocol(what.to_owned()),
    };
    let (stream, unread) = talk.into_stream();
    let (conn, early) =
        stream.into_conn().map_err(|error| broken(&format!("the connection was lost: {error}")))?;
    // Nothing may come between the first ReadyForQuery and the first query but notices of a
    // server that shuts down: such a connection is not worth having.
    if !unread.is_empty() || !early.is_empty() {
        return Err(broken("messages behind ReadyForQuery"));
    }
    let permit = Permit { _server: server_permit, _address: place };
    Ok((conn, entered.parameters, (entered.process, entered.key, server, permit)))
}

/// Dials under the limits: makes room by closing idle backends of other pools, or waits a little.
pub(super) async fn dial(
    service: &Arc<Service>,
    entry: &PoolEntry,
    route: &Route,
) -> Result<(Dialled, ServerPermit), DialError> {
    let deadline = tokio::time::Instant::now() + PLACE_WAIT;
    let limits = &service.limits;
    loop {
        let freed = limits.server_freed();
        let result = match limits.server(&entry.key.database, &entry.key.user, &route.bounds) {
            Ok(permit) => {
                let gate = |server: &_| limits.address(server, route.per_server);
                let dialled = service.dialler.dial(&route.target, &route.login, &gate).await;
                dialled.map(|dialled| (dialled, permit))
            }
            Err(full) => Err(DialError::Full(full)),
        };
        let full = match result {
            Err(DialError::Full(full)) => full,
            result => return result,
        };
        if tokio::time::Instant::now() >= deadline {
            return Err(DialError::Full(full));
        }
        if !evict(service, entry, &full) {
            ask_to_give_up(service, entry, &full);
            let _ = timeout(EVICTION_PERIOD, freed).await;
        }
    }
}

/// Closes one idle backend that stands in the way: of the pool that has most to spare, the one
/// that has been idle longest. Whether there was one.
fn evict(service: &Service, entry: &PoolEntry, full: &Full) -> bool {
    let now = service.loops.now();
    let candidates = in_the_way(service, entry, full);
    let spare = |other: &Arc<PoolEntry>| {
        let pool = other.pool.lock();
        (pool.waiting_count() == 0 && pool.idle_count() > 0).then(|| {
            (pool.idle_count().saturating_sub(pool.limits().min_size), pool.longest_idle(now))
        })
    };
    let victim = candidates
        .filter_map(|other| spare(&other).map(|spare| (spare, other)))
        .max_by_key(|(spare, _)| *spare);
    // What the control side asks servers by is there for clients, and comes after them.
    let Some((_, victim)) = victim else { return service.enquiries.close_one() };
    let mut left = 1;
    let oldest = victim.pool.lock().longest_idle(now).unwrap_or_default();
    super::upkeep::close_idle(service, &victim.pool, |_, idle| {
        let this = left > 0 && idle >= oldest;
        left -= u32::from(this);
        this
    }) > 0
}

/// Other pools under the same bound.
fn in_the_way(
    service: &Service,
    entry: &PoolEntry,
    full: &Full,
) -> impl Iterator<Item = Arc<PoolEntry>> {
    let is_under_it = |other: &PoolEntry| match full {
        Full::Total => true,
        Full::Database => other.key.database == entry.key.database,
        Full::User => other.key.user == entry.key.user,
        Full::Server(server) => other.route.load().target.servers.contains(server),
    };
    let others: Vec<_> = service
        .pools
        .all()
        .into_iter()
        .filter(|other| other.pool.id != entry.pool.id && is_under_it(other))
        .collect();
    others.into_iter()
}

/// No pool has an idle backend: the one that has most gives one up when it is next released, if
/// that brings the two nearer to each other. So pools that are all busy come to have about as many
/// each. More busy pools than there may be connections do not take turns: who has none waits until
/// another is idle.
fn ask_to_give_up(service: &Service, entry: &PoolEntry, full: &Full) {
    let now = service.loops.now();
    let own = {
        let pool = entry.pool.lock();
        let own = pool.total() - pool.opening_count();
        // Only for clients; the first of a pool waits in its login.
        if pool.waiting_count() == 0 && own > 0 {
            return;
        }
        own
    };
    let richest = in_the_way(service, entry, full)
        .map(|other| {
            let lent = other.pool.lock().lent_count();
            (lent, other)
        })
        .max_by_key(|(lent, _)| *lent);
    let Some((lent, other)) = richest else { return };
    if lent > own + 1 {
        other.pool.lock().give_up_one(now.after(GIVE_UP_WAIT));
    }
}

/// What the server says at connect, in the current epoch: waits for a backend to be opened if none
/// has been yet.
///
/// # Errors
/// What the client is told: the server's own refusal, or that there is no server.
pub async fn parameters(
    service: &Arc<Service>,
    entry: &Arc<PoolEntry>,
) -> Result<Arc<ServerParameters>, ClientError> {
    let wait = entry.pool.settings().query_wait_timeout;
    let learn = async {
        loop {
            let changed = entry.changed.notified();
            tokio::pin!(changed);
            changed.as_mut().enable();
            if let Some(parameters) = entry.pool.parameters() {
                return Ok(parameters);
            }
            let (begun, opening, busy) = {
                let now = service.loops.now();
                let mut pool = entry.pool.lock();
                let opening = pool.opening_count() > 0;
                let busy = pool.lent_count() + pool.idle_count() > 0;
                (!opening && pool.open_one(now), opening, busy)
            };
            if begun {
                *locked(&entry.refusal) = None;
                service.control.open(entry.pool.clone(), service.loops.least_loaded());
            } else if !opening && busy {
                // All backends are of an older epoch and in use: a connection just to ask.
                let epoch = entry.pool.epoch();
                let route = entry.route.load_full();
                if let Ok((dialled, _permit)) = dial(service, entry, &route).await {
                    let parameters = keep_parameters(entry, epoch, dialled.entered.parameters);
                    dialled.talk.terminate().await;
                    return Ok(parameters);
                }
            }
            let _ = timeout(PARAMETERS_POLL, changed).await;
            if entry.pool.parameters().is_none()
                && let Some(error) = entry.refusal()
            {
                return Err(error);
            }
        }
    };
    if wait.is_zero() {
        return learn.await;
    }
    match timeout(wait, learn).await {
        Ok(result) => result,
        Err(_) => Err(entry.pool.last_error().unwrap_or_else(|| {
            ClientError::fatal(SqlState::TOO_MANY_CONNECTIONS, "no server connection became free")
                .detail("query_wait_timeout has passed.")
        })),
    }
}

/// A connection on which the pool's server is asked something; it does not become a backend.
///
/// # Errors
/// What the client is told for whom it is asked.
pub async fn ask_line(
    service: &Arc<Service>,
    entry: &PoolEntry,
) -> Result<(Talk, Permit), ClientError> {
    let route = entry.route.load_full();
    let (dialled, server) =
        dial(service, entry, &route).await.map_err(|error| error.to_client_error())?;
    Ok((dialled.talk, Permit { _server: server, _address: dialled.place }))
}
