//! The event loops: one thread each, which waits by epoll, and an [`Engine`] that decides.
//!
//! # Model
//! ```text
//!   a turn:  rest? ─► wait ─► clock ─► messages ─► its events ─► tick ─► answers
//!              │ messages are there: wait 0
//!              └ none: wait until the engine's next tick
//! ```
//!
//! # Invariants
//! * a loop without work sleeps; any new work wakes it
//! * a loop sleeps only after it has found its mailbox empty ([`crate::mailbox`])
//! * a turn is bounded: the events of one wait, each with a bounded number of reads, the messages
//!   that were there, those that the loop has sent to itself meanwhile, and connections with more
//!   input from the turn before; then the kernel is asked again, so that no source starves the
//!   others
//! * a message that was sent before something happened on a connection is handled before that: a
//!   cancel request never hits a query that its sender sends after it
//! * a server's connection is watched for room only after a write that did not fit: a unix socket
//!   would report room at each query, and wake the loop for nothing
//! * in the steady state a turn allocates nothing: events and messages go into reused memory
//!
//! # Time
//! The clock is read once a turn, right after the wait. All events of a turn have that time: at 7
//! us an event it is at most some 2 ms old, which is negligible for limits in seconds and saves 256
//! clock reads.
//!
//! # Why messages to other loops are sent at once
//! Collecting them until the end of the turn would save a lock (20 ns) now and then, and delay a
//! client that waits for a lent backend by up to the rest of the turn. It would save no wake-up:
//! the mailbox needs one for each sleep of the receiver, however many messages come.
//!
//! # Panics
//! A panic is a defect. It ends the connection on which it came ([`Engine::recover`]), is logged
//! with its message, and the loop continues: thousands of other connections depend on it.

mod watch;

use std::any::Any;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockWriteGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use hawser_pooler::ids::{ClientId, LoopId};
use hawser_pooler::parts::identity::process_ids::OwnProcessIds;
use hawser_pooler::relay::backend::PoolRef;
use hawser_pooler::relay::inside::InsideSession;
use hawser_pooler::relay::message::{Event, QUEUE_FULL, SERVER_CLOSED, SERVER_SILENT};
use hawser_pooler::relay::succession::MovedClient;
use hawser_pooler::relay::{
    CancelKey, CancelRequest, Engine, Host, Readiness, Socket, ToLoop, Token, limits,
};
use hawser_pooler::time::Time;
use hawser_sys::eventfd::EventFd;

use crate::logging::{self, Seldom, audit};
use crate::loops::{Control, Loops};
use crate::mailbox::{LoopMailbox, Mailbox};
use crate::socket::{self, Conn, Wire};
use crate::spans::{Slow, Spans};
use crate::tally::ErrorCounts;

use watch::{Poller, Watches};

/// The start of a statement that a rule logs.
const LOGGED_TEXT_BYTES_MAX: usize = 1024;

/// How often, at most, a loop notifies the control side that start values may have changed: any
/// client may change its own role's.
pub const CHANGES_PERIOD: Duration = Duration::from_millis(50);

/// What the loops count and leave for others beside the log.
#[derive(Debug)]
pub struct Logged {
    /// Errors that clients got.
    pub errors: Arc<ErrorCounts>,
    /// Slow transactions, for a collector.
    pub spans: Spans,
}

/// A listening socket whose connections begin on the loops.
pub trait Accept: Send + Sync {
    /// The socket. It does not block.
    fn socket(&self) -> BorrowedFd<'_>;
    /// Accepts connections that wait, a bounded number, on the thread of this loop. Never waits.
    fn accept(&self, home: LoopId);
}

/// What all threads of the loops share.
struct Shared<S: Socket> {
    loops: Loops<S>,
    watches: Watches,
    /// Listening sockets that the loops watch.
    listeners: RwLock<Vec<Option<Arc<dyn Accept>>>>,
    mailboxes: Box<[LoopMailbox<S>]>,
    /// Turns that each loop has made.
    turns: Box<[AtomicU64]>,
    control: Control<S>,
    logged: Arc<Logged>,
    stop: AtomicBool,
}

/// Event loops that run. They end when this is dropped, with all their connections.
pub struct Reactors<S: Socket> {
    shared: Arc<Shared<S>>,
    threads: Vec<JoinHandle<()>>,
}

