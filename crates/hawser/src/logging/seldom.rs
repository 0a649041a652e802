//! Warnings that clients can cause as often as they like: once a minute for each subject.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::lock::locked;

/// The time between two warnings about a subject.
const EACH: Duration = Duration::from_secs(60);
/// Subjects that are told apart; further ones count as one.
const SUBJECTS_MAX: usize = 64;

/// When a warning was last written about each subject, and how many have been left out since.
#[derive(Debug, Default)]
pub struct Seldom(Mutex<Option<HashMap<String, (Instant, u64)>>>);

impl Seldom {
    /// Nothing has been written yet.
    pub const fn new() -> Self {
        Self(Mutex::new(None))
    }

    /// Whether to write one more about `subject`: how many were left out since the last, if so.
    pub fn may(&self, subject: &str) -> Option<u64> {
        self.may_at(subject, Instant::now())
    }

    fn may_at(&self, subject: &str, now: Instant) -> Option<u64> {
        let mut said = locked(&self.0);
        let said = said.get_or_insert_default();
        let is_due = |at: Instant| now.duration_since(at) >= EACH;
        if said.len() >= SUBJECTS_MAX && !said.contains_key(subject) {
            said.retain(|_, (at, _)| !is_due(*at));
        }
        let is_new = said.len() >= SUBJECTS_MAX && !said.contains_key(subject);
        match said.get_mut(if is_new { "" } else { subject }) {
            Some((at, left_out)) if !is_due(*at) => {
                *left_out += 1;
                None
            }
            Some((at, left_out)) => {
                *at = now;
                Some(std::mem::take(left_out))
            }
            None => {
                let subject = if is_new { "" } else { subject };
                said.insert(subject.to_owned(), (now, 0));
                Some(0)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_written_once_a_minute_for_each_subject_with_the_number_of_those_left_out() {
        let (seldom, start) = (Seldom::new(), Instant::now());
        assert_eq!(seldom.may_at("a", start), Some(0));
        assert_eq!(seldom.may_at("b", start), Some(0));
        for millis in 0..587 {
            assert_eq!(seldom.may_at("a", start + Duration::from_millis(millis)), None);
        }
        let just_before = start + EACH.checked_sub(Duration::from_millis(1)).unwrap();
        assert_eq!(seldom.may_at("a", just_before), None);
        assert_eq!(seldom.may_at("a", start + EACH), Some(588));
        assert_eq!(seldom.may_at("b", start + EACH), Some(0));
    }

    #[test]
    fn subjects_that_clients_make_up_take_bounded_memory_and_lines() {
        let (seldom, start) = (Seldom::new(), Instant::now());
        let written = |now| (0..1000).filter_map(|n| seldom.may_at(&n.to_string(), now)).count();
        assert_eq!(written(start), SUBJECTS_MAX + 1);
        assert_eq!(written(start + EACH), SUBJECTS_MAX + 1);
    }
}
