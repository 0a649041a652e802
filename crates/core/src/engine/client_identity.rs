//! Backends of one user's pool whose server is told whose the transaction is: address and TLS of its
//! client.
//!
//! # Model
//! The same message as in [`super::hand_over`], without a user: the session stays that of the role
//! that has logged in. It goes before the first message of a client that is not the one told last,
//! in the same write, and its answer is not waited for. A message that the extension does not take
//! ends the session before what stands after it. Where there is no such function any more the server
//! goes on, as the user that it was: then it knows the last address only, and the connection is
//! replaced when its client is through.
//!
//! # Limits
//! SET ROLE and SET SESSION AUTHORIZATION end with it: they are set anew after it.

mod steps;

use super::hand_over::HandOverKey;
use crate::ids::ClientId;

/// What a backend's server has been told, or is to be.
#[derive(Debug)]
pub(super) struct ClientIdentity {
    key: HandOverKey,
    /// Whose it is by what was sent last.
    client: Option<ClientId>,
    /// The process id of a client that it has not been told of.
    due: Option<u32>,
}

impl ClientIdentity {
    pub(super) fn new(key: HandOverKey) -> Self {
        Self { key, client: None, due: None }
    }

    /// What comes next is this client's.
    pub(super) fn is_now(&mut self, client: ClientId, process: u32) {
        if self.client != Some(client) {
            self.client = Some(client);
            self.due = Some(process);
        }
    }

    /// Whether the next message has something before it.
    pub(super) fn is_due(&self) -> bool {
        self.due.is_some()
    }

    /// Whether this is the number of the function that only the pooler calls.
    pub(super) fn is_of(&self, function: u32) -> bool {
        self.key.function == function
    }
}
