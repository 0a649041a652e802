//! How a client gets its backend.

use crate::ids::{LoopId, Slot};
use crate::lending::{Acquired, Lasting, Wish};
use crate::parts::sequences::drawn_values::Lent;
use crate::relay::backend::Backend;
use crate::relay::client_info::ClientState;
use crate::relay::halt::Halt;
use crate::relay::host::Host;
use crate::relay::message::{QUEUE_FULL, ToLoop};
use crate::relay::socket::{Socket, Token};
use crate::relay::table::{Engine, Holder, PoolView};
use crate::time::Time;
use crate::wire::error::{ClientError, SqlState};
use crate::wire::frame::{self, Header};
use crate::wire::frontend;

/// The statement that a message names.
#[inline]
fn named_statement(header: Header, body: &[u8]) -> Option<&[u8]> {
    let name = match header.kind {
        frontend::BIND => frame::take_string(body)?.1,
        frontend::DESCRIBE => body.strip_prefix(b"S")?,
        _ => return None,
    };
    Some(frame::take_string(name)?.0)
}

impl<S: Socket> PoolView<S> {
    /// The error for a client that is one too many in the queue.
    fn has_full_queue(&self) -> ClientError {
        let (pool, most) = (&self.pool, self.settings.limits.queue_max);
        ClientError::fatal(
            SqlState::TOO_MANY_CONNECTIONS,
            format!("{QUEUE_FULL} for database \"{}\" and user \"{}\"", pool.database, pool.user),
        )
        .detail(format!("{most} clients wait already (queue_limit)."))
        .hint("Connect again later.")
    }
}

impl<S: Socket> Engine<S> {
    /// Gets the client a backend, or a place in the queue.
    pub(crate) fn attach<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        wish: Wish,
        now: Time,
    ) -> Result<(), Halt> {
        let id = self.client_id(slot);
        let Some(client) = self.clients.get_mut(slot) else { return Err(Halt::Dry) };
        let view = &self.pools[client.pool as usize];
        let sql = client.sql_statements();
        let names = view.pool.custom_names(&client.session.desired);
        let wish =
            Wish { avoids: wish.avoids.and(view.pool.avoided_by(&client.session.desired)), ..wish };
        let acquired = view.pool.lock().acquire_with(
            id,
            names,
            wish,
            |backend| match wish.own {
                true => backend.has_sql_of(sql),
                false => wish.statement != 0 && backend.prepared.statements.has(wish.statement),
            },
            now,
        );
        match acquired {
            Acquired::Backend { backend, home } => {
                self.take_over(host, slot, backend, home, now).map_err(Halt::BackendLost)?;
                self.stats(self.clients.get(slot).map_or(0, |c| c.pool)).wait.record(0);
                Ok(())
            }
            Acquired::Down(error) => Err(Halt::Refused(error)),
            Acquired::Full => Err(Halt::Refused(view.has_full_queue())),
            Acquired::Wait { open } | Acquired::Replace { open, .. } => {
                client.serving.state = ClientState::Waiting;
                client.times.begin(now);
                if open {
                    host.open(&view.pool, self.id);
                }
                if let Acquired::Replace { backend, home, .. } = acquired {
                    Self::close_idle(host, backend, home);
                }
                self.arm_wait(slot, now);
                Err(Halt::Waiting)
            }
        }
    }

    /// What the client would like to find on a backend for this first message.
    #[inline]
    pub(crate) fn wish(&mut self, slot: Slot, header: Header, body: &[u8]) -> Wish {
        let Some(client) = self.clients.get(slot) else { return Wish::default() };
        let view = &mut self.pools[client.pool as usize];
        let settings = view.wanted_by(&client.session);
        // A client without settings matches most backends of a pool in which none has any.
        let looks = view.want_different(settings) && !client.session.desired.is_empty();
        let named = if looks { named_statement(header, body) } else { None };
        let named = named.and_then(|name| client.statement(name));
        let avoids = match header.kind {
            frontend::QUERY | frontend::PARSE => view.pool.avoided_by_text(body),
            _ => Lasting::NONE,
        };
        Wish {
            settings,
            statement: named.map_or(0, |named| named.statement.id),
            own: !client.sql_statements().is_empty(),
            avoids,
            priority: client.priority(),
        }
    }

    /// Makes a backend the client's. `home` is the loop that watches it, if any.
    pub(crate) fn take_over<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        mut backend: Box<Backend<S>>,
        home: LoopId,
        now: Time,
    ) -> Result<(), &'static str> {
        if home == self.id {
            if let Some(resident) = self.resident.get_mut(backend.place()) {
                resident.holder = Holder::Client(slot);
            }
        } else {
            host.unwatch(&backend.socket, home);
            host.send(home, ToLoop::Departed(backend.place()));
            if let Err(reason) = self.settle_here(host, &mut backend, Holder::Client(slot)) {
                self.close_backend(host, backend, reason, now);
                return Err(reason);
            }
            let stats = backend.pool.stats.of(self.id);
            stats.crossings.add(1);
        }
        let id = self.client_id(slot);
        let Some(client) = self.clients.get_mut(slot) else { return Err("its client is gone") };
        client.backends = client.backends.wrapping_add(1);
        backend.is_lent_to(Lent { client: id, number: client.backends });
        if backend.known.notifying.may_be_forgotten()
            && !backend.pool.notifiers().lent(backend.process(), self.process_of(slot))
        {
            backend.known.notifying.forget();
        }
        backend.known.learn_functions(&backend.pool);
        let Some(client) = self.clients.get_mut(slot) else { return Err("its client is gone") };
        backend.lending.begin(now);
        // (If users share it, it has other values once it has been handed over.)
        let own = backend.is_handed_to(id);
        if own {
            client.begin_with(&backend);
        }
        client.backend = Some(backend);
        client.serving.state = ClientState::Active;
        let pool = client.pool;
        self.stats(pool).assignments.add(1);
        Ok(())
    }

    /// Moves a backend into this loop's table, which watches it from now on.
    pub(crate) fn settle_here<H: Host<S>>(
        &mut self,
        host: &mut H,
        backend: &mut Box<Backend<S>>,
        holder: Holder<S>,
    ) -> Result<(), &'static str> {
        let pool = self.view_of(&backend.pool.clone());
        let id = backend.id();
        let place =
            self.resident.insert_with(|_| crate::relay::table::Resident { id, pool, holder });
        backend.move_to(self.id, place);
        backend.from_server.stop_awaiting_room();
        if host.watch(&backend.socket, Token::Backend(place)).is_err() {
            return Err("its connection could not be watched");
        }
        Ok(())
    }
}
