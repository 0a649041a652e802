//! Rust source without what is not code.
//!
//! # Model       a scan by character that knows comments (nested), strings (raw, byte, C), chars
//!               and lifetimes; and the braces of items under `#[cfg(test)]`
//! # Invariants  lines keep their numbers
//! # Why not     a parser crate: it would be the largest dependency of the checks, to tell a
//!               comment from a string
//! # Limits      macros that take unbalanced braces apart would confuse the end of a test module

use std::collections::BTreeSet;

/// One line of a file, taken apart.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Line {
    /// The code, with comments and the contents of literals blanked.
    pub(crate) code: String,
    /// The text of comments on this line.
    pub(crate) comment: String,
    /// Whether the line belongs to an item under `#[cfg(test)]`.
    pub(crate) test: bool,
}

/// Takes a file apart.
pub(crate) fn lines(text: &str) -> Vec<Line> {
    let mut lines = Scanner { rest: text, lines: vec![Line::default()] }.scan();
    mark_tests(&mut lines);
    lines
}

/// The files, without `.rs`, of the modules that are declared for tests only. What lies below them is as well.
pub(crate) fn test_stems(path: &str, lines: &[Line]) -> Vec<String> {
    let stem = path.trim_end_matches(".rs");
    let directory = stem.strip_suffix("/lib").unwrap_or(stem);
    let declared = lines.iter().filter(|line| line.test);
    declared
        .filter_map(|line| {
            let (_, after) = line.code.split_once("mod ")?;
            Some(format!("{directory}/{}", after.trim().strip_suffix(';')?.trim()))
        })
        .collect()
}

/// Whether a file is one of [`test_stems`], or lies below one.
pub(crate) fn is_test(path: &str, stems: &BTreeSet<String>) -> bool {
    let stem = path.trim_end_matches(".rs");
    stems.iter().any(|test| {
        stem.strip_prefix(test.as_str())
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    })
}

/// Whether `word` stands in `code` as a whole word or path, not inside a longer one.
pub(crate) fn has_word(code: &str, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    code.match_indices(word).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = code[at + word.len()..].chars().next();
        let open_end = word.ends_with(|c: char| !part(c));
        !before.is_some_and(part) && (open_end || !after.is_some_and(part))
    })
}

struct Scanner<'a> {
    rest: &'a str,
    lines: Vec<Line>,
}

impl<'a> Scanner<'a> {
    fn scan(mut self) -> Vec<Line> {
        while let Some(c) = self.rest.chars().next() {
            let word_before =
                self.code().chars().next_back().is_some_and(|c| c.is_alphanumeric() || c == '_');
            if self.rest.starts_with("//") {
                let end = self.rest.find('\n').unwrap_or(self.rest.len());
                self.comment(end);
            } else if self.rest.starts_with("/*") {
                let end = block_comment_end(self.rest);
                self.comment(end);
            } else if let (Some(end), false) = (raw_string_end(self.rest), word_before) {
                self.blank(end);
            } else if c == '"' {
                let end = quoted_end(self.rest, '"');
                self.blank(end);
            } else if let (Some(end), '\'') = (char_end(self.rest), c) {
                self.blank(end);
            } else {
                self.take(c.len_utf8(), |line, c| line.code.push(c));
            }
        }
        self.lines
    }

    fn code(&self) -> &str {
        self.lines.last().map_or("", |line| &line.code)
    }

    /// Consumes `bytes`, giving each character to `keep`; a newline begins a line.
    fn take(&mut self, bytes: usize, keep: impl Fn(&mut Line, char)) {
        let (taken, rest) = self.rest.split_at(bytes);
        self.rest = rest;
        for c in taken.chars() {
            if c == '\n' {
                self.lines.push(Line::default());
            } else if let Some(line) = self.lines.last_mut() {
                keep(line, c);
            }
        }
    }

    fn comment(&mut self, bytes: usize) {
        self.take(bytes, |line, c| line.comment.push(c));
    }

    /// A literal leaves its quotes, so that what stood on both sides does not become one word.
    fn blank(&mut self, bytes: usize) {
        self.take(bytes, |line, _| line.code.push('"'));
    }
}

fn block_comment_end(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < text.len() {
        if text[at..].starts_with("/*") {
            depth += 1;
            at += 2;
        } else if text[at..].starts_with("*/") {
            depth -= 1;
            at += 2;
            if depth == 0 {
                return at;
            }
        } else {
            at += text[at..].chars().next().map_or(1, char::len_utf8);
        }
    }
    text.len()
}

