//! Parse, Bind, Describe and Close: names of prepared statements are replaced by the shared ones,
//! and what the backend lacks is brought ahead.

use std::sync::Arc;

use super::fit::Use;
use super::own_names::shows_statements;
use super::{ClientMessage, aborted};
use crate::engine::client::ClientStatement;
use crate::engine::effects::Effects;
use crate::engine::from_client::Halt;
use crate::engine::noted::NotedStatement;
use crate::engine::request_queue::{Change, Refusal, Request};
use crate::engine::socket::Socket;
use crate::engine::statement::{Statement, Unnamed, begins_with_any};
use crate::engine::{limits, restore};
use crate::session::part::Part;
use crate::session::scan::{ScanOptions, SchemaChange, is_plain, scan};
use crate::wire::error::{ClientError, SqlState};
use crate::wire::frame::{self, HEADER_BYTES};
use crate::wire::{TransactionStatus, build};

/// What a Describe or Close is about: `S` or `P`, and the name.
fn target(body: &[u8]) -> Option<(u8, &[u8])> {
    let (&what, name) = body.split_first()?;
    Some((what, frame::take_string(name)?.0))
}

impl<S: Socket> ClientMessage<'_, '_, S> {
    pub(super) fn parse(&mut self) -> Result<(), Halt> {
        self.stats.client_parses.add(1);
        if self.client.is_session_mode() || self.backend.shares_nothing() {
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
            match name_and_rest.and_then(|(name, rest)| Some((name, self.in_place_of_nulls(rest)?)))
            {
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
            self.request_noting(Request::Parse { serial: 0, statement: 0 }, noted);
            if let Some(effects) = &effects {
                self.backend.note_names(effects);
            }
            // It is not looked at again when it is executed.
            self.backend.rereading |= effects.as_ref().is_none_or(|effects| effects.rereads);
            if self.client.is_session_mode() {
                // What no command can undo must not be left to the next session.
                if effects.is_none_or(|effects| effects.leaves_what_stays()) {
                    self.backend.spoil_for_good();
                }
            } else {
                if effects.as_ref().is_none_or(Effects::listens) {
                    self.client.pins.insert(Part::Listen);
                }
                // The unnamed one, too, is what the server has.
                self.client.pins.insert(Part::ProtocolStatement);
                self.client.pins.insert(Part::UnnamedStatement);
                self.backend.spoiled.get_or_insert("statements are not shared");
            }
            return Ok(());
        }
        let malformed = Request::Parse { serial: 0, statement: 0 };
        if !self.is_whole() {
            return self.parse_unshared("a statement too long to be looked at was prepared", true);
        }
        let Some((name, rest)) = frame::take_string(self.body) else {
            self.malformed(malformed);
            return Ok(());
        };
        let Some((text, types)) = frame::take_string(rest) else {
            self.malformed(malformed);
            return Ok(());
        };
        if frame::take_u16(types).is_none_or(|(count, types)| types.len() != usize::from(count) * 4)
        {
            self.malformed(malformed);
            return Ok(());
        }
        let in_doubt = self.is_in_doubt(text);
        let plain =
            !in_doubt && self.scan_options() == ScanOptions::default() && self.known.is_plain(text);
        let own = if plain { None } else { self.in_place_of_nulls(rest) };
        let rest = own.as_deref().unwrap_or(rest);
        let text = frame::take_string(rest).map_or(text, |(text, _)| text);
        if name.is_empty() {
            if in_doubt {
                self.hold()?;
            }
            let effects = match (plain, in_doubt) {
                (true, _) => self.backend.effects_of_functions(text),
                (false, true) => Some(self.effects_in_doubt(text)),
                (false, false) => Some(self.effects_of(text)),
            };
            if let Some(effects) = &effects {
                self.bring_own_names_of(text, effects)?;
                if effects.reads_sequences {
                    self.before_sequences()?; // its Bind comes within the pipeline
                }
                if effects.pins.contains(Part::SessionCatalog) {
                    self.before_channels()?;
                }
            }
            let epoch = self.backend.pool.schema_epoch_at(self.now);
            let unnamed = Unnamed::new(rest, self.client.desired.clone(), effects, epoch);
            let before = self.client.unnamed.replace(unnamed.clone());
            let serial = std::mem::replace(&mut self.client.unnamed_serial, self.serial);
            let displaced = self.backend.displaced(before, serial);
            let pipeline = self.backend.requests.pipeline();
            let behind = self.backend.requests.is_behind_setter();
            self.backend.unnamed.parsed(unnamed, pipeline, behind);
            match &own {
                Some(body) => self.pass_parse(name, body)?,
                None => self.pass(),
            }
            let owed = Request::Parse { serial: self.serial, statement: 0 };
            self.backend.request_with(owed, displaced);
            self.stats.server_parses.add(1);
            return Ok(());
        }
        self.hold_for_name(name)?;
        if let Some(named) = self.client.statement(name) {
            let existing = named.statement.clone();
            return self.refuse_parse(name, &existing, rest);
        }
        if self.client.pins.contains(Part::ProtocolStatement) {
            // Long statements have gone to this server under the client's own names: it knows
            // whether this name is one of them.
            let effects = self.effects_of_unshared(text);
            self.before_unshared(&effects)?;
            self.backend.note_names(&effects);
            self.backend.rereading |= effects.rereads;
            let noted = self.to_be_noted(Some((text, &effects)))?;
            match &own {
                Some(body) => self.pass_parse(name, body)?,
                None => self.pass(),
            }
            self.request_noting(malformed, Some((name, noted)));
            self.stats.server_parses.add(1);
            return Ok(());
        }
        // Any query ahead may set what this Parse reads, be it within a function.
        self.hold()?;
        let own_name = self.may_be_own(name);
        if in_doubt {
            // What others with the same text share is read for certain.
            let certain = self.effects_of(text);
            let uncertain = self.effects_in_doubt(text);
            if uncertain != certain {
                self.before_unshared(&uncertain)?;
                return self
                    .parse_unshared("a statement was prepared that may be read in two ways", true);
            }
        }
        let pool = self.backend.pool.clone();
        let desired = &self.client.desired;
        let memory = pool.statements.memory();
        let Some(statement) = pool
            .statements
            .intern_if_room(rest, self.client.basis, desired, || self.effects_of(text))
            .filter(|_| memory.has_room_for_names())
        else {
            let effects = self.effects_of(text);
            if effects.listens() {
                self.client.pins.insert(Part::Listen); // it is not looked at when it is executed
            }
            self.before_unshared(&effects)?;
            return self.parse_unshared("prepared_statements_memory is full", false);
        };
        self.bring_own_names_of(text, &statement.effects)?;
        // One that lists prepared statements lists itself, by its own name and not by ours as well.
        let lists = shows_statements(text, &statement.effects) && !self.backend.is_classic();
        if own_name || lists {
            // The server knows whether it is taken, and by what, and will know this one by it.
            self.note_own(name, &statement);
            match &own {
                Some(body) => self.pass_parse(name, body)?,
                None => self.pass(),
            }
            self.backend.request(malformed);
            self.stats.server_parses.add(1);
            return Ok(());
        }
        let epoch = pool.schema_epoch_at(self.now);
        let named = ClientStatement {
            statement: statement.clone(),
            serial: self.serial,
            pipeline: self.backend.requests.pipeline(),
            behind: self.backend.requests.is_behind_setter(),
            seen: Arc::default(),
            epoch,
        };
        if self.client.has_room_for_name().is_err() {
            return Err(Halt::Refused(
                ClientError::fatal(
                    SqlState::CONFIGURATION_LIMIT_EXCEEDED,
                    format!(
                        "more than {} prepared statements in one session",
                        limits::CLIENT_STATEMENTS_MAX
                    ),
                )
                .hint("Close the statements that are no longer needed."),
            ));
        }
        let there = self.backend.statements.touch(statement.id);
        let known = there && self.backend.statements.is_new_enough(statement.id, epoch);
        let noted = statement.is_noted();
        self.passage.cut(self.backend)?;
        // In a failed transaction, and while what an earlier pipeline did to the transaction is not
        // known, the server must say itself whether it takes this one.
        let servers_to_say = self.backend.settings_in_doubt()
            || self.backend.status == TransactionStatus::Failed
            || (self.backend.requests.owes_ready() && self.backend.requests.owes_client());
        if known && !servers_to_say && !noted {
            self.passage.skip(self.header.total());
            let (owed, key) = (Request::ParseKnown, self.hash_key);
            self.backend.request_naming(owed, self.client, (name, named), key);
        } else {
            if there {
                build::close_statement(&mut self.passage.out, &statement.name);
                self.backend.request(Request::Injected);
            }
            self.backend.note_prepared(&statement, &mut self.passage.out);
            build::parse(&mut self.passage.out, &statement.name, rest);
            self.passage.skip(self.header.total());
            let owed = Request::Parse { serial: self.serial, statement: statement.id };
            self.backend.request_naming(owed, self.client, (name, named), self.hash_key);
            self.stats.server_parses.add(1);
        }
        Ok(())
    }

    /// The body of a Parse, after the name, in which the client's start values stand in place of
    /// the NULLs of set_config(). `None` if it stays as it is.
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
        let replacements = restore::values_for_nulls(&findings, &self.client.record.start);
        if replacements.is_empty() {
            return None;
        }
        let longer = restore::lengthened(text, &replacements, self.reads_utf8()).collect();
        self.backend.longer_parse = Some((self.serial, longer));
        let mut body = restore::replaced(text, &replacements, &mut []);
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
    pub(super) fn reads_utf8(&self) -> bool {
        let encoding = self.client.desired.get(b"client_encoding");
        encoding.or(self.backend.parameters.get(b"client_encoding")) == Some(b"UTF8")
    }

    /// What a text does that is not looked at again when it is executed.
    fn effects_of_unshared(&self, text: &[u8]) -> Effects {
        if self.is_in_doubt(text) { self.effects_in_doubt(text) } else { self.effects_of(text) }
    }

    /// The Parse at hand goes to this backend alone, where its client stays, and is not looked at again:
    /// what it must not find there of others is taken away now.
    fn before_unshared(&mut self, effects: &Effects) -> Result<(), Halt> {
        if effects.pins.contains(Part::SessionCatalog) {
            self.clear_catalog()?;
        }
        if effects.reads_sequences {
            self.before_sequences()?;
        }
        if effects.listens() {
            self.client.pins.insert(Part::Listen);
        }
        self.note_parsed_change(effects.schema);
        Ok(())
    }

    /// The server alone knows by what name the text is executed that the Parse at hand has.
    fn note_parsed_change(&mut self, change: SchemaChange) {
        self.backend.note_schema_change(change);
        if change == SchemaChange::All {
            self.backend.at_stake.note_parsed();
        }
    }

    /// A Parse that is not kept: it goes to this backend alone, and pins the client. Why is the
    /// reason for which the backend is closed after it. `looks`: it may look at what else is prepared.
    fn parse_unshared(&mut self, why: &'static str, looks: bool) -> Result<(), Halt> {
        let name = frame::take_string(self.body).map_or(self.body, |(name, _)| name);
        if let Some(named) = self.client.statement(name) {
            let existing = named.statement.clone();
            self.refuse_parse(name, &existing, b"\0\0\0")?;
            let rest = self.header.body - self.body.len();
            self.client.pending_session().discard = rest;
            return Ok(());
        }
        if looks {
            self.clear_catalog()?;
        }
        self.client.pins.insert(if name.is_empty() {
            Part::UnnamedStatement
        } else {
            Part::ProtocolStatement
        });
        // Its text may not have been seen whole: anything may be in it.
        self.backend.rereading = true;
        const ROWS_ONLY: [&[u8]; 6] =
            [b"delete", b"insert", b"merge", b"select", b"update", b"values"];
        let rest = frame::take_string(self.body).map_or(self.body, |(_, rest)| rest);
        if !begins_with_any(rest, &ROWS_ONLY) {
            self.note_parsed_change(SchemaChange::All);
        }
        self.backend.spoiled.get_or_insert(why);
        if name.is_empty() {
            self.client.unnamed = None;
            self.client.unnamed_serial = 0;
            self.backend.unnamed.closed(self.backend.requests.pipeline());
        }
        self.pass();
        let noted = Some((name, NotedStatement::default()));
        self.request_noting(Request::Parse { serial: 0, statement: 0 }, noted);
        self.stats.server_parses.add(1);
        Ok(())
    }

    /// The client names a statement that exists: the server is asked to prepare the text (`rest`
    /// of the Parse) under the name that the existing one has there, and refuses that as its last
    /// step, once it has found nothing else wrong. Its error is replaced by the one that is due.
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

    pub(super) fn bind(&mut self) -> Result<(), Halt> {
        self.stats.binds.add(1);
        if self.backend.at_stake.has_parsed() {
            self.backend.note_schema_change(SchemaChange::All);
        }
        let names = frame::take_string(self.body)
            .and_then(|(portal, rest)| Some((portal, frame::take_string(rest)?.0)));
        if self.client.is_session_mode() {
            if let Some((portal, name)) = names {
                self.bind_native(portal, name)?;
                return self.pass_bind_native(portal, name, None);
            }
            self.malformed(Request::Bind { statement: 0 });
            return Ok(());
        }
        let Some((portal, name)) = names else {
            self.malformed(Request::Bind { statement: 0 });
            return Ok(());
        };
        self.hold_for_name(name)?;
        self.hold_bind_for_vacancy(name)?;
        self.note_setter(name);
        self.client.bound = None;
        if name.is_empty() {
            if let Some(unnamed) = &self.client.unnamed
                && unnamed.effects().may_name_statements()
            {
                let unnamed = unnamed.clone();
                self.bring_own_names_of(unnamed.text(), unnamed.effects())?;
            }
            if self.bring_unnamed()? {
                return self.refuse_changed(&[portal, b"\0"].concat(), name, None);
            }
            if let Some(unnamed) = &self.client.unnamed {
                let draws = !unnamed.draws_nothing;
                if unnamed.has_no_effects() {
                    if self.binds_deallocate(portal, None)? {
                        return self.bind_instead(portal, name);
                    }
                    self.client.note_portal(portal, None)?;
                    self.backend.drawn.note(draws);
                    self.pass();
                    self.backend.request(Request::Bind { statement: 0 });
                    return Ok(());
                }
                let unnamed = unnamed.clone();
                let (body, effects) = (&unnamed.body, unnamed.effects());
                let unusual = effects.unusual.as_deref();
                if self.binds_deallocate(portal, unusual)? {
                    return self.bind_instead(portal, name);
                }
                self.client.note_portal(portal, unusual)?;
                self.backend.drawn.note(draws);
                if let Some(written) =
                    self.with_channels(body, self.client.basis, &unnamed.settings, effects)
                {
                    self.bring(&written)?;
                    return self.pass_bind(portal, name, &written, None);
                }
                return self.pass_bind_native(portal, name, Some((unnamed.text(), effects)));
            }
            self.bind_native(portal, name)?;
            return self.pass_bind_native(portal, name, None);
        }
        let mut named = self.client.statement(name);
        if named.is_some_and(|one| one.statement.is_superseded()) {
            self.client.make_anew(name, self.backend);
            named = self.client.statement(name);
        }
        if let Some(one) = named
            && one.statement.effects.may_name_statements()
        {
            let statement = one.statement.clone();
            self.bring_own_names_of(statement.text(), &statement.effects)?;
            named = self.client.statement(name); // itself, perhaps
        }
        let Some(named) = named else {
            // The server knows it, or says that there is none.
            let own = self.own_statements(name);
            if !own.is_empty() {
                return self.bind_own(portal, name, &own);
            }
            self.bind_native(portal, name)?;
            return self.pass_bind_native(portal, name, None);
        };
        let named = named.clone();
        let statement = named.statement.clone();
        if !statement.effects.prepares.is_empty() {
            self.hold()?;
        }
        if let Some(unusual) = &statement.effects.unusual {
            self.hold()?;
            self.hold_for_listener(unusual)?;
        }
        self.before_catalog(&statement.effects)?; // it may take this one away
        let Some(ClientStatement { statement, serial, seen, .. }) =
            self.fit(name, named, Use::Binds { unnamed: portal.is_empty() })?
        else {
            return self.refuse_changed(&[portal, b"\0"].concat(), name, None);
        };
        let first = self.backend.has_sent_settings_alone()
            || (!self.backend.requests.owes_client()
                && !self.backend.requests.is_in_pipeline()
                && self.backend.status == TransactionStatus::Idle);
        if first && self.is_whole() && self.backend.statements.touch(statement.id) {
            let message = self.passage.current(HEADER_BYTES + self.body.len());
            self.backend.replay.begin(message, serial);
        }
        let bound = seen.clone();
        if portal.is_empty() {
            self.client.bound = Some(seen);
        } else if seen.told().rows == 0 {
            self.client.note_described(portal, seen);
        }
        if self.refuse_bind(portal, name, &statement)? {
            return Ok(());
        }
        let Statement { body, basis, settings, effects, .. } = &*statement;
        let written = self.with_channels(body, *basis, settings, effects);
        self.bring(written.as_ref().unwrap_or(&statement))?;
        if let Some(copy) = self.backend.statements.get(statement.id) {
            bound.binds(statement.id, copy.since);
        }
        if !statement.effects.is_none() {
            self.before(&statement.effects, true)?;
            self.foresee(statement.text(), &statement.effects);
        }
        let unusual = statement.effects.unusual.as_deref();
        if self.binds_deallocate(portal, unusual)? {
            return self.bind_instead(portal, name);
        }
        self.client.note_portal(portal, unusual)?;
        self.backend.drawn.note(!statement.draws_nothing);
        self.pass_bind(portal, name, &statement, written.as_deref())
    }

    /// A statement is bound: notes if it may change settings when it is executed.
    fn note_setter(&mut self, name: &[u8]) {
        let sets_nothing = match name.is_empty() {
            true => self.client.unnamed.as_ref().is_some_and(|unnamed| unnamed.sets_nothing()),
            false => self.client.statement(name).is_some_and(|one| one.statement.sets_nothing()),
        };
        if !sets_nothing {
            self.backend.requests.bind_setter();
        }
    }

    /// The server knows the statement by its client's own name.
    fn bind_own(&mut self, portal: &[u8], name: &[u8], all: &[Arc<Statement>]) -> Result<(), Halt> {
        for statement in all {
            let effects = &statement.effects;
            if !effects.prepares.is_empty() {
                self.hold()?;
            }
            if let Some(unusual) = &effects.unusual {
                self.hold()?;
                self.hold_for_listener(unusual)?;
            }
            self.bring_own_names_of(statement.text(), effects)?;
        }
        for statement in all.iter().filter(|statement| !statement.effects.is_none()) {
            self.before(&statement.effects, true)?;
        }
        let unusual = all.last().and_then(|statement| statement.effects.unusual.as_deref());
        if self.binds_deallocate(portal, unusual)? {
            return self.bind_instead(portal, name);
        }
        self.client.note_portal(portal, unusual)?;
        // (Which of several it is the server knows.)
        let only = if let [only] = all { Some((only.text(), &only.effects)) } else { None };
        self.pass_bind_native(portal, name, only)
    }

    /// See [`Self::bring_own_names`]: of a message of a pipeline. (In place of a DEALLOCATE by itself, a
    /// stand-in is bound.)
    fn bring_own_names_of(&mut self, text: &[u8], effects: &Effects) -> Result<(), Halt> {
        let unusual = effects.unusual.as_ref();
        if unusual.is_none_or(|unusual| unusual.deallocates.is_none()) {
            self.bring_own_names(text, effects)?;
        }
        Ok(())
    }

    /// Sees to it that the server has the statement. Waits while that is not known.
    pub(super) fn bring(&mut self, statement: &Arc<Statement>) -> Result<(), Halt> {
        if self.backend.requests.owes_ready()
            && let Some(since) = self.backend.statements.prepared_in(statement.id)
            && self.backend.requests.is_in_doubt(since)
        {
            return self.wait();
        }
        if !self.backend.statements.touch(statement.id) {
            // The settings around its Parse are put back after it.
            self.hold()?;
        }
        self.passage.cut(self.backend)?;
        if self.backend.prepare(statement, &mut self.passage.out) {
            self.stats.server_parses.add(1);
        }
        Ok(())
    }

    /// Sees to it that the server's unnamed statement is the client's, or none. Whether it is another
    /// now than the client knows.
    fn bring_unnamed(&mut self) -> Result<bool, Halt> {
        if self.unnamed_has_changed() {
            return Ok(true);
        }
        let with_effects = self.client.unnamed.as_ref().filter(|one| !one.has_no_effects());
        let with_effects = with_effects.cloned();
        if let Some(effects) = with_effects.as_ref().map(|unnamed| unnamed.effects()) {
            if let Some(unusual) = &effects.unusual {
                self.hold()?;
                self.hold_for_listener(unusual)?;
            }
            if !effects.prepares.is_empty() {
                self.hold()?;
            }
            self.before_catalog(effects)?; // it may take the server's away
        }
        let same = self.backend.unnamed.is(self.client.unnamed.as_ref());
        if !same && !self.client.pins.contains(Part::UnnamedStatement) {
            self.hold()?;
            self.passage.cut(self.backend)?;
            match &self.client.unnamed {
                Some(unnamed) => {
                    self.backend.prepare_unnamed(unnamed, &mut self.passage.out);
                    self.stats.server_parses.add(1);
                }
                None => {
                    build::close_statement(&mut self.passage.out, b"");
                    self.backend.request(Request::Injected);
                }
            }
            let pipeline = self.backend.requests.pipeline();
            self.backend.unnamed.brought(self.client.unnamed.clone(), pipeline);
            if let Some(unnamed) = &self.client.unnamed.clone() {
                self.compare_unnamed(unnamed)?;
            }
        }
        if let Some(unnamed) = with_effects
            && !unnamed.effects().is_none()
        {
            self.before(unnamed.effects(), true)?;
            self.foresee(unnamed.text(), unnamed.effects());
        }
        Ok(false)
    }

    pub(super) fn describe(&mut self) -> Result<(), Halt> {
        let Some((what, name)) = target(self.body) else {
            self.malformed(Request::DescribePortal);
            return Ok(());
        };
        if what != b'S' {
            self.pass();
            let bound = self.client.described_by(name).map(Change::Describes);
            self.backend.request_with(Request::DescribePortal, bound);
            return Ok(());
        }
        if !self.client.is_session_mode() {
            self.hold_for_name(name)?;
            if name.is_empty() {
                if self.bring_unnamed()? {
                    let told = self.client.unnamed.as_ref().and_then(|one| one.told()).cloned();
                    return self.refuse_changed(b"S", name, told.as_deref());
                }
                if let Some(unnamed) = &self.client.unnamed {
                    let noting = Change::Describes(unnamed.noting());
                    self.pass();
                    self.backend
                        .request_with(Request::DescribeStatement { statement: 0 }, Some(noting));
                    return Ok(());
                }
            } else if let Some(named) = self.client.statement(name) {
                let named = named.clone();
                if self.describe_empty(name, &named.statement)? {
                    return Ok(());
                }
                let told = named.seen.clone();
                let Some(ClientStatement { statement, seen, .. }) =
                    self.fit(name, named, Use::Describes)?
                else {
                    return self.refuse_changed(b"S", name, Some(&told));
                };
                self.bring(&statement)?;
                self.pass_with(name.len() + 2, |out| {
                    out.push(b'S');
                    build::string(out, &statement.name);
                })?;
                let owed = Request::DescribeStatement { statement: statement.id };
                self.backend.request_with(owed, Some(Change::Describes(seen)));
                return Ok(());
            }
        }
        self.pass();
        self.backend.request(Request::DescribeStatement { statement: 0 });
        Ok(())
    }

    pub(super) fn close(&mut self) -> Result<(), Halt> {
        let Some((what, name)) = target(self.body) else {
            self.malformed(Request::Close);
            return Ok(());
        };
        if what == b'S' && !self.client.is_session_mode() {
            self.hold_for_name(name)?;
            if self.client.statement(name).is_some() {
                self.passage.cut(self.backend)?;
                self.passage.skip(self.header.total());
                self.backend.request_taking(self.client, name, true);
                return Ok(());
            }
            if name.is_empty() {
                self.client.unnamed = None;
                self.client.unnamed_serial = 0;
                self.backend.unnamed.closed(self.backend.requests.pipeline());
            } else {
                self.close_own(name);
            }
        }
        self.pass();
        let noted = (what == b'S').then(|| (name, NotedStatement::default()));
        self.request_noting(Request::Close, noted);
        Ok(())
    }
}
