//! Mistakes that the simulation has found, each with the shortest script that shows it.

use crate::ids::LoopId;
use crate::parts::identity::process_ids::PROCESS_ID_FIRST;
use crate::relay::client_info::PoolMode;
use crate::relay::message::ToLoop;
use crate::relay::tests::harness::*;

/// Close of a statement.
fn close(name: &str) -> Vec<u8> {
    message(b'C', &[b"S", name.as_bytes(), b"\0"].concat())
}

#[test]
fn a_name_closed_and_used_again_after_an_error_is_still_the_old_one() {
    let mut world = World::new(1);
    let (client, server) = world.client_with("s", "SELECT 1");
    let again = [parse("", "SELEC"), close("s"), parse("s", "SELECT 2"), sync()].concat();
    world.send(&client, &again);
    assert_eq!(server.kinds(), "PPS");
    world.send(&server, &answers("EI"));
    assert_eq!(client.kinds(), "EZ");
    world.send(&client, &[bind("s"), execute(), sync()].concat());
    assert_eq!(server.kinds(), "BES", "the first statement is there, and is meant");
}

#[test]
fn a_name_whose_close_has_no_answer_yet_is_not_taken_for_free() {
    let mut world = World::new(1);
    let (client, server) = world.client_with("s", "SELECT 1");
    world.send(&client, &[parse("", "SELEC"), close("s"), sync()].concat());
    world.send(&client, &[parse("s", "SELECT 2"), sync()].concat());
    assert_eq!(server.kinds(), "PS", "what follows depends on whether it is closed");
    world.send(&server, &answers("EI"));
    assert_eq!(client.kinds(), "EZ");
    world.send(&server, &answers("UI"));
    let answer = client.received();
    assert!(String::from_utf8_lossy(&answer).contains("\"s\" already exists"), "{answer:?}");
}

#[test]
fn a_name_closed_before_deallocate_all_comes_back_if_both_are_ignored() {
    let mut world = World::new(1);
    let (client, server) = world.client_with("s", "SELECT 1");
    let deallocate = [parse("", "DEALLOCATE ALL"), bind(""), execute(), sync()].concat();
    world.send(&client, &[parse("", "SELEC"), close("s"), deallocate].concat());
    server.received();
    world.send(&server, &answers("EI"));
    assert_eq!(client.kinds(), "EZ");
    world.send(&client, &[bind("s"), execute(), sync()].concat());
    assert!(server.kinds().ends_with("BES"), "it is there");
}

#[test]
fn an_existing_name_hides_no_other_error_of_the_parse() {
    let mut world = World::new(1);
    let (client, server) = world.client_with("s", "SELECT 1");
    world.send(&client, &[parse("s", "SELEC"), sync()].concat());
    assert!(String::from_utf8_lossy(&server.received()).contains("SELEC"));
    world.send(&server, &answers("EI"));
    assert!(String::from_utf8_lossy(&client.received()).contains("42601"));
}

#[test]
fn discard_all_leaves_the_unnamed_statement_alone() {
    let mut world = World::new(1);
    let client = world.client();
    let discard = [parse("", "DISCARD ALL"), bind(""), execute(), sync()].concat();
    world.send(&client, &discard);
    let server = world.servers[0].clone();
    assert_eq!(server.kinds(), "PBES");
    world.send(
        &server,
        &[&answers("12")[..], &message(b'C', b"DISCARD ALL\0"), &answers("I")].concat(),
    );
    assert_eq!(client.kinds(), "12CZ");
    world.send(&client, &[bind(""), execute(), sync()].concat());
    assert_eq!(server.kinds(), "BES", "no Close before it");
}

