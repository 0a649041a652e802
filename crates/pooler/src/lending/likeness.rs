//! How near a backend is to what a client wants: the cost of binding one to the other.
//!
//! # Model
//! Of the backends that are free, or of the first waiters, the nearest is taken; of equally near
//! ones, the first. What each of these saves, measured in a server whose transaction takes 11 us:
//!
//! | the backend | saves |
//! |---|---|
//! | has the settings that the client wants | 4 us for two that go within its pipeline, 6 with a `search_path`; 6 and 13 before it |
//! | has the statement that the client's first message names | 14 us, and 9 for each of the first plans |
//! | has the `search_path` that the client wants | 7 us |
//! | is on the client's loop | 1 us, in Hawser |
//!
//! # Why so
//! In a pool whose clients all want the same, the search stops at the first waiter. Otherwise it
//! looks at few, because each waiter that passes others uses up their bound on overtaking. 100
//! clients with 10 statements each of their own on 10 backends that keep 200 found theirs in 20 of
//! 100 transactions in the order of arrival, reckoned with the nearest of the next 6, 12, 16 and 32
//! waiters in 70, 84, 81 and 72. The backend that a client had last in place of the one that has
//! its statement does no better than none: the bound on overtaking sends every third client
//! elsewhere, and all lose their backends.
//!
//! # Why marks
//! Comparing settings follows pointers, under the pool's lock. Two different sets with the same
//! mark (they can be constructed) only look near: the difference is still sent.

use crate::lending::priority::Priority;
use crate::lending::process_state::Lasting;
use crate::parts::settings::custom_names::CustomNames;
use crate::session::settings::Mark;

/// What a client would like to find.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Wish {
    /// Of the settings that it wants.
    pub settings: Mark,
    /// The shared statement that its first message names; 0: none, or not known.
    pub statement: u64,
    /// It prefers the backend that it had, if that is idle, because it has statements of PREPARE.
    pub own: bool,
    /// What its process must not keep.
    pub avoids: Lasting,
    /// Its place among those that wait.
    pub priority: Priority,
}

/// What decides which clients may have a backend, and which prefer it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Has {
    /// Custom names that it knows.
    pub names: CustomNames,
    /// What its process keeps.
    pub lasting: Lasting,
    /// Of the settings in force.
    pub settings: Mark,
}

impl Has {
    /// May a client with these names, that wishes this, get it?
    #[inline]
    pub(super) fn fits(&self, names: CustomNames, wish: &Wish) -> bool {
        self.names.fit(names) && !self.lasting.meets(wish.avoids)
    }
}

/// The larger, the less it costs to bring a client to a backend.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Likeness(u8);

impl Likeness {
    const SETTINGS: u8 = 8;
    const STATEMENT: u8 = 4;
    const PATH: u8 = 2;
    const HOME: u8 = 1;

    /// `wanted` and `found` are settings; whether they are on the same loop; whether the statement is
    /// there. `beside` is the nearest so far.
    #[inline]
    pub(super) fn of(
        wanted: Mark,
        found: Mark,
        home: bool,
        statement: impl FnOnce() -> bool,
        beside: Option<Likeness>,
    ) -> Likeness {
        let settings = wanted == found;
        // Finding the statement takes a look-up. If the rest is alike it is not worth one, unless
        // the best so far has its statement.
        let worth = !(settings && home) || beside.is_some_and(Likeness::has_statement);
        let statement = worth && statement();
        Likeness(
            u8::from(settings) * Self::SETTINGS
                + u8::from(statement) * Self::STATEMENT
                + u8::from(wanted.has_path_of(found)) * Self::PATH
                + u8::from(home) * Self::HOME,
        )
    }

    /// No other backend can be worth a look.
    #[inline]
    pub(super) fn is_near(self) -> bool {
        self.0 & (Self::SETTINGS | Self::HOME) == Self::SETTINGS | Self::HOME
    }

    /// The client's first message needs nothing before it: `statement` is the one that it names, or 0.
    #[inline]
    pub(super) fn brings_nothing(self, statement: u64) -> bool {
        self.has_settings() && (statement == 0 || self.has_statement())
    }

    fn has_settings(self) -> bool {
        self.0 >= Self::SETTINGS
    }

