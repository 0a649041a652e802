//! Locks that no panic closes.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Waits for it. What a thread that has panicked left is used as it is: each change under these locks is whole.
pub(crate) fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
