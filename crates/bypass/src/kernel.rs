//! Local TCP connections past the TCP/IP stack: three programs of the kernel, and their maps.
//!
//! # Model
//! ```text
//!   cgroup ── operations ──► sockets (key ─► socket) ◄── messages: send(2) of each of them
//!          └─ options        entries (key ─► address, cookie, what it was sent)
//!                            wanted  ((namespace, port) | (0, cookie)): whom `Place::Pooler` takes in
//!                            switch, totals
//! ```
//! All but the programs of messages is pinned in a directory of bpffs, and works on while no process
//! of ours runs. When the pins go, no socket comes in any more; those that are in stay, because
//! their waiting bytes would be lost, and the kernel keeps `messages`, `switch` and `sockets` until
//! the last of them is closed.
//!
//! # Invariants
//! * both ends of a redirected connection are in `sockets` and `entries`, in one network namespace
//! * a socket with a protocol above TCP (MPTCP, kTLS) does not come in, nor does one that was open
//!   before, whose peer is elsewhere, or that connects by a descriptor that waits (but for
//!   `Place::Blocking`)
//! * a socket is never taken out while it lives
//! * a socket that is wanted, or was accepted by a pooler, is of one whose reads end only where there is
//!   nothing more; of one that others accept on a wanted port this is not known
//!
//! # Limits
//! Linux 6.2 with BTF, where `hawser bypass selftest` passes: before 6.13, and some releases of older
//! series, the kernel does not count redirected bytes, and nothing would be bounded. CAP_BPF,
//! CAP_PERFMON and CAP_NET_ADMIN. cgroup v2.

use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use hawser_sys::bpf::btf::KERNEL;
use hawser_sys::bpf::pins::{self, is_absent};
use hawser_sys::bpf::{Board, CgroupHook, LoadError, Map, MapKind, Program, lockdown};
use hawser_sys::stream::{LocalAddress, local_address, peer_address};

mod program;
mod types;

use program::{Maps, Scope};
use types::Kernel;

/// Of the instructions: helpers that read the kernel's structures want one that goes with the GPL.
const LICENSE: &str = "Dual MIT/GPL";
/// What `bpftool prog` shows.
const NAME: &str = "hawser_bypass";
/// Sockets at one time, two of a connection. Those that come when it is full go over TCP.
pub const SOCKETS_MAX: u32 = 1 << 17;
/// Ports and connections of poolers that are wanted at one time.
const WANTED_MAX: u32 = 4096;

const SOCKETS: &str = "sockets";
const ENTRIES: &str = "entries";
const WANTED: &str = "wanted";
const SWITCH: &str = "switch";
const TOTALS: &str = "totals";

/// Why it cannot be done.
#[derive(Debug, thiserror::Error)]
pub enum BypassError {
    /// The kernel does not describe its types.
    #[error("{KERNEL}: {0}. The kernel must describe its types (CONFIG_DEBUG_INFO_BTF)")]
    NoBtf(#[source] io::Error),
    /// What it says of them is not what is known.
    #[error("{KERNEL}: {0} is not found in the kernel's types")]
    Btf(&'static str),
    /// It has not what the programs call.
    #[error("this kernel has no {0} (Linux 6.2 and CONFIG_BPF_SYSCALL are needed)")]
    NoHelper(&'static str),
    /// No rights.
    #[error(
        "{step}: {source}. It needs root (CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN), and that no security \
         module of this machine forbids it{}",
        lockdown().map_or_else(String::new, |mode| format!("; the kernel is locked down ({mode})"))
    )]
    Denied {
        /// What was to be done.
        step: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The verifier refuses.
    #[error("{step}: {source}{}", last_words(.log))]
    Refused {
        /// What was to be done.
        step: &'static str,
        /// Why.
        source: io::Error,
        /// The verifier's words.
        log: String,
    },
    /// There is no bpffs.
    #[error("{0} is no BPF file system: `mount -t bpf bpf {0}` makes it one (systemd does)")]
    NoFileSystem(PathBuf),
    /// Something else.
    #[error("{step}: {source}")]
    Failed {
        /// What was to be done.
        step: &'static str,
        /// Why.
        source: io::Error,
    },
}

/// What the verifier says last is why; before that stands the program.
fn last_words(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    let end = lines[lines.len().saturating_sub(4)..].join("; ");
    if end.is_empty() { end } else { format!(". The kernel's verifier says: {end}") }
}

fn failed(step: &'static str) -> impl FnOnce(io::Error) -> BypassError {
    move |source| match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => BypassError::Denied { step, source },
        _ => BypassError::Failed { step, source },
    }
}

fn loading(step: &'static str) -> impl FnOnce(LoadError) -> BypassError {
    move |error| match (error.is_denial(), error) {
        (true, LoadError { source, .. }) => BypassError::Denied { step, source },
        (false, LoadError { source, log }) => BypassError::Refused { step, source, log },
    }
}

/// What connections are taken in for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// For the programs of a control group: all local ones.
    Programs,
    /// The same, for programs that wait in recv(2).
    Blocking,
    /// For poolers: those that are wanted, of whatever programs.
    Pooler,
}

