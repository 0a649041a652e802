//! What a client sends: its headers are read, and the messages passed on.
//!
//! # Model
//! Bytes are walked message by message. A message up to [`limits::WHOLE_MESSAGE_BYTES`] is acted on
//! once it is complete (a text into which start values may have to be put: up to
//! [`limits::WHOLE_TEXT_BYTES`]), so half a message never holds a backend; a longer one streams.
//! Runs of messages that need no change are passed on from the buffer they were read into.
//!
//! # What is changed on the way
//! Names of prepared statements (Parse, Bind, Describe, Close), for clients that share backends.
//! What Hawser adds (settings, statements that a backend lacks) and what it answers itself gets an
//! entry in [`crate::relay::request_queue`], so that answers keep their order.

mod attach;
pub(crate) mod client_message;
pub(crate) mod kinds;
pub(crate) mod passage;
mod record_effects;

use crate::ids::Slot;
use crate::parts::start_values::basis::Basis;
use crate::parts::statements::client_names::{ClientStatement, Deallocated, significant};
use crate::parts::statements::fit::FLUSH;
use crate::relay::backend::Backend;
use crate::relay::client::Client;
use crate::relay::client_info::ClientState;
use crate::relay::effects::{Effect, Effects};
use crate::relay::from_client::client_message::ClientMessage;
use crate::relay::from_client::kinds::{allowed_length, bad_kind, bad_length, too_long};
use crate::relay::from_client::passage::Passage;
use crate::relay::halt::Halt;
use crate::relay::host::Host;
use crate::relay::limits;
use crate::relay::pending_session::{Farewell, Streamed};
use crate::relay::plain::{Passed, Pipeline};
use crate::relay::socket::{Socket, Token};
use crate::relay::table::Engine;
use crate::relay::to_server::WriteError;
use crate::session::scan::{ScanOptions, scan};
use crate::time::Time;
use crate::wire::error::{ClientError, SqlState};
use crate::wire::frame::{Framed, HEADER_BYTES, Header};
use crate::wire::{TransactionStatus, build, frame, frontend};

impl<S: Socket> Backend<S> {
    /// Writes whole messages of Hawser's own to the server, keeping what its socket does not take.
    /// Refused within a client's message.
    pub(crate) fn send(&mut self, messages: &[u8]) -> Result<(), Halt> {
        let written = self.to_server.inject(&mut self.socket, messages);
        debug_assert_ne!(written, Err(WriteError::Open), "a client's message is open");
        written.map_err(|error| Halt::BackendLost(error.reason()))
    }

    /// Writes a client's bytes to the server, with what was inserted among its messages.
    fn relay(&mut self, bytes: &[u8]) -> Result<(), Halt> {
        let written = self.to_server.relay(&mut self.socket, bytes);
        written.map_err(|error| Halt::BackendLost(error.reason()))
    }
}

/// Too much is outstanding: before a Sync the server keeps its answers back, and others wait for them here.
fn ask_for_answers<S: Socket>(
    backend: &mut Backend<S>,
    passage: &mut Passage<'_>,
) -> Result<(), Halt> {
    if backend.requests.is_full() {
        passage.cut(backend)?;
        passage.out.extend_from_slice(&FLUSH);
    }
    Ok(())
}

