//! Frames of a path: the messages of two ends of a link inside TLS.
//!
//! # Format
//! A byte of kind, then the fields of that kind, big-endian, without padding.
//! ```text
//!   1 Hello    magic(4) version_min(1) version_max(1) fresh(1) token(16)
//!   2 Welcome  version(1)
//!   3 Refused  reason(1) version_min(1) version_max(1)
//!   4 Open     stream(8) limit(8) length(2) target
//!   5 Data     stream(8) offset(8) length(2) bytes
//!   6 Ack      stream(8) delivered(8) received(8) limit(8) finished(1)
//!   7 Finish   stream(8) offset(8)
//!   8 Reset    stream(8) reason(1)
//!   9 Gone     stream(8)
//!  10 Ping     number(8)
//!  11 Pong     number(8)
//!  12 Bye      -
//!  13 Rest     rests(1)
//!  14 Compressed  stream(8) offset(8) length(2) whole(4) bytes      from version 2 on
//! ```
//! Hello and Welcome keep their form in all versions.
//!
//! # Invariants
//! * a frame is read whole or not at all, and its length is known from its first [`HEAD_BYTES_MAX`] bytes
//! * no length on the wire makes a reader reserve more than [`FRAME_BYTES_MAX`], or, for what a compressed
//!   frame claims, [`WHOLE_BYTES_MAX`]

use super::{StreamId, Token};

/// The versions that this end speaks.
pub const VERSION_MIN: u8 = 1;
/// See [`VERSION_MIN`].
pub const VERSION_MAX: u8 = 2;
/// From this version on, Data may come compressed.
pub const VERSION_COMPRESSED: u8 = 2;
/// The first bytes of a Hello, after its kind.
const MAGIC: [u8; 4] = *b"HWSL";
/// Fields of Data before its bytes.
pub const DATA_HEAD_BYTES: usize = 1 + 8 + 8 + 2;
/// Bytes of a Data frame: with its head it fills one TLS record (RFC 8446, 5.1), so a reader seldom
/// has to join two.
pub const DATA_BYTES_MAX: usize = (16 << 10) - DATA_HEAD_BYTES;
/// Fields of Compressed before its bytes.
pub const COMPRESSED_HEAD_BYTES: usize = DATA_HEAD_BYTES + 4;
/// Bytes of a Compressed frame, as of a Data frame.
pub const COMPRESSED_BYTES_MAX: usize = (16 << 10) - COMPRESSED_HEAD_BYTES;
/// The most bytes of a stream in a Compressed frame.
pub const WHOLE_BYTES_MAX: usize = 64 << 10;
/// The longest name of a target: DNS allows 253 bytes, and a port follows.
pub const TARGET_BYTES_MAX: usize = 262;
/// The longest frame.
pub const FRAME_BYTES_MAX: usize = DATA_HEAD_BYTES + DATA_BYTES_MAX;
/// The longest part of a frame that determines its length.
pub const HEAD_BYTES_MAX: usize = DATA_HEAD_BYTES;

const HELLO: u8 = 1;
const WELCOME: u8 = 2;
const REFUSED: u8 = 3;
const OPEN: u8 = 4;
const DATA: u8 = 5;
const ACK: u8 = 6;
const FINISH: u8 = 7;
const RESET: u8 = 8;
const GONE: u8 = 9;
const PING: u8 = 10;
const PONG: u8 = 11;
const BYE: u8 = 12;
const REST: u8 = 13;
const COMPRESSED: u8 = 14;

/// Why a path is not taken into a session.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Refusal {
    /// No version is common to both.
    Version,
    /// The session is not known: it has ended, or the far end has restarted.
    Session,
    /// The far end has as many sessions, or this session as many paths, as there may be.
    Full,
}

/// Why a stream was ended before its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, derive_more::Display)]
pub enum Reason {
    /// The program at the other end has closed its connection, or it broke.
    #[display("the program at the other end has closed its connection")]
    Local,
    /// The far end may not connect there.
    #[display("the far end does not allow this target")]
    NotAllowed,
    /// The far end could not connect there.
    #[display("the far end cannot reach the target")]
    Unreachable,
    /// The far end has as many streams as there may be.
    #[display("the far end has as many streams as there may be")]
    Full,
    /// The peer broke the protocol.
    #[display("the peer broke the protocol")]
    Protocol,
    /// No path has worked for as long as `grace`.
    #[display("no path has worked for as long as the grace time")]
    Grace,
    /// The other process has restarted, or has forgotten the session.
    #[display("the far end no longer knows the session")]
    Restarted,
    /// The other process ends.
    #[display("the other end was shut down")]
    Ending,
    /// The far end did not confirm the stream in time.
    #[display("the far end did not confirm the stream in time")]
    Unconfirmed,
    /// Paths come up and die, and no bytes of the stream have got through for as long as `grace`.
    #[display(
        "nothing of it got through for as long as the grace time, by paths that came and died"
    )]
    Stalled,
    /// The peer's compressed data does not match its claim. (Only peers that compress know this
    /// reason.)
    #[display("what its sender has compressed does not become as many bytes as the sender claims")]
    Compression,
}