/// The length of a raw string that begins here: `r"`, `r#"`, `br"`, `cr"` ...
fn raw_string_end(text: &str) -> Option<usize> {
    let after = ["br", "cr", "r"].iter().find_map(|prefix| text.strip_prefix(prefix))?;
    let hashes = after.len() - after.trim_start_matches('#').len();
    let body = after[hashes..].strip_prefix('"')?;
    let close = format!("\"{}", "#".repeat(hashes));
    let begin = text.len() - body.len();
    Some(body.find(&close).map_or(text.len(), |end| begin + end + close.len()))
}

/// The length of a literal that begins with `quote` here, escapes heeded.
fn quoted_end(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    text.len()
}

/// The length of a character literal that begins here, or `None` where it is a lifetime.
fn char_end(text: &str) -> Option<usize> {
    let mut chars = text.char_indices();
    chars.next().filter(|(_, c)| *c == '\'')?;
    let (_, first) = chars.next()?;
    if first == '\\' {
        return Some(quoted_end(text, '\''));
    }
    let (end, close) = chars.next()?;
    (close == '\'').then_some(end + 1)
}

/// Marks items under `#[cfg(test)]` or `#[cfg(all(test, ...))]`: to the end of their braces, or to
/// the semicolon where they have none. `any(test, ...)` is code of the product as well.
fn mark_tests(lines: &mut [Line]) {
    let mut inside = false;
    let mut braces = 0_i32;
    let mut brackets = 0_i32; // round and square: the semicolon of `[u8; 4]` ends nothing
    for line in lines {
        let compact: String = line.code.split_whitespace().collect();
        let mut code = compact.as_str();
        if !inside {
            let attributes = ["#[cfg(test)]", "#[cfg(all(test,"];
            let Some(at) = attributes.iter().find_map(|a| Some(code.find(a)? + a.len())) else {
                continue;
            };
            code = &code[at..];
            inside = true;
            (braces, brackets) = (0, 0);
        }
        line.test = true;
        for c in code.chars() {
            match c {
                '(' | '[' => brackets += 1,
                ')' | ']' => brackets -= 1,
                '{' => braces += 1,
                '}' => braces -= 1,
                _ => {}
            }
            if braces == 0 && brackets == 0 && matches!(c, ';' | '}') {
                inside = false;
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn code(text: &str) -> String {
        lines(text).iter().map(|line| line.code.clone()).collect::<Vec<_>>().join("\n")
    }

    #[test]
    fn comments_and_strings_are_no_code() {
        assert!(!code("let a = 1; // unsafe\n/* unsafe /* nested */ unsafe */").contains("unsafe"));
        assert!(
            !code(r##"f("unsafe \" unsafe", r#"unsafe " unsafe"#, b"unsafe")"##).contains("unsafe")
        );
        assert!(code("\"a\"; unsafe { }").contains("unsafe"));
        assert_eq!(lines("/* one\ntwo */ three").len(), 2);
        assert_eq!(lines("/* one\ntwo */ three")[1].comment, "two */");
    }

    #[test]
    fn a_quote_is_not_always_a_string() {
        assert!(code(r#"let q = '"'; unsafe { }"#).contains("unsafe"));
        assert!(code(r"let q = '\''; unsafe { }").contains("unsafe"));
        assert!(code("fn f<'a>(x: &'a str) { unsafe { } }").contains("unsafe"));
        assert!(code("let r = bar\"unsafe\"; x").ends_with("; x"));
    }

    #[test]
    fn words_are_whole() {
        assert!(has_word("unsafe { x }", "unsafe"));
        assert!(!has_word("#![forbid(unsafe_code)]", "unsafe"));
        assert!(has_word("let x = rand::random();", "rand::"));
        assert!(!has_word("let x = operand::new();", "rand::"));
    }

    #[test]
    fn test_items_end_with_their_braces() {
        let text = "a\n#[cfg(test)]\nmod tests {\n fn f() { }\n}\nb\n#[cfg(test)]\nmod sim;\nc";
        let marked: Vec<usize> =
            lines(text).iter().enumerate().filter(|(_, l)| l.test).map(|(i, _)| i).collect();
        assert_eq!(marked, [1, 2, 3, 4, 6, 7]);
        assert_eq!(test_stems("a/lib.rs", &lines(text)), ["a/sim"]);
    }

    #[test]
    fn only_pure_test_items_are_tests() {
        for text in ["#[cfg(not(test))]\nfn f() {}", "#[cfg(any(test, unix))]\nfn f() {}"] {
            assert!(lines(text).iter().all(|line| !line.test), "{text}");
        }
        assert!(lines("#[cfg(all(test, unix))]\nfn f() {}")[1].test);
        let array = lines("#[cfg(test)]\nfn f(x: [u8; 4]) {\n a();\n}\nb");
        assert!(array[2].test && !array[4].test);
    }
}
