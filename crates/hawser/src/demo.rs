//! `hawser demo`: a throw-away PostgreSQL, Hawser in front of it, and a live load.
//!
//! # Model
//! ```text
//!   load (N clients, tokio) ──TCP──► Hawser, in this process ──unix──► PostgreSQL (child)
//! ```
//! Hawser runs as `serve` runs it, on threads of its own. On a terminal one block of lines, with the
//! addresses at its foot, is written anew each second; elsewhere a line a second says what goes on.
//! `--trouble` adds a standby, a bad query and a failover, and tells of them ([`trouble`]).
//!
//! # Invariants
//! * whatever ends it (time, Ctrl-C, SIGTERM, an error, a panic), the server is stopped and its
//!   directory removed
//!
//! # Limits      after SIGKILL both stay: no code of ours runs then

pub mod cluster;
pub mod load;
mod trouble;

use std::collections::VecDeque;
use std::io::{IsTerminal, Write as _};
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::config::Config;
use crate::lock::locked;
use crate::phase::Phase;
use crate::serve::{self, Begins, Manner, ServeError};
use crate::service::Service;
use crate::{logging, units};
use cluster::{Cluster, ClusterError};
use load::{Figures, Load};

/// How long Hawser may take to serve.
const START_WAIT: Duration = Duration::from_secs(15);
/// Where the pages are, if nothing else is there.
const HTTP_PORT: u16 = 9632;

/// Seconds that the sparkline shows.
const HISTORY: usize = 50;
/// Columns, where the terminal does not say how many it has.
const COLUMNS: usize = 80;

/// What the command line says.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Clients at work.
    pub clients: u32,
    /// How long; 0 is until Ctrl-C.
    pub seconds: u64,
    /// Server connections.
    pub pool_size: u32,
    /// A bad query, and a failover.
    pub trouble: bool,
}

/// Why there is no demonstration.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// No PostgreSQL.
    #[error(transparent)]
    Cluster(ClusterError),
    /// Hawser did not serve.
    #[error(transparent)]
    Serve(ServeError),
    /// Something was not seen that was to be shown.
    #[error("{0}")]
    NotShown(String),
    /// Hawser did not serve in time, or its thread panicked.
    #[error("Hawser did not serve")]
    NotServing,
    /// Something of this host.
    #[error("could not {what}: {source}")]
    System {
        /// What was tried.
        what: &'static str,
        /// Why it failed.
        source: std::io::Error,
    },
    /// Clients got errors.
    #[error("{errors} errors, the first: {first}")]
    Load {
        /// How many.
        errors: u64,
        /// The first of them.
        first: String,
    },
}

fn system(what: &'static str) -> impl FnOnce(std::io::Error) -> DemoError {
    move |source| DemoError::System { what, source }
}

/// Runs the demonstration.
///
/// # Errors
/// See [`DemoError`]; everything has been cleaned up then, too.
pub fn run(options: &Options) -> Result<(), DemoError> {
    logging::begin_quietly();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("load")
        .enable_all()
        .build()
        .map_err(system("start threads"))?;
    runtime.block_on(demonstrate(options))
}

/// The signals that end it. They are waited for from before the first thing that must be removed.
struct Ends {
    interrupt: Signal,
    terminate: Signal,
}

impl Ends {
    fn new() -> Result<Self, DemoError> {
        let of = |kind| signal(kind).map_err(system("wait for signals"));
        Ok(Self {
            interrupt: of(SignalKind::interrupt())?,
            terminate: of(SignalKind::terminate())?,
        })
    }

    async fn come(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
        }
    }
}

async fn demonstrate(options: &Options) -> Result<(), DemoError> {
    let mut ends = Ends::new()?;
    println!("starting a throw-away PostgreSQL ...");
    // Not interrupted: the guard has to be there before anything can end it.
    let connections = options.pool_size + 20;
    let trouble = options.trouble;
    let start = move || match trouble {
        true => Cluster::start_with_standby(connections).map(|(one, other)| (one, Some(other))),
        false => Cluster::start(connections).map(|cluster| (cluster, None)),
    };
    let (mut cluster, standby) = tokio::task::spawn_blocking(start)
        .await
        .map_err(|_| DemoError::NotServing)?
        .map_err(DemoError::Cluster)?;
    println!("{}, in {}", cluster.version(), cluster.directory().display());

    let address = free_address(0).map_err(system("find a free port"))?;
    let http =
        free_address(HTTP_PORT).or_else(|_| free_address(0)).map_err(system("find a free port"))?;
    let config = configuration(options, &cluster, standby.as_ref(), address, http);
    let mut served = Served::start(config)?;
    served.wait_until_ready().await?;
    let foot = foot(address.port(), http);
    let begins = !std::io::stdout().is_terminal() || trouble;
    if begins {
        println!("{foot}");
    }

    let socket = control_socket(&cluster);
    let shown = async {
        match &standby {
            Some(standby) => {
                let servers = trouble::Servers { primary: &mut cluster, standby };
                trouble::show(options, address, &served, servers, &socket).await
            }
            None => work(options, address, &served, &foot).await,
        }
    };
    let result = tokio::select! {
        result = shown => result,
        () = ends.come() => Ok(()),
    };
    served.stop();
    drop((cluster, standby));
    println!("stopped, and removed everything");
    result
}