impl Reason {
    const ALL: [Self; 11] = [
        Self::Local,
        Self::NotAllowed,
        Self::Unreachable,
        Self::Full,
        Self::Protocol,
        Self::Grace,
        Self::Restarted,
        Self::Ending,
        Self::Unconfirmed,
        Self::Stalled,
        Self::Compression,
    ];

    fn code(self) -> u8 {
        self as u8
    }

    fn of(code: u8) -> Result<Self, FrameError> {
        Self::ALL.get(usize::from(code)).copied().ok_or(FrameError::Value("reason"))
    }
}

/// A frame.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Frame<'a> {
    /// The first frame of the end that dials.
    Hello {
        /// The oldest and the newest version that it speaks.
        versions: (u8, u8),
        /// Whether the session may be a new one.
        fresh: bool,
        /// The session's.
        token: Token,
    },
    /// The answer of the end that accepts.
    Welcome {
        /// What both speak from here on.
        version: u8,
    },
    /// The other answer; nothing follows.
    Refused {
        /// Why.
        refusal: Refusal,
        /// The versions that the far end speaks.
        versions: (u8, u8),
    },
    /// A stream begins.
    Open {
        /// Its number.
        stream: StreamId,
        /// Up to which offset the far end may send.
        limit: u64,
        /// Where the far end must connect: host and port.
        target: &'a str,
    },
    /// Bytes of a stream.
    Data {
        /// Whose.
        stream: StreamId,
        /// The offset of the first byte.
        offset: u64,
        /// One or more.
        bytes: &'a [u8],
    },
    /// Bytes of a stream, as one zstd frame.
    Compressed {
        /// Whose.
        stream: StreamId,
        /// The offset of the first byte.
        offset: u64,
        /// How many bytes of the stream these become.
        whole: usize,
        /// One or more.
        bytes: &'a [u8],
    },
    /// How far a stream has come at the receiver.
    Ack {
        /// Which.
        stream: StreamId,
        /// Bytes that were written to the local socket.
        delivered: u64,
        /// Bytes that have come without a gap.
        received: u64,
        /// Up to which offset the peer may send.
        limit: u64,
        /// Whether the local socket has its end, too.
        finished: bool,
    },
    /// A stream ends at this offset.
    Finish {
        /// Which.
        stream: StreamId,
        /// Its length.
        offset: u64,
    },
    /// A stream is given up.
    Reset {
        /// Which.
        stream: StreamId,
        /// Why.
        reason: Reason,
    },
    /// The sender of this has ended the stream and forgotten it.
    Gone {
        /// Which.
        stream: StreamId,
    },
    /// To be answered at once.
    Ping {
        /// Any.
        number: u64,
    },
    /// The answer.
    Pong {
        /// The ping's.
        number: u64,
    },
    /// The process ends, and the session with it.
    Bye,
    /// From the near end: whether this path must carry streams only if no other does.
    Rest {
        /// It is.
        rests: bool,
    },
}

/// Why bytes are no frame. Their path cannot be used any more.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameError {
    /// No such kind.
    #[error("there is no frame of kind {0}")]
    Kind(u8),
    /// A length that is not allowed.
    #[error("the length of {0} is not allowed")]
    Length(&'static str),
    /// A value that is not allowed.
    #[error("the value of {0} is not allowed")]
    Value(&'static str),
}

/// Takes fields from the front; the caller has checked that they are there.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn bytes<const N: usize>(&mut self) -> [u8; N] {
        let mut value = [0; N];
        let (taken, rest) = self.0.split_at(N.min(self.0.len()));
        value[..taken.len()].copy_from_slice(taken);
        self.0 = rest;
        value
    }

    fn u8(&mut self) -> u8 {
        u8::from_be_bytes(self.bytes())
    }

    fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.bytes())
    }

    fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.bytes())
    }

    fn stream(&mut self) -> StreamId {
        StreamId(self.u64())
    }

    fn flag(&mut self, what: &'static str) -> Result<bool, FrameError> {
        match self.u8() {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(FrameError::Value(what)),
        }
    }

    fn rest(self) -> &'a [u8] {
        self.0
    }
}

