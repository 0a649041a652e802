//! `hawser mptcp`, and MPTCP of the pooler itself, by [`hawser_multipath::mptcp`].
//!
//! * [`command`]: the command line
//! * [`usage`]: sockets that listen, connections to servers, and what fell back

pub mod command;
pub mod usage;
