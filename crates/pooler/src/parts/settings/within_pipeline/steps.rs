//! Sending settings within a client's pipeline.

use std::sync::Arc;

use crate::parts::settings::apply::changes;
use crate::parts::settings::within_pipeline::{
    REPORTED, Within, goes_within, reads_or_writes_rows,
};
use crate::parts::statements::client_names::significant;
use crate::parts::statements::shared::Unnamed;
use crate::relay::backend::Backend;
use crate::relay::client::Client;
use crate::relay::from_client::client_message::ClientMessage;
use crate::relay::halt::Halt;
use crate::relay::limits;
use crate::relay::request_queue::Request;
use crate::relay::socket::Socket;
use crate::session::scan::{ScanOptions, is_plain};
use crate::session::settings::{Change, PlanReads, Settings, SettingsBuilder};
use crate::wire::frame::{Framed, HEADER_BYTES};
use crate::wire::{TransactionStatus, build, frame, frontend};

impl<S: Socket> Client<S> {
    /// Whether the messages at the start of `bytes` are a whole pipeline within which settings can
    /// be sent. `options`: how its texts are read.
    fn takes_settings(&self, mut bytes: &[u8], options: ScanOptions, backend: &Backend<S>) -> bool {
        let unnamed = backend.unnamed_of(self);
        // Names that Parses of this pipeline have given.
        let mut parsed: [&[u8]; 4] = [&[]; 4];
        let mut named = 0;
        // The unnamed portal is Hawser's until the client binds it.
        let mut bound = false;
        for _ in 0..limits::WITHIN_MESSAGES_MAX {
            let Framed::Header(header) = frame::header(bytes) else { return false };
            let Some(body) = bytes.get(HEADER_BYTES..header.total()) else { return false };
            bytes = &bytes[header.total()..];
            let fits = match header.kind {
                frontend::SYNC => return header.body == 0,
                frontend::PARSE => frame::take_string(body).is_some_and(|(name, rest)| {
                    let text = frame::take_string(rest).map_or(&[][..], |(text, _)| text);
                    let room = parsed.get_mut(named).map(|place| *place = name).is_some();
                    named += 1;
                    room && options == ScanOptions::default()
                        && is_plain(text)
                        && reads_or_writes_rows(text)
                        && backend.effects_of_functions(text).is_none_or(|one| one.is_none())
                }),
                frontend::BIND => {
                    let names = frame::take_string(body)
                        .and_then(|(portal, rest)| Some((portal, frame::take_string(rest)?.0)));
                    names.is_some_and(|(portal, name)| {
                        bound |= portal.is_empty();
                        parsed[..named.min(parsed.len())].contains(&name)
                            || self.is_harmless(name, unnamed)
                    })
                }
                frontend::DESCRIBE => match body.split_first() {
                    Some((b'S', _)) => true,
                    Some((b'P', portal)) => bound || portal != b"\0",
                    _ => false,
                },
                frontend::EXECUTE => bound || body.first() != Some(&0),
                _ => false,
            };
            if !fits {
                return false;
            }
        }
        false
    }

    /// Whether a statement of the protocol, by the client's name for it, reads or writes rows and
    /// has no effect on the session.
    fn is_harmless(&self, name: &[u8], unnamed: Option<&Arc<Unnamed>>) -> bool {
        let (body, effects) = match self.statement(name) {
            Some(named) => (&named.statement.body, &named.statement.effects),
            None => match unnamed {
                Some(unnamed) if significant(name).is_empty() => (&unnamed.body, unnamed.effects()),
                _ => return false,
            },
        };
        effects.is_none() && reads_or_writes_rows(body)
    }
}

impl<S: Socket> ClientMessage<'_, '_, S> {
    /// Whether the backend lacks settings of the client's that can be sent within its pipeline.
    pub(crate) fn settings_fit_within(&self) -> bool {
        let (backend, client) = (&*self.backend, &*self.client);
        backend.session.applied != client.session.desired
            && !client.is_session_mode()
            && client.pending_session.is_none()
            && !backend.shares_nothing()
            && backend.from_server.status() == TransactionStatus::Idle
            && matches!(self.header.kind, frontend::BIND | frontend::PARSE)
            && client.takes_settings(self.passage.rest(), self.scan_options(), backend)
    }

    /// Sends the client's settings within its pipeline. Returns whether they have been sent. The
    /// pipeline's own first message is next: see "The last" above.
    pub(crate) fn settings_go_within(&mut self) -> Result<bool, Halt> {
        self.passage.cut(self.backend)?;
        Ok(self.backend.set_within(&self.client.session.desired, &mut self.passage.out))
    }
}

