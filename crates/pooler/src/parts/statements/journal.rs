//! What a client's names stand for: what the server has confirmed, and the changes in flight.
//!
//! # Model
//! ```text
//!                        give, take, take_all                 confirm
//!   Parse, Close, ... ────────────────────────► in flight ─────────────► confirmed
//!                                                   │ ignore
//!                                                   └──► dropped
//! ```
//! Each change has one entry in the queue of requests ([`Change`](crate::relay::request_queue::Change)),
//! in the same order. When the server answers that entry the change is applied; if the server
//! refuses or ignores it the change is dropped. The former state is never recorded, so nothing is
//! put back.
//!
//! A name means what its newest change in flight says, else what is confirmed.
//!
//! # Invariant
//! While nothing is outstanding no change is in flight.

use std::collections::{HashMap, VecDeque};

use crate::hash::Keyed;

/// A name, cut to its significant bytes.
pub(crate) type Name = Box<[u8]>;

/// Up to this many names are compared one by one: the keyed hash costs as much as eight
/// comparisons.
const SEARCHED_MAX: usize = 8;

/// What a name may stand for.
pub(crate) trait Text {
    /// The bytes of its text.
    fn text_bytes(&self) -> usize;
}

/// How a message changes names.
#[derive(Debug)]
enum Edit<V> {
    /// The name stands for this.
    Give(Name, V),
    /// The name stands for nothing.
    Take(Name),
    /// All names stand for nothing.
    TakeAll,
    /// The same, done, as its CommandComplete has shown; the end of its Query is still to come.
    TookAll,
}

impl<V> Edit<V> {
    /// How many more names stand for something after it.
    fn more(&self) -> isize {
        match self {
            Self::Give(..) => 1,
            Self::Take(_) => -1,
            Self::TakeAll | Self::TookAll => 0,
        }
    }
}

/// A change in flight.
#[derive(Debug)]
struct InFlight<V> {
    edit: Edit<V>,
    /// The server connection's pipeline that makes it.
    pipeline: u64,
}

impl<V> InFlight<V> {
    /// The name that it gives, and what that stands for.
    fn given(&self) -> Option<(&Name, &V)> {
        match &self.edit {
            Edit::Give(name, value) => Some((name, value)),
            Edit::Take(_) | Edit::TakeAll | Edit::TookAll => None,
        }
    }

    fn given_mut(&mut self) -> Option<&mut V> {
        match &mut self.edit {
            Edit::Give(_, value) => Some(value),
            Edit::Take(_) | Edit::TakeAll | Edit::TookAll => None,
        }
    }
}

/// The changes in flight, the oldest first. They are numbered from 0.
#[derive(Debug)]
struct Changes<V> {
    changes: VecDeque<InFlight<V>>,
    /// The number of the oldest.
    first: usize,
    /// The newest change of each name: a pipeline may have thousands.
    newest: HashMap<Name, usize, Keyed>,
    /// The newest change that removes all names.
    took_all: Option<usize>,
    /// Names that these give, less those that they remove.
    more: isize,
}

impl<V> Changes<V> {
    fn new(hash_key: Keyed) -> Self {
        let newest = HashMap::with_hasher(hash_key);
        Self { changes: VecDeque::new(), first: 0, newest, took_all: None, more: 0 }
    }

    fn push(&mut self, edit: Edit<V>, pipeline: u64) {
        let number = self.first + self.changes.len();
        match &edit {
            Edit::Give(name, _) | Edit::Take(name) => {
                self.newest.insert(name.clone(), number);
            }
            Edit::TakeAll | Edit::TookAll => self.took_all = Some(number),
        }
        self.more += edit.more();
        self.changes.push_back(InFlight { edit, pipeline });
    }

    fn pop(&mut self) -> Option<Edit<V>> {
        let InFlight { edit, .. } = self.changes.pop_front()?;
        let number = self.first;
        self.first += 1;
        self.more -= edit.more();
        match &edit {
            Edit::Give(name, _) | Edit::Take(name) if self.newest.get(name) == Some(&number) => {
                self.newest.remove(name);
            }
            Edit::TakeAll | Edit::TookAll => drop(self.took_all.take_if(|at| *at == number)),
            Edit::Give(..) | Edit::Take(_) => {}
        }
        Some(edit)
    }