#[test]
fn an_error_after_a_discard_all_takes_nothing_back() {
    let mut world = World::new(1);
    let client = world.client_of(LoopId(0), PoolMode::Transaction, &[("TimeZone", "Asia/Tokyo")]);
    let discard = [parse("", "DISCARD ALL"), bind(""), execute(), execute(), sync()].concat();
    world.send(&client, &discard);
    let server = world.servers[0].clone();
    assert_eq!(server.kinds(), "QPBES", "what follows waits");
    let told = [
        &answers("CI12")[..],
        &message(b'C', b"DISCARD ALL\0"),
        &parameter("TimeZone", "UTC"),
        &answers("I"),
    ];
    world.send(&server, &told.concat());
    assert_eq!(client.kinds(), "12C", "its own TimeZone has not changed");
    let sent = server.received();
    assert_eq!(kinds(&sent), "Q");
    assert!(String::from_utf8_lossy(&sent).contains("Asia/Tokyo"), "it is brought back");
    world.send(&server, &answers("CI"));
    assert_eq!(server.kinds(), "ES");
    world.send(&server, &answers("EI"));
    assert_eq!(client.kinds(), "EZ");
    world.send(&client, &query("SELECT 1"));
    assert_eq!(server.kinds(), "Q", "it is there");
}

#[test]
fn a_reset_in_a_later_pipeline_is_not_settled_by_the_answer_to_an_earlier_one() {
    let mut world = World::new(1);
    let client = world.client_of(LoopId(0), PoolMode::Transaction, &[("TimeZone", "Asia/Tokyo")]);
    world.send(&client, &query("SELECT 1"));
    let server = world.servers[0].clone();
    assert_eq!(server.kinds(), "QQ");
    let reset = [parse("", "SET TimeZone TO DEFAULT"), bind(""), execute(), sync()].concat();
    world.send(&client, &reset);
    world.send(&server, &answers("CICI"));
    assert_eq!(server.kinds(), "PBEPBECCS");
    world.send(&server, &answers("12C12C33I"));
    assert_eq!(client.kinds(), "CZ12CZ", "its own TimeZone has not changed");
}

#[test]
fn settings_changed_within_a_pipeline_leave_no_portal_behind() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &[parse("s", "SELECT 1"), sync()].concat());
    world.send(&world.servers[0].clone(), &answers("1I"));
    // Lost there, and to be prepared again under the settings of its Parse.
    let server = world.servers[0].clone();
    server.received();
    world.send(&client, &query("SET TimeZone TO 'Asia/Tokyo'"));
    world.send(
        &server,
        &[&answers("C")[..], &parameter("TimeZone", "Asia/Tokyo"), &answers("I")].concat(),
    );
    server.received();
    let other = world.client();
    world.send(&other, &query("DEALLOCATE ALL; SELECT 1"));
    world.send(&server, &answers("CICCI"));
    server.received();
    world.send(&client, &[bind("s"), execute(), sync()].concat());
    let sent = server.received();
    let portals = String::from_utf8_lossy(&sent).matches("Phawser_settings\0").count();
    assert_eq!(portals, 2, "{:?}", kinds(&sent));
}

#[test]
fn an_unnamed_parse_that_the_server_ignores_displaces_nothing() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &[parse("", "SELECT 'kept'"), bind(""), execute(), sync()].concat());
    let server = world.servers[0].clone();
    world.send(&server, &answers("12CI"));
    let wrong = [parse("x", "SELEC"), parse("", "SELECT 'ignored'"), bind(""), sync()].concat();
    world.send(&client, &wrong);
    world.send(&server, &answers("EI"));
    client.received();
    server.received();
    world.send(&client, &[bind(""), execute(), sync()].concat());
    let sent = server.received();
    assert_eq!(kinds(&sent), "PBES");
    assert!(String::from_utf8_lossy(&sent).contains("kept"));
}

#[test]
fn a_name_that_was_given_and_closed_after_an_error_does_not_exist() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &[parse("other", "SELECT 1"), sync()].concat());
    let server = world.servers[0].clone();
    world.send(&server, &answers("1I"));
    let wrong = [parse("", "SELEC"), parse("s", "SELECT 1"), close("s"), sync()].concat();
    world.send(&client, &wrong);
    world.send(&server, &answers("EI"));
    client.received();
    server.received();
    world.send(&client, &[bind("s"), sync()].concat());
    assert!(String::from_utf8_lossy(&server.received()).contains("\0s\0"), "so the server says");
}

