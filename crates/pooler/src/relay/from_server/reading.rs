//! Reads from backends, with and without a client.

use std::io::ErrorKind;
use std::time::Duration;

use crate::ids::{ClientId, Slot};
use crate::queries::table::Queries;
use crate::queries::trace_parent::TraceParent;
use crate::relay::backend::Backend;
use crate::relay::client::Client;
use crate::relay::from_server::{LOOKED_AT_BYTES_MAX, Relay, Relayed};
use crate::relay::host::Host;
use crate::relay::limits;
use crate::relay::message::{Event, SERVER_CLOSED, SERVER_SILENT};
use crate::relay::socket::{Socket, Token};
use crate::relay::start_again::Answer;
use crate::relay::statistics::Ended;
use crate::relay::table::{Engine, Holder, PoolView};
use crate::time::Time;

/// Room that makes a read worthwhile.
const READ_ROOM_BYTES: usize = 4096;

impl<S: Socket> PoolView<S> {
    /// Counts queries and transactions that have ended.
    #[inline]
    fn count_ended<H: Host<S>>(
        &self,
        host: &mut H,
        id: ClientId,
        client: &mut Client<S>,
        backend: &mut Backend<S>,
        ended: Ended,
        now: Time,
    ) {
        if ended.queries > 0 {
            let stats = self.pool.stats.of(id.home);
            stats.queries.add(ended.queries);
            stats.query.record(now.micros_since(client.times.since()));
            if ended.transactions > 0 {
                stats.transactions.add(ended.transactions);
                let duration_us = now.micros_since(client.times.transaction_since());
                stats.transaction.record(duration_us);
                client.times.begin_transaction(now);
                let wait_us = backend.lending.take_waited_us();
                let parent = match self.settings.tracking.has_spans {
                    true => backend.lending.parent.take(),
                    false => None,
                };
                let slow = self.settings.log_min_duration;
                if !slow.is_zero() && Duration::from_micros(wait_us + duration_us) >= slow {
                    host.event(Event::SlowTransaction {
                        client: id,
                        about: &client.record.about,
                        database: &self.pool.database,
                        user: &self.pool.user,
                        wait_us,
                        duration_us,
                        parent: parent.or_else(|| {
                            let name = client.session.desired.get(b"application_name")?;
                            TraceParent::ending(name)
                        }),
                    });
                }
            }
            // What is still outstanding begins now.
            client.times.begin(now);
        }
    }

    /// Counts what has come from a client's backend, and reports its events.
    fn count<H: Host<S>>(
        &self,
        host: &mut H,
        id: ClientId,
        client: &mut Client<S>,
        backend: &mut Backend<S>,
        relayed: &Relayed,
        now: Time,
    ) {
        self.count_ended(host, id, client, backend, relayed.ended, now);
        let start_values = relayed.start_values_changed;
        if start_values || relayed.functions_changed {
            host.event(Event::CatalogChanged { pool: backend.pool.id, start_values });
        }
        let (database, user) = (&*backend.pool.database, &*backend.pool.user);
        if let Some(error) = relayed.unreadable_report
            && backend.pool.distrust_reports()
        {
            host.event(Event::ReportUnreadable { database, user, error });
        }
        if relayed.settings_mismatch {
            self.pool.stats.of(id.home).settings_mismatches.add(1);
            host.event(Event::SettingsMismatch { backend: backend.id(), database, user });
        }
    }
}

impl<S: Socket> Engine<S> {
    /// Reads from a client's backend as long as bytes come and the client takes them.
    pub(crate) fn read_backend<H: Host<S>>(&mut self, host: &mut H, slot: Slot, now: Time) {
        let mut out = std::mem::take(&mut self.to_client);
        while let Some(client) = self.clients.get_mut(slot)
            && let Some(backend) = &mut client.backend
        {
            if !self.again.may_read(Token::Backend(backend.place())) {
                backend.from_server.unread.leave(true);
                break;
            }
            let kept = backend.from_server.kept().len();
            let mut buffer = self.take_buffer(kept);
            let more = self.read_backend_once(host, slot, &mut buffer, &mut out, now);
            self.put_buffer(buffer);
            if !more {
                break;
            }
        }
        out.clear();
        if out.capacity() > 4 * limits::READ_BYTES {
            out = Vec::new();
        }
        self.to_client = out;
    }

