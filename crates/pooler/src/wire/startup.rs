//! The first packets of a connection: what a client may send before it has logged in.
//!
//! # Protocol
//! The first packet has no kind: `length: u32 (counts itself), code: u32, rest`. The code is a
//! protocol version (StartupMessage) or one of three magic numbers (SSLRequest, GSSENCRequest,
//! CancelRequest). Source: PostgreSQL documentation, "Message Formats";
//! `ProcessStartupPacket` in src/backend/tcop/backend_startup.c, whose limits, order of checks and
//! texts this follows.
//!
//! # Invariants
//! Nothing is answered here and nothing panics: bytes in, a [`Packet`] or a [`StartupError`] out.

use super::error::{ClientError, SqlState};
use super::frame::{take_string, take_u32};
use super::{backend, build};

/// Bytes after the length word that a first packet may have (`MAX_STARTUP_PACKET_LENGTH`,
/// src/include/libpq/pqcomm.h).
pub const PACKET_BYTES_MAX: usize = 10_000;
/// Bytes after the length word that it must have: the code.
pub const PACKET_BYTES_MIN: usize = 4;
/// Bytes of a cancel key (`MAX_CANCEL_KEY_LENGTH` of PostgreSQL 18; 4 up to protocol 3.0).
pub const CANCEL_KEY_BYTES_MAX: usize = 256;
/// The code of an SSLRequest.
pub const SSL_REQUEST: u32 = 1234 << 16 | 5679;
/// The code of a GSSENCRequest.
pub const GSSENC_REQUEST: u32 = 1234 << 16 | 5680;
/// The code of a CancelRequest.
pub const CANCEL_REQUEST: u32 = 1234 << 16 | 5678;

/// A version of the protocol.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ProtocolVersion {
    /// 3.
    pub major: u16,
    /// 0, or 2 from PostgreSQL 18 on.
    pub minor: u16,
}

impl ProtocolVersion {
    /// What all servers since 7.4 speak.
    pub const V3_0: Self = Self { major: 3, minor: 0 };
    /// With cancel keys of any length; the latest that Hawser speaks.
    pub const V3_2: Self = Self { major: 3, minor: 2 };

    /// From the code of a StartupMessage.
    pub fn from_code(code: u32) -> Self {
        Self { major: (code >> 16) as u16, minor: code as u16 }
    }

    /// As in the messages.
    pub fn code(self) -> u32 {
        u32::from(self.major) << 16 | u32::from(self.minor)
    }

    /// Bytes of the cancel key that a client of this version is given.
    pub fn cancel_key_bytes(self) -> usize {
        if self >= Self::V3_2 { 32 } else { 4 }
    }
}

/// A name and its value, as they were sent.
pub type Pair = (Box<[u8]>, Box<[u8]>);

/// A StartupMessage. [`crate::session::options`] interprets its parameters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Startup {
    /// The version that the client asks for.
    pub asked: ProtocolVersion,
    /// All parameters in the order in which they came.
    pub parameters: Vec<Pair>,
}

impl Startup {
    /// The version in force from now on: what the client asked for, or 3.2 if that is less.
    pub fn version(&self) -> ProtocolVersion {
        self.asked.min(ProtocolVersion::V3_2)
    }

    /// Names and values.
    pub fn pairs(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.parameters.iter().map(|(name, value)| (&**name, &**value))
    }

    /// Appends NegotiateProtocolVersion if the client does not get all it asked for: the version,
    /// or protocol options (`_pq_.` and a name), of which none is known.
    pub fn write_negotiation(&self, protocol_options: &[Box<[u8]>], out: &mut Vec<u8>) {
        if self.version() == self.asked && protocol_options.is_empty() {
            return;
        }
        build::message(out, backend::NEGOTIATE_VERSION, |out| {
            out.extend_from_slice(&self.version().code().to_be_bytes());
            let count = u32::try_from(protocol_options.len()).unwrap_or(u32::MAX);
            out.extend_from_slice(&count.to_be_bytes());
            for name in protocol_options {
                build::string(out, name);
            }
        });
    }
}

/// A first packet.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Packet {
    /// May the connection be encrypted by TLS?
    SslRequest,
    /// May it be encrypted by GSSAPI?
    GssEncRequest,
    /// Cancel what another connection is running.
    Cancel {
        /// Process id of BackendKeyData.
        process: u32,
        /// Key of BackendKeyData.
        key: Box<[u8]>,
    },
    /// Begin a session.
    Startup(Startup),
}

/// Why a first packet is refused. All are the client's fault.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum StartupError {
    /// A length word that no first packet may have.
    Length,
    /// A CancelRequest without process id or key.
    CancelLength,
    /// A CancelRequest whose key has an impossible length.
    CancelKeyLength,
    /// Another protocol.
    Version(ProtocolVersion),
    /// Parameters that do not end as they must.
    Layout,
}

