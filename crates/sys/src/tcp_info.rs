//! TCP_INFO: what the kernel knows of a connection of this process.
//!
//! # Model
//! `struct tcp_info` (include/uapi/linux/tcp.h) grows at its end and never changes; a kernel fills
//! as much as it knows and says how long that is. What it does not fill is `None` here.
//! ```text
//!   bytes    104    136      152     168      176 ... 192      200     216
//!   Linux    2.6    4.1/4.2  4.6     4.9      4.10             4.18    4.19
//!   has      rtt    bytes    min_rtt delivery busy, limited    -       bytes again
//! ```
//!
//! # Limits
//! On an MPTCP socket it is the first subflow's. `tcpi_min_rtt` is the least of the last five minutes
//! (net.ipv4.tcp_min_rtt_wlen).

use std::io;
use std::os::fd::AsFd;

use crate::netlink::attribute::{u32_at, u64_at};
use crate::stream::get_option;

/// Room for what is asked for, the receive window included (6.2).
const BYTES: usize = 240;
/// What Linux 2.6 gave.
const BYTES_MIN: usize = 104;
/// `tcpi_delivery_rate_app_limited`, the first bit-field of its byte: C puts it at the end at which
/// the architecture begins.
const APPLICATION_LIMITED: u8 = if cfg!(target_endian = "little") { 1 } else { 0x80 };
/// TCP_CLOSE of the kernel's include/net/tcp_states.h.
const CLOSED: u8 = 7;
/// `tcpi_min_rtt` before there is any.
const NO_RTT: u32 = u32::MAX;

/// A connection. Microseconds, bytes, and bytes a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct TcpInfo {
    /// Whether nothing can be sent on it any more: it was reset, or both ends have closed it.
    pub is_closed: bool,
    /// Payload of a segment.
    pub segment_bytes: u32,
    /// Smoothed round trip; 0 before there is any.
    pub rtt_us: u32,
    /// Its variance.
    pub rtt_variance_us: u32,
    /// The least round trip of late. Linux 4.6.
    pub rtt_min_us: Option<u32>,
    /// The congestion window, in segments.
    pub window: u32,
    /// Where slow start ends, in segments; 2^31 - 1 before a loss.
    pub threshold: u32,
    /// Segments sent again, ever.
    pub segments_again: u32,
    /// Segments that are sent and not acknowledged.
    pub unacked_segments: u32,
    /// Of these, those that the peer has and names selectively (RFC 2018): they wait for a lost one.
    pub sacked_segments: u32,
    /// How often in a row it has sent again what was not answered (RFC 6298, section 5.5).
    pub timeouts: u8,
    /// Probes, of a full window or of keepalive, that the peer has not answered.
    pub probes: u8,
    /// How often the timeout was doubled.
    pub backoff: u8,
    /// Milliseconds since anything came from the peer, be it an acknowledgement.
    pub last_heard_ms: u32,
    /// Milliseconds since the peer last acknowledged anything; a full window's probes too.
    pub last_ack_ms: u32,
    /// Bytes that the peer has acknowledged. Linux 4.1.
    pub bytes_acked: Option<u64>,
    /// Bytes that came from the peer. Linux 4.1.
    pub bytes_received: Option<u64>,
    /// Segments with data that were sent, again or not. Linux 4.6.
    pub segments_sent: Option<u32>,
    /// Bytes that wait to be sent. Linux 4.6.
    pub unsent: Option<u32>,
    /// What reached the peer of late. Linux 4.9.
    pub delivery_rate: Option<u64>,
    /// Whether that was so little for want of data. Linux 4.9.
    pub is_application_limited: bool,
    /// Time with data to send or under way. Linux 4.10.
    pub busy_us: Option<u64>,
    /// Of that, with no room in the peer's window. Linux 4.10.
    pub receiver_limited_us: Option<u64>,
    /// Of that, with no more room in the send buffer. Linux 4.10.
    pub buffer_limited_us: Option<u64>,
    /// Bytes that were sent again. Linux 4.19.
    pub bytes_again: Option<u64>,
    /// Bytes that the peer takes beyond those it has acknowledged. Linux 5.4.
    pub peer_window: Option<u32>,
}

