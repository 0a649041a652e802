//! The answer that is held back while a client waits, and its release.
//!
//! # Order
//! The server's answer, the notifications, reports of settings, ReadyForQuery: as in PostgreSQL 14
//! and later (`PostgresMain`, postgres.c).

use std::collections::VecDeque;

use crate::ids::Slot;
use crate::parts::listen::clients::{Before, Stage};
use crate::relay::client::Client;
use crate::relay::host::Host;
use crate::relay::socket::Socket;
use crate::relay::table::Engine;
use crate::time::Time;
use crate::wire::{TransactionStatus, build};

impl<S: Socket> Client<S> {
    /// Keeps the last reports of its server.
    pub(crate) fn keep_reports(&mut self, reports: Vec<u8>) {
        if let Some(listening) = self.listening() {
            listening.reports = reports;
        }
    }

    pub(crate) fn take_reports(&mut self) -> Vec<u8> {
        self.listening().map_or_else(Vec::new, |listening| std::mem::take(&mut listening.reports))
    }

    /// Whether the end of its transaction is to be held back.
    pub(crate) fn holds_ready(&self) -> bool {
        self.listening_ref().is_some_and(|listening| !listening.is_nothing())
    }
}

impl<S: Socket> Engine<S> {
    /// Gives a client the answer that was held back, and what has waited.
    pub(super) fn release_answer<H: Host<S>>(&mut self, host: &mut H, slot: Slot, now: Time) {
        let Some(client) = self.clients.get_mut(slot) else { return };
        client.serving.held = false;
        let Some(listening) = client.listening() else { return };
        let answers = listening.stage != Stage::Cleaning;
        listening.stage = Stage::AtRest;
        listening.joining.clear();
        listening.joining_ahead = false;
        listening.backend_received = Vec::new();
        listening.backend_received_all = false;
        listening.marker = None;
        if !answers {
            listening.before_message = Before::Come;
            self.give_notifications(host, slot, now);
            self.resume_later(slot);
            return;
        }
        let mut answer = std::mem::take(&mut listening.held);
        for waiting in listening.queue.drain(..).chain(listening.native.drain(..)) {
            answer.extend_from_slice(&waiting.message);
        }
        answer.append(&mut listening.held_reports);
        listening.queue = VecDeque::new();
        listening.queued_bytes = 0;
        build::ready_for_query(&mut answer, TransactionStatus::Idle);
        let ends = listening.is_nothing();
        if ends && let Some(extra) = &mut client.pending_session {
            extra.listening = None;
        }
        client.settle();
        let mut lost = false;
        if let Some(mut backend) = client.backend.take() {
            backend.lending.since = now;
            let done = match backend.is_at_rest() {
                true => client.can_give_back(&mut backend),
                false => Ok(false),
            };
            lost = done.is_err();
            if done.unwrap_or(false) {
                client.rest(now);
                self.give_back(host, backend, now);
            } else {
                client.backend = Some(backend);
            }
        }
        self.say(host, slot, &answer, now);
        if lost {
            self.backend_lost(slot, "server closed the connection");
            return;
        }
        let Some(client) = self.clients.get(slot) else { return };
        if client.is_leaving() {
            self.close_client(host, slot, "the client ended its session", now);
            return;
        }
        self.drain_if_idle(host, slot, now);
        if self.count_pinned(host, slot, now) {
            return;
        }
        self.rearm_if_limited(slot, now);
        self.resume_later(slot);
    }

    /// A client is about to get its last message, or another one: before that it gets the held
    /// answer to what has been carried out for it; but nothing that follows its notifications, for
    /// these may be missing.
    pub(crate) fn give_held_answer(&mut self, slot: Slot) {
        let Some(client) = self.clients.get_mut(slot) else { return };
        let Some(listening) = client.listening() else { return };
        let answer = std::mem::take(&mut listening.held);
        if !answer.is_empty() {
            let waits = client.at_socket.is_late();
            client.reply(&answer);
            if client.at_socket.is_late() && !waits {
                self.late.push(slot);
            }
        }
    }
}
