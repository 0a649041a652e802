//! `hawser demo --trouble`: a bad query is seen and limited, and a failover costs no error.
//!
//! # Model
//! ```text
//!   calm ─► a bad query holds the pool ─► one command limits it ─► SWITCHOVER, stop, promote ─► calm
//!           (hawser top, doctor)          (RULE ADD)               (no client has an error)
//! ```
//! Each takes a quarter of the time. What is done is what an operator types: by the console, the control
//! socket and pg_ctl.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use super::cluster::Cluster;
use super::load::{Figures, Load, Repeating, command};
use super::{DemoError, Now, Options, Served};
use crate::doctor::judge::{judge, ran};
use crate::status::{self, Status};
use crate::units;

/// How long all of it takes, if `--seconds` does not say it.
const SECONDS: u64 = 40;
/// It reads the table 100 times: some hundred milliseconds of a core.
const BAD_QUERY: &str = "SELECT sum(balance * n) FROM accounts, generate_series(1, 100) n";

/// The servers of the failover.
pub(super) struct Servers<'a> {
    pub(super) primary: &'a mut Cluster,
    pub(super) standby: &'a Cluster,
}

/// What goes on, second by second.
struct Scene<'a> {
    address: SocketAddr,
    served: &'a Served,
    load: Load,
    began: Instant,
    quarter: Duration,
}

/// Shows all of it.
///
/// # Errors
/// Clients of the load had errors, or something was not seen.
pub(super) async fn show(
    options: &Options,
    address: SocketAddr,
    served: &Served,
    servers: Servers<'_>,
    socket: &Path,
) -> Result<(), DemoError> {
    let load = Load::start(address, options.clients)
        .await
        .map_err(|error| DemoError::Load { errors: 1, first: error.to_string() })?;
    let seconds = if options.seconds > 0 { options.seconds } else { SECONDS };
    let quarter = Duration::from_millis(seconds * 1000 / 4);
    let scene = Scene { address, served, load, began: Instant::now(), quarter };
    say(&format!("watch it: hawser top --socket {} (then s)", socket.display()));
    let calm = scene.watch().await;

    let bad = options.pool_size * 2;
    say(&format!("{bad} clients begin to run: {BAD_QUERY}"));
    let repeating = Repeating::start(address, bad, BAD_QUERY);
    let before = ask(socket).await?;
    let troubled = scene.watch().await;
    let digest = seen(&before, &ask(socket).await?, scene.quarter)?;

    let limit = format!("RULE ADD trouble DIGEST {digest} MAX_RUNNING 1 FOR '10 min'");
    scene.type_(&limit).await?;
    let limited = scene.watch().await;
    repeating.end().await;
    scene.type_("RULE DROP trouble").await?;

    let longest = scene.switch_over(servers).await?;
    let rates = [&calm, &troubled, &limited];
    let rates = rates.map(|figures| {
        units::grouped((figures.transactions() as f64 / quarter.as_secs_f64()) as u64)
    });
    println!(
        "\ntransactions/s: {} before, {} with the bad query, {} once it is limited; failover: {} errors, the \
         longest transaction {}",
        rates[0],
        rates[1],
        rates[2],
        scene.load.errors(),
        units::time(longest),
    );
    match scene.load.first_error() {
        Some(first) => Err(DemoError::Load { errors: scene.load.errors(), first }),
        None => Ok(()),
    }
}

fn say(what: &str) {
    println!("--- {what}");
}

async fn ask(socket: &Path) -> Result<Status, DemoError> {
    let socket = socket.to_owned();
    let asked = tokio::task::spawn_blocking(move || status::ask(&socket)).await;
    let asked = asked.map_err(|_| DemoError::NotServing)?;
    asked.map_err(super::system("ask the control socket"))
}

/// What `hawser top` and `doctor` show of the bad query; its digest.
fn seen(before: &Status, now: &Status, watched: Duration) -> Result<String, DemoError> {
    let watched = watched.as_secs_f64();
    let ran = ran(Some((before, watched)), now);
    let top = ran.values().flatten().max_by_key(|one| one.time_us);
    let top = top.filter(|one| one.query.query.starts_with("select sum"));
    let top = top.ok_or_else(|| DemoError::NotShown("the bad query is not on top".to_owned()))?;
    let (load, top) = (top.time_us as f64 / 1e6 / watched, top.query);
    say(&format!(
        "hawser top: load {load:.2}  p99 {}  {}/{}  {}",
        units::time(top.p99_us),
        top.database,
        top.user,
        top.query,
    ));
    for finding in judge(Some((before, watched)), now).iter().take(1) {
        say(&format!("hawser doctor: {}", finding.wrong));
    }
    Ok(top.digest.clone())
}

impl Scene<'_> {
    /// A line a second, for a quarter of the time. Returns what was done.
    async fn watch(&self) -> Figures {
        let (mut whole, end) = (Figures::default(), Instant::now() + self.quarter);
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return whole;
            }
            tokio::time::sleep(left.min(Duration::from_secs(1))).await;
            let figures = self.load.take_figures();
            let connected = self.load.connected();
            println!("{}", Now::of(self.began.elapsed(), &figures, connected, self.served).line());
            whole.add(&figures);
        }
    }

    async fn type_(&self, what: &str) -> Result<(), DemoError> {
        let began = Instant::now();
        command(self.address, what)
            .await
            .map_err(|error| DemoError::NotShown(format!("the console refused: {error}")))?;
        say(&format!("hawser=# {what};   -- {} ms", began.elapsed().as_millis()));
        Ok(())
    }

    /// Returns the longest transaction in microseconds.
    async fn switch_over(
        &self,
        Servers { primary, standby }: Servers<'_>,
    ) -> Result<u64, DemoError> {
        self.type_("SWITCHOVER demo").await?;
        let began = Instant::now();
        tokio::task::block_in_place(|| {
            primary.stop_fast()?;
            say(&format!("$ pg_ctl stop -m fast -D {}/data", primary.directory().display()));
            standby.promote()?;
            say(&format!("$ pg_ctl promote -D {}/data", standby.directory().display()));
            Ok(())
        })
        .map_err(DemoError::Cluster)?;
        say(&format!("another server is the primary, after {} ms", began.elapsed().as_millis()));
        let after = self.watch().await;
        if after.transactions() == 0 {
            return Err(DemoError::NotShown("no client goes on after the failover".to_owned()));
        }
        Ok(after.quantile_us(1.0))
    }
}