    /// The index of the newest change of a name.
    fn place(&self, name: &[u8]) -> Option<usize> {
        let number = self.newest.get(name).copied().max(self.took_all)?;
        Some(number - self.first)
    }

    /// That change.
    fn newest(&self, name: &[u8]) -> Option<&InFlight<V>> {
        self.changes.get(self.place(name)?)
    }
}

/// What names stand for.
#[derive(Debug)]
pub(crate) struct Journal<V> {
    confirmed: HashMap<Name, V, Keyed>,
    /// `None`: no change is in flight.
    in_flight: Option<Box<Changes<V>>>,
    /// The number of names kept here, including those in flight.
    names: usize,
    /// Their bytes.
    name_bytes: usize,
    /// The bytes of the texts that they stand for; of a text with several names several times.
    text_bytes: usize,
}

impl<V: Text> Journal<V> {
    /// No name stands for anything.
    pub(crate) fn new(hash_key: Keyed) -> Self {
        let confirmed = HashMap::with_hasher(hash_key);
        Self { confirmed, in_flight: None, names: 0, name_bytes: 0, text_bytes: 0 }
    }

    /// How many names are kept, including those in flight.
    pub(crate) fn kept(&self) -> usize {
        self.names
    }

    /// How many names stand for something, for a message that is sent now; more than that if names
    /// were given before all were removed.
    pub(crate) fn standing(&self) -> usize {
        let confirmed = self.confirmed.len();
        match &self.in_flight {
            None => confirmed,
            Some(changes) if changes.took_all.is_some() => {
                changes.changes.iter().filter(|change| change.given().is_some()).count()
            }
            Some(changes) => confirmed.saturating_add_signed(changes.more),
        }
    }

    pub(crate) fn name_bytes(&self) -> usize {
        self.name_bytes
    }

    pub(crate) fn text_bytes(&self) -> usize {
        self.text_bytes
    }

    /// Whether no change is in flight.
    pub(crate) fn is_settled(&self) -> bool {
        self.in_flight.is_none()
    }

    /// Whether no name stands for anything, and no change is in flight.
    pub(crate) fn is_empty(&self) -> bool {
        self.confirmed.is_empty() && self.is_settled()
    }

    /// What a name stands for, for a message that is sent now.
    #[inline]
    pub(crate) fn get(&self, name: &[u8]) -> Option<&V> {
        match self.in_flight.as_ref().and_then(|changes| changes.newest(name)) {
            Some(change) => change.given().map(|(_, value)| value),
            None => self.confirmed(name),
        }
    }

    /// What a name stands for at the message that the server answers next.
    #[inline]
    fn confirmed(&self, name: &[u8]) -> Option<&V> {
        if self.confirmed.len() <= SEARCHED_MAX {
            return self.confirmed.iter().find(|(own, _)| ***own == *name).map(|(_, value)| value);
        }
        self.confirmed.get(name)
    }

    /// As [`Self::get`].
    pub(crate) fn get_mut(&mut self, name: &[u8]) -> Option<&mut V> {
        match self.in_flight.as_ref().and_then(|changes| changes.place(name)) {
            Some(at) => self.in_flight.as_mut()?.changes.get_mut(at)?.given_mut(),
            None => self.confirmed.get_mut(name),
        }
    }

    /// The pipeline of the newest change in flight of a name.
    pub(crate) fn changes_in(&self, name: &[u8]) -> Option<u64> {
        Some(self.in_flight.as_ref()?.newest(name)?.pipeline)
    }

    /// All names that stand for something, for a message that is sent now, with their values.
    pub(crate) fn pairs(&self) -> impl Iterator<Item = (&Name, &V)> {
        let changes = self.in_flight.iter().flat_map(|changes| &changes.changes);
        let all = self.confirmed.iter().chain(changes.filter_map(InFlight::given));
        // (If a name is given twice, and removed in between, the last one counts.)
        all.filter(|(name, value)| {
            self.is_settled() || self.get(name).is_some_and(|newest| std::ptr::eq(newest, *value))
        })
    }

