//! Statements of the protocol that SQL names.

use super::harness::*;

/// The server's report on `p`, the protocol's.
fn told_p() -> Vec<u8> {
    value("{{p,\"SELECT 1\",\"\"}}")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A client with a statement of the protocol called `p`, which the server has under another name.
fn client_with_p(world: &mut World) -> (Peer, Peer) {
    let (client, server) = world.client_with("p", "SELECT 1");
    server.received();
    client.received();
    (client, server)
}

/// The client of [`client_with_p`], whose `p` the server knows by that name.
fn client_with_own_p(world: &mut World) -> (Peer, Peer) {
    let (client, server) = client_with_p(world);
    world.send(&client, &query("EXECUTE p"));
    assert_eq!(server.received(), [parse("p", "SELECT 1"), sync()].concat(), "the query waits");
    world.send(&server, &answers("1I"));
    assert_eq!(server.received(), query("EXECUTE p"));
    world.send(&server, &answers("CI"));
    assert_eq!(client.kinds(), "CZ", "it gets no answer to the Parse");
    let asked = text(&server.received());
    assert!(asked.contains("from_sql OR name OPERATOR(pg_catalog.=) ANY(ARRAY['p']"), "{asked}");
    world.send(&server, &told_p());
    assert_eq!(world.idle_backends(), 1, "it pins no client");
    client.received();
    (client, server)
}

/// A lock would be left to another client.
#[test]
fn a_discard_all_that_is_bound_and_not_executed_ends_no_pin() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &query("CREATE TEMP TABLE t (v int)"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("CI"));
    world.send(&client, &[parse("", "DISCARD ALL"), bind(""), sync()].concat());
    world.send(&server, &answers("12I"));
    assert_eq!(world.idle_backends(), 0, "it has not been executed");
}

#[test]
fn a_discard_all_that_is_bound_and_not_executed_takes_no_name_away() {
    let mut world = World::new(1);
    let (client, server) = client_with_p(&mut world);
    let discards = [parse("", "DISCARD ALL"), bind(""), sync()].concat();
    world.send(&client, &discards);
    world.send(&server, &answers("12I"));
    assert_eq!(client.kinds(), "12Z");
    server.received();
    world.send(&client, &[bind("p"), execute(), sync()].concat());
    assert_eq!(server.kinds(), "PBES", "it is prepared again, as it may be gone");
    // Executed, it does.
    world.send(&server, &answers("12CI"));
    client.received();
    world.send(&client, &[parse("", "DISCARD ALL"), bind(""), execute(), sync()].concat());
    world.send(&server, &answers("12"));
    world.send(&server, &[message(b'C', b"DISCARD ALL\0"), answers("I")].concat());
    assert_eq!((client.kinds().as_str(), server.kinds().as_str()), ("12CZ", "PBES"));
    world.send(&client, &[bind("p"), execute(), sync()].concat());
    assert_eq!(server.kinds(), "BES", "the server says that there is none");
}

/// Differential test with the extension, seeds 9000114, 9000163 and 9000164.
#[test]
fn a_function_that_executes_what_it_is_given_finds_and_misses_own_names() {
    for report in [None, Some("1")] {
        let mut world = World::new(1);
        world.report = report;
        let keeps = ("keeps", "BEGIN EXECUTE statement; END");
        crate::relay::tests::census::learn(&world, &[keeps, crate::relay::tests::census::LOCKS]);
        let (client, server) = client_with_p(&mut world);
        for harmless in ["SELECT 'EXECUTE p'", "SELECT keeps('EXECUTE q')"] {
            world.send(&client, &query(harmless));
            assert_eq!(server.kinds(), "Q", "{harmless}");
            world.send(&server, &answers("CI"));
            if !server.kinds().is_empty() {
                world.send(&server, &value("")); // what is left of the session
            }
            client.received();
        }
        let text = query("SELECT keeps('PREPARE p AS SELECT 2')");
        world.send(&client, &text);
        assert_eq!(server.received(), [parse("p", "SELECT 1"), sync()].concat(), "the query waits");
        world.send(&server, &answers("1I"));
        assert_eq!(server.received(), text);
    }
}

/// By Hawser's name it would exist a second time.
#[test]
fn one_that_lists_them_is_prepared_by_its_own_name_alone() {
    let listing = "SELECT name FROM pg_prepared_statements";
    let mut world = World::new(1);
    let (client, server) = client_with_p(&mut world);
    world.send(&client, &[parse("l", listing), bind("l"), execute(), sync()].concat());
    assert_eq!(server.received(), [parse("p", "SELECT 1"), sync()].concat(), "it may be refused");
    world.send(&server, &answers("1I"));
    let received = server.received();
    assert!(text_has(&received, &text(&parse("l", listing))), "{}", text(&received));
    assert!(!text_has(&received, "SELECT 1"), "{}", text(&received));
    assert_eq!(text(&received).matches(listing).count(), 1, "{}", text(&received));
}

