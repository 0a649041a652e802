//! `hawser cc serve`: the far end of a comparison.
//!
//! # Invariants
//! * no client without the token is served, and none beyond [`Limits::clients`]
//! * one that has not shown the token has one of [`NEWCOMERS_MAX`] places for [`GREETING_MAX`] in all, and
//!   none of the clients'
//! * a transfer ends: by time, by bytes, or because the other end was silent for [`SILENCE_MAX`]

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use hawser_sys::congestion;
use hawser_sys::mptcp::kernel::release;

use super::datagrams::Datagrams;
use super::relay;
use super::transfer::{Answer, Direction, Order, SECONDS_MAX, Transfer, receive, send};
use super::wire::{Token, WireError, greet, read_message, write_message};

/// The port where it listens by default.
pub const PORT_DEFAULT: u16 = 6480;
/// How long the other end may neither send nor take anything.
pub const SILENCE_MAX: Duration = Duration::from_secs(20);
/// How long a client has to show the token and send its whole request.
const GREETING_MAX: Duration = Duration::from_secs(10);
/// Connections that have not shown the token; of more, the oldest gives way.
const NEWCOMERS_MAX: usize = 64;
/// Pause after accept(2) has failed: descriptors may come free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What a client may ask for.
#[derive(Clone, Debug)]
pub struct Limits {
    /// The PostgreSQL server to which connections may be relayed: `host:port`.
    pub postgres: Option<String>,
    /// Connections at a time.
    pub clients: u32,
    /// Seconds of a transfer.
    pub seconds: u32,
    /// Bytes of a transfer.
    pub bytes: u64,
}

/// Listens: on `address`, or on all addresses.
///
/// # Errors
/// As bind(2).
pub fn listen(address: Option<SocketAddr>) -> io::Result<TcpListener> {
    match address {
        Some(address) => TcpListener::bind(address),
        // `[::]` takes IPv4 too, if the host has IPv6 and `bindv6only` is off.
        None => TcpListener::bind(("::", PORT_DEFAULT))
            .or_else(|_| TcpListener::bind(("0.0.0.0", PORT_DEFAULT))),
    }
}

/// Serves until the process ends. `say` gets a line for each client and what it did.
///
/// # Errors
/// The listener is broken.
pub fn serve(
    listener: &TcpListener,
    token: &Token,
    limits: &Limits,
    say: impl Fn(String) + Clone + Send + 'static,
) -> io::Result<()> {
    let open = Arc::new(AtomicU32::new(0));
    let newcomers = Newcomers::default();
    let datagrams = match listener.local_addr().and_then(Datagrams::bind) {
        Ok(datagrams) => Some(Arc::new(datagrams)),
        Err(error) => {
            say(format!("no figures of datagrams: UDP on the same port: {error}"));
            None
        }
    };
    loop {
        let (stream, from) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => return Err(error),
            Err(_) => {
                std::thread::sleep(ACCEPT_PAUSE);
                continue;
            }
        };
        let newcomer = newcomers.take(&stream);
        let open = open.clone();
        let (token, say) = (token.clone(), say.clone());
        let (limits, datagrams) = (limits.clone(), datagrams.clone());
        let work = move || {
            let served = || {
                let mut stream = stream;
                let order = greeted(&mut stream, &token)?;
                drop(newcomer);
                let Some(_place) = Place::take(&open, limits.clients) else {
                    return refuse(&mut stream, &"there are as many clients as there may be");
                };
                one(stream, order, &limits, datagrams.as_deref())
            };
            match served() {
                Ok(did) => say(format!("{from}: {did}")),
                Err(error) => say(format!("{from}: {error}")),
            }
        };
        // Without a thread the connection is closed, which is an answer.
        let _ = std::thread::Builder::new().name("cc".to_owned()).spawn(work);
    }
}

/// One of the places that there are.
struct Place(Arc<AtomicU32>);

