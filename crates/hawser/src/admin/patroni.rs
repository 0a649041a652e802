//! Patroni's REST interface: which server leads its cluster, and which switchovers are announced.
//!
//! # Model
//! ```text
//!   GET /cluster of one node, every server_probe_interval
//!     the leader is another server ──► one that calls itself the primary is left (`Unfit::NotLeader`)
//!     scheduled_switchover         ──► SWITCHOVER, `AHEAD` of its time
//!       gone, and the same leader  ──► RESUME: Patroni has called it off
//! ```
//! Probes say everything else, and all if no node answers.
//!
//! # Limits  Patroni announces no switchover that begins at once: its `before_stop` runs SWITCHOVER for those

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustls::ClientConfig;
use serde::Deserialize;
use time::OffsetDateTime;
use time::format_description::well_known::Rfc3339;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::command::Command;
use super::execute::execute;
use super::pooler::Pooler;
use super::switchover::switchover;
use crate::auth::key_sets::fetch;
use crate::config::{Config, DatabaseConfig, ServerAddress};
use crate::dial::Dialler;
use crate::tls::connect::outward;

/// How long before its time clients wait for a switchover: transactions have this long to end, and clocks may
/// differ.
const AHEAD: Duration = Duration::from_secs(1);
/// How long a switchover that has not begun is waited for: Patroni removes older ones.
const LATE_MAX: Duration = Duration::from_secs(5);
/// How long a node may take to answer.
const ANSWER_MAX: Duration = Duration::from_secs(1);
/// How often nodes are asked while servers are not probed, and the configuration is looked at.
const PERIOD: Duration = Duration::from_secs(1);

/// A cluster as the configuration has it.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Cluster {
    /// The `[[database]]` entry.
    database: String,
    servers: Vec<ServerAddress>,
    nodes: Vec<String>,
    /// The authorities that its certificates are verified by; `None`: the system's.
    ca_file: Option<PathBuf>,
}

/// What a node says of it.
#[derive(Deserialize, Clone, PartialEq, Eq, Debug, Default)]
#[serde(default)]
struct Report {
    members: Vec<Member>,
    /// Patroni changes nothing.
    pause: bool,
    scheduled_switchover: Option<Announced>,
}

#[derive(Deserialize, Clone, PartialEq, Eq, Debug, Default)]
#[serde(default)]
struct Member {
    name: String,
    role: String,
    state: String,
    host: String,
    port: u16,
}

#[derive(Deserialize, Clone, PartialEq, Eq, Debug)]
struct Announced {
    at: String,
}

impl Report {
    /// The member that leads, of a cluster that has a primary.
    fn leader(&self) -> Option<&Member> {
        self.members.iter().find(|member| member.role == "leader")
    }

    /// When the leader changes.
    fn announced(&self) -> Option<SystemTime> {
        let announced = self.scheduled_switchover.as_ref().filter(|_| !self.pause)?;
        OffsetDateTime::parse(&announced.at, &Rfc3339).ok().map(SystemTime::from)
    }

    /// The servers of a list that are not the leader. Empty if the leader is none of them.
    fn others<'a>(&self, servers: &'a [ServerAddress]) -> Vec<&'a ServerAddress> {
        let Some(leader) = self.leader() else { return Vec::new() };
        let (leads, others): (Vec<_>, Vec<_>) =
            servers.iter().partition(|server| server.is_at(&leader.host, leader.port));
        if leads.is_empty() { Vec::new() } else { others }
    }
}

/// A switchover for which clients wait.
struct Begun {
    at: SystemTime,
    /// The member that led.
    leader: String,
    /// The databases that were not paused before.
    databases: Vec<String>,
}

/// What is to be done after a report.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Next {
    /// Nothing, for this long at most.
    Wait(Duration),
    /// SWITCHOVER, for one at this time.
    Begin(SystemTime),
    /// RESUME: the switchover that has begun is not to be.
    CallOff,
}

/// What follows from a report. `begun`: the time and the leader of the switchover for which clients wait.
fn next(report: &Report, begun: Option<(SystemTime, &str)>, now: SystemTime) -> Next {
    let announced = report.announced();
    if let Some((at, leader)) = begun
        && announced != Some(at)
        && report.leader().is_some_and(|one| one.name == leader && one.state == "running")
    {
        return Next::CallOff;
    }
    let Some(at) = announced.filter(|at| begun.is_none_or(|(begun, _)| begun != *at)) else {
        return Next::Wait(Duration::MAX);
    };
    if now > at + LATE_MAX {
        return Next::Wait(Duration::MAX);
    }
    match (at - AHEAD).duration_since(now) {
        Ok(early) if !early.is_zero() => Next::Wait(early),
        _ => Next::Begin(at),
    }
}

