//! The program, run as the kernel runs it, and what is said of errors.

use std::collections::BTreeMap;

use super::*;

const KERNEL: Kernel =
    Kernel { function: 1, proxy: 1840, network: 40, cookie: 4160, environment: Some(ENVIRONMENT) };
const ENVIRONMENT: Environment = Environment { memory: 2512, begin: 400, end: 408 };
const NAMESPACE: u64 = 77;

/// Runs the program as the kernel does: `path` are the cgroups of the thread, from the root.
struct Machine<'a> {
    arguments: [u64; 3],
    namespace: u64,
    path: &'a [u64],
    map: BTreeMap<[u64; 2], u64>,
    /// Its bytes; `None`: a thread of the kernel's.
    environment: Option<&'a [u8]>,
}

/// Addresses in it.
const ARGUMENTS: u64 = 0x1000;
const TASK: u64 = 0x10_0000;
const PROXY: u64 = 0x20_0000;
const NETWORK: u64 = 0x30_0000;
const STACK_END: u64 = 0x40_0000;
const ELEMENT: u64 = 0x50_0000;
const MEMORY: u64 = 0x60_0000;
const TEXTS: u64 = 0x70_0000;
const STACK_BYTES: u64 = 128;

impl Machine<'_> {
    fn run(&mut self) -> u64 {
        let program = KERNEL.program(9).unwrap();
        let (mut registers, mut found) = ([0u64; 11], None);
        let mut stack = [0u8; STACK_BYTES as usize];
        let at_stack = |place: u64| (place - (STACK_END - STACK_BYTES)) as usize;
        let of_stack = STACK_END - STACK_BYTES..STACK_END;
        registers[1] = ARGUMENTS;
        registers[10] = STACK_END;
        let mut at = 0;
        for _ in 0..100_000 {
            let Instruction { code, registers: pair, offset, immediate } = program[at];
            let (to, from) = (usize::from(pair & 0xf), usize::from(pair >> 4));
            let value = immediate as i64 as u64;
            at += 1;
            let holds = match code {
                0x95 => return registers[0],
                0xbf => return_none(|| registers[to] = registers[from]),
                0xb7 => return_none(|| registers[to] = value),
                0x07 => return_none(|| registers[to] = registers[to].wrapping_add(value)),
                0x54 => return_none(|| registers[to] &= u64::from(immediate as u32)),
                0x79 => {
                    let place = registers[from].wrapping_add(offset as i64 as u64);
                    registers[to] = if of_stack.contains(&place) {
                        u64::from_ne_bytes(*stack[at_stack(place)..].first_chunk().unwrap())
                    } else {
                        self.word(place)
                    };
                    false
                }
                0x69 => {
                    let place = registers[from].wrapping_add(offset as i64 as u64);
                    let bytes = *stack[at_stack(place)..].first_chunk().unwrap();
                    return_none(|| registers[to] = u16::from_ne_bytes(bytes).into())
                }
                0x0f => return_none(|| registers[to] = registers[to].wrapping_add(registers[from])),
                0x7b => {
                    let place = registers[to].wrapping_add(offset as i64 as u64);
                    let bytes = registers[from].to_ne_bytes();
                    stack[at_stack(place)..][..8].copy_from_slice(&bytes);
                    false
                }
                0xdb => {
                    assert_eq!(registers[to], ELEMENT);
                    *self.map.get_mut(&found.unwrap()).unwrap() += registers[from];
                    false
                }
                0x18 if from == 0 => {
                    let upper = program[at].immediate as u32;
                    at += 1;
                    registers[to] = u64::from(immediate as u32) | u64::from(upper) << 32;
                    false
                }
                0x18 => {
                    assert_eq!((from, immediate), (1, 9));
                    at += 1;
                    false
                }
                0x85 => {
                    registers[0] = match immediate {
                        GET_CURRENT_TASK_BTF => TASK,
                        GET_CURRENT_ANCESTOR_CGROUP_ID => {
                            self.path.get(registers[1] as usize).copied().unwrap_or(0)
                        }
                        MAP_LOOKUP_ELEM => {
                            assert_eq!(registers[2], STACK_END - 16);
                            let word =
                                |at: usize| u64::from_ne_bytes(*stack[at..].first_chunk().unwrap());
                            let key = [word(stack.len() - 16), word(stack.len() - 8)];
                            found = self.map.contains_key(&key).then_some(key);
                            if found.is_some() { ELEMENT } else { 0 }
                        }
                        PROBE_READ_USER_STR => {
                            let texts = self.environment.unwrap();
                            let rest = &texts[(registers[3] - TEXTS) as usize..];
                            let room = &mut stack[at_stack(registers[1])..];
                            read_text(rest, &mut room[..registers[2] as usize])
                        }
                        helper => panic!("{helper}"),
                    };
                    registers[1..6].fill(0xdead);
                    false
                }
                0x16 => registers[to] as u32 == immediate as u32,
                0x56 => registers[to] as u32 != immediate as u32,
                0x15 => registers[to] == value,
                0xa5 => registers[to] < value,
                0x25 => registers[to] > value,
                0xc5 => (registers[to] as i64) < value as i64,
                0x3d => registers[to] >= registers[from],
                0x5d => registers[to] != registers[from],
                code => panic!("{code:#x}"),
            };
            if holds {
                at = at.wrapping_add_signed(offset.into());
            }
        }
        panic!("it does not end")
    }

    fn word(&self, place: u64) -> u64 {
        match place {
            ARGUMENTS..TASK => self.arguments[((place - ARGUMENTS) / 8) as usize],
            _ if place == TASK + 1840 => PROXY,
            _ if place == PROXY + 40 => NETWORK,
            _ if place == NETWORK + 4160 => self.namespace,
            _ if place == TASK + 2512 => self.environment.map_or(0, |_| MEMORY),
            _ if place == MEMORY + 400 => TEXTS,
            _ if place == MEMORY + 408 => TEXTS + self.environment.unwrap().len() as u64,
            _ => panic!("{place:#x}"),
        }
    }
}

