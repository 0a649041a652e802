//! Clients that listen, each on one of a number of channels, and one that notifies all of these in
//! turn: how long a notification takes to each client that is to have it, and how many get through.
//!
//! # Model
//! One thread listens, by one epoll; one notifies, at a rate or as fast as it is answered. A payload is
//! the moment of its sending, in nanoseconds from the start: both threads have the same clock.

use std::io::{self, Read, Write};
use std::mem::MaybeUninit;
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};

use crate::histogram::Histogram;
use crate::stream::Target;
use crate::wire::{self, Walker};

/// Of one read.
const READ_BUFFER_BYTES: usize = 64 * 1024;
const EVENTS_PER_TURN: usize = 256;
/// How long answers to logins and LISTEN are waited for, and notifications after the last.
const SILENCE: Duration = Duration::from_secs(30);
/// How often the listening thread looks whether it is to end.
const TURN: Timespec = Timespec { tv_sec: 0, tv_nsec: 20_000_000 };

/// What has come of it.
pub(crate) struct Heard {
    pub(crate) latencies: Histogram,
    /// Notifications that have arrived, each counted at each client.
    pub(crate) arrived: u64,
    /// Notifications that were sent.
    pub(crate) sent: u64,
    /// Connections that have ended.
    pub(crate) lost: u64,
}

struct Client {
    stream: TcpStream,
    /// The start of a message that has not come whole.
    input: Vec<u8>,
}

fn connect(target: &Target, user: &str, database: &str) -> io::Result<TcpStream> {
    let Target::Tcp(address) = target else {
        return Err(io::Error::other("listen: only over TCP"));
    };
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(SILENCE))?;
    let mut bytes = Vec::new();
    wire::startup(&mut bytes, user, database, wire::Sessions::default(), 0);
    exchange(&mut stream, &bytes)?;
    Ok(stream)
}

/// Sends a request and reads up to ReadyForQuery.
fn exchange(stream: &mut TcpStream, request: &[u8]) -> io::Result<()> {
    stream.write_all(request)?;
    let mut walker = Walker::default();
    let mut buffer = [0; 4096];
    let (mut ready, mut error) = (false, None);
    while !ready {
        let got = stream.read(&mut buffer)?;
        if got == 0 {
            let text = error.unwrap_or_else(|| "the server has closed the connection".into());
            return Err(io::Error::other(text));
        }
        walker.walk(&buffer[..got], |message| match message.kind {
            b'Z' => ready = true,
            b'E' => error = Some(wire::error_text(message.body)),
            _ => {}
        });
    }
    error.map_or(Ok(()), |text| Err(io::Error::other(text)))
}

/// Clients that listen, ready to hear.
pub(crate) struct Listeners {
    clients: Vec<Client>,
    sender: TcpStream,
    channels: usize,
    epoll: rustix::fd::OwnedFd,
}

impl Listeners {
    /// Connects and listens.
    pub(crate) fn connect(
        target: &Target,
        user: &str,
        database: &str,
        clients: usize,
        channels: usize,
    ) -> io::Result<Self> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let mut all = Vec::with_capacity(clients);
        for number in 0..clients {
            let mut stream = connect(target, user, database)?;
            let mut bytes = Vec::new();
            let text = format!("LISTEN bench_{}", number % channels);
            wire::query(&mut bytes, |out| out.extend_from_slice(text.as_bytes()));
            exchange(&mut stream, &bytes)?;
            stream.set_nonblocking(true)?;
            let data = epoll::EventData::new_u64(number as u64);
            epoll::add(&epoll, &stream, data, epoll::EventFlags::IN)?;
            all.push(Client { stream, input: Vec::new() });
        }
        Ok(Self { clients: all, sender: connect(target, user, database)?, channels, epoll })
    }

    /// Notifies for so many seconds; 0 a second is as many as can be.
    pub(crate) fn run(mut self, seconds: f64, per_second: f64) -> io::Result<Heard> {
        let started = Instant::now();
        let (sent, ended) = (AtomicU64::new(0), AtomicBool::new(false));
        let mut heard = Heard { latencies: Histogram::default(), arrived: 0, sent: 0, lost: 0 };
        let each = self.clients.len() as u64 / self.channels as u64;
        let (mut sender, channels) = (self.sender, self.channels);
        std::thread::scope(|scope| {
            let (sent, ended) = (&sent, &ended);
            let sending = scope.spawn(move || -> io::Result<()> {
                let end = started + Duration::from_secs_f64(seconds);
                while Instant::now() < end {
                    let number = sent.load(Ordering::Relaxed);
                    if per_second > 0.0 {
                        let due = started + Duration::from_secs_f64(number as f64 / per_second);
                        std::thread::sleep(due.saturating_duration_since(Instant::now()));
                    }
                    let now = started.elapsed().as_nanos();
                    let text = format!("NOTIFY bench_{}, '{now}'", number as usize % channels);
                    let mut bytes = Vec::new();
                    wire::query(&mut bytes, |out| out.extend_from_slice(text.as_bytes()));
                    exchange(&mut sender, &bytes)?;
                    sent.store(number + 1, Ordering::Relaxed);
                }
                ended.store(true, Ordering::Relaxed);
                Ok(())
            });
            let mut buffer = vec![0; READ_BUFFER_BYTES];
            let mut silent = Instant::now();
            while !sending.is_finished()
                || (ended.load(Ordering::Relaxed)
                    && heard.arrived < sent.load(Ordering::Relaxed) * each
                    && heard.lost == 0
                    && silent.elapsed() < Duration::from_secs(3))
            {
                let mut room = [const { MaybeUninit::<epoll::Event>::uninit() }; EVENTS_PER_TURN];
                let Ok((events, _)) = epoll::wait(&self.epoll, &mut room[..], Some(&TURN)) else {
                    continue;
                };
                for event in events {
                    silent = Instant::now();
                    let data = event.data;
                    let client = &mut self.clients[data.u64() as usize];
                    match client.stream.read(&mut buffer) {
                        Ok(got) if got > 0 => client.take(&buffer[..got], started, &mut heard),
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                        _ => {
                            heard.lost += 1;
                            epoll::delete(&self.epoll, &client.stream)?;
                        }
                    }
                }
            }
            match sending.join() {
                Ok(done) => done,
                Err(_) => Err(io::Error::other("the notifying thread has panicked")),
            }
        })?;
        heard.sent = sent.into_inner();
        Ok(heard)
    }
}

impl Client {
    fn take(&mut self, bytes: &[u8], started: Instant, heard: &mut Heard) {
        self.input.extend_from_slice(bytes);
        let mut at = 0;
        while let Some([kind, a, b, c, d]) = self.input.get(at..at + 5) {
            let total = u32::from_be_bytes([*a, *b, *c, *d]) as usize + 1;
            let Some(message) = self.input.get(at..at + total) else { break };
            if *kind == b'A' {
                // Process id, channel, payload, each string with its NUL.
                let payload = message[9..].split(|byte| *byte == 0).nth(1).unwrap_or_default();
                let sent = std::str::from_utf8(payload).ok().and_then(|text| text.parse().ok());
                if let Some(sent) = sent {
                    let now = started.elapsed().as_nanos() as u64;
                    heard.latencies.record(now.saturating_sub(sent));
                    heard.arrived += 1;
                }
            }
            at += total;
        }
        self.input.drain(..at);
    }
}