impl<S: Socket> Engine<S> {
    /// Reads from a client as long as its bytes can be passed on.
    pub(crate) fn read_client<H: Host<S>>(&mut self, host: &mut H, slot: Slot, now: Time) {
        let mut buffer = std::mem::take(&mut self.client_input);
        debug_assert!(!buffer.is_empty(), "one client is read at a time");
        while let Some(client) = self.clients.get_mut(slot) {
            if matches!(
                client.serving.state,
                ClientState::Waiting | ClientState::Closing | ClientState::Inside
            ) {
                client.at_socket.unread.leave(true);
                break;
            }
            if client.is_leaving() {
                break;
            }
            if client.output.len() > limits::OUTPUT_HIGH_BYTES && !client.is_session_mode() {
                // Hawser's own answers go to `output`, too: a client that takes no answers is not
                // read.
                client.at_socket.unread.leave(true);
                break;
            }
            if let Some(backend) = &client.backend
                && (backend.to_server.len() > limits::OUTPUT_HIGH_BYTES
                    || backend.requests.is_full()
                    || client.serving.held)
            {
                client.at_socket.unread.leave(true);
                break;
            }
            if !self.again.may_read(Token::Client(slot)) {
                client.at_socket.unread.leave(true);
                if client.at_socket.unread.has_hung_up() {
                    self.again.hangs_up(Token::Client(slot));
                }
                break;
            }
            let kept = client.input.len();
            let room = if client.backend.is_some() {
                buffer.len()
            } else {
                limits::UNATTACHED_READ_BYTES.max(kept + 4096).min(buffer.len())
            };
            buffer[..kept].copy_from_slice(&client.input);
            let read = match client.socket.read(&mut buffer[kept..room]) {
                Ok(0) => {
                    self.close_client(host, slot, "client closed its connection", now);
                    break;
                }
                Ok(read) => read,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    client.at_socket.unread.leave(false);
                    break;
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(_) => {
                    self.close_client(host, slot, "client's connection broke", now);
                    break;
                }
            };
            client.input.clear();
            // A short read shows that there are no more bytes, but the end may follow.
            let drained = kept + read < room && !client.at_socket.unread.has_hung_up();
            client.at_socket.unread.leave(!drained);
            if let Some(backend) = &mut client.backend {
                backend.gets_on(now);
            }
            let pool = client.pool;
            self.stats(pool).received.add(read as u64);
            if !self.take_in(host, slot, &buffer[..kept + read], now) || drained {
                break;
            }
        }
        self.client_input = buffer;
    }

    /// Continues with what a client has sent before: it got a backend, or its answers came.
    pub(crate) fn resume_client<H: Host<S>>(&mut self, host: &mut H, slot: Slot, now: Time) {
        let Some(client) = self.clients.get_mut(slot) else { return };
        let mut input = std::mem::take(&mut client.input);
        if !input.is_empty() {
            let goes_on = self.take_in(host, slot, &input, now);
            input.clear_into(&mut self.spare_input);
            if !goes_on {
                return;
            }
        }
        if let Some(client) = self.clients.get(slot)
            && client.at_socket.unread.is_any()
        {
            self.read_client(host, slot, now);
        }
    }

