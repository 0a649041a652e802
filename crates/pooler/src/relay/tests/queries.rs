//! What is counted of queries: each that ends, once, for its statement.

use std::sync::mpsc;
use std::time::Duration;

use crate::ids::LoopId;
use crate::queries::table::QueryRow;
use crate::queries::tracking::Tracking;
use crate::relay::client_info::PoolMode;
use crate::relay::message::{Listed, PageRequest, ToLoop};
use crate::relay::tests::harness::*;

fn world(size: u32) -> World {
    let mut world = World::new(size);
    let tracking = Tracking { is_on: true, keeps_examples: true, has_spans: false };
    world.change_settings(|settings| settings.tracking = tracking);
    world
}

fn rows(world: &mut World) -> (Vec<QueryRow>, u64) {
    let (reply, page) = mpsc::channel();
    let request = PageRequest { listed: Listed::Queries, addresses: false, from: 0 };
    let reply = Box::new(move |page| reply.send(page).unwrap());
    world.deliver(LoopId(0), ToLoop::Page(request, reply));
    let page = page.recv().unwrap();
    let other = page.other_queries.expect("the only page").0;
    (page.queries, other.calls)
}

/// Each text with its calls, errors and rows, by text; and the calls of others.
fn counts(world: &mut World) -> (Vec<(String, [u64; 3])>, u64) {
    let (rows, other) = rows(world);
    let count = |row: &QueryRow| {
        let counts = &row.counts;
        (row.text.to_string(), [counts.calls, counts.errors, counts.rows])
    };
    let mut counts: Vec<_> = rows.iter().map(count).filter(|(_, [calls, ..])| *calls > 0).collect();
    counts.sort();
    (counts, other)
}

fn only(world: &mut World, text: &str, expected: [u64; 3]) {
    assert_eq!(counts(world), (vec![(text.to_owned(), expected)], 0));
}

/// Both lanes, which must count the same.
fn in_both_lanes(test: impl Fn(World)) {
    test(world(1));
    test(world(1).without_plain_lane());
}

#[test]
fn a_query_counts_once_with_its_rows_bytes_time_and_wait() {
    in_both_lanes(|mut world| {
        let (client, other) = (world.client(), world.client());
        world.send(&client, &query("SELECT a FROM some_table WHERE a = 1"));
        world.send(&other, &query("SELECT a FROM some_table WHERE a = 'two'")); // waits
        world.wait_ms(200);
        let server = world.servers[0].clone();
        world.send(&server, &answers("DCI"));
        world.wait_ms(100);
        world.send(&server, &answers("DCI"));
        only(&mut world, "select a from some_table where a = ?", [2, 0, 2]);
        let (rows, _) = rows(&mut world);
        let counts = &rows[0].counts;
        assert_eq!((counts.time_us, counts.wait_us), (300_000, 200_000));
        let answer = answers("DC").len() as u64;
        assert!((answer..=2 * answer + 12).contains(&(counts.bytes / 2)), "{}", counts.bytes);
        assert!(counts.times.per_mille(990).abs_diff(200_000) < 25_000);
        assert_eq!(rows[0].example.as_deref(), Some("SELECT a FROM some_table WHERE a = 1"));
    });
}

#[test]
fn a_named_statement_counts_at_each_execution() {
    in_both_lanes(|mut world| {
        let (client, server) = world.client_with("s", "SELECT $1");
        for _ in 0..3 {
            world.send(&client, &[bind("s"), execute(), sync()].concat());
            world.send(&server, &answers("2DCI"));
        }
        only(&mut world, "select ?", [3, 0, 3]);
    });
}

#[test]
fn each_execution_of_a_pipeline_counts_and_those_after_an_error_do_not() {
    in_both_lanes(|mut world| {
        let client = world.client();
        let one = |text| [parse("", text), bind(""), execute()].concat();
        let pipeline = [one("SELECT a"), one("SELECT b"), one("SELECT c"), sync()].concat();
        world.send(&client, &pipeline);
        let server = world.servers[0].clone();
        world.send(&server, &answers("12C12EI"));
        let expected = vec![("select a".to_owned(), [1, 0, 1]), ("select b".to_owned(), [1, 1, 0])];
        assert_eq!(counts(&mut world), (expected, 0));
    });
}

