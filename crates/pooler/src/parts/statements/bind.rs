//! Bind, Describe and Close: names of prepared statements are replaced by the shared ones, and
//! statements that the backend lacks are prepared first.

use std::sync::Arc;

use crate::parts::statements::client_names::ClientStatement;
use crate::parts::statements::own_named::NotedStatement;
use crate::parts::statements::shared::Statement;
use crate::relay::effects::{Effect, Effects};
use crate::relay::from_client::client_message::ClientMessage;
use crate::relay::from_client::client_message::written::Parameters;
use crate::relay::halt::Halt;
use crate::relay::request_queue::{Change, Request};
use crate::relay::socket::Socket;
use crate::session::part::{Part, PartSet};
use crate::session::scan::SchemaChange;
use crate::wire::frame::HEADER_BYTES;
use crate::wire::{TransactionStatus, build, frame, frontend};

/// The object of a Describe or Close: `S` or `P`, and the name.
fn target(body: &[u8]) -> Option<(u8, &[u8])> {
    let (&what, name) = body.split_first()?;
    Some((what, frame::take_string(name)?.0))
}

impl<S: Socket> ClientMessage<'_, '_, S> {
    pub(crate) fn bind(&mut self) -> Result<(), Halt> {
        self.stats.binds.add(1);
        if self.backend.known.side_effects.has_parsed() {
            self.backend.note_schema_change(SchemaChange::All);
        }
        let names = frame::take_string(self.body)
            .and_then(|(portal, rest)| Some((portal, frame::take_string(rest)?.0)));
        let Some((portal, name)) = names else {
            self.malformed(Request::Bind { statement: 0 });
            return Ok(());
        };
        if self.client.is_session_mode() {
            self.bind_native(portal, name)?;
            return self.pass_bind_native(portal, name, None);
        }
        self.hold_for_name(name)?;
        self.hold_bind_for_vacancy(name)?;
        self.note_setter(name);
        self.client.rebind(portal);
        if name.is_empty() {
            return self.bind_unnamed(portal, name);
        }
        self.see_to_settings_of(name);
        if let Some(one) = self.client.statement(name)
            && one.statement.effects.may_name_statements()
        {
            let statement = one.statement.clone();
            self.bring_own_names_of(statement.text(), &statement.effects)?; // itself, perhaps
        }
        match self.client.statement(name).cloned() {
            Some(named) => self.bind_shared(portal, name, named),
            None => self.bind_unknown(portal, name),
        }
    }

    /// Ensures that the client's statement of this name may be run under its current settings.
    fn see_to_settings_of(&mut self, name: &[u8]) {
        let Some(one) = self.client.statement(name) else { return };
        let fits = one.is_known_to_fit(&self.client.session.desired);
        if one.statement.is_superseded() {
            self.client.resolve_again(name, self.backend);
        } else if fits {
            return;
        }
        self.client.run_under_own(name, self.backend);
    }

    /// These effects, with those of executing a value of the current Bind; `None` if that adds
    /// nothing.
    pub(crate) fn effects_of_bound(&self, effects: &Effects) -> Option<Effects> {
        if !effects.may(Effect::ExecutesStrings)
            || self.header.kind != frontend::BIND
            || !self.is_whole()
        {
            return None;
        }
        let (_, rest) = frame::take_string(self.body)?;
        let parameters = Parameters::read(frame::take_string(rest)?.1)?;
        self.backend.effects_of_values(effects, parameters.values.into_iter().flatten())
    }

