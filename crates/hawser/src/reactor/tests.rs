//! Running loops over real sockets, with a server of a few lines.

use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::mpsc;

use hawser_pooler::ids::{BackendId, PoolId, ServerAddressId};
use hawser_pooler::lending::{Limits, PoolSettings, SharedPool};
use hawser_pooler::relay::message::{Listed, Page, PageRequest, ToLoop};
use hawser_pooler::relay::{
    BackendSeed, ClientAbout, ClientSecret, NewClient, PeerAddress, PoolMode,
};
use hawser_pooler::session::settings::Settings;
use hawser_pooler::wire::error::{ClientError, SqlState};
use tokio::sync::mpsc::UnboundedReceiver;

use super::*;
use crate::loops::Order;
use crate::socket::Wire;
use crate::spans::Spans;

const FIRST: PageRequest = PageRequest { listed: Listed::Clients, addresses: false, from: 0 };

const SOON: Duration = Duration::from_secs(10);

/// A loop that reads this panics.
const POISON: &[u8] = b"poison";

/// The server answers this with [`POISON`].
const CURSE: &str = "curse";

/// A unix socket for the loops.
struct Plain(Wire);

impl Plain {
    /// A loop's end and the other, which blocks.
    fn pair() -> (Self, UnixStream) {
        let (near, far) = UnixStream::pair().unwrap();
        near.set_nonblocking(true).unwrap();
        far.set_read_timeout(Some(SOON)).unwrap();
        (Self(OwnedFd::from(near).into()), far)
    }
}

impl Socket for Plain {
    type Permit = ();

    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.0.recv(buf)?;
        let poisoned = buf[..read].windows(POISON.len()).any(|bytes| bytes == POISON);
        assert!(!poisoned, "a test's own panic");
        Ok(read)
    }

    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.send(buf)
    }
}

impl AsMut<Wire> for Plain {
    fn as_mut(&mut self) -> &mut Wire {
        &mut self.0
    }
}

impl AsFd for Plain {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn message(tag: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = vec![tag];
    bytes.extend_from_slice(&u32::try_from(body.len() + 4).unwrap().to_be_bytes());
    bytes.extend_from_slice(body);
    bytes
}

fn query(text: &str) -> Vec<u8> {
    message(b'Q', format!("{text}\0").as_bytes())
}

fn read_message(stream: &mut UnixStream) -> io::Result<(u8, Vec<u8>)> {
    let mut head = [0; 5];
    stream.read_exact(&mut head)?;
    let length = u32::from_be_bytes(head[1..].try_into().unwrap()) as usize;
    let mut body = vec![0; length - 4];
    stream.read_exact(&mut body)?;
    Ok((head[0], body))
}

/// Answers each query with one row, its own text.
fn serve(mut stream: UnixStream) {
    stream.set_read_timeout(None).unwrap();
    while let Ok((tag, body)) = read_message(&mut stream) {
        if tag != b'Q' {
            return;
        }
        let text = &body[..body.len() - 1];
        let text = if text == CURSE.as_bytes() { POISON } else { text };
        let mut row = 1u16.to_be_bytes().to_vec();
        row.extend_from_slice(&u32::try_from(text.len()).unwrap().to_be_bytes());
        row.extend_from_slice(text);
        let mut answer = message(b'D', &row);
        answer.extend(message(b'C', b"SELECT 1\0"));
        answer.extend(message(b'Z', b"I"));
        if stream.write_all(&answer).is_err() {
            return;
        }
    }
}

/// A client's end.
struct Client(UnixStream);

impl Client {
    /// Reads up to ReadyForQuery; gives the rows.
    fn until_ready(&mut self) -> io::Result<Vec<Vec<u8>>> {
        let mut rows = Vec::new();
        loop {
            match read_message(&mut self.0)? {
                (b'Z', _) => return Ok(rows),
                (b'D', body) => rows.push(body[6..].to_vec()),
                _ => {}
            }
        }
    }

