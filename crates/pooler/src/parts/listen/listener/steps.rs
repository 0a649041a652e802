//! The loop that hosts a pool's listening connection.

use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::ids::{LoopId, PoolId, Slot};
use crate::parts::listen::listener::{ANSWER_US, Listener, PoolHub, RETRY_US, Received, UNUSED_US};
use crate::parts::listen::{Ask, Claimant, FromHub, Hub, Marker, Step, Ticket};
use crate::relay::backend::{BackendSeed, PoolRef};
use crate::relay::client_info::ListenLost;
use crate::relay::host::Host;
use crate::relay::message::{Event, ToLoop};
use crate::relay::pending_bytes::PendingBytes;
use crate::relay::socket::{Readiness, Socket, Token, write_kept};
use crate::relay::table::{Engine, Holder, Resident};
use crate::relay::{limits, table};
use crate::time::Time;
use crate::wire::build;
use crate::wire::error::{ClientError, Severity, SqlState};

impl<S: Socket> Engine<S> {
    /// A loop sends a request to a hub of this loop.
    pub(crate) fn hub_asked<H: Host<S>>(
        &mut self,
        host: &mut H,
        pool: &PoolRef<S>,
        from: LoopId,
        mut ask: Ask,
        now: Time,
    ) {
        let hub = self.hubs.entry(pool.id).or_insert_with(|| PoolHub {
            hub: Hub::default(),
            pool: pool.clone(),
            place: None,
            wanted: now,
            not_before: Time::ZERO,
        });
        let unserved = ask
            .claimant
            .take_if(|claimant| matches!(claimant, Claimant::Backend(_)) && !hub.hub.is_open());
        hub.hub.ask(from, ask);
        if let Some(claimant) = unserved {
            // No notifications are received at the moment: no backend is kept from clients for
            // them.
            self.fail_claimants(host, pool, vec![(from, claimant)], false);
        }
        self.work_hub(host, pool.id, now);
    }

    /// Does what a hub has to do next.
    fn work_hub<H: Host<S>>(&mut self, host: &mut H, pool: PoolId, now: Time) {
        let Some(hub) = self.hubs.get_mut(&pool) else { return };
        if hub.hub.is_needed() {
            hub.wanted = now;
        }
        let stats = &hub.pool.stats.listen;
        stats.connections.store(u32::from(hub.place.is_some()), Ordering::Relaxed);
        let channels = u32::try_from(hub.hub.channel_count()).unwrap_or(u32::MAX);
        stats.channels.store(channels, Ordering::Relaxed);
        if hub.place.is_none() && now < hub.not_before {
            return;
        }
        match hub.hub.next_step() {
            None => {}
            Some(Step::Open) => host.open_listener(&hub.pool, self.id),
            Some(Step::Query(text)) => {
                let Some(place) = hub.place else { return };
                let Some(listener) = self.listener(place) else { return };
                if listener.send(&text, now).is_err() {
                    self.listener_ends(host, place, "server closed the connection", now);
                }
            }
        }
    }

    fn listener(&mut self, place: Slot) -> Option<&mut Listener<S>> {
        match &mut self.resident.get_mut(place)?.holder {
            Holder::Listener(listener) => Some(listener),
            _ => None,
        }
    }

    /// The connection of a hub has been opened.
    pub(crate) fn listener_opened<H: Host<S>>(
        &mut self,
        host: &mut H,
        seed: BackendSeed<S>,
        now: Time,
    ) {
        let pool = seed.pool.clone();
        let id = seed.id;
        let listener = Box::new(Listener {
            id,
            socket: seed.socket,
            pool: seed.pool,
            process: seed.process,
            server: seed.server,
            epoch: seed.epoch,
            opened: seed.opened,
            input: Vec::new(),
            output: PendingBytes::EMPTY,
            ready: false,
            asked: now,
            error: None,
            _permit: seed.permit,
        });
        let Some(hub) = self.hubs.get_mut(&pool.id).filter(|hub| hub.place.is_none()) else {
            return; // it is not needed any more
        };
        let view = hub.pool.clone();
        let view = self.view_of(&view);
        let first = listener.first_query(&seed.parameters);
        let holder = Holder::Listener(listener);
        let place = self.resident.insert_with(|_| Resident { id, pool: view, holder });
        if let Some(hub) = self.hubs.get_mut(&pool.id) {
            hub.place = Some(place);
        }
        let Some(Resident { holder: Holder::Listener(listener), .. }) =
            self.resident.get_mut(place)
        else {
            return;
        };
        if host.watch(&listener.socket, Token::Backend(place)).is_err()
            || listener.send(&first, now).is_err()
        {
            self.listener_ends(host, place, "its connection could not be watched", now);
        }
    }

