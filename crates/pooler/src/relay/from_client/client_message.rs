//! One message of a client that has a backend: how it is changed on its way.
//!
//! Clients that share backends have their names of prepared statements replaced by the shared ones;
//! the effects of a statement on the session are recorded before it is sent. Bodies that cannot be
//! read are passed on: the server gives the right error, and their length keeps the framing.

pub(crate) mod portal;
pub(crate) mod written;

use std::sync::Arc;

use crate::parts::functions::census::functions::Functions;
use crate::parts::settings::applied::Role;
use crate::parts::settings::pending_reset::PendingReset;
use crate::parts::settings::restore;
use crate::parts::settings::restore::Edit;
use crate::parts::settings::timeouts::without_short_timeout;
use crate::parts::statements::client_names::Deallocated;
use crate::parts::statements::shared::Unnamed;
use crate::queries::table::Queries;
use crate::queries::tracking::Tracking;
use crate::relay::backend::Backend;
use crate::relay::client::Client;
use crate::relay::effects::{Effect, Effects, Unusual};
use crate::relay::from_client::kinds::bad_length;
use crate::relay::from_client::passage::Passage;
use crate::relay::halt::Halt;
use crate::relay::pending_session::StreamingQuery;
use crate::relay::request_queue::Request;
use crate::relay::socket::Socket;
use crate::session::commands::{begins_with_any, draws_nothing};
use crate::session::part::{Part, PartSet};
use crate::session::scan::{Findings, KnownTexts, ScanOptions, Scanner, SetValue, Verb, scan};
use crate::session::settings::SettingsBuilder;
use crate::time::Time;
use crate::wire::error::{ClientError, SqlState};
use crate::wire::frame::{HEADER_BYTES, Header};
use crate::wire::{TransactionStatus, build, frame, frontend};

/// Whether a FunctionCall (by its body, or the start of it) calls any other function than those on
/// large objects, for which libpq uses this message. Only the oids of pg_proc.dat are known: they
/// never change.
fn calls_unknown_function(body: &[u8]) -> bool {
    // lo_create, lo_open, lo_close, loread, lowrite, lo_lseek, lo_creat, lo_tell, lo_unlink,
    // lo_truncate, lo_lseek64, lo_tell64, lo_truncate64
    const LARGE_OBJECTS: [u32; 13] =
        [715, 952, 953, 954, 955, 956, 957, 958, 964, 1004, 3170, 3171, 3172];
    frame::take_u32(body).is_some_and(|(oid, _)| !LARGE_OBJECTS.contains(&oid))
}

/// Whether a text is nothing but SET LOCAL ... TO DEFAULT.
fn sets_a_local_default(findings: &Findings) -> bool {
    matches!(
        findings.single().map(|single| &single.verb),
        Some(Verb::Set { local: true, value: SetValue::Default, .. })
    )
}

/// One message of a client that has a backend.
pub(crate) struct ClientMessage<'a, 'b, S: Socket> {
    pub(crate) client: &'a mut Client<S>,
    pub(crate) backend: &'a mut Backend<S>,
    pub(crate) passage: &'a mut Passage<'b>,
    pub(crate) header: Header,
    pub(crate) body: &'a [u8],
    pub(crate) hash_key: crate::hash::Keyed,
    pub(crate) serial: u32,
    pub(crate) stats: &'a crate::lending::LoopStats,
    pub(crate) known: &'a mut KnownTexts,
    pub(crate) queries: &'a mut Queries,
    pub(crate) tracking: Tracking,
    pub(crate) now: Time,
}

impl<S: Socket> ClientMessage<'_, '_, S> {
    /// The client's unnamed statement, for this message.
    pub(crate) fn unnamed(&self) -> Option<&Arc<Unnamed>> {
        self.backend.unnamed_of(self.client)
    }

    /// Whether all of the message is here.
    pub(crate) fn is_whole(&self) -> bool {
        self.body.len() == self.header.body
    }

    /// Passes the message on unchanged; the rest of it streams.
    pub(crate) fn pass(&mut self) {
        self.passage.pass(HEADER_BYTES + self.body.len());
        self.backend.to_server.leave_open(self.header.body - self.body.len());
    }

    /// Passes on a message whose body cannot be read: the server gives the right error, and its
    /// length keeps the framing.
    pub(crate) fn malformed(&mut self, expect: Request) {
        self.pass();
        self.backend.request(expect);
    }

