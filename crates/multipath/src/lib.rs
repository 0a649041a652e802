//! Several paths to one host: which connections are worth having, and Multipath TCP on this machine.
//!
//! A connection over several paths (MPTCP, a link between two Hawsers, lanes of RDS) carries more than one
//! of TCP only if its flows do not share a limit. Which of them do is found by trial, with as few dials as
//! are enough; the ones that add nothing are closed. And programs that know nothing of MPTCP get it, and the
//! pooler itself.
//!
//! ```text
//!   rates, round trips ──► paths::chooser::Chooser ──► paths::action::Action: dial, pause, close
//!   of each flow           (subflows of MPTCP, paths of a link)
//!                      ──► paths::spread ────────────► which lanes to dial again (RDS)
//!
//!   hawser mptcp status, setup, undo ──► mptcp::look, mptcp::report, mptcp::plan, mptcp::apply
//!                run -- COMMAND ───────► mptcp::run
//!                manage ───────────────► mptcp::manage ── paths::chooser ──► the kernel's path manager
//!   hawser serve, path_manager ────────► mptcp::keeper: that in a process of its own
//! ```
//! Begin at [`paths`], which is pure and has the reasons, or at [`mptcp`] for what this machine does.

pub mod mptcp;
pub mod paths;
