//! Informing a server of the clients of its one user.

use crate::relay::backend::Backend;
use crate::relay::client_info::ClientAbout;
use crate::relay::request_queue::Request;
use crate::relay::socket::{Mptcp, Socket};
use crate::session::settings::SettingsBuilder;

/// Ends SET ROLE and SET SESSION AUTHORIZATION, also where a role has a setting of its own for `role`.
const RESET_ROLES: &[u8] = b"RESET SESSION AUTHORIZATION;RESET ROLE";

impl<S: Socket> Backend<S> {
    /// Appends the message that tells the server which client's message follows.
    pub(crate) fn send_identity(
        &mut self,
        about: &ClientAbout,
        mptcp: Option<Mptcp>,
        out: &mut Vec<u8>,
    ) {
        if !self.owner.is_due() {
            return;
        }
        let roles: [&[u8]; 2] = [b"role", b"session_authorization"];
        if roles.iter().any(|name| self.session.applied.get(name).is_some()) {
            // The call ends them; but if it fails, because the function is gone, they would stay.
            self.inject_query(RESET_ROLES, out);
            let mut applied = SettingsBuilder::from(&self.session.applied);
            for name in roles {
                applied.remove(name);
            }
            self.session.applied = self.pool.interner().share(applied.build());
        }
        if let Some(identity) = self.owner.client_identity_mut()
            && let Some(process) = identity.due.take()
        {
            identity.key.write_to(process, None, about, mptcp, out);
            self.request(Request::SendIdentity);
        }
    }
}
