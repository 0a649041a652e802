//! ReadyForQuery: where books are closed. Settings, names, pins, the release of the backend.

use std::sync::Arc;

use super::{Fate, Relay, Relayed};
use crate::engine::about::PoolMode;
use crate::engine::backend::Backend;
use crate::engine::client::Client;
use crate::engine::effects::{Effects, Resetting};
use crate::engine::request_queue::Request;
use crate::engine::restore::KEPT_BY_RESET_ALL;
use crate::engine::socket::Socket;
use crate::pool::statement::{Statement, text_of};
use crate::pool::{Basis, ServerParameters};
use crate::session::part::Part;
use crate::session::settings::{Settings, SettingsBuilder, is_custom};
use crate::time::Time;
use crate::wire::error::{ClientError, SqlState};
use crate::wire::{TransactionStatus, build};

/// Why a connection is closed whose server reports other settings than its books.
const MISMATCH: &str = "its server reported other settings than it was given";

impl<S: Socket> Relay<'_, S> {
    /// The server has come to the end of a query or pipeline.
    pub(super) fn ready(
        &mut self,
        owed: Request,
        status: TransactionStatus,
        run: &mut usize,
        at: usize,
        now: Time,
        relayed: &mut Relayed,
    ) -> Result<Fate, &'static str> {
        if !owed.ends_with_ready() {
            return Err("the server was ready before it had answered everything");
        }
        let later = self.client.as_ref().is_some_and(|client| {
            let extra = client.pending_session.as_ref().filter(|_| client.is_unsettled());
            extra.is_some_and(|extra| !self.backend.requests.has_come_to(extra.settles_in))
        });
        if let (Some(change), Some(client)) =
            (self.backend.requests.front_change(), &mut self.client)
        {
            let unnamed = &mut self.backend.prepared.unnamed;
            match client.failed {
                true => client.ignore(change, unnamed),
                false => client.confirm(Some(change), unnamed),
            }
        }
        self.backend.requests.complete_with_ready();
        self.backend.from_server.status = status;
        self.backend.from_server.new_reports = 0;
        let ends_pipeline = owed.ends_ignoring();
        let unsaid = if ends_pipeline { self.backend.unsaid_within() } else { Vec::new() };
        let reverted = ends_pipeline && self.backend.settle_within();
        if owed.is_injected_query() && owed != Request::InjectedRollback {
            return self.query_of_ours_ended(owed, relayed);
        }
        if self.backend.prepared.replay.is_healing() {
            relayed.heal = true;
            return Ok(Fate::Skip);
        }
        if owed == Request::InjectedRollback {
            self.rolled_back_ahead();
            return Ok(Fate::Skip);
        }
        self.close_books(owed, now, relayed);
        let Some(client) = self.client.as_deref_mut() else { return Ok(Fate::Skip) };
        let own = owed != Request::InjectedSync;
        let mut told = close_session_books(client, self.backend, Ended { own, later, reverted });
        if own {
            told.extend(unsaid);
        }
        if !told.is_empty() {
            self.report(&told, at, run, relayed);
        }
        let told = self.compare_with_report(reverted, relayed)?;
        if own && !told.is_empty() {
            self.report(&told, at, run, relayed);
        }
        Ok(if own { self.give_ready(relayed) } else { Fate::Skip })
    }

    /// A query of ours has come to its end: no client learns of it.
    fn query_of_ours_ended(
        &mut self,
        owed: Request,
        relayed: &mut Relayed,
    ) -> Result<Fate, &'static str> {
        match owed {
            Request::InjectedQuery => {
                let next = self.backend.requests.front();
                self.backend.session.applying &= next == Some(Request::InjectedQuery);
                let is_last = next.is_some_and(|next| !next.is_injected_query());
                if is_last && self.backend.session.within.is_none() && self.backend.disagrees() {
                    // What the client has sent runs under these: it hears nothing of that.
                    relayed.settings_mismatch = true;
                    return Err(MISMATCH);
                }
            }
            Request::InjectedLift => relayed.lifted = self.backend.lift_ended(),
            Request::HandOver => {
                relayed.handed_over = Some(Box::new(self.backend.hand_over_ended()?));
            }
            Request::InjectedPrepare => self.backend.prepare_ended(),
            Request::InjectedQuestion => match &mut self.client {
                Some(client) => client.conclude(self.backend),
                None => self.backend.known.unverified = None,
            },
            _ => {}
        }
        Ok(Fate::Skip)
    }

    /// The ROLLBACK has worked that went before the Query that waits.
    fn rolled_back_ahead(&mut self) {
        self.backend.prepared.retries_sql = true;
        self.backend.lending.transactions += 1;
        if let Some(client) = &mut self.client {
            client.desired = self.backend.session.applied.clone();
            client.pending_session().unusual_portals.clear();
            client.pending_session().portals.clear();
        }
    }

    /// Closes the server connection's own books, and those of its pool.
    fn close_books(&mut self, owed: Request, now: Time, relayed: &mut Relayed) {
        let backend = &mut *self.backend;
        let is_idle = backend.from_server.status == TransactionStatus::Idle;
        if backend.requests.is_empty() {
            backend.lending.since = now;
            backend.lending.vacancy = None;
            if is_idle && !backend.requests.is_in_pipeline() {
                backend.session.rereading = false;
                backend.session.local_path = false;
            }
        }
        relayed.queries += 1;
        if is_idle {
            backend.known.notifies_unheard = true;
            backend.prepared.retries_sql = true; // a table may be there now
            backend.lending.transactions += 1;
            relayed.transactions += 1;
            let changed = backend.known.at_stake.settle(!backend.requests.is_empty());
            relayed.start_values_changed |= changed.start_values;
            if changed.catalog {
                backend.pool.expect_other_functions();
            }
            if changed.schema {
                backend.pool.schema_changed(); // before any client can learn of it here
            }
        }
        if owed == Request::Query {
            backend.prepared.longer.clear();
        }
    }

    /// Compares the books with what the server reports of its session, once nothing is under way. What the
    /// client is due of that report.
    fn compare_with_report(
        &mut self,
        reverted: bool,
        relayed: &mut Relayed,
    ) -> Result<Vec<u8>, &'static str> {
        let Some(client) = self.client.as_deref_mut() else { return Ok(Vec::new()) };
        let failed = std::mem::replace(&mut client.failed, false);
        if !self.backend.is_between_transactions() {
            return Ok(Vec::new());
        }
        client.keep_to_ask(self.backend, failed);
        // (A client that has its backend to itself sets what the books do not have.)
        let alone = client.is_session_mode() || client.exclusive;
        if !alone && (reverted || !self.backend.has_fresh_report()) && self.backend.disagrees() {
            relayed.settings_mismatch = true;
            self.backend.lending.spoiled.get_or_insert(MISMATCH);
            if client.is_pinned() {
                return Err(MISMATCH);
            }
        }
        Ok(client.heed_report(self.backend))
    }

    /// What becomes of the ReadyForQuery of a client's own.
    fn give_ready(&mut self, relayed: &mut Relayed) -> Fate {
        let Some(client) = &self.client else { return Fate::Skip };
        if client.mode == PoolMode::Statement
            && self.backend.from_server.status != TransactionStatus::Idle
        {
            let error = ClientError::fatal(
                SqlState::FEATURE_NOT_SUPPORTED,
                "transaction blocks are not allowed in statement pooling mode",
            )
            .hint("Use a database or user with pool_mode = \"transaction\".");
            relayed.goodbye = Some(Box::new(error));
            return Fate::Skip;
        }
        if client.holds_ready() && self.backend.is_between_transactions() {
            relayed.listens = true; // answered once the listening connection is where it must be
            return Fate::Skip;
        }
        Fate::Pass
    }

    /// A DISCARD ALL or DEALLOCATE ALL has worked. An error after it in the same text or pipeline
    /// takes nothing back: the one commits at once (`PreventInTransactionBlock`, xact.c), the other
    /// knows of no transactions (`DropAllPreparedStatements`, prepare.c).
    pub(super) fn forgotten_for_good(&mut self, tag: &[u8]) {
        let Some(client) = &mut self.client else { return };
        client.took_all_names();
        let Some(extra) = &mut client.pending_session else { return };
        if !self.backend.requests.has_come_to(extra.settles_in) {
            return;
        }
        extra.discarded |= tag == b"DISCARD ALL\0" && extra.discarding.is_some();
        if std::mem::take(&mut extra.forgetting) {
            self.backend.prepared.uncertain = false;
            self.backend.prepared.statements.settle();
        }
    }
}