impl<S: Socket + AsFd + AsMut<Wire> + 'static> Reactors<S> {
    /// Starts `count` loops; their [`Time`] counts from now. `hash_key` keys their hash maps, `processes` are the process ids that
    /// clients may have.
    ///
    /// # Errors
    /// There are no descriptors or no thread left.
    ///
    /// # Panics
    /// If `count` is 0.
    pub fn start(
        count: u16,
        hash_key: u64,
        processes: OwnProcessIds,
        control: Control<S>,
        logged: Arc<Logged>,
    ) -> io::Result<Self> {
        let mut mailboxes: Vec<LoopMailbox<S>> = Vec::new();
        for _ in 0..count {
            mailboxes.push(Arc::new(Mailbox::new(EventFd::new()?)));
        }
        let wakes: Vec<&EventFd> = mailboxes.iter().map(|mailbox| mailbox.waker()).collect();
        let watches = Watches::new(&wakes)?;
        let shared = Arc::new(Shared {
            loops: Loops::new(mailboxes.clone(), Instant::now()),
            watches,
            listeners: RwLock::default(),
            mailboxes: mailboxes.into(),
            turns: (0..count).map(|_| AtomicU64::new(0)).collect(),
            control,
            logged,
            stop: AtomicBool::new(false),
        });
        // Loops that have started already end with it if a later one cannot start.
        let mut reactors = Self { shared: shared.clone(), threads: Vec::new() };
        for id in (0..count).map(LoopId) {
            let shared = shared.clone();
            let thread =
                std::thread::Builder::new().name(format!("loop-{id}")).spawn(move || {
                    // Made here, so that its memory is near the processor that the thread runs on.
                    Reactor::new(id, shared, hash_key, processes).run();
                })?;
            reactors.threads.push(thread);
        }
        Ok(reactors)
    }
}

impl<S: Socket> Reactors<S> {
    /// The handle by which other threads reach the loops.
    pub fn loops(&self) -> &Loops<S> {
        &self.shared.loops
    }

    /// The listeners of the loops.
    pub fn listeners(&self) -> Listeners<S> {
        Listeners(self.shared.clone())
    }

    /// How many turns a loop has made: a loop that spins shows here.
    pub fn turns(&self, id: LoopId) -> u64 {
        self.shared.turns.get(usize::from(id.0)).map_or(0, |turns| turns.load(Ordering::Relaxed))
    }

    /// Whether all loops run. A loop ends by itself only if the kernel refuses to wait.
    pub fn all_run(&self) -> bool {
        self.threads.iter().all(|thread| !thread.is_finished())
    }
}

impl<S: Socket> Drop for Reactors<S> {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        for mailbox in &self.shared.mailboxes {
            // Also if it does not rest: it may be about to.
            mailbox.waker().signal().unwrap_or_else(|error| {
                tracing::error!(%error, "an event loop could not be woken to end");
            });
        }
        for thread in self.threads.drain(..) {
            // Panics are caught and logged within.
            let _ = thread.join();
        }
    }
}

impl<S: Socket> std::fmt::Debug for Reactors<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reactors").field("count", &self.threads.len()).finish_non_exhaustive()
    }
}

/// Listening sockets that all loops watch, so that a connection begins on the first loop that has
/// time for it.
pub struct Listeners<S: Socket = Conn>(Arc<Shared<S>>);

impl<S: Socket> Clone for Listeners<S> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<S: Socket> std::fmt::Debug for Listeners<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listeners").finish_non_exhaustive()
    }
}

impl<S: Socket> Listeners<S> {
    /// All loops accept from this socket, until what is returned is dropped. A loop that is
    /// accepting then finishes that step.
    ///
    /// # Errors
    /// As epoll_ctl(2), and if there are too many.
    pub fn watch(&self, listener: Arc<dyn Accept>) -> io::Result<WatchedListener<S>> {
        let mut listeners = self.lock();
        let at = listeners.iter().position(Option::is_none).unwrap_or(listeners.len());
        if at >= watch::LISTENERS_MAX {
            return Err(io::Error::other("too many listening sockets"));
        }
        // Stored before its first event.
        match listeners.get_mut(at) {
            Some(place) => *place = Some(listener.clone()),
            None => listeners.push(Some(listener.clone())),
        }
        drop(listeners);
        let watched = WatchedListener { all: self.clone(), at, listener };
        self.0.watches.watch_listener(watched.listener.socket(), at)?;
        Ok(watched)
    }