impl Place {
    const ALL: [Self; 3] = [Self::Programs, Self::Blocking, Self::Pooler];

    fn pins(self) -> [&'static str; 2] {
        match self {
            Self::Programs => ["programs-operations", "programs-options"],
            Self::Blocking => ["blocking-operations", "blocking-options"],
            Self::Pooler => ["pooler-operations", "pooler-options"],
        }
    }
}

/// What was done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Messages that went past TCP.
    pub redirected: u64,
    /// Their bytes.
    pub redirected_bytes: u64,
    /// Messages that went through TCP: the reader's queue had no room.
    pub passed_full: u64,
    /// Because bytes that went through TCP had not been read.
    pub passed_unread: u64,
    /// For other reasons: switched off, no peer here, a reader that waits in recv(2).
    pub passed_other: u64,
    /// Connections that were not taken in: the end that connects waits in recv(2).
    pub not_taken_in: u64,
}

impl Counters {
    fn add(&mut self, numbers: &[u64]) {
        let [_, _, redirected, bytes, full, unread, other, ..] = numbers else { return };
        self.redirected += redirected;
        self.redirected_bytes += bytes;
        self.passed_full += full;
        self.passed_unread += unread;
        self.passed_other += other;
    }
}

/// How it stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// Whether the switch is on.
    pub on: bool,
    /// Connections with both ends here.
    pub pairs: u64,
    /// Sockets, also those without a peer.
    pub sockets: u64,
    /// Since it was loaded.
    pub counters: Counters,
}

/// The maps; while they are pinned, the programs are too.
#[derive(Debug)]
pub struct Bypass {
    directory: PathBuf,
    sockets: Map<6, 1>,
    entries: Map<6, 11>,
    wanted: Map<2, 1>,
    switch: Board<1>,
    totals: Board<8>,
}

impl Bypass {
    /// Whether this machine lets it, without leaving anything.
    ///
    /// # Errors
    /// See [`BypassError`].
    pub fn probe() -> Result<(), BypassError> {
        let kernel = Kernel::running()?;
        let bypass = Self::create(Path::new(""))?;
        bypass.load_messages(&kernel)?;
        Place::ALL.into_iter().try_for_each(|place| bypass.load(&kernel, place).map(drop))
    }

    /// What is pinned in `directory`, if it is there whole.
    ///
    /// # Errors
    /// No rights.
    pub fn find(directory: &Path) -> Result<Option<Self>, BypassError> {
        let found = || -> io::Result<Self> {
            let path = |name: &str| directory.join(name);
            Ok(Self {
                directory: directory.to_owned(),
                // The last that is pinned, so that the others are there.
                switch: Board::pinned(&path(SWITCH))?,
                sockets: Map::pinned_as(MapKind::Sockets, &path(SOCKETS))?,
                entries: Map::pinned_as(MapKind::SparseHash, &path(ENTRIES))?,
                wanted: Map::pinned(&path(WANTED))?,
                totals: Board::pinned(&path(TOTALS))?,
            })
        };
        match found() {
            Ok(found) => Ok(Some(found)),
            Err(error) if is_absent(&error) || error.kind() == io::ErrorKind::InvalidData => {
                Ok(None)
            }
            Err(error) => Err(failed("looking for the BPF maps")(error)),
        }
    }