    /// Passes the message on with another start: `new` in place of the first `old` bytes of the
    /// body.
    pub(crate) fn pass_with(
        &mut self,
        old: usize,
        new: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), Halt> {
        self.passage.cut(self.backend)?;
        let out = &mut self.passage.out;
        let start = out.len();
        out.extend_from_slice(&[self.header.kind, 0, 0, 0, 0]);
        new(out);
        let length = out.len() - start - 1 + self.header.body - old;
        let Ok(length) = u32::try_from(length) else {
            return Err(Halt::Refused(bad_length(self.header.kind)));
        };
        out[start + 1..start + HEADER_BYTES].copy_from_slice(&length.to_be_bytes());
        self.passage.skip(HEADER_BYTES + old);
        self.passage.pass(self.body.len() - old);
        self.backend.to_server.leave_open(self.header.body - self.body.len());
        Ok(())
    }

    /// Sends what must precede the first message of a query.
    pub(crate) fn open(&mut self, now: Time) -> Result<(), Halt> {
        self.backend.known.learn_functions(&self.backend.pool);
        let Some(ends) = self.leaves_role_out() else { return self.open_as_wanted(now) };
        let mut without = SettingsBuilder::from(&self.client.session.desired);
        without.remove(b"role");
        let without = self.backend.pool.interner().share(without.build());
        let wanted = std::mem::replace(&mut self.client.session.desired, without);
        let opened = self.open_as_wanted(now);
        self.client.session.desired = wanted;
        if opened.is_ok() {
            self.backend.session.role = Role::LeftOut { ends };
        }
        opened
    }

    fn open_as_wanted(&mut self, now: Time) -> Result<(), Halt> {
        if !self.backend.requests.is_empty() {
            return if self.backend.ahead.waits() {
                self.wait()
            } else {
                self.hold_for_sql_statements()
            };
        }
        self.backend.ahead.end();
        self.client.times.begin(now);
        self.backend.counting.begin();
        if self.backend.requests.is_in_pipeline() {
            return Ok(());
        }
        if self.backend.from_server.status() == TransactionStatus::Idle {
            self.client.times.begin_transaction(now);
        }
        if self.backend.from_server.status() == TransactionStatus::Failed
            || self.client.serving.is_exclusive()
        {
            return Ok(());
        }
        if self.backend.must_lift_for(&self.client.session.desired)
            && !self.client.is_session_mode()
        {
            self.lift_first()?;
        }
        if self.backend.owner.is_due() {
            self.passage.cut(self.backend)?;
            let mptcp = self.client.socket.mptcp();
            self.backend.send_identity(&self.client.record.about, mptcp, &mut self.passage.out);
        }
        self.open_functions()?;
        let go_within = self.settings_fit_within();
        if !go_within {
            self.open_settings()?;
        }
        if self.backend.session.is_applying() && !self.fails_in_failed_block() {
            // It would end the block that keeps it from running if what is in it fails.
            self.backend.ahead.begin();
            return self.wait();
        }
        if self.client.has_missed_names() {
            self.bring_missed_names()?;
        }
        self.open_sql_statements()?;
        self.open_sequences()?;
        if self.backend.from_server.status() == TransactionStatus::Idle
            && self.client.shows_channels_before(|| self.may_begin_block())
        {
            self.lift_first()?;
            self.passage.cut(self.backend)?;
            self.client.show_channels(self.backend, &mut self.passage.out);
        }
        if go_within && !self.settings_go_within()? {
            self.open_settings()?;
        }
        if !self.client.is_session_mode()
            && self.backend.session.applied != self.client.session.desired
        {
            self.passage.cut(self.backend)?;
            self.backend.apply_timeout(&self.client.session.desired, &mut self.passage.out);
        }
        // Any command sent here would end the transaction that the settings are part of.
        Ok(())
    }

    /// Ensures that functions keep no plans of clients with other settings. (A client that keeps
    /// its backend finds no others there. One that has statements of PREPARE there keeps the plans:
    /// the statements would be analysed again as well.)
    fn open_functions(&mut self) -> Result<(), Halt> {
        if self.client.is_session_mode() {
            self.backend.session.mix_function_plans();
            return Ok(());
        }
        if self.backend.from_server.status() == TransactionStatus::Idle
            && !self.client.is_pinned()
            && !self.backend.has_function_plans_of(&self.client.session.desired)
            && !self.has_sql_statements_there()
        {
            self.lift_first()?;
            self.passage.cut(self.backend)?;
            self.backend.discard_plans(&self.client.session.desired, &mut self.passage.out);
        }
        Ok(())
    }