/// As bpf_probe_read_user_str(): what fits with a zero after it; of an empty text, not even that
/// counts.
fn read_text(from: &[u8], room: &mut [u8]) -> u64 {
    let length = from.iter().position(|byte| *byte == 0).unwrap();
    if length == 0 {
        return 0;
    }
    let fits = length.min(room.len() - 1);
    room[..fits].copy_from_slice(&from[..fits]);
    room[fits] = 0;
    fits as u64 + 1
}

fn return_none(step: impl FnOnce()) -> bool {
    step();
    false
}

fn asked(arguments: [i32; 3], namespace: u64, path: &[u64]) -> (u64, u64) {
    let arguments = arguments.map(|number| u64::from(number as u32));
    let map = BTreeMap::from([([5, NAMESPACE], 0)]);
    let environment = Some(&b"PATH=/bin\0PGMPTCP=1\0"[..]);
    let mut machine = Machine { arguments, namespace, path, map, environment };
    let result = machine.run();
    (result, machine.map[&[5, NAMESPACE]])
}

#[test]
fn tcp_sockets_of_the_cgroup_and_what_is_below_it_are_mptcp_ones() {
    for family in [libc::AF_INET, libc::AF_INET6] {
        for flags in [0, libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK] {
            for protocol in [0, libc::IPPROTO_TCP] {
                for path in [&[1, 5][..], &[1, 5, 9], &[1, 2, 3, 5]] {
                    let kind = libc::SOCK_STREAM | flags;
                    assert_eq!(asked([family, kind, protocol], NAMESPACE, path), (262, 1));
                }
            }
        }
    }
}

