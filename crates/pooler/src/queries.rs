//! Which queries run, whose, and how long: statistics by normalised statement.
//!
//! # Model   a text is reduced to its [`digest`](digest::digest): what differs between two executions of one statement
//!           (constants, parameters, comments, white space, letter case, the length of lists) is taken out.

pub mod digest;
