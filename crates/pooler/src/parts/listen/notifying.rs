//! What clients notify by a server connection, and whether the listening connection has received
//! it.

use crate::ids::ClientId;
use crate::time::Time;

/// Whether a client notifies by its backend, so that the backend's process id must identify it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// It does not by its own texts.
    No,
    /// The current text may notify.
    Due,
    /// The client is noted ([`crate::parts::listen::notifiers::Notifiers`]), and its notifications may not have been
    /// received.
    Noted,
    /// The client is noted, and its notifications have been received, if any connection listens.
    Received,
}

/// Who notifies by a server connection.
#[derive(Debug)]
pub(crate) struct Notifying {
    stage: Stage,
    /// The client that has the connection, or had it last.
    holder: Option<ClientId>,
    /// When another client last gave it back; long ago if there was none.
    others_left: Time,
    /// The listening connection has received everything notified by it before its client had it.
    received_before: bool,
}

impl Default for Notifying {
    fn default() -> Self {
        Self { stage: Stage::No, holder: None, others_left: Time::ZERO, received_before: false }
    }
}

impl Notifying {
    /// It is lent to this client; the one before left at `since`. Returns whether that was another
    /// one.
    #[inline]
    pub(crate) fn is_lent_to(&mut self, client: ClientId, since: Time) -> bool {
        let before = self.holder.replace(client);
        let is_another = before != Some(client);
        if is_another && before.is_some() {
            self.others_left = since;
        }
        is_another
    }

    /// Its client has left. `still_received`: a listening connection receives what its clients notify.
    #[inline]
    pub(crate) fn leave_client(&mut self, still_received: bool) {
        self.received_before &= still_received;
    }

    /// The current text of its client may notify.
    pub(crate) fn is_due(&mut self) {
        self.stage = Stage::Due;
    }

    /// A text is sent. If it may notify: whether everything notified before this client had the
    /// connection has been received, and when another client last gave it back.
    #[inline]
    pub(crate) fn take_due(&mut self) -> Option<(bool, Time)> {
        if self.stage != Stage::Due {
            return None;
        }
        self.stage = Stage::Noted;
        Some((self.received_before, self.others_left))
    }

    /// Whether one of its clients is noted.
    #[inline]
    pub(crate) fn is_noted(&self) -> bool {
        self.stage != Stage::No
    }

    /// Whether notifications by it may not have been received.
    pub(crate) fn is_unreceived(&self) -> bool {
        self.stage == Stage::Noted
    }

    /// Whether everything notified by it before its client had it has been received.
    pub(crate) fn was_received_before(&self) -> bool {
        self.received_before
    }

    /// Everything notified by it has been received, or is not waited for any more. `here`: by the
    /// listening connection of its own server.
    pub(crate) fn is_fenced(&mut self, here: bool) {
        self.stage = Stage::Received;
        self.received_before = here;
    }

    /// The listening connection has received everything notified so far.
    pub(crate) fn is_received(&mut self) {
        self.received_before = true;
        if self.stage == Stage::Noted {
            self.stage = Stage::Received;
        }
    }

    /// Whether another client is noted still whose notifications are not waited for.
    #[inline]
    pub(crate) fn may_be_forgotten(&self) -> bool {
        self.stage == Stage::Received
    }

    /// Its client leaves, and its notifications are not waited for.
    pub(crate) fn is_left(&mut self) {
        self.stage = Stage::Received;
    }

    /// Earlier clients are not noted any more.
    pub(crate) fn forget(&mut self) {
        self.stage = Stage::No;
    }
}
