//! What has gone to a server before the message at hand, which waits for the outcome.
//!
//! # Model
//! A message that must wait is dealt with again from its start once the answers have come. What the first
//! time has sent for it is noted here: that it is not sent twice, and what has come of it.
//!
//! # Invariant
//! While the message waits, the server connection is not given back, though the server owes nothing: the
//! next client would take away what was brought.

/// What has gone before the message at hand.
#[derive(Default, Debug)]
pub(super) struct Ahead {
    /// The message waits for it.
    waits: bool,
    own_names: OwnNames,
    /// A ROLLBACK with which the message, a Query, begins.
    rolled_back: bool,
}

/// What has come of statements that a Query means by its client's own names.
#[derive(Default, Debug)]
enum OwnNames {
    /// It waits for none.
    #[default]
    No,
    /// They are under way.
    UnderWay,
    /// The server has refused one, with this error.
    Refused(Box<[u8]>),
}

impl Ahead {
    /// Something is sent that the message at hand waits for.
    pub(super) fn begin(&mut self) {
        self.waits = true;
    }

    /// The message at hand waits; `brought`: what it waits for was sent for its sake.
    pub(super) fn wait(&mut self, brought: bool) {
        self.waits |= brought;
    }

    /// All that was sent before has been answered.
    #[inline]
    pub(super) fn end(&mut self) {
        self.waits = false;
    }

    #[inline]
    pub(super) fn waits(&self) -> bool {
        self.waits
    }

    /// Statements go to the server by their client's own names.
    pub(super) fn bring_own_names(&mut self) {
        self.own_names = OwnNames::UnderWay;
    }

    /// The server has refused one of those.
    pub(super) fn own_name_refused(&mut self, error: &[u8]) {
        if let OwnNames::UnderWay = self.own_names {
            self.own_names = OwnNames::Refused(error.into());
        }
    }

    /// The error with which the server has refused one, for the message that has waited.
    pub(super) fn take_refused(&mut self) -> Option<Box<[u8]>> {
        match std::mem::take(&mut self.own_names) {
            OwnNames::Refused(error) => Some(error),
            OwnNames::No | OwnNames::UnderWay => None,
        }
    }

    /// The ROLLBACK of the Query at hand goes before it.
    pub(super) fn roll_back(&mut self) {
        (self.waits, self.rolled_back) = (true, true);
    }

    /// Whether the ROLLBACK of the Query at hand has gone before it.
    pub(super) fn take_rolled_back(&mut self) -> bool {
        std::mem::take(&mut self.rolled_back)
    }

    /// What a client before has left is not for the next one's message.
    pub(super) fn forget_outcome(&mut self) {
        self.own_names = OwnNames::No;
        self.rolled_back = false;
    }
}
