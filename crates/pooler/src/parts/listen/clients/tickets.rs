//! What a client waits for at its pool's hub, and the hub's messages.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

use crate::ids::{LoopId, PoolId, Slot};
use crate::parts::listen::clients::{Before, Listening, Stage};
use crate::parts::listen::{Ask, Claimant, FromHub, Marker, Ticket};
use crate::relay::backend::{Backend, PoolRef, Reset};
use crate::relay::client::Client;
use crate::relay::client_info::ClientState;
use crate::relay::host::Host;
use crate::relay::message::ToLoop;
use crate::relay::socket::Socket;
use crate::relay::table::Engine;
use crate::time::Time;
use crate::wire::error::ClientError;

impl<S: Socket> Client<S> {
    /// Whether its backend is of another server than the listening connection, which then receives
    /// nothing of it: the servers of the pool are being changed.
    pub(super) fn is_on_another_server(&self, marker: &Marker) -> bool {
        self.backend.as_ref().is_some_and(|backend| backend.server() != marker.server)
    }

    pub(super) fn next_ticket(&mut self, slot: Slot) -> Option<Ticket> {
        let listening = self.listening()?;
        listening.serial = listening.serial.wrapping_add(1);
        Some(Ticket { slot, serial: listening.serial })
    }
}

impl<S: Socket> Client<S> {
    /// It is about to send a text that notifies. Returns whether that must wait, so that others can
    /// attribute the notifications: those of earlier clients on its backend may not have been
    /// received (see [`crate::parts::listen::notifiers::Notifiers`]).
    pub(crate) fn must_wait_to_notify(&mut self, backend: &Backend<S>) -> bool {
        if self.listening().is_some_and(|listening| listening.take_before(Before::Come)) {
            self.forget_no_channels();
            return false;
        }
        let is_received = backend.pool.stats.listen.channels.load(Ordering::Relaxed) > 0;
        if !is_received
            || self.is_session_mode()
            || self.serving.is_exclusive()
            || backend.known.notifying.was_received_before()
            || backend.known.notifying.is_noted()
            || backend.requests.owes_client_ready()
        {
            return false;
        }
        let listening = self.pending_session().listening.get_or_insert_default();
        // (What its backend has received since a LISTEN of this transaction stays.)
        let waits = listening.stage == Stage::AtRest && listening.pending.is_empty();
        if waits {
            listening.before_message = Before::Due;
        }
        if waits {
            self.serving.held = true;
        }
        self.forget_no_channels();
        waits
    }

    /// Drops the listening state of a client without channels that waits for nothing.
    fn forget_no_channels(&mut self) {
        if let Some(extra) = &mut self.pending_session
            && extra
                .listening
                .as_ref()
                .is_some_and(|one| one.is_nothing() && one.before_message != Before::Due)
        {
            extra.listening = None;
            self.settle();
        }
    }
}

impl<S: Socket> Engine<S> {
    /// The loop that has the listening connection of a pool.
    pub(super) fn hub_of(&self, pool: PoolId) -> LoopId {
        LoopId(u16::try_from(pool.0 % u32::from(self.loops)).unwrap_or(0))
    }

    /// Asks the hub of a client's pool, if there is something to ask.
    pub(super) fn ask_hub<H: Host<S>>(&self, host: &mut H, slot: Slot, ask: Ask) {
        let Some(client) = self.clients.get(slot).filter(|_| ask != Ask::default()) else { return };
        let pool = self.pools[client.pool as usize].pool.clone();
        host.send(self.hub_of(pool.id), ToLoop::ToHub { pool, from: self.id, ask });
    }

