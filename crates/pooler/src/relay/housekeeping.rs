//! Work that time causes: deadlines of clients, openings that became due, stalls.
//!
//! # Model
//! A wheel of ticks. A client is in it at most once, at the earliest moment at which something
//! could be due; whether it is due is checked then. So an ordinary transaction (a deadline is set,
//! and met) costs one store, and an idle client costs nothing.

use std::time::Duration;

use crate::ids::Slot;
use crate::lending::PoolSettings;
use crate::parts::listen::listener::PoolHub;
use crate::parts::listen::notifiers::RECEIVED_WITHIN;
use crate::relay::backend::{Backend, Tidying};
use crate::relay::client::{Client, TickCame};
use crate::relay::client_info::{ClientState, PoolMode};
use crate::relay::host::Host;
use crate::relay::limits;
use crate::relay::socket::{Socket, Token};
use crate::relay::table::{Engine, Holder, PoolView};
use crate::relay::timers::{TICK_US, Wheel};
use crate::time::Time;
use crate::wire::TransactionStatus;
use crate::wire::error::{ClientError, SqlState};

/// How long a client may take to read its last message.
const GOODBYE: Duration = Duration::from_secs(5);

/// How long a backend must sit idle in a transaction, while others wait, to be parked.
const PARK_AFTER_US: u64 = 5_000;

/// The same for one whose client takes none of its result, or sends no more of a message.
const PARK_STALLED_AFTER: Duration = Duration::from_secs(1);

/// How long a client of a pool that users share waits for its session's own greeting. After that
/// the pool is busy: the client is greeted with known values, and its first query waits.
const GREETED_AFTER: Duration = Duration::from_millis(100);

/// How long a client must have waited before one that stalls is disconnected.
const CUT_AFTER: Duration = Duration::from_secs(1);

/// Which limit a client has reached.
enum Overdue {
    Greeting,
    Wait,
    Notice,
    Query,
    Rule,
    IdleInTransaction,
    Pinned,
    Transaction,
    Idle,
    Write,
    Read,
    LastWords,
    Goodbye,
}

impl<S: Socket> Engine<S> {
    /// Rounded up: a deadline is never early.
    fn tick_of(at: Time) -> u32 {
        Wheel::tick(at) + 1
    }

    /// Sets when the client must have made progress; `None`: never.
    #[inline]
    pub(crate) fn set_deadline(&mut self, slot: Slot, at: Option<Time>) {
        let Some(client) = self.clients.get_mut(slot) else { return };
        let tick = at.map_or(0, Self::tick_of);
        if client.times.set_deadline(tick) {
            client.times.is_armed(self.wheel.arm(slot, tick));
        }
    }

    /// How long the host may sleep.
    pub fn next_tick(&self) -> Duration {
        if !self.again.is_empty()
            || !self.late.is_empty()
            || !self.work.is_empty()
            || !self.bulk_orders.is_empty()
            || self.wheel.is_behind()
        {
            return Duration::ZERO;
        }
        let busy = self.wheel.armed > 0
            || self.pools.iter().any(|v| v.pool.anybody_waits())
            || self.hubs.values().any(PoolHub::is_to_be_opened);
        if busy { Duration::from_micros(TICK_US) } else { Duration::from_secs(1) }
    }

    /// For a host whose watch on servers' connections does not report when they take bytes again:
    /// to be called after a socket has not taken everything. Calls `watch` for each connection to
    /// be watched for that from now on.
    #[cold]
    pub fn watch_for_room(&self, mut watch: impl FnMut(&S, Token)) {
        for (place, resident) in self.resident.iter() {
            let backend = match &resident.holder {
                Holder::Client(slot) => self.clients.get(*slot).and_then(|c| c.backend.as_deref()),
                Holder::Engine(backend) => Some(&**backend),
                Holder::Listener(listener) => {
                    listener.watch_for_room(|socket| watch(socket, Token::Backend(place)));
                    None
                }
                Holder::Pool => None,
            };
            if let Some(backend) = backend
                && (!backend.to_server.is_empty() || backend.socket.has_unsent())
                && backend.from_server.await_room()
            {
                watch(&backend.socket, Token::Backend(place));
            }
        }
    }

