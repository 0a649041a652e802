//! The connections of all loops, a page at a time, for SHOW and all others that look at many.
//!
//! # Model
//! ```text
//!   next ─► ask the loop for a page ─► rows ─► (written, counted ...) ─► next ─► ... ─► the next loop
//! ```
//! A loop has one question at a time, whoever asks: so what all consoles, scrapes and extensions ask for
//! costs it one page a turn ([`PAGE_PLACES`](hawser_pooler::relay::limits::PAGE_PLACES)). It keeps nothing
//! between two pages, and one who does not take his rows costs nothing.
//!
//! # Limits
//! Rows are of the moment of their page: a client that comes or leaves meanwhile is there or is not.

use std::time::Duration;

use hawser_pooler::ids::LoopId;
use hawser_pooler::relay::ToLoop;
use hawser_pooler::relay::message::{Listed, Page, PageRequest};
use hawser_pooler::wire::error::{ClientError, SqlState};
use tokio::sync::oneshot;

use super::Loops;

/// How long a loop may take for a page.
const PAGE_WAIT: Duration = Duration::from_secs(5);

/// A loop has not answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("event loop {0} does not answer")]
pub struct LoopSilent(LoopId);

impl From<LoopSilent> for ClientError {
    fn from(silent: LoopSilent) -> Self {
        Self::error(SqlState::SYSTEM_ERROR, silent.to_string())
            .hint("The SHOW commands that list no connections do not ask the loops. Try again.")
    }
}

/// Pages still to be asked for.
#[derive(Debug)]
pub struct Pages<'a> {
    loops: &'a Loops,
    listed: Listed,
    addresses: bool,
    /// The next loop to be asked, and from where.
    at: (u16, u32),
}

impl<'a> Pages<'a> {
    /// All connections of this kind. `addresses`: with Hawser's end of each.
    pub fn new(loops: &'a Loops, listed: Listed, addresses: bool) -> Self {
        Self { loops, listed, addresses, at: (0, 0) }
    }

    /// The next page; `None` after the last.
    ///
    /// # Errors
    /// The loop did not answer within [`PAGE_WAIT`].
    pub async fn next(&mut self) -> Result<Option<Page>, LoopSilent> {
        let (home, from) = self.at;
        let Some(place) = self.loops.places.get(usize::from(home)) else { return Ok(None) };
        let home = LoopId(home);
        let turn = place.asked.lock().await;
        let (sender, receiver) = oneshot::channel();
        let reply = move |page| {
            // The one who asked may have left.
            let _ = sender.send(page);
        };
        let request = PageRequest { listed: self.listed, addresses: self.addresses, from };
        self.loops.send(home, ToLoop::Page(request, Box::new(reply)));
        let Ok(Ok(page)) = tokio::time::timeout(PAGE_WAIT, receiver).await else {
            return Err(LoopSilent(home));
        };
        drop(turn);
        self.at = match page.next {
            Some(from) => (home.0, from),
            None => (home.0 + 1, 0),
        };
        Ok(Some(page))
    }
}
