//! ErrorResponse and NoticeResponse.
//!
//! Texts follow PostgreSQL's style: the message says what happened and to which object, the
//! detail why, the hint what to do.

use super::{backend, build};

/// A five-character SQLSTATE (PostgreSQL documentation, appendix "Error Codes").
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SqlState(pub [u8; 5]);

/// The codes that Hawser uses, with the names of their conditions.
macro_rules! sql_states {
    ($($name:ident = $code:literal $condition:ident;)*) => {
        impl SqlState {
            $(
                #[doc = concat!("`", stringify!($condition), "`")]
                pub const $name: SqlState = SqlState(*$code);
            )*

            /// The name of its condition, of a code that Hawser uses.
            pub fn condition(self) -> Option<&'static str> {
                match self {
                    $(Self::$name => Some(stringify!($condition)),)*
                    _ => None,
                }
            }
        }
    };
}

sql_states! {
    SUCCESSFUL_COMPLETION = b"00000" successful_completion;
    CONNECTION_EXCEPTION = b"08000" connection_exception;
    CONNECTION_DOES_NOT_EXIST = b"08003" connection_does_not_exist;
    CONNECTION_FAILURE = b"08006" connection_failure;
    PROTOCOL_VIOLATION = b"08P01" protocol_violation;
    FEATURE_NOT_SUPPORTED = b"0A000" feature_not_supported;
    CHARACTER_NOT_IN_REPERTOIRE = b"22021" character_not_in_repertoire;
    INVALID_PARAMETER_VALUE = b"22023" invalid_parameter_value;
    IN_FAILED_TRANSACTION = b"25P02" in_failed_sql_transaction;
    IDLE_IN_TRANSACTION_TIMEOUT = b"25P03" idle_in_transaction_session_timeout;
    TRANSACTION_TIMEOUT = b"25P04" transaction_timeout;
    INVALID_STATEMENT_NAME = b"26000" invalid_sql_statement_name;
    INVALID_AUTHORIZATION = b"28000" invalid_authorization_specification;
    INVALID_PASSWORD = b"28P01" invalid_password;
    INVALID_CURSOR_NAME = b"34000" invalid_cursor_name;
    INVALID_CATALOG_NAME = b"3D000" invalid_catalog_name;
    INSUFFICIENT_PRIVILEGE = b"42501" insufficient_privilege;
    SYNTAX_ERROR = b"42601" syntax_error;
    NAME_TOO_LONG = b"42622" name_too_long;
    UNDEFINED_OBJECT = b"42704" undefined_object;
    DUPLICATE_OBJECT = b"42710" duplicate_object;
    DUPLICATE_PREPARED_STATEMENT = b"42P05" duplicate_prepared_statement;
    TOO_MANY_CONNECTIONS = b"53300" too_many_connections;
    CONFIGURATION_LIMIT_EXCEEDED = b"53400" configuration_limit_exceeded;
    PROGRAM_LIMIT_EXCEEDED = b"54000" program_limit_exceeded;
    OBJECT_NOT_IN_PREREQUISITE_STATE = b"55000" object_not_in_prerequisite_state;
    OBJECT_IN_USE = b"55006" object_in_use;
    CANT_CHANGE_RUNTIME_PARAM = b"55P02" cant_change_runtime_param;
    QUERY_CANCELED = b"57014" query_canceled;
    ADMIN_SHUTDOWN = b"57P01" admin_shutdown;
    CANNOT_CONNECT_NOW = b"57P03" cannot_connect_now;
    IDLE_SESSION_TIMEOUT = b"57P05" idle_session_timeout;
    SYSTEM_ERROR = b"58000" system_error;
    CONFIG_FILE_ERROR = b"F0000" config_file_error;
    INTERNAL_ERROR = b"XX000" internal_error;
}

impl SqlState {
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
            // Which piece of code it is from: some clients show that. The server's own is not known here.
            if !self.of_server {
                field(b'F', "hawser");
                field(b'L', "1"); // clients read it as a number
                field(b'R', self.code.condition().unwrap_or("error"));
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
    fn what_a_server_has_said_is_not_passed_on_as_hawsers_own() {
        let mut out = Vec::new();
        let error = ClientError::error(SqlState::SYNTAX_ERROR, "no");
        ClientError { of_server: true, ..error }.write(&mut out);
        assert_eq!(field(&out[5..], b'F'), None);
        assert_eq!(field(&out[5..], b'R'), None);
    }

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
        assert_eq!(field(body, b'F'), Some(&b"hawser"[..]));
        assert_eq!(field(body, b'L'), Some(&b"1"[..]));
        assert_eq!(field(body, b'R'), Some(&b"too_many_connections"[..]));
        assert_eq!(field(b"Cab", b'M'), None);
    }
}