    /// To be called once a turn, before [`Engine::flush`], and at [`Engine::next_tick`] at the
    /// latest.
    pub fn tick<H: Host<S>>(&mut self, host: &mut H, now: Time) {
        self.see_again(host, now);
        self.again.begin();
        let tick = Wheel::tick(now);
        if tick > self.wheel.done {
            self.look_after_all(host, tick, now);
        }
        for _ in 0..limits::CLIENTS_A_TURN {
            let Some((slot, armed)) = self.wheel.take_due() else { break };
            self.client_due(host, slot, armed, now);
        }
        self.run_errands(host, now);
        self.bulk_orders.end_turn();
        self.work_off(host, now);
    }

    fn look_after_all<H: Host<S>>(&mut self, host: &mut H, tick: u32, now: Time) {
        for view in &mut self.pools {
            view.look();
        }
        let tracks = self.pools.iter().any(|view| view.settings.tracking.is_on);
        if !tracks && !self.pools.is_empty() {
            self.queries.clear();
        }
        self.look_after_backends(host, now);
        self.look_after_hubs(host, now);
        self.look_for_leavers();
        self.look_for_rooms();
        self.wheel.turn_to(tick);
        if self.pools.len() > 64 && tick.is_multiple_of(64) {
            self.forget_unused_views();
        }
    }

    /// Checks all backends that this loop watches, once a tick, and opens those that have become
    /// due for waiters: after a back-off, from the reserve, or in place of backends that sit idle
    /// in a transaction.
    fn look_after_backends<H: Host<S>>(&mut self, host: &mut H, now: Time) {
        let waited_for: Vec<bool> = self.pools.iter().map(|v| v.pool.anybody_waits()).collect();
        let (mut stalled, mut untidy) = (Vec::<(u32, Time, Slot)>::new(), Vec::new());
        let (mut unasked, mut uncounted, mut outdated) = (Vec::new(), Vec::new(), Vec::new());
        for (place, resident) in self.resident.iter() {
            let view = &self.pools[resident.pool as usize];
            match &resident.holder {
                Holder::Pool | Holder::Listener(_) => {}
                Holder::Engine(backend) => {
                    let wait = match view.settings.cancel_wait_timeout {
                        _ if backend.lending.tidying == Tidying::AwaitingListener => {
                            RECEIVED_WITHIN
                        }
                        Duration::ZERO => limits::TIDY_MAX, // no wait is endless
                        wait => wait,
                    };
                    if now.since(backend.lending.since) >= wait {
                        untidy.push(place);
                    }
                }
                Holder::Client(slot) => {
                    let Some(client) = self.clients.get_mut(*slot) else { continue };
                    if view.settings.server_fast_close && client.keeps_outdated(view) {
                        outdated.push(*slot);
                        continue;
                    }
                    let others_wait = waited_for[resident.pool as usize];
                    if client.has_kept_for_long(others_wait, now) {
                        unasked.push(*slot);
                    }
                    if !client.session.pins.is_empty()
                        && client
                            .backend
                            .as_ref()
                            .is_some_and(|backend| backend.lending.pinned.is_none())
                    {
                        uncounted.push(*slot);
                    }
                    if !others_wait {
                        continue;
                    }
                    if client.makes_room(now) {
                        let open = view.pool.lock().park(now);
                        for _ in 0..open {
                            host.open(&view.pool, self.id);
                        }
                    }
                    if let Some(since) = client.stalled_since(&view.settings, now) {
                        stalled.push((resident.pool, since, *slot));
                    }
                }
            }
        }
        self.cut_off_stalled(host, stalled, now);
        for slot in unasked {
            self.stop_keeping_to_ask(host, slot, now);
        }
        for slot in uncounted {
            self.count_pinned_again(host, slot, now);
        }
        for slot in outdated {
            self.end_outdated(host, slot, now);
        }
        for place in untidy {
            self.give_up_tidying(host, place, now);
        }
        for (view, _) in self.pools.iter().zip(&waited_for).filter(|(_, waited)| **waited) {
            let unfit = view.pool.lock().take_unfit();
            if let Some((home, backend)) = unfit {
                Self::close_idle(host, backend, home);
            }
            let open = view.pool.lock().openings_due(now);
            for _ in 0..open {
                host.open(&view.pool, self.id);
            }
        }
    }

