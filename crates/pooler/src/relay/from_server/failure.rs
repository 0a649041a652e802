//! Errors: what the server ignores after one, and what that undoes in the books.

use std::sync::Arc;

use crate::parts::settings::applied::Role;
use crate::parts::settings::restore::{Longer, count_back};
use crate::parts::settings::timeouts::is_cut_off;
use crate::parts::statements::client_names::{ClientStatement, significant};
use crate::parts::statements::replay::is_stale_or_lost;
use crate::relay::backend::Backend;
use crate::relay::from_client::client_message::portal::STAND_IN;
use crate::relay::from_server::{Fate, Relay, Relayed};
use crate::relay::request_queue::{Change, Entry, Request, StoodInFor};
use crate::relay::socket::Socket;
use crate::wire::error::{ClientError, SqlState, field};
use crate::wire::{TransactionStatus, backend as kind, build};

/// What the server has refused or ignored.
#[derive(Default)]
struct Undone {
    /// One of the requests is a Parse or Close of the unnamed statement, or may be one.
    touches_unnamed: bool,
    /// The Parse that got the error.
    parse: Option<u32>,
    /// What the client gets in place of the error.
    refusal: Option<Box<[u8]>>,
    /// The client's name of the statement in whose place a stand-in got the error.
    stood_in_for: Option<Box<StoodInFor>>,
}

