//! What the functions of a database do to sessions, as clients and server connections look it up.

use std::sync::Arc;

use super::{Census, Reader};
use crate::engine::effects::Effects;
use crate::pool::SharedPool;
use crate::session::functions::FunctionNames;

/// The functions of a pool that do something to sessions.
#[derive(Clone, Debug)]
pub(in crate::engine) struct Functions {
    /// Behind whose calls no other client may come, as the configuration says.
    named: Arc<FunctionNames>,
    census: Option<Arc<Census>>,
}

impl Functions {
    /// `None` if there is none.
    pub(in crate::engine) fn of<B>(pool: &SharedPool<B>) -> Option<Box<Self>> {
        let named = pool.settings().stateful_functions.clone();
        let census = pool.census().filter(|census| !census.is_empty());
        (!named.is_empty() || census.is_some()).then(|| Box::new(Self { named, census }))
    }

    /// The effects of a text, with those of the functions that it may call; by the census, or only of
    /// those that the configuration names.
    pub(in crate::engine) fn add_to(&self, effects: Effects, text: &[u8], census: bool) -> Effects {
        let mut effects = if !self.named.is_empty() && self.named.stand_in(text) {
            effects.and_keeps_variables()
        } else {
            effects
        };
        let counts = |all: &&Arc<Census>| census || all.executes_strings;
        if let Some(more) = self.census.as_ref().filter(counts).and_then(|all| all.of_text(text)) {
            if census {
                effects.absorb(&more);
            } else {
                effects.executes_strings |= more.executes_strings; // no report tells before
            }
        }
        effects
    }

    /// Whether a text that is too long to be looked at as a whole can be read for the names that the
    /// configuration has: it cannot.
    pub(in crate::engine) fn are_named(&self) -> bool {
        !self.named.is_empty()
    }

    /// Reads a text that comes in chunks.
    pub(in crate::engine) fn reader(&self) -> Option<Reader> {
        self.census.clone().map(Reader::new)
    }
}
