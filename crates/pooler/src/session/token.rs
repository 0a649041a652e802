//! Splits SQL text into tokens, at the level of bytes, as PostgreSQL's own lexer does.
//!
//! # Model   a state machine fed with chunks that may end at any byte. Between chunks it keeps only
//!           the state, and the bytes of a word, quoted name or dollar tag that is not complete.
//!           Contents of strings are passed on in pieces and never kept.
//! # Invariants  tokens do not depend on where the chunks end; each byte is looked at a bounded
//!           number of times, so the time is linear in the text; nothing here fails: what the
//!           server would refuse, and what the scanner gives up on, is reported as `unsure`.
//! # Source  src/backend/parser/scan.l of PostgreSQL 14 to 18. Where the versions differ (`1INTO`
//!           is two tokens up to 14 and an error since), the older and laxer reading is taken:
//!           a text that the server refuses changes nothing.
//! # Limits  words and quoted names are kept to [`NAME_BYTES_MAX`] bytes (the server cuts them at
//!           63); a dollar quote whose tag is longer than that ends the scan as `unsure`.

use memchr::{memchr, memchr2};

/// Bytes of a name that are kept; one more than the server keeps, so that a name that it would cut
/// is recognised as too long.
pub(crate) const NAME_BYTES_MAX: usize = 64;

/// The receiver of the tokens. Offsets are from the start of the text.
pub(crate) trait Sink {
    /// A word: an identifier or key word without quotes, as written, cut at [`NAME_BYTES_MAX`].
    fn word(&mut self, text: &[u8], start: usize);
    /// An identifier in double quotes, without them, cut likewise.
    fn quoted(&mut self, text: &[u8], start: usize);
    /// A string begins, or goes on after a newline (`continued`).
    fn string(&mut self, start: usize, continued: bool);
    /// Bytes of the string's content, not unescaped but for doubled quotes.
    fn content(&mut self, piece: &[u8]);
    /// The string has a backslash escape.
    fn escape(&mut self);
    /// The string ends, unless it is `continued` later.
    fn string_end(&mut self);
    /// Any other byte that is a token or part of an operator; [`NUMBER`] for a number and
    /// [`PARAMETER`] for `$1`.
    fn symbol(&mut self, byte: u8, start: usize);
    /// A semicolon; the last token before it ended at `token_end`.
    fn semicolon(&mut self, token_end: usize);
    /// The server would not take the text, or the scanner cannot follow it.
    fn unsure(&mut self);
}

/// The symbol of a number.
pub(crate) const NUMBER: u8 = b'0';
/// The symbol of a parameter (`$1`).
pub(crate) const PARAMETER: u8 = b'$';

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Class {
    Other,
    Space,
    Newline,
    Word,
    Digit,
    Quote,
    DoubleQuote,
    Dollar,
    Dash,
    Slash,
    Semicolon,
}

const CLASS: [Class; 256] = {
    let mut class = [Class::Other; 256];
    let mut byte = 0;
    while byte < 256 {
        class[byte] = match byte as u8 {
            b' ' | b'\t' | 0x0b | 0x0c => Class::Space,
            b'\n' | b'\r' => Class::Newline,
            b'a'..=b'z' | b'A'..=b'Z' | b'_' | 0x80.. => Class::Word,
            b'0'..=b'9' => Class::Digit,
            b'\'' => Class::Quote,
            b'"' => Class::DoubleQuote,
            b'$' => Class::Dollar,
            b'-' => Class::Dash,
            b'/' => Class::Slash,
            b';' => Class::Semicolon,
            _ => Class::Other,
        };
        byte += 1;
    }
    class
};

/// Whether the byte can continue a word. (A dollar sign can, in a word but not in a tag.)
const fn continues_word(byte: u8) -> bool {
    CONTINUES[byte as usize]
}

const CONTINUES: [bool; 256] = {
    let mut table = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        table[byte] = matches!(CLASS[byte], Class::Word | Class::Digit | Class::Dollar);
        byte += 1;
    }
    table
};