    fn lock(&self) -> RwLockWriteGuard<'_, Vec<Option<Arc<dyn Accept>>>> {
        self.0.listeners.write().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A listening socket that the loops watch until this is dropped.
pub struct WatchedListener<S: Socket = Conn> {
    all: Listeners<S>,
    at: usize,
    listener: Arc<dyn Accept>,
}

impl<S: Socket> Drop for WatchedListener<S> {
    fn drop(&mut self) {
        self.all.0.watches.unwatch_listener(self.listener.socket());
        self.all.lock()[self.at] = None;
    }
}

/// One event loop.
struct Reactor<S: Socket> {
    engine: Engine<S>,
    host: LoopHost<S>,
    mailbox: LoopMailbox<S>,
    poller: Poller,
    /// Events handled in this turn.
    seen: usize,
    /// Messages to handle, the last one first: popped one by one, so that a panic at one does not
    /// lose the others.
    inbox: Vec<ToLoop<S>>,
    /// What is being handled.
    about: Option<Token>,
}

impl<S: Socket + AsFd + AsMut<Wire>> Reactor<S> {
    fn new(id: LoopId, shared: Arc<Shared<S>>, hash_key: u64, processes: OwnProcessIds) -> Self {
        let count = u16::try_from(shared.mailboxes.len()).unwrap_or(u16::MAX);
        Self {
            engine: Engine::new(id, count, hash_key, processes),
            mailbox: shared.mailboxes[usize::from(id.0)].clone(),
            poller: Poller::new(),
            host: LoopHost { id, shared, own: Vec::new(), changed: None },
            seen: 0,
            inbox: Vec::new(),
            about: None,
        }
    }

    fn run(mut self) {
        let shared = self.host.shared.clone();
        let at = usize::from(self.host.id.0);
        while !shared.stop.load(Ordering::Acquire) {
            let timeout = self.timeout();
            if let Err(error) = self.poller.wait(&shared.watches, self.host.id, timeout) {
                // EBADF, EFAULT, EINVAL (epoll_wait(2)): none is expected, and none would go away.
                tracing::error!(event_loop = at, %error, "the event loop ends: it cannot wait");
                return;
            }
            self.mailbox.woken();
            self.turn(shared.loops.now());
            // Only this thread writes it: no locked addition.
            let turns = shared.turns[at].load(Ordering::Relaxed);
            shared.turns[at].store(turns + 1, Ordering::Relaxed);
        }
    }

    /// How long to wait for events. Announces the rest if that is more than 0.
    fn timeout(&mut self) -> Duration {
        if !self.host.own.is_empty() {
            return Duration::ZERO;
        }
        if self.mailbox.try_rest(&mut self.inbox) {
            return self.engine.next_tick();
        }
        self.inbox.reverse();
        Duration::ZERO
    }

    /// Handles all that has come, also after panics.
    fn turn(&mut self, now: Time) {
        self.seen = 0;
        loop {
            // Unwind safety: a panic leaves only the engine half changed, and `recover` repairs
            // that; this loop's own state (events, `inbox`) is advanced before the engine is
            // called. Locks that other threads share are never held while their content is half
            // changed.
            let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.work(now))) else { return };
            self.after_panic(&*panic, now);
        }
    }

    /// Handles all that has come. Continues where it was when called again after a panic.
    fn work(&mut self, now: Time) {
        // Those that have come while the loop asked for events go before these: a client that knows
        // that its cancel request has been handled may send a query at once.
        if !self.inbox.is_empty() {
            self.see_to_messages(now);
        }
        self.mailbox.take(&mut self.inbox);
        if !self.inbox.is_empty() {
            self.inbox.reverse();
            self.see_to_messages(now);
        }
        while let Some(event) = self.poller.next() {
            self.seen += 1;
            if let Some(at) = watch::listener_of(event.data) {
                self.accept(at, now);
                continue;
            }
            let token = Token::from_bits(event.data);
            let ready = Readiness {
                readable: event.readable,
                writable: event.writable,
                hangup: event.hangup,
                broken: event.broken,
            };
            self.about = Some(token);
            self.engine.on_event(&mut self.host, token, ready, now);
            if self.seen.is_multiple_of(limits::EVENTS_BEFORE_ANSWERS_MAX) {
                self.engine.flush(&mut self.host, now);
            }
        }
        // Once: messages that it sends to itself while it handles these come in the next turn.
        if !self.host.own.is_empty() {
            self.inbox.extend(self.host.own.drain(..).rev());
            self.see_to_messages(now);
        }
        self.about = None;
        // Due work may lead to answers.
        self.engine.tick(&mut self.host, now);
        self.engine.flush(&mut self.host, now);
        if socket::take_blocked() {
            self.watch_for_room();
        }
    }

    /// Accepts from a listening socket, if it is still watched, and handles the results: clients
    /// that have logged in, most of them for this loop, and cancel requests, whose senders may send
    /// a query now.
    fn accept(&mut self, at: usize, now: Time) {
        self.about = None;
        let listeners = self.host.shared.listeners.read().unwrap_or_else(PoisonError::into_inner);
        let listener = listeners.get(at).cloned().flatten();
        drop(listeners); // stopping the watch need not wait for a login
        if let Some(listener) = listener {
            listener.accept(self.host.id);
        }
        self.mailbox.take(&mut self.inbox);
        self.inbox.reverse();
        self.see_to_messages(now);
    }

    /// A socket has not taken all: servers' connections are watched for room from now on.
    #[cold]
    fn watch_for_room(&mut self) {
        let (watches, id) = (&self.host.shared.watches, self.host.id);
        self.engine.watch_for_room(|socket, token| {
            if let Err(error) = watches.tell_of_room(socket, token, id) {
                // At most ENOMEM. Its client runs into a limit, or leaves.
                let event_loop = self.host.id.0;
                tracing::error!(event_loop, %error, "a server's connection cannot be watched");
            }
        });
    }

    fn see_to_messages(&mut self, now: Time) {
        while let Some(message) = self.inbox.pop() {
            self.about = match &message {
                ToLoop::Lend { client, .. } | ToLoop::Kill { client, .. } => {
                    Some(Token::Client(client.slot))
                }
                ToLoop::CancelDone(place)
                | ToLoop::CancelUnanswered(place)
                | ToLoop::Departed(place) => Some(Token::Backend(*place)),
                _ => None,
            };
            self.engine.on_message(&mut self.host, message, now);
        }
    }

    fn after_panic(&mut self, panic: &(dyn Any + Send), now: Time) {
        let about = self.about.take();
        let said = panic
            .downcast_ref::<&str>()
            .copied()
            .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
            .unwrap_or("something unprintable");
        let event_loop = self.host.id.0;
        tracing::error!(
            event_loop,
            ?about,
            panic = said,
            "internal error: what it happened on is closed; please report it"
        );
        let recover = || self.engine.recover(&mut self.host, about, now);
        if catch_unwind(AssertUnwindSafe(recover)).is_err() {
            // Its generation distinguishes late events of that connection: it is left alone.
            tracing::error!(event_loop, ?about, "internal error while closing");
        }
    }
}

