//! State that other poolers lose or leak: what `fidelity` makes of it, and when a pin ends.

use super::harness::*;
use crate::ids::LoopId;
use crate::lending::Fidelity;
use crate::parts::identity::process_ids::PROCESS_ID_FIRST;
use crate::relay::PoolMode;
use crate::relay::message::ToLoop;

/// A world whose clients lose what does not move.
fn classic() -> World {
    let mut world = World::new(1);
    world.change_settings(|settings| settings.fidelity = Fidelity::Classic);
    world
}

#[test]
fn classic_clients_lose_their_state_with_the_transaction_and_nobody_finds_it() {
    let mut world = classic();
    let (client, other) = (world.client(), world.client());
    world.send(&client, &query("BEGIN; CREATE TEMP TABLE t (a int)"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("CCT"));
    world.send(&other, &query("SELECT 1"));
    server.received();
    world.send(&client, &query("COMMIT"));
    assert_eq!(server.received(), query("COMMIT"), "within the transaction it is there");
    world.send(&server, &answers("CI"));
    assert_eq!(server.received(), query("DISCARD ALL"), "before the next client");
    world.send(&server, &answers("CI"));
    assert_eq!(server.received(), query("SELECT 1"));
    world.send(&server, &answers("CI"));
    assert_eq!(world.idle_backends(), 1, "nothing pins");
}

#[test]
fn classic_clients_without_state_cost_no_reset() {
    let mut world = classic();
    let client = world.client();
    world.send(&client, &query("SELECT 1"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("CI"));
    assert_eq!(server.received(), query("SELECT 1"));
    assert_eq!(world.idle_backends(), 1);
}

#[test]
fn classic_clients_do_not_leave_what_no_command_undoes() {
    let mut world = classic();
    let (client, other) = (world.client(), world.client());
    world.send(&client, &query("SELECT setseed(0.5)"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("CI"));
    assert!(server.is_dropped(), "closed, not lent on");
    world.send(&other, &query("SELECT random()"));
    assert_eq!(world.servers.len(), 2);
}

const LOCK: &str = "SELECT pg_advisory_lock(1)";
const UNLOCK: &str = "SELECT pg_advisory_unlock(1)";

fn asked(server: &Peer) -> String {
    String::from_utf8_lossy(&server.received()).into_owned()
}

#[test]
fn a_pin_ends_when_the_server_says_that_its_state_is_gone() {
    let mut world = World::new(1);
    let (client, other) = (world.client(), world.client());
    world.send(&client, &query(LOCK));
    let server = world.servers[0].clone();
    server.received();
    world.send(&server, &answers("CI"));
    assert_eq!(client.kinds(), "CZ", "its answer does not wait");
    assert!(asked(&server).contains("pg_locks"));
    world.send(&server, &told(true));
    assert_eq!((client.kinds(), server.kinds()), (String::new(), String::new()));
    world.send(&other, &query("SELECT 1"));
    world.send(&client, &query("SELECT 2"));
    world.send(&server, &answers("CI"));
    assert_eq!(server.received(), query("SELECT 2"), "the other waits, and no question follows");
    world.send(&client, &query(UNLOCK));
    server.received();
    world.send(&server, &answers("CI"));
    assert!(asked(&server).contains("pg_locks"));
    world.send(&server, &told(false));
    assert_eq!(server.received(), query("SELECT 1"), "the other has it");
    world.send(&server, &answers("CI"));
    assert_eq!((client.kinds(), other.kinds()), ("CZCZ".into(), "CZ".into()));
    assert_eq!(world.idle_backends(), 1);
}

#[test]
fn what_a_client_sends_meanwhile_waits_for_the_servers_word() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &query("BEGIN; CREATE TEMP TABLE t (a int) ON COMMIT DROP"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("CCT"));
    assert_eq!(asked(&server).matches("hawser").count(), 0, "not within the transaction");
    world.send(&client, &query("COMMIT"));
    server.received();
    world.send(&server, &answers("CI"));
    assert!(asked(&server).contains("pg_my_temp_schema"));
    world.send(&client, &query("SELECT 1"));
    assert_eq!(server.kinds(), "");
    world.send(&server, &told(false));
    assert_eq!(server.received(), query("SELECT 1"));
    world.send(&server, &answers("CI"));
    assert_eq!(client.kinds(), "CCZCZCZ");
    assert_eq!(world.idle_backends(), 1);
}

#[test]
fn a_question_that_fails_or_says_nothing_keeps_the_pin() {
    for answer in [
        answers("EI"),
        [columns(), answers("CI")].concat(),
        [columns(), message(b'D', &[0, 1, 255, 255, 255, 255]), answers("CI")].concat(),
        [columns(), message(b'D', &[0, 0]), answers("CI")].concat(),
    ] {
        let mut world = World::new(1);
        let client = world.client();
        world.send(&client, &query(LOCK));
        let server = world.servers[0].clone();
        world.send(&server, &answers("CI"));
        server.received();
        world.send(&server, &answer);
        assert_eq!(world.idle_backends(), 0);
        world.send(&client, &query("SELECT 1"));
        world.send(&server, &answers("CI"));
        assert_eq!(client.kinds(), "CZCZ", "the client gets nothing of it");
        let sent = server.received();
        assert!(sent.starts_with(&query("SELECT 1")));
        assert_eq!(kinds(&sent), "QQ", "asked again, once for each transaction");
        world.send(&server, &told(false));
        assert_eq!(world.idle_backends(), 1);
    }
}

#[test]
fn nobody_asks_for_a_client_that_is_pinned_to_the_end() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &query("SELECT setseed(0.5), pg_advisory_lock(1)"));
    let server = world.servers[0].clone();
    server.received();
    world.send(&server, &answers("CI"));
    assert_eq!(server.kinds(), "");
    world.send(&client, &query(UNLOCK));
    server.received();
    world.send(&server, &answers("CI"));
    assert_eq!(server.kinds(), "");
}

