//! The little of PostgreSQL's protocol that a load generator speaks.
//!
//! Messages are written byte for byte as libpq writes them (a Describe between Bind and Execute,
//! one result format code), so that a pooler does the work that it does for real clients.
//! Of what comes back only headers are read. Source: PostgreSQL's documentation, chapter
//! "Frontend/Backend Protocol", section "Message Formats".

use std::io::Write as _;

/// Asks whether the server does TLS; it answers by one byte, `S` or `N`.
pub(crate) const SSL_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];
/// Protocol 3.0.
const PROTOCOL: [u8; 4] = [0, 3, 0, 0];
/// Terminate: the session ends.
pub(crate) const TERMINATE: [u8; 5] = *b"X\0\0\0\x04";
/// Sync: the end of an extended query.
pub(crate) const SYNC: [u8; 5] = *b"S\0\0\0\x04";

/// Writes one message: the length is filled in when the body is known.
fn message(out: &mut Vec<u8>, kind: u8, body: impl FnOnce(&mut Vec<u8>)) {
    out.push(kind);
    let length_at = out.len();
    out.extend_from_slice(&[0; 4]);
    body(out);
    let length = (out.len() - length_at) as u32;
    out[length_at..length_at + 4].copy_from_slice(&length.to_be_bytes());
}

fn string(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(text.as_bytes());
    out.push(0);
}

/// What sessions differ in.
#[derive(Clone, Copy, Default)]
pub(crate) struct Sessions {
    /// Each has an application_name and a custom setting of its own.
    pub(crate) own_settings: bool,
    /// So many search_paths are among them; 0: the server's.
    pub(crate) search_paths: usize,
    /// So many users are among them, `USER_0` and so on; 0: all are of one.
    pub(crate) users: usize,
}

/// The first message of session `number`.
pub(crate) fn startup(
    out: &mut Vec<u8>,
    user: &str,
    database: &str,
    sessions: Sessions,
    number: usize,
) {
    let length_at = out.len();
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&PROTOCOL);
    let mut name = String::from("hawser-load");
    let mut options = String::new();
    if sessions.own_settings {
        name = format!("hawser-load-{number}");
        options = format!("-c bench.client={number}");
    }
    if let Some(path) = number.checked_rem(sessions.search_paths) {
        // The schema need not exist: names are looked for in the ones that do.
        options.push_str(&format!(" -c search_path=bench_{path},public"));
    }
    let user = match number.checked_rem(sessions.users) {
        Some(one) => format!("{user}_{one}"),
        None => user.to_owned(),
    };
    for text in ["user", &user, "database", database, "application_name", &name] {
        string(out, text);
    }
    if !options.is_empty() {
        string(out, "options");
        string(out, options.trim_start());
    }
    string(out, "");
    let length = (out.len() - length_at) as u32;
    out[length_at..length_at + 4].copy_from_slice(&length.to_be_bytes());
}

/// A simple query.
pub(crate) fn query(out: &mut Vec<u8>, sql: impl FnOnce(&mut Vec<u8>)) {
    message(out, b'Q', |out| {
        sql(out);
        out.push(0);
    });
}

/// Parse, without parameter types: the server infers them, as for pgbench.
pub(crate) fn parse(out: &mut Vec<u8>, name: &str, sql: &str) {
    message(out, b'P', |out| {
        string(out, name);
        string(out, sql);
        out.extend_from_slice(&[0, 0]);
    });
}

/// Bind of text parameters, Describe of the portal, Execute.
pub(crate) fn bind_describe_execute(out: &mut Vec<u8>, name: &str, params: &[i64]) {
    message(out, b'B', |out| {
        out.push(0);
        string(out, name);
        out.extend_from_slice(&[0, 0]);
        out.extend_from_slice(&(params.len() as u16).to_be_bytes());
        for param in params {
            let length_at = out.len();
            out.extend_from_slice(&[0; 4]);
            number(out, *param);
            let length = (out.len() - length_at - 4) as u32;
            out[length_at..length_at + 4].copy_from_slice(&length.to_be_bytes());
        }
        out.extend_from_slice(&[0, 1, 0, 0]);
    });
    out.extend_from_slice(b"D\0\0\0\x06P\0E\0\0\0\x09\0\0\0\0\0");
}

/// A number in decimal.
pub(crate) fn number(out: &mut Vec<u8>, value: i64) {
    let written = write!(out, "{value}");
    debug_assert!(written.is_ok(), "writing to memory does not fail");
}

