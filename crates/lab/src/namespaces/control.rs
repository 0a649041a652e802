//! A laboratory in the background, and how others find it.
//!
//! # Model
//! One process holds a laboratory and listens on an abstract unix socket, `hawser-lab/USER/NAME`.
//! Such a socket is no file: it is gone with its process, so a name is taken exactly as long as its
//! laboratory is up, and after a kill -9 there is nothing to clean up. A request is a line, the
//! answer a line of JSON.
//!
//! ```text
//! about    what it is of, and where its namespaces are   -> About
//! report   what has happened so far                      -> Snapshot
//! down     end what runs inside, then the laboratory     -> Down, then the end of the stream
//! ```
//!
//! # Invariants  only the same user is answered, and only the same user's answers are believed: an
//!               abstract socket has no permissions of its own
//! # Limits      found from the network namespace in which it was brought up

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::net::IpAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use hawser_sys::{namespace, stream};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::Laboratory;

/// Longest name of a laboratory.
const NAME_BYTES_MAX: usize = 63;
/// Longest request.
const REQUEST_BYTES_MAX: usize = 64;
/// Clients at a time: each `run` is one.
const CLIENTS_MAX: usize = 256;
/// How long what runs inside may take to end by itself.
const GRACE: Duration = Duration::from_secs(2);
/// How long a laboratory may take to answer, the grace included.
const ANSWER_WAIT: Duration = Duration::from_secs(10);

/// What can go wrong between a laboratory and who looks for it.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The name cannot be one.
    #[error(
        "`{0}` cannot name a laboratory: 1 to {NAME_BYTES_MAX} letters, digits, `.`, `_` and `-`"
    )]
    Name(String),
    /// One of this name is up already.
    #[error(
        "a laboratory named `{0}` is up already: `hawser lab down {0}` ends it, \
             --name gives another name"
    )]
    Taken(String),
    /// None of this name is up.
    #[error("no laboratory named `{0}` is up: `hawser lab up {0}` begins one")]
    Absent(String),
    /// It ended, or did not answer as one does.
    #[error("laboratory `{name}` is lost: {source}")]
    Lost {
        /// Its name.
        name: String,
        /// What happened.
        source: io::Error,
    },
}

/// What a laboratory is of.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct About {
    /// Its own name.
    pub name: String,
    /// The file or name of its description.
    pub source: String,
    /// What its chance follows from.
    pub seed: u64,
    /// The process that holds it.
    pub pid: u32,
    /// Seconds that it has been up.
    pub up_s: u64,
    /// Whether it is in a user namespace of its own.
    pub in_user_namespace: bool,
    /// Its hosts; the first is near, the last far.
    pub hosts: Vec<HostAbout>,
}

/// What a host is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct HostAbout {
    /// Its name.
    pub name: String,
    /// The descriptor of its namespace in the process that holds it.
    pub descriptor: i32,
    /// The namespace's inode, as in `/proc/PID/ns/net`.
    pub inode: u64,
    /// Its addresses, in the order of its links; for each IPv4, then IPv6.
    pub addresses: Vec<IpAddr>,
    /// What its sockets use by default.
    pub congestion_control: String,
}

/// The end of a laboratory.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Down {
    /// Processes that were still inside, and were ended.
    pub ended: usize,
}

fn address(name: &str) -> Result<SocketAddr, ControlError> {
    let proper = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    if !(1..=NAME_BYTES_MAX).contains(&name.len()) || !name.chars().all(proper) {
        return Err(ControlError::Name(name.to_owned()));
    }
    SocketAddr::from_abstract_name(prefix() + name)
        .map_err(|source| ControlError::Lost { name: name.to_owned(), source })
}

fn prefix() -> String {
    format!("hawser-lab/{}/", own_user())
}

fn own_user() -> u32 {
    // The owner of what is one's own in /proc is the effective user.
    fs::metadata("/proc/self").map_or(u32::MAX, |own| own.uid())
}

