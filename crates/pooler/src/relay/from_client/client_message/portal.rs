//! Portals whose execution changes the pooler's own books: RESET, DISCARD ALL, DEALLOCATE.
//!
//! # Model
//! A Bind notes what its statement does; the Execute of that portal does it (see
//! [`crate::parts::settings::restore`]). A DEALLOCATE of a name that the server has under another gets a
//! stand-in.

use crate::parts::statements::client_names::significant;
use crate::relay::effects::{Effects, Unusual};
use crate::relay::from_client::client_message::ClientMessage;
use crate::relay::halt::Halt;
use crate::relay::request_queue::{Change, Request, StoodInFor};
use crate::relay::socket::Socket;
use crate::wire::{build, frame, frontend};

/// Name of the statement that is bound in place of a DEALLOCATE.
pub(crate) const STAND_IN: &[u8] = b"hawser_deallocate";

impl<S: Socket> ClientMessage<'_, '_, S> {
    /// Records how the current Execute changes the pooler's books, and sends what must follow it.
    pub(super) fn after_execute(&mut self) -> Result<(), Halt> {
        let Some((portal, _)) = frame::take_string(self.body) else { return Ok(()) };
        let Some(unusual) = self.client.portal(portal) else { return Ok(()) };
        if let Some(name) = &unusual.deallocates {
            self.deallocate_after(name);
            return Ok(());
        }
        if unusual.forgets_statements {
            self.backend.request_taking_all(self.client);
        }
        if !self.client.is_restored_after(&unusual) {
            return Ok(());
        }
        self.passage.cut(self.backend)?;
        self.client.restore_after(&unusual, self.backend, &mut self.passage.out);
        let unlistens = unusual.named_channels.iter().flat_map(|named| &named.unlistens);
        for taken in unlistens {
            if let Some(mark) = self.client.mark_unlisten(taken.clone(), self.backend) {
                self.backend.run_within_pipeline(mark, &mut self.passage.out);
            }
        }
        Ok(())
    }

    /// The current Execute removes one of the client's names, if it succeeds.
    pub(super) fn deallocate_after(&mut self, name: &[u8]) {
        self.backend.request_taking(self.client, name, false);
    }

    /// Whether the current message is the Sync of a pipeline that a Sync of Hawser's has just
    /// ended. (After settings of Hawser's that precede a pipeline it is a Sync of its own: what the
    /// server reports with the first is not for the client.)
    pub(super) fn becomes_ours(&self) -> bool {
        self.header.kind == frontend::SYNC
            && self.client.is_unsettled()
            && self.backend.requests.back() == Some(Request::InjectedSync)
            && !self.client.is_skipping()
    }

    /// A Bind of a statement that the server knows by the client's own name.
    pub(crate) fn bind_native(&mut self, portal: &[u8], name: &[u8]) -> Result<(), Halt> {
        if self.backend.is_being_noted(self.client, name) {
            self.hold()?;
        }
        if self.client.pending_session.is_none() {
            return Ok(());
        }
        let unusual = self.client.noted(name).and_then(|noted| noted.unusual.clone());
        if let Some(unusual) = &unusual {
            self.hold()?;
            let effects = Effects { unusual: Some(unusual.clone()), ..Effects::default() };
            self.before(&effects, true)?;
        }
        self.client.note_portal(portal, unusual.as_deref())?;
        Ok(())
    }

    /// Notes the portal that the current Bind makes of a statement. Whether that is the DEALLOCATE
    /// of one of the client's own names, which the server has under another: then a stand-in is
    /// bound, a DEALLOCATE of a statement that exists only for that, so that the server answers as
    /// it would, in order.
    pub(crate) fn binds_deallocate(
        &mut self,
        portal: &[u8],
        name: &[u8],
        unusual: Option<&Unusual>,
    ) -> Result<bool, Halt> {
        self.client.note_portal(portal, unusual)?;
        let deallocates = unusual.and_then(|unusual| unusual.deallocates.as_ref());
        if deallocates.is_none_or(|name| self.client.statement(name).is_none()) {
            return Ok(false);
        }
        self.passage.cut(self.backend)?;
        let out = &mut self.passage.out;
        // They may exist from a stand-in that was bound and not executed.
        for (name, text) in [(&b"hawser_gone"[..], &b""[..]), (STAND_IN, b"DEALLOCATE hawser_gone")]
        {
            build::close_statement(out, name);
            build::parse(out, name, &[text, &[0; 3]].concat());
            self.backend.request(Request::Injected);
            self.backend.request(Request::InjectedParse { statement: 0 });
        }
        self.bind_instead(portal, name)?;
        Ok(true)
    }

    /// Passes the Bind on with the name of the stand-in.
    fn bind_instead(&mut self, portal: &[u8], name: &[u8]) -> Result<(), Halt> {
        self.pass_with(portal.len() + 1 + name.len() + 1, |out| {
            build::string(out, portal);
            build::string(out, STAND_IN);
        })?;
        let own = Change::StandsInFor(Box::new(StoodInFor { name: significant(name).into() }));
        self.backend.request_with(Request::Bind { statement: 0 }, Some(own));
        if !self.backend.to_server.is_open() {
            // The portal has what it needs, and no list may show the statement.
            self.passage.cut(self.backend)?;
            build::close_statement(&mut self.passage.out, STAND_IN);
            self.backend.request(Request::Injected);
        }
        Ok(())
    }
}
