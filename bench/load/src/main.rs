//! Load for PostgreSQL and for poolers in front of it.
//!
//! Opens N connections, keeps A of them at work, and counts within a window of time. It exists
//! because pgbench itself is the limit above 1,000 clients, and cannot time logins, idle
//! connections or large results. It logs in by trust only.
//!
//! # Model
//! One thread a core, each with its own epoll and its share of the connections; more processes where
//! the descriptor limit asks for them. Standard output is one JSON object a line:
//! `ready`, then (after a line on standard input, or at once with `--now`) `start`, `end`, `result`.
//! A program that measures another's CPU takes it at `start` and at `end`.

mod bulk;
mod children;
mod histogram;
mod listen;
mod report;
mod script;
mod stream;
mod wire;
mod worker;

use std::io::{self, BufRead as _};
use std::process::ExitCode;
use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Args, Parser, Subcommand};

use crate::histogram::Histogram;
use crate::report::{Event, Figures, say};
use crate::script::{Protocol, Scripts, Workload};
use crate::stream::Target;
use crate::worker::{Plan, Tally, Worker};

/// The longest wait for transactions that are to be run once by all connections.
const ONCE_LIMIT: Duration = Duration::from_secs(60);
/// The longest wait for transactions that are to be left open: a pool may have no room for all.
const LEAVE_OPEN_LIMIT: Duration = Duration::from_secs(3);

#[derive(Parser)]
#[command(version, about = "Load for PostgreSQL and for poolers in front of it")]
struct Cli {
    #[command(subcommand)]
    mode: Mode,
}

#[derive(Subcommand)]
enum Mode {
    /// Transactions: N connections, A of them at work
    Run(Load),
    /// Logins: each of N slots connects, logs in, closes, and begins again
    Connect(Load),
    /// Connections that are held idle; a line on standard input lets each run one transaction,
    /// the input's end ends it
    Hold(Load),
    /// Large results on one connection, timed at the receiver
    Bulk(BulkLoad),
    /// Clients that listen, and one that notifies, timed where notifications arrive
    Listen(ListenLoad),
}

#[derive(Args, Clone)]
struct Server {
    /// ADDRESS:PORT, or the path of a unix socket
    #[arg(long)]
    target: Target,
    #[arg(long, default_value = "postgres")]
    user: String,
    #[arg(long, default_value = "postgres")]
    database: String,
    /// Seconds that count
    #[arg(long, default_value_t = 5.0)]
    seconds: f64,
    /// Begin without waiting for a line on standard input
    #[arg(long)]
    now: bool,
}

#[derive(Args, Clone)]
struct Load {
    #[command(flatten)]
    server: Server,
    /// Connections
    #[arg(long, default_value_t = 1)]
    clients: usize,
    /// Connections at work at any time [default: all]
    #[arg(long)]
    active: Option<usize>,
    /// Further connections, each with a transaction left open
    #[arg(long, default_value_t = 0)]
    open_transactions: usize,
    /// Let all connections take turns, not the same ones work all the time
    #[arg(long)]
    rotate: bool,
    /// Seconds of the same load ahead of those that count
    #[arg(long, default_value_t = 1.0)]
    warmup: f64,
    /// Threads [default: one a core, at most one a connection]
    #[arg(long)]
    threads: Option<usize>,
    #[arg(long, value_enum, default_value = "select")]
    workload: Workload,
    #[arg(long, value_enum, default_value = "prepared")]
    protocol: Protocol,
    /// pgbench's scale of the tables
    #[arg(long, default_value_t = 10)]
    scale: i64,
    /// Rows of bench_few, for the contention
    #[arg(long, default_value_t = 10)]
    few_rows: i64,
    /// Updates in 100 transactions of the contention
    #[arg(long, default_value_t = 1)]
    update_percent: u64,
    /// Prepared statements of each client, which differ in a comment; only with the selects
    #[arg(long, default_value_t = 1)]
    statements: usize,
    /// Each client has an application_name and a custom setting of its own
    #[arg(long)]
    own_settings: bool,
    /// Different search_paths among the clients [default: the server's]
    #[arg(long, default_value_t = 0)]
    search_paths: usize,
    /// Different users among the clients, USER_0, USER_1 and so on [default: USER alone]
    #[arg(long, default_value_t = 0)]
    users: usize,
    /// Mean rest between a client's transactions, in milliseconds
    #[arg(long, default_value_t = 0.0)]
    think_ms: f64,
    /// Only `connect`: logins a second in all [default: as many as can be]
    #[arg(long)]
    rate: Option<f64>,
    /// TLS, as with libpq's sslmode=require
    #[arg(long)]
    tls: bool,
    /// This process's share of the connections, I/N: how a parent starts its children
    #[arg(long, hide = true)]
    share: Option<String>,
}