/// Walks over messages that arrive in pieces of any size, and reads their headers only.
#[derive(Default)]
pub(crate) struct Walker {
    /// Bytes of the current message's body that are still to come.
    skip: usize,
    /// The header as far as it is there; for ReadyForQuery with the status byte after it.
    head: [u8; 6],
    have: usize,
}

/// What stands at the start of one message.
pub(crate) struct Seen<'a> {
    /// The message's type byte.
    pub(crate) kind: u8,
    /// ReadyForQuery's status (`I`, `T` or `E`), 0 in other messages.
    pub(crate) status: u8,
    /// As much of the body as this piece holds: enough for texts that are shown to people.
    pub(crate) body: &'a [u8],
}

impl Walker {
    /// Calls `each` for every message whose header ends within `bytes`.
    pub(crate) fn walk(&mut self, mut bytes: &[u8], mut each: impl FnMut(Seen<'_>)) {
        loop {
            if self.skip > 0 {
                let here = self.skip.min(bytes.len());
                self.skip -= here;
                bytes = &bytes[here..];
            }
            if bytes.is_empty() {
                return;
            }
            let kind = if self.have > 0 { self.head[0] } else { bytes[0] };
            let header = if kind == b'Z' { 6 } else { 5 };
            let here = (header - self.have).min(bytes.len());
            self.head[self.have..self.have + here].copy_from_slice(&bytes[..here]);
            self.have += here;
            bytes = &bytes[here..];
            if self.have < header {
                return;
            }
            self.have = 0;
            let [_, a, b, c, d, status] = self.head;
            let total = u32::from_be_bytes([a, b, c, d]) as usize + 1;
            self.skip = total.saturating_sub(header);
            let body = &bytes[..self.skip.min(bytes.len())];
            each(Seen { kind, status: if kind == b'Z' { status } else { 0 }, body });
        }
    }
}

/// The severity, code and text of an ErrorResponse, as far as they are there.
pub(crate) fn error_text(body: &[u8]) -> String {
    let fields = body.split(|&byte| byte == 0).filter(|field| field.len() > 1);
    let wanted = fields.filter(|field| b"SCM".contains(&field[0]));
    let texts: Vec<_> = wanted.map(|field| String::from_utf8_lossy(&field[1..])).collect();
    texts.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(pieces: impl Iterator<Item = Vec<u8>>) -> Vec<(u8, u8)> {
        let mut walker = Walker::default();
        let mut seen = Vec::new();
        for piece in pieces {
            walker.walk(&piece, |message| seen.push((message.kind, message.status)));
        }
        seen
    }

    #[test]
    fn messages_are_found_however_they_are_split() {
        let mut bytes =
            b"2\0\0\0\x04D\0\0\0\x0f\0\x01\0\0\0\x05ZZZZZC\0\0\0\x0dSELECT 1\0".to_vec();
        bytes.extend_from_slice(b"Z\0\0\0\x05TZ\0\0\0\x05I");
        let whole = kinds(std::iter::once(bytes.clone()));
        assert_eq!(whole, [(b'2', 0), (b'D', 0), (b'C', 0), (b'Z', b'T'), (b'Z', b'I')]);
        for size in 1..bytes.len() {
            assert_eq!(kinds(bytes.chunks(size).map(<[u8]>::to_vec)), whole, "pieces of {size}");
        }
    }

    #[test]
    fn lengths_of_written_messages_are_right() {
        let mut bytes = Vec::new();
        query(&mut bytes, |out| out.extend_from_slice(b"select 1"));
        parse(&mut bytes, "s0", "select $1");
        bind_describe_execute(&mut bytes, "s0", &[7, -12]);
        bytes.extend_from_slice(&SYNC);
        let found: Vec<u8> = kinds(std::iter::once(bytes)).iter().map(|&(kind, _)| kind).collect();
        assert_eq!(found, b"QPBDES");
    }

    #[test]
    fn sessions_are_dealt_out_to_users() {
        let of = |users: usize, number: usize| {
            let mut out = Vec::new();
            startup(&mut out, "bench", "d", Sessions { users, ..Sessions::default() }, number);
            let texts: Vec<_> = out[8..].split(|&byte| byte == 0).collect();
            String::from_utf8_lossy(texts[1]).into_owned()
        };
        assert_eq!([of(0, 7), of(3, 0), of(3, 7)], ["bench", "bench_0", "bench_1"]);
    }

    #[test]
    fn an_error_is_shown_with_its_code() {
        let body = b"SFATAL\0VFATAL\0C53300\0Mtoo many clients\0Fproc.c\0\0";
        assert_eq!(error_text(body), "FATAL 53300 too many clients");
    }
}
