//! `hawser bypass selftest`: whether this kernel does it right, by real sockets.
//!
//! # Model
//! Pins and a control group of its own, which this process enters; connections over 127.0.0.1; the
//! switch says what goes past TCP. Nothing of others is touched, and nothing is left. Every byte that
//! is sent has a value by its place in the stream, and is compared.
//!
//! # What decides
//! Order and bounds, a half close, a peer's death, and that neither round trips nor bulk are slower.
//! Speed is processor time of this thread, which works both ends; it is compared in turns, and the
//! best one counts: other load makes turns slower, never faster.
//!
//! # Limits
//! [`TIME_MAX`], and the part that began before it. On a busy machine, speed is judged generously
//! ([`SLOWER_MAX`]), or not at all.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use hawser_sys::clock::thread_cpu;
use hawser_sys::process::{catch_signals, next_signal};
use serde::Serialize;

use crate::kernel::{Bypass, Counters, Place, Standing};
use crate::place::{self, BPF_FILE_SYSTEM, Entered, Error, SELFTEST};
use crate::rule::{QUEUED_BYTES_MAX, QUEUED_MESSAGES_MAX};

/// SIGHUP, SIGINT, SIGTERM: what is pinned is removed first.
const ENDS: [i32; 3] = [1, 2, 15];
/// All of it.
const TIME_MAX: Duration = Duration::from_secs(2);
/// A wait of one step: for bytes, for an end.
const WAIT: Duration = Duration::from_millis(500);
/// Messages of a reader that never reads; small ones cost more than their bytes.
const SIZES: [usize; 3] = [1, 1_000, 60_000];
/// What TCP itself may hold for a reader that never reads: the buffers of both ends, at their largest.
const UNREAD_BYTES_MAX: u64 = 16 << 20;
/// Redirected and passed bytes mixed: so many, or so long.
const MIXED_BYTES: u64 = 6 << 20;
const MIXED_TIME: Duration = Duration::from_millis(250);
const ROUND_TRIPS: u32 = 400;
const BULK_BYTES: u64 = 4 << 20;
const TURNS: usize = 5;
/// No further turn after this time; two of each are made whatever it takes.
const TURNS_TIME: Duration = Duration::from_millis(300);
/// Processor time past TCP against that through TCP.
const SLOWER_MAX: f64 = 1.25;

/// What one part has found.
#[derive(Clone, Debug, Serialize)]
pub struct Part {
    /// Its name.
    pub name: &'static str,
    /// Whether it is right.
    pub passed: bool,
    /// What was measured, or what is wrong.
    pub found: String,
}

/// A connection over 127.0.0.1; neither end waits.
struct Pair {
    near: TcpStream,
    far: TcpStream,
}

impl Pair {
    fn open() -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        // One that connects by a descriptor that waits is not taken in.
        let near = runtime.block_on(tokio::net::TcpStream::connect(listener.local_addr()?))?;
        let near = near.into_std()?;
        let far = listener.accept()?.0;
        // Readers that no epoll watches are sent nothing past TCP before they have read by TCP.
        for (mut from, mut to) in [(&near, &far), (&far, &near)] {
            to.set_nonblocking(false)?;
            to.set_read_timeout(Some(WAIT))?;
            from.write_all(&[0])?;
            to.read_exact(&mut [0])?;
        }
        for end in [&near, &far] {
            end.set_nonblocking(true)?;
            end.set_nodelay(true)?;
        }
        Ok(Self { near, far })
    }
}

/// What streams consist of; the period divides no size of a buffer.
const PERIOD: usize = 251;
/// The most that is sent or read at once.
const PIECE_MAX: usize = 150_000;

static PATTERN: [u8; PIECE_MAX + PERIOD] = {
    let mut bytes = [0; PIECE_MAX + PERIOD];
    let mut at = 0;
    while at < bytes.len() {
        bytes[at] = (at % PERIOD) as u8;
        at += 1;
    }
    bytes
};

/// The bytes at a place of a stream.
fn bytes_at(place: u64, size: usize) -> &'static [u8] {
    let begin = (place % PERIOD as u64) as usize;
    &PATTERN[begin..begin + size.min(PIECE_MAX)]
}

