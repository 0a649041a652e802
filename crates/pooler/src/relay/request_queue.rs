//! The requests that a server has not answered yet, and the protocol's rules of their answers.
//!
//! # Primer
//! A server reads messages one by one and answers them in that order. So one queue with an entry
//! for each message that is answered shows what the server's next message is about:
//! * **Query** and FunctionCall: anything, then ReadyForQuery. An error ends them early, and
//!   ReadyForQuery comes all the same.
//! * **Parse, Bind, Describe, Execute, Close**: one answer each, and no ReadyForQuery. Those up to the
//!   next Sync are a *pipeline*, one transaction unless something in it says otherwise.
//! * **Sync** ends a pipeline: ReadyForQuery.
//! * **An error** of a message of a pipeline answers that message. The server then *skips to Sync*:
//!   it reads and ignores all messages up to the next Sync, including a Query, and answers only
//!   that (`ignore_till_sync`, postgres.c).
//! * **CopyInResponse** answers a Query or an Execute: the server wants data, and reads and ignores
//!   Flushes and Syncs within it (`CopyGetData`, copyfromparse.c). CopyDone or CopyFail ends the
//!   data, and CommandComplete or an error the copy. A message that no copy reads (a Query, say)
//!   fails it.
//! * **ParameterStatus, NoticeResponse, NotificationResponse** come at any time and answer nothing.
//!
//! Messages that Hawser answers in the server's place have entries as well, so that such an answer
//! keeps its place among the others (traps 4 and 5), and so have messages of Hawser's own, whose
//! answers go to no client. A message of the server's that does not fit the first entry means that
//! order or framing is lost: the connection is closed (trap 14).
//!
//! # States
//! For what is sent ([`Position`]):
//! ```text
//!                  Parse, Bind, Describe, Execute, Close
//!   Between ───────────────────────────────────────────────► InPipeline
//!      ▲ ◄──────────────── Sync, Query ─────────────────────────┘ │ error, and no Sync is in flight
//!      │                                                          ▼
//!      └──────────────────────── Sync ─────────────────────── SkippingToSync   nothing else has an entry
//! ```
//! For a copy ([`CopyIn`], which decides what becomes of its Syncs):
//! ```text
//!   No ──► Reading ──────────────────────────────► Ended ──► No     CommandComplete, ReadyForQuery, or
//!             │  CopyDone, CopyFail                   ▲             an error, after which Syncs are in doubt
//!             └──► TakenAsFailed ─────────────────────┘
//!        a Query, a Parse ...      its client leaves
//! ```
//! For answers that may or may not come ([`InDoubt`]): a copy has failed, and it cannot be seen
//! whether it had read the Syncs within its data before that. A ReadyForQuery that fits no entry
//! answers one of these.
//!
//! # Invariants
//! * as many ReadyForQuery are outstanding as entries end with one
//! * while the server skips to Sync, there is no entry: ignored messages have none, and a Sync ends
//!   the state
//! * a pipeline's number is never reused
//!
//! # Limits
//! The queue has no bound of its own: its owner sends no more while it [`RequestQueue::is_full`].

mod change;
mod copy_in;
mod entries;
mod entry;
mod request;
#[cfg(test)]
mod tests;

use crate::queries::table::QueryRef;
use crate::relay::limits;
use crate::relay::request_queue::copy_in::CopyIn;
use crate::relay::request_queue::entries::Entries;
use crate::wire::build;
pub(crate) use change::{Change, Comparing, Refusal, StoodInFor};
pub(crate) use entry::{Describes, Entry, PlainOwed, PlainPipeline};
pub(crate) use request::Request;

/// The position of the next message to the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Position {
    /// After a Sync or a Query: it begins a query or pipeline.
    Between,
    /// Messages of the extended protocol have been sent, with no Sync after them yet.
    InPipeline,
    /// The same, and the server ignores everything up to the next Sync.
    SkippingToSync,
}

/// ReadyForQuery that may or may not still come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum InDoubt {
    /// None.
    No,
    /// This many, for Syncs that a copy may have read before it failed.
    Syncs {
        count: u32,
        /// The server has begun to answer its current query, so the ReadyForQuery will be that
        /// query's own.
        fence_passed: bool,
    },
}

