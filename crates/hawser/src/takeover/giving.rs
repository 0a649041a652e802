//! What a process does for its successor.
//!
//! # Model
//! One conversation at a time, on a socket beside the control socket. Up to `Ready` nothing changes here.
//! Then this process accepts no more, and its loops give clients away, at most [`UNDER_WAY_MAX`] each at a
//! time: others go on here. This process keeps the socket and the permit of each one until the
//! successor has answered.
//!
//! # Server connections
//! Those beyond the number of remaining clients, or unused for [`UNUSED_AFTER`], are closed. The
//! successor gets the number of the others, and opens so many fewer of a pool. If clients stay for
//! longer than [`SHARED_AFTER`], each process has at least half of a pool's size.
//!
//! # Invariants
//! * the asking process belongs to this process's user, or to root
//! * if the conversation ends before `Done`, this process takes back the clients under way, once
//!   the successor can no longer confirm them. It accepts again once the successor's process has
//!   ended, and not before; if that lives, this one ends when its clients have left

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hawser_pooler::ids::{LoopId, PoolId};
use hawser_pooler::lending::Limits;
use hawser_pooler::relay::ToLoop;
use hawser_pooler::relay::succession::MovedClient;
use hawser_sys::stream::peer_uid;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;

use super::order::Order;
use super::process::OtherProcess;
use super::record::{Bytes, Client, Pool};
use super::wire::{FORMAT, Message, Said, Writer, frame, split};
use super::{Given, Succession, give_back};
use crate::cancel::Cancels;
use crate::listeners::Purpose;
use crate::lock::locked;
use crate::peers::Received;
use crate::phase::{Phase, Standing};
use crate::pools::{PoolEntry, Pools, idle};
use crate::process::notify;
use crate::shared::Shared;
use crate::socket::Conn;

/// Clients of each loop that may be on their way: each waits for as long as that takes.
const UNDER_WAY_MAX: usize = 32;
/// How often server connections are looked at.
const TEND_PERIOD: Duration = Duration::from_millis(20);
/// How long a server connection may be idle here.
const UNUSED_AFTER: Duration = Duration::from_secs(1);
/// After how long the remaining clients count as ones that stay.
pub(super) const SHARED_AFTER: Duration = Duration::from_secs(5);
/// How often the successor gets the number of remaining clients.
const REST_PERIOD: Duration = Duration::from_secs(1);
/// How long a process that connects has to send its Hello.
const HELLO_WAIT: Duration = Duration::from_secs(5);
/// How long a candidate has to become ready: until then there is no other one.
const READY_WAIT: Duration = Duration::from_secs(120);
/// How long a process may take to end after its conversation has broken off: its sockets are closed
/// before that.
pub(super) const END_WAIT: Duration = Duration::from_secs(2);
/// How long connected clients have to log in, if the configuration sets no bound.
const LOGIN_WAIT: Duration = Duration::from_secs(60);
/// Why a process is not replaced now.
const PAUSED: &str = "a database is paused: RESUME first";
/// A pause after an error of accept(2).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Carries out what the successor passes on for the clients of this process; an error says why it has not
/// been done.
pub type Obey =
    Box<dyn Fn(Order) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send>> + Send + Sync>;

/// What this process has that a successor takes.
pub struct Giver {
    /// The loops, the limits and the gates.
    pub shared: Arc<Shared>,
    /// The clients' pools.
    pub pools: Arc<Pools>,
    /// Where cancel requests for clients that stay go.
    pub cancels: Arc<Cancels>,
    /// Both processes.
    pub succession: Arc<Succession>,
    /// Carries out commands.
    pub obey: Obey,
}

