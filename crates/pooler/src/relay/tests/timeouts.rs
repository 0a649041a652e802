//! A statement_timeout so short that statements of Hawser's could run into it: it hits none of
//! them.

use super::harness::*;
use crate::ids::LoopId;
use crate::relay::PoolMode;
use crate::relay::tests::census::learn_keeping;

const LIFT: &str = "SET statement_timeout TO 0";

/// The statements that lift it.
fn lift() -> Vec<u8> {
    query(LIFT).repeat(2)
}

/// And the server's answer to these.
fn lifted() -> Vec<u8> {
    answers("CICI")
}

fn text_of(peer: &Peer) -> String {
    String::from_utf8_lossy(&peer.received()).into_owned()
}

/// A client with a statement_timeout of 50 ms, another with settings of its own, and the only backend,
/// which has the timeout.
fn with_a_short_timeout() -> (World, Peer, Peer, Peer) {
    let mut world = World::new(1);
    let one = world.client();
    let start = [("statement_timeout", "80ms"), ("work_mem", "5MB")];
    let two = world.client_as(None, PoolMode::Transaction, &start);
    let server = set(&mut world, &one);
    two.received();
    (world, one, two, server)
}

/// A client sets a statement_timeout of 50 ms, on the only server.
fn set(world: &mut World, client: &Peer) -> Peer {
    world.send(client, &query("SET statement_timeout = 50"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("CI"));
    world.send(&server, &value("50ms"));
    assert_eq!(world.idle_backends(), 1);
    server.received();
    server
}

/// The server's error for a statement that has taken too long.
fn cut_off() -> Vec<u8> {
    [message(b'E', b"SERROR\0VERROR\0C57014\0Mtoo long\0\0"), answers("I")].concat()
}

#[test]
fn it_is_taken_off_first_and_brought_last() {
    let (mut world, one, two, server) = with_a_short_timeout();
    world.send(&two, &query("SELECT 1"));
    assert_eq!(server.received(), lift(), "by itself");
    world.send(&server, &lifted());
    let sent = server.received();
    let text = String::from_utf8_lossy(&sent).into_owned();
    assert!(text.contains("SET \"work_mem\" TO '5MB'") && !text.contains("50ms"), "{text}");
    let last = [query("SET \"statement_timeout\" TO '80ms'"), query("SELECT 1")].concat();
    assert!(sent.ends_with(&last), "{text}");
    world.send(&server, &answers("CCICICI"));
    assert_eq!(two.kinds(), "CZ");
    world.send(&one, &query("SELECT 2"));
    assert_eq!(server.received(), lift());
    world.send(&server, &lifted());
    world.send(&server, &answers("CCICI"));
    // Its own timeout is set: it does not wait.
    server.received();
    world.send(&server, &answers("CI"));
    world.send(&one, &query("SELECT 3"));
    assert_eq!(server.received(), query("SELECT 3"));
}

#[test]
fn no_plans_are_discarded_under_it() {
    let mut world = World::new(1);
    learn_keeping(&world, &[("midnight", "BEGIN RETURN '2024-01-01'::timestamptz; END")]);
    let one = world.client();
    let start = [("statement_timeout", "50ms"), ("TimeZone", "Asia/Tokyo")];
    let same = world.client_as(None, PoolMode::Transaction, &start);
    let server = set(&mut world, &one);
    same.received();
    world.send(&same, &query("SELECT midnight()"));
    assert_eq!(server.received(), lift(), "though it is the same timeout");
    world.send(&server, &lifted());
    let sent = text_of(&server);
    assert!(sent.contains("DISCARD PLANS") && sent.contains("SELECT midnight()"), "{sent}");
}

#[test]
fn taking_it_off_is_tried_again_where_that_is_cut_off() {
    let (mut world, _one, two, server) = with_a_short_timeout();
    world.send(&two, &query("SELECT 1"));
    // Whatever the outcome of the second: it may have run under the timer, too.
    for second in [cut_off(), answers("CI"), cut_off()] {
        assert_eq!(server.received(), lift());
        world.send(&server, &[cut_off(), second].concat());
    }
    assert_eq!(server.received(), lift());
    assert_eq!(two.kinds(), "", "it knows nothing of it");
    world.send(&server, &lifted());
    assert!(server.received().ends_with(&query("SELECT 1")));
    // Any other error counts.
    let (mut world, _one, two, server) = with_a_short_timeout();
    world.send(&two, &query("SELECT 1"));
    let other = message(b'E', b"SERROR\0VERROR\0C42501\0Mno\0\0");
    world.send(&server, &[other, answers("I")].concat());
    assert!(two.is_dropped() && server.is_dropped());
}

#[test]
fn a_client_that_leaves_meanwhile_leaves_the_backend_to_others() {
    let taken_by_second = [answers("CI"), cut_off()].concat();
    let not_known = [cut_off(), answers("CI")].concat();
    for (answer, lifts) in [(lifted(), false), (taken_by_second, false), (not_known, true)] {
        let (mut world, _one, two, server) = with_a_short_timeout();
        let next = world.client_as(None, PoolMode::Transaction, &[("statement_timeout", "50ms")]);
        world.send(&two, &query("SELECT 1"));
        assert_eq!(server.received(), lift());
        world.close(&two);
        assert!(world.asked.cancels.is_empty(), "nothing of its own has run");
        world.send(&server, &answer);
        assert!(!server.is_dropped());
        world.send(&next, &query("SELECT 2"));
        let sent = text_of(&server);
        assert_eq!(sent.contains(LIFT), lifts, "{sent}");
        assert_eq!(sent.contains("SELECT 2"), !lifts, "{sent}");
    }
}

#[test]
fn a_question_that_it_cuts_off_is_asked_again() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &query("SET statement_timeout = 1"));
    let server = world.servers[0].clone();
    server.received();
    world.send(&server, &answers("CI"));
    for _ in 0..3 {
        assert!(text_of(&server).contains("current_setting('statement_timeout'"));
        world.send(&server, &cut_off());
        assert_eq!(world.idle_backends(), 0);
    }
    world.send(&server, &value("1ms"));
    assert_eq!(world.idle_backends(), 1);
}

