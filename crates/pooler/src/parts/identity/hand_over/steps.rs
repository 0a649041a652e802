//! Handing a server connection over to its next user.

use std::sync::Arc;

use crate::ids::{ClientId, Slot};
use crate::parts::identity::hand_over::{ON_THE_WAY, Outcome, REPORTED_MAX, UnderWay};
use crate::parts::start_values::basis::Basis;
use crate::parts::start_values::parameters::{Parameter, ServerParameters};
use crate::relay::backend::Backend;
use crate::relay::client::Client;
use crate::relay::client_info::{ClientAbout, PoolMode};
use crate::relay::halt::Halt;
use crate::relay::host::Host;
use crate::relay::request_queue::Request;
use crate::relay::socket::{Mptcp, Socket};
use crate::relay::table::Engine;
use crate::session::settings::{SettingsBuilder, is_custom};
use crate::time::Time;
use crate::wire::error::{ClientError, SqlState, field};
use crate::wire::{TransactionStatus, build};

impl<S: Socket> Backend<S> {
    /// The role whose session it is.
    pub(crate) fn role(&self) -> &str {
        self.owner.hand_over().map_or(&self.pool.user, |hand_over| &hand_over.user)
    }

    /// Whether the user is a superuser, whatever role is set. No superuser shares server connections.
    pub(crate) fn is_of_superuser(&self) -> bool {
        let at_login =
            |parameters: Arc<ServerParameters>| parameters.get(b"is_superuser") == Some(&b"on"[..]);
        self.owner.hand_over().is_none() && self.pool.parameters().is_some_and(at_login)
    }

    /// Whether it is being handed over.
    pub(crate) fn is_handing_over(&self) -> bool {
        self.requests.back() == Some(Request::HandOver)
    }

    /// Whether it has been handed over to this client, or needs no hand-over.
    pub(crate) fn is_handed_to(&self, client: ClientId) -> bool {
        if !self.owner.is_shared() {
            return true;
        }
        let hand_over = self.owner.hand_over();
        hand_over.is_some_and(|hand_over| {
            hand_over.client == Some(client) && hand_over.under_way.is_none()
        })
    }

    /// Whether this is the oid of the function that only the pooler calls.
    pub(crate) fn is_hand_over(&self, function: u32) -> bool {
        self.owner.hand_over().is_some_and(|hand_over| hand_over.key.function == function)
            || self.owner.client_identity().is_some_and(|identity| identity.is_of(function))
    }

    /// Ensures that the session is this client's. `true` if the hand-over is in flight: no message
    /// of the client's may be sent before the answer.
    pub(crate) fn hand_over_to(
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
        let Some(hand_over) = self.owner.hand_over_mut().filter(|_| at_rest) else {
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
            for (name, value) in self.session.applied.iter() {
                if is_custom(name) {
                    left.set(name, b""); // the name itself stays
                } else if matches!(name, b"role" | b"session_authorization") {
                    left.set(name, value);
                }
            }
            self.session.applied = left.build();
        }
        self.request(Request::HandOver);
        self.send(&out)?;
        Ok(true)
    }

