//! A process hands its clients over to its successor: what goes with them, and when one may go.
//!
//! # Model
//! ```text
//!   GiveClients ─► clients at rest, one by one ─► ClientRecord + socket ─► host ─► another process
//!                     ▲ each that comes to rest                                      │ takes it
//!                     └───────────── BackFromSuccessor ◄── it does not ──────────────┤
//!                                                       FromPredecessor ─► its engine ◄┘
//! ```
//! A client goes over between its transactions, when it has no server connection, waits for none, and no
//! byte of it is kept here: what it sends meanwhile is in the kernel's socket, and goes with that. So what
//! there is of it is its [`ClientRecord`]: what it has asked for. The first server connection that it gets
//! there is made what it desires as any other is.
//!
//! # Invariants
//! * what a record does not tell stays: [`Client::to_record`] and what it calls take a client apart field by
//!   field, so that a new one does not compile without a decision
//! * a client is in one process at a time: it is out of this engine, and watched by nobody, before the
//!   successor learns of it
//! * at most as many are under way as the host has asked for: others go on here
//!
//! # What stays
//! TLS, for its keys cannot be taken out of rustls; whatever pins; session mode and replication; clients of
//! users that share server connections; clients that listen, or have statements of SQL's PREPARE: until
//! that ends.

mod steps;

use std::collections::BTreeSet;
use std::sync::Arc;

use super::about::{ClientAbout, ClientSecret, PoolMode};
use super::backend::PoolRef;
use super::client::{Client, Record};
use super::names::ClientStatement;
use super::socket::Socket;
use crate::ids::Slot;
use crate::pool::{Asks, Basis, ServerParameters, Told};
use crate::session::settings::Settings;
use crate::time::Time;
use crate::wire::error::ClientError;

/// All that a client's session is, between its transactions.
#[derive(Clone)]
pub struct ClientRecord {
    /// The process id that it knows.
    pub process: u32,
    /// The key of its cancel requests.
    pub secret: ClientSecret,
    /// Who it is.
    pub about: ClientAbout,
    /// When it gives its server connections back.
    pub mode: PoolMode,
    /// What its settings differ from: what its server says at connect.
    pub values: Arc<ServerParameters>,
    /// The settings with which it started.
    pub start: Settings,
    /// The settings that it wants in force.
    pub desired: Settings,
    /// Its prepared statements of the protocol.
    pub statements: Vec<StatementRecord>,
    /// Its unnamed statement.
    pub unnamed: Option<UnnamedRecord>,
    /// It has asked for currval or lastval before.
    pub reads_sequences: bool,
    /// Since when it has been idle.
    pub since: Time,
    /// How many changes of its database's schema were known to this process.
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
    /// What the client has been told of it.
    pub told: Told,
}

/// The unnamed statement of a client.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct UnnamedRecord {
    /// The body of its Parse after the name.
    pub body: Box<[u8]>,
    /// Settings in force at the Parse.
    pub settings: Settings,
    /// What the client has been told of it, if anything.
    pub told: Option<Told>,
}

/// A client on its way between two engines.
pub struct MovedClient<S: Socket> {
    /// Its connection; no loop watches it.
    pub socket: S,
    /// Its pool, of the process that it is in.
    pub pool: PoolRef<S>,
    /// Its place under the limits of that process.
    pub permit: S::Permit,
    /// What its session is.
    pub record: ClientRecord,
}

/// From where a moved client comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Arrival {
    /// This process is the successor.
    FromPredecessor,
    /// The successor does not take it: it stays here.
    BackFromSuccessor,
}

/// Why a client does not go over.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stays {
    /// Something of it is under way, or does not move: it may go later.
    ForNow,
    /// It stays with this process.
    ForGood,
}

/// Whether clients leave this engine.
#[derive(Default)]
pub(super) enum Departure {
    /// They stay.
    #[default]
    None,
    /// They are told goodbye with this as soon as they are in no transaction.
    Goodbye(ClientError),
    /// They go to the successor as soon as they are at rest.
    ToSuccessor(Box<Giving>),
}

/// Clients that go to a successor.
#[derive(Default)]
pub(super) struct Giving {
    /// So many more may be under way.
    room: usize,
    /// Those that may be at rest, to be looked at.
    candidates: BTreeSet<Slot>,
    /// Those that the successor does not take.
    refused: BTreeSet<Slot>,
}

impl<S: Socket> Client<S> {
    /// What there is of it, if that is all that there is.
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
            pool: _, // as `pool`
            serving,
            at_socket,
        } = self;
        let Record { about, secret, start, _permit: _ } = &**record;
        if socket.is_encrypted() || !socket.can_move() {
            return Err(Stays::ForGood);
        }
        if serving.mode() == PoolMode::Session
            || serving.is_exclusive()
            || pool.is_shared_by_users()
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
            told: unnamed.told().map(|told| told.to_told()),
        });
        Ok(ClientRecord {
            process,
            secret: secret.clone(),
            about: about.clone(),
            mode: serving.mode(),
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
    /// `None` if its settings differ from other values than its client's.
    fn to_record(&self, name: &[u8], basis: Basis) -> Option<StatementRecord> {
        let Self {
            statement,
            serial: _,      // finds it from an answer that is still to come: there is none
            prepared_in: _, // a connection of this process
            behind: _,      // of that pipeline
            seen,
            epoch: _, // of this process: see `schema_changes`
            fits: _,  // looked at again
        } = self;
        (statement.basis == basis).then(|| StatementRecord {
            name: name.into(),
            body: statement.body.clone(),
            settings: statement.settings.clone(),
            told: seen.to_told(),
        })
    }
}
