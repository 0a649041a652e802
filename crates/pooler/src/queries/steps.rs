//! Where the engine counts: what is sent gets its statement, and what is answered is counted for it.

use std::hash::BuildHasher;

use crate::parts::statements::shared::Statement;
use crate::queries::counting::Tracker;
use crate::queries::table::{Owner, Queries, QueryRef};
use crate::relay::backend::{Backend, PoolRef};
use crate::relay::client::Client;
use crate::relay::from_client::client_message::ClientMessage;
use crate::relay::from_server::Relay;
use crate::relay::socket::Socket;
use crate::time::Time;
use crate::wire::frame;

impl Tracker<'_> {
    #[inline]
    fn owner<'c, S: Socket>(&self, client: &'c Client<S>, pool: &'c PoolRef<S>) -> Owner<'c> {
        let own = if pool.is_shared_by_users() { client.record.about.user() } else { None };
        let id = u64::from(pool.id.0);
        Owner {
            key: own.map_or(id, |user| self.hash_key.hash_one((id, user))),
            database: &pool.database,
            user: own.unwrap_or(&pool.user),
            keeps_example: self.tracking.keeps_examples,
        }
    }

    /// The statement of a client's text.
    #[inline]
    pub(crate) fn of_text<S: Socket>(
        &mut self,
        client: &Client<S>,
        pool: &PoolRef<S>,
        text: &[u8],
    ) -> QueryRef {
        let owner = self.owner(client, pool);
        self.queries.find(self.known.digest(text), &owner, text, self.now)
    }

    /// The statement of a client that it has prepared, and shares.
    #[inline]
    pub(crate) fn of_statement<S: Socket>(
        &mut self,
        client: &Client<S>,
        pool: &PoolRef<S>,
        statement: &Statement,
    ) -> QueryRef {
        let owner = self.owner(client, pool);
        self.queries.find(statement.digest(), &owner, statement.text(), self.now)
    }
}

/// What is sent by the full lane.
impl<S: Socket> ClientMessage<'_, '_, S> {
    fn track(
        &mut self,
        find: impl FnOnce(&mut Tracker<'_>, &Client<S>, &Backend<S>) -> QueryRef,
    ) -> QueryRef {
        let mut tracker = Tracker {
            queries: &mut *self.queries,
            known: &mut *self.known,
            tracking: self.tracking,
            hash_key: self.hash_key,
            now: self.now,
        };
        find(&mut tracker, self.client, self.backend)
    }

    /// A Query has been sent.
    pub(crate) fn count_query(&mut self) {
        if !self.tracking.is_on {
            return;
        }
        let text = frame::take_string(self.body).map_or(self.body, |(text, _)| text);
        let query =
            self.track(|tracker, client, backend| tracker.of_text(client, &backend.pool, text));
        self.backend.requests.count_last(query);
    }

    /// A Parse has been sent, or answered here.
    pub(crate) fn count_parse(&mut self) {
        let Some((name, rest)) = frame::take_string(self.body).filter(|_| self.tracking.is_on)
        else {
            return;
        };
        let is_known = match name.is_empty() {
            true => self.unnamed().is_some(),
            false => self.client.statement(name).is_some(),
        };
        if self.client.is_session_mode() || !is_known {
            let text = frame::take_string(rest).map_or(rest, |(text, _)| text);
            let query =
                self.track(|tracker, client, backend| tracker.of_text(client, &backend.pool, text));
            self.backend.counting.name_statement(name, query, self.hash_key);
        }
    }

    /// A Bind has been sent.
    pub(crate) fn count_bind(&mut self) {
        let names = frame::take_string(self.body)
            .and_then(|(portal, rest)| Some((portal, frame::take_string(rest)?.0)));
        let Some((portal, name)) = names.filter(|_| self.tracking.is_on) else { return };
        let query = self.track(|tracker, client, backend| {
            let shares = !client.is_session_mode();
            if let Some(named) = client.statement(name).filter(|_| shares) {
                return tracker.of_statement(client, &backend.pool, &named.statement);
            }
            match backend.unnamed_of(client).filter(|_| shares && name.is_empty()) {
                Some(unnamed) => tracker.of_text(client, &backend.pool, unnamed.text()),
                None => backend.counting.statement(name),
            }
        });
        self.backend.counting.bind(portal, query, self.hash_key);
    }

    /// An Execute has been sent.
    pub(crate) fn count_execute(&mut self) {
        if !self.tracking.is_on {
            return;
        }
        let portal = frame::take_string(self.body).map_or(&b""[..], |(portal, _)| portal);
        let query = self.backend.counting.bound(portal);
        self.backend.requests.count_last(query);
    }
}

/// What is answered.
impl<S: Socket> Relay<'_, S> {
    /// What is counted as this has been answered.
    #[inline]
    pub(crate) fn query_ended(&mut self, query: Option<QueryRef>, failed: bool) {
        let Some(query) = query else { return };
        let client = self.client.as_deref();
        let since = client.map_or(Time::ZERO, |client| client.times.since());
        let execution = self.backend.counting.take(since, failed, self.now);
        let peer = || client.map(|client| client.record.about.peer.clone());
        self.queries.count(query, &execution, peer, self.now);
    }

    /// The server has refused the first request, or its query.
    pub(crate) fn query_failed(&mut self) {
        let failing = self.backend.requests.take_failing();
        self.query_ended(failing, true);
    }
}

impl Queries {
    /// A server connection has ended: what it owed first has failed.
    pub(crate) fn count_lost<S: Socket>(&mut self, backend: &mut Backend<S>, now: Time) {
        if let Some(query) = backend.requests.take_failing() {
            let execution = backend.counting.take(Time::ZERO, true, now);
            self.count(query, &execution, || None, now);
        }
    }
}
