//! Builders of whole messages, appended to a buffer.

use super::{TransactionStatus, backend, frontend};

/// Appends a message of this kind whose body is what `body` appends.
///
/// The body must stay under 1 GiB; Hawser builds only small messages.
pub fn message(out: &mut Vec<u8>, kind: u8, body: impl FnOnce(&mut Vec<u8>)) {
    out.push(kind);
    let at = out.len();
    out.extend_from_slice(&[0; 4]);
    body(out);
    let length = u32::try_from(out.len() - at).unwrap_or(u32::MAX);
    out[at..at + 4].copy_from_slice(&length.to_be_bytes());
}

/// Appends a NUL-terminated string.
pub fn string(out: &mut Vec<u8>, text: &[u8]) {
    out.extend_from_slice(text);
    out.push(0);
}

/// Query.
pub fn query(out: &mut Vec<u8>, text: &[u8]) {
    message(out, frontend::QUERY, |out| string(out, text));
}

/// Parse with the part of the body that follows the name: text, NUL, parameter types.
pub fn parse(out: &mut Vec<u8>, name: &[u8], text_and_types: &[u8]) {
    message(out, frontend::PARSE, |out| {
        string(out, name);
        out.extend_from_slice(text_and_types);
    });
}

/// Bind of a statement without parameters to a portal, results in text.
pub fn bind_plain(out: &mut Vec<u8>, portal: &[u8], statement: &[u8]) {
    message(out, frontend::BIND, |out| {
        string(out, portal);
        string(out, statement);
        out.extend_from_slice(&[0; 6]);
    });
}

/// Bind of a statement to the unnamed portal, parameters (`None`: NULL) and results in text.
pub fn bind_texts<'a>(
    out: &mut Vec<u8>,
    statement: &[u8],
    parameters: impl Iterator<Item = Option<&'a [u8]>>,
) {
    message(out, frontend::BIND, |out| {
        string(out, b"");
        string(out, statement);
        out.extend_from_slice(&[0; 2]);
        let at = out.len();
        out.extend_from_slice(&[0; 2]);
        let mut count = 0u16;
        for parameter in parameters {
            count += 1;
            let length = parameter.map_or(u32::MAX, |value| value.len() as u32);
            out.extend_from_slice(&length.to_be_bytes());
            out.extend_from_slice(parameter.unwrap_or_default());
        }
        out[at..at + 2].copy_from_slice(&count.to_be_bytes());
        out.extend_from_slice(&[0; 2]);
    });
}

/// Execute of a portal without a row limit.
pub fn execute(out: &mut Vec<u8>, portal: &[u8]) {
    message(out, frontend::EXECUTE, |out| {
        string(out, portal);
        out.extend_from_slice(&[0; 4]);
    });
}

/// Close of a prepared statement.
pub fn close_statement(out: &mut Vec<u8>, name: &[u8]) {
    message(out, frontend::CLOSE, |out| {
        out.push(b'S');
        string(out, name);
    });
}

/// Close of a portal.
pub fn close_portal(out: &mut Vec<u8>, name: &[u8]) {
    message(out, frontend::CLOSE, |out| {
        out.push(b'P');
        string(out, name);
    });
}

/// Sync.
pub const SYNC: [u8; 5] = [frontend::SYNC, 0, 0, 0, 4];
/// Terminate.
pub const TERMINATE: [u8; 5] = [frontend::TERMINATE, 0, 0, 0, 4];
/// ParseComplete.
pub const PARSE_COMPLETE: [u8; 5] = [backend::PARSE_COMPLETE, 0, 0, 0, 4];
/// CloseComplete.
pub const CLOSE_COMPLETE: [u8; 5] = [backend::CLOSE_COMPLETE, 0, 0, 0, 4];

/// CopyFail with a reason.
pub fn copy_fail(out: &mut Vec<u8>, reason: &str) {
    message(out, frontend::COPY_FAIL, |out| string(out, reason.as_bytes()));
}

/// ReadyForQuery.
pub fn ready_for_query(out: &mut Vec<u8>, status: TransactionStatus) {
    message(out, backend::READY_FOR_QUERY, |out| out.push(status.as_byte()));
}

/// CommandComplete.
pub fn command_complete(out: &mut Vec<u8>, tag: &[u8]) {
    message(out, backend::COMMAND_COMPLETE, |out| string(out, tag));
}

/// ParameterStatus.
pub fn parameter_status(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    // (A login writes a dozen of them, so the length is computed first.)
    let length = name.len() + value.len() + 6;
    out.reserve(1 + length);
    let [a, b, c, d] = u32::try_from(length).unwrap_or(u32::MAX).to_be_bytes();
    out.extend_from_slice(&[backend::PARAMETER_STATUS, a, b, c, d]);
    string(out, name);
    string(out, value);
}

/// BackendKeyData: 4 bytes of key for protocol 3.0, up to 256 from 3.2 on.
pub fn backend_key_data(out: &mut Vec<u8>, process: u32, key: &[u8]) {
    message(out, backend::BACKEND_KEY_DATA, |out| {
        out.extend_from_slice(&process.to_be_bytes());
        out.extend_from_slice(key);
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_count_themselves_and_not_the_kind() {
        let mut out = Vec::new();
        query(&mut out, b"SELECT 1");
        assert_eq!(out, b"Q\0\0\0\x0dSELECT 1\0");
        out.clear();
        ready_for_query(&mut out, TransactionStatus::Failed);
        assert_eq!(out, b"Z\0\0\0\x05E");
        out.clear();
        bind_plain(&mut out, b"", b"s");
        assert_eq!(out, b"B\0\0\0\x0d\0s\0\0\0\0\0\0\0");
    }
}
