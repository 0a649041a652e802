//! TCP sockets of the programs of a control group made MPTCP ones, by the kernel itself.
//!
//! # Model
//! ```text
//!   socket(family, type, protocol) ── update_socket_protocol() ── ours: 262 | 0, "as it is"
//!                                                                  │ asks, adds 1
//!                        Map: (cgroup, network namespace) ─► sockets made
//! ```
//! `update_socket_protocol` is a function of the kernel that does nothing (net/socket.c), there for
//! programs to stand in its place (BPF_MODIFY_RETURN). Ours and the map are pinned in bpffs and work
//! on while no process of ours runs. A cgroup's subtree belongs to it; namespaces are known by their
//! cookies.
//!
//! # Invariants
//! * only AF_INET and AF_INET6, SOCK_STREAM, and protocol 0 or IPPROTO_TCP are touched, of threads in
//!   a listed cgroup *and* its listed network namespace: elsewhere MPTCP may be off, and socket()
//!   would fail
//! * a program that was started with PGMPTCP=0 in its environment is left alone; of that 256 pieces
//!   of 63 bytes are read, and what cannot be read turns nothing off
//! * 0 is returned for all others, so that the next program, or the function itself, decides
//! * what is not whole, because a process was killed between two pins, is made again
//!
//! # Limits
//! Linux 6.6, with BTF, and what BPF needs to stand in a function's place (CONFIG_BPF_JIT,
//! CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS, or an arm64 of 6.6). CAP_BPF and CAP_PERFMON, or
//! CAP_SYS_ADMIN. cgroup v2.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::PROTOCOL;
use crate::bpf::btf::{self, Btf};
use crate::bpf::instruction::{Assembly, Instruction, Label, Register::*};
use crate::bpf::pins::{self, is_absent};
use crate::bpf::{LoadError, Map, Program, lockdown};

/// The function in whose place the program stands.
const FUNCTION: &str = "update_socket_protocol";
/// Of the instructions below: helpers that read the kernel's structures want one that goes with the
/// GPL.
const LICENSE: &str = "Dual MIT/GPL";
/// What `bpftool prog` shows.
const NAME: &str = "hawser_mptcp";
/// Cgroups at one time, those that have gone since the last change among them.
pub const CGROUPS_MAX: u32 = 1024;
/// Levels below the root in which a cgroup is found (systemd has some 5, Kubernetes 8).
const LEVELS_MAX: i32 = 32;
/// The pins.
const LINK: &str = "link";
const MAP: &str = "cgroups";

// include/uapi/linux/bpf.h
const MAP_LOOKUP_ELEM: i32 = 1;
const GET_CURRENT_ANCESTOR_CGROUP_ID: i32 = 123;
const GET_CURRENT_TASK_BTF: i32 = 158;
const PROBE_READ_USER_STR: i32 = 114;

/// An environment is read in pieces of so much, and so many at most: 16 KiB.
const PIECE_BYTES: i32 = 64;
const PIECES_MAX: i32 = 256;

/// A cgroup's number, which is its directory's inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CgroupId(pub u64);

/// A cgroup whose programs have MPTCP sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Entry {
    /// The cgroup.
    pub cgroup: CgroupId,
    /// The cookie of the network namespace in which that holds.
    pub namespace: u64,
    /// Sockets that were asked for as TCP ones since.
    pub sockets: u64,
}

