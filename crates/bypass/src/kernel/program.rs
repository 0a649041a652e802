//! The three programs, as instructions.
//!
//! # Model
//! ```text
//!   operations  a connection is made, or ends: into the maps, out of them
//!   messages    send(2) of a socket of the map: redirect or pass, by crate::rule
//!   options     kTLS is refused to sockets of the map
//! ```
//!
//! # Key
//! 48 bytes: the cookie of the network namespace, the own address, the other one (IPv6, or IPv4 as
//! `::ffff:a.b.c.d`, for one end may be an IPv4 socket and the other an IPv6 one), both ports. The key
//! of the peer is the same with the ends exchanged.
//!
//! # Why kTLS is refused
//! A socket that begins to decrypt in the kernel takes what waits in its queue of messages for
//! decrypted: bytes that were redirected before would reach its reader as they are. OpenSSL encrypts
//! by itself where the kernel does not.

use hawser_sys::bpf::instruction::{Assembly, Instruction, Label, Register, Register::*};

use super::types::Kernel;
use crate::rule::{QUEUED_BYTES_MAX, QUEUED_MESSAGES_MAX};

// include/uapi/linux/bpf.h: helpers
const MAP_LOOKUP_ELEM: i32 = 1;
const MAP_UPDATE_ELEM: i32 = 2;
const MAP_DELETE_ELEM: i32 = 3;
const GET_SOCKET_COOKIE: i32 = 46;
const SOCK_OPS_CB_FLAGS_SET: i32 = 59;
const SOCK_HASH_UPDATE: i32 = 70;
const MSG_REDIRECT_HASH: i32 = 71;
const GET_NETNS_COOKIE: i32 = 122;
const SKC_TO_TCP_SOCK: i32 = 137;

const ACTIVE_ESTABLISHED: i32 = 4;
const PASSIVE_ESTABLISHED: i32 = 5;
const STATE_CHANGES: i32 = 10;
const STATE_CHANGES_FLAG: i32 = 1 << 2;
const NOT_IF_THERE: i32 = 1;
const INGRESS: i32 = 1;
const SK_PASS: i32 = 1;

// include/net/tcp_states.h, include/uapi/linux/tcp.h, PAGE_SIZE of all machines at least
const TCP_ESTABLISHED: i32 = 1;
const TCP_CLOSE: i32 = 7;
const TCP_ULP: i32 = 31;
const OPTION_BYTES_MAX: i32 = 4096;

/// Numbers of an entry, and of the totals, 8 bytes each.
pub(super) mod number {
    pub(crate) const SOCKET: i16 = 0;
    pub(crate) const COOKIE: i16 = 8;
    pub(crate) const REDIRECTED: i16 = 16;
    pub(crate) const BYTES: i16 = 24;
    pub(crate) const FULL: i16 = 32;
    pub(crate) const UNREAD: i16 = 40;
    pub(crate) const OTHER: i16 = 48;
    pub(crate) const QUEUED: i16 = 56;
    /// Not 0: it reads until there is nothing, whatever its epoll tells it.
    pub(crate) const COMES_BACK: i16 = 64;
    /// Not 0: its program was started with `run --blocking`.
    pub(crate) const BLOCKING: i16 = 72;
    /// What the peer had read of TCP (32 bits) when it last sent; `NOT_SENT` before that.
    pub(crate) const PEER_READ: i16 = 80;
    pub(crate) const NOT_SENT: i32 = -1;
    /// Of the totals, in the place of `SOCKET`: connections that were not taken in because the end that
    /// connects waits.
    pub(crate) const NOT_TAKEN_IN: i16 = 0;
    /// Those of an entry that are added to the totals when it ends.
    pub(crate) const COUNTED: [i16; 5] = [REDIRECTED, BYTES, FULL, UNREAD, OTHER];
}
use number::*;