    /// Whether the server has statements that the client has prepared by SQL.
    fn has_sql_statements_there(&self) -> bool {
        let own = self.client.sql_statements();
        !own.is_empty() && self.backend.has_sql_of(own)
    }

    /// Sends the settings that the backend lacks, each query in a transaction of its own.
    fn open_settings(&mut self) -> Result<(), Halt> {
        if self.backend.session.applied == self.client.session.desired {
            return Ok(());
        }
        self.passage.cut(self.backend)?;
        if self.client.is_session_mode() {
            self.backend.apply_beside_unnamed(&self.client.session.desired, &mut self.passage.out);
            self.backend.ahead.begin();
            return self.wait();
        }
        self.lift_first()?;
        let first = without_short_timeout(&self.client.session.desired);
        self.backend.apply_settings(&first, &mut self.passage.out);
        Ok(())
    }

    /// Whether the current message certainly runs nothing in a failed transaction block: its text
    /// begins with a word that does not end one (`IsTransactionExitStmt`, postgres.c).
    fn fails_in_failed_block(&self) -> bool {
        let text = match self.header.kind {
            frontend::QUERY => Some(self.body),
            frontend::PARSE => frame::take_string(self.body).map(|(_, rest)| rest),
            frontend::BIND => frame::take_string(self.body)
                .and_then(|(_, rest)| frame::take_string(rest))
                .and_then(|(name, _)| match self.client.statement(name) {
                    Some(named) => Some(&*named.statement.body),
                    None if name.is_empty() => self.unnamed().map(|unnamed| &*unnamed.body),
                    None => None,
                }),
            _ => None,
        };
        const ENDING: [&[u8]; 5] = [b"abort", b"commit", b"end", b"prepare", b"rollback"];
        text.map(<[u8]>::trim_ascii_start).is_some_and(|text| {
            text.first().is_some_and(u8::is_ascii_alphabetic) && !begins_with_any(text, &ENDING)
        })
    }

    /// Waits while something in flight must end before any message of the client's goes on.
    fn wait_for_turn(&mut self) -> Result<(), Halt> {
        if self.backend.prepared.replay.is_healing() {
            return self.wait();
        }
        if (self.client.is_unsettled() || self.client.listens()) && !self.becomes_ours() {
            self.hold()?;
        }
        let session = &self.backend.session;
        if (session.is_applying() || session.within.is_some() || session.role != Role::AsWanted)
            && self.backend.requests.owes_client_ready()
        {
            // One query or pipeline fails with the settings, or makes them fail; a second one may
            // end the block.
            return self.wait();
        }
        if self.backend.requests.is_unbroken_for_long() {
            // An endless pipeline must not keep the backend from waiters.
            if self.backend.requests.is_empty() {
                self.backend.requests.break_run();
            } else if !self.client.is_pinned() && self.backend.pool.anybody_waits() {
                self.hold()?;
            }
        }
        Ok(())
    }

    /// A call of a function by its oid.
    fn function_call(&mut self) -> Result<(), Halt> {
        if let Some((function, _)) = frame::take_u32(self.body)
            && self.backend.is_hand_over(function)
        {
            // The server would reject it, and end a session that others use.
            return Err(Halt::Refused(ClientError::fatal(
                SqlState::INSUFFICIENT_PRIVILEGE,
                "hawser.hand_over() is not for clients",
            )));
        }
        if calls_unknown_function(self.body) {
            self.before(&Effects::of_unknown_function(), false)?;
        }
        self.pass();
        self.backend.request(Request::Call);
        Ok(())
    }