    /// What is pinned in `directory`, or a new one, switched on, that takes no connection in yet.
    ///
    /// # Errors
    /// See [`BypassError`]; then nothing has been made.
    pub fn find_or_load(directory: &Path) -> Result<Self, BypassError> {
        if let Some(found) = Self::find(directory)? {
            return Ok(found);
        }
        let kernel = Kernel::running()?;
        let looking = failed("looking for the BPF file system");
        if let Some(mount) = pins::missing_file_system(directory).map_err(looking)? {
            return Err(BypassError::NoFileSystem(mount));
        }
        let bypass = Self::create(directory)?;
        bypass.load_messages(&kernel)?;
        remove_pins(directory).map_err(failed("removing what was left of an earlier one"))?;
        let pinned = || -> io::Result<()> {
            let path = |name: &str| directory.join(name);
            fs::create_dir(directory)?;
            bypass.sockets.pin(&path(SOCKETS))?;
            bypass.entries.pin(&path(ENTRIES))?;
            bypass.wanted.pin(&path(WANTED))?;
            bypass.totals.pin(&path(TOTALS))?;
            bypass.switch.set([1])?;
            bypass.switch.pin(&path(SWITCH))
        };
        if let Err(error) = pinned() {
            let _ = remove_pins(directory);
            return Err(failed("pinning the BPF maps")(error));
        }
        Ok(bypass)
    }

    fn create(directory: &Path) -> Result<Self, BypassError> {
        let made = || -> io::Result<Self> {
            Ok(Self {
                directory: directory.to_owned(),
                sockets: Map::create_as(MapKind::Sockets, NAME, SOCKETS_MAX)?,
                entries: Map::create_as(MapKind::SparseHash, NAME, SOCKETS_MAX)?,
                wanted: Map::create(NAME, WANTED_MAX)?,
                switch: Board::create(NAME)?,
                totals: Board::create(NAME)?,
            })
        };
        made().map_err(failed("making the BPF maps"))
    }

    fn maps(&self) -> Maps {
        Maps {
            sockets: self.sockets.descriptor(),
            entries: self.entries.descriptor(),
            wanted: self.wanted.descriptor(),
            switch: self.switch.descriptor(),
            totals: self.totals.descriptor(),
        }
    }

    fn load_messages(&self, kernel: &Kernel) -> Result<(), BypassError> {
        let instructions =
            program::messages(kernel, self.maps()).ok_or(BypassError::Btf("a place to jump to"))?;
        let program = Program::of_messages(NAME, LICENSE, &instructions)
            .map_err(loading("loading the BPF program of messages"))?;
        program.decide_for(&self.sockets).map_err(failed("giving the sockets their BPF program"))
    }

    fn load(
        &self,
        kernel: &Kernel,
        place: Place,
    ) -> Result<[(CgroupHook, Program); 2], BypassError> {
        let scope = match place {
            Place::Programs => Scope::All,
            Place::Blocking => Scope::Blocking,
            Place::Pooler => Scope::Wanted,
        };
        let missing = || BypassError::Btf("a place to jump to");
        let operations = program::operations(kernel, self.maps(), scope).ok_or_else(missing)?;
        let options = program::options(self.maps()).ok_or_else(missing)?;
        let load = |hook, instructions: &[_], step| {
            let program = Program::of_cgroup(NAME, LICENSE, hook, instructions);
            program.map(|program| (hook, program)).map_err(loading(step))
        };
        Ok([
            load(
                CgroupHook::SocketOperations,
                &operations,
                "loading the BPF program of connections",
            )?,
            load(CgroupHook::SetSocketOption, &options, "loading the BPF program of options")?,
        ])
    }

