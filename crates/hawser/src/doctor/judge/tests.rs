//! Each trouble, and where it begins.

use super::*;
use crate::admin::tests::fake;
use crate::holders::{KeepingStatus, LineStatus};
use crate::status::RuleStatus;

/// A process with one pool at ease: 20 connections, 3 at work.
fn well() -> Status {
    let mut status = Status::of(fake().as_ref());
    (status.clients, status.clients_max) = (40, 1_000);
    (status.descriptors, status.descriptors_max) = (80, 10_000);
    let pool = &mut status.pools[0];
    (pool.database, pool.user) = ("app".to_owned(), "ann".to_owned());
    (pool.servers_active, pool.servers_idle, pool.servers_opening, pool.size) = (3, 17, 0, 20);
    (pool.waiting, pool.oldest_wait_us, pool.pinned, pool.lock_waits) = (0, 0, 0, 0);
    (pool.transactions, pool.transaction_us, pool.wait_us) = (10_000, 40_000_000, 1_000_000);
    (pool.paused, pool.last_error) = (false, None);
    let of = |database: &str, server: &str| ServerStatus {
        database: database.to_owned(),
        server: server.to_owned(),
        state: "up".to_owned(),
        role: None,
        lag_ms: None,
        reason: None,
    };
    status.servers = vec![of("app", "db1:5432"), of("app", "db2:5432")];
    status
}

/// After 10 s at ease: 2,500 transactions of 4 ms, so one at work on average.
fn later(before: &Status) -> Status {
    let mut now = before.clone();
    now.pools[0].transactions += 2_500;
    now.pools[0].transaction_us += 10_000_000;
    now
}

fn found(before: &Status, now: &Status) -> Vec<Finding> {
    judge(Some((before, 10.0)), now)
}

/// What is found, with the text of the first.
fn first(before: &Status, now: &Status) -> (Vec<Kind>, String) {
    let found = found(before, now);
    let kinds = found.iter().map(|finding| finding.kind).collect();
    (kinds, found.first().map_or_else(String::new, |one| format!("{} | {}", one.wrong, one.mend)))
}

/// Ten seconds later as many clients have waited on average as server connections are at work.
fn suffering(before: &Status) -> Status {
    let mut now = later(before);
    let pool = &mut now.pools[0];
    (pool.servers_active, pool.servers_idle, pool.waiting) = (20, 0, 9);
    pool.wait_us += 95_000_000;
    pool.transactions += 22_500;
    pool.transaction_us += 90_000_000;
    now
}

fn keeping(idle_us: Option<u64>, pins: &[&str]) -> KeepingStatus {
    KeepingStatus {
        database: "app".to_owned(),
        pool_user: "ann".to_owned(),
        user: "bob".to_owned(),
        address: "10.0.0.7".to_owned(),
        application_name: "report".to_owned(),
        id: 12,
        idle_in_transaction_us: idle_us,
        pins: pins.iter().map(|&pin| pin.to_owned()).collect(),
        pinned_us: 61_000_000,
    }
}

fn query(text: &str, calls: u64, errors: u64, time_us: u64) -> QueryStatus {
    QueryStatus {
        digest: format!("d-{text}"),
        database: "app".to_owned(),
        user: "bob".to_owned(),
        query: text.to_owned(),
        calls,
        errors,
        rows: 0,
        time_us,
        p99_us: 0,
        wait_us: 0,
    }
}

#[test]
fn what_is_well_has_no_finding() {
    let before = well();
    assert_eq!(found(&before, &later(&before)), []);
    assert_eq!(judge(None, &before), []);
}

#[test]
fn a_pool_is_too_small_where_clients_wait_as_long_as_others_work() {
    let before = well();
    let mut now = suffering(&before);
    let (kinds, text) = first(&before, &now);
    assert_eq!(kinds, [Kind::PoolTooSmall]);
    assert_eq!(
        text,
        "pool app/ann is too small: 9.5 clients wait for 3.80 ms each while 10.0 transactions are at work, \
         4.00 ms each; 20 server connections with pool_size 20 | Set pool_size = 30 for database app. If its \
         server's CPU is busy, a larger pool does not help: shorten the transactions."
    );
    // At most twice as many at a time.
    now.pools[0].wait_us += 900_000_000;
    assert!(first(&before, &now).1.contains("Set pool_size = 40 "));
    // Another limit than its size.
    now.pools[0].servers_active = 5;
    assert!(first(&before, &now).1.contains("Another limit than pool_size keeps it at 5"));
    // On both sides of half of the time at work.
    let mut now = suffering(&before);
    now.pools[0].wait_us = before.pools[0].wait_us + 49_999_999;
    assert_eq!(found(&before, &now), []);
    now.pools[0].wait_us += 1;
    assert_eq!(first(&before, &now).0, [Kind::PoolTooSmall]);
    // None has been served yet, and the first has waited for long.
    let mut now = before.clone();
    (now.pools[0].waiting, now.pools[0].oldest_wait_us) = (1, 999_999);
    (now.pools[0].servers_active, now.pools[0].servers_idle) = (20, 0);
    assert_eq!(judge(None, &now), []);
    now.pools[0].oldest_wait_us = 1_000_000;
    assert_eq!(judge(None, &now)[0].kind, Kind::PoolTooSmall);
}

