//! What a server sends: matched with what it owes, and passed on.
//!
//! # Model
//! Each message completes, or belongs to, the first entry of [`super::expect`]. Rows and copy
//! data are passed without a look; a run of messages that all pass is written to the client from
//! where it was read.
//!
//! # Invariants
//! * a message that fits no entry means that order or framing is lost: the connection is closed
//! * what answers Hawser's own messages never reaches a client
//! * ReadyForQuery is where books are closed: settings, names, pins, the release of the backend

use std::sync::Arc;

use super::backend::Backend;
use super::client::{Client, Resetting};
use super::expect::Expect;
use super::message::PoolMode;
use super::replay::{hash_of_parameters, hash_of_rows, is_stale_plan};
use super::statement::{Unnamed, same_parse_settings};
use super::table::{Engine, Holder};
use super::{Host, Socket, limits};
use crate::ids::Slot;
use crate::session::part::Part;
use crate::session::settings::{Settings, SettingsBuilder};
use crate::time::Time;
use crate::wire::error::{ClientError, SqlState};
use crate::wire::frame::{self, Framed, HEADER_BYTES};
use crate::wire::{TransactionStatus, backend as kind, build};

/// The longest message that is looked at whole (a setting with a long value, for example).
const LOOKED_AT_BYTES_MAX: usize = 1024 * 1024;

/// Settings that a server reports and nobody can set.
const FIXED: [&[u8]; 6] = [
    b"server_version",
    b"server_encoding",
    b"integer_datetimes",
    b"in_hot_standby",
    b"is_superuser",
    b"session_authorization",
];

/// What has become of bytes from a server.
#[derive(Debug, Default)]
pub(super) struct Relayed {
    /// What is left of the last run, to be written from where it was read.
    pub(super) run: std::ops::Range<usize>,
    /// Bytes dealt with; the rest is the start of a message.
    pub(super) consumed: usize,
    /// Why the connection cannot be trusted any more.
    pub(super) broken: Option<&'static str>,
    /// What the client is told, if it is to be told goodbye.
    pub(super) goodbye: Option<ClientError>,
    /// The message at hand is all here.
    whole: bool,
    /// A query of ours failed.
    pub(super) made_query_failed: bool,
    /// Queries of the client that ended.
    pub(super) queries: u64,
    /// A refusal of the server's is being healed, and the next step is due.
    pub(super) heal: bool,
    /// Transactions of the client that ended.
    pub(super) transactions: u64,
}

/// Bytes on their way from a backend to its client, if it has one.
pub(super) struct Relay<'a, S: Socket> {
    pub(super) backend: &'a mut Backend<S>,
    pub(super) client: Option<&'a mut Client<S>>,
    pub(super) bytes: &'a [u8],
    /// What goes to the client ahead of the run.
    pub(super) out: &'a mut Vec<u8>,
}

/// What is done with a message.
enum Fate {
    Pass,
    Skip,
    Replace(Box<[u8]>),
}