    /// The connection of a hub could not be opened.
    pub(crate) fn listener_failed<H: Host<S>>(
        &mut self,
        host: &mut H,
        pool: &PoolRef<S>,
        now: Time,
    ) {
        let Some(hub) = self.hubs.get_mut(&pool.id) else { return };
        hub.not_before = now.after(Duration::from_micros(RETRY_US));
        let claimants = hub.hub.open_failed();
        self.fail_claimants(host, pool, claimants, false);
    }

    fn fail_claimants<H: Host<S>>(
        &self,
        host: &mut H,
        pool: &PoolRef<S>,
        claimants: Vec<(LoopId, Claimant)>,
        lost: bool,
    ) {
        for (to, claimant) in claimants {
            let said = FromHub::Failed { claimant, lost };
            host.send(to, ToLoop::FromHub { pool: pool.clone(), said });
        }
    }

    /// An event has come for a listening connection.
    pub(crate) fn listener_event<H: Host<S>>(
        &mut self,
        host: &mut H,
        place: Slot,
        ready: Readiness,
        now: Time,
    ) {
        let Some(listener) = self.listener(place) else { return };
        if ready.writable
            && write_kept(&mut listener.socket, &mut listener.output).is_err()
            && !ready.readable
        {
            self.listener_ends(host, place, "server closed the connection", now);
            return;
        }
        if ready.readable || ready.hangup {
            self.read_listener(host, place, now);
        }
    }

    fn read_listener<H: Host<S>>(&mut self, host: &mut H, place: Slot, now: Time) {
        let mut buffer = std::mem::take(&mut self.server_input);
        if buffer.len() != limits::READ_BYTES {
            buffer = table::buffer();
        }
        let ended = loop {
            if !self.again.may_read(Token::Backend(place)) {
                break None;
            }
            let Some(listener) = self.listener(place) else { break None };
            match listener.socket.read(&mut buffer) {
                Ok(0) => break Some("server closed the connection"),
                Ok(read) => {
                    listener.input.extend_from_slice(&buffer[..read]);
                    let (received, ended) = listener.take_received();
                    self.process_received(host, place, received, now);
                    if ended.is_some() {
                        break ended;
                    }
                }
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break None,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(_) => break Some("server closed the connection"),
            }
        };
        self.server_input = buffer;
        if let Some(reason) = ended {
            self.listener_ends(host, place, reason, now);
        }
    }

    /// Processes what has come, in order.
    fn process_received<H: Host<S>>(
        &mut self,
        host: &mut H,
        place: Slot,
        received: Vec<Received>,
        now: Time,
    ) {
        let Some(listener) = self.listener(place) else { return };
        let (pool, marker) = (listener.pool.clone(), listener.marker());
        let received_at = Marker { channel: marker.clone(), server: listener.server };
        for received in received {
            let Some(hub) = self.hubs.get_mut(&pool.id) else { return };
            let message = |said| ToLoop::FromHub { pool: pool.clone(), said };
            match received {
                Received::Notified(one) if one.channel == marker => {
                    if let Some((to, ticket)) = Ticket::read(one.payload())
                        && to.0 < self.loops
                    {
                        host.send(to, message(FromHub::Marked(ticket, one.process)));
                    }
                }
                Received::Notified(one) => {
                    pool.stats.listen.heard.add(1);
                    let one = std::sync::Arc::new(one.named(pool.notifiers(), Some(pool.id), now));
                    for to in hub.hub.loops(&one.channel) {
                        host.send(to, message(FromHub::Notified(one.clone())));
                    }
                }
                Received::Ready => {
                    for (to, claimant) in hub.hub.answered() {
                        host.send(to, message(FromHub::Passed(claimant, received_at.clone())));
                    }
                    let first = self
                        .listener(place)
                        .is_some_and(|listener| !std::mem::replace(&mut listener.ready, true));
                    if first && let Some(hub) = self.hubs.get_mut(&pool.id) {
                        hub.hub.opened(marker.clone());
                    }
                    self.work_hub(host, pool.id, now);
                }
            }
        }
    }

