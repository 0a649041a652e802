//! What other threads ask of a link's worker, and what it says of itself.
//!
//! # Invariants
//! * at most [`ORDERS_MAX`] orders wait

use std::collections::VecDeque;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hawser_sys::eventfd::EventFd;

use super::keys::PublicKey;
use super::report::Report;

/// Orders that may wait: a pool that dials more at once gets the error that the link is busy.
pub const ORDERS_MAX: usize = 4096;

/// An order.
#[derive(Debug)]
pub enum Order {
    /// End all connections, and the thread.
    End,
    /// These are the other end's keys from now on: paths of others are closed.
    Peers {
        /// Those of the configuration.
        fixed: Vec<PublicKey>,
        /// A file of further ones.
        file: Option<PathBuf>,
    },
    /// The near end: carry this connection, which does not block, to that target.
    Open(UnixStream, String),
}

/// Orders, and what wakes the worker for them.
#[derive(Debug)]
pub struct Control {
    pub(super) wake: EventFd,
    orders: Mutex<VecDeque<Order>>,
    /// What the worker has last said of itself: read without waiting for it.
    report: Mutex<Option<Arc<Report>>>,
}

impl Control {
    pub(super) fn new() -> io::Result<Self> {
        Ok(Self { wake: EventFd::new()?, orders: Mutex::default(), report: Mutex::default() })
    }

    fn orders(&self) -> MutexGuard<'_, VecDeque<Order>> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives an order.
    ///
    /// # Errors
    /// [`io::ErrorKind::QuotaExceeded`]: [`ORDERS_MAX`] wait.
    pub fn give(&self, order: Order) -> io::Result<()> {
        let mut orders = self.orders();
        if orders.len() >= ORDERS_MAX && matches!(order, Order::Open(..)) {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        orders.push_back(order);
        drop(orders);
        self.wake.signal()
    }

    /// What the worker is doing, as of a second ago at most; none before it runs.
    #[must_use]
    pub fn report(&self) -> Option<Arc<Report>> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn publish(&self, report: Report) {
        *self.report.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(report));
    }

    pub(super) fn take(&self) -> VecDeque<Order> {
        std::mem::take(&mut *self.orders())
    }
}
