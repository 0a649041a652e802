//! Which queries run, whose, and how long: statistics by normalised statement.
//!
//! # Model   a text is reduced to its [`digest`](digest::digest): what differs between two executions of one statement
//!           (constants, parameters, comments, white space, letter case, the length of lists) is taken out.

//!           What is sent keeps a place in its loop's [`Queries`](table::Queries) in its entry of the queue
//!           of requests; where the entry is answered, the execution is counted there.
//! ```text
//!   Query, Bind ──► Tracker::of_text, of_statement ──► QueryRef ──► entry of the queue of requests
//!                                                                        │ CommandComplete, ReadyForQuery, an error
//!                              Queries::count ◄── Relay::query_ended ◄───┘
//! ```
//! # What counts   a Query, or an Execute of the extended protocol, once it has ended. Messages that the server
//!           ignored after an error count nothing; nor do Hawser's own.
//! # Time    from the moment when it was sent, or the one before it in its pipeline was answered, to the end of
//!           the answer. The wait for a server connection is the first query's after it.

pub(crate) mod counting;
pub mod digest;
pub mod durations;
mod steps;
pub mod table;
pub mod trace_parent;
pub mod tracking;
