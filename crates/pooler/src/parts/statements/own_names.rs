//! Statements of the protocol that SQL names: prepared on the server under their client's own
//! names.
//!
//! # Model
//! Clients share statements of the protocol under names of Hawser's, which no SQL uses. Before a
//! text that may name some of the client's (EXECUTE, DEALLOCATE among others, a PREPARE that would
//! find the name taken), or that looks at the list of all, these are prepared under the client's
//! own names. From then on they are like statements of SQL's PREPARE
//! ([`crate::parts::sql_prepare`]): they move in the same way, SQL and the protocol find them by
//! the same name, and the server is asked after the transaction which are left.
//!
//! # Order
//! Before a message of a pipeline it is part of that pipeline. Before a Query it is a pipeline of
//! its own, and the Query waits for the outcome: if the server refuses to prepare the statement
//! (its table is gone), the Query gets that error.
//!
//! Of the statements that are only listed, those that the server refuses are left out. They are
//! sent before the Query or the pipeline, in a transaction block within a savepoint.
//!
//! If a Query begins with the ROLLBACK (or COMMIT) of a failed transaction, in which nothing can be
//! prepared, that ROLLBACK is sent first, and then, right before the Query, a BEGIN for its own
//! one.
//!
//! # Limits
//! * what a function executes is not known: the first time it fails, and from then on the statement
//!   has its own name
//! * within a pipeline nothing can be taken back: a refused statement that is listed there, and was
//!   not refused before, fails the pipeline
//! * for a Query that ends a failed transaction in another way nothing can be prepared, except
//!   after a ROLLBACK of the same pipeline
//! * `fidelity = "classic"`: not done

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use crate::parts::settings::restore::Edit;
use crate::parts::statements::client_names::significant;
use crate::parts::statements::shared::Statement;
use crate::relay::effects::{Effect, Effects};
use crate::relay::from_client::client_message::ClientMessage;
use crate::relay::halt::Halt;
use crate::relay::request_queue::Request;
use crate::relay::socket::Socket;
use crate::session::part::{Part, PartSet};
use crate::wire::frame::HEADER_BYTES;
use crate::wire::{TransactionStatus, backend as kind, build, frontend};

/// Whether a text may show the list of prepared statements.
pub(crate) fn shows_statements(text: &[u8], effects: &Effects) -> bool {
    const LIST: &[u8] = b"pg_prepared_statement";
    effects.pins.contains(Part::SessionCatalog)
        && text.windows(LIST.len()).any(|word| word.eq_ignore_ascii_case(LIST))
}

/// The first word of a text that begins with a plain ROLLBACK or COMMIT, either of which rolls back
/// a failed transaction, and has more after it.
fn rolls_back_first(text: &[u8]) -> Option<Range<usize>> {
    plain_rollback(&text[..memchr::memchr(b';', text)?])
}

/// Whether a text is such a ROLLBACK or COMMIT alone.
fn rolls_back(text: &[u8]) -> bool {
    let text = text.trim_ascii_end();
    plain_rollback(text.strip_suffix(b";").unwrap_or(text)).is_some()
}

/// The first word of a statement that is a plain ROLLBACK or COMMIT.
fn plain_rollback(first: &[u8]) -> Option<Range<usize>> {
    const ENDS: [&[u8]; 4] = [b"rollback", b"abort", b"commit", b"end"];
    let mut words = first.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    let is_one_of = |word: &[u8], of: &[&[u8]]| of.iter().any(|one| word.eq_ignore_ascii_case(one));
    let word = words.next().filter(|word| is_one_of(word, &ENDS))?;
    let plain = words.next().is_none_or(|word| is_one_of(word, &[b"work", b"transaction"]));
    let start = first.len() - first.trim_ascii_start().len();
    (plain && words.next().is_none()).then_some(start..start + word.len())
}

/// All of a text that may be a name: its words, also those within strings, and what is in double
/// quotes.
fn words(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    let ends = |byte: &u8| !(byte.is_ascii_alphanumeric() || *byte == b'_' || *byte >= 0x80);
    let quoted = text.split(|byte| *byte == b'"');
    text.split(ends).chain(quoted).filter(|word| !word.is_empty())
}

/// Calls `each` with each name of a prepared statement that a text may mean.
fn for_each_name(text: &[u8], effects: &Effects, each: impl FnMut(&[u8])) {
    for_each_of(text, effects, &effects.mentions, each);
}

/// Calls `each` with these names, and with all that may be names where a text does not show which.
fn for_each_of(text: &[u8], effects: &Effects, known: &[Box<[u8]>], mut each: impl FnMut(&[u8])) {
    if effects.may(Effect::MentionsAny) || effects.may(Effect::ExecutesStrings) {
        for word in words(text) {
            each(word);
            if word.iter().any(u8::is_ascii_uppercase) {
                each(&word.to_ascii_lowercase());
            }
        }
    }
    known.iter().for_each(|name| each(name));
}

