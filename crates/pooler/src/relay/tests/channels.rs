//! Clients that listen, and look at what they listen on.

use super::harness::*;
use crate::ids::{LoopId, ServerAddressId};
use crate::parts::identity::process_ids::PROCESS_ID_FIRST;
use crate::relay::tests::census::{LOCKS, learn};
use crate::relay::{ListenLost, PoolMode, ToLoop};

const LOOK: &str = "SELECT pg_listening_channels()";
/// What makes the backend listen on the client's channels.
const LISTENS: &str = "LISTEN \"it's\";LISTEN \"one\";";

/// The text between two others, at their first occurrence.
fn between<'a>(text: &'a str, before: &str, after: &str) -> &'a str {
    let start = text.find(before).unwrap() + before.len();
    &text[start..start + text[start..].find(after).unwrap()]
}

/// A client that listens, and keeps no backend for that; the only backend; and the listening
/// connection.
fn listener() -> (World, Peer, Peer, Peer) {
    listener_with(&[])
}

/// The same, with start values.
fn listener_with(start: &[(&str, &str)]) -> (World, Peer, Peer, Peer) {
    let mut world = World::new(1);
    world.asked.opens_listeners = true;
    let client = world.client_of(LoopId(0), PoolMode::Transaction, start);
    world.send(&client, &query("LISTEN one; LISTEN \"it's\""));
    let server = world.servers[0].clone();
    let settings = if start.is_empty() { "" } else { "Q" };
    assert_eq!(server.kinds(), format!("{settings}Q"));
    if !start.is_empty() {
        let set = start.iter().map(|(name, value)| parameter(name, value)).collect::<Vec<_>>();
        world.send(&server, &[answers("C"), set.concat(), answers("I")].concat());
    }
    world.send(&server, &answers("CCI"));
    assert_eq!(server.kinds(), "Q", "it is asked what it listens on");
    let rows = ["one", "it's"].map(|name| {
        let length = u32::try_from(name.len()).unwrap().to_be_bytes();
        message(b'D', &[&[0, 1][..], &length, name.as_bytes()].concat())
    });
    world.send(&server, &[columns(), rows.concat(), answers("CI")].concat());
    let hub = world.servers[1].clone();
    while hub.kinds() == "Q" {
        world.send(&hub, &answers("CCI"));
    }
    let marked = String::from_utf8(server.received()).unwrap();
    let (marker, ticket) = (between(&marked, "LISTEN \"", "\""), between(&marked, ",'", "'"));
    let notified = format!("{marker}\0{ticket}\0");
    let notified = message(b'A', &[&101_u32.to_be_bytes()[..], notified.as_bytes()].concat());
    world.send(&server, &[&answers("CC")[..], &notified, &answers("ICI")].concat());
    world.send(&hub, &notified);
    assert_eq!(client.kinds(), "CCZ");
    assert_eq!(world.idle_backends(), 1);
    (world, client, server, hub)
}

/// A client that listens begins a transaction: earlier notifications come first.
fn begins(world: &mut World, client: &Peer, hub: &Peer, messages: &[u8]) {
    world.send(client, messages);
    assert_eq!(hub.kinds(), "Q", "has all come that was notified up to here?");
    world.send(hub, &answers("CI"));
}

/// The same, in a transaction block.
fn in_a_block() -> (World, Peer, Peer) {
    let (mut world, client, server, hub) = listener();
    begins(&mut world, &client, &hub, &query("BEGIN"));
    assert_eq!(server.received(), [query(LISTENS), query("BEGIN")].concat());
    world.send(&server, &answers("CCICT"));
    assert_eq!(client.kinds(), "CZ");
    (world, client, server)
}

#[test]
fn a_transaction_block_begins_with_the_channels_that_it_may_look_at() {
    let (mut world, client, server) = in_a_block();
    world.send(&client, &query(LOOK));
    assert_eq!(server.received(), query(LOOK));
    world.send(&server, &answers("CT"));
    assert_eq!(client.kinds(), "CZ");
}

