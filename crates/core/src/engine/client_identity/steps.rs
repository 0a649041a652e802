//! Telling a server of the clients of its one user.

use crate::engine::about::ClientAbout;
use crate::engine::backend::Backend;
use crate::engine::request_queue::Request;
use crate::engine::socket::{Mptcp, Socket};
use crate::session::settings::SettingsBuilder;

impl<S: Socket> Backend<S> {
    /// Appends what tells the server of the client whose message follows.
    pub(in crate::engine) fn tell(
        &mut self,
        about: &ClientAbout,
        mptcp: Option<Mptcp>,
        out: &mut Vec<u8>,
    ) {
        let Some(told) = &mut self.owner.client_identity else { return };
        let Some(process) = told.due.take() else { return };
        told.key.write_to(process, None, about, mptcp, out);
        self.request(Request::TellIdentity);
        if self.session.applied.get(b"role").is_some()
            || self.session.applied.get(b"session_authorization").is_some()
        {
            let mut applied = SettingsBuilder::from(&self.session.applied);
            applied.remove(b"role");
            applied.remove(b"session_authorization");
            self.session.applied = self.pool.interner().share(applied.build());
        }
    }
}
