//! Reliable datagrams for programs: RDS over TCP without the kernel's module and without root.
//!
//! Messages of up to 1 MiB between ports of two hosts, once and in order, over one to eight TCP connections;
//! at the other end may be a Linux kernel (rds_tcp) or another Hawser.
//!
//! ```text
//!   a program in Rust ────────────────────► endpoint::Endpoint: bind, send, receive, turn
//!   any program ── unix socket ─► proxy::Proxy ─┘   │ one thread, an epoll set of its own
//!   hawser rds ping, stress ─► ping, stress ────┘   ▼
//!                                    proto::node::Node ──► lanes: TCP connections ──► the peer's Node
//! ```
//! [`proto`] is all of the protocol, without a socket or a clock: begin at [`proto::node`]. [`endpoint`] does
//! for it what it asks for: it is what programs use. [`info`] shows what one is doing.

pub mod endpoint;
pub mod info;
pub mod ping;
pub mod proto;
pub mod proxy;
pub mod stress;

pub use endpoint::{Endpoint, Options, PortEvent};
