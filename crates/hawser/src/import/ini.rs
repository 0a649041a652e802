//! The syntax of pgbouncer.ini, as PgBouncer's own parser reads it.
//!
//! # Model
//! Lines of `[section]`, `key = value`, `%include FILE`, comments that begin with `;` or `#`. After
//! `[section]` the line goes on as if it had begun there. A value goes to the end of its line: `;` and
//! `#` in it are part of it. The values of `[databases]` and `[users]` are connection strings:
//! `key=value` with spaces between, values in single quotes where they hold spaces, a quote in them
//! doubled.
//!
//! # Limits      files are included at most [`INCLUDE_DEPTH_MAX`] deep, as in PgBouncer

use super::error::{ImportError, ImportErrors, Reason};

/// PgBouncer's own limit.
const INCLUDE_DEPTH_MAX: usize = 10;

/// A section of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Section {
    Databases,
    Users,
    Peers,
    PgBouncer,
    /// For settings of ours.
    Hawser,
}

impl Section {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "databases" => Self::Databases,
            "users" => Self::Users,
            "peers" => Self::Peers,
            "pgbouncer" => Self::PgBouncer,
            "hawser" => Self::Hawser,
            _ => return None,
        })
    }
}

/// What a file is made of.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Item {
    /// A section begins, for the first time or again.
    Section(Section, Place),
    Entry(Entry),
}

impl Item {
    /// Whether an error is one of this entry.
    pub(super) fn has(&self, error: &ImportError) -> bool {
        let Self::Entry(Entry { place, .. }) = self else { return false };
        place.line == error.line && place.file == error.file
    }

    /// Whether it is a value that ends in what many take for a comment.
    pub(super) fn seems_commented(&self) -> bool {
        let Self::Entry(entry) = self else { return false };
        let marks = [" ;", "\t;", " #", "\t#"];
        marks.iter().any(|mark| entry.value.contains(mark))
    }
}

/// One `key = value`, with where it stands.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Entry {
    pub(super) section: Section,
    pub(super) key: String,
    pub(super) value: String,
    pub(super) place: Place,
}

impl Entry {
    /// Why its value is refused.
    pub(super) fn refuse(&self, message: impl Into<String>) -> ImportError {
        self.place.error(Reason::Value { key: self.key.clone(), message: message.into() })
    }
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

/// All of `text` and of what it includes, in order; or each line that cannot be read.
pub(super) fn items(text: &[u8], read: ReadFile<'_>) -> Result<Vec<Item>, ImportErrors> {
    let (items, errors) = (Vec::new(), ImportErrors::default());
    let mut reader = Reader { items, errors, section: None, is_unknown: false, read };
    reader.file(text, None, 0);
    if reader.errors.is_empty() { Ok(reader.items) } else { Err(reader.errors) }
}

struct Reader<'a> {
    items: Vec<Item>,
    errors: ImportErrors,
    section: Option<Section>,
    /// What follows an unknown section is not read.
    is_unknown: bool,
    read: ReadFile<'a>,
}

impl Reader<'_> {
    fn file(&mut self, text: &[u8], name: Option<&str>, depth: usize) {
        for (index, line) in text.split(|byte| *byte == b'\n').enumerate() {
            let place = Place { file: name.map(str::to_owned), line: index + 1 };
            // PgBouncer reads no further, in a comment too.
            if line.contains(&0) {
                return self.errors.add(place.error(Reason::Nul));
            }
            if let Err(error) = self.line(line, &place, depth) {
                self.is_unknown |= matches!(error.reason, Reason::UnknownSection(_));
                self.errors.add(error);
            }
            if self.errors.are_many() {
                return;
            }
        }
    }

    fn line(&mut self, mut line: &[u8], place: &Place, depth: usize) -> Result<(), ImportError> {
        loop {
            // Comments may be in any encoding, as for PgBouncer. A value may not: what is made of it
            // is UTF-8, and other bytes would be another password.
            line = without_space(line);
            let utf8 = |bytes| std::str::from_utf8(bytes).map_err(|_| place.error(Reason::NotUtf8));
            match line.first() {
                None | Some(b';' | b'#') => return Ok(()),
                Some(b'[') => {
                    let end = line.iter().position(|byte| *byte == b']');
                    let end = end.ok_or_else(|| place.error(Reason::Syntax))?;
                    let name = utf8(&line[1..end])?;
                    let section = Section::named(name)
                        .ok_or_else(|| place.error(Reason::UnknownSection(name.to_owned())))?;
                    (self.section, self.is_unknown) = (Some(section), false);
                    self.items.push(Item::Section(section, place.clone()));
                    line = &line[end + 1..];
                }
                Some(_) => return self.include_or_entry(utf8(line)?, place, depth),
            }
        }
    }

    fn include_or_entry(
        &mut self,
        line: &str,
        place: &Place,
        depth: usize,
    ) -> Result<(), ImportError> {
        let included = line.strip_prefix("%include").filter(|rest| rest.starts_with([' ', '\t']));
        if let Some(file) = included.map(|rest| rest.trim_start_matches([' ', '\t'])) {
            if depth >= INCLUDE_DEPTH_MAX {
                return Err(place.error(Reason::IncludedTooDeep));
            }
            let text = (self.read)(file).map_err(|error| {
                place.error(Reason::Include { file: file.to_owned(), error: error.to_string() })
            })?;
            self.file(&text, Some(file), depth + 1);
            return Ok(());
        }
        if self.is_unknown {
            return Ok(());
        }
        let (key, value) = key_value(line).ok_or_else(|| place.error(Reason::Syntax))?;
        let section = self.section.ok_or_else(|| place.error(Reason::OutsideOfSections))?;
        let (value, place) = (value.to_owned(), place.clone());
        self.items.push(Item::Entry(Entry { section, key, value, place }));
        Ok(())
    }
}

