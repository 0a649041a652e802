//! Which columns and rows SHOW gives: all on database `hawser` and with EXTENDED, and on database
//! `pgbouncer` exactly those of a release of PgBouncer, in its order.
//!
//! # Model       a table is filled with everything; PgBouncer's columns come first in it, each since
//!               some release, and what is not wanted is taken out

use std::borrow::Cow;

use crate::admin::command::Topic;
use crate::admin::table::{Cell, Column, Columns, Table};
use crate::config::ConsoleVersion;

/// The kind of client that a table is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dialect {
    /// Everything.
    Hawser,
    /// What this release of PgBouncer has.
    PgBouncer(ConsoleVersion),
}

/// The last release of a line.
pub fn release(version: ConsoleVersion) -> &'static str {
    match version {
        ConsoleVersion::V1_23 => "1.23.1",
        ConsoleVersion::V1_24 => "1.24.1",
        ConsoleVersion::V1_25 => "1.25.2",
        ConsoleVersion::V1_26 => "1.26.0",
    }
}

fn number(version: ConsoleVersion) -> u32 {
    match version {
        ConsoleVersion::V1_23 => 23,
        ConsoleVersion::V1_24 => 24,
        ConsoleVersion::V1_25 => 25,
        ConsoleVersion::V1_26 => 26,
    }
}

/// How many columns of a table are PgBouncer's; ours come after them.
fn columns_of_pgbouncer(topic: Topic, all: usize) -> usize {
    match topic {
        Topic::Pools | Topic::Databases => 17,
        Topic::Clients | Topic::Servers => 21,
        Topic::Sockets | Topic::ActiveSockets => 28,
        _ => all,
    }
}

/// Since which 1.x a column is there, or a row of TOTALS.
fn since(topic: Topic, name: &str) -> u32 {
    match topic {
        Topic::Stats | Topic::StatsTotals | Topic::StatsAverages | Topic::Totals => match name {
            name if name.ends_with("client_login_count") => 26,
            name if name.ends_with("parse_count") || name.ends_with("bind_count") => 24,
            _ => 23,
        },
        Topic::Pools | Topic::Databases if name == "load_balance_hosts" => 24,
        Topic::Databases if name.ends_with("_client_connections") => 24,
        Topic::Clients | Topic::Servers | Topic::Sockets | Topic::ActiveSockets if name == "id" => {
            24
        }
        Topic::Users if name == "reserve_pool_size" || name.ends_with("_client_connections") => 24,
        _ => 23,
    }
}

impl Dialect {
    /// Places of the columns that are shown.
    fn places(self, topic: Topic, all: &[Column]) -> Vec<usize> {
        match self {
            Self::Hawser => (0..all.len()).collect(),
            Self::PgBouncer(version) => (0..columns_of_pgbouncer(topic, all.len()))
                .filter(|at| since(topic, all[*at].name) <= number(version))
                .collect(),
        }
    }

    /// The columns that are shown.
    pub fn columns(self, topic: Topic, all: Columns) -> Cow<'static, [Column]> {
        let Self::PgBouncer(version) = self else { return Cow::Borrowed(all) };
        let shown = self.places(topic, all).into_iter().map(|at| match all[at] {
            Column { name: "reserve_pool_size", kind }
                if topic == Topic::Databases && number(version) < 24 =>
            {
                Column { name: "reserve_pool", kind }
            }
            column => column,
        });
        Cow::Owned(shown.collect())
    }

    /// Reduces a complete table to what is shown.
    pub fn shown(self, topic: Topic, all: Columns, mut table: Table) -> Table {
        let Self::PgBouncer(version) = self else { return table };
        let places = self.places(topic, all);
        table.columns = self.columns(topic, all);
        if topic == Topic::Totals {
            let is_there = |row: &Vec<Cell>| match row.first() {
                Some(Cell::Text(name)) => since(topic, name) <= number(version),
                _ => true,
            };
            table.rows.retain(is_there);
        }
        for row in &mut table.rows {
            let mut kept = Vec::with_capacity(places.len());
            for at in &places {
                kept.push(std::mem::replace(&mut row[*at], Cell::Null));
            }
            *row = kept;
        }
        table
    }
}