/// A free port of the loopback, or this one if it is free.
fn free_address(port: u16) -> std::io::Result<SocketAddr> {
    TcpListener::bind(("127.0.0.1", port))?.local_addr()
}

fn configuration(
    options: &Options,
    cluster: &Cluster,
    standby: Option<&Cluster>,
    address: SocketAddr,
    http: SocketAddr,
) -> Result<Config, crate::config::ConfigErrors> {
    let (size, clients) = (options.pool_size, options.clients + 100 + 2 * options.pool_size);
    let server = |one: &Cluster| format!("\"{}:{}\"", one.directory().display(), one.port());
    let servers: Vec<_> = std::iter::once(cluster).chain(standby).map(server).collect();
    let servers = servers.join(", ");
    let attributes = if standby.is_some() { "primary" } else { "any" };
    let socket = control_socket(cluster);
    let text = format!(
        "[listen]\naddress = \"{address}\"\n\
         [[database]]\nname = \"demo\"\ndbname = \"postgres\"\nservers = [{servers}]\n\
         target_session_attrs = \"{attributes}\"\nuser = \"postgres\"\npool_size = {size}\n\
         [[user]]\nname = \"demo\"\n\
         [auth]\nauth_type = \"trust\"\nadmin_users = [\"demo\"]\n\
         [pool]\nmax_client_conn = {clients}\n\
         [admin]\nhttp_address = \"{http}\"\ncontrol_socket = \"{}\"\n\
         [log]\nlevel = \"error\"\n",
        socket.display()
    );
    Config::from_str(&text, "demo")
}

/// For `hawser top`, `status` and `doctor`.
fn control_socket(cluster: &Cluster) -> PathBuf {
    cluster.directory().join("hawser.sock")
}

/// Hawser on threads of its own.
struct Served {
    service: Arc<Mutex<Option<Arc<Service>>>>,
    thread: Option<JoinHandle<Result<(), ServeError>>>,
}

impl Served {
    fn start(config: Result<Config, crate::config::ConfigErrors>) -> Result<Self, DemoError> {
        let config = config.map_err(|errors| DemoError::System {
            what: "configure",
            source: std::io::Error::other(errors),
        })?;
        let service: Arc<Mutex<Option<Arc<Service>>>> = Arc::default();
        let told = service.clone();
        let thread = std::thread::Builder::new()
            .name("serve".to_owned())
            .spawn(move || {
                serve::serve(config, Manner::Hawser, Begins::asked(Begins::Alone), |service| {
                    *locked(&told) = Some(service.clone());
                })
            })
            .map_err(system("start a thread"))?;
        Ok(Self { service, thread: Some(thread) })
    }

    fn service(&self) -> Option<Arc<Service>> {
        locked(&self.service).clone()
    }

