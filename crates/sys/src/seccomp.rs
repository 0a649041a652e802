//! Seccomp user notification: a supervisor answers some system calls of a program and its children.
//!
//! # Model
//! ```text
//!   child: filter ─► exec          supervisor: Listener
//!     socket(), setsockopt() ────► Call ─► go_on | give (a descriptor of ours is the result)
//!          waits ◄─────────────────────────┘       put (one of theirs is replaced) and go_on
//! ```
//! A filter is a classic BPF program over number and arguments of each call (seccomp(2)); it is
//! inherited by all children and cannot be taken off.
//! Source: include/uapi/linux/seccomp.h, Documentation/userspace-api/seccomp_filter.rst.
//!
//! # Invariants
//! * a call that is not noted goes to the kernel as it is, those of other architectures too
//! * as long as one process holds the listener open, calls wait for an answer; when all have closed
//!   it, they fail with ENOSYS
//!
//! # Limits
//! Linux 5.14 (ADDFD with SEND). One listener for a process and its ancestors: EBUSY for a second.
//! Without CAP_SYS_ADMIN a filter needs no_new_privs, which takes setuid programs their rights.

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use crate::pass;

/// `AUDIT_ARCH_*` of this build (include/uapi/linux/audit.h).
#[cfg(target_arch = "x86_64")]
const ARCHITECTURE: u32 = 0xc000_003e;
#[cfg(target_arch = "aarch64")]
const ARCHITECTURE: u32 = 0xc000_00b7;

/// `SECCOMP_IOCTL_NOTIF_RECV`, `_SEND`, `_ADDFD`.
const RECV: libc::c_ulong = 0xc050_2100;
const SEND: libc::c_ulong = 0xc018_2101;
const ADDFD: libc::c_ulong = 0x4018_2103;
/// `SECCOMP_USER_NOTIF_FLAG_CONTINUE`.
const CONTINUE: u32 = 1;
/// `SECCOMP_ADDFD_FLAG_SETFD`, `_SEND`.
const SETFD: u32 = 1;
const AND_SEND: u32 = 2;
/// `SECCOMP_FILTER_FLAG_NEW_LISTENER`, `_WAIT_KILLABLE_RECV` (5.19).
const NEW_LISTENER: libc::c_ulong = 1 << 3;
const WAIT_KILLABLE: libc::c_ulong = 1 << 5;
const SET_MODE_FILTER: libc::c_ulong = 1;
const RET_ALLOW: u32 = 0x7fff_0000;
const RET_NOTIFY: u32 = 0x7fc0_0000;
/// `struct seccomp_data`: number, architecture, instruction pointer, six arguments of 8 bytes.
const AT_NUMBER: u32 = 0;
const AT_ARCHITECTURE: u32 = 4;

/// Where the low half of an argument lies.
fn at_argument(index: u32) -> u32 {
    16 + index * 8 + if cfg!(target_endian = "big") { 4 } else { 0 }
}

/// Which calls are noted.
#[derive(Clone, Debug, Default)]
pub struct Noted {
    /// Whether socket(2) is, for TCP over IPv4 and IPv6.
    pub tcp_sockets: bool,
    /// setsockopt(2) with these levels and names.
    pub options: Vec<(i32, i32)>,
}

fn statement(code: u32, k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: 0, jf: 0, k }
}

fn load(at: u32) -> libc::sock_filter {
    statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, at)
}

fn answer(value: u32) -> libc::sock_filter {
    statement(libc::BPF_RET | libc::BPF_K, value)
}

/// Goes on if what is loaded is `k`, else skips `skip` statements.
fn unless_skip(k: u32, skip: usize) -> libc::sock_filter {
    let code = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    // Blocks are a handful of statements.
    libc::sock_filter { code: code as u16, jt: 0, jf: skip as u8, k }
}

/// Answers NOTIFY if what is loaded is one of `values`, else ALLOW.
fn notify_if_any(values: &[u32]) -> Vec<libc::sock_filter> {
    let mut block = Vec::new();
    for value in values {
        block.push(unless_skip(*value, 1));
        block.push(answer(RET_NOTIFY));
    }
    block.push(answer(RET_ALLOW));
    block
}