    /// A listening connection has ended, or must end.
    pub(crate) fn listener_ends<H: Host<S>>(
        &mut self,
        host: &mut H,
        place: Slot,
        reason: &'static str,
        now: Time,
    ) {
        let Some(Resident { holder: Holder::Listener(mut listener), .. }) =
            self.resident.remove(place)
        else {
            return;
        };
        let _ = listener.socket.write(&build::TERMINATE); // it may be gone
        listener.socket.shutdown();
        host.event(Event::BackendClosed {
            backend: listener.id,
            database: &listener.pool.database,
            user: &listener.pool.user,
            reason,
        });
        let pool = listener.pool.clone();
        let Some(hub) = self.hubs.get_mut(&pool.id) else { return };
        hub.place = None;
        let again = pool.settings().listen_lost == ListenLost::Notice;
        let is_needed = hub.hub.is_needed();
        if is_needed {
            hub.not_before = now.after(Duration::from_micros(RETRY_US / 10));
        }
        let loops: Vec<LoopId> = hub.hub.all_loops().into_iter().collect();
        let claimants = hub.hub.lost(again);
        self.fail_claimants(host, &pool, claimants, !again);
        if is_needed {
            let error = lost_error(listener.error.take(), reason, again);
            for to in loops {
                let said = FromHub::Lost { error: error.clone(), again };
                host.send(to, ToLoop::FromHub { pool: pool.clone(), said });
            }
        }
        self.work_hub(host, pool.id, now); // not before the pause is over
    }

    /// Closes the connection to a pool's database if no client listens there.
    pub(crate) fn end_unused_listener<H: Host<S>>(
        &mut self,
        host: &mut H,
        pool: PoolId,
        now: Time,
    ) {
        if let Some(hub) = self.hubs.get(&pool)
            && !hub.hub.is_needed()
            && let Some(place) = hub.place
        {
            self.listener_ends(host, place, "no client listens, and its database is needed", now);
        }
    }

    /// Checks the hubs of this loop, once a tick.
    pub(crate) fn look_after_hubs<H: Host<S>>(&mut self, host: &mut H, now: Time) {
        if self.hubs.is_empty() {
            return;
        }
        let pools: Vec<PoolId> = self.hubs.keys().copied().collect();
        for pool in pools {
            let Some(hub) = self.hubs.get(&pool) else { continue };
            let (busy, unused) = (hub.hub.is_busy(), !hub.hub.is_needed());
            let unused = unused && now.micros_since(hub.wanted) >= UNUSED_US;
            match hub.place {
                Some(place) => {
                    let Some(listener) = self.listener(place) else { continue };
                    let late =
                        (busy || !listener.ready) && now.micros_since(listener.asked) >= ANSWER_US;
                    if late {
                        self.listener_ends(host, place, "it does not answer", now);
                    } else if listener.is_left() {
                        let reason = "its server is no longer what the database asks for";
                        self.listener_ends(host, place, reason, now);
                    } else if unused {
                        self.listener_ends(host, place, "no client listens any more", now);
                    } else {
                        self.work_hub(host, pool, now);
                    }
                }
                None if unused => drop(self.hubs.remove(&pool)),
                None => self.work_hub(host, pool, now),
            }
        }
    }
}

/// The error that clients get when their listening connection is lost.
fn lost_error(of_server: Option<ClientError>, reason: &str, again: bool) -> ClientError {
    let mut error = of_server.unwrap_or_else(|| {
        let text = "server closed the connection unexpectedly";
        ClientError::fatal(SqlState::CONNECTION_FAILURE, text)
            .detail(format!("The connection that listens for this one: {reason}."))
    });
    if again {
        error.severity = Severity::Warning;
        error.detail =
            Some(format!("The connection that listens for this one: {}.", error.message));
        error.message = "notifications may have been lost".to_owned();
        error.hint = Some("It listens again; look at the state that they tell of.".to_owned());
    } else {
        error.severity = Severity::Fatal;
    }
    error
}
