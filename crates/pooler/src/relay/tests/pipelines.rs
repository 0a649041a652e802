//! Order, framing and release: what must hold for any pipeline.

use crate::ids::LoopId;
use crate::parts::identity::process_ids::PROCESS_ID_FIRST;
use crate::relay::client_info::PoolMode;
use crate::relay::limits;
use crate::relay::message::ToLoop;
use crate::relay::tests::harness::*;

#[test]
fn a_query_goes_through_and_its_backend_comes_back() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &query("SELECT 1"));
    let server = world.servers[0].clone();
    assert_eq!(server.received(), query("SELECT 1"));
    world.send(&server, &answers("DCI"));
    assert_eq!(client.received(), answers("DCI"));
    assert_eq!(world.idle_backends(), 1);
}

#[test]
fn half_a_message_holds_no_backend() {
    let mut world = World::new(1);
    let client = world.client();
    let message = query("SELECT 1");
    for byte in &message[..message.len() - 1] {
        world.send(&client, &[*byte]);
        assert_eq!(world.pool.lock().total(), 0);
    }
    world.send(&client, &message[message.len() - 1..]);
    assert_eq!(world.servers[0].received(), message);
}

#[test]
fn trap_02_a_backend_is_kept_until_the_last_sync_is_answered() {
    let mut world = World::new(1);
    let client = world.client();
    let pipeline = [parse("", "SELECT 1"), bind(""), execute(), sync()].concat();
    world.send(&client, &pipeline.repeat(3));
    let server = world.servers[0].clone();
    assert_eq!(server.kinds(), "PBESPBESPBES");
    for left in (0..3).rev() {
        world.send(&server, &answers("12CI"));
        assert_eq!(client.kinds(), "12CZ");
        assert_eq!(world.idle_backends(), u32::from(left == 0));
    }
}

#[test]
fn an_answer_split_at_every_byte_is_passed_on_whole() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &[parse("", "SELECT 1"), bind(""), execute(), sync()].concat());
    let server = world.servers[0].clone();
    let answer = answers("12DDCI");
    for byte in &answer {
        assert_eq!(world.idle_backends(), 0);
        world.send(&server, &[*byte]);
    }
    assert_eq!(client.received(), answer);
    assert_eq!(world.idle_backends(), 1);
}

#[test]
fn trap_03_flush_is_not_sync_and_keeps_the_backend() {
    let mut world = World::new(1);
    let (client, other) = (world.client(), world.client());
    world.send(&client, &[parse("", "SELECT 1"), bind(""), message(b'H', b"")].concat());
    let server = world.servers[0].clone();
    world.send(&server, &answers("12"));
    assert_eq!(client.kinds(), "12");
    world.send(&other, &query("SELECT 2"));
    assert_eq!(server.kinds(), "PBH", "the other client must not get the backend");
    world.send(&client, &[execute(), sync()].concat());
    assert_eq!(server.kinds(), "ES");
    world.send(&server, &answers("CI"));
    assert_eq!(server.kinds(), "Q", "now it may");
}

#[test]
fn trap_04_a_failed_parse_gives_its_name_free() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &[parse("s", "SELEC"), sync()].concat());
    let server = world.servers[0].clone();
    assert_eq!(server.kinds(), "PS");
    world.send(&server, &answers("EI"));
    assert_eq!(client.kinds(), "EZ");
    world.send(&client, &[parse("s", "SELECT 1"), sync()].concat());
    assert_eq!(server.kinds(), "PS", "the name is free again");
    world.send(&server, &answers("1I"));
    assert_eq!(client.kinds(), "1Z");
    // And the failed one does not count as prepared.
    world.send(&client, &[parse("t", "SELEC"), sync()].concat());
    assert_eq!(server.kinds(), "PS");
}