impl Noted {
    /// The filter, as a classic BPF program.
    fn program(&self) -> Vec<libc::sock_filter> {
        let mut program = vec![
            load(AT_ARCHITECTURE),
            unless_skip(ARCHITECTURE, 1),
            // Over the ALLOW.
            statement(libc::BPF_JMP | libc::BPF_JA, 1),
            answer(RET_ALLOW),
        ];
        if self.tcp_sockets {
            let protocols = notify_if_any(&[0, libc::IPPROTO_TCP as u32]);
            // Type without SOCK_CLOEXEC and SOCK_NONBLOCK (SOCK_TYPE_MASK).
            let mut block = vec![
                load(at_argument(1)),
                statement(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0xf),
                unless_skip(libc::SOCK_STREAM as u32, 1),
                statement(libc::BPF_JMP | libc::BPF_JA, 1),
                answer(RET_ALLOW),
                load(at_argument(2)),
            ];
            block.extend(protocols);
            let family = vec![
                load(at_argument(0)),
                unless_skip(libc::AF_INET as u32, 1),
                statement(libc::BPF_JMP | libc::BPF_JA, 3),
                unless_skip(libc::AF_INET6 as u32, 1),
                statement(libc::BPF_JMP | libc::BPF_JA, 1),
                answer(RET_ALLOW),
            ];
            let whole = [family, block].concat();
            program.push(load(AT_NUMBER));
            program.push(unless_skip(libc::SYS_socket as u32, whole.len()));
            program.extend(whole);
        }
        let mut levels: Vec<i32> = self.options.iter().map(|(level, _)| *level).collect();
        levels.sort_unstable();
        levels.dedup();
        for level in levels {
            let of_level = self.options.iter().filter(|(other, _)| *other == level);
            let names: Vec<u32> = of_level.map(|(_, name)| *name as u32).collect();
            let mut block = vec![load(at_argument(2))];
            block.extend(notify_if_any(&names));
            let inner = [vec![load(at_argument(1)), unless_skip(level as u32, block.len())], block];
            let inner = inner.concat();
            program.push(load(AT_NUMBER));
            program.push(unless_skip(libc::SYS_setsockopt as u32, inner.len()));
            program.extend(inner);
        }
        program.push(answer(RET_ALLOW));
        program
    }
}

/// Why a program was not started under a filter.
#[derive(Debug)]
pub enum StartError {
    /// The filter was refused: EBUSY if there is a listener already, EPERM, EACCES or EINVAL in
    /// containers that allow none.
    Filter(io::Error),
    /// The program could not be executed.
    Program(io::Error),
}

/// Starts `command` with `noted` calls of its and all its children's coming to the listener.
///
/// # Errors
/// See [`StartError`].
pub fn start(command: &mut Command, noted: &Noted) -> Result<(Child, Listener), StartError> {
    let program = noted.program();
    let (near, far) = UnixStream::pair().map_err(StartError::Filter)?;
    let hook = move || -> io::Result<()> {
        let listener = install(&program)?;
        pass::send(&far, b"f", &[listener.as_fd()]).map(drop)
    };
    // SAFETY: between fork and exec the hook makes system calls and touches memory that is there
    // already; it neither allocates nor takes locks.
    unsafe { command.pre_exec(hook) };
    match command.spawn() {
        Ok(child) => {
            let listener = receive_descriptor(&near).map_err(StartError::Filter)?;
            Ok((child, Listener(listener)))
        }
        Err(error) => {
            // With the filter on, it was the exec that failed.
            Err(match receive_descriptor(&near) {
                Ok(_) => StartError::Program(error),
                // ENOENT, EACCES of the program's own file cannot come from the filter before it.
                Err(_) if error.kind() == io::ErrorKind::NotFound => StartError::Program(error),
                Err(_) => StartError::Filter(error),
            })
        }
    }
}

/// Puts the filter on the calling process.
fn install(program: &[libc::sock_filter]) -> io::Result<OwnedFd> {
    let filter = libc::sock_fprog {
        len: program.len() as libc::c_ushort,
        filter: program.as_ptr().cast_mut(),
    };
    let mut flags = NEW_LISTENER | WAIT_KILLABLE;
    let mut privileged = true;
    loop {
        // SAFETY: `filter` and the program that it points to live through the call, which only
        // reads them.
        let fd =
            unsafe { libc::syscall(libc::SYS_seccomp, SET_MODE_FILTER, flags, &raw const filter) };
        if fd >= 0 {
            // SAFETY: with NEW_LISTENER the result is a new descriptor without another owner.
            return Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) });
        }
        let error = io::Error::last_os_error();
        match error.raw_os_error() {
            Some(libc::EACCES) if privileged => {
                privileged = false;
                rustix::thread::set_no_new_privs(true)?;
            }
            Some(libc::EINVAL) if flags & WAIT_KILLABLE != 0 => flags &= !WAIT_KILLABLE,
            _ => return Err(error),
        }
    }
}

