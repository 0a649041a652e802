//! Messages of a kernel (Linux 6.18, x86-64), as they came over netlink between two ends in one network
//! namespace, and what is made of them: whole, cut, with what later kernels add, and with errors.

use std::net::SocketAddr;

use super::Token;
use super::diagnosis::{TcpState, decode_subflow};
use super::event::{self, Kind};
use crate::netlink::Answer;
use crate::netlink::attribute::Writer;

/// A connection begins, at the end that dials.
const CREATED: &str = "540000001c0000000000000000000000010100000800010065f780ff0600020002000000080005000a090001\
    080007000a0900010600090083da000006000a001b58000005000300000000000500040000000000";
/// It can have further subflows, at the end that accepted, over IPv6.
const ESTABLISHED_V6: &str = "7c0000001c00000000000000000000000201000008000100f91aa77b050012000100000006000d0002000000\
    060002000a00000014000600fd09000000000000000000000000000114000800fd0900000000000000000000\
    00000001060009001b58000006000a00ed14000005000300000000000500040000000000";
/// The peer has announced an address.
const ANNOUNCED: &str = "340000001c0000000000000000000000060100000800010065f780ff050004000700000006000a001b580000\
    080007000a090002";
/// And one of the other family.
const ANNOUNCED_V6: &str = "400000001c0000000000000000000000060100000800010065f780ff050004000800000006000a001b580000\
    14000800fd090000000000000000000000000002";
/// A join was refused: ECONNREFUSED.
const SUBFLOW_CLOSED: &str = "640000001c00000000000000000000000b0100000800010065f780ff0600020002000000080005000a090002\
    080007000a09000206000900ca5b000006000a001b5800000500030007000000050004000700000005000b00\
    0000000005000c006f000000";
/// A connection has ended.
const CLOSED: &str = "1c0000001c00000000000000000000000301000008000100ba652933";
/// A listener was made.
const LISTENER: &str =
    "2c0000001c00000000000000000000000f0100000600020002000000060009001b580000080005000a090001";
/// The first subflow, at the end that dialled.
const SUBFLOW: &str = "1002000014000200010000002a7d00000201000083da1b580a0900010000000000000000000000000a090001\
    00000000000000000000000000000000990300000000000000000000000000000000000000000000a79e0a00\
    050008000000000008000f000000000008001100000000000c00150001000000000000000600160052000000\
    1c010200010000000007aa01e01c0300409c0000008a0000e803000000000000000000000000000000000000\
    0000000078030000000000003801000038010000ffff00001d120100110000000a000000ffffff7f0b000000\
    cbff00000300000000000000d7ff000000000000fb3092e40a000000ffffffffffffffffe903000000000000\
    08520000000000001c0000001b000000000000000300000015000000010000000080e7bd0200000000000000\
    00000000000000000000000000000000000000000200000000000000e8030000000000000000000000000000\
    0000000000000000000000000014010000140100000000000000000000000000000000000000000000000000\
    00000000000000000000000000000000000000000800040062627200680013000a0001006d70746370000000\
    5800030008000100000000000800020065f780ff08000800c3000000050009000000000005000a0000000000\
    08000300e90300000c000400a8764ce3fcab8b6508000500214e000008000600fe7d0d2206000700e8030000";
/// And at the end that accepted, over IPv6.
const SUBFLOW_V6: &str = "1802000014000200010000002a7d00000a0100001b58ed14fd090000000000000000000000000001fd090000\
    000000000000000000000001000000009d0300000000000000000000000000000000000000000000439f0a00\
    0500080000000000050006000000000008000f000000000008001100000000000c0015000100000000000000\
    06001600120000001c010200010000000007aa00e01c0300409c0000008a0000e80300000000000000000000\
    00000000000000000000000030010000000000005803000030010000000001001d120100ad01000055030000\
    080000000c000000b8ff00000300000000000000b8ff00000000000000d8d12d0a000000ffffffffffffffff\
    0852000000000000e8030000000000001a0000001c000000000000000100000001000000150000000080e7bd\
    02000000e0ab0000000000000000000000000000000000000000000016000000000000000852000000000000\
    0000000000000000000000000000000000000000001401000014010000000000000000000000000000000000\
    000000000000000000000000000000000000000000000000000000000800040062627200680013000a000100\
    6d7074637000000058000300080001000000000008000200f91aa77b08000800c10000000500090000000000\
    05000a000000000008000300095200000c0004007d4c30a2ce0be242080005000100000008000600d6b8a3af\
    06000700e8030000";

/// `struct nlmsghdr`.
const HEADER_BYTES: usize = 16;

fn bytes(hex: &str) -> Vec<u8> {
    let pair = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).unwrap();
    (0..hex.len()).step_by(2).map(pair).collect()
}

fn payload(hex: &str) -> Vec<u8> {
    bytes(hex)[HEADER_BYTES..].to_vec()
}

fn event(payload: Vec<u8>) -> Option<event::Event> {
    event::decode(&Answer { kind: 28, payload })
}

fn address(text: &str) -> Option<SocketAddr> {
    Some(text.parse().unwrap())
}

const EVENTS: [&str; 7] =
    [CREATED, ESTABLISHED_V6, ANNOUNCED, ANNOUNCED_V6, SUBFLOW_CLOSED, CLOSED, LISTENER];
