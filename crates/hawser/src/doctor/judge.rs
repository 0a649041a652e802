//! Two answers of a process -> what to change.
//!
//! # Model
//! ```text
//!   servers ─► is one down? ──no──► each pool (see [`super::pool`]) ─┐
//!   limits, errors, statements, rules, lines ────────────────────────┴─► sorted: what clients wait for or
//!                                                                        fail by first, causes before effects
//! ```
//! # Invariants  figures in, findings out; each finding has its figures and its object
//! # Limits      rates are those between the two answers: without a first one, only what shows at a
//!               moment is found

use std::collections::{BTreeMap, HashMap};

use super::finding::{Finding, Kind};
use super::lines;
use super::pool::{Pool, PoolKey};
use crate::queries::QueryStatus;
use crate::status::{PoolStatus, ServerStatus, SharedLimitStatus, Status};
use crate::tally::class_in_words;
use crate::units;

/// Of a hundred clients or descriptors that there may be, so many are nearly all.
const NEARLY: u64 = 90;
/// Fewer errors between two answers are no rise.
const ERRORS_MIN: u64 = 3;
/// Fewer failures of a statement, or refusals of a rule, between two answers say nothing.
const FAILURES_MIN: u64 = 10;
/// Bytes of a statement's text that are shown.
const TEXT_BYTES_MAX: usize = 60;

/// A statement between two answers.
#[derive(Debug)]
pub struct Ran<'a> {
    /// As of the second one.
    pub query: &'a QueryStatus,
    /// Executions that have ended between them.
    pub calls: u64,
    /// Those with an error.
    pub errors: u64,
    /// The sum of their times.
    pub time_us: u64,
}

impl Ran<'_> {
    pub(super) fn mean_us(&self) -> u64 {
        self.time_us.checked_div(self.calls).unwrap_or(0)
    }

    /// `"select ..." of ann (digest 00f1e2d3c4b5a697)`.
    pub(super) fn name(&self) -> String {
        let QueryStatus { query, user, digest, .. } = self.query;
        let start = &query[..query.floor_char_boundary(TEXT_BYTES_MAX)];
        let more = if start.len() < query.len() { " ..." } else { "" };
        format!("\"{start}{more}\" of {user} (digest {digest})")
    }
}

/// What to change, the first thing first. `before`: an earlier answer, and the seconds since it.
pub fn judge(before: Option<(&Status, f64)>, now: &Status) -> Vec<Finding> {
    // Of another process all counters start again.
    let before = before.filter(|(before, _)| before.pid == now.pid);
    let mut found = Vec::new();
    servers(now, &mut found);
    let ran = ran(before, now);
    pools(before, now, &ran, &mut found);
    limits(now, &mut found);
    if let Some((before, seconds)) = before {
        errors(before, now, seconds, &mut found);
        failing(&ran, &mut found);
        rules(before, now, &mut found);
    }
    now.lines.iter().for_each(|line| lines::judge(line, &mut found));
    found.sort_by_key(Finding::rank);
    found
}

/// Statements, by database.
pub type ByDatabase<'a> = HashMap<&'a str, Vec<Ran<'a>>>;

/// What has run between two answers.
pub fn ran<'a>(before: Option<(&'a Status, f64)>, now: &'a Status) -> ByDatabase<'a> {
    let mut ran = ByDatabase::new();
    let Some((before, _)) = before else { return ran };
    fn key(query: &QueryStatus) -> (&str, &str, &str) {
        (&query.digest, &query.database, &query.user)
    }
    let known: HashMap<_, _> = before.queries.iter().map(|query| (key(query), query)).collect();
    for query in &now.queries {
        let old = known.get(&key(query));
        let more =
            |of: fn(&QueryStatus) -> u64| of(query).saturating_sub(old.map_or(0, |old| of(old)));
        let (calls, errors) = (more(|query| query.calls), more(|query| query.errors));
        if calls > 0 {
            let one = Ran { query, calls, errors, time_us: more(|query| query.time_us) };
            ran.entry(&query.database).or_default().push(one);
        }
    }
    ran
}

fn is_down(row: &ServerStatus) -> bool {
    row.state == "down"
}

fn is_used(row: &ServerStatus) -> bool {
    !is_down(row) && row.state != "left"
}

/// The databases of each server that is down, or that answers and is not used.
fn servers(now: &Status, found: &mut Vec<Finding>) {
    let mut by_server = BTreeMap::<(bool, &str), Vec<&ServerStatus>>::new();
    for row in now.servers.iter().filter(|row| !is_used(row)) {
        by_server.entry((is_down(row), &row.server)).or_default().push(row);
    }
    for ((down, server), rows) in by_server {
        let databases: Vec<_> = rows.iter().map(|row| &*row.database).collect();
        let left_alone = databases
            .iter()
            .any(|name| !now.servers.iter().any(|row| row.database == *name && is_used(row)));
        let reason = rows[0].reason.as_deref().unwrap_or("it does not say why");
        let databases = databases.join(", ");
        let (kind, wrong, mend) = if down {
            let wrong = format!("server {server} of database {databases} is down: {reason}");
            let mend = "Start it, or mend the network to it; clients wait until query_wait_timeout, or \
                        server_down_timeout, and go on by themselves. SHOW HOSTS follows it.";
            (Kind::ServerDown, wrong, mend)
        } else {
            let wrong = format!(
                "server {server} of database {databases} answers and is not used: {reason}"
            );
            (Kind::ServerLeft, wrong, "Mend what the reason names; it is used again by itself.")
        };
        let weight = rows.len() as u64;
        found.push(Finding::new(kind, down && left_alone, weight, &wrong, mend));
    }
}

