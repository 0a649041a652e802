//! `pg_listening_channels()` shows a client its own channels.
//!
//! # Model
//! ```text
//!   sent before it, in one write   the client's transaction                  after it
//!   LISTEN a; LISTEN b         ──► SELECT pg_listening_channels() ... COMMIT ──► UNLISTEN *
//! ```
//! The function returns what its own server process listens on, as of the last COMMIT there
//! (`listenChannels`, async.c). Notifications on the backend are ignored meanwhile: they come on
//! the listening connection, too.
//!
//! Within a transaction that has begun without them, no command adds the channels: a LISTEN there
//! takes effect at COMMIT, and would outlast it. So they are written into the text of a client that
//! asks there for the first time, in place of the call (see [`crate::session::calls`]):
//! ```text
//!   SELECT pg_listening_channels()
//!   SELECT pg_catalog.unnest(ARRAY['a','b']::pg_catalog.text[]) AS pg_listening_channels
//! ```
//! In place of a prepared statement, one of such a text is bound. From then on the LISTENs precede
//! each of the client's transactions, up to [`CHANNELS_A_QUERY_MAX`] channels.
//!
//! # Limits
//! Not written: in place of a call that may mean something else, in what EXECUTE and functions run,
//! and where a COMMIT in the same text or pipeline may have changed the channels. Nothing is sent
//! to a standby, which cannot listen, nor names that are not ASCII in another `client_encoding`,
//! nor LISTEN where a query would remove an unnamed statement.

use super::Listening;
use crate::engine::backend::Backend;
use crate::engine::client::Client;
use crate::engine::effects::Effects;
use crate::engine::restore::Replacement;
use crate::engine::socket::Socket;
use crate::listen::hub::CHANNELS_A_QUERY_MAX;
use crate::session::calls;
use crate::session::part::Part;
use crate::session::scan::{ScanOptions, Verb, scan};
use crate::session::settings::quoting::write_string;
use crate::wire::TransactionStatus;

/// Bytes that are written into one text: many channels and many calls would multiply.
const WRITTEN_BYTES_MAX: usize = 256 * 1024;

/// The start of the first statement in a text that may end the current transaction; the text's end
/// if there is none. `None` if that is not known.
fn end_of_transaction(text: &[u8], options: ScanOptions) -> Option<usize> {
    let found = scan(text, options);
    let ends = |verb: &Verb| {
        matches!(
            verb,
            Verb::Commit { .. }
                | Verb::Rollback { .. }
                | Verb::PrepareTransaction
                | Verb::Execute(_)
        )
    };
    let first = found.statements().find(|statement| ends(&statement.verb));
    let all = usize::try_from(found.count()).is_ok_and(|all| all == found.statements().count());
    let known = all && !found.unsure;
    known.then(|| first.map_or(text.len(), |statement| statement.range.start))
}

impl<S: Socket> Client<S> {
    /// A statement may look at what it listens on. Returns whether its backend does not show that
    /// yet.
    pub(in crate::engine) fn looks_at_channels(&mut self) -> bool {
        let Some(listening) = self.listening().filter(|l| !l.channels.is_empty()) else {
            return false;
        };
        listening.looks = true;
        !listening.shown
    }

    /// Whether it has looked at what it listens on before.
    #[inline]
    pub(in crate::engine) fn has_looked_at_channels(&self) -> bool {
        let listening = self.pending_session.as_ref().and_then(|extra| extra.listening.as_ref());
        listening.is_some_and(|listening| {
            listening.looks && !listening.shown && listening.channels.len() <= CHANNELS_A_QUERY_MAX
        })
    }

    /// Appends the commands that make its backend listen on its channels, if that is possible now.
    pub(in crate::engine) fn show_channels(&mut self, backend: &mut Backend<S>, out: &mut Vec<u8>) {
        let at_rest = backend.from_server.status() == TransactionStatus::Idle
            && !backend.requests.is_in_pipeline()
            && !backend.requests.owes_client();
        let standby = backend.session.parameters().get(b"in_hot_standby") == Some(b"on");
        let by_name = [Part::UnnamedStatement, Part::ProtocolStatement]
            .iter()
            .any(|part| self.session.pins().contains(*part));
        let other_encoding = self.session.desired().get(b"client_encoding").is_some();
        let Some(Listening { channels, shown, .. }) = self.listening() else { return };
        let unreadable = other_encoding && channels.iter().any(|name| !name.as_bytes().is_ascii());
        if *shown || channels.is_empty() || !at_rest || standby || by_name || unreadable {
            return;
        }
        let mut text = Vec::new();
        for channel in channels.iter() {
            text.extend_from_slice(b"LISTEN ");
            channel.write_quoted(&mut text);
            text.push(b';');
        }
        *shown = true;
        backend.inject_query(&text, out);
    }

    /// It executes something in a pipeline.
    pub(in crate::engine) fn note_executing(&mut self, executes: bool) {
        if let Some(listening) = self.listening() {
            listening.executed = executes;
        }
    }

    /// A statement looks at what it listens on, and its backend does not show that. Returns its
    /// channels, and up to where in the text they are certainly in force when the statement runs.
    fn channels_to_write(
        &self,
        backend: &Backend<S>,
        effects: &Effects,
        text: &[u8],
        options: ScanOptions,
    ) -> Option<(&Listening, usize)> {
        let listening = self.pending_session.as_ref()?.listening.as_deref()?;
        if listening.shown
            || listening.channels.is_empty()
            || self.session.pins().contains(Part::Listen)
        {
            return None;
        }
        let same_transaction = backend.from_server.status() == TransactionStatus::InTransaction
            && !backend.requests.owes_client_ready()
            && !listening.executed;
        let changes = effects.listens() || effects.unusual.as_ref().is_some_and(|u| u.unlistens());
        let still_in_force = listening.pending.is_empty() && listening.left.is_empty() && !changes;
        let other_encoding = self.session.desired().get(b"client_encoding").is_some();
        let readable =
            !other_encoding || listening.channels.iter().all(|c| c.as_bytes().is_ascii());
        let end = match (still_in_force, same_transaction) {
            (true, _) => text.len(),
            (false, true) => end_of_transaction(text, options)?,
            (false, false) => return None,
        };
        readable.then_some((listening, end))
    }

    /// What is written into a text with these effects in place of `pg_listening_channels()`.
    pub(in crate::engine) fn channels_written(
        &self,
        backend: &Backend<S>,
        text: &[u8],
        effects: &Effects,
        options: ScanOptions,
    ) -> Vec<Replacement> {
        if !effects.pins.contains(Part::SessionCatalog) {
            return Vec::new();
        }
        let Some((listening, end)) = self.channels_to_write(backend, effects, text, options) else {
            return Vec::new();
        };
        let mut calls = calls::of_channels(text, options).unwrap_or_default();
        calls.retain(|call| call.range.end <= end);
        if calls.is_empty() {
            return Vec::new();
        }
        let mut list = b"pg_catalog.unnest(ARRAY[".to_vec();
        for channel in &listening.channels {
            write_string(channel.as_bytes(), &mut list);
            list.push(b',');
        }
        list.pop();
        list.extend_from_slice(b"]::pg_catalog.text[])");
        if list.len() * calls.len() > WRITTEN_BYTES_MAX {
            return Vec::new();
        }
        let written = |call: calls::Call| {
            let mut literal = list.clone();
            if call.needs_name {
                literal.extend_from_slice(b" AS ");
                literal.extend_from_slice(calls::CHANNELS);
            }
            Replacement::new(call.range, literal)
        };
        calls.into_iter().map(written).collect()
    }
}
