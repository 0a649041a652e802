//! Clients that listen, and share backends: what their transactions change, what they are given.
//!
//! # States of a client that listens
//! ```text
//!   AtRest ── has channels, and begins a transaction ──► Cleaning ── ticket ──► AtRest
//!     │ has channels, and sends a LISTEN ──► Ahead ── ticket ──► AtRest
//!     │ a transaction has ended; its answer is held back (AfterCancel: while a cancel request is on its way,
//!     │ which would hit a query of ours)
//!     ├─ nothing changed ───────────────────────────────► Fencing ── ticket ──► answered
//!     ├─ it keeps its backend to listen ──► TakingOver ── ticket ──► Returning ──► answered
//!     └─ LISTEN, UNLISTEN ──► Asking ──► (new channels) Joining ── ticket ──► Leaving ──► answered
//! ```
//! * Ahead: see [`ahead`]; then there is no Joining
//! * Cleaning: what was notified before a transaction begins is given to the client before it: PostgreSQL
//!   does that before it reads the next command (`ProcessClientReadInterrupt`, postgres.c). Notifications
//!   that the backend's client before has sent would be taken for this client's own, too; and what comes
//!   later on a channel that the transaction leaves is not for the client
//! * Fencing: what this transaction has notified comes before its ReadyForQuery
//! * Asking: the backend says what it listens on (see [`crate::listen::change`])
//! * Joining: the listening connection is to listen, too, while the backend still does
//! * Leaving: the backend sends the marker and ends listening; up to the marker what it has heard
//!   counts, after it what the listening connection hears
//! * TakingOver, Returning: the other way round, see [`returning`]
//!
//! # Invariants
//! * a client's backend listens on nothing when it is given back
//! * notifications reach a client only between its transactions, in the order of the commits
//! * the bytes that wait for one client are bounded ([`super::limits::NOTIFICATIONS_BYTES_MAX`])
//!
//! # Limits
//! A client whose client_encoding is not the server's own for it keeps its backend for LISTEN, as do
//! those whose LISTEN stands where it cannot be read for certain, or whose prepared statements are not
//! shared: an UNLISTEN of these ends listening here even if it is rolled back. A text that ends the
//! transaction in which a channel was left, and listens to it again, hears what came in between.

mod ahead;
mod answer;
mod ending;
mod heard;
mod hearing_out;
mod named;
mod returning;
mod shown;
mod state;
mod tickets;

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

use crate::listen::change::{Pending, Taken};
use crate::listen::{Channel, Marker, Notification};

/// What is under way for a client that listens.
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
        /// The backend has done all that it was sent.
        answered: bool,
        /// The marker has come by the listening connection.
        marked: bool,
    },
    Fencing,
    /// As Fencing, before Returning.
    TakingOver,
    /// Its own backend is to listen on all of its channels.
    Returning {
        /// As of Leaving.
        answered: bool,
        /// As of Leaving.
        marked: bool,
    },
}

/// Whether what was notified before the message that waits has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Before {
    /// It was not asked for.
    #[default]
    Unasked,
    /// The message is to wait for it.
    Due,
    /// It has come, or does not: the message goes.
    Come,
}

/// What a client listens on, and what waits for it.
#[derive(Debug, Default)]
pub(super) struct Listening {
    channels: BTreeSet<Channel>,
    /// What its transaction under way has done.
    pending: Pending,
    /// What the listening connection is on besides, for LISTENs under way.
    ahead: Ahead,
    /// Channels that are heard by its own backend yet.
    joining: BTreeSet<Channel>,
    /// The listening connection has heard them, too, from before the LISTEN on.
    joining_ahead: bool,
    stage: Stage,
    before_message: Before,
    serial: u32,
    /// The answer that is held back.
    held: Vec<u8>,
    /// What the server reports after it, and after the notifications.
    held_reports: Vec<u8>,
    /// Reports after which nothing has come yet.
    reports: Vec<u8>,
    /// Notifications that wait for it.
    queue: VecDeque<Waiting>,
    queued_bytes: usize,
    /// What its own backend has heard, on which it keeps listening: it comes after `queue`.
    native: Vec<Waiting>,
    /// What its own backend has heard since the transaction that listened.
    overheard: Vec<Notification>,
    /// It has heard its own marker: what comes after that is heard otherwise.
    overheard_all: bool,
    /// The channel of markers on which it listens while it takes over: it hears those of others, too.
    marker: Option<Channel>,
    /// What the listening connection has heard after the marker, while the backend has not answered.
    later: Vec<Waiting>,
    /// What its own backend listens on.
    on_backend: Vec<Box<[u8]>>,
    /// Its own backend listens on its channels, too, so that `pg_listening_channels()` shows them.
    shown: bool,
    /// It has looked at them before.
    looks: bool,
    /// Its pipeline under way has executed something: the transaction may be over.
    executed: bool,
    /// Channels that it leaves at the end of its transaction, whatever becomes of that.
    left: BTreeSet<Channel>,
}

/// What waits for a client.
#[derive(Debug)]
struct Waiting {
    message: Arc<[u8]>,
    /// That of a notification.
    channel: Option<Channel>,
}

/// What the listening connection is on before the LISTENs of a transaction.
#[derive(Debug, Default)]
struct Ahead {
    /// Channels that it has been asked for.
    channels: BTreeSet<Channel>,
    /// Channels that it is to be asked for.
    wanted: Vec<Channel>,
    /// Where it hears markers.
    marker: Option<Marker>,
    /// It has failed: the transaction goes on without.
    given_up: bool,
}

impl Ahead {
    fn channels(&self) -> &BTreeSet<Channel> {
        &self.channels
    }

    /// Where it hears markers, if it has heard all of these channels ahead.
    fn marker_for(&self, joined: &BTreeSet<Channel>) -> Option<Marker> {
        let heard = !self.given_up && joined.is_subset(&self.channels);
        self.marker.clone().filter(|_| heard)
    }
}

impl Listening {
    /// Whether it is so of what was notified before the message that waits; it is noted no more then.
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

    /// Of what waits, keeps what is of channels of which this is true, and what is of none.
    fn keep_queued(&mut self, is_of: impl Fn(&Self, &Channel) -> bool) {
        let mut queue = std::mem::take(&mut self.queue);
        queue.retain(|waiting| waiting.channel.as_ref().is_none_or(|channel| is_of(self, channel)));
        self.queue = queue;
        self.count_queued();
    }

    fn count_queued(&mut self) {
        let waiting = self.queue.iter().chain(&self.native).chain(&self.later);
        let queued = waiting.map(|waiting| waiting.message.len());
        let overheard = self.overheard.iter().map(|one| one.message.len());
        self.queued_bytes = queued.chain(overheard).sum();
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

    /// An UNLISTEN is under way that cannot be marked.
    fn take(&mut self, what: &Taken) {
        let taken = self.channels.iter().filter(|channel| what.takes(channel.as_bytes()));
        self.left.extend(taken.cloned());
    }

    /// A DISCARD ALL has worked: of all channels and marks up to there, none is left on the backend. What
    /// is pending stays: its pipeline may have listened after it, and the backend says on what.
    pub(super) fn discard(&mut self) {
        self.left.extend(self.channels.iter().cloned());
    }
}