#[test]
fn trap_05_answers_of_ours_keep_their_place() {
    let mut world = World::new(1);
    let (one, two) = (world.client(), world.client());
    world.send(&one, &[parse("a", "SELECT 1"), sync()].concat());
    let server = world.servers[0].clone();
    world.send(&server, &answers("1I"));
    assert_eq!(one.kinds(), "1Z");
    server.received();
    // The second client's Parse is known; its Bind before it must be answered first.
    world.send(
        &two,
        &[parse("x", "SELECT 2"), bind("x"), parse("y", "SELECT 1"), bind("y"), sync()].concat(),
    );
    assert_eq!(server.kinds(), "PBBS");
    world.send(&server, &answers("1"));
    assert_eq!(two.kinds(), "1");
    world.send(&server, &answers("2"));
    world.send(&server, &answers("2I"));
    assert_eq!(two.kinds(), "212Z");
}

#[test]
fn a_parse_that_is_known_and_flushed_is_answered_at_once() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &[parse("a", "SELECT 1"), sync()].concat());
    let server = world.servers[0].clone();
    world.send(&server, &answers("1I"));
    client.received();
    world.send(&client, &[parse("b", "SELECT 1"), message(b'H', b"")].concat());
    assert_eq!(client.kinds(), "1");
}

#[test]
fn a_name_that_exists_is_refused_with_the_servers_own_words() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &[parse("a", "SELECT 1"), sync()].concat());
    let server = world.servers[0].clone();
    world.send(&server, &answers("1I"));
    client.received();
    world.send(&client, &[parse("a", "SELECT 2"), bind("a"), sync()].concat());
    world.send(&server, &answers("UI"));
    let answer = client.received();
    assert_eq!(kinds(&answer), "EZ");
    let text = String::from_utf8_lossy(&answer);
    assert!(text.contains("42P05") && text.contains("\"a\" already exists"), "{text}");
}

#[test]
fn trap_15_a_sync_in_the_middle_of_a_copy_gets_no_answer() {
    let mut world = World::new(1);
    let client = world.client();
    // As libpq does with an extended-protocol COPY: Sync comes at once, and again at the end.
    let start = [parse("", "COPY t FROM STDIN"), bind(""), execute(), sync()].concat();
    world.send(&client, &start);
    let server = world.servers[0].clone();
    world.send(&server, &answers("12G"));
    assert_eq!(client.kinds(), "12G");
    world.send(&client, &[message(b'd', b"1\n"), message(b'c', b""), sync()].concat());
    assert_eq!(server.kinds(), "PBESdcS");
    world.send(&server, &answers("C"));
    assert_eq!(world.idle_backends(), 0);
    world.send(&server, &answers("I"));
    assert_eq!(client.kinds(), "CZ");
    assert_eq!(world.idle_backends(), 1);
}

#[test]
fn trap_15_copy_data_after_an_error_goes_nowhere() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &query("COPY t FROM STDIN"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("G"));
    world.send(&client, &message(b'd', b"bad\n"));
    world.send(&server, &answers("EI"));
    assert_eq!(world.idle_backends(), 1);
    server.received();
    world.send(&client, &[message(b'd', &[b'x'; 100_000]), message(b'c', b"")].concat());
    assert_eq!(server.kinds(), "", "the next client's backend must not see it");
    world.send(&client, &query("SELECT 1"));
    assert_eq!(server.kinds(), "Q");
}

#[test]
fn trap_15_a_pipeline_after_refused_copy_data_is_answered() {
    for told in [false, true] {
        let mut world = World::new(1);
        let client = world.client();
        world.send(&client, &query("COPY t FROM STDIN"));
        let server = world.servers[0].clone();
        world.send(&server, &answers("G"));
        world.send(&client, &message(b'd', b"bad\n"));
        if told {
            world.send(&server, &answers("EI"));
        }
        // Without CopyDone or CopyFail: the server reads on as soon as it has refused the data.
        let late = message(b'd', &[b'x'; 20_000]);
        let pipeline = [parse("", "SELECT 1"), bind(""), execute(), sync()].concat();
        world.send(&client, &[late, pipeline.clone(), pipeline].concat());
        if !told {
            world.send(&server, &answers("EI"));
        }
        world.send(&server, &answers("12CI12CI"));
        assert_eq!(client.kinds(), "GEZ12CZ12CZ");
        assert_eq!(world.idle_backends(), 1);
    }
}

