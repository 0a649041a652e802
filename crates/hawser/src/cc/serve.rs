//! `hawser cc serve`: the far end of a comparison.
//!
//! # Invariants
//! * no client without the token is served, and none beyond [`Limits::clients`]
//! * a transfer ends: by time, by bytes, or because the other end was silent for [`SILENCE_MAX`]

use std::fmt;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use hawser_sys::congestion;
use hawser_sys::mptcp::kernel::release;

use super::datagrams::Datagrams;
use super::relay;
use super::transfer::{Answer, Direction, Order, SECONDS_MAX, Transfer, receive, send};
use super::wire::{Token, WireError, greet, read_message, write_message};

/// The port where it listens unless told otherwise.
pub const PORT_DEFAULT: u16 = 6480;
/// How long the other end may neither send nor take anything.
pub const SILENCE_MAX: Duration = Duration::from_secs(20);
/// How long somebody has to show the token.
const GREETING_MAX: Duration = Duration::from_secs(10);
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
        // `[::]` takes IPv4 too, where the host has IPv6 and has not been told otherwise.
        None => TcpListener::bind(("::", PORT_DEFAULT))
            .or_else(|_| TcpListener::bind(("0.0.0.0", PORT_DEFAULT))),
    }
}

/// Serves until the process ends. `say` is told of each client and what it did.
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
        let place = Place::take(&open, limits.clients);
        let (token, say) = (token.clone(), say.clone());
        let (limits, datagrams) = (limits.clone(), datagrams.clone());
        let work = move || {
            let result = one(stream, &token, &limits, datagrams.as_deref(), place.is_some());
            match result {
                Ok(did) => say(format!("{from}: {did}")),
                Err(error) => say(format!("{from}: {error}")),
            }
            drop(place);
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

fn one(
    mut stream: TcpStream,
    token: &Token,
    limits: &Limits,
    datagrams: Option<&Datagrams>,
    has_place: bool,
) -> Result<String, WireError> {
    if !has_place {
        return Err(WireError::Refused("there are as many clients as there may be".to_owned()));
    }
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(GREETING_MAX))?;
    stream.set_write_timeout(Some(SILENCE_MAX))?;
    greet(&mut stream, token)?;
    let order: Order = read_message(&mut stream)?;
    stream.set_read_timeout(Some(SILENCE_MAX))?;
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

/// What this process may use: of what is not for everybody, what the kernel gives it all the same.
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
            let _ = io::copy(&mut stream, &mut io::sink());
            Ok(format!("{} bytes sent with {}", sent.bytes, sent.algorithm))
        }
        Direction::Up => {
            let (received, sent) = receive(&mut stream)?;
            write_message(&mut stream, &received)?;
            Ok(format!("{} bytes received, sent with {}", sent.bytes, sent.algorithm))
        }
    }
}