impl Place {
    fn take(open: &Arc<AtomicU32>, places: u32) -> Option<Self> {
        let before = open.fetch_add(1, Ordering::AcqRel);
        let place = Self(open.clone());
        (before < places).then_some(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Connections that have not shown the token, by their age.
#[derive(Clone, Default)]
struct Newcomers(Arc<Mutex<BTreeMap<u64, TcpStream>>>);

impl Newcomers {
    fn all(&self) -> MutexGuard<'_, BTreeMap<u64, TcpStream>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes one more, for as long as what is given back lives.
    fn take(&self, stream: &TcpStream) -> Newcomer {
        let mut all = self.all();
        if all.len() >= NEWCOMERS_MAX
            && let Some((_, oldest)) = all.pop_first()
        {
            // Its thread finds out.
            let _ = oldest.shutdown(Shutdown::Both);
        }
        let number = all.keys().next_back().map_or(0, |last| last + 1);
        // Without a descriptor it has its time, but is in no way of others.
        all.extend(stream.try_clone().ok().map(|clone| (number, clone)));
        Newcomer { newcomers: self.clone(), number }
    }
}

/// One of them.
struct Newcomer {
    newcomers: Newcomers,
    number: u64,
}

impl Drop for Newcomer {
    fn drop(&mut self) {
        self.newcomers.all().remove(&self.number);
    }
}

/// A connection on which everything has to happen by a time.
struct Until<'a> {
    stream: &'a mut TcpStream,
    until: Instant,
}

impl Until<'_> {
    fn left(&self) -> io::Result<Duration> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
    }
}

impl Read for Until<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.stream.set_read_timeout(Some(self.left()?))?;
        self.stream.read(buffer)
    }
}

impl Write for Until<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.stream.set_write_timeout(Some(self.left()?))?;
        self.stream.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.stream.flush()
    }
}

/// Lets one in who has the token; what it wants.
fn greeted(stream: &mut TcpStream, token: &Token) -> Result<Order, WireError> {
    stream.set_nodelay(true)?;
    let mut greeting = Until { stream, until: Instant::now() + GREETING_MAX };
    greet(&mut greeting, token)?;
    let order = read_message(&mut greeting)?;
    stream.set_read_timeout(Some(SILENCE_MAX))?;
    stream.set_write_timeout(Some(SILENCE_MAX))?;
    Ok(order)
}

fn one(
    mut stream: TcpStream,
    order: Order,
    limits: &Limits,
    datagrams: Option<&Datagrams>,
) -> Result<String, WireError> {
    match order {
        Order::About => {
            let found = congestion::algorithms()?;
            let answer = Answer::About {
                default: found.default,
                allowed: usable(&found.allowed, &found.available),
                kernel: release(),
                seconds_max: limits.seconds.min(SECONDS_MAX),
            };
            write_message(&mut stream, &answer)?;
            Ok("asked what there is".to_owned())
        }
        Order::Transfer(transfer) => serve_transfer(stream, transfer, limits),
        Order::Datagrams => {
            let Some(datagrams) = datagrams else {
                return refuse(&mut stream, &"its port is taken for UDP");
            };
            let answer =
                |stream: &mut TcpStream, cookie| write_message(stream, &Answer::Cookie(cookie));
            let bytes = datagrams.converse(&mut stream, limits.bytes, answer)?;
            Ok(format!("{bytes} bytes of datagrams sent"))
        }
        Order::Relay { algorithm } => {
            let Some(server) = &limits.postgres else {
                return refuse(&mut stream, &"it was not started with --postgres HOST:PORT");
            };
            let to = match relay::dial(server) {
                Ok(to) => to,
                Err(error) => return refuse(&mut stream, &format!("{server}: {error}")),
            };
            if let Err(error) = congestion::set_algorithm(&stream, &algorithm) {
                return refuse(&mut stream, &error);
            }
            write_message(&mut stream, &Answer::Go)?;
            let (there, back) = relay::both_ways(&stream, &to, limits.seconds, |_, _| ())?;
            Ok(format!("relayed to {server}: {there} bytes there, {back} back"))
        }
    }
}

/// Tells the client no, and why.
fn refuse(stream: &mut TcpStream, reason: &dyn fmt::Display) -> Result<String, WireError> {
    let reason = reason.to_string();
    write_message(stream, &Answer::No(reason.clone()))?;
    Err(WireError::Refused(reason))
}

/// The algorithms that this process may use: those for all users, and those that the kernel grants
/// to it.
pub fn usable(allowed: &[String], available: &[String]) -> Vec<String> {
    let may = |name: &&String| allowed.contains(name) || congestion::probe(name).is_ok();
    available.iter().filter(may).cloned().collect()
}