/// An answer that Hawser gives in the server's place.
#[derive(Debug)]
pub(crate) struct OwnAnswer {
    /// The bytes for the client, maybe none.
    pub(crate) bytes: &'static [u8],
    /// The change that it confirms.
    pub(crate) change: Option<Change>,
}

/// The requests that a server has not answered yet, in the order of their answers.
#[derive(Debug)]
pub(crate) struct RequestQueue {
    entries: Entries,
    /// How many of them end with ReadyForQuery.
    syncs_outstanding: u32,
    /// How many requests that end with ReadyForQuery there have been so far.
    pipeline: u64,
    position: Position,
    /// The pipeline in which its client has last executed something.
    executed_in: Option<u64>,
    /// A statement is bound that may change settings.
    binds_setter: bool,
    /// The last pipeline in which such a statement may have been executed.
    set_in: Option<u64>,
    /// Queries and pipelines since nothing was outstanding.
    unbroken: u32,
    copy_in: CopyIn,
    in_doubt: InDoubt,
}

impl Default for RequestQueue {
    fn default() -> Self {
        Self {
            entries: Entries::default(),
            syncs_outstanding: 0,
            pipeline: 0,
            position: Position::Between,
            executed_in: None,
            binds_setter: false,
            set_in: None,
            unbroken: 0,
            copy_in: CopyIn::No,
            in_doubt: InDoubt::No,
        }
    }
}

/// What is outstanding.
impl RequestQueue {
    /// Whether the server owes nothing.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How many answers it owes.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    fn owed(&self) -> impl DoubleEndedIterator<Item = Request> {
        self.entries.owed()
    }

    /// The next request that the server answers.
    #[inline]
    pub(crate) fn front(&self) -> Option<Request> {
        self.entries.front()
    }

    /// The request after that.
    pub(crate) fn second(&self) -> Option<Request> {
        self.entries.owed().nth(1)
    }

    /// The last request that was sent.
    pub(crate) fn back(&self) -> Option<Request> {
        self.entries.back()
    }

    /// Whether one of these is outstanding.
    pub(crate) fn contains(&self, expect: Request) -> bool {
        self.owed().any(|owed| owed == expect)
    }

    /// The requests since the last Sync, the newest first.
    pub(crate) fn since_sync(&self) -> impl Iterator<Item = Request> {
        self.owed().rev().take_while(|owed| !owed.ends_ignoring())
    }

    /// Whether any ReadyForQuery is outstanding.
    #[inline]
    pub(crate) fn owes_ready(&self) -> bool {
        self.syncs_outstanding > 0
    }

    /// Whether answers are outstanding that the client will see.
    pub(crate) fn owes_client(&self) -> bool {
        self.owed().any(|owed| !owed.is_injected_query())
    }

    /// Whether requests of the client are outstanding, not only Hawser's.
    pub(crate) fn owes_beside_ours(&self) -> bool {
        self.owed().any(|owed| !owed.is_injected())
    }

    /// Whether a query or pipeline of the client is still to be answered to its end.
    pub(crate) fn owes_client_ready(&self) -> bool {
        self.owes_ready()
            && self.owed().any(|owed| owed.ends_with_ready() && !owed.is_injected_query())
    }

    /// The same, and the end comes without further messages of the client: no copy waits for its
    /// data.
    pub(crate) fn ends_by_itself(&self) -> bool {
        self.owes_client_ready() && self.copy_in.waits_for_nothing()
    }

    /// Whether a query of Hawser's is outstanding.
    pub(crate) fn has_injected_query(&self) -> bool {
        self.owed().any(Request::is_injected_query)
    }

    /// Whether so many requests are outstanding that the client's further messages wait.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.entries.len() >= limits::EXPECTED_ANSWERS_MAX
            || self.syncs_outstanding >= limits::SYNCS_OUTSTANDING_MAX
    }

    /// Whether nothing is in flight: nothing is outstanding, and the next message begins a query or
    /// a pipeline. (Syncs may be in doubt.)
    #[inline]
    pub(crate) fn is_at_rest(&self) -> bool {
        self.entries.is_empty() && self.position == Position::Between && !self.copy_in.wants_data()
    }

    /// Whether it is certainly at rest.
    #[inline]
    pub(crate) fn is_plain(&self) -> bool {
        self.is_at_rest() && self.in_doubt == InDoubt::No
    }

    /// Whether the end of one query or pipeline is all that is outstanding, and nothing is unusual.
    #[inline]
    pub(crate) fn owes_one_end(&self) -> bool {
        self.entries.are_one_end()
            && self.position == Position::Between
            && self.in_doubt == InDoubt::No
    }

    /// Whether the plain lane has sent what is answered now: it sets nothing.
    pub(crate) fn owes_to_plain_lane(&self) -> bool {
        self.entries.are_of_plain_lane()
    }

    /// What the first entries owe, if they are those of a plain pipeline or Query.
    #[inline]
    pub(crate) fn owes_plain(&self) -> Option<PlainOwed> {
        if self.in_doubt != InDoubt::No {
            return None;
        }
        self.entries.owe_plain()
    }
}

