//! The thread between the TUN devices.
//!
//! # Model
//! ```text
//! loop: hand over what is due ─► read what has come, at most BATCH of each device ─► sleep until
//!       the next is due or a device is readable
//! ```
//! A packet's arrival is computed when it is read ([`crate::wan::network`]): a thread that wakes
//! late delays packets and changes no rate, no queue and no drop. How late each left is counted.
//!
//! # Why not     spinning: it takes a processor from the experiment. Real-time priority, where it is
//!               allowed, and no timer slack wake the thread within tens of microseconds

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use hawser_sys::eventfd::EventFd;
use hawser_sys::precision::{self, Priority, Readable};
use hawser_sys::tun::{HEADER_BYTES, Tun};

use super::lateness::Lateness;
use crate::wan::Description;
use crate::wan::direction::{Cause, Counts};
use crate::wan::flow::Flow;
use crate::wan::network::{Network, PathCounts, Port};

/// Packets read from a device before what is due is handed over.
const BATCH: usize = 32;
/// EIO, of a write to a device that is down.
const DEVICE_IS_DOWN: i32 = 5;
/// The largest packet, and its header.
const PACKET_BYTES_MAX: usize = 65_535 + HEADER_BYTES;

/// What the thread counts and others read.
#[derive(Debug, Default)]
pub(super) struct Books {
    pub(super) lateness: Lateness,
    /// Packets that the kernel did not take.
    pub(super) refused: AtomicU64,
    /// Packets for which there was no room on the way.
    pub(super) overflows: AtomicU64,
    /// A device was deleted inside: the thread has ended.
    pub(super) is_over: AtomicBool,
    paths: Vec<PathBooks>,
}

#[derive(Debug)]
struct PathBooks {
    from: Port,
    path: usize,
    packets: AtomicU64,
    bytes: AtomicU64,
    dropped: [AtomicU64; Cause::ALL.len()],
}

impl Books {
    fn new(network: &Network<Vec<u8>>) -> Self {
        let paths = network.counts().map(|PathCounts { from, path, .. }| PathBooks {
            from,
            path,
            packets: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            dropped: [const { AtomicU64::new(0) }; Cause::ALL.len()],
        });
        Self { paths: paths.collect(), ..Self::default() }
    }

    fn publish(&self, network: &Network<Vec<u8>>) {
        for (books, PathCounts { counts, .. }) in self.paths.iter().zip(network.counts()) {
            books.packets.store(counts.packets, Ordering::Relaxed);
            books.bytes.store(counts.bytes, Ordering::Relaxed);
            for (to, dropped) in books.dropped.iter().zip(counts.dropped) {
                to.store(dropped, Ordering::Relaxed);
            }
        }
        self.overflows.store(network.overflows(), Ordering::Relaxed);
    }

    /// What each direction of each path has carried.
    pub(super) fn paths(&self) -> impl Iterator<Item = PathCounts> + '_ {
        self.paths.iter().map(|books| PathCounts {
            from: books.from,
            path: books.path,
            counts: Counts {
                packets: books.packets.load(Ordering::Relaxed),
                bytes: books.bytes.load(Ordering::Relaxed),
                dropped: books.dropped.each_ref().map(|count| count.load(Ordering::Relaxed)),
            },
        })
    }
}

/// The thread, from outside. Dropping this ends it.
#[derive(Debug)]
pub(super) struct Emulator {
    books: Arc<Books>,
    end: Arc<EventFd>,
    priority: Priority,
    thread: Option<JoinHandle<()>>,
}

impl Emulator {
    pub(super) fn start(
        description: &Description,
        seed: u64,
        devices: Vec<(Port, Tun)>,
        began: Instant,
    ) -> io::Result<Self> {
        let network = Network::new(description, seed);
        let books = Arc::new(Books::new(&network));
        let end = Arc::new(EventFd::new()?);
        let (ready, is_ready) = mpsc::channel();
        let run = {
            let (books, end) = (Arc::clone(&books), Arc::clone(&end));
            move || {
                let priority = precision::come_first();
                let _ = ready.send(precision::drop_timer_slack().map(|()| priority));
                Turns { network, devices: &devices, books: &books, began }.run(&end);
            }
        };
        let thread = std::thread::Builder::new().name("emulator".into()).spawn(run)?;
        let priority = is_ready.recv().map_err(io::Error::other)??;
        Ok(Self { books, end, priority, thread: Some(thread) })
    }

    /// What the kernel granted the thread.
    pub(super) fn priority(&self) -> Priority {
        self.priority
    }

    pub(super) fn books(&self) -> &Books {
        &self.books
    }
}

impl Drop for Emulator {
    fn drop(&mut self) {
        // Without the signal the thread would be waited for without an end.
        if self.end.signal().is_ok()
            && let Some(thread) = self.thread.take()
        {
            // A panic has been printed by the thread itself.
            let _ = thread.join();
        }
    }
}

struct Turns<'a> {
    network: Network<Vec<u8>>,
    devices: &'a [(Port, Tun)],
    books: &'a Books,
    began: Instant,
}

impl Turns<'_> {
    fn run(&mut self, end: &EventFd) {
        let mut descriptors: Vec<BorrowedFd<'_>> =
            self.devices.iter().map(|(_, device)| device.as_fd()).collect();
        descriptors.push(end.as_fd());
        let mut readable = Readable::new(&descriptors);
        let mut place = vec![0; PACKET_BYTES_MAX];
        loop {
            self.hand_over();
            let Ok(is_more) = self.take_in(&mut place, &readable) else {
                self.books.is_over.store(true, Ordering::Relaxed);
                return;
            };
            self.books.publish(&self.network);
            let now = self.began.elapsed();
            let timeout = match self.network.next_arrival() {
                _ if is_more => Some(Duration::ZERO),
                next => next.map(|at| at.saturating_sub(now)),
            };
            if readable.wait(timeout).is_err() || readable.is_readable(self.devices.len()) {
                return;
            }
        }
    }

    fn hand_over(&mut self) {
        let mut now = self.began.elapsed();
        while let Some(arrival) = self.network.take_arrival(now) {
            now = self.began.elapsed();
            self.books.lateness.record(now.saturating_sub(arrival.at));
            let device = self.devices.iter().find(|(port, _)| *port == arrival.port);
            let written = device.map(|(_, device)| device.write(&arrival.packet));
            match written {
                Some(Ok(())) => {}
                // The interface was set down inside, which is a way to cut a line.
                Some(Err(error)) if error.raw_os_error() == Some(DEVICE_IS_DOWN) => {}
                _ => drop(self.books.refused.fetch_add(1, Ordering::Relaxed)),
            }
        }
    }

    /// Whether any device may have more. An error means that a device is gone, which would be
    /// reported as readable for ever.
    fn take_in(&mut self, place: &mut [u8], readable: &Readable<'_>) -> io::Result<bool> {
        let mut is_more = false;
        for (index, (port, device)) in self.devices.iter().enumerate() {
            if !readable.is_readable(index) {
                continue;
            }
            let mut taken = 0;
            while taken < BATCH {
                let length = match device.read(place) {
                    Ok(length) => length,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                    Err(error) => return Err(error),
                };
                taken += 1;
                let packet = &place[..length];
                let Some(ip) = packet.get(HEADER_BYTES..) else { continue };
                let Some(flow) = Flow::of(ip) else { continue };
                let (now, bytes) = (self.began.elapsed(), ip.len() as u64);
                self.network.enter(now, *port, flow, bytes, packet.to_vec());
            }
            is_more |= taken == BATCH;
        }
        Ok(is_more)
    }
}
