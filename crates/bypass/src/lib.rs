//! The local bypass: TCP connections between two programs of one host go past the TCP/IP stack.
//!
//! A program and its server on one machine exchange bytes from socket to socket, in less processor time,
//! and neither is changed or told. Programs of the kernel (BPF) do it, in front of send(2); what they are not
//! certain of goes over TCP as before.
//!
//! ```text
//!   hawser bypass run -- COMMAND ──► run::run ────────► cgroup hawser-bypass/run-PID ─┐
//!   hawser serve, [bypass] ────────► pooler::Pooler ──► its ports, its connections ───┤
//!   hawser bypass selftest ────────► selftest::test                                   ▼
//!                                        │             place::ready ──► kernel::Bypass, pinned in bpffs
//!                                        └─ first, before anything goes past TCP          │
//!                                                       send(2) ──► kernel::program ──────┘
//!                                                                   = rule::decide, as instructions
//! ```
//! Begin at [`rule`]: it is a pure function, with the reasons. [`kernel`] is the same as programs of the
//! kernel and their maps; its tests run the instructions beside the rule. [`place`] is where all is:
//! control groups, pins, the lock. What the command line and the pooler call is [`run`], [`selftest`],
//! [`pooler`] and a few functions of [`place`].

pub mod kernel;
pub mod place;
pub mod pooler;
pub mod rule;
pub mod run;
pub mod selftest;