#[test]
fn pipelines_and_texts_that_may_begin_a_block_begin_with_the_channels() {
    let run = |text: &str| [parse("", text), bind(""), execute(), sync()].concat();
    for (sent, brings) in [
        (run("BEGIN"), true),
        (query("SET x = 1; BEGIN"), true),
        ([parse("", "SELECT 1"), bind(""), execute(), run("BEGIN")].concat(), true),
        (run("SELECT 1"), false),
        (query("SELECT 1"), false),
    ] {
        let (mut world, client, server, hub) = listener();
        begins(&mut world, &client, &hub, &sent);
        let brought = if brings { query(LISTENS) } else { Vec::new() };
        assert_eq!(server.received(), [brought, sent].concat());
    }
}

#[test]
fn the_first_look_before_a_transaction_brings_the_channels() {
    let (mut world, client, server, hub) = listener();
    begins(&mut world, &client, &hub, &query(LOOK));
    assert_eq!(server.received(), [query(LISTENS), query(LOOK)].concat());
}

#[test]
fn a_rollback_goes_before_its_text_for_a_client_that_listens_too() {
    for refused in [false, true] {
        let (mut world, client, server, hub) = listener();
        begins(&mut world, &client, &hub, &[parse("s", "SELECT 1"), sync()].concat());
        world.send(&server, &answers("1I"));
        assert_eq!(hub.kinds(), "Q", "its own notifications come before its answer");
        world.send(&hub, &answers("CI"));
        begins(&mut world, &client, &hub, &query("BEGIN"));
        world.send(&server, &answers("CCICT"));
        world.send(&client, &query("LISTEN two"));
        assert!(String::from_utf8_lossy(&hub.received()).contains("LISTEN \"two\""));
        world.send(&hub, &answers("CI"));
        world.send(&server, &answers("CT"));
        world.send(&client, &query("SELECT 1/0"));
        world.send(&server, &answers("EF"));
        assert_eq!(client.kinds(), "1ZCZCZEZ");
        server.received();

        world.send(&client, &query("ROLLBACK; EXECUTE s"));
        assert_eq!(server.received(), query("ROLLBACK"));
        world.send(&server, &answers("CI"));
        let sent = server.received();
        assert_eq!(kinds(&sent), "PS");
        assert!(sent.starts_with(&parse("s", "SELECT 1")));
        if refused {
            world.send(&server, &answers("EI"));
            assert_eq!((client.kinds(), server.kinds()), ("CE".to_owned(), "S".to_owned()));
            world.send(&server, &answers("I"));
        } else {
            world.send(&server, &answers("1I"));
            let text = [query("BEGIN"), query("ROLLBACK; EXECUTE s")].concat();
            assert_eq!(server.received(), text);
            world.send(&server, &[answers("CTC"), columns(), answers("DCI")].concat());
        }
        // The server is asked for the outcome of the LISTEN.
        assert_eq!((client.kinds(), server.kinds()), (String::new(), "Q".to_owned()));
        world.send(&server, &[columns(), row_of("one"), row_of("it's"), answers("CI")].concat());
        assert_eq!(server.received(), query("UNLISTEN *"));
        world.send(&server, &answers("CI"));
        while hub.kinds() == "Q" {
            world.send(&hub, &answers("CI"));
        }
        assert_eq!(client.kinds(), if refused { "Z" } else { "CTDCZ" });
    }
}

/// A notification on a channel of the client's, on the listening connection.
fn notification(channel: &str) -> Vec<u8> {
    message(b'A', &[&7_u32.to_be_bytes()[..], format!("{channel}\0said\0").as_bytes()].concat())
}

#[test]
fn what_is_notified_while_the_server_is_asked_about_the_session_comes_when_it_has_answered() {
    let (mut world, client, server, hub) = listener();
    learn(&world, &[LOCKS]);
    begins(&mut world, &client, &hub, &query("SELECT locks()"));
    assert_eq!(server.kinds(), "Q");
    world.send(&server, &answers("CI"));
    assert_eq!(hub.kinds(), "Q", "its own notifications come before its answer");
    world.send(&hub, &answers("I"));
    assert_eq!((client.kinds(), server.kinds()), ("CZ".to_owned(), "Q".to_owned()));
    world.send(&hub, &notification("one"));
    assert_eq!(client.kinds(), "", "its backend is at work");
    world.send(&server, &told(false));
    assert_eq!(client.received(), notification("one"));
}

