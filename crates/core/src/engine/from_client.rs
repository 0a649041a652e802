//! What a client sends: looked at by its headers, and passed on.
//!
//! # Model
//! Bytes are walked message by message. A message up to [`limits::WHOLE_MESSAGE_BYTES`] is acted
//! on once it is complete, so half a message never holds a backend; a longer one streams. Runs
//! of messages that need no change are passed on from where they were read.
//!
//! # What is changed on the way
//! Names of prepared statements (Parse, Bind, Describe, Close), for clients that share backends.
//! What Hawser adds (settings, statements that a backend lacks) and what it answers itself leaves
//! an entry in [`super::expect`], so that answers keep their order.

use super::backend::Backend;
use super::client::{Client, ClientStatement, Resetting};
use super::effects::Effects;
use super::expect::Expect;
use super::message::{ClientState, Event};
use super::statement::Unnamed;
use super::table::{Engine, Holder};
use super::{Host, Socket, Token, limits};
use crate::ids::Slot;
use crate::pool::Acquired;
use crate::session::part::Part;
use crate::session::scan::{ScanOptions, Scanner, scan};
use crate::time::Time;
use crate::wire::error::{ClientError, SqlState};
use crate::wire::frame::{self, Framed, HEADER_BYTES, Header};
use crate::wire::{TransactionStatus, build, frontend};
use std::sync::Arc;

/// Bytes from which a run is written from where it was read, not copied first.
const DIRECT_WRITE_BYTES: usize = 4096;

/// PostgreSQL's limit on messages that have no business being long (`PQ_SMALL_MESSAGE_LIMIT`,
/// src/include/libpq/libpq.h).
const SMALL_MESSAGE_BYTES: usize = 10_000;

/// Why a client's bytes are not read on.
#[derive(Debug)]
pub(super) enum Halt {
    /// All that is complete has been passed on.
    Dry,
    /// It waits for a backend.
    Waiting,
    /// Enough is outstanding: on when answers have come.
    Full,
    /// It has said goodbye.
    Terminate,
    /// It broke the protocol, or a limit.
    Refused(ClientError),
    /// The backend's connection failed.
    BackendLost(&'static str),
}

/// Bytes on their way from a client to its backend.
struct Passage<'a> {
    input: &'a [u8],
    /// Start of the run that is passed on as it is.
    run: usize,
    /// What has been dealt with.
    at: usize,
    /// Bytes ahead of the run.
    out: Vec<u8>,
}

impl<'a> Passage<'a> {
    /// The message at hand is passed on as it is.
    #[inline]
    fn pass(&mut self, bytes: usize) {
        self.at += bytes;
    }

    /// Ends the run, so that something can be put behind it.
    fn cut<S: Socket>(&mut self, backend: &mut Backend<S>) -> Result<(), Halt> {
        let run = &self.input[self.run..self.at];
        self.run = self.at;
        if run.len() < DIRECT_WRITE_BYTES {
            self.out.extend_from_slice(run);
            return Ok(());
        }
        backend.send(&self.out)?;
        self.out.clear();
        backend.send(run)
    }

    /// The message at hand is not passed on.
    fn skip(&mut self, bytes: usize) {
        debug_assert_eq!(self.run, self.at, "a run must be cut before it is skipped over");
        self.at += bytes;
        self.run = self.at;
    }
}

impl<S: Socket> Backend<S> {
    /// Writes to the server, keeping what its socket does not take.
    pub(super) fn send(&mut self, bytes: &[u8]) -> Result<(), Halt> {
        match super::write_or_keep(&mut self.socket, &mut self.output, bytes) {
            Ok(_) => Ok(()),
            Err(_) => Err(Halt::BackendLost("its connection broke while it was written to")),
        }
    }
}

impl<S: Socket> Engine<S> {
    /// Reads from a client as long as it has something and it can be passed on.
    pub(super) fn read_client<H: Host<S>>(&mut self, host: &mut H, slot: Slot, now: Time) {
        let mut buffer = std::mem::take(&mut self.client_input);
        if buffer.is_empty() {
            // Taken already: a waiter is served in the middle of another's turn.
            buffer = vec![0; limits::READ_BYTES].into_boxed_slice();
        }
        loop {
            let Some(client) = self.clients.get_mut(slot) else { break };
            if client.state == ClientState::Waiting || client.state == ClientState::Closing {
                client.readable = true;
                break;
            }
            if let Some(backend) = &client.backend
                && (backend.output.len() > limits::OUTPUT_HIGH_BYTES || backend.is_full())
            {
                client.readable = true;
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
                    client.readable = false;
                    break;
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(_) => {
                    self.close_client(host, slot, "client's connection broke", now);
                    break;
                }
            };
            client.input.clear();
            let drained = kept + read < room;
            client.readable = !drained;
            if let Some(backend) = &mut client.backend {
                backend.progress = now;
            }
            let pool = client.pool;
            self.stats(pool).received.add(read as u64);
            if !self.take_in(host, slot, &buffer[..kept + read], now) || drained {
                break;
            }
        }
        self.client_input = buffer;
    }

