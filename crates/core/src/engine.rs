//! One event loop's work: its clients, the backends lent to them, and the messages between loops.
//!
//! # Model
//! The host (an epoll loop, or the simulation) tells the engine which connections can be read or
//! written and which messages have come; the engine reads, decides and writes through
//! [`Socket`], and asks for what it cannot do itself through [`Host`]. The same code runs in
//! production and, seeded, in virtual time.
//!
//! # Who owns what
//! * a client belongs to one engine for all its life
//! * a backend belongs to the client it is lent to, to the pool while idle, or to a message on
//!   its way to a client of another loop: it is moved, never shared
//! * its socket is in the epoll set of one loop, its *home*; a loop that takes an idle backend
//!   of another home moves it from that set to its own
//!
//! # Invariants
//! * a backend has at most one client; a client at most one backend
//! * a backend goes back to the pool only when the server has answered everything that was sent
//!   to it, reports no transaction, and no message is half sent in either direction
//! * buffers are bounded: see [`limits`]
//! * what one event may lead to is bounded, however much a connection has to say: see `again`
//!
//! * work on one client never serves another: what it leads to elsewhere waits in a queue, see `work`
//!
//! # Order of work when a transaction ends
//! The next waiter's first message is sent to the server before the finished client is answered:
//! the server, which is the slowest, starts soonest.

mod again;
mod ahead;
mod answer;
mod at_stake;
pub mod backend;
mod bind;
pub mod census;
mod cleanup;
pub mod client;
mod client_identity;
mod drawn;
pub mod effects;
mod events;
mod from_client;
mod from_server;
pub mod hand_over;
mod housekeeping;
mod listener;
mod listening;
pub mod message;
mod names;
mod noted;
mod owed;
mod pending_bytes;
mod pinned;
mod plain;
mod process_ids;
mod rebase;
mod recover;
mod replay;
mod request_queue;
mod restore;
mod server_unnamed;
mod session_report;
mod sql_statement;
pub mod statement;
mod table;
mod timeouts;
mod to_server;
mod unverified;

mod vacancy;
mod within;
mod work;

use std::io;

use crate::ids::{ClientId, LoopId, Slot};
use crate::wire::error::{ClientError, SqlState};
use pending_bytes::PendingBytes;

pub use backend::{Backend, BackendSeed};
pub use message::{
    CancelKey, ClientAbout, ClientSecret, ListenLost, Mptcp, NewClient, PeerAddress, PoolMode,
    ToLoop,
};
pub use process_ids::{PROCESS_ID_FIRST, PROCESS_ID_LAST, loop_of_process};