#[test]
fn execute_finds_it_and_it_moves() {
    let mut world = World::new(1);
    let (client, server) = client_with_own_p(&mut world);
    // It still exists, for both.
    world.send(&client, &[bind("p"), execute(), sync()].concat());
    assert_eq!(server.received(), [bind("p"), execute(), sync()].concat());
    world.send(&server, &answers("2CI"));
    let other = world.client();
    world.send(&other, &query("SELECT 1"));
    assert_eq!(server.received(), [query("DEALLOCATE \"p\""), query("SELECT 1")].concat());
    world.send(&server, &answers("CICI"));
    world.send(&client, &query("EXECUTE p"));
    assert_eq!(server.received(), [parse("p", "SELECT 1"), sync()].concat());
    world.send(&server, &answers("1I"));
    assert_eq!(server.received(), query("EXECUTE p"));
}

#[test]
fn what_the_server_refuses_to_prepare_is_the_answer_of_the_query() {
    let mut world = World::new(1);
    let (client, server) = client_with_p(&mut world);
    world.send(&client, &query("EXECUTE p"));
    server.received();
    let gone = message(b'E', b"SERROR\0VERROR\0C42P01\0Mrelation \"t\" does not exist\0\0");
    world.send(&server, &[&gone[..], &answers("I")].concat());
    assert_eq!(client.received(), [gone, answers("I")].concat());
    // It is there as before.
    assert_eq!(world.names_of(world.slot_of(&client)), [b"p".to_vec()]);
}

/// Of the simulation, seed 135: it did not see what its client had set in the transaction.
#[test]
fn in_a_block_it_is_prepared_under_its_settings_and_all_others_are_back_after_it() {
    for refused in [false, true] {
        let mut world = World::new(1);
        let (client, server) = client_with_p(&mut world);
        let begin = query("SET TimeZone TO 'Asia/Tokyo'; BEGIN");
        world.send(&client, &begin);
        let told = [answers("CC"), parameter("TimeZone", "Asia/Tokyo"), answers("T")].concat();
        world.send(&server, &told);
        client.received();
        server.received();
        world.send(&client, &query("EXECUTE p"));
        let apart = "SELECT pg_catalog.set_config('hawser_before.s0',pg_catalog.current_setting('timezone',true),true) IS NULL,\
                     pg_catalog.set_config('timezone','UTC',true) IS NULL";
        let back = "SELECT pg_catalog.set_config('timezone',pg_catalog.current_setting('hawser_before.s0'),true) IS NULL";
        let sent = [query(apart), parse("p", "SELECT 1"), sync(), query(back)].concat();
        assert_eq!(text(&server.received()), text(&sent), "in one write");
        let set = [message(b'T', b"\0\0"), answers("DCT")].concat();
        world.send(&server, &set);
        if !refused {
            world.send(&server, &[answers("1T"), set].concat());
            assert_eq!(server.received(), query("EXECUTE p"));
            world.send(&server, &answers("CT"));
            assert_eq!(client.kinds(), "CZ");
            continue;
        }
        let gone = message(b'E', b"SERROR\0VERROR\0C42P01\0Mrelation \"t\" does not exist\0\0");
        let aborted = message(b'E', b"SERROR\0VERROR\0C25P02\0Mit is aborted\0\0");
        world.send(&server, &[&gone[..], &answers("F"), &aborted, &answers("F")].concat());
        assert_eq!(client.received(), [gone, message(b'Z', b"E")].concat(), "as if it had run");
    }
}

/// Of the simulation, seed 435: the server ignored the Query, and no answer came.
#[test]
fn nothing_that_fails_goes_before_a_query_in_a_pipeline_of_a_failed_transaction() {
    let mut world = World::new(1);
    let (client, server) = client_with_p(&mut world);
    world.send(&client, &query("BEGIN; SELECT 1/0"));
    world.send(&server, &answers("CEF"));
    client.received();
    server.received();
    let mixed = [message(b'C', b"Pc\0"), query("EXECUTE p")].concat();
    world.send(&client, &mixed);
    assert_eq!(server.received(), mixed);
    world.send(&server, &answers("3EF"));
    assert_eq!(client.kinds(), "3EZ");
}

