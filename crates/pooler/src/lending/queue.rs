//! The waiters for a backend: a line for each event loop, each in the order of arrival.
//!
//! # Model
//! A backend that is released on a loop goes to a client of that loop's line, to the nearest of the first
//! few ([`crate::lending::likeness`]). It goes to another loop
//! * if no client of its own loop waits
//! * if one of another loop is nearer
//! * if a waiter of another loop is due: more later ones than [`Bound`] allows have been served
//!   before it
//!
//! A waiter is *overtaken* by one that came after it, on the same loop, and by one that came more than
//! [`SAME_MOMENT`] after it, on another. Those of another priority than most do not stand in the lines:
//! [`crate::lending::priority`].
//!
//! # Why lines
//! Moving a backend to another loop's epoll set costs 2.5 us and a wake-up of that loop, a quarter of
//! a small transaction. With one line for all, a loop that was held up for a moment found its
//! clients overtaken up to the bound, and got a backend for each: 0.13 moves a transaction with 100
//! clients on two loops. With arrivals within two milliseconds counted as simultaneous: 0.01 moves.
//!
//! # How often each has been overtaken
//! A waiter has been overtaken at least as often as all after it in its line. So each has a number of
//! its own, `more`: how much more often it has been overtaken than the next. The sum of all is the
//! first one's, and one that is passed together with all before it is one addition.

use std::collections::VecDeque;
use std::time::Duration;

use crate::ids::ClientId;
use crate::lending::lent_count::LentCount;
use crate::lending::likeness::{Likeness, Wish, nearest};
use crate::lending::priority::{Aside, PASSED_MAX};
use crate::parts::settings::custom_names::CustomNames;
use crate::time::Time;

/// Arrivals within this time on different loops count as simultaneous.
pub const SAME_MOMENT: Duration = Duration::from_millis(2);

/// A waiter that came so much later on another loop passes no one beyond the bound of a loop with
/// its share: the server connections that a loop has beyond its share may be in long transactions,
/// and so of no use to others.
const MUCH_LATER: Duration = Duration::from_millis(20);

/// How many waiters from the head of a line are compared for a backend.
const WINDOW: usize = 32;

/// A line is cleared of waiters that have left when there are this many, and more than others.
const GONE_MAX: usize = 64;

/// A client in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiter {
    /// The waiting client.
    pub client: ClientId,
    /// Since when.
    pub since: Time,
    /// The backend that it prefers.
    pub(super) wish: Wish,
    /// Custom names that it has: see [`CustomNames`].
    pub(super) names: CustomNames,
    /// The order of arrival on all loops.
    number: u64,
    /// How much more often it has been overtaken than the next of its line.
    more: u32,
    /// It has left. It is never the first of its line.
    gone: bool,
}

/// Those of one loop.
#[derive(Debug, Default)]
struct Line {
    waiters: VecDeque<Waiter>,
    /// How often the first has been overtaken.
    overtaken: u32,
    /// Those that have left.
    gone: usize,
}

impl Line {
    fn remove(&mut self, at: usize) -> Option<Waiter> {
        let waiter = self.waiters.remove(at)?;
        match at.checked_sub(1) {
            Some(before) => self.waiters[before].more += waiter.more,
            None => self.overtaken -= waiter.more,
        }
        Some(waiter)
    }

    /// The first of these have been overtaken once more.
    fn overtake(&mut self, count: usize) {
        if let Some(last) = count.checked_sub(1) {
            self.waiters[last].more += 1;
            self.overtaken += 1;
        }
    }

    /// How many waiters of this line one of another loop overtakes that came at this time.
    fn overtaken_by(&self, since: Time) -> usize {
        let passed = |waiter: &Waiter| waiter.since.after(SAME_MOMENT) < since;
        match self.waiters.front() {
            Some(first) if passed(first) => self.waiters.partition_point(passed),
            _ => 0,
        }
    }

    /// How many wait in it.
    fn len(&self) -> usize {
        self.waiters.len() - self.gone
    }

    /// Whether a waiter came so much after the first of this line that what the loop has does not matter.
    fn came_much_before(&self, waiter: &Waiter) -> bool {
        self.waiters.front().is_some_and(|first| first.since.after(MUCH_LATER) < waiter.since)
    }

