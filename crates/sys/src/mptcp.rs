//! Multipath TCP: one connection over several TCP connections, its subflows (RFC 8684).
//!
//! # Model
//! ```text
//!   application ── MPTCP socket (token) ── subflow (TCP) ── address pair 1
//!                                       ├─ subflow (TCP) ── address pair 2
//!   path manager: opens subflows ◄── endpoints, limits (of the network namespace)
//! ```
//! * [`endpoint`]: the in-kernel path manager's configuration, over netlink
//! * [`event`]: what it tells
//! * [`subflow`]: what one in userspace tells the kernel
//! * [`diagnosis`]: every MPTCP connection and its subflows, over sock_diag
//! * [`socket`]: sockets of this process; [`replace`]: plain TCP in place of one
//! * [`watch`]: an end to connections whose peer is gone
//! * [`kernel`]: what this kernel can, and its sysctls
//!
//! # Limits
//! Linux 5.6; several subflows from 5.7; [`socket::info`] from 5.16. Numbers are those of
//! include/uapi/linux/mptcp.h and mptcp_pm.h, which libc does not have.

#[cfg(test)]
mod captured;
pub mod diagnosis;
pub mod endpoint;
pub mod event;
pub mod information;
pub mod kernel;
pub mod replace;
pub mod socket;
pub mod subflow;
pub mod watch;

/// `IPPROTO_MPTCP` (include/uapi/linux/in.h).
pub const PROTOCOL: i32 = 262;

/// The number of a connection at this end (`mptcpi_token`, RFC 8684 section 3.2): unique in a
/// network namespace while the connection lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u32);
