//! Time and fairness: timeouts, drain, cancels, and clients that never stop.

use std::time::Duration;

use crate::ids::{ClientId, LoopId, Slot};
use crate::parts::identity::process_ids::PROCESS_ID_FIRST;
use crate::relay::client_info::PoolMode;
use crate::relay::limits;
use crate::relay::message::ToLoop;
use crate::relay::tests::harness::*;
use crate::wire::error::{ClientError, SqlState};

fn goodbye() -> ClientError {
    ClientError::fatal(SqlState::ADMIN_SHUTDOWN, "the pooler is shutting down")
}

#[test]
fn trap_26_a_drain_ends_each_client_when_its_transaction_ends() {
    let mut world = World::new(2);
    let (idle, busy, waits) = (world.client(), world.client(), world.client());
    let pinned = world.client();
    world.send(&pinned, &query("DO 'BEGIN LISTEN a; END'"));
    let second = world.servers[0].clone();
    world.send(&second, &answers("CI"));
    world.send(&busy, &query("BEGIN"));
    let server = world.servers[1].clone();
    world.send(&server, &answers("CT"));
    world.send(&waits, &query("SELECT 1"));
    busy.received();
    world.deliver(LoopId(0), ToLoop::Drain(goodbye()));
    assert_eq!(pinned.kinds(), "CZ", "the reason comes apart from the last answer");
    world.wait_ms(100);
    assert!(idle.is_dropped() && pinned.is_dropped() && !busy.is_dropped() && !waits.is_dropped());
    world.send(&second, &answers("CI"));
    world.send(&second, &answers("CI"));
    world.wait_ms(100);
    assert!(waits.is_dropped(), "its one query was answered");
    assert_eq!(waits.kinds(), "CZE");
    world.send(&busy, &query("INSERT"));
    world.send(&server, &answers("CT"));
    assert!(!busy.is_dropped());
    world.send(&busy, &query("COMMIT"));
    world.send(&server, &answers("CI"));
    world.wait_ms(100);
    assert_eq!(busy.kinds(), "CZCZE");
    assert!(busy.is_dropped());
}

/// With a limit on clients it was cut off at the next tick, with its answer.
#[test]
fn a_client_that_takes_its_last_answer_slowly_has_time_for_it() {
    let mut world = World::new(1);
    world.change_settings(|settings| settings.client_idle_timeout = Duration::from_secs(60));
    let client = world.client();
    world.send(&client, &query("SELECT 1"));
    let server = world.servers[0].clone();
    client.hold();
    world.deliver(LoopId(0), ToLoop::Drain(goodbye()));
    world.send(&server, &answers("DCI"));
    world.wait_ms(3_000);
    assert!(!client.is_dropped());
    client.let_go();
    world.takes(&client);
    assert_eq!(client.kinds(), "DCZE");
    assert!(client.is_dropped());
}

/// They could wait for the ones that serve: the password was changed, say, and sessions go on.
#[test]
fn an_opening_that_is_refused_ends_no_waiter_while_others_serve() {
    let mut world = World::new(2);
    let (client, other) = (world.client(), world.client());
    world.send(&client, &query("SELECT 1"));
    let server = world.servers[0].clone();
    world.opens_nothing(true);
    world.send(&other, &query("SELECT 2"));
    world.refuse_opening();
    assert!(!other.is_dropped());
    world.send(&server, &answers("CI"));
    world.send(&server, &answers("CI"));
    world.send(&client, &query("SELECT pg_sleep(99)"));
    let third = world.client();
    world.send(&third, &query("SELECT 4"));
    world.wait_ms(5_500);
    world.refuse_opening();
    assert!(third.is_dropped(), "it has waited for long");
    world.send(&server, &answers("CI"));
    assert_eq!((client.kinds(), other.kinds()), ("CZCZ".into(), "CZ".into()));
    world.breaks(&server);
    world.send(&other, &query("SELECT 3"));
    world.wait_ms(2_000);
    world.refuse_opening();
    assert!(other.is_dropped(), "nothing serves");
}

