//! The parts of a server connection's state.

use super::notifying::Notifying;
use crate::engine::at_stake::AtStake;
use crate::engine::census::functions::Functions;
use crate::engine::client_identity::ClientIdentity;
use crate::engine::drawn::Drawn;
use crate::engine::hand_over::HandOver;
use crate::engine::session_report::SessionReport;
use crate::engine::unverified::Unverified;
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
    /// Its place in its home loop's table.
    pub(super) place: Slot,
    /// The loop that watches it.
    pub(super) home: LoopId,
    pub(super) _permit: Box<dyn std::any::Any + Send>,
}

/// What is known of its session, and what is not.
pub(in crate::engine) struct Known {
    /// What its client's statements may have created or ended.
    pub(in crate::engine) unverified: Option<Box<Unverified>>,
    /// What statements in flight may change for other sessions.
    pub(in crate::engine) at_stake: AtStake,
    pub(in crate::engine) drawn: Drawn,
    pub(in crate::engine) notifying: Notifying,
    /// The functions that do something to sessions, if there are any, and their version.
    pub(super) functions: Option<Box<Functions>>,
    pub(super) functions_serial: u32,
    /// Some keep plans in the process, made under the settings of their first caller.
    pub(super) keeps_plans: bool,
    /// What its server reports of the session, if it does.
    pub(in crate::engine) session_report: Option<Box<SessionReport>>,
}

/// Which user or client the session belongs to, where users share it or its server identifies
/// clients.
pub(in crate::engine) struct Ownership {
    /// Users share the pool: nothing is sent for a client before the session has been handed over
    /// to it.
    pub(in crate::engine) shared: bool,
    /// The state of that handing over.
    pub(in crate::engine) hand_over: Option<Box<HandOver>>,
    /// Which client the server has been informed of, if it takes that.
    pub(in crate::engine) client_identity: Option<Box<ClientIdentity>>,
}
