//! What moves with a client, what pins it, and what never reaches another.

use crate::ids::LoopId;
use crate::relay::client_info::PoolMode;
use crate::relay::tests::harness::*;

#[test]
fn start_values_go_before_the_first_message_in_one_write() {
    let mut world = World::new(1);
    let client = world.client_of(LoopId(0), PoolMode::Transaction, &[("application_name", "it's")]);
    let other = world.client();
    world.send(&client, &query("SELECT 1"));
    let server = world.servers[0].clone();
    let set = query("SET \"application_name\" TO 'it''s'");
    assert_eq!(server.received(), [set, query("SELECT 1")].concat());
    let reported = parameter("application_name", "it's");
    world.send(&server, &[answers("C"), reported, answers("I"), answers("CI")].concat());
    assert_eq!(client.kinds(), "CZ", "only what answers the client's own query");
    // The same client again: nothing to set.
    world.send(&client, &query("SELECT 1"));
    assert_eq!(server.kinds(), "Q");
    world.send(&server, &answers("CI"));
    // Another: back to the server's own.
    world.send(&other, &query("SELECT 1"));
    let text = server.received();
    assert_eq!(kinds(&text), "QQ");
    assert!(String::from_utf8_lossy(&text).contains("SET \"application_name\" TO ''"));
}

#[test]
fn trap_08_what_a_client_sets_moves_with_it() {
    let mut world = World::new(1);
    let (client, other) = (world.client(), world.client());
    world.send(&client, &query("SET TimeZone TO 'Asia/Tokyo'"));
    let server = world.servers[0].clone();
    let reported = parameter("TimeZone", "Asia/Tokyo");
    world.send(&server, &[answers("C"), reported.clone(), answers("I")].concat());
    assert_eq!(client.kinds(), "CSZ");
    assert_eq!(world.idle_backends(), 1, "it must not pin");
    server.received();
    world.send(&other, &query("SHOW TimeZone"));
    assert!(String::from_utf8_lossy(&server.received()).contains("SET \"timezone\" TO 'UTC'"));
    let back = parameter("TimeZone", "UTC");
    world.send(&server, &[answers("C"), back, answers("ICI")].concat());
    assert_eq!(other.kinds(), "CZ");
    world.send(&client, &query("SHOW TimeZone"));
    assert!(
        String::from_utf8_lossy(&server.received()).contains("SET \"timezone\" TO 'Asia/Tokyo'")
    );
}

#[test]
fn reset_goes_back_to_the_clients_own_start_value() {
    let mut world = World::new(1);
    let client = world.client_of(LoopId(0), PoolMode::Transaction, &[("TimeZone", "Asia/Tokyo")]);
    world.send(&client, &query("SELECT 1"));
    let server = world.servers[0].clone();
    let tokyo = parameter("TimeZone", "Asia/Tokyo");
    world.send(&server, &[answers("C"), tokyo, answers("ICI")].concat());
    client.received();
    server.received();
    world.send(&client, &query("RESET TimeZone"));
    let both = "RESET TimeZone;SET \"timezone\" TO 'Asia/Tokyo'";
    assert_eq!(server.received(), query(both));
    world.send(&server, &answers("CCI"));
    assert_eq!(client.kinds(), "CZ", "for the client nothing has changed");
    world.send(&client, &query("SHOW TimeZone"));
    assert_eq!(server.received(), query("SHOW TimeZone"));
}

#[test]
fn a_pinned_client_that_leaves_has_its_state_discarded_before_the_next() {
    let mut world = World::new(1);
    let (client, other) = (world.client(), world.client());
    world.send(&client, &query("CREATE TEMP TABLE t (a int)"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("CI"));
    world.send(&server, &told(true));
    world.send(&other, &query("SELECT 1"));
    server.received();
    world.close(&client);
    assert_eq!(server.received(), query("DISCARD ALL"));
    world.send(&server, &answers("CI"));
    assert_eq!(server.received(), query("SELECT 1"));
}

#[test]
fn trap_11_a_reset_that_fails_costs_the_backend() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &query("CREATE TEMP TABLE t (a int)"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("CI"));
    world.send(&server, &told(true));
    world.close(&client);
    world.send(&server, &answers("EI"));
    assert!(server.is_dropped());
}

#[test]
fn what_cannot_be_undone_costs_the_backend() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &query("SELECT setseed(0.5)"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("CI"));
    world.close(&client);
    assert!(server.is_dropped());
}

#[test]
fn trap_06_equal_texts_under_other_settings_are_other_statements() {
    let mut world = World::new(1);
    let text = "SELECT '2024-01-01'::timestamptz";
    let one = world.client();
    let two = world.client_of(LoopId(0), PoolMode::Transaction, &[("TimeZone", "Asia/Tokyo")]);
    let three = world.client();
    world.send(&one, &[parse("s", text), sync()].concat());
    let server = world.servers[0].clone();
    assert_eq!(server.kinds(), "PS");
    world.send(&server, &answers("1I"));
    world.send(&two, &[parse("s", text), sync()].concat());
    assert_eq!(server.kinds(), "QPS", "prepared under its own settings");
    let tokyo = parameter("TimeZone", "Asia/Tokyo");
    world.send(&server, &[answers("C"), tokyo, answers("I1I")].concat());
    assert_eq!(two.kinds(), "1Z");
    world.send(&three, &[parse("other_name", text), sync()].concat());
    assert_eq!(three.kinds(), "1Z", "it is known to be good");
    world.send(&three, &[bind("other_name"), sync()].concat());
    assert_eq!(server.kinds(), "QBS", "shared with the first");
}

