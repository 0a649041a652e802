//! One client, or one server, that sends more than its share.

use super::harness::*;
use crate::ids::LoopId;
use crate::relay::limits;

/// The most that may wait for a client that reads nothing: the mark, and the output of one read.
const KEPT_BYTES_MAX: usize = limits::OUTPUT_HIGH_BYTES + 2 * limits::READ_BYTES;

#[test]
fn syncs_without_end_of_a_client_that_reads_nothing_are_left_unread() {
    let mut world = World::new(1);
    let client = world.client();
    client.take_only(0);
    let count = 500_000;
    world.send(&client, &sync().repeat(count));
    assert!(client.unread() > 4 * count, "{} bytes are unread", client.unread());
    assert!(world.kept_for(&client) <= KEPT_BYTES_MAX, "{}", world.kept_for(&client));
    let mut told = 0;
    while told < count {
        client.take_only(6 * 16_000);
        world.takes(&client);
        let kinds = client.received().len() / 6;
        assert!(kinds > 0, "after {told} it was forgotten");
        told += kinds;
    }
    assert_eq!((told, client.unread()), (count, 0));
}

#[test]
fn statements_that_are_named_and_closed_without_end_are_left_unread_within_a_transaction_too() {
    let mut world = World::new(1);
    let (client, server) = world.client_with("a", "SELECT 1");
    world.send(&client, &query("BEGIN"));
    world.send(&server, &answers("CT"));
    client.received();
    client.take_only(0);
    let round = [parse("b", "SELECT 1"), message(b'C', b"Sb\0")].concat();
    let count = 100_000;
    world.send(&client, &round.repeat(count));
    assert!(client.unread() > round.len() * count / 2, "{} bytes are unread", client.unread());
    assert!(world.kept_for(&client) <= KEPT_BYTES_MAX, "{}", world.kept_for(&client));
    world.take_all(&client);
    assert_eq!(client.unread(), 0);
    assert_eq!(client.received().len(), count * 10);
    world.send(&client, &query("COMMIT"));
    world.send(&server, &answers("CI"));
    assert_eq!(client.kinds(), "CZ");
}

#[test]
fn answers_made_here_are_collected() {
    let mut world = World::new(1);
    let client = world.client();
    let before = client.writes();
    world.send(&client, &sync().repeat(600));
    assert_eq!(client.received().len(), 3600);
    assert_eq!(client.writes() - before, 1);
}

#[test]
fn a_client_that_sends_without_a_pause_gets_its_share_of_a_turn() {
    let mut world = World::new(1);
    let client = world.client();
    world.put(&client, &sync().repeat(500_000));
    let before = client.unread();
    world.only_raise(&client);
    let read = before - client.unread();
    let share = limits::READS_AN_EVENT_MAX as usize * limits::READ_BYTES;
    assert!(read > 0 && read <= share, "{read}");
    assert!(world.next_tick().is_zero(), "there is more");
    world.settle();
    assert_eq!((client.unread(), client.received().len()), (0, 3_000_000));
    assert!(!world.next_tick().is_zero());
}

#[test]
fn copy_data_without_a_pause_get_their_share_of_a_turn() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &query("COPY t FROM STDIN"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("G"));
    server.received();
    let data = message(b'd', &[b'x'; 8000]);
    world.put(&client, &[data.repeat(1000), message(b'c', b"")].concat());
    let before = client.unread();
    world.only_raise(&client);
    let share = limits::READS_AN_EVENT_MAX as usize * limits::READ_BYTES;
    assert!(before - client.unread() <= share);
    world.settle();
    assert_eq!(server.received().len(), before);
    world.send(&server, &answers("CI"));
    assert_eq!(client.kinds(), "GCZ");
}

#[test]
fn rows_without_a_pause_get_their_share_of_a_turn() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &query("SELECT"));
    let server = world.servers[0].clone();
    let row = message(b'D', &[0; 995]);
    world.put(&server, &[row.repeat(10_000), answers("CI")].concat());
    let before = server.unread();
    world.only_raise(&server);
    let share = limits::READS_AN_EVENT_MAX as usize * limits::READ_BYTES;
    assert!(before - server.unread() <= share, "{}", before - server.unread());
    assert!(world.next_tick().is_zero(), "there is more");
    world.settle();
    assert_eq!(client.received().len(), before);
    assert_eq!(world.idle_backends(), 1);
}

#[test]
fn rows_that_nobody_waits_for_get_their_share_of_a_turn() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &query("SELECT"));
    let server = world.servers[0].clone();
    world.close(&client);
    let row = message(b'D', &[0; 995]);
    world.put(&server, &[row.repeat(10_000), answers("EI")].concat());
    let before = server.unread();
    world.only_raise(&server);
    let share = limits::READS_AN_EVENT_MAX as usize * limits::READ_BYTES;
    assert!(before - server.unread() <= share);
    world.settle();
    assert_eq!(server.unread(), 0);
    let place = world.asked.cancels[0].backend;
    world.deliver(LoopId(0), crate::relay::ToLoop::CancelDone(place));
    assert_eq!(world.idle_backends(), 1);
}

