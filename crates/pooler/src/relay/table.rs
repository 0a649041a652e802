//! The engine's tables: clients, backends that it watches, pools that its clients work with.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::sync::Arc;

use crate::hash::{IdHasher, Keyed};
use crate::ids::{BackendId, ClientId, LoopId, PoolId, Slot};
use crate::lending::{LoopStats, PoolSettings};
use crate::parts::identity::process_ids::{OwnProcessIds, ProcessIds};
use crate::parts::listen::Board;
use crate::parts::listen::listener::{Listener, PoolHub};
use crate::parts::rules::RuleSet;
use crate::queries::table::Queries;
use crate::relay::backend::{Backend, PoolRef};
use crate::relay::bulk_orders::BulkOrders;
use crate::relay::client::{Client, ClientSession};
use crate::relay::client_info::ClientState;
use crate::relay::inside::Inside;
use crate::relay::limits;
use crate::relay::pending_bytes::Spare;
use crate::relay::socket::Socket;
use crate::relay::succession::Departure;
use crate::relay::timers::Wheel;
use crate::relay::unread_input::Again;
use crate::relay::work::WorkQueue;
use crate::session::part::PartSet;
use crate::session::scan::KnownTexts;
use crate::session::settings::{Mark, Settings};
use crate::wire::frame::{self, Framed};

/// How many entries a table allocates at once. Entries never move, so a table wastes at most one
/// chunk, where a `Vec` would waste half of itself.
const CHUNK: usize = 64;

/// Adjacent entries. Generations are kept apart from the values, whose alignment would add four
/// bytes to each.
#[derive(Debug)]
struct Chunk<T> {
    generations: [u32; CHUNK],
    values: [Option<T>; CHUNK],
}

/// A table with stable places. A reused place has another generation.
#[derive(Debug)]
pub(crate) struct Table<T> {
    chunks: Vec<Box<Chunk<T>>>,
    free: Vec<u32>,
    len: usize,
}

