//! What no single generated session shows: two sessions at once, protocol errors, versions.

use std::time::Duration;

use hawser_lab::model::client::{Comparison, Oracle};
use hawser_lab::model::wire::{self, Message, Reader};
use hawser_lab::model::{Ending, Fault, ModelBackend, ModelServer, ServerConfig, frontend};

fn messages(backend: &mut ModelBackend) -> Vec<Message> {
    let mut bytes = backend.take_output();
    std::iter::from_fn(|| wire::cut(&mut bytes, true).expect("the model's own messages")).collect()
}

fn tags(backend: &mut ModelBackend) -> String {
    messages(backend).iter().map(|message| char::from(message.tag)).collect()
}

fn startup(version: i32) -> Message {
    frontend::startup(version, &[("user", "app"), ("database", "app")])
}

fn session(server: &ModelServer) -> ModelBackend {
    let mut backend = server.connect();
    backend.receive(&startup(frontend::PROTOCOL_3_0).encode());
    assert!(tags(&mut backend).starts_with('R'));
    backend
}

fn ask(backend: &mut ModelBackend, text: &str) -> String {
    backend.receive(&frontend::query(text).encode());
    tags(backend)
}

#[test]
fn nothing_leaves_before_the_server_would_flush() {
    let mut backend = session(&ModelServer::new(ServerConfig::default()));
    backend.receive(&frontend::parse("", "SELECT 'x'", &[]).encode());
    backend.receive(&frontend::bind("", "", &[], false).encode());
    assert_eq!(tags(&mut backend), "");
    backend.receive(&frontend::flush().encode());
    assert_eq!(tags(&mut backend), "12");
    backend.receive(&frontend::execute("", 0).encode());
    backend.receive(&frontend::sync().encode());
    assert_eq!(tags(&mut backend), "DCZ");
}

#[test]
fn a_foreign_message_during_copy_costs_the_connection() {
    let mut backend = session(&ModelServer::new(ServerConfig::default()));
    assert_eq!(ask(&mut backend, "COPY ledger_0 FROM STDIN"), "G");
    backend.receive(&frontend::query("SELECT 'x'").encode());
    assert_eq!(tags(&mut backend), "EE");
    assert_eq!(backend.ending(), Some(Ending::Closed));
}

#[test]
fn an_unknown_message_type_is_fatal_before_its_length_has_come() {
    let mut backend = session(&ModelServer::new(ServerConfig::default()));
    backend.receive(b"y");
    assert_eq!(tags(&mut backend), "E");
    assert_eq!(backend.ending(), Some(Ending::Closed));
}

#[test]
fn a_version_that_is_too_new_is_negotiated_down() {
    for (minor, asked, secret_bytes, first) in [
        (0, frontend::PROTOCOL_3_0, 4, 'R'),
        (0, frontend::PROTOCOL_3_2, 4, 'v'),
        (2, frontend::PROTOCOL_3_0, 4, 'R'),
        (2, frontend::PROTOCOL_3_2, 32, 'R'),
    ] {
        let server =
            ModelServer::new(ServerConfig { protocol_minor: minor, ..ServerConfig::default() });
        let mut backend = server.connect();
        backend.receive(&startup(asked).encode());
        let messages = messages(&mut backend);
        let key = messages.iter().find(|message| message.tag == b'K').expect("it logs in");
        assert_eq!(char::from(messages[0].tag), first, "{minor} {asked}");
        assert_eq!(key.body.len(), 4 + secret_bytes, "{minor} {asked}");
    }
}

#[test]
fn a_lock_is_waited_for_until_its_holder_goes() {
    let server = ModelServer::new(ServerConfig::default());
    let (mut holder, mut waiter) = (session(&server), session(&server));
    assert_eq!(ask(&mut holder, "SELECT pg_advisory_lock(7)"), "TDCZ");
    assert_eq!(ask(&mut waiter, "SELECT pg_advisory_lock(7)"), "");
    assert!(waiter.is_waiting());
    assert_eq!(ask(&mut holder, "ROLLBACK"), "NCZ", "no rollback frees a session's lock");
    waiter.run();
    assert_eq!(tags(&mut waiter), "");
    holder.receive(&frontend::terminate().encode());
    waiter.run();
    assert_eq!(tags(&mut waiter), "TDCZ");
    assert_eq!(server.locks(), [(7, waiter.process().expect("it is logged in"))]);
}

