//! Checks of this workspace that no public tool makes.

fn main() {}
