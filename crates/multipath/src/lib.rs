//! Which connections to a host are worth having where several paths lead to it.
//!
//! A connection over several paths (MPTCP, a link between two Hawsers, lanes of RDS) carries more than one
//! of TCP only if its flows do not share a limit: which of them do is found by trial, with as few dials as
//! are enough, and the ones that add nothing are closed.
//!
//! ```text
//!   rates, round trips ──► paths::chooser::Chooser ──► paths::action::Action: dial, pause, close
//!   of each flow           (subflows of MPTCP, paths of a link)
//!                      ──► paths::spread ────────────► which lanes to dial again
//!                          (a fixed number: lanes of RDS)
//! ```
//! Begin at [`paths`]. Sockets are of those who use it: `hawser mptcp manage`, `hawser_link`,
//! `hawser_datagrams`.

pub mod paths;
