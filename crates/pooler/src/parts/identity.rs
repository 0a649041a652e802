//! Whose a session is: the user and the client of a server connection that several use.

pub(crate) mod client_identity;
pub mod hand_over;
pub(crate) mod ownership;
pub mod process_ids;
pub(crate) mod role;