/// A query or pipeline that has ended, to its client.
#[derive(Clone, Copy)]
struct Ended {
    /// It is one of the client's, not one that a Sync of ours has ended.
    own: bool,
    /// What is out of the ordinary is settled by a later one.
    later: bool,
    /// Settings that went within it have been taken back with it.
    reverted: bool,
}

/// Closes the books of a client's session. The ParameterStatus messages that it is due.
fn close_session_books<S: Socket>(
    client: &mut Client<S>,
    backend: &mut Backend<S>,
    ended: Ended,
) -> Vec<u8> {
    if backend.from_server.status == TransactionStatus::Idle && !backend.requests.is_in_pipeline() {
        // Portals end with their transaction.
        if backend.requests.is_empty()
            && let Some(extra) = &mut client.pending_session
        {
            extra.unusual_portals.clear();
            extra.portals.clear();
        }
        backend.requests.forget_portals();
    }
    // What was taken back with the pipeline is wanted all the same.
    let wanted = ended.reverted.then(|| client.desired.clone());
    if !client.is_session_mode() && !ended.reverted && !backend.depend_alike(&client.desired) {
        settings_changed(client, backend);
    }
    let mut told = Vec::new();
    if client.pending_session.is_some() && !ended.later {
        let reports = client.pending_session.as_mut().filter(|_| ended.own);
        told = reports.map_or_else(Vec::new, |e| std::mem::take(&mut e.untold_reports));
        told.extend(settle_extra(client, backend, ended.own));
    } else if client.desired != backend.session.applied {
        client.desired = backend.session.applied.clone();
    }
    if let Some(wanted) = wanted {
        client.desired = wanted;
        if let Some(doubt) = &mut backend.known.unverified {
            doubt.reverted();
        }
    }
    if client.failed
        && let Some(doubt) = &mut backend.known.unverified
    {
        doubt.undone();
    }
    told
}

