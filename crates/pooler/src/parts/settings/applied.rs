//! The settings in force on a server connection.

use std::sync::Arc;

use crate::lending::Lasting;
use crate::parts::settings::custom_names::CustomNames;
use crate::parts::settings::timeouts::Lifts;
use crate::parts::settings::within_pipeline::Within;
use crate::parts::start_values::basis::Basis;
use crate::parts::start_values::parameters::ServerParameters;
use crate::session::scan::{ScanOptions, names_temporary_schema};
use crate::session::settings::Settings;

/// The settings in force on the server.
pub(crate) struct AppliedSession {
    /// As they differ from the server's own at connect, once everything that has been sent is
    /// answered.
    pub(crate) applied: Settings,
    pub(crate) own: OwnValues,
    pub(crate) texts: Texts,
    applying: Applying,
    /// Whether the client's role is in force for what it has sent.
    pub(crate) role: Role,
    /// Custom names that the server knows for good.
    pub(crate) custom: CustomNames,
    /// What the process keeps to its end and some clients must not see.
    pub(crate) lasting: Lasting,
    /// The outcome of attempts to lift a short timeout.
    pub(crate) lifts: Lifts,
    /// Settings in flight within its client's pipeline.
    pub(crate) within: Option<Box<Within>>,
    /// The settings under which the process has made the plans of functions.
    pub(crate) function_plans: FunctionPlans,
    /// Its client alone has made the plans of functions that the process keeps: whatever the
    /// client sets, it finds what a session of its own would have.
    pub(crate) function_plans_are_own: bool,
}

/// Blocks of Hawser's without which the client's message must not run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Applying {
    No,
    /// One is in flight. The server ignores what follows up to a Sync if its BEGIN fails.
    Begins,
    /// The server has begun it: everything after it fails with it.
    InBlock,
}

/// Whether the client's role is in force for what it has sent.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Role {
    AsWanted,
    /// Its message, which ends the role (`ends`) or runs nothing under one, was sent without it.
    LeftOut {
        ends: bool,
    },
    /// The server has refused it, or another session has cancelled what sets it and the settings:
    /// the error, with which everything after it has failed.
    Refused(Box<[u8]>),
}

impl Role {
    /// Why the server connection is closed then.
    pub(crate) const REFUSED: &str = "its client's role or settings could not be set";
}

/// The settings under which the process has made the plans of functions that it keeps.
#[derive(Clone, Debug)]
pub(crate) enum FunctionPlans {
    /// It has none.
    None,
    /// These, as they differ from the values of that basis.
    Under(Basis, Settings),
    /// Several, or unknown ones.
    Several,
}

/// The server's own values, and what follows from them.
pub(crate) struct OwnValues {
    /// What the server reported at connect.
    pub(crate) parameters: Arc<ServerParameters>,
    /// The basis of these parameters.
    pub(crate) basis: Basis,
    /// Whether a plain CREATE TABLE may make a temporary table.
    pub(crate) makes_temporary: bool,
    /// How the server reads texts.
    pub(crate) reading: ScanOptions,
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

/// What texts may have changed since the connection was last at rest outside of a transaction.
#[derive(Clone, Copy, Default)]
pub(crate) struct Texts {
    /// How the server reads texts.
    pub(crate) reread: bool,
    /// The search_path, to a value that is not known before the end of the transaction.
    pub(crate) unseen_path: bool,
    /// Settings that plans depend on: unknown, or unknown until an answer, or in force until the
    /// end of the transaction.
    pub(crate) plans: bool,
}

impl AppliedSession {
    pub(crate) fn new(parameters: Arc<ServerParameters>, basis: Basis) -> Self {
        Self {
            applied: Settings::EMPTY,
            own: OwnValues::new(parameters, basis),
            texts: Texts::default(),
            applying: Applying::No,
            role: Role::AsWanted,
            custom: CustomNames::NONE,
            lasting: Lasting::NONE,
            lifts: Lifts::default(),
            within: None,
            function_plans: FunctionPlans::None,
            function_plans_are_own: false,
        }
    }

    /// Whether it lets the plain lane run.
    #[inline]
    pub(crate) fn is_usual(&self) -> bool {
        let Self {
            applied: _, // compared with what the client desires
            own: _,
            texts: _,    // for texts that the full lane reads
            applying: _, // `is_applying`
            role: _,     // a client whose role is refused gets no further
            custom: _,
            lasting: _,
            lifts: _, // outstanding
            within,
            function_plans: _, // compared where functions keep plans
            function_plans_are_own: _,
        } = self;
        !self.is_applying() && within.is_none()
    }

    /// The server's own values have changed.
    pub(crate) fn take_parameters(&mut self, parameters: Arc<ServerParameters>, basis: Basis) {
        self.own = OwnValues::new(parameters, basis);
    }

    /// Something is sent that may change how the server reads texts, or set a search_path that is
    /// not known before the end of the transaction.
    pub(crate) fn doubt_texts(&mut self, rereads: bool, unseen_path: bool) {
        self.texts.reread |= rereads;
        self.texts.unseen_path |= unseen_path;
    }

    /// Something is sent that may set what plans depend on.
    pub(crate) fn doubt_plans(&mut self) {
        self.texts.plans = true;
        self.mix_function_plans();
    }

    /// The process may keep plans of functions under several settings from now on.
    pub(crate) fn mix_function_plans(&mut self) {
        self.function_plans = FunctionPlans::Several;
    }

    /// The process makes all plans of functions under these settings from now on.
    pub(crate) fn plan_functions_under(&mut self, settings: &Settings) {
        self.function_plans = FunctionPlans::Under(self.own.basis, settings.clone());
    }

    /// The connection is at rest outside of a transaction: nothing of that is in doubt any more.
    #[inline]
    pub(crate) fn settle_texts(&mut self) {
        self.texts = Texts::default();
    }

    /// A block is sent without which the client's message must not run.
    pub(crate) fn begin_applying(&mut self) {
        self.applying = Applying::Begins;
    }

    /// Whether such a block is in flight.
    #[inline]
    pub(crate) fn is_applying(&self) -> bool {
        self.applying != Applying::No
    }

    /// The server has begun the block.
    pub(crate) fn block_begun(&mut self) {
        if self.is_applying() {
            self.applying = Applying::InBlock;
        }
    }

    /// Whether everything fails that the client has sent, if the current query of Hawser's does.
    pub(crate) fn is_in_own_block(&self) -> bool {
        self.applying == Applying::InBlock
    }

    /// It has been answered; `more`: another may follow.
    pub(crate) fn end_applying(&mut self, more: bool) {
        if self.is_applying() {
            self.applying = if more { Applying::Begins } else { Applying::No };
        }
    }

    /// The error with which the server has refused the client's role.
    pub(crate) fn role_refused(&self) -> Option<&[u8]> {
        match &self.role {
            Role::Refused(error) => Some(error),
            Role::AsWanted | Role::LeftOut { .. } => None,
        }
    }

    /// The server knows these as well. Returns all that it knows.
    pub(crate) fn know_custom(&mut self, names: CustomNames) -> CustomNames {
        self.custom = self.custom.and(names);
        self.custom
    }

    /// The process keeps this as well.
    pub(crate) fn keep_lasting(&mut self, more: Lasting) {
        self.lasting = self.lasting.and(more);
    }
}