/// Where on the stack what is built.
const OWN: i16 = -48;
const PEER: i16 = -96;
const ENTRY: i16 = -184;
const WANTED: i16 = -200;
/// Within a key.
const NAMESPACE: i16 = 0;
const HERE: i16 = 8;
const THERE: i16 = 24;
const PORT_HERE: i16 = 40;
const PORT_THERE: i16 = 44;

/// Where a context has the two ends of a connection.
struct Ends {
    family: i16,
    here_v4: i16,
    there_v4: i16,
    here_v6: i16,
    there_v6: i16,
    port_here: i16,
    port_there: i16,
    /// Bits of the other port, in network order.
    port_bits: i32,
}

const OF_OPERATIONS: Ends = Ends {
    family: 20,
    there_v4: 24,
    here_v4: 28,
    there_v6: 32,
    here_v6: 48,
    port_there: 64,
    port_here: 68,
    port_bits: 32,
};
const OF_MESSAGES: Ends = Ends {
    family: 16,
    there_v4: 20,
    here_v4: 24,
    there_v6: 28,
    here_v6: 44,
    port_there: 60,
    port_here: 64,
    port_bits: 32,
};
/// `struct bpf_sock`, which options have.
const OF_SOCKETS: Ends = Ends {
    family: 4,
    here_v4: 24,
    here_v6: 28,
    port_here: 44,
    port_there: 48,
    there_v4: 52,
    there_v6: 56,
    port_bits: 16,
};
const OPERATIONS_SOCKET: i16 = 184;
const MESSAGES_SIZE: i16 = 68;
const MESSAGES_SOCKET: i16 = 72;

/// Descriptors of the maps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Maps {
    pub(super) sockets: i32,
    pub(super) entries: i32,
    pub(super) wanted: i32,
    pub(super) switch: i32,
    pub(super) totals: i32,
}

/// Which connections are taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Scope {
    /// All that are local, of a control group of programs.
    All,
    /// The same, also those whose ends wait.
    Blocking,
    /// Those to ports that are wanted, and those whose cookie is.
    Wanted,
}

/// The words of `::ffff:0:0/96` as they are in memory.
const MAPPED: i32 = 0xffff_u32.to_be() as i32;

/// Puts a key at `at`: of the own socket, or of its peer. `from` has the ends; R6 is the context.
fn key(a: &mut Assembly, at: i16, ends: &Ends, from: Register, of_peer: bool) {
    let (here, there) = if of_peer { (THERE, HERE) } else { (HERE, THERE) };
    let (port_here, port_there) =
        if of_peer { (PORT_THERE, PORT_HERE) } else { (PORT_HERE, PORT_THERE) };
    let [v4, ports] = [(); 2].map(|()| a.label());
    a.copy(R1, R6);
    a.call(GET_NETNS_COOKIE);
    a.store(R10, at + NAMESPACE, R0);
    a.load_32(R1, from, ends.family);
    a.if_equal_32(R1, libc::AF_INET, v4);
    for word in 0..4 {
        a.load_32(R1, from, ends.here_v6 + word * 4);
        a.store_32(R10, at + here + word * 4, R1);
        a.load_32(R1, from, ends.there_v6 + word * 4);
        a.store_32(R10, at + there + word * 4, R1);
    }
    a.go(ports);
    a.put(v4);
    for (place, address) in [(here, ends.here_v4), (there, ends.there_v4)] {
        a.set(R1, 0);
        a.store(R10, at + place, R1);
        a.set(R1, MAPPED);
        a.store_32(R10, at + place + 8, R1);
        a.load_32(R1, from, address);
        a.store_32(R10, at + place + 12, R1);
    }
    a.put(ports);
    a.load_32(R1, from, ends.port_here);
    a.store_32(R10, at + port_here, R1);
    if ends.port_bits == 16 {
        a.load_16(R1, from, ends.port_there);
    } else {
        a.load_32(R1, from, ends.port_there);
    }
    a.from_network(R1, ends.port_bits);
    a.store_32(R10, at + port_there, R1);
}

/// R0 = the element of a map with the key at `at`, or 0.
fn look_up(a: &mut Assembly, map: i32, at: i16) {
    call_with_key(a, map, at, MAP_LOOKUP_ELEM);
}