impl<T> Table<T> {
    pub(crate) fn new() -> Self {
        Self { chunks: Vec::new(), free: Vec::new(), len: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Takes a place for the value of `make`, which gets the place.
    pub(crate) fn insert_with(&mut self, make: impl FnOnce(Slot) -> T) -> Slot {
        let index = match self.free.pop() {
            Some(index) => index,
            None => {
                let first = u32::try_from(self.chunks.len() * CHUNK).expect("fewer than 2^32");
                self.chunks.push(Box::new(Chunk {
                    generations: [0; CHUNK],
                    values: std::array::from_fn(|_| None),
                }));
                self.free.extend((first + 1..first + CHUNK as u32).rev());
                first
            }
        };
        let chunk = &mut self.chunks[index as usize / CHUNK];
        let within = index as usize % CHUNK;
        let slot = Slot { index, generation: chunk.generations[within] };
        chunk.values[within] = Some(make(slot));
        self.len += 1;
        slot
    }

    #[inline]
    pub(crate) fn get(&self, slot: Slot) -> Option<&T> {
        let chunk = self.chunks.get(slot.index as usize / CHUNK)?;
        let within = slot.index as usize % CHUNK;
        if chunk.generations[within] == slot.generation {
            chunk.values[within].as_ref()
        } else {
            None
        }
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, slot: Slot) -> Option<&mut T> {
        let chunk = self.chunks.get_mut(slot.index as usize / CHUNK)?;
        let within = slot.index as usize % CHUNK;
        if chunk.generations[within] == slot.generation {
            chunk.values[within].as_mut()
        } else {
            None
        }
    }

    /// The slot of the entry at this index.
    pub(crate) fn at(&self, index: u32) -> Option<Slot> {
        let chunk = self.chunks.get(index as usize / CHUNK)?;
        let within = index as usize % CHUNK;
        chunk.values[within].as_ref().map(|_| Slot { index, generation: chunk.generations[within] })
    }

    pub(crate) fn remove(&mut self, slot: Slot) -> Option<T> {
        let chunk = self.chunks.get_mut(slot.index as usize / CHUNK)?;
        let within = slot.index as usize % CHUNK;
        if chunk.generations[within] != slot.generation {
            return None;
        }
        let value = chunk.values[within].take()?;
        // Epoll tokens carry 31 bits of it.
        chunk.generations[within] = (slot.generation + 1) & 0x7fff_ffff;
        self.free.push(slot.index);
        self.len -= 1;
        Some(value)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Slot, &T)> {
        self.chunks.iter().enumerate().flat_map(|(at, chunk)| {
            let places = chunk.generations.iter().zip(&chunk.values).enumerate();
            places.filter_map(move |(within, (&generation, value))| {
                let index = u32::try_from(at * CHUNK + within).ok()?;
                Some((Slot { index, generation }, value.as_ref()?))
            })
        })
    }

    /// The entries at these indexes.
    pub(crate) fn range(&self, places: Range<u32>) -> impl Iterator<Item = (Slot, &T)> {
        places.filter_map(|index| {
            let slot = self.at(index)?;
            Some((slot, self.get(slot)?))
        })
    }

    /// Every index is below this.
    pub(crate) fn end(&self) -> u32 {
        u32::try_from(self.chunks.len() * CHUNK).unwrap_or(u32::MAX)
    }

    pub(crate) fn slots(&self) -> Vec<Slot> {
        self.iter().map(|(slot, _)| slot).collect()
    }
}

/// Where a backend is that this loop watches.
pub(crate) enum Holder<S: Socket> {
    /// With a client of this loop.
    Client(Slot),
    /// Idle, in its pool.
    Pool,
    /// With no client: see [`crate::relay::backend::Tidying`].
    Engine(Box<Backend<S>>),
    /// It listens for clients: see [`crate::parts::listen::listener`].
    Listener(Box<Listener<S>>),
}

/// A backend that this loop watches.
pub(crate) struct Resident<S: Socket> {
    pub(crate) id: BackendId,
    pub(crate) pool: u32,
    pub(crate) holder: Holder<S>,
}

/// A pool as this loop sees it.
pub(crate) struct PoolView<S: Socket> {
    pub(crate) pool: PoolRef<S>,
    /// Settings when the loop last checked: at most one tick old.
    pub(crate) settings: Arc<PoolSettings>,
    /// One of its limits applies while a client has a backend or sits idle.
    pub(crate) limits_clients: bool,
    /// Its clients may go inside.
    pub(crate) goes_inside: bool,
    wanted: Wanted,
}

/// The settings desired by the clients of a pool that have come for a server connection here.
enum Wanted {
    Nothing,
    /// All desire the same.
    One(Mark),
    Different,
}

impl<S: Socket> PoolView<S> {
    fn new(pool: PoolRef<S>) -> Self {
        let settings = pool.settings();
        let limits_clients = limits_clients(&settings);
        Self { pool, settings, limits_clients, goes_inside: false, wanted: Wanted::Nothing }
    }

    /// The mark of the settings that a client desires.
    #[inline]
    pub(crate) fn wanted_by(&self, session: &ClientSession) -> Mark {
        self.pool.mark_of(session.desired.mark(), session.basis)
    }

    /// A client that desires these settings comes for a server connection. Returns whether others
    /// that have come here desired different ones: only then does it matter which statements a
    /// server connection has.
    #[inline]
    pub(crate) fn want_different(&mut self, settings: Mark) -> bool {
        match self.wanted {
            Wanted::One(known) if known == settings => false,
            Wanted::Different => true,
            Wanted::Nothing => {
                self.wanted = Wanted::One(settings);
                false
            }
            Wanted::One(_) => {
                self.wanted = Wanted::Different;
                true
            }
        }
    }

    /// Checks whether the configuration has changed.
    pub(crate) fn look(&mut self) {
        let settings = self.pool.settings();
        if !Arc::ptr_eq(&settings, &self.settings) {
            self.limits_clients = limits_clients(&settings);
            self.settings = settings;
        }
        self.goes_inside = self.pool.goes_inside()
            && !self.limits_clients
            && self.settings.log_min_duration.is_zero();
    }

    /// Why the configuration does not allow a backend any more, if it does not.
    pub(crate) fn outdated(&self, backend: &Backend<S>) -> Option<&'static str> {
        if backend.epoch() != self.pool.epoch() {
            return Some("the server or its roles have changed");
        }
        let left = self.pool.left().has(backend.server(), backend.opened());
        left.then_some("the server is no longer what the database asks for")
    }
}

/// Whether a limit applies while a client has a backend or sits idle.
fn limits_clients(settings: &PoolSettings) -> bool {
    !settings.client_idle_timeout.is_zero()
        || !settings.idle_transaction_timeout.is_zero()
        || !settings.pin_timeout.is_zero()
        || !settings.transaction_timeout.is_zero()
        || !settings.query_timeout.is_zero()
}

/// One event loop's state.
pub struct Engine<S: Socket> {
    pub(crate) id: LoopId,
    pub(crate) loops: u16,
    pub(crate) process_ids: ProcessIds,
    pub(crate) hash_key: Keyed,
    pub(crate) clients: Table<Client<S>>,
    pub(crate) resident: Table<Resident<S>>,
    pub(crate) pools: Vec<PoolView<S>>,
    pool_index: HashMap<PoolId, u32, std::hash::BuildHasherDefault<IdHasher>>,
    pub(crate) wheel: Wheel,
    pub(crate) again: Again,
    pub(crate) work: WorkQueue<S>,
    /// Which clients listen on what, by pool.
    pub(crate) boards: BTreeMap<PoolId, Board>,
    /// Hubs of pools whose listening connection is here.
    pub(crate) hubs: BTreeMap<PoolId, PoolHub<S>>,
    /// Orders for many clients.
    pub(crate) bulk_orders: BulkOrders,
    /// Whether clients leave, and how.
    pub(crate) departure: Departure,
    /// Clients that their servers serve themselves.
    pub(crate) inside: Inside,
    /// The operator's rules.
    pub(crate) rules: Arc<RuleSet>,
    pub(crate) next_serial: u32,
    /// See [`crate::relay::plain`].
    pub(crate) has_plain_lane: bool,
    /// Pipelines that have used it.
    pub(crate) plain_pipelines: u64,
    /// Texts that clients have sent.
    pub(crate) known: KnownTexts,
    /// What its clients have run.
    pub(crate) queries: Queries,
    /// Buffers: for reads from servers, for reads from clients, and for output that is not passed
    /// on from those. Taken while in use.
    pub(crate) server_input: Box<[u8]>,
    /// Clients whose answers wait for the end of the turn.
    pub(crate) late: Vec<Slot>,
    /// Memory for such answers.
    pub(crate) spare: Spare,
    /// Memory for messages that wait for a server connection.
    pub(crate) spare_input: Spare,
    pub(crate) client_input: Box<[u8]>,
    pub(crate) to_server: Vec<u8>,
    pub(crate) to_client: Vec<u8>,
}

impl<S: Socket> Engine<S> {
    /// The engine of loop `id` out of `loops`. `hash_key` keys its hash maps; `processes` are
    /// the process ids that its clients may have.
    pub fn new(id: LoopId, loops: u16, hash_key: u64, processes: OwnProcessIds) -> Self {
        Self {
            id,
            loops,
            process_ids: ProcessIds::new(id, loops, processes),
            hash_key: Keyed(hash_key),
            clients: Table::new(),
            resident: Table::new(),
            pools: Vec::new(),
            pool_index: HashMap::default(),
            wheel: Wheel::new(),
            again: Again::default(),
            work: WorkQueue::new(),
            boards: BTreeMap::new(),
            hubs: BTreeMap::new(),
            bulk_orders: BulkOrders::default(),
            departure: Departure::None,
            inside: Inside::default(),
            rules: Arc::default(),
            next_serial: 1,
            has_plain_lane: true,
            plain_pipelines: 0,
            known: KnownTexts::default(),
            queries: Queries::new(hash_key),
            server_input: buffer(),
            late: Vec::new(),
            spare: Spare::for_answers(),
            spare_input: Spare::for_messages(),
            client_input: buffer(),
            to_server: Vec::new(),
            to_client: Vec::new(),
        }
    }

