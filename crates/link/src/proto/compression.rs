//! Compression of bulk streams: which frames are worth it, and their bytes.
//!
//! # Model
//! A compressed frame is one zstd frame (RFC 8878) of its own, of up to [`WHOLE_BYTES_MAX`] bytes of the
//! stream. So frames may come in any order, twice, or again by another path in other pieces, and all
//! offsets, credit and acknowledgements count the stream's own bytes.
//! ```text
//!   Rests { until } ─ that offset is reached ─► tried ─ 3/4 or less ─► Shrinks { part }
//!        ▲                                        │ more                  │ a frame shrinks to more than 7/8
//!        └──── wait: 1 MiB, doubled up to 64 ─────┴───────────────────────┘
//! ```
//! A frame is tried if the paths limit the stream: it has had something to send without a break for
//! [`BACKLOG_MIN`], and all paths together have carried less than [`PATHS_BYTES_MAX`] a second of
//! late. How much of a stream goes into a frame follows from what the last ones have shrunk to, so
//! that the frame has the length wanted for the path.
//!
//! # Invariants
//! * a peer's claim is checked against the stream's credit before anything is decompressed, and a
//!   frame gives at most [`WHOLE_BYTES_MAX`] bytes
//! * a frame never has bytes of two streams, and never refers to another frame
//!
//! # Why not
//! One zstd stream for each stream of the link: it shrinks texts a little more, but a frame could be
//! decompressed only after all before it, and sent again only as it was; frames of a path that died would
//! have to be kept compressed beside what they are made of. The estimated rate of paths in place of
//! the carried bytes: TCP's delivery rate is gigabytes a second for a moment whenever a host or a
//! proxy on the way takes all at once.

use std::time::Duration;

use hawser_time::Time;
use zstd::bulk::{Compressor, Decompressor};

use super::frame::{COMPRESSED_BYTES_MAX, WHOLE_BYTES_MAX};
use super::outgoing::Outgoing;

/// Fewer bytes are not worth the processor's time: they fill a segment or two.
const WHOLE_BYTES_MIN: usize = 1024;
/// How long a stream must wait for paths before these count as its limit.
pub const BACKLOG_MIN: Duration = Duration::from_millis(50);
/// Paths that carry more in a second are no limit: one processor compresses some 300 MB in that
/// time, besides encrypting and sending.
pub const PATHS_BYTES_MAX: u64 = 100_000_000;
/// zstd's level. Measured on rows of orders as COPY writes them, in frames of 64 KiB, by one processor: level 1
/// leaves 52 % at 366 MB/s, level 3 49 % at 227, level -1 78 % at 499.
const LEVEL: i32 = 1;
/// What a frame shrinks to, in parts of [`ONE`].
const ONE: u64 = 256;
const WORTH: u64 = ONE * 3 / 4;
const NOT_WORTH: u64 = ONE * 7 / 8;
const WAIT_MIN: u64 = 1 << 20;
const WAIT_MAX: u64 = 64 << 20;

/// Whether an end compresses what it sends.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Compression {
    /// Nothing.
    #[default]
    None,
    /// Bulk streams that shrink, where the paths limit them.
    Auto,
}

/// Whether a stream's frames are compressed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Shrinking {
    /// Not before this offset; after a try without success, not for `wait` more bytes.
    Rests { until: u64, wait: u64 },
    /// They are; recent ones shrank to `part` of [`ONE`].
    Shrinks { part: u64 },
}

impl Shrinking {
    pub(super) fn new() -> Self {
        Self::Rests { until: 0, wait: WAIT_MIN }
    }

    /// How many bytes on paths this many bytes of the stream become.
    pub(super) fn on_paths(self, bytes: u64) -> u64 {
        match self {
            Self::Rests { .. } => bytes,
            Self::Shrinks { part } => bytes.saturating_mul(part) / ONE,
        }
    }

    /// The size of recent frames, in percent.
    pub(super) fn percent(self) -> Option<u64> {
        match self {
            Self::Rests { .. } => None,
            Self::Shrinks { part } => Some(part * 100 / ONE),
        }
    }

