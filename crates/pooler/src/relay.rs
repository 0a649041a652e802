//! One event loop's work: its clients, the backends lent to them, and the messages between loops.
//!
//! # Model
//! The host (an epoll loop, or the simulation) tells the engine which connections can be read or
//! written and which messages have come; the engine reads, decides and writes through
//! [`Socket`], and asks for what it cannot do itself through [`Host`]. The same code runs in
//! production and, seeded, in virtual time.
//!
//! # Who owns what
//! * a client belongs to one engine for all its life in a process; to another process it goes with all that
//!   it is: see [`succession`]
//! * a backend belongs to the client it is lent to, to the pool while idle, or to a message on
//!   its way to a client of another loop: it is moved, never shared
//! * its socket is in the epoll set of one loop, its *home*; a loop that takes an idle backend
//!   of another home moves it from that set to its own
//!
//! # Invariants
//! * a backend has at most one client; a client at most one backend
//! * a backend goes back to the pool only when the server has answered everything that was sent
//!   to it, reports no transaction, and no message is half sent in either direction
//! * buffers are bounded: see [`limits`]
//! * what one event may lead to is bounded, however much a connection has to say: see `unread_input`
//! * work on one client never serves another: what it leads to elsewhere waits in a queue, see `work`
//!
//! # Order of work when a transaction ends
//! The next waiter's first message is sent to the server before the finished client is answered:
//! the server, which is the slowest, starts soonest.

mod answer;
pub mod backend;
pub(crate) mod bulk_orders;
mod cleanup;
pub mod client;
pub mod client_info;
pub mod effects;
mod events;
pub(crate) mod from_client;
pub(crate) mod from_server;
pub(crate) mod halt;
pub(crate) mod host;
mod housekeeping;
pub(crate) mod inject;
pub mod inside;
pub mod limits;
pub mod message;
mod page;
pub(crate) mod pending_bytes;
mod pending_session;
mod plain;
pub(crate) mod record_request;
mod recover;
pub(crate) mod request_queue;
pub(crate) mod sent_before;
pub(crate) mod side_effects;
pub(crate) mod socket;
pub(crate) mod start_again;
pub(crate) mod statistics;
pub mod succession;
pub(crate) mod table;
pub(crate) mod timers;
mod to_server;
pub(crate) mod unread_input;
mod vacancy;
mod work;

pub use crate::ids::ServerAddressId;
pub use backend::{Backend, BackendSeed};
pub use client_info::{CancelKey, ClientAbout, ClientSecret, ListenLost, PeerAddress, PoolMode};
pub use host::{CancelRequest, Host};
pub use message::{NewClient, ToLoop};
pub use socket::{Line, Mptcp, Readiness, Socket, Token};
pub use table::Engine;

#[cfg(test)]
mod tests;
