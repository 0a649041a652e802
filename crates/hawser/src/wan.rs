//! `hawser wan`: from a slow line to a link over it, in three commands.
//!
//! # Model
//! ```text
//!   near (dials)                                     far (accepts)
//!   wan setup HOST ── measures ──────────────────►   a refusal, or `hawser cc serve`
//!        │ writes its half, and link-NAME.far
//!        └── scp ────────────────────────────────►   wan accept link-NAME.far: writes its half
//!   wan check ── over the link ──────────────────►   PostgreSQL
//! ```
//! * [`command`] the command line
//! * [`line`](mod@line) what the line is: measured, or given
//! * [`half`] what each end is given: keys, arguments or a section of hawser.toml, a unit
//! * [`written`] files, all or none
//! * [`check`] whether it works
//!
//! # Invariants
//! * no file that is there is replaced; a configuration that is added to is kept as it was beside it
//! * no key is in an argument of a process
//!
//! # Why not
//! A key pair that never leaves its host, for the far end, too: that is a second file, which must come back. The
//! pair is of this link alone, and only this near end trusts it: who has taken it from the near end has that already.

pub mod check;
pub mod command;
pub mod half;
pub mod line;
pub mod written;
