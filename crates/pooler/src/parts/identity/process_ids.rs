//! Process ids of clients that share backends, in their BackendKeyData.
//!
//! # Model
//! ```text
//! id = first of the peer + number * loops + loop        number = start, start + 1, ...
//! ```
//! Without peers the first is [`PROCESS_ID_FIRST`], and all up to [`PROCESS_ID_LAST`] are this
//! process's. Each of at most [`PEERS_MAX`] peers has a part of that, in the order of their
//! numbers: so an id shows which peer a cancel request is for.
//!
//! An id is above any that Linux gives to a process, and is a positive int32. It contains its loop,
//! so that a cancel request reaches that. Numbers count up, and wrap around to 0. The start is
//! random, so that the ids of two processes (a successor's, another host's) rarely collide.
//!
//! # Invariants
//! * no two clients have an id at the same time
//! * an id is not reused before all others of the loop have been used: without peers and with fewer
//!   than 2,000 loops not within 2^20 connections, with peers and fewer than 128 loops not within
//!   2^16. Drivers and tests tell sessions apart by their ids.

use crate::hash::IdMap;
use crate::ids::LoopId;

/// The first id: above any that Linux gives to a process (`PID_MAX_LIMIT`, include/linux/threads.h).
pub const PROCESS_ID_FIRST: u32 = 4_194_305;
/// The last id: process ids are signed in the protocol and in SQL.
pub const PROCESS_ID_LAST: u32 = i32::MAX as u32;

/// The largest number of a peer.
pub const PEERS_MAX: u8 = 255;
/// How many ids each peer has.
const OF_A_PEER: u32 = (PROCESS_ID_LAST - PROCESS_ID_FIRST + 1) / PEERS_MAX as u32;

/// The number of the peer whose client has this id; `None` for the id of a server's process, and
/// for those that no peer uses.
pub fn peer_of_process(process: u32) -> Option<u8> {
    let part = process.checked_sub(PROCESS_ID_FIRST)? / OF_A_PEER;
    u8::try_from(part + 1).ok()
}

/// The ids that this process uses, and where it begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OwnProcessIds {
    first: u32,
    count: u32,
    start: u32,
}

impl OwnProcessIds {
    /// All ids, from a number that `start` stands for.
    pub fn all(start: u32) -> Self {
        Self { first: PROCESS_ID_FIRST, count: PROCESS_ID_LAST - PROCESS_ID_FIRST + 1, start }
    }

    /// The ids of the peer with this number, from 1 on.
    pub fn of_peer(peer: u8, start: u32) -> Self {
        let first = PROCESS_ID_FIRST + u32::from(peer.saturating_sub(1)) * OF_A_PEER;
        Self { first, count: OF_A_PEER, start }
    }

    /// The loop that uses a process id; `None` for the id of a server's process, or of a peer's
    /// client.
    pub fn loop_of(self, process: u32, loops: u16) -> Option<LoopId> {
        let offset = process.checked_sub(self.first).filter(|offset| *offset < self.count)?;
        u16::try_from(offset % u32::from(loops.max(1))).ok().map(LoopId)
    }
}

/// The ids of one loop's clients.
#[derive(Debug)]
pub(crate) struct ProcessIds {
    own: OwnProcessIds,
    home: u32,
    loops: u32,
    /// The next number.
    next: u32,
    /// The client that has an id, as its index in the loop's table.
    places: IdMap<u32, u32>,
    /// The id of the client at each index; 0: none. Kept apart from the clients, whose alignment
    /// would double its size.
    of: Vec<u32>,
}

impl ProcessIds {
    /// The ids of the loop `home` out of `loops`.
    pub(crate) fn new(home: LoopId, loops: u16, own: OwnProcessIds) -> Self {
        let loops = u32::from(loops.max(1));
        let (home, places) = (u32::from(home.0), IdMap::default());
        let mut ids = Self { own, home, loops, next: 0, places, of: Vec::new() };
        ids.next = own.start % ids.numbers();
        ids
    }

    /// How many ids there are.
    fn numbers(&self) -> u32 {
        self.own.count / self.loops
    }

    /// Gives an id to the client at this index.
    pub(crate) fn take(&mut self, index: u32) -> u32 {
        // A loop has fewer clients than ids: each client is a descriptor, of which Linux has at
        // most 2^31 for all loops together, and memory for far fewer.
        loop {
            let process = self.own.first + self.next * self.loops + self.home;
            self.next = (self.next + 1) % self.numbers();
            if !self.places.contains_key(&process) {
                self.note(index, process);
                return process;
            }
        }
    }

    /// Gives the client at this index the id that it had with a predecessor, or another one if a
    /// client already has that. Returns whether it is the same.
    pub(crate) fn take_this(&mut self, index: u32, process: u32) -> bool {
        if !self.gives_out(process) || self.places.contains_key(&process) {
            self.take(index);
            return false;
        }
        self.note(index, process);
        true
    }

    fn note(&mut self, index: u32, process: u32) {
        self.places.insert(process, index);
        let at = index as usize;
        if at >= self.of.len() {
            self.of.resize(at + 1, 0);
        }
        self.of[at] = process;
    }

    /// Whether this loop uses an id.
    pub(crate) fn gives_out(&self, process: u32) -> bool {
        let home = self.own.loop_of(process, u16::try_from(self.loops).unwrap_or(u16::MAX));
        home.is_some_and(|home| u32::from(home.0) == self.home)
    }

    /// The index of the client that has this id.
    pub(crate) fn index_of(&self, process: u32) -> Option<u32> {
        self.places.get(&process).copied()
    }

