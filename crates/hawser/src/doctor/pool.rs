//! Why clients of a pool wait.
//!
//! # Model
//! ```text
//!   waiting   = wait time that ended / time watched, or the clients that wait at both looks
//!   at work   = transaction time that ended / time watched
//!   suffers   : waiting >= 1 and wait >= half of the transaction time, or one has waited for a second
//!   pool_size : the size + waiting, at most twice the size at a time
//! ```
//! A pool that suffers is too small only if nothing else keeps its connections: clients that are idle in
//! transactions, pins, locks, a statement that takes most of the time, a server that has become slow.

use std::collections::BTreeMap;

use super::finding::{Finding, Kind};
use super::judge::Ran;
use crate::holders::KeepingStatus;
use crate::status::PoolStatus;
use crate::units;

/// A client that waits longer has too small a pool, or another that keeps it.
const LONG_WAIT_US: u64 = 1_000_000;
/// So long a client may be idle in a transaction where nobody waits.
const IDLE_US_MAX: u64 = 30_000_000;
/// A statement of so long a mean keeps a pool that runs nothing else.
const LONG_CALL_US: u64 = 1_000_000;
/// So many times the mean of all others makes a statement heavy, ...
const HEAVY_TIMES: u64 = 10;
/// ... and so many times the mean since the start makes a server slow, ...
const SLOW_TIMES: u64 = 3;
/// ... if it is at least this, ...
const SLOW_US_MIN: u64 = 10_000;
/// ... over so many transactions, and so many before.
const SLOW_TRANSACTIONS_MIN: (u64, u64) = (10, 1_000);

/// Which pool.
#[derive(PartialEq, Eq, Hash)]
pub(super) struct PoolKey(pub(super) String, pub(super) String);

/// A pool, with what was before and who keeps its connections.
pub(super) struct Pool<'a> {
    pub(super) pool: &'a PoolStatus,
    /// And the seconds since.
    pub(super) before: Option<(&'a PoolStatus, f64)>,
    pub(super) keeping: &'a [&'a KeepingStatus],
    /// What has run in its database.
    pub(super) ran: &'a [Ran<'a>],
}

/// What was between two answers.
#[derive(Clone, Copy, Default)]
struct Work {
    transactions: u64,
    transaction_us: u64,
    wait_us: u64,
    seconds: f64,
    /// Clients, on average.
    waiting: f64,
}

impl Work {
    fn mean_us(&self) -> u64 {
        self.transaction_us.checked_div(self.transactions).unwrap_or(0)
    }
}

