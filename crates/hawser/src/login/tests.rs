//! Logins from the first byte to the loop, against servers that answer as the test wants.

use std::sync::Mutex;

use hawser_pooler::wire::error::field;
use hawser_pooler::wire::startup::{GSSENC_REQUEST, write_cancel, write_startup};
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::UnixStream;

use super::*;
use crate::auth::message;
use crate::auth::scram::Nonce;
use crate::auth::scram::client::{
    ClientBinding, ClientCredentials, ClientExchange, ClientStep, ServerOffer,
};
use crate::config::ServerAddress;
use crate::dial::tests::{Door, Fake};
use crate::loops::tests::mailboxes;
use crate::loops::{Control, Loops};
use crate::mailbox::LoopMailbox;
use crate::process::random_bytes;
use crate::service::Service;
use crate::socket::Conn;
use crate::threads::Threads;
use crate::tls::connect::{Connecting, server_name};
use crate::tls::tests::Pki;

struct World {
    service: Arc<Service>,
    entrance: Arc<Entrance>,
    mailbox: LoopMailbox<Conn>,
    kept: Mutex<Vec<ToLoop<Conn>>>,
}

/// A service in front of `server`; `more` is added to its configuration.
fn world(server: &ServerAddress, auth: &str, more: &str) -> World {
    world_with(server, auth, "", more)
}

/// The same with more lines of `[auth]`.
fn world_with(server: &ServerAddress, auth: &str, lines: &str, more: &str) -> World {
    let ServerAddress::Tcp { port, .. } = server else { panic!("{server}") };
    let text = format!(
        "[[database]]\nname = \"*\"\nservers = \"localhost:{port}\"\n\
         [auth]\nauth_type = \"{auth}\"\n{lines}[[user]]\nname = \"ann\"\npassword = \"secret\"\n\
         [log]\nlog_connections = false\n{more}"
    );
    let config = Config::from_str(&text, "test.toml").unwrap();
    let mailboxes = mailboxes(1);
    let loops = Loops::new(mailboxes.clone(), Instant::now());
    let (control, orders) = Control::new();
    let service =
        Service::new(config, loops, control, Arc::default(), Threads::one(), Arc::default())
            .unwrap();
    tokio::spawn(service.clone().take_orders(orders));
    let entrance = service.entrance(Box::new(|_| panic!("no test goes there")));
    World { service, entrance, mailbox: mailboxes[0].clone(), kept: Mutex::default() }
}

async fn trusting() -> World {
    world(&Fake::new(Door::Trust).start().await, "trust", "")
}

impl World {
    /// Connects a client.
    fn connect(&self) -> UnixStream {
        let (client, ours) = UnixStream::pair().unwrap();
        let limits = &self.service.shared.config.load().reload.limits;
        let origin = Origin::Tcp("192.0.2.1:1234".parse().unwrap());
        let permit =
            self.service.shared.limits.connect(limits.max_client_conn, origin.network()).unwrap();
        let place = Place { origin, port: None, near: None };
        tokio::spawn(serve(self.entrance.clone(), ours.into(), place, permit));
        client
    }

    /// Sends bytes and returns all that comes until the connection is closed.
    async fn answer(&self, bytes: &[u8]) -> Vec<u8> {
        let mut client = self.connect();
        client.write_all(bytes).await.unwrap();
        rest_of(&mut client).await
    }

