//! One flow of a comparison: a blocking sender, and a receiver that counts.
//!
//! # Model
//! Blocks of a length in 4 bytes and so many bytes; length 0 ends them, and the sender's own figures
//! follow as a message. The receiver counts what arrives in each tenth of a second from its first
//! byte on:
//! ```text
//!   start-up   bytes of the first 5 s / 5 s
//!   steady     bytes from then to the end / that time; none where that is less than [`STEADY_MIN`]
//! ```
//! The end is the time that was asked for, or where bytes ended the transfer sooner, the last whole tenth
//! in which some came.
//!
//! The sender's figure is what it has written over its time, the last send buffer included: that is
//! what measuring at the sender shows, and by how much it misleads.
//!
//! # Why not
//! A spinning sender that never blocks: it crawls where a clock read costs, as in virtual time.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use hawser_sys::congestion;
use hawser_sys::tcp_info::tcp_info;
use hawser_time::Time;
use serde::{Deserialize, Serialize};

use super::auto::sample;
use super::wire::{WireError, read_message, write_message};
use crate::tuner::limit::Watch;

/// What start-up is.
pub const STARTUP: Duration = Duration::from_secs(5);
/// A steady rate is of so long at least.
pub const STEADY_MIN: Duration = Duration::from_secs(1);
/// What the receiver counts in.
const BUCKET: Duration = Duration::from_millis(100);
/// What is written at a time: a few round trips of the slowest paths, not more.
const BLOCK_BYTES: usize = 16 << 10;
/// How much is read at a time.
const READ_BYTES: usize = 256 << 10;
/// Between two looks of the sender at its connection.
const LOOK: Duration = Duration::from_millis(100);
/// No transfer is longer.
pub const SECONDS_MAX: u32 = 300;

/// Who sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Direction {
    /// The far end sends.
    Down,
    /// This end does.
    Up,
}

impl Direction {
    /// Who sends, for a table of people.
    #[must_use]
    pub fn sender(self) -> &'static str {
        match self {
            Self::Down => "far end",
            Self::Up => "this end",
        }
    }
}

/// What is asked of a server.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Order {
    /// Which algorithms it has.
    About,
    /// A transfer.
    Transfer(Transfer),
    /// Trains of datagrams: see `datagrams`.
    Datagrams,
    /// A connection to the PostgreSQL server there: see `relay`.
    Relay {
        /// What the server sends with.
        algorithm: String,
    },
}

/// One flow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Transfer {
    /// Who sends.
    pub direction: Direction,
    /// What the sender uses.
    pub algorithm: String,
    /// How long it sends.
    pub seconds: u32,
    /// How much at most.
    pub bytes_max: u64,
}

/// What a server says.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answer {
    /// Its algorithms: the default first, and those that it may use.
    About {
        /// What new sockets have.
        default: String,
        /// What it may send with.
        allowed: Vec<String>,
        /// Its kernel.
        kernel: String,
        /// The longest transfer that it makes.
        seconds_max: u32,
    },
    /// The transfer follows, or what is relayed.
    Go,
    /// Datagrams may follow, which bear this.
    Cookie(String),
    /// It does not, and why.
    No(String),
}

/// What a sender knows of a flow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sent {
    /// What it used, as the kernel says.
    pub algorithm: String,
    /// Bytes that it wrote.
    pub bytes: u64,
    /// For how long.
    pub seconds: f64,
    /// The least round trip.
    pub rtt_min_us: u32,
    /// The mean of the smoothed one, looked at ten times a second.
    pub rtt_mean_us: u32,
    /// The longest.
    pub rtt_max_us: u32,
    /// Segments with data.
    pub segments_sent: u64,
    /// Of these, sent again.
    pub segments_again: u64,
    /// What held it back, in words.
    pub limit: String,
}

impl Sent {
    /// Bits a second, as the sender sees it.
    #[must_use]
    pub fn rate(&self) -> f64 {
        if self.seconds > 0.0 { self.bytes as f64 * 8.0 / self.seconds } else { 0.0 }
    }

