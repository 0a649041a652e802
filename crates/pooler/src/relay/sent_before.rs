//! What has been sent to a server before the current message, which waits for the outcome.
//!
//! # Model
//! A message that must wait is processed again from its start once the answers have come. What the
//! first run has sent for it is noted here, with its outcome, so that it is not sent twice.
//!
//! # Invariant
//! While the message waits, the server connection is not given back, even though the server owes
//! nothing: the next client would remove what was sent.

/// What has been sent before the current message.
#[derive(Default, Debug)]
pub(crate) struct Ahead {
    /// The message waits for the answers.
    waits: bool,
    own_names: OwnNames,
    /// Statements were sent that the message lists, under their client's own names.
    listed: bool,
    /// A ROLLBACK was sent; the message, a Query, begins with it.
    rolled_back: bool,
}

/// The outcome of statements that a Query refers to by its client's own names.
#[derive(Default, Debug)]
enum OwnNames {
    /// The message waits for none.
    #[default]
    No,
    /// They have been sent.
    UnderWay,
    /// The server has refused one with this error.
    Refused(Box<[u8]>),
}

impl Ahead {
    /// Something is sent that the current message waits for.
    pub(crate) fn begin(&mut self) {
        self.waits = true;
    }

    /// The current message waits. `brought`: something was sent for it.
    pub(crate) fn wait(&mut self, brought: bool) {
        self.waits |= brought;
    }

    /// All that was sent before has been answered.
    #[inline]
    pub(crate) fn end(&mut self) {
        self.waits = false;
    }

    #[inline]
    pub(crate) fn waits(&self) -> bool {
        self.waits
    }

    /// Statements are sent under their client's own names.
    pub(crate) fn bring_own_names(&mut self) {
        self.own_names = OwnNames::UnderWay;
    }

    /// The server has refused one of these.
    pub(crate) fn own_name_refused(&mut self, error: &[u8]) {
        if let OwnNames::UnderWay = self.own_names {
            self.own_names = OwnNames::Refused(error.into());
        }
    }

    /// The error with which the server has refused one of these, for the message that has waited.
    pub(crate) fn take_refused(&mut self) -> Option<Box<[u8]>> {
        match std::mem::take(&mut self.own_names) {
            OwnNames::Refused(error) => Some(error),
            OwnNames::No | OwnNames::UnderWay => None,
        }
    }

    /// Statements are sent that the message lists; the server may refuse them.
    pub(crate) fn list(&mut self) {
        (self.waits, self.listed) = (true, true);
    }

    /// Whether these have been sent for the current message.
    pub(crate) fn take_listed(&mut self) -> bool {
        std::mem::take(&mut self.listed)
    }

    /// The ROLLBACK of the current Query is sent before the rest of it.
    pub(crate) fn roll_back(&mut self) {
        (self.waits, self.rolled_back) = (true, true);
    }

    /// Whether the ROLLBACK of the current Query has been sent.
    pub(crate) fn take_rolled_back(&mut self) -> bool {
        std::mem::take(&mut self.rolled_back)
    }

    /// The next client's message must not see the outcome of an earlier client's.
    pub(crate) fn forget_outcome(&mut self) {
        self.own_names = OwnNames::No;
        (self.listed, self.rolled_back) = (false, false);
    }
}
