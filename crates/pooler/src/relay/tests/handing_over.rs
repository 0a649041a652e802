//! Backends that users share: to whom each belongs, and when.

use std::hash::Hasher;

use siphasher::sip::SipHasher24;

use super::harness::*;
use crate::relay::PoolMode;
use crate::wire::error::SqlState;

/// What a server has been sent since the last check: texts of queries, users of hand-overs, kinds
/// of everything else. A hand-over must be the pooler's own.
fn sent(server: &Peer) -> Vec<String> {
    texts(&server.received(), |call| user_of(call).to_string())
}

fn user_of(call: &[u8]) -> String {
    assert_eq!(call[..4], 4242u32.to_be_bytes(), "the number of the function");
    assert_eq!(call[4..10], [0, 1, 0, 1, 0, 1], "one binary argument");
    let length = u32::from_be_bytes(call[10..14].try_into().unwrap()) as usize;
    let (message, formats) = call[14..].split_at(length);
    assert_eq!(formats, [0, 1], "a binary result");
    let (message, mac) = message.split_at(length - 8);
    let mut hash = SipHasher24::new_with_key(&[7; 16]);
    hash.write(message);
    assert_eq!(mac, hash.finish().to_le_bytes());
    assert_eq!(message[..2], [1, 13], "version; alone, with a user and the transport");
    assert_eq!(message[10..18], 9u64.to_be_bytes(), "the pooler");
    let client = u32::from_be_bytes(message[18..22].try_into().unwrap());
    assert!(
        client > 0x40_0000 || client == 101,
        "the client's own, or in session mode the server's"
    );
    assert_eq!(message[22..25], [1, 0, 0], "over a unix socket");
    let length = usize::from(u16::from_be_bytes([message[25], message[26]]));
    assert_eq!(message[27 + length..], [0; 6], "not over MPTCP");
    String::from_utf8(message[27..27 + length].to_vec()).unwrap()
}

/// The server's answer to a hand-over: with what it reports for this user.
fn handed(user: &str, own: &[(&str, &str)]) -> Vec<u8> {
    let mut out = message(b'V', &[0xff; 4]);
    out.extend(parameter("session_authorization", user));
    own.iter().for_each(|(name, value)| out.extend(parameter(name, value)));
    out.extend(answers("I"));
    out
}

fn refusal(code: &str) -> Vec<u8> {
    let body = format!("SERROR\0VERROR\0C{code}\0Mnot this one\0\0");
    [message(b'E', body.as_bytes()), answers("I")].concat()
}

/// The server's answer to RESET ALL.
fn reset() -> Vec<u8> {
    answers("CI")
}

/// A client of this user whose session has begun on the only server, which belongs to it now.
fn client(world: &mut World, user: &str) -> Peer {
    let client = world.client_as(Some(user), PoolMode::Transaction, &[]);
    let server = world.servers[0].clone();
    assert_eq!(sent(&server).last(), Some(&format!("-> {user}")));
    world.send(&server, &[reset(), handed(user, &[])].concat());
    assert!(client.kinds().ends_with("KZ"));
    client
}

#[test]
fn a_client_is_greeted_when_its_session_is_its_own() {
    let mut world = World::shared(1);
    let client = world.client_as(Some("ann"), PoolMode::Transaction, &[("work_mem", "5MB")]);
    let server = world.servers[0].clone();
    assert_eq!(sent(&server), ["RESET ALL", "-> ann"]);
    world.send(&client, &query("SELECT 1"));
    assert_eq!(sent(&server), [""; 0], "it speaks before its turn");
    assert_eq!(client.kinds(), "");
    world.send(&server, &[reset(), handed("ann", &[("DateStyle", "German, DMY")])].concat());
    let greeting = client.received();
    assert!(kinds(&greeting).ends_with("SSSSSKZ"), "{}", kinds(&greeting));
    for (name, value) in [("session_authorization", "ann"), ("DateStyle", "German, DMY")] {
        let said = parameter(name, value);
        assert!(greeting.windows(said.len()).any(|part| part == said), "{name}");
    }
    assert_eq!(sent(&server), ["BEGIN", "SET \"work_mem\" TO '5MB';COMMIT", "SELECT 1"]);
}

