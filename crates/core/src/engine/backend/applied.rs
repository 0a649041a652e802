//! The settings in force on a server connection.

use std::sync::Arc;

use crate::engine::timeouts::Lifts;
use crate::engine::within::Within;
use crate::pool::{Basis, CustomNames, Lasting, ServerParameters};
use crate::session::scan::{ScanOptions, names_temporary_schema};
use crate::session::settings::Settings;

/// The settings in force there.
pub(in crate::engine) struct AppliedSession {
    applied: Settings,
    own: OwnValues,
    texts: Texts,
    applying: bool,
    custom: CustomNames,
    lasting: Lasting,
    lifts: Lifts,
    within: Option<Box<Within>>,
    function_plans: FunctionPlans,
    /// No other client than the one that has it has made any of these.
    function_plans_are_own: bool,
}

/// Under which settings its process has made the plans of functions that it keeps.
#[derive(Clone, Debug)]
pub(in crate::engine) enum FunctionPlans {
    /// It has none.
    None,
    /// These, as they differ from the values of that number.
    Under(Basis, Settings),
    /// Several, or some that are not known.
    Several,
}

/// What the server has by itself, and what follows from that.
struct OwnValues {
    parameters: Arc<ServerParameters>,
    basis: Basis,
    makes_temporary: bool,
    reading: ScanOptions,
}

impl OwnValues {
    fn new(parameters: Arc<ServerParameters>, basis: Basis) -> Self {
        let path = parameters.get(b"search_path");
        Self {
            makes_temporary: path.is_some_and(names_temporary_schema),
            reading: ScanOptions::default().with(|name| parameters.get(name)),
            parameters,
            basis,
        }
    }
}

/// What texts may have changed since it was last at rest, outside of a transaction.
#[derive(Clone, Copy, Default)]
struct Texts {
    /// How it reads texts.
    reread: bool,
    /// A search_path that is not known before the end of the transaction.
    unseen_path: bool,
    /// What plans depend on, which is not known, or not before an answer, or ends with the transaction.
    plans: bool,
}

impl AppliedSession {
    pub(super) fn new(parameters: Arc<ServerParameters>, basis: Basis) -> Self {
        Self {
            applied: Settings::EMPTY,
            own: OwnValues::new(parameters, basis),
            texts: Texts::default(),
            applying: false,
            custom: CustomNames::NONE,
            lasting: Lasting::NONE,
            lifts: Lifts::default(),
            within: None,
            function_plans: FunctionPlans::None,
            function_plans_are_own: false,
        }
    }

    /// Settings in force, as they differ from the server's own at connect; or those that will be, once what has
    /// been sent is answered.
    #[inline]
    pub(in crate::engine) fn applied(&self) -> &Settings {
        &self.applied
    }

    /// These are in force from now on. What was before.
    pub(in crate::engine) fn apply(&mut self, settings: Settings) -> Settings {
        std::mem::replace(&mut self.applied, settings)
    }

    /// What the server reported at connect.
    #[inline]
    pub(in crate::engine) fn parameters(&self) -> &Arc<ServerParameters> {
        &self.own.parameters
    }

    /// The number of these.
    #[inline]
    pub(in crate::engine) fn basis(&self) -> Basis {
        self.own.basis
    }

    /// Whether a plain CREATE TABLE may make a temporary table by these.
    pub(in crate::engine) fn makes_temporary(&self) -> bool {
        self.own.makes_temporary
    }

    /// How it reads texts by these.
    #[inline]
    pub(in crate::engine) fn reading(&self) -> ScanOptions {
        self.own.reading
    }

    /// The server's own values have changed.
    pub(super) fn take_parameters(&mut self, parameters: Arc<ServerParameters>, basis: Basis) {
        self.own = OwnValues::new(parameters, basis);
    }

    /// Something is sent that may change how it reads texts, or set a search_path that is not known before the
    /// end of the transaction.
    pub(in crate::engine) fn doubt_texts(&mut self, rereads: bool, unseen_path: bool) {
        self.texts.reread |= rereads;
        self.texts.unseen_path |= unseen_path;
    }

