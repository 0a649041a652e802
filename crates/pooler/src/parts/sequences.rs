//! currval and lastval: the client's own, or the server's error.
//!
//! # Model
//! Hawser discards what a backend's earlier clients drew from sequences before a question: in the
//! client's transaction, in its pipeline, or before it. That also discards what the client drew
//! itself. So where the transaction may have drawn already, the server decides: a DO block keeps
//! the values if the transaction drew them itself, and discards all otherwise ([`own_alone`]). The
//! name of the sequence is in the text or in the Bind. Where it is not known which sequence is
//! asked for, all are discarded, and the server's own error answers the question.
//!
//! Nothing is discarded while its client alone has drawn on the connection.
//!
//! After the first question of a pool, Hawser discards at the start instead: before each pipeline, block,
//! list of statements and statement that draws, of each client of the pool.
//!
//! A client of such a pool keeps its backend from the transaction that draws to the one that asks: PHP's
//! lastInsertId() asks in a second one. One that has asked itself keeps it for as long as it likes, any
//! other within the bounds of [`crate::parts::sequences::asking::Asking`]; so does one that has got its answer, where clients of the pool
//! have asked again for the same.
//!
//! # Limits
//! What draws is known by a text's words, and by those of the functions that it reaches, as the census has them:
//! not of functions in C, nor where a default that draws is reached by no such word. (Where the server reports it,
//! it is known who has drawn: see [`crate::parts::report`].)

pub(crate) mod asking;
pub(crate) mod drawn_values;
mod own_alone;
pub(crate) mod question;

use crate::ids::Slot;
use crate::parts::sequences::asking::{
    Asks, KEPT_MAX, KEPT_TRANSACTIONS_MAX, KEPT_WHILE_OTHERS_WAIT, TextClass,
};
use crate::parts::sequences::drawn_values::Last;
use crate::parts::sequences::own_alone::{Arguments, own_alone};
use crate::parts::sequences::question::{has_question, of_sequences};
use crate::relay::backend::Backend;
use crate::relay::client::Client;
use crate::relay::effects::Effect;
use crate::relay::from_client::client_message::ClientMessage;
use crate::relay::from_client::client_message::written::Parameters;
use crate::relay::halt::Halt;
use crate::relay::host::Host;
use crate::relay::socket::Socket;
use crate::relay::table::Engine;
use crate::session::commands::{begins_with_any, draws_nothing, inserts, may_draw};
use crate::session::part::{Part, PartSet};
use crate::time::Time;
use crate::wire::{TransactionStatus, frame, frontend};

/// Whether a Query may begin a transaction block, or is several statements.
fn is_several(text: &[u8]) -> bool {
    let text = text.trim_ascii_end();
    let text = text.strip_suffix(b";").unwrap_or(text);
    memchr::memchr(b';', text).is_some() || may_begin(text)
}

/// Whether a text may begin a transaction block.
fn may_begin(text: &[u8]) -> bool {
    text.windows(5)
        .any(|word| word.eq_ignore_ascii_case(b"begin") || word.eq_ignore_ascii_case(b"start"))
}

/// What a message asks for.
enum Asked {
    /// This command keeps the values that it asks for.
    Of(Vec<u8>),
    /// Its Bind names the sequence.
    AtBind,
}

impl<S: Socket> ClientMessage<'_, '_, S> {
    /// Ensures that currval and lastval do not answer with another client's value. It waits for
    /// earlier messages: only then is it known whether a transaction is open, in which the client's
    /// own earlier statement may have given the value.
    pub(crate) fn before_sequences(&mut self) -> Result<(), Halt> {
        if self.client.is_session_mode() || self.client.session.pins.contains(Part::SequenceValue) {
            return Ok(()); // they are its own
        }
        // A function that is called by its oid may draw as well: it counts as one that does.
        let asks = self.header.kind != frontend::FUNCTION_CALL;
        if self.backend.asks_for_sequences(asks) {
            return Ok(()); // others' values were discarded before its first message
        }
        if self.backend.known.drawn.is_all_its_own() {
            return Ok(());
        }
        if self.backend.requests.is_in_pipeline() {
            if self.backend.from_server.status() != TransactionStatus::Failed {
                self.passage.cut(self.backend)?;
                if self.backend.known.drawn.by_client() {
                    self.keep_own_alone();
                } else {
                    self.discard_sequences();
                }
                self.backend.prepared.replay.forget();
            }
            return Ok(());
        }
        self.hold()?;
        if !self.backend.may_have_failed() && !self.backend.requests.owes_client() {
            self.passage.cut(self.backend)?;
            if self.backend.from_server.status() == TransactionStatus::Idle
                || !self.backend.known.drawn.by_client()
            {
                self.discard_sequences();
            } else {
                self.keep_own_alone();
            }
        }
        Ok(())
    }