#[test]
fn a_temporary_slot_pins_until_it_is_dropped_and_closes_the_backend_of_who_leaves_with_it() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &query("SELECT pg_create_physical_replication_slot('s', false, true)"));
    let server = world.servers[0].clone();
    server.received();
    world.send(&server, &answers("DCI"));
    assert!(asked(&server).contains("pg_replication_slots"));
    world.send(&server, &told(true));
    assert_eq!(world.idle_backends(), 0);
    world.send(&client, &query("SELECT pg_drop_replication_slot('s')"));
    server.received();
    world.send(&server, &answers("DCI"));
    assert!(asked(&server).contains("pg_replication_slots"));
    world.send(&server, &told(false));
    assert_eq!(world.idle_backends(), 1, "and it serves others");
    world.send(&client, &query("SELECT pg_create_physical_replication_slot('s', false, true)"));
    world.send(&server, &answers("DCI"));
    world.send(&server, &told(true));
    server.received();
    world.close(&client);
    assert_eq!(server.received(), message(b'X', b""), "DISCARD ALL leaves it there");
    assert_eq!(world.idle_backends(), 0);
}

#[test]
fn a_client_that_leaves_while_the_server_is_asked_leaves_nothing() {
    let mut world = World::new(1);
    let (client, other) = (world.client(), world.client());
    world.send(&client, &query(LOCK));
    let server = world.servers[0].clone();
    world.send(&server, &answers("CI"));
    server.received();
    world.send(&other, &query("SELECT 1"));
    world.close(&client);
    assert!(world.asked.cancels.is_empty(), "a question is not cancelled");
    world.send(&server, &told(true));
    assert_eq!(server.received(), query("DISCARD ALL"));
    world.send(&server, &answers("CI"));
    assert_eq!(server.received(), query("SELECT 1"));
}

/// A statement was prepared under the previously known settings, and these were put back after it.
#[test]
fn what_a_cancel_has_put_off_is_asked_before_what_comes_next() {
    for comes_early in [true, false] {
        let mut world = World::new(1);
        let client = world.client();
        world.send(&client, &query("SET work_mem = '5MB'"));
        let server = world.servers[0].clone();
        let cancel = ToLoop::Cancel { process: PROCESS_ID_FIRST, key: [9; 4].into() };
        world.deliver(LoopId(0), cancel);
        server.received();
        world.send(&server, &answers("CI"));
        assert_eq!((client.kinds().as_str(), server.kinds().as_str()), ("CZ", ""), "it may be hit");
        if comes_early {
            world.send(&client, &query("SELECT 1"));
        }
        let place = world.asked.cancels[0].backend;
        world.deliver(LoopId(0), ToLoop::CancelDone(place));
        assert!(asked(&server).contains("current_setting('work_mem'"));
        world.send(&server, &value("5MB"));
        if comes_early {
            assert_eq!(server.received(), query("SELECT 1"));
            world.send(&server, &answers("CI"));
        }
        assert_eq!(world.idle_backends(), 1, "nothing is in question any more");
    }
}