/// How a string's content ends and escapes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Quoting {
    /// `''` is a quote.
    Standard,
    /// `''` is a quote, and a backslash escapes.
    Escape,
    /// Any quote ends it (`B''`, `X''`).
    Bits,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Start,
    Word,
    Number,
    /// Before the `&` that follows a single `u`.
    UnicodeWord,
    /// After it.
    UnicodePrefix,
    /// Before the quote that follows a prefix letter.
    StringOpen(Quoting),
    Name,
    /// After a double quote within a name: its end, or half of `""`.
    NameQuote,
    String(Quoting),
    /// After a backslash.
    StringEscape,
    /// After a quote within a string: its end, or half of `''`.
    StringQuote(Quoting),
    Dash,
    Slash,
    LineComment,
    Comment,
    CommentStar,
    CommentSlash,
    /// After a dollar sign.
    Dollar,
    DollarTag,
    DollarBody,
    /// In the body, this many bytes of the closing tag have been seen.
    DollarEnd(usize),
    /// Given up.
    Lost,
}

/// The lexer's state between chunks.
#[derive(Debug, Clone)]
pub(crate) struct Lexer {
    state: State,
    conforming: bool,
    /// Bytes of the text before the current chunk.
    fed: usize,
    start: usize,
    token_end: usize,
    depth: u32,
    /// Word, name or tag that a chunk's end has cut.
    carry: Carry,
    /// The string that ended last, if nothing but white space has followed.
    ended: Option<Quoting>,
    newline_since: bool,
}

impl Lexer {
    #[inline]
    pub(crate) fn new(standard_conforming_strings: bool) -> Lexer {
        Lexer {
            state: State::Start,
            conforming: standard_conforming_strings,
            fed: 0,
            start: 0,
            token_end: 0,
            depth: 0,
            carry: Carry::EMPTY,
            ended: None,
            newline_since: false,
        }
    }

    /// Takes the next bytes of the text.
    pub(crate) fn feed<S: Sink>(&mut self, chunk: &[u8], sink: &mut S) {
        let mut i = 0;
        while i < chunk.len() {
            let rest = &chunk[i..];
            i += match self.state {
                State::Start => self.start(chunk, i, sink),
                State::Word => {
                    let length = word_length(rest);
                    self.carry.push(&rest[..length]);
                    if length < rest.len() {
                        let word = self.carry;
                        self.end_word(word.bytes(), rest[length], self.fed + i + length, sink);
                    }
                    length
                }
                State::Name | State::NameQuote => self.name(rest, self.fed + i, sink),
                State::String(_) | State::StringEscape | State::StringQuote(_) => {
                    self.string(rest, self.fed + i, sink)
                }
                State::LineComment => match memchr2(b'\n', b'\r', rest) {
                    Some(length) => {
                        self.state = State::Start;
                        length
                    }
                    None => rest.len(),
                },
                State::Comment | State::CommentStar | State::CommentSlash => self.comment(rest),
                State::DollarBody => self.body(rest, sink),
                State::Lost => rest.len(),
                _ => self.step(rest[0], self.fed + i, sink),
            };
        }
        self.fed += chunk.len();
    }

    /// Ends the text; returns where its last token ended.
    pub(crate) fn finish<S: Sink>(&mut self, sink: &mut S) -> usize {
        match self.state {
            State::Start | State::LineComment => {}
            State::Lost => self.token_end = self.fed,
            State::Word => {
                let word = self.carry;
                self.end_word(word.bytes(), b' ', self.fed, sink);
            }
            State::Number | State::UnicodePrefix | State::Dash | State::Slash => {
                // A space after them ends them and is nothing itself.
                self.step(b' ', self.fed, sink);
            }
            State::NameQuote => self.end_name(self.fed, sink),
            State::StringQuote(quoting) => self.end_string(quoting, self.fed, sink),
            State::Name
            | State::StringOpen(_)
            | State::UnicodeWord
            | State::String(_)
            | State::StringEscape
            | State::Comment
            | State::CommentStar
            | State::CommentSlash
            | State::Dollar
            | State::DollarTag
            | State::DollarBody
            | State::DollarEnd(_) => {
                sink.unsure();
                self.token_end = self.fed;
            }
        }
        self.token_end
    }