/// The pipeline that has just ended has changed settings that parse analysis reads: what was parsed
/// after the change, and before it was known, is noted under the settings before it.
fn settings_changed<S: Socket>(client: &mut Client<S>, backend: &mut Backend<S>) {
    let ended = backend.requests.answered_pipeline() - 1;
    // Which of its Parses came after the change is not known: other clients get none of them.
    backend.prepared.statements.mark_stale_of(ended);
    let names = client.statements.iter_mut().flat_map(|names| names.values_mut());
    let id = backend.id();
    for named in names.filter(|named| named.behind && named.prepared_in == Some((id, ended))) {
        let before = named.statement.clone();
        named.statement =
            backend.statement_of(&before.body, backend.session.basis, &backend.session.applied);
    }
    let mut unnamed = std::mem::take(&mut backend.prepared.unnamed);
    unnamed.restate_after(&mut client.unnamed, ended, |before| {
        let effects = backend.effects_of_body(&before.body, &backend.session.applied);
        before.under(backend.session.applied.clone(), effects)
    });
    backend.prepared.unnamed = unnamed;
}

impl<S: Socket> Client<S> {
    /// Of a statement of its own it is not known any more what it does, or by whom it is shared.
    #[cold]
    pub(in crate::engine) fn make_anew(&mut self, name: &[u8], backend: &Backend<S>) {
        let named = self.statements.as_mut().and_then(|names| names.get_mut(name));
        let Some(named) = named else { return };
        let before = named.statement.clone();
        // Where those with other custom settings have shared it, it may have come with another's.
        let mut settings = SettingsBuilder::from(&before.settings);
        for (name, _) in before.settings.iter().filter(|(name, _)| is_custom(name)) {
            settings.remove(name);
        }
        for (name, value) in self.desired.iter().filter(|(name, _)| is_custom(name)) {
            settings.set(name, value);
        }
        let settings = backend.pool.interner().share(settings.build());
        named.statement = backend.statement_of(&before.body, before.basis, &settings);
    }
}

