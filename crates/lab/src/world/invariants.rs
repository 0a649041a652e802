//! What must hold at each step, whatever has happened.
//!
//! # Invariants
//! - a backend is in one place: with one client, in one table, in one pool, or in one message
//! - what a pool counts is what there is: lent, idle, being opened, waiting
//! - no client waits while a backend of its pool is idle, on whatever loop
//! - no client is overtaken by more later ones than the pool's bound; on another loop, later means
//!   more than `SAME_MOMENT` after
//! - an idle backend is in no transaction, has no unanswered message, and nothing left of any
//!   session
//! - a backend at rest, also one that a client has, has the settings that its books say
//! - what is notified is kept only from who must not have it yet
//! - what is kept for a connection stays within the engine's limits

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use hawser_pooler::ids::{BackendId, ClientId, LoopId};
use hawser_pooler::lending::{SAME_MOMENT, UNEVEN};
use hawser_pooler::relay::backend::PoolRef;
use hawser_pooler::relay::client_info::ClientState;
use hawser_pooler::relay::message::{BackendState, Listed, Page, PageRequest};
use hawser_pooler::relay::{Backend, Engine, ToLoop, limits};
use hawser_pooler::session::settings::Settings;
use hawser_pooler::time::Time;

use super::host::{Outside, SimHost, Stream, moment};
use super::servers::Servers;
use crate::model::backend::ModelBackend;
use crate::model::session::Block;
use crate::model::settings::reported;

/// What may be kept of the unsent: reading stops above the mark, after one more read.
const KEPT_OUT_BYTES_MAX: usize = limits::OUTPUT_HIGH_BYTES + 2 * limits::READ_BYTES;
/// What may be kept of what cannot be passed on yet.
const KEPT_IN_BYTES_MAX: usize = limits::READ_BYTES;

/// Settings that a backend at rest has as its books say, those aside that a server reports.
const SESSION_SETTINGS: [&str; 7] = [
    "role",
    "search_path",
    "statement_timeout",
    "lock_timeout",
    "work_mem",
    "enable_seqscan",
    "default_transaction_read_only",
];

/// Those who wait in a pool.
#[derive(Default)]
pub(super) struct Queue(Vec<Waiting>);

/// One who waits.
struct Waiting {
    place: Place,
    /// How many that came later were served first.
    overtaken: u32,
    /// How many may have been, as the pool has said at any look.
    most: u32,
}

/// A client in a queue, and since when: one that comes again is another.
type Place = (ClientId, Time);

/// The state of all loops at a moment.
pub(super) struct Census {
    clients: BTreeMap<ClientId, (ClientState, Option<BackendId>)>,
    /// Backends with clients, and those being tidied.
    lent: BTreeMap<BackendId, Lent>,
}

/// A backend that is with a client, or being tidied.
#[derive(Debug)]
struct Lent {
    client: Option<ClientId>,
    /// The user of its pool, which is the pool's own.
    user: String,
}

impl fmt::Display for Census {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (client, (state, backend)) in &self.clients {
            writeln!(f, "{client}: {state:?}, {backend:?}")?;
        }
        for (backend, lent) in &self.lent {
            writeln!(f, "{backend}: with {:?}", lent.client)?;
        }
        Ok(())
    }
}

/// What one loop holds.
fn connections(engine: &mut Engine<Stream>, host: &mut SimHost<'_>) -> Page {
    let now = moment(host.outside.now);
    let mut all = Page::default();
    for listed in [Listed::Clients, Listed::Backends] {
        let mut from = Some(0);
        while let Some(next) = from {
            let request = PageRequest { listed, addresses: false, from: next };
            let (reply, page) = std::sync::mpsc::channel();
            let reply = Box::new(move |page| drop(reply.send(page)));
            engine.on_message(host, ToLoop::Page(request, reply), now);
            let page: Page = page.try_recv().unwrap_or_default();
            all.clients.extend(page.clients);
            all.backends.extend(page.backends);
            from = page.next;
        }
    }
    all
}

impl Census {
    /// Counts what all loops hold.
    ///
    /// # Errors
    /// Where a backend is in two places, or a buffer above its limit.
    pub(super) fn take(
        engines: &mut [Engine<Stream>],
        outside: &mut Outside,
    ) -> Result<Self, String> {
        let mut census = Self { clients: BTreeMap::new(), lent: BTreeMap::new() };
        for (id, engine) in (0u16..).zip(engines) {
            let mut host = SimHost { id: LoopId(id), outside: &mut *outside };
            let found = connections(engine, &mut host);
            if let Some(client) = engine.keeps_notifications() {
                return Err(format!("{client} is not given its notifications, and could be"));
            }
            if let Some(client) = engine.forgets_a_message() {
                return Err(format!("{client} is idle, and its next message is there"));
            }
            for client in found.clients {
                if client.kept_out > KEPT_OUT_BYTES_MAX || client.kept_in > KEPT_IN_BYTES_MAX {
                    return Err(format!(
                        "{}: {} bytes in, {} out are kept",
                        client.id, client.kept_in, client.kept_out
                    ));
                }
                census.clients.insert(client.id, (client.state, client.backend));
            }
            for backend in found.backends {
                let client = backend.client;
                if backend.kept_out > KEPT_OUT_BYTES_MAX || backend.kept_in > KEPT_IN_BYTES_MAX {
                    return Err(format!(
                        "{}: {} bytes in, {} out are kept",
                        backend.id, backend.kept_in, backend.kept_out
                    ));
                }
                if backend.state == BackendState::Listening {
                    continue; // no pool counts it
                }
                if (backend.state == BackendState::Active) != client.is_some() {
                    return Err(format!("{} is {:?} with {client:?}", backend.id, backend.state));
                }
                let lent = Lent { client, user: backend.user };
                if let Some(other) = census.lent.insert(backend.id, lent) {
                    return Err(format!(
                        "{} is with {client:?} and {:?}",
                        backend.id, other.client
                    ));
                }
            }
        }
        Ok(census)
    }