/// Pipelines.
impl RequestQueue {
    /// The number of the pipeline that is being sent now.
    #[inline]
    pub(crate) fn pipeline(&self) -> u64 {
        self.pipeline
    }

    /// The first pipeline none of which has been sent.
    pub(crate) fn next_pipeline(&self) -> u64 {
        self.pipeline + u64::from(self.is_in_pipeline())
    }

    /// The pipeline to which the next answer belongs.
    pub(crate) fn answered_pipeline(&self) -> u64 {
        self.pipeline - u64::from(self.syncs_outstanding)
    }

    /// Whether the server's next answer is to this pipeline or an earlier one. (A Sync of Hawser's
    /// ends the client's pipeline and begins none.)
    pub(crate) fn has_come_to(&self, pipeline: u64) -> bool {
        pipeline + u64::from(self.syncs_outstanding) <= self.pipeline
    }

    /// Whether this pipeline is earlier than the current one and not answered yet: it may turn out
    /// to have been ignored. (Within one pipeline that does not matter: everything after it is
    /// ignored then, too.)
    pub(crate) fn is_in_doubt(&self, pipeline: u64) -> bool {
        pipeline < self.pipeline
            && pipeline + u64::from(self.syncs_outstanding) >= self.pipeline
            && !self.is_copying_in()
    }

    /// Whether messages of the extended protocol have been sent, with no Sync after them yet.
    #[inline]
    pub(crate) fn is_in_pipeline(&self) -> bool {
        self.position != Position::Between
    }

    /// Whether the server ignores everything up to the next Sync.
    #[inline]
    pub(crate) fn is_skipping_to_sync(&self) -> bool {
        self.position == Position::SkippingToSync
    }

    /// Whether the next message follows an Execute in its pipeline, which may have changed
    /// settings; Parse, Bind and Describe do not.
    pub(crate) fn is_after_execute(&self) -> bool {
        self.is_in_pipeline() && self.executed_in == Some(self.pipeline)
    }

    /// Whether a Parse sent now follows something in its pipeline that may have changed settings.
    pub(crate) fn is_after_setter(&self) -> bool {
        self.is_in_pipeline() && self.set_in == Some(self.pipeline)
    }

    /// A statement is bound that may change settings when it is executed.
    pub(crate) fn bind_setter(&mut self) {
        self.binds_setter = true;
    }

    /// The transaction has ended, and its portals with it.
    pub(crate) fn forget_portals(&mut self) {
        if self.entries.is_empty() {
            self.binds_setter = false;
        }
    }

    /// The current pipeline has failed, or the server has committed it by itself: a Sync of
    /// Hawser's commits nothing.
    pub(crate) fn let_sync_end_pipeline(&mut self) {
        self.executed_in = None;
    }

    /// Whether queries and pipelines have followed each other for so long that it is time for
    /// others.
    pub(crate) fn is_unbroken_for_long(&self) -> bool {
        self.unbroken >= limits::UNBROKEN_QUERIES_MAX
    }

    /// Nothing is outstanding: the next message continues no run.
    pub(crate) fn break_run(&mut self) {
        self.unbroken = 0;
    }
}

