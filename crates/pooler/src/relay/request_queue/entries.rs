//! The entries of a queue, in order.
//!
//! # Model
//! What is sent whole while nothing is outstanding is one entry until it is answered whole, which is the
//! usual case; any work on one of its messages first replaces it by one entry for each ([`Entries::apart`]):
//! ```text
//!   push_plain ──► Whole(pipeline) ──► End(Sync or Query) ──► none       no entry of another message is made
//!                       │ apart              │ apart
//!                       ▼                    ▼
//!                  Bind Describe Execute Sync, and what is pushed after that
//! ```
//! Readers see the same entries in both cases.

use std::collections::VecDeque;
use std::fmt;

use crate::queries::table::QueryRef;
use crate::relay::request_queue::change::Change;
use crate::relay::request_queue::entry::{Describes, Entry, PlainOwed, PlainPipeline};
use crate::relay::request_queue::request::Request;

/// What comes before everything else.
#[derive(Default)]
enum First {
    #[default]
    None,
    /// All messages of a plain pipeline.
    Whole(PlainPipeline),
    /// Its last message, Sync or Query, which ReadyForQuery ends.
    End(Request),
}

impl First {
    /// The change of its Describe.
    #[inline]
    fn into_change(self) -> Option<Change> {
        match self {
            Self::Whole(pipeline) => pipeline.into_change(),
            Self::None | Self::End(_) => None,
        }
    }
}

/// The entries of a queue: see above.
#[derive(Default)]
pub(super) struct Entries {
    first: First,
    /// What is counted when `first` is answered to its end.
    query: Option<QueryRef>,
    rest: VecDeque<Entry>,
}

/// The most messages of a plain pipeline.
const PLAIN_MAX: usize = 5;

impl PlainPipeline {
    /// What it owes, message by message, and the number of messages. Its Describe carries its change.
    fn owed(&self) -> ([Request; PLAIN_MAX], usize) {
        let mut owed = [Request::Sync; PLAIN_MAX];
        let mut count = 0;
        let mut push = |one| {
            owed[count] = one;
            count += 1;
        };
        match self {
            Self::Named { statement, .. } => push(Request::Bind { statement: *statement }),
            Self::Unnamed { serial, .. } => {
                push(Request::Parse { serial: *serial, statement: 0 });
                push(Request::Bind { statement: 0 });
            }
            Self::Query => {
                push(Request::Query);
                return (owed, count);
            }
        }
        if self.describes() {
            push(Request::DescribePortal);
        }
        push(Request::Execute);
        push(Request::Sync);
        (owed, count)
    }

    /// What its last message owes.
    fn end(&self) -> Request {
        match self {
            Self::Query => Request::Query,
            Self::Named { .. } | Self::Unnamed { .. } => Request::Sync,
        }
    }

    /// Whether its portal is described.
    #[inline]
    fn describes(&self) -> bool {
        match self {
            Self::Named { describes, .. } => !matches!(describes, Describes::No),
            Self::Unnamed { describes, .. } => *describes,
            Self::Query => false,
        }
    }

    /// The change that the entry of its Describe carries.
    fn change(&self) -> Option<&Change> {
        match self {
            Self::Named { describes: Describes::Noted(change), .. } => Some(change),
            Self::Named { .. } | Self::Unnamed { .. } | Self::Query => None,
        }
    }

    /// The same, taken out of it.
    #[inline]
    fn into_change(self) -> Option<Change> {
        match self {
            Self::Named { describes: Describes::Noted(change), .. } => Some(change),
            Self::Named { .. } | Self::Unnamed { .. } | Self::Query => None,
        }
    }

    /// Its answer, without the end.
    #[inline]
    fn answer(&self) -> PlainOwed {
        PlainOwed {
            parses: matches!(self, Self::Unnamed { .. }),
            binds: !matches!(self, Self::Query),
            describes: self.describes(),
        }
    }
}

