//! A client's message waits until a database is vacant.

use crate::ids::{ClientId, Slot};
use crate::relay::effects::Unusual;
use crate::relay::from_client::client_message::ClientMessage;
use crate::relay::halt::Halt;
use crate::relay::host::Host;
use crate::relay::socket::Socket;
use crate::relay::table::Engine;
use crate::relay::vacancy::{Hold, Vacancy};
use crate::wire::TransactionStatus;

impl<S: Socket> ClientMessage<'_, '_, S> {
    /// Makes a statement wait until no other connection exists to the database that it needs for
    /// itself.
    pub(crate) fn hold_for_vacancy(&mut self, unusual: &Unusual) -> Result<(), Halt> {
        let Some(database) = &unusual.vacates else { return Ok(()) };
        match self.client.pending_session().vacancy.take() {
            Some(Vacancy::Given(kept)) => {
                self.backend.lending.vacancy = Some(kept);
                self.client.settle();
                return Ok(());
            }
            // In a block the server refuses it.
            None if self.backend.from_server.status() != TransactionStatus::Idle => {
                self.client.settle();
                return Ok(());
            }
            None => self.client.pending_session().vacancy = Some(Vacancy::Wanted(database.clone())),
            under_way => self.client.pending_session().vacancy = under_way,
        }
        self.backend.prepared.replay.forget(); // it has the message already, which is processed again
        self.wait()
    }

    /// The same for a Bind, of the client's statement of this name.
    pub(crate) fn hold_bind_for_vacancy(&mut self, name: &[u8]) -> Result<(), Halt> {
        let unusual = if name.is_empty() {
            let unnamed = self.unnamed().filter(|one| !one.has_no_effects());
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
    /// A client's message has been processed. If it must wait until a database is empty, the
    /// request is sent now.
    pub(crate) fn ask_for_vacancy<H: Host<S>>(&mut self, host: &mut H, slot: Slot) {
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
    pub(crate) fn vacated(&mut self, id: ClientId, kept: Hold) {
        let Some(client) = self.clients.get_mut(id.slot) else { return };
        let Some(extra) = &mut client.pending_session else { return };
        if matches!(extra.vacancy, Some(Vacancy::Asked)) {
            extra.vacancy = Some(Vacancy::Given(kept));
            client.serving.held = false;
            self.resume_later(id.slot);
        }
    }
}