    /// Names as the server knows them at the message that it answers next.
    pub(crate) fn confirmed_pairs(&self) -> impl Iterator<Item = (&Name, &V)> {
        self.confirmed.iter()
    }

    /// What the names stand for, or will when the changes in flight are answered.
    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        let changes = self.in_flight.iter_mut().flat_map(|changes| &mut changes.changes);
        self.confirmed.values_mut().chain(changes.filter_map(InFlight::given_mut))
    }
}

/// Changes that need no server, while nothing is outstanding.
impl<V: Text> Journal<V> {
    /// A name stands for this.
    pub(crate) fn insert(&mut self, name: Name, value: V) {
        self.remove(&name);
        self.count(&name, &value, true);
        self.confirmed.insert(name, value);
    }

    /// A name stands for nothing. Returns whether it stood for something.
    pub(crate) fn remove(&mut self, name: &[u8]) -> bool {
        let removed = self.confirmed.remove(name);
        if let Some(value) = &removed {
            self.count(name, value, false);
        }
        removed.is_some()
    }

    fn clear(&mut self) {
        let none = HashMap::with_hasher(*self.confirmed.hasher());
        for (name, value) in std::mem::replace(&mut self.confirmed, none) {
            self.count(&name, &value, false);
        }
    }

    fn count(&mut self, name: &[u8], value: &V, more: bool) {
        for (sum, bytes) in [
            (&mut self.names, 1),
            (&mut self.name_bytes, name.len()),
            (&mut self.text_bytes, value.text_bytes()),
        ] {
            *sum = if more { *sum + bytes } else { *sum - bytes };
        }
    }
}

/// Changes by messages that the server is to answer. Each needs its entry in the queue of requests.
impl<V: Text> Journal<V> {
    /// A name stands for this.
    pub(crate) fn give(&mut self, name: Name, value: V, pipeline: u64) {
        self.count(&name, &value, true);
        self.push(Edit::Give(name, value), pipeline);
    }

    /// A name stands for nothing.
    pub(crate) fn take(&mut self, name: &[u8], pipeline: u64) {
        self.push(Edit::Take(name.into()), pipeline);
    }

    /// All names stand for nothing.
    pub(crate) fn take_all(&mut self, pipeline: u64) {
        self.push(Edit::TakeAll, pipeline);
    }

    fn push(&mut self, edit: Edit<V>, pipeline: u64) {
        let hash_key = *self.confirmed.hasher();
        let new = || Box::new(Changes::new(hash_key));
        self.in_flight.get_or_insert_with(new).push(edit, pipeline);
    }

    /// The server has carried out the oldest change.
    pub(crate) fn confirm(&mut self) {
        match self.pop() {
            Some(Edit::Give(name, value)) => {
                self.count(&name, &value, false);
                self.insert(name, value);
            }
            Some(Edit::Take(name)) => drop(self.remove(&name)),
            Some(Edit::TakeAll) => self.clear(),
            Some(Edit::TookAll) | None => {}
        }
    }

    /// The server has refused or ignored the message of the oldest change.
    pub(crate) fn ignore(&mut self) {
        if let Some(Edit::Give(name, value)) = self.pop() {
            self.count(&name, &value, false);
        }
    }

    /// If the oldest change removes all names, it has been carried out, even if something after it
    /// in the same text fails.
    pub(crate) fn took_all(&mut self) {
        let oldest = self.in_flight.as_mut().and_then(|changes| changes.changes.front_mut());
        if let Some(InFlight { edit: edit @ Edit::TakeAll, .. }) = oldest {
            *edit = Edit::TookAll;
            self.clear();
        }
    }

    fn pop(&mut self) -> Option<Edit<V>> {
        let edit = self.in_flight.as_mut().and_then(|changes| changes.pop());
        debug_assert!(edit.is_some(), "an entry of the queue is of no change to the names");
        self.in_flight.take_if(|changes| changes.changes.is_empty());
        edit
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seeded::Random;
    use std::collections::BTreeMap;

    impl Text for u32 {
        fn text_bytes(&self) -> usize {
            *self as usize
        }
    }

    /// What a name, or each one, stands for after a change.
    type Done = (Option<u8>, Option<u32>);

    /// What names stand for if these changes are made.
    fn done<'a>(
        confirmed: &BTreeMap<u8, u32>,
        changes: impl IntoIterator<Item = &'a Done>,
    ) -> BTreeMap<u8, u32> {
        let mut names = confirmed.clone();
        for change in changes {
            match *change {
                (Some(name), Some(value)) => drop(names.insert(name, value)),
                (Some(name), None) => drop(names.remove(&name)),
                (None, _) => names.clear(),
            }
        }
        names
    }

