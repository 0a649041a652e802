//! Bytes on their way from a client to its server connection.

use crate::relay::backend::Backend;
use crate::relay::halt::Halt;
use crate::relay::socket::Socket;
use crate::relay::to_server::WriteError;

/// Runs from this size on are written from the buffer they were read into, not copied first.
const DIRECT_WRITE_BYTES: usize = 4096;

/// Bytes on their way from a client to its backend.
pub(crate) struct Passage<'a> {
    input: &'a [u8],
    /// Start of the run that is passed on unchanged.
    run: usize,
    /// Bytes before this have been processed.
    at: usize,
    /// Bytes before the run.
    pub(crate) out: Vec<u8>,
}

impl<'a> Passage<'a> {
    /// The passage of bytes that have been read. `room` is reused for what is written before them.
    pub(crate) fn of(input: &'a [u8], mut room: Vec<u8>) -> Self {
        room.clear();
        Self { input, run: 0, at: 0, out: room }
    }

    /// How many bytes have been processed.
    #[inline]
    pub(crate) fn done(&self) -> usize {
        self.at
    }

    /// The current message is passed on unchanged.
    #[inline]
    pub(crate) fn pass(&mut self, bytes: usize) {
        self.at += bytes;
    }

    /// The current message, as far as it has come.
    #[inline]
    pub(crate) fn current(&self, bytes: usize) -> &'a [u8] {
        &self.input[self.at..self.at + bytes]
    }

    /// The current message, and what has come after it.
    #[inline]
    pub(crate) fn rest(&self) -> &'a [u8] {
        &self.input[self.at..]
    }

    /// Ends the run, so that messages of Hawser's own can be put after it: never within a client's
    /// message, where the server would read them as part of it.
    pub(crate) fn cut<S: Socket>(&mut self, backend: &mut Backend<S>) -> Result<(), Halt> {
        debug_assert!(!backend.to_server.is_open(), "a client's message is open");
        if backend.to_server.is_open() {
            return Err(Halt::BackendLost(WriteError::Open.reason()));
        }
        self.end_run(backend)
    }

    #[inline]
    fn end_run<S: Socket>(&mut self, backend: &mut Backend<S>) -> Result<(), Halt> {
        let run = &self.input[self.run..self.at];
        if run.is_empty() {
            return Ok(());
        }
        self.run = self.at;
        if run.len() < DIRECT_WRITE_BYTES {
            self.out.extend_from_slice(run);
            return Ok(());
        }
        backend.relay(&self.out)?;
        self.out.clear();
        backend.relay(run)
    }

    /// Writes everything, a client's message as far as it has come.
    pub(crate) fn flush<S: Socket>(&mut self, backend: &mut Backend<S>) -> Result<(), Halt> {
        if self.out.is_empty() {
            let run = &self.input[self.run..self.at];
            self.run = self.at;
            if !run.is_empty() {
                backend.relay(run)?;
            }
        } else {
            self.end_run(backend)?;
            if !self.out.is_empty() {
                backend.relay(&self.out)?;
            }
        }
        backend.to_server.check();
        Ok(())
    }

    /// The current message is not passed on.
    pub(crate) fn skip(&mut self, bytes: usize) {
        debug_assert_eq!(self.run, self.at, "a run must be cut before it is skipped over");
        self.at += bytes;
        self.run = self.at;
    }
}
