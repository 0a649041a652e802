//! What is known about the functions of a database, for all of its pools.
//!
//! # Model
//! ```text
//!   a text that makes something is sent ──► what it makes is added ──► its transaction ends ──► a look is due
//!   a look at the catalogs begins ──► its census replaces what is known
//! ```
//! A look cannot see what a transaction has not committed, nor what was sent after it began: its census is
//! then added to what is known, and a later look replaces that.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::parts::functions::census::Census;
use crate::time::Time;

/// What is known about the functions of a database.
#[derive(Debug, Default)]
pub struct KnownFunctions {
    state: Arc<Mutex<State>>,
    /// Changes with the census.
    serial: AtomicU32,
}

#[derive(Debug, Default)]
struct State {
    census: Option<Arc<Census>>,
    /// Texts that make something: in transactions that have not ended, and all that were sent.
    open: u32,
    sent: u32,
    /// The census may not be true any more.
    is_due: bool,
    /// When a look last ended, whatever came of it.
    looked: Option<Time>,
}

/// The transaction of a text that makes something has not ended.
#[derive(Debug)]
pub(crate) struct Foreseen(Arc<Mutex<State>>);

/// A look at the catalogs that has begun.
#[derive(Debug)]
pub struct Look {
    sent: u32,
    /// What is known may not be true any more.
    pub was_due: bool,
}

fn locked(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Foreseen {
    fn drop(&mut self) {
        let mut state = locked(&self.0);
        state.open -= 1;
        state.is_due = true;
    }
}

impl KnownFunctions {
    /// What is known.
    pub fn census(&self) -> Option<Arc<Census>> {
        locked(&self.state).census.clone()
    }

    /// Changes with the census.
    #[inline]
    pub fn serial(&self) -> u32 {
        self.serial.load(Ordering::Acquire)
    }

    fn set(&self, state: &mut State, census: Option<Arc<Census>>) {
        state.census = census;
        self.serial.fetch_add(1, Ordering::Release);
    }

    /// A text is sent that may make something. `None`: there is no census to which that could be added.
    pub(crate) fn foresee(
        &self,
        text: &[u8],
        reported: impl Fn(&[u8]) -> bool,
    ) -> Option<Foreseen> {
        let mut state = locked(&self.state);
        let more = state.census.as_ref()?.foreseeing(text, reported);
        state.open += 1;
        state.sent = state.sent.wrapping_add(1);
        if let Some(more) = more {
            self.set(&mut state, Some(Arc::new(more)));
        }
        Some(Foreseen(self.state.clone()))
    }

    /// A look at the catalogs begins.
    pub fn begin_look(&self) -> Look {
        let mut state = locked(&self.state);
        Look { sent: state.sent, was_due: std::mem::take(&mut state.is_due) }
    }

    /// A look has taken this census. Returns whether something else is known now.
    pub fn learn(&self, look: &Look, taken: &Arc<Census>) -> bool {
        let mut state = locked(&self.state);
        let census = match &state.census {
            Some(known) if state.open > 0 || state.sent != look.sent => Arc::new(taken.and(known)),
            _ => taken.clone(),
        };
        if state.census.as_ref() == Some(&census) {
            return false;
        }
        self.set(&mut state, Some(census));
        true
    }

    /// A look has ended, whatever came of it.
    pub fn looked(&self, now: Time) {
        locked(&self.state).looked = Some(now);
    }

    /// Whether the last look is longer ago than this, or there was none.
    pub fn is_older_than(&self, age: Duration, now: Time) -> bool {
        locked(&self.state).looked.is_none_or(|looked| now.since(looked) > age)
    }

    /// Nothing is known any more.
    pub fn forget(&self) {
        let mut state = locked(&self.state);
        if state.census.is_some() {
            self.set(&mut state, None);
        }
    }

    /// A statement has succeeded after which functions may do something else.
    pub(crate) fn expect_others(&self) {
        locked(&self.state).is_due = true;
    }

    /// Whether one has since the last look began.
    pub fn expects_others(&self) -> bool {
        locked(&self.state).is_due
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parts::functions::census::{Function, Language};

    const MAKES: &[u8] = b"create function made() returns void language plpgsql as \
                           $$ begin perform set_config('app.who', 'x', false); end $$";

    fn census(names: &[&str]) -> Arc<Census> {
        let functions: Vec<_> = names
            .iter()
            .map(|name| Function {
                name: name.as_bytes().into(),
                language: Language::PlPgSql,
                immutable: false,
                source: b"begin perform set_config('app.who', 'x', false); end"[..].into(),
            })
            .collect();
        Arc::new(Census::take(&functions, &[], |_| false, 1))
    }

    fn does(known: &KnownFunctions, text: &str) -> bool {
        known.census().is_some_and(|census| census.of_text(text.as_bytes()).is_some())
    }

    #[test]
    fn no_look_that_could_not_see_a_text_replaces_what_it_makes() {
        let known = KnownFunctions::default();
        assert!(known.foresee(MAKES, |_| false).is_none());
        assert!(known.learn(&known.begin_look(), &census(&[])));
        // The look began before the text was sent.
        let look = known.begin_look();
        let foreseen = known.foresee(MAKES, |_| false);
        known.learn(&look, &census(&["other"]));
        assert!(does(&known, "select made()") && does(&known, "select other()"));
        // And after it, but before its transaction has ended.
        known.learn(&known.begin_look(), &census(&["third"]));
        assert!(does(&known, "select made()") && does(&known, "select third()"));
        let look = known.begin_look();
        assert!(!look.was_due);
        drop(foreseen);
        known.learn(&look, &census(&["fourth"]));
        // It was not committed.
        let look = known.begin_look();
        assert!(look.was_due && !known.expects_others());
        known.learn(&look, &census(&["fourth"]));
        assert!(!does(&known, "select made()") && does(&known, "select fourth()"));
    }

    #[test]
    fn a_text_that_is_sent_and_ends_during_a_look_stays_until_the_next() {
        let known = KnownFunctions::default();
        known.learn(&known.begin_look(), &census(&[]));
        let look = known.begin_look();
        drop(known.foresee(MAKES, |_| false));
        known.learn(&look, &census(&["other"]));
        assert!(does(&known, "select made()") && known.expects_others());
        known.learn(&known.begin_look(), &census(&["other"]));
        assert!(!does(&known, "select made()"));
    }
}
