//! What has ended of a client's work, for the statistics.

/// Queries or pipelines of a client that have ended.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(super) struct Ended {
    pub(super) queries: u64,
    /// Transactions that have ended with them.
    pub(super) transactions: u64,
}

impl Ended {
    /// One more has ended, with its transaction or within one.
    #[inline]
    pub(super) fn note(&mut self, with_transaction: bool) {
        self.queries += 1;
        self.transactions += u64::from(with_transaction);
    }
}
