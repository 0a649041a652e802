//! Entry points of the engine: readiness of connections, and messages.

use std::time::Duration;

use crate::ids::{ClientId, LoopId, Slot};
use crate::lending::Wish;
use crate::parts::sequences::asking::Asks;
use crate::parts::settings::applied::Role;
use crate::parts::settings::timeouts::without_short_timeout;
use crate::parts::statements::of_client::ClientPrepared;
use crate::relay::backend::{Backend, BackendSeed, Tidying};
use crate::relay::bulk_orders::Order;
use crate::relay::client::{
    AtSocket, Client, ClientSession, ClientTimes, Record, Serving, parts_of_start,
};
use crate::relay::client_info::{CancelKey, ClientState, PoolMode};
use crate::relay::host::Host;
use crate::relay::limits;
use crate::relay::message::{Event, NewClient, ToLoop};
use crate::relay::pending_bytes::PendingBytes;
use crate::relay::pending_session::PendingSession;
use crate::relay::socket::{Readiness, Socket, Token, write_kept};
use crate::relay::succession::Departure;
use crate::relay::table::{Engine, Holder};
use crate::session::part::PartSet;
use crate::time::Time;
use crate::wire::error::{ClientError, SqlState};
use crate::wire::{TransactionStatus, backend as kind, build, frontend};

/// The server refuses new sessions while others serve: a client waits at most this long for one of
/// those.
const WAITS_FOR_OTHERS: Duration = Duration::from_secs(5);

impl<S: Socket> Engine<S> {
    /// An event has come for a connection.
    pub fn on_event<H: Host<S>>(
        &mut self,
        host: &mut H,
        token: Token,
        ready: Readiness,
        now: Time,
    ) {
        self.again.begin();
        self.work_off(host, now); // work that a panic has left
        match token {
            Token::Client(slot) => self.client_event(host, slot, ready, now),
            Token::Backend(slot) => self.backend_event(host, slot, ready, now),
        }
        self.work.end();
        self.work_off(host, now);
    }

    fn client_event<H: Host<S>>(&mut self, host: &mut H, slot: Slot, ready: Readiness, now: Time) {
        if self.clients.get(slot).is_some_and(|client| client.serving.is_inside()) {
            return; // the event came before it went
        }
        if ready.broken
            && let Some(client) = self.clients.get_mut(slot)
            && client.is_leaving()
        {
            client.pending_session().farewell.goes();
            // It has closed its side after Terminate, without waiting for its answers: its queries
            // are carried out. The first answer that cannot be written ends that, as in PostgreSQL.
            return;
        }
        if (ready.broken || ready.hangup) && self.waits_with_goodbye(slot) {
            return;
        }
        if ready.broken {
            // What it had sent before may still be unread; no client would get the answers.
            self.close_client(host, slot, "client's connection broke", now);
            return;
        }
        let Some(client) = self.clients.get_mut(slot) else { return };
        // A readable socket is reported as writable as well: most wait for nothing.
        if ready.writable && client.waits_to_write() {
            match write_kept(&mut client.socket, &mut client.output) {
                Ok(written) => {
                    let took = client.output.len() < limits::OUTPUT_HIGH_BYTES;
                    let mut unread = false;
                    if let Some(backend) = &mut client.backend {
                        if written > 0 {
                            backend.gets_on(now);
                        }
                        unread = took && backend.from_server.unread.is_any();
                    }
                    if client.has_its_last_words() {
                        self.close_client(host, slot, "closed after its final error", now);
                        return;
                    }
                    if unread {
                        self.read_backend(host, slot, now);
                    }
                    if took {
                        self.go_on_reading(host, slot, now);
                    }
                }
                Err(_) => {
                    self.close_client(host, slot, "client's connection broke", now);
                    return;
                }
            }
        }
        if ready.readable || ready.hangup {
            let Some(client) = self.clients.get_mut(slot) else { return };
            client.at_socket.unread.leave(true);
            if ready.hangup {
                client.at_socket.unread.hangs_up();
                if matches!(client.serving.state, ClientState::Waiting | ClientState::Closing) {
                    // It has closed its side without Terminate: no answer would reach it.
                    self.close_client(host, slot, "client closed its connection", now);
                    return;
                }
            }
            if client.awaits_last_words() {
                self.answer_with_last_words(host, slot, now);
                return;
            }
            self.read_client(host, slot, now);
            if ready.hangup {
                // The end of the stream may come after bytes that are not read now: a client that
                // has closed its side does not keep its backend.
                self.hang_up_later(slot);
            }
        }
    }