/// The names of this user's laboratories.
///
/// # Errors
/// `/proc/net/unix` could not be read.
pub fn names() -> io::Result<Vec<String>> {
    let table = fs::read_to_string("/proc/net/unix")?;
    let prefix = format!("@{}", prefix());
    let mut names: Vec<String> = table
        .lines()
        .filter_map(|line| line.split_whitespace().last()?.strip_prefix(&prefix))
        .map(str::to_owned)
        .collect();
    names.sort();
    names.dedup();
    Ok(names)
}

/// A name that is taken for a laboratory to come.
#[derive(Debug)]
pub struct Claim {
    listener: UnixListener,
    name: String,
}

/// Takes a name.
///
/// # Errors
/// It is none, or is taken.
pub fn claim(name: &str) -> Result<Claim, ControlError> {
    match UnixListener::bind_addr(&address(name)?) {
        Ok(listener) => Ok(Claim { listener, name: name.to_owned() }),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            Err(ControlError::Taken(name.to_owned()))
        }
        Err(source) => Err(ControlError::Lost { name: name.to_owned(), source }),
    }
}

impl Claim {
    /// What is said of a laboratory that now has the name.
    ///
    /// # Errors
    /// As [`Laboratory::congestion_control`].
    pub fn about(
        &self,
        laboratory: &Laboratory,
        source: &str,
        in_user_namespace: bool,
    ) -> io::Result<About> {
        let mut hosts = Vec::new();
        for (index, host) in laboratory.description.hosts.iter().enumerate() {
            let namespace = &laboratory.hosts[index];
            hosts.push(HostAbout {
                name: host.name.clone(),
                descriptor: namespace.as_raw_fd(),
                inode: inode(namespace)?,
                addresses: laboratory.addresses(index),
                congestion_control: laboratory.congestion_control(index)?,
            });
        }
        Ok(About {
            name: self.name.clone(),
            source: source.to_owned(),
            seed: laboratory.seed,
            pid: std::process::id(),
            up_s: 0,
            in_user_namespace,
            hosts,
        })
    }

    /// Answers until it is ordered to end; returns only with an error.
    ///
    /// # Errors
    /// As accept(2).
    pub fn serve(self, laboratory: Laboratory, about: About) -> io::Result<()> {
        let shared = Arc::new((laboratory, about, AtomicUsize::new(0)));
        for client in self.listener.incoming() {
            let client = client?;
            let shared = Arc::clone(&shared);
            if stream::peer_uid(&client).ok() != Some(own_user())
                || shared.2.fetch_add(1, Ordering::Relaxed) >= CLIENTS_MAX
            {
                continue; // closed: it gets no answer
            }
            std::thread::Builder::new().name("client".into()).spawn(move || {
                let (laboratory, about, clients) = &*shared;
                // A client that breaks off has lost nothing but its answer.
                let _ = answer(&client, laboratory, about);
                clients.fetch_sub(1, Ordering::Relaxed);
            })?;
        }
        Ok(())
    }
}

fn answer(client: &UnixStream, laboratory: &Laboratory, about: &About) -> io::Result<()> {
    let mut reader = BufReader::with_capacity(REQUEST_BYTES_MAX, client);
    loop {
        let mut line = String::new();
        if io::Read::take(&mut reader, REQUEST_BYTES_MAX as u64).read_line(&mut line)? == 0 {
            return Ok(());
        }
        match line.trim_end() {
            "about" => {
                let about = About { up_s: laboratory.now().as_secs(), ..about.clone() };
                write_line(client, &about)?;
            }
            "report" => write_line(client, &laboratory.snapshot()?)?,
            "down" => {
                let inodes: Vec<u64> = about.hosts.iter().map(|host| host.inode).collect();
                let down = Down { ended: end_inhabitants(&inodes, GRACE) };
                // The client may have gone.
                let _ = write_line(client, &down);
                std::process::exit(0);
            }
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
    }
}

fn write_line(mut to: &UnixStream, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    to.write_all(&line)
}

fn inode(namespace: &OwnedFd) -> io::Result<u64> {
    Ok(fs::File::from(namespace.try_clone()?).metadata()?.ino())
}

/// Processes inside any of these namespaces.
fn inhabitants(inodes: &[u64]) -> Vec<u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers.filter(|&process| is_inside(process, inodes)).collect()
}

