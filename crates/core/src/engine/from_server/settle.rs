//! ReadyForQuery: where books are closed. Settings, names, pins, the release of the backend.

use std::sync::Arc;

use super::super::backend::Backend;
use super::super::client::{Client, Resetting};
use super::super::effects::Effects;
use super::super::message::PoolMode;
use super::super::request_queue::Request;
use super::super::restore::KEPT_BY_RESET_ALL;
use super::super::server_unnamed::Parsed;
use super::super::socket::Socket;
use super::super::statement::{Statement, text_of};
use super::{Fate, Relay, Relayed};
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
            match client.failed {
                true => client.ignore(change),
                false => client.confirm(Some(change)),
            }
        }
        self.backend.requests.complete_with_ready();
        self.backend.status = status;
        self.backend.new_reports = 0;
        let ends_pipeline = owed.ends_ignoring();
        let unsaid = if ends_pipeline { self.backend.unsaid_within() } else { Vec::new() };
        let reverted = ends_pipeline && self.backend.settle_within();
        match owed {
            Request::InjectedQuery => {
                let next = self.backend.requests.front();
                self.backend.applying &= next == Some(Request::InjectedQuery);
                let is_last = next.is_some_and(|next| !next.is_injected_query());
                if is_last && self.backend.within.is_none() && self.backend.disagrees() {
                    // What the client has sent runs under these: it hears nothing of that.
                    relayed.settings_mismatch = true;
                    return Err(MISMATCH);
                }
                return Ok(Fate::Skip);
            }
            Request::InjectedLift => {
                relayed.lifted = self.backend.lift_ended();
                return Ok(Fate::Skip);
            }
            Request::TellIdentity => return Ok(Fate::Skip),
            Request::HandOver => {
                relayed.handed_over = Some(Box::new(self.backend.hand_over_ended()?));
                return Ok(Fate::Skip);
            }
            Request::InjectedPrepare => {
                self.backend.prepare_ended();
                return Ok(Fate::Skip);
            }
            Request::InjectedQuestion => {
                match &mut self.client {
                    Some(client) => client.conclude(self.backend),
                    None => self.backend.unverified = None,
                }
                return Ok(Fate::Skip);
            }
            _ => {}
        }
        if self.backend.replay.is_healing() {
            relayed.heal = true;
            return Ok(Fate::Skip);
        }
        if matches!(owed, Request::InjectedRollback) {
            self.backend.retries_sql = true;
            self.backend.transactions += 1;
            if let Some(client) = &mut self.client {
                client.desired = self.backend.applied.clone();
                client.pending_session().unusual_portals.clear();
                client.pending_session().portals.clear();
            }
            return Ok(Fate::Skip);
        }
        if self.backend.requests.is_empty() {
            self.backend.since = now;
            self.backend.vacancy = None;
            if status == TransactionStatus::Idle && !self.backend.requests.is_in_pipeline() {
                self.backend.rereading = false;
                self.backend.local_path = false;
            }
        }
        if status == TransactionStatus::Idle {
            self.backend.notifies_unheard = true;
            self.backend.retries_sql = true; // a table may be there now
            self.backend.transactions += 1;
            relayed.transactions += 1;
        }
        relayed.queries += 1;
        if status == TransactionStatus::Idle {
            let changed = self.backend.at_stake.settle(!self.backend.requests.is_empty());
            relayed.start_values_changed |= changed.start_values;
            if changed.catalog {
                self.backend.pool.expect_other_functions();
            }
            if changed.schema {
                self.backend.pool.schema_changed(); // before any client can learn of it here
            }
        }
        if matches!(owed, Request::Query) {
            self.backend.longer.clear();
        }
        let Some(client) = &mut self.client else { return Ok(Fate::Skip) };
        if status == TransactionStatus::Idle
            && self.backend.requests.is_empty()
            && !self.backend.requests.is_in_pipeline()
            && let Some(extra) = &mut client.pending_session
        {
            // Portals end with their transaction.
            extra.unusual_portals.clear();
            extra.portals.clear();
        }
        if status == TransactionStatus::Idle && !self.backend.requests.is_in_pipeline() {
            self.backend.requests.forget_portals();
        }
        // What was taken back with the pipeline is wanted all the same.
        let wanted = reverted.then(|| client.desired.clone());
        if !client.is_session_mode() && !reverted && !self.backend.depend_alike(&client.desired) {
            settings_changed(client, self.backend);
        }
        if client.pending_session.is_some() && !later {
            let own = !matches!(owed, Request::InjectedSync);
            let reports = client.pending_session.as_mut().filter(|_| own);
            let mut told = reports.map_or_else(Vec::new, |e| std::mem::take(&mut e.untold_reports));
            told.extend(settle_extra(client, self.backend, own));
            if !told.is_empty() {
                self.report(&told, at, run, relayed);
            }
        } else if client.desired != self.backend.applied {
            client.desired = self.backend.applied.clone();
        }
        if !unsaid.is_empty() && !matches!(owed, Request::InjectedSync) {
            self.report(&unsaid, at, run, relayed);
        }
        let Some(client) = &mut self.client else { return Ok(Fate::Skip) };
        if let Some(wanted) = wanted {
            client.desired = wanted;
        }
        if client.failed
            && let Some(doubt) = &mut self.backend.unverified
        {
            doubt.undone();
        }
        let failed = std::mem::replace(&mut client.failed, false);
        if status == TransactionStatus::Idle
            && self.backend.requests.is_empty()
            && !self.backend.requests.is_in_pipeline()
        {
            client.keep_to_ask(self.backend, failed);
            // (A client that has its backend to itself sets what the books do not have.)
            let alone = client.is_session_mode() || client.exclusive;
            if !alone && (reverted || !self.backend.has_fresh_report()) && self.backend.disagrees()
            {
                relayed.settings_mismatch = true;
                self.backend.spoiled.get_or_insert(MISMATCH);
                if client.is_pinned() {
                    return Err(MISMATCH);
                }
            }
            let told = client.heed_report(self.backend);
            if !told.is_empty() && !matches!(owed, Request::InjectedSync) {
                self.report(&told, at, run, relayed);
            }
        }
        let Some(client) = &mut self.client else { return Ok(Fate::Skip) };
        if matches!(owed, Request::InjectedSync) {
            return Ok(Fate::Skip);
        }
        if client.mode == PoolMode::Statement && status != TransactionStatus::Idle {
            let error = ClientError::fatal(
                SqlState::FEATURE_NOT_SUPPORTED,
                "transaction blocks are not allowed in statement pooling mode",
            )
            .hint("Use a database or user with pool_mode = \"transaction\".");
            relayed.goodbye = Some(Box::new(error));
            return Ok(Fate::Skip);
        }
        if status == TransactionStatus::Idle
            && client.holds_ready()
            && self.backend.requests.is_empty()
            && !self.backend.requests.is_in_pipeline()
        {
            relayed.listens = true; // answered once the listening connection is where it must be
            return Ok(Fate::Skip);
        }
        Ok(Fate::Pass)
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
        extra.discarded = tag == b"DISCARD ALL\0" && extra.discarding.is_some();
        if std::mem::take(&mut extra.forgetting) {
            self.backend.uncertain = false;
            self.backend.statements.settle();
        }
    }
}

