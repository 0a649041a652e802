//! One direction of a connection.

use std::collections::VecDeque;
use std::io;
use std::time::Duration;

/// What travels: bytes, then perhaps an end.
#[derive(Debug)]
enum Piece {
    Bytes(Vec<u8>),
    End,
    Reset,
}

/// A bounded stream of bytes with delays.
///
/// # States
/// open ─► shut (the writer has ended it) ─► finished (the end has arrived);
/// any ─► broken (reads give what has arrived, then an error)
#[derive(Debug)]
pub(super) struct Pipe {
    capacity: usize,
    arrived: VecDeque<u8>,
    travelling: VecDeque<(Duration, Piece)>,
    travelling_bytes: usize,
    shut: bool,
    finished: bool,
    broken: bool,
}

impl Pipe {
    pub(super) fn new(capacity: usize) -> Self {
        Self {
            capacity,
            arrived: VecDeque::new(),
            travelling: VecDeque::new(),
            travelling_bytes: 0,
            shut: false,
            finished: false,
            broken: false,
        }
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    pub(super) fn held(&self) -> usize {
        self.arrived.len() + self.travelling_bytes
    }

    pub(super) fn space(&self) -> usize {
        self.capacity.saturating_sub(self.held())
    }

    pub(super) fn is_shut(&self) -> bool {
        self.shut
    }

    pub(super) fn is_finished(&self) -> bool {
        self.finished
    }

    pub(super) fn is_broken(&self) -> bool {
        self.broken
    }

    pub(super) fn is_unread(&self) -> bool {
        !self.arrived.is_empty()
    }

    pub(super) fn is_readable(&self) -> bool {
        !self.arrived.is_empty() || self.finished || self.broken
    }

    pub(super) fn next_due(&self) -> Option<Duration> {
        self.travelling.front().map(|(due, _)| *due)
    }

    /// Nothing overtakes: a piece arrives no earlier than the one before it.
    fn queue(&mut self, due: Duration, piece: Piece) {
        let due = self.travelling.back().map_or(due, |(last, _)| due.max(*last));
        self.travelling.push_back((due, piece));
    }

    pub(super) fn send(&mut self, due: Duration, bytes: Vec<u8>) {
        self.travelling_bytes += bytes.len();
        self.queue(due, Piece::Bytes(bytes));
    }

    pub(super) fn shut(&mut self, due: Duration) {
        if !self.shut && !self.broken {
            self.shut = true;
            self.queue(due, Piece::End);
        }
    }

    /// The writer breaks it: what is on its way is lost, the reader notices at `due`.
    pub(super) fn reset(&mut self, due: Duration) {
        self.travelling.clear();
        self.travelling_bytes = 0;
        self.shut = true;
        self.queue(due, Piece::Reset);
    }

    /// Broken at once: the writer's further writes fail.
    pub(super) fn abort(&mut self) {
        self.travelling.clear();
        self.travelling_bytes = 0;
        self.broken = true;
    }

    /// What has arrived and what travels may still be read; then it is broken.
    pub(super) fn abort_at_end(&mut self) {
        self.shut = true;
        self.queue(Duration::ZERO, Piece::Reset);
    }

    /// Takes in what is due; true where the reader has something new to see.
    pub(super) fn arrive(&mut self, now: Duration) -> bool {
        let mut news = false;
        while self.travelling.front().is_some_and(|(due, _)| *due <= now) {
            news = true;
            match self.travelling.pop_front() {
                Some((_, Piece::Bytes(bytes))) => {
                    self.travelling_bytes -= bytes.len();
                    self.arrived.extend(bytes);
                }
                Some((_, Piece::End)) => self.finished = true,
                Some((_, Piece::Reset)) => self.broken = true,
                None => {}
            }
        }
        news
    }

    pub(super) fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.arrived.is_empty() {
            return match (self.broken, self.finished) {
                (true, _) => Err(io::ErrorKind::ConnectionReset.into()),
                (_, true) => Ok(0),
                _ => Err(io::ErrorKind::WouldBlock.into()),
            };
        }
        let taken = buffer.len().min(self.arrived.len());
        for (place, byte) in buffer.iter_mut().zip(self.arrived.drain(..taken)) {
            *place = byte;
        }
        Ok(taken)
    }
}
