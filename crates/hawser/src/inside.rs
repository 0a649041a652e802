//! Clients that their server serves itself, without this process between them.
//!
//! # Model
//! ```text
//!   client ─────────────┬───────────────────────────► loop: at rest, usual ─► a room, by its descriptor
//!                       │ its socket                                              │
//!   server's backends ◄─┴─ one epoll set, one shared memory, a link each ─────────┘
//! ```
//! A pool with `inside_size` has a [`room::Room`]: shared memory with a slot for each client, and an
//! epoll set in which they are. So many server connections of its own become the room's backends, by
//! `hawser.serve_inside()` of the server's extension (extension/inside.c): whichever is idle takes the
//! next client that has sent something. What is not plain comes back over the backend's link, and the
//! loop goes on with it ([`hawser_pooler::relay::inside`]); in a transaction, or when one has left something
//! in the session, client and backend come back as a pair.
//!
//! # Invariants
//! * a link joins the room for which this process has made its token, and no other
//! * this process alone puts clients into the epoll set, and takes them out
//! * without backends, or while one may have statements of an older schema, no client goes inside,
//!   and those that are there come back
//! * all clients of a room have settings under which plans give the same
//! * clients of shared pools, or with a limit that only a loop applies, stay with the loops, and so do those
//!   whose TLS session the kernel does not take ([`crate::tls::kernel`])

mod link;
mod memory;
mod room;

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use hawser_pooler::ids::{ClientId, PoolId, ServerAddressId};
use hawser_pooler::relay::inside::{BackFromInside, InsideSession, PairFromInside};
use hawser_pooler::relay::{CancelKey, ToLoop};
use tokio::net::UnixListener;
use tokio::sync::oneshot;
use tokio::time::{MissedTickBehavior, interval};

use crate::cancel::servers::{ToServers, warn_not_reached};
use crate::lock::locked;
use crate::phase::Phase;
use crate::pools::PoolEntry;
use crate::pools::open::Openings;
use crate::pools::session::Session;
use crate::process::random_u64;
use crate::shared::Shared;
use crate::socket::Conn;
use crate::takeover::Succession;
use room::Room;

/// What follows the control socket's path: the extension appends the same.
const SUFFIX: &str = ".inside";
/// How often it is looked which rooms there should be, and with how many backends.
const LOOK_PERIOD: Duration = Duration::from_millis(100);
/// A pause after an error of accept(2).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Where backends join, given the control socket.
pub fn socket_path(control_socket: &Path) -> PathBuf {
    let mut path = control_socket.as_os_str().to_owned();
    path.push(SUFFIX);
    path.into()
}

/// A backend that is about to join.
struct Expected {
    room: Arc<Room>,
    server: ServerAddressId,
    process: u32,
    key: Box<[u8]>,
    /// Dropped when its link ends.
    joined: oneshot::Sender<Pair>,
}

/// A client that comes back with its backend.
struct Pair {
    back: BackFromInside,
    /// The client's last message awaits ReadyForQuery.
    owed: bool,
}

/// Backends that are about to join, by their tokens.
type Expectations = Mutex<HashMap<String, Expected>>;

/// A backend of a room, and the end of its link.
type Serving = (Session, oneshot::Receiver<Pair>);

/// All rooms.
pub struct Inside {
    shared: Arc<Shared>,
    openings: Arc<Openings>,
    to_servers: Arc<ToServers>,
    succession: Arc<Succession>,
    /// The control socket; unset: nothing is configured.
    control: OnceLock<PathBuf>,
    rooms: Mutex<HashMap<PoolId, Arc<Room>>>,
    expected: Expectations,
}

impl Inside {
    /// Without rooms.
    pub fn new(
        shared: Arc<Shared>,
        openings: Arc<Openings>,
        to_servers: Arc<ToServers>,
        succession: Arc<Succession>,
    ) -> Self {
        let (control, rooms, expected) = Default::default();
        Self { shared, openings, to_servers, succession, control, rooms, expected }
    }

    /// Backends can join at the socket beside this one.
    pub fn listens_beside(&self, control_socket: &Path) {
        // The server compares it with what its own configuration says.
        let path = std::path::absolute(control_socket);
        let _ = self.control.set(path.unwrap_or_else(|_| control_socket.to_owned())); // once
    }

    fn room_of(&self, pool: PoolId) -> Option<Arc<Room>> {
        locked(&self.rooms).get(&pool).cloned()
    }

    fn room_with(&self, client: ClientId) -> Option<Arc<Room>> {
        locked(&self.rooms).values().find(|room| room.has(client)).cloned()
    }

    /// A client goes inside, or back at once.
    pub fn put(&self, client: ClientId, fd: Arc<OwnedFd>, session: &InsideSession<Conn>) {
        let room = self.room_of(session.pool.id);
        if !room.is_some_and(|room| room.put(client, fd, session)) {
            let back = ToLoop::BackFromInside(BackFromInside::at_rest(client));
            self.shared.loops.send(client.home, back);
        }
    }

    /// Whether the server has, or may have, clients of this pool inside.
    pub fn serves(&self, pool: PoolId) -> bool {
        locked(&self.rooms).contains_key(&pool)
    }

    /// A client is wanted back.
    pub fn call_back(&self, client: ClientId) {
        if let Some(room) = self.room_with(client) {
            room.call_back(client);
        }
    }

