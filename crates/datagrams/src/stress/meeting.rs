//! A waiting end of a measurement, and those that connect to it.
//!
//! # Model
//! ```text
//!   connects ──► a line that says what is to be done ──► "ready" ──► "go"
//!                  │ PLAN_AFTER                             │ PLAN_AFTER
//!                  └─ refused, with the reason ─────────────┘
//! ```
//! All that are connected are read at one time, so one that says nothing delays no other. The first that
//! says what is to be done is the one that is asked to go on; the others wait meanwhile, and come next if
//! it does not.
//!
//! # Limits
//! [`GUESTS_MAX`] connections: of more, the one that has waited longest is refused. An honest one speaks at
//! once.

use std::collections::BTreeMap;
use std::io::{self, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use hawser_sys::epoll::{Epoll, Events};
use hawser_sys::listen::is_of_one_connection;

use super::{LINE_MAX, Plan, check, say};

/// How long what has connected to a waiting end may take to say what is to be done, and then to begin.
pub(super) const PLAN_AFTER: Duration = Duration::from_secs(5);
/// Connections that may be about to say what is to be done.
pub(super) const GUESTS_MAX: usize = 64;
const LISTENER: u64 = 0;

/// One that has connected.
struct Guest {
    control: TcpStream,
    from: SocketAddr,
    line: Vec<u8>,
    until: Instant,
}

/// An active end, and what it wants.
pub(super) struct Asked {
    pub(super) control: TcpStream,
    pub(super) from: SocketAddr,
    pub(super) plan: Plan,
}

/// A waiting end.
pub(super) struct Meeting {
    listener: TcpListener,
    epoll: Epoll,
    events: Events,
    /// In the order in which they have come.
    guests: BTreeMap<u64, Guest>,
    next: u64,
}

impl Meeting {
    pub(super) fn open(listener: TcpListener) -> io::Result<Self> {
        listener.set_nonblocking(true)?;
        let epoll = Epoll::new()?;
        epoll.add_readable(&listener, LISTENER)?;
        let events = Events::with_capacity(GUESTS_MAX);
        Ok(Self { listener, epoll, events, guests: BTreeMap::new(), next: LISTENER + 1 })
    }

    /// Waits for a connection that says what is to be done. Any other one gets the reason of its
    /// refusal, which also goes to standard error.
    pub(super) fn next(&mut self) -> io::Result<Asked> {
        loop {
            if let Some(asked) = self.turn()? {
                return Ok(asked);
            }
            let now = Instant::now();
            let first = self.guests.values().map(|guest| guest.until).min();
            let wait = first.map_or(Duration::MAX, |first| first.saturating_duration_since(now));
            self.epoll.wait(&mut self.events, wait)?;
        }
    }

    /// Does what can be done now.
    fn turn(&mut self) -> io::Result<Option<Asked>> {
        self.accept_all()?;
        let asked = self.read_all()?;
        if asked.is_none() {
            let now = Instant::now();
            let late = self.guests.iter().filter(|(_, guest)| guest.until <= now);
            for at in late.map(|(at, _)| *at).collect::<Vec<_>>() {
                let seconds = PLAN_AFTER.as_secs();
                self.refuse(at, &format!("it has not said within {seconds} s what is to be done"));
            }
        }
        Ok(asked)
    }

    fn accept_all(&mut self) -> io::Result<()> {
        loop {
            match self.listener.accept() {
                Ok((control, from)) => {
                    control.set_nonblocking(true)?;
                    self.epoll.add_to_read(&control, self.next)?;
                    let until = Instant::now() + PLAN_AFTER;
                    self.guests.insert(self.next, Guest { control, from, line: Vec::new(), until });
                    self.next += 1;
                    if self.guests.len() > GUESTS_MAX
                        && let Some(first) = self.guests.keys().next().copied()
                    {
                        self.refuse(first, &format!("{GUESTS_MAX} others have connected since"));
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads what all have said. Returns the first one that has said what is to be done.
    fn read_all(&mut self) -> io::Result<Option<Asked>> {
        for at in self.guests.keys().copied().collect::<Vec<_>>() {
            let Some(guest) = self.guests.get_mut(&at) else { continue };
            match guest.plan() {
                Ok(None) => {}
                Ok(Some(plan)) => {
                    let Some(Guest { control, from, .. }) = self.guests.remove(&at) else {
                        continue;
                    };
                    self.epoll.delete(&control)?;
                    control.set_nonblocking(false)?;
                    return Ok(Some(Asked { control, from, plan }));
                }
                Err(why) => self.refuse(at, &why),
            }
        }
        Ok(None)
    }

    /// One has begun: tells the others.
    pub(super) fn close(self) {
        for guest in self.guests.values() {
            let _ = say(&guest.control, "another end has begun, and one is served at a time");
        }
    }

    fn refuse(&mut self, at: u64, why: &str) {
        if let Some(Guest { control, from, .. }) = self.guests.remove(&at) {
            refuse(&control, from, why);
        }
    }
}

/// (One that reads nothing is not waited for: so little fits into any send buffer.)
pub(super) fn refuse(control: &TcpStream, from: SocketAddr, why: &str) {
    eprintln!("hawser rds stress: the connection from {from} is refused: {why}");
    let _ = say(control, why);
}

impl Guest {
    /// What is to be done, if it has said that.
    fn plan(&mut self) -> Result<Option<Plan>, String> {
        let mut bytes = [0; LINE_MAX + 1];
        loop {
            let count = match self.control.peek(&mut bytes) {
                Ok(0) => return Err("it has left".to_owned()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error.to_string()),
            };
            // What follows the line stays for the next read.
            let end = bytes[..count].iter().position(|byte| *byte == b'\n');
            let count = end.map_or(count, |end| end + 1);
            let count =
                self.control.read(&mut bytes[..count]).map_err(|error| error.to_string())?;
            self.line.extend_from_slice(&bytes[..count]);
            if self.line.len() > LINE_MAX {
                return Err(format!("it says more than {LINE_MAX} bytes in one line"));
            }
            if self.line.ends_with(b"\n") {
                return plan_of(&self.line).map(Some);
            }
        }
    }
}

fn plan_of(line: &[u8]) -> Result<Plan, String> {
    let line = std::str::from_utf8(line).map_err(|_| "what it says is no text".to_owned())?;
    let plan = serde_json::from_str(line).map_err(|error| {
        format!(
            "what it sends is not what `hawser rds stress -s` of this version sends ({error}), and only \
             that is taken here"
        )
    })?;
    check(&plan)?;
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::super::tests::plan;
    use super::*;

    fn meeting() -> (Meeting, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let there = listener.local_addr().unwrap();
        (Meeting::open(listener).unwrap(), there)
    }

    fn say_it(there: SocketAddr, what: &[u8]) -> TcpStream {
        let mut control = TcpStream::connect(there).unwrap();
        control.write_all(what).unwrap();
        control
    }

    fn text(plan: &Plan) -> String {
        format!("{}\n", serde_json::to_string(plan).unwrap())
    }

    /// What it received until the connection ended.
    fn received(mut control: TcpStream) -> String {
        let mut received = Vec::new();
        // (What was not read yet may be followed by a reset.)
        let _ = control.read_to_end(&mut received);
        String::from_utf8(received).unwrap()
    }

    /// It took the first connection, whatever that was, and ended with it.
    #[test]
    fn what_does_not_say_what_is_to_be_done_is_refused() {
        let (mut meeting, there) = meeting();
        drop(say_it(there, b""));
        let others = [
            say_it(there, b"GET / HTTP/1.1\r\n\r\n"),
            say_it(there, &[0xff, b'\n']),
            say_it(there, &[b'x'; LINE_MAX + 1]),
            say_it(there, text(&Plan { lanes: 3, ..plan() }).as_bytes()),
        ];
        let mut wanted = say_it(there, text(&plan()).as_bytes());
        let asked = meeting.next().unwrap();
        assert_eq!(asked.from, wanted.local_addr().unwrap());
        assert_eq!(asked.plan.request_bytes, 1024);
        // What it says next is there still, and the other end waits for it.
        wanted.write_all(b"go\n").unwrap();
        let mut next = [0; 3];
        (&asked.control).read_exact(&mut next).unwrap();
        assert_eq!(&next, b"go\n");
        let why = ["not what `hawser rds stress -s`", "no text", "4096 bytes", "--lanes"];
        for (other, why) in others.into_iter().zip(why) {
            let received = received(other);
            assert!(received.contains(why), "{received} does not say {why}");
        }
    }

    /// Each was waited for, for 5 s, before the next one was read.
    #[test]
    fn those_that_say_nothing_or_little_delay_no_other() {
        let (mut meeting, there) = meeting();
        let silent: Vec<_> = (0..20).map(|_| say_it(there, b"")).collect();
        let slow: Vec<_> = (0..20).map(|_| say_it(there, b"{\"port\":")).collect();
        let _wanted = say_it(there, text(&plan()).as_bytes());
        let began = Instant::now();
        meeting.next().unwrap();
        assert!(began.elapsed() < PLAN_AFTER, "{:?}", began.elapsed());
        // They are refused in their time, if they do not say it until then, and one of them may.
        let mut silent = silent.into_iter();
        let mut late = silent.next().unwrap();
        late.write_all(text(&plan()).as_bytes()).unwrap();
        assert_eq!(meeting.next().unwrap().from, late.local_addr().unwrap());
        while !meeting.guests.is_empty() {
            assert!(meeting.turn().unwrap().is_none());
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(began.elapsed() >= PLAN_AFTER);
        assert!(silent.chain(slow).all(|other| received(other).contains("within 5 s")));
    }

    #[test]
    fn of_too_many_the_one_that_has_waited_longest_is_refused() {
        let (mut meeting, there) = meeting();
        // (The listen queue has 128.)
        let mut silent: Vec<_> = (0..GUESTS_MAX + 3).map(|_| say_it(there, b"")).collect();
        let _wanted = say_it(there, text(&plan()).as_bytes());
        meeting.next().unwrap();
        for _ in 0..4 {
            assert!(received(silent.remove(0)).contains("64 others"));
        }
        assert_eq!(meeting.guests.len(), GUESTS_MAX - 1);
        meeting.close();
        assert!(silent.into_iter().all(|other| received(other).contains("another end has begun")));
    }
}
