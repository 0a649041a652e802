//! A process gives its clients to its successor: what moves with them, and when one may move.
//!
//! # Model
//! ```text
//!   GiveClients ─► clients at rest, one by one ─► ClientRecord + socket ─► host ─► another process
//!                     ▲ each that comes to rest                                      │ takes it
//!                     └───────────── BackFromSuccessor ◄── it does not ──────────────┤
//!                                                       FromPredecessor ─► its engine ◄┘
//! ```
//! A client moves between its transactions, when it has no server connection, waits for none, and
//! no byte of it is kept here: what it sends meanwhile stays in the kernel's socket, and moves with
//! that. So all of its state is its [`ClientRecord`]. The first server connection that it gets
//! there is bound to its desired settings as usual.
//!
//! # Invariants
//! * state that a record lacks prevents the move: [`Client::to_record`] and what it calls take a client apart field
//!   by field, so that a new field does not compile without a decision
//! * a client is in one process at a time: it has left this engine, and no loop watches it, before
//!   the successor gets it
//! * at most as many move at once as the host has asked for: others continue here
//!
//! # What stays
//! TLS where the kernel does not take its keys ([`Socket::let_go`]); whatever pins; session mode and replication;
//! clients of users that share server connections; clients that listen, or have statements of SQL's
//! PREPARE: until that ends.

mod steps;

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::ids::Slot;
use crate::parts::sequences::asking::Asks;
use crate::parts::start_values::basis::Basis;
use crate::parts::start_values::parameters::ServerParameters;
use crate::parts::statements::client_names::ClientStatement;
use crate::parts::statements::description::Described;
use crate::relay::backend::PoolRef;
use crate::relay::client::{Client, Record};
use crate::relay::client_info::{ClientAbout, ClientSecret, PoolMode};
use crate::relay::socket::Socket;
use crate::session::settings::Settings;
use crate::time::Time;
use crate::wire::error::ClientError;

/// A client's whole session, between its transactions.
#[derive(Clone)]
pub struct ClientRecord {
    /// The process id that the client knows.
    pub process: u32,
    /// The key of its cancel requests.
    pub secret: ClientSecret,
    /// Its login.
    pub about: ClientAbout,
    /// When it gives its server connections back.
    pub mode: PoolMode,
    /// The values that its settings differ from: its server's at connect.
    pub values: Arc<ServerParameters>,
    /// The settings with which it started.
    pub start: Settings,
    /// The settings that it desires.
    pub desired: Settings,
    /// Its prepared statements of the protocol.
    pub statements: Vec<StatementRecord>,
    /// Its unnamed statement.
    pub unnamed: Option<UnnamedRecord>,
    /// It has asked for currval or lastval before.
    pub reads_sequences: bool,
    /// When it became idle.
    pub since: Time,
    /// The number of changes of its database's schema that this process knew.
    pub schema_changes: u64,
}

/// A prepared statement of a client's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StatementRecord {
    /// The client's name for it.
    pub name: Box<[u8]>,
    /// The body of its Parse after the name: text, NUL, types of parameters.
    pub body: Box<[u8]>,
    /// Settings in force at the Parse.
    pub settings: Settings,
    /// How it was described to the client.
    pub told: Described,
}

/// The unnamed statement of a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnnamedRecord {
    /// The body of its Parse after the name.
    pub body: Box<[u8]>,
    /// Settings in force at the Parse.
    pub settings: Settings,
    /// How it was described to the client, if it was.
    pub told: Option<Described>,
}

/// A client on its way between two engines.
pub struct MovedClient<S: Socket> {
    /// Its connection; no loop watches it.
    pub socket: S,
    /// Its pool, in its current process.
    pub pool: PoolRef<S>,
    /// Its place under the limits of that process.
    pub permit: S::Permit,
    /// Its session.
    pub record: ClientRecord,
}

/// Where a moved client comes from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// This process is the successor.
    FromPredecessor,
    /// The successor does not accept it: it stays here.
    BackFromSuccessor,
}

/// Why a client does not move.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stays {
    /// It has work in flight, or state that does not move: it may move later.
    ForNow,
    /// It stays with this process.
    ForGood,
}

/// Whether clients leave this engine.
#[derive(Default)]
pub(crate) enum Departure {
    /// They stay.
    #[default]
    None,
    /// They get this error as soon as they are in no transaction.
    Goodbye(ClientError),
    /// They move to the successor as soon as they are at rest.
    ToSuccessor(Box<Giving>),
}

/// Clients that go to a successor.
#[derive(Default)]
pub(crate) struct Giving {
    /// This many more may be in transit.
    room: usize,
    /// Clients that may be at rest, to be checked.
    candidates: BTreeSet<Slot>,
    /// The place in the table from which the next tick looks at clients.
    next: u32,
    /// Clients that the successor does not accept.
    refused: BTreeSet<Slot>,
}

impl<S: Socket> Client<S> {
    /// Its record, if that is all of its state.
    ///
    /// # Errors
    /// It stays.
    fn to_record(&self, pool: &PoolRef<S>, process: u32) -> Result<ClientRecord, Stays> {
        let Self {
            socket,
            backend,
            record,
            input,
            output,
            session,
            prepared,
            pending_session,
            times,
            pool: _,     // as `pool`
            backends: _, // of this process
            serving,
            at_socket,
        } = self;
        let Record { about, secret, start, _permit: _ } = &**record;
        if !socket.can_move() {
            return Err(Stays::ForGood);
        }
        if serving.mode == PoolMode::Session || serving.is_exclusive() || pool.is_shared_by_users()
        {
            return Err(Stays::ForGood);
        }
        let is_at_rest = serving.may_move()
            && at_socket.may_move()
            && backend.is_none()
            && input.is_empty()
            && output.is_empty()
            && pending_session.as_ref().is_none_or(|extra| extra.is_empty());
        let session = session.for_record().filter(|_| is_at_rest);
        let (desired, basis, asks) = session.ok_or(Stays::ForNow)?;
        let values = pool.values_of(basis).ok_or(Stays::ForNow)?;
        let (statements, unnamed) = prepared.for_record();
        let names = statements.into_iter().flat_map(|names| names.names().pairs());
        let statements = names
            .map(|(name, named)| named.to_record(name, basis).ok_or(Stays::ForNow))
            .collect::<Result<_, _>>()?;
        let unnamed = unnamed.map(|unnamed| UnnamedRecord {
            body: unnamed.body.clone(),
            settings: unnamed.settings.clone(),
            told: unnamed.described().map(|told| told.to_described()),
        });
        Ok(ClientRecord {
            process,
            secret: secret.clone(),
            about: about.clone(),
            mode: serving.mode,
            values,
            start: start.clone(),
            desired: desired.clone(),
            statements,
            unnamed,
            reads_sequences: asks != Asks::Never,
            since: times.for_record(),
            schema_changes: pool.schema_epoch().changes(),
        })
    }
}

impl ClientStatement {
    /// `None` if its settings differ from other values than its client's do.
    fn to_record(&self, name: &[u8], basis: Basis) -> Option<StatementRecord> {
        let Self {
            statement,
            serial: _,       // identifies it in an answer: none is still to come
            prepared_in: _,  // a connection of this process
            unlisted: _,     // it is tried again
            after_setter: _, // of that pipeline
            seen,
            epoch: _, // of this process: see `schema_changes`
            fits: _,  // checked again
        } = self;
        (statement.basis == basis).then(|| StatementRecord {
            name: name.into(),
            body: statement.body.clone(),
            settings: statement.settings.clone(),
            told: seen.to_described(),
        })
    }
}