    /// Disconnects a client that keeps a backend which the configuration does not allow any more.
    fn end_outdated<H: Host<S>>(&mut self, host: &mut H, slot: Slot, now: Time) {
        // (PgBouncer's text.)
        let error = ClientError::fatal(SqlState::ADMIN_SHUTDOWN, "database configuration changed")
            .detail("The session kept a server connection, which is closed (server_fast_close).")
            .hint("Connect again.");
        self.say_goodbye(host, slot, &error, now);
    }

    /// Disconnects the clients that have stalled longest, as many as clients wait: not for one that
    /// waits for a connection that is being opened.
    fn cut_off_stalled<H: Host<S>>(
        &mut self,
        host: &mut H,
        mut stalled: Vec<(u32, Time, Slot)>,
        now: Time,
    ) {
        stalled.sort_unstable_by_key(|(pool, since, _)| (*pool, *since));
        let mut pools: Vec<u32> = stalled.iter().map(|(pool, ..)| *pool).collect();
        pools.dedup();
        for pool in pools {
            let lacking =
                |after| self.pools[pool as usize].pool.lock().releases_lacking(after, now) as usize;
            let (at_once, in_time) = (lacking(Duration::ZERO), lacking(CUT_AFTER));
            let of_pool = stalled.iter().filter(|(of, ..)| *of == pool).enumerate();
            // Those that have given up come first.
            for (_, (.., slot)) in of_pool.filter(|(at, (_, since, _))| {
                *at < if *since == Time::ZERO { at_once } else { in_time }
            }) {
                let overdue = match self.clients.get(*slot) {
                    Some(client) if client.leaves_answers_unread() => Overdue::Write,
                    _ => Overdue::Read,
                };
                self.overdue(host, *slot, &overdue, now);
            }
        }
    }

    /// A client's tick has come: checks whether it is late.
    fn client_due<H: Host<S>>(&mut self, host: &mut H, slot: Slot, armed: u32, now: Time) {
        let Some(client) = self.clients.get_mut(slot) else { return };
        let fired = match client.times.tick_came(armed, Wheel::tick(now)) {
            TickCame::Stale => return,
            TickCame::Early(tick) => {
                client.times.is_armed(self.wheel.arm(slot, tick));
                return;
            }
            TickCame::Due(tick) => tick,
        };
        if self.wait_notice_at(slot).is_some_and(|at| Self::tick_of(at) == fired) {
            self.send_wait_notice(host, slot, now);
        }
        match self.next_overdue(slot, now) {
            Some((overdue, at)) if at <= now => self.overdue(host, slot, &overdue, now),
            Some((_, at)) => self.set_deadline(slot, Some(at)),
            None => {}
        }
    }

    /// When a client that waits for a backend gets the notice.
    fn wait_notice_at(&self, slot: Slot) -> Option<Time> {
        let client = self.clients.get(slot)?;
        let notify = self.pool_of(client).settings.query_wait_notify;
        // A client that has not been greeted may get no notice yet.
        let may = client.serving.state == ClientState::Waiting && client.pending_session.is_none();
        (may && !notify.is_zero()).then(|| client.times.since().after(notify))
    }

    fn send_wait_notice<H: Host<S>>(&mut self, host: &mut H, slot: Slot, now: Time) {
        let Some(client) = self.clients.get(slot) else { return };
        let view = self.pool_of(client);
        let mut notice = Vec::new();
        // PgBouncer's text, for programs that look for it.
        ClientError::notice("No server connection available in postgres backend, client being queued")
            .detail(format!(
                "All server connections for database \"{}\" and user \"{}\" are in use, or none can be opened.",
                view.pool.database, view.pool.user
            ))
            .write(&mut notice);
        self.say(host, slot, &notice, now);
    }

