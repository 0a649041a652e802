//! Whose a server connection's session is, where its server is told that.

use std::sync::Arc;

use crate::engine::client_identity::ClientIdentity;
use crate::engine::hand_over::{HandOver, HandOverKey, basis_of};
use crate::ids::ClientId;
use crate::pool::{Basis, ServerParameters, SharedPool};

/// Whose it is.
pub(in crate::engine) struct Ownership(Owner);

enum Owner {
    /// One user's. Its server is told of each client, if this is there.
    OneUser(Option<Box<ClientIdentity>>),
    /// Of a pool that users share: nothing is sent to it for a client whose it is not. `None`: it is nobody's.
    Shared(Option<Box<HandOver>>),
}

impl Ownership {
    /// Of a server connection of this pool that has just been opened.
    pub(super) fn new<B>(
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
    pub(in crate::engine) fn is_shared(&self) -> bool {
        matches!(self.0, Owner::Shared(_))
    }

    /// Whether its server is told nothing of its clients.
    #[inline]
    pub(in crate::engine) fn is_untold(&self) -> bool {
        matches!(self.0, Owner::OneUser(None))
    }

    /// The number of these own values of its session's.
    pub(in crate::engine) fn basis_of<B>(
        &self,
        pool: &SharedPool<B>,
        parameters: &Arc<ServerParameters>,
    ) -> Basis {
        basis_of(pool, self.hand_over(), parameters)
    }

    /// Who has it, where users share it.
    pub(in crate::engine) fn hand_over(&self) -> Option<&HandOver> {
        match &self.0 {
            Owner::Shared(hand_over) => hand_over.as_deref(),
            Owner::OneUser(_) => None,
        }
    }

    pub(in crate::engine) fn hand_over_mut(&mut self) -> Option<&mut HandOver> {
        match &mut self.0 {
            Owner::Shared(hand_over) => hand_over.as_deref_mut(),
            Owner::OneUser(_) => None,
        }
    }

    /// What its server is told of the clients of its one user, if it is.
    #[inline]
    pub(in crate::engine) fn client_identity(&self) -> Option<&ClientIdentity> {
        match &self.0 {
            Owner::OneUser(told) => told.as_deref(),
            Owner::Shared(_) => None,
        }
    }

    #[inline]
    pub(in crate::engine) fn client_identity_mut(&mut self) -> Option<&mut ClientIdentity> {
        match &mut self.0 {
            Owner::OneUser(told) => told.as_deref_mut(),
            Owner::Shared(_) => None,
        }
    }

    /// What comes next is this client's.
    #[inline]
    pub(in crate::engine) fn is_now(&mut self, client: ClientId, process: u32) {
        if let Some(told) = self.client_identity_mut() {
            told.is_now(client, process);
        }
    }

    /// Whether its server is to be told of its client before the next message.
    #[inline]
    pub(in crate::engine) fn is_due(&self) -> bool {
        self.client_identity().is_some_and(ClientIdentity::is_due)
    }
}