    /// Processes the message.
    pub(crate) fn message(&mut self) -> Result<(), Halt> {
        self.wait_for_turn()?;
        let message = self.passage.current(HEADER_BYTES + self.body.len());
        let whole = self.is_whole();
        self.backend.prepared.replay.record(message, whole);
        if self.backend.requests.is_skipping_to_sync() && self.header.kind != frontend::SYNC {
            // The server would read it and ignore it (`ignore_till_sync`, postgres.c), so its
            // effects on names and settings must not be recorded either.
            return self.drop_message();
        }
        if self.backend.requests.is_copying_in() {
            self.judge_copy();
        }
        if self.refuse_by_rule()? {
            return Ok(());
        }
        if self.tracking.has_spans && matches!(self.header.kind, frontend::QUERY | frontend::PARSE)
        {
            self.backend.lending.belongs_to_span_in(self.body);
        }
        match self.header.kind {
            frontend::QUERY => {
                self.query()?;
                self.count_query();
            }
            frontend::PARSE => {
                self.parse()?;
                self.count_parse();
            }
            frontend::BIND => {
                self.bind()?;
                self.count_bind();
            }
            frontend::DESCRIBE => self.describe()?,
            frontend::CLOSE => self.close()?,
            frontend::EXECUTE => {
                self.pass();
                self.backend.request(Request::Execute);
                self.count_execute();
                if self.client.pending_session.is_some() {
                    self.after_execute()?;
                }
            }
            frontend::SYNC => {
                if self.becomes_ours() && self.backend.requests.give_sync_to_client() {
                    return self.drop_message();
                }
                self.pass();
                if !self.backend.requests.is_sync_of_copy() {
                    self.backend.request(Request::Sync);
                }
            }
            frontend::FLUSH => {
                self.pass();
                if self.header.body > 0 && !self.backend.requests.is_read_by_copy() {
                    self.backend.request(Request::MalformedFlush);
                }
            }
            frontend::FUNCTION_CALL => self.function_call()?,
            frontend::COPY_DATA => self.copy_input(false)?,
            _ => self.copy_input(true)?,
        }
        self.note_drawing();
        if !self.is_of_copy() {
            self.backend.requests.follow_copy();
        }
        Ok(())
    }

    /// Makes the current message wait until all earlier queries and pipelines are answered: its
    /// meaning depends on their outcome.
    ///
    /// The answers come without further input, except for a copy that wants data: the server then
    /// judges whatever the client sends next. Any other message shows that the server has refused
    /// the copy, or will.
    pub(crate) fn hold(&mut self) -> Result<(), Halt> {
        let comes = self.backend.requests.ends_by_itself() && !self.client.serving.is_exclusive();
        if comes {
            return self.wait();
        }
        Ok(())
    }

    /// Makes the current message wait for an answer that is still to come.
    pub(crate) fn wait(&mut self) -> Result<(), Halt> {
        self.client.serving.held = true;
        // If the backend were given back meanwhile, another client could remove what was sent for
        // the message.
        let requests = &self.backend.requests;
        self.backend.ahead.wait(!requests.is_empty() && !requests.owes_client());
        Err(Halt::Full)
    }

    /// Makes a LISTEN wait until the listening connection listens on its channels, too (see
    /// [`crate::parts::listen::clients`]).
    pub(crate) fn hold_for_listener(&mut self, unusual: &Unusual) -> Result<(), Halt> {
        if !self.client.joins_ahead(unusual, self.backend) {
            return Ok(());
        }
        self.backend.prepared.replay.forget(); // it has the message already, which is processed again
        Err(Halt::Full)
    }

    /// Makes the message wait while it is not known whether its name was given, or removed.
    pub(crate) fn hold_for_name(&mut self, name: &[u8]) -> Result<(), Halt> {
        if !self.backend.requests.owes_ready() {
            return Ok(());
        }
        let since = match name.is_empty() {
            true => Some(self.backend.prepared.unnamed.since()),
            false => self.client.name_changes_in(name),
        };
        if since.is_some_and(|since| self.backend.requests.is_in_doubt(since)) {
            return self.wait();
        }
        Ok(())
    }

    /// Discards the message, and the part of it that has not come yet.
    pub(crate) fn drop_message(&mut self) -> Result<(), Halt> {
        self.passage.cut(self.backend)?;
        self.passage.skip(HEADER_BYTES + self.body.len());
        let rest = self.header.body - self.body.len();
        if rest > 0 {
            self.client.pending_session().dropped.rest_of_message(rest);
        }
        Ok(())
    }

    /// A copy wants data. A client that sends another message without ending the copy expects the
    /// server to have refused the data: then the server reads on, and answers a Sync that follows.
    /// (If not, the server ends the connection: `CopyGetData`, copyfromparse.c.)
    fn judge_copy(&mut self) {
        if !self.is_of_copy() {
            self.backend.requests.take_copy_as_failed();
        }
    }

