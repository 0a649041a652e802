//! ParameterStatus: whose value has changed, and which client gets the report.

use std::sync::Arc;

use crate::parts::identity::hand_over::CHALLENGE;
use crate::parts::report::text::{NAME, PROCESS, SCHEMA};
use crate::parts::settings::pending_reset::PendingReset;
use crate::parts::start_values::parameters::ServerParameters;
use crate::relay::from_server::{Fate, Last, Relay, Relayed};
use crate::relay::request_queue::Request;
use crate::relay::socket::Socket;
use crate::relay::start_again::{TURNED, has_turned};
use crate::session::part::Part;
use crate::wire::frame;
use crate::wire::frame::HEADER_BYTES;

/// Settings that a server may begin to report within one query: an extension that it loads adds
/// some.
const NEW_REPORTS_MAX: u32 = 100;

impl<S: Socket> Relay<'_, S> {
    /// A setting has changed, or the server reports its start value.
    pub(super) fn parameter(
        &mut self,
        body: &[u8],
        relayed: &mut Relayed,
    ) -> Result<Fate, &'static str> {
        let pair = frame::take_string(body)
            .and_then(|(name, rest)| Some((name, frame::take_string(rest)?.0)));
        let Some((name, value)) = pair else {
            return Err("the server sent a malformed ParameterStatus");
        };
        if [NAME, SCHEMA, PROCESS, CHALLENGE].contains(&name) {
            self.extension_reports(name, value, relayed);
            return Ok(Fate::Skip);
        }
        let backend = &mut *self.backend;
        if has_turned(backend, name, value) {
            // Its client goes on elsewhere, where this is not so.
            backend.lending.spoil(TURNED);
            return Ok(Fate::Skip);
        }
        backend.reported_within(name);
        if backend.requests.front() == Some(Request::HandOver) {
            backend.take_own_value(name, value)?;
            return Ok(Fate::Skip);
        }
        backend.note_authorization(name, value);
        let fixed = ServerParameters::is_fixed(name);
        if name == b"in_hot_standby"
            && backend.session.own.parameters.get(name).is_some_and(|before| before != value)
        {
            // It has been promoted: it may no longer be what `target_session_attrs` asks for.
            backend.lending.spoil("the server's role has changed");
        }
        if fixed || backend.requests.is_empty() {
            // No client caused it: the server's own value has changed (a reload, a promotion).
            let mut parameters = (*backend.session.own.parameters).clone();
            parameters.set(name, value);
            backend.take_parameters(Arc::new(parameters));
            if let Some(client) = &mut self.client
                && !backend.is_handing_over()
            {
                client.session.basis = backend.session.own.basis; // it gets the report, and follows
            }
        }
        self.take_value(name, value, fixed)?;
        Ok(self.fate_of_report(name, value, fixed))
    }

    /// What the extension reports in a parameter of its own.
    fn extension_reports(&mut self, name: &[u8], value: &[u8], relayed: &mut Relayed) {
        let taken = match name {
            SCHEMA => {
                // Before the client learns that its transaction has ended.
                self.backend.pool.schema_changed();
                Ok(())
            }
            NAME => self.backend.take_report(value),
            PROCESS => self.backend.take_kept(value),
            _ => Ok(()),
        };
        if let Err(error) = taken {
            relayed.unreadable_report = Some(error);
            if let Some(client) = &mut self.client {
                client.session.pins.insert(Part::Setting); // what it holds is not known
                self.backend.doubt_all();
            }
        }
    }

    /// Notes the value that a setting has now.
    fn take_value(&mut self, name: &[u8], value: &[u8], fixed: bool) -> Result<(), &'static str> {
        let backend = &mut *self.backend;
        if backend.session.own.parameters.get(name).is_none()
            && backend.session.applied.get(name).is_none()
        {
            // Each new one costs as much as there are already: no server has so many.
            if backend.from_server.reports_one_more() > NEW_REPORTS_MAX {
                return Err("the server reported too many settings that it had not at the start");
            }
        }
        let converted = !fixed && !value.is_ascii();
        let brought = backend.requests.front().is_some_and(Request::is_injected)
            && backend.requests.front() != Some(Request::InjectedRollback);
        if converted && !brought {
            // The encoding of the value is not known before the last report of this end of a
            // transaction has come; then the server is asked for the value.
            match &mut self.client {
                Some(client) if !client.is_session_mode() && !client.serving.is_exclusive() => {
                    client.session.pins.insert(Part::Setting);
                    backend.doubt_encoding_of(name);
                }
                Some(_) => {}
                None => backend.spoil_for_good(),
            }
        }
        if !(fixed || (converted && brought)) {
            let own = backend.session.own.parameters.get(name) == Some(value);
            let known = backend.session.applied.get(name);
            if known != (if own { None } else { Some(value) }) {
                let was_own = known.is_none();
                backend.has_value(name, (!own).then_some(value));
                let ours = backend.requests.front().is_some_and(Request::is_injected);
                if !ours && !backend.has_set_within(name, value) {
                    backend.note_reported_value(name, was_own, own);
                }
            }
        }
        Ok(())
    }

    /// Whether a report is for the client.
    fn fate_of_report(&mut self, name: &[u8], value: &[u8], fixed: bool) -> Fate {
        let backend = &*self.backend;
        let waits = match backend.requests.front() {
            Some(Request::InjectedRollback) => true,
            Some(Request::InjectedSync) if fixed => {
                let reset = self.client.as_ref().and_then(|client| client.reset_under_way());
                reset.is_some_and(|reset| reset.discards_all() && reset.has_come(&backend.requests))
            }
            _ => false,
        };
        if waits && let Some(client) = &mut self.client {
            // The query, or pipeline, ends here for the server only.
            client.pending_session().unreported.report(name, value);
            return Fate::Skip;
        }
        let ours = backend.requests.front().is_some_and(Request::is_injected)
            || backend.has_set_within(name, value);
        let resetting =
            self.client.as_ref().and_then(|client| client.pending_session.as_ref()).is_some_and(
                |extra| {
                    let resets =
                        |reset: &PendingReset| reset.resets() && reset.has_come(&backend.requests);
                    extra.unreported.is_changed() || extra.reset.as_deref().is_some_and(resets)
                },
            );
        if ours || (resetting && !fixed) { Fate::Skip } else { Fate::Pass }
    }

    /// A report for the client waits until it is known whether a transaction ends after it.
    pub(super) fn place_report(
        &mut self,
        fate: Fate,
        at: usize,
        body: &[u8],
        run: &mut usize,
        relayed: &mut Relayed,
    ) -> Fate {
        let listens = self.client.as_ref().is_some_and(|client| client.listens());
        if !listens || self.backend.requests.is_empty() {
            return fate; // nothing must come after it
        }
        let end = at + HEADER_BYTES + body.len();
        if relayed.last.end != at {
            self.put_back(relayed);
        }
        relayed.last.end = end;
        if !matches!(fate, Fate::Pass) {
            return fate;
        }
        let bytes = self.bytes;
        self.report(&bytes[at..end], at, run, relayed);
        Fate::Skip
    }

    /// Reports something to the client, before what is at `at`.
    pub(super) fn report(
        &mut self,
        message: &[u8],
        at: usize,
        run: &mut usize,
        relayed: &mut Relayed,
    ) {
        self.cut(run, at);
        if relayed.last.reports.is_empty() {
            relayed.last.place = self.out.len();
        }
        relayed.last.reports.extend_from_slice(message);
    }

    /// Other output follows the last reports.
    fn put_back(&mut self, relayed: &mut Relayed) {
        let Last { reports, place, .. } = &mut relayed.last;
        self.out.splice(*place..*place, reports.drain(..));
    }

    /// Takes the reports with which the last read ended.
    pub(super) fn take_up_reports(&mut self, relayed: &mut Relayed) {
        if let Some(client) = &mut self.client
            && client.listens()
        {
            relayed.last.reports = client.take_reports();
        }
    }

    /// Everything up to `at` has been processed.
    pub(super) fn settle_reports(&mut self, at: usize, relayed: &mut Relayed) {
        if relayed.last.reports.is_empty() {
            return;
        }
        let ended = relayed.broken.is_some() || relayed.goodbye.is_some();
        if !ended
            && (relayed.listens || relayed.last.end == at)
            && let Some(client) = &mut self.client
        {
            client.keep_reports(std::mem::take(&mut relayed.last.reports));
        } else {
            self.put_back(relayed);
        }
    }
}
