//! Pages that have been made and not yet been taken by all who asked for them.
//!
//! # Model
//! ```text
//!   asked for ─► one whose making began later: that one (others asked, too)
//!            ├─► one of less than SHARED_FOR is still on its way to a client: the same one
//!            └─► else a new one; of more than UNSENT_MAX the oldest is withdrawn, and its readers are closed
//! ```
//! So a page is of the moment at which it was asked for, or later, unless a client reads slowly;
//! and however many ask at once, two pages are made for them.
//!
//! # Invariants
//! * of a page there is one copy, however many read it
//! * at most [`UNSENT_MAX`] pages, and of each kind the last one, and one that is being made
//!
//! # Why
//! Each request had its own copy: 120 clients that read nothing held 132 MiB with 400 pools.

use crate::lock::locked;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use hyper::body::Bytes;
use tokio::sync::Notify;

/// How old a page may be that is given to one more reader.
const SHARED_FOR: Duration = Duration::from_secs(1);
/// Pages that may be on their way.
const UNSENT_MAX: usize = 8;

/// A page that is still being read.
struct Page {
    text: String,
    begun: Instant,
    made: Instant,
    /// Bodies that have not been sent whole.
    held: AtomicUsize,
    /// Those whose connections are closed if it is withdrawn; as many as there are connections at most.
    readers: Mutex<Vec<Weak<Notify>>>,
}

/// What a connection's body holds: the page is there as long as it.
struct Held(Arc<Page>);

impl Held {
    fn of(page: Arc<Page>) -> Self {
        page.held.fetch_add(1, Ordering::Relaxed);
        Self(page)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Ordering::Relaxed);
    }
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        self.0.text.as_bytes()
    }
}

/// All pages that are on their way, oldest first.
#[derive(Default)]
pub(super) struct Unsent(Mutex<Vec<Weak<Page>>>);

/// Pages of one kind.
#[derive(Default)]
pub(super) struct Kind {
    last: tokio::sync::Mutex<Last>,
    waiting: AtomicUsize,
}

#[derive(Default)]
struct Last {
    page: Weak<Page>,
    /// The same, where there are some who wait for it.
    for_others: Option<Arc<Page>>,
}

/// One who waits for a page. (It may leave.)
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn among(all: &'a AtomicUsize) -> Self {
        all.fetch_add(1, Ordering::Relaxed);
        Self(all)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Kind {
    /// A page, one that others are reading or one that `make` makes. `closed` is notified if its
    /// reader must go.
    pub(super) async fn page(
        &self,
        unsent: &Unsent,
        closed: &Arc<Notify>,
        make: impl Future<Output = String>,
    ) -> Bytes {
        let asked = Instant::now();
        let waiting = Waiting::among(&self.waiting);
        let mut last = self.last.lock().await;
        drop(waiting);
        let is_unsent = |page: &Page| page.held.load(Ordering::Relaxed) > 0;
        let fits = |page: &Page| {
            page.begun >= asked || (is_unsent(page) && page.made.elapsed() < SHARED_FOR)
        };
        let shared = last.page.upgrade().filter(|page| fits(page));
        let page = match shared {
            Some(page) => page,
            None => {
                let (begun, text) = (Instant::now(), make.await);
                let (made, readers) = (Instant::now(), Mutex::default());
                let held = AtomicUsize::new(0);
                let page = Arc::new(Page { text, begun, made, held, readers });
                last.page = Arc::downgrade(&page);
                unsent.add(&page);
                page
            }
        };
        last.for_others = (self.waiting.load(Ordering::Relaxed) > 0).then(|| page.clone());
        drop(last);
        let mut readers = locked(&page.readers);
        readers.retain(|reader| reader.strong_count() > 0);
        readers.push(Arc::downgrade(closed));
        drop(readers);
        Bytes::from_owner(Held::of(page))
    }
}

impl Unsent {
    fn add(&self, page: &Arc<Page>) {
        let mut all = locked(&self.0);
        all.retain(|page| page.strong_count() > 0);
        all.push(Arc::downgrade(page));
        let withdrawn = all.len().saturating_sub(UNSENT_MAX);
        for page in all.drain(..withdrawn).filter_map(|page| page.upgrade()) {
            let readers = locked(&page.readers);
            readers.iter().filter_map(Weak::upgrade).for_each(|reader| reader.notify_one());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_reads_at_once_gets_a_new_page_and_slow_readers_share_one() {
        let (unsent, kind, closed) = (Unsent::default(), Kind::default(), Arc::default());
        let page = async |text: &str| {
            kind.page(&unsent, &closed, std::future::ready(text.to_owned())).await
        };
        assert_eq!(page("1").await, "1");
        let slow = page("2").await;
        assert_eq!(page("3").await.as_ptr(), slow.as_ptr(), "no copy");
        drop(slow);
        assert_eq!(page("4").await, "4");
    }

    /// One after another, a page each, they would hold the last one up for a minute.
    #[tokio::test]
    async fn for_all_who_ask_while_one_is_made_one_more_is_made() {
        let (unsent, kind, closed) = (Unsent::default(), Kind::default(), Arc::default());
        let made = AtomicUsize::new(0);
        let ask = || async {
            let make = async {
                tokio::task::yield_now().await;
                made.fetch_add(1, Ordering::Relaxed).to_string()
            };
            // Read at once.
            kind.page(&unsent, &closed, make).await.to_vec()
        };
        let pages = tokio::join!(ask(), ask(), ask(), ask());
        assert_eq!(pages, (b"0".to_vec(), b"1".to_vec(), b"1".to_vec(), b"1".to_vec()));
        assert!(kind.last.lock().await.for_others.is_none(), "nobody waits any more");
        assert_eq!(ask().await, b"2");
    }

    #[tokio::test]
    async fn of_too_many_unread_pages_the_oldest_goes() {
        let unsent = Unsent::default();
        let mut held = Vec::new();
        for number in 0..=UNSENT_MAX {
            // Each of its own kind: as if a second had passed.
            let (kind, closed) = (Kind::default(), Arc::new(Notify::new()));
            let text = std::future::ready(number.to_string());
            held.push((kind.page(&unsent, &closed, text).await, closed));
        }
        let mut gone = Vec::new();
        for (_, closed) in &held {
            let waited = tokio::time::timeout(Duration::ZERO, closed.notified()).await;
            gone.push(waited.is_ok());
        }
        assert!(gone[0] && !gone[1..].contains(&true), "{gone:?}");
    }
}