    /// Continues with a client that was not read because it did not take its answers.
    fn go_on_reading<H: Host<S>>(&mut self, host: &mut H, slot: Slot, now: Time) {
        self.give_notifications(host, slot, now);
        if let Some(client) = self.clients.get(slot)
            && client.at_socket.unread.is_any()
            && matches!(client.serving.state, ClientState::Idle | ClientState::Active)
        {
            self.resume_later(slot);
        }
    }

    /// Whether a waiting client that has closed its side has sent Terminate after its waiting
    /// messages: these are carried out in its turn, as they are where a backend is free.
    fn waits_with_goodbye(&mut self, slot: Slot) -> bool {
        let Some(client) = self.clients.get_mut(slot) else { return false };
        if client.serving.state != ClientState::Waiting || client.is_to_be_greeted() {
            return false;
        }
        let mut buffer = [0; 1024];
        while client.input.len() < limits::UNATTACHED_READ_BYTES {
            match client.socket.read(&mut buffer) {
                Ok(0) => break,
                Ok(read) => client.input.extend_from_slice(&buffer[..read]),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => break,
            }
        }
        let mut rest = &client.input[..];
        while let crate::wire::frame::Framed::Header(header) = crate::wire::frame::header(rest) {
            if header.kind == frontend::TERMINATE {
                return true;
            }
            rest = rest.get(header.total()..).unwrap_or_default();
        }
        false
    }

