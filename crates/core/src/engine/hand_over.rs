//! Backends that users share: each is handed over to a client before anything of that client's is
//! sent to it.
//!
//! # Model
//! Such backends are logged in as the pooler's own role. `hawser.hand_over()` of the server's
//! extension makes the session another user's: rights, settings of ALTER ROLE, address. It is called
//! by a FunctionCall message, whose form is in extension/README.md, "The hand-over".
//! ```text
//!   lent ─► RESET ALL, if the user changes ─► hand-over ─► answered ─► the client's settings and messages
//!                                                └ refused: the client is told why, and leaves
//! ```
//! A client that logs in is handed over to before it is greeted, and so learns of the server's
//! refusal, and of the values that its session begins with, when it would without a pooler. Where it
//! would have to wait for a backend for that, it is greeted with the values that its user's sessions
//! began with before (or the pooler's own), and leaves the queue: its session begins with its first
//! query, when it is told what is different (ParameterStatus), or that it is refused.
//!
//! # Invariants
//! * nothing of a client's goes to a backend of such a pool unless the last hand-over there that was
//!   answered was to that very client, for its user: see [`Backend::hand_over_to`]
//! * the server has said itself, by `session_authorization`, whose session it is
//! * statements are shared by clients of one user only: the number of the values that a session
//!   began with ([`crate::pool::Basis`]) is another for each user
//! * whoever cannot be told apart is sent away
//!
//! # Why the answer is waited for
//! The extension ends the session where a hand-over fails, so that what stands after the message in
//! the same write would not run. But where the function is no longer there (DROP EXTENSION), or may
//! not be called, it is not the extension that fails: the server goes on with an ERROR, and would run
//! what follows as the client before. A round trip between here and the server is the price; it is
//! not paid where a client gets the backend that it had last.
//!
//! # Why RESET ALL
//! A client that has SET a setting to the value that it had already has changed nothing that is
//! reported, and yet that value would stay where the next user's own is another.

use std::hash::Hasher;
use std::sync::Arc;
use std::time::Duration;

use siphasher::sip::SipHasher24;

use super::backend::Backend;
use super::client::Client;
use super::from_client::Halt;
use super::host::Host;
use super::message::{ClientAbout, ClientState, PeerAddress, PoolMode, PoolRef};
use super::request_queue::Request;
use super::socket::{Mptcp, Socket};
use super::table::Engine;
use crate::ids::{ClientId, Slot};
use crate::pool::{Basis, Parameter, ServerParameters};
use crate::session::settings::{SettingsBuilder, is_custom};
use crate::time::Time;
use crate::wire::error::{ClientError, SqlState, field};
use crate::wire::{TransactionStatus, build, frontend};

/// The startup parameter that asks a server for its challenge.
pub const ASKING: &[u8] = b"hawser.hand_over";
/// The parameter in which it comes. Clients never see it.
pub const CHALLENGE: &[u8] = b"hawser.challenge";

const VERSION: u8 = 1;
const FLAG_USER: u8 = 1;
const FLAG_TLS: u8 = 2;
const FLAG_ALONE: u8 = 4;
const FLAG_TRANSPORT: u8 = 8;
/// What stands behind [`FLAG_TRANSPORT`].
const OVER_MPTCP: u8 = 1;
const FELL_BACK: u8 = 2;
/// The longest text in a message (NAMEDATALEN - 1).
const TEXT_BYTES_MAX: usize = 63;
/// How long after its turn a client's backend is looked for again.
const ON_THE_WAY: Duration = Duration::from_millis(100);
/// Settings that a server may report for one hand-over.
const REPORTED_MAX: usize = 100;

/// What it takes to hand a server connection over.
#[derive(Clone)]
pub struct HandOverKey {
    /// Made of the secret and the server's challenge.
    pub key: [u8; 16],
    /// The number of the function in this database.
    pub function: u32,
    /// The number of this process.
    pub pooler: u64,
    /// Messages that have been sent.
    pub sent: u64,
    /// Whether the extension takes what a client's transport is: one of an earlier version does not.
    pub takes_transport: bool,
}

impl std::fmt::Debug for HandOverKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("HandOverKey(..)")
    }
}

