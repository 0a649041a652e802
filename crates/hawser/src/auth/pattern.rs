//! The tokens of `pg_hba.conf` and `pg_ident.conf` that match names: literal, keyword `all`, or `/regular expression`.
//!
//! # Model
//! PostgreSQL compiles what follows the slash as an advanced regular expression (ARE) under the C collation and
//! searches it anywhere in the name. The `regex` crate speaks nearly the same language in linear time.
//!
//! # Invariants
//! An expression either means the same here as in PostgreSQL or is refused at load; it never means something else:
//! a login rule that quietly matches more than it says is worse than none.
//!
//! # Limits
//! Refused: back references, look-around, word-boundary escapes other than `\A`, collating elements, `***` directors, and
//! class syntax that the crate reads differently. Where several matches are possible PostgreSQL takes the
//! longest and we the first alternative, which only a `\1` of an unanchored expression can show.

use regex::{Regex, RegexBuilder};

use super::records::{FileError, Token};

/// The largest compiled expression, in bytes.
pub const COMPILED_SIZE_MAX: usize = 1 << 20;

/// Compiles PostgreSQL's `expression` (without the slash). The error is one line of text.
pub(crate) fn compile(expression: &str) -> Result<Regex, String> {
    let translated = translate(expression)?;
    RegexBuilder::new(&translated)
        .dot_matches_new_line(true)
        .size_limit(COMPILED_SIZE_MAX)
        .build()
        .map_err(|error| {
            let error = error.to_string();
            // The crate draws the expression over several lines; its last line says what is wrong.
            let reason = error.lines().last().unwrap_or_default();
            format!(
                "invalid regular expression \"{expression}\": {}",
                reason.trim_start_matches("error: ")
            )
        })
}

/// Turns an ARE into the crate's syntax, or says what cannot be turned.
fn translate(expression: &str) -> Result<String, String> {
    let refuse = |what: &str| {
        Err(format!("invalid regular expression \"{expression}\": {what} is not supported here"))
    };
    if expression.starts_with("***")
        || expression.starts_with("(?") && !expression.starts_with("(?:")
    {
        return refuse("an embedded option or director");
    }
    let mut out = String::with_capacity(expression.len());
    let mut chars = expression.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('d') => out.push_str("[0-9]"),
                Some('D') => out.push_str("[^0-9]"),
                Some('w') => out.push_str("[0-9A-Za-z_]"),
                Some('W') => out.push_str("[^0-9A-Za-z_]"),
                Some('s') => out.push_str(r"[ \t\n\r\f\v]"),
                Some('S') => out.push_str(r"[^ \t\n\r\f\v]"),
                Some('A') => out.push_str(r"\A"),
                Some('Z') => out.push_str(r"\z"),
                Some(escape @ ('t' | 'n' | 'r' | 'f' | 'v' | 'a')) => out.extend(['\\', escape]),
                Some(other) if !other.is_alphanumeric() => {
                    out.push_str(&regex::escape(other.encode_utf8(&mut [0; 4])));
                }
                Some(other) => return refuse(&format!("the escape \\{other}")),
                None => return refuse("a trailing backslash"),
            },
            '[' => translate_class(&mut chars, &mut out).or_else(|what| refuse(&what).map(drop))?,
            '(' => {
                out.push('(');
                if chars.next_if_eq(&'?').is_some() {
                    if chars.next_if_eq(&':').is_none() {
                        return refuse("a group that begins with (? but not with (?:");
                    }
                    out.push_str("?:");
                }
            }
            // In an ARE a brace that no digit follows is an ordinary character.
            '{' if !chars.peek().is_some_and(char::is_ascii_digit) => out.push_str(r"\{"),
            // What the crate reads as a second quantifier, PostgreSQL refuses.
            '*' | '+' if chars.peek().is_some_and(|next| matches!(next, '*' | '+')) => {
                return refuse("a repeated quantifier");
            }
            _ => out.push(c),
        }
    }
    Ok(out)
}

