//! A session keeps the values with which it began, whatever happens to the servers' own.

use std::sync::Arc;

use crate::ids::LoopId;
use crate::parts::start_values::parameters::ServerParameters;
use crate::relay::client_info::PoolMode;
use crate::relay::tests::harness::*;

/// The first server is gone, and those to come have another time zone of their own.
fn zone_changes(world: &mut World, zone: &'static str) {
    let server = world.servers.last().unwrap().clone();
    world.close(&server);
    world.own = vec![("TimeZone", zone)];
    let mut parameters = ServerParameters::default();
    parameters.set(b"TimeZone", zone.as_bytes());
    parameters.set(b"application_name", b"");
    parameters.set(b"DateStyle", b"ISO, MDY");
    world.pool.begin_epoch();
    let epoch = world.pool.epoch();
    world.pool.keep_parameters(epoch, Arc::new(parameters));
}

/// A client with these start values that has run a query on a server with time zone UTC.
fn client_of_utc(start: &[(&str, &str)]) -> (World, Peer) {
    let mut world = World::new(1);
    let client = world.client_of(LoopId(0), PoolMode::Transaction, start);
    world.send(&client, &query("SELECT 1"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("CI"));
    world.send(&server, &answers("CI"));
    client.received();
    (world, client)
}

/// What is sent before a client's query.
fn sent_before_query(world: &mut World, client: &Peer) -> String {
    world.send(client, &query("SELECT 2"));
    let server = world.servers.last().unwrap().clone();
    let sent = String::from_utf8_lossy(&server.received()).into_owned();
    world.send(&server, &answers("CI"));
    if sent.contains("SET") {
        world.send(&server, &answers("CI"));
    }
    client.received();
    sent
}

#[test]
fn a_value_that_was_the_servers_own_stays_when_that_changes() {
    let (mut world, client) = client_of_utc(&[]);
    zone_changes(&mut world, "Asia/Tokyo");
    assert!(sent_before_query(&mut world, &client).contains("SET \"timezone\" TO 'UTC'"));
    let new = world.client();
    let sent = sent_before_query(&mut world, &new);
    assert!(sent.contains("SET \"timezone\" TO 'Asia/Tokyo'"), "a new one has the new: {sent}");
    // RESET goes back to the value with which the session began.
    world.send(&client, &query("RESET TimeZone"));
    let sent = world.servers[1].received();
    assert!(String::from_utf8_lossy(&sent).contains("RESET TimeZone;SET \"timezone\" TO 'UTC'"));
}

#[test]
fn a_value_that_becomes_the_servers_own_is_not_set_any_more_and_comes_back_with_it() {
    let (mut world, client) = client_of_utc(&[("TimeZone", "Asia/Tokyo")]);
    zone_changes(&mut world, "Asia/Tokyo");
    assert!(!sent_before_query(&mut world, &client).contains("SET"));
    zone_changes(&mut world, "UTC");
    assert!(sent_before_query(&mut world, &client).contains("SET \"timezone\" TO 'Asia/Tokyo'"));
}

#[test]
fn statements_keep_the_settings_of_their_parse() {
    let mut world = World::new(1);
    let (client, _) = world.client_with("s", "SELECT '12:00'::timetz");
    zone_changes(&mut world, "Asia/Tokyo");
    world.send(&client, &[bind("s"), execute(), sync()].concat());
    let server = world.servers[1].clone();
    world.send(&server, &[answers("C"), parameter("TimeZone", "UTC"), answers("I")].concat());
    assert_eq!(server.kinds(), "QPBES", "one SET before it, and nothing around the Parse");
}

#[test]
fn a_text_is_read_again_for_clients_of_the_new_values() {
    // A call where backslashes escape in any string.
    let text = r"SELECT '\'', set_config('statement_timeout','1',false) --'";
    let mut world = World::new(1);
    world.own = vec![("standard_conforming_strings", "on")];
    let (_, server) = world.client_with("s", text);
    assert_eq!(world.idle_backends(), 1);
    world.close(&server);
    world.own = vec![("standard_conforming_strings", "off")];
    world.pool.begin_epoch();
    let client = world.client();
    world.send(&client, &[parse("s", text), bind("s"), execute(), sync()].concat());
    world.send(&world.servers[1].clone(), &answers("12CI"));
    assert_eq!(client.kinds(), "12CZ");
    assert_eq!(world.idle_backends(), 0, "it pins, as it did not before");
}

#[test]
fn what_a_session_cannot_set_is_no_reason_to_set_anything() {
    let mut world = World::new(1);
    world.server_version = "15.4";
    let client = world.client();
    sent_before_query(&mut world, &client);
    let server = world.servers[0].clone();
    world.close(&server);
    world.server_version = "15.5";
    assert!(!sent_before_query(&mut world, &client).contains("SET"));
}