/// Why it cannot be done.
#[derive(Debug)]
pub enum CgroupError {
    /// The kernel has no `update_socket_protocol`.
    Kernel,
    /// The kernel does not describe its types.
    NoBtf(io::Error),
    /// What it says of them is not what is known.
    Btf(&'static str),
    /// No rights.
    Denied {
        /// What was to be done.
        step: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The verifier, or the function, refuses.
    Refused {
        /// What was to be done.
        step: &'static str,
        /// Why.
        source: io::Error,
        /// The verifier's words.
        log: String,
    },
    /// There is no bpffs.
    NoFileSystem(PathBuf),
    /// There are as many cgroups as there can be.
    Full,
    /// Something else.
    Failed {
        /// What was to be done.
        step: &'static str,
        /// Why.
        source: io::Error,
    },
}

impl fmt::Display for CgroupError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kernel => write!(
                f,
                "this kernel has no {FUNCTION} that BPF may change (Linux 6.6 and CONFIG_BPF_SYSCALL \
                 are needed); `hawser mptcp run`, or the preloaded library, does without"
            ),
            Self::NoBtf(source) => write!(
                f,
                "{}: {source}. The kernel must describe its types (CONFIG_DEBUG_INFO_BTF); \
                 `hawser mptcp run`, or the preloaded library, does without",
                btf::KERNEL
            ),
            Self::Btf(what) => {
                write!(f, "{}: {what} is not found in the kernel's types", btf::KERNEL)
            }
            Self::Denied { step, source } => {
                write!(
                    f,
                    "{step}: {source}. It needs root (CAP_BPF and CAP_PERFMON), and that no security \
                     module of this machine forbids it"
                )?;
                match lockdown() {
                    Some(mode) => write!(f, "; the kernel is locked down ({mode})"),
                    None => Ok(()),
                }
            }
            Self::Refused { step, source, log } => {
                write!(f, "{step}: {source}")?;
                match source.raw_os_error() {
                    Some(ENOTSUPP | libc::EOPNOTSUPP) => f.write_str(
                        ". This kernel cannot put BPF in a function's place (CONFIG_BPF_JIT and \
                         CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS are needed)",
                    ),
                    _ if log.is_empty() => Ok(()),
                    _ => write!(f, ". The kernel's verifier says: {log}"),
                }
            }
            Self::NoFileSystem(path) => write!(
                f,
                "{} is no BPF file system: `mount -t bpf bpf {}` makes it one (systemd does)",
                path.display(),
                path.display()
            ),
            Self::Full => write!(f, "there are {CGROUPS_MAX} cgroups already"),
            Self::Failed { step, source } => write!(f, "{step}: {source}"),
        }
    }
}

/// The kernel's own ENOTSUPP (include/linux/errno.h), for which libc has no name.
const ENOTSUPP: i32 = 524;

impl std::error::Error for CgroupError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NoBtf(source)
            | Self::Denied { source, .. }
            | Self::Refused { source, .. }
            | Self::Failed { source, .. } => Some(source),
            Self::Kernel | Self::Btf(_) | Self::NoFileSystem(_) | Self::Full => None,
        }
    }
}

fn failed(step: &'static str) -> impl FnOnce(io::Error) -> CgroupError {
    move |source| match source.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => CgroupError::Denied { step, source },
        _ => CgroupError::Failed { step, source },
    }
}

/// The places in the kernel's structures that the program reads, and the function that it attaches to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Kernel {
    function: u32,
    /// `task_struct.nsproxy`, `nsproxy.net_ns`, `net.net_cookie`.
    proxy: i16,
    network: i16,
    cookie: i16,
    environment: Option<Environment>,
}

/// `task_struct.mm`, `mm_struct.env_start`, `mm_struct.env_end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Environment {
    memory: i16,
    begin: i16,
    end: i16,
}

impl Kernel {
    fn find(btf: Btf<'_>) -> Result<Self, CgroupError> {
        let function = btf.function(FUNCTION).ok_or(CgroupError::Kernel)?;
        let member = |structure: &str, name: &str, what: &'static str| {
            let offset = btf.member(structure, name).and_then(|bytes| i16::try_from(bytes).ok());
            offset.ok_or(CgroupError::Btf(what))
        };
        Ok(Self {
            function,
            proxy: member("task_struct", "nsproxy", "task_struct.nsproxy")?,
            network: member("nsproxy", "net_ns", "nsproxy.net_ns")?,
            cookie: member("net", "net_cookie", "net.net_cookie")?,
            environment: environment(btf),
        })
    }

    /// The program. Its argument is the array of the function's: family, type, protocol.
    fn program(self, map: i32) -> Option<Vec<Instruction>> {
        let mut a = Assembly::default();
        let [of_family, of_protocol, up, next, as_it_is] = [(); 5].map(|()| a.label());
        let mptcp = a.label();
        a.load(R2, R1, 0);
        a.if_equal_32(R2, libc::AF_INET, of_family);
        a.unless_equal_32(R2, libc::AF_INET6, as_it_is);
        a.put(of_family);
        a.load(R2, R1, 8);
        // Without SOCK_CLOEXEC and SOCK_NONBLOCK (SOCK_TYPE_MASK).
        a.and_32(R2, 0xf);
        a.unless_equal_32(R2, libc::SOCK_STREAM, as_it_is);
        a.load(R2, R1, 16);
        a.if_equal_32(R2, 0, of_protocol);
        a.unless_equal_32(R2, libc::IPPROTO_TCP, as_it_is);
        a.put(of_protocol);
        // The key: (cgroup, cookie of the network namespace).
        a.call(GET_CURRENT_TASK_BTF);
        a.load(R1, R0, self.proxy);
        a.load(R1, R1, self.network);
        a.load(R7, R1, self.cookie);
        a.store(R10, -8, R7);
        // From the root to the thread's own.
        a.set(R6, 0);
        a.put(up);
        a.copy(R1, R6);
        a.call(GET_CURRENT_ANCESTOR_CGROUP_ID);
        a.if_equal(R0, 0, as_it_is);
        a.store(R10, -16, R0);
        a.map(R1, map);
        a.copy(R2, R10);
        a.add(R2, -16);
        a.call(MAP_LOOKUP_ELEM);
        a.if_equal(R0, 0, next);
        a.copy(R8, R0);
        if let Some(environment) = self.environment {
            environment.look_for_the_switch(&mut a, mptcp, as_it_is);
        }
        a.put(mptcp);
        a.copy(R0, R8);
        a.set(R1, 1);
        a.atomic_add(R0, 0, R1);
        a.set(R0, PROTOCOL);
        a.exit();
        a.put(next);
        a.add(R6, 1);
        a.if_less(R6, LEVELS_MAX, up);
        a.put(as_it_is);
        a.set(R0, 0);
        a.exit();
        a.finish()
    }
}