/// Sends what comes next of a stream; gives how much was taken, 0 if there is no room.
fn send(mut end: &TcpStream, sent: u64, size: usize) -> io::Result<u64> {
    match end.write(bytes_at(sent, size)) {
        Ok(taken) => Ok(taken as u64),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        Err(error) => Err(error),
    }
}

/// Reads and compares; gives how much came, `None` at the end of the stream.
fn receive(mut end: &TcpStream, read: u64, size: usize) -> Result<Option<u64>, String> {
    let mut bytes = vec![0; size];
    match end.read(&mut bytes) {
        Ok(0) => Ok(None),
        Ok(count) => {
            if &bytes[..count] == bytes_at(read, count) {
                Ok(Some(count as u64))
            } else {
                Err(format!("bytes {read} and on are not what was sent"))
            }
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Some(0)),
        Err(error) => Err(error.to_string()),
    }
}

/// Reads up to a place of the stream, or its end.
fn receive_all(end: &TcpStream, mut read: u64, until: Option<u64>) -> Result<u64, String> {
    let begin = Instant::now();
    loop {
        if Some(read) == until {
            return Ok(read);
        }
        match receive(end, read, 64 << 10)? {
            None if until.is_none() => return Ok(read),
            None => return Err(format!("the stream ended after {read} bytes")),
            Some(0) if begin.elapsed() > WAIT => {
                return Err(format!("nothing came any more after {read} bytes"));
            }
            Some(count) => read += count,
        }
    }
}

struct Test {
    bypass: Bypass,
    signals: OwnedFd,
}

type Found = Result<String, String>;

impl Test {
    fn standing(&self) -> Result<Standing, String> {
        self.bypass.standing().map_err(|error| error.to_string())
    }

    /// How many (messages, bytes) were redirected, how many messages passed, by what is done.
    fn counted(&self, what: impl FnOnce() -> Result<(), String>) -> Result<[u64; 3], String> {
        let before = self.standing()?.counters;
        what()?;
        let after = self.standing()?.counters;
        let passed = |c: &Counters| c.passed_full + c.passed_unread + c.passed_other;
        Ok([
            after.redirected - before.redirected,
            after.redirected_bytes - before.redirected_bytes,
            passed(&after) - passed(&before),
        ])
    }

    fn both_ways(&self) -> Found {
        let pair = Pair::open().map_err(|error| error.to_string())?;
        let [redirected, bytes, passed] = self.counted(|| {
            for (from, to) in [(&pair.near, &pair.far), (&pair.far, &pair.near)] {
                send(from, 0, 1000).map_err(|error| error.to_string())?;
                receive_all(to, 0, Some(1000))?;
            }
            Ok(())
        })?;
        if (redirected, bytes, passed) == (2, 2000, 0) {
            Ok("2 messages of 1,000 bytes went past TCP".to_owned())
        } else {
            Err(format!("{redirected} messages, {bytes} bytes went past TCP, {passed} through it"))
        }
    }

    fn never_reads(&self) -> Found {
        let mut most = 0;
        for size in SIZES {
            let pair = Pair::open().map_err(|error| error.to_string())?;
            let mut sent = 0;
            let begin = Instant::now();
            let [messages, bytes, _] = self.counted(|| {
                while begin.elapsed() < WAIT && sent <= UNREAD_BYTES_MAX {
                    match send(&pair.near, sent, size).map_err(|error| error.to_string())? {
                        0 => break,
                        taken => sent += taken,
                    }
                    // Enough of the smallest: the queue of messages is full by then.
                    if size == 1 && sent > 4 * QUEUED_MESSAGES_MAX {
                        break;
                    }
                }
                Ok(())
            })?;
            let bounds = (QUEUED_MESSAGES_MAX, QUEUED_BYTES_MAX);
            if messages > bounds.0 || bytes > bounds.1 || sent > UNREAD_BYTES_MAX {
                return Err(format!(
                    "{messages} messages, {bytes} bytes wait past TCP, {sent} bytes in all: this \
                     kernel puts no bound on them"
                ));
            }
            receive_all(&pair.far, 0, Some(sent))?;
            most = most.max(bytes);
        }
        Ok(format!("at most {} KiB wait past TCP", most >> 10))
    }