    /// Processes bytes of a client; keeps those that must wait. Returns whether more may be read.
    pub(crate) fn take_in<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        bytes: &[u8],
        now: Time,
    ) -> bool {
        let mut passage = Passage::of(bytes, std::mem::take(&mut self.to_server));
        let mut halt = match self.pass_plain_alone(host, slot, &mut passage, now) {
            Some(Ok(())) => return self.passed_plain(host, slot, bytes, passage, now),
            Some(Err(Halt::Waiting)) => {
                self.keep_memory(passage.out);
                if let Some(client) = self.clients.get_mut(slot) {
                    client.input.extend_in(bytes, &mut self.spare_input);
                }
                return false;
            }
            Some(Err(halt)) => halt,
            None => {
                let waits = self.clients.get(slot).is_some_and(|client| client.at_socket.is_late());
                let halt = self.walk(host, slot, &mut passage, now);
                if !waits && self.clients.get(slot).is_some_and(|client| client.at_socket.is_late())
                {
                    self.late.push(slot);
                }
                halt
            }
        };
        let Some(client) = self.clients.get_mut(slot) else { return false };
        if let Some(backend) = &mut client.backend {
            match passage.flush(backend) {
                Ok(()) => backend.cancel_if_due(host, self.id),
                Err(lost) => halt = lost,
            }
        }
        // No answer of Hawser's is due, and the backend is not at rest.
        let awaits_server = client.backend.as_ref().is_some_and(|backend| {
            backend.requests.front().is_some_and(|owed| !owed.is_answered_here())
        });
        if passage.done() < bytes.len() {
            client.input.extend_in(&bytes[passage.done()..], &mut self.spare_input);
        }
        self.keep_memory(passage.out);
        self.halted(host, slot, halt, awaits_server, now)
    }

    /// A client's bytes have been passed on as far as possible. Returns whether more may be read.
    /// `awaits_server`: no answer of Hawser's is due, and the backend is not at rest.
    fn halted<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        halt: Halt,
        awaits_server: bool,
        now: Time,
    ) -> bool {
        match halt {
            Halt::Dry => {
                if !awaits_server {
                    self.emit_own_answers(host, slot, now);
                    self.give_back_if_unused(host, slot, now);
                    self.give_notifications(host, slot, now);
                }
                self.drain_if_idle(host, slot, now);
                true
            }
            Halt::Full => {
                self.emit_own_answers(host, slot, now);
                // If everything outstanding was Hawser's to answer, no answer comes that would
                // resume the client.
                let client = self.clients.get(slot);
                if client.is_some_and(|c| {
                    !c.serving.held && c.backend.as_ref().is_some_and(|b| !b.requests.is_full())
                }) {
                    self.resume_later(slot);
                }
                false
            }
            Halt::Waiting => {
                // A cancel request had come for the message that waits in the queue now.
                if let Some(client) = self.clients.get_mut(slot)
                    && client.serving.state == ClientState::Waiting
                    && client.take_cancel()
                {
                    self.cancel_waiting(host, slot, now);
                }
                false
            }
            Halt::Terminate => {
                if let Some(client) = self.clients.get_mut(slot)
                    && !client.serving.is_exclusive()
                    && client.backend.as_ref().is_some_and(|b| {
                        b.requests.owes_ready()
                            && !b.requests.is_in_pipeline()
                            && !b.requests.is_copying_in()
                            && !b.requests.is_skipping_to_sync()
                    })
                {
                    // The server would answer what came before Terminate; but not an open pipeline
                    // or copy.
                    client.input.clear();
                    let gave_up =
                        now.micros_since(client.times.since()) > limits::GOODBYE_AFTER_QUERY_US;
                    client.pending_session().farewell = Farewell::Said { gave_up };
                } else {
                    self.close_client(host, slot, "the client ended its session", now);
                }
                false
            }
            Halt::Refused(error) => {
                self.disconnect(host, slot, &error, false, now);
                false
            }
            Halt::BackendLost(reason) => {
                self.backend_lost(slot, reason);
                false
            }
        }
    }

    /// A plain pipeline, `bytes`, has been passed on, and nothing else was there: the server's answer is
    /// awaited. Returns whether more may be read.
    fn passed_plain<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        bytes: &[u8],
        mut passage: Passage<'_>,
        now: Time,
    ) -> bool {
        let Some(client) = self.clients.get_mut(slot) else { return false };
        let written = match &mut client.backend {
            Some(backend) => passage.flush(backend),
            None => Ok(()),
        };
        self.keep_memory(passage.out);
        if let Err(Halt::BackendLost(reason)) = written {
            if !self.starts_again(host, slot, bytes, now) {
                self.backend_lost(slot, reason);
            }
            return false;
        }
        if self.clients_leave() {
            self.drain_if_idle(host, slot, now);
        }
        true
    }

    /// Keeps the memory of what has been written to a server for the next write.
    #[inline]
    fn keep_memory(&mut self, mut out: Vec<u8>) {
        out.clear();
        if out.capacity() > 4 * limits::READ_BYTES {
            out = Vec::new();
        }
        self.to_server = out;
    }

    /// Walks messages until there is no complete one, or one must wait.
    fn walk<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        passage: &mut Passage<'_>,
        now: Time,
    ) -> Halt {
        loop {
            let Some(client) = self.clients.get_mut(slot) else { return Halt::Dry };
            let rest = passage.rest();
            if rest.is_empty() {
                return Halt::Dry;
            }
            if client.is_in_mid_message() {
                match self.walk_on(slot, passage) {
                    Ok(()) => continue,
                    Err(lost) => return lost,
                }
            }
            if self.has_plain_lane
                && let Some(pipeline) = Pipeline::read(rest)
            {
                match self.pass_plain(host, slot, &pipeline, passage, now) {
                    Ok(Passed::Plain) => continue,
                    Ok(Passed::Unusual) => {}
                    Err(halt) => return halt,
                }
            }
            let Some(client) = self.clients.get_mut(slot) else { return Halt::Dry };
            let most = self.pools[client.pool as usize].settings.max_packet_size;
            let header = match readable(rest, most, client.has_start_values()) {
                Ok(header) => header,
                Err(halt) => return halt,
            };
            if header.kind == frontend::TERMINATE {
                return Halt::Terminate;
            }
            if client.is_skipping() {
                client.serving.held = false;
                client.take_cancel();
                if let Err(lost) = skip_to_sync(client, header, rest.len(), passage) {
                    return lost;
                }
                continue;
            }
            if client.serving.is_ruled()
                && !client.is_judged()
                && self.judge(host, slot, header, passage, now)
            {
                continue;
            }
            let Some(client) = self.clients.get_mut(slot) else { return Halt::Dry };
            if client.backend.is_none() {
                match self.without_backend(slot, header, rest, passage, now) {
                    Answered::Here => {
                        if let Some(client) = self.clients.get_mut(slot) {
                            client.take_cancel();
                            client.judged_stays(header.kind);
                        }
                        continue;
                    }
                    Answered::NeedsBackend => {}
                }
                let body = &rest[HEADER_BYTES..header.total().min(rest.len())];
                let wish = self.wish(slot, header, body);
                if let Err(halt) = self.attach(host, slot, wish, now) {
                    return halt;
                }
            }
            let available = &rest[HEADER_BYTES..header.total().min(rest.len())];
            self.again.handle_message(header.kind, available.len());
            match self.with_backend(host, slot, header, available, passage, now) {
                Ok(()) => {}
                Err(halt) => return halt,
            }
        }
    }

    /// Continues with a message that has been processed in part.
    fn walk_on(&mut self, slot: Slot, passage: &mut Passage<'_>) -> Result<(), Halt> {
        let Some(client) = self.clients.get_mut(slot) else { return Err(Halt::Dry) };
        let rest = passage.rest();
        // In the middle of a streaming message.
        if let Some(backend) = &mut client.backend
            && backend.to_server.is_open()
        {
            let part = backend.to_server.take_part(rest.len());
            let ended = !backend.to_server.is_open();
            passage.pass(part);
            if client.pending_session.as_ref().is_some_and(|extra| extra.streaming.is_some()) {
                self.scan_on(slot, &rest[..part], ended);
            }
            if ended {
                self.end_failed_pipeline(slot, passage)?;
                let Some(client) = self.clients.get_mut(slot) else { return Err(Halt::Dry) };
                if client.take_cancel()
                    && let Some(backend) = &mut client.backend
                {
                    backend.cancel_what_is_being_sent();
                }
            }
        } else if let Some(extra) = &mut client.pending_session
            && extra.dropped.is_in_message()
        {
            let part = extra.dropped.take_part(rest.len());
            if let Some(backend) = &mut client.backend {
                passage.cut(backend)?;
            }
            passage.skip(part);
            client.settle();
        }
        Ok(())
    }

    /// Processes a message that needs no server: the client has none, and nothing is outstanding.
    fn without_backend(
        &mut self,
        slot: Slot,
        header: Header,
        rest: &[u8],
        passage: &mut Passage<'_>,
        now: Time,
    ) -> Answered {
        let Some(client) = self.clients.get_mut(slot) else { return Answered::NeedsBackend };
        let body = &rest[HEADER_BYTES..header.total().min(rest.len())];
        match header.kind {
            frontend::FLUSH | frontend::SYNC if header.body > 0 => return Answered::NeedsBackend,
            frontend::FLUSH => {}
            // The server, too, reads and ignores copy data that it has not asked for.
            frontend::COPY_DATA | frontend::COPY_DONE | frontend::COPY_FAIL => {
                if header.total() > rest.len() {
                    client.pending_session().dropped.rest_of_message(header.total() - rest.len());
                }
            }
            frontend::SYNC => {
                let mut answer = client.take_unreported();
                build::ready_for_query(&mut answer, TransactionStatus::Idle);
                client.reply(&answer);
                client.settle();
            }
            frontend::CLOSE => {
                let Some((b'S', name)) = body.split_first() else {
                    return Answered::NeedsBackend;
                };
                let Some((name, _)) = frame::take_string(name) else {
                    return Answered::NeedsBackend;
                };
                if !client.forget_statement(name) {
                    return Answered::NeedsBackend;
                }
                client.reply(&build::CLOSE_COMPLETE);
            }
            frontend::PARSE => {
                if !self.prepare_here(slot, header, rest, now) {
                    return Answered::NeedsBackend;
                }
            }
            frontend::QUERY if header.total() <= rest.len() => {
                let Some(deallocated) = deallocates_own(client, body) else {
                    return Answered::NeedsBackend;
                };
                client.deallocate(&deallocated, TransactionStatus::Idle);
            }
            _ => return Answered::NeedsBackend,
        }
        passage.skip(header.total().min(rest.len()));
        Answered::Here
    }

    /// Prepares a statement without a server, if another client of the pool has had it prepared and
    /// nothing but a Sync follows. A client that prepares before its transactions then waits for no
    /// other client (pgbench with many clients in one thread would wait for itself).
    fn prepare_here(&mut self, slot: Slot, header: Header, rest: &[u8], now: Time) -> bool {
        let (hash_key, serial) = (self.hash_key, self.next_serial);
        let Some(client) = self.clients.get_mut(slot) else { return false };
        let Some(after) = rest.get(header.total()..) else { return false };
        if client.is_session_mode()
            || client.has_no_session_yet()
            || after.first() != Some(&frontend::SYNC)
        {
            return false;
        }
        let body = &rest[HEADER_BYTES..header.total()];
        let Some((name, text_and_types)) = frame::take_string(body) else { return false };
        if name.is_empty()
            || client.statement(name).is_some()
            || client.has_sql_statement(significant(name))
        {
            return false;
        }
        let pool = &self.pools[client.pool as usize].pool;
        if client.session.basis == Basis::UNKNOWN {
            client.session.basis = pool.basis();
        }
        let Some((statement, proven)) = pool.statements.find_proven(
            text_and_types,
            client.session.basis,
            &client.session.desired,
        ) else {
            return false;
        };
        let epoch = pool.schema_epoch_at(now);
        // If only time has passed, a server is asked again unless a client would wait for that.
        if proven < epoch && (!proven.has_schema_of(epoch) || pool.lock().has_room()) {
            return false;
        }
        if statement.effects.may(Effect::ResetsByNull) && client.has_start_values() {
            return false; // its own text has these in place of NULL
        }
        let named = ClientStatement::new(statement, serial, epoch, &client.session.desired);
        let memory = pool.statements.memory();
        if !memory.has_room_for_names() || !client.has_room_for_name(text_and_types.len()) {
            return false;
        }
        client.name_statement(name, named, hash_key, memory);
        self.next_serial = if serial == u32::MAX { 1 } else { serial + 1 };
        client.reply(&build::PARSE_COMPLETE);
        pool.stats.of(self.id).client_parses.add(1);
        true
    }

    /// Processes a message whose client has a backend. `body` is the part that has come: all, or for a
    /// streaming message at least its start.
    fn with_backend<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        header: Header,
        body: &[u8],
        passage: &mut Passage<'_>,
        now: Time,
    ) -> Result<(), Halt> {
        let (id, process) = (self.client_id(slot), self.process_of(slot));
        let Some(mut client) = self.clients.get_mut(slot) else { return Ok(()) };
        let listens = client.listens();
        if listens || client.backend.as_ref().is_some_and(|backend| backend.owner.is_shared()) {
            if self.must_wait_for_backend(host, slot, listens)? {
                return Err(Halt::Full);
            }
            let Some(again) = self.clients.get_mut(slot) else { return Ok(()) };
            client = again;
        }
        let Some(mut backend) = client.backend.take() else { return Ok(()) };
        client.serving.held = false;
        // A cancel request that is in flight for an earlier query must not hit the next one.
        let cancelled = backend.lending.cancels_in_flight > 0 && backend.requests.is_empty();
        let asking = backend.is_asking();
        if backend.requests.is_full() || cancelled || asking {
            client.serving.held = cancelled || asking;
            let asked = ask_for_answers(&mut backend, passage);
            client.backend = Some(backend);
            asked?;
            return Err(Halt::Full);
        }
        backend.unpark();
        backend.owner.is_now(id, process);
        let view = &self.pools[client.pool as usize];
        let settings = &view.settings;
        let timeouts_matter = client.is_judged() || settings.bound_time();
        let mut turn = ClientMessage {
            client: &mut *client,
            backend: &mut backend,
            passage,
            header,
            body,
            hash_key: self.hash_key,
            serial: self.next_serial,
            stats: view.pool.stats.of(self.id),
            known: &mut self.known,
            queries: &mut self.queries,
            tracking: settings.tracking,
            now,
        };
        let result = turn.open(now).and_then(|()| turn.message());
        self.next_serial = if self.next_serial == u32::MAX { 1 } else { self.next_serial + 1 };
        backend.to_server.measure(header.total(), now);
        if let Some((received_before, others_left)) = backend.known.notifying.take_due() {
            let by = received_before.then_some(view.pool.id);
            view.pool.notifiers().notifies(backend.process(), process, by, others_left, now);
        }
        // (The server ignores the signal while it reads a message.)
        if result.is_ok()
            && !backend.to_server.is_open()
            && client.take_cancel()
            && backend.requests.owes_beside_ours()
        {
            backend.cancel_what_is_being_sent();
        }
        client.backend = Some(backend);
        client.judged_goes(result.is_ok(), now);
        let wants_vacancy =
            client.pending_session.as_ref().is_some_and(|extra| extra.vacancy.is_some());
        if client.listens() {
            self.join_ahead(host, slot);
        }
        if wants_vacancy {
            self.ask_for_vacancy(host, slot);
        }
        if timeouts_matter {
            self.rearm(slot, now);
        }
        result
    }

    /// A client's pipeline has failed while a message of it was open, which has ended now: a Sync
    /// of Hawser's ends the pipeline (see [`Backend::owes_failed_pipeline_a_sync`]).
    fn end_failed_pipeline(&mut self, slot: Slot, passage: &mut Passage<'_>) -> Result<(), Halt> {
        let Some(client) = self.clients.get_mut(slot) else { return Ok(()) };
        let pinned = client.is_pinned();
        let Some(backend) = &mut client.backend else { return Ok(()) };
        if !backend.requests.is_skipping_to_sync() || !backend.owes_failed_pipeline_a_sync(pinned) {
            return Ok(());
        }
        passage.cut(backend)?;
        passage.out.extend_from_slice(&build::SYNC);
        backend.requests.push_sync_after_error();
        client.pending_session().dropped.until_sync();
        Ok(())
    }

    /// Whether a client's backend has to be handed over to it first, or its listening corrected.
    fn must_wait_for_backend<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        listens: bool,
    ) -> Result<bool, Halt> {
        let client = self.clients.get(slot);
        let shared =
            client.is_some_and(|c| c.backend.as_ref().is_some_and(|b| b.owner.is_shared()));
        Ok((shared && self.hand_over(slot)?) || (listens && self.clean_backend(host, slot)))
    }

    /// Continues the scan of a streaming Query.
    fn scan_on(&mut self, slot: Slot, part: &[u8], ended: bool) {
        let Some(client) = self.clients.get_mut(slot) else { return };
        let extra = client.pending_session();
        let Some(streaming) = &mut extra.streaming else { return };
        streaming.feed(if ended { &part[..part.len().saturating_sub(1)] } else { part });
        if !ended {
            return;
        }
        let Some(streaming) = extra.streaming.take() else { return };
        let Streamed { findings, reached, makes } = streaming.finish();
        let Some(mut backend) = client.backend.take() else { return };
        let mut effects =
            Effects::of(&findings, |name| backend.session.own.parameters.get(name).is_some());
        if let Some(reached) = reached {
            effects.absorb(&reached);
        }
        backend.foresee(&makes, &effects);
        effects.remove(&[Effect::Notifies]); // (its notifications may have been received already)
        client.record_effects(&mut backend, &effects, false);
        if effects.forgets_statements() {
            backend.last_query_takes_all(client);
        }
        if let Some(reset) = client.pending_session().reset.as_mut() {
            reset.was_ended_before(backend.requests.pipeline());
        }
        client.backend = Some(backend);
        client.settle();
    }
}

