//! What an engine finds around it: sockets, messages, servers to be opened, cancels to be sent.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use hawser_pooler::ids::LoopId;
use hawser_pooler::relay::backend::PoolRef;
use hawser_pooler::relay::message::Event;
use hawser_pooler::relay::succession::{Arrival, MovedClient};
use hawser_pooler::relay::{CancelRequest, Host, Socket, ToLoop, Token};
use hawser_pooler::time::Time;

use crate::net::mailbox::Mailbox;
use crate::net::{self, Owner, SimSocket};
use crate::rng::Rng;

/// Sender of what comes from logins, servers and operators, not from a loop.
pub(super) const OUTSIDE: Owner = Owner(1000);
/// Receiver of clients' edges.
pub(super) const CLIENTS: Owner = Owner(1001);
/// Receiver of edges of connections that have not logged in.
pub(super) const LOBBY: Owner = Owner(1002);

/// The owner that stands for a loop.
pub(super) fn owner(id: LoopId) -> Owner {
    Owner(usize::from(id.0))
}

/// A moment as the engine counts it.
pub(super) fn moment(now: Duration) -> Time {
    Time::from_micros(u64::try_from(now.as_micros()).unwrap_or(u64::MAX))
}

/// Up to `most`, never nothing.
pub(super) fn delay(rng: &mut Rng, most: Duration) -> Duration {
    Duration::from_nanos(1 + rng.below(u64::try_from(most.as_nanos()).unwrap_or(u64::MAX)))
}

/// A simulated socket as the engine uses it.
#[derive(Debug)]
pub struct Stream(pub(super) SimSocket);

impl Socket for Stream {
    type Permit = ();

    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read(buf)
    }
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.write(buf)
    }
    fn shutdown(&mut self) {
        self.0.shutdown_write();
    }
}

/// What is done wrongly on purpose, to see that it is noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sabotage {
    /// Nothing.
    #[default]
    None,
    /// One message between loops in so many is lost.
    LosesMessages(u64),
    /// One edge for a loop in so many is lost.
    LosesEdges(u64),
    /// A cancel request is called done before the server has it.
    CancelsLate,
    /// Backends get this query unknown to the engines while they are idle.
    Soils(&'static str),
    /// Backends get another unnamed statement unknown to the engines.
    ReplacesUnnamed,
}

/// A backend that is being opened.
pub(super) struct Opening {
    pub(super) due: Duration,
    pub(super) pool: PoolRef<Stream>,
    pub(super) home: LoopId,
    pub(super) epoch: u32,
    /// It is to listen for clients, and is none of the pool's backends.
    pub(super) listens: bool,
}

/// A cancel request on its way to the server.
pub(super) struct Cancelling {
    pub(super) due: Duration,
    pub(super) request: CancelRequest,
}

/// The surroundings of the engines that they can act upon.
pub(super) struct Outside {
    pub(super) now: Duration,
    pub(super) rng: Rng,
    pub(super) mailbox: Mailbox<ToLoop<Stream>>,
    pub(super) openings: Vec<Opening>,
    pub(super) cancels: Vec<Cancelling>,
    pub(super) opening_max: Duration,
    pub(super) cancel_max: Duration,
    /// Clients that have left their loop as for another process.
    pub(super) moved: u64,
    pub(super) sabotage: Sabotage,
    /// Why connections ended, and how many.
    pub(super) backends_closed: BTreeMap<String, u64>,
    pub(super) clients_closed: BTreeMap<String, u64>,
}

impl Outside {
    /// Sends a message to a loop.
    pub(super) fn send(&mut self, from: Owner, to: LoopId, message: ToLoop<Stream>) {
        if let Sabotage::LosesMessages(of) = self.sabotage
            && from != OUTSIDE
            && self.rng.below(of) == 0
        {
            return;
        }
        self.mailbox.send(self.now, from, owner(to), message);
    }
}

/// The host of one loop.
pub(super) struct SimHost<'a> {
    pub(super) id: LoopId,
    pub(super) outside: &'a mut Outside,
}

impl Host<Stream> for SimHost<'_> {
    fn watch(&mut self, socket: &Stream, token: Token) -> io::Result<()> {
        socket.0.register(owner(self.id), net::Token(token.to_bits()));
        Ok(())
    }

    fn unwatch(&mut self, socket: &Stream, _home: LoopId) {
        socket.0.deregister();
    }

    fn send(&mut self, to: LoopId, message: ToLoop<Stream>) {
        self.outside.send(owner(self.id), to, message);
    }

    /// Clients come back as from another process.
    fn give(&mut self, home: LoopId, client: MovedClient<Stream>) {
        self.outside.moved += 1;
        let arrival = Arrival::FromPredecessor;
        self.outside.send(owner(self.id), home, ToLoop::TakeClient(Box::new(client), arrival));
        self.outside.send(OUTSIDE, home, ToLoop::GiveClients(1));
    }

    fn open(&mut self, pool: &PoolRef<Stream>, home: LoopId) {
        let outside = &mut *self.outside;
        let due = outside.now + delay(&mut outside.rng, outside.opening_max);
        let epoch = pool.epoch();
        let listens = false;
        outside.openings.push(Opening { due, pool: pool.clone(), home, epoch, listens });
    }

    fn open_listener(&mut self, pool: &PoolRef<Stream>, home: LoopId) {
        self.open(pool, home);
        if let Some(opening) = self.outside.openings.last_mut() {
            opening.listens = true;
        }
    }

    fn cancel(&mut self, request: CancelRequest) {
        let outside = &mut *self.outside;
        let due = outside.now + delay(&mut outside.rng, outside.cancel_max);
        if outside.sabotage == Sabotage::CancelsLate {
            let done = ToLoop::CancelDone(request.backend);
            outside.send(OUTSIDE, request.reply_to, done);
        }
        outside.cancels.push(Cancelling { due, request });
    }

    fn event(&mut self, event: Event<'_>) {
        let (counts, reason) = match event {
            Event::BackendClosed { reason, .. } => (&mut self.outside.backends_closed, reason),
            Event::ClientClosed { reason, .. } => (&mut self.outside.clients_closed, reason),
            Event::SettingsMismatch { .. } => {
                let reason = "the server reported other settings than it was given";
                (&mut self.outside.backends_closed, reason)
            }
            Event::ClientEntered { .. }
            | Event::CatalogChanged { .. }
            | Event::ReportUnreadable { .. }
            | Event::SlowTransaction { .. }
            | Event::RuleMatched { .. }
            | Event::ErrorSent { .. } => return,
        };
        *counts.entry(reason.to_owned()).or_default() += 1;
    }
}