/// Names that a client gave to its statements.
type OwnNames = Vec<Box<[u8]>>;

impl<S: Socket> ClientMessage<'_, '_, S> {
    /// The client's own names of statements of the protocol that a text may mean, and those that it
    /// only lists, each in the order in which they were given.
    fn own_names_in(&self, text: &[u8], effects: &Effects) -> (OwnNames, OwnNames) {
        let mut found = BTreeSet::new();
        let mut shows = shows_statements(text, effects);
        // An executed statement may execute another in turn, or look at the list.
        let mut seen = BTreeSet::new();
        let mut pending = Vec::new();
        let known = |name: &[u8]| self.client.statement(name).is_some() || self.may_be_own(name);
        let mut note = |name: &[u8], pending: &mut Vec<Box<[u8]>>| {
            if known(name) && seen.insert(Box::<[u8]>::from(significant(name))) {
                pending.push(significant(name).into());
            }
        };
        for_each_name(text, effects, |name| note(name, &mut pending));
        while let Some(name) = pending.pop() {
            let by_sql = self.client.effects_of_sql_statement(self.backend, &name);
            shows |= by_sql.is_some_and(|effects| effects.pins.contains(Part::SessionCatalog));
            let mut executed = self.own_statements(&name);
            if let Some(named) = self.client.statement(&name) {
                executed.push(named.statement.clone());
                found.insert((named.serial, name));
            }
            for statement in executed {
                shows |= shows_statements(statement.text(), &statement.effects);
                let mentions = |name: &[u8]| note(name, &mut pending);
                for_each_name(statement.text(), &statement.effects, mentions);
            }
        }
        let names = self.client.prepared.statements.as_deref().filter(|_| shows);
        let all = names.into_iter().flat_map(|names| names.names().pairs());
        let all: BTreeSet<_> = all.map(|(name, named)| (named.serial, name.clone())).collect();
        let listed = all.difference(&found).map(|(_, name)| name.clone()).collect();
        (found.into_iter().map(|(_, name)| name).collect(), listed)
    }

    /// Records the effects of the statements that the current message executes by name.
    fn record_executed_effects(&mut self, text: &[u8], effects: &Effects) -> Result<(), Halt> {
        let mut executed = Vec::new();
        for_each_of(text, effects, &effects.executes, |name| {
            let own = self.own_statements(name).into_iter().map(|own| own.effects.clone());
            executed.extend(
                own.chain(self.client.effects_of_sql_statement(self.backend, significant(name))),
            );
        });
        executed.retain(|effects| !effects.is_none());
        for effects in &executed {
            self.hold_for_effects(effects)?;
        }
        for effects in &executed {
            self.before(effects, false)?;
        }
        Ok(())
    }

    /// Ensures that the server knows statements of the protocol by the names by which this text, of
    /// the current message, may mean them. Returns whether the message is answered with that.
    pub(crate) fn bring_own_names(&mut self, text: &[u8], effects: &Effects) -> Result<bool, Halt> {
        if !effects.may_name_statements() || self.client.is_session_mode() {
            return Ok(false);
        }
        if let Some(error) = self.backend.ahead.take_refused() {
            self.answer_refused(&error)?;
            return Ok(true);
        }
        let tried = self.backend.ahead.take_listed();
        if !self.client.names_are_settled() {
            self.hold()?; // which statements exist depends on earlier messages
        }
        let (mut names, listed) = self.own_names_in(text, effects);
        let none = names.is_empty() && listed.is_empty();
        if none || self.client.serving.is_exclusive() || self.backend.is_classic() {
            return self.without_more_names(text, effects);
        }
        self.hold()?;
        // After other messages of its pipeline, which may end the transaction, it fails as they
        // would. (A Query is answered there: after a Parse that fails it would not be.)
        let is_query = self.header.kind == frontend::QUERY;
        let has_failed = self.backend.from_server.status() == TransactionStatus::Failed
            && !self.rolls_back_in_pipeline();
        if has_failed && (!self.backend.requests.is_in_pipeline() || is_query) {
            if is_query
                && !self.backend.requests.is_in_pipeline()
                && rolls_back_first(text).is_some()
                && !self.client.is_unsettled()
            {
                return self.roll_back_ahead();
            }
            return self.without_more_names(text, effects);
        }
        self.passage.cut(self.backend)?;
        let listed = match tried {
            true => self.note_refused(&listed),
            false => self.list_ahead(listed)?,
        };
        if is_query && !names.is_empty() && !self.backend.requests.is_in_pipeline() {
            self.bring_ahead(&names);
            self.backend.ahead.bring_own_names();
            return self.wait().map(|()| false);
        }
        names.extend(listed);
        for name in names {
            let Some(statement) = self.note_as_own(&name) else { continue };
            self.backend.prepare_own(&name, &statement, &mut self.passage.out);
            self.backend.request_taking(self.client, &name, false);
        }
        self.without_more_names(text, effects)
    }

