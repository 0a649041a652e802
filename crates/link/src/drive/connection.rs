//! One path: a TCP socket and the TLS on it.
//!
//! # Model
//! ```text
//!   Connecting ─ writable ─► Shaking ─ both proved ─► Open
//! ```
//! What is to be sent is asked for only when the socket has room, and the kernel keeps little of it
//! ([`UNSENT_BYTES`]): what TCP was given cannot go by another path any more.
//!
//! # Invariants
//! * a handshake that fails sends no alert: the connection is closed

use std::io::{self, BufRead, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::OwnedFd;
use std::time::Duration;

use hawser_congestion::cc::Congestion;
use hawser_congestion::cc::usage::CongestionUsage;
use hawser_sys::congestion::algorithm;
use hawser_sys::congestion::flows::Entry;
use hawser_sys::dial::{close_with_reset, dial_result};
use hawser_sys::stream::{
    LocalAddress, TcpOptions, local_address, peer_address, raise_send_buffer, recv, send,
    set_tcp_options, set_unsent_bytes_max, shutdown_sending,
};
use hawser_sys::tcp_info::tcp_info;
use hawser_time::Time;

use super::keys::PublicKey;
use super::proof::peer;
use crate::proto::sample::Sample;

/// Bytes that wait in the kernel: at 10 Mbit/s a tenth of a second's.
const UNSENT_BYTES: u32 = 128 << 10;
/// From such a window on, and such a buffer then: after a loss TCP keeps all that comes after it until the segment
/// has arrived, and needs room for a window beside. The kernel's own limit, 4 MB, held bbr to 70 Mbit/s of 91 at
/// 217 ms.
const LARGE_WINDOW_BYTES: u64 = 1 << 20;
const LARGE_BUFFER_BYTES: u32 = 16 << 20;
/// Reads before others have their turn.
const READS_MAX: usize = 4;
/// What TLS adds to a record (RFC 8446: header, type, tag), at most.
const RECORD_BYTES: usize = 22;

/// How far it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Phase {
    /// TCP is on its way.
    Connecting,
    /// TLS is.
    Shaking,
    /// Both ends are proved.
    Open,
}

/// A path.
pub struct Connection {
    /// Before `fd`: it leaves the list of those whose congestion control may change before that is closed.
    tuned: Option<Entry>,
    fd: OwnedFd,
    tls: rustls::Connection,
    phase: Phase,
    /// Encrypted, and not taken by the socket yet.
    cipher: Vec<u8>,
    cipher_at: usize,
    readable: bool,
    writable: bool,
    /// When it was begun.
    pub since: Time,
    /// Its own address and the peer's: they stay known when it has broken.
    addresses: Option<(IpAddr, SocketAddr)>,
    /// [`Connection::leave`] has sent all.
    said_all: bool,
    /// The send buffer was made [`LARGE_BUFFER_BYTES`], as far as that may be.
    is_large: bool,
}

