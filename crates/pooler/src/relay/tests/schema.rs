//! Changes of the schema: a client that parses gets the outcome of a Parse at that moment, and one
//! that has got a description gets rows of that description.

use super::harness::*;
use crate::ids::LoopId;
use crate::relay::PoolMode;
use crate::relay::tests::replay::{INT4, TEXT, describe, parameters, refusal_of_ours, rows, run};

const SQL: &str = "SELECT * FROM t";

/// A client that has prepared `s`, its server, and another client.
fn prepared(size: u32) -> (World, Peer, Peer, Peer) {
    let mut world = World::new(size);
    let (client, server) = world.client_with("s", SQL);
    let other = world.client();
    (world, client, server, other)
}

/// Returns what a client's Parse sends to the server.
fn parses(world: &mut World, client: &Peer, server: &Peer, name: &str) -> String {
    world.send(client, &[parse(name, SQL), sync()].concat());
    let sent = server.kinds();
    match &*sent {
        "" => assert_eq!(client.kinds(), "1Z"),
        "CPS" => {
            world.send(server, &answers("31I"));
            assert_eq!(client.kinds(), "1Z");
        }
        other => panic!("{other}"),
    }
    sent
}

fn runs(world: &mut World, client: &Peer, server: &Peer, text: &str) {
    world.send(client, &query(text));
    world.send(server, &answers("CI"));
    server.received();
    client.received();
}

/// The server's error for a missing statement, which makes a message fail in the place of another.
fn lost() -> Vec<u8> {
    message(b'E', b"SERROR\0VERROR\0C26000\0Mprepared statement \"hawser_gone\" does not exist\0\0")
}

#[test]
fn a_parse_after_a_change_goes_to_the_server_once() {
    for change in [
        "ALTER TABLE t ADD a int",
        "/* c */ drop table u",
        "create or replace function f() returns int language sql as 'select 1'",
        "create table u as select 1",
        "select 1 as a into u",
        "import foreign schema a from server b into c",
        "do $$ begin alter table t add a int; end $$",
        "commit prepared 'x'",
        "explain analyze create table u as select 1",
    ] {
        let (mut world, client, server, _) = prepared(1);
        let before = world.pool.schema_epoch();
        runs(&mut world, &client, &server, change);
        assert!(!world.pool.schema_epoch().has_schema_of(before), "{change}");
    }
    let (mut world, client, server, other) = prepared(1);
    assert_eq!(parses(&mut world, &other, &server, "a"), "");
    runs(&mut world, &client, &server, "ALTER TABLE t ADD a int");
    assert_eq!(parses(&mut world, &other, &server, "b"), "CPS");
    assert_eq!(parses(&mut world, &other, &server, "c"), "");
}

#[test]
fn what_changes_no_meaning_leaves_statements_as_they_are() {
    for text in [
        "UPDATE t SET a = 1",
        "insert into u select * from t",
        "comment on table t is 'x'",
        "grant select on t to u",
        "truncate t",
        "reindex table t",
        "refresh materialized view v",
        "select 'drop table t'",
        "with a as (insert into t values (1) returning *) select * from a",
        "begin; commit",
    ] {
        let (mut world, client, server, other) = prepared(1);
        runs(&mut world, &client, &server, text);
        assert_eq!(parses(&mut world, &other, &server, "a"), "", "{text}");
    }
}

#[test]
fn a_change_in_a_block_is_its_own_sessions_until_it_commits() {
    let (mut world, client, server, other) = prepared(1);
    let another = world.client();
    world.send(&client, &query("BEGIN"));
    world.send(&server, &answers("CT"));
    world.send(&client, &query("ALTER TABLE t ADD a int"));
    world.send(&server, &answers("CT"));
    server.received();
    client.received();
    world.send(&client, &[parse("b", SQL), sync()].concat());
    assert_eq!(server.kinds(), "CPS", "of its own session it is seen at once");
    world.send(&server, &answers("31T"));
    assert_eq!(client.kinds(), "1Z");
    assert_eq!(parses(&mut world, &other, &server, "a"), "", "others see nothing of it");
    world.send(&client, &query("ROLLBACK"));
    world.send(&server, &answers("CI"));
    server.received();
    assert_eq!(parses(&mut world, &another, &server, "a"), "CPS", "what it saw is no more");
}