impl<S: Socket> Relay<'_, S> {
    pub(super) fn run(mut self, now: Time) -> Relayed {
        let mut relayed = Relayed::default();
        let mut at = 0;
        let mut run = 0;
        while at < self.bytes.len() {
            let rest = &self.bytes[at..];
            if self.backend.receiving_rest > 0 {
                let part = self.backend.receiving_rest.min(rest.len());
                self.backend.receiving_rest -= part;
                at += part;
                continue;
            }
            let header = match frame::header(rest) {
                Framed::Short => break,
                Framed::Header(header) => header,
                Framed::BadLength { .. } => {
                    relayed.broken = Some("the server sent a message of impossible length");
                    break;
                }
            };
            let total = header.total();
            if header.kind == kind::DATA_ROW || header.kind == kind::COPY_DATA {
                match self.backend.expected.front() {
                    Some(Expect::Query | Expect::Execute) => {}
                    // A setting that is a list is set by a SELECT.
                    Some(Expect::MadeQuery | Expect::Made) => {
                        if total > rest.len() {
                            break;
                        }
                        self.cut(&mut run, at);
                        at += total;
                        run = at;
                        continue;
                    }
                    _ => {
                        self.answer_made(&mut run, at);
                        let owed = self.backend.expected.front();
                        if !matches!(owed, Some(Expect::Query | Expect::Execute)) {
                            relayed.broken = Some("the server sent rows that nobody asked for");
                            break;
                        }
                    }
                }
                let part = total.min(rest.len());
                self.backend.receiving_rest = total - part;
                at += part;
                continue;
            }
            if total > rest.len() {
                let looked_at = match header.kind {
                    kind::PARAMETER_STATUS | kind::READY_FOR_QUERY => true,
                    kind::ROW_DESCRIPTION => {
                        self.backend.expected.front() == Some(&Expect::MadeDescribe)
                    }
                    _ => false,
                };
                if total <= limits::WHOLE_MESSAGE_BYTES
                    || rest.len() < limits::ERROR_START_BYTES
                    || (looked_at && total <= LOOKED_AT_BYTES_MAX)
                {
                    break;
                }
                if looked_at {
                    relayed.broken = Some("the server sent a message too long to be looked at");
                    break;
                }
            }
            relayed.whole = total <= rest.len();
            let body = &self.bytes[at + HEADER_BYTES..at + total.min(rest.len())];
            let fate = match self.message(header.kind, body, &mut run, at, now, &mut relayed) {
                Ok(fate) => fate,
                Err(reason) => {
                    relayed.broken = Some(reason);
                    break;
                }
            };
            let part = total.min(rest.len());
            match fate {
                Fate::Pass => {
                    self.backend.receiving_rest = total - part;
                }
                Fate::Skip | Fate::Replace(_) if part < total => {
                    relayed.broken = Some("the server sent an answer of unexpected length");
                    break;
                }
                Fate::Skip => {
                    self.cut(&mut run, at);
                    run = at + part;
                }
                Fate::Replace(other) => {
                    self.cut(&mut run, at);
                    self.out.extend_from_slice(&other);
                    run = at + part;
                }
            }
            at += part;
            if relayed.goodbye.is_some() {
                break;
            }
        }
        if relayed.broken.is_none() && self.backend.receiving_rest == 0 {
            // Nothing more may come from the server before the client has seen them.
            self.answer_made(&mut run, at);
        }
        relayed.run = run..at;
        relayed.consumed = at;
        relayed
    }

    /// Ends the run before `at`, so that something can be put behind it.
    fn cut(&mut self, run: &mut usize, at: usize) {
        if self.client.is_some() {
            self.out.extend_from_slice(&self.bytes[*run..at]);
        }
        *run = at;
    }

    /// Gives the answers of ours whose turn has come.
    fn answer_made(&mut self, run: &mut usize, at: usize) {
        loop {
            let answer = match self.backend.expected.front() {
                Some(Expect::ParseKnown { .. }) => &build::PARSE_COMPLETE[..],
                Some(Expect::CloseKnown) => {
                    self.backend.closing.pop_front();
                    &build::CLOSE_COMPLETE[..]
                }
                Some(Expect::CopyInput { .. }) => &[],
                _ => return,
            };
            self.backend.expected.pop_front();
            if !answer.is_empty() {
                self.cut(run, at);
                self.out.extend_from_slice(answer);
            }
        }
    }

    fn message(
        &mut self,
        message: u8,
        body: &[u8],
        run: &mut usize,
        at: usize,
        now: Time,
        relayed: &mut Relayed,
    ) -> Result<Fate, &'static str> {
        const OUT_OF_TURN: &str = "the server sent an answer out of turn";
        match message {
            // These come at any time.
            kind::PARAMETER_STATUS => {
                self.answer_made(run, at);
                return self.parameter(body);
            }
            kind::NOTICE => {
                self.answer_made(run, at);
                let ours = self.backend.expected.front().is_some_and(|e| e.is_made());
                return Ok(if ours { Fate::Skip } else { Fate::Pass });
            }
            kind::NOTIFICATION => {
                let listens = self
                    .client
                    .as_ref()
                    .is_some_and(|c| c.is_native() || c.pins.contains(Part::Listen));
                return Ok(if listens { Fate::Pass } else { Fate::Skip });
            }
            _ => {}
        }
        if self
            .backend
            .expected
            .front()
            .is_some_and(|e| e.is_ours_to_answer() || matches!(e, Expect::CopyInput { .. }))
        {
            self.answer_made(run, at);
        }
        let Some(&owed) = self.backend.expected.front() else {
            if message == kind::ERROR && is_fatal(body) {
                // Out of the blue: the connection ends.
                self.backend.gone = true;
                return Ok(Fate::Pass);
            }
            if message == kind::READY_FOR_QUERY && self.backend.syncs_in_doubt > 0 {
                self.backend.syncs_in_doubt -= 1;
                if let [status] = body
                    && let Some(status) = TransactionStatus::from_byte(*status)
                {
                    self.backend.status = status;
                }
                self.backend.ignoring = false;
                self.backend.unsynced = false;
                return Ok(Fate::Pass);
            }
            return Err(OUT_OF_TURN);
        };
        if message == kind::ERROR {
            if is_fatal(body) {
                // Whatever it answers, it is the last that the client hears.
                self.backend.gone = true;
                return Ok(Fate::Pass);
            }
            return self.error(owed, body, relayed);
        }
        if message == kind::READY_FOR_QUERY {
            let status = match body {
                [status] => TransactionStatus::from_byte(*status),
                _ => None,
            };
            let Some(status) = status else {
                return Err("the server reported an unknown transaction status");
            };
            if owed == Expect::MadeQuery
                && self.backend.syncs_in_doubt > 0
                && !self.backend.fence_passed
            {
                // Not its own: that comes behind its completion.
                self.backend.syncs_in_doubt -= 1;
                return Ok(Fate::Skip);
            }
            return self.ready(owed, status, run, at, now, relayed);
        }
        let (completes, fate) = match (owed, message) {
            (
                Expect::MadeQuery,
                kind::COMMAND_COMPLETE | kind::ROW_DESCRIPTION | kind::EMPTY_QUERY,
            ) => {
                self.backend.fence_passed = true;
                (false, Fate::Skip)
            }
            (Expect::Parse { .. }, kind::PARSE_COMPLETE)
            | (Expect::Bind { .. }, kind::BIND_COMPLETE)
            | (Expect::Close, kind::CLOSE_COMPLETE)
            | (
                Expect::DescribeStatement { .. } | Expect::DescribePortal { .. },
                kind::ROW_DESCRIPTION | kind::NO_DATA,
            )
            | (
                Expect::Execute,
                kind::COMMAND_COMPLETE | kind::EMPTY_QUERY | kind::PORTAL_SUSPENDED,
            ) => (true, Fate::Pass),
            (Expect::MadeParse { .. }, kind::PARSE_COMPLETE)
            | (Expect::Made, kind::BIND_COMPLETE | kind::COMMAND_COMPLETE | kind::CLOSE_COMPLETE) => {
                (true, Fate::Skip)
            }
            (Expect::MadeDescribe, kind::PARAMETER_DESCRIPTION) => {
                self.backend.replay.now_parameters(hash_of_parameters(body));
                (false, Fate::Skip)
            }
            (Expect::MadeDescribe, kind::ROW_DESCRIPTION | kind::NO_DATA) => {
                let rows = (message == kind::ROW_DESCRIPTION).then_some(body);
                self.backend.replay.now_rows(hash_of_rows(rows));
                (true, Fate::Skip)
            }
            (Expect::DescribeStatement { .. }, kind::PARAMETER_DESCRIPTION)
            | (
                Expect::Query,
                kind::ROW_DESCRIPTION
                | kind::COMMAND_COMPLETE
                | kind::EMPTY_QUERY
                | kind::COPY_OUT
                | kind::COPY_BOTH
                | kind::COPY_DONE,
            )
            | (Expect::Execute, kind::COPY_OUT | kind::COPY_BOTH | kind::COPY_DONE)
            | (Expect::Call, kind::FUNCTION_RESULT) => (false, Fate::Pass),
            (Expect::Query | Expect::Execute, kind::COPY_IN) => {
                self.copy_in();
                (false, Fate::Pass)
            }
            _ => return Err(OUT_OF_TURN),
        };
        if message == kind::COMMAND_COMPLETE {
            self.copy_ended();
            if !owed.is_made() && (body == b"DISCARD ALL\0" || body == b"DEALLOCATE ALL\0") {
                self.forgotten_for_good(body);
            }
        }
        if !owed.is_made() {
            self.backend.replay.forget();
        }
        if let Expect::DescribeStatement { noted: true, .. }
        | Expect::DescribePortal { noted: true } = owed
        {
            self.note_description(message, body);
        }
        if completes {
            self.backend.expected.pop_front();
            if owed.is_unnamed_parse() {
                self.backend.displaced.pop_front();
            }
            if let Expect::Parse { statement, .. } | Expect::MadeParse { statement } = owed {
                self.backend.statements.prove(statement);
            }
        }
        Ok(fate)
    }

    /// A DISCARD ALL or DEALLOCATE ALL has worked. An error behind it in the same text or pipeline
    /// takes nothing back: the one commits at once (`PreventInTransactionBlock`, xact.c), the other
    /// knows of no transactions (`DropAllPreparedStatements`, prepare.c).
    fn forgotten_for_good(&mut self, tag: &[u8]) {
        let Some(extra) = self.client.as_mut().and_then(|c| c.extra.as_mut()) else { return };
        if !self.backend.has_come_to(extra.settles_in) {
            return;
        }
        extra.discarded = tag == b"DISCARD ALL\0" && extra.discarding.is_some();
        extra.forgotten = None;
        if std::mem::take(&mut extra.forgetting) {
            self.backend.uncertain = false;
        }
    }

    /// The client is told what a statement takes and gives.
    fn note_description(&mut self, message: u8, body: &[u8]) {
        let Some(seen) = self.backend.describing.front() else { return };
        match message {
            kind::PARAMETER_DESCRIPTION => seen.parameters(hash_of_parameters(body)),
            kind::ROW_DESCRIPTION => seen.rows(hash_of_rows(Some(body))),
            _ => seen.rows(hash_of_rows(None)),
        }
        if message != kind::PARAMETER_DESCRIPTION {
            self.backend.describing.pop_front();
        }
    }

    /// The server wants copy data. A Sync that has been sent already is read and ignored while it
    /// does (trap 15), so no answer to it will come. What has been sent up to the end of this
    /// copy is struck from the books; what follows is for what follows.
    fn copy_in(&mut self) {
        let backend = &mut *self.backend;
        backend.copying_in = true;
        backend.syncs_in_copy = 0;
        while let Some(next) = backend.expected.get(1).copied() {
            match next {
                Expect::Sync => {
                    backend.syncs_outstanding -= 1;
                    backend.syncs_in_copy += 1;
                }
                Expect::CopyInput { ends } => backend.copying_in = !ends,
                _ => break,
            }
            backend.expected.remove(1);
            if !backend.copying_in {
                break;
            }
        }
        // The Sync that ended what has been sent may be among those.
        let last = backend.expected.iter().rev().find(|e| !matches!(e, Expect::CopyInput { .. }));
        backend.unsynced = last.is_none_or(|last| !last.ends_with_ready());
    }

    /// The copy under way has ended well: the Syncs in its middle were ignored.
    fn copy_ended(&mut self) {
        self.backend.copying_in = false;
        self.backend.syncs_in_copy = 0;
    }

    fn error(
        &mut self,
        owed: Expect,
        body: &[u8],
        relayed: &mut Relayed,
    ) -> Result<Fate, &'static str> {
        let mut healing = false;
        if let (Expect::Bind { statement } | Expect::DescribeStatement { statement, .. }, true) =
            (owed, is_stale_plan(body))
        {
            // Whoever uses it next prepares it anew.
            self.backend.statements.mark_stale(statement);
            healing = relayed.whole
                && self.client.is_some()
                && matches!(owed, Expect::Bind { .. })
                && self.backend.replay.refused(body);
        }
        if self.backend.replay.is_checking() && owed.is_made() {
            self.backend.replay.check_failed();
            healing = true;
        }
        if !healing {
            self.backend.replay.forget();
            if let Some(client) = &mut self.client {
                client.failed = true;
            }
        }
        self.backend.copying_in = false;
        self.backend.syncs_in_doubt += std::mem::take(&mut self.backend.syncs_in_copy);
        match owed {
            Expect::Query | Expect::Call | Expect::Sync => return Ok(Fate::Pass),
            Expect::MadeQuery => {
                relayed.made_query_failed = true;
                if self.client.is_some() {
                    let text = crate::wire::error::field(body, b'M').unwrap_or_default();
                    relayed.goodbye = Some(
                        ClientError::fatal(
                            SqlState::CONNECTION_FAILURE,
                            "the session's settings could not be restored on another server connection",
                        )
                        .detail(String::from_utf8_lossy(text)),
                    );
                }
                return Ok(Fate::Skip);
            }
            _ => {}
        }
        // The server ignores everything up to the next Sync.
        let erring = self.backend.answered_pipeline();
        let mut refused = None;
        let mut found = false;
        let mut is_first = true;
        let mut unnamed = None;
        // Nothing that was sent since has taken the place of what is ignored.
        let mut still_unnamed = false;
        let mut touches_unnamed = false;
        while let Some(next) = self.backend.expected.front().copied() {
            if matches!(next, Expect::Sync | Expect::MadeSync) {
                found = true;
                break;
            }
            self.backend.expected.pop_front();
            if next.ends_with_ready() {
                self.backend.syncs_outstanding -= 1;
            }
            // A Parse or Close of the unnamed statement, or what may be one.
            touches_unnamed |= next.is_unnamed_parse()
                || matches!(
                    next,
                    Expect::MadeParse { statement: 0 } | Expect::Made | Expect::Close
                );
            let ignored = !std::mem::replace(&mut is_first, false);
            if next.is_unnamed_parse() {
                let before = self.backend.displaced.pop_front();
                if ignored && unnamed.is_none() {
                    unnamed = before;
                }
            }
            match next {
                Expect::Parse { serial, statement } => {
                    let pipeline = self.backend.answered_pipeline();
                    self.backend.statements.remove(statement, pipeline);
                    still_unnamed |= serial != 0
                        && self.client.as_ref().is_some_and(|c| c.unnamed_serial == serial);
                    self.unname(serial);
                }
                Expect::ParseKnown { serial } => self.unname(serial),
                Expect::CloseKnown => {
                    if let Some((name, statement)) = self.backend.closing.pop_front()
                        && statement.serial != 0
                        && let Some(client) = &mut self.client
                    {
                        client.rename_closed(name, statement);
                    }
                }
                Expect::MadeParse { statement } => {
                    let pipeline = self.backend.answered_pipeline();
                    self.backend.statements.remove(statement, pipeline);
                }
                Expect::DescribeStatement { noted: true, .. }
                | Expect::DescribePortal { noted: true } => {
                    self.backend.describing.pop_front();
                }
                // A Close of ours was ignored: the statement is still there.
                Expect::Made => self.backend.uncertain = true,
                Expect::ParseRefused => {
                    let refusal = self.backend.refusals.pop_front();
                    // Any other error of the text's comes first on the server, too.
                    let due = crate::wire::error::field(body, b'C')
                        == Some(&SqlState::DUPLICATE_PREPARED_STATEMENT.0[..]);
                    if due && next == owed && refused.is_none() {
                        refused = refusal;
                    }
                }
                _ => {}
            }
        }
        if !found {
            self.sync_for_client();
            found = !self.backend.ignoring;
        }
        // With a Sync under way, `unsynced` speaks of what has been sent behind it.
        if !found {
            self.backend.ignoring = true;
            self.backend.unsynced = true;
        }
        if touches_unnamed && self.backend.unnamed_since <= erring {
            self.backend.forget_unnamed();
        }
        // The unnamed statement that the server still has is the one before those it ignored.
        if let (Some(client), Some(before)) = (&mut self.client, unnamed) {
            match self.backend.displaced.front_mut() {
                Some(later) => *later = before,
                None if still_unnamed => (client.unnamed, client.unnamed_serial) = before,
                None => {}
            }
        }
        if healing {
            return Ok(Fate::Skip);
        }
        if let Some(refusal) = refused {
            return Ok(Fate::Replace(refusal));
        }
        Ok(Fate::Pass)
    }

    /// A Parse has failed or been ignored: its name stands for nothing, also where a Close behind
    /// it is about to be taken back.
    fn unname(&mut self, serial: u32) {
        let Some(client) = &mut self.client else { return };
        if serial != 0 {
            client.unname_failed(serial);
            for (_, closed) in self.backend.closing.iter_mut().filter(|(_, c)| c.serial == serial) {
                closed.serial = 0;
            }
        }
    }

    /// A pipeline has failed, and the client's Sync has not come: one of ours ends it, so that a
    /// client that sends none holds no backend (trap 15). What the client sends goes nowhere until
    /// its own Sync, as the server would have it. Not within a transaction block or for a client
    /// that keeps its backend anyway.
    fn sync_for_client(&mut self) {
        self.backend.ignoring = true;
        let Some(client) = &mut self.client else {
            // It left behind a simple query that the server now ignores: no Sync was seen to be
            // missing.
            if self.backend.send(&build::SYNC).is_ok() {
                self.backend.expect(Expect::Sync);
            }
            return;
        };
        // A Sync that crossed with the error may be answered yet: a second one would be one too many.
        if client.is_pinned()
            || self.backend.status != TransactionStatus::Idle
            || self.backend.syncs_in_doubt > 0
        {
            return;
        }
        if self.backend.send(&build::SYNC).is_ok() {
            self.backend.ignoring = false;
            self.backend.expect(Expect::MadeSync);
            client.extra().skipping = true;
        }
    }

    /// A setting has changed, or the server tells its start value.
    fn parameter(&mut self, body: &[u8]) -> Result<Fate, &'static str> {
        let pair = frame::take_string(body)
            .and_then(|(name, rest)| Some((name, frame::take_string(rest)?.0)));
        let Some((name, value)) = pair else {
            return Err("the server sent a malformed ParameterStatus");
        };
        let backend = &mut *self.backend;
        let fixed = FIXED.contains(&name);
        if fixed || backend.expected.is_empty() {
            // Nobody asked: the server's own value has changed (a reload, a promotion).
            let mut parameters = (*backend.parameters).clone();
            parameters.set(name, value);
            backend.parameters = Arc::new(parameters);
        }
        if !fixed {
            let own = backend.parameters.get(name) == Some(value);
            let known = backend.applied.get(name);
            if known != (if own { None } else { Some(value) }) {
                let mut settings = SettingsBuilder::from(&backend.applied);
                if own {
                    settings.remove(name);
                } else {
                    settings.set(name, value);
                }
                backend.applied = backend.pool.interner().share(settings.build());
            }
        }
        let ours = backend.expected.front().is_some_and(|e| e.is_made());
        let resetting =
            self.client.as_ref().and_then(|client| client.extra.as_ref()).is_some_and(|extra| {
                extra.resetting != Resetting::No && backend.has_come_to(extra.settles_in)
            });
        Ok(if ours || (resetting && !fixed) { Fate::Skip } else { Fate::Pass })
    }

    /// The server has come to the end of a query or pipeline.
    fn ready(
        &mut self,
        owed: Expect,
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
            let extra = client.extra.as_ref().filter(|_| client.is_unsettled());
            extra.is_some_and(|extra| !self.backend.has_come_to(extra.settles_in))
        });
        self.backend.expected.pop_front();
        self.backend.syncs_outstanding -= 1;
        self.backend.copying_in = false;
        self.backend.syncs_in_copy = 0;
        self.backend.status = status;
        // Copy data that no copy took.
        while let Some(Expect::CopyInput { .. }) = self.backend.expected.front() {
            self.backend.expected.pop_front();
        }
        if owed == Expect::MadeQuery {
            self.backend.fence_passed = false;
            return Ok(Fate::Skip);
        }
        if self.backend.replay.is_healing() {
            relayed.heal = true;
            return Ok(Fate::Skip);
        }
        if self.backend.expected.is_empty() {
            self.backend.since = now;
        }
        if status == TransactionStatus::Idle {
            self.backend.transactions += 1;
            relayed.transactions += 1;
        }
        relayed.queries += 1;
        let Some(client) = &mut self.client else { return Ok(Fate::Skip) };
        if !client.is_native() && !same_parse_settings(&client.desired, &self.backend.applied) {
            settings_changed(client, self.backend);
        }
        if client.extra.is_some() && !later {
            let told = settle_extra(client, self.backend);
            if !told.is_empty() {
                self.cut(run, at);
                self.out.extend_from_slice(&told);
            }
        } else if !client.is_native() && client.desired != self.backend.applied {
            client.desired = self.backend.applied.clone();
        }
        let Some(client) = &mut self.client else { return Ok(Fate::Skip) };
        client.failed = false;
        if owed == Expect::MadeSync {
            return Ok(Fate::Skip);
        }
        if client.mode == PoolMode::Statement && status != TransactionStatus::Idle {
            relayed.goodbye = Some(
                ClientError::fatal(
                    SqlState::FEATURE_NOT_SUPPORTED,
                    "transaction blocks are not allowed in statement pooling mode",
                )
                .hint("Use a database or user with pool_mode = \"transaction\"."),
            );
            return Ok(Fate::Skip);
        }
        Ok(Fate::Pass)
    }
}