    /// A client has closed its side. What it sent before is still carried out if it can be read
    /// now; but no answer would reach it.
    pub(crate) fn client_hung_up<H: Host<S>>(&mut self, host: &mut H, slot: Slot, now: Time) {
        let Some(client) = self.clients.get_mut(slot) else { return };
        if client.serving.is_inside() {
            return;
        }
        if client.is_leaving() {
            client.pending_session().farewell.goes();
            return;
        }
        if client.serving.state == ClientState::Waiting {
            self.close_client(host, slot, "client closed its connection", now);
            return;
        }
        let mut probe = [0u8; 1];
        match client.socket.read(&mut probe) {
            Ok(0) => self.close_client(host, slot, "client closed its connection", now),
            Ok(_) => {
                client.input.extend_from_slice(&probe);
                client.at_socket.unread.leave(true);
                self.resume_later(slot);
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(_) => self.close_client(host, slot, "client's connection broke", now),
        }
    }

    fn backend_event<H: Host<S>>(
        &mut self,
        host: &mut H,
        place: Slot,
        ready: Readiness,
        now: Time,
    ) {
        let Some(resident) = self.resident.get_mut(place) else { return };
        match &mut resident.holder {
            Holder::Client(slot) => {
                let slot = *slot;
                self.work.begin(slot);
                if ready.writable {
                    let Some(client) = self.clients.get_mut(slot) else { return };
                    let Some(backend) = &mut client.backend else { return };
                    if !backend.to_server.is_empty() {
                        if backend.to_server.flush(&mut backend.socket).is_err() {
                            self.backend_lost(slot, "server closed the connection");
                            return;
                        }
                        let took = backend.to_server.len() < limits::OUTPUT_HIGH_BYTES;
                        // Its answer may have come before its last bytes were written.
                        if !(took && self.resume_later(slot)) {
                            self.give_back_if_unused(host, slot, now);
                        }
                    } else if backend.socket.flush().is_err_and(|error| broken(&error)) {
                        self.backend_lost(slot, "server closed the connection");
                        return;
                    }
                }
                if ready.hangup
                    && let Some(client) = self.clients.get_mut(slot)
                    && let Some(backend) = &mut client.backend
                {
                    backend.from_server.unread.hangs_up();
                }
                if ready.readable || ready.hangup {
                    self.read_backend(host, slot, now);
                }
            }
            Holder::Engine(backend) => {
                let unsent = !backend.to_server.is_empty();
                if ready.hangup {
                    backend.from_server.unread.hangs_up();
                }
                if ready.writable && backend.to_server.flush(&mut backend.socket).is_err() {
                    if let Holder::Engine(backend) =
                        std::mem::replace(&mut resident.holder, Holder::Pool)
                    {
                        self.close_backend(host, backend, "server closed the connection", now);
                    }
                    return;
                }
                let out = unsent && backend.to_server.is_empty();
                if out || ready.readable || ready.hangup {
                    self.read_tidied(host, place, now);
                }
            }
            Holder::Listener(_) => self.listener_event(host, place, ready, now),
            Holder::Pool => {
                if ready.readable || ready.hangup {
                    self.idle_event(host, place, ready, now);
                }
            }
        }
    }

    /// An event has come for an idle backend: mostly the end of its connection.
    fn idle_event<H: Host<S>>(&mut self, host: &mut H, place: Slot, ready: Readiness, now: Time) {
        let Some(resident) = self.resident.get_mut(place) else { return };
        let (id, pool) = (resident.id, self.pools[resident.pool as usize].pool.clone());
        let Some(mut backend) = pool.lock().take_idle_as_lent(id, self.id) else {
            return; // another loop has just taken it, and reads it itself
        };
        if ready.hangup {
            backend.from_server.unread.hangs_up();
        }
        backend.lending.begin_tidying(Tidying::Draining, now);
        resident.holder = Holder::Engine(backend);
        self.read_tidied(host, place, now);
    }

    /// A message has come.
    pub fn on_message<H: Host<S>>(&mut self, host: &mut H, message: ToLoop<S>, now: Time) {
        self.again.begin();
        self.work_off(host, now); // work that a panic has left
        self.message(host, message, now);
        self.work_off(host, now);
    }

    fn message<H: Host<S>>(&mut self, host: &mut H, message: ToLoop<S>, now: Time) {
        match message {
            ToLoop::Adopt(client) => self.adopt(host, *client, now),
            ToLoop::Lend { client, mut backend } => {
                let holder = Holder::Client(client.slot);
                match self.settle_here(host, &mut backend, holder) {
                    Ok(()) => {
                        backend.pool.stats.of(self.id).crossings.add(1);
                        self.lend(host, client.slot, backend, now);
                    }
                    Err(reason) => {
                        self.close_backend(host, backend, reason, now);
                        self.wait_again(host, client.slot, reason, now);
                    }
                }
            }
            ToLoop::Opened(seed) => self.opened(host, *seed, now),
            ToLoop::OpenFailed { pool, error, fatal, retry_after } => {
                pool.set_last_error(Some(error.clone()));
                let serves = {
                    let mut pool = pool.lock();
                    pool.open_failed(now, retry_after);
                    pool.lent_count() + pool.idle_count() > 0
                };
                if fatal {
                    let waited = if serves { WAITS_FOR_OTHERS } else { Duration::ZERO };
                    for other in self.other_loops() {
                        let (pool, error) = (pool.clone(), error.clone());
                        host.send(other, ToLoop::Refuse { pool, error, waited });
                    }
                    self.refuse_waiters(host, &pool, error, waited, now);
                }
            }
            ToLoop::ToHub { pool, from, ask } => self.hub_asked(host, &pool, from, ask, now),
            ToLoop::FromHub { pool, said } => self.on_hub(host, &pool, said, now),
            ToLoop::ListenerOpened(seed) => self.listener_opened(host, *seed, now),
            ToLoop::ListenerFailed { pool, .. } => self.listener_failed(host, &pool, now),
            ToLoop::Refuse { pool, error, waited } => {
                self.refuse_waiters(host, &pool, error, waited, now);
            }
            ToLoop::Poke(pool) => {
                let open = pool.lock().openings_due(now);
                for _ in 0..open {
                    host.open(&pool, self.id);
                }
            }
            ToLoop::Departed(place) => {
                self.resident.remove(place);
            }
            ToLoop::Cancel { process, key } => self.cancel(host, process, &key, now),
            ToLoop::Vacated { client, kept } => self.vacated(client, kept),
            ToLoop::EndUnusedListener(pool) => self.end_unused_listener(host, pool.id, now),
            ToLoop::CancelClient(client) => self.cancel_query(host, client.slot, None, now),
            ToLoop::CancelDone(place) => self.cancel_done(host, place, now),
            ToLoop::CancelUnanswered(place) => {
                self.spoil_by_cancel(place);
                self.cancel_done(host, place, now);
            }
            ToLoop::Kill { client, error } => self.say_goodbye(host, client.slot, &error, now),
            ToLoop::KillAll { pool, error } => {
                self.order(host, Order::Kill(error), pool.map(|pool| pool.id), now);
            }
            ToLoop::Drain(error) => {
                self.departure = Departure::Goodbye(error);
                self.order(host, Order::Drain, None, now);
            }
            ToLoop::GiveClients(more) => self.give_clients(more),
            ToLoop::KeepClients => self.keep_clients(),
            ToLoop::BackFromInside(back) => self.back_from_inside(host, back, now),
            ToLoop::PairFromInside(pair) => self.pair_from_inside(host, *pair, now),
            ToLoop::TakeClient(client, arrival) => self.take_client(host, *client, arrival, now),
            ToLoop::Rules(rules) => self.put_rules_in_force(host, rules, now),
            ToLoop::Page(request, reply) => reply(self.page(request, now)),
        }
    }

    fn adopt<H: Host<S>>(&mut self, host: &mut H, new: NewClient<S>, now: Time) {
        let pool = self.view_of(&new.pool);
        let early = !new.early.is_empty();
        let shares = new.mode != PoolMode::Session;
        let shared = new.pool.is_shared_by_users();
        let pins = if shares { parts_of_start(&new.start) } else { PartSet::EMPTY };
        let slot = self.clients.insert_with(|_| Client {
            socket: new.socket,
            backend: None,
            record: Box::new(Record {
                about: *new.about,
                secret: new.secret,
                start: new.start.clone(),
                _permit: new.permit,
            }),
            input: new.early.into(),
            output: PendingBytes::EMPTY,
            session: ClientSession::new(new.start, new.pool.basis(), pins, Asks::Never),
            prepared: ClientPrepared::default(),
            pending_session: Some(Box::new(PendingSession {
                greeting: Some(new.greeting),
                ..PendingSession::default()
            })),
            times: ClientTimes::new(now),
            pool,
            backends: 0,
            serving: Serving::new(new.mode, new.exclusive),
            at_socket: AtSocket::default(),
        });
        self.process_ids.take(slot.index);
        self.see_rules_for(host, slot);
        self.say_entered(host, slot);
        if let Departure::Goodbye(error) = &self.departure {
            let error = error.clone();
            self.say_goodbye(host, slot, &error, now);
            return;
        }
        self.may_leave(slot);
        let Some(client) = self.clients.get(slot) else { return };
        if host.watch(&client.socket, Token::Client(slot)).is_err() {
            self.close_client(host, slot, "its connection could not be watched", now);
            return;
        }
        if client.serving.mode == PoolMode::Session || shared {
            // Its process id is the server's, or its session was another user's before: it is
            // greeted once it has a session of its own.
            let settings = self.pool_of(client).wanted_by(&client.session);
            let wish = Wish { settings, ..Wish::default() };
            if let Err(halt) = self.attach(host, slot, wish, now) {
                if let crate::relay::halt::Halt::BackendLost(reason) = halt {
                    self.backend_failed(host, slot, reason, now);
                }
                return;
            }
            if self.introduce(host, slot, now) {
                return;
            }
            self.greet_late(host, slot, now);
        } else {
            let process = self.process_of(slot);
            self.greet(host, slot, process, now);
        }
        self.rearm(slot, now);
        if early {
            self.resume_later(slot);
        }
    }

    fn say_entered<H: Host<S>>(&self, host: &mut H, slot: Slot) {
        let Some(client) = self.clients.get(slot) else { return };
        let pool = &self.pools[client.pool as usize].pool;
        host.event(Event::ClientEntered {
            client: self.client_id(slot),
            about: &client.record.about,
            database: &pool.database,
            user: &pool.user,
        });
    }

    /// The process id in a client's BackendKeyData: in session mode the server's own.
    pub(crate) fn process_of(&self, slot: Slot) -> u32 {
        match self.clients.get(slot) {
            Some(Client { serving, backend: Some(backend), .. })
                if serving.mode == PoolMode::Session =>
            {
                backend.process()
            }
            _ => self.process_ids.of(slot.index),
        }
    }

    pub(crate) fn greet<H: Host<S>>(&mut self, host: &mut H, slot: Slot, process: u32, now: Time) {
        let Some(client) = self.clients.get_mut(slot) else { return };
        let Some(mut greeting) =
            client.pending_session.as_mut().and_then(|extra| extra.greeting.take())
        else {
            return;
        };
        client.settle();
        build::backend_key_data(&mut greeting, process, &client.record.secret);
        build::ready_for_query(&mut greeting, TransactionStatus::Idle);
        self.say(host, slot, &greeting, now);
    }

    /// Greets a client of session mode that has just got its backend, and applies its settings.
    pub(crate) fn greet_late<H: Host<S>>(&mut self, host: &mut H, slot: Slot, now: Time) {
        let Some(client) = self.clients.get_mut(slot) else { return };
        if client.serving.mode != PoolMode::Session || !client.is_to_be_greeted() {
            return;
        }
        let Some(backend) = &mut client.backend else { return };
        if !client.serving.is_exclusive() {
            let Ok(under_way) = backend.lift_alone() else {
                self.backend_lost(slot, "server closed the connection");
                return;
            };
            client.serving.held = under_way;
            if under_way {
                return;
            }
        }
        let process = backend.process();
        let mut out = Vec::new();
        // Clients of transaction mode have been greeted. What their own messages would be preceded
        // by is sent now: the first may come before this is answered.
        if backend.owner.is_due() && !client.serving.is_exclusive() {
            backend.send_identity(&client.record.about, client.socket.mptcp(), &mut out);
        }
        if backend.has_statements_of_others() || backend.prepared.by_sql.is_some() {
            backend.deallocate_all(false, &mut out);
        }
        if !client.serving.is_exclusive() {
            if backend.must_discard_sequences(|| true).unwrap_or(backend.known.drawn.by_others()) {
                backend.discard_sequences(false, &mut out);
            }
            let first = without_short_timeout(&client.session.desired);
            backend.apply_settings(&first, &mut out);
            if backend.session.is_applying() {
                backend.ahead.begin(); // its first message waits for the outcome
            }
            backend.apply_timeout(&client.session.desired, &mut out);
        }
        if !self.write_to_backend(slot, &out) {
            return;
        }
        self.greet(host, slot, process, now);
        self.rearm_if_limited(slot, now);
    }

    /// A backend was to come to a waiting client and broke on the way: the client waits on, but one
    /// that waits for its session to begin has sent no message to wait with.
    fn wait_again<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        reason: &'static str,
        now: Time,
    ) {
        let Some(client) = self.clients.get_mut(slot) else { return };
        if client.serving.state != ClientState::Waiting {
            return;
        }
        client.serving.state = ClientState::Idle;
        if client.is_to_be_greeted() {
            self.backend_failed(host, slot, reason, now);
        } else if client.take_cancel() {
            self.answer_cancelled(host, slot, now);
        } else {
            self.resume_later(slot);
        }
    }