#[test]
fn a_backend_that_lacks_a_statement_gets_it_before_the_bind() {
    let mut world = World::new(2);
    let (client, other) = (world.client(), world.client());
    world.send(&client, &[parse("s", "SELECT 1"), sync()].concat());
    let first = world.servers[0].clone();
    world.send(&first, &answers("1I"));
    client.received();
    first.received();
    world.send(&other, &query("BEGIN"));
    world.send(&client, &[bind("s"), execute(), sync()].concat());
    let second = world.servers[1].clone();
    assert_eq!(second.kinds(), "PBES");
    world.send(&second, &answers("12CI"));
    assert_eq!(client.kinds(), "2CZ", "it prepared nothing now");
}

#[test]
fn an_unnamed_statement_is_never_another_clients() {
    let mut world = World::new(1);
    let (one, two) = (world.client(), world.client());
    world.send(&one, &[parse("", "SELECT 'one'"), sync()].concat());
    let server = world.servers[0].clone();
    world.send(&server, &answers("1I"));
    server.received();
    // The second has none: it must get the server's error, not the first's statement.
    world.send(&two, &[bind(""), execute(), sync()].concat());
    assert_eq!(server.kinds(), "CBES");
    world.send(&server, &answers("3EI"));
    assert_eq!(two.kinds(), "EZ");
    // The first finds its own again.
    world.send(&one, &[bind(""), execute(), sync()].concat());
    let sent = server.received();
    assert_eq!(kinds(&sent), "PBES");
    assert!(String::from_utf8_lossy(&sent).contains("SELECT 'one'"));
}

#[test]
fn deallocate_of_a_protocol_statement_is_answered_here() {
    let mut world = World::new(1);
    let (client, server) = world.client_with("_pg3_0", "SELECT 1");
    world.send(&client, &query("DEALLOCATE \"_pg3_0\""));
    assert_eq!(client.received(), [message(b'C', b"DEALLOCATE\0"), answers("I")].concat());
    assert_eq!(server.kinds(), "");
    world.send(&client, &[parse("_pg3_0", "SELECT 1"), bind("_pg3_0"), sync()].concat());
    assert_eq!(server.kinds(), "BS", "the name is free, and the statement still there");
}

#[test]
fn deallocate_by_the_extended_protocol_is_answered_by_the_server_in_its_turn() {
    let mut world = World::new(1);
    let (client, server) = world.client_with("s", "SELECT 1");
    let deallocate = [parse("", "DEALLOCATE s"), bind(""), execute(), sync()].concat();
    for (outcome, gone) in [("E", false), ("C", true)] {
        world.send(&client, &deallocate);
        let sent = server.received();
        assert_eq!(kinds(&sent), "PCPCPBCES", "another goes in its place, and no list shows it");
        world.send(&server, &answers("1313123"));
        world.send(&server, &answers(outcome));
        world.send(&server, &answers("I"));
        assert_eq!(client.kinds(), format!("12{outcome}Z"));
        world.send(&client, &[bind("s"), execute(), sync()].concat());
        assert_eq!(server.received().windows(2).any(|two| two == b"hw"), !gone, "{outcome}");
        world.send(&server, &answers("2CI"));
        client.received();
    }
}

#[test]
fn an_error_of_what_goes_in_place_of_a_deallocate_has_the_clients_own_name() {
    let mut world = World::new(1);
    let (client, server) = world.client_with("s", "SELECT 1");
    world.send(&client, &[parse("d", "DEALLOCATE s"), bind("d"), execute(), sync()].concat());
    server.received();
    let error = |name: &str| {
        let said = format!(
            "SERROR\0VERROR\0C08P01\0Mbind message ... statement \"{name}\" requires 0\0\0"
        );
        message(b'E', said.as_bytes())
    };
    world.send(&server, &[answers("13131"), error("hawser_deallocate"), answers("I")].concat());
    assert_eq!(client.received(), [answers("1"), error("d"), answers("I")].concat());
}

#[test]
fn an_error_has_that_name_of_several_of_one_statement_which_was_bound() {
    let mut world = World::new(1);
    let (client, server) = world.client_with("one", "SELECT 1");
    world.send(&client, &[parse("two", "SELECT 1"), sync()].concat());
    client.received();
    for name in ["two", "one"] {
        world.send(&client, &[bind(name), execute(), sync()].concat());
        let sent = server.received();
        let ours = sent.windows(2).position(|two| two == b"hw").unwrap();
        let ours = sent[ours..].split(|byte| *byte == 0).next().unwrap();
        let said = |name: &[u8]| {
            message(
                b'E',
                &[&b"SERROR\0VERROR\0C08P01\0M\""[..], name, b"\" requires 0\0\0"].concat(),
            )
        };
        world.send(&server, &[said(ours), answers("I")].concat());
        assert_eq!(client.received(), [said(name.as_bytes()), answers("I")].concat());
    }
}