    /// Whether a copy may read the current message.
    fn is_of_copy(&self) -> bool {
        matches!(
            self.header.kind,
            frontend::COPY_DATA
                | frontend::COPY_DONE
                | frontend::COPY_FAIL
                | frontend::SYNC
                | frontend::FLUSH
        )
    }

    fn copy_input(&mut self, ends: bool) -> Result<(), Halt> {
        if self.backend.requests.is_empty() && !self.backend.requests.is_copying_in() {
            // The server would read and ignore it; that is no reason to use a backend.
            return self.drop_message();
        }
        self.pass();
        self.backend.requests.push_copy_input(ends);
        Ok(())
    }

    pub(crate) fn scan_options(&self) -> ScanOptions {
        self.client.scan_options(self.backend.session.own.reading)
    }

    /// Whether an earlier message that is not answered yet may change how texts are read.
    fn may_be_reread(&self) -> bool {
        self.backend.session.texts.reread
            && (self.backend.requests.is_in_pipeline() || self.backend.requests.owes_client())
    }

    /// The same, for a text that can be read in more than one way.
    pub(crate) fn is_in_doubt(&self, text: &[u8]) -> bool {
        self.may_be_reread() && (memchr::memchr(b'\\', text).is_some() || !text.is_ascii())
    }

    /// The effects of a text that is read by the known settings.
    pub(crate) fn effects_of(&self, text: &[u8]) -> Effects {
        let reported = |name: &[u8]| self.backend.session.own.parameters.get(name).is_some();
        let effects = Effects::of_text(text, self.scan_options(), reported);
        self.backend.with_functions(text, effects)
    }

    /// The effects of a text that may be read in several ways: the sum of all.
    pub(crate) fn effects_in_doubt(&self, text: &[u8]) -> Effects {
        let [one, other] = [true, false].map(|standard_conforming_strings| {
            // Characters of an unknown encoding cannot be read.
            let options = ScanOptions { standard_conforming_strings, unsafe_encoding: true };
            let reported = |name: &[u8]| self.backend.session.own.parameters.get(name).is_some();
            Effects::of(&scan(text, options), reported)
        });
        self.backend.with_functions(text, one.either(other))
    }

    /// The effects of a Query's text, and the findings if they are certain. `None`: no effects.
    fn read_query(&mut self, text: &[u8]) -> Result<Option<(Effects, Option<Findings>)>, Halt> {
        if self.is_in_doubt(text) {
            self.hold()?;
            return Ok(Some((self.effects_in_doubt(text), None)));
        }
        let options = self.scan_options();
        let plain = options == ScanOptions::default() && self.known.is_plain(text);
        if plain && self.backend.effects_of_functions(text).is_none_or(|effects| effects.is_none())
        {
            return Ok(None);
        }
        let findings = scan(text, options);
        let reported = |name: &[u8]| self.backend.session.own.parameters.get(name).is_some();
        let effects = Effects::of(&findings, reported).and_of_block(text, &findings, reported);
        Ok(Some((self.backend.with_functions(text, effects), Some(findings))))
    }

    fn query(&mut self) -> Result<(), Halt> {
        let mut edits = Vec::new();
        let draws;
        let mut forgets_statements = false;
        if self.is_whole() {
            let Some((text, [])) = frame::take_string(self.body) else {
                self.malformed(Request::Query);
                self.backend.known.drawn.note(true);
                return Ok(());
            };
            draws = self.backend.known.drawn.by_client() || !draws_nothing(text);
            let read = self.read_query(text)?;
            if let Some((_, Some(findings))) = &read
                && self.client.has_start_values()
            {
                edits = restore::values_for_nulls(findings, &self.client.record.start);
            }
            if let Some((effects, findings)) = read
                && !effects.is_none()
            {
                forgets_statements = effects.forgets_statements();
                if self.before_query(text, &effects, findings, &mut edits)? {
                    return Ok(());
                }
            }
        } else {
            // The rest of the text is not known until it has been sent.
            draws = true;
            self.begin_scan()?;
        }
        let unsynced = self.backend.requests.is_in_pipeline();
        let is_ignored = self.backend.requests.is_skipping_to_sync();
        self.backend.displace_unnamed(self.client);
        self.pass_query(edits)?;
        if forgets_statements {
            self.backend.last_query_takes_all(self.client);
        }
        if unsynced {
            // It may be ignored, and then removes nothing.
            self.backend.prepared.unnamed.changes_in(self.backend.requests.pipeline() - 1);
            if self.backend.is_left_started_by_mixed_pipelines() {
                self.backend.lending.spoil("a simple query stood in its client's pipeline");
            }
        }
        if !is_ignored {
            self.backend.prepared.unnamed.taken_by_query();
        }
        self.backend.known.drawn.note(draws);
        Ok(())
    }

