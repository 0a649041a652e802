//! What the line to a host is: rate and round trip.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::time::{Duration, Instant};

use hawser_congestion::cc::bench::Far;
use hawser_congestion::cc::report::Path;
use hawser_congestion::cc::serve;
use hawser_congestion::cc::transfer::Direction;
use hawser_congestion::cc::wire::Token;
use hawser_lab::wan::quantity::Rate;

use crate::config::host_and_port;

/// How long an answer, or a refusal, may take.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// The least of so many round trips counts.
const CONNECTS: usize = 3;

/// A line, and how it is known.
#[derive(Clone, Debug)]
pub struct Line {
    /// Rate and round trip.
    pub path: Path,
    /// For a reader.
    pub known: String,
}

impl Line {
    /// `95 Mbit/s, 217.0 ms (...)`.
    #[must_use]
    pub fn to_text(&self) -> String {
        let Path { bits_per_second, rtt_us } = self.path;
        let rate = Rate::from_bits_per_second(bits_per_second).map(|rate| rate.to_string());
        format!("{}, {:.1} ms ({})", rate.unwrap_or_default(), rtt_us as f64 / 1e3, self.known)
    }
}

/// The line to `host`, where `hawser cc serve` runs.
///
/// # Errors
/// It does not answer, or no datagram gets through.
pub fn measured(host: &str, token: Token) -> Result<Line, String> {
    let there = host_and_port(host, serve::PORT_DEFAULT);
    let path = Far::find(&there, token)
        .and_then(|far| far.path(&[Direction::Down, Direction::Up]))
        .map_err(|error| error.to_string())?;
    let Some(best) = path.iter().max_by(|a, b| a.ceiling.total_cmp(&b.ceiling)) else {
        return Err(format!(
            "{there}: no datagram gets through, so the line is not measured: open UDP port {} on \
             {host}, or give --rate and --rtt",
            serve::PORT_DEFAULT
        ));
    };
    let loss = path.iter().map(|one| one.loss).fold(0.0, f64::max) * 100.0;
    let path =
        Path { bits_per_second: best.ceiling as u64, rtt_us: (best.rtt_ms * 1e3).max(1.0) as u64 };
    Ok(Line { path, known: format!("measured by datagrams, {loss:.3} % lost") })
}

/// The round trip to a port, by the answer to a connect: a refusal takes a round trip, too.
///
/// # Errors
/// The name has no address, or nothing answers.
pub fn round_trip(host: &str, port: u16) -> Result<Duration, String> {
    let there = host_and_port(host, port);
    let found = there.to_socket_addrs().map_err(|error| {
        format!("{host} has no address: {error}. Give an address, or a name that resolves here")
    })?;
    let found: Vec<SocketAddr> = found.collect();
    let answers = found
        .iter()
        .filter_map(|address| (0..CONNECTS).filter_map(|_| connect(*address).ok()).min());
    answers.min().ok_or_else(|| {
        format!(
            "{there} does not answer, not even with a refusal: open TCP port {port} in the firewalls \
             before {host}, or give another port by HOST:PORT"
        )
    })
}

fn connect(address: SocketAddr) -> std::io::Result<Duration> {
    let begun = Instant::now();
    match TcpStream::connect_timeout(&address, CONNECT_MAX) {
        Err(error) if error.kind() != ErrorKind::ConnectionRefused => Err(error),
        _ => Ok(begun.elapsed()),
    }
}
