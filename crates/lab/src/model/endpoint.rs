//! A backend at the end of a simulated connection.

use super::backend::{Ending, ModelBackend};
use super::cluster::ModelServer;
use crate::net::SimSocket;

/// Bytes read at a time.
const READ_BYTES: usize = 4096;
/// The server reads no further while it has more than this to send, as a process that blocks.
const UNSENT_BYTES_MAX: usize = 64 << 10;

/// One accepted connection of a simulated server.
#[derive(Debug)]
pub struct ServerEndpoint {
    /// What answers; faults are injected here.
    pub backend: ModelBackend,
    socket: Option<SimSocket>,
    unsent: Vec<u8>,
}

impl ServerEndpoint {
    /// Accepts a connection.
    #[must_use]
    pub fn accept(server: &ModelServer, socket: SimSocket) -> Self {
        Self { backend: server.connect(), socket: Some(socket), unsent: Vec::new() }
    }

    /// Reads, handles and writes what it can now; harmless at any time.
    pub fn run(&mut self) {
        let Some(socket) = &self.socket else { return };
        let mut buffer = [0; READ_BYTES];
        loop {
            self.backend.run();
            let taken = self.backend.take_output();
            let progress = !taken.is_empty();
            self.unsent.extend(taken);
            let mut broken = false;
            while !self.unsent.is_empty() {
                match socket.write(&self.unsent) {
                    Ok(sent) => drop(self.unsent.drain(..sent)),
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                    Err(_) => {
                        broken = true;
                        break;
                    }
                }
            }
            let blocked = self.unsent.len() + self.backend.output_bytes() > UNSENT_BYTES_MAX;
            let heard = if blocked || self.backend.ending().is_some() {
                false
            } else {
                match socket.read(&mut buffer) {
                    Ok(0) => {
                        self.backend.hang_up();
                        true
                    }
                    Ok(read) => {
                        self.backend.receive(&buffer[..read]);
                        true
                    }
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => false,
                    Err(_) => {
                        broken = true;
                        false
                    }
                }
            };
            if broken {
                self.backend.hang_up();
                self.socket = None;
                return;
            }
            match self.backend.ending() {
                Some(Ending::Reset) => {
                    socket.reset();
                    self.socket = None;
                    return;
                }
                Some(Ending::Closed)
                    if self.unsent.is_empty() && self.backend.output_bytes() == 0 =>
                {
                    self.socket = None;
                    return;
                }
                _ => {}
            }
            if !heard && !progress {
                return;
            }
        }
    }

    /// The connection is gone.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.socket.is_none()
    }

    /// The connection's socket, to register it.
    #[must_use]
    pub fn socket(&self) -> Option<&SimSocket> {
        self.socket.as_ref()
    }
}
