//! Between the control side and the event loops: messages to loops, and orders of loops.
//!
//! # Model
//! The control side sends [`ToLoop`] messages into the loops' mailboxes. What a loop asks of it
//! (open a backend, send a cancel request) goes through [`Control`].
//!
//! # Why an unbounded channel for orders
//! A loop may not wait. The channel is bounded in effect: openings by the pools' sizes (each one is
//! counted as opening until it is answered), cancels and databases to empty by one for each backend
//! in use, changes of start values by one a loop and [`crate::reactor::CHANGES_PERIOD`].

pub mod pages;

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hawser_pooler::ids::{ClientId, LoopId, PoolId};
use hawser_pooler::relay::backend::PoolRef;
use hawser_pooler::relay::inside::InsideSession;
use hawser_pooler::relay::succession::MovedClient;
use hawser_pooler::relay::{CancelKey, CancelRequest, Socket, ToLoop};
use hawser_pooler::time::Time;
use hawser_sys::clock;
use tokio::sync::mpsc;

use crate::mailbox::LoopMailbox;
use crate::socket::Conn;

/// A client's connection as the loops have it.
pub type ClientSocket = Conn;
/// A pool as this program has it.
pub type Pool = PoolRef<Conn>;

/// Another loop may have one more client for each 16 of the loop with the fewest: that difference
/// does not show in the loops' work.
const UNEVEN_SHARE: usize = 16;

struct Place<S: Socket> {
    mailbox: LoopMailbox<S>,
    clients: Arc<AtomicUsize>,
    /// Held by the one whose question for a page is under way: see [`pages`].
    asked: tokio::sync::Mutex<()>,
}

/// The event loops, as other threads see them. Clones are handles to the same.
pub struct Loops<S: Socket = Conn> {
    places: Arc<[Place<S>]>,
    started: Instant,
    /// The same, in microseconds of [`clock`].
    started_micros: u64,
}

impl<S: Socket> Clone for Loops<S> {
    fn clone(&self) -> Self {
        let Self { started, started_micros, .. } = *self;
        Self { places: self.places.clone(), started, started_micros }
    }
}

impl<S: Socket> std::fmt::Debug for Loops<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loops").field("count", &self.count()).finish_non_exhaustive()
    }
}

impl<S: Socket> Loops<S> {
    /// From the loops' mailboxes, in order; `started` is the moment that their [`Time`] counts from.
    ///
    /// # Panics
    /// If there is none.
    pub fn new(mailboxes: Vec<LoopMailbox<S>>, started: Instant) -> Self {
        assert!(!mailboxes.is_empty(), "a process has at least one event loop");
        let places = mailboxes
            .into_iter()
            .map(|mailbox| Place { mailbox, clients: Arc::default(), asked: Default::default() })
            .collect();
        let passed = micros(started.elapsed());
        Self { places, started, started_micros: clock::monotonic_micros() - passed }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.places.len()
    }

    /// Each loop.
    pub fn ids(&self) -> impl Iterator<Item = LoopId> {
        (0..self.places.len()).map(|at| LoopId(u16::try_from(at).unwrap_or(u16::MAX)))
    }

    /// Sends a message to a loop.
    pub fn send(&self, to: LoopId, message: ToLoop<S>) {
        let Some(place) = self.places.get(usize::from(to.0)) else { return };
        match message {
            // A place in a table where nothing happens any more: no reason to wake the loop.
            ToLoop::Departed(_) => place.mailbox.leave(message),
            _ => place.mailbox.send(message),
        }
    }

    /// Puts a message into a loop's mailbox, for when it wakes: see [`Loops::wake`].
    pub fn leave(&self, to: LoopId, message: ToLoop<S>) {
        if let Some(place) = self.places.get(usize::from(to.0)) {
            place.mailbox.leave(message);
        }
    }

    /// Wakes the loops for which something has been left.
    pub fn wake(&self) {
        for place in &*self.places {
            place.mailbox.nudge();
        }
    }

    /// Sends each loop the result of `message`.
    pub fn send_all(&self, mut message: impl FnMut() -> ToLoop<S>) {
        for place in &*self.places {
            place.mailbox.send(message());
        }
    }

    /// The loop with the fewest clients.
    pub fn least_loaded(&self) -> LoopId {
        let load = |id: &LoopId| self.places[usize::from(id.0)].clients.load(Ordering::Relaxed);
        self.ids().min_by_key(load).unwrap_or(LoopId(0))
    }

