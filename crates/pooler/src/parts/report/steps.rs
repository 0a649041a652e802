//! What follows from a report, for the server connection and for its client.

use crate::parts::pins::question::NAMES_MAX;
use crate::parts::pins::unverified::PASSING;
use crate::parts::report::text::{Kept, Report, ReportError, SetTo};
use crate::parts::report::{Changed, END_IS_REPORTED, SessionReport, beside, significant};
use crate::parts::sequences::asking::Asks;
use crate::parts::sequences::drawn_values::Lent;
use crate::relay::backend::{Backend, Reset};
use crate::relay::client::Client;
use crate::relay::socket::Socket;
use crate::session::canonical::is_unsafe_encoding;
use crate::session::part::{Part, PartSet};
use crate::session::settings::{
    Settings, SettingsBuilder, can_move, is_custom, is_for_superusers, is_raw,
};
use crate::wire::build;

/// The outcome for the settings of a report.
#[derive(Default)]
struct ReportedSettings {
    /// Those whose values the server must be asked for.
    names: Vec<Box<[u8]>>,
    /// For some of these another value would give the same report.
    unreported: bool,
    /// Some do not move.
    stays: PartSet,
    /// Those whose values are known.
    applied: Option<(Settings, Settings)>,
    /// The reports that the client gets of those that were reset to its own start values.
    restored: Vec<u8>,
}

impl<S: Socket> Backend<S> {
    /// Whether the last report and the books differ on a setting, where only Hawser may have
    /// changed any since the report.
    #[inline]
    pub(crate) fn disagrees(&mut self) -> bool {
        let Some(exact) = self.known.session_report.as_deref() else { return false };
        if !exact.fresh && exact.compared.is_shared_with(&self.session.applied) {
            return false;
        }
        self.compare_with_report()
    }

    #[cold]
    fn compare_with_report(&mut self) -> bool {
        let Some(exact) = self.known.session_report.as_deref() else { return false };
        let in_doubt = self.known.unverified.is_some()
            || exact.stays
            || exact.unreported
            || exact.report.is_cut
            || self.is_classic();
        if in_doubt {
            return false;
        }
        // Custom names of a user's own settings stay; the role ends at each hand-over.
        let shared = self.owner.is_shared();
        let is_compared = |name: &[u8]| {
            if shared { name == b"role" } else { crate::parts::report::is_compared(name) }
        };
        let reported = |name: &[u8], value: &[u8]| {
            let set = exact.report.setting(name);
            match set.map(|set| set.value.as_deref()) {
                Some(None) => true,
                there => significant(name, there.flatten()) == significant(name, Some(value)),
            }
        };
        let known = self.session.applied.iter().filter(|(name, _)| is_compared(name));
        let mut lost = known.filter(|(name, _)| !self.reports_settable(name));
        let differs = lost.any(|(name, value)| !reported(name, value))
            || exact.report.settings.iter().any(|set| {
                is_compared(&set.name)
                    && self.session.applied.get(&set.name).is_none()
                    && (shared || exact.unowned.setting(&set.name) != Some(set))
                    && !reported(&set.name, b"")
            });
        let applied = self.session.applied.clone();
        if let Some(exact) = self.known.session_report.as_deref_mut().filter(|_| !differs) {
            exact.compared = applied;
        }
        differs
    }

    /// Whether a report has come that has not been processed.
    pub(crate) fn has_fresh_report(&self) -> bool {
        self.known.session_report.as_deref().is_some_and(|exact| exact.fresh)
    }

    /// A report has come. `Err`: it cannot be read, and reports of this connection are not used any
    /// more.
    pub(crate) fn take_report(&mut self, text: &[u8]) -> Result<(), ReportError> {
        let Some(exact) = self.known.session_report.as_deref_mut() else { return Ok(()) };
        match Report::read(text) {
            Ok(report) => {
                exact.report = report;
                exact.fresh = true;
                Ok(())
            }
            Err(error) => Err(self.believe_no_more(error)),
        }
    }

