//! A pooler that only administration sees, and the console over it.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use hawser_link::drive::report::Report;
use hawser_pooler::ids::{BackendId, ClientId, LoopId, PoolId, ServerAddressId, Slot};
use hawser_pooler::lending::{PoolSettings, SharedPool};
use hawser_pooler::queries::table::QueryCounts;
use hawser_pooler::relay::ToLoop;
use hawser_pooler::relay::client_info::{ClientAbout, ClientState, PeerAddress};
use hawser_pooler::relay::message::{BackendRow, BackendState, ClientRow, Listed, Page};
use hawser_pooler::session::options::Replication;
use hawser_pooler::session::part::{Part, PartSet};
use hawser_pooler::session::settings::Settings;
use hawser_pooler::time::Time;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};

use super::command::Shutdown;
use super::pooler::{Answer, PoolEntry};
use super::show::dialect::Dialect;
use super::*;
use crate::config::Config;
use crate::dial::Place;
use crate::dial::server_row::{ServerRole, ServerRow, ServerState};
use crate::gates::Gates;
use crate::limits::Limits;
use crate::login::admin::AdminRole;
use crate::loops::tests::mailboxes;
use crate::loops::{Loops, Pool};
use crate::mailbox::LoopMailbox;
use crate::queries;
use crate::resolve::HostRow;
use crate::rules::Rules;
use crate::socket::Conn;
use crate::tally::Tally;

/// Clients that the fake gives at a time.
const PAGE_ROWS: usize = 2;

/// The one loop of the fake.
#[derive(Default)]
struct Loop {
    clients: Mutex<Vec<ClientRow>>,
    backends: Mutex<Vec<BackendRow>>,
    sent: Mutex<Vec<String>>,
}