#[test]
fn a_setting_that_is_not_reported_moves_with_the_value_that_the_server_shows() {
    let mut world = World::new(1);
    let (client, other) = (world.client(), world.client());
    world.send(&client, &query("SET statement_timeout = 90000"));
    let server = world.servers[0].clone();
    server.received();
    world.send(&server, &answers("CI"));
    assert_eq!(client.kinds(), "CZ");
    assert!(asked(&server).contains("current_setting('statement_timeout'"));
    world.send(&server, &value("90s"));
    assert_eq!(world.idle_backends(), 1, "it does not pin");
    world.send(&other, &query("SELECT 1"));
    let reset = block("RESET \"statement_timeout\"");
    assert_eq!(server.received(), [reset, query("SELECT 1")].concat());
    world.send(&server, &answers("CCCICI"));
    world.send(&client, &query("SELECT 2"));
    let set = block("SET \"statement_timeout\" TO '90s'");
    assert_eq!(server.received(), [set, query("SELECT 2")].concat(), "in one write");
    world.send(&server, &answers("CCCICI"));
    assert_eq!(client.kinds(), "CZ");
    world.send(&client, &query("SELECT 3"));
    assert_eq!(server.received(), query("SELECT 3"), "nothing to apply, nothing to ask");
}

/// A client with a role on another backend than the one that it comes to.
fn with_role() -> (World, Peer, Peer) {
    let mut world = World::new(1);
    let (client, other) = (world.client(), world.client());
    world.send(&client, &query("SET ROLE reader"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("CI"));
    world.send(&server, &value("reader"));
    world.send(&other, &query("SELECT 1"));
    world.send(&server, &answers("CICI"));
    client.received();
    server.received();
    (world, client, server)
}

/// Another session's `pg_cancel_backend()` may hit what sets a client's settings, at any moment.
#[test]
fn nothing_runs_without_settings_that_another_session_has_cancelled() {
    let cancelled = message(b'E', b"SERROR\0VERROR\0C57014\0Mcanceled\0\0");
    let begun = [answers("12"), message(b'C', b"BEGIN\0")].concat();
    for (done, answer) in [(&b""[..], "E"), (&begun[..], "EZ")] {
        let mut world = World::new(1);
        let start = [("work_mem", "7MB"), ("TimeZone", "Asia/Tokyo")];
        let client = world.client_of(LoopId(0), PoolMode::Transaction, &start);
        world.send(&client, &query("INSERT INTO t VALUES (1)"));
        let server = world.servers[0].clone();
        let sent = server.received();
        assert!(sent.starts_with(&begin(BEGIN)), "a Query follows without a Sync");
        assert_eq!(kinds(&sent), "QQ");
        world.send(&server, &[done, &cancelled].concat());
        if !done.is_empty() {
            world.send(&server, &answers("FEF")); // the block is open, and fails the INSERT
        }
        assert_eq!(client.kinds(), answer);
        assert!(server.is_dropped(), "it is in a block of Hawser's");
        assert_eq!(client.is_dropped(), done.is_empty());
    }
}

#[test]
fn nothing_runs_without_the_role_that_could_not_be_applied() {
    let (mut world, client, server) = with_role();
    world.send(&client, &query("DELETE FROM t"));
    let set = block("SET \"role\" TO 'reader'");
    assert_eq!(server.received(), [set, query("DELETE FROM t")].concat());
    world.send(&client, &query("ROLLBACK"));
    assert_eq!(server.kinds(), "", "it could end the block that fails it all");
    world.send(&server, &answers("CE"));
    assert!(server.is_dropped());
    assert_eq!(client.kinds(), "E");
}

#[test]
fn what_ends_a_failed_block_waits_for_the_settings_before_it() {
    for first in [query("ROLLBACK; DELETE FROM t"), query(" /* x */ COMMIT; DELETE FROM t"), sync()]
    {
        let (mut world, client, server) = with_role();
        world.send(&client, &[first.clone(), query("SELECT 1")].concat());
        if server.unread() > 0 {
            assert_eq!(server.kinds(), "Q", "only the role");
            world.send(&server, &answers("CCCI"));
            assert!(server.received().starts_with(&first));
        }
    }
}

/// A client with a custom setting, which its backend knows for good.
fn with_custom() -> (World, Peer, Peer) {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &query("SET my.user TO '7'"));
    let server = world.servers[0].clone();
    server.received();
    world.send(&server, &answers("CI"));
    assert!(asked(&server).contains("current_setting('my.user'"));
    world.send(&server, &value("7"));
    assert_eq!(world.idle_backends(), 1, "it does not pin");
    (world, client, server)
}