impl<S: Socket> Backend<S> {
    /// The statement that clients share of this body of a Parse, under these settings.
    pub(in crate::engine) fn statement_of(
        &self,
        body: &[u8],
        basis: Basis,
        settings: &Settings,
    ) -> Arc<Statement> {
        let effects = || self.effects_of_body(body, settings);
        self.pool.statements.intern(body, basis, settings, effects)
    }

    /// What the text in the body of a Parse does under these settings.
    pub(in crate::engine) fn effects_of_body(&self, body: &[u8], settings: &Settings) -> Effects {
        let text = text_of(body);
        let options = self.session.reading.with(|name| settings.get(name));
        let effects =
            Effects::of_text(text, options, |name| self.session.parameters.get(name).is_some());
        self.with_functions(text, effects)
    }
}

/// Whether a setting was set after its RESET: the text says so, or the server has it at another
/// value than the one that a RESET gives.
fn set_after_all<S: Socket>(backend: &Backend<S>, set_again: &[Box<[u8]>], name: &[u8]) -> bool {
    set_again.iter().any(|again| again.eq_ignore_ascii_case(name))
        || (backend.session.parameters.get(name).is_some()
            && backend.session.applied.get(name).is_some())
}

/// A RESET or DISCARD ALL that has worked.
struct Reset<'a> {
    /// What it took back.
    resetting: &'a Resetting,
    /// It is a DISCARD ALL.
    discards: bool,
    /// Settings that were SET after it, in the same text.
    set_again: Vec<Box<[u8]>>,
}

impl Reset<'_> {
    /// What the server has now, where the settings that it took back are at the server's own start values;
    /// and what the client wants, with the client's (`start`).
    fn settings<S: Socket>(
        &self,
        backend: &Backend<S>,
        start: &Settings,
    ) -> (SettingsBuilder, SettingsBuilder) {
        match self.resetting {
            Resetting::Names(names) => self.settings_of_names(names, backend, start),
            Resetting::All | Resetting::No => self.settings_of_all(backend, start),
        }
    }

    fn settings_of_names<S: Socket>(
        &self,
        names: &[Box<[u8]>],
        backend: &Backend<S>,
        start: &Settings,
    ) -> (SettingsBuilder, SettingsBuilder) {
        let mut applied = SettingsBuilder::from(&backend.session.applied);
        for name in names.iter().filter(|name| backend.session.parameters.get(name).is_none()) {
            applied.remove(name);
        }
        let mut desired = applied.clone();
        for name in names.iter().filter(|name| !set_after_all(backend, &self.set_again, name)) {
            match start.get(name) {
                Some(value) => desired.set(name, value),
                None => desired.remove(name),
            };
        }
        (applied, desired)
    }

    fn settings_of_all<S: Socket>(
        &self,
        backend: &Backend<S>,
        start: &Settings,
    ) -> (SettingsBuilder, SettingsBuilder) {
        let mut applied = SettingsBuilder::from(&backend.session.applied);
        let keeps = |name: &[u8]| !self.discards && KEPT_BY_RESET_ALL.contains(&name);
        for (name, _) in backend.session.applied.iter().filter(|(name, _)| !keeps(name)) {
            if is_custom(name) {
                applied.set(name, b""); // the name itself stays
            } else if backend.session.parameters.get(name).is_none() {
                applied.remove(name);
            }
        }
        let mut desired = SettingsBuilder::from(start);
        for (name, _) in backend.session.applied.iter().filter(|(name, _)| is_custom(name)) {
            desired.set(name, start.get(name).unwrap_or_default());
        }
        for (name, value) in backend.session.applied.iter().filter(|(name, _)| keeps(name)) {
            desired.set(name, value);
        }
        if self.discards {
            for name in KEPT_BY_RESET_ALL {
                applied.remove(name); // SET SESSION AUTHORIZATION DEFAULT
            }
        }
        let settable = |name: &[u8]| !ServerParameters::is_fixed(name);
        let pairs = backend.session.parameters.pairs.iter();
        for (name, value) in pairs.filter(|(name, _)| settable(name)) {
            if set_after_all(backend, &self.set_again, name) {
                desired.set(name, backend.session.applied.get(name).unwrap_or(value));
            }
        }
        (applied, desired)
    }
}