/// Reading the entries.
impl Entries {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        matches!(self.first, First::None) && self.rest.is_empty()
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        let whole = match &self.first {
            First::None => 0,
            First::End(_) => 1,
            First::Whole(pipeline) => pipeline.owed().1,
        };
        whole + self.rest.len()
    }

    /// What the first messages owe that are one entry, and their number.
    fn whole(&self) -> ([Request; PLAIN_MAX], usize) {
        match &self.first {
            First::None => ([Request::Sync; PLAIN_MAX], 0),
            First::Whole(pipeline) => pipeline.owed(),
            First::End(end) => ([*end; PLAIN_MAX], 1),
        }
    }

    /// What each message owes.
    pub(super) fn owed(&self) -> impl DoubleEndedIterator<Item = Request> {
        let (whole, count) = self.whole();
        let rest = self.rest.iter().map(|entry| entry.owed);
        whole.into_iter().take(count).chain(rest)
    }

    /// What the first message owes.
    #[inline]
    pub(super) fn front(&self) -> Option<Request> {
        match &self.first {
            First::None => self.rest.front().map(|entry| entry.owed),
            First::End(end) => Some(*end),
            First::Whole(pipeline) => Some(pipeline.owed().0[0]),
        }
    }

    /// What the last message owes.
    pub(super) fn back(&self) -> Option<Request> {
        self.owed().next_back()
    }

    /// The changes of the entries.
    pub(super) fn changes(&self) -> impl Iterator<Item = &Change> {
        let first = match &self.first {
            First::Whole(pipeline) => pipeline.change(),
            First::None | First::End(_) => None,
        };
        first.into_iter().chain(self.rest.iter().filter_map(|entry| entry.change.as_ref()))
    }

    /// The change of the first entry. (That of a plain pipeline belongs to its Describe, which is
    /// not its first message.)
    #[inline]
    pub(super) fn front_change(&self) -> Option<&Change> {
        match self.first {
            First::None => self.rest.front()?.change.as_ref(),
            First::Whole(_) | First::End(_) => None,
        }
    }

    /// Whether there is exactly one, which ends with ReadyForQuery and changes nothing.
    #[inline]
    pub(super) fn are_one_end(&self) -> bool {
        match &self.first {
            First::None => {
                self.rest.len() == 1
                    && self.rest.front().is_some_and(|entry| {
                        matches!(entry.owed, Request::Sync | Request::Query)
                            && entry.change.is_none()
                    })
            }
            First::End(_) => self.rest.is_empty(),
            First::Whole(pipeline) => {
                matches!(pipeline, PlainPipeline::Query) && self.rest.is_empty()
            }
        }
    }

    /// Whether the plain lane has sent the first messages.
    pub(super) fn are_of_plain_lane(&self) -> bool {
        !matches!(self.first, First::None)
    }

    /// What the first messages owe, if they are those of a plain pipeline or Query.
    #[inline]
    pub(super) fn owe_plain(&self) -> Option<PlainOwed> {
        match &self.first {
            First::Whole(pipeline) => Some(pipeline.answer()),
            First::End(Request::Query) => Some(PlainOwed::QUERY),
            First::End(_) => None,
            First::None => self.rest_owe_plain(),
        }
    }

    /// The same for those that the full lane has pushed.
    fn rest_owe_plain(&self) -> Option<PlainOwed> {
        let owed = |at: usize| self.rest.get(at).map(|entry| entry.owed);
        let parses = match owed(0)? {
            Request::Query => return Some(PlainOwed::QUERY),
            Request::Bind { .. } => false,
            Request::Parse { statement: 0, serial } if serial != 0 => true,
            _ => return None,
        };
        let bind = usize::from(parses);
        if !matches!(owed(bind)?, Request::Bind { .. }) {
            return None;
        }
        let describes = owed(bind + 1)? == Request::DescribePortal;
        let executes = owed(bind + 1 + usize::from(describes))? == Request::Execute;
        executes.then_some(PlainOwed { parses, binds: true, describes })
    }
}

