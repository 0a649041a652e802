//! What a check has to say.

use std::fmt;

/// Whether a finding fails the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    /// To be mended before a merge.
    Error,
    /// To be thought about.
    Warning,
}

/// One thing that a check found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) level: Level,
    /// Path from the root, with a line where there is one; or the name of a package.
    pub(crate) place: String,
    /// What is wrong, and what to do.
    pub(crate) message: String,
}

impl Finding {
    pub(crate) fn error(place: impl Into<String>, message: impl Into<String>) -> Self {
        Self { level: Level::Error, place: place.into(), message: message.into() }
    }

    pub(crate) fn warning(place: impl Into<String>, message: impl Into<String>) -> Self {
        Self { level: Level::Warning, place: place.into(), message: message.into() }
    }

    /// An error at a line, counted from 0 as iterators do.
    pub(crate) fn at(path: &str, index: usize, message: impl Into<String>) -> Self {
        Self::error(format!("{path}:{}", index + 1), message)
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let level = match self.level {
            Level::Error => "error",
            Level::Warning => "warning",
        };
        write!(f, "{level}: {}: {}", self.place, self.message)
    }
}
