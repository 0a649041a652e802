//! How RESET, DISCARD and the like change the books, when their pipeline has ended.

use crate::parts::settings::pending_reset::{DiscardAll, PendingReset};
use crate::parts::start_values::parameters::ServerParameters;
use crate::relay::backend::Backend;
use crate::relay::client::Client;
use crate::relay::effects::{KEPT_BY_RESET_ALL, Resetting, Unusual};
use crate::relay::socket::Socket;
use crate::session::part::{Part, PartSet};
use crate::session::settings::{Settings, SettingsBuilder, is_custom};
use crate::wire::TransactionStatus;

impl<S: Socket> Client<S> {
    fn pending_reset(&mut self, backend: &Backend<S>) -> &mut PendingReset {
        let new = || Box::new(PendingReset::new(backend.requests.pipeline()));
        self.pending_session().reset.get_or_insert_with(new)
    }

    /// The RESET, DISCARD and the like in flight.
    #[inline]
    pub(crate) fn reset_under_way(&self) -> Option<&PendingReset> {
        self.pending_session.as_ref()?.reset.as_deref()
    }

    /// Settings are reset to start values with the current pipeline.
    pub(crate) fn note_resetting(
        &mut self,
        backend: &Backend<S>,
        resetting: &Resetting,
        set_again: &[Box<[u8]>],
    ) {
        if *resetting != Resetting::No {
            let reset = self.pending_reset(backend);
            reset.resetting.absorb(resetting);
            reset.set_again.extend_from_slice(set_again);
        }
    }

    /// All prepared statements are removed with the current pipeline.
    pub(crate) fn note_forgetting(&mut self, backend: &mut Backend<S>) {
        self.pending_reset(backend).forgets_statements = true;
        backend.prepared.doubt_all();
    }

    /// A DISCARD ALL is part of the current pipeline, and ends these pins.
    pub(crate) fn note_discarding(&mut self, backend: &Backend<S>, ends: PartSet) {
        let reset = self.pending_reset(backend);
        reset.discards_all = DiscardAll::Pending(reset.ends().union(ends));
    }

    /// An UNLISTEN * that stands alone is part of the current pipeline.
    pub(crate) fn note_unlistening(&mut self, backend: &Backend<S>, unusual: &Unusual) {
        if unusual.unlistens_all {
            self.pending_reset(backend).unlistens = true;
        }
    }

    /// A LISTEN comes after the UNLISTEN *, if there is one.
    pub(crate) fn listens_again(&mut self) {
        let Some(extra) = &mut self.pending_session else { return };
        if let Some(reset) = &mut extra.reset {
            reset.unlistens = false;
        }
        extra.reset.take_if(|reset| reset.is_empty());
    }

    /// A DISCARD ALL or DEALLOCATE ALL has succeeded, even if something after it fails.
    pub(crate) fn has_discarded(&mut self, backend: &mut Backend<S>, all: bool) {
        let Some(extra) = &mut self.pending_session else { return };
        let Some(reset) = &mut extra.reset else { return };
        if !reset.has_come(&backend.requests) {
            return;
        }
        if all && reset.discards_all() {
            reset.discards_all = DiscardAll::Done;
        }
        if std::mem::take(&mut reset.forgets_statements) {
            backend.prepared.all_went();
        }
        extra.reset.take_if(|reset| reset.is_empty());
    }

    /// The pipeline of what is in flight has ended. Returns the settings that the client desires
    /// after it.
    pub(crate) fn settle_reset(&mut self, backend: &mut Backend<S>) -> Settings {
        let reset = self.pending_session.as_mut().and_then(|extra| extra.reset.take());
        let Some(reset) = reset else { return backend.session.applied.clone() };
        let done = reset.discards_all == DiscardAll::Done;
        let failed = self.serving.failed && !done;
        match reset.discards_all {
            DiscardAll::No => {}
            // If it was bound and not executed, or has failed, it has done nothing.
            DiscardAll::Pending(ends) => self.session.pin_all(ends),
            DiscardAll::Done => self.discarded(backend),
        }
        // In a transaction the UNLISTEN may still be rolled back: the pin stays.
        if reset.unlistens && !failed && backend.from_server.status() == TransactionStatus::Idle {
            self.session.pins.remove(Part::Listen);
        }
        if reset.forgets_statements && !failed {
            backend.prepared.all_went();
        }
        let nothing_done = matches!(reset.discards_all, DiscardAll::Pending(_));
        if failed || nothing_done || reset.resetting == Resetting::No {
            return backend.session.applied.clone();
        }
        let PendingReset { resetting, set_again, .. } = *reset;
        let reset = Reset { resetting: &resetting, discards: done, set_again };
        let (applied, desired) = reset.settings(backend, &self.record.start);
        let mut interner = backend.pool.interner();
        backend.session.applied = interner.share(applied.build());
        interner.share(desired.build())
    }

