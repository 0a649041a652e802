//! The Hawser program as a library; `main.rs` is only its command line.

pub mod auth;
