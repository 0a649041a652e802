//! Who is connected to the console, and how PgBouncer shows it: as clients of a pool `pgbouncer`.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};
use std::time::SystemTime;

use super::clock::date;
use super::command::Topic;
use super::pooler::Pooler;
use super::table::{Cell, Table};
use crate::config::CONSOLE;
use crate::lock::locked;
use crate::login::admin::AdminRole;
use crate::totals::Totals;

/// Numbers of operators in SHOW CLIENTS count down from here: those of clients begin at the other end.
const NUMBER_MAX: u32 = i32::MAX as u32;

/// An operator who has logged in.
#[derive(Clone, Debug)]
pub struct Operator {
    /// What he may do.
    pub role: AdminRole,
    /// The database that he asked for.
    pub database: String,
    /// His user.
    pub user: String,
    /// Where he is; `unix` for unix sockets.
    pub address: String,
    /// His port.
    pub port: u16,
    /// TLS, or nothing.
    pub tls: String,
    /// The name of his program.
    pub application_name: String,
}

struct Entry {
    operator: Operator,
    connected: SystemTime,
    last: SystemTime,
}

/// All that are connected.
#[derive(Default, derive_more::Debug)]
#[debug("Operators {{ .. }}")]
pub struct Operators(Mutex<Listed>);

#[derive(Default)]
struct Listed {
    all: BTreeMap<u32, Entry>,
    logins: u32,
    queries: u64,
}

/// An operator's place in the list, up to its end.
pub struct Listing<'a> {
    operators: &'a Operators,
    number: u32,
}

impl Drop for Listing<'_> {
    fn drop(&mut self) {
        self.operators.lock().all.remove(&self.number);
    }
}

impl Listing<'_> {
    /// The operator has sent a command.
    pub fn query(&self) {
        let mut listed = self.operators.lock();
        listed.queries += 1;
        if let Some(entry) = listed.all.get_mut(&self.number) {
            entry.last = SystemTime::now();
        }
    }
}

impl Operators {
    fn lock(&self) -> MutexGuard<'_, Listed> {
        locked(&self.0)
    }

    /// Lists one.
    pub fn enter(&self, operator: Operator) -> Listing<'_> {
        let mut listed = self.lock();
        listed.logins = listed.logins.wrapping_add(1);
        let number = NUMBER_MAX - listed.logins % (1 << 19);
        let now = SystemTime::now();
        listed.all.insert(number, Entry { operator, connected: now, last: now });
        Listing { operators: self, number }
    }

    /// What SHOW STATS has of the console.
    pub fn totals(&self) -> Totals {
        let listed = self.lock();
        Totals { queries: listed.queries, logins: listed.logins.into(), ..Totals::default() }
    }

    /// Appends the rows that PgBouncer has of its console.
    pub fn append(&self, topic: Topic, pooler: &dyn Pooler, table: &mut Table) {
        let width = table.columns.len();
        let mut push = |mut row: Vec<Cell>| {
            // Ours, and what only SOCKETS has.
            row.resize(width, Cell::Number(0));
            table.push(row);
        };
        let listed = self.lock();
        match topic {
            Topic::Clients | Topic::Sockets => {
                for (number, Entry { operator, connected, last }) in &listed.all {
                    let state = if topic == Topic::Clients { "idle" } else { "cl_active" };
                    push(vec![
                        "C".into(),
                        operator.user.as_str().into(),
                        CONSOLE.into(),
                        "none".into(),
                        state.into(),
                        operator.address.as_str().into(),
                        operator.port.into(),
                        Cell::Null,
                        Cell::Null,
                        date(*connected).into(),
                        date(*last).into(),
                        0u32.into(),
                        0u32.into(),
                        0u32.into(),
                        format!("a{number}").into(),
                        "".into(),
                        0u32.into(),
                        operator.tls.as_str().into(),
                        operator.application_name.as_str().into(),
                        0u32.into(),
                        (*number).into(),
                    ]);
                }
            }
            Topic::Pools => {
                let mut row = vec![CONSOLE.into(), CONSOLE.into(), listed.all.len().into()];
                row.resize(15, Cell::Number(0));
                row.extend(["statement".into(), Cell::Null]);
                push(row);
            }
            Topic::Databases => {
                let first = pooler.listeners().into_iter().next().unwrap_or_default();
                let port: u16 =
                    first.rsplit([':', '.']).next().and_then(|p| p.parse().ok()).unwrap_or(0);
                let lifetime = pooler.config().reload.servers.server_lifetime.as_secs();
                push(vec![
                    CONSOLE.into(),
                    Cell::Null,
                    port.into(),
                    CONSOLE.into(),
                    CONSOLE.into(),
                    2u32.into(),
                    0u32.into(),
                    0u32.into(),
                    lifetime.into(),
                    "statement".into(),
                    Cell::Null,
                    0u32.into(),
                    0u32.into(),
                    0u32.into(),
                    listed.all.len().into(),
                ]);
            }
            Topic::Users | Topic::Lists => count(topic, listed.all.len(), pooler, table),
            _ => {}
        }
    }
}

/// Counts the console's user, pool, database and `operators` in.
fn count(topic: Topic, operators: usize, pooler: &dyn Pooler, table: &mut Table) {
    if topic == Topic::Users {
        let is_console =
            |row: &Vec<Cell>| matches!(row.first(), Some(Cell::Text(name)) if name == CONSOLE);
        if !table.rows.iter().any(is_console) {
            let mut row = vec![CONSOLE.into(), Cell::Null, Cell::Null, Cell::Null];
            row.resize(table.columns.len(), Cell::Number(0));
            table.push(row);
        }
        return;
    }
    let is_known = pooler.known_users().iter().any(|name| name == CONSOLE);
    for row in &mut table.rows {
        let [Cell::Text(list), Cell::Number(items)] = row.as_mut_slice() else { continue };
        *items += match list.as_str() {
            "databases" | "pools" => 1,
            "users" => u64::from(!is_known),
            "used_clients" => operators as u64,
            _ => 0,
        };
    }
}
