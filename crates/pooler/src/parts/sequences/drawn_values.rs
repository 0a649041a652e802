//! Which client's values of sequences a server connection answers currval and lastval with.
//!
//! # Model
//! ```text
//!   lent ──► the client draws ──► given back: what it drew is another's for the next client
//!                                       │
//!   before the next may ask ◄── discarded (DISCARD SEQUENCES), or the pool keeps those who ask
//! ```
//! A client that gets the connection back, and has had no other in between, finds its own values,
//! unless another client has drawn there, too: then it is not known whose they are.
//!
//! [`crate::parts::sequences`] decides what is discarded and when.

use crate::ids::ClientId;
use crate::parts::sequences::asking::TextClass;

/// A client's use of a server connection: the how manieth connection that the client has had.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lent {
    pub(crate) client: ClientId,
    pub(crate) number: u32,
}

impl Lent {
    /// The same client has it again, after no other connection.
    fn follows(self, before: Self) -> bool {
        self.client == before.client && self.number == before.number.wrapping_add(1)
    }
}

/// Whose values currval and lastval return.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Owner {
    /// None have been drawn, or they have been discarded.
    #[default]
    None,
    /// One client has drawn all of them; when it last had the connection.
    One(Lent),
    /// Several may have, or one that has drawn elsewhere since.
    Uncertain,
}

/// What has been drawn from sequences on a server connection.
#[derive(Default, Debug)]
pub(crate) struct Drawn {
    /// Since it was lent, its client has sent something that may have drawn.
    by_client: bool,
    /// Whose values were there before.
    owner: Owner,
    lent: Option<Lent>,
    /// Since it was lent, the values that currval and lastval would return have been discarded.
    discarded: bool,
    last: Option<Last>,
    /// The text by which its client last drew.
    text: Option<TextClass>,
    /// The client has asked for that value since.
    is_asked: bool,
    /// The number of transactions since then for which its client has kept the connection, to ask.
    kept: u8,
}

/// The last thing that its client has done in this transaction, in a pool that asks for such
/// values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Last {
    Drew,
    Asked,
}

impl Drawn {
    /// Its client sends something that may draw, or may not.
    #[inline]
    pub(crate) fn note(&mut self, may_draw: bool) {
        self.by_client |= may_draw;
    }

    /// Whether its client may have drawn since it was lent.
    #[inline]
    pub(crate) fn by_client(&self) -> bool {
        self.by_client
    }

    /// Whether other clients may have drawn, and currval and lastval return their values.
    pub(crate) fn by_others(&self) -> bool {
        match self.owner {
            Owner::None => false,
            Owner::One(by) => Some(by) != self.lent,
            Owner::Uncertain => true,
        }
    }

    /// It is lent. Returns whether its client had it before, and no other since.
    pub(crate) fn is_lent(&mut self, lent: Lent) -> bool {
        if let Owner::One(by) = &mut self.owner
            && by.client == lent.client
        {
            match lent.follows(*by) {
                true => *by = lent,
                false => self.owner = Owner::Uncertain,
            }
        }
        self.lent.replace(lent).is_some_and(|before| lent.follows(before))
    }

    /// Whether all values on the connection are its client's own.
    pub(crate) fn is_all_its_own(&self) -> bool {
        self.discarded || !self.by_others()
    }

    pub(crate) fn is_discarded(&self) -> bool {
        self.discarded
    }

    /// The values are discarded; `alone`: by a command that no failing pipeline undoes.
    pub(crate) fn discard(&mut self, alone: bool) {
        if alone {
            self.owner = Owner::None;
        }
        self.discarded = true;
    }

    /// The command may have been ignored: the values are discarded again before the client asks.
    pub(crate) fn discard_again(&mut self) {
        self.discarded = false;
    }

    /// A reset has discarded everything that other clients drew.
    pub(crate) fn forget_others(&mut self) {
        self.owner = Owner::None;
    }

    /// It goes back to its pool.
    pub(crate) fn give_back(&mut self) {
        if std::mem::take(&mut self.by_client) {
            self.owner = match self.lent {
                Some(lent) if !self.by_others() => Owner::One(lent),
                _ => Owner::Uncertain,
            };
        }
        self.discarded = false;
        self.last = None;
        self.text = None;
        self.is_asked = false;
        self.kept = 0;
    }

    /// The text by which its client last drew, if known.
    pub(crate) fn known_text(&self) -> Option<TextClass> {
        self.text
    }

    /// The same, or the class of all unknown texts.
    pub(crate) fn text(&self) -> TextClass {
        self.text.unwrap_or_default()
    }

    /// Its client draws by this text.
    pub(crate) fn note_text(&mut self, text: TextClass) {
        (self.text, self.is_asked) = (Some(text), false);
    }

    pub(crate) fn note_last(&mut self, last: Last) {
        self.last = Some(last);
    }

    /// Whether the end of the transaction matters for this.
    #[inline]
    pub(crate) fn has_last(&self) -> bool {
        self.last.is_some()
    }

    pub(crate) fn take_last(&mut self) -> Option<Last> {
        self.last.take()
    }

    /// Its client has asked: it does not keep the connection for that any more.
    pub(crate) fn asked(&mut self) {
        (self.is_asked, self.kept) = (true, 0);
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.is_asked
    }

    /// Its client keeps the connection to ask. Returns for how many transactions it has done so.
    pub(crate) fn keep(&mut self) -> u8 {
        self.kept = self.kept.saturating_add(1);
        self.kept
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::{LoopId, Slot};

    fn lent(client: u32, number: u32) -> Lent {
        let slot = Slot { index: client, generation: 0 };
        Lent { client: ClientId { home: LoopId(0), slot }, number }
    }

    #[test]
    fn what_a_client_drew_is_another_s_after_it() {
        let mut drawn = Drawn::default();
        drawn.is_lent(lent(1, 1));
        drawn.note(false);
        assert!(drawn.is_all_its_own());
        drawn.note(true);
        assert!(drawn.by_client() && drawn.is_all_its_own());
        drawn.give_back();
        drawn.is_lent(lent(2, 7));
        assert!(!drawn.by_client() && drawn.by_others() && !drawn.is_all_its_own());
        // Within a pipeline that may fail, the values stay others' until the outcome is known.
        drawn.discard(false);
        assert!(drawn.is_all_its_own() && drawn.by_others());
        drawn.discard_again();
        assert!(!drawn.is_all_its_own());
        drawn.discard(true);
        drawn.give_back();
        drawn.is_lent(lent(1, 2));
        assert!(drawn.is_all_its_own() && !drawn.is_discarded());
    }

    #[test]
    fn what_a_client_drew_is_its_own_until_it_has_another_connection_or_another_draws() {
        for (between, number, by_others) in [
            (None, 2, false),
            (None, 3, true), // it has had another connection in between
            (Some((2, false)), 2, false),
            (Some((2, true)), 2, true),
        ] {
            let mut drawn = Drawn::default();
            drawn.is_lent(lent(1, 1));
            drawn.note(true);
            drawn.give_back();
            if let Some((client, draws)) = between {
                assert!(!drawn.is_lent(lent(client, 5)));
                assert!(drawn.by_others());
                drawn.note(draws);
                drawn.give_back();
            }
            drawn.is_lent(lent(1, number));
            assert_eq!(drawn.by_others(), by_others, "{between:?} {number}");
            // More of its own does not make them its own.
            drawn.note(true);
            drawn.give_back();
            drawn.is_lent(lent(1, number + 1));
            assert_eq!(drawn.by_others(), by_others, "{between:?} {number}");
        }
    }
}