    /// The bytes from `at` on, between tokens; returns how many were used.
    #[inline]
    fn start<S: Sink>(&mut self, chunk: &[u8], at: usize, sink: &mut S) -> usize {
        let mut i = at;
        while i < chunk.len() {
            let byte = chunk[i];
            let position = self.fed + i;
            let class = CLASS[byte as usize];
            // Words and spaces are most of a text: two predicted branches beat a jump by class.
            if class == Class::Space {
                i += 1;
                continue;
            }
            if class == Class::Word {
                let length = word_length(&chunk[i..]);
                self.start = position;
                let word = &chunk[i..i + length];
                i += length;
                if i < chunk.len() {
                    self.end_word(word, chunk[i], position + length, sink);
                } else {
                    self.carry.clear();
                    self.carry.push(word);
                    self.state = State::Word;
                }
                if self.state != State::Start {
                    break;
                }
                continue;
            }
            match class {
                Class::Space | Class::Word => unreachable!("seen to above"),
                Class::Newline => {
                    self.newline_since = true;
                    i += 1;
                }
                Class::Digit => {
                    sink.symbol(NUMBER, position);
                    i = self.number(chunk, i + 1);
                }
                Class::Quote => {
                    match self.ended {
                        Some(quoting) if self.newline_since => {
                            sink.string(position, true);
                            self.state = State::String(quoting);
                        }
                        _ => self.begin_string(self.plain(), position, sink),
                    }
                    i += 1;
                    break;
                }
                Class::DoubleQuote => {
                    self.start = position;
                    i = self.quoted_name(chunk, i + 1, sink);
                    if self.state != State::Start {
                        break;
                    }
                }
                Class::Semicolon => {
                    sink.semicolon(self.token_end);
                    i += 1;
                    self.token(self.fed + i);
                }
                Class::Dollar | Class::Dash | Class::Slash => {
                    self.start = position;
                    self.state = match byte {
                        b'$' => State::Dollar,
                        b'-' => State::Dash,
                        _ => State::Slash,
                    };
                    i += 1;
                    break;
                }
                Class::Other => {
                    sink.symbol(byte, position);
                    i += 1;
                    self.token(position + 1);
                }
            }
        }
        i - at
    }

    /// The digits of a number from here on. Where they end.
    #[inline]
    fn number(&mut self, chunk: &[u8], from: usize) -> usize {
        let digits = chunk[from..].iter();
        let end = from + digits.take_while(|byte| CLASS[**byte as usize] == Class::Digit).count();
        self.token(self.fed + end);
        if end == chunk.len() {
            self.state = State::Number;
        }
        end
    }

    /// A name in double quotes, which begins here. Returns where it ends, or from which byte it is
    /// read on: a name that is not complete, or has a double quote in it, is read byte by byte.
    #[inline]
    fn quoted_name<S: Sink>(&mut self, chunk: &[u8], from: usize, sink: &mut S) -> usize {
        let rest = &chunk[from..];
        // Names are too short for a vectorised search to pay.
        match rest.iter().position(|&byte| byte == b'"') {
            Some(end) if end + 1 < rest.len() && rest[end + 1] != b'"' => {
                sink.quoted(&rest[..end.min(NAME_BYTES_MAX)], self.start);
                self.token(self.fed + from + end + 1);
                from + end + 1
            }
            _ => {
                self.carry.clear();
                self.state = State::Name;
                from
            }
        }
    }