/// Appends a text of the message, as much of it as may be there.
fn text(out: &mut Vec<u8>, text: &str) {
    let text = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
    out.extend_from_slice(&(text.len() as u16).to_be_bytes());
    out.extend_from_slice(text.as_bytes());
}

impl HandOverKey {
    /// By what stands after a message the server knows that it is the pooler's.
    pub fn sign(&self, message: &[u8]) -> [u8; 8] {
        let mut hash = SipHasher24::new_with_key(&self.key);
        hash.write(message);
        hash.finish().to_le_bytes()
    }

    /// Appends the message that hands a session over to nobody: it is the pooler's own. Whoever knows
    /// no secret, or another one, is cut off for it.
    pub fn write_to_nobody(&mut self, out: &mut Vec<u8>) {
        self.write(FLAG_ALONE, 0, None, |_| {}, out);
    }

    fn write(
        &mut self,
        flags: u8,
        client: u32,
        peer: Option<&PeerAddress>,
        rest: impl FnOnce(&mut Vec<u8>),
        out: &mut Vec<u8>,
    ) {
        self.sent += 1;
        let mut message = Vec::with_capacity(128);
        message.extend_from_slice(&[VERSION, flags]);
        message.extend_from_slice(&self.sent.to_be_bytes());
        message.extend_from_slice(&self.pooler.to_be_bytes());
        message.extend_from_slice(&client.to_be_bytes());
        let port = peer.map_or(0, PeerAddress::port).to_be_bytes();
        let mut address = |family: u8, bytes: &[u8]| {
            message.push(family);
            message.extend_from_slice(&port);
            message.extend_from_slice(bytes);
        };
        match peer {
            None => address(0, &[]),
            Some(PeerAddress::Unix) => address(1, &[]),
            Some(PeerAddress::V4(peer)) => address(4, &peer.ip().octets()),
            Some(PeerAddress::V6(peer)) => address(6, &peer.ip().octets()),
        }
        rest(&mut message);
        let sign = self.sign(&message);
        message.extend_from_slice(&sign);
        build::message(out, frontend::FUNCTION_CALL, |out| {
            out.extend_from_slice(&self.function.to_be_bytes());
            // One argument, binary; the result likewise.
            out.extend_from_slice(&[0, 1, 0, 1, 0, 1]);
            out.extend_from_slice(&(message.len() as u32).to_be_bytes());
            out.extend_from_slice(&message);
            out.extend_from_slice(&[0, 1]);
        });
    }

    /// Appends the message that hands the session over to a client: as `user`, with nothing after it
    /// before the answer; or as who has logged in.
    pub(super) fn write_to(
        &mut self,
        process: u32,
        user: Option<&str>,
        about: &ClientAbout,
        mptcp: Option<Mptcp>,
        out: &mut Vec<u8>,
    ) {
        let tls = about.tls();
        let takes_transport = self.takes_transport;
        let flags = if user.is_some() { FLAG_USER | FLAG_ALONE } else { 0 };
        let flags = flags | if tls.is_empty() { 0 } else { FLAG_TLS };
        let flags = flags | if takes_transport { FLAG_TRANSPORT } else { 0 };
        let rest = |out: &mut Vec<u8>| {
            if let Some(user) = user {
                text(out, user);
            }
            if let Some((version, cipher)) = tls.split_once('/') {
                let bits: u16 = if cipher.contains("128") { 128 } else { 256 };
                out.extend_from_slice(&bits.to_be_bytes());
                text(out, &version.replace('_', "."));
                // As OpenSSL names those of TLS 1.3.
                text(out, &cipher.replace("TLS13_", "TLS_"));
                // Subject, serial number and issuer of a certificate are not kept.
                out.extend_from_slice(&[0; 6]);
            }
            if takes_transport {
                let kind = mptcp
                    .map_or(0, |mptcp| OVER_MPTCP | if mptcp.fell_back { FELL_BACK } else { 0 });
                out.extend_from_slice(&[kind, mptcp.map_or(0, |mptcp| mptcp.subflows)]);
                let token = mptcp.map_or(0, |mptcp| mptcp.token);
                out.extend_from_slice(&token.to_be_bytes());
            }
        };
        self.write(flags, process, Some(&about.peer), rest, out);
    }
}