    async fn wait_until_ready(&mut self) -> Result<(), DemoError> {
        let began = Instant::now();
        while self.service().is_none() {
            if self.thread.as_ref().is_none_or(JoinHandle::is_finished) {
                return match self.thread.take().map(JoinHandle::join) {
                    Some(Ok(Err(error))) => Err(DemoError::Serve(error)),
                    _ => Err(DemoError::NotServing),
                };
            }
            if began.elapsed() > START_WAIT {
                return Err(DemoError::NotServing);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(())
    }

    /// Ends it at once, and waits until it has ended.
    fn stop(&mut self) {
        if let Some(service) = self.service() {
            let _ = service.shared.phase.send(Phase::Ending);
        }
        if let Some(thread) = self.thread.take() {
            // What it had to say is in the log.
            let _ = thread.join();
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop();
    }
}

/// How to look at it from elsewhere.
fn foot(port: u16, http: SocketAddr) -> String {
    format!(
        "in another terminal  psql postgres://demo@127.0.0.1:{port}/demo\n\
         the admin console    psql postgres://demo@127.0.0.1:{port}/hawser -c 'SHOW POOLS'\n\
         the dashboard        http://{http}/\n"
    )
}

async fn work(
    options: &Options,
    address: SocketAddr,
    served: &Served,
    foot: &str,
) -> Result<(), DemoError> {
    let load = Load::start(address, options.clients)
        .await
        .map_err(|error| DemoError::Load { errors: 1, first: error.to_string() })?;
    let began = Instant::now();
    let mut second = tokio::time::interval(Duration::from_secs(1));
    second.tick().await;
    let mut whole = Figures::default();
    let is_terminal = std::io::stdout().is_terminal();
    let (mut history, mut drawn) = (VecDeque::new(), 0);
    loop {
        second.tick().await;
        let figures = load.take_figures();
        let now = Now::of(began.elapsed(), &figures, load.connected(), served);
        if is_terminal {
            history.push_back(now.tps as f64);
            if history.len() > HISTORY {
                history.pop_front();
            }
            let columns =
                ratatui::crossterm::terminal::size().map_or(COLUMNS, |(x, _)| usize::from(x));
            let (text, lines) =
                redrawn(&format!("{}\n{foot}", now.block(&history)), drawn, columns);
            print!("{text}");
            // A terminal that is gone ends it by a signal.
            let _ = std::io::stdout().flush();
            drawn = lines;
        } else {
            println!("{}", now.line());
        }
        whole.add(&figures);
        if options.seconds > 0 && began.elapsed().as_secs() >= options.seconds {
            break;
        }
    }
    println!(
        "\n{} transactions in {:.1} s: {} a second, p50 {}, p99 {}",
        units::grouped(whole.transactions()),
        began.elapsed().as_secs_f64(),
        units::grouped((whole.transactions() as f64 / began.elapsed().as_secs_f64()) as u64),
        units::time(whole.quantile_us(0.5)),
        units::time(whole.quantile_us(0.99)),
    );
    match load.first_error() {
        Some(first) => Err(DemoError::Load { errors: load.errors(), first }),
        None => Ok(()),
    }
}

/// A block of lines in the place of one that had `drawn` lines, and its own number of lines. None is
/// wider than the terminal: it would take two of its lines.
fn redrawn(block: &str, drawn: usize, columns: usize) -> (String, usize) {
    let mut text = match drawn {
        0 => String::new(),
        lines => format!("\x1b[{lines}A"),
    };
    for line in block.lines() {
        let line: String = line.chars().take(columns).collect();
        text.push_str(&format!("{line}\x1b[K\n"));
    }
    (text, block.lines().count())
}

/// The figures of the last second.
#[derive(Default)]
struct Now {
    elapsed: Duration,
    tps: u64,
    p50_us: u64,
    p99_us: u64,
    clients: usize,
    waiting: u32,
    servers: u32,
    active: u32,
}

impl Now {
    fn of(elapsed: Duration, figures: &Figures, clients: usize, served: &Served) -> Self {
        let (p50_us, p99_us) = (figures.quantile_us(0.5), figures.quantile_us(0.99));
        let tps = figures.transactions();
        let mut now = Self { elapsed, tps, p50_us, p99_us, clients, ..Self::default() };
        for entry in served.service().map(|service| service.pools.all()).unwrap_or_default() {
            let queue = entry.pool.lock();
            now.servers += queue.total();
            now.active += queue.lent_count();
            now.waiting += queue.waiting_count();
        }
        now
    }

    fn line(&self) -> String {
        let Self { elapsed, tps, clients, waiting, servers, active, .. } = self;
        format!(
            "{:>5.0} s  {tps:>7} transactions/s  p50 {:>7}  p99 {:>7}  clients {clients} ({waiting} \
             waiting)  server connections {servers} ({active} active)",
            elapsed.as_secs_f64(),
            units::time(self.p50_us),
            units::time(self.p99_us),
        )
    }

    fn block(&self, history: &VecDeque<f64>) -> String {
        let Self { elapsed, tps, clients, waiting, servers, active, .. } = self;
        format!(
            "\n{:<20} {:>7}  {}\n{:<20} p50 {}, p99 {}\n\
             clients              {clients}, {waiting} waiting for a server connection\n\
             server connections   {servers}, {active} busy\n\
             running for          {}; Ctrl-C ends it and removes everything\n",
            "transactions/s",
            units::grouped(*tps),
            units::sparkline(history, HISTORY),
            "transaction time",
            units::time(self.p50_us),
            units::time(self.p99_us),
            units::duration(elapsed.as_secs()),
        )
    }
}

#[cfg(test)]
mod tests;
