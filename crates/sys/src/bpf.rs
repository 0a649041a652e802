//! eBPF by bpf(2): a program of a few instructions, what it shares with us, and pins that outlive us.
//!
//! # Model
//! ```text
//!   instructions ── load ──► Program ── attach ──► Link ── pin ──► a file of bpffs
//!                              │ reads and writes
//!                             Map ─────────────────────── pin ──► a file of bpffs
//! ```
//! What is pinned lives until its file is removed, or the machine stops; what is not, until the last
//! descriptor is closed.
//! * [`btf`]: where in the kernel's own types things are
//! * [`instruction`]: the instructions, and labels
//!
//! # Why not a library
//! aya has objects built by a second compiler; libbpf is C, with libelf and zlib. What is needed here
//! are seven commands of one system call and some forty instructions.
//!
//! # Limits
//! Linux 5.8 for the rights (CAP_BPF, CAP_PERFMON; before that CAP_SYS_ADMIN). Numbers are those of include/uapi/linux/bpf.h.

use std::ffi::CString;
use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

pub mod btf;
pub mod instruction;
pub mod pins;

use instruction::Instruction;

// enum bpf_cmd
const MAP_CREATE: libc::c_long = 0;
const MAP_LOOKUP_ELEM: libc::c_long = 1;
const MAP_UPDATE_ELEM: libc::c_long = 2;
const MAP_DELETE_ELEM: libc::c_long = 3;
const MAP_GET_NEXT_KEY: libc::c_long = 4;
const PROG_LOAD: libc::c_long = 5;
const OBJ_PIN: libc::c_long = 6;
const OBJ_GET: libc::c_long = 7;
const PROG_ATTACH: libc::c_long = 8;
const OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const LINK_CREATE: libc::c_long = 28;

/// `BPF_MAP_TYPE_HASH`.
const HASH: u32 = 1;
/// `BPF_MAP_TYPE_ARRAY`.
const ARRAY: u32 = 2;
/// `BPF_MAP_TYPE_SOCKHASH`.
const SOCKHASH: u32 = 18;
/// `BPF_F_NO_PREALLOC`: memory is taken for what is there, not for all that may be.
const NO_PREALLOC: u32 = 1;
/// `BPF_SK_MSG_VERDICT` of enum bpf_attach_type.
const SK_MSG_VERDICT: u32 = 7;
/// `BPF_ANY`: whether there is such an element or not.
const ANY: u64 = 0;
/// `BPF_EXIST`: only if there is.
const IF_THERE: u64 = 2;
/// `BPF_OBJ_NAME_LEN`, with the NUL.
const NAME_BYTES: usize = 16;
/// What the verifier says of a program of our size is a tenth of it.
const LOG_BYTES: usize = 64 << 10;
/// `BPF_FS_MAGIC` (include/uapi/linux/magic.h).
const FILE_SYSTEM: i64 = 0xcafe_4a11;

/// A number of `union bpf_attr` that is a pointer.
fn address<T>(value: *const T) -> u64 {
    value.expose_provenance() as u64
}

/// bpf(2).
///
/// # Safety
/// `attributes` is the `union bpf_attr` of `command`, and what its addresses point to is valid for
/// what the command does with it.
unsafe fn bpf<T>(command: libc::c_long, attributes: &mut T) -> io::Result<RawFd> {
    let size = size_of::<T>();
    // SAFETY: as promised by the caller.
    let code = unsafe { libc::syscall(libc::SYS_bpf, command, &raw mut *attributes, size) };
    if code < 0 { Err(io::Error::last_os_error()) } else { Ok(code as RawFd) }
}

