//! What the server says when something is wrong.

use super::wire::{Body, Message};

/// How bad it is, and so what becomes of the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Severity {
    /// Said, and nothing more.
    Warning,
    /// Said; all is well.
    Notice,
    /// The statement, and with it the transaction, has failed.
    Error,
    /// The connection ends.
    Fatal,
}

impl Severity {
    fn word(self) -> &'static str {
        match self {
            Self::Warning => "WARNING",
            Self::Notice => "NOTICE",
            Self::Error => "ERROR",
            Self::Fatal => "FATAL",
        }
    }
}

/// An error or a notice with its SQLSTATE and the server's own words.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{} {code}: {message}", .severity.word())]
pub struct PgError {
    /// What becomes of the connection.
    pub severity: Severity,
    /// The SQLSTATE, five characters.
    pub code: &'static str,
    /// The primary message, without trailing punctuation.
    pub message: String,
    /// The file and routine of the server's source, where clients go by it.
    place: Option<(&'static str, &'static str)>,
}

impl PgError {
    /// A failure of the statement.
    pub fn error(code: &'static str, message: impl Into<String>) -> Self {
        Self { severity: Severity::Error, code, message: message.into(), place: None }
    }

    /// The end of the connection.
    pub fn fatal(code: &'static str, message: impl Into<String>) -> Self {
        Self { severity: Severity::Fatal, code, message: message.into(), place: None }
    }

    /// A warning, which changes nothing.
    pub fn warning(code: &'static str, message: impl Into<String>) -> Self {
        Self { severity: Severity::Warning, code, message: message.into(), place: None }
    }

    /// 0A000, of a statement whose rows would be others than at its Parse. Drivers know it by the routine.
    #[must_use]
    pub fn changed_rows() -> Self {
        let error = Self::error("0A000", "cached plan must not change result type");
        Self { place: Some(("plancache.c", "RevalidateCachedQuery")), ..error }
    }

    /// 25P02, the answer to nearly everything after a failure in a transaction block.
    #[must_use]
    pub fn aborted() -> Self {
        Self::error(
            "25P02",
            "current transaction is aborted, commands ignored until end of transaction block",
        )
    }

    /// 57014, for a query that was cancelled.
    #[must_use]
    pub fn cancelled() -> Self {
        Self::error("57014", "canceling statement due to user request")
    }

    /// 57P01, what `pg_terminate_backend` and a shutdown say.
    #[must_use]
    pub fn terminated() -> Self {
        Self::fatal("57P01", "terminating connection due to administrator command")
    }

    /// ErrorResponse, or NoticeResponse for warnings and notices.
    #[must_use]
    pub fn encode(&self) -> Message {
        let tag = match self.severity {
            Severity::Warning | Severity::Notice => b'N',
            Severity::Error | Severity::Fatal => b'E',
        };
        let word = self.severity.word();
        let body = Body::new()
            .byte(b'S')
            .text(word)
            .byte(b'V')
            .text(word)
            .byte(b'C')
            .text(self.code)
            .byte(b'M')
            .text(&self.message);
        let body = match self.place {
            Some((file, routine)) => body.byte(b'F').text(file).byte(b'R').text(routine),
            None => body,
        };
        body.byte(0).message(tag)
    }
}
