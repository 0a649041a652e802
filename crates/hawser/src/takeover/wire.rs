//! The messages between the two processes, and their encoding.
//!
//! # Model
//! Frames on a unix stream socket: the length of the rest in four bytes (big-endian), then JSON. Descriptors
//! go with the first byte of their frame.
//! ```text
//!   successor                      predecessor
//!   Hello          ──────────────►
//!                  ◄────────────── Welcome, with the listening sockets      | Refused
//!   (starts: whatever is wrong ends it here, and the predecessor goes on)
//!   Ready          ──────────────►
//!                  ◄────────────── Given: it accepts no more                | Refused
//!                  ◄────────────── Pool, Client with its socket ...
//!   Taken | Kept   ──────────────►
//!   Cancel         ──────────────►
//!   Command        ──────────────► (PAUSE, RELOAD ...: for the clients that stay)
//!                  ◄────────────── Cancelled, Obeyed, Held, Rest
//!   Ending         ──────────────► (the service is stopped: both end)
//!                  ◄────────────── Done: no client is left there
//! ```
//! # Invariants
//! * a message of an unknown kind is [`Message::Unknown`], and ignored
//! * a frame has [`FRAME_BYTES_MAX`] at most

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use hawser_sys::pass;
use hawser_sys::stream::shutdown_both;
use serde::{Deserialize, Serialize};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::{Mutex, mpsc};

use super::order::Order;
use super::record::{Bytes, Client, Pool};
use crate::listeners::Purpose;

/// The generation of this format. A peer of another one is refused.
pub const FORMAT: u32 = 1;
/// The longest frame: a client whose statements are longer than that stays.
pub const FRAME_BYTES_MAX: usize = 64 << 20;
/// The most that is read at once.
const READ_BYTES: usize = 64 * 1024;

/// A message.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(tag = "type")]
pub enum Message {
    /// A process wants to be the successor.
    Hello {
        /// [`FORMAT`].
        format: u32,
        /// Its version.
        version: String,
        /// Its process id.
        pid: u32,
    },
    /// Accepted; the listening sockets come with this.
    Welcome {
        /// The other one's version.
        version: String,
        /// Its process id.
        pid: u32,
        /// What each descriptor is.
        listening: Vec<Purpose>,
        /// The pools whose clients will come, as far as they are known.
        #[serde(default)]
        pools: Vec<Pool>,
        /// Its clients.
        #[serde(default)]
        clients: usize,
        /// Its server connections.
        #[serde(default)]
        servers: usize,
    },
    /// Refused.
    Refused {
        /// Why.
        reason: String,
    },
    /// The successor can serve.
    Ready,
    /// The predecessor accepts no more: the successor does.
    Given {
        /// Databases that let no client in (DISABLE).
        #[serde(default)]
        disabled: Vec<String>,
    },
    /// A pool.
    Pool(Pool),
    /// A client; its socket comes with this.
    Client {
        /// By what it is called here.
        number: u64,
        /// The number of its pool.
        pool: u32,
        /// What its session is.
        record: Box<Client>,
    },
    /// The successor serves that client from here on.
    Taken {
        /// Which.
        number: u64,
    },
    /// The successor does not take that client.
    Kept {
        /// Which.
        number: u64,
        /// Why.
        reason: String,
    },
    /// A cancel request, for a client that the predecessor may have.
    Cancel {
        /// By what it is called here.
        number: u64,
        /// Process id that it names.
        process: u32,
        /// Key that it carries.
        key: Bytes,
    },
    /// It has been handled.
    Cancelled {
        /// Which.
        number: u64,
    },
    /// A command of an operator, which holds for the predecessor's clients, too.
    Command {
        /// By what it is called here.
        number: u64,
        /// The command.
        order: Order,
    },
    /// The result of a command.
    Obeyed {
        /// Which.
        number: u64,
        /// Why it failed, if it did.
        error: Option<String>,
    },
    /// How many server connections of a pool the predecessor has.
    Held {
        /// The number of the pool.
        pool: u32,
        /// How many.
        count: u32,
    },
    /// How many clients the predecessor still has.
    Rest {
        /// How many.
        clients: usize,
    },
    /// The service is stopped.
    Ending,
    /// The predecessor has no client any more, and ends.
    Done,
    /// A message that this version does not know.
    #[serde(other)]
    Unknown,
}

/// Reads messages.
#[derive(Debug)]
pub struct Reader {
    stream: Arc<UnixStream>,
    fds: Vec<OwnedFd>,
    buffer: Vec<u8>,
    /// Whether the start of the next frame is known.
    is_aligned: bool,
}

/// Writes messages, each of them whole.
#[derive(Clone, Debug)]
pub struct Writer {
    stream: Arc<UnixStream>,
    turn: Arc<Mutex<()>>,
}

/// A message with its descriptors, or the end.
pub type Said = io::Result<(Message, Vec<OwnedFd>)>;

/// Both halves of a connection.
pub fn split(stream: UnixStream) -> (Reader, Writer) {
    let stream = Arc::new(stream);
    let reader =
        Reader { stream: stream.clone(), fds: Vec::new(), buffer: Vec::new(), is_aligned: true };
    (reader, Writer { stream, turn: Arc::default() })
}

impl Reader {
    /// What it reads.
    pub fn socket(&self) -> &UnixStream {
        &self.stream
    }