impl<S: Socket> Backend<S> {
    /// Appends the messages that bring the backend's settings to the desired ones, as part of the
    /// following pipeline. `false`: nothing is appended, because that is not possible for all of
    /// them.
    fn set_within(&mut self, desired: &Settings, out: &mut Vec<u8>) -> bool {
        let before = self.session.applied.clone();
        let parameters = self.session.own.parameters.clone();
        let changes: Vec<_> = changes(&before, desired, &parameters).collect();
        if changes.len() > limits::WITHIN_SETTINGS_MAX
            || !changes.iter().all(goes_within)
            || desired.needs_encoding()
        {
            return false;
        }
        let path = before.get(b"search_path").unwrap_or_default();
        let Some(setter) = self.pool.setter(changes.len(), path) else { return false };
        self.define(&changes);
        if !self.prepared.statements.touch(setter.id) {
            self.note_prepared(&setter, out);
            build::parse(out, &setter.name, &setter.body);
            self.request(Request::InjectedParse { statement: setter.id });
        }
        build::bind_texts(
            out,
            &setter.name,
            changes.iter().flat_map(|change| match change {
                Change::Set(name, value) => [Some(*name), Some(*value)],
                Change::Reset(name) => [Some(*name), None],
            }),
        );
        build::execute(out, b"");
        self.request(Request::InjectedSettings { statement: setter.id });
        self.request(Request::InjectedSettings { statement: setter.id });
        self.session.applied = desired.clone();
        let (brought, ahead) = (desired.clone(), self.requests.len());
        let unreported = REPORTED.map(|name| {
            let own = self.session.own.parameters.get(name);
            own.is_some() && before.get(name).or(own) != brought.get(name).or(own)
        });
        self.session.within =
            Some(Box::new(Within { if_failed: before, brought, ahead, failed: false, unreported }));
        true
    }

    /// Whether only settings have been sent of the current pipeline.
    pub(crate) fn has_sent_settings_alone(&self) -> bool {
        self.session.within.as_deref().is_some_and(|within| within.ahead == self.requests.len())
    }

    /// A message of the current pipeline has failed.
    pub(crate) fn fail_within(&mut self) {
        if let Some(within) = self.session.within.as_deref_mut() {
            within.failed = true;
        }
    }

    /// Whether the server may report this value of a setting because it was set within the pipeline
    /// that ends: that is no change.
    pub(crate) fn has_set_within(&self, name: &[u8], value: &[u8]) -> bool {
        self.session.within.as_deref().is_some_and(|within| {
            let own = self.session.own.parameters.get(name);
            within.brought.get(name).or(own) == Some(value)
        })
    }

    /// The server has reported a setting: it has this value; `None`: its own. Both if the current
    /// pipeline succeeds and if it fails.
    pub(crate) fn has_value(&mut self, name: &[u8], value: Option<&[u8]>) {
        if self.pool.statements.read_from(PlanReads::of_results(name)) {
            self.session.mix_function_plans();
        }
        let mut interner = self.pool.interner();
        let mut with_value = |before: &Settings| {
            let mut settings = SettingsBuilder::from(before);
            match value {
                Some(value) => settings.set(name, value),
                None => settings.remove(name),
            };
            interner.share(settings.build())
        };
        let applied = with_value(&self.session.applied);
        if let Some(within) = self.session.within.as_deref_mut() {
            within.if_failed = with_value(&within.if_failed);
        }
        self.session.applied = applied;
    }

    /// The server has reported a setting.
    pub(crate) fn reported_within(&mut self, name: &[u8]) {
        if let Some(within) = self.session.within.as_deref_mut()
            && let Some(at) = REPORTED.iter().position(|reported| *reported == name)
        {
            within.unreported[at] = false;
        }
    }

    /// A pipeline has succeeded. Settings may have their earlier values again, because its own
    /// statements have set these. Returns what the server would have reported to a client that had
    /// the values sent with the pipeline (ParameterStatus messages).
    pub(crate) fn reports_due_within(&mut self) -> Vec<u8> {
        let mut due = Vec::new();
        let Some(within) = self.session.within.as_deref().filter(|within| !within.failed) else {
            return due;
        };
        let names = REPORTED.iter().zip(within.unreported).filter(|(_, unreported)| *unreported);
        let mut applied = None;
        for (name, _) in names {
            let applied =
                applied.get_or_insert_with(|| SettingsBuilder::from(&self.session.applied));
            match within.if_failed.get(name) {
                Some(value) => applied.set(name, value),
                None => applied.remove(name),
            };
            let value = within
                .if_failed
                .get(name)
                .or(self.session.own.parameters.get(name))
                .unwrap_or_default();
            build::parameter_status(&mut due, name, value);
        }
        if let Some(applied) = applied {
            self.session.applied = self.pool.interner().share(applied.build());
        }
        due
    }

    /// A pipeline has ended. Returns whether the settings sent within it have failed with it.
    pub(crate) fn settle_within(&mut self) -> bool {
        let Some(within) = self.session.within.take().filter(|within| within.failed) else {
            return false;
        };
        self.session.applied = within.if_failed;
        true
    }
}
