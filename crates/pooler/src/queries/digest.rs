//! Normalises a text: what differs between executions of one statement is taken out.
//!
//! # Model   each constant and each parameter becomes `?`; comments go; words outside of quotes are
//!           in lower case; white space is what the tokens need, wherever the client had put it.
//!           Elements of a list that are alike become one: of `IN (...)`, `ARRAY[...]`, and rows of
//!           `VALUES`. Names that drivers invent (of savepoints, cursors and prepared statements)
//!           become `?` as well.
//! ```text
//!   SELECT * FROM t WHERE a=-1.5e3 AND b IN ('x','y') -- why     select * from t where a = ? and b in (?)
//!   INSERT INTO t (a, b) VALUES ($1, $2), ($3, $4)               insert into t(a, b) values (?, ?)
//! ```
//! # Invariants  two texts with the same normalised text have the same digest; a digest is the same in
//!           every process and version of Hawser, so that rules can name it
//! # Limits  the first [`READ_BYTES_MAX`] bytes count. `standard_conforming_strings` is taken to be on. Two
//!           meanings can share a digest: `(1, 2)` and `(1)` in a list.

use std::fmt;
use std::hash::Hasher;
use std::str::FromStr;

use siphasher::sip::SipHasher13;

use crate::session::token::{Lexer, NUMBER, PARAMETER, Sink};

/// The bytes of a text that are read.
pub const READ_BYTES_MAX: usize = 16 * 1024;
/// The deepest nesting in which lists are folded.
const DEPTH_MAX: usize = 64;

/// The number of a normalised statement: 16 hexadecimal digits where people read it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Digest(pub u64);

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for Digest {
    type Err = std::num::ParseIntError;
    /// From up to 16 hexadecimal digits.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        u64::from_str_radix(text, 16).map(Self)
    }
}

/// The digest of a text, and the normalised text.
pub fn digest(text: &[u8]) -> (Digest, String) {
    let read = &text[..text.len().min(READ_BYTES_MAX)];
    let mut normaliser = Normaliser::new(read);
    let mut lexer = Lexer::new(true);
    lexer.feed(read, &mut normaliser);
    lexer.finish(&mut normaliser);
    let normal = normaliser.finish(read.len() < text.len());
    // Not keyed: the digest is for people and files, and no map relies on it against an attacker.
    let mut hasher = SipHasher13::new();
    hasher.write(normal.as_bytes());
    (Digest(hasher.finish()), normal)
}

/// The last token that was written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Last {
    /// None in this statement.
    None,
    /// A key word after which a value, not an operator, comes, and a parenthesis is no call.
    KeyWord,
    /// Any other word, or a name in quotes.
    Name,
    Value,
    Operator,
    /// `(` or `[`.
    Open,
    /// `)` or `]`.
    Close,
    Comma,
    /// `.` or `::`: nothing separates it from what follows.
    Binds,
}

/// Key words that end no operand.
const KEY_WORDS: [&str; 36] = [
    "all",
    "and",
    "array",
    "as",
    "between",
    "by",
    "call",
    "case",
    "default",
    "distinct",
    "else",
    "except",
    "from",
    "group",
    "having",
    "in",
    "intersect",
    "into",
    "join",
    "like",
    "limit",
    "not",
    "offset",
    "on",
    "or",
    "over",
    "returning",
    "select",
    "set",
    "then",
    "to",
    "union",
    "using",
    "values",
    "when",
    "where",
];

/// What the next name is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum NextName {
    Kept,
    /// A name that a driver may have invented. These words may precede it.
    Invented(&'static [&'static str]),
}

impl NextName {
    /// After the first word of a statement.
    fn after(first_word: &[u8]) -> Self {
        Self::Invented(match first_word {
            b"savepoint" | b"declare" => &[],
            b"release" => &["savepoint"],
            b"rollback" => &[
                "to",
                "work",
                "transaction",
                "savepoint",
                "prepared",
                "and",
                "no",
                "chain",
                "force",
            ],
            b"deallocate" => &["prepare", "all"],
            b"close" => &["all"],
            b"fetch" | b"move" => &[
                "next", "prior", "first", "last", "absolute", "relative", "forward", "backward",
                "all", "from", "in",
            ],
            _ => return Self::Kept,
        })
    }
}