    /// A buffer with room after this many bytes: the loop's own, or a longer one for a message that
    /// is read whole.
    fn take_buffer(&mut self, kept: usize) -> Box<[u8]> {
        if kept + READ_ROOM_BYTES > limits::READ_BYTES {
            return vec![0; LOOKED_AT_BYTES_MAX + 2 * limits::READ_BYTES].into_boxed_slice();
        }
        debug_assert!(!self.server_input.is_empty(), "one backend is read at a time");
        std::mem::take(&mut self.server_input)
    }

    fn put_buffer(&mut self, buffer: Box<[u8]>) {
        if buffer.len() == limits::READ_BYTES {
            self.server_input = buffer;
        }
    }

    /// Reads once from a client's backend. Returns whether it may be read again.
    fn read_backend_once<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        buffer: &mut [u8],
        out: &mut Vec<u8>,
        now: Time,
    ) -> bool {
        let own_process = self.process_ids.of(slot.index);
        let Some(client) = self.clients.get_mut(slot) else { return false };
        let Some(mut backend) = client.backend.take() else { return false };
        if client.output.len() > limits::OUTPUT_HIGH_BYTES {
            backend.from_server.unread.leave(true);
            client.backend = Some(backend);
            return false;
        }
        let filled = match read_into(&mut backend, buffer) {
            Read::Bytes(filled) => filled,
            Read::Nothing => {
                backend.from_server.unread.leave(false);
                client.backend = Some(backend);
                return false;
            }
            Read::Ended(reason) => {
                client.backend = Some(backend);
                self.backend_failed(host, slot, reason, now);
                return false;
            }
        };
        let read = filled - backend.from_server.kept().len();
        backend.from_server.forget_kept();
        // A short read shows that there are no more bytes, but the end may follow.
        let drained = filled < buffer.len() && !backend.from_server.unread.has_hung_up();
        backend.from_server.unread.leave(!drained);
        out.clear();
        let was_full = backend.requests.is_full() || client.serving.held;
        let pool = client.pool;
        let (listens_elsewhere, listened) = (client.listens(), client.awaits_listener());
        let (id, view) = (ClientId { home: self.id, slot }, &self.pools[pool as usize]);
        view.pool.stats.of(self.id).sent.add(read as u64);
        if backend.prepared.replay.may_move() {
            let answer = Answer::read(&buffer[..filled]);
            if answer != Answer::Other {
                client.backend = Some(backend);
                return self.may_send_elsewhere(host, slot, answer, &buffer[..filled], now)
                    && !drained;
            }
        }
        let mut relay = Relay {
            backend: &mut backend,
            client: Some(client),
            bytes: &buffer[..filled],
            out,
            message_bytes_max: view.settings.max_packet_size,
            own_process,
            has_plain_lane: self.has_plain_lane,
            queries: &mut self.queries,
            now,
        };
        let (at, mut ended) = (relay.pass_plain_answer(), Ended::default());
        if at > 0 && relay.end_plain_answer(at, now, &mut ended) {
            view.count_ended(host, id, client, &mut backend, ended, now);
            let answered = PlainAnswer { out, passed: &buffer[..filled], was_full, drained };
            return self.plain_answered(host, slot, backend, &answered, now);
        }
        let relayed = relay.run(at, now);
        backend.from_server.keep(&buffer[relayed.consumed..filled]);
        view.count(host, id, client, &mut backend, &relayed, now);
        let passed = &buffer[relayed.run.clone()];
        if relayed.is_plain_end(filled) {
            let answered = PlainAnswer { out, passed, was_full, drained };
            return self.plain_answered(host, slot, backend, &answered, now);
        }
        let answered = Answered { out, passed, was_full, drained, listens_elsewhere, listened };
        self.go_on_after(host, slot, backend, relayed, &answered, now)
    }

    /// Acts on what has come from a client's backend. Returns whether it may be read again.
    fn go_on_after<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        mut backend: Box<Backend<S>>,
        relayed: Relayed,
        answered: &Answered<'_>,
        now: Time,
    ) -> bool {
        let Answered { out, passed, was_full, drained, listens_elsewhere, listened } = *answered;
        self.see_rules_again(host, slot);
        let Some(client) = self.clients.get_mut(slot) else { return false };
        let quiet = backend.requests.is_empty();
        if quiet {
            backend.lending.since = now;
        }
        backend.cancel_if_due(host, self.id);
        let goes_on = relayed.broken.is_none() && relayed.goodbye.is_none();
        let at_rest = goes_on && backend.is_at_rest();
        let listens = goes_on && relayed.listens;
        let queries = relayed.ended.queries;
        let settled = match at_rest && !listens && relayed.handed_over.is_none() {
            // It does not wait for the server's report on its pins.
            true if listened => Ok(!client.is_pinned()),
            true => client.can_give_back(&mut backend),
            false => Ok(false),
        };
        let lost = settled.is_err();
        let done = settled.unwrap_or(false);
        if done {
            // The next waiter first: the server is the slowest part.
            client.rest(now);
            self.give_back(host, backend, now);
        } else {
            client.backend = Some(backend);
        }
        if listens {
            self.transaction_ended(host, slot, [out, passed], now);
            return !drained;
        }
        if listened && out.len() + passed.len() > 0 {
            // A last message, or a warning: after the earlier answers, which may begin within a
            // message.
            self.give_held_answer(slot);
        }
        self.answer(host, slot, out, passed, now);
        if lost {
            self.backend_lost(slot, "server closed the connection");
            return false;
        }
        if listened && goes_on {
            self.listening_answered(host, slot, now);
            return !drained;
        }
        if let Some(more) = self.follow_up(host, slot, relayed, now) {
            return more && !drained;
        }
        if at_rest && listens_elsewhere {
            self.leave_discarded(host, slot);
            // Notifications that came while the server was asked about the session were kept.
            self.give_notifications(host, slot, now);
        }
        if self.clients_leave() {
            self.drain_if_idle(host, slot, now);
        }
        if at_rest && !done && self.count_pinned(host, slot, now) {
            return false;
        }
        if done || was_full {
            self.resume_later(slot);
        }
        if quiet || queries > 0 {
            self.rearm_if_limited(slot, now);
        }
        !done && !drained
    }

    /// Acts on the outcome of a server's messages besides the answer. `None`: the work on this
    /// client continues; else whether more may be read for it.
    fn follow_up<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        relayed: Relayed,
        now: Time,
    ) -> Option<bool> {
        if let Some(reason) = relayed.broken {
            self.backend_failed(host, slot, reason, now);
            return Some(false);
        }
        if let Some(error) = relayed.goodbye {
            // It is the answer that the client awaits.
            self.disconnect(host, slot, &error, false, now);
            return Some(false);
        }
        if self.refuses_unsent(host, slot, now) {
            return Some(false);
        }
        if let Some(outcome) = relayed.handed_over {
            self.handed_over(host, slot, *outcome, now);
            return Some(true);
        }
        if relayed.lifted && self.begin_after_lift(host, slot, now) {
            return Some(true);
        }
        if self.clients.get(slot).is_some_and(|client| {
            // A copy waits for data, and has ignored a Sync that it has read: nothing comes.
            client.is_leaving()
                && client
                    .backend
                    .as_ref()
                    .is_none_or(|b| !b.requests.owes_ready() || b.requests.is_copying_in())
        }) {
            self.close_client(host, slot, "the client ended its session", now);
            return Some(false);
        }
        if relayed.heal {
            self.heal(host, slot, now);
        }
        None
    }

    /// Continues after the end of a plain pipeline. Nothing else has come, and the client's session
    /// is not unusual, so only this can follow the answer. Returns whether it may be read again.
    fn plain_answered<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        mut backend: Box<Backend<S>>,
        answered: &PlainAnswer<'_>,
        now: Time,
    ) -> bool {
        backend.cancel_if_due(host, self.id);
        let done = backend.is_at_rest();
        let Some(client) = self.clients.get_mut(slot) else { return false };
        if done {
            // The next waiter first: the server is the slowest part.
            client.rest(now);
            self.give_back(host, backend, now);
        } else {
            client.backend = Some(backend);
        }
        self.answer(host, slot, answered.out, answered.passed, now);
        if self.clients_leave() {
            self.drain_if_idle(host, slot, now);
        }
        if done || answered.was_full {
            self.resume_later(slot);
        }
        self.rearm_if_limited(slot, now);
        !done && !answered.drained
    }

    /// Reads from a backend that has no client.
    pub(crate) fn read_tidied<H: Host<S>>(&mut self, host: &mut H, place: Slot, now: Time) {
        let Some(resident) = self.resident.get_mut(place) else { return };
        let Holder::Engine(_) = &resident.holder else { return };
        let Holder::Engine(mut backend) = std::mem::replace(&mut resident.holder, Holder::Pool)
        else {
            return;
        };
        // Bytes that the client has not been given come first.
        let kept = backend.from_server.take_kept();
        let mut relayed = relay_without_client(&mut backend, &kept, &mut self.queries, now);
        let mut unread = false;
        while relayed.is_ok() {
            if !self.again.may_read(Token::Backend(place)) {
                unread = true;
                break;
            }
            let mut buffer = self.take_buffer(backend.from_server.kept().len());
            let read = read_into(&mut backend, &mut buffer);
            if let Read::Bytes(filled) = read {
                let read = &buffer[..filled];
                relayed = relay_without_client(&mut backend, read, &mut self.queries, now);
            }
            self.put_buffer(buffer);
            match read {
                Read::Bytes(_) => {}
                Read::Nothing => break,
                Read::Ended(reason) => {
                    backend.from_server.goes();
                    relayed = Err(reason);
                }
            }
        }
        if let Err(reason) = relayed {
            self.close_backend(host, backend, reason, now);
            return;
        }
        backend.from_server.unread.leave(unread);
        backend.cancel_if_due(host, self.id);
        if backend.requests.is_copying_in() && backend.fail_copy().is_err() {
            self.close_backend(host, backend, "server closed the connection", now);
            return;
        }
        if unread {
            self.keep(backend);
            return;
        }
        self.tidy_on(host, backend, now);
    }
}

