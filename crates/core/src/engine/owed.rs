//! What is sent to a server is noted here: what it owes for it, and what it does to the pipeline that it
//! goes into.
//!
//! # Model
//! ```text
//!   Sync ──► Bind Execute Bind Execute ──► Sync      one implicit transaction of the client's
//!                        ▲
//!                        └── a Query of ours, or a Sync of ours behind an Execute, would commit the first half
//! ```
//! # Invariants
//! * no query of ours, and behind an Execute no Sync of ours, goes into a pipeline that a client has begun
//! * nothing but a Sync ends a pipeline in which settings travel ([`super::within`])
//!
//! Code that would break one of these is wrong. In debug builds, and so in the simulation, it panics.
//! Elsewhere the connection is *broken off*: what has been made for it is not written, nor anything
//! more, its client gets an error, and it is closed.

use super::backend::Backend;
use super::expect::Expect;
use super::{Socket, limits};

/// A pipeline of Bind, perhaps Describe, Execute and Sync.
#[derive(Clone, Copy, Debug)]
pub(super) struct PlainPipeline {
    /// Id of the shared statement.
    pub(super) statement: u64,
    /// Whether its portal is described.
    pub(super) describes: bool,
}

impl<S: Socket> Backend<S> {
    /// Notes what a message that is being sent owes.
    #[inline]
    pub(super) fn expect(&mut self, expect: Expect) {
        if self.ignoring {
            if expect != Expect::Sync {
                return;
            }
            self.ignoring = false;
        }
        if expect.ends_with_ready() {
            if self.unsynced && self.would_be_cut_by(expect) {
                self.break_off("a query of the pooler's would have ended its client's pipeline");
            }
            self.syncs_outstanding += 1;
            self.unbroken += 1;
            self.pipeline += 1;
            self.unsynced = false;
        } else {
            self.unsynced = true;
        }
        self.expected.push_back(expect);
    }

    /// Notes what a whole pipeline owes that is sent while nothing is outstanding: see
    /// [`super::plain`].
    #[inline]
    pub(super) fn expect_plain(&mut self, pipeline: PlainPipeline) {
        debug_assert!(self.expected.is_empty() && !self.unsynced && !self.ignoring);
        self.expected.push_back(Expect::Bind { statement: pipeline.statement });
        if pipeline.describes {
            self.expected.push_back(Expect::DescribePortal { noted: true });
        }
        self.expected.push_back(Expect::Execute);
        self.expected.push_back(Expect::Sync);
        self.executed_in = Some(self.pipeline);
        self.syncs_outstanding += 1;
        // Before it nothing was outstanding: no run of queries goes on.
        self.unbroken =
            if self.unbroken >= limits::UNBROKEN_QUERIES_MAX { 1 } else { self.unbroken + 1 };
        self.pipeline += 1;
    }

    /// Whether the pipeline under way must not be ended by this.
    fn would_be_cut_by(&self, expect: Expect) -> bool {
        expect.is_query_of_ours()
            || (expect == Expect::MadeSync && self.is_behind_execute())
            || (self.within.is_some() && !expect.ends_ignoring())
    }

    /// The pipeline under way has failed, or the server has committed it by itself: a Sync of ours
    /// commits nothing.
    pub(super) fn let_sync_end_pipeline(&mut self) {
        self.executed_in = None;
    }

    /// Our own books are wrong: nothing is written to it any more.
    #[cold]
    fn break_off(&mut self, why: &'static str) {
        #[cfg(not(test))] // the engine's own tests look at what becomes of it
        debug_assert!(!self.unsynced, "{why}: {:?}", self.expected);
        self.to_server.break_off(why);
    }
}
