//! What is not known of a session until its server is asked, and the asking.
//!
//! # Model
//! A statement whose text may have made state that does not move pins its client, and leaves a
//! [`Unverified`]: whether there is any is for the server to say. So does one that may have ended what
//! pins. When the transaction is over, and the backend would be given back but for the pin, the
//! server is asked ([`crate::session::question`]); what it says is gone pins no more.
//!
//! # Order
//! The question goes out before the client gets the answer that ends its transaction, and delays
//! nothing but the client's own next message, which waits for the server's word.
//!
//! # Invariants
//! * only the server's own answer ends a pin; an error, or what is no answer, leaves it
//! * a client whose statements neither made nor ended anything since is not asked for again
//! * who is pinned to the end, or by what nobody can ask for, is not asked for
//! * a question is not under way while a cancel may hit it: it is asked, then, when that has been sent,
//!   and before what the client sends next

use std::sync::Arc;

use super::backend::Backend;
use super::client::{Client, Resetting};
use super::effects::{Effects, IN_DOUBT};
use super::host::Host;
use super::limits;
use super::message::ClientState;
use super::request_queue::Request;
use super::restore::KEPT_BY_RESET_ALL;
use super::socket::Socket;
use super::statement::{Statement, same_parse_settings};
use super::table::Engine;
use super::timeouts::{ends_transactions_soon, is_cut_off};
use crate::ids::Slot;
use crate::session::part::{Part, PartSet};
use crate::session::question::{ASKED, Answer, NAMES_MAX, Question};
use crate::session::scan::names_temporary_schema;
use crate::session::settings::{Settings, SettingsBuilder, can_move, is_custom};
use crate::time::Time;
use crate::wire::TransactionStatus;

/// Parts that end with the transaction: they need no question.
pub(super) const PASSING: PartSet = PartSet::of(&[Part::SessionCatalog]);

/// What is to be found out of a backend's session.
#[derive(Debug, Default)]
pub(super) struct Unverified {
    parts: PartSet,
    /// Settings that may have other values than is known.
    names: Vec<Box<[u8]>>,
    /// Custom names among them that a function or a block of code may have reset: then they are empty.
    resets: Vec<Box<[u8]>>,
    /// The first pipeline that may have changed them.
    since: u64,
    /// Settings of which the names are not known, or more than can be asked for.
    vague: bool,
    /// Some of them may have been reset, or undone by a rollback.
    exact: bool,
    /// Statements of PREPARE.
    noted: Noted,
    /// The transactions of the backend when the server was last asked.
    tried: Option<u64>,
    /// How often it was cut off.
    cut_off: u8,
    /// A DISCARD ALL has come since: what its settings are on the server now is what a RESET gives there.
    discarded: bool,
    /// The question that is under way.
    question: Option<Question>,
    answer: Option<Answer>,
}

/// What texts have shown of statements of PREPARE since the server was asked.
#[derive(Debug, Default)]
pub(super) struct Noted {
    prepared: Vec<NotedPrepare>,
    /// Some may have been taken away.
    ended: bool,
}

#[derive(Debug)]
struct NotedPrepare {
    name: Box<[u8]>,
    /// What is known of the settings in force before its text.
    settings: Settings,
    /// They may have been others.
    doubtful: bool,
    /// And may be so although they are the same after the transaction.
    unknown: bool,
    /// What Parses give this name; of several, one has it at most.
    parsed: Vec<Arc<Statement>>,
}

impl Noted {
    fn add(&mut self, noted: NotedPrepare) {
        let known = self.prepared.iter_mut().find(|known| known.name == noted.name);
        if let Some(known) = known {
            // One of them has failed, or another has been taken away in between.
            known.doubtful |=
                noted.doubtful || !same_parse_settings(&known.settings, &noted.settings);
            known.unknown |= noted.unknown;
            let is_new =
                |one: &Arc<Statement>| !known.parsed.iter().any(|old| Arc::ptr_eq(one, old));
            let new: Vec<_> = noted.parsed.into_iter().filter(is_new).collect();
            known.parsed.extend(new);
        } else if self.prepared.len() < NAMES_MAX || !noted.parsed.is_empty() {
            self.prepared.push(noted); // beyond, it is not known
        }
    }