impl Loop {
    /// Takes what comes as long as another handle to the loop exists.
    fn start(self: &Arc<Self>) -> LoopMailbox<Conn> {
        let mailbox = mailboxes(1).remove(0);
        let (taken_from, this) = (mailbox.clone(), Arc::downgrade(self));
        std::thread::spawn(move || {
            let mut messages = Vec::new();
            while let Some(this) = this.upgrade() {
                taken_from.take(&mut messages);
                messages.drain(..).for_each(|message| this.receive(message));
                drop(this);
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        mailbox
    }

    fn receive(&self, message: ToLoop<Conn>) {
        match message {
            ToLoop::Page(request, reply) => reply(match request.listed {
                Listed::Clients => {
                    let all = self.clients.lock().unwrap();
                    let from = request.from as usize;
                    let to = all.len().min(from + PAGE_ROWS);
                    let next = (to < all.len()).then_some(to as u32);
                    Page { clients: all[from..to].to_vec(), next, ..Page::default() }
                }
                Listed::Holders { .. } => {
                    let mut clients = self.clients.lock().unwrap().clone();
                    clients.retain(|client| client.backend.is_some());
                    Page { clients, ..Page::default() }
                }
                Listed::Backends => {
                    Page { backends: self.backends.lock().unwrap().clone(), ..Page::default() }
                }
                Listed::Queries => Page {
                    queries: vec![
                        queries::row("SELECT 1", "u", 2, 3_000),
                        queries::row("SELECT 'x' FROM t", "u", 9, 900),
                    ],
                    other_queries: Some(Box::new((
                        QueryCounts { calls: 5, ..QueryCounts::default() },
                        3,
                    ))),
                    ..Page::default()
                },
            }),
            ToLoop::Kill { client, error } => {
                self.sent.lock().unwrap().push(format!("kill {client}: {}", error.message));
            }
            other => self.sent.lock().unwrap().push(format!("{other:?}")),
        }
    }
}

/// A pooler with one loop, databases `app` and `other`, and one pool of `app`.
pub(crate) struct Fake {
    config: Mutex<Arc<Config>>,
    loops: Loops,
    home: Arc<Loop>,
    pub(crate) pool: Pool,
    /// A pool whose first client logs in right after the first list of pools from now on.
    late: Mutex<Option<Pool>>,
    limits: Arc<Limits>,
    rules: Arc<Rules>,
    gates: Gates,
    tally: Tally,
    pub(crate) orders: Mutex<VecDeque<String>>,
    pub(crate) ready: Mutex<Result<(), String>>,
}

const CONFIG: &str = r#"
[auth]
users_file = "users.txt"
admin_users = ["root"]
[[database]]
name = "app"
servers = ["db1:5432", "/run/postgresql:5433"]
user = "app_owner"
[[database]]
name = "other"
servers = "db2:5432"
"#;

pub(crate) fn fake() -> Arc<Fake> {
    let home = Arc::new(Loop::default());
    let pool = SharedPool::new(PoolId(1), "app", "app_owner", PoolSettings::default(), 1, 0);
    let stats = pool.stats.of(LoopId(0));
    stats.transactions.add(10);
    stats.queries.add(20);
    stats.received.add(1_000);
    stats.query.record(75);
    stats.query.record(1 << 40);
    Arc::new(Fake {
        config: Mutex::new(Arc::new(Config::from_str(CONFIG, "/etc/hawser.toml").unwrap())),
        loops: Loops::new(vec![home.start()], Instant::now()),
        home,
        pool: Arc::new(pool),
        late: Mutex::default(),
        limits: Arc::default(),
        rules: Arc::default(),
        gates: Gates::default(),
        tally: Tally::default(),
        orders: Mutex::default(),
        ready: Mutex::new(Ok(())),
    })
}

impl Fake {
    fn order(&self, order: impl Into<String>) {
        self.orders.lock().unwrap().push_back(order.into());
    }

    fn client(&self, index: u32, pins: &[Part]) -> ClientId {
        let id = ClientId { home: LoopId(0), slot: Slot { index, generation: 0 } };
        self.home.clients.lock().unwrap().push(ClientRow {
            id,
            pool: self.pool.id,
            local: Some(("10.0.0.9".to_owned(), 6432)),
            database: "app".to_owned(),
            user: "u".to_owned(),
            state: ClientState::Active,
            about: ClientAbout::new(
                PeerAddress::V4("10.0.0.1:4711".parse().unwrap()),
                None,
                "TLSv1.3",
                Time::ZERO,
            ),
            application_name: "test".to_owned(),
            last_request: Time::ZERO,
            wait_us: 1_500_000,
            backend: Some(BackendId(7)),
            backend_process: 7,
            pins: PartSet::of(pins),
            pinned_since: (!pins.is_empty()).then_some(Time::ZERO),
            channels: 0,
            statements: 3,
            process: 4_194_305,
            kept_in: 0,
            kept_out: 0,
            idle_in_transaction: None,
            line: None,
        });
        id
    }

    fn backend(&self, epoch: u32) {
        self.home.backends.lock().unwrap().push(BackendRow {
            id: BackendId(7),
            pool: self.pool.id,
            local: None,
            cancels: 0,
            cancel_waits: false,
            epoch,
            database: "app".to_owned(),
            user: "app_owner".to_owned(),
            state: BackendState::Active,
            server: ServerAddressId(0),
            process: 99,
            connected: Time::ZERO,
            parked: false,
            client: None,
            client_process: 0,
            client_start: Settings::EMPTY,
            statements: 0,
            application_name: String::new(),
            encrypted: true,
            kept_in: 0,
            kept_out: 0,
            line: None,
        });
    }
}

impl Pooler for Fake {
    fn config(&self) -> Arc<Config> {
        self.config.lock().unwrap().clone()
    }
    fn put_config(&self, config: Config) -> Answer<'_, Result<(), String>> {
        *self.config.lock().unwrap() = Arc::new(config);
        Box::pin(async { Ok(()) })
    }
    fn reload(&self) -> Answer<'_, Result<Vec<String>, String>> {
        Box::pin(async { Err("hawser.toml:3:1: nonsense".to_owned()) })
    }
    fn cancels_to_peer(&self, id: u8) -> u32 {
        id.into()
    }
    fn loops(&self) -> &Loops {
        &self.loops
    }
    fn pools(&self) -> Vec<PoolEntry> {
        if let Some(late) = self.late.lock().unwrap().take() {
            self.gates.pause_pool(&late.database, || late.lock().pause());
        }
        vec![PoolEntry {
            pool: self.pool.clone(),
            clients: 3,
            waiting_at_login: 0,
            wait_at_login: Duration::ZERO,
            logins: 4,
            replication: Replication::None,
            unsaid: None,
            is_before_pooler: true,
            asking: 1,
        }]
    }
    fn open(&self, pool: &Pool, _: LoopId) {
        self.order(format!("open {}", pool.database));
    }
    fn close_idle(&self, _: &Pool) {}
    fn close_lines(&self, _: Option<&str>) {}
    fn reconnect(&self, pool: &Pool) {
        pool.begin_epoch();
    }
    fn place(&self, _: ServerAddressId) -> Option<Place> {
        None
    }
    fn hosts(&self) -> Vec<HostRow> {
        let addresses = vec!["10.0.0.7".parse().unwrap()];
        vec![HostRow { name: "db1".to_owned(), age: Duration::from_secs(5), addresses }]
    }
    fn servers(&self) -> Vec<ServerRow> {
        let (database, server) = ("app".to_owned(), "db1:5432".to_owned());
        let state = ServerState::Left { reason: "it <lags>".to_owned() };
        let role = Some(ServerRole::Standby { lag: Some(Duration::from_millis(1_500)) });
        vec![ServerRow { database, server, state, role }]
    }
    fn limits(&self) -> &Arc<Limits> {
        &self.limits
    }
    fn rules(&self) -> &Arc<Rules> {
        &self.rules
    }
    fn gates(&self) -> &Gates {
        &self.gates
    }
    fn tally(&self) -> &Tally {
        &self.tally
    }
    fn listeners(&self) -> Vec<String> {
        vec!["127.0.0.1:6432".to_owned()]
    }
    fn fallbacks(&self) -> Vec<String> {
        Vec::new()
    }
    fn links(&self) -> Vec<Arc<Report>> {
        vec![Arc::new(hawser_link::drive::report::example::busy())]
    }
    fn started(&self) -> SystemTime {
        SystemTime::UNIX_EPOCH
    }
    fn ready(&self) -> Result<(), String> {
        self.ready.lock().unwrap().clone()
    }
    fn shutdown(&self, how: Shutdown) {
        self.order(format!("{how:?}"));
    }
}

/// An operator at the console of a fake.
struct Operator {
    fake: Arc<Fake>,
    stream: DuplexStream,
    input: Vec<u8>,
}

type Message = (u8, Vec<u8>);

impl Operator {
    async fn connect(fake: &Arc<Fake>, role: AdminRole) -> Self {
        Self::at(fake, role, "hawser").await
    }