#[test]
fn a_temporary_table_belongs_to_its_client_alone() {
    let (mut world, client, server, other) = prepared(2);
    world.send(&client, &query("CREATE TEMP TABLE t (a int)"));
    world.send(&server, &answers("CI"));
    world.send(&server, &crate::relay::tests::harness::told(true));
    server.received();
    client.received();
    world.send(&client, &[parse("b", SQL), sync()].concat());
    assert_eq!(server.kinds(), "CPS", "its session means it by that name");
    assert_eq!(parses(&mut world, &other, &server, "a"), "");
}

/// A client has prepared its own statement `b` after `change`, which others do not see, on `one` of
/// two servers; another client has `a` of the same text on the other server.
fn prepared_after(change: &str, status: &str) -> (World, Peer, Peer, Peer) {
    let mut world = World::new(2);
    let (client, other) = (world.client(), world.client());
    world.send(&client, &query("BEGIN"));
    let one = world.servers[0].clone();
    world.send(&one, &answers("CT"));
    world.send(&client, &query(change));
    world.send(&one, &answers(&format!("C{status}")));
    world.send(&client, &[parse("b", SQL), sync()].concat());
    one.received();
    world.send(&one, &answers(&format!("1{status}")));
    client.received();
    world.send(&other, &[parse("a", SQL), sync()].concat());
    assert_eq!(other.kinds(), "", "{change}: a server that does not see it answers");
    let two = world.servers[1].clone();
    assert_eq!(two.kinds(), "PS", "{change}");
    world.send(&two, &answers("1I"));
    assert_eq!(other.kinds(), "1Z");
    (world, client, one, other)
}

/// The other client uses its statement on the server on which the first one has prepared the same.
fn comes_to(world: &mut World, other: &Peer, one: &Peer, what: &str) {
    let holders = [world.client(), world.client()];
    for holder in &holders {
        world.send(holder, &query("BEGIN"));
    }
    for server in [one.clone(), world.servers[1].clone()] {
        assert_eq!(server.kinds(), "Q");
        world.send(&server, &answers("CT"));
    }
    let mut left = Vec::new();
    for holder in &holders {
        world.send(holder, &query("COMMIT"));
        left.push(one.kinds());
        if left.last().unwrap() == "Q" {
            world.send(one, &answers("CI"));
            break;
        }
    }
    assert!(left.contains(&"Q".to_owned()));
    world.send(other, &[bind("a"), execute(), sync()].concat());
    assert_eq!(one.kinds(), "CPBES", "{what}");
}

#[test]
fn what_is_prepared_after_an_uncommitted_change_is_not_others() {
    for end in ["ROLLBACK", "COMMIT"] {
        let change = "CREATE FUNCTION ff(text) RETURNS text LANGUAGE sql AS 'select $1'";
        let (mut world, client, one, other) = prepared_after(change, "T");
        world.send(&client, &query(end));
        world.send(&one, &answers("CI"));
        one.received();
        comes_to(&mut world, &other, &one, end);
    }
}

#[test]
fn what_is_prepared_beside_a_temporary_table_is_not_others() {
    for end in ["ROLLBACK", "COMMIT"] {
        let change = "CREATE TEMP TABLE t (a int) ON COMMIT DROP";
        let (mut world, client, one, other) = prepared_after(change, "T");
        world.send(&client, &[parse("d", SQL), sync()].concat());
        assert_eq!(one.kinds(), "CPS", "there the server answers each Parse");
        world.send(&one, &answers("31T"));
        world.send(&client, &query(end));
        world.send(&one, &answers("CI"));
        world.send(&one, &crate::relay::tests::harness::told(false));
        one.received();
        comes_to(&mut world, &other, &one, end);
    }
}

