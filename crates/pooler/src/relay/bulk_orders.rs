//! Orders that concern many clients, carried out on some of them a turn: ten thousand goodbyes take a
//! tenth of a second.
//!
//! # Model
//! ```text
//!   KillAll, Drain, Refuse ─► order ─► limits::CLIENTS_A_TURN places of the table a turn ─► once round
//! ```
//! While any is under way the host does not sleep.
//!
//! # Invariants
//! * each client that was there when an order began is looked at once; one that connects more than
//!   [`SKEW`] later stays
//! * there is one order of a kind and pool: the same order again goes once more round

mod steps;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::ids::PoolId;
use crate::time::Time;
use crate::wire::error::ClientError;

/// A turn has the time of its beginning, and a client that of its connecting, which may be later in the
/// same turn.
const SKEW: Duration = Duration::from_secs(1);

/// What becomes of a client.
pub(crate) enum Order {
    /// It gets this error, and is disconnected.
    Kill(ClientError),
    /// The same if it has waited for a server connection since this moment or longer.
    Refuse(ClientError, Time),
    /// It leaves if it is in no transaction: see [`crate::relay::succession::Departure`].
    Drain,
    /// Other rules may concern it: see [`crate::parts::rules`].
    Judge,
}

/// An order, and the clients that it still concerns.
struct BulkOrder {
    order: Arc<Order>,
    /// Of this pool only.
    pool: Option<PoolId>,
    began: Time,
    /// The next place in the table, and how many are left.
    at: u32,
    left: u32,
}

impl BulkOrder {
    fn concerns(&self, pool: PoolId, connected: Time) -> bool {
        self.pool.is_none_or(|of| of == pool) && connected <= self.began.after(SKEW)
    }
}

/// Orders under way, in order.
#[derive(Default)]
pub(crate) struct BulkOrders {
    under_way: VecDeque<BulkOrder>,
    /// Places that have been looked at in this turn.
    looked_at: u32,
}

impl BulkOrders {
    pub(crate) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// A turn ends.
    pub(crate) fn end_turn(&mut self) {
        self.looked_at = 0;
    }
}
