//! Clients that leave an engine for a successor's, and their state there.

use super::harness::*;
use crate::ids::LoopId;
use crate::parts::identity::process_ids::PROCESS_ID_FIRST;
use crate::relay::message::ToLoop;
use crate::relay::succession::{Arrival, ClientRecord, MovedClient};
use crate::relay::{CancelKey, PoolMode};

const HERE: LoopId = LoopId(0);

fn give(world: &mut World, most: usize) {
    world.deliver(HERE, ToLoop::GiveClients(most));
}

/// The only client that has left.
fn given(world: &mut World) -> MovedClient<Fake> {
    assert_eq!(world.asked.given.len(), 1, "clients that have left");
    world.asked.given.remove(0)
}

/// A client comes to another process, which has other servers.
fn arrives(world: &mut World, mut client: MovedClient<Fake>) {
    client.pool = world.pool.clone();
    world.deliver(HERE, ToLoop::TakeClient(Box::new(client), Arrival::FromPredecessor));
}

fn contains(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

/// The only server executes everything that it has been sent, which is returned.
fn obeys(world: &mut World) -> Vec<u8> {
    let server = world.servers[0].clone();
    let sent = server.received();
    let letter = |kind: char| match kind {
        'Q' => "CI",
        'P' => "1",
        'B' => "2",
        'E' => "C",
        'C' => "3",
        _ => "I",
    };
    let script: String = kinds(&sent).chars().map(letter).collect();
    world.send(&server, &answers(&script));
    sent
}

/// Both processes, and a client of the first one whose server connection has only reported its
/// values at connect.
fn two() -> (World, World) {
    (World::new(1), World::new(1))
}

#[test]
fn settings_and_statements_are_there_and_are_brought_to_the_first_server_connection() {
    let (mut old, mut new) = two();
    let (client, server) = old.client_with("mine", "SELECT 1");
    old.send(&client, &query("SET timezone TO 'CET'"));
    let set = [parameter("TimeZone", "CET"), message(b'C', b"SET\0"), answers("I")].concat();
    old.send(&server, &set);
    old.send(&client, &[parse("", "SELECT 2"), sync()].concat());
    old.send(&server, &answers("1I"));
    client.received();
    give(&mut old, 1);
    let moved = given(&mut old);
    assert_eq!(moved.record.desired.get(b"timezone"), Some(&b"CET"[..]));
    assert_eq!(moved.record.statements.len(), 1);
    assert!(moved.record.unnamed.is_some());
    assert_eq!(old.idle_backends(), 1, "its server connection stays");

    arrives(&mut new, moved);
    assert!(client.received().is_empty(), "it gets nothing");
    new.send(&client, &[bind("mine"), execute(), sync()].concat());
    let sent = obeys(&mut new);
    for text in ["SET \"timezone\" TO 'CET'", "SET \"timezone\" TO 'UTC'", "SELECT 1"] {
        assert!(contains(&sent, text), "{text}: {}", sent.escape_ascii());
    }
    assert_eq!(client.kinds(), "2CZ", "it gets no setting that it knows");
    new.send(&client, &[bind(""), execute(), sync()].concat());
    let sent = obeys(&mut new);
    assert!(contains(&sent, "SELECT 2"), "{}", sent.escape_ascii());
    // The name is taken, as it was.
    client.received();
    new.send(&client, &[parse("mine", "SELECT 3"), sync()].concat());
    new.send(&new.servers[0].clone(), &answers("UI"));
    assert!(contains(&client.received(), "prepared statement \"mine\" already exists"));
}

#[test]
fn what_a_statement_does_is_known_again() {
    let (mut old, mut new) = two();
    let (client, _) = old.client_with("makes", "CREATE TEMP TABLE t (a int)");
    give(&mut old, 1);
    arrives(&mut new, given(&mut old));
    new.send(&client, &[bind("makes"), execute(), sync()].concat());
    new.send(&new.servers[0].clone(), &answers("12CI"));
    assert_eq!(new.idle_backends(), 0, "the table pins");
}

#[test]
fn who_is_busy_goes_when_that_is_over() {
    let (mut old, _) = two();
    let client = old.client();
    old.send(&client, &query("BEGIN"));
    let server = old.servers[0].clone();
    old.send(&server, &answers("CT"));
    give(&mut old, 8);
    assert!(old.asked.given.is_empty(), "in a transaction");
    old.send(&client, &query("COMMIT"));
    assert!(old.asked.given.is_empty(), "it is not answered");
    old.send(&server, &answers("CI"));
    given(&mut old);
    assert_eq!(client.kinds(), "CZCZ", "it has its answer first");
}

#[test]
fn who_waits_for_a_server_connection_is_served_first() {
    let (mut old, _) = two();
    let (one, other) = (old.client(), old.client());
    old.send(&one, &query("SELECT 1"));
    old.send(&other, &query("SELECT 2"));
    give(&mut old, 8);
    assert!(old.asked.given.is_empty());
    let server = old.servers[0].clone();
    old.send(&server, &answers("CI"));
    assert_eq!(old.asked.given.len(), 1);
    old.send(&server, &answers("CI"));
    assert_eq!(old.asked.given.len(), 2);
    assert_eq!((one.kinds(), other.kinds()), ("CZ".into(), "CZ".into()));
}

#[test]
fn who_has_not_taken_its_answer_or_sent_its_message_whole_stays_until_then() {
    let (mut old, _) = two();
    let (slow, half) = (old.client(), old.client());
    old.send(&half, &query("SELECT 1")[..7]);
    slow.take_only(3);
    old.send(&slow, &query("SELECT 1"));
    old.send(&old.servers[0].clone(), &answers("CI"));
    give(&mut old, 8);
    assert!(old.asked.given.is_empty());
    old.take_all(&slow);
    old.wait_ms(100);
    given(&mut old);
    old.send(&half, &query("SELECT 1")[7..]);
    old.send(&old.servers[0].clone(), &answers("CI"));
    given(&mut old);
}

#[test]
fn what_pins_session_mode_and_users_that_share_stay() {
    let (mut old, _) = two();
    let pinned = old.client();
    old.send(&pinned, &query("CREATE TEMP TABLE t (a int)"));
    old.send(&old.servers[0].clone(), &answers("CI"));
    give(&mut old, 8);
    assert!(old.asked.given.is_empty(), "it is pinned");

    let mut sessions = World::new(1);
    sessions.client_of(HERE, PoolMode::Session, &[]);
    give(&mut sessions, 8);
    assert!(sessions.asked.given.is_empty());

    let mut shared = World::shared(1);
    shared.client_as(Some("ann"), PoolMode::Transaction, &[]);
    give(&mut shared, 8);
    assert!(shared.asked.given.is_empty());
}

#[test]
fn no_more_leave_than_are_asked_for_and_none_when_there_is_no_successor() {
    let (mut old, _) = two();
    let clients: Vec<_> = (0..4).map(|_| old.client()).collect();
    // (A client's basis is known once a server has reported its values at connect.)
    old.send(&clients[0], &query("SELECT 1"));
    old.send(&old.servers[0].clone(), &answers("CI"));
    give(&mut old, 0);
    assert!(old.asked.given.is_empty());
    give(&mut old, 1);
    assert_eq!(old.asked.given.len(), 1);
    old.deliver(HERE, ToLoop::KeepClients);
    for client in &clients {
        old.send(client, &query("SELECT 1"));
        old.send(&old.servers[0].clone(), &answers("CI"));
    }
    assert_eq!(old.asked.given.len(), 1, "they stay");
}

#[test]
fn one_that_comes_back_is_served_and_not_given_again() {
    let (mut old, _) = two();
    let (client, server) = old.client_with("mine", "SELECT 1");
    give(&mut old, 8);
    let moved = given(&mut old);
    old.deliver(HERE, ToLoop::TakeClient(Box::new(moved), Arrival::BackFromSuccessor));
    old.send(&client, &[bind("mine"), execute(), sync()].concat());
    old.send(&server, &answers("2CI"));
    assert_eq!(client.kinds(), "2CZ");
    old.wait_ms(200);
    assert!(old.asked.given.is_empty());
}

#[test]
fn what_it_sends_on_the_way_is_read_at_its_end() {
    let (mut old, mut new) = two();
    let (client, _) = old.client_with("mine", "SELECT 1");
    give(&mut old, 1);
    let moved = given(&mut old);
    old.put(&client, &query("SELECT 7"));
    arrives(&mut new, moved);
    new.only_raise(&client); // as the host does for unread bytes when it begins to watch
    new.settle();
    assert!(contains(&new.servers[0].received(), "SELECT 7"));
}

#[test]
fn its_process_id_and_key_are_those_that_it_knows() {
    let (mut old, mut new) = two();
    // In the new process another client has the id that a new client would get.
    let (client, _) = old.client_with("mine", "SELECT 1");
    give(&mut old, 1);
    let moved = given(&mut old);
    let ClientRecord { process, secret, .. } = moved.record.clone();
    assert_eq!((process, &*secret), (PROCESS_ID_FIRST, &[9; 4][..]));
    arrives(&mut new, moved);
    new.send(&client, &query("SELECT 1"));
    let cancel = |key: [u8; 4]| ToLoop::Cancel { process, key: CancelKey::from(key.to_vec()) };
    new.deliver(HERE, cancel([8; 4]));
    assert!(new.asked.cancels.is_empty(), "another key");
    new.deliver(HERE, cancel([9; 4]));
    assert_eq!(new.asked.cancels.len(), 1);
}

#[test]
fn own_values_of_the_new_server_that_are_others_change_nothing_for_the_client() {
    let (mut old, mut new) = two();
    let (client, _) = old.client_with("mine", "SELECT 1");
    give(&mut old, 1);
    new.own = vec![("TimeZone", "Asia/Tokyo")];
    arrives(&mut new, given(&mut old));
    new.send(&client, &query("SELECT 1"));
    let sent = new.servers[0].received();
    assert!(contains(&sent, "UTC"), "its session began with UTC: {}", sent.escape_ascii());
}
