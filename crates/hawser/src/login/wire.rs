//! Reads and writes the messages of a login, each within its bound.

use std::io;

use hawser_pooler::wire::error::{ClientError, SqlState};
use hawser_pooler::wire::frame::{self, Framed, HEADER_BYTES};
use hawser_pooler::wire::frontend;
use hawser_pooler::wire::startup::{self, Packet};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::proxy;
use crate::limits::GaveWay;

/// The first byte of a TLS connection that begins without asking (a handshake record).
pub const TLS_HANDSHAKE: u8 = 0x16;

/// How a login ends early.
#[derive(Debug)]
pub enum Stop {
    /// The client gets the reason.
    Refuse(Box<ClientError>),
    /// The client has gone, or is no client: nothing is sent or logged.
    Gone,
    /// The connection broke, or the TLS handshake failed.
    Broken(io::Error),
    /// It lost its place to another: it is closed without delay.
    GaveWay,
}

impl From<GaveWay> for Stop {
    fn from(_: GaveWay) -> Self {
        Self::GaveWay
    }
}

impl From<ClientError> for Stop {
    fn from(error: ClientError) -> Self {
        Self::Refuse(Box::new(error))
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe => Self::Gone,
            _ => Self::Broken(error),
        }
    }
}

impl From<startup::StartupError> for Stop {
    fn from(error: startup::StartupError) -> Self {
        if error.is_for_the_log() {
            return Self::Broken(io::Error::new(
                io::ErrorKind::InvalidData,
                error.to_client_error().message,
            ));
        }
        error.to_client_error().into()
    }
}

/// The beginning of a connection.
#[derive(Debug)]
pub enum First {
    /// A packet of the protocol.
    Packet(Packet),
    /// These bytes of a TLS handshake.
    Tls([u8; 4]),
}

/// Reads a first packet. `tls_allowed`: it may be the beginning of TLS instead.
pub async fn first_packet<S: AsyncRead + Unpin>(
    stream: &mut S,
    tls_allowed: bool,
) -> Result<First, Stop> {
    let mut length = [0; 4];
    stream.read_exact(&mut length).await?;
    if tls_allowed && length[0] == TLS_HANDSHAKE {
        return Ok(First::Tls(length));
    }
    if proxy::begins(length) {
        let message = "unexpected header of the PROXY protocol";
        let detail = "Its sender is not in proxy_protocol_from, or has sent one already.";
        return Err(ClientError::fatal(SqlState::PROTOCOL_VIOLATION, message)
            .detail(detail)
            .into());
    }
    let mut body = vec![0; startup::body_length(u32::from_be_bytes(length))?];
    stream.read_exact(&mut body).await?;
    Ok(First::Packet(startup::parse(&body)?))
}

