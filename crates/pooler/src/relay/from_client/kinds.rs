//! Which messages a client may send, and how long they may be.

use crate::wire::error::{ClientError, SqlState};
use crate::wire::frame::{self, Header};
use crate::wire::frontend;

/// PostgreSQL's limit on messages that are never long (`PQ_SMALL_MESSAGE_LIMIT`,
/// src/include/libpq/libpq.h).
const SMALL_MESSAGE_BYTES: usize = 10_000;

/// The longest body that PostgreSQL accepts of each kind; `None` for unknown kinds.
pub(super) fn allowed_length(kind: u8) -> Option<usize> {
    match kind {
        frontend::QUERY
        | frontend::PARSE
        | frontend::BIND
        | frontend::FUNCTION_CALL
        | frontend::COPY_DATA => Some(frame::BODY_BYTES_MAX),
        frontend::CLOSE
        | frontend::DESCRIBE
        | frontend::EXECUTE
        | frontend::FLUSH
        | frontend::SYNC
        | frontend::COPY_DONE
        | frontend::COPY_FAIL
        | frontend::TERMINATE => Some(SMALL_MESSAGE_BYTES),
        _ => None,
    }
}

pub(super) fn bad_kind(kind: u8) -> ClientError {
    ClientError::fatal(
        SqlState::PROTOCOL_VIOLATION,
        format!("invalid frontend message type {kind}"),
    )
}

pub(crate) fn bad_length(kind: u8) -> ClientError {
    ClientError::fatal(SqlState::PROTOCOL_VIOLATION, "invalid message length")
        .detail(format!("Message type \"{}\".", kind.escape_ascii()))
}

pub(super) fn too_long(header: Header, most: usize) -> ClientError {
    ClientError::fatal(SqlState::PROGRAM_LIMIT_EXCEEDED, "message too long").detail(format!(
        "It has {} bytes, and max_packet_size of the pooler is {most}.",
        header.total()
    ))
}
