//! How a client's messages change its unnamed statement.

use std::sync::Arc;

use crate::parts::statements::shared::Unnamed;
use crate::parts::statements::unnamed::{InFlight, Parsed};
use crate::relay::backend::Backend;
use crate::relay::client::Client;
use crate::relay::request_queue::{Change, Request};
use crate::relay::socket::Socket;
use crate::session::part::Part;

impl<S: Socket> Backend<S> {
    /// The client's unnamed statement, for a message that is sent now.
    #[inline]
    pub(crate) fn unnamed_of<'a>(&'a self, client: &'a Client<S>) -> Option<&'a Arc<Unnamed>> {
        self.prepared.unnamed.of_client(client.prepared.unnamed.as_ref())
    }

    /// The client parses its unnamed statement. Returns the change for the entry of that Parse.
    pub(crate) fn give_unnamed(
        &mut self,
        client: &mut Client<S>,
        statement: Arc<Unnamed>,
    ) -> Option<Change> {
        if self.requests.is_skipping_to_sync() {
            return None; // the server ignores it
        }
        let pipeline = self.requests.pipeline();
        let parsed = Some(Parsed { pipeline, after_setter: self.requests.is_after_setter() });
        let unnamed = &mut self.prepared.unnamed;
        unnamed.statement = Some(statement.clone());
        unnamed.since = pipeline;
        if self.requests.is_empty() {
            client.prepared.unnamed = Some(statement);
            unnamed.parsed = parsed;
            return None;
        }
        unnamed.in_flight.push_back(InFlight { makes: Some(statement), parsed, native: false });
        Some(Change::Unnamed)
    }

    /// The next message removes the client's unnamed statement.
    pub(crate) fn displace_unnamed(&mut self, client: &mut Client<S>) {
        self.displace(client, false);
    }

    /// The same, by a Parse of one that only the server knows from then on: the client keeps its
    /// backend.
    pub(crate) fn displace_unnamed_natively(&mut self, client: &mut Client<S>) {
        if self.requests.is_skipping_to_sync() {
            return; // the server ignores it
        }
        if !self.requests.is_empty() {
            self.prepared.unnamed.pins_in_flight |=
                !client.session.pins.contains(Part::UnnamedStatement);
        }
        self.displace(client, true);
        client.session.pins.insert(Part::UnnamedStatement);
        self.prepared.unnamed.closed(self.requests.pipeline());
    }

    /// A pipeline that has ended has changed settings: statements that may have been parsed after
    /// that are known under the settings in force.
    pub(crate) fn restate_unnamed_after(&mut self, client: &mut Client<S>, ended: u64) {
        let mut unnamed = std::mem::take(&mut self.prepared.unnamed);
        unnamed.restate_after(&mut client.prepared.unnamed, ended, |before| {
            let effects = self.effects_of_body(&before.body, &self.session.applied);
            before.under(self.session.applied.clone(), effects)
        });
        self.prepared.unnamed = unnamed;
    }

    /// `native`: by one that only the server knows. (An error before that leaves the server's
    /// current one, which may be another client's, so it is a change even if the client has none.)
    fn displace(&mut self, client: &mut Client<S>, native: bool) {
        if self.requests.is_skipping_to_sync() {
            return;
        }
        if self.requests.is_empty() {
            client.prepared.unnamed = None;
            return;
        }
        let in_flight = &mut self.prepared.unnamed.in_flight;
        if native || client.prepared.unnamed.is_some() || !in_flight.is_empty() {
            in_flight.push_back(InFlight { makes: None, parsed: None, native });
            self.request_with(Request::Unnaming, Some(Change::Unnamed));
        }
    }
}
