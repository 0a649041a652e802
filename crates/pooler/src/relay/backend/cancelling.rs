//! Cancel requests for what a server connection is doing.

use crate::ids::LoopId;
use crate::relay::backend::{Backend, Tidying};
use crate::relay::host::{CancelRequest, Host};
use crate::relay::request_queue::Request;
use crate::relay::socket::Socket;

impl<S: Socket> Backend<S> {
    /// Cancels what its client has sent so far. At once, unless the signal could hit a query of
    /// Hawser's (trap 16): the client's query would then run on, under settings that are not its
    /// own.
    pub(crate) fn cancel_what_was_sent<H: Host<S>>(&mut self, host: &mut H, reply_to: LoopId) {
        self.cancel_what_is_being_sent();
        self.cancel_if_due(host, reply_to);
    }

    /// Cancels also what is about to be written: a server that has not received it ignores the
    /// signal.
    pub(crate) fn cancel_what_is_being_sent(&mut self) {
        self.lending.cancel_due = Some(self.requests.next_pipeline());
    }

    /// Sends the cancel request that is due, if that is safe now.
    #[inline]
    pub(crate) fn cancel_if_due<H: Host<S>>(&mut self, host: &mut H, reply_to: LoopId) {
        if let Some(end) = self.lending.cancel_due {
            self.cancel_when_safe(host, reply_to, end);
        }
    }

    /// `end`: the first pipeline that the request is not for.
    #[cold]
    fn cancel_when_safe<H: Host<S>>(&mut self, host: &mut H, reply_to: LoopId, end: u64) {
        let ours = self.requests.has_injected_query()
            || (self.requests.contains(Request::InjectedSync)
                && self.lending.tidying == Tidying::No);
        if ours {
            return;
        }
        self.lending.cancel_due = None;
        if !self.requests.is_empty() && !self.requests.has_come_to(end) {
            self.cancel(host, reply_to);
        }
    }

    /// Cancels whatever the server does for this backend.
    pub(crate) fn cancel<H: Host<S>>(&mut self, host: &mut H, reply_to: LoopId) {
        self.lending.cancels_in_flight += 1;
        host.cancel(CancelRequest {
            server: self.server(),
            process: self.process(),
            key: self.identity.key.clone(),
            reply_to,
            backend: self.place(),
        });
    }
}