    /// Whether bytes ended it before its time.
    #[must_use]
    pub fn ended_by_bytes(&self, seconds: u32) -> bool {
        self.seconds < f64::from(seconds)
    }
}

/// What a receiver has counted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Received {
    /// Bytes in each tenth of a second, from the first byte on.
    pub buckets: Vec<u64>,
}

impl Received {
    /// Adds what arrived so long after the first byte.
    pub fn count(&mut self, since_first: Duration, bytes: usize) {
        let place = usize::try_from(since_first.as_millis() / BUCKET.as_millis());
        // What comes after the longest transfer is not counted in any case.
        let Some(place) = place.ok().filter(|place| *place < buckets(SECONDS_MAX)) else { return };
        if self.buckets.len() <= place {
            self.buckets.resize(place + 1, 0);
        }
        self.buckets[place] += bytes as u64;
    }

    /// Buckets that count, of a transfer of so many seconds.
    fn counted(&self, seconds: u32, ended_by_bytes: bool) -> usize {
        // The last one is not full, unless it is the only one.
        let came = self.buckets.len().saturating_sub(1).max(1);
        if ended_by_bytes { came.min(buckets(seconds)) } else { buckets(seconds) }
    }

    /// Bits a second of the first 5 s.
    #[must_use]
    pub fn startup(&self, seconds: u32, ended_by_bytes: bool) -> f64 {
        let end = self.counted(seconds, ended_by_bytes).min(STARTUP_BUCKETS);
        self.rate(0, end).unwrap_or(0.0)
    }

    /// Bits a second from then to the end. `None`: that is too short.
    #[must_use]
    pub fn steady(&self, seconds: u32, ended_by_bytes: bool) -> Option<f64> {
        let end = self.counted(seconds, ended_by_bytes);
        let is_long = end >= STARTUP_BUCKETS + buckets(STEADY_MIN.as_secs() as u32);
        self.rate(STARTUP_BUCKETS, end).filter(|_| is_long)
    }

    /// Bits a second of all of it, without start-up where there is more than that. `None`: less than a
    /// bucket has come.
    #[must_use]
    pub fn settled(&self) -> Option<f64> {
        // The last one is not full.
        let whole = self.buckets.len().checked_sub(1).filter(|whole| *whole > 0)?;
        let from = if whole > buckets(STARTUP.as_secs() as u32 + 1) {
            buckets(STARTUP.as_secs() as u32)
        } else {
            0
        };
        let bytes: u64 = self.buckets[from..whole].iter().sum();
        Some(bytes as f64 * 8.0 / ((whole - from) as f64 * BUCKET.as_secs_f64()))
    }

    /// Bits in each second.
    #[must_use]
    pub fn each_second(&self) -> Vec<u64> {
        self.buckets.chunks(buckets(1)).map(|second| second.iter().sum::<u64>() * 8).collect()
    }

    fn rate(&self, from: usize, to: usize) -> Option<f64> {
        let count = to.checked_sub(from).filter(|count| *count > 0)?;
        let bytes: u64 = self.buckets.iter().take(to).skip(from).sum();
        Some(bytes as f64 * 8.0 / (count as f64 * BUCKET.as_secs_f64()))
    }
}

/// Of start-up.
const STARTUP_BUCKETS: usize = buckets(STARTUP.as_secs() as u32);

const fn buckets(seconds: u32) -> usize {
    seconds as usize * (1_000 / BUCKET.as_millis() as usize)
}

