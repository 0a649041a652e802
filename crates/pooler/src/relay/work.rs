//! What one event causes on other connections.
//!
//! # Model
//! Work on one client never serves another. What a client's message or a server's answer causes
//! elsewhere is put into a queue, and the entry points of the engine (an event, a message, a tick)
//! work that off before they return (the next one, after a panic):
//! ```text
//!   event ──► read, decide, write ──► Lend, Resume, LastWords ... ──► queue ──► the same, one by one
//! ```
//! So a client's slot, its backend and the loop's buffers are unchanged after any call, and the
//! depth of the stack does not depend on how many clients wait.
//!
//! # Order
//! First in, first out. A backend that a finished transaction gives back is lent before the
//! finished client continues, and small answers wait for the end of the turn ([`crate::relay::answer`]):
//! so the next waiter's message is written to the server before the finished client is answered.
//!
//! # Bounds
//! A backend is in at most one entry, and an event causes a bounded number of reads
//! ([`limits::READS_AN_EVENT_MAX`](crate::relay::limits::READS_AN_EVENT_MAX)), so the queue is not longer
//! than the clients and backends of these reads.

mod steps;

use std::collections::VecDeque;

use crate::ids::{BackendId, Slot};
use crate::relay::backend::Backend;
use crate::relay::socket::{Socket, Token};

/// One step.
pub(crate) enum Work<S: Socket> {
    /// A backend of this loop goes to a client of this loop that waits for one.
    Lend { client: Slot, backend: Box<Backend<S>> },
    /// A client continues with what it has sent: what it waited for has come.
    Resume(Slot),
    /// A client's backend cannot be written to: the server's last messages are read.
    LastWords { client: Slot, backend: Option<BackendId>, reason: &'static str },
    /// A client has closed its side, and everything that it sent before has been processed.
    HungUp(Slot),
    /// A backend without a client, by its place, has bytes to read.
    Tidy(Slot),
}

impl<S: Socket> Work<S> {
    /// The connection of this step.
    fn about(&self) -> Token {
        match self {
            Self::Lend { client, .. }
            | Self::Resume(client)
            | Self::LastWords { client, .. }
            | Self::HungUp(client) => Token::Client(*client),
            Self::Tidy(place) => Token::Backend(*place),
        }
    }
}

/// Steps that are due, in order.
pub(crate) struct WorkQueue<S: Socket> {
    due: VecDeque<Work<S>>,
    /// The connection of the current event or step, in case of a panic.
    at: Option<Token>,
}

impl<S: Socket> WorkQueue<S> {
    pub(crate) fn new() -> Self {
        Self { due: VecDeque::new(), at: None }
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.due.is_empty()
    }

    fn take(&mut self) -> Option<Work<S>> {
        let work = self.due.pop_front();
        self.at = work.as_ref().map(Work::about);
        work
    }

    /// The connection of the work that was in progress when a panic came.
    pub(crate) fn take_at(&mut self) -> Option<Token> {
        self.at.take()
    }

    /// An event of this client begins, until [`WorkQueue::end`].
    #[inline]
    pub(crate) fn begin(&mut self, client: Slot) {
        self.at = Some(Token::Client(client));
    }

    #[inline]
    pub(crate) fn end(&mut self) {
        self.at = None;
    }

    /// The backends that were to go to this client.
    pub(crate) fn take_lent(&mut self, to: Slot) -> Vec<Box<Backend<S>>> {
        let (lent, others): (VecDeque<_>, VecDeque<_>) = std::mem::take(&mut self.due)
            .into_iter()
            .partition(|work| matches!(work, Work::Lend { client, .. } if *client == to));
        self.due = others;
        let backend = |work| match work {
            Work::Lend { backend, .. } => Some(backend),
            _ => None,
        };
        lent.into_iter().filter_map(backend).collect()
    }

    /// Whether a client continues in a step that is due.
    fn resumes(&self, client: Slot) -> bool {
        self.due.iter().any(|work| matches!(work, Work::Resume(slot) if *slot == client))
    }
}