    /// The next message, with its descriptors. Not to be cancelled in the middle.
    ///
    /// # Errors
    /// The connection has ended ([`io::ErrorKind::UnexpectedEof`]), or what came is no message.
    pub async fn next(&mut self) -> io::Result<(Message, Vec<OwnedFd>)> {
        self.buffer.clear();
        self.is_aligned = false;
        self.fill(4).await?;
        let length = u32::from_be_bytes(self.buffer[..4].try_into().unwrap_or_default()) as usize;
        if length > FRAME_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the frame is too long"));
        }
        self.buffer.clear();
        self.fill(length).await?;
        self.is_aligned = true;
        let message = serde_json::from_slice(&self.buffer)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error));
        if self.buffer.capacity() > 4 * READ_BYTES {
            self.buffer = Vec::new();
        }
        let fds = std::mem::take(&mut self.fds);
        Ok((message?, fds))
    }

    /// Reads in a task from here on, so that messages can be awaited beside other things. Messages
    /// after an unreadable one come, too: they may confirm clients.
    pub fn listen(mut self) -> mpsc::UnboundedReceiver<Said> {
        let (said, incoming) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            loop {
                let message = self.next().await;
                let ended = message.is_err() && !self.is_aligned;
                if said.send(message).is_err() || ended {
                    return;
                }
            }
        });
        incoming
    }

    /// Reads up to `length` bytes and no further: what follows has descriptors of its own.
    async fn fill(&mut self, length: usize) -> io::Result<()> {
        let mut part = [0; READ_BYTES];
        while self.buffer.len() < length {
            let want = (length - self.buffer.len()).min(part.len());
            let fds = &mut self.fds;
            let mut receive = || pass::receive(&*self.stream, &mut part[..want], fds);
            let read = self.stream.async_io(Interest::READABLE, &mut receive).await?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            self.buffer.extend_from_slice(&part[..read]);
        }
        Ok(())
    }
}

/// An encoded message. `None`: it is too long.
pub fn frame(message: &Message) -> Option<Vec<u8>> {
    let mut out = vec![0; 4];
    // Strings and numbers: it cannot fail.
    serde_json::to_writer(&mut out, message).ok()?;
    let length = out.len() - 4;
    if length > FRAME_BYTES_MAX {
        return None;
    }
    out[..4].copy_from_slice(&u32::try_from(length).ok()?.to_be_bytes());
    Some(out)
}

impl Writer {
    /// Ends the conversation both ways: what the other one has sent by now can be read, and it can
    /// send no more.
    pub fn end(&self) {
        let _ = shutdown_both(&*self.stream); // it may have ended already
    }

    /// Sends a message.
    ///
    /// # Errors
    /// The connection has ended, or the message is too long ([`io::ErrorKind::InvalidInput`]).
    pub async fn send(&self, message: &Message, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let frame = frame(message).ok_or(io::ErrorKind::InvalidInput)?;
        self.send_frame(&frame, fds).await
    }

    /// The same, of a message that [`frame`] has made.
    ///
    /// # Errors
    /// The connection has ended.
    pub async fn send_frame(&self, frame: &[u8], fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let _turn = self.turn.lock().await;
        let (mut rest, mut fds) = (frame, fds);
        while !rest.is_empty() {
            let send = || pass::send(&*self.stream, rest, fds);
            let sent = self.stream.async_io(Interest::WRITABLE, send).await?;
            rest = &rest[sent..];
            fds = &[];
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::*;

    #[tokio::test]
    async fn messages_and_their_descriptors_stay_together() {
        let (near, far) = UnixStream::pair().unwrap();
        let (_, writer) = split(near);
        let (mut reader, _) = split(far);
        let (one, _other) = std::os::unix::net::UnixStream::pair().unwrap();
        let long = "x".repeat(300_000);
        let sending = async {
            writer.send(&Message::Kept { number: 1, reason: long.clone() }, &[]).await.unwrap();
            writer.send(&Message::Ready, &[one.as_fd(), one.as_fd()]).await.unwrap();
            writer.send(&Message::Taken { number: 7 }, &[one.as_fd()]).await.unwrap();
            drop(writer);
        };
        let reading = async {
            let (first, none) = reader.next().await.unwrap();
            assert!(matches!(first, Message::Kept { number: 1, reason } if reason == long));
            let (second, two) = reader.next().await.unwrap();
            assert!(matches!(second, Message::Ready));
            let (third, other) = reader.next().await.unwrap();
            assert!(matches!(third, Message::Taken { number: 7 }));
            assert_eq!((none.len(), two.len(), other.len()), (0, 2, 1));
        };
        tokio::join!(sending, reading);
    }

    #[tokio::test]
    async fn a_kind_that_is_not_known_is_passed_over_and_nonsense_is_an_error() {
        let (near, far) = UnixStream::pair().unwrap();
        let (_, writer) = split(near);
        let (mut reader, _) = split(far);
        let unknown = br#"{"type": "Dream", "of": 3}"#;
        let length = u32::try_from(unknown.len()).unwrap().to_be_bytes();
        writer.send_frame(&[&length[..], unknown].concat(), &[]).await.unwrap();
        assert!(matches!(reader.next().await.unwrap().0, Message::Unknown));
        let unknown = br#"{"type": "Command", "number": 1, "order": {"verb": "Dance", "with": 2}}"#;
        let length = u32::try_from(unknown.len()).unwrap().to_be_bytes();
        writer.send_frame(&[&length[..], unknown].concat(), &[]).await.unwrap();
        let (read, _) = reader.next().await.unwrap();
        assert!(matches!(read, Message::Command { order: Order::Unknown, .. }), "{read:?}");
        writer.send_frame(&[0, 0, 0, 1, b'x'], &[]).await.unwrap();
        assert_eq!(reader.next().await.unwrap_err().kind(), io::ErrorKind::InvalidData);
        writer.send_frame(&[255; 4], &[]).await.unwrap();
        assert_eq!(reader.next().await.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
