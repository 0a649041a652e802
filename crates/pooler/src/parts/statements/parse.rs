//! Parse: names of prepared statements are replaced by the shared ones.
//!
//! # Model
//! ```text
//!   session mode, or nothing is shared ──────────────► as it is              parse_as_it_is
//!   too long to be looked at; read in two ways;
//!   no memory for it ────────────────────────────────► as it is, and pins    parse_unshared
//!   of no name ──────────────────────────────────────► as it is              parse_unnamed
//!   the name is taken ───────────────────────────────► the server's error    refuse_parse
//!   the server knows names of this client's ─────────► as it is              parse_as_it_is
//!   else ────────────────────────────────────────────► under a shared name,  parse_shared
//!                                                      or not at all
//! ```

use std::borrow::Cow;
use std::sync::Arc;

use crate::parts::settings::restore;
use crate::parts::statements::aborted;
use crate::parts::statements::client_names::ClientStatement;
use crate::parts::statements::own_named::NotedStatement;
use crate::parts::statements::own_names::shows_statements;
use crate::parts::statements::shared::{Statement, Unnamed};
use crate::relay::effects::{Effect, Effects};
use crate::relay::from_client::client_message::ClientMessage;
use crate::relay::halt::Halt;
use crate::relay::request_queue::{Change, Refusal, Request};
use crate::relay::socket::Socket;
use crate::session::commands::begins_with_any;
use crate::session::part::Part;
use crate::session::scan::{ScanOptions, SchemaChange, is_plain, scan};
use crate::wire::error::{ClientError, SqlState};
use crate::wire::frame::HEADER_BYTES;
use crate::wire::{TransactionStatus, build, frame};

/// A Parse for which nothing is noted by its serial.
const UNNOTED: Request = Request::Parse { serial: 0, statement: 0 };

/// The current Parse, read.
struct Parsing<'a> {
    name: &'a [u8],
    /// The text and the types of its parameters, after the name, as the server gets them; changed
    /// where the client's start values replace NULLs of set_config().
    rest: Cow<'a, [u8]>,
    /// An earlier message that is not answered yet may change how the text is read.
    in_doubt: bool,
    /// The text itself has no effect on the session.
    plain: bool,
}

impl Parsing<'_> {
    fn text(&self) -> &[u8] {
        frame::take_string(&self.rest).map_or(&*self.rest, |(text, _)| text)
    }
}

