//! What a server connection is made of.

use std::cell::Cell;
use std::sync::Arc;

use crate::engine::at_stake::AtStake;
use crate::engine::census::functions::Functions;
use crate::engine::client_identity::ClientIdentity;
use crate::engine::drawn::Drawn;
use crate::engine::hand_over::HandOver;
use crate::engine::replay::Replay;
use crate::engine::restore::Longer;
use crate::engine::server_unnamed::ServerUnnamed;
use crate::engine::session_report::SessionReport;
use crate::engine::sql_statement::BackendSql;
use crate::engine::timeouts::Lifts;
use crate::engine::unverified::Unverified;
use crate::engine::within::Within;
use crate::ids::{BackendId, ClientId, LoopId, ServerAddressId, Slot};
use crate::pool::backend_statements::BackendStatements;
use crate::pool::{Basis, CustomNames, Lasting, Pinned, ServerParameters};
use crate::session::scan::ScanOptions;
use crate::session::settings::Settings;
use crate::time::Time;
use crate::wire::TransactionStatus;

/// What a backend does between its clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::engine) enum Tidying {
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
pub(in crate::engine) enum Reset {
    /// Nothing.
    No,
    /// As the pool's `server_reset_query` says: the client was one of session mode.
    AsConfigured,
    /// Everything.
    All,
}

/// Whether a client notifies by its backend, and others are to know by its process id that it is this client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::engine) enum Notifying {
    /// Not by its own texts.
    No,
    /// A text that may do so is at hand.
    Due,
    /// It is noted ([`crate::pool::Notifiers`]).
    Noted,
    /// It has given the backend back.
    Left,
}

/// Which connection it is, and where it is registered.
pub(in crate::engine) struct Identity {
    pub(super) id: BackendId,
    pub(super) process: u32,
    pub(super) key: Box<[u8]>,
    pub(super) server: ServerAddressId,
    pub(super) epoch: u32,
    pub(super) opened: Time,
    /// Its place in its home loop's table of resident backends.
    pub(super) place: Slot,
    /// The loop that watches it.
    pub(super) home: LoopId,
    pub(super) _permit: Box<dyn std::any::Any + Send>,
}

/// What has come of the server's messages, and what may come yet.
pub(in crate::engine) struct FromServer {
    /// What the server said last.
    pub(in crate::engine) status: TransactionStatus,
    /// Start of a message from the server that is not complete yet.
    pub(in crate::engine) input: Vec<u8>,
    /// A message from the server is half passed on: bytes of it still to come.
    pub(in crate::engine) receiving_rest: usize,
    /// There may be something to read that was not read because the client is slow.
    pub(in crate::engine) readable: bool,
    /// The end of its stream stands after what is still to be read, and no other event comes of it.
    pub(in crate::engine) hung_up: bool,
    /// The server has said goodbye (FATAL, PANIC), or its connection has ended.
    pub(in crate::engine) gone: bool,
    /// Settings reported since the last ReadyForQuery that it had not reported before.
    pub(in crate::engine) new_reports: u32,
    /// Its loop is told when its socket takes bytes again.
    pub(in crate::engine) tells_of_room: Cell<bool>,
}

impl FromServer {
    pub(super) fn new() -> Self {
        Self {
            status: TransactionStatus::Idle,
            input: Vec::new(),
            receiving_rest: 0,
            readable: false,
            hung_up: false,
            gone: false,
            new_reports: 0,
            tells_of_room: Cell::new(false),
        }
    }
}

/// The settings in force there.
pub(in crate::engine) struct AppliedSession {
    /// Settings in force, as they differ from `parameters` (the server's own at connect).
    pub(in crate::engine) applied: Settings,
    /// What the server reported at connect.
    pub(in crate::engine) parameters: Arc<ServerParameters>,
    /// Their number.
    pub(in crate::engine) basis: Basis,
    /// By these, a plain CREATE TABLE may make a temporary one.
    pub(in crate::engine) makes_temporary: bool,
    /// How it reads texts by these.
    pub(in crate::engine) reading: ScanOptions,
    /// Since it was last at rest, outside of a transaction, something was sent that may change how
    /// it reads texts.
    pub(in crate::engine) rereading: bool,
    /// Since it was last at rest, outside of a transaction, a search_path may have been set that is not
    /// known before the end of the transaction.
    pub(in crate::engine) unseen_path: bool,
    /// Settings that may fail are under way, in a transaction block of ours.
    pub(in crate::engine) applying: bool,
    /// Custom names that it knows for good.
    pub(in crate::engine) custom: CustomNames,
    /// What its process keeps to its end that some clients must not meet.
    pub(in crate::engine) lasting: Lasting,
    /// What has become of tries to take a short timeout off.
    pub(in crate::engine) lifts: Lifts,
    /// Settings under way within its client's pipeline.
    pub(in crate::engine) within: Option<Box<Within>>,
}

