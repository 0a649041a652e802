//! How threads give messages to an event loop that may be asleep.
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
//!   there. A sender that locks later therefore sees it, and one that locked earlier has left
//!   something there, so that the receiver does not rest
//! * one rest costs at most one wake-up, however many the senders are
//! * what is left for a receiver that rests ([`Mailbox::leave`]) wakes it not, and is there when
//!   anything else does
//! * messages of one sender come in its order
//!
//! # Cost
//! A send to a loop that is awake is a lock and a push (some 20 ns); the write to the eventfd
//! (about 0.5 us, and an event in the other loop) is paid only where a loop sleeps. A turn takes the
//! lock once, and a second time only where something has come in between.
//!
//! # Why not a lock-free queue
//! Each turn of a loop takes the lock once or twice, and the lock is held for a push or a swap. What such
//! a queue would save is not measurable beside one system call, and the rest protocol would need
//! fences of its own.

/// What [`queue`] is made of. Its schedules are tested with other ones that have the same names.
mod sync {
    pub(super) use std::sync::atomic::{AtomicBool, Ordering};
    pub(super) use std::sync::{Mutex, MutexGuard, PoisonError};
}

mod queue;
#[cfg(test)]
mod schedules;

use std::sync::Arc;

use hawser_core::engine::{Socket, ToLoop};
use hawser_sys::eventfd::EventFd;

use crate::intake::Crossing;

pub use queue::{Mailbox, Wake};

/// What comes to an event loop.
#[derive(Debug)]
pub enum Letter<S: Socket> {
    /// For its engine.
    Engine(ToLoop<S>),
    /// For its host, about a connection that changes its loop.
    Crossing(Crossing),
}

/// The mailbox of one event loop.
pub type LoopMailbox<S> = Arc<Mailbox<Letter<S>, EventFd>>;

impl Wake for EventFd {
    fn wake(&self) {
        if let Err(error) = self.signal() {
            // eventfd(2) knows no failure of this write: the loop still looks at its mailbox
            // when its timeout ends, a second later at most.
            tracing::error!(%error, "an event loop could not be woken");
        }
    }
}