/// Why a path has ended.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// TCP.
    #[error("{0}")]
    Socket(#[source] io::Error),
    /// The peer has closed it.
    #[error("the peer has closed the connection")]
    End,
    /// TLS: the peer is not proved, or what it sends is no TLS.
    #[error("{}", of_tls(.0))]
    Tls(#[source] rustls::Error),
}

fn of_tls(error: &rustls::Error) -> String {
    match error {
        rustls::Error::General(text) => text.clone(), // proof.rs says it
        other => other.to_string(),
    }
}

impl Connection {
    /// A socket that is being connected, or one that was accepted.
    ///
    /// # Errors
    /// As setsockopt(2).
    pub fn new(fd: OwnedFd, tls: rustls::Connection, phase: Phase, now: Time) -> io::Result<Self> {
        let options = TcpOptions {
            keepalive: true,
            keepalive_idle: Duration::from_secs(30),
            ..TcpOptions::default()
        };
        set_tcp_options(&fd, &options)?;
        set_unsent_bytes_max(&fd, UNSENT_BYTES)?;
        let mut connection = Self {
            tuned: None,
            fd,
            tls,
            phase,
            cipher: Vec::new(),
            cipher_at: 0,
            readable: phase != Phase::Connecting,
            writable: phase != Phase::Connecting,
            since: now,
            addresses: None,
            said_all: false,
            is_large: false,
        };
        if phase != Phase::Connecting {
            connection.look_up_addresses();
        }
        Ok(connection)
    }

    fn look_up_addresses(&mut self) {
        let (Ok(own), Ok(peer)) = (local_address(&self.fd), peer_address(&self.fd)) else { return };
        if let LocalAddress::Internet(own) = own {
            self.addresses = Some((own.ip(), peer));
        }
    }

    /// Until it is connected: where it is dialled from, and where to.
    pub fn dials(&mut self, from: IpAddr, to: SocketAddr) {
        self.addresses = Some((from, to));
    }

    /// How far it is.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Its own address and the peer's.
    #[must_use]
    pub fn addresses(&self) -> Option<(IpAddr, SocketAddr)> {
        self.addresses
    }

    /// Sets its congestion control, after the proof, because the choice depends on its round trip.
    pub fn use_congestion(&mut self, usage: &CongestionUsage, wanted: Congestion) {
        let flows = usage.give(&self.fd, wanted, &"paths of the link");
        self.tuned = flows.map(|flows| flows.enter(&self.fd));
    }

    /// Its congestion control.
    #[must_use]
    pub fn congestion(&self) -> Option<String> {
        algorithm(&self.fd).ok()
    }

    /// Its socket.
    #[must_use]
    pub fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// The key that the peer has proved to have.
    #[must_use]
    pub fn peer(&self) -> Option<PublicKey> {
        peer(&self.tls)
    }

    /// What epoll says.
    pub fn happened(&mut self, readable: bool, writable: bool) {
        self.readable |= readable;
        self.writable |= writable;
    }

    /// Whether there is more to read at once.
    #[must_use]
    pub fn is_readable(&self) -> bool {
        self.readable && self.phase != Phase::Connecting
    }

    /// Whether the socket has room.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.writable && self.cipher.is_empty()
    }

    /// Goes on with TCP's and TLS's greetings; whether both ends are proved now.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn advance(&mut self, buffer: &mut [u8]) -> Result<bool, Broken> {
        if self.phase == Phase::Connecting {
            if !self.writable {
                return Ok(false);
            }
            dial_result(&self.fd).map_err(Broken::Socket)?;
            self.phase = Phase::Shaking;
            self.readable = true;
            self.look_up_addresses();
        }
        if self.phase == Phase::Shaking {
            // What comes with the last of the handshake stays for the first read.
            self.receive(buffer)?;
            self.flush()?;
            if self.tls.is_handshaking() || self.peer().is_none() {
                return Ok(false);
            }
            self.phase = Phase::Open;
        }
        Ok(true)
    }

    /// Reads what is there, and passes it on decrypted; stops if `take` says so.
    ///
    /// # Errors
    /// [`Broken`], after what came before was handed over.
    pub fn read(
        &mut self,
        buffer: &mut [u8],
        mut take: impl FnMut(&[u8]) -> bool,
    ) -> Result<(), Broken> {
        if !self.hand_over(&mut take)? {
            return Ok(());
        }
        for _ in 0..READS_MAX {
            let Some(count) = self.fetch(buffer)? else { return Ok(()) };
            let mut cipher = &buffer[..count];
            while !cipher.is_empty() {
                self.decrypt(&mut cipher)?;
                if !self.hand_over(&mut take)? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Reads for the handshake.
    fn receive(&mut self, buffer: &mut [u8]) -> Result<(), Broken> {
        while self.tls.is_handshaking() {
            let Some(count) = self.fetch(buffer)? else { return Ok(()) };
            let mut cipher = &buffer[..count];
            while !cipher.is_empty() {
                self.decrypt(&mut cipher)?;
            }
        }
        Ok(())
    }

    /// Bytes of the socket; `None` if there are none.
    fn fetch(&mut self, buffer: &mut [u8]) -> Result<Option<usize>, Broken> {
        if !self.readable {
            return Ok(None);
        }
        match recv(&self.fd, buffer) {
            Ok(0) => Err(Broken::End),
            Ok(count) => Ok(Some(count)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.readable = false;
                Ok(None)
            }
            Err(error) => Err(Broken::Socket(error)),
        }
    }

    fn decrypt(&mut self, cipher: &mut &[u8]) -> Result<(), Broken> {
        self.tls.read_tls(cipher).map_err(Broken::Socket)?;
        self.tls.process_new_packets().map(drop).map_err(Broken::Tls)
    }

    /// Hands over what is decrypted; whether to go on.
    fn hand_over(&mut self, take: &mut impl FnMut(&[u8]) -> bool) -> Result<bool, Broken> {
        let mut reader = self.tls.reader();
        loop {
            let length = match reader.fill_buf() {
                Ok([]) => return Err(Broken::End), // a close_notify
                Ok(plain) => {
                    let length = plain.len();
                    if !take(plain) {
                        reader.consume(length);
                        return Ok(false);
                    }
                    length
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(true),
                Err(error) => return Err(Broken::Socket(error)),
            };
            reader.consume(length);
        }
    }

    /// Encrypts `plain` and sends as much as there is room for; the rest is kept, at most that much.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn write(&mut self, plain: &[u8]) -> Result<(), Broken> {
        self.tls.set_buffer_limit(None); // the caller's pieces are the limit
        self.tls.writer().write_all(plain).map_err(Broken::Socket)?;
        self.flush()
    }

    /// Sends what waits.
    ///
    /// # Errors
    /// [`Broken`].
    pub fn flush(&mut self) -> Result<(), Broken> {
        while self.tls.wants_write() {
            self.tls.write_tls(&mut self.cipher).map_err(Broken::Socket)?;
        }
        while self.writable && self.cipher_at < self.cipher.len() {
            match send(&self.fd, &self.cipher[self.cipher_at..]) {
                Ok(count) => self.cipher_at += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.writable = false,
                Err(error) => return Err(Broken::Socket(error)),
            }
        }
        if self.cipher_at == self.cipher.len() {
            self.cipher_at = 0;
            self.cipher.clear();
            if self.cipher.capacity() > 4 * (16 << 10) + 8 * RECORD_BYTES {
                self.cipher = Vec::new(); // an idle path keeps little
            }
        }
        Ok(())
    }

    /// What TCP says.
    #[must_use]
    pub fn sample(&mut self) -> Option<Sample> {
        let info = tcp_info(&self.fd).ok()?;
        // What the peer has is not in the path, though a lost segment before it holds it up: with it counted, bulk
        // beside small streams would stand still for most of a round trip after each loss.
        let in_path = info.unacked_segments.saturating_sub(info.sacked_segments);
        let under_way = u64::from(in_path) * u64::from(info.segment_bytes);
        let window_bytes = u64::from(info.window) * u64::from(info.segment_bytes);
        if window_bytes >= LARGE_WINDOW_BYTES && !std::mem::replace(&mut self.is_large, true) {
            let _ = raise_send_buffer(&self.fd, LARGE_BUFFER_BYTES); // it works without, only slower
        }
        let waiting =
            u64::from(info.unsent.unwrap_or(0)) + (self.cipher.len() - self.cipher_at) as u64;
        Some(Sample {
            rtt_us: info.rtt_us,
            rtt_variance_us: info.rtt_variance_us,
            rtt_min_us: info.rtt_min_us.unwrap_or(0),
            delivery_rate: info.delivery_rate.unwrap_or(0),
            is_application_limited: info.is_application_limited,
            acked_bytes: info.bytes_acked.unwrap_or(0),
            outstanding_bytes: under_way + waiting,
            unsent_bytes: waiting,
            window_bytes,
            segments_again: info.segments_again,
            segments_sent: info.segments_sent.unwrap_or(0),
            timeouts: info.timeouts.into(),
        })
    }

    /// The process ends: sends what waits, then the end, and reads what still comes without a look at it,
    /// since a close with bytes unread would be a reset that overtakes what was sent. Whether the peer
    /// has ended, too, or the path broke.
    pub fn leave(&mut self, buffer: &mut [u8]) -> bool {
        if self.flush().is_err() {
            return true;
        }
        if self.cipher.is_empty() && !std::mem::replace(&mut self.said_all, true) {
            // A path that cannot be ended is one that the peer has ended.
            let _ = shutdown_sending(&self.fd);
        }
        for _ in 0..READS_MAX {
            match self.fetch(buffer) {
                Ok(Some(_)) => {}
                Ok(None) => return false,
                Err(_) => return true,
            }
        }
        false
    }

    /// Closes it at once.
    pub fn close(self) {
        drop(self.tuned);
        close_with_reset(self.fd);
    }
}
