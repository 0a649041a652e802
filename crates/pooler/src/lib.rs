//! The pooler: thousands of clients on few server connections, and no application can tell.
//!
//! Everything here takes bytes and time and gives bytes and requests. Sockets, clocks, threads
//! and random numbers are arguments or traits, so that the very code that serves clients also
//! runs whole in a seeded simulation.
//!
//! ```text
//!  client ──► relay ──► lending: which server connection? ──► relay ──► server
//!               │                                               │
//!               └─► parts: what does the message do  ◄──────────┘ what must go before it,
//!                   to the session?                               what has it left behind?
//! ```
//! * [`wire`] the frontend/backend protocol: framing, builders, errors
//! * [`relay`] one event loop's work: bytes, their order, and the messages between loops. A byte from a client
//!   begins its way in `relay::events`, `relay::from_client` and `relay::plain`
//! * [`lending`] which client gets which server connection, and when: `lending::scheduler`
//! * [`parts`] what a session keeps beyond a transaction, a room for each kind
//! * [`session`] what the text of a statement does to a session, and settings as values
//! * [`queries`] which queries run, whose, and how long
//! * [`shares`] which places of a limit several poolers hold of each

pub mod hash;
pub mod ids;
pub mod lending;
pub mod parts;
pub mod queries;
pub mod relay;
pub mod session;
pub mod shares;
pub mod time;
pub mod wire;

#[cfg(test)]
use hawser_time::seeded;
