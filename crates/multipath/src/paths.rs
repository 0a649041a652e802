//! Chooses the subflows of a connection that is carried over several: which to dial, keep and close.
//!
//! # Model
//! Flows are hashed to unknown limits: routers hash ports, and a dial is a random draw. A flow is
//! worth keeping if the whole would carry less without it.
//! ```text
//!              bulky               enough dials for what was found        no candidates left
//!  Watching ─────────► Dialling ──────────────────────────────► Pruning ──────────────────► Settled
//!     ▲                 ▲   │ a batch, a time to settle,         │  ▲ some are paused; if    │
//!     │                 └───┘ a time to measure                  └──┘ nothing is lost, closed│
//!     ├───────────── nothing is sent any more ─────────────────────────────────────────────◄─┤
//!                       ▲                                                                    │
//!                       └────────── a third of the rate is lost, or a time has passed ◄──────┘
//! ```
//! * [`draws`] how many dials are enough
//! * [`meter`] rates between two looks
//! * [`health`] which flows are dead or silent
//! * [`trial`] what is paused together, and what that says
//! * [`spread`] which of a fixed number of lanes share a limit and are dialled again, where each carries what
//!   no other may (RDS)
//! * [`chooser`] the states above; in it the search, and how flows that are dead are ended: looks in, [`action::Action`]s and [`action::Event`]s out
//!
//! # Invariants
//! * the last open flow is never closed, and none while nothing else carries data
//! * what is closed for sharing another's limit was paused first, and the whole kept its rate
//! * an end that accepted dials nothing
//!
//! # Why not
//! Closing the slowest and looking: of a flow that had a limit to itself, that limit must be drawn
//! again, and 22 draws find 8 of 8. A paused flow (MP_PRIO, RFC 8684 section 3.3.8) is resumed in
//! half a round trip. Choosing by rates alone: limits may be unequal, and others' flows use them too.
//! Judging by what the whole gains and loses: beside a foreign flow each further one of ours gains.

pub mod action;
pub mod chooser;
pub mod draws;
pub mod health;
pub mod meter;
pub mod spread;
pub mod trial;

#[cfg(test)]
mod tests;
