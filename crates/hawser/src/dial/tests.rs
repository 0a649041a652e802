//! Dialling, against servers that answer as the test wants.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicUsize, Ordering};

use hawser_pooler::session::options::Replication;
use hawser_pooler::wire::build;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};

use super::standing::{Look, Standing};
use super::*;
use crate::auth::md5::Md5Hash;
use crate::auth::message;
use crate::auth::scram::server::{ServerBinding, ServerExchange, ServerStep};
use crate::auth::scram::{Account, Nonce, derive};
use crate::auth::secret::Secret;
use crate::config::{Config, Limit, ServerTlsSettings, TlsMode, TlsVersions};
use crate::limits::Limits;
use crate::process::random_bytes;
use crate::tls::accept::Accepting;
use crate::tls::tests::Pki;

/// How a fake server lets clients in.
#[derive(Clone, Debug)]
pub(crate) enum Door {
    Trust,
    Cleartext(&'static str),
    Md5 {
        user: &'static str,
        password: &'static str,
    },
    Scram(&'static str),
    Refuse(&'static str, &'static str),
    Silent,
    HangUp,
    /// Lets in without TLS, and refuses its handshake.
    RefuseTls,
}

/// Process id and key of a cancel request.
type Cancelled = (u32, Vec<u8>);

/// A fake server.
#[derive(Clone)]
pub(crate) struct Fake {
    pub(crate) door: Door,
    pub(crate) parameters: Vec<(&'static str, &'static str)>,
    pub(crate) tls: Option<Arc<Accepting>>,
    pub(crate) connects: Arc<AtomicUsize>,
    pub(crate) cancels: Arc<Mutex<Vec<Cancelled>>>,
    /// How many of the next questions are not answered: the asked process ends.
    pub(crate) ends: Arc<AtomicUsize>,
}

impl Fake {
    pub(crate) fn new(door: Door) -> Self {
        Self {
            door,
            parameters: vec![("server_version", "15.1"), ("TimeZone", "UTC")],
            tls: None,
            connects: Arc::default(),
            cancels: Arc::default(),
            ends: Arc::default(),
        }
    }

    /// Listens until the test ends.
    pub(crate) async fn start(self) -> ServerAddress {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address: SocketAddr = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                self.connects.fetch_add(1, Ordering::SeqCst);
                let fake = self.clone();
                tokio::spawn(async move {
                    let _ = fake.serve(stream).await;
                });
            }
        });
        ServerAddress::new("localhost", address.port()).unwrap()
    }

    async fn serve(self, mut stream: TcpStream) -> io::Result<()> {
        let first = read_first(&mut stream).await?;
        if let (startup::Packet::SslRequest, Door::RefuseTls) = (&first, &self.door) {
            stream.write_all(b"S").await?;
            let _ = stream.read(&mut [0; 4096]).await?;
            // A fatal alert, handshake_failure (RFC 8446, section 6).
            stream.write_all(&[0x15, 3, 3, 0, 2, 2, 40]).await?;
            return stream.read_to_end(&mut Vec::new()).await.map(drop);
        }
        if let startup::Packet::SslRequest = first {
            let Some(tls) = self.tls.clone() else {
                stream.write_all(b"N").await?;
                let first = read_first(&mut stream).await?;
                return self.talk(stream, first).await;
            };
            stream.write_all(b"S").await?;
            let mut stream = tls.acceptor().accept(stream).await?;
            let first = read_first(&mut stream).await?;
            return self.talk(stream, first).await;
        }
        self.talk(stream, first).await
    }

    async fn talk<S: AsyncRead + AsyncWrite + Unpin>(
        self,
        mut stream: S,
        first: startup::Packet,
    ) -> io::Result<()> {
        if let startup::Packet::Cancel { process, key } = first {
            self.cancels.lock().unwrap().push((process, key.into()));
            return Ok(());
        }
        let mut out = Vec::new();
        match &self.door {
            Door::Trust | Door::RefuseTls => {}
            Door::HangUp => return Ok(()),
            Door::Silent => std::future::pending().await,
            Door::Refuse(code, text) => {
                let code = SqlState(code.as_bytes().try_into().unwrap());
                ClientError::fatal(code, *text).write(&mut out);
                return stream.write_all(&out).await;
            }
            Door::Cleartext(password) => {
                stream.write_all(&message::cleartext_password()).await?;
                let (_, body) = read_message(&mut stream).await?;
                if message::password(&body) != Ok(password.as_bytes()) {
                    return wrong(stream).await;
                }
            }
            Door::Md5 { user, password } => {
                stream.write_all(&message::md5_password([1, 2, 3, 4])).await?;
                let (_, body) = read_message(&mut stream).await?;
                let hash = Md5Hash::of_password(user, password.as_bytes());
                if !hash.accepts([1, 2, 3, 4], message::password(&body).unwrap()) {
                    return wrong(stream).await;
                }
            }
            Door::Scram(password) => {
                if !scram(&mut stream, password).await? {
                    return wrong(stream).await;
                }
            }
        }
        out.extend_from_slice(&message::ok());
        for (name, value) in &self.parameters {
            build::parameter_status(&mut out, name.as_bytes(), value.as_bytes());
        }
        build::backend_key_data(&mut out, 77, b"a key of some length");
        build::ready_for_query(&mut out, hawser_pooler::wire::TransactionStatus::Idle);
        stream.write_all(&out).await?;
        stream.flush().await?;
        // Answers every question with a refusal.
        loop {
            let (kind, _) = read_message(&mut stream).await?;
            if kind == b'X' {
                return Ok(());
            }
            if kind == b'Q' || kind == b'S' {
                let less = |left: usize| left.checked_sub(1);
                if self.ends.fetch_update(Ordering::SeqCst, Ordering::SeqCst, less).is_ok() {
                    let mut out = Vec::new();
                    ClientError::fatal(SqlState::ADMIN_SHUTDOWN, "terminating connection")
                        .write(&mut out);
                    return stream.write_all(&out).await;
                }
                let mut out = Vec::new();
                ClientError::error(SqlState(*b"22023"), "invalid value for parameter")
                    .write(&mut out);
                build::ready_for_query(&mut out, hawser_pooler::wire::TransactionStatus::Idle);
                stream.write_all(&out).await?;
                stream.flush().await?;
            }
        }
    }
}

