//! `pg_listening_channels()` shows a client its own channels.
//!
//! # Model
//! ```text
//!   sent ahead, in the same write   the client's transaction                   behind it
//!   LISTEN a; LISTEN b          ──► SELECT pg_listening_channels() ... COMMIT ──► UNLISTEN *
//! ```
//! The function gives what its own server process listens on, as of the last COMMIT there
//! (`listenChannels`, async.c). What the backend hears meanwhile is passed over: the listening connection
//! hears it, too.
//!
//! # Limits
//! Within a transaction that has begun without them, no command brings the channels: there a client
//! that asks for the first time sees none. From then on they go ahead of each of its transactions, up to
//! [`CHANNELS_A_QUERY_MAX`] channels. Nothing is sent to a standby, which cannot listen, nor names that are
//! not ASCII in another `client_encoding`, nor where a query would take an unnamed statement away.

use super::Listening;
use crate::engine::Socket;
use crate::engine::backend::Backend;
use crate::engine::client::Client;
use crate::listen::hub::CHANNELS_A_QUERY_MAX;
use crate::session::part::Part;
use crate::wire::TransactionStatus;

impl<S: Socket> Client<S> {
    /// A statement may look at what it listens on. Whether its backend does not show that yet.
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
        let listening = self.extra.as_ref().and_then(|extra| extra.listening.as_ref());
        listening.is_some_and(|listening| {
            listening.looks && !listening.shown && listening.channels.len() <= CHANNELS_A_QUERY_MAX
        })
    }

    /// Appends what has its channels listened on by its backend, where that is possible now.
    pub(in crate::engine) fn show_channels(&mut self, backend: &mut Backend<S>, out: &mut Vec<u8>) {
        let at_rest = backend.status == TransactionStatus::Idle
            && !backend.unsynced
            && !backend.owes_client();
        let standby = backend.parameters.get(b"in_hot_standby") == Some(b"on");
        let by_name = [Part::UnnamedStatement, Part::ProtocolStatement]
            .iter()
            .any(|part| self.pins.contains(*part));
        let other_encoding = self.desired.get(b"client_encoding").is_some();
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
        backend.made_query(&text, out);
    }
}
