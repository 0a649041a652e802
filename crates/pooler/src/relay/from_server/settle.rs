//! ReadyForQuery, where books are closed: settings, names, pins, the release of the backend.

use std::sync::Arc;

use crate::parts::settings::applied::Role;
use crate::parts::start_values::basis::Basis;
use crate::parts::start_values::parameters::ServerParameters;
use crate::parts::statements::shared::{Statement, text_of};
use crate::relay::backend::Backend;
use crate::relay::client::Client;
use crate::relay::client_info::PoolMode;
use crate::relay::effects::Effects;
use crate::relay::from_server::{Fate, Relay, Relayed};
use crate::relay::request_queue::Request;
use crate::relay::socket::Socket;
use crate::session::settings::{Settings, SettingsBuilder, is_custom};
use crate::time::Time;
use crate::wire::error::{ClientError, SqlState};
use crate::wire::{TransactionStatus, build};

/// Why a connection is closed whose server reports other settings than the books have.
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
        let later = self
            .client
            .as_ref()
            .and_then(|client| client.reset_under_way())
            .is_some_and(|reset| !reset.has_come(&self.backend.requests));
        if let (Some(change), Some(client)) =
            (self.backend.requests.front_change(), &mut self.client)
        {
            let unnamed = &mut self.backend.prepared.unnamed;
            match client.serving.failed {
                true => client.ignore(change, unnamed),
                false => client.confirm(Some(change), unnamed),
            }
        }
        let query = self.backend.requests.complete_with_ready();
        self.query_ended(query, false);
        // The block that has failed with the client's role is Hawser's.
        let refused = self.backend.session.role_refused().is_some() && !owed.is_injected_query();
        let status = if refused { TransactionStatus::Idle } else { status };
        self.backend.from_server.is_ready(status);
        let ends_pipeline = owed.ends_ignoring();
        let due_within = if ends_pipeline { self.backend.reports_due_within() } else { Vec::new() };
        let reverted = (ends_pipeline && self.backend.settle_within()) || self.role_stays(owed);
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
        // An error undoes settings, but no prepared statement; for a client that has left, it is
        // not known whether there was one.
        let ended = self.backend.requests.answered_pipeline().saturating_sub(1);
        let takes_back =
            reverted || self.client.as_ref().is_none_or(|client| client.serving.failed);
        self.backend.prepared.statements.pipeline_ended(ended, takes_back);
        self.close_books(owed, now, relayed);
        let Some(client) = self.client.as_deref_mut() else { return Ok(Fate::Skip) };
        let own = owed != Request::InjectedSync;
        let mut due = close_session_books(client, self.backend, Ended { own, later, reverted });
        if own {
            due.extend(due_within);
        }
        if !due.is_empty() {
            self.report(&due, at, run, relayed);
        }
        let due = self.compare_with_report(reverted, relayed)?;
        if own && !due.is_empty() {
            self.report(&due, at, run, relayed);
        }
        match own.then(|| self.give_ready(relayed)) {
            Some(Fate::Pass) if refused => {
                let mut ready = Vec::new();
                build::ready_for_query(&mut ready, status);
                Ok(Fate::Replace(ready.into()))
            }
            fate => Ok(fate.unwrap_or(Fate::Skip)),
        }
    }

    /// Whether the client still wants the role that was refused, or that its message has not ended
    /// since it has failed.
    fn role_stays(&mut self, owed: Request) -> bool {
        let failed = self.client.as_ref().is_some_and(|client| client.serving.failed);
        let session = &mut self.backend.session;
        match &session.role {
            Role::Refused(_) => !owed.is_injected_query(),
            &Role::LeftOut { ends } if !owed.is_injected_query() => {
                session.role = Role::AsWanted;
                failed || !ends
            }
            Role::AsWanted | Role::LeftOut { .. } => false,
        }
    }

    /// A query of Hawser's has ended: no client gets anything of it.
    fn query_of_ours_ended(
        &mut self,
        owed: Request,
        relayed: &mut Relayed,
    ) -> Result<Fate, &'static str> {
        match owed {
            Request::InjectedQuery => {
                let next = self.backend.requests.front();
                self.backend.session.end_applying(next == Some(Request::InjectedQuery));
                let is_last = next.is_some_and(|next| !next.is_injected_query());
                if is_last
                    && self.backend.session.role_refused().is_none()
                    && self.backend.session.within.is_none()
                    && self.backend.disagrees()
                {
                    // The client's messages would run under these, and it gets no report of that.
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
                None => drop(self.backend.known.unverified.take()),
            },
            _ => {}
        }
        Ok(Fate::Skip)
    }

    /// The ROLLBACK has succeeded that was sent before the waiting Query.
    fn rolled_back_ahead(&mut self) {
        self.backend.prepared.retries_sql = true;
        self.backend.lending.transactions += 1;
        if let Some(client) = &mut self.client {
            client.session.desired = self.backend.session.applied.clone();
            client.pending_session().portals.clear();
        }
    }

    /// Closes the server connection's own books, and those of its pool.
    fn close_books(&mut self, owed: Request, now: Time, relayed: &mut Relayed) {
        let backend = &mut *self.backend;
        let is_idle = backend.from_server.status() == TransactionStatus::Idle;
        if backend.requests.is_empty() {
            backend.lending.since = now;
            backend.lending.vacancy = None;
            if let Some(client) = &mut self.client {
                client.end_ruling();
            }
            if is_idle && !backend.requests.is_in_pipeline() {
                backend.session.settle_texts();
            }
        }
        relayed.ended.queries += 1;
        if is_idle {
            backend.prepared.retries_sql = true; // a table may exist now
            backend.lending.transactions += 1;
            relayed.ended.transactions += 1;
            let changed = backend.known.side_effects.settle(!backend.requests.is_empty());
            relayed.start_values_changed |= changed.start_values;
            relayed.functions_changed |= changed.catalog;
            if changed.catalog {
                backend.pool.expect_other_functions();
            }
            if changed.schema {
                backend.pool.schema_changed(); // before any client here can learn of it
                let more = backend.known.side_effects.has_schema();
                backend.prepared.statements.transaction_ended(more);
            }
        }
        if owed == Request::Query {
            backend.prepared.longer.query_ended();
        }
    }

    /// Compares the books with what the server reports of its session, once nothing is in flight.
    /// Returns the reports that the client is due because of that.
    fn compare_with_report(
        &mut self,
        reverted: bool,
        relayed: &mut Relayed,
    ) -> Result<Vec<u8>, &'static str> {
        let Some(client) = self.client.as_deref_mut() else { return Ok(Vec::new()) };
        let failed = std::mem::take(&mut client.serving.failed);
        if !self.backend.is_between_transactions() || self.backend.session.role_refused().is_some()
        {
            return Ok(Vec::new());
        }
        client.keep_to_ask(self.backend, failed);
        // (A client that has its backend to itself sets what the books do not cover.)
        let alone = client.is_session_mode() || client.serving.is_exclusive();
        if !alone && (reverted || !self.backend.has_fresh_report()) && self.backend.disagrees() {
            relayed.settings_mismatch = true;
            self.backend.lending.spoil(MISMATCH);
            if client.is_pinned() {
                return Err(MISMATCH);
            }
        }
        Ok(client.heed_report(self.backend, failed))
    }

    /// What becomes of the ReadyForQuery of a client's own query or pipeline.
    fn give_ready(&mut self, relayed: &mut Relayed) -> Fate {
        let Some(client) = &self.client else { return Fate::Skip };
        if client.serving.mode == PoolMode::Statement
            && self.backend.from_server.status() != TransactionStatus::Idle
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
            relayed.listens = true; // answered once the listening connection has caught up
            return Fate::Skip;
        }
        Fate::Pass
    }

    /// A DISCARD ALL or DEALLOCATE ALL has succeeded. An error after it in the same text or
    /// pipeline undoes neither: the one commits at once (`PreventInTransactionBlock`, xact.c), the
    /// other is not transactional (`DropAllPreparedStatements`, prepare.c).
    pub(super) fn forgotten_for_good(&mut self, tag: &[u8]) {
        let Some(client) = &mut self.client else { return };
        client.took_all_names();
        client.has_discarded(self.backend, tag == b"DISCARD ALL\0");
    }
}