/// Of the simulation, seed 158: its CopyDone counted as that of the first one.
#[test]
fn trap_15_a_copy_after_refused_copy_data_has_data_of_its_own() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &query("COPY t FROM STDIN"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("G"));
    let second = [parse("", "COPY t FROM STDIN"), bind(""), execute(), sync()].concat();
    world.send(&client, &[message(b'd', b"bad\n"), second, message(b'c', b""), sync()].concat());
    world.send(&server, &answers("EI12GCI"));
    assert_eq!(client.kinds(), "GEZ12GCZ");
    assert_eq!(world.idle_backends(), 1);
}

/// Of the simulation, seed 366: what came after it counted as in force.
#[test]
fn trap_15_a_discard_all_after_refused_copy_data_is_settled_before_more_follows() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &query("COPY t FROM STDIN"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("G"));
    let pipeline = [parse("", "SELECT 1"), bind(""), execute(), sync()].concat();
    let after = [pipeline, query("DISCARD ALL"), query("SELECT 1/0")].concat();
    world.send(&client, &[message(b'd', b"bad\n"), after].concat());
    assert_eq!(server.kinds(), "QdPBES");
    world.send(&server, &answers("EI12CI"));
    assert_eq!(server.received(), query("DISCARD ALL"));
    world.send(&server, &answers("CI"));
    assert_eq!(server.received(), query("SELECT 1/0"));
}

/// Of the simulation, seed 394.
#[test]
fn trap_15_nothing_of_ours_goes_after_refused_copy_data_that_fails_in_their_block() {
    let mut world = World::new(1);
    let (client, server) = world.client_with("p", "SELECT 1");
    world.send(&client, &query("BEGIN; COPY t FROM STDIN"));
    world.send(&server, &answers("CG"));
    server.received();
    let after = query("ROLLBACK; DISCARD ALL; SET; SELECT 2");
    world.send(&client, &[message(b'd', b"bad\n"), after.clone()].concat());
    let sent = server.received();
    assert_eq!(kinds(&sent), "dCSQ", "a Close does not fail");
    assert!(sent.ends_with(&after));
    world.send(&server, &answers("EF3FCDCI"));
    assert_eq!(client.kinds(), "CGEZCDCZ");
}

#[test]
fn trap_15_a_sync_and_a_pipeline_after_refused_copy_data_are_answered() {
    let copies = [
        ([parse("", "COPY t FROM STDIN"), bind(""), execute()].concat(), "12", "E"),
        (query("COPY t FROM STDIN"), "", "EI"), // it ends by itself
    ];
    let pipeline = [parse("", "SELECT 1"), bind(""), execute(), sync()].concat();
    for (copy, begun, error) in copies {
        for (syncs, told) in [(1, false), (1, true), (2, false), (2, true)] {
            let mut world = World::new(1);
            let client = world.client();
            world.send(&client, &copy);
            let server = world.servers[0].clone();
            world.send(&server, &answers(&[begun, "G"].concat()));
            world.send(&client, &[message(b'd', b"bad\n"), sync().repeat(syncs)].concat());
            if told {
                world.send(&server, &answers(error));
            }
            world.send(&client, &pipeline);
            if !told {
                world.send(&server, &answers(error));
            }
            world.send(&server, &answers(&["I".repeat(syncs).as_str(), "12CI"].concat()));
            let ends = error.replace('I', "Z") + &"Z".repeat(syncs);
            assert_eq!(client.kinds(), [begun, "G", &ends, "12CZ"].concat(), "{syncs} {told}");
            assert_eq!(world.idle_backends(), 1, "{syncs} {told}");
        }
    }
}

