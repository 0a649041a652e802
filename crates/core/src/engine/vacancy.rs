//! Statements for which nobody else may be connected to a database: DROP DATABASE and the like.
//!
//! # Model
//! ```text
//!   the message comes ─► Wanted ─► Host::vacate ─► Asked ─► ToLoop::Vacated ─► Given ─► it is sent
//!                                                                                        │
//!        connections may be opened again ◄─ what was given is dropped ◄─ all is answered ┘
//! ```
//! The server counts connections, not clients: those that sit idle in a pool would be in its way (55006).
//! The message waits until they have been closed, and none is opened before the server has answered.
//! Whether clients are connected there as well is the host's to see.
//!
//! # Limits
//! A statement that was prepared by its own name on a connection that is not shared is not seen when it
//! is executed: it waits when it is parsed.

use std::any::Any;
use std::sync::Arc;

use super::effects::Unusual;
use super::from_client::Halt;
use super::from_client::client_message::ClientMessage;
use super::host::Host;
use super::socket::Socket;
use super::table::Engine;
use crate::ids::{ClientId, Slot};
use crate::wire::TransactionStatus;

/// What keeps connections from being opened.
pub(super) type Hold = Arc<dyn Any + Send + Sync>;

/// How far a database has been emptied of connections.
pub(super) enum Vacancy {
    /// It is to be.
    Wanted(Box<[u8]>),
    /// The host sees to it.
    Asked,
    /// It is, as long as this is kept.
    Given(Hold),
}

impl<S: Socket> ClientMessage<'_, '_, S> {
    /// Makes a statement wait until nobody is connected to the database that it wants for itself.
    pub(super) fn hold_for_vacancy(&mut self, unusual: &Unusual) -> Result<(), Halt> {
        let Some(database) = &unusual.vacates else { return Ok(()) };
        match self.client.pending_session().vacancy.take() {
            Some(Vacancy::Given(kept)) => {
                self.backend.vacancy = Some(kept);
                self.client.settle();
                return Ok(());
            }
            // In a block the server refuses it.
            None if self.backend.status != TransactionStatus::Idle => {
                self.client.settle();
                return Ok(());
            }
            None => self.client.pending_session().vacancy = Some(Vacancy::Wanted(database.clone())),
            under_way => self.client.pending_session().vacancy = under_way,
        }
        self.backend.replay.forget(); // it has the message already, which comes again
        self.wait()
    }

    /// The same for a Bind, of the client's statement of this name.
    pub(super) fn hold_bind_for_vacancy(&mut self, name: &[u8]) -> Result<(), Halt> {
        let unusual = if name.is_empty() {
            let unnamed = self.client.unnamed.as_ref().filter(|one| !one.has_no_effects());
            unnamed.and_then(|unnamed| unnamed.effects().unusual.as_ref())
        } else {
            self.client.statement(name).and_then(|named| named.statement.effects.unusual.as_ref())
        };
        match unusual.filter(|unusual| unusual.vacates.is_some()).cloned() {
            Some(unusual) => self.hold_for_vacancy(&unusual),
            None => Ok(()),
        }
    }
}

impl<S: Socket> Engine<S> {
    /// A client's message has been dealt with. If it must wait for a database to be emptied, that is
    /// asked for now.
    pub(super) fn ask_for_vacancy<H: Host<S>>(&mut self, host: &mut H, slot: Slot) {
        let id = self.client_id(slot);
        let Some(client) = self.clients.get_mut(slot) else { return };
        let Some(extra) = &mut client.pending_session else { return };
        if let Some(Vacancy::Wanted(database)) = &extra.vacancy {
            let pool = &self.pools[client.pool as usize].pool;
            host.vacate(pool, database, id);
            extra.vacancy = Some(Vacancy::Asked);
        }
    }

    /// A database has been emptied for a client's statement.
    pub(super) fn vacated(&mut self, id: ClientId, kept: Hold) {
        let Some(client) = self.clients.get_mut(id.slot) else { return };
        let Some(extra) = &mut client.pending_session else { return };
        if matches!(extra.vacancy, Some(Vacancy::Asked)) {
            extra.vacancy = Some(Vacancy::Given(kept));
            client.held = false;
            self.resume_later(id.slot);
        }
    }
}
