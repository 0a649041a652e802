//! `hawser rds`, the command line of [`hawser_datagrams`].

pub mod command;
