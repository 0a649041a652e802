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
//! A node that finds no free place writes another key (a want). The others give up what is more
//! than their share: [`allot`] says what that is, from what all of them see.
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
mod ask;
mod ledger;
mod node;
mod scope;
#[cfg(test)]
mod tests;

pub use allot::{Claim, share};
pub use ask::{Answer, Change, Failure, Look, Lost, Need, Request, Taken, Want};
pub use node::{Bound, Node, Options, Standing, Step};
pub use scope::{Key, Kind, LeaseId, Place, Revision, Scope};