/// Copies a bracket expression, whose `[` has been read, quoting whatever the crate would read as class arithmetic.
fn translate_class(
    chars: &mut std::iter::Peekable<std::str::Chars<'_>>,
    out: &mut String,
) -> Result<(), String> {
    out.push('[');
    if chars.next_if_eq(&'^').is_some() {
        out.push('^');
    }
    let mut first = true;
    loop {
        let Some(c) = chars.next() else { return Err("an unclosed [".to_owned()) };
        match c {
            ']' if !first => {
                out.push(']');
                return Ok(());
            }
            ']' => out.push_str(r"\]"),
            '[' => match chars.peek() {
                Some(':') => {
                    out.push('[');
                    loop {
                        let Some(c) = chars.next() else {
                            return Err("an unclosed [:".to_owned());
                        };
                        out.push(c);
                        if c == ']' {
                            break;
                        }
                    }
                }
                Some('.' | '=') => return Err("a collating element".to_owned()),
                _ => out.push_str(r"\["),
            },
            '\\' if chars.clone().nth(1) == Some('-') && chars.clone().nth(2) != Some(']') => {
                return Err("a range that begins with an escape".to_owned());
            }
            '\\' => match chars.next() {
                Some('d') => out.push_str("0-9"),
                Some('w') => out.push_str("0-9A-Za-z_"),
                Some('s') => out.push_str(r" \t\n\r\f\v"),
                Some(escape @ ('t' | 'n' | 'r' | 'f' | 'v' | 'a')) => out.extend(['\\', escape]),
                Some(other) if other.is_ascii_punctuation() => out.extend(['\\', other]),
                other => {
                    let shown = other.map(String::from).unwrap_or_default();
                    return Err(format!("the escape \\{shown} in brackets"));
                }
            },
            '&' | '~' | '^' => out.extend(['\\', c]),
            '-' if first || chars.peek() == Some(&']') => out.push_str(r"\-"),
            '-' if matches!(chars.peek(), Some('-' | '\\' | '[')) => {
                return Err("a range that ends with -, an escape or a class".to_owned());
            }
            _ => out.push(c),
        }
        first = false;
    }
}

/// What a name is compared with.
#[derive(Clone, derive_more::Debug)]
pub enum NamePattern {
    /// The keyword `all`.
    #[debug("all")]
    All,
    /// Exactly this name.
    #[debug("{_0:?}")]
    Literal(String),
    /// Any name in which the expression is found.
    #[debug("/{_0}")]
    Regex(Regex),
}

impl NamePattern {
    /// Any token but the keyword `all`: a `/` makes an expression, quoted or not, as in PostgreSQL.
    pub(crate) fn of(token: &Token) -> Result<Self, FileError> {
        match token.text.strip_prefix('/') {
            Some(expression) => {
                compile(expression).map(Self::Regex).map_err(|message| token.error(message))
            }
            None => Ok(Self::Literal(token.text.clone())),
        }
    }

    /// A token of a user column; membership in a group is refused: it is no name.
    pub(crate) fn of_user(token: &Token) -> Result<Self, FileError> {
        if token.is_keyword("all") {
            return Ok(Self::All);
        }
        if !token.quoted && token.text.starts_with('+') {
            return Err(token.error(format!(
                "group membership (\"{}\") is known in hba_file alone; list the users, name a file with \
                 @file, or use a regular expression (/...)",
                token.text
            )));
        }
        Self::of(token)
    }

    /// Whether `name` is meant.
    pub fn matches(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Literal(literal) => literal == name,
            Self::Regex(regex) => regex.is_match(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn found(expression: &str, name: &str) -> bool {
        compile(expression).unwrap().is_match(name)
    }

    #[test]
    fn an_expression_is_searched_anywhere_unless_anchored() {
        assert!(found("b", "abc"));
        assert!(!found("^b", "abc"));
        assert!(found("^db[0-9]+$", "db12"));
        assert!(!found("^db[0-9]+$", "db12x"));
        assert!(found("a.c", "a\nc"), "the dot matches a newline");
    }

    #[test]
    fn class_escapes_are_ascii_as_under_the_c_collation() {
        assert!(found(r"^\d\w\s$", "1_ "));
        assert!(!found(r"^\d$", "\u{663}"), "an Arabic digit");
        assert!(!found(r"^[\w]$", "é"));
        assert!(found(r"^\W$", "é"));
    }

    #[test]
    fn brackets_mean_what_they_mean_in_postgresql() {
        assert!(found("^[a&&b]$", "&"), "no intersection of classes");
        assert!(found("^[]a]$", "]"));
        assert!(found("^[[a]$", "["));
        assert!(found("^[a-]$", "-"));
        assert!(found("^[[:alpha:]_]+$", "ab_c"));
        assert!(!found("^[^[:digit:]]$", "1"));
        assert!(found("^a{2}{x}$", "aa{x}") || compile("^a{2}{x}$").is_err());
        assert!(found("^{x}$", "{x}"));
    }

    #[test]
    fn what_the_crate_reads_differently_is_refused() {
        for expression in [
            r"(a)\1",
            "a(?=b)",
            r"\mfoo",
            "***=x",
            "(?i)x",
            "[[.a.]]",
            "[+--]",
            r"[\d-z]",
            r"[a-\d]",
            "[a-[:digit:]]",
            r"[\d-z]",
            r"[a-\d]",
            "[a-[:digit:]]",
            "a**",
            "a\\",
            "[a",
            "(a",
        ] {
            let error = compile(expression).unwrap_err();
            assert!(error.starts_with("invalid regular expression \""), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }

    proptest! {
        #[test]
        fn compiling_never_panics(expression in r"[\PC\[\](){}\\*+?^$|&~-]{0,24}") {
            let _ = compile(&expression);
        }
    }
}
