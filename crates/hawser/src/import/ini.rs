//! The syntax of pgbouncer.ini, as PgBouncer's own parser reads it.
//!
//! # Model
//! Lines of `[section]`, `key = value`, `%include FILE`, comments that begin with `;` or `#`. A value
//! goes to the end of its line: `;` and `#` in it are part of it. The values of `[databases]` and
//! `[users]` are connection strings: `key=value` with spaces between, values in single quotes where
//! they hold spaces, a quote in them doubled.
//!
//! # Limits      files are included at most [`INCLUDE_DEPTH_MAX`] deep, as in PgBouncer

use super::{ImportError, Reason};

/// PgBouncer's own limit.
const INCLUDE_DEPTH_MAX: usize = 10;

/// PgBouncer's, and `[hawser]` for settings of ours.
const SECTIONS: [&str; 5] = ["databases", "users", "peers", "pgbouncer", "hawser"];

/// One `key = value`, with where it stands.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) section: String,
    pub(super) key: String,
    pub(super) value: String,
    pub(super) place: Place,
}

/// A line of a file; the outermost file has no name.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub(super) struct Place {
    pub(super) file: Option<String>,
    pub(super) line: usize,
}

impl Place {
    pub(super) fn error(&self, reason: Reason) -> ImportError {
        ImportError { file: self.file.clone(), line: self.line, reason }
    }
}

/// Reads a file named by `%include`.
pub(super) type ReadFile<'a> = &'a mut dyn FnMut(&str) -> std::io::Result<Vec<u8>>;

/// All entries of `text` and of what it includes, in order.
pub(super) fn entries(text: &[u8], read: ReadFile<'_>) -> Result<Vec<Entry>, ImportError> {
    let mut reader = Reader { entries: Vec::new(), section: None, read };
    reader.file(text, None, 0)?;
    Ok(reader.entries)
}

struct Reader<'a> {
    entries: Vec<Entry>,
    section: Option<String>,
    read: ReadFile<'a>,
}

impl Reader<'_> {
    fn file(&mut self, text: &[u8], name: Option<&str>, depth: usize) -> Result<(), ImportError> {
        for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let place = Place { file: name.map(str::to_owned), line: index + 1 };
            // Comments may be in any encoding, as for PgBouncer. A value may not: what is made of it
            // is UTF-8, and other bytes would be another password.
            let line = line.trim_ascii();
            if matches!(line.first(), None | Some(b';' | b'#')) {
                continue;
            }
            let line = std::str::from_utf8(line).map_err(|_| place.error(Reason::NotUtf8))?.trim();
            let included = line.strip_prefix("%include").filter(|r| r.starts_with([' ', '\t']));
            if let Some(file) = included.map(str::trim) {
                if depth >= INCLUDE_DEPTH_MAX {
                    return Err(place.error(Reason::IncludedTooDeep));
                }
                let text = (self.read)(file).map_err(|error| {
                    place.error(Reason::Include { file: file.to_owned(), error: error.to_string() })
                })?;
                self.file(&text, Some(file), depth + 1)?;
            } else if let Some(rest) = line.strip_prefix('[') {
                let (section, _) =
                    rest.split_once(']').ok_or_else(|| place.error(Reason::Syntax))?;
                if !SECTIONS.contains(&section) {
                    return Err(place.error(Reason::UnknownSection(section.to_owned())));
                }
                self.section = Some(section.to_owned());
            } else {
                let (key, value) = key_value(line).ok_or_else(|| place.error(Reason::Syntax))?;
                let section =
                    self.section.clone().ok_or_else(|| place.error(Reason::OutsideOfSections))?;
                self.entries.push(Entry { section, key, value: value.to_owned(), place });
            }
        }
        Ok(())
    }
}

fn key_value(line: &str) -> Option<(String, &str)> {
    let (key, rest) = match line.chars().next()? {
        quote @ ('\'' | '"') => quoted(&line[1..], quote)?,
        _ => {
            let end = line.find(|c: char| !(c.is_ascii_alphanumeric() || "_.-*".contains(c)))?;
            (line[..end].to_owned(), &line[end..])
        }
    };
    let value = rest.trim_start_matches([' ', '\t']).strip_prefix('=')?;
    (!key.is_empty()).then(|| (key, value.trim()))
}

/// The text up to the closing `quote`, in which a doubled one stands for one, and what follows.
fn quoted(text: &str, quote: char) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut rest = text;
    loop {
        let end = rest.find(quote)?;
        value.push_str(&rest[..end]);
        rest = &rest[end + quote.len_utf8()..];
        match rest.strip_prefix(quote) {
            Some(after) => {
                value.push(quote);
                rest = after;
            }
            None => return Some((value, rest)),
        }
    }
}