    fn half_close(&self) -> Found {
        let pair = Pair::open().map_err(|error| error.to_string())?;
        let end = |error: io::Error| error.to_string();
        send(&pair.near, 0, 5000).map_err(end)?;
        pair.near.shutdown(Shutdown::Write).map_err(end)?;
        let read = receive_all(&pair.far, 0, None)?;
        send(&pair.far, 0, 700).map_err(end)?;
        receive_all(&pair.near, 0, Some(700))?;
        drop(pair.far);
        receive_all(&pair.near, 700, None)?;
        if read == 5000 {
            Ok("all bytes came before the end of the stream, in both directions".to_owned())
        } else {
            Err(format!("{read} of 5,000 bytes came before the end of the stream"))
        }
    }

    fn mixed(&self) -> Found {
        let pair = Pair::open().map_err(|error| error.to_string())?;
        let (mut sent, mut read) = (0, 0);
        let mut random = Lcg(1);
        let begin = Instant::now();
        let [redirected, _, passed] = self.counted(|| {
            while sent < MIXED_BYTES && begin.elapsed() < MIXED_TIME {
                let most = [40, 5_000, PIECE_MAX][random.below(3)];
                let size = 1 + random.below(most);
                sent += send(&pair.near, sent, size).map_err(|error| error.to_string())?;
                for _ in 0..random.below(4) {
                    let size = 1 + random.below(60_000);
                    match receive(&pair.far, read, size)? {
                        None => return Err(format!("the stream ended after {read} bytes")),
                        Some(count) => read += count,
                    }
                }
                // Now and then all is read, and the next goes past TCP again.
                if random.below(8) == 0 {
                    read = receive_all(&pair.far, read, Some(sent))?;
                }
            }
            receive_all(&pair.far, read, Some(sent)).map(drop)
        })?;
        let found = format!("{redirected} messages past TCP, {passed} through it");
        if redirected < 10 || passed < 10 { Err(found) } else { Ok(found + ", all in order") }
    }