impl<S: Socket> Relay<'_, S> {
    pub(super) fn error(
        &mut self,
        owed: Request,
        body: &[u8],
        relayed: &mut Relayed,
    ) -> Result<Fate, &'static str> {
        if self.is_dealt_with(owed, body, relayed) {
            return Ok(Fate::Skip);
        }
        self.backend.fail_within();
        let healing = self.begins_to_heal(owed, body, relayed);
        if !healing {
            self.backend.prepared.replay.forget();
            if let Some(client) = &mut self.client {
                client.serving.failed = true;
            }
            if !owed.is_injected_query() {
                self.query_failed();
            }
        }
        self.backend.requests.copy_failed();
        match owed {
            Request::Query | Request::Statements(_) | Request::InjectedStatement => {
                self.backend.requests.fail_text();
                return Ok(in_own_text(body, self.backend.prepared.longer.of_query(), relayed));
            }
            Request::Call | Request::Sync => return Ok(Fate::Pass),
            // (One that was cancelled belongs to its client's pipeline: by its timeout, or on its
            // request.)
            Request::InjectedSettings { statement }
                if healing
                    || (statement != 0 && is_cut_off(body))
                    || self.backend.session.role_refused().is_some() => {}
            Request::InjectedQuery if self.is_refused_in_block(body) => return Ok(Fate::Skip),
            Request::InjectedQuery
            | Request::InjectedLift
            | Request::InjectedRollback
            | Request::InjectedSettings { .. } => {
                self.backend.lending.spoil("a session's settings could not be applied");
                self.part_for_failed_query(
                    "the session's settings could not be restored on another server connection",
                    body,
                    relayed,
                );
                return Ok(Fate::Skip);
            }
            _ => {}
        }
        Ok(self.skip_to_sync(owed, body, healing, relayed))
    }

    /// Processes the error of a query of Hawser's that does not concern its client. Returns whether
    /// it was one.
    fn is_dealt_with(&mut self, owed: Request, body: &[u8], relayed: &mut Relayed) -> bool {
        match owed {
            Request::InjectedQuestion => self.backend.question_failed(body),
            Request::InjectedLift => return self.backend.lift_failed(body),
            Request::HandOver => self.backend.hand_over_refused(body),
            Request::SendIdentity => {
                // The function is gone, or may not be called any more.
                self.backend.lending.spoil("setting the client identity failed");
            }
            Request::InjectedPrepare if self.backend.leaves_anothers_statement(body) => {
                self.backend.lending.spoil("it may have another session's statement");
                self.part_for_failed_query(
                    "a prepared statement of another session could not be deallocated",
                    body,
                    relayed,
                );
            }
            Request::InjectedPrepare => {
                self.backend.prepare_refused(body);
                self.own_name_refused(body);
            }
            _ => return false,
        }
        true
    }

    /// Whether the server has refused the client's role (it is gone, or not granted any more), or
    /// another session has cancelled what sets it and the settings, now or before this query. What
    /// the client has sent after it fails as well: the client gets this error for it.
    fn is_refused_in_block(&mut self, error: &[u8]) -> bool {
        let Some(client) = &self.client else { return false };
        let session = &mut self.backend.session;
        if session.role_refused().is_some() {
            return true;
        }
        let code = field(error, b'C').unwrap_or_default();
        let message = field(error, b'M').unwrap_or_default();
        let role = session.applied.get(b"role");
        let refuses_role = [&b"22023"[..], b"42501"].contains(&code)
            && client.session.desired.get(b"role") == role
            && role.is_some_and(|role| memchr::memmem::find(message, role).is_some());
        let refuses = session.is_in_own_block() && (refuses_role || is_cut_off(error));
        if refuses {
            session.role = Role::Refused(error.into());
            self.backend.prepared.replay.forget();
            self.backend.lending.spoil(Role::REFUSED);
        }
        refuses
    }

    /// A query of Hawser's has failed without which its client cannot go on.
    fn part_for_failed_query(&self, message: &'static str, body: &[u8], relayed: &mut Relayed) {
        relayed.injected_query_failed = true;
        if self.client.is_some() {
            let text = field(body, b'M').unwrap_or_default();
            let error = ClientError::fatal(SqlState::CONNECTION_FAILURE, message)
                .detail(String::from_utf8_lossy(text));
            relayed.goodbye = Some(Box::new(error));
        }
    }

    /// Whether the error is one that is healed: the statement is prepared again, and the message
    /// sent again.
    fn begins_to_heal(&mut self, owed: Request, body: &[u8], relayed: &Relayed) -> bool {
        let mut healing = false;
        if let (
            Request::Bind { statement }
            | Request::InjectedSettings { statement }
            | Request::DescribeStatement { statement },
            true,
        ) = (owed, is_stale_or_lost(body))
        {
            // The next client that uses it prepares it again.
            self.backend.prepared.statements.mark_stale(statement);
            if matches!(owed, Request::InjectedSettings { .. }) {
                // The command that removed Hawser's own has removed all.
                self.backend.prepared.statements.mark_stale_since(0);
            }
            healing = relayed.whole
                && self.client.is_some()
                && !matches!(owed, Request::DescribeStatement { .. })
                && self.backend.prepared.replay.refused(body);
        }
        if self.backend.prepared.replay.is_checking() && owed.is_injected() {
            self.backend.prepared.replay.check_failed();
            healing = true;
        }
        healing
    }

    /// A message of a pipeline has failed: the server ignores everything up to the next Sync. The
    /// changes of those messages are dropped.
    fn skip_to_sync(
        &mut self,
        owed: Request,
        body: &[u8],
        healing: bool,
        relayed: &Relayed,
    ) -> Fate {
        let erring = self.backend.requests.answered_pipeline();
        let mut undone = Undone::default();
        if let Some(failed) = self.backend.requests.take_ignored() {
            self.fail(failed, body, &mut undone);
        }
        while let Some(ignored) = self.backend.requests.take_ignored() {
            self.ignore(ignored, &mut undone);
        }
        match self.backend.requests.front() {
            None => self.sync_for_client(),
            Some(Request::InjectedSync) if !healing => {
                if let Some(client) = &mut self.client {
                    // The client's own Sync is still to come.
                    client.pending_session().dropped.until_sync();
                }
            }
            Some(_) => {}
        }
        self.backend.known.drawn.discard_again(); // the command for that may be ignored
        if undone.touches_unnamed && self.backend.prepared.unnamed.since() <= erring {
            self.backend.prepared.unnamed.forget();
        }
        if healing {
            return Fate::Skip;
        }
        if let Some(refusal) = undone.refusal {
            return Fate::Replace(refusal);
        }
        if let Some(own) = undone.stood_in_for {
            return with_name(body, STAND_IN, &own.name, relayed);
        }
        match undone.parse.and_then(|serial| self.backend.prepared.longer.take_parse(serial)) {
            Some(longer) => in_own_text(body, &longer, relayed),
            None => self.under_own_name(owed, body, relayed),
        }
    }

    /// A message has failed with this error.
    fn fail(&mut self, failed: Entry, body: &[u8], undone: &mut Undone) {
        if failed.owed.parses_unnamed()
            && let Some(client) = &mut self.client
        {
            client.prepared.unnamed = None; // it has removed the earlier one, too
        }
        if let Request::Parse { serial, .. } = failed.owed {
            undone.parse = Some(serial);
        }
        let change = match failed.change {
            Some(Change::Refuses(refusal)) => {
                let code = field(body, b'C');
                if refusal.of.is_none_or(|of| code == Some(&of.0[..])) {
                    undone.refusal = Some(refusal.answer);
                }
                None
            }
            Some(Change::StandsInFor(own)) => {
                undone.stood_in_for = Some(own);
                None
            }
            change => change,
        };
        self.ignore(Entry { change, ..failed }, undone);
    }

    /// A message has been ignored, or has failed.
    fn ignore(&mut self, ignored: Entry, undone: &mut Undone) {
        undone.touches_unnamed |= ignored.owed.touches_unnamed();
        match ignored.owed {
            Request::Parse { statement, .. } | Request::InjectedParse { statement } => {
                let pipeline = self.backend.requests.answered_pipeline();
                self.backend.prepared.statements.remove(statement, pipeline);
            }
            // A Close of Hawser's was ignored: the statement still exists.
            Request::Injected => self.backend.prepared.uncertain = true,
            _ => {}
        }
        if let (Some(change), Some(client)) = (ignored.change, &mut self.client) {
            client.ignore(&change, &mut self.backend.prepared.unnamed);
        }
    }

    /// An error that has Hawser's name of a statement in it, with the client's in its place:
    /// clients do not know Hawser's.
    fn under_own_name(&self, owed: Request, body: &[u8], relayed: &Relayed) -> Fate {
        let (Request::Bind { statement } | Request::DescribeStatement { statement }) = owed else {
            return Fate::Pass;
        };
        // A Bind with another number of parameters, or a missing statement: no other error has its
        // name. (Others are frequent, and there may be many names.)
        let code = field(body, b'C');
        if code.is_none_or(|code| ![&b"08P01"[..], b"26000"].contains(&code)) {
            return Fate::Pass;
        }
        let Some(client) = &self.client else { return Fate::Pass };
        let names = client
            .prepared
            .statements
            .as_deref()
            .into_iter()
            .flat_map(|names| names.names().confirmed_pairs());
        let named = names.filter(|(_, named)| named.statement.id == statement);
        // Of several names the one that was bound last is most likely meant.
        let is_bound = |named: &ClientStatement| {
            client.prepared.bound.as_ref().is_some_and(|bound| Arc::ptr_eq(bound, &named.seen))
        };
        match named.min_by_key(|(_, named)| (!is_bound(named), named.serial)) {
            Some((own, named)) => with_name(body, &named.statement.name, significant(own), relayed),
            None => Fate::Pass,
        }
    }

    /// The server has refused a statement of the protocol under its client's own name.
    fn own_name_refused(&mut self, error: &[u8]) {
        if self.backend.requests.second() == Some(Request::CloseKnown { answered: false })
            && let Some(change) = self.backend.requests.take_second()
            && let Some(client) = &mut self.client
        {
            client.ignore(&change, &mut self.backend.prepared.unnamed);
        }
        self.backend.ahead.own_name_refused(error);
    }

    /// If a stand-in has been executed, the error of the statement in whose place it stands; if the
    /// client's role was refused, the error of that.
    pub(super) fn in_place_of_stand_in(
        &mut self,
        owed: Request,
        body: &[u8],
        fate: Fate,
        relayed: &Relayed,
    ) -> Fate {
        if let Some(refused) = self.backend.session.role_refused()
            && !owed.is_injected_query()
        {
            let mut error = Vec::new();
            build::message(&mut error, kind::ERROR, |out| out.extend_from_slice(refused));
            return Fate::Replace(error.into());
        }
        if let Some(client) = &mut self.client
            && !owed.is_injected()
        {
            client.note_missed_sql(body);
            if let Some(of_rule) = client.error_of_rule(body).filter(|_| relayed.whole) {
                let mut error = Vec::new();
                of_rule.write(&mut error);
                return Fate::Replace(error.into());
            }
        }
        if self.backend.prepared.by_sql.is_none() || owed.is_injected() || !relayed.whole {
            return fate;
        }
        match (self.backend.error_stood_in_for(body), &fate) {
            (Some(own), Fate::Pass | Fate::Replace(_)) => {
                let mut error = Vec::new();
                build::message(&mut error, kind::ERROR, |out| out.extend_from_slice(own));
                Fate::Replace(error.into())
            }
            _ => fate,
        }
    }

    /// A pipeline has failed, and the client's Sync has not come: a Sync of Hawser's ends it, so
    /// that a client that sends none holds no backend (trap 15). The client's messages are
    /// discarded until its own Sync, as the server would do. Not within a transaction block or for
    /// a client that keeps its backend anyway.
    fn sync_for_client(&mut self) {
        self.backend.requests.skip_to_sync();
        if self.backend.to_server.is_open() {
            return; // the rest of the client's message goes first: see `end_failed_pipeline`
        }
        let Some(client) = &mut self.client else {
            // The pipeline contained a simple query, which the server ignores now, so the missing
            // Sync was not noticed.
            if self.backend.send(&build::SYNC).is_ok() {
                self.backend.request(Request::Sync);
            }
            return;
        };
        if self.backend.owes_failed_pipeline_a_sync(client.is_pinned())
            && self.backend.send(&build::SYNC).is_ok()
        {
            self.backend.requests.push_sync_after_error();
            client.pending_session().dropped.until_sync();
        }
    }
}