    /// The journal shows these names, and counts what it keeps.
    fn check(own: &mut Journal<u32>, expected: &BTreeMap<u8, u32>, in_flight: &VecDeque<Done>) {
        let pairs: BTreeMap<u8, u32> = own.pairs().map(|(name, value)| (name[0], *value)).collect();
        assert_eq!(pairs, *expected);
        assert_eq!(own.pairs().count(), expected.len());
        for name in 0..12 {
            let value = expected.get(&name).copied();
            assert_eq!(own.get(&[name]).copied(), value);
            assert_eq!(own.get_mut(&[name]).copied(), value);
            let is_changing = |(of, _): &Done| of.is_none_or(|of| of == name);
            assert_eq!(own.changes_in(&[name]).is_some(), in_flight.iter().any(is_changing));
        }
        assert_eq!(own.is_settled(), in_flight.is_empty());
        let given = in_flight.iter().filter(|(_, value)| value.is_some()).count();
        assert_eq!(own.kept(), own.confirmed_pairs().count() + given);
        assert_eq!(own.name_bytes(), own.kept());
        let values = own.values_mut().map(|value| value.text_bytes()).sum::<usize>();
        assert_eq!(own.text_bytes(), values);
    }

    /// Compared with a map into which each change is written in order, on each query.
    #[test]
    fn names_are_those_confirmed_with_what_is_in_flight() {
        for seed in 0..300 {
            let mut random = Random::of_seed(seed);
            let mut own = Journal::new(Keyed(7));
            let (mut confirmed, mut in_flight) = (BTreeMap::new(), VecDeque::new());
            for value in 1..200_u32 {
                let name = random.below(12) as u8;
                match random.below(10) {
                    0..=3 => {
                        own.give([name].into(), value, value.into());
                        in_flight.push_back((Some(name), Some(value)));
                    }
                    4..=5 => {
                        own.take(&[name], value.into());
                        in_flight.push_back((Some(name), None));
                    }
                    6 if random.below(4) == 0 => {
                        own.take_all(value.into());
                        in_flight.push_back((None, None));
                    }
                    7..=8 if !in_flight.is_empty() => {
                        confirmed = done(&confirmed, in_flight.front());
                        in_flight.pop_front();
                        own.confirm();
                    }
                    // (The server ignores everything up to the end of the pipeline.)
                    9 if random.below(3) == 0 => {
                        while in_flight.pop_front().is_some() {
                            own.ignore();
                        }
                    }
                    _ => {}
                }
                check(&mut own, &done(&confirmed, &in_flight), &in_flight);
            }
        }
    }

    #[test]
    fn a_name_that_is_being_taken_away_makes_room() {
        let mut names = Journal::new(Keyed(7));
        names.insert((*b"a").into(), 1);
        for (given, taken) in [(b"b", b"a"), (b"c", b"b")] {
            names.take(taken, 0);
            assert_eq!(names.standing(), 0);
            names.give((*given).into(), 2, 0);
            assert_eq!(names.standing(), 1);
        }
        names.confirm();
        names.ignore();
        names.ignore();
        names.ignore();
        assert_eq!((names.standing(), names.is_settled()), (0, true));
        names.give((*b"d").into(), 3, 1);
        names.take_all(1);
        names.give((*b"e").into(), 4, 1);
        assert!(names.standing() <= 2);
    }

    #[test]
    fn what_a_text_took_away_stays_away_though_it_fails_later() {
        let mut names = Journal::new(Keyed(7));
        names.insert((*b"a").into(), 1);
        names.take_all(0);
        names.ignore();
        assert!(names.get(b"a").is_some(), "it failed before");
        names.take_all(1);
        names.took_all();
        names.ignore();
        assert!(names.is_empty());
    }
}
