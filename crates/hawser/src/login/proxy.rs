//! The header of the PROXY protocol, with which a load balancer names the client of a connection.
//!
//! # Model
//! ```text
//!   v1   "PROXY TCP4 192.0.2.1 198.51.100.1 56324 6432\r\n"      at most 107 bytes
//!   v2   signature (12)  version and command (1)  family (1)  length (2)  addresses, TLVs
//! ```
//! It comes before TLS and before the startup packet, only from the addresses of
//! `proxy_protocol_from`, and always from these: a client that could choose whether to send one
//! could choose its own address. (The PROXY protocol, versions 1 and 2, HAProxy's
//! proxy-protocol.txt, section 2.)
//!
//! # Invariants
//! * no byte after the header is taken
//! * an invalid header is refused at its first wrong byte of the signature, without waiting for the
//!   rest
//!
//! # Limits
//! TLVs (the name of a client's certificate, for example) are skipped: they are no proof here.

use std::net::SocketAddr;

use hawser_pooler::wire::error::{ClientError, SqlState};
use ppp::{v1, v2};
use tokio::io::{AsyncRead, AsyncReadExt};

use super::wire::Stop;

/// How a header of version 1 begins.
const V1: &[u8] = b"PROXY ";
/// The longest header of version 1 (section 2.1).
const V1_BYTES_MAX: usize = 107;
/// How a header of version 2 begins (section 2.2).
const V2: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// What follows it: version and command, family, length.
const V2_FIXED_BYTES: usize = 4;
/// The most that is read of addresses and TLVs. The largest known ones, certificates' names and
/// identifiers of cloud endpoints, take some hundreds.
const V2_REST_BYTES_MAX: usize = 4096;

/// The owner of the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Passed {
    /// The client's address.
    For(SocketAddr),
    /// The proxy's own, a health check: LOCAL.
    Own,
    /// For a client without an address: UNKNOWN, UNSPEC, a unix socket elsewhere.
    ForUnknown,
}

/// Whether these are the first four bytes of a header, from a client that may not send one.
pub fn begins(bytes: [u8; 4]) -> bool {
    bytes == V1[..4] || bytes == V2[..4]
}

/// Reads a header.
///
/// # Errors
/// The client has gone, or has sent no header: it gets an error.
pub async fn read<S: AsyncRead + Unpin>(stream: &mut S) -> Result<Passed, Stop> {
    let mut header = Vec::with_capacity(V1_BYTES_MAX);
    while !V2.starts_with(&header) || header.len() < V2.len() {
        header.push(stream.read_u8().await?);
        if V1.starts_with(&header) && header.len() == V1.len() {
            return read_v1(stream, header).await;
        }
        if !V1.starts_with(&header) && !V2.starts_with(&header) {
            return Err(refused("the connection does not begin with one"));
        }
    }
    read_v2(stream, header).await
}

async fn read_v1<S: AsyncRead + Unpin>(
    stream: &mut S,
    mut header: Vec<u8>,
) -> Result<Passed, Stop> {
    while !header.ends_with(b"\r\n") {
        if header.len() == V1_BYTES_MAX {
            return Err(refused("version 1, longer than 107 bytes"));
        }
        header.push(stream.read_u8().await?);
    }
    let parsed = v1::Header::try_from(&header[..])
        .map_err(|error| refused(&format!("version 1, {error}")))?;
    Ok(match parsed.addresses {
        v1::Addresses::Tcp4(ip) => Passed::For((ip.source_address, ip.source_port).into()),
        v1::Addresses::Tcp6(ip) => Passed::For((ip.source_address, ip.source_port).into()),
        v1::Addresses::Unknown => Passed::ForUnknown,
    })
}

