//! Reliable datagrams: RDS over TCP, as Linux's rds_tcp speaks it.
//!
//! # Model
//! Messages of up to 1 MiB go from a port of one host to a port of another. Between two hosts there
//! are one to eight TCP connections, the *lanes*; on each of them one message comes after the other,
//! a header of 48 bytes and as many bytes as it says. A sender puts all messages of one port of its
//! own on one lane, so they stay in order.
//! ```text
//!   bytes ──► assembly ──► sequence numbers ──► port's queue ──► receive()
//!                 │ map        │ old and flagged: dropped
//!                 ▼            └ to port 0: a ping, answered; port 1: the handshake
//!            congestion
//!   send() ──► lane's queue ──► to_write() ──► bytes; kept until TCP has acknowledged the last one
//! ```
//! * [`header`] the 48 bytes, extension headers, the handshake in them
//! * [`assembly`] bytes of a connection to messages
//! * `awaited` what a kernel sends by its first lane before it knows the number of lanes
//! * [`congestion`] which ports of a host take no more
//! * [`hash`] which lane a port's messages go by
//! * [`lane`] one lane: its queue, its sequence numbers, its connection and when it is dialled again
//! * `numbers` which numbers have come by a lane
//! * `received` the same of a kernel whose connections may be of any lane
//! * [`peer`] a host and its lanes: how many there are, which lane a connection is
//! * [`stand_in`] which lanes a kernel does not take any more, and which carry their messages
//! * [`node`] this host: ports, peers, and what is asked of the world around, [`node::Request`]s
//!
//! Which lanes share a limit, and are dialled again from another source port, says [`hawser_multipath::paths::spread`].
//!
//! # Who dials
//! The smaller address does, numbers compared as IPv6 has them. A larger one that has something to say
//! *knocks*: it connects, is turned away, and the smaller one dials back.
//!
//! # What a peer announces
//! How many lanes it has, its generation (another one after a restart), and whether its source
//! ports name lanes: in the probe, a ping between port 1 and port 0, as kernels do. A Hawser says it
//! in the header of each congestion map too. That is the first message on each connection and is
//! outside the sequence, and kernels ignore extension headers there: so a Hawser knows before it
//! sends anything again whether the other one has restarted.
//!
//! # Invariants
//! * a lane's messages reach the peer's queues once and in order, however often its connection breaks,
//!   as long as neither end restarts
//! * what was sent to one start of a peer is never sent to the next one
//! * no queue here grows beyond a named bound, whatever a peer sends
//!
//! # Limits
//! A message that the peer's TCP has acknowledged is not one that its application has got: a host that
//! dies, or a kernel that resets a lane, takes those with it. No RDMA.

pub mod assembly;
mod awaited;
pub mod congestion;
pub mod hash;
pub mod header;
pub mod lane;
pub mod node;
mod numbers;
pub mod peer;
mod received;
pub mod stand_in;

#[cfg(test)]
mod tests;

/// The TCP port of RDS.
pub const TCP_PORT: u16 = 16_385;