    /// The server has reported what its process keeps. (Each has what it began with, by
    /// `connect_query` say.)
    ///
    /// # Errors
    /// As [`Backend::take_report`].
    pub(crate) fn take_kept(&mut self, text: &[u8]) -> Result<(), ReportError> {
        if self.known.session_report.is_none() {
            return Ok(());
        }
        let kept = match Kept::read(text) {
            Ok(kept) => kept,
            Err(error) => return Err(self.believe_no_more(error)),
        };
        for name in &kept.defined {
            self.session.keep_lasting(self.pool.loaded_library(name));
        }
        if kept.buffers.is_some() && !self.session.lasting.has_buffers() {
            self.session.keep_lasting(self.pool.temporary_buffers(kept.buffers));
        }
        Ok(())
    }

    fn believe_no_more(&mut self, error: ReportError) -> ReportError {
        self.known.session_report = None;
        self.lending.spoil("its server reported what cannot be read");
        error
    }

    /// It has come to rest without a client, or is to get its first: its current state is unowned.
    /// State that no command undoes comes from a client that was gone before the report came.
    pub(crate) fn leave_unowned(&mut self, to_its_first: bool) {
        if !self.has_fresh_report() {
            return;
        }
        let Some(mut exact) = self.known.session_report.take() else { return };
        let left = exact.report.parts.minus(exact.unowned.parts);
        if !to_its_first && (exact.report.is_cut || left.must_close_with()) {
            self.spoil_for_good();
        }
        exact.fresh = false;
        exact.since = self.requests.pipeline();
        exact.drawn_by = exact.drawn_by.filter(|by| Some(*by) == exact.holder);
        self.note_reported_names(&mut exact);
        exact.unowned = self.unowned(&exact.report);
        self.known.session_report = Some(exact);
    }

    /// What a report contains that is no client's. Statements of its last client's PREPARE are
    /// removed before the next client's first message.
    fn unowned(&self, report: &Report) -> Report {
        let mut unowned = beside(report, &self.session.applied);
        if self.prepared.by_sql.is_some() && self.has_sql_statements(&report.statements) {
            unowned.parts.remove(Part::SqlStatement);
        }
        unowned
    }

    /// It has been handed over: its current state is its user's own. (Custom names of a user's own
    /// settings remain with an empty value, and do not count.)
    pub(crate) fn begin_reports(&mut self) {
        let Some(mut exact) = self.known.session_report.take() else { return };
        (exact.fresh, exact.unreported, exact.stays) = (false, false, false);
        exact.since = self.requests.pipeline();
        exact.noted.clone_from(&exact.report.names);
        exact.unowned = self.unowned(&exact.report);
        self.known.session_report = Some(exact);
    }

    /// Whether all settings certainly have the server's own values.
    pub(crate) fn has_own_settings_only(&self) -> bool {
        let report = self.known.session_report.as_deref().map(|exact| &exact.report);
        self.session.applied.is_empty()
            && report.is_some_and(|report| !report.is_cut && report.settings.is_empty())
    }

    /// A client that was gone before the report came has left state that a reset removes.
    pub(crate) fn has_left_overs(&self) -> bool {
        let Some(exact) = self.known.session_report.as_deref().filter(|exact| exact.fresh) else {
            return false;
        };
        let mut left = exact.report.parts.minus(exact.unowned.parts);
        if self.has_sql_statements(&exact.report.statements) {
            left.remove(Part::SqlStatement); // the next client removes them
        }
        let set = exact.report.settings.iter().any(|set| {
            let known = self.session.applied.get(&set.name);
            (known.is_some() || exact.unowned.setting(&set.name) != Some(set))
                && !self.reports_settable(&set.name)
                && known != set.value.as_deref()
        });
        let reset = self.session.applied.iter().any(|(name, value)| {
            let stays = is_custom(name) && value.is_empty();
            !stays && !self.reports_settable(name) && exact.report.setting(name).is_none()
        });
        set || reset || !left.minus(PartSet::of(&[Part::SequenceValue])).is_empty()
    }

    /// Whether its server's report on statements of PREPARE covers only its client's.
    pub(crate) fn reports_all_statements(&self) -> bool {
        let exact = self.known.session_report.as_deref();
        exact.is_some_and(|exact| exact.covered().contains(Part::SqlStatement))
    }

    pub(crate) fn is_lent_to(&mut self, lent: Lent) {
        let client = lent.client;
        let again = self.known.drawn.is_lent(lent);
        self.ahead.forget_outcome();
        if self.known.notifying.is_lent_to(client, self.lending.since) {
            self.session.function_plans_are_own = false;
        }
        if let Some(exact) = self.known.session_report.as_deref_mut() {
            if !again && exact.drawn_by == Some(client) {
                exact.drawn_by = None; // it may have drawn elsewhere since
            }
            exact.holder = Some(client);
            exact.asks = false;
            exact.changed.clear();
        }
    }