/// Reads the body of a PasswordMessage, SASLInitialResponse or SASLResponse of at most `length_max`
/// bytes, the length word included.
pub async fn password_message<S: AsyncRead + Unpin>(
    stream: &mut S,
    length_max: usize,
) -> Result<Vec<u8>, Stop> {
    let mut head = [0; HEADER_BYTES];
    // The kind first: another message is refused whatever its length.
    stream.read_exact(&mut head[..1]).await?;
    if head[0] == frontend::TERMINATE {
        return Err(Stop::Gone);
    }
    if head[0] != frontend::PASSWORD {
        return Err(violation(format!("expected password response, got message type {}", head[0])));
    }
    stream.read_exact(&mut head[1..]).await?;
    let body = match frame::header(&head) {
        Framed::Header(header) if header.body + 4 <= length_max => header.body,
        _ => return Err(violation("invalid message length".to_owned())),
    };
    let mut bytes = vec![0; body];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

fn violation(message: String) -> Stop {
    ClientError::fatal(SqlState::PROTOCOL_VIOLATION, message).into()
}

/// Sends bytes.
pub async fn send<S: AsyncWrite + Unpin>(stream: &mut S, bytes: &[u8]) -> Result<(), Stop> {
    stream.write_all(bytes).await?;
    stream.flush().await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use hawser_pooler::wire::startup::ProtocolVersion;
    use tokio::io::duplex;

    use super::*;

    async fn first(bytes: &[u8], tls_allowed: bool) -> Result<First, Stop> {
        let (mut near, mut far) = duplex(64);
        let bytes = bytes.to_vec();
        let writer = tokio::spawn(async move {
            let _ = far.write_all(&bytes).await;
        });
        let result = first_packet(&mut near, tls_allowed).await;
        drop(near);
        writer.await.unwrap();
        result
    }

    fn refusal<T: std::fmt::Debug>(result: Result<T, Stop>) -> String {
        match result {
            Err(Stop::Refuse(error)) => error.message,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn a_startup_packet_may_come_in_pieces() {
        let mut packet = Vec::new();
        let parameters = [(&b"user"[..], &[b'u'; 300][..])];
        startup::write_startup(&mut packet, ProtocolVersion::V3_0, parameters);
        assert!(matches!(
            first(&packet, true).await,
            Ok(First::Packet(Packet::Startup(startup))) if startup.parameters.len() == 1
        ));
        packet.pop();
        assert!(matches!(first(&packet, true).await, Err(Stop::Gone)));
        assert!(matches!(first(b"", true).await, Err(Stop::Gone)));
    }

    /// The connection is closed, and the reason is only logged, as in PostgreSQL.
    fn unsaid<T: std::fmt::Debug>(result: Result<T, Stop>) -> String {
        match result {
            Err(Stop::Broken(error)) => error.to_string(),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn lengths_out_of_bounds_are_not_read_nor_answered() {
        let terminate = u32::from_be_bytes(*b"X\0\0\0");
        let http = u32::from_be_bytes(*b"GET ");
        for length in [0u32, 7, 10_005, u32::MAX, terminate, http] {
            let reason = unsaid(first(&length.to_be_bytes(), true).await);
            assert_eq!(reason, "invalid length of startup packet", "{length}");
        }
    }

    #[tokio::test]
    async fn a_cancel_request_of_another_length_is_not_answered() {
        let packet = [&8u32.to_be_bytes()[..], &startup::CANCEL_REQUEST.to_be_bytes()].concat();
        let reason = unsaid(first(&packet, true).await);
        assert_eq!(reason, "invalid length of cancel request packet");
    }

    #[tokio::test]
    async fn tls_begins_only_where_it_may() {
        let hello = [TLS_HANDSHAKE, 3, 1, 0];
        assert!(matches!(first(&hello, true).await, Ok(First::Tls(bytes)) if bytes == hello));
        assert_eq!(unsaid(first(&hello, false).await), "invalid length of startup packet");
    }

    async fn password(bytes: &[u8]) -> Result<Vec<u8>, Stop> {
        let mut stream = bytes;
        password_message(&mut stream, 100).await
    }

    #[tokio::test]
    async fn password_messages_have_a_bound_and_nothing_else_is_one() {
        assert_eq!(password(b"p\0\0\0\x06a\0").await.unwrap(), b"a\0");
        assert_eq!(password(b"p\0\0\0\x04").await.unwrap(), b"");
        for bytes in
            [&b"p\0\0\0\x03"[..], b"p\0\0\0\x65", b"p\xff\xff\xff\xff", b"p\x7f\xff\xff\xff"]
        {
            assert_eq!(refusal(password(bytes).await), "invalid message length", "{bytes:?}");
        }
        assert_eq!(
            refusal(password(b"Q\xff\xff\xff\xff").await),
            "expected password response, got message type 81"
        );
        assert!(matches!(password(b"X\0\0\0\x04").await, Err(Stop::Gone)));
        assert!(matches!(password(b"p\0\0\0\x06a").await, Err(Stop::Gone)));
    }
}
