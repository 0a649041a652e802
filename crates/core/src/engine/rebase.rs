//! A client comes to a server connection whose own values are not those that it logged in to.
//!
//! # The trap
//! A session keeps the values with which it began, whatever ALTER DATABASE or ALTER ROLE say to new
//! ones. A client's values are kept as differences from the server's own: where these change, or
//! another server has others, what did not differ would silently become another value, even one
//! that the client asked for.
//!
//! # Model
//! For each setting that servers report and a client can set, what it has (and what it began with,
//! to which RESET goes back) is reckoned anew as a difference from the new values. Its statements
//! keep the settings of their Parse likewise. A client that comes from a predecessor begins with values
//! that no server connection has, also where they are the same: so what its statements do, which only a
//! server connection says, is found here as well.
//!
//! # Limits
//! Of what no server reports, only what the client asked for is known. A change of postgresql.conf
//! reaches clients that did not ask for a value only as far as their connection tells them.

use super::backend::Backend;
use super::client::Client;
use super::socket::Socket;
use crate::pool::ServerParameters;
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
    /// It is to work on this backend: settings and pins follow from that one's own values.
    pub(super) fn begin_with(&mut self, backend: &Backend<S>) {
        if self.session.basis() != backend.session.basis() {
            self.rebase(backend);
        }
        if backend.session.makes_temporary() {
            self.session.pin_all(self.lasting_pins(backend));
        }
    }

    /// Reckons its settings from this backend's own values. Nothing of it is under way.
    #[cold]
    pub(super) fn rebase(&mut self, backend: &Backend<S>) {
        let before = self.session.set_basis(backend.session.basis());
        let pool = &backend.pool;
        let (Some(old), Some(new)) =
            (pool.values_of(before), pool.values_of(backend.session.basis()))
        else {
            if before.is_of_predecessor() {
                self.read_unnamed(backend, Settings::clone);
            }
            return; // the first that it comes to
        };
        if self.serving.is_exclusive() {
            return; // it was opened with this client's values
        }
        let moved = |settings: &Settings| pool.interner().share(rebased(settings, &old, &new));
        self.session.want(moved(self.session.desired()));
        self.record.start = moved(&self.record.start);
        if let Some(believed) =
            self.pending_session.as_mut().and_then(|extra| extra.untold.believed_mut())
        {
            *believed = moved(believed);
        }
        for named in self.prepared.all_named_mut() {
            let statement = named.statement.clone();
            let settings = moved(&statement.settings);
            if statement.basis != backend.session.basis() {
                let basis = backend.session.basis();
                named.replace(backend.statement_of(&statement.body, basis, &settings));
            }
        }
        self.rebase_sql_statements(moved);
        if before.is_of_predecessor() {
            self.read_unnamed(backend, moved);
        } else if let Some(unnamed) = self.prepared.unnamed() {
            let settings = moved(&unnamed.settings);
            if settings != unnamed.settings {
                let effects = unnamed.effects().clone();
                let again = unnamed.under(settings, effects);
                self.prepared.unnamed_mut().set(again);
            }
        }
    }

    /// Finds what the unnamed statement of a client does that comes from a predecessor.
    fn read_unnamed(&mut self, backend: &Backend<S>, moved: impl Fn(&Settings) -> Settings) {
        let Some(unnamed) = self.prepared.unnamed() else { return };
        let settings = moved(&unnamed.settings);
        let effects = backend.effects_of_body(&unnamed.body, &settings);
        let again = unnamed.under(settings, effects);
        self.prepared.unnamed_mut().set(again);
    }
}