    /// A client's transaction has given a setting the server's own value, or another.
    pub(crate) fn note_reported_value(&mut self, name: &[u8], was_own: bool, is_own: bool) {
        let Some(exact) = self.known.session_report.as_deref_mut() else { return };
        match exact.changed.iter_mut().find(|changed| *changed.name == *name) {
            Some(changed) => changed.is_own = is_own,
            None => exact.changed.push(Changed { name: name.into(), was_own, is_own }),
        }
    }

    /// Custom names stay with the connection, whichever client has set them.
    fn note_reported_names(&mut self, exact: &mut SessionReport) {
        if exact.noted == exact.report.names {
            return;
        }
        for name in &exact.report.names {
            if !exact.noted.contains(name) {
                self.note_custom(name);
            }
        }
        exact.noted.clone_from(&exact.report.names);
    }

    /// Whether currval and lastval must be discarded before its client's first message: their value
    /// is another client's, or one that the client has already asked for and that would hide what
    /// it draws now. `None`: the server reports nothing.
    pub(crate) fn must_discard_sequences(&self, asks: impl FnOnce() -> bool) -> Option<bool> {
        let exact = self.known.session_report.as_deref()?;
        let own = exact.is_drawn_by_holder();
        Some(exact.may_draw() && (!own || (exact.asked && !asks())))
    }

    /// Its client draws after it has asked.
    pub(crate) fn draws_after_asking(&mut self) {
        if let Some(exact) = self.known.session_report.as_deref_mut() {
            exact.asks = false;
        }
    }

    /// Its client, not one of session mode, asks for currval or lastval, or may. Returns whether
    /// the server's report covers the rest.
    pub(crate) fn asks_for_sequences(&mut self, asks: bool) -> bool {
        let Some(exact) = self.known.session_report.as_deref_mut() else { return false };
        exact.asks |= asks;
        true
    }

    /// Its client has kept it to ask for what it drew, and has not asked.
    pub(crate) fn note_unasked(&mut self) {
        let text = self.known.drawn.text();
        match self.known.drawn.is_asked() {
            true => self.pool.asking().note_waste_of_again(text),
            false => self.pool.asking().note_waste(text),
        }
        if let Some(exact) = self.known.session_report.as_deref_mut() {
            exact.unasked = true;
        }
    }

    /// Whether it has settings that do not move.
    pub(crate) fn keeps_settings(&self) -> bool {
        self.known.session_report.as_deref().is_some_and(|exact| exact.stays)
    }

    /// Whether text under its `client_encoding` has the server's own bytes.
    pub(crate) fn reads_raw(&self) -> bool {
        let name = &b"client_encoding"[..];
        let of_client =
            self.session.applied.get(name).or_else(|| self.session.own.parameters.get(name));
        is_raw(of_client, self.session.own.parameters.get(b"server_encoding"))
    }

    /// Whether characters of its `client_encoding` contain bytes that look like ASCII.
    pub(crate) fn reads_unsafely(&self) -> bool {
        let name = &b"client_encoding"[..];
        self.session
            .applied
            .get(name)
            .or_else(|| self.session.own.parameters.get(name))
            .is_some_and(is_unsafe_encoding)
    }

    /// Whether ParameterStatus reports this setting, which a client can set.
    fn reports_settable(&self, name: &[u8]) -> bool {
        name != b"session_authorization" && self.session.own.parameters.get(name).is_some()
    }

    /// Whether it reports the value itself: one that is not ASCII comes converted.
    fn reports_value(&self, set: &SetTo) -> bool {
        self.reports_settable(&set.name) && set.value.as_deref().is_none_or(<[u8]>::is_ascii)
    }
}

