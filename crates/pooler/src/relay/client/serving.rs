//! How a client is served, and what is in flight for it.

use crate::relay::client_info::{ClientState, PoolMode};

/// How a client is served.
pub(crate) struct Serving {
    pub(crate) mode: PoolMode,
    /// Its backend was opened for it alone and serves no other client.
    pub(crate) exclusive: bool,
    pub(crate) state: ClientState,
    /// Its next message waits until everything outstanding is answered.
    pub(crate) held: bool,
    /// An answer to it failed since the last ReadyForQuery.
    pub(crate) failed: bool,
    /// A rule may match what it sends: see [`crate::parts::rules`].
    pub(crate) ruled: bool,
}

impl Serving {
    /// Of a client that is idle. `exclusive`: its backend was opened for it alone and serves no other client.
    pub(crate) fn new(mode: PoolMode, exclusive: bool) -> Self {
        Self { mode, exclusive, state: ClientState::Idle, held: false, failed: false, ruled: false }
    }

    /// Whether its server serves it, and no loop reads it.
    #[inline]
    pub(crate) fn is_inside(&self) -> bool {
        self.state == ClientState::Inside
    }

    /// Whether nothing is in flight for it, and any backend of its pool may serve it.
    pub(crate) fn may_move(&self) -> bool {
        let Self { mode: _, exclusive, state, held, failed, ruled: _ } = self;
        *state == ClientState::Idle && !(*exclusive || *held || *failed)
    }
}
