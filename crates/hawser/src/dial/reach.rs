//! From an address to a byte stream: connect, and TLS by the mode.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use hawser_pooler::wire::startup;
use hawser_sys::stream::{TcpOptions, set_tcp_options};
use rustls::AlertDescription;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

use super::DialError;
use crate::config::TlsMode;
use crate::link::links::Links;
use crate::socket::stream::{Link, Stream, connect_unix};
use crate::tls::connect::{Connecting, server_name};
use crate::tls::{ALPN, USABLE_KEYS};

/// One place where a server listens, with its name resolved.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Endpoint {
    /// TCP.
    Tcp {
        /// The name as it was configured, for certificates.
        host: String,
        /// The address.
        address: SocketAddr,
    },
    /// A unix socket.
    Unix(PathBuf),
    /// A target of the far end of a link.
    Link {
        /// The link's name.
        link: String,
        /// The name as it was configured, for certificates.
        host: String,
        /// `host:port`, for the far end.
        target: String,
    },
}

impl std::fmt::Display for Endpoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tcp { host, address } if *host == address.ip().to_string() => address.fmt(f),
            Self::Tcp { host, address } => write!(f, "{host} ({address})"),
            Self::Unix(path) => path.display().fmt(f),
            Self::Link { link, target, .. } => write!(f, "link://{link}/{target}"),
        }
    }
}

/// Connects.
///
/// # Errors
/// As connect(2).
pub async fn connect(endpoint: &Endpoint, options: &TcpOptions, links: &Links) -> io::Result<Link> {
    match endpoint {
        Endpoint::Tcp { address, .. } => {
            let stream = TcpStream::connect(address).await?;
            set_tcp_options(&stream, options)?;
            Ok(stream.into())
        }
        Endpoint::Unix(path) => Ok(connect_unix(path).await?.into()),
        Endpoint::Link { link, target, .. } => {
            Ok(UnixStream::from_std(links.open(link, target)?)?.into())
        }
    }
}

/// Whether the next attempt is made with TLS. The order of libpq.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Encryption {
    /// Without.
    No,
    /// With, or without if the server has none.
    IfOffered,
    /// With.
    Must,
}

/// The attempts that a mode makes, in this order. A unix socket makes one, without TLS.
pub fn attempts(mode: TlsMode, endpoint: &Endpoint) -> &'static [Encryption] {
    if matches!(endpoint, Endpoint::Unix(_)) {
        return &[Encryption::No];
    }
    match mode {
        TlsMode::Disable => &[Encryption::No],
        TlsMode::Allow => &[Encryption::No, Encryption::Must],
        TlsMode::Prefer => &[Encryption::IfOffered, Encryption::No],
        TlsMode::Require | TlsMode::VerifyCa | TlsMode::VerifyFull => &[Encryption::Must],
    }
}

/// Encrypts a connection that was just opened, if that is asked for.
///
/// # Errors
/// See [`DialError`].
pub async fn open(
    mut link: Link,
    endpoint: &Endpoint,
    tls: &Connecting,
    encryption: Encryption,
) -> Result<Stream, DialError> {
    let (Endpoint::Tcp { host, .. } | Endpoint::Link { host, .. }, Some(connector)) =
        (endpoint, tls.connector())
    else {
        return Ok(Stream::Plain(link));
    };
    if encryption == Encryption::No {
        return Ok(Stream::Plain(link));
    }
    let failed =
        |reason: String| DialError::Tls { server: endpoint.to_string(), reason, lasts: false };
    if !tls.direct {
        match ask(&mut link).await.map_err(|error| failed(error.to_string()))? {
            b'S' if link.has_input() => {
                return Err(failed("received unencrypted data after SSL response".to_owned()));
            }
            b'S' => {}
            b'N' if encryption == Encryption::IfOffered => return Ok(Stream::Plain(link)),
            b'N' => {
                return Err(failed("server does not support SSL, but SSL was required".to_owned()));
            }
            // Its text is not trusted: the sender has not proved to be the server yet.
            b'E' => {
                return Err(failed("server sent an error response during SSL exchange".to_owned()));
            }
            other => {
                return Err(failed(format!(
                    "received invalid response to SSL negotiation: 0x{other:02x}"
                )));
            }
        }
    }
    let name = server_name(host).map_err(failed)?;
    let stream = connector.connect(name, link).await.map_err(|error| match is_refusal(&error) {
        true => DialError::Tls { server: endpoint.to_string(), reason: refusal(), lasts: true },
        false => failed(error.to_string()),
    })?;
    if tls.direct && stream.get_ref().1.alpn_protocol() != Some(ALPN) {
        return Err(failed("direct SSL connection was established without ALPN".to_owned()));
    }
    Ok(Stream::ToServer(stream.into()))
}

/// Whether the server can use nothing that was offered. It says no more.
fn is_refusal(error: &io::Error) -> bool {
    let alert = rustls::Error::AlertReceived(AlertDescription::HandshakeFailure);
    error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>()) == Some(&alert)
}

/// The server has not shown its certificate by then.
fn refusal() -> String {
    format!(
        "the server can use nothing that Hawser offers (alert HandshakeFailure): its certificate \
         may have a P-521 key, which TLS here does not support. Give the server {USABLE_KEYS}; if \
         it has one, see server_tls_protocols and server_tls_ciphers"
    )
}

async fn ask(link: &mut Link) -> io::Result<u8> {
    let mut request = Vec::with_capacity(8);
    startup::write_ssl_request(&mut request);
    link.write_all(&request).await?;
    link.read_u8().await
}
