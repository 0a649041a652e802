//! RESET, DISCARD, DEALLOCATE ALL and UNLISTEN * in flight: how they will change the books.
//!
//! # Model
//! ```text
//!   sent ──► pending ── its pipeline has ended ──► done
//!               │  └─── has failed ─────────────► nothing
//!               └ CommandComplete of DISCARD ALL, DEALLOCATE ALL ──► done, even if a later statement fails
//! ```
//! The books change at the end of the pipeline in which they were sent: an error undoes a RESET.
//! DISCARD ALL commits at once (`PreventInTransactionBlock`, xact.c), and DEALLOCATE ALL is not
//! transactional (`DropAllPreparedStatements`, prepare.c).
//!
//! # Invariant
//! While there is one, the client's later messages wait, except those of the same pipeline.

mod steps;

use crate::relay::effects::Resetting;
use crate::relay::request_queue::RequestQueue;
use crate::session::part::PartSet;

/// A DISCARD ALL.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum DiscardAll {
    No,
    /// It is in flight, and ends these pins; those made after it stay.
    Pending(PartSet),
    /// It has succeeded.
    Done,
}

/// What is in flight of one pipeline.
#[derive(Debug)]
pub(crate) struct PendingReset {
    /// The pipeline at whose end it is settled.
    settles_in: u64,
    /// Settings that are reset to their start values.
    resetting: Resetting,
    /// Settings that are SET after such a RESET, in the same text.
    set_again: Vec<Box<[u8]>>,
    /// All prepared statements are removed.
    forgets_statements: bool,
    discards_all: DiscardAll,
    /// LISTEN pins no more.
    unlistens: bool,
}

impl PendingReset {
    fn new(pipeline: u64) -> Self {
        Self {
            settles_in: pipeline,
            resetting: Resetting::No,
            set_again: Vec::new(),
            forgets_statements: false,
            discards_all: DiscardAll::No,
            unlistens: false,
        }
    }

    fn is_empty(&self) -> bool {
        self.resetting == Resetting::No
            && !self.forgets_statements
            && self.discards_all == DiscardAll::No
            && !self.unlistens
    }

    /// Whether the server has come to its pipeline.
    pub(crate) fn has_come(&self, requests: &RequestQueue) -> bool {
        requests.has_come_to(self.settles_in)
    }

    /// Its end was sent before its effects were known.
    pub(crate) fn was_ended_before(&mut self, pipeline: u64) {
        self.settles_in = self.settles_in.min(pipeline.saturating_sub(1));
    }

    /// Whether settings are reset to their start values.
    pub(crate) fn resets(&self) -> bool {
        self.resetting != Resetting::No
    }

    /// Whether a DISCARD ALL is part of it.
    pub(crate) fn discards_all(&self) -> bool {
        self.discards_all != DiscardAll::No
    }

    /// The pins that a DISCARD ALL ends, which may still fail.
    pub(crate) fn ends(&self) -> PartSet {
        match self.discards_all {
            DiscardAll::Pending(ends) => ends,
            DiscardAll::No | DiscardAll::Done => PartSet::EMPTY,
        }
    }
}