    /// The same for a text that is too long to be examined, and may ask. If its client's own
    /// transaction has drawn, nothing is discarded: that would discard its own values, too.
    pub(crate) fn before_sequences_unseen(&mut self) -> Result<(), Halt> {
        let drawn = &self.backend.known.drawn;
        if drawn.by_others() && !drawn.by_client() { self.before_sequences() } else { Ok(()) }
    }

    /// Either the transaction has drawn the value itself, or another client before it: makes the
    /// server find out, and discard in the second case.
    fn keep_own_alone(&mut self) {
        match self.question() {
            Some(Asked::AtBind) => {}
            Some(Asked::Of(command)) => {
                let beside = self.is_beside_unnamed();
                self.backend.inject_command(command, beside, &mut self.passage.out);
            }
            None => self.discard_sequences(), // it is not known which sequence it asks for
        }
    }

    /// What the current message asks for, if known.
    fn question(&self) -> Option<Asked> {
        let text = self.text_at_hand()?;
        if self
            .backend
            .effects_of_functions(text)
            .is_some_and(|effects| effects.may(Effect::ReadsSequences))
        {
            return None; // a function asks, too
        }
        // (The Parse has decided how a backslash is read.)
        let reread = memchr::memchr(b'\\', text).is_some() || self.is_in_doubt(text);
        let question = of_sequences(text, self.scan_options()).filter(|_| !reread)?;
        let utf8 = self.reads_utf8();
        if !question.has_parameters() {
            return own_alone(&question, None, utf8).map(Asked::Of);
        }
        match self.header.kind {
            // The Bind of a named one is examined only where it is shared.
            frontend::PARSE if self.body.first() == Some(&0) && !self.backend.shares_nothing() => {
                Some(Asked::AtBind)
            }
            frontend::BIND if self.is_whole() => {
                let (_, rest) = frame::take_string(self.body)?;
                let (name, rest) = frame::take_string(rest)?;
                let types = frame::take_string(self.body_of(name)?)?.1;
                let arguments = Arguments { types, values: Parameters::read(rest)? };
                own_alone(&question, Some(&arguments), utf8).map(Asked::Of)
            }
            _ => None,
        }
    }

    /// Whether a simple query of Hawser's would remove an unnamed statement that only the server
    /// knows, or that was sent for the current message, which binds it.
    fn is_beside_unnamed(&self) -> bool {
        self.client.session.pins.contains(Part::UnnamedStatement)
            || (self.header.kind == frontend::BIND
                && frame::take_string(self.body).is_some_and(|(_, rest)| rest.first() == Some(&0)))
    }

    fn discard_sequences(&mut self) {
        let beside = self.is_beside_unnamed();
        self.backend.discard_sequences(beside, &mut self.passage.out);
    }

    /// A transaction may begin: discards the values that currval and lastval must not return in it.
    pub(crate) fn open_sequences(&mut self) -> Result<(), Halt> {
        match self.backend.from_server.status() {
            TransactionStatus::Idle => {}
            TransactionStatus::InTransaction if self.may_keep_first() => {}
            _ => return Ok(()),
        }
        let asks = || self.text_at_hand().is_none_or(has_question);
        match self.backend.must_discard_sequences(asks) {
            // Other clients' values have been discarded at its start. (A later query of Hawser's
            // would remove its unnamed statement.)
            None if self.client.is_session_mode() => return Ok(()),
            None if self.client.session.pins.contains(Part::SequenceValue) => return Ok(()), // its own
            None if !self.backend.known.drawn.by_others() => return Ok(()),
            None if self.client.session.asks != Asks::Never || self.may_keep_first() => {}
            None if self.backend.pool.asking().has_asked()
                && (self.header.kind != frontend::QUERY
                    || self
                        .text_at_hand()
                        .is_none_or(|text| is_several(text) || self.backend.draws(text))) => {}
            None => return Ok(()),
            Some(false) => return Ok(()),
            Some(true) => self.backend.known.drawn.discard_again(),
        }
        if !self.backend.known.drawn.is_discarded() {
            self.lift_first()?;
        }
        self.passage.cut(self.backend)?;
        // (The unnamed statement that it may bind is sent after this. In a pipeline of Hawser's,
        // this would be all that the backend has to do, and it would be given back if the message
        // waits.)
        let beside = self.client.session.pins.contains(Part::UnnamedStatement);
        self.backend.discard_sequences(beside, &mut self.passage.out);
        Ok(())
    }