    fn death(&self) -> Found {
        let before = self.standing()?.sockets;
        let Pair { near, far } = Pair::open().map_err(|error| error.to_string())?;
        let during = self.standing()?.sockets;
        send(&near, 0, 3000).map_err(|error| error.to_string())?;
        drop(far);
        let begin = Instant::now();
        while send(&near, 3000, 100).is_ok() {
            if begin.elapsed() > WAIT {
                return Err("bytes to a peer that has died are taken without an error".to_owned());
            }
        }
        drop(near);
        while self.standing()?.sockets != before {
            if begin.elapsed() > WAIT {
                return Err("sockets that were closed stay in the map".to_owned());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        if during == before + 2 {
            Ok("the sender has an error, and nothing stays in the maps".to_owned())
        } else {
            Err(format!("{} of 2 sockets were in the map", during - before))
        }
    }

    fn round_trips(&self) -> Found {
        let pair = Pair::open().map_err(|error| error.to_string())?;
        self.compare(|| {
            for _ in 0..ROUND_TRIPS {
                for (from, to) in [(&pair.near, &pair.far), (&pair.far, &pair.near)] {
                    send(from, 0, 100).map_err(|error| error.to_string())?;
                    receive_all(to, 0, Some(100))?;
                }
            }
            Ok(())
        })
    }

    fn bulk(&self) -> Found {
        let pair = Pair::open().map_err(|error| error.to_string())?;
        let bytes = vec![0; 64 << 10];
        let mut taken = vec![0; 64 << 10];
        let (mut near, mut far) = (&pair.near, &pair.far);
        self.compare(move || {
            let mut moved = 0;
            while moved < BULK_BYTES {
                match near.write(&bytes) {
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error.to_string()),
                }
                match far.read(&mut taken) {
                    Ok(count) => moved += count as u64,
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(error) => return Err(error.to_string()),
                }
            }
            // Nothing is left for the next turn.
            while far.read(&mut taken).is_ok_and(|count| count > 0) {}
            Ok(())
        })
    }

    /// The best turn past TCP against the best one through it.
    fn compare(&self, mut turn: impl FnMut() -> Result<(), String>) -> Found {
        let mut best = [Duration::MAX; 2];
        let started = Instant::now();
        for number in 0..TURNS * 2 {
            if number >= 4 && number % 2 == 0 && started.elapsed() > TURNS_TIME {
                break;
            }
            let past = number % 2;
            self.bypass.switch(past == 1).map_err(|error| error.to_string())?;
            let begin = thread_cpu();
            let done = turn();
            let took = thread_cpu() - begin;
            self.bypass.switch(true).map_err(|error| error.to_string())?;
            done?;
            best[past] = best[past].min(took);
        }
        let ratio = best[1].as_secs_f64() / best[0].as_secs_f64();
        let found = format!("{ratio:.2} of the processor time through TCP");
        if ratio <= SLOWER_MAX { Ok(found) } else { Err(found) }
    }

    fn run(&self) -> Vec<Part> {
        type Step = fn(&Test) -> Found;
        // Right or wrong, and then what only a busy machine leaves no time for.
        let steps: [(&'static str, Step, bool); 7] = [
            ("both directions", Self::both_ways, true),
            ("a reader that never reads", Self::never_reads, true),
            ("half close", Self::half_close, true),
            ("past and through TCP mixed", Self::mixed, true),
            ("a peer's death", Self::death, true),
            ("round trips", Self::round_trips, false),
            ("bulk", Self::bulk, false),
        ];
        let begin = Instant::now();
        let mut ended = false;
        let part = |(name, step, needed): (&'static str, Step, bool)| {
            let left = begin.elapsed() < TIME_MAX;
            // It ends as soon as what was pinned is removed.
            ended |= next_signal(&self.signals).is_ok();
            let found = match (left, needed) {
                _ if ended => Err("a signal ended the self-test".to_owned()),
                (true, _) => step(self),
                (false, true) => Err("no time was left".to_owned()),
                (false, false) => Ok("not measured, no time was left".to_owned()),
            };
            let passed = found.is_ok();
            Part { name, passed, found: found.unwrap_or_else(|error| error) }
        };
        steps.map(part).into()
    }
}

/// Numbers that look random (Knuth's multiplier).
struct Lcg(u64);

impl Lcg {
    fn below(&mut self, most: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) as usize % most
    }
}

/// Makes it. This process is in another control group meanwhile.
///
/// # Errors
/// It could not be made; what it finds is no error here.
pub fn test() -> Result<Vec<Part>, Error> {
    let root = place::root()?;
    let signals = catch_signals(&ENDS).map_err(place::file("catching signals"))?;
    place::remove_selftests(&root);
    let name = format!("{SELFTEST}{}", std::process::id());
    let bypass = Bypass::find_or_load(&Path::new(BPF_FILE_SYSTEM).join(&name))?;
    let entered = match Entered::make(&root, root.join(&name)) {
        Ok(entered) => entered,
        Err(error) => {
            let _ = bypass.remove();
            return Err(error);
        }
    };
    let attached = bypass.attach(Place::Programs, &root.join(&name));
    let test = Test { bypass, signals };
    let found = attached.map(|()| test.run());
    entered.leave();
    let removed = test.bypass.remove();
    let found = found?;
    removed?;
    Ok(found)
}

/// Makes it in another process, whose sockets may be moved between control groups.
///
/// # Errors
/// It could not be made, or has failed.
pub fn in_a_process_of_its_own() -> Result<(), Error> {
    let mut command = hawser_sys::process::command("/proc/self/exe");
    command.args(["bypass", "selftest"]).stdin(Stdio::null());
    let done = command.output().map_err(place::file("starting the self-test"))?;
    if done.status.success() {
        return Ok(());
    }
    let failed = |line: &&str| line.starts_with("FAIL");
    let output = String::from_utf8_lossy(&done.stdout).into_owned();
    let failures: Vec<&str> = output.lines().filter(failed).collect();
    if failures.is_empty() {
        // It could not be made at all: why not is found here as well, with its type.
        Bypass::probe()?;
        return Err(Error::SelfTest(String::from_utf8_lossy(&done.stderr).trim().to_owned()));
    }
    Err(Error::SelfTest(failures.join("; ")))
}
