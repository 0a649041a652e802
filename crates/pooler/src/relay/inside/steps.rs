//! Clients go inside, and come back.

use crate::ids::Slot;
use crate::parts::statements::shared::Unnamed;
use crate::relay::backend::Backend;
use crate::relay::client_info::ClientState;
use crate::relay::host::Host;
use crate::relay::inside::{BackFromInside, PairFromInside};
use crate::relay::request_queue::Request;
use crate::relay::socket::{Socket, Token};
use crate::relay::succession::Departure;
use crate::relay::table::{Engine, Holder};
use crate::time::Time;
use crate::wire::build;
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
            if !client.socket.let_go() {
                continue;
            }
            client.serving.state = ClientState::Inside;
            client.times.begin(now);
            host.unwatch(&client.socket, self.id);
            host.go_inside(id, &mut client.socket, session);
        }
    }

    /// It comes back with its backend.
    pub(crate) fn pair_from_inside<H: Host<S>>(
        &mut self,
        host: &mut H,
        pair: PairFromInside<S>,
        now: Time,
    ) {
        let PairFromInside { back, backend, owed } = pair;
        let pool = backend.pool.clone();
        pool.lock().comes_lent(self.id);
        let none = Slot { index: u32::MAX, generation: u32::MAX };
        let mut backend = Box::new(Backend::new(backend, self.id, none));
        // Its process has served others, whose functions' plans and custom names it keeps.
        backend.lending.spoil("it has served clients inside the server");
        let slot = back.client.slot;
        let is_there = match self.settle_here(host, &mut backend, Holder::Client(slot)) {
            Ok(()) => self.join(host, slot, backend, owed, now),
            Err(reason) => {
                self.close_backend(host, backend, reason, now);
                false
            }
        };
        match is_there {
            true => self.go_on_outside(host, back, now),
            false => self.back_from_inside(host, BackFromInside { lost: true, ..back }, now),
        }
    }

    /// A client inside gets the backend with which it comes. False: it is not there, or its settings are of
    /// another basis.
    fn join<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        mut backend: Box<Backend<S>>,
        owed: bool,
        now: Time,
    ) -> bool {
        let client = self.clients.get_mut(slot).filter(|client| client.serving.is_inside());
        let basis = backend.session.own.basis;
        let Some(client) = client.filter(|client| client.session.basis == basis) else {
            self.close_backend(host, backend, "its client has disconnected", now);
            return false;
        };
        backend.session.applied = client.session.desired.clone();
        // A Sync asks for the server's reports, and for whether a transaction is open.
        let answers = if owed { Request::Query } else { Request::InjectedQuery };
        backend.requests.push(answers.into());
        client.serving.held = !owed;
        client.times.begin_transaction(now);
        let home = self.id;
        let has = self.take_over(host, slot, backend, home, now).is_ok();
        // (If that fails, the client learns of it in its turn.)
        let _ = has && self.write_to_backend(slot, &build::SYNC);
        has
    }

    /// It is read here again.
    pub(crate) fn back_from_inside<H: Host<S>>(
        &mut self,
        host: &mut H,
        back: BackFromInside,
        now: Time,
    ) {
        let Some(client) = self.clients.get_mut(back.client.slot) else { return };
        if client.serving.is_inside() {
            client.serving.state = ClientState::Idle;
            self.go_on_outside(host, back, now);
        }
    }

    fn go_on_outside<H: Host<S>>(&mut self, host: &mut H, back: BackFromInside, now: Time) {
        let BackFromInside { client: id, input, unnamed, lost } = back;
        let slot = id.slot;
        let Some(client) = self.clients.get_mut(slot) else { return };
        self.inside.come_back(slot);
        client.times.begin(now);
        let is_alone = client.backend.is_none();
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
        // (What has come with a backend waits until that is ready.)
        if !input.is_empty() && is_alone {
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
