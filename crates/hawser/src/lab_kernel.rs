//! `hawser lab --kernel`: the laboratory in a kernel of its own, in virtual time.
//!
//! # Model
//! ```text
//!   host                                        user-mode Linux, an ordinary process
//!   plan.json, *.toml  ──► exchange ──►         init: `lab inside`
//!   boot ── console ◄── "hawser| " lines ──     for each network: lab up, cc serve, cc bench --json
//!   outcome ◄── exchange ◄── *.json ──          power off
//! ```
//! Its root is the host's file system, read-only, so this same program runs inside. Its clock stands
//! while something computes, and jumps to the next timer when all wait (`time-travel=inf-cpu`): a slow
//! machine changes no figure, and a minute in which little is sent takes a second. It has all of Linux's
//! congestion control algorithms, whatever the host's kernel has (`make lab-kernel`).
//!
//! * [`image`]: where the kernel is; [`boot`]: running it; [`inside`]: its only program; [`outcome`]: what
//!   came of it
//!
//! # Why not
//! netem inside: the emulator is the one of `hawser lab up`, so that
//! a seed loses the same packets here and there, and all that descriptions know works.
//!
//! # Limits
//! One processor. In virtual time a look at the clock costs 256 ns of it, and nothing else costs any: a
//! program that spins (iperf3) crawls, and what a processor takes for its work is not seen.

pub mod boot;
pub mod image;
pub mod inside;
pub mod outcome;

use serde::{Deserialize, Serialize};

/// What is to be done inside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// What is compared over; the description of each is in the exchange, as [`description_file`].
    pub networks: Vec<Network>,
    /// Algorithms; empty for all.
    pub algorithms: Vec<String>,
    /// Connections at a time.
    pub flows: Vec<u32>,
    /// Seconds of each transfer.
    pub seconds: u32,
    /// Rounds.
    pub rounds: u32,
    /// What the networks' chance follows from.
    pub seed: u64,
    /// Whether the laboratory is proved, and nothing is compared.
    pub is_selftest: bool,
    /// Between the two ends of a comparison.
    pub token: String,
}

/// A network, and who sends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    /// The description's name.
    pub name: String,
    /// Its last host.
    pub far: String,
}

/// How it ended inside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    /// The exit code for the command.
    pub code: u8,
    /// Why it is not 0.
    pub message: String,
}

/// The plan in the exchange.
pub const PLAN_FILE: &str = "plan.json";
/// How it ended, in the exchange.
pub const END_FILE: &str = "end.json";
/// What was proved, in the exchange: as `lab selftest --json`.
pub const SELFTEST_FILE: &str = "selftest.json";
/// What a line of the console begins with that is for the user, not the kernel's own.
pub const MARK: &str = "hawser| ";

/// A description in the exchange.
#[must_use]
pub fn description_file(network: usize) -> String {
    format!("network-{network}.toml")
}

/// What was compared over it, in the exchange: a `Comparison` of `cc bench`.
#[must_use]
pub fn comparison_file(network: usize) -> String {
    format!("comparison-{network}.json")
}

/// What the network did meanwhile, in the exchange.
#[must_use]
pub fn report_file(network: usize) -> String {
    format!("report-{network}.json")
}
