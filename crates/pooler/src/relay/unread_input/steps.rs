//! Reads on where an event has left bytes unread.

use crate::relay::host::Host;
use crate::relay::socket::Socket;
use crate::relay::table::Engine;
use crate::time::Time;

impl<S: Socket> Engine<S> {
    /// Handles the connections that were noted before this call.
    pub(crate) fn see_again<H: Host<S>>(&mut self, host: &mut H, now: Time) {
        // Those that are noted again meanwhile wait for the next turn. Each leaves the list only
        // when it is handled: a panic at one must not lose the others.
        for _ in 0..self.again.noted.len() {
            let Some((token, ready)) = self.again.noted.pop_front() else { return };
            self.again.at = Some(token);
            self.on_event(host, token, ready, now);
            self.again.at = None;
        }
    }
}