#[test]
fn the_end_of_a_stream_is_seen_after_more_than_one_share() {
    let mut world = World::new(1);
    let client = world.client();
    world.say_and_close(&client, &sync().repeat(500_000));
    assert!(client.is_dropped());
    assert_eq!(client.unread(), 0);
}

/// Names of statements with this number.
fn name(number: usize) -> String {
    format!("s{number}")
}

#[test]
#[expect(clippy::disallowed_methods, reason = "what it takes is what is tested")]
fn names_of_a_failed_pipeline_are_taken_back_in_linear_time() {
    let mut world = World::new(1);
    let (client, server) = world.client_with("a", "SELECT 1");
    let parses = |from: usize, to: usize| -> Vec<u8> {
        (from..to).flat_map(|number| parse(&name(number), "SELECT 1")).collect()
    };
    let many = limits::CLIENT_STATEMENTS_MAX - 4_000;
    for from in (0..many).step_by(2_000) {
        let to = many.min(from + 2_000);
        world.send(&client, &[parses(from, to), sync()].concat());
        world.send(&server, &answers("I"));
    }
    world.send(&client, &query("BEGIN"));
    world.send(&server, &answers("CT"));
    client.received();
    server.received();
    // One pipeline with many, and many with one each: none may cost a walk over all names.
    let began = std::time::Instant::now();
    let failing = [parse("x", "SELEC"), parses(many, many + 4_000), sync()].concat();
    world.send(&client, &failing);
    world.send(&server, &answers("EF"));
    world.send(&client, &query("ROLLBACK"));
    world.send(&server, &answers("CI"));
    for _ in 0..2_000 {
        world.send(&client, &[parse("x", "SELEC"), sync()].concat());
        world.send(&server, &answers("EI"));
    }
    let took = began.elapsed();
    assert!(took < std::time::Duration::from_secs(4), "{took:?}");
    client.received();
    server.received();
    // The failed statement has no name; the ones before it have.
    let asks = [message(b'D', b"Sx\0"), sync(), message(b'D', b"Ss0\0"), sync()].concat();
    world.send(&client, &asks);
    let sent = server.received();
    assert!(sent.windows(3).any(|bytes| bytes == b"Sx\0"), "left to the server to refuse");
    assert!(!sent.windows(4).any(|bytes| bytes == b"Ss0\0"), "known, and renamed");
}

#[test]
fn of_a_long_name_as_much_is_kept_as_tells_it_apart() {
    let mut world = World::new(1);
    let long = "n".repeat(10_000);
    let (client, server) = world.client_with(&long, "SELECT 1");
    let slot = world.slot_of(&client);
    assert_eq!(world.names_of(slot), [&long.as_bytes()[..limits::NAME_BYTES_MAX]]);
    // To PostgreSQL these are one name.
    let other = format!("{}x", "n".repeat(limits::NAME_BYTES_MAX));
    world.send(&client, &[bind(&other), execute(), sync()].concat());
    world.send(&server, &answers("2CI"));
    assert_eq!(client.kinds(), "2CZ");
    let bound = server.received();
    assert!(!bound.windows(2).any(|bytes| bytes == b"nn"), "under the shared name");
    world.send(&client, &[message(b'C', format!("S{other}\0").as_bytes()), sync()].concat());
    assert_eq!(client.kinds(), "3Z");
    assert!(world.names_of(slot).is_empty());
}

#[test]
fn portals_that_are_noted_are_bounded_and_found_without_a_search() {
    let mut world = World::new(1);
    let (client, server) = world.client_with("s", "SELECT 1");
    world.send(&client, &[parse("d", "DEALLOCATE s"), sync()].concat());
    world.send(&server, &answers("1I"));
    let binds = |range: std::ops::Range<usize>| -> Vec<u8> {
        let mut out = Vec::new();
        for number in range {
            crate::wire::build::bind_plain(&mut out, name(number).as_bytes(), b"d");
        }
        out
    };
    client.received();
    world.send(&client, &binds(0..limits::UNUSUAL_PORTALS_MAX));
    assert!(!client.is_dropped());
    world.send(&client, &binds(0..1));
    assert!(!client.is_dropped(), "the same name again");
    let one_more = limits::UNUSUAL_PORTALS_MAX;
    world.send(&client, &binds(one_more..one_more + 1));
    assert!(client.is_dropped());
    assert!(String::from_utf8_lossy(&client.received()).contains("53400"));
}

#[test]
fn names_count_against_prepared_statements_memory() {
    let mut world = World::new(1);
    let (client, server) = world.client_with("first", "SELECT 1");
    let most = 64 * 1024;
    world.limit_statement_memory(most);
    let mut shared = 0;
    for number in 0..1_000 {
        let name = format!("{number:060}");
        world.send(&client, &[parse(&name, "SELECT 1"), sync()].concat());
        if client.kinds() != "1Z" {
            break; // it goes to the server under the client's own name
        }
        shared += 1;
    }
    assert!((100..500).contains(&shared), "{shared}");
    assert!(world.pool.statements.memory().bytes() < most + 1024);
    assert!(!server.received().is_empty());
    world.breaks(&client);
    assert!(world.pool.statements.memory().bytes() < 1024, "they have gone with it");
}