#[test]
fn trap_15_syncs_between_copy_data_are_answered_or_not() {
    // The data before the first Sync was refused, or the data after it.
    for early in [true, false] {
        let mut world = World::new(1);
        let client = world.client();
        let copy = [parse("", "COPY t FROM STDIN"), bind(""), execute()].concat();
        world.send(&client, &copy);
        let server = world.servers[0].clone();
        world.send(&server, &answers("12G"));
        let data = message(b'd', b"1\n");
        let pipeline = [parse("", "SELECT 1"), bind(""), execute(), sync()].concat();
        world.send(&client, &[data.clone(), sync(), data, sync(), pipeline].concat());
        world.send(&server, &answers(if early { "EII12CI" } else { "EI12CI" }));
        assert_eq!(client.kinds(), if early { "12GEZZ12CZ" } else { "12GEZ12CZ" });
        let other = world.client();
        world.send(&other, &query("SELECT 2"));
        if !early {
            server.received();
            world.send(&server, &[message(b'I', b""), answers("I")].concat()); // the fence
        }
        world.send(&server, &answers("CI"));
        assert_eq!(other.kinds(), "CZ");
        assert_eq!(world.idle_backends(), 1);
    }
}

#[test]
fn trap_15_a_copy_refused_before_it_reads_answers_the_sync_after_it() {
    // A trigger for the statement has raised an error: the Sync has been read by no copy.
    let mut world = World::new(1);
    let client = world.client();
    let copy = [parse("", "COPY t FROM STDIN"), bind(""), execute(), sync()].concat();
    let pipeline = [parse("", "SELECT 1"), bind(""), execute(), sync()].concat();
    world.send(&client, &[copy, pipeline].concat());
    let server = world.servers[0].clone();
    world.send(&server, &answers("12GEI12CI"));
    assert_eq!(client.kinds(), "12GEZ12CZ");
    assert_eq!(world.idle_backends(), 1);
}

#[test]
fn trap_15_a_flood_of_syncs_within_a_copy_is_bounded() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &query("COPY t FROM STDIN"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("G"));
    let many = 100_000;
    for _ in 0..100 {
        world.send(&client, &sync().repeat(many / 100));
        server.received();
    }
    world.send(&server, &answers("EI"));
    world.send(&server, &answers(&"I".repeat(many)));
    assert_eq!(client.kinds(), ["GEZ".to_owned(), "Z".repeat(many)].concat());
}

#[test]
fn a_sync_or_flush_with_a_body_is_the_servers_to_refuse() {
    for (sent, answer, told) in [(b'S', "EI", "EZ"), (b'H', "E", "E")] {
        let mut world = World::new(1);
        let client = world.client();
        world.send(&client, &message(sent, b"abc"));
        let server = world.servers[0].clone();
        assert_eq!(server.kinds(), String::from(char::from(sent)));
        world.send(&server, &answers(answer));
        assert_eq!(client.kinds(), told);
        if sent == b'H' {
            world.send(&server, &answers("I")); // of the Sync that Hawser sends
            world.send(&client, &sync());
            assert_eq!(client.kinds(), "Z");
        }
        assert_eq!(world.idle_backends(), 1);
    }
}

#[test]
fn trap_16_a_backend_waits_for_the_end_of_a_cancel_request() {
    let mut world = World::new(1);
    let (client, other) = (world.client(), world.client());
    world.send(&client, &query("SELECT pg_sleep(10)"));
    world.send(&other, &query("SELECT 2"));
    let server = world.servers[0].clone();
    server.received();
    let cancel = |key: [u8; 4]| ToLoop::Cancel { process: PROCESS_ID_FIRST, key: key.into() };
    world.deliver(LoopId(0), cancel([1; 4]));
    assert_eq!(world.asked.cancels.len(), 0, "a wrong key");
    world.deliver(LoopId(0), cancel([9; 4]));
    world.deliver(LoopId(0), cancel([9; 4]));
    assert_eq!(world.asked.cancels.len(), 1, "one at a time");
    let request = world.asked.cancels[0].clone();
    assert_eq!((request.process, &*request.key), (101, &[1u8; 4][..]));
    // The query ends by itself while the cancel request is still in flight.
    world.send(&server, &answers("CI"));
    assert_eq!(client.kinds(), "CZ");
    assert_eq!(server.kinds(), "", "the signal could still hit the other's query");
    world.deliver(LoopId(0), ToLoop::CancelDone(request.backend));
    assert_eq!(server.kinds(), "Q");
}

