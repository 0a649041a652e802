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

/// What is sent whole while nothing is outstanding: see [`super::plain`].
#[derive(Clone, Copy, Debug)]
pub(super) enum PlainPipeline {
    /// Bind, perhaps Describe, Execute and Sync, of the shared statement with this id.
    Named { statement: u64, describes: bool },
    /// The same of the unnamed statement, with its Parse. `serial`: as for [`Expect::Parse`].
    Unnamed { serial: u32, describes: bool },
    /// A Query.
    Query,
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

    /// Notes what a whole pipeline, or a Query, owes that is sent while nothing is outstanding: see
    /// [`super::plain`].
    #[inline]
    pub(super) fn expect_plain(&mut self, pipeline: PlainPipeline) {
        debug_assert!(self.expected.is_empty() && !self.unsynced && !self.ignoring);
        let described = match pipeline {
            PlainPipeline::Named { statement, describes } => {
                self.expected.push_back(Expect::Bind { statement });
                describes.then_some(true)
            }
            PlainPipeline::Unnamed { serial, describes } => {
                self.expected.push_back(Expect::Parse { serial, statement: 0 });
                self.expected.push_back(Expect::Bind { statement: 0 });
                describes.then_some(false)
            }
            PlainPipeline::Query => None,
        };
        if let Some(noted) = described {
            self.expected.push_back(Expect::DescribePortal { noted });
        }
        if let PlainPipeline::Query = pipeline {
            self.expected.push_back(Expect::Query);
        } else {
            self.expected.push_back(Expect::Execute);
            self.expected.push_back(Expect::Sync);
            self.executed_in = Some(self.pipeline);
        }
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