/// As [`bpf`], for commands whose result is a descriptor.
///
/// # Safety
/// As [`bpf`].
unsafe fn bpf_descriptor<T>(command: libc::c_long, attributes: &mut T) -> io::Result<OwnedFd> {
    // SAFETY: as promised by the caller.
    let fd = unsafe { bpf(command, attributes)? };
    // SAFETY: the result of these commands is a new descriptor without another owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

fn name_of(text: &str) -> [u8; NAME_BYTES] {
    let mut name = [0; NAME_BYTES];
    let length = text.len().min(NAME_BYTES - 1);
    name[..length].copy_from_slice(&text.as_bytes()[..length]);
    name
}

#[repr(C)]
struct MapCreate {
    kind: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries_max: u32,
    flags: u32,
    inner: u32,
    node: u32,
    name: [u8; NAME_BYTES],
}

#[repr(C)]
struct MapElement {
    map: u32,
    padding: u32,
    key: u64,
    /// Or the next key.
    value: u64,
    flags: u64,
}

#[repr(C)]
struct Pin {
    path: u64,
    fd: u32,
    flags: u32,
}

#[repr(C)]
struct GetInfo {
    fd: u32,
    bytes: u32,
    info: u64,
}

/// The beginning of `struct bpf_map_info`.
#[repr(C)]
#[derive(Default)]
struct MapInfo {
    kind: u32,
    id: u32,
    key_bytes: u32,
    value_bytes: u32,
    entries_max: u32,
    flags: u32,
}

#[repr(C)]
struct ProgramLoad {
    kind: u32,
    count: u32,
    instructions: u64,
    license: u64,
    log_level: u32,
    log_bytes: u32,
    log: u64,
    kernel_version: u32,
    flags: u32,
    name: [u8; NAME_BYTES],
    interface: u32,
    attach_type: u32,
    btf: u32,
    function_info_bytes: u32,
    function_info: u64,
    function_info_count: u32,
    line_info_bytes: u32,
    line_info: u64,
    line_info_count: u32,
    attach_btf_id: u32,
    attach_btf: u32,
    /// Of the alignment.
    padding: u32,
}

/// Of PROG_ATTACH.
#[repr(C)]
struct Attach {
    target: u32,
    program: u32,
    attach_type: u32,
    flags: u32,
    replaced: u32,
    relative: u32,
    revision: u64,
}

#[repr(C)]
struct LinkCreate {
    program: u32,
    target: u32,
    attach_type: u32,
    flags: u32,
    /// What other kinds of programs have here.
    other: [u64; 4],
}

const _: () = assert!(size_of::<ProgramLoad>() == 120 && size_of::<MapCreate>() == 44);

/// What kind of table a [`Map`] is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapKind {
    /// Of numbers, with memory for all of them from the beginning.
    Hash,
    /// Of numbers, with memory for those that are there.
    SparseHash,
    /// Of sockets. The value of a key is read as the socket's cookie, and the kernel takes a socket
    /// out that is closed.
    Sockets,
}

impl MapKind {
    fn number(self) -> u32 {
        match self {
            Self::Hash | Self::SparseHash => HASH,
            Self::Sockets => SOCKHASH,
        }
    }
}

/// A hash table that the kernel's programs and we read and write. Keys and values are numbers of 8
/// bytes, so many of them.
#[derive(Debug)]
pub struct Map<const KEY: usize, const VALUE: usize>(OwnedFd);

impl<const KEY: usize, const VALUE: usize> Map<KEY, VALUE> {
    /// A new one.
    ///
    /// # Errors
    /// EPERM: no CAP_BPF.
    pub fn create(name: &str, entries_max: u32) -> io::Result<Self> {
        Self::create_as(MapKind::Hash, name, entries_max)
    }

    /// A new one of this kind.
    ///
    /// # Errors
    /// EPERM: no CAP_BPF; for sockets also without CAP_NET_ADMIN.
    pub fn create_as(kind: MapKind, name: &str, entries_max: u32) -> io::Result<Self> {
        let flags = if kind == MapKind::SparseHash { NO_PREALLOC } else { 0 };
        create((kind.number(), KEY as u32 * 8, VALUE as u32 * 8), name, entries_max, flags)
            .map(Self)
    }

    /// One that is pinned there.
    ///
    /// # Errors
    /// As open(2); InvalidData: it is no such map.
    pub fn pinned(path: &Path) -> io::Result<Self> {
        Self::pinned_as(MapKind::Hash, path)
    }

    /// One of this kind that is pinned there.
    ///
    /// # Errors
    /// As [`Map::pinned`].
    pub fn pinned_as(kind: MapKind, path: &Path) -> io::Result<Self> {
        // What the kernel reads and writes below is of this size.
        pinned((kind.number(), KEY as u32 * 8, VALUE as u32 * 8), path).map(Self)
    }

    /// Pins it.
    ///
    /// # Errors
    /// As [`Link::pin`].
    pub fn pin(&self, path: &Path) -> io::Result<()> {
        pin(&self.0, path)
    }

