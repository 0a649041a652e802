//! A server connection and what has been applied to it.

mod cancelling;

use std::cell::Cell;
use std::sync::Arc;

use super::ahead::Ahead;
use super::at_stake::AtStake;
use super::census::functions::Functions;
use super::client_identity::ClientIdentity;
use super::drawn::Drawn;
use super::effects::Effects;
use super::hand_over::{HandOver, HandOverKey, basis_of};
use super::replay::Replay;
use super::request_queue::{Change, Displaced, RequestQueue};
use super::restore::Longer;
use super::server_unnamed::ServerUnnamed;
use super::session_report::SessionReport;
use super::socket::Socket;
use super::sql_statement::BackendSql;
use super::timeouts::Lifts;
use super::to_server::ToServer;
use super::unverified::Unverified;
use super::within::Within;
use crate::ids::{BackendId, LoopId, ServerAddressId, Slot};
use crate::pool::statement::{BackendStatements, Unnamed};
use crate::pool::{Basis, CustomNames, Fidelity, Pinned, ServerParameters, SharedPool};
use crate::session::report::Report;
use crate::session::scan::{ScanOptions, names_temporary_schema};
use crate::session::settings::Settings;
use crate::time::Time;
use crate::wire::TransactionStatus;

/// A pool of backends over sockets of kind `S`.
pub type PoolRef<S> = Arc<SharedPool<Box<Backend<S>>>>;

/// A server connection that has just been opened and logged in, idle.
pub struct BackendSeed<S: Socket> {
    /// Its id.
    pub id: BackendId,
    /// Its connection.
    pub socket: S,
    /// The pool it is for.
    pub pool: PoolRef<S>,
    /// What the server reported at connect.
    pub parameters: Arc<ServerParameters>,
    /// What it reported of its session, if it does that. What was done on the connection since it
    /// was opened is in it.
    pub report: Option<Report>,
    /// What hands it over to its clients, in a pool that users share.
    pub hand_over: Option<HandOverKey>,
    /// Process id from BackendKeyData.
    pub process: u32,
    /// Key from BackendKeyData.
    pub key: Box<[u8]>,
    /// Which of the configured server addresses.
    pub server: ServerAddressId,
    /// The pool's epoch when the opening began.
    pub epoch: u32,
    /// When it was opened.
    pub opened: Time,
    /// Frees its place under the limits on server connections when it is dropped.
    pub permit: Box<dyn std::any::Any + Send>,
}

/// How a server reads texts of a session that has set nothing.
fn reading_under(parameters: &ServerParameters) -> ScanOptions {
    ScanOptions::default().with(|name| parameters.get(name))
}

/// Whether a plain CREATE TABLE of such a session may make a temporary table.
fn makes_temporary_under(parameters: &ServerParameters) -> bool {
    parameters.get(b"search_path").is_some_and(names_temporary_schema)
}

/// What a backend does between its clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tidying {
    /// Nothing: it serves its client.
    No,
    /// Its client left in the middle of something: answers are thrown away until the server has
    /// come to an end with it.
    Draining,
    /// A ROLLBACK is under way.
    RollingBack,
    /// The reset query is under way.
    Resetting,
    /// A query of ours is under way after answers that may come or not: when it is answered,
    /// they have come.
    Fencing,
    /// Only cancel requests are still under way.
    AwaitingCancel,
}

/// What is to be discarded of the client before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Reset {
    /// Nothing.
    No,
    /// As the pool's `server_reset_query` says: the client was one of session mode.
    AsConfigured,
    /// Everything.
    All,
}

/// A server connection and what has been applied to it.
pub struct Backend<S: Socket> {
    pub(super) id: BackendId,
    pub(super) socket: S,
    pub(super) pool: PoolRef<S>,
    pub(super) process: u32,
    pub(super) key: Box<[u8]>,
    pub(super) server: ServerAddressId,
    pub(super) epoch: u32,
    pub(super) opened: Time,
    /// Its place in its home loop's table of resident backends.
    pub(super) place: Slot,
    /// The loop that watches it.
    pub(super) home: LoopId,