    /// The next limit that the client reaches as things are, and when.
    fn next_overdue(&self, slot: Slot, now: Time) -> Option<(Overdue, Time)> {
        let client = self.clients.get(slot)?;
        let settings = &self.pool_of(client).settings;
        let limit = |overdue: Overdue, wait: Duration, since: Time| {
            (!wait.is_zero()).then(|| (overdue, since.after(wait)))
        };
        let mut next: Option<(Overdue, Time)> = None;
        let mut consider = |candidate: Option<(Overdue, Time)>| {
            if let Some((_, at)) = &candidate
                && next.as_ref().is_none_or(|(_, before)| at < before)
            {
                next = candidate;
            }
        };
        match client.serving.state {
            ClientState::Closing if client.awaits_last_words() => {
                consider(Some((Overdue::LastWords, now)));
            }
            ClientState::Closing => consider(Some((Overdue::Goodbye, now))),
            ClientState::Inside => {}
            ClientState::Waiting => {
                consider(limit(Overdue::Wait, settings.query_wait_timeout, client.times.since()));
                let notice = self.wait_notice_at(slot).filter(|at| *at > now);
                consider(notice.map(|at| (Overdue::Notice, at)));
                if self.may_be_greeted_early(client) {
                    consider(limit(Overdue::Greeting, GREETED_AFTER, client.times.since()));
                }
            }
            ClientState::Idle => {
                consider(limit(Overdue::Idle, settings.client_idle_timeout, client.times.since()));
            }
            ClientState::Active => {
                let Some(backend) = &client.backend else { return None };
                if !backend.requests.is_empty() || backend.requests.is_copying_in() {
                    consider(limit(Overdue::Query, settings.query_timeout, client.times.since()));
                    consider(client.ends_by_rule().map(|at| (Overdue::Rule, at)));
                } else if client.serving.held {
                    // It is not idle: its message or its answer waits here.
                } else if backend.from_server.status() != TransactionStatus::Idle
                    || backend.requests.is_in_pipeline()
                {
                    consider(limit(
                        Overdue::IdleInTransaction,
                        settings.idle_transaction_timeout,
                        backend.lending.since,
                    ));
                } else {
                    consider(limit(
                        Overdue::Idle,
                        settings.client_idle_timeout,
                        backend.lending.since,
                    ));
                    if !client.is_session_mode() && !client.session.pins.is_empty() {
                        consider(limit(
                            Overdue::Pinned,
                            settings.pin_timeout,
                            backend.lending.since,
                        ));
                    }
                }
                if backend.from_server.status() != TransactionStatus::Idle || !backend.is_at_rest()
                {
                    consider(limit(
                        Overdue::Transaction,
                        settings.transaction_timeout,
                        client.times.transaction_since(),
                    ));
                }
            }
        }
        next
    }

    /// Arms the deadline that fits what the client does now, if any limit is set at all.
    pub(crate) fn rearm(&mut self, slot: Slot, now: Time) {
        let Some(client) = self.clients.get(slot) else { return };
        if client.serving.state == ClientState::Closing {
            return; // it has its time to read its last message
        }
        let at = self.next_overdue(slot, now).map(|(_, at)| at);
        self.set_deadline(slot, at);
    }

    /// The same of a client that begins to wait for a backend: once for most transactions.
    #[inline]
    pub(crate) fn arm_wait(&mut self, slot: Slot, now: Time) {
        let Some(client) = self.clients.get(slot) else { return };
        if client.pending_session.is_some() {
            self.rearm(slot, now); // it may be one to be greeted
            return;
        }
        let settings = &self.pool_of(client).settings;
        if !settings.query_wait_notify.is_zero() {
            self.rearm(slot, now);
            return;
        }
        let wait = settings.query_wait_timeout;
        self.set_deadline(slot, (!wait.is_zero()).then(|| client.times.since().after(wait)));
    }

    /// The same after an answer, if there is a limit for clients with a backend or idle ones;
    /// without one this costs nothing.
    pub(crate) fn rearm_if_limited(&mut self, slot: Slot, now: Time) {
        let Some(client) = self.clients.get(slot) else { return };
        if self.pool_of(client).limits_clients {
            self.rearm(slot, now);
        }
    }

    /// Gives a client time to read its last message.
    pub(crate) fn arm_goodbye(&mut self, slot: Slot, now: Time) {
        self.set_deadline(slot, Some(now.after(GOODBYE)));
    }

