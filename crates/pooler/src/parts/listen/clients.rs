//! Clients that listen, and share backends: what their transactions change, and what they are
//! given.
//!
//! # States of a client that listens
//! ```text
//!   AtRest ── has channels, and begins a transaction ──► Cleaning ── ticket ──► AtRest
//!     │ has channels, and sends a LISTEN ──► Ahead ── ticket ──► AtRest
//!     │ a transaction has ended; its answer is held back (AfterCancel: while a cancel request is on its way,
//!     │ which would hit a query of Hawser's)
//!     ├─ nothing changed ───────────────────────────────► Fencing ── ticket ──► answered
//!     ├─ it keeps its backend to listen ──► TakingOver ── ticket ──► Returning ──► answered
//!     └─ LISTEN, UNLISTEN ──► Asking ──► (new channels) Joining ── ticket ──► Leaving ──► answered
//! ```
//! * Ahead: see [`ahead`]; then there is no Joining
//! * Cleaning: notifications from before the start of a transaction are given to the client before
//!   it: PostgreSQL does that before it reads the next command (`ProcessClientReadInterrupt`,
//!   postgres.c). Notifications from the backend's previous client would otherwise count as this
//!   client's own; and what comes later on a channel that the transaction leaves is not for the
//!   client
//! * Fencing: what this transaction has notified comes before its ReadyForQuery
//! * Asking: the backend reports what it listens on (see [`crate::parts::listen::change`])
//! * Joining: the listening connection starts to listen while the backend still listens
//! * Leaving: the backend sends the marker and stops listening; up to the marker the notifications
//!   on the backend count, after it those on the listening connection
//! * TakingOver, Returning: the reverse, see [`returning`]
//!
//! # Invariants
//! * a client's backend listens on nothing when it is given back
//! * notifications reach a client only between its transactions, in the order of the commits
//! * the bytes that wait for one client are bounded ([`crate::relay::limits::NOTIFICATIONS_BYTES_MAX`])
//!
//! # Limits
//! A client whose client_encoding is not the server's own for it keeps its backend for LISTEN, as
//! do those whose LISTEN cannot be read for certain, or whose prepared statements are not shared:
//! an UNLISTEN of these stops listening here even if it is rolled back. A text that ends the
//! transaction in which a channel was left, and listens to it again, gets what came in between.

mod ahead;
mod answer;
mod ending;
mod fence;
mod named;
mod notified;
mod returning;
mod shown;
mod state;
mod tickets;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use crate::parts::listen::change::{Pending, Taken};
use crate::parts::listen::{Channel, Marker, Notification};

/// What is in progress for a client that listens.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Stage {
    /// Nothing.
    #[default]
    AtRest,
    AfterCancel,
    Cleaning,
    Ahead,
    Asking,
    Joining,
    Leaving {
        /// The backend has answered everything.
        answered: bool,
        /// The marker has come on the listening connection.
        marked: bool,
    },
    Fencing,
    /// As Fencing, before Returning.
    TakingOver,
    /// Its own backend starts to listen on all of its channels.
    Returning {
        /// As of Leaving.
        answered: bool,
        /// As of Leaving.
        marked: bool,
    },
}

/// Whether earlier notifications than the waiting message have come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Before {
    /// The message does not wait for them.
    #[default]
    Unasked,
    /// The message is to wait for them.
    Due,
    /// They have come, or will not: the message is sent.
    Come,
}

