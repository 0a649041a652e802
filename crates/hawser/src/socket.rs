//! Connections: of the event loops ([`Conn`]), and of logins and dialling ([`stream::Stream`]).
//!
//! # Model
//! A connection begins on the control side as an asynchronous stream. Once logged in it becomes a
//! plain descriptor, with its TLS session if it has one, and moves to an event loop.
//!
//! # Invariants
//! * no read bytes are lost in that move: what TLS has already decrypted is returned as `early`
//!   bytes, because epoll does not report them
//! * an idle TLS connection keeps no buffer of ours. rustls keeps one of 4 KiB for ciphertext and
//!   about as much for keys and state
//!
//! # Why not let rustls read the socket
//! It reads 4 KiB at a time. Ciphertext is read into a buffer that all connections of a thread
//! share, and rustls is fed from there: one system call for up to [`SCRATCH_BYTES`].

pub mod options;
pub mod stream;
mod wire;

use std::any::Any;
use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use hawser_pooler::relay::{Line, Mptcp, Socket};
use hawser_sys::congestion;
use hawser_sys::ktls;
use hawser_sys::stream as sys;
use hawser_sys::tcp_info::tcp_info;

use crate::tls::accept::RECORD_BYTES;
use crate::tls::kernel::{self, Records};
use stream::{Parts, Polite};
pub use wire::Wire;

/// Ciphertext that is read at once.
const SCRATCH_BYTES: usize = 32 * 1024;
/// Plaintext that is encrypted before the socket is tried: two records to a server, four to a client.
const ENCRYPT_BYTES: usize = 32 * 1024;
/// Ciphertext that a TLS connection may hold unsent.
const TLS_BUFFER_BYTES: usize = 64 * 1024;

thread_local! {
    static SCRATCH: RefCell<Box<[u8]>> = RefCell::new(vec![0; SCRATCH_BYTES].into());
    /// A socket of this thread has not taken all bytes.
    static BLOCKED: Cell<bool> = const { Cell::new(false) };
}

/// Whether a socket has not taken all bytes of this thread since the last call.
#[inline]
pub fn take_blocked() -> bool {
    BLOCKED.take()
}

/// Records that a socket takes no more for now.
fn note_blocked() {
    BLOCKED.set(true);
}

/// A connection of an event loop.
#[derive(Debug)]
pub enum Conn {
    /// TCP or unix socket.
    Plain(Wire),
    /// The same, encrypted.
    Tls(Polite<TlsConn>),
    /// Encrypted by the kernel: see [`kernel`].
    Kernel(Wire),
}

/// An encrypted connection.
#[derive(Debug)]
pub struct TlsConn {
    fd: Wire,
    session: rustls::Connection,
    /// Ciphertext that was read and that rustls has not taken, because its plaintext did not fit
    /// into the reader's buffer. Mostly empty.
    untaken: Vec<u8>,
    /// Of all that rustls has been given; `None`: not known.
    records: Option<Records>,
}

/// Writes to a connection without waiting.
struct Sender<'a>(&'a Wire);