    /// Whether a waiter may go before the first of this line, which is due.
    fn admits(&self, waiter: &Waiter) -> bool {
        self.waiters.front().is_none_or(|first| {
            waiter.number <= first.number
                || (waiter.client.home != first.client.home
                    && waiter.since <= first.since.after(SAME_MOMENT))
        })
    }

    /// Restores that the first has not left, and that most have not left.
    fn forget_gone(&mut self) {
        while self.waiters.front().is_some_and(|first| first.gone) {
            self.remove(0);
            self.gone -= 1;
        }
        if self.gone > GONE_MAX && self.gone > self.waiters.len() / 2 {
            let all = std::mem::take(&mut self.waiters);
            for waiter in all {
                match self.waiters.back_mut() {
                    Some(before) if waiter.gone => before.more += waiter.more,
                    _ => self.waiters.push_back(waiter),
                }
            }
            self.gone = 0;
        }
    }
}

/// How often waiters may be overtaken.
#[derive(Clone, Copy)]
pub(super) struct Bound<'a> {
    /// On a loop that would have no more than its share of the backends with another one: the pool's size.
    pub(super) size: u32,
    /// The number of the loop that has the backend, which may keep it however many it has.
    pub(super) own: usize,
    /// How many each loop has: see [`LentCount::bound`].
    pub(super) lent: &'a LentCount,
}

/// All waiters for a backend of one pool.
#[derive(Debug, Default)]
pub(super) struct Queue {
    /// By the loop's number.
    lines: Vec<Line>,
    /// Those that do not stand in the lines.
    aside: Aside<Waiter>,
    /// Of the next that comes.
    number: u64,
    /// Those who wait.
    count: usize,
}

impl Queue {
    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.count
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The waiter that came first.
    pub(super) fn first(&self) -> Option<&Waiter> {
        let firsts = self.lines.iter().filter_map(|line| line.waiters.front());
        firsts.chain(self.aside.firsts()).min_by_key(|first| first.number)
    }

