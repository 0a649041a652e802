//! How a client is served, and what is in flight for it.

use crate::engine::about::{ClientState, PoolMode};

/// How a client is served.
pub(in crate::engine) struct Serving {
    mode: PoolMode,
    exclusive: bool,
    state: ClientState,
    held: bool,
    failed: bool,
}

impl Serving {
    /// Of a client that is idle. `exclusive`: its backend was opened for it alone and serves no other client.
    pub(in crate::engine) fn new(mode: PoolMode, exclusive: bool) -> Self {
        Self { mode, exclusive, state: ClientState::Idle, held: false, failed: false }
    }

    #[inline]
    pub(in crate::engine) fn mode(&self) -> PoolMode {
        self.mode
    }

    /// Whether its backend was opened for it alone and serves no other client.
    #[inline]
    pub(in crate::engine) fn is_exclusive(&self) -> bool {
        self.exclusive
    }

    #[inline]
    pub(in crate::engine) fn state(&self) -> ClientState {
        self.state
    }

    /// It has no backend and wants none.
    #[inline]
    pub(in crate::engine) fn rest(&mut self) {
        self.state = ClientState::Idle;
    }

    /// It wants a backend.
    #[inline]
    pub(in crate::engine) fn wait(&mut self) {
        self.state = ClientState::Waiting;
    }

    /// It has a backend.
    #[inline]
    pub(in crate::engine) fn begin(&mut self) {
        self.state = ClientState::Active;
    }

    /// It has been sent goodbye, and is closed once it has taken that.
    pub(in crate::engine) fn close(&mut self) {
        self.state = ClientState::Closing;
    }

    /// Whether its next message waits until everything outstanding is answered.
    #[inline]
    pub(in crate::engine) fn is_held(&self) -> bool {
        self.held
    }

    /// Its next message waits for that.
    pub(in crate::engine) fn hold(&mut self) {
        self.held = true;
    }

    /// Whether its next message waits for that from now on.
    #[inline]
    pub(in crate::engine) fn hold_if(&mut self, waits: bool) {
        self.held = waits;
    }

    /// Its next message no longer waits. Whether it did.
    #[inline]
    pub(in crate::engine) fn release(&mut self) -> bool {
        std::mem::take(&mut self.held)
    }

    /// Whether an answer to it failed since the last ReadyForQuery.
    #[inline]
    pub(in crate::engine) fn has_failed(&self) -> bool {
        self.failed
    }

    /// An answer to it fails.
    pub(in crate::engine) fn fail(&mut self) {
        self.failed = true;
    }

    /// A ReadyForQuery has come. Returns whether an answer before it failed.
    #[inline]
    pub(in crate::engine) fn take_failed(&mut self) -> bool {
        std::mem::take(&mut self.failed)
    }

    /// Whether nothing is in flight for it, and any backend of its pool may serve it.
    pub(in crate::engine) fn may_move(&self) -> bool {
        let Self { mode: _, exclusive, state, held, failed } = self;
        *state == ClientState::Idle && !(*exclusive || *held || *failed)
    }
}
