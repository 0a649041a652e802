//! Backends of one user's pool whose server is informed which client it serves: its address and
//! TLS.
//!
//! # Model
//! The same message as in [`crate::parts::identity::hand_over`], without a user: the session stays that of the role
//! that has logged in. It is sent before the first message of a client, in the same write, unless
//! that client was the last one sent; its answer is not waited for. A message that the extension
//! rejects ends the session before anything after it. If the function is gone the server goes on as
//! the same user: then it keeps the last address, and the connection is replaced when its client
//! gives it back.
//!
//! # Limits
//! SET ROLE and SET SESSION AUTHORIZATION end with it: they are set again after it.

mod steps;

use crate::ids::ClientId;
use crate::parts::identity::hand_over::HandOverKey;

/// What a backend's server has been sent, or is to be sent.
#[derive(Debug)]
pub(crate) struct ClientIdentity {
    key: HandOverKey,
    /// The client that was sent last.
    client: Option<ClientId>,
    /// The process id of a client that is still to be sent.
    due: Option<u32>,
}

impl ClientIdentity {
    pub(crate) fn new(key: HandOverKey) -> Self {
        Self { key, client: None, due: None }
    }

    /// The next message is this client's.
    pub(crate) fn is_now(&mut self, client: ClientId, process: u32) {
        if self.client != Some(client) {
            self.client = Some(client);
            self.due = Some(process);
        }
    }

    /// Whether the identity is to be sent before the next message.
    pub(crate) fn is_due(&self) -> bool {
        self.due.is_some()
    }

    /// Whether this is the oid of the function that only the pooler calls.
    pub(crate) fn is_of(&self, function: u32) -> bool {
        self.key.function == function
    }
}
