//! Asking the server for a session's state, and what follows from its answer.

use std::sync::Arc;

use crate::ids::Slot;
use crate::parts::pins::question::{ASKED, Question};
use crate::parts::pins::unverified::{Noted, NotedPrepare, PASSING, Unverified};
use crate::parts::settings::timeouts::{ends_transactions_soon, is_cut_off};
use crate::parts::statements::shared::Statement;
use crate::relay::backend::Backend;
use crate::relay::client::Client;
use crate::relay::effects::{Effect, EffectSet, Effects, IN_DOUBT, KEPT_BY_RESET_ALL, Resetting};
use crate::relay::halt::Halt;
use crate::relay::host::Host;
use crate::relay::limits;
use crate::relay::request_queue::Request;
use crate::relay::socket::Socket;
use crate::relay::table::Engine;
use crate::session::part::{Part, PartSet};
use crate::session::scan::{SchemaChange, names_temporary_schema};
use crate::session::settings::{Settings, SettingsBuilder, is_custom, is_for_superusers};
use crate::time::Time;
use crate::wire::TransactionStatus;

/// The value of a setting after its RESET, of those of which the question does not ask whether they
/// have been set.
fn value_of_reset(name: &[u8]) -> Option<&'static [u8]> {
    if is_custom(name) {
        return Some(b"");
    }
    (*name == *b"role").then_some(b"none")
}

impl<S: Socket> Backend<S> {
    /// These parts may have appeared or gone.
    pub(crate) fn mark_unverified(&mut self, parts: PartSet) {
        if !parts.is_empty() {
            let doubt = self.known.unverified.get_or_insert_default();
            doubt.parts = doubt.parts.union(parts);
        }
    }

    /// What is about to be sent may set these settings.
    #[cold]
    pub(crate) fn doubt_settings(&mut self, effects: &Effects) {
        let within = self.from_server.status() != TransactionStatus::Idle;
        let pipeline = self.requests.pipeline();
        let doubt = self.known.unverified.get_or_insert_default();
        doubt.begin_again_if_discarded();
        doubt.reverted = false;
        if !doubt.doubts_settings() {
            doubt.since = pipeline;
        }
        doubt.vague |= effects.may(Effect::SetsUnnamed);
        doubt.exact |= effects.may(Effect::HasSeveral) || within;
        for name in effects.names.iter().chain(&effects.local_names) {
            doubt.add_name(name);
        }
        let resets = effects.resets.names().iter();
        doubt.resets.extend(resets.filter(|name| value_of_reset(name).is_some()).cloned());
    }

    /// Whether a text may create a temporary object without saying so: `pg_temp` may be first in
    /// the search_path, whose value is not known.
    pub(crate) fn may_make_temporary(&self, effects: &Effects) -> bool {
        let has_path = |names: &[Box<[u8]>]| names.iter().any(|name| **name == *b"search_path");
        let doubt = self.known.unverified.as_deref();
        let is_set = effects.may(Effect::SetsUnnamed) || has_path(&effects.names);
        effects.schema == SchemaChange::All
            && (self.session.texts.unseen_path
                || is_set
                || doubt.is_some_and(|doubt| doubt.vague || has_path(&doubt.names)))
    }

    /// The server has reported this setting's value, but not its exact bytes.
    #[cold]
    pub(crate) fn doubt_encoding_of(&mut self, name: &[u8]) {
        let since = self.requests.answered_pipeline();
        let doubt = self.known.unverified.get_or_insert_default();
        doubt.begin_again_if_discarded();
        if !doubt.doubts_settings() {
            doubt.since = since;
        }
        doubt.exact = true;
        doubt.add_name(name);
    }

    /// The state of the session is not known, and no question covers it.
    pub(crate) fn doubt_all(&mut self) {
        self.known.unverified.get_or_insert_default().vague = true;
    }

