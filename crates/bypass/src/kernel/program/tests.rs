//! The program of messages, run as the kernel runs it, against the rule on
//! generated states; and keys.

use std::collections::BTreeMap;

use super::*;
use crate::rule::{Machine, Reader, Reason, Sender, Verdict, decide, messages_with};

const KERNEL: Kernel = Kernel {
    cast: 900,
    tcp_sock: 901,
    list_head: 902,
    epitem: 903,
    cookie: 8,
    state: 18,
    protocol: 24,
    pressure: 40,
    layer: 48,
    shutdown: 56,
    descriptor: 64,
    file: 16,
    flags: 72,
    watches: 32,
    link: 48,
    event: 64,
    queued: 80,
    buffer: 84,
    write_seq: 100,
    snd_una: 104,
    rcv_nxt: 108,
    copied_seq: 112,
    bytes_received: 120,
};
const MAPS: Maps = Maps { sockets: 3, entries: 4, wanted: 5, switch: 6, totals: 7 };

// Addresses, each with its KiB.
const CONTEXT: u64 = 0x1_0000;
const OWN_SOCKET: u64 = 0x2_0000;
const PEER_SOCKET: u64 = 0x3_0000;
const DESCRIPTOR: u64 = 0x4_0000;
const FILE: u64 = 0x5_0000;
const PROTOCOL: u64 = 0x6_0000;
const PRESSURE: u64 = 0x7_0000;
const ENTRY_VALUE: u64 = 0x8_0000;
const OWN_ENTRY: u64 = 0x8_1000;
const SWITCH_VALUE: u64 = 0x9_0000;
const TOTALS_VALUE: u64 = 0xa_0000;
const WATCHES: u64 = 0xb_0000;
const WATCH: u64 = 0xb_1000;
const STACK_END: u64 = 0xc_0000;

const OWN_PORT: u64 = 5432;

/// Memory by bytes; what was never written is 0, as what cannot be read is.
#[derive(Clone, Default)]
struct Memory(BTreeMap<u64, u8>);

impl Memory {
    fn read(&self, at: u64, bytes: usize) -> u64 {
        let byte = |n: usize| self.0.get(&(at + n as u64)).copied().unwrap_or(0);
        (0..bytes).map(|n| u64::from(byte(n)) << (8 * n)).sum()
    }

    fn write(&mut self, at: u64, bytes: usize, value: u64) {
        for (n, byte) in value.to_le_bytes()[..bytes].iter().enumerate() {
            self.0.insert(at + n as u64, *byte);
        }
    }
}

/// What a run has done.
#[derive(Default)]
struct Ran {
    memory: Memory,
    redirected_to: Option<Vec<u8>>,
    result: u64,
}

