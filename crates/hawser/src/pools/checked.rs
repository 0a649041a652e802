//! A server's answers about start values.
//!
//! # Model
//! Two generations. Requested values go to the young one; when that is full it becomes the old one,
//! and the former old one is dropped. So values that logins ask for repeatedly stay, and a client
//! that always asks for new values displaces its own.
//!
//! # Limits  [`YOUNG_MAX`] answers a generation

use std::collections::HashMap;

use hawser_pooler::wire::error::ClientError;
use hawser_pooler::wire::startup::Pair;

/// Answers of one generation.
const YOUNG_MAX: usize = 512;

/// A start value that the server has been asked about.
pub type CheckedValue = Result<Box<[u8]>, ClientError>;

/// Answers about start values, of one pool.
#[derive(Default, Debug)]
pub(super) struct CheckedValues {
    young: HashMap<Pair, CheckedValue>,
    old: HashMap<Pair, CheckedValue>,
}

impl CheckedValues {
    /// The server's answer.
    pub(super) fn get(&mut self, name: &[u8], value: &[u8]) -> Option<CheckedValue> {
        let pair: Pair = (name.into(), value.into());
        if let Some(answer) = self.young.get(&pair) {
            return Some(answer.clone());
        }
        let answer = self.old.remove(&pair)?;
        self.insert(pair, answer.clone());
        Some(answer)
    }

    /// Keeps the server's answer.
    pub(super) fn keep(&mut self, name: &[u8], value: &[u8], answer: CheckedValue) {
        self.insert((name.into(), value.into()), answer);
    }

    fn insert(&mut self, pair: Pair, answer: CheckedValue) {
        if self.young.len() >= YOUNG_MAX {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(pair, answer);
    }

    /// Forgets all.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_with_ever_new_values_forgets_no_others() {
        let mut checked = CheckedValues::default();
        checked.keep(b"extra_float_digits", b"3", Ok(b"3"[..].into()));
        for number in 0..10 * YOUNG_MAX {
            checked.keep(b"work_mem", number.to_string().as_bytes(), Ok(b"1MB"[..].into()));
            if number % (YOUNG_MAX / 2) == 0 {
                // An occasional login.
                assert!(checked.get(b"extra_float_digits", b"3").is_some(), "after {number}");
            }
        }
        assert!(checked.young.len() + checked.old.len() <= 2 * YOUNG_MAX);
        assert!(checked.get(b"work_mem", b"1").is_none());
        checked.clear();
        assert!(checked.get(b"extra_float_digits", b"3").is_none());
    }
}