    /// The server reports a setting while it is handed over.
    pub(crate) fn take_own_value(&mut self, name: &[u8], value: &[u8]) -> Result<(), &'static str> {
        self.note_authorization(name, value);
        let under_way = self.owner.hand_over_mut().and_then(|h| h.under_way.as_mut());
        let Some(under_way) = under_way else { return Ok(()) };
        if under_way.reported.len() >= REPORTED_MAX {
            return Err("the server reported too many settings of a user");
        }
        under_way.reported.push((name.into(), value.into()));
        Ok(())
    }

    /// The server reports whose session it is.
    pub(crate) fn note_authorization(&mut self, name: &[u8], value: &[u8]) {
        let Some(hand_over) = self.owner.hand_over_mut() else { return };
        match name {
            b"session_authorization" => hand_over.authorization = value.into(),
            b"is_superuser" => hand_over.is_superuser = value.into(),
            _ => {}
        }
    }

    /// The function has ended.
    pub(crate) fn hand_over_answered(&mut self) {
        if let Some(under_way) = self.owner.hand_over_mut().and_then(|h| h.under_way.as_mut()) {
            under_way.answered = true;
        }
    }

    /// The server refuses. An error that is not the function's own means that the function has
    /// changed: then this connection cannot be used any more.
    pub(crate) fn hand_over_refused(&mut self, body: &[u8]) {
        let words = |tag| field(body, tag).map(|text| String::from_utf8_lossy(text).into_owned());
        let code = field(body, b'C').and_then(|code| <[u8; 5]>::try_from(code).ok());
        let code = code.map_or(SqlState::INTERNAL_ERROR, SqlState);
        let expected = [
            SqlState::INVALID_AUTHORIZATION,
            SqlState::TOO_MANY_CONNECTIONS,
            SqlState::INSUFFICIENT_PRIVILEGE, // no CONNECT, a superuser
        ];
        if !expected.contains(&code) {
            self.lending.spoil("it could not be handed over to a client");
        }
        let message = words(b'M').unwrap_or_else(|| "the server gave no reason".to_owned());
        let mut error = ClientError::fatal(code, message);
        (error.detail, error.hint, error.of_server) = (words(b'D'), words(b'H'), true);
        if let Some(under_way) = self.owner.hand_over_mut().and_then(|h| h.under_way.as_mut()) {
            under_way.refused = Some(error);
        }
    }

    /// A hand-over has ended. `Err`: it is not known whose session it is.
    pub(crate) fn hand_over_ended(&mut self) -> Result<Outcome, &'static str> {
        const ODD: &str = "the server did not do what a hand-over asks for";
        let idle = self.from_server.status() == TransactionStatus::Idle;
        let Some(hand_over) = self.owner.hand_over_mut() else { return Err(ODD) };
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
        let mut parameters = self.session.own.parameters.clone();
        for (name, value) in &under_way.reported {
            if !ServerParameters::is_fixed(name) && parameters.get(name) != Some(&**value) {
                Arc::make_mut(&mut parameters).set(name, value);
            }
        }
        self.take_parameters(parameters);
        // SET ROLE and SET SESSION AUTHORIZATION end with it.
        let mut applied = SettingsBuilder::from(&self.session.applied);
        applied.remove(b"role");
        applied.remove(b"session_authorization");
        self.session.applied = self.pool.interner().share(applied.build());
        self.begin_reports();
        if self.session.own.basis == Basis::UNKNOWN {
            return Ok(Err(too_many_users()));
        }
        Ok(Ok(()))
    }

    /// Appends what the server has reported to its client at the login, if this is its session.
    /// `sent`: what the client has already got.
    fn greet_as_own(&self, client: &Client<S>, out: &mut Vec<u8>, sent: &[Parameter]) {
        let hand_over = self.owner.hand_over();
        for (name, own) in &self.session.own.parameters.pairs {
            let said = hand_over.and_then(|hand_over| match &**name {
                b"session_authorization" => Some(&*hand_over.authorization),
                b"is_superuser" => Some(&*hand_over.is_superuser),
                _ => None,
            });
            let value = said.or_else(|| client.record.start.get(name)).unwrap_or(own);
            if !sent.iter().any(|(known, before)| known == name && **before == *value) {
                build::parameter_status(out, name, value);
            }
        }
    }
}

/// No client works as the role by which users share backends.
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
    /// The client's session begins on this backend, which has been handed over to it: settings that
    /// it has not asked for have its user's values. Returns what the client is due if it has been
    /// greeted already.
    fn begin_on(&mut self, backend: &Backend<S>) -> Vec<u8> {
        self.session.basis = backend.session.own.basis;
        let mut start = SettingsBuilder::from(&self.record.start);
        for (name, own) in backend.session.own.parameters.settable() {
            if self.record.start.get(name) == Some(own) {
                start.remove(name);
            }
        }
        self.record.start = backend.pool.interner().share(start.build());
        self.session.desired = self.record.start.clone();
        let mut said = Vec::with_capacity(512);
        let sent = self.pending_session.as_mut().and_then(|extra| extra.reported_early.take());
        backend.greet_as_own(self, &mut said, sent.as_deref().unwrap_or_default());
        if let Some(greeting) =
            self.pending_session.as_mut().and_then(|extra| extra.greeting.as_mut())
        {
            greeting.append(&mut said);
        }
        self.settle();
        said
    }

    /// Reports the values of a session that the client has not got yet. No superuser shares
    /// backends.
    fn report_early(&mut self, values: &ServerParameters) {
        let user = self.record.about.user().unwrap_or_default().as_bytes();
        let start = &self.record.start;
        let sent: Vec<Parameter> = values
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
            for (name, value) in &sent {
                build::parameter_status(greeting, name, value);
            }
        }
        extra.reported_early = Some(sent);
    }

    /// Whether it has been greeted before its session has begun.
    pub(crate) fn has_no_session_yet(&self) -> bool {
        self.pending_session.as_ref().is_some_and(|extra| extra.reported_early.is_some())
    }
}

