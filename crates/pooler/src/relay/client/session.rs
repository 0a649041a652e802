//! A client's desired session on any backend, and what keeps it on one.

use crate::parts::sequences::asking::{Asks, TextClass};
use crate::parts::start_values::basis::Basis;
use crate::session::part::{Part, PartSet};
use crate::session::settings::Settings;

/// A client's session.
pub(crate) struct ClientSession {
    desired: Settings,
    pins: PartSet,
    basis: Basis,
    asks: Asks,
}

impl ClientSession {
    /// For a client that desires these settings, as they differ from the values of that basis.
    pub(crate) fn new(desired: Settings, basis: Basis, pins: PartSet, asks: Asks) -> Self {
        Self { desired, pins, basis, asks }
    }

    /// The settings that it desires, as they differ from the server's own.
    #[inline]
    pub(crate) fn desired(&self) -> &Settings {
        &self.desired
    }

    /// It desires these from now on. Returns the ones before.
    pub(crate) fn want(&mut self, settings: Settings) -> Settings {
        std::mem::replace(&mut self.desired, settings)
    }

    /// What [`Self::desired`] differs from.
    #[inline]
    pub(crate) fn basis(&self) -> Basis {
        self.basis
    }

    /// The settings that it wants differ from this from now on. From what they did before.
    pub(crate) fn set_basis(&mut self, basis: Basis) -> Basis {
        std::mem::replace(&mut self.basis, basis)
    }

    /// Why it keeps its backend between transactions.
    #[inline]
    pub(crate) fn pins(&self) -> PartSet {
        self.pins
    }

    /// It keeps its backend for this, too.
    pub(crate) fn pin(&mut self, part: Part) {
        self.pins.insert(part);
    }

    /// It keeps its backend for these, too.
    pub(crate) fn pin_all(&mut self, parts: PartSet) {
        self.pins = self.pins.union(parts);
    }

    /// It no longer keeps its backend for this.
    pub(crate) fn unpin(&mut self, part: Part) {
        self.pins.remove(part);
    }

    /// It keeps its backend for these alone. For what it did before.
    pub(crate) fn set_pins(&mut self, parts: PartSet) -> PartSet {
        std::mem::replace(&mut self.pins, parts)
    }

    /// What its record has of it: the settings that it wants, what they differ from, and what it asks. `None`:
    /// it is pinned.
    pub(crate) fn for_record(&self) -> Option<(&Settings, Basis, Asks)> {
        let Self { desired, pins, basis, asks } = self;
        pins.is_empty().then_some((desired, *basis, *asks))
    }

    /// What it has asked for by currval or lastval.
    #[inline]
    pub(crate) fn asks(&self) -> Asks {
        self.asks
    }

    /// It draws from a sequence.
    pub(crate) fn draws(&mut self) {
        self.asks.draws();
    }

    /// It may ask at any time.
    pub(crate) fn may_ask(&mut self) {
        self.asks = Asks::Before;
    }

    /// It asks for what this text has drawn, if known.
    pub(crate) fn has_asked(&mut self, text: Option<TextClass>) {
        self.asks = Asks::Last(text);
    }
}