    /// What it has not answered yet.
    pub(super) requests: RequestQueue,
    /// The server has said goodbye (FATAL, PANIC), or its connection has ended.
    pub(super) gone: bool,
    /// How long its client waited for it before this transaction, in microseconds.
    pub(super) waited_us: u64,
    /// The end of its stream stands after what is still to be read, and no other event comes of it.
    pub(super) hung_up: bool,
    /// Settings reported since the last ReadyForQuery that it had not reported before.
    pub(super) new_reports: u32,
    /// What the server said last.
    pub(super) status: TransactionStatus,
    /// What is written to the server.
    pub(super) to_server: ToServer,
    /// A message from the server is half passed on: bytes of it still to come.
    pub(super) receiving_rest: usize,
    /// Start of a message from the server that is not complete yet.
    pub(super) input: Vec<u8>,
    /// There may be something to read that was not read because the client is slow.
    pub(super) readable: bool,
    /// Its loop is told when its socket takes bytes again.
    pub(super) tells_of_room: Cell<bool>,

    /// Settings in force, as they differ from `parameters` (the server's own at connect).
    pub(super) applied: Settings,
    /// What the server reported at connect.
    pub(super) parameters: Arc<ServerParameters>,
    /// Their number.
    pub(super) basis: Basis,
    /// By these, a plain CREATE TABLE may make a temporary one.
    pub(super) makes_temporary: bool,
    /// How it reads texts by these.
    pub(super) reading: ScanOptions,
    /// Since it was last at rest, outside of a transaction, something was sent that may change how
    /// it reads texts.
    pub(super) rereading: bool,
    /// Shared prepared statements that the server has.
    pub(super) statements: BackendStatements,
    /// The unnamed statement that the server has.
    pub(super) unnamed: ServerUnnamed,
    /// What cannot be undone has happened to it: it is closed, not given back.
    pub(super) spoiled: Option<&'static str>,
    pub(super) tidying: Tidying,
    /// It served a client with state of its own: that is discarded before it serves another.
    pub(super) reset_due: Reset,
    pub(super) cancels_in_flight: u32,
    /// A cancel request goes out once no query of ours is before the client's.
    pub(super) cancel_due: bool,
    pub(super) parked: bool,
    /// What keeps connections from being opened to a database that a statement under way wants for
    /// itself.
    pub(super) vacancy: Option<super::vacancy::Hold>,
    /// Its client keeps it between transactions, and is counted for that.
    pub(super) pinned: Option<Box<Pinned>>,
    /// When it became idle in a transaction, or `tidying` began.
    pub(super) since: Time,
    /// When its client last took or sent a byte.
    pub(super) progress: Time,
    pub(super) transactions: u64,
    /// The pipeline under way, in case it must be sent again.
    pub(super) replay: Replay,
    /// Where the text of the Query that is being answered is longer than its client's own.
    pub(super) longer: Vec<Longer>,
    /// The same of the last Parse whose text is longer, by its serial.
    pub(super) longer_parse: Option<(u32, Box<[Longer]>)>,
    /// A DISCARD ALL or DEALLOCATE ALL has been sent of which it is not known whether it worked:
    /// a statement is closed before it is prepared.
    pub(super) uncertain: bool,
    /// What statements under way may change for other sessions.
    pub(super) at_stake: AtStake,
    /// A transaction has ended on it since all that was notified before had been heard: what comes
    /// from it may be another client's.
    pub(super) notifies_unheard: bool,
    pub(super) drawn: Drawn,
    /// What has been sent for the message at hand, which waits.
    pub(super) ahead: Ahead,
    /// Settings that may fail are under way, in a transaction block of ours.
    pub(super) applying: bool,
    /// It may have the empty statement (see [`super::from_client::client_message::aborted`]).
    pub(super) has_empty: bool,
    /// Custom names that it knows for good.
    pub(super) custom: CustomNames,
    /// What its client's statements may have made or ended.
    pub(super) unverified: Option<Box<Unverified>>,
    /// Since it was last at rest, outside of a transaction, a search_path may have been set that ends
    /// with the transaction.
    pub(super) local_path: bool,
    /// Statements of SQL's PREPARE that it has, as far as they move.
    pub(super) by_sql: Option<Box<BackendSql>>,
    /// Since its client's last transaction, those that could not be prepared have not been tried.
    pub(super) retries_sql: bool,
    /// What has become of tries to take a short timeout off.
    pub(super) lifts: Lifts,
    /// Functions that do something to sessions, if there are any, and which version of these.
    pub(super) functions: Option<Box<Functions>>,
    pub(super) functions_serial: u32,
    /// Settings under way within its client's pipeline.
    pub(super) within: Option<Box<Within>>,
    /// What its server reports of the session, if it does.
    pub(super) session_report: Option<Box<SessionReport>>,
    /// Its pool is one that users share: nothing is sent to it for a client whose it is not.
    pub(super) shared: bool,
    /// Whose it is then.
    pub(super) hand_over: Option<Box<HandOver>>,
    /// What its server is told of the clients of its one user, if it is.
    pub(super) client_identity: Option<Box<ClientIdentity>>,
    _permit: Box<dyn std::any::Any + Send>,
}

