//! Congestion control: which algorithm a destination needs, and what it gains there.
//!
//! A path that loses packets without being full is slow under the kernel's default, and another algorithm
//! (BBR) is several times as fast; on a path that is full it would be unfair. With `congestion = "auto"`,
//! one is told from the other by TCP_INFO of real traffic, the other algorithm is tried on some of the
//! connections, and stays where it delivered more. `hawser cc` compares algorithms with a far end by hand,
//! and applies what was found to a destination or the machine.
//!
//! ```text
//!   CongestionUsage::give(socket) ──► cc::auto ── TCP_INFO ──► tuner::chooser::Chooser
//!   (cc::usage; sockets by cc::usage::Tuned)  ◄── algorithm ───┘      │
//!                                                                     └─► tuner::event::Event, for the log
//!   hawser cc serve ◄══ cc::transfer ══► cc::bench ──► cc::figures, cc::page
//!   hawser cc list, apply, undo ──► cc::look, cc::report, cc::apply
//! ```
//! Begin at [`tuner`], which is pure and has the reasons; then [`cc::usage`] and [`cc::auto`].

pub mod cc;
pub mod tuner;
