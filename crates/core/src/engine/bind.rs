//! Binding a client to a backend: the difference between the client's desired and the backend's
//! applied settings.
//!
//! The difference is sent before the client's first message, in the same write: no round trip. It
//! is a simple query of its own (one implicit transaction: all of it or nothing), because messages
//! of the extended protocol without a Sync would be part of the client's own first transaction, and
//! undone with it. Where that is acceptable, such messages are used ([`super::within`]).
//!
//! # What it may contain
//! Values that this server has accepted before, at the client's login or in its own SET. If it
//! fails nevertheless, none of the client's messages have run, and both connections are closed: see
//! [`Backend::apply_settings`].

use std::num::NonZeroU64;
use std::sync::Arc;

use super::backend::Backend;
use super::client::Client;
use super::from_client::client_message::aborted::EMPTY;
use super::request_queue::Request;
use super::socket::Socket;
use crate::pool::ServerParameters;
use crate::pool::statement::{Statement, Unnamed};
use crate::session::aside::Aside;
use crate::session::settings;
use crate::session::settings::{Change, PlanReads, Settings, SettingsBuilder, is_custom};
use crate::wire::{TransactionStatus, build};

/// Name of the statement that changes settings within a pipeline.
const SETTING_STATEMENT: &[u8] = b"hawser_settings";

/// The changes from the one to the other. A reported setting goes back to the value reported at
/// connect, which clients have received, too: a RESET would set the value that the server's
/// configuration has by now.
pub(super) fn changes<'a>(
    before: &'a Settings,
    desired: &'a Settings,
    parameters: &'a ServerParameters,
) -> impl Iterator<Item = Change<'a>> {
    // (Values that are not ASCII were reported in the client_encoding of that moment.)
    let reported = |name: &[u8]| {
        let reported = parameters.get(name)?;
        (reported.is_ascii() && !ServerParameters::is_fixed(name)).then_some(reported)
    };
    before.diff(desired).map(move |change| match change {
        Change::Reset(name) => {
            reported(name).map_or(change, |reported| Change::Set(name, reported))
        }
        Change::Set(..) => change,
    })
}

impl<S: Socket> Backend<S> {
    /// Appends the queries that bring the backend's settings to the desired ones.
    ///
    /// A change may fail: a role that is gone or not granted any more, a value that is no longer
    /// valid, another session's `pg_cancel_backend()`. What follows must not run without it, so it
    /// is made in a [block](Self::inject_block). Only `application_name`, which decides nothing,
    /// goes without.
    pub(super) fn apply_settings(&mut self, desired: &Settings, out: &mut Vec<u8>) {
        if *self.session.applied() == *desired {
            return;
        }
        let before = self.session.apply(desired.clone());
        let parameters = self.session.parameters().clone();
        let changes: Vec<_> = changes(&before, desired, &parameters).collect();
        self.define(&changes);
        let decides = changes.iter().any(|change| change.name() != b"application_name");
        let mut text = Vec::new();
        settings::write_set_query(changes, &mut text);
        match decides {
            true => self.inject_block(b"BEGIN\0\0\0", text, out),
            false => self.inject_query(&text, out),
        }
    }

    /// Appends commands without which the client's message must not run.
    ///
    /// They are a transaction block: where one fails, the block stays open and fails what follows;
    /// `ClientMessage::open` sees to a message that would end it. `begin` itself is sent by the
    /// extended protocol, without a Sync: where it fails, the server ignores what follows
    /// (`ignore_till_sync`, postgres.c). It costs the server 1 us more than in the same Query.
    /// `begin`: the text of its Parse, up to the types of its parameters.
    fn inject_block(&mut self, begin: &[u8], mut text: Vec<u8>, out: &mut Vec<u8>) {
        self.session.begin_applying();
        build::parse(out, b"", begin);
        build::bind_plain(out, b"", b"");
        build::execute(out, b"");
        text.extend_from_slice(b";COMMIT");
        self.inject_query(&text, out);
    }