    /// For [`Instruction`]s that use it, while it lives.
    pub fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    fn element(&self, key: Option<&[u64; KEY]>, value: *mut u64) -> MapElement {
        MapElement {
            map: self.0.as_raw_fd() as u32,
            padding: 0,
            key: key.map_or(0, |key| address(key.as_ptr())),
            value: address(value),
            flags: ANY,
        }
    }

    /// The value of a key.
    ///
    /// # Errors
    /// As bpf(2); that there is none is no error.
    pub fn get(&self, key: &[u64; KEY]) -> io::Result<Option<[u64; VALUE]>> {
        let mut value = [0; VALUE];
        let mut element = self.element(Some(key), value.as_mut_ptr());
        // SAFETY: key and value have the map's sizes, and live through the call.
        found(unsafe { bpf(MAP_LOOKUP_ELEM, &mut element) }).map(|found| found.map(|_| value))
    }

    /// Sets the value of a key.
    ///
    /// # Errors
    /// E2BIG: it is full.
    pub fn set(&self, key: &[u64; KEY], mut value: [u64; VALUE]) -> io::Result<()> {
        let mut element = self.element(Some(key), value.as_mut_ptr());
        // SAFETY: key and value have the map's sizes, and live through the call.
        unsafe { bpf(MAP_UPDATE_ELEM, &mut element).map(drop) }
    }

    /// Sets the value of a key that is there; gives whether it is.
    ///
    /// # Errors
    /// As bpf(2).
    pub fn replace(&self, key: &[u64; KEY], mut value: [u64; VALUE]) -> io::Result<bool> {
        let mut element = self.element(Some(key), value.as_mut_ptr());
        element.flags = IF_THERE;
        // SAFETY: key and value have the map's sizes, and live through the call.
        found(unsafe { bpf(MAP_UPDATE_ELEM, &mut element) }).map(|found| found.is_some())
    }

    /// Removes a key; gives whether it was there.
    ///
    /// # Errors
    /// As bpf(2).
    pub fn remove(&self, key: &[u64; KEY]) -> io::Result<bool> {
        let mut element = self.element(Some(key), std::ptr::null_mut());
        // SAFETY: the key has the map's size, and lives through the call.
        found(unsafe { bpf(MAP_DELETE_ELEM, &mut element) }).map(|found| found.is_some())
    }

    /// The keys, at most `limit` of them.
    ///
    /// # Errors
    /// As bpf(2).
    pub fn keys(&self, limit: usize) -> io::Result<Vec<[u64; KEY]>> {
        let mut keys: Vec<[u64; KEY]> = Vec::new();
        while keys.len() < limit {
            let mut next = [0; KEY];
            let mut element = self.element(keys.last(), next.as_mut_ptr());
            // SAFETY: both keys have the map's size, and live through the call.
            match found(unsafe { bpf(MAP_GET_NEXT_KEY, &mut element) })? {
                Some(_) => keys.push(next),
                None => break,
            }
        }
        Ok(keys)
    }
}

/// (kind, bytes of a key, bytes of a value)
type Shape = (u32, u32, u32);

fn create(shape: Shape, name: &str, entries_max: u32, flags: u32) -> io::Result<OwnedFd> {
    let (kind, key_bytes, value_bytes) = shape;
    let name = name_of(name);
    let mut attributes =
        MapCreate { kind, key_bytes, value_bytes, entries_max, flags, inner: 0, node: 0, name };
    // SAFETY: these are MAP_CREATE's attributes, without addresses.
    unsafe { bpf_descriptor(MAP_CREATE, &mut attributes) }
}

fn pinned(shape: Shape, path: &Path) -> io::Result<OwnedFd> {
    let fd = get(path)?;
    let mut info = MapInfo::default();
    let mut attributes = GetInfo {
        fd: fd.as_raw_fd() as u32,
        bytes: size_of::<MapInfo>() as u32,
        info: address(&raw mut info),
    };
    // SAFETY: the kernel writes at most `bytes` to `info`, which lives through the call.
    unsafe { bpf(OBJ_GET_INFO_BY_FD, &mut attributes)? };
    if (info.kind, info.key_bytes, info.value_bytes) == shape {
        Ok(fd)
    } else {
        Err(io::ErrorKind::InvalidData.into())
    }
}

/// Numbers that the kernel's programs read and write in their place ([`Assembly::map_value`]): an
/// array of one value.
///
/// [`Assembly::map_value`]: instruction::Assembly::map_value
#[derive(Debug)]
pub struct Board<const VALUE: usize>(OwnedFd);