fn serve_transfer(
    mut stream: TcpStream,
    mut transfer: Transfer,
    limits: &Limits,
) -> Result<String, WireError> {
    if transfer.seconds > limits.seconds {
        return refuse(&mut stream, &format!("at most {} seconds a transfer", limits.seconds));
    }
    transfer.bytes_max = transfer.bytes_max.min(limits.bytes);
    if transfer.direction == Direction::Down
        && let Err(error) = congestion::set_algorithm(&stream, &transfer.algorithm)
    {
        return refuse(&mut stream, &error);
    }
    write_message(&mut stream, &Answer::Go)?;
    match transfer.direction {
        Direction::Down => {
            let sent = send(&mut stream, &transfer)?;
            // The client closes when it has all of it; an end before that is as good.
            let until = Instant::now() + SILENCE_MAX;
            let mut last = Until { stream: &mut stream, until };
            let _ = io::copy(&mut last, &mut io::sink());
            Ok(format!("{} bytes sent with {}", sent.bytes, sent.algorithm))
        }
        Direction::Up => {
            let lasts = Duration::from_secs(transfer.seconds.into()) + SILENCE_MAX;
            let bytes_max = transfer.bytes_max;
            let mut timed = Until { stream: &mut stream, until: Instant::now() + lasts };
            let (received, sent) = receive(&mut timed, bytes_max)?;
            stream.set_write_timeout(Some(SILENCE_MAX))?;
            write_message(&mut stream, &received)?;
            Ok(format!("{} bytes received, sent with {}", sent.bytes, sent.algorithm))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cc::wire::enter;

    const TOKEN: &str = "a token for this test";

    fn server(limits: Limits) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let token = Token::new(TOKEN).unwrap();
        std::thread::spawn(move || serve(&listener, &token, &limits, |_| ()));
        address
    }

    const LIMITS: Limits = Limits { postgres: None, clients: 2, seconds: 30, bytes: 1 << 20 };

    fn ask(address: SocketAddr, order: &Order) -> Result<(TcpStream, Answer), WireError> {
        let mut stream = TcpStream::connect(address)?;
        stream.set_read_timeout(Some(GREETING_MAX))?;
        enter(&mut stream, &Token::new(TOKEN).unwrap())?;
        write_message(&mut stream, order)?;
        let answer = read_message(&mut stream)?;
        Ok((stream, answer))
    }

    #[test]
    fn those_without_the_token_take_no_place_of_a_client() {
        let address = server(LIMITS);
        let strangers: Vec<TcpStream> =
            (0..NEWCOMERS_MAX + 20).map(|_| TcpStream::connect(address).unwrap()).collect();
        let (_, answer) = ask(address, &Order::About).unwrap();
        assert!(matches!(answer, Answer::About { .. }), "{answer:?}");
        // The oldest have given way.
        let mut oldest = &strangers[0];
        oldest.set_read_timeout(Some(GREETING_MAX / 2)).unwrap();
        let said = io::copy(&mut oldest, &mut io::sink());
        assert!(said.is_ok() || said.unwrap_err().kind() == io::ErrorKind::ConnectionReset);
    }

    #[test]
    fn one_that_sends_a_byte_now_and_then_has_one_time_for_all() {
        let (mut near, mut far) = {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            (near, listener.accept().unwrap().0)
        };
        std::thread::spawn(move || {
            while near.write_all(b"x").is_ok() {
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let began = Instant::now();
        let until = began + Duration::from_millis(300);
        let mut all = [0; 1 << 20];
        let error = Until { stream: &mut far, until }.read_exact(&mut all).unwrap_err();
        assert!(matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock));
        assert!(began.elapsed() < Duration::from_secs(5));
    }

    #[test]
    fn one_client_too_many_is_refused() {
        let address = server(Limits { clients: 0, ..LIMITS });
        let (_, answer) = ask(address, &Order::About).unwrap();
        assert!(matches!(answer, Answer::No(_)), "{answer:?}");
    }

    #[test]
    fn an_upload_has_no_more_bytes_than_the_server_allows() {
        let address = server(LIMITS);
        let transfer = Transfer {
            direction: Direction::Up,
            algorithm: "any".to_owned(),
            seconds: 30,
            bytes_max: 1 << 30,
        };
        let (mut stream, answer) = ask(address, &Order::Transfer(transfer)).unwrap();
        assert!(matches!(answer, Answer::Go), "{answer:?}");
        let block = [&1000_u32.to_be_bytes()[..], &[0; 1000]].concat();
        let most = 16 << 20;
        let taken = (0..most / 1000).take_while(|_| stream.write_all(&block).is_ok()).count();
        assert!(taken < most / 1000, "all was taken");
    }
}
