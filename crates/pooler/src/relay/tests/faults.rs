//! Errors in the middle of a pipeline, and misbehaving clients and servers: none may affect another
//! client, or keep a backend forever.

use crate::ids::LoopId;
use crate::relay::client_info::PoolMode;
use crate::relay::message::ToLoop;
use crate::relay::socket::Token;
use crate::relay::tests::harness::*;
use crate::wire::error::{ClientError, SqlState};

/// Close of a statement.
fn close(name: &str) -> Vec<u8> {
    message(b'C', &[b"S", name.as_bytes(), b"\0"].concat())
}

fn flush() -> Vec<u8> {
    message(b'H', b"")
}

#[test]
fn trap_02_an_error_does_not_hide_that_the_next_pipeline_has_no_sync_yet() {
    let mut world = World::new(1);
    let (client, other) = (world.client(), world.client());
    world.send(&client, &[parse("", "SELEC"), sync()].concat());
    world.send(&client, &[parse("", "SELECT 1"), bind(""), flush()].concat());
    let server = world.servers[0].clone();
    assert_eq!(server.kinds(), "PSPBH");
    world.send(&server, &answers("EI12"));
    assert_eq!(client.kinds(), "EZ12");
    world.send(&other, &query("SELECT 2"));
    assert_eq!(server.kinds(), "", "the portal is still open");
    world.send(&client, &[execute(), sync()].concat());
    world.send(&server, &answers("CI"));
    assert_eq!(client.kinds(), "CZ");
    assert_eq!(server.kinds(), "ESQ");
}

#[test]
fn what_the_server_ignores_after_an_error_names_and_closes_nothing() {
    let mut world = World::new(1);
    let (client, server) = world.client_with("kept", "SELECT 1");
    world.send(&client, &[parse("", "SELEC"), flush()].concat());
    world.send(&server, &answers("E"));
    assert_eq!(client.kinds(), "E");
    server.received();
    world.send(&client, &[parse("new", "SELECT 2"), close("kept"), query("DISCARD ALL")].concat());
    world.send(&client, &sync());
    assert_eq!(server.kinds(), "", "a Sync of ours has gone before");
    world.send(&server, &answers("I"));
    assert_eq!(client.kinds(), "Z");
    world.send(&client, &[bind("kept"), execute(), sync()].concat());
    assert_eq!(server.kinds(), "BES", "it is still there");
    world.send(&server, &answers("2CI"));
    world.send(&client, &[bind("new"), execute(), sync()].concat());
    assert!(
        String::from_utf8_lossy(&server.received()).contains("\0new\0"),
        "the server knows no such name, and says so"
    );
}

#[test]
fn a_close_after_an_error_that_is_still_under_way_takes_nothing_away() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &[parse("kept", "SELECT 1"), sync()].concat());
    let server = world.servers[0].clone();
    world.send(&server, &answers("1I"));
    world.send(&client, &[parse("", "SELEC"), close("kept"), sync()].concat());
    world.send(&server, &answers("EI"));
    server.received();
    world.send(&client, &[bind("kept"), execute(), sync()].concat());
    let sent = server.received();
    assert_eq!(kinds(&sent), "BES");
    assert!(!String::from_utf8_lossy(&sent).contains("kept"), "under its shared name");
}

#[test]
fn what_the_server_ignores_after_an_error_leaves_the_unnamed_statement_as_it_was() {
    for ignored in [
        close(""),
        parse("", "SELECT 'two'"),
        query("SELECT 2"),
        [parse("", "SELECT 'two'"), close(""), query("SELECT 2")].concat(),
    ] {
        let mut world = World::new(1);
        let client = world.client();
        world.send(&client, &[parse("", "SELECT 'one'"), sync()].concat());
        let server = world.servers[0].clone();
        world.send(&server, &answers("1I"));
        world.send(&client, &[bind("nonesuch"), ignored, sync()].concat());
        world.send(&server, &answers("EI"));
        server.received();
        world.send(&client, &[bind(""), execute(), sync()].concat());
        let sent = server.received();
        assert_eq!(kinds(&sent), "PBES", "it is prepared again, to be certain");
        assert!(String::from_utf8_lossy(&sent).contains("SELECT 'one'"));
    }
}