/// The header of the next message, if enough of it has come to process it. `most`: the longest that
/// is allowed. `puts_in`: something may be put into a text, which must then be complete.
#[inline]
fn readable(rest: &[u8], most: usize, puts_in: bool) -> Result<Header, Halt> {
    let header = match frame::header(rest) {
        Framed::Short => return Err(Halt::Dry),
        Framed::BadLength { kind, .. } => return Err(Halt::Refused(bad_length(kind))),
        Framed::Header(header) => header,
    };
    match allowed_length(header.kind) {
        None => return Err(Halt::Refused(bad_kind(header.kind))),
        Some(most) if header.body > most => {
            return Err(Halt::Refused(bad_length(header.kind)));
        }
        Some(_) => {}
    }
    if header.total() > limits::PACKET_BYTES_MIN && header.total() > most {
        return Err(Halt::Refused(too_long(header, most)));
    }
    // A long message streams, but only once as many bytes have come as a whole one may have.
    let is_whole_text =
        header.kind == frontend::QUERY && header.total() <= limits::WHOLE_TEXT_BYTES && puts_in;
    let missing = rest.len() < header.total().min(limits::WHOLE_MESSAGE_BYTES)
        || (is_whole_text && rest.len() < header.total());
    if missing { Err(Halt::Dry) } else { Ok(header) }
}