    /// States that are left after one byte; returns how many bytes were used, 0 or 1.
    fn step<S: Sink>(&mut self, byte: u8, position: usize, sink: &mut S) -> usize {
        match self.state {
            State::Number => {
                if CLASS[byte as usize] == Class::Digit {
                    self.token_end = position + 1;
                    return 1;
                }
                self.state = State::Start;
                0
            }
            State::StringOpen(quoting) => {
                self.state = State::String(quoting);
                1
            }
            State::UnicodeWord => {
                self.state = State::UnicodePrefix;
                1
            }
            State::UnicodePrefix => {
                self.state = State::Start;
                match byte {
                    // An escape in it could spell any name, with any escape character.
                    b'\'' => {
                        sink.unsure();
                        self.begin_string(Quoting::Standard, self.start, sink);
                        1
                    }
                    b'"' => {
                        sink.unsure();
                        self.carry.clear();
                        self.state = State::Name;
                        1
                    }
                    _ => {
                        sink.word(b"u", self.start);
                        sink.symbol(b'&', position - 1);
                        self.token(position);
                        0
                    }
                }
            }
            State::Dash if byte == b'-' => {
                self.state = State::LineComment;
                1
            }
            State::Slash if byte == b'*' => {
                self.ended = None;
                self.depth = 1;
                self.state = State::Comment;
                1
            }
            State::Dash | State::Slash => {
                let symbol = if self.state == State::Dash { b'-' } else { b'/' };
                sink.symbol(symbol, self.start);
                self.token(self.start + 1);
                self.state = State::Start;
                0
            }
            State::Dollar | State::DollarTag => self.tag(byte, position, sink),
            State::DollarEnd(seen) => {
                let expected = self.carry.bytes().get(seen - 1).copied().unwrap_or(b'$');
                if byte != expected {
                    // What looked like the end was content; this byte may begin the real end.
                    sink.content(b"$");
                    sink.content(&self.carry.bytes()[..seen - 1]);
                    self.state = State::DollarBody;
                    return 0;
                }
                if seen > self.carry.length {
                    sink.string_end();
                    self.token(position + 1);
                    self.state = State::Start;
                } else {
                    self.state = State::DollarEnd(seen + 1);
                }
                1
            }
            _ => unreachable!("feed() calls step() only for the states above"),
        }
    }

    fn tag<S: Sink>(&mut self, byte: u8, position: usize, sink: &mut S) -> usize {
        if self.state == State::Dollar {
            self.carry.clear();
        }
        match CLASS[byte as usize] {
            Class::Dollar => {
                sink.string(self.start, false);
                self.state = State::DollarBody;
                1
            }
            Class::Digit if self.state == State::Dollar => {
                sink.symbol(PARAMETER, self.start);
                self.token(position + 1);
                self.state = State::Number;
                1
            }
            Class::Word | Class::Digit if self.carry.length < NAME_BYTES_MAX => {
                self.carry.push(&[byte]);
                self.state = State::DollarTag;
                1
            }
            Class::Word | Class::Digit => {
                sink.unsure();
                self.state = State::Lost;
                1
            }
            _ => {
                // A dollar sign by itself is no token: the server refuses the whole text.
                sink.unsure();
                self.token(position);
                self.state = State::Start;
                0
            }
        }
    }

    /// A word has ended before `next`, at `end`.
    #[inline]
    fn end_word<S: Sink>(&mut self, word: &[u8], next: u8, end: usize, sink: &mut S) {
        self.state = State::Start;
        if let [letter] = word {
            match (letter.to_ascii_lowercase(), next) {
                (b'e', b'\'') => return self.prefixed(Quoting::Escape, sink),
                (b'b' | b'x', b'\'') => return self.prefixed(Quoting::Bits, sink),
                (b'u', b'&') => {
                    self.ended = None;
                    self.state = State::UnicodeWord;
                    return;
                }
                _ => {}
            }
        }
        sink.word(&word[..word.len().min(NAME_BYTES_MAX)], self.start);
        self.token(end);
    }

    /// A letter was the prefix of a string, whose quote comes next.
    fn prefixed<S: Sink>(&mut self, quoting: Quoting, sink: &mut S) {
        self.begin_string(quoting, self.start, sink);
        self.state = State::StringOpen(quoting);
    }

    fn begin_string<S: Sink>(&mut self, quoting: Quoting, position: usize, sink: &mut S) {
        sink.string(position, false);
        self.ended = None;
        self.state = State::String(quoting);
    }

    fn plain(&self) -> Quoting {
        if self.conforming { Quoting::Standard } else { Quoting::Escape }
    }

