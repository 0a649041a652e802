//! The model against a real PostgreSQL: the same generated sessions, message by message.
//!
//! A simulated client is connected to a real server over a unix socket; it must receive what its
//! model says. Skipped, loudly, where there is no PostgreSQL: set `HAWSER_PG_BIN` to a directory
//! with `initdb` and `postgres`, or install one under /usr/lib/postgresql.

use std::io::{Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use hawser_lab::model::client::{Action, Behaviour, Comparison, Generator, Mismatch, Mix, Oracle};
use hawser_lab::model::{ServerConfig, catalog, frontend};
use hawser_lab::rng::Rng;

/// Sessions that one run compares (`HAWSER_SESSIONS` asks for more, from `HAWSER_SEED_FIRST` on), and the time after which
/// the default number of them stops early.
const SESSIONS: u64 = 150;
const TIME_MAX: Duration = Duration::from_secs(10);
/// Sessions that may be left out because a cancel came when the sleep was over.
const LATE_CANCELS_MAX: u32 = 3;
/// A real server that says nothing for so long will not say it any more.
const SILENCE: Duration = Duration::from_secs(5);

fn binaries() -> Option<PathBuf> {
    if let Some(given) = std::env::var_os("HAWSER_PG_BIN") {
        return Some(PathBuf::from(given));
    }
    // Versions 14 and 15 report settings in the order that the model has.
    ["15", "14"]
        .iter()
        .map(|version| Path::new("/usr/lib/postgresql").join(version).join("bin"))
        .find(|bin| bin.join("postgres").exists())
}

/// A throw-away server; dropping it stops it and removes its files.
struct Postgres {
    directory: PathBuf,
    server: Child,
}

impl Postgres {
    fn start(bin: &Path, slots: usize) -> Self {
        let directory = std::env::temp_dir().join(format!("hawser-lab-{}", std::process::id()));
        std::fs::create_dir_all(&directory).expect("the temporary directory is writable");
        std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o777))
            .expect("it is ours");
        let data = directory.join("data");
        let status = unprivileged(&bin.join("initdb"))
            .args(["-A", "trust", "-U", catalog::SUPERUSER, "-E", "UTF8", "--locale=C", "-N", "-D"])
            .arg(&data)
            .stdout(Stdio::null())
            .status()
            .expect("initdb starts");
        assert!(status.success(), "initdb: {status}");
        let server = unprivileged(&bin.join("postgres"))
            .arg("-D")
            .arg(&data)
            .arg("-k")
            .arg(&directory)
            .args(["-c", "listen_addresses=", "-c", "fsync=off", "-c", "TimeZone=UTC"])
            .args(["-c", "DateStyle=ISO, MDY", "-c", "lc_messages=C", "-c", "shared_buffers=16MB"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("postgres starts");
        let postgres = Self { directory, server };
        let started = Instant::now();
        while postgres.try_connect().is_none() {
            assert!(started.elapsed() < Duration::from_secs(20), "the server does not come up");
            std::thread::sleep(Duration::from_millis(50));
        }
        let (cluster, database) = catalog::setup_sql(slots);
        postgres.run("postgres", &cluster);
        postgres.run(catalog::DATABASE, &database);
        // A session's first temporary table creates its schema, once for each backend number, and
        // that makes every plan in the cluster be analysed again. Do that first.
        postgres.run(catalog::DATABASE, &["CREATE TEMP TABLE warm (v int)".to_owned()]);
        postgres
    }

    fn try_connect(&self) -> Option<UnixStream> {
        let mut stream = UnixStream::connect(self.directory.join(".s.PGSQL.5432")).ok()?;
        let startup = frontend::startup(
            frontend::PROTOCOL_3_0,
            &[("user", catalog::SUPERUSER), ("database", "postgres")],
        );
        stream.write_all(&startup.encode()).ok()?;
        let mut first = [0; 1];
        stream.read_exact(&mut first).ok()?;
        (first[0] == b'R').then_some(stream)
    }

    fn connect(&self) -> UnixStream {
        let stream = UnixStream::connect(self.directory.join(".s.PGSQL.5432"));
        let stream = stream.expect("the server listens");
        stream.set_read_timeout(Some(Duration::from_millis(20))).expect("a valid time");
        stream
    }

    /// Whether that process is in pg_sleep: a cancel may come before, and hit something else.
    fn sleeps(&self, process: i32) -> bool {
        let question = format!(
            "SELECT 'it sleeps' FROM pg_stat_activity WHERE pid = {process} AND wait_event = 'PgSleep'"
        );
        let answer = self.run("postgres", &[question]);
        answer.windows(9).any(|window| window == b"it sleeps")
    }

    fn run(&self, database: &str, statements: &[String]) -> Vec<u8> {
        let mut stream = self.connect();
        let parameters = [("user", catalog::SUPERUSER), ("database", database)];
        let mut bytes = frontend::startup(frontend::PROTOCOL_3_0, &parameters).encode();
        for statement in statements {
            bytes.extend(frontend::query(statement).encode());
        }
        bytes.extend(frontend::terminate().encode());
        stream.set_read_timeout(Some(SILENCE)).expect("a valid time");
        stream.write_all(&bytes).expect("the server reads");
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer).expect("the server answers and closes");
        let error = answer.windows(7).position(|window| window == b"\0VERROR");
        assert!(error.is_none(), "{}", String::from_utf8_lossy(&answer));
        answer
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        // SIGINT would be politer, but there is nothing here to lose.
        self.server.kill().ok();
        self.server.wait().ok();
        std::fs::remove_dir_all(&self.directory).ok();
    }
}