impl<S: Socket> Client<S> {
    /// Its transaction is over (`failed`: by an error), and its backend at rest: the report is the truth, if there is
    /// one. Returns the reports of settings that it is due.
    #[inline]
    pub(crate) fn heed_report(&mut self, backend: &mut Backend<S>, failed: bool) -> Vec<u8> {
        if let Some(exact) = backend.known.session_report.as_deref()
            && (exact.fresh
                || exact.asks
                || exact.unreported
                || backend.known.unverified.is_some()
                || !self.session.pins.is_empty())
        {
            return self.settle_report(backend, failed);
        }
        if let Some(exact) = backend.known.session_report.as_deref_mut() {
            exact.changed.clear();
            // It has reported nothing: so far all settings are unchanged.
            exact.since = backend.requests.pipeline();
        }
        Vec::new()
    }

    #[cold]
    fn settle_report(&mut self, backend: &mut Backend<S>, failed: bool) -> Vec<u8> {
        let mut reported = Vec::new();
        let Some(mut exact) = backend.known.session_report.take() else { return reported };
        backend.note_reported_names(&mut exact);
        let held = exact.report.parts.minus(exact.unowned.parts);
        let mut pinning = held.pinning();
        if held.contains(Part::Listen) {
            pinning.insert(Part::Listen); // the text's LISTEN moves, and has left the backend by then
        }
        let one_keeps_it =
            self.is_session_mode() || self.serving.is_exclusive() || backend.is_classic();
        let lasting = match one_keeps_it {
            true => pinning.must_close_with(),
            false => pinning.minus(END_IS_REPORTED).must_close(),
        };
        if lasting {
            backend.spoil_for_good();
        }
        let draws = exact.may_draw();
        let asked = std::mem::take(&mut exact.asks);
        exact.asked = draws && (asked || (exact.asked && !exact.fresh));
        exact.unasked &= !exact.fresh;
        exact.drawn_by = exact.holder.filter(|_| draws);
        if exact.report.is_cut {
            // What the text shows pins as it would without a report, and whatever else there is
            // does not end.
            backend.lending.spoil("its session held more than its server could report");
            self.session.pins.insert(Part::Setting);
            backend.doubt_all();
        } else if self.is_session_mode() || self.serving.is_exclusive() {
            // One client has it for all its life.
        } else if backend.is_classic() {
            let sql = held.intersection(PartSet::of(&[Part::SqlStatement]));
            self.lose(backend, &exact, pinning.union(sql));
        } else {
            reported = self.hold_what_is_reported(backend, &mut exact, pinning);
            if draws && exact.fresh && !asked {
                self.session.asks.draws();
            }
            // (Few ask after a statement that has failed.)
            if draws
                && !exact.unasked
                && !failed
                && (!exact.asked || matches!(self.session.asks, Asks::Last(_)))
            {
                self.keep_what_it_drew(backend);
            }
        }
        exact.fresh = false;
        exact.since = backend.requests.pipeline();
        exact.changed.clear();
        backend.known.session_report = Some(exact);
        reported
    }

    /// State that pins is lost, and no other client finds it.
    fn lose(&mut self, backend: &mut Backend<S>, exact: &SessionReport, pinning: PartSet) {
        let mut lost = pinning.minus(PartSet::of(&[Part::SequenceValue]));
        if self.keeps_backend_to_listen() {
            lost.remove(Part::Listen);
        }
        let sets = exact.fresh
            && exact.report.settings.iter().any(|set| {
                exact.unowned.setting(&set.name) != Some(set)
                    && !backend.reports_settable(&set.name)
                    && set.value.as_deref() != backend.session.applied.get(&set.name)
            });
        if !lost.is_empty() || sets {
            backend.lending.owe_reset(Reset::All);
        }
    }