/// Processes a message of a client whose pipeline has failed: it is discarded, and a Sync ends
/// that.
fn skip_to_sync<S: Socket>(
    client: &mut Client<S>,
    header: Header,
    available: usize,
    passage: &mut Passage<'_>,
) -> Result<(), Halt> {
    if let Some(backend) = &mut client.backend {
        passage.cut(backend)?;
    }
    passage.skip(header.total().min(available));
    if header.kind != frontend::SYNC {
        let rest = header.total().saturating_sub(available);
        client.pending_session().dropped.rest_of_message(rest);
        return Ok(());
    }
    client.pending_session().dropped.sync_has_come();
    client.settle();
    if header.body > 0 {
        // It ends the pipeline all the same (`PostgresMain`, postgres.c).
        let mut error = Vec::new();
        ClientError::error(SqlState::PROTOCOL_VIOLATION, "invalid message format")
            .write(&mut error);
        client.reply(&error);
    }
    // Hawser's own Sync may not have been answered yet: then its answer becomes the client's.
    if let Some(backend) = &mut client.backend
        && backend.requests.give_sync_to_client()
    {
        return Ok(());
    }
    let status =
        client.backend.as_ref().map_or(TransactionStatus::Idle, |b| b.from_server.status());
    let mut answer = client.take_unreported();
    build::ready_for_query(&mut answer, status);
    client.reply(&answer);
    Ok(())
}

/// Whether a message has been answered here.
enum Answered {
    Here,
    NeedsBackend,
}

/// What a Query removes that is nothing but DEALLOCATE of one or all of this client's own
/// statements of the protocol: a client without a backend has no other statements on any server
/// that it could see.
fn deallocates_own<S: Socket>(client: &Client<S>, body: &[u8]) -> Option<Deallocated> {
    if client.is_session_mode() {
        return None;
    }
    let (text, _) = frame::take_string(body)?;
    let first = text.iter().position(|byte| !byte.is_ascii_whitespace())?;
    if !text[first..].get(..10)?.eq_ignore_ascii_case(b"deallocate") {
        return None;
    }
    // Without a backend it is not known how the server would read other bytes.
    if !text.is_ascii() || memchr::memchr(b'\\', text).is_some() {
        return None;
    }
    let effects = Effects::of(&scan(text, ScanOptions::default()), |_| false);
    let unusual = effects.unusual?;
    if unusual.deallocates_all {
        return Some(Deallocated::All);
    }
    let name = unusual.deallocates?;
    let is_own = client.statement(&name).is_some() || client.has_sql_statement(&name);
    is_own.then_some(Deallocated::One(name))
}
