//! What a backend says to its room: extension/inside.h has the messages.

use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use hawser_sys::pass;
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::memory::VERSION;
use super::{Expectations, Expected, Pair};
use crate::lock::locked;

/// Words of a message, before its bytes.
const MESSAGE_BYTES: usize = 16;
/// The most bytes after them: what a backend reads of a client at once.
const BYTES_MAX: u32 = 64 * 1024;
/// How long a backend has to say which it is.
const HELLO_WAIT: Duration = Duration::from_secs(5);

const HELLO: u32 = 1;
const FETCH: u32 = 2;
const RETURN: u32 = 3;
const LOST: u32 = 4;
const PAIR: u32 = 5;
const SCHEMA: u32 = 6;
const PAIR_OWED: u32 = 7;

const WELCOME: u32 = 1;
const CLIENT: u32 = 2;
const NONE: u32 = 3;

struct Message {
    kind: u32,
    slot: u32,
    generation: u32,
    bytes: Vec<u8>,
}

struct Link {
    stream: UnixStream,
    unwanted: Vec<OwnedFd>,
}

impl Link {
    async fn fill(&mut self, out: &mut Vec<u8>, count: usize) -> io::Result<()> {
        let mut part = [0; 4096];
        while out.len() < count {
            let want = (count - out.len()).min(part.len());
            let fds = &mut self.unwanted;
            let mut receive = || pass::receive(&self.stream, &mut part[..want], fds);
            let read = self.stream.async_io(Interest::READABLE, &mut receive).await?;
            self.unwanted.clear();
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            out.extend_from_slice(&part[..read]);
        }
        Ok(())
    }

    async fn next(&mut self) -> io::Result<Message> {
        let mut head = Vec::new();
        self.fill(&mut head, MESSAGE_BYTES).await?;
        let mut words = head
            .chunks_exact(4)
            .map(|word| u32::from_ne_bytes(word.try_into().unwrap_or_default()));
        let mut word = || words.next().unwrap_or_default();
        let (kind, slot, generation, count) = (word(), word(), word(), word());
        if count > BYTES_MAX {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut bytes = Vec::new();
        self.fill(&mut bytes, count as usize).await?;
        Ok(Message { kind, slot, generation, bytes })
    }

    /// Small, and the backend waits for it: it fits.
    fn say(&self, kind: u32, slot: u32, generation: u32, fds: &[BorrowedFd<'_>]) -> io::Result<()> {
        let mut message = Vec::with_capacity(MESSAGE_BYTES);
        for word in [kind, slot, generation, 0] {
            message.extend_from_slice(&word.to_ne_bytes());
        }
        match pass::send(&self.stream, &message, fds)? {
            MESSAGE_BYTES => Ok(()),
            _ => Err(io::ErrorKind::WriteZero.into()),
        }
    }
}

/// Serves a backend that has connected, to its end.
pub(super) async fn serve(stream: UnixStream, expected: &Expectations) {
    let mut link = Link { stream, unwanted: Vec::new() };
    let Ok(Ok(hello)) = timeout(HELLO_WAIT, link.next()).await else { return };
    let token = String::from_utf8_lossy(&hello.bytes).into_owned();
    let expected = locked(expected).remove(&token);
    let (HELLO, Some(expected)) = (hello.kind, expected) else {
        return tracing::warn!(
            process = hello.generation,
            "a process that this one does not expect wants to serve clients inside: refused"
        );
    };
    if hello.slot != VERSION {
        return tracing::warn!(
            version = hello.slot,
            own = VERSION,
            "the server's extension is of another version: clients are not served inside"
        );
    }
    let Expected { room, server, process, key, joined } = expected;
    let Some((number, seat)) = room.join(server, process, key) else { return };
    let mut closed = room.closed();
    if room.with_fds(|fds| link.say(WELCOME, number, seat, fds)).is_ok() {
        loop {
            let message = tokio::select! {
                message = link.next() => message,
                _ = closed.wait_for(|closed| *closed) => break,
            };
            let Ok(Message { kind, slot, generation, bytes }) = message else { break };
            match kind {
                FETCH => {
                    let said = room.with_client(slot, generation, |fd| match fd {
                        Some(fd) => link.say(CLIENT, slot, generation, &[fd]),
                        None => link.say(NONE, slot, generation, &[]),
                    });
                    if said.is_err() {
                        break;
                    }
                }
                RETURN => room.returned(slot, generation, bytes),
                LOST => room.lost(slot, generation),
                SCHEMA => room.schema_changed(),
                PAIR | PAIR_OWED => {
                    let owed = kind == PAIR_OWED;
                    if let Some(back) = room.leaves_with_backend(slot, generation, bytes, owed) {
                        // Nobody takes it if the process is about to end.
                        let _ = joined.send(Pair { back, owed });
                    }
                    return room.left(number);
                }
                _ => break,
            }
        }
    }
    drop(link);
    room.left(number);
    drop(joined);
}
