//! Wide area networks by description: one file, two ways to run it.
//!
//! # Model
//! A [`Description`] names hosts and the links between them. [`Network`] is what it does to
//! packets, as a pure function of the seed, the packets and their times. Two drivers feed it:
//! [`virtual_time`] with simulated packets, as fast as they can be computed, and
//! [`crate::namespaces`] with real ones, between real network namespaces.
//!
//! ```text
//!                    file or name ──► description ──► network (pure)
//!                                                      ▲         ▲
//!                  simulated packets, virtual time ────┘         └──── TUN devices, this clock
//! ```
//!
//! # Invariants
//! - no I/O, no clock, no randomness but the seed's: `now` is an argument
//! - the n-th packet that enters a direction of a path is lost, or late, by the seed and n alone
//!
//! # Why not
//! A simulator of its own beside an emulator of its own: they would agree only where this was
//! checked. Here both call the same functions, and only the times of packets can differ.

pub mod description;
pub mod direction;
pub mod flow;
pub mod limit;
pub mod loss;
pub mod named;
pub mod network;
pub mod outage;
pub mod parse;
pub mod quantity;
pub mod queue;
pub mod traffic;
pub mod virtual_time;

pub use description::Description;
pub use network::Network;