/// `listed`: whether the entry of the peer is there; `can`: whether the helper can redirect.
fn run(program: &[Instruction], memory: Memory, listed: bool, can: bool) -> Ran {
    let mut ran = Ran { memory, ..Ran::default() };
    let mut registers = [0u64; 11];
    (registers[1], registers[10]) = (CONTEXT, STACK_END);
    let mut at = 0;
    for _ in 0..10_000 {
        let Instruction { code, registers: pair, offset, immediate } = program[at];
        let (to, from) = (usize::from(pair & 0xf), usize::from(pair >> 4));
        let value = i64::from(immediate) as u64;
        let place = |register: usize| registers[register].wrapping_add(i64::from(offset) as u64);
        at += 1;
        let mut holds = false;
        match code {
            0x95 => {
                ran.result = registers[0];
                return ran;
            }
            0xbf => registers[to] = registers[from],
            0xb7 => registers[to] = value,
            0x07 => registers[to] = registers[to].wrapping_add(value),
            0x0f => registers[to] = registers[to].wrapping_add(registers[from]),
            0x54 => registers[to] &= u64::from(immediate as u32),
            0x77 => registers[to] >>= value,
            0xdc if immediate == 32 => {
                registers[to] = u64::from((registers[to] as u32).swap_bytes());
            }
            0x71 => registers[to] = ran.memory.read(place(from), 1),
            0x69 => registers[to] = ran.memory.read(place(from), 2),
            0x61 => registers[to] = ran.memory.read(place(from), 4),
            0x79 => registers[to] = ran.memory.read(place(from), 8),
            0x63 => ran.memory.write(place(to), 4, registers[from]),
            0x7b => ran.memory.write(place(to), 8, registers[from]),
            0xdb => {
                let sum = ran.memory.read(place(to), 8) + registers[from];
                ran.memory.write(place(to), 8, sum);
            }
            0x18 => {
                registers[to] = match (from, immediate) {
                    (2, 6) => SWITCH_VALUE,
                    (2, 7) => TOTALS_VALUE,
                    (1, map) => map as u64,
                    other => panic!("{other:?}"),
                };
                at += 1;
            }
            0x85 if from == 2 => {
                assert_eq!(immediate, KERNEL.cast);
                registers[0] = registers[1];
                registers[1..6].fill(0xdead);
            }
            0x85 => {
                registers[0] = match immediate {
                    GET_NETNS_COOKIE => 77,
                    MAP_LOOKUP_ELEM if registers[1] == MAPS.entries as u64 && listed => {
                        let port_here = ran.memory.read(registers[2] + PORT_HERE as u64, 4);
                        if port_here == OWN_PORT { OWN_ENTRY } else { ENTRY_VALUE }
                    }
                    MAP_LOOKUP_ELEM => 0,
                    SKC_TO_TCP_SOCK => registers[1],
                    MSG_REDIRECT_HASH if can => {
                        assert_eq!(registers[2], MAPS.sockets as u64);
                        let key = registers[3];
                        let byte = |n| ran.memory.read(key + n, 1) as u8;
                        ran.redirected_to = Some((0..48).map(byte).collect());
                        1
                    }
                    MSG_REDIRECT_HASH => 0,
                    helper => panic!("{helper}"),
                };
                registers[1..6].fill(0xdead);
            }
            0x05 => holds = true,
            0x16 => holds = registers[to] as u32 == immediate as u32,
            0x56 => holds = registers[to] as u32 != immediate as u32,
            0x15 => holds = registers[to] == value,
            0x55 => holds = registers[to] != value,
            0xa5 => holds = registers[to] < value,
            0x25 => holds = registers[to] > value,
            0x2d => holds = registers[to] > registers[from],
            0x5d => holds = registers[to] != registers[from],
            code => panic!("{code:#x}"),
        }
        if holds {
            at = at.wrapping_add_signed(offset.into());
        }
    }
    panic!("it does not end")
}

struct Random(u64);

impl Random {
    fn below(&mut self, most: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 16) % most
    }

    /// Mostly yes, so that every further condition is reached.
    fn mostly(&mut self) -> bool {
        self.below(12) > 0
    }
}

fn sockets(random: &mut Random) -> (Machine, u64, Sender, Reader) {
    let next = random.below(1 << 32) as u32;
    let near = |random: &mut Random| {
        if random.mostly() { next } else { next.wrapping_sub(1 + random.below(70_000) as u32) }
    };
    let machine = Machine { enabled: random.mostly(), short_of_memory: !random.mostly() };
    let sender = Sender {
        established: random.mostly(),
        layered: !random.mostly(),
        write_seq: next,
        snd_una: near(random),
    };
    let buffer_bytes = [4_096, 131_072, 6 << 20][random.below(3) as usize];
    let reader = Reader {
        same: random.mostly(),
        established: random.mostly(),
        open: random.mostly(),
        layered: !random.mostly(),
        is_woken: random.mostly(),
        comes_back: random.mostly(),
        rcv_nxt: near(random),
        copied_seq: near(random),
        queued_bytes: if random.below(3) == 0 { 0 } else { random.below(300_000) },
        queued_messages: random.below(160),
        buffer_bytes,
    };
    let most = [100, 70_000, 300_000][random.below(3) as usize];
    (machine, 1 + random.below(most), sender, reader)
}

