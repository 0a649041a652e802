//! Whether the clients of a pool ask for the values that they draw from sequences, and after which
//! texts.
//!
//! # Model
//! A client may ask for the value (`lastval()`) in a later transaction than the one that draws it;
//! only the same server connection can answer. Once one client of a database has asked, every
//! client that draws keeps its connection until it asks, for [`KEPT_MAX`] at most, or
//! [`KEPT_WHILE_OTHERS_WAIT`]. Before, a client that draws keeps it as well, that the first question
//! is answered, until [`TRIES_MAX`] connections have been kept without a question. (Where the
//! server does not report who draws, only after a text that begins with INSERT, which the plain
//! lane distinguishes at no cost.)
//!
//! Few clients ask twice for the same value, or for that of another sequence (`currval()` of two).
//! Once one has, every client that has asked after the same text keeps its connection within the
//! same bounds.
//!
//! # Cost
//! An application asks only after some of its texts. A text that has drawn values [`UNASKED_MAX`]
//! times in a row without a question keeps no connection while other clients wait. Texts share a
//! counter by a hash of their first bytes; a question resets its text's counter.

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

/// How long a client keeps an idle server connection to ask for what it has drawn.
pub(crate) const KEPT_MAX: Duration = Duration::from_secs(1);

/// The same while other clients wait for a connection.
pub(crate) const KEPT_WHILE_OTHERS_WAIT: Duration = Duration::from_millis(250);

/// Transactions after the draw for which it is kept.
pub(crate) const KEPT_TRANSACTIONS_MAX: u8 = 16;

/// How often in a row a connection may be kept after a text without a question.
const UNASKED_MAX: u8 = 8;

/// How many connections clients of a database that has never asked may keep without a question.
const TRIES_MAX: u8 = 32;

/// Counters that texts share.
const TEXTS: usize = 128;

/// Bytes by which texts are distinguished: up to the table's name in an INSERT.
const HEAD_BYTES: usize = 40;

/// Which counter a text has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TextClass(u8);

impl TextClass {
    /// The class of the text that draws.
    pub fn of(text: &[u8]) -> Self {
        let head = text.iter().take(HEAD_BYTES).take_while(|byte| **byte != b'(');
        let hash = head.fold(0u32, |hash, byte| {
            (hash ^ u32::from(byte.to_ascii_lowercase())).wrapping_mul(0x0100_0193)
        });
        Self((hash >> 8) as u8 % TEXTS as u8)
    }
}

/// What is known of a database about questions for values of sequences.
#[derive(Debug)]
pub struct Asking {
    has_asked: AtomicBool,
    tries: AtomicU8,
    unasked: [AtomicU8; TEXTS],
    has_asked_again: AtomicBool,
    /// How often a connection may still be kept for a second question that does not come, while
    /// others wait.
    again: [AtomicU8; TEXTS],
}

/// What is known about a client's questions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Asks {
    /// It has never asked.
    #[default]
    Never,
    /// It has asked, and drawn since.
    Before,
    /// It has not drawn since it asked, except by the text that asked; the text that drew, if
    /// known.
    Last(Option<TextClass>),
}

impl Asks {
    /// The client draws a value.
    pub fn draws(&mut self) {
        if let Self::Last(_) = self {
            *self = Self::Before;
        }
    }
}

impl Default for Asking {
    fn default() -> Self {
        Self {
            has_asked: AtomicBool::new(false),
            tries: AtomicU8::new(0),
            unasked: std::array::from_fn(|_| AtomicU8::new(0)),
            has_asked_again: AtomicBool::new(false),
            again: std::array::from_fn(|_| AtomicU8::new(0)),
        }
    }
}

impl Asking {
    /// A client asks for currval or lastval.
    pub fn note_question(&self) {
        self.has_asked.store(true, Ordering::Relaxed);
    }

    /// Whether any client has asked.
    #[inline]
    pub fn has_asked(&self) -> bool {
        self.has_asked.load(Ordering::Relaxed)
    }

    /// Whether clients that draw keep their connections though none has ever asked.
    #[inline]
    pub fn tries(&self) -> bool {
        !self.has_asked() && self.tries.load(Ordering::Relaxed) < TRIES_MAX
    }

