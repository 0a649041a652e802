//! The link: TCP services of a far host, over several connections at once, each under TLS 1.3.
//!
//! Two Hawsers, one at each site, carry streams between programs over all the paths that there are. A loss
//! on one path holds up no other; a path that dies takes no stream with it; what is bulk is compressed.
//!
//! ```text
//!   program ── local socket ─► proto::session::Session ═══ paths ═══ Session ─► local socket ── server
//!                                 frames of any stream by any path; in order again at the other end
//! ```
//! [`proto`] is all of the protocol, without a socket or a clock: begin at [`proto::session`].

pub mod proto;
