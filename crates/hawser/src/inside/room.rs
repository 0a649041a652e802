//! The clients of one pool that are inside, and the backends that serve them.
//!
//! # Model
//! A client has a slot in the shared memory, whose generation tells it from those before. It goes in
//! with owner POOLER, becomes IDLE, and its descriptor goes into the epoll set: from then on backends
//! take it and release it without this process. It comes back by a backend's message, or because it is
//! IDLE when it is wanted, or because the backend that had it has ended.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hawser_pooler::ids::{ClientId, ServerAddressId};
use hawser_pooler::lending::Return;
use hawser_pooler::relay::ToLoop;
use hawser_pooler::relay::inside::{BackFromInside, CustomNames, InsideSession};
use hawser_pooler::session::settings::PlanReads;
use hawser_sys::epoll::Epoll;
use tokio::sync::watch;

use super::memory::{BUSY, IDLE, Memory, PENDING, POOLER, SLOTS, Seat, TO_END, Word, owner};
use crate::lock::locked;
use crate::loops::{Loops, Pool};
use crate::socket::Conn;

/// The pause after a backend could not be opened.
const RETRY_AFTER: Duration = Duration::from_secs(2);
/// A room lasts so long, however short the lifetime of server connections is.
const LASTS_MIN: Duration = Duration::from_secs(1);

/// A client that is inside.
struct Guest {
    client: ClientId,
    fd: Arc<OwnedFd>,
}

/// A server's process that serves the room.
struct Backend {
    seat: Seat,
    server: ServerAddressId,
    process: u32,
    key: Box<[u8]>,
}

struct State {
    memory: Memory,
    guests: Vec<Option<Guest>>,
    free: Vec<u32>,
    places: HashMap<ClientId, u32>,
    backends: BTreeMap<u32, Backend>,
    next_number: u32,
    opening: usize,
    retry_at: Option<Instant>,
    /// Why a backend could not be opened, if that was the last that happened.
    trouble: Option<String>,
    /// The configuration has no place for it any more.
    closing: bool,
    /// The custom names that its clients have, and so its backends may know.
    names: CustomNames,
}

/// See the module.
pub(super) struct Room {
    pool: Pool,
    /// What plans depended on when it was made: its clients are alike in that.
    reads: PlanReads,
    /// Of the pool, when it was made: in another one its backends are to be replaced.
    epoch: u32,
    since: Instant,
    loops: Loops,
    epoll: Epoll,
    /// Another one is with each backend that has left the room with a client, to its end.
    pairs: Arc<()>,
    state: Mutex<State>,
    closed: watch::Sender<bool>,
}

/// A backend that is being opened, until this is dropped.
pub(super) struct Opening(Arc<Room>);

impl Drop for Opening {
    fn drop(&mut self) {
        locked(&self.0.state).opening -= 1;
    }
}

/// A backend that a cancel request is for.
pub(super) struct CancelTarget {
    pub(super) server: ServerAddressId,
    pub(super) process: u32,
    pub(super) key: Box<[u8]>,
    slot: u32,
}

impl Room {
    pub(super) fn new(pool: Pool, loops: Loops) -> io::Result<Self> {
        let state = State {
            memory: Memory::new()?,
            guests: Vec::new(),
            free: Vec::new(),
            places: HashMap::new(),
            backends: BTreeMap::new(),
            next_number: 1,
            opening: 0,
            retry_at: None,
            trouble: None,
            closing: false,
            names: CustomNames::NONE,
        };
        let (state, closed) = (Mutex::new(state), watch::Sender::new(false));
        let reads = pool.statements.reads();
        let (epoll, pairs) = (Epoll::new()?, Arc::new(()));
        let epoch = pool.epoch();
        let since = Instant::now();
        Ok(Self { pool, reads, epoch, since, loops, epoll, pairs, state, closed })
    }

    /// Ends when the room is closed.
    pub(super) fn closed(&self) -> watch::Receiver<bool> {
        self.closed.subscribe()
    }

    pub(super) fn has(&self, client: ClientId) -> bool {
        locked(&self.state).places.contains_key(&client)
    }

