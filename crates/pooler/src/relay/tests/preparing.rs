//! Statements of SQL's PREPARE: they move with their client, and no other client finds them.

use super::harness::*;
use crate::ids::LoopId;
use crate::relay::PoolMode;

/// A client that has prepared `p`, as the server has reported; its backend is free.
fn client_with_p(world: &mut World) -> (Peer, Peer) {
    let client = world.client();
    world.send(&client, &query("PREPARE p AS SELECT 1"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("CI"));
    world.send(&server, &told_prepared(&["p"]));
    assert_eq!(world.idle_backends(), 1, "it pins no client");
    server.received();
    client.received();
    (client, server)
}

/// Another client, which has had the backend: its statements were removed.
fn another_in_between(world: &mut World, server: &Peer) -> Peer {
    let other = world.client();
    world.send(&other, &query("SELECT 1"));
    world.send(server, &answers("CICI"));
    server.received();
    other
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn another_client_finds_none_and_the_client_finds_its_own_again() {
    let mut world = World::new(1);
    let (client, server) = client_with_p(&mut world);
    world.send(&client, &query("EXECUTE p"));
    assert_eq!(server.received(), query("EXECUTE p"), "it is there still");
    world.send(&server, &answers("CI"));
    assert_eq!(client.kinds(), "CZ");
    let other = world.client();
    world.send(&other, &query("SELECT 1"));
    let sent = [query("DEALLOCATE \"p\""), query("SELECT 1")].concat();
    assert_eq!(server.received(), sent, "in the same write");
    world.send(&server, &answers("CICI"));
    assert_eq!(other.kinds(), "CZ");
    world.send(&client, &query("EXECUTE p"));
    assert_eq!(server.received(), query("PREPARE p AS SELECT 1"));
    // Another client waits, and does not get what was prepared.
    world.send(&other, &query("BEGIN"));
    world.send(&server, &answers("CI"));
    assert_eq!(server.received(), query("EXECUTE p"));
    world.send(&server, &answers("CI"));
    assert_eq!(client.kinds(), "CZ", "it gets no answer to the PREPARE");
}

#[test]
fn one_that_cannot_be_prepared_fails_where_it_is_executed_with_the_servers_reason() {
    let mut world = World::new(1);
    let (client, server) = client_with_p(&mut world);
    another_in_between(&mut world, &server);
    world.send(&client, &query("EXECUTE p"));
    let gone = b"SERROR\0VERROR\0C42P01\0Mrelation \"t\" does not exist\0\0";
    server.received();
    world.send(&server, &[message(b'E', gone), answers("I")].concat());
    let sent = text(&server.received());
    assert!(sent.contains("PREPARE \"p\" AS SELECT pg_catalog.int4in('"), "{sent}");
    assert!(sent.ends_with("EXECUTE p\0"), "{sent}");
    let number = sent.split("prepared: ").nth(1).unwrap().split('.').next().unwrap();
    let failed = format!(
        "SERROR\0VERROR\0C22P02\0Minvalid input syntax for type integer: \"hawser stands in for a \
         statement that could not be prepared: {number}.\"\0\0"
    );
    let failed = message(b'E', failed.as_bytes());
    world.send(&server, &[answers("CI"), failed, answers("I")].concat());
    let told = client.received();
    assert_eq!(told, [message(b'E', gone), answers("I")].concat());
    // Before a later transaction it is tried again.
    world.send(&client, &query("EXECUTE p"));
    let sent = [query("DEALLOCATE \"p\""), query("PREPARE p AS SELECT 1")].concat();
    assert_eq!(server.received(), sent);
    world.send(&server, &answers("CICI"));
    assert_eq!(server.received(), query("EXECUTE p"));
}

#[test]
fn a_plain_query_does_without_and_what_follows_it_does_not() {
    let mut world = World::new(1);
    let (client, server) = client_with_p(&mut world);
    let other = another_in_between(&mut world, &server);
    world.send(&client, &[query("SELECT 2"), query("EXECUTE p")].concat());
    assert_eq!(server.received(), query("SELECT 2"));
    world.send(&server, &answers("CI"));
    assert_eq!(server.received(), query("PREPARE p AS SELECT 1"));
    world.send(&server, &answers("CI"));
    assert_eq!(server.received(), query("EXECUTE p"));
    world.send(&server, &answers("CI"));
    assert_eq!(client.kinds(), "CZCZ");
    // So does a transaction, whatever it begins with.
    world.send(&other, &query("SELECT 1"));
    world.send(&server, &answers("CICI"));
    server.received();
    world.send(&client, &query("BEGIN"));
    assert_eq!(server.received(), query("PREPARE p AS SELECT 1"));
}

#[test]
fn a_query_in_which_the_name_of_one_stands_does_not_do_without() {
    let mut world = World::new(1);
    let (client, server) = client_with_p(&mut world);
    another_in_between(&mut world, &server);
    world.send(&client, &query("SELECT f('deallocate P')"));
    assert_eq!(server.received(), query("PREPARE p AS SELECT 1"));
}

#[test]
fn a_pipeline_does_not_do_without_though_it_begins_with_an_execute() {
    let mut world = World::new(1);
    let (client, server) = client_with_p(&mut world);
    another_in_between(&mut world, &server);
    world.send(&client, &[execute(), message(b'C', b"Sp\0"), sync()].concat());
    assert_eq!(server.received(), query("PREPARE p AS SELECT 1"));
    world.send(&server, &answers("CI"));
    assert_eq!(server.kinds(), "ECS");
    world.send(&server, &answers("EI"));
    let asked = text(&server.received());
    assert!(asked.contains("pg_prepared_statements"), "the Close may have been ignored: {asked}");
    world.send(&server, &told_prepared(&["p"]));
    assert_eq!(client.kinds(), "EZ");
    world.send(&client, &query("EXECUTE p"));
    assert_eq!(server.received(), query("EXECUTE p"));
}

#[test]
fn a_function_misses_one_once() {
    let mut world = World::new(1);
    let (client, server) = client_with_p(&mut world);
    another_in_between(&mut world, &server);
    world.send(&client, &query("SELECT f()"));
    let missing = message(b'E', b"SERROR\0VERROR\0C26000\0Mthere is none\0\0");
    world.send(&server, &[missing, answers("I")].concat());
    server.received();
    world.send(&client, &query("SELECT f()"));
    assert_eq!(server.received(), query("PREPARE p AS SELECT 1"));
}

/// It counted as gone, and the next client's EXECUTE found it.
#[test]
fn a_deallocate_that_fails_leaves_anothers_statement_to_no_client() {
    for (state, goes_on) in [("26000", true), ("57014", false)] {
        let mut world = World::new(1);
        let (_client, server) = client_with_p(&mut world);
        let other = world.client();
        world.send(&other, &query("EXECUTE p"));
        let sent = [query("DEALLOCATE \"p\""), query("EXECUTE p")].concat();
        assert_eq!(server.received(), sent);
        let failed = format!("SERROR\0VERROR\0C{state}\0Mno\0\0");
        world.send(&server, &[message(b'E', failed.as_bytes()), answers("I")].concat());
        world.send(&server, &answers("DCI"));
        assert_eq!(server.is_dropped(), !goes_on, "{state}");
        assert_eq!(other.kinds(), if goes_on { "DCZ" } else { "E" }, "{state}");
    }
}

#[test]
fn deallocate_needs_no_server_and_a_later_one_takes_the_statement_off() {
    for sql in ["DEALLOCATE p", "DEALLOCATE ALL"] {
        let mut world = World::new(1);
        let (client, server) = client_with_p(&mut world);
        world.send(&client, &query(sql));
        assert_eq!((client.kinds(), server.kinds()), ("CZ".into(), String::new()), "{sql}");
        world.send(&client, &query("EXECUTE p"));
        let sent = [query("DEALLOCATE \"p\""), query("EXECUTE p")].concat();
        assert_eq!(server.received(), sent, "{sql}");
    }
}

#[test]
fn the_settings_of_the_prepare_are_in_force_around_it() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &query("SET TimeZone TO 'Asia/Tokyo'"));
    let server = world.servers[0].clone();
    let tokyo = parameter("TimeZone", "Asia/Tokyo");
    world.send(&server, &[answers("C"), tokyo, answers("I")].concat());
    world.send(&client, &query("PREPARE p AS SELECT 1"));
    world.send(&server, &answers("CI"));
    world.send(&server, &told_prepared(&["p"]));
    world.send(&client, &query("SET TimeZone TO 'UTC'"));
    world.send(&server, &[answers("C"), parameter("TimeZone", "UTC"), answers("I")].concat());
    assert_eq!(world.idle_backends(), 1);
    another_in_between(&mut world, &server);
    world.send(&client, &query("EXECUTE p"));
    let sent = text(&server.received());
    let at = |what: &str| sent.find(what).unwrap_or_else(|| panic!("no {what}: {sent}"));
    assert!(at("'Asia/Tokyo'") < at("PREPARE p") && at("PREPARE p") < at("'UTC'"), "{sent}");
    assert!(!sent.contains("EXECUTE"), "{sent}");
}

