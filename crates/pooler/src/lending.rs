//! Decides which client gets which backend, and when: one queue for all event loops.
//!
//! # Model
//! A backend is *idle* (kept here), *lent* (with a client, or on its way to one) or *opening*.
//! Clients that find none idle wait in one queue, which has a line for each loop, in order of
//! arrival.
//!
//! # Invariants
//! * while a client waits and the pool is neither paused nor disabled, no backend that it may have
//!   is idle ([`CustomNames`])
//! * a backend is in one place: it is moved, never shared
//! * a waiter is overtaken by at most `limits.size` later ones (`queue` says who is later), and by 32 more for
//!   each backend that its loop would have beyond its share with the one that it waits for (`lent_count`), of those
//!   that came not much later. Those of a higher priority do not count, and pass it in the first
//!   [`PASSED_MAX`] of its wait only (`priority`)
//! * `counted() <= size + reserve_size`, where backends that sit idle in a transaction (*parked*)
//!   do not count, up to `idle_transaction_reserve` of them, nor, once all others wait for locks,
//!   those, up to `lock_wait_reserve` of them
//!
//! # Why a released backend may skip the head of the queue
//! Handing it to another loop costs two `epoll_ctl` and a wake-up; a client with other
//! settings or statements than the last one's costs more, in the server. It therefore goes to the
//! nearest of the next few waiters of its loop (`likeness`, `queue`), and the bound on overtaking
//! keeps that fair.
//!
//! # Why one lock, and not messages between the loops' queues
//! "No one waits while a backend is free on any loop" then needs an answer from every loop before a
//! client may wait. One short lock (a few dozen instructions, never held over a system call) gives
//! it by construction; see docs/decisions/0001.

mod database;
pub(crate) mod departed_servers;
pub(crate) mod lent_count;
mod likeness;
pub(crate) mod lock;
pub(crate) mod priority;
pub(crate) mod process_state;
mod queue;
pub(crate) mod scheduler;
mod shared;
mod stats;

pub use database::Database;
pub use departed_servers::DepartedServers;
pub use lent_count::UNEVEN;
pub use likeness::{Has, Wish};
pub use priority::{PASSED_MAX, Priority};
pub use process_state::{Lasting, buffers_of};
pub use queue::{SAME_MOMENT, Waiter};
pub use scheduler::{Acquired, Limits, OpenOne, Pool, Released};
pub use shared::{Fidelity, PoolSettings, SharedPool};
pub use stats::{
    Counter, HISTOGRAM_BOUNDS_US, Histogram, ListenStats, LoopStats, PoolStats, Return, Returns,
};

#[cfg(test)]
mod tests;
