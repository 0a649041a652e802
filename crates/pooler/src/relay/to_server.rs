//! The stream of bytes to a server: whole messages, one writer at a time.
//!
//! # Model
//! A client's long message is passed on in parts as they come. Until its end has been passed on the
//! stream is *open*, and the server reads everything as part of that message. So Hawser writes
//! nothing of its own into an open stream: [`ToServer::inject`] refuses it, and so does
//! [`crate::relay::from_client::passage::Passage::cut`] for insertions among a client's messages.
//!
//! # States
//! ```text
//!            leave_open(rest > 0)                take_part ... until rest = 0
//! boundary ───────────────────────► open { rest } ──────────────────────────► boundary
//!    │ inject, relay                    │ relay only
//! ```
//! # Invariant
//! In debug builds and the simulation the headers of all written bytes are walked again, and the
//! rest of the last message by that walk must equal `rest`.

use std::io;
use std::time::Duration;

use crate::relay::limits;
use crate::relay::pending_bytes::PendingBytes;
use crate::relay::socket::{Socket, write_kept, write_or_keep};
use crate::time::Time;

/// Why bytes were not written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum WriteError {
    /// The connection broke.
    Broken,
    /// A client's message is open: the server would read the bytes as part of it.
    Open,
    /// Nothing more is written, for this reason: see [`crate::relay::record_request`].
    BrokenOff(&'static str),
}

impl WriteError {
    /// As the reason for which the server connection is closed.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            Self::Broken => "its connection broke while it was written to",
            Self::Open => "a message of Hawser's was due within a client's message",
            Self::BrokenOff(why) => why,
        }
    }
}

/// The client's message whose end has not been passed on.
#[derive(Clone, Copy, Debug, Default)]
struct Open {
    /// Bytes still to come. 0: the stream is at a message's end.
    rest: usize,
    /// Its length, header included.
    length: usize,
    /// When its start was passed on.
    since: Time,
}

/// The stream of bytes to a server.
#[derive(Debug, Default)]
pub(crate) struct ToServer {
    /// Bytes that the socket did not take.
    pending: PendingBytes,
    open: Open,
    broken_off: Option<&'static str>,
    #[cfg(debug_assertions)]
    walk: Walk,
}

impl ToServer {
    /// Nothing more is written to it.
    #[cold]
    pub(crate) fn break_off(&mut self, why: &'static str) {
        self.broken_off.get_or_insert(why);
    }

    /// Whether a client's message is open.
    #[inline]
    pub(crate) fn is_open(&self) -> bool {
        self.open.rest > 0
    }

    /// The message at the end of the stream lacks this many bytes; 0: it is complete.
    #[inline]
    pub(crate) fn leave_open(&mut self, rest: usize) {
        self.open.rest = rest;
    }

    /// Notes the length of the message that was left open, header included, if one was.
    #[inline]
    pub(crate) fn measure(&mut self, length: usize, now: Time) {
        if self.is_open() {
            (self.open.length, self.open.since) = (length, now);
        }
    }

    /// How many of these bytes belong to the open message. They are to be passed on.
    pub(crate) fn take_part(&mut self, available: usize) -> usize {
        let part = self.open.rest.min(available);
        self.open.rest -= part;
        part
    }

    /// Whether the open message has taken longer than its length allows. A client that sends a byte
    /// now and then keeps its server connection from others as well.
    pub(crate) fn crawls(&self, timeout: Duration, now: Time) -> bool {
        let sent = self.open.length.saturating_sub(self.open.rest) as u64;
        let allowed = Duration::from_micros(
            sent.saturating_mul(1_000_000) / limits::STREAM_BYTES_A_SECOND_MIN,
        );
        now.since(self.open.since) >= timeout + allowed
    }

    /// Writes whole messages of Hawser's own.
    pub(crate) fn inject<S: Socket>(
        &mut self,
        socket: &mut S,
        messages: &[u8],
    ) -> Result<(), WriteError> {
        if self.is_open() {
            return Err(WriteError::Open);
        }
        self.check();
        self.relay(socket, messages)
    }