impl<const VALUE: usize> Board<VALUE> {
    const SHAPE: Shape = (ARRAY, 4, (VALUE * 8) as u32);

    /// A new one, of zeros.
    ///
    /// # Errors
    /// As [`Map::create`].
    pub fn create(name: &str) -> io::Result<Self> {
        create(Self::SHAPE, name, 1, 0).map(Self)
    }

    /// One that is pinned there.
    ///
    /// # Errors
    /// As [`Map::pinned`].
    pub fn pinned(path: &Path) -> io::Result<Self> {
        pinned(Self::SHAPE, path).map(Self)
    }

    /// Pins it.
    ///
    /// # Errors
    /// As [`Link::pin`].
    pub fn pin(&self, path: &Path) -> io::Result<()> {
        pin(&self.0, path)
    }

    /// For [`Instruction`]s that use it, while it lives.
    pub fn descriptor(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    fn element(&self, key: &u32, value: *mut u64) -> MapElement {
        let (map, key) = (self.0.as_raw_fd() as u32, address(key));
        MapElement { map, padding: 0, key, value: address(value), flags: ANY }
    }

    /// The numbers.
    ///
    /// # Errors
    /// As bpf(2).
    pub fn get(&self) -> io::Result<[u64; VALUE]> {
        let mut value = [0; VALUE];
        let mut element = self.element(&0, value.as_mut_ptr());
        // SAFETY: key and value have the map's sizes, and live through the call.
        unsafe { bpf(MAP_LOOKUP_ELEM, &mut element) }.map(|_| value)
    }

    /// Sets all of them.
    ///
    /// # Errors
    /// As bpf(2).
    pub fn set(&self, mut value: [u64; VALUE]) -> io::Result<()> {
        let mut element = self.element(&0, value.as_mut_ptr());
        // SAFETY: key and value have the map's sizes, and live through the call.
        unsafe { bpf(MAP_UPDATE_ELEM, &mut element) }.map(drop)
    }
}

/// That there is no such element is no error.
fn found(result: io::Result<RawFd>) -> io::Result<Option<RawFd>> {
    match result {
        Ok(code) => Ok(Some(code)),
        Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Why a program was not loaded.
#[derive(Debug)]
pub struct LoadError {
    /// The kernel's error: EPERM without CAP_BPF and CAP_PERFMON, EINVAL and EACCES by the verifier.
    pub source: io::Error,
    /// What the verifier says, empty if it was not reached.
    pub log: String,
}

impl LoadError {
    /// Whether it is for lack of rights: the verifier has errors of its own with this number.
    #[must_use]
    pub fn is_denial(&self) -> bool {
        self.source.raw_os_error() == Some(libc::EPERM) && self.log.is_empty()
    }
}

/// What the kernel is locked down to, if it is (kernel_lockdown(7)).
pub fn lockdown() -> Option<String> {
    let modes = std::fs::read_to_string("/sys/kernel/security/lockdown").ok()?;
    let mode = modes.split('[').nth(1)?.split(']').next()?;
    (mode != "none").then(|| mode.to_owned())
}

/// What a program of a control group does ([`Program::of_cgroup`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupHook {
    /// It runs for connections: when they are made, and when their state changes.
    SocketOperations,
    /// It is asked before an option of a socket is set.
    SetSocketOption,
}

impl CgroupHook {
    /// enum bpf_prog_type, enum bpf_attach_type.
    fn numbers(self) -> (u32, u32) {
        match self {
            Self::SocketOperations => (13, 3),
            Self::SetSocketOption => (25, 22),
        }
    }
}

/// `BPF_PROG_TYPE_SK_MSG`.
const SK_MSG: u32 = 16;

/// A program that the kernel has verified.
#[derive(Debug)]
pub struct Program(OwnedFd);

impl Program {
    /// A program of a control group.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn of_cgroup(
        name: &str,
        license: &str,
        hook: CgroupHook,
        instructions: &[Instruction],
    ) -> Result<Self, LoadError> {
        Self::load(name, license, hook.numbers(), instructions)
    }

    /// A program that decides about what is sent by the sockets of a map.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn of_messages(
        name: &str,
        license: &str,
        instructions: &[Instruction],
    ) -> Result<Self, LoadError> {
        Self::load(name, license, (SK_MSG, SK_MSG_VERDICT), instructions)
    }