/// `line` without what C's isspace takes for space at its ends. (All of Unicode's would be too much: a
/// password may end with one.)
fn without_space(line: &[u8]) -> &[u8] {
    let is_text = |byte: &u8| !matches!(byte, b' ' | b'\t'..=b'\r');
    let start = line.iter().position(is_text).unwrap_or(line.len());
    let end = line.iter().rposition(is_text).map_or(start, |last| last + 1);
    &line[start..end]
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
    (!key.is_empty()).then(|| (key, value.trim_start_matches([' ', '\t'])))
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
    let mut rest = text.trim_start_matches(' ');
    while !rest.is_empty() {
        let (key, after) = rest.split_at(rest.find([' ', '='])?);
        let after = after.trim_start_matches(' ').strip_prefix('=')?.trim_start_matches(' ');
        if key.is_empty() || key.contains(char::is_whitespace) {
            return None;
        }
        let (value, after) = match after.strip_prefix('\'') {
            Some(after) => quoted(after, '\'')?,
            None => {
                let end = after.find(' ').unwrap_or(after.len());
                (after[..end].to_owned(), &after[end..])
            }
        };
        // PgBouncer drops the character after a closing quote, whatever it is.
        if value.is_empty() || !(after.is_empty() || after.starts_with(' ')) {
            return None;
        }
        pairs.push((key.to_owned(), value));
        rest = after.trim_start_matches(' ');
    }
    Some(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(text: &[u8], read: ReadFile<'_>) -> Result<Vec<Entry>, ImportError> {
        let entry = |item| match item {
            Item::Entry(entry) => Some(entry),
            Item::Section(..) => None,
        };
        let items = items(text, read).map_err(|errors| errors.iter().next().unwrap().clone())?;
        Ok(items.into_iter().filter_map(entry).collect())
    }

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

    /// What follows `]` was dropped: `[pgbouncer] auth_type = hba` was md5.
    #[test]
    fn after_a_section_its_line_goes_on() {
        let text =
            b"[databases] # M\xfcller\n[users][pgbouncer] auth_type = hba\n[users] %include a\n";
        let mut read = |_: &str| Ok(b"u = \n".to_vec());
        let found = entries(text, &mut read).unwrap();
        let found: Vec<_> = found.iter().map(|e| (e.section, e.key.as_str(), &*e.value)).collect();
        let expected = [(Section::PgBouncer, "auth_type", "hba"), (Section::Users, "u", "")];
        assert_eq!(found, expected);
        let error = entries(b"\n[pgbouncer] auth_type\n", &mut none).unwrap_err();
        assert_eq!((error.line, error.reason), (2, Reason::Syntax));
    }

    /// PgBouncer ignores what follows a NUL byte; other spaces than ASCII's are part of a value.
    #[test]
    fn nul_bytes_are_refused_and_spaces_are_those_of_c() {
        let error = entries(b"[pgbouncer]\n; \0\nauth_type = trust\n", &mut none).unwrap_err();
        assert_eq!((error.line, error.reason), (2, Reason::Nul));
        let text = "\u{b}[databases]\u{c}\n a = password=\u{a0}x\u{a0}\u{b}\r\n";
        let found = entries(text.as_bytes(), &mut none).unwrap();
        assert_eq!(found[0].value, "password=\u{a0}x\u{a0}");
    }

    #[test]
    fn includes_keep_the_section_and_end_at_a_depth() {
        let mut read = |name: &str| match name {
            "a.ini" => Ok(b"x = 1\n[users]\n".to_vec()),
            _ => none(name),
        };
        let found = entries(b"[pgbouncer]\n%include a.ini\ny = 2\n", &mut read).unwrap();
        assert_eq!((found[0].key.as_str(), found[0].section), ("x", Section::PgBouncer));
        assert_eq!(found[0].place.file.as_deref(), Some("a.ini"));
        assert_eq!((found[1].key.as_str(), found[1].section), ("y", Section::Users));
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
        for text in ["host", "host=", "=h", "host='h", "a b=c", "dbname='a'user=b", "host\t=h"] {
            assert_eq!(pairs(text), None, "{text}");
        }
    }
}