/// Sends, and at the end its figures.
///
/// # Errors
/// The algorithm is not available ([`WireError::Refused`]), or the connection ends.
pub fn send(stream: &mut TcpStream, order: &Transfer) -> Result<Sent, WireError> {
    congestion::set_algorithm(&*stream, &order.algorithm)
        .map_err(|error| WireError::Refused(error.to_string()))?;
    let mut block = vec![0; 4 + BLOCK_BYTES];
    block[..4].copy_from_slice(&(BLOCK_BYTES as u32).to_be_bytes());
    // Not compressible: some tunnels compress.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for byte in &mut block[4..] {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *byte = (state >> 56) as u8;
    }
    let began = Instant::now();
    let lasts = Duration::from_secs(order.seconds.min(SECONDS_MAX).into());
    let mut looks = Looks::default();
    let mut bytes = 0;
    let mut next_look = Duration::ZERO;
    loop {
        let now = began.elapsed();
        if now >= next_look {
            looks.look(stream, now);
            next_look = now + LOOK;
        }
        if now >= lasts || bytes + BLOCK_BYTES as u64 > order.bytes_max {
            break;
        }
        stream.write_all(&block)?;
        bytes += BLOCK_BYTES as u64;
    }
    let algorithm = congestion::algorithm(&*stream)?;
    let sent = looks.sent(algorithm, bytes, began.elapsed());
    stream.write_all(&[0; 4])?;
    write_message(stream, &sent)?;
    Ok(sent)
}

/// What the sender has seen of its connection.
#[derive(Default)]
struct Looks {
    watch: Option<Watch>,
    rtt_sum_us: u64,
    rtt_max_us: u32,
    count: u64,
}

impl Looks {
    fn look(&mut self, stream: &TcpStream, now: Duration) {
        let at = Time::from_micros(u64::try_from(now.as_micros()).unwrap_or(u64::MAX));
        // An old kernel's connections have no figures.
        let Some(sample) = tcp_info(stream).ok().and_then(|info| sample(&info, at)) else { return };
        self.rtt_sum_us += u64::from(sample.rtt_us);
        self.rtt_max_us = self.rtt_max_us.max(sample.rtt_us);
        self.count += 1;
        match &mut self.watch {
            Some(watch) => {
                watch.add(sample);
            }
            None => self.watch = Some(Watch::new(sample)),
        }
    }

    fn sent(&self, algorithm: String, bytes: u64, lasted: Duration) -> Sent {
        let last = self.watch.map(|watch| *watch.last()).unwrap_or_default();
        let mean = self.rtt_sum_us.checked_div(self.count).unwrap_or(0);
        let limit = self.watch.map(|watch| watch.diagnosis().limit.to_string());
        Sent {
            algorithm,
            bytes,
            seconds: lasted.as_secs_f64(),
            rtt_min_us: last.rtt_min_us,
            rtt_mean_us: u32::try_from(mean).unwrap_or(u32::MAX),
            rtt_max_us: self.rtt_max_us,
            segments_sent: last.segments_sent,
            segments_again: last.segments_again,
            limit: limit.unwrap_or_else(|| "not known: the kernel is too old".to_owned()),
        }
    }
}