    async fn at(fake: &Arc<Fake>, role: AdminRole, database: &'static str) -> Self {
        let (stream, other) = tokio::io::duplex(1 << 20);
        let pooler: Arc<dyn Pooler> = fake.clone();
        tokio::spawn(async move {
            let console = Console::default();
            let operator = operators::Operator {
                role,
                database: database.to_owned(),
                user: "ops".to_owned(),
                address: "unix".to_owned(),
                port: 0,
                tls: String::new(),
                application_name: "psql".to_owned(),
            };
            let _ = session::serve(other, operator, &console, pooler).await;
        });
        let mut operator = Self { fake: fake.clone(), stream, input: Vec::new() };
        operator.until_ready().await;
        operator
    }

    async fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).await.unwrap();
    }

    async fn message(&mut self) -> Option<Message> {
        loop {
            if let Some(head) = self.input.first_chunk::<5>() {
                let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
                if self.input.len() > length {
                    let message: Vec<u8> = self.input.drain(..=length).collect();
                    return Some((message[0], message[5..].to_vec()));
                }
            }
            if self.stream.read_buf(&mut self.input).await.unwrap() == 0 {
                return None;
            }
        }
    }

    async fn until_ready(&mut self) -> Vec<Message> {
        let mut messages = Vec::new();
        loop {
            let message = self.message().await.expect("the console answers");
            let ready = message.0 == b'Z';
            messages.push(message);
            if ready {
                return messages;
            }
        }
    }

    async fn query(&mut self, text: &str) -> Vec<Message> {
        let mut query = Vec::new();
        hawser_pooler::wire::build::query(&mut query, text.as_bytes());
        self.send(&query).await;
        self.until_ready().await
    }

    /// The rows of a result, and its tag or its error's SQLSTATE.
    async fn rows(&mut self, text: &str) -> (Vec<Vec<Option<String>>>, String) {
        let mut rows = Vec::new();
        let mut end = String::new();
        for (kind, body) in self.query(text).await {
            match kind {
                b'D' => rows.push(row(&body)),
                b'C' => end = string(&body),
                b'E' => end = string(hawser_pooler::wire::error::field(&body, b'C').unwrap()),
                _ => {}
            }
        }
        (rows, end)
    }

    async fn answer(&mut self, text: &str) -> String {
        self.rows(text).await.1
    }
}