    /// All, in the order in which they came.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Waiter> {
        let all = self.lines.iter().flat_map(|line| &line.waiters).chain(self.aside.iter());
        let mut all: Vec<&Waiter> = all.filter(|waiter| !waiter.gone).collect();
        all.sort_unstable_by_key(|waiter| waiter.number);
        all.into_iter()
    }

    /// One more. Each loop tells the time by a clock that does not go back.
    pub(super) fn push(&mut self, client: ClientId, names: CustomNames, wish: Wish, since: Time) {
        let number = self.number;
        self.number += 1;
        self.count += 1;
        let waiter = Waiter { client, since, wish, names, number, more: 0, gone: false };
        let Some(waiter) = self.aside.push(wish.priority, (since, client), waiter) else { return };
        let line = self.line(client);
        debug_assert!(line.waiters.back().is_none_or(|last| last.since <= since), "it went back");
        line.waiters.push_back(waiter);
    }

    fn line(&mut self, client: ClientId) -> &mut Line {
        let line = usize::from(client.home.0);
        if line >= self.lines.len() {
            self.lines.resize_with(line + 1, Line::default);
        }
        &mut self.lines[line]
    }

    /// One that stood aside comes to its place in its line. (It counts as overtaken as often as the next.)
    fn join(&mut self, waiter: Waiter) {
        let line = self.line(waiter.client);
        let at = line.waiters.partition_point(|other| other.number < waiter.number);
        line.waiters.insert(at, waiter);
    }

    /// Takes out a client that has waited since this moment. True if it was there.
    ///
    /// Thousands may leave at once, in any order: so this searches only by time, and only marks the
    /// place.
    pub(super) fn forget(&mut self, client: ClientId, since: Time) -> bool {
        if !self.aside.is_empty() && self.aside.forget((since, client)) {
            self.count -= 1;
            return true;
        }
        let Some(line) = self.lines.get_mut(usize::from(client.home.0)) else { return false };
        let first = line.waiters.partition_point(|waiter| waiter.since < since);
        let mut there = line.waiters.range_mut(first..).take_while(|waiter| waiter.since == since);
        let Some(waiter) = there.find(|waiter| waiter.client == client && !waiter.gone) else {
            return false;
        };
        waiter.gone = true;
        line.gone += 1;
        line.forget_gone();
        self.count -= 1;
        true
    }

    /// Whether the first of a line is due, and this waiter would go before it.
    #[inline]
    fn is_kept_back(&self, waiter: &Waiter, at: usize, bound: Bound<'_>) -> bool {
        let line = &self.lines[at];
        line.overtaken >= bound.size
            && !line.admits(waiter)
            && (at == bound.own
                || line.came_much_before(waiter)
                || line.overtaken >= self.bound(bound.size, at, bound.lent))
    }

    /// How often those of a line may be overtaken by those of others.
    pub(super) fn bound(&self, size: u32, line: usize, lent: &LentCount) -> u32 {
        let here = self.lines.get(line).map_or(0, Line::len);
        lent.bound(size, line, here, self.count - self.aside.len())
    }

    /// Takes out the one that gets a backend of loop `bound.own`. `fits`: whether it may have that; `few`:
    /// see [`nearest`].
    #[inline]
    pub(super) fn next(
        &mut self,
        bound: Bound<'_>,
        fits: impl Fn(&Waiter) -> bool,
        likeness: impl Fn(&Waiter, Option<Likeness>) -> Likeness,
        few: usize,
        now: Time,
    ) -> Option<Waiter> {
        if self.aside.is_empty() {
            return self.next_of_lines(bound, fits, likeness, few);
        }
        while let Some(low) = self.aside.take_low(false, now) {
            self.join(low);
        }
        let first = self.lines.iter().filter_map(|line| line.waiters.front());
        let first = first.min_by_key(|first| first.number);
        let goes = |high: &Waiter| {
            first.is_none_or(|first| {
                high.number < first.number || now < first.since.after(PASSED_MAX)
            })
        };
        if let Some(high) = self.aside.take_high(&fits, goes) {
            self.count -= 1;
            return Some(high);
        }
        loop {
            let next = self.next_of_lines(bound, &fits, &likeness, few);
            if next.is_some() {
                return next;
            }
            let low = self.aside.take_low(true, now)?;
            self.join(low);
        }
    }

    /// The same, of those that stand in the lines.
    fn next_of_lines(
        &mut self,
        bound: Bound<'_>,
        fits: impl Fn(&Waiter) -> bool,
        likeness: impl Fn(&Waiter, Option<Likeness>) -> Likeness,
        few: usize,
    ) -> Option<Waiter> {
        let own = bound.own;
        let usual = match self.lines.get(own).is_some_and(|line| !line.waiters.is_empty()) {
            true => self.take_first(own, bound, &fits, |first| likeness(first, None).is_near()),
            // No waiter of another line is nearer than one that needs nothing before its message.
            false => self.first_line().and_then(|line| {
                let brings_nothing =
                    |first: &Waiter| likeness(first, None).brings_nothing(first.wish.statement);
                self.take_first(line, bound, &fits, brings_nothing)
            }),
        };
        if usual.is_some() {
            return usual;
        }
        let lines = &self.lines;
        let may_have = |waiter: &Waiter| {
            !waiter.gone
                && !(0..lines.len()).any(|line| self.is_kept_back(waiter, line, bound))
                && fits(waiter)
        };
        let of_line = |line: usize| {
            let waiters = lines.get(line).map(|line| &line.waiters);
            let waiters = waiters.into_iter().flatten().take(WINDOW).enumerate();
            waiters.map(move |(at, waiter)| ((line, at), waiter))
        };
        let others = (0..lines.len()).filter(|line| *line != own);
        let first = |line: &usize| lines[*line].waiters.front().map(|first| first.number);
        let other = others.filter(|line| first(line).is_some()).min_by_key(first);
        let candidates = of_line(own).chain(other.into_iter().flat_map(of_line));
        let candidates = candidates.filter(|(_, waiter)| may_have(waiter));
        let (line, at) = nearest(candidates, &likeness, few).or_else(|| {
            let all = (0..lines.len()).flat_map(of_line);
            nearest(all.filter(|(_, waiter)| may_have(waiter)), &likeness, few)
        })?;
        let since = lines[line].waiters[at].since;
        for (of, passed) in self.lines.iter_mut().enumerate() {
            let count = if of == line { at } else { passed.overtaken_by(since) };
            passed.overtake(count);
        }
        let line = &mut self.lines[line];
        let next = line.remove(at);
        line.forget_gone();
        self.count -= 1;
        next
    }

    /// The line whose first has come before those of all others.
    fn first_line(&self) -> Option<usize> {
        let firsts = self.lines.iter().enumerate();
        let firsts = firsts.filter_map(|(at, line)| Some((line.waiters.front()?.number, at)));
        firsts.min().map(|(_, at)| at)
    }

    /// The first of a line, if it `is_nearest`, it may have the backend, and no other is due: the
    /// usual case. [`Self::next`] gives the same result with more comparisons.
    #[inline]
    fn take_first(
        &mut self,
        of_line: usize,
        bound: Bound<'_>,
        fits: impl Fn(&Waiter) -> bool,
        is_nearest: impl Fn(&Waiter) -> bool,
    ) -> Option<Waiter> {
        let first = self.lines.get(of_line)?.waiters.front()?;
        if !fits(first)
            || !is_nearest(first)
            || (0..self.lines.len()).any(|line| self.is_kept_back(first, line, bound))
        {
            return None;
        }
        let since = first.since;
        for (of, passed) in self.lines.iter_mut().enumerate() {
            if of != of_line {
                let count = passed.overtaken_by(since);
                passed.overtake(count);
            }
        }
        let line = &mut self.lines[of_line];
        let next = line.waiters.pop_front()?;
        line.overtaken -= next.more;
        line.forget_gone();
        self.count -= 1;
        Some(next)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;
    use crate::ids::{LoopId, Slot};
    use crate::lending::priority::Priority;

    /// Random numbers: <https://prng.di.unimi.it/splitmix64.c>.
    struct Rng(u64);

    impl Rng {
        fn below(&mut self, bound: u64) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            (mixed ^ (mixed >> 27)) % bound
        }
    }

    fn client(home: u16, index: u32) -> ClientId {
        ClientId { home: LoopId(home), slot: Slot { index, generation: 0 } }
    }

    fn push(queue: &mut Queue, home: u16, index: u32, micros: u64) {
        let since = Time::from_micros(micros);
        queue.push(client(home, index), CustomNames::NONE, Wish::default(), since);
    }

    fn next(queue: &mut Queue, home: u16, bound: u32) -> Option<u32> {
        let home = LoopId(home);
        let mark = Wish::default().settings;
        let likeness = |waiter: &Waiter, beside| {
            Likeness::of(mark, mark, waiter.client.home == home, || false, beside)
        };
        let lent = LentCount::default();
        let bound = Bound { size: bound, own: usize::from(home.0), lent: &lent };
        let next = queue.next(bound, |_| true, likeness, 12, Time::ZERO)?;
        Some(next.client.slot.index)
    }

    #[test]
    fn a_loop_serves_its_own_and_those_of_others_where_none_of_its_own_waits() {
        let mut queue = Queue::default();
        for (home, index) in [(1, 1), (2, 2), (0, 3), (1, 4)] {
            push(&mut queue, home, index, 0);
        }
        let served = [0, 0, 0, 0, 0].map(|home| next(&mut queue, home, 9));
        assert_eq!(served, [Some(3), Some(1), Some(2), Some(4), None]);
    }

    #[test]
    fn those_that_came_at_the_same_moment_on_another_loop_overtake_none() {
        for (apart, before) in [(2_000, 20), (2_001, 3)] {
            let mut queue = Queue::default();
            push(&mut queue, 1, 100, 0);
            for n in 0..20 {
                push(&mut queue, 0, n, apart);
            }
            let served = std::iter::from_fn(|| next(&mut queue, 0, 3));
            assert_eq!(served.take_while(|index| *index != 100).count(), before, "{apart} us");
        }
    }

    /// Compared with a queue that counts for each waiter which ones pass it.
    #[test]
    fn no_waiter_is_overtaken_more_often_than_the_bound_in_any_order() {
        for seed in 0..200 {
            let mut rng = Rng(seed);
            let bound = u32::try_from(1 + rng.below(6)).expect("small");
            // In every other one all want the same: the first of a line is near.
            let found = if seed % 2 == 0 { other_mark() } else { Wish::default().settings };
            let mut lent = LentCount::default();
            for _ in 0..rng.below(8) {
                lent.add(LoopId(u16::try_from(rng.below(3)).expect("small")));
            }
            let most = if lent.all() == 0 { bound } else { LentCount::bound_max(bound) };
            let mut queue = Queue::default();
            let mut waiting: BTreeMap<u64, (ClientId, Time, u32)> = BTreeMap::new();
            let (mut now, mut number) = (0, 0);
            for _ in 0..400 {
                now += rng.below(1_500);
                let home = u16::try_from(rng.below(3)).expect("small");
                match rng.below(20) {
                    0..=9 => {
                        let index = u32::try_from(number).expect("few");
                        push(&mut queue, home, index, now);
                        let since = Time::from_micros(now);
                        waiting.insert(number, (client(home, index), since, 0));
                        number += 1;
                    }
                    10 => {
                        let any = rng.below(number.max(1));
                        let left = waiting.remove(&any);
                        let (id, since) = left
                            .map_or((client(home, 9999), Time::ZERO), |(id, since, _)| (id, since));
                        assert_eq!(queue.forget(id, since), left.is_some());
                    }
                    _ => {
                        // Few want what a backend has: any of the first may be the nearest.
                        let wanted = Wish { statement: rng.below(3), ..Wish::default() };
                        let likeness = |waiter: &Waiter, beside| {
                            let knows =
                                || u64::from(waiter.client.slot.index) % 3 == wanted.statement;
                            Likeness::of(
                                wanted.settings,
                                found,
                                waiter.client.home.0 == home,
                                knows,
                                beside,
                            )
                        };
                        let bound = Bound { size: bound, own: usize::from(home), lent: &lent };
                        let next = queue.next(bound, |_| true, likeness, 12, Time::ZERO);
                        assert_eq!(next.is_some(), !waiting.is_empty());
                        let Some(next) = next else { continue };
                        let number = u64::from(next.client.slot.index);
                        let served = waiting.remove(&number).expect("it waits");
                        for (_, (id, since, overtaken)) in waiting.range_mut(..number) {
                            let same_moment = next.since <= since.after(SAME_MOMENT);
                            *overtaken += u32::from(id.home == served.0.home || !same_moment);
                            assert!(*overtaken <= most, "seed {seed}: {overtaken}");
                        }
                    }
                }
                assert_eq!(queue.len(), waiting.len());
                let order: Vec<ClientId> = queue.iter().map(|waiter| waiter.client).collect();
                let expected: Vec<ClientId> = waiting.values().map(|(id, ..)| *id).collect();
                assert_eq!(order, expected, "seed {seed}");
                // The lines' counts of their first equal the counted ones.
                for line in &queue.lines {
                    let Some(first) = line.waiters.front() else { continue };
                    let counted = waiting[&first.number].2;
                    assert_eq!(line.overtaken, counted, "seed {seed}");
                }
            }
        }
    }

    fn other_mark() -> crate::session::settings::Mark {
        let mut settings = crate::session::settings::SettingsBuilder::new();
        settings.set(b"my.user", b"1");
        settings.build().mark()
    }

    fn push_with(queue: &mut Queue, priority: Priority, home: u16, index: u32, micros: u64) {
        let wish = Wish { priority, ..Wish::default() };
        queue.push(client(home, index), CustomNames::NONE, wish, Time::from_micros(micros));
    }

    fn next_at(queue: &mut Queue, home: u16, micros: u64) -> Option<u32> {
        let near = |_: &Waiter, _: Option<Likeness>| {
            let mark = Wish::default().settings;
            Likeness::of(mark, mark, true, || false, None)
        };
        let lent = LentCount::default();
        let bound = Bound { size: 3, own: usize::from(home), lent: &lent };
        let next = queue.next(bound, |_| true, near, 12, Time::from_micros(micros))?;
        Some(next.client.slot.index)
    }

    const SECONDS: u64 = 1_000_000;

    #[test]
    fn the_high_go_first_and_the_low_last_for_as_long_as_they_may_pass() {
        use Priority::{High, Low, Usual};
        let all = [(Low, 1), (Usual, 2), (High, 3), (Low, 4), (Usual, 5), (High, 6)];
        let served = |now: u64| {
            let mut queue = Queue::default();
            for (at, (priority, index)) in (0..).zip(all) {
                push_with(&mut queue, priority, 0, index, at);
            }
            assert_eq!(
                (queue.len(), queue.first().map(|first| first.client.slot.index)),
                (6, Some(1))
            );
            assert_eq!(queue.iter().count(), 6);
            let served: Vec<u32> = std::iter::from_fn(|| next_at(&mut queue, 0, now)).collect();
            assert!(queue.is_empty());
            served
        };
        assert_eq!(served(10), [3, 6, 2, 5, 1, 4]);
        assert_eq!(served(5 * SECONDS + 10), [1, 2, 3, 4, 5, 6], "nobody is passed any more");
    }

    #[test]
    fn one_that_joins_its_line_late_leaves_what_others_were_overtaken() {
        let mut queue = Queue::default();
        push_with(&mut queue, Priority::Low, 1, 0, 0);
        for (index, at) in [(1, 1), (2, 2), (3, 3)] {
            push(&mut queue, 1, index, at);
        }
        push(&mut queue, 0, 100, 10_000);
        assert_eq!(next(&mut queue, 0, 5), Some(100), "passes all");
        assert_eq!(next_at(&mut queue, 1, 5 * SECONDS), Some(0));
        assert_eq!((queue.lines[1].overtaken, queue.len()), (1, 3));
        assert!(queue.forget(client(1, 1), Time::from_micros(1)));
        assert_eq!(next_at(&mut queue, 1, 5 * SECONDS), Some(2));
        assert_eq!(next_at(&mut queue, 1, 5 * SECONDS), Some(3));
        assert_eq!((queue.lines[1].overtaken, queue.len()), (0, 0));
    }

    #[test]
    fn those_who_stand_aside_may_leave() {
        let mut queue = Queue::default();
        push_with(&mut queue, Priority::High, 0, 1, 5);
        push_with(&mut queue, Priority::Low, 0, 2, 5);
        for (index, left) in [(1, true), (1, false), (2, true), (3, false)] {
            assert_eq!(queue.forget(client(0, index), Time::from_micros(5)), left);
        }
        assert!(queue.is_empty() && queue.first().is_none() && next_at(&mut queue, 0, 9).is_none());
    }

    /// Compared with what is said of each pair of waiters.
    #[test]
    fn nobody_is_passed_by_a_higher_priority_after_its_time_in_any_order() {
        for seed in 0..100 {
            let rank = |priority| match priority {
                Priority::Low => 0,
                Priority::Usual => 1,
                Priority::High => 2,
            };
            let mut rng = Rng(seed);
            let mut queue = Queue::default();
            let mut waiting: BTreeMap<u32, (Priority, u64, u16)> = BTreeMap::new();
            let (mut now, mut index) = (0, 0);
            for _ in 0..400 {
                now += rng.below(400_000);
                let home = u16::try_from(rng.below(2)).expect("small");
                if rng.below(2) == 0 {
                    let of = [Priority::Low, Priority::Usual, Priority::High];
                    let priority = of[usize::try_from(rng.below(3)).expect("small")];
                    push_with(&mut queue, priority, home, index, now);
                    waiting.insert(index, (priority, now, home));
                    index += 1;
                    continue;
                }
                let next = next_at(&mut queue, home, now);
                assert_eq!(next.is_some(), !waiting.is_empty(), "seed {seed}");
                let Some(next) = next else { continue };
                let (priority, _, at) = waiting.remove(&next).expect("it waits");
                for (_, (passed, since, of)) in waiting.range(..next) {
                    let is_due = now - since >= 5 * SECONDS;
                    let is_higher = rank(priority) > rank(*passed);
                    let may = !is_due || !is_higher || (*of != at && priority == Priority::Usual);
                    assert!(
                        may,
                        "seed {seed}: {passed:?} is passed by {priority:?} after its time"
                    );
                }
            }
            assert_eq!(queue.len(), waiting.len());
        }
    }

    #[test]
    fn those_who_leave_in_the_middle_leave_what_others_were_overtaken() {
        let mut queue = Queue::default();
        for n in 0..200 {
            push(&mut queue, 1, n, u64::from(n));
        }
        push(&mut queue, 0, 1000, 10_000);
        assert_eq!(next(&mut queue, 0, 5), Some(1000), "passes all");
        for n in 1..150 {
            assert!(queue.forget(client(1, n), Time::from_micros(u64::from(n))));
        }
        assert_eq!((queue.lines[1].overtaken, queue.len()), (1, 51));
        assert_eq!(next(&mut queue, 1, 5), Some(0));
        assert_eq!(queue.lines[1].overtaken, 1, "the next has been passed, too");
        for n in 150..200 {
            assert_eq!(next(&mut queue, 1, 5), Some(n));
        }
        assert_eq!((queue.lines[1].overtaken, queue.len()), (0, 0));
    }
}