/// The pipeline that has just ended has changed settings that parse analysis reads: what was parsed
/// behind the change, and before it was known, is noted under the settings before it.
fn settings_changed<S: Socket>(client: &mut Client<S>, backend: &mut Backend<S>) {
    let ended = backend.answered_pipeline() - 1;
    // Which of its Parses came behind the change is not known: other clients get none of them.
    backend.statements.mark_stale_of(ended);
    let names = client.statements.iter_mut().flat_map(|names| names.values_mut());
    for named in names.filter(|named| named.behind && named.pipeline == ended) {
        let before = named.statement.clone();
        named.statement = backend
            .pool
            .statements
            .intern(&before.body, &backend.applied, || before.effects.clone());
    }
    if ended < backend.unnamed_follows
        && let Some(unnamed) = &client.unnamed
        && backend.unnamed.as_ref().is_some_and(|other| Arc::ptr_eq(unnamed, other))
    {
        let again = Arc::new(Unnamed {
            body: unnamed.body.clone(),
            settings: backend.applied.clone(),
            effects: unnamed.effects.clone(),
        });
        client.unnamed = Some(again.clone());
        backend.unnamed = Some(again);
    }
}

/// Whether a setting was set behind its RESET: the text says so, or the server has it at another
/// value than the one that a RESET gives.
fn set_after_all<S: Socket>(backend: &Backend<S>, set_again: &[Box<[u8]>], name: &[u8]) -> bool {
    set_again.iter().any(|again| again.eq_ignore_ascii_case(name))
        || (backend.parameters.get(name).is_some() && backend.applied.get(name).is_some())
}

