//! The Hawser program as a library; `main.rs` is only its command line.

pub mod admin;
pub mod auth;
pub mod bypass;
pub mod cancel;
pub mod cc;
pub mod check;
pub mod cli;
pub mod config;
pub mod demo;
pub mod dial;
pub mod extension;
pub mod gates;
pub mod import;
pub mod lab_kernel;
pub mod lab_report;
pub mod limits;
pub mod link;
pub mod listeners;
pub mod logging;
pub mod login;
pub mod loops;
pub mod mailbox;
pub mod metrics;
pub mod mptcp;
pub mod peers;
pub mod phase;
pub mod pools;
pub mod process;
pub mod rds;
pub mod reactor;
pub mod resolve;
pub mod serve;
pub mod service;
pub mod shares;
pub mod socket;
pub mod spans;
pub mod status;
pub mod takeover;
pub mod tally;
pub mod threads;
pub mod tls;
pub mod top;
pub mod totals;
pub mod units;

/// What SHOW VERSION says on database `hawser`.
pub const VERSION: &str = concat!("Hawser ", env!("CARGO_PKG_VERSION"), " (console of PgBouncer)");