#[test]
fn a_cancel_ends_the_wait_of_a_client_that_waits() {
    let mut world = World::new(1);
    let (client, other) = (world.client(), world.client());
    world.send(&client, &query("SELECT 1"));
    world.send(&other, &query("SELECT 2"));
    let key = ToLoop::Cancel { process: PROCESS_ID_FIRST + 1, key: [9; 4].into() };
    world.deliver(LoopId(0), key);
    let answer = other.received();
    assert_eq!(kinds(&answer), "EZ");
    assert!(String::from_utf8_lossy(&answer).contains("57014"));
    let server = world.servers[0].clone();
    server.received();
    world.send(&server, &answers("CI"));
    assert_eq!(server.kinds(), "", "the cancelled query must not run");
    world.send(&other, &query("SELECT 3"));
    assert_eq!(server.received(), query("SELECT 3"));
}

#[test]
fn trap_14_an_answer_out_of_turn_closes_the_connection() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &query("SELECT 1"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("2"));
    assert!(server.is_dropped() && client.is_dropped());
    assert!(String::from_utf8_lossy(&client.received()).contains("08006"));
    assert_eq!(world.pool.lock().total(), 0);
}

#[test]
fn trap_21_a_client_that_leaves_in_mid_transaction_frees_its_backend_in_order() {
    let mut world = World::new(1);
    let (client, other) = (world.client(), world.client());
    world.send(&client, &query("BEGIN"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("CT"));
    world.send(&other, &query("SELECT 2"));
    server.received();
    world.close(&client);
    assert_eq!(server.received(), query("ROLLBACK"));
    world.send(&server, &answers("CI"));
    assert_eq!(server.received(), query("SELECT 2"));
    world.send(&server, &answers("CI"));
    assert_eq!(other.kinds(), "CZ", "and none of the ROLLBACK's answer");
}

#[test]
fn trap_21_a_client_that_leaves_in_mid_query_has_it_cancelled() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &[parse("", "SELECT pg_sleep(9)"), bind(""), execute()].concat());
    let server = world.servers[0].clone();
    world.close(&client);
    assert_eq!(world.asked.cancels.len(), 1);
    assert_eq!(server.kinds(), "PBEPS", "made to fail, with the Sync that it did not send");
    world.send(&server, &answers("12EI"));
    assert_eq!(world.idle_backends(), 0, "the cancel request is still under way");
    let request = world.asked.cancels[0].clone();
    world.deliver(LoopId(0), ToLoop::CancelDone(request.backend));
    assert_eq!(world.idle_backends(), 1);
}

#[test]
fn trap_21_a_client_that_leaves_in_mid_message_costs_its_backend() {
    let mut world = World::new(1);
    let client = world.client();
    let long = query(&"x".repeat(100_000));
    world.send(&client, &long[..50_000]);
    let server = world.servers[0].clone();
    world.close(&client);
    assert!(server.is_dropped());
    assert_eq!(world.pool.lock().total(), 0);
}

#[test]
fn trap_24_a_client_that_reads_nothing_is_cut_off_when_others_wait() {
    let mut world = World::new(1);
    let (client, other) = (world.client(), world.client());
    client.take_only(10);
    world.send(&client, &query("SELECT many"));
    let server = world.servers[0].clone();
    let row = message(b'D', &[b'x'; 10_000]);
    for _ in 0..50 {
        world.send(&server, &row);
    }
    world.wait_ms(31_000);
    assert!(!client.is_dropped(), "no client waits");
    world.send(&other, &query("SELECT 2"));
    world.wait_ms(900);
    assert!(!client.is_dropped(), "who has just come waits a moment");
    world.wait_ms(200);
    assert!(client.is_dropped() && server.is_dropped());
    assert_eq!(world.servers.len(), 2, "and the other gets a backend");
    assert_eq!(world.servers[1].kinds(), "Q");
}

#[test]
fn a_slow_reader_stops_the_server_and_gets_everything_in_the_end() {
    let mut world = World::new(1);
    let client = world.client();
    client.take_only(0);
    world.send(&client, &query("SELECT many"));
    let server = world.servers[0].clone();
    let mut sent = Vec::new();
    for n in 0..100u8 {
        let row = message(b'D', &[n; 10_000]);
        world.send(&server, &row);
        sent.extend(row);
    }
    world.send(&server, &answers("CI"));
    sent.extend(answers("CI"));
    assert_eq!(client.received(), b"");
    world.take_all(&client);
    assert_eq!(client.received(), sent);
    assert_eq!(world.idle_backends(), 1);
}