#[test]
fn nothing_of_a_clients_goes_to_a_backend_that_is_anothers() {
    let mut world = World::shared(1);
    let (ann, bob) = (client(&mut world, "ann"), client(&mut world, "bob"));
    let server = world.servers[0].clone();
    world.send(&ann, &query("SELECT 1"));
    assert_eq!(sent(&server), ["RESET ALL", "-> ann"]);
    world.send(&bob, &query("SELECT 2"));
    world.send(&server, &reset());
    assert_eq!(sent(&server), [""; 0]);
    world.send(&server, &handed("ann", &[]));
    assert_eq!(sent(&server), ["SELECT 1"]);
    world.send(&server, &answers("CI"));
    assert_eq!(sent(&server), ["RESET ALL", "-> bob"], "it goes to the next at once");
    world.send(&server, &[reset(), handed("bob", &[])].concat());
    assert_eq!(sent(&server), ["SELECT 2"]);
    world.send(&server, &answers("CI"));
    world.send(&bob, &query("SELECT 3"));
    assert_eq!(sent(&server), ["SELECT 3"], "it is his already");
    world.send(&server, &answers("CI"));
    assert_eq!((ann.kinds(), bob.kinds()), ("CZ".to_owned(), "CZCZ".to_owned()));
}

#[test]
fn another_client_of_the_same_user_costs_no_reset() {
    let mut world = World::shared(1);
    let (one, _two) = (client(&mut world, "ann"), client_again(&mut world, "ann"));
    let server = world.servers[0].clone();
    world.send(&one, &query("SELECT 1"));
    assert_eq!(sent(&server), ["-> ann"]);
}

/// Another client of the server's current user.
fn client_again(world: &mut World, user: &str) -> Peer {
    let client = world.client_as(Some(user), PoolMode::Transaction, &[]);
    let server = world.servers[0].clone();
    assert_eq!(sent(&server), [format!("-> {user}")]);
    world.send(&server, &handed(user, &[]));
    assert!(client.kinds().ends_with("KZ"));
    client
}

#[test]
fn where_the_report_tells_of_no_settings_nothing_is_reset() {
    let mut world = World::shared(1);
    world.report = Some("1");
    let client = world.client_as(Some("ann"), PoolMode::Transaction, &[]);
    let server = world.servers[0].clone();
    assert_eq!(sent(&server), ["-> ann"]);
    world.send(&server, &handed("ann", &[]));
    world.send(&client, &query("SELECT sets()"));
    let state = parameter("hawser.state", "1 set=datestyle:ISO");
    world.send(&server, &[answers("C"), state, answers("I")].concat());
    sent(&server);
    world.client_as(Some("bob"), PoolMode::Transaction, &[]);
    assert_eq!(sent(&server), ["RESET ALL", "-> bob"], "a SET to the same value is reported");
}

#[test]
fn a_client_refused_at_the_login_gets_the_error_and_another_gets_the_backend() {
    let mut world = World::shared(1);
    let ann = client(&mut world, "ann");
    let server = world.servers[0].clone();
    for code in ["28000", "42501", "53300"] {
        let bob = world.client_as(Some("bob"), PoolMode::Transaction, &[]);
        sent(&server);
        world.send(&server, &[reset(), refusal(code)].concat());
        let told = bob.received();
        assert_eq!(kinds(&told), "E");
        assert!(told.windows(6).any(|part| part == b"SFATAL"));
        assert!(bob.is_dropped() && !server.is_dropped());
        assert_eq!(world.asked.told.pop().unwrap().0, code.as_bytes());
    }
    world.send(&ann, &query("SELECT 1"));
    assert_eq!(sent(&server), ["SELECT 1"], "it has been hers all the while");
}

#[test]
fn who_is_refused_later_leaves_with_nothing_run() {
    let mut world = World::shared(1);
    let (ann, _bob) = (client(&mut world, "ann"), client(&mut world, "bob"));
    let server = world.servers[0].clone();
    world.send(&ann, &query("DELETE FROM t"));
    sent(&server);
    world.send(&server, &[reset(), refusal("28000")].concat());
    assert_eq!(sent(&server), [""; 0]);
    assert_eq!(ann.kinds(), "E");
    assert!(ann.is_dropped());
    assert_eq!(world.idle_backends(), 1);
}

#[test]
fn a_function_that_is_gone_costs_the_connection_and_runs_nothing() {
    let mut world = World::shared(1);
    let (ann, _bob) = (client(&mut world, "ann"), client(&mut world, "bob"));
    let server = world.servers[0].clone();
    world.send(&ann, &query("DELETE FROM t"));
    sent(&server);
    world.send(&server, &[reset(), refusal("42883")].concat());
    assert_eq!(sent(&server), ["X"], "goodbye, and nothing else");
    assert!(ann.is_dropped() && server.is_dropped());
}