async fn wrong<S: AsyncWrite + Unpin>(mut stream: S) -> io::Result<()> {
    let mut out = Vec::new();
    ClientError::fatal(SqlState::INVALID_PASSWORD, "password authentication failed")
        .write(&mut out);
    stream.write_all(&out).await?;
    stream.flush().await
}

async fn scram<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut S,
    password: &str,
) -> io::Result<bool> {
    let keys = derive(password.as_bytes(), b"salty", std::num::NonZeroU32::new(4096).unwrap());
    stream.write_all(&message::sasl(&["SCRAM-SHA-256"])).await?;
    stream.flush().await?;
    let (_, body) = read_message(stream).await?;
    let initial = message::SaslInitialResponse::parse(&body).unwrap();
    let account = Account::known(keys.verifier().clone());
    let mut exchange = ServerExchange::start(
        account,
        ServerBinding::Unavailable,
        initial.mechanism_name(),
        Nonce::generate(random_bytes),
    )
    .unwrap();
    let Ok(ServerStep::Continue(data)) = exchange.step(initial.data) else { return Ok(false) };
    stream.write_all(&message::sasl_continue(&data)).await?;
    stream.flush().await?;
    let (_, body) = read_message(stream).await?;
    let Ok(ServerStep::Done { message: data, .. }) = exchange.step(Some(&body)) else {
        return Ok(false);
    };
    stream.write_all(&message::sasl_final(&data)).await?;
    Ok(true)
}

async fn read_first<S: AsyncRead + Unpin>(stream: &mut S) -> io::Result<startup::Packet> {
    let length = stream.read_u32().await? as usize;
    let mut body = vec![0; length - 4];
    stream.read_exact(&mut body).await?;
    Ok(startup::parse(&body).unwrap())
}

async fn read_message<S: AsyncRead + Unpin>(stream: &mut S) -> io::Result<(u8, Vec<u8>)> {
    let kind = stream.read_u8().await?;
    let length = stream.read_u32().await? as usize;
    let mut body = vec![0; length - 4];
    stream.read_exact(&mut body).await?;
    Ok((kind, body))
}

