//! A long message that comes in parts, and everything that may happen between them: no message of
//! Hawser's own gets into it.

use crate::ids::LoopId;
use crate::parts::identity::process_ids::PROCESS_ID_FIRST;
use crate::relay::client_info::PoolMode;
use crate::relay::limits;
use crate::relay::message::ToLoop;
use crate::relay::tests::harness::*;
use crate::wire::error::{ClientError, SqlState};
use crate::wire::frame::{Framed, header};

/// Longer than a message that is passed on only when it is complete.
const LONG: usize = limits::WHOLE_MESSAGE_BYTES + 200;

fn filler() -> String {
    // As many bytes of a Sync as possible: whatever is cut off here looks like a message.
    "S\0\0\0\u{4}".repeat(LONG / 5)
}

/// Messages that stream, by name.
fn long_messages() -> Vec<(&'static str, Vec<u8>)> {
    let fill = filler().into_bytes();
    let body = |parts: &[&[u8]]| parts.concat();
    let length = u32::try_from(fill.len()).unwrap().to_be_bytes();
    let name = "n".repeat(LONG);
    vec![
        ("Query", query(&format!("SELECT 1 /* {} */", "-".repeat(LONG)))),
        ("Parse", parse("", &format!("SELECT 1 /* {} */", "-".repeat(LONG)))),
        ("Parse of a name", parse("long", &format!("SELECT 1 /* {} */", "-".repeat(LONG)))),
        ("Bind", message(b'B', &body(&[b"\0\0\0\0\0\x01", &length, &fill, b"\0\0"]))),
        ("Execute", message(b'E', &body(&[name.as_bytes(), b"\0\0\0\0\0"]))),
        ("Describe", message(b'D', &body(&[b"P", name.as_bytes(), b"\0"]))),
        ("Close", message(b'C', &body(&[b"P", name.as_bytes(), b"\0"]))),
        ("FunctionCall", message(b'F', &body(&[&[0; 12], &fill]))),
        ("CopyData", message(b'd', &fill)),
    ]
}

/// Events between two parts.
#[derive(Clone, Copy, Debug)]
enum Between {
    Answer,
    Error,
    ErrorWithNotice,
    Setting,
    Notification,
    Cancel,
    CancelAndError,
    Epoch,
    Time,
    Kill,
    Leave,
}

const BETWEEN: [Between; 11] = [
    Between::Answer,
    Between::Error,
    Between::ErrorWithNotice,
    Between::Setting,
    Between::Notification,
    Between::Cancel,
    Between::CancelAndError,
    Between::Epoch,
    Between::Time,
    Between::Kill,
    Between::Leave,
];

fn happens(world: &mut World, what: Between, client: &Peer, server: &Peer) {
    let notification = message(b'A', b"\0\0\0\x01news\0\0");
    match what {
        Between::Answer => world.send(server, &answers("12C")),
        Between::Error => world.send(server, &answers("12E")),
        Between::ErrorWithNotice => {
            world.send(server, &answers("12"));
            world.send(server, &message(b'N', b"SNOTICE\0C00000\0Mnote\0\0"));
            world.send(server, &answers("E"));
        }
        Between::Setting => world.send(server, &parameter("TimeZone", "Mars")),
        Between::Notification => world.send(server, &notification),
        Between::Cancel | Between::CancelAndError => {
            let cancel = ToLoop::Cancel { process: PROCESS_ID_FIRST, key: [9; 4].into() };
            world.deliver(LoopId(0), cancel);
            if let Some(request) = world.asked.cancels.pop() {
                world.deliver(LoopId(0), ToLoop::CancelDone(request.backend));
            }
            if matches!(what, Between::CancelAndError) {
                world.send(server, &answers("E"));
            }
        }
        Between::Epoch => world.pool.begin_epoch(),
        Between::Time => world.wait_ms(900),
        Between::Kill => {
            let slot = world.slot_of(client);
            let error = ClientError::fatal(SqlState::ADMIN_SHUTDOWN, "killed");
            let client = crate::ids::ClientId { home: LoopId(0), slot };
            world.deliver(LoopId(0), ToLoop::Kill { client, error });
        }
        Between::Leave => world.close(client),
    }
}

/// The messages of a stream; `None` if it ends within one.
fn whole(mut stream: &[u8]) -> Option<Vec<&[u8]>> {
    let mut messages = Vec::new();
    while !stream.is_empty() {
        let Framed::Header(header) = header(stream) else { return None };
        messages.push(stream.get(..header.total())?);
        stream = &stream[header.total()..];
    }
    Some(messages)
}

/// Plays one combination, and checks everything that the server has got.
fn play(mode: PoolMode, start: &[u8], long: &[u8], split: usize, what: Between) {
    let mut world = World::new(1);
    let (client, other) = (world.client_of(LoopId(0), mode, &[]), world.client());
    world.send(&client, &[start, &long[..split]].concat());
    let Some(server) = world.servers.first().cloned() else { return };
    let mut stream = server.received();
    if stream.is_empty() {
        return; // it was answered without the server
    }
    world.send(&other, &query("SELECT 'other'"));
    happens(&mut world, what, &client, &server);
    let between = server.received();
    if whole(&stream).is_none() {
        assert_eq!(between, b"", "within the message");
    }
    stream.extend_from_slice(&between);
    if !client.is_dropped() && !matches!(what, Between::Leave) {
        world.send(&client, &long[split..]);
        world.send(&client, &sync());
        stream.extend_from_slice(&server.received());
    }
    match whole(&stream) {
        Some(messages) => {
            // (Its start is another where a name is replaced.)
            let tail = &long[300..];
            let long = messages.iter().filter(|sent| sent.len() > limits::WHOLE_MESSAGE_BYTES);
            assert!(long.clone().count() <= 1, "sent twice");
            assert!(long.clone().all(|sent| sent.ends_with(tail)), "changed");
        }
        None => assert!(server.is_dropped(), "half a message, and the connection goes on"),
    }
}

#[test]
fn nothing_gets_into_a_message_that_comes_in_parts() {
    let starts = [
        Vec::new(),
        [parse("", "INSERT"), bind(""), execute()].concat(),
        [parse("", "INSERT"), bind(""), execute(), sync(), bind("")].concat(),
        query("SELECT 1"),
        query("BEGIN"),
        query("CREATE TEMP TABLE t (i int)"),
        [parse("", "COPY t FROM STDIN"), bind(""), execute()].concat(),
    ];
    for (name, long) in long_messages() {
        for (at, start) in starts.iter().enumerate() {
            let first = limits::WHOLE_MESSAGE_BYTES;
            for split in [first, first + 1, first + 5, long.len() - 5, long.len() - 1] {
                for what in BETWEEN {
                    for mode in [PoolMode::Transaction, PoolMode::Session] {
                        let way = format!("{name}, start {at}, {split}, {what:?}, {mode:?}");
                        let played = std::panic::catch_unwind(|| {
                            play(mode, start, &long, split, what);
                        });
                        assert!(played.is_ok(), "{way}");
                    }
                }
            }
        }
    }
}
