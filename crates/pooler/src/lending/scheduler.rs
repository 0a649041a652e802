//! Decides which client gets which server connection, and when.

use std::time::Duration;

use crate::ids::{BackendId, ClientId, LoopId};
use crate::lending::lent_count::LentCount;
use crate::lending::likeness::{Has, Likeness, Wish, nearest};
use crate::lending::queue::{Bound, Queue, Waiter};
use crate::parts::settings::custom_names::CustomNames;
use crate::time::Time;
use crate::wire::error::ClientError;

/// How many of the next waiters, or of the most recently used backends, are compared if not all
/// want the same. See [`crate::lending::likeness`].
const UNLIKE_WINDOW: usize = 12;

/// Bounds of one pool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Backends that may be at work at the same time.
    pub size: u32,
    /// Further backends for when a client has waited longer than `reserve_timeout`.
    pub reserve_size: u32,
    /// See `reserve_size`. Zero: never.
    pub reserve_timeout: Duration,
    /// Further backends in place of those that sit idle in a transaction.
    pub idle_transaction_reserve: u32,
    /// Further backends in place of those that wait for locks, once all do.
    pub lock_wait_reserve: u32,
    /// Idle backends are kept at least up to this number.
    pub min_size: u32,
    /// Clients in the queue beyond those for which a backend is being opened; 0: any number.
    pub queue_max: u32,
    /// Whether the backend that has been idle longest is lent, whatever loop it is on.
    pub round_robin: bool,
}

/// An idle backend.
#[derive(Debug)]
struct Idle<B> {
    id: BackendId,
    /// The loop whose epoll set it is in.
    home: LoopId,
    has: Has,
    since: Time,
    backend: B,
}

/// The answer to a client that asks for a backend.
#[derive(Debug)]
pub enum Acquired<B> {
    /// This one, taken from the loop `home`.
    Backend {
        /// The backend.
        backend: B,
        /// The loop that has it in its epoll set.
        home: LoopId,
    },
    /// A place in the queue. `open`: one more backend is to be opened.
    Wait {
        /// Whether the caller must have a backend opened.
        open: bool,
    },
    /// Nothing: its server is down, and clients do not wait for it.
    Down(ClientError),
    /// Nothing: as many clients wait as may.
    Full,
    /// A place in the queue of a pool that is full of backends that the client must not have: the
    /// caller closes this one in favour of another.
    Replace {
        /// The backend, which no longer counts.
        backend: B,
        /// The loop that has it in its epoll set.
        home: LoopId,
        /// Whether the caller must have a backend opened.
        open: bool,
    },
}

/// Whether a backend is opened to learn the server's parameters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OpenOne {
    /// It is counted as opening.
    Begun,
    /// Existing backends take all places.
    Full,
    /// One is being opened, or none may be: PAUSE, or the pause after a failure.
    NotNow,
}

/// What becomes of a backend that its client no longer needs.
#[derive(Debug)]
pub enum Released<B> {
    /// The next client gets it.
    Next {
        /// Who.
        waiter: Waiter,
        /// The backend.
        backend: B,
    },
    /// It was kept for later.
    Kept,
    /// It is one too many: close it.
    Close(B),
}

/// The pool of one database and user. `B` is the backend itself.
#[derive(Debug)]
pub struct Pool<B> {
    limits: Limits,
    idle: Vec<Idle<B>>,
    waiting: Queue,
    lent: LentCount,
    opening: u32,
    parked: u32,
    /// Lent backends that waited for heavyweight locks when the server was last asked.
    lock_waits: u32,
    /// Of these, those that do not count against the size.
    set_aside: u32,
    /// Statements under way that allow no other connection to its database.
    vacated: u32,
    paused: bool,
    /// No backend is opened before this moment (back-off after a failure).
    open_not_before: Time,
    /// The last opening failed: only one at a time tries the server again.
    failing: bool,
    /// The server is down: the error for clients that would wait for it.
    down: Option<ClientError>,
    /// The next backend released before this moment is closed, so that another pool can have one.
    give_up_until: Time,
}