/// What a child has sent already, if it has.
fn receive_descriptor(from: &UnixStream) -> io::Result<OwnedFd> {
    let mut fds = Vec::new();
    pass::receive(from, &mut [0], &mut fds)?;
    fds.pop().ok_or_else(|| io::ErrorKind::UnexpectedEof.into())
}

/// `struct seccomp_notif`.
#[repr(C)]
#[derive(Default)]
struct Notification {
    id: u64,
    pid: u32,
    flags: u32,
    number: i32,
    architecture: u32,
    instruction: u64,
    arguments: [u64; 6],
}

/// `struct seccomp_notif_resp`.
#[repr(C)]
struct Response {
    id: u64,
    value: i64,
    error: i32,
    flags: u32,
}

/// `struct seccomp_notif_addfd`.
#[repr(C)]
struct AddFd {
    id: u64,
    flags: u32,
    source: u32,
    new: u32,
    new_flags: u32,
}

const _: () = assert!(size_of::<Notification>() == 80);
const _: () = assert!(size_of::<Response>() == 24 && size_of::<AddFd>() == 24);

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// socket(2).
    Socket {
        /// Whether over IPv6.
        ipv6: bool,
        /// SOCK_CLOEXEC.
        close_on_exec: bool,
        /// SOCK_NONBLOCK.
        nonblocking: bool,
    },
    /// setsockopt(2).
    Option {
        /// The program's descriptor.
        fd: i32,
        /// The level.
        level: i32,
        /// The option.
        name: i32,
    },
}

/// A call that waits for an answer.
#[derive(Debug)]
pub struct Call {
    id: u64,
    /// The thread that makes it, in this process's pid namespace.
    pub thread: u32,
    /// What it asks for.
    pub asked: Asked,
}

/// Where noted calls come in.
#[derive(Debug)]
pub struct Listener(OwnedFd);

impl AsFd for Listener {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Listener {
    /// The next call; `None` if its thread has been interrupted or killed meanwhile.
    ///
    /// # Errors
    /// As ioctl(2).
    pub fn receive(&self) -> io::Result<Option<Call>> {
        let mut notification = Notification::default();
        // SAFETY: the kernel writes a `struct seccomp_notif`, which it wants zeroed before.
        let code = unsafe { libc::ioctl(self.0.as_raw_fd(), RECV as _, &raw mut notification) };
        if code != 0 {
            let error = io::Error::last_os_error();
            return match error.raw_os_error() {
                Some(libc::ENOENT | libc::EINTR | libc::EAGAIN) => Ok(None),
                _ => Err(error),
            };
        }
        let argument = |at: usize| notification.arguments[at] as i32;
        let asked = if i64::from(notification.number) == libc::SYS_socket {
            let kind = argument(1);
            Asked::Socket {
                ipv6: argument(0) == libc::AF_INET6,
                close_on_exec: kind & libc::SOCK_CLOEXEC != 0,
                nonblocking: kind & libc::SOCK_NONBLOCK != 0,
            }
        } else {
            Asked::Option { fd: argument(0), level: argument(1), name: argument(2) }
        };
        Ok(Some(Call { id: notification.id, thread: notification.pid, asked }))
    }

    /// Lets the kernel do what is asked for.
    ///
    /// # Errors
    /// ENOENT: the thread does not wait any more.
    pub fn go_on(&self, call: &Call) -> io::Result<()> {
        let response = Response { id: call.id, value: 0, error: 0, flags: CONTINUE };
        // SAFETY: the kernel reads a `struct seccomp_notif_resp`, which lives through the call.
        check(unsafe { libc::ioctl(self.0.as_raw_fd(), SEND as _, &raw const response) })
    }

    /// Answers with a descriptor: it becomes the program's own. Linux 5.14.
    ///
    /// # Errors
    /// ENOENT: the thread does not wait any more. EMFILE: the program may have no more descriptors.
    pub fn give(&self, call: &Call, fd: BorrowedFd<'_>, close_on_exec: bool) -> io::Result<()> {
        self.add(call, fd, AND_SEND, 0, close_on_exec)
    }

    /// Replaces a descriptor of the program; the call still waits.
    ///
    /// # Errors
    /// As [`Self::give`].
    pub fn put(
        &self,
        call: &Call,
        fd: BorrowedFd<'_>,
        place: i32,
        close_on_exec: bool,
    ) -> io::Result<()> {
        self.add(call, fd, SETFD, place as u32, close_on_exec)
    }

