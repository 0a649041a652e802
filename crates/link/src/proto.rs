//! The link: streams between two Hawsers over several TCP connections, the *paths*, each under TLS.
//!
//! # Model
//! A near end dials paths and opens streams; a far end accepts both and connects each stream to its
//! target. A stream is two sequences of bytes with 64-bit offsets, one for each direction. Frames of a
//! stream go by any path; the receiver puts them in order by offset and drops what it has (as RFC 8684's
//! data sequence signal does).
//! ```text
//!   local socket ─► outgoing ─► scheduler ─► path 1 ═══ path 1 ─► incoming ─► local socket
//!                      ▲ kept          └───► path 2 ═══ path 2 ───┘  │ in order, once
//!                      └────────────── Ack: delivered, received, limit ◄┘
//! ```
//! * [`frame`] what is said on a path, and the parser
//! * [`compression`] which frames of bulk streams are compressed, and how
//! * [`greeting`] the first frame of a path, at the end that accepts
//! * [`incoming`], [`outgoing`] one direction of a stream at its receiver and its sender
//! * [`path`] one path: its stage, and whether it is alive; `rate`: its speed; `recent`: recent
//!   rates of paths and streams, for operators; [`past`]: paths that have ended, also for operators
//! * [`session`] streams and paths together: bytes and time in, frames and [`session::Request`]s out
//!
//! # Invariants
//! * the bytes that a local socket gets are those that the other one gave, once and in order, however
//!   often paths break; or both are closed with an error
//! * an offset is acknowledged only after the local socket has taken the byte before it
//! * a stream ends at an offset that its sender has named, never because a path ended
//! * no more than the credit of a stream is held for it, whatever a peer sends
//! * every wait ends: a path's by [`path::DEAD_MIN`] and [`path::GREETING_MAX`], a session's by `grace`,
//!   a stream's confirmation by [`session::UNCONFIRMED_MAX`]
//!
//! # Why not
//! One TCP stream cut over paths (as MPTCP does): one loss would hold up all streams (MLVPN, issue 64).
//! Resuming after a process has died: an ended database session cannot be continued, so what was
//! sent to it must not be sent to another one.

pub mod compression;
pub mod frame;
pub mod greeting;
pub mod incoming;
pub mod outgoing;
pub mod past;
pub mod path;
mod rate;
mod recent;
pub mod report;
mod run;
pub mod sample;
pub mod session;

#[cfg(test)]
mod tests;

/// A stream of a session; the near end counts them from 1.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StreamId(pub u64);

/// A path of a session; each end has numbers of its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PathId(pub u64);

/// The name of a session: random, from the near end, and known only to both ends.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, derive_more::Debug)]
#[debug("Token(..)")]
pub struct Token(pub [u8; 16]);