/// What is sent.
impl RequestQueue {
    /// Records what a message that is being sent owes: nothing, if the server ignores it.
    #[inline]
    pub(crate) fn push(&mut self, entry: Entry) {
        if self.is_skipping_to_sync() && entry.owed != Request::Sync {
            return;
        }
        if entry.owed.ends_with_ready() {
            self.syncs_outstanding += 1;
            self.unbroken += 1;
            self.pipeline += 1;
            self.position = Position::Between;
        } else {
            if entry.owed == Request::Execute {
                self.executed_in = Some(self.pipeline);
                if self.binds_setter {
                    self.set_in = Some(self.pipeline);
                }
            }
            self.position = Position::InPipeline;
        }
        self.entries.push(entry);
    }

    /// Records an answer of Hawser's for which nothing is sent: it belongs to the preceding
    /// request.
    pub(crate) fn push_unsent(&mut self, entry: Entry) {
        self.entries.push(entry);
    }

    /// The Query that has just been sent changes the books. `false`: the server ignores it.
    pub(crate) fn mark_last_query(&mut self, change: Change) -> bool {
        let query = self.entries.apart().back_mut().filter(|entry| entry.owed == Request::Query);
        query.map(|entry| entry.change = Some(change)).is_some()
    }

    /// What the last message that was sent is counted as.
    pub(crate) fn count_last(&mut self, query: QueryRef) {
        self.entries.count_last(query);
    }

    /// The same for what [`Self::push_plain`] has recorded.
    #[inline]
    pub(crate) fn count_plain(&mut self, query: Option<QueryRef>) {
        self.entries.count_plain(query);
    }

    /// Records a Sync of Hawser's that ends a pipeline which the server skips.
    pub(crate) fn push_sync_after_error(&mut self) {
        self.position = Position::InPipeline;
        self.let_sync_end_pipeline();
        self.push(Request::InjectedSync.into());
    }

    /// Records what a whole pipeline, or a Query, owes that is sent while nothing is outstanding:
    /// see [`crate::relay::plain`].
    #[inline]
    pub(crate) fn push_plain(&mut self, pipeline: PlainPipeline) {
        debug_assert!(self.is_at_rest());
        let ends_with_sync = !matches!(pipeline, PlainPipeline::Query);
        if ends_with_sync {
            self.executed_in = Some(self.pipeline);
        }
        self.entries.push_plain(pipeline);
        self.syncs_outstanding += 1;
        // Nothing was outstanding before it: it continues no run of queries.
        self.unbroken = if self.is_unbroken_for_long() { 1 } else { self.unbroken + 1 };
        self.pipeline += 1;
    }

    /// The Sync that the client has just sent is the one that Hawser's has replaced. `false`: none
    /// has.
    pub(crate) fn give_sync_to_client(&mut self) -> bool {
        match self.entries.apart().back_mut() {
            Some(made) if made.owed == Request::InjectedSync => {
                made.owed = Request::Sync;
                true
            }
            _ => false,
        }
    }
}

/// What is answered.
impl RequestQueue {
    /// The first entry is answered. Returns what that is counted as.
    #[inline]
    pub(crate) fn complete(&mut self) -> Option<QueryRef> {
        self.entries.complete()?.query
    }

    /// What an error of the first entry is counted as.
    pub(crate) fn take_failing(&mut self) -> Option<QueryRef> {
        self.entries.take_failing()
    }

    /// Everything but the end of [`Self::owes_plain`] is answered. `Err`: its entries are completed
    /// one by one. `Ok`: what becomes of its description.
    #[inline]
    pub(crate) fn complete_plain(&mut self) -> Result<Option<Change>, ()> {
        let described = self.entries.complete_plain()?;
        self.copy_ended();
        Ok(described)
    }

    /// A statement of the first entry is answered. Returns whether that was its last one.
    pub(crate) fn complete_statement(&mut self) -> bool {
        match self.entries.apart().front_mut() {
            Some(Entry { owed: Request::Statements(left), .. }) if *left > 1 => {
                *left -= 1;
                false
            }
            _ => true,
        }
    }

    /// Removes the first entry, if Hawser answers it and its turn has come.
    #[inline]
    pub(crate) fn take_own_answer(&mut self) -> Option<OwnAnswer> {
        let answered = self.entries.complete_if(Request::is_answered_here)?;
        Some(OwnAnswer {
            bytes: match answered.owed {
                Request::ParseKnown => &build::PARSE_COMPLETE,
                Request::CloseKnown { answered: true } => &build::CLOSE_COMPLETE,
                _ => &[],
            },
            change: answered.change,
        })
    }

