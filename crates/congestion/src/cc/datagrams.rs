//! What a path carries without any congestion control: trains of datagrams.
//!
//! # Model
//! ```text
//!   client                      TCP, after the token          server
//!   Order::Datagrams                                     ──►
//!                                                        ◄──  Answer::Cookie
//!   Ask::Meet                                            ──►  waits for the cookie in a datagram
//!                 ······ datagrams with the cookie ·····►     from the client's own address
//!                                                        ◄──  Said::Met
//!   Ask::Echo, Ask::Send, Ask::Count                     ──►  as often as it likes
//! ```
//! A train is sent evenly at a rate. While all of it arrives, the next has four times the rate, and while
//! the path carries twice as much when twice as much is sent, twice; then what arrives of a longer train at a quarter more than that is the
//! *ceiling*: a full queue is emptied at the rate of the path. *Loss* is what is missing of a train at
//! half of the ceiling, where no queue fills; the *round trip* the least of some echoes on the idle path.
//!
//! # Invariants
//! * the server sends to the address of the TCP connection alone, and only after a datagram from
//!   there has brought the cookie: so it cannot be aimed at a third party
//! * a train is bounded in time, rate and bytes; there is one conversation at a time
//!
//! # Limits
//! Payload is counted, without headers, as TCP's goodput is. UDP that a firewall drops gives no figures,
//! and no error either: the transfers go on.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hawser_sys::random::random_bytes;
use serde::{Deserialize, Serialize};

use super::transfer::Direction;
use super::wire::{WireError, read_message, write_message};

/// Payload of a datagram: with IPv6 and some tunnels it is still one packet.
const DATAGRAM_BYTES: usize = 1_400;
const COOKIE_BYTES: usize = 16;
/// After the cookie: which train.
const HEADER_BYTES: usize = COOKIE_BYTES + 4;
/// In the number of a train: it is over. Sent some times, for one that meets a full queue is lost.
const OVER: u32 = 1 << 31;
const OVER_TIMES: u32 = 4;
/// A train is no longer.
const TRAIN_MAX: Duration = Duration::from_secs(5);
/// Nor faster, in bits a second.
const RATE_MAX: u64 = 10_000_000_000;
/// What the search begins with.
const RATE_FIRST: u64 = 1_000_000;
/// Trains of the search.
const TRAIN_SHORT: Duration = Duration::from_millis(250);
/// The train that tells the ceiling.
const TRAIN_CEILING: Duration = Duration::from_millis(1_500);
/// The train that tells the loss.
const TRAIN_LOSS: Duration = Duration::from_secs(3);
/// Twice as much sent, and less than this many times as much arrives: the path is full.
const GROWTH_MIN: f64 = 1.5;
/// This much of what was sent has arrived: the path is far from full.
const CLEAN_MIN: f64 = 0.98;
/// A sender that gives less of what it was asked for is the limit itself.
const SENT_MIN: f64 = 0.85;
/// Nothing comes for so long: the train is over.
const QUIET: Duration = Duration::from_millis(300);
/// How long a cookie may take.
const MEET_MAX: Duration = Duration::from_secs(3);
/// Between two datagrams with the cookie, or two echoes.
const HELLO_EVERY: Duration = Duration::from_millis(100);
/// Echoes for the round trip.
const ECHOES: u32 = 10;

/// What a client asks for, once the server has given it a cookie.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Ask {
    /// To wait for a datagram with the cookie.
    Meet,
    /// To send back what comes, until nothing comes.
    Echo,
    /// To send a train.
    Send(Train),
    /// To count what comes of a train.
    Count(Train),
}

/// What a server answers.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Said {
    /// A datagram with the cookie has come.
    Met,
    /// None has come.
    Nothing,
    /// Echoing is over.
    Echoed,
    /// So many datagrams have been sent, in so many microseconds.
    Sent {
        /// Datagrams.
        count: u64,
        /// Microseconds.
        span_us: u64,
    },
    /// What has come of a train.
    Counted(Counted),
}

/// A train of datagrams.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Train {
    number: u32,
    bits_per_second: u64,
    milliseconds: u64,
}

impl Train {
    fn lasts(self) -> Duration {
        Duration::from_millis(self.milliseconds).min(TRAIN_MAX)
    }

    /// Datagrams that are sent, evenly: at least two.
    fn datagrams(self) -> u64 {
        let rate = u128::from(self.bits_per_second.min(RATE_MAX));
        let bits = rate * self.lasts().as_micros() / 1_000_000;
        u64::try_from(bits / (DATAGRAM_BYTES as u128 * 8)).unwrap_or(u64::MAX).max(2)
    }
}

