//! currval and lastval: the client's own, or the server's error.
//!
//! # Model
//! What a backend's earlier clients drew from sequences is discarded ahead of a question, in the
//! client's transaction, in its pipeline, or before it. That takes away what the client has drawn
//! itself as well: so not once it has sent anything in this lending that may have drawn. Instead it is
//! discarded ahead of a transaction in which a question may come: each of a client that has asked
//! before, and each block of a client of a pool in which anybody has.
//!
//! A client that has ever asked keeps its backend from the transaction that draws to the one that asks:
//! PHP's lastInsertId() asks in a second one.
//!
//! # Limits
//! Which functions and defaults draw is not known from a text: behind anything but commands that
//! run none, the first question of a pool, in the midst of a transaction, finds what is there; so does
//! that of a client that has never asked, in the midst of a pipeline without BEGIN. For what functions
//! draw no backend is kept. (Where the server reports it, it is known who has drawn: see
//! [`super::super::exact`].)

use super::super::from_client::Halt;
use super::Turn;
use crate::engine::Socket;
use crate::engine::backend::Backend;
use crate::engine::client::Client;
use crate::engine::statement::begins_with_any;
use crate::session::part::Part;
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

/// Whether a text is commands that certainly draw from no sequence. What stands behind a semicolon
/// of a quoted text is taken for one more.
pub(in crate::engine) fn draws_nothing(text: &[u8]) -> bool {
    if let Some(word) = text.first_chunk::<6>()
        && let b"select" | b"insert" | b"update" | b"delete" = &word.map(|b| b.to_ascii_lowercase())
    {
        return false; // what is asked most often, without a look at the list
    }
    let mut rest = text;
    loop {
        rest = rest.trim_ascii_start();
        // Most texts end here, at their first word.
        if !matches!(rest.first(), None | Some(b';')) && !begins_with_any(rest, &DRAW_NOTHING) {
            return false;
        }
        match memchr::memchr(b';', rest) {
            None => return true,
            Some(at) => rest = &rest[at + 1..],
        }
    }
}

/// Words of statements that draw, whatever functions they call. (EXECUTE may be of an INSERT.)
const DRAW: [&[u8]; 5] = [b"insert", b"nextval", b"merge", b"copy", b"execute"];