/// The length of the frame that begins here; `None` while it is not known.
fn length(bytes: &[u8]) -> Result<Option<usize>, FrameError> {
    let Some(kind) = bytes.first() else { return Ok(None) };
    let at = |at: usize| {
        let length = bytes.get(at..at + 2)?;
        Some(usize::from(u16::from_be_bytes([length[0], length[1]])))
    };
    Ok(Some(match *kind {
        HELLO => 1 + 4 + 3 + 16,
        WELCOME => 2,
        REFUSED => 4,
        OPEN => match at(17) {
            None => return Ok(None),
            Some(length) if !(1..=TARGET_BYTES_MAX).contains(&length) => {
                return Err(FrameError::Length("a target"));
            }
            Some(length) => 19 + length,
        },
        DATA => match at(17) {
            None => return Ok(None),
            Some(length) if !(1..=DATA_BYTES_MAX).contains(&length) => {
                return Err(FrameError::Length("data"));
            }
            Some(length) => DATA_HEAD_BYTES + length,
        },
        COMPRESSED => match at(17) {
            None => return Ok(None),
            Some(length) if !(1..=COMPRESSED_BYTES_MAX).contains(&length) => {
                return Err(FrameError::Length("compressed data"));
            }
            Some(length) => COMPRESSED_HEAD_BYTES + length,
        },
        ACK => 1 + 32 + 1,
        FINISH => 17,
        RESET => 10,
        GONE | PING | PONG => 9,
        BYE => 1,
        REST => 2,
        kind => return Err(FrameError::Kind(kind)),
    }))
}

impl<'a> Frame<'a> {
    /// The frame at the beginning of `bytes`, and how many it has; `None` while it is incomplete.
    ///
    /// # Errors
    /// [`FrameError`]: nothing after it can be understood.
    pub fn read(bytes: &'a [u8]) -> Result<Option<(Self, usize)>, FrameError> {
        let Some(length) = length(bytes)? else { return Ok(None) };
        let Some(whole) = bytes.get(..length) else { return Ok(None) };
        let mut fields = Fields(&whole[1..]);
        let frame = match whole[0] {
            HELLO => {
                if fields.bytes() != MAGIC {
                    return Err(FrameError::Value("the magic number"));
                }
                let versions = (fields.u8(), fields.u8());
                let fresh = fields.flag("fresh")?;
                Self::Hello { versions, fresh, token: Token(fields.bytes()) }
            }
            WELCOME => Self::Welcome { version: fields.u8() },
            REFUSED => {
                let refusal = match fields.u8() {
                    0 => Refusal::Version,
                    1 => Refusal::Session,
                    2 => Refusal::Full,
                    _ => return Err(FrameError::Value("a refusal")),
                };
                Self::Refused { refusal, versions: (fields.u8(), fields.u8()) }
            }
            OPEN => {
                let (stream, limit) = (fields.stream(), fields.u64());
                let _: [u8; 2] = fields.bytes();
                let target = std::str::from_utf8(fields.rest());
                let target = target.map_err(|_| FrameError::Value("a target"))?;
                Self::Open { stream, limit, target }
            }
            DATA => {
                let (stream, offset) = (fields.stream(), fields.u64());
                let _: [u8; 2] = fields.bytes();
                let bytes = fields.rest();
                // So that no sum of an offset and a length can overflow.
                if offset.checked_add(bytes.len() as u64).is_none() {
                    return Err(FrameError::Value("an offset"));
                }
                Self::Data { stream, offset, bytes }
            }
            COMPRESSED => read_compressed(fields)?,
            ACK => Self::Ack {
                stream: fields.stream(),
                delivered: fields.u64(),
                received: fields.u64(),
                limit: fields.u64(),
                finished: fields.flag("finished")?,
            },
            FINISH => Self::Finish { stream: fields.stream(), offset: fields.u64() },
            RESET => Self::Reset { stream: fields.stream(), reason: Reason::of(fields.u8())? },
            GONE => Self::Gone { stream: fields.stream() },
            PING => Self::Ping { number: fields.u64() },
            PONG => Self::Pong { number: fields.u64() },
            BYE => Self::Bye,
            _ => Self::Rest { rests: fields.flag("rests")? },
        };
        Ok(Some((frame, length)))
    }

