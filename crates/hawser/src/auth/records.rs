//! Reads the records of `pg_hba.conf` and `pg_ident.conf`: lines, fields and tokens, with everything included.
//!
//! # Model
//! A file is lines; a backslash at the end of a line joins the next one to it, before anything else is looked at.
//! A line is fields, parted by blanks; a field is tokens, parted by commas. A token may be quoted in part or whole,
//! with two quotes for one. `#` outside of quotes starts a comment. A token `@name` stands for all tokens of that file,
//! and a line `include name`, `include_if_exists name` or `include_dir name` for that file's lines
//! (PostgreSQL 16, `src/backend/libpq/hba.c`, `next_token` to `tokenize_auth_file`).
//!
//! # Invariants
//! - Every token knows the file, line and column where it stands, also across joined lines and inclusions.
//! - Every record has at least one field and every field at least one token.
//! - Nothing is read but through [`Files`], so that tests and fuzzers need no disk.
//!
//! # Limits
//! Files nest at most [`INCLUDE_DEPTH_MAX`] deep and hold at most [`FILE_SIZE_MAX`] bytes of UTF-8 each.
//! One difference from PostgreSQL, on the safe side: an unterminated quote, and an `@file` that leaves a field empty
//! (PostgreSQL then takes the next field for it), are errors here.

use std::cell::RefCell;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How deep files may include each other: PostgreSQL's `CONF_FILE_MAX_DEPTH`.
pub const INCLUDE_DEPTH_MAX: usize = 10;

/// The largest file that is read, in bytes.
pub const FILE_SIZE_MAX: usize = 16 << 20;

/// The most files that one load reads: ten levels that each include their own directory would never end.
pub const FILES_MAX: usize = 1_000;

/// The most errors that one load reports.
pub const ERRORS_MAX: usize = 100;

/// Where configuration files come from.
pub trait Files {
    /// The bytes of the file `path`.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;
    /// The paths of the plain files in the directory `path`, in any order.
    fn list(&self, path: &Path) -> io::Result<Vec<PathBuf>>;
}

/// The file system.
#[derive(Debug, Clone, Copy, Default)]
pub struct Disk;

impl Files for Disk {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        std::fs::read(path)
    }

    fn list(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
        let mut files = Vec::new();
        for entry in std::fs::read_dir(path)? {
            let entry_path = entry?.path();
            if entry_path.is_file() {
                files.push(entry_path);
            }
        }
        Ok(files)
    }
}

/// A place in a configuration file. Lines and columns count from 1, columns in characters.
#[derive(Debug, Clone, PartialEq, Eq, derive_more::Display)]
#[display("{}:{line}:{column}", file.display())]
pub struct Location {
    /// The file, as it was opened.
    pub file: Arc<Path>,
    /// The physical line.
    pub line: usize,
    /// The column in that line.
    pub column: usize,
}

/// What is wrong in a configuration file, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{location}: {message}")]
pub struct FileError {
    /// The token, line or file at fault.
    pub location: Location,
    /// What is wrong and what is allowed, as one line of text.
    pub message: String,
}

/// Everything that is wrong in a set of files: at least one error, at most [`ERRORS_MAX`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
pub struct FileErrors(Vec<FileError>);

impl FileErrors {
    /// The errors in the order of the files' lines.
    pub fn iter(&self) -> impl Iterator<Item = &FileError> {
        self.0.iter()
    }

    /// `value`, unless there were errors.
    pub(crate) fn unless_any<T>(mut errors: Vec<FileError>, value: T) -> Result<T, Self> {
        errors.truncate(ERRORS_MAX);
        if errors.is_empty() { Ok(value) } else { Err(Self(errors)) }
    }
}

/// One word of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    /// The word without its quotes.
    pub text: String,
    /// Whether it began with a quote: keywords, `@` and `+` then have no special meaning.
    pub quoted: bool,
    /// Where the word begins.
    pub location: Location,
}

impl Token {
    /// Whether this is the keyword `word`, which it is not when quoted.
    pub fn is_keyword(&self, word: &str) -> bool {
        !self.quoted && self.text == word
    }

    /// An error about this token.
    pub fn error(&self, message: impl Into<String>) -> FileError {
        FileError { location: self.location.clone(), message: message.into() }
    }
}

/// One field of a record: one or more tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field(Vec<Token>);