    /// A client has asked for what this text drew.
    pub fn note_use(&self, text: TextClass) {
        self.unasked[usize::from(text.0)].store(0, Ordering::Relaxed);
    }

    /// A client has asked once more for what this text drew, or a text that is not known.
    pub fn note_again(&self, text: Option<TextClass>) {
        self.has_asked_again.store(true, Ordering::Relaxed);
        let of = text.map_or(0..TEXTS, |text| usize::from(text.0)..usize::from(text.0) + 1);
        self.again[of].iter().for_each(|left| left.store(UNASKED_MAX, Ordering::Relaxed));
    }

    /// A connection was kept after a question for what this text drew, and no other question came.
    pub fn note_waste_of_again(&self, text: TextClass) {
        let less = |left: u8| Some(left.saturating_sub(1));
        let left = &self.again[usize::from(text.0)];
        let _ = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// A connection was kept after this text, and no question came.
    pub fn note_waste(&self, text: TextClass) {
        let add = |count: u8| Some(count.saturating_add(1));
        let counter =
            if self.has_asked() { &self.unasked[usize::from(text.0)] } else { &self.tries };
        let _ = counter.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    /// Whether a client of these questions keeps its connection for the next one.
    pub fn is_kept_for(&self, asks: Asks, text: TextClass, others_wait: bool) -> bool {
        let (has_asked, expected) = match asks {
            Asks::Last(_) => {
                let left = self.again[usize::from(text.0)].load(Ordering::Relaxed);
                (self.has_asked_again.load(Ordering::Relaxed), left > 0)
            }
            Asks::Never | Asks::Before => (self.has_asked(), self.is_expected_after(text)),
        };
        expected || (has_asked && !others_wait)
    }

    /// Whether a question is expected after this text though others wait.
    fn is_expected_after(&self, text: TextClass) -> bool {
        if self.has_asked() {
            self.unasked[usize::from(text.0)].load(Ordering::Relaxed) < UNASKED_MAX
        } else {
            self.tries.load(Ordering::Relaxed) < TRIES_MAX
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_is_kept_for_until_no_question_has_come_some_times() {
        let asking = Asking::default();
        asking.note_question();
        let (one, other) =
            (TextClass::of(b"INSERT INTO t (a) VALUES (1)"), TextClass::of(b"INSERT INTO u (a)"));
        assert_eq!(one, TextClass::of(b"insert into t (a) values (2)"));
        assert_ne!(one, other);
        for _ in 0..UNASKED_MAX {
            assert!(asking.is_expected_after(one));
            asking.note_waste(one);
        }
        assert!(!asking.is_expected_after(one));
        assert!(asking.is_expected_after(other));
        asking.note_use(one);
        assert!(asking.is_expected_after(one));
    }

    #[test]
    fn another_question_is_expected_where_one_has_come_until_none_has_some_times() {
        let asking = Asking::default();
        asking.note_question();
        let (one, other) = (TextClass(1), TextClass(2));
        let last = Asks::Last(Some(one));
        assert!(!asking.is_kept_for(last, one, false), "none has asked again");
        asking.note_again(Some(one));
        for _ in 0..UNASKED_MAX {
            assert!(asking.is_kept_for(last, one, true));
            asking.note_waste_of_again(one);
        }
        assert!(!asking.is_kept_for(last, one, true) && asking.is_kept_for(last, one, false));
        assert!(!asking.is_kept_for(last, other, true));
        asking.note_again(None);
        assert!(asking.is_kept_for(last, one, true) && asking.is_kept_for(last, other, true));
    }

    #[test]
    fn a_pool_that_never_asks_keeps_in_vain_some_times_in_all() {
        let asking = Asking::default();
        for n in 0..TRIES_MAX {
            let text = TextClass(n % TEXTS as u8);
            assert!(asking.is_expected_after(text));
            asking.note_waste(text);
        }
        assert!(!asking.is_expected_after(TextClass(100)));
        asking.note_question();
        assert!(asking.is_expected_after(TextClass(100)));
    }
}
