//! Servers that report the state of their sessions.

use super::harness::*;
use crate::ids::LoopId;
use crate::lending::Fidelity;
use crate::relay::{PoolMode, ToLoop};

/// A world whose servers report a session that holds nothing.
fn exact(size: u32) -> World {
    let mut world = World::new(size).in_which_none_has_drawn();
    world.report = Some("1");
    world
}

fn report(text: &str) -> Vec<u8> {
    parameter("hawser.state", text)
}

/// The end of a query after which this is reported.
fn reported(text: &str) -> Vec<u8> {
    [answers("C"), report(text), answers("I")].concat()
}

fn text(server: &Peer) -> String {
    String::from_utf8_lossy(&server.received()).into_owned()
}

/// A query, its answer and the report after it; the client has its answer, and no report.
fn run(world: &mut World, client: &Peer, server: &Peer, sql: &str, state: &str) {
    client.received();
    world.send(client, &query(sql));
    world.send(server, &reported(state));
    assert_eq!(client.kinds(), "CZ", "{sql}");
}

#[test]
fn what_a_function_makes_pins_until_it_is_gone_and_nobody_is_asked() {
    for (item, part) in [
        ("temp", "temporary_object"),
        ("locks=1", "advisory_lock"),
        ("cursors=c", "held_cursor"),
        ("listen=a", "listen"),
    ] {
        let mut world = exact(1);
        let (client, other) = (world.client(), world.client());
        world.send(&client, &query("SELECT makes()"));
        let server = world.servers[0].clone();
        world.send(&server, &reported(&format!("1 {item}")));
        world.send(&other, &query("SELECT 1"));
        assert_eq!(server.received(), query("SELECT makes()"), "{part}: it keeps its backend");
        world.send(&client, &query("SELECT ends()"));
        world.send(&server, &reported("1"));
        let sent = server.received();
        assert!(sent.starts_with(&query("SELECT ends()")), "{part}");
        assert!(sent.ends_with(&query("SELECT 1")), "{part}: the other has it");
        world.send(&server, &answers("CI"));
        assert_eq!(client.kinds(), "CZCZ", "no report is passed on");
    }
}

#[test]
fn what_a_text_only_seemed_to_make_pins_no_more_without_a_question() {
    for sql in [
        "CREATE TEMP TABLE t (a int) ON COMMIT DROP",
        "SELECT pg_advisory_lock(1), pg_advisory_unlock(1)",
        "SELECT set_config($1, $2, false) WHERE false",
        "SELECT 'set_config'",
        "SET work_mem = '5MB'; RESET work_mem",
        "SELECT setseed(0.1) WHERE false",
        "DO $$ BEGIN EXECUTE 'SELECT 1'; END $$",
        "SELECT U&'x'",
    ] {
        let mut world = exact(1);
        let client = world.client();
        world.send(&client, &query(sql));
        let server = world.servers[0].clone();
        assert_eq!(server.received(), query(sql));
        world.send(&server, &answers("CI"));
        assert_eq!(server.kinds(), "", "{sql}: the server is not asked");
        assert_eq!(world.idle_backends(), 1, "{sql}");
        assert!(!server.is_dropped(), "{sql}");
    }
}