/// A parenthesis that is open, or the text itself.
#[derive(Debug)]
struct Level {
    /// Its elements are folded: it is a list, and has had no word of its own.
    folds: bool,
    /// Where the current element begins, if it has begun.
    element: Option<usize>,
    /// The element before it: where it begins and ends.
    previous: Option<(usize, usize)>,
}

impl Level {
    const fn new(folds: bool) -> Self {
        Self { folds, element: None, previous: None }
    }
}

struct Normaliser<'a> {
    text: &'a [u8],
    out: Vec<u8>,
    last: Last,
    next_name: NextName,
    /// Tokens before this byte are part of one that has been written.
    done: usize,
    /// The text itself, and each parenthesis that is open.
    levels: Vec<Level>,
    /// Parentheses that are open beyond [`DEPTH_MAX`].
    deeper: usize,
    /// The last word is `in` or `array`.
    begins_list: bool,
}

impl<'a> Normaliser<'a> {
    fn new(text: &'a [u8]) -> Self {
        Self {
            text,
            out: Vec::with_capacity(text.len()),
            last: Last::None,
            next_name: NextName::Kept,
            done: 0,
            levels: vec![Level::new(false)],
            deeper: 0,
            begins_list: false,
        }
    }

    fn level(&mut self) -> &mut Level {
        self.levels.last_mut().expect("the text's own level is never closed")
    }

    /// Writes a token.
    fn write(&mut self, token: &[u8], spaced: bool, is: Last) {
        if spaced && !self.out.is_empty() && !matches!(self.last, Last::Open | Last::Binds) {
            self.out.push(b' ');
        }
        let begins = self.out.len();
        if !matches!(is, Last::Comma | Last::Close) {
            self.level().element.get_or_insert(begins);
        }
        self.out.extend_from_slice(token);
        self.last = is;
    }

    /// A constant, a parameter, or a name that may differ from one execution to the next.
    fn value(&mut self) {
        self.write(b"?", true, Last::Value);
    }

    /// The element of the innermost list is complete: it goes if it is like the one before.
    fn end_element(&mut self) {
        let end = self.out.len();
        let out = &self.out;
        let Some(level) = self.levels.last_mut() else { return };
        let Some(begin) = level.element else { return };
        let alike = level.previous.filter(|(start, stop)| out[*start..*stop] == out[begin..end]);
        match alike {
            Some((_, stop)) if level.folds => {
                level.element = level.previous.take().map(|(start, _)| start);
                self.out.truncate(stop);
            }
            _ => {}
        }
    }

    fn open(&mut self, bracket: u8) {
        // (`ARRAY[[1, 2], [3, 4]]` is a list of lists.)
        let of_list = bracket == b'[' && self.last != Last::Name && self.level().folds;
        let folds = of_list || (self.begins_list && self.last == Last::KeyWord);
        self.write(&[bracket], bracket == b'(' && self.last != Last::Name, Last::Open);
        if self.levels.len() < DEPTH_MAX {
            self.levels.push(Level::new(folds));
        } else {
            self.deeper += 1;
        }
    }

    fn close(&mut self, bracket: u8) {
        if self.deeper > 0 {
            self.deeper -= 1;
            self.write(&[bracket], false, Last::Close);
            return;
        }
        self.end_element();
        if self.levels.len() > 1 {
            self.levels.pop();
        }
        self.write(&[bracket], false, Last::Close);
        self.end_element();
    }

    fn comma(&mut self) {
        if self.deeper == 0 {
            self.end_element();
            let end = self.out.len();
            let level = self.level();
            level.previous = level.element.take().map(|begin| (begin, end));
        }
        self.write(b",", false, Last::Comma);
    }

    /// An operator begins here. Its bytes are those that the server takes together (scan.l, "operator").
    fn operator(&mut self, start: usize) {
        let rest = &self.text[start..];
        let mut length = rest.iter().take_while(|byte| OPERATOR.contains(byte)).count();
        for comment in [&b"--"[..], b"/*"] {
            if let Some(at) = memchr::memmem::find(&rest[..length], comment) {
                length = at;
            }
        }
        let length = length.max(1);
        let mut operator = &rest[..length];
        if !operator.iter().any(|byte| b"~!@#%^&|`?".contains(byte)) {
            while let [before @ .., b'+' | b'-'] = operator
                && !before.is_empty()
            {
                operator = before;
            }
        }
        self.done = start + operator.len();
        if matches!(operator, b"-" | b"+") && self.is_sign(self.done) {
            return;
        }
        self.write(operator, true, Last::Operator);
    }