impl<S: Socket> Backend<S> {
    /// From what the dialler brings.
    pub(super) fn new(seed: BackendSeed<S>, home: LoopId, place: Slot) -> Self {
        let keep = seed.pool.settings().max_prepared_statements as usize;
        let functions = Functions::of(&seed.pool);
        let functions_serial = seed.pool.functions_serial();
        let report = seed.report.filter(|_| seed.pool.trusts_reports());
        let of_report = |report| Box::new(SessionReport::new(report, seed.pool.reporting.one()));
        let session_report = report.map(of_report);
        let shared = seed.pool.is_shared_by_users();
        let (own, told) = if shared { (seed.hand_over, None) } else { (None, seed.hand_over) };
        let of_key = |key| Box::new(HandOver::new(key, &seed.pool.user, &seed.parameters));
        let hand_over = own.map(of_key);
        let mut backend = Self {
            id: seed.id,
            socket: seed.socket,
            process: seed.process,
            key: seed.key,
            server: seed.server,
            epoch: seed.epoch,
            opened: seed.opened,
            place,
            home,
            requests: RequestQueue::default(),
            gone: false,
            waited_us: 0,
            hung_up: false,
            new_reports: 0,
            status: TransactionStatus::Idle,
            to_server: ToServer::default(),
            receiving_rest: 0,
            input: Vec::new(),
            readable: false,
            tells_of_room: Cell::new(false),
            applied: Settings::EMPTY,
            basis: basis_of(&seed.pool, hand_over.as_deref(), &seed.parameters),
            makes_temporary: makes_temporary_under(&seed.parameters),
            reading: reading_under(&seed.parameters),
            rereading: false,
            parameters: seed.parameters,
            pool: seed.pool,
            statements: BackendStatements::new(keep),
            unnamed: ServerUnnamed::default(),
            spoiled: None,
            tidying: Tidying::No,
            reset_due: Reset::No,
            cancels_in_flight: 0,
            cancel_due: false,
            parked: false,
            vacancy: None,
            pinned: None,
            since: seed.opened,
            progress: seed.opened,
            transactions: 0,
            replay: Replay::default(),
            longer: Vec::new(),
            longer_parse: None,
            uncertain: false,
            at_stake: AtStake::default(),
            notifies_unheard: false,
            drawn: Drawn::default(),
            applying: false,
            has_empty: false,
            custom: CustomNames::NONE,
            unverified: None,
            local_path: false,
            by_sql: None,
            retries_sql: true,
            lifts: Lifts::default(),
            functions,
            functions_serial,
            within: None,
            ahead: Ahead::default(),
            session_report,
            shared,
            hand_over,
            client_identity: told.map(|key| Box::new(ClientIdentity::new(key))),
            _permit: seed.permit,
        };
        backend.leave_to_nobody(true);
        backend
    }

    /// Its id.
    pub fn id(&self) -> BackendId {
        self.id
    }

    /// Its connection, e.g. for its socket's statistics.
    pub fn socket(&self) -> &S {
        &self.socket
    }

    /// The same, to say goodbye to the server.
    pub fn socket_mut(&mut self) -> &mut S {
        &mut self.socket
    }

    /// The server's process id.
    pub fn process(&self) -> u32 {
        self.process
    }

    /// Which of the configured server addresses.
    pub fn server(&self) -> ServerAddressId {
        self.server
    }

    /// When it was opened.
    pub fn opened(&self) -> Time {
        self.opened
    }

    /// The epoch of its pool in which its opening began.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Transactions that it has run.
    pub fn transactions(&self) -> u64 {
        self.transactions
    }

