//! Orders that concern many clients, carried out on some of them a turn: ten thousand goodbyes take a
//! tenth of a second.
//!
//! # Model
//! ```text
//!   KillAll, Drain, Refuse ─► errand ─► limits::CLIENTS_A_TURN places of the table a turn ─► once round
//! ```
//! While any is under way the host does not sleep.
//!
//! # Invariants
//! * each client that was there when an errand began is looked at once; one that connects more than
//!   [`SKEW`] later stays
//! * there is one errand of a kind and pool: the same order again goes once more round

use std::collections::VecDeque;
use std::mem::discriminant;
use std::sync::Arc;
use std::time::Duration;

use super::about::ClientState;
use super::backend::PoolRef;
use super::client::Client;
use super::host::Host;
use super::limits;
use super::socket::Socket;
use super::table::Engine;
use crate::ids::{PoolId, Slot};
use crate::time::Time;
use crate::wire::error::ClientError;

/// A turn has the time of its beginning, and a client that of its connecting, which may be later in the
/// same turn.
const SKEW: Duration = Duration::from_secs(1);

/// What becomes of a client.
pub(super) enum Order {
    /// It gets this error, and is disconnected.
    Kill(ClientError),
    /// The same if it has waited for a server connection since this moment or longer.
    Refuse(ClientError, Time),
    /// It leaves if it is in no transaction: see [`super::succession::Departure`].
    Drain,
}

/// An order, and the clients that it still concerns.
struct Errand {
    order: Arc<Order>,
    /// Of this pool only.
    pool: Option<PoolId>,
    began: Time,
    /// The next place in the table, and how many are left.
    at: u32,
    left: u32,
}

impl Errand {
    fn concerns(&self, pool: PoolId, connected: Time) -> bool {
        self.pool.is_none_or(|of| of == pool) && connected <= self.began.after(SKEW)
    }
}

/// Errands under way, in order.
#[derive(Default)]
pub(super) struct Errands {
    under_way: VecDeque<Errand>,
    /// Places that have been looked at in this turn.
    looked_at: u32,
}

impl Errands {
    pub(super) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// A turn ends.
    pub(super) fn end_turn(&mut self) {
        self.looked_at = 0;
    }
}

impl<S: Socket> Engine<S> {
    /// An order for all clients, of this pool or of all. It begins at once.
    pub(super) fn order<H: Host<S>>(
        &mut self,
        host: &mut H,
        order: Order,
        pool: Option<PoolId>,
        now: Time,
    ) {
        let left = self.clients.end();
        let same = self.errands.under_way.iter_mut().find(|errand| {
            errand.pool == pool && discriminant(&*errand.order) == discriminant(&order)
        });
        let order = Arc::new(order);
        match same {
            Some(errand) => (errand.order, errand.began, errand.left) = (order, now, left),
            None => {
                let errand = Errand { order, pool, began: now, at: 0, left };
                self.errands.under_way.push_back(errand);
            }
        }
        self.run_errands(host, now);
    }

    /// Clients that have waited so long for a pool whose server refuses get the error.
    pub(super) fn refuse_waiters<H: Host<S>>(
        &mut self,
        host: &mut H,
        pool: &PoolRef<S>,
        error: ClientError,
        waited: Duration,
        now: Time,
    ) {
        let waited = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
        if let Some(since) = now.as_micros().checked_sub(waited) {
            let since = Time::from_micros(since);
            self.order(host, Order::Refuse(error, since), Some(pool.id), now);
        }
    }

    /// Carries out what this turn still may.
    pub(super) fn run_errands<H: Host<S>>(&mut self, host: &mut H, now: Time) {
        while self.errands.looked_at < limits::CLIENTS_A_TURN {
            let Some(errand) = self.errands.under_way.front_mut() else { return };
            if errand.left == 0 {
                self.errands.under_way.pop_front();
                continue;
            }
            self.errands.looked_at += 1;
            // Counted before it is done: a panic at one client must not come again.
            let at = errand.at;
            errand.left -= 1;
            errand.at = (at + 1) % self.clients.end().max(1);
            let Some((slot, client)) = self.clients.range(at..at + 1).next() else { continue };
            let pool = self.pools[client.pool as usize].pool.id;
            if errand.concerns(pool, client.record.about.connected) {
                let order = errand.order.clone();
                self.carry_out(host, &order, slot, now);
            }
        }
    }

    fn carry_out<H: Host<S>>(&mut self, host: &mut H, order: &Order, slot: Slot, now: Time) {
        match order {
            Order::Kill(error) => self.say_goodbye(host, slot, error, now),
            Order::Drain => self.drain_if_idle(host, slot, now),
            Order::Refuse(error, since) => {
                let waits = |client: &Client<S>| {
                    client.serving.state() == ClientState::Waiting && client.times.since() <= *since
                };
                if self.clients.get(slot).is_some_and(waits) {
                    self.say_goodbye(host, slot, error, now);
                }
            }
        }
    }
}