/// A state as the kernel has it.
fn laid_out(machine: Machine, size: u64, sender: Sender, reader: Reader) -> Memory {
    let mut memory = Memory::default();
    let mut write = |at: u64, offset: i16, bytes, value| {
        memory.write(at + offset as u64, bytes, value);
    };
    let state = |established| if established { 1 } else { 8 };
    write(SWITCH_VALUE, 0, 8, machine.enabled.into());
    write(PRESSURE, 0, 8, machine.short_of_memory.into());
    write(CONTEXT, OF_MESSAGES.family, 4, libc::AF_INET as u64);
    write(CONTEXT, OF_MESSAGES.here_v4, 4, u32::from_ne_bytes([127, 0, 0, 1]).into());
    write(CONTEXT, OF_MESSAGES.there_v4, 4, u32::from_ne_bytes([127, 0, 0, 9]).into());
    write(CONTEXT, OF_MESSAGES.port_here, 4, OWN_PORT);
    write(CONTEXT, OF_MESSAGES.port_there, 4, u64::from(40_000_u32.to_be()));
    write(CONTEXT, MESSAGES_SIZE, 4, size);
    write(CONTEXT, MESSAGES_SOCKET, 8, OWN_SOCKET);
    write(OWN_SOCKET, KERNEL.state, 1, state(sender.established));
    write(OWN_SOCKET, KERNEL.layer, 8, u64::from(sender.layered) * 0xffff);
    write(OWN_SOCKET, KERNEL.write_seq, 4, sender.write_seq.into());
    write(OWN_SOCKET, KERNEL.snd_una, 4, sender.snd_una.into());
    write(PEER_SOCKET, KERNEL.cookie, 8, 4711);
    write(PEER_SOCKET, KERNEL.state, 1, state(reader.established));
    write(PEER_SOCKET, KERNEL.layer, 8, u64::from(reader.layered) * 0xffff);
    write(PEER_SOCKET, KERNEL.shutdown, 1, u64::from(!reader.open) * 2);
    write(PEER_SOCKET, KERNEL.descriptor, 8, DESCRIPTOR);
    write(PEER_SOCKET, KERNEL.rcv_nxt, 4, reader.rcv_nxt.into());
    write(PEER_SOCKET, KERNEL.copied_seq, 4, reader.copied_seq.into());
    write(PEER_SOCKET, KERNEL.queued, 4, reader.queued_bytes);
    write(PEER_SOCKET, KERNEL.buffer, 4, reader.buffer_bytes);
    write(PEER_SOCKET, KERNEL.protocol, 8, PROTOCOL);
    write(PROTOCOL, KERNEL.pressure, 8, PRESSURE);
    write(DESCRIPTOR, KERNEL.file, 8, FILE);
    let read = u64::from(reader.copied_seq);
    // Without O_NONBLOCK: what its program may, and what it had read when it last sent.
    let (flags, blocking, peer_read) = match (reader.is_woken, size / 4 % 3) {
        (true, 0) => (libc::O_NONBLOCK as u64, 0, NOT_SENT as u64),
        (true, _) => (0, 1, read),
        (false, 0) => (0, 0, read),
        (false, 1) => (0, 1, read ^ 1),
        (false, _) => (0, 1, NOT_SENT as u64),
    };
    write(FILE, KERNEL.flags, 4, 2 | flags);
    write(ENTRY_VALUE, BLOCKING, 8, blocking);
    write(OWN_ENTRY, PEER_READ, 8, peer_read);
    write(OWN_SOCKET, KERNEL.copied_seq, 4, 4242);
    let link = WATCH + KERNEL.link as u64;
    let edges = libc::EPOLLIN as u64 | u64::from(libc::EPOLLET as u32);
    // No epoll, none any more, a level-triggered one, an edge-triggered one, and several.
    let (list, first, events, next, known, received) = match (reader.comes_back, size % 4) {
        (true, 0) => (0, link, edges, 0, 0, 1),
        (true, 1) => (WATCHES, 0, edges, 0, 0, 1 << 40),
        (true, 2) => (WATCHES, link, libc::EPOLLIN as u64, 0, 0, 0),
        (true, _) => (WATCHES, link, edges, 0, 1, 0),
        (false, 0) => (WATCHES, link, libc::EPOLLIN as u64, 0xffff, 0, 1),
        (false, 1) => (0, link, edges, 0, 0, 0),
        (false, 2) => (WATCHES, 0, edges, 0, 0, 0),
        (false, _) => (WATCHES, link, edges, 0, 0, 1),
    };
    write(PEER_SOCKET, KERNEL.bytes_received, 8, received);
    write(FILE, KERNEL.watches, 8, list);
    write(WATCHES, 0, 8, first);
    write(link, 0, 8, next);
    write(WATCH, KERNEL.event, 4, events);
    write(ENTRY_VALUE, COMES_BACK, 8, known);
    write(ENTRY_VALUE, SOCKET, 8, PEER_SOCKET);
    write(ENTRY_VALUE, COOKIE, 8, if reader.same { 4711 } else { 4712 });
    write(ENTRY_VALUE, QUEUED, 8, reader.queued_messages);
    memory
}