#[test]
fn a_change_counts_for_all_pools_of_the_database_and_when_the_connection_is_lost() {
    let (mut world, client, server, _) = prepared(1);
    let before = world.pool.schema_epoch();
    world.send(&client, &query("ALTER TABLE t ADD a int"));
    assert_eq!(world.pool.schema_epoch(), before, "not committed yet");
    world.breaks(&server);
    assert!(world.pool.schema_epoch() > before, "it may have been");
}

#[test]
fn an_older_statement_is_prepared_again_once_a_period_is_over() {
    let (mut world, _, server, other) = prepared(1);
    world.wait_ms(900);
    assert_eq!(parses(&mut world, &other, &server, "a"), "");
    world.wait_ms(1_100);
    assert_eq!(parses(&mut world, &other, &server, "b"), "CPS");
    assert_eq!(parses(&mut world, &other, &server, "c"), "");
}

#[test]
fn nobody_waits_for_a_connection_only_because_time_has_passed() {
    let (mut world, client, server, other) = prepared(1);
    world.send(&client, &query("BEGIN"));
    world.send(&server, &answers("CT"));
    server.received();
    world.wait_ms(2_000);
    assert_eq!(parses(&mut world, &other, &server, "a"), "", "the only connection is taken");
    world.pool.schema_changed();
    world.send(&other, &[parse("b", SQL), sync()].concat());
    assert_eq!(other.kinds(), "", "but a change that is known counts");
}

#[test]
fn a_bind_takes_no_statement_that_is_older_than_its_clients_parse() {
    let (mut world, first, one, client) = prepared(2);
    world.send(&first, &query("BEGIN"));
    world.send(&one, &answers("CT"));
    world.send(&client, &[parse("s", SQL), bind("s"), execute(), sync()].concat());
    let two = world.servers[1].clone();
    assert_eq!(two.kinds(), "PBES");
    world.send(&two, &answers("12CI"));
    world.pool.schema_changed();
    world.send(&client, &[parse("n", SQL), sync()].concat());
    assert_eq!(two.kinds(), "CPS");
    world.send(&two, &answers("31I"));
    runs(&mut world, &first, &one, "COMMIT");
    world.send(&first, &[query("BEGIN"), query("SELECT 1")].concat());
    let (busy, free) = if one.kinds().is_empty() { (&two, &one) } else { (&one, &two) };
    world.send(busy, &answers("CTCT"));
    client.received();
    for (name, sent) in
        [("s", "BES"), ("n", if std::ptr::eq(free, &one) { "CPBES" } else { "BES" })]
    {
        world.send(&client, &[bind(name), execute(), sync()].concat());
        assert_eq!(free.kinds(), sent, "{name}");
        world.send(free, &answers(if sent == "BES" { "2CI" } else { "312CI" }));
        assert_eq!(client.kinds(), "2CZ");
    }
}

#[test]
fn a_client_that_was_told_is_served_once_the_new_one_is_the_same() {
    let (mut world, client, server) = told(rows("a", INT4, 0));
    world.send(&client, &run("s"));
    assert_eq!(server.kinds(), "PDH", "it was never there");
    assert_eq!(client.kinds(), "");
    for byte in [answers("1"), parameters(INT4), rows("a", INT4, 0)].concat() {
        world.send(&server, &[byte]);
    }
    assert_eq!(server.kinds(), "BES");
    world.send(&server, &answers("2DCI"));
    assert_eq!(client.kinds(), "2DCZ");
    world.send(&client, &run("s"));
    assert_eq!(server.kinds(), "BES", "once");
}

#[test]
fn a_client_that_was_told_other_rows_gets_the_servers_error_and_nothing_is_executed() {
    let (mut world, client, server) = told(rows("a", INT4, 0));
    world.send(&client, &run("s"));
    world.send(&server, &[answers("1"), parameters(INT4), rows("a", TEXT, 0)].concat());
    assert_eq!(server.kinds(), "PDHPDH", "for parameters as they were, too");
    world.send(&server, &[answers("1"), parameters(INT4), rows("a", TEXT, 0)].concat());
    assert_eq!(server.kinds(), "CBES");
    world.send(&server, &[answers("3"), lost(), answers("I")].concat());
    assert_eq!(client.received(), [refusal_of_ours(), answers("I")].concat());
    assert_eq!(world.idle_backends(), 1);
}

