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
//! * what one event may lead to is bounded, however much a connection has to say: see `again`
//!
//! * work on one client never serves another: what it leads to elsewhere waits in a queue, see `work`
//!
//! # Order of work when a transaction ends
//! The next waiter's first message is sent to the server before the finished client is answered:
//! the server, which is the slowest, starts soonest.

pub mod about;
mod again;
mod ahead;
mod answer;
mod at_stake;
pub mod backend;
mod bind;
pub mod census;
mod cleanup;
pub mod client;
mod client_identity;
mod drawn;
pub mod effects;
mod ended;
mod errand;
mod events;
mod from_client;
mod from_server;
mod halt;
pub mod hand_over;
mod host;
mod housekeeping;
mod journal;
pub mod limits;
mod listener;
mod listening;
pub mod message;
mod names;
mod naming;
mod noted;
mod owed;
mod page;
mod pending_bytes;
mod pending_reset;
mod pending_session;
mod pinned;
mod plain;
mod process_ids;
mod rebase;
mod recover;
mod replay;
mod request_queue;
mod restore;
mod server_unnamed;
mod session_report;
mod socket;
mod sql_statement;
pub mod succession;
mod table;
mod timeouts;
mod to_server;
mod unverified;
mod vacancy;
mod wheel;
mod within;
mod work;

pub use crate::ids::ServerAddressId;
pub use about::{CancelKey, ClientAbout, ClientSecret, ListenLost, PeerAddress, PoolMode};
pub use backend::{Backend, BackendSeed};
pub use host::{CancelRequest, Host};
pub use message::{NewClient, ToLoop};
pub use process_ids::{
    OwnProcessIds, PEERS_MAX, PROCESS_ID_FIRST, PROCESS_ID_LAST, peer_of_process,
};
pub use socket::{Mptcp, Readiness, Socket, Token};
pub use table::Engine;

#[cfg(test)]
mod tests;