    /// Whether its backends may serve on. Not if they may keep plans that are not for all clients (there is a
    /// function now that is declared IMMUTABLE and reads settings, or the functions were not known), nor after
    /// RECONNECT and the like, nor after `server_lifetime`.
    pub(super) fn may_serve(&self) -> bool {
        let lifetime = self.pool.settings().server_lifetime;
        let is_old = !lifetime.is_zero() && self.since.elapsed() >= lifetime.max(LASTS_MIN);
        self.pool.statements.reads() == self.reads && self.pool.epoch() == self.epoch && !is_old
    }

    /// Looks whether clients may come, and ends a change of the schema once all have left.
    pub(super) fn look(&self, size: usize, places: u32) {
        let mut state = locked(&self.state);
        state.closing = false;
        state.memory.set_places(places);
        state.count(&self.pool);
        state.memory.set_patience(self.pool.settings().client_write_timeout);
        state.memory.set_keeps_draws(self.pool.keeps_draws());
        if state.memory.schema_word().load(Ordering::Acquire) != 0 {
            if state.places.is_empty() {
                state.memory.schema_word().store(0, Ordering::Release);
            } else {
                state.call_all_back(self);
            }
        }
        let serves = !state.backends.is_empty();
        if !serves {
            state.call_all_back(self);
        }
        let old = state.memory.schema_word().load(Ordering::Relaxed) != 0;
        // Clients that have come back with a backend each would take all connections of the server.
        self.pool.set_goes_inside(serves && self.pair_count() <= size && !old);
    }

    /// A backend leaves with a client, until this is dropped.
    pub(super) fn pair(&self) -> Arc<()> {
        self.pairs.clone()
    }

    fn pair_count(&self) -> usize {
        Arc::strong_count(&self.pairs) - 1
    }

    /// Another backend is to be opened, if one is missing.
    pub(super) fn open_one(self: &Arc<Self>, size: usize) -> Option<Opening> {
        let mut state = locked(&self.state);
        let serving = state.backends.len();
        let waits = state.retry_at.is_some_and(|at| at > Instant::now());
        // While it does not work, one attempt at a time shows when it does.
        let tries = state.trouble.is_some() && state.opening > 0;
        if waits || tries || self.pair_count() > size || serving + state.opening >= size {
            return None;
        }
        state.opening += 1;
        Some(Opening(self.clone()))
    }

    pub(super) fn opened(&self) {
        let mut state = locked(&self.state);
        state.retry_at = None;
        if state.trouble.take().is_some() {
            let (database, user) = (&self.pool.database, &self.pool.user);
            tracing::info!(database, user, "clients are served inside the server");
        }
    }

    pub(super) fn not_opened(&self, reason: &str) {
        let mut state = locked(&self.state);
        state.retry_at = Some(Instant::now() + RETRY_AFTER);
        if state.trouble.as_deref() != Some(reason) {
            let (database, user) = (&self.pool.database, &self.pool.user);
            tracing::warn!(database, user, reason, "clients are not served inside the server");
            state.trouble = Some(reason.to_owned());
        }
    }

    /// No client comes from now on. Whether none is left.
    pub(super) fn empties(&self) -> bool {
        self.pool.set_goes_inside(false);
        let mut state = locked(&self.state);
        state.closing = true;
        state.count(&self.pool);
        state.call_all_back(self);
        state.places.is_empty()
    }

    /// Its backends end.
    pub(super) fn close(&self) {
        self.closed.send_replace(true);
    }

    /// A backend has joined. Returns its number and its seat. `None`: all seats are taken.
    pub(super) fn join(
        &self,
        server: ServerAddressId,
        process: u32,
        key: Box<[u8]>,
    ) -> Option<(u32, u32)> {
        let mut state = locked(&self.state);
        let taken = state.backends.values().map(|backend| backend.seat.number).collect();
        let seat = state.memory.free_seat(&taken)?;
        let at = seat.number;
        let number = state.next_number;
        state.next_number = if number == 0xff_ffff { 1 } else { number + 1 };
        state.backends.insert(number, Backend { seat, server, process, key });
        Some((number, at))
    }