/// A hand-over that is under way.
#[derive(Debug)]
struct UnderWay {
    client: ClientId,
    user: Box<str>,
    /// The function has come to its end.
    answered: bool,
    refused: Option<ClientError>,
    /// What the server has reported: the user's own values, where they differ from those before.
    reported: Vec<Parameter>,
}

/// Whose a backend is.
#[derive(Debug)]
pub(super) struct HandOver {
    key: HandOverKey,
    /// Nobody's, before the first.
    client: Option<ClientId>,
    /// The user; at first the role that has logged in.
    user: Box<str>,
    /// What the server says of it.
    authorization: Box<[u8]>,
    is_superuser: Box<[u8]>,
    under_way: Option<Box<UnderWay>>,
}

impl HandOver {
    pub(super) fn new(key: HandOverKey, login: &str, parameters: &ServerParameters) -> Self {
        let said = |name: &[u8]| parameters.get(name).unwrap_or_default().into();
        Self {
            key,
            client: None,
            user: login.into(),
            authorization: said(b"session_authorization"),
            is_superuser: said(b"is_superuser"),
            under_way: None,
        }
    }
}

/// The number of these own values of a session's.
pub(super) fn basis_of<S: Socket>(
    pool: &PoolRef<S>,
    hand_over: Option<&HandOver>,
    parameters: &Arc<ServerParameters>,
) -> Basis {
    match hand_over {
        Some(hand_over) => pool.basis_of_user(&hand_over.user, parameters),
        None => pool.basis_of(parameters),
    }
}

/// What has come of a hand-over.
pub(super) type Outcome = Result<(), ClientError>;

impl<S: Socket> Backend<S> {
    /// The role whose session it is.
    pub(super) fn role(&self) -> &str {
        self.hand_over.as_ref().map_or(&self.pool.user, |hand_over| &hand_over.user)
    }

    /// The number of these own values of the session's.
    pub(super) fn basis_of(&self, parameters: &Arc<ServerParameters>) -> Basis {
        basis_of(&self.pool, self.hand_over.as_deref(), parameters)
    }

    /// Whether the user is a superuser.
    pub(super) fn is_of_superuser(&self) -> bool {
        match &self.hand_over {
            Some(hand_over) => *hand_over.is_superuser == *b"on",
            None => self.parameters.get(b"is_superuser") == Some(b"on"),
        }
    }

    /// Whether it is being handed over.
    pub(super) fn is_handing_over(&self) -> bool {
        self.requests.back() == Some(Request::HandOver)
    }

    /// Whether it is this client's, as far as hand-overs make it that.
    pub(super) fn is_handed_to(&self, client: ClientId) -> bool {
        if !self.shared {
            return true;
        }
        let hand_over = self.hand_over.as_ref();
        hand_over.is_some_and(|hand_over| {
            hand_over.client == Some(client) && hand_over.under_way.is_none()
        })
    }

    /// Whether this is the number of the function that only the pooler calls.
    pub(super) fn is_hand_over(&self, function: u32) -> bool {
        self.hand_over.as_ref().is_some_and(|hand_over| hand_over.key.function == function)
            || self.client_identity.as_ref().is_some_and(|told| told.is_of(function))
    }

