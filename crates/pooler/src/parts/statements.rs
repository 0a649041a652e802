//! Prepared statements of the extended protocol: a client's names, the statements that clients share, those of a server connection.

pub(crate) mod aborted;
pub(crate) mod bind;
pub(crate) mod client_names;
pub mod description;
pub(crate) mod fit;
pub(crate) mod journal;
pub(crate) mod of_client;
pub(crate) mod of_server;
pub(crate) mod own_named;
pub(crate) mod own_names;
pub(crate) mod parse;
pub(crate) mod prepare;
pub(crate) mod prepared_on_server;
pub(crate) mod renaming;
pub(crate) mod replay;
pub(crate) mod schema_epoch;
pub mod shared;
pub(crate) mod unnamed;