impl<S: Socket> Backend<S> {
    /// Whether a Sync of Hawser's ends the failed pipeline. Not within a transaction block or for a
    /// client that keeps its server connection anyway; nor where the server may still answer a Sync
    /// that crossed with the error, for it would be one too many.
    pub(crate) fn owes_failed_pipeline_a_sync(&self, pinned: bool) -> bool {
        !pinned
            && self.from_server.status() == TransactionStatus::Idle
            && !self.requests.has_syncs_in_doubt()
    }
}

/// An error with the client's own name in place of Hawser's.
fn with_name(body: &[u8], ours: &[u8], own: &[u8], relayed: &Relayed) -> Fate {
    let Some(at) = memchr::memmem::find(body, ours).filter(|_| relayed.whole) else {
        return Fate::Pass;
    };
    let mut error = Vec::new();
    build::message(&mut error, kind::ERROR, |out| {
        out.extend_from_slice(&body[..at]);
        out.extend_from_slice(own);
        out.extend_from_slice(&body[at + ours.len()..]);
    });
    Fate::Replace(error.into())
}

/// An error about a text, with its position in the text that the client sent.
fn in_own_text(body: &[u8], longer: &[Longer], relayed: &Relayed) -> Fate {
    if longer.is_empty() || !relayed.whole {
        return Fate::Pass;
    }
    match count_back(body, longer) {
        Some(body) => {
            let mut error = Vec::new();
            build::message(&mut error, kind::ERROR, |out| out.extend_from_slice(&body));
            Fate::Replace(error.into())
        }
        None => Fate::Pass,
    }
}