    /// Whether a plus or minus that ends here is part of the number that follows.
    fn is_sign(&self, end: usize) -> bool {
        let operand = matches!(self.last, Last::Name | Last::Value | Last::Close | Last::Binds);
        let rest = self.text[end..].trim_ascii_start();
        !operand && matches!(rest, [b'0'..=b'9', ..] | [b'.', b'0'..=b'9', ..])
    }

    fn word_of_its_own(&mut self) {
        // A type's name after `::` is no word of its own.
        if self.last != Last::Binds {
            self.level().folds = false;
        }
    }

    fn name_is_invented(&mut self, word: &[u8]) -> bool {
        let NextName::Invented(before) = self.next_name else { return false };
        if before.iter().any(|one| one.as_bytes() == word) {
            return false;
        }
        self.next_name = NextName::Kept;
        true
    }

    /// The normalised text. `cut`: the text goes on.
    fn finish(mut self, cut: bool) -> String {
        if cut {
            // A list that is cut ends at its last whole element.
            let ends = |level: &Level| level.folds.then_some(level.previous?.1);
            if let Some(end) = self.levels.iter().find_map(ends) {
                self.out.truncate(end);
            }
            self.out.extend_from_slice(b" ...");
        }
        while self.out.ends_with(b";") {
            self.out.pop();
        }
        match String::from_utf8(self.out) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        }
    }
}

/// Bytes of operators. (`:` is none to the server, but `:=` and slices have it.)
const OPERATOR: &[u8] = b"+-*/<>=~!@#%^&|`?:\\";

/// Where the number that begins here ends, with its fraction, exponent and digits of other bases.
fn number_end(text: &[u8], start: usize) -> usize {
    let digits = |from: usize| {
        let digits = text[from..].iter();
        from + digits.take_while(|byte| byte.is_ascii_alphanumeric() || **byte == b'_').count()
    };
    let mut end = digits(start);
    if text.get(end) == Some(&b'.') && text.get(end + 1) != Some(&b'.') {
        end = digits(end + 1);
    }
    let hexadecimal = matches!(text.get(start + 1), Some(b'x' | b'X'));
    let exponent = end > start && matches!(text[end - 1], b'e' | b'E') && !hexadecimal;
    if exponent && matches!(&text[end..], [b'+' | b'-', b'0'..=b'9', ..]) {
        end = digits(end + 1);
    }
    end
}

