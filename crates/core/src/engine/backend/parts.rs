//! What a server connection is made of.

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
    /// Its place in its home loop's table of resident backends.
    pub(super) place: Slot,
    /// The loop that watches it.
    pub(super) home: LoopId,
    pub(super) _permit: Box<dyn std::any::Any + Send>,
}

/// What is known of its session, and what is not.
pub(in crate::engine) struct Known {
    /// What its client's statements may have made or ended.
    pub(in crate::engine) unverified: Option<Box<Unverified>>,
    /// What statements under way may change for other sessions.
    pub(in crate::engine) at_stake: AtStake,
    pub(in crate::engine) drawn: Drawn,
    pub(in crate::engine) notifying: Notifying,
    /// Functions that do something to sessions, if there are any, and which version of these.
    pub(super) functions: Option<Box<Functions>>,
    pub(super) functions_serial: u32,
    /// Some keep plans in the process, made under the settings of their first caller.
    pub(super) keeps_plans: bool,
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
