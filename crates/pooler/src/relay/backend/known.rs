//! What is known of a server connection's session, and what is not.

use crate::lending::SharedPool;
use crate::parts::functions::census::functions::Functions;
use crate::parts::listen::notifying::Notifying;
use crate::parts::pins::unverified::Unverified;
use crate::parts::report::SessionReport;
use crate::parts::sequences::drawn_values::Drawn;
use crate::relay::side_effects::SideEffects;

/// What is known of its session, and what is not.
pub(crate) struct Known {
    /// What its client's statements may have created or ended. `None`: nothing is in doubt.
    pub(crate) unverified: Option<Box<Unverified>>,
    /// What statements in flight may change for other sessions.
    pub(crate) side_effects: SideEffects,
    /// What has been drawn from sequences on it.
    pub(crate) drawn: Drawn,
    /// Which clients notify by it.
    pub(crate) notifying: Notifying,
    /// The functions that do something to sessions, if there are any.
    pub(crate) functions: Option<Box<Functions>>,
    functions_serial: u32,
    /// Whether some keep plans in the process, made under the settings of their first caller.
    pub(crate) keeps_plans: bool,
    /// What its server reports of the session, if it does.
    pub(crate) session_report: Option<Box<SessionReport>>,
}

/// Whether the server process keeps plans of this database's functions.
fn keeps_plans<B>(pool: &SharedPool<B>) -> bool {
    pool.census().is_some_and(|census| census.keeps_plans())
}

impl Known {
    /// For a server connection of this pool that has just been opened.
    pub(super) fn new<B>(pool: &SharedPool<B>, session_report: Option<Box<SessionReport>>) -> Self {
        Self {
            unverified: None,
            side_effects: SideEffects::default(),
            drawn: Drawn::default(),
            notifying: Notifying::default(),
            functions: Functions::of(pool),
            functions_serial: pool.functions_serial(),
            keeps_plans: keeps_plans(pool),
            session_report,
        }
    }

    /// Whether it lets the plain lane run.
    #[inline]
    pub(crate) fn is_usual(&self) -> bool {
        let Self {
            unverified,
            side_effects,
            drawn,
            notifying: _, // NOTIFY is no plain text
            functions: _,
            functions_serial: _,
            keeps_plans: _, // asked for each text
            session_report,
        } = self;
        unverified.is_none()
            && side_effects.is_nothing()
            && !side_effects.has_parsed()
            && !drawn.has_last()
            && session_report.is_none()
    }

    /// Whether nothing else has become known about the functions since.
    #[inline]
    pub(crate) fn is_up_to_date<B>(&self, pool: &SharedPool<B>) -> bool {
        self.functions_serial == pool.functions_serial()
    }

    /// The functions that do something to sessions may have changed.
    #[inline]
    pub(crate) fn learn_functions<B>(&mut self, pool: &SharedPool<B>) {
        let serial = pool.functions_serial();
        if self.functions_serial != serial {
            pool.adopt_census();
            (self.functions, self.functions_serial) = (Functions::of(pool), serial);
            self.keeps_plans = keeps_plans(pool);
        }
    }
}
