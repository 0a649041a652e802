//! Notifications: from the listening connection, and from a client's own backend.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::ids::Slot;
use crate::parts::listen::clients::{Listening, Stage, Waiting};
use crate::parts::listen::{Notification, Ticket};
use crate::relay::backend::PoolRef;
use crate::relay::client::Client;
use crate::relay::client_info::ClientState;
use crate::relay::host::Host;
use crate::relay::limits;
use crate::relay::socket::Socket;
use crate::relay::table::Engine;
use crate::session::part::Part;
use crate::time::Time;
use crate::wire::error::{ClientError, SqlState};

impl<S: Socket> Client<S> {
    /// Its backend has received a notification. Returns whether that is for the books, not for the
    /// client.
    pub(crate) fn takes_notification(
        &mut self,
        notification: impl FnOnce() -> Option<Notification>,
        process: u32,
    ) -> bool {
        let keeps_natively = self.session.pins.contains(Part::Listen);
        let Some(listening) = self.listening() else { return false };
        if matches!(listening.stage, Stage::Returning { .. }) {
            if let Some(notification) = notification() {
                listening.receive_returning(notification, process);
            }
            return true;
        }
        if keeps_natively {
            // On a channel of its own backend, its backend's notifications count.
            return notification().is_some_and(|of| listening.channels.contains(&of.channel));
        }
        let keeps = match listening.stage {
            Stage::AtRest | Stage::Ahead | Stage::AfterCancel => !listening.pending.is_empty(),
            Stage::Asking | Stage::Joining => true,
            Stage::Leaving { .. } => {
                !listening.joining.is_empty() && !listening.backend_received_all
            }
            Stage::Cleaning | Stage::Fencing | Stage::TakingOver | Stage::Returning { .. } => false,
        };
        if !keeps {
            return true;
        }
        let Some(notification) = notification() else { return true };
        let is_marker = !listening.joining.contains(&notification.channel)
            && notification.process == process
            && Ticket::read(notification.payload())
                .is_some_and(|(_, ticket)| ticket.serial == listening.serial);
        if is_marker && matches!(listening.stage, Stage::Leaving { .. }) {
            listening.backend_received_all = true;
        } else {
            listening.queued_bytes += notification.message.len();
            listening.backend_received.push(notification);
        }
        true
    }

    /// Its own backend, on which it keeps listening, has received a notification. Returns whether
    /// that waits, because those on the listening connection come first. `at_rest`: its backend
    /// owes nothing.
    pub(crate) fn keeps_native_notification(&mut self, at_rest: bool, message: &Arc<[u8]>) -> bool {
        let ends = !at_rest || self.stage() != Stage::AtRest;
        if self.is_session_mode() || !ends || !self.has_channels() {
            return false;
        }
        let Some(listening) = self.listening() else { return false };
        listening.queued_bytes += message.len();
        listening.native.push(Waiting { message: message.clone(), channel: None });
        true
    }

    /// Whether a notification may be given to it now.
    pub(super) fn may_be_notified(&self) -> bool {
        let resting = self.backend.as_ref().is_none_or(|backend| backend.is_at_rest());
        resting
            && self.serving.state != ClientState::Closing
            && self.stage() == Stage::AtRest
            && !self.is_skipping()
            && !self.is_leaving()
            && self.output.len() <= limits::OUTPUT_HIGH_BYTES
    }

    /// Whether notifications wait that it could be given now.
    pub(crate) fn neglects_notifications(&self) -> bool {
        self.listening_ref().is_some_and(|listening| !listening.queue.is_empty())
            && self.may_be_notified()
    }
}

impl<S: Socket> Engine<S> {
    pub(super) fn notified<H: Host<S>>(
        &mut self,
        host: &mut H,
        pool: &PoolRef<S>,
        notification: &Notification,
        now: Time,
    ) {
        let Some(board) = self.boards.get(&pool.id) else { return };
        let clients: Vec<Slot> = board.clients(&notification.channel).collect();
        let mut notified = 0;
        for slot in clients {
            let own = self.process_of(slot);
            let Some(client) = self.clients.get_mut(slot) else { continue };
            if client.serving.state == ClientState::Closing {
                continue; // it gets nothing more
            }
            let sends = client.stage() != Stage::Cleaning
                && client.backend.as_ref().is_some_and(|b| b.process() == notification.process);
            let Some(listening) = client.listening() else { continue };
            let leaves = matches!(listening.stage, Stage::Leaving { marked: true, .. });
            let returned = matches!(listening.stage, Stage::Returning { marked: true, .. });
            if returned || (!leaves && listening.ignores(&notification.channel)) {
                continue;
            }
            notified += 1;
            let message = match sends {
                true => notification.message_from(own),
                false => notification.message.clone(),
            };
            let channel = Some(notification.channel.clone());
            if leaves {
                listening.queued_bytes += message.len();
                listening.later.push(Waiting { message, channel });
            } else {
                listening.push(message, channel);
            }
            self.give_notifications(host, slot, now);
        }
        pool.stats.of(self.id).notifications.add(notified);
    }

    /// Gives a client the notifications that wait for it, if it may have them now.
    pub(crate) fn give_notifications<H: Host<S>>(&mut self, host: &mut H, slot: Slot, now: Time) {
        let Some(client) = self.clients.get_mut(slot) else { return };
        if client.listening().is_none() {
            return; // most do not
        }
        let may = client.may_be_notified();
        let unsent = client.output.len();
        let Some(listening) = client.listening() else { return };
        if may {
            let mut out = Vec::new();
            while out.len() + unsent <= limits::OUTPUT_HIGH_BYTES
                && let Some(Waiting { message, .. }) = listening.queue.pop_front()
            {
                listening.queued_bytes = listening.queued_bytes.saturating_sub(message.len());
                out.extend_from_slice(&message);
            }
            if listening.queue.is_empty() {
                listening.queue = VecDeque::new();
            }
            self.say(host, slot, &out, now);
        } else if listening.queued_bytes + unsent > limits::NOTIFICATIONS_BYTES_MAX {
            let error = ClientError::fatal(
                SqlState::CONFIGURATION_LIMIT_EXCEEDED,
                "terminating connection because it does not take its notifications",
            )
            .detail(format!("More than {} bytes of them wait.", limits::NOTIFICATIONS_BYTES_MAX))
            .hint(
                "Read what the connection gets, and end transactions in which notifications wait.",
            );
            self.say_goodbye(host, slot, &error, now);
        }
    }
}

impl Listening {
    /// The notifications that the backend has received for the client, up to the marker; they count
    /// as waiting. `process` is the backend's process id, and `own` the one that the client knows
    /// as its own.
    pub(super) fn take_backend_received(&mut self, process: u32, own: u32) -> Vec<Waiting> {
        let mut received = Vec::new();
        for notification in std::mem::take(&mut self.backend_received) {
            self.queued_bytes = self.queued_bytes.saturating_sub(notification.message.len());
            let joins = self.joining.contains(&notification.channel);
            let is_listened = self.channels.contains(&notification.channel);
            if !joins && (is_listened || !self.joining.is_empty()) {
                continue; // or a marker
            }
            let message = match notification.process == process {
                true => notification.message_from(own),
                false => notification.message,
            };
            self.queued_bytes += message.len();
            received.push(Waiting { message, channel: Some(notification.channel) });
        }
        received
    }
}