/// The pairs of a connection string; `None` where PgBouncer would refuse its syntax.
pub(super) fn pairs(text: &str) -> Option<Vec<(String, String)>> {
    let mut pairs = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (key, after) = rest.split_once('=')?;
        let key = key.trim_end();
        if key.is_empty() || key.contains(char::is_whitespace) {
            return None;
        }
        let after = after.trim_start();
        let (value, after) = match after.strip_prefix('\'') {
            Some(after) => quoted(after, '\'')?,
            None => {
                let end = after.find(' ').unwrap_or(after.len());
                (after[..end].to_owned(), &after[end..])
            }
        };
        if value.is_empty() {
            return None;
        }
        pairs.push((key.to_owned(), value));
        rest = after.trim_start();
    }
    Some(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn none(_: &str) -> std::io::Result<Vec<u8>> {
        Err(std::io::ErrorKind::NotFound.into())
    }

    #[test]
    fn a_value_goes_to_the_end_of_its_line() {
        let text =
            "; c\n# c\n[databases]\n a = host=h password=a;b#c \n'x y'=\n\"q\"\"q\" = host=h\n*=\n";
        let found = entries(text.as_bytes(), &mut none).unwrap();
        let pairs: Vec<_> = found.iter().map(|e| (e.key.as_str(), e.value.as_str())).collect();
        let expected = [("a", "host=h password=a;b#c"), ("x y", ""), ("q\"q", "host=h"), ("*", "")];
        assert_eq!(pairs, expected);
        assert_eq!(found[0].place.line, 4);
    }

    #[test]
    fn what_pgbouncer_refuses_is_refused_with_its_line() {
        for (text, line) in [
            ("[pgbouncer\n", 1),
            ("a = 1\n", 1),
            ("\n[pgbouncer]\nno value\n", 3),
            ("[pgbouncer]\n= 1\n", 2),
            ("[other]\n", 1),
            ("[databases]\n'a = 1\n", 2),
        ] {
            assert_eq!(entries(text.as_bytes(), &mut none).unwrap_err().line, line, "{text}");
        }
    }

    #[test]
    fn includes_keep_the_section_and_end_at_a_depth() {
        let mut read = |name: &str| match name {
            "a.ini" => Ok(b"x = 1\n[users]\n".to_vec()),
            _ => none(name),
        };
        let found = entries(b"[pgbouncer]\n%include a.ini\ny = 2\n", &mut read).unwrap();
        assert_eq!((found[0].key.as_str(), found[0].section.as_str()), ("x", "pgbouncer"));
        assert_eq!(found[0].place.file.as_deref(), Some("a.ini"));
        assert_eq!((found[1].key.as_str(), found[1].section.as_str()), ("y", "users"));
        let mut endless = |_: &str| Ok(b"%include me\n".to_vec());
        let error = entries(b"%include me\n", &mut endless).unwrap_err();
        assert_eq!(error.reason, Reason::IncludedTooDeep);
        let error = entries(b"%include b.ini\n", &mut read).unwrap_err();
        assert!(error.to_string().contains("b.ini"), "{error}");
    }

    /// A Latin-1 byte made the whole file one that could not be read, without a line.
    #[test]
    fn bytes_that_are_no_utf8_are_allowed_in_comments_and_named_by_their_line_elsewhere() {
        let found = entries(b"; M\xfcller\n[pgbouncer]\n# \xe4\na = 1\r\n", &mut none).unwrap();
        assert_eq!((found[0].key.as_str(), found[0].value.as_str()), ("a", "1"));
        let error = entries(b"[databases]\na = password=\xfc\n", &mut none).unwrap_err();
        assert_eq!((error.line, error.reason), (2, Reason::NotUtf8));
    }

    #[test]
    fn connection_strings_have_quotes_and_spaces() {
        let pair = |k: &str, v: &str| (k.to_owned(), v.to_owned());
        assert_eq!(
            pairs(" host = h  connect_query='SELECT ''x''' port=1 "),
            Some(vec![pair("host", "h"), pair("connect_query", "SELECT 'x'"), pair("port", "1")])
        );
        assert_eq!(pairs(""), Some(vec![]));
        for text in ["host", "host=", "=h", "host='h", "a b=c"] {
            assert_eq!(pairs(text), None, "{text}");
        }
    }
}