    /// The server has reported everything but this: parts that the report does not cover, or not
    /// completely, and the values of these settings, changed in this pipeline or later.
    pub(crate) fn doubt_reported(
        &mut self,
        parts: PartSet,
        names: Vec<Box<[u8]>>,
        since: u64,
        noted: Noted,
    ) {
        if !parts.is_empty() || !names.is_empty() {
            let unverified = Unverified { parts, names, since, noted, ..Unverified::default() };
            self.known.unverified = Some(Box::new(unverified));
        }
    }

    /// A text prepares these by SQL, or removes some (`ended`), under these settings; `sets`: it
    /// may change the settings as well.
    pub(crate) fn note_sql(
        &mut self,
        prepared: &[Box<[u8]>],
        settings: &Settings,
        ended: bool,
        sets: bool,
    ) {
        let doubtful =
            self.from_server.status() != TransactionStatus::Idle || self.settings_in_doubt();
        // Statements that its pipeline has executed before it are not answered yet.
        let unknown =
            sets || self.session.texts.unseen_path || self.requests.contains(Request::Execute);
        let noted = &mut self.known.unverified.get_or_insert_default().noted;
        noted.ended |= ended;
        for name in prepared {
            let (name, settings) = (name.clone(), settings.clone());
            let parsed = Vec::new();
            noted.add(NotedPrepare { name, settings, doubtful, unknown, parsed });
        }
    }

    /// A Parse gives a statement this name on the server, which is the client's own for it.
    pub(crate) fn note_parsed(&mut self, name: &[u8], statement: &Arc<Statement>) {
        let doubtful = self.settings_in_doubt();
        let noted = NotedPrepare {
            name: name.into(),
            settings: self.settings_for_parse(&statement.settings),
            doubtful,
            unknown: false,
            parsed: vec![statement.clone()],
        };
        self.mark_unverified(PartSet::of(&[Part::SqlStatement]));
        self.known.unverified.get_or_insert_default().noted.add(noted);
    }

    /// Statements that the protocol may have prepared under this name, while that is not known.
    pub(crate) fn noted_as_parsed(&self, name: &[u8]) -> &[Arc<Statement>] {
        self.known.unverified.as_deref().map_or(&[], |doubt| doubt.noted.parsed(name))
    }

    /// Whether a text or a Parse that is not known to have failed gives a statement this name on
    /// the server.
    pub(crate) fn may_have_named(&self, name: &[u8]) -> bool {
        self.known.unverified.as_deref().is_some_and(|doubt| doubt.noted.of(name).is_some())
    }

    /// The server knows custom names for good, whatever the outcome of the statement.
    pub(crate) fn note_names(&mut self, effects: &Effects) {
        let names = effects.names.iter().chain(&effects.local_names);
        for name in names.filter(|name| is_custom(name)) {
            self.note_custom(name);
        }
    }

    /// The parts in question that the statement leaves unchanged: custom names that the session
    /// has, and that are set until the end of the transaction.
    pub(crate) fn known_to_stay(&self, effects: &Effects) -> PartSet {
        let stays = !effects.may(Effect::SetsUnnamed)
            && !effects.names.iter().any(|name| is_custom(name))
            && effects.local_names.iter().all(|name| self.session.applied.get(name).is_some());
        if stays { PartSet::of(&[Part::CustomSetting]) } else { PartSet::EMPTY }
    }

    /// Whether a statement that is parsed now may be parsed under other settings than the books
    /// have.
    pub(crate) fn settings_in_doubt(&self) -> bool {
        self.known.unverified.as_deref().is_some_and(Unverified::doubts_settings)
    }

    /// Whether a setting for which this is true, or of unknown name, may have another value than
    /// the books.
    pub(crate) fn may_have_set(&self, is_one: impl Fn(&[u8]) -> bool) -> bool {
        let doubt = self.known.unverified.as_deref();
        doubt.is_some_and(|doubt| doubt.vague || doubt.names.iter().any(|name| is_one(name)))
    }