/// What arrived of a train.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counted {
    /// Datagrams.
    pub count: u64,
    /// Microseconds from the first to the last.
    pub span_us: u64,
}

impl Counted {
    /// Bits of payload a second; 0 if less than two have come.
    #[must_use]
    pub fn rate(self) -> f64 {
        rate(self.count, self.span_us)
    }
}

fn rate(count: u64, span_us: u64) -> f64 {
    if count < 2 || span_us == 0 {
        return 0.0;
    }
    (count - 1) as f64 * DATAGRAM_BYTES as f64 * 8.0 * 1e6 / span_us as f64
}

/// What a path is by itself, in one direction. Its JSON is a contract.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PathFigures {
    /// Who sends.
    pub direction: Direction,
    /// Bits a second of payload that the path carries.
    pub ceiling: f64,
    /// The sender was the limit: the path carries at least this.
    pub at_least: bool,
    /// Lost of a train at half of that, as a share.
    pub loss: f64,
    /// The least round trip on the idle path, in milliseconds.
    pub rtt_ms: f64,
}

/// A line for each direction.
#[must_use]
pub fn table(path: &[PathFigures]) -> String {
    let line = |one: &PathFigures| {
        let end = one.direction.sender();
        let least = if one.at_least { "at least " } else { "" };
        format!(
            "path, {end} sends: datagrams {least}{:.2} Mbit/s, {:.3} % lost at half of that, round trip \
             {:.1} ms\n",
            one.ceiling / 1e6,
            one.loss * 100.0,
            one.rtt_ms
        )
    };
    path.iter().map(line).collect()
}

/// What both ends do with datagrams: the socket, and what proves who sends.
struct End<'a> {
    socket: &'a UdpSocket,
    to: SocketAddr,
    cookie: [u8; COOKIE_BYTES],
}

impl End<'_> {
    fn hello(&self, number: u32) -> io::Result<()> {
        let mut datagram = [0; HEADER_BYTES];
        datagram[..COOKIE_BYTES].copy_from_slice(&self.cookie);
        datagram[COOKIE_BYTES..].copy_from_slice(&number.to_be_bytes());
        sent(self.socket.send_to(&datagram, self.to)).map(drop)
    }

    /// Sends a train; gives how many datagrams in how many microseconds.
    fn send(&self, train: Train) -> io::Result<(u64, u64)> {
        let mut datagram = [0; DATAGRAM_BYTES];
        datagram[..COOKIE_BYTES].copy_from_slice(&self.cookie);
        datagram[COOKIE_BYTES..HEADER_BYTES].copy_from_slice(&train.number.to_be_bytes());
        random_bytes(&mut datagram[HEADER_BYTES..]);
        let began = Instant::now();
        let (all, lasts) = (train.datagrams(), train.lasts());
        let mut count = 0;
        while count < all {
            let due = lasts.mul_f64(count as f64 / all as f64);
            let now = began.elapsed();
            if now >= lasts {
                break;
            }
            if due > now {
                std::thread::sleep(due - now);
            }
            count += u64::from(sent(self.socket.send_to(&datagram, self.to))?);
        }
        let span = began.elapsed();
        for _ in 0..OVER_TIMES {
            std::thread::sleep(HELLO_EVERY / 2);
            self.hello(train.number | OVER)?;
        }
        Ok((count, micros(span)))
    }

    /// The number in the next datagram of ours, if one comes within `wait`.
    fn receive(&self, wait: Duration, from: IpAddr) -> io::Result<Option<(u32, SocketAddr)>> {
        let until = Instant::now() + wait;
        let mut datagram = [0; DATAGRAM_BYTES];
        // A timeout of nothing would be none at all.
        self.socket.set_read_timeout(Some(wait.max(Duration::from_micros(100))))?;
        loop {
            match self.socket.recv_from(&mut datagram) {
                Ok((length, address)) => {
                    let (cookie, rest) = datagram[..length].split_at(length.min(COOKIE_BYTES));
                    if cookie == self.cookie
                        && address.ip().to_canonical() == from
                        && let Some(number) = rest.first_chunk()
                    {
                        return Ok(Some((u32::from_be_bytes(*number), address)));
                    }
                }
                Err(error) if is_passing(&error) => {}
                Err(error) => return Err(error),
            }
            // What is not ours does not make it longer than twice `wait`.
            if Instant::now() >= until {
                return Ok(None);
            }
        }
    }

    /// Counts what comes of a train: until it or `over` says that it is, and nothing has come for
    /// [`QUIET`].
    fn count(&self, number: u32, from: IpAddr, over: impl Fn() -> bool) -> io::Result<Counted> {
        let mut first = None;
        let mut last = Instant::now();
        let mut count = 0;
        let mut ended = false;
        loop {
            match self.receive(HELLO_EVERY, from)? {
                Some((train, _)) if train == number => {
                    last = Instant::now();
                    first.get_or_insert(last);
                    count += 1;
                }
                other => {
                    ended |= other.is_some_and(|(train, _)| train == number | OVER);
                    if (ended || over()) && last.elapsed() >= QUIET {
                        let span = first.map_or(Duration::ZERO, |first| last - first);
                        return Ok(Counted { count, span_us: micros(span) });
                    }
                }
            }
        }
    }
}