#[test]
fn a_setting_of_a_function_moves_with_its_value() {
    let mut world = exact(2);
    let (client, other) = (world.client(), world.client());
    world.send(&client, &query("SELECT sets()"));
    let first = world.servers[0].clone();
    world.send(&first, &reported("1 set=my.user:42,work_mem:5MB names=my.user"));
    assert_eq!(first.received(), query("SELECT sets()"), "the server is not asked");
    assert_eq!(world.idle_backends(), 1, "and it does not pin");
    // A client that has not set the name does not get that backend.
    world.send(&other, &query("BEGIN"));
    let second = world.servers[1].clone();
    world.send(&second, &answers("CT"));
    assert_eq!(first.kinds(), "");
    world.send(&client, &query("SELECT 1"));
    assert_eq!(first.received(), query("SELECT 1"), "its own has it");
    world.send(&first, &answers("CI"));
    world.close(&first);
    world.send(&client, &query("SELECT 2"));
    let third = world.servers[2].clone();
    let sent = text(&third);
    assert!(sent.contains(r#"SET "my"."user" TO '42'"#), "{sent}");
    assert!(sent.contains(r#"SET "work_mem" TO '5MB'"#), "{sent}");
    assert!(sent.contains("SELECT 2"), "{sent}");
    let applied = report("1 set=my.user:42,work_mem:5MB names=my.user");
    world.send(&third, &[answers("CCCC"), applied, answers("ICI")].concat());
    assert_eq!(third.kinds(), "");
    assert_eq!(world.idle_backends(), 1);
}

#[test]
fn so_does_what_the_server_reports_to_the_client() {
    let mut world = exact(1);
    world.own = vec![("TimeZone", "UTC")];
    let client = world.client_of(LoopId(0), PoolMode::Transaction, &[("TimeZone", "Asia/Tokyo")]);
    world.send(&client, &query("SELECT 1"));
    let server = world.servers[0].clone();
    let set = |state: &str, zone: &str| {
        [answers("C"), report(state), parameter("TimeZone", zone), answers("I")].concat()
    };
    world.send(&server, &[set("1 set=TimeZone:Asia/Tokyo", "Asia/Tokyo"), answers("CI")].concat());
    client.received();
    server.received();
    for (state, zone) in [("1", "Asia/Tokyo"), ("1 set=TimeZone:UTC", "UTC")] {
        world.send(&client, &query("SELECT f()"));
        world.send(&server, &set(state, "UTC"));
        let told = String::from_utf8_lossy(&client.received()).into_owned();
        let last = told.rfind("TimeZone").map(|at| told[at + 9..].to_owned());
        assert!(last.is_some_and(|last| last.starts_with(zone)), "{told:?}");
        server.received();
        world.send(&client, &query("SHOW TimeZone"));
        assert_eq!(
            text(&server).contains("SET \"timezone\" TO 'Asia/Tokyo'"),
            zone != "UTC",
            "{state}"
        );
        let again = if zone == "UTC" {
            answers("CI")
        } else {
            [set("1 set=TimeZone:Asia/Tokyo", zone), answers("CI")].concat()
        };
        world.send(&server, &again);
        client.received();
    }
}

/// The client got the server's own value, and its start value after that.
#[test]
fn a_reset_in_a_block_of_code_reports_nothing_where_the_start_value_is_in_force() {
    let mut world = exact(1);
    world.own = vec![("TimeZone", "UTC")];
    let client = world.client_of(LoopId(0), PoolMode::Transaction, &[("TimeZone", "Asia/Tokyo")]);
    world.send(&client, &query("SELECT 1"));
    let server = world.servers[0].clone();
    let set = |state: &str, zone: &str| {
        [answers("C"), report(state), parameter("TimeZone", zone), answers("I")].concat()
    };
    world.send(&server, &[set("1 set=TimeZone:Asia/Tokyo", "Asia/Tokyo"), answers("CI")].concat());
    client.received();
    server.received();
    for reset in ["reset timezone", "execute 'reset timezone'"] {
        world.send(&client, &query(&format!("do $$ begin {reset}; end $$")));
        world.send(&server, &set("1", "UTC"));
        assert_eq!(client.kinds(), "CZ", "{reset}");
        server.received();
        world.send(&client, &query("SHOW TimeZone"));
        assert!(text(&server).contains("SET \"timezone\" TO 'Asia/Tokyo'"), "{reset}");
        let restored = set("1 set=TimeZone:Asia/Tokyo", "Asia/Tokyo");
        world.send(&server, &[restored, answers("CI")].concat());
        client.received();
    }
}

#[test]
fn a_custom_name_that_a_failed_pipeline_has_taken_back_is_still_the_clients() {
    let mut world = exact(1);
    let client = world.client_of(LoopId(0), PoolMode::Transaction, &[("my.user", "1")]);
    let pipeline = [parse("", "SELECT 1"), bind(""), execute(), sync()].concat();
    world.send(&client, &pipeline);
    let server = world.servers[0].clone();
    assert_eq!(kinds(&server.received()), "PBEPBES");
    // The server has the name from now on, and no value.
    world.send(&server, &[answers("12DCE"), report("1 names=my.user"), answers("I")].concat());
    assert_eq!(client.kinds(), "EZ");
    world.send(&client, &query("SHOW my.user"));
    let sent = text(&server);
    assert!(sent.contains(r#"SET "my"."user" TO '1'"#), "{sent}");
}

#[test]
fn what_a_client_has_set_to_the_servers_own_value_stays_on_every_server_connection() {
    let mut world = exact(1);
    world.own = vec![("TimeZone", "UTC")];
    let other = world.client();
    let client = world.client_of(LoopId(0), PoolMode::Transaction, &[("TimeZone", "Asia/Tokyo")]);
    world.send(&client, &query("SET TimeZone TO 'UTC'"));
    let server = world.servers[0].clone();
    let brought = report("1 set=TimeZone:Asia/Tokyo");
    let set = report("1 set=TimeZone:UTC");
    world.send(
        &server,
        &[answers("C"), brought, parameter("TimeZone", "Asia/Tokyo"), answers("I")].concat(),
    );
    world.send(&server, &[answers("C"), set, parameter("TimeZone", "UTC"), answers("I")].concat());
    // That server connection is reset for another client; no such value is in force there.
    world.send(&other, &query("SELECT 1"));
    world.send(&server, &[answers("C"), report("1"), answers("I")].concat());
    client.received();
    for state in ["1 set=work_mem:5MB", "1"] {
        world.send(&client, &query("SELECT f()"));
        world.send(&server, &[answers("C"), report(state), answers("I")].concat());
        let told = String::from_utf8_lossy(&client.received()).into_owned();
        assert!(!told.contains("Asia/Tokyo"), "{told:?}");
        server.received();
    }
    // Nor where it is in force again after another value (of the simulation, seed 766).
    world.send(&client, &query("BEGIN; SET LOCAL TimeZone TO 'Europe/Rome'"));
    let local = [answers("CC"), parameter("TimeZone", "Europe/Rome"), answers("T")].concat();
    world.send(&server, &local);
    world.send(&client, &query("SELECT f(); COMMIT"));
    let ended = [answers("CC"), parameter("TimeZone", "UTC"), report("1 set=work_mem:6MB")];
    world.send(&server, &[ended.concat(), answers("I")].concat());
    let told = String::from_utf8_lossy(&client.received()).into_owned();
    assert!(!told.contains("Asia/Tokyo"), "{told:?}");
    server.received();
    world.send(&client, &query("SHOW TimeZone"));
    assert!(!text(&server).contains("Tokyo"));
}

#[test]
fn what_a_function_resets_goes_back_to_the_clients_own_start_value() {
    let mut world = exact(1);
    let client = world.client_of(LoopId(0), PoolMode::Transaction, &[("work_mem", "8MB")]);
    world.send(&client, &query("SELECT 1"));
    let server = world.servers[0].clone();
    assert!(text(&server).contains(r#"SET "work_mem" TO '8MB'"#));
    world.send(&server, &[answers("C"), report("1 set=work_mem:8MB"), answers("ICI")].concat());
    run(&mut world, &client, &server, "SELECT sets()", "1 set=work_mem:5MB");
    server.received();
    run(&mut world, &client, &server, "SELECT resets()", "1");
    server.received();
    world.send(&client, &query("SELECT 2"));
    assert!(text(&server).contains(r#"SET "work_mem" TO '8MB'"#));
}

#[test]
fn a_value_that_is_not_told_is_asked_for() {
    let mut world = exact(1);
    let client = world.client();
    world.send(&client, &query("SELECT sets()"));
    let server = world.servers[0].clone();
    server.received();
    world.send(&server, &reported("1 set=my.long names=my.long"));
    assert_eq!(client.kinds(), "CZ");
    let asked = text(&server);
    assert!(asked.contains("current_setting('my.long',true)"), "{asked}");
    let row = message(b'D', &[&[0, 1, 0, 0, 0, 4][..], b"long"].concat());
    world.send(&server, &[columns(), row, answers("CI")].concat());
    assert_eq!(world.idle_backends(), 1, "it moves");
    // Another value of that length gives no other report.
    world.send(&client, &query("SELECT sets()"));
    server.received();
    world.send(&server, &answers("CI"));
    assert!(text(&server).contains("my.long"));
}

#[test]
fn what_the_client_may_not_set_itself_pins() {
    for (state, superuser, pins) in [
        ("1 set=log_min_messages:debug1", "off", true),
        ("1 set=log_min_messages:debug1", "on", false),
        ("1 set=lc_messages:C", "off", true),
        ("1 set=auto_explain.log_format:xml", "off", true),
        ("1 set=my.x:xml names=my.x", "off", false),
        ("1 set=enable_seqscan:off", "off", false),
        ("1 set=dynamic_library_path", "on", true),
        ("1 set=idle_session_timeout:1h", "on", true),
        ("1 set=statement_timeout:100ms", "on", false),
        ("1 set=transaction_timeout:100ms", "on", true),
        ("1 set=statement_timeout:1h", "off", false),
    ] {
        let mut world = exact(1);
        world.own = vec![("is_superuser", superuser)];
        let client = world.client();
        world.send(&client, &query("SELECT sets()"));
        let server = world.servers[0].clone();
        world.send(&server, &reported(state));
        assert_eq!(world.idle_backends() == 0, pins, "{state} {superuser}");
        server.received();
        run(&mut world, &client, &server, "SELECT 1", state);
        assert_eq!(world.idle_backends() == 0, pins, "{state} {superuser}, still");
        run(&mut world, &client, &server, "SELECT resets()", "1");
        assert_eq!(world.idle_backends(), 1, "{state}: its pin has ended");
    }
}

#[test]
fn what_no_command_undoes_pins_to_the_end() {
    for state in ["1 seed", "1 library", "1 backup", "1 origin", "1 slots"] {
        let mut world = exact(1);
        let client = world.client();
        world.send(&client, &query("SELECT does()"));
        let server = world.servers[0].clone();
        world.send(&server, &reported(state));
        assert_eq!(world.idle_backends(), 0, "{state}");
        world.close(&client);
        assert!(server.is_dropped(), "{state}");
    }
}

#[test]
fn a_session_that_holds_more_than_fits_keeps_its_backend() {
    let mut world = exact(1);
    let client = world.client();
    world.send(&client, &query("SELECT sets()"));
    let server = world.servers[0].clone();
    world.send(&server, &reported("1 set=my.a:1,my.b:2 more"));
    assert_eq!(world.idle_backends(), 0);
    server.received();
    world.send(&client, &query("SET work_mem = '5MB'"));
    world.send(&server, &answers("CI"));
    assert_eq!(server.received(), query("SET work_mem = '5MB'"), "no question ends that");
    assert_eq!(world.idle_backends(), 0);
    world.close(&client);
    assert!(server.is_dropped());
}

#[test]
fn nonsense_is_said_once_and_then_all_is_as_without_reports() {
    for nonsense in ["2", "1 what", "", "1 late"] {
        let mut world = exact(2);
        let (client, other) = (world.client(), world.client());
        world.send(&client, &query("BEGIN"));
        let server = world.servers[0].clone();
        world.send(&server, &answers("CT"));
        world.send(&client, &query("COMMIT"));
        world.send(&server, &reported(nonsense));
        assert_eq!(client.kinds(), "CZCZ");
        assert_eq!(world.asked.unreadable_reports, 1, "{nonsense}");
        assert_eq!(world.idle_backends(), 0, "what it holds is not known");
        world.send(&other, &query("SELECT pg_advisory_lock(1)"));
        let second = world.servers[1].clone();
        second.received();
        world.send(&second, &reported("1 locks=1"));
        assert!(text(&second).contains("pg_locks"), "{nonsense}: the server is asked");
        assert_eq!(other.kinds(), "CZ");
        world.send(&second, &told(false));
        assert_eq!(world.idle_backends(), 1);
        world.close(&client);
        assert!(server.is_dropped());
        assert_eq!(world.asked.unreadable_reports, 1, "{nonsense}");
    }
}

#[test]
fn reports_that_nobody_reads_do_not_reach_clients_either() {
    for mode in [PoolMode::Transaction, PoolMode::Statement, PoolMode::Session] {
        for start in [None, Some("1")] {
            let mut world = exact(1);
            world.report = start;
            let client = world.client_of(LoopId(0), mode, &[]);
            client.received();
            world.send(&client, &query("SELECT 1"));
            let server = world.servers[0].clone();
            let told = [report("1"), answers("C"), report("1 temp"), answers("I"), report("1")];
            world.send(&server, &told.concat());
            let kinds = client.kinds();
            assert!(kinds.ends_with("CZ") && !kinds.contains('S'), "{mode:?}: {kinds}");
        }
    }
}

#[test]
fn what_a_connection_had_before_its_first_client_is_unowned() {
    let mut world = exact(1);
    world.report = Some("1 temp statements=p set=work_mem:8MB");
    let client = world.client();
    world.send(&client, &query("SELECT 1"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("CI"));
    assert_eq!(world.idle_backends(), 1);
    server.received();
    run(&mut world, &client, &server, "SELECT sets()", "1 temp statements=p set=work_mem:9MB");
    world.close(&server);
    client.received();
    world.send(&client, &query("SELECT 2"));
    assert!(text(&world.servers[1].clone()).contains(r#"SET "work_mem" TO '9MB'"#));
}

#[test]
fn of_what_a_connection_had_before_the_server_is_asked() {
    let mut world = exact(1);
    world.report = Some("1 temp");
    let client = world.client();
    world.send(&client, &query("CREATE TEMP TABLE t (a int)"));
    let server = world.servers[0].clone();
    server.received();
    world.send(&server, &answers("CI"));
    assert!(text(&server).contains("pg_my_temp_schema"));
    world.send(&server, &told(true));
    assert_eq!(world.idle_backends(), 0);
}

#[test]
fn classic_clients_lose_what_a_function_makes() {
    for (state, closes) in [("1 temp", false), ("1 set=work_mem:5MB", false), ("1 seed", true)] {
        let mut world = exact(1);
        world.change_settings(|settings| settings.fidelity = Fidelity::Classic);
        let client = world.client();
        world.send(&client, &query("SELECT makes()"));
        let server = world.servers[0].clone();
        server.received();
        world.send(&server, &reported(state));
        assert_eq!(server.is_dropped(), closes, "{state}");
        if !closes {
            assert_eq!(server.received(), query("DISCARD ALL"), "{state}");
            world.send(&server, &reported("1"));
            assert_eq!(world.idle_backends(), 1);
        }
    }
}

const DISCARD: &str = "DISCARD SEQUENCES";

#[test]
fn lastval_answers_with_the_clients_own_from_the_first_time_on() {
    let mut world = exact(1);
    let client = world.client();
    world.send(&client, &query("INSERT INTO t DEFAULT VALUES"));
    let server = world.servers[0].clone();
    world.send(&server, &reported("1 sequences"));
    assert_eq!(world.idle_backends(), 0, "it may ask");
    server.received();
    world.send(&client, &query("SELECT lastval()"));
    assert_eq!(server.received(), query("SELECT lastval()"), "it is its own");
    world.send(&server, &answers("CI"));
    assert_eq!(world.idle_backends(), 1);
    world.send(&client, &query("SELECT lastval()"));
    assert_eq!(server.received(), query("SELECT lastval()"), "and stays so");
    world.send(&server, &answers("CI"));
    // From now on it keeps its backend from drawing to asking.
    world.send(&client, &query("INSERT INTO t DEFAULT VALUES"));
    let sent = text(&server);
    assert!(sent.contains(DISCARD), "what it draws now must be seen: {sent}");
    let drawn = [answers("C"), report("1"), answers("IC"), report("1 sequences"), answers("I")];
    world.send(&server, &drawn.concat());
    assert_eq!(world.idle_backends(), 0, "from drawing");
    world.send(&client, &query("SELECT 1"));
    assert_eq!(server.received(), query("SELECT 1"));
    world.send(&server, &answers("CI"));
    assert_eq!(world.idle_backends(), 0);
    world.send(&client, &query("SELECT lastval()"));
    assert_eq!(server.received(), query("SELECT lastval()"));
    world.send(&server, &answers("CI"));
    assert_eq!(world.idle_backends(), 0, "it has asked twice for one value before");
    world.wait_ms(2_000);
    assert_eq!(world.idle_backends(), 1, "not for long");
}

#[test]
fn a_client_that_draws_keeps_its_backend_a_while_in_a_pool_that_may_ask() {
    let mut world = exact(1);
    let other = world.client();
    // No client asks: the pool learns it.
    for n in 0..40 {
        let client = world.client();
        world.send(&client, &query("INSERT INTO t DEFAULT VALUES"));
        let server = world.servers[0].clone();
        if text(&server).contains(DISCARD) {
            world.send(&server, &[answers("C"), report("1"), answers("I")].concat());
        }
        world.send(&server, &reported("1 sequences"));
        assert_eq!(world.idle_backends() == 0, n < 32, "{n}");
        world.wait_ms(1100);
        assert_eq!(world.idle_backends(), 1, "{n}");
        world.close(&client);
        assert_eq!(world.idle_backends(), 1, "{n}");
    }
    // Once a client asks, it is kept again.
    world.send(&other, &query("SELECT lastval()"));
    let server = world.servers[0].clone();
    world.send(&server, &[answers("C"), report("1"), answers("IEI")].concat());
    let client = world.client();
    world.send(&client, &query("INSERT INTO t DEFAULT VALUES"));
    world.send(&server, &reported("1 sequences"));
    assert_eq!(world.idle_backends(), 0);
    server.received();
    world.send(&client, &query("SELECT lastval()"));
    assert_eq!(server.received(), query("SELECT lastval()"));
    world.send(&server, &answers("CI"));
    assert_eq!(world.idle_backends(), 1);
}

#[test]
fn nobody_sees_what_another_has_drawn() {
    let mut world = exact(1);
    let (client, other) = (world.client(), world.client());
    world.send(&client, &query("SELECT nextval('s')"));
    let server = world.servers[0].clone();
    world.send(&server, &reported("1 sequences"));
    world.wait_ms(1100);
    server.received();
    world.send(&other, &query("BEGIN"));
    let sent = text(&server);
    assert!(sent.contains(DISCARD), "whatever it asks later: {sent}");
    world.send(&server, &[answers("C"), report("1"), answers("ICT")].concat());
    world.send(&other, &query("SELECT f()"));
    world.send(&server, &answers("CT"));
    server.received();
    world.send(&other, &query("SELECT currval('s')"));
    assert_eq!(server.received(), query("SELECT currval('s')"), "and nothing more");
    world.send(&server, &answers("EF"));
}

#[test]
fn a_pin_for_a_pipeline_under_way_is_not_ended_by_the_report_of_an_earlier_one() {
    let mut world = exact(1);
    let (client, other) = (world.client(), world.client());
    world.send(&client, &query("SELECT 1"));
    world.send(&client, &query("SELECT pg_advisory_lock(1)"));
    let server = world.servers[0].clone();
    world.send(&server, &reported("1"));
    world.send(&other, &query("SELECT 2"));
    world.send(&server, &reported("1 locks=1"));
    server.received();
    assert_eq!(server.kinds(), "", "the other waits");
    world.send(&client, &query("SELECT pg_advisory_unlock(1)"));
    server.received();
    world.send(&server, &reported("1"));
    assert_eq!(server.received(), query("SELECT 2"));
}

#[test]
fn a_client_that_leaves_its_state_leaves_none_of_it_to_the_next() {
    let mut world = exact(1);
    let (client, other) = (world.client(), world.client());
    world.send(&client, &query("SELECT makes()"));
    let server = world.servers[0].clone();
    world.send(&server, &reported("1 temp set=work_mem:5MB"));
    world.close(&client);
    server.received();
    world.send(&other, &query("SELECT 1"));
    world.send(&server, &reported("1"));
    assert_eq!(server.received(), query("SELECT 1"), "no setting of another's");
    world.send(&server, &answers("CI"));
    assert_eq!(world.idle_backends(), 1);
}

#[test]
fn what_an_operators_own_reset_leaves_is_unowned() {
    let mut world = exact(1);
    world.change_settings(|settings| settings.server_reset_query = b"SELECT 1"[..].into());
    let client = world.client_of(LoopId(0), PoolMode::Session, &[]);
    world.send(&client, &query("SET work_mem = '5MB'; PREPARE p AS SELECT 1"));
    let server = world.servers[0].clone();
    let told = [answers("CC"), report("1 statements=p set=work_mem:5MB"), answers("I")];
    world.send(&server, &told.concat());
    world.close(&client);
    world.send(&server, &answers("CI"));
    let other = world.client();
    world.send(&other, &query("SELECT 1"));
    world.send(&server, &answers("CI"));
    assert_eq!(world.idle_backends(), 1, "it pins no client");
    world.close(&server);
    world.send(&other, &query("SELECT 2"));
    assert_eq!(world.servers[1].clone().received(), query("SELECT 2"), "nor moves");
}

#[test]
fn a_pool_that_takes_no_more_pins_rejects_no_client_for_a_sequence() {
    let mut world = exact(1);
    world.change_settings(|settings| settings.max_pinned = 0);
    let client = world.client();
    world.send(&client, &query("SELECT lastval()"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("EI"));
    server.received();
    run(&mut world, &client, &server, "SELECT nextval('s')", "1 sequences");
    assert_eq!(world.idle_backends(), 1);
    run(&mut world, &client, &server, "SELECT lastval()", "1 sequences");
    assert!(!client.is_dropped());
}

#[test]
fn who_is_gone_before_the_report_comes_leaves_nothing_that_cannot_be_undone() {
    let mut world = exact(1);
    let client = world.client();
    world.send(&client, &query("SELECT setseed(0.5)"));
    let server = world.servers[0].clone();
    world.close(&client);
    world.send(&server, &reported("1 seed"));
    world.send(&server, &answers("CI"));
    assert!(server.is_dropped());
}

#[test]
fn session_mode_has_its_own_values_of_sequences_and_no_other() {
    let mut world = exact(1);
    let other = world.client();
    world.send(&other, &query("SELECT nextval('s')"));
    let server = world.servers[0].clone();
    world.send(&server, &reported("1 sequences"));
    world.wait_ms(1100);
    server.received();
    let client = world.client_of(LoopId(0), PoolMode::Session, &[]);
    world.send(&client, &query("SELECT lastval()"));
    assert!(text(&server).contains(DISCARD), "another's");
    world.send(&server, &[answers("C"), report("1"), answers("IEI")].concat());
    for sql in ["SELECT nextval('s')", "SELECT lastval()", "SELECT 1", "SELECT lastval()"] {
        server.received();
        world.send(&client, &query(sql));
        assert_eq!(server.received(), query(sql));
        let state = if sql.contains("next") { reported("1 sequences") } else { answers("CI") };
        world.send(&server, &state);
    }
}

#[test]
fn who_is_gone_before_the_report_comes_leaves_no_lock_and_no_setting() {
    for state in ["1 locks=1", "1 temp", "1 listen=a", "1 set=work_mem:5MB"] {
        let mut world = exact(1);
        let (client, other) = (world.client(), world.client());
        world.send(&client, &query("SELECT makes()"));
        let server = world.servers[0].clone();
        server.received();
        world.close(&client);
        world.send(&other, &query("SELECT 1"));
        world.send(&server, &reported(state));
        for request in std::mem::take(&mut world.asked.cancels) {
            world.deliver(LoopId(0), ToLoop::CancelDone(request.backend));
        }
        assert_eq!(server.received(), query("DISCARD ALL"), "{state}");
        world.send(&server, &reported("1"));
        assert_eq!(server.received(), query("SELECT 1"), "{state}");
        world.send(&server, &answers("CI"));
        assert_eq!(world.idle_backends(), 1);
    }
}

#[test]
fn who_is_gone_before_the_report_comes_leaves_no_other_value_of_a_setting() {
    for state in ["1 set=work_mem:6MB", "1"] {
        let mut world = exact(1);
        let client = world.client();
        world.send(&client, &query("SELECT sets()"));
        let server = world.servers[0].clone();
        world.send(&server, &reported("1 set=work_mem:5MB"));
        world.send(&client, &query("SELECT sets()"));
        world.close(&client);
        server.received();
        world.send(&server, &reported(state));
        for request in std::mem::take(&mut world.asked.cancels) {
            world.deliver(LoopId(0), ToLoop::CancelDone(request.backend));
        }
        assert_eq!(server.received(), query("DISCARD ALL"), "{state}");
    }
}

/// A client with this custom setting from its start.
fn of_user(world: &mut World, user: &str) -> Peer {
    world.client_of(LoopId(0), PoolMode::Transaction, &[("my.user", user)])
}

#[test]
fn settings_that_are_reported_otherwise_than_they_were_given_serve_no_client() {
    for (state, agrees) in [
        ("1 set=my.user:1 names=my.user", true),
        ("1 set=my.user:2 names=my.user", false),
        ("1 set=my.user:1,my.other:2 names=my.user,my.other", false),
        ("1 set=my.user:1,role:reader names=my.user", false),
        ("1 names=my.user", false),
    ] {
        let mut world = exact(1);
        let client = of_user(&mut world, "1");
        world.send(&client, &query("SELECT secret FROM mine"));
        let server = world.servers[0].clone();
        assert_eq!(kinds(&server.received()), "QQ");
        world.send(&server, &[reported(state), answers("DCI")].concat());
        assert_eq!(world.asked.mismatches, u32::from(!agrees), "{state}");
        assert_eq!(client.kinds().contains('D'), agrees, "{state}: it ran under other settings");
        assert_eq!(server.is_dropped(), !agrees, "{state}");
    }
}

#[test]
fn settings_that_are_reported_though_their_pipeline_has_failed_serve_no_other_client() {
    for (state, agrees) in [("1", false), ("2", true)] {
        let mut world = exact(1);
        let (one, two) = (of_user(&mut world, "1"), of_user(&mut world, "2"));
        world.send(&two, &query("SELECT 1"));
        let server = world.servers[0].clone();
        let before = reported("1 set=my.user:2 names=my.user");
        world.send(&server, &[before, answers("CI")].concat());
        server.received();
        let pipeline = [parse("", "SELECT 1/0"), bind(""), execute(), sync()].concat();
        world.send(&one, &pipeline);
        assert_eq!(server.kinds(), "PBEPBES");
        let state = report(&format!("1 set=my.user:{state} names=my.user"));
        world.send(&server, &[answers("12DC12E"), state, answers("I")].concat());
        assert_eq!(one.kinds(), "12EZ", "it has its answer");
        assert_eq!(world.asked.mismatches, u32::from(!agrees));
        assert_eq!(server.is_dropped(), !agrees);
    }
}

/// Where its text is parsed again, that is under the settings of its own Parse.
#[test]
fn a_setting_changes_nothing_of_what_was_prepared_before_it() {
    for elsewhere in [false, true] {
        let mut world = exact(2);
        let (client, other) = (world.client(), world.client());
        // Numbers of pipelines that the other server connection has not come to.
        for _ in 0..9 {
            world.send(&client, &query("SELECT 1"));
            world.send(&world.servers[0].clone(), &answers("CI"));
        }
        world.send(&client, &[parse("s", "SELECT v FROM t"), sync()].concat());
        let mut server = world.servers[0].clone();
        world.send(&server, &answers("1I"));
        if elsewhere {
            world.send(&other, &query("BEGIN"));
            world.send(&server, &answers("CT"));
            world.send(&client, &query("SELECT 2"));
            server = world.servers[1].clone();
            world.send(&server, &answers("CI"));
        }
        run(&mut world, &client, &server, "SET search_path TO a", "1 set=search_path:a");
        run(&mut world, &client, &server, "SET search_path TO b", "1 set=search_path:b");
        server.received();
        world.send(&client, &[bind("s"), execute(), sync()].concat());
        let sent = text(&server);
        assert!(!sent.contains("TO \"a\""), "elsewhere {elsewhere}: {sent}");
        assert_eq!(sent.contains("RESET \"search_path\""), elsewhere, "{sent}");
    }
}