/// Answers processes that want to be the successor. Never ends.
pub async fn answer(listener: UnixListener, giver: Arc<Giver>) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                // As a task: the next one must get the answer that this one is at it.
                tokio::spawn(converse(giver.clone(), stream));
            }
            Err(error) => {
                tracing::warn!(%error, "could not accept a connection of a successor");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// The place of the candidate for the succession.
struct Candidacy(Arc<Giver>);

impl Candidacy {
    fn of(giver: &Arc<Giver>, pid: u32) -> Result<Self, String> {
        if giver.shared.phase() != Phase::Serving {
            return Err("it is shutting down".to_owned());
        }
        // A client that waits there would not see a RESUME that goes to the successor.
        if giver.shared.gates.some_paused() {
            return Err(PAUSED.to_owned());
        }
        if !giver.succession.serves() {
            return Err("it has a successor already".to_owned());
        }
        // That one accepts again if this one ends: that excludes a third one.
        if let Some(before) = giver.succession.process_before() {
            return Err(format!(
                "process {before}, whose place it has taken, still has clients: wait until they have left, or \
                 end that process (kill {before})"
            ));
        }
        let mut candidate = locked(&giver.succession.candidate);
        if let Some(other) = *candidate {
            return Err(format!("process {other} is about to take its place already"));
        }
        *candidate = Some(pid);
        Ok(Self(giver.clone()))
    }
}

impl Drop for Candidacy {
    fn drop(&mut self) {
        *locked(&self.0.succession.candidate) = None;
    }
}

async fn converse(giver: Arc<Giver>, stream: UnixStream) {
    let own = hawser_sys::process::effective_uid();
    match peer_uid(&stream) {
        Ok(uid) if uid == own || uid == 0 => {}
        Ok(uid) => {
            tracing::warn!(uid, "takeover refused: the process belongs to another user");
            return;
        }
        Err(error) => return tracing::warn!(%error, "a successor of an unknown user: refused"),
    }
    let (mut reader, writer) = split(stream);
    let Ok(Ok((Message::Hello { format, version, pid }, _))) =
        tokio::time::timeout(HELLO_WAIT, reader.next()).await
    else {
        return;
    };
    let candidacy = match format {
        FORMAT => Candidacy::of(&giver, pid),
        _ => Err(format!("it speaks version {FORMAT} of the takeover's protocol, not {format}")),
    };
    let successor = OtherProcess::connected(pid, reader.socket());
    let successor = successor.map_err(|error| format!("its process cannot be watched: {error}"));
    let (_candidacy, successor) = match candidacy.and_then(|it| Ok((it, successor?))) {
        Ok(both) => both,
        Err(reason) => {
            tracing::warn!(pid, version, reason, "takeover refused");
            let _ = writer.send(&Message::Refused { reason }, &[]).await;
            return;
        }
    };
    tracing::info!(pid, version, "takeover: a successor is starting");
    let listening = giver.succession.listening();
    let (welcome, held) = welcome(&giver, &listening);
    let fds: Vec<_> = listening.iter().map(|(_, fd)| fd.as_fd()).collect();
    let ready = async {
        writer.send(&welcome, &fds).await?;
        reader.next().await
    };
    if let Err(why) = is_ready(ready, READY_WAIT).await {
        return tracing::warn!(
            pid,
            why,
            "the successor has not started to serve: this process continues"
        );
    }
    if giver.shared.phase() != Phase::Serving {
        return;
    }
    let Some(disabled) = giver.shared.gates.give_to(pid) else {
        tracing::warn!(pid, PAUSED, "takeover refused");
        let _ = writer.send(&Message::Refused { reason: PAUSED.to_owned() }, &[]).await;
        return;
    };
    Giving::new(giver, writer, successor, held).run(reader.listen(), disabled).await;
}

/// Waits until the successor can serve.
async fn is_ready(
    said: impl Future<Output = io::Result<(Message, Vec<OwnedFd>)>>,
    within: Duration,
) -> Result<(), String> {
    match tokio::time::timeout(within, said).await {
        Ok(Ok((Message::Ready, _))) => Ok(()),
        Ok(Ok(_)) => Err("it has said something else".to_owned()),
        Ok(Err(error)) => Err(format!("it has ended: {error}")),
        Err(_) => Err(format!(
            "it has not started within {} s: end it, and see its log",
            within.as_secs()
        )),
    }
}

/// The welcome for the successor, and the server connections of each pool in it.
fn welcome(
    giver: &Giver,
    listening: &[(Purpose, Arc<OwnedFd>)],
) -> (Message, HashMap<PoolId, u32>) {
    let known = giver.pools.all();
    let pools: Vec<_> =
        known.iter().filter(|entry| may_go(entry)).map(|entry| record(entry)).collect();
    let held = pools.iter().map(|pool| (PoolId(pool.number), pool.held)).collect();
    let welcome = Message::Welcome {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        listening: listening.iter().map(|(purpose, _)| purpose.clone()).collect(),
        pools,
        clients: giver.shared.limits.client_count(),
        servers: giver.shared.limits.server_count(),
    };
    (welcome, held)
}

/// Whether clients of the pool may go over.
fn may_go(entry: &PoolEntry) -> bool {
    entry.key.replication.is_none() && !entry.key.shared && entry.client_count() > 0
}

/// Server connections of a pool.
fn held(entry: &PoolEntry) -> u32 {
    entry.pool.lock().total()
}

fn record(entry: &PoolEntry) -> Pool {
    let key = &entry.key;
    let pair = |(name, value): &(Box<[u8]>, Box<[u8]>)| (Bytes(name.clone()), Bytes(value.clone()));
    Pool {
        number: entry.pool.id.0,
        database: key.database.clone(),
        user: key.user.clone(),
        connect_only: key.connect_only.iter().map(pair).collect(),
        credentials: entry.route.load().login.credentials.to_record(),
        held: held(entry),
        asks: entry.pool.asking().has_asked(),
    }
}

/// A client that the successor has not answered for.
struct UnderWay {
    home: LoopId,
    client: MovedClient<Conn>,
}

/// A conversation with the successor, from `Ready` on.
struct Giving {
    giver: Arc<Giver>,
    writer: Writer,
    successor: OtherProcess,
    begun: Instant,
    next: u64,
    under_way: HashMap<u64, UnderWay>,
    /// What the successor knows of each pool's server connections.
    held: HashMap<PoolId, u32>,
    /// How many it has taken, and how many it has not.
    taken: u64,
    kept: u64,
    rest_at: Instant,
    /// Pools have half of their size here.
    shares: bool,
}

/// How a conversation ends.
enum End {
    /// No client is left here.
    Done,
    /// It has broken off.
    Broken(io::Error),
}

impl Giving {
    fn new(
        giver: Arc<Giver>,
        writer: Writer,
        successor: OtherProcess,
        held: HashMap<PoolId, u32>,
    ) -> Self {
        let now = Instant::now();
        Self {
            giver,
            writer,
            successor,
            begun: now,
            next: 1,
            under_way: HashMap::new(),
            held,
            taken: 0,
            kept: 0,
            rest_at: now,
            shares: false,
        }
    }

    async fn run(mut self, mut incoming: mpsc::UnboundedReceiver<Said>, disabled: Vec<String>) {
        let giver = self.giver.clone();
        let pid = self.successor.pid;
        giver.succession.standing.send_replace(Standing::Given(pid));
        // From the main process of the unit, which this is: see sd_notify(3).
        notify(&[sd_notify::NotifyState::MainPid(pid)]);
        let (gives, given) = mpsc::unbounded_channel();
        *locked(&giver.succession.gives) = Some(gives);
        let clients = giver.shared.limits.client_count();
        tracing::info!(
            pid,
            clients,
            "the successor serves: clients move between their transactions"
        );
        let end = match self.writer.send(&Message::Given { disabled }, &[]).await {
            Ok(()) => {
                giver.shared.loops.send_all(|| ToLoop::GiveClients(UNDER_WAY_MAX));
                self.go_on(&mut incoming, given).await
            }
            Err(error) => End::Broken(error),
        };
        *locked(&giver.succession.gives) = None;
        match end {
            End::Done => {
                tracing::info!(
                    pid,
                    taken = self.taken,
                    "the successor has all clients: this process ends"
                );
                let _ = self.writer.send(&Message::Done, &[]).await;
                self.end();
            }
            End::Broken(error) => self.part(incoming, &error).await,
        }
    }

    /// This process ends.
    fn end(&self) {
        self.giver.shared.phase.send_if_modified(|phase| {
            let serving = *phase == Phase::Serving;
            *phase = (*phase).max(Phase::Draining);
            serving
        });
    }

    /// The conversation has broken off: this process goes on with the clients that the successor has not taken.
    async fn part(mut self, mut incoming: mpsc::UnboundedReceiver<Said>, error: &io::Error) {
        // Its messages until now are read to the end, and it can send no more: a client that it has
        // not taken by now is served only here.
        self.writer.end();
        while let Some(said) = incoming.recv().await {
            if let Ok((message, _)) = said {
                self.hear(message);
            }
        }
        self.giver.shared.loops.send_all(|| ToLoop::KeepClients);
        for (_, UnderWay { home, client }) in self.under_way.drain() {
            give_back(&self.giver.shared.loops, home, client);
        }
        let (pid, taken) = (self.successor.pid, self.taken);
        if tokio::time::timeout(END_WAIT, self.successor.ended()).await.is_err() {
            tracing::error!(
                pid, taken, %error,
                "the conversation with the successor has broken off, and it lives: it accepts, and this process \
                 serves the clients that it has until they leave"
            );
            if self.all_leave_before_the_successor_ends().await {
                tracing::info!(pid, "the last client has left: this process ends");
                return self.end();
            }
        }
        self.serve_again(error);
    }

    async fn all_leave_before_the_successor_ends(&mut self) -> bool {
        let mut tend = tokio::time::interval(TEND_PERIOD);
        tend.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = self.successor.ended() => return false,
                _ = tend.tick() => {}
            }
            self.close_unneeded();
            self.share_pools();
            if self.is_left_by_all() {
                return true;
            }
        }
    }

    /// The successor's process has ended: this one serves as before, with the clients that it still has.
    fn serve_again(self, error: &io::Error) {
        let giver = &self.giver;
        if giver.shared.phase() != Phase::Serving {
            return;
        }
        for entry in giver.pools.all().iter().filter(|_| self.shares) {
            entry.set_limits(&giver.shared, entry.pool.settings().limits.clone());
        }
        giver.shared.gates.take_back();
        notify(&[sd_notify::NotifyState::MainPid(std::process::id())]);
        tracing::error!(
            pid = self.successor.pid, taken = self.taken, %error,
            "the successor has ended, and the clients that it had taken are disconnected: this process serves again"
        );
        giver.succession.standing.send_replace(Standing::Serving);
    }

    async fn go_on(
        &mut self,
        incoming: &mut mpsc::UnboundedReceiver<Said>,
        mut given: mpsc::UnboundedReceiver<Given>,
    ) -> End {
        let mut tend = tokio::time::interval(TEND_PERIOD);
        tend.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let end = loop {
            let result = tokio::select! {
                message = incoming.recv() => match message {
                    Some(Ok((message, _))) => {
                        self.hear(message);
                        Ok(())
                    }
                    Some(Err(error)) => Err(error),
                    None => Err(io::ErrorKind::UnexpectedEof.into()),
                },
                Some((home, client)) = given.recv() => self.send(home, client).await,
                _ = tend.tick() => match self.tend().await {
                    Ok(true) => break End::Done,
                    Ok(false) => Ok(()),
                    Err(error) => Err(error),
                },
            };
            if let Err(error) = result {
                break End::Broken(error);
            }
        };
        given.close();
        while let Ok((home, client)) = given.try_recv() {
            give_back(&self.giver.shared.loops, home, client);
        }
        end
    }

    /// Sends a client over.
    async fn send(&mut self, home: LoopId, client: MovedClient<Conn>) -> io::Result<()> {
        let id = client.pool.id;
        if !self.held.contains_key(&id) {
            let Some(entry) = self.giver.pools.by_id(id) else {
                give_back(&self.giver.shared.loops, home, client); // (a pool that a client has is there)
                return Ok(());
            };
            let pool = record(&entry);
            self.held.insert(id, pool.held);
            if let Err(error) = self.writer.send(&Message::Pool(pool), &[]).await {
                give_back(&self.giver.shared.loops, home, client);
                return Err(error);
            }
        }
        let number = self.next;
        self.next += 1;
        let record = Box::new(Client::of(&client.record, self.giver.shared.loops.now()));
        let Some(frame) = frame(&Message::Client { number, pool: id.0, record }) else {
            give_back(&self.giver.shared.loops, home, client); // its statements are too long
            self.room(home);
            return Ok(());
        };
        let sent = self.writer.send_frame(&frame, &[client.socket.as_fd()]).await;
        self.under_way.insert(number, UnderWay { home, client });
        sent
    }

    /// One more client of a loop may be under way.
    fn room(&self, home: LoopId) {
        self.giver.shared.loops.send(home, ToLoop::GiveClients(1));
    }

    fn hear(&mut self, message: Message) {
        match message {
            Message::Taken { number } => {
                if let Some(UnderWay { home, client }) = self.under_way.remove(&number) {
                    self.taken += 1;
                    drop(client); // the successor's socket is another descriptor of the same
                    self.room(home);
                }
            }
            Message::Kept { number, reason } => {
                if let Some(UnderWay { home, client }) = self.under_way.remove(&number) {
                    if self.kept == 0 {
                        tracing::warn!(reason, "the successor does not take a client: it stays");
                    }
                    self.kept += 1;
                    give_back(&self.giver.shared.loops, home, client);
                    self.room(home);
                }
            }
            Message::Cancel { number, process, key } => {
                let (giver, writer) = (self.giver.clone(), self.writer.clone());
                tokio::spawn(async move {
                    let request = Received::new(process, &key.0);
                    giver.cancels.in_this_service(&request).await;
                    let _ = writer.send(&Message::Cancelled { number }, &[]).await;
                });
            }
            Message::Command { number, order } => {
                let (giver, writer) = (self.giver.clone(), self.writer.clone());
                tokio::spawn(async move {
                    let obeyed = (giver.obey)(order).await;
                    let _ =
                        writer.send(&Message::Obeyed { number, error: obeyed.err() }, &[]).await;
                });
            }
            Message::Ending => {
                tracing::info!("the successor is shutting down: so does this process");
                self.end();
            }
            _ => {}
        }
    }

    /// Closes unneeded server connections, and reports the rest. True if no client is left.
    async fn tend(&mut self) -> io::Result<bool> {
        for (pool, count) in self.close_unneeded() {
            self.writer.send(&Message::Held { pool: pool.0, count }, &[]).await?;
        }
        self.share_pools();
        if self.is_left_by_all() {
            return Ok(true);
        }
        if self.rest_at.elapsed() >= REST_PERIOD {
            self.rest_at = Instant::now();
            let clients = self.giver.shared.limits.client_count();
            self.writer.send(&Message::Rest { clients }, &[]).await?;
        }
        Ok(false)
    }

    /// Closes unneeded server connections. Returns the pools that no longer have as many as the
    /// successor knows.
    fn close_unneeded(&mut self) -> Vec<(PoolId, u32)> {
        let mut changed = Vec::new();
        for entry in self.giver.pools.all() {
            let clients = u32::try_from(entry.client_count()).unwrap_or(u32::MAX);
            let mut more = held(&entry).saturating_sub(clients);
            idle::close_idle(&self.giver.shared.loops, &entry.pool, |_, idle| {
                let unneeded = more > 0 || idle >= UNUSED_AFTER;
                more = more.saturating_sub(1);
                unneeded
            });
            let (pool, count) = (entry.pool.id, held(&entry));
            if let Some(told) = self.held.get_mut(&pool)
                && *told != count
            {
                *told = count;
                changed.push((pool, count));
            }
        }
        changed
    }

    /// Halves the pools, once the clients that are left are taken for ones that stay.
    fn share_pools(&mut self) {
        if !self.shares && self.begun.elapsed() >= SHARED_AFTER {
            self.shares = true;
            for entry in self.giver.pools.all() {
                let limits = entry.pool.settings().limits.clone();
                let half = Limits { size: limits.size.div_ceil(2), ..limits };
                entry.set_limits(&self.giver.shared, half);
            }
        }
    }

    /// Whether neither clients nor connections before their login need this process.
    fn is_left_by_all(&self) -> bool {
        let config = self.giver.shared.config.load();
        let wait = config.reload.timeouts.client_login_timeout.get().unwrap_or(LOGIN_WAIT);
        // (Consoles may stay for any time: they are cut off then.)
        let all_in =
            self.giver.shared.limits.connection_count() == 0 || self.begun.elapsed() >= wait;
        all_in && self.giver.shared.limits.client_count() == 0 && self.under_way.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_that_does_not_come_to_serve_is_waited_for_no_longer_than_that() {
        let within = Duration::from_millis(20);
        let never = is_ready(std::future::pending(), within).await.unwrap_err();
        assert!(never.contains("has not started within"), "{never}");
        let other = is_ready(async { Ok((Message::Done, Vec::new())) }, within).await;
        assert_eq!(other.unwrap_err(), "it has said something else");
        let gone = is_ready(async { Err(io::ErrorKind::UnexpectedEof.into()) }, within).await;
        assert!(gone.unwrap_err().starts_with("it has ended"));
        assert_eq!(is_ready(async { Ok((Message::Ready, Vec::new())) }, within).await, Ok(()));
    }
}