    /// Goes on with what a client has sent before: it got a backend, or its answers came.
    pub(super) fn resume_client<H: Host<S>>(&mut self, host: &mut H, slot: Slot, now: Time) {
        let Some(client) = self.clients.get_mut(slot) else { return };
        let input = std::mem::take(&mut client.input);
        if !input.is_empty() && !self.take_in(host, slot, &input, now) {
            return;
        }
        if let Some(client) = self.clients.get(slot)
            && client.readable
        {
            self.read_client(host, slot, now);
        }
    }

    /// Deals with bytes of a client; keeps what it cannot deal with yet. Whether more may be read.
    fn take_in<H: Host<S>>(&mut self, host: &mut H, slot: Slot, bytes: &[u8], now: Time) -> bool {
        let mut passage =
            Passage { input: bytes, run: 0, at: 0, out: std::mem::take(&mut self.to_server) };
        passage.out.clear();
        let mut halt = self.walk(host, slot, &mut passage, now);
        let Some(client) = self.clients.get_mut(slot) else { return false };
        if let Some(backend) = &mut client.backend {
            let sent = passage.cut(backend).and_then(|()| {
                if passage.out.is_empty() { Ok(()) } else { backend.send(&passage.out) }
            });
            if let Err(lost) = sent {
                halt = lost;
            }
        }
        if passage.at < bytes.len() {
            client.input.extend_from_slice(&bytes[passage.at..]);
        }
        let mut out = passage.out;
        out.clear();
        if out.capacity() > 4 * limits::READ_BYTES {
            out = Vec::new();
        }
        self.to_server = out;
        match halt {
            Halt::Dry => {
                self.emit_made_answers(host, slot, now);
                self.give_back_if_unused(host, slot, now);
                true
            }
            Halt::Waiting | Halt::Full => false,
            Halt::Terminate => {
                self.close_client(host, slot, "client said goodbye", now);
                false
            }
            Halt::Refused(error) => {
                self.say_goodbye(host, slot, &error, now);
                false
            }
            Halt::BackendLost(reason) => {
                self.backend_failed(host, slot, reason, now);
                false
            }
        }
    }

