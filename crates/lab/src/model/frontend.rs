//! The messages that clients send.

use super::wire::{Body, Message};

/// Protocol 3.0 as the startup packet writes it.
pub const PROTOCOL_3_0: i32 = 3 << 16;
/// Protocol 3.2, which PostgreSQL 18 speaks.
pub const PROTOCOL_3_2: i32 = (3 << 16) | 2;

/// StartupMessage.
#[must_use]
pub fn startup(version: i32, parameters: &[(&str, &str)]) -> Message {
    let body = parameters
        .iter()
        .fold(Body::new().int32(version), |body, (name, value)| body.text(name).text(value));
    body.byte(0).message(0)
}

/// CancelRequest, with the secret as BackendKeyData gave it.
#[must_use]
pub fn cancel(process: i32, secret: &[u8]) -> Message {
    Body::new().int32(80_877_102).int32(process).bytes(secret).message(0)
}

/// Query.
#[must_use]
pub fn query(text: &str) -> Message {
    Body::new().text(text).message(b'Q')
}

/// Parse, with declared parameter types by OID, 0 for those left open.
#[must_use]
pub fn parse(name: &str, text: &str, types: &[i32]) -> Message {
    let body = Body::new().text(name).text(text).int16(types.len());
    types.iter().fold(body, |body, oid| body.int32(*oid)).message(b'P')
}

/// Bind, with parameters in text and results all in text or all in binary.
#[must_use]
pub fn bind(
    portal: &str,
    statement: &str,
    parameters: &[Option<&str>],
    binary_results: bool,
) -> Message {
    let body = Body::new().text(portal).text(statement).int16(0).int16(parameters.len());
    let body = parameters.iter().fold(body, |body, value| body.value(value.map(str::as_bytes)));
    let body = if binary_results { body.int16(1).int16(1) } else { body.int16(0) };
    body.message(b'B')
}

/// Describe; `kind` is `S` for a statement, `P` for a portal.
#[must_use]
pub fn describe(kind: u8, name: &str) -> Message {
    Body::new().byte(kind).text(name).message(b'D')
}

/// Execute, with a limit of rows, 0 for none.
#[must_use]
pub fn execute(portal: &str, rows_max: i32) -> Message {
    Body::new().text(portal).int32(rows_max).message(b'E')
}

/// Close; `kind` as for [`describe`].
#[must_use]
pub fn close(kind: u8, name: &str) -> Message {
    Body::new().byte(kind).text(name).message(b'C')
}

/// Sync.
#[must_use]
pub fn sync() -> Message {
    Body::new().message(b'S')
}

/// Flush.
#[must_use]
pub fn flush() -> Message {
    Body::new().message(b'H')
}

/// Terminate.
#[must_use]
pub fn terminate() -> Message {
    Body::new().message(b'X')
}

/// CopyData.
#[must_use]
pub fn copy_data(bytes: &[u8]) -> Message {
    Body::new().bytes(bytes).message(b'd')
}

/// CopyDone.
#[must_use]
pub fn copy_done() -> Message {
    Body::new().message(b'c')
}

/// CopyFail.
#[must_use]
pub fn copy_fail(reason: &str) -> Message {
    Body::new().text(reason).message(b'f')
}

/// FunctionCall of a function of integers, all in text.
#[must_use]
pub fn function_call(function: i32, arguments: &[i32]) -> Message {
    let body = Body::new().int32(function).int16(0).int16(arguments.len());
    let body =
        arguments.iter().fold(body, |body, value| body.value(Some(value.to_string().as_bytes())));
    body.int16(0).message(b'F')
}
