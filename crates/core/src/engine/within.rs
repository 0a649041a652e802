//! Settings that go to the server within the client's own pipeline.
//!
//! # Why
//! A query of its own ahead (see [`super::bind`]) costs the server 7.6 us for two settings, and both
//! sides one more send, wake-up and receive. Bound to a statement that the server keeps, in the
//! client's own pipeline, they cost it 4.1 us and nobody anything else.
//!
//! # The trap
//! They are part of the client's transaction then: an error in its pipeline takes them back, and so
//! does a ROLLBACK after a BEGIN. A command that runs only outside of a transaction block fails
//! behind anything else in its pipeline.
//!
//! # Model
//! So only a pipeline goes with them that is here to its Sync, and has nothing but statements that
//! read and write rows ([`reads_or_writes_rows`]) without an effect on the session. What comes after it waits
//! until it is known how it has ended. Until then there are two records of what is in force: what is if the
//! pipeline works ([`super::backend::Backend::applied`]), and what is if it fails, which is what was before.
//! What the server reports meanwhile goes into both. Its end chooses one: nothing is put back.
//!
//! A server reports at the end of a transaction what has another value than it has last reported
//! (`ReportChangedGUCOptions`, since PostgreSQL 14). A setting that was brought so, and of which it then
//! says nothing, has the value from before again: the client's own statements have set that.
//!
//! # The last
//! What else goes before a transaction (names that a function has missed, statements of PREPARE,
//! sequences, channels) are queries, and a query ends the implicit transaction that a pipeline has begun:
//! between the settings and the pipeline it would commit them, and the books would take them back with the
//! pipeline's error. So they are the last that is written before a pipeline (`ClientMessage::open`), and
//! [`super::Backend::request`] refuses anything that would end their transaction (see [`super::owed`]).
//!
//! # Which
//! Those that differ from client to client: `application_name`, `search_path` and custom names. Others
//! may have to be in force when the transaction begins (`default_transaction_isolation`,
//! `statement_timeout`).

mod steps;

use crate::session::commands::begins_with_any;
use crate::session::settings::{Change, Settings, is_custom};

/// Settings under way within a client's pipeline.
#[derive(Debug)]
pub(super) struct Within {
    /// What is in force if the pipeline fails.
    if_failed: Settings,
    /// What it brings.
    brought: Settings,
    /// Answers owed up to them: if it is all that is owed, nothing has been sent after them.
    ahead: usize,
    /// The pipeline has failed, and they with it.
    failed: bool,
    /// Of [`REPORTED`], what the server has to report, and has not.
    untold: [bool; REPORTED.len()],
}

/// Settings that go so and that servers report, some of them or all.
const REPORTED: [&[u8]; 2] = [b"application_name", b"search_path"];

/// Whether a setting may be set by the transaction that is to run under it.
fn goes_within(change: &Change<'_>) -> bool {
    matches!(change.name(), b"application_name" | b"search_path") || is_custom(change.name())
}

/// Whether a text is a statement that needs no transaction of its own, by its first word.
fn reads_or_writes_rows(text: &[u8]) -> bool {
    const WORDS: [&[u8]; 6] = [b"select", b"insert", b"update", b"delete", b"values", b"with"];
    begins_with_any(text, &WORDS)
}