/// Errors that pass by themselves: no datagram yet, a full queue, a port without a listener yet.
fn is_passing(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock
            | io::ErrorKind::TimedOut
            | io::ErrorKind::Interrupted
            | io::ErrorKind::ConnectionRefused
    ) || error.raw_os_error() == Some(ENOBUFS)
}

/// The interface's queue is full (include/uapi/asm-generic/errno.h).
const ENOBUFS: i32 = 105;

/// Whether a datagram has left.
fn sent(result: io::Result<usize>) -> io::Result<bool> {
    match result {
        Ok(_) => Ok(true),
        Err(error) if is_passing(&error) => Ok(false),
        Err(error) => Err(error),
    }
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// The server's socket, for one conversation at a time.
#[derive(Debug)]
pub struct Datagrams(Mutex<UdpSocket>);

impl Datagrams {
    /// At the address where it listens for TCP.
    ///
    /// # Errors
    /// As bind(2).
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        UdpSocket::bind(address).map(|socket| Self(Mutex::new(socket)))
    }

    /// Holds the server's end of a conversation, until the client ends it. `bytes_max` bounds what is
    /// sent in it.
    ///
    /// # Errors
    /// Another one is under way ([`WireError::Refused`]), or the connection ends otherwise than between
    /// two questions.
    pub fn converse(
        &self,
        stream: &mut TcpStream,
        bytes_max: u64,
        answer: impl FnOnce(&mut TcpStream, String) -> io::Result<()>,
    ) -> Result<u64, WireError> {
        let Ok(socket) = self.0.try_lock() else {
            return Err(WireError::Refused("somebody else's datagrams are under way".to_owned()));
        };
        let mut cookie = [0; COOKIE_BYTES];
        random_bytes(&mut cookie);
        answer(stream, URL_SAFE_NO_PAD.encode(cookie))?;
        let peer = stream.peer_addr()?;
        let from = peer.ip().to_canonical();
        let mut end = End { socket: &socket, to: peer, cookie };
        let mut met = false;
        let mut bytes = 0;
        loop {
            let ask = match read_message(stream) {
                Ok(ask) => ask,
                Err(WireError::Io(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Ok(bytes);
                }
                Err(error) => return Err(error),
            };
            let said = match ask {
                Ask::Meet => match end.receive(MEET_MAX, from)? {
                    Some((_, address)) => {
                        end.to = address;
                        met = true;
                        Said::Met
                    }
                    None => Said::Nothing,
                },
                Ask::Echo if met => {
                    while let Some((number, _)) = end.receive(MEET_MAX / 2, from)? {
                        end.hello(number)?;
                        if number >= ECHOES {
                            break;
                        }
                    }
                    Said::Echoed
                }
                Ask::Send(train) if met => {
                    bytes += train.datagrams().saturating_mul(DATAGRAM_BYTES as u64);
                    if bytes > bytes_max {
                        let reason = format!("at most {bytes_max} bytes a transfer");
                        return Err(WireError::Refused(reason));
                    }
                    let (count, span_us) = end.send(train)?;
                    Said::Sent { count, span_us }
                }
                Ask::Count(train) if met => {
                    let until = Instant::now() + train.lasts() + MEET_MAX;
                    let counted = end.count(train.number, from, || Instant::now() >= until)?;
                    Said::Counted(counted)
                }
                _ => return Err(WireError::Malformed("a train before the cookie")),
            };
            write_message(stream, &said)?;
        }
    }
}

/// The client's end.
pub struct Prober<'a> {
    control: TcpStream,
    end: End<'a>,
    from: IpAddr,
    trains: u32,
    rtt: Duration,
}