impl StartupError {
    /// Whether PostgreSQL closes the connection without an answer, and only logs the error
    /// (`COMMERROR`): the sender may be no client at all.
    pub fn is_for_the_log(&self) -> bool {
        match self {
            Self::Length | Self::CancelLength | Self::CancelKeyLength => true,
            Self::Version(_) | Self::Layout => false,
        }
    }

    /// The error for the client, in PostgreSQL's own words.
    pub fn to_client_error(&self) -> ClientError {
        let violation = |message: &str| ClientError::fatal(SqlState::PROTOCOL_VIOLATION, message);
        match self {
            Self::Length => violation("invalid length of startup packet"),
            Self::CancelLength => violation("invalid length of cancel request packet"),
            Self::CancelKeyLength => {
                violation("invalid length of cancel key in cancel request packet")
            }
            Self::Version(ProtocolVersion { major, minor }) => ClientError::fatal(
                SqlState::FEATURE_NOT_SUPPORTED,
                format!(
                    "unsupported frontend protocol {major}.{minor}: server supports 3.0 to 3.2"
                ),
            ),
            Self::Layout => {
                violation("invalid startup packet layout: expected terminator as last byte")
            }
        }
    }
}

/// Bytes that follow the length word of a first packet.
pub fn body_length(length: u32) -> Result<usize, StartupError> {
    let body = (length as usize).checked_sub(4).ok_or(StartupError::Length)?;
    if (PACKET_BYTES_MIN..=PACKET_BYTES_MAX).contains(&body) {
        Ok(body)
    } else {
        Err(StartupError::Length)
    }
}

/// Reads what follows the length word.
pub fn parse(body: &[u8]) -> Result<Packet, StartupError> {
    let (code, rest) = take_u32(body).ok_or(StartupError::Length)?;
    match code {
        SSL_REQUEST if rest.is_empty() => Ok(Packet::SslRequest),
        GSSENC_REQUEST if rest.is_empty() => Ok(Packet::GssEncRequest),
        SSL_REQUEST | GSSENC_REQUEST => Err(StartupError::Length),
        CANCEL_REQUEST => cancel(rest),
        _ => startup(ProtocolVersion::from_code(code), rest),
    }
}

fn cancel(rest: &[u8]) -> Result<Packet, StartupError> {
    let (process, key) = take_u32(rest).ok_or(StartupError::CancelLength)?;
    if key.is_empty() || key.len() > CANCEL_KEY_BYTES_MAX {
        return Err(StartupError::CancelKeyLength);
    }
    Ok(Packet::Cancel { process, key: key.into() })
}

fn startup(asked: ProtocolVersion, mut rest: &[u8]) -> Result<Packet, StartupError> {
    if asked.major != 3 {
        return Err(StartupError::Version(asked));
    }
    let mut parameters = Vec::new();
    loop {
        let (name, after) = take_string(rest).ok_or(StartupError::Layout)?;
        if name.is_empty() {
            if !after.is_empty() {
                return Err(StartupError::Layout);
            }
            return Ok(Packet::Startup(Startup { asked, parameters }));
        }
        let (value, after) = take_string(after).ok_or(StartupError::Layout)?;
        parameters.push((name.into(), value.into()));
        rest = after;
    }
}

/// Appends a first packet with this code.
fn packet(out: &mut Vec<u8>, code: u32, rest: impl FnOnce(&mut Vec<u8>)) {
    let at = out.len();
    out.extend_from_slice(&[0; 4]);
    out.extend_from_slice(&code.to_be_bytes());
    rest(out);
    let length = u32::try_from(out.len() - at).unwrap_or(u32::MAX);
    out[at..at + 4].copy_from_slice(&length.to_be_bytes());
}

/// Appends an SSLRequest.
pub fn write_ssl_request(out: &mut Vec<u8>) {
    packet(out, SSL_REQUEST, |_| {});
}

/// Appends a CancelRequest.
pub fn write_cancel(out: &mut Vec<u8>, process: u32, key: &[u8]) {
    packet(out, CANCEL_REQUEST, |out| {
        out.extend_from_slice(&process.to_be_bytes());
        out.extend_from_slice(key);
    });
}