#[test]
fn a_custom_name_goes_to_clients_that_have_it_and_to_no_others() {
    let (mut world, client, server) = with_custom();
    world.send(&client, &query("SELECT 1"));
    assert_eq!(server.received(), query("SELECT 1"), "back to it");
    world.send(&server, &answers("CI"));
    let stranger = world.client();
    world.send(&stranger, &query("SELECT 2"));
    assert!(server.is_dropped(), "replaced");
    let second = world.servers[1].clone();
    assert_eq!(second.received(), query("SELECT 2"));
    world.send(&second, &answers("CI"));
    world.send(&client, &query("SELECT 3"));
    let set = block("SET \"my\".\"user\" TO '7'");
    assert_eq!(second.received(), [set, query("SELECT 3")].concat());
    // The head of the queue decides.
    world.send(&stranger, &query("SELECT 4"));
    world.send(&second, &answers("CCCICI"));
    assert!(second.is_dropped());
    assert_eq!(world.servers[2].received(), query("SELECT 4"));
}

#[test]
fn a_custom_name_that_is_set_for_a_transaction_is_asked_about_once() {
    let mut world = World::new(1);
    let client = world.client();
    for (turn, asks) in [(1, true), (2, false), (3, false)] {
        world.send(&client, &query("BEGIN; SET LOCAL my.user TO '7'; COMMIT"));
        let server = world.servers[0].clone();
        server.received();
        world.send(&server, &answers("CCCI"));
        assert_eq!(asked(&server).contains("hawser"), asks, "{turn}");
        if asks {
            world.send(&server, &value(""));
        }
        assert_eq!(world.idle_backends(), 1);
    }
}

#[test]
fn what_waits_after_a_client_without_the_name_may_pass_it_so_often_and_no_more() {
    let (mut world, client, server) = with_custom();
    let (stranger, same) =
        (world.client(), world.client_of(LoopId(0), PoolMode::Transaction, &[("my.user", "8")]));
    world.send(&client, &query("SELECT 1"));
    world.send(&stranger, &query("SELECT 2"));
    world.send(&same, &query("SELECT 3"));
    world.send(&server, &answers("CI"));
    assert!(asked(&server).contains("SELECT 3"), "it fits");
    world.send(&client, &query("SELECT 4"));
    world.send(&server, &answers("CICI"));
    assert!(server.is_dropped(), "no client passes it twice in a pool of one");
    assert_eq!(world.servers[1].received(), query("SELECT 2"));
}

