//! What concerns all clients of a loop: so many of them a turn.

use std::collections::BTreeSet;
use std::sync::mpsc;
use std::time::Duration;

use crate::ids::{ClientId, LoopId};
use crate::relay::limits;
use crate::relay::message::{Listed, Page, PageRequest, ToLoop};
use crate::relay::tests::harness::*;
use crate::wire::error::{ClientError, SqlState};

/// Some, and some more than one turn may look at.
const CLIENTS: usize = 3 * limits::CLIENTS_A_TURN as usize;

fn crowd(world: &mut World) -> Vec<Peer> {
    let clients = (0..CLIENTS).map(|_| world.client()).collect();
    world.wait_ms(100); // one that has just been answered gets its reason apart
    clients
}

fn gone(clients: &[Peer]) -> usize {
    clients.iter().filter(|client| client.is_dropped()).count()
}

fn error() -> ClientError {
    ClientError::fatal(SqlState::ADMIN_SHUTDOWN, "away with them")
}

/// The largest number of clients that left in one turn, until none leaves any more.
fn most_a_turn(world: &mut World, clients: &[Peer], tick_ms: u64) -> usize {
    let (mut most, mut before) = (0, gone(clients));
    world.only_tick(tick_ms);
    loop {
        let now = gone(clients);
        most = most.max(now - before);
        if !world.next_tick().is_zero() {
            return most;
        }
        before = now;
        world.with_engine(LoopId(0), |engine, host, now| engine.tick(host, now));
    }
}

fn page(world: &mut World, listed: Listed, from: u32) -> Page {
    let (reply, page) = mpsc::channel();
    let request = PageRequest { listed, addresses: true, from };
    let reply = Box::new(move |page| reply.send(page).unwrap());
    world.deliver(LoopId(0), ToLoop::Page(request, reply));
    page.recv().unwrap()
}

/// All clients were told of in one turn: 100,000 took 451 ms.
#[test]
fn a_page_has_so_many_clients_and_all_pages_have_each_once() {
    let mut world = World::new(2);
    let clients = crowd(&mut world);
    world.send(&clients[7], &query("BEGIN"));
    world.send(&world.servers[0].clone(), &answers("CT"));
    world.breaks(&clients[3]);
    let mut seen = BTreeSet::<ClientId>::new();
    let (mut from, mut busy) = (Some(0), 0);
    while let Some(next) = from {
        let page = page(&mut world, Listed::Clients, next);
        assert!(page.clients.len() <= limits::PAGE_PLACES as usize && page.backends.is_empty());
        assert!(page.clients.iter().all(|row| seen.insert(row.id)));
        busy += page.clients.iter().filter(|row| row.backend.is_some()).count();
        from = page.next;
    }
    assert_eq!((seen.len(), busy), (CLIENTS - 1, 1));
    let backends = page(&mut world, Listed::Backends, 0);
    assert_eq!((backends.backends.len(), backends.clients.len(), backends.next), (1, 0, None));
    let holders = page(&mut world, Listed::Holders { lines: true }, 0);
    assert_eq!((holders.backends.len(), holders.clients.len(), holders.next), (1, 1, None));
    assert_eq!(holders.clients[0].backend, Some(holders.backends[0].id));
    assert!(holders.clients[0].idle_in_transaction.is_some(), "BEGIN was answered");
}

#[test]
fn of_a_crowd_that_is_killed_so_many_leave_a_turn() {
    let mut world = World::new(1);
    let clients = crowd(&mut world);
    world.with_engine(LoopId(0), |engine, host, now| {
        engine.on_message(host, ToLoop::KillAll { pool: None, error: error() }, now);
    });
    assert_eq!(most_a_turn(&mut world, &clients, 0), limits::CLIENTS_A_TURN as usize);
    assert_eq!(gone(&clients), CLIENTS);
    assert!(clients.iter().all(|client| client.kinds() == "E"));
}

#[test]
fn a_pool_that_is_killed_leaves_others_alone() {
    let mut world = World::new(1);
    let clients = crowd(&mut world);
    let (own, other) = (world.pool.clone(), world.another_pool(9));
    world.deliver(LoopId(0), ToLoop::KillAll { pool: Some(other), error: error() });
    assert_eq!(gone(&clients), 0);
    world.deliver(LoopId(0), ToLoop::KillAll { pool: Some(own), error: error() });
    assert_eq!(gone(&clients), CLIENTS);
}

#[test]
fn of_a_crowd_whose_time_is_over_so_many_leave_a_turn() {
    let mut world = World::new(1);
    world.change_settings(|settings| settings.client_idle_timeout = Duration::from_secs(1));
    let clients = crowd(&mut world);
    world.wait_ms(800);
    assert_eq!(gone(&clients), 0);
    assert!(most_a_turn(&mut world, &clients, 400) <= limits::CLIENTS_A_TURN as usize);
    assert_eq!(gone(&clients), CLIENTS);
}
