//! How late the kernel sends what its queues hold, here and now.
//!
//! # Model
//! A queue like those of the links, in namespaces of its own: each time two packets are sent through
//! it, of which the second has to wait for 10 ms. When it comes is known, and how late it comes is
//! what packets of links would be late by, too: the same timers, the same softirq. The sender's and
//! the receiver's own wake-ups are in it, so this is rather too much than too little.
//!
//! # Why not     stamps in the packets of the experiment: there is no place for them

use std::io;
use std::net::UdpSocket;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hawser_sys::namespace;
use hawser_sys::precision;
use hawser_sys::rtnetlink::Routing;
use hawser_sys::rtnetlink::queueing::{QueueBound, TokenBucket};

use super::super::lateness::{Lateness, LatenessCounts};

const INTERFACE: &str = "probe";
const NEAR: [u8; 4] = [10, 77, 255, 1];
const FAR: [u8; 4] = [10, 77, 255, 2];
const HARDWARE: [u8; 6] = [0x02, 0x77, 0, 0, 1, 0];
/// Of a probe, with all headers: 100 bytes of payload.
const PROBE_BYTES: u32 = 142;
const PAYLOAD_BYTES: usize = 100;
/// How long the second has to wait.
const WAIT: Duration = Duration::from_millis(10);
/// From one pair to the next, beside the wait: the queue must be idle by then.
const PAUSE: Duration = Duration::from_millis(20);
/// A probe that takes longer is not waited for.
const LOST: Duration = Duration::from_secs(2);

/// The thread that probes. Dropping this ends it.
#[derive(Debug)]
pub(super) struct Probes {
    lateness: Arc<Lateness>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Probes {
    pub(super) fn start() -> io::Result<Self> {
        let (near, far) = sockets()?;
        let lateness = Arc::new(Lateness::default());
        let is_over = Arc::new(AtomicBool::new(false));
        let run = {
            let (lateness, is_over) = (Arc::clone(&lateness), Arc::clone(&is_over));
            move || {
                // Without the right the figures are a little worse.
                let _ = precision::come_before_ordinary();
                let _ = precision::drop_timer_slack();
                while !is_over.load(Ordering::Relaxed) {
                    if let Ok(late) = probe(&near, &far) {
                        lateness.record(late);
                    }
                    std::thread::sleep(PAUSE);
                }
            }
        };
        let thread = std::thread::Builder::new().name("probes".into()).spawn(run)?;
        Ok(Self { lateness, is_over, thread: Some(thread) })
    }

    pub(super) fn lateness(&self) -> LatenessCounts {
        self.lateness.read()
    }
}

impl Drop for Probes {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic has been printed by the thread itself.
            let _ = thread.join();
        }
    }
}

/// How late the second of two packets came.
fn probe(near: &UdpSocket, far: &UdpSocket) -> io::Result<Duration> {
    let payload = [0; PAYLOAD_BYTES];
    let mut place = [0; PAYLOAD_BYTES];
    near.send(&payload)?;
    let first = Instant::now();
    near.send(&payload)?;
    far.recv(&mut place)?;
    far.recv(&mut place)?;
    Ok(first.elapsed().saturating_sub(WAIT))
}

/// Both ends, with the queue between them.
fn sockets() -> io::Result<(UdpSocket, UdpSocket)> {
    let near = own_namespace()?;
    let far = own_namespace()?;
    let bytes_per_second = u64::from(PROBE_BYTES) * 1000 / 10;
    let near_socket = namespace::within(&near, || {
        let name = c"probe";
        Routing::open()?.add_pair(name, name, &far)?;
        let socket = end(NEAR)?;
        let mut routing = Routing::open()?;
        let interface = routing.interface(INTERFACE)?;
        // No larger packets than probes: a bucket that is smaller than one is warned of.
        routing.set_sizes(interface, PROBE_BYTES - 14, 1000)?;
        let bucket = TokenBucket {
            bytes_per_second,
            overhead_bytes: 0,
            burst_bytes: PROBE_BYTES,
            queue: QueueBound::Packets(10),
        };
        routing.set_token_bucket(interface, &bucket)?;
        Ok::<_, io::Error>(socket)
    })??;
    let far_socket = namespace::within(&far, || end(FAR))??;
    near_socket.connect(far_socket.local_addr()?)?;
    far_socket.set_read_timeout(Some(LOST))?;
    Ok((near_socket, far_socket))
}

fn end(address: [u8; 4]) -> io::Result<UdpSocket> {
    let mut routing = Routing::open()?;
    let interface = routing.interface(INTERFACE)?;
    routing.set_line(INTERFACE, HARDWARE)?;
    routing.add_address(interface, address.into(), 24)?;
    routing.set_up(interface)?;
    UdpSocket::bind((std::net::Ipv4Addr::from(address), 7))
}

fn own_namespace() -> io::Result<OwnedFd> {
    let make = || {
        namespace::unshare_network()?;
        // No packets but probes; a kernel without IPv6 has none.
        let _ = std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
        namespace::own_network()
    };
    std::thread::spawn(make).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn probes_are_late_by_less_than_they_wait_and_end_with_their_owner() {
        let probes = match Probes::start() {
            Ok(probes) => probes,
            Err(error) => return eprintln!("SKIPPED: no namespaces, or no tbf: {error}"),
        };
        let begin = Instant::now();
        while probes.lateness().packets() < 10 {
            assert!(begin.elapsed() < Duration::from_secs(20));
            std::thread::sleep(PAUSE);
        }
        let least = probes.lateness().quantile(0.1);
        assert!(least < WAIT, "{least:?}");
    }
}