/// Whether the server closes the connection behind this error.
fn is_fatal(body: &[u8]) -> bool {
    crate::wire::error::field(body, b'V').is_some_and(|severity| severity != b"ERROR")
}

/// Closes the books of what was out of the ordinary. Returns the ParameterStatus messages that
/// the client is due.
fn settle_extra<S: Socket>(client: &mut Client<S>, backend: &mut Backend<S>) -> Vec<u8> {
    let discarded = client.extra.as_ref().is_some_and(|extra| extra.discarded);
    let failed = client.failed && !discarded;
    let mut told = Vec::new();
    if failed {
        client.remember_statements();
    }
    let Some(extra) = &mut client.extra else { return told };
    extra.forgotten = None;
    let forgetting = std::mem::take(&mut extra.forgetting);
    let resetting = std::mem::take(&mut extra.resetting);
    let set_again = std::mem::take(&mut extra.set_again);
    let discarding = extra.discarding.take();
    extra.discarded = false;
    // In a transaction the UNLISTEN may still be rolled back: the pin stays.
    let unlistened = std::mem::take(&mut extra.unlistening)
        && !failed
        && backend.status == TransactionStatus::Idle;
    if failed && let Some(pins) = discarding {
        client.pins = client.pins.union(pins);
    }
    if unlistened {
        client.pins.remove(Part::Listen);
    }
    if forgetting && !failed {
        backend.uncertain = false;
    }
    if client.is_native() {
        client.settle();
        return told;
    }
    let believed = std::mem::take(&mut client.desired);
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
                for (name, _) in backend.applied.iter() {
                    if backend.parameters.get(name).is_none() {
                        applied.remove(name);
                    }
                }
                desired = SettingsBuilder::from(&client.record.start);
                for (name, value) in &backend.parameters.pairs {
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
    for (name, own) in &backend.parameters.pairs {
        let value =
            |settings: &Settings| settings.get(name).map_or_else(|| own.to_vec(), <[u8]>::to_vec);
        let now = value(&client.desired);
        if resetting != Resetting::No && now != value(&believed) {
            build::parameter_status(&mut told, name, &now);
        }
    }
    client.settle();
    told
}

impl<S: Socket> Engine<S> {
    /// Reads from a client's backend as long as it has something and the client takes it.
    pub(super) fn read_backend<H: Host<S>>(&mut self, host: &mut H, slot: Slot, now: Time) {
        let mut buffer = std::mem::take(&mut self.server_input);
        if buffer.is_empty() {
            buffer = vec![0; limits::READ_BYTES].into_boxed_slice();
        }
        let mut out = std::mem::take(&mut self.to_client);
        while self.read_backend_once(host, slot, &mut buffer, &mut out, now) {}
        out.clear();
        if out.capacity() > 4 * limits::READ_BYTES {
            out = Vec::new();
        }
        self.to_client = out;
        self.server_input = buffer;
    }

    /// One read from a client's backend. Whether another may follow.
    fn read_backend_once<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        buffer: &mut [u8],
        out: &mut Vec<u8>,
        now: Time,
    ) -> bool {
        let Some(client) = self.clients.get_mut(slot) else { return false };
        let Some(mut backend) = client.backend.take() else { return false };
        if client.output.len() > limits::OUTPUT_HIGH_BYTES {
            backend.readable = true;
            client.backend = Some(backend);
            return false;
        }
        let kept = backend.input.len();
        if kept + 4096 > buffer.len() {
            return self.read_long_message(host, slot, backend, now);
        }
        buffer[..kept].copy_from_slice(&backend.input);
        let read = match backend.socket.read(&mut buffer[kept..]) {
            Ok(read) if read > 0 => read,
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                backend.readable = false;
                client.backend = Some(backend);
                return false;
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {
                client.backend = Some(backend);
                return true;
            }
            Ok(_) | Err(_) => {
                client.backend = Some(backend);
                self.backend_failed(host, slot, "server closed the connection", now);
                return false;
            }
        };
        backend.input.clear();
        // A short read says that there are no more bytes, not that the end is not behind them.
        let drained = kept + read < buffer.len() && !backend.hung_up;
        backend.readable = !drained;
        out.clear();
        let was_full = backend.is_full() || client.held;
        let relayed = Relay {
            backend: &mut backend,
            client: Some(client),
            bytes: &buffer[..kept + read],
            out,
        }
        .run(now);
        backend.input.extend_from_slice(&buffer[relayed.consumed..kept + read]);
        let pool = client.pool;
        let stats = self.pools[pool as usize].pool.stats.of(self.id);
        stats.sent.add(read as u64);
        if relayed.queries > 0 {
            stats.queries.add(relayed.queries);
            stats.query.record(now.micros_since(client.since));
            if relayed.transactions > 0 {
                stats.transactions.add(relayed.transactions);
                stats.transaction.record(now.micros_since(client.transaction_since));
                client.transaction_since = now;
            }
            // What is outstanding behind it begins now, if anything is.
            client.since = now;
        }
        let quiet = backend.expected.is_empty();
        if quiet {
            backend.since = now;
        }
        backend.cancel_if_due(host, self.id);
        let done = relayed.broken.is_none()
            && relayed.goodbye.is_none()
            && backend.is_at_rest()
            && !client.is_pinned();
        if done {
            // The next waiter first: the server is the slowest of all.
            client.state = super::message::ClientState::Idle;
            client.since = now;
            self.give_back(host, backend, now);
        } else {
            client.backend = Some(backend);
        }
        self.answer(host, slot, out, &buffer[relayed.run.clone()], now);
        if let Some(reason) = relayed.broken {
            self.backend_failed(host, slot, reason, now);
            return false;
        }
        if let Some(error) = relayed.goodbye {
            self.say_goodbye(host, slot, &error, now);
            return false;
        }
        if self.clients.get(slot).is_some_and(|client| {
            // A copy waits for data, and one that has read a Sync has ignored it: nothing comes.
            client.is_leaving()
                && client.backend.as_ref().is_none_or(|b| b.syncs_outstanding == 0 || b.copying_in)
        }) {
            self.close_client(host, slot, "client said goodbye", now);
            return false;
        }
        if relayed.heal {
            self.heal(host, slot, now);
        }
        if self.draining.is_some() {
            self.drain_if_idle(host, slot, now);
        }
        if done || was_full {
            self.after_answer(host, slot, now);
        }
        if quiet || relayed.queries > 0 {
            self.rearm_if_limited(slot, now);
        }
        !done && !drained
    }

    /// A message to be looked at whole is longer than the shared buffer: it is read into its own.
    fn read_long_message<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        backend: Box<Backend<S>>,
        now: Time,
    ) -> bool {
        let mut long = vec![0; LOOKED_AT_BYTES_MAX + 2 * limits::READ_BYTES];
        if let Some(client) = self.clients.get_mut(slot) {
            client.backend = Some(backend);
        }
        let mut out = Vec::new();
        self.read_backend_once(host, slot, &mut long, &mut out, now)
    }

    /// Goes on with a client whose answers have come.
    fn after_answer<H: Host<S>>(&mut self, host: &mut H, slot: Slot, now: Time) {
        if let Some(client) = self.clients.get(slot)
            && client.state != super::message::ClientState::Closing
            && (client.readable || !client.input.is_empty())
        {
            self.resume_client(host, slot, now);
        }
    }

    /// Reads from a backend that has no client.
    pub(super) fn read_tidied<H: Host<S>>(&mut self, host: &mut H, place: Slot, now: Time) {
        let Some(resident) = self.resident.get_mut(place) else { return };
        let Holder::Engine(_) = &resident.holder else { return };
        let Holder::Engine(mut backend) = std::mem::replace(&mut resident.holder, Holder::Pool)
        else {
            return;
        };
        let mut buffer = vec![0; limits::READ_BYTES + LOOKED_AT_BYTES_MAX];
        let mut out = Vec::new();
        // What its client has not been given comes first.
        let mut filled = backend.input.len();
        buffer[..filled].copy_from_slice(&backend.input);
        loop {
            let bytes = &buffer[..filled];
            let relayed =
                Relay { backend: &mut backend, client: None, bytes, out: &mut out }.run(now);
            backend.input.clear();
            backend.input.extend_from_slice(&buffer[relayed.consumed..filled]);
            if let Some(reason) = relayed.broken {
                self.close_backend(host, backend, reason, now);
                return;
            }
            if relayed.made_query_failed {
                self.close_backend(host, backend, "it could not be tidied", now);
                return;
            }
            let kept = backend.input.len();
            buffer.copy_within(relayed.consumed..filled, 0);
            let read = match backend.socket.read(&mut buffer[kept..]) {
                Ok(read) if read > 0 => read,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => 0,
                Ok(_) | Err(_) => {
                    backend.gone = true;
                    self.close_backend(host, backend, "server closed the connection", now);
                    return;
                }
            };
            filled = kept + read;
        }
        backend.readable = false;
        backend.cancel_if_due(host, self.id);
        if backend.copying_in && backend.fail_copy().is_err() {
            self.close_backend(host, backend, "server closed the connection", now);
            return;
        }
        self.tidy_on(host, backend, now);
    }
}
