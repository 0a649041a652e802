//! currval and lastval: the client's own, or the server's error.
//!
//! # Model
//! What a backend's earlier clients drew from sequences is discarded ahead of a question, in the
//! client's transaction or before it. That takes away what the client has drawn itself as well: so
//! not once it has sent anything in this lending that may have drawn.
//!
//! # Limits
//! Which functions and defaults draw is not known from a text: behind anything but commands that
//! run none, a client that asks for the first time, in mid-transaction, finds what is there.

use super::super::from_client::Halt;
use super::Turn;
use crate::engine::Socket;
use crate::wire::{TransactionStatus, frame, frontend};

/// Commands that run no function of anybody's, by their first words.
const DRAW_NOTHING: [&[u8]; 10] = [
    b"abort",
    b"begin",
    b"deallocate",
    b"listen",
    b"release",
    b"savepoint",
    b"set",
    b"show",
    b"start",
    b"unlisten",
];

/// Whether a text is one command that certainly draws from no sequence.
fn draws_nothing(text: &[u8]) -> bool {
    let text = text.trim_ascii();
    let text = text.strip_suffix(b";").unwrap_or(text);
    let length = text.iter().take_while(|byte| byte.is_ascii_alphabetic()).count();
    let word = &text[..length];
    memchr::memchr(b';', text).is_none()
        && (text.is_empty() || DRAW_NOTHING.iter().any(|known| word.eq_ignore_ascii_case(known)))
}

impl<S: Socket> Turn<'_, '_, S> {
    /// Sees to it that currval and lastval do not answer with another client's value. It waits for
    /// what stands ahead: only then is it known whether a transaction is open, in which an earlier
    /// statement of the client's own may have given the value.
    pub(super) fn before_sequences(&mut self) -> Result<(), Halt> {
        if self.client.is_native() || self.backend.sequences_discarded || self.backend.unsynced {
            return Ok(());
        }
        self.hold()?;
        let fails = self.backend.status == TransactionStatus::Failed;
        let at_start = self.backend.status == TransactionStatus::Idle || !self.backend.drawn;
        if at_start && !fails && !self.backend.owes_client() {
            self.passage.cut(self.backend)?;
            self.backend.discard_sequences(&mut self.passage.out);
        }
        Ok(())
    }

    /// The message at hand goes to the server: it may draw.
    pub(super) fn note_drawing(&mut self) {
        if self.backend.drawn {
            return;
        }
        let named = |name: &[u8]| match self.client.statement(name) {
            Some(named) => Some(&*named.statement.body),
            None if name.is_empty() => self.client.unnamed.as_ref().map(|known| &*known.body),
            None => None,
        };
        let text = match self.header.kind {
            frontend::QUERY => frame::take_string(self.body).map(|(text, _)| text),
            frontend::BIND => frame::take_string(self.body)
                .and_then(|(_, rest)| frame::take_string(rest))
                .and_then(|(name, _)| named(name))
                .and_then(frame::take_string)
                .map(|(text, _)| text),
            frontend::FUNCTION_CALL => None,
            _ => return,
        };
        self.backend.drawn = !text.is_some_and(draws_nothing);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_by_themselves_draw_nothing_and_all_else_may() {
        for text in ["begin", " START TRANSACTION;", "set x = 1", "", ";", "Show all"] {
            assert!(draws_nothing(text.as_bytes()), "{text}");
        }
        for text in ["select 1", "begin; select nextval('s')", "/**/begin", "beginning", "commit"] {
            assert!(!draws_nothing(text.as_bytes()), "{text}");
        }
    }
}
