//! Rules of the operator: what is refused leaves the protocol in order, in each lane.

use std::sync::Arc;
use std::time::Duration;

use super::harness::*;
use super::lanes::{Rng, Server, unit};
use crate::ids::LoopId;
use crate::parts::rules::kind::Kind;
use crate::parts::rules::{Counts, Does, Rule, RuleSet, When};
use crate::relay::client_info::PoolMode;
use crate::relay::message::ToLoop;
use crate::wire::error::{SqlState, field};
use crate::wire::frame::{self, Framed, HEADER_BYTES};

fn rule(when: When, does: Does) -> Arc<Rule> {
    Arc::new(Rule { name: "night".into(), when, does, expires: None, counts: Counts::default() })
}

fn writes() -> When {
    When { kind: Some(Kind::Write), ..When::default() }
}

fn refuses() -> Does {
    Does { refuses: Some(("not now".into(), SqlState::QUERY_CANCELED)), ..Does::default() }
}

fn put_in_force(world: &mut World, rules: &[&Arc<Rule>]) {
    let set = Arc::new(RuleSet::new(rules.iter().map(|rule| Arc::clone(rule)).collect()));
    world.deliver(LoopId(0), ToLoop::Rules(set));
}

/// Kinds of messages, with the status of each ReadyForQuery.
fn shape(mut bytes: &[u8]) -> String {
    let mut shape = String::new();
    while let Framed::Header(header) = frame::header(bytes) {
        let (message, rest) = bytes.split_at(header.total());
        let is_ready = header.kind == b'Z';
        shape.push(char::from(if is_ready { message[HEADER_BYTES] } else { header.kind }));
        bytes = rest;
    }
    shape
}

/// The message of the first error.
fn error(mut bytes: &[u8]) -> String {
    while let Framed::Header(header) = frame::header(bytes) {
        let (message, rest) = bytes.split_at(header.total());
        if header.kind == b'E' {
            let text = field(&message[HEADER_BYTES..], b'M').expect("a message");
            return String::from_utf8_lossy(text).into_owned();
        }
        bytes = rest;
    }
    panic!("no error")
}

/// A client sees what a server of its own would show it that fails at the same texts.
#[test]
fn what_is_refused_fails_as_on_a_server_that_refuses_it() {
    let refused = rule(writes(), refuses());
    for seed in 1..=100u64 {
        let mut rng = Rng(seed << 32 | 0x1a2b_3c4d);
        let mut worlds = [World::new(1), World::new(1)];
        let clients = worlds.each_mut().map(World::client);
        put_in_force(&mut worlds[0], &[&refused]);
        let mut servers = [Server::new(), Server::new().refusing_writes()];
        for step in 0..40 {
            let mut sent = unit(&mut rng);
            if sent.starts_with(&bind("")) {
                continue; // a server's unnamed statement is gone after a Parse that it refuses
            }
            let split = if rng.below(4) == 0 { rng.below(sent.len()) } else { sent.len() };
            let rest = sent.split_off(split);
            for part in [sent, rest].iter().filter(|part| !part.is_empty()) {
                let [ruled, direct] = [0, 1].map(|of| {
                    let (world, client) = (&mut worlds[of], &clients[of]);
                    world.send(client, part);
                    while let Some(server) = world.servers.first().cloned() {
                        let got = server.received();
                        if got.is_empty() {
                            break;
                        }
                        let answer = servers[of].answer(&got);
                        world.send(&server, &answer);
                    }
                    shape(&client.received())
                });
                assert_eq!(ruled, direct, "seed {seed}, step {step}");
            }
        }
    }
    assert!(refused.counts.refused() > 400, "{:?}", refused.counts);
}

#[test]
fn a_refusal_takes_no_server_connection_from_a_client_that_has_none() {
    let mut world = World::new(1);
    let client = world.client();
    let refused = rule(writes(), refuses());
    put_in_force(&mut world, &[&refused]);
    world.send(&client, &query("DELETE FROM t"));
    let got = client.received();
    assert_eq!((shape(&got), error(&got)), ("EI".into(), "not now".into()));
    world.send(&client, &[parse("", "DELETE FROM t"), bind(""), execute(), sync()].concat());
    assert_eq!(shape(&client.received()), "EI");
    let long = query(&format!("DELETE FROM t WHERE a = '{}'", "x".repeat(100_000)));
    world.send(&client, &long[..50_000]);
    world.send(&client, &long[50_000..]);
    assert_eq!(shape(&client.received()), "EI");
    assert!(world.servers.is_empty());
    assert_eq!((refused.counts.matches(), refused.counts.refused()), (3, 3));
    put_in_force(&mut world, &[]);
    world.send(&client, &query("DELETE FROM t"));
    world.send(&world.servers[0].clone(), &answers("CI"));
    assert_eq!(shape(&client.received()), "CI");
}

