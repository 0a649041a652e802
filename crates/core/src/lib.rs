//! Hawser's state machines, without the world around them.
//!
//! Everything here takes bytes and time and gives bytes and requests. Sockets, clocks, threads
//! and random numbers are arguments or traits, so that the very code that serves clients also
//! runs whole in a seeded simulation.
pub mod session;
