//! What the functions of a database do to sessions, as clients and server connections look it up.

use std::sync::Arc;

use crate::lending::SharedPool;
use crate::parts::functions::census::{Census, Reader};
use crate::parts::functions::variables::FunctionNames;
use crate::relay::effects::Effects;

/// The functions of a pool that do something to sessions.
#[derive(Clone, Debug)]
pub(crate) struct Functions {
    /// After a call of one of these no other client may have the connection, as the configuration
    /// says.
    named: Arc<FunctionNames>,
    census: Option<Arc<Census>>,
}

impl Functions {
    /// `None` if there is none.
    pub(crate) fn of<B>(pool: &SharedPool<B>) -> Option<Box<Self>> {
        let named = pool.settings().stateful_functions.clone();
        let census = pool.census().filter(|census| census.speaks() || census.drawing.is_some());
        (!named.is_empty() || census.is_some()).then(|| Box::new(Self { named, census }))
    }

    /// The effects of a text, with those of the functions that it may call. `reported`: the server
    /// reports its sessions, which covers what functions do and what the client could not do
    /// itself.
    pub(crate) fn add_to(&self, effects: Effects, text: &[u8], reported: bool) -> Effects {
        let mut effects = if !self.named.is_empty() && self.named.stand_in(text) {
            effects.and_keeps_variables()
        } else {
            effects
        };
        if let Some(more) = self.census(reported).and_then(|census| census.of_text(text)) {
            effects.absorb(&more);
        }
        effects
    }

    /// Whether a look at its parentheses shows that a text calls nothing: most databases have no function that does
    /// anything to sessions, and this is asked for each simple query.
    #[inline]
    pub(crate) fn say_nothing_of(&self, text: &[u8]) -> bool {
        self.named.is_empty()
            && self.census.as_ref().is_none_or(|census| census.is_empty())
            && memchr::memchr(b'(', text).is_none()
    }

    fn census(&self, reported: bool) -> Option<&Arc<Census>> {
        let all = self.census.as_ref()?;
        if reported { all.unreported.as_ref() } else { Some(all).filter(|all| all.speaks()) }
    }

    /// Whether a text reaches a function that may draw from a sequence.
    pub(crate) fn draw(&self, text: &[u8]) -> bool {
        let drawing = self.census.as_ref().and_then(|census| census.drawing.as_ref());
        drawing.is_some_and(|drawing| drawing.of_text(text).is_some())
    }

    /// Whether the configuration names functions: a text that is too long to be examined as a whole
    /// cannot be read for their names.
    pub(crate) fn are_named(&self) -> bool {
        !self.named.is_empty()
    }

    /// Reads a text that comes in chunks. `reported`: see [`Self::add_to`].
    pub(crate) fn reader(&self, reported: bool) -> Option<Reader> {
        self.census(reported).cloned().map(Reader::new)
    }
}
