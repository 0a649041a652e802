//! Messages of released ports.
//!
//! # Model       a program may send and leave: its messages stay on their way, also if another
//!               takes the port meanwhile, which does not wait for them. (Linux drops it:
//!               rds_send_drop_to, net/rds/send.c.) All of that together has a bound; if a port is
//!               released beyond it, those of its messages that no connection has begun to carry
//!               are dropped. Messages for a peer that has been away for long are dropped
//! # Why not     no bound: a program that binds, sends to a host that is down, and leaves, again and
//!               again, would take all memory

mod steps;

/// The most that released ports may have queued in all.
pub const LEAVING_BYTES_MAX: usize = 64 << 20;