    /// Writes a client's bytes, as far as they have come, with what was inserted among its
    /// messages.
    pub(crate) fn relay<S: Socket>(
        &mut self,
        socket: &mut S,
        bytes: &[u8],
    ) -> Result<(), WriteError> {
        if let Some(why) = self.broken_off {
            return Err(WriteError::BrokenOff(why));
        }
        #[cfg(debug_assertions)]
        self.walk.on(bytes);
        write_or_keep(socket, &mut self.pending, bytes).map_err(|_| WriteError::Broken)?;
        Ok(())
    }

    /// Everything passed on has been written: the walk must be at the same position.
    #[inline]
    pub(crate) fn check(&self) {
        #[cfg(debug_assertions)]
        assert!(
            self.walk.agrees(self.open.rest),
            "the stream to the server is at {:?}, and {} bytes of a message are to come",
            self.walk,
            self.open.rest
        );
    }

    /// Writes the bytes that the socket has not taken.
    pub(crate) fn flush<S: Socket>(&mut self, socket: &mut S) -> io::Result<()> {
        write_kept(socket, &mut self.pending).map(drop)
    }

    /// Bytes that the socket has not taken.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.pending.len()
    }

    /// Whether the socket has taken everything.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }
}

/// The position of the stream by the headers of the written bytes.
#[cfg(debug_assertions)]
#[derive(Debug, Default)]
struct Walk {
    /// Bytes of the last message still to come.
    rest: usize,
    /// An invalid header was written: the server will end the connection.
    lost: bool,
}

#[cfg(debug_assertions)]
impl Walk {
    fn on(&mut self, mut bytes: &[u8]) {
        use crate::wire::frame::{Framed, header};
        while !self.lost && !bytes.is_empty() {
            if self.rest == 0 {
                match header(bytes) {
                    Framed::Header(header) => self.rest = header.total(),
                    Framed::Short | Framed::BadLength { .. } => {
                        self.lost = true;
                        return;
                    }
                }
            }
            let part = self.rest.min(bytes.len());
            self.rest -= part;
            bytes = &bytes[part..];
        }
    }

    fn agrees(&self, rest: usize) -> bool {
        !self.lost && self.rest == rest
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::tests::harness::Peer;
    use crate::wire::build;

    fn connection() -> (impl Socket, Peer) {
        let (peer, socket) = Peer::new();
        (socket, peer)
    }

    fn query(text: &str) -> Vec<u8> {
        let mut out = Vec::new();
        build::query(&mut out, text.as_bytes());
        out
    }

    #[test]
    fn nothing_is_injected_before_the_end_of_an_open_message() {
        let (mut socket, peer) = connection();
        let message = query("SELECT 'a message that comes in parts'");
        for split in 5..message.len() {
            let mut stream = ToServer::default();
            stream.leave_open(message.len() - split);
            stream.relay(&mut socket, &message[..split]).unwrap();
            stream.check();
            assert_eq!(stream.inject(&mut socket, &build::SYNC), Err(WriteError::Open));
            assert_eq!(stream.take_part(message.len()), message.len() - split);
            stream.relay(&mut socket, &message[split..]).unwrap();
            stream.check();
            stream.inject(&mut socket, &build::SYNC).unwrap();
            assert_eq!(peer.received(), [&message[..], &build::SYNC].concat());
        }
    }

    #[cfg(debug_assertions)]
    #[test]
    #[should_panic(expected = "bytes of a message are to come")]
    fn bytes_of_ours_in_an_open_message_are_found() {
        let (mut socket, _peer) = connection();
        let message = query("SELECT 1");
        let mut stream = ToServer::default();
        stream.leave_open(4);
        stream.relay(&mut socket, &message[..message.len() - 4]).unwrap();
        stream.relay(&mut socket, &build::SYNC).unwrap();
        stream.check();
    }

    #[test]
    fn a_message_may_take_as_long_as_its_length_allows() {
        let timeout = Duration::from_secs(1);
        let mut stream = ToServer::default();
        stream.leave_open(10);
        stream.measure(10, Time::ZERO);
        let end = |ms| Time::ZERO.after(Duration::from_millis(ms));
        assert!(!stream.crawls(timeout, end(999)));
        assert!(stream.crawls(timeout, end(1_000)));
    }
}