fn call_with_key(a: &mut Assembly, map: i32, at: i16, helper: i32) {
    a.map(R1, map);
    a.copy(R2, R10);
    a.add(R2, at.into());
    a.call(helper);
}

/// R0 = not 0 if the port that is connected to is wanted.
fn look_up_port(a: &mut Assembly, maps: Maps) {
    a.load(R1, R10, OWN + NAMESPACE);
    a.store(R10, WANTED, R1);
    a.load_32(R1, R10, OWN + PORT_THERE);
    a.store(R10, WANTED + 8, R1);
    look_up(a, maps.wanted, WANTED);
}

/// Goes on only if both ends of the own key are of this machine.
fn only_local(a: &mut Assembly, out: Label) {
    let [loopback, local] = [(); 2].map(|()| a.label());
    for half in [0, 8] {
        a.load(R1, R10, OWN + HERE + half);
        a.load(R2, R10, OWN + THERE + half);
        a.unless_same(R1, R2, loopback);
    }
    a.go(local);
    a.put(loopback);
    a.load_32(R1, R10, OWN + THERE + 8);
    a.unless_equal_32(R1, MAPPED, out);
    a.load_8(R1, R10, OWN + THERE + 12);
    a.unless_equal(R1, 127, out);
    a.put(local);
}

/// Goes on only if the descriptor of the socket in `socket` has O_NONBLOCK. It has no descriptor
/// before it is accepted: what is read there is 0.
fn only_without_waiting(a: &mut Assembly, kernel: &Kernel, socket: Register, out: Label) {
    a.load(R1, socket, kernel.descriptor);
    a.load(R1, R1, kernel.file);
    a.load_32(R1, R1, kernel.flags);
    a.and_32(R1, libc::O_NONBLOCK);
    a.if_equal(R1, 0, out);
}

/// Goes on only if a message wakes the reader in R8, whose entry is in R7: it never waits, or it is
/// allowed to and has sent something since it last read from TCP, so that it is not in the recv(2) that
/// did.
fn only_who_is_woken(a: &mut Assembly, kernel: &Kernel, maps: Maps, out: Label) {
    let [waits, woken] = [(); 2].map(|()| a.label());
    only_without_waiting(a, kernel, R8, waits);
    a.go(woken);
    a.put(waits);
    a.load(R1, R7, BLOCKING);
    a.if_equal(R1, 0, out);
    key(a, OWN, &OF_MESSAGES, R6, false);
    look_up(a, maps.entries, OWN);
    a.if_equal(R0, 0, out);
    a.load(R1, R0, PEER_READ);
    a.load_32(R2, R8, kernel.copied_seq);
    a.unless_same(R1, R2, out);
    a.put(woken);
}

/// Goes on only if the reader in R8, whose entry is in R7, comes back after a short read: it is
/// known to, or a level-triggered epoll watches its descriptor, or no epoll does though the reader
/// has read before: an edge-triggered reader has its descriptor watched by then. (All that TCP has
/// received is read where anything is redirected at all.)
fn only_who_comes_back(a: &mut Assembly, kernel: &Kernel, out: Label) {
    let [sure, unwatched] = [(); 2].map(|()| a.label());
    a.load(R1, R7, COMES_BACK);
    a.unless_equal(R1, 0, sure);
    a.load(R1, R8, kernel.descriptor);
    a.load(R1, R1, kernel.file);
    a.load(R1, R1, kernel.watches);
    a.if_equal(R1, 0, unwatched);
    // `hlist_head.first`, `hlist_node.next`
    a.load(R1, R1, 0);
    a.if_equal(R1, 0, unwatched);
    a.load(R2, R1, 0);
    a.unless_equal(R2, 0, out);
    a.add(R1, -i32::from(kernel.link));
    a.set(R2, kernel.epitem);
    a.call_kernel(kernel.cast);
    a.load_32(R1, R0, kernel.event);
    a.and_32(R1, libc::EPOLLET);
    a.unless_equal(R1, 0, out);
    a.go(sure);
    a.put(unwatched);
    a.load(R1, R8, kernel.bytes_received);
    a.if_equal(R1, 0, out);
    a.put(sure);
}