    fn of(&self, name: &[u8]) -> Option<&NotedPrepare> {
        self.prepared.iter().find(|known| *known.name == *name)
    }

    /// What the protocol may have prepared under this name.
    pub(super) fn parsed(&self, name: &[u8]) -> &[Arc<Statement>] {
        self.of(name).map_or(&[], |noted| &noted.parsed)
    }

    /// The names that the protocol may have given.
    fn parsed_names(&self) -> impl Iterator<Item = &Box<[u8]>> {
        self.prepared.iter().filter(|noted| !noted.parsed.is_empty()).map(|noted| &noted.name)
    }

    /// Whether there are such names.
    pub(super) fn has_parsed(&self) -> bool {
        self.parsed_names().next().is_some()
    }

    /// Whether one that was there before may be another by now.
    pub(super) fn is_prepared_anew(&self, name: &[u8]) -> bool {
        self.ended && self.of(name).is_some()
    }

    /// The settings under which a statement was prepared; `now` are those in force. `None` if they
    /// are not known for certain. `all_told`: what no text has shown is the client's all the same.
    pub(super) fn settings_of(
        &self,
        name: &[u8],
        now: &Settings,
        all_told: bool,
    ) -> Option<Settings> {
        let Some(known) = self.of(name) else { return all_told.then(|| now.clone()) };
        let doubtful = known.doubtful && !same_parse_settings(&known.settings, now);
        (!doubtful && !known.unknown).then(|| known.settings.clone())
    }
}

impl Unverified {
    /// What is noted of statements of PREPARE.
    pub(super) fn noted(&self) -> &Noted {
        &self.noted
    }

    /// The same, taken out.
    pub(super) fn take_noted(&mut self) -> Noted {
        std::mem::take(&mut self.noted)
    }

    /// Something has failed that may have undone what it was about.
    pub(super) fn undone(&mut self) {
        self.exact = true;
    }

    /// A DISCARD ALL has worked. Its client's start values are known, and no SET has brought them back yet.
    pub(super) fn discarded(&mut self) {
        self.discarded = !self.names.is_empty();
    }

    /// The parts that it is about.
    pub(super) fn parts(&self) -> PartSet {
        self.parts
    }

    /// The settings that it is about.
    pub(super) fn names(&self) -> &[Box<[u8]>] {
        &self.names
    }

    /// Settings are in doubt again, by what has come after a DISCARD ALL.
    fn begin_anew_if_discarded(&mut self) {
        if std::mem::take(&mut self.discarded) {
            self.names.clear();
            self.resets.clear();
        }
    }

    fn add_name(&mut self, name: &[u8]) {
        if self.names.iter().any(|known| known.eq_ignore_ascii_case(name)) {
            return;
        }
        if self.names.len() < NAMES_MAX && can_move(name) {
            self.names.push(name.to_ascii_lowercase().into());
        } else {
            self.vague = true;
        }
    }
}

impl<S: Socket> Backend<S> {
    /// These parts may have come or gone.
    pub(super) fn mark_unverified(&mut self, parts: PartSet) {
        if !parts.is_empty() {
            let doubt = self.unverified.get_or_insert_default();
            doubt.parts = doubt.parts.union(parts);
        }
    }

    /// These settings may have been set by what is about to be sent.
    #[cold]
    pub(super) fn doubt_settings(&mut self, effects: &Effects) {
        let within = self.status != TransactionStatus::Idle;
        let pipeline = self.requests.pipeline();
        let doubt = self.unverified.get_or_insert_default();
        doubt.begin_anew_if_discarded();
        if doubt.names.is_empty() && !doubt.vague {
            doubt.since = pipeline;
        }
        doubt.vague |= effects.vague;
        doubt.exact |= effects.several || within;
        for name in effects.names.iter().chain(&effects.local_names) {
            doubt.add_name(name);
        }
        if let Resetting::Names(names) = &effects.resets {
            doubt.resets.extend(names.iter().filter(|name| is_custom(name)).cloned());
        }
    }

    /// The server has told the value of this setting, but not byte by byte.
    #[cold]
    pub(super) fn doubt_told(&mut self, name: &[u8]) {
        let since = self.requests.answered_pipeline();
        let doubt = self.unverified.get_or_insert_default();
        doubt.begin_anew_if_discarded();
        if doubt.names.is_empty() && !doubt.vague {
            doubt.since = since;
        }
        doubt.exact = true;
        doubt.add_name(name);
    }

