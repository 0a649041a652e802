//! Cuts a statement's text into tokens.

use crate::model::error::PgError;

/// One token and where it stands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// What it is.
    pub kind: Kind,
    /// As written, for error messages.
    pub text: String,
}

/// What a token is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A name or keyword, folded to lower case.
    Word(String),
    /// A quoted identifier.
    Quoted(String),
    /// A string, and whether a backslash stood in it.
    Text(String),
    /// A number, with its sign apart.
    Number(String),
    /// `$1`
    Param(usize),
    /// Anything else; `::` is one.
    Punct(&'static str),
}

const PUNCTUATION: [&str; 13] = ["::", ";", ",", "(", ")", "=", "*", "/", "-", "+", ".", "<", ">"];

/// Tokens of a text, and whether a plain string held a backslash that meant an escape.
///
/// # Errors
/// 42601 for what no token begins with, or what does not end.
pub fn tokens(text: &str, conforming_strings: bool) -> Result<(Vec<Token>, bool), PgError> {
    let mut found = Vec::new();
    let mut escapes = false;
    let mut rest = text;
    loop {
        rest = skip_blanks(rest)?;
        let Some(first) = rest.chars().next() else { return Ok((found, escapes)) };
        let (kind, length) = match first {
            '\'' => {
                let (value, length, escaped) = string(rest, conforming_strings)?;
                escapes |= escaped;
                (Kind::Text(value), length)
            }
            '"' => {
                let end = rest[1..]
                    .find('"')
                    .ok_or_else(|| PgError::error("42601", "unterminated quoted identifier"))?;
                (Kind::Quoted(rest[1..=end].to_owned()), end + 2)
            }
            '$' => {
                let length = run(&rest[1..], |c| c.is_ascii_digit());
                let number = rest[1..=length].parse().map_err(|_| syntax(rest))?;
                (Kind::Param(number), length + 1)
            }
            c if c.is_ascii_digit() => {
                let length = run(rest, |c| c.is_ascii_digit() || c == '.');
                (Kind::Number(rest[..length].to_owned()), length)
            }
            c if c.is_alphabetic() || c == '_' => {
                let length = run(rest, |c| c.is_alphanumeric() || c == '_' || c == '$');
                (Kind::Word(rest[..length].to_lowercase()), length)
            }
            _ => {
                let found = PUNCTUATION.iter().find(|mark| rest.starts_with(**mark));
                let mark = *found.ok_or_else(|| syntax(&rest[..first.len_utf8()]))?;
                (Kind::Punct(mark), mark.len())
            }
        };
        found.push(Token { kind, text: rest[..length].to_owned() });
        rest = &rest[length..];
    }
}

fn run(text: &str, belongs: impl Fn(char) -> bool) -> usize {
    text.find(|c| !belongs(c)).unwrap_or(text.len())
}

fn syntax(near: &str) -> PgError {
    PgError::error("42601", format!("syntax error at or near \"{near}\""))
}

fn skip_blanks(text: &str) -> Result<&str, PgError> {
    let mut rest = text.trim_start();
    loop {
        if rest.starts_with("--") {
            rest = rest.find('\n').map_or("", |end| &rest[end..]).trim_start();
        } else if rest.starts_with("/*") {
            let end = rest
                .find("*/")
                .ok_or_else(|| PgError::error("42601", "unterminated /* comment"))?;
            rest = rest[end + 2..].trim_start();
        } else {
            return Ok(rest);
        }
    }
}

/// The string that `text` begins with, its length in the text, and whether it held an escape.
fn string(text: &str, conforming: bool) -> Result<(String, usize, bool), PgError> {
    let mut value = String::new();
    let mut escaped = false;
    let mut chars = text.char_indices().skip(1).peekable();
    while let Some((at, c)) = chars.next() {
        match c {
            '\'' if matches!(chars.peek(), Some((_, '\''))) => {
                chars.next();
                value.push('\'');
            }
            '\'' => return Ok((value, at + 1, escaped)),
            '\\' if !conforming => {
                escaped = true;
                match chars.next() {
                    Some((_, 'n')) => value.push('\n'),
                    Some((_, 't')) => value.push('\t'),
                    Some((_, other)) => value.push(other),
                    None => break,
                }
            }
            other => value.push(other),
        }
    }
    Err(PgError::error("42601", format!("unterminated quoted string at or near \"{text}\"")))
}