    fn ask(&mut self, text: &str) -> io::Result<Vec<Vec<u8>>> {
        self.0.write_all(&query(text))?;
        self.until_ready()
    }
}

/// Loops, a pool, and a control side that opens backends at once.
struct World {
    reactors: Reactors<Plain>,
    pool: PoolRef<Plain>,
    /// Cancel requests that the loops have asked for.
    cancels: Arc<AtomicU64>,
}

fn open_backends(
    orders: &mut UnboundedReceiver<Order<Plain>>,
    loops: &Loops<Plain>,
    cancels: &AtomicU64,
) {
    let mut opened = 0;
    while let Some(order) = orders.blocking_recv() {
        if matches!(order, Order::Cancel(_)) {
            cancels.fetch_add(1, Ordering::Relaxed);
        }
        let Order::Open { pool, home } = order else { continue };
        let (socket, far) = Plain::pair();
        std::thread::spawn(move || serve(far));
        opened += 1;
        let seed = BackendSeed {
            id: BackendId(opened),
            socket,
            parameters: Arc::default(),
            hand_over: None,
            report: None,
            process: 1,
            key: vec![0; 4].into(),
            server: ServerAddressId(0),
            epoch: pool.epoch(),
            opened: loops.now(),
            permit: Box::new(()),
            pool,
        };
        loops.send(home, ToLoop::Opened(Box::new(seed)));
    }
}

impl World {
    fn new(loops: u16, pool_size: u32) -> Self {
        let (control, mut orders) = Control::new();
        let logged = Arc::new(Logged { errors: Arc::default(), spans: Spans::default() });
        let reactors = Reactors::start(loops, 1, OwnProcessIds::all(0), control, logged).unwrap();
        let mut settings = PoolSettings::default();
        settings.limits = Limits { size: pool_size, ..settings.limits };
        let pool =
            Arc::new(SharedPool::new(PoolId(1), "db", "me", settings, usize::from(loops), 1));
        let handle = reactors.loops().clone();
        let cancels = Arc::new(AtomicU64::new(0));
        let counted = cancels.clone();
        std::thread::spawn(move || open_backends(&mut orders, &handle, &counted));
        Self { reactors, pool, cancels }
    }

    /// A client of this loop, greeted.
    fn client(&self, home: u16) -> Client {
        let (socket, far) = Plain::pair();
        let about = ClientAbout::new(PeerAddress::Unix, None, "", self.reactors.loops().now());
        let client = NewClient {
            socket,
            pool: self.pool.clone(),
            mode: PoolMode::Transaction,
            start: Settings::EMPTY,
            greeting: message(b'R', &[0; 4]),
            secret: ClientSecret::Short([0; 4]),
            about: Box::new(about),
            permit: (),
            early: Vec::new(),
            exclusive: false,
        };
        self.reactors.loops().send(LoopId(home), ToLoop::Adopt(Box::new(client)));
        let mut client = Client(far);
        assert_eq!(client.until_ready().unwrap(), [] as [Vec<u8>; 0]);
        client
    }