#[test]
fn a_long_parse_that_the_server_ignores_leaves_no_other_clients_unnamed_statement() {
    let long = format!("SELECT '{}'", "x".repeat(200_000));
    for own in [false, true] {
        let mut world = World::new(1);
        let (one, two) = (world.client(), world.client());
        if own {
            world.send(&two, &[parse("", "SELECT 'two'"), bind(""), execute(), sync()].concat());
            world.send(&world.servers[0].clone(), &answers("12CI"));
        }
        world.send(&one, &[parse("", "SELECT 'one'"), bind(""), execute(), sync()].concat());
        let server = world.servers[0].clone();
        world.send(&server, &answers("12CI"));
        for part in [bind("nonesuch"), parse("", &long), sync()].concat().chunks(10_000) {
            world.send(&two, part);
        }
        server.received();
        world.send(&server, &answers("EI"));
        assert_eq!(server.kinds(), "X", "what was prepared there is not shared");
        world.send(&two, &[bind(""), execute(), sync()].concat());
        let sent = world.servers[1].received();
        assert_eq!(kinds(&sent), if own { "PBES" } else { "BES" }, "on another server connection");
        assert_eq!(String::from_utf8_lossy(&sent).contains("SELECT 'two'"), own);
    }
}

#[test]
fn a_deallocate_that_is_answered_here_takes_an_unnamed_statement_away_that_the_server_alone_knows()
{
    let mut world = World::new(1);
    let (client, server) = world.client_with("s", "SELECT 1");
    let long = format!("SELECT '{}'", "x".repeat(200_000));
    for part in [parse("", &long), sync()].concat().chunks(10_000) {
        world.send(&client, part);
    }
    assert_eq!(server.kinds(), "QPS", "after DEALLOCATE ALL");
    world.send(&server, &answers("CI1I"));
    assert_eq!(world.idle_backends(), 0, "the client keeps it");
    world.send(&client, &query("DEALLOCATE s"));
    assert_eq!(server.kinds(), "CS", "the server's unnamed one, as its own Query would");
    world.send(&server, &answers("3I"));
    assert!(client.kinds().ends_with("1ZCZ"), "answered here");
}

#[test]
fn a_parse_that_fails_takes_the_unnamed_statement_before_it_away() {
    for before in [Vec::new(), [bind(""), execute()].concat()] {
        let mut world = World::new(1);
        let client = world.client();
        world.send(&client, &[parse("", "SELECT 'one'"), sync()].concat());
        let server = world.servers[0].clone();
        world.send(&server, &answers("1I"));
        let answered = if before.is_empty() { "EI" } else { "2CEI" };
        world.send(&client, &[before, parse("", "SELEC"), sync()].concat());
        world.send(&server, &answers(answered));
        server.received();
        world.send(&client, &[bind(""), execute(), sync()].concat());
        assert_eq!(server.kinds(), "CBES", "after a Close, so that the Bind fails");
    }
}

#[test]
fn trap_14_an_unnamed_statement_of_another_client_is_not_run_after_an_error() {
    // The second client's Parse or Close of the unnamed statement is ignored by the server
    // because of an error before it: the server still has the first client's.
    for pipeline in [
        [bind("nonesuch"), parse("", "SELECT 'two'"), sync()].concat(),
        [bind("nonesuch"), close(""), sync()].concat(),
        [bind("nonesuch"), bind(""), sync()].concat(),
    ] {
        let mut world = World::new(1);
        let (one, two) = (world.client(), world.client());
        world.send(&one, &[parse("", "SELECT 'one'"), sync()].concat());
        let server = world.servers[0].clone();
        world.send(&server, &answers("1I"));
        world.send(&two, &pipeline);
        world.send(&server, &answers("EI"));
        server.received();
        world.send(&two, &[bind(""), execute(), sync()].concat());
        assert_eq!(server.kinds(), "CBES", "after a Close, so that the Bind fails");
    }
}

#[test]
fn the_servers_last_message_is_read_where_writing_to_it_fails_first() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &query("BEGIN"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("CT"));
    client.received();
    let words = message(b'E', b"SFATAL\0VFATAL\0C57P01\0Mterminating connection\0\0");
    world.is_gone_after(&server, &words);
    world.send(&client, &query("SELECT 1"));
    assert_eq!(client.received(), words, "the server's own, and nothing else");
    assert!(client.is_dropped() && server.is_dropped());
    // If the server has sent no message, Hawser sends one.
    let client = world.client();
    world.send(&client, &query("BEGIN"));
    let server = world.servers[1].clone();
    world.send(&server, &answers("CT"));
    client.received();
    world.is_gone_after(&server, b"");
    world.send(&client, &query("SELECT 1"));
    assert!(String::from_utf8_lossy(&client.received()).contains("C08006"));
    assert!(client.is_dropped() && server.is_dropped());
}

