//! What functions do to the session that calls them.

pub mod census;
pub mod known;
pub mod variables;