    /// Whether a transaction block may begin with the current message, or later in its pipeline.
    pub(crate) fn may_begin_block(&self) -> bool {
        let in_pipeline = self.header.kind != frontend::QUERY && may_begin(self.passage.rest());
        in_pipeline || self.text_at_hand().is_some_and(may_begin)
    }

    /// Whether its client, which has drawn nothing yet in its transaction, draws now, and may keep
    /// the backend though none has ever asked.
    fn may_keep_first(&self) -> bool {
        self.backend.pool.asking().tries()
            && !self.backend.known.drawn.by_client()
            && self.text_at_hand().is_some_and(inserts)
    }

    /// The body of a statement's Parse after the name, if known.
    fn body_of(&self, name: &[u8]) -> Option<&[u8]> {
        match name.is_empty() {
            true => self.unnamed().map(|known| &*known.body),
            false => self.client.statement(name).map(|named| &*named.statement.body),
        }
    }

    /// The text that the current message runs, prepares or binds, if known.
    fn text_at_hand(&self) -> Option<&[u8]> {
        match self.header.kind {
            frontend::QUERY => frame::take_string(self.body).map(|(text, _)| text),
            frontend::PARSE => frame::take_string(self.body)
                .and_then(|(_, rest)| frame::take_string(rest))
                .map(|(text, _)| text),
            frontend::BIND => frame::take_string(self.body)
                .and_then(|(_, rest)| frame::take_string(rest))
                .and_then(|(name, _)| self.body_of(name))
                .and_then(frame::take_string)
                .map(|(text, _)| text),
            _ => None,
        }
    }

    /// The current message is sent: it may draw. (For a Query that is known already.)
    #[inline]
    pub(crate) fn note_drawing(&mut self) {
        if matches!(self.header.kind, frontend::BIND | frontend::FUNCTION_CALL)
            && !self.backend.known.drawn.by_client()
        {
            let draws = !self.text_at_hand().is_some_and(draws_nothing);
            self.backend.known.drawn.note(draws);
        }
        if !matches!(self.header.kind, frontend::QUERY | frontend::BIND) {
            return;
        }
        let asking = self.backend.pool.asking();
        if asking.has_asked() || (asking.tries() && self.text_at_hand().is_some_and(inserts)) {
            self.note_drawing_to_ask();
        }
    }

    /// The same, where clients ask for what they draw.
    fn note_drawing_to_ask(&mut self) {
        let discards = |text: &[u8]| begins_with_any(text.trim_ascii_start(), &[b"discard"]);
        // (A text that asks as well as draws counts as one that may ask again: drawing may be the
        // last that it does.)
        let (last, class) = match self.text_at_hand() {
            None => (Last::Drew, Some(TextClass::default())), // too long to be looked at, or the server's alone
            Some(text) if discards(text) => (Last::Asked, None),
            Some(text) => {
                let class = self.backend.draws(text).then(|| TextClass::of(text));
                match class {
                    _ if self.asks(text) => (Last::Asked, class),
                    Some(_) => (Last::Drew, class),
                    None => return,
                }
            }
        };
        let known = &mut self.backend.known;
        if let Some(class) = class {
            known.drawn.note_text(class);
        }
        match (&known.session_report, last) {
            (None, _) => known.drawn.note_last(last),
            (Some(_), Last::Drew) if known.drawn.has_last() => {
                known.drawn.note_last(last);
                self.backend.draws_after_asking();
            }
            (Some(_), _) => {} // the report says whether it has drawn anything
        }
    }

    /// Whether a text asks, by its words or by functions that it reaches.
    fn asks(&self, text: &[u8]) -> bool {
        let functions = || self.backend.effects_of_functions(text);
        has_question(text) || functions().is_some_and(|effects| effects.may(Effect::ReadsSequences))
    }
}

impl<S: Socket> Backend<S> {
    /// Appends the command that keeps currval and lastval from answering with another client's
    /// values: they give the server's own error instead. About 1 us on the server. Once for each
    /// lending, and again after an error in a pipeline, for which the server may have ignored it.
    /// `beside`: only the server knows its client's unnamed statement, which a simple query would
    /// remove.
    pub(crate) fn discard_sequences(&mut self, beside: bool, out: &mut Vec<u8>) {
        const DISCARD_SEQUENCES: &[u8] = b"DISCARD SEQUENCES";
        if self.known.drawn.is_discarded() {
            return;
        }
        let alone = !self.requests.is_in_pipeline() && !beside;
        self.inject_command(DISCARD_SEQUENCES.to_vec(), beside, out);
        self.known.drawn.discard(alone);
    }

