//! Chooses the congestion control algorithm for each destination, from TCP_INFO of real traffic.
//!
//! # Model
//! ```text
//!            two cuts of the window without a queue          candidate >= 1.2 x incumbent
//!  Watching ──────────────────────────────────────► Trial ──────────────────────────────► Settled
//!     ▲                                               │  less: the next candidate, or none     │
//!     └──────────── nothing was learnt ───────────────┘                                        │
//!     ▲                                    a time has passed                                   │
//!     └────────────────────────────────────────────────────────────────────────────────────────┘
//! ```
//! * [`sample`] what the kernel says of a flow at one moment
//! * [`limit`] why a flow is as slow as it is
//! * [`response`] what rate a loss-based algorithm reaches at a loss rate and a round trip
//! * [`trial`] incumbent and candidate compared by acknowledged bytes over time
//! * [`destination`] prefixes of addresses, and what is remembered of one
//! * [`chooser`] all flows and destinations: samples in, changes and their reasons out
//!
//! # Invariants
//! * a flow that is short, local, or limited by anything but loss is never touched
//! * what is kept has delivered [`trial::GAIN_MIN`] times the bytes of what it replaces
//! * each change of a destination is one [`event::Event`] with its figures
//!
//! # Why not
//! The loss rate alone: every loss-based flow obeys its response function, on a congested queue too.
//! A cut of the window tells more: with the round trip at its least there was no queue that could
//! have overflowed.
//!
//! # Limits
//! TCP_INFO's busy and limited times need Linux 4.10. A path whose round trip varies by more than
//! a tenth without a queue (mobile networks) looks queued, and is left alone.

pub mod algorithm;
pub mod chooser;
pub mod destination;
pub mod event;
pub mod limit;
pub mod response;
pub mod sample;
pub mod trial;

#[cfg(test)]
mod path;
#[cfg(test)]
mod tests;
