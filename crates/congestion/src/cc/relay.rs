//! A connection that goes over the path with a chosen algorithm on both of its ends.
//!
//! # Model
//! ```text
//!   psql ──► near relay ══ Order::Relay, then bytes as they are ══► far relay ──► PostgreSQL
//!            loopback           the path: measured here               its own network
//! ```
//! So PostgreSQL's own programs, as they are, are seen over any algorithm, without a setting of either
//! machine being changed.
//!
//! # Limits
//! After the token, bytes are relayed as the programs send them: encrypted if they encrypt them. A
//! relay reaches the one server that `hawser cc serve --postgres` names, which asks for its own
//! passwords.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long the server may take to answer.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// How often the end of its time is looked for.
const LOOK: Duration = Duration::from_millis(500);
/// A relay lasts this much longer than a transfer may: logins and the end of a program.
const GRACE: Duration = Duration::from_secs(60);
const READ_BYTES: usize = 256 << 10;

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the first connection to the second.
    There,
    /// Back.
    Back,
}

/// Connects to `host:port`.
///
/// # Errors
/// As connect(2) to the last address, or the name has none.
pub fn dial(to: &str) -> io::Result<TcpStream> {
    let mut last = io::Error::from(io::ErrorKind::NotFound);
    for address in to.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_MAX) {
            Ok(stream) => {
                stream.set_nodelay(true)?;
                return Ok(stream);
            }
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// Carries bytes both ways until one of the connections ends, or the time of a transfer is over; gives
/// how many went there and came back. PostgreSQL has no use for half a connection: a program that is gone
/// looks the same, and its query would go on. `count` gets each piece as it arrives.
///
/// # Errors
/// The sockets cannot be used at all; a connection that breaks is an end.
pub fn both_ways(
    first: &TcpStream,
    second: &TcpStream,
    seconds: u32,
    count: impl FnMut(Way, usize) + Send,
) -> io::Result<(u64, u64)> {
    let until = Instant::now() + Duration::from_secs(seconds.into()) + GRACE;
    for stream in [first, second] {
        stream.set_read_timeout(Some(LOOK))?;
        stream.set_nodelay(true)?;
    }
    let count = Mutex::new(count);
    let broken = AtomicBool::new(false);
    let carry = |mut from: &TcpStream, mut to: &TcpStream, way| {
        let mut buffer = vec![0; READ_BYTES];
        let mut bytes = 0;
        while Instant::now() < until && !broken.load(Ordering::Acquire) {
            match from.read(&mut buffer) {
                Ok(0) => break,
                Ok(length) => {
                    bytes += length as u64;
                    if let Ok(mut count) = count.lock() {
                        count(way, length);
                    }
                    if to.write_all(&buffer[..length]).is_err() {
                        break;
                    }
                }
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::WouldBlock
                            | io::ErrorKind::TimedOut
                            | io::ErrorKind::Interrupted
                    ) => {}
                Err(_) => break,
            }
        }
        broken.store(true, Ordering::Release);
        for stream in [first, second] {
            let _ = stream.shutdown(Shutdown::Both);
        }
        bytes
    };
    let panicked = || io::Error::other("a relay has panicked");
    std::thread::scope(|scope| {
        let there = scope.spawn(|| carry(first, second, Way::There));
        let back = carry(second, first, Way::Back);
        Ok((there.join().map_err(|_| panicked())?, back))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (near, listener.accept().unwrap().0)
    }

    #[test]
    fn bytes_go_both_ways_and_the_end_of_one_is_the_end_of_both() {
        let (mut client, first) = pair();
        let (second, mut server) = pair();
        let relay = std::thread::spawn(move || {
            let mut seen = Vec::new();
            let carried = both_ways(&first, &second, 10, |way, length| seen.push((way, length)));
            (carried.unwrap(), seen)
        });
        client.write_all(b"question").unwrap();
        let mut asked = [0; 8];
        server.read_exact(&mut asked).unwrap();
        assert_eq!(&asked, b"question");
        server.write_all(b"an answer").unwrap();
        drop(server);
        let mut answer = Vec::new();
        client.read_to_end(&mut answer).unwrap();
        assert_eq!(answer, b"an answer");
        let (carried, seen) = relay.join().unwrap();
        assert_eq!(carried, (8, 9));
        assert_eq!(
            seen.iter().filter(|(way, _)| *way == Way::Back).map(|(_, n)| n).sum::<usize>(),
            9
        );
    }

    #[test]
    fn a_client_that_is_gone_ends_the_servers_side_too() {
        let (client, first) = pair();
        let (second, mut server) = pair();
        let relay = std::thread::spawn(move || both_ways(&first, &second, 10, |_, _| ()));
        drop(client);
        server.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        assert_eq!(server.read(&mut [0; 8]).unwrap(), 0);
        relay.join().unwrap().unwrap();
    }

    #[test]
    fn a_server_that_dies_ends_the_client() {
        let (mut client, first) = pair();
        let (second, server) = pair();
        let relay = std::thread::spawn(move || both_ways(&first, &second, 10, |_, _| ()));
        drop(server);
        client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        assert_eq!(client.read(&mut [0; 8]).unwrap(), 0);
        drop(client);
        relay.join().unwrap().unwrap();
    }

    #[test]
    fn an_absent_server_is_an_error() {
        let closed = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        assert!(dial(&closed.to_string()).is_err());
    }
}