#[test]
fn who_the_session_is_ends_with_discard_all_and_fails_all_where_it_cannot_be_applied() {
    let mut world = World::new(1);
    world.own = vec![("session_authorization", "login")];
    let (client, other) = (world.client(), world.client());
    world.send(&client, &query("SET SESSION AUTHORIZATION other"));
    let server = world.servers[0].clone();
    let is = |name: &str| parameter("session_authorization", name);
    world.send(&server, &[answers("C"), is("other"), answers("I")].concat());
    server.received();
    let row = message(b'D', b"\0\x02\0\0\0\x05other\0\0\0\x04none");
    world.send(&server, &[columns(), row, answers("CI")].concat());
    assert_eq!(world.idle_backends(), 1);
    world.send(&other, &query("SELECT 1"));
    let sent = asked(&server);
    assert!(sent.contains("RESET \"session_authorization\""), "{sent}");
    world.send(&server, &[answers("C"), is("login"), answers("ICI")].concat());
    world.send(&client, &query("SELECT 2"));
    let sent = asked(&server);
    assert!(sent.contains("SET \"session_authorization\" TO 'other'"), "{sent}");
    world.send(&server, &[answers("C"), is("other"), answers("CCCICI")].concat());
    world.send(&client, &query("DISCARD ALL"));
    server.received();
    let done = message(b'C', b"DISCARD ALL\0");
    world.send(&server, &[done, is("login"), answers("I")].concat());
    world.send(&client, &query("SELECT 3"));
    assert_eq!(server.received(), query("SELECT 3"), "it is the login again");
}

#[test]
fn a_timeout_that_could_end_the_connection_before_the_next_client_pins() {
    for (name, shown, free) in [
        ("statement", "50ms", 1),
        ("statement", "90s", 1),
        ("transaction", "50ms", 0),
        ("transaction", "1500ms", 1),
        ("transaction", "0", 1),
    ] {
        let mut world = World::new(1);
        let client = world.client();
        world.send(&client, &query(&format!("SET {name}_timeout = 50")));
        let server = world.servers[0].clone();
        world.send(&server, &answers("CI"));
        world.send(&server, &value(shown));
        assert_eq!(world.idle_backends(), free, "{name} {shown}");
    }
}

#[test]
fn a_value_beyond_ascii_is_asked_for_and_brought_byte_by_byte() {
    for (encoding, digits) in [("LATIN1", true), ("SJIS", true), ("UTF8", false)] {
        let mut world = World::new(1);
        world.own = vec![("client_encoding", "UTF8"), ("server_encoding", "UTF8")];
        let (client, other) = (world.client(), world.client());
        world.send(&client, &query("SET search_path = x; SET client_encoding = 'x'"));
        let server = world.servers[0].clone();
        server.received();
        let told = message(b'S', format!("client_encoding\0{encoding}\0").as_bytes());
        world.send(&server, &[answers("CC"), told, answers("I")].concat());
        let question = asked(&server);
        assert_eq!(question.contains("getdatabaseencoding()),'hex')"), digits, "{question}");
        world.send(&server, &value(if digits { "22c3a95c22" } else { "\"\u{e9}\\\"" }));
        world.send(&other, &query("SELECT 1"));
        server.received();
        let told = message(b'S', b"client_encoding\0UTF8\0");
        let told = if encoding == "UTF8" { Vec::new() } else { told };
        world.send(&server, &[answers("CC"), told, answers("ICI")].concat());
        world.send(&client, &query("SELECT 2"));
        let sent = String::from_utf8(server.received()).unwrap();
        let set = r#"SET "search_path" TO E'\xc3\xa9\\'"#;
        assert!(sent.is_ascii() && sent.contains(set), "{encoding}: {sent}");
    }
}

#[test]
fn a_look_at_the_catalog_leaves_the_clients_own_statements_alone() {
    let mut world = World::new(1);
    let (_, server) = world.client_with("s", "SELECT 'secret'");
    let client = world.client();
    world.send(&client, &query("PREPARE p AS SELECT 1"));
    server.received();
    world.send(&server, &answers("CI"));
    world.send(&server, &told_prepared(&["p"]));
    server.received();
    world.send(&client, &query("SELECT name FROM pg_prepared_statements"));
    let sent = server.received();
    assert_eq!(kinds(&sent), "CSQ", "others' are closed by name, not all deallocated");
    world.send(&server, &answers("3ICI"));
    assert_eq!(client.kinds(), "CZCZ");
}