/// The pipeline that has just ended has changed settings that parse analysis reads: what was parsed
/// after the change, and before it was known, is noted under the settings before it.
fn settings_changed<S: Socket>(client: &mut Client<S>, backend: &mut Backend<S>) {
    let ended = backend.requests.answered_pipeline() - 1;
    // Which of its Parses came after the change is not known: other clients get none of them.
    backend.statements.mark_stale_of(ended);
    let names = client.statements.iter_mut().flat_map(|names| names.values_mut());
    let may_follow = |parsed: Option<Parsed>| parsed.is_some_and(|parsed| parsed.may_follow(ended));
    for named in names.filter(|named| named.behind && named.pipeline == ended) {
        let before = named.statement.clone();
        named.statement = backend.statement_of(&before.body, backend.basis, &backend.applied);
    }
    if may_follow(backend.unnamed.parsed_in())
        && let Some(unnamed) = &client.unnamed
        && backend.unnamed.is(Some(unnamed))
    {
        let effects = backend.effects_of_body(&unnamed.body, &backend.applied);
        let again = unnamed.under(backend.applied.clone(), effects);
        client.unnamed = Some(again.clone());
        backend.unnamed.restate(again);
    }
    // The same for those that come back if what has taken their place fails.
    let mut requests = std::mem::take(&mut backend.requests);
    for before in requests.displaced_mut().filter(|before| may_follow(before.parsed)) {
        if let Some(unnamed) = &before.unnamed {
            let effects = backend.effects_of_body(&unnamed.body, &backend.applied);
            let again = unnamed.under(backend.applied.clone(), effects);
            before.unnamed = Some(again);
        }
    }
    backend.requests = requests;
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
        let options = self.reading.with(|name| settings.get(name));
        let effects = Effects::of_text(text, options, |name| self.parameters.get(name).is_some());
        self.with_functions(text, effects)
    }
}

/// Whether a setting was set after its RESET: the text says so, or the server has it at another
/// value than the one that a RESET gives.
fn set_after_all<S: Socket>(backend: &Backend<S>, set_again: &[Box<[u8]>], name: &[u8]) -> bool {
    set_again.iter().any(|again| again.eq_ignore_ascii_case(name))
        || (backend.parameters.get(name).is_some() && backend.applied.get(name).is_some())
}