impl Field {
    /// The tokens, at least one.
    pub fn tokens(&self) -> &[Token] {
        &self.0
    }

    /// The only token of a field that may not be a list; else an error that calls the field `what`.
    pub fn single(&self, what: &str) -> Result<&Token, FileError> {
        match self.0.as_slice() {
            [token] => Ok(token),
            [_, second, ..] => Err(second.error(format!("multiple values specified for {what}"))),
            [] => unreachable!("a field is only made with a token"),
        }
    }
}

/// One record: the fields of a logical line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The fields, at least one.
    pub fields: Vec<Field>,
    /// Where the first field begins.
    pub start: Location,
    /// The position after the last field, for errors about what is missing.
    pub end: Location,
}

/// Reads `path` and everything that it includes. Errors are collected in `errors`; the records without one are returned.
pub fn read(files: &dyn Files, path: &Path, errors: &mut Vec<FileError>) -> Vec<Record> {
    let mut reader = Reader { files, records: Vec::new(), errors, files_read: 0 };
    let origin = Location { file: Arc::from(path), line: 1, column: 1 };
    reader.file(path, &origin, 0, false);
    reader.records
}

/// The files and directories that a load of the file `path` reads, `path` among them, whether or not they are there.
pub fn files_of(path: &Path) -> Vec<PathBuf> {
    struct Noting(RefCell<Vec<PathBuf>>);
    impl Files for Noting {
        fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
            self.0.borrow_mut().push(path.to_owned());
            Disk.read(path)
        }

        fn list(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
            self.0.borrow_mut().push(path.to_owned());
            Disk.list(path)
        }
    }
    let noting = Noting(RefCell::default());
    read(&noting, path, &mut Vec::new()); // errors are the load's to report
    noting.0.into_inner()
}

struct Reader<'a> {
    files: &'a dyn Files,
    records: Vec<Record>,
    errors: &'a mut Vec<FileError>,
    files_read: usize,
}

