//! PostgreSQL's frontend/backend protocol, versions 3.0 and 3.2, as far as a pooler needs it.
//!
//! # Framing
//! After the startup packet every message is `kind: u8, length: u32 (big-endian, counts itself
//! but not the kind), body`. Hawser walks headers; it looks into the bodies of the few messages
//! that concern it (Query, Parse, Bind, Describe, Close; ReadyForQuery, ErrorResponse,
//! CommandComplete, ParameterStatus) and passes on everything else untouched.
//!
//! Source: PostgreSQL documentation, chapter "Frontend/Backend Protocol", "Message Formats".

pub mod build;
pub mod error;
pub mod frame;
pub mod startup;

/// Kinds of messages that a client sends.
pub mod frontend {
    /// Bind.
    pub const BIND: u8 = b'B';
    /// Close.
    pub const CLOSE: u8 = b'C';
    /// CopyData (both directions).
    pub const COPY_DATA: u8 = b'd';
    /// CopyDone (both directions).
    pub const COPY_DONE: u8 = b'c';
    /// CopyFail.
    pub const COPY_FAIL: u8 = b'f';
    /// Describe.
    pub const DESCRIBE: u8 = b'D';
    /// Execute.
    pub const EXECUTE: u8 = b'E';
    /// Flush.
    pub const FLUSH: u8 = b'H';
    /// FunctionCall.
    pub const FUNCTION_CALL: u8 = b'F';
    /// Parse.
    pub const PARSE: u8 = b'P';
    /// PasswordMessage, SASLInitialResponse, SASLResponse, GSSResponse.
    pub const PASSWORD: u8 = b'p';
    /// Query.
    pub const QUERY: u8 = b'Q';
    /// Sync.
    pub const SYNC: u8 = b'S';
    /// Terminate.
    pub const TERMINATE: u8 = b'X';
}

/// Kinds of messages that a server sends.
pub mod backend {
    /// AuthenticationXXX.
    pub const AUTHENTICATION: u8 = b'R';
    /// BackendKeyData.
    pub const BACKEND_KEY_DATA: u8 = b'K';
    /// BindComplete.
    pub const BIND_COMPLETE: u8 = b'2';
    /// CloseComplete.
    pub const CLOSE_COMPLETE: u8 = b'3';
    /// CommandComplete.
    pub const COMMAND_COMPLETE: u8 = b'C';
    /// CopyData.
    pub const COPY_DATA: u8 = b'd';
    /// CopyDone.
    pub const COPY_DONE: u8 = b'c';
    /// CopyInResponse.
    pub const COPY_IN: u8 = b'G';
    /// CopyOutResponse.
    pub const COPY_OUT: u8 = b'H';
    /// CopyBothResponse.
    pub const COPY_BOTH: u8 = b'W';
    /// DataRow.
    pub const DATA_ROW: u8 = b'D';
    /// EmptyQueryResponse.
    pub const EMPTY_QUERY: u8 = b'I';
    /// ErrorResponse.
    pub const ERROR: u8 = b'E';
    /// FunctionCallResponse.
    pub const FUNCTION_RESULT: u8 = b'V';
    /// NegotiateProtocolVersion.
    pub const NEGOTIATE_VERSION: u8 = b'v';
    /// NoData.
    pub const NO_DATA: u8 = b'n';
    /// NoticeResponse.
    pub const NOTICE: u8 = b'N';
    /// NotificationResponse.
    pub const NOTIFICATION: u8 = b'A';
    /// ParameterDescription.
    pub const PARAMETER_DESCRIPTION: u8 = b't';
    /// ParameterStatus.
    pub const PARAMETER_STATUS: u8 = b'S';
    /// ParseComplete.
    pub const PARSE_COMPLETE: u8 = b'1';
    /// PortalSuspended.
    pub const PORTAL_SUSPENDED: u8 = b's';
    /// ReadyForQuery.
    pub const READY_FOR_QUERY: u8 = b'Z';
    /// RowDescription.
    pub const ROW_DESCRIPTION: u8 = b'T';
}

/// Transaction status that ReadyForQuery reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TransactionStatus {
    /// `I`: no transaction.
    Idle,
    /// `T`: in a transaction block.
    InTransaction,
    /// `E`: in a failed transaction block.
    Failed,
}

impl TransactionStatus {
    /// From the byte of ReadyForQuery; `None` for any other byte.
    pub fn from_byte(byte: u8) -> Option<Self> {
        match byte {
            b'I' => Some(Self::Idle),
            b'T' => Some(Self::InTransaction),
            b'E' => Some(Self::Failed),
            _ => None,
        }
    }

    /// The byte that ReadyForQuery carries.
    pub fn as_byte(self) -> u8 {
        match self {
            Self::Idle => b'I',
            Self::InTransaction => b'T',
            Self::Failed => b'E',
        }
    }
}
