//! Congestion control of sockets and of this machine.
//!
//! # Model
//! ```text
//!   built in or loaded   net.ipv4.tcp_available_congestion_control
//!   for everybody        net.ipv4.tcp_allowed_congestion_control; CAP_NET_ADMIN may use any
//!   loadable             /lib/modules/RELEASE/modules.dep; asking for one loads it, with
//!                        CAP_NET_ADMIN in the first user namespace
//! ```
//! Settings are those of the calling thread's network namespace; what a namespace does not have of
//! its own (rmem_max, before Linux 6.13) is `None` there.

pub mod discipline;
pub mod flows;
pub mod route;

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, sockopt};

/// Where settings are.
const SETTINGS: &str = "/proc/sys/net";

/// Modules of congestion control whose name is not that of its algorithm with `tcp_` before it
/// (net/ipv4/Makefile).
const NO_ALGORITHMS: [&str; 2] = ["diag", "sigpool"];

/// Why a socket keeps the algorithm that it has.
#[derive(Debug, thiserror::Error)]
pub enum SetError {
    /// The kernel has none of this name: not built in, not loaded, and it cannot be loaded by this
    /// process.
    #[error(
        "this kernel has no congestion control `{0}`, or its module (tcp_{0}) is not \
             loaded and root would have to load it"
    )]
    Unknown(String),
    /// It is not among those that all users may use, and this process has no CAP_NET_ADMIN.
    #[error(
        "congestion control `{0}` is not for ordinary users here: it is missing in \
             net.ipv4.tcp_allowed_congestion_control"
    )]
    Denied(String),
    /// Anything else.
    #[error("congestion control `{name}`: {source}")]
    System {
        /// What was to be set.
        name: String,
        /// Why it is not.
        source: io::Error,
    },
}

/// The algorithm of a TCP socket (TCP_CONGESTION).
///
/// # Errors
/// As getsockopt(2).
pub fn algorithm(fd: impl AsFd) -> io::Result<String> {
    Ok(sockopt::tcp_congestion(fd)?)
}

/// Sets the algorithm of a TCP socket, at any moment of its life. What a listening socket has, those
/// that it accepts have.
///
/// # Errors
/// See [`SetError`]; then it keeps what it has.
pub fn set_algorithm(fd: impl AsFd, name: &str) -> Result<(), SetError> {
    sockopt::set_tcp_congestion(fd, name).map_err(|error| match error {
        Errno::NOENT => SetError::Unknown(name.to_owned()),
        Errno::PERM => SetError::Denied(name.to_owned()),
        _ => SetError::System { name: name.to_owned(), source: error.into() },
    })
}

/// A TCP socket with the algorithm `name`, closed by exec; it blocks unless `nonblocking`.
///
/// # Errors
/// See [`SetError`].
pub fn open_with(ipv6: bool, nonblocking: bool, name: &str) -> Result<OwnedFd, SetError> {
    let family = if ipv6 { AddressFamily::INET6 } else { AddressFamily::INET };
    let mut flags = SocketFlags::CLOEXEC;
    flags.set(SocketFlags::NONBLOCK, nonblocking);
    let socket = rustix::net::socket_with(family, SocketType::STREAM, flags, None);
    let socket =
        socket.map_err(|error| SetError::System { name: name.to_owned(), source: error.into() })?;
    set_algorithm(&socket, name)?;
    Ok(socket)
}

/// Whether this process may give its sockets the algorithm `name`, now. It asks the kernel, with a
/// socket of its own: where root asks, the module is loaded.
///
/// # Errors
/// Why not.
pub fn probe(name: &str) -> Result<(), SetError> {
    open_with(false, false, name).map(drop)
}

/// Unloads the module of an algorithm (delete_module(2)), if no socket uses it.
///
/// # Errors
/// As delete_module(2): it is in use, it is not a module, or this is not root.
pub fn unload(name: &str) -> io::Result<()> {
    let module = std::ffi::CString::new(format!("tcp_{name}"))?;
    Ok(rustix::system::delete_module(&module, libc::O_NONBLOCK)?)
}

/// The algorithms of this machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Algorithms {
    /// What new sockets have.
    pub default: String,
    /// Built in or loaded.
    pub available: Vec<String>,
    /// Of these, those that all users may use.
    pub allowed: Vec<String>,
    /// Modules of this kernel that are not loaded, by the algorithm's name.
    pub loadable: Vec<String>,
}

/// Reads them.
///
/// # Errors
/// /proc cannot be read.
pub fn algorithms() -> io::Result<Algorithms> {
    let words = |name: &str| -> io::Result<Vec<String>> {
        let text = fs::read_to_string(Path::new(SETTINGS).join("ipv4").join(name))?;
        Ok(text.split_ascii_whitespace().map(str::to_owned).collect())
    };
    let available = words("tcp_available_congestion_control")?;
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let modules = Path::new("/lib/modules").join(release).join("modules.dep");
    let loadable = fs::read_to_string(modules).map(|text| modules_of(&text)).unwrap_or_default();
    Ok(Algorithms {
        default: words("tcp_congestion_control")?.join(" "),
        allowed: words("tcp_allowed_congestion_control")?,
        loadable: loadable.into_iter().filter(|name| !available.contains(name)).collect(),
        available,
    })
}