/// Watches all clusters of the configuration, until the process ends.
pub async fn run(pooler: Arc<dyn Pooler>, dialler: Arc<Dialler>) {
    let (mut clusters, mut watches) = (Vec::new(), JoinSet::new());
    loop {
        let wanted = clusters_of(&pooler.config());
        if wanted != clusters {
            watches.shutdown().await;
            dialler.set_deposed(None, &[]);
            for cluster in &wanted {
                watches.spawn(watch(pooler.clone(), dialler.clone(), cluster.clone()));
            }
            clusters = wanted;
        }
        sleep(PERIOD).await;
    }
}

fn clusters_of(config: &Config) -> Vec<Cluster> {
    let named = config.databases().iter().filter(|database| !database.patroni.is_empty());
    let cluster = |database: &DatabaseConfig| Cluster {
        database: database.name.clone(),
        servers: database.servers.clone(),
        nodes: database.patroni.clone(),
        ca_file: database.inherited.tls.server_tls_ca_file.clone(),
    };
    named.map(cluster).collect()
}

/// Watches a cluster.
async fn watch(pooler: Arc<dyn Pooler>, dialler: Arc<Dialler>, cluster: Cluster) {
    let database = &cluster.database;
    let tls = match outward(cluster.ca_file.as_deref()) {
        Ok(tls) => tls,
        Err(error) => {
            tracing::error!(database, %error, "Patroni is not asked: server_tls_ca_file is no good");
            return;
        }
    };
    let (mut node, mut begun, mut said) = (0, None::<Begun>, Said::default());
    loop {
        let most = pooler.config().reload.servers.server_probe_interval.get().unwrap_or(PERIOD);
        let asked = ask(&cluster.nodes, &mut node, &tls).await;
        said.answered(database, asked.as_ref().err());
        let Ok(report) = asked else {
            dialler.set_deposed(Some(&cluster.servers), &[]);
            sleep(most).await;
            continue;
        };
        let others = report.others(&cluster.servers);
        said.leads(database, &report, !others.is_empty() || cluster.servers.len() == 1);
        dialler.set_deposed(Some(&cluster.servers), &others);
        let under_way = begun.as_ref().map(|begun| (begun.at, begun.leader.as_str()));
        match next(&report, under_way, SystemTime::now()) {
            Next::Wait(at_most) => sleep(most.min(at_most)).await,
            Next::Begin(at) => {
                let leader = report.leader().map(|leader| leader.name.clone()).unwrap_or_default();
                let databases = begin(&pooler, database, &leader);
                begun = Some(Begun { at, leader, databases });
            }
            Next::CallOff => {
                let databases = begun.take().map(|begun| begun.databases).unwrap_or_default();
                call_off(pooler.as_ref(), databases).await;
            }
        }
    }
}

/// What a node says of its cluster: the one that has answered last, or the next that does.
async fn ask(nodes: &[String], at: &mut usize, tls: &Arc<ClientConfig>) -> Result<Report, String> {
    let mut reasons = Vec::new();
    for _ in nodes {
        let node = nodes[*at % nodes.len()].trim_end_matches('/');
        let url = format!("{node}/cluster");
        let answer = timeout(ANSWER_MAX, fetch(&url, tls)).await;
        let answer = answer.unwrap_or_else(|_| Err("no answer".to_owned()));
        let report = answer.and_then(|body| {
            serde_json::from_slice::<Report>(&body).map_err(|error| error.to_string())
        });
        match report {
            Ok(report) => return Ok(report),
            Err(reason) => reasons.push(format!("{node}: {reason}")),
        }
        *at = at.wrapping_add(1);
    }
    Err(reasons.join("; "))
}

/// Runs SWITCHOVER for the databases of an entry that are not paused. Returns them.
fn begin(pooler: &Arc<dyn Pooler>, entry: &str, leader: &str) -> Vec<String> {
    let config = pooler.config();
    // "*" stands for those that clients have asked for.
    let names = pooler.pools().into_iter().map(|entry| entry.pool.database.to_string());
    let mut names: Vec<_> = names
        .filter(|name| config.database(name).is_some_and(|database| database.name == entry))
        .filter(|name| !pooler.gates().is_paused(name))
        .collect();
    names.sort();
    names.dedup();
    tracing::info!(database = entry, leader, "Patroni has announced a switchover: clients wait");
    for database in names.clone() {
        let pooler = pooler.clone();
        tokio::spawn(async move {
            if let Err(error) = switchover(&pooler, &database).await {
                let detail = error.detail.unwrap_or_default();
                tracing::warn!(database, detail, "SWITCHOVER for Patroni: {}", error.message);
            }
        });
    }
    names
}