    /// Submits a ticket for a client, which waits from now on.
    pub(super) fn wait_for_hub<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        stage: Stage,
        mut ask: Ask,
    ) {
        let Some(client) = self.clients.get_mut(slot) else { return };
        client.serving.held = true;
        ask.claimant = client.next_ticket(slot).map(Claimant::Client);
        let Some(listening) = client.listening() else { return };
        listening.stage = stage;
        self.ask_hub(host, slot, ask);
    }

    /// A client is about to send something to a backend. Returns whether that must wait: a
    /// transaction begins once earlier notifications have come.
    pub(crate) fn clean_backend<H: Host<S>>(&mut self, host: &mut H, slot: Slot) -> bool {
        let Some(client) = self.clients.get(slot) else { return false };
        if client.awaits_listener() {
            if let Some(client) = self.clients.get_mut(slot) {
                client.serving.held = true;
            }
            return true;
        }
        let begins = client.has_channels()
            && client.backend.as_ref().is_some_and(|backend| backend.is_at_rest());
        if !begins {
            return false;
        }
        let listening = self.clients.get_mut(slot).and_then(Client::listening);
        if listening.is_some_and(|listening| listening.take_before(Before::Come)) {
            return false;
        }
        self.wait_for_hub(host, slot, Stage::Cleaning, Ask::default());
        true
    }

    /// A message of a hub has come.
    pub(crate) fn on_hub<H: Host<S>>(
        &mut self,
        host: &mut H,
        pool: &PoolRef<S>,
        said: FromHub,
        now: Time,
    ) {
        match said {
            FromHub::Notified(notification) => self.notified(host, pool, &notification, now),
            FromHub::Passed(Claimant::Client(ticket), marker) => {
                self.passed(host, ticket, &marker, now);
            }
            FromHub::Failed { claimant: Claimant::Client(ticket), lost } => {
                self.hub_failed(host, ticket, lost, now);
            }
            FromHub::Passed(Claimant::Backend(place), marker) => {
                self.backend_fenced(host, place, Some(&marker), now);
            }
            FromHub::Failed { claimant: Claimant::Backend(place), .. } => {
                self.backend_fenced(host, place, None, now);
            }
            FromHub::Marked(ticket, process) => self.marked(host, ticket, process, now),
            FromHub::Lost { error, again } => self.listener_lost(host, pool, &error, again, now),
        }
    }

    pub(super) fn waiting_with(&mut self, ticket: Ticket) -> Option<(&mut Client<S>, Stage)> {
        let client = self.clients.get_mut(ticket.slot)?;
        let stage = client.stage();
        let serial = client.listening()?.serial;
        (serial == ticket.serial && client.serving.state != ClientState::Closing)
            .then_some((client, stage))
    }

    pub(super) fn passed<H: Host<S>>(
        &mut self,
        host: &mut H,
        ticket: Ticket,
        marker: &Marker,
        now: Time,
    ) {
        let Some((client, stage)) = self.waiting_with(ticket) else { return };
        let elsewhere = client.is_on_another_server(marker);
        if let Some(backend) = client.backend.as_mut().filter(|_| !elsewhere) {
            backend.known.notifying.is_received();
        }
        match stage {
            Stage::Cleaning | Stage::Fencing => self.release_answer(host, ticket.slot, now),
            Stage::Joining if elsewhere => self.keep_joining(host, ticket.slot, now),
            Stage::Joining => self.mark_and_leave(ticket, &marker.channel),
            Stage::Ahead => self.joined_ahead(host, ticket.slot, Some(marker.clone()), now),
            Stage::TakingOver if elsewhere => self.release_answer(host, ticket.slot, now),
            Stage::TakingOver => self.return_to_backend(ticket, &marker.channel),
            Stage::AtRest
            | Stage::AfterCancel
            | Stage::Asking
            | Stage::Leaving { .. }
            | Stage::Returning { .. } => {}
        }
    }

    /// The listening connection does not join the current channels: the client's own backend
    /// listens on them, and is kept.
    pub(super) fn keep_joining<H: Host<S>>(&mut self, host: &mut H, slot: Slot, now: Time) {
        let Some(listening) = self.clients.get_mut(slot).and_then(Client::listening) else {
            return;
        };
        let after = listening.channels.difference(&listening.joining).cloned().collect();
        self.keep_to_listen(host, slot, &after, now);
    }

    /// From now on the listening connection receives everything for this client.
    pub(super) fn marked<H: Host<S>>(
        &mut self,
        host: &mut H,
        ticket: Ticket,
        process: u32,
        now: Time,
    ) {
        let Some((client, stage)) = self.waiting_with(ticket) else { return };
        let (Stage::Leaving { answered, marked: false }
        | Stage::Returning { answered, marked: false }) = stage
        else {
            return;
        };
        if client.backend.as_ref().is_none_or(|backend| backend.process() != process) {
            return; // only its own backend's counts
        }
        let returns = matches!(stage, Stage::Returning { .. });
        if let Some(listening) = client.listening() {
            listening.stage = match returns {
                true => Stage::Returning { answered, marked: true },
                false => Stage::Leaving { answered, marked: true },
            };
        }
        match (answered, returns) {
            (false, _) => {}
            (true, true) => self.has_returned(host, ticket.slot, now),
            (true, false) => self.has_left(host, ticket.slot, now),
        }
    }

    /// What a client waits for will not come.
    pub(super) fn hub_failed<H: Host<S>>(
        &mut self,
        host: &mut H,
        ticket: Ticket,
        lost: bool,
        now: Time,
    ) {
        let Some((client, stage)) = self.waiting_with(ticket) else { return };
        match stage {
            // Its own notifications have not come: it must not see its transaction as ended.
            Stage::Cleaning | Stage::Fencing | Stage::TakingOver | Stage::Ahead if lost => {}
            Stage::Cleaning | Stage::Fencing | Stage::TakingOver => {
                self.release_answer(host, ticket.slot, now);
            }
            Stage::Ahead => self.joined_ahead(host, ticket.slot, None, now),
            Stage::Joining => {
                let stays = |of: &Listening| of.channels.difference(&of.joining).next().is_some();
                if !lost || !client.listening().is_some_and(|listening| stays(listening)) {
                    self.keep_joining(host, ticket.slot, now);
                }
            }
            Stage::AtRest
            | Stage::AfterCancel
            | Stage::Asking
            | Stage::Leaving { .. }
            | Stage::Returning { .. } => {}
        }
    }

    /// The listening connection has been lost, with notifications that were still to come on it.
    pub(super) fn listener_lost<H: Host<S>>(
        &mut self,
        host: &mut H,
        pool: &PoolRef<S>,
        error: &ClientError,
        again: bool,
        now: Time,
    ) {
        let Some(board) = self.boards.get(&pool.id) else { return };
        for slot in board.all_clients() {
            let Some(client) = self.clients.get_mut(slot) else { continue };
            let stage = client.stage();
            if !again {
                if stage != Stage::AtRest
                    && let Some(backend) = &mut client.backend
                {
                    backend.lending.owe_reset(Reset::All); // it may still listen
                }
                // The next client that listens is the first again.
                let ask = self.change_channels(slot, &BTreeSet::new());
                self.ask_hub(host, slot, ask);
                self.say_goodbye(host, slot, error, now);
                continue;
            }
            let mut notice = Vec::new();
            error.write(&mut notice);
            if let Some(listening) = client.listening() {
                listening.give_up_ahead();
                listening.push(notice.into(), None);
            }
            if let Stage::Leaving { answered, marked: false } = stage {
                // The marker will not come.
                if let Some(listening) = client.listening() {
                    listening.stage = Stage::Leaving { answered, marked: true };
                }
                if answered {
                    self.has_left(host, slot, now);
                }
            }
            if let Stage::Returning { answered, marked: false } = stage {
                if let Some(listening) = self.clients.get_mut(slot).and_then(Client::listening) {
                    listening.stage = Stage::Returning { answered, marked: true };
                }
                if answered {
                    self.has_returned(host, slot, now);
                }
            }
            self.give_notifications(host, slot, now);
        }
    }

    /// A client leaves: it stops listening.
    pub(crate) fn forget_listening<H: Host<S>>(&mut self, host: &mut H, slot: Slot) {
        let Some(client) = self.clients.get(slot) else { return };
        if !client.listens() {
            return;
        }
        // On those of LISTENs in flight, too.
        let ask = self.change_channels(slot, &BTreeSet::new());
        self.ask_hub(host, slot, ask);
    }
}