    /// Sees to it that the session is this client's. `true` if that is under way: nothing of the
    /// client's may be sent before the answer.
    pub(super) fn hand_over_to(
        &mut self,
        client: ClientId,
        process: u32,
        about: &ClientAbout,
        mptcp: Option<Mptcp>,
    ) -> Result<bool, Halt> {
        if self.is_handed_to(client) {
            return Ok(false);
        }
        if self.is_handing_over() || self.is_lifting() {
            return Ok(true);
        }
        if self.lift_alone()? {
            return Ok(true);
        }
        let at_rest = self.is_at_rest();
        let clean = self.has_own_settings_only();
        let Some(user) = about.user() else { return Err(Halt::Refused(is_the_poolers())) };
        let Some(hand_over) = self.hand_over.as_mut().filter(|_| at_rest) else {
            return Err(Halt::BackendLost("it could not be handed over to its client"));
        };
        let mut out = Vec::with_capacity(256);
        hand_over.key.write_to(process, Some(user), about, mptcp, &mut out);
        let under_way = UnderWay {
            client,
            user: user.into(),
            answered: false,
            refused: None,
            reported: Vec::new(),
        };
        let changes = *hand_over.user != *user;
        hand_over.under_way = Some(Box::new(under_way));
        if changes && !clean {
            let mut ahead = Vec::with_capacity(out.len() + 16);
            self.inject_query(b"RESET ALL", &mut ahead);
            ahead.append(&mut out);
            out = ahead;
            let mut left = SettingsBuilder::new();
            for (name, value) in self.applied.iter() {
                if is_custom(name) {
                    left.set(name, b""); // the name itself stays
                } else if matches!(name, b"role" | b"session_authorization") {
                    left.set(name, value);
                }
            }
            self.applied = left.build();
        }
        self.request(Request::HandOver);
        self.send(&out)?;
        Ok(true)
    }

    /// The server reports a setting while it is handed over.
    pub(super) fn take_own_value(&mut self, name: &[u8], value: &[u8]) -> Result<(), &'static str> {
        self.note_authorization(name, value);
        let under_way = self.hand_over.as_mut().and_then(|h| h.under_way.as_mut());
        let Some(under_way) = under_way else { return Ok(()) };
        if under_way.reported.len() >= REPORTED_MAX {
            return Err("the server reported too many settings of a user");
        }
        under_way.reported.push((name.into(), value.into()));
        Ok(())
    }

    /// The server says whose session it is.
    pub(super) fn note_authorization(&mut self, name: &[u8], value: &[u8]) {
        let Some(hand_over) = &mut self.hand_over else { return };
        match name {
            b"session_authorization" => hand_over.authorization = value.into(),
            b"is_superuser" => hand_over.is_superuser = value.into(),
            _ => {}
        }
    }

    /// The function has come to its end.
    pub(super) fn hand_over_answered(&mut self) {
        if let Some(under_way) = self.hand_over.as_mut().and_then(|h| h.under_way.as_mut()) {
            under_way.answered = true;
        }
    }

    /// The server refuses. What it does not refuse by the function's own words, it does because that
    /// is not what it was: then this connection is of no more use.
    pub(super) fn hand_over_refused(&mut self, body: &[u8]) {
        let words = |tag| field(body, tag).map(|text| String::from_utf8_lossy(text).into_owned());
        let code = field(body, b'C').and_then(|code| <[u8; 5]>::try_from(code).ok());
        let code = code.map_or(SqlState::INTERNAL_ERROR, SqlState);
        let expected = [
            SqlState::INVALID_AUTHORIZATION,
            SqlState::TOO_MANY_CONNECTIONS,
            SqlState::INSUFFICIENT_PRIVILEGE, // no CONNECT, a superuser
        ];
        if !expected.contains(&code) {
            self.spoiled.get_or_insert("it could not be handed over to a client");
        }
        let message = words(b'M').unwrap_or_else(|| "the server gave no reason".to_owned());
        let mut error = ClientError::fatal(code, message);
        (error.detail, error.hint, error.of_server) = (words(b'D'), words(b'H'), true);
        if let Some(under_way) = self.hand_over.as_mut().and_then(|h| h.under_way.as_mut()) {
            under_way.refused = Some(error);
        }
    }

    /// A hand-over has come to its end. `Err`: whose session it is cannot be told.
    pub(super) fn hand_over_ended(&mut self) -> Result<Outcome, &'static str> {
        const ODD: &str = "the server did not do what a hand-over asks for";
        let idle = self.status == TransactionStatus::Idle;
        let Some(hand_over) = &mut self.hand_over else { return Err(ODD) };
        let Some(under_way) = hand_over.under_way.take() else { return Err(ODD) };
        if let Some(error) = under_way.refused {
            return if idle { Ok(Err(error)) } else { Err(ODD) };
        }
        let user = under_way.user.as_bytes();
        // (Other names come in the session's encoding.)
        let is_users = !user.is_ascii() || *hand_over.authorization == *user;
        if !idle || !under_way.answered || !is_users {
            return Err(ODD);
        }
        (hand_over.user, hand_over.client) = (under_way.user, Some(under_way.client));
        let mut parameters = self.parameters.clone();
        for (name, value) in &under_way.reported {
            if !ServerParameters::is_fixed(name) && parameters.get(name) != Some(&**value) {
                Arc::make_mut(&mut parameters).set(name, value);
            }
        }
        self.take_parameters(parameters);
        // SET ROLE and SET SESSION AUTHORIZATION end with it.
        let mut applied = SettingsBuilder::from(&self.applied);
        applied.remove(b"role");
        applied.remove(b"session_authorization");
        self.applied = self.pool.interner().share(applied.build());
        self.begin_reports();
        if self.basis == Basis::UNKNOWN {
            return Ok(Err(too_many_users()));
        }
        Ok(Ok(()))
    }

    /// What the server has told its client at the login, if this is its session.
    fn greet_as_own(&self, client: &Client<S>, out: &mut Vec<u8>, told: &[Parameter]) {
        let hand_over = self.hand_over.as_ref();
        for (name, own) in &self.parameters.pairs {
            let said = hand_over.and_then(|hand_over| match &**name {
                b"session_authorization" => Some(&*hand_over.authorization),
                b"is_superuser" => Some(&*hand_over.is_superuser),
                _ => None,
            });
            let value = said.or_else(|| client.record.start.get(name)).unwrap_or(own);
            if !told.iter().any(|(known, before)| known == name && **before == *value) {
                build::parameter_status(out, name, value);
            }
        }
    }
}