impl Write for Sender<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.send(buf)
    }

    fn write_vectored(&mut self, bufs: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.send_vectored(bufs)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl TlsConn {
    /// From a session after its handshake. The second value is what it has already decrypted.
    fn new(fd: Wire, session: rustls::Connection, records: Option<Records>) -> (Self, Vec<u8>) {
        let mut conn = Self { fd, session, untaken: Vec::new(), records };
        conn.session.set_buffer_limit(Some(TLS_BUFFER_BYTES));
        let mut early = Vec::new();
        // An error (empty, or the end) leaves earlier bytes in `early`, and is repeated at the next
        // read.
        let _ = conn.session.reader().read_to_end(&mut early);
        early.shrink_to_fit();
        (conn, early)
    }

    /// Sends ciphertext until there is none or the socket is full.
    fn push(&mut self) -> io::Result<()> {
        while self.session.wants_write() {
            self.session.write_tls(&mut Sender(&self.fd))?;
        }
        Ok(())
    }

    /// Whether the kernel may get it, once it [is between two records](Self::is_between_records).
    fn can_be_kernels(&self) -> bool {
        self.records.is_some() && !self.fd.comes_back() && kernel::takes(&self.session)
    }

    fn is_between_records(&mut self) -> bool {
        // An answer to a KeyUpdate waits for the next write, and there is no other way to ask for it.
        let _ = self.session.writer().write(&[]);
        let is_whole = self.records.as_ref().is_some_and(Records::are_whole);
        is_whole
            && self.untaken.is_empty()
            && self.push().is_ok()
            && self
                .session
                .process_new_packets()
                .is_ok_and(|state| state.plaintext_bytes_to_read() == 0 && !state.peer_has_closed())
    }

    /// Gives ciphertext to rustls and takes plaintext until one of them ends. Returns how much
    /// ciphertext was taken.
    fn decrypt(
        &mut self,
        ciphertext: &[u8],
        buf: &mut [u8],
        filled: &mut usize,
    ) -> io::Result<usize> {
        let mut rest = ciphertext;
        while !rest.is_empty() && *filled < buf.len() {
            self.session.read_tls(&mut rest)?;
            if let Err(error) = self.session.process_new_packets() {
                // The alert shows the peer the error; it need not arrive.
                let _ = self.push();
                return Err(io::Error::new(io::ErrorKind::InvalidData, error));
            }
            if self.take_plaintext(buf, filled)? {
                break;
            }
        }
        let taken = ciphertext.len() - rest.len();
        if let Some(records) = &mut self.records {
            records.pass(&ciphertext[..taken]);
        }
        Ok(taken)
    }

    /// Takes decrypted bytes. `true` at the end of the stream.
    fn take_plaintext(&mut self, buf: &mut [u8], filled: &mut usize) -> io::Result<bool> {
        while *filled < buf.len() {
            match self.session.reader().read(&mut buf[*filled..]) {
                Ok(0) => return Ok(true),
                Ok(read) => *filled += read,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                // The peer has closed without a close_notify, as many do.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(true),
                Err(error) => return Err(error),
            }
        }
        Ok(false)
    }

    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        if self.take_plaintext(buf, &mut filled)? {
            return Ok(filled);
        }
        if !self.untaken.is_empty() && filled < buf.len() {
            let untaken = std::mem::take(&mut self.untaken);
            let taken = self.decrypt(&untaken, buf, &mut filled)?;
            if taken < untaken.len() {
                self.untaken = untaken[taken..].to_vec();
            }
        }
        let result = SCRATCH.with_borrow_mut(|scratch| self.receive(scratch, buf, &mut filled));
        if self.session.wants_write() {
            // A key update or an alert to answer. What does not fit now goes with the next write.
            let _ = self.push();
        }
        match result {
            Ok(()) => Ok(filled),
            // Bytes before the failure are valid; the failure is repeated.
            Err(_) if filled > 0 => Ok(filled),
            Err(error) => Err(error),
        }
    }

    /// Reads the socket until it is drained or `buf` is full.
    fn receive(
        &mut self,
        scratch: &mut [u8],
        buf: &mut [u8],
        filled: &mut usize,
    ) -> io::Result<()> {
        while *filled < buf.len() {
            let read = self.fd.recv(scratch)?;
            if read == 0 {
                // Passes the end to rustls, so that later reads see it too.
                let _ = self.session.read_tls(&mut io::empty());
                return Ok(());
            }
            let taken = self.decrypt(&scratch[..read], buf, filled)?;
            if taken < read {
                self.untaken = scratch[taken..read].to_vec();
                if *filled < buf.len() {
                    return Ok(()); // close_notify: nothing after it counts
                }
            }
            if read < scratch.len() {
                return if *filled > 0 || self.at_end() {
                    Ok(())
                } else {
                    Err(io::ErrorKind::WouldBlock.into())
                };
            }
        }
        Ok(())
    }

    /// Whether the peer has sent a close_notify.
    fn at_end(&mut self) -> bool {
        matches!(self.session.reader().read(&mut [0; 1]), Ok(0))
    }

    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.push()?;
        let mut taken = 0;
        while taken < buf.len() {
            let end = buf.len().min(taken + ENCRYPT_BYTES);
            taken += self.session.writer().write(&buf[taken..end])?;
            match self.push() {
                Ok(()) => {}
                // rustls holds the rest: taken, to be flushed.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error),
            }
        }
        Ok(taken)
    }
}

impl Parts for TlsConn {
    fn part(&mut self) {
        self.session.send_close_notify();
        let _ = self.push();
    }
}

impl Conn {
    /// The same connection, whose session the kernel has.
    pub fn with_kernels_session(self) -> Self {
        match self {
            Self::Plain(wire) => Self::Kernel(wire),
            other => other,
        }
    }
}

/// Writes what fits, in records of the size that clients have room for.
fn send_in_records(wire: &Wire, buf: &[u8]) -> io::Result<usize> {
    let mut taken = 0;
    for record in buf.chunks(RECORD_BYTES) {
        match wire.send(record) {
            Ok(sent) => taken += sent,
            // The next write repeats it.
            Err(_) if taken > 0 => break,
            Err(error) => return Err(error),
        }
        if taken % RECORD_BYTES != 0 {
            break;
        }
    }
    Ok(taken)
}