    /// See [`Self::bring_own_names`], for a message of a pipeline. (In place of a DEALLOCATE that
    /// stands alone, a stand-in is bound.)
    pub(crate) fn bring_own_names_of(
        &mut self,
        text: &[u8],
        effects: &Effects,
    ) -> Result<(), Halt> {
        let unusual = effects.unusual.as_ref();
        if unusual.is_none_or(|unusual| unusual.deallocates.is_none()) {
            self.bring_own_names(text, effects)?;
        }
        Ok(())
    }

    /// Ensures that the server knows statements that the current message only lists, before its
    /// pipeline. Returns those that are left to bring within it.
    fn list_ahead(&mut self, mut names: Vec<Box<[u8]>>) -> Result<Vec<Box<[u8]>>, Halt> {
        // Commands remove an unnamed statement that only the server knows, as a Query does.
        let native = self.header.kind != frontend::QUERY
            && self.client.session.pins.contains(Part::UnnamedStatement);
        if names.is_empty() || native || self.backend.requests.is_in_pipeline() {
            names.retain(|name| !self.client.statement(name).is_some_and(|named| named.unlisted));
            return Ok(names);
        }
        self.in_block(b"SAVEPOINT hawser");
        for name in &names {
            self.bring_ahead(std::slice::from_ref(name));
            self.in_block(b"ROLLBACK TO SAVEPOINT hawser"); // it takes back no statement
        }
        self.in_block(b"RELEASE SAVEPOINT hawser");
        self.backend.ahead.list();
        self.wait().map(|()| names)
    }

    /// The server has refused these, which have been sent before the current message.
    fn note_refused(&mut self, names: &[Box<[u8]>]) -> Vec<Box<[u8]>> {
        for name in names {
            if let Some(refused) = self.client.prepared.named_mut(name) {
                refused.unlisted = true;
            }
        }
        Vec::new()
    }

    /// Sends a command, if a transaction block is open.
    fn in_block(&mut self, command: &[u8]) {
        if self.backend.from_server.status() == TransactionStatus::InTransaction {
            self.backend.inject_prepare(command, None, &mut self.passage.out);
        }
    }

    /// Whether the last statement that the current pipeline executes ends a failed transaction.
    fn rolls_back_in_pipeline(&self) -> bool {
        let mut ahead = self.backend.requests.since_sync();
        ahead.any(|owed| owed == Request::Execute)
            && match ahead.find(|owed| matches!(owed, Request::Bind { .. })) {
                Some(Request::Bind { statement: 0 }) => {
                    self.unnamed().is_some_and(|unnamed| rolls_back(unnamed.text()))
                }
                Some(Request::Bind { statement }) => {
                    let text = self.backend.prepared.statements.text(statement);
                    text.is_some_and(rolls_back)
                }
                _ => false,
            }
    }

    /// Ends the failed transaction before the Query that would end it.
    fn roll_back_ahead(&mut self) -> Result<bool, Halt> {
        self.passage.cut(self.backend)?;
        build::query(&mut self.passage.out, b"ROLLBACK");
        self.backend.request(Request::InjectedRollback);
        self.backend.prepared.unnamed.taken_by_query();
        self.backend.prepared.replay.forget();
        self.backend.ahead.roll_back();
        self.wait().map(|()| false)
    }

    /// The current Query is sent: if its ROLLBACK has been sent before it, it needs a transaction
    /// block to roll back.
    pub(crate) fn begin_again(&mut self, text: &[u8], edits: &mut Vec<Edit>) -> Result<(), Halt> {
        if !self.backend.ahead.take_rolled_back() {
            return Ok(());
        }
        self.passage.cut(self.backend)?;
        self.backend.inject_query(b"BEGIN", &mut self.passage.out);
        if let Some(word) = rolls_back_first(text) {
            // The tag of a COMMIT would say that it has committed.
            edits.push(Edit::in_place_of(word, b"ROLLBACK".to_vec()));
        }
        Ok(())
    }

    /// The server has everything under its name. (What a Parse executes it executes after its
    /// Bind.)
    fn without_more_names(&mut self, text: &[u8], effects: &Effects) -> Result<bool, Halt> {
        let executes = self.header.kind != frontend::PARSE;
        let has_any =
            self.backend.known.unverified.is_some() || !self.client.sql_statements().is_empty();
        if executes && has_any {
            self.record_executed_effects(text, effects)?;
        }
        Ok(false)
    }

