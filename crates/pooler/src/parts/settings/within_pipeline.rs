//! Settings that are sent within the client's own pipeline.
//!
//! # Why
//! A query of their own before it (see [`crate::relay::inject`]) costs the server 7.6 us for two settings,
//! and both sides another send, wake-up and receive. Bound to a statement that the server keeps, in
//! the client's own pipeline, they cost the server 4.1 us and the rest nothing.
//!
//! # The trap
//! They are part of the client's transaction then: an error in its pipeline undoes them, and so
//! does a ROLLBACK after a BEGIN. A command that runs only outside of a transaction block fails
//! after anything else in its pipeline.
//!
//! # Model
//! So they are sent only with a pipeline that has come up to its Sync, and has only statements that
//! read and write rows ([`reads_or_writes_rows`]) without an effect on the session. Later messages
//! wait until its outcome is known. Until then there are two records of the settings in force:
//! those if the pipeline succeeds ([`crate::relay::backend::Backend::applied`]), and those if it fails,
//! which are the earlier ones. The server's reports meanwhile change both. The outcome chooses one:
//! nothing is put back.
//!
//! At the end of a transaction a server reports settings whose values differ from those it last
//! reported (`ReportChangedGUCOptions`, since PostgreSQL 14). A setting sent in this way that it
//! then does not report has its earlier value again: the client's own statements have set that.
//!
//! # The last
//! Everything else before a transaction (names that a function has missed, statements of PREPARE,
//! sequences, channels) is sent as queries, and a query ends the implicit transaction that a
//! pipeline has begun: between the settings and the pipeline it would commit them, and the books
//! would undo them with the pipeline's error. So they are written last before a pipeline
//! (`ClientMessage::open`), and [`crate::relay::Backend::request`] refuses anything that would end their
//! transaction (see [`crate::relay::record_request`]).
//!
//! # Which
//! Those that differ from client to client: `application_name`, `search_path` and custom names. Others
//! may have to be in force when the transaction begins (`default_transaction_isolation`,
//! `statement_timeout`).

mod steps;

use crate::session::commands::begins_with_any;
use crate::session::settings::{Change, Settings, is_custom};

/// Settings in flight within a client's pipeline.
#[derive(Debug)]
pub(crate) struct Within {
    /// The settings in force if the pipeline fails.
    if_failed: Settings,
    /// The settings that it sets.
    brought: Settings,
    /// Answers owed up to them: if no more are owed, nothing has been sent after them.
    ahead: usize,
    /// The pipeline has failed, and these settings with it.
    failed: bool,
    /// Which of [`REPORTED`] the server must report, and has not.
    unreported: [bool; REPORTED.len()],
}

/// Settings sent in this way that some or all servers report.
const REPORTED: [&[u8]; 2] = [b"application_name", b"search_path"];

/// Whether a setting can be set by the transaction that runs under it.
fn goes_within(change: &Change<'_>) -> bool {
    matches!(change.name(), b"application_name" | b"search_path") || is_custom(change.name())
}

/// Whether a text is a statement that needs no transaction of its own, by its first word.
fn reads_or_writes_rows(text: &[u8]) -> bool {
    const WORDS: [&[u8]; 6] = [b"select", b"insert", b"update", b"delete", b"values", b"with"];
    begins_with_any(text, &WORDS)
}
