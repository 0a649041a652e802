//! What one event leads to beside the connection that it is about.
//!
//! # Model
//! Work on one client never serves another. What a client's message or a server's answer leads to
//! elsewhere is put into a queue, and the entry points of the engine (an event, a message, a tick) work
//! that off before they return (what a panic has left, the next of them):
//! ```text
//!   event ──► read, decide, write ──► Lend, Resume, LastWords ... ──► queue ──► the same, one by one
//! ```
//! So a client's slot, its backend and the loop's buffers are what they were after any call, and the
//! depth of the stack does not depend on how many clients wait.
//!
//! # Order
//! First in, first out. A backend that a finished transaction gives back is lent before the finished
//! client goes on, and small answers wait for the end of the turn ([`super::answer`]): so the next
//! waiter's message is written to the server before the finished client is answered.
//!
//! # Bounds
//! A backend is in at most one entry, and an event leads to a bounded number of reads
//! ([`limits::READS_AN_EVENT_MAX`](super::limits::READS_AN_EVENT_MAX)), so the queue is not longer than
//! the clients and backends that these reads concern.

use std::collections::VecDeque;

use super::backend::Backend;
use super::client::Client;
use super::host::Host;
use super::message::ClientState;
use super::socket::{Socket, Token};
use super::table::{Engine, Holder};
use crate::ids::{BackendId, Slot};
use crate::time::Time;

/// One step.
pub(super) enum Work<S: Socket> {
    /// A backend of this loop goes to a client of this loop that waits for one.
    Lend { client: Slot, backend: Box<Backend<S>> },
    /// A client goes on with what it has sent: what it waited for has come.
    Resume(Slot),
    /// A client's backend cannot be written to: what the server said before it went is read.
    LastWords { client: Slot, backend: Option<BackendId>, reason: &'static str },
    /// A client has closed its side, and what it sent before has been seen to.
    HungUp(Slot),
    /// A backend without a client, by its place, has something to be read.
    Tidy(Slot),
}

impl<S: Socket> Work<S> {
    /// Which connection it is about.
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
pub(super) struct WorkQueue<S: Socket> {
    due: VecDeque<Work<S>>,
    /// What the event or step at hand is about, in case of a panic.
    at: Option<Token>,
}

impl<S: Socket> WorkQueue<S> {
    pub(super) fn new() -> Self {
        Self { due: VecDeque::new(), at: None }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.due.is_empty()
    }

    fn take(&mut self) -> Option<Work<S>> {
        let work = self.due.pop_front();
        self.at = work.as_ref().map(Work::about);
        work
    }

    /// What the work was about that was under way when a panic came.
    pub(super) fn take_at(&mut self) -> Option<Token> {
        self.at.take()
    }

    /// An event is on account of this client, until [`WorkQueue::end`].
    #[inline]
    pub(super) fn begin(&mut self, client: Slot) {
        self.at = Some(Token::Client(client));
    }

    #[inline]
    pub(super) fn end(&mut self) {
        self.at = None;
    }

    /// The backends that were to go to this client.
    pub(super) fn take_lent(&mut self, to: Slot) -> Vec<Box<Backend<S>>> {
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

    /// Whether a client goes on in a step that is due.
    fn resumes(&self, client: Slot) -> bool {
        self.due.iter().any(|work| matches!(work, Work::Resume(slot) if *slot == client))
    }
}

impl<S: Socket> Client<S> {
    /// Whether it has sent something that may be gone on with.
    #[inline]
    fn can_resume(&self) -> bool {
        (self.readable || !self.input.is_empty())
            && !matches!(self.state, ClientState::Waiting | ClientState::Closing)
    }
}

impl<S: Socket> Engine<S> {
    /// A backend is to go to a client of this loop.
    pub(super) fn lend_later(&mut self, client: Slot, backend: Box<Backend<S>>) {
        if let Some(resident) = self.resident.get_mut(backend.place) {
            resident.holder = Holder::Client(client); // what a panic would lose with the client
        }
        self.work.due.push_back(Work::Lend { client, backend });
    }

    /// A client is to go on with what it has sent. `false`: there is nothing.
    pub(super) fn resume_later(&mut self, slot: Slot) -> bool {
        let resumes = self.clients.get(slot).is_some_and(Client::can_resume);
        if resumes {
            self.work.due.push_back(Work::Resume(slot));
        }
        resumes
    }

    /// A client's backend cannot be written to: what the server said before it went, mostly why, is
    /// still to be read.
    pub(super) fn backend_lost(&mut self, slot: Slot, reason: &'static str) {
        let backend = self.clients.get_mut(slot).and_then(|client| client.backend.as_mut());
        let backend = backend.map(|backend| {
            (backend.hung_up, backend.readable) = (true, true);
            backend.spoiled.get_or_insert(reason);
            backend.id
        });
        self.work.due.push_back(Work::LastWords { client: slot, backend, reason });
    }

    /// A backend without a client is to be read: nobody gets it before.
    pub(super) fn tidy_later(&mut self, place: Slot) {
        self.work.due.push_back(Work::Tidy(place));
    }

    /// A client has closed its side: that is seen to after what it sent before.
    pub(super) fn hang_up_later(&mut self, slot: Slot) {
        self.work.due.push_back(Work::HungUp(slot));
    }

    /// Does what is due, and what that leads to.
    #[inline]
    pub(super) fn work_off<H: Host<S>>(&mut self, host: &mut H, now: Time) {
        if !self.work.is_empty() {
            self.work_on(host, now);
        }
    }

    fn work_on<H: Host<S>>(&mut self, host: &mut H, now: Time) {
        while let Some(work) = self.work.take() {
            match work {
                Work::Lend { client, backend } => self.lend(host, client, backend, now),
                Work::Resume(slot) => self.resume(host, slot, now),
                Work::LastWords { client, backend, reason } => {
                    self.read_last_words(host, client, backend, reason, now);
                }
                Work::Tidy(place) => self.read_tidied(host, place, now),
                Work::HungUp(slot) if self.work.resumes(slot) => self.hang_up_later(slot),
                Work::HungUp(slot) => {
                    if !self.again.hangs_up(Token::Client(slot)) {
                        self.client_hung_up(host, slot, now);
                    }
                }
            }
        }
    }

    fn resume<H: Host<S>>(&mut self, host: &mut H, slot: Slot, now: Time) {
        // What was due before may have led to a wait.
        if !self.clients.get(slot).is_some_and(Client::can_resume) {
            return;
        }
        self.resume_client(host, slot, now);
        // It may have got its backend for a message that is not here.
        if let Some(client) = self.clients.get(slot)
            && !client.held
            && client.input.is_empty()
            && !client.holds_ready()
        {
            self.give_back_if_unused(host, slot, now);
        }
        self.drain_if_idle(host, slot, now);
    }

    fn backend_of(&self, slot: Slot) -> Option<BackendId> {
        self.clients.get(slot)?.backend.as_ref().map(|backend| backend.id)
    }

    fn read_last_words<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        of: Option<BackendId>,
        reason: &'static str,
        now: Time,
    ) {
        if of.is_some() {
            if self.backend_of(slot) != of {
                return; // it is gone, and its client knows
            }
            self.read_backend(host, slot, now);
            if self.backend_of(slot) != of {
                return;
            }
        }
        self.backend_failed(host, slot, reason, now);
    }
}