    /// A Bind of the unnamed statement.
    fn bind_unnamed(&mut self, portal: &[u8], name: &[u8]) -> Result<(), Halt> {
        if let Some(unnamed) = self.unnamed()
            && unnamed.effects().may_name_statements()
        {
            let unnamed = unnamed.clone();
            self.bring_own_names_of(unnamed.text(), unnamed.effects())?;
        }
        if self.bring_unnamed()? {
            return self.refuse_changed(&[portal, b"\0"].concat(), name, None);
        }
        let Some(unnamed) = self.unnamed() else {
            self.bind_native(portal, name)?;
            return self.pass_bind_native(portal, name, None);
        };
        let draws = !unnamed.draws_nothing;
        if unnamed.has_no_effects() {
            self.client.note_portal(portal, None)?;
            self.backend.known.drawn.note(draws);
            self.pass();
            self.backend.request(Request::Bind { statement: 0 });
            return Ok(());
        }
        let unnamed = unnamed.clone();
        let effects = unnamed.effects();
        let unusual = effects.unusual.as_deref();
        if self.binds_deallocate(portal, name, unusual)? {
            return Ok(());
        }
        self.backend.known.drawn.note(draws);
        self.pass_bind_native(portal, name, Some((unnamed.text(), effects)))
    }

    /// A Bind of a name that is not translated: the server knows it, or answers that it does not
    /// exist.
    fn bind_unknown(&mut self, portal: &[u8], name: &[u8]) -> Result<(), Halt> {
        let own = self.own_statements(name);
        if !own.is_empty() {
            return self.bind_own(portal, name, &own);
        }
        self.bind_native(portal, name)?;
        self.pass_bind_native(portal, name, None)
    }

    /// A Bind of a statement that clients share.
    fn bind_shared(
        &mut self,
        portal: &[u8],
        name: &[u8],
        named: ClientStatement,
    ) -> Result<(), Halt> {
        let before = named.statement.clone();
        let effects = &before.effects;
        self.hold_for_effects(effects)?;
        self.before_catalog(effects)?; // it may remove this one
        self.keep_apart(&named.statement);
        let Some(ClientStatement { statement, serial, seen, .. }) = self.fit(name, named)? else {
            return self.refuse_changed(&[portal, b"\0"].concat(), name, None);
        };
        self.begin_replay(&statement, serial);
        let bound = seen.clone();
        if portal.is_empty() {
            self.client.prepared.bind(&seen);
        } else if seen.described().rows == 0 {
            self.client.note_described(portal, seen);
        }
        if self.refuse_bind(portal, name, &statement)? {
            return Ok(());
        }
        self.bring(&statement)?;
        if let Some(copy) = self.backend.prepared.statements.get(statement.id) {
            bound.binds(statement.id, copy.since);
        }
        if !statement.effects.is_none() {
            self.before(&statement.effects, true)?;
            self.backend.foresee(statement.text(), &statement.effects);
        }
        let unusual = statement.effects.unusual.as_deref();
        if self.binds_deallocate(portal, name, unusual)? {
            return Ok(());
        }
        self.backend.known.drawn.note(!statement.draws_nothing);
        self.pass_bind(portal, name, &statement)
    }

    /// If settings are in force that are not all known, the server's copy that is bound serves this
    /// transaction alone.
    fn keep_apart(&mut self, statement: &Statement) {
        let only_in = self.backend.sole_transaction();
        if self.backend.prepared.statements.is_for_others(statement.id, only_in)
            && self.prepares()
            && !statement.reads_no_settings()
        {
            self.backend.prepared.statements.mark_stale(statement.id);
        }
    }

    /// Keeps the current Bind, in case the server has lost its statement, if nothing precedes it
    /// that could not be sent again.
    fn begin_replay(&mut self, statement: &Statement, serial: u32) {
        let first = self.backend.has_sent_settings_alone()
            || (!self.backend.requests.owes_client()
                && !self.backend.requests.is_in_pipeline()
                && self.backend.from_server.status() == TransactionStatus::Idle);
        if first && self.is_whole() && self.backend.prepared.statements.touch(statement.id) {
            let message = self.passage.current(HEADER_BYTES + self.body.len());
            self.backend.prepared.replay.begin(message, serial);
        }
    }

    /// A statement is bound: notes whether it may change settings when it is executed.
    fn note_setter(&mut self, name: &[u8]) {
        let sets_nothing = match name.is_empty() {
            true => self.unnamed().is_some_and(|unnamed| unnamed.sets_nothing()),
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
            self.hold_for_effects(effects)?;
            self.bring_own_names_of(statement.text(), effects)?;
        }
        for statement in all.iter().filter(|statement| !statement.effects.is_none()) {
            self.before(&statement.effects, true)?;
        }
        let unusual = all.last().and_then(|statement| statement.effects.unusual.as_deref());
        if self.binds_deallocate(portal, name, unusual)? {
            return Ok(());
        }
        // (Only the server knows which of several it is.)
        let only = if let [only] = all { Some((only.text(), &only.effects)) } else { None };
        self.pass_bind_native(portal, name, only)
    }