/// `place` of what `at` points to, and one more.
fn count(a: &mut Assembly, at: Register, place: i16) {
    a.load(R1, at, place);
    a.add(R1, 1);
    a.store(at, place, R1);
}

/// Whether the socket whose entry is built comes back after a short read.
fn note_comes_back(a: &mut Assembly, comes_back: i32) {
    a.set(R1, comes_back);
    a.store(R10, ENTRY + COMES_BACK, R1);
}

/// Takes connections in and out.
pub(super) fn operations(kernel: &Kernel, maps: Maps, scope: Scope) -> Option<Vec<Instruction>> {
    let mut a = Assembly::default();
    let [made, passive, active, waits, join, closed, out] = [(); 7].map(|()| a.label());
    a.copy(R6, R1);
    a.load_32(R8, R6, 0);
    a.if_equal_32(R8, STATE_CHANGES, closed);
    a.if_equal_32(R8, ACTIVE_ESTABLISHED, made);
    a.unless_equal_32(R8, PASSIVE_ESTABLISHED, out);
    a.put(made);
    a.map_value(R1, maps.switch, 0);
    a.load(R1, R1, 0);
    a.if_equal(R1, 0, out);
    key(&mut a, OWN, &OF_OPERATIONS, R6, false);
    only_local(&mut a, out);
    a.load(R1, R6, OPERATIONS_SOCKET);
    a.if_equal(R1, 0, out);
    a.call(SKC_TO_TCP_SOCK);
    a.if_equal(R0, 0, out);
    a.copy(R7, R0);
    a.load(R1, R7, kernel.layer);
    a.unless_equal(R1, 0, out);
    a.copy(R1, R6);
    a.call(GET_SOCKET_COOKIE);
    a.copy(R9, R0);
    note_comes_back(&mut a, 0);
    a.if_equal_32(R8, PASSIVE_ESTABLISHED, passive);
    if scope == Scope::Wanted {
        look_up_port(&mut a, maps);
        a.unless_equal(R0, 0, active);
        a.set(R1, 0);
        a.store(R10, WANTED, R1);
        a.store(R10, WANTED + 8, R9);
        // It is for one connection.
        call_with_key(&mut a, maps.wanted, WANTED, MAP_DELETE_ELEM);
        a.unless_equal(R0, 0, out);
        // Who names a socket is a pooler, which reads until there is nothing. A port says nothing of
        // who has it by now: what is accepted is marked one by one (`Bypass::reads_all`).
        note_comes_back(&mut a, 1);
    }
    a.put(active);
    if scope != Scope::Blocking {
        only_without_waiting(&mut a, kernel, R7, waits);
    }
    a.go(join);
    // The end that connects has been asked before: without it, this one is of no use here.
    a.put(passive);
    key(&mut a, PEER, &OF_OPERATIONS, R6, true);
    look_up(&mut a, maps.entries, PEER);
    a.if_equal(R0, 0, out);
    a.put(join);
    a.copy(R1, R6);
    a.map(R2, maps.sockets);
    a.copy(R3, R10);
    a.add(R3, OWN.into());
    a.set(R4, NOT_IF_THERE);
    a.call(SOCK_HASH_UPDATE);
    a.unless_equal(R0, 0, out);
    a.set(R1, 0);
    for place in [REDIRECTED, BYTES, FULL, UNREAD, OTHER, QUEUED] {
        a.store(R10, ENTRY + place, R1);
    }
    a.set(R1, (scope == Scope::Blocking).into());
    a.store(R10, ENTRY + BLOCKING, R1);
    a.set(R1, NOT_SENT);
    a.store(R10, ENTRY + PEER_READ, R1);
    a.store(R10, ENTRY + SOCKET, R7);
    a.store(R10, ENTRY + COOKIE, R9);
    a.map(R1, maps.entries);
    a.copy(R2, R10);
    a.add(R2, OWN.into());
    a.copy(R3, R10);
    a.add(R3, ENTRY.into());
    a.set(R4, 0);
    a.call(MAP_UPDATE_ELEM);
    // Those that others have asked for stay.
    a.load_32(R2, R6, 84);
    a.or(R2, STATE_CHANGES_FLAG);
    a.copy(R1, R6);
    a.call(SOCK_OPS_CB_FLAGS_SET);
    a.go(out);
    if scope != Scope::Blocking {
        a.put(waits);
        // The program of another control group may have taken it in.
        look_up(&mut a, maps.entries, OWN);
        a.unless_equal(R0, 0, out);
        a.map_value(R2, maps.totals, 0);
        a.set(R1, 1);
        a.atomic_add(R2, NOT_TAKEN_IN, R1);
        a.go(out);
    }
    a.put(closed);
    // The second argument: the new state.
    a.load_32(R1, R6, 8);
    a.unless_equal_32(R1, TCP_CLOSE, out);
    key(&mut a, OWN, &OF_OPERATIONS, R6, false);
    look_up(&mut a, maps.entries, OWN);
    a.if_equal(R0, 0, out);
    a.copy(R7, R0);
    a.copy(R1, R6);
    a.call(GET_SOCKET_COOKIE);
    a.load(R1, R7, COOKIE);
    a.unless_same(R0, R1, out);
    a.map_value(R1, maps.totals, 0);
    for place in COUNTED {
        a.load(R2, R7, place);
        a.atomic_add(R1, place, R2);
    }
    call_with_key(&mut a, maps.entries, OWN, MAP_DELETE_ELEM);
    a.put(out);
    a.set(R0, 1);
    a.exit();
    a.finish()
}