    fn is_waiting(&self, client: ClientId) -> bool {
        self.clients.get(&client).is_some_and(|(state, _)| *state == ClientState::Waiting)
    }

    /// Compares a pool's books with what there is.
    ///
    /// # Errors
    /// What does not agree.
    pub(super) fn audit(
        &self,
        pool: &PoolRef<Stream>,
        outside: &Outside,
        arrived: &Arrived<'_>,
    ) -> Result<(), String> {
        let mut opening = outside
            .openings
            .iter()
            .filter(|opening| !opening.listens && Arc::ptr_eq(&opening.pool, pool))
            .count();
        let mut lent: BTreeSet<BackendId> = BTreeSet::new();
        let mut granted: BTreeSet<ClientId> = BTreeSet::new();
        for message in messages(outside, arrived) {
            match message {
                ToLoop::Opened(seed) if Arc::ptr_eq(&seed.pool, pool) => opening += 1,
                ToLoop::OpenFailed { pool: of, .. } if Arc::ptr_eq(of, pool) => opening += 1,
                ToLoop::Lend { client, backend } if belongs(backend, pool) => {
                    granted.insert(*client);
                    if self.lent.contains_key(&backend.id()) || !lent.insert(backend.id()) {
                        return Err(format!("{} is lent twice", backend.id()));
                    }
                }
                _ => {}
            }
        }
        let on_the_way = lent.len();
        lent.extend(self.lent.iter().filter(|(_, l)| l.user == pool.user).map(|(id, _)| *id));
        let guard = pool.lock();
        let books = (guard.lent_count(), guard.opening_count());
        let found = (count(lent.len()), count(opening));
        if books != found {
            return Err(format!(
                "the pool counts {} lent and {} opening, but there are {} ({on_the_way} of them on \
                 their way) and {}",
                books.0, books.1, found.0, found.1
            ));
        }
        for (_, idle) in guard.idle_backends() {
            if lent.contains(&idle.id()) {
                return Err(format!("{} is idle and lent", idle.id()));
            }
        }
        let most = guard.limits().size
            + guard.limits().reserve_size
            + guard.limits().idle_transaction_reserve
            + guard.limits().lock_wait_reserve;
        if guard.total() > most {
            return Err(format!("{} backends, {most} allowed", guard.total()));
        }
        for waiter in guard.waiters() {
            if !self.is_waiting(waiter.client) {
                return Err(format!("{} is in the queue and does not wait", waiter.client));
            }
        }
        Ok(())
    }

    /// Every client that waits is in a queue, or a backend is on its way to it.
    ///
    /// # Errors
    /// Who is forgotten.
    pub(super) fn check_no_waiter_is_forgotten(
        &self,
        pools: &[PoolRef<Stream>],
        outside: &Outside,
        arrived: &Arrived<'_>,
    ) -> Result<(), String> {
        let mut provided: BTreeSet<ClientId> = BTreeSet::new();
        for pool in pools {
            provided.extend(pool.lock().waiters().map(|waiter| waiter.client));
        }
        for message in messages(outside, arrived) {
            if let ToLoop::Lend { client, .. } = message {
                provided.insert(*client);
            }
        }
        for (client, (state, _)) in &self.clients {
            if *state == ClientState::Waiting && !provided.contains(client) {
                return Err(format!("{client} waits and nobody knows"));
            }
        }
        Ok(())
    }

