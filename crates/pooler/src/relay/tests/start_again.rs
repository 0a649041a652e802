//! The first message of a transaction that its server has not run.

use super::harness::*;

fn refusal() -> Vec<u8> {
    message(b'E', b"SERROR\0VERROR\0C25006\0Mcannot execute INSERT in a read-only transaction\0\0")
}

fn report() -> Vec<u8> {
    parameter("default_transaction_read_only", "on")
}

const INSERT: &str = "INSERT INTO t VALUES (1)";

/// A database that wants servers that take writes, a client, and its first server connection.
fn world() -> (World, Peer, Peer) {
    world_that(true)
}

/// The same, which wants them or not.
fn world_that(wants_writable: bool) -> (World, Peer, Peer) {
    let mut world = World::new(2);
    world.change_settings(|settings| settings.wants_writable = wants_writable);
    let client = world.client();
    world.send(&client, &[parse("s", INSERT), sync()].concat());
    let server = world.servers[0].clone();
    world.send(&server, &answers("1I"));
    server.received();
    client.received();
    (world, client, server)
}

#[test]
fn the_first_message_of_a_transaction_goes_to_another_server_unnoticed() {
    let unnamed = [parse("", INSERT), bind(""), execute(), sync()].concat();
    let begun = message(b'C', b"BEGIN\0");
    for (sent, again, answer, next, seen) in [
        (query(INSERT), "Q", [refusal(), report(), answers("I")].concat(), "CI", "CZ"),
        (query("BEGIN"), "Q", [begun, report(), answers("T")].concat(), "CT", "CZ"),
        (
            unnamed,
            "PBES",
            [answers("12"), refusal(), report(), answers("I")].concat(),
            "12CI",
            "12CZ",
        ),
        (
            [bind("s"), execute(), sync()].concat(),
            "PBES",
            [answers("2"), refusal(), report(), answers("I")].concat(),
            "12CI",
            "2CZ",
        ),
    ] {
        let (mut world, client, server) = world();
        world.send(&client, &sent);
        server.received();
        world.send(&server, &answer);
        assert_eq!(client.kinds(), "", "of the server that has become read-only");
        assert!(server.is_dropped());
        assert_eq!(world.asked.cancels.len(), 0, "there is nothing to cancel");
        let other = world.servers[1].clone();
        assert_eq!(other.kinds(), again);
        world.send(&other, &answers(next));
        assert_eq!(client.kinds(), seen);
        if next.ends_with('T') {
            world.send(&client, &query("COMMIT"));
            world.send(&other, &answers("CI"));
        }
        assert_eq!(world.idle_backends(), 1);
    }
}

#[test]
fn an_answer_that_comes_in_parts_is_waited_for_from_the_error_on() {
    let (mut world, client, server) = world();
    world.send(&client, &query(INSERT));
    world.send(&server, &refusal());
    assert_eq!(client.kinds(), "", "its end shows why");
    let end = [report(), answers("I")].concat();
    for byte in &end {
        world.send(&server, &[*byte]);
    }
    assert!(server.is_dropped());
    assert_eq!(world.servers[1].kinds(), "Q");
}

#[test]
fn an_error_of_another_cause_is_its_clients() {
    for (before, sent, answer) in [
        ("", query(INSERT), [refusal(), answers("I")].concat()),
        ("", query("SELECT f()"), [refusal(), report(), answers("I")].concat()),
        ("BEGIN", query(INSERT), [refusal(), report(), answers("F")].concat()),
    ] {
        let (mut world, client, server) = world();
        if !before.is_empty() {
            world.send(&client, &query(before));
            world.send(&server, &answers("CT"));
            client.received();
        }
        world.send(&client, &sent);
        world.send(&server, &answer);
        assert!(client.kinds().starts_with('E'), "{before} {sent:?}");
        let has_turned = sent == query("SELECT f()");
        assert_eq!(server.is_dropped(), has_turned, "it reports that, and is at rest");
    }
    let (mut world, client, server) = world_that(false);
    world.send(&client, &query(INSERT));
    world.send(&server, &[refusal(), report(), answers("I")].concat());
    assert!(client.kinds().starts_with('E'), "any server will do");
}

#[test]
fn what_a_closed_connection_does_not_take_goes_to_another() {
    let words = message(b'E', b"SFATAL\0VFATAL\0C57P01\0Mterminating connection\0\0");
    for sent in [query("SELECT 1"), [bind("s"), execute(), sync()].concat()] {
        let (mut world, client, server) = world();
        world.is_gone_after(&server, &words);
        world.send(&client, &sent);
        assert!(server.is_dropped() && !client.is_dropped());
        let other = world.servers[1].clone();
        let is_query = sent[0] == b'Q';
        assert_eq!(other.kinds(), if is_query { "Q" } else { "PBES" });
        world.send(&other, &answers(if is_query { "CI" } else { "12CI" }));
        assert_eq!(client.kinds(), if is_query { "CZ" } else { "2CZ" });
    }
}

#[test]
fn a_server_that_says_that_it_has_become_read_only_serves_no_further_transaction() {
    let (mut world, client, server) = world();
    world.send(&client, &query("SELECT 1"));
    let done = message(b'C', b"SELECT 1\0");
    world.send(&server, &[done, report(), answers("I")].concat());
    assert_eq!(client.kinds(), "CZ", "elsewhere the setting is as it was");
    assert!(server.is_dropped());
    world.send(&client, &query(INSERT));
    assert_eq!(world.servers[1].kinds(), "Q", "it has not asked for the setting");
}