/// Decides about what is sent: [`crate::rule::decide`], in its order.
pub(super) fn messages(kernel: &Kernel, maps: Maps) -> Option<Vec<Instruction>> {
    let mut a = Assembly::default();
    let [unknown, other, unread, full, smaller, out] = [(); 6].map(|()| a.label());
    a.copy(R6, R1);
    a.map_value(R1, maps.switch, 0);
    a.load(R1, R1, 0);
    a.if_equal(R1, 0, unknown);
    key(&mut a, PEER, &OF_MESSAGES, R6, true);
    look_up(&mut a, maps.entries, PEER);
    a.if_equal(R0, 0, unknown);
    a.copy(R7, R0);
    a.load(R1, R6, MESSAGES_SOCKET);
    a.if_equal(R1, 0, other);
    a.call(SKC_TO_TCP_SOCK);
    a.if_equal(R0, 0, other);
    a.copy(R9, R0);
    a.load_32(R1, R9, kernel.copied_seq);
    a.store(R7, PEER_READ, R1);
    // Its memory may have been freed since: what is read there is checked, and does no harm.
    a.load(R1, R7, SOCKET);
    a.set(R2, kernel.tcp_sock);
    a.call_kernel(kernel.cast);
    a.copy(R8, R0);
    a.load(R1, R8, kernel.cookie);
    a.load(R2, R7, COOKIE);
    a.unless_same(R1, R2, other);
    for socket in [R8, R9] {
        a.load_8(R1, socket, kernel.state);
        a.unless_equal(R1, TCP_ESTABLISHED, other);
        a.load(R1, socket, kernel.layer);
        a.unless_equal(R1, 0, other);
    }
    a.load_8(R1, R8, kernel.shutdown);
    a.unless_equal(R1, 0, other);
    only_who_is_woken(&mut a, kernel, maps, other);
    only_who_comes_back(&mut a, kernel, other);
    a.load_32(R1, R9, kernel.write_seq);
    for (socket, place) in [(R9, kernel.snd_una), (R8, kernel.rcv_nxt), (R8, kernel.copied_seq)] {
        a.load_32(R2, socket, place);
        a.unless_same(R1, R2, unread);
    }
    only_with_memory(&mut a, kernel, full);
    only_with_room(&mut a, kernel, full, smaller);
    a.copy(R1, R6);
    a.map(R2, maps.sockets);
    a.copy(R3, R10);
    a.add(R3, PEER.into());
    a.set(R4, INGRESS);
    a.call(MSG_REDIRECT_HASH);
    // It says to drop what it cannot redirect.
    a.unless_equal(R0, SK_PASS, other);
    count(&mut a, R7, REDIRECTED);
    a.load_32(R2, R6, MESSAGES_SIZE);
    a.load(R1, R7, BYTES);
    a.add_register(R1, R2);
    a.store(R7, BYTES, R1);
    a.go(out);
    for (label, place) in [(full, FULL), (unread, UNREAD), (other, OTHER)] {
        a.put(label);
        count(&mut a, R7, place);
        a.go(out);
    }
    a.put(unknown);
    a.map_value(R2, maps.totals, 0);
    a.set(R1, 1);
    a.atomic_add(R2, OTHER, R1);
    a.put(out);
    a.set(R0, SK_PASS);
    a.exit();
    a.finish()
}