    /// What the session holds is not known, and no question would tell.
    pub(super) fn doubt_all(&mut self) {
        self.unverified.get_or_insert_default().vague = true;
    }

    /// The server has reported all but this: parts of which it tells nothing, or not all, and the
    /// values of these settings, changed in this pipeline or later.
    pub(super) fn doubt_reported(
        &mut self,
        parts: PartSet,
        names: Vec<Box<[u8]>>,
        since: u64,
        noted: Noted,
    ) {
        if !parts.is_empty() || !names.is_empty() {
            self.unverified =
                Some(Box::new(Unverified { parts, names, since, noted, ..Unverified::default() }));
        }
    }

    /// A text prepares these by SQL, or takes some away (`ended`), under these settings; `sets`: it may
    /// change these as well.
    pub(super) fn note_sql(
        &mut self,
        prepared: &[Box<[u8]>],
        settings: &Settings,
        ended: bool,
        sets: bool,
    ) {
        let doubtful = self.status != TransactionStatus::Idle || self.settings_in_doubt();
        // What was executed before it in its pipeline is not answered yet.
        let unknown = sets || self.local_path || self.requests.contains(Request::Execute);
        let noted = &mut self.unverified.get_or_insert_default().noted;
        noted.ended |= ended;
        for name in prepared {
            let (name, settings) = (name.clone(), settings.clone());
            let parsed = Vec::new();
            noted.add(NotedPrepare { name, settings, doubtful, unknown, parsed });
        }
    }

    /// A Parse gives a statement this name there, which is the client's own for it.
    pub(super) fn note_parsed(&mut self, name: &[u8], statement: &Arc<Statement>) {
        let doubtful = self.settings_in_doubt();
        let noted = NotedPrepare {
            name: name.into(),
            settings: statement.settings.clone(),
            doubtful,
            unknown: false,
            parsed: vec![statement.clone()],
        };
        self.mark_unverified(PartSet::of(&[Part::SqlStatement]));
        self.unverified.get_or_insert_default().noted.add(noted);
    }

    /// What the protocol may have prepared under this name, while it is not known whether it has.
    pub(super) fn noted_as_parsed(&self, name: &[u8]) -> &[Arc<Statement>] {
        self.unverified.as_ref().map_or(&[], |doubt| doubt.noted.parsed(name))
    }

    /// Whether a text or a Parse that is not known to have failed gives a statement this name there.
    pub(super) fn may_have_named(&self, name: &[u8]) -> bool {
        self.unverified.as_ref().is_some_and(|doubt| doubt.noted.of(name).is_some())
    }

    /// The server knows custom names for good, whatever becomes of the statement.
    pub(super) fn note_names(&mut self, effects: &Effects) {
        let names = effects.names.iter().chain(&effects.local_names);
        for name in names.filter(|name| is_custom(name)) {
            self.note_custom(name);
        }
    }

    /// Of the parts in question those that the statement leaves as they are: custom names that the
    /// session has, and that are set up to the end of the transaction.
    pub(super) fn known_to_stay(&self, effects: &Effects) -> PartSet {
        let stays = !effects.vague
            && !effects.names.iter().any(|name| is_custom(name))
            && effects.local_names.iter().all(|name| self.applied.get(name).is_some());
        if stays { PartSet::of(&[Part::CustomSetting]) } else { PartSet::EMPTY }
    }

    /// Whether a statement that is parsed now may be parsed under other settings than is known.
    pub(super) fn settings_in_doubt(&self) -> bool {
        self.unverified.as_ref().is_some_and(|doubt| doubt.vague || !doubt.names.is_empty())
    }

    /// Whether the server's word is awaited.
    pub(super) fn is_asking(&self) -> bool {
        self.requests.back() == Some(Request::InjectedQuestion)
    }

    /// A row has come for the question under way.
    pub(super) fn take_answer(&mut self, row: &[u8]) {
        if let Some(doubt) = &mut self.unverified {
            doubt.answer = doubt.question.as_ref().and_then(|question| question.read(row));
        }
    }

