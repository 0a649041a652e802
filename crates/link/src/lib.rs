//! The link: TCP services of a far host, over several connections at once, each under TLS 1.3.
//!
//! Two Hawsers, one at each site, carry streams between programs over all the paths that there are. A loss
//! on one path holds up no other; a path that dies takes no stream with it; what is bulk is compressed.
//!
//! ```text
//!   program ─► drive::worker::Worker, one thread                       Worker ─► server
//!                listeners ─► drive::carrier::Carrier                  Carrier ─┘
//!                               │ proto::session::Session ══ paths ══ Session │
//!                               └ drive::connection::Connection: a socket and its TLS, a path
//!   hawser link status, SHOW LINKS ─► drive::report::Report ◄─ drive::control::Control
//! ```
//! [`proto`] is all of the protocol, without a socket or a clock: begin at [`proto::session`]. [`drive`] is
//! sockets, TLS by pinned keys, and the thread: begin at [`drive::carrier`]. Who starts one gives
//! [`drive::worker::Options`]; other threads speak to it by [`drive::control::Control`] alone.

pub mod drive;
pub mod proto;