    /// Walks messages until there is no complete one, or something stands in the way.
    fn walk<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        passage: &mut Passage<'_>,
        now: Time,
    ) -> Halt {
        loop {
            let Some(client) = self.clients.get_mut(slot) else { return Halt::Dry };
            let rest = &passage.input[passage.at..];
            if rest.is_empty() {
                return Halt::Dry;
            }
            // In the middle of a message that streams.
            if let Some(backend) = &mut client.backend
                && backend.sending_rest > 0
            {
                let part = backend.sending_rest.min(rest.len());
                backend.sending_rest -= part;
                let ended = backend.sending_rest == 0;
                passage.pass(part);
                if client.extra.as_ref().is_some_and(|extra| extra.scanner.is_some()) {
                    self.scan_on(slot, &rest[..part], ended);
                }
                continue;
            }
            if let Some(extra) = &mut client.extra
                && extra.discard > 0
            {
                let part = extra.discard.min(rest.len());
                extra.discard -= part;
                if let Some(backend) = &mut client.backend
                    && let Err(lost) = passage.cut(backend)
                {
                    return lost;
                }
                passage.skip(part);
                client.settle();
                continue;
            }
            let header = match frame::header(rest) {
                Framed::Short => return Halt::Dry,
                Framed::BadLength { kind, .. } => return Halt::Refused(bad_length(kind)),
                Framed::Header(header) => header,
            };
            match allowed_length(header.kind) {
                None => return Halt::Refused(bad_kind(header.kind)),
                Some(most) if header.body > most => {
                    return Halt::Refused(bad_length(header.kind));
                }
                Some(_) => {}
            }
            let whole = header.total() <= rest.len();
            if !whole && header.total() <= limits::WHOLE_MESSAGE_BYTES {
                return Halt::Dry;
            }
            if header.kind == frontend::TERMINATE {
                return Halt::Terminate;
            }
            if client.backend.is_none() {
                match self.without_backend(slot, header, rest, passage) {
                    Answered::Here => continue,
                    Answered::NeedsBackend => {}
                }
                if let Err(halt) = self.attach(host, slot, now) {
                    return halt;
                }
            }
            let available = &rest[HEADER_BYTES..header.total().min(rest.len())];
            match self.with_backend(host, slot, header, available, passage, now) {
                Ok(()) => {}
                Err(halt) => return halt,
            }
        }
    }

    /// Deals with a message that needs no server: the client has none, and nothing is outstanding.
    fn without_backend(
        &mut self,
        slot: Slot,
        header: Header,
        rest: &[u8],
        passage: &mut Passage<'_>,
    ) -> Answered {
        let Some(client) = self.clients.get_mut(slot) else { return Answered::NeedsBackend };
        let body = &rest[HEADER_BYTES..header.total().min(rest.len())];
        match header.kind {
            frontend::FLUSH => {}
            // The server, too, reads and ignores copy data that it has not asked for.
            frontend::COPY_DATA | frontend::COPY_DONE | frontend::COPY_FAIL => {
                if header.total() > rest.len() {
                    client.extra().discard = header.total() - rest.len();
                }
            }
            frontend::SYNC => {
                let mut answer = Vec::with_capacity(6);
                build::ready_for_query(&mut answer, TransactionStatus::Idle);
                client.reply(&answer);
            }
            frontend::CLOSE => {
                let Some((b'S', name)) = body.split_first() else {
                    return Answered::NeedsBackend;
                };
                let Some((name, _)) = frame::take_string(name) else {
                    return Answered::NeedsBackend;
                };
                let named = client.statements.as_mut().and_then(|names| names.remove(name));
                if named.is_none() {
                    return Answered::NeedsBackend;
                }
                client.reply(&build::CLOSE_COMPLETE);
            }
            frontend::QUERY if header.total() <= rest.len() => {
                let Some(effects) = deallocates_own(client, body) else {
                    return Answered::NeedsBackend;
                };
                if let Some(names) = &mut client.statements {
                    names.remove(&effects);
                }
                let mut answer = Vec::with_capacity(32);
                build::command_complete(&mut answer, b"DEALLOCATE");
                build::ready_for_query(&mut answer, TransactionStatus::Idle);
                client.reply(&answer);
            }
            _ => return Answered::NeedsBackend,
        }
        passage.skip(header.total().min(rest.len()));
        Answered::Here
    }

    /// Gets the client a backend, or a place in the queue.
    pub(super) fn attach<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        now: Time,
    ) -> Result<(), Halt> {
        let id = self.client_id(slot);
        let Some(client) = self.clients.get_mut(slot) else { return Err(Halt::Dry) };
        let view = &self.pools[client.pool as usize];
        let acquired = view.pool.lock().acquire(id, now);
        match acquired {
            Acquired::Backend { backend, home } => {
                self.take_over(host, slot, backend, home, now).map_err(Halt::BackendLost)?;
                self.stats(self.clients.get(slot).map_or(0, |c| c.pool)).wait.record(0);
                Ok(())
            }
            Acquired::Wait { open } => {
                client.state = ClientState::Waiting;
                client.since = now;
                if open {
                    host.open(&view.pool, self.id);
                }
                self.rearm(slot, now);
                Err(Halt::Waiting)
            }
        }
    }

    /// Makes a backend the client's. `home` is the loop that watches it, maybe none yet.
    pub(super) fn take_over<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        mut backend: Box<Backend<S>>,
        home: crate::ids::LoopId,
        now: Time,
    ) -> Result<(), &'static str> {
        if home == self.id {
            if let Some(resident) = self.resident.get_mut(backend.place) {
                resident.holder = Holder::Client(slot);
            }
        } else {
            host.unwatch(&backend.socket, home);
            host.send(home, super::ToLoop::Departed(backend.place));
            if let Err(reason) = self.settle_here(host, &mut backend, Holder::Client(slot)) {
                self.close_backend(host, backend, reason, now);
                return Err(reason);
            }
        }
        let Some(client) = self.clients.get_mut(slot) else { return Err("its client is gone") };
        backend.progress = now;
        backend.since = now;
        client.backend = Some(backend);
        client.state = ClientState::Active;
        let pool = client.pool;
        self.stats(pool).assignments.add(1);
        Ok(())
    }

    /// Takes a backend into this loop's table and watch.
    pub(super) fn settle_here<H: Host<S>>(
        &mut self,
        host: &mut H,
        backend: &mut Box<Backend<S>>,
        holder: Holder<S>,
    ) -> Result<(), &'static str> {
        let pool = self.view_of(&backend.pool.clone());
        let id = backend.id;
        let place = self.resident.insert_with(|_| super::table::Resident { id, pool, holder });
        backend.place = place;
        backend.home = self.id;
        if host.watch(&backend.socket, Token::Backend(place)).is_err() {
            return Err("its connection could not be watched");
        }
        Ok(())
    }

    /// Deals with a message whose client has a backend. `body` is what has come of it: all, or
    /// for a message that streams at least its start.
    fn with_backend<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        header: Header,
        body: &[u8],
        passage: &mut Passage<'_>,
        now: Time,
    ) -> Result<(), Halt> {
        let hash_key = self.hash_key;
        let serial = self.next_serial;
        let Some(client) = self.clients.get_mut(slot) else { return Ok(()) };
        let Some(mut backend) = client.backend.take() else { return Ok(()) };
        if backend.is_full() {
            client.backend = Some(backend);
            return Err(Halt::Full);
        }
        if backend.parked {
            backend.parked = false;
            backend.pool.lock().unpark();
        }
        let pool = client.pool as usize;
        let settings = &self.pools[pool].settings;
        let timeouts_matter =
            !settings.query_timeout.is_zero() || !settings.transaction_timeout.is_zero();
        let stats = self.pools[pool].pool.stats.of(self.id);
        let mut turn =
            Turn { client, backend: &mut backend, passage, header, body, hash_key, serial, stats };
        let result = turn.open(now).and_then(|()| turn.message());
        self.next_serial = if serial == u32::MAX { 1 } else { serial + 1 };
        if let Some(client) = self.clients.get_mut(slot) {
            client.backend = Some(backend);
        }
        if let Ok(true) = result {
            host.event(Event::StartValuesChanged);
        }
        if timeouts_matter {
            self.rearm(slot, now);
        }
        result.map(|_| ())
    }

    /// Goes on with the scan of a Query that streams.
    fn scan_on(&mut self, slot: Slot, part: &[u8], ended: bool) {
        let Some(client) = self.clients.get_mut(slot) else { return };
        let extra = client.extra();
        let Some(scanner) = &mut extra.scanner else { return };
        if !ended {
            scanner.feed(part);
            return;
        }
        scanner.feed(&part[..part.len().saturating_sub(1)]);
        let Some(scanner) = extra.scanner.take() else { return };
        let findings = scanner.finish();
        let Some(mut backend) = client.backend.take() else { return };
        let effects = Effects::of(&findings, |name| backend.parameters.get(name).is_some());
        client.undergo(&mut backend, &effects);
        client.backend = Some(backend);
        client.settle();
    }
}

