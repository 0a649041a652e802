//! Servers that are informed of each transaction's client, in pools of one user.

use std::hash::Hasher;

use siphasher::sip::SipHasher24;

use super::harness::*;
use crate::parts::identity::hand_over::HandOverKey;
use crate::relay::{ClientAbout, Mptcp, PeerAddress, PoolMode};
use crate::time::Time;
use crate::wire::frame::HEADER_BYTES;

/// What a server has been sent since the last check: texts of queries, `->` and the number of each
/// client that it is informed of, kinds of everything else.
fn sent(server: &Peer) -> Vec<String> {
    texts(&server.received(), |call| client_of(call).to_string())
}

fn client_of(call: &[u8]) -> u32 {
    let length = u32::from_be_bytes(call[10..14].try_into().unwrap()) as usize;
    let (message, mac) = call[14..14 + length].split_at(length - 8);
    let mut hash = SipHasher24::new_with_key(&[7; 16]);
    hash.write(message);
    assert_eq!(mac, hash.finish().to_le_bytes());
    assert_eq!(message[..2], [1, 8], "version; no user, a client, and the transport");
    assert_eq!(message[22..], [1, 0, 0, 0, 0, 0, 0, 0, 0], "over a unix socket, without MPTCP");
    u32::from_be_bytes(message[18..22].try_into().unwrap()) - 0x40_0000
}

fn world(size: u32) -> World {
    let mut world = World::new(size);
    world.hands_over = true;
    world
}

/// The server's answer.
fn noted() -> Vec<u8> {
    [message(b'V', &[0xff; 4]), answers("I")].concat()
}

#[test]
fn the_transport_is_announced_where_the_extension_takes_it() {
    let about = ClientAbout::new(PeerAddress::Unix, None, "", Time::ZERO);
    let transport = |takes_transport, mptcp| {
        let mut out = Vec::new();
        HandOverKey { takes_transport, ..key() }.write_to(7, None, &about, mptcp, &mut out);
        let message = &out[HEADER_BYTES + 14..out.len() - 2 - 8];
        (message[1], message[25..].to_vec())
    };
    let mptcp = Mptcp { fell_back: false, subflows: 5, token: 0x0102_0304 };
    assert_eq!(transport(true, None), (8, vec![0; 6]));
    assert_eq!(transport(true, Some(mptcp)), (8, vec![1, 5, 1, 2, 3, 4]));
    let fell_back = Mptcp { fell_back: true, subflows: 1, token: 0 };
    assert_eq!(transport(true, Some(fell_back)), (8, vec![3, 1, 0, 0, 0, 0]));
    assert_eq!(transport(false, Some(mptcp)), (0, vec![]), "an earlier one would end the session");
}

#[test]
fn each_change_of_clients_is_announced_in_the_same_write() {
    let mut world = world(1);
    let (one, two) = (world.client(), world.client());
    world.send(&one, &query("SELECT 1"));
    let server = world.servers[0].clone();
    assert_eq!(sent(&server), ["-> 1", "SELECT 1"]);
    world.send(&server, &[noted(), answers("CI")].concat());
    world.send(&one, &query("SELECT 2"));
    assert_eq!(sent(&server), ["SELECT 2"], "it knows");
    world.send(&server, &answers("CI"));
    world.send(&two, &query("SELECT 3"));
    assert_eq!(sent(&server), ["-> 2", "SELECT 3"]);
    world.send(&server, &[noted(), answers("CI")].concat());
    assert!(one.kinds().ends_with("CZCZ"));
    assert!(two.kinds().ends_with("CZ"), "nothing of it is seen");
}

#[test]
fn a_transaction_is_reported_once_and_at_its_beginning() {
    let mut world = world(1);
    let one = world.client();
    world.send(&one, &query("BEGIN"));
    let server = world.servers[0].clone();
    assert_eq!(sent(&server), ["-> 1", "BEGIN"]);
    world.send(&server, &[noted(), answers("CT")].concat());
    world.send(&one, &query("SELECT 1"));
    assert_eq!(sent(&server), ["SELECT 1"]);
}

#[test]
fn settings_and_roles_are_set_after_it() {
    let mut world = world(1);
    let one = world.client_as(None, PoolMode::Transaction, &[("DateStyle", "German, DMY")]);
    let two = world.client();
    world.send(&one, &query("SELECT 1"));
    let server = world.servers[0].clone();
    assert_eq!(
        sent(&server),
        ["-> 1", "BEGIN", "SET \"datestyle\" TO 'German, DMY';COMMIT", "SELECT 1"]
    );
    world.send(&server, &[noted(), answers("CICI")].concat());
    world.send(&two, &query("SET ROLE sub"));
    let all = sent(&server);
    assert_eq!(
        (all[0].as_str(), all.last().unwrap().as_str()),
        ("-> 2", "SET ROLE sub"),
        "{all:?}"
    );
    world.send(&server, &[noted(), answers("CICI")].concat());
    let asked = sent(&server);
    assert!(asked.last().unwrap().contains("current_setting('role'"), "{asked:?}");
    world.send(&server, &value("sub"));
    // The call ends a role; if the function is gone, it would stay.
    world.send(&one, &query("SELECT 2"));
    let reset = "RESET SESSION AUTHORIZATION;RESET ROLE";
    let set = "SET \"datestyle\" TO 'German, DMY';COMMIT";
    assert_eq!(sent(&server), [reset, "-> 1", "BEGIN", set, "SELECT 2"]);
    world.send(&server, &[answers("CCI"), noted(), answers("CICI")].concat());
    world.send(&two, &query("SELECT 3"));
    let all = sent(&server).join(";");
    assert!(all.starts_with("-> 2;") && all.contains("SET \"role\" TO 'sub'"), "{all}");
}

#[test]
fn a_server_that_does_not_take_it_is_replaced_and_serves_its_client_before() {
    let mut world = world(1);
    let (one, two) = (world.client(), world.client());
    world.send(&one, &query("SELECT 1"));
    let server = world.servers[0].clone();
    sent(&server);
    let refusal = message(b'E', b"SERROR\0VERROR\0C42883\0Mno such function\0\0");
    world.send(&server, &[refusal, answers("I"), answers("CI")].concat());
    assert!(one.kinds().ends_with("CZ"), "its transaction is its user's all the same");
    assert!(server.is_dropped());
    world.send(&two, &query("SELECT 2"));
    assert_eq!(sent(&world.servers[1]), ["-> 2", "SELECT 2"]);
}

#[test]
fn a_server_that_ends_the_session_has_run_nothing() {
    let mut world = world(1);
    let one = world.client();
    world.send(&one, &query("DELETE FROM t"));
    let server = world.servers[0].clone();
    world.send(&server, &message(b'E', b"SFATAL\0VFATAL\0C28000\0Mno\0\0"));
    world.close(&server);
    assert!(one.kinds().ends_with('E'));
    assert!(one.is_dropped());
}

#[test]
fn a_client_s_own_call_of_the_function_goes_nowhere() {
    let mut world = world(1);
    let one = world.client();
    let call = [&4242u32.to_be_bytes()[..], &[0, 1, 0, 1, 0, 1, 0, 0, 0, 1, 7, 0, 1]].concat();
    world.send(&one, &message(b'F', &call));
    assert!(one.is_dropped());
    let server = world.servers[0].clone();
    assert_eq!(sent(&server), ["-> 1"], "the pooler's own");
    world.send(&server, &noted());
    let two = world.client();
    world.send(&two, &query("SELECT 1"));
    assert_eq!(sent(&server), ["-> 2", "SELECT 1"], "another client in the same place");
}
