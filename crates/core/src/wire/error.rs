//! ErrorResponse and NoticeResponse.
//!
//! Texts follow PostgreSQL's style: the message says what happened and to which object, the
//! detail why, the hint what to do.

use super::{backend, build};

/// A five-character SQLSTATE (PostgreSQL documentation, appendix "Error Codes").
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SqlState(pub [u8; 5]);

impl SqlState {
    /// The code of a notice that is no failure.
    pub const SUCCESSFUL_COMPLETION: SqlState = SqlState(*b"00000");
    /// `08000` connection_exception.
    pub const CONNECTION_EXCEPTION: SqlState = SqlState(*b"08000");
    /// `08003` connection_does_not_exist.
    pub const CONNECTION_DOES_NOT_EXIST: SqlState = SqlState(*b"08003");
    /// `08006` connection_failure.
    pub const CONNECTION_FAILURE: SqlState = SqlState(*b"08006");
    /// `08P01` protocol_violation.
    pub const PROTOCOL_VIOLATION: SqlState = SqlState(*b"08P01");
    /// `0A000` feature_not_supported.
    pub const FEATURE_NOT_SUPPORTED: SqlState = SqlState(*b"0A000");
    /// `22023` invalid_parameter_value.
    pub const INVALID_PARAMETER_VALUE: SqlState = SqlState(*b"22023");
    /// `25P02` in_failed_sql_transaction.
    pub const IN_FAILED_TRANSACTION: SqlState = SqlState(*b"25P02");
    /// `25P03` idle_in_transaction_session_timeout.
    pub const IDLE_IN_TRANSACTION_TIMEOUT: SqlState = SqlState(*b"25P03");
    /// `25P04` transaction_timeout.
    pub const TRANSACTION_TIMEOUT: SqlState = SqlState(*b"25P04");
    /// `26000` invalid_sql_statement_name.
    pub const INVALID_STATEMENT_NAME: SqlState = SqlState(*b"26000");
    /// `28000` invalid_authorization_specification.
    pub const INVALID_AUTHORIZATION: SqlState = SqlState(*b"28000");
    /// `28P01` invalid_password.
    pub const INVALID_PASSWORD: SqlState = SqlState(*b"28P01");
    /// `3D000` invalid_catalog_name.
    pub const INVALID_CATALOG_NAME: SqlState = SqlState(*b"3D000");
    /// `42501` insufficient_privilege.
    pub const INSUFFICIENT_PRIVILEGE: SqlState = SqlState(*b"42501");
    /// `42P05` duplicate_prepared_statement.
    pub const DUPLICATE_PREPARED_STATEMENT: SqlState = SqlState(*b"42P05");
    /// `42601` syntax_error.
    pub const SYNTAX_ERROR: SqlState = SqlState(*b"42601");
    /// `42704` undefined_object.
    pub const UNDEFINED_OBJECT: SqlState = SqlState(*b"42704");
    /// `53300` too_many_connections.
    pub const TOO_MANY_CONNECTIONS: SqlState = SqlState(*b"53300");
    /// `53400` configuration_limit_exceeded.
    pub const CONFIGURATION_LIMIT_EXCEEDED: SqlState = SqlState(*b"53400");
    /// program_limit_exceeded
    pub const PROGRAM_LIMIT_EXCEEDED: SqlState = SqlState(*b"54000");
    /// A name is longer than the server keeps.
    pub const NAME_TOO_LONG: Self = Self(*b"42622");
    /// `57014` query_canceled.
    pub const QUERY_CANCELED: SqlState = SqlState(*b"57014");
    /// `57P01` admin_shutdown.
    pub const ADMIN_SHUTDOWN: SqlState = SqlState(*b"57P01");
    /// `57P03` cannot_connect_now.
    pub const CANNOT_CONNECT_NOW: SqlState = SqlState(*b"57P03");
    /// `57P05` idle_session_timeout.
    pub const IDLE_SESSION_TIMEOUT: SqlState = SqlState(*b"57P05");
    /// `58000` system_error.
    pub const SYSTEM_ERROR: SqlState = SqlState(*b"58000");
    /// `XX000` internal_error.
    pub const INTERNAL_ERROR: SqlState = SqlState(*b"XX000");

    /// The code as text.
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or("XX000")
    }
}

/// How bad it is: FATAL ends the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Severity {
    /// The statement failed.
    Error,
    /// The connection ends.
    Fatal,
    /// For information.
    Warning,
    /// For information of lower importance.
    Notice,
}

