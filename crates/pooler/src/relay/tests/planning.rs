//! What a server process keeps that depends on settings: plans of shared statements, and of
//! functions.

use super::harness::*;
use crate::relay::tests::census::learn_keeping;

/// Two clients that have prepared the same; each has the backend in turn.
fn alike(world: &mut World) -> (Peer, Peer, Peer) {
    let (one, other) = (world.client(), world.client());
    world.send(&one, &[parse("s", "SELECT 1"), sync()].concat());
    let server = world.servers[0].clone();
    world.send(&server, &answers("1I"));
    world.send(&other, &[parse("s", "SELECT 1"), sync()].concat());
    assert_eq!((other.kinds(), server.kinds()), ("1Z".to_owned(), "PS".to_owned()));
    (one, other, server)
}

fn run() -> Vec<u8> {
    [bind("s"), execute(), sync()].concat()
}

/// The statement that a Bind names.
fn bound(sent: &[u8]) -> String {
    let text = String::from_utf8_lossy(sent).into_owned();
    let at = text.rfind("hw").expect("a Bind of a shared statement");
    text[at..].split('\0').next().expect("its name").to_owned()
}

#[test]
fn who_has_changed_settings_executes_a_statement_of_its_own() {
    for plain in [true, false] {
        let mut world = if plain { World::new(1) } else { World::new(1).without_plain_lane() };
        let (one, other, server) = alike(&mut world);
        world.send(&other, &query("SET TimeZone TO 'Asia/Tokyo'"));
        let told = parameter("TimeZone", "Asia/Tokyo");
        world.send(&server, &[&answers("C")[..], &told, &answers("I")].concat());
        server.received();
        world.send(&other, &run());
        let sent = server.received();
        assert!(kinds(&sent).ends_with("BES") && kinds(&sent).contains('P'), "{}", kinds(&sent));
        let own = bound(&sent);
        let set = kinds(&sent).matches("PBECC").count();
        assert_eq!(
            set, 2,
            "parsed under the settings of its Parse, and theirs are back after that"
        );
        world.send(&server, &[answers("12C331"), answers("12C33"), answers("2CI")].concat());
        world.send(&other, &run());
        assert_eq!(server.kinds(), "BES", "it is there");
        world.send(&server, &answers("2CI"));
        world.send(&one, &run());
        let sent = server.received();
        assert_eq!(kinds(&sent), "QBES");
        assert_ne!(bound(&sent), own);
    }
}

#[test]
fn what_is_planned_under_settings_that_are_not_known_is_for_one_transaction() {
    for set in ["SET LOCAL extra_float_digits = 0", "SELECT set_config($1, '0', true)"] {
        let mut world = World::new(1);
        let (one, other, server) = alike(&mut world);
        world.send(&one, &run());
        let shared = bound(&server.received());
        world.send(&server, &answers("2CI"));
        for text in ["BEGIN", set] {
            world.send(&other, &query(text));
            world.send(&server, &answers("CT"));
        }
        server.received();
        world.send(&other, &run());
        assert_eq!(server.kinds(), "CPBES", "another client has planned what is there");
        world.send(&server, &answers("312CT"));
        world.send(&other, &run());
        assert_eq!(server.kinds(), "BES", "its own");
        world.send(&server, &answers("2CT"));
        world.send(&other, &query("COMMIT"));
        world.send(&server, &answers("CI"));
        server.received();
        if set.starts_with("SELECT") {
            continue; // its client keeps the server connection
        }
        world.send(&one, &run());
        let sent = server.received();
        assert_eq!((kinds(&sent), bound(&sent)), ("CPBES".to_owned(), shared));
        world.send(&server, &answers("312CI"));
        world.send(&other, &run());
        assert_eq!(server.kinds(), "BES");
    }
}

#[test]
fn what_follows_a_set_in_its_own_pipeline_is_planned_for_its_client_alone() {
    let mut world = World::new(1);
    let (one, other, server) = alike(&mut world);
    world.send(&one, &run());
    world.send(&server, &answers("2CI"));
    server.received();
    let set = [parse("", "SET TimeZone TO 'Asia/Tokyo'"), bind(""), execute()].concat();
    let back = [parse("", "RESET TimeZone"), bind(""), execute()].concat();
    world.send(&other, &[set, bind("s"), execute(), back, sync()].concat());
    assert_eq!(server.kinds(), "PBECPBEPBES");
    world.send(&server, &answers("12C312C12CI"));
    world.send(&one, &run());
    assert_eq!(server.kinds(), "CPBES");
}

#[test]
fn what_decides_the_cost_alone_is_shared_up_to_the_end_of_the_transaction() {
    let mut world = World::new(1);
    let (_one, other, server) = alike(&mut world);
    for text in ["BEGIN", "SET LOCAL work_mem = '1GB'", "SET LOCAL statement_timeout = 0"] {
        world.send(&other, &query(text));
        world.send(&server, &answers("CT"));
    }
    server.received();
    world.send(&other, &run());
    assert_eq!(server.kinds(), "BES");
}

fn discard_plans() -> Vec<u8> {
    [begin(BEGIN_TO_DISCARD), query("DISCARD PLANS;COMMIT")].concat()
}

/// A client that has set its time zone, on a backend that is free.
fn in_tokyo(world: &mut World) -> Peer {
    let client = world.client();
    world.send(&client, &query("SET TimeZone TO 'Asia/Tokyo'"));
    let server = world.servers[0].clone();
    let told = parameter("TimeZone", "Asia/Tokyo");
    world.send(&server, &[&answers("C")[..], &told, &answers("I")].concat());
    server.received();
    client
}