/// The server sends the parameters before it finds that the rows differ.
#[test]
fn a_describe_that_is_refused_for_other_rows_says_the_parameters_first() {
    let (mut world, client, server) = told(rows("a", INT4, 0));
    world.send(&client, &[describe(b'S', "s"), sync()].concat());
    for _ in 0..2 {
        assert_eq!(server.kinds(), "PDH");
        world.send(&server, &[answers("1"), parameters(INT4), rows("a", TEXT, 0)].concat());
    }
    assert_eq!(server.kinds(), "CDS");
    world.send(&server, &[answers("3"), lost(), answers("I")].concat());
    let due = [parameters(INT4), refusal_of_ours(), answers("I")].concat();
    assert_eq!(client.received(), due);
}

#[test]
fn parameters_stay_those_that_the_client_was_told() {
    let (mut world, client, server) = told(rows("a", INT4, 0));
    world.send(&client, &run("s"));
    server.received();
    world.send(&server, &[answers("1"), parameters(TEXT), rows("a", INT4, 0)].concat());
    let sent = server.received();
    assert_eq!(kinds(&sent), "PDH");
    let typed = [SQL.as_bytes(), b"\0\0\x01", &INT4.to_be_bytes()].concat();
    assert!(memchr::memmem::find(&sent, &typed).is_some(), "prepared with the types it knows");
    world.send(&server, &[answers("1"), parameters(INT4), rows("a", INT4, 0)].concat());
    assert_eq!(server.kinds(), "BES");
    world.send(&server, &answers("2CI"));
    assert_eq!(client.kinds(), "2CZ");
}

#[test]
fn a_description_that_follows_does_not_make_other_rows_those_that_were_told() {
    let (mut world, client, server) = told(rows("a", INT4, 0));
    world.send(&client, &[bind("s"), describe(b'P', ""), execute(), sync()].concat());
    for _ in 0..2 {
        assert_eq!(server.kinds(), "PDH");
        world.send(&server, &[answers("1"), parameters(INT4), rows("b", TEXT, 0)].concat());
    }
    assert_eq!(server.kinds(), "CBDES");
    world.send(&server, &[answers("3"), lost(), answers("I")].concat());
    assert_eq!(client.received(), [refusal_of_ours(), answers("I")].concat());
}

/// The second one's rows were noted as the first one's, which was refused from then on.
#[test]
fn the_description_of_a_portal_is_of_the_statement_that_it_was_made_of_last() {
    for portal in ["p", ""] {
        let mut world = World::new(1);
        let (client, server) = world.client_with("s", SQL);
        world.send(&client, &[parse("t", "SELECT 2"), describe(b'S', "t"), sync()].concat());
        world.send(
            &server,
            &[answers("1"), parameters(INT4), rows("b", TEXT, 0), answers("I")].concat(),
        );
        server.received();
        client.received();
        let run = |name: &str| {
            let bind = message(b'B', format!("{portal}\0{name}\0\0\0\0\0\0\0").as_bytes());
            let execute = message(b'E', format!("{portal}\0\0\0\0\0").as_bytes());
            [bind, describe(b'P', portal), execute, sync()].concat()
        };
        world.send(&client, &[run("s"), run("t")].concat());
        assert_eq!(server.kinds(), "BDESBDES");
        for (name, kind) in [("a", INT4), ("b", TEXT)] {
            world.send(&server, &[answers("2"), rows(name, kind, 0), answers("CI")].concat());
        }
        assert_eq!(client.kinds(), "2TCZ2TCZ");
        world.breaks(&server);
        world.send(&client, &run("s"));
        let server = world.servers.last().unwrap().clone();
        assert_eq!(server.kinds(), "PDH", "portal {portal:?}");
        world.send(&server, &[answers("1"), parameters(INT4), rows("a", INT4, 0)].concat());
        assert_eq!(server.kinds(), "BDES", "portal {portal:?}");
    }
}