#[test]
fn a_server_that_says_another_user_is_left() {
    for answer in
        [handed("bob", &[]), answers("I"), [message(b'V', &[0xff; 4]), answers("T")].concat()]
    {
        let mut world = World::shared(1);
        let (ann, _bob) = (client(&mut world, "ann"), client(&mut world, "bob"));
        let server = world.servers[0].clone();
        world.send(&ann, &query("DELETE FROM t"));
        sent(&server);
        world.send(&server, &[reset(), answer].concat());
        assert!(!sent(&server).contains(&"DELETE FROM t".to_owned()));
        assert!(ann.is_dropped() && server.is_dropped());
    }
}

#[test]
fn a_server_that_goes_down_in_a_hand_over_takes_its_client_with_it() {
    let mut world = World::shared(1);
    let (ann, _bob) = (client(&mut world, "ann"), client(&mut world, "bob"));
    let server = world.servers[0].clone();
    world.send(&ann, &query("DELETE FROM t"));
    sent(&server);
    let fatal = message(b'E', b"SFATAL\0VFATAL\0C42501\0Mno\0\0");
    world.send(&server, &fatal);
    world.close(&server);
    assert_eq!(ann.kinds(), "E");
    assert!(ann.is_dropped());
}

#[test]
fn a_client_that_leaves_in_a_hand_over_leaves_a_backend_of_use() {
    let mut world = World::shared(1);
    let (ann, bob) = (client(&mut world, "ann"), client(&mut world, "bob"));
    let server = world.servers[0].clone();
    world.send(&ann, &query("SELECT 1"));
    assert_eq!(sent(&server), ["RESET ALL", "-> ann"]);
    world.breaks(&ann);
    assert!(world.asked.cancels.is_empty(), "a hand-over is not cancelled");
    world.send(&server, &[reset(), handed("ann", &[])].concat());
    assert_eq!(world.idle_backends(), 1);
    world.send(&bob, &query("SELECT 2"));
    assert_eq!(sent(&server), ["RESET ALL", "-> bob"], "it is not his any more");
}

#[test]
fn users_share_no_statements() {
    let mut world = World::shared(1);
    let (ann, bob) = (client(&mut world, "ann"), client(&mut world, "bob"));
    let server = world.servers[0].clone();
    world.send(&bob, &[parse("s", "SELECT 1"), sync()].concat());
    let name = |server: &Peer| {
        let bytes = server.received();
        let at = bytes.windows(2).position(|part| part == b"hw").expect("a Parse");
        bytes[at..].split(|byte| *byte == 0).next().unwrap().to_vec()
    };
    let bobs = name(&server);
    world.send(&server, &answers("1I"));
    world.send(&ann, &[parse("s", "SELECT 1"), sync()].concat());
    assert_eq!(ann.kinds(), "", "that another user's was prepared proves nothing");
    world.send(&server, &[reset(), handed("ann", &[])].concat());
    assert_ne!(name(&server), bobs);
    world.send(&server, &answers("1I"));
    assert_eq!((ann.kinds(), bob.kinds()), ("1Z".to_owned(), "1Z".to_owned()));
}

#[test]
fn roles_end_with_a_hand_over_and_are_set_again() {
    let mut world = World::shared(1);
    let (ann, bob) = (client(&mut world, "ann"), client(&mut world, "bob"));
    let server = world.servers[0].clone();
    world.send(&bob, &query("SET ROLE sub"));
    world.send(&server, &answers("CI"));
    let asked = sent(&server);
    assert!(asked.last().unwrap().contains("current_setting('role'"), "{asked:?}");
    world.send(&server, &value("sub"));
    assert_eq!(world.idle_backends(), 1);
    world.send(&ann, &query("SELECT 1"));
    assert_eq!(sent(&server), ["RESET ALL", "-> ann"]);
    world.send(&server, &[reset(), handed("ann", &[])].concat());
    assert_eq!(sent(&server), ["SELECT 1"], "no role is left to be reset");
    world.send(&server, &answers("CI"));
    world.send(&bob, &query("SELECT 2"));
    world.send(&server, &[reset(), handed("bob", &[])].concat());
    let all = sent(&server);
    assert_eq!(all[2..], ["BEGIN", "SET \"role\" TO 'sub';COMMIT", "SELECT 2"]);
}

