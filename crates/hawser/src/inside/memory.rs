//! The memory that a room shares with its backends: extension/inside.h has the same layout.
//!
//! # Model
//! ```text
//!   header | what backends count | slots, a cache line each | unnamed statements, a part each
//!          | arena: records of clients, sets of settings, statements
//! ```
//! Records come and go with their clients, in blocks of powers of two. Sets and statements are written
//! once and stay as long as the room; when the arena is full, clients stay outside.
//!
//! # Invariants
//! * a record is written and freed only while its slot's owner is [`POOLER`]
//! * what is interned never changes

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use hawser_pooler::lending::LoopStats;
use hawser_pooler::parts::statements::shared::Statement;
#[cfg(doc)]
use hawser_pooler::relay::inside::BackFromInside;
use hawser_pooler::relay::inside::InsideSession;
use hawser_pooler::session::settings::Settings;
use hawser_sys::shared::SharedWords;

use crate::socket::Conn;

const MAGIC: u32 = 0x4841_5749;
/// The version of the layout and of what backends say.
pub(super) const VERSION: u32 = 3;
const HEADER_WORDS: usize = 32;
/// The most backends in a room.
const BACKENDS: usize = 4096;
const BACKEND_WORDS: usize = 64;
/// Words of what a backend counts of messages, and of transactions: the number, the time, the classes of times.
const TIME_WORDS: usize = 2 + 21;
const SLOTS_FIRST: usize = HEADER_WORDS + BACKENDS * BACKEND_WORDS;
const SLOT_WORDS: usize = 16;
const UNNAMED_FIRST: usize = SLOTS_FIRST + SLOTS as usize * SLOT_WORDS;
/// Of each client: the body of the Parse that it has sent last.
const UNNAMED_WORDS: usize = 128;
/// The most clients in a room.
pub(super) const SLOTS: u32 = 1 << 16;
/// 64 MiB; what is not written takes no memory.
const ARENA_WORDS: usize = 1 << 24;
/// Word of the header: what statements mean may have changed.
const SCHEMA: usize = 5;
/// Word of the header: milliseconds for which a client may take nothing of its answer while others wait;
/// 0: no bound.
const PATIENCE: usize = 6;
/// Word of the header: what a transaction draws from sequences may be asked for later.
const DRAWS: usize = 7;
/// Word of the header: how many backends may look for work at once.
const PLACES: usize = 8;
/// Word of the header: how many do, or run what they have found.
const HELD: usize = 9;
/// Word of a backend: it holds a place.
const PLACE: usize = 4 + 2 * TIME_WORDS;

/// A word of a slot.
#[derive(Clone, Copy)]
pub(super) enum Word {
    /// Who may touch its client.
    Owner = 0,
    /// Odd: in use.
    Generation = 1,
    /// 0: it has had no unnamed statement here; else one more than the bytes of that of its own part.
    Unnamed = 2,
    /// It is wanted back, once it is in no transaction, or to be disconnected ([`TO_END`]).
    Recall = 3,
    /// A cancel request is on its way to the backend that serves it.
    Cancel = 4,
    Record = 5,
    RecordWords = 6,
    /// How often it was taken by a backend.
    Transactions = 7,
}

/// The state in an owner word; above it is the number of a backend.
pub(super) const IDLE: u32 = 0;
pub(super) const BUSY: u32 = 1;
pub(super) const PENDING: u32 = 2;
pub(super) const POOLER: u32 = 3;
/// A recall of a client that is to be disconnected, in a transaction or not.
pub(super) const TO_END: u32 = 2;

/// State and backend of an owner word.
pub(super) fn owner(word: u32) -> (u32, u32) {
    (word & 0xff, word >> 8)
}

/// The words of a backend, and what has been read of them.
pub(super) struct Seat {
    pub(super) number: u32,
    counted: [u32; BACKEND_WORDS],
}

/// A block of words in the memory.
#[derive(Clone, Copy)]
struct Block {
    first: u32,
    bytes: u32,
}

/// See the module.
pub(super) struct Memory {
    shared: SharedWords,
    /// The first word of the arena that was never used.
    next: usize,
    /// Freed blocks of 2^n words, by n.
    free: [Vec<u32>; 32],
    sets: HashMap<Settings, (u32, Block)>,
    statements: HashMap<u64, Block>,
}

