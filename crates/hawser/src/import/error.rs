//! What was wrong with a pgbouncer.ini.

use std::fmt;
use std::path::Path;

/// What was wrong with a pgbouncer.ini, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportError {
    /// The included file; `None` is the file itself.
    pub file: Option<String>,
    /// From 1; 0 where a file could not be read at all.
    pub line: usize,
    /// What was wrong.
    pub reason: Reason,
}

/// See [`ImportError`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reason {
    /// Neither a section, nor `key = value`, nor a comment.
    #[error("expected [section], key = value, or a comment")]
    Syntax,
    /// A key before any section.
    #[error("a key before any [section]")]
    OutsideOfSections,
    /// A section that PgBouncer does not have.
    #[error(
        "unknown section [{0}]: allowed is [databases], [users], [peers], [pgbouncer], and [hawser] for \
         settings of Hawser's own"
    )]
    UnknownSection(String),
    /// A key that PgBouncer does not have.
    #[error("PgBouncer has no setting `{0}`")]
    UnknownKey(String),
    /// A connection string or the settings of a user that PgBouncer would refuse.
    #[error("the settings of `{0}` are not key=value with spaces between, or a key is unknown")]
    Pairs(String),
    /// A value that is none of what its key takes.
    #[error("{key}: {message}")]
    Value {
        /// The key.
        key: String,
        /// Why.
        message: String,
    },
    /// A key of `[hawser]` that is no setting of ours that stands alone: the message.
    #[error("[hawser]: {0}")]
    UnknownOwn(String),
    /// A second `[pgbouncer]`, which sets these keys of the first back to PgBouncer's defaults.
    #[error(
        "a second [pgbouncer] sets what is before it back to PgBouncer's defaults: {}. Remove this \
         [pgbouncer], so that they hold, or them",
        .0.join(", ")
    )]
    SetBack(Vec<String>),
    /// There is no `[pgbouncer]`: the file may be half of one.
    #[error("there is no [pgbouncer] section")]
    NoMainSection,
    /// The same of a value that ends in what may be meant as a comment.
    #[error(
        "{0}. PgBouncer takes what looks like a comment at the end of the line as part of the value: put it on \
         a line of its own"
    )]
    WithComment(Box<Reason>),
    /// Bytes that are no UTF-8.
    #[error("it is not UTF-8: save the file as UTF-8")]
    NotUtf8,
    /// A NUL byte.
    #[error("a NUL byte, after which PgBouncer reads nothing: save the file as UTF-8 text")]
    Nul,
    /// A file of `%include` could not be read.
    #[error("%include {file}: {error}")]
    Include {
        /// Its name.
        file: String,
        /// Why.
        error: String,
    },
    /// Files that include each other.
    #[error("%include nested too deep")]
    IncludedTooDeep,
    /// The file itself could not be read.
    #[error("cannot be read: {0}")]
    Unreadable(String),
}

impl ImportError {
    /// What was wrong, with file and line; `path` is the file that includes the others.
    pub fn in_file(&self, path: &Path) -> String {
        match (&self.file, self.line) {
            (None, line) if line > 0 => format!("{}:{line}: {}", path.display(), self.reason),
            _ => self.to_string(),
        }
    }
}

impl fmt::Display for ImportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.file, self.line) {
            (Some(file), line) => write!(f, "{file}:{line}: ")?,
            (None, 0) => {}
            (None, line) => write!(f, "line {line}: ")?,
        }
        self.reason.fmt(f)
    }
}

/// All that was wrong with a pgbouncer.ini, in the order of its lines; what has no line comes last.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ImportErrors(Vec<ImportError>);

impl ImportErrors {
    /// After so many the rest is not looked at.
    pub(super) const MANY: usize = 100;

    pub(super) fn add(&mut self, error: ImportError) {
        let place = |error: &ImportError| (error.line == 0, error.file.clone(), error.line);
        let at = self.0.partition_point(|one| place(one) <= place(&error));
        self.0.insert(at, error);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn are_many(&self) -> bool {
        self.0.len() >= Self::MANY
    }

    /// Each by itself.
    pub fn iter(&self) -> std::slice::Iter<'_, ImportError> {
        self.0.iter()
    }
}

impl From<ImportError> for ImportErrors {
    fn from(error: ImportError) -> Self {
        Self(vec![error])
    }
}