/// Closes the books of what was out of the ordinary. Returns the ParameterStatus messages that
/// the client is due.
/// `own`: a pipeline of the client's has ended, not one that a Sync of ours has.
fn settle_extra<S: Socket>(client: &mut Client<S>, backend: &mut Backend<S>, own: bool) -> Vec<u8> {
    let discarded = client.pending_session.as_ref().is_some_and(|extra| extra.discarded);
    let failed = client.failed && !discarded;
    let mut told = Vec::new();
    let Some(extra) = &mut client.pending_session else { return told };
    let forgetting = std::mem::take(&mut extra.forgetting);
    let resetting = std::mem::take(&mut extra.resetting);
    let set_again = std::mem::take(&mut extra.set_again);
    let discarding = extra.discarding.take();
    extra.discarded = false;
    // In a transaction the UNLISTEN may still be rolled back: the pin stays.
    let unlistened = std::mem::take(&mut extra.unlistening)
        && !failed
        && backend.status == TransactionStatus::Idle;
    if !failed
        && discarding.is_some()
        && let Some(listening) = &mut extra.listening
    {
        listening.discard();
    }
    if failed && let Some(pins) = discarding {
        client.pins = client.pins.union(pins);
    } else if discarding.is_some() {
        extra.by_sql = None;
        backend.by_sql = None;
        if let Some(doubt) = &mut backend.unverified {
            doubt.discarded();
        }
    }
    if unlistened {
        client.pins.remove(Part::Listen);
    }
    if forgetting && !failed {
        backend.uncertain = false;
        backend.statements.settle();
    }
    let untold = extra.untold.take();
    let mut believed = std::mem::take(&mut client.desired);
    let tells = resetting != Resetting::No || untold.is_some();
    if let Some((before, _)) = untold {
        believed = before;
    }
    if failed || resetting == Resetting::No {
        client.desired = backend.applied.clone();
    } else {
        // On the server these are now at the server's own start values, not at the client's.
        let mut applied = SettingsBuilder::from(&backend.applied);
        let mut desired;
        match &resetting {
            Resetting::Names(names) => {
                for name in names.iter().filter(|name| backend.parameters.get(name).is_none()) {
                    applied.remove(name);
                }
                desired = applied.clone();
                for name in names.iter().filter(|name| !set_after_all(backend, &set_again, name)) {
                    match client.record.start.get(name) {
                        Some(value) => desired.set(name, value),
                        None => desired.remove(name),
                    };
                }
            }
            Resetting::All | Resetting::No => {
                let keeps = |name: &[u8]| discarding.is_none() && KEPT_BY_RESET_ALL.contains(&name);
                for (name, _) in backend.applied.iter().filter(|(name, _)| !keeps(name)) {
                    if is_custom(name) {
                        applied.set(name, b""); // the name itself stays
                    } else if backend.parameters.get(name).is_none() {
                        applied.remove(name);
                    }
                }
                desired = SettingsBuilder::from(&client.record.start);
                for (name, _) in backend.applied.iter().filter(|(name, _)| is_custom(name)) {
                    desired.set(name, client.record.start.get(name).unwrap_or_default());
                }
                for (name, value) in backend.applied.iter().filter(|(name, _)| keeps(name)) {
                    desired.set(name, value);
                }
                if discarding.is_some() {
                    for name in KEPT_BY_RESET_ALL {
                        applied.remove(name); // SET SESSION AUTHORIZATION DEFAULT
                    }
                }
                let settable = |name: &[u8]| !ServerParameters::is_fixed(name);
                let pairs = backend.parameters.pairs.iter();
                for (name, value) in pairs.filter(|(name, _)| settable(name)) {
                    if set_after_all(backend, &set_again, name) {
                        match backend.applied.get(name) {
                            Some(value) => desired.set(name, value),
                            None => desired.set(name, value),
                        };
                    }
                }
            }
        }
        let mut interner = backend.pool.interner();
        backend.applied = interner.share(applied.build());
        client.desired = interner.share(desired.build());
    }
    // Its view of the settings that the server reports changes from what it believed.
    // (Who it is, the server has told it.)
    let settable = backend.parameters.pairs.iter().filter(|(n, _)| !ServerParameters::is_fixed(n));
    for (name, own) in settable {
        let value =
            |settings: &Settings| settings.get(name).map_or_else(|| own.to_vec(), <[u8]>::to_vec);
        let now = value(&client.desired);
        if tells && now != value(&believed) {
            build::parameter_status(&mut told, name, &now);
        }
    }
    if !own && !told.is_empty() {
        // With the end of its own pipeline, as the server would tell it.
        client.pending_session().untold = Some((believed, told));
        return Vec::new();
    }
    client.settle();
    told
}