#[test]
fn clients_idle_in_transaction_are_named_and_are_the_cause_where_others_wait() {
    let before = well();
    let mut now = suffering(&before);
    now.keeping = vec![keeping(Some(34_000_000), &[]), keeping(Some(2_000_000), &[])];
    let (kinds, text) = first(&before, &now);
    assert_eq!(kinds, [Kind::IdleInTransaction]);
    assert!(text.starts_with(
        "clients of app/ann idle in a transaction: 2, on 2 of 20 server connections, and 9 clients wait; the \
         longest, bob from 10.0.0.7 (application_name \"report\", id 12), for 34.0 s | "
    ));
    assert!(
        text.contains("KILL_CLIENT 12 ") && text.contains("idle_transaction_timeout"),
        "{text}"
    );
    let mut now = later(&before);
    now.keeping = vec![keeping(Some(29_999_999), &[])];
    assert_eq!(found(&before, &now), [], "nobody waits");
    now.keeping[0].idle_in_transaction_us = Some(30_000_000);
    let calm = found(&before, &now);
    assert_eq!((calm[0].kind, calm[0].urgent), (Kind::IdleInTransaction, false));
    now.keeping[0].pool_user = "other".to_owned();
    assert_eq!(found(&before, &now), [], "of another pool");
}

#[test]
fn pins_are_counted_by_reason_from_half_of_the_pool_or_a_quarter_where_clients_wait() {
    let before = well();
    let pinned = |now: &mut Status, count| {
        now.pools[0].pinned = count;
        now.keeping = vec![
            keeping(None, &["temporary_object"]),
            keeping(None, &["temporary_object", "advisory_lock"]),
        ];
    };
    let mut now = later(&before);
    pinned(&mut now, 9);
    assert_eq!(found(&before, &now), []);
    pinned(&mut now, 10);
    let (kinds, text) = first(&before, &now);
    assert_eq!(kinds, [Kind::Pinned]);
    let counts = "pinned clients of app/ann: 10, with pool_size 20 (2 temporary object, 1 advisory lock); the ";
    assert!(text.starts_with(counts), "{text}");
    assert!(text.contains("longest, bob from 10.0.0.7") && text.contains("for 61.0 s"), "{text}");
    let mut now = suffering(&before);
    pinned(&mut now, 4);
    assert_eq!(first(&before, &now).0, [Kind::PoolTooSmall]);
    pinned(&mut now, 5);
    assert_eq!(first(&before, &now).0, [Kind::Pinned]);
}

#[test]
fn locks_and_a_pause_are_no_matter_of_size() {
    let before = well();
    let mut now = suffering(&before);
    now.pools[0].lock_waits = 7;
    let (kinds, text) = first(&before, &now);
    assert_eq!(kinds, [Kind::LockWaits]);
    assert!(
        text.starts_with("7 of 20 server connections of app/ann wait for locks, and 9 clients")
    );
    now.pools[0].paused = true;
    now.pools[0].oldest_wait_us = 5_000_000;
    let (kinds, text) = first(&before, &now);
    assert_eq!(kinds, [Kind::Paused]);
    assert!(
        text.starts_with("app/ann is paused, and 9 clients wait, the first for 5.0 s | RESUME app")
    );
}

#[test]
fn a_statement_that_takes_most_of_the_time_goes_before_the_size() {
    let mut before = well();
    before.queries =
        vec![query("select slow", 10, 0, 10_000_000), query("select fast", 1_000, 0, 0)];
    let mut now = suffering(&before);
    now.queries =
        vec![query("select slow", 60, 0, 70_000_000), query("select fast", 41_000, 0, 40_000_000)];
    let (kinds, text) = first(&before, &now);
    assert_eq!(kinds, [Kind::HeavyStatement]);
    assert!(text.starts_with(
        "60 % of the time of database app goes to \"select slow\" of bob (digest d-select slow): 1.2 s each, \
         the others 1.00 ms, and 9 clients wait | "
    ));
    assert!(text.contains("RULE ADD heavy DIGEST d-select slow MAX_RUNNING 5 FOR '1h'"), "{text}");
    // Less than half of the time, or less than ten times the others: only the sum is too much.
    now.queries[1].time_us = 61_000_000;
    assert_eq!(first(&before, &now).0, [Kind::PoolTooSmall]);
    now.queries[1] = query("select fast", 1_300, 0, 40_000_000);
    assert_eq!(first(&before, &now).0, [Kind::PoolTooSmall]);
}

