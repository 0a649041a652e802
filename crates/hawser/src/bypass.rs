//! `hawser bypass` and `[bypass]`: local TCP connections past the TCP/IP stack, by [`hawser_bypass`].
//!
//! * [`command`]: the command line
//! * [`usage`]: the pooler's own sockets

pub mod command;
pub mod usage;