#[test]
fn a_client_of_another_loop_gets_the_backend_in_turn() {
    let mut world = World::with_loops(2, 1);
    let one = world.client_of(LoopId(0), PoolMode::Transaction, &[]);
    let two = world.client_of(LoopId(1), PoolMode::Transaction, &[]);
    world.send(&one, &query("SELECT 1"));
    world.send(&two, &query("SELECT 2"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("CI"));
    assert_eq!(one.kinds(), "CZ");
    world.send(&server, &answers("CI"));
    assert_eq!(two.kinds(), "CZ");
    // Idle now, at home on loop 1; loop 0 takes it over.
    world.send(&one, &query("SELECT 3"));
    world.send(&server, &answers("CI"));
    assert_eq!(one.kinds(), "CZ");
    assert_eq!(world.servers.len(), 1);
}

#[test]
fn a_malformed_message_ends_only_the_client_that_sent_it() {
    let mut world = World::new(1);
    let (bad, good) = (world.client(), world.client());
    world.send(&bad, b"Q\0\0\0\x01");
    assert!(bad.is_dropped());
    assert!(String::from_utf8_lossy(&bad.received()).contains("08P01"));
    let unknown = world.client();
    world.send(&unknown, b"!\0\0\0\x04");
    assert!(String::from_utf8_lossy(&unknown.received()).contains("invalid frontend message type"));
    world.send(&good, &query("SELECT 1"));
    assert_eq!(world.servers[0].kinds(), "Q");
}

#[test]
fn trap_15_a_client_that_sends_no_sync_after_an_error_holds_no_backend() {
    let mut world = World::new(1);
    let (client, other) = (world.client(), world.client());
    world.send(&client, &[parse("", "SELEC"), bind("")].concat());
    let server = world.servers[0].clone();
    world.send(&server, &answers("E"));
    assert_eq!(client.kinds(), "E");
    assert_eq!(server.kinds(), "PBS", "a Sync of ours");
    world.send(&server, &answers("I"));
    assert_eq!(client.kinds(), "", "that is not the client's");
    world.send(&other, &query("SELECT 2"));
    assert_eq!(server.kinds(), "Q");
    world.send(&server, &answers("CI"));
    // Messages before its Sync are discarded, also a simple query.
    world.send(&client, &[execute(), query("SELECT 3"), message(b'd', &[b'x'; 40_000])].concat());
    assert_eq!((client.kinds(), server.kinds()), (String::new(), String::new()));
    world.send(&client, &[sync(), query("SELECT 4")].concat());
    assert_eq!(client.kinds(), "Z");
    assert_eq!(server.kinds(), "Q");
}

#[test]
fn a_sync_with_a_body_after_an_error_is_an_error_and_ends_the_pipeline() {
    for answered in [false, true] {
        let mut world = World::new(1);
        let client = world.client();
        world.send(&client, &[parse("", "SELEC"), bind("")].concat());
        let server = world.servers[0].clone();
        world.send(&server, &answers("E"));
        if answered {
            world.send(&server, &answers("I"));
        }
        assert_eq!(client.kinds(), "E");
        world.send(&client, &message(b'S', b"x"));
        if !answered {
            assert_eq!(client.kinds(), "E", "ours is not answered");
            world.send(&server, &answers("I"));
            assert_eq!(client.kinds(), "Z");
        } else {
            assert_eq!(client.kinds(), "EZ");
        }
        assert_eq!(world.idle_backends(), 1);
        world.send(&client, &query("SELECT 1"));
        world.send(&server, &answers("CI"));
        assert_eq!(client.kinds(), "CZ");
    }
}

#[test]
fn a_flush_with_a_body_in_a_copy_is_ignored() {
    for told in [false, true] {
        let mut world = World::new(1);
        let client = world.client();
        world.send(&client, &query("COPY t FROM STDIN"));
        let server = world.servers[0].clone();
        let (mut flush, mut came) = (message(b'H', b"x"), "GCI");
        if told {
            world.send(&server, &answers("G"));
            came = "CI";
        }
        flush.extend(message(b'd', b"1\n"));
        flush.extend(message(b'c', b""));
        world.send(&client, &flush);
        world.send(&server, &answers(came));
        assert_eq!(client.kinds(), "GCZ");
        assert_eq!(world.idle_backends(), 1);
    }
}

#[test]
fn the_clients_own_sync_overtaken_by_ours_is_answered_once() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &[parse("", "BEGIN"), bind(""), execute(), parse("", "SELEC")].concat());
    let server = world.servers[0].clone();
    world.send(&server, &answers("12CE"));
    world.send(&client, &sync());
    assert_eq!(client.kinds(), "12CE");
    // The block that the pipeline opened has failed now, and the client gets that.
    world.send(&server, &answers("F"));
    assert_eq!(client.received(), answers("F"));
    assert_eq!(world.idle_backends(), 0, "it is in a transaction");
}