/// Whether a message has been dealt with.
enum Answered {
    Here,
    NeedsBackend,
}

/// The longest body that PostgreSQL takes of each kind; `None` for what is no kind at all.
fn allowed_length(kind: u8) -> Option<usize> {
    match kind {
        frontend::QUERY
        | frontend::PARSE
        | frontend::BIND
        | frontend::FUNCTION_CALL
        | frontend::COPY_DATA => Some(frame::BODY_BYTES_MAX),
        frontend::CLOSE
        | frontend::DESCRIBE
        | frontend::EXECUTE
        | frontend::FLUSH
        | frontend::SYNC
        | frontend::COPY_DONE
        | frontend::COPY_FAIL
        | frontend::TERMINATE => Some(SMALL_MESSAGE_BYTES),
        _ => None,
    }
}

fn bad_kind(kind: u8) -> ClientError {
    ClientError::fatal(
        SqlState::PROTOCOL_VIOLATION,
        format!("invalid frontend message type {kind}"),
    )
}

fn bad_length(kind: u8) -> ClientError {
    ClientError::fatal(SqlState::PROTOCOL_VIOLATION, "invalid message length")
        .detail(format!("Message type \"{}\".", kind.escape_ascii()))
}

/// What a Describe or Close is about: `S` or `P`, and the name.
fn target(body: &[u8]) -> Option<(u8, &[u8])> {
    let (&what, name) = body.split_first()?;
    Some((what, frame::take_string(name)?.0))
}