    fn load(
        name: &str,
        license: &str,
        (kind, attach_type): (u32, u32),
        instructions: &[Instruction],
    ) -> Result<Self, LoadError> {
        let plain = |source| LoadError { source, log: String::new() };
        let license = CString::new(license).map_err(|error| plain(error.into()))?;
        let mut log = vec![0u8; LOG_BYTES];
        let mut load = |logged: bool| {
            let mut attributes = ProgramLoad {
                kind,
                count: instructions.len() as u32,
                instructions: address(instructions.as_ptr()),
                license: address(license.as_ptr()),
                log_level: u32::from(logged),
                log_bytes: if logged { LOG_BYTES as u32 } else { 0 },
                log: if logged { address(log.as_mut_ptr()) } else { 0 },
                kernel_version: 0,
                flags: 0,
                name: name_of(name),
                interface: 0,
                attach_type,
                btf: 0,
                function_info_bytes: 0,
                function_info: 0,
                function_info_count: 0,
                line_info_bytes: 0,
                line_info: 0,
                line_info_count: 0,
                attach_btf_id: 0,
                attach_btf: 0,
                padding: 0,
            };
            // SAFETY: instructions, license and log live through the call and have the sizes given
            // to it.
            unsafe { bpf_descriptor(PROG_LOAD, &mut attributes).map(Self) }
        };
        match load(false) {
            Ok(program) => Ok(program),
            // Once more, to get the reason.
            Err(_) => load(true).map_err(|source| {
                let length = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
                LoadError { source, log: String::from_utf8_lossy(&log[..length]).trim().to_owned() }
            }),
        }
    }

    /// Puts it to a control group, beside others, for all sockets of it and of those below. It works
    /// as long as the link lives. Linux 5.7.
    ///
    /// # Errors
    /// As bpf(2).
    pub fn attach_to_cgroup(&self, cgroup: impl AsFd, hook: CgroupHook) -> io::Result<Link> {
        let mut attributes = LinkCreate {
            program: self.0.as_raw_fd() as u32,
            target: cgroup.as_fd().as_raw_fd() as u32,
            attach_type: hook.numbers().1,
            flags: 0,
            other: [0; 4],
        };
        // SAFETY: these are LINK_CREATE's attributes, without addresses.
        unsafe { bpf_descriptor(LINK_CREATE, &mut attributes).map(Link) }
    }

    /// Has it decide about what the sockets of a map send, those that are put there from now on. It
    /// does as long as they live, also after the last descriptor and pin of the map have gone.
    ///
    /// # Errors
    /// As bpf(2).
    pub fn decide_for<const KEY: usize>(&self, sockets: &Map<KEY, 1>) -> io::Result<()> {
        let mut attributes = Attach {
            target: sockets.descriptor() as u32,
            program: self.0.as_raw_fd() as u32,
            attach_type: SK_MSG_VERDICT,
            flags: 0,
            replaced: 0,
            relative: 0,
            revision: 0,
        };
        // SAFETY: these are PROG_ATTACH's attributes, without addresses.
        unsafe { bpf(PROG_ATTACH, &mut attributes).map(drop) }
    }
}

/// A program at its place.
#[derive(Debug)]
pub struct Link(OwnedFd);

impl Link {
    /// Pins it: it lives until the file is removed.
    ///
    /// # Errors
    /// As open(2); EPERM outside of bpffs.
    pub fn pin(&self, path: &Path) -> io::Result<()> {
        pin(&self.0, path)
    }
}

fn path_of(path: &Path) -> io::Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

fn pin(fd: &OwnedFd, path: &Path) -> io::Result<()> {
    let path = path_of(path)?;
    let mut attributes = Pin { path: address(path.as_ptr()), fd: fd.as_raw_fd() as u32, flags: 0 };
    // SAFETY: the path is a string with its NUL, and lives through the call.
    unsafe { bpf(OBJ_PIN, &mut attributes).map(drop) }
}

fn get(path: &Path) -> io::Result<OwnedFd> {
    let path = path_of(path)?;
    let mut attributes = Pin { path: address(path.as_ptr()), fd: 0, flags: 0 };
    // SAFETY: the path is a string with its NUL, and lives through the call.
    unsafe { bpf_descriptor(OBJ_GET, &mut attributes) }
}

/// Whether bpffs is mounted there.
///
/// # Errors
/// As statfs(2).
pub fn is_file_system(path: &Path) -> io::Result<bool> {
    Ok(rustix::fs::statfs(path)?.f_type as i64 == FILE_SYSTEM)
}
