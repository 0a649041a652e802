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
    unverified: Option<Box<Unverified>>,
    side_effects: SideEffects,
    drawn: Drawn,
    notifying: Notifying,
    functions: Option<Box<Functions>>,
    functions_serial: u32,
    keeps_plans: bool,
    session_report: Option<Box<SessionReport>>,
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

    /// What its client's statements may have created or ended. `None`: nothing is in doubt.
    #[inline]
    pub(crate) fn unverified(&self) -> Option<&Unverified> {
        self.unverified.as_deref()
    }

    pub(crate) fn unverified_mut(&mut self) -> Option<&mut Unverified> {
        self.unverified.as_deref_mut()
    }

    /// More is in doubt.
    pub(crate) fn doubt(&mut self) -> &mut Unverified {
        self.unverified.get_or_insert_default()
    }

    /// Nothing is in doubt any more. Returns what was.
    #[inline]
    pub(crate) fn settle_doubt(&mut self) -> Option<Box<Unverified>> {
        self.unverified.take()
    }

    /// This is in doubt, and nothing else.
    pub(crate) fn doubt_only(&mut self, unverified: Box<Unverified>) {
        self.unverified = Some(unverified);
    }

    /// What statements in flight may change for other sessions.
    #[inline]
    pub(crate) fn side_effects(&self) -> &SideEffects {
        &self.side_effects
    }

    #[inline]
    pub(crate) fn side_effects_mut(&mut self) -> &mut SideEffects {
        &mut self.side_effects
    }

    /// What has been drawn from sequences on it.
    #[inline]
    pub(crate) fn drawn(&self) -> &Drawn {
        &self.drawn
    }

    #[inline]
    pub(crate) fn drawn_mut(&mut self) -> &mut Drawn {
        &mut self.drawn
    }

    /// Which clients notify by it.
    #[inline]
    pub(crate) fn notifying(&self) -> &Notifying {
        &self.notifying
    }

    #[inline]
    pub(crate) fn notifying_mut(&mut self) -> &mut Notifying {
        &mut self.notifying
    }

    /// The functions that do something to sessions, if there are any.
    #[inline]
    pub(crate) fn functions(&self) -> Option<&Functions> {
        self.functions.as_deref()
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

    /// Whether some keep plans in the process, made under the settings of their first caller.
    #[inline]
    pub(super) fn keeps_plans(&self) -> bool {
        self.keeps_plans
    }

    /// What its server reports of the session, if it does.
    #[inline]
    pub(crate) fn session_report(&self) -> Option<&SessionReport> {
        self.session_report.as_deref()
    }

    #[inline]
    pub(crate) fn session_report_mut(&mut self) -> Option<&mut SessionReport> {
        self.session_report.as_deref_mut()
    }

    /// Its server's reports are not used any more, or not while this one is read.
    pub(crate) fn take_session_report(&mut self) -> Option<Box<SessionReport>> {
        self.session_report.take()
    }

    /// Its server reports this.
    pub(crate) fn set_session_report(&mut self, report: Box<SessionReport>) {
        self.session_report = Some(report);
    }
}