/// Of the simulation: the DEALLOCATE did not find it.
#[test]
fn after_a_rollback_of_its_pipeline_a_query_finds_it() {
    for name in ["", "r"] {
        let mut world = World::new(1);
        let (client, server) = client_with_p(&mut world);
        world.send(&client, &query("BEGIN; SELECT 1/0"));
        world.send(&server, &answers("CEF"));
        world.send(&client, &[parse(name, "ROLLBACK"), sync()].concat());
        world.send(&server, &answers("1F"));
        client.received();
        server.received();
        let named = "SELECT 1; DEALLOCATE p";
        world.send(&client, &[bind(name), execute(), query(named)].concat());
        world.send(&server, &answers("2C"));
        let sent = text(&server.received());
        assert!(text_has(sent.as_bytes(), &text(&parse("p", "SELECT 1"))), "{sent}");
        assert!(text_has(sent.as_bytes(), named), "{sent}");
    }
}

#[test]
fn in_a_pipeline_it_is_a_part_of_that_and_comes_back_if_ignored() {
    let mut world = World::new(1);
    let (client, server) = client_with_p(&mut world);
    let run = [parse("", "SELECT 1/0"), bind(""), execute()].concat();
    let own = [parse("", "EXECUTE p"), bind(""), execute(), sync()].concat();
    world.send(&client, &[&run[..], &own].concat());
    assert_eq!(server.received(), [run, parse("p", "SELECT 1"), own].concat());
    let failed = message(b'E', b"SERROR\0VERROR\0C22012\0Mdivision by zero\0\0");
    world.send(&server, &[answers("12"), failed, answers("I")].concat());
    assert_eq!(client.kinds(), "12EZ");
    assert_eq!(world.names_of(world.slot_of(&client)), [b"p".to_vec()]);
}

#[test]
fn a_name_that_the_other_has_given_is_taken() {
    let mut world = World::new(1);
    let (client, server) = client_with_p(&mut world);
    world.send(&client, &query("PREPARE p AS SELECT 2"));
    assert_eq!(server.received(), [parse("p", "SELECT 1"), sync()].concat());
    world.send(&server, &answers("1I"));
    assert_eq!(server.received(), query("PREPARE p AS SELECT 2"), "for the server to refuse");
    let taken = message(b'E', b"SERROR\0VERROR\0C42P05\0Mit is there\0\0");
    world.send(&server, &[taken, answers("I")].concat());
    world.send(&server, &told_p());
    server.received();
    assert_eq!(client.kinds(), "EZ");
    // The reverse: the server has it by that name.
    world.send(&client, &[parse("p", "SELECT 3"), sync()].concat());
    assert_eq!(server.received(), [parse("p", "SELECT 3"), sync()].concat());
}

#[test]
fn deallocate_among_others_and_close_take_it_from_both() {
    for end in [query("SELECT 2; DEALLOCATE p"), [message(b'C', b"Sp\0"), sync()].concat()] {
        let mut world = World::new(1);
        let (client, server) = client_with_own_p(&mut world);
        world.send(&client, &end);
        assert_eq!(server.received(), end);
        let answer = if end[0] == b'Q' { "CCI" } else { "3I" };
        world.send(&server, &answers(answer));
        world.send(&server, &told_prepared(&[]));
        assert_eq!(world.idle_backends(), 1);
        server.received();
        world.send(&client, &[bind("p"), execute(), sync()].concat());
        assert_eq!(server.received(), [bind("p"), execute(), sync()].concat(), "for it to refuse");
    }
}

#[test]
fn a_function_misses_one_once() {
    let mut world = World::new(1);
    let (client, server) = client_with_p(&mut world);
    world.send(&client, &query("SELECT f()"));
    server.received();
    let missing = b"SERROR\0VERROR\0C26000\0Mprepared statement \"p\" does not exist\0\0";
    world.send(&server, &[message(b'E', missing), answers("I")].concat());
    world.send(&client, &query("SELECT f()"));
    assert_eq!(server.received(), [parse("p", "SELECT 1"), sync()].concat());
    world.send(&server, &answers("1I"));
    assert_eq!(server.received(), query("SELECT f()"));
}

/// After each call the server is asked what the function has left, which is nothing.
#[test]
fn a_function_that_is_known_to_execute_misses_one_once() {
    let mut world = World::new(1);
    let source = "BEGIN EXECUTE 'execute ' || 'p'; END";
    crate::relay::tests::census::learn(&world, &[("f", source)]);
    let (client, server) = client_with_p(&mut world);
    world.send(&client, &query("SELECT f()"));
    server.received();
    let missing = b"SERROR\0VERROR\0C26000\0Mprepared statement \"p\" does not exist\0\0";
    world.send(&server, &[message(b'E', missing), answers("I")].concat());
    assert!(text(&server.received()).contains("from_sql"), "asked");
    world.send(&server, &told_prepared(&[]));
    world.send(&client, &query("SELECT f()"));
    assert_eq!(server.received(), [parse("p", "SELECT 1"), sync()].concat());
    world.send(&server, &answers("1I"));
    assert_eq!(server.received(), query("SELECT f()"));
}