#[test]
fn the_servers_last_message_is_read_where_what_hawser_itself_sends_fails() {
    let words = message(b'E', b"SFATAL\0VFATAL\0C57P01\0Mterminating connection\0\0");
    // The start values of a session.
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &query("SELECT 1"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("CI"));
    world.is_gone_after(&server, &words);
    let session = world.client_of(LoopId(0), PoolMode::Session, &[("TimeZone", "Asia/Tokyo")]);
    assert_eq!(session.received(), words);
    assert!(session.is_dropped() && server.is_dropped());
    // Questions about the state that a statement has left, and about channels.
    for (text, told) in [("CREATE TEMP TABLE t (i int)", "CI"), ("LISTEN a", "C")] {
        let mut world = World::new(1);
        let client = world.client();
        world.send(&client, &query(text));
        let server = world.servers[0].clone();
        world.is_gone_after(&server, &words);
        world.send(&server, &answers("CI"));
        assert_eq!(client.received(), [answers(told), words.clone()].concat(), "{text}");
        assert!(client.is_dropped() && server.is_dropped());
    }
}

#[test]
fn a_statement_prepared_in_a_failed_transaction_is_the_servers_to_judge() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &[parse("one", "ROLLBACK"), sync()].concat());
    let server = world.servers[0].clone();
    world.send(&server, &answers("1I"));
    world.send(&client, &query("BEGIN; SELEC"));
    world.send(&server, &answers("EF"));
    server.received();
    client.received();
    world.send(&client, &[parse("two", "ROLLBACK"), bind("two"), execute(), sync()].concat());
    assert_eq!(server.kinds(), "CPBES", "closed first, or the server would call it a duplicate");
    world.send(&server, &answers("312CI"));
    assert_eq!(client.kinds(), "12CZ");
    assert_eq!(world.idle_backends(), 1);
}

fn fatal() -> Vec<u8> {
    message(
        b'E',
        b"SFATAL\0VFATAL\0C57P01\0Mterminating connection due to administrator command\0\0",
    )
}

#[test]
fn a_servers_fatal_is_the_last_that_its_client_reads() {
    let active = query("SELECT pg_sleep(9)");
    for (sent, answer) in [
        (active, vec![]),
        (query("BEGIN"), answers("CT")),
        (query("SELECT pg_advisory_lock(1)"), answers("CI")),
        ([parse("", "SELECT 1"), flush()].concat(), answers("1")),
        ([parse("", "SELECT 1"), bind("")].concat(), answers("1")),
    ] {
        let mut world = World::new(1);
        let client = world.client();
        world.send(&client, &sent);
        let server = world.servers[0].clone();
        world.send(&server, &answer);
        client.received();
        world.send(&server, &fatal());
        world.close(&server);
        assert_eq!(client.received(), fatal());
        assert!(client.is_dropped());
        assert_eq!(world.pool.lock().total(), 0);
        assert_eq!(world.asked.cancels.len(), 0, "there is nothing to cancel");
    }
}

#[test]
fn a_servers_fatal_is_read_to_its_end_by_a_slow_client() {
    let mut world = World::new(1);
    let client = world.client();
    client.take_only(3);
    world.send(&client, &query("SELECT 1"));
    let server = world.servers[0].clone();
    world.send(&server, &fatal());
    world.close(&server);
    assert!(!client.is_dropped());
    let start = client.received();
    world.take_all(&client);
    assert_eq!([start, client.received()].concat(), fatal());
    assert!(client.is_dropped());
}

#[test]
fn an_error_that_nobody_asked_for_costs_the_connection() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &query("SELECT 1"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("CI"));
    world.send(&server, &answers("E"));
    assert!(server.is_dropped(), "else the next client's query would be answered by it");
    assert!(!client.is_dropped());
}

#[test]
fn rows_in_answer_to_a_bind_are_out_of_turn() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &[parse("", "SELECT 1"), bind(""), sync()].concat());
    let server = world.servers[0].clone();
    world.send(&server, &answers("1D"));
    assert!(server.is_dropped() && client.is_dropped());
}

#[test]
fn an_error_longer_than_any_buffer_reaches_its_client() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &query("SELECT f()"));
    let server = world.servers[0].clone();
    let text = "x".repeat(3_000_000);
    let error =
        [message(b'E', format!("SERROR\0VERROR\0CP0001\0M{text}\0\0").as_bytes()), answers("I")];
    let error = error.concat();
    for part in error.chunks(1000) {
        world.send(&server, part);
    }
    assert_eq!(client.received(), error);
    assert_eq!(world.idle_backends(), 1);
}

#[test]
fn an_answer_of_ours_after_a_servers_is_given_without_another_event() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &[parse("a", "SELECT 1"), sync()].concat());
    let server = world.servers[0].clone();
    world.send(&server, &answers("1I"));
    client.received();
    world.send(&client, &[bind("a"), execute(), parse("b", "SELECT 1"), flush()].concat());
    world.send(&server, &answers("2C"));
    assert_eq!(client.kinds(), "2C1");
}