    fn opened<H: Host<S>>(&mut self, host: &mut H, seed: BackendSeed<S>, now: Time) {
        let pool = seed.pool.clone();
        pool.lock().opened(self.id);
        pool.set_last_error(None);
        if pool.parameters().is_none() {
            pool.keep_parameters(seed.epoch, seed.parameters.clone());
        }
        let none = Slot { index: u32::MAX, generation: u32::MAX };
        let mut backend = Box::new(Backend::new(seed, self.id, none));
        match self.settle_here(host, &mut backend, Holder::Pool) {
            Ok(()) => self.give_back(host, backend, now),
            Err(reason) => self.close_backend(host, backend, reason, now),
        }
        // After a failure only this one was to be opened.
        let open = pool.lock().openings_due(now);
        for _ in 0..open {
            host.open(&pool, self.id);
        }
    }

    /// While clients leave: one in no transaction is disconnected, or may go to the successor, or inside.
    #[inline]
    pub(crate) fn drain_if_idle<H: Host<S>>(&mut self, host: &mut H, slot: Slot, now: Time) {
        if self.clients_leave() {
            self.drain_one(host, slot, now);
        }
    }

    #[inline]
    pub(crate) fn clients_leave(&self) -> bool {
        self.inside.is_open() || !matches!(self.departure, Departure::None)
    }

