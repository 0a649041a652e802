//! The listening connection listens before a client that already listens.
//!
//! # Model
//! ```text
//!   the client's backend        receives [ new channels, from its COMMIT on .............. marker
//!   the listening connection    receives old and new channels, in the order of the commits .. marker ..
//! ```
//! Notifications on two connections have no order. So a LISTEN of a client that has channels waits
//! until the listening connection listens on the new ones, too: from then on that receives
//! everything, in order. The client is given what was notified on them after its LISTEN was sent,
//! if the channels are its own once the transaction has ended. A server does this for a session
//! that already listens: it reads the queue at the end of a transaction, and gives what has come
//! since the previous one on all channels on which it listens then
//! (`asyncQueueReadAllNotifications`, async.c). A session's first LISTEN counts from its COMMIT on;
//! there the client's backend decides from where.
//!
//! # Why not
//! The reverse, with the backend on the client's existing channels: each LISTEN would set all of
//! them, and the server searches all of them for each.
//!
//! # Limits
//! Names that the server might refuse are not listened on in advance: an error would end the
//! connection that listens for all. Nor are any while that connection cannot be opened, or has been
//! lost meanwhile, nor for a client with another `client_encoding`, whose backend is kept.

use crate::ids::Slot;
use crate::parts::listen::clients::{Before, Listening, Stage};
use crate::parts::listen::{Ask, CHANNELS_A_CLIENT_MAX, Channel, Marker};
use crate::relay::backend::Backend;
use crate::relay::client::Client;
use crate::relay::effects::Unusual;
use crate::relay::host::Host;
use crate::relay::socket::Socket;
use crate::relay::table::Engine;
use crate::session::part::Part;
use crate::time::Time;

/// No server cuts off names of fewer bytes than this, wherever their characters begin
/// (`NAMEDATALEN`, less the longest character).
const UNCUT_BYTES_MAX: usize = 59;

/// Whether no server refuses a name or cuts it off. `utf8`: the text and the server are in UTF-8.
fn is_sure(name: &[u8], utf8: bool) -> bool {
    let is_text = name.is_ascii() || (utf8 && std::str::from_utf8(name).is_ok());
    !name.is_empty() && name.len() <= UNCUT_BYTES_MAX && is_text
}

impl<S: Socket> Client<S> {
    /// Whether a statement must wait until the listening connection listens on the channels it
    /// names.
    pub(crate) fn joins_ahead(&mut self, unusual: &Unusual, backend: &Backend<S>) -> bool {
        let Some(named) = &unusual.named_channels else { return false };
        let keeps = self.session.pins.contains(Part::Listen) || self.has_native_statements();
        let unanswered = backend.requests.owes_client_ready();
        if keeps || unanswered || self.session.desired.get(b"client_encoding").is_some() {
            return false;
        }
        let is_utf8 = |name: &[u8]| backend.session.own.parameters.get(name) == Some(b"UTF8");
        let utf8 = is_utf8(b"client_encoding") && is_utf8(b"server_encoding");
        let Some(listening) = self.listening().filter(|l| !l.channels.is_empty()) else {
            return false;
        };
        let Listening { channels, ahead, .. } = listening;
        let known = |name: &[u8]| channels.contains(name) || ahead.channels.contains(name);
        let names = named.listens.iter().filter(|name| is_sure(name, utf8) && !known(name));
        let wanted: Vec<Channel> = names.map(|name| Channel::new(name)).collect();
        let count = channels.len() + ahead.channels.len() + wanted.len();
        if wanted.is_empty() || ahead.given_up || count > CHANNELS_A_CLIENT_MAX {
            return false;
        }
        ahead.wanted = wanted;
        self.serving.held = true;
        true
    }
}

impl<S: Socket> Engine<S> {
    /// A client's message has been processed. If it must wait for the listening connection, the
    /// request is sent now.
    pub(crate) fn join_ahead<H: Host<S>>(&mut self, host: &mut H, slot: Slot) {
        let Some(client) = self.clients.get_mut(slot) else { return };
        let pool = self.pools[client.pool as usize].pool.id;
        let Some(listening) = client.listening() else { return };
        if listening.take_before(Before::Due) {
            self.wait_for_hub(host, slot, Stage::Cleaning, Ask::default());
            return;
        }
        if listening.ahead.wanted.is_empty() || listening.stage == Stage::Ahead {
            return;
        }
        let mut ask = Ask::default();
        let board = self.boards.entry(pool).or_default();
        for channel in &listening.ahead.wanted {
            if listening.ahead.channels.insert(channel.clone()) && board.add(slot, channel) {
                ask.listen.push(channel.clone());
            }
        }
        self.wait_for_hub(host, slot, Stage::Ahead, ask);
    }

    /// The listening connection listens, and the statement that waits for it may be sent. `marker`
    /// is `None` if it does not: then the statement is sent nevertheless.
    pub(super) fn joined_ahead<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        marker: Option<Marker>,
        now: Time,
    ) {
        let Some(client) = self.clients.get_mut(slot) else { return };
        client.serving.held = false;
        let Some(listening) = client.listening() else { return };
        listening.stage = Stage::AtRest;
        listening.before_message = Before::Come;
        let wanted = std::mem::take(&mut listening.ahead.wanted);
        match marker {
            // What has come on them so far was notified before the LISTEN.
            Some(_) => listening.keep_queued(|_, channel| !wanted.contains(channel)),
            None => listening.give_up_ahead(),
        }
        listening.ahead.marker = marker;
        self.give_notifications(host, slot, now);
        self.resume_later(slot);
    }
}

impl Listening {
    /// Whether a notification on the listening connection is not for the client: its own backend
    /// gets it, or it comes before its LISTEN.
    pub(super) fn ignores(&self, channel: &Channel) -> bool {
        if self.joining.contains(channel) {
            return !self.joining_ahead;
        }
        !self.channels.contains(channel) && (self.pending.is_empty() || self.ahead.given_up)
    }

    /// What the listening connection has received in advance has gaps, or will have: only the
    /// client's backend counts.
    pub(super) fn give_up_ahead(&mut self) {
        self.ahead.given_up = !self.ahead.channels.is_empty();
        self.joining_ahead = false;
        self.keep_queued(|own, channel| {
            own.channels.contains(channel) && !own.joining.contains(channel)
        });
    }
}