/// How a logical line begins when it names other files.
enum Include<'a> {
    File(&'a Token),
    FileIfExists(&'a Token),
    Directory(&'a Token),
}

impl<'a> Include<'a> {
    fn of(fields: &'a [Field]) -> Option<Result<Self, FileError>> {
        let [first, second] = fields else { return None };
        let directive = match first.0[0].text.as_str() {
            "include" => Self::File,
            "include_if_exists" => Self::FileIfExists,
            "include_dir" => Self::Directory,
            _ => return None,
        };
        Some(second.single("the name to include").map(directive))
    }
}

impl Reader<'_> {
    fn fail(&mut self, location: &Location, message: impl Into<String>) {
        self.errors.push(FileError { location: location.clone(), message: message.into() });
    }

    /// Reads a whole file, asked for at `origin`. With `missing_ok` a file that does not exist is an empty one.
    fn file(&mut self, path: &Path, origin: &Location, depth: usize, missing_ok: bool) {
        let Some(text) = self.open(path, origin, depth, missing_ok) else { return };
        let file: Arc<Path> = Arc::from(path);
        for line in LogicalLines::new(&text) {
            if self.errors.len() >= ERRORS_MAX {
                return;
            }
            let errors_before = self.errors.len();
            let fields = self.fields(&line, &file, depth);
            if self.errors.len() > errors_before {
                continue;
            }
            let Some(start) = fields.first().map(|field| field.0[0].location.clone()) else {
                continue;
            };
            let include = match Include::of(&fields).transpose() {
                Ok(include) => include,
                Err(error) => {
                    self.errors.push(error);
                    continue;
                }
            };
            match include {
                Some(Include::File(token)) => {
                    let target = relative_to(path, &token.text);
                    self.file(&target, &token.location, depth + 1, false);
                }
                Some(Include::FileIfExists(token)) => {
                    let target = relative_to(path, &token.text);
                    self.file(&target, &token.location, depth + 1, true);
                }
                Some(Include::Directory(token)) => self.directory(path, token, depth + 1),
                None => {
                    let end = line.location(&file, line.text.trim_end().len());
                    self.records.push(Record { fields, start, end });
                }
            }
        }
    }

    /// Every `*.conf` of a directory that is not hidden, in the byte order of their names.
    fn directory(&mut self, outer: &Path, token: &Token, depth: usize) {
        let directory = relative_to(outer, &token.text);
        let mut paths = match self.files.list(&directory) {
            Ok(paths) => paths,
            Err(error) => {
                let shown = directory.display();
                return self.fail(
                    &token.location,
                    format!("could not open configuration directory \"{shown}\": {error}"),
                );
            }
        };
        paths.retain(|path| {
            path.file_name()
                .and_then(|name| name.to_str())
                .is_some_and(|name| name.ends_with(".conf") && !name.starts_with('.'))
        });
        paths.sort();
        for path in paths {
            self.file(&path, &token.location, depth, false);
        }
    }

    fn open(
        &mut self,
        path: &Path,
        origin: &Location,
        depth: usize,
        missing_ok: bool,
    ) -> Option<String> {
        let shown = path.display();
        self.files_read += 1;
        if depth > INCLUDE_DEPTH_MAX || self.files_read > FILES_MAX {
            let limit = if depth > INCLUDE_DEPTH_MAX {
                format!("maximum nesting depth of {INCLUDE_DEPTH_MAX} exceeded")
            } else {
                format!("more than {FILES_MAX} files are included")
            };
            self.fail(origin, format!("could not open file \"{shown}\": {limit}"));
            return None;
        }
        let bytes = match self.files.read(path) {
            Ok(bytes) => bytes,
            Err(error) if missing_ok && error.kind() == io::ErrorKind::NotFound => return None,
            Err(error) => {
                self.fail(origin, format!("could not open file \"{shown}\": {error}"));
                return None;
            }
        };
        if bytes.len() > FILE_SIZE_MAX {
            self.fail(origin, format!("file \"{shown}\" is larger than {FILE_SIZE_MAX} bytes"));
            return None;
        }
        match String::from_utf8(bytes) {
            Ok(text) => Some(text),
            Err(error) => {
                let valid = error.utf8_error().valid_up_to();
                let location = location_of_byte(path, error.as_bytes(), valid);
                self.fail(&location, "the file is not valid UTF-8 here");
                None
            }
        }
    }

    fn fields(&mut self, line: &LogicalLine, file: &Arc<Path>, depth: usize) -> Vec<Field> {
        let errors_before = self.errors.len();
        let mut words = Words { line, file, at: 0 };
        let mut fields = Vec::new();
        loop {
            let mut tokens = Vec::new();
            let mut begun = None;
            loop {
                let word = match words.next_word() {
                    Ok(Some(word)) => word,
                    Ok(None) => break,
                    Err(error) => {
                        self.errors.push(error);
                        return fields;
                    }
                };
                let more = word.comma_follows;
                let token = word.token;
                begun.get_or_insert_with(|| token.location.clone());
                match token.text.strip_prefix('@') {
                    Some(name) if !token.quoted && !name.is_empty() => {
                        self.expand(&mut tokens, &relative_to(file, name), &token.location, depth);
                    }
                    _ => tokens.push(token),
                }
                if !more {
                    break;
                }
            }
            match begun {
                None => return fields,
                Some(location) if tokens.is_empty() => {
                    if self.errors.len() == errors_before {
                        self.fail(&location, "the included file holds no names");
                    }
                    return fields;
                }
                Some(_) => fields.push(Field(tokens)),
            }
        }
    }

    /// Appends all tokens of the file `path` to `tokens`.
    fn expand(&mut self, tokens: &mut Vec<Token>, path: &Path, origin: &Location, depth: usize) {
        let outer = std::mem::take(&mut self.records);
        self.file(path, origin, depth + 1, false);
        let inner = std::mem::replace(&mut self.records, outer);
        for record in inner {
            for field in record.fields {
                tokens.extend(field.0);
            }
        }
    }
}

/// A relative name is relative to the directory of the file that gives it.
fn relative_to(outer: &Path, name: &str) -> PathBuf {
    outer.parent().unwrap_or(Path::new("")).join(name)
}

/// The line and column of a byte in a file that may not be text.
fn location_of_byte(path: &Path, bytes: &[u8], at: usize) -> Location {
    let before = &bytes[..at];
    let line_start = before.iter().rposition(|&byte| byte == b'\n').map_or(0, |index| index + 1);
    let line = 1 + before.iter().filter(|&&byte| byte == b'\n').count();
    let column = 1 + String::from_utf8_lossy(&before[line_start..]).chars().count();
    Location { file: Arc::from(path), line, column }
}

/// A line after its continuations have been joined to it.
struct LogicalLine {
    text: String,
    /// For each physical line that went into `text`: where it begins in `text`, and its number.
    parts: Vec<(usize, usize)>,
}

impl LogicalLine {
    fn location(&self, file: &Arc<Path>, at: usize) -> Location {
        let index = self.parts.partition_point(|&(begin, _)| begin <= at).saturating_sub(1);
        let (begin, line) = self.parts[index];
        let column = 1 + self.text[begin..at].chars().count();
        Location { file: Arc::clone(file), line, column }
    }
}

struct LogicalLines<'a> {
    physical: std::iter::Enumerate<std::str::Split<'a, char>>,
}

