//! `hawser bypass`: local TCP connections past the TCP/IP stack.
//!
//! # Model
//! ```text
//!   run -- COMMAND ──► cgroup hawser-bypass/run-PID ─┐
//!   serve            ──► ports, own connections ─────┴─► hawser_sys::bypass, pinned in bpffs
//!   status, off      ──► the pins, whichever process made them
//! ```
//! * [`command`]: the command line
//! * [`place`]: control groups, pins and the lock
//! * [`run`]: a program and its children
//! * [`selftest`]: whether this kernel does it right
//! * [`usage`]: the pooler's own sockets

pub mod command;
pub mod place;
pub mod run;
pub mod selftest;
pub mod usage;
