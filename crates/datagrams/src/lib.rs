//! Reliable datagrams for programs: RDS over TCP without the kernel's module and without root.
//!
//! Messages of up to 1 MiB between ports of two hosts, once and in order, over one to eight TCP connections;
//! at the other end may be a Linux kernel (rds_tcp) or another Hawser.
//!
//! ```text
//!   send() ──► proto::node::Node ──► lanes: TCP connections ──► Node ──► a port's queue ──► receive()
//! ```
//! [`proto`] is all of the protocol, without a socket or a clock: begin at [`proto::node`].

pub mod proto;