/// The answer was put into the middle of the server's message, and nothing could be read after it.
#[test]
fn an_answer_of_ours_waits_for_the_rest_of_a_message_of_the_server() {
    for end in [sync(), flush()] {
        let mut world = World::new(1);
        let (client, server) = world.client_with("a", "SELECT 1");
        let describe = message(b'D', b"P\0");
        let wide = [parse("", "SELECT * FROM wide"), bind(""), describe, flush()].concat();
        world.send(&client, &wide);
        let columns = message(b'T', &[0; 40_000]);
        world.send(&server, &[&answers("12")[..], &columns[..20_000]].concat());
        let close = [message(b'C', b"Sa\0"), end.clone()].concat();
        world.send(&client, &close);
        let got = client.received();
        assert_eq!(got, [&answers("12")[..], &columns[..20_000]].concat());
        world.send(&server, &columns[20_000..]);
        let rest = [&columns[20_000..], &answers("3")[..]].concat();
        assert_eq!(client.received(), rest);
    }
}

#[test]
fn thousands_of_answers_of_ours_do_not_wait_for_the_server() {
    let mut world = World::new(1);
    let client = world.client();
    let round = [parse("s", "SELECT 1"), message(b'C', b"Ss\0")].concat();
    world.send(&client, &[parse("first", "SELECT 1"), sync()].concat());
    let server = world.servers[0].clone();
    world.send(&server, &answers("1I"));
    client.received();
    server.received();
    world.send(&client, &[round.repeat(10_000), sync()].concat());
    assert_eq!(server.kinds(), "S");
    world.send(&server, &answers("I"));
    assert_eq!(client.kinds(), "13".repeat(10_000) + "Z");
}

#[test]
fn a_backend_comes_back_once_the_last_bytes_for_it_are_out() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &query("COPY t FROM STDIN"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("G"));
    server.take_only(1000);
    world.send(&client, &[message(b'd', &[b'x'; 5000]), message(b'c', b"")].concat());
    world.send(&server, &answers("EI"));
    assert_eq!(client.kinds(), "GEZ");
    assert_eq!(world.idle_backends(), 0, "the server has not read all of it");
    world.take_all(&server);
    assert_eq!(world.idle_backends(), 1);
    // The same when the client has left.
    world.send(&client, &query("COPY t FROM STDIN"));
    world.send(&server, &answers("G"));
    server.take_only(1000);
    world.send(&client, &message(b'd', &[b'x'; 5000]));
    world.close(&client);
    world.send(&server, &answers("EI"));
    let request = world.asked.cancels[0].clone();
    world.deliver(LoopId(0), ToLoop::CancelDone(request.backend));
    assert_eq!(world.idle_backends(), 0);
    world.take_all(&server);
    assert_eq!(world.idle_backends(), 1);
}

#[test]
fn answers_that_came_before_a_goodbye_do_not_hold_up_the_tidying() {
    let mut world = World::new(1);
    let client = world.client_of(LoopId(0), PoolMode::Statement, &[]);
    world.send(&client, &[query("BEGIN"), query("SELECT 1")].concat());
    let server = world.servers[0].clone();
    server.received();
    world.send(&server, &answers("CTCT"));
    assert!(client.is_dropped());
    let request = world.asked.cancels[0].clone();
    world.deliver(LoopId(0), ToLoop::CancelDone(request.backend));
    assert_eq!(server.received(), query("ROLLBACK"), "all is answered that was sent");
}

#[test]
fn trap_17_a_long_bind_that_comes_in_bits_finds_its_statement() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &[parse("s", "SELECT $1"), sync()].concat());
    let server = world.servers[0].clone();
    world.send(&server, &answers("1I"));
    let value = vec![b'x'; 40_000];
    let body = [&b"\0s\0\0\0\0\x01"[..], &40_000u32.to_be_bytes(), &value, b"\0\0"].concat();
    let long = message(b'B', &body);
    for cut in [5, 6, 7, 8, 10, 16_383, 16_384, 39_999] {
        server.received();
        world.send(&client, &long[..cut]);
        world.send(&client, &long[cut..]);
        world.send(&client, &[execute(), sync()].concat());
        let sent = server.received();
        assert_eq!(kinds(&sent), "BES");
        assert_eq!(&sent[6..8], b"hw", "cut at {cut}");
        world.send(&server, &answers("2CI"));
    }
}

