//! LISTEN and UNLISTEN in the texts of a client: what they may change.

use crate::parts::listen::CHANNELS_A_CLIENT_MAX;
use crate::parts::listen::change::{Taken, is_named};
use crate::parts::listen::clients::Listening;
use crate::parts::listen::named::taken;
use crate::parts::settings::restore::Edit;
use crate::relay::backend::Backend;
use crate::relay::client::Client;
use crate::relay::effects::Unusual;
use crate::relay::socket::Socket;
use crate::session::part::Part;
use crate::session::scan::{Findings, Verb};

impl<S: Socket> Client<S> {
    /// A statement that listens, or stops listening, is being sent.
    pub(crate) fn record_listening(&mut self, unusual: &Unusual) {
        let Some(named) = &unusual.named_channels else { return };
        if !named.listens.is_empty() {
            self.listens_again();
        }
        if self.session.pins.contains(Part::Listen) {
            // Its own backend listens. Channels that it also has here, and listens on again, it
            // keeps here.
            if self.has_channels()
                && let Some(Listening { channels, pending, .. }) = self.listening()
            {
                let is_here = |name: &[u8]| channels.iter().any(|c| is_named(c.as_bytes(), name));
                named.listens.iter().filter(|n| is_here(n)).for_each(|name| pending.listen(name));
            }
            return;
        }
        if named.listens.is_empty() {
            return; // counted where the mark is made
        }
        let pending = &mut self.pending_session().listening.get_or_insert_default().pending;
        for name in &named.listens {
            pending.listen(name);
        }
        if pending.len() > CHANNELS_A_CLIENT_MAX {
            self.session.pins.insert(Part::Listen);
        }
    }

    /// The statement that must follow an UNLISTEN, if any.
    pub(crate) fn mark_unlisten(&mut self, what: Taken, backend: &Backend<S>) -> Option<Vec<u8>> {
        if !self.has_channels() {
            return None;
        }
        let standby = backend.session.own.parameters.is_standby();
        let listening = self.listening()?;
        if standby || listening.pending.len() > CHANNELS_A_CLIENT_MAX {
            listening.take(&what);
            return None;
        }
        Some(listening.pending.unlisten(what))
    }

    /// What is written into a text after its UNLISTENs.
    pub(crate) fn marks(&mut self, findings: &Findings, backend: &Backend<S>) -> Vec<Edit> {
        let mut all = Vec::new();
        for statement in findings.statements() {
            if let Verb::Unlisten(what) = &statement.verb
                && let Some(mark) = self.mark_unlisten(taken(what), backend)
            {
                all.push(Edit::after(statement, &[mark]));
            }
        }
        all
    }
}