#[test]
fn after_a_deallocate_all_that_did_not_come_a_look_at_the_catalog_leaves_them_alone_as_well() {
    let mut world = World::new(1);
    let (_, server) = world.client_with("s", "SELECT 'secret'");
    let client = world.client();
    world.send(&client, &query("PREPARE p AS SELECT 1"));
    server.received();
    world.send(&server, &answers("CI"));
    world.send(&server, &told_prepared(&["p"]));
    world.send(&client, &query("SELECT 1/0; DEALLOCATE ALL"));
    world.send(&server, &answers("EI"));
    world.send(&server, &told_prepared(&["p"]));
    server.received();
    client.received();
    world.send(&client, &query("SELECT name FROM pg_prepared_statements"));
    let sent = server.received();
    assert_eq!(kinds(&sent), "CSQ", "what may be left of others is closed by its name");
    world.send(&server, &answers("3ICI"));
    assert_eq!(client.kinds(), "CZ");
    world.send(&client, &query("SELECT name FROM pg_cursors"));
    assert_eq!(server.kinds(), "Q", "nothing is left");
}

#[test]
fn a_look_at_the_catalog_pins_up_to_the_end_of_the_transaction() {
    for (sql, answer) in [
        ("SELECT name FROM pg_prepared_statements", "CI"),
        ("BEGIN; SELECT name FROM pg_cursors; COMMIT", "CCCI"),
    ] {
        let mut world = World::new(1);
        let client = world.client();
        world.send(&client, &query(sql));
        let server = world.servers[0].clone();
        world.send(&server, &answers(answer));
        assert_eq!(world.idle_backends(), 1, "{sql}");
    }
}

#[test]
fn set_local_to_default_by_itself_warns_as_it_would() {
    let mut world = World::new(1);
    let client = world.client_of(LoopId(0), PoolMode::Transaction, &[("TimeZone", "Asia/Tokyo")]);
    world.send(&client, &query("SELECT 1"));
    let server = world.servers[0].clone();
    let tokyo = parameter("TimeZone", "Asia/Tokyo");
    world.send(&server, &[answers("C"), tokyo, answers("ICI")].concat());
    server.received();
    let alone = query("SET LOCAL TimeZone TO DEFAULT");
    world.send(&client, &alone);
    assert_eq!(server.received(), alone, "a text of two statements is a transaction block");
    world.send(&server, &answers("CI"));
    world.send(&client, &query("BEGIN"));
    world.send(&server, &answers("CT"));
    server.received();
    world.send(&client, &alone);
    let sent = server.received();
    assert!(String::from_utf8_lossy(&sent).contains("DEFAULT;SET LOCAL"), "its own in a block");
}

#[test]
fn in_a_failed_transaction_an_empty_statement_stands_in_for_one_that_the_backend_lacks() {
    let mut world = World::new(2);
    let (client, first) = world.client_with("s", "LISTEN one");
    let other = world.client();
    world.send(&other, &query("BEGIN"));
    world.send(&first, &answers("CT"));
    world.send(&client, &query("BEGIN; SELECT 1/0"));
    let second = world.servers[1].clone();
    world.send(&second, &answers("CEF"));
    client.received();
    second.received();
    world.send(&client, &[message(b'D', b"Ss\0"), sync()].concat());
    let sent = second.received();
    assert_eq!(kinds(&sent), "CPDS");
    assert!(!String::from_utf8_lossy(&sent).contains("LISTEN"));
    let described = [&answers("31")[..], &message(b't', b"\0\0"), &answers("nF")].concat();
    world.send(&second, &described);
    assert_eq!(client.kinds(), "tnZ");
    // A taken name is taken for a text that may be prepared there, and for no other.
    world.send(&client, &[parse("s", ""), sync()].concat());
    let sent = second.received();
    assert_eq!(kinds(&sent), "CPPS");
    let taken = message(b'E', b"SERROR\0VERROR\0C42P05\0Mtaken\0\0");
    world.send(&second, &[&answers("31")[..], &taken, &answers("F")].concat());
    let told = client.received();
    assert!(String::from_utf8_lossy(&told).contains("\"s\" already exists"));
}

