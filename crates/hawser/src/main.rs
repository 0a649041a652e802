//! Command line of Hawser.

fn main() {}