async fn read_v2<S: AsyncRead + Unpin>(
    stream: &mut S,
    mut header: Vec<u8>,
) -> Result<Passed, Stop> {
    header.resize(V2.len() + V2_FIXED_BYTES, 0);
    stream.read_exact(&mut header[V2.len()..]).await?;
    let length = usize::from(u16::from_be_bytes([header[14], header[15]]));
    if length > V2_REST_BYTES_MAX {
        return Err(refused(&format!("version 2, {length} bytes of addresses and TLVs")));
    }
    let fixed = header.len();
    header.resize(fixed + length, 0);
    stream.read_exact(&mut header[fixed..]).await?;
    let parsed = v2::Header::try_from(&header[..])
        .map_err(|error| refused(&format!("version 2, {error}")))?;
    if parsed.command == v2::Command::Local {
        return Ok(Passed::Own);
    }
    match (parsed.protocol, parsed.addresses) {
        (v2::Protocol::Datagram, _) => Err(refused("version 2, of datagrams")),
        (_, v2::Addresses::IPv4(ip)) => Ok(Passed::For((ip.source_address, ip.source_port).into())),
        (_, v2::Addresses::IPv6(ip)) => Ok(Passed::For((ip.source_address, ip.source_port).into())),
        // A unix socket of another host means nothing here.
        (_, v2::Addresses::Unspecified | v2::Addresses::Unix(_)) => Ok(Passed::ForUnknown),
    }
}

