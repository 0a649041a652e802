//! A transaction of a client that listens has ended: the outcome of its LISTENs and UNLISTENs.
//!
//! See [`crate::parts::listen::change`]: the backend is asked, and stops listening once the listening
//! connection has taken over.

use std::collections::BTreeSet;

use crate::ids::Slot;
use crate::parts::listen::change::{Pending, is_mark};
use crate::parts::listen::clients::{Stage, Waiting};
use crate::parts::listen::{Ask, CHANNELS_A_CLIENT_MAX, Channel, Ticket};
use crate::relay::client::Client;
use crate::relay::host::Host;
use crate::relay::socket::Socket;
use crate::relay::table::Engine;
use crate::session::part::Part;
use crate::time::Time;

/// Asks a backend what it listens on.
const CHANNELS_QUERY: &[u8] = b"SELECT pg_catalog.pg_listening_channels()";
/// Ends listening on a backend.
const UNLISTEN_ALL: &[u8] = b"UNLISTEN *";

impl<S: Socket> Client<S> {
    /// A row has come in answer to a query of Hawser's.
    pub(crate) fn note_row(&mut self, body: &[u8]) {
        let Some(listening) = self.listening().filter(|l| l.stage == Stage::Asking) else { return };
        // One column: its count, its length, its bytes.
        if let Some(name) = body.get(6..) {
            listening.on_backend.push(name.into());
        }
    }
}