pub(crate) fn target(servers: &[&ServerAddress], tls: Connecting) -> Target {
    Target {
        servers: servers.iter().map(|server| (*server).clone()).collect(),
        session_attrs: TargetSessionAttrs::Any,
        max_replica_lag: None,
        balance: Balance::new(LoadBalanceHosts::Disable),
        tls: Arc::new(tls),
        connect_timeout: Duration::from_secs(5),
        lost_timeout: None,
        dns_max_ttl: Duration::from_secs(10),
        retry_after_max: Duration::from_secs(10),
        down_after: None,
        tcp: TcpOptions::default(),
        reports: false,
        hands_over: false,
        proxy: ProxyProtocol::Off,
        password: None,
    }
}

fn login(secret: &Secret) -> Login {
    Login {
        user: "ann".to_owned(),
        database: "app".to_owned(),
        replication: Replication::None,
        parameters: Vec::new(),
        start: Vec::new(),
        credentials: Arc::new(Credentials::new(secret, None)),
    }
}

async fn dial(dialler: &Dialler, target: &Target, login: &Login) -> Result<Dialled, DialError> {
    let limits = Arc::new(Limits::default());
    dialler.dial(target, login, &|server| limits.address(server, Limit::NONE)).await
}

fn plain(password: &str) -> Secret {
    Secret::Plain(password.into())
}

#[tokio::test]
async fn every_method_lets_the_right_password_in_and_the_wrong_one_not() {
    let dialler = Dialler::default();
    for door in [
        Door::Cleartext("secret"),
        Door::Md5 { user: "ann", password: "secret" },
        Door::Scram("secret"),
    ] {
        let server = Fake::new(door.clone()).start().await;
        let target = target(&[&server], Connecting::never());
        let dialled = dial(&dialler, &target, &login(&plain("secret"))).await.unwrap();
        assert_eq!(dialled.entered.process, 77);
        assert_eq!(&*dialled.entered.key, b"a key of some length");
        assert_eq!(dialled.entered.parameters.get(b"timezone"), Some(&b"UTC"[..]));
        let error = dial(&dialler, &target, &login(&plain("wrong"))).await.unwrap_err();
        assert!(error.is_fatal(), "{door:?}: {error}");
        assert_eq!(error.to_client_error().code, SqlState::INVALID_PASSWORD, "{door:?}");
        let error = dial(&dialler, &target, &login(&Secret::None)).await.unwrap_err();
        assert!(matches!(error, DialError::Authentication { .. }), "{door:?}: {error}");
        assert!(error.is_fatal());
    }
}

#[tokio::test]
async fn the_keys_that_a_client_has_shown_log_in_where_the_verifier_is_the_same() {
    let server = Fake::new(Door::Scram("secret")).start().await;
    let target = target(&[&server], Connecting::never());
    let dialler = Dialler::default();
    let iterations = std::num::NonZeroU32::new(4096).unwrap();
    let shown = login(&Secret::None);
    shown.credentials.keep_keys(derive(b"secret", b"salty", iterations));
    dial(&dialler, &target, &shown).await.unwrap();
    shown.credentials.keep_keys(derive(b"secret", b"other salt", iterations));
    let error = dial(&dialler, &target, &shown).await.unwrap_err();
    assert!(matches!(error, DialError::Authentication { .. }), "{error}");
}

