//! Ids of the things that loops, pools and operators speak about.

use std::fmt;

/// An event loop, numbered from 0.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LoopId(pub u16);

/// A pool: one (database, user) with its servers. Never used twice in a process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PoolId(pub u32);

/// A server connection. Never used twice in a process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BackendId(pub u64);

/// A server address, by its place in the dialler's table. Never used twice in a process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ServerAddressId(pub u32);

/// A place in a loop's table: the generation tells a late event from one that is meant.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Slot {
    /// Position in the table.
    pub index: u32,
    /// How often the position had been given out before.
    pub generation: u32,
}

/// A logged-in client: the loop that serves it for all its life, and its place there.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ClientId {
    /// The loop.
    pub home: LoopId,
    /// The place.
    pub slot: Slot,
}

impl fmt::Display for LoopId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for ClientId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "c{}.{}.{}", self.home, self.slot.index, self.slot.generation)
    }
}

impl fmt::Display for BackendId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "s{}", self.0)
    }
}
