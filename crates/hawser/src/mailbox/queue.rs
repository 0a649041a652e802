//! The queue itself. Compiled twice: with the standard library's primitives, and, for the test of
//! schedules, with ones that try many interleavings.

use super::sync::{AtomicBool, Mutex, MutexGuard, Ordering, PoisonError};

/// Wakes a receiver that rests.
pub trait Wake {
    /// Makes the receiver's present or next wait end. Called without the lock.
    fn wake(&self);
}

/// Messages for one receiver.
#[derive(Debug)]
pub struct Mailbox<T, W> {
    messages: Mutex<Vec<T>>,
    /// There are messages. Changed only under the lock, and read without it by the receiver, which
    /// asks once a turn and mostly finds none.
    filled: AtomicBool,
    /// The receiver sleeps, or is about to. Set under the lock; cleared by any sender.
    resting: AtomicBool,
    wake: W,
}

impl<T, W: Wake> Mailbox<T, W> {
    /// An empty one, whose receiver does not rest.
    pub fn new(wake: W) -> Self {
        Self {
            messages: Mutex::new(Vec::new()),
            filled: AtomicBool::new(false),
            resting: AtomicBool::new(false),
            wake,
        }
    }

    /// Wakes the receiver whether it rests or not: for news that comes by other means than a
    /// message.
    pub fn waker(&self) -> &W {
        &self.wake
    }

    /// A push and a swap leave the vector consistent wherever they might panic.
    fn lock(&self) -> MutexGuard<'_, Vec<T>> {
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a message in, and wakes the receiver if it rests. Never waits.
    pub fn send(&self, message: T) {
        self.leave(message);
        self.wake_if_resting();
    }

    /// Puts in a message that can wait until the receiver wakes for something else, or is [nudged].
    ///
    /// [nudged]: Mailbox::nudge
    pub fn leave(&self, message: T) {
        let mut messages = self.lock();
        messages.push(message);
        self.filled.store(true, Ordering::Release);
    }

    /// Wakes the receiver if it rests and there is something for it.
    pub fn nudge(&self) {
        if self.filled.load(Ordering::Acquire) {
            self.wake_if_resting();
        }
    }

    /// The plain load keeps the flag's cache line shared while the receiver is awake. It may be
    /// relaxed: a sender that leaves the lock after the receiver rested sees the flag through the
    /// lock.
    fn wake_if_resting(&self) {
        if self.resting.load(Ordering::Relaxed) && self.resting.swap(false, Ordering::Relaxed) {
            self.wake.wake();
        }
    }

    /// The receiver has stopped waiting, for whatever reason: senders need not wake it until it
    /// rests again.
    pub fn woken(&self) {
        self.resting.store(false, Ordering::Relaxed);
    }

    /// Appends all messages to `into`. One that is being put in meanwhile may stay: it keeps
    /// [`Mailbox::try_rest`] from resting.
    #[inline]
    pub fn take(&self, into: &mut Vec<T>) {
        if self.filled.load(Ordering::Acquire) {
            self.take_all(into);
        }
    }

    fn take_all(&self, into: &mut Vec<T>) {
        let mut messages = self.lock();
        self.filled.store(false, Ordering::Relaxed);
        if into.is_empty() {
            std::mem::swap(&mut *messages, into);
        } else {
            into.append(&mut messages);
        }
    }

    /// Announces that the receiver is going to wait, unless there are messages: then it takes
    /// them as [`Mailbox::take`] does and returns `false`.
    #[must_use = "a receiver that may not rest has messages to handle"]
    pub fn try_rest(&self, into: &mut Vec<T>) -> bool {
        let mut messages = self.lock();
        if messages.is_empty() {
            // Under the lock. Set after it is released, this would be the classic lost wake-up:
            // a message put in between finds no receiver at rest.
            self.resting.store(true, Ordering::Relaxed);
            return true;
        }
        self.filled.store(false, Ordering::Relaxed);
        if into.is_empty() {
            std::mem::swap(&mut *messages, into);
        } else {
            into.append(&mut messages);
        }
        false
    }
}