impl<S: Socket> Engine<S> {
    /// Ensures that a client's backend has been handed over to it. `true` if that is in flight.
    pub(crate) fn hand_over(&mut self, slot: Slot) -> Result<bool, Halt> {
        let (id, process) = (self.client_id(slot), self.process_of(slot));
        let Some(client) = self.clients.get_mut(slot) else { return Ok(false) };
        let Some(backend) = &mut client.backend else { return Ok(false) };
        if backend.is_handed_to(id) {
            return Ok(false);
        }
        let under_way =
            backend.hand_over_to(id, process, &client.record.about, client.socket.mptcp())?;
        client.serving.held = under_way;
        Ok(under_way)
    }

    /// Begins the session of a client that is to be greeted, and has got a backend that users
    /// share. Returns whether it is such a client.
    pub(crate) fn introduce<H: Host<S>>(&mut self, host: &mut H, slot: Slot, now: Time) -> bool {
        let Some(client) = self.clients.get(slot) else { return false };
        let shared = self.pool_of(client).pool.is_shared_by_users();
        if !shared || !client.is_to_be_greeted() || client.serving.is_exclusive() {
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

    /// Whether a client waits only for its greeting, and can be greeted without its session. (In
    /// session mode the greeting has the server's own process id.)
    pub(crate) fn may_be_greeted_early(&self, client: &Client<S>) -> bool {
        client.is_to_be_greeted()
            && client.serving.mode != PoolMode::Session
            && self.pool_of(client).pool.is_shared_by_users()
            && self.probable_values(client).is_some()
    }

    fn probable_values(&self, client: &Client<S>) -> Option<Arc<ServerParameters>> {
        let user = client.record.about.user().unwrap_or_default();
        self.pool_of(client).pool.probable_values_of_user(user)
    }

    /// Greets a client before it has got a backend.
    pub(crate) fn greet_early<H: Host<S>>(&mut self, host: &mut H, slot: Slot, now: Time) {
        let (id, process) = (self.client_id(slot), self.process_of(slot));
        let values = self.clients.get(slot).and_then(|client| self.probable_values(client));
        let Some(client) = self.clients.get_mut(slot) else { return };
        let pool = &self.pools[client.pool as usize].pool;
        let Some(values) = values.filter(|_| pool.lock().forget_waiter(id, client.times.since()))
        else {
            // Its backend is on the way.
            self.set_deadline(slot, Some(now.after(ON_THE_WAY)));
            return;
        };
        client.report_early(&values);
        client.rest(now);
        self.greet(host, slot, process, now);
        self.rearm(slot, now);
        if !self.resume_later(slot) {
            self.drain_if_idle(host, slot, now);
        }
    }

    /// A hand-over to this client has ended.
    pub(crate) fn handed_over<H: Host<S>>(
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
        client.serving.held = false;
        let begins = client.is_to_be_greeted();
        let mut said = Vec::new();
        if begins || client.has_no_session_yet() {
            said = client.begin_on(&backend);
        }
        client.begin_with(&backend);
        client.backend = Some(backend);
        let mode = client.serving.mode;
        match mode {
            _ if !begins => self.say(host, slot, &said, now), // before its first answer
            PoolMode::Session => self.greet_late(host, slot, now),
            _ => self.greet(host, slot, process, now),
        }
        if begins {
            self.rearm(slot, now);
        }
        if !self.resume_later(slot) {
            if self.clients.get(slot).is_some_and(|client| !client.serving.held) {
                self.give_back_if_unused(host, slot, now);
            }
            self.drain_if_idle(host, slot, now);
        }
    }
}
