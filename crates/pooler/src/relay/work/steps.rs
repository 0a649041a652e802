//! What the loop does with its queue of work.

use crate::ids::{BackendId, Slot};
use crate::relay::backend::Backend;
use crate::relay::client::Client;
use crate::relay::client_info::ClientState;
use crate::relay::host::Host;
use crate::relay::socket::{Socket, Token};
use crate::relay::table::{Engine, Holder};
use crate::relay::work::Work;
use crate::time::Time;

impl<S: Socket> Client<S> {
    /// Whether it has sent a message that may be continued.
    #[inline]
    fn can_resume(&self) -> bool {
        (self.at_socket.unread.is_any() || !self.input.is_empty())
            && !matches!(
                self.serving.state,
                ClientState::Waiting | ClientState::Closing | ClientState::Inside
            )
    }
}

impl<S: Socket> Engine<S> {
    /// A backend is to be lent to a client of this loop.
    pub(crate) fn lend_later(&mut self, client: Slot, backend: Box<Backend<S>>) {
        if let Some(resident) = self.resident.get_mut(backend.place()) {
            resident.holder = Holder::Client(client); // a panic would lose it with the client
        }
        self.work.due.push_back(Work::Lend { client, backend });
    }

    /// A client is to continue with what it has sent. `false`: there is nothing.
    pub(crate) fn resume_later(&mut self, slot: Slot) -> bool {
        let resumes = self.clients.get(slot).is_some_and(Client::can_resume);
        if resumes {
            self.work.due.push_back(Work::Resume(slot));
        }
        resumes
    }

    /// A client's backend cannot be written to: the server's last messages, mostly with the reason,
    /// are still to be read.
    pub(crate) fn backend_lost(&mut self, slot: Slot, reason: &'static str) {
        let backend = self.clients.get_mut(slot).and_then(|client| client.backend.as_mut());
        let backend = backend.map(|backend| {
            backend.from_server.unread.hangs_up();
            backend.from_server.unread.leave(true);
            backend.lending.spoil(reason);
            backend.id()
        });
        self.work.due.push_back(Work::LastWords { client: slot, backend, reason });
    }

    /// A backend without a client is to be read: no client gets it before that.
    pub(crate) fn tidy_later(&mut self, place: Slot) {
        self.work.due.push_back(Work::Tidy(place));
    }

    /// A client has closed its side: that is handled after everything that it sent before.
    pub(crate) fn hang_up_later(&mut self, slot: Slot) {
        self.work.due.push_back(Work::HungUp(slot));
    }

    /// Does the work that is due, and what that causes. (Often there is none: callers see that at
    /// once.)
    #[inline(always)]
    pub(crate) fn work_off<H: Host<S>>(&mut self, host: &mut H, now: Time) {
        if !self.work.is_empty() {
            self.work_on(host, now);
        }
    }

    #[inline(never)]
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
        // Earlier work may have led to a wait.
        if !self.clients.get(slot).is_some_and(Client::can_resume) {
            return;
        }
        self.resume_client(host, slot, now);
        // It may have got its backend for a message that has not come.
        if let Some(client) = self.clients.get(slot)
            && !client.serving.held
            && client.input.is_empty()
            && !client.holds_ready()
        {
            self.give_back_if_unused(host, slot, now);
        }
        self.drain_if_idle(host, slot, now);
    }

    fn backend_of(&self, slot: Slot) -> Option<BackendId> {
        self.clients.get(slot)?.backend.as_ref().map(|backend| backend.id())
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