    /// Within a string; returns how many bytes were used.
    fn string<S: Sink>(&mut self, rest: &[u8], position: usize, sink: &mut S) -> usize {
        match self.state {
            State::String(quoting) => {
                let found = match quoting {
                    Quoting::Escape => memchr2(b'\'', b'\\', rest),
                    Quoting::Standard | Quoting::Bits => memchr(b'\'', rest),
                };
                let Some(length) = found else {
                    sink.content(rest);
                    return rest.len();
                };
                sink.content(&rest[..length]);
                if rest[length] == b'\\' {
                    sink.escape();
                    self.state = State::StringEscape;
                } else if quoting == Quoting::Bits {
                    self.end_string(quoting, position + length + 1, sink);
                } else {
                    self.state = State::StringQuote(quoting);
                }
                length + 1
            }
            State::StringEscape => {
                sink.content(&rest[..1]);
                self.state = State::String(Quoting::Escape);
                1
            }
            State::StringQuote(quoting) if rest[0] == b'\'' => {
                sink.content(b"'");
                self.state = State::String(quoting);
                1
            }
            State::StringQuote(quoting) => {
                self.end_string(quoting, position, sink);
                0
            }
            _ => unreachable!("feed() calls string() only for the states above"),
        }
    }

    fn end_string<S: Sink>(&mut self, quoting: Quoting, end: usize, sink: &mut S) {
        sink.string_end();
        self.token(end);
        self.ended = Some(quoting);
        self.newline_since = false;
        self.state = State::Start;
    }

    /// Within double quotes; returns how many bytes were used.
    fn name<S: Sink>(&mut self, rest: &[u8], position: usize, sink: &mut S) -> usize {
        if self.state == State::NameQuote {
            if rest[0] == b'"' {
                self.carry.push(b"\"");
                self.state = State::Name;
                return 1;
            }
            self.end_name(position, sink);
            return 0;
        }
        let length = memchr(b'"', rest);
        self.carry.push(&rest[..length.unwrap_or(rest.len())]);
        match length {
            Some(length) => {
                self.state = State::NameQuote;
                length + 1
            }
            None => rest.len(),
        }
    }

    fn end_name<S: Sink>(&mut self, end: usize, sink: &mut S) {
        sink.quoted(self.carry.bytes(), self.start);
        self.token(end);
        self.state = State::Start;
    }

    /// Within `/* */`; returns how many bytes were used.
    fn comment(&mut self, rest: &[u8]) -> usize {
        for (i, &byte) in rest.iter().enumerate() {
            self.state = match (self.state, byte) {
                (State::CommentStar, b'/') => {
                    self.depth -= 1;
                    if self.depth == 0 {
                        self.state = State::Start;
                        return i + 1;
                    }
                    State::Comment
                }
                (State::CommentSlash, b'*') => {
                    // 4 GiB of `/*` would be a message longer than the protocol can carry.
                    self.depth = self.depth.saturating_add(1);
                    State::Comment
                }
                (_, b'*') => State::CommentStar,
                (_, b'/') => State::CommentSlash,
                _ => State::Comment,
            };
        }
        rest.len()
    }

    /// Within a dollar-quoted string; returns how many bytes were used.
    fn body<S: Sink>(&mut self, rest: &[u8], sink: &mut S) -> usize {
        match memchr(b'$', rest) {
            Some(length) => {
                sink.content(&rest[..length]);
                self.state = State::DollarEnd(1);
                length + 1
            }
            None => {
                sink.content(rest);
                rest.len()
            }
        }
    }

    /// A token other than a quoted string has ended here.
    #[inline]
    fn token(&mut self, end: usize) {
        self.token_end = end;
        self.ended = None;
    }
}

/// The first bytes of something that a chunk's end may have cut. Inline, since the last word of
/// nearly every text goes through it.
#[derive(Debug, Clone, Copy)]
struct Carry {
    bytes: [u8; NAME_BYTES_MAX],
    length: usize,
}

impl Carry {
    const EMPTY: Carry = Carry { bytes: [0; NAME_BYTES_MAX], length: 0 };

    fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }

    fn clear(&mut self) {
        self.length = 0;
    }

    fn push(&mut self, bytes: &[u8]) {
        let length = bytes.len().min(NAME_BYTES_MAX - self.length);
        self.bytes[self.length..self.length + length].copy_from_slice(&bytes[..length]);
        self.length += length;
    }
}

#[inline]
fn word_length(bytes: &[u8]) -> usize {
    bytes.iter().position(|&byte| !continues_word(byte)).unwrap_or(bytes.len())
}