/// Receives at most `bytes_max`; gives what arrived when, and the sender's figures.
///
/// # Errors
/// The connection ends before they have come, or there is more.
pub fn receive(stream: &mut impl Read, bytes_max: u64) -> Result<(Received, Sent), WireError> {
    let mut bytes_left = bytes_max;
    let mut stream = BufReader::with_capacity(READ_BYTES, stream);
    let mut received = Received::default();
    let mut first = None;
    loop {
        let mut length = [0; 4];
        stream.read_exact(&mut length)?;
        let mut left = u32::from_be_bytes(length) as usize;
        if left == 0 {
            return Ok((received, read_message(&mut stream)?));
        }
        if left > BLOCK_BYTES {
            return Err(WireError::Malformed("a block is too long"));
        }
        let Some(fewer) = bytes_left.checked_sub(left as u64) else {
            return Err(WireError::Malformed("more bytes than a transfer may have"));
        };
        bytes_left = fewer;
        while left > 0 {
            let here = stream.fill_buf()?.len().min(left);
            if here == 0 {
                return Err(WireError::Io(std::io::ErrorKind::UnexpectedEof.into()));
            }
            let now = Instant::now();
            received.count(now - *first.get_or_insert(now), here);
            stream.consume(here);
            left -= here;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn start_up_and_steady_state_are_counted_apart() {
        let mut received = Received::default();
        received.count(Duration::from_millis(4_999), 1_000);
        received.count(Duration::from_millis(5_000), 2_000);
        received.count(Duration::from_millis(9_999), 3_000);
        received.count(Duration::from_millis(10_000), 50_000);
        assert_eq!(received.startup(10, false), 1_600.0);
        assert_eq!(received.steady(10, false), Some(8_000.0));
        assert_eq!(received.steady(5, false), None);
        assert_eq!(received.each_second()[9..], [24_000, 400_000]);
    }

    /// 4 GiB at 10 Gbit/s take 3.4 s of 15: the table said 0.00 Mbit/s, and 6.9 Gbit/s for the start.
    #[test]
    fn a_transfer_that_bytes_end_is_held_against_the_time_in_which_they_came() {
        let rate = |buckets: usize| Received { buckets: vec![125_000_000; buckets] };
        assert_eq!(rate(34).startup(15, true), 10e9);
        assert_eq!(rate(34).steady(15, true), None);
        assert_eq!(rate(60).steady(15, true), None, "five seconds and nine tenths");
        assert_eq!(rate(61).steady(15, true), Some(10e9));
        assert_eq!(rate(1).startup(15, true), 10e9);
        // One that stood still to its end was that slow.
        assert_eq!(rate(75).steady(15, false), Some(2.5e9));
    }

    #[test]
    fn what_has_settled_is_without_start_up_if_there_is_more() {
        let mut received = Received { buckets: vec![1_000; 11] };
        assert_eq!(received.settled(), Some(80_000.0));
        received.buckets = [vec![0; 50], vec![1_000; 21]].concat();
        assert_eq!(received.settled(), Some(80_000.0));
        assert_eq!(Received { buckets: vec![1_000] }.settled(), None);
    }

    #[test]
    fn a_timeline_ends_with_the_longest_transfer() {
        let mut received = Received::default();
        received.count(Duration::from_secs(SECONDS_MAX.into()), 1);
        received.count(Duration::MAX, 1);
        assert!(received.buckets.is_empty());
    }

    #[test]
    fn what_is_sent_arrives_with_the_senders_figures() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        let order = Transfer {
            direction: Direction::Up,
            algorithm: congestion::algorithm(&near).unwrap(),
            seconds: 60,
            bytes_max: 1 << 20,
        };
        let sending = std::thread::spawn(move || send(&mut near, &order));
        let (received, said) = receive(&mut far, 1 << 20).unwrap();
        let sent = sending.join().unwrap().unwrap();
        assert_eq!(sent, said);
        assert_eq!(received.buckets.iter().sum::<u64>(), 1 << 20);
        assert_eq!(sent.bytes, 1 << 20);
    }

    #[test]
    fn a_sender_that_dies_and_one_that_makes_no_sense_are_errors() {
        let mut cut = Vec::new();
        cut.extend_from_slice(&8u32.to_be_bytes());
        cut.extend_from_slice(b"1234");
        assert!(matches!(receive(&mut &cut[..], 100), Err(WireError::Io(_))));
        assert!(matches!(receive(&mut &cut[..], 7), Err(WireError::Malformed(_))));
        let long = (BLOCK_BYTES as u32 + 1).to_be_bytes();
        assert!(matches!(receive(&mut &long[..], 1 << 20), Err(WireError::Malformed(_))));
    }

    #[test]
    fn an_algorithm_that_is_not_there_is_refused_before_a_byte_is_sent() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let order = Transfer {
            direction: Direction::Up,
            algorithm: "nosuchthing".to_owned(),
            seconds: 1,
            bytes_max: 1 << 20,
        };
        assert!(matches!(send(&mut near, &order), Err(WireError::Refused(_))));
    }
}