impl<'a, S: Socket> ClientMessage<'a, '_, S> {
    pub(crate) fn parse(&mut self) -> Result<(), Halt> {
        self.stats.client_parses.add(1);
        if self.client.is_session_mode() || self.backend.shares_nothing() {
            return self.parse_as_it_is();
        }
        if !self.is_whole() {
            return self.parse_unshared("a statement too long to inspect was prepared", true);
        }
        if self.is_of_unshared_name()? {
            self.stats.server_parses.add(1);
            return self.parse_as_it_is();
        }
        let Some(parsing) = self.read_parse() else {
            self.malformed(UNNOTED);
            return Ok(());
        };
        if parsing.name.is_empty() {
            return self.parse_unnamed(&parsing);
        }
        self.hold_for_name(parsing.name)?;
        if let Some(named) = self.client.statement(parsing.name) {
            let existing = named.statement.clone();
            return self.refuse_parse(parsing.name, &existing, &parsing.rest);
        }
        // Any earlier query may set what this Parse reads, also within a function.
        self.hold()?;
        if parsing.in_doubt {
            // The entry shared by clients with the same text comes from a certain reading.
            let certain = self.effects_of(parsing.text());
            let uncertain = self.effects_in_doubt(parsing.text());
            if uncertain != certain {
                self.before_unshared(&uncertain)?;
                return self
                    .parse_unshared("a statement was prepared that may be read in two ways", true);
            }
        }
        self.parse_shared(&parsing)
    }

    /// Whether only the server knows whether the name of the current Parse is taken: it knows
    /// statements by the client's own names, and this is not the name of a shared one.
    fn is_of_unshared_name(&mut self) -> Result<bool, Halt> {
        let name = frame::take_string(self.body).map_or(&b""[..], |(name, _)| name);
        if name.is_empty() || !self.client.session.pins.contains(Part::ProtocolStatement) {
            return Ok(false);
        }
        self.hold_for_name(name)?;
        Ok(self.client.statement(name).is_none())
    }

    /// Reads the current Parse. `None`: its body cannot be read.
    fn read_parse(&mut self) -> Option<Parsing<'a>> {
        let (name, rest) = frame::take_string(self.body)?;
        let (text, types) = frame::take_string(rest)?;
        let (count, types) = frame::take_u16(types)?;
        if types.len() != usize::from(count) * 4 {
            return None;
        }
        let in_doubt = self.is_in_doubt(text);
        let plain =
            !in_doubt && self.scan_options() == ScanOptions::default() && self.known.is_plain(text);
        let own = if plain { None } else { self.in_place_of_nulls(rest) };
        let rest = own.map_or(Cow::Borrowed(rest), Cow::Owned);
        Some(Parsing { name, rest, in_doubt, plain })
    }

    /// Passes the Parse on as the server gets it.
    fn pass_parsing(&mut self, parsing: &Parsing<'_>) -> Result<(), Halt> {
        self.stats.server_parses.add(1);
        match &parsing.rest {
            Cow::Owned(body) => self.pass_parse(parsing.name, body),
            Cow::Borrowed(_) => {
                self.pass();
                Ok(())
            }
        }
    }

    /// A Parse of a client whose messages go to the server under its own names.
    fn parse_as_it_is(&mut self) -> Result<(), Halt> {
        let name_and_rest = frame::take_string(self.body);
        let text = name_and_rest.and_then(|(_, rest)| frame::take_string(rest));
        let effects = text.map(|(text, _)| self.effects_of_unshared(text));
        if let Some(unusual) = effects.as_ref().and_then(|effects| effects.unusual.as_ref()) {
            self.hold_for_vacancy(unusual)?;
        }
        if let Some(effects) = effects.as_ref().filter(|_| !self.client.is_session_mode()) {
            self.before_unshared(effects)?;
        }
        self.note_parsed_change(effects.as_ref().map_or(SchemaChange::All, |one| one.schema));
        let is_unnamed = name_and_rest.is_some_and(|(name, _)| name.is_empty());
        if is_unnamed && !self.client.is_session_mode() {
            self.backend.displace_unnamed_natively(self.client);
        }
        match name_and_rest.and_then(|(name, rest)| Some((name, self.in_place_of_nulls(rest)?))) {
            Some((name, body)) => self.pass_parse(name, &body)?,
            None => self.pass(),
        }
        let noted = match name_and_rest.filter(|_| self.client.has_start_values()) {
            Some((name, _)) => {
                let text = text.map(|(text, _)| text);
                Some((name, self.to_be_noted(text.zip(effects.as_ref()))?))
            }
            None => None,
        };
        self.request_noting(UNNOTED, noted);
        if let Some(effects) = &effects {
            self.backend.note_names(effects);
        }
        // It is not examined again when it is executed.
        self.backend.session.doubt_texts(
            effects.as_ref().is_none_or(|effects| effects.may(Effect::Rereads)),
            false,
        );
        if effects.as_ref().is_none_or(|effects| effects.sets.is_some()) {
            self.backend.session.doubt_plans();
        }
        if self.client.is_session_mode() {
            // What no command can undo must not be left to the next session.
            if effects.is_none_or(|effects| effects.leaves_what_stays()) {
                self.backend.spoil_for_good();
            }
        } else {
            if effects.as_ref().is_none_or(Effects::listens) {
                self.client.session.pins.insert(Part::Listen);
            }
            if !is_unnamed {
                self.client.session.pins.insert(Part::ProtocolStatement);
            }
            self.backend.lending.spoil("statements are not shared");
        }
        Ok(())
    }

    /// A Parse of the unnamed statement.
    fn parse_unnamed(&mut self, parsing: &Parsing<'_>) -> Result<(), Halt> {
        if parsing.in_doubt {
            self.hold()?;
        }
        let text = parsing.text();
        let effects = match (parsing.plain, parsing.in_doubt) {
            (true, _) => self.backend.effects_of_functions(text),
            (false, true) => Some(self.effects_in_doubt(text)),
            (false, false) => Some(self.effects_of(text)),
        };
        if let Some(effects) = &effects {
            self.bring_own_names_of(text, effects)?;
            if effects.may(Effect::ReadsSequences) {
                self.before_sequences()?; // its Bind comes within the pipeline
            }
            if effects.pins.contains(Part::SessionCatalog) {
                self.before_channels()?;
            }
        }
        let epoch = self.backend.pool.schema_epoch_at(self.now);
        let unnamed =
            Unnamed::new(&parsing.rest, self.client.session.desired.clone(), effects, epoch);
        self.pass_parsing(parsing)?;
        let owed = Request::Parse { serial: self.serial, statement: 0 };
        let change = self.backend.give_unnamed(self.client, unnamed);
        self.backend.request_with(owed, change);
        Ok(())
    }

    /// A Parse of a named statement that clients share, if there is memory for it.
    fn parse_shared(&mut self, parsing: &Parsing<'_>) -> Result<(), Halt> {
        let (name, text) = (parsing.name, parsing.text());
        let own_name = self.may_be_own(name);
        let pool = self.backend.pool.clone();
        let desired = &self.client.session.desired;
        let its_own = self.client.has_room_for_name(parsing.rest.len());
        let has_room = its_own && pool.statements.memory().has_room_for_names();
        let statement = has_room.then(|| {
            let basis = self.client.session.basis;
            pool.statements.intern_if_room(&parsing.rest, basis, desired, || self.effects_of(text))
        });
        let Some(statement) = statement.flatten() else {
            let effects = self.effects_of(text);
            if effects.listens() {
                self.client.session.pins.insert(Part::Listen); // it is not examined when it is executed
            }
            self.before_unshared(&effects)?;
            let reason = match its_own {
                true => "prepared_statements_memory is full",
                false => "its client has prepared as many statements as one may share",
            };
            return self.parse_unshared(reason, false);
        };
        self.bring_own_names_of(text, &statement.effects)?;
        // A statement that lists prepared statements lists itself, which must show its own name and
        // not Hawser's as well.
        let lists = shows_statements(text, &statement.effects) && !self.backend.is_classic();
        if own_name || lists {
            // The server knows whether the name is taken, and by what, and will know this statement
            // by it.
            self.note_own(name, &statement);
            self.pass_parsing(parsing)?;
            self.backend.request(UNNOTED);
            return Ok(());
        }
        self.name_shared(parsing, statement)
    }

    /// Gives a shared statement its client's name. The server gets a Parse if it lacks the
    /// statement or must answer itself.
    fn name_shared(
        &mut self,
        parsing: &Parsing<'_>,
        statement: Arc<Statement>,
    ) -> Result<(), Halt> {
        let epoch = self.backend.pool.schema_epoch_at(self.now);
        let there = self.backend.prepared.statements.touch(statement.id);
        let known = there && self.backend.prepared.statements.is_new_enough(statement.id, epoch);
        let noted = statement.is_noted();
        self.passage.cut(self.backend)?;
        // In a failed transaction, and while it is not known what an earlier pipeline did to the
        // transaction, only the server knows whether it accepts this one. A copy from before a SET
        // of the same pipeline differs.
        let servers_to_say = self.backend.settings_in_doubt()
            || self.backend.requests.is_after_setter()
            || self.backend.from_server.status() == TransactionStatus::Failed
            || (self.backend.requests.owes_ready() && self.backend.requests.owes_client());
        let owed = if known && !servers_to_say && !noted {
            Request::ParseKnown
        } else {
            if there {
                build::close_statement(&mut self.passage.out, &statement.name);
                self.backend.request(Request::Injected);
            }
            self.backend.note_prepared(&statement, &mut self.passage.out);
            build::parse(&mut self.passage.out, &statement.name, &parsing.rest);
            if self.backend.requests.is_after_setter() {
                self.backend.prepared.statements.is_after_setter(statement.id);
            }
            self.stats.server_parses.add(1);
            Request::Parse { serial: self.serial, statement: statement.id }
        };
        self.passage.skip(self.header.total());
        let named = ClientStatement {
            prepared_in: Some((self.backend.id(), self.backend.requests.pipeline())),
            after_setter: self.backend.requests.is_after_setter(),
            ..ClientStatement::new(statement, self.serial, epoch, &self.client.session.desired)
        };
        self.backend.request_naming(owed, self.client, (parsing.name, named), self.hash_key);
        Ok(())
    }

    /// The body of a Parse, after the name, with the client's start values in place of the NULLs of
    /// set_config(). `None` if it stays as it is.
    fn in_place_of_nulls(&mut self, rest: &[u8]) -> Option<Vec<u8>> {
        if !self.client.has_start_values() || !self.is_whole() {
            return None;
        }
        let (text, types) = frame::take_string(rest)?;
        let options = self.scan_options();
        let plain = options == ScanOptions::default() && is_plain(text);
        if plain || self.is_in_doubt(text) {
            return None;
        }
        let findings = scan(text, options);
        let edits = restore::values_for_nulls(&findings, &self.client.record.start);
        if edits.is_empty() {
            return None;
        }
        let longer = restore::longer(text, &edits, self.reads_utf8());
        self.backend.prepared.longer.parse(self.serial, longer);
        let mut body = Vec::with_capacity(rest.len() + 64);
        restore::write_edited(text, &edits, &mut body);
        body.push(0);
        body.extend_from_slice(types);
        Some(body)
    }

    /// Passes a Parse on with another body after the name.
    fn pass_parse(&mut self, name: &[u8], body: &[u8]) -> Result<(), Halt> {
        self.passage.cut(self.backend)?;
        build::parse(&mut self.passage.out, name, body);
        self.passage.skip(self.header.total());
        Ok(())
    }

    /// Whether texts are in UTF-8.
    pub(crate) fn reads_utf8(&self) -> bool {
        let encoding = self.client.session.desired.get(b"client_encoding");
        encoding.or(self.backend.session.own.parameters.get(b"client_encoding")) == Some(b"UTF8")
    }

    /// The effects of a text that is not examined again when it is executed.
    fn effects_of_unshared(&self, text: &[u8]) -> Effects {
        if self.is_in_doubt(text) { self.effects_in_doubt(text) } else { self.effects_of(text) }
    }

    /// The current Parse goes to this backend alone, where its client stays, and is not examined
    /// again: what it must not find of other clients is removed now.
    fn before_unshared(&mut self, effects: &Effects) -> Result<(), Halt> {
        if effects.pins.contains(Part::SessionCatalog) {
            self.clear_catalog()?;
        }
        if effects.may(Effect::ReadsSequences) {
            self.before_sequences()?;
        }
        if effects.listens() {
            self.client.session.pins.insert(Part::Listen);
        }
        self.note_parsed_change(effects.schema);
        Ok(())
    }

    /// Only the server knows under which name the text of the current Parse is executed.
    fn note_parsed_change(&mut self, change: SchemaChange) {
        self.backend.note_schema_change(change);
        if change == SchemaChange::All {
            self.backend.known.side_effects.note_parsed();
        }
    }

    /// A Parse that is not kept: it goes to this backend alone, and pins the client. `why`: the
    /// reason for which the backend is closed afterwards. `looks`: it may look at other prepared
    /// statements.
    fn parse_unshared(&mut self, why: &'static str, looks: bool) -> Result<(), Halt> {
        let name = frame::take_string(self.body).map_or(self.body, |(name, _)| name);
        if !name.is_empty() {
            self.hold_for_name(name)?;
        }
        if let Some(named) = self.client.statement(name) {
            let existing = named.statement.clone();
            self.refuse_parse(name, &existing, b"\0\0\0")?;
            let rest = self.header.body - self.body.len();
            self.client.pending_session().dropped.rest_of_message(rest);
            return Ok(());
        }
        if looks {
            self.clear_catalog()?;
        }
        if !self.is_whole() {
            self.before_sequences_unseen()?; // its Bind comes within the pipeline
        }
        if !name.is_empty() {
            self.client.session.pins.insert(Part::ProtocolStatement);
        }
        // Its text may not have been seen whole: it may do anything.
        self.backend.session.doubt_texts(true, false);
        self.backend.session.doubt_plans();
        const ROWS_ONLY: [&[u8]; 6] =
            [b"delete", b"insert", b"merge", b"select", b"update", b"values"];
        let rest = frame::take_string(self.body).map_or(self.body, |(_, rest)| rest);
        if !begins_with_any(rest, &ROWS_ONLY) {
            self.note_parsed_change(SchemaChange::All);
        }
        self.backend.lending.spoil(why);
        if name.is_empty() {
            self.backend.displace_unnamed_natively(self.client);
        }
        self.pass();
        let noted = Some((name, NotedStatement::default()));
        self.request_noting(UNNOTED, noted);
        self.stats.server_parses.add(1);
        Ok(())
    }

    /// The client names a statement that exists: the server is asked to prepare the text (`rest` of
    /// the Parse) under the name that the existing one has there, and refuses that as its last
    /// step, if it finds nothing else wrong. Its error is replaced by the right one.
    fn refuse_parse(
        &mut self,
        name: &[u8],
        existing: &Arc<Statement>,
        rest: &[u8],
    ) -> Result<(), Halt> {
        let stands_in = self.cannot_bring(existing);
        if stands_in {
            self.bring_empty()?;
        } else {
            self.bring(existing)?;
        }
        let known_as = if stands_in { aborted::EMPTY } else { &*existing.name };
        let mut error = Vec::new();
        ClientError::error(
            SqlState::DUPLICATE_PREPARED_STATEMENT,
            format!("prepared statement \"{}\" already exists", String::from_utf8_lossy(name)),
        )
        .write(&mut error);
        self.passage.cut(self.backend)?;
        self.passage.skip(HEADER_BYTES + self.body.len());
        build::parse(&mut self.passage.out, known_as, rest);
        let of = Some(SqlState::DUPLICATE_PREPARED_STATEMENT);
        let refusal = Box::new(Refusal { answer: error.into(), of });
        self.backend.request_with(Request::Refused, Some(Change::Refuses(refusal)));
        Ok(())
    }
}
