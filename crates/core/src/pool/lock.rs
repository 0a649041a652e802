//! What all locks of pools are taken by.

use std::sync::PoisonError;

/// A lock's content, also when a thread panicked while it held it: all that is done under these
/// locks leaves the content whole at each step.
pub(super) fn unpoisoned<T>(result: Result<T, PoisonError<T>>) -> T {
    result.unwrap_or_else(PoisonError::into_inner)
}
