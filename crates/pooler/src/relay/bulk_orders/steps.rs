//! Orders that concern many clients begin, and are carried out.

use std::mem::discriminant;
use std::sync::Arc;
use std::time::Duration;

use crate::ids::{PoolId, Slot};
use crate::relay::backend::PoolRef;
use crate::relay::bulk_orders::{BulkOrder, Order};
use crate::relay::client::Client;
use crate::relay::client_info::ClientState;
use crate::relay::host::Host;
use crate::relay::limits;
use crate::relay::socket::Socket;
use crate::relay::table::Engine;
use crate::time::Time;
use crate::wire::error::ClientError;

impl<S: Socket> Engine<S> {
    /// An order for all clients, of this pool or of all. It begins at once.
    pub(crate) fn order<H: Host<S>>(
        &mut self,
        host: &mut H,
        order: Order,
        pool: Option<PoolId>,
        now: Time,
    ) {
        let left = self.clients.end();
        let same = self.bulk_orders.under_way.iter_mut().find(|bulk_order| {
            bulk_order.pool == pool && discriminant(&*bulk_order.order) == discriminant(&order)
        });
        let order = Arc::new(order);
        match same {
            Some(bulk_order) => {
                (bulk_order.order, bulk_order.began, bulk_order.left) = (order, now, left);
            }
            None => {
                let bulk_order = BulkOrder { order, pool, began: now, at: 0, left };
                self.bulk_orders.under_way.push_back(bulk_order);
            }
        }
        self.run_errands(host, now);
    }

    /// Clients that have waited so long for a pool whose server refuses get the error.
    pub(crate) fn refuse_waiters<H: Host<S>>(
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
    pub(crate) fn run_errands<H: Host<S>>(&mut self, host: &mut H, now: Time) {
        while self.bulk_orders.looked_at < limits::CLIENTS_A_TURN {
            let Some(bulk_order) = self.bulk_orders.under_way.front_mut() else { return };
            if bulk_order.left == 0 {
                self.bulk_orders.under_way.pop_front();
                continue;
            }
            self.bulk_orders.looked_at += 1;
            // Counted before it is done: a panic at one client must not come again.
            let at = bulk_order.at;
            bulk_order.left -= 1;
            bulk_order.at = (at + 1) % self.clients.end().max(1);
            let Some((slot, client)) = self.clients.range(at..at + 1).next() else { continue };
            let pool = self.pools[client.pool as usize].pool.id;
            if bulk_order.concerns(pool, client.record.about.connected) {
                let order = bulk_order.order.clone();
                self.carry_out(host, &order, slot, now);
            }
        }
    }

    fn carry_out<H: Host<S>>(&mut self, host: &mut H, order: &Order, slot: Slot, now: Time) {
        match order {
            Order::Kill(error) => self.say_goodbye(host, slot, error, now),
            Order::Drain => self.drain_if_idle(host, slot, now),
            Order::Judge => self.see_rules_for(host, slot),
            Order::Refuse(error, since) => {
                let waits = |client: &Client<S>| {
                    client.serving.state == ClientState::Waiting && client.times.since() <= *since
                };
                if self.clients.get(slot).is_some_and(waits) {
                    self.say_goodbye(host, slot, error, now);
                }
            }
        }
    }
}