#[test]
fn an_error_ends_the_pipeline_of_a_client_that_waits() {
    let (mut world, client, server) = told(rows("a", INT4, 0));
    world.send(&client, &run("s"));
    assert_eq!(server.kinds(), "PDH");
    world.send(&server, &answers("E"));
    assert_eq!(server.kinds(), "S", "what follows is ignored up to the Sync");
    world.send(&server, &answers("I"));
    assert_eq!(client.kinds(), "EZ");
    assert_eq!(world.idle_backends(), 1);
    world.send(&client, &run("s"));
    assert_eq!(server.kinds(), "PDH", "the next use tries again");
}

#[test]
fn a_client_that_leaves_while_it_waits_leaves_a_connection_that_serves() {
    let (mut world, client, server) = told(rows("a", INT4, 0));
    let other = world.client();
    world.send(&client, &run("s"));
    server.received();
    world.close(&client);
    world.send(&server, &[answers("1"), parameters(INT4), rows("a", INT4, 0)].concat());
    world.send(&server, &answers("EI"));
    for request in world.asked.cancels.clone() {
        world.deliver(LoopId(0), crate::relay::ToLoop::CancelDone(request.backend));
    }
    server.received();
    world.send(&other, &query("SELECT 1"));
    assert!(!other.is_dropped());
}

#[test]
fn an_unnamed_statement_that_comes_to_another_connection_is_compared() {
    for (now, fits) in [(rows("a", INT4, 0), true), (rows("a", TEXT, 0), false)] {
        let (mut world, client, server) = told_unnamed();
        world.send(&client, &run(""));
        assert_eq!(server.kinds(), "PDHBES", "a moment after its Parse it does not wait");
        world.send(&server, &[answers("1"), parameters(INT4), now].concat());
        world.send(&server, &answers("2DCI"));
        if fits {
            assert_eq!(client.kinds(), "2DCZ");
        } else {
            let text = String::from_utf8_lossy(&client.received()).into_owned();
            assert!(text.contains("cached plan must not change result type"), "{text}");
            assert!(client.is_dropped(), "its rows have been sent already");
        }
    }
}

#[test]
fn an_unnamed_statement_of_before_a_change_waits_for_its_description() {
    let (mut world, client, server) = told_unnamed();
    world.pool.schema_changed();
    world.send(&client, &run(""));
    assert_eq!(server.kinds(), "PDH");
    world.send(&server, &[answers("1"), parameters(INT4), rows("a", TEXT, 0)].concat());
    assert_eq!(server.kinds(), "PDH", "with the parameters that the client knows");
    world.send(&server, &[answers("1"), parameters(INT4), rows("a", TEXT, 0)].concat());
    assert_eq!(server.kinds(), "CBES");
    world.send(&server, &[answers("3"), lost(), answers("I")].concat());
    assert_eq!(client.received(), [refusal_of_ours(), answers("I")].concat());
}

#[test]
fn clients_of_session_mode_that_change_the_schema_count() {
    let mut world = World::new(2);
    let client = world.client_of(LoopId(0), PoolMode::Session, &[]);
    let before = world.pool.schema_epoch();
    let change = [parse("", "ALTER TABLE t ADD a int"), bind(""), execute(), sync()].concat();
    world.send(&client, &change);
    let server = world.servers[0].clone();
    world.send(&server, &answers("12CI"));
    assert!(world.pool.schema_epoch() > before);
}

/// A client that has got a description of `s` on a connection that is gone; the current one lacks
/// `s`.
fn told(now: Vec<u8>) -> (World, Peer, Peer) {
    told_of("s", now)
}

fn told_unnamed() -> (World, Peer, Peer) {
    told_of("", rows("a", INT4, 0))
}

fn told_of(name: &str, now: Vec<u8>) -> (World, Peer, Peer) {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &[parse(name, SQL), describe(b'S', name), sync()].concat());
    let server = world.servers[0].clone();
    world.send(&server, &[answers("1"), parameters(INT4), now, answers("I")].concat());
    assert_eq!(client.kinds(), "1tTZ");
    world.breaks(&server);
    let other = world.client();
    world.send(&other, &query("SELECT 1"));
    let server = world.servers.last().unwrap().clone();
    world.send(&server, &answers("CI"));
    server.received();
    world.close(&other);
    (world, client, server)
}
