//! The Hawser program as a library; `main.rs` is only its command line.

pub mod auth;
pub mod config;
pub mod import;
