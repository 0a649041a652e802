//! Clients come out of an engine, and into one.

use std::sync::Arc;

use crate::ids::Slot;
use crate::parts::sequences::asking::Asks;
use crate::parts::statements::client_names::{ClientStatement, ClientStatements};
use crate::parts::statements::description::Seen;
use crate::parts::statements::of_client::ClientPrepared;
use crate::parts::statements::shared::Unnamed;
use crate::relay::client::{
    AtSocket, Client, ClientSession, ClientTimes, Record, Serving, parts_of_start,
};
use crate::relay::host::Host;
use crate::relay::limits;
use crate::relay::pending_bytes::PendingBytes;
use crate::relay::socket::{Socket, Token};
use crate::relay::succession::{
    Arrival, ClientRecord, Departure, Giving, MovedClient, Stays, UnnamedRecord,
};
use crate::relay::table::Engine;
use crate::time::Time;

impl<S: Socket> Engine<S> {
    /// Clients go to the successor, `more` of them than have been asked for before.
    pub(crate) fn give_clients(&mut self, more: usize) {
        match &mut self.departure {
            Departure::None => {
                let giving = Giving { room: more, ..Giving::default() };
                self.departure = Departure::ToSuccessor(Box::new(giving));
                self.look_for_leavers();
            }
            Departure::ToSuccessor(giving) => giving.room += more,
            // The process ends: its clients get an error.
            Departure::Goodbye(_) => {}
        }
    }

    /// There is no successor any more.
    pub(crate) fn keep_clients(&mut self) {
        if matches!(self.departure, Departure::ToSuccessor(_)) {
            self.departure = Departure::None;
        }
    }

    /// Some more clients are checked, and in time all again: what kept one here may have ended by
    /// itself.
    pub(crate) fn look_for_leavers(&mut self) {
        if let Departure::ToSuccessor(giving) = &mut self.departure {
            let to = giving.next + limits::LEAVERS_A_TICK;
            giving.candidates.extend(self.clients.range(giving.next..to).map(|(slot, _)| slot));
            giving.next = if to < self.clients.end() { to } else { 0 };
        }
    }

    /// A client may have come to rest.
    pub(crate) fn may_leave(&mut self, slot: Slot) {
        if let Departure::ToSuccessor(giving) = &mut self.departure {
            giving.candidates.insert(slot);
        }
    }

    /// Gives those that are at rest to the successor. To be called when answers have been written.
    #[cold]
    pub(crate) fn give_those_at_rest<H: Host<S>>(&mut self, host: &mut H) {
        loop {
            let Departure::ToSuccessor(giving) = &mut self.departure else { return };
            if giving.room == 0 {
                return;
            }
            let Some(slot) = giving.candidates.pop_first() else { return };
            if giving.refused.contains(&slot) {
                continue;
            }
            if self.clients.get(slot).is_some_and(|client| client.serving.is_inside()) {
                host.call_back(self.client_id(slot));
                continue;
            }
            let Some(moved) = self.take_out(host, slot) else { continue };
            if let Departure::ToSuccessor(giving) = &mut self.departure {
                giving.room -= 1;
            }
            host.give(self.id, moved);
        }
    }

    /// Takes a client out of this engine, if it is at rest and its state fits in a record.
    fn take_out<H: Host<S>>(&mut self, host: &mut H, slot: Slot) -> Option<MovedClient<S>> {
        let client = self.clients.get(slot)?;
        let pool = self.pools[client.pool as usize].pool.clone();
        let record = match client.to_record(&pool, self.process_ids.of(slot.index)) {
            Ok(record) => record,
            Err(Stays::ForNow) => return None,
            Err(Stays::ForGood) => {
                self.stays(slot);
                return None;
            }
        };
        if !self.clients.get_mut(slot)?.socket.let_go() {
            return None;
        }
        host.unwatch(&self.clients.get(slot)?.socket, self.id);
        self.process_ids.give_back(slot.index);
        self.inside.forget(slot);
        let Client { socket, record: own, .. } = self.clients.remove(slot)?;
        Some(MovedClient { socket, pool, permit: own._permit, record })
    }

    fn close_unwatched<H: Host<S>>(&mut self, host: &mut H, slot: Slot, now: Time) {
        self.close_client(host, slot, "its connection could not be watched", now);
    }

    /// The successor does not get this client.
    fn stays(&mut self, slot: Slot) {
        if let Departure::ToSuccessor(giving) = &mut self.departure {
            giving.refused.insert(slot);
        }
    }

    /// A client has come out of another engine, or comes back.
    pub(crate) fn take_client<H: Host<S>>(
        &mut self,
        host: &mut H,
        moved: MovedClient<S>,
        arrival: Arrival,
        now: Time,
    ) {
        let process = moved.record.process;
        let client = self.client_from(moved, now);
        let slot = self.clients.insert_with(|_| client);
        self.process_ids.take_this(slot.index, process);
        self.see_rules_for(host, slot);
        match arrival {
            Arrival::BackFromSuccessor => self.stays(slot),
            Arrival::FromPredecessor => self.may_leave(slot),
        }
        let Some(client) = self.clients.get(slot) else { return };
        if host.watch(&client.socket, Token::Client(slot)).is_err() {
            self.close_unwatched(host, slot, now);
            return;
        }
        self.rearm(slot, now);
        self.drain_if_idle(host, slot, now);
    }

    /// The client of a record.
    fn client_from(&mut self, moved: MovedClient<S>, now: Time) -> Client<S> {
        let MovedClient { socket, pool, permit, record } = moved;
        let ClientRecord {
            process: _, // the caller gives it
            secret,
            about,
            mode,
            values,
            start,
            desired,
            statements,
            unnamed,
            reads_sequences,
            since,
            schema_changes: _, // the host compares it: see [`crate::lending::SharedPool::schema_changed`]
        } = record;
        let basis = pool.basis_of_predecessor(&values);
        let epoch = pool.schema_epoch_at(now);
        let share = |settings| pool.interner().share(settings);
        let (start, desired) = (share(start), share(desired));
        let mut names = (!statements.is_empty()).then(|| {
            Box::new(ClientStatements::new(self.hash_key, pool.statements.memory().clone()))
        });
        for one in statements {
            let settings = share(one.settings);
            let statement = pool.statements.to_be_made(&one.body, basis, &settings);
            let named = ClientStatement {
                seen: Arc::new(Seen::of(one.told)),
                // (No answer is still to come that names it.)
                ..ClientStatement::new(statement, 1, epoch, &settings)
            };
            if let Some(names) = &mut names {
                names.change(|names| names.insert(one.name, named));
            }
        }
        let unnamed = unnamed.map(|UnnamedRecord { body, settings, told }| {
            let told = told.map(|told| Arc::new(Seen::of(told)));
            Unnamed::to_be_read(&body, share(settings), told, epoch)
        });
        let asks = if reads_sequences { Asks::Before } else { Asks::Never };
        Client {
            socket,
            backend: None,
            input: PendingBytes::EMPTY,
            output: PendingBytes::EMPTY,
            prepared: ClientPrepared::new(names, unnamed),
            pending_session: None,
            times: ClientTimes::new(since),
            pool: self.view_of(&pool),
            backends: 0,
            serving: Serving::new(mode, false),
            at_socket: AtSocket::default(),
            session: ClientSession::new(desired, basis, parts_of_start(&start), asks),
            record: Box::new(Record { about, secret, start, _permit: permit }),
        }
    }
}