/// What one read has brought for a client: the end of a plain pipeline.
#[derive(Clone, Copy)]
struct PlainAnswer<'a> {
    /// What is written to the client first, and what is written after it from the buffer it was
    /// read into.
    out: &'a [u8],
    passed: &'a [u8],
    /// The queue of requests was full, so the client's messages waited.
    was_full: bool,
    /// There is no more to read.
    drained: bool,
}

/// What one read has brought for a client.
#[derive(Clone, Copy)]
struct Answered<'a> {
    /// What is written to the client first, and what is written after it from the buffer it was
    /// read into.
    out: &'a [u8],
    passed: &'a [u8],
    /// The queue of requests was full, so the client's messages waited.
    was_full: bool,
    /// There is no more to read.
    drained: bool,
    /// The client listens without a backend of its own.
    listens_elsewhere: bool,
    /// It waited for the listening connection.
    listened: bool,
}

/// The outcome of a read.
enum Read {
    /// This many bytes are in the buffer, with those that were kept.
    Bytes(usize),
    /// There are none now.
    Nothing,
    /// The connection has ended, for this reason.
    Ended(&'static str),
}

/// Puts the kept bytes of a backend into a buffer, and reads more after them.
fn read_into<S: Socket>(backend: &mut Backend<S>, buffer: &mut [u8]) -> Read {
    let kept = backend.from_server.kept().len();
    buffer[..kept].copy_from_slice(backend.from_server.kept());
    loop {
        match backend.socket.read(&mut buffer[kept..]) {
            Ok(read) if read > 0 => return Read::Bytes(kept + read),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Read::Nothing,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) if error.kind() == ErrorKind::TimedOut => return Read::Ended(SERVER_SILENT),
            Ok(_) | Err(_) => return Read::Ended(SERVER_CLOSED),
        }
    }
}

/// Processes bytes of a backend without a client. `Err`: why it must be closed.
fn relay_without_client<S: Socket>(
    backend: &mut Backend<S>,
    bytes: &[u8],
    queries: &mut Queries,
    now: Time,
) -> Result<(), &'static str> {
    let out = &mut Vec::new();
    let relayed = Relay {
        backend,
        client: None,
        bytes,
        out,
        message_bytes_max: usize::MAX,
        own_process: 0,
        has_plain_lane: false,
        queries,
        now,
    }
    .run(0, now);
    backend.from_server.keep(&bytes[relayed.consumed..]);
    match relayed.broken {
        Some(reason) => Err(reason),
        None if relayed.injected_query_failed => Err("it could not be tidied"),
        None => Ok(()),
    }
}