fn is_inside(process: u32, inodes: &[u64]) -> bool {
    let namespace = fs::metadata(format!("/proc/{process}/ns/net"));
    process != std::process::id() && namespace.is_ok_and(|ns| inodes.contains(&ns.ino()))
}

/// Ends what runs inside, and by force what has not ended after `grace`. Returns how many there were.
pub(super) fn end_inhabitants(inodes: &[u64], grace: Duration) -> usize {
    let found = inhabitants(inodes);
    let begin = Instant::now();
    loop {
        let left = inhabitants(inodes);
        if left.is_empty() || begin.elapsed() > grace + GRACE {
            return found.len();
        }
        let at_once = begin.elapsed() >= grace;
        for process in left {
            // It may have ended meanwhile, which is what is wanted.
            let _ = namespace::end_process(process, at_once, || is_inside(process, inodes));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// A connection to a laboratory.
#[derive(Debug)]
pub struct Client {
    name: String,
    stream: UnixStream,
}

impl Client {
    /// Finds the laboratory of that name.
    ///
    /// # Errors
    /// There is none, or it is another user's.
    pub fn connect(name: &str) -> Result<Self, ControlError> {
        let stream = UnixStream::connect_addr(&address(name)?)
            .map_err(|_| ControlError::Absent(name.to_owned()))?;
        let lost = |source| ControlError::Lost { name: name.to_owned(), source };
        if stream::peer_uid(&stream).map_err(lost)? != own_user() {
            return Err(lost(io::Error::other("another user holds its name")));
        }
        stream.set_read_timeout(Some(ANSWER_WAIT)).map_err(lost)?;
        Ok(Self { name: name.to_owned(), stream })
    }

    /// What it is of.
    ///
    /// # Errors
    /// It ended.
    pub fn about(&mut self) -> Result<About, ControlError> {
        self.ask("about\n")
    }

    /// What has happened so far.
    ///
    /// # Errors
    /// It ended.
    pub fn report(&mut self) -> Result<super::report::Snapshot, ControlError> {
        self.ask("report\n")
    }

    /// Ends it, and what runs inside. Returns when it is gone.
    ///
    /// # Errors
    /// It ended before it answered.
    pub fn down(mut self) -> Result<Down, ControlError> {
        let down = self.ask("down\n")?;
        // Its end closes the stream; an error is an end, too.
        let _ = io::Read::read(&mut self.stream, &mut [0]);
        // The process closes the socket that holds its name as it ends, not before.
        let begin = Instant::now();
        while UnixStream::connect_addr(&address(&self.name)?).is_ok() && begin.elapsed() < GRACE {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(down)
    }

    /// Waits until the laboratory is gone.
    pub(super) fn wait_for_its_end(mut self) {
        // Without the timeout there is no other return than the end.
        let _ = self.stream.set_read_timeout(None);
        let _ = io::Read::read(&mut self.stream, &mut [0]);
    }

    fn ask<T: DeserializeOwned>(&mut self, request: &str) -> Result<T, ControlError> {
        self.exchange(request)
            .map_err(|source| ControlError::Lost { name: self.name.clone(), source })
    }

    fn exchange<T: DeserializeOwned>(&mut self, request: &str) -> io::Result<T> {
        (&self.stream).write_all(request.as_bytes())?;
        let mut line = String::new();
        if BufReader::new(&self.stream).read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_str(&line)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_taken_once_and_free_after_the_end() {
        let name = format!("test-{}", std::process::id());
        let claimed = claim(&name).unwrap();
        assert!(matches!(claim(&name), Err(ControlError::Taken(_))));
        assert!(names().unwrap().contains(&name));
        drop(claimed);
        assert!(!names().unwrap().contains(&name));
        assert!(matches!(Client::connect(&name), Err(ControlError::Absent(_))));
    }

    #[test]
    fn a_name_is_a_word() {
        for name in ["", "a/b", "a b", "\0", &"x".repeat(64)] {
            assert!(matches!(claim(name), Err(ControlError::Name(_))), "{name}");
        }
    }
}