#[test]
fn a_long_parse_waits_while_it_is_not_known_what_its_name_stands_for() {
    let long = format!("SELECT '{}'", "x".repeat(200_000));
    let parts = |world: &mut World, client: &Peer, bytes: Vec<u8>| {
        for part in bytes.chunks(10_000) {
            world.send(client, part);
        }
    };
    // A Parse would give the name, but is ignored: it is free.
    let mut world = World::new(1);
    let (_, server) = world.client_with("x", "SELECT 1");
    let client = world.client();
    let first = [parse("", "SELEC"), parse("s", "SELECT 1"), sync()].concat();
    parts(&mut world, &client, [first, parse("s", &long), bind("s"), execute(), sync()].concat());
    assert_eq!(server.kinds(), "PS");
    world.send(&server, &answers("EI"));
    let sent = server.kinds();
    assert!(sent.starts_with('Q'), "{sent}: the others' statements go first");
    world.send(&server, &answers("CI"));
    world.send(&server, &answers("12CI"));
    assert!(!String::from_utf8_lossy(&client.received()).contains("42P05"));
    // A Close would remove it, but is ignored: it is not free.
    let mut world = World::new(1);
    let (client, _) = world.client_with("s", "SELECT 1");
    world.pool.begin_epoch();
    world.wait_ms(2_000);
    let first = [parse("", "SELEC"), message(b'C', b"Ss\0"), sync()].concat();
    parts(&mut world, &client, [first, parse("s", &long), sync()].concat());
    let server = world.servers.last().unwrap().clone();
    assert_eq!(kinds(&server.received()), "PS");
    world.send(&server, &answers("EI"));
    let sent = String::from_utf8_lossy(&server.received()).into_owned();
    assert!(!sent.contains("xxxx"), "it is refused");
}

#[test]
fn execute_waits_while_it_is_not_known_whether_its_statement_is_closed() {
    let mut world = World::new(1);
    let (client, server) = world.client_with("s", "SELECT 1");
    let closes = [parse("", "SELEC"), message(b'C', b"Ss\0"), sync()].concat();
    world.send(&client, &[closes, query("EXECUTE s")].concat());
    assert_eq!(server.kinds(), "PS");
    world.send(&server, &answers("EI"));
    assert_eq!(server.kinds(), "PS", "the statement by its client's name for it");
    world.send(&server, &answers("1I"));
    assert_eq!(server.received(), query("EXECUTE s"));
}

/// The server was last ready in a transaction block, which the pipeline itself has ended.
#[test]
fn a_client_that_leaves_in_mid_pipeline_has_nothing_committed_after_a_commit_in_it() {
    let run = |text: &str| [parse("", text), bind(""), execute()].concat();
    for ends in ["COMMIT", "ROLLBACK"] {
        let mut world = World::new(1);
        let client = world.client();
        world.send(&client, &query("BEGIN"));
        let server = world.servers[0].clone();
        world.send(&server, &answers("CT"));
        let flush = message(b'H', b"");
        world.send(&client, &[run(ends), run("INSERT INTO t VALUES (1)"), flush].concat());
        server.received();
        world.send(&server, &answers("12C12C"));
        world.close(&client);
        let sent = String::from_utf8_lossy(&server.received()).into_owned();
        assert!(sent.contains("the client has left"), "{ends}: it is made to fail: {sent}");
    }
}

/// What a streaming RESET has done is known at the end of its pipeline.
#[test]
fn a_client_that_vanishes_after_a_long_reset_leaves_no_books_that_are_not_true() {
    let mut world = World::new(1);
    let client = world.client_of(LoopId(0), PoolMode::Transaction, &[("role", "r")]);
    let other = world.client_of(LoopId(0), PoolMode::Transaction, &[("role", "r")]);
    let reset = query(&format!("RESET ROLE /*{}*/", "x".repeat(200_000)));
    for part in reset.chunks(10_000) {
        world.send(&client, part);
    }
    let server = world.servers[0].clone();
    while server.kinds().starts_with("QQ") {
        world.send(&server, &answers("CCCI"));
    }
    world.close(&client);
    for request in std::mem::take(&mut world.asked.cancels) {
        world.deliver(LoopId(0), ToLoop::CancelDone(request.backend));
    }
    world.send(&server, &answers("CI"));
    assert_eq!(server.received(), query("DISCARD ALL"));
    world.send(&server, &answers("CI"));
    world.send(&other, &query("SELECT 1"));
    let sent = String::from_utf8_lossy(&server.received()).into_owned();
    assert!(sent.contains("SET \"role\" TO 'r'"), "{sent}");
}

#[test]
fn a_long_parse_of_a_name_that_exists_is_refused() {
    let mut world = World::new(1);
    let (client, server) = world.client_with("s", "SELECT 1");
    let long = [parse("s", &"x".repeat(50_000)), sync()].concat();
    for part in long.chunks(7000) {
        world.send(&client, part);
    }
    assert_eq!(server.kinds(), "PS");
    world.send(&server, &answers("UI"));
    assert!(String::from_utf8_lossy(&client.received()).contains("42P05"));
    assert_eq!(world.idle_backends(), 1);
}

fn copy_data() -> Vec<u8> {
    message(b'd', b"1\n")
}

fn copy_done() -> Vec<u8> {
    message(b'c', b"")
}