    /// Waits for what these effects depend on: the settings under which it prepares, and how it
    /// changes the books, by the outcome of earlier messages.
    pub(crate) fn hold_for_effects(&mut self, effects: &Effects) -> Result<(), Halt> {
        if !effects.prepares.is_empty() || effects.unusual.is_some() {
            self.hold()?;
        }
        effects.unusual.as_ref().map_or(Ok(()), |unusual| self.hold_for_listener(unusual))
    }

    /// Sends what must precede a Query with effects, finds what is written into its text, and
    /// records its effects. Returns whether the Query has been answered with that.
    fn before_query(
        &mut self,
        text: &[u8],
        effects: &Effects,
        findings: Option<Findings>,
        edits: &mut Vec<Edit>,
    ) -> Result<bool, Halt> {
        self.hold_for_effects(effects)?;
        if let Some(unusual) = &effects.unusual {
            self.hold_for_vacancy(unusual)?;
            if self.answers_deallocate(unusual)? {
                return Ok(true);
            }
        }
        if self.bring_own_names(text, effects)? {
            return Ok(true);
        }
        let mut restored = false;
        if effects.unusual.is_some() {
            // As the only statement it merely warns; with more after it, it would not.
            let warns = findings.as_ref().is_some_and(sets_a_local_default)
                && self.backend.from_server.status() == TransactionStatus::Idle
                && !self.backend.requests.is_in_pipeline();
            let start = &self.client.record.start;
            if let Some(findings) = findings.filter(|_| !warns)
                && let Some(all) = restore::values_after_resets(&findings, start)
            {
                restored = true;
                if self.client.has_start_values() {
                    edits.extend(all);
                }
                if self.client.listens() {
                    edits.extend(self.client.marks(&findings, self.backend));
                }
            }
        }
        self.before(effects, restored)?;
        self.backend.foresee(text, effects);
        self.begin_again(text, edits)?;
        Ok(false)
    }

    /// Answers the current Query, if it is a DEALLOCATE of statements that the server has under
    /// other names.
    fn answers_deallocate(&mut self, unusual: &Unusual) -> Result<bool, Halt> {
        if let Some(name) = &unusual.deallocates
            && !self.client.is_session_mode()
            && self.client.statement(name).is_some()
        {
            return self.answer_deallocate(&Deallocated::One(name.clone()));
        }
        if unusual.deallocates_all
            && !self.client.has_statements_of_its_own_there()
            && !self.backend.is_classic()
        {
            return self.answer_deallocate(&Deallocated::All);
        }
        Ok(false)
    }

    /// Begins to scan the text of a streaming Query.
    fn begin_scan(&mut self) -> Result<(), Halt> {
        self.clear_catalog()?;
        self.before_sequences_unseen()?;
        let in_doubt = self.may_be_reread();
        if in_doubt {
            self.hold()?;
        }
        let mut scanner = Scanner::new(self.scan_options());
        let functions = self.backend.known.functions.as_deref();
        if in_doubt || functions.is_some_and(Functions::are_named) {
            scanner.doubt();
        }
        let reported = self.backend.known.session_report.is_some();
        let reader = functions.and_then(|functions| functions.reader(reported));
        let mut streaming = Box::new(StreamingQuery::new(scanner, reader));
        streaming.feed(self.body);
        self.client.pending_session().streaming = Some(streaming);
        Ok(())
    }

    /// Passes the current Query on, with what is written into its text.
    fn pass_query(&mut self, mut edits: Vec<Edit>) -> Result<(), Halt> {
        if edits.is_empty() {
            self.pass();
            self.backend.request(Request::Query);
            return Ok(());
        }
        edits.sort_by_key(Edit::start);
        let text = &self.body[..self.body.len() - 1];
        self.pass_with(text.len(), |out| restore::write_edited(text, &edits, out))?;
        let utf8 = self.reads_utf8();
        self.backend.request_edited(text, &edits, utf8);
        Ok(())
    }

