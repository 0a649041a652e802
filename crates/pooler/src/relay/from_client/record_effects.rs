//! How a client's statements change the books of its session when they are sent.

use crate::lending::buffers_of;
use crate::parts::sequences::asking::Asks;
use crate::parts::sequences::drawn_values::Last;
use crate::relay::backend::{Backend, Reset};
use crate::relay::client::Client;
use crate::relay::effects::{Effect, Effects, IN_DOUBT, Resetting, Unusual};
use crate::relay::socket::Socket;
use crate::session::part::{Part, PartSet};
use crate::session::scan::{ScanOptions, SchemaChange};

impl<S: Socket> Backend<S> {
    /// The message may change what statements mean.
    pub(crate) fn note_schema_change(&mut self, change: SchemaChange) {
        match change {
            SchemaChange::None => {}
            SchemaChange::Own => self.prepared.statements.client_sees_its_own(),
            SchemaChange::All => {
                self.prepared.statements.transaction_sees_its_own();
                self.known.side_effects.note_schema();
            }
        }
    }
}

impl<S: Socket> Backend<S> {
    /// The message may create a temporary table, which no other session sees, and whose buffers the
    /// process keeps. (A server that reports shows these.)
    fn note_temporary(&mut self, effects: &Effects) {
        let makes =
            effects.pins.contains(Part::TemporaryObject) || self.may_make_temporary(effects);
        if makes {
            self.prepared.statements.client_sees_its_own();
        }
        if makes && self.known.session_report.is_none() && !self.session.lasting.has_buffers() {
            let size = buffers_of(&self.session.applied);
            self.session.keep_lasting(self.pool.temporary_buffers(size));
        }
    }
}

impl<S: Socket> Client<S> {
    /// How this client's statements are read, once everything is answered, by a backend that reads
    /// them like `own` without settings.
    pub(crate) fn scan_options(&self, own: ScanOptions) -> ScanOptions {
        if self.session.desired.is_empty() {
            return own;
        }
        own.with(|name| self.session.desired.get(name))
    }

    /// A statement with these effects is being sent. `restored`: what it resets is SET again after
    /// it (see [`crate::parts::settings::restore`]).
    pub(crate) fn record_effects(
        &mut self,
        backend: &mut Backend<S>,
        effects: &Effects,
        restored: bool,
    ) {
        if effects.is_none() {
            return;
        }
        backend
            .session
            .doubt_texts(effects.may(Effect::Rereads), effects.may(Effect::SetsPathUnseen));
        if effects.sets.is_some_and(|from| backend.pool.statements.read_from(from)) {
            backend.session.doubt_plans();
        }
        let unusual = effects.unusual.as_ref();
        let start_values = unusual.is_some_and(|unusual| unusual.changes_start_values);
        // Something was called that the census has not seen: it is taken again.
        let unseen =
            effects.may(Effect::Spoils) && backend.pool.census().is_some_and(|it| it.has_unseen());
        backend
            .known
            .side_effects
            .note(start_values, effects.may(Effect::ChangesCatalog) || unseen);
        backend.note_schema_change(effects.schema);
        backend.note_names(effects);
        self.note_resets_within(backend, &effects.resets);
        backend.note_temporary(effects);
        if self.is_session_mode() {
            return self.record_in_session_mode(backend, effects, restored);
        }
        if effects.may(Effect::Notifies) {
            backend.known.notifying.is_due();
        }
        self.record_pins(backend, effects);
        // A server that reports shows the rest.
        let spoils = match backend.known.session_report {
            Some(_) => Effect::SpoilsUnseen,
            None => Effect::Spoils,
        };
        if effects.may(spoils) {
            backend.spoil_for_good();
        }
        if effects.may(Effect::ReadsSequences) {
            if self.session.asks == Asks::Never {
                self.session.asks = Asks::Before;
                backend.pool.asking().note_question();
            }
            backend.known.drawn.note_last(Last::Asked);
            backend.pool.asking().note_use(backend.known.drawn.text());
        }
        if let Some(unusual) = &effects.unusual {
            self.record_unusual(backend, unusual, restored);
        }
    }

    /// The same for a client that has its server connection to itself.
    fn record_in_session_mode(
        &mut self,
        backend: &mut Backend<S>,
        effects: &Effects,
        restored: bool,
    ) {
        if effects.leaves_what_stays() {
            backend.spoil_for_good();
        }
        if let Some(unusual) = &effects.unusual
            && self.has_start_values()
        {
            self.note_resetting_of(backend, unusual, restored);
            if unusual.discards_all && self.is_unsettled() {
                self.note_discarding(backend, PartSet::EMPTY);
            }
        }
    }