#[test]
fn trap_15_a_copy_sent_whole_with_its_query_leaves_no_answer_behind() {
    // The Sync stands after the end of the copy: it is answered.
    let mut world = World::new(1);
    let client = world.client();
    let copy = [query("COPY t FROM STDIN"), copy_data(), copy_done(), sync()].concat();
    world.send(&client, &copy);
    let server = world.servers[0].clone();
    world.send(&server, &answers("GCI"));
    assert_eq!(world.idle_backends(), 0, "the Sync is still to be answered");
    world.send(&server, &answers("I"));
    assert_eq!(client.kinds(), "GCZZ");
    assert_eq!(world.idle_backends(), 1);
}

#[test]
fn trap_15_two_copies_in_one_query_each_swallow_their_own_syncs() {
    let mut world = World::new(1);
    let client = world.client();
    let copies = "COPY a FROM STDIN; COPY b FROM STDIN";
    let one = [copy_data(), copy_done(), sync()].concat();
    world.send(&client, &[query(copies), one.clone(), one].concat());
    let server = world.servers[0].clone();
    world.send(&server, &answers("GCGCI"));
    assert_eq!(world.idle_backends(), 0);
    world.send(&server, &answers("I"));
    assert_eq!(client.kinds(), "GCGCZZ");
    assert_eq!(world.idle_backends(), 1);
}

#[test]
fn trap_15_a_copy_in_a_pipeline_with_statements_after_it() {
    let mut world = World::new(1);
    let client = world.client();
    let copy = [parse("", "COPY t FROM STDIN"), bind(""), execute(), sync()].concat();
    let data = [copy_data(), sync(), copy_data(), copy_done()].concat();
    let more = [parse("", "SELECT 1"), bind(""), execute(), sync()].concat();
    world.send(&client, &[copy, data, more].concat());
    let server = world.servers[0].clone();
    world.send(&server, &answers("12GC12C"));
    assert_eq!(world.idle_backends(), 0);
    world.send(&server, &answers("I"));
    assert_eq!(client.kinds(), "12GC12CZ");
    assert_eq!(world.idle_backends(), 1);
}

#[test]
fn copy_data_that_no_copy_takes_keeps_no_backend() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &[query("SELECT 1"), copy_data()].concat());
    let server = world.servers[0].clone();
    world.send(&server, &answers("CI"));
    assert_eq!(world.idle_backends(), 1);
    let copy = [parse("", "COPY t FROM STDIN"), bind(""), execute(), sync(), copy_data()].concat();
    world.send(&client, &copy);
    world.send(&server, &answers("12EI"));
    assert_eq!(world.idle_backends(), 1);
}

#[test]
fn trap_15_a_copy_that_failed_is_fenced_off_from_the_next_client() {
    // Whether the copy had read the Sync after Execute when it failed cannot be seen: the
    // server answers one Sync or two.
    for stray in ["", "I"] {
        let mut world = World::new(1);
        let (client, other) = (world.client(), world.client());
        let copy = [parse("", "COPY t FROM STDIN"), bind(""), execute(), sync()].concat();
        world.send(&client, &copy);
        let server = world.servers[0].clone();
        world.send(&server, &answers("12G"));
        world.send(&client, &[copy_data(), copy_done(), sync()].concat());
        server.received();
        world.send(&server, &answers("EI"));
        assert_eq!(client.kinds(), "12GEZ");
        world.send(&other, &query("SELECT 2"));
        assert_eq!(server.received(), query(""), "the fence");
        let empty = message(b'I', b"");
        world.send(&server, &[answers(stray), empty, answers("I")].concat());
        assert_eq!(server.received(), query("SELECT 2"));
        world.send(&server, &answers("CI"));
        assert_eq!(other.kinds(), "CZ", "nothing of the first client's");
        assert_eq!(world.idle_backends(), 1);
    }
}

#[test]
fn trap_15_a_sync_that_crosses_with_a_copys_error_is_answered() {
    let mut world = World::new(1);
    let client = world.client();
    let copy = [parse("", "COPY t FROM STDIN"), bind(""), execute()].concat();
    world.send(&client, &copy);
    let server = world.servers[0].clone();
    world.send(&server, &answers("12G"));
    world.send(&client, &[copy_data(), sync()].concat());
    world.send(&server, &answers("EI"));
    assert_eq!(client.kinds(), "12GEZ");
    assert_eq!(world.idle_backends(), 1);
}

#[test]
fn trap_21_a_copy_that_begins_when_its_client_has_left_is_failed() {
    for (sent, answer, ends) in [
        (query("COPY t FROM STDIN"), "G", "f"),
        ([parse("", "COPY t FROM STDIN"), bind(""), execute(), sync()].concat(), "12G", "fS"),
    ] {
        let mut world = World::new(1);
        let client = world.client();
        world.send(&client, &sent);
        let server = world.servers[0].clone();
        world.close(&client);
        server.received();
        world.send(&server, &answers(answer));
        assert_eq!(server.kinds(), ends);
        world.send(&server, &answers("EI"));
        let request = world.asked.cancels[0].clone();
        world.deliver(LoopId(0), ToLoop::CancelDone(request.backend));
        if server.received() == query("") {
            world.send(&server, &[message(b'I', b""), answers("I")].concat());
        }
        assert_eq!(world.idle_backends(), 1);
    }
}