    /// The question has failed: nothing is known. One that was cut off, by a timeout of its client's, is
    /// asked again at once.
    pub(super) fn question_failed(&mut self, error: &[u8]) {
        if let Some(doubt) = &mut self.unverified {
            doubt.answer = None;
            if is_cut_off(error) && doubt.cut_off < limits::LIFTS_MAX {
                doubt.cut_off += 1;
                doubt.tried = None;
            }
        }
    }
}

impl<S: Socket> Engine<S> {
    /// A cancel can hit nothing of this client's any more: what could not be asked for that reason,
    /// when its transaction ended, is asked now.
    pub(super) fn ask_behind_cancel<H: Host<S>>(&mut self, host: &mut H, slot: Slot, now: Time) {
        let Some(client) = self.clients.get_mut(slot) else { return };
        if !client.is_pinned() || client.holds_ready() || client.is_leaving() {
            return;
        }
        let Some(mut backend) = client.backend.take_if(|backend| backend.is_at_rest()) else {
            return;
        };
        let done = client.can_give_back(&mut backend);
        if let Ok(true) = done {
            client.state = ClientState::Idle;
            client.since = now;
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
    /// Settings go back to values that they have been given in the same text or pipeline: to the
    /// client's own start values, or to the server's.
    #[cold]
    pub(super) fn doubt_resetting(&mut self, backend: &mut Backend<S>, resetting: &Resetting) {
        let known = backend.unverified.as_ref().map_or(&[][..], |doubt| &doubt.names);
        let moved = |name: &[u8]| {
            backend.parameters.get(name).is_none()
                && (backend.applied.get(name).is_some()
                    || known.iter().any(|known| known.eq_ignore_ascii_case(name)))
        };
        let mut names: Vec<Box<[u8]>> = match resetting {
            Resetting::No => Vec::new(),
            Resetting::Names(names) => names.clone(),
            Resetting::All => backend
                .applied
                .iter()
                .filter(|(name, _)| !KEPT_BY_RESET_ALL.contains(name))
                .map(|(name, _)| name.into())
                .collect(),
        };
        if names.iter().any(|name| name.eq_ignore_ascii_case(b"session_authorization")) {
            names.push(b"role"[..].into());
            names.push(b"session_authorization"[..].into());
        }
        names.retain(|name| moved(name) || KEPT_BY_RESET_ALL.contains(&&**name));
        if names.is_empty() {
            return;
        }
        for name in &names {
            let part = Part::of_setting(name, |_| false);
            self.pins = self.pins.union(part.into_iter().collect());
        }
        backend.doubt_settings(&Effects { names, several: true, ..Effects::default() });
    }

    /// Whether its backend, which is at rest, can be given back. Where what pins is in doubt, the
    /// server is asked.
    #[inline]
    pub(super) fn can_give_back(
        &mut self,
        backend: &mut Backend<S>,
    ) -> Result<bool, super::from_client::Halt> {
        if !self.is_pinned() {
            return Ok(true);
        }
        if backend.unverified.is_some() { self.ask(backend) } else { Ok(false) }
    }

    /// Its backend is at rest, and it keeps it for reasons that are in doubt. Asks, if asking may
    /// end that. Whether there is nothing left to ask for, and nothing pins.
    #[cold]
    fn ask(&mut self, backend: &mut Backend<S>) -> Result<bool, super::from_client::Halt> {
        // A sequence's value does not keep it where others may not be kept: what else does must be known.
        let apart = ASKED.union(PASSING).union(IN_DOUBT).union(PartSet::of(&[Part::SequenceValue]));
        let others = self.pins.minus(apart);
        let unsettled = self.is_unsettled();
        if self.is_session_mode()
            || !others.is_empty()
            || unsettled
            || backend.requests.has_syncs_in_doubt()
            || backend.cancels_in_flight > 0
            || backend.status != TransactionStatus::Idle
        {
            return Ok(false);
        }
        let lasting = self.lasting_pins(backend);
        let transactions = backend.transactions;
        let (digits, in_unsafe_encoding) = (!backend.reads_raw(), backend.reads_unsafely());
        let Some(doubt) = &mut backend.unverified else { return Ok(false) };
        if doubt.vague || doubt.tried == Some(transactions) {
            return Ok(false);
        }
        let parts = doubt.parts.intersection(self.pins).minus(lasting);
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
        if let Some(pinned) = &mut backend.pinned {
            pinned.question(true);
        }
        let mut out = Vec::with_capacity(limits::QUESTION_BYTES);
        backend.inject_question(&text, &mut out);
        backend.send(&out)?;
        Ok(false)
    }

    /// The server has said what there is.
    #[cold]
    pub(super) fn conclude(&mut self, backend: &mut Backend<S>) {
        let Some(mut doubt) = backend.unverified.take() else { return };
        let mut gone = doubt.parts.intersection(PASSING).union(IN_DOUBT);
        if let Some(question) = doubt.question.take() {
            let Some(answer) = doubt.answer.take() else {
                // Asked again after the next transaction.
                backend.unverified = Some(doubt);
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
            // A DEALLOCATE ALL within a function has taken the shared ones away, too.
            backend.statements.clear_in_doubt();
            backend.uncertain = true;
        }
        self.pins = self.pins.minus(gone).union(self.pins_of_settings(backend));
    }

    /// Parts that pin it by the settings in force.
    pub(super) fn pins_of_settings(&self, backend: &Backend<S>) -> PartSet {
        let mut pins = self.lasting_pins(backend);
        if backend.applied.get(b"search_path").is_some_and(names_temporary_schema) {
            pins.insert(Part::TemporaryObject); // a plain CREATE TABLE may make one
        }
        if ends_transactions_soon(&backend.applied) || backend.keeps_settings() {
            pins.insert(Part::Setting); // taking it off could itself take too long
        }
        pins
    }

    /// The server has told the values of settings: they are what the client wants, and what the
    /// backend has. What was parsed since they were in doubt was noted under the values before.
    /// After a DISCARD ALL the client wants its start values, which the backend does not have yet.
    fn take_settings(
        &mut self,
        backend: &mut Backend<S>,
        names: &[Box<[u8]>],
        values: &[Option<Box<[u8]>>],
        since: u64,
        doubt: &Unverified,
    ) {
        let empty = |name: &[u8], value: Option<&[u8]>| {
            value == Some(b"") && doubt.resets.iter().any(|reset| reset.eq_ignore_ascii_case(name))
        };
        let told = |settings: &Settings, start: &Settings| {
            let mut settings = SettingsBuilder::from(settings);
            for (name, value) in names.iter().zip(values) {
                let login = **name == *b"session_authorization";
                let own = value.as_deref().filter(|v| login && **v == *backend.role().as_bytes());
                // What has been reset where no SET could be put after it: within a function.
                let reset = doubt.discarded
                    || if is_custom(name) {
                        empty(name, value.as_deref())
                    } else {
                        value.is_none()
                    };
                let start = start.get(name).filter(|_| reset);
                match start.or(value.as_deref().filter(|_| own.is_none())) {
                    Some(value) => settings.set(name, value),
                    None => settings.remove(name),
                };
            }
            settings.build()
        };
        let applied = told(&backend.applied, &Settings::EMPTY);
        let desired = told(&self.desired, &self.record.start);
        self.adopt_settings(backend, applied, desired, since);
    }

    /// The backend has these settings, and the client wants those, since this pipeline or a later
    /// one.
    pub(super) fn adopt_settings(
        &mut self,
        backend: &mut Backend<S>,
        applied: Settings,
        desired: Settings,
        since: u64,
    ) {
        let mut interner = backend.pool.interner();
        let (applied, desired) = (interner.share(applied), interner.share(desired));
        drop(interner);
        if applied == backend.applied && desired == self.desired {
            return;
        }
        (backend.applied, self.desired) = (applied, desired);
        backend.statements.mark_stale_since(since);
        let named = self.statements.iter_mut().flat_map(|names| names.values_mut());
        for named in named.filter(|named| named.pipeline >= since) {
            let before = named.statement.clone();
            named.statement = backend.statement_of(&before.body, backend.basis, &backend.applied);
        }
        if backend.unnamed.since() >= since
            && let Some(unnamed) = &self.unnamed
        {
            let effects = backend.effects_of_body(&unnamed.body, &backend.applied);
            self.unnamed = Some(unnamed.under(backend.applied.clone(), effects));
        }
    }
}