fn pools(
    before: Option<(&Status, f64)>,
    now: &Status,
    ran: &ByDatabase<'_>,
    found: &mut Vec<Finding>,
) {
    let key = |pool: &'_ PoolStatus| PoolKey(pool.database.clone(), pool.user.clone());
    let olds: HashMap<PoolKey, &PoolStatus> =
        before.iter().flat_map(|(before, _)| &before.pools).map(|pool| (key(pool), pool)).collect();
    let mut keeping = HashMap::<PoolKey, Vec<_>>::new();
    for client in &now.keeping {
        let key = PoolKey(client.database.clone(), client.pool_user.clone());
        keeping.entry(key).or_default().push(client);
    }
    for pool in &now.pools {
        let key = key(pool);
        let old = olds.get(&key).copied();
        let judged = Pool {
            pool,
            before: old.and_then(|old| Some((old, before?.1))),
            keeping: keeping.get(&key).map_or(&[][..], Vec::as_slice),
            ran: ran.get(&*pool.database).map_or(&[][..], Vec::as_slice),
        };
        let without_server = now
            .servers
            .iter()
            .any(|row| is_down(row) && (row.database == pool.database || row.database == "*"));
        judged.judge(without_server, found);
    }
}

fn limits(now: &Status, found: &mut Vec<Finding>) {
    let nearly = |count: u64, most: u64| most > 0 && count * 100 >= most * NEARLY;
    let (clients, most) = (now.clients as u64, u64::from(now.clients_max));
    let of = |count, most| format!("{} of {}", units::grouped(count), units::grouped(most));
    if nearly(clients, most) {
        let wrong = format!("{} clients are connected (max_client_conn)", of(clients, most));
        let mend = format!(
            "Set max_client_conn = {} and reload; with it goes the limit of descriptors.",
            most * 2
        );
        found.push(Finding::new(Kind::Clients, clients >= most, clients, &wrong, &mend));
    }
    let (used, most) = (now.descriptors, now.descriptors_max);
    if nearly(used, most) {
        let wrong = format!("{} file descriptors are in use", of(used, most));
        let mend = format!(
            "Set LimitNOFILE={} in the unit (`systemctl edit hawser`) and restart, or lower \
             max_client_conn.",
            most * 2
        );
        found.push(Finding::new(Kind::Descriptors, used >= most, used, &wrong, &mend));
    }
    for SharedLimitStatus { limit, most, used, held, wanted, .. } in &now.shared_limits {
        if *wanted == 0 {
            continue;
        }
        let wrong = format!(
            "{limit} is used up by all poolers together: this one holds {held} of {most}, uses {used} and \
             lacks {wanted}"
        );
        let mend =
            "Raise the limit on all of them, or see on each by SHOW LIMITS who needs so many.";
        found.push(Finding::new(Kind::SharedLimit, true, (*wanted).into(), &wrong, mend));
    }
}

fn errors(before: &Status, now: &Status, seconds: f64, found: &mut Vec<Finding>) {
    for (class, count) in &now.errors {
        let more = count.saturating_sub(before.errors.get(class).copied().unwrap_or(0));
        if more < ERRORS_MIN {
            continue;
        }
        let wrong = format!(
            "Hawser gave clients {} errors in {seconds:.0} s: {} (class {class})",
            units::grouped(more),
            class_in_words(class),
        );
        let mend = match class.as_str() {
            "28" => {
                "The log names users, addresses and reasons: compare with the users and hba_file."
            }
            "3D" => {
                "The log names the database that clients ask for: add a [[database]], or correct them."
            }
            "53" => {
                "SHOW POOLS and SHOW DATABASES show the pool or limit that is full; the log names it."
            }
            "08" => "SHOW HOSTS says which server cannot be reached, and why.",
            _ => "The log has the message, the user and the address of each (log_pooler_errors).",
        };
        found.push(Finding::new(Kind::Errors, true, more, &wrong, mend));
    }
}

fn failing(ran: &ByDatabase<'_>, found: &mut Vec<Finding>) {
    for one in ran.values().flatten() {
        if one.errors < FAILURES_MIN || one.errors * 10 < one.calls {
            continue;
        }
        let wrong = format!(
            "{} of {} calls of {} in database {} failed",
            units::grouped(one.errors),
            units::grouped(one.calls),
            one.name(),
            one.query.database,
        );
        let mend =
            "The server's log has the error and the text; SHOW QUERIES ORDER BY errors the rest.";
        found.push(Finding::new(Kind::FailingStatement, true, one.errors, &wrong, mend));
    }
}

fn rules(before: &Status, now: &Status, found: &mut Vec<Finding>) {
    for rule in &now.rules {
        let old = before.rules.iter().find(|old| old.name == rule.name);
        let matches = rule.matches.saturating_sub(old.map_or(0, |old| old.matches));
        let refused = rule.refused.saturating_sub(old.map_or(0, |old| old.refused));
        if refused < FAILURES_MIN || refused * 2 < matches {
            continue;
        }
        let name = &rule.name;
        let wrong = format!(
            "rule {name} refused {} of the {} statements that it matched",
            units::grouped(refused),
            units::grouped(matches),
        );
        let mend = if rule.by_hand {
            format!("If its reason is over: RULE DROP {name}. SHOW RULES has what it does.")
        } else {
            format!("If its reason is over, take rule {name} out of the file and reload.")
        };
        found.push(Finding::new(Kind::RuleRefuses, false, refused, &wrong, &mend));
    }
}

#[cfg(test)]
mod tests;