    /// What a backend gets when it joins.
    pub(super) fn with_fds<R>(&self, give: impl FnOnce(&[std::os::fd::BorrowedFd<'_>]) -> R) -> R {
        let state = locked(&self.state);
        give(&[self.epoll.as_fd(), state.memory.fd()])
    }

    /// The descriptor of the client in a slot.
    pub(super) fn with_client<R>(
        &self,
        slot: u32,
        generation: u32,
        give: impl FnOnce(Option<std::os::fd::BorrowedFd<'_>>) -> R,
    ) -> R {
        let state = locked(&self.state);
        give(state.guest(slot, generation).map(|guest| guest.fd.as_fd()))
    }

    /// A client comes in. False: it does not.
    pub(super) fn put(
        &self,
        client: ClientId,
        fd: Arc<OwnedFd>,
        session: &InsideSession<Conn>,
    ) -> bool {
        let mut state = locked(&self.state);
        let serves = !state.backends.is_empty();
        let may_serve = session.reads == self.reads && self.may_serve();
        let names = self.names_of(session);
        let has_all_names =
            names == state.names || (state.places.is_empty() && state.names.fit(names));
        if !serves
            || !may_serve
            || !has_all_names
            || names.are_too_many()
            || state.closing
            || state.memory.schema_word().load(Ordering::Acquire) != 0
        {
            return false;
        }
        let Some(slot) = state.free_slot() else { return false };
        if !state.memory.write_record(slot, session) {
            state.free.push(slot);
            return false;
        }
        for word in [Word::Unnamed, Word::Recall, Word::Cancel] {
            state.memory.word(slot, word).store(0, Ordering::Relaxed);
        }
        let generation = state.memory.word(slot, Word::Generation);
        generation.fetch_add(1, Ordering::Relaxed);
        state.memory.word(slot, Word::Owner).store(IDLE, Ordering::Release);
        if self.epoll.add_to_read(&fd, u64::from(slot)).is_err() {
            state.memory.word(slot, Word::Owner).store(POOLER, Ordering::Relaxed);
            state.vacate(slot);
            return false;
        }
        state.guests[slot as usize] = Some(Guest { client, fd });
        state.places.insert(client, slot);
        state.names = names;
        true
    }

    /// A backend knows for good each custom name that a client has had there: others that have never used it
    /// would read an empty string in place of NULL.
    fn names_of(&self, session: &InsideSession<Conn>) -> CustomNames {
        self.pool.all_custom_names(&session.settings)
    }

    /// A client is wanted back.
    pub(super) fn call_back(&self, client: ClientId) {
        let mut state = locked(&self.state);
        if let Some(slot) = state.places.get(&client).copied() {
            state.call_back(self, slot, true);
        }
    }

    /// A backend gives a client back, with what it has read of it.
    pub(super) fn returned(&self, slot: u32, generation: u32, input: Vec<u8>) {
        let why = why(&input);
        self.comes_back(slot, generation, input, why);
    }

    /// A backend gives a client back whose connection has ended.
    pub(super) fn lost(&self, slot: u32, generation: u32) {
        self.comes_back(slot, generation, Vec::new(), Return::Ended);
    }

    fn comes_back(&self, slot: u32, generation: u32, input: Vec<u8>, why: Return) {
        let mut state = locked(&self.state);
        if state.guest(slot, generation).is_some() {
            state.take_back(self, slot, input, why);
        }
    }

    /// A client comes back with the backend that serves it, which may owe it the end of an answer. `None`: there
    /// is no such client.
    pub(super) fn leaves_with_backend(
        &self,
        slot: u32,
        generation: u32,
        input: Vec<u8>,
        owed: bool,
    ) -> Option<BackFromInside> {
        let mut state = locked(&self.state);
        state.guest(slot, generation)?;
        let why = if owed { Return::State } else { why(&input) };
        state.take_out(self, slot, input, why)
    }

    /// What statements mean may have changed: all clients come back.
    pub(super) fn schema_changed(&self) {
        self.pool.set_goes_inside(false);
        self.pool.schema_changed();
        locked(&self.state).call_all_back(self);
    }

    /// A backend has ended: what it had is lost, what it had released is not.
    pub(super) fn left(&self, number: u32) {
        let mut state = locked(&self.state);
        state.count(&self.pool);
        if let Some(Backend { seat, .. }) = state.backends.remove(&number) {
            state.memory.free_place(&seat);
        }
        let slots: Vec<u32> = state.places.values().copied().collect();
        for slot in slots {
            let (is, by) = owner(state.memory.word(slot, Word::Owner).load(Ordering::Acquire));
            if by == number && is != IDLE {
                state.take_back(self, slot, Vec::new(), Return::Ended);
            }
        }
        if state.backends.is_empty() {
            self.pool.set_goes_inside(false);
            state.call_all_back(self);
        }
    }

    /// A cancel request is to be sent for what a client runs. `None`: it runs nothing.
    pub(super) fn begin_cancel(&self, client: ClientId) -> Option<CancelTarget> {
        let state = locked(&self.state);
        let slot = *state.places.get(&client)?;
        let memory = &state.memory;
        let target = |number: u32| {
            let Backend { server, process, key, .. } = state.backends.get(&number)?;
            Some(CancelTarget { server: *server, process: *process, key: key.clone(), slot })
        };
        let word = memory.word(slot, Word::Cancel);
        // Set before the owner is looked at: a backend that has released it by then looks at this.
        if word.swap(1, Ordering::SeqCst) != 0 {
            return None; // one is on its way
        }
        let taken = memory.word(slot, Word::Transactions).load(Ordering::SeqCst);
        let (is, number) = owner(memory.word(slot, Word::Owner).load(Ordering::SeqCst));
        let same = memory.word(slot, Word::Transactions).load(Ordering::SeqCst) == taken;
        let found = match matches!(is, BUSY | PENDING) && same {
            true => target(number),
            false => None,
        };
        if found.is_none() {
            word.store(0, Ordering::SeqCst);
        }
        found
    }

    /// The server has handled the cancel request.
    pub(super) fn end_cancel(&self, target: &CancelTarget) {
        let state = locked(&self.state);
        state.memory.word(target.slot, Word::Cancel).store(0, Ordering::SeqCst);
    }
}

/// Why a client comes back with what it has sent.
fn why(input: &[u8]) -> Return {
    match input.first() {
        None => Return::Recalled,
        Some(b'X') => Return::Ended, // Terminate
        Some(_) => Return::Message,
    }
}

impl State {
    /// Adds to the pool's counters what its backends have counted.
    fn count(&mut self, pool: &Pool) {
        for backend in self.backends.values_mut() {
            self.memory.add_counts(&mut backend.seat, pool.stats.inside());
        }
    }

    fn guest(&self, slot: u32, generation: u32) -> Option<&Guest> {
        let guest = self.guests.get(slot as usize)?.as_ref()?;
        let current = self.memory.word(slot, Word::Generation).load(Ordering::Relaxed);
        (current == generation).then_some(guest)
    }

    fn free_slot(&mut self) -> Option<u32> {
        self.free.pop().or_else(|| {
            let slot = u32::try_from(self.guests.len()).ok().filter(|slot| *slot < SLOTS)?;
            self.guests.push(None);
            Some(slot)
        })
    }

    /// Frees a slot, whose owner is POOLER.
    fn vacate(&mut self, slot: u32) {
        self.memory.word(slot, Word::Generation).fetch_add(1, Ordering::Relaxed);
        self.memory.free_record(slot);
        self.free.push(slot);
    }

    /// `ends`: it is to be disconnected.
    fn call_back(&mut self, room: &Room, slot: u32, ends: bool) {
        let recall = self.memory.word(slot, Word::Recall);
        recall.fetch_max(if ends { TO_END } else { 1 }, Ordering::SeqCst);
        let word = self.memory.word(slot, Word::Owner);
        if word.compare_exchange(IDLE, POOLER, Ordering::SeqCst, Ordering::SeqCst).is_ok() {
            self.take_back(room, slot, Vec::new(), Return::Recalled);
        }
    }

    fn call_all_back(&mut self, room: &Room) {
        let slots: Vec<u32> = self.places.values().copied().collect();
        slots.into_iter().for_each(|slot| self.call_back(room, slot, false));
    }

    /// No backend touches the client any more.
    fn take_back(&mut self, room: &Room, slot: u32, input: Vec<u8>, why: Return) {
        if let Some(back) = self.take_out(room, slot, input, why) {
            room.loops.send(back.client.home, ToLoop::BackFromInside(back));
        }
    }

    /// It leaves the room.
    fn take_out(
        &mut self,
        room: &Room,
        slot: u32,
        input: Vec<u8>,
        why: Return,
    ) -> Option<BackFromInside> {
        let Guest { client, fd } = self.guests.get_mut(slot as usize)?.take()?;
        self.memory.word(slot, Word::Owner).store(POOLER, Ordering::Release);
        let unnamed = self.memory.unnamed(slot);
        let _ = room.epoll.delete(&fd);
        self.places.remove(&client);
        self.vacate(slot);
        room.pool.stats.returns.count(why);
        Some(BackFromInside { client, input, unnamed, lost: why == Return::Ended })
    }
}