    /// A DISCARD ALL has succeeded.
    fn discarded(&mut self, backend: &mut Backend<S>) {
        if let Some(extra) = &mut self.pending_session {
            extra.by_sql = None;
            if let Some(listening) = &mut extra.listening {
                listening.discard();
            }
        }
        backend.prepared.by_sql = None;
        if let Some(doubt) = backend.known.unverified.as_deref_mut() {
            doubt.discarded();
        }
    }
}

/// Whether a setting was set after its RESET: the text shows it, or the server has another value
/// than the one that a RESET gives.
fn set_after_all<S: Socket>(backend: &Backend<S>, set_again: &[Box<[u8]>], name: &[u8]) -> bool {
    set_again.iter().any(|again| again.eq_ignore_ascii_case(name))
        || (backend.session.own.parameters.get(name).is_some()
            && backend.session.applied.get(name).is_some())
}

/// A RESET or DISCARD ALL that has succeeded.
struct Reset<'a> {
    /// What it has reset.
    resetting: &'a Resetting,
    /// It is a DISCARD ALL.
    discards: bool,
    /// Settings that were SET after it, in the same text.
    set_again: Vec<Box<[u8]>>,
}

impl Reset<'_> {
    /// The server's settings, with the server's own start values for those that were reset; and the
    /// client's desired ones, with the client's (`start`).
    fn settings<S: Socket>(
        &self,
        backend: &Backend<S>,
        start: &Settings,
    ) -> (SettingsBuilder, SettingsBuilder) {
        match self.resetting {
            Resetting::Names(names) => self.settings_of_names(names, backend, start),
            Resetting::All { .. } | Resetting::No => self.settings_of_all(backend, start),
        }
    }

    fn settings_of_names<S: Socket>(
        &self,
        names: &[Box<[u8]>],
        backend: &Backend<S>,
        start: &Settings,
    ) -> (SettingsBuilder, SettingsBuilder) {
        let mut applied = SettingsBuilder::from(&backend.session.applied);
        for name in names.iter().filter(|name| backend.session.own.parameters.get(name).is_none()) {
            applied.remove(name);
        }
        let mut desired = applied.clone();
        for name in names.iter().filter(|name| !set_after_all(backend, &self.set_again, name)) {
            match start.get(name) {
                Some(value) => desired.set(name, value),
                None => desired.remove(name),
            };
        }
        (applied, desired)
    }

    fn settings_of_all<S: Socket>(
        &self,
        backend: &Backend<S>,
        start: &Settings,
    ) -> (SettingsBuilder, SettingsBuilder) {
        let mut applied = SettingsBuilder::from(&backend.session.applied);
        let keeps = |name: &[u8]| !self.discards && !self.resetting.takes(name);
        for (name, _) in backend.session.applied.iter().filter(|(name, _)| !keeps(name)) {
            if is_custom(name) {
                applied.set(name, b""); // the name itself stays
            } else if backend.session.own.parameters.get(name).is_none() {
                applied.remove(name);
            }
        }
        let mut desired = SettingsBuilder::from(start);
        for (name, _) in backend.session.applied.iter().filter(|(name, _)| is_custom(name)) {
            desired.set(name, start.get(name).unwrap_or_default());
        }
        for name in KEPT_BY_RESET_ALL.iter().filter(|name| keeps(name)) {
            match backend.session.applied.get(name) {
                Some(value) => desired.set(name, value),
                None => desired.remove(name),
            };
        }
        if self.discards {
            for name in KEPT_BY_RESET_ALL {
                applied.remove(name); // SET SESSION AUTHORIZATION DEFAULT
            }
        }
        let settable = |name: &[u8]| !ServerParameters::is_fixed(name);
        let pairs = backend.session.own.parameters.pairs.iter();
        for (name, value) in pairs.filter(|(name, _)| settable(name)) {
            if set_after_all(backend, &self.set_again, name) {
                desired.set(name, backend.session.applied.get(name).unwrap_or(value));
            }
        }
        (applied, desired)
    }
}