    /// Whether something has been sent that may change how it reads texts.
    #[inline]
    pub(in crate::engine) fn may_read_otherwise(&self) -> bool {
        self.texts.reread
    }

    /// Whether a search_path may have been set that is not known yet.
    pub(in crate::engine) fn may_have_unseen_path(&self) -> bool {
        self.texts.unseen_path
    }

    /// Something is sent that may set what plans depend on.
    pub(in crate::engine) fn doubt_plans(&mut self) {
        self.texts.plans = true;
        self.mix_function_plans();
    }

    /// What it keeps of functions may be made under more settings than one from here on.
    pub(in crate::engine) fn mix_function_plans(&mut self) {
        self.function_plans = FunctionPlans::Several;
    }

    /// Under which settings it has made the plans of functions.
    #[inline]
    pub(in crate::engine) fn function_plans(&self) -> &FunctionPlans {
        &self.function_plans
    }

    /// All that it keeps of functions is made under these from here on.
    pub(in crate::engine) fn plan_functions_under(&mut self, settings: &Settings) {
        self.function_plans = FunctionPlans::Under(self.own.basis, settings.clone());
    }

    /// Whether its client alone has made what it keeps of functions: whatever that sets, it finds what a session
    /// of its own would have.
    #[inline]
    pub(in crate::engine) fn has_own_function_plans(&self) -> bool {
        self.function_plans_are_own
    }

    /// It keeps nothing of functions that others have made, or may do so, for another client has come.
    pub(in crate::engine) fn own_function_plans(&mut self, are_own: bool) {
        self.function_plans_are_own = are_own;
    }

    /// Whether something has been sent in this transaction that may set what plans depend on.
    #[inline]
    pub(in crate::engine) fn may_plan_otherwise(&self) -> bool {
        self.texts.plans
    }

    /// It is at rest, outside of a transaction: all of that is known.
    #[inline]
    pub(in crate::engine) fn settle_texts(&mut self) {
        self.texts = Texts::default();
    }

    /// Settings that may fail are sent, in a transaction block of ours.
    pub(in crate::engine) fn begin_applying(&mut self) {
        self.applying = true;
    }

    /// Whether settings that may fail are under way.
    #[inline]
    pub(in crate::engine) fn is_applying(&self) -> bool {
        self.applying
    }

    /// They have come to their end.
    pub(in crate::engine) fn end_applying(&mut self) {
        self.applying = false;
    }

    /// Custom names that it knows for good.
    #[inline]
    pub(in crate::engine) fn custom(&self) -> CustomNames {
        self.custom
    }

    /// It knows these, too. All that it knows.
    pub(in crate::engine) fn know_custom(&mut self, names: CustomNames) -> CustomNames {
        self.custom = self.custom.and(names);
        self.custom
    }

    /// What its process keeps to its end that some clients must not meet.
    #[inline]
    pub(in crate::engine) fn lasting(&self) -> Lasting {
        self.lasting
    }

    /// It keeps this, too.
    pub(in crate::engine) fn keep_lasting(&mut self, more: Lasting) {
        self.lasting = self.lasting.and(more);
    }

    /// What has become of tries to take a short timeout off.
    pub(in crate::engine) fn lifts(&mut self) -> &mut Lifts {
        &mut self.lifts
    }

    /// Settings under way within its client's pipeline.
    #[inline]
    pub(in crate::engine) fn within(&self) -> Option<&Within> {
        self.within.as_deref()
    }

    pub(in crate::engine) fn within_mut(&mut self) -> Option<&mut Within> {
        self.within.as_deref_mut()
    }

    /// Settings are sent within its client's pipeline.
    pub(in crate::engine) fn begin_within(&mut self, within: Within) {
        self.within = Some(Box::new(within));
    }

    /// That pipeline has ended.
    pub(in crate::engine) fn end_within(&mut self) -> Option<Within> {
        self.within.take().map(|within| *within)
    }
}