    /// Sets pins and settings to those of the report.
    fn hold_what_is_reported(
        &mut self,
        backend: &mut Backend<S>,
        exact: &mut SessionReport,
        pinning: PartSet,
    ) -> Vec<u8> {
        let mut doubt = backend.known.unverified.take();
        let noted = doubt.as_mut().map(|doubt| doubt.take_noted()).unwrap_or_default();
        let named = doubt.as_ref().map_or(&[][..], |doubt| doubt.names());
        let mut reported = ReportedSettings::default();
        // (What a transaction has undone is as the report before it says: no other comes.)
        let undone = doubt.as_ref().is_some_and(|doubt| doubt.may_be_undone());
        if exact.fresh || exact.unreported || undone {
            reported = self.read_settings(backend, exact, named);
            exact.stays = !reported.stays.is_empty();
            exact.unreported = reported.unreported;
        } else if exact.stays {
            reported.stays = self.session.pins.intersection(PartSet::ANY_SETTING);
        }
        if let Some((applied, desired)) = reported.applied.take() {
            self.adopt_settings(backend, applied, desired, exact.since);
        }
        let mut covered = exact.covered().union(PASSING);
        if exact.report.parts.contains(Part::Listen) && self.session.pins.contains(Part::Listen) {
            covered.remove(Part::Listen);
        }
        let mut pins = pinning.minus(PartSet::of(&[Part::SequenceValue]));
        if pins.contains(Part::Listen) && self.keeps_backend_to_listen() {
            pins.remove(Part::Listen);
        }
        let taken_away = backend.prepared.by_sql.is_some()
            && exact.report.statements.is_empty()
            && !backend.has_parsed_statements()
            && !noted.has_parsed();
        let prepared = self.session.pins.contains(Part::SqlStatement) || taken_away;
        self.session.pins = self.session.pins.minus(covered).union(pins).union(reported.stays);
        if pins.contains(Part::TemporaryObject) {
            backend.prepared.statements.client_sees_its_own(); // whatever has created it
        }
        let left = doubt.as_ref().map_or(PartSet::EMPTY, |doubt| doubt.parts());
        let mut asked = left.intersection(exact.unowned.parts);
        if !exact.fresh {
            // A portal is closed outside of any transaction, and no report comes.
            let held = PartSet::of(&[Part::HeldCursor]);
            asked = asked.union(left.intersection(pins).intersection(held));
        }
        if exact.covered().contains(Part::SqlStatement)
            && self.is_to_ask_for_sql(backend, exact, left, noted.has_parsed())
        {
            asked.insert(Part::SqlStatement);
            self.session.pins.insert(Part::SqlStatement);
        }
        if prepared && !self.session.pins.contains(Part::SqlStatement) {
            // A DEALLOCATE ALL within a function has removed the shared ones, too.
            backend.prepared.doubt_all();
        }
        self.session.pin_all(self.pins_of_settings(backend));
        backend.doubt_reported(asked, reported.names, exact.since, noted);
        if backend.settings_in_doubt() {
            self.session.pins.insert(Part::Setting);
        }
        reported.restored
    }

    /// Whether the server must be asked for its statements of PREPARE, whose names the report has.
    /// `left`: what texts have left in doubt. `parsed`: the protocol has given such a name, which
    /// no report shows.
    fn is_to_ask_for_sql(
        &mut self,
        backend: &mut Backend<S>,
        exact: &SessionReport,
        left: PartSet,
        parsed: bool,
    ) -> bool {
        let names = &exact.report.statements;
        let parsed = parsed || backend.has_parsed_statements();
        if names.is_empty() && !parsed && backend.prepared.by_sql.is_some() {
            self.forget_sql_statements();
            backend.prepared.by_sql = None;
            return false;
        }
        if names.is_empty() && !parsed {
            return false; // none of the statements that it has was brought to it
        }
        let others = !backend.has_sql_statements(names);
        if left.contains(Part::SqlStatement) || (others && exact.fresh) {
            return true;
        }
        if others || self.keeps_sql_statements() {
            self.session.pins.insert(Part::SqlStatement);
        }
        false
    }

    /// Compares the settings of the report with what the backend is known to have. The client has
    /// made the differences.
    fn read_settings(
        &self,
        backend: &Backend<S>,
        exact: &SessionReport,
        named: &[Box<[u8]>],
    ) -> ReportedSettings {
        let mut reading = ReadingSettings {
            applied: SettingsBuilder::from(&backend.session.applied),
            desired: SettingsBuilder::from(&self.session.desired),
            changed: false,
            reported: ReportedSettings::default(),
        };
        reading.take_set(backend, exact, named);
        reading.take_reset(backend, exact, &self.record.start);
        reading.take_taken_back(backend, exact, self);
        reading.take_own_values(exact, self);
        let ReadingSettings { applied, desired, changed, mut reported } = reading;
        reported.applied = changed.then(|| (applied.build(), desired.build()));
        reported
    }
}

