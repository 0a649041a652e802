//! Records each message that is sent to a server: what it owes for it, and the effect on the
//! pipeline that the message belongs to.
//!
//! # Model
//! ```text
//!   Sync ──► Bind Execute Bind Execute ──► Sync      one implicit transaction of the client's
//!                        ▲
//!                        └── a Query or Sync of Hawser's after an Execute would commit the first half
//! ```
//! # Invariants
//! * no query of Hawser's, and after an Execute no Sync of Hawser's, is sent within a pipeline that
//!   a client has begun
//! * only a Sync ends a pipeline within which settings are sent ([`crate::parts::settings::within_pipeline`])
//!
//! Code that would violate one of these is wrong. In debug builds, and so in the simulation, it
//! panics. Elsewhere the connection is *broken off*: what was made for it is not written, nor
//! anything after that, its client gets an error, and it is closed.

use crate::relay::backend::Backend;
use crate::relay::request_queue::{Change, Entry, Request};
use crate::relay::socket::Socket;

impl<S: Socket> Backend<S> {
    /// Records what the server owes for a message that is being sent.
    #[inline]
    pub(crate) fn request(&mut self, owed: Request) {
        self.request_with(owed, None);
    }

    /// The same for a message that changes the books.
    #[inline]
    pub(crate) fn request_with(&mut self, owed: Request, change: Option<Change>) {
        if self.requests.is_in_pipeline()
            && owed.ends_with_ready()
            && !self.requests.is_skipping_to_sync()
            && self.would_be_cut_by(owed)
        {
            self.break_off("a query of the pooler's would have ended its client's pipeline");
        }
        self.requests.push(Entry { owed, change, query: None });
    }

    /// Whether this must not end the current pipeline.
    fn would_be_cut_by(&self, expect: Request) -> bool {
        expect.is_injected_query()
            || (expect == Request::InjectedSync && self.requests.is_after_execute())
            || (self.session.within.is_some() && !expect.ends_ignoring())
    }

    /// The books are wrong: nothing is written to the connection any more.
    #[cold]
    fn break_off(&mut self, why: &'static str) {
        #[cfg(not(test))] // the engine's own tests examine the outcome
        debug_assert!(!self.requests.is_in_pipeline(), "{why}: {:?}", self.requests);
        self.to_server.break_off(why);
    }
}