    #[cold]
    fn drain_one<H: Host<S>>(&mut self, host: &mut H, slot: Slot, now: Time) {
        let error = match &self.departure {
            Departure::None => return self.may_go_inside(slot),
            Departure::ToSuccessor(_) => return self.may_leave(slot),
            Departure::Goodbye(error) => error.clone(),
        };
        let Some(client) = self.clients.get(slot) else { return };
        let busy = match (&client.backend, client.serving.state) {
            (_, ClientState::Closing) => true,
            (Some(_), _) if client.awaits_listener() => true,
            (Some(backend), _) => !backend.is_at_rest(),
            (None, ClientState::Waiting) => true,
            (None, _) => false,
        };
        if !busy {
            self.say_goodbye(host, slot, &error, now);
        }
    }

    fn other_loops(&self) -> impl Iterator<Item = LoopId> + use<S> {
        let own = self.id;
        (0..self.loops).map(LoopId).filter(move |id| *id != own)
    }

    /// A cancel request has come that may be for one of this loop's clients.
    fn cancel<H: Host<S>>(&mut self, host: &mut H, process: u32, key: &CancelKey, now: Time) {
        let of_client = self.process_ids.index_of(process).and_then(|index| self.clients.at(index));
        // Session mode: the server's own process id. Several servers may have the same one, and a
        // server that is a pooler itself may have one that was given to a client here.
        let of_servers = self.resident.iter().filter_map(|(_, resident)| match resident.holder {
            Holder::Client(slot) => {
                let client = self.clients.get(slot)?;
                let backend = client.backend.as_ref()?;
                (client.is_session_mode() && backend.process() == process).then_some(slot)
            }
            _ => None,
        });
        let fits = |slot: &Slot| {
            let client = self.clients.get(*slot);
            client.is_some_and(|client| equal_in_constant_time(&client.record.secret, key))
        };
        let found = of_client.into_iter().chain(of_servers).find(fits);
        if let Some(slot) = found {
            self.cancel_query(host, slot, Some(key), now);
        } else if self.process_ids.gives_out(process) {
            // A server may have given it to a client in session mode of another loop.
            for other in self.other_loops() {
                host.send(other, ToLoop::Cancel { process, key: key.clone() });
            }
        }
    }

