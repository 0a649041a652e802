//! How clients and backends part, in good order or not.
//!
//! # When a client leaves in the middle of something
//! Its backend is not closed if it can be brought to an end in good order: copies are failed, open
//! pipelines ended with Sync, running queries cancelled, transactions rolled back, session state
//! discarded; then it serves the next client. Half a message, or a server that does not finish
//! within `cancel_wait_timeout`, closes it (trap 21).

use std::io::ErrorKind;

use crate::ids::Slot;
use crate::lending::{Has, Released};
use crate::relay::answer::LAST_WORDS_AFTER;
use crate::relay::backend::{Backend, Reset, Tidying};
use crate::relay::client::Client;
use crate::relay::client_info::{ClientState, PoolMode};
use crate::relay::effects::{Effects, Resetting};
use crate::relay::host::Host;
use crate::relay::limits;
use crate::relay::message::{Event, SERVER_SILENT, ToLoop};
use crate::relay::request_queue::Request;
use crate::relay::socket::Socket;
use crate::relay::table::{Engine, Holder};
use crate::session::part::Part;
use crate::session::scan::{ScanOptions, scan};
use crate::session::settings::SettingsBuilder;
use crate::time::Time;
use crate::wire::error::ClientError;
use crate::wire::{TransactionStatus, build};

/// The command that discards all session state for which there is a command.
const DISCARD_ALL: &[u8] = b"DISCARD ALL";

/// Makes an abandoned pipeline fail. The server's log shows it as a syntax error.
const ABANDONED: &[u8] =
    b"hawser /* the client has left in mid-pipeline: what it has done so far is rolled back */\0\0\0";

impl<S: Socket> Engine<S> {
    /// Gives Hawser's own answers that nothing outstanding precedes: a Parse that was not sent,
    /// with a Flush after it, would otherwise wait forever. (While a message of the server's has
    /// come in part, they are given after it.)
    pub(crate) fn emit_own_answers<H: Host<S>>(&mut self, host: &mut H, slot: Slot, now: Time) {
        let Some(client) = self.clients.get_mut(slot) else { return };
        let Some(mut backend) = client.backend.take_if(|backend| !backend.is_in_mid_answer())
        else {
            return;
        };
        let mut out = Vec::new();
        while let Some(answer) = backend.requests.take_own_answer() {
            out.extend_from_slice(answer.bytes);
            client.confirm(answer.change.as_ref(), &mut backend.prepared.unnamed);
        }
        client.backend = Some(backend);
        self.say(host, slot, &out, now);
    }

    /// Gives back a backend that was lent for a message that did not need it in the end, or that is
    /// needed no more. A message that waited for something of this backend (a cancel request, say)
    /// goes on without it.
    pub(crate) fn give_back_if_unused<H: Host<S>>(&mut self, host: &mut H, slot: Slot, now: Time) {
        let Some(client) = self.clients.get_mut(slot) else { return };
        if client.is_pinned() || !client.backend.as_ref().is_some_and(|b| b.is_at_rest()) {
            return;
        }
        if let Some(backend) = client.backend.take() {
            client.rest(now);
            let waits = std::mem::take(&mut client.serving.held) || client.has_next_message();
            self.give_back(host, backend, now);
            if waits {
                self.resume_later(slot);
            }
        }
    }

    /// Gives a backend at rest to the next waiter, or to the pool.
    pub(crate) fn give_back<H: Host<S>>(
        &mut self,
        host: &mut H,
        mut backend: Box<Backend<S>>,
        now: Time,
    ) {
        debug_assert!(backend.is_at_rest(), "a backend is given back in the middle of something");
        backend.leave_client();
        if backend.known.notifying.is_noted() {
            if backend.needs_fence() {
                self.fence_backend(host, backend, now);
                return;
            }
            backend.known.notifying.is_left();
            backend.pool.notifiers().leaves(backend.process(), now);
        }
        if let Some(reason) = self.unfit(&backend, now) {
            self.close_backend(host, backend, reason, now);
        } else if backend.requests.has_syncs_in_doubt() || backend.lending.reset_due != Reset::No {
            backend.lending.begin_tidying(Tidying::Draining, now);
            self.tidy_on(host, backend, now);
        } else if backend.from_server.unread.is_any() {
            // There is more to read, for which no event will come: no client gets the backend
            // before that is read.
            backend.lending.begin_tidying(Tidying::Draining, now);
            let place = backend.place();
            self.keep(backend);
            self.tidy_later(place);
        } else if backend.lending.cancels_in_flight > 0 {
            // The signal may still arrive: a client that got the backend now could lose a query
            // (trap 16).
            backend.lending.begin_tidying(Tidying::AwaitingCancel, now);
            self.keep(backend);
        } else {
            self.release(host, backend, now);
        }
    }

