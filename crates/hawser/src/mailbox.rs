//! How threads send messages to an event loop that may be asleep.
//!
//! # Model
//! ```text
//!   sender:    lock, push, unlock; if the loop rests: it rests no more, wake it
//!   receiver:  wait for events ─► woken() ─► work ─► take() ─► work ─► try_rest() ─► wait ...
//!                                                   ▲ something came │
//!                                                   └────────────────┘
//! ```
//! The receiver swaps the whole vector out, so that both vectors keep their memory: no allocation
//! in the steady state, and one lock for any number of messages.
//!
//! # Invariants
//! * no wake-up is lost: `resting` becomes true only under the lock and only while nothing is
//!   there. A sender that locks later therefore sees it, and one that locked earlier has left a
//!   message, so that the receiver does not rest
//! * one rest costs at most one wake-up, however many the senders are
//! * a message left for a resting receiver ([`Mailbox::leave`]) does not wake it, and is there when
//!   something else does
//! * messages of one sender come in its order
//!
//! # Cost
//! A send to a loop that is awake is a lock and a push (some 20 ns); the write to the eventfd
//! (about 0.5 us, and an event in the other loop) is needed only if a loop sleeps. A turn takes the
//! lock once, and a second time only if something has come in between.
//!
//! # Why not a lock-free queue
//! Each turn of a loop takes the lock once or twice, and the lock is held for a push or a swap. The
//! savings of such a queue are not measurable beside one system call, and the rest protocol would
//! need fences of its own.

/// The primitives of [`queue`]. The test of schedules replaces them by others with the same names.
mod sync {
    pub(super) use std::sync::atomic::{AtomicBool, Ordering};
    pub(super) use std::sync::{Mutex, MutexGuard, PoisonError};
}

mod queue;
#[cfg(test)]
mod schedules;

use std::sync::Arc;

use hawser_pooler::relay::ToLoop;
use hawser_sys::eventfd::EventFd;

pub use queue::{Mailbox, Wake};

/// The mailbox of one event loop.
pub type LoopMailbox<S> = Arc<Mailbox<ToLoop<S>, EventFd>>;

impl Wake for EventFd {
    fn wake(&self) {
        if let Err(error) = self.signal() {
            // eventfd(2) documents no failure of this write: the loop still looks at its mailbox
            // when its timeout ends, at most a second later.
            tracing::error!(%error, "an event loop could not be woken");
        }
    }
}