    /// Takes connections in from now on, of the sockets of this control group (its directory). Does
    /// nothing if it is done for that place already.
    ///
    /// # Errors
    /// See [`BypassError`]; then nothing is attached there.
    pub fn attach(&self, place: Place, cgroup: &Path) -> Result<(), BypassError> {
        if self.is_attached(place) {
            return Ok(());
        }
        self.detach(place)?;
        let kernel = Kernel::running()?;
        let cgroup = File::open(cgroup).map_err(failed("opening the control group"))?;
        let attached = || {
            // Connections last: kTLS is refused before the first is there.
            let loaded = self.load(&kernel, place)?;
            for ((hook, program), pin) in loaded.iter().zip(place.pins()).rev() {
                let step = "putting the BPF program to the control group";
                let link = program.attach_to_cgroup(cgroup.as_fd(), *hook).map_err(failed(step))?;
                link.pin(&self.directory.join(pin)).map_err(failed("pinning the BPF program"))?;
            }
            Ok(())
        };
        let done = attached();
        if done.is_err() {
            let _ = self.detach(place);
        }
        done
    }

    /// Whether connections are taken in for that place.
    pub fn is_attached(&self, place: Place) -> bool {
        // Of the two, it is the last that is pinned.
        self.directory.join(place.pins()[0]).exists()
    }

    /// Takes no more connections in for that place; those that are in stay.
    ///
    /// # Errors
    /// As unlink(2).
    pub fn detach(&self, place: Place) -> Result<(), BypassError> {
        pins::remove_files(&self.directory, place.pins())
            .map_err(failed("taking the BPF program from the control group"))
    }

    /// Redirects, or passes everything from the next message on. It holds for all connections, also
    /// those that stay when the pins have gone.
    ///
    /// # Errors
    /// As bpf(2).
    pub fn switch(&self, on: bool) -> Result<(), BypassError> {
        self.switch.set([on.into()]).map_err(failed("writing the BPF map"))
    }

    /// Has [`Place::Pooler`] take in connections to a port of a network namespace, for a process.
    ///
    /// # Errors
    /// As bpf(2); E2BIG: there are as many as there can be.
    pub fn want_port(&self, namespace: u64, port: u16, process: u32) -> io::Result<()> {
        self.wanted.set(&[namespace, port.into()], [process.into()])
    }

    /// Undoes [`Bypass::want_port`], unless another process has come to want it.
    ///
    /// # Errors
    /// As bpf(2).
    pub fn forget_port(&self, namespace: u64, port: u16, process: u32) -> io::Result<()> {
        let key = [namespace, port.into()];
        match self.wanted.get(&key)? {
            Some([by]) if by == u64::from(process) => self.wanted.remove(&key).map(drop),
            _ => Ok(()),
        }
    }

    /// Whether any port is wanted.
    ///
    /// # Errors
    /// As bpf(2).
    pub fn wants_ports(&self) -> io::Result<bool> {
        let keys = self.wanted.keys(WANTED_MAX as usize)?;
        Ok(keys.iter().any(|[namespace, _]| *namespace != 0))
    }

    /// Has [`Place::Pooler`] take in the connection that this socket is about to make.
    ///
    /// # Errors
    /// As bpf(2); E2BIG: there are as many as there can be.
    pub fn want_socket(&self, socket: impl AsFd) -> io::Result<u64> {
        let cookie = rustix::net::sockopt::socket_cookie(socket)?;
        self.wanted.set(&[0, cookie], [1])?;
        Ok(cookie)
    }

    /// Undoes [`Bypass::want_socket`], if the connection was not made.
    ///
    /// # Errors
    /// As bpf(2).
    pub fn forget_socket(&self, cookie: u64) -> io::Result<()> {
        self.wanted.remove(&[0, cookie]).map(drop)
    }

    /// Says of a socket that this process has accepted that it reads until there is nothing. Gives whether
    /// the socket is taken in.
    ///
    /// # Errors
    /// As bpf(2).
    pub fn reads_all(&self, namespace: u64, socket: impl AsFd) -> io::Result<bool> {
        let cookie = rustix::net::sockopt::socket_cookie(&socket)?;
        let LocalAddress::Internet(here) = local_address(&socket)? else { return Ok(false) };
        let key = key_of(namespace, here, peer_address(&socket)?);
        match self.entries.get(&key)? {
            Some(mut numbers) if numbers[COOKIE] == cookie => {
                // Counts that the program makes meanwhile are lost: nothing reads here yet.
                numbers[COMES_BACK] = 1;
                self.entries.replace(&key, numbers)
            }
            _ => Ok(false),
        }
    }