fn string(bytes: &[u8]) -> String {
    String::from_utf8(bytes.strip_suffix(b"\0").unwrap_or(bytes).to_vec()).unwrap()
}

fn row(body: &[u8]) -> Vec<Option<String>> {
    let mut rest = &body[2..];
    let mut cells = Vec::new();
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        match usize::try_from(i32::from_be_bytes(*length)) {
            Ok(length) => {
                cells.push(Some(string(&after[..length])));
                rest = &after[length..];
            }
            Err(_) => {
                cells.push(None);
                rest = after;
            }
        }
    }
    cells
}

fn kinds(messages: &[Message]) -> String {
    messages.iter().map(|(kind, _)| char::from(*kind)).collect()
}

#[tokio::test]
async fn every_topic_is_answered_with_rows_as_wide_as_its_columns() {
    let fake = fake();
    fake.client(0, &[Part::TemporaryObject]);
    fake.backend(0);
    let mut operator = Operator::connect(&fake, AdminRole::Admin).await;
    for (word, topic) in command::Topic::ALL {
        let messages = operator.query(&format!("SHOW {word}")).await;
        assert!(kinds(&messages).ends_with("CZ"), "{word}: {}", kinds(&messages));
        for (_, body) in messages.iter().filter(|(kind, _)| *kind == b'D') {
            assert_eq!(row(body).len(), show::columns(topic, Dialect::Hawser).len(), "{word}");
        }
    }
}

#[tokio::test]
async fn queries_are_shown_in_the_order_that_is_asked_for_and_others_last() {
    let mut operator = Operator::connect(&fake(), AdminRole::Stats).await;
    let shown = |rows: &[Vec<Option<String>>]| {
        let query = |row: &Vec<Option<String>>| [3, 15, 16].map(|at| row[at].clone().unwrap());
        rows.iter().map(|row| query(row).join(" | ")).collect::<Vec<_>>()
    };
    let (rows, _) = operator.rows("SHOW QUERIES").await;
    let expected = [
        "2 | select ? | SELECT 1",
        "9 | select ? from t | SELECT 'x' FROM t",
        "5 | other | 3 statements that were forgotten",
    ];
    assert_eq!(shown(&rows), expected);
    assert_eq!(rows[0][7].as_deref(), Some("3000"));
    let (rows, _) = operator.rows("SHOW QUERIES ORDER BY calls").await;
    assert_eq!(shown(&rows), [expected[1], expected[0], expected[2]]);
    let messages = operator.query("SHOW QUERIES ORDER BY colour").await;
    assert!(kinds(&messages).starts_with('E'));
}