#[test]
fn trap_24_a_pipeline_without_end_lets_others_through() {
    let mut world = World::new(1);
    let (greedy, other) = (world.client(), world.client());
    world.send(&greedy, &query("SELECT 1"));
    let server = world.servers[0].clone();
    world.send(&other, &query("SELECT 2"));
    let mut served = 0;
    for _ in 0..3 * limits::UNBROKEN_QUERIES_MAX {
        // One query is always outstanding.
        world.send(&greedy, &query("SELECT 1"));
        world.send(&server, &answers("CI"));
        served += 1;
        if other.kinds() == "CZ" {
            break;
        }
    }
    assert!(served <= limits::UNBROKEN_QUERIES_MAX + 2, "{served}");
}

#[test]
fn trap_16_a_cancel_waits_for_settings_before_the_query() {
    let mut world = World::new(1);
    let start = [("application_name", "mine")];
    let client = world.client_of(LoopId(0), PoolMode::Transaction, &start);
    world.send(&client, &query("SELECT pg_sleep(9)"));
    let server = world.servers[0].clone();
    let cancel = ToLoop::Cancel { process: PROCESS_ID_FIRST, key: [9; 4].into() };
    world.deliver(LoopId(0), cancel);
    assert_eq!(world.asked.cancels.len(), 0, "it would hit the SET");
    world.send(&server, &answers("CI"));
    assert_eq!(world.asked.cancels.len(), 1);
    world.send(&server, &answers("EI"));
    assert_eq!(client.kinds(), "EZ");
}

#[test]
fn an_administrators_cancel_reaches_the_client_it_names_and_no_later_one_in_its_place() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &query("SELECT pg_sleep(9)"));
    let server = world.servers[0].clone();
    let with = |generation| {
        let slot = Slot { index: 0, generation };
        ToLoop::CancelClient(ClientId { home: LoopId(0), slot })
    };
    world.deliver(LoopId(0), with(1));
    assert_eq!(world.asked.cancels.len(), 0, "that client is not there");
    world.deliver(LoopId(0), with(0));
    assert_eq!(world.asked.cancels.len(), 1);
    world.send(&server, &answers("EI"));
    assert_eq!(client.kinds(), "EZ");
}

#[test]
fn trap_19_query_timeout_is_each_querys_own_and_cancels_it() {
    let mut world = World::new(1);
    world.change_settings(|settings| settings.query_timeout = Duration::from_secs(1));
    let client = world.client();
    world.send(&client, &query("SELECT 1"));
    let server = world.servers[0].clone();
    for _ in 0..10 {
        world.wait_ms(400);
        world.send(&client, &query("SELECT 1"));
        world.send(&server, &answers("CI"));
    }
    assert!(!client.is_dropped(), "each took 400 ms");
    client.received();
    world.wait_ms(900);
    assert!(!client.is_dropped(), "never early");
    world.wait_ms(200);
    assert!(client.is_dropped());
    assert!(String::from_utf8_lossy(&client.received()).contains("57014"));
    assert_eq!(world.asked.cancels.len(), 1);
}

#[test]
fn trap_19_query_timeout_does_not_fire_with_nothing_in_flight() {
    let mut world = World::new(1);
    world.change_settings(|settings| settings.query_timeout = Duration::from_secs(1));
    let client = world.client();
    world.send(&client, &[parse("", "SELECT 1"), bind(""), message(b'H', b"")].concat());
    let server = world.servers[0].clone();
    world.send(&server, &answers("12"));
    world.wait_ms(5000);
    assert!(!client.is_dropped(), "the client thinks");
    world.send(&client, &[execute(), sync()].concat());
    world.wait_ms(500);
    assert!(!client.is_dropped(), "its query is 500 ms old");
}