#[test]
fn the_pin_of_a_cursor_ends_with_the_close_of_its_portal() {
    for (held, idle) in [(true, 0), (false, 1)] {
        let mut world = World::new(1);
        let client = world.client();
        world.send(&client, &query("DECLARE h CURSOR WITH HOLD FOR SELECT 1"));
        let server = world.servers[0].clone();
        world.send(&server, &answers("CI"));
        world.send(&server, &told(true));
        server.received();
        world.send(&client, &[message(b'C', b"Ph\0"), sync()].concat());
        assert_eq!(server.kinds(), "CS");
        world.send(&server, &answers("3I"));
        assert_eq!(server.kinds(), "Q", "it may have been this one");
        world.send(&server, &told(held));
        assert_eq!(world.idle_backends(), idle);
    }
}

#[test]
fn trap_05_discard_all_before_a_later_parse_in_one_pipeline() {
    let mut world = World::new(1);
    let (client, server) = world.client_with("s", "SELECT 1");
    world.send(
        &client,
        &[query("DISCARD ALL"), parse("s", "SELECT 1"), bind("s"), execute(), sync()].concat(),
    );
    // Its effect on the names is known once it is answered.
    assert_eq!(server.kinds(), "Q");
    world.send(&server, &answers("CI"));
    assert_eq!(server.kinds(), "PBES");
    world.send(&server, &answers("12CI"));
    assert_eq!(client.kinds(), "CZ12CZ");
}

/// PHP's lastInsertId() asks in a transaction of its own.
#[test]
fn who_has_asked_once_keeps_its_backend_from_drawing_to_asking() {
    for (draws, keeps) in [("INSERT INTO t", true), ("SELECT inserted FROM t", false)] {
        let mut world = World::new(2);
        let (one, two) = (world.client(), world.client());
        world.send(&one, &query("SELECT lastval()"));
        let server = world.servers[0].clone();
        world.send(&server, &answers("EI"));
        server.received();
        world.send(&one, &query(draws));
        assert_eq!(server.kinds(), "Q", "no other has drawn");
        world.send(&server, &answers("CI"));
        server.received();
        world.send(&two, &query("SELECT 2"));
        assert_eq!(server.received().is_empty(), keeps, "{draws}");
        if !keeps {
            continue;
        }
        world.send(&one, &query("SELECT 1"));
        world.send(&server, &answers("DCI"));
        world.send(&one, &query("SELECT lastval()"));
        assert_eq!(server.received(), [query("SELECT 1"), query("SELECT lastval()")].concat());
        world.send(&server, &answers("DCI"));
        let three = world.client();
        world.send(&three, &query("SELECT 3"));
        assert_eq!(server.received(), query("SELECT 3"), "and no longer");
    }
}

/// PHP connects for each request.
#[test]
fn once_a_client_has_asked_each_that_draws_keeps_its_backend_for_a_while() {
    let mut world = World::new(1);
    let (one, server) = after_one_that_has_drawn(&mut world);
    world.send(&one, &query("SELECT lastval()"));
    world.send(&server, &answers("CIEI"));
    let draw = |world: &mut World, sql: &str| {
        let client = world.client();
        server.received();
        world.send(&client, &query(sql));
        assert_eq!(server.received(), [query("DISCARD SEQUENCES"), query(sql)].concat());
        world.send(&server, &answers("CICI"));
        client
    };
    let three = draw(&mut world, "INSERT INTO t VALUES (1)");
    assert_eq!(world.idle_backends(), 0);
    world.send(&three, &query("SELECT lastval()"));
    assert_eq!(server.received(), query("SELECT lastval()"));
    world.send(&server, &answers("DCI"));
    assert_eq!(world.idle_backends(), 1, "it has asked");
    // A client that does not ask keeps it for a second, or until others have waited for long
    // enough.
    let _four = draw(&mut world, "INSERT INTO t VALUES (1)");
    world.wait_ms(900);
    assert_eq!(world.idle_backends(), 0);
    world.wait_ms(200);
    assert_eq!(world.idle_backends(), 1);
    world.opens_nothing(true);
    for n in 0..8 {
        let client = draw(&mut world, "INSERT INTO u VALUES (1)");
        let other = world.client();
        world.send(&other, &query("SELECT 5"));
        world.wait_ms(200);
        assert_eq!(server.kinds(), "", "{n}");
        world.wait_ms(100);
        assert_eq!(server.received(), query("SELECT 5"), "{n}");
        world.send(&server, &answers("DCI"));
        world.close(&client);
    }
    // No client has asked after that text: it is not kept for that any more.
    let (fifth, other) = (world.client(), world.client());
    world.send(&fifth, &query("INSERT INTO u VALUES (2)"));
    world.send(&other, &query("SELECT 6"));
    server.received();
    world.send(&server, &answers("CICI"));
    assert_eq!(server.received(), query("SELECT 6"));
    world.send(&server, &answers("DCI"));
    let _sixth = draw(&mut world, "INSERT INTO t VALUES (3)");
    assert_eq!(world.idle_backends(), 0, "another text is");
}

