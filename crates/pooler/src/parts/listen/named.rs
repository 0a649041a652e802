//! What a text says of LISTEN and UNLISTEN.

use crate::parts::listen::change::Taken;
use crate::session::scan::{OneOrAll, Verb};

/// What a text says of LISTEN and UNLISTEN.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) listens: Vec<Box<[u8]>>,
    pub(crate) unlistens: Vec<Taken>,
}

impl Named {
    pub(crate) fn add(&mut self, verb: &Verb) {
        match verb {
            Verb::Listen(name) => self.listens.push(name.as_bytes().into()),
            Verb::Unlisten(what) => self.unlistens.push(taken(what)),
            _ => {}
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.listens.is_empty() && self.unlistens.is_empty()
    }
}

pub(crate) fn taken(what: &OneOrAll) -> Taken {
    match what {
        OneOrAll::One(name) => Taken::One(name.as_bytes().into()),
        OneOrAll::All => Taken::All,
    }
}
