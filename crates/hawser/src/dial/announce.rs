//! The header of the PROXY protocol for a server, sent first if `proxy_protocol` asks for it.
//!
//! # Model       it says that the connection is Hawser's own, because clients share it
//! # Limits      a unix socket has no addresses to send

use std::io;

use hawser_sys::stream::{LocalAddress, local_address};
use ppp::{v1, v2};
use tokio::io::AsyncWriteExt;

use super::reach::Endpoint;
use crate::config::ProxyProtocol;
use crate::socket::stream::Link;

/// Sends the header, before anything else.
///
/// # Errors
/// Those of the connection.
pub async fn announce(
    link: &mut Link,
    endpoint: &Endpoint,
    version: ProxyProtocol,
) -> io::Result<()> {
    let ends = match (endpoint, local_address(&*link)?) {
        (Endpoint::Tcp { address, .. }, LocalAddress::Internet(own)) => Some((own, *address)),
        _ => None,
    };
    let header = match version {
        ProxyProtocol::Off => return Ok(()),
        ProxyProtocol::V1 => first_version(ends).into_bytes(),
        ProxyProtocol::V2 => second_version(ends)?,
    };
    link.write_all(&header).await?;
    link.flush().await
}

type Ends = (std::net::SocketAddr, std::net::SocketAddr);

fn first_version(ends: Option<Ends>) -> String {
    use std::net::SocketAddr::{V4, V6};
    let addresses = match ends {
        Some((V4(own), V4(server))) => {
            v1::Addresses::new_tcp4(*own.ip(), *server.ip(), own.port(), server.port())
        }
        Some((V6(own), V6(server))) => {
            v1::Addresses::new_tcp6(*own.ip(), *server.ip(), own.port(), server.port())
        }
        _ => v1::Addresses::Unknown,
    };
    addresses.to_string()
}

fn second_version(ends: Option<Ends>) -> io::Result<Vec<u8>> {
    let command = match ends {
        Some(_) => v2::Command::Proxy,
        None => v2::Command::Local,
    };
    let start = v2::Version::Two | command;
    let addresses = ends.map_or(v2::Addresses::Unspecified, v2::Addresses::from);
    let protocol = match ends {
        Some(_) => v2::Protocol::Stream,
        None => v2::Protocol::Unspecified,
    };
    v2::Builder::with_addresses(start, protocol, addresses).build()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(own: &str, server: &str) -> Option<Ends> {
        Some((own.parse().unwrap(), server.parse().unwrap()))
    }

    #[test]
    fn a_header_names_both_ends_or_says_that_there_are_none() {
        let v4 = ends("192.0.2.1:4000", "198.51.100.1:5432");
        assert_eq!(first_version(v4), "PROXY TCP4 192.0.2.1 198.51.100.1 4000 5432\r\n");
        let v6 = ends("[2001:db8::1]:4000", "[2001:db8::2]:5432");
        assert_eq!(first_version(v6), "PROXY TCP6 2001:db8::1 2001:db8::2 4000 5432\r\n");
        assert_eq!(first_version(None), "PROXY UNKNOWN\r\n");
        let signature = b"\r\n\r\n\0\r\nQUIT\n";
        let rest = [192, 0, 2, 1, 198, 51, 100, 1, 0x0f, 0xa0, 0x15, 0x38];
        let whole = [&signature[..], &[0x21, 0x11, 0, 12], &rest].concat();
        assert_eq!(second_version(v4).unwrap(), whole);
        assert_eq!(second_version(v6).unwrap()[12..16], [0x21, 0x21, 0, 36]);
        assert_eq!(second_version(None).unwrap(), [&signature[..], &[0x20, 0, 0, 0]].concat());
    }
}
