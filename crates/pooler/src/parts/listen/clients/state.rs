//! What a client does for its channels.

use crate::parts::listen::clients::{Listening, Stage};
use crate::relay::client::Client;
use crate::relay::socket::Socket;
use crate::session::part::{Part, PartSet};

impl<S: Socket> Client<S> {
    pub(super) fn listening(&mut self) -> Option<&mut Listening> {
        self.pending_session.as_mut()?.listening.as_deref_mut()
    }

    /// The same, to look at.
    pub(super) fn listening_ref(&self) -> Option<&Listening> {
        self.pending_session.as_ref()?.listening.as_deref()
    }

    pub(super) fn stage(&self) -> Stage {
        self.listening_ref().map_or(Stage::AtRest, |listening| listening.stage)
    }

    /// Whether only the server knows its statements: a query of Hawser's would remove the unnamed one.
    pub(super) fn has_native_statements(&self) -> bool {
        let native = PartSet::of(&[Part::UnnamedStatement, Part::ProtocolStatement]);
        self.session.pins.intersects(native)
    }

    /// Whether it listens without a backend of its own, or is about to.
    #[inline]
    pub(crate) fn listens(&self) -> bool {
        self.listening_ref().is_some()
    }

    /// Whether its backend may listen on something for it.
    pub(crate) fn keeps_backend_to_listen(&self) -> bool {
        self.listening_ref().is_some_and(|listening| {
            listening.stage != Stage::AtRest || !listening.pending.is_empty() || listening.shown
        })
    }

    /// Whether its messages must wait for the listening connection.
    pub(crate) fn awaits_listener(&self) -> bool {
        self.stage() != Stage::AtRest
    }

    /// How many channels another connection than its backend listens on for it.
    pub(crate) fn channel_count(&self) -> usize {
        self.listening_ref().map_or(0, |listening| listening.channels.len())
    }

    pub(super) fn has_channels(&self) -> bool {
        self.listening_ref().is_some_and(|listening| !listening.channels.is_empty())
    }
}
