//! What the kernel says of a connection: `struct mptcp_info`.
//!
//! # Invariants
//! * it grows with the kernel and never changes: what an older kernel does not fill is `None` or 0

use crate::netlink::attribute::{u32_at, u64_at};

use super::Token;

/// `MPTCP_INFO_FLAG_FALLBACK`.
const FLAG_FALLBACK: u32 = 1;

/// A connection (`struct mptcp_info`, include/uapi/linux/mptcp.h).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MptcpInfo {
    /// Subflows beyond the first.
    pub subflows_further: u8,
    /// Addresses that this end has announced.
    pub announced: u8,
    /// Addresses of the peer that were followed.
    pub accepted: u8,
    /// How many there may be of each, as the limits were when asked.
    pub subflows_max: u8,
    /// See [`Self::announced`].
    pub announced_max: u8,
    /// See [`Self::accepted`].
    pub accepted_max: u8,
    /// `MPTCP_INFO_FLAG_*`.
    pub flags: u32,
    /// Its number at this end.
    pub token: Token,
    /// The first byte that the peer has not acknowledged, in the connection's own numbers.
    pub unacked_from: u64,
    /// Bytes that the program has written and the peer has not acknowledged.
    pub unacked: u64,
    /// Local addresses in use beyond the first, and how many endpoints there are for it.
    pub local_used: u8,
    /// See [`Self::local_used`].
    pub local_max: u8,
    /// Whether there are checksums (5.14).
    pub checksums: bool,
    /// Segments that were sent again on another subflow, and the rest of it (6.5).
    pub volume: Option<Volume>,
}

/// Bytes of a connection. Linux 6.5.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Timeouts of the connection as a whole, after which bytes go over another subflow.
    pub retransmits: u32,
    /// Bytes that were sent again.
    pub bytes_retransmitted: u64,
    /// Bytes that were sent, without headers.
    pub bytes_sent: u64,
    /// Bytes that were received.
    pub bytes_received: u64,
    /// Bytes that the peer has acknowledged.
    pub bytes_acked: u64,
    /// All subflows, the first included if it lives (6.5).
    pub subflows_total: u8,
}

impl MptcpInfo {
    /// Reads what the kernel gives. `None` if it is shorter than Linux 5.6 gives it.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let byte = |at: usize| bytes.get(at).copied();
        let volume = || {
            Some(Volume {
                retransmits: u32_at(bytes, 44)?,
                bytes_retransmitted: u64_at(bytes, 48)?,
                bytes_sent: u64_at(bytes, 56)?,
                bytes_received: u64_at(bytes, 64)?,
                bytes_acked: u64_at(bytes, 72)?,
                subflows_total: byte(80)?,
            })
        };
        Some(Self {
            subflows_further: byte(0)?,
            announced: byte(1)?,
            accepted: byte(2)?,
            subflows_max: byte(3)?,
            announced_max: byte(4)?,
            accepted_max: byte(5)?,
            flags: u32_at(bytes, 8)?,
            token: Token(u32_at(bytes, 12)?),
            unacked_from: u64_at(bytes, 24).unwrap_or(0),
            unacked: u64_at(bytes, 16).unwrap_or(0).wrapping_sub(u64_at(bytes, 24).unwrap_or(0)),
            local_used: byte(40).unwrap_or(0),
            local_max: byte(41).unwrap_or(0),
            checksums: byte(42).unwrap_or(0) != 0,
            volume: volume(),
        })
    }

    /// Whether it goes on as plain TCP: the peer, or something between, does not speak MPTCP.
    #[must_use]
    pub fn is_fallback(&self) -> bool {
        self.flags & FLAG_FALLBACK != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_kernel_gives_less_and_a_later_one_more() {
        let mut bytes = vec![0u8; 200];
        bytes[0] = 4;
        bytes[8..12].copy_from_slice(&3u32.to_ne_bytes());
        bytes[12..16].copy_from_slice(&0xfeed_beefu32.to_ne_bytes());
        bytes[56..64].copy_from_slice(&77u64.to_ne_bytes());
        bytes[80] = 5;
        let whole = MptcpInfo::decode(&bytes).unwrap();
        assert_eq!(whole.token, Token(0xfeed_beef));
        assert!(whole.is_fallback());
        let volume = whole.volume.unwrap();
        assert_eq!((volume.bytes_sent, volume.subflows_total), (77, 5));
        // Linux 5.16 ends after csum_enabled.
        let old = MptcpInfo::decode(&bytes[..48]).unwrap();
        assert_eq!((old.subflows_further, old.volume), (4, None));
        assert_eq!(MptcpInfo::decode(&bytes[..15]), None);
    }
}
