//! Which of a loop's clients listen on which channel of a pool.

use std::collections::{BTreeMap, BTreeSet};

use crate::ids::Slot;
use crate::parts::listen::channel::Channel;

/// Which of a loop's clients listen on which channel of a pool.
#[derive(Debug, Default)]
pub(crate) struct Board {
    channels: BTreeMap<Channel, BTreeSet<Slot>>,
}

impl Board {
    /// A client starts listening. True if it is the first one here: the caller must then ask the
    /// hub.
    pub(crate) fn add(&mut self, client: Slot, channel: &Channel) -> bool {
        let clients = self.channels.entry(channel.clone()).or_default();
        let first = clients.is_empty();
        clients.insert(client);
        first
    }

    /// A client stops listening. True if it was the last one here: the caller must then notify the
    /// hub.
    pub(crate) fn remove(&mut self, client: Slot, channel: &Channel) -> bool {
        let Some(clients) = self.channels.get_mut(channel) else { return false };
        let last = clients.remove(&client) && clients.is_empty();
        if last {
            self.channels.remove(channel);
        }
        last
    }

    /// The clients that listen on a channel, in order.
    pub(crate) fn clients(&self, channel: &Channel) -> impl Iterator<Item = Slot> {
        self.channels.get(channel).into_iter().flatten().copied()
    }

    /// All clients that listen on anything.
    pub(crate) fn all_clients(&self) -> BTreeSet<Slot> {
        self.channels.values().flatten().copied().collect()
    }

    /// Whether no client listens.
    pub(crate) fn is_empty(&self) -> bool {
        self.channels.is_empty()
    }

    /// Channels on which clients of this loop listen.
    #[cfg(test)]
    pub(crate) fn channels(&self) -> impl Iterator<Item = &Channel> {
        self.channels.keys()
    }
}
