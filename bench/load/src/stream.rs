//! One non-blocking connection, plain or with TLS.
//!
//! TLS is what libpq's `sslmode=require` is: encrypted, the handshake's signature checked, the
//! certificate's names and issuer not; no session is resumed, as libpq resumes none.

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvFlags, SendAncillaryBuffer, SendFlags, SocketAddrUnix, SocketFlags,
    SocketType, sockopt,
};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme};

/// Where the connections go.
#[derive(Clone, Debug)]
pub(crate) enum Target {
    /// An IPv4 address and port.
    Tcp(SocketAddr),
    /// The path of a unix socket.
    Unix(PathBuf),
}

impl std::str::FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with('/') {
            return Ok(Self::Unix(PathBuf::from(text)));
        }
        let address = text.parse().map_err(|error| format!("{text}: {error}"))?;
        Ok(Self::Tcp(address))
    }
}

impl Target {
    /// Starts to connect. TCP connects in the background: the first write may have to wait.
    ///
    /// # Errors
    /// Those of socket(2), bind(2) and connect(2); EAGAIN where a unix socket's backlog is full.
    pub(crate) fn dial(&self, source: Option<Ipv4Addr>) -> io::Result<OwnedFd> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let open = |family| rustix::net::socket_with(family, SocketType::STREAM, flags, None);
        let (socket, connected) = match self {
            Self::Tcp(address) => {
                let socket = open(if address.is_ipv4() {
                    AddressFamily::INET
                } else {
                    AddressFamily::INET6
                })?;
                sockopt::set_tcp_nodelay(&socket, true)?;
                if let Some(source) = source {
                    hawser_sys::dial::bind_address(&socket, source)?;
                }
                let connected = rustix::net::connect(&socket, address);
                (socket, connected)
            }
            Self::Unix(path) => {
                let socket = open(AddressFamily::UNIX)?;
                let connected = rustix::net::connect(&socket, &SocketAddrUnix::new(path)?);
                (socket, connected)
            }
        };
        match connected {
            Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
            Err(error) => Err(error.into()),
        }
    }
}

/// A socket as rustls wants it.
struct Socket(OwnedFd);

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(rustix::net::recv(&self.0, buffer, RecvFlags::empty())?.0)
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Ok(rustix::net::send(&self.0, bytes, SendFlags::NOSIGNAL)?)
    }

    // All records of a flight in one packet, as OpenSSL sends them.
    fn write_vectored(&mut self, parts: &[io::IoSlice<'_>]) -> io::Result<usize> {
        let mut nothing = SendAncillaryBuffer::default();
        Ok(rustix::net::sendmsg(&self.0, parts, &mut nothing, SendFlags::NOSIGNAL)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A connection. What a write could not place is kept and goes out with [`Stream::flush`].
pub(crate) struct Stream {
    socket: Socket,
    tls: Option<Box<ClientConnection>>,
    unsent: Vec<u8>,
}

impl Stream {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self { socket: Socket(socket), tls: None, unsent: Vec::new() }
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.socket.0.as_fd()
    }

    /// Everything from here on is encrypted: the handshake begins.
    pub(crate) fn start_tls(&mut self, config: &Arc<ClientConfig>) -> io::Result<()> {
        let name = ServerName::from(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST));
        let tls = ClientConnection::new(Arc::clone(config), name).map_err(io::Error::other)?;
        self.tls = Some(Box::new(tls));
        self.flush().map(drop)
    }

    pub(crate) fn is_handshaking(&self) -> bool {
        self.tls.as_ref().is_some_and(|tls| tls.is_handshaking())
    }

    /// Sends; true if bytes were left over and the socket has to become writable.
    pub(crate) fn send(&mut self, bytes: &[u8]) -> io::Result<bool> {
        if let Some(tls) = &mut self.tls {
            tls.writer().write_all(bytes)?;
            return self.flush();
        }
        let mut rest = bytes;
        if self.unsent.is_empty() {
            match self.socket.write(bytes) {
                Ok(sent) => rest = &bytes[sent..],
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        self.unsent.extend_from_slice(rest);
        Ok(!self.unsent.is_empty())
    }

    /// Sends what is left over; true if there still is something.
    pub(crate) fn flush(&mut self) -> io::Result<bool> {
        let mut attempt = || -> io::Result<()> {
            while !self.unsent.is_empty() {
                let sent = self.socket.write(&self.unsent)?;
                self.unsent.drain(..sent);
            }
            if let Some(tls) = &mut self.tls {
                while tls.wants_write() {
                    tls.write_tls(&mut self.socket)?;
                }
            }
            Ok(())
        };
        match attempt() {
            Ok(()) => Ok(false),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// Reads what is there into `buffer`; `None` where nothing is, 0 at the end.
    /// TLS may hold more afterwards: read until `None`.
    pub(crate) fn receive(&mut self, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let Some(tls) = &mut self.tls else {
            return match self.socket.read(buffer) {
                Ok(got) => Ok(Some(got)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
                Err(error) => Err(error),
            };
        };
        loop {
            match tls.reader().read(buffer) {
                Ok(got) => return Ok(Some(got)),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            match tls.read_tls(&mut self.socket) {
                Ok(0) => return Ok(Some(0)),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
                Err(error) => return Err(error),
            }
            tls.process_new_packets().map_err(io::Error::other)?;
            // Only the handshake's own messages: a few hundred bytes on a socket that has nothing
            // else to send, so that it cannot be full.
            while tls.wants_write() {
                tls.write_tls(&mut self.socket)?;
            }
        }
    }

    /// True if reads have to go on until `None`: TLS may hold decrypted bytes.
    pub(crate) fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// Says goodbye in TLS, as libpq does ahead of close(2).
    pub(crate) fn send_close_notify(&mut self) {
        if let Some(tls) = &mut self.tls {
            tls.send_close_notify();
            // A peer that takes nothing any more learns of the end by the close itself.
            let _unsent = self.flush();
        }
    }
}

/// See the module: signatures are checked, names and issuers are not.
#[derive(Debug)]
struct AnyCertificate(CryptoProvider);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signature, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.0.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signature, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// The TLS of all connections.
///
/// # Errors
/// Those of rustls, where its provider has no version in common with it.
pub(crate) fn tls_config() -> Result<Arc<ClientConfig>, rustls::Error> {
    let provider = ring::default_provider();
    let mut config = ClientConfig::builder_with_provider(Arc::new(provider.clone()))
        .with_safe_default_protocol_versions()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        .with_no_client_auth();
    config.resumption = rustls::client::Resumption::disabled();
    config.enable_sni = false;
    Ok(Arc::new(config))
}
