//! Listening sockets, and accepting from them.
//!
//! # Invariants
//! * running out of descriptors or memory never spins: the listener pauses for [`ACCEPT_PAUSE`], and
//!   goes on as soon as there are some again
//! * a unix socket's file has its mode and owner before the first client can connect

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use hawser_sys::process::{self, SocketFamily};
use hawser_sys::stream::{peer_uid, set_tcp_options};
use tokio::net::{TcpListener, TcpSocket, UnixListener};

use super::Origin;
use crate::config::{ListenAddress, ListenSettings};
use crate::mptcp::usage;
use crate::service::{Phase, Service, tcp_options};
use crate::socket::stream::Link;

/// How long a listener waits after accept(2) has failed.
pub const ACCEPT_PAUSE: Duration = Duration::from_millis(20);

/// Why a socket cannot be listened on.
#[derive(Debug)]
pub enum ListenError {
    /// A system call failed.
    Bind {
        /// The address.
        address: String,
        /// Why.
        source: io::Error,
    },
    /// Another process listens on the unix socket, or what is there is no socket.
    Taken(PathBuf),
    /// The owner of unix sockets is no user of this host.
    NoUser(String),
}

impl fmt::Display for ListenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bind { address, source } => write!(f, "could not listen on {address}: {source}"),
            Self::Taken(path) => {
                write!(f, "\"{}\" is in use by another process, or is no socket", path.display())
            }
            Self::NoUser(name) => write!(f, "there is no user \"{name}\" on this host"),
        }
    }
}