/// The host of one loop's engine.
struct LoopHost<S: Socket> {
    id: LoopId,
    shared: Arc<Shared<S>>,
    /// Messages to this loop itself: no lock, no wake-up.
    own: Vec<ToLoop<S>>,
    /// When the control side was last notified of a change of start values.
    changed: Option<Instant>,
}

impl<S: Socket + AsFd + AsMut<Wire>> Host<S> for LoopHost<S> {
    fn watch(&mut self, socket: &S, token: Token) -> io::Result<()> {
        self.shared.watches.watch(socket, token, self.id)
    }

    fn unwatch(&mut self, socket: &S, home: LoopId) {
        self.shared.watches.unwatch(socket, home);
    }

    fn send(&mut self, to: LoopId, message: ToLoop<S>) {
        if to == self.id {
            self.own.push(message);
        } else {
            self.shared.loops.send(to, message);
        }
    }

    fn open(&mut self, pool: &PoolRef<S>, home: LoopId) {
        self.shared.control.open(pool.clone(), home);
    }

    fn open_listener(&mut self, pool: &PoolRef<S>, home: LoopId) {
        self.shared.control.open_listener(pool.clone(), home);
    }

    fn vacate(&mut self, pool: &PoolRef<S>, database: &[u8], client: ClientId) {
        self.shared.control.vacate(pool.id, database, client);
    }

    fn cancel(&mut self, request: CancelRequest) {
        self.shared.control.cancel(request);
    }

    fn give(&mut self, home: LoopId, client: MovedClient<S>) {
        self.shared.control.give(home, client);
    }

    fn go_inside(&mut self, client: ClientId, socket: &mut S, session: InsideSession<S>) {
        self.shared.control.go_inside(client, socket.as_mut().share(), session);
    }

    fn call_back(&mut self, client: ClientId) {
        self.shared.control.call_back(client);
    }

    fn cancel_inside(&mut self, client: ClientId, request: Option<CancelKey>) {
        self.shared.control.cancel_inside(client, request);
    }

    fn part(&mut self, socket: &S) {
        // (One that is broken already cannot be shut down.)
        let _ = hawser_sys::stream::shutdown_sending(socket);
    }