    /// The same for names that a function has missed, before a transaction.
    pub(crate) fn bring_missed_names(&mut self) -> Result<(), Halt> {
        if self.backend.from_server.status() != TransactionStatus::Idle || self.backend.is_classic()
        {
            return Ok(());
        }
        self.lift_first()?;
        let mut names = self.client.take_missed_names();
        names.retain(|name| self.client.statement(name).is_some());
        if names.is_empty() {
            return Ok(());
        }
        self.passage.cut(self.backend)?;
        self.bring_ahead(&names);
        self.wait()
    }

    fn bring_ahead(&mut self, names: &[Box<[u8]>]) {
        for name in names {
            let Some(statement) = self.note_as_own(name) else { continue };
            self.backend.prepare_own_ahead(self.client, name, &statement, &mut self.passage.out);
        }
        self.backend.ahead.begin();
    }

    /// Notes that the server is to know the statement of this name by it. Returns the statement.
    fn note_as_own(&mut self, name: &[u8]) -> Option<Arc<Statement>> {
        let statement = self.client.statement(name)?.statement.clone();
        self.note_own(name, &statement);
        Some(statement)
    }

    /// A statement is about to be prepared under its client's own name.
    pub(crate) fn note_own(&mut self, name: &[u8], statement: &Arc<Statement>) {
        self.client.session.pins.insert(Part::SqlStatement);
        self.backend.note_parsed(significant(name), statement);
        self.backend.prepared.replay.forget();
    }

    /// The server could not prepare a statement that the current Query names.
    fn answer_refused(&mut self, error: &[u8]) -> Result<(), Halt> {
        let mut answer = Vec::with_capacity(error.len() + 32);
        if self.backend.ahead.take_rolled_back() {
            build::command_complete(&mut answer, b"ROLLBACK");
        }
        build::message(&mut answer, kind::ERROR, |out| out.extend_from_slice(error));
        answer.append(&mut self.client.take_unreported());
        self.passage.cut(self.backend)?;
        self.passage.skip(HEADER_BYTES + self.body.len());
        if self.client.listens() {
            // What its transaction has done to its channels is settled after the server's answer.
            self.passage.out.extend_from_slice(&build::SYNC);
            self.backend.request(Request::Sync);
        } else {
            build::ready_for_query(&mut answer, self.backend.from_server.status());
        }
        self.client.reply(&answer);
        Ok(())
    }

    /// Whether the server may know a statement by this name of the client's.
    pub(crate) fn may_be_own(&self, name: &[u8]) -> bool {
        let name = significant(name);
        self.client.has_sql_statement(name) || self.backend.may_have_named(name)
    }

    /// The statements one of which the server may know by this name of the client's: the outcome of
    /// each Parse is not kept.
    pub(crate) fn own_statements(&self, name: &[u8]) -> Vec<Arc<Statement>> {
        let name = significant(name);
        let known = self.client.sql_statements().iter().find(|known| *known.name == *name);
        let known = known.and_then(|known| known.parsed.as_ref());
        known.into_iter().chain(self.backend.noted_as_parsed(name)).cloned().collect()
    }

    /// A Close removes what the server may know by this name.
    pub(crate) fn close_own(&mut self, name: &[u8]) {
        if self.may_be_own(name) {
            self.client.session.pins.insert(Part::SqlStatement);
            self.backend.mark_unverified(PartSet::of(&[Part::SqlStatement]));
            self.backend.note_sql(&[], &self.client.session.desired, true, false);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_rollback_and_more() {
        for text in
            ["rollback; execute p", " ABORT\nwork ;x", "Rollback Transaction;", "rollback;;"]
        {
            assert!(rolls_back_first(text.as_bytes()).is_some(), "{text}");
        }
        assert_eq!(rolls_back_first(b" \nend;x"), Some(2..5));
        for text in [
            "rollback",
            "rollback to a; x",
            "rollback and chain; x",
            "commit prepared; x",
            "/**/rollback; x",
            "; rollback",
        ] {
            assert!(rolls_back_first(text.as_bytes()).is_none(), "{text}");
        }
    }

    #[test]
    fn names_are_found_wherever_they_stand() {
        let text = br#"DO $x$ BEGIN EXECUTE 'EXECUTE "a b"(1)'; EXECUTE format('%s S_1', 'execute'); END $x$"#;
        for name in [&b"a b"[..], b"S_1", b"x"] {
            assert!(words(text).any(|word| word == name), "{}", name.escape_ascii());
        }
        assert!(!words(text).any(|word| word == b"S_"));
    }
}
