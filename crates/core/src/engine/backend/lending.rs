//! What becomes of a server connection between transactions, and since when.

use crate::engine::vacancy::Hold;
use crate::pool::Pinned;
use crate::time::Time;

/// What a backend does between its clients.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::engine) enum Tidying {
    /// Nothing: it serves its client.
    No,
    /// Its client left in the middle of something: answers are thrown away until the server has
    /// come to an end with it.
    Draining,
    /// A ROLLBACK is under way.
    RollingBack,
    /// The reset query is under way.
    Resetting,
    /// A query of ours is under way after answers that may come or not: when it is answered,
    /// they have come.
    Fencing,
    /// Only cancel requests are still under way.
    AwaitingCancel,
    /// Its last client has notified: the listening connection of its pool is to hear that first.
    AwaitingListener,
}

/// What is to be discarded of the client before.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(in crate::engine) enum Reset {
    /// Nothing.
    No,
    /// As the pool's `server_reset_query` says: the client was one of session mode.
    AsConfigured,
    /// Everything.
    All,
}

/// What becomes of it between transactions, and since when.
pub(in crate::engine) struct Lending {
    tidying: Tidying,
    reset_due: Reset,
    spoiled: Option<&'static str>,
    cancels_in_flight: u32,
    /// A cancel request goes out once no query of ours is before the client's: for what comes before this
    /// pipeline.
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

    /// A client has it from now on.
    pub(in crate::engine) fn begin(&mut self, now: Time) {
        (self.since, self.progress) = (now, now);
    }

    /// It is idle from now on, as far as its client is concerned.
    #[inline]
    pub(in crate::engine) fn rests(&mut self, now: Time) {
        self.since = now;
    }

    /// When it became idle in a transaction, or between two of a client that keeps it, or when its tidying
    /// began.
    #[inline]
    pub(in crate::engine) fn since(&self) -> Time {
        self.since
    }

    /// Its client has taken or sent a byte.
    #[inline]
    pub(in crate::engine) fn gets_on(&mut self, now: Time) {
        self.progress = now;
    }

    /// When its client last took or sent a byte.
    pub(in crate::engine) fn progress(&self) -> Time {
        self.progress
    }

    /// What cannot be undone has happened to it: it is closed, not given back. The first reason counts.
    pub(in crate::engine) fn spoil(&mut self, reason: &'static str) {
        self.spoiled.get_or_insert(reason);
    }

    /// Why it is closed, not given back.
    #[inline]
    pub(in crate::engine) fn spoiled(&self) -> Option<&'static str> {
        self.spoiled
    }

    /// This is to be discarded before it serves another client, or more.
    pub(in crate::engine) fn owe_reset(&mut self, reset: Reset) {
        self.reset_due = self.reset_due.max(reset);
    }

    /// What is to be discarded before it serves another client.
    #[inline]
    pub(in crate::engine) fn reset_due(&self) -> Reset {
        self.reset_due
    }

    /// That has been discarded.
    pub(in crate::engine) fn was_reset(&mut self) {
        self.reset_due = Reset::No;
    }

    /// Something is still to be done before another client may have it.
    pub(in crate::engine) fn begin_tidying(&mut self, tidying: Tidying, now: Time) {
        (self.tidying, self.since) = (tidying, now);
    }

    #[inline]
    pub(in crate::engine) fn tidying(&self) -> Tidying {
        self.tidying
    }

    /// Nothing more is to be done. What was under way.
    #[inline]
    pub(in crate::engine) fn end_tidying(&mut self) -> Tidying {
        std::mem::replace(&mut self.tidying, Tidying::No)
    }

    /// A cancel request is to be sent for what comes before this pipeline.
    pub(super) fn cancel_before(&mut self, pipeline: u64) {
        self.cancel_due = Some(pipeline);
    }

    /// The first pipeline that a cancel request is not for which is still to be sent.
    #[inline]
    pub(in crate::engine) fn cancel_due(&self) -> Option<u64> {
        self.cancel_due
    }

    /// It is sent, or not needed any more.
    pub(super) fn cancel_is_settled(&mut self) {
        self.cancel_due = None;
    }

    /// A cancel request is on its way.
    pub(super) fn cancel_sent(&mut self) {
        self.cancels_in_flight += 1;
    }

    /// The server has taken one. Whether no other is under way.
    pub(in crate::engine) fn cancel_done(&mut self) -> bool {
        self.cancels_in_flight = self.cancels_in_flight.saturating_sub(1);
        self.cancels_in_flight == 0
    }

    /// Cancel requests that are under way: each may hit whatever runs then.
    #[inline]
    pub(in crate::engine) fn cancels_in_flight(&self) -> u32 {
        self.cancels_in_flight
    }

    #[inline]
    pub(in crate::engine) fn is_parked(&self) -> bool {
        self.parked
    }

    /// Its client keeps it without working. Whether it did not before.
    pub(in crate::engine) fn park(&mut self) -> bool {
        !std::mem::replace(&mut self.parked, true)
    }

    /// It counts against the pool's size again. Whether it did not before.
    #[inline]
    pub(in crate::engine) fn unpark(&mut self) -> bool {
        std::mem::take(&mut self.parked)
    }

    /// How it is counted that its client keeps it between transactions. `None`: it does not, or is not counted.
    pub(in crate::engine) fn pinned(&self) -> Option<&Pinned> {
        self.pinned.as_deref()
    }

    pub(in crate::engine) fn pinned_mut(&mut self) -> Option<&mut Pinned> {
        self.pinned.as_deref_mut()
    }

    /// Its client keeps it between transactions, and is counted for that.
    pub(in crate::engine) fn pin(&mut self, pinned: Pinned) {
        self.pinned = Some(Box::new(pinned));
    }

    #[inline]
    pub(in crate::engine) fn unpin(&mut self) {
        self.pinned = None;
    }

    /// Keeps connections from being opened to a database that a statement under way wants for itself.
    pub(in crate::engine) fn hold_vacancy(&mut self, hold: Hold) {
        self.vacancy = Some(hold);
    }

    #[inline]
    pub(in crate::engine) fn holds_vacancy(&self) -> bool {
        self.vacancy.is_some()
    }

    /// That statement has ended.
    #[inline]
    pub(in crate::engine) fn end_vacancy(&mut self) {
        self.vacancy = None;
    }

    /// How long its client has waited for it, in microseconds.
    pub(in crate::engine) fn has_been_waited_for(&mut self, us: u64) {
        self.waited_us = us;
    }

    /// The same, for the first transaction alone.
    #[inline]
    pub(in crate::engine) fn take_waited_us(&mut self) -> u64 {
        std::mem::take(&mut self.waited_us)
    }

    /// One transaction more has ended.
    #[inline]
    pub(in crate::engine) fn transaction_ended(&mut self) {
        self.transactions += 1;
    }

    /// Transactions that it has run.
    #[inline]
    pub(in crate::engine) fn transactions(&self) -> u64 {
        self.transactions
    }
}