#[test]
fn idle_transaction_timeout_counts_from_the_last_answer() {
    let mut world = World::new(1);
    world.change_settings(|settings| settings.idle_transaction_timeout = Duration::from_secs(1));
    let client = world.client();
    world.send(&client, &query("BEGIN"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("CT"));
    for _ in 0..5 {
        world.wait_ms(800);
        world.send(&client, &query("SELECT 1"));
        world.wait_ms(3000);
        world.send(&server, &answers("CT"));
    }
    assert!(!client.is_dropped());
    world.wait_ms(1200);
    assert!(client.is_dropped());
    assert!(String::from_utf8_lossy(&client.received()).contains("25P03"));
    server.received();
}

#[test]
fn a_client_whose_message_waits_here_is_not_idle() {
    let mut world = World::new(1);
    world.change_settings(|settings| settings.idle_transaction_timeout = Duration::from_secs(1));
    let client = world.client();
    world.send(&client, &query("BEGIN"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("CT"));
    world.send(&client, &query("SELECT pg_sleep(9)"));
    world.deliver(LoopId(0), ToLoop::Cancel { process: PROCESS_ID_FIRST, key: [9; 4].into() });
    world.send(&server, &answers("EF"));
    server.received();
    world.send(&client, &query("ROLLBACK"));
    assert_eq!(server.kinds(), "", "the request may still hit it");
    world.wait_ms(3000);
    assert!(!client.is_dropped());
}

#[test]
fn pin_timeout_counts_while_a_pinned_client_sits_idle_outside_of_a_transaction() {
    let mut world = World::new(1);
    world.change_settings(|settings| settings.pin_timeout = Duration::from_secs(1));
    let (client, server) = world.client_with("other", "SELECT 1");
    world.wait_ms(3000);
    assert!(!client.is_dropped(), "it keeps nothing");
    world.send(&client, &query("CREATE TEMP TABLE t (a int)"));
    world.send(&server, &answers("CI"));
    world.send(&server, &told(true));
    world.send(&client, &query("BEGIN"));
    world.send(&server, &answers("CT"));
    world.wait_ms(3000);
    assert!(!client.is_dropped(), "that is for idle_transaction_timeout to end");
    world.send(&client, &query("COMMIT"));
    world.send(&server, &answers("CI"));
    world.wait_ms(800);
    assert!(!client.is_dropped());
    client.received();
    world.wait_ms(400);
    let told = client.received();
    assert!(client.is_dropped());
    let told = String::from_utf8_lossy(&told);
    assert!(told.contains("57P05") && told.contains("temporary_object"), "{told}");
    assert!(String::from_utf8_lossy(&server.received()).contains("DISCARD ALL"));
}

#[test]
fn who_keeps_a_backend_that_is_outdated_leaves_between_transactions_with_server_fast_close() {
    for fast in [false, true] {
        let mut world = World::new(1);
        world.change_settings(|settings| settings.server_fast_close = fast);
        let (client, server) = world.client_with("other", "SELECT 1");
        world.send(&client, &query("CREATE TEMP TABLE t (a int)"));
        world.send(&server, &answers("CI"));
        world.send(&server, &told(true));
        world.send(&client, &query("BEGIN"));
        world.send(&server, &answers("CT"));
        world.pool.begin_epoch();
        world.wait_ms(3000);
        assert!(!client.is_dropped(), "its transaction goes on");
        world.send(&client, &query("COMMIT"));
        world.send(&server, &answers("CI"));
        client.received();
        world.wait_ms(2000);
        assert_eq!(client.is_dropped(), fast);
        let told = client.received();
        assert_eq!(String::from_utf8_lossy(&told).contains("57P01"), fast);
    }
}

#[test]
fn a_client_that_would_keep_one_backend_too_many_gets_an_error_and_the_pool_serves_on() {
    let mut world = World::new(2);
    world.change_settings(|settings| settings.max_pinned = 1);
    let (first, second, third) = (world.client(), world.client(), world.client());
    world.send(&first, &query("CREATE TEMP TABLE t (a int)"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("CI"));
    world.send(&server, &told(true));
    world.send(&second, &query("CREATE TEMP TABLE t (a int) ON COMMIT DROP"));
    let other = world.servers[1].clone();
    world.send(&other, &answers("CI"));
    world.send(&other, &told(false));
    assert!(!second.is_dropped(), "it keeps nothing");
    world.send(&second, &query("CREATE TEMP TABLE t (a int)"));
    world.send(&other, &answers("CI"));
    second.received();
    other.received();
    world.send(&other, &told(true));
    assert_eq!(second.kinds(), "", "the reason comes apart from the last answer");
    assert!(String::from_utf8_lossy(&other.received()).contains("DISCARD ALL"));
    world.wait_ms(100);
    assert!(second.is_dropped() && !first.is_dropped());
    let error = String::from_utf8_lossy(&second.received()).into_owned();
    assert!(error.contains("53400") && error.contains("max_pinned"), "{error}");
    assert!(error.contains("temporary_object"), "{error}");
    world.send(&other, &answers("CI"));
    world.send(&third, &query("SELECT 1"));
    assert_eq!(other.kinds(), "Q");
    world.send(&other, &answers("CI"));
    // The first ends its pin, and makes room for another's.
    world.send(&first, &query("DROP TABLE t"));
    world.send(&server, &answers("CI"));
    world.send(&server, &told(false));
    world.send(&third, &query("CREATE TEMP TABLE t (a int)"));
    let used = if other.kinds().contains('Q') { &other } else { &server };
    world.send(used, &answers("CI"));
    world.send(used, &told(true));
    assert!(!third.is_dropped());
    assert_eq!(world.pool.pins.get(), 1);
}

/// The client of the one that is kept has its answer, and may know that it has ended its pin.
#[test]
fn who_keeps_one_while_another_s_end_is_not_known_is_left_alone_for_a_moment() {
    for ends in [true, false] {
        let mut world = World::new(2);
        world.change_settings(|settings| settings.max_pinned = 1);
        let (first, second) = (world.client(), world.client());
        world.send(&first, &query("CREATE TEMP TABLE t (a int)"));
        let server = world.servers[0].clone();
        world.send(&server, &answers("CI"));
        world.send(&server, &told(true));
        world.send(&first, &query("DROP TABLE t"));
        world.send(&server, &answers("CI")); // it is asked now
        world.send(&second, &query("CREATE TEMP TABLE t (a int)"));
        let other = world.servers[1].clone();
        world.send(&other, &answers("CI"));
        world.send(&other, &told(true));
        assert!(!second.is_dropped());
        world.send(&server, &told(!ends));
        world.wait_ms(100);
        assert_eq!(second.is_dropped(), !ends);
        assert!(!first.is_dropped());
        assert_eq!(world.pool.pins.get(), 1);
    }
}

#[test]
fn trap_24_a_client_that_stalls_in_its_own_message_is_cut_off_when_others_wait() {
    let mut world = World::new(1);
    let (client, other) = (world.client(), world.client());
    world.send(&client, &query(&"x".repeat(100_000))[..50_000]);
    let server = world.servers[0].clone();
    world.wait_ms(31_000);
    assert!(!client.is_dropped());
    world.send(&other, &query("SELECT 2"));
    world.wait_ms(900);
    assert!(!client.is_dropped(), "who has just come waits a moment");
    world.wait_ms(200);
    assert!(client.is_dropped() && server.is_dropped());
    assert_eq!(world.servers[1].kinds(), "Q");
}

#[test]
fn a_client_that_stalls_is_left_alone_while_a_connection_is_opened_for_those_who_wait() {
    let mut world = World::new(2);
    let (client, other, third) = (world.client(), world.client(), world.client());
    world.send(&client, &query(&"x".repeat(100_000))[..50_000]);
    world.wait_ms(31_000);
    world.opens_nothing(true);
    world.send(&other, &query("SELECT 2"));
    world.wait_ms(1_000);
    assert!(!client.is_dropped());
    world.opens_nothing(false);
    world.settle();
    assert_eq!(world.servers[1].kinds(), "Q");
    world.send(&third, &query("SELECT 3"));
    world.wait_ms(1_100);
    assert!(client.is_dropped(), "the pool is full");
}

/// A world whose clients wait in the middle of a transaction each, with rows that they do not take.
fn with_slow_readers(world: &mut World, count: usize) -> Vec<(Peer, Peer)> {
    let mut readers = Vec::new();
    for at in 0..count {
        let client = world.client();
        world.send(&client, &query("SELECT big"));
        let server = world.servers[at].clone();
        client.take_only(0);
        world.send(&server, &answers("DDDDDD").repeat(4_000));
        readers.push((client, server));
    }
    readers
}

#[test]
fn trap_24_readers_of_nothing_are_set_aside_after_a_second_and_cut_off_where_none_can_be() {
    let mut world = World::new(2);
    world.change_settings(|settings| settings.limits.idle_transaction_reserve = 1);
    let readers = with_slow_readers(&mut world, 2);
    world.wait_ms(900);
    let (one, two) = (world.client(), world.client());
    world.send(&one, &query("SELECT 1"));
    world.wait_ms(50);
    assert_eq!(world.servers.len(), 2, "not yet");
    world.wait_ms(150);
    assert_eq!(world.servers.len(), 3, "one does not count any more");
    let server = world.servers[2].clone();
    assert_eq!(server.kinds(), "Q");
    assert!(readers.iter().all(|(client, _)| !client.is_dropped()));
    // It has no room for another; a client that has waited for a second gets one of theirs, and one
    // is enough.
    world.send(&two, &query("SELECT 2"));
    world.wait_ms(800);
    assert!(readers.iter().all(|(client, _)| !client.is_dropped()));
    world.wait_ms(300);
    assert_eq!(readers.iter().filter(|(client, _)| client.is_dropped()).count(), 1);
    assert_eq!(world.servers[3].kinds(), "Q");
}

#[test]
fn a_reader_that_was_set_aside_and_reads_on_counts_again() {
    let mut world = World::new(1);
    world.change_settings(|settings| settings.limits.idle_transaction_reserve = 1);
    let readers = with_slow_readers(&mut world, 1);
    let (client, server) = &readers[0];
    let other = world.client();
    world.wait_ms(1_000);
    world.send(&other, &query("SELECT 1"));
    world.wait_ms(100);
    let second = world.servers[1].clone();
    assert_eq!(second.kinds(), "Q");
    assert_eq!(world.pool.lock().parked_count(), 1);
    world.take_all(client);
    world.takes(client);
    assert_eq!(world.pool.lock().parked_count(), 0);
    world.send(server, &answers("CI"));
    assert!(!client.is_dropped());
    assert!(server.is_dropped() || second.is_dropped() || world.pool.lock().total() <= 2);
    world.send(&second, &answers("CI"));
    assert!(world.pool.lock().total() <= 1, "the pool is back at its size");
}

#[test]
fn an_answer_that_has_not_been_tried_yet_does_not_stall() {
    // A query of a transaction that took long, whose answer comes in the turn of a tick.
    let mut world = World::new(1);
    let (client, other) = (world.client(), world.client());
    world.send(&client, &query("BEGIN"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("CT"));
    world.send(&client, &query("SELECT pg_sleep(60)"));
    world.send(&other, &query("SELECT 1"));
    world.wait_ms(60_000);
    world.put(&server, &answers("CT"));
    world.only_raise(&server);
    world.only_tick(100);
    world.settle();
    assert!(!client.is_dropped(), "it was cut off with its answer");
    assert!(client.kinds().ends_with("CZ"));
}

#[test]
fn a_message_that_crawls_is_cut_off_when_others_wait_and_one_that_flows_is_not() {
    for (a_second, cut) in [(1, true), (100_000, false)] {
        let mut world = World::new(1);
        world.change_settings(|settings| settings.client_read_timeout = Duration::from_secs(2));
        let (client, other) = (world.client(), world.client());
        let long = query(&"x".repeat(2_000_000));
        let mut at = 20_000;
        world.send(&client, &long[..at]);
        world.send(&other, &query("SELECT 2"));
        for _ in 0..10 {
            world.wait_ms(1_000);
            let part = &long[at..at + a_second];
            world.send(&client, part);
            at += a_second;
        }
        assert_eq!(client.is_dropped(), cut, "{a_second}");
        if !cut {
            world.send(&client, &long[at..]);
            let server = world.servers[0].clone();
            assert_eq!(server.received(), long);
            world.send(&server, &answers("CI"));
            assert_eq!(client.kinds(), "CZ");
        }
        assert_eq!(world.servers.last().unwrap().kinds(), "Q", "the other is served");
    }
}

#[test]
fn a_client_that_leaves_its_place_in_the_queue_frees_it() {
    let mut world = World::new(1);
    let (one, two, three) = (world.client(), world.client(), world.client());
    world.send(&one, &query("SELECT 1"));
    world.send(&two, &query("SELECT 2"));
    world.send(&three, &query("SELECT 3"));
    let server = world.servers[0].clone();
    world.close(&two);
    server.received();
    world.send(&server, &answers("CI"));
    assert_eq!(server.received(), query("SELECT 3"));
}

#[test]
fn views_of_pools_that_nobody_uses_are_forgotten_wherever_they_stand() {
    let mut world = World::new(1);
    let own = world.pool.clone();
    let mut short_lived = Vec::new();
    for id in 2..100 {
        world.pool = world.another_pool(id);
        short_lived.push(world.client());
    }
    world.pool = own;
    let client = world.client();
    world.send(&client, &query("BEGIN"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("CT"));
    assert_eq!(world.views(), 99);
    for peer in short_lived {
        world.close(&peer);
    }
    for _ in 0..64 {
        world.wait_ms(50);
    }
    assert_eq!(world.views(), 1, "and the one in use was the last");
    world.send(&client, &query("COMMIT"));
    world.send(&server, &answers("CI"));
    assert_eq!(client.kinds(), "CZCZ");
    assert_eq!(world.idle_backends(), 1);
}

#[test]
fn a_message_beyond_max_packet_size_ends_its_sender_alone() {
    let mut world = World::new(2);
    world.change_settings(|settings| settings.max_packet_size = 2000);
    let (long, other) = (world.client(), world.client());
    world.send(&other, &query("SELECT 1"));
    world.send(&long, &query(&"x".repeat(1994)));
    let (first, second) = (world.servers[0].clone(), world.servers[1].clone());
    assert_eq!(second.kinds(), "Q", "2000 bytes are not beyond it");
    world.send(&second, &answers("CI"));
    long.received();
    // Its header is enough.
    world.send(&long, &query(&"x".repeat(1995))[..5]);
    let told = String::from_utf8_lossy(&long.received()).into_owned();
    assert!(told.contains("54000") && told.contains("2001") && long.is_dropped(), "{told}");
    assert_eq!(world.asked.told, [SqlState::PROGRAM_LIMIT_EXCEEDED]);
    assert_eq!(world.idle_backends(), 1, "the server has not seen any of it");
    // A row, in any way.
    world.send(&first, &message(b'D', &[0; 1995]));
    assert!(!other.is_dropped());
    world.send(&first, &message(b'D', &[0; 1996])[..5]);
    assert!(other.is_dropped() && first.is_dropped());
}

#[test]
fn rows_that_come_together_pass_up_to_the_one_that_is_too_long() {
    for (rest, passed) in [(5, 2), (2001, 2), (2000, 3)] {
        let mut world = World::new(1);
        world.change_settings(|settings| settings.max_packet_size = 2000);
        let client = world.client();
        world.send(&client, &query("SELECT 1"));
        let server = world.servers[0].clone();
        let long = message(b'D', &vec![0; if rest == 2000 { 1995 } else { 1996 }]);
        let short = [message(b'D', b"one"), message(b'D', &[])].concat();
        world.send(&server, &[&short[..], &long[..rest.min(long.len())], &answers("D")].concat());
        assert_eq!(client.is_dropped(), passed == 2, "{rest}");
        let kinds = client.kinds();
        assert!(kinds.starts_with(&"D".repeat(passed)), "{rest}: {kinds}");
        assert_eq!(kinds.starts_with("DDD"), passed == 3, "{rest}: {kinds}");
    }
}

#[test]
fn a_statement_beyond_the_memory_for_texts_pins_its_client() {
    let mut world = World::new(1);
    world.limit_statement_memory(1000);
    let (one, other) = (world.client(), world.client());
    world.send(&one, &[parse("a", &"x".repeat(2000)), sync()].concat());
    let server = world.servers[0].clone();
    server.received();
    world.send(&server, &answers("1I"));
    assert_eq!(world.idle_backends(), 1, "the first is beyond it, and shared");
    world.send(&other, &[parse("b", "SELECT 1"), sync()].concat());
    assert_eq!(server.received(), [parse("b", "SELECT 1"), sync()].concat(), "under its own name");
    world.send(&server, &answers("1I"));
    assert_eq!(world.idle_backends(), 0);
    world.send(&other, &[bind("b"), execute(), sync()].concat());
    assert_eq!(server.received(), [bind("b"), execute(), sync()].concat());
    world.send(&server, &answers("2CI"));
    world.close(&other);
    assert!(server.is_dropped(), "no other client finds that name");
}

#[test]
fn an_answer_that_comes_of_time_alone_is_not_slept_upon() {
    let mut world = World::new(1);
    world.change_settings(|settings| {
        settings.server_reset_query = Box::default();
        settings.client_idle_timeout = Duration::from_secs(1);
    });
    let mode = PoolMode::Session;
    let (idle, next) =
        (world.client_of(LoopId(0), mode, &[]), world.client_of(LoopId(0), mode, &[]));
    assert_eq!((&*idle.kinds(), &*next.kinds()), ("KZ", ""));
    world.send(&idle, &query("SELECT 1"));
    world.send(&world.servers[0].clone(), &answers("CI"));
    let sleep = world.only_tick(1_100);
    assert!(idle.is_dropped(), "it has sat idle");
    assert!(sleep.is_zero() || next.kinds() == "KZ", "the next one is greeted after {sleep:?}");
    world.settle();
    assert_eq!(next.kinds(), "KZ");
}

#[test]
fn trap_16_a_query_after_a_cancelled_one_waits_until_the_signal_has_been_sent() {
    for mode in [PoolMode::Session, PoolMode::Transaction] {
        let mut world = World::new(1);
        let client = world.client_of(LoopId(0), mode, &[]);
        world.send(&client, &query("BEGIN"));
        let server = world.servers[0].clone();
        world.send(&server, &answers("CT"));
        world.send(&client, &query("SELECT pg_sleep(9)"));
        let process = if mode == PoolMode::Session { 101 } else { PROCESS_ID_FIRST };
        world.deliver(LoopId(0), ToLoop::Cancel { process, key: [9; 4].into() });
        assert_eq!(world.asked.cancels.len(), 1);
        // It has ended by itself, and the request is still on its way.
        world.send(&server, &answers("CT"));
        client.received();
        server.received();
        world.send(&client, &query("COMMIT"));
        assert_eq!(server.kinds(), "", "{mode:?}: the signal may hit it");
        world.send(&client, &query("SELECT 2"));
        let place = world.asked.cancels[0].backend;
        world.deliver(LoopId(0), ToLoop::CancelDone(place));
        assert_eq!(server.kinds(), "QQ");
        world.send(&server, &answers("CICI"));
        assert_eq!(client.kinds(), "CZCZ");
    }
}

#[test]
fn what_is_sent_after_a_cancelled_query_goes_on_with_it_until_it_is_answered() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &query("COPY t FROM STDIN"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("G"));
    let cancel = ToLoop::Cancel { process: PROCESS_ID_FIRST, key: [9; 4].into() };
    world.deliver(LoopId(0), cancel);
    server.received();
    world.send(&client, &message(b'd', b"1"));
    assert_eq!(server.kinds(), "d", "a copy reads on until the cancel arrives");
    world.send(&client, &message(b'X', b""));
    let place = world.asked.cancels[0].backend;
    world.send(&server, &answers("EI"));
    world.deliver(LoopId(0), ToLoop::CancelDone(place));
    assert!(client.is_dropped());
}

#[test]
fn a_goodbye_that_tls_still_holds_is_not_cut_off() {
    let mut world = World::new(1);
    let client = world.client();
    client.hold();
    let error = ClientError::fatal(SqlState::ADMIN_SHUTDOWN, "the last words");
    world.deliver(LoopId(0), ToLoop::KillAll { pool: None, error });
    assert!(!client.is_dropped(), "the reason has not gone out");
    world.wait_ms(100);
    assert!(!client.is_dropped(), "the reason has not gone out");
    client.let_go();
    world.takes(&client);
    assert!(client.is_dropped());
    assert!(String::from_utf8_lossy(&client.received()).contains("the last words"));
}

/// libpq drops a FATAL that it reads together with a ReadyForQuery.
#[test]
fn the_reason_of_a_disconnection_does_not_come_with_the_last_answer() {
    for next in [true, false] {
        let mut world = World::new(1);
        let client = world.client();
        world.send(&client, &query("SELECT 1"));
        let server = world.servers[0].clone();
        world.deliver(LoopId(0), ToLoop::Drain(goodbye()));
        world.send(&server, &answers("DCI"));
        assert_eq!(client.kinds(), "DCZ");
        assert_eq!(world.idle_backends(), 1, "it holds no place of the pool");
        if next {
            world.send(&client, &query("SELECT 2"));
        } else {
            world.wait_ms(20);
            assert!(!client.is_dropped());
            world.wait_ms(80);
        }
        assert_eq!(client.kinds(), "E");
        assert!(client.is_dropped());
        assert_eq!(server.kinds(), "Q", "the second query has not been carried out");
    }
}

/// It has had its last answer long ago, or awaits one: there is nothing to wait for.
#[test]
fn the_reason_of_a_disconnection_comes_at_once_where_no_answer_has_just_come() {
    let mut world = World::new(1);
    let (runs, waits) = (world.client(), world.client());
    let idle = world.client();
    world.send(&runs, &query("SELECT 1"));
    world.send(&waits, &query("SELECT 1"));
    world.wait_ms(100);
    world.deliver(LoopId(0), ToLoop::KillAll { pool: None, error: goodbye() });
    for client in [runs, waits, idle] {
        assert!(client.kinds().ends_with('E') && client.is_dropped());
    }
}

#[test]
fn tidying_has_an_end_without_cancel_wait_timeout_too() {
    let mut world = World::new(1);
    world.change_settings(|settings| settings.cancel_wait_timeout = Duration::ZERO);
    let client = world.client();
    world.send(&client, &query("SELECT pg_sleep(1e9)"));
    world.breaks(&client);
    world.wait_ms(50_000);
    assert!(!world.servers[0].is_dropped(), "it has its time");
    world.wait_ms(11_000);
    assert!(world.servers[0].is_dropped());
}

#[test]
fn a_session_that_is_greeted_late_has_its_client_idle_timeout() {
    let mut world = World::new(1);
    world.change_settings(|settings| settings.client_idle_timeout = Duration::from_secs(1));
    let first = world.client_of(LoopId(0), PoolMode::Session, &[]);
    let late = world.client_of(LoopId(0), PoolMode::Session, &[]);
    assert_eq!((first.kinds().as_str(), late.kinds().as_str()), ("KZ", ""));
    world.send(&first, &message(b'X', b""));
    let server = world.servers[0].clone();
    world.send(&server, &answers("CI")); // DISCARD ALL
    assert_eq!(late.kinds(), "KZ");
    world.wait_ms(900);
    assert!(!late.is_dropped());
    world.wait_ms(300);
    assert!(late.is_dropped());
    assert!(String::from_utf8_lossy(&late.received()).contains("57P05"));
}

#[test]
fn a_cancel_ends_the_wait_with_a_message_that_streams() {
    for extended in [false, true] {
        let mut world = World::new(1);
        let (holder, waiting, last) = (world.client(), world.client(), world.client());
        world.send(&holder, &query("SELECT pg_sleep(9)"));
        let long = "-".repeat(limits::WHOLE_MESSAGE_BYTES * 3);
        let whole = if extended { parse("", &long) } else { query(&long) };
        let (start, rest) = whole.split_at(limits::WHOLE_MESSAGE_BYTES + 100);
        world.send(&waiting, start);
        world.send(&last, &query("SELECT 2"));
        let cancel = ToLoop::Cancel { process: PROCESS_ID_FIRST + 1, key: [9; 4].into() };
        world.deliver(LoopId(0), cancel);
        assert_eq!(waiting.kinds(), if extended { "E" } else { "EZ" });
        world.send(&waiting, rest);
        if extended {
            world.send(&waiting, &[bind(""), execute(), sync()].concat());
            assert_eq!(waiting.kinds(), "Z");
        }
        assert_eq!(world.pool.lock().waiting_count(), 1, "it waits no more");
        let server = world.servers[0].clone();
        server.received();
        world.send(&server, &answers("CI"));
        assert_eq!(server.received(), query("SELECT 2"));
    }
}

#[test]
fn a_transaction_is_slow_from_log_min_duration_on_its_wait_included() {
    let mut world = World::new(1);
    world.change_settings(|settings| settings.log_min_duration = Duration::from_millis(300));
    let (first, second) = (world.client(), world.client());
    world.send(&first, &query("BEGIN"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("CT"));
    world.send(&second, &query("SELECT 2")); // waits
    world.wait_ms(200);
    world.send(&first, &query("COMMIT"));
    world.send(&server, &answers("CI"));
    assert_eq!(world.asked.slow, [], "200 ms are not slow");
    world.wait_ms(100);
    world.send(&server, &answers("CI"));
    assert_eq!(world.asked.slow, [(200_000, 100_000)]);
    world.send(&second, &query("SELECT 3"));
    world.wait_ms(250);
    world.send(&server, &answers("CI"));
    assert_eq!(world.asked.slow.len(), 1, "the wait was that of the transaction before");
    world.change_settings(|settings| settings.log_min_duration = Duration::ZERO);
    world.send(&second, &query("SELECT 4"));
    world.wait_ms(1000);
    world.send(&server, &answers("CI"));
    assert_eq!(world.asked.slow.len(), 1);
}