/// The name in a Query that is nothing but DEALLOCATE of a protocol-level statement of this
/// client's own.
fn deallocates_own<S: Socket>(client: &Client<S>, body: &[u8]) -> Option<Box<[u8]>> {
    if client.statements.is_none() || client.is_native() {
        return None;
    }
    let (text, _) = frame::take_string(body)?;
    let first = text.iter().position(|byte| !byte.is_ascii_whitespace())?;
    if !text[first..].get(..10)?.eq_ignore_ascii_case(b"deallocate") {
        return None;
    }
    let effects = Effects::of(&scan(text, client.scan_options()), |_| false);
    let name = effects.unusual?.deallocates?;
    client.statement(&name).map(|_| name)
}

impl<S: Socket> Client<S> {
    /// How this client's statements are to be read.
    pub(super) fn scan_options(&self) -> ScanOptions {
        let settings = &self.desired;
        if settings.is_empty() {
            return ScanOptions::default();
        }
        ScanOptions {
            standard_conforming_strings: settings.get(b"standard_conforming_strings")
                != Some(b"off"),
            unsafe_encoding: settings.get(b"client_encoding").is_some_and(|encoding| {
                [&b"SJIS"[..], b"BIG5", b"GBK", b"UHC", b"GB18030", b"JOHAB", b"SHIFT_JIS_2004"]
                    .contains(&encoding)
            }),
        }
    }

    /// A statement with these effects is on its way to the server.
    pub(super) fn undergo(&mut self, backend: &mut Backend<S>, effects: &Effects) {
        if effects.is_none() {
            return;
        }
        self.pins = self.pins.union(effects.pins);
        if effects.spoils {
            backend.spoiled.get_or_insert("a client changed what cannot be undone");
        }
        self.reads_sequences |= effects.reads_sequences;
        let Some(unusual) = &effects.unusual else { return };
        if unusual.resetting != Resetting::No && !self.is_native() {
            let resetting = &mut self.extra().resetting;
            match (&mut *resetting, &unusual.resetting) {
                (Resetting::Names(names), Resetting::Names(more)) => {
                    names.extend_from_slice(more);
                }
                (Resetting::All, _) => {}
                (now, new) => *now = new.clone(),
            }
        }
        if unusual.forgets_statements {
            self.forget_statements();
            backend.statements.clear();
            backend.unnamed = None;
            backend.uncertain = true;
        }
        if unusual.discards_all {
            self.extra().discarding = true;
        }
        if unusual.unlistens_all && backend.status == TransactionStatus::Idle {
            self.pins.remove(Part::Listen);
        }
    }
}

/// One message of a client that has a backend.
struct Turn<'a, 'b, S: Socket> {
    client: &'a mut Client<S>,
    backend: &'a mut Backend<S>,
    passage: &'a mut Passage<'b>,
    header: Header,
    body: &'a [u8],
    hash_key: super::statement::Keyed,
    serial: u32,
    stats: &'a crate::pool::LoopStats,
}

impl<S: Socket> Turn<'_, '_, S> {
    /// Whether all of the message is here.
    fn is_whole(&self) -> bool {
        self.body.len() == self.header.body
    }

    /// Passes the message on as it is; what has not come yet streams.
    fn pass(&mut self) {
        self.passage.pass(HEADER_BYTES + self.body.len());
        self.backend.sending_rest = self.header.body - self.body.len();
    }

    /// Passes on a message whose body cannot be read: the server knows what to say of it, and its
    /// length keeps the framing.
    fn malformed(&mut self, expect: Expect) {
        self.pass();
        self.backend.expect(expect);
    }

    /// Passes the message on with another start: `new` in place of the first `old` bytes of the
    /// body.
    fn pass_with(&mut self, old: usize, new: impl FnOnce(&mut Vec<u8>)) -> Result<(), Halt> {
        self.passage.cut(self.backend)?;
        let out = &mut self.passage.out;
        let start = out.len();
        out.extend_from_slice(&[self.header.kind, 0, 0, 0, 0]);
        new(out);
        let length = out.len() - start - 1 + self.header.body - old;
        let Ok(length) = u32::try_from(length) else {
            return Err(Halt::Refused(bad_length(self.header.kind)));
        };
        out[start + 1..start + HEADER_BYTES].copy_from_slice(&length.to_be_bytes());
        self.passage.skip(HEADER_BYTES + old);
        self.passage.pass(self.body.len() - old);
        self.backend.sending_rest = self.header.body - self.body.len();
        Ok(())
    }

