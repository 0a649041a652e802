//! System calls that Hawser makes, each with its error and its minimum kernel version.

pub mod process;
pub mod stream;
