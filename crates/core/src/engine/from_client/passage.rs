//! Bytes on their way from a client to its server connection.

use crate::engine::backend::Backend;
use crate::engine::halt::Halt;
use crate::engine::socket::Socket;
use crate::engine::to_server::WriteError;

/// Runs from this size on are written from the buffer they were read into, not copied first.
const DIRECT_WRITE_BYTES: usize = 4096;

/// Bytes on their way from a client to its backend.
pub(in crate::engine) struct Passage<'a> {
    input: &'a [u8],
    /// Start of the run that is passed on unchanged.
    run: usize,
    /// Bytes before this have been processed.
    at: usize,
    /// Bytes before the run.
    pub(in crate::engine) out: Vec<u8>,
}

impl<'a> Passage<'a> {
    /// The passage of bytes that have been read. `room` is reused for what is written before them.
    pub(in crate::engine) fn of(input: &'a [u8], mut room: Vec<u8>) -> Self {
        room.clear();
        Self { input, run: 0, at: 0, out: room }
    }

    /// How many bytes have been processed.
    #[inline]
    pub(in crate::engine) fn done(&self) -> usize {
        self.at
    }

    /// The current message is passed on unchanged.
    #[inline]
    pub(in crate::engine) fn pass(&mut self, bytes: usize) {
        self.at += bytes;
    }

    /// The current message, as far as it has come.
    #[inline]
    pub(in crate::engine) fn current(&self, bytes: usize) -> &'a [u8] {
        &self.input[self.at..self.at + bytes]
    }

    /// The current message, and what has come after it.
    #[inline]
    pub(in crate::engine) fn rest(&self) -> &'a [u8] {
        &self.input[self.at..]
    }

    /// Ends the run, so that messages of Hawser's own can be put after it: never within a client's
    /// message, where the server would read them as part of it.
    pub(in crate::engine) fn cut<S: Socket>(
        &mut self,
        backend: &mut Backend<S>,
    ) -> Result<(), Halt> {
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
    pub(in crate::engine) fn flush<S: Socket>(
        &mut self,
        backend: &mut Backend<S>,
    ) -> Result<(), Halt> {
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
    pub(in crate::engine) fn skip(&mut self, bytes: usize) {
        debug_assert_eq!(self.run, self.at, "a run must be cut before it is skipped over");
        self.at += bytes;
        self.run = self.at;
    }
}