/// Measures a path in these directions. `None`: no datagram gets through.
///
/// # Errors
/// The control connection ends, or the server makes no sense.
pub fn measure(
    control: TcpStream,
    cookie: &str,
    directions: &[Direction],
) -> Result<Option<Vec<PathFigures>>, WireError> {
    let peer = control.peer_addr()?;
    let any: SocketAddr = if peer.is_ipv4() { ([0; 4], 0).into() } else { ([0_u16; 8], 0).into() };
    let socket = UdpSocket::bind(any)?;
    let cookie = URL_SAFE_NO_PAD.decode(cookie).ok().and_then(|bytes| bytes.try_into().ok());
    let cookie = cookie.ok_or(WireError::Malformed("a cookie"))?;
    let end = End { socket: &socket, to: peer, cookie };
    let from = peer.ip().to_canonical();
    let mut prober = Prober { control, end, from, trains: ECHOES, rtt: Duration::MAX };
    if !prober.meet()? || !prober.echo()? {
        return Ok(None);
    }
    let mut figures = Vec::new();
    for &direction in directions {
        figures.push(prober.path(direction)?);
    }
    Ok(Some(figures))
}

impl Prober<'_> {
    fn ask(&mut self, ask: Ask) -> Result<(), WireError> {
        Ok(write_message(&mut self.control, &ask)?)
    }

    /// Runs `work` until the server has answered what was asked.
    fn until_said<T>(
        &mut self,
        work: impl FnOnce(&End<'_>, &AtomicBool) -> io::Result<T>,
    ) -> Result<(Said, T), WireError> {
        let over = AtomicBool::new(false);
        let (control, end) = (&mut self.control, &self.end);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let said = read_message::<Said>(control);
                over.store(true, Ordering::Release);
                said
            });
            let done = work(end, &over);
            let said = waiting.join().map_err(|_| WireError::Malformed("a thread has panicked"))?;
            Ok((said?, done?))
        })
    }

    fn meet(&mut self) -> Result<bool, WireError> {
        self.ask(Ask::Meet)?;
        let (said, ()) = self.until_said(|end, over| {
            while !over.load(Ordering::Acquire) {
                end.hello(0)?;
                std::thread::sleep(HELLO_EVERY);
            }
            Ok(())
        })?;
        Ok(matches!(said, Said::Met))
    }

    /// The least round trip; whether any echo came.
    fn echo(&mut self) -> Result<bool, WireError> {
        self.ask(Ask::Echo)?;
        let from = self.from;
        let (_, least) = self.until_said(|end, over| {
            let mut asked: Vec<Instant> = Vec::new();
            let mut least: Option<Duration> = None;
            // How long the echo of that number has taken, if it was asked for.
            let mut note = |asked: &[Instant], number: u32| {
                if let Some(at) = asked.get((number as usize).wrapping_sub(1)) {
                    let took = at.elapsed();
                    least = Some(least.map_or(took, |least| least.min(took)));
                }
            };
            while !over.load(Ordering::Acquire) {
                // Numbers from 1 on: 0 is a hello that was late.
                let number = asked.len() as u32 + 1;
                if number <= ECHOES {
                    asked.push(Instant::now());
                    end.hello(number)?;
                }
                let until = Instant::now() + HELLO_EVERY;
                while let left = until.saturating_duration_since(Instant::now())
                    && !left.is_zero()
                    && let Some((number, _)) = end.receive(left, from)?
                {
                    note(&asked, number);
                }
            }
            // The last ones may still be under way.
            while let Some((number, _)) = end.receive(QUIET, from)? {
                note(&asked, number);
            }
            Ok(least)
        })?;
        self.rtt = least.unwrap_or(Duration::MAX);
        Ok(least.is_some())
    }

    /// One train: what was sent, in bits a second and datagrams, and what arrived.
    fn train(
        &mut self,
        direction: Direction,
        bits_per_second: f64,
        lasts: Duration,
    ) -> Result<(f64, u64, Counted), WireError> {
        self.trains += 1;
        let train = Train {
            number: self.trains,
            bits_per_second: bits_per_second as u64,
            milliseconds: u64::try_from(lasts.as_millis()).unwrap_or(u64::MAX),
        };
        let from = self.from;
        match direction {
            Direction::Down => {
                self.ask(Ask::Send(train))?;
                let (said, counted) = self.until_said(|end, over| {
                    end.count(train.number, from, || over.load(Ordering::Acquire))
                })?;
                let Said::Sent { count, span_us } = said else {
                    return Err(WireError::Malformed("another answer"));
                };
                Ok((rate(count, span_us), count, counted))
            }
            Direction::Up => {
                self.ask(Ask::Count(train))?;
                let (said, (count, span_us)) = self.until_said(|end, _| end.send(train))?;
                let Said::Counted(counted) = said else {
                    return Err(WireError::Malformed("another answer"));
                };
                Ok((rate(count, span_us), count, counted))
            }
        }
    }

    fn path(&mut self, direction: Direction) -> Result<PathFigures, WireError> {
        let mut wanted = RATE_FIRST as f64;
        let mut before = 0.0;
        let mut at_least = false;
        let mut arrived;
        loop {
            let (sent, _, counted) = self.train(direction, wanted, TRAIN_SHORT)?;
            arrived = counted.rate();
            if sent < wanted * SENT_MIN || wanted >= RATE_MAX as f64 {
                at_least = true;
                break;
            }
            if arrived < sent / 2.0 || arrived < before * GROWTH_MIN {
                break;
            }
            before = arrived;
            wanted *= if arrived >= sent * CLEAN_MIN { 4.0 } else { 2.0 };
        }
        let full = arrived.max(before);
        let (_, _, counted) = self.train(direction, full * 1.25, TRAIN_CEILING)?;
        let ceiling = counted.rate();
        let (_, count, counted) = self.train(direction, ceiling / 2.0, TRAIN_LOSS)?;
        let loss = 1.0 - counted.count.min(count) as f64 / count.max(1) as f64;
        Ok(PathFigures { direction, ceiling, at_least, loss, rtt_ms: self.rtt.as_secs_f64() * 1e3 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn trains_are_bounded() {
        let huge = Train { number: 1, bits_per_second: u64::MAX, milliseconds: u64::MAX };
        let most = RATE_MAX * TRAIN_MAX.as_secs() / 8 / DATAGRAM_BYTES as u64;
        assert_eq!(huge.datagrams(), most);
        let none = Train { number: 1, bits_per_second: 0, milliseconds: 0 };
        assert_eq!(none.datagrams(), 2);
        assert_eq!(Counted { count: 1, span_us: 0 }.rate(), 0.0);
        assert_eq!(Counted { count: 101, span_us: 1_000_000 }.rate(), 1_120_000.0);
    }

    /// Both ends of a control connection, and the server's datagrams at its address.
    fn meeting() -> (TcpStream, TcpStream, Datagrams) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (far, _) = listener.accept().unwrap();
        let datagrams = Datagrams::bind(listener.local_addr().unwrap()).unwrap();
        (near, far, datagrams)
    }

    #[test]
    fn nothing_is_sent_before_the_cookie_has_come_by_datagram() {
        let (mut near, mut far, datagrams) = meeting();
        let serving = std::thread::spawn(move || {
            datagrams.converse(&mut far, 1 << 30, |stream, cookie| write_message(stream, &cookie))
        });
        let _: String = read_message(&mut near).unwrap();
        let train = Train { number: 1, bits_per_second: 1_000_000, milliseconds: 10 };
        write_message(&mut near, &Ask::Send(train)).unwrap();
        let ended = serving.join().unwrap();
        assert!(matches!(ended, Err(WireError::Malformed(_))), "{ended:?}");
    }

    #[test]
    fn another_cookie_is_not_met() {
        let (mut near, mut far, datagrams) = meeting();
        let to = near.peer_addr().unwrap();
        let serving = std::thread::spawn(move || {
            datagrams.converse(&mut far, 1 << 30, |stream, cookie| write_message(stream, &cookie))
        });
        let _: String = read_message(&mut near).unwrap();
        write_message(&mut near, &Ask::Meet).unwrap();
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.send_to(&[0; HEADER_BYTES], to).unwrap();
        assert!(matches!(read_message(&mut near).unwrap(), Said::Nothing));
        drop(near);
        assert_eq!(serving.join().unwrap().unwrap(), 0);
    }

    #[test]
    fn what_a_server_may_send_is_bounded() {
        let (near, mut far, datagrams) = meeting();
        let serving = std::thread::spawn(move || {
            datagrams.converse(&mut far, 1_000, |stream, cookie| write_message(stream, &cookie))
        });
        let mut near = near;
        let cookie: String = read_message(&mut near).unwrap();
        let measured = measure(near, &cookie, &[Direction::Down]);
        assert!(measured.is_err(), "{measured:?}");
        assert!(matches!(serving.join().unwrap(), Err(WireError::Refused(_))));
    }

    #[test]
    fn one_conversation_at_a_time() {
        let (_near, mut far, datagrams) = meeting();
        let _held = datagrams.0.lock().unwrap();
        let refused = datagrams.converse(&mut far, 1, |_, _| Ok(()));
        assert!(matches!(refused, Err(WireError::Refused(_))), "{refused:?}");
    }
}
