//! How a client is served, and what is in flight for it.

use crate::relay::client_info::{ClientState, PoolMode};

/// Whether there is anything particular about a client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Case {
    Ordinary,
    /// A rule may match what it sends: see [`crate::parts::rules`].
    Ruled,
    /// Its backend was opened for it alone and serves no other client. No rule matches what it sends.
    Exclusive,
}

/// How a client is served.
pub(crate) struct Serving {
    pub(crate) mode: PoolMode,
    case: Case,
    pub(crate) state: ClientState,
    /// Its next message waits until everything outstanding is answered.
    pub(crate) held: bool,
    /// An answer to it failed since the last ReadyForQuery.
    pub(crate) failed: bool,
}

impl Serving {
    /// Of a client that is idle. `exclusive`: its backend was opened for it alone and serves no other client.
    pub(crate) fn new(mode: PoolMode, exclusive: bool) -> Self {
        let case = if exclusive { Case::Exclusive } else { Case::Ordinary };
        Self { mode, case, state: ClientState::Idle, held: false, failed: false }
    }

    /// Whether its backend was opened for it alone and serves no other client.
    #[inline]
    pub(crate) fn is_exclusive(&self) -> bool {
        self.case == Case::Exclusive
    }

    /// Whether a rule may match what it sends.
    #[inline]
    pub(crate) fn is_ruled(&self) -> bool {
        self.case == Case::Ruled
    }

    /// Whether it lets the plain lane run.
    #[inline]
    pub(crate) fn is_usual(&self) -> bool {
        let Self { mode, case, state: _, held: _, failed: _ } = self;
        *mode == PoolMode::Transaction && *case == Case::Ordinary
    }

    /// Rules `may` match what it sends, or none. Returns whether they may.
    pub(crate) fn set_ruled(&mut self, may: bool) -> bool {
        if self.case != Case::Exclusive {
            self.case = if may { Case::Ruled } else { Case::Ordinary };
        }
        self.is_ruled()
    }

    /// Whether its server serves it, and no loop reads it.
    #[inline]
    pub(crate) fn is_inside(&self) -> bool {
        self.state == ClientState::Inside
    }

    /// Whether nothing is in flight for it, and any backend of its pool may serve it.
    pub(crate) fn may_move(&self) -> bool {
        let Self { mode: _, case, state, held, failed } = self;
        *state == ClientState::Idle && !(*case == Case::Exclusive || *held || *failed)
    }
}