    /// Records what keeps the client on its server connection from now on.
    fn record_pins(&mut self, backend: &mut Backend<S>, effects: &Effects) {
        if !effects.pins.is_empty() && backend.is_classic() {
            // Lost when the transaction ends, and no other client finds it.
            backend.lending.owe_reset(Reset::All);
            if backend.known.session_report.is_none() && effects.leaves_what_stays() {
                backend.spoil_for_good();
            }
        } else {
            // What pins already does so whatever is created besides.
            let mut pins = effects.pins.minus(backend.known_to_stay(effects));
            if backend.may_make_temporary(effects) {
                pins.insert(Part::TemporaryObject);
            }
            let mut new = pins.minus(self.session.pins);
            let ends_sql = effects.ends.contains(Part::SqlStatement);
            if pins.contains(Part::SqlStatement) || (ends_sql && !self.sql_statements().is_empty())
            {
                // The statement that pins may be another one from now on.
                pins.insert(Part::SqlStatement);
                new.insert(Part::SqlStatement);
            }
            self.session.pin_all(pins);
            backend.mark_unverified(new.union(effects.ends.intersection(self.session.pins)));
            if pins.contains(Part::SqlStatement) {
                let beside = effects.may(Effect::HasSeveral) && effects.may(Effect::SetsBeside);
                backend.note_sql(&effects.prepares, &self.session.desired, ends_sql, beside);
            }
            if effects.may(Effect::Watches) {
                self.watch_sql_statements();
            }
            if pins.intersects(IN_DOUBT) {
                backend.doubt_settings(effects);
            }
        }
        if effects.pins.contains(Part::Listen) {
            self.listens_again();
        }
    }

    /// Records unusual effects, which are settled when their outcome is known.
    fn record_unusual(&mut self, backend: &mut Backend<S>, unusual: &Unusual, restored: bool) {
        backend.prepared.replay.forget();
        self.note_resetting_of(backend, unusual, restored);
        if !unusual.discards_all && unusual.resetting != Resetting::No && !backend.is_classic() {
            self.doubt_resetting(backend, &unusual.resetting, restored);
        }
        if unusual.forgets_statements {
            self.note_forgetting(backend);
        }
        if unusual.discards_all {
            // This one, too, leaves on the server what no command undoes.
            let lasting = self.lasting_pins(backend);
            let stays = |part: &Part| {
                PartSet::LASTING_WHILE_THERE.contains(*part) || lasting.contains(*part)
            };
            let stays = self.session.pins.iter().filter(stays).collect();
            let ends = std::mem::replace(&mut self.session.pins, stays);
            self.note_discarding(backend, ends);
        }
        self.record_listening(unusual);
        self.note_unlistening(backend, unusual);
    }

    /// Settings are reset to start values: whose is settled when the outcome is known, unless the
    /// client's are SET right after it.
    fn note_resetting_of(&mut self, backend: &Backend<S>, unusual: &Unusual, restored: bool) {
        if !restored || unusual.discards_all {
            self.note_resetting(backend, &unusual.resetting, &unusual.set_again);
        }
    }

    /// Notes the reported settings that functions and blocks of code reset: if one gets the server
    /// connection's own value, the client's start value counts as in force. (The extension's report
    /// is too late: the server reports the own value before it. Settings that no server reports are
    /// reported by the extension, or the server is asked.)
    fn note_resets_within(&mut self, backend: &mut Backend<S>, resets: &Resetting) {
        if *resets == Resetting::No || !self.has_start_values() {
            return;
        }
        // A setting that the client has set to the server's own value may not have been reset at
        // all.
        let differs = |name: &[u8]| {
            backend.session.applied.get(name).is_some() || self.session.desired.get(name).is_some()
        };
        let start = self.record.start.iter().map(|(name, _)| name);
        let names: Vec<_> = start
            .filter(|name| backend.session.own.parameters.get(name).is_some())
            .filter(|name| resets.takes(name) && differs(name))
            .map(Into::into)
            .collect();
        if names.is_empty() {
            return;
        }
        backend.prepared.replay.forget();
        self.note_resetting(backend, &Resetting::Names(names), &[]);
    }
}
