//! A model of PostgreSQL and of its clients, in memory and virtual time.
//!
//! # Model
//! [`ModelServer`] is a cluster, [`ModelBackend`] one connection to it. Both speak protocol 3 in
//! the server's own order of messages and with its own words. [`client`] holds clients that compare
//! all that they receive with a private server of their own.
//!
//! # Invariants
//! Same bytes in, same bytes out: nothing depends on how the bytes are cut, on the wall clock or
//! on chance. What the model claims of PostgreSQL is checked against a real one.
//!
//! # Limits
//! The language is that of [`sql`]; no TLS, no passwords, no replication; errors bear severity,
//! SQLSTATE and message only.

pub mod backend;
pub mod catalog;
pub mod client;
pub mod cluster;
mod commit;
mod datum;
pub mod endpoint;
pub mod error;
mod execute;
pub mod fault;
pub mod frontend;
mod plan;
mod portal;
mod report;
pub mod session;
pub mod settings;
pub mod sql;
pub mod wire;

pub use backend::{Ending, ModelBackend};
pub use cluster::{ModelServer, ServerConfig};
pub use commit::ProcessId;
pub use error::{PgError, Severity};
pub use fault::Fault;
