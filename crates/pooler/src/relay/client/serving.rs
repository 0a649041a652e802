//! How a client is served, and what is in flight for it.

use crate::relay::client_info::{ClientState, PoolMode};

/// How a client is served.
pub(crate) struct Serving {
    mode: PoolMode,
    exclusive: bool,
    state: ClientState,
    held: bool,
    failed: bool,
}

impl Serving {
    /// Of a client that is idle. `exclusive`: its backend was opened for it alone and serves no other client.
    pub(crate) fn new(mode: PoolMode, exclusive: bool) -> Self {
        Self { mode, exclusive, state: ClientState::Idle, held: false, failed: false }
    }

    #[inline]
    pub(crate) fn mode(&self) -> PoolMode {
        self.mode
    }

    /// Whether its backend was opened for it alone and serves no other client.
    #[inline]
    pub(crate) fn is_exclusive(&self) -> bool {
        self.exclusive
    }

    #[inline]
    pub(crate) fn state(&self) -> ClientState {
        self.state
    }

    /// It has no backend and wants none.
    #[inline]
    pub(crate) fn rest(&mut self) {
        self.state = ClientState::Idle;
    }

    /// It wants a backend.
    #[inline]
    pub(crate) fn wait(&mut self) {
        self.state = ClientState::Waiting;
    }

    /// It has a backend.
    #[inline]
    pub(crate) fn begin(&mut self) {
        self.state = ClientState::Active;
    }

    /// Its server serves it, and no loop reads it.
    pub(crate) fn go_inside(&mut self) {
        self.state = ClientState::Inside;
    }

    /// It is served here again.
    pub(crate) fn come_back(&mut self) {
        self.state = ClientState::Idle;
    }

    /// Whether its server serves it, and no loop reads it.
    #[inline]
    pub(crate) fn is_inside(&self) -> bool {
        self.state == ClientState::Inside
    }

    /// It has been sent goodbye, and is closed once it has taken that.
    pub(crate) fn close(&mut self) {
        self.state = ClientState::Closing;
    }

    /// Whether its next message waits until everything outstanding is answered.
    #[inline]
    pub(crate) fn is_held(&self) -> bool {
        self.held
    }

    /// Its next message waits for that.
    pub(crate) fn hold(&mut self) {
        self.held = true;
    }

    /// Whether its next message waits for that from now on.
    #[inline]
    pub(crate) fn hold_if(&mut self, waits: bool) {
        self.held = waits;
    }

    /// Its next message no longer waits. Whether it did.
    #[inline]
    pub(crate) fn release(&mut self) -> bool {
        std::mem::take(&mut self.held)
    }

    /// Whether an answer to it failed since the last ReadyForQuery.
    #[inline]
    pub(crate) fn has_failed(&self) -> bool {
        self.failed
    }

    /// An answer to it fails.
    pub(crate) fn fail(&mut self) {
        self.failed = true;
    }

    /// A ReadyForQuery has come. Returns whether an answer before it failed.
    #[inline]
    pub(crate) fn take_failed(&mut self) -> bool {
        std::mem::take(&mut self.failed)
    }

    /// Whether nothing is in flight for it, and any backend of its pool may serve it.
    pub(crate) fn may_move(&self) -> bool {
        let Self { mode: _, exclusive, state, held, failed } = self;
        *state == ClientState::Idle && !(*exclusive || *held || *failed)
    }
}