/// What a client listens on, and what waits for it.
#[derive(Debug, Default)]
pub(crate) struct Listening {
    channels: BTreeSet<Channel>,
    /// What its current transaction has done.
    pending: Pending,
    /// What the listening connection listens on in advance, for LISTENs in flight.
    ahead: Ahead,
    /// Channels on which its own backend still receives.
    joining: BTreeSet<Channel>,
    /// The listening connection receives on these, too, since before the LISTEN.
    joining_ahead: bool,
    stage: Stage,
    before_message: Before,
    serial: u32,
    /// The answer that is held back.
    held: Vec<u8>,
    /// Reports of the server that follow the answer and the notifications.
    held_reports: Vec<u8>,
    /// Reports with nothing after them yet.
    reports: Vec<u8>,
    /// Notifications that wait for it.
    queue: VecDeque<Waiting>,
    queued_bytes: usize,
    /// Notifications on its own backend, where it keeps listening: they follow `queue`.
    native: Vec<Waiting>,
    /// Notifications on its own backend since the transaction that listened.
    backend_received: Vec<Notification>,
    /// Its own marker has come: later ones come on the other connection.
    backend_received_all: bool,
    /// The channel of markers on which it listens during TakingOver: it gets those of others, too.
    marker: Option<Channel>,
    /// Notifications on the listening connection after the marker, while the backend has not
    /// answered.
    later: Vec<Waiting>,
    /// What its own backend listens on.
    on_backend: Vec<Box<[u8]>>,
    /// Its own backend listens on its channels, too, so that `pg_listening_channels()` shows them.
    shown: bool,
    /// It has looked at them before.
    looks: bool,
    /// Channels that it leaves at the end of its transaction, whatever the outcome.
    left: BTreeSet<Channel>,
}

/// What waits for a client.
#[derive(Debug)]
struct Waiting {
    message: Arc<[u8]>,
    /// `None`: it is no notification.
    channel: Option<Channel>,
}

/// What the listening connection listens on before the LISTENs of a transaction.
#[derive(Debug, Default)]
struct Ahead {
    /// Channels that it has been asked for.
    channels: BTreeSet<Channel>,
    /// Channels that it is to be asked for.
    wanted: Vec<Channel>,
    /// Where it receives markers.
    marker: Option<Marker>,
    /// It has failed: the transaction goes on without it.
    given_up: bool,
}

impl Ahead {
    fn channels(&self) -> &BTreeSet<Channel> {
        &self.channels
    }

    /// Where it receives markers, if it has listened on all of these channels in advance.
    fn marker_for(&self, joined: &BTreeSet<Channel>) -> Option<Marker> {
        let has_joined = !self.given_up && joined.is_subset(&self.channels);
        self.marker.clone().filter(|_| has_joined)
    }
}

impl Listening {
    /// Whether this is so for the notifications before the waiting message; then it is unset.
    fn take_before(&mut self, before: Before) -> bool {
        let is_so = self.before_message == before;
        if is_so {
            self.before_message = Before::Unasked;
        }
        is_so
    }

    fn push(&mut self, message: Arc<[u8]>, channel: Option<Channel>) {
        self.queued_bytes += message.len();
        self.queue.push_back(Waiting { message, channel });
    }

    /// Of what waits, keeps the notifications on channels for which this is true, and everything
    /// else.
    fn keep_queued(&mut self, is_of: impl Fn(&Self, &Channel) -> bool) {
        let mut queue = std::mem::take(&mut self.queue);
        queue.retain(|waiting| waiting.channel.as_ref().is_none_or(|channel| is_of(self, channel)));
        self.queue = queue;
        self.count_queued();
    }

    fn count_queued(&mut self) {
        let waiting = self.queue.iter().chain(&self.native).chain(&self.later);
        let queued = waiting.map(|waiting| waiting.message.len());
        let backend_received = self.backend_received.iter().map(|one| one.message.len());
        self.queued_bytes = queued.chain(backend_received).sum();
    }

    fn is_nothing(&self) -> bool {
        self.channels.is_empty()
            && self.pending.is_empty()
            && self.left.is_empty()
            && self.queue.is_empty()
            && !self.shown
            && self.stage == Stage::AtRest
    }

    /// Whether its transaction has done nothing to its channels.
    fn is_unchanged(&self) -> bool {
        !self.shown
            && self.left.is_empty()
            && self.pending.is_empty()
            && self.ahead.channels().is_empty()
    }

    /// An UNLISTEN is in flight that cannot be marked.
    fn take(&mut self, what: &Taken) {
        let taken = self.channels.iter().filter(|channel| what.takes(channel.as_bytes()));
        self.left.extend(taken.cloned());
    }

    /// A DISCARD ALL has succeeded: the backend has no channels and marks from before it. `pending`
    /// stays: its pipeline may have listened after it, and the backend reports on what.
    pub(crate) fn discard(&mut self) {
        self.left.extend(self.channels.iter().cloned());
    }
}