#[test]
fn a_name_whose_parse_has_no_answer_yet_is_not_taken_for_given() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &[parse("", "SELEC"), parse("s", "SELECT 1"), sync()].concat());
    world.send(&client, &[bind("s"), execute(), sync()].concat());
    let server = world.servers[0].clone();
    assert_eq!(server.kinds(), "PPS");
    world.send(&server, &answers("EI"));
    assert_eq!(client.kinds(), "EZ");
    let sent = server.received();
    assert_eq!(kinds(&sent), "BES");
    assert!(String::from_utf8_lossy(&sent).contains("\0s\0"), "no name of ours is shown");
}

#[test]
fn a_statement_whose_preparing_may_fail_is_prepared_again_after_the_sync() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &[parse("s", "SELECT 1"), sync()].concat());
    let first = world.servers[0].clone();
    world.send(&first, &answers("1I"));
    // Another backend, which lacks it.
    world.close(&first);
    client.received();
    let wrong = [parse("", "SELEC"), bind("s"), execute(), sync()].concat();
    let right = [bind("s"), execute(), sync()].concat();
    world.send(&client, &[wrong, right].concat());
    let second = world.servers[1].clone();
    assert_eq!(second.kinds(), "PPBES", "the second Bind waits");
    world.send(&second, &answers("EI"));
    assert_eq!(second.kinds(), "PBES");
    world.send(&second, &answers("12CI"));
    assert_eq!(client.kinds(), "EZ2CZ");
    world.send(&client, &[bind("s"), execute(), sync()].concat());
    assert_eq!(second.kinds(), "BES");
}

#[test]
fn an_answer_of_ours_precedes_what_the_server_reports_after_it() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &[parse("s", "SELECT 1"), sync()].concat());
    let server = world.servers[0].clone();
    world.send(&server, &answers("1I"));
    client.received();
    let text = parse("", "SET TimeZone TO 'Asia/Tokyo'");
    world.send(&client, &[text, bind(""), execute(), close("s"), sync()].concat());
    let report = [&answers("12C")[..], &parameter("TimeZone", "Asia/Tokyo"), &answers("I")];
    world.send(&server, &report.concat());
    assert_eq!(client.kinds(), "12C3SZ");
}

#[test]
fn a_session_that_prepares_what_cannot_be_undone_leaves_its_backend_to_no_client_without_it() {
    let mut world = World::new(1);
    let client = world.client_of(LoopId(0), PoolMode::Session, &[]);
    let text = "SELECT set_config('my.tenant', $1, false)";
    world.send(&client, &[parse("", text), bind(""), execute(), sync()].concat());
    let server = world.servers[0].clone();
    world.send(&server, &answers("12CI"));
    world.close(&client);
    world.send(&server, &answers("CI"));
    let other = world.client();
    world.send(&other, &query("SELECT 1"));
    assert!(server.is_dropped());
}

#[test]
fn discard_all_does_not_part_a_client_from_what_it_cannot_discard() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &query("SELECT setseed(0.5)"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("CI"));
    world.send(&client, &query("DISCARD ALL"));
    world.send(&server, &answers("CI"));
    assert!(!server.is_dropped(), "its random() goes on, as on a direct connection");
    world.close(&client);
    assert!(server.is_dropped());
}

#[test]
fn an_error_after_a_deallocate_all_brings_no_name_back() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &[parse("s", "SELECT 1"), sync()].concat());
    let server = world.servers[0].clone();
    world.send(&server, &answers("1I"));
    world.send(&client, &query("DEALLOCATE ALL; SELECT 1/0"));
    world.send(&server, &[&message(b'C', b"DEALLOCATE ALL\0")[..], &answers("EI")].concat());
    server.received();
    world.send(&client, &[bind("s"), sync()].concat());
    assert!(String::from_utf8_lossy(&server.received()).contains("\0s\0"), "so the server says");
}

#[test]
fn an_idle_backend_that_says_goodbye_and_closes_at_once_serves_nobody() {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &query("SELECT 1"));
    let first = world.servers[0].clone();
    world.send(&first, &answers("CI"));
    client.received();
    world.say_and_close(&first, &message(b'N', b"SWARNING\0C57P02\0Mcrash\0\0"));
    assert_eq!(world.idle_backends(), 0);
    world.send(&client, &query("SELECT 2"));
    assert_eq!(world.servers[1].kinds(), "Q");
}