/// lib/pq's TestListenerUnlisten: what was committed before the UNLISTEN was sent was lost if the
/// listening connection was slower than the client's own.
#[test]
fn what_was_notified_before_an_unlisten_comes_before_it() {
    let block = [query("BEGIN"), query("UNLISTEN one"), query("COMMIT")];
    let texts = ["UNLISTEN one", "UNLISTEN *", "DISCARD ALL"].map(|text| vec![query(text)]);
    for messages in texts.into_iter().chain([block.to_vec()]) {
        let (mut world, client, server, hub) = listener();
        world.send(&client, &messages[0]);
        assert_eq!((server.kinds(), hub.kinds()), (String::new(), "Q".to_owned()));
        world.send(&hub, &[notification("one"), answers("CI")].concat());
        assert_eq!(client.received(), notification("one"));
        // What comes now, before it is answered, was notified after it was sent.
        world.send(&hub, &notification("one"));
        for (at, message) in messages.iter().enumerate() {
            if at > 0 {
                world.send(&client, message);
            }
            let sent = text(&server.received());
            let tag = if sent.contains("DISCARD ALL") { "DISCARD ALL" } else { "DONE" };
            let marks = if sent.contains(";LISTEN") { "C" } else { "" };
            let status = if at + 1 < messages.len() { "T" } else { "I" };
            let done = message_of(tag);
            world.send(&server, &[done, answers(marks), answers(status)].concat());
        }
        if server.kinds() == "Q" {
            // What it listens on: the mark of its UNLISTEN.
            let rows = row_of("hawser_unlisten_1");
            world.send(&server, &[columns(), rows, answers("CI")].concat());
        }
        while server.kinds() == "Q" || hub.kinds() == "Q" {
            world.send(&server, &answers("CI"));
            world.send(&hub, &answers("CI"));
        }
        assert!(!client.kinds().contains('A'), "not after it");
    }
}

/// The CommandComplete of this tag.
fn message_of(tag: &str) -> Vec<u8> {
    message(b'C', format!("{tag}\0").as_bytes())
}

#[test]
fn what_is_notified_while_a_failed_pipeline_is_skipped_comes_after_its_end() {
    let (mut world, client, server, hub) = listener();
    begins(&mut world, &client, &hub, &[bind("nothing"), execute()].concat());
    assert_eq!(server.kinds(), "BE");
    world.send(&server, &answers("E"));
    assert_eq!((server.kinds(), client.kinds()), ("S".to_owned(), "E".to_owned()));
    world.send(&server, &answers("I"));
    world.send(&hub, &notification("one"));
    assert_eq!(client.kinds(), "", "in the middle of its pipeline");
    world.send(&client, &sync());
    assert_eq!(client.kinds(), "ZA");
}

#[test]
fn a_listen_after_a_discard_all_of_its_own_pipeline_counts() {
    let (mut world, client, server, hub) = listener();
    let run = |text: &str| [parse("", text), bind(""), execute()].concat();
    begins(&mut world, &client, &hub, &[run("DISCARD ALL"), run("LISTEN two"), sync()].concat());
    assert_eq!(server.kinds(), "PBEP");
    assert!(String::from_utf8_lossy(&hub.received()).contains("LISTEN \"two\""));
    world.send(&hub, &answers("CI"));
    assert_eq!(server.kinds(), "BES");
    let discarded = [answers("12"), message(b'C', b"DISCARD ALL\0")].concat();
    world.send(&server, &[discarded, answers("12CI")].concat());
    assert_eq!(server.kinds(), "Q", "it is asked what it listens on");
    let row = message(b'D', &[&[0, 1, 0, 0, 0, 3][..], b"two"].concat());
    world.send(&server, &[columns(), row, answers("CI")].concat());
    let left = String::from_utf8_lossy(&server.received()).into_owned();
    assert!(left.contains("UNLISTEN *"), "{left}");
    assert_eq!(world.idle_backends(), 0);
}

