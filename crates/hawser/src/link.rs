//! The link: TCP services of a far host, over several connections, each under TLS 1.3.
//!
//! * [`keys`] who an end is: its key, and the keys that it knows
//! * [`proof`] TLS: both ends proved by pinned keys, or nothing said
//! * [`connection`] one path: its socket and its TLS
//! * [`carrier`] sockets for one [`hawser_link::proto::session::Session`]: its paths and its local ones
//! * [`links`] the ends that `hawser serve` runs, and connections of pools over them
//! * [`control`] what other threads ask of a worker
//! * [`worker`] one thread with an epoll set of its own: listeners, sessions, signals
//! * [`resolving`] addresses of names, which may take long, on other threads
//! * [`report`] what one is doing, for `hawser link status`; [`top`] the same, live, in a terminal
//! * [`command`] `hawser link`, the command line

pub mod carrier;
pub mod command;
pub mod connection;
pub mod control;
pub mod keys;
pub mod links;
pub mod proof;
pub mod report;
pub mod resolving;
pub mod top;
pub mod worker;