#[test]
fn a_query_after_a_pipeline_without_sync_does_not_end_what_a_cancel_ends() {
    let mut world = World::new(1);
    let (client, other) = (world.client(), world.client());
    world.send(&client, &query("SELECT 1"));
    let open = [parse("", "SELECT 2"), bind(""), execute()].concat();
    world.send(&other, &[open, query("SELECT 3"), query("SELECT 4")].concat());
    let cancel = || ToLoop::Cancel { process: PROCESS_ID_FIRST + 1, key: [9; 4].into() };
    world.deliver(LoopId(0), cancel());
    assert_eq!(other.kinds(), "E", "its end is still to come");
    world.send(&other, &[query("SELECT 5"), sync()].concat());
    assert_eq!(other.kinds(), "Z", "what follows an error is ignored up to the Sync");
    let third = world.client();
    let whole = [parse("", "SELECT 2"), bind(""), query("SELECT 3"), sync(), query("SELECT 4")];
    world.send(&third, &whole.concat());
    let key = ToLoop::Cancel { process: PROCESS_ID_FIRST + 2, key: [9; 4].into() };
    world.deliver(LoopId(0), key);
    assert_eq!(third.kinds(), "EZ", "one error up to the Sync");
}

#[test]
fn a_warning_at_parse_reaches_each_client_that_prepares_it() {
    let mut world = World::new(1);
    let text = "SELECT 'a\\tb'";
    for name in ["a", "b"] {
        let client = world.client();
        world.send(&client, &[parse(name, text), sync()].concat());
        let server = world.servers[0].clone();
        assert_eq!(server.kinds(), if name == "a" { "PS" } else { "CPS" });
        let notice = message(b'N', b"SWARNING\0\0");
        if name == "b" {
            world.send(&server, &answers("3"));
        }
        world.send(&server, &[notice, answers("1I")].concat());
        assert_eq!(client.kinds(), "N1Z");
    }
}

#[test]
fn a_discard_all_that_is_prepared_again_runs_nothing_before_it_in_its_pipeline() {
    let mut world = World::new(2);
    let client = world.client();
    let set = query("SET TimeZone TO 'Asia/Tokyo'");
    world.send(&client, &[parse("d", "DISCARD ALL"), sync()].concat());
    let server = world.servers[0].clone();
    world.send(&server, &answers("1I"));
    world.send(&client, &set);
    world
        .send(&server, &[answers("C"), parameter("TimeZone", "Asia/Tokyo"), answers("I")].concat());
    let other = world.client();
    world.send(&other, &query("BEGIN"));
    server.received();
    // On another backend, which lacks it, and under other settings than those of its Parse.
    world.send(&client, &[bind("d"), execute(), sync()].concat());
    let second = world.servers[1].clone();
    assert_eq!(
        second.kinds(),
        "QPBES",
        "25001 if anything but a Parse preceded it in its pipeline"
    );
}

#[test]
fn settings_around_a_parse_after_a_begin_in_its_pipeline_end_with_the_transaction() {
    let mut world = World::new(2);
    let client = world.client();
    world.send(&client, &[parse("s", "SELECT now()"), sync()].concat());
    let server = world.servers[0].clone();
    world.send(&server, &answers("1I"));
    world.send(&client, &query("SET TimeZone TO 'Asia/Tokyo'"));
    let told = [answers("C"), parameter("TimeZone", "Asia/Tokyo"), answers("I")].concat();
    world.send(&server, &told);
    let other = world.client();
    world.send(&other, &query("BEGIN"));
    let begin = [parse("", "BEGIN"), bind(""), execute()].concat();
    world.send(&client, &begin);
    let second = world.servers[1].clone();
    world.send(&second, &told);
    second.received();
    world.send(&client, &[bind("s"), execute(), sync()].concat());
    let sent = second.received();
    assert_eq!(kinds(&sent), "PBECCPPBECCBES");
    let text = String::from_utf8_lossy(&sent);
    for value in ["'UTC'", "pg_catalog.current_setting('hawser_before.s0')"] {
        let local = format!("pg_catalog.set_config('timezone',{value},true)");
        assert!(text.contains(&local), "{text}");
    }
}