#[tokio::test]
async fn a_server_that_fails_is_passed_over_and_tried_last_for_a_while() {
    let bad = Fake::new(Door::HangUp);
    let bad_connects = bad.connects.clone();
    let bad = bad.start().await;
    let good = Fake::new(Door::Trust).start().await;
    let dialler = Dialler::default();
    let target = target(&[&bad, &good], Connecting::never());
    for _ in 0..3 {
        let dialled = dial(&dialler, &target, &login(&Secret::None)).await.unwrap();
        assert_eq!(dialler.place(dialled.server).unwrap().configured, good);
    }
    assert_eq!(bad_connects.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn what_waiting_does_not_mend_ends_the_search() {
    let refusing =
        Fake::new(Door::Refuse("3D000", "database \"app\" does not exist")).start().await;
    let other = Fake::new(Door::Trust);
    let other_connects = other.connects.clone();
    let other = other.start().await;
    let target = target(&[&refusing, &other], Connecting::never());
    let error = dial(&Dialler::default(), &target, &login(&Secret::None)).await.unwrap_err();
    let told = error.to_client_error();
    assert!(error.is_fatal());
    assert_eq!(told.code, SqlState::INVALID_CATALOG_NAME);
    assert_eq!(told.message, "database \"app\" does not exist");
    assert_eq!(other_connects.load(Ordering::SeqCst), 0);
}

fn look(standing: Standing, silent: bool) -> Look {
    Look {
        standing,
        lag: standing::Lag::Measured(Duration::ZERO),
        silent,
        is_deposed: false,
        answered: hawser_pooler::time::Time::ZERO,
    }
}

#[tokio::test]
async fn a_server_that_the_looks_find_silent_or_unfit_is_tried_last_and_is_tried() {
    let (silent, unfit, good) =
        (Fake::new(Door::HangUp), Fake::new(Door::Trust), Fake::new(Door::Trust));
    let connects = [&silent, &unfit, &good].map(|fake| fake.connects.clone());
    let silent = silent.start().await;
    let (unfit, good) = (unfit.start().await, good.start().await);
    let target = target(&[&silent, &unfit, &good], Connecting::never());
    let dialler = Dialler::default();
    dialler.set_looks(HashMap::from([
        (silent.clone(), look(Standing::Unknown, true)),
        (unfit.clone(), look(Standing::NotAccepting, false)),
    ]));
    let dialled = dial(&dialler, &target, &login(&Secret::None)).await.unwrap();
    assert_eq!(dialler.place(dialled.server).unwrap().configured, good);
    let counts = || connects.each_ref().map(|connects| connects.load(Ordering::SeqCst));
    assert_eq!(counts(), [0, 0, 1]);
    let only = Target { servers: vec![silent.clone(), unfit.clone()], ..target.clone() };
    let dialled = dial(&dialler, &only, &login(&Secret::None)).await.unwrap();
    assert_eq!(dialler.place(dialled.server).unwrap().configured, unfit);
    let only = Target { servers: vec![silent], ..target };
    dial(&dialler, &only, &login(&Secret::None)).await.unwrap_err();
    assert_eq!(counts(), [1, 1, 1]);
}

#[tokio::test]
async fn each_pool_takes_servers_in_turn_by_itself() {
    let (one, two) = (Fake::new(Door::Trust).start().await, Fake::new(Door::Trust).start().await);
    let dialler = Dialler::default();
    let of_pool = || Target {
        balance: Balance::new(LoadBalanceHosts::RoundRobin),
        ..target(&[&one, &two], Connecting::never())
    };
    let pools = [of_pool(), of_pool()];
    let mut places = [Vec::new(), Vec::new()];
    for _ in 0..4 {
        for (pool, places) in pools.iter().zip(&mut places) {
            let dialled = dial(&dialler, pool, &login(&Secret::None)).await.unwrap();
            places.push(dialler.place(dialled.server).unwrap().configured);
        }
    }
    for places in places {
        assert_eq!(places.iter().filter(|place| **place == one).count(), 2);
    }
}

#[tokio::test]
async fn a_server_that_refuses_for_good_is_there() {
    for (code, state) in [("3D000", "up"), ("28000", "up"), ("57P03", "down"), ("53300", "up")] {
        let server = Fake::new(Door::Refuse(code, "no")).start().await;
        let (dialler, target) = (Dialler::default(), target(&[&server], Connecting::never()));
        let lost =
            DialError::Resolve { host: "db".to_owned(), source: io::ErrorKind::Other.into() };
        dialler.note_failed(&server, &target, &lost);
        dial(&dialler, &target, &login(&Secret::None)).await.unwrap_err();
        assert_eq!(dialler.server_rows("app", &[target.wants()])[0].state.name(), state, "{code}");
    }
}

#[test]
fn clients_learn_nothing_of_files_and_settings_and_operators_do() {
    let path = "/etc/hawser/prod.token";
    let source = Arc::new(PasswordError::File(path.into(), io::ErrorKind::NotFound.into()));
    let password = DialError::Password { user: "owner".to_owned(), source };
    let handed = DialError::NotHandedOver { reason: format!("{path} of owner is another") };
    for error in [password, handed] {
        let told = error.to_client_error();
        assert_eq!(told.code, SqlState::CONNECTION_FAILURE);
        let words = format!("{}{:?}{:?}", told.message, told.detail, told.hint);
        assert!(!words.contains("hawser/") && !words.contains("owner"), "{words}");
        assert!(error.unsaid().is_some_and(|why| why.contains(path) && why.contains("owner")));
    }
}

#[tokio::test]
async fn a_server_that_starts_up_is_worth_waiting_for() {
    let server =
        Fake::new(Door::Refuse("57P03", "the database system is starting up")).start().await;
    let target = target(&[&server], Connecting::never());
    let error = dial(&Dialler::default(), &target, &login(&Secret::None)).await.unwrap_err();
    assert!(!error.is_fatal());
    let told = error.to_client_error();
    assert_eq!(told.code, SqlState::CONNECTION_FAILURE);
    assert!(told.message.contains("starting up"), "{}", told.message);
}

#[tokio::test]
async fn a_silent_server_costs_the_connect_timeout_and_no_more() {
    let server = Fake::new(Door::Silent).start().await;
    let mut target = target(&[&server], Connecting::never());
    target.connect_timeout = Duration::from_millis(100);
    let began = Instant::now();
    let error = dial(&Dialler::default(), &target, &login(&Secret::None)).await.unwrap_err();
    assert!(matches!(error, DialError::Timeout { .. }), "{error}");
    assert!(began.elapsed() < Duration::from_secs(3));
}

#[tokio::test]
async fn the_server_that_target_session_attrs_asks_for_is_found() {
    let role = |standby: &'static str, read_only: &'static str| {
        let mut fake = Fake::new(Door::Trust);
        fake.parameters.push(("in_hot_standby", standby));
        fake.parameters.push(("default_transaction_read_only", read_only));
        fake.start()
    };
    let standby = role("on", "off").await;
    let primary = role("off", "off").await;
    use TargetSessionAttrs::{Any, PreferStandby, Primary, ReadOnly, ReadWrite, Standby};
    for (attrs, servers, expected) in [
        (Any, [&standby, &primary], Some(&standby)),
        (Primary, [&standby, &primary], Some(&primary)),
        (ReadWrite, [&standby, &primary], Some(&primary)),
        (Standby, [&primary, &standby], Some(&standby)),
        (ReadOnly, [&primary, &standby], Some(&standby)),
        (PreferStandby, [&primary, &standby], Some(&standby)),
        (PreferStandby, [&primary, &primary], Some(&primary)),
        (Standby, [&primary, &primary], None),
    ] {
        let dialler = Dialler::default();
        let mut target = target(&servers, Connecting::never());
        target.session_attrs = attrs;
        match (dial(&dialler, &target, &login(&Secret::None)).await, expected) {
            (Ok(dialled), Some(expected)) => {
                let place = dialler.place(dialled.server).unwrap();
                assert_eq!(place.configured, *expected, "{attrs}");
            }
            (Err(DialError::Unsuitable { .. }), None) => {}
            (other, _) => panic!("{attrs}: {other:?}"),
        }
    }
}

/// A P-521 key in the server's certificate, for one.
#[tokio::test]
async fn a_refused_tls_handshake_lasts_and_other_servers_are_tried() {
    let pki = Pki::new();
    let accepting = Accepting::load(&pki.accept_settings(TlsMode::Require)).unwrap().unwrap();
    let mut good = Fake::new(Door::Trust);
    good.tls = Some(Arc::new(accepting));
    let good = good.start().await;
    let refusing = Fake::new(Door::RefuseTls).start().await;
    let failing = Fake::new(Door::HangUp).start().await;
    let dial = async |servers: &[&ServerAddress], mode| {
        let tls = Connecting::load(&pki.connect_settings(mode)).unwrap();
        dial(&Dialler::default(), &target(servers, tls), &login(&Secret::None)).await
    };
    let error = dial(&[&refusing], TlsMode::Require).await.unwrap_err();
    assert!(error.is_fatal(), "{error}");
    let told = error.to_client_error();
    assert_eq!(told.code, SqlState::CONNECTION_FAILURE);
    assert!(told.message.contains("localhost") && told.message.contains("P-521"), "{told:?}");
    for servers in [[&refusing, &failing], [&failing, &refusing]] {
        let error = dial(&servers, TlsMode::Require).await.unwrap_err();
        assert!(!error.is_fatal(), "waiting may help with one of them: {error}");
    }
    dial(&[&refusing, &good], TlsMode::Require).await.unwrap();
    let dialled = dial(&[&refusing], TlsMode::Prefer).await.unwrap();
    assert!(!dialled.talk.stream().is_encrypted());
}

#[tokio::test]
async fn each_sslmode_meets_servers_with_and_without_tls() {
    let pki = Pki::new();
    let accepting = Accepting::load(&pki.accept_settings(TlsMode::Require)).unwrap().unwrap();
    let mut with = Fake::new(Door::Trust);
    with.tls = Some(Arc::new(accepting));
    let with = with.start().await;
    let without = Fake::new(Door::Trust).start().await;
    for (mode, encrypted, works_without) in [
        (TlsMode::Disable, false, true),
        (TlsMode::Allow, false, true),
        (TlsMode::Prefer, true, true),
        (TlsMode::Require, true, false),
        (TlsMode::VerifyCa, true, false),
        (TlsMode::VerifyFull, true, false),
    ] {
        let tls = || Connecting::load(&pki.connect_settings(mode)).unwrap();
        let dialler = Dialler::default();
        let dialled =
            dial(&dialler, &target(&[&with], tls()), &login(&Secret::None)).await.unwrap();
        assert_eq!(dialled.talk.stream().is_encrypted(), encrypted, "{mode}");
        let result = dial(&dialler, &target(&[&without], tls()), &login(&Secret::None)).await;
        assert_eq!(result.is_ok(), works_without, "{mode}");
    }
}

/// Nothing showed that sessions, with their passwords, were not encrypted.
#[tokio::test]
async fn a_server_with_which_tls_fails_is_shown_as_long_as_it_does() {
    let pki = Pki::new();
    let mut accept = pki.accept_settings(TlsMode::Require);
    accept.client_tls_protocols = TlsVersions { v1_2: true, v1_3: false };
    let mut server = Fake::new(Door::Trust);
    server.tls = Some(Arc::new(Accepting::load(&accept).unwrap().unwrap()));
    let server = server.start().await;
    let without = Fake::new(Door::Trust).start().await;
    let config = |mode| {
        let text = format!(
            "[[database]]\nname = \"*\"\nservers = [\"{server}\", \"{without}\"]\n[auth]\n\
             auth_type = \"trust\"\n[[user]]\nname = \"u\"\n[tls]\nserver_tls_sslmode = \"{mode}\"\n"
        );
        Config::from_str(&text, "test.toml").unwrap()
    };
    let (dialler, preferring) = (Dialler::default(), config(TlsMode::Prefer));
    let mut settings = pki.connect_settings(TlsMode::Prefer);
    let tls = |settings: &ServerTlsSettings| Connecting::load(settings).unwrap();
    settings.server_tls_protocols = TlsVersions { v1_2: false, v1_3: true };
    let none = login(&Secret::None);
    let dialled = dial(&dialler, &target(&[&server], tls(&settings)), &none).await.unwrap();
    assert!(!dialled.talk.stream().is_encrypted());
    let shown = dialler.unencrypted.fallbacks(&preferring);
    assert!(
        shown[0].starts_with(&format!("server {server}: no encryption, TLS fails: ")),
        "{shown:?}"
    );
    assert_eq!(shown.len(), 1);
    assert!(dialler.unencrypted.fallbacks(&config(TlsMode::Disable)).is_empty());
    // `prefer` is for a server that says that it has no TLS.
    dial(&dialler, &target(&[&without], tls(&settings)), &none).await.unwrap();
    assert_eq!(dialler.unencrypted.fallbacks(&preferring), shown);
    settings.server_tls_protocols = TlsVersions { v1_2: true, v1_3: true };
    let dialled = dial(&dialler, &target(&[&server], tls(&settings)), &none).await.unwrap();
    assert!(dialled.talk.stream().is_encrypted());
    assert!(dialler.unencrypted.fallbacks(&preferring).is_empty());
}

#[tokio::test]
async fn a_cancel_request_goes_to_the_server_that_runs_the_query_encrypted_as_it_is() {
    let pki = Pki::new();
    let accepting = Accepting::load(&pki.accept_settings(TlsMode::Require)).unwrap().unwrap();
    let mut server = Fake::new(Door::Trust);
    server.tls = Some(Arc::new(accepting));
    let cancels = server.cancels.clone();
    let server = server.start().await;
    let tls = Connecting::load(&pki.connect_settings(TlsMode::VerifyFull)).unwrap();
    let dialler = Dialler::default();
    let dialled = dial(&dialler, &target(&[&server], tls), &login(&Secret::None)).await.unwrap();
    let within = Duration::from_secs(5);
    dialler.cancel(dialled.server, 77, b"key", within).await.unwrap();
    assert_eq!(*cancels.lock().unwrap(), [(77, b"key".to_vec())]);
}

/// Such a server may still handle it when another client has the server connection.
#[tokio::test]
async fn a_cancel_request_that_is_not_answered_in_time_was_sent_all_the_same() {
    let server = Fake::new(Door::Trust).start().await;
    let dialler = Dialler::default();
    let login = login(&Secret::None);
    let target = target(&[&server], Connecting::never());
    let dialled = dial(&dialler, &target, &login).await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let silent = listener.local_addr().unwrap();
    let moved = |address: SocketAddr| {
        let mut places = locked(&dialler.places);
        let (place, _) = places.by_id.get_mut(&dialled.server).unwrap();
        place.endpoint = Endpoint::Tcp { host: String::new(), address };
    };
    moved(silent); // its backlog takes the connection, and nothing reads it
    let within = Duration::from_millis(200);
    let failed = dialler.cancel(dialled.server, 77, b"key", within).await.unwrap_err();
    assert!(failed.was_sent, "{}", failed.error);
    drop(listener);
    let failed = dialler.cancel(dialled.server, 77, b"key", within).await.unwrap_err();
    assert!(!failed.was_sent, "{}", failed.error);
}

#[tokio::test]
async fn a_server_under_its_limit_of_connections_is_passed_over() {
    let full = Fake::new(Door::Trust).start().await;
    let free = Fake::new(Door::Trust).start().await;
    let limits = Arc::new(Limits::default());
    let held = limits.address(&full, Limit::new(1)).unwrap();
    let dialler = Dialler::default();
    let both = target(&[&full, &free], Connecting::never());
    let login = login(&Secret::None);
    let gate = |server: &_| limits.address(server, Limit::new(1));
    let dialled = dialler.dial(&both, &login, &gate).await.unwrap();
    assert_eq!(dialler.place(dialled.server).unwrap().configured, free);
    let error = dialler.dial(&both, &login, &gate).await.unwrap_err();
    assert_eq!(error.to_client_error().code, SqlState::TOO_MANY_CONNECTIONS);
    drop(held);
    dialler.dial(&both, &login, &gate).await.unwrap();
}

#[tokio::test]
async fn places_without_a_connection_are_forgotten_where_a_name_changes_its_address_for_ever() {
    let dialler = Dialler::default();
    let server = Fake::new(Door::Trust).start().await;
    let target = target(&[&server], Connecting::never());
    let place = |number: u16| {
        let endpoint = Endpoint::Tcp {
            host: "changes".to_owned(),
            address: SocketAddr::from(([127, 0, 0, 1], number)),
        };
        dialler.place_id(&server, &endpoint, false, Transport::Tcp, &target)
    };
    let (kept, _known) = place(1);
    let mut ids = HashSet::from([kept.0]);
    for number in 2..10_000 {
        assert!(ids.insert(place(number).0.0), "an id is never used again");
    }
    assert!(dialler.place(kept).is_some(), "its connection is still there");
    let places = locked(&dialler.places);
    assert!(places.by_id.len() <= PLACES_UNUSED_MAX);
    assert_eq!(places.ids.len(), places.by_id.len());
}
