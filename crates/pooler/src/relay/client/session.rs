//! A client's desired session on any backend, and what keeps it on one.

use crate::parts::sequences::asking::Asks;
use crate::parts::start_values::basis::Basis;
use crate::session::part::PartSet;
use crate::session::settings::Settings;

/// A client's session.
pub(crate) struct ClientSession {
    /// The settings that it desires, as they differ from the server's own.
    pub(crate) desired: Settings,
    /// Why it keeps its backend between transactions.
    pub(crate) pins: PartSet,
    /// What [`Self::desired`] differs from.
    pub(crate) basis: Basis,
    /// What it has asked for by currval or lastval.
    pub(crate) asks: Asks,
}

impl ClientSession {
    /// For a client that desires these settings, as they differ from the values of that basis.
    pub(crate) fn new(desired: Settings, basis: Basis, pins: PartSet, asks: Asks) -> Self {
        Self { desired, pins, basis, asks }
    }

    /// Whether it lets the plain lane run.
    #[inline]
    pub(crate) fn is_usual(&self) -> bool {
        let Self {
            desired: _, // compared with what is applied
            pins,
            basis: _, // it gets none but server connections of this basis
            asks,
        } = self;
        pins.is_empty() && *asks == Asks::Never
    }

    /// It keeps its backend for these, too.
    pub(crate) fn pin_all(&mut self, parts: PartSet) {
        self.pins = self.pins.union(parts);
    }

    /// What its record has of it: the settings that it wants, what they differ from, and what it asks. `None`:
    /// it is pinned.
    pub(crate) fn for_record(&self) -> Option<(&Settings, Basis, Asks)> {
        let Self { desired, pins, basis, asks } = self;
        pins.is_empty().then_some((desired, *basis, *asks))
    }
}