/// It may have called set_config($1, ...), a function, or have set a LOCAL value.
#[test]
fn what_the_client_has_set_unseen_within_its_block_is_in_force_after_a_parse_of_ours() {
    let mut world = World::new(2);
    let client = world.client();
    world.send(&client, &[parse("s", "SELECT now()"), sync()].concat());
    let server = world.servers[0].clone();
    world.send(&server, &answers("1I"));
    world.send(&client, &query("SET TimeZone TO 'Asia/Tokyo'"));
    let told = [answers("C"), parameter("TimeZone", "Asia/Tokyo"), answers("I")].concat();
    world.send(&server, &told);
    let other = world.client();
    world.send(&other, &query("BEGIN"));
    world.send(&client, &query("BEGIN"));
    let second = world.servers[1].clone();
    world.send(&second, &[told, answers("CT")].concat());
    second.received();
    client.received();
    let run = [bind("s"), execute(), sync()].concat();
    world.send(&client, &run);
    let sent = second.received();
    assert_eq!(kinds(&sent), "PBECCPPBECCBES");
    let text = String::from_utf8_lossy(&sent);
    let keeps = "SELECT pg_catalog.set_config('hawser_before.s0',pg_catalog.current_setting('timezone',true),true) IS NULL,\
                 pg_catalog.set_config('timezone','UTC',true) IS NULL\0";
    let back = "SELECT pg_catalog.set_config('timezone',pg_catalog.current_setting('hawser_before.s0'),true) IS NULL\0";
    let at = [keeps, "SELECT now()\0", back].map(|text_of| text.find(text_of));
    assert!(at.is_sorted() && at[0].is_some(), "{text}");
    world.send(&second, &answers("12DC33112DC332CT"));
    assert_eq!(client.kinds(), "2CZ", "it gets no answer to what is around it");
}

#[test]
fn the_unnamed_statement_outlives_a_query_that_the_server_skips() {
    for (skipped, follows) in [(true, false), (false, false), (true, true)] {
        let mut world = World::new(1);
        let client = world.client();
        world.send(&client, &[parse("", "SELECT 'mine'"), sync()].concat());
        let server = world.servers[0].clone();
        world.send(&server, &answers("1I"));
        // [Bind that fails, Query, Sync], the Query skipped; or not, and then it takes it away.
        let sent = [bind("none"), query("SELECT 2"), sync()].concat();
        world.send(&client, &sent);
        if follows {
            // This one is not skipped.
            world.send(&client, &query("SELECT 3"));
        }
        world.send(&server, &answers(if skipped { "EI" } else { "2CII" }));
        world.send(&server, &answers(if follows { "CI" } else { "" }));
        client.received();
        server.received();
        world.send(&client, &[bind(""), execute(), sync()].concat());
        let sent = server.received();
        let there = String::from_utf8_lossy(&sent).contains("'mine'");
        assert_eq!(there, skipped && !follows, "{skipped} {follows}");
    }
}

#[test]
fn a_sync_of_ours_before_a_deallocate_all_does_not_settle_it() {
    let mut world = World::new(1);
    let (client, server) = world.client_with("s", "SELECT 1");
    world.send(&client, &query("BEGIN"));
    world.send(&server, &answers("CT"));
    world.send(&client, &query("SELECT 1/0"));
    world.send(&server, &answers("EF"));
    client.received();
    server.received();
    world.send(&client, &query("SELECT name FROM pg_prepared_statements; DEALLOCATE ALL"));
    assert_eq!(server.kinds(), "CSQ");
    world.send(&server, &answers("3FEF"));
    assert_eq!(client.kinds(), "EZ");
    world.send(&client, &[bind("s"), sync()].concat());
    assert_eq!(server.kinds(), "CPBS", "the name still stands for its statement");
}
