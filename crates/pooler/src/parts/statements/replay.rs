//! "cached plan must not change result type", and shared statements that the server has lost:
//! healed if no client can notice.
//!
//! # The trap
//! After DDL an earlier prepared statement may give other columns; the server then refuses to run
//! it (`RevalidateCachedQuery`, plancache.c). A client that shares it, and prepared it after the
//! DDL or never looked at its columns, has done nothing wrong (trap 6). Nor has one whose shared
//! statement was removed unnoticed: by a DEALLOCATE ALL within a function, for example.
//!
//! # Model
//! A pipeline that begins with a Bind of a shared statement outside a transaction is kept as the
//! client sent it, until its first answer. If that is the server's refusal, the client does not get
//! it: the statement is prepared again and described, and the pipeline sent once more.
//!
//! ```text
//! Recording ──refusal──► Swallowing ──ready──► Checking ──as the client knows it──► sent again
//!     │ first answer         (up to its Sync)      └──────otherwise───► the refusal is passed on
//!     ▼
//!    Idle
//! ```
//!
//! # Invariants
//! * never within a transaction block, never after an answer to the pipeline (so none of it has
//!   been carried out: the refusal comes at the first Bind, and the rest was ignored), never twice
//! * a client that has a description of the statement gets rows of that description, also if the
//!   pipeline asks for it again; the same for parameters

mod steps;

use crate::parts::statements::description::{Seen, Shape};
use crate::relay::limits;
use crate::wire::error::field;
use crate::wire::{build, frontend};

/// Whether an error about a shared statement means that it was prepared before its result changed,
/// or that the server does not have it. Only Hawser uses its name: something has removed it
/// unnoticed, and the next client must not find that again.
pub(crate) fn is_stale_or_lost(error: &[u8]) -> bool {
    match field(error, b'C') {
        Some(b"0A000") => field(error, b'R') == Some(b"RevalidateCachedQuery"),
        Some(b"26000") => true,
        _ => false,
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Healing {
    /// Nothing is kept.
    #[default]
    Idle,
    /// The pipeline is kept; `ended`: with its Sync.
    Recording { ended: bool },
    /// The refusal came; its ReadyForQuery has not.
    Swallowing,
    /// The statement is being prepared and described.
    Checking,
}

/// A pipeline that may be sent again.
#[derive(Debug, Default)]
pub(crate) struct Replay {
    healing: Healing,
    bytes: Vec<u8>,
    /// Serial of the client's name for the statement; 0: it is sent again to another server only.
    serial: u32,
    /// It begins a transaction, and may go to another server: see [`crate::relay::start_again`].
    moves: bool,
    /// It is being sent again: not a third time.
    again: bool,
    /// The server's refusal.
    refusal: Vec<u8>,
    /// The statement's current description.
    now: Shape,
    /// It could not be prepared again.
    failed: bool,
}

impl Replay {
    /// Whether a refusal is being healed: nothing else may be sent meanwhile.
    pub(crate) fn is_healing(&self) -> bool {
        matches!(self.healing, Healing::Swallowing | Healing::Checking)
    }

    pub(crate) fn is_checking(&self) -> bool {
        self.healing == Healing::Checking
    }

    /// Nothing is sent again: an answer came, or the client left.
    #[inline]
    pub(crate) fn forget(&mut self) {
        if self.healing != Healing::Idle {
            self.healing = Healing::Idle;
            self.refusal = Vec::new();
        }
    }

    /// Begins with a Bind, the first message since everything was answered.
    pub(crate) fn begin(&mut self, bind: &[u8], serial: u32) {
        if self.again || bind.len() > limits::REPLAY_BYTES {
            return;
        }
        self.healing = Healing::Recording { ended: false };
        self.bytes.clear();
        self.bytes.extend_from_slice(bind);
        (self.serial, self.moves) = (serial, false);
    }

    /// The same for a whole pipeline with only that Bind.
    #[inline]
    pub(crate) fn begin_whole(&mut self, pipeline: &[u8], serial: u32) {
        if self.again || pipeline.len() > limits::REPLAY_BYTES {
            return;
        }
        self.healing = Healing::Recording { ended: true };
        self.bytes.clear();
        self.bytes.extend_from_slice(pipeline);
        (self.serial, self.moves) = (serial, false);
    }

    /// Keeps a whole pipeline that begins a transaction, for another server.
    pub(crate) fn keep_first(&mut self, pipeline: &[u8]) {
        if self.is_idle() {
            self.begin_whole(pipeline, 0);
        }
        self.moves = !self.is_idle();
    }

    /// Whether a pipeline is kept that may go to another server.
    #[inline]
    pub(crate) fn may_move(&self) -> bool {
        self.moves && self.healing == (Healing::Recording { ended: true })
    }

    /// The pipeline that is kept.
    pub(crate) fn take(&mut self) -> Vec<u8> {
        self.forget();
        std::mem::take(&mut self.bytes)
    }

    /// Whether nothing is kept.
    #[inline]
    pub(crate) fn is_idle(&self) -> bool {
        self.healing == Healing::Idle
    }

    /// Keeps another message; `whole`: all of it has come.
    #[inline]
    pub(crate) fn record(&mut self, message: &[u8], whole: bool) {
        let Healing::Recording { ended } = self.healing else { return };
        let kind = message[0];
        let fits = whole && self.bytes.len() + message.len() <= limits::REPLAY_BYTES;
        let extended = matches!(
            kind,
            frontend::PARSE
                | frontend::BIND
                | frontend::DESCRIBE
                | frontend::EXECUTE
                | frontend::CLOSE
                | frontend::SYNC
        );
        if ended || !fits || !extended {
            self.forget();
            return;
        }
        self.bytes.extend_from_slice(message);
        self.healing = Healing::Recording { ended: kind == frontend::SYNC };
    }

    /// The server has refused the first Bind. Returns whether the client need not know, for now.
    pub(crate) fn refused(&mut self, error: &[u8]) -> bool {
        if self.healing != (Healing::Recording { ended: true }) || self.serial == 0 {
            return false;
        }
        self.healing = Healing::Swallowing;
        self.refusal.clear();
        build::message(&mut self.refusal, crate::wire::backend::ERROR, |out| {
            out.extend_from_slice(error);
        });
        (self.now, self.failed) = (Shape::default(), false);
        true
    }

    pub(crate) fn check_failed(&mut self) {
        self.failed = true;
    }

    /// The statement's current description; a 0 in it is unknown.
    pub(crate) fn now(&mut self, shape: Shape) {
        if shape.parameters != 0 {
            self.now.parameters = shape.parameters;
        }
        if shape.rows != 0 {
            self.now.rows = shape.rows;
        }
    }

    /// Whether the client gets what was described to it.
    fn is_as_seen(&self, seen: &Seen) -> bool {
        !self.failed && self.now.fits(seen.described())
    }
}