/// How a query or pipeline has ended, for its client.
#[derive(Clone, Copy)]
struct Ended {
    /// It is one of the client's, not one that a Sync of Hawser's has ended.
    own: bool,
    /// Unusual effects are settled by a later one.
    later: bool,
    /// Settings that were sent within it have been rolled back with it.
    reverted: bool,
}

/// Closes the books of a client's session. Returns the ParameterStatus messages that it is due.
fn close_session_books<S: Socket>(
    client: &mut Client<S>,
    backend: &mut Backend<S>,
    ended: Ended,
) -> Vec<u8> {
    if backend.from_server.status() == TransactionStatus::Idle && !backend.requests.is_in_pipeline()
    {
        // Portals end with their transaction.
        if backend.requests.is_empty()
            && let Some(extra) = &mut client.pending_session
        {
            extra.portals.clear();
        }
        backend.requests.forget_portals();
    }
    // The client still desires what was rolled back with the pipeline.
    let wanted = ended.reverted.then(|| client.session.desired.clone());
    if !client.is_session_mode()
        && !ended.reverted
        && !backend.depend_alike(&client.session.desired)
    {
        settings_changed(client, backend);
    }
    let mut due = Vec::new();
    if client.pending_session.is_some() && !ended.later {
        let reports = client.pending_session.as_mut().filter(|_| ended.own);
        due = reports.map_or_else(Vec::new, |extra| extra.unreported.take_reports());
        due.extend(settle_pending(client, backend, ended.own));
    } else if client.session.desired != backend.session.applied {
        client.session.desired = backend.session.applied.clone();
    }
    if let Some(wanted) = wanted {
        client.session.desired = wanted;
        if let Some(doubt) = backend.known.unverified.as_deref_mut() {
            doubt.reverted();
        }
    }
    if client.serving.failed
        && let Some(doubt) = backend.known.unverified.as_deref_mut()
    {
        doubt.undone();
    }
    due
}