/// Nobody works as the role by which users share backends.
fn is_the_poolers() -> ClientError {
    ClientError::fatal(
        SqlState::INVALID_AUTHORIZATION,
        "this user is the pooler's own, and not for clients",
    )
}

fn too_many_users() -> ClientError {
    ClientError::fatal(
        SqlState::CONFIGURATION_LIMIT_EXCEEDED,
        "too many users share one pool, or one user's settings have changed too often",
    )
    .hint("A restart of the pooler forgets those of the past.")
}

impl<S: Socket> Client<S> {
    /// Its session begins on this backend, which has been handed over to it: what it has not asked
    /// for has the values of its user. Returns what it is due if it has been greeted already.
    fn begin_on(&mut self, backend: &Backend<S>) -> Vec<u8> {
        self.basis = backend.basis;
        let mut start = SettingsBuilder::from(&self.record.start);
        for (name, own) in backend.parameters.settable() {
            if self.record.start.get(name) == Some(own) {
                start.remove(name);
            }
        }
        self.record.start = backend.pool.interner().share(start.build());
        self.desired = self.record.start.clone();
        let mut said = Vec::with_capacity(512);
        let told = self.pending_session.as_mut().and_then(|extra| extra.told_early.take());
        backend.greet_as_own(self, &mut said, told.as_deref().unwrap_or_default());
        if let Some(greeting) =
            self.pending_session.as_mut().and_then(|extra| extra.greeting.as_mut())
        {
            greeting.append(&mut said);
        }
        self.settle();
        said
    }

    /// What it is told of a session that it has not got yet. No superuser shares backends.
    fn tell_early(&mut self, values: &ServerParameters) {
        let user = self.record.about.user().unwrap_or_default().as_bytes();
        let start = &self.record.start;
        let told: Vec<Parameter> = values
            .pairs
            .iter()
            .map(|(name, own)| {
                let value = match &**name {
                    b"session_authorization" => user,
                    b"is_superuser" => b"off",
                    _ => start.get(name).unwrap_or(own),
                };
                (name.clone(), value.into())
            })
            .collect();
        let extra = self.pending_session();
        if let Some(greeting) = &mut extra.greeting {
            for (name, value) in &told {
                build::parameter_status(greeting, name, value);
            }
        }
        extra.told_early = Some(told);
    }

    /// Whether it has been greeted, and its session has not begun.
    pub(super) fn has_no_session_yet(&self) -> bool {
        self.pending_session.as_ref().is_some_and(|extra| extra.told_early.is_some())
    }
}

