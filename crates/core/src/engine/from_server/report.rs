//! ParameterStatus: whose value has changed, and who is told.

use std::sync::Arc;

use super::super::Socket;
use super::super::client::Resetting;
use super::{Fate, Relay};
use crate::pool::ServerParameters;
use crate::session::settings::SettingsBuilder;
use crate::wire::frame;

impl<S: Socket> Relay<'_, S> {
    /// A setting has changed, or the server tells its start value.
    pub(super) fn parameter(&mut self, body: &[u8]) -> Result<Fate, &'static str> {
        let pair = frame::take_string(body)
            .and_then(|(name, rest)| Some((name, frame::take_string(rest)?.0)));
        let Some((name, value)) = pair else {
            return Err("the server sent a malformed ParameterStatus");
        };
        let backend = &mut *self.backend;
        let fixed = ServerParameters::is_fixed(name);
        if name == b"in_hot_standby"
            && backend.parameters.get(name).is_some_and(|before| before != value)
        {
            // It has been promoted: it may no longer be what `target_session_attrs` asks for.
            backend.spoiled.get_or_insert("the server's role has changed");
        }
        if fixed || backend.expected.is_empty() {
            // Nobody asked: the server's own value has changed (a reload, a promotion).
            let mut parameters = (*backend.parameters).clone();
            parameters.set(name, value);
            backend.take_parameters(Arc::new(parameters));
            if let Some(client) = &mut self.client {
                client.basis = backend.basis; // it is told, and follows
            }
        }
        if !fixed {
            let own = backend.parameters.get(name) == Some(value);
            let known = backend.applied.get(name);
            if known != (if own { None } else { Some(value) }) {
                let mut settings = SettingsBuilder::from(&backend.applied);
                if own {
                    settings.remove(name);
                } else {
                    settings.set(name, value);
                }
                backend.applied = backend.pool.interner().share(settings.build());
            }
        }
        let ours = backend.expected.front().is_some_and(|e| e.is_made());
        let resetting =
            self.client.as_ref().and_then(|client| client.extra.as_ref()).is_some_and(|extra| {
                extra.untold.is_some()
                    || (extra.resetting != Resetting::No && backend.has_come_to(extra.settles_in))
            });
        Ok(if ours || (resetting && !fixed) { Fate::Skip } else { Fate::Pass })
    }
}
