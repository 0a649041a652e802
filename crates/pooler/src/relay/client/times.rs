//! When a client's current activity began, and when it must have made progress.

use crate::time::Time;

/// A client's times.
pub(crate) struct ClientTimes {
    since: Time,
    transaction_since: Time,
    /// In ticks of the wheel; 0: never.
    deadline: u32,
    /// The tick for which it is in the wheel; 0: none.
    armed: u32,
}

/// What is to be done at a tick for which a client was in the wheel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TickCame {
    /// Nothing: it was for an earlier deadline, or there is none any more.
    Stale,
    /// The deadline is this later tick, for which the client goes into the wheel.
    Early(u32),
    /// It should have made progress by this tick.
    Due(u32),
}

impl ClientTimes {
    /// For a client that has been idle since.
    pub(crate) fn new(since: Time) -> Self {
        Self { since, transaction_since: since, deadline: 0, armed: 0 }
    }

    /// When it became idle, or began to wait, or when its query began.
    #[inline]
    pub(crate) fn since(&self) -> Time {
        self.since
    }

    /// It begins to be idle, to wait, or to run a query.
    #[inline]
    pub(crate) fn begin(&mut self, now: Time) {
        self.since = now;
    }

    /// When its transaction began.
    #[inline]
    pub(crate) fn transaction_since(&self) -> Time {
        self.transaction_since
    }

    /// Its transaction begins.
    #[inline]
    pub(crate) fn begin_transaction(&mut self, now: Time) {
        self.transaction_since = now;
    }

    /// It must have made progress by this tick; 0: never. Returns whether the wheel is to be armed
    /// for that.
    #[inline]
    pub(crate) fn set_deadline(&mut self, tick: u32) -> bool {
        self.deadline = tick;
        tick != 0 && (self.armed == 0 || tick < self.armed)
    }

    /// It is in the wheel for this tick.
    #[inline]
    pub(crate) fn is_armed(&mut self, tick: u32) {
        self.armed = tick;
    }

    /// What its record has of them: since when it is idle.
    pub(crate) fn for_record(&self) -> Time {
        let Self {
            since,
            transaction_since: _, // it is in none
            deadline: _,          // follows from `since`
            armed: _,
        } = self;
        *since
    }

    /// A tick has come for which it was in the wheel, `now` by the wheel.
    pub(crate) fn tick_came(&mut self, tick: u32, now: u32) -> TickCame {
        if self.armed != tick {
            return TickCame::Stale;
        }
        self.armed = 0;
        match self.deadline {
            0 => TickCame::Stale,
            later if later > now => TickCame::Early(later),
            _ => TickCame::Due(std::mem::take(&mut self.deadline)),
        }
    }
}