#[test]
fn transactions_that_take_longer_than_before_are_the_servers() {
    let before = well(); // 4 ms each
    let mut now = later(&before);
    now.pools[0].transaction_us = before.pools[0].transaction_us + 2_500 * 11_999;
    assert_eq!(found(&before, &now), []);
    now.pools[0].transaction_us += 2_500;
    let slow = found(&before, &now);
    assert_eq!((slow[0].kind, slow[0].urgent, slow.len()), (Kind::SlowServer, false, 1));
    let text = "transactions of app/ann take 12.0 ms each, 4.00 ms on average since the start";
    assert!(slow[0].wrong.starts_with(text), "{}", slow[0].wrong);
    let mut young = before.clone();
    (young.pools[0].transactions, young.pools[0].transaction_us) = (999, 3_996_000);
    let mut now = young.clone();
    now.pools[0].transactions += 100;
    now.pools[0].transaction_us += 100 * 50_000;
    assert_eq!(found(&young, &now), [], "too little is known");
}

#[test]
fn a_server_that_is_down_comes_first_and_explains_its_pools() {
    let before = well();
    let mut now = suffering(&before);
    now.errors.insert("08".to_owned(), 50);
    now.pools[0].last_error = Some("connection refused".to_owned());
    now.servers[0].state = "down".to_owned();
    now.servers[0].reason = Some("connection refused".to_owned());
    let spared = found(&before, &now);
    assert_eq!(
        spared.iter().map(|one| one.kind).collect::<Vec<_>>(),
        [Kind::Errors, Kind::ServerDown]
    );
    assert!(!spared[1].urgent, "another one serves");
    now.servers[1] = now.servers[0].clone();
    let (kinds, text) = first(&before, &now);
    assert_eq!(kinds, [Kind::ServerDown, Kind::Errors]);
    assert!(
        text.starts_with(
            "server db1:5432 of database app, app is down: connection refused | Start"
        )
    );
    let mut now = suffering(&before);
    now.pools[0].last_error = Some("password authentication failed".to_owned());
    let (kinds, text) = first(&before, &now);
    assert_eq!(kinds, [Kind::NoConnection]);
    assert!(text.starts_with("no server connection can be opened for app/ann: password"), "{text}");
    let mut now = later(&before);
    now.servers[1].state = "left".to_owned();
    now.servers[1].reason = Some("it lags".to_owned());
    assert_eq!(first(&before, &now).0, [Kind::ServerLeft]);
}

#[test]
fn limits_are_nearly_reached_from_nine_tenths_on() {
    let before = well();
    let mut now = later(&before);
    (now.clients, now.descriptors) = (899, 8_999);
    assert_eq!(found(&before, &now), []);
    (now.clients, now.descriptors) = (900, 9_000);
    let (kinds, text) = first(&before, &now);
    assert_eq!(kinds, [Kind::Clients, Kind::Descriptors]);
    assert!(
        text.starts_with("900 of 1,000 clients") && text.contains("max_client_conn = 2000"),
        "{text}"
    );
    assert!(!found(&before, &now)[0].urgent);
    now.clients = 1_000;
    assert!(found(&before, &now)[0].urgent);
    let mut now = later(&before);
    now.shared_limits = vec![SharedLimitStatus {
        limit: "max_db_connections of app".to_owned(),
        most: 50,
        used: 20,
        held: 20,
        wanted: 4,
        unsure: 0,
    }];
    let (kinds, text) = first(&before, &now);
    assert_eq!(kinds, [Kind::SharedLimit]);
    assert!(text.contains("holds 20 of 50, uses 20 and lacks 4"), "{text}");
}

