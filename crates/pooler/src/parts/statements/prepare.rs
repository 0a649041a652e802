//! Preparing statements on a server connection, and removing them, before and among a client's
//! messages.

use std::num::NonZeroU64;
use std::sync::Arc;

use crate::parts::settings::apply::changes;
use crate::parts::statements::aborted::EMPTY;
use crate::parts::statements::shared::{Statement, Unnamed};
use crate::relay::backend::Backend;
use crate::relay::client::Client;
use crate::relay::request_queue::Request;
use crate::relay::socket::Socket;
use crate::session::aside::Aside;
use crate::session::settings::{Change, PlanReads, Settings, SettingsBuilder};
use crate::wire::{TransactionStatus, build};

impl<S: Socket> Backend<S> {
    /// Whether the server may have statements of other clients than its current one.
    pub(crate) fn has_statements_of_others(&self) -> bool {
        self.prepared.may_have_any()
    }

    /// Appends the messages that remove all shared statements: `pg_prepared_statements` would show
    /// a client the texts of others, with the literals in them. Those that it still needs are
    /// prepared again. `keeps`: the client has statements on the server that are not shared, and
    /// stay.
    pub(crate) fn deallocate_all(&mut self, keeps: bool, out: &mut Vec<u8>) {
        const DEALLOCATE_ALL: &[u8] = b"DEALLOCATE ALL";
        let alone = !self.requests.is_in_pipeline();
        let failed = self.may_have_failed() && alone;
        let names = self.prepared.statements.names();
        // If not all names are known, others' texts matter more than the client's own statements.
        if failed || (keeps && names.is_some()) {
            // A failed transaction runs no command but ROLLBACK, after which the client's
            // statements may exist. Close works.
            let all_known = names.is_some();
            let mut names = names.unwrap_or_default();
            if self.prepared.has_empty {
                names.insert(EMPTY.into());
                self.prepared.has_empty = !alone;
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
                self.prepared.uncertain = false; // a Close does not fail
            } else {
                self.prepared.statements.clear_in_doubt();
                return;
            }
        } else if self.requests.is_in_pipeline() {
            // (It may be ignored: the empty statement stays noted.)
            self.run_within_pipeline(DEALLOCATE_ALL.to_vec(), out);
            self.prepared.by_sql = None;
            self.prepared.doubt_all();
            return;
        } else {
            self.inject_query(DEALLOCATE_ALL, out);
            self.prepared.has_empty = false;
            self.prepared.forget_all(); // if it fails, the connection is closed
            return;
        }
        self.prepared.statements.clear();
    }

    /// Ensures that the server has a shared statement, appending what is needed.
    pub(crate) fn prepare(&mut self, statement: &Arc<Statement>, out: &mut Vec<u8>) -> bool {
        if self.prepared.statements.touch(statement.id) {
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
    pub(crate) fn depend_alike(&self, settings: &Settings) -> bool {
        self.pool.statements.depend_alike(&self.session.applied, settings)
    }

    /// The current transaction, if settings are in force in it that plans depend on and that are
    /// not known: what is parsed or planned in it is for its client alone. Where no other client
    /// comes after this one, all its transactions count as one.
    #[inline]
    pub(crate) fn sole_transaction(&self) -> Option<NonZeroU64> {
        if !self.session.texts.plans && self.known.unverified.is_none() {
            return None;
        }
        let reads = |name: &[u8]| self.pool.statements.read_from(PlanReads::of_results(name));
        let in_doubt = self.session.texts.plans || self.may_have_set(reads);
        let transaction = match self.lending.spoiled {
            Some(_) => NonZeroU64::MAX,
            None => NonZeroU64::MIN.saturating_add(self.lending.transactions),
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
            let before = self.session.applied.clone();
            self.set_within_pipeline(settings, out);
            parse(self, out);
            self.set_within_pipeline(&before, out);
        }
    }

    /// The settings for a Parse of Hawser's under these: they count for everything that a statement
    /// may depend on, and the settings in force for the rest. A shared statement has the settings
    /// of the client that parsed it first: its custom settings, where no statement depends on them,
    /// must not reach other clients.
    pub(crate) fn settings_for_parse(&self, settings: &Settings) -> Settings {
        let in_force = &self.session.applied;
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
        let before = self.session.applied.clone();
        let parameters = self.session.own.parameters.clone();
        let reads = |change: &Change<'_>| self.pool.statements.may_depend_on(change.name());
        let changes: Vec<_> = changes(&before, settings, &parameters).filter(reads).collect();
        self.define(&changes);
        let aside = Aside::new(changes);
        (aside.apart(), aside.back())
    }

    /// Appends a Parse of a statement under its client's own name, as part of the client's pipeline.
    pub(crate) fn prepare_own(&mut self, name: &[u8], statement: &Statement, out: &mut Vec<u8>) {
        let other_settings = self.must_set_for(statement);
        self.prepare_under(&statement.settings, other_settings, out, |backend, out| {
            build::parse(out, name, &statement.body);
            backend.request(Request::InjectedParse { statement: 0 });
        });
    }

    /// The same before a Query, which has to wait for the outcome.
    pub(crate) fn prepare_own_ahead(
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
            let before = self.session.applied.clone();
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
    pub(crate) fn prepare_unnamed(&mut self, unnamed: &Unnamed, out: &mut Vec<u8>) {
        let other_settings = !self.depend_alike(&unnamed.settings) && !unnamed.reads_no_settings();
        self.prepare_under(&unnamed.settings, other_settings, out, |backend, out| {
            build::parse(out, b"", &unnamed.body);
            backend.request(Request::InjectedParse { statement: 0 });
        });
    }

    /// Notes that a Parse of a shared statement is about to be sent, and closes one that it
    /// displaces.
    pub(crate) fn note_prepared(&mut self, statement: &Arc<Statement>, out: &mut Vec<u8>) {
        let stale = self.prepared.statements.is_stale(statement.id);
        let epoch = self.pool.schema_epoch();
        if let Some(evicted) =
            self.prepared.statements.insert(statement, self.requests.pipeline(), epoch)
        {
            build::close_statement(out, &evicted);
            self.request(Request::Injected);
        }
        let only_in = self.sole_transaction();
        self.prepared.statements.keep_for(statement.id, only_in);
        // An eviction in a pipeline that is not answered yet may have been ignored.
        let unsettled = self.requests.owes_ready() && self.requests.owes_client();
        if self.prepared.uncertain || stale || unsettled {
            build::close_statement(out, &statement.name);
            self.request(Request::Injected);
        }
    }
}