#[tokio::test]
async fn clients_and_servers_are_shown_with_their_pins_and_ages() {
    let fake = fake();
    fake.client(0, &[Part::TemporaryObject]);
    fake.backend(1);
    let mut operator = Operator::connect(&fake, AdminRole::Stats).await;
    let (rows, _) = operator.rows("SHOW CLIENTS").await;
    let client: Vec<&str> = rows[0].iter().map(|cell| cell.as_deref().unwrap_or("-")).collect();
    assert_eq!(client[..7], ["C", "u", "app", "none", "active", "10.0.0.1", "4711"]);
    assert_eq!(
        client[11..20],
        ["1", "500000", "0", "c0.0.0", "s7", "4194305", "TLSv1.3", "test", "3"]
    );
    assert_eq!(client[20], "1");
    assert_eq!(client[21], Part::TemporaryObject.name());
    let (rows, _) = operator.rows("SHOW SERVERS").await;
    assert_eq!(rows.len(), 1);
    assert_eq!(rows[0][13].as_deref(), Some("1"), "of another epoch: it will be closed");
    let (rows, _) = operator.rows("SHOW PINS").await;
    assert_eq!(rows[0][2].as_deref(), Some(Part::TemporaryObject.name()));
    assert_eq!(rows[0].last().unwrap().as_deref(), Some("0"), "seconds");
    let (rows, _) = operator.rows("SHOW DATABASES").await;
    assert_eq!(rows[0][1].as_deref(), Some("db1,/run/postgresql"));
    assert_eq!(rows[0][4].as_deref(), Some("app_owner"));
    let (rows, _) = operator.rows("SHOW DNS_HOSTS").await;
    assert_eq!(rows[0], [Some("db1".into()), Some("10".into()), Some("10.0.0.7".into())]);
    let (rows, _) = operator.rows("SHOW HOSTS").await;
    let row = ["app", "db1:5432", "left", "standby", "1500", "0", "it <lags>"];
    assert_eq!(rows, [row.map(|cell| Some(cell.to_owned()))]);
}

#[tokio::test]
async fn stats_users_look_and_change_nothing() {
    let fake = fake();
    let mut operator = Operator::connect(&fake, AdminRole::Stats).await;
    for text in [
        "PAUSE",
        "RESUME",
        "KILL",
        "RELOAD",
        "SHUTDOWN",
        "SET pool_size=1",
        "DISABLE app",
        "ENABLE app",
        "RECONNECT",
        "KILL_CLIENT 1",
        "WAIT_CLOSE",
        "CLOSE IDLE",
        "SUSPEND",
        "SHOW FDS",
    ] {
        assert_eq!(operator.answer(text).await, "42501", "{text}");
    }
    assert!(!fake.gates.all_paused() && fake.orders.lock().unwrap().is_empty());
    assert_eq!(operator.answer("SHOW POOLS").await, "SHOW");
    assert_eq!(operator.answer("SET extra_float_digits = 3").await, "SET");
}

#[tokio::test]
async fn pause_waits_for_the_last_server_and_resume_ends_it() {
    let fake = fake();
    let home = ClientId { home: LoopId(0), slot: Slot { index: 0, generation: 0 } };
    // One being opened: as good as one in use.
    assert!(matches!(
        fake.pool.lock().acquire(home, Time::ZERO),
        hawser_pooler::lending::Acquired::Wait { open: true }
    ));
    let mut operator = Operator::connect(&fake, AdminRole::Admin).await;
    let mut query = Vec::new();
    hawser_pooler::wire::build::query(&mut query, b"PAUSE app");
    operator.send(&query).await;
    let early = tokio::time::timeout(Duration::from_millis(150), operator.message()).await;
    assert!(early.is_err(), "answered while a server connection was there");
    fake.pool.lock().open_failed(Time::ZERO, Duration::ZERO);
    let messages = operator.until_ready().await;
    assert_eq!(kinds(&messages), "CZ");
    assert!(fake.pool.lock().is_paused());
    assert_eq!(operator.answer("SHOW STATE").await, "SHOW");
    assert_eq!(operator.answer("RESUME app").await, "RESUME");
    assert!(!fake.pool.lock().is_paused());
    assert_eq!(fake.orders.lock().unwrap().pop_front().as_deref(), Some("open app"));
    assert_eq!(operator.answer("RESUME app").await, "57P03");
}