const SUBFLOWS: [&str; 2] = [SUBFLOW, SUBFLOW_V6];

#[test]
fn events_say_what_happened() {
    let read = |hex| event(payload(hex)).unwrap();
    let created = read(CREATED);
    assert_eq!((created.kind, created.accepted), (Kind::Created, None));
    assert_eq!(created.local, address("10.9.0.1:33754"));
    assert_eq!(created.remote, address("10.9.0.1:7000"));
    let established = read(ESTABLISHED_V6);
    assert_eq!((established.kind, established.accepted), (Kind::Established, Some(true)));
    assert_eq!(established.local, address("[fd09::1]:7000"));
    let announced = read(ANNOUNCED);
    assert_eq!((announced.kind, announced.id_remote), (Kind::Announced, Some(7)));
    assert_eq!(announced.remote, address("10.9.0.2:7000"));
    assert_eq!(read(ANNOUNCED_V6).remote, address("[fd09::2]:7000"));
    let closed = read(SUBFLOW_CLOSED);
    assert_eq!((closed.kind, closed.error), (Kind::SubflowClosed, Some(111)));
    assert_eq!((closed.backup, closed.id_local), (Some(false), Some(7)));
    assert_eq!(read(CLOSED).kind, Kind::Closed);
    let listener = read(LISTENER);
    assert_eq!((listener.kind, listener.token), (Kind::ListenerCreated, None));
}

#[test]
fn subflows_are_what_the_kernel_says() {
    let dialled = decode_subflow(&payload(SUBFLOW)).unwrap();
    assert_eq!(Some(dialled.socket.local), address("10.9.0.1:33754"));
    assert_eq!(Some(dialled.socket.remote), address("10.9.0.1:7000"));
    assert_eq!((dialled.socket.state, dialled.socket.inode), (TcpState::Established, 695_975));
    assert_eq!(event(payload(CREATED)).unwrap().token, Some(dialled.token));
    assert!(dialled.flags.asked() && dialled.flags.capable() && !dialled.flags.joined());
    assert_eq!(dialled.congestion.as_deref(), Some("bbr"));
    // 1000 bytes there and 21000 back, each with one of the handshake's.
    assert_eq!(dialled.bytes(), (21_000, 1_001));
    let accepted = decode_subflow(&payload(SUBFLOW_V6)).unwrap();
    assert_eq!(Some(accepted.socket.local), address("[fd09::1]:7000"));
    assert_eq!(event(payload(ESTABLISHED_V6)).unwrap().token, Some(accepted.token));
    assert!(!accepted.flags.asked() && accepted.flags.capable());
    assert_ne!(accepted.token, Token(0));
}

#[test]
fn what_later_kernels_add_changes_nothing() {
    let mut added = Writer::default();
    added.u32(0x3ff0, 7);
    added.bytes(0x2abc, &[9; 61]);
    let mut nested = Writer::default();
    nested.nested(0x3001, &added);
    for more in [added, nested] {
        for hex in EVENTS {
            let with = [&payload(hex)[..], more.as_bytes()].concat();
            assert_eq!(event(with), event(payload(hex)));
            // And before all others: after the command, its version and two reserved bytes.
            let (head, tail) = (payload(hex)[..4].to_vec(), payload(hex)[4..].to_vec());
            assert_eq!(event([&head[..], more.as_bytes(), &tail].concat()), event(payload(hex)));
        }
        for hex in SUBFLOWS {
            let with = [&payload(hex)[..], more.as_bytes()].concat();
            assert_eq!(decode_subflow(&with), decode_subflow(&payload(hex)));
        }
    }
}

#[test]
fn a_cut_message_is_read_as_far_as_it_goes() {
    for hex in EVENTS {
        let whole = event(payload(hex)).unwrap();
        for length in 0..payload(hex).len() {
            let Some(read) = event(payload(hex)[..length].to_vec()) else {
                assert!(length < 4, "{length}");
                continue;
            };
            assert_eq!(read.kind, whole.kind);
            assert!(read.token.is_none() || read.token == whole.token);
            assert!(read.error.is_none() || read.error == whole.error);
        }
    }
    for hex in SUBFLOWS {
        let whole = payload(hex);
        let token = decode_subflow(&whole).unwrap().token;
        for length in 0..whole.len() {
            let read = decode_subflow(&whole[..length]);
            assert!(read.is_none_or(|subflow| subflow.token == token), "{length}");
        }
    }
}

/// Bytes are changed, taken away and added; nothing panics.
#[test]
fn messages_with_errors_are_survived() {
    let mut state = 2_463_534_242u32;
    let mut number = move |below: usize| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as usize % below.max(1)
    };
    for hex in EVENTS.into_iter().chain(SUBFLOWS) {
        for _ in 0..4_000 {
            let mut bytes = payload(hex);
            for _ in 0..=number(4) {
                let at = number(bytes.len());
                match number(4) {
                    0 => bytes[at] = number(256) as u8,
                    1 => bytes[at] ^= 1 << number(8),
                    2 => drop(bytes.drain(at..(at + number(24)).min(bytes.len()))),
                    _ => drop(bytes.splice(at..at, std::iter::repeat_n(0xff, number(24)))),
                }
                if bytes.is_empty() {
                    break;
                }
            }
            let _ = decode_subflow(&bytes);
            let _ = event(bytes);
        }
    }
}
