//! A client's own backend takes over all that it listens on.
//!
//! # Model
//! ```text
//!   the client's backend        receives               [ all of its channels, from that LISTEN on .......
//!   the listening connection    receives those that it had before, in the order of the commits .. marker
//! ```
//! If a LISTEN keeps its client's backend, that receives on the new channel, and the listening
//! connection on the client's earlier ones: these have no order. So at the end of that transaction
//! the backend is sent a LISTEN for the others, too, and then the marker: up to the marker the
//! notifications on the listening connection count, after it those on the backend.
//!
//! # Limits
//! * between the client's COMMIT and the marker, before it is answered, there is no such order
//! * not for more than [`CHANNELS_A_QUERY_MAX`] channels: the server searches all for each LISTEN
//! * not where a query of Hawser's would remove an unnamed statement, nor for names that are not
//!   ASCII under another `client_encoding`, nor on a standby

use std::collections::BTreeSet;

use crate::ids::Slot;
use crate::parts::listen::clients::{Listening, Stage, Waiting};
use crate::parts::listen::hub::CHANNELS_A_QUERY_MAX;
use crate::parts::listen::{Ask, Channel, Notification, Ticket};
use crate::relay::client::Client;
use crate::relay::host::Host;
use crate::relay::socket::Socket;
use crate::relay::table::Engine;
use crate::session::part::Part;
use crate::time::Time;

impl<S: Socket> Client<S> {
    /// Whether its backend, which it keeps to listen, can take over its other channels.
    fn can_take_over(&self) -> bool {
        let other_encoding = self.session.desired.get(b"client_encoding").is_some();
        let Some(listening) = self.listening_ref() else { return false };
        let mut channels = listening.channels.iter();
        let standby =
            self.backend.as_ref().is_none_or(|backend| backend.session.own.parameters.is_standby());
        self.session.pins.contains(Part::Listen)
            && !self.has_native_statements()
            && !standby
            && listening.channels.len() <= CHANNELS_A_QUERY_MAX
            && (!other_encoding || channels.all(|channel| channel.as_bytes().is_ascii()))
    }
}

impl<S: Socket> Engine<S> {
    /// The transaction of a client with channels is over: its answer waits until its notifications
    /// have come; if its backend is to listen on all channels, until it does.
    pub(super) fn fence<H: Host<S>>(&mut self, host: &mut H, slot: Slot, ask: Ask) {
        let takes_over = self.clients.get(slot).is_some_and(Client::can_take_over);
        let stage = if takes_over { Stage::TakingOver } else { Stage::Fencing };
        self.wait_for_hub(host, slot, stage, ask);
    }

    /// The listening connection has come to the end of the transaction: the backend listens.
    pub(super) fn return_to_backend(&mut self, ticket: Ticket, marker: &Channel) {
        let Some(listening) = self.clients.get_mut(ticket.slot).and_then(Client::listening) else {
            return;
        };
        let mut listens = Vec::new();
        for channel in listening.channels.iter().chain([marker]) {
            listens.extend_from_slice(b"LISTEN ");
            channel.write_quoted(&mut listens);
            listens.push(b';');
        }
        listening.stage = Stage::Returning { answered: false, marked: false };
        listening.backend_received_all = false;
        listening.marker = Some(marker.clone());
        let mut mark = b"NOTIFY ".to_vec();
        marker.write_quoted(&mut mark);
        mark.extend_from_slice(format!(",'{}'", ticket.write(self.id)).as_bytes());
        let mut end = b"UNLISTEN ".to_vec();
        marker.write_quoted(&mut end);
        self.send_made(ticket.slot, &[&listens, &mark, &end]);
    }

    /// The backend listens on all channels, and the listening connection has come to the marker.
    pub(super) fn has_returned<H: Host<S>>(&mut self, host: &mut H, slot: Slot, now: Time) {
        let own = self.process_of(slot);
        let Some(client) = self.clients.get_mut(slot) else { return };
        let process = client.backend.as_ref().map_or(0, |backend| backend.process());
        let Some(listening) = client.listening() else { return };
        // These count, though the listening connection stops listening.
        let mut queue = std::mem::take(&mut listening.queue);
        queue.iter_mut().for_each(|waiting| waiting.channel = None);
        queue.extend(std::mem::take(&mut listening.native));
        for notification in std::mem::take(&mut listening.backend_received) {
            let message = match notification.process == process {
                true => notification.message_from(own),
                false => notification.message,
            };
            queue.push_back(Waiting { message, channel: None });
        }
        listening.queue = queue;
        listening.count_queued();
        let ask = self.change_channels(slot, &BTreeSet::new());
        self.ask_hub(host, slot, ask);
        self.release_answer(host, slot, now);
    }
}

impl Listening {
    /// The backend has received a notification during TakingOver. Up to the marker, those on
    /// channels of the listening connection count there.
    pub(super) fn receive_returning(&mut self, notification: Notification, process: u32) {
        if self.marker.as_ref() == Some(&notification.channel) {
            let ticket = Ticket::read(notification.payload());
            self.backend_received_all |= notification.process == process
                && ticket.is_some_and(|(_, ticket)| ticket.serial == self.serial);
        } else if self.backend_received_all || !self.channels.contains(&notification.channel) {
            self.queued_bytes += notification.message.len();
            self.backend_received.push(notification);
        }
    }
}
