//! Messages of ports that were given back.
//!
//! # Model       a program may send and leave: what it has sent goes on its way, also where another
//!               takes the port meanwhile, which waits for nothing of it. (Linux drops it:
//!               rds_send_drop_to, net/rds/send.c.) All of that together has a bound; a port that is
//!               given back beyond it takes with it what no connection has begun to carry. What is for a
//!               peer that has not been there for long is dropped
//! # Why not     no bound: a program that binds, sends to a host that is down, and leaves, again and
//!               again, would take all memory

mod steps;

/// What ports that were given back may have queued in all.
pub const LEAVING_BYTES_MAX: usize = 64 << 20;