    /// Its first clients.
    fn page(&self, home: u16) -> Page {
        let (sender, receiver) = mpsc::channel();
        let reply = Box::new(move |page| sender.send(page).unwrap());
        self.reactors.loops().send(LoopId(home), ToLoop::Page(FIRST, reply));
        receiver.recv_timeout(SOON).unwrap()
    }
}

#[test]
fn a_query_goes_to_the_server_and_its_answer_back() {
    let world = World::new(1, 1);
    let mut client = world.client(0);
    assert_eq!(client.ask("select 'a'").unwrap(), [b"select 'a'"]);
    assert_eq!(client.ask("select 'b'").unwrap(), [b"select 'b'"]);
}

#[test]
fn clients_of_several_loops_share_one_backend() {
    const LOOPS: u16 = 3;
    const QUERIES: usize = 300;
    let world = World::new(LOOPS, 1);
    std::thread::scope(|scope| {
        for number in 0..2 * LOOPS {
            let mut client = world.client(number % LOOPS);
            scope.spawn(move || {
                for query in 0..QUERIES {
                    let text = format!("select {number}, {query}");
                    assert_eq!(client.ask(&text).unwrap(), [text.as_bytes()]);
                }
            });
        }
    });
    assert_eq!(world.pool.lock().total(), 1, "more backends than the pool may have");
}

#[test]
fn what_a_server_does_not_take_at_once_goes_on_when_it_does() {
    let world = World::new(2, 1);
    let mut clients = [world.client(0), world.client(1)];
    for round in 0..3 {
        for client in &mut clients {
            let text = "x".repeat(3_000_000 + round);
            assert_eq!(client.ask(&text).unwrap(), [text.as_bytes()]);
            assert_eq!(client.ask("SELECT 1").unwrap(), [b"SELECT 1"]);
        }
    }
}

#[test]
fn a_loop_without_work_sleeps() {
    let world = World::new(2, 1);
    let mut client = world.client(0);
    client.ask("select 1").unwrap();
    // Deadlines that the query has set end within some ticks of 50 ms; then only the second's.
    std::thread::sleep(Duration::from_millis(300));
    let turns = |id| world.reactors.turns(LoopId(id));
    let before = [turns(0), turns(1)];
    std::thread::sleep(Duration::from_millis(500));
    let made = [turns(0) - before[0], turns(1) - before[1]];
    // 10 ticks and some slack; a loop that spins makes a hundred thousand.
    assert!(made.iter().all(|made| *made <= 15), "turns in half an idle second: {made:?}");
}

#[test]
fn a_message_ends_a_sleep() {
    let world = World::new(1, 1);
    for _ in 0..10 {
        std::thread::sleep(Duration::from_millis(20));
        let before = Instant::now();
        world.page(0);
        // The loop would look by itself after a second.
        assert!(before.elapsed() < Duration::from_millis(500), "{:?}", before.elapsed());
    }
}

#[test]
fn a_cancel_that_came_before_a_query_does_not_hit_it() {
    let world = World::new(1, 1);
    let mut client = world.client(0);
    for _ in 0..20 {
        // The loop is busy while both come: it finds them together.
        let (go_on, wait) = mpsc::channel::<()>();
        let (busy, is_busy) = mpsc::channel::<()>();
        let hold = Box::new(move |_| {
            busy.send(()).unwrap();
            wait.recv().unwrap();
        });
        let loops = world.reactors.loops();
        loops.send(LoopId(0), ToLoop::Page(FIRST, hold));
        is_busy.recv_timeout(SOON).unwrap();
        let process = hawser_pooler::parts::identity::process_ids::PROCESS_ID_FIRST;
        loops.send(LoopId(0), ToLoop::Cancel { process, key: vec![0; 4].into() });
        client.0.write_all(&query("SELECT 1")).unwrap();
        go_on.send(()).unwrap();
        assert_eq!(client.until_ready().unwrap().len(), 1);
    }
    assert_eq!(world.cancels.load(Ordering::Relaxed), 0);
}

#[test]
fn a_panic_ends_the_connection_it_came_on_and_no_other() {
    let world = World::new(1, 2);
    let mut good = world.client(0);
    assert_eq!(good.ask("select 1").unwrap().len(), 1);
    let mut bad = world.client(0);
    bad.0.write_all(&query("poison")).unwrap();
    assert!(bad.until_ready().is_err(), "it must be closed");
    assert_eq!(good.ask("select 2").unwrap(), [b"select 2"]);
    let mut late = world.client(0);
    assert_eq!(late.ask("select 3").unwrap(), [b"select 3"]);
    assert_eq!(world.page(0).clients.len(), 2);
    assert!(world.reactors.all_run());
}

#[test]
fn a_panic_on_a_backend_frees_its_place_in_the_pool() {
    let world = World::new(1, 1);
    let mut bad = world.client(0);
    let mut good = world.client(0);
    bad.0.write_all(&query(CURSE)).unwrap();
    assert!(bad.until_ready().is_err(), "it must be closed");
    assert_eq!(good.ask("select 1").unwrap(), [b"select 1"]);
    assert_eq!(world.pool.lock().total(), 1);
}

#[test]
fn loops_end_with_their_connections() {
    let world = World::new(2, 1);
    let mut clients = [world.client(0), world.client(1)];
    drop(world);
    for client in &mut clients {
        assert_eq!(client.0.read(&mut [0; 1]).unwrap(), 0);
    }
}

#[test]
fn a_killed_client_gets_the_reason() {
    let world = World::new(1, 1);
    let mut client = world.client(0);
    let error = ClientError::fatal(SqlState::CONNECTION_FAILURE, "enough");
    world.reactors.loops().send(LoopId(0), ToLoop::KillAll { pool: None, error });
    let (tag, body) = read_message(&mut client.0).unwrap();
    assert_eq!(tag, b'E');
    assert!(body.windows(6).any(|bytes| bytes == b"enough"));
    assert_eq!(client.0.read(&mut [0; 1]).unwrap(), 0);
}

/// A listening socket that records on which loop each connection was accepted; one at a time.
struct Recorder {
    listener: UnixListener,
    homes: mpsc::Sender<u16>,
}

impl Accept for Recorder {
    fn socket(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    fn accept(&self, home: LoopId) {
        if self.listener.accept().is_ok() {
            self.homes.send(home.0).unwrap();
        }
    }
}

impl Recorder {
    /// The recorder, its address, and the channel with the loops.
    fn listen(test: &str) -> (Arc<Self>, SocketAddr, mpsc::Receiver<u16>) {
        let name = format!("hawser test {} {test}", std::process::id());
        let address = SocketAddr::from_abstract_name(name).unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (homes, accepted) = mpsc::channel();
        (Arc::new(Self { listener, homes }), address, accepted)
    }
}

/// Keeps a loop busy until what is returned is dropped.
fn hold(world: &World, home: u16) -> mpsc::Sender<()> {
    let (go_on, wait) = mpsc::channel::<()>();
    let (busy, is_busy) = mpsc::channel::<()>();
    let held = Box::new(move |_| {
        busy.send(()).unwrap();
        let _ = wait.recv();
    });
    world.reactors.loops().send(LoopId(home), ToLoop::Page(FIRST, held));
    is_busy.recv_timeout(SOON).unwrap();
    go_on
}

#[test]
fn a_connection_begins_on_a_loop_that_has_time_for_it() {
    let world = World::new(2, 1);
    let (listener, address, accepted) = Recorder::listen("time");
    let _watched = world.reactors.listeners().watch(listener).unwrap();
    for busy in [0, 1, 0] {
        let _held = hold(&world, busy);
        let _client = UnixStream::connect_addr(&address).unwrap();
        assert_eq!(accepted.recv_timeout(SOON).unwrap(), 1 - busy);
    }
}

#[test]
fn all_connections_that_wait_are_accepted_also_if_a_loop_takes_them_one_by_one() {
    let world = World::new(2, 1);
    let (listener, address, accepted) = Recorder::listen("all");
    let clients: Vec<_> = (0..20).map(|_| UnixStream::connect_addr(&address).unwrap()).collect();
    let _watched = world.reactors.listeners().watch(listener).unwrap();
    clients.iter().for_each(|_| assert!(accepted.recv_timeout(SOON).unwrap() < 2));
    let turns = || [0, 1].map(|id| world.reactors.turns(LoopId(id)));
    let before = turns();
    std::thread::sleep(Duration::from_millis(200));
    let made: Vec<u64> = turns().iter().zip(before).map(|(after, before)| after - before).collect();
    assert!(made.iter().all(|made| *made <= 10), "turns while nobody connects: {made:?}");
}

#[test]
fn a_listener_that_is_not_watched_any_more_is_left_alone_and_closed() {
    let world = World::new(2, 1);
    let listeners = world.reactors.listeners();
    let (listener, address, accepted) = Recorder::listen("end");
    let watched = listeners.watch(listener.clone()).unwrap();
    let _first = UnixStream::connect_addr(&address).unwrap();
    accepted.recv_timeout(SOON).unwrap();
    drop(watched);
    let _second = UnixStream::connect_addr(&address).unwrap();
    assert!(accepted.recv_timeout(Duration::from_millis(100)).is_err());
    // Watched again, at once: what has come meanwhile is reported.
    let watched = listeners.watch(listener).unwrap();
    accepted.recv_timeout(SOON).unwrap();
    drop(watched);
    let refused = || UnixStream::connect_addr(&address).is_err();
    let until = Instant::now() + SOON;
    while !refused() {
        assert!(Instant::now() < until, "a loop keeps the socket open");
        std::thread::sleep(Duration::from_millis(5));
    }
}
