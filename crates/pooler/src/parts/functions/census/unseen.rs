//! Names that a text calls and that no census has seen: a function may have been made past every pool since.
//!
//! # Model
//! A census knows the names of all functions, relations and types of its database, and the server's
//! keywords. A word before `(` that is none of these may be a new function, with unknown effects: the
//! server connection is closed when its client gives it back, and the host takes the census again. A name
//! that is not there then either (an alias with columns, say) does nothing from then on.
//!
//! # Limits
//! In a text without comments, backslashes and quoting but that of strings, strings are not looked
//! into. Of words after which no call can stand ([`NO_CALL_AFTER`]) the next one is not looked up.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};

use crate::hash::Keyed;
use crate::parts::functions::census::word::{NAME_BYTES_MAX, QUOTED, Word, key, truncated};

/// Names that wait for the next census: beyond these, one that is not kept waits for the one after.
const UNSEEN_MAX: usize = 1000;
/// Names that were looked for in vain and are remembered.
const ABSENT_MAX: usize = 10_000;

/// The next word is a name that is given, or a relation's, or a statement's.
const NO_CALL_AFTER: [&[u8]; 10] = [
    b"as",
    b"execute",
    b"exists",
    b"function",
    b"into",
    b"prepare",
    b"procedure",
    b"recursive",
    b"references",
    b"table",
];

/// Such functions of the server run the queries in their strings.
const TO_XML: &[u8] = b"_to_xml";

/// A set of names.
pub type Names = HashSet<Word, Keyed>;

/// The names that a census knows.
#[derive(Clone, Debug)]
pub(super) struct Seen {
    /// Those of the server itself, which databases share.
    servers: Arc<Names>,
    own: Arc<Names>,
    absent: Names,
}

/// What the texts have called since.
#[derive(Debug, Default)]
pub(super) struct Unseen(Mutex<HashSet<Word>>);

impl Seen {
    pub(super) fn new(servers: Arc<Names>, own: impl Iterator<Item = Word>) -> Self {
        let hash = *servers.hasher();
        let mut names = Names::with_hasher(hash);
        names.extend(own.map(|name| key(&name)));
        Self { servers, own: Arc::new(names), absent: Names::with_hasher(hash) }
    }

    fn has(&self, name: &[u8]) -> bool {
        self.own.contains(name) || self.servers.contains(name) || self.absent.contains(name)
    }

    /// The same, and what texts have made since by another's word.
    pub(super) fn and(&self, other: &Self) -> Self {
        let mut all = self.clone();
        all.are_absent(other.absent.iter().cloned());
        all
    }

    /// These were looked for in vain.
    pub(super) fn are_absent(&mut self, names: impl ExactSizeIterator<Item = Word>) {
        if self.absent.len() + names.len() > ABSENT_MAX {
            self.absent.clear();
        }
        self.absent.extend(names);
    }

    /// A text is about to make this.
    pub(super) fn add(&mut self, name: Word) {
        self.absent.insert(name);
    }
}

impl PartialEq for Seen {
    fn eq(&self, other: &Self) -> bool {
        let same = |one: &Arc<Names>, two: &Arc<Names>| Arc::ptr_eq(one, two) || one == two;
        same(&self.servers, &other.servers)
            && same(&self.own, &other.own)
            && self.absent == other.absent
    }
}

impl Eq for Seen {}

