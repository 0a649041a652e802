//! Limits that several poolers (nodes) hold together, by a store with leases: etcd.
//!
//! # Model
//! A limit of N has N places, numbered from 0. A place that is taken is a key in the store, attached to the
//! lease of the node that has it; a free one has no key. A node may have as many connections as it holds
//! places.
//! ```text
//!             take: only if there is no such key         give back: only if it is still that key
//!   free ───────────────────────────────────────► held ─────────────────────────────────────────► free
//!                                                  │
//!                                                  └── its node's lease ends ──► free
//! ```
//! A node that finds no place free says so by another key (a want). The others give up what is more than
//! their share: [`allot`] says what that is, from what all of them see.
//!
//! # Invariants
//! * of a limit no more places are held than it has, whatever is delayed, lost or repeated: each has one key,
//!   and one write makes it
//! * a node uses no place that it gives back: it lowers its bound, sees that no connection needs the place,
//!   then sends the request, which names the revision at which the key was made, so that one that comes late
//!   ends no place that was taken again
//! * a lease is counted from when the request was sent that renewed it: by the node's clock it ends no later
//!   than by the store's
//!
//! # Limits
//! A node whose lease may have ended, and that goes on ([`Lost::Keep`]), has connections whose places others
//! may have taken by now. The clocks of node and store may differ in speed by what the way there and back
//! takes.

mod allot;
mod ledger;
mod node;
mod scope;
#[cfg(test)]
mod tests;

pub use allot::{Claim, share};
pub use node::{Bound, Node, Options, Standing, Step};
pub use scope::{Key, Kind, Scope};

use std::time::Duration;

/// What a node lacks or holds of one limit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Need {
    /// The limit.
    pub limit: u32,
    /// Connections that count under it.
    pub used: u32,
    /// Of these, those that nobody uses: they go to others that lack places.
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

/// A lease, and so a node: each has one at a time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LeaseId(pub i64);

/// When the store made a key: the number of a write.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Revision(pub i64);

impl Revision {
    /// Later than all.
    pub const NEVER: Self = Self(i64::MAX);
}

/// One place of a limit.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    /// The limit.
    pub scope: Scope,
    /// Its number.
    pub number: u32,
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