    /// Whether a text may draw from a sequence, by its words or by functions that it reaches.
    fn draws(&self, text: &[u8]) -> bool {
        if may_draw(text) {
            return !draws_nothing(text);
        }
        self.known.functions.as_deref().is_some_and(|functions| functions.draw(text))
    }
}

impl<S: Socket> Client<S> {
    /// Its transaction is over, and its backend at rest. A client that may ask for what it drew
    /// keeps the backend until it has asked, unless other clients have drawn on it as well.
    #[inline]
    pub(crate) fn keep_to_ask(&mut self, backend: &mut Backend<S>, failed: bool) {
        if backend.known.drawn.has_last() || self.session.pins.contains(Part::SequenceValue) {
            self.settle_keeping(backend, failed);
        }
    }

    #[cold]
    fn settle_keeping(&mut self, backend: &mut Backend<S>, failed: bool) {
        match backend.known.drawn.take_last() {
            Some(last) => {
                match last {
                    Last::Drew => self.session.asks.draws(),
                    Last::Asked => self.has_asked(backend),
                }
                let shares = !self.is_session_mode() && !backend.is_classic();
                let is_own = match backend.known.session_report.as_deref() {
                    None => backend.known.drawn.is_all_its_own(),
                    Some(exact) => exact.is_drawn_by_holder(),
                };
                if is_own && shares && !failed {
                    self.keep_what_it_drew(backend);
                }
            }
            None if backend.known.session_report.is_none() => self.keep_what_it_drew(backend),
            None => {} // the report says whether it has drawn anything
        }
    }

    /// Pins the client that has drawn, or keeps it pinned: without bound if it has asked before,
    /// else within bounds. The same for one that has asked, where clients ask again.
    pub(crate) fn keep_what_it_drew(&mut self, backend: &mut Backend<S>) {
        self.session.pins.insert(Part::SequenceValue);
        if self.session.asks == Asks::Before {
            return;
        }
        let others_wait = backend.pool.anybody_waits();
        let kept = backend.known.drawn.keep();
        let text = backend.known.drawn.text();
        if (others_wait && kept > KEPT_TRANSACTIONS_MAX)
            || !backend.pool.asking().is_kept_for(self.session.asks, text, others_wait)
        {
            self.session.pins.remove(Part::SequenceValue); // not in vain: it was busy until now
        }
    }

    /// The last that its transaction has done was to ask.
    fn has_asked(&mut self, backend: &mut Backend<S>) {
        let mut text = backend.known.drawn.known_text();
        if let Asks::Last(before) = self.session.asks {
            backend.pool.asking().note_again(before);
            text = text.or(before);
        }
        self.session.asks = Asks::Last(text);
        backend.known.drawn.asked();
        self.session.pins.remove(Part::SequenceValue);
    }

    /// Whether it keeps its backend for nothing but a question that it may never ask.
    pub(crate) fn keeps_to_ask(&self) -> bool {
        self.session.asks != Asks::Before
            && self.session.pins == PartSet::of(&[Part::SequenceValue])
    }

    /// The same, and it has done so for as long as it may.
    #[inline]
    pub(crate) fn has_kept_for_long(&self, others_wait: bool, now: Time) -> bool {
        let max = if others_wait { KEPT_WHILE_OTHERS_WAIT } else { KEPT_MAX };
        self.keeps_to_ask()
            && self.backend.as_ref().is_some_and(|backend| {
                backend.is_at_rest() && now.since(backend.lending.since) >= max
            })
    }
}

impl<S: Socket> Engine<S> {
    /// Gives back the backend of a client that has kept it for long enough, and has not asked.
    pub(crate) fn stop_keeping_to_ask<H: Host<S>>(&mut self, host: &mut H, slot: Slot, now: Time) {
        let Some(client) = self.clients.get_mut(slot) else { return };
        client.session.pins.remove(Part::SequenceValue);
        if let Some(backend) = &mut client.backend {
            backend.note_unasked();
        }
        self.give_back_if_unused(host, slot, now);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_draws_is_known_by_whole_words() {
        for text in ["INSERT INTO t VALUES (1)", "with a as (insert into t", "select Nextval('s')"]
        {
            assert!(may_draw(text.as_bytes()), "{text}");
        }
        for text in ["select inserted_at from inserts", "update t set a = 1", ""] {
            assert!(!may_draw(text.as_bytes()), "{text}");
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