    /// Compresses the next bytes, so that the result has about `frame` bytes. Returns how many
    /// bytes were taken, and the result. None: send `frame` bytes uncompressed.
    pub(super) fn next_frame<'a>(
        &mut self,
        codec: &'a mut Codec,
        out: &Outgoing,
        frame: usize,
        now: Time,
    ) -> Option<(usize, &'a [u8])> {
        let waits = out.backlog_since().is_some_and(|since| now.since(since) >= BACKLOG_MIN);
        let most = match *self {
            Self::Shrinks { part } => (frame as u64 * ONE / part.max(1)) as usize,
            Self::Rests { .. } => frame,
        };
        let (offset, parts) = out.peek(most.min(WHOLE_BYTES_MAX)).filter(|_| waits)?;
        let whole = parts[0].len() + parts[1].len();
        let rests = matches!(*self, Self::Rests { until, .. } if offset < until);
        if rests || whole < WHOLE_BYTES_MIN {
            return None;
        }
        let bytes = codec.compress(parts);
        let shrunk = bytes.map_or(ONE, |bytes| bytes.len() as u64 * ONE / whole as u64);
        *self = match *self {
            Self::Rests { wait, .. } if shrunk > WORTH => {
                Self::Rests { until: offset + wait, wait: (2 * wait).min(WAIT_MAX) }
            }
            Self::Rests { .. } => Self::Shrinks { part: shrunk.max(1) },
            Self::Shrinks { .. } if shrunk > NOT_WORTH => {
                Self::Rests { until: offset + WAIT_MIN, wait: 2 * WAIT_MIN }
            }
            Self::Shrinks { part } => Self::Shrinks { part: ((3 * part + shrunk) / 4).max(1) },
        };
        bytes.filter(|_| matches!(self, Self::Shrinks { .. })).map(|bytes| (whole, bytes))
    }
}

/// zstd's state for a session, and its buffers. It exists while it is needed.
#[derive(Default, derive_more::Debug)]
#[debug("Codec(..)")]
pub(super) struct Codec {
    compressor: Option<Compressor<'static>>,
    decompressor: Option<Decompressor<'static>>,
    whole: Vec<u8>,
    compressed: Vec<u8>,
}

/// The bytes do not match their frame's claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct NotAsClaimed;

impl Codec {
    /// None: there is no memory, or the result does not fit a frame.
    fn compress(&mut self, parts: [&[u8]; 2]) -> Option<&[u8]> {
        if self.compressor.is_none() {
            self.compressor = Compressor::new(LEVEL).ok();
        }
        let source = match parts {
            [whole, []] | [[], whole] => whole,
            [first, second] => {
                self.whole.clear();
                self.whole.extend_from_slice(first);
                self.whole.extend_from_slice(second);
                &self.whole
            }
        };
        self.compressed.clear();
        self.compressed.reserve_exact(COMPRESSED_BYTES_MAX); // its capacity bounds what comes
        let compressor = self.compressor.as_mut()?;
        let length = compressor.compress_to_buffer(source, &mut self.compressed).ok()?;
        (length <= COMPRESSED_BYTES_MAX).then_some(&self.compressed[..length])
    }

    /// The bytes of the stream in a frame that claims to have `claimed` of them.
    pub(super) fn decompress(
        &mut self,
        bytes: &[u8],
        claimed: usize,
    ) -> Result<&[u8], NotAsClaimed> {
        if self.decompressor.is_none() {
            self.decompressor = Decompressor::new().ok();
        }
        self.whole.clear();
        self.whole.reserve_exact(claimed.min(WHOLE_BYTES_MAX)); // its capacity bounds what comes
        let decompressor = self.decompressor.as_mut().ok_or(NotAsClaimed)?;
        match decompressor.decompress_to_buffer(bytes, &mut self.whole) {
            Ok(length) if length == claimed => Ok(&self.whole),
            _ => Err(NotAsClaimed),
        }
    }
}