#[test]
fn a_refusal_in_a_block_fails_the_block_and_its_end_is_never_refused() {
    let mut world = World::new(1);
    let client = world.client();
    put_in_force(&mut world, &[&rule(When::default(), refuses())]);
    world.send(&client, &query("BEGIN"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("CT"));
    server.received();
    client.received();
    world.send(&client, &[query("SELECT 1"), query("ROLLBACK")].concat());
    assert_eq!(server.kinds(), "CBSQ");
    world.send(&server, &answers("3EFCI"));
    let got = client.received();
    assert_eq!((shape(&got), error(&got)), ("EECI".into(), "not now".into()));
    assert_eq!(world.idle_backends(), 1);
}

#[test]
fn a_statement_that_was_prepared_before_the_rule_is_refused_at_its_bind() {
    let mut world = World::new(1);
    let (client, server) = world.client_with("s", "UPDATE t SET a = 1");
    put_in_force(&mut world, &[&rule(writes(), refuses())]);
    world.send(&client, &[bind("s"), execute(), sync()].concat());
    assert_eq!(shape(&client.received()), "EI");
    world.send(&client, &query("BEGIN"));
    world.send(&server, &answers("CT"));
    server.received();
    client.received();
    world.send(&client, &[bind("s"), execute(), sync()].concat());
    assert_eq!(server.kinds(), "CBES");
    world.send(&server, &answers("3EF"));
    let got = client.received();
    assert_eq!((shape(&got), error(&got)), ("EE".into(), "not now".into()));
}

#[test]
fn a_query_that_waits_for_an_earlier_answer_is_refused_all_the_same() {
    let mut world = World::new(1);
    let client = world.client();
    put_in_force(&mut world, &[&rule(writes(), refuses())]);
    let both = [query("SET a.b = 1"), query("RESET a.b"), query("DELETE FROM t")].concat();
    world.send(&client, &both);
    let server = world.servers[0].clone();
    let mut seen = String::new();
    for _ in 0..4 {
        let kinds = server.kinds();
        let answer: String = kinds
            .chars()
            .map(|kind| match kind {
                'Q' => "CI",
                'C' => "3",
                'B' => "E",
                _ => "I",
            })
            .collect();
        seen += &kinds;
        world.send(&server, &answers(&answer));
    }
    assert!(!seen.is_empty());
    let got = shape(&client.received());
    assert_eq!(got.matches('E').count(), 1, "{got}");
    assert_eq!(got.matches('I').count(), 3, "{got}");
}

#[test]
fn as_many_run_as_may_and_a_place_is_free_again_when_one_ends_or_leaves() {
    let mut world = World::new(3);
    let clients = [world.client(), world.client(), world.client()];
    let bound = rule(writes(), Does { running_max: Some(1), ..Does::default() });
    put_in_force(&mut world, &[&bound]);
    world.send(&clients[0], &query("DELETE FROM t"));
    world.send(&clients[1], &query("DELETE FROM t"));
    let got = clients[1].received();
    assert_eq!(shape(&got), "EI");
    assert!(error(&got).contains("too many statements"), "{}", error(&got));
    world.send(&clients[1], &query("SELECT 1"));
    assert_eq!(bound.counts.running(), 1);
    world.send(&world.servers[0].clone(), &answers("CI"));
    assert_eq!(bound.counts.running(), 0);
    world.send(&clients[2], &[parse("", "DELETE FROM t"), bind(""), execute(), sync()].concat());
    assert_eq!(bound.counts.running(), 1);
    world.close(&clients[2]);
    assert_eq!(bound.counts.running(), 0);
    assert_eq!((bound.counts.matches(), bound.counts.refused()), (3, 1));
}

#[test]
fn what_runs_for_too_long_is_cancelled_once_and_its_error_names_the_rule() {
    let mut world = World::new(1);
    let client = world.client();
    let time_max = Some(Duration::from_secs(2));
    let bound = rule(writes(), Does { time_max, ..Does::default() });
    put_in_force(&mut world, &[&bound]);
    world.send(&client, &query("DELETE FROM t"));
    world.wait_ms(1_900);
    assert!(world.asked.cancels.is_empty());
    world.wait_ms(300);
    assert_eq!(world.asked.cancels.len(), 1);
    world.wait_ms(5_000);
    assert_eq!(world.asked.cancels.len(), 1);
    let cancelled = b"SERROR\0VERROR\0C57014\0Mcanceling statement due to user request\0\0";
    let server = world.servers[0].clone();
    world.send(&server, &[message(b'E', cancelled), answers("I")].concat());
    let got = client.received();
    assert_eq!(shape(&got), "EI");
    assert!(error(&got).contains("rule \"night\""), "{}", error(&got));
    assert_eq!(bound.counts.cut_off(), 1);
    assert!(!client.is_dropped());
}

#[test]
fn only_clients_that_a_rule_may_concern_leave_the_plain_lane() {
    let mut world = World::new(1);
    let start = &[("application_name", "report")];
    let named = world.client_of(LoopId(0), PoolMode::Transaction, start);
    let other = world.client();
    let application_name = Some("report".into());
    let when = When { application_name, kind: Some(Kind::Write), ..When::default() };
    put_in_force(&mut world, &[&rule(when, refuses())]);
    let runs = |world: &mut World, client: &Peer| {
        let before = world.plain_pipelines();
        world.send(client, &query("SELECT 1"));
        let server = world.servers[0].clone();
        let sent = server.kinds().len();
        world.send(&server, &answers(&"CI".repeat(sent)));
        assert!(shape(&client.received()).ends_with("CI"));
        world.plain_pipelines() - before
    };
    assert_eq!(runs(&mut world, &other), 1);
    runs(&mut world, &named);
    assert_eq!(runs(&mut world, &named), 0);
    world.send(&other, &query("SET application_name = 'report'"));
    let server = world.servers[0].clone();
    let kinds = server.kinds();
    assert!(kinds.ends_with('Q'), "{kinds}");
    let changed = [parameter("application_name", "report"), answers("CI")].concat();
    world.send(&server, &[answers(&"CI".repeat(kinds.len() - 1)), changed].concat());
    other.received();
    world.send(&other, &query("DELETE FROM t"));
    assert_eq!(shape(&other.received()), "EI");
}