#[test]
fn a_statement_that_was_prepared_once_is_prepared_without_a_backend() {
    let mut world = World::new(1);
    let (one, two) = (world.client(), world.client());
    world.send(&one, &[parse("a", "BEGIN"), sync()].concat());
    let server = world.servers[0].clone();
    world.send(&server, &answers("1I"));
    world.send(&one, &query("BEGIN"));
    world.send(&server, &answers("CT"));
    server.received();
    // No backend is free, and none is needed.
    world.send(&two, &[parse("b", "BEGIN"), sync()].concat());
    assert_eq!(two.kinds(), "1Z");
    assert_eq!(world.pool.lock().waiting_count(), 0);
}

#[test]
fn a_long_message_streams_only_once_much_of_it_is_there() {
    let mut world = World::new(1);
    let client = world.client();
    let long = query(&format!("SELECT '{}'", "a".repeat(300_000)));
    world.send(&client, &long[..5_000]);
    assert_eq!(world.pool.lock().total(), 0, "half a message holds no backend");
    world.send(&client, &long[5_000..]);
    assert_eq!(world.servers[0].received(), long);
}

#[test]
fn a_client_that_says_goodbye_still_gets_what_it_asked_for() {
    let mut world = World::new(1);
    let (client, other) = (world.client(), world.client());
    world.send(&client, &[query("SELECT 'last words'"), message(b'X', b"")].concat());
    world.close(&client);
    let server = world.servers[0].clone();
    assert_eq!(server.kinds(), "Q");
    world.send(&server, &answers("DCI"));
    assert_eq!(client.kinds(), "DCZ");
    assert!(client.is_dropped());
    // But a client that has given up, and closed its connection, keeps no backend from others.
    let given_up = world.client();
    world.send(&given_up, &query("SELECT pg_sleep(99)"));
    world.wait_ms(100);
    world.say_and_close(&given_up, &message(b'X', b""));
    assert_eq!(world.asked.cancels.len(), 0);
    world.send(&other, &query("SELECT 1"));
    world.wait_ms(100);
    assert_eq!(world.asked.cancels.len(), 1);
    let place = world.asked.cancels.pop().unwrap().backend;
    world.deliver(LoopId(0), ToLoop::CancelDone(place));
    world.send(&server, &answers("EI"));
    world.send(&server, &answers("CI"));
    assert_eq!(other.kinds(), "CZ");
    // Also when others wait; but not forever: no client may be there for the answer.
    let client = world.client();
    world.send(&client, &[query("INSERT"), message(b'X', b"")].concat());
    world.close(&client);
    world.send(&other, &query("SELECT 1"));
    let timeout = world.pool.settings().client_read_timeout.as_millis() as u64;
    world.wait_ms(timeout - 100);
    world.breaks(&client);
    assert_eq!(world.asked.cancels.len(), 0, "it would be carried out without a pooler");
    world.wait_ms(200);
    assert_eq!(world.asked.cancels.len(), 1);
}

