//! Cancel requests: which query they may hit.

use super::harness::*;
use crate::ids::LoopId;
use crate::parts::identity::process_ids::PROCESS_ID_FIRST;
use crate::relay::request_queue::Request;
use crate::relay::{PoolMode, ToLoop};

/// The cancel request of the client with this number, from 0 on.
fn cancel(client: u32) -> ToLoop<Fake> {
    ToLoop::Cancel { process: PROCESS_ID_FIRST + client, key: [9; 4].into() }
}

/// A client that is idle in a transaction.
fn in_a_block() -> (World, Peer, Peer) {
    let mut world = World::new(1);
    let client = world.client();
    world.send(&client, &query("BEGIN"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("CT"));
    (world, client, server)
}

#[test]
fn a_server_connection_whose_cancel_request_is_unanswered_serves_no_other_client() {
    for leaves in [false, true] {
        let mut world = World::new(1);
        let (client, other) = (world.client(), world.client());
        world.send(&client, &query("SELECT pg_sleep(9)"));
        let server = world.servers[0].clone();
        server.received();
        world.deliver(LoopId(0), cancel(0));
        world.send(&other, &query("SELECT 2"));
        let place = world.asked.cancels[0].backend;
        if leaves {
            world.close(&client);
        } else {
            world.send(&server, &answers("CI"));
            assert_eq!(client.kinds(), "CZ");
        }
        world.deliver(LoopId(0), ToLoop::CancelUnanswered(place));
        if leaves {
            world.send(&server, &answers("EI"));
            world.deliver(LoopId(0), ToLoop::CancelDone(place)); // that of the client's end
        }
        assert!(server.is_dropped(), "the request may come late (it leaves: {leaves})");
        assert_eq!(world.servers[1].received(), query("SELECT 2"));
    }
}

/// In session mode clients have the ids of their servers' processes, which may be equal on two
/// servers.
#[test]
fn a_cancel_request_finds_its_client_among_those_with_one_process_id() {
    let mut world = World::with_loops(2, 2);
    let clients = [0, 1].map(|home| world.client_of(LoopId(home), PoolMode::Session, &[]));
    let (mut process, mut backend) = (0, None);
    for client in &clients {
        world.send(client, &query("SELECT pg_sleep(9)"));
        world.with_backend_of(client, |of| {
            of.set_process(PROCESS_ID_FIRST + 100); // as of a server that is a pooler itself
            process = of.process();
            backend = Some(of.place());
        });
    }
    for (home, secret) in [(0, [7; 4]), (1, [8; 4])] {
        let slot = world.slot_of(&clients[usize::from(home)]);
        world.with_engine(LoopId(home), |engine, _, _| {
            engine.clients.get_mut(slot).unwrap().record.secret = secret[..].into();
        });
    }
    world.deliver(LoopId(0), ToLoop::Cancel { process, key: [8; 4].into() });
    assert_eq!(world.asked.cancels.len(), 1);
    assert_eq!(Some(world.asked.cancels[0].backend), backend);
}

/// The server never got the message; PostgreSQL would have cancelled it.
#[test]
fn a_cancel_request_for_a_message_that_waits_here_follows_it() {
    // After an earlier cancel request.
    let (mut world, client, server) = in_a_block();
    world.send(&client, &query("SELECT 1"));
    world.deliver(LoopId(0), cancel(0));
    server.received();
    world.send(&server, &answers("CT"));
    world.send(&client, &query("SELECT pg_sleep(9)"));
    assert_eq!(server.kinds(), "", "the first request may still hit it");
    world.deliver(LoopId(0), cancel(0));
    assert_eq!(world.asked.cancels.len(), 1);
    let done = ToLoop::CancelDone(world.asked.cancels[0].backend);
    world.asked.cancelled = Some(server.clone());
    world.deliver(LoopId(0), done);
    assert_eq!(
        world.asked.received_at_cancel,
        [query("SELECT pg_sleep(9)").len()],
        "not before it"
    );
    assert_eq!(server.received(), query("SELECT pg_sleep(9)"));
    assert_eq!(world.asked.cancels.len(), 2);
    let done = ToLoop::CancelDone(world.asked.cancels[1].backend);
    world.deliver(LoopId(0), done);
    world.send(&server, &answers("EF"));
    world.send(&client, &query("ROLLBACK"));
    world.send(&server, &answers("CI"));
    assert_eq!(world.asked.cancels.len(), 2, "once");
    assert_eq!(world.idle_backends(), 1);
}

#[test]
fn a_cancel_request_hits_nothing_that_was_sent_after_it_came() {
    let (mut world, client, server) = in_a_block();
    world.send(&client, &query("SELECT 1"));
    // The signal could hit a Sync of Hawser's.
    world.with_backend_of(&client, |backend| backend.request(Request::InjectedSync));
    world.deliver(LoopId(0), cancel(0));
    assert_eq!(world.asked.cancels.len(), 0);
    world.send(&server, &answers("CT"));
    world.send(&client, &query("SELECT 2"));
    world.send(&server, &answers("T"));
    assert_eq!(world.asked.cancels.len(), 0, "its query has been answered");
    world.deliver(LoopId(0), cancel(0));
    assert_eq!(world.asked.cancels.len(), 1);
}

#[test]
fn a_cancel_request_for_a_long_message_follows_its_end() {
    let (mut world, client, server) = in_a_block();
    world.send(&client, &query("SELECT 1"));
    world.deliver(LoopId(0), cancel(0));
    world.send(&server, &answers("CT"));
    let long = query(&format!("SELECT '{}'", "x".repeat(100_000)));
    world.send(&client, &long[..50_000]);
    world.deliver(LoopId(0), cancel(0));
    server.received();
    let done = ToLoop::CancelDone(world.asked.cancels[0].backend);
    world.deliver(LoopId(0), done);
    assert_eq!(server.received().len(), 50_000);
    assert_eq!(world.asked.cancels.len(), 1, "the server reads, and would ignore it");
    world.asked.cancelled = Some(server.clone());
    world.send(&client, &long[50_000..]);
    assert_eq!(world.asked.cancels.len(), 2);
    assert_eq!(world.asked.received_at_cancel, [long.len() - 50_000]);
}

/// A client that keeps its server connection to ask what it has drawn. Its query has been
/// cancelled, and its number is 1. The cancel request is unanswered. `size`: of the pool.
fn cancelled_after_drawing(size: u32) -> (World, Peer, Peer) {
    let mut world = World::new(size);
    let asker = world.client();
    world.send(&asker, &query("SELECT lastval()"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("EI"));
    let client = world.client();
    server.received();
    world.send(&client, &query("INSERT INTO t VALUES (1)"));
    assert_eq!(server.kinds(), "QQ", "DISCARD SEQUENCES before it");
    world.send(&server, &answers("CICI"));
    assert_eq!(client.kinds(), "CZ");
    world.send(&client, &query("SELECT pg_sleep(9)"));
    world.deliver(LoopId(0), cancel(1));
    assert_eq!(world.asked.cancels.len(), 1);
    server.received();
    world.send(&server, &answers("EI"));
    assert_eq!(client.kinds(), "EZ");
    (world, client, server)
}

/// It was forgotten until the client sent something else.
#[test]
fn a_message_that_waits_for_a_cancel_request_goes_on_when_its_server_connection_is_given_back() {
    for size in [1, 2] {
        let (mut world, client, server) = cancelled_after_drawing(size);
        world.send(&client, &query("BEGIN"));
        assert_eq!(server.kinds(), "", "the request may still hit it");
        world.wait_ms(1100); // it does not keep its server connection any more
        let done = ToLoop::CancelDone(world.asked.cancels[0].backend);
        if size == 1 {
            assert_eq!(server.kinds(), "");
            world.deliver(LoopId(0), done);
        }
        let sent: Vec<_> = world.servers.iter().flat_map(Peer::received).collect();
        assert!(sent.ends_with(&query("BEGIN")), "{size}: {sent:?}");
    }
}

/// The same, and it is cancelled as well, as any message that waits in the queue.
#[test]
fn a_message_that_is_cancelled_before_it_comes_to_the_queue_is_answered_there() {
    let (mut world, client, server) = cancelled_after_drawing(1);
    world.send(&client, &query("SELECT 2"));
    world.deliver(LoopId(0), cancel(1));
    world.wait_ms(1100);
    assert_eq!(client.kinds(), "EZ", "it waits for a server connection that is not free");
    assert_eq!(world.asked.cancels.len(), 1);
    let done = ToLoop::CancelDone(world.asked.cancels[0].backend);
    world.deliver(LoopId(0), done);
    assert_eq!(server.kinds(), "");
    world.send(&client, &query("SELECT 3"));
    assert!(server.received().ends_with(&query("SELECT 3")));
}