#[test]
fn a_client_of_session_mode_keeps_its_backend_and_names() {
    let mut world = World::new(1);
    let client = world.client_of(LoopId(0), PoolMode::Session, &[]);
    let greeting = client.received();
    assert_eq!(kinds(&greeting), "KZ");
    assert_eq!(greeting[5..9], 101u32.to_be_bytes(), "the server's own process id");
    world.send(&client, &[parse("mine", "SELECT 1"), sync()].concat());
    let server = world.servers[0].clone();
    assert_eq!(server.received(), [parse("mine", "SELECT 1"), sync()].concat());
    world.send(&server, &answers("1I"));
    assert_eq!(world.idle_backends(), 0);
    world.close(&client);
    assert_eq!(server.received(), query("DISCARD ALL"));
    world.send(&server, &answers("CI"));
    assert_eq!(world.idle_backends(), 1);
}

#[test]
fn server_reset_query_takes_the_place_of_our_own_in_session_mode_alone() {
    let mut world = World::new(1);
    world.change_settings(|s| s.server_reset_query = b"DEALLOCATE ALL"[..].into());
    let client = world.client_of(LoopId(0), PoolMode::Session, &[]);
    let server = world.servers[0].clone();
    world.close(&client);
    assert_eq!(server.received(), query("DEALLOCATE ALL"));
    world.send(&server, &answers("CI"));
    assert_eq!(world.idle_backends(), 1);

    world.change_settings(|s| s.server_reset_query = Box::default());
    let client = world.client_of(LoopId(0), PoolMode::Session, &[]);
    world.close(&client);
    assert_eq!(server.received(), b"");
    assert_eq!(world.idle_backends(), 1);

    let client = world.client();
    world.send(&client, &query("DO 'BEGIN LISTEN a; END'"));
    server.received();
    world.send(&server, &answers("CI"));
    world.close(&client);
    assert_eq!(server.received(), query("DISCARD ALL"), "pinned, in transaction mode");
}

#[test]
fn a_start_value_of_the_client_before_is_put_back_whatever_the_reset_query_leaves() {
    let mut world = World::new(1);
    for (reset, expected) in [
        ("DEALLOCATE ALL", "SET work_mem"),
        ("RESET ALL", ""),
        ("RESET work_mem", ""),
        ("DISCARD ALL", ""),
    ] {
        world.change_settings(|s| s.server_reset_query = reset.as_bytes().into());
        let start = [("work_mem", "7MB")];
        let client = world.client_of(LoopId(0), PoolMode::Session, &start);
        let server = world.servers[0].clone();
        world.send(&client, &query("SHOW x"));
        server.received();
        world.send(&server, &answers("CCCI"));
        assert_eq!(server.kinds(), "Q", "it has waited");
        world.send(&server, &answers("CI"));
        world.close(&client);
        assert_eq!(server.received(), query(reset));
        world.send(&server, &answers("CI"));
        let next = world.client_of(LoopId(0), PoolMode::Session, &[]);
        world.send(&next, &query("SHOW y"));
        let sent = String::from_utf8_lossy(&server.received()).into_owned();
        assert_eq!(sent.contains("work_mem"), !expected.is_empty(), "{reset}: {sent}");
        if !expected.is_empty() {
            world.send(&server, &answers("CCCI"));
        }
        world.send(&server, &answers("CI"));
        world.close(&next);
        world.send(&server, &answers("CI"));
    }
}

#[test]
fn a_reset_query_that_fails_closes_the_server_connection() {
    let mut world = World::new(1);
    world.change_settings(|s| s.server_reset_query = b"SELECT no_such_function()"[..].into());
    let client = world.client_of(LoopId(0), PoolMode::Session, &[]);
    let server = world.servers[0].clone();
    world.close(&client);
    world.send(&server, &answers("EI"));
    assert!(server.is_dropped());
}

#[test]
fn statement_mode_refuses_transaction_blocks() {
    let mut world = World::new(1);
    let client = world.client_of(LoopId(0), PoolMode::Statement, &[]);
    world.send(&client, &query("BEGIN"));
    let server = world.servers[0].clone();
    server.received();
    world.send(&server, &answers("CT"));
    assert!(client.is_dropped());
    assert!(String::from_utf8_lossy(&client.received()).contains("statement pooling mode"));
    assert_eq!(server.received(), query("ROLLBACK"));
}

#[test]
fn a_wait_that_takes_too_long_ends_with_53300() {
    let mut world = World::new(1);
    let (one, two) = (world.client(), world.client());
    world.send(&one, &query("BEGIN"));
    world.send(&two, &query("SELECT 1"));
    world.wait_ms(119_000);
    assert!(!two.is_dropped());
    world.wait_ms(2_000);
    assert!(two.is_dropped());
    assert!(String::from_utf8_lossy(&two.received()).contains("53300"));
    assert_eq!(world.pool.lock().waiting_count(), 0);
}