#[test]
fn trap_16_a_signal_under_way_hits_no_query_of_ours() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &query("BEGIN; SELECT pg_sleep(9)"));
    let server = world.servers[0].clone();
    server.received();
    world.close(&client);
    world.send(&server, &answers("CT"));
    assert_eq!(server.kinds(), "", "a ROLLBACK could be cancelled in its place");
    let request = world.asked.cancels[0].clone();
    world.deliver(LoopId(0), ToLoop::CancelDone(request.backend));
    assert_eq!(server.received(), query("ROLLBACK"));
}

#[test]
fn trap_14_an_unnamed_statement_whose_parse_may_be_ignored_is_waited_for() {
    let mut world = World::new(1);
    let (one, two) = (world.client(), world.client());
    world.send(&one, &[parse("", "SELECT 'one'"), sync()].concat());
    let server = world.servers[0].clone();
    world.send(&server, &answers("1I"));
    server.received();
    let first = [bind("nonesuch"), parse("", "SELECT 'two'"), sync()].concat();
    world.send(&two, &[first, bind(""), execute(), sync()].concat());
    assert_eq!(server.kinds(), "BPS", "a Bind now could run the first client's statement");
    world.send(&server, &answers("EI"));
    assert_eq!(server.kinds(), "CBES");
}

#[test]
fn a_statement_whose_preparation_may_be_ignored_is_waited_for() {
    let mut world = World::new(2);
    let (client, other) = (world.client(), world.client());
    world.send(&client, &[parse("s", "SELECT 1"), sync()].concat());
    let first = world.servers[0].clone();
    world.send(&first, &answers("1I"));
    world.send(&other, &query("BEGIN"));
    client.received();
    let failing = [parse("", "SELECT 1/0"), bind(""), execute(), bind("s"), sync()].concat();
    world.send(&client, &[failing, bind("s"), execute(), sync()].concat());
    let second = world.servers[1].clone();
    assert_eq!(second.kinds(), "PBEPBS", "the second Parse may be ignored");
    world.send(&second, &answers("12EI"));
    assert_eq!(second.kinds(), "PBES");
    world.send(&second, &answers("12CI"));
    assert_eq!(client.kinds(), "12EZ2CZ");
}

#[test]
fn a_query_after_a_failed_parse_is_ended_when_its_client_has_left() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &[parse("", "SELEC"), query("SELECT 1")].concat());
    let server = world.servers[0].clone();
    world.close(&client);
    server.received();
    let request = world.asked.cancels[0].clone();
    world.deliver(LoopId(0), ToLoop::CancelDone(request.backend));
    // The server ignores the query, too: without a Sync it would never come to an end.
    world.send(&server, &answers("E"));
    assert_eq!(server.kinds(), "S");
    world.send(&server, &answers("I"));
    assert_eq!(world.idle_backends(), 1);
}

#[test]
fn trap_01_an_open_pipeline_whose_client_has_left_is_not_committed() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &[parse("", "INSERT"), bind(""), execute(), flush()].concat());
    let server = world.servers[0].clone();
    world.send(&server, &answers("12C"));
    server.received();
    world.close(&client);
    // A Sync by itself would commit it: the pipeline is made to fail first.
    assert_eq!(server.kinds(), "PS");
    world.send(&server, &answers("EI"));
    let request = world.asked.cancels[0].clone();
    world.deliver(LoopId(0), ToLoop::CancelDone(request.backend));
    assert_eq!(world.idle_backends(), 1);
}

#[test]
fn a_server_that_has_been_promoted_is_chosen_again() {
    let mut world = World::new(1);
    world.in_hot_standby = "on";
    let client = world.client();
    world.send(&client, &query("BEGIN"));
    let server = world.servers[0].clone();
    world.send(&server, &[parameter("in_hot_standby", "on"), answers("CT")].concat());
    world.send(&client, &query("SELECT 1"));
    world.send(&server, &[parameter("in_hot_standby", "off"), answers("CT")].concat());
    assert!(!server.is_dropped(), "the transaction goes on");
    world.send(&client, &query("COMMIT"));
    world.send(&server, &answers("CI"));
    assert!(server.is_dropped() && !client.is_dropped());
}

