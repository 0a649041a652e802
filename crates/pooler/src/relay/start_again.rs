//! The first message of a transaction that its server has not run: it goes to another server connection.
//!
//! # Model
//! An operator who moves the primary may set `default_transaction_read_only` on the old one first. The next
//! transaction of each of its sessions is read-only, and its answer reports that (PostgreSQL 14 and later):
//! ```text
//!   Query INSERT ...        ◄── ErrorResponse 25006, ParameterStatus default_transaction_read_only = on, ReadyForQuery
//!   Query BEGIN             ◄── CommandComplete BEGIN, the same ParameterStatus, ReadyForQuery
//! ```
//! Where the database wants servers that take writes, the client does not get that answer: the server connection
//! is closed, and the client waits for another, which is opened to a server that does.
//!
//! The other case is a server connection whose socket refuses the message, because the server has closed it.
//!
//! # Invariants
//! * only of what the plain lane has sent while no transaction was open: nothing else is outstanding, and the client
//!   keeps nothing on this server connection
//! * after 25006 only where nothing else has come, of a command that PostgreSQL refuses before it evaluates anything
//!   of it (`ExecCheckXactReadOnly`, execMain.c), and the server reports the setting with the same answer: a function,
//!   a foreign server or the client itself may be the cause as well
//! * never after a server's end: what it has got it may have run
//!
//! # Why not  the reset (RST) of a connection as proof that nothing was read: proxies and restarted machines send it, too

use crate::ids::Slot;
use crate::relay::backend::Backend;
use crate::relay::host::Host;
use crate::relay::message::SERVER_CLOSED;
use crate::relay::socket::Socket;
use crate::relay::table::Engine;
use crate::session::commands::begins_with_any;
use crate::time::Time;
use crate::wire::error::field;
use crate::wire::frame::{self, Framed, HEADER_BYTES};
use crate::wire::{TransactionStatus, backend as kind};

/// The setting that makes a session's transactions read-only.
pub(crate) const READ_ONLY: &[u8] = b"default_transaction_read_only";
/// Commands that a read-only server refuses before it has done anything, and those that begin a transaction.
const KEPT: [&[u8]; 6] = [b"insert", b"update", b"delete", b"merge", b"begin", b"start"];
/// As the reason for which a server connection is closed.
pub(crate) const TURNED: &str = "its server has become read-only";
/// The longest answer that is waited for.
const ANSWER_BYTES_MAX: usize = 8 * 1024;

/// Whether a text is of a command that is worth keeping.
pub(crate) fn is_kept(text: &[u8]) -> bool {
    begins_with_any(text, &KEPT)
}

/// The answer to a pipeline that is kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// The server has become read-only, and has done nothing.
    HasTurned,
    /// It may be that; the rest has not come.
    Incomplete,
    /// Any other.
    Other,
}

impl Answer {
    /// Reads what has come.
    pub(crate) fn read(bytes: &[u8]) -> Self {
        let (mut rest, mut refused, mut begun, mut reported) = (bytes, false, false, false);
        while let Framed::Header(header) = frame::header(rest)
            && let Some(body) = rest.get(HEADER_BYTES..header.total())
        {
            match header.kind {
                kind::PARSE_COMPLETE | kind::BIND_COMPLETE if !refused => {}
                kind::ROW_DESCRIPTION | kind::NO_DATA if !refused => {}
                kind::ERROR if field(body, b'C') == Some(b"25006") => refused = true,
                kind::COMMAND_COMPLETE if begins(body) && !refused => begun = true,
                kind::PARAMETER_STATUS => reported |= reports(body),
                kind::READY_FOR_QUERY if reported && (refused || begun) => return Self::HasTurned,
                _ => return Self::Other,
            }
            rest = &rest[header.total()..];
        }
        match refused && bytes.len() <= ANSWER_BYTES_MAX {
            true => Self::Incomplete,
            false => Self::Other,
        }
    }
}

/// Whether the tag of a command is that of one that begins a transaction.
fn begins(tag: &[u8]) -> bool {
    matches!(tag, b"BEGIN\0" | b"START TRANSACTION\0")
}

/// Whether a ParameterStatus says that transactions are read-only from here on.
fn reports(body: &[u8]) -> bool {
    body.strip_prefix(READ_ONLY) == Some(b"\0on\0")
}