/// PostgreSQL refuses to run as root: there it runs as the user `postgres`.
fn unprivileged(program: &Path) -> Command {
    let root = std::fs::metadata("/proc/self").is_ok_and(|own| {
        use std::os::unix::fs::MetadataExt;
        own.uid() == 0
    });
    if !root {
        return Command::new(program);
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups"]).arg(program);
    command
}

/// One generated session against the real server.
fn session(
    postgres: &Postgres,
    seed: u64,
    slot: usize,
    slots: usize,
) -> Result<(u64, u64), Mismatch> {
    let mut rng = Rng::new(seed);
    let config = ServerConfig { slots: 0..slots, ..ServerConfig::default() };
    let mut oracle = Oracle::new(config, Comparison::RealServer);
    // Functions, too, do what the model says.
    let mix = Mix { hidden: if seed % 2 == 1 { 8 } else { 0 }, ..Mix::everything() };
    let behaviour = Behaviour { mix, units: 30, ..Behaviour::default() };
    let mut generator = Generator::new(rng.next_u64(), behaviour, slot);
    let mut stream = postgres.connect();
    let startup = frontend::startup(
        frontend::PROTOCOL_3_0,
        &[("user", catalog::LOGIN_ROLE), ("database", catalog::DATABASE)],
    );
    oracle.send(&startup);
    stream.write_all(&startup.encode()).expect("the server reads");
    listen(&mut stream, &mut oracle)?;
    let (mut sent, mut cancels) = (0, 0);
    while let Some(action) = generator.next_action(oracle.reference()) {
        match action {
            Action::Send(message) => {
                sent += 1;
                oracle.send(&message);
                stream.write_all(&message.encode()).expect("the server reads");
            }
            Action::Await => listen(&mut stream, &mut oracle)?,
            Action::Think(_) => {}
            Action::Cancel => {
                if let Some((process, secret)) = oracle.key().cloned()
                    && (0..3).any(|_| postgres.sleeps(process))
                {
                    cancels += 1;
                    oracle.send_cancel();
                    let mut cancel = postgres.connect();
                    let request = frontend::cancel(process, &secret);
                    cancel.write_all(&request.encode()).expect("the server reads");
                }
            }
            Action::Vanish => break,
            Action::Leave => {
                let terminate = frontend::terminate();
                oracle.send(&terminate);
                stream.write_all(&terminate.encode()).expect("the server reads");
                let mut rest = Vec::new();
                stream.set_read_timeout(Some(SILENCE)).expect("a valid time");
                stream.read_to_end(&mut rest).expect("the server closes");
                oracle.receive(&rest)?;
                if !oracle.is_silent() {
                    let what = format!("never came: {}", oracle.waits_for());
                    return Err(Mismatch { what, history: oracle.history() });
                }
            }
        }
    }
    Ok((sent, cancels))
}

/// Whether what came was the error of a cancel, where another answer was due.
fn is_a_late_cancel(mismatch: &Mismatch) -> bool {
    mismatch
        .what
        .lines()
        .any(|line| line.starts_with("received: ErrorResponse") && line.contains("57014"))
}

fn listen(stream: &mut UnixStream, oracle: &mut Oracle) -> Result<(), Mismatch> {
    let mut buffer = [0; 16 << 10];
    let mut heard = Instant::now();
    while !oracle.is_answered() {
        match stream.read(&mut buffer) {
            Ok(0) => {
                let what = format!("closed, instead of {}", oracle.waits_for());
                return Err(Mismatch { what, history: oracle.history() });
            }
            Ok(read) => {
                heard = Instant::now();
                oracle.receive(&buffer[..read])?;
            }
            Err(_) if heard.elapsed() < SILENCE => {}
            Err(error) => {
                let what = format!("{error}, instead of {}", oracle.waits_for());
                return Err(Mismatch { what, history: oracle.history() });
            }
        }
    }
    Ok(())
}

#[test]
fn a_real_server_says_what_the_model_says() {
    let Some(bin) = binaries() else {
        eprintln!("SKIPPED: no PostgreSQL 14 or 15 found; set HAWSER_PG_BIN to its bin directory");
        return;
    };
    let number = |name| -> Option<u64> { std::env::var(name).ok()?.parse().ok() };
    let only = number("HAWSER_SEED");
    let first = only.or(number("HAWSER_SEED_FIRST")).unwrap_or(0);
    let sessions = if only.is_some() { 1 } else { number("HAWSER_SESSIONS").unwrap_or(SESSIONS) };
    let slots = usize::try_from(sessions).expect("small");
    let postgres = Postgres::start(&bin, slots);
    let started = Instant::now();
    let (mut compared, mut messages, mut cancels, mut failures) = (0, 0, 0, Vec::new());
    let mut late = 0;
    for slot in 0..slots {
        let seed = first + slot as u64;
        match session(&postgres, seed, slot, slots) {
            Ok((sent, struck)) => {
                messages += sent;
                cancels += struck;
            }
            // On a busy machine the sleep may be over when the cancel comes, which then hits what is
            // next, as PostgreSQL says of cancels: no word about the model.
            Err(mismatch) if is_a_late_cancel(&mismatch) && late < LATE_CANCELS_MAX => late += 1,
            Err(mismatch) => failures.push(format!("HAWSER_SEED={seed}\n{mismatch}")),
        }
        compared += 1;
        if (sessions == SESSIONS && started.elapsed() > TIME_MAX) || failures.len() == 8 {
            break;
        }
    }
    eprintln!(
        "{compared} sessions, {messages} messages, {cancels} cancels compared with {}; {late} left out \
         for a cancel that came late",
        bin.display()
    );
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    assert!(messages > 0, "nothing was compared");
}