/// Lets clients go on that wait for a switchover that is not to be.
async fn call_off(pooler: &dyn Pooler, databases: Vec<String>) {
    for database in databases {
        if !pooler.gates().is_paused(&database) {
            continue; // it is over
        }
        tracing::info!(database, "Patroni has called the switchover off: clients continue");
        if let Err(error) = execute(pooler, &Command::Resume(Some(database.clone()))).await {
            tracing::warn!(database, error = error.message, "RESUME failed");
        }
    }
}

/// What the log has been told.
#[derive(Default)]
struct Said {
    away: bool,
    /// The leader that is none of the servers.
    stranger: Option<(String, u16)>,
}

impl Said {
    /// Whether a node has answered.
    fn answered(&mut self, database: &str, failure: Option<&String>) {
        let away = failure.is_some();
        match failure {
            Some(reason) if !self.away => tracing::warn!(
                database,
                %reason,
                "no node of Patroni answers: probes alone show which server is the primary"
            ),
            None if self.away => tracing::info!(database, "Patroni answers again"),
            _ => {}
        }
        self.away = away;
    }

    /// Which member leads. `is_known`: it is among the servers.
    fn leads(&mut self, database: &str, report: &Report, is_known: bool) {
        let leader = report.leader().map(|leader| (leader.host.clone(), leader.port));
        let stranger = leader.filter(|_| !is_known);
        if stranger != self.stranger
            && let Some((host, port)) = &stranger
        {
            tracing::warn!(
                database,
                "Patroni's leader {host}:{port} is none of this database's servers: probes alone show which is \
                 the primary. Name them as Patroni does (postgresql.connect_address)"
            );
        }
        self.stranger = stranger;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of Patroni 4.1.
    const REPORT: &str = r#"{"members": [
        {"name": "one", "role": "leader", "state": "running", "api_url": "http://10.0.0.1:8008/patroni",
         "host": "10.0.0.1", "port": 5432, "timeline": 1},
        {"name": "two", "role": "replica", "state": "streaming", "api_url": "http://10.0.0.2:8008/patroni",
         "host": "10.0.0.2", "port": 5432, "timeline": 1, "lag": 0}],
        "scope": "app", "scheduled_switchover": {"at": "2026-12-01T04:30:00.5+01:00", "from": "one"}}"#;

    fn report() -> Report {
        serde_json::from_str(REPORT).unwrap()
    }

    fn at() -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_millis(1_796_095_800_500)
    }

    #[test]
    fn all_servers_but_the_leader_are_not_to_be_primaries() {
        let servers = ["10.0.0.1", "10.0.0.2", "db3"].map(|h| ServerAddress::new(h, 5432).unwrap());
        assert_eq!(report().others(&servers), [&servers[1], &servers[2]]);
        assert!(report().others(&servers[1..]).is_empty(), "it is none of them");
        let mut without = report();
        without.members.remove(0);
        assert!(without.others(&servers).is_empty(), "there is none");
        without.members[0].role = "standby_leader".to_owned();
        assert!(without.others(&servers).is_empty(), "no server is a primary");
    }

    #[test]
    fn clients_wait_from_a_second_before_an_announced_switchover_on() {
        assert_eq!(report().announced(), Some(at()));
        let early = Duration::from_millis(300);
        for (now, expected) in [
            (at() - AHEAD - early, Next::Wait(early)),
            (at() - AHEAD, Next::Begin(at())),
            (at() + LATE_MAX, Next::Begin(at())),
            (at() + LATE_MAX + early, Next::Wait(Duration::MAX)),
        ] {
            assert_eq!(next(&report(), None, now), expected);
        }
        let begun = Some((at(), "one"));
        assert_eq!(next(&report(), begun, at()), Next::Wait(Duration::MAX), "they do already");
        let paused = Report { pause: true, ..report() };
        assert_eq!(next(&paused, None, at()), Next::Wait(Duration::MAX), "Patroni does nothing");
    }

    #[test]
    fn clients_continue_if_the_leader_stays() {
        let begun = Some((at(), "one"));
        let mut gone = Report { scheduled_switchover: None, ..report() };
        assert_eq!(next(&gone, begun, at()), Next::CallOff);
        gone.members[0].state = "stopping".to_owned();
        assert_eq!(next(&gone, begun, at()), Next::Wait(Duration::MAX), "it stops");
        gone.members.swap(0, 1);
        (gone.members[0].role, gone.members[1].role) = ("leader".to_owned(), "replica".to_owned());
        assert_eq!(next(&gone, begun, at()), Next::Wait(Duration::MAX), "another one leads");
    }
}