    /// Gives it to the next waiter, or leaves it to its pool.
    fn release<H: Host<S>>(&mut self, host: &mut H, backend: Box<Backend<S>>, now: Time) {
        let place = backend.place();
        let id = backend.id();
        // It must be marked before another loop can take it.
        let view = match self.resident.get_mut(place) {
            Some(resident) => {
                resident.holder = Holder::Pool;
                resident.pool
            }
            None => self.view_of(&backend.pool.clone()),
        };
        let pool = &self.pools[view as usize].pool;
        let session = &backend.session;
        let settings = pool.mark_of(session.applied.mark(), session.own.basis);
        let has = Has { names: session.custom, lasting: session.lasting, settings };
        let released = pool.lock().release_with(
            id,
            backend,
            has,
            |backend, statement| backend.prepared.statements.has(statement),
            self.id,
            now,
        );
        match released {
            Released::Kept => {}
            Released::Close(backend) => {
                // Released already: it is only closed.
                let pool = backend.pool.clone();
                self.drop_backend(
                    host,
                    backend,
                    "one more than the pool may have, or another pool's or client's turn",
                );
                let open = pool.lock().openings_due(now);
                for _ in 0..open {
                    host.open(&pool, self.id);
                }
            }
            Released::Next { waiter, backend } => {
                if waiter.client.home == self.id {
                    self.lend_later(waiter.client.slot, backend);
                } else {
                    host.unwatch(&backend.socket, self.id);
                    self.resident.remove(place);
                    host.send(waiter.client.home, ToLoop::Lend { client: waiter.client, backend });
                }
            }
        }
    }

    /// Closes a backend that has been taken out of its pool.
    #[expect(clippy::boxed_local, reason = "backends are moved as boxes everywhere")]
    pub(crate) fn close_idle<H: Host<S>>(
        host: &mut H,
        mut backend: Box<Backend<S>>,
        home: crate::ids::LoopId,
    ) {
        // An idle backend's socket takes five bytes; if not, the server sees the connection end.
        let _ = backend.socket.write(&build::TERMINATE);
        backend.socket.shutdown();
        host.unwatch(&backend.socket, home);
        host.send(home, ToLoop::Departed(backend.place()));
        host.event(Event::BackendClosed {
            backend: backend.id(),
            database: &backend.pool.database,
            user: &backend.pool.user,
            reason: "it has a custom setting, a library or buffers for temporary tables that the waiting client must not see",
        });
    }