#[tokio::test]
async fn resume_leaves_no_pool_paused_that_is_made_meanwhile() {
    for command in ["RESUME", "RESUME app"] {
        let fake = fake();
        let mut operator = Operator::connect(&fake, AdminRole::Admin).await;
        let pause = command.replace("RESUME", "PAUSE");
        assert_eq!(operator.answer(&pause).await, "PAUSE");
        let late = SharedPool::new(PoolId(2), "app", "ann", PoolSettings::default(), 1, 0);
        let late = Arc::new(late);
        *fake.late.lock().unwrap() = Some(late.clone());
        assert_eq!(operator.answer(command).await, "RESUME");
        assert!(!late.lock().is_paused(), "{command}");
    }
}

#[tokio::test]
async fn an_operator_who_leaves_does_not_wait_on() {
    let fake = fake();
    let id = ClientId { home: LoopId(0), slot: Slot { index: 0, generation: 0 } };
    let _ = fake.pool.lock().acquire(id, Time::ZERO);
    let references = Arc::strong_count(&fake);
    let mut operator = Operator::connect(&fake, AdminRole::Admin).await;
    let mut query = Vec::new();
    hawser_pooler::wire::build::query(&mut query, b"PAUSE");
    operator.send(&query).await;
    tokio::time::sleep(Duration::from_millis(20)).await;
    drop(operator);
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert_eq!(Arc::strong_count(&fake), references, "the session goes on without its operator");
    assert!(fake.gates.all_paused(), "the pause stays");
}

#[tokio::test]
async fn wait_close_waits_for_servers_of_older_epochs() {
    let fake = fake();
    fake.backend(0);
    let mut operator = Operator::connect(&fake, AdminRole::Admin).await;
    assert_eq!(operator.answer("WAIT_CLOSE app").await, "WAIT_CLOSE");
    assert_eq!(operator.answer("RECONNECT app").await, "RECONNECT");
    let mut query = Vec::new();
    hawser_pooler::wire::build::query(&mut query, b"WAIT_CLOSE");
    operator.send(&query).await;
    let early = tokio::time::timeout(Duration::from_millis(100), operator.message()).await;
    assert!(early.is_err(), "answered while an old server connection was there");
    fake.home.backends.lock().unwrap().clear();
    assert_eq!(kinds(&operator.until_ready().await), "CZ");
}

#[tokio::test]
async fn a_client_is_killed_by_its_number_or_its_name() {
    let fake = fake();
    fake.client(0, &[]);
    fake.client(1, &[]);
    let mut operator = Operator::connect(&fake, AdminRole::Admin).await;
    assert_eq!(operator.answer("KILL_CLIENT 2").await, "KILL_CLIENT");
    assert_eq!(operator.answer("KILL_CLIENT c0.0.0").await, "KILL_CLIENT");
    assert_eq!(operator.answer("KILL_CLIENT 3").await, "42704");
    assert_eq!(operator.answer("KILL_CLIENT x").await, "22023");
    assert_eq!(
        *fake.home.sent.lock().unwrap(),
        ["kill c0.1.0: admin forced disconnect", "kill c0.0.0: admin forced disconnect"]
    );
}