#[test]
fn what_is_not_certain_pins() {
    for (sql, names) in [
        // Its settings may have been changed before it.
        ("SET TimeZone TO 'UTC'; PREPARE p AS SELECT 1; SET TimeZone TO 'Asia/Tokyo'", &["p"][..]),
        ("DO $$ BEGIN PREPARE p AS SELECT 1; END $$", &["p"]),
        // It has come from elsewhere.
        ("PREPARE p AS SELECT 1", &["p", "q"]),
    ] {
        let mut world = World::new(1);
        let client = world.client();
        world.send(&client, &query(sql));
        let server = world.servers[0].clone();
        let tokyo = parameter("TimeZone", "Asia/Tokyo");
        world.send(&server, &[answers("C"), tokyo, answers("I")].concat());
        world.send(&server, &told_prepared(names));
        assert_eq!(world.idle_backends(), 0, "{sql}");
        world.send(&client, &query("DEALLOCATE ALL"));
        world.send(&server, &answers("CI"));
        world.send(&server, &told_prepared(&[]));
        assert_eq!(world.idle_backends(), 1, "{sql}");
    }
}

#[test]
fn who_looks_at_plans_keeps_its_backend_while_it_has_any() {
    for sql in ["EXPLAIN EXECUTE p", "SELECT * FROM pg_prepared_statements"] {
        let mut world = World::new(1);
        let (client, server) = client_with_p(&mut world);
        world.send(&client, &query(sql));
        world.send(&server, &answers("CI"));
        if sql.starts_with("EXPLAIN") {
            world.send(&server, &told_prepared(&["p"]));
        }
        assert_eq!(world.idle_backends(), 0, "{sql}");
        world.send(&client, &query("DEALLOCATE p"));
        world.send(&server, &answers("CI"));
        world.send(&server, &told_prepared(&[]));
        assert_eq!(world.idle_backends(), 1, "{sql}");
    }
}