    /// Sends what must go ahead of the first message of a query.
    fn open(&mut self, now: Time) -> Result<(), Halt> {
        if !self.backend.expected.is_empty() || self.backend.unsynced {
            return Ok(());
        }
        self.client.since = now;
        if self.backend.status == TransactionStatus::Idle {
            self.client.transaction_since = now;
        }
        if self.client.is_native() || self.backend.status == TransactionStatus::Failed {
            return Ok(());
        }
        if self.backend.applied != self.client.desired {
            self.passage.cut(self.backend)?;
            self.backend.apply_settings(&self.client.desired, &mut self.passage.out);
        }
        if self.client.reads_sequences && self.backend.status == TransactionStatus::Idle {
            self.passage.cut(self.backend)?;
            self.backend.discard_sequences(&mut self.passage.out);
        }
        Ok(())
    }

    /// Deals with the message. `Ok(true)`: new sessions may start with other values from now on.
    fn message(&mut self) -> Result<bool, Halt> {
        match self.header.kind {
            frontend::QUERY => return self.query(),
            frontend::PARSE => self.parse()?,
            frontend::BIND => self.bind()?,
            frontend::DESCRIBE => self.describe()?,
            frontend::CLOSE => self.close()?,
            frontend::EXECUTE => {
                self.pass();
                self.backend.expect(Expect::Execute);
            }
            frontend::SYNC => {
                self.pass();
                // In the middle of a copy the server reads it and ignores it (trap 15).
                if !self.backend.copying_in {
                    self.backend.expect(Expect::Sync);
                }
            }
            frontend::FLUSH => self.pass(),
            frontend::FUNCTION_CALL => {
                self.pass();
                self.backend.expect(Expect::Call);
            }
            frontend::COPY_DATA => self.copy_input(false)?,
            _ => self.copy_input(true)?,
        }
        Ok(false)
    }

    fn copy_input(&mut self, ends: bool) -> Result<(), Halt> {
        if self.backend.expected.is_empty() && !self.backend.copying_in {
            // The server would read it and ignore it; a backend is not kept busy with it.
            self.passage.cut(self.backend)?;
            self.passage.skip(HEADER_BYTES + self.body.len());
            let rest = self.header.body - self.body.len();
            if rest > 0 {
                self.client.extra().discard = rest;
            }
            return Ok(());
        }
        self.pass();
        if ends {
            self.backend.copying_in = false;
        }
        let marker = Expect::CopyInput { ends };
        if self.backend.expected.front() != Some(&Expect::Query)
            && self.backend.expected.back() != Some(&marker)
            && !self.backend.ignoring
        {
            self.backend.expected.push_back(marker);
        }
        Ok(())
    }

    fn effects_of(&self, text: &[u8]) -> Effects {
        let findings = scan(text, self.client.scan_options());
        Effects::of(&findings, |name| self.backend.parameters.get(name).is_some())
    }

    fn query(&mut self) -> Result<bool, Halt> {
        let mut changes_start_values = false;
        if self.is_whole() {
            let Some((text, [])) = frame::take_string(self.body) else {
                self.malformed(Expect::Query);
                return Ok(false);
            };
            let effects = self.effects_of(text);
            if !effects.is_none() {
                if let Some(unusual) = &effects.unusual {
                    changes_start_values = unusual.changes_start_values;
                    if let Some(name) = &unusual.deallocates
                        && !self.client.is_native()
                        && self.client.statement(name).is_some()
                        && self.answer_deallocate(name)?
                    {
                        return Ok(false);
                    }
                }
                self.before(&effects)?;
            }
        } else {
            let mut scanner = Box::new(Scanner::new(self.client.scan_options()));
            scanner.feed(self.body);
            self.client.extra().scanner = Some(scanner);
        }
        self.pass();
        self.backend.expect(Expect::Query);
        self.backend.unnamed = None;
        self.client.unnamed = None;
        Ok(changes_start_values)
    }

    /// What a statement with effects needs ahead of it; and takes note of them.
    fn before(&mut self, effects: &Effects) -> Result<(), Halt> {
        if self.client.is_native() {
            if effects.spoils {
                self.backend.spoiled.get_or_insert("a client changed what cannot be undone");
            }
            return Ok(());
        }
        self.client.undergo(self.backend, effects);
        if effects.reads_sequences
            && self.backend.expected.is_empty()
            && !self.backend.unsynced
            && self.backend.status == TransactionStatus::Idle
        {
            self.passage.cut(self.backend)?;
            self.backend.discard_sequences(&mut self.passage.out);
        }
        Ok(())
    }