#[test]
fn statements_that_execute_are_shared_with_nobody() {
    let mut world = World::new(2);
    let mut names = Vec::new();
    for _ in 0..2 {
        let client = world.client();
        world.send(&client, &[parse("s", "EXECUTE p"), sync()].concat());
        let server = world.servers[0].clone();
        let sent = server.received();
        let name = sent[5..].split(|byte| *byte == 0).next().unwrap().to_vec();
        names.push(name);
        world.send(&server, &answers("1I"));
    }
    assert_ne!(names[0], names[1]);
}

#[test]
fn what_executing_does_to_the_session_is_noted_each_time() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &query("PREPARE l AS SELECT pg_advisory_lock(1)"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("CI"));
    server.received();
    let told = "{{l,\"PREPARE l AS SELECT pg_advisory_lock(1)\",\"\"}}";
    let columns = [&[0, 2][..], &[0, 0, 0, 1], b"f", &(told.len() as u32).to_be_bytes()];
    let row = message(b'D', &[columns.concat(), told.into()].concat());
    world.send(&server, &[row, answers("CI")].concat());
    world.send(&client, &query("EXECUTE l"));
    server.received();
    world.send(&server, &answers("CI"));
    assert!(text(&server.received()).contains("pg_locks"), "asked for again");
}

#[test]
fn a_query_that_ends_a_failed_transaction_finds_them_after_that() {
    let mut world = World::new(1);
    let (client, server) = client_with_p(&mut world);
    world.send(&client, &query("BEGIN; SELECT 1/0"));
    world.send(&server, &answers("CEF"));
    client.received();
    server.received();
    let text = query("ROLLBACK; EXECUTE p");
    let other = world.client();
    world.send(&other, &query("SELECT 2"));
    world.send(&client, &text);
    assert_eq!(server.received(), query("ROLLBACK"));
    let zone = parameter("TimeZone", "UTC");
    world.send(&server, &[answers("C"), zone.clone(), answers("I")].concat());
    assert_eq!(
        server.received(),
        [parse("p", "SELECT 1"), sync()].concat(),
        "no other client has it"
    );
    assert_eq!(client.kinds(), "");
    world.send(&server, &answers("1I"));
    assert_eq!(server.received(), [query("BEGIN"), text].concat());
    world.send(&server, &answers("CTCDCI"));
    assert_eq!(client.kinds(), "CDCSZ", "of the messages before it only the reports");
    world.send(&server, &told_p());
    assert!(text_has(&server.received(), "SELECT 2"));
}

#[test]
fn where_the_server_refuses_one_there_the_rollback_has_been_all_the_same() {
    let mut world = World::new(1);
    let (client, server) = client_with_p(&mut world);
    world.send(&client, &query("BEGIN; SELECT 1/0"));
    world.send(&server, &answers("CEF"));
    client.received();
    world.send(&client, &query("end ; EXECUTE p"));
    world.send(&server, &answers("CI"));
    world.send(&server, &answers("EI"));
    assert_eq!(client.kinds(), "CEZ");
    // It is as it was for what comes next.
    server.received();
    world.send(&client, &query("SELECT 3"));
    assert!(text_has(&server.received(), "SELECT 3"));
}

#[test]
fn a_client_that_leaves_after_such_a_rollback_leaves_nothing() {
    let mut world = World::new(1);
    let (client, server) = client_with_p(&mut world);
    world.send(&client, &query("BEGIN; SELECT 1/0"));
    world.send(&server, &answers("CEF"));
    world.send(&client, &query("COMMIT; EXECUTE p"));
    world.close(&client);
    server.received();
    world.send(&server, &answers("CI"));
    let other = world.client();
    world.send(&other, &query("BEGIN; SELECT 2"));
    world.send(&server, &answers("CI"));
    let sent = server.received();
    assert!(sent.ends_with(&query("BEGIN; SELECT 2")), "{}", sent.escape_ascii());
    assert!(!sent.windows(5).any(|w| w == b"EXECU"));
}

fn text_has(bytes: &[u8], part: &str) -> bool {
    text(bytes).contains(part)
}

#[test]
fn what_is_deallocated_is_not_executed() {
    let mut world = World::new(1);
    let (client, server) = world.client_with("q", "SELECT 1");
    world.send(&client, &[parse("p", "DISCARD ALL"), sync()].concat());
    world.send(&server, &answers("1I"));
    world.send(&client, &query("BEGIN"));
    world.send(&server, &answers("CT"));
    world.send(&client, &query("SELECT 1; DEALLOCATE p; SELECT 2"));
    world.send(&server, &answers("1T"));
    world.send(&server, &answers("CCCT"));
    client.received();
    server.received();
    world.send(&client, &[parse("q", "SELECT 3"), sync()].concat());
    world.send(&server, &answers("UT"));
    let told = text(&client.received());
    assert!(told.contains("prepared statement \"q\" already exists"), "{told}");
}