    /// How it stands.
    ///
    /// # Errors
    /// As bpf(2).
    pub fn standing(&self) -> Result<Standing, BypassError> {
        let look = || -> io::Result<Standing> {
            let mut counters = Counters::default();
            let totals = self.totals.get()?;
            counters.add(&totals);
            counters.not_taken_in = totals[NOT_TAKEN_IN];
            let keys = self.entries.keys(SOCKETS_MAX as usize)?;
            let (mut sockets, mut ends_of_pairs) = (0, 0);
            let there: std::collections::HashSet<[u64; 6]> = keys.iter().copied().collect();
            for key in &there {
                let Some(numbers) = self.entries.get(key)? else { continue };
                sockets += 1;
                counters.add(&numbers);
                ends_of_pairs += u64::from(there.contains(&peer_of(key)));
            }
            let on = self.switch.get()? != [0];
            Ok(Standing { on, pairs: ends_of_pairs / 2, sockets, counters })
        };
        look().map_err(failed("reading the BPF maps"))
    }

    /// Forgets sockets that were closed without a program's notice: those of a place that was
    /// detached before.
    ///
    /// # Errors
    /// As bpf(2).
    pub fn forget_closed(&self) -> io::Result<()> {
        for key in self.entries.keys(SOCKETS_MAX as usize)? {
            // A socket comes into its map before its entry, and the kernel takes it out.
            if self.sockets.get(&key)?.is_none() {
                self.entries.remove(&key)?;
            }
        }
        Ok(())
    }

    /// Forgets the ports of a network namespace, this process's own, whose processes have gone. (Those of
    /// another may have numbers that are not known here.)
    ///
    /// # Errors
    /// As bpf(2).
    pub fn forget_dead(&self, namespace: u64) -> io::Result<()> {
        for key in self.wanted.keys(WANTED_MAX as usize)? {
            let Some([process]) = self.wanted.get(&key)? else { continue };
            if key[0] == namespace && !Path::new(&format!("/proc/{process}")).exists() {
                self.wanted.remove(&key)?;
            }
        }
        Ok(())
    }

    /// Removes all pins, after nothing is redirected any more.
    ///
    /// # Errors
    /// As unlink(2).
    pub fn remove(self) -> Result<(), BypassError> {
        self.switch(false)?;
        remove_pins(&self.directory).map_err(failed("removing the BPF programs"))
    }
}

/// Of an entry's numbers.
const COOKIE: usize = program::number::COOKIE as usize / 8;
const COMES_BACK: usize = program::number::COMES_BACK as usize / 8;
/// Of the totals.
const NOT_TAKEN_IN: usize = program::number::NOT_TAKEN_IN as usize / 8;

/// The key of a socket, as the program builds it.
fn key_of(namespace: u64, here: SocketAddr, there: SocketAddr) -> [u64; 6] {
    let address = |of: SocketAddr| match of.ip() {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    let ports = [here, there].map(|of| u32::from(of.port()).to_ne_bytes());
    let bytes =
        [&namespace.to_ne_bytes()[..], &address(here), &address(there), &ports[0], &ports[1]];
    let mut words = [0; 6];
    for (word, bytes) in words.iter_mut().zip(bytes.concat().as_chunks().0) {
        *word = u64::from_ne_bytes(*bytes);
    }
    words
}

/// The key with the ends exchanged: the namespace, the addresses, the ports (32 bits each).
fn peer_of(key: &[u64; 6]) -> [u64; 6] {
    let [namespace, here_1, here_2, there_1, there_2, ports] = *key;
    [namespace, there_1, there_2, here_1, here_2, ports.rotate_left(32)]
}

/// Removes what a process that has gone has left pinned in `directory`.
///
/// # Errors
/// As unlink(2).
pub fn remove_left(directory: &Path) -> io::Result<()> {
    remove_pins(directory)
}

/// The programs first: without their maps nothing is to come in.
fn remove_pins(directory: &Path) -> io::Result<()> {
    let programs = Place::ALL.into_iter().flat_map(Place::pins);
    pins::remove(directory, programs.chain([SWITCH, TOTALS, WANTED, ENTRIES, SOCKETS]))
}

#[cfg(test)]
mod tests;