/// The pipeline that has just ended has changed settings that parse analysis reads: statements
/// parsed after the change, before it was known, are noted under the settings before it.
fn settings_changed<S: Socket>(client: &mut Client<S>, backend: &mut Backend<S>) {
    let ended = backend.requests.answered_pipeline() - 1;
    // It is not known which of its Parses came after the change: other clients get none of them.
    backend.prepared.statements.mark_stale_of(ended);
    let names = client.prepared.all_named_mut();
    let id = backend.id();
    for named in names.filter(|named| named.after_setter && named.prepared_in == Some((id, ended)))
    {
        let before = named.statement.clone();
        let session = &backend.session;
        named.replace(backend.statement_of(&before.body, session.own.basis, &session.applied));
    }
    backend.restate_unnamed_after(client, ended);
}

impl<S: Socket> Client<S> {
    /// It is not known any more what a statement of the client's does, or who shares it.
    #[cold]
    pub(crate) fn resolve_again(&mut self, name: &[u8], backend: &Backend<S>) {
        let Some(named) = self.prepared.named_mut(name) else { return };
        let before = named.statement.clone();
        // If clients with other custom settings have shared it, it may have another client's.
        let mut settings = SettingsBuilder::from(&before.settings);
        for (name, _) in before.settings.iter().filter(|(name, _)| is_custom(name)) {
            settings.remove(name);
        }
        for (name, value) in self.session.desired.iter().filter(|(name, _)| is_custom(name)) {
            settings.set(name, value);
        }
        let settings = backend.pool.interner().share(settings.build());
        named.replace(backend.statement_of(&before.body, before.basis, &settings));
    }

    /// When the server analyses a statement again, it does so under this client's settings: clients
    /// that have not set the same must not get it. (In a failed transaction nothing can be
    /// prepared.)
    pub(crate) fn run_under_own(&mut self, name: &[u8], backend: &Backend<S>) {
        let Self { prepared, session, .. } = self;
        let Some(named) = prepared.named_mut(name) else { return };
        if named.statement.basis != session.basis
            || backend.from_server.status() == TransactionStatus::Failed
        {
            return;
        }
        let statement = named.statement.clone();
        named.statement = backend.pool.statements.to_be_run_under(statement, &session.desired);
        named.fits_to(&session.desired);
    }
}

impl<S: Socket> Backend<S> {
    /// The shared statement for this body of a Parse, under these settings.
    pub(crate) fn statement_of(
        &self,
        body: &[u8],
        basis: Basis,
        settings: &Settings,
    ) -> Arc<Statement> {
        let effects = || self.effects_of_body(body, settings);
        self.pool.statements.intern(body, basis, settings, effects)
    }

    /// The effects of the text in the body of a Parse under these settings.
    pub(crate) fn effects_of_body(&self, body: &[u8], settings: &Settings) -> Effects {
        let text = text_of(body);
        let options = self.session.own.reading.with(|name| settings.get(name));
        let effects =
            Effects::of_text(text, options, |name| self.session.own.parameters.get(name).is_some());
        self.with_functions(text, effects)
    }
}

/// The reports that a client is due if its view of the reported settings was `believed`.
fn reports_due<S: Socket>(
    desired: &Settings,
    believed: &Settings,
    backend: &Backend<S>,
) -> Vec<u8> {
    let mut due = Vec::new();
    // (The server itself has reported who the user is.)
    let settable =
        backend.session.own.parameters.pairs.iter().filter(|(n, _)| !ServerParameters::is_fixed(n));
    for (name, own) in settable {
        let now = desired.get(name).unwrap_or(own);
        if now != believed.get(name).unwrap_or(own) {
            build::parameter_status(&mut due, name, now);
        }
    }
    due
}

/// Settles unusual effects. Returns the ParameterStatus messages that the client is due. `own`: a
/// pipeline of the client's has ended, not one that a Sync of Hawser's has ended.
fn settle_pending<S: Socket>(
    client: &mut Client<S>,
    backend: &mut Backend<S>,
    own: bool,
) -> Vec<u8> {
    let Some(extra) = &mut client.pending_session else { return Vec::new() };
    let resets = extra.reset.as_ref().is_some_and(|reset| reset.resets());
    let tells = resets || extra.unreported.is_changed();
    let told_before = extra.unreported.take_believed();
    let desired = client.settle_reset(backend);
    let before = std::mem::replace(&mut client.session.desired, desired);
    let believed = told_before.unwrap_or(before);
    let due =
        if tells { reports_due(&client.session.desired, &believed, backend) } else { Vec::new() };
    if !own && !due.is_empty() {
        // At the end of its own pipeline, as the server would report it.
        client.pending_session().unreported.change(believed, due);
        return Vec::new();
    }
    client.settle();
    due
}