    /// Appends it.
    ///
    /// # Panics
    /// If a target or data are longer than is allowed, or empty: the caller's fault.
    pub fn write(&self, out: &mut Vec<u8>) {
        match *self {
            Self::Hello { versions, fresh, token } => {
                out.push(HELLO);
                out.extend_from_slice(&MAGIC);
                out.extend_from_slice(&[versions.0, versions.1, u8::from(fresh)]);
                out.extend_from_slice(&token.0);
            }
            Self::Welcome { version } => out.extend_from_slice(&[WELCOME, version]),
            Self::Refused { refusal, versions } => {
                let reason = match refusal {
                    Refusal::Version => 0,
                    Refusal::Session => 1,
                    Refusal::Full => 2,
                };
                out.extend_from_slice(&[REFUSED, reason, versions.0, versions.1]);
            }
            Self::Open { stream, limit, target } => {
                assert!((1..=TARGET_BYTES_MAX).contains(&target.len()), "a target's length");
                numbers(out, OPEN, &[stream.0, limit]);
                out.extend_from_slice(&(target.len() as u16).to_be_bytes());
                out.extend_from_slice(target.as_bytes());
            }
            Self::Data { stream, offset, bytes } => {
                data_head(out, stream, offset, bytes.len());
                out.extend_from_slice(bytes);
            }
            Self::Compressed { stream, offset, whole, bytes } => {
                compressed_head(out, stream, offset, (whole, bytes.len()));
                out.extend_from_slice(bytes);
            }
            Self::Ack { stream, delivered, received, limit, finished } => {
                numbers(out, ACK, &[stream.0, delivered, received, limit]);
                out.push(u8::from(finished));
            }
            Self::Finish { stream, offset } => numbers(out, FINISH, &[stream.0, offset]),
            Self::Reset { stream, reason } => {
                numbers(out, RESET, &[stream.0]);
                out.push(reason.code());
            }
            Self::Gone { stream } => numbers(out, GONE, &[stream.0]),
            Self::Ping { number } => numbers(out, PING, &[number]),
            Self::Pong { number } => numbers(out, PONG, &[number]),
            Self::Bye => out.push(BYE),
            Self::Rest { rests } => out.extend_from_slice(&[REST, u8::from(rests)]),
        }
    }
}

/// Appends what stands before the bytes of a Data frame.
pub(super) fn data_head(out: &mut Vec<u8>, stream: StreamId, offset: u64, length: usize) {
    assert!((1..=DATA_BYTES_MAX).contains(&length), "a length of data");
    numbers(out, DATA, &[stream.0, offset]);
    out.extend_from_slice(&(length as u16).to_be_bytes());
}

fn read_compressed(mut fields: Fields<'_>) -> Result<Frame<'_>, FrameError> {
    let (stream, offset) = (fields.stream(), fields.u64());
    let _: [u8; 2] = fields.bytes();
    let whole = fields.u32() as usize;
    let bytes = fields.rest();
    // Bytes that do not shrink are sent uncompressed.
    if !(bytes.len() + 1..=WHOLE_BYTES_MAX).contains(&whole) {
        return Err(FrameError::Length("what was compressed"));
    }
    if offset.checked_add(whole as u64).is_none() {
        return Err(FrameError::Value("an offset"));
    }
    Ok(Frame::Compressed { stream, offset, whole, bytes })
}

/// Appends what stands before the bytes of a Compressed frame: `whole` bytes of the stream, in `length`.
pub(super) fn compressed_head(
    out: &mut Vec<u8>,
    stream: StreamId,
    offset: u64,
    (whole, length): (usize, usize),
) {
    assert!((1..=COMPRESSED_BYTES_MAX).contains(&length), "a length of compressed data");
    assert!(whole <= WHOLE_BYTES_MAX, "a length of what was compressed");
    numbers(out, COMPRESSED, &[stream.0, offset]);
    out.extend_from_slice(&(length as u16).to_be_bytes());
    out.extend_from_slice(&(whole as u32).to_be_bytes());
}

fn numbers(out: &mut Vec<u8>, kind: u8, fields: &[u64]) {
    out.push(kind);
    for field in fields {
        out.extend_from_slice(&field.to_be_bytes());
    }
}

/// Splits the bytes of a path into frames; keeps an incomplete one.
#[derive(Debug, Default)]
pub struct Assembly {
    part: Vec<u8>,
}

impl Assembly {
    /// Hands each frame that `bytes` complete to `take`, which says whether to go on.
    ///
    /// # Errors
    /// [`FrameError`], after the frames before it.
    pub fn feed(
        &mut self,
        mut bytes: &[u8],
        mut take: impl FnMut(Frame<'_>) -> bool,
    ) -> Result<(), FrameError> {
        while !self.part.is_empty() && !bytes.is_empty() {
            // Only as much as this frame needs: what follows is read where it lies.
            let missing = match length(&self.part)? {
                Some(length) => length - self.part.len(),
                None => HEAD_BYTES_MAX.saturating_sub(self.part.len()).max(1),
            };
            let (head, rest) = bytes.split_at(missing.min(bytes.len()));
            self.part.extend_from_slice(head);
            bytes = rest;
            let mut read = 0;
            while let Some((frame, length)) = Frame::read(&self.part[read..])? {
                read += length;
                if !take(frame) {
                    return Ok(());
                }
            }
            self.part.drain(..read);
        }
        while let Some((frame, length)) = Frame::read(bytes)? {
            bytes = &bytes[length..];
            if !take(frame) {
                return Ok(());
            }
        }
        self.part.extend_from_slice(bytes);
        if self.part.is_empty() {
            self.part = Vec::new(); // an idle path keeps none
        }
        Ok(())
    }

    /// Bytes that wait for the rest of their frame.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.part.len()
    }
}
