//! Sockets, TLS and a thread for [`crate::proto`].
//!
//! * [`keys`] who an end is: its key, and the keys that it knows
//! * [`proof`] TLS: both ends proved by pinned keys, or nothing said
//! * [`connection`] one path: its socket and its TLS
//! * [`carrier`] sockets for one [`crate::proto::session::Session`]: its paths and its local ones
//! * [`control`] what other threads ask of a worker
//! * [`worker`] one thread with an epoll set of its own: listeners, sessions, signals
//! * [`resolving`] addresses of names, which may take long, on other threads
//! * [`report`] what one is doing

pub mod carrier;
pub mod connection;
pub mod control;
pub mod keys;
pub mod proof;
pub mod report;
pub mod resolving;
pub mod worker;