    /// Cancels what a client runs inside.
    pub async fn cancel(&self, client: ClientId, request: Option<CancelKey>) {
        let Some(room) = self.room_with(client) else { return };
        let Some(target) = room.begin_cancel(client) else { return };
        // From now on its backend waits for the signal before it runs anything else.
        drop(request);
        let (server, process, within) = (target.server, target.process, self.to_servers.within());
        let sent = self.to_servers.cancel(server, process, &target.key, within).await;
        if let Some(Err(failed)) = sent {
            warn_not_reached(&failed.error);
        }
        room.end_cancel(&target);
    }

    /// Takes in backends that join. Never ends.
    pub async fn listen(self: Arc<Self>, listener: UnixListener) {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let inside = self.clone();
                    tokio::spawn(async move { link::serve(stream, &inside.expected).await });
                }
                Err(error) => {
                    tracing::warn!(%error, "could not accept a connection of a server's backend");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    /// Keeps rooms as the configuration says. Ends at once where nothing is configured at the start.
    pub async fn run(self: Arc<Self>) {
        let Some(control) = self.control.get() else { return };
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let cores = u32::try_from(cores).unwrap_or(u32::MAX);
        let mut look = interval(LOOK_PERIOD);
        look.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            look.tick().await;
            let serves = self.shared.phase() == Phase::Serving && self.succession.serves();
            let pools = self.openings.pools.all();
            let may = |entry: &PoolEntry| {
                entry.key.replication.is_none()
                    && !entry.key.shared
                    && entry.pool.knows_functions()
                    && !self.shared.gates.is_paused(&entry.pool.database)
            };
            let mut wanted = HashSet::new();
            for entry in pools.iter().filter(|entry| serves && may(entry)) {
                let route = entry.route.load();
                let (size, places) = (route.inside_size, route.inside_places);
                // One that may not serve on is emptied, and another takes its place.
                let may_serve = self.room_of(entry.pool.id).is_none_or(|room| room.may_serve());
                if size > 0 && entry.client_count() > 0 && may_serve {
                    wanted.insert(entry.pool.id);
                    let places = if places == 0 { cores } else { places };
                    self.fill(entry, size as usize, places, control);
                }
            }
            let gone = locked(&self.rooms)
                .extract_if(|pool, room| !wanted.contains(pool) && room.empties())
                .collect::<Vec<_>>();
            gone.into_iter().for_each(|(_, room)| room.close());
        }
    }

    /// Has as many backends opened as the pool's room lacks.
    fn fill(self: &Arc<Self>, entry: &Arc<PoolEntry>, size: usize, places: u32, control: &Path) {
        let room = match self.room_of(entry.pool.id) {
            Some(room) => room,
            None => match Room::new(entry.pool.clone(), self.shared.loops.clone()) {
                Ok(room) => {
                    let room = Arc::new(room);
                    locked(&self.rooms).insert(entry.pool.id, room.clone());
                    room
                }
                Err(error) => {
                    tracing::warn!(%error, "there is no memory for clients inside");
                    return;
                }
            },
        };
        room.look(size, places);
        while let Some(opening) = room.open_one(size) {
            let (inside, entry, room) = (self.clone(), entry.clone(), room.clone());
            let control = control.to_owned();
            tokio::spawn(async move {
                let begun = inside.open_one(&entry, &room, &control).await;
                drop(opening);
                match begun {
                    // It serves until its link ends.
                    Ok((session, joined)) => {
                        room.opened();
                        if let Ok(pair) = joined.await {
                            inside.give_pair(&entry, &room, session, pair);
                        }
                    }
                    Err(reason) => room.not_opened(&reason),
                }
            });
        }
    }

    /// A client goes on with its backend, on its loop.
    fn give_pair(&self, entry: &PoolEntry, room: &Room, session: Session, pair: Pair) {
        let Pair { mut back, owed } = pair;
        let home = back.client.home;
        let message = match self.openings.to_seed(entry, session) {
            Ok(mut backend) => {
                // It counts as the room's until it ends.
                backend.permit = Box::new((backend.permit, room.pair()));
                ToLoop::PairFromInside(Box::new(PairFromInside { back, backend, owed }))
            }
            Err(error) => {
                tracing::warn!(%error, "a client inside has lost its server connection");
                back.lost = true;
                ToLoop::BackFromInside(back)
            }
        };
        self.shared.loops.send(home, message);
    }

    /// Opens a server connection, and makes it a backend of the room.
    async fn open_one(
        &self,
        entry: &PoolEntry,
        room: &Arc<Room>,
        control: &Path,
    ) -> Result<Serving, String> {
        let route = entry.route.load_full();
        let opened = self.openings.dial_ready(entry, &route, false).await;
        let mut session = opened.map_err(|error| error.to_string())?;
        let token = format!("{:016x}{:016x}", random_u64(), random_u64());
        let (joined, ended) = oneshot::channel();
        let dialled = session.dialled();
        if dialled.entered.report.is_none() {
            return Err("the server has no extension that reports what sessions hold".to_owned());
        }
        let expected = Expected {
            room: room.clone(),
            server: dialled.server,
            process: dialled.entered.process,
            key: dialled.entered.key.clone(),
            joined,
        };
        locked(&self.expected).insert(token.clone(), expected);
        let path = control.display().to_string().replace('\'', "''");
        let sql = format!("SELECT hawser.serve_inside('{path}', '{token}')");
        let within = route.target.connect_timeout;
        let ran = tokio::time::timeout(within, session.ask().run(&sql)).await;
        session.answered();
        locked(&self.expected).remove(&token);
        match ran {
            Ok(Ok(answer)) => match answer.error {
                None => Ok((session, ended)),
                Some(error) => Err(error.message),
            },
            Ok(Err(error)) => Err(error.to_string()),
            Err(_) => Err("the server has not answered in time".to_owned()),
        }
    }
}