    fn overdue<H: Host<S>>(&mut self, host: &mut H, slot: Slot, overdue: &Overdue, now: Time) {
        let Some(client) = self.clients.get(slot) else { return };
        let view = self.pool_of(client);
        let settings = &view.settings;
        let error = match overdue {
            Overdue::Greeting => return self.greet_early(host, slot, now),
            Overdue::Rule => return self.cut_off_by_rule(host, slot, now),
            Overdue::LastWords => return self.say_last_words(host, slot, "", now),
            Overdue::Notice => return, // it happens at its own tick, and is no limit
            Overdue::Wait => view.waited_in_vain(),
            Overdue::Query => ClientError::fatal(
                SqlState::QUERY_CANCELED,
                format!("query ran longer than query_timeout ({:?})", settings.query_timeout),
            ),
            Overdue::IdleInTransaction => ClientError::fatal(
                SqlState::IDLE_IN_TRANSACTION_TIMEOUT,
                format!(
                    "transaction sat idle longer than idle_transaction_timeout ({:?})",
                    settings.idle_transaction_timeout
                ),
            ),
            Overdue::Pinned => Self::pinned_for_too_long(client, settings.pin_timeout),
            Overdue::Transaction => ClientError::fatal(
                SqlState::TRANSACTION_TIMEOUT,
                format!(
                    "transaction took longer than transaction_timeout ({:?})",
                    settings.transaction_timeout
                ),
            ),
            Overdue::Idle => ClientError::fatal(
                SqlState::IDLE_SESSION_TIMEOUT,
                format!(
                    "connection sat idle longer than client_idle_timeout ({:?})",
                    settings.client_idle_timeout
                ),
            ),
            Overdue::Write => {
                // It reads nothing: an error after the unread bytes would not reach it.
                let reason =
                    "client_write_timeout: it took nothing of its result while others waited";
                self.close_client(host, slot, reason, now);
                return;
            }
            Overdue::Read => {
                let reason = "client_read_timeout: its message came too slowly, or it had ended its session, \
                              while others waited";
                self.close_client(host, slot, reason, now);
                return;
            }
            Overdue::Goodbye => {
                self.close_client(host, slot, "it did not read its last message", now);
                return;
            }
        };
        self.say_goodbye(host, slot, &error, now);
    }

    /// Closes a backend whose tidying takes longer than `cancel_wait_timeout`; one that only waits
    /// for the listening connection continues without it.
    fn give_up_tidying<H: Host<S>>(&mut self, host: &mut H, place: Slot, now: Time) {
        let Some(resident) = self.resident.get_mut(place) else { return };
        let Holder::Engine(backend) = &resident.holder else { return };
        if backend.lending.tidying == Tidying::AwaitingListener {
            self.backend_fenced(host, place, None, now);
            return;
        }
        if let Holder::Engine(backend) = std::mem::replace(&mut resident.holder, Holder::Pool) {
            self.close_backend(host, backend, "it was not tidy within cancel_wait_timeout", now);
        }
    }
}

impl<S: Socket> PoolView<S> {
    /// The error for a client that has waited for a backend for `query_wait_timeout`.
    fn waited_in_vain(&self) -> ClientError {
        let (pool, waited) = (&self.pool, self.settings.query_wait_timeout);
        let (total, lock_waits) = {
            let pool = pool.lock();
            (pool.total(), pool.lock_waits())
        };
        let error = match pool.last_error() {
            Some(why) => ClientError::fatal(
                // Any limit that is reached counts, even if more follows it.
                match why.code {
                    SqlState::TOO_MANY_CONNECTIONS if !why.of_server => why.code,
                    _ => SqlState::CONNECTION_FAILURE,
                },
                format!("no server connection for database \"{}\"", pool.database),
            )
            .detail(format!("Waited {waited:?} (query_wait_timeout). {}", why.message)),
            None => ClientError::fatal(
                SqlState::TOO_MANY_CONNECTIONS,
                format!(
                    "no free server connection for database \"{}\" and user \"{}\" within {waited:?}",
                    pool.database, pool.user
                ),
            )
            .detail(format!(
                "All {total} server connections of the pool are in use (query_wait_timeout)."
            ))
            .hint("Raise pool_size, or shorten the transactions that hold connections."),
        };
        match lock_waits {
            0 => error,
            _ => error.hint(format!(
                "{lock_waits} of the pool's {total} server connections wait for locks. End what \
                 holds the locks, or raise pool_size or lock_wait_reserve."
            )),
        }
    }
}

