//! `hawser mptcp`: Multipath TCP on this machine.
//!
//! # Model
//! ```text
//!   kernel ── look ──► report ──► text | JSON          status
//!     ▲                  └─ reason: why only one subflow
//!     └── plan ◄── what is asked for, what is there     setup, undo
//! ```
//! * [`look`]: reads everything once
//! * [`report`]: what is shown of it
//! * [`reason`]: why a connection has one subflow, in words
//! * [`plan`]: what `setup` will do, and `undo`; pure
//! * [`record`]: what `setup` has made
//! * [`apply`]: does it, or says it
//! * [`run`]: programs as they are
//! * [`manage`]: opens, replaces and closes subflows while connections last
//! * [`keeper`]: that within `hawser serve`
//! * [`others`]: other programs that manage
//!
//! # Limits
//! All of it is of the network namespace in which the command runs.

pub mod apply;
pub mod keeper;
pub mod look;
pub mod manage;
pub mod others;
pub mod plan;
pub mod programs;
pub mod reason;
pub mod record;
pub mod report;
pub mod run;