#[tokio::test]
async fn what_commands_refuse_has_the_right_sqlstate() {
    let fake = fake();
    let mut operator = Operator::connect(&fake, AdminRole::Admin).await;
    for (text, code) in [
        ("PAUSE nowhere", "3D000"),
        ("PAUSE hawser", "0A000"),
        ("DISABLE pgbouncer", "0A000"),
        ("SUSPEND", "0A000"),
        ("RELOAD", "F0000"),
        ("RESUME", "57P03"),
        ("SET no_such_thing = 1", "42704"),
        ("SET listen_addr = 1", "55P02"),
        ("SET default_pool_size = x", "22023"),
        ("FROB", "42601"),
        ("SET default_pool_size = 7", "SET default_pool_size=7"),
        ("DISABLE app", "DISABLE"),
        ("SHUTDOWN WAIT_FOR_SERVERS", "SHUTDOWN"),
        ("KILL other", "KILL"),
        ("", ""),
    ] {
        assert_eq!(operator.answer(text).await, code, "{text}");
    }
    assert_eq!(fake.config().database("other").unwrap().inherited.pool.pool_size, 7);
    assert!(fake.gates.is_disabled("app") && fake.gates.is_paused("other"));
    assert_eq!(*operator.fake.orders.lock().unwrap(), ["WaitForServers"]);
}

/// RESUME of a database said that it was not paused, because the pause was of all.
#[tokio::test]
async fn kill_without_a_name_pauses_each_database_by_itself() {
    let fake = fake();
    let mut operator = Operator::connect(&fake, AdminRole::Admin).await;
    assert_eq!(operator.answer("KILL").await, "KILL");
    assert!(!fake.gates.all_paused() && fake.gates.is_paused("app"));
    assert_eq!(operator.answer("RESUME app").await, "RESUME");
    assert!(!fake.gates.is_paused("app"));
}

#[tokio::test]
async fn the_extended_protocol_works_as_drivers_use_it() {
    use hawser_pooler::wire::{build, frontend};
    let mut operator = Operator::connect(&fake(), AdminRole::Admin).await;
    let mut out = Vec::new();
    build::parse(&mut out, b"s", b"SHOW STATE\0\0\0");
    build::message(&mut out, frontend::DESCRIBE, |out| out.extend_from_slice(b"Ss\0"));
    build::bind_plain(&mut out, b"", b"s");
    build::execute(&mut out, b"");
    out.extend_from_slice(&build::SYNC);
    operator.send(&out).await;
    assert_eq!(kinds(&operator.until_ready().await), "1tT2DDDDDCZ");

    // Binary, as asyncpg asks for it.
    out.clear();
    build::parse(&mut out, b"", b"SHOW TOTALS\0\0\0");
    build::message(&mut out, frontend::BIND, |out| {
        out.extend_from_slice(b"\0\0\0\0\0\0\0\x01\0\x01");
    });
    build::execute(&mut out, b"");
    out.extend_from_slice(&build::SYNC);
    operator.send(&out).await;
    let messages = operator.until_ready().await;
    // total_xact_count: 10 as numeric_send makes it.
    assert_eq!(messages[3].1[22..], [0, 0, 0, 10, 0, 1, 0, 0, 0, 0, 0, 0, 0, 10]);

    // After an error everything up to Sync is ignored.
    out.clear();
    build::parse(&mut out, b"", b"FROB\0\0\0");
    build::bind_plain(&mut out, b"", b"");
    build::execute(&mut out, b"");
    out.extend_from_slice(&build::SYNC);
    build::bind_plain(&mut out, b"", b"nothing");
    out.extend_from_slice(&build::SYNC);
    operator.send(&out).await;
    assert_eq!(kinds(&operator.until_ready().await), "EZ");
    assert_eq!(kinds(&operator.until_ready().await), "EZ");
}

