//! How all locks of pools are taken.

use std::sync::PoisonError;

/// A lock's content, also when a thread panicked while it held it: every step under these locks
/// leaves the content consistent.
pub(crate) fn unpoisoned<T>(result: Result<T, PoisonError<T>>) -> T {
    result.unwrap_or_else(PoisonError::into_inner)
}