    fn event(&mut self, event: Event<'_>) {
        let (connections, disconnections) = logging::of_connections();
        match event {
            Event::ClientEntered { client, about, database, user } => {
                if connections {
                    let (peer, user) = (&about.peer, about.user().unwrap_or(user));
                    tracing::info!(
                        %client, address = peer.to_string(), port = peer.port(), database, user,
                        tls = about.tls(), "client logged in"
                    );
                }
            }
            Event::ClientClosed { client, about, database, user, reason } => {
                let is_overload = reason.starts_with(QUEUE_FULL);
                if is_overload {
                    warn_of_overload(database, user);
                }
                let (peer, user) = (&about.peer, about.user().unwrap_or(user));
                // (The address becomes text only if the event is written.)
                if disconnections && !is_overload {
                    tracing::info!(
                        %client, address = peer.to_string(), port = peer.port(), database, user, reason,
                        "client left"
                    );
                } else {
                    tracing::debug!(
                        %client, address = peer.to_string(), port = peer.port(), database, user, reason,
                        "client left"
                    );
                }
            }
            Event::BackendClosed { backend, database, user, reason } => {
                if reason == SERVER_CLOSED || reason == SERVER_SILENT {
                    tracing::warn!(%backend, database, user, reason, "server connection lost");
                } else if disconnections {
                    tracing::info!(%backend, database, user, reason, "server connection closed");
                } else {
                    tracing::debug!(%backend, database, user, reason, "server connection closed");
                }
            }
            Event::SlowTransaction {
                client,
                about,
                database,
                user,
                wait_us,
                duration_us,
                parent,
            } => {
                let (address, port) = (about.peer.to_string(), about.peer.port());
                let user = about.user().unwrap_or(user);
                let (wait_ms, duration_ms) = (milliseconds(wait_us), milliseconds(duration_us));
                tracing::info!(
                    %client, address, port, database, user, wait_ms, duration_ms, "slow transaction"
                );
                let spans = &self.shared.logged.spans;
                if spans.are_wanted() {
                    spans.leave(Slow {
                        address: address.into(),
                        port,
                        database: database.into(),
                        user: user.into(),
                        wait: Duration::from_micros(wait_us),
                        duration: Duration::from_micros(duration_us),
                        ended: SystemTime::now(),
                        parent,
                    });
                }
            }
            Event::RuleMatched { .. } => write_matched(&event),
            Event::ReportUnreadable { database, user, error } => {
                crate::pools::open::say_unreadable(database, user, error);
            }
            Event::SettingsMismatch { backend, database, user } => {
                tracing::error!(
                    %backend, database, user,
                    "the server reports other settings than this session was given: its connection is closed"
                );
            }
            Event::ErrorSent { error } => self.shared.logged.errors.count(error),
            Event::CatalogChanged { pool, .. } => {
                // A dropped notification is no worse than a change made elsewhere: the servers are
                // asked now and then anyway.
                let now = Instant::now();
                if self.changed.is_none_or(|before| now - before >= CHANGES_PERIOD) {
                    self.changed = Some(now);
                    self.shared.control.expect_change(pool);
                }
            }
        }
    }
}

/// The queue of a pool is full: said once a minute, and not of each client that is refused.
fn warn_of_overload(database: &str, user: &str) {
    static REFUSED: Seldom = Seldom::new();
    if let Some(left_out) = REFUSED.may(&format!("{database}\0{user}")) {
        tracing::warn!(
            database,
            user,
            left_out,
            "queue_limit is reached: clients that would wait are refused (53300)"
        );
    }
}

/// A statement that a rule has matched goes to the audit, or to the log, also if there is no audit.
fn write_matched(event: &Event<'_>) {
    let Event::RuleMatched {
        rule,
        audits,
        refused,
        client,
        about,
        database,
        user,
        application_name,
        text,
    } = *event
    else {
        return;
    };
    let (address, port) = (about.peer.to_string(), about.peer.port());
    let statement = || audit::Statement {
        at: SystemTime::now(),
        rule: rule.into(),
        refused,
        user: user.into(),
        database: database.into(),
        address: address.as_str().into(),
        port,
        application_name: application_name.into(),
        text: text[..text.len().min(audit::TEXT_BYTES_MAX)].into(),
        bytes: text.len(),
    };
    if audits && audit::take(statement).is_some() {
        return;
    }
    let text = &text[..text.len().min(LOGGED_TEXT_BYTES_MAX)];
    tracing::info!(
        rule, refused, %client, address, port, database, user,
        text = String::from_utf8_lossy(text).replace(char::is_control, " "),
        "statement matched by a rule"
    );
}

#[expect(clippy::cast_precision_loss, reason = "exact below 285 years")]
fn milliseconds(us: u64) -> f64 {
    us as f64 / 1e3
}

#[cfg(test)]
mod tests;