#[test]
fn values_of_a_user_come_and_go_with_it() {
    let mut world = World::shared(1);
    let ann = world.client_as(Some("ann"), PoolMode::Transaction, &[]);
    let server = world.servers[0].clone();
    world.send(&server, &[reset(), handed("ann", &[("DateStyle", "German, DMY")])].concat());
    let bob = world.client_as(Some("bob"), PoolMode::Transaction, &[("DateStyle", "ISO, MDY")]);
    sent(&server);
    world.send(&server, &[reset(), handed("bob", &[("DateStyle", "ISO, MDY")])].concat());
    let said = parameter("DateStyle", "ISO, MDY");
    assert!(bob.received().windows(said.len()).any(|part| part == said));
    world.send(&bob, &query("SELECT 1"));
    assert_eq!(sent(&server), ["SELECT 1"], "what it asks for it has");
    world.send(&server, &answers("CI"));
    // Her role has been altered since: she keeps the values that she began with.
    world.send(&ann, &query("SELECT 2"));
    sent(&server);
    world.send(&server, &[reset(), handed("ann", &[])].concat());
    assert_eq!(sent(&server), ["BEGIN", "SET \"datestyle\" TO 'German, DMY';COMMIT", "SELECT 2"]);
}

#[test]
fn the_pooler_s_own_role_is_no_client_s() {
    let mut world = World::shared(1);
    let nobody = world.client_as(None, PoolMode::Transaction, &[]);
    assert_eq!(nobody.kinds(), "E");
    assert!(nobody.is_dropped());
    assert_eq!(world.asked.told, [SqlState::INVALID_AUTHORIZATION]);
    assert_eq!(sent(&world.servers[0]), [""; 0]);
}

#[test]
fn a_backend_that_cannot_be_handed_over_serves_nobody() {
    let mut world = World::shared(1);
    world.hands_over = false;
    let ann = world.client_as(Some("ann"), PoolMode::Transaction, &[]);
    assert!(ann.is_dropped());
    assert!(!sent(&world.servers[0]).iter().any(|text| text != "X"));
}

#[test]
fn a_client_s_own_call_of_the_function_goes_nowhere() {
    let mut world = World::shared(1);
    let ann = client(&mut world, "ann");
    let server = world.servers[0].clone();
    let call = [&4242u32.to_be_bytes()[..], &[0, 1, 0, 1, 0, 1, 0, 0, 0, 1, 0, 0, 1]].concat();
    world.send(&ann, &message(b'F', &call));
    assert_eq!(sent(&server), [""; 0]);
    assert_eq!(ann.kinds(), "E");
    assert!(ann.is_dropped() && !server.is_dropped());
}

#[test]
fn a_client_of_session_mode_has_its_user_before_all_else() {
    let mut world = World::shared(1);
    let ann = world.client_as(Some("ann"), PoolMode::Session, &[("work_mem", "5MB")]);
    let server = world.servers[0].clone();
    assert_eq!(sent(&server), ["RESET ALL", "-> ann"]);
    world.send(&server, &[reset(), handed("ann", &[])].concat());
    assert_eq!(sent(&server), ["BEGIN", "SET \"work_mem\" TO '5MB';COMMIT"]);
    assert!(ann.kinds().ends_with("KZ"));
    world.send(&server, &answers("CI"));
    world.close(&ann);
    assert_eq!(sent(&server), ["DISCARD ALL"]);
    world.send(&server, &answers("CI"));
    world.client_as(Some("bob"), PoolMode::Session, &[]);
    assert_eq!(sent(&server), ["RESET ALL", "-> bob"]);
}

#[test]
fn who_waits_for_a_backend_to_begin_gets_it_in_turn() {
    let mut world = World::shared(1);
    let ann = client(&mut world, "ann");
    let server = world.servers[0].clone();
    world.send(&ann, &query("BEGIN"));
    world.send(&server, &answers("CT"));
    let bob = world.client_as(Some("bob"), PoolMode::Transaction, &[]);
    assert_eq!((sent(&server), bob.kinds()), (vec!["BEGIN".to_owned()], String::new()));
    world.send(&ann, &query("COMMIT"));
    world.send(&server, &answers("CI"));
    assert_eq!(sent(&server), ["COMMIT", "RESET ALL", "-> bob"]);
    world.send(&server, &[reset(), handed("bob", &[])].concat());
    assert!(bob.kinds().ends_with("KZ"));
    assert_eq!(world.idle_backends(), 1);
}

