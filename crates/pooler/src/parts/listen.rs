//! One connection to a server listens for all clients of a pool.
//!
//! # Model
//! ```text
//!   client ── LISTEN c ──► its own backend     (the server's rules: commit, rollback, savepoints)
//!      │                        │ committed: which channels?              see `change`
//!      ▼                        ▼
//!   Board of its loop ── first here? ──► Hub of its pool ── LISTEN c ──► the listening connection
//!      ▲  channel ─► clients               channel ─► loops                      │
//!      └──────────────── notification, once for each loop ◄──────────────────────┘
//! ```
//! A LISTEN is carried out twice: on the client's own backend, where it commits or is rolled back
//! with the client's transaction, and, once it has committed there, on the listening connection,
//! before the answer to the client's COMMIT. A marker notification, sent by the client's backend
//! and received on both connections, separates the two: notifications before it are taken from the
//! backend, notifications after it from the listening connection.
//!
//! # Invariants
//! * a loop asks for a channel when its first client wants it, and lets go of it when none does
//! * a ticket passes only when all that its loop asked for before it is in force on the server, and
//!   that loop has received every notification that was committed before the ticket came in
//! * at most one query is under way on the listening connection
//!
//! # Source
//! src/backend/commands/async.c: `PreCommit_Notify` holds a lock from the queueing of notifications
//! to the end of the transaction, so their order is that of the commits; `SignalBackends` comes
//! before the sender's ReadyForQuery, and a listener reads the queue before its own
//! (`ProcessNotifyInterrupt`, postgres.c): so the answer to a query that was sent after a commit
//! follows that commit's notifications.

pub(crate) mod board;
pub(crate) mod change;
pub(crate) mod channel;
pub(crate) mod clients;
pub(crate) mod hub;
pub(crate) mod listener;
pub(crate) mod named;
pub(crate) mod notifiers;
pub(crate) mod notifying;
pub(crate) mod ticket;

#[cfg(test)]
mod tests;

pub(crate) use board::Board;
pub(crate) use channel::Channel;
pub(crate) use hub::{Hub, Step};
pub(crate) use ticket::{Ask, Claimant, Ticket};

use std::sync::Arc;

use crate::ids::{PoolId, ServerAddressId};
use crate::parts::listen::notifiers::Notifiers;
use crate::time::Time;
use crate::wire::error::ClientError;
use crate::wire::{backend, build};

/// Channels that one client may listen on here; one with more keeps its backend.
pub(crate) const CHANNELS_A_CLIENT_MAX: usize = 10_000;

/// The channel on which the listening connection receives markers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Marker {
    /// Its channel, on which only it listens, and backends that are about to stop listening.
    pub channel: Channel,
    /// Its server: notifications on another never arrive.
    pub server: ServerAddressId,
}

/// What a hub tells a loop.
#[derive(Clone, Debug)]
pub enum FromHub {
    /// A notification on a channel on which clients of the loop listen.
    Notified(Arc<Notification>),
    /// The claimant's wait is over. With the channel of markers and its server.
    Passed(Claimant, Marker),
    /// The listening connection could not be opened, or has been lost.
    Failed {
        /// Who waited for it.
        claimant: Claimant,
        /// It has been lost, with the notifications it would have received: `Lost` follows.
        lost: bool,
    },
    /// The marker that the backend of a client has sent, and its process id.
    Marked(Ticket, u32),
    /// The listening connection has been lost, with the notifications it would have received. With
    /// `again`, all channels are listened on again.
    Lost {
        /// The error that clients get.
        error: ClientError,
        /// Whether they stay.
        again: bool,
    },
}

/// A notification.
#[derive(Debug, PartialEq, Eq)]
pub struct Notification {
    /// The channel.
    pub channel: Channel,
    /// The server process that sent it.
    pub process: u32,
    /// The whole NotificationResponse.
    pub message: Arc<[u8]>,
}

impl Notification {
    /// From the body of a NotificationResponse; `None` if that is malformed.
    pub fn read(body: &[u8]) -> Option<Self> {
        let (process, rest) = crate::wire::frame::take_u32(body)?;
        let (channel, _) = crate::wire::frame::take_string(rest)?;
        let mut message = Vec::with_capacity(body.len() + crate::wire::frame::HEADER_BYTES);
        build::message(&mut message, backend::NOTIFICATION, |out| out.extend_from_slice(body));
        Some(Self { channel: Channel::new(channel), process, message: message.into() })
    }

    /// The payload.
    pub fn payload(&self) -> &[u8] {
        let start = crate::wire::frame::HEADER_BYTES + 4 + self.channel.as_bytes().len() + 1;
        self.message.get(start..self.message.len() - 1).unwrap_or_default()
    }

    /// The same with the process id that the sender itself has, if that is known.
    #[must_use]
    pub fn named(mut self, notifiers: &Notifiers, hears: Option<PoolId>, now: Time) -> Self {
        if let Some(client) = notifiers.of(self.process, hears, now) {
            self.message = self.message_from(client);
        }
        self
    }

    /// The same message, from another process.
    pub fn message_from(&self, process: u32) -> Arc<[u8]> {
        let mut message = self.message.to_vec();
        let at = crate::wire::frame::HEADER_BYTES;
        message[at..at + 4].copy_from_slice(&process.to_be_bytes());
        message.into()
    }
}