    /// The same without the plain lane, which tests compare with it: see [`crate::relay::plain`].
    #[must_use]
    pub fn without_plain_lane(mut self) -> Self {
        self.has_plain_lane = false;
        self
    }

    /// How many pipelines have used the plain lane.
    pub fn plain_pipelines(&self) -> u64 {
        self.plain_pipelines
    }

    /// How many clients it serves.
    pub fn client_count(&self) -> usize {
        self.clients.len()
    }

    /// How many backends it watches.
    pub fn resident_count(&self) -> usize {
        self.resident.len()
    }

    /// The number of its listening connections.
    pub fn listener_count(&self) -> usize {
        self.resident.iter().filter(|(_, r)| matches!(r.holder, Holder::Listener(_))).count()
    }

    /// A client for which notifications wait although it could get them: there must be none between
    /// two events.
    pub fn keeps_notifications(&self) -> Option<ClientId> {
        let kept = self.clients.iter().find(|(_, client)| client.neglects_notifications());
        kept.map(|(slot, _)| self.client_id(slot))
    }

    /// A client that is idle although its whole next message has come: there must be none between
    /// two events, for only the client's next byte would wake it.
    pub fn forgets_a_message(&self) -> Option<ClientId> {
        let forgotten = |client: &Client<S>| {
            client.serving.state == ClientState::Idle
                && !client.is_leaving()
                && client.output.len() <= limits::OUTPUT_HIGH_BYTES
                && matches!(frame::header(&client.input), Framed::Header(header)
                    if client.input.len() >= header.total())
        };
        let found = self.clients.iter().find(|(_, client)| forgotten(client));
        found.map(|(slot, _)| self.client_id(slot))
    }

