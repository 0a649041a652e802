//! What functions do to the sessions that call them: known by their sources.

use std::sync::Arc;

use super::harness::*;
use crate::hash::Keyed;
use crate::ids::{LoopId, PoolId};
use crate::lending::{Database, PoolSettings, SharedPool};
use crate::parts::functions::census::{Census, Function, Language, Link, Names};
use crate::relay::PoolMode;
use crate::session::settings::PlanReads;

/// A census of functions of PL/pgSQL, whose names say which are IMMUTABLE; `audited` has a trigger.
/// A server process keeps no plans of these.
pub(super) fn learn(world: &World, functions: &[(&str, &str)]) -> bool {
    learn_census(world, census(functions).keeping_no_plans())
}

/// The same, and it keeps plans.
pub(super) fn learn_keeping(world: &World, functions: &[(&str, &str)]) -> bool {
    learn_census(world, census(functions))
}

fn learn_census(world: &World, census: Census) -> bool {
    let settings = PoolSettings { function_census: true, ..(*world.pool.settings()).clone() };
    world.pool.set_settings(settings);
    let functions = &world.pool.database_known().functions;
    let news = functions.learn(&functions.begin_look(), &Arc::new(census));
    world.pool.adopt_census();
    news
}

fn census(functions: &[(&str, &str)]) -> Census {
    let functions: Vec<_> = functions
        .iter()
        .map(|(name, source)| Function {
            name: name.as_bytes().into(),
            language: Language::PlPgSql,
            immutable: name.starts_with("immutable"),
            source: source.as_bytes().into(),
        })
        .collect();
    let links = [(b"audited"[..].into(), Link::WriteCalls, b"locks"[..].into())];
    Census::take(&functions, &links, |_| false, 1)
}

pub(super) const LOCKS: (&str, &str) = ("locks", "BEGIN PERFORM pg_advisory_lock(1); END");

fn asked(server: &Peer) -> String {
    String::from_utf8_lossy(&server.received()).into_owned()
}

fn run(name: &str) -> Vec<u8> {
    [bind(name), execute(), sync()].concat()
}

#[test]
fn a_pool_that_is_made_later_depends_on_what_the_functions_of_its_database_read() {
    for (source, reads) in [
        ("BEGIN RETURN current_setting('my.user'); END", PlanReads::All),
        ("BEGIN RETURN 1; END", PlanReads::Own),
    ] {
        let database: Arc<Database> = Arc::default();
        let known = census(&[("immutable_one", source)]);
        database.functions.learn(&database.functions.begin_look(), &Arc::new(known));
        let settings = PoolSettings { function_census: true, ..PoolSettings::default() };
        let pool = SharedPool::<()>::new(PoolId(2), "db", "other", settings, 1, 1);
        assert_eq!(pool.of_database(database).statements.reads(), reads);
    }
}

#[test]
fn a_text_that_reaches_a_function_is_asked_about() {
    for (text, question) in [
        ("SELECT locks()", "pg_locks"),
        ("INSERT INTO audited VALUES (1)", "pg_locks"),
        ("SELECT enter()", "my.user"),
    ] {
        let mut world = World::new(1);
        learn(&world, &[LOCKS, ("enter", "BEGIN SET my.user = 'x'; END")]);
        let client = world.client();
        world.send(&client, &query(text));
        let server = world.servers[0].clone();
        assert_eq!(server.received(), query(text), "the client's own text");
        world.send(&server, &answers("CI"));
        let sent = asked(&server);
        assert!(sent.contains(question), "{text}: {sent}");
        world.send(&client, &query("SELECT 1 FROM audited"));
        assert_eq!(server.kinds(), "", "it waits for the word");
    }
}

#[test]
fn a_function_is_known_from_the_text_that_makes_it() {
    const MAKES: &str =
        "CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT pg_advisory_lock(1)'";
    let unnamed = |text| [parse("", text), bind(""), execute(), sync()].concat();
    for (makes, answer) in [(query(MAKES), "CI"), (unnamed(MAKES), "12CI")] {
        let mut world = World::new(1);
        learn(&world, &[]);
        let (client, other) = (world.client(), world.client());
        world.send(&client, &makes);
        let server = world.servers[0].clone();
        world.send(&server, &answers(answer));
        server.received();
        for caller in [&client, &other] {
            world.send(caller, &query("SELECT f()"));
            server.received();
            world.send(&server, &answers("CI"));
            assert!(asked(&server).contains("pg_locks"));
            world.send(&server, &told(false));
        }
    }
}