    /// Answers a DEALLOCATE of a statement that the server has under another name. `false` if it
    /// cannot be answered here, and the server shall say what is wrong.
    fn answer_deallocate(&mut self, name: &[u8]) -> Result<bool, Halt> {
        if !self.backend.expected.is_empty()
            || self.backend.unsynced
            || self.backend.status == TransactionStatus::Failed
        {
            return Ok(false);
        }
        if let Some(names) = &mut self.client.statements {
            names.remove(name);
        }
        let mut answer = Vec::with_capacity(32);
        build::command_complete(&mut answer, b"DEALLOCATE");
        build::ready_for_query(&mut answer, self.backend.status);
        self.client.reply(&answer);
        self.passage.cut(self.backend)?;
        self.passage.skip(HEADER_BYTES + self.body.len());
        Ok(true)
    }

    fn parse(&mut self) -> Result<(), Halt> {
        self.stats.client_parses.add(1);
        if self.client.is_native() || self.backend.shares_nothing() {
            self.pass();
            self.backend.expect(Expect::Parse { serial: 0 });
            if !self.client.is_native() {
                self.client.pins.insert(Part::ProtocolStatement);
                self.backend.spoiled.get_or_insert("statements are not shared");
            }
            return Ok(());
        }
        let malformed = Expect::Parse { serial: 0 };
        let Some((name, rest)) = frame::take_string(self.body) else {
            self.malformed(malformed);
            return Ok(());
        };
        if !self.is_whole() {
            self.parse_long(name);
            return Ok(());
        }
        let Some((text, types)) = frame::take_string(rest) else {
            self.malformed(malformed);
            return Ok(());
        };
        if !frame::take_u16(types)
            .is_some_and(|(count, types)| types.len() == usize::from(count) * 4)
        {
            self.malformed(malformed);
            return Ok(());
        }
        if name.is_empty() {
            let effects = self.effects_of(text);
            let unnamed = Arc::new(Unnamed {
                body: rest.into(),
                settings: self.client.desired.clone(),
                effects,
            });
            self.client.unnamed = Some(unnamed.clone());
            self.client.unnamed_serial = self.serial;
            self.backend.unnamed = Some(unnamed);
            self.pass();
            self.backend.expect(Expect::Parse { serial: self.serial });
            self.stats.server_parses.add(1);
            return Ok(());
        }
        if self.client.statement(name).is_some() {
            return self.refuse_parse(name);
        }
        let statement =
            self.backend
                .pool
                .clone()
                .statements
                .intern(rest, &self.client.desired, || self.effects_of(text));
        let named = ClientStatement { statement: statement.clone(), serial: self.serial };
        if self.client.name_statement(name, named, self.hash_key).is_err() {
            return Err(Halt::Refused(
                ClientError::fatal(
                    SqlState::CONFIGURATION_LIMIT_EXCEEDED,
                    format!(
                        "more than {} prepared statements in one session",
                        limits::CLIENT_STATEMENTS_MAX
                    ),
                )
                .hint("Close the statements that are no longer needed."),
            ));
        }
        let known = self.backend.status != TransactionStatus::Failed
            && self.backend.statements.touch(statement.id);
        self.passage.cut(self.backend)?;
        if known {
            self.passage.skip(self.header.total());
            self.backend.expect(Expect::ParseKnown { serial: self.serial });
        } else {
            self.backend.note_prepared(&statement, &mut self.passage.out);
            build::parse(&mut self.passage.out, &statement.name, rest);
            self.passage.skip(self.header.total());
            self.backend.expect(Expect::Parse { serial: self.serial });
            self.stats.server_parses.add(1);
        }
        Ok(())
    }

    /// A Parse too long to be kept: it goes to this backend alone, and pins the client.
    fn parse_long(&mut self, name: &[u8]) {
        self.client.pins.insert(if name.is_empty() {
            Part::UnnamedStatement
        } else {
            Part::ProtocolStatement
        });
        // Its text has not been seen whole: anything may be in it.
        self.backend.spoiled.get_or_insert("a statement too long to be looked at was prepared");
        if name.is_empty() {
            self.client.unnamed = None;
            self.backend.unnamed = None;
        }
        self.pass();
        self.backend.expect(Expect::Parse { serial: 0 });
        self.stats.server_parses.add(1);
    }