#[test]
fn a_notification_waits_for_the_end_of_the_receivers_transaction() {
    let server = ModelServer::new(ServerConfig::default());
    let (mut sender, mut receiver) = (session(&server), session(&server));
    assert_eq!(ask(&mut receiver, "LISTEN news; "), "CZ");
    assert_eq!(ask(&mut receiver, "BEGIN"), "CZ");
    assert_eq!(ask(&mut sender, "BEGIN; NOTIFY news, 'a'"), "CCZ");
    receiver.run();
    assert_eq!(tags(&mut receiver), "", "not committed");
    assert_eq!(ask(&mut sender, "COMMIT"), "CZ");
    receiver.run();
    assert_eq!(tags(&mut receiver), "", "in a transaction");
    assert_eq!(ask(&mut receiver, "COMMIT"), "CAZ");
    assert_eq!(ask(&mut sender, "NOTIFY news, 'b'"), "CZ");
    receiver.run();
    assert_eq!(tags(&mut receiver), "A", "idle: at once");
}

#[test]
fn a_cancel_ends_the_sleep_it_was_meant_for_and_nothing_later() {
    let server = ModelServer::new(ServerConfig::default());
    let mut backend = server.connect();
    backend.receive(&startup(frontend::PROTOCOL_3_0).encode());
    let key = messages(&mut backend).into_iter().find(|m| m.tag == b'K').expect("it logs in");
    let mut reader = Reader::new(&key.body);
    let process = reader.int32().expect("it is there");
    let cancel = |secret: &[u8]| {
        let mut other = server.connect();
        other.receive(&frontend::cancel(process, secret).encode());
        assert_eq!((other.take_output(), other.ending()), (Vec::new(), Some(Ending::Closed)));
    };
    assert_eq!(ask(&mut backend, "SELECT pg_sleep(5)"), "");
    cancel(b"none");
    backend.run();
    assert_eq!(tags(&mut backend), "", "a wrong secret does nothing");
    cancel(reader.rest());
    backend.run();
    assert_eq!(tags(&mut backend), "TEZ");
    cancel(reader.rest());
    assert_eq!(ask(&mut backend, "SELECT pg_sleep(5)"), "", "an idle session forgets it");
    server.advance_to(Duration::from_secs(5));
    backend.run();
    assert_eq!(tags(&mut backend), "TDCZ");
}

#[test]
fn a_crash_takes_every_session_along() {
    let server = ModelServer::new(ServerConfig::default());
    let (mut one, mut other) = (session(&server), session(&server));
    assert_eq!(ask(&mut one, "BEGIN; INSERT INTO ledger_0 VALUES (1)"), "CCZ");
    server.crash();
    for backend in [&mut one, &mut other] {
        backend.run();
        assert_eq!((tags(backend).as_str(), backend.ending()), ("N", Some(Ending::Closed)));
    }
    assert_eq!(server.rows("ledger_0"), Some(Vec::new()), "what was not committed is gone");
    assert_eq!(server.processes(), []);
}

#[test]
fn a_stalled_server_answers_once_it_resumes() {
    let mut backend = session(&ModelServer::new(ServerConfig::default()));
    backend.inject(Fault::Stall);
    assert_eq!(ask(&mut backend, "SELECT 'x'"), "");
    backend.inject(Fault::Resume);
    assert_eq!(tags(&mut backend), "TDCZ");
}

/// A client whose statement sleeps and which has asked for a cancel, or has not.
fn sleeping(cancels: bool) -> Oracle {
    let mut oracle = Oracle::new(ServerConfig::default(), Comparison::Exact);
    let mut real = ModelServer::new(ServerConfig::default()).connect();
    let mut tell = |oracle: &mut Oracle, message: &Message| {
        oracle.send(message);
        real.receive(&message.encode());
        oracle.receive(&real.take_output()).expect("the same model");
    };
    tell(&mut oracle, &startup(frontend::PROTOCOL_3_0));
    tell(&mut oracle, &frontend::query("INSERT INTO ledger_0 VALUES (5)"));
    oracle.send(&frontend::query("BEGIN; SELECT pg_sleep(5)"));
    if cancels {
        oracle.send_cancel();
    }
    oracle
}

fn refusal(status: u8) -> Vec<u8> {
    let error = hawser_lab::model::PgError::cancelled().encode();
    let ready = wire::Body::new().byte(status).message(b'Z');
    [error.encode(), ready.encode()].concat()
}

#[test]
fn a_cancelled_wait_refuses_the_whole_query() {
    let mut oracle = sleeping(true);
    oracle.receive(&refusal(b'I')).expect("it was asked for, and nothing had begun");
    assert!(oracle.is_silent());
    assert_eq!(oracle.server().rows("ledger_0"), Some(vec![5]), "what was done stays done");
    assert!(sleeping(true).receive(&refusal(b'T')).is_err(), "BEGIN was refused as well");
}

#[test]
fn an_unrequested_cancel_is_noticed() {
    assert!(sleeping(false).receive(&refusal(b'I')).is_err());
}