    /// Removes copy data at the front: whether a copy has read them does not matter now.
    #[inline]
    pub(crate) fn take_copy_input(&mut self) -> bool {
        self.entries.complete_if(|owed| matches!(owed, Request::CopyInput { .. })).is_some()
    }

    /// Removes the second entry, which does not belong to the failed first one any more. Returns
    /// its change.
    pub(crate) fn take_second(&mut self) -> Option<Change> {
        self.entries.apart().remove(1)?.change
    }

    /// The text of a Query has failed: the server runs none of its other statements.
    pub(crate) fn fail_text(&mut self) {
        while self.entries.complete_if(Request::is_within_query).is_some() {}
    }

    /// A message of a pipeline has failed. Removes it, and then, one at a time, the messages that
    /// the server ignores after it. `None`: at the Sync that ends this, or at the end of the queue.
    pub(crate) fn take_ignored(&mut self) -> Option<Entry> {
        let ignored = self.entries.complete_if(|owed| !owed.ends_ignoring())?;
        if ignored.owed.ends_with_ready() {
            self.syncs_outstanding -= 1;
        }
        Some(ignored)
    }

    /// No Sync has been sent since the message that has failed.
    pub(crate) fn skip_to_sync(&mut self) {
        self.position = Position::SkippingToSync;
    }

    /// ReadyForQuery has come for the only entry: see [`Self::owes_one_end`]. Returns what that is counted
    /// as.
    #[inline]
    pub(crate) fn complete_one_end(&mut self) -> Option<QueryRef> {
        debug_assert!(self.owes_one_end());
        let query = self.entries.complete_end();
        self.syncs_outstanding -= 1;
        self.copy_ended();
        query
    }

    /// ReadyForQuery has come for the first entry. Returns what that is counted as.
    #[inline]
    pub(crate) fn complete_with_ready(&mut self) -> Option<QueryRef> {
        let query = self.entries.complete().and_then(|entry| entry.query);
        self.syncs_outstanding -= 1;
        self.copy_ended();
        while self.take_copy_input() {} // no copy read them
        if let InDoubt::Syncs { fence_passed, .. } = &mut self.in_doubt {
            *fence_passed = false;
        }
        query
    }
}

/// What is in doubt.
impl RequestQueue {
    /// Whether a ReadyForQuery without an entry may still come.
    #[inline]
    pub(crate) fn has_syncs_in_doubt(&self) -> bool {
        self.in_doubt != InDoubt::No
    }

    /// An answer to the first entry has come.
    #[inline]
    pub(crate) fn pass_fence(&mut self) {
        if let InDoubt::Syncs { fence_passed, .. } = &mut self.in_doubt {
            *fence_passed = true;
        }
    }

    /// A query of Hawser's that was sent after all of them has been answered: none will come any
    /// more.
    pub(crate) fn settle_doubt(&mut self) {
        self.in_doubt = InDoubt::No;
    }

    /// ReadyForQuery has come. Counts it as one in doubt, unless it is that of the first entry.
    pub(crate) fn take_ready_in_doubt(&mut self) -> bool {
        let InDoubt::Syncs { count, fence_passed } = self.in_doubt else { return false };
        match self.front() {
            // Before anything else has come for the first entry, this is not its ReadyForQuery.
            Some(owed) if fence_passed || owed.ends_ignoring() => return false,
            Some(_) => {}
            None => self.position = Position::Between, // and no further Sync is needed
        }
        self.in_doubt = match count {
            0 | 1 => InDoubt::No,
            _ => InDoubt::Syncs { count: count - 1, fence_passed },
        };
        true
    }

    /// These may or may not be answered.
    fn doubt_syncs(&mut self, more: u32) {
        self.in_doubt = match self.in_doubt {
            _ if more == 0 => return,
            InDoubt::No => InDoubt::Syncs { count: more, fence_passed: false },
            InDoubt::Syncs { count, fence_passed } => {
                InDoubt::Syncs { count: count + more, fence_passed }
            }
        };
    }
}