/// The statements that the server has.
pub(in crate::engine) struct PreparedThere {
    /// Shared prepared statements that the server has.
    pub(in crate::engine) statements: BackendStatements,
    /// The unnamed statement that the server has.
    pub(in crate::engine) unnamed: ServerUnnamed,
    /// It may have the empty statement (see [`crate::engine::from_client::client_message::aborted`]).
    pub(in crate::engine) has_empty: bool,
    /// Statements of SQL's PREPARE that it has, as far as they move.
    pub(in crate::engine) by_sql: Option<Box<BackendSql>>,
    /// Since its client's last transaction, those that could not be prepared have not been tried.
    pub(in crate::engine) retries_sql: bool,
    /// A DISCARD ALL or DEALLOCATE ALL has been sent of which it is not known whether it worked:
    /// a statement is closed before it is prepared.
    pub(in crate::engine) uncertain: bool,
    /// The pipeline under way, in case it must be sent again.
    pub(in crate::engine) replay: Replay,
    /// Where the text of the Query that is being answered is longer than its client's own.
    pub(in crate::engine) longer: Vec<Longer>,
    /// The same of the last Parse whose text is longer, by its serial.
    pub(in crate::engine) longer_parse: Option<(u32, Box<[Longer]>)>,
}

impl PreparedThere {
    pub(super) fn new(keep: usize) -> Self {
        Self {
            statements: BackendStatements::new(keep),
            unnamed: ServerUnnamed::default(),
            has_empty: false,
            by_sql: None,
            retries_sql: true,
            uncertain: false,
            replay: Replay::default(),
            longer: Vec::new(),
            longer_parse: None,
        }
    }
}

/// What becomes of it between transactions, and since when.
pub(in crate::engine) struct Lending {
    pub(in crate::engine) tidying: Tidying,
    /// It served a client with state of its own: that is discarded before it serves another.
    pub(in crate::engine) reset_due: Reset,
    /// What cannot be undone has happened to it: it is closed, not given back.
    pub(in crate::engine) spoiled: Option<&'static str>,
    pub(in crate::engine) cancels_in_flight: u32,
    /// A cancel request goes out once no query of ours is before the client's: for what comes before this
    /// pipeline.
    pub(in crate::engine) cancel_due: Option<u64>,
    pub(in crate::engine) parked: bool,
    /// Its client keeps it between transactions, and is counted for that.
    pub(in crate::engine) pinned: Option<Box<Pinned>>,
    /// What keeps connections from being opened to a database that a statement under way wants for
    /// itself.
    pub(in crate::engine) vacancy: Option<crate::engine::vacancy::Hold>,
    /// When it became idle in a transaction, or `tidying` began.
    pub(in crate::engine) since: Time,
    /// When its client last took or sent a byte.
    pub(in crate::engine) progress: Time,
    /// How long its client waited for it before this transaction, in microseconds.
    pub(in crate::engine) waited_us: u64,
    pub(in crate::engine) transactions: u64,
}

impl Lending {
    pub(super) fn new(opened: Time) -> Self {
        Self {
            tidying: Tidying::No,
            reset_due: Reset::No,
            spoiled: None,
            cancels_in_flight: 0,
            cancel_due: None,
            parked: false,
            pinned: None,
            vacancy: None,
            since: opened,
            progress: opened,
            waited_us: 0,
            transactions: 0,
        }
    }
}

/// What is known of its session, and what is not.
pub(in crate::engine) struct Known {
    /// What its client's statements may have made or ended.
    pub(in crate::engine) unverified: Option<Box<Unverified>>,
    /// What statements under way may change for other sessions.
    pub(in crate::engine) at_stake: AtStake,
    pub(in crate::engine) drawn: Drawn,
    /// The client that has it, or had it last.
    pub(in crate::engine) holder: Option<ClientId>,
    /// When another client was done with it last.
    pub(in crate::engine) others_left: Time,
    /// The listening connection has heard all that was notified by it before its client had it.
    pub(in crate::engine) heard_before: bool,
    /// Whether its client notifies by it.
    pub(in crate::engine) notifying: Notifying,
    /// Functions that do something to sessions, if there are any, and which version of these.
    pub(in crate::engine) functions: Option<Box<Functions>>,
    pub(in crate::engine) functions_serial: u32,
    /// What its server reports of the session, if it does.
    pub(in crate::engine) session_report: Option<Box<SessionReport>>,
}

/// Whose it is, where users share it or its server is told of each client.
pub(in crate::engine) struct Ownership {
    /// Its pool is one that users share: nothing is sent to it for a client whose it is not.
    pub(in crate::engine) shared: bool,
    /// Whose it is then.
    pub(in crate::engine) hand_over: Option<Box<HandOver>>,
    /// What its server is told of the clients of its one user, if it is.
    pub(in crate::engine) client_identity: Option<Box<ClientIdentity>>,
}
