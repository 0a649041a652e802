//! Settings: what a client has set, what a server connection has, and the statements that bring the one to the other.

pub(crate) mod applied;
pub(crate) mod apply;
pub(crate) mod custom_names;
pub(crate) mod pending_reset;
pub(crate) mod restore;
pub(crate) mod setters;
pub(crate) mod timeouts;
pub(crate) mod within_pipeline;
