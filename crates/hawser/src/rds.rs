//! Reliable datagrams for programs: RDS over TCP without the kernel's module and without root.
//!
//! * [`endpoint`] sockets and time for [`hawser_datagrams::proto`]: the library
//! * [`command`] `hawser rds`, the command line
//! * [`ping`], [`stress`] what rds-ping and rds-stress do
//! * [`proxy`] datagrams for any local program, by a unix socket; [`info`] what one is doing
//!
//! # Why here
//! It needs what this crate has already (core and sys) and nothing else, so a crate of its own would
//! change no set of dependencies.

pub mod command;
pub mod endpoint;
pub mod info;
pub mod ping;
pub mod proxy;
pub mod stress;

pub use endpoint::{Endpoint, Options, PortEvent};