#[test]
fn idle_transactions_make_room_for_others() {
    let mut world = World::new(1);
    world.change_settings(|settings| settings.limits.idle_transaction_reserve = 1);
    let (one, two) = (world.client(), world.client());
    world.send(&one, &query("BEGIN"));
    let first = world.servers[0].clone();
    world.send(&first, &answers("CT"));
    one.received();
    world.send(&two, &query("SELECT 1"));
    assert_eq!(world.servers.len(), 1);
    world.wait_ms(100);
    assert_eq!(world.servers.len(), 2);
    let second = world.servers[1].clone();
    assert_eq!(second.kinds(), "Q");
    world.send(&second, &answers("CI"));
    assert_eq!(two.kinds(), "CZ");
    world.send(&one, &query("COMMIT"));
    world.send(&first, &answers("CI"));
    assert_eq!(one.kinds(), "CZ");
}

#[test]
fn alter_role_is_reported_to_the_host_once_it_has_worked_and_is_committed() {
    let mut world = World::new(1);
    let client = world.client();
    let alter = "ALTER ROLE me SET work_mem = '1MB'";
    let done = message(b'C', b"ALTER ROLE\0");
    world.send(&client, &query(alter));
    let server = world.servers[0].clone();
    world.send(&server, &answers("EI"));
    world.send(&client, &query("SELECT 1"));
    world.send(&server, &answers("CI"));
    assert_eq!(world.asked.start_values_changed, 0, "it failed");
    world.send(&client, &query(alter));
    assert_eq!(world.asked.start_values_changed, 0, "not known yet");
    world.send(&server, &[done.clone(), answers("I")].concat());
    assert_eq!(world.asked.start_values_changed, 1);
    world.send(&client, &query("BEGIN"));
    world.send(&server, &answers("CT"));
    world.send(&client, &query(alter));
    world.send(&server, &[done.clone(), answers("T")].concat());
    assert_eq!(world.asked.start_values_changed, 1, "it may be rolled back");
    world.send(&client, &query("COMMIT"));
    world.send(&server, &answers("CI"));
    assert_eq!(world.asked.start_values_changed, 2);
    world.send(&client, &[parse("", alter), bind(""), execute(), sync()].concat());
    world.send(&server, &[answers("12"), done, answers("I")].concat());
    assert_eq!(world.asked.start_values_changed, 3, "in the extended protocol, too");
    world.send(&client, &query("SELECT 1"));
    world.send(&server, &answers("CI"));
    assert_eq!(world.asked.start_values_changed, 3);
}

#[test]
fn a_discard_all_that_fails_after_others_keeps_the_pin() {
    let mut world = World::new(1);
    let (client, other) = (world.client(), world.client());
    world.send(&client, &query("CREATE TEMP TABLE t (a int)"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("CI"));
    world.send(&server, &told(true));
    world.send(&other, &query("SELECT 1"));
    server.received();
    world.send(&client, &[query("BEGIN"), query("DISCARD ALL"), query("COMMIT")].concat());
    assert_eq!(server.kinds(), "Q", "its outcome depends on what is before it");
    world.send(&server, &answers("CT"));
    assert_eq!(server.kinds(), "Q");
    world.send(&server, &answers("EF"));
    assert_eq!(server.received(), query("COMMIT"));
    world.send(&server, &answers("CI"));
    assert!(String::from_utf8_lossy(&server.received()).contains("hawser"), "it is asked");
    world.send(&server, &told(true));
    assert_eq!(server.kinds(), "", "still pinned");
    world.close(&client);
    assert_eq!(server.received(), query("DISCARD ALL"));
}

#[test]
fn what_comes_after_a_discard_all_pins_again() {
    let mut world = World::new(1);
    let (client, other) = (world.client(), world.client());
    world.send(&client, &query("DO 'BEGIN LISTEN a; END'"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("CI"));
    world.send(&other, &query("SELECT 1"));
    server.received();
    let one = |text: &str| [parse("", text), bind(""), execute()].concat();
    let pipeline = [one("DISCARD ALL"), one("SET statement_timeout = 1"), sync()].concat();
    world.send(&client, &pipeline);
    let discarded = message(b'C', b"DISCARD ALL\0");
    world.send(&server, &[answers("12"), discarded, answers("12CI")].concat());
    let sent = server.received();
    assert_eq!(kinds(&sent), "PBEPBESQ");
    let text = String::from_utf8_lossy(&sent).into_owned();
    assert!(text.contains("current_setting('statement_timeout'"), "and not the other's query");
}

/// A LISTEN that a text does not certainly show.
const HIDDEN_LISTEN: &str = "DO 'BEGIN LISTEN a; END'";

#[test]
fn the_pin_of_listen_ends_with_an_unlisten_that_worked() {
    for (sent, answer, ends) in [
        (query("UNLISTEN *"), answers("CI"), true),
        (query("UNLISTEN *"), answers("EI"), false),
        ([query("UNLISTEN *"), query(HIDDEN_LISTEN)].concat(), answers("CI"), false),
        (query("UNLISTEN a"), answers("CI"), false),
        (query("DISCARD ALL"), [message(b'C', b"DISCARD ALL\0"), answers("I")].concat(), true),
        (query("DISCARD ALL"), answers("EI"), false),
    ] {
        let mut world = World::new(1);
        let client = world.client();
        world.send(&client, &query(HIDDEN_LISTEN));
        let server = world.servers[0].clone();
        world.send(&server, &answers("CI"));
        world.send(&client, &sent);
        world.send(&server, &answer);
        if server.kinds() == "QQQ" {
            world.send(&server, &answers("CI"));
        }
        assert_eq!(world.idle_backends() == 1, ends, "{}", String::from_utf8_lossy(&sent));
    }
}

#[test]
fn an_unlisten_in_a_transaction_keeps_the_pin_until_it_is_sure() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &query(HIDDEN_LISTEN));
    let server = world.servers[0].clone();
    world.send(&server, &answers("CI"));
    for (text, answer) in [("BEGIN", "CT"), ("UNLISTEN *", "CT"), ("ROLLBACK", "CI")] {
        world.send(&client, &query(text));
        world.send(&server, &answers(answer));
    }
    assert_eq!(world.idle_backends(), 0, "it listens again");
}

