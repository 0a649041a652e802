//! A backend whose client has notified goes to no other client before the notifications have been
//! received.
//!
//! # Model
//! Notifications have the id of the server process, which serves many clients ([`Notifiers`]). So
//! if clients of the pool listen, a backend that is given back after a text that notifies (by
//! itself, or by functions and triggers, as the census knows them) waits for a fence on the
//! listening connection: no client waits for that, unless all backends are busy. After it the next
//! client's notifications need no fence before them, as no earlier ones are in flight.
//!
//! # Limits
//! One fence, on the pool's own listening connection: those of other pools of the database may be
//! later. After [`RECEIVED_WITHIN`](crate::parts::listen::notifiers::RECEIVED_WITHIN) the backend goes on without it.
//!
//! [`Notifiers`]: crate::parts::listen::notifiers::Notifiers

use std::sync::atomic::Ordering;

use crate::ids::Slot;
use crate::parts::listen::{Ask, Claimant, Marker};
use crate::relay::backend::{Backend, Tidying};
use crate::relay::host::Host;
use crate::relay::message::ToLoop;
use crate::relay::socket::Socket;
use crate::relay::table::{Engine, Holder};
use crate::time::Time;

impl<S: Socket> Backend<S> {
    /// Whether its last client has notified by it, that may not have been received, and a client
    /// listens.
    pub(crate) fn needs_fence(&self) -> bool {
        self.known.notifying.is_unreceived()
            && self.pool.stats.listen.channels.load(Ordering::Relaxed) > 0
    }
}

impl<S: Socket> Engine<S> {
    /// Keeps a backend without a client until its notifications have been received.
    pub(crate) fn fence_backend<H: Host<S>>(
        &mut self,
        host: &mut H,
        mut backend: Box<Backend<S>>,
        now: Time,
    ) {
        backend.lending.begin_tidying(Tidying::AwaitingListener, now);
        let (pool, place) = (backend.pool.clone(), backend.place());
        self.keep(backend);
        let ask = Ask { claimant: Some(Claimant::Backend(place)), ..Ask::default() };
        host.send(self.hub_of(pool.id), ToLoop::ToHub { pool, from: self.id, ask });
    }

    /// A backend's notifications have all been received, or are not waited for any more: it goes
    /// on. `marker` is `None` if nothing has been received.
    pub(crate) fn backend_fenced<H: Host<S>>(
        &mut self,
        host: &mut H,
        place: Slot,
        marker: Option<&Marker>,
        now: Time,
    ) {
        let Some(resident) = self.resident.get_mut(place) else { return };
        if !matches!(&resident.holder, Holder::Engine(backend)
            if backend.lending.tidying == Tidying::AwaitingListener)
        {
            return;
        }
        let Holder::Engine(mut backend) = std::mem::replace(&mut resident.holder, Holder::Pool)
        else {
            return;
        };
        // (Another server's listening connection does not receive them.)
        let here = marker.is_some_and(|at| at.server == backend.server());
        backend.known.notifying.is_fenced(here);
        self.give_back(host, backend, now);
    }
}