    /// Whether the answer to a question is awaited.
    pub(crate) fn is_asking(&self) -> bool {
        self.requests.back() == Some(Request::InjectedQuestion)
    }

    /// A row has come in answer to the question in flight.
    pub(crate) fn take_answer(&mut self, row: &[u8]) {
        if let Some(doubt) = self.known.unverified.as_deref_mut() {
            doubt.answer = doubt.question.as_ref().and_then(|question| question.read(row));
        }
    }

    /// The question has failed: nothing is known. One that was cut off, by a timeout of its
    /// client's, is asked again at once.
    pub(crate) fn question_failed(&mut self, error: &[u8]) {
        if let Some(doubt) = self.known.unverified.as_deref_mut() {
            doubt.answer = None;
            if is_cut_off(error) && doubt.cut_off < limits::LIFTS_MAX {
                doubt.cut_off += 1;
                doubt.tried = None;
            }
        }
    }
}

impl<S: Socket> Engine<S> {
    /// No cancel can hit this client's queries any more: a question that had to wait for that at
    /// the end of its transaction is asked now.
    pub(crate) fn ask_after_cancel<H: Host<S>>(&mut self, host: &mut H, slot: Slot, now: Time) {
        let Some(client) = self.clients.get_mut(slot) else { return };
        if !client.is_pinned() || client.holds_ready() || client.is_leaving() {
            return;
        }
        let Some(mut backend) = client.backend.take_if(|backend| backend.is_at_rest()) else {
            return;
        };
        let done = client.can_give_back(&mut backend);
        if let Ok(true) = done {
            client.rest(now);
            self.give_back(host, backend, now);
            self.drain_if_idle(host, slot, now);
            return;
        }
        client.backend = Some(backend);
        if done.is_err() {
            self.backend_lost(slot, "server closed the connection");
        } else {
            self.count_pinned(host, slot, now);
        }
    }
}

impl<S: Socket> Client<S> {
    /// Settings are reset, which may be rolled back; `restored`: the client's start values are SET
    /// in the same text or pipeline.
    #[cold]
    pub(crate) fn doubt_resetting(
        &mut self,
        backend: &mut Backend<S>,
        resetting: &Resetting,
        restored: bool,
    ) {
        let known = backend.known.unverified.as_deref().map_or(&[][..], |doubt| &doubt.names);
        let moved = |name: &[u8]| {
            backend.session.own.parameters.get(name).is_none()
                && (backend.session.applied.get(name).is_some()
                    || known.iter().any(|known| known.eq_ignore_ascii_case(name)))
        };
        let mut names: Vec<Box<[u8]>> = match resetting {
            Resetting::No | Resetting::Names(_) => Vec::new(),
            Resetting::All { .. } => backend
                .session
                .applied
                .iter()
                .filter(|(name, _)| !KEPT_BY_RESET_ALL.contains(name))
                .map(|(name, _)| name.into())
                .collect(),
        };
        names.extend(resetting.names().iter().cloned());
        names.retain(|name| moved(name) || KEPT_BY_RESET_ALL.contains(&&**name));
        if names.is_empty() {
            return;
        }
        for name in &names {
            let part = Part::of_setting(name, |_| false);
            self.session.pin_all(part.into_iter().collect());
        }
        let does = EffectSet::of(&[Effect::HasSeveral]);
        let resets = match restored {
            true => Resetting::No,
            false => Resetting::Names(names.clone()),
        };
        backend.doubt_settings(&Effects { names, does, resets, ..Effects::default() });
    }

    /// Whether its backend, which is at rest, can be given back. If what pins is in doubt, the
    /// server is asked.
    #[inline]
    pub(crate) fn can_give_back(&mut self, backend: &mut Backend<S>) -> Result<bool, Halt> {
        if !self.is_pinned() {
            return Ok(true);
        }
        if backend.session.role_refused().is_some() {
            self.session.pins = PartSet::EMPTY; // nothing of what it has sent has run
            return Ok(true);
        }
        if backend.known.unverified.is_some() { self.ask(backend) } else { Ok(false) }
    }

