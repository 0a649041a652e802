//! What a server connection does between transactions, and since when.

use crate::parts::pins::count::Pinned;
use crate::queries::trace_parent::TraceParent;
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
    pub(crate) tidying: Tidying,
    /// What must be discarded before it serves another client.
    pub(crate) reset_due: Reset,
    /// Why it is closed, not given back.
    pub(crate) spoiled: Option<&'static str>,
    /// Cancel requests in flight: each may hit whatever runs when it arrives.
    pub(crate) cancels_in_flight: u32,
    /// A cancel request for everything before this pipeline is sent once no query of Hawser's
    /// precedes the client's.
    pub(crate) cancel_due: Option<u64>,
    /// Its client keeps it without working: it does not count against the pool's size.
    pub(crate) parked: bool,
    /// How its pin between transactions is counted. `None`: its client does not keep it, or is not
    /// counted.
    pub(crate) pinned: Option<Box<Pinned>>,
    /// Keeps connections from being opened to a database that a statement in flight needs for
    /// itself.
    pub(crate) vacancy: Option<Hold>,
    /// When it became idle, in a transaction or between two transactions of a client that keeps it,
    /// or when tidying began.
    pub(crate) since: Time,
    /// When its client last took or sent bytes.
    pub(crate) progress: Time,
    /// How long its client has waited for it, in microseconds, until its first transaction ends.
    pub(crate) waited_us: u64,
    /// The span that its transaction belongs to.
    pub(crate) parent: Option<TraceParent>,
    /// The number of transactions that it has run.
    pub(crate) transactions: u64,
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
            parent: None,
            transactions: 0,
        }
    }

    /// Whether it lets the plain lane run.
    #[inline]
    pub(crate) fn is_usual(&self) -> bool {
        let Self {
            tidying: _, // without a client
            // For the time when it is given back.
            reset_due: _,
            spoiled: _,
            cancels_in_flight,
            cancel_due: _, // after queries of Hawser's, which are outstanding
            parked: _,     // any message ends that
            pinned: _,     // its client is pinned
            vacancy,
            since: _,
            progress: _,
            waited_us: _,
            parent: _,
            transactions: _,
        } = self;
        *cancels_in_flight == 0 && vacancy.is_none()
    }

    /// It is lent to a client.
    pub(crate) fn begin(&mut self, now: Time) {
        (self.since, self.progress) = (now, now);
    }

    /// It is in a state that cannot be undone: it is closed, not given back. The first reason
    /// counts.
    pub(crate) fn spoil(&mut self, reason: &'static str) {
        self.spoiled.get_or_insert(reason);
    }

    /// At least this must be discarded before it serves another client.
    pub(crate) fn owe_reset(&mut self, reset: Reset) {
        self.reset_due = self.reset_due.max(reset);
    }

    /// Something must be done before another client may have it.
    pub(crate) fn begin_tidying(&mut self, tidying: Tidying, now: Time) {
        (self.tidying, self.since) = (tidying, now);
    }

    /// The server has handled one. Returns whether no other is in flight.
    pub(crate) fn cancel_done(&mut self) -> bool {
        self.cancels_in_flight = self.cancels_in_flight.saturating_sub(1);
        self.cancels_in_flight == 0
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

    /// Its client runs this text: the first of a transaction that names a span counts.
    pub(crate) fn belongs_to_span_in(&mut self, text: &[u8]) {
        self.parent = self.parent.or_else(|| TraceParent::in_text(text));
    }

    /// Takes that value, for the first transaction alone.
    #[inline]
    pub(crate) fn take_waited_us(&mut self) -> u64 {
        std::mem::take(&mut self.waited_us)
    }
}