#[test]
fn a_query_with_a_goodbye_after_it_is_carried_out_though_others_wait() {
    for mode in [PoolMode::Session, PoolMode::Transaction] {
        let mut world = World::new(1);
        let client = world.client_of(LoopId(0), mode, &[]);
        let other = world.client();
        world.send(&client, &[query("INSERT"), message(b'X', b"")].concat());
        world.close(&client);
        world.send(&other, &query("SELECT 1"));
        for _ in 0..20 {
            world.wait_ms(1_000);
        }
        assert_eq!(world.asked.cancels.len(), 0, "{mode:?}");
        let server = world.servers[0].clone();
        world.send(&server, &answers("CI"));
        assert!(client.is_dropped());
    }
}

#[test]
fn a_simple_query_in_a_pipeline_costs_a_connection_to_postgresql_18_and_no_other() {
    for (version, closed) in
        [("15.20 (Debian 15.20-0+deb12u1)", false), ("18.4", true), ("", false)]
    {
        let mut world = World::new(1);
        world.server_version = version;
        let client = world.client();
        let mixed = [parse("", "SELECT 1"), bind(""), execute(), query("SELECT 2"), sync()];
        world.send(&client, &mixed.concat());
        let server = world.servers[0].clone();
        world.send(&server, &answers("12CCTI"));
        assert_eq!(client.kinds(), "12CCZZ");
        assert_eq!(server.is_dropped(), closed, "{version}");
    }
}

/// A Bind of the unnamed statement with one parameter of this size.
fn long_bind(bytes: usize) -> Vec<u8> {
    let mut body = b"\0\0\0\0\0\x01".to_vec();
    body.extend_from_slice(&u32::try_from(bytes).unwrap().to_be_bytes());
    body.resize(body.len() + bytes, b'S');
    body.extend_from_slice(&[0, 0]);
    message(b'B', &body)
}

#[test]
fn a_pipeline_that_fails_in_the_middle_of_a_message_gets_its_sync_after_that_message() {
    let long = long_bind(3 * limits::WHOLE_MESSAGE_BYTES);
    for split in [limits::WHOLE_MESSAGE_BYTES, limits::WHOLE_MESSAGE_BYTES + 1, long.len() - 1] {
        for cancelled in [false, true] {
            let mut world = World::new(1);
            let client = world.client();
            let start = [parse("", "INSERT"), bind(""), execute(), bind(""), execute()].concat();
            world.send(&client, &[&start[..], &long[..split]].concat());
            let server = world.servers[0].clone();
            assert_eq!(server.received().len(), start.len() + split);
            if cancelled {
                let cancel = ToLoop::Cancel { process: PROCESS_ID_FIRST, key: [9; 4].into() };
                world.deliver(LoopId(0), cancel);
                let request = world.asked.cancels.pop().unwrap();
                world.deliver(LoopId(0), ToLoop::CancelDone(request.backend));
            }
            world.send(&server, &answers("12C2E"));
            assert_eq!(client.kinds(), "12C2E");
            assert_eq!(server.received(), b"", "the server reads the rest of the message first");
            world.send(&client, &long[split..]);
            assert_eq!(server.received(), [&long[split..], &sync()].concat());
            world.send(&server, &answers("I"));
            world.send(&client, &[execute(), long_bind(20), execute(), sync()].concat());
            assert_eq!(server.received(), b"");
            assert_eq!(client.kinds(), "Z");
            assert_eq!(world.idle_backends(), 1);
            world.send(&client, &query("SELECT 1"));
            assert_eq!(server.kinds(), "Q");
        }
    }
}

#[test]
fn a_client_that_leaves_in_the_middle_of_a_message_of_a_failed_pipeline_takes_its_backend_along() {
    let mut world = World::new(1);
    let client = world.client();
    let long = long_bind(3 * limits::WHOLE_MESSAGE_BYTES);
    world.send(&client, &[&parse("", "INSERT")[..], &long[..limits::WHOLE_MESSAGE_BYTES]].concat());
    let server = world.servers[0].clone();
    server.received();
    world.send(&server, &answers("E"));
    assert_eq!(server.received(), b"");
    world.close(&client);
    assert_eq!(server.received(), b"");
    assert!(server.is_dropped());
}