/// The algorithms of a modules.dep: `kernel/net/ipv4/tcp_bbr.ko.xz: ...`.
fn modules_of(text: &str) -> BTreeSet<String> {
    let module = |line: &str| {
        let path = line.split(':').next()?;
        let file = path.strip_prefix("kernel/net/ipv4/")?;
        let name = file.strip_prefix("tcp_")?.split('.').next()?;
        (!NO_ALGORITHMS.contains(&name)).then(|| name.to_owned())
    };
    text.lines().filter_map(module).collect()
}

/// Three sizes in bytes: the least, the first, and the most that the kernel gives by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Buffer {
    /// Under pressure of memory.
    pub min: u64,
    /// To begin with.
    pub initial: u64,
    /// What a connection can come to.
    pub max: u64,
}

/// Settings that decide what a connection over a long path can do. `None`: not in this namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// net.ipv4.tcp_rmem.
    pub receive: Option<Buffer>,
    /// net.ipv4.tcp_wmem.
    pub send: Option<Buffer>,
    /// net.core.rmem_max: what a program may ask for, which ends the kernel's own tuning.
    pub receive_max: Option<u64>,
    /// net.core.wmem_max.
    pub send_max: Option<u64>,
    /// net.ipv4.tcp_slow_start_after_idle: whether a pause ends the window.
    pub slow_start_after_idle: Option<bool>,
    /// net.ipv4.tcp_no_metrics_save: whether nothing is remembered of destinations.
    pub no_metrics_save: Option<bool>,
    /// net.ipv4.tcp_window_scaling: without it, 64 KiB are the most.
    pub window_scaling: Option<bool>,
    /// net.core.default_qdisc: what new interfaces get.
    pub default_qdisc: Option<String>,
}

/// Reads the settings.
pub fn settings() -> Settings {
    let text = |name: &str| fs::read_to_string(Path::new(SETTINGS).join(name)).ok();
    let number = |name: &str| text(name)?.trim().parse::<u64>().ok();
    let switch = |name: &str| number(name).map(|number| number != 0);
    Settings {
        receive: text("ipv4/tcp_rmem").and_then(|text| buffer(&text)),
        send: text("ipv4/tcp_wmem").and_then(|text| buffer(&text)),
        receive_max: number("core/rmem_max"),
        send_max: number("core/wmem_max"),
        slow_start_after_idle: switch("ipv4/tcp_slow_start_after_idle"),
        no_metrics_save: switch("ipv4/tcp_no_metrics_save"),
        window_scaling: switch("ipv4/tcp_window_scaling"),
        default_qdisc: text("core/default_qdisc").map(|text| text.trim().to_owned()),
    }
}

fn buffer(text: &str) -> Option<Buffer> {
    let mut sizes = text.split_ascii_whitespace().map(|size| size.parse().ok());
    Some(Buffer { min: sizes.next()??, initial: sizes.next()??, max: sizes.next()?? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};

    #[test]
    fn a_socket_gets_an_allowed_algorithm_and_what_it_accepts_has_it_too() {
        let found = algorithms().unwrap();
        assert!(found.available.contains(&found.default), "{found:?}");
        let Some(other) = found.allowed.iter().find(|name| **name != found.default) else {
            return eprintln!("skipped: no second algorithm is allowed here");
        };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        assert_eq!(algorithm(&listener).unwrap(), found.default);
        set_algorithm(&listener, other).unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        assert_eq!(algorithm(&accepted).unwrap(), *other);
        assert_eq!(algorithm(&near).unwrap(), found.default);
        set_algorithm(&near, other).unwrap();
        assert_eq!(algorithm(&near).unwrap(), *other);
        probe(other).unwrap();
    }

    #[test]
    fn an_algorithm_that_no_kernel_has_is_unknown_and_nothing_changes() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let before = algorithm(&listener).unwrap();
        let error = set_algorithm(&listener, "nosuchthing").unwrap_err();
        assert!(matches!(error, SetError::Unknown(_) | SetError::Denied(_)), "{error:?}");
        assert!(error.to_string().contains("`nosuchthing`"), "{error}");
        assert_eq!(algorithm(&listener).unwrap(), before);
    }

    #[test]
    fn modules_are_known_by_their_place_and_name() {
        let text = "kernel/net/ipv4/tcp_bbr.ko.xz:\nkernel/net/ipv4/tcp_diag.ko: kernel/net/ipv4/inet_diag.ko\n\
                    kernel/net/ipv4/tcp_hybla.ko:\nkernel/net/rds/rds_tcp.ko:\nkernel/net/ipv4/ip_gre.ko:\n";
        assert_eq!(modules_of(text).into_iter().collect::<Vec<_>>(), ["bbr", "hybla"]);
    }

    #[test]
    fn settings_are_this_namespaces() {
        let read = settings();
        let send = read.send.unwrap();
        assert!(send.min <= send.initial && send.initial <= send.max, "{send:?}");
        assert!(read.slow_start_after_idle.is_some());
        assert_eq!(buffer("4096\t131072\t6291456\n").unwrap().max, 6_291_456);
        assert_eq!(buffer("4096 131072"), None);
    }
}