    /// Cancels what a client runs, by this request if a client has sent one.
    pub(crate) fn cancel_query<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        request: Option<&CancelKey>,
        now: Time,
    ) {
        let Some(client) = self.clients.get_mut(slot) else { return };
        match client.serving.state {
            ClientState::Waiting => self.cancel_waiting(host, slot, now),
            ClientState::Active => {
                let Some(backend) = &mut client.backend else { return };
                // Its pipeline is sent again once its statement has been prepared again.
                let is_sent_again = backend.prepared.replay.is_healing();
                if is_sent_again || !backend.requests.owes_beside_ours() {
                    // (If it is idle in a transaction there is nothing to cancel.)
                    if is_sent_again || (client.serving.held && client.has_next_message()) {
                        client.pending_session().cancel_follows = true;
                    }
                } else if backend.lending.cancels_in_flight == 0 {
                    // (A second request would have no further effect.)
                    backend.cancel_what_was_sent(host, self.id);
                }
            }
            ClientState::Inside => {
                host.cancel_inside(ClientId { home: self.id, slot }, request.cloned());
            }
            ClientState::Idle | ClientState::Closing => {}
        }
    }

    /// A waiting client does not want its answer any more: it gets the error that the server gives
    /// for a cancelled query, and leaves the queue.
    pub(crate) fn cancel_waiting<H: Host<S>>(&mut self, host: &mut H, slot: Slot, now: Time) {
        let id = self.client_id(slot);
        let Some(client) = self.clients.get_mut(slot) else { return };
        if client.is_session_mode() || client.is_to_be_greeted() {
            return; // it waits for its session to begin
        }
        if !self.pools[client.pool as usize].pool.lock().forget_waiter(id, client.times.since()) {
            client.pending_session().cancel_follows = true; // a backend is on its way
            return;
        }
        self.answer_cancelled(host, slot, now);
    }

    fn answer_cancelled<H: Host<S>>(&mut self, host: &mut H, slot: Slot, now: Time) {
        let error =
            ClientError::error(SqlState::QUERY_CANCELED, "canceling statement due to user request");
        host.event(Event::ErrorSent { error: &error });
        let mut answer = Vec::new();
        error.write(&mut answer);
        self.answer_unsent(host, slot, answer, now);
    }

    /// If a client's role or settings have failed before its message was sent, answers that with the
    /// server's error. Returns whether it has.
    pub(crate) fn refuses_unsent<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        now: Time,
    ) -> bool {
        let Some(client) = self.clients.get_mut(slot) else { return false };
        let backend = client.backend.take_if(|backend| {
            backend.session.role_refused().is_some()
                && !backend.requests.owes_client()
                && !backend.requests.is_skipping_to_sync()
        });
        let Some(backend) = backend else { return false };
        let mut answer = Vec::new();
        let error = backend.session.role_refused().unwrap_or_default();
        build::message(&mut answer, kind::ERROR, |out| out.extend_from_slice(error));
        client.serving.held = false;
        self.close_backend(host, backend, Role::REFUSED, now);
        self.answer_unsent(host, slot, answer, now);
        true
    }

    /// Answers what a client has sent, and no server has got, with this error.
    fn answer_unsent<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        mut answer: Vec<u8>,
        now: Time,
    ) {
        let Some(client) = self.clients.get_mut(slot) else { return };
        // This answers everything that it sent up to the end of its query or pipeline.
        let (mut at, mut to_come) = (0, 0);
        let (mut ended, mut extended) = (false, false);
        while let crate::wire::frame::Framed::Header(header) =
            crate::wire::frame::header(&client.input[at..])
        {
            // After an error in the extended protocol a Query, too, is ignored up to the Sync.
            let simple = matches!(header.kind, frontend::QUERY | frontend::FUNCTION_CALL);
            if client.input.len() - at < header.total() {
                // A long message, which streams: the rest of it is discarded.
                to_come = header.total() - (client.input.len() - at);
                at = client.input.len();
                ended = simple && !extended;
                break;
            }
            at += header.total();
            if header.kind == frontend::SYNC || (simple && !extended) {
                ended = true;
                break;
            }
            extended |= !simple && header.kind != frontend::FLUSH;
        }
        client.rest(now);
        client.input.forget_first(at);
        if to_come > 0 {
            client.pending_session().dropped.rest_of_message(to_come);
        }
        if !ended {
            client.pending_session().dropped.until_sync(); // its Sync is still to come
        }
        if ended {
            build::ready_for_query(&mut answer, TransactionStatus::Idle);
        }
        self.say(host, slot, &answer, now);
        self.drain_if_idle(host, slot, now);
        self.rearm_if_limited(slot, now);
        self.resume_later(slot);
    }

    /// A cancel request may still arrive while another client has the backend in this place: it
    /// must not have it.
    fn spoil_by_cancel(&mut self, place: Slot) {
        let Some(resident) = self.resident.get_mut(place) else { return };
        let backend = match &mut resident.holder {
            Holder::Client(slot) => {
                self.clients.get_mut(*slot).and_then(|client| client.backend.as_mut())
            }
            Holder::Engine(backend) => Some(backend),
            Holder::Pool | Holder::Listener(_) => None,
        };
        if let Some(backend) = backend {
            backend.lending.spoil("a cancel request for it is unanswered");
        }
    }

    fn cancel_done<H: Host<S>>(&mut self, host: &mut H, place: Slot, now: Time) {
        let Some(resident) = self.resident.get_mut(place) else { return };
        match &mut resident.holder {
            Holder::Client(slot) => {
                let slot = *slot;
                if let Some(client) = self.clients.get_mut(slot)
                    && let Some(backend) = &mut client.backend
                    && backend.lending.cancel_done()
                {
                    let held = client.serving.held;
                    self.settle_channels_after_cancel(host, slot, now);
                    self.ask_after_cancel(host, slot, now);
                    if held {
                        self.resume_later(slot);
                    }
                }
            }
            Holder::Engine(backend) => {
                if backend.lending.cancel_done()
                    && let Holder::Engine(backend) =
                        std::mem::replace(&mut resident.holder, Holder::Pool)
                {
                    self.tidy_on(host, backend, now);
                }
            }
            Holder::Pool | Holder::Listener(_) => {}
        }
    }
}

/// Whether an error means that the connection is gone.
fn broken(error: &std::io::Error) -> bool {
    error.kind() != std::io::ErrorKind::WouldBlock
}

/// Whether two keys are equal, in a time that depends on their lengths only.
fn equal_in_constant_time(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len()
        && one.iter().zip(other).fold(0u8, |difference, (a, b)| difference | (a ^ b)) == 0
}
