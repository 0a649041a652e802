//! What is sent to a server is noted here: what it owes for it, and what it does to the pipeline that it
//! goes into.
//!
//! # Model
//! ```text
//!   Sync ──► Bind Execute Bind Execute ──► Sync      one implicit transaction of the client's
//!                        ▲
//!                        └── a Query of ours, or a Sync of ours after an Execute, would commit the first half
//! ```
//! # Invariants
//! * no query of ours, and after an Execute no Sync of ours, goes into a pipeline that a client has begun
//! * nothing but a Sync ends a pipeline in which settings travel ([`super::within`])
//!
//! Code that would break one of these is wrong. In debug builds, and so in the simulation, it panics.
//! Elsewhere the connection is *broken off*: what has been made for it is not written, nor anything
//! more, its client gets an error, and it is closed.

use super::backend::Backend;
use super::request_queue::{Change, Entry, Request};
use super::socket::Socket;

impl<S: Socket> Backend<S> {
    /// Notes what a message that is being sent owes.
    #[inline]
    pub(super) fn request(&mut self, owed: Request) {
        self.request_with(owed, None);
    }

    /// The same of a message that changes something.
    #[inline]
    pub(super) fn request_with(&mut self, owed: Request, change: Option<Change>) {
        if self.requests.is_in_pipeline()
            && owed.ends_with_ready()
            && !self.requests.is_skipping_to_sync()
            && self.would_be_cut_by(owed)
        {
            self.break_off("a query of the pooler's would have ended its client's pipeline");
        }
        self.requests.push(Entry { owed, change });
    }

    /// Whether the pipeline under way must not be ended by this.
    fn would_be_cut_by(&self, expect: Request) -> bool {
        expect.is_injected_query()
            || (expect == Request::InjectedSync && self.requests.is_after_execute())
            || (self.session.within().is_some() && !expect.ends_ignoring())
    }

    /// Our own books are wrong: nothing is written to it any more.
    #[cold]
    fn break_off(&mut self, why: &'static str) {
        #[cfg(not(test))] // the engine's own tests look at what becomes of it
        debug_assert!(!self.requests.is_in_pipeline(), "{why}: {:?}", self.requests);
        self.to_server.break_off(why);
    }
}
