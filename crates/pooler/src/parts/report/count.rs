//! Counts the backends of a pool that report exactly what their sessions hold: those whose server
//! has the extension, and whose reports are trusted.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// The count of a pool.
#[derive(Clone, Debug, Default)]
pub struct ReportingCount(Arc<AtomicU32>);

/// One of those that are counted, until it is dropped.
#[derive(Debug)]
pub struct Reporting(ReportingCount);

impl ReportingCount {
    /// How many there are.
    pub fn get(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    /// One more.
    pub fn one(&self) -> Reporting {
        self.0.fetch_add(1, Ordering::Relaxed);
        Reporting(self.clone())
    }
}

impl Drop for Reporting {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_gone_is_not_counted() {
        let count = ReportingCount::default();
        let one = count.one();
        let other = count.one();
        assert_eq!(count.get(), 2);
        drop(one);
        assert_eq!(count.get(), 1);
        drop(other);
        assert_eq!(count.get(), 0);
    }
}
