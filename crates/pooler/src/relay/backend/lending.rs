//! What a server connection does between transactions, and since when.

use crate::parts::pins::count::Pinned;
use crate::relay::vacancy::Hold;
use crate::time::Time;

/// What a backend does between its clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tidying {
    /// Nothing: it serves its client.
    No,
    /// Its client left in the middle of something: answers are discarded until the server has
    /// finished.
    Draining,
    /// A ROLLBACK is in flight.
    RollingBack,
    /// The reset query is in flight.
    Resetting,
    /// A query of Hawser's is in flight after answers that may or may not come: its answer shows
    /// that they have come.
    Fencing,
    /// Only cancel requests are still in flight.
    AwaitingCancel,
    /// Its last client has notified: the pool's listening connection must receive that first.
    AwaitingListener,
}

/// What is to be discarded of the client before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Reset {
    /// Nothing.
    No,
    /// As the pool's `server_reset_query` says: that client was in session mode.
    AsConfigured,
    /// Everything.
    All,
    /// Everything, temporary objects before the locks, as where a session ends: who gets a lock
    /// next finds none of them. (`DiscardAll`, discard.c, releases the locks first.)
    AllTemporaryFirst,
}

/// What it does between transactions, and since when.
pub(crate) struct Lending {
    tidying: Tidying,
    reset_due: Reset,
    spoiled: Option<&'static str>,
    cancels_in_flight: u32,
    /// A cancel request for everything before this pipeline is sent once no query of Hawser's
    /// precedes the client's.
    cancel_due: Option<u64>,
    /// Its client keeps it without working: it does not count against the pool's size.
    parked: bool,
    pinned: Option<Box<Pinned>>,
    vacancy: Option<Hold>,
    since: Time,
    progress: Time,
    waited_us: u64,
    transactions: u64,
}

impl Lending {
    pub(super) fn new(opened: Time) -> Self {
        Self {
            tidying: Tidying::No,
            reset_due: Reset::No,
            spoiled: None,
            cancels_in_flight: 0,
            cancel_due: None,
            parked: false,
            pinned: None,
            vacancy: None,
            since: opened,
            progress: opened,
            waited_us: 0,
            transactions: 0,
        }
    }

    /// It is lent to a client.
    pub(crate) fn begin(&mut self, now: Time) {
        (self.since, self.progress) = (now, now);
    }

    /// Its client leaves it idle.
    #[inline]
    pub(crate) fn rests(&mut self, now: Time) {
        self.since = now;
    }

    /// When it became idle, in a transaction or between two transactions of a client that keeps it,
    /// or when tidying began.
    #[inline]
    pub(crate) fn since(&self) -> Time {
        self.since
    }

    /// Its client has taken or sent bytes.
    #[inline]
    pub(crate) fn gets_on(&mut self, now: Time) {
        self.progress = now;
    }

    /// When its client last took or sent bytes.
    pub(crate) fn progress(&self) -> Time {
        self.progress
    }

    /// It is in a state that cannot be undone: it is closed, not given back. The first reason
    /// counts.
    pub(crate) fn spoil(&mut self, reason: &'static str) {
        self.spoiled.get_or_insert(reason);
    }

    /// Why it is closed, not given back.
    #[inline]
    pub(crate) fn spoiled(&self) -> Option<&'static str> {
        self.spoiled
    }

    /// At least this must be discarded before it serves another client.
    pub(crate) fn owe_reset(&mut self, reset: Reset) {
        self.reset_due = self.reset_due.max(reset);
    }

    /// What must be discarded before it serves another client.
    #[inline]
    pub(crate) fn reset_due(&self) -> Reset {
        self.reset_due
    }

    pub(crate) fn was_reset(&mut self) {
        self.reset_due = Reset::No;
    }

    /// Something must be done before another client may have it.
    pub(crate) fn begin_tidying(&mut self, tidying: Tidying, now: Time) {
        (self.tidying, self.since) = (tidying, now);
    }

    #[inline]
    pub(crate) fn tidying(&self) -> Tidying {
        self.tidying
    }

    /// Tidying has ended. Returns what was in flight.
    #[inline]
    pub(crate) fn end_tidying(&mut self) -> Tidying {
        std::mem::replace(&mut self.tidying, Tidying::No)
    }

    /// A cancel request is to be sent for everything before this pipeline.
    pub(super) fn cancel_before(&mut self, pipeline: u64) {
        self.cancel_due = Some(pipeline);
    }

    /// The first pipeline that the cancel request still to be sent is not for.
    #[inline]
    pub(crate) fn cancel_due(&self) -> Option<u64> {
        self.cancel_due
    }

    /// The request has been sent, or is not needed any more.
    pub(super) fn cancel_is_settled(&mut self) {
        self.cancel_due = None;
    }

    /// A cancel request has been sent.
    pub(super) fn cancel_sent(&mut self) {
        self.cancels_in_flight += 1;
    }

    /// The server has handled one. Returns whether no other is in flight.
    pub(crate) fn cancel_done(&mut self) -> bool {
        self.cancels_in_flight = self.cancels_in_flight.saturating_sub(1);
        self.cancels_in_flight == 0
    }

    /// Cancel requests in flight: each may hit whatever runs when it arrives.
    #[inline]
    pub(crate) fn cancels_in_flight(&self) -> u32 {
        self.cancels_in_flight
    }

    #[inline]
    pub(crate) fn is_parked(&self) -> bool {
        self.parked
    }

    /// Its client keeps it without working. Returns whether that is new.
    pub(crate) fn park(&mut self) -> bool {
        !std::mem::replace(&mut self.parked, true)
    }

    /// It counts against the pool's size again. Returns whether that is new.
    #[inline]
    pub(crate) fn unpark(&mut self) -> bool {
        std::mem::take(&mut self.parked)
    }

    /// How its pin between transactions is counted. `None`: its client does not keep it, or is not
    /// counted.
    pub(crate) fn pinned(&self) -> Option<&Pinned> {
        self.pinned.as_deref()
    }

    pub(crate) fn pinned_mut(&mut self) -> Option<&mut Pinned> {
        self.pinned.as_deref_mut()
    }

    /// Its client keeps it between transactions, and is counted for it.
    pub(crate) fn pin(&mut self, pinned: Pinned) {
        self.pinned = Some(Box::new(pinned));
    }

    #[inline]
    pub(crate) fn unpin(&mut self) {
        self.pinned = None;
    }

    /// Keeps connections from being opened to a database that a statement in flight needs for
    /// itself.
    pub(crate) fn hold_vacancy(&mut self, hold: Hold) {
        self.vacancy = Some(hold);
    }

    #[inline]
    pub(crate) fn holds_vacancy(&self) -> bool {
        self.vacancy.is_some()
    }

    #[inline]
    pub(crate) fn end_vacancy(&mut self) {
        self.vacancy = None;
    }

    /// How long its client has waited for it, in microseconds.
    pub(crate) fn has_been_waited_for(&mut self, us: u64) {
        self.waited_us = us;
    }

    /// Takes that value, for the first transaction alone.
    #[inline]
    pub(crate) fn take_waited_us(&mut self) -> u64 {
        std::mem::take(&mut self.waited_us)
    }

    #[inline]
    pub(crate) fn transaction_ended(&mut self) {
        self.transactions += 1;
    }

    /// The number of transactions that it has run.
    #[inline]
    pub(crate) fn transactions(&self) -> u64 {
        self.transactions
    }
}