fn refused(why: &str) -> Stop {
    ClientError::fatal(SqlState::PROTOCOL_VIOLATION, "invalid header of the PROXY protocol")
        .detail(why)
        .hint("The address that connects is in proxy_protocol_from: each of its connections begins with a header.")
        .into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Such a client counted as the connecting process itself: `peer` took it for that, and the
    /// console let it in.
    #[test]
    fn a_client_without_an_address_is_not_the_proxy() {
        let unix = v2(1, 0x31, &[0; 216]);
        let all: [&[u8]; 4] = [
            b"PROXY UNKNOWN\r\n",
            b"PROXY UNKNOWN ffff::1 ffff::1 65535 65535\r\n",
            &v2(1, 0, b"abc"),
            &unix,
        ];
        for header in all {
            assert!(matches!(parse(header), (Ok(Passed::ForUnknown), 0)), "{header:?}");
        }
        assert!(matches!(parse(&v2(0, 0x31, &[0; 216])), (Ok(Passed::Own), 0)), "LOCAL");
    }

    /// The result, and how many bytes are left.
    fn parse(bytes: &[u8]) -> (Result<Passed, Stop>, usize) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut left = bytes;
        let result = runtime.block_on(read(&mut left));
        (result, left.len())
    }

    fn passed(bytes: &[u8]) -> Option<SocketAddr> {
        let mut sent = bytes.to_vec();
        sent.extend_from_slice(b"\0\0\0\x08");
        match parse(&sent) {
            (Ok(passed), 4) => match passed {
                Passed::For(address) => Some(address),
                Passed::Own | Passed::ForUnknown => None,
            },
            other => panic!("{other:?} of {bytes:?}"),
        }
    }

    fn why(bytes: &[u8]) -> String {
        match parse(bytes).0 {
            Err(Stop::Refuse(error)) => error.detail.unwrap(),
            other => panic!("{other:?} of {bytes:?}"),
        }
    }

    pub(super) fn v2(command: u8, family: u8, rest: &[u8]) -> Vec<u8> {
        let length = u16::try_from(rest.len()).unwrap().to_be_bytes();
        [V2, &[0x20 | command, family], &length, rest].concat()
    }

    const IP4: [u8; 12] = [192, 0, 2, 1, 198, 51, 100, 1, 0xdc, 4, 0x19, 0x20];

    #[test]
    fn both_versions_name_the_client_and_take_nothing_more() {
        let client = Some("192.0.2.1:56324".parse().unwrap());
        assert_eq!(passed(b"PROXY TCP4 192.0.2.1 198.51.100.1 56324 6432\r\n"), client);
        let v6 = passed(b"PROXY TCP6 2001:db8::1 2001:db8::2 56324 6432\r\n");
        assert_eq!(v6, Some("[2001:db8::1]:56324".parse().unwrap()));
        assert_eq!(passed(b"PROXY UNKNOWN\r\n"), None);
        assert_eq!(passed(b"PROXY UNKNOWN ffff::1 ffff::1 65535 65535\r\n"), None);
        assert_eq!(passed(&v2(1, 0x11, &IP4)), client);
        let with_tlv = [&IP4[..], &[4, 0, 2, 1, 2]].concat();
        assert_eq!(passed(&v2(1, 0x11, &with_tlv)), client);
        let mut ip6 = [0; 36];
        (ip6[15], ip6[33]) = (1, 9);
        assert_eq!(passed(&v2(1, 0x21, &ip6)), Some("[::1]:9".parse().unwrap()));
        assert_eq!(passed(&v2(0, 0, b"")), None, "LOCAL");
        assert_eq!(passed(&v2(0, 0x11, &IP4)), None, "LOCAL, whatever follows");
        assert_eq!(passed(&v2(1, 0, b"abc")), None, "PROXY of nobody");
        assert_eq!(passed(&v2(1, 0x31, &[0; 216])), None, "of a unix socket");
    }

    #[test]
    fn what_is_no_header_is_refused_with_its_reason() {
        let none = "the connection does not begin with one";
        for bytes in [&b"\0\0\0\x08"[..], b"PROXZ", b"\r\n\r\n\0\r\nQUIX", b"GET /", b"\x16\x03"] {
            assert_eq!(why(bytes), none, "{bytes:?}");
        }
        let long = [&b"PROXY TCP4 "[..], &[b'1'; 200]].concat();
        assert_eq!(why(&long), "version 1, longer than 107 bytes");
        for bytes in [
            &b"PROXY TCP4 192.0.2.256 198.51.100.1 1 1\r\n"[..],
            b"PROXY TCP4 192.0.2.1 198.51.100.1 70000 1\r\n",
            b"PROXY TCP4 ::1 ::2 1 1\r\n",
            b"PROXY TCP4 192.0.2.1\r\n",
            b"PROXY UDP4 192.0.2.1 198.51.100.1 1 1\r\n",
            b"PROXY \xff\r\n",
        ] {
            assert!(why(bytes).starts_with("version 1, "), "{bytes:?}");
        }
        let mut version_3 = v2(1, 0x11, &IP4);
        version_3[12] = 0x31;
        let mut longest = v2(0, 0, b"");
        longest[14..].copy_from_slice(&[0xff, 0xff]);
        for bytes in
            [version_3, longest, v2(1, 0x11, &IP4[..11]), v2(2, 0x11, &IP4), v2(1, 0x12, &IP4)]
        {
            assert!(why(&bytes).starts_with("version 2, "), "{bytes:?}");
        }
    }

    #[test]
    fn who_leaves_in_the_midst_of_a_header_is_gone() {
        let whole = [&b"PROXY TCP4 192.0.2.1 198.51.100.1 56324 6432\r\n"[..], &v2(1, 0x11, &IP4)];
        for header in whole {
            for end in 0..header.len() {
                assert!(matches!(parse(&header[..end]).0, Err(Stop::Gone)), "{end}");
            }
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic_or_read_past_its_bounds(
            version_1: bool, rest: Vec<u8>, spoilt in 0..16_usize, byte: u8
        ) {
            let mut bytes = match version_1 {
                true => [V1, &rest].concat(),
                false => v2(1, 0x11, &rest),
            };
            let at = spoilt.min(bytes.len() - 1);
            bytes[at] = byte;
            let sent = bytes.len();
            let (_, left) = parse(&bytes);
            prop_assert!(sent - left <= V2.len() + V2_FIXED_BYTES + V2_REST_BYTES_MAX);
        }
    }
}