/// Whether a setting of the report is the client's: it has not the value that it has for a client
/// without settings, nor is it the role that the pool gives.
fn is_clients<S: Socket>(backend: &Backend<S>, exact: &SessionReport, set: &SetTo) -> bool {
    let unowned = exact.unowned.setting(&set.name) == Some(set);
    (!unowned || backend.session.applied.get(&set.name).is_some())
        && !(*set.name == *b"session_authorization"
            && set.value.as_deref() == Some(backend.role().as_bytes()))
}

/// The settings of a report, as far as they have been read.
struct ReadingSettings {
    /// The server's settings.
    applied: SettingsBuilder,
    /// The client's desired settings.
    desired: SettingsBuilder,
    /// Either differs from what was known.
    changed: bool,
    reported: ReportedSettings,
}

impl ReadingSettings {
    /// Takes settings that were set.
    fn take_set<S: Socket>(
        &mut self,
        backend: &Backend<S>,
        exact: &SessionReport,
        named: &[Box<[u8]>],
    ) {
        let report = &exact.report;
        let known = |name: &[u8]| backend.session.applied.get(name);
        for set in report.settings.iter().filter(|set| is_clients(backend, exact, set)) {
            let name = &*set.name;
            let part = Part::of_setting(name, |_| false);
            let Some(part) = part.filter(|part| *part != Part::Seed && !backend.reports_value(set))
            else {
                continue;
            };
            let known = known(name);
            let by_text = known.is_some() || named.iter().any(|known| **known == *name);
            let may_set = by_text
                || backend.is_of_superuser()
                || if is_custom(name) { report.knows(name) } else { !is_for_superusers(name) };
            if !may_set || !can_move(name) {
                self.reported.stays.insert(part);
                continue;
            }
            match &set.value {
                Some(value) => {
                    if known != Some(&**value) {
                        self.applied.set(name, value);
                        self.desired.set(name, value);
                        self.changed = true;
                    }
                }
                None if self.reported.names.len() < NAMES_MAX => {
                    self.reported.unreported = true;
                    self.reported.names.push(name.into());
                }
                None => self.reported.stays.insert(part),
            }
        }
    }

    /// Takes settings that were reset, also within a function: they have the client's own start
    /// values.
    fn take_reset<S: Socket>(
        &mut self,
        backend: &Backend<S>,
        exact: &SessionReport,
        start: &Settings,
    ) {
        let report = &exact.report;
        for (name, value) in
            backend.session.applied.iter().filter(|(name, _)| !backend.reports_settable(name))
        {
            if report.setting(name).is_some_and(|set| is_clients(backend, exact, set)) {
                continue;
            }
            let stays = is_custom(name) && report.knows(name);
            if stays && value.is_empty() {
                continue;
            }
            self.changed = true;
            if stays {
                self.applied.set(name, b"");
                self.desired.set(name, start.get(name).unwrap_or_default());
            } else {
                self.applied.remove(name);
                match start.get(name) {
                    Some(value) => self.desired.set(name, value),
                    None => self.desired.remove(name),
                };
            }
        }
    }

    /// Takes settings that were set and taken back, and are covered by the report again.
    fn take_taken_back<S: Socket>(
        &mut self,
        backend: &Backend<S>,
        exact: &SessionReport,
        client: &Client<S>,
    ) {
        let (report, start) = (&exact.report, &client.record.start);
        for name in report.names.iter().filter(|name| {
            backend.session.applied.get(name).is_none()
                && report.setting(name).is_none()
                && !exact.unowned.knows(name)
                && can_move(name)
        }) {
            self.applied.set(name, b"");
            if client.session.desired.get(name).is_none() {
                // (Otherwise Hawser has set it, in a pipeline that has failed: the client still
                // desires it.)
                self.desired.set(name, start.get(name).unwrap_or_default());
            }
            self.changed = true;
        }
    }

    /// Takes settings that have got the server's own value. (For reported ones only their value was
    /// reported.)
    fn take_own_values<S: Socket>(&mut self, exact: &SessionReport, client: &Client<S>) {
        let (report, start) = (&exact.report, &client.record.start);
        for one in exact.changed.iter().filter(|one| exact.fresh && one.came_to_own()) {
            let name = &one.name;
            if let Some(value) = start.get(name)
                && client.session.desired.get(name).is_none()
                && report.setting(&name.to_ascii_lowercase()).is_none()
            {
                self.desired.set(name, value);
                self.changed = true;
                build::parameter_status(&mut self.reported.restored, name, value);
            }
        }
    }
}