#[test]
fn an_error_counts_for_its_query_whatever_message_it_answers() {
    for script in ["EI", "1EI", "12EI"] {
        in_both_lanes(|mut world| {
            let client = world.client();
            world.send(&client, &[parse("", "SELECT a"), bind(""), execute(), sync()].concat());
            world.send(&world.servers[0].clone(), &answers(script));
            only(&mut world, "select a", [1, 1, 0]);
        });
    }
    in_both_lanes(|mut world| {
        let client = world.client();
        world.send(&client, &query("SELECT a"));
        world.send(&world.servers[0].clone(), &answers("DEI"));
        only(&mut world, "select a", [1, 1, 0]);
    });
}

#[test]
fn a_text_of_several_statements_is_one_query() {
    in_both_lanes(|mut world| {
        let client = world.client();
        world.send(&client, &query("SELECT a; SELECT b"));
        let server = world.servers[0].clone();
        world.send(&server, &answers("C"));
        world.send(&server, &answers("CI"));
        only(&mut world, "select a; select b", [1, 0, 2]);
    });
}

#[test]
fn pipelined_queries_count_each_for_its_own_time() {
    in_both_lanes(|mut world| {
        let client = world.client();
        world.send(&client, &[query("SELECT a"), query("SELECT b")].concat());
        let server = world.servers[0].clone();
        world.wait_ms(50);
        world.send(&server, &answers("CI"));
        world.wait_ms(100);
        world.send(&server, &answers("CI"));
        let (rows, _) = rows(&mut world);
        let mut times: Vec<_> = rows.iter().map(|row| row.counts.time_us).collect();
        times.sort_unstable();
        assert_eq!(times, [50_000, 100_000]);
    });
}

#[test]
fn a_query_whose_client_has_left_counts_when_it_ends() {
    in_both_lanes(|mut world| {
        let client = world.client();
        world.send(&client, &query("SELECT a"));
        let server = world.servers[0].clone();
        world.wait_ms(100);
        world.close(&client);
        world.wait_ms(100);
        world.send(&server, &answers("EI"));
        only(&mut world, "select a", [1, 1, 0]);
        let (rows, _) = rows(&mut world);
        assert_eq!(rows[0].counts.time_us, 200_000);
    });
}

#[test]
fn a_query_whose_server_is_lost_has_failed() {
    in_both_lanes(|mut world| {
        let client = world.client();
        world.send(&client, &query("SELECT a"));
        world.wait_ms(100);
        world.close(&world.servers[0].clone());
        only(&mut world, "select a", [1, 1, 0]);
        let (rows, _) = rows(&mut world);
        assert_eq!(rows[0].counts.time_us, 100_000);
    });
}

#[test]
fn in_session_mode_statements_are_known_by_their_clients_names() {
    let mut world = world(1);
    let client = world.client_of(LoopId(0), PoolMode::Session, &[]);
    world.send(&client, &[parse("s", "SELECT a"), sync()].concat());
    let server = world.servers[0].clone();
    world.send(&server, &answers("1I"));
    world.send(&client, &[bind("s"), execute(), sync()].concat());
    world.send(&server, &answers("2CI"));
    world.send(&client, &[bind("unknown"), execute(), sync()].concat());
    world.send(&server, &answers("EI"));
    assert_eq!(counts(&mut world), (vec![("select a".to_owned(), [1, 0, 1])], 1));
}

#[test]
fn what_hawser_sends_itself_counts_nothing() {
    let mut world = world(1);
    let client = world.client();
    world.send(&client, &query("SET datestyle TO 'German'"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("CI"));
    let other = world.client();
    world.send(&other, &query("SELECT a"));
    for _ in 0..3 {
        world.send(&server, &answers("CI"));
    }
    let (counts, _) = counts(&mut world);
    let calls: u64 = counts.iter().map(|(_, [calls, ..])| calls).sum();
    assert_eq!(calls, 2, "{counts:?}");
}

#[test]
fn turned_off_nothing_is_kept() {
    let mut world = world(1);
    let client = world.client();
    world.send(&client, &query("SELECT a"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("CI"));
    only(&mut world, "select a", [1, 0, 1]);
    world.change_settings(|settings| settings.tracking = Tracking::default());
    world.wait_ms(u64::try_from(Duration::from_secs(2).as_millis()).unwrap());
    world.send(&client, &query("SELECT a"));
    world.send(&server, &answers("CI"));
    assert_eq!(counts(&mut world), (vec![], 0));
}