impl PartialEq for Unseen {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Unseen {}

impl Unseen {
    fn add(&self, name: &[u8]) {
        let mut names = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if names.len() < UNSEEN_MAX {
            names.insert(name.into());
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    pub(super) fn take(&self) -> HashSet<Word> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Finds what a text calls, byte by byte.
#[derive(Clone, Debug)]
pub(super) struct Calls {
    word: [u8; NAME_BYTES_MAX + 1],
    /// Of the word that may be called; 0: there is none.
    length: usize,
    /// The same before a byte that may begin a comment.
    held: usize,
    /// The word before it was one of [`NO_CALL_AFTER`].
    given: bool,
    next_given: bool,
    in_string: bool,
    /// Strings cannot be told from the rest, or are code.
    odd: bool,
    /// Within double quotes; and the name in them is more than one plain word.
    in_quotes: bool,
    odd_name: bool,
    words: usize,
    previous: u8,
    any: bool,
}

impl Default for Calls {
    fn default() -> Self {
        Self {
            word: [0; NAME_BYTES_MAX + 1],
            length: 0,
            held: 0,
            given: false,
            next_given: false,
            in_string: false,
            odd: false,
            in_quotes: false,
            odd_name: false,
            words: 0,
            previous: b' ',
            any: false,
        }
    }
}

impl Calls {
    /// A word has ended.
    pub(super) fn word(&mut self, word: &[u8; NAME_BYTES_MAX + 1], length: usize) {
        if length == 0 {
            return; // the text has ended
        }
        (self.word, self.length) = (*word, length);
        let word = &word[..length];
        self.odd |= self.words == 0 && word == b"do"
            || word.len() >= TO_XML.len() && memchr::memmem::find(word, TO_XML).is_some();
        self.odd_name |= self.in_quotes && word[0].is_ascii_digit();
        self.words += 1;
        let gives = NO_CALL_AFTER.contains(&word) && !(self.odd && word == b"execute");
        self.given = std::mem::replace(&mut self.next_given, gives);
    }

    /// The word, or the name in quotes, before this is called, or may be.
    fn called(&mut self, length: usize, seen: &Seen, unseen: &Unseen) {
        let word = truncated(&self.word[..length]);
        let name = match (self.odd_name, word.first()) {
            (true, _) => QUOTED,
            (false, None) => return,
            // A number, or a parameter.
            (false, Some(first)) if first.is_ascii_digit() || *first == b'$' => return,
            (false, Some(_)) => word,
        };
        if !self.given && !seen.has(name) {
            unseen.add(name);
            self.any = true;
        }
    }

    /// A byte that belongs to no word.
    pub(super) fn byte(&mut self, byte: u8, seen: &Seen, unseen: &Unseen) {
        let is_read = self.odd || !self.in_string;
        let begins_comment = matches!((self.previous, byte), (b'-', b'-') | (b'/', b'*'));
        match byte {
            b'\'' => self.in_string = !self.in_string,
            b'(' if is_read => self.called(self.length, seen, unseen),
            b'"' => {
                self.in_quotes = !self.in_quotes;
                // (After the quotes `previous` is the byte before the last word.)
                self.odd_name = if self.in_quotes { false } else { self.odd_name };
                self.odd = true;
            }
            b'\\' | b'$' => self.odd = true,
            _ if begins_comment => {
                self.odd = true;
                // What may stand after the comment is not waited for.
                self.called(self.held, seen, unseen);
            }
            _ => {}
        }
        if byte != b'"' {
            self.odd_name |= self.in_quotes;
        }
        self.held = if matches!(byte, b'-' | b'/') { self.length } else { 0 };
        if !byte.is_ascii_whitespace() && byte != b'"' {
            self.length = 0;
            self.odd_name &= self.in_quotes;
        }
        self.previous = byte;
    }

    /// Whether something was called that the census has not seen.
    pub(super) fn any(&self) -> bool {
        self.any
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parts::functions::census::{Census, PlanReads};
    use crate::relay::effects::Effect;

    fn census() -> Arc<Census> {
        let mut servers = Names::with_hasher(Keyed(1));
        let words: [&[u8]; 7] = [b"as", b"count", b"in", b"or", b"select", b"values", b"where"];
        servers.extend(words.map(Word::from));
        let own = [b"Known"[..].into(), b"t"[..].into()];
        Arc::new(
            Census::take(&[], &[], |_| false, 1).with_names(Arc::new(servers), own.into_iter()),
        )
    }

    #[test]
    fn a_call_that_no_census_has_seen_closes_the_connection_until_it_was_looked_for() {
        let known = census();
        assert_eq!(known.plans_read(), PlanReads::Own);
        for text in [
            "select known(1), count(*) from t where a in (1, 2)",
            "insert into other (a) values (1)",
            "select 'new_one(1)', 2 * (3)",
            "with x as (select 1) select a from b as y(a)",
            "create table z (a int)",
            "execute s (1)",
            "insert into \"t\" (\"a\") values (\"known\" (1))",
            "select new_one",
            "select a from t where a = $1 /* x */",
            "select $1--x",
        ] {
            assert_eq!(known.of_text(text.as_bytes()), None, "{text}");
        }
        assert!(!known.has_unseen());
        for text in [
            "select new_one(1)",
            "select NEW_ONE (1)",
            "select s.\"new_one\" (1)",
            "select /* it's */ new_one('x')",
            "select E'\\'', new_one('x')",
            "do $$ begin perform 'it''s', new_one(1); end $$",
            "select 1 where 'a' = 'b' or new_one(1)",
            "select new_one/**/(1)",
            "select new_one --x\n(1)",
            "do 'begin perform new_one(1); end'",
            "do $$ begin execute new_one(1); end $$",
        ] {
            assert!(
                known.of_text(text.as_bytes()).is_some_and(|found| found.may(Effect::Spoils)),
                "{text}"
            );
        }
        for text in
            ["select \"x count\"('t')", "select \"new-1f\" (1)", "select U&\"n\\0065w\"('t')"]
        {
            assert!(
                known.of_text(text.as_bytes()).is_some_and(|found| found.may(Effect::Spoils)),
                "{text}"
            );
        }
        let mut names = known.take_unseen();
        assert!(names.remove(&b"\""[..]));
        assert_eq!(
            names,
            HashSet::from([b"new_one"[..].into(), b"x"[..].into()]),
            "x after --, too"
        );
        let known = Arc::new(known.without(names));
        assert_eq!(known.of_text(b"select new_one(1)"), None);
        let later = Arc::new(Arc::into_inner(census()).unwrap().remembering(&known));
        assert_eq!(later.of_text(b"select new_one(1)"), None);
        assert!(!known.has_unseen() && !later.has_unseen());
    }

    #[test]
    fn any_bytes_are_read() {
        let known = census();
        let pieces = [
            "", "(", "\"", "\"(", "--", "/*", "-", "/", "'", "$", "\\", "do", " ", "1", "f",
            "\u{e9}",
        ];
        for one in pieces {
            for two in pieces {
                for three in pieces {
                    let _ = known.of_text([one, two, three, "("].concat().as_bytes());
                    let _ = known.of_text([one, two, three].concat().as_bytes());
                }
            }
        }
        let long = "x".repeat(200);
        let _ = known.of_text(format!("{long}({long}").as_bytes());
    }
}