    /// Lends a backend of this loop to a client of this loop, if that still waits.
    pub(crate) fn lend<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        mut backend: Box<Backend<S>>,
        now: Time,
    ) {
        let waits = self.clients.get(slot).is_some_and(|c| c.serving.state == ClientState::Waiting);
        if !waits {
            if let Some(resident) = self.resident.get_mut(backend.place()) {
                resident.holder = Holder::Pool;
            }
            self.give_back(host, backend, now);
            return;
        }
        let Some(client) = self.clients.get_mut(slot) else { return };
        let waited = now.micros_since(client.times.since());
        backend.lending.waited_us = waited;
        backend.counting.waited(waited);
        let (pool, home) = (client.pool, backend.home());
        self.stats(pool).wait.record(waited);
        if self.take_over(host, slot, backend, home, now).is_ok() {
            if self.clients.get(slot).is_some_and(Client::is_to_be_greeted) {
                if self.introduce(host, slot, now) {
                    return;
                }
                self.greet_late(host, slot, now);
            }
            self.resume_client(host, slot, now);
        }
    }

    /// Why a backend must not serve another client.
    fn unfit(&self, backend: &Backend<S>, now: Time) -> Option<&'static str> {
        let view = self.pools.get(self.resident.get(backend.place())?.pool as usize)?;
        let settings = &view.settings;
        if let Some(reason) = backend.lending.spoiled {
            return Some(reason);
        }
        if let Some(reason) = view.outdated(backend) {
            return Some(reason);
        }
        // One that has served no client yet is not too old for its first, whatever the setting.
        if !settings.server_lifetime.is_zero()
            && backend.lending.transactions > 0
            && now.since(backend.opened()) >= settings.server_lifetime
        {
            return Some("server_lifetime");
        }
        if settings.server_max_transactions > 0
            && backend.lending.transactions >= settings.server_max_transactions
        {
            return Some("server_max_transactions");
        }
        None
    }

    /// Keeps a backend without a client on this loop.
    pub(crate) fn keep(&mut self, backend: Box<Backend<S>>) {
        let place = backend.place();
        if let Some(resident) = self.resident.get_mut(place) {
            resident.holder = Holder::Engine(backend);
        }
    }

    /// Closes a lent backend: the pool is notified, and opens another if clients wait.
    pub(crate) fn close_backend<H: Host<S>>(
        &mut self,
        host: &mut H,
        mut backend: Box<Backend<S>>,
        reason: &str,
        now: Time,
    ) {
        self.queries.count_lost(&mut backend, now);
        let pool = backend.pool.clone();
        let open = {
            let mut pool = pool.lock();
            if backend.lending.unpark() {
                pool.unpark();
            }
            pool.lost(self.id, now)
        };
        for _ in 0..open {
            host.open(&pool, self.id);
        }
        self.drop_backend(host, backend, reason);
    }

    /// Ends a backend's connection.
    #[expect(clippy::boxed_local, reason = "backends are moved as boxes everywhere")]
    pub(crate) fn drop_backend<H: Host<S>>(
        &mut self,
        host: &mut H,
        mut backend: Box<Backend<S>>,
        reason: &str,
    ) {
        self.resident.remove(backend.place());
        if backend.known.notifying.is_noted() {
            backend.pool.notifiers().ended(backend.process());
        }
        if backend.known.side_effects.has_schema() {
            backend.pool.schema_changed(); // the server may have received its COMMIT
        }
        if backend.is_at_rest() {
            let _ = backend.socket.write(&build::TERMINATE);
        } else if !backend.from_server.has_gone() && !backend.requests.is_empty() {
            // The server would notice only when it next writes; until then it would work in vain.
            backend.cancel(host, self.id);
        }
        backend.socket.shutdown();
        host.event(Event::BackendClosed {
            backend: backend.id(),
            database: &backend.pool.database,
            user: &backend.pool.user,
            reason,
        });
    }

    /// Writes to a client's backend. `false`: that failed, and both will be closed.
    pub(crate) fn write_to_backend(&mut self, slot: Slot, bytes: &[u8]) -> bool {
        let backend = self.clients.get_mut(slot).and_then(|client| client.backend.as_mut());
        if backend.is_some_and(|backend| backend.send(bytes).is_err()) {
            self.backend_lost(slot, "server closed the connection");
            return false;
        }
        true
    }

    /// A client's backend has failed: the client gets what the server has managed to send, and is
    /// disconnected, as it would be without a pooler.
    pub(crate) fn backend_failed<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        reason: &'static str,
        now: Time,
    ) {
        self.give_held_answer(slot);
        let Some(client) = self.clients.get_mut(slot) else { return };
        let rests = client.may_have_just_been_answered(now);
        let since = client.times.since();
        let Some(mut backend) = client.backend.take() else {
            let error = ClientError::fatal(
                crate::wire::error::SqlState::CONNECTION_FAILURE,
                format!("no server connection: {reason}"),
            );
            self.say_goodbye(host, slot, &error, now);
            return;
        };
        backend.counting.left(since);
        let half_a_message = backend.is_in_mid_answer();
        let has_gone = backend.from_server.has_gone();
        self.close_backend(host, backend, reason, now);
        if has_gone {
            // The server's own last message is enough.
            self.part_silently(host, slot, reason, now);
            return;
        }
        if half_a_message {
            // The client would read a message of Hawser's as part of the server's.
            self.close_client(host, slot, reason, now);
            return;
        }
        let what = match reason {
            SERVER_SILENT => "server does not answer any more",
            _ => "server closed the connection unexpectedly",
        };
        let error = ClientError::fatal(crate::wire::error::SqlState::CONNECTION_FAILURE, what)
            .detail(format!("{reason}."));
        self.disconnect(host, slot, &error, rests, now);
    }

    /// Sends a client the reason for which it is disconnected, and disconnects it once it has read
    /// that.
    ///
    /// libpq drops an error that it reads together with the ReadyForQuery before it: a client that
    /// has just had its answer gets the reason [`LAST_WORDS_AFTER`] that, or as the answer to its
    /// next message. Its backend serves others meanwhile.
    pub(crate) fn say_goodbye<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        error: &ClientError,
        now: Time,
    ) {
        self.give_held_answer(slot);
        let Some(client) = self.clients.get(slot) else { return };
        let rests = client.may_have_just_been_answered(now);
        self.disconnect(host, slot, error, rests, now);
    }

    /// The same. `rests`: it may have had its last answer just now, and waits for no other.
    pub(crate) fn disconnect<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        error: &ClientError,
        rests: bool,
        now: Time,
    ) {
        if self.calls_back(host, slot, error) {
            return;
        }
        self.leave_queue(slot);
        self.give_held_answer(slot);
        let Some(client) = self.clients.get_mut(slot) else { return };
        if client.serving.state == ClientState::Closing {
            return;
        }
        host.event(Event::ErrorSent { error });
        let backend = client.backend.take();
        let half_a_message = backend.as_ref().is_some_and(|b| b.is_in_mid_answer());
        client.serving.state = ClientState::Closing;
        client.input.clear();
        if !half_a_message {
            client.pending_session().last_words = Some(Box::new(error.clone()));
        }
        let _ = client.push_out(&mut self.spare); // a broken connection needs no message
        if let Some(backend) = backend {
            self.abandon(host, slot, backend, now);
        }
        if rests && !half_a_message {
            self.set_deadline(slot, Some(now.after(LAST_WORDS_AFTER)));
        } else {
            self.say_last_words(host, slot, &error.message, now);
        }
    }

    /// Sends a client that is being disconnected the reason, if it has not been sent.
    pub(crate) fn say_last_words<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        reason: &str,
        now: Time,
    ) {
        let Some(client) = self.clients.get_mut(slot) else { return };
        let words = client.pending_session.as_mut().and_then(|extra| extra.last_words.take());
        if let Some(words) = &words {
            let mut message = Vec::new();
            words.write(&mut message);
            client.reply(&message);
            let _ = client.push_out(&mut self.spare);
        }
        if client.has_taken_all() {
            let reason = words.as_ref().map_or(reason, |words| &words.message);
            self.close_client(host, slot, reason, now);
        } else {
            self.arm_goodbye(slot, now);
        }
    }

    /// A client that waits for the reason of its end has sent another message: that is its answer.
    pub(crate) fn answer_with_last_words<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        now: Time,
    ) {
        let Some(client) = self.clients.get_mut(slot) else { return };
        // What is left unread would reset the connection, and the reset may overtake the reason.
        match client.socket.read(&mut self.client_input) {
            Err(error)
                if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Ok(0) => self.close_client(host, slot, "client closed its connection", now),
            Err(_) => self.close_client(host, slot, "client's connection broke", now),
            Ok(_) => self.say_last_words(host, slot, "", now),
        }
    }

    /// Disconnects a client that has been sent the reason, once it has read that.
    fn part_silently<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        reason: &'static str,
        now: Time,
    ) {
        let Some(client) = self.clients.get_mut(slot) else { return };
        if client.has_taken_all() {
            self.close_client(host, slot, reason, now);
            return;
        }
        client.serving.state = ClientState::Closing;
        client.input.clear();
        self.arm_goodbye(slot, now);
    }

    /// Removes a waiting client from the queue.
    fn leave_queue(&mut self, slot: Slot) {
        let id = self.client_id(slot);
        if let Some(client) = self.clients.get(slot)
            && client.serving.state == ClientState::Waiting
        {
            // If it is not in the queue any more, a backend is on its way, and is given back on
            // arrival.
            self.pool_of(client).pool.lock().forget_waiter(id, client.times.since());
        }
    }

    /// Ends a client's connection.
    pub(crate) fn close_client<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        reason: &str,
        now: Time,
    ) {
        self.leave_queue(slot);
        let Some(client) = self.clients.get_mut(slot) else { return };
        let backend = client.backend.take();
        let reads_nothing =
            !client.output.is_empty() && client.serving.state != ClientState::Closing;
        if let Some(mut backend) = backend {
            if reads_nothing && client.output.len() > limits::OUTPUT_HIGH_BYTES {
                backend.lending.spoil("its client read nothing");
            }
            self.abandon(host, slot, backend, now);
        }
        self.forget_listening(host, slot);
        let Some(mut client) = self.clients.remove(slot) else { return };
        self.process_ids.give_back(slot.index);
        let _ = client.push_out(&mut self.spare); // what it does not take is lost: it leaves
        client.socket.shutdown();
        if self.inside.forget(slot) | client.serving.is_inside() {
            host.part(&client.socket);
        }
        let pool = &self.pools[client.pool as usize].pool;
        host.event(Event::ClientClosed {
            client: self.client_id(slot),
            about: &client.record.about,
            database: &pool.database,
            user: &pool.user,
            reason,
        });
    }

    /// A client leaves its backend, maybe in the middle of something.
    fn abandon<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        mut backend: Box<Backend<S>>,
        now: Time,
    ) {
        let client = self.clients.get(slot);
        let reset = client.map_or(Reset::No, |c| match c.serving.mode {
            PoolMode::Session => Reset::AsConfigured,
            _ if c.session.pins.contains(Part::TemporaryObject)
                && c.session.pins.contains(Part::AdvisoryLock) =>
            {
                Reset::AllTemporaryFirst
            }
            // (The outcome of a RESET in flight is known only at the end of its pipeline.)
            _ if c.is_pinned() || c.is_unsettled() => Reset::All,
            _ => Reset::No,
        });
        let exclusive = client.is_some_and(|c| c.serving.is_exclusive());
        if client.is_some_and(|c| c.session.pins.must_close_with()) {
            backend.spoil_for_good();
        }
        backend.prepared.replay.forget();
        (backend.lending.waited_us, backend.lending.parent) = (0, None);
        backend.counting.left(client.map_or(now, |c| c.times.since()));
        backend.ahead.end();
        backend.known.unverified = None;
        backend.lending.pinned = None;
        backend.lending.owe_reset(reset);
        if exclusive {
            backend.lending.spoil("it served one client alone");
        }
        if backend.from_server.has_gone() {
            self.close_backend(host, backend, "server closed the connection", now);
            return;
        }
        if backend.to_server.is_open() {
            self.close_backend(host, backend, "its client left in the middle of a message", now);
            return;
        }
        if let Some(reason) = backend.lending.spoiled {
            self.close_backend(host, backend, reason, now);
            return;
        }
        if backend.fail_copy().is_err() {
            self.close_backend(host, backend, "server closed the connection", now);
            return;
        }
        backend.lending.since = now;
        if !backend.requests.is_empty() {
            backend.lending.begin_tidying(Tidying::Draining, now);
            backend.cancel_what_was_sent(host, self.id);
            let unread =
                backend.from_server.unread.is_any() || !backend.from_server.kept().is_empty();
            let place = backend.place();
            self.keep(backend);
            if unread {
                self.tidy_later(place);
            }
            return;
        }
        self.tidy_on(host, backend, now);
    }

    /// Continues tidying a backend without a client, as far as answers have come.
    pub(crate) fn tidy_on<H: Host<S>>(
        &mut self,
        host: &mut H,
        mut backend: Box<Backend<S>>,
        now: Time,
    ) {
        if !backend.requests.is_empty() || backend.lending.tidying == Tidying::AwaitingListener {
            self.keep(backend);
            return;
        }
        if backend.lending.tidying == Tidying::Fencing {
            backend.requests.settle_doubt();
        }
        if backend.lending.cancels_in_flight > 0 {
            // The signal must not hit a query of Hawser's.
            self.keep(backend);
            return;
        }
        let reset_query = match backend.lending.reset_due {
            Reset::No => None,
            Reset::AsConfigured => Some(backend.pool.settings().server_reset_query.clone()),
            Reset::All | Reset::AllTemporaryFirst => Some(DISCARD_ALL.into()),
        };
        let next = match (backend.lending.tidying, backend.from_server.status()) {
            _ if backend.requests.has_syncs_in_doubt() => Some((Tidying::Fencing, &b""[..])),
            (_, TransactionStatus::InTransaction | TransactionStatus::Failed) => {
                if backend.lending.tidying == Tidying::RollingBack {
                    self.close_backend(host, backend, "its transaction could not be ended", now);
                    return;
                }
                Some((Tidying::RollingBack, &b"ROLLBACK"[..]))
            }
            (Tidying::Resetting, TransactionStatus::Idle) => {
                backend.was_reset(reset_query.as_deref().unwrap_or(DISCARD_ALL));
                None
            }
            (_, TransactionStatus::Idle) => match reset_query.as_deref() {
                Some([]) => {
                    backend.was_reset(b"");
                    None
                }
                Some(query) => Some((Tidying::Resetting, query)),
                None => None,
            },
        };
        let Some((tidying, query)) = next else {
            if backend.is_at_rest() {
                self.give_back(host, backend, now);
            } else {
                self.keep(backend);
            }
            return;
        };
        backend.lending.begin_tidying(tidying, now);
        let mut out = Vec::new();
        if tidying == Tidying::Resetting && backend.lending.reset_due == Reset::AllTemporaryFirst {
            backend.inject_query(b"DISCARD TEMP", &mut out);
        }
        backend.inject_query(query, &mut out);
        if backend.send(&out).is_err() {
            self.close_backend(host, backend, "server closed the connection", now);
            return;
        }
        self.keep(backend);
    }
}

