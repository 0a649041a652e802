//! Large results on one connection, timed where they arrive.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::stream::Target;
use crate::wire::{self, Walker};

/// Of one read. Larger ones are no faster on loopback: they leave the second-level cache.
const READ_BUFFER_BYTES: usize = 256 * 1024;
/// A server that sends nothing for so long is given up.
const SILENCE: Duration = Duration::from_secs(30);

trait Wire: Read + Write {}
impl<T: Read + Write> Wire for T {}

/// The bytes and seconds of one result, from the query's sending to ReadyForQuery.
pub(crate) struct Transfer {
    pub(crate) bytes: u64,
    pub(crate) seconds: f64,
}

/// A connection for large results.
pub(crate) struct Bulk {
    stream: Box<dyn Wire>,
    buffer: Vec<u8>,
}

impl Bulk {
    /// Connects and logs in, without TLS.
    ///
    /// # Errors
    /// Those of connecting, and the server's refusal.
    pub(crate) fn connect(target: &Target, user: &str, database: &str) -> io::Result<Self> {
        let stream: Box<dyn Wire> = match target {
            Target::Tcp(address) => {
                let stream = TcpStream::connect(address)?;
                stream.set_nodelay(true)?;
                stream.set_read_timeout(Some(SILENCE))?;
                Box::new(stream)
            }
            Target::Unix(path) => {
                let stream = UnixStream::connect(path)?;
                stream.set_read_timeout(Some(SILENCE))?;
                Box::new(stream)
            }
        };
        let mut bulk = Self { stream, buffer: vec![0; READ_BUFFER_BYTES] };
        let mut bytes = Vec::new();
        wire::startup(&mut bytes, user, database, wire::Sessions::default(), 0);
        bulk.exchange(&bytes)?;
        Ok(bulk)
    }

    /// Runs `sql` and takes its result.
    ///
    /// # Errors
    /// Those of the connection, and the server's error message.
    pub(crate) fn fetch(&mut self, sql: &str) -> io::Result<Transfer> {
        let mut bytes = Vec::new();
        wire::query(&mut bytes, |out| out.extend_from_slice(sql.as_bytes()));
        let started = Instant::now();
        let bytes = self.exchange(&bytes)?;
        Ok(Transfer { bytes, seconds: started.elapsed().as_secs_f64() })
    }

    fn exchange(&mut self, request: &[u8]) -> io::Result<u64> {
        self.stream.write_all(request)?;
        let mut walker = Walker::default();
        let (mut total, mut ready, mut error) = (0, false, None);
        while !ready {
            let got = self.stream.read(&mut self.buffer)?;
            if got == 0 {
                let text = error.unwrap_or_else(|| "the server has closed the connection".into());
                return Err(io::Error::other(text));
            }
            total += got as u64;
            walker.walk(&self.buffer[..got], |message| match message.kind {
                b'Z' => ready = true,
                b'E' => error = Some(wire::error_text(message.body)),
                _ => {}
            });
        }
        error.map_or(Ok(total), |text| Err(io::Error::other(text)))
    }
}