#[derive(Args, Clone)]
struct BulkLoad {
    #[command(flatten)]
    server: Server,
    /// The query whose result is taken, again and again
    #[arg(long)]
    sql: String,
}

#[derive(Args, Clone)]
struct ListenLoad {
    #[command(flatten)]
    server: Server,
    /// Connections that listen
    #[arg(long, default_value_t = 1000)]
    clients: usize,
    /// Channels, each with as many of them
    #[arg(long, default_value_t = 100)]
    channels: usize,
    /// Notifications a second [default: as many as can be]
    #[arg(long, default_value_t = 0.0)]
    rate: f64,
}

fn main() -> ExitCode {
    let done = match Cli::parse().mode {
        Mode::Bulk(load) => bulk(&load),
        Mode::Listen(load) => listen(&load),
        Mode::Run(load) => many(&load, Kind::Run),
        Mode::Connect(load) => many(&load, Kind::Connect),
        Mode::Hold(load) => many(&load, Kind::Hold),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("hawser-load: {error}");
            ExitCode::FAILURE
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Run,
    Connect,
    Hold,
}

/// Seconds of CPU that this process has used.
fn cpu_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Waits for a line on standard input; false at its end.
fn told(server: &Server) -> io::Result<bool> {
    Ok(server.now || io::stdin().lock().read_line(&mut String::new())? > 0)
}

fn bulk(load: &BulkLoad) -> io::Result<()> {
    let server = &load.server;
    let mut bulk = bulk::Bulk::connect(&server.target, &server.user, &server.database)?;
    bulk.fetch(&load.sql)?; // warms the caches of all who take part
    say(&Event::Ready { connected: 1, errors: 0, first_error: None })?;
    if !told(server)? {
        return Ok(());
    }
    say(&Event::Start)?;
    let (started, cpu) = (Instant::now(), cpu_seconds());
    let (mut figures, mut times) = (Figures::default(), Histogram::default());
    while figures.done == 0 || started.elapsed().as_secs_f64() < server.seconds {
        let transfer = bulk.fetch(&load.sql)?;
        figures.done += 1;
        figures.bytes += transfer.bytes;
        figures.mb_per_second.push(transfer.bytes as f64 / 1e6 / transfer.seconds);
        times.record((transfer.seconds * 1e9) as u64);
    }
    figures.seconds = started.elapsed().as_secs_f64();
    figures.cpu_seconds = cpu_seconds() - cpu;
    figures.complete(&times);
    say(&Event::End)?;
    say(&Event::Result(figures))
}

fn listen(load: &ListenLoad) -> io::Result<()> {
    let server = &load.server;
    let (clients, channels) = (load.clients, load.channels.max(1));
    let listeners = listen::Listeners::connect(
        &server.target,
        &server.user,
        &server.database,
        clients,
        channels,
    )?;
    say(&Event::Ready { connected: clients, errors: 0, first_error: None })?;
    if !told(server)? {
        return Ok(());
    }
    say(&Event::Start)?;
    let (started, cpu) = (Instant::now(), cpu_seconds());
    let heard = listeners.run(server.seconds, load.rate)?;
    let mut figures = Figures {
        done: heard.arrived,
        errors: (heard.sent * (clients / channels) as u64).saturating_sub(heard.arrived),
        lost: heard.lost,
        seconds: started.elapsed().as_secs_f64(),
        cpu_seconds: cpu_seconds() - cpu,
        ..Figures::default()
    };
    figures.complete(&heard.latencies);
    say(&Event::End)?;
    say(&Event::Result(figures))
}

fn many(load: &Load, kind: Kind) -> io::Result<()> {
    let allowed = children::connections_allowed();
    let total = load.clients + load.open_transactions;
    if load.share.is_none() && total > allowed {
        return parent(load, kind, total.div_ceil(allowed));
    }
    let (share, shares) = match &load.share {
        None => (0, 1),
        Some(text) => text
            .split_once('/')
            .and_then(|(share, shares)| Some((share.parse().ok()?, shares.parse().ok()?)))
            .ok_or_else(|| io::Error::other("--share is not I/N"))?,
    };
    work(load, kind, share, shares)
}

/// Runs several processes as if they were one.
fn parent(load: &Load, kind: Kind, count: usize) -> io::Result<()> {
    let mut children = children::Children::start(count)?;
    say(&children.hear()?)?;
    while told(&load.server)? {
        children.tell("go")?;
        if kind == Kind::Hold {
            say(&children.hear()?)?;
            if load.server.now {
                break;
            }
            continue;
        }
        for _event in ["start", "end", "result"] {
            say(&children.hear()?)?;
        }
        break;
    }
    Ok(())
}

/// The part of `total` that falls to number `index` of `count`, and where it begins.
fn part(total: usize, index: usize, count: usize) -> (usize, usize) {
    let begin = |index: usize| total * index / count;
    (begin(index), begin(index + 1) - begin(index))
}

/// What the main thread asks of a worker.
#[derive(Clone, Copy)]
enum Order {
    Once,
    Load { from: Instant, end: Instant },
}

/// What a worker answers with.
enum Answer {
    Opened { connected: usize, tally: Tally },
    Done(Tally),
}

/// What all workers of a load do. `workers`: those of all its processes.
fn plan_of(load: &Load, tls: Option<Arc<rustls::ClientConfig>>, workers: usize) -> Plan {
    let server = &load.server;
    Plan {
        target: server.target.clone(),
        tls,
        user: server.user.clone(),
        database: server.database.clone(),
        scripts: Scripts::new(
            load.workload,
            load.protocol,
            load.scale,
            load.few_rows,
            load.update_percent,
            load.statements,
        ),
        sessions: wire::Sessions {
            own_settings: load.own_settings,
            search_paths: load.search_paths,
            users: load.users,
        },
        think: Duration::from_secs_f64(load.think_ms / 1000.0),
        rotate: load.rotate,
        login_interval: load.rate.map_or(Duration::ZERO, |rate| {
            Duration::from_secs_f64(workers as f64 / rate.max(0.001))
        }),
    }
}

fn work(load: &Load, kind: Kind, share: usize, shares: usize) -> io::Result<()> {
    let (first, clients) = part(load.clients, share, shares);
    let (_, active) = part(load.active.unwrap_or(load.clients), share, shares);
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let threads = load.threads.unwrap_or(cores).clamp(1, active.max(1));
    let tls = if load.tls { Some(stream::tls_config().map_err(io::Error::other)?) } else { None };
    let server = &load.server;
    let plan = Arc::new(plan_of(load, tls, threads * shares));
    let (answer, answers) = mpsc::channel();
    let opened = Arc::new(Barrier::new(threads));
    let mut orders = Vec::new();
    for index in 0..threads {
        let (order, inbox) = mpsc::channel();
        orders.push(order);
        let (begin, count) = part(clients, index, threads);
        let (_, active) = part(active, index, threads);
        let (_, open_transactions) =
            part(load.open_transactions, share * threads + index, shares * threads);
        let held = Worker::new(Arc::clone(&plan), load.clients, open_transactions, Instant::now())?;
        let worker = Worker::new(Arc::clone(&plan), first + begin, count, Instant::now())?;
        let (answer, opened) = (answer.clone(), Arc::clone(&opened));
        thread::spawn(move || serve(worker, held, kind, active, &opened, &inbox, &answer));
    }
    drop(answer);
    let next = || answers.recv().map_err(|_| io::Error::other("a worker has died"));
    let (mut connected, mut errors, mut first_error) = (0, 0, None);
    for _ in 0..threads {
        if let Answer::Opened { connected: some, tally } = next()? {
            connected += some;
            errors += tally.errors + tally.lost;
            first_error = first_error.or(tally.first_error);
        }
    }
    say(&Event::Ready { connected, errors, first_error })?;
    let tell = |order: Order| {
        orders.iter().try_for_each(|inbox| inbox.send(order)).map_err(io::Error::other)
    };
    while told(server)? {
        let from = Instant::now() + Duration::from_secs_f64(load.warmup);
        let end = from + Duration::from_secs_f64(server.seconds);
        let mut figures = Figures::default();
        if kind == Kind::Hold {
            tell(Order::Once)?;
        } else {
            tell(Order::Load { from, end })?;
            thread::sleep(from - Instant::now());
            let cpu = cpu_seconds();
            say(&Event::Start)?;
            thread::sleep(end - Instant::now());
            say(&Event::End)?;
            figures.cpu_seconds = cpu_seconds() - cpu;
        }
        let mut latencies = Histogram::default();
        for _ in 0..threads {
            if let Answer::Done(tally) = next()? {
                figures.add(&tally, &mut latencies);
            }
        }
        if kind == Kind::Hold {
            say(&Event::Touched { done: figures.done })?;
            if server.now {
                break;
            }
            continue;
        }
        figures.seconds = server.seconds;
        figures.complete(&latencies);
        if load.share.is_some() {
            figures.histogram = latencies.sparse();
        }
        say(&Event::Result(figures))?;
        break;
    }
    Ok(())
}

/// A worker's thread: opens, reports that, and carries out orders until there are no more.
fn serve(
    mut worker: Worker,
    mut held: Worker,
    kind: Kind,
    active: usize,
    opened: &Barrier,
    orders: &mpsc::Receiver<Order>,
    answers: &mpsc::Sender<Answer>,
) {
    let mut connected = 0;
    if kind != Kind::Connect {
        connected = worker.open();
        opened.wait(); // open transactions may take all backends: everybody else comes first
        held.open();
        held.leave_open(LEAVE_OPEN_LIMIT);
        connected += held.idle();
    }
    let mut tally = worker.take_tally();
    tally.lost += held.take_tally().lost;
    let mut answer = Answer::Opened { connected, tally };
    while answers.send(answer).is_ok() {
        match orders.recv() {
            Ok(Order::Once) => worker.run_once(ONCE_LIMIT),
            Ok(Order::Load { from, end }) if kind == Kind::Connect => worker.churn(from, end),
            Ok(Order::Load { from, end }) => worker.run(active, from, end),
            Err(_) => return,
        }
        answer = Answer::Done(worker.take_tally());
    }
}

#[cfg(test)]
mod tests {
    use super::part;

    #[test]
    fn parts_cover_everything_once() {
        for (total, count) in [(100, 3), (2, 4), (18_000, 7), (0, 2)] {
            let mut next = 0;
            for index in 0..count {
                let (begin, size) = part(total, index, count);
                assert_eq!(begin, next, "{total} in {count}");
                next += size;
            }
            assert_eq!(next, total);
        }
    }
}
