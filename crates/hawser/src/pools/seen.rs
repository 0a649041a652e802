//! What a pool's server has answered about the values with which new sessions start.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tokio::sync::Mutex as AsyncMutex;

use super::locked;
use crate::logging::Seldom;

/// How often a server is asked for changed start values, at most.
const SETTINGS_PERIOD: Duration = Duration::from_millis(50);

/// Roles of a pool whose answers are remembered.
const ROLES_MAX: usize = 1_000;

/// A server's answers about a pool's start values, for each role whose sessions it has: one, or its users.
#[derive(Default, Debug)]
pub struct SeenOf {
    roles: Mutex<HashMap<String, Arc<Seen>>>,
    /// Warnings that it does not answer.
    pub silences: Seldom,
}

impl SeenOf {
    /// Those about a role.
    pub fn role(&self, role: &str) -> Arc<Seen> {
        let mut roles = locked(&self.roles);
        if let Some(seen) = roles.get(role) {
            return seen.clone();
        }
        if roles.len() >= ROLES_MAX {
            roles.clear();
        }
        roles.entry(role.to_owned()).or_default().clone()
    }

    /// A statement may have changed them: the next client asks, even if one asked just before.
    pub fn expect_change(&self) {
        for seen in locked(&self.roles).values() {
            locked(&seen.asking).asked = None;
        }
    }
}

/// A server's answers about the start values of a role.
#[derive(Default, Debug)]
pub struct Seen {
    asking: Mutex<Asking>,
    /// The last answer, and when it was asked for.
    pub fingerprint: AsyncMutex<Option<(Instant, Vec<u8>)>>,
}

#[derive(Default, Debug)]
struct Asking {
    /// When it was last asked, answered or not.
    asked: Option<Instant>,
    /// Questions under way.
    under_way: usize,
    /// The last one was not answered in time.
    unanswered: bool,
}

/// Whether a login waits for the answer to its question.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Waiting {
    /// It does.
    Awaited,
    /// It does not.
    NotAwaited,
}

impl Seen {
    /// Whether the caller must ask now, and whether it waits for the answer: over a link only if a
    /// change is expected.
    pub fn begin(&self, is_over_link: bool) -> Option<Waiting> {
        let mut asking = locked(&self.asking);
        let due = asking.asked.is_none_or(|asked| asked.elapsed() >= SETTINGS_PERIOD);
        if !due || (asking.unanswered && asking.under_way > 0) {
            return None;
        }
        let is_routine = asking.asked.replace(Instant::now()).is_some();
        asking.under_way += 1;
        let waits = !(asking.unanswered || is_over_link && is_routine);
        Some(if waits { Waiting::Awaited } else { Waiting::NotAwaited })
    }

    /// A question begins for which no login waits.
    pub fn begin_unawaited(&self) {
        locked(&self.asking).under_way += 1;
    }

    /// A question has not been answered in time.
    pub fn note_silence(&self) {
        locked(&self.asking).unanswered = true;
    }

    /// A question has ended; `answered`: the server is no longer silent.
    pub fn end(&self, answered: bool) {
        let mut asking = locked(&self.asking);
        asking.under_way -= 1;
        asking.unanswered &= !answered;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unanswered_question_is_not_awaited_again_until_one_is_answered() {
        let seen = Seen::default();
        assert_eq!(seen.begin(false), Some(Waiting::Awaited));
        assert_eq!(seen.begin(false), None, "it was asked just now");
        let later = |seen: &Seen| locked(&seen.asking).asked = None;
        later(&seen);
        assert_eq!(seen.begin(false), Some(Waiting::Awaited), "a change is expected: asked anew");
        seen.end(false); // it could not be asked, which took no time
        later(&seen);
        assert_eq!(seen.begin(false), Some(Waiting::Awaited));
        seen.end(true);
        locked(&seen.asking).unanswered = true;
        later(&seen);
        assert_eq!(seen.begin(false), None, "one is under way still");
        seen.end(false);
        assert_eq!(seen.begin(false), Some(Waiting::NotAwaited));
        seen.end(true);
        later(&seen);
        assert_eq!(seen.begin(false), Some(Waiting::Awaited));
    }

    #[test]
    fn over_a_link_a_login_waits_only_where_a_change_is_expected() {
        let seen = Seen::default();
        assert_eq!(seen.begin(true), Some(Waiting::Awaited), "nothing is known yet");
        seen.end(true);
        let long_ago = Instant::now().checked_sub(2 * SETTINGS_PERIOD);
        locked(&seen.asking).asked = long_ago;
        assert_eq!(seen.begin(true), Some(Waiting::NotAwaited));
        seen.end(true);
        locked(&seen.asking).asked = long_ago;
        assert_eq!(seen.begin(false), Some(Waiting::Awaited));
        seen.end(true);
        locked(&seen.asking).asked = None; // a statement that may change them has succeeded
        assert_eq!(seen.begin(true), Some(Waiting::Awaited));
    }
}
