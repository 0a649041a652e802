//! Which congestion control a destination needs.
//!
//! A path that loses packets without being full is slow under the kernel's default, and another algorithm
//! (BBR) is several times as fast; on a path that is full it would be unfair. [`tuner`] tells one from the
//! other by TCP_INFO of real traffic, tries the other algorithm on some of the connections, and keeps it
//! where it has delivered more.
//!
//! ```text
//!   TCP_INFO of each flow ──► tuner::sample::Sample ──► tuner::chooser::Chooser ──► algorithm of a flow
//!                                                          │ for each destination
//!                                                          └─► tuner::event::Event, for the log
//! ```
//! Begin at [`tuner`].

pub mod tuner;