    /// The client names a statement that exists: the server is made to fail where it would have
    /// failed, and its error is replaced by the one that is due.
    fn refuse_parse(&mut self, name: &[u8]) -> Result<(), Halt> {
        let mut error = Vec::new();
        ClientError::error(
            SqlState::DUPLICATE_PREPARED_STATEMENT,
            format!("prepared statement \"{}\" already exists", String::from_utf8_lossy(name)),
        )
        .write(&mut error);
        self.passage.cut(self.backend)?;
        self.passage.skip(self.header.total());
        build::parse(&mut self.passage.out, b"hawser_refused", b"hawser_refused\0\0\0");
        if !self.backend.ignoring {
            self.backend.refusals.push_back(error.into());
        }
        self.backend.expect(Expect::ParseRefused);
        Ok(())
    }

    fn bind(&mut self) -> Result<(), Halt> {
        self.stats.binds.add(1);
        if self.client.is_native() {
            self.pass();
            self.backend.expect(Expect::Bind);
            return Ok(());
        }
        let names = frame::take_string(self.body)
            .and_then(|(portal, rest)| Some((portal, frame::take_string(rest)?.0)));
        let Some((portal, name)) = names else {
            self.malformed(Expect::Bind);
            return Ok(());
        };
        if name.is_empty() {
            self.bring_unnamed()?;
            self.pass();
            self.backend.expect(Expect::Bind);
            return Ok(());
        }
        let Some(named) = self.client.statement(name) else {
            // The server knows no such name either, and says so.
            self.pass();
            self.backend.expect(Expect::Bind);
            return Ok(());
        };
        let statement = named.statement.clone();
        let old = portal.len() + 1 + name.len() + 1;
        self.bring(&statement)?;
        if !statement.effects.is_none() {
            self.before(&statement.effects)?;
        }
        self.pass_with(old, |out| {
            build::string(out, portal);
            build::string(out, &statement.name);
        })?;
        self.backend.expect(Expect::Bind);
        Ok(())
    }

    /// Sees to it that the server has the statement.
    fn bring(&mut self, statement: &Arc<super::statement::Statement>) -> Result<(), Halt> {
        self.passage.cut(self.backend)?;
        if self.backend.prepare(statement, &mut self.passage.out) {
            self.stats.server_parses.add(1);
        }
        Ok(())
    }

    /// Sees to it that the server's unnamed statement is the client's, or none.
    fn bring_unnamed(&mut self) -> Result<(), Halt> {
        let same = match (&self.client.unnamed, &self.backend.unnamed) {
            (None, None) => true,
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => false,
        };
        let effects = self.client.unnamed.clone();
        if !same && !self.client.pins.contains(Part::UnnamedStatement) {
            self.passage.cut(self.backend)?;
            match &self.client.unnamed {
                Some(unnamed) => {
                    build::parse(&mut self.passage.out, b"", &unnamed.body);
                    self.backend.expect(Expect::MadeParse { statement: 0 });
                    self.stats.server_parses.add(1);
                }
                None => {
                    build::close_statement(&mut self.passage.out, b"");
                    self.backend.expect(Expect::Made);
                }
            }
            self.backend.unnamed = self.client.unnamed.clone();
        }
        if let Some(unnamed) = effects
            && !unnamed.effects.is_none()
        {
            self.before(&unnamed.effects)?;
        }
        Ok(())
    }

    fn describe(&mut self) -> Result<(), Halt> {
        let Some((what, name)) = target(self.body) else {
            self.malformed(Expect::DescribePortal);
            return Ok(());
        };
        if what != b'S' {
            self.pass();
            self.backend.expect(Expect::DescribePortal);
            return Ok(());
        }
        if !self.client.is_native() {
            if name.is_empty() {
                self.bring_unnamed()?;
            } else if let Some(named) = self.client.statement(name) {
                let statement = named.statement.clone();
                self.bring(&statement)?;
                self.pass_with(name.len() + 2, |out| {
                    out.push(b'S');
                    build::string(out, &statement.name);
                })?;
                self.backend.expect(Expect::DescribeStatement);
                return Ok(());
            }
        }
        self.pass();
        self.backend.expect(Expect::DescribeStatement);
        Ok(())
    }

    fn close(&mut self) -> Result<(), Halt> {
        let Some((what, name)) = target(self.body) else {
            self.malformed(Expect::Close);
            return Ok(());
        };
        if what == b'S' && !self.client.is_native() {
            let known =
                self.client.statements.as_mut().is_some_and(|names| names.remove(name).is_some());
            if known {
                self.passage.cut(self.backend)?;
                self.passage.skip(self.header.total());
                self.backend.expect(Expect::CloseKnown);
                return Ok(());
            }
            if name.is_empty() {
                self.client.unnamed = None;
                self.backend.unnamed = None;
            }
        }
        self.pass();
        self.backend.expect(Expect::Close);
        Ok(())
    }
}