#[test]
fn pgmptcp_0_turns_it_off_wherever_it_stands_and_nothing_else_does() {
    let with = |environment: Option<&[u8]>| {
        let arguments = [libc::AF_INET, libc::SOCK_STREAM, 0].map(|number| number as u64);
        let map = BTreeMap::from([([5, NAMESPACE], 0)]);
        let path = &[1, 5];
        Machine { arguments, namespace: NAMESPACE, path, map, environment }.run()
    };
    assert_eq!(with(None), 262, "a thread of the kernel's");
    assert_eq!(with(Some(b"")), 262);
    assert_eq!(with(Some(b"PGMPTCP=0\0")), 0);
    for other in [&b"PGMPTCP=00\0"[..], b"PGMPTCP=\0", b"XPGMPTCP=0\0", b"PGMPTCP=1\0", b"\0\0"] {
        assert_eq!(with(Some(other)), 262, "{other:?}");
    }
    // Texts are read in pieces of 63 bytes.
    for length in (0..200).chain([15_000]) {
        let long = vec![b'x'; length];
        let before = [&long[..], b"\0PGMPTCP=0\0"].concat();
        assert_eq!(with(Some(&before)), 0, "{length}");
        let within = [&long[..], b"xPGMPTCP=0\0"].concat();
        assert_eq!(with(Some(&within)), 262, "{length}");
    }
    let many = b"A=1\0".repeat(PIECES_MAX as usize);
    assert_eq!(with(Some(&[&many[4..], b"PGMPTCP=0\0"].concat())), 0);
    assert_eq!(with(Some(&[&many[..], b"PGMPTCP=0\0"].concat())), 262, "beyond what is read");
}

#[test]
fn all_others_are_as_they_are() {
    let (inet, unix) = (libc::AF_INET, libc::AF_UNIX);
    let (stream, datagram) = (libc::SOCK_STREAM, libc::SOCK_DGRAM);
    let path = [1, 5];
    for arguments in [
        [unix, stream, 0],
        [libc::AF_NETLINK, libc::SOCK_RAW, 0],
        [inet, datagram, 0],
        [inet, datagram, libc::IPPROTO_TCP],
        [inet, stream, libc::IPPROTO_SCTP],
        [inet, stream, PROTOCOL],
        [inet, libc::SOCK_RAW, libc::IPPROTO_TCP],
    ] {
        assert_eq!(asked(arguments, NAMESPACE, &path), (0, 0), "{arguments:?}");
    }
    let tcp = [inet, stream, 0];
    assert_eq!(asked(tcp, NAMESPACE + 1, &path), (0, 0));
    assert_eq!(asked(tcp, NAMESPACE, &[1, 6, 7]), (0, 0));
    assert_eq!(asked(tcp, NAMESPACE, &[1]), (0, 0));
}

#[test]
fn a_cgroup_at_the_last_level_is_found_and_one_below_it_not() {
    let mut path: Vec<u64> = (100..100 + LEVELS_MAX as u64 - 1).collect();
    path.push(5);
    let tcp = [libc::AF_INET, libc::SOCK_STREAM, 0];
    assert_eq!(asked(tcp, NAMESPACE, &path), (262, 1));
    path.insert(0, 99);
    assert_eq!(asked(tcp, NAMESPACE, &path), (0, 0));
}

#[test]
fn errors_say_what_to_do() {
    let text = CgroupError::NoFileSystem("/sys/fs/bpf".into()).to_string();
    assert!(text.contains("mount -t bpf bpf /sys/fs/bpf"), "{text}");
    let refused = CgroupError::Refused {
        step: "loading",
        source: io::Error::from_raw_os_error(ENOTSUPP),
        log: String::new(),
    };
    assert!(refused.to_string().contains("DIRECT_CALLS"), "{refused}");
    assert!(CgroupError::Kernel.to_string().contains("6.6"));
    let denied = failed("x")(io::Error::from_raw_os_error(libc::EPERM)).to_string();
    assert!(denied.contains("CAP_BPF"), "{denied}");
}

#[test]
fn nothing_pinned_is_no_error() {
    assert!(Conversion::find(Path::new("/nonexistent/hawser-mptcp")).unwrap().is_none());
}
