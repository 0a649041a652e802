//! What a node needs, what it asks of the store, and what that answers.

use std::time::Duration;

use super::scope::{LeaseId, Place, Revision, Scope};

/// What a node lacks or holds of one limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Need {
    /// The limit.
    pub limit: u32,
    /// Connections that count under it.
    pub used: u32,
    /// Of these, the idle ones: they go to others that lack places.
    pub idle: u32,
    /// Openings that wait for a place.
    pub waiting: u32,
}

/// What becomes of connections once the lease may have ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Lost {
    /// The node goes on with as many as it held.
    #[default]
    Keep,
    /// It closes all before.
    Close,
}

/// What is asked of the store. One request at a time is under way.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Request {
    /// A new lease.
    Grant,
    /// Renew it.
    KeepAlive(LeaseId),
    /// All wants, and the places of these limits that are taken: as of one moment, and no earlier one than when
    /// it is asked.
    Look(Vec<Scope>),
    /// These changes, each for itself, attached to this lease.
    Change(LeaseId, Vec<Change>),
}

/// A change in the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Change {
    /// Take the place, if it is free.
    Take(Place),
    /// Give it back, if it is still the one that was taken then.
    GiveBack(Place, Revision),
    /// Say that so many places are lacking.
    Want(Scope, u32),
    /// Say that none is.
    WantNoMore(Scope),
}

/// What the store answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// To [`Request::Grant`].
    Granted(LeaseId, Duration),
    /// To [`Request::KeepAlive`]: how long the lease lasts from now.
    KeptAlive(Duration),
    /// To [`Request::Look`].
    Seen(Look),
    /// To [`Request::Change`]: the number of this write, and which changes were made, in their order.
    Changed(Revision, Vec<bool>),
}

/// What is in the store.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Look {
    /// Places that are taken.
    pub taken: Vec<Taken>,
    /// What is wanted.
    pub wants: Vec<Want>,
}

/// A place that is taken.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Taken {
    /// The place.
    pub place: Place,
    /// By whom.
    pub owner: LeaseId,
    /// When.
    pub since: Revision,
}

/// A node lacks places.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Want {
    /// Of which limit.
    pub scope: Scope,
    /// Who.
    pub owner: LeaseId,
    /// How many.
    pub count: u32,
    /// Since when.
    pub since: Revision,
}

/// Why a request was not answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Failure {
    /// The store does not know the lease: it has ended.
    LeaseEnded,
    /// It is not known whether the request had an effect, or will have one.
    Unknown,
}