impl Sink for Normaliser<'_> {
    fn word(&mut self, text: &[u8], start: usize) {
        if start < self.done {
            return;
        }
        let word = text.to_ascii_lowercase();
        if self.name_is_invented(&word) {
            return self.value();
        }
        let after_symbol = matches!(self.last, Last::Operator | Last::Open | Last::Comma);
        if after_symbol && matches!(&word[..], b"null" | b"true" | b"false") {
            return self.value();
        }
        if self.last == Last::None {
            self.next_name = NextName::after(&word);
        }
        self.word_of_its_own();
        let binds = self.last == Last::Binds;
        let key_word = !binds && KEY_WORDS.iter().any(|key| key.as_bytes() == word);
        let is = if key_word { Last::KeyWord } else { Last::Name };
        self.write(&word, true, is);
        self.begins_list = matches!(&word[..], b"in" | b"array");
        if is == Last::KeyWord && word == b"values" && self.deeper == 0 {
            *self.level() = Level::new(true);
        }
    }

    fn quoted(&mut self, text: &[u8], start: usize) {
        if start < self.done {
            return;
        }
        if self.name_is_invented(b"") {
            return self.value();
        }
        self.word_of_its_own();
        let mut name = Vec::with_capacity(text.len() + 2);
        name.push(b'"');
        for &byte in text {
            name.push(byte);
            if byte == b'"' {
                name.push(byte);
            }
        }
        name.push(b'"');
        self.write(&name, true, Last::Name);
    }

    fn string(&mut self, start: usize, continued: bool) {
        if start >= self.done && !continued {
            self.value();
        }
    }

    fn content(&mut self, _: &[u8]) {}

    fn escape(&mut self) {}

    fn string_end(&mut self) {}

    fn symbol(&mut self, byte: u8, start: usize) {
        if start < self.done {
            return;
        }
        match byte {
            NUMBER => {
                self.done = number_end(self.text, start);
                self.value();
            }
            PARAMETER => self.value(),
            b'(' | b'[' => self.open(byte),
            b')' | b']' => self.close(byte),
            b',' => self.comma(),
            b'.' if matches!(self.text.get(start + 1), Some(b'0'..=b'9')) => {
                self.done = number_end(self.text, start + 1);
                self.value();
            }
            b'.' => self.write(b".", false, Last::Binds),
            b':' if self.text.get(start + 1) == Some(&b':') => {
                self.done = start + 2;
                self.write(b"::", false, Last::Binds);
            }
            _ => self.operator(start),
        }
    }

    fn semicolon(&mut self, _: usize) {
        // The statement's parentheses end with it.
        self.levels.truncate(1);
        self.levels[0] = Level::new(false);
        self.deeper = 0;
        self.next_name = NextName::Kept;
        self.begins_list = false;
        if !self.out.is_empty() && !self.out.ends_with(b";") {
            self.write(b";", false, Last::None);
        }
        self.last = Last::None;
    }

    fn unsure(&mut self) {}
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn normal(text: &str) -> String {
        digest(text.as_bytes()).1
    }

    #[test]
    fn what_differs_between_executions_is_taken_out() {
        for (text, expected) in [
            ("SELECT 1", "select ?"),
            ("select\n\t*  FROM t;", "select * from t"),
            (";; select 1 ; ;select 2;", "select ?; select ?"),
            ("", ""),
            (
                "SELECT a FROM t WHERE a=-1.5e-3 AND b>=.5 AND c = 0x1F",
                "select a from t where a = ? and b >= ? and c = ?",
            ),
            (
                "SELECT a-1, a - 1, a*-1, -1, (a)-1 FROM t LIMIT -1",
                "select a - ?, a - ?, a * ?, ?, (a) - ? from t limit ?",
            ),
            ("UPDATE t SET b = b + -12 WHERE a = 'it''s'", "update t set b = b + ? where a = ?"),
            ("SELECT $1::int, $2 :: text", "select ?::int, ?::text"),
            ("SELECT E'a\\'b', B'01', U&'x', $$body$$, $t$ x $$ y $t$", "select ?, ?, ?, ?, ?"),
            ("SELECT 'a'\n'b'", "select ?"),
            ("SELECT /* a /* nested */ 1 */ a -- b\n, c", "select a, c"),
            (
                "SELECT \"A\".\"b \"\" c\", T.x FROM S . T",
                "select \"A\".\"b \"\" c\", t.x from s.t",
            ),
            ("select count (*), max( a ) from t", "select count(*), max(a) from t"),
            (
                "SELECT a->>'x', a ? 'k', a @> '{}', a[1:2]",
                "select a ->> ?, a ? ?, a @> ?, a[? : ?]",
            ),
            ("SELECT d FROM t WHERE d > date '2020-01-01'", "select d from t where d > date ?"),
            ("SELECT a IS NULL, NOT a, b = TRUE FROM t", "select a is null, not a, b = ? from t"),
        ] {
            assert_eq!(normal(text), expected, "{text}");
        }
    }

    #[test]
    fn lists_become_one_element() {
        for (text, expected) in [
            ("SELECT 1 WHERE a IN (1)", "select ? where a in (?)"),
            ("SELECT 1 WHERE a IN (1, 2,3)", "select ? where a in (?)"),
            ("SELECT 1 WHERE a IN ($1::int, $2::int) AND b", "select ? where a in (?::int) and b"),
            ("SELECT 1 WHERE a = ANY(ARRAY[1,2,3])", "select ? where a = any(array[?])"),
            ("SELECT ARRAY[[1,2],[3,4]]", "select array[[?]]"),
            ("SELECT 1 WHERE (a, b) IN ((1, 2), (3, 4))", "select ? where (a, b) in ((?, ?))"),
            ("INSERT INTO t (a, b) VALUES (1, 2)", "insert into t(a, b) values (?, ?)"),
            (
                "INSERT INTO t (a, b) VALUES (1, 2), (NULL, now()), (3, now()), (4, 5)",
                "insert into t(a, b) values (?, ?), (?, now()), (?, ?)",
            ),
            (
                "INSERT INTO t VALUES (1, 2), (3, 4), (5, 6) ON CONFLICT DO NOTHING",
                "insert into t values (?, ?) on conflict do nothing",
            ),
            ("WITH v AS (VALUES (1), (2)) SELECT 1, 1", "with v as (values (?)) select ?, ?"),
            (
                "SELECT coalesce(1, 2), a IN (SELECT 1, 1 FROM t)",
                "select coalesce(?, ?), a in (select ?, ? from t)",
            ),
            ("SELECT a IN (b, c), 1, 1", "select a in (b, c), ?, ?"),
        ] {
            assert_eq!(normal(text), expected, "{text}");
        }
    }

    #[test]
    fn invented_names_are_no_part_of_a_statement() {
        for (text, expected) in [
            ("SAVEPOINT s_1", "savepoint ?"),
            ("RELEASE SAVEPOINT \"s 1\"", "release savepoint ?"),
            ("release x", "release ?"),
            ("ROLLBACK TO SAVEPOINT x", "rollback to savepoint ?"),
            ("ROLLBACK AND NO CHAIN", "rollback and no chain"),
            (
                "DECLARE \"c_1\" NO SCROLL CURSOR FOR SELECT 1",
                "declare ? no scroll cursor for select ?",
            ),
            ("FETCH FORWARD 100 FROM c_1; CLOSE c_1", "fetch forward ? from ?; close ?"),
            ("DEALLOCATE ALL", "deallocate all"),
            ("SELECT savepoint FROM t", "select savepoint from t"),
        ] {
            assert_eq!(normal(text), expected, "{text}");
        }
    }

    #[test]
    fn a_list_that_is_too_long_to_be_read_ends_at_its_last_whole_row() {
        let rows = |count: usize, value: &str| {
            let rows = vec![format!("(1, '{value}')"); count].join(", ");
            digest(format!("INSERT INTO t VALUES {rows}").as_bytes())
        };
        assert_eq!(rows(9_000, "a"), rows(8_000, "another"));
        assert_eq!(rows(9_000, "a").1, "insert into t values (?, ?) ...");
    }

    #[test]
    fn a_digest_stays_what_it_is_in_files() {
        let (number, _) = digest(b"SELECT a FROM t WHERE b = 1");
        assert_eq!(number.to_string(), "2f0886227855b548");
        assert_eq!(number.to_string().parse(), Ok(number));
        assert_eq!(Digest(1).to_string(), "0000000000000001");
    }

    const PIECES: &[&str] = &[
        "select",
        "IN",
        "values",
        "array",
        "a",
        "\"q\"",
        "'",
        "''",
        "$",
        "$$",
        "$1",
        "e'",
        "(",
        ")",
        "[",
        "]",
        ",",
        ";",
        ".",
        ":",
        "-",
        "--",
        "/*",
        "*/",
        "+",
        "1",
        "1.5",
        "x",
        "\n",
        " ",
        "?",
        "::",
        "null",
        "\\",
        "savepoint",
        "fetch",
        "\u{e9}",
    ];

    proptest! {
        #[test]
        fn any_bytes_have_a_digest(text in proptest::collection::vec(any::<u8>(), 0..300)) {
            digest(&text);
        }

        #[test]
        fn any_pieces_have_a_digest(text in proptest::collection::vec(proptest::sample::select(PIECES), 0..60)) {
            let spaced = text.join(" ");
            digest(text.concat().as_bytes());
            prop_assert!(digest(spaced.as_bytes()).1.len() <= spaced.len() * 3 + 4);
        }

        /// The same statement with other constants, white space and letter case.
        #[test]
        fn other_constants_have_the_same_digest(
            number in "-?[0-9]{1,6}(\\.[0-9]{1,3})?(e-?[0-9]{1,2})?",
            string in "'([a-z ;,()]|''){0,20}'",
            list in proptest::collection::vec(any::<i32>(), 1..20),
            space in "( |\n|\t|/\\* x \\*/|--y\n){1,3}",
        ) {
            let list = list.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
            let text = format!(
                "SELECT{space}a,b{space}FROM t WHERE a={number} AND{space}b = {string}{space}AND c IN ({list})"
            );
            let plain = digest(b"select a, b from T where A = 1 and b = 'x' and c in (1, 2)");
            prop_assert_eq!(digest(text.as_bytes()), plain);
        }
    }
}