impl<S: Socket> Engine<S> {
    /// Sees to it that a client's backend is that client's. `true` if that is under way.
    pub(super) fn hand_over(&mut self, slot: Slot) -> Result<bool, Halt> {
        let (id, process) = (self.client_id(slot), self.process_of(slot));
        let Some(client) = self.clients.get_mut(slot) else { return Ok(false) };
        let Some(backend) = &mut client.backend else { return Ok(false) };
        if backend.is_handed_to(id) {
            return Ok(false);
        }
        let under_way =
            backend.hand_over_to(id, process, &client.record.about, client.socket.mptcp())?;
        client.held = under_way;
        Ok(under_way)
    }

    /// Begins the session of a client that is to be greeted, and has got a backend that users share.
    /// Whether it is one.
    pub(super) fn introduce<H: Host<S>>(&mut self, host: &mut H, slot: Slot, now: Time) -> bool {
        let Some(client) = self.clients.get(slot) else { return false };
        let shared = self.pool_of(client).pool.is_shared_by_users();
        if !shared || !client.is_to_be_greeted() || client.exclusive {
            return false;
        }
        match self.hand_over(slot) {
            Ok(true) => {}
            Ok(false) => self.handed_over(host, slot, Ok(()), now),
            Err(Halt::Refused(error)) => self.say_goodbye(host, slot, &error, now),
            Err(Halt::BackendLost(reason)) => self.backend_lost(slot, reason),
            Err(_) => self.backend_failed(host, slot, "it could not be handed over", now),
        }
        true
    }

    /// Whether a client waits for nothing but its greeting, which may do without its session. (In session
    /// mode, that tells the server's own process id.)
    pub(super) fn may_be_greeted_early(&self, client: &Client<S>) -> bool {
        client.is_to_be_greeted()
            && client.mode != PoolMode::Session
            && self.pool_of(client).pool.is_shared_by_users()
            && self.probable_values(client).is_some()
    }

    fn probable_values(&self, client: &Client<S>) -> Option<Arc<ServerParameters>> {
        let user = client.record.about.user().unwrap_or_default();
        self.pool_of(client).pool.probable_values_of_user(user)
    }

    /// Greets a client whose turn to get a backend has not come.
    pub(super) fn greet_early<H: Host<S>>(&mut self, host: &mut H, slot: Slot, now: Time) {
        let (id, process) = (self.client_id(slot), self.process_of(slot));
        let values = self.clients.get(slot).and_then(|client| self.probable_values(client));
        let Some(client) = self.clients.get_mut(slot) else { return };
        let pool = &self.pools[client.pool as usize].pool;
        let Some(values) = values.filter(|_| pool.lock().forget_waiter(id, client.since)) else {
            // Its backend is on the way.
            self.set_deadline(slot, Some(now.after(ON_THE_WAY)));
            return;
        };
        client.tell_early(&values);
        client.state = ClientState::Idle;
        client.since = now;
        self.greet(host, slot, process, now);
        self.rearm(slot, now);
        if !self.resume_later(slot) {
            self.drain_if_idle(host, slot, now);
        }
    }

    /// A hand-over to this client has come to its end.
    pub(super) fn handed_over<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        outcome: Outcome,
        now: Time,
    ) {
        if let Err(error) = outcome {
            self.say_goodbye(host, slot, &error, now);
            return;
        }
        let process = self.process_of(slot);
        let Some(client) = self.clients.get_mut(slot) else { return };
        let Some(backend) = client.backend.take() else { return };
        client.held = false;
        let begins = client.is_to_be_greeted();
        let mut said = Vec::new();
        if begins || client.has_no_session_yet() {
            said = client.begin_on(&backend);
        }
        client.begin_with(&backend);
        client.backend = Some(backend);
        let mode = client.mode;
        match mode {
            _ if !begins => self.answer(host, slot, &said, &[], now), // before its first answer
            PoolMode::Session => self.greet_late(host, slot, now),
            _ => self.greet(host, slot, process, now),
        }
        if begins {
            self.rearm(slot, now);
        }
        if !self.resume_later(slot) {
            if self.clients.get(slot).is_some_and(|client| !client.held) {
                self.give_back_if_unused(host, slot, now);
            }
            self.drain_if_idle(host, slot, now);
        }
    }
}