    /// How many clients a loop has.
    pub fn clients(&self, id: LoopId) -> usize {
        self.places.get(usize::from(id.0)).map_or(0, |place| place.clients.load(Ordering::Relaxed))
    }

    /// Chooses the loop for a new client, and counts the client there until the seat is dropped:
    /// the one on whose thread it has logged in, unless that has clearly more clients than the one
    /// with the fewest.
    pub fn seat(&self, near: Option<LoopId>) -> (LoopId, Seat) {
        let fewest = self.least_loaded();
        let most = self.clients(fewest) + 1 + self.clients(fewest) / UNEVEN_SHARE;
        let home = near.filter(|near| self.clients(*near) < most).unwrap_or(fewest);
        (home, self.seat_at(home))
    }

    /// The same for a client whose loop is known.
    pub fn seat_at(&self, home: LoopId) -> Seat {
        let place = self.places.get(usize::from(home.0)).unwrap_or(&self.places[0]);
        let clients = place.clients.clone();
        clients.fetch_add(1, Ordering::Relaxed);
        Seat(clients)
    }

    /// Now, as the loops count time.
    pub fn now(&self) -> Time {
        Time::from_micros(clock::monotonic_micros().saturating_sub(self.started_micros))
    }

    /// A moment, as the loops count time.
    pub fn time_of(&self, moment: Instant) -> Time {
        Time::from_micros(micros(moment.saturating_duration_since(self.started)))
    }
}

/// In 64 bits (`as_micros` has 128), which suffice for half a million years.
fn micros(passed: Duration) -> u64 {
    passed.as_secs() * 1_000_000 + u64::from(passed.subsec_micros())
}

/// A client's place with a loop.
#[derive(Debug)]
pub struct Seat(Arc<AtomicUsize>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// An order of a loop.
pub enum Order<S: Socket = Conn> {
    /// A backend for this pool; it is counted as opening already.
    Open {
        /// The pool.
        pool: PoolRef<S>,
        /// Where the answer goes.
        home: LoopId,
    },
    /// A connection that listens for this pool's clients, beside its backends.
    OpenListener {
        /// The pool.
        pool: PoolRef<S>,
        /// Where the answer goes.
        home: LoopId,
    },
    /// A statement of this client's wants a database for itself: see [`crate::pools::vacancy`].
    Vacate {
        /// The client's pool.
        pool: PoolId,
        /// The database, as the server calls it.
        database: Box<[u8]>,
        /// The client that gets [`ToLoop::Vacated`].
        client: ClientId,
    },
    /// A cancel request for a server.
    Cancel(CancelRequest),
    /// A client of this loop goes to the successor.
    Give {
        /// The loop.
        home: LoopId,
        /// The client.
        client: Box<MovedClient<S>>,
    },
    /// A client goes inside.
    GoInside {
        /// The client.
        client: ClientId,
        /// Its descriptor.
        fd: Arc<OwnedFd>,
        /// Its session.
        session: InsideSession<S>,
    },
    /// A client is wanted back from inside.
    CallBack(ClientId),
    /// What a client runs inside is to be cancelled.
    CancelInside(ClientId, Option<CancelKey>),
    /// New sessions of this pool's servers may start with other values from now on (ALTER ROLE and
    /// the like): the next client must ask for that.
    ExpectChange(PoolId),
}

/// The loops' handle to the control side. Never waits; any thread may call it.
pub struct Control<S: Socket = Conn> {
    orders: mpsc::UnboundedSender<Order<S>>,
}

impl<S: Socket> Clone for Control<S> {
    fn clone(&self) -> Self {
        Self { orders: self.orders.clone() }
    }
}

impl<S: Socket> std::fmt::Debug for Control<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Control").finish_non_exhaustive()
    }
}

impl<S: Socket> Control<S> {
    /// The handle, and the receiver of its orders.
    pub fn new() -> (Self, mpsc::UnboundedReceiver<Order<S>>) {
        let (orders, receiver) = mpsc::unbounded_channel();
        (Self { orders }, receiver)
    }

    // Sending fails only when the process ends.

    /// Has a backend opened. [`ToLoop::Opened`] or [`ToLoop::OpenFailed`] comes to `home`.
    pub fn open(&self, pool: PoolRef<S>, home: LoopId) {
        let _ = self.orders.send(Order::Open { pool, home });
    }

    /// Has a connection opened that listens. [`ToLoop::ListenerOpened`] or
    /// [`ToLoop::ListenerFailed`] comes to `home`.
    pub fn open_listener(&self, pool: PoolRef<S>, home: LoopId) {
        let _ = self.orders.send(Order::OpenListener { pool, home });
    }