    /// Its backend is at rest, and it keeps it for reasons that are in doubt. Asks, if the answer
    /// may end that. Returns whether there is nothing left to ask for, and nothing pins.
    #[cold]
    fn ask(&mut self, backend: &mut Backend<S>) -> Result<bool, Halt> {
        // A sequence's value does not keep the backend from others: what else does must be known.
        let apart = ASKED.union(PASSING).union(IN_DOUBT).union(PartSet::of(&[Part::SequenceValue]));
        let others = self.session.pins.minus(apart);
        let unsettled = self.is_unsettled();
        if self.is_session_mode()
            || !others.is_empty()
            || unsettled
            || backend.requests.has_syncs_in_doubt()
            || backend.lending.cancels_in_flight > 0
            || backend.from_server.status() != TransactionStatus::Idle
        {
            return Ok(false);
        }
        let lasting = self.lasting_pins(backend);
        let transactions = backend.lending.transactions;
        let (digits, in_unsafe_encoding) = (!backend.reads_raw(), backend.reads_unsafely());
        let Some(doubt) = backend.known.unverified.as_deref_mut() else { return Ok(false) };
        if doubt.vague || doubt.tried == Some(transactions) {
            return Ok(false);
        }
        let parts = doubt.parts.intersection(self.session.pins).minus(lasting);
        let known = self.sql_statements().iter().filter(|known| known.parsed.is_some());
        let mut parsed: Vec<_> = known.map(|known| known.name.clone()).collect();
        parsed.extend(doubt.noted.parsed_names().cloned());
        if in_unsafe_encoding && !parsed.iter().all(|name| name.is_ascii()) {
            return Ok(false); // no quotes hold such a name for certain
        }
        let question = Question::new(parts, doubt.names.clone(), doubt.exact)
            .with_parsed(parsed)
            .in_digits(digits);
        if question.is_empty() {
            self.conclude(backend);
            return Ok(!self.is_pinned());
        }
        let mut text = Vec::with_capacity(limits::QUESTION_BYTES);
        question.write(&mut text);
        (doubt.question, doubt.answer) = (Some(question), None);
        doubt.tried = Some(transactions);
        if let Some(pinned) = backend.lending.pinned.as_deref_mut() {
            pinned.question(true);
        }
        let mut out = Vec::with_capacity(limits::QUESTION_BYTES);
        backend.inject_question(&text, &mut out);
        backend.send(&out)?;
        Ok(false)
    }

    /// The server has answered.
    #[cold]
    pub(crate) fn conclude(&mut self, backend: &mut Backend<S>) {
        let Some(mut doubt) = backend.known.unverified.take() else { return };
        let mut gone = doubt.parts.intersection(PASSING).union(IN_DOUBT);
        if let Some(question) = doubt.question.take() {
            let Some(answer) = doubt.answer.take() else {
                // The server is asked again after the next transaction.
                backend.known.unverified = Some(doubt);
                return;
            };
            gone = gone.union(question.parts().minus(answer.present));
            if !question.names().is_empty() {
                let (values, since) = (&answer.values, doubt.since);
                self.take_settings(backend, question.names(), values, since, &doubt);
            }
            if question.parts().contains(Part::SqlStatement) {
                if self.take_sql_statements(backend, answer.statements, &doubt.noted) {
                    gone.remove(Part::SqlStatement);
                } else {
                    gone.insert(Part::SqlStatement);
                }
            }
        }
        if gone.contains(Part::SqlStatement) {
            // A DEALLOCATE ALL within a function has removed the shared ones, too.
            backend.prepared.doubt_all();
        }
        self.session.pins = self.session.pins.minus(gone).union(self.pins_of_settings(backend));
    }

