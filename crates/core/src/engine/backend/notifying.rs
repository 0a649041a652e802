//! What clients notify by a server connection, and whether it has been heard.

use crate::ids::ClientId;
use crate::time::Time;

/// Whether a client notifies by its backend, and others are to know by its process id that it is this client.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// Not by its own texts.
    No,
    /// A text that may do so is at hand.
    Due,
    /// It is noted ([`crate::pool::Notifiers`]), and what it has notified may not have been heard.
    Noted,
    /// It is noted, and has been heard, unless nobody listens.
    Heard,
}

/// Who notifies by a server connection.
#[derive(Debug)]
pub(in crate::engine) struct Notifying {
    stage: Stage,
    /// The client that has the connection, or had it last.
    holder: Option<ClientId>,
    /// When another client was done with it last.
    others_left: Time,
    /// The listening connection has heard all that was notified by it before its client had it.
    heard_before: bool,
}

impl Default for Notifying {
    fn default() -> Self {
        Self { stage: Stage::No, holder: None, others_left: Time::ZERO, heard_before: false }
    }
}

impl Notifying {
    /// This client has the connection from now on; the one before left at `since`. Whether it is another
    /// one.
    #[inline]
    pub(in crate::engine) fn is_lent_to(&mut self, client: ClientId, since: Time) -> bool {
        let is_another = self.holder.replace(client) != Some(client);
        if is_another {
            self.others_left = since;
        }
        is_another
    }

    /// Its client has left. `heard_on`: what is heard meanwhile is what its clients have notified.
    #[inline]
    pub(in crate::engine) fn leave_client(&mut self, heard_on: bool) {
        self.heard_before &= heard_on;
    }

    /// A text of its client that may notify is at hand.
    pub(in crate::engine) fn is_due(&mut self) {
        self.stage = Stage::Due;
    }

    /// A text that may notify is sent, if one was at hand: whether what was notified before its client had the
    /// connection has been heard, and when another client was done with it last.
    #[inline]
    pub(in crate::engine) fn take_due(&mut self) -> Option<(bool, Time)> {
        if self.stage != Stage::Due {
            return None;
        }
        self.stage = Stage::Noted;
        Some((self.heard_before, self.others_left))
    }

    /// Whether any of its clients is noted.
    #[inline]
    pub(in crate::engine) fn is_noted(&self) -> bool {
        self.stage != Stage::No
    }

    /// Whether something notified by it may not have been heard.
    pub(in crate::engine) fn is_unheard(&self) -> bool {
        self.stage == Stage::Noted
    }

    /// Whether all that was notified by it before its client had it has been heard.
    pub(in crate::engine) fn was_heard_before(&self) -> bool {
        self.heard_before
    }

    /// All has been heard that was notified by it, or is waited for no more. `here`: by the listening connection
    /// of its own server.
    pub(in crate::engine) fn is_heard_out(&mut self, here: bool) {
        self.stage = Stage::Heard;
        self.heard_before = here;
    }

    /// The listening connection has heard what was notified up to here.
    pub(in crate::engine) fn is_heard(&mut self) {
        self.heard_before = true;
        if self.stage == Stage::Noted {
            self.stage = Stage::Heard;
        }
    }

    /// Whether another client's notifications are noted still, which nobody waits for.
    #[inline]
    pub(in crate::engine) fn may_be_forgotten(&self) -> bool {
        self.stage == Stage::Heard
    }

    /// Its client goes, and nothing waits for what it has notified.
    pub(in crate::engine) fn is_left(&mut self) {
        self.stage = Stage::Heard;
    }

    /// What earlier clients have notified is forgotten.
    pub(in crate::engine) fn forget(&mut self) {
        self.stage = Stage::No;
    }
}