    /// The id of the client at this index; 0: there is none.
    pub(crate) fn of(&self, index: u32) -> u32 {
        self.of.get(index as usize).copied().unwrap_or(0)
    }

    /// The client at this index has left.
    pub(crate) fn give_back(&mut self, index: u32) {
        let Some(process) = self.of.get_mut(index as usize).map(std::mem::take) else { return };
        self.places.remove(&process);
        // The table has grown with a rush of clients.
        if self.places.capacity() > 1024 && self.places.len() < self.places.capacity() / 8 {
            self.places.shrink_to(self.places.capacity() / 4);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_not_given_out_again_within_2_to_the_20_connections() {
        let mut ids = ProcessIds::new(LoopId(1), 3, OwnProcessIds::all(12_345));
        let first = ids.take(0);
        assert_eq!(first, PROCESS_ID_FIRST + 12_345 * 3 + 1);
        assert_eq!(ids.of(0), first);
        ids.give_back(0);
        let mut before = first;
        for _ in 0..1 << 20 {
            let id = ids.take(0);
            assert!(id > before, "counted up: {before}, {id}");
            ids.give_back(0);
            before = id;
        }
        assert!(ids.places.is_empty());
    }

    #[test]
    fn ids_stay_between_the_systems_own_and_the_largest_int32() {
        for (home, loops) in [(0, 1), (0, 2), (1, 2), (6, 7), (64, 65)] {
            let mut ids = ProcessIds::new(LoopId(home), loops, OwnProcessIds::all(0));
            ids.next = ids.numbers() - 1;
            let last = ids.take(0);
            assert!(last <= PROCESS_ID_LAST && last > PROCESS_ID_LAST - 2 * u32::from(loops));
            assert_eq!(OwnProcessIds::all(0).loop_of(last, loops), Some(LoopId(home)));
            let first = ids.take(1);
            assert_eq!(first, PROCESS_ID_FIRST + u32::from(home), "it begins again");
            assert_eq!(OwnProcessIds::all(0).loop_of(first, loops), Some(LoopId(home)));
            assert!(i32::try_from(last).is_ok());
        }
        assert_eq!(OwnProcessIds::all(0).loop_of(PROCESS_ID_FIRST - 1, 2), None, "a server's own");
        assert_eq!(OwnProcessIds::all(0).loop_of(0, 2), None);
    }

    #[test]
    fn a_client_that_stays_keeps_its_id_for_itself() {
        let mut ids = ProcessIds::new(LoopId(0), 1, OwnProcessIds::all(0));
        let lasting = ids.take(7);
        ids.next = 0; // all others have been used meanwhile
        let next = ids.take(8);
        assert_ne!(lasting, next);
        assert_eq!((ids.index_of(lasting), ids.index_of(next)), (Some(7), Some(8)));
        ids.give_back(7);
        assert_eq!((ids.index_of(lasting), ids.of(7), ids.of(8)), (None, 0, next));
    }

    #[test]
    fn who_comes_from_a_predecessor_keeps_its_id_unless_somebody_has_it() {
        let mut ids = ProcessIds::new(LoopId(1), 2, OwnProcessIds::all(5));
        let known = ProcessIds::new(LoopId(1), 2, OwnProcessIds::all(700)).take(0);
        assert!(ids.take_this(3, known));
        assert_eq!((ids.of(3), ids.index_of(known)), (known, Some(3)));
        assert!(!ids.take_this(4, known) && ids.of(4) != known, "somebody has it");
        assert!(!ids.take_this(5, known + 1), "another loop's");
        ids.give_back(3);
        assert!(ids.take_this(6, known));
    }

    #[test]
    fn any_start_is_one() {
        for start in [0, 1, u32::MAX, 1 << 31] {
            let id = ProcessIds::new(LoopId(2), 3, OwnProcessIds::all(start)).take(0);
            assert!((PROCESS_ID_FIRST..=PROCESS_ID_LAST).contains(&id));
        }
    }

    #[test]
    fn an_id_of_a_peer_names_it_and_its_loop() {
        for peer in [1, 2, 128, PEERS_MAX] {
            for (home, loops) in [(0, 1), (1, 2), (6, 7), (127, 128)] {
                let own = OwnProcessIds::of_peer(peer, u32::MAX);
                let mut ids = ProcessIds::new(LoopId(home), loops, own);
                ids.next = ids.numbers() - 1;
                let (last, first) = (ids.take(0), ids.take(1));
                assert!(last > first && ids.numbers() >= 1 << 16);
                for id in [first, last] {
                    assert!((PROCESS_ID_FIRST..=PROCESS_ID_LAST).contains(&id));
                    assert_eq!(peer_of_process(id), Some(peer));
                    assert_eq!(own.loop_of(id, loops), Some(LoopId(home)));
                    let other = OwnProcessIds::of_peer(if peer == 1 { 2 } else { 1 }, 0);
                    assert_eq!(other.loop_of(id, loops), None);
                }
            }
        }
        assert_eq!(peer_of_process(PROCESS_ID_FIRST - 1), None);
        assert_eq!(peer_of_process(0), None);
        assert!(peer_of_process(PROCESS_ID_LAST).is_none_or(|peer| peer == PEERS_MAX));
    }

    #[test]
    fn a_rush_of_clients_leaves_no_memory_behind() {
        let mut ids = ProcessIds::new(LoopId(0), 1, OwnProcessIds::all(0));
        for index in 0..100_000 {
            ids.take(index);
        }
        for index in 0..100_000 {
            ids.give_back(index);
        }
        assert!(ids.places.capacity() <= 1024, "{}", ids.places.capacity());
    }
}