impl std::error::Error for ListenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Bind { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// A listening socket.
#[derive(Debug)]
pub enum Listener {
    /// TCP.
    Tcp(TcpListener),
    /// A unix socket, and the file to remove at the end if it is ours.
    Unix(UnixListener, Option<PathBuf>),
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, Some(path)) = self {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// Opens all sockets of the configuration, or takes those that the service manager has passed.
///
/// # Errors
/// See [`ListenError`].
pub fn open_all(settings: &ListenSettings) -> Result<Vec<Listener>, ListenError> {
    let passed = passed()?;
    if !passed.is_empty() {
        tracing::info!(
            count = passed.len(),
            "listens on the sockets that the service manager has passed"
        );
        return Ok(passed);
    }
    let mut listeners = Vec::new();
    for address in &settings.address {
        match open(address, settings) {
            Ok(listener) => {
                tracing::info!(%address, "listening");
                listeners.push(listener);
            }
            // `*` asks for both families where the host has both.
            Err(ListenError::Bind { source, .. })
                if is_any_v6(address)
                    && source.raw_os_error() == Some(97 /* EAFNOSUPPORT */)
                    && settings.address.len() > 1 =>
            {
                tracing::info!(%address, "this host has no IPv6: goes on without");
            }
            Err(error) => return Err(error),
        }
    }
    Ok(listeners)
}

fn is_any_v6(address: &ListenAddress) -> bool {
    matches!(address, ListenAddress::Tcp(SocketAddr::V6(v6)) if v6.ip().is_unspecified())
}

fn passed() -> Result<Vec<Listener>, ListenError> {
    let failed = |source| ListenError::Bind { address: "a passed socket".to_owned(), source };
    let mut listeners = Vec::new();
    for number in sd_notify::listen_fds().map_err(failed)? {
        let fd = process::duplicate_passed(number).map_err(failed)?;
        listeners.push(from_fd(fd).map_err(failed)?);
    }
    Ok(listeners)
}

fn from_fd(fd: OwnedFd) -> io::Result<Listener> {
    match process::socket_family(&fd)? {
        SocketFamily::Internet => {
            let listener = std::net::TcpListener::from(fd);
            listener.set_nonblocking(true)?;
            Ok(Listener::Tcp(TcpListener::from_std(listener)?))
        }
        SocketFamily::Unix => {
            let listener = std::os::unix::net::UnixListener::from(fd);
            listener.set_nonblocking(true)?;
            Ok(Listener::Unix(UnixListener::from_std(listener)?, None))
        }
        SocketFamily::Other => {
            Err(io::Error::new(io::ErrorKind::Unsupported, "neither TCP nor unix"))
        }
    }
}

fn open(address: &ListenAddress, settings: &ListenSettings) -> Result<Listener, ListenError> {
    let failed = |source| ListenError::Bind { address: address.to_string(), source };
    match address {
        ListenAddress::Tcp(address) => {
            if settings.mptcp
                && let Some(listener) = usage::listen(*address, settings.backlog).map_err(failed)?
            {
                return Ok(Listener::Tcp(listener));
            }
            let socket = if address.is_ipv4() {
                TcpSocket::new_v4()
            } else {
                TcpSocket::new_v6().and_then(|socket| {
                    hawser_sys::stream::set_v6_only(&socket)?;
                    Ok(socket)
                })
            }
            .map_err(failed)?;
            socket.set_reuseaddr(true).map_err(failed)?;
            socket.bind(*address).map_err(failed)?;
            Ok(Listener::Tcp(socket.listen(settings.backlog).map_err(failed)?))
        }
        ListenAddress::Unix(path) => open_unix(path, settings),
    }
}

fn open_unix(path: &Path, settings: &ListenSettings) -> Result<Listener, ListenError> {
    let failed = |source| ListenError::Bind { address: path.display().to_string(), source };
    if let Ok(about) = std::fs::symlink_metadata(path) {
        let in_use = std::os::unix::net::UnixStream::connect(path).is_ok();
        if in_use || !about.file_type().is_socket() {
            return Err(ListenError::Taken(path.to_owned()));
        }
        std::fs::remove_file(path).map_err(failed)?;
    }
    // Under another name until mode and owner are right: a client cannot come too early.
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    let prepared = PathBuf::from(name);
    let _ = std::fs::remove_file(&prepared);
    let listener = UnixListener::bind(&prepared).map_err(failed)?;
    let mode = std::fs::Permissions::from_mode(settings.unix_socket_mode.0);
    std::fs::set_permissions(&prepared, mode).map_err(failed)?;
    let owner = match &settings.unix_socket_owner {
        Some(name) => {
            let account = process::account_by_name(name).map_err(failed)?;
            Some(account.ok_or_else(|| ListenError::NoUser(name.clone()))?.uid)
        }
        None => None,
    };
    let group = match &settings.unix_socket_group {
        Some(name) => {
            let group = process::group_by_name(name).map_err(failed)?;
            Some(group.ok_or_else(|| ListenError::NoUser(name.clone()))?)
        }
        None => None,
    };
    if owner.is_some() || group.is_some() {
        chown(&prepared, owner, group).map_err(failed)?;
    }
    std::fs::rename(&prepared, path).map_err(failed)?;
    Ok(Listener::Unix(listener, Some(path.to_owned())))
}

/// Accepts clients until the process begins to end.
pub async fn accept(service: Arc<Service>, listener: Listener) {
    let mut phase = service.phase.subscribe();
    let mut complained = false;
    let mptcp = service.config.load().start.listen.mptcp;
    if let Listener::Tcp(listener) = &listener
        && mptcp
    {
        service.dialler.mptcp.listens(listener);
    }
    loop {
        let accepted = tokio::select! {
            accepted = one(&listener) => accepted,
            _ = phase.wait_for(|phase| *phase != Phase::Serving) => return,
        };
        match accepted {
            Ok((mut link, origin)) => {
                complained = false;
                let config = service.config.load();
                if let Origin::Tcp(_) = origin
                    && let Err(error) =
                        set_tcp_options(link.as_fd(), &tcp_options(&config.reload.network))
                {
                    tracing::debug!(%error, "a connection ended before it began");
                    continue;
                }
                // Beyond even those who are to be told so: it is closed.
                let permit = service.limits.connect(config.reload.limits.max_client_conn);
                let Some(permit) = permit else { continue };
                service.tally.connections.increment();
                if mptcp && matches!(origin, Origin::Tcp(_)) {
                    service.dialler.mptcp.accepted(&mut link);
                }
                tokio::spawn(super::serve(service.clone(), link, origin, permit));
            }
            Err(error) if is_of_one_connection(&error) => {}
            Err(error) => {
                if !complained {
                    tracing::error!(%error, "no connection can be accepted");
                    complained = true;
                }
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// accept(2) also reports errors of the connection that would have been accepted.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::ConnectionRefused
            | io::ErrorKind::Interrupted
    )
}

async fn one(listener: &Listener) -> io::Result<(Link, Origin)> {
    match listener {
        Listener::Tcp(listener) => {
            let (stream, address) = listener.accept().await?;
            Ok((stream.into(), Origin::Tcp(address)))
        }
        Listener::Unix(listener, _) => {
            let (stream, _) = listener.accept().await?;
            let uid = peer_uid(&stream).ok();
            Ok((stream.into(), Origin::Unix { uid }))
        }
    }
}
