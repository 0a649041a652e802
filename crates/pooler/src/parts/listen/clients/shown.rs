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
//! takes effect at COMMIT, and would outlast it. So the LISTENs precede each transaction block, and
//! each transaction of a client that has looked before, up to [`CHANNELS_A_QUERY_MAX`] channels.
//!
//! # Limits
//! Nothing is sent to a standby, which cannot listen, nor names that are not ASCII in another
//! `client_encoding`, nor LISTEN where a query would remove an unnamed statement.

use crate::parts::listen::clients::Listening;
use crate::parts::listen::hub::CHANNELS_A_QUERY_MAX;
use crate::relay::backend::Backend;
use crate::relay::client::Client;
use crate::relay::socket::Socket;
use crate::wire::TransactionStatus;

impl<S: Socket> Client<S> {
    /// A statement may look at what it listens on. Returns whether its backend does not show that
    /// yet.
    pub(crate) fn looks_at_channels(&mut self) -> bool {
        let Some(listening) = self.listening().filter(|l| !l.channels.is_empty()) else {
            return false;
        };
        listening.looks = true;
        !listening.shown
    }

    /// Whether its backend is to listen on its channels before a message, which may begin a
    /// transaction block if `begins`.
    #[inline]
    pub(crate) fn shows_channels_before(&self, begins: impl FnOnce() -> bool) -> bool {
        self.listening_ref().is_some_and(|listening| {
            !listening.shown
                && !listening.channels.is_empty()
                && listening.channels.len() <= CHANNELS_A_QUERY_MAX
                && (listening.looks || begins())
        })
    }

    /// Appends the commands that make its backend listen on its channels, if that is possible now.
    pub(crate) fn show_channels(&mut self, backend: &mut Backend<S>, out: &mut Vec<u8>) {
        let at_rest = backend.from_server.status() == TransactionStatus::Idle
            && !backend.requests.is_in_pipeline()
            && !backend.requests.owes_client();
        let standby = backend.session.own.parameters.is_standby();
        let native = self.has_native_statements();
        let other_encoding = self.session.desired.get(b"client_encoding").is_some();
        let Some(Listening { channels, shown, .. }) = self.listening() else { return };
        let unreadable = other_encoding && channels.iter().any(|name| !name.as_bytes().is_ascii());
        if *shown || channels.is_empty() || !at_rest || standby || native || unreadable {
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
}
