//! Messages that end the client's role: they are sent without it, since the server may not take it
//! any more (it is gone, or not granted).
//!
//! # Invariant
//! Nothing else is sent without the client's role: not a second statement, and no message before
//! the outcome is known. If the message fails, the client has its role still.

use crate::relay::from_client::client_message::ClientMessage;
use crate::relay::socket::Socket;
use crate::session::scan::{ScanOptions, Verb, scan};
use crate::wire::frame::{Framed, HEADER_BYTES};
use crate::wire::{TransactionStatus, frame, frontend};

/// Whether a text ends the role or gives another one; `None` unless it is one statement that does,
/// or that ends a transaction.
fn ends_role(text: &[u8], options: ScanOptions) -> Option<bool> {
    let findings = scan(text, options);
    let is_role = |name: &[u8]| matches!(name, b"role" | b"session_authorization");
    if findings.unsure || findings.truncated {
        return None;
    }
    match &findings.single()?.verb {
        Verb::Set { name, local: false, .. } | Verb::Reset(name) => {
            is_role(name.as_bytes()).then_some(true)
        }
        Verb::DiscardAll => Some(true),
        Verb::End { chain } => (!chain).then_some(false),
        _ => None,
    }
}

/// The same for messages that are a whole pipeline of one such statement.
fn pipeline_ends_role(mut bytes: &[u8], options: ScanOptions) -> Option<bool> {
    let (mut parsed, mut ends) = (None, None);
    while let Framed::Header(header) = frame::header(bytes) {
        let body = bytes.get(HEADER_BYTES..header.total())?;
        bytes = &bytes[header.total()..];
        let fits = match header.kind {
            frontend::PARSE if parsed.is_none() => frame::take_string(body).is_some_and(|parse| {
                parsed = Some(parse.0);
                ends = frame::take_string(parse.1).and_then(|(text, _)| ends_role(text, options));
                ends.is_some()
            }),
            frontend::BIND => frame::take_string(body)
                .and_then(|(_, rest)| frame::take_string(rest))
                .is_some_and(|(name, _)| Some(name) == parsed),
            frontend::SYNC => return ends,
            kind => [frontend::DESCRIBE, frontend::EXECUTE, frontend::CLOSE].contains(&kind),
        };
        if !fits {
            return None;
        }
    }
    None
}

impl<S: Socket> ClientMessage<'_, '_, S> {
    /// Whether the current message, the first of a transaction, ends a role that the server
    /// connection lacks. `None`: it needs the role, or that is there.
    #[inline]
    pub(crate) fn leaves_role_out(&self) -> Option<bool> {
        let (desired, applied) = (&self.client.session.desired, &self.backend.session.applied);
        if desired == applied {
            return None;
        }
        let role = desired.get(b"role")?;
        if applied.get(b"role") == Some(role) { None } else { self.is_sent_without_role() }
    }

    #[cold]
    fn is_sent_without_role(&self) -> Option<bool> {
        let is_first = self.backend.requests.is_empty() && !self.backend.requests.is_in_pipeline();
        if !is_first
            || self.backend.from_server.status() != TransactionStatus::Idle
            || self.client.is_session_mode()
            || self.client.serving.is_exclusive()
        {
            return None;
        }
        match self.header.kind {
            frontend::QUERY if self.is_whole() => match frame::take_string(self.body) {
                Some((text, [])) => ends_role(text, self.scan_options()),
                _ => None,
            },
            frontend::PARSE => pipeline_ends_role(self.passage.rest(), self.scan_options()),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_statement_that_ends_the_role() {
        for (text, ends) in [
            ("RESET ROLE", Some(true)),
            ("set session role to none; ", Some(true)),
            ("SET ROLE other", Some(true)),
            ("RESET SESSION AUTHORIZATION", Some(true)),
            ("DISCARD ALL", Some(true)),
            ("rollback", Some(false)),
            ("COMMIT AND CHAIN", None),
            ("SET LOCAL ROLE NONE", None),
            ("RESET ALL", None),
            ("RESET ROLE; SELECT 1", None),
            ("SELECT 'reset role'", None),
            ("DISCARD TEMP", None),
            ("", None),
        ] {
            assert_eq!(ends_role(text.as_bytes(), ScanOptions::default()), ends, "{text}");
        }
    }
}