    /// Has a database emptied of idle connections. [`ToLoop::Vacated`] comes to the client's loop.
    pub fn vacate(&self, pool: PoolId, database: &[u8], client: ClientId) {
        let _ = self.orders.send(Order::Vacate { pool, database: database.into(), client });
    }

    /// Has a cancel request sent. [`ToLoop::CancelDone`] comes to `request.reply_to`.
    pub fn cancel(&self, request: CancelRequest) {
        let _ = self.orders.send(Order::Cancel(request));
    }

    /// Has a client brought to the successor. [`ToLoop::TakeClient`] comes to `home` if there is none.
    pub fn give(&self, home: LoopId, client: MovedClient<S>) {
        let _ = self.orders.send(Order::Give { home, client: Box::new(client) });
    }

    /// Has a client served inside. [`ToLoop::BackFromInside`] brings it back.
    pub fn go_inside(&self, client: ClientId, fd: Arc<OwnedFd>, session: InsideSession<S>) {
        let _ = self.orders.send(Order::GoInside { client, fd, session });
    }

    /// Has a client brought back from inside.
    pub fn call_back(&self, client: ClientId) {
        let _ = self.orders.send(Order::CallBack(client));
    }

    /// Has what a client runs inside cancelled.
    pub fn cancel_inside(&self, client: ClientId, request: Option<CancelKey>) {
        let _ = self.orders.send(Order::CancelInside(client, request));
    }

    /// Has the servers of this pool asked what new sessions start with.
    pub fn expect_change(&self, pool: PoolId) {
        let _ = self.orders.send(Order::ExpectChange(pool));
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use hawser_sys::eventfd::EventFd;

    use super::*;
    use crate::mailbox::Mailbox;

    /// Mailboxes that no loop empties.
    pub(crate) fn mailboxes(count: usize) -> Vec<LoopMailbox<Conn>> {
        (0..count).map(|_| Arc::new(Mailbox::new(EventFd::new().unwrap()))).collect()
    }

    /// Empties a mailbox; returns how many messages there were.
    pub(crate) fn take_count(mailbox: &LoopMailbox<Conn>) -> usize {
        let mut taken = Vec::new();
        mailbox.take(&mut taken);
        taken.len()
    }

    #[test]
    fn a_new_client_sits_where_the_fewest_are() {
        let loops = Loops::new(mailboxes(3), Instant::now());
        let seats: Vec<(LoopId, Seat)> = (0..3).map(|_| loops.seat(None)).collect();
        let homes: Vec<u16> = seats.iter().map(|(home, _)| home.0).collect();
        assert_eq!(homes, [0, 1, 2]);
        assert_eq!(loops.clients(LoopId(1)), 1);
        drop(seats.into_iter().nth(1));
        assert_eq!(loops.clients(LoopId(1)), 0);
        assert_eq!(loops.seat(None).0, LoopId(0), "all have left, the first is taken");
    }

    #[test]
    fn a_client_that_logged_in_on_a_loop_sits_there_unless_it_is_fuller_than_the_others() {
        let loops = Loops::new(mailboxes(2), Instant::now());
        let near = |home| loops.seat(Some(LoopId(home)));
        let mut seats: Vec<(LoopId, Seat)> = [1, 1, 1, 1].into_iter().map(near).collect();
        let homes =
            |seats: &[(LoopId, Seat)]| seats.iter().map(|(home, _)| home.0).collect::<Vec<_>>();
        assert_eq!(homes(&seats), [1, 0, 1, 0], "few are spread evenly");
        seats.extend((4..320).map(|_| near(1)));
        let (fewest, most) = (loops.clients(LoopId(0)), loops.clients(LoopId(1)));
        assert_eq!(fewest + most, 320);
        assert!((1..=fewest / UNEVEN_SHARE + 1).contains(&(most - fewest)), "{fewest}, {most}");
    }

    #[test]
    fn a_message_reaches_its_loop_alone() {
        let mailboxes = mailboxes(2);
        let loops = Loops::new(mailboxes.clone(), Instant::now());
        loops.send(LoopId(1), ToLoop::Cancel { process: 1, key: [].into() });
        assert_eq!((take_count(&mailboxes[0]), take_count(&mailboxes[1])), (0, 1));
        loops.send_all(|| ToLoop::Cancel { process: 1, key: [].into() });
        assert_eq!((take_count(&mailboxes[0]), take_count(&mailboxes[1])), (1, 1));
    }
}