#[test]
fn deallocate_all_of_a_client_that_has_nothing_on_the_server_leaves_shared_statements_there() {
    let mut world = World::new(1);
    let (client, server) = world.client_with("s", "SELECT 1");
    let (done, in_block) = (message(b'C', b"DEALLOCATE ALL\0"), answers("T"));
    world.send(&client, &query("DEALLOCATE ALL"));
    assert_eq!(client.received(), [&done[..], &answers("I")].concat());
    world.send(&client, &[parse("s", "SELECT 1"), sync()].concat());
    assert_eq!(client.kinds(), "1Z");
    assert_eq!(server.kinds(), "", "it is there still");
    // Within a block as well.
    world.send(&client, &query("BEGIN"));
    world.send(&server, &answers("CT"));
    server.received();
    client.received();
    world.send(&client, &query("deallocate prepare all;"));
    assert_eq!(client.received(), [&done[..], &in_block].concat());
    assert_eq!(server.kinds(), "CS", "as any simple query it ends the unnamed portal");
    world.send(&server, &answers("3T"));
    assert_eq!(client.kinds(), "");
    world.send(&client, &[bind("s"), execute(), sync()].concat());
    let sent = server.received();
    assert_eq!(kinds(&sent), "BES", "its name is free");
    assert!(String::from_utf8_lossy(&sent).contains("\0s\0"), "the server says so");
}

#[test]
fn deallocate_all_is_the_servers_where_it_alone_knows_what_there_is() {
    for first in ["BEGIN; PREPARE p AS SELECT 1", "BEGIN; SELECT name FROM pg_prepared_statements"]
    {
        let mut world = World::new(1);
        let client = world.client();
        world.send(&client, &query(first));
        let server = world.servers[0].clone();
        world.send(&server, &answers("CCT"));
        server.received();
        world.send(&client, &query("DEALLOCATE ALL"));
        assert_eq!(server.received(), query("DEALLOCATE ALL"), "{first}");
    }
    let mut world = classic();
    let client = world.client();
    world.send(&client, &query("BEGIN; PREPARE p AS SELECT 1"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("CCT"));
    server.received();
    world.send(&client, &query("DEALLOCATE ALL"));
    assert_eq!(server.received(), query("DEALLOCATE ALL"), "classic");
}

#[test]
fn in_a_failed_transaction_a_bind_is_refused_for_its_number_of_parameters_first() {
    let mut world = World::new(2);
    let (client, first) = world.client_with("s", "SELECT $1::int + $2");
    let other = world.client();
    world.send(&other, &query("BEGIN"));
    world.send(&first, &answers("CT"));
    world.send(&client, &query("BEGIN; SELECT 1/0"));
    let second = world.servers[1].clone();
    world.send(&second, &answers("CEF"));
    client.received();
    second.received();
    let aborted = message(b'E', b"SERROR\0VERROR\0C25P02\0Maborted\0\0");
    let bound = |values: &[&str], formats: u16| {
        let mut body = b"\0s\0".to_vec();
        body.extend_from_slice(&formats.to_be_bytes());
        body.extend_from_slice(&[0, 0].repeat(usize::from(formats)));
        body.extend_from_slice(&u16::try_from(values.len()).unwrap().to_be_bytes());
        for value in values {
            body.extend_from_slice(&u32::try_from(value.len()).unwrap().to_be_bytes());
            body.extend_from_slice(value.as_bytes());
        }
        body.extend_from_slice(&[0, 0]);
        [message(b'B', &body), execute(), sync()].concat()
    };
    for (values, formats, error) in [
        (
            &["1"][..],
            0,
            "bind message supplies 1 parameters, but prepared statement \"s\" requires 2",
        ),
        (&[], 1, "bind message supplies 0 parameters, but prepared statement \"s\" requires 2"),
        (&["1", "2"], 3, "bind message has 3 parameter formats but 2 parameters"),
    ] {
        world.send(&client, &bound(values, formats));
        let sent = second.received();
        assert_eq!(kinds(&sent), "CBES");
        assert!(!String::from_utf8_lossy(&sent).contains("SELECT"));
        let gone = message(b'E', b"SERROR\0VERROR\0C26000\0Mit is not there\0\0");
        world.send(&second, &[answers("3"), gone, answers("F")].concat());
        let told = String::from_utf8_lossy(&client.received()).into_owned();
        assert!(told.contains("C08P01\0") && told.contains(error), "{told}");
    }
    // With the right number it is the transaction's.
    world.send(&client, &bound(&["1", "2"], 0));
    let sent = second.received();
    assert!(String::from_utf8_lossy(&sent).contains("SELECT"));
    world.send(&second, &[aborted.clone(), answers("F")].concat());
    assert_eq!(client.received(), [aborted, answers("F")].concat());
}