/// Isolation test, seed 7108. A client with start values gets a Sync of Hawser's after its DISCARD
/// ALL: its own was answered here, and it still got notifications on its old channels until the end
/// of its next transaction.
#[test]
fn a_client_that_has_discarded_all_is_notified_of_nothing() {
    for start in [&[][..], &[("application_name", "a")]] {
        let (mut world, client, server, hub) = listener_with(start);
        let discards = [parse("", "DISCARD ALL"), bind(""), execute()].concat();
        begins(&mut world, &client, &hub, &discards);
        if start.is_empty() {
            world.send(&client, &sync());
        }
        assert_eq!(server.kinds(), "PBES");
        let discarded = message(b'C', b"DISCARD ALL\0");
        world.send(&server, &[answers("12"), discarded, answers("I")].concat());
        if !start.is_empty() {
            world.send(&client, &sync());
            assert_eq!(server.kinds(), "");
        }
        let told = client.kinds();
        assert!(told.starts_with("12C") && told.ends_with('Z'), "{start:?}: {told}");
        let notified = message(b'A', &[&102_u32.to_be_bytes()[..], b"one\0x\0"].concat());
        world.send(&hub, &notified);
        assert_eq!(client.kinds(), "", "{start:?}");
        assert_eq!(kinds(&hub.received()), "Q", "{start:?}: no client listens any more");
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A row of one text.
fn row_of(text: &str) -> Vec<u8> {
    let length = u32::try_from(text.len()).unwrap().to_be_bytes();
    message(b'D', &[&[0, 1][..], &length, text.as_bytes()].concat())
}

/// A notification of this process.
fn notified(process: u32, channel: &str, payload: &str) -> Vec<u8> {
    let said = format!("{channel}\0{payload}\0");
    message(b'A', &[&process.to_be_bytes()[..], said.as_bytes()].concat())
}

/// Notifications of the previous client's trigger were attributed to the next client, if that
/// notified, too, before the listening connection had received them.
#[test]
fn a_text_that_notifies_waits_until_earlier_notifications_have_been_received() {
    for block in [false, true] {
        let (mut world, client, server, hub) = listener();
        let (before, next) = (world.client(), world.client());
        world.send(&before, &query("INSERT INTO triggers"));
        let mut process = 0;
        world.with_backend_of(&before, |backend| process = backend.process());
        world.send(&server, &answers("CI"));
        server.received();
        if block {
            world.send(&next, &query("BEGIN"));
            world.send(&server, &answers("CT"));
            server.received();
        }
        world.send(&next, &query("NOTIFY one, 'b'"));
        assert_eq!((server.kinds(), hub.kinds()), (String::new(), "Q".to_owned()));
        let of_trigger = notified(process, "one", "a");
        world.send(&hub, &[&of_trigger[..], &answers("CI")].concat());
        assert_eq!(client.received(), of_trigger, "no client is named");
        assert_eq!(server.received(), query("NOTIFY one, 'b'"));
        world.send(&server, &answers(if block { "CT" } else { "CI" }));
        world.send(&hub, &notified(process, "one", "b"));
        let told = client.received();
        assert!(text(&told).contains("one\0b"), "{}", text(&told));
        assert_ne!(told, notified(process, "one", "b"), "the sender is known");
        if !block {
            assert_eq!(
                hub.kinds(),
                "Q",
                "its notifications are received before another client gets the backend"
            );
            world.send(&hub, &answers("CI"));
        }
        // Nothing else has been notified by it since.
        world.send(&next, &query("NOTIFY one, 'c'"));
        assert_eq!((server.kinds(), hub.kinds()), ("Q".to_owned(), String::new()));
    }
}

/// Notifications that had not been received when the next client got the backend had the server's
/// own process id; those of functions and triggers always did.
#[test]
fn a_backend_whose_client_has_notified_goes_to_no_other_before_the_listener_has_received_it() {
    let tells = ("locks", "BEGIN PERFORM pg_notify('one', 'b'); RETURN NEW; END");
    for text in ["NOTIFY one, 'b'", "INSERT INTO audited VALUES (1)", "SELECT locks()"] {
        let (mut world, client, server, hub) = listener();
        learn(&world, &[tells]);
        let (sender, next) = (world.client(), world.client());
        world.send(&sender, &query(text));
        let mut process = 0;
        world.with_backend_of(&sender, |backend| process = backend.process());
        assert_eq!((server.kinds(), hub.kinds()), (String::new(), "Q".to_owned()), "{text}");
        world.send(&hub, &answers("CI"));
        assert_eq!(server.received(), query(text));
        world.send(&next, &query("SELECT 1"));
        world.send(&server, &answers("CI"));
        assert_eq!(sender.kinds(), "CZ", "{text}: the sender waits for nothing");
        assert_eq!((server.kinds(), hub.kinds()), (String::new(), "Q".to_owned()), "{text}");
        world.send(&hub, &[notified(process, "one", "b"), answers("CI")].concat());
        assert_eq!(server.received(), query("SELECT 1"), "{text}");
        let told = client.received();
        assert_eq!(told[9..], notified(process, "one", "b")[9..], "{text}");
        assert_ne!(told, notified(process, "one", "b"), "{text}: the sender is known");
        world.send(&server, &answers("CI"));
        assert_eq!((next.kinds().as_str(), hub.kinds().as_str()), ("CZ", ""), "{text}");
    }
}

#[test]
fn a_backend_without_an_answer_from_the_listener_goes_on() {
    for lost in [true, false] {
        let (mut world, _client, server, hub) = listener();
        let (sender, next) = (world.client(), world.client());
        world.send(&sender, &query("NOTIFY one"));
        assert_eq!(hub.kinds(), "Q");
        world.send(&hub, &answers("CI"));
        server.received();
        world.send(&next, &query("SELECT 1"));
        world.send(&server, &answers("CI"));
        assert_eq!((server.kinds(), hub.kinds()), (String::new(), "Q".to_owned()));
        if lost {
            world.close(&hub);
        } else {
            world.wait_ms(1_500);
        }
        assert_eq!(server.received(), query("SELECT 1"), "lost: {lost}");
    }
}

#[test]
fn a_backend_waits_for_no_listening_connection_that_there_is_not() {
    let (mut world, _client, server, hub) = listener();
    world.change_settings(|settings| settings.listen_lost = ListenLost::Notice);
    let (sender, next) = (world.client(), world.client());
    world.send(&sender, &query("NOTIFY one"));
    world.send(&hub, &answers("CI"));
    world.send(&server, &answers("CI"));
    world.send(&hub, &answers("CI"));
    assert_eq!((sender.kinds().as_str(), world.idle_backends()), ("CZ", 1));
    world.asked.opens_listeners = false;
    world.close(&hub);
    server.received();
    world.send(&sender, &query("NOTIFY one"));
    world.send(&next, &query("SELECT 1"));
    assert_eq!(server.received(), query("NOTIFY one"));
    world.send(&server, &answers("CI"));
    assert_eq!(server.received(), query("SELECT 1"));
}

/// Simulation, seed 4 of `sessions_of_their_own_share_a_pool_with_others`: it had an id that the
/// client did not know.
#[test]
fn in_session_mode_what_a_client_notifies_bears_the_id_of_its_server_process() {
    let mut world = World::new(1);
    let client = world.client_of(LoopId(0), PoolMode::Session, &[]);
    world.send(&client, &query("LISTEN one"));
    let server = world.servers[0].clone();
    world.send(&server, &answers("CI"));
    client.received();
    world.send(&client, &query("NOTIFY one, 'said'"));
    let mut process = 0;
    world.with_backend_of(&client, |backend| process = backend.process());
    let answer = [answers("C"), notified(process, "one", "said"), answers("I")].concat();
    world.send(&server, &answer);
    assert_eq!(client.received(), answer);
}

/// Isolation test, seed 10003. While a client's backend takes over its channels, it gets the
/// markers of all clients.
#[test]
fn markers_of_others_are_for_no_client() {
    let (mut world, client, server, hub) = listener();
    begins(&mut world, &client, &hub, &query("SET client_encoding TO 'LATIN1'"));
    let encoding = parameter("client_encoding", "LATIN1");
    world.send(&server, &[answers("C"), encoding, answers("I")].concat());
    while hub.kinds() == "Q" {
        world.send(&hub, &answers("CI"));
    }
    world.send(&server, &value("4c4154494e31")); // in hexadecimal
    begins(&mut world, &client, &hub, &query("LISTEN two"));
    world.send(&server, &answers("CI"));
    client.received();
    server.received();
    world.send(&server, &[columns(), row_of("two"), answers("CI")].concat());
    while hub.kinds() == "Q" {
        world.send(&hub, &answers("CI"));
    }
    let sent = text(&server.received());
    let marker = between(&sent, "UNLISTEN \"", "\"");
    let ticket = between(&sent, ",'", "'");
    let process = 101;
    let [own, others] = [ticket, "1.7.502.1"].map(|ticket| notified(process, marker, ticket));
    let of_others = notified(7, marker, "1.7.502.1");
    let received = [&others[..], &of_others, &own, &others, &of_others, &notified(7, "one", "x")];
    world.send(&server, &[&answers("CCCCI")[..], &received.concat(), &answers("CICI")].concat());
    world.send(&hub, &own);
    while hub.kinds() == "Q" {
        world.send(&hub, &answers("CI"));
    }
    let told = client.received();
    assert!(text(&told).contains("one\0x"), "{}", text(&told));
    assert_eq!(kinds(&told), "CAZ", "{}", text(&told));
}

/// A server that the pool has left may live on: notifications on the clients' current server never
/// come there.
#[test]
fn the_listening_connection_follows_its_pool_to_another_server() {
    let (mut world, client, old, hub) = listener();
    world.pool.begin_epoch();
    world.wait_ms(2_000);
    assert!(!hub.is_dropped(), "it may be the same server yet");
    world.server_address = ServerAddressId(1);
    let other = world.client();
    world.send(&other, &query("SELECT 1"));
    world.send(&old, &answers("CI"));
    assert!(old.is_dropped(), "of the epoch before");
    assert_eq!(other.kinds(), "CZ");
    world.send(&other, &query("LISTEN two"));
    let server = world.servers.last().unwrap().clone();
    world.send(&server, &answers("CI"));
    world.send(&server, &[columns(), row_of("two"), answers("CI")].concat());
    while !hub.is_dropped() && hub.kinds() == "Q" {
        world.send(&hub, &answers("CI"));
    }
    let sent = String::from_utf8_lossy(&server.received()).into_owned();
    assert!(!sent.contains("NOTIFY"), "it would not be received");
    assert_eq!(other.kinds(), "CZ", "its own server connection listens");
    assert_eq!(world.idle_backends(), 0);
    world.wait_ms(2_000);
    assert!(hub.is_dropped());
    assert!(String::from_utf8_lossy(&client.received()).contains("listens for this one"));
}

/// A cancel request that comes late would hit Hawser's question about the client's channels, and
/// end its session.
#[test]
fn what_becomes_of_channels_is_asked_once_no_cancel_request_is_on_its_way() {
    let (mut world, client, server, hub) = listener();
    begins(&mut world, &client, &hub, &query("UNLISTEN one; SELECT pg_sleep(1)"));
    server.received();
    let cancel = ToLoop::Cancel { process: PROCESS_ID_FIRST, key: [9; 4].into() };
    world.deliver(LoopId(0), cancel);
    world.send(&server, &answers("CCCI"));
    assert_eq!((server.kinds(), client.kinds()), (String::new(), String::new()));
    world.deliver(LoopId(0), ToLoop::CancelDone(world.asked.cancels[0].backend));
    assert_eq!(server.kinds(), "Q");
    world.send(&server, &[columns(), row_of("hawser_unlisten_1"), answers("CI")].concat());
    while hub.kinds() == "Q" {
        world.send(&hub, &answers("CI"));
    }
    assert_eq!(server.kinds(), "Q", "UNLISTEN");
    world.send(&server, &answers("CI"));
    while hub.kinds() == "Q" {
        world.send(&hub, &answers("CI"));
    }
    assert_eq!(client.kinds(), "CCZ");
}