    /// Ensures that the server has the statement. Waits while that is not known.
    pub(crate) fn bring(&mut self, statement: &Arc<Statement>) -> Result<(), Halt> {
        if self.backend.requests.owes_ready()
            && let Some(since) = self.backend.prepared.statements.prepared_in(statement.id)
            && self.backend.requests.is_in_doubt(since)
        {
            return self.wait();
        }
        if !self.backend.prepared.statements.touch(statement.id) {
            // The settings around its Parse are put back after it.
            self.hold()?;
        }
        self.passage.cut(self.backend)?;
        if self.backend.prepare(statement, &mut self.passage.out) {
            self.stats.server_parses.add(1);
        }
        Ok(())
    }

    /// Ensures that the server's unnamed statement is the client's, or none. Returns whether it
    /// differs now from what the client knows.
    fn bring_unnamed(&mut self) -> Result<bool, Halt> {
        if self.unnamed_has_changed() {
            return Ok(true);
        }
        let with_effects = self.unnamed().filter(|one| !one.has_no_effects());
        let with_effects = with_effects.cloned();
        if let Some(effects) = with_effects.as_ref().map(|unnamed| unnamed.effects()) {
            self.hold_for_effects(effects)?;
            self.before_catalog(effects)?; // it may remove the server's
        }
        let same = self.backend.prepared.unnamed.is(self.unnamed());
        if !same && !self.client.session.pins.contains(Part::UnnamedStatement) {
            self.hold()?;
            self.passage.cut(self.backend)?;
            let unnamed = self.unnamed().cloned();
            match &unnamed {
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
            self.backend.prepared.unnamed.brought(unnamed.clone(), pipeline);
            if let Some(unnamed) = &unnamed {
                self.compare_unnamed(unnamed)?;
            }
        }
        if let Some(unnamed) = with_effects
            && !unnamed.effects().is_none()
        {
            self.before(unnamed.effects(), true)?;
            self.backend.foresee(unnamed.text(), unnamed.effects());
        }
        Ok(false)
    }

    pub(crate) fn describe(&mut self) -> Result<(), Halt> {
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
                    let described = self.unnamed().and_then(|one| one.described()).cloned();
                    return self.refuse_changed(b"S", name, described.as_deref());
                }
                if let Some(unnamed) = self.unnamed() {
                    let noting = Change::Describes(unnamed.noting());
                    self.pass();
                    self.backend
                        .request_with(Request::DescribeStatement { statement: 0 }, Some(noting));
                    return Ok(());
                }
            } else if let Some(one) = self.client.statement(name) {
                // (The server describes its copy: that is prepared again when it is bound.)
                if !one.statement.is_superseded() {
                    self.see_to_settings_of(name);
                }
                let Some(named) = self.client.statement(name).cloned() else { return Ok(()) };
                if self.describe_empty(name, &named.statement)? {
                    return Ok(());
                }
                let described = named.seen.clone();
                let Some(ClientStatement { statement, seen, .. }) = self.fit(name, named)? else {
                    return self.refuse_changed(b"S", name, Some(&described));
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

    pub(crate) fn close(&mut self) -> Result<(), Halt> {
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
                self.backend.displace_unnamed(self.client);
                self.backend.prepared.unnamed.closed(self.backend.requests.pipeline());
            } else {
                self.close_own(name);
            }
        }
        if what == b'P' && self.client.session.pins.contains(Part::HeldCursor) {
            self.backend.mark_unverified(PartSet::of(&[Part::HeldCursor])); // it may be this portal
        }
        self.pass();
        let noted = (what == b'S').then(|| (name, NotedStatement::default()));
        self.request_noting(Request::Close, noted);
        Ok(())
    }
}
