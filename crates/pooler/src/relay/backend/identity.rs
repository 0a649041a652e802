//! The identity of a server connection, and where it is registered.

use crate::ids::{BackendId, LoopId, ServerAddressId, Slot};
use crate::time::Time;

/// The identity of the connection, and where it is registered.
pub(crate) struct Identity {
    pub(super) id: BackendId,
    pub(super) process: u32,
    pub(super) key: Box<[u8]>,
    pub(super) server: ServerAddressId,
    pub(super) epoch: u32,
    pub(super) opened: Time,
    /// Its place in its home loop's table.
    pub(super) place: Slot,
    /// The loop that watches it.
    pub(super) home: LoopId,
    pub(super) _permit: Box<dyn std::any::Any + Send>,
}