impl Memory {
    pub(super) fn new() -> io::Result<Self> {
        let arena = UNNAMED_FIRST + SLOTS as usize * UNNAMED_WORDS;
        let count = arena + ARENA_WORDS;
        let shared = SharedWords::new("hawser inside", count)?;
        let words = [MAGIC, VERSION, SLOTS, u32_of(arena), u32_of(count)];
        for (at, word) in words.into_iter().enumerate() {
            shared.words()[at].store(word, Ordering::Relaxed);
        }
        let (sets, statements) = (HashMap::new(), HashMap::new());
        let memory = Self { shared, next: arena, free: Default::default(), sets, statements };
        for slot in 0..SLOTS {
            memory.word(slot, Word::Owner).store(POOLER, Ordering::Relaxed);
        }
        Ok(memory)
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.shared.fd()
    }

    pub(super) fn word(&self, slot: u32, word: Word) -> &AtomicU32 {
        &self.shared.words()[SLOTS_FIRST + slot as usize * SLOT_WORDS + word as usize]
    }

    /// What the backend in this seat has counted.
    fn counts(&self, seat: u32) -> [u32; BACKEND_WORDS] {
        let first = HEADER_WORDS + seat as usize * BACKEND_WORDS;
        std::array::from_fn(|at| self.shared.words()[first + at].load(Ordering::Relaxed))
    }

    /// Adds to a pool's counters what a backend has counted since it was asked last.
    pub(super) fn add_counts(&self, seat: &mut Seat, stats: &LoopStats) {
        let now = self.counts(seat.number);
        let more: [u32; BACKEND_WORDS] =
            std::array::from_fn(|at| now[at].wrapping_sub(seat.counted[at]));
        seat.counted = now;
        let [received, sent, binds, parses, times @ ..] = more;
        let (of_queries, of_transactions) = times.split_at(TIME_WORDS);
        let (queries, transactions) = (of_queries[0], of_transactions[0]);
        for (counter, n) in [
            (&stats.transactions, transactions),
            (&stats.queries, queries),
            (&stats.assignments, transactions),
            (&stats.received, received),
            (&stats.sent, sent),
            (&stats.binds, binds),
            (&stats.server_parses, parses),
        ] {
            counter.add(u64::from(n));
        }
        for (histogram, words) in
            [(&stats.query, of_queries), (&stats.transaction, of_transactions)]
        {
            histogram.add(&std::array::from_fn(|at| words[2 + at]), words[1]);
        }
    }

    /// A seat that is not among these.
    pub(super) fn free_seat(&self, taken: &BTreeSet<u32>) -> Option<Seat> {
        let number = (0..BACKENDS as u32).find(|number| !taken.contains(number))?;
        Some(Seat { number, counted: self.counts(number) })
    }

    /// Whether what statements mean may have changed since the room was last empty.
    pub(super) fn schema_word(&self) -> &AtomicU32 {
        &self.shared.words()[SCHEMA]
    }

    /// How long a client may take nothing of its answer while others wait; zero: no bound.
    pub(super) fn set_patience(&self, patience: Duration) {
        let ms = u32::try_from(patience.as_millis()).unwrap_or(u32::MAX);
        let ms = if patience.is_zero() { 0 } else { ms.max(1) };
        self.shared.words()[PATIENCE].store(ms, Ordering::Relaxed);
    }

    /// How many backends may look for work at once.
    pub(super) fn set_places(&self, places: u32) {
        self.shared.words()[PLACES].store(places, Ordering::Relaxed);
    }

    /// The backend in this seat has ended: one that was killed has not given its place up.
    pub(super) fn free_place(&self, seat: &Seat) {
        let place = HEADER_WORDS + seat.number as usize * BACKEND_WORDS + PLACE;
        let held = self.shared.words()[place].swap(0, Ordering::SeqCst);
        self.shared.words()[HELD].fetch_sub(held.min(1), Ordering::SeqCst);
    }

    /// Whether what a transaction draws from sequences may be asked for later.
    pub(super) fn set_keeps_draws(&self, keeps: bool) {
        self.shared.words()[DRAWS].store(u32::from(keeps), Ordering::Relaxed);
    }