const FUNCTION: (&str, &str) = ("midnight", "BEGIN RETURN '2024-01-01'::timestamptz; END");

#[test]
fn functions_keep_no_plans_of_a_client_with_other_settings() {
    for (functions, discards) in [(&[FUNCTION][..], true), (&[], false)] {
        let mut world = World::new(1);
        learn_keeping(&world, functions);
        let (client, same) = (world.client(), world.client());
        world.send(&client, &query("SELECT midnight()"));
        let server = world.servers[0].clone();
        assert_eq!(server.received(), query("SELECT midnight()"), "it is new");
        world.send(&server, &answers("CI"));
        let tokyo = in_tokyo(&mut world);
        world.send(&tokyo, &query("SELECT midnight()"));
        let discard = |more: Vec<u8>| [discard_plans(), more].concat();
        let expected = |more| if discards { discard(more) } else { more };
        assert_eq!(
            server.received(),
            expected(query("SELECT midnight()")),
            "it has changed its own"
        );
        world.send(&server, &answers(if discards { "CICI" } else { "CI" }));
        world.send(&tokyo, &query("SELECT midnight()"));
        assert_eq!(server.received(), query("SELECT midnight()"));
        world.send(&server, &answers("CI"));
        world.send(&client, &query("SELECT midnight()"));
        let sent = server.received();
        assert_eq!(sent.starts_with(&discard_plans()), discards);
        assert_eq!(kinds(&sent), if discards { "QQQ" } else { "QQ" });
        world.send(&server, &answers(if discards { "CICICI" } else { "CICI" }));
        world.send(&same, &query("SELECT midnight()"));
        assert_eq!(server.received(), query("SELECT midnight()"), "of one key");
    }
}

#[test]
fn functions_keep_no_plans_of_what_a_transaction_has_set_for_itself() {
    let mut world = World::new(1);
    learn_keeping(&world, &[FUNCTION]);
    let (client, other) = (world.client(), world.client());
    for (text, answer) in
        [("BEGIN", "CT"), ("SET LOCAL IntervalStyle TO 'iso_8601'", "CT"), ("COMMIT", "CI")]
    {
        world.send(&client, &query(text));
        world.send(&world.servers[0].clone(), &answers(answer));
    }
    let server = world.servers[0].clone();
    server.received();
    world.send(&other, &query("SELECT 1"));
    assert_eq!(server.received(), [discard_plans(), query("SELECT 1")].concat());
}

#[test]
fn functions_keep_their_plans_where_names_and_costs_alone_differ() {
    let mut world = World::new(1);
    learn_keeping(&world, &[FUNCTION]);
    let (client, other) = (world.client(), world.client());
    world.send(&other, &query("SELECT 1"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("CI"));
    world.send(&client, &query("SET application_name TO 'x'"));
    let told = parameter("application_name", "x");
    world.send(&server, &[&answers("C")[..], &told, &answers("I")].concat());
    server.received();
    world.send(&other, &query("SELECT 1"));
    assert_eq!(server.kinds(), "QQ", "settings, and its own");
}

/// Functions that it has not called yet were called by others; those that it calls from then on are
/// its own.
#[test]
fn what_a_client_sets_itself_changes_its_functions_as_on_a_direct_connection() {
    let mut world = World::new(1);
    learn_keeping(&world, &[FUNCTION]);
    let client = in_tokyo(&mut world);
    let server = world.servers[0].clone();
    world.send(&client, &query("SELECT midnight()"));
    assert_eq!(
        server.received(),
        query("SELECT midnight()"),
        "no other client has called anything"
    );
    world.send(&server, &answers("CI"));
    let other = world.client();
    world.send(&other, &query("SELECT 1"));
    assert_eq!(server.kinds(), "QQQ");
    world.send(&server, &answers("CICICI"));
    world.send(&client, &query("PREPARE p AS SELECT 1"));
    assert_eq!(server.kinds(), "QQ", "by its first word it could end their block");
    world.send(&server, &answers("CICI"));
    assert_eq!(server.kinds(), "Q");
    world.send(&server, &answers("CI"));
    world.send(&server, &told_prepared(&["p"]));
    server.received();
    world.send(&client, &query("SET DateStyle TO 'German'"));
    let told = parameter("DateStyle", "German, DMY");
    world.send(&server, &[&answers("C")[..], &told, &answers("I")].concat());
    server.received();
    world.send(&client, &query("EXECUTE p"));
    assert_eq!(server.received(), query("EXECUTE p"));
}

/// It would be analysed again under other settings than those of its Parse.
#[test]
fn a_statement_run_under_other_settings_than_its_own_is_prepared_again_after_a_discard() {
    let mut world = World::new(1);
    learn_keeping(&world, &[FUNCTION]);
    let (one, other, server) = alike(&mut world);
    world.send(&other, &query("SET TimeZone TO 'Asia/Tokyo'"));
    let told = parameter("TimeZone", "Asia/Tokyo");
    world.send(&server, &[&answers("C")[..], &told, &answers("I")].concat());
    server.received();
    for (client, own) in [(&other, true), (&one, false), (&other, true)] {
        world.send(client, &run());
        let sent = kinds(&server.received());
        assert_eq!(sent.contains('P'), own, "{sent}");
        if own {
            let ahead = if sent.starts_with("QQ") { "CICI" } else { "CI" };
            let closed = if sent.contains("CPP") || sent.contains("CCCP") { "3" } else { "" };
            let parsed = ["12C33", closed, "112C33"].concat();
            world.send(&server, &[answers(ahead), answers(&parsed), answers("2CI")].concat());
        } else {
            assert_eq!(sent, "QQBES");
            world.send(&server, &answers("CICI2CI"));
        }
    }
}