#[test]
fn what_a_client_says_before_its_goodbye_is_carried_out_though_it_must_wait() {
    // It closes its sending side, or its whole connection, which a unix socket reports at once.
    for whole in [false, true] {
        let mut world = World::new(1);
        let (holder, leaving) = (world.client(), world.client());
        world.send(&holder, &query("SELECT 1"));
        let server = world.servers[0].clone();
        world.send(&leaving, &query("INSERT INTO t VALUES (1)"));
        world.put(&leaving, &message(b'X', b""));
        if whole {
            world.breaks(&leaving);
        } else {
            world.close(&leaving);
        }
        assert!(!leaving.is_dropped(), "its turn has not come");
        server.received();
        world.send(&server, &answers("CI"));
        assert_eq!(server.received(), query("INSERT INTO t VALUES (1)"));
        world.send(&server, &answers("CI"));
        assert_eq!(leaving.kinds(), "CZ");
        assert!(leaving.is_dropped());
        assert_eq!(world.idle_backends(), 1);
    }
}

#[test]
fn what_a_client_without_a_goodbye_waits_with_goes_with_it() {
    let mut world = World::new(1);
    let (holder, leaving) = (world.client(), world.client());
    world.send(&holder, &query("SELECT 1"));
    world.send(&leaving, &query("INSERT INTO t VALUES (1)"));
    world.close(&leaving);
    assert!(leaving.is_dropped());
    assert_eq!(world.pool.lock().waiting_count(), 0);
}

#[test]
fn a_huge_row_in_answer_to_a_setting_ends_the_server_connection_at_once() {
    let mut world = World::new(1);
    let client = world.client_of(LoopId(0), PoolMode::Transaction, &[("work_mem", "7MB")]);
    world.send(&client, &query("SELECT 1"));
    let server = world.servers[0].clone();
    let mut row = vec![b'D'];
    row.extend(100_000_000u32.to_be_bytes());
    row.extend([0; 1000]);
    world.send(&server, &row);
    assert!(server.is_dropped());
    assert_eq!(world.asked.closed, ["the server sent a row that no setting gives"]);
}

/// The end of its stream follows bytes that were unread when it came, and no event reports it
/// again.
#[test]
fn a_client_that_hung_up_while_it_was_not_read_is_noticed_later() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &query("UNLISTEN *"));
    let server = world.servers[0].clone();
    assert_eq!(server.kinds(), "Q");
    world.send(&client, &parse("", "SELECT 1"));
    assert_eq!(server.kinds(), "", "it waits for the outcome");
    world.say_and_close(&client, &[bind(""), execute()].concat());
    assert!(!client.is_dropped());
    world.send(&server, &answers("CI"));
    assert!(client.is_dropped(), "it keeps its server connection for ever");
    assert_eq!(server.kinds(), "PBEPS", "what it has begun is made to fail");
}

/// The panic comes after the backend of the one has been given to the other.
#[test]
fn a_panic_ends_the_client_that_it_came_of_and_the_next_is_served() {
    let mut world = World::new(1);
    let (client, waiter) = (world.client(), world.client());
    world.send(&client, &query("SELECT 1"));
    let server = world.servers[0].clone();
    world.send(&waiter, &query("SELECT 2"));
    assert_eq!(server.kinds(), "Q");
    let goodbye = ClientError::fatal(SqlState::ADMIN_SHUTDOWN, "bye");
    world.deliver(LoopId(0), ToLoop::Drain(goodbye));
    world.asked.panics_on_error = true;
    let answer = std::panic::AssertUnwindSafe(|| world.send(&server, &answers("DCI")));
    assert!(std::panic::catch_unwind(answer).is_err());
    world.asked.panics_on_error = false;
    world.with_engine(LoopId(0), |engine, host, now| engine.recover(host, None, now));
    assert!(client.is_dropped() && !waiter.is_dropped());
    assert_eq!(server.kinds(), "Q", "the waiter's");
    assert_eq!(world.pool.lock().lent_count(), 1);
    world.send(&server, &answers("DCI"));
    assert!(waiter.kinds().starts_with("DCZ"));
}

/// The step that lends panics.
#[test]
fn a_backend_on_its_way_to_a_client_that_a_panic_ends_is_counted_once() {
    let mut world = World::new(1);
    let (client, waiter) = (world.client(), world.client());
    world.send(&client, &query("SELECT 1"));
    world.send(&waiter, &query("SELECT 2"));
    let slot = world.slot_of(&waiter);
    let mut residents = 1;
    world.with_engine(LoopId(0), |engine, host, now| {
        let of = engine.clients.slots().into_iter().find(|of| *of != slot).unwrap();
        let backend = engine.clients.get_mut(of).unwrap().backend.take().unwrap();
        engine.lend_later(slot, backend);
        engine.recover(host, Some(Token::Client(slot)), now);
        residents = engine.resident_count();
    });
    assert!(waiter.is_dropped());
    assert_eq!(world.pool.lock().lent_count(), 0);
    assert_eq!(residents, 0);
}
