//! What a session keeps beyond a transaction: a room for each kind.
//!
//! A part has its half of a client (what the session is to be) and its half of a server connection (what has been
//! applied to it), and knows how the one comes to the other: by a difference that is sent before the client's
//! message, or by a pin, which leaves the server connection to its client.
//!
//! | part | what it keeps | on another server connection |
//! |---|---|---|
//! | [`settings`] | SET, SET LOCAL, RESET, timeouts | the difference is sent |
//! | [`start_values`] | the values with which sessions begin | as above, from those at the client's login |
//! | [`statements`] | prepared statements of the protocol | shared by clients, parsed where one is missing |
//! | [`sql_prepare`] | those of SQL's PREPARE | prepared again |
//! | [`listen`] | LISTEN, NOTIFY | one connection listens for all clients of a pool |
//! | [`plans`] | the plans of functions | discarded where they may differ |
//! | [`identity`] | the user, the client's address and process id | handed over to the next, with the extension |
//! | [`sequences`] | currval, lastval | discarded, or pins for a while |
//! | [`functions`] | what functions do, by their sources | decides for the other parts |
//! | [`report`] | what a server with the extension says of a session | decides in place of the texts |
//! | [`rules`] | nothing: what the operator refuses, bounds or logs | as on any other |
//! | [`pins`] | temporary tables, session locks, cursors WITH HOLD ... | pins |

pub mod functions;
pub mod identity;
pub(crate) mod listen;
pub mod pins;
pub(crate) mod plans;
pub mod report;
pub mod rules;
pub(crate) mod sequences;
pub(crate) mod settings;
pub(crate) mod sql_prepare;
pub mod start_values;
pub mod statements;