    fn has_statement(self) -> bool {
        self.0 & Self::STATEMENT != 0
    }
}

/// The place of the nearest. Looks at all with the desired settings, to find one on the same loop;
/// otherwise at `few`. `likeness` gets the nearest so far: see [`Likeness::of`].
#[inline]
pub(super) fn nearest<At, T>(
    candidates: impl Iterator<Item = (At, T)>,
    likeness: impl Fn(T, Option<Likeness>) -> Likeness,
    few: usize,
) -> Option<At> {
    let mut best: Option<(At, Likeness)> = None;
    let mut unlike = false;
    for (seen, (at, candidate)) in candidates.enumerate() {
        let likeness = likeness(candidate, best.as_ref().map(|(_, known)| *known));
        unlike |= !likeness.has_settings();
        if seen >= few && unlike {
            break;
        }
        if best.as_ref().is_none_or(|(_, known)| likeness > *known) {
            best = Some((at, likeness));
        }
        if likeness.is_near() {
            break;
        }
    }
    best.map(|(at, _)| at)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::settings::SettingsBuilder;

    /// The mark of a search_path and another setting.
    fn mark(path: &str, other: &str) -> Mark {
        let mut settings = SettingsBuilder::new();
        settings.set(b"search_path", path.as_bytes()).set(b"my.user", other.as_bytes());
        settings.build().mark()
    }

    /// The choice among candidates, each given as settings, home, statement. The `search_path` is that
    /// of the settings.
    fn choose(candidates: &[(bool, bool, bool)], few: usize) -> Option<usize> {
        let wanted = mark("a", "1");
        let found = |same| if same { wanted } else { mark("b", "1") };
        let likeness = |&(settings, home, statement): &(bool, bool, bool), beside| {
            Likeness::of(wanted, found(settings), home, || statement, beside)
        };
        nearest(candidates.iter().enumerate(), likeness, few)
    }

    #[test]
    fn the_same_path_counts_more_than_the_loop_and_less_than_the_statement() {
        let wanted = mark("a", "1");
        let of = |found, home, statement| Likeness::of(wanted, found, home, || statement, None);
        let (path, nothing) = (mark("a", "2"), mark("b", "2"));
        assert!(of(path, false, false) > of(nothing, true, false));
        assert!(of(nothing, false, true) > of(path, true, false));
        assert!(of(path, false, true) > of(nothing, true, true));
        assert!(of(wanted, false, false) > of(path, true, true));
    }

    #[test]
    fn settings_count_more_than_statements_and_these_more_than_the_loop() {
        let (settings, statement, home) =
            ((true, false, false), (false, false, true), (false, true, false));
        let nothing = (false, false, false);
        assert_eq!(choose(&[nothing, home, statement, settings], 4), Some(3));
        assert_eq!(choose(&[nothing, home, statement], 4), Some(2));
        assert_eq!(choose(&[nothing, home], 4), Some(1));
        assert_eq!(choose(&[nothing, nothing], 4), Some(0), "the first of equals");
        assert_eq!(choose(&[], 4), None);
    }

    #[test]
    fn few_are_looked_at_where_wants_differ() {
        let (unlike, near) = ((false, true, false), (true, true, false));
        assert_eq!(choose(&[unlike, unlike, near], 3), Some(2));
        assert_eq!(choose(&[unlike, unlike, near], 2), Some(0));
        let abroad = (true, false, false);
        assert_eq!(choose(&[abroad, abroad, abroad, near], 2), Some(3), "all want the same");
    }

    #[test]
    fn where_all_want_the_same_nothing_is_looked_up() {
        let same = mark("a", "1");
        let likeness = Likeness::of(same, same, true, || panic!("looked up"), None);
        assert!(likeness.is_near());
    }

    /// What all of them have is no reason to prefer the first.
    #[test]
    fn of_those_with_the_same_settings_and_statement_it_is_the_one_on_the_same_loop() {
        let (abroad, near) = ((true, false, true), (true, true, true));
        assert_eq!(choose(&[abroad, abroad, near, near], 12), Some(2));
        let without = (true, true, false);
        assert_eq!(
            choose(&[abroad, without], 12),
            Some(0),
            "the statement counts more than the loop"
        );
    }
}
