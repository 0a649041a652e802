//! A client comes to a server connection whose own values differ from those at its login.
//!
//! # The trap
//! A session keeps the values with which it began, even if ALTER DATABASE or ALTER ROLE give new
//! sessions others. A client's values are kept as differences from the server's own: if these
//! change, or another server has others, values that did not differ would silently change, even one
//! that the client asked for.
//!
//! # Model
//! For each setting that servers report and a client can set, its current value (and the one it
//! began with, to which RESET goes back) is computed again as a difference from the new values. So
//! are the settings of its statements' Parses. A client that comes from a predecessor begins with
//! values that no server connection has, even if they are the same: so the effects of its
//! statements, which only a server connection decides, are found here as well.
//!
//! # Limits
//! For settings that no server reports, only values that the client asked for are known. A change
//! of postgresql.conf reaches clients that did not ask for a value only as far as their connection
//! reports it.

use crate::parts::start_values::parameters::ServerParameters;
use crate::relay::backend::Backend;
use crate::relay::client::Client;
use crate::relay::socket::Socket;
use crate::session::settings::{Settings, SettingsBuilder};

/// The same values, as they differ from `new` in place of `old`.
fn rebased(settings: &Settings, old: &ServerParameters, new: &ServerParameters) -> Settings {
    let mut all = SettingsBuilder::from(settings);
    for (name, own) in old.settable() {
        all.set(name, settings.get(name).unwrap_or(own));
    }
    for (name, own) in new.settable() {
        let known = settings.get(name).or(old.get(name));
        if known.is_some_and(|value| value == own) {
            all.remove(name);
        }
    }
    all.build()
}

impl<S: Socket> Client<S> {
    /// It is to work on this backend, whose own values decide its settings and pins.
    pub(crate) fn begin_with(&mut self, backend: &Backend<S>) {
        if self.session.basis != backend.session.own.basis {
            self.rebase(backend);
        }
        if backend.session.own.makes_temporary {
            self.session.pin_all(self.lasting_pins(backend));
        }
    }

    /// Computes its settings from this backend's own values. Nothing of it is in flight.
    #[cold]
    pub(crate) fn rebase(&mut self, backend: &Backend<S>) {
        let before = std::mem::replace(&mut self.session.basis, backend.session.own.basis);
        let pool = &backend.pool;
        let (Some(old), Some(new)) =
            (pool.values_of(before), pool.values_of(backend.session.own.basis))
        else {
            if before.is_of_predecessor() {
                self.read_unnamed(backend, Settings::clone);
            }
            return; // its first backend
        };
        if self.serving.is_exclusive() {
            return; // it was opened with this client's values
        }
        let moved = |settings: &Settings| pool.interner().share(rebased(settings, &old, &new));
        self.session.desired = moved(&self.session.desired);
        self.record.start = moved(&self.record.start);
        if let Some(believed) =
            self.pending_session.as_mut().and_then(|extra| extra.unreported.believed_mut())
        {
            *believed = moved(believed);
        }
        for named in self.prepared.all_named_mut() {
            let statement = named.statement.clone();
            let settings = moved(&statement.settings);
            if statement.basis != backend.session.own.basis {
                let basis = backend.session.own.basis;
                named.replace(backend.statement_of(&statement.body, basis, &settings));
            }
        }
        self.rebase_sql_statements(moved);
        if before.is_of_predecessor() {
            self.read_unnamed(backend, moved);
        } else if let Some(unnamed) = self.prepared.unnamed.as_ref() {
            let settings = moved(&unnamed.settings);
            if settings != unnamed.settings {
                let effects = unnamed.effects().clone();
                let again = unnamed.under(settings, effects);
                self.prepared.unnamed = Some(again);
            }
        }
    }

    /// Finds the effects of the unnamed statement of a client that comes from a predecessor.
    fn read_unnamed(&mut self, backend: &Backend<S>, moved: impl Fn(&Settings) -> Settings) {
        let Some(unnamed) = self.prepared.unnamed.as_ref() else { return };
        let settings = moved(&unnamed.settings);
        let effects = backend.effects_of_body(&unnamed.body, &settings);
        let again = unnamed.under(settings, effects);
        self.prepared.unnamed = Some(again);
    }
}
