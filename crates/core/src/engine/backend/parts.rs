//! What a server connection is made of.

use crate::engine::client_identity::ClientIdentity;
use crate::engine::hand_over::HandOver;
use crate::ids::{BackendId, LoopId, ServerAddressId, Slot};
use crate::time::Time;

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

/// Whose it is, where users share it or its server is told of each client.
pub(in crate::engine) struct Ownership {
    /// Its pool is one that users share: nothing is sent to it for a client whose it is not.
    pub(in crate::engine) shared: bool,
    /// Whose it is then.
    pub(in crate::engine) hand_over: Option<Box<HandOver>>,
    /// What its server is told of the clients of its one user, if it is.
    pub(in crate::engine) client_identity: Option<Box<ClientIdentity>>,
}