#[test]
fn a_notification_reaches_only_clients_that_listen() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &query("BEGIN"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("CTA"));
    assert_eq!(client.kinds(), "CZ");
    world.send(&client, &query(HIDDEN_LISTEN));
    world.send(&server, &answers("CTA"));
    assert_eq!(client.kinds(), "CZA");
}

#[test]
fn a_name_is_free_again_once_its_parse_is_known_to_have_failed() {
    let mut world = World::new(1);
    let client = world.client();
    let pipeline = [parse("s", "SELEC"), sync(), parse("s", "SELECT 1"), bind("s"), sync()];
    world.send(&client, &pipeline.concat());
    let server = world.servers[0].clone();
    assert_eq!(server.kinds(), "PS");
    world.send(&server, &answers("EI"));
    assert_eq!(server.kinds(), "PBS");
    world.send(&server, &answers("12I"));
    assert_eq!(client.kinds(), "EZ12Z");
}

#[test]
fn a_deallocate_after_other_queries_is_answered_in_its_turn() {
    let mut world = World::new(1);
    let (client, server) = world.client_with("_pg3_0", "SELECT 1");
    world.send(
        &client,
        &[query("SELECT 2"), query("DEALLOCATE _pg3_0"), query("SELECT 3")].concat(),
    );
    assert_eq!(server.kinds(), "Q");
    world.send(&server, &answers("CI"));
    assert_eq!(client.kinds(), "CZCZ");
    assert_eq!(server.received(), query("SELECT 3"));
}

#[test]
fn pinned_clients_that_sit_idle_make_room_for_others() {
    let mut world = World::new(1);
    world.change_settings(|settings| settings.limits.idle_transaction_reserve = 1);
    let (one, two) = (world.client(), world.client());
    world.send(&one, &query("CREATE TEMP TABLE t (a int)"));
    let first = world.servers[0].clone();
    world.send(&first, &answers("CI"));
    world.send(&first, &told(true));
    world.send(&two, &query("SELECT 1"));
    world.wait_ms(100);
    assert_eq!(world.servers.len(), 2);
    assert_eq!(world.servers[1].kinds(), "Q");
}

#[test]
fn trap_06_what_is_parsed_after_a_set_in_its_own_pipeline_is_not_shared_as_if_before_it() {
    let mut world = World::new(1);
    let (one, other) = (world.client(), world.client());
    let set = [parse("", "SET TimeZone TO 'Asia/Tokyo'"), bind(""), execute()].concat();
    world.send(&one, &[set, parse("s", "SELECT 1"), sync()].concat());
    let server = world.servers[0].clone();
    assert_eq!(server.kinds(), "PBEPS");
    let told = parameter("TimeZone", "Asia/Tokyo");
    world.send(&server, &[answers("12C1"), told, answers("I")].concat());
    world.send(&other, &[parse("s", "SELECT 1"), bind("s"), execute(), sync()].concat());
    assert_eq!(server.kinds(), "QCPBES", "prepared again, under its own settings");
}

/// The text of the statement executed before it shows that it sets nothing.
#[test]
fn trap_06_what_is_parsed_before_a_set_in_its_pipeline_is_not_taken_for_parsed_after_it() {
    let mays =
        ["COMMIT", "SELECT f()", "INSERT INTO t VALUES (1)", "WITH a AS (SELECT 1) SELECT 1"];
    let cases = ["SELECT 1", "BEGIN"].map(|text| (text, false)).into_iter();
    for (first, parsed_after) in cases.chain(mays.map(|text| (text, true))) {
        let mut world = World::new(1);
        let run = |text: &str| [parse("", text), bind(""), execute()].concat();
        // Bind messages of an earlier client do not matter.
        let before = world.client();
        let unknown = run("WITH a AS (SELECT 1) SELECT 1");
        world.send(&before, &[unknown.clone(), unknown, sync()].concat());
        let server = world.servers[0].clone();
        world.send(&server, &answers("12C12CI"));
        world.close(&before);
        server.received();
        let client = world.client();
        let statement = parse("s", "SELECT '2024-06-01'::timestamptz");
        let set = run("SET TimeZone TO 'Asia/Tokyo'");
        world.send(&client, &[run(first), statement, set, sync()].concat());
        assert_eq!(server.kinds(), "PBEPPBES");
        let told = parameter("TimeZone", "Asia/Tokyo");
        world.send(&server, &[answers("12C112C"), told, answers("I")].concat());
        world.send(&client, &[bind("s"), execute(), sync()].concat());
        let sent = String::from_utf8_lossy(&server.received()).into_owned();
        let under_the_old = sent.contains("timezone");
        assert_eq!(under_the_old, !parsed_after, "{first}: {sent:?}");
    }
}