impl<B> Pool<B> {
    /// An empty pool.
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            idle: Vec::new(),
            waiting: Queue::default(),
            lent: LentCount::default(),
            opening: 0,
            parked: 0,
            lock_waits: 0,
            set_aside: 0,
            vacated: 0,
            paused: false,
            open_not_before: Time::ZERO,
            failing: false,
            down: None,
            give_up_until: Time::ZERO,
        }
    }

    /// The bounds in force.
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// Puts other bounds in force. Returns how many backends are to be opened for waiters.
    pub fn set_limits(&mut self, limits: Limits, now: Time) -> u32 {
        self.limits = limits;
        self.openings_due(now)
    }

    /// Idle backends.
    pub fn idle_count(&self) -> u32 {
        u32::try_from(self.idle.len()).unwrap_or(u32::MAX)
    }

    /// Backends with a client.
    pub fn lent_count(&self) -> u32 {
        self.lent.all()
    }

    /// Backends being opened.
    pub fn opening_count(&self) -> u32 {
        self.opening
    }

    /// Lent backends that sit idle in a transaction.
    pub fn parked_count(&self) -> u32 {
        self.parked
    }

    /// All backends, also those being opened.
    pub fn total(&self) -> u32 {
        self.idle_count() + self.lent.all() + self.opening
    }

    /// Whether a client that asks now need not wait for another: a backend is idle, or can be opened.
    pub fn has_room(&self) -> bool {
        self.waiting_count() == 0 && (!self.idle.is_empty() || self.total() < self.limits.size)
    }

    /// Clients in the queue.
    pub fn waiting_count(&self) -> u32 {
        u32::try_from(self.waiting.len()).unwrap_or(u32::MAX)
    }

    /// How many backends would have to be released to serve all waiters; 0 as long as the first has
    /// waited for less than `after`.
    pub fn releases_lacking(&self, after: Duration, now: Time) -> u32 {
        match self.waiting.first() {
            Some(first) if now.since(first.since) >= after => {
                self.waiting_count().saturating_sub(self.opening)
            }
            _ => 0,
        }
    }

    /// How often a waiter of loop `home` may be overtaken, as things stand.
    pub fn overtaking_bound(&self, home: LoopId) -> u32 {
        self.waiting.bound(self.limits.size.max(1), usize::from(home.0), &self.lent)
    }

    /// The client that has waited longest.
    pub fn oldest_waiter(&self) -> Option<&Waiter> {
        self.waiting.first()
    }

    /// The waiters, in the order in which they came.
    pub fn waiters(&self) -> impl Iterator<Item = &Waiter> {
        self.waiting.iter()
    }

    /// Whether PAUSE is in force.
    pub fn is_paused(&self) -> bool {
        self.paused
    }

    /// Whether no client gets a backend, and none is opened.
    fn is_closed(&self) -> bool {
        self.paused || self.vacated > 0
    }

    /// Backends that count against the size.
    fn counted(&self) -> u32 {
        let parked = self.parked.min(self.limits.idle_transaction_reserve);
        self.total().saturating_sub(parked + self.set_aside.min(self.limits.lock_wait_reserve))
    }

    /// Whether nothing is opened now: PAUSE, a vacancy of its database, the back-off after a failed
    /// opening, or a trial opening under way.
    fn is_held_back(&self, now: Time) -> bool {
        self.is_closed() || now < self.open_not_before || (self.failing && self.opening > 0)
    }

    fn may_open(&self, now: Time) -> bool {
        if self.opening >= self.waiting_count()
            || self.counted() >= self.limits.size.saturating_add(self.limits.reserve_size)
            || self.is_held_back(now)
        {
            return false;
        }
        let reserve = match self.waiting.first() {
            Some(head)
                if !self.limits.reserve_timeout.is_zero()
                    && now.since(head.since) >= self.limits.reserve_timeout =>
            {
                self.limits.reserve_size
            }
            _ => 0,
        };
        self.counted() < self.limits.size + reserve
    }

    /// How many backends are to be opened now for waiters; they are counted as opening.
    ///
    /// To be asked now and then while clients wait: the reserve and the end of a back-off come
    /// with time alone.
    pub fn openings_due(&mut self, now: Time) -> u32 {
        let mut due = 0;
        while self.may_open(now) {
            self.opening += 1;
            due += 1;
        }
        due
    }

    /// How many backends are to be opened so that `min_size` stand ready; counted as opening.
    pub fn openings_for_min_size(&mut self, now: Time) -> u32 {
        if self.is_held_back(now) {
            return 0;
        }
        let most = if self.failing { 1 } else { u32::MAX };
        let wanted = self.limits.min_size.min(self.limits.size).saturating_sub(self.total());
        let wanted = wanted.min(most);
        self.opening += wanted;
        wanted
    }

    /// One backend is to be opened although no client waits, to learn the server's parameters.
    pub fn open_one(&mut self, now: Time) -> OpenOne {
        if self.is_held_back(now) || self.opening > 0 {
            return OpenOne::NotNow;
        }
        if self.counted() >= self.limits.size {
            return OpenOne::Full;
        }
        self.opening += 1;
        OpenOne::Begun
    }

    /// A client asks for a backend: it gets one, or a place in the queue.
    pub fn acquire(&mut self, client: ClientId, now: Time) -> Acquired<B> {
        self.acquire_with(client, CustomNames::NONE, Wish::default(), |_| false, now)
    }

    /// The same for a client that has these custom names and this wish; `knows` says which backends
    /// know its statement, or are its own.
    pub fn acquire_with(
        &mut self,
        client: ClientId,
        names: CustomNames,
        wish: Wish,
        knows: impl Fn(&B) -> bool,
        now: Time,
    ) -> Acquired<B> {
        if !self.is_closed()
            && !self.idle.is_empty()
            && let Some(at) = self.choose_idle(client.home, names, wish, knows)
        {
            let idle = self.idle.remove(at);
            self.lent.add(client.home);
            return Acquired::Backend { backend: idle.backend, home: idle.home };
        }
        if let Some(error) = self.refusal() {
            return Acquired::Down(error.clone());
        }
        if self.has_full_queue() {
            return Acquired::Full;
        }
        self.waiting.push(client, names, wish, now);
        let unfit = self.take_unfit();
        let open = self.may_open(now);
        if open {
            self.opening += 1;
        }
        match unfit {
            Some((home, backend)) => Acquired::Replace { backend, home, open },
            None => Acquired::Wait { open },
        }
    }

    /// Whether one more client may not wait. While the pool is closed, all may: nothing is amiss that
    /// a client could act on.
    fn has_full_queue(&self) -> bool {
        let most = self.limits.queue_max;
        most > 0 && self.waiting_count().saturating_sub(self.opening) >= most && !self.is_closed()
    }

    /// The place of the idle backend that a client on loop `home` gets.
    fn choose_idle(
        &self,
        home: LoopId,
        names: CustomNames,
        wish: Wish,
        knows: impl Fn(&B) -> bool,
    ) -> Option<usize> {
        let mut all = self.idle.iter().enumerate();
        if self.limits.round_robin {
            return all.find(|(_, idle)| idle.has.fits(names, &wish)).map(|(at, _)| at);
        }
        // The most recently used first: its caches are warm, and the others may expire.
        let fit = all.rev().filter(|(_, idle)| idle.has.fits(names, &wish));
        if wish.own
            && let Some((at, _)) = fit.clone().find(|(_, idle)| knows(&idle.backend))
        {
            return Some(at);
        }
        let likeness = |idle: &Idle<B>, beside| {
            let knows = || knows(&idle.backend);
            Likeness::of(wish.settings, idle.has.settings, idle.home == home, knows, beside)
        };
        nearest(fit, likeness, UNLIKE_WINDOW)
    }

    /// While clients wait, and the pool is full: an idle backend that none of them may have, to be
    /// closed. It no longer counts.
    pub fn take_unfit(&mut self) -> Option<(LoopId, B)> {
        if self.idle.is_empty() {
            return None;
        }
        let full = self.counted() >= self.limits.size;
        let wanted = self.waiting_count() > self.opening;
        if self.is_closed() || !full || !wanted {
            return None;
        }
        let idle = self.idle.remove(0);
        Some((idle.home, idle.backend))
    }

    /// Whether a client waits while a backend that it may have is idle.
    pub fn neglects_a_waiter(&self) -> bool {
        let mut waiters = self.waiters();
        !self.is_closed()
            && waiters.any(|w| self.idle.iter().any(|idle| idle.has.fits(w.names, &w.wish)))
    }

    /// The waiter to whom a released backend goes, taken out of the queue.
    fn next_waiter(
        &mut self,
        home: LoopId,
        has: Has,
        knows: impl Fn(u64) -> bool,
        now: Time,
    ) -> Option<Waiter> {
        let size = self.limits.size.max(1);
        let bound = Bound { size, own: usize::from(home.0), lent: &self.lent };
        let likeness = |waiter: &Waiter, beside| {
            let wish = waiter.wish;
            let knows = || wish.statement != 0 && knows(wish.statement);
            Likeness::of(wish.settings, has.settings, waiter.client.home == home, knows, beside)
        };
        let fits = |waiter: &Waiter| has.fits(waiter.names, &waiter.wish);
        self.waiting.next(bound, fits, likeness, UNLIKE_WINDOW, now)
    }

    /// A client on loop `home` no longer needs its backend (or a new one has been opened there,
    /// see [`Pool::opened`]).
    pub fn release(&mut self, id: BackendId, backend: B, home: LoopId, now: Time) -> Released<B> {
        self.release_with(id, backend, Has::default(), |_, _| false, home, now)
    }

    /// The same of a backend that has this; `knows`
    /// says which statements it has. If clients wait, and none of them may
    /// have it, it is to be closed, and openings are due.
    pub fn release_with(
        &mut self,
        id: BackendId,
        backend: B,
        has: Has,
        knows: impl Fn(&B, u64) -> bool,
        home: LoopId,
        now: Time,
    ) -> Released<B> {
        let gives_up = self.gives_up(now);
        if gives_up || self.counted() > self.limits.size + self.limits.reserve_size {
            self.give_up_until = Time::ZERO;
            self.lent.remove(home);
            return Released::Close(backend);
        }
        if !self.is_closed() && !self.waiting.is_empty() {
            let knows = |statement| knows(&backend, statement);
            if let Some(waiter) = self.next_waiter(home, has, knows, now) {
                self.lent.cross(home, waiter.client.home);
                return Released::Next { waiter, backend };
            }
            self.lent.remove(home);
            return Released::Close(backend);
        }
        self.lent.remove(home);
        self.idle.push(Idle { id, home, has, since: now, backend });
        Released::Kept
    }

    /// Another pool has waiters, and a bound on both pools leaves it no room: the next backend that
    /// is released before `until` is closed, even if clients of this pool wait.
    pub fn give_up_one(&mut self, until: Time) {
        self.give_up_until = until;
    }

    /// Whether the next backend to be released is given up.
    pub fn gives_up(&self, now: Time) -> bool {
        now < self.give_up_until
    }

    /// A backend has been opened on loop `home`: it counts as lent, and goes through
    /// [`Pool::release`] next.
    pub fn opened(&mut self, home: LoopId) {
        debug_assert!(self.opening > 0, "a backend was opened that was not asked for");
        self.opening = self.opening.saturating_sub(1);
        self.lent.add(home);
        self.open_not_before = Time::ZERO;
        self.failing = false;
        self.down = None;
    }

    /// A backend comes to loop `home` together with the client that it is lent to.
    pub fn comes_lent(&mut self, home: LoopId) {
        self.lent.add(home);
    }

    /// The error for clients in place of a wait for a backend, if there is one. Clients still wait
    /// while the pool is paused, to be served when it resumes, and while a backend is lent, because
    /// it comes back.
    fn refusal(&self) -> Option<&ClientError> {
        self.down.as_ref().filter(|_| !self.is_closed() && self.lent.all() == 0)
    }

    /// Why clients do not wait for the server, as long as it is down.
    pub fn down(&self) -> Option<&ClientError> {
        self.down.as_ref()
    }

    /// Sets the error that clients get because the server is down, or none.
    pub fn set_down(&mut self, down: Option<ClientError>) {
        self.down = down;
    }

    /// The server can be reached again, as another pool has seen: the next attempt need not wait.
    pub fn try_now(&mut self) {
        self.open_not_before = Time::ZERO;
    }

    /// A backend could not be opened. The next attempt waits for `retry_after`, and only one at a
    /// time is made until one succeeds.
    pub fn open_failed(&mut self, now: Time, retry_after: Duration) {
        debug_assert!(self.opening > 0, "an opening failed that was not asked for");
        self.opening = self.opening.saturating_sub(1);
        self.open_not_before = now.after(retry_after);
        self.failing = true;
    }

    /// A backend that was lent on loop `home` is gone. Returns how many are to be opened for waiters.
    pub fn lost(&mut self, home: LoopId, now: Time) -> u32 {
        self.lent.remove(home);
        // It may have been parked: after a panic nothing records that.
        self.parked = self.parked.min(self.lent.all());
        self.openings_due(now)
    }

    /// A lent backend has begun to sit idle in a transaction. Returns how many are to be opened.
    pub fn park(&mut self, now: Time) -> u32 {
        self.parked += 1;
        self.openings_due(now)
    }

    /// A parked backend is at work again, or gone.
    pub fn unpark(&mut self) {
        debug_assert!(self.parked > 0, "a backend is unparked that was not parked");
        self.parked = self.parked.saturating_sub(1);
    }

    /// Lent backends that waited for locks when the server was last asked.
    pub fn lock_waits(&self) -> u32 {
        self.lock_waits
    }

    /// Whether no lent backend gets on by itself: those that do not sit idle in a transaction wait
    /// for locks.
    pub fn all_wait_for_locks(&self) -> bool {
        self.lock_waits > 0 && self.lock_waits.saturating_add(self.parked) >= self.lent.all()
    }

    /// Whether the server is to be asked which backends wait for locks: a client has waited so long,
    /// or some backends do not count against the size.
    pub fn asks_for_lock_waits(&self, waited: Duration, now: Time) -> bool {
        let has_waited = |waiter: &Waiter| now.since(waiter.since) >= waited;
        let is_wanted = self.set_aside > 0 || self.oldest_waiter().is_some_and(has_waited);
        is_wanted && !self.is_closed() && self.lent.all() > 0
    }

    /// The server says that so many lent backends wait for heavyweight locks. Once all do, those do
    /// not count against the size until their locks are free, up to `lock_wait_reserve` of them:
    /// what holds the locks may need another backend. Returns how many are to be opened.
    pub fn set_lock_waits(&mut self, waits: u32, now: Time) -> u32 {
        self.lock_waits = waits;
        let all = self.all_wait_for_locks();
        let most = if all { waits } else { self.set_aside.min(waits) };
        self.set_aside = most.min(self.limits.lock_wait_reserve);
        self.openings_due(now)
    }

    /// Takes a client that has waited since this moment out of the queue: it left, or gave up.
    /// False if it was not there: then a backend may be on its way to it.
    pub fn forget_waiter(&mut self, client: ClientId, since: Time) -> bool {
        self.waiting.forget(client, since)
    }

    /// Takes a certain idle backend out, e.g. because its server has closed it.
    pub fn take_idle(&mut self, id: BackendId) -> Option<B> {
        let at = self.idle.iter().position(|idle| idle.id == id)?;
        Some(self.idle.remove(at).backend)
    }

    /// The same if `home` watches it; it then counts as lent, to be checked and then released or
    /// given up. (An event from before another loop had it is no reason for that.)
    pub fn take_idle_as_lent(&mut self, id: BackendId, home: LoopId) -> Option<B> {
        self.idle.iter().find(|idle| idle.id == id && idle.home == home)?;
        let backend = self.take_idle(id)?;
        self.lent.add(home);
        Some(backend)
    }

    /// Takes out the idle backends for which `unwanted(backend, idle time)` holds.
    pub fn take_idle_if(
        &mut self,
        now: Time,
        mut unwanted: impl FnMut(&B, Duration) -> bool,
    ) -> Vec<(LoopId, B)> {
        let mut taken = Vec::new();
        let mut at = 0;
        while at < self.idle.len() {
            let idle = &self.idle[at];
            if unwanted(&idle.backend, now.since(idle.since)) {
                let idle = self.idle.remove(at);
                taken.push((idle.home, idle.backend));
            } else {
                at += 1;
            }
        }
        taken
    }

    /// How long the backend that has been idle longest has been so.
    pub fn longest_idle(&self, now: Time) -> Option<Duration> {
        self.idle.iter().map(|idle| now.since(idle.since)).max()
    }

    /// Each idle backend with the loop that watches it.
    pub fn idle_backends(&self) -> impl Iterator<Item = (LoopId, &B)> {
        self.idle.iter().map(|idle| (idle.home, &idle.backend))
    }

    /// From now on no client gets a backend.
    pub fn pause(&mut self) {
        self.paused = true;
    }

    /// Ends a pause. Returns what waiters get: backends to hand over, and how many to open.
    pub fn resume(&mut self, now: Time) -> (Vec<(Waiter, LoopId, B)>, u32) {
        self.paused = false;
        self.hand_out(now)
    }

    /// Keeps its database free of connections: no client gets a backend, and none is opened, until
    /// [`Pool::end_vacancy`] has been called as often.
    pub fn begin_vacancy(&mut self) {
        self.vacated += 1;
    }

    /// Ends that. Returns what waiters get, as [`Pool::resume`].
    pub fn end_vacancy(&mut self, now: Time) -> (Vec<(Waiter, LoopId, B)>, u32) {
        debug_assert!(self.vacated > 0, "a vacancy ends that has not begun");
        self.vacated = self.vacated.saturating_sub(1);
        self.hand_out(now)
    }

    fn hand_out(&mut self, now: Time) -> (Vec<(Waiter, LoopId, B)>, u32) {
        if self.is_closed() {
            return (Vec::new(), 0);
        }
        let mut handed = Vec::new();
        let mut unfit = Vec::new();
        while self.waiting_count() > 0
            && let Some(idle) = self.idle.pop()
        {
            match self.next_waiter(idle.home, idle.has, |_| false, now) {
                Some(waiter) => {
                    self.lent.add(waiter.client.home);
                    handed.push((waiter, idle.home, idle.backend));
                }
                None => unfit.push(idle), // see `take_unfit`
            }
        }
        self.idle.extend(unfit.into_iter().rev());
        (handed, self.openings_due(now))
    }
}