#[test]
fn a_long_function_is_known_from_the_text_that_makes_it() {
    for long in [20_000, 300_000] {
        let mut world = World::new(1);
        learn(&world, &[]);
        let client = world.client();
        let makes = format!(
            "SELECT 1; CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT /* {} */ pg_advisory_lock(1)'",
            "x".repeat(long)
        );
        world.send(&client, &query(&makes));
        let server = world.servers[0].clone();
        world.send(&server, &answers("CCI"));
        server.received();
        world.send(&client, &query("SELECT f()"));
        server.received();
        world.send(&server, &answers("CI"));
        assert!(asked(&server).contains("pg_locks"), "{long}");
    }
}

#[test]
fn what_reaches_none_costs_nothing() {
    let mut world = World::new(1);
    learn(&world, &[LOCKS, ("plain", "BEGIN RETURN 1; END")]);
    let client = world.client();
    for text in ["SELECT plain() FROM audited", "SELECT locksmith"] {
        world.send(&client, &query(text));
        let server = world.servers[0].clone();
        assert_eq!(server.received(), query(text));
        world.send(&server, &answers("CI"));
        assert_eq!((server.kinds(), client.kinds()), (String::new(), "CZ".into()));
    }
    assert_eq!(world.idle_backends(), 1);
}

#[test]
fn a_statement_that_was_there_before_does_what_the_function_does_by_then() {
    let mut world = World::new(1);
    assert!(learn(&world, &[("locks", "BEGIN RETURN 1; END")]));
    let client = world.client();
    world.send(&client, &[parse("s", "SELECT locks()"), run("s")].concat());
    let server = world.servers[0].clone();
    world.send(&server, &answers("12CI"));
    assert_eq!(client.kinds(), "12CZ");
    server.received();
    assert!(learn(&world, &[LOCKS]));
    assert!(!learn(&world, &[LOCKS]), "nothing new");
    world.send(&client, &run("s"));
    assert_eq!(server.kinds(), "PBES", "it is another statement, with other effects");
    world.send(&server, &answers("12CI"));
    assert_eq!(client.kinds(), "2CZ");
    assert!(asked(&server).contains("pg_locks"));
    world.send(&server, &told(false));
    world.send(&client, &run("s"));
    assert_eq!(server.kinds(), "BES");
}

#[test]
fn a_statement_that_calls_a_name_which_is_looked_for_in_vain_does_nothing_from_then_on() {
    let mut world = World::new(1);
    let names = Names::with_hasher(Keyed(1));
    let seen = census(&[]).keeping_no_plans().with_names(Arc::new(names), [].into_iter());
    learn_census(&world, seen);
    let known = world.pool.census().unwrap();
    let client = world.client();
    let text = "SELECT a FROM t ORDER BY a /* x */";
    world.send(&client, &[parse("s", text), sync()].concat());
    let server = world.servers[0].clone();
    server.received();
    world.send(&server, &answers("1I"));
    for (number, closes) in [(0, true), (1, false), (1, false)] {
        if number == 1 && known.has_unseen() {
            learn_census(&world, known.without(known.take_unseen()));
        }
        world.send(&client, &run("s"));
        let server = world.servers[number].clone();
        let asked = server.kinds();
        world.send(&server, &answers(if asked.contains('P') { "12CI" } else { "2CI" }));
        let answered = client.kinds();
        assert!(answered.ends_with("2CZ"), "{number}: {asked} {answered}");
        assert_eq!(world.idle_backends() == 0, closes, "{number}");
    }
}