#[tokio::test]
async fn a_drivers_transaction_is_played_along_with() {
    let mut operator = Operator::connect(&fake(), AdminRole::Admin).await;
    let status = |messages: &[Message]| char::from(messages.last().unwrap().1[0]);
    assert_eq!(status(&operator.query("BEGIN").await), 'T');
    assert_eq!(status(&operator.query("SHOW POOLS").await), 'T');
    assert_eq!(status(&operator.query("FROB").await), 'E');
    assert_eq!(operator.answer("SHOW POOLS").await, "25P02");
    assert_eq!(operator.answer("COMMIT").await, "ROLLBACK");
    assert_eq!(status(&operator.query("SHOW POOLS; SHOW STATE").await), 'I');
}

#[tokio::test]
async fn nonsense_ends_the_connection_with_08p01() {
    for bytes in [&b"?\0\0\0\x04"[..], b"Q\0\0\0\x01", b"Q\x7f\xff\xff\xff"] {
        let mut operator = Operator::connect(&fake(), AdminRole::Admin).await;
        operator.send(bytes).await;
        let (kind, body) = operator.message().await.unwrap();
        assert_eq!(kind, b'E');
        assert_eq!(hawser_pooler::wire::error::field(&body, b'C'), Some(&b"08P01"[..]));
        assert!(operator.message().await.is_none());
    }
}

#[test]
fn a_note_makes_averages() {
    let fake = fake();
    let console = Console::default();
    console.take_note(fake.as_ref());
    console.take_note(fake.as_ref());
    let notes = console.notes.lock().unwrap();
    assert_eq!(notes.older(PoolId(1)).transactions, 10);
}

#[tokio::test]
async fn on_database_pgbouncer_the_console_is_pgbouncers_and_extended_shows_all() {
    let fake = fake();
    fake.client(0, &[]);
    let mut operator = Operator::at(&fake, AdminRole::Admin, "pgbouncer").await;
    let (rows, _) = operator.rows("SHOW VERSION").await;
    assert!(rows[0][0].as_deref().unwrap().starts_with("PgBouncer 1.26.0 "), "{rows:?}");
    let (rows, _) = operator.rows("SHOW server_version").await;
    assert_eq!(rows[0][0].as_deref(), Some("1.26.0/bouncer"));
    for (topic, width, wide) in [("POOLS", 17, 28), ("CLIENTS", 21, 26), ("STATS", 25, 25)] {
        let (rows, _) = operator.rows(&format!("SHOW {topic}")).await;
        assert!(rows.iter().all(|row| row.len() == width), "{topic}: {rows:?}");
        assert!(
            rows.iter().flatten().flatten().any(|cell| cell == "pgbouncer"),
            "{topic}: {rows:?}"
        );
        let (rows, _) = operator.rows(&format!("show {topic} extended")).await;
        assert!(rows.iter().all(|row| row.len() == wide), "{topic}: {rows:?}");
    }
    let (rows, _) = operator.rows("SHOW CLIENTS").await;
    let console = rows.iter().find(|row| row[2].as_deref() == Some("pgbouncer")).unwrap();
    assert_eq!((console[1].as_deref(), console[18].as_deref()), (Some("ops"), Some("psql")));
    let (rows, _) = operator.rows("SHOW DATABASES").await;
    let console = rows.iter().find(|row| row[0].as_deref() == Some("pgbouncer")).unwrap();
    assert_eq!((console[2].as_deref(), console[9].as_deref()), (Some("6432"), Some("statement")));
    assert_eq!(operator.rows("SHOW STATE").await.0.len(), 3);
    assert_eq!(operator.answer("SET console_version = '1.23'").await, "SET console_version=1.23");
    let (rows, _) = operator.rows("SHOW POOLS").await;
    assert!(rows.iter().all(|row| row.len() == 16), "{rows:?}");
    let (rows, _) = operator.rows("SHOW TOTALS").await;
    assert_eq!(rows.len(), 16, "{rows:?}");
    // The columns of `hawser` keep their positions.
    let mut ours = Operator::connect(&fake, AdminRole::Admin).await;
    assert_eq!(ours.rows("SHOW POOLS").await.0.len(), 1);
}