#[test]
fn a_server_that_reports_ever_new_settings_is_left() {
    let report = |n: usize| message(b'S', format!("x{n}\0value\0").as_bytes());
    for (reports, ends) in [(50, false), (20_000, true)] {
        let mut world = World::new(1);
        let client = world.client();
        world.send(&client, &query("LOAD 'many'"));
        let server = world.servers[0].clone();
        let all: Vec<u8> = (0..reports).flat_map(report).collect();
        world.send(&server, &[all, answers("CI")].concat());
        let told = client.received();
        let lost = String::from_utf8_lossy(&told).contains("too many settings");
        assert_eq!(lost, ends, "{reports} settings");
        assert_eq!(kinds(&told).ends_with("CZ"), !ends);
    }
}

/// One client took 218 MiB of the memory for all clients' statements, and DEALLOCATE ALL held up all
/// others of its loop.
#[test]
fn a_client_shares_so_many_statements_and_keeps_its_server_connection_for_more() {
    let mut world = World::new(2);
    let (client, server) = world.client_with("s0", "SELECT 0");
    for number in 1..limits::CLIENT_STATEMENTS_MAX {
        world.send(&client, &[parse(&name(number), "SELECT 0"), sync()].concat());
        assert_eq!(client.kinds(), "1Z", "{number}");
    }
    assert_eq!(world.idle_backends(), 1);
    let full = world.pool.statements.memory().bytes();
    server.received();
    let more = [limits::CLIENT_STATEMENTS_MAX, limits::CLIENT_STATEMENTS_MAX + 1];
    for number in more {
        world.send(&client, &[parse(&name(number), "SELECT 0"), sync()].concat());
        assert_eq!(server.received(), [parse(&name(number), "SELECT 0"), sync()].concat());
        world.send(&server, &answers("1I"));
        assert_eq!(client.kinds(), "1Z");
        assert_eq!(world.idle_backends(), 0, "its client keeps the connection");
    }
    assert_eq!(world.pool.statements.memory().bytes(), full, "nothing of these is kept");
    // Both kinds can be used.
    for (number, own) in [(5, false), (more[0], true)] {
        let used = [bind(&name(number)), execute(), sync()].concat();
        world.send(&client, &used);
        assert_eq!(server.received() == used, own, "{number}");
        world.send(&server, &answers("2CI"));
        assert_eq!(client.kinds(), "2CZ");
    }
    world.breaks(&client);
    assert!(world.pool.statements.memory().bytes() < full);
}

#[test]
fn a_clients_texts_take_no_more_than_its_share() {
    let mut world = World::new(1);
    let (client, server) = world.client_with("s0", "SELECT 0");
    world.limit_statement_memory(32 << 20);
    let padding = "x".repeat(8_000);
    for number in 1..1_000 {
        let text = format!("SELECT {number} -- {padding}");
        world.send(&client, &[parse(&name(number), &text), sync()].concat());
        world.send(&server, &answers("1I"));
        assert_eq!(client.kinds(), "1Z", "{number}");
    }
    let bytes = world.pool.statements.memory().bytes();
    assert!(
        ((2 << 20) - 16_000..(2 << 20) + 500_000).contains(&bytes),
        "{bytes} of 2 MiB and an overhead"
    );
}

/// A turn took 60 ms: a megabyte of them, at one event.
#[test]
fn statements_without_a_pause_get_their_share_of_a_turn() {
    for (padding, most) in [(0, 4_000), (3_500, 100)] {
        let mut world = World::new(1);
        let (client, _) = world.client_with("s0", "SELECT 0");
        let padding = "x".repeat(padding);
        let text = |number| format!("SELECT {number} -- {padding}");
        let all = (1..20_000).map(|number| parse(&name(number), &text(number)));
        let each = all.clone().next().unwrap().len();
        world.put(&client, &all.take(3_000_000 / each).flatten().collect::<Vec<u8>>());
        let before = client.unread();
        world.only_raise(&client);
        let handled = (before - client.unread()) / each;
        assert!((1..=most).contains(&handled), "{handled} of {each} bytes");
    }
}

/// The server keeps its answer to the first one back until a Flush or Sync, and the others are Hawser's
/// to give after it: both waited for ever.
#[test]
fn a_pipeline_of_more_statements_than_may_be_outstanding_goes_on() {
    let mut world = World::new(2);
    let (client, server) = world.client_with("s0", "SELECT 0");
    let many = limits::EXPECTED_ANSWERS_MAX + 500;
    let all: Vec<u8> = (1..many).flat_map(|number| parse(&name(number), "SELECT 1")).collect();
    world.send(&client, &[all, sync()].concat());
    assert!(server.received().ends_with(b"H\0\0\0\x04"), "the server is asked for its answer");
    assert_eq!(client.kinds(), "");
    world.send(&server, &answers("1"));
    let shared = limits::CLIENT_STATEMENTS_MAX - 1; // with "s0"
    assert_eq!(client.kinds(), "1".repeat(shared));
    assert!(server.received().ends_with(&sync()), "the rest follows");
}