/// Bounds of what one connection may occupy.
pub mod limits {
    /// What is read from a connection at once. Also the size of a loop's shared buffers.
    pub const READ_BYTES: usize = 64 * 1024;
    /// What is read from a client that has no backend.
    pub const UNATTACHED_READ_BYTES: usize = 16 * 1024;
    /// A message up to this size is passed on only when it is complete; a longer one streams.
    pub const WHOLE_MESSAGE_BYTES: usize = 16 * 1024;
    /// The same of a Query whose client has start values: something may have to be put into its
    /// text, see `restore`.
    pub const WHOLE_TEXT_BYTES: usize = READ_BYTES;
    /// A longer one must come at this rate, in bytes a second, while others wait for its backend
    /// and `client_write_timeout` is over: less is no transfer.
    pub const STREAM_BYTES_A_SECOND_MIN: u64 = 64 * 1024;
    /// Microseconds within which a goodbye belongs to the query that it stands behind: it was sent
    /// with it, for the query to be carried out. Later, and with the connection closed, it says
    /// that the client has given up.
    pub const GOODBYE_BEHIND_QUERY_US: u64 = 10_000;
    /// How long a server connection whose client has left may take to be tidied, if
    /// `cancel_wait_timeout` sets no bound.
    pub const TIDY_MAX: std::time::Duration = std::time::Duration::from_secs(60);
    /// An answer up to this size waits for the end of the turn.
    pub const LATE_BYTES_MAX: usize = 4 * 1024;
    /// Further events that may be seen to before waiting answers are written.
    pub const EVENTS_BEHIND_MAX: usize = 32;
    /// No bound of the configuration is below this: shorter messages are not measured.
    pub const PACKET_BYTES_MIN: usize = 1024;
    /// Reads that one event may lead to. Who has more to say is seen to again in the next turn.
    pub const READS_AN_EVENT_MAX: u32 = 16;
    /// What is looked at of a longer message from a server: an error's severity and code.
    pub const ERROR_START_BYTES: usize = 1024;
    /// Unsent bytes for one connection from which its other side is no longer read.
    pub const OUTPUT_HIGH_BYTES: usize = 64 * 1024;
    /// Answers that may be outstanding from one backend.
    pub const EXPECTED_ANSWERS_MAX: usize = 8 * 1024;
    /// ReadyForQuery that may be outstanding before a client's further pipeline waits.
    pub const SYNCS_OUTSTANDING_MAX: u32 = 512;
    /// Messages of a pipeline that its client's settings may go within.
    pub const WITHIN_MESSAGES_MAX: usize = 64;
    /// Settings that may.
    pub const WITHIN_SETTINGS_MAX: usize = 8;
    /// Paths for which a pool has statements of its own that bring settings.
    pub const WITHIN_PATHS_MAX: usize = 128;
    /// Queries and pipelines that a client may send without ever letting its backend come to
    /// rest, while others wait for one.
    pub const UNBROKEN_QUERIES_MAX: u32 = 512;
    /// Prepared statements that one client may name.
    pub const CLIENT_STATEMENTS_MAX: usize = 64 * 1024;
    /// Bytes of a name by which PostgreSQL tells statements and portals apart (`NAMEDATALEN` - 1,
    /// prepare.c and portalmem.c): what stands after them is not kept here either.
    pub const NAME_BYTES_MAX: usize = 63;
    /// Portals of a RESET, DISCARD or DEALLOCATE that one client may make in a transaction, and
    /// statements of these that it may name to a server connection of its own.
    pub const UNUSUAL_PORTALS_MAX: usize = 1024;
    /// Bytes of notifications that may wait for one client, be it that it is in a transaction or
    /// that it does not read: with more it is cut off.
    pub const NOTIFICATIONS_BYTES_MAX: usize = 4 * 1024 * 1024;
    /// Milliseconds below which a client's statement_timeout is brought last and taken off first, and
    /// its transaction_timeout does not move.
    pub const TIMEOUT_MS_MIN: u64 = 1_000;
    /// How often it is tried to take off a timeout that cuts that off, and to ask under it.
    pub const LIFTS_MAX: u8 = 100;
    /// Room for a usual question to a server: see `doubt`.
    pub const QUESTION_BYTES: usize = 512;
    /// A pipeline up to this size is kept until its first answer, so that it can be sent again
    /// when a shared statement turns out to be stale.
    pub const REPLAY_BYTES: usize = 8 * 1024;
}

/// A connection's byte stream, after TLS.
///
/// Non-blocking: [`io::ErrorKind::WouldBlock`] when nothing can be done now, and readiness comes
/// edge-triggered afterwards. A read that returns fewer bytes than `buf` has drained the socket.
pub trait Socket: Send {
    /// What a client holds as long as it is connected; frees its place under the limits when it is
    /// dropped. Kept by value: tens of thousands hang on each byte, and what a login allocates and
    /// leaves behind would keep the memory of all that it has freed from being given back.
    type Permit: Send;

    /// Reads what is there. `Ok(0)` is the end of the stream.
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize>;
    /// Writes what fits.
    fn write(&mut self, buf: &[u8]) -> io::Result<usize>;
    /// Pushes out what an earlier `write` took and still holds (TLS records). `Ok(())` when
    /// nothing is held any more.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
    /// Whether something is still held.
    fn has_unsent(&self) -> bool {
        false
    }
    /// Ends the sending side in an orderly way, as far as that goes without waiting.
    fn shutdown(&mut self) {}
    /// Our end of the connection, for SHOW: address and port; `unix` and the port in its file's
    /// name. `None` if it is not known.
    fn local_address(&self) -> Option<(String, u16)> {
        None
    }
    /// Whether the connection is encrypted.
    fn is_encrypted(&self) -> bool {
        false
    }
    /// What there is of MPTCP in it now; `None` if it is none.
    fn mptcp(&self) -> Option<Mptcp> {
        None
    }
}

