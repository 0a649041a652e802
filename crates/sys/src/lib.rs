//! System calls that Hawser makes, each with its error and its minimum kernel version; and what else it
//! asks of the operating system: control groups, units of systemd, a terminal.
//!
//! The only crate in which `unsafe` may stand; each block says why it is sound. What the standard
//! library does well is not here, e.g. the number of processors
//! ([`std::thread::available_parallelism`] respects affinity and cgroup quotas).

pub mod bpf;
pub mod cgroup;
pub mod clock;
pub mod congestion;
pub mod dial;
pub mod epoll;
pub mod eventfd;
pub mod exclusive;
pub mod interfaces;
pub mod ktls;
pub mod listen;
pub mod memory;
pub mod mptcp;
pub mod names;
pub mod namespace;
pub mod netlink;
pub mod packets;
pub mod pam;
pub mod pass;
pub mod precision;
pub mod process;
pub mod programs;
pub mod random;
pub mod rtnetlink;
pub mod seccomp;
pub mod shared;
pub mod stream;
pub mod tcp_info;
pub mod terminal;
pub mod tun;
pub mod unit;