/// `tcp_memory_pressure`, by the way that each socket knows.
fn only_with_memory(a: &mut Assembly, kernel: &Kernel, full: Label) {
    a.load(R1, R8, kernel.protocol);
    a.load(R1, R1, kernel.pressure);
    // An address of a number: a structure that begins with one.
    a.set(R2, kernel.list_head);
    a.call_kernel(kernel.cast);
    a.load(R1, R0, 0);
    a.unless_equal(R1, 0, full);
}

/// The bounds of the reader's queue. The count of messages is kept before the message is redirected:
/// what is counted too often is passed.
fn only_with_room(a: &mut Assembly, kernel: &Kernel, full: Label, smaller: Label) {
    let waiting = a.label();
    a.load_32(R1, R8, kernel.queued);
    a.load(R2, R7, QUEUED);
    a.unless_equal(R1, 0, waiting);
    a.set(R2, 0);
    a.put(waiting);
    a.add(R2, 1);
    a.if_above(R2, QUEUED_MESSAGES_MAX as i32, full);
    a.load_32(R3, R6, MESSAGES_SIZE);
    a.add_register(R1, R3);
    a.load_32(R3, R8, kernel.buffer);
    a.shift_right(R3, 1);
    a.if_less(R3, QUEUED_BYTES_MAX as i32, smaller);
    a.set(R3, QUEUED_BYTES_MAX as i32);
    a.put(smaller);
    a.if_above_register(R1, R3, full);
    a.store(R7, QUEUED, R2);
}

/// Refuses kTLS to sockets of the map.
pub(super) fn options(maps: Maps) -> Option<Vec<Instruction>> {
    let mut a = Assembly::default();
    let [allowed, short] = [(); 2].map(|()| a.label());
    a.copy(R6, R1);
    a.load_32(R1, R6, 24);
    a.unless_equal_32(R1, libc::IPPROTO_TCP, allowed);
    a.load_32(R1, R6, 28);
    a.unless_equal_32(R1, TCP_ULP, allowed);
    a.load(R7, R6, 0);
    key(&mut a, OWN, &OF_SOCKETS, R7, false);
    look_up(&mut a, maps.entries, OWN);
    a.if_equal(R0, 0, allowed);
    // EPERM.
    a.set(R0, 0);
    a.exit();
    a.put(allowed);
    // Of a longer one only a page is here; 0 lets the kernel use the program's own bytes.
    a.load_32(R1, R6, 32);
    a.if_less(R1, OPTION_BYTES_MAX + 1, short);
    a.set(R1, 0);
    a.store_32(R6, 32, R1);
    a.put(short);
    a.set(R0, 1);
    a.exit();
    a.finish()
}

// Of a machine with the least byte first: others lay out the same memory the other way.
#[cfg(all(test, target_endian = "little"))]
mod tests;