/// Whether a report says that a server has become read-only which is to take writes.
pub(crate) fn has_turned<S: Socket>(backend: &Backend<S>, name: &[u8], value: &[u8]) -> bool {
    name == READ_ONLY
        && value == b"on"
        && backend.requests.owes_to_plain_lane() // no client has set it
        && backend.pool.settings().wants_writable
}

impl<S: Socket> Engine<S> {
    /// The socket of a client's server connection has refused the first message of a transaction: that goes to another.
    /// Returns whether it does.
    #[cold]
    pub(crate) fn starts_again<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        first: &[u8],
        now: Time,
    ) -> bool {
        let Some(client) = self.clients.get_mut(slot) else { return false };
        let may = !client.is_pinned();
        let backend = client
            .backend
            .take_if(|backend| may && backend.from_server.status() == TransactionStatus::Idle);
        let Some(backend) = backend else { return false };
        self.start_again(host, slot, backend, first, SERVER_CLOSED, now);
        true
    }

    fn start_again<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        mut backend: Box<Backend<S>>,
        first: &[u8],
        reason: &'static str,
        now: Time,
    ) {
        backend.from_server.goes(); // there is nothing to cancel
        self.close_backend(host, backend, reason, now);
        let Some(client) = self.clients.get_mut(slot) else { return };
        let unread = client.input.take();
        client.input.extend_from_slice(first);
        client.input.extend_from_slice(&unread);
        client.rest(now);
        self.resume_later(slot);
    }

    /// A client's server has become read-only, or may have: what the client has sent goes to another, or the rest of
    /// the answer is waited for. Returns whether it is.
    #[cold]
    pub(crate) fn may_send_elsewhere<H: Host<S>>(
        &mut self,
        host: &mut H,
        slot: Slot,
        answer: Answer,
        bytes: &[u8],
        now: Time,
    ) -> bool {
        let Some(client) = self.clients.get_mut(slot) else { return false };
        let Some(mut backend) = client.backend.take() else { return false };
        if answer == Answer::Incomplete {
            backend.from_server.keep(bytes);
            client.backend = Some(backend);
            return true;
        }
        let first = backend.prepared.replay.take();
        self.start_again(host, slot, backend, &first, TURNED, now);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::build;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        build::message(&mut out, kind, |out| out.extend_from_slice(body));
        out
    }

    #[test]
    fn only_an_answer_that_says_so_is_one_of_a_server_that_has_become_read_only() {
        let refusal = message(b'E', b"SERROR\0VERROR\0C25006\0Mcannot execute\0\0");
        let other = message(b'E', b"SERROR\0VERROR\0C42601\0Msyntax error\0\0");
        let report = message(b'S', b"default_transaction_read_only\0on\0");
        let (begun, done) = (message(b'C', b"BEGIN\0"), message(b'C', b"COMMIT\0"));
        let ready = message(b'Z', b"I");
        let (parsed, bound) = (message(b'1', b""), message(b'2', b""));
        let notice = message(b'N', b"SNOTICE\0\0");
        for (answer, expected) in [
            (vec![&refusal, &report, &ready], Answer::HasTurned),
            (vec![&report, &parsed, &bound, &refusal, &ready], Answer::HasTurned),
            (vec![&begun, &report, &message(b'Z', b"T")], Answer::HasTurned),
            (vec![&begun, &refusal, &report, &message(b'Z', b"E")], Answer::HasTurned),
            (vec![&refusal], Answer::Incomplete),
            (vec![&refusal, &report], Answer::Incomplete),
            (vec![&refusal, &ready], Answer::Other),
            (vec![&other, &report, &ready], Answer::Other),
            (vec![&notice, &refusal, &report, &ready], Answer::Other),
            (vec![&begun, &done, &report, &ready], Answer::Other),
            (vec![&parsed], Answer::Other),
            (vec![&begun, &report], Answer::Other),
        ] {
            let bytes: Vec<u8> = answer.into_iter().flatten().copied().collect();
            assert_eq!(Answer::read(&bytes), expected, "{}", String::from_utf8_lossy(&bytes));
        }
    }

    #[test]
    fn what_a_server_may_have_run_is_not_kept() {
        for text in ["insert into t", " BEGIN", "Update t", "START TRANSACTION"] {
            assert!(is_kept(text.as_bytes()), "{text}");
        }
        for text in ["select f()", "with x as (insert", "call p()", "do $$", "beginning", ""] {
            assert!(!is_kept(text.as_bytes()), "{text}");
        }
    }
}