    /// Sends what must precede a statement with effects, and records them.
    pub(crate) fn before(&mut self, effects: &Effects, restored: bool) -> Result<(), Halt> {
        let with_values = self.effects_of_bound(effects);
        let effects = with_values.as_ref().unwrap_or(effects);
        if effects.may(Effect::Notifies) && self.client.must_wait_to_notify(self.backend) {
            self.backend.prepared.replay.forget(); // it has the message already, which is processed again
            return Err(Halt::Full);
        }
        self.before_catalog(effects)?;
        if effects.may(Effect::ReadsSequences) {
            self.before_sequences()?;
        }
        self.client.record_effects(self.backend, effects, restored);
        Ok(())
    }

    /// Ensures that a statement which may look at the server's prepared statements finds none of
    /// other clients. Once is enough: the client keeps the backend then.
    pub(crate) fn before_catalog(&mut self, effects: &Effects) -> Result<(), Halt> {
        let looks = effects.pins.contains(Part::SessionCatalog);
        let looked = self.client.session.pins.contains(Part::SessionCatalog);
        if looks && (!looked || !self.backend.requests.is_in_pipeline()) {
            self.clear_catalog()?; // also the client's own shared ones, once it keeps the backend
        }
        if looks && !looked && !self.backend.is_classic() {
            self.client.session.pins.insert(Part::SessionCatalog);
            self.backend.mark_unverified(PartSet::of(&[Part::SessionCatalog])); // it ends without a command
        }
        if looks {
            self.before_channels()?;
        }
        Ok(())
    }

    /// Ensures that `pg_listening_channels()` shows what the client listens on.
    pub(crate) fn before_channels(&mut self) -> Result<(), Halt> {
        if self.client.listens() && self.client.looks_at_channels() {
            self.hold()?;
            self.passage.cut(self.backend)?;
            self.client.show_channels(self.backend, &mut self.passage.out);
            self.backend.prepared.replay.forget();
        }
        Ok(())
    }

    pub(crate) fn clear_catalog(&mut self) -> Result<(), Halt> {
        if self.client.is_session_mode() || !self.backend.has_statements_of_others() {
            return Ok(());
        }
        self.hold()?;
        self.passage.cut(self.backend)?;
        let own = [Part::SqlStatement, Part::ProtocolStatement, Part::UnnamedStatement];
        // A DISCARD ALL in flight may fail, or not run at all.
        let discarding = self.client.reset_under_way().map_or(PartSet::EMPTY, PendingReset::ends);
        let pins = self.client.session.pins.union(discarding);
        let keeps =
            own.iter().any(|part| pins.contains(*part)) || !self.client.sql_statements().is_empty();
        self.backend.deallocate_all(keeps, &mut self.passage.out);
        self.backend.prepared.replay.forget();
        Ok(())
    }

    /// Answers a DEALLOCATE of statements that the server has under other names. `false` if only
    /// the server can answer it, with its error.
    fn answer_deallocate(&mut self, deallocated: &Deallocated) -> Result<bool, Halt> {
        if self.backend.requests.owes_client()
            || self.backend.requests.is_in_pipeline()
            || self.backend.from_server.status() == TransactionStatus::Failed
        {
            return Ok(false);
        }
        self.client.deallocate(deallocated, self.backend.from_server.status());
        self.passage.cut(self.backend)?;
        self.passage.skip(HEADER_BYTES + self.body.len());
        // As any simple query it removes the unnamed statement, which only the server knows here,
        // and the unnamed portal, which outlasts its pipeline in a transaction block.
        let native = self.client.session.pins.contains(Part::UnnamedStatement);
        let in_block = self.backend.from_server.status() == TransactionStatus::InTransaction;
        if native {
            build::close_statement(&mut self.passage.out, b"");
            self.backend.request(Request::Injected);
        }
        if in_block {
            build::close_portal(&mut self.passage.out, b"");
            self.backend.request(Request::Injected);
        }
        if native || in_block {
            self.passage.out.extend_from_slice(&build::SYNC);
            self.backend.request(Request::InjectedSync);
        }
        Ok(true)
    }
}