impl<S: Socket> Client<S> {
    /// Whether its backend has sat idle long enough to make room for another: in a transaction, or
    /// pinned, which keeps a backend in the same way; or because the client takes none of its
    /// result, or stops in the middle of a message.
    fn makes_room(&mut self, now: Time) -> bool {
        let kept = !self.session.pins.is_empty();
        let stands_still = self.serving.mode != PoolMode::Session
            && !self.serving.is_exclusive()
            && (self.leaves_answers_unread() || self.stops_in_a_message());
        let sits_idle = self.sits_idle_on_backend(kept);
        let Some(backend) = self.backend.as_mut() else { return false };
        let sits_idle = sits_idle && now.micros_since(backend.lending.since) >= PARK_AFTER_US;
        let stalls = stands_still && now.since(backend.lending.progress) >= PARK_STALLED_AFTER;
        (sits_idle || stalls) && backend.lending.park()
    }

    /// Since when its open transaction waits for it.
    pub(crate) fn idle_in_transaction_since(&self) -> Option<Time> {
        let backend = self.backend.as_ref()?;
        self.sits_idle_on_backend(false).then_some(backend.lending.since)
    }

    /// Whether its backend has nothing to do for it: in a transaction, or, if it is `kept`, between two.
    fn sits_idle_on_backend(&self, kept: bool) -> bool {
        !self.serving.held
            && self.backend.as_ref().is_some_and(|backend| {
                (kept || backend.from_server.status() != TransactionStatus::Idle)
                    && backend.requests.is_empty()
                    && !backend.requests.is_in_pipeline()
            })
    }

    /// Whether it sits idle on a backend that it keeps between transactions, and that the
    /// configuration does not allow any more.
    fn keeps_outdated(&self, view: &PoolView<S>) -> bool {
        let Some(backend) = &self.backend else { return false };
        (self.is_session_mode() || !self.session.pins.is_empty())
            && !self.serving.held
            && self.input.is_empty()
            && backend.is_at_rest()
            && view.outdated(backend).is_some()
    }

    /// Whether its connection has not taken all of its answers.
    fn leaves_answers_unread(&self) -> bool {
        !self.output.is_empty() && !self.at_socket.is_late() // late ones have not been tried yet
    }

    /// Whether its server waits for the rest of a message.
    fn stops_in_a_message(&self) -> bool {
        self.backend.as_ref().is_some_and(|backend| backend.to_server.is_open())
            && !self.at_socket.unread.is_any()
    }

    /// Since when it has kept its backend from waiters by taking or sending nothing, if that is
    /// longer than it may.
    fn stalled_since(&self, settings: &PoolSettings, now: Time) -> Option<Time> {
        let backend = self.backend.as_ref()?;
        if self.has_given_up() {
            return Some(Time::ZERO); // no client would get what is still to come
        }
        let is_over = |timeout: Duration, since| !timeout.is_zero() && now.since(since) >= timeout;
        let (write, read) = (settings.client_write_timeout, settings.client_read_timeout);
        // A query with a Terminate after it is carried out, as by PostgreSQL, which reads the
        // Terminate when it is done.
        let leaving = self.is_leaving();
        let pools = self.serving.mode != PoolMode::Session;
        let half_sent = pools && self.stops_in_a_message();
        let stalled = (pools
            && !leaving
            && self.leaves_answers_unread()
            && is_over(write, backend.lending.progress))
            || ((leaving || half_sent) && is_over(read, backend.lending.progress))
            || (half_sent && !read.is_zero() && backend.to_server.crawls(read, now));
        stalled.then_some(backend.lending.progress)
    }
}

impl<S: Socket> Backend<S> {
    /// Its client has taken or sent bytes.
    pub(crate) fn gets_on(&mut self, now: Time) {
        self.lending.progress = now;
        self.unpark();
    }

    /// It works again, or its client has left it: it counts against the pool's size.
    #[inline]
    pub(crate) fn unpark(&mut self) {
        if self.lending.unpark() {
            self.pool.lock().unpark();
        }
    }
}
