//! What has ended of a client's work, for the statistics.

/// Queries or pipelines of a client that have ended.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Ended {
    pub(crate) queries: u64,
    /// Transactions that have ended with them.
    pub(crate) transactions: u64,
}

impl Ended {
    /// One more has ended, with its transaction or within one.
    #[inline]
    pub(crate) fn note(&mut self, with_transaction: bool) {
        self.queries += 1;
        self.transactions += u64::from(with_transaction);
    }
}
