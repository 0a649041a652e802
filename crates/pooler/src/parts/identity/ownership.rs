//! Which user or client a server connection's session belongs to, if its server is informed of
//! that.

use std::sync::Arc;

use crate::ids::ClientId;
use crate::lending::SharedPool;
use crate::parts::identity::client_identity::ClientIdentity;
use crate::parts::identity::hand_over::{HandOver, HandOverKey, basis_of};
use crate::parts::start_values::basis::Basis;
use crate::parts::start_values::parameters::ServerParameters;

/// The owner of the session.
pub(crate) struct Ownership(Owner);

enum Owner {
    /// One user. The server is informed of each client, if this is there.
    OneUser(Option<Box<ClientIdentity>>),
    /// In a pool that users share: nothing is sent for a client before the session has been handed
    /// over to it. `None`: it belongs to no client.
    Shared(Option<Box<HandOver>>),
}

impl Ownership {
    /// For a server connection of this pool that has just been opened.
    pub(crate) fn new<B>(
        pool: &SharedPool<B>,
        key: Option<HandOverKey>,
        parameters: &ServerParameters,
    ) -> Self {
        let hand_over = |key| Box::new(HandOver::new(key, &pool.user, parameters));
        Self(match pool.is_shared_by_users() {
            true => Owner::Shared(key.map(hand_over)),
            false => Owner::OneUser(key.map(|key| Box::new(ClientIdentity::new(key)))),
        })
    }

    /// Whether users share its pool.
    #[inline]
    pub(crate) fn is_shared(&self) -> bool {
        matches!(self.0, Owner::Shared(_))
    }

    /// Whether its server is not informed of its clients.
    #[inline]
    pub(crate) fn is_untold(&self) -> bool {
        matches!(self.0, Owner::OneUser(None))
    }

    /// The basis of these own values of its session.
    pub(crate) fn basis_of<B>(
        &self,
        pool: &SharedPool<B>,
        parameters: &Arc<ServerParameters>,
    ) -> Basis {
        basis_of(pool, self.hand_over(), parameters)
    }

    /// The state of the hand-over, if users share it.
    pub(crate) fn hand_over(&self) -> Option<&HandOver> {
        match &self.0 {
            Owner::Shared(hand_over) => hand_over.as_deref(),
            Owner::OneUser(_) => None,
        }
    }

    pub(crate) fn hand_over_mut(&mut self) -> Option<&mut HandOver> {
        match &mut self.0 {
            Owner::Shared(hand_over) => hand_over.as_deref_mut(),
            Owner::OneUser(_) => None,
        }
    }

    /// Which client the server has been informed of, if it takes that.
    #[inline]
    pub(crate) fn client_identity(&self) -> Option<&ClientIdentity> {
        match &self.0 {
            Owner::OneUser(identity) => identity.as_deref(),
            Owner::Shared(_) => None,
        }
    }

    #[inline]
    pub(crate) fn client_identity_mut(&mut self) -> Option<&mut ClientIdentity> {
        match &mut self.0 {
            Owner::OneUser(identity) => identity.as_deref_mut(),
            Owner::Shared(_) => None,
        }
    }

    /// The next message is this client's.
    #[inline]
    pub(crate) fn is_now(&mut self, client: ClientId, process: u32) {
        if let Some(identity) = self.client_identity_mut() {
            identity.is_now(client, process);
        }
    }

    /// Whether its server is to be informed of its client before the next message.
    #[inline]
    pub(crate) fn is_due(&self) -> bool {
        self.client_identity().is_some_and(ClientIdentity::is_due)
    }
}