impl TcpInfo {
    /// Reads what the kernel gives. `None` if it is shorter than any kernel's.
    #[must_use]
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        if bytes.len() < BYTES_MIN {
            return None;
        }
        let old = |at| u32_at(bytes, at).unwrap_or(0);
        Some(Self {
            is_closed: bytes[0] == CLOSED,
            is_application_limited: bytes[7] & APPLICATION_LIMITED != 0,
            segment_bytes: old(16),
            rtt_us: old(68),
            rtt_variance_us: old(72),
            threshold: old(76),
            window: old(80),
            segments_again: old(100),
            unacked_segments: old(24),
            sacked_segments: old(28),
            timeouts: bytes[2],
            probes: bytes[3],
            backoff: bytes[4],
            last_heard_ms: old(52).min(old(56)),
            last_ack_ms: old(56),
            bytes_acked: u64_at(bytes, 120),
            bytes_received: u64_at(bytes, 128),
            unsent: u32_at(bytes, 144),
            rtt_min_us: u32_at(bytes, 148).filter(|rtt| *rtt != NO_RTT),
            segments_sent: u32_at(bytes, 156),
            delivery_rate: u64_at(bytes, 160),
            busy_us: u64_at(bytes, 168),
            receiver_limited_us: u64_at(bytes, 176),
            buffer_limited_us: u64_at(bytes, 184),
            bytes_again: u64_at(bytes, 208),
            peer_window: u32_at(bytes, 228),
        })
    }
}

/// What the kernel knows of a TCP connection.
///
/// # Errors
/// As getsockopt(2): EOPNOTSUPP or ENOPROTOOPT on a socket that is not TCP.
pub fn tcp_info(fd: impl AsFd) -> io::Result<TcpInfo> {
    let mut bytes = [0u8; BYTES];
    let length = get_option(fd, libc::IPPROTO_TCP, libc::TCP_INFO, &mut bytes)?;
    TcpInfo::decode(&bytes[..length])
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "TCP_INFO is short"))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn it_lies_where_the_kernel_puts_it() {
        use std::mem::offset_of;
        assert_eq!(offset_of!(libc::tcp_info, tcpi_state), 0);
        assert_eq!(offset_of!(libc::tcp_info, tcpi_snd_mss), 16);
        assert_eq!(offset_of!(libc::tcp_info, tcpi_probes), 3);
        assert_eq!(offset_of!(libc::tcp_info, tcpi_unacked), 24);
        assert_eq!(offset_of!(libc::tcp_info, tcpi_sacked), 28);
        assert_eq!(offset_of!(libc::tcp_info, tcpi_last_data_recv), 52);
        assert_eq!(offset_of!(libc::tcp_info, tcpi_last_ack_recv), 56);
        assert_eq!(offset_of!(libc::tcp_info, tcpi_rtt), 68);
        assert_eq!(offset_of!(libc::tcp_info, tcpi_snd_ssthresh), 76);
        assert_eq!(offset_of!(libc::tcp_info, tcpi_snd_cwnd), 80);
        assert_eq!(offset_of!(libc::tcp_info, tcpi_total_retrans), 100);
    }

    #[test]
    fn an_older_kernel_gives_less() {
        assert_eq!(TcpInfo::decode(&[0; BYTES_MIN - 1]), None);
        let of_4_6 = TcpInfo::decode(&[1; 160]).unwrap();
        assert_eq!(of_4_6.rtt_min_us, Some(0x0101_0101));
        assert_eq!((of_4_6.delivery_rate, of_4_6.busy_us), (None, None));
        let of_4_10 = TcpInfo::decode(&[1; 192]).unwrap();
        assert!(of_4_10.buffer_limited_us.is_some() && of_4_10.bytes_again.is_none());
        let before_any = TcpInfo::decode(&[0xff; 192]).unwrap();
        assert_eq!(before_any.rtt_min_us, None);
    }

    #[test]
    fn a_connection_of_this_kernel_has_all_of_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut far, _) = listener.accept().unwrap();
        near.write_all(&[7; 5000]).unwrap();
        let mut bytes = [0; 5000];
        far.read_exact(&mut bytes).unwrap();
        far.write_all(&[1]).unwrap();
        near.read_exact(&mut bytes[..1]).unwrap();
        let info = tcp_info(&near).unwrap();
        // 1 more: the SYN counts (RFC 4898's tcpEStatsAppHCThruOctetsAcked does not, the kernel does).
        assert!(matches!(info.bytes_acked, Some(5000 | 5001)), "{info:?}");
        assert!(info.window > 0 && info.segment_bytes > 500 && !info.is_closed, "{info:?}");
        if let Some(sent) = info.segments_sent {
            assert!(sent > 0 && info.rtt_min_us.is_some(), "{info:?}");
        }
        crate::dial::close_with_reset(far.into());
        near.read(&mut bytes).unwrap_err();
        assert!(tcp_info(&near).unwrap().is_closed);
    }

    #[test]
    fn a_socket_that_is_not_tcp_has_none() {
        let (one, _other) = UnixStream::pair().unwrap();
        assert!(tcp_info(&one).is_err());
    }
}