#[test]
fn errors_rise_from_three_on_and_statements_fail_from_ten_and_a_tenth() {
    let mut before = well();
    before.errors.insert("53".to_owned(), 100);
    before.queries = vec![query("select 1", 1_000, 500, 0)];
    let mut now = later(&before);
    now.errors.insert("53".to_owned(), 102);
    assert_eq!(found(&before, &now), [], "old ones do not count");
    now.errors.insert("53".to_owned(), 103);
    let (kinds, text) = first(&before, &now);
    assert_eq!(kinds, [Kind::Errors]);
    assert!(
        text.starts_with("Hawser gave clients 3 errors in 10 s: limit reached (class 53)"),
        "{text}"
    );
    let mut now = later(&before);
    now.queries = vec![query("select 1", 1_100, 509, 0)];
    assert_eq!(found(&before, &now), []);
    now.queries = vec![query("select 1", 1_101, 510, 0)];
    assert_eq!(found(&before, &now), []);
    now.queries = vec![query("select 1", 1_100, 510, 0)];
    let (kinds, text) = first(&before, &now);
    assert_eq!(kinds, [Kind::FailingStatement]);
    assert!(text.starts_with("10 of 100 calls of \"select 1\" of bob"), "{text}");
    // Of another process nothing is known.
    now.pid += 1;
    assert_eq!(found(&before, &now), []);
}

#[test]
fn a_rule_that_refuses_half_of_what_it_matches_is_named() {
    let mut before = well();
    let rule =
        |matches, refused| RuleStatus { name: "night".to_owned(), by_hand: true, matches, refused };
    before.rules = vec![rule(100, 100)];
    let mut now = later(&before);
    for (matches, refused) in [(109, 109), (121, 110)] {
        now.rules = vec![rule(matches, refused)];
        assert_eq!(found(&before, &now), [], "{matches} {refused}");
    }
    now.rules = vec![rule(120, 110)];
    let (kinds, text) = first(&before, &now);
    assert_eq!(kinds, [Kind::RuleRefuses]);
    assert!(text.starts_with("rule night refused 10 of the 20 statements"), "{text}");
    assert!(text.contains("RULE DROP night"), "{text}");
}

#[test]
fn lines_are_slow_by_loss_window_buffer_or_distance() {
    let line = |to_server, change: fn(&mut LineStatus)| {
        let mut status = well();
        let mut line = LineStatus {
            peer: if to_server { "db1:5432" } else { "192.0.2.0/24" }.to_owned(),
            to_server,
            connections: 3,
            rtt_us: 220_000,
            rtt_min_us: 217_000,
            segments_sent: 10_000,
            busy_us: 5_000_000,
            algorithm: "cubic".to_owned(),
            ..LineStatus::default()
        };
        change(&mut line);
        status.lines = vec![line];
        first(&status, &later(&status))
    };
    assert_eq!(line(false, |_| ()).0, []);
    assert_eq!(line(false, |line| line.segments_again = 9).0, []);
    let (kinds, text) = line(false, |line| line.segments_again = 10);
    assert_eq!(kinds, [Kind::LossyLine]);
    assert!(text.starts_with(
        "the line to clients of 192.0.2.0/24 is lossy: 0.10 % of 10,000 segments were sent again, 217 ms away \
         by cubic | congestion = \"auto\" in [listen]"
    ));
    let bbr: fn(&mut LineStatus) =
        |line| (line.segments_again, line.algorithm) = (99, "bbr".to_owned());
    assert_eq!(line(false, bbr).0, [], "it goes by another measure");
    assert_eq!(line(false, |line| line.receiver_limited_us = 1_490_000).0, []);
    let (kinds, text) = line(false, |line| line.receiver_limited_us = 1_500_000);
    assert_eq!(kinds, [Kind::ReceiverWindow]);
    assert!(text.contains("30 % of 5.0 s at work") && text.contains("hawser cc apply"), "{text}");
    assert_eq!(line(false, |line| line.buffer_limited_us = 1_500_000).0, [Kind::SendBuffer]);
    let (kinds, text) = line(true, |line| line.segments_again = 10);
    assert_eq!(kinds, [Kind::LossyLine, Kind::FarServer]);
    assert!(text.contains("servers = [\"db1:5432?congestion=auto\"]"), "{text}");
    assert_eq!(line(true, |line| line.rtt_min_us = 10_000).0, [Kind::FarServer]);
    let near: fn(&mut LineStatus) = |line| (line.rtt_min_us, line.segments_again) = (9_999, 10_000);
    assert_eq!(line(true, near).0, [], "near");
}

#[test]
fn what_clients_wait_for_comes_first_and_their_names_move_no_cursor() {
    let before = well();
    let mut now = suffering(&before);
    now.clients = 950;
    now.pools.push(before.pools[0].clone());
    (now.pools[1].user, now.pools[1].paused) = ("\x1b[2J".to_owned(), true);
    (now.pools[1].waiting, now.pools[1].oldest_wait_us) = (1, 1);
    let all = found(&before, &now);
    let kinds: Vec<_> = all.iter().map(|finding| finding.kind).collect();
    assert_eq!(kinds, [Kind::Paused, Kind::PoolTooSmall, Kind::Clients]);
    assert!(!all[0].wrong.contains('\x1b'), "{}", all[0].wrong);
}