impl Socket for Conn {
    type Permit = Box<dyn Any + Send>;

    #[inline]
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(wire) => wire.recv(buf),
            Self::Tls(tls) => tls.read(buf),
            Self::Kernel(wire) => match wire.recv(buf) {
                Err(error) if error.raw_os_error() == Some(ktls::NOT_DATA) => {
                    kernel::read_other(wire)
                }
                read => read,
            },
        }
    }

    #[inline]
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(wire) => wire.send(buf),
            Self::Tls(tls) => tls.write(buf),
            Self::Kernel(wire) => send_in_records(wire, buf),
        }
    }

    #[inline]
    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(_) | Self::Kernel(_) => Ok(()),
            Self::Tls(tls) => tls.push(),
        }
    }

    fn has_unsent(&self) -> bool {
        match self {
            Self::Plain(_) | Self::Kernel(_) => false,
            Self::Tls(tls) => tls.session.wants_write(),
        }
    }

    fn shutdown(&mut self) {
        match self {
            Self::Plain(_) => {}
            Self::Tls(tls) => tls.part(),
            Self::Kernel(wire) => kernel::part(wire),
        }
        // The descriptor is closed next, which sends all that shutdown(2) would.
    }

    fn local_address(&self) -> Option<(String, u16)> {
        // A socket that has been reset has none.
        Some(match sys::local_address(self).ok()? {
            sys::LocalAddress::Internet(address) => {
                (address.ip().to_canonical().to_string(), address.port())
            }
            sys::LocalAddress::Unix(path) => {
                let port = path.as_deref().and_then(Path::extension);
                ("unix".to_owned(), port.and_then(|port| port.to_str()?.parse().ok()).unwrap_or(0))
            }
        })
    }

    fn is_encrypted(&self) -> bool {
        matches!(self, Self::Tls(_) | Self::Kernel(_))
    }

    fn can_move(&self) -> bool {
        match self {
            // One that may bypass TCP belongs to a local program of this process.
            Self::Plain(wire) | Self::Kernel(wire) => !wire.comes_back(),
            Self::Tls(tls) => tls.can_be_kernels(),
        }
    }

    fn let_go(&mut self) -> bool {
        let Self::Tls(tls) = self else { return true };
        if !tls.is_between_records() {
            return false;
        }
        if ktls::attach(&tls.fd).is_err() {
            tls.records = None; // MPTCP and the like: not asked again
            return false;
        }
        let TlsConn { fd, session, .. } = tls.take();
        let result = kernel::hand_over(&fd, session);
        if let Err(error) = &result {
            tracing::warn!(%error, "a client is disconnected: the kernel has not taken its TLS session");
            let _ = sys::shutdown_both(&fd);
        }
        *self = Self::Kernel(fd);
        result.is_ok()
    }

    fn mptcp(&self) -> Option<Mptcp> {
        let fd = self.as_ref();
        // The kernel is not asked about others.
        if !fd.is_watched_mptcp() {
            return None;
        }
        let info = hawser_sys::mptcp::socket::info(fd.as_fd());
        Some(match info {
            Ok(info) => Mptcp {
                fell_back: info.is_fallback(),
                subflows: info
                    .volume
                    .map_or(info.subflows_further.saturating_add(1), |all| all.subflows_total),
                token: info.token.0,
            },
            // After a fallback the kernel has no MPTCP data for it.
            Err(_) => Mptcp { fell_back: true, subflows: 1, token: 0 },
        })
    }

    fn line(&self) -> Option<Line> {
        let info = tcp_info(self).ok()?;
        Some(Line {
            rtt_us: info.rtt_us,
            rtt_min_us: info.rtt_min_us.unwrap_or(info.rtt_us),
            segments_sent: info.segments_sent.unwrap_or_default().into(),
            segments_again: info.segments_again.into(),
            busy_us: info.busy_us.unwrap_or_default(),
            receiver_limited_us: info.receiver_limited_us.unwrap_or_default(),
            buffer_limited_us: info.buffer_limited_us.unwrap_or_default(),
            algorithm: congestion::algorithm(self).unwrap_or_default(),
        })
    }
}

impl AsRef<Wire> for Conn {
    fn as_ref(&self) -> &Wire {
        match self {
            Self::Plain(wire) | Self::Kernel(wire) => wire,
            Self::Tls(tls) => &tls.fd,
        }
    }
}

impl AsMut<Wire> for Conn {
    fn as_mut(&mut self) -> &mut Wire {
        match self {
            Self::Plain(wire) | Self::Kernel(wire) => wire,
            Self::Tls(tls) => &mut tls.fd,
        }
    }
}

impl AsFd for Conn {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.as_ref().as_fd()
    }
}

#[cfg(test)]
mod tests;