/// Appends a StartupMessage. Names and values must not contain NUL.
pub fn write_startup<'a>(
    out: &mut Vec<u8>,
    version: ProtocolVersion,
    parameters: impl IntoIterator<Item = (&'a [u8], &'a [u8])>,
) {
    packet(out, version.code(), |out| {
        for (name, value) in parameters {
            build::string(out, name);
            build::string(out, value);
        }
        out.push(0);
    });
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn startup_of(version: u32, parameters: &[(&str, &str)]) -> Result<Packet, StartupError> {
        let mut out = Vec::new();
        let pairs = parameters.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
        write_startup(&mut out, ProtocolVersion::from_code(version), pairs);
        assert_eq!(out.len(), u32::from_be_bytes([out[0], out[1], out[2], out[3]]) as usize);
        parse(&out[4..])
    }

    fn accepted(version: u32, parameters: &[(&str, &str)]) -> Startup {
        match startup_of(version, parameters) {
            Ok(Packet::Startup(startup)) => startup,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_length_is_bounded_on_both_sides() {
        assert_eq!(body_length(7), Err(StartupError::Length));
        assert_eq!(body_length(8), Ok(4));
        assert_eq!(body_length(10_004), Ok(10_000));
        assert_eq!(body_length(10_005), Err(StartupError::Length));
        assert_eq!(body_length(0), Err(StartupError::Length));
        assert_eq!(body_length(u32::MAX), Err(StartupError::Length));
    }

    #[test]
    fn parameters_come_out_as_they_were_sent() {
        let startup = accepted(3 << 16, &[("user", "u"), ("application_name", ""), ("user", "v")]);
        let pairs: Vec<_> = startup.pairs().collect();
        assert_eq!(pairs, [(&b"user"[..], &b"u"[..]), (b"application_name", b""), (b"user", b"v")]);
    }

    #[test]
    fn a_later_minor_version_is_negotiated_down_once() {
        let negotiation = |startup: &Startup, options: &[Box<[u8]>]| {
            let mut out = Vec::new();
            startup.write_negotiation(options, &mut out);
            out
        };
        let option: Box<[u8]> = b"_pq_.x"[..].into();
        let startup = accepted(3 << 16 | 9999, &[("user", "u"), ("_pq_.x", "1")]);
        assert_eq!(startup.version(), ProtocolVersion::V3_2);
        assert_eq!(
            negotiation(&startup, std::slice::from_ref(&option)),
            b"v\0\0\0\x13\0\x03\0\x02\0\0\0\x01_pq_.x\0"
        );

        let startup = accepted(3 << 16 | 2, &[("user", "u")]);
        assert!(negotiation(&startup, &[]).is_empty());
        assert_eq!(startup.version().cancel_key_bytes(), 32);
        let startup = accepted(3 << 16, &[("user", "u")]);
        assert_eq!(startup.version().cancel_key_bytes(), 4);
        assert_eq!(negotiation(&startup, &[option])[..9], *b"v\0\0\0\x13\0\x03\0\0");
    }

    #[test]
    fn other_major_versions_are_refused_with_postgresqls_text() {
        let error = startup_of(2 << 16, &[("user", "u")]).unwrap_err().to_client_error();
        assert_eq!(error.code, SqlState::FEATURE_NOT_SUPPORTED);
        assert_eq!(error.message, "unsupported frontend protocol 2.0: server supports 3.0 to 3.2");
    }

    #[test]
    fn parameters_must_end_with_one_terminator() {
        let head = (3u32 << 16).to_be_bytes();
        for (tail, expected) in [
            (&b""[..], StartupError::Layout),
            (b"user\0u\0", StartupError::Layout),
            (b"user\0u", StartupError::Layout),
            (b"user\0u\0\0\0", StartupError::Layout),
            (b"user\0\0", StartupError::Layout),
        ] {
            let bytes = [&head[..], tail].concat();
            assert_eq!(parse(&bytes), Err(expected), "{tail:?}");
        }
    }

    #[test]
    fn cancel_keys_have_1_to_256_bytes() {
        for (bytes, accepted) in
            [(0, false), (1, true), (4, true), (32, true), (256, true), (257, false)]
        {
            let key = vec![7; bytes];
            let mut out = Vec::new();
            write_cancel(&mut out, 42, &key);
            let parsed = parse(&out[4..]);
            if accepted {
                assert_eq!(parsed, Ok(Packet::Cancel { process: 42, key: key.into() }));
            } else {
                assert_eq!(parsed, Err(StartupError::CancelKeyLength));
            }
        }
        assert_eq!(parse(&CANCEL_REQUEST.to_be_bytes()), Err(StartupError::CancelLength));
    }

    #[test]
    fn requests_for_encryption_carry_nothing_else() {
        let mut out = Vec::new();
        write_ssl_request(&mut out);
        assert_eq!(out, [0, 0, 0, 8, 4, 210, 22, 47]);
        assert_eq!(parse(&out[4..]), Ok(Packet::SslRequest));
        out.push(0);
        assert_eq!(parse(&out[4..]), Err(StartupError::Length));
        assert_eq!(parse(&GSSENC_REQUEST.to_be_bytes()), Ok(Packet::GssEncRequest));
    }

    proptest! {
        #[test]
        fn no_bytes_panic(body in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&body);
        }

        #[test]
        fn no_parameters_panic(tail in proptest::collection::vec(0u8..4, 0..60), minor in any::<u16>()) {
            let mut body = (3u32 << 16 | u32::from(minor)).to_be_bytes().to_vec();
            body.extend(tail.iter().map(|byte| if *byte == 0 { 0 } else { b'a' + byte }));
            if let Ok(Packet::Startup(startup)) = parse(&body) {
                prop_assert!(startup.pairs().all(|(name, _)| !name.is_empty()));
            }
        }
    }
}