impl<S: Socket> Engine<S> {
    /// A transaction of a client that listens has ended, and `answer` is held back until the
    /// listening connection has caught up.
    pub(crate) fn transaction_ended<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        answer: [&[u8]; 2],
        now: Time,
    ) {
        let Some(client) = self.clients.get_mut(slot) else { return };
        let Some(listening) = client.listening() else { return };
        listening.held.extend_from_slice(answer[0]);
        listening.held.extend_from_slice(answer[1]);
        listening.held_reports = std::mem::take(&mut listening.reports);
        self.settle_channels(host, slot, now);
    }

    /// A cancel request has been delivered that the end of a client's transaction has waited for.
    pub(crate) fn settle_channels_after_cancel<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        now: Time,
    ) {
        if self.clients.get(slot).is_some_and(|client| client.stage() == Stage::AfterCancel) {
            self.settle_channels(host, slot, now);
        }
    }

    /// Finds out what has become of the client's channels; its answer is held back.
    fn settle_channels<H: Host<S>>(&mut self, host: &mut H, slot: Slot, now: Time) {
        let Some(client) = self.clients.get_mut(slot) else { return };
        let cancelled = client.backend.as_ref().is_some_and(|b| b.lending.cancels_in_flight > 0);
        let keeps_natively = client.session.pins.contains(Part::Listen);
        let native = client.has_native_statements();
        let Some(listening) = client.listening() else { return };
        if listening.is_unchanged() && listening.channels.is_empty() {
            self.release_answer(host, slot, now);
            return;
        }
        if cancelled {
            listening.stage = Stage::AfterCancel;
            client.serving.held = true;
            return;
        }
        listening.stage = Stage::AtRest;
        if listening.is_unchanged() {
            // The most frequent case; and there may be thousands of channels.
            self.fence(host, slot, Ask::default());
            return;
        }
        let mut after = listening.channels.clone();
        for left in std::mem::take(&mut listening.left) {
            after.remove(&left);
        }
        if native && !listening.pending.is_empty() {
            let pending = std::mem::take(&mut listening.pending);
            for taken in pending.into_taken() {
                taken.take_from(&mut after);
            }
            if !keeps_natively {
                self.keep_to_listen(host, slot, &after, now);
                return;
            }
        }
        let Some(listening) = self.clients.get_mut(slot).and_then(Client::listening) else {
            return;
        };
        // If its own backend listens, that has the channels it has listened on, but not those it
        // has left.
        let asks = match keeps_natively {
            true => listening.pending.unlistens(),
            false => !listening.pending.is_empty(),
        };
        if !asks {
            listening.pending = Pending::default();
        }
        let leaves_shown = listening.shown && !keeps_natively && !native;
        let ask = match asks {
            true => self.change_channels_ahead(slot, &after),
            false => self.change_channels(slot, &after),
        };
        let Some(client) = self.clients.get_mut(slot) else { return };
        if asks {
            client.serving.held = true;
            if let Some(listening) = client.listening() {
                listening.stage = Stage::Asking;
                listening.on_backend.clear();
            }
            self.ask_hub(host, slot, ask);
            self.send_made(slot, &[CHANNELS_QUERY]);
        } else if leaves_shown {
            self.ask_hub(host, slot, ask);
            self.leave(slot, &[UNLISTEN_ALL], true);
        } else if after.is_empty() {
            self.ask_hub(host, slot, ask);
            self.release_answer(host, slot, now);
        } else {
            self.fence(host, slot, ask);
        }
    }

    /// A DISCARD ALL has succeeded, and a Sync of Hawser's has ended its pipeline: the client's own
    /// may be answered without a server. From now on it listens on nothing.
    pub(crate) fn leave_discarded<H: Host<S>>(&mut self, host: &mut H, slot: Slot) {
        let Some(client) = self.clients.get_mut(slot) else { return };
        let Some(listening) = client.listening() else { return };
        if listening.left.is_empty() || !listening.pending.is_empty() {
            return; // what it has listened on since is settled at its own end
        }
        let mut after = listening.channels.clone();
        for left in std::mem::take(&mut listening.left) {
            after.remove(&left);
        }
        let ask = self.change_channels(slot, &after);
        self.ask_hub(host, slot, ask);
        let Some(client) = self.clients.get_mut(slot) else { return };
        if let Some(extra) = &mut client.pending_session
            && extra.listening.as_ref().is_some_and(|listening| listening.is_nothing())
        {
            extra.listening = None;
            client.settle();
        }
    }

    /// Notes on which channels a client listens from now on. Returns the request for the hub.
    pub(super) fn change_channels(&mut self, slot: Slot, after: &BTreeSet<Channel>) -> Ask {
        let Some(listening) = self.clients.get_mut(slot).and_then(Client::listening) else {
            return Ask::default();
        };
        let ahead = std::mem::take(&mut listening.ahead);
        self.change_from(slot, after, ahead.channels(), &BTreeSet::new())
    }

    /// The same, while its backend is asked for the outcome of its LISTENs.
    pub(super) fn change_channels_ahead(&mut self, slot: Slot, after: &BTreeSet<Channel>) -> Ask {
        let Some(listening) = self.clients.get_mut(slot).and_then(Client::listening) else {
            return Ask::default();
        };
        let ahead = listening.ahead.channels().clone();
        self.change_from(slot, after, &ahead, &ahead)
    }

    pub(super) fn change_from(
        &mut self,
        slot: Slot,
        after: &BTreeSet<Channel>,
        was_ahead: &BTreeSet<Channel>,
        ahead: &BTreeSet<Channel>,
    ) -> Ask {
        let mut ask = Ask::default();
        let Some(client) = self.clients.get_mut(slot) else { return ask };
        let pool = self.pools[client.pool as usize].pool.id;
        let Some(listening) = client.listening() else { return ask };
        if listening.channels == *after && was_ahead == ahead {
            return ask;
        }
        let before: BTreeSet<Channel> = listening.channels.union(was_ahead).cloned().collect();
        let listened: BTreeSet<Channel> = after.union(ahead).cloned().collect();
        let board = self.boards.entry(pool).or_default();
        for channel in before.difference(&listened) {
            if board.remove(slot, channel) {
                ask.unlisten.push(channel.clone());
            }
        }
        // What has come on them since the transaction began is not read any more (async.c); what
        // was committed earlier has come before it (Cleaning).
        listening.keep_queued(|_, channel| listened.contains(channel));
        for channel in listened.difference(&before) {
            if board.add(slot, channel) {
                ask.listen.push(channel.clone());
            }
        }
        if board.is_empty() {
            self.boards.remove(&pool);
        }
        listening.channels = after.clone();
        ask
    }

    /// Sends queries of Hawser's to a client's backend.
    pub(super) fn send_made(&mut self, slot: Slot, texts: &[&[u8]]) {
        let Some(client) = self.clients.get_mut(slot) else { return };
        let Some(backend) = &mut client.backend else { return };
        let mut out = Vec::new();
        for text in texts {
            backend.inject_query(text, &mut out);
        }
        self.write_to_backend(slot, &out);
    }

    /// A client's backend has answered the queries that were sent for its listening.
    pub(crate) fn listening_answered<H: Host<S>>(&mut self, host: &mut H, slot: Slot, now: Time) {
        self.give_notifications(host, slot, now); // notifications on the backend may be too many
        let Some(client) = self.clients.get_mut(slot) else { return };
        if !client.backend.as_ref().is_some_and(|backend| backend.is_at_rest()) {
            return;
        }
        match client.stage() {
            Stage::Asking => self.channels_known(host, slot, now),
            Stage::Leaving { marked, .. } => {
                if let Some(listening) = client.listening() {
                    listening.stage = Stage::Leaving { answered: true, marked };
                }
                if marked {
                    self.has_left(host, slot, now);
                }
            }
            Stage::Returning { marked, .. } => {
                if let Some(listening) = client.listening() {
                    listening.stage = Stage::Returning { answered: true, marked };
                }
                if marked {
                    self.has_returned(host, slot, now);
                }
            }
            _ => {}
        }
    }

    /// A client's backend has stopped listening, and the listening connection has come to the same
    /// point.
    pub(super) fn has_left<H: Host<S>>(&mut self, host: &mut H, slot: Slot, now: Time) {
        let own = self.process_of(slot);
        let Some(client) = self.clients.get_mut(slot) else { return };
        let process = client.backend.as_ref().map_or(0, |backend| backend.process());
        let Some(listening) = client.listening() else { return };
        let fenced = !listening.joining.is_empty();
        if listening.joining_ahead {
            listening.backend_received.clear(); // they have come on the listening connection, too
        } else {
            listening.give_up_ahead();
            let received = listening.take_backend_received(process, own);
            listening.queue.extend(received);
        }
        listening.queue.extend(std::mem::take(&mut listening.later));
        listening.count_queued();
        listening.joining.clear();
        if fenced || listening.channels.is_empty() {
            self.release_answer(host, slot, now);
        } else {
            self.wait_for_hub(host, slot, Stage::Fencing, Ask::default());
        }
    }

    /// A client's backend has reported what it listens on.
    pub(super) fn channels_known<H: Host<S>>(&mut self, host: &mut H, slot: Slot, now: Time) {
        let Some(client) = self.clients.get_mut(slot) else { return };
        let other_encoding = client.session.desired.get(b"client_encoding").is_some();
        let keeps_natively = client.session.pins.contains(Part::Listen);
        let Some(listening) = client.listening() else { return };
        let pending = std::mem::take(&mut listening.pending);
        let on_backend = std::mem::take(&mut listening.on_backend);
        let mut after = pending.settle(&listening.channels, &on_backend);
        if keeps_natively {
            after.retain(|channel| listening.channels.contains(channel));
            self.left_natively(host, slot, &after, &on_backend);
            return;
        }
        let joined: BTreeSet<Channel> = after.difference(&listening.channels).cloned().collect();
        if joined.is_empty() {
            listening.backend_received.clear();
            let ask = self.change_channels(slot, &after);
            if on_backend.is_empty() && !after.is_empty() {
                self.wait_for_hub(host, slot, Stage::Fencing, ask);
                return;
            }
            self.ask_hub(host, slot, ask);
            if on_backend.is_empty() {
                self.release_answer(host, slot, now);
                return;
            }
            self.leave(slot, &[UNLISTEN_ALL], true);
            return;
        }
        if other_encoding || after.len() > CHANNELS_A_CLIENT_MAX {
            after.retain(|channel| !joined.contains(channel));
            self.keep_to_listen(host, slot, &after, now);
            return;
        }
        let marker = listening.ahead.marker_for(&joined);
        listening.joining = joined;
        listening.joining_ahead = marker.is_some();
        let ask = self.change_channels(slot, &after);
        let Some(marker) = marker else {
            self.wait_for_hub(host, slot, Stage::Joining, ask);
            return;
        };
        let Some(client) = self.clients.get_mut(slot) else { return };
        let elsewhere = client.is_on_another_server(&marker);
        let Some(ticket) = client.next_ticket(slot) else { return };
        self.ask_hub(host, slot, ask);
        match elsewhere {
            true => self.keep_joining(host, slot, now),
            false => self.mark_and_leave(ticket, &marker.channel),
        }
    }

    /// A client whose own backend listens has left channels on which the listening connection
    /// listens for it as well: the backend leaves the channels that mark them.
    fn left_natively<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        after: &BTreeSet<Channel>,
        on_backend: &[Box<[u8]>],
    ) {
        let ask = self.change_channels(slot, after);
        self.ask_hub(host, slot, ask);
        let mut text = Vec::new();
        for mark in on_backend.iter().filter(|channel| is_mark(channel)) {
            text.extend_from_slice(b"UNLISTEN ");
            Channel::new(mark).write_quoted(&mut text);
            text.push(b';');
        }
        self.leave(slot, &[&text], true);
    }

    /// The listening connection listens on the new channels: the backend may leave them.
    pub(super) fn mark_and_leave(&mut self, ticket: Ticket, marker: &Channel) {
        let mut text = b"LISTEN ".to_vec();
        marker.write_quoted(&mut text);
        text.extend_from_slice(b";NOTIFY ");
        marker.write_quoted(&mut text);
        text.extend_from_slice(format!(",'{}'", ticket.write(self.id)).as_bytes());
        self.leave(ticket.slot, &[&text, UNLISTEN_ALL], false);
    }

    pub(super) fn leave(&mut self, slot: Slot, texts: &[&[u8]], marked: bool) {
        let Some(client) = self.clients.get_mut(slot) else { return };
        client.serving.held = true;
        if let Some(listening) = client.listening() {
            listening.stage = Stage::Leaving { answered: false, marked };
            listening.shown &= texts.last() != Some(&UNLISTEN_ALL);
        }
        self.send_made(slot, texts);
    }

    /// The client listens on its own backend, and keeps it; on the channels `after` the listening
    /// connection still listens for it.
    pub(super) fn keep_to_listen<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        after: &BTreeSet<Channel>,
        now: Time,
    ) {
        let ask = self.change_channels(slot, after);
        self.ask_hub(host, slot, ask);
        let process = self.process_of(slot);
        let Some(client) = self.clients.get_mut(slot) else { return };
        let own = client.backend.as_ref().map_or(0, |backend| backend.process());
        client.session.pins.insert(Part::Listen);
        if let Some(listening) = client.listening() {
            listening.joining.clear();
            listening.joining_ahead = false;
            // What the listening connection has received so far comes first.
            let received = listening.take_backend_received(own, process);
            let native = received.into_iter().map(|waiting| Waiting { channel: None, ..waiting });
            listening.native.extend(native);
        }
        if after.is_empty() {
            self.release_answer(host, slot, now);
        } else {
            self.fence(host, slot, Ask::default());
        }
    }
}