fn counted(memory: &Memory, at: u64) -> [u64; 5] {
    COUNTED.map(|place| memory.read(at + place as u64, 8))
}

#[test]
fn the_program_decides_as_the_rule_does() {
    let program = messages(&KERNEL, MAPS).unwrap();
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let mut seen = [0; 4];
    for number in 0..20_000 {
        let (machine, size, sender, reader) = sockets(&mut random);
        let listed = random.mostly();
        let verdict = decide(machine, size, sender, listed.then_some(reader));
        let memory = laid_out(machine, size, sender, reader);
        let ran = run(&program, memory, listed, true);
        let what = format!("{number}: {machine:?} {size} {sender:?} {reader:?}");
        assert_eq!(ran.result, SK_PASS as u64, "{what}");
        assert_eq!(ran.redirected_to.is_some(), verdict == Verdict::Redirect, "{what}");
        let expected = match verdict {
            Verdict::Redirect => [1, size, 0, 0, 0],
            Verdict::Pass(Reason::Full) => [0, 0, 1, 0, 0],
            Verdict::Pass(Reason::Unread) => [0, 0, 0, 1, 0],
            Verdict::Pass(Reason::Other) => [0, 0, 0, 0, 1],
        };
        let of = if listed && machine.enabled { ENTRY_VALUE } else { TOTALS_VALUE };
        assert_eq!(counted(&ran.memory, of), expected, "{what}");
        if listed && machine.enabled {
            assert_eq!(ran.memory.read(ENTRY_VALUE + PEER_READ as u64, 8), 4242, "{what}");
        }
        let queued = ran.memory.read(ENTRY_VALUE + QUEUED as u64, 8);
        let now = if verdict == Verdict::Redirect {
            messages_with(reader)
        } else {
            reader.queued_messages
        };
        assert_eq!(queued, now, "{what}");
        seen[match verdict {
            Verdict::Redirect => 0,
            Verdict::Pass(reason) => 1 + reason as usize,
        }] += 1;
    }
    assert!(seen.iter().all(|count| *count > 500), "{seen:?}");
}

fn good() -> (Machine, u64, Sender, Reader) {
    let machine = Machine { enabled: true, short_of_memory: false };
    let sender = Sender { established: true, layered: false, write_seq: 9, snd_una: 9 };
    let reader = Reader {
        same: true,
        established: true,
        open: true,
        layered: false,
        is_woken: true,
        comes_back: true,
        rcv_nxt: 9,
        copied_seq: 9,
        queued_bytes: 0,
        queued_messages: 0,
        buffer_bytes: 1 << 17,
    };
    (machine, 100, sender, reader)
}

#[test]
fn the_helper_s_verdict_to_drop_is_never_given() {
    let (machine, size, sender, reader) = good();
    let program = messages(&KERNEL, MAPS).unwrap();
    let ran = run(&program, laid_out(machine, size, sender, reader), true, false);
    assert_eq!(ran.result, SK_PASS as u64);
    assert_eq!(counted(&ran.memory, ENTRY_VALUE), [0, 0, 0, 0, 1]);
}

#[test]
fn an_entry_without_its_socket_is_read_as_zeros_and_passed() {
    let (machine, size, sender, reader) = good();
    let program = messages(&KERNEL, MAPS).unwrap();
    let mut memory = laid_out(machine, size, sender, reader);
    memory.write(ENTRY_VALUE + SOCKET as u64, 8, 0xdead_0000);
    let ran = run(&program, memory, true, true);
    assert!(ran.redirected_to.is_none());
}

#[test]
fn the_key_of_the_peer_has_the_ends_exchanged_and_ipv4_in_ipv6() {
    let (machine, size, sender, reader) = good();
    let program = messages(&KERNEL, MAPS).unwrap();
    let ran = run(&program, laid_out(machine, size, sender, reader), true, true);
    let mapped = |last: u8| [[0; 10].as_slice(), &[0xff, 0xff, 127, 0, 0, last]].concat();
    let ports = [40_000_u32.to_le_bytes(), 5432_u32.to_le_bytes()].concat();
    let expected = [77_u64.to_le_bytes().to_vec(), mapped(9), mapped(1), ports].concat();
    assert_eq!(ran.redirected_to.unwrap(), expected);
}