#[test]
fn statements_are_shared_until_the_planner_reads_settings() {
    let mut world = World::new(1);
    learn(&world, &[("immutable", "BEGIN RETURN 1; END")]);
    let of = |world: &mut World, user| {
        world.client_of(LoopId(0), PoolMode::Transaction, &[("my.user", user)])
    };
    let (one, two) = (of(&mut world, "1"), of(&mut world, "2"));
    let prepare = [parse("s", "SELECT immutable()"), run("s")].concat();
    world.send(&one, &prepare);
    let server = world.servers[0].clone();
    world.send(&server, &[answers("12DC"), answers("12CI")].concat());
    world.send(&two, &prepare);
    server.received();
    world.send(&server, &[answers("2DC"), answers("2CI")].concat());
    assert_eq!((one.kinds(), two.kinds()), ("12CZ".into(), "12CZ".into()));
    learn(&world, &[("immutable", "BEGIN RETURN current_setting('my.user'); END")]);
    for (client, sent) in [(&two, "PBES"), (&one, "BEPBES")] {
        server.received();
        world.send(client, &run("s"));
        assert_eq!(server.kinds(), sent, "each has a statement of its own");
        let ahead = if sent.len() > 4 { answers("2DC") } else { Vec::new() };
        world.send(&server, &[ahead, answers("12CI")].concat());
        assert_eq!(client.kinds(), "2CZ");
    }
    world.send(&two, &run("s"));
    assert_eq!(server.kinds(), "BEBES");
}

#[test]
fn statements_that_change_the_catalog_make_a_census_due_once_they_are_committed() {
    let mut world = World::new(1);
    world.pool.database_known().functions.begin_look();
    let client = world.client();
    world.send(&client, &query("BEGIN"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("CT"));
    world.send(&client, &query("CREATE FUNCTION f() RETURNS int LANGUAGE sql AS 'SELECT 1'"));
    world.send(&server, &answers("CT"));
    assert!(!world.pool.database_known().functions.expects_others());
    world.send(&client, &query("COMMIT"));
    world.send(&server, &answers("CI"));
    assert!(world.pool.database_known().functions.begin_look().was_due);
    world.send(&client, &query("SELECT 1"));
    world.send(&server, &answers("CI"));
    assert!(!world.pool.database_known().functions.expects_others());
}

/// A report does not cover connections that dblink keeps: another user of the pool could use them.
#[test]
fn a_function_that_connects_by_dblink_keeps_its_server_connection_with_reports_too() {
    for report in [None, Some("1")] {
        for text in ["SELECT setup()".to_owned(), format!("SELECT setup(){}", " ".repeat(300_000))]
        {
            let mut world = World::new(1);
            world.report = report;
            learn(&world, &[("setup", "BEGIN PERFORM dblink_connect('c', 'host=other'); END")]);
            let (client, other) = (world.client(), world.client());
            world.send(&client, &query(&text));
            let server = world.servers[0].clone();
            world.send(&server, &answers("CI"));
            assert_eq!(client.kinds(), "CZ");
            world.send(&other, &query("SELECT 1"));
            world.close(&client);
            assert!(server.is_dropped(), "{report:?}");
            assert_eq!(world.servers[1].received(), query("SELECT 1"));
        }
    }
}

#[test]
fn what_an_execute_calls_is_known_though_it_has_come_to_do_more_since_the_prepare() {
    let mut world = World::new(1);
    learn(&world, &[LOCKS]);
    let client = world.client();
    world.send(&client, &query("PREPARE p AS SELECT f()"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("CI"));
    world.send(&server, &value("{{p,\"PREPARE p AS SELECT f()\",\"\"}}"));
    learn(&world, &[LOCKS, ("f", "BEGIN PERFORM pg_advisory_lock(1); END")]);
    server.received();
    client.received();
    world.send(&client, &query("EXECUTE p"));
    world.send(&server, &answers("CI"));
    assert_eq!(client.kinds(), "CZ");
    assert!(asked(&server).contains("pg_locks"));
}

/// Later statements may create objects in pg_temp, if that is first in a search_path that no text
/// shows.
#[test]
fn what_is_made_under_a_search_path_that_is_not_known_may_be_temporary() {
    for sets in [
        "SELECT set_config('search_path', f(), true)",
        "SELECT set_config('search_path', f(), false)",
        "SELECT spath('x')",
    ] {
        for makes in ["CREATE TABLE t (a int)", "SELECT 1 AS a INTO t"] {
            let mut world = World::new(1);
            learn(&world, &[("spath", "BEGIN PERFORM set_config('search_path', s, true); END")]);
            let client = world.client();
            world.send(&client, &query("BEGIN"));
            let server = world.servers[0].clone();
            world.send(&server, &answers("CT"));
            for text in [sets, makes] {
                world.send(&client, &query(text));
                world.send(&server, &answers("CT"));
            }
            server.received();
            world.send(&client, &query("COMMIT"));
            world.send(&server, &answers("CI"));
            assert!(asked(&server).contains("pg_my_temp_schema"), "{sets} {makes}");
        }
    }
}