/// What a readiness event is about; goes through epoll's 64 bits of user data.
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
    /// There is something to read (also the end of the stream).
    pub readable: bool,
    /// There is room to write.
    pub writable: bool,
    /// The other side has closed its sending half, or the connection is broken.
    pub hangup: bool,
    /// The connection is broken in both directions (a reset): nothing that is sent arrives.
    pub broken: bool,
}

/// A cancel request to be sent to a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CancelRequest {
    /// Which of the configured server addresses.
    pub server: ServerAddressId,
    /// Process id from BackendKeyData.
    pub process: u32,
    /// Key from BackendKeyData.
    pub key: Box<[u8]>,
    /// Where [`ToLoop::CancelDone`] goes.
    pub reply_to: LoopId,
    /// The backend's place there.
    pub backend: Slot,
}

/// A server address, by its place in the dialler's table. Never used twice in a process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ServerAddressId(pub u32);

/// What the engine asks of the world around it.
pub trait Host<S: Socket> {
    /// Watches a connection, edge-triggered, for everything. Readiness that is there already is
    /// reported. (That a server's connection takes bytes again need not be told before
    /// [`Engine::watch_for_room`] has named it.)
    fn watch(&mut self, socket: &S, token: Token) -> io::Result<()>;
    /// Stops the watch that loop `home` keeps on a connection.
    fn unwatch(&mut self, socket: &S, home: LoopId);
    /// Sends a message to a loop (also to this one).
    fn send(&mut self, to: LoopId, message: ToLoop<S>);
    /// Has a backend opened for the pool. It comes as [`ToLoop::Opened`] to loop `home`, or
    /// the pool is told of the failure ([`ToLoop::OpenFailed`]).
    fn open(&mut self, pool: &message::PoolRef<S>, home: LoopId);
    /// Has a connection opened that listens for a pool's clients, outside of the pool's size. It
    /// comes as [`ToLoop::ListenerOpened`] to loop `home`, or [`ToLoop::ListenerFailed`] does.
    fn open_listener(&mut self, pool: &message::PoolRef<S>, home: LoopId) {
        let error = ClientError::error(SqlState::FEATURE_NOT_SUPPORTED, "nobody listens here");
        self.send(home, ToLoop::ListenerFailed { pool: pool.clone(), error });
    }
    /// Has the idle connections to a database closed, on all servers of a pool, and none opened until
    /// what [`ToLoop::Vacated`] brings to the client is dropped.
    fn vacate(&mut self, pool: &message::PoolRef<S>, database: &[u8], client: ClientId) {
        let _ = (pool, database);
        self.send(client.home, ToLoop::Vacated { client, kept: std::sync::Arc::new(()) });
    }
    /// Has a cancel request sent; [`ToLoop::CancelDone`] comes when the server has closed that
    /// connection, which it does after it has signalled the backend.
    fn cancel(&mut self, request: CancelRequest);
    /// One event for the log: a connection closed, a fallback taken.
    fn event(&mut self, event: message::Event<'_>);
}

pub use table::Engine;

/// Writes to a connection what it takes, after what it did not take before; keeps the rest.
/// Returns how many bytes it took.
fn write_or_keep<S: Socket>(
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

/// Writes to a connection what it did not take before. Returns how many bytes it took; `kept`
/// gives its memory back once it is empty.
fn write_kept<S: Socket>(socket: &mut S, kept: &mut PendingBytes) -> io::Result<usize> {
    let pending = kept.take();
    let written = write_or_keep(socket, kept, &pending)?;
    socket.flush().or_else(|error| match error.kind() {
        io::ErrorKind::WouldBlock => Ok(()),
        _ => Err(error),
    })?;
    Ok(written)
}

#[cfg(test)]
mod tests;
