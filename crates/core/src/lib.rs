//! Hawser's state machines, without the world around them.
//!
//! Everything here takes bytes and time and gives bytes and requests. Sockets, clocks, threads
//! and random numbers are arguments or traits, so that the very code that serves clients also
//! runs whole in a seeded simulation.
//!
//! * [`wire`] the frontend/backend protocol: framing, builders, errors
//! * [`session`] what a session is made of, and how its parts move or pin
//! * [`pool`] who gets which backend, and when
//! * [`engine`] one event loop's work: clients, backends, and the messages between them
//! * [`listen`] one connection to a server that listens for all clients of a pool
//! * [`shares`] which places of a limit several poolers hold of each

pub mod engine;
pub mod hash;
pub mod ids;
pub mod listen;
pub mod pool;
pub mod session;
pub mod shares;
pub mod time;
pub mod wire;

#[cfg(test)]
use hawser_time::seeded;