impl Environment {
    /// As `run`: PGMPTCP=0 turns it off. What cannot be read does not.
    fn look_for_the_switch(self, a: &mut Assembly, mptcp: Label, as_it_is: Label) {
        let Self { memory, begin, end } = self;
        let [text, some, short, advanced] = [(); 4].map(|()| a.label());
        a.call(GET_CURRENT_TASK_BTF);
        a.load(R1, R0, memory);
        a.if_equal(R1, 0, mptcp);
        a.load(R6, R1, begin);
        a.load(R7, R1, end);
        a.set(R9, 0);
        // Whether what is read next is the beginning of a text.
        a.set(R1, 1);
        a.store(R10, -24, R1);
        a.put(text);
        a.unless_below(R6, R7, mptcp);
        a.copy(R1, R10);
        a.add(R1, -24 - PIECE_BYTES);
        a.set(R2, PIECE_BYTES);
        a.copy(R3, R6);
        a.call(PROBE_READ_USER_STR);
        a.if_less_signed(R0, 0, mptcp);
        a.if_above(R0, 0, some);
        // For an empty text, not even the terminator is counted (strncpy_from_user_nofault).
        a.set(R0, 1);
        a.put(some);
        a.load(R1, R10, -24);
        a.if_equal(R1, 0, advanced);
        a.load(R1, R10, -24 - PIECE_BYTES as i16);
        a.set_64(R2, u64::from_ne_bytes(*b"PGMPTCP="));
        a.unless_same(R1, R2, advanced);
        a.load_16(R1, R10, -24 - PIECE_BYTES as i16 + 8);
        a.if_equal(R1, i32::from(u16::from_ne_bytes(*b"0\0")), as_it_is);
        a.put(advanced);
        a.set(R1, 1);
        a.if_less(R0, PIECE_BYTES, short);
        // As much as there is room for: its last byte, a zero, is none of the text's.
        a.set(R1, 0);
        a.add(R0, -1);
        a.put(short);
        a.store(R10, -24, R1);
        a.add_register(R6, R0);
        a.add(R9, 1);
        a.if_less(R9, PIECES_MAX, text);
    }
}

/// Where environments are, in a kernel with that information.
fn environment(btf: Btf<'_>) -> Option<Environment> {
    let member = |structure, name| i16::try_from(btf.member(structure, name)?).ok();
    Some(Environment {
        memory: member("task_struct", "mm")?,
        begin: member("mm_struct", "env_start")?,
        end: member("mm_struct", "env_end")?,
    })
}

/// The program at work, and its map.
#[derive(Debug)]
pub struct Conversion {
    directory: PathBuf,
    map: Map<2, 1>,
}