/// What a client is due whose view of the settings that the server reports changes from what it believed.
fn reports_due<S: Socket>(
    desired: &Settings,
    believed: &Settings,
    backend: &Backend<S>,
) -> Vec<u8> {
    let mut told = Vec::new();
    // (Who it is, the server has told it.)
    let settable =
        backend.session.parameters.pairs.iter().filter(|(n, _)| !ServerParameters::is_fixed(n));
    for (name, own) in settable {
        let now = desired.get(name).unwrap_or(own);
        if now != believed.get(name).unwrap_or(own) {
            build::parameter_status(&mut told, name, now);
        }
    }
    told
}

/// Closes the books of what was out of the ordinary. Returns the ParameterStatus messages that
/// the client is due.
/// `own`: a pipeline of the client's has ended, not one that a Sync of ours has.
fn settle_extra<S: Socket>(client: &mut Client<S>, backend: &mut Backend<S>, own: bool) -> Vec<u8> {
    let discarded = client.pending_session.as_ref().is_some_and(|extra| extra.discarded);
    let failed = client.failed && !discarded;
    let Some(extra) = &mut client.pending_session else { return Vec::new() };
    let forgetting = std::mem::take(&mut extra.forgetting);
    let resetting = std::mem::take(&mut extra.resetting);
    let set_again = std::mem::take(&mut extra.set_again);
    let discarding = extra.discarding.take();
    extra.discarded = false;
    // Bound and not executed, it has done nothing.
    let worked = discarded && discarding.is_some();
    let nothing_done = discarding.is_some() && !worked;
    // In a transaction the UNLISTEN may still be rolled back: the pin stays.
    let unlistened = std::mem::take(&mut extra.unlistening)
        && !failed
        && backend.from_server.status == TransactionStatus::Idle;
    if worked && let Some(listening) = &mut extra.listening {
        listening.discard();
    }
    if let Some(pins) = discarding.filter(|_| !worked) {
        client.pins = client.pins.union(pins);
    } else if worked {
        extra.by_sql = None;
        backend.prepared.by_sql = None;
        if let Some(doubt) = &mut backend.known.unverified {
            doubt.discarded();
        }
    }
    if unlistened {
        client.pins.remove(Part::Listen);
    }
    if forgetting && !failed {
        backend.prepared.uncertain = false;
        backend.prepared.statements.settle();
    }
    let untold = extra.untold.take();
    let mut believed = std::mem::take(&mut client.desired);
    let tells = resetting != Resetting::No || untold.is_some();
    if let Some((before, _)) = untold {
        believed = before;
    }
    if failed || nothing_done || resetting == Resetting::No {
        client.desired = backend.session.applied.clone();
    } else {
        let reset = Reset { resetting: &resetting, discards: worked, set_again };
        let (applied, desired) = reset.settings(backend, &client.record.start);
        let mut interner = backend.pool.interner();
        backend.session.applied = interner.share(applied.build());
        client.desired = interner.share(desired.build());
    }
    let told = if tells { reports_due(&client.desired, &believed, backend) } else { Vec::new() };
    if !own && !told.is_empty() {
        // With the end of its own pipeline, as the server would tell it.
        client.pending_session().untold = Some((believed, told));
        return Vec::new();
    }
    client.settle();
    told
}
