//! A sender and a receiver of ours, where PostgreSQL is not installed.
//!
//! # Model
//! Each connection is sent the same number of bytes and closed; the receiver writes what comes to its
//! standard output, where it is counted like that of psql. Both are programs of their own: they run
//! inside a host, under `hawser mptcp run`.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

/// At a time.
const PIECE_BYTES: usize = 128 << 10;

/// Sends `bytes` to each that connects to `port`, one after the other; ends only by an error.
///
/// # Errors
/// As listen(2) and accept(2).
pub fn send(port: u16, bytes: u64) -> io::Result<()> {
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port))?;
    for connection in listener.incoming() {
        let mut connection = connection?;
        // One that breaks off has had enough.
        let _ = io::copy(&mut io::repeat(b'x').take(bytes), &mut connection);
    }
    Ok(())
}

/// Writes what comes from there.
///
/// # Errors
/// As connect(2), read(2) and write(2).
pub fn take(from: SocketAddr) -> io::Result<()> {
    let mut connection = TcpStream::connect(from)?;
    let mut output = io::stdout().lock();
    let mut piece = vec![0; PIECE_BYTES];
    loop {
        match connection.read(&mut piece)? {
            0 => return output.flush(),
            count => output.write_all(&piece[..count])?,
        }
    }
}
