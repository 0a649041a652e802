//! Statements that need a database for themselves wait until it has been emptied of connections.

use std::sync::Arc;

use crate::ids::LoopId;
use crate::relay::client_info::PoolMode;
use crate::relay::message::ToLoop;
use crate::relay::tests::harness::*;

/// The value that a host gives, which keeps connections from being opened.
fn kept() -> (Arc<()>, std::sync::Weak<()>) {
    let kept = Arc::new(());
    let weak = Arc::downgrade(&kept);
    (kept, weak)
}

fn pipelines() -> [Vec<u8>; 3] {
    let text = "DROP DATABASE IF EXISTS \"A b\"";
    let unnamed = [parse("", text), bind(""), execute(), sync()].concat();
    let named = [parse("s", text), bind("s"), execute(), sync()].concat();
    [query(text), unnamed, named]
}

#[test]
fn it_is_sent_once_the_database_is_empty_which_lasts_until_it_is_answered() {
    for mode in [PoolMode::Transaction, PoolMode::Session] {
        for (at, pipeline) in pipelines().into_iter().enumerate() {
            let mut world = World::new(1);
            world.empties_databases(false);
            let client = world.client_of(LoopId(0), mode, &[]);
            client.received();
            world.send(&client, &query("SELECT 1"));
            let server = world.servers[0].clone();
            world.send(&server, &answers("CI"));
            client.received();
            server.received();
            world.send(&client, &pipeline);
            let sent = server.kinds();
            assert!(!sent.contains(['Q', 'B', 'E', 'S']), "{mode:?} {at}: {sent}");
            let (id, database) = world.asked.vacancies.pop().unwrap();
            assert_eq!(database, b"A b");
            // Only the answer lets it continue, and the host is asked once.
            world.send(&client, &query("SELECT 2"));
            assert!(world.asked.vacancies.is_empty());
            let (kept, weak) = kept();
            world.deliver(LoopId(0), ToLoop::Vacated { client: id, kept });
            let sent = server.kinds();
            assert!(sent.contains(if at == 0 { 'Q' } else { 'B' }), "{mode:?} {at}: {sent}");
            assert!(weak.upgrade().is_some(), "it is under way");
            world.send(&server, &answers(if at == 0 { "CI" } else { "12CI" }));
            world.send(&server, &answers("CI"));
            assert!(weak.upgrade().is_none(), "{mode:?} {at}: it has been answered");
            assert!(world.asked.vacancies.is_empty());
        }
    }
}

#[test]
fn what_keeps_connections_away_goes_with_the_client_or_the_server() {
    for leaves in [true, false] {
        let mut world = World::new(1);
        world.empties_databases(false);
        let client = world.client();
        world.send(&client, &query("CREATE DATABASE b TEMPLATE a"));
        let (id, database) = world.asked.vacancies.pop().unwrap();
        assert_eq!(database, b"a");
        if leaves {
            world.close(&client);
        }
        let (kept, weak) = kept();
        world.deliver(LoopId(0), ToLoop::Vacated { client: id, kept });
        if !leaves {
            let server = world.servers[0].clone();
            assert_eq!(server.kinds(), "Q");
            world.close(&server);
            assert!(client.is_dropped());
        }
        assert!(weak.upgrade().is_none());
    }
}

#[test]
fn in_a_block_it_fails_at_once_and_texts_that_only_look_like_it_wait_for_nothing() {
    let mut world = World::new(1);
    world.empties_databases(false);
    let client = world.client();
    world.send(&client, &query("BEGIN"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("CT"));
    for text in [
        "DROP DATABASE a",
        "ALTER DATABASE a SET work_mem = 1",
        "DROP DATABASE a; SELECT 1",
        "SELECT 'DROP DATABASE a'",
    ] {
        server.received();
        world.send(&client, &query(text));
        assert_eq!(server.kinds(), "Q", "{text}");
        world.send(&server, &answers("ET"));
    }
    assert!(world.asked.vacancies.is_empty());
}