    /// What has been sent to the loop.
    fn kept(&self) -> std::sync::MutexGuard<'_, Vec<ToLoop<Conn>>> {
        let (mut kept, mut taken) = (self.kept.lock().unwrap(), Vec::new());
        self.mailbox.take(&mut taken);
        kept.append(&mut taken);
        kept
    }

    fn take_adopted(&self) -> Option<Box<NewClient<Conn>>> {
        let mut kept = self.kept();
        let at = kept.iter().position(|message| matches!(message, ToLoop::Adopt(_)))?;
        match kept.remove(at) {
            ToLoop::Adopt(client) => Some(client),
            _ => None,
        }
    }

    /// The client that a loop was given.
    async fn adopted(&self) -> Box<NewClient<Conn>> {
        for _ in 0..500 {
            if let Some(client) = self.take_adopted() {
                return client;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("no client has come")
    }
}

async fn rest_of<S: AsyncRead + Unpin>(client: &mut S) -> Vec<u8> {
    let mut received = Vec::new();
    let read = client.read_to_end(&mut received);
    tokio::time::timeout(Duration::from_secs(20), read).await.expect("it is closed").unwrap();
    received
}

fn startup_packet(parameters: &[(&str, &str)]) -> Vec<u8> {
    let mut out = Vec::new();
    let pairs = parameters.iter().map(|(name, value)| (name.as_bytes(), value.as_bytes()));
    write_startup(&mut out, ProtocolVersion::V3_0, pairs);
    out
}

fn raw(code: u32) -> Vec<u8> {
    [8u32.to_be_bytes(), code.to_be_bytes()].concat()
}

/// SQLSTATE and message of the ErrorResponse that is all of `received`.
fn error(received: &[u8]) -> (String, String) {
    assert_eq!(received.first(), Some(&b'E'), "{:?}", String::from_utf8_lossy(received));
    let text = |tag| String::from_utf8_lossy(field(&received[5..], tag).unwrap()).into_owned();
    assert_eq!(text(b'V'), "FATAL");
    (text(b'C'), text(b'M'))
}

#[tokio::test]
async fn a_client_that_may_is_handed_to_a_loop_with_its_greeting_and_start_values() {
    let world = trusting().await;
    let mut client = world.connect();
    let packet = startup_packet(&[
        ("user", "ann"),
        ("database", "app"),
        ("application_name", "psql"),
        ("client_encoding", "utf-8"),
    ]);
    client.write_all(&packet).await.unwrap();
    let adopted = world.adopted().await;
    assert_eq!((&*adopted.pool.database, &*adopted.pool.user), ("app", "ann"));
    assert_eq!(adopted.start.get(b"application_name"), Some(&b"psql"[..]));
    assert_eq!(adopted.start.get(b"client_encoding"), Some(&b"UTF8"[..]));
    assert_eq!(adopted.secret.len(), 4);
    assert!(adopted.greeting.starts_with(&message::ok()));
    assert!(adopted.greeting.ends_with(b"TimeZone\0UTC\0"));
    assert_eq!(world.service.shared.limits.client_count(), 1);
    let opened = |message: &ToLoop<_>| matches!(message, ToLoop::Opened(_));
    assert!(world.kept().iter().any(opened), "the backend goes to the pool");
    drop(adopted);
    assert_eq!(world.service.shared.limits.client_count(), 0, "its places are free again");
    assert_eq!(world.service.shared.limits.database_client_count("app"), 0);
}

/// Each login copies it; long and rare parts belong in a box.
#[test]
fn the_future_of_a_login_is_short() {
    const BYTES_MAX: usize = 4096;
    fn bytes<A, B, C, D, F: Future<Output = ()>>(_: impl Fn(A, B, C, D) -> F) -> usize {
        size_of::<F>()
    }
    let bytes = bytes(serve);
    assert!(bytes <= BYTES_MAX, "{bytes} bytes");
}

#[tokio::test]
async fn malformed_first_packets_are_refused_in_postgresqls_words() {
    let world = trusting().await;
    // As PostgreSQL: bytes without a startup packet's length get no answer.
    for bytes in [&[0, 0, 0, 3][..], &[0xff; 4], b"X\0\0\0\x04", b"GET / HTTP/1.1\r\n\r\n"] {
        assert!(world.answer(bytes).await.is_empty(), "{bytes:?}");
    }
    for (bytes, code, text) in [
        (raw(2 << 16), "0A000", "unsupported frontend protocol 2.0: server supports 3.0 to 3.2"),
        (raw(3 << 16), "08P01", "invalid startup packet layout: expected terminator as last byte"),
        (startup_packet(&[]), "28000", "no PostgreSQL user name specified in startup packet"),
        (
            startup_packet(&[("user", "ann"), ("replication", "maybe")]),
            "22023",
            "invalid value for parameter \"replication\": \"maybe\"",
        ),
        (
            startup_packet(&[("user", "ann"), ("options", "nonsense")]),
            "42601",
            "invalid command-line argument for server process: nonsense",
        ),
    ] {
        assert_eq!(error(&world.answer(&bytes).await), (code.to_owned(), text.to_owned()));
    }
    assert_eq!(world.service.shared.limits.client_count(), 0);
}

#[tokio::test]
async fn encryption_is_asked_for_once_and_nothing_may_follow_unasked() {
    let world = trusting().await;
    let mut client = world.connect();
    client.write_all(&raw(SSL_REQUEST)).await.unwrap();
    assert_eq!(client.read_u8().await.unwrap(), b'N');
    client.write_all(&raw(SSL_REQUEST)).await.unwrap();
    let text = error(&rest_of(&mut client).await).1;
    assert!(text.starts_with("unsupported frontend protocol 1234.5679"), "{text}");

    let mut client = world.connect();
    client.write_all(&raw(GSSENC_REQUEST)).await.unwrap();
    assert_eq!(client.read_u8().await.unwrap(), b'N');
    client.write_all(&raw(GSSENC_REQUEST)).await.unwrap();
    error(&rest_of(&mut client).await);

    let stuffed = [raw(SSL_REQUEST), startup_packet(&[("user", "ann")])].concat();
    let received = error(&world.answer(&stuffed).await);
    assert_eq!(
        received,
        ("08P01".to_owned(), "received unencrypted data after SSL request".to_owned())
    );
}

#[tokio::test]
async fn a_slow_login_ends_in_time() {
    let server = Fake::new(Door::Trust).start().await;
    let world = world(&server, "scram-sha-256", "[pool]\nclient_login_timeout = \"200ms\"\n");
    let mut client = world.connect();
    client.write_all(&[0, 0]).await.unwrap();
    let received = error(&rest_of(&mut client).await);
    assert_eq!(received.1, "canceling authentication due to timeout");
    // Also in the middle of the proof.
    let mut received = world.answer(&startup_packet(&[("user", "ann")])).await;
    assert_eq!(received[0], b'R');
    let request =
        1 + u32::from_be_bytes([received[1], received[2], received[3], received[4]]) as usize;
    assert_eq!(error(&received.split_off(request)).1, "canceling authentication due to timeout");
}

/// Logs in by SCRAM as far as possible: returns the kinds of messages that came, and the error.
async fn scram(world: &World, user: &str, password: &str) -> (String, (String, String)) {
    let mut client = world.connect();
    client.write_all(&startup_packet(&[("user", user)])).await.unwrap();
    let mut kinds = String::new();
    let mut exchange = ClientExchange::start(
        ClientCredentials::Password { password: password.as_bytes().into(), known: None },
        ServerOffer::of(["SCRAM-SHA-256"]),
        &ClientBinding::NoTls,
        Nonce::generate(random_bytes),
    )
    .unwrap();
    loop {
        let kind = client.read_u8().await.unwrap();
        let length = client.read_u32().await.unwrap() as usize;
        let mut body = vec![0; length - 4];
        client.read_exact(&mut body).await.unwrap();
        kinds.push(char::from(kind));
        if kind == b'E' {
            let mut received = vec![b'E', 0, 0, 0, 0];
            received.extend_from_slice(&body);
            return (kinds, error(&received));
        }
        let reply = match message::AuthenticationRequest::parse(&body).unwrap() {
            message::AuthenticationRequest::Sasl(_) => {
                message::sasl_initial_response(exchange.mechanism(), &exchange.initial())
            }
            message::AuthenticationRequest::SaslContinue(data) => {
                let ClientStep::Derive(work) = exchange.server_first(data).unwrap() else {
                    panic!("no derivation")
                };
                let keys = work.run();
                message::sasl_response_message(&exchange.respond_with(&keys).unwrap())
            }
            message::AuthenticationRequest::SaslFinal(_) => {
                return (kinds, Default::default());
            }
            other => panic!("{other:?}"),
        };
        client.write_all(&reply).await.unwrap();
    }
}

#[tokio::test]
async fn an_unknown_user_and_a_wrong_password_look_the_same() {
    let server = Fake::new(Door::Trust).start().await;
    let world = world(&server, "scram-sha-256", "");
    let (kinds, received) = scram(&world, "ann", "wrong").await;
    assert_eq!(received.0, "28P01");
    assert_eq!(received.1, "password authentication failed for user \"ann\"");
    let (unknown_kinds, received) = scram(&world, "nobody", "wrong").await;
    assert_eq!(received.0, "28P01");
    assert_eq!(received.1, "password authentication failed for user \"nobody\"");
    assert_eq!(kinds, unknown_kinds);
    tokio::time::timeout(Duration::from_secs(20), async {
        let right = scram(&world, "ann", "secret");
        let adopted = world.adopted();
        // The last message of the proof comes with the greeting, from the loop.
        tokio::select! {
            (kinds, received) = right => panic!("{kinds} {received:?}"),
            adopted = adopted => assert!(adopted.greeting.starts_with(b"R")),
        }
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn sasl_messages_with_impossible_lengths_end_that_login_alone() {
    let server = Fake::new(Door::Trust).start().await;
    let world = world(&server, "scram-sha-256", "");
    for message in [
        &b"p\0\0\0\x04"[..],
        b"p\0\0\0\x12SCRAM-SHA-256\0",
        b"p\0\0\0\x16SCRAM-SHA-256\0\xff\xff\xff\xfe",
        b"p\0\0\0\x16SCRAM-SHA-256\0\0\0\0\x09",
        b"p\xff\xff\xff\xff",
        b"p\0\0\x10\0",
        b"Q\0\0\0\x05x",
    ] {
        let mut client = world.connect();
        client.write_all(&startup_packet(&[("user", "ann")])).await.unwrap();
        assert_eq!(client.read_u8().await.unwrap(), b'R');
        let length = client.read_u32().await.unwrap() as usize;
        client.read_exact(&mut vec![0; length - 4]).await.unwrap();
        client.write_all(message).await.unwrap();
        assert_eq!(error(&rest_of(&mut client).await).0, "08P01", "{message:?}");
    }
}

#[tokio::test]
async fn one_client_too_many_gets_53300() {
    let server = Fake::new(Door::Trust).start().await;
    let world = world(&server, "trust", "[pool]\nmax_client_conn = 1\n");
    let packet = startup_packet(&[("user", "ann")]);
    let mut first = world.connect();
    first.write_all(&packet).await.unwrap();
    let _adopted = world.adopted().await;
    let received = error(&world.answer(&packet).await);
    assert_eq!(received, ("53300".to_owned(), "sorry, too many clients already".to_owned()));
}

#[tokio::test]
async fn who_says_nothing_gives_way_and_who_is_half_through_does_not() {
    let server = Fake::new(Door::Trust).start().await;
    let world = world(&server, "scram-sha-256", "[pool]\nmax_client_conn = 1\n");
    let mut half = world.connect();
    half.write_all(&startup_packet(&[("user", "ann")])).await.unwrap();
    assert_eq!(half.read_u8().await.unwrap(), b'R');
    let mut silent = Vec::new();
    for _ in 0..crate::limits::LOGINS_BEYOND {
        silent.push(world.connect());
        // Its login begins to wait.
        tokio::task::yield_now().await;
    }
    let mut nexts = Vec::new();
    for first in &mut silent[..2] {
        let mut next = world.connect();
        assert_eq!(error(&rest_of(first).await).0, "53300");
        next.write_all(&raw(GSSENC_REQUEST)).await.unwrap();
        assert_eq!(next.read_u8().await.unwrap(), b'N');
        nexts.push(next);
    }
    // A login under way keeps the only client's place until others have waited long enough.
    let received = error(&world.answer(&startup_packet(&[("user", "ann")])).await);
    assert_eq!(received.0, "53300");
    half.write_all(b"p\0\0\0\x04").await.unwrap();
    let mut rest = rest_of(&mut half).await;
    let request = u32::from_be_bytes([rest[0], rest[1], rest[2], rest[3]]) as usize;
    assert_eq!(error(&rest.split_off(request)).0, "08P01");
    assert_eq!(world.service.shared.tally.displaced.get(), 3);
}

#[tokio::test]
async fn the_servers_refusal_reaches_the_client_as_it_is() {
    let door = Door::Refuse("3D000", "database \"app\" does not exist");
    let world = world(&Fake::new(door).start().await, "trust", "");
    let received =
        error(&world.answer(&startup_packet(&[("user", "ann"), ("database", "app")])).await);
    assert_eq!(received, ("3D000".to_owned(), "database \"app\" does not exist".to_owned()));
}

#[tokio::test]
async fn a_start_value_that_the_server_refuses_is_fatal_and_asked_about_once() {
    let fake = Fake::new(Door::Trust);
    let connects = fake.connects.clone();
    let world = world(&fake.start().await, "trust", "");
    let packet = startup_packet(&[("user", "ann"), ("statement_timeout", "soon")]);
    assert_eq!(error(&world.answer(&packet).await).0, "22023");
    let asked = connects.load(std::sync::atomic::Ordering::SeqCst);
    assert_eq!(error(&world.answer(&packet).await).0, "22023");
    assert_eq!(connects.load(std::sync::atomic::Ordering::SeqCst), asked);
}

/// The client got 57P01, and so did each one after it that asked for the same value.
#[tokio::test]
async fn a_start_value_is_asked_about_again_where_the_server_ends_the_process_that_is_asked() {
    use std::sync::atomic::Ordering;
    let fake = Fake::new(Door::Trust);
    let ends = fake.ends.clone();
    let world = world(&fake.start().await, "trust", "");
    let packet = startup_packet(&[("user", "ann"), ("statement_timeout", "soon")]);
    ends.store(1_000, Ordering::SeqCst);
    assert_eq!(error(&world.answer(&packet).await).0, "08006", "no server connection lives");
    ends.store(2, Ordering::SeqCst);
    assert_eq!(error(&world.answer(&packet).await).0, "22023", "the third answers");
    assert_eq!(ends.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn an_unknown_user_of_trust_is_refused() {
    let world = trusting().await;
    assert_eq!(error(&world.answer(&startup_packet(&[("user", "nobody")])).await).0, "28000");
}

/// By a rule it got in as that user, a superuser too.
#[tokio::test]
async fn an_unknown_user_is_refused_by_a_rule_that_trusts_as_well() {
    let name = format!("hawser-login-{}.hba", crate::process::random_u64());
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, "host all all all trust\n").unwrap();
    let server = Fake::new(Door::Trust).start().await;
    let tables = format!("hba_file = \"{}\"\n", path.display());
    let world = world_with(&server, "hba", &tables, "");
    std::fs::remove_file(&path).unwrap();
    assert_eq!(error(&world.answer(&startup_packet(&[("user", "nobody")])).await).0, "28000");
    let mut known = world.connect();
    known.write_all(&startup_packet(&[("user", "ann")])).await.unwrap();
    let _adopted = world.adopted().await;
}

/// Clients that only know md5 could not log in, and unknown users were asked differently from known
/// ones.
#[tokio::test]
async fn method_md5_asks_for_md5_where_the_password_is_plain_and_where_there_is_no_user() {
    let world = world(&Fake::new(Door::Trust).start().await, "md5", "");
    for user in ["ann", "nobody"] {
        let mut client = world.connect();
        client.write_all(&startup_packet(&[("user", user)])).await.unwrap();
        let mut asked = [0; 9];
        client.read_exact(&mut asked).await.unwrap();
        assert_eq!(asked, [b'R', 0, 0, 0, 12, 0, 0, 0, 5], "{user}");
    }
}

#[tokio::test]
async fn a_cancel_request_reaches_the_loop_and_is_never_answered() {
    let world = trusting().await;
    let mut packet = Vec::new();
    write_cancel(
        &mut packet,
        hawser_pooler::parts::identity::process_ids::PROCESS_ID_FIRST,
        b"some key",
    );
    let handled = async {
        for _ in 0..500 {
            let next = world.kept().pop();
            match next {
                Some(ToLoop::Cancel {
                    process: hawser_pooler::parts::identity::process_ids::PROCESS_ID_FIRST,
                    key,
                }) => return assert_eq!(*key, *b"some key"),
                Some(_) => panic!("another message"),
                None => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
        panic!("no request has come");
    };
    let (answer, ()) = tokio::join!(world.answer(&packet), handled);
    assert!(answer.is_empty());
}

/// One that asks for TLS.
async fn encrypting(pki: &Pki) -> World {
    let server = Fake::new(Door::Trust).start().await;
    let tls = format!(
        "[tls]\nclient_tls_sslmode = \"require\"\nclient_tls_cert_file = \"{}\"\n\
         client_tls_key_file = \"{}\"\n",
        pki.path("server.crt").display(),
        pki.path("server.key").display()
    );
    world(&server, "trust", &tls)
}

#[tokio::test]
async fn nothing_is_computed_for_a_client_that_has_gone_after_its_hello() {
    let pki = Pki::new();
    let world = encrypting(&pki).await;
    let connecting = Connecting::load(&pki.connect_settings(TlsMode::VerifyFull)).unwrap();
    let name = server_name("localhost").unwrap();
    let (near, mut far) = tokio::io::duplex(4096);
    tokio::spawn(connecting.connector().unwrap().connect(name, near));
    let mut hello = vec![0; 5];
    far.read_exact(&mut hello).await.unwrap();
    hello.resize(5 + usize::from(u16::from_be_bytes([hello[3], hello[4]])), 0);
    far.read_exact(&mut hello[5..]).await.unwrap();
    for stays in [true, false] {
        let mut client = world.connect();
        client.write_all(&raw(SSL_REQUEST)).await.unwrap();
        assert_eq!(client.read_u8().await.unwrap(), b'S');
        client.write_all(&hello).await.unwrap();
        if stays {
            assert_eq!(client.read_u8().await.unwrap(), 0x16); // its ServerHello
        } else {
            client.shutdown().await.unwrap();
            assert_eq!(rest_of(&mut client).await, b"");
        }
    }
}

#[tokio::test]
async fn tls_begins_by_request_or_at_once_and_then_only_with_alpn() {
    let pki = Pki::new();
    let world = encrypting(&pki).await;
    let packet = startup_packet(&[("user", "ann")]);
    assert_eq!(error(&world.answer(&packet).await).1, "SSL connection is required");

    let connecting = Connecting::load(&pki.connect_settings(TlsMode::VerifyFull)).unwrap();
    for direct in [false, true] {
        let mut client = world.connect();
        if !direct {
            client.write_all(&raw(SSL_REQUEST)).await.unwrap();
            assert_eq!(client.read_u8().await.unwrap(), b'S');
        }
        let name = server_name("localhost").unwrap();
        let mut client = connecting.connector().unwrap().connect(name, client).await.unwrap();
        client.write_all(&packet).await.unwrap();
        client.flush().await.unwrap();
        let adopted = world.adopted().await;
        assert!(adopted.about.tls().starts_with("TLSv1"), "{}", adopted.about.tls());
    }

    let mut roots = rustls::RootCertStore::empty();
    use rustls::pki_types::pem::PemObject;
    roots
        .add(rustls::pki_types::CertificateDer::from_pem_file(pki.path("ca.crt")).unwrap())
        .unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let client = world.connect();
    let mut client = connector.connect(server_name("localhost").unwrap(), client).await.unwrap();
    let mut received = Vec::new();
    // The end may come without TLS's own goodbye.
    let _ = client.read_to_end(&mut received).await;
    assert!(error(&received).1.contains("without ALPN"));
}