#[test]
fn trap_06_a_parse_waits_for_a_query_that_may_set_what_it_reads() {
    let mut world = World::new(1);
    let client = world.client();
    let set = query("SET TimeZone TO 'Asia/Tokyo'");
    world.send(&client, &[set, parse("s", "SELECT 1"), sync()].concat());
    let server = world.servers[0].clone();
    assert_eq!(server.kinds(), "Q");
    let told = parameter("TimeZone", "Asia/Tokyo");
    world.send(&server, &[answers("C"), told, answers("I")].concat());
    assert_eq!(server.kinds(), "PS");
}

#[test]
fn a_function_called_by_its_oid_may_do_anything_to_the_session() {
    // set_config, pg_advisory_lock, currval, a function of the user's own.
    for (oid, free) in
        [(2078u32, false), (2880, false), (1575, false), (20_000, false), (952, true)]
    {
        let mut world = World::new(1);
        let (client, other) = (world.client(), world.client());
        world.send(&client, &message(b'F', &[&oid.to_be_bytes()[..], &[0; 6]].concat()));
        let server = world.servers[0].clone();
        let sent = server.kinds();
        world.send(&server, &answers(&sent.replace("QF", "CI").replace('F', "VI")));
        if sent == "QF" {
            assert_eq!(client.kinds(), "", "the answer to DISCARD SEQUENCES is ours");
            world.send(&server, &answers("VI"));
        }
        assert_eq!(client.kinds(), "VZ");
        world.send(&other, &query("SELECT 1"));
        assert_eq!(server.kinds() == "Q", free, "{oid}: lent to another");
        world.close(&client);
        assert_eq!(server.is_dropped(), !free, "{oid}");
    }
}

#[test]
fn a_function_called_by_its_oid_costs_session_mode_its_backend_afterwards() {
    let mut world = World::new(1);
    let client = world.client_of(LoopId(0), PoolMode::Session, &[]);
    let server = world.servers[0].clone();
    world.send(&client, &message(b'F', &[&1599u32.to_be_bytes()[..], &[0; 6]].concat()));
    assert_eq!(server.kinds(), "F", "setseed: no command undoes it");
    world.send(&server, &answers("VI"));
    world.close(&client);
    assert!(server.is_dropped());
}

#[test]
fn a_start_value_that_makes_plain_tables_temporary_pins() {
    let temporary = [("search_path", "app, pg_temp")];
    let harmless = [("search_path", "app, public")];
    for (own, start, free) in [
        ("", &temporary[..], false),
        ("", &harmless[..], true),
        ("pg_temp", &[][..], false),
        ("pg_temp", &harmless[..], true),
    ] {
        let mut world = World::new(1);
        if !own.is_empty() {
            world.own = vec![("search_path", own)]; // PostgreSQL 18 reports it
        }
        let client = world.client_of(LoopId(0), PoolMode::Transaction, start);
        for text in ["CREATE TABLE t AS SELECT 'A' x", "DISCARD ALL", "CREATE TABLE t ()"] {
            world.send(&client, &query(text));
            let server = world.servers[0].clone();
            // Its settings are sent first where they have been discarded.
            let sent = server.kinds();
            for _ in 0..sent.len() {
                world.send(&server, &answers("CI"));
            }
            server.received();
            assert_eq!(client.kinds(), "CZ", "{text}");
            assert_eq!(world.idle_backends() == 1, free, "{own} {start:?} after {text}");
        }
        world.close(&client);
        let server = world.servers[0].clone();
        assert_eq!(server.received() == query("DISCARD ALL"), !free);
    }
}

#[test]
fn a_custom_name_among_the_start_values_is_never_known_to_the_next_client() {
    for mode in [PoolMode::Transaction, PoolMode::Session] {
        let mut world = World::new(1);
        let client = world.client_of(LoopId(0), mode, &[("my.tenant", "7")]);
        world.send(&client, &query("SELECT 1"));
        let server = world.servers[0].clone();
        let sent = String::from_utf8_lossy(&server.received()).into_owned();
        assert!(sent.contains("\"my\".\"tenant\""), "{sent}");
        world.send(&server, &answers("CICI"));
        // DISCARD ALL leaves the name defined.
        world.send(&client, &query("DISCARD ALL"));
        world.send(&server, &answers("CI"));
        world.close(&client);
        if mode == PoolMode::Session {
            world.send(&server, &answers("CI"));
        }
        let other = world.client();
        world.send(&other, &query("SELECT 1"));
        assert!(server.is_dropped(), "{mode:?}");
        assert_eq!(world.servers[1].received(), query("SELECT 1"));
    }
}

