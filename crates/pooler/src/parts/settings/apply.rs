//! The difference between the client's desired settings and those of its server connection, sent
//! before the client's first message.
//!
//! # What it may contain
//! Values that this server has accepted before, at the client's login or in its own SET. If it
//! fails nevertheless, none of the client's messages have run, and both connections are closed: see
//! [`Backend::apply_settings`].

use crate::parts::start_values::parameters::ServerParameters;
use crate::relay::backend::Backend;
use crate::relay::request_queue::Request;
use crate::relay::socket::Socket;
use crate::session::settings;
use crate::session::settings::{Change, Settings, is_custom};
use crate::wire::{TransactionStatus, build};

/// The changes from the one to the other. A reported setting goes back to the value reported at
/// connect, which clients have received, too: a RESET would set the value that the server's
/// configuration has by now.
pub(crate) fn changes<'a>(
    before: &'a Settings,
    desired: &'a Settings,
    parameters: &'a ServerParameters,
) -> impl Iterator<Item = Change<'a>> {
    // (Values that are not ASCII were reported in the client_encoding of that moment.)
    let reported = |name: &[u8]| {
        let reported = parameters.get(name)?;
        (reported.is_ascii() && !ServerParameters::is_fixed(name)).then_some(reported)
    };
    before.diff(desired).map(move |change| match change {
        Change::Reset(name) => {
            reported(name).map_or(change, |reported| Change::Set(name, reported))
        }
        Change::Set(..) => change,
    })
}

impl<S: Socket> Backend<S> {
    /// Appends the queries that bring the backend's settings to the desired ones.
    ///
    /// A change may fail: a role that is gone or not granted any more, a value that is no longer
    /// valid, another session's `pg_cancel_backend()`. What follows must not run without it, so it
    /// is made in a [block](Self::inject_block). Only `application_name`, which decides nothing,
    /// goes without; so does what comes back in a block of the client's, which a COMMIT would end.
    pub(crate) fn apply_settings(&mut self, desired: &Settings, out: &mut Vec<u8>) {
        if self.session.applied == *desired {
            return;
        }
        let before = std::mem::replace(&mut self.session.applied, desired.clone());
        let parameters = self.session.own.parameters.clone();
        let changes: Vec<_> = changes(&before, desired, &parameters).collect();
        self.define(&changes);
        let is_idle = self.from_server.status() == TransactionStatus::Idle;
        let decides = changes.iter().any(|change| change.name() != b"application_name");
        let mut text = Vec::new();
        settings::write_set_query(changes, &mut text);
        match decides && is_idle {
            true => self.inject_block(b"BEGIN\0\0\0", text, out),
            false => self.inject_query(&text, out),
        }
    }

    /// Custom names among the changes stay defined on the server (see [`is_custom`]).
    pub(crate) fn define(&mut self, changes: &[Change<'_>]) {
        for change in changes.iter().filter(|change| is_custom(change.name())) {
            self.note_custom(change.name());
        }
    }

    /// The server knows this custom name from now on.
    pub(crate) fn note_custom(&mut self, name: &[u8]) {
        let name = self.pool.custom_name(&name.to_ascii_lowercase());
        if self.session.know_custom(name).are_too_many() {
            self.lending.spoil("its pool has too many custom settings to tell them apart");
        }
    }

    /// The same for a client whose unnamed statement is known to the server only. The client's
    /// message has to wait for the outcome.
    pub(crate) fn apply_beside_unnamed(&mut self, desired: &Settings, out: &mut Vec<u8>) {
        self.set_in_pipeline(desired, Request::InjectedSettings { statement: 0 }, false, out);
        out.extend_from_slice(&build::SYNC);
        self.request(Request::InjectedSync);
    }

    /// Appends messages that change settings without ending the client's implicit transaction. In a
    /// transaction block the change is a local one: after a plain SET, the value that the client
    /// has set there with LOCAL would outlast the block.
    pub(crate) fn set_within_pipeline(&mut self, desired: &Settings, out: &mut Vec<u8>) {
        let local = self.from_server.status() == TransactionStatus::InTransaction;
        self.set_in_pipeline(desired, Request::Injected, local, out);
    }

    /// The same; each of them is answered by `owed`.
    fn set_in_pipeline(
        &mut self,
        desired: &Settings,
        owed: Request,
        local: bool,
        out: &mut Vec<u8>,
    ) {
        let before = std::mem::replace(&mut self.session.applied, desired.clone());
        let parameters = self.session.own.parameters.clone();
        let changes: Vec<_> = changes(&before, desired, &parameters).collect();
        self.define(&changes);
        for change in changes {
            let mut body = Vec::new();
            if local {
                settings::write_set_local(change, &mut body);
            } else {
                settings::write_set_query([change], &mut body);
            }
            self.run_in_pipeline(body, owed, out);
        }
    }
}