impl Pool<'_> {
    fn name(&self) -> String {
        format!("{}/{}", self.pool.database, self.pool.user)
    }

    fn work(&self) -> Work {
        let Some((old, seconds)) = self.before else { return Work::default() };
        let more = |of: fn(&PoolStatus) -> u64| of(self.pool).saturating_sub(of(old));
        let seconds = seconds.max(0.001);
        let wait_us = more(|pool| pool.wait_us);
        let at_looks = f64::from(old.waiting.min(self.pool.waiting));
        Work {
            transactions: more(|pool| pool.transactions),
            transaction_us: more(|pool| pool.transaction_us),
            wait_us,
            seconds,
            waiting: at_looks.max(wait_us as f64 / 1e6 / seconds),
        }
    }

    /// Clients wait longer than a pool is for.
    fn suffers(&self, work: Work) -> bool {
        self.pool.waiting > 0 && self.pool.oldest_wait_us >= LONG_WAIT_US
            || work.waiting >= 1.0 && work.wait_us * 2 >= work.transaction_us
    }

    /// `without_server`: a server of its database is down, which has its own finding.
    pub(super) fn judge(&self, without_server: bool, found: &mut Vec<Finding>) {
        let (pool, work) = (self.pool, self.work());
        if pool.paused {
            self.paused(found);
            return;
        }
        if let Some(error) = &pool.last_error {
            if !without_server {
                let name = self.name();
                let wrong = format!("no server connection can be opened for {name}: {error}");
                let mend =
                    "Mend what the error names; `hawser check` tries the login of each pool.";
                let kind = Kind::NoConnection;
                found.push(Finding::new(kind, true, pool.clients as u64, &wrong, mend));
            }
            return;
        }
        let suffers = self.suffers(work);
        let before = found.len();
        self.idle_in_transaction(suffers, found);
        self.pinned(suffers, found);
        if suffers && pool.lock_waits > 0 {
            let wrong = format!(
                "{} of {} server connections of {} wait for locks{}",
                pool.lock_waits,
                pool.servers(),
                self.name(),
                self.waiting(),
            );
            let mend = "pg_blocking_pids() at the server names who has the lock; lock_wait_reserve in \
                        [pool] keeps connections for the others, lock_timeout ends such waits.";
            let weight = pool.lock_waits.into();
            found.push(Finding::new(Kind::LockWaits, true, weight, &wrong, mend));
        }
        self.slow(work, suffers, found);
        if suffers && found.len() == before {
            self.too_small(work, found);
        }
    }

    fn paused(&self, found: &mut Vec<Finding>) {
        let pool = self.pool;
        if pool.waiting > 0 {
            let name = self.name();
            let longest = units::time(pool.oldest_wait_us);
            let wrong = format!("{name} is paused{}, the first for {longest}", self.waiting());
            let mend = format!("RESUME {} on the console, if nothing is under way.", pool.database);
            found.push(Finding::new(Kind::Paused, true, pool.waiting.into(), &wrong, &mend));
        }
    }

    fn idle_in_transaction(&self, suffers: bool, found: &mut Vec<Finding>) {
        let idle = self.keeping.iter().filter_map(|one| Some((one.idle_in_transaction_us?, *one)));
        let count = idle.clone().count();
        let Some((longest, client)) = idle.max_by_key(|(longest, _)| *longest) else { return };
        if !suffers && longest < IDLE_US_MAX {
            return;
        }
        let wrong = format!(
            "clients of {} idle in a transaction: {count}, on {count} of {} server connections{}; the longest, {}, \
             for {}",
            self.name(),
            self.pool.servers(),
            self.waiting(),
            name_of(client),
            units::time(longest),
        );
        let mend = format!(
            "Have the application commit before it does other work. KILL_CLIENT {} ends this one; \
             idle_transaction_timeout = \"30s\" in [pool] ends such clients from now on.",
            client.id
        );
        found.push(Finding::new(Kind::IdleInTransaction, suffers, longest, &wrong, &mend));
    }

    fn pinned(&self, suffers: bool, found: &mut Vec<Finding>) {
        let (pool, size) = (self.pool, self.pool.size);
        let many = pool.pinned.saturating_mul(2) >= size;
        let harms = suffers && pool.pinned.saturating_mul(4) >= size;
        let pinned = self.keeping.iter().filter(|client| !client.pins.is_empty());
        let longest = pinned.clone().max_by_key(|client| client.pinned_us);
        let (Some(longest), true) = (longest, pool.pinned > 0 && (many || harms)) else { return };
        let mut reasons = BTreeMap::<&str, u32>::new();
        for reason in pinned.flat_map(|client| &client.pins) {
            *reasons.entry(reason).or_default() += 1;
        }
        let mut reasons: Vec<_> = reasons.into_iter().collect();
        reasons.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let reasons =
            reasons.iter().map(|(name, count)| format!("{count} {}", name.replace('_', " ")));
        let wrong = format!(
            "pinned clients of {}: {}, with pool_size {size} ({}){}; the longest, {}, for {}",
            self.name(),
            pool.pinned,
            reasons.collect::<Vec<_>>().join(", "),
            self.waiting(),
            name_of(longest),
            units::time(longest.pinned_us),
        );
        let mend = "SHOW PINS names all of them. The page has what to use in place of each reason; \
                    pin_timeout and max_pinned in [pool] bound them.";
        found.push(Finding::new(Kind::Pinned, suffers, pool.pinned.into(), &wrong, mend));
    }

    /// A statement that takes most of the time, or a server that takes longer than it did.
    fn slow(&self, work: Work, suffers: bool, found: &mut Vec<Finding>) {
        let Some((old, _)) = self.before else { return };
        let since_start = old.transaction_us.checked_div(old.transactions).unwrap_or(0);
        let (least, least_before) = SLOW_TRANSACTIONS_MIN;
        let is_slow = work.transactions >= least
            && old.transactions >= least_before
            && work.mean_us() >= SLOW_US_MIN.max(since_start * SLOW_TIMES);
        if !is_slow && !suffers {
            return;
        }
        let name = self.name();
        if let Some((heavy, share, others_us)) = self.heavy() {
            let wrong = format!(
                "{share} % of the time of database {} goes to {}: {} each, the others {}{}",
                self.pool.database,
                heavy.name(),
                units::time(heavy.mean_us()),
                units::time(others_us),
                self.waiting(),
            );
            let running = (self.pool.size / 4).max(1);
            let mend = format!(
                "EXPLAIN it and give it an index; until then, on the console: RULE ADD heavy DIGEST {} \
                 MAX_RUNNING {running} FOR '1h'",
                heavy.query.digest
            );
            let weight = heavy.time_us;
            found.push(Finding::new(Kind::HeavyStatement, suffers, weight, &wrong, &mend));
        } else if is_slow {
            let wrong = format!(
                "transactions of {name} take {} each, {} on average since the start{}, and no statement \
                 stands out",
                units::time(work.mean_us()),
                units::time(since_start),
                self.waiting(),
            );
            let mend = "Look at the server: its CPU and disks, and wait_event in pg_stat_activity. A larger \
                        pool makes it slower.";
            let weight = work.transaction_us;
            found.push(Finding::new(Kind::SlowServer, suffers, weight, &wrong, mend));
        }
    }

    /// The statement that takes most of the time and far more than any other, its part in a hundred, and
    /// the mean of the others.
    fn heavy(&self) -> Option<(&Ran<'_>, u64, u64)> {
        let heavy = self.ran.iter().max_by_key(|one| one.time_us)?;
        let (calls, time_us) = self
            .ran
            .iter()
            .fold((0, 0), |(calls, time), one| (calls + one.calls, time + one.time_us));
        let others = (time_us - heavy.time_us).checked_div(calls - heavy.calls);
        let least = others.map_or(LONG_CALL_US, |others| others * HEAVY_TIMES);
        let share = (heavy.time_us * 100).checked_div(time_us)?;
        (share >= 50 && heavy.mean_us() >= least).then_some((heavy, share, others.unwrap_or(0)))
    }

    fn too_small(&self, work: Work, found: &mut Vec<Finding>) {
        let (pool, name) = (self.pool, self.name());
        let waits = match work.transactions {
            0 => format!("the first for {}", units::time(pool.oldest_wait_us)),
            count => format!("for {} each", units::time(work.wait_us / count)),
        };
        let at_work = work.transaction_us as f64 / 1e6 / work.seconds.max(0.001);
        let waiting = work.waiting.max(f64::from(pool.waiting));
        let (open, size) = (pool.servers(), pool.size);
        let wrong = format!(
            "pool {name} is too small: {waiting:.1} clients wait {waits} while {at_work:.1} transactions are \
             at work, {} each; {open} server connections with pool_size {size}",
            units::time(work.mean_us()),
        );
        let mend = if open < size && pool.servers_opening == 0 {
            format!(
                "Another limit than pool_size keeps it at {open}: raise max_db_connections, \
                 max_user_connections or max_server_connections, as SHOW DATABASES and SHOW USERS have them."
            )
        } else {
            let wanted = (f64::from(size) + waiting.ceil()).min(f64::from(size) * 2.0) as u32;
            format!(
                "Set pool_size = {} for database {}. If its server's CPU is busy, a larger pool does not \
                 help: shorten the transactions.",
                wanted.max(size + 1),
                pool.database,
            )
        };
        found.push(Finding::new(Kind::PoolTooSmall, true, waiting as u64, &wrong, &mend));
    }

    fn waiting(&self) -> String {
        match self.pool.waiting {
            0 => String::new(),
            1 => ", and 1 client waits".to_owned(),
            waiting => format!(", and {waiting} clients wait"),
        }
    }
}

/// `ann from 10.0.0.1 (application_name "report", id 12)`.
fn name_of(client: &KeepingStatus) -> String {
    let KeepingStatus { user, address, application_name, id, .. } = client;
    match application_name.is_empty() {
        true => format!("{user} from {address} (id {id})"),
        false => {
            format!("{user} from {address} (application_name \"{application_name}\", id {id})")
        }
    }
}