/// A world in which a client has prepared a statement with a secret in it, and another client.
fn world_with_a_secret() -> (World, Peer, Peer) {
    let mut world = World::new(1);
    let (_, server) = world.client_with("s", "SELECT 'secret'");
    let client = world.client();
    (world, client, server)
}

const CATALOG: &str = "SELECT statement FROM pg_prepared_statements";

#[test]
fn pg_prepared_statements_never_shows_what_others_have_prepared() {
    let look = |name: &str| [parse(name, CATALOG), bind(name), execute(), sync()].concat();
    for (sent, kinds) in [
        (query(CATALOG), "QQ"),
        (query("DO LANGUAGE plperl 'anything'"), "QQ"),
        (query(&format!("SELECT '{}'; {CATALOG}", "x".repeat(20_000))), "QQ"),
        (look(""), "PPBECCBES"),
    ] {
        let (mut world, client, server) = world_with_a_secret();
        world.send(&client, &sent);
        let bytes = server.received();
        assert_eq!(self::kinds(&bytes), kinds);
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.contains("DEALLOCATE ALL"), "{kinds}");
        let answer = if kinds == "QQ" { "CICI" } else { "112C332CI" };
        world.send(&server, &answers(answer));
        assert!(["CZ", "12CZ"].contains(&client.kinds().as_str()), "{kinds}");
        world.send(&client, &query(CATALOG));
        // Within a pipeline it is not known that it has worked.
        let again = if kinds == "QQ" { Vec::new() } else { query("DEALLOCATE ALL") };
        assert_eq!(server.received(), [again, query(CATALOG)].concat(), "{kinds}");
    }
}

#[test]
fn a_look_by_a_named_statement_shows_that_alone_and_by_its_own_name() {
    let (mut world, client, server) = world_with_a_secret();
    let look = [parse("c", CATALOG), bind("c"), execute(), sync()].concat();
    world.send(&client, &look);
    let bytes = server.received();
    // By its own name alone, and the shared one of the other is closed.
    assert_eq!(kinds(&bytes), "PCBES");
    let text = String::from_utf8_lossy(&bytes);
    assert!(text.contains(&format!("c\0{CATALOG}\0")), "{text}");
    assert_eq!(text.matches("hw").count(), 1, "a Close: {text}");
    world.send(&server, &answers("132CI"));
    assert_eq!((client.kinds(), server.kinds()), ("12CZ".into(), "Q".into()), "which are left");
}

#[test]
fn within_a_transaction_what_others_have_prepared_is_taken_off_once() {
    let (mut world, client, server) = world_with_a_secret();
    let again = [bind("c"), execute(), sync()].concat();
    world.send(&client, &query("BEGIN"));
    world.send(&server, &answers("CT"));
    world.send(&client, &[parse("c", CATALOG), again.clone()].concat());
    world.send(&server, &answers("132CT"));
    server.received();
    world.send(&client, &again);
    assert_eq!(server.kinds(), "BES", "nothing else can have come meanwhile");
}

#[test]
fn pg_prepared_statements_shows_nothing_in_a_failed_transaction_either() {
    let (mut world, client, server) = world_with_a_secret();
    world.send(&client, &query("BEGIN"));
    world.send(&server, &answers("CT"));
    world.send(&client, &query("SELECT 1/0"));
    world.send(&server, &answers("EF"));
    server.received();
    client.received();
    let text = format!("ROLLBACK; {CATALOG}");
    world.send(&client, &query(&text));
    assert_eq!(server.kinds(), "CSQ");
    world.send(&server, &answers("3FCCI"));
    assert_eq!(client.kinds(), "CCZ");
}

#[test]
fn a_client_of_session_mode_finds_no_statements_of_others() {
    let (mut world, _, server) = world_with_a_secret();
    let client = world.client_of(LoopId(0), PoolMode::Session, &[]);
    assert_eq!(server.received(), query("DEALLOCATE ALL"));
    world.send(&server, &answers("CI"));
    assert_eq!(client.kinds(), "KZ");
    let mut world = World::new(1);
    let client = world.client_of(LoopId(0), PoolMode::Session, &[]);
    assert_eq!(world.servers[0].kinds(), "", "there are none");
    assert_eq!(client.kinds(), "KZ");
}

#[test]
fn the_unnamed_statement_is_there_after_a_function_called_by_its_oid() {
    let mut world = World::new(1);
    let (client, server) = after_one_that_has_drawn(&mut world);
    world.send(&client, &[parse("", "SELECT 1"), bind(""), execute(), sync()].concat());
    world.send(&server, &answers("12CI"));
    server.received();
    world.send(&client, &[message(b'F', &[0; 12]), bind(""), execute(), sync()].concat());
    assert_eq!(server.kinds(), "QF");
    world.send(&server, &answers("CIVI"));
    assert_eq!(server.kinds(), "PBES");
}