impl Conversion {
    /// What is pinned in `directory`, if it is there whole.
    ///
    /// # Errors
    /// No rights.
    pub fn find(directory: &Path) -> Result<Option<Self>, CgroupError> {
        let step = "looking for the BPF program";
        match fs::symlink_metadata(directory.join(LINK)) {
            Err(error) if is_absent(&error) => return Ok(None),
            found => found.map_err(failed(step))?,
        };
        match Map::pinned(&directory.join(MAP)) {
            Ok(map) => Ok(Some(Self { directory: directory.to_owned(), map })),
            Err(error) if is_absent(&error) || error.kind() == io::ErrorKind::InvalidData => {
                Ok(None)
            }
            Err(error) => Err(failed(step)(error)),
        }
    }

    /// What is pinned in `directory`, or a new, unused one.
    ///
    /// # Errors
    /// See [`CgroupError`]; then nothing has been made.
    pub fn find_or_attach(directory: &Path) -> Result<Self, CgroupError> {
        if let Some(found) = Self::find(directory)? {
            return Ok(found);
        }
        let bytes = btf::of_kernel().map_err(CgroupError::NoBtf)?;
        let btf = Btf::parse(&bytes).ok_or(CgroupError::Btf("BTF"))?;
        let kernel = Kernel::find(btf)?;
        let looking = failed("looking for the BPF file system");
        if let Some(mount) = pins::missing_file_system(directory).map_err(looking)? {
            return Err(CgroupError::NoFileSystem(mount));
        }
        let map = Map::create(NAME, CGROUPS_MAX).map_err(failed("making a BPF map"))?;
        let instructions =
            kernel.program(map.descriptor()).ok_or(CgroupError::Btf("a place to jump to"))?;
        let step = "loading the BPF program";
        let program = Program::modify_return(NAME, LICENSE, kernel.function, &instructions)
            .map_err(|error| match (error.is_denial(), error) {
                (true, LoadError { source, .. }) => CgroupError::Denied { step, source },
                (false, LoadError { source, log }) => CgroupError::Refused { step, source, log },
            })?;
        remove_pins(directory).map_err(failed("removing what was left of an earlier one"))?;
        let made = || {
            let pin = "pinning the BPF program";
            fs::create_dir(directory).map_err(failed(pin))?;
            map.pin(&directory.join(MAP)).map_err(failed(pin))?;
            let link = program.attach().map_err(|source| CgroupError::Refused {
                step: "putting the BPF program to its place",
                source,
                log: String::new(),
            })?;
            link.pin(&directory.join(LINK)).map_err(failed(pin))
        };
        if let Err(error) = made() {
            let _ = remove_pins(directory);
            return Err(error);
        }
        Ok(Self { directory: directory.to_owned(), map })
    }

    /// The cgroups, in their order.
    ///
    /// # Errors
    /// As bpf(2).
    pub fn entries(&self) -> Result<Vec<Entry>, CgroupError> {
        let step = "reading the BPF map";
        let mut entries = Vec::new();
        for key in self.map.keys(CGROUPS_MAX as usize).map_err(failed(step))? {
            if let Some([sockets]) = self.map.get(&key).map_err(failed(step))? {
                entries.push(Entry { cgroup: CgroupId(key[0]), namespace: key[1], sockets });
            }
        }
        entries.sort_unstable();
        Ok(entries)
    }

    /// Adds a cgroup; gives whether it was not there already.
    ///
    /// # Errors
    /// [`CgroupError::Full`].
    pub fn add(&self, cgroup: CgroupId, namespace: u64) -> Result<bool, CgroupError> {
        let step = "writing the BPF map";
        let key = [cgroup.0, namespace];
        if self.map.get(&key).map_err(failed(step))?.is_some() {
            return Ok(false);
        }
        match self.map.set(&key, [0]) {
            Err(error) if error.raw_os_error() == Some(libc::E2BIG) => Err(CgroupError::Full),
            result => result.map(|()| true).map_err(failed(step)),
        }
    }

    /// Removes a cgroup; gives whether it was there.
    ///
    /// # Errors
    /// As bpf(2).
    pub fn remove(&self, cgroup: CgroupId, namespace: u64) -> Result<bool, CgroupError> {
        self.map.remove(&[cgroup.0, namespace]).map_err(failed("writing the BPF map"))
    }

    /// Takes the program away.
    ///
    /// # Errors
    /// As unlink(2).
    pub fn detach(self) -> Result<(), CgroupError> {
        remove_pins(&self.directory).map_err(failed("removing the BPF program"))
    }
}

/// The link first: without its map nothing is to stand there.
fn remove_pins(directory: &Path) -> io::Result<()> {
    pins::remove(directory, [LINK, MAP])
}

#[cfg(test)]
mod tests;
