//! Where in the running kernel's structures the programs read.

use hawser_sys::bpf::btf::{self, Btf};

use super::BypassError;

/// A function that makes an address readable, whatever is there (Linux 6.2).
const CAST: &str = "bpf_rdonly_cast";

/// Offsets in bytes, all from the beginning of a `tcp_sock` if nothing else is said: the structures
/// `sock_common`, `sock` and `inet_connection_sock` begin where it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kernel {
    /// Numbers of types in BTF.
    pub(super) cast: i32,
    pub(super) tcp_sock: i32,
    pub(super) list_head: i32,
    pub(super) epitem: i32,
    pub(super) cookie: i16,
    pub(super) state: i16,
    pub(super) protocol: i16,
    /// In `struct proto`.
    pub(super) pressure: i16,
    pub(super) layer: i16,
    pub(super) shutdown: i16,
    /// To `struct socket`, in that to `struct file`, in that the flags.
    pub(super) descriptor: i16,
    pub(super) file: i16,
    pub(super) flags: i16,
    /// In `struct file`, to the list of what epoll has of it.
    pub(super) watches: i16,
    /// In `struct epitem`: its link in that list, and what is waited for.
    pub(super) link: i16,
    pub(super) event: i16,
    pub(super) queued: i16,
    pub(super) buffer: i16,
    pub(super) write_seq: i16,
    pub(super) snd_una: i16,
    pub(super) rcv_nxt: i16,
    pub(super) copied_seq: i16,
    pub(super) bytes_received: i16,
}

impl Kernel {
    /// Of the running one.
    pub(super) fn running() -> Result<Self, BypassError> {
        let bytes = btf::of_kernel().map_err(BypassError::NoBtf)?;
        Self::find(Btf::parse(&bytes).ok_or(BypassError::Btf("BTF"))?)
    }

    fn find(btf: Btf<'_>) -> Result<Self, BypassError> {
        let number = |found: Option<u32>| found.and_then(|number| i32::try_from(number).ok());
        let place = |what: &'static str, found: Option<u32>| {
            found.and_then(|bytes| i16::try_from(bytes).ok()).ok_or(BypassError::Btf(what))
        };
        let member = |what: &'static str| {
            let (structure, name) = what.split_once('.').unwrap_or_default();
            place(what, btf.member(structure, name))
        };
        Ok(Self {
            cast: number(btf.function(CAST)).ok_or(BypassError::NoHelper(CAST))?,
            tcp_sock: number(btf.structure("tcp_sock")).ok_or(BypassError::Btf("tcp_sock"))?,
            list_head: number(btf.structure("list_head")).ok_or(BypassError::Btf("list_head"))?,
            epitem: number(btf.structure("epitem")).ok_or(BypassError::Btf("epitem"))?,
            cookie: member("sock_common.skc_cookie")?,
            state: member("sock_common.skc_state")?,
            protocol: member("sock_common.skc_prot")?,
            pressure: member("proto.memory_pressure")?,
            layer: member("inet_connection_sock.icsk_ulp_ops")?,
            shutdown: member("sock.sk_shutdown")?,
            descriptor: member("sock.sk_socket")?,
            file: member("socket.file")?,
            flags: member("file.f_flags")?,
            watches: member("file.f_ep")?,
            link: member("epitem.fllink")?,
            event: member("epitem.event")?,
            queued: place(
                "sock.sk_backlog.rmem_alloc",
                btf.member_within("sock", "sk_backlog", "rmem_alloc"),
            )?,
            buffer: member("sock.sk_rcvbuf")?,
            write_seq: member("tcp_sock.write_seq")?,
            snd_una: member("tcp_sock.snd_una")?,
            rcv_nxt: member("tcp_sock.rcv_nxt")?,
            copied_seq: member("tcp_sock.copied_seq")?,
            bytes_received: member("tcp_sock.bytes_received")?,
        })
    }
}