    /// Settings of backends that clients have, and that are at rest, as far as they are known: the
    /// servers have exactly these.
    pub fn resting_books(&self) -> impl Iterator<Item = (BackendId, &Settings)> {
        self.clients.iter().filter_map(|(_, client)| {
            let known = !client.is_session_mode()
                && !client.serving.is_exclusive()
                && client.pending_session.is_none()
                && client.session.pins.intersection(PartSet::ANY_SETTING).is_empty();
            let backend = client.backend.as_deref().filter(|_| known)?;
            let rests = backend.is_at_rest()
                && backend.known.unverified.is_none()
                && !backend.is_handing_over()
                && !backend.is_classic();
            rests.then(|| (backend.id(), backend.applied()))
        })
    }

    pub(crate) fn client_id(&self, slot: Slot) -> ClientId {
        ClientId { home: self.id, slot }
    }

    /// Index of this pool's view, created if there is none.
    pub(crate) fn view_of(&mut self, pool: &PoolRef<S>) -> u32 {
        if let Some(index) = self.pool_index.get(&pool.id) {
            return *index;
        }
        let index = u32::try_from(self.pools.len()).expect("fewer than 2^32 pools");
        self.pools.push(PoolView::new(pool.clone()));
        self.pool_index.insert(pool.id, index);
        index
    }

    /// Drops the views of pools that neither a client nor a backend here belongs to: ephemeral
    /// pools (replication) must not accumulate. Indexes of views change.
    pub(crate) fn forget_unused_views(&mut self) {
        let mut used = vec![false; self.pools.len()];
        for (_, client) in self.clients.iter() {
            used[client.pool as usize] = true;
        }
        for (_, resident) in self.resident.iter() {
            used[resident.pool as usize] = true;
        }
        if used.iter().all(|used| *used) {
            return;
        }
        // The others move up: their clients and backends get the new indexes.
        let mut places = Vec::with_capacity(used.len());
        let mut next = 0;
        for used in &used {
            places.push(next);
            next += u32::from(*used);
        }
        for slot in self.clients.slots() {
            if let Some(client) = self.clients.get_mut(slot) {
                client.pool = places[client.pool as usize];
            }
        }
        for slot in self.resident.slots() {
            if let Some(resident) = self.resident.get_mut(slot) {
                resident.pool = places[resident.pool as usize];
            }
        }
        let mut at = used.iter();
        self.pools.retain(|_| *at.next().expect("one for each pool"));
        self.pool_index =
            self.pools.iter().zip(0..).map(|(view, place)| (view.pool.id, place)).collect();
    }

    pub(crate) fn pool_of(&self, client: &Client<S>) -> &PoolView<S> {
        &self.pools[client.pool as usize]
    }

    pub(crate) fn stats(&self, pool: u32) -> &LoopStats {
        self.pools[pool as usize].pool.stats.of(self.id)
    }
}

/// A shared buffer.
pub(crate) fn buffer() -> Box<[u8]> {
    vec![0; limits::READ_BYTES].into_boxed_slice()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_given_out_again_is_another_slot() {
        let mut table = Table::new();
        let first = table.insert_with(|_| 'a');
        let second = table.insert_with(|_| 'b');
        assert_eq!(table.remove(first), Some('a'));
        assert_eq!(table.remove(first), None);
        let third = table.insert_with(|_| 'c');
        assert_eq!(third.index, first.index);
        assert_eq!(table.get(first), None);
        assert_eq!(table.get(third), Some(&'c'));
        assert_eq!(table.at(second.index), Some(second));
        assert_eq!(table.len(), 2);
    }

    #[test]
    fn thousands_of_places_are_all_different_and_all_found() {
        let mut table = Table::new();
        let slots: Vec<Slot> = (0..1000).map(|n| table.insert_with(|_| n)).collect();
        for (n, slot) in slots.iter().enumerate() {
            assert_eq!(table.get(*slot), Some(&n));
        }
        assert_eq!(table.iter().count(), 1000);
        assert_eq!(table.slots(), slots);
    }
}
