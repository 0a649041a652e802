//! Real datagrams with the senders and receivers of virtual time.
//!
//! # Model       two threads for each [`Traffic`]: one sends and takes answers, one receives and
//!               answers, by sockets in the namespaces of a link's two ends. Numbers and times of
//!               sending travel in the payload; both ends read the same clock
//! # Limits      waking up adds some tens of microseconds to a delay

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use hawser_sys::namespace;
use hawser_sys::precision::{self, Readable};

use super::Laboratory;
use crate::wan::network::Port;
use crate::wan::traffic::{Received, Sender, Step};
use crate::wan::virtual_time::{Outcome, Traffic};

/// From the call to time 0 of the traffic: threads have started by then.
const LEAD: Duration = Duration::from_millis(50);
/// A receiver ends when its sender has and nothing has come for this long, beside the delay.
const QUIET: Duration = Duration::from_millis(500);
/// Number and time of sending.
const STAMP_BYTES: usize = 16;

/// Runs traffic until the last packet has had its time to arrive. Payloads are of at least 16 bytes.
///
/// # Errors
/// As socket(2), bind(2) and send(2) inside the namespaces.
pub fn run(laboratory: &Laboratory, traffic: &[Traffic]) -> io::Result<Vec<Outcome>> {
    let base = laboratory.now() + LEAD;
    std::thread::scope(|scope| {
        let mut running = Vec::new();
        for of in traffic {
            let there = Port { end: of.from.end.other(), ..of.from };
            let (from_port, to_port) = of.flow.ports();
            let near = socket(laboratory, of.from, from_port)?;
            let far = socket(laboratory, there, to_port)?;
            near.connect(far.local_addr()?)?;
            running.push((of, near, far));
        }
        let mut threads = Vec::new();
        for (of, near, far) in running {
            threads.push(scope.spawn(move || one(laboratory, *of, base, &near, &far)));
        }
        let join = |thread: std::thread::ScopedJoinHandle<'_, io::Result<Outcome>>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect()
    })
}

fn socket(laboratory: &Laboratory, port: Port, number: u16) -> io::Result<UdpSocket> {
    let description = laboratory.description();
    let host = description.links[port.link].host(port.end);
    let address = IpAddr::from(description.addresses(port).0);
    let bind = || UdpSocket::bind(SocketAddr::new(address, number));
    let socket = namespace::within(laboratory.host(host), bind)??;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// Wakes this thread as precisely as it may be.
fn be_precise() -> io::Result<()> {
    // Without the right the figures are a little worse, and are measured all the same.
    let _ = precision::come_before_ordinary();
    precision::drop_timer_slack()
}

fn one(
    laboratory: &Laboratory,
    of: Traffic,
    base: Duration,
    near: &UdpSocket,
    far: &UdpSocket,
) -> io::Result<Outcome> {
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let receiver = scope.spawn(|| receive(laboratory, of, far, &is_done));
        let sent = send(laboratory, of, base, near);
        is_done.store(true, Ordering::Release);
        let received = receiver.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        Ok(Outcome { sent: sent?, received: received? })
    })
}

fn send(
    laboratory: &Laboratory,
    of: Traffic,
    base: Duration,
    socket: &UdpSocket,
) -> io::Result<u64> {
    be_precise()?;
    let mut sender = Sender::new(of.pattern, base + of.begin, of.lasts);
    let mut payload = vec![0; size(of.payload_bytes)];
    let mut answer = [0; STAMP_BYTES];
    let descriptors = [socket];
    let mut readable = Readable::new(&descriptors);
    loop {
        while let Ok(STAMP_BYTES..) = socket.recv(&mut answer) {
            sender.answered(stamp(&answer).0);
        }
        let now = laboratory.now();
        match sender.step(now) {
            Step::Send(number) => {
                write_stamp(&mut payload, number, now);
                socket.send(&payload)?;
            }
            Step::Wait(until) => {
                readable.wait(Some(until.saturating_sub(laboratory.now())))?;
            }
            Step::Done => return Ok(sender.sent()),
        }
    }
}

fn receive(
    laboratory: &Laboratory,
    of: Traffic,
    socket: &UdpSocket,
    is_done: &AtomicBool,
) -> io::Result<Received> {
    be_precise()?;
    let mut received = Received::default();
    let mut place = vec![0; size(of.payload_bytes)];
    let mut answer = vec![0; size(of.answer_bytes)];
    let wants_answers = Sender::new(of.pattern, of.begin, of.lasts).wants_answers();
    let quiet = QUIET + longest_delay(laboratory, of.from);
    let descriptors = [socket];
    let mut readable = Readable::new(&descriptors);
    loop {
        let is_last = is_done.load(Ordering::Acquire);
        if !readable.wait(Some(quiet))? && is_last {
            return Ok(received);
        }
        while let Ok((length @ STAMP_BYTES.., from)) = socket.recv_from(&mut place) {
            let now = laboratory.now();
            let (number, sent) = stamp(&place);
            received.record(now, number, sent, length as u64);
            if wants_answers {
                write_stamp(&mut answer, number, now);
                socket.send_to(&answer, from)?;
            }
        }
    }
}

fn longest_delay(laboratory: &Laboratory, from: Port) -> Duration {
    let paths = &laboratory.description().links[from.link].paths;
    paths.iter().map(|path| path.wire(from.end).delay * 2).max().unwrap_or_default()
}

fn size(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX).clamp(STAMP_BYTES, 65_000)
}

fn write_stamp(payload: &mut [u8], number: u64, now: Duration) {
    let ns = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX);
    payload[..8].copy_from_slice(&number.to_le_bytes());
    payload[8..STAMP_BYTES].copy_from_slice(&ns.to_le_bytes());
}

/// Number and time of sending; `payload` has both.
fn stamp(payload: &[u8]) -> (u64, Duration) {
    let word = |at: usize| payload[at..at + 8].try_into().map_or(0, u64::from_le_bytes);
    (word(0), Duration::from_nanos(word(8)))
}
