//! Clients go inside, and come back.

use crate::ids::Slot;
use crate::parts::statements::shared::Unnamed;
use crate::relay::client_info::ClientState;
use crate::relay::host::Host;
use crate::relay::inside::BackFromInside;
use crate::relay::socket::{Socket, Token};
use crate::relay::succession::Departure;
use crate::relay::table::Engine;
use crate::time::Time;
use crate::wire::error::ClientError;

impl<S: Socket> Engine<S> {
    /// Pools have been looked at.
    pub(crate) fn look_for_rooms(&mut self) {
        self.inside.open = self.pools.iter().any(|view| view.goes_inside);
    }

    /// A client may have come to rest after a transaction.
    pub(crate) fn may_go_inside(&mut self, slot: Slot) {
        let Some(client) = self.clients.get(slot) else { return };
        let goes = self.pools[client.pool as usize].goes_inside;
        if goes && client.backend.is_none() && self.inside.may_go(slot) {
            self.inside.candidates.insert(slot);
        }
    }

    /// To be called when answers have been written.
    #[cold]
    pub(crate) fn send_those_at_rest_inside<H: Host<S>>(&mut self, host: &mut H, now: Time) {
        while let Some(slot) = self.inside.candidates.pop_first() {
            if !matches!(self.departure, Departure::None) {
                continue;
            }
            let id = self.client_id(slot);
            let Some(client) = self.clients.get_mut(slot) else { continue };
            let pool = self.pools[client.pool as usize].pool.clone();
            let Some(session) = client.to_inside(&pool) else { continue };
            client.serving.state = ClientState::Inside;
            client.times.begin(now);
            host.unwatch(&client.socket, self.id);
            host.go_inside(id, &client.socket, session);
        }
    }

    /// It is read here again.
    pub(crate) fn back_from_inside<H: Host<S>>(
        &mut self,
        host: &mut H,
        back: BackFromInside,
        now: Time,
    ) {
        let BackFromInside { client: id, input, unnamed, lost } = back;
        let slot = id.slot;
        let Some(client) = self.clients.get_mut(slot) else { return };
        if !client.serving.is_inside() {
            return;
        }
        client.serving.state = ClientState::Idle;
        self.inside.come_back(slot);
        client.times.begin(now);
        let goodbye = self.inside.goodbyes.remove(&slot);
        if lost {
            self.close_client(host, slot, "its connection ended inside the server", now);
            return;
        }
        match unnamed {
            None => {}
            Some(body) if body.is_empty() => client.prepared.unnamed = None,
            Some(body) => {
                let pool = &self.pools[client.pool as usize].pool;
                let settings = client.session.desired.clone();
                let unnamed = Unnamed::new(&body, settings, None, pool.schema_epoch_at(now));
                client.prepared.unnamed = Some(unnamed);
            }
        }
        client.input.extend_from_slice(&input);
        if host.watch(&client.socket, Token::Client(slot)).is_err() {
            self.close_client(host, slot, "its connection could not be watched", now);
            return;
        }
        if let Some(error) = goodbye {
            self.say_goodbye(host, slot, &error, now);
            return;
        }
        self.rearm(slot, now);
        if !input.is_empty() {
            self.resume_later(slot);
        }
        if !matches!(self.departure, Departure::None) {
            self.drain_if_idle(host, slot, now);
        }
    }

    /// Whether a client that is to be disconnected is inside: it is disconnected when it is back.
    pub(crate) fn calls_back<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        error: &ClientError,
    ) -> bool {
        if !self.clients.get(slot).is_some_and(|client| client.serving.is_inside()) {
            return false;
        }
        self.inside.goodbyes.insert(slot, error.clone());
        host.call_back(self.client_id(slot));
        true
    }
}
