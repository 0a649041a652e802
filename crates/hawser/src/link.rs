//! `hawser link` and `[link.NAME]`, by [`hawser_link`].
//!
//! * [`links`] the ends that `hawser serve` runs, and connections of pools over them
//! * [`command`] the command line
//! * [`top`] what one is doing, live, in a terminal

pub mod command;
pub mod links;
pub mod top;