    /// Custom names among the changes stay defined on the server (see [`is_custom`]).
    pub(super) fn define(&mut self, changes: &[Change<'_>]) {
        for change in changes.iter().filter(|change| is_custom(change.name())) {
            self.note_custom(change.name());
        }
    }

    /// The server knows this custom name from now on.
    pub(super) fn note_custom(&mut self, name: &[u8]) {
        let name = self.pool.custom_name(&name.to_ascii_lowercase());
        if self.session.know_custom(name).are_too_many() {
            self.lending.spoil("its pool has too many custom settings to tell them apart");
        }
    }

    /// The same for a client whose unnamed statement is known to the server only. The client's
    /// message has to wait for the outcome.
    pub(super) fn apply_beside_unnamed(&mut self, desired: &Settings, out: &mut Vec<u8>) {
        self.set_in_pipeline(desired, Request::InjectedSettings { statement: 0 }, out);
        out.extend_from_slice(&build::SYNC);
        self.request(Request::InjectedSync);
    }

    /// Appends a simple query of Hawser's.
    pub(super) fn inject_query(&mut self, text: &[u8], out: &mut Vec<u8>) {
        build::query(out, text);
        self.request(Request::InjectedQuery);
        // A simple query removes the unnamed statement.
        self.prepared.unnamed_mut().taken_by_query();
    }

    /// Appends a question about the session.
    pub(super) fn inject_question(&mut self, text: &[u8], out: &mut Vec<u8>) {
        build::query(out, text);
        self.request(Request::InjectedQuestion);
        self.prepared.unnamed_mut().taken_by_query();
    }

    /// Appends the command that keeps currval and lastval from answering with another client's
    /// values: they give the server's own error instead. About 1 us on the server. Once for each
    /// lending, and again after an error in a pipeline, for which the server may have ignored it.
    /// `beside`: only the server knows its client's unnamed statement, which a simple query would
    /// remove.
    pub(super) fn discard_sequences(&mut self, beside: bool, out: &mut Vec<u8>) {
        const DISCARD_SEQUENCES: &[u8] = b"DISCARD SEQUENCES";
        if self.known.drawn().is_discarded() {
            return;
        }
        let alone = !self.requests.is_in_pipeline() && !beside;
        self.inject_command(DISCARD_SEQUENCES.to_vec(), beside, out);
        self.known.drawn_mut().discard(alone);
    }

    /// Appends the command that keeps functions of PL/pgSQL from using plans made under another
    /// client's settings: constants such as `'2024-01-01'::timestamptz` are read when a function is
    /// first called, and functions declared IMMUTABLE are called then.
    ///
    /// Shared statements stay, and the server analyses them again when they are executed: those
    /// that are run under other settings than those of their Parse are prepared again. DISCARD
    /// takes a snapshot, which may wait for others where transactions are deferrable by default.
    pub(super) fn discard_plans(&mut self, desired: &Settings, out: &mut Vec<u8>) {
        const BEGIN: &[u8] = b"BEGIN ISOLATION LEVEL READ COMMITTED, NOT DEFERRABLE\0\0\0";
        self.inject_block(BEGIN, b"DISCARD PLANS".to_vec(), out);
        let table = &self.pool.statements;
        self.prepared.statements_mut().mark_stale_if(|statement| {
            !table.give_alike(&statement.settings, &statement.run_under)
        });
        self.session.plan_functions_under(desired);
        self.session.own_function_plans(true);
    }

    /// Appends a command of Hawser's: within its client's pipeline, if one is in flight. `beside`:
    /// as above.
    pub(super) fn inject_command(&mut self, command: Vec<u8>, beside: bool, out: &mut Vec<u8>) {
        if self.requests.is_in_pipeline() {
            self.run_within_pipeline(command, out);
        } else if beside {
            self.run_within_pipeline(command, out);
            out.extend_from_slice(&build::SYNC);
            self.request(Request::InjectedSync);
        } else {
            self.inject_query(&command, out);
        }
    }

    /// Whether the server may have statements of other clients than its current one.
    pub(super) fn has_statements_of_others(&self) -> bool {
        self.prepared.may_have_any()
    }

    /// Appends the messages that remove all shared statements: `pg_prepared_statements` would show
    /// a client the texts of others, with the literals in them. Those that it still needs are
    /// prepared again. `keeps`: the client has statements on the server that are not shared, and
    /// stay.
    pub(super) fn deallocate_all(&mut self, keeps: bool, out: &mut Vec<u8>) {
        const DEALLOCATE_ALL: &[u8] = b"DEALLOCATE ALL";
        let alone = !self.requests.is_in_pipeline();
        let failed = self.may_have_failed() && alone;
        let names = self.prepared.statements().names();
        // If not all names are known, others' texts matter more than the client's own statements.
        if failed || (keeps && names.is_some()) {
            // A failed transaction runs no command but ROLLBACK, after which the client's
            // statements may exist. Close works.
            let all_known = names.is_some();
            let mut names = names.unwrap_or_default();
            if self.prepared.has_empty() {
                names.insert(EMPTY.into());
                self.prepared.may_have_empty(!alone);
            }
            for name in &names {
                build::close_statement(out, name);
                self.request(Request::Injected);
            }
            if alone && (failed || !names.is_empty()) {
                out.extend_from_slice(&build::SYNC);
                self.request(Request::InjectedSync);
            }
            if alone && all_known {
                self.prepared.is_certain(); // a Close does not fail
            } else {
                self.prepared.statements_mut().clear_in_doubt();
                return;
            }
        } else if self.requests.is_in_pipeline() {
            // (It may be ignored: the empty statement stays noted.)
            self.run_within_pipeline(DEALLOCATE_ALL.to_vec(), out);
            self.prepared.forget_by_sql();
            self.prepared.doubt_all();
            return;
        } else {
            self.inject_query(DEALLOCATE_ALL, out);
            self.prepared.may_have_empty(false);
            self.prepared.forget_all(); // if it fails, the connection is closed
            return;
        }
        self.prepared.statements_mut().clear();
    }

    /// Ensures that the server has a shared statement, appending what is needed.
    pub(super) fn prepare(&mut self, statement: &Arc<Statement>, out: &mut Vec<u8>) -> bool {
        if self.prepared.statements_mut().touch(statement.id) {
            return false;
        }
        let other_settings = self.must_set_for(statement);
        self.prepare_under(&statement.settings, other_settings, out, |backend, out| {
            backend.note_prepared(statement, out);
            build::parse(out, &statement.name, &statement.body);
            backend.request(Request::InjectedParse { statement: statement.id });
        });
        true
    }

    /// Whether a statement prepared under the settings in force means the same as under these.
    pub(super) fn depend_alike(&self, settings: &Settings) -> bool {
        self.pool.statements.depend_alike(self.session.applied(), settings)
    }

    /// The current transaction, if settings are in force in it that plans depend on and that are
    /// not known: what is parsed or planned in it is for its client alone. Where no other client
    /// comes after this one, all its transactions count as one.
    #[inline]
    pub(super) fn sole_transaction(&self) -> Option<NonZeroU64> {
        if !self.session.may_plan_otherwise() && self.known.unverified().is_none() {
            return None;
        }
        let reads = |name: &[u8]| self.pool.statements.read_from(PlanReads::of_results(name));
        let in_doubt = self.session.may_plan_otherwise() || self.may_have_set(reads);
        let transaction = match self.lending.spoiled() {
            Some(_) => NonZeroU64::MAX,
            None => NonZeroU64::MIN.saturating_add(self.lending.transactions()),
        };
        in_doubt.then_some(transaction)
    }

    /// Whether the settings in force are not those under which a statement is to be prepared.
    fn must_set_for(&self, statement: &Statement) -> bool {
        !self.depend_alike(&statement.settings) && !statement.reads_no_settings()
    }

    /// Appends a Parse of Hawser's as part of the client's pipeline; if it needs `other_settings`
    /// than those in force, with these set around it.
    ///
    /// In a transaction block, and after anything else in its pipeline, where a BEGIN may stand,
    /// the client may have set values that are not known yet, and with LOCAL: see [`Aside`]. The
    /// same holds where the server could not be asked after an earlier transaction.
    fn prepare_under(
        &mut self,
        settings: &Settings,
        other_settings: bool,
        out: &mut Vec<u8>,
        parse: impl FnOnce(&mut Self, &mut Vec<u8>),
    ) {
        if !other_settings {
            parse(self, out);
            return;
        }
        let settings = &self.settings_for_parse(settings);
        if self.requests.is_in_pipeline()
            || self.from_server.status() == TransactionStatus::InTransaction
            || self.settings_in_doubt()
        {
            let (apart, back) = self.set_aside(settings);
            self.run_within_pipeline(apart, out);
            parse(self, out);
            self.run_within_pipeline(back, out);
        } else {
            let before = self.session.applied().clone();
            self.set_within_pipeline(settings, out);
            parse(self, out);
            self.set_within_pipeline(&before, out);
        }
    }

    /// The settings for a Parse of Hawser's under these: they count for everything that a statement
    /// may depend on, and the settings in force for the rest. A shared statement has the settings
    /// of the client that parsed it first: its custom settings, where no statement depends on them,
    /// must not reach other clients.
    pub(super) fn settings_for_parse(&self, settings: &Settings) -> Settings {
        let in_force = self.session.applied();
        let depends = |name: &[u8]| self.pool.statements.may_depend_on(name);
        let mut wanted = SettingsBuilder::from(in_force);
        for (name, _) in in_force.iter() {
            if depends(name) && settings.get(name).is_none() {
                wanted.remove(name);
            }
        }
        for (name, value) in settings.iter().filter(|(name, _)| depends(name)) {
            wanted.set(name, value);
        }
        wanted.build()
    }

    /// The texts that put these settings in force for a Parse within a transaction, and the former
    /// ones after it. (The backend's applied settings do not change.)
    fn set_aside(&mut self, settings: &Settings) -> (Vec<u8>, Vec<u8>) {
        let before = self.session.applied().clone();
        let parameters = self.session.parameters().clone();
        let reads = |change: &Change<'_>| self.pool.statements.may_depend_on(change.name());
        let changes: Vec<_> = changes(&before, settings, &parameters).filter(reads).collect();
        self.define(&changes);
        let aside = Aside::new(changes);
        (aside.apart(), aside.back())
    }

    /// Appends a Parse of a statement under its client's own name, as part of the client's pipeline.
    pub(super) fn prepare_own(&mut self, name: &[u8], statement: &Statement, out: &mut Vec<u8>) {
        let other_settings = self.must_set_for(statement);
        self.prepare_under(&statement.settings, other_settings, out, |backend, out| {
            build::parse(out, name, &statement.body);
            backend.request(Request::InjectedParse { statement: 0 });
        });
    }

    /// The same before a Query, which has to wait for the outcome.
    pub(super) fn prepare_own_ahead(
        &mut self,
        client: &mut Client<S>,
        name: &[u8],
        statement: &Statement,
        out: &mut Vec<u8>,
    ) {
        let mut parse = |backend: &mut Self, out: &mut Vec<u8>| {
            backend.inject_own_parse(name, &statement.body, None, out);
            backend.own_query_takes(client, name);
        };
        if !self.must_set_for(statement) {
            parse(self, out);
        } else if self.from_server.status() == TransactionStatus::Idle && !self.settings_in_doubt()
        {
            let before = self.session.applied().clone();
            let settings = self.settings_for_parse(&statement.settings);
            self.apply_settings(&settings, out);
            parse(self, out);
            self.apply_settings(&before, out);
        } else {
            let alone = self.from_server.status() == TransactionStatus::Idle;
            if alone {
                self.inject_prepare(b"BEGIN", None, out);
            }
            let (apart, back) = self.set_aside(&statement.settings);
            self.inject_prepare(&apart, None, out);
            parse(self, out);
            // Where the Parse has failed, this fails as well, and the block stays as it is.
            self.inject_prepare(&back, None, out);
            if alone {
                self.inject_prepare(b"COMMIT", None, out); // it undoes no statement
            }
        }
    }

    /// Appends a Parse of a client's unnamed statement, under the settings of the client's Parse.
    pub(super) fn prepare_unnamed(&mut self, unnamed: &Unnamed, out: &mut Vec<u8>) {
        let other_settings = !self.depend_alike(&unnamed.settings) && !unnamed.reads_no_settings();
        self.prepare_under(&unnamed.settings, other_settings, out, |backend, out| {
            build::parse(out, b"", &unnamed.body);
            backend.request(Request::InjectedParse { statement: 0 });
        });
    }

    /// Notes that a Parse of a shared statement is about to be sent, and closes one that it
    /// displaces.
    pub(super) fn note_prepared(&mut self, statement: &Arc<Statement>, out: &mut Vec<u8>) {
        let stale = self.prepared.statements().is_stale(statement.id);
        let epoch = self.pool.schema_epoch();
        if let Some(evicted) =
            self.prepared.statements_mut().insert(statement, self.requests.pipeline(), epoch)
        {
            build::close_statement(out, &evicted);
            self.request(Request::Injected);
        }
        let only_in = self.sole_transaction();
        self.prepared.statements_mut().keep_for(statement.id, only_in);
        // An eviction in a pipeline that is not answered yet may have been ignored.
        let unsettled = self.requests.owes_ready() && self.requests.owes_client();
        if self.prepared.is_uncertain() || stale || unsettled {
            build::close_statement(out, &statement.name);
            self.request(Request::Injected);
        }
    }

    /// Appends messages that change settings without ending the client's implicit transaction. In a
    /// transaction block the change is a local one: after a plain SET, the value that the client
    /// has set there with LOCAL would outlast the block.
    fn set_within_pipeline(&mut self, desired: &Settings, out: &mut Vec<u8>) {
        self.set_in_pipeline(desired, Request::Injected, out);
    }

    /// The same; each of them is answered by `owed`.
    fn set_in_pipeline(&mut self, desired: &Settings, owed: Request, out: &mut Vec<u8>) {
        let before = self.session.apply(desired.clone());
        let parameters = self.session.parameters().clone();
        let changes: Vec<_> = changes(&before, desired, &parameters).collect();
        self.define(&changes);
        for change in changes {
            let mut body = Vec::new();
            if self.from_server.status() == TransactionStatus::InTransaction {
                settings::write_set_local(change, &mut body);
            } else {
                settings::write_set_query([change], &mut body);
            }
            self.run_in_pipeline(body, owed, out);
        }
    }

    /// Appends messages that run a statement of Hawser's as part of the client's pipeline.
    pub(super) fn run_within_pipeline(&mut self, text: Vec<u8>, out: &mut Vec<u8>) {
        self.run_in_pipeline(text, Request::Injected, out);
    }

    /// The same; its Bind and its Execute are answered by `owed`.
    fn run_in_pipeline(&mut self, mut text: Vec<u8>, owed: Request, out: &mut Vec<u8>) {
        text.extend_from_slice(&[0; 3]);
        build::parse(out, SETTING_STATEMENT, &text);
        build::bind_plain(out, SETTING_STATEMENT, SETTING_STATEMENT);
        build::execute(out, SETTING_STATEMENT);
        // The portal outlives its statement, and the next change needs the name.
        build::close_portal(out, SETTING_STATEMENT);
        build::close_statement(out, SETTING_STATEMENT);
        self.request(Request::InjectedParse { statement: 0 });
        for owed in [owed, owed, Request::Injected, Request::Injected] {
            self.request(owed);
        }
    }
}