#[cfg(test)]
impl Entries {
    /// What each message owes, and its change.
    pub(super) fn each(&self) -> impl Iterator<Item = (Request, Option<&Change>)> {
        let mut changes = self.changes();
        let carries = match &self.first {
            First::Whole(pipeline) => pipeline.change().is_some(),
            First::None | First::End(_) => false,
        };
        let (whole, count) = self.whole();
        let first: Vec<_> = whole[..count]
            .iter()
            .map(|&owed| match owed {
                Request::DescribePortal if carries => (owed, changes.next()),
                _ => (owed, None),
            })
            .collect();
        first.into_iter().chain(self.rest.iter().map(|entry| (entry.owed, entry.change.as_ref())))
    }
}

/// Changing the entries.
impl Entries {
    /// The messages of a plain pipeline, where nothing is outstanding.
    #[inline]
    pub(super) fn push_plain(&mut self, pipeline: PlainPipeline) {
        debug_assert!(self.is_empty());
        self.first = First::Whole(pipeline);
    }

    /// The plain pipeline at the front is answered except for its end. `Err`: its messages have
    /// entries of their own. `Ok`: the change of its Describe.
    #[inline]
    pub(super) fn complete_plain(&mut self) -> Result<Option<Change>, ()> {
        let end = match &self.first {
            First::Whole(pipeline) => pipeline.end(),
            First::End(_) => return Ok(None), // a Query, more statements of which are answered
            First::None => return Err(()),
        };
        Ok(std::mem::replace(&mut self.first, First::End(end)).into_change())
    }

    /// The first message is answered.
    #[inline]
    pub(super) fn complete(&mut self) -> Option<Entry> {
        match self.first {
            First::None => self.rest.pop_front(),
            First::End(owed) => {
                self.first = First::None;
                Some(Entry { owed, change: None, query: self.query.take() })
            }
            First::Whole(_) => self.apart().pop_front(),
        }
    }

    /// The same, if it owes this.
    #[inline]
    pub(super) fn complete_if(&mut self, is_one: impl Fn(Request) -> bool) -> Option<Entry> {
        match self.front().is_some_and(is_one) {
            true => self.complete(),
            false => None,
        }
    }

    /// The only message is answered: see [`Self::are_one_end`].
    #[inline]
    pub(super) fn complete_end(&mut self) -> Option<QueryRef> {
        match self.first {
            First::None => self.rest.pop_front()?.query,
            First::Whole(_) | First::End(_) => {
                self.first = First::None;
                self.query.take()
            }
        }
    }

    /// One more.
    #[inline]
    pub(super) fn push(&mut self, entry: Entry) {
        self.rest.push_back(entry);
    }

    /// One for each message.
    pub(super) fn apart(&mut self) -> &mut VecDeque<Entry> {
        let (owed, count) = self.whole();
        let mut change = std::mem::take(&mut self.first).into_change();
        for &owed in owed[..count].iter().rev() {
            let change = if owed == Request::DescribePortal { change.take() } else { None };
            let query = self.query.take(); // of the last, which ends with ReadyForQuery
            self.rest.push_front(Entry { owed, change, query });
        }
        &mut self.rest
    }

    /// The first message is counted as this, when it is answered to its end.
    #[inline]
    pub(super) fn count_plain(&mut self, query: Option<QueryRef>) {
        self.query = query;
    }

    /// The last message is counted as this, when it is answered.
    pub(super) fn count_last(&mut self, query: QueryRef) {
        if let Some(last) = self.rest.back_mut().filter(|last| last.query.is_none())
            && matches!(last.owed, Request::Query | Request::Execute)
        {
            last.query = Some(query);
        }
    }

    /// What an error at the first message is counted as: the query that it is part of, which is
    /// counted no more.
    pub(super) fn take_failing(&mut self) -> Option<QueryRef> {
        if !matches!(self.first, First::None) {
            return self.query.take();
        }
        for entry in &mut self.rest {
            if entry.query.is_some() {
                return entry.query.take();
            }
            if entry.owed.ends_with_ready() {
                break;
            }
        }
        None
    }
}

impl fmt::Debug for Entries {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.owed()).entries(self.changes()).finish()
    }
}