#[test]
fn a_client_of_session_mode_finds_none_either() {
    let mut world = World::new(1);
    let (_, server) = client_with_p(&mut world);
    let other = world.client_of(LoopId(0), PoolMode::Session, &[]);
    world.send(&other, &query("SELECT 1"));
    // Other clients' statements of the protocol go as well, and their values of sequences.
    let ahead = [query("DEALLOCATE ALL"), query("DISCARD SEQUENCES")].concat();
    assert_eq!(server.received(), [ahead, query("SELECT 1")].concat());
}

/// Of the simulation, seed 637: its first message came before its settings were answered, and found it.
#[test]
fn a_client_of_session_mode_finds_none_after_its_start_values_either() {
    let mut world = World::new(1);
    let (client, server) = client_with_p(&mut world);
    // The one of the protocol is gone, the one of SQL is not.
    world.send(&client, &query("DEALLOCATE ALL; PREPARE q AS SELECT 2"));
    world.send(&server, &answers("CCI"));
    world.send(&server, &told_prepared(&["q"]));
    server.received();
    let start = [("statement_timeout", "7s")];
    let other = world.client_of(LoopId(0), PoolMode::Session, &start);
    let ahead = text(&server.received());
    let deallocates = ahead.find("DEALLOCATE ALL");
    assert!(deallocates.is_some() && deallocates < ahead.find("statement_timeout"), "{ahead}");
    world.send(&other, &[bind("q"), execute(), sync()].concat());
    assert_eq!(server.kinds(), "", "it waits for its settings");
    world.send(&server, &answers("CICICCCI"));
    assert_eq!(server.received(), [bind("q"), execute(), sync()].concat());
}

#[test]
fn a_report_with_other_names_leads_to_the_question_and_its_own_names_to_none() {
    let mut world = World::new(1);
    world.report = Some("1");
    let client = world.client();
    world.send(&client, &query("SELECT makes()"));
    let server = world.servers[0].clone();
    let report = parameter("hawser.state", "1 statements=p");
    world.send(&server, &[answers("C"), report, answers("I")].concat());
    assert!(text(&server.received()).contains("pg_prepared_statements"));
    world.send(&server, &told_prepared(&["p"]));
    assert_eq!(world.idle_backends(), 1, "a function's moves as well");
    let other = world.client();
    world.send(&other, &query("SELECT 1"));
    let report = parameter("hawser.state", "1");
    world.send(&server, &[answers("C"), report, answers("ICI")].concat());
    assert_eq!(world.idle_backends(), 1);
    server.received();
    world.send(&client, &query("EXECUTE p"));
    assert_eq!(server.received(), query("PREPARE p AS SELECT 1"));
    let report = parameter("hawser.state", "1 statements=p");
    world.send(&server, &[answers("C"), report, answers("I")].concat());
    assert_eq!(server.received(), query("EXECUTE p"));
    world.send(&server, &answers("CI"));
    assert_eq!(
        (server.kinds(), world.idle_backends()),
        (String::new(), 1),
        "the server is not asked"
    );
}
