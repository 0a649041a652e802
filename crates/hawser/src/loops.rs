//! Between the control side and the event loops: messages to loops, and what loops ask for.
//!
//! # Model
//! The control side sends [`ToLoop`] messages into the loops' mailboxes. What a loop asks of it
//! (open a backend, send a cancel request) goes through [`Control`].
//!
//! # Why an unbounded channel for what loops ask
//! A loop may not wait. The channel is bounded in effect: openings by the pools' sizes (each one is
//! counted as opening until it is answered), cancels by one for each backend in use.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use hawser_core::engine::message::PoolRef;
use hawser_core::engine::{CancelRequest, ToLoop};
use hawser_core::ids::LoopId;
use hawser_core::time::Time;
use tokio::sync::mpsc;

use crate::socket::Conn;

/// A client's connection as the loops have it.
pub type ClientSocket = Conn;
/// A pool as this program has it.
pub type Pool = PoolRef<Conn>;

/// Where messages for one loop are put. Putting one in never waits.
pub trait Mailbox: Send + Sync {
    /// Puts a message in and wakes the loop.
    fn send(&self, message: ToLoop<Conn>);
}

struct Place {
    mailbox: Arc<dyn Mailbox>,
    clients: Arc<AtomicUsize>,
}

/// The event loops, as the control side sees them.
pub struct Loops {
    places: Box<[Place]>,
    started: Instant,
}

impl std::fmt::Debug for Loops {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Loops").field("count", &self.count()).finish_non_exhaustive()
    }
}

impl Loops {
    /// From the loops' mailboxes, in order; `started` is the moment that their [`Time`] counts from.
    ///
    /// # Panics
    /// If there is none.
    pub fn new(mailboxes: Vec<Arc<dyn Mailbox>>, started: Instant) -> Self {
        assert!(!mailboxes.is_empty(), "a process has at least one event loop");
        let places = mailboxes
            .into_iter()
            .map(|mailbox| Place { mailbox, clients: Arc::default() })
            .collect();
        Self { places, started }
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
    pub fn send(&self, to: LoopId, message: ToLoop<Conn>) {
        if let Some(place) = self.places.get(usize::from(to.0)) {
            place.mailbox.send(message);
        }
    }

    /// Sends to each loop what `message` makes.
    pub fn send_all(&self, mut message: impl FnMut() -> ToLoop<Conn>) {
        for place in &self.places {
            place.mailbox.send(message());
        }
    }

    /// The loop with the fewest clients.
    pub fn least_loaded(&self) -> LoopId {
        let load = |id: &LoopId| self.places[usize::from(id.0)].clients.load(Ordering::Relaxed);
        self.ids().min_by_key(load).unwrap_or(LoopId(0))
    }

    /// Chooses the loop for a new client, and counts the client there until the seat is dropped.
    pub fn seat(&self) -> Seat {
        let home = self.least_loaded();
        let clients = self.places[usize::from(home.0)].clients.clone();
        clients.fetch_add(1, Ordering::Relaxed);
        Seat { home, clients }
    }

    /// Now, as the loops count time.
    pub fn now(&self) -> Time {
        self.time_of(Instant::now())
    }

    /// A moment, as the loops count time.
    pub fn time_of(&self, moment: Instant) -> Time {
        let micros = moment.saturating_duration_since(self.started).as_micros();
        Time::from_micros(u64::try_from(micros).unwrap_or(u64::MAX))
    }
}

/// A client's place with a loop.
#[derive(Debug)]
pub struct Seat {
    /// The loop.
    pub home: LoopId,
    clients: Arc<AtomicUsize>,
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.clients.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a loop asks for.
pub enum Order {
    /// A backend for this pool; it is counted as opening already.
    Open {
        /// The pool.
        pool: Pool,
        /// Where the answer goes.
        home: LoopId,
    },
    /// A cancel request for a server.
    Cancel(CancelRequest),
}

/// What the loops have to ask the control side. Never waits; any thread may call it.
#[derive(Clone, Debug)]
pub struct Control {
    orders: mpsc::UnboundedSender<Order>,
}

impl Control {
    /// The handle, and where its orders come out.
    pub fn new() -> (Self, mpsc::UnboundedReceiver<Order>) {
        let (orders, receiver) = mpsc::unbounded_channel();
        (Self { orders }, receiver)
    }

    /// Has a backend opened. [`ToLoop::Opened`] or [`ToLoop::OpenFailed`] comes to `home`.
    pub fn open(&self, pool: Pool, home: LoopId) {
        // Nobody takes orders any more only when the process ends.
        let _ = self.orders.send(Order::Open { pool, home });
    }

    /// Has a cancel request sent. [`ToLoop::CancelDone`] comes to `request.reply_to`.
    pub fn cancel(&self, request: CancelRequest) {
        let _ = self.orders.send(Order::Cancel(request));
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::sync::Mutex;

    use super::*;

    /// A mailbox that keeps what is put into it.
    #[derive(Default)]
    pub(crate) struct Kept(pub(crate) Mutex<Vec<ToLoop<Conn>>>);

    impl Mailbox for Kept {
        fn send(&self, message: ToLoop<Conn>) {
            self.0.lock().unwrap().push(message);
        }
    }

    #[test]
    fn a_new_client_sits_where_the_fewest_are() {
        let loops = Loops::new(
            (0..3).map(|_| Arc::new(Kept::default()) as Arc<dyn Mailbox>).collect(),
            Instant::now(),
        );
        let seats: Vec<Seat> = (0..3).map(|_| loops.seat()).collect();
        let homes: Vec<u16> = seats.iter().map(|seat| seat.home.0).collect();
        assert_eq!(homes, [0, 1, 2]);
        drop(seats.into_iter().nth(1));
        assert_eq!(loops.seat().home, LoopId(0), "all have left, the first is taken");
    }

    #[test]
    fn a_message_reaches_its_loop_alone() {
        let kept: Vec<Arc<Kept>> = (0..2).map(|_| Arc::default()).collect();
        let boxes = kept.iter().map(|kept| kept.clone() as Arc<dyn Mailbox>).collect();
        let loops = Loops::new(boxes, Instant::now());
        loops.send(LoopId(1), ToLoop::Cancel { process: 1, key: Box::default() });
        assert_eq!(kept[0].0.lock().unwrap().len(), 0);
        assert_eq!(kept[1].0.lock().unwrap().len(), 1);
        loops.send_all(|| ToLoop::Cancel { process: 1, key: Box::default() });
        assert_eq!(kept[0].0.lock().unwrap().len(), 1);
    }
}