    fn take(&mut self, words: usize) -> Option<usize> {
        let size = words.next_power_of_two();
        if let Some(first) = self.free[size.trailing_zeros() as usize].pop() {
            return Some(first as usize);
        }
        let first = self.next;
        (first + size <= self.shared.words().len()).then(|| {
            self.next += size;
            first
        })
    }

    fn write(&self, first: usize, bytes: &[u8]) {
        let words = &self.shared.words()[first..];
        for (word, part) in words.iter().zip(bytes.chunks(4)) {
            let mut whole = [0; 4];
            whole[..part.len()].copy_from_slice(part);
            word.store(u32::from_ne_bytes(whole), Ordering::Relaxed);
        }
    }

    fn keep(&mut self, bytes: &[u8]) -> Option<Block> {
        let first = self.take(bytes.len().div_ceil(4).max(1))?;
        self.write(first, bytes);
        Some(Block { first: u32_of(first), bytes: u32_of(bytes.len()) })
    }

    fn set(&mut self, settings: &Settings) -> Option<(u32, Block)> {
        if settings.is_empty() {
            return Some((0, Block { first: 0, bytes: 0 }));
        }
        if let Some(known) = self.sets.get(settings) {
            return Some(*known);
        }
        let mut texts = Vec::new();
        for (name, value) in settings.iter() {
            texts.extend_from_slice(name);
            texts.push(0);
            texts.extend_from_slice(value);
            texts.push(0);
        }
        let id = u32_of(self.sets.len() + 1);
        let block = self.keep(&texts)?;
        self.sets.insert(settings.clone(), (id, block));
        Some((id, block))
    }

    fn statement(&mut self, statement: &Statement) -> Option<Block> {
        if let Some(known) = self.statements.get(&statement.id) {
            return Some(*known);
        }
        let block = self.keep(&[&statement.name, &[0][..], &statement.body].concat())?;
        self.statements.insert(statement.id, block);
        Some(block)
    }

    /// Writes the record of a client. False: there is no room for it.
    pub(super) fn write_record(&mut self, slot: u32, session: &InsideSession<Conn>) -> bool {
        let Some((id, set)) = self.set(&session.settings) else { return false };
        let mut record = Vec::new();
        let mut push = |words: &[u32]| {
            words.iter().for_each(|word| record.extend_from_slice(&word.to_ne_bytes()));
        };
        push(&[set.first, set.bytes, id, u32_of(session.statements.len())]);
        for (name, statement) in &session.statements {
            let Some(block) = self.statement(statement) else { return false };
            for word in [block.first, block.bytes, statement.id as u32, u32_of(name.len())] {
                record.extend_from_slice(&word.to_ne_bytes());
            }
            record.extend_from_slice(name);
            record.resize(record.len().next_multiple_of(4), 0);
        }
        let words = record.len() / 4;
        let Some(first) = self.take(words) else { return false };
        self.write(first, &record);
        self.word(slot, Word::Record).store(u32_of(first), Ordering::Relaxed);
        self.word(slot, Word::RecordWords).store(u32_of(words), Ordering::Relaxed);
        true
    }

    /// What [`BackFromInside::unnamed`] is of the client in a slot.
    pub(super) fn unnamed(&self, slot: u32) -> Option<Vec<u8>> {
        let count = self.word(slot, Word::Unnamed).load(Ordering::Relaxed).checked_sub(1)?;
        let first = UNNAMED_FIRST + slot as usize * UNNAMED_WORDS;
        let words = &self.shared.words()[first..first + UNNAMED_WORDS];
        let bytes = words.iter().flat_map(|word| word.load(Ordering::Relaxed).to_ne_bytes());
        Some(bytes.take(count as usize).collect())
    }

    /// The client has left its slot.
    pub(super) fn free_record(&mut self, slot: u32) {
        let words = self.word(slot, Word::RecordWords).swap(0, Ordering::Relaxed) as usize;
        let first = self.word(slot, Word::Record).swap(0, Ordering::Relaxed);
        if words > 0 {
            self.free[words.next_power_of_two().trailing_zeros() as usize].push(first);
        }
    }
}

fn u32_of(number: usize) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
