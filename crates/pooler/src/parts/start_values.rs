//! The values with which sessions begin.

pub(crate) mod basis;
pub mod parameters;
pub(crate) mod rebase;
