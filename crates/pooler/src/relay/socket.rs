//! A connection as the engine sees it, and what happens on it.

use std::io;

use crate::ids::Slot;
use crate::relay::pending_bytes::PendingBytes;

/// A connection over Multipath TCP, at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mptcp {
    /// It has fallen back to plain TCP: the peer, or a middlebox, does not support it.
    pub fell_back: bool,
    /// Active subflows.
    pub subflows: u8,
    /// Its token at this end.
    pub token: u32,
}

/// What the kernel has measured of a TCP connection since it began, of what Hawser sends on it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Line {
    /// The smoothed round trip.
    pub rtt_us: u32,
    /// The least round trip of late.
    pub rtt_min_us: u32,
    /// Segments with data, sent again or not.
    pub segments_sent: u64,
    /// Those that were sent again.
    pub segments_again: u64,
    /// Time with data to send or under way.
    pub busy_us: u64,
    /// Of that, time in which the peer's window had no room.
    pub receiver_limited_us: u64,
    /// Of that, time in which the send buffer had none.
    pub buffer_limited_us: u64,
    /// The congestion control algorithm.
    pub algorithm: String,
}

/// A connection's byte stream, after TLS.
///
/// Non-blocking: [`io::ErrorKind::WouldBlock`] when nothing can be done now, and readiness comes
/// edge-triggered afterwards. A read that returns fewer bytes than `buf` has drained the socket.
pub trait Socket: Send {
    /// Held by a client as long as it is connected; frees its place under the limits when it is
    /// dropped. Kept by value: each byte counts for tens of thousands, and small allocations that
    /// outlive a login would keep the memory that the login has freed from being returned.
    type Permit: Send;

    /// Reads what has come. `Ok(0)` is the end of the stream.
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize>;
    /// Writes what fits.
    fn write(&mut self, buf: &[u8]) -> io::Result<usize>;
    /// Writes what an earlier `write` took and still holds (TLS records). `Ok(())` when nothing is
    /// held any more.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
    /// Whether it still holds bytes.
    fn has_unsent(&self) -> bool {
        false
    }
    /// Ends the sending side in order, as far as that is possible without waiting.
    fn shutdown(&mut self) {}
    /// Hawser's end of the connection, for SHOW: address and port; `unix` and the port in its
    /// file's name. `None` if it is not known.
    fn local_address(&self) -> Option<(String, u16)> {
        None
    }
    /// Whether the connection is encrypted.
    fn is_encrypted(&self) -> bool {
        false
    }
    /// Whether another process can continue it, from its descriptor alone, after [`Socket::let_go`].
    fn can_move(&self) -> bool {
        true
    }
    /// Leaves nothing in this process that another one needs, the keys of TLS in particular. False: not now. To be
    /// called when all that has come has been read.
    fn let_go(&mut self) -> bool {
        true
    }
    /// Its current MPTCP state; `None` without MPTCP.
    fn mptcp(&self) -> Option<Mptcp> {
        None
    }
    /// How its path does; `None` if that is not TCP.
    fn line(&self) -> Option<Line> {
        None
    }
}

/// What an event has reported of a connection, and no later event reports again.
#[derive(Default)]
pub(crate) struct Unread {
    more: bool,
    hung_up: bool,
}

impl Unread {
    /// Whether there may be unread bytes.
    #[inline]
    pub(crate) fn is_any(&self) -> bool {
        self.more
    }

    /// Sets whether there may be more to read.
    #[inline]
    pub(crate) fn leave(&mut self, more: bool) {
        self.more = more;
    }

    /// The other side has closed the connection after what is still unread.
    pub(crate) fn hangs_up(&mut self) {
        self.hung_up = true;
    }

    #[inline]
    pub(crate) fn has_hung_up(&self) -> bool {
        self.hung_up
    }
}

/// The connection of a readiness event; goes through epoll's 64 bits of user data.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Token {
    /// A client's connection.
    Client(Slot),
    /// A backend's connection, by its place in this loop's table of resident backends.
    Backend(Slot),
}

impl Token {
    const BACKEND_BIT: u64 = 1 << 63;

    /// As 64 bits. Generations wrap at 31 bits.
    pub fn to_bits(self) -> u64 {
        let (slot, bit) = match self {
            Self::Client(slot) => (slot, 0),
            Self::Backend(slot) => (slot, Self::BACKEND_BIT),
        };
        bit | u64::from(slot.generation & 0x7fff_ffff) << 32 | u64::from(slot.index)
    }

    /// From 64 bits.
    pub fn from_bits(bits: u64) -> Self {
        let slot = Slot { index: bits as u32, generation: (bits >> 32) as u32 & 0x7fff_ffff };
        if bits & Self::BACKEND_BIT == 0 { Self::Client(slot) } else { Self::Backend(slot) }
    }
}

/// What has happened on a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Readiness {
    /// There are bytes to read, or the end of the stream.
    pub readable: bool,
    /// There is room to write.
    pub writable: bool,
    /// The peer has closed its sending half, or the connection is broken.
    pub hangup: bool,
    /// The connection is broken in both directions (a reset): nothing that is sent arrives.
    pub broken: bool,
}

/// Writes to a connection what it takes, after the kept bytes; keeps the rest. Returns how many
/// bytes it took.
pub(crate) fn write_or_keep<S: Socket>(
    socket: &mut S,
    kept: &mut PendingBytes,
    bytes: &[u8],
) -> io::Result<usize> {
    let mut written = 0;
    if kept.is_empty() {
        while written < bytes.len() {
            match socket.write(&bytes[written..]) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(count) => written += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
    kept.extend_from_slice(&bytes[written..]);
    Ok(written)
}

/// Writes kept bytes to a connection. Returns how many bytes it took; `kept` releases its memory
/// once it is empty.
pub(crate) fn write_kept<S: Socket>(socket: &mut S, kept: &mut PendingBytes) -> io::Result<usize> {
    let pending = kept.take();
    let written = write_or_keep(socket, kept, &pending)?;
    socket.flush().or_else(|error| match error.kind() {
        io::ErrorKind::WouldBlock => Ok(()),
        _ => Err(error),
    })?;
    Ok(written)
}