/// Whether such a word stands in a text, anywhere.
fn draws(text: &[u8]) -> bool {
    text.split(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_')
        .any(|word| DRAW.iter().any(|known| word.eq_ignore_ascii_case(known)))
}

/// Whether a text may begin a transaction block.
fn may_begin(text: &[u8]) -> bool {
    text.windows(5)
        .any(|word| word.eq_ignore_ascii_case(b"begin") || word.eq_ignore_ascii_case(b"start"))
}

/// Whether currval or lastval stands in a text.
fn asks_for_sequences(text: &[u8]) -> bool {
    text.windows(7)
        .any(|word| word.eq_ignore_ascii_case(b"currval") || word.eq_ignore_ascii_case(b"lastval"))
}

impl<S: Socket> Turn<'_, '_, S> {
    /// Sees to it that currval and lastval do not answer with another client's value. It waits for
    /// what stands ahead: only then is it known whether a transaction is open, in which an earlier
    /// statement of the client's own may have given the value.
    pub(super) fn before_sequences(&mut self) -> Result<(), Halt> {
        if self.client.is_native() || self.client.pins.contains(Part::SequenceValue) {
            return Ok(()); // it is its own
        }
        if self.backend.asks_for_sequences() {
            return Ok(()); // others' values went ahead of its first message
        }
        if self.backend.sequences_discarded {
            return Ok(());
        }
        if self.backend.unsynced {
            if !self.backend.drawn && self.backend.status != TransactionStatus::Failed {
                self.passage.cut(self.backend)?;
                self.discard_sequences();
                self.backend.replay.forget();
            }
            return Ok(());
        }
        self.hold()?;
        let fails = self.backend.may_have_failed();
        let at_start = self.backend.status == TransactionStatus::Idle || !self.backend.drawn;
        if at_start && !fails && !self.backend.owes_client() {
            self.passage.cut(self.backend)?;
            self.discard_sequences();
        }
        Ok(())
    }

    fn discard_sequences(&mut self) {
        let beside = self.client.pins.contains(Part::UnnamedStatement);
        self.backend.discard_sequences(beside, &mut self.passage.out);
    }

    /// A transaction may begin: takes away what currval and lastval must not answer in it.
    pub(super) fn open_sequences(&mut self) -> Result<(), Halt> {
        if self.backend.status != TransactionStatus::Idle {
            return Ok(());
        }
        let asks = || self.text_at_hand().is_none_or(asks_for_sequences);
        match self.backend.must_discard_sequences(asks) {
            // What others had drawn has been discarded at its start. (By a query of ours, later on, its
            // unnamed statement would be lost.)
            None if self.client.is_native() => return Ok(()),
            None if self.client.pins.contains(Part::SequenceValue) => return Ok(()), // its own
            None if self.client.reads_sequences => {}
            None if self.backend.drawn_before
                && self.backend.pool.reads_sequences()
                && self.text_at_hand().is_none_or(may_begin) => {}
            None => return Ok(()),
            Some(false) => return Ok(()),
            Some(true) => self.backend.sequences_discarded = false,
        }
        if !self.backend.sequences_discarded {
            self.lift_first()?;
        }
        self.passage.cut(self.backend)?;
        self.discard_sequences();
        Ok(())
    }

    /// The text that the message at hand runs, prepares or binds, if that is known.
    fn text_at_hand(&self) -> Option<&[u8]> {
        let named = |name: &[u8]| match name.is_empty() {
            true => self.client.unnamed.as_ref().map(|known| &*known.body),
            false => self.client.statement(name).map(|named| &*named.statement.body),
        };
        match self.header.kind {
            frontend::QUERY => frame::take_string(self.body).map(|(text, _)| text),
            frontend::PARSE => frame::take_string(self.body)
                .and_then(|(_, rest)| frame::take_string(rest))
                .map(|(text, _)| text),
            frontend::BIND => frame::take_string(self.body)
                .and_then(|(_, rest)| frame::take_string(rest))
                .and_then(|(name, _)| named(name))
                .and_then(frame::take_string)
                .map(|(text, _)| text),
            _ => None,
        }
    }

    /// The message at hand goes to the server: it may draw. (Of a Query that is known already.)
    #[inline]
    pub(super) fn note_drawing(&mut self) {
        if matches!(self.header.kind, frontend::BIND | frontend::FUNCTION_CALL)
            && !self.backend.drawn
        {
            self.backend.drawn = !self.text_at_hand().is_some_and(draws_nothing);
        }
        if self.client.reads_sequences
            && self.backend.exact.is_none()
            && matches!(self.header.kind, frontend::QUERY | frontend::BIND)
        {
            self.note_drawing_to_ask();
        }
    }

    /// The same, of a client that has ever asked for what it draws.
    #[cold]
    fn note_drawing_to_ask(&mut self) {
        let has_drawn = match self.text_at_hand() {
            None => Some(true), // too long to be looked at, or the server's alone
            Some(text) if asks_for_sequences(text) => Some(false),
            Some(text) if begins_with_any(text.trim_ascii_start(), &[b"discard"]) => Some(false),
            Some(text) => draws(text).then_some(true),
        };
        self.backend.drawn_to_ask = has_drawn.or(self.backend.drawn_to_ask);
    }
}

impl<S: Socket> Client<S> {
    /// Its transaction is over, and its backend at rest. A client that asks for what it draws keeps the
    /// backend until it has asked, unless what it has drawn is beside what others have.
    #[inline]
    pub(in crate::engine) fn keep_to_ask(&mut self, backend: &mut Backend<S>, failed: bool) {
        let Some(has_drawn) = backend.drawn_to_ask.take() else { return };
        if !has_drawn {
            self.pins.remove(Part::SequenceValue);
        } else if backend.sequences_discarded
            && !failed
            && !self.is_native()
            && !backend.is_classic()
        {
            self.pins.insert(Part::SequenceValue);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_draws_is_known_by_whole_words() {
        for text in ["INSERT INTO t VALUES (1)", "with a as (insert into t", "select Nextval('s')"]
        {
            assert!(draws(text.as_bytes()), "{text}");
        }
        for text in ["select inserted_at from inserts", "update t set a = 1", ""] {
            assert!(!draws(text.as_bytes()), "{text}");
        }
    }

    #[test]
    fn commands_by_themselves_draw_nothing_and_all_else_may() {
        for text in
            ["begin", " START TRANSACTION;", "set x = 1", "", ";", "Show all", "listen a; begin"]
        {
            assert!(draws_nothing(text.as_bytes()), "{text}");
        }
        for text in
            ["select 1", "begin; select nextval('s')", "/**/begin", "beginning", "commit", "; ;x"]
        {
            assert!(!draws_nothing(text.as_bytes()), "{text}");
        }
    }
}