    /// Parts that pin it because of the settings in force.
    pub(crate) fn pins_of_settings(&self, backend: &mut Backend<S>) -> PartSet {
        let mut pins = self.lasting_pins(backend);
        if !backend.is_of_superuser()
            && backend.session.applied.iter().any(|(name, _)| is_for_superusers(name))
        {
            // It was another role, or has a grant, for as long as that lasts: the setting might be set
            // on no other connection, and be taken off this one for no other client.
            pins.insert(Part::Setting);
            backend.spoil_for_good();
        }
        if backend.session.applied.get(b"search_path").is_some_and(names_temporary_schema) {
            pins.insert(Part::TemporaryObject); // a plain CREATE TABLE may create one
        }
        if ends_transactions_soon(&backend.session.applied) || backend.keeps_settings() {
            pins.insert(Part::Setting); // lifting it could itself take too long
        }
        pins
    }

    /// The server has reported the values of settings: the client desires these, and the backend
    /// has them. Statements parsed since they were in doubt were noted under the earlier values.
    /// After a DISCARD ALL the client desires its start values, which the backend does not have
    /// yet.
    fn take_settings(
        &mut self,
        backend: &mut Backend<S>,
        names: &[Box<[u8]>],
        values: &[Option<Box<[u8]>>],
        since: u64,
        doubt: &Unverified,
    ) {
        let is_reset = |name: &[u8], value: &[u8]| {
            value_of_reset(name) == Some(value)
                && doubt.resets.iter().any(|reset| reset.eq_ignore_ascii_case(name))
        };
        let with_answer = |settings: &Settings, start: &Settings| {
            let mut settings = SettingsBuilder::from(settings);
            for (name, value) in names.iter().zip(values) {
                let login = **name == *b"session_authorization";
                let own = value.as_deref().filter(|v| login && **v == *backend.role().as_bytes());
                // A setting that was reset where no SET could follow: within a function, say.
                let reset =
                    doubt.discarded || value.as_deref().is_none_or(|value| is_reset(name, value));
                let start = start.get(name).filter(|_| reset);
                match start.or(value.as_deref().filter(|_| own.is_none())) {
                    Some(value) => settings.set(name, value),
                    None => settings.remove(name),
                };
            }
            settings.build()
        };
        let applied = with_answer(&backend.session.applied, &Settings::EMPTY);
        let desired = match doubt.reverted {
            true => self.session.desired.clone(),
            false => with_answer(&self.session.desired, &self.record.start),
        };
        self.adopt_settings(backend, applied, desired, since);
    }

    /// The backend has these settings, and the client desires those, since this pipeline or a later
    /// one.
    pub(crate) fn adopt_settings(
        &mut self,
        backend: &mut Backend<S>,
        applied: Settings,
        desired: Settings,
        since: u64,
    ) {
        let mut interner = backend.pool.interner();
        let (applied, desired) = (interner.share(applied), interner.share(desired));
        drop(interner);
        if applied == backend.session.applied && desired == self.session.desired {
            return;
        }
        if !backend.pool.statements.give_alike(&backend.session.applied, &applied) {
            backend.session.mix_function_plans();
        }
        backend.session.applied = applied;
        self.session.desired = desired;
        backend.prepared.statements.mark_stale_since(since);
        let named = self.prepared.all_named_mut();
        let id = backend.id();
        for named in named.filter(|named| named.is_prepared_since(id, since)) {
            let before = named.statement.clone();
            named.statement = backend.statement_of(
                &before.body,
                backend.session.own.basis,
                &backend.session.applied,
            );
        }
        if backend.prepared.unnamed.since() >= since
            && let Some(unnamed) = backend.unnamed_of(self)
        {
            let effects = backend.effects_of_body(&unnamed.body, &backend.session.applied);
            let again = unnamed.under(backend.session.applied.clone(), effects);
            backend.prepared.unnamed.restate(&mut self.prepared.unnamed, again);
        }
    }
}