    /// Records which clients were served since the last look, and which ones they overtook.
    ///
    /// # Errors
    /// Who was overtaken too often.
    pub(super) fn watch_queue(
        &self,
        queue: &mut Queue,
        pool: &PoolRef<Stream>,
        outside: &Outside,
        arrived: &Arrived<'_>,
    ) -> Result<(), String> {
        let guard = pool.lock();
        let waiting = guard.waiters().map(|waiter| {
            let bound = guard.overtaking_bound(waiter.client.home);
            ((waiter.client, waiter.since), bound)
        });
        let waiting: Vec<(Place, u32)> = waiting.collect();
        drop(guard);
        let still: BTreeMap<Place, u32> = waiting.iter().copied().collect();
        let under_way = |client: ClientId| {
            messages(outside, arrived)
                .any(|message| matches!(message, ToLoop::Lend { client: to, .. } if *to == client))
        };
        let mut left: Vec<Place> = Vec::new();
        for at in (0..queue.0.len()).rev() {
            let Waiting { place, overtaken, most } = &mut queue.0[at];
            let (client, since) = &*place;
            if let Some(bound) = still.get(place) {
                *most = (*most).max(*bound);
                let later = |(other, came): &&Place| {
                    other.home == client.home || *came > since.after(SAME_MOMENT)
                };
                *overtaken += count(left.iter().filter(later).count());
                // (Within the step its loop may have had a backend more beyond its share.)
                if *overtaken > *most + UNEVEN {
                    return Err(format!("{client} was overtaken by {overtaken} later ones"));
                }
            } else if under_way(*client)
                || self.clients.get(client).is_some_and(|(_, backend)| backend.is_some())
            {
                left.push(*place);
            }
        }
        queue.0.retain(|one| still.contains_key(&one.place));
        let known: BTreeSet<Place> = queue.0.iter().map(|one| one.place).collect();
        let new = waiting.into_iter().filter(|(place, _)| !known.contains(place));
        queue.0.extend(new.map(|(place, most)| Waiting { place, overtaken: 0, most }));
        Ok(())
    }
}

/// Messages that have arrived at a loop, which has not looked at them yet.
type Arrived<'a> = [&'a ToLoop<Stream>];

fn messages<'a>(
    outside: &'a Outside,
    arrived: &'a Arrived<'_>,
) -> impl Iterator<Item = &'a ToLoop<Stream>> {
    outside.mailbox.iter().map(|(_, _, message)| message).chain(arrived.iter().copied())
}

fn count(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

fn belongs(backend: &Backend<Stream>, pool: &PoolRef<Stream>) -> bool {
    backend.row(BackendState::Active, None).user == pool.user
}

/// What holds for a pool at each single step.
///
/// # Errors
/// Who waits while a backend is idle, or what an idle backend was left with.
pub(super) fn glance(pool: &PoolRef<Stream>, servers: &Servers) -> Result<(), String> {
    let guard = pool.lock();
    if guard.neglects_a_waiter() {
        return Err(format!(
            "{} wait while {} backends are idle",
            guard.waiting_count(),
            guard.idle_count()
        ));
    }
    for (_, idle) in guard.idle_backends() {
        let Some(endpoint) = servers.endpoints.get(&idle.id()) else { continue };
        if endpoint.backend.ending().is_some() {
            continue;
        }
        let model = &endpoint.backend;
        let id = idle.id();
        if model.block() != Block::Idle || model.is_waiting() || model.is_copying_in() {
            return Err(format!("{id} was given back in the middle of something"));
        }
        if model.skips_to_sync() {
            return Err(format!("{id} was given back in a pipeline that has failed"));
        }
    }
    Ok(())
}

/// What an idle backend must not have left of any session.
///
/// # Errors
/// What it has.
pub(super) fn is_clean(pool: &PoolRef<Stream>, servers: &Servers) -> Result<(), String> {
    let locks = servers.model.locks();
    let listeners = servers.model.listeners();
    for (_, idle) in pool.lock().idle_backends() {
        let Some(endpoint) = servers.endpoints.get(&idle.id()) else { continue };
        let (id, model) = (idle.id(), &endpoint.backend);
        if model.ending().is_some() {
            continue;
        }
        let temporary = model.temporary_tables();
        let portals = model.portals();
        let unknown =
            |name: &String| name.starts_with("ps") && !idle.has_statement_of_last_client(name);
        let own = model.statements().into_iter().find(unknown);
        if !temporary.is_empty() || !portals.is_empty() || own.is_some() {
            return Err(format!("{id} is idle with {temporary:?} {portals:?} {own:?}"));
        }
        if locks.iter().any(|(_, holder)| Some(*holder) == model.process())
            || listeners.iter().any(|(_, listener)| Some(*listener) == model.process())
        {
            return Err(format!("{id} is idle with locks or channels"));
        }
        are_in_the_books(id, model, idle.applied())?;
    }
    Ok(())
}

/// A backend at rest has the settings that its books say it has: what they say is what the next binding
/// reckons with.
///
/// # Errors
/// Which it has otherwise.
pub(super) fn are_in_the_books(
    id: BackendId,
    model: &ModelBackend,
    books: &Settings,
) -> Result<(), String> {
    let known = SESSION_SETTINGS.iter().copied().chain(reported()).map(|name| {
        let known = books.get(name.as_bytes()).map(|value| String::from_utf8_lossy(value).into());
        (name, known.or_else(|| model.own_setting(name)))
    });
    let custom = ["my.user_id", "my.tenant", "app.x"].map(|name| {
        let known = books.get(name.as_bytes()).unwrap_or_default();
        (name, Some(String::from_utf8_lossy(known).into_owned()))
    });
    for (name, known) in known.chain(custom) {
        let there = model.setting(name);
        if there.is_some() && known.is_some() && there != known {
            return Err(format!("{id} is at rest with {name} = {there:?}, known as {known:?}"));
        }
    }
    Ok(())
}