impl<'a> LogicalLines<'a> {
    fn new(text: &'a str) -> Self {
        Self { physical: text.split('\n').enumerate() }
    }
}

impl Iterator for LogicalLines<'_> {
    type Item = LogicalLine;

    fn next(&mut self) -> Option<LogicalLine> {
        let mut line: Option<LogicalLine> = None;
        for (index, physical) in self.physical.by_ref() {
            let line =
                line.get_or_insert_with(|| LogicalLine { text: String::new(), parts: Vec::new() });
            line.parts.push((line.text.len(), index + 1));
            // Only a backslash of this very line continues it: an empty line after a continuation ends it.
            let stripped = physical.trim_end_matches('\r');
            match stripped.strip_suffix('\\') {
                Some(continued) => line.text.push_str(continued),
                None => {
                    line.text.push_str(stripped);
                    break;
                }
            }
        }
        line
    }
}

struct Word {
    token: Token,
    comma_follows: bool,
}

struct Words<'a> {
    line: &'a LogicalLine,
    file: &'a Arc<Path>,
    at: usize,
}

fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\r')
}

impl Words<'_> {
    /// The next token of the line. The comma that ends it is not consumed: the next call skips it.
    fn next_word(&mut self) -> Result<Option<Word>, FileError> {
        let rest = &self.line.text[self.at..];
        self.at += rest.find(|c| !is_blank(c) && c != ',').unwrap_or(rest.len());
        let start = self.at;

        let mut text = String::new();
        let mut in_quote = false;
        let mut after_quote = false;
        let mut saw_quote = false;
        let mut quoted = false;
        let mut comma_follows = false;
        for (offset, c) in self.line.text[start..].char_indices() {
            self.at = start + offset;
            if !in_quote && is_blank(c) {
                break;
            }
            if !in_quote && c == '#' {
                self.at = self.line.text.len();
                break;
            }
            if !in_quote && c == ',' {
                comma_follows = true;
                break;
            }
            if c != '"' || after_quote {
                text.push(c);
            }
            // The second of two quotes stands for one; it also opens the quotation again.
            after_quote = in_quote && c == '"' && !after_quote;
            if c == '"' {
                in_quote = !in_quote;
                saw_quote = true;
                quoted |= text.is_empty();
            }
            self.at = start + offset + c.len_utf8();
        }
        let location = self.line.location(self.file, start);
        if in_quote {
            return Err(FileError { location, message: "the closing quote is missing".to_owned() });
        }
        if !saw_quote && text.is_empty() {
            return Ok(None);
        }
        Ok(Some(Word { token: Token { text, quoted, location }, comma_follows }))
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use std::collections::BTreeMap;

    use super::*;

    /// Files that exist in a test only.
    pub(crate) struct Memory(BTreeMap<PathBuf, Vec<u8>>);

    impl Memory {
        pub(crate) fn new<const N: usize>(files: [(&str, &str); N]) -> Self {
            Self::from_bytes(files.map(|(path, text)| (path.into(), text.as_bytes().to_vec())))
        }

        pub(crate) fn from_bytes<const N: usize>(files: [(PathBuf, Vec<u8>); N]) -> Self {
            Self(files.into_iter().collect())
        }
    }

    impl Files for Memory {
        fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
            self.0.get(path).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
        }

        fn list(&self, path: &Path) -> io::Result<Vec<PathBuf>> {
            let found: Vec<PathBuf> =
                self.0.keys().filter(|file| file.parent() == Some(path)).cloned().collect();
            if found.is_empty() { Err(io::ErrorKind::NotFound.into()) } else { Ok(found) }
        }
    }
}