impl Severity {
    fn as_str(self) -> &'static str {
        match self {
            Self::Error => "ERROR",
            Self::Fatal => "FATAL",
            Self::Warning => "WARNING",
            Self::Notice => "NOTICE",
        }
    }
}

/// An error as a client sees it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientError {
    /// How bad it is.
    pub severity: Severity,
    /// Its SQLSTATE.
    pub code: SqlState,
    /// What happened, to which object.
    pub message: String,
    /// Why.
    pub detail: Option<String>,
    /// What to do.
    pub hint: Option<String>,
    /// It comes from a server.
    pub of_server: bool,
}

impl ClientError {
    /// An error that ends the connection.
    pub fn fatal(code: SqlState, message: impl Into<String>) -> Self {
        Self { severity: Severity::Fatal, ..Self::error(code, message) }
    }

    /// An error that ends the statement.
    pub fn error(code: SqlState, message: impl Into<String>) -> Self {
        Self {
            severity: Severity::Error,
            code,
            message: message.into(),
            detail: None,
            hint: None,
            of_server: false,
        }
    }

    /// For information.
    pub fn notice(message: impl Into<String>) -> Self {
        let code = SqlState::SUCCESSFUL_COMPLETION;
        Self { severity: Severity::Notice, ..Self::error(code, message) }
    }

    /// The same, with the reason.
    #[must_use]
    pub fn detail(mut self, detail: impl Into<String>) -> Self {
        self.detail = Some(detail.into());
        self
    }

    /// The same, with what to do.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Appends it as an ErrorResponse (a NoticeResponse for a warning).
    pub fn write(&self, out: &mut Vec<u8>) {
        let kind = match self.severity {
            Severity::Warning | Severity::Notice => backend::NOTICE,
            Severity::Error | Severity::Fatal => backend::ERROR,
        };
        build::message(out, kind, |out| {
            let mut field = |tag: u8, text: &str| {
                out.push(tag);
                // A NUL would end the field early; Hawser's own texts have none, but a client's
                // name may.
                out.extend(text.bytes().filter(|byte| *byte != 0));
                out.push(0);
            };
            field(b'S', self.severity.as_str());
            field(b'V', self.severity.as_str());
            field(b'C', self.code.as_str());
            field(b'M', &self.message);
            if let Some(detail) = &self.detail {
                field(b'D', detail);
            }
            if let Some(hint) = &self.hint {
                field(b'H', hint);
            }
            out.push(0);
        });
    }
}

/// A field of an ErrorResponse's or NoticeResponse's body, e.g. `b'C'` for the SQLSTATE.
pub fn field(body: &[u8], wanted: u8) -> Option<&[u8]> {
    let mut rest = body;
    while let Some((&tag, after)) = rest.split_first() {
        if tag == 0 {
            return None;
        }
        let (text, next) = super::frame::take_string(after)?;
        if tag == wanted {
            return Some(text);
        }
        rest = next;
    }
    None
}

/// An ErrorResponse's body with another position (field `P`) in the text of the query. `None` if
/// it has none, or cannot be read.
pub fn with_position(body: &[u8], map: impl FnOnce(usize) -> usize) -> Option<Vec<u8>> {
    let position = field(body, b'P')?;
    let at = position.as_ptr() as usize - body.as_ptr() as usize;
    let number = str::from_utf8(position).ok()?.parse().ok()?;
    let mut out = body[..at].to_vec();
    out.extend_from_slice(map(number).to_string().as_bytes());
    out.extend_from_slice(&body[at + position.len()..]);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::frame::{Framed, Header, header};

    #[test]
    fn an_error_can_be_read_back_field_by_field() {
        let mut out = Vec::new();
        ClientError::fatal(SqlState::TOO_MANY_CONNECTIONS, "no more\0 connections")
            .hint("wait")
            .write(&mut out);
        let Framed::Header(Header { kind: b'E', body }) = header(&out) else { panic!("{out:?}") };
        assert_eq!(body, out.len() - 5);
        let body = &out[5..];
        assert_eq!(field(body, b'C'), Some(&b"53300"[..]));
        assert_eq!(field(body, b'M'), Some(&b"no more connections"[..]));
        assert_eq!(field(body, b'V'), Some(&b"FATAL"[..]));
        assert_eq!(field(body, b'H'), Some(&b"wait"[..]));
        assert_eq!(field(body, b'D'), None);
        assert_eq!(field(b"Cab", b'M'), None);
    }
}
