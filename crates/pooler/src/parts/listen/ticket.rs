//! What a loop asks of a hub, and the ticket by which a waiting client is found again.

use crate::ids::{LoopId, Slot};
use crate::parts::listen::channel::Channel;

/// A client waits for something of its pool's hub.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ticket {
    /// The client.
    pub slot: Slot,
    /// Which of its waits.
    pub serial: u32,
}

/// The one that waits for a pool's hub.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Claimant {
    /// A client.
    Client(Ticket),
    /// A backend of the loop, by its slot. No client gets it until the notifications of its last
    /// client have arrived.
    Backend(Slot),
}

/// What a loop asks of a hub.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ask {
    /// Channels that its first client wants.
    pub listen: Vec<Channel>,
    /// Channels that none of its clients wants any more.
    pub unlisten: Vec<Channel>,
    /// The one that waits until that is in force, and until notifications committed before are
    /// delivered.
    pub claimant: Option<Claimant>,
}

impl Ticket {
    /// The payload of a marker.
    pub fn write(self, home: LoopId) -> String {
        let Self { slot: Slot { index, generation }, serial } = self;
        format!("{home}.{index}.{generation}.{serial}")
    }

    /// From the payload of a marker.
    pub fn read(payload: &[u8]) -> Option<(LoopId, Self)> {
        let mut numbers = std::str::from_utf8(payload).ok()?.split('.');
        let home = LoopId(numbers.next()?.parse().ok()?);
        let mut next = || numbers.next()?.parse().ok();
        let ticket = Self { slot: Slot { index: next()?, generation: next()? }, serial: next()? };
        numbers.next().is_none().then_some((home, ticket))
    }
}