    fn add(
        &self,
        call: &Call,
        fd: BorrowedFd<'_>,
        flags: u32,
        new: u32,
        close_on_exec: bool,
    ) -> io::Result<()> {
        let new_flags = if close_on_exec { libc::O_CLOEXEC as u32 } else { 0 };
        let source = fd.as_raw_fd() as u32;
        let request = AddFd { id: call.id, flags, source, new, new_flags };
        // SAFETY: the kernel reads a `struct seccomp_notif_addfd`, which lives through the call.
        check(unsafe { libc::ioctl(self.0.as_raw_fd(), ADDFD as _, &raw const request) })
    }
}

fn check(code: libc::c_int) -> io::Result<()> {
    if code >= 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a filter as the kernel does (the statements that ours have).
    fn judge(program: &[libc::sock_filter], number: i64, arguments: [u64; 6]) -> u32 {
        let mut data = [0u8; 64];
        data[..4].copy_from_slice(&(number as u32).to_ne_bytes());
        data[4..8].copy_from_slice(&ARCHITECTURE.to_ne_bytes());
        for (at, argument) in arguments.iter().enumerate() {
            data[16 + at * 8..24 + at * 8].copy_from_slice(&argument.to_ne_bytes());
        }
        run(program, &data)
    }

    fn run(program: &[libc::sock_filter], data: &[u8; 64]) -> u32 {
        let (mut at, mut accumulator) = (0, 0u32);
        loop {
            let statement = &program[at];
            at += 1;
            match u32::from(statement.code) {
                code if code == libc::BPF_LD | libc::BPF_W | libc::BPF_ABS => {
                    let from = statement.k as usize;
                    accumulator = u32::from_ne_bytes(data[from..from + 4].try_into().unwrap());
                }
                code if code == libc::BPF_ALU | libc::BPF_AND | libc::BPF_K => {
                    accumulator &= statement.k;
                }
                code if code == libc::BPF_JMP | libc::BPF_JA => at += statement.k as usize,
                code if code == libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K => {
                    let equal = accumulator == statement.k;
                    at += usize::from(if equal { statement.jt } else { statement.jf });
                }
                code if code == libc::BPF_RET | libc::BPF_K => return statement.k,
                code => panic!("{code:#x}"),
            }
        }
    }

    #[test]
    fn tcp_sockets_and_the_options_named_are_noted_and_nothing_else() {
        let noted = Noted { tcp_sockets: true, options: vec![(6, 18), (0, 2), (6, 7)] };
        let program = noted.program();
        let socket = |family: i32, kind: i32, protocol: i32| {
            judge(
                &program,
                libc::SYS_socket,
                [family as u64, kind as u64, protocol as u64, 0, 0, 0],
            )
        };
        let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        for family in [libc::AF_INET, libc::AF_INET6] {
            assert_eq!(socket(family, libc::SOCK_STREAM, 0), RET_NOTIFY);
            assert_eq!(socket(family, libc::SOCK_STREAM | flags, libc::IPPROTO_TCP), RET_NOTIFY);
            assert_eq!(socket(family, libc::SOCK_STREAM, 262), RET_ALLOW);
            assert_eq!(socket(family, libc::SOCK_STREAM, libc::IPPROTO_SCTP), RET_ALLOW);
            assert_eq!(socket(family, libc::SOCK_DGRAM, 0), RET_ALLOW);
        }
        assert_eq!(socket(libc::AF_UNIX, libc::SOCK_STREAM, 0), RET_ALLOW);
        assert_eq!(socket(libc::AF_NETLINK, libc::SOCK_RAW, 0), RET_ALLOW);
        let option = |level: u64, name: u64| {
            judge(&program, libc::SYS_setsockopt, [5, level, name, 0, 4, 0])
        };
        assert_eq!(option(6, 18), RET_NOTIFY);
        assert_eq!(option(6, 7), RET_NOTIFY);
        assert_eq!(option(0, 2), RET_NOTIFY);
        assert_eq!(option(6, 2), RET_ALLOW);
        assert_eq!(option(1, 18), RET_ALLOW);
        assert_eq!(judge(&program, libc::SYS_read, [2, 1, 0, 0, 0, 0]), RET_ALLOW);
    }

    #[test]
    fn calls_of_another_architecture_are_left_alone() {
        let program = Noted { tcp_sockets: true, options: vec![] }.program();
        let mut data = [0u8; 64];
        data[..4].copy_from_slice(&(libc::SYS_socket as u32).to_ne_bytes());
        data[16] = 2;
        data[24] = 1;
        assert_eq!(run(&program, &data), RET_ALLOW);
    }
}