    /// The settings that it has, as they differ from the server's own.
    pub fn applied(&self) -> &Settings {
        &self.applied
    }

    /// Its place in its home loop's table.
    pub fn place(&self) -> Slot {
        self.place
    }

    /// The server's own values have changed.
    pub(super) fn take_parameters(&mut self, parameters: Arc<ServerParameters>) {
        self.basis = self.basis_of(&parameters);
        self.makes_temporary = makes_temporary_under(&parameters);
        self.reading = reading_under(&parameters);
        self.parameters = parameters;
    }

    /// Whether the server owes nothing, is in no transaction, and no message is half sent; nor was
    /// anything brought to it for a message that is still to come.
    pub(super) fn is_at_rest(&self) -> bool {
        !self.gone
            && !self.ahead.waits()
            && !self.replay.is_healing()
            && self.requests.is_at_rest()
            && self.status == TransactionStatus::Idle
            && !self.to_server.is_open()
            && self.receiving_rest == 0
            && self.input.is_empty()
            && self.to_server.is_empty()
    }

    /// Whether no transaction is open, nothing is outstanding, and no pipeline has begun.
    pub(super) fn is_between_transactions(&self) -> bool {
        self.status == TransactionStatus::Idle
            && self.requests.is_empty()
            && !self.requests.is_in_pipeline()
    }

    /// Whether its transaction has failed, or has as far as its client has foreseen: what that sends
    /// after a copy goes to a server that has refused the data.
    pub(super) fn may_have_failed(&self) -> bool {
        self.status == TransactionStatus::Failed || self.requests.is_copying_in()
    }

    /// What comes back if the server ignores what is sent next, which takes the place of its client's unnamed
    /// statement. (What nothing precedes is not ignored.)
    #[inline]
    pub(super) fn displaced(&self, unnamed: Option<Arc<Unnamed>>, serial: u32) -> Option<Change> {
        let parsed = self.unnamed.parsed_in();
        let displaced = || Box::new(Displaced { unnamed, serial, parsed });
        (!self.requests.is_empty()).then(|| Change::Displaces(displaced()))
    }

    /// A client may leave what only the end of the connection takes off.
    pub(super) fn spoil_for_good(&mut self) {
        self.spoiled.get_or_insert("a client changed what cannot be undone");
    }

    /// Whether a simple query in a pipeline that a Sync ends later leaves the server in a state in
    /// which its next statement fails, whoever's it is (XX000, "StartTransactionCommand: unexpected
    /// state STARTED"). PostgreSQL 18 does that; 15 and 17 do not.
    pub(super) fn is_left_started_by_mixed_pipelines(&self) -> bool {
        self.parameters.major_version() >= 18
    }

    /// The effects of a text, with those of the functions that it may call.
    #[inline]
    pub(super) fn with_functions(&self, text: &[u8], effects: Effects) -> Effects {
        match &self.functions {
            None => effects,
            // A report has what functions do, and knows what the client could not do itself.
            Some(functions) => functions.add_to(effects, text, self.session_report.is_none()),
        }
    }

    /// What functions do that a text may call which does nothing by itself. `None`: none
    /// does anything.
    #[inline]
    pub(super) fn effects_of_functions(&self, text: &[u8]) -> Option<Effects> {
        self.functions.as_ref()?;
        Some(self.with_functions(text, Effects::default()))
    }

    /// Functions, if any do something to sessions, may be others by now.
    #[inline]
    pub(super) fn learn_functions(&mut self) {
        let serial = self.pool.functions_serial();
        if self.functions_serial != serial {
            (self.functions, self.functions_serial) = (Functions::of(&self.pool), serial);
        }
    }

    /// Whether its clients lose state that does not move. (It takes a lock: not for each message.)
    pub(super) fn is_classic(&self) -> bool {
        self.pool.settings().fidelity == Fidelity::Classic
    }

    /// Whether statements of the protocol are kept apart (max_prepared_statements = 0).
    pub(super) fn shares_nothing(&self) -> bool {
        self.statements.keeps_none()
    }

    /// The application_name in force.
    pub(super) fn application_name(&self) -> String {
        let value = match self.applied.get(b"application_name") {
            Some(value) => value,
            None => self.parameters.get(b"application_name").unwrap_or_default(),
        };
        String::from_utf8_lossy(value).into_owned()
    }
}
