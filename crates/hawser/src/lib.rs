//! The Hawser program as a library; `main.rs` is only its command line.

pub mod auth;
pub mod config;
pub mod dial;
pub mod limits;
pub mod loops;
pub mod process;
pub mod resolve;
pub mod socket;
pub mod tls;