impl<S: Socket> Backend<S> {
    /// Its client needs it no more: forgets what belonged to that client alone.
    fn leave_client(&mut self) {
        self.prepared.unnamed.leave_client();
        self.prepared.statements.leave_client();
        self.known.side_effects.forget_parsed();
        self.ahead.end();
        self.known.unverified = None;
        self.known.notifying.leave_client(self.lending.tidying == Tidying::AwaitingListener);
        self.lending.pinned = None;
        if !self.prepared.uncertain {
            self.prepared.statements.settle();
        }
        self.known.drawn.give_back();
        self.session.settle_texts();
        self.requests.break_run();
        self.requests.forget_portals();
        let reset = std::mem::replace(&mut self.lending.tidying, Tidying::No) == Tidying::Resetting;
        if !reset && self.lending.reset_due == Reset::No && self.has_left_overs() {
            self.lending.owe_reset(Reset::All);
        }
        self.leave_unowned(false);
        self.unpark();
    }

    /// Ends the copy and the pipeline that a client has left open.
    pub(crate) fn fail_copy(&mut self) -> Result<(), crate::relay::halt::Halt> {
        let mut out = Vec::new();
        if self.requests.end_copy() {
            build::copy_fail(&mut out, "the client has closed its connection");
        } else if self.requests.is_in_pipeline() && !self.requests.is_skipping_to_sync() {
            // A Sync alone would commit what the pipeline has done so far, which its client has not
            // asked for: the pipeline is made to fail first. (A transaction block that was open
            // when the server was last ready may have been ended within the pipeline, or before
            // it.)
            build::parse(&mut out, b"hawser_refused", ABANDONED);
            self.request(Request::InjectedParse { statement: 0 });
        }
        if self.requests.is_in_pipeline() {
            out.extend_from_slice(&build::SYNC);
            self.request(Request::Sync);
        }
        if out.is_empty() { Ok(()) } else { self.send(&out) }
    }

    /// A reset query has succeeded. What the operator's own query leaves, the next client of
    /// session mode would find: the server is asked for it.
    fn was_reset(&mut self, query: &[u8]) {
        self.lending.reset_due = Reset::No;
        self.prepared.unnamed.taken_by_query();
        let reported = |name: &[u8]| self.session.own.parameters.get(name).is_some();
        let effects = Effects::of(&scan(query, ScanOptions::default()), reported);
        let Some(unusual) = effects.unusual else { return };
        if unusual.discards_all {
            self.known.drawn.forget_others();
        }
        if unusual.forgets_statements {
            self.prepared.forget_all();
        }
        if unusual.resetting == Resetting::No {
            return;
        }
        // The server has reported the settings that it reports; the others have their start values.
        let mut settings = SettingsBuilder::from(&self.session.applied);
        let names = self.session.applied.iter().map(|(name, _)| name);
        for name in names.filter(|name| unusual.discards_all || unusual.resetting.takes(name)) {
            settings.remove(name);
        }
        let settings = self.pool.interner().share(settings.build());
        self.session.applied = settings;
    }
}