#[test]
fn a_login_does_not_wait_for_a_busy_pool_and_the_query_does() {
    let mut world = World::shared(1);
    let ann = client(&mut world, "ann");
    let server = world.servers[0].clone();
    world.send(&ann, &query("SELECT pg_sleep(60)"));
    sent(&server);
    let bob = world.client_as(Some("bob"), PoolMode::Transaction, &[("DateStyle", "ISO, DMY")]);
    assert_eq!(bob.kinds(), "", "perhaps it is its turn in a moment");
    world.wait_ms(200);
    let greeting = bob.received();
    assert!(kinds(&greeting).ends_with("KZ"), "{}", kinds(&greeting));
    let has = |bytes: &[u8], name, value| {
        let said = parameter(name, value);
        bytes.windows(said.len()).any(|part| part == said)
    };
    for (name, value) in [("session_authorization", "bob"), ("DateStyle", "ISO, DMY")] {
        assert!(has(&greeting, name, value), "{name}");
    }
    assert_eq!(world.pool.lock().waiting_count(), 0, "it wants no backend yet");
    // A Parse that others have had prepared is not answered for a session that does not exist.
    world.send(&bob, &[parse("s", "SELECT 2"), bind("s"), execute(), sync()].concat());
    assert_eq!((bob.kinds(), world.pool.lock().waiting_count()), (String::new(), 1));
    world.send(&server, &answers("CI"));
    assert_eq!(sent(&server), ["RESET ALL", "-> bob"]);
    world.send(&server, &[reset(), handed("bob", &[("TimeZone", "Asia/Tokyo")])].concat());
    let told = bob.received();
    assert!(has(&told, "TimeZone", "Asia/Tokyo"), "{}", kinds(&told));
    assert_eq!(kinds(&told), "S", "only what is different");
    assert!(sent(&server).ends_with(&["P", "B", "E", "S"].map(str::to_owned)));
    // The next one of the same user gets the error at once.
    let again = world.client_as(Some("bob"), PoolMode::Transaction, &[]);
    world.wait_ms(200);
    assert!(has(&again.received(), "TimeZone", "Asia/Tokyo"));
}

#[test]
fn a_client_greeted_early_and_refused_later_gets_the_error_at_its_first_query() {
    let mut world = World::shared(1);
    let ann = client(&mut world, "ann");
    let server = world.servers[0].clone();
    world.send(&ann, &query("SELECT pg_sleep(60)"));
    let bob = world.client_as(Some("bob"), PoolMode::Transaction, &[]);
    world.wait_ms(200);
    assert!(bob.kinds().ends_with("KZ"));
    world.send(&server, &answers("CI"));
    world.send(&bob, &query("DELETE FROM t"));
    sent(&server);
    world.send(&server, &[reset(), refusal("28000")].concat());
    assert_eq!(bob.kinds(), "E");
    assert!(bob.is_dropped());
    assert!(!sent(&server).contains(&"DELETE FROM t".to_owned()));
}

#[test]
fn a_short_timeout_is_taken_off_before_it_can_cut_off_a_hand_over() {
    let mut world = World::shared(1);
    let ann = client(&mut world, "ann");
    let server = world.servers[0].clone();
    world.send(&ann, &query("SET statement_timeout = 50"));
    world.send(&server, &answers("CI"));
    world.send(&server, &value("50ms"));
    sent(&server);
    let cut_off = refusal("57014");
    // One that is to be greeted.
    let bob = world.client_as(Some("bob"), PoolMode::Transaction, &[]);
    for _ in 0..2 {
        assert_eq!(sent(&server), ["SET statement_timeout TO 0"; 2]);
        world.send(&server, &cut_off.repeat(2));
    }
    assert_eq!(sent(&server), ["SET statement_timeout TO 0"; 2]);
    world.send(&server, &answers("CICI"));
    assert_eq!(sent(&server), ["RESET ALL", "-> bob"]);
    world.send(&server, &[reset(), handed("bob", &[])].concat());
    assert!(bob.kinds().ends_with("KZ"));
    // And one that has been.
    world.send(&ann, &query("SELECT 1"));
    world.send(&server, &[reset(), handed("ann", &[])].concat());
    let all = sent(&server);
    assert!(all.ends_with(&["SET \"statement_timeout\" TO '50ms'".into(), "SELECT 1".into()]));
    world.send(&server, &answers("CICI"));
    assert!(ann.kinds().ends_with("CZ"));
    world.send(&bob, &query("SELECT 2"));
    assert_eq!(sent(&server), ["SET statement_timeout TO 0"; 2]);
    world.send(&server, &cut_off.repeat(2));
    assert_eq!(sent(&server), ["SET statement_timeout TO 0"; 2]);
    world.send(&server, &answers("CICI"));
    assert_eq!(sent(&server), ["RESET ALL", "-> bob"]);
    world.send(&server, &[reset(), handed("bob", &[])].concat());
    assert_eq!(sent(&server), ["SELECT 2"]);
}