#[test]
fn a_client_of_session_mode_is_greeted_when_it_is_off() {
    let mut world = World::new(1);
    let one = world.client();
    let server = set(&mut world, &one);
    let start = [("statement_timeout", "80ms"), ("work_mem", "5MB")];
    let session = world.client_as(None, PoolMode::Session, &start);
    world.send(&session, &query("SELECT 1"));
    for _ in 0..2 {
        assert_eq!(server.received(), lift());
        assert_eq!(session.kinds(), "");
        world.send(&server, &cut_off().repeat(2));
    }
    server.received();
    world.send(&server, &lifted());
    assert!(session.kinds().ends_with("KZ"));
    let sent = server.received();
    let last = query("SET \"statement_timeout\" TO '80ms'");
    assert!(sent.ends_with(&last), "{}", sent.escape_ascii());
    world.send(&server, &answers("CCCCICI"));
    assert_eq!(server.received(), query("SELECT 1"), "it has waited");
    world.send(&server, &answers("CI"));
    assert_eq!(session.kinds(), "CZ");
}

#[test]
fn what_others_have_drawn_is_discarded_when_it_is_off() {
    let mut world = World::new(1);
    let one = world.client();
    let server = set(&mut world, &one);
    let start = [("statement_timeout", "50ms")];
    let two = world.client_of(LoopId(0), PoolMode::Transaction, &start);
    world.send(&two, &query("SELECT lastval()"));
    world.send(&server, &answers("EI"));
    world.send(&one, &query("SELECT draws()"));
    world.send(&server, &answers("DCI"));
    server.received();
    world.send(&two, &query("BEGIN"));
    assert_eq!(server.received(), lift(), "though it has the same");
    world.send(&server, &lifted());
    let sent = text_of(&server);
    let order = ["DISCARD SEQUENCES", "SET \"statement_timeout\" TO '50ms'", "BEGIN"];
    let places = order.map(|text| sent.rfind(text));
    assert!(places.iter().all(Option::is_some) && places.is_sorted(), "{sent}");
}

#[test]
fn settings_within_a_pipeline_that_it_cuts_off_are_the_clients_own() {
    let mut world = World::new(1);
    let client = |world: &mut World, user| {
        let start = [("statement_timeout", "50ms"), ("my.user", user)];
        world.client_of(LoopId(0), PoolMode::Transaction, &start)
    };
    let (one, two) = (client(&mut world, "1"), client(&mut world, "2"));
    let run = [bind("s"), execute(), sync()].concat();
    for client in [&one, &two] {
        world.send(client, &[parse("s", "SELECT 1"), run.clone()].concat());
        let server = world.servers[0].clone();
        let text = text_of(&server);
        if text.contains("work_mem") || text.contains("SET \"statement_timeout\"") {
            world.send(&server, &answers("CICI")); // the first has none of these settings
            world.send(&server, &answers("12CI"));
        } else {
            world.send(&server, &[answers("12DC"), answers("12CI")].concat());
        }
        assert_eq!(client.kinds(), "12CZ", "{text}");
        server.received();
    }
    let server = world.servers[0].clone();
    world.send(&one, &run);
    assert_eq!(server.kinds(), "BEBES", "no query before it");
    world.send(&server, &cut_off());
    assert_eq!(one.kinds(), "EZ");
    assert!(!one.is_dropped() && !server.is_dropped());
    // The server has the other's settings as before.
    world.send(&one, &run);
    assert_eq!(server.kinds(), "BEBES");
    world.send(&server, &answers("2DC2CI"));
    assert_eq!(one.kinds(), "2CZ");
}
