//! What a reload has changed, in words for the log.
//!
//! # Invariants
//! * no secret: of a password, and of a query that may hold one, only that it changed
//! * at most [`CHANGES_MAX`] lines: a file may have thousands of databases

use std::collections::{BTreeMap, BTreeSet};

use super::registry::{DatabaseEntry, Group, UserEntry};
use super::setting::{Setting, Table};
use super::{Config, Password};

/// Lines of one reload.
const CHANGES_MAX: usize = 50;

type Values = Vec<(&'static Setting, String)>;

pub(super) fn between(old: &Config, new: &Config) -> Vec<String> {
    let mut all = Vec::new();
    differences("", &old.reload.shown(), &new.reload.shown(), &mut all);
    let databases = |config: &Config| {
        let named =
            |entry: &DatabaseEntry| named(entry.name.as_ref(), entry, entry.password.as_ref());
        config.databases.iter().map(named).collect()
    };
    let users = |config: &Config| {
        let named = |entry: &UserEntry| named(entry.name.as_ref(), entry, entry.password.as_ref());
        config.users.iter().map(named).collect()
    };
    let rules = |config: &Config| {
        config.rules.iter().map(|entry| named(entry.name.as_ref(), entry, None)).collect()
    };
    let links = |config: &Config| {
        config.links.iter().map(|(name, entry)| named(Some(name), entry, None)).collect()
    };
    entries(Table::Database, &databases(old), &databases(new), &mut all);
    entries(Table::User, &users(old), &users(new), &mut all);
    entries(Table::Rule, &rules(old), &rules(new), &mut all);
    entries(Table::Link, &links(old), &links(new), &mut all);
    if all.len() > CHANGES_MAX {
        let more = all.len() - CHANGES_MAX;
        all.truncate(CHANGES_MAX);
        all.push(format!("and {more} more changes"));
    }
    all
}

type Entries = BTreeMap<String, (Values, Option<Password>)>;

fn named(
    name: Option<&String>,
    entry: &impl Group,
    secret: Option<&Password>,
) -> (String, (Values, Option<Password>)) {
    (name.cloned().unwrap_or_default(), (entry.shown(), secret.cloned()))
}

fn entries(table: Table, old: &Entries, new: &Entries, all: &mut Vec<String>) {
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    for name in names {
        match (old.get(name), new.get(name)) {
            (Some(_), None) => all.push(format!("{table} {name} removed")),
            (None, Some(_)) => all.push(format!("{table} {name} is new")),
            (Some((old, old_secret)), Some((new, new_secret))) => {
                differences(&format!("{table} {name}: "), old, new, all);
                if old_secret != new_secret {
                    all.push(format!("{table} {name}: password changed"));
                }
            }
            (None, None) => {}
        }
    }
}

fn differences(of: &str, old: &Values, new: &Values, all: &mut Vec<String>) {
    for ((setting, old), (_, new)) in old.iter().zip(new).filter(|(old, new)| old.1 != new.1) {
        let name = setting.name;
        match name {
            "password" => {} // compared by itself
            _ if name.ends_with("query") => all.push(format!("{of}{name} changed")),
            _ => all.push(format!("{of}{name}: {} -> {}", or_nothing(old), or_nothing(new))),
        }
    }
}

fn or_nothing(value: &str) -> &str {
    if value.is_empty() { "nothing" } else { value }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reload_says_what_is_otherwise_and_no_secret() {
        let config = |text: &str| {
            let text = format!("[auth]\nauth_type = \"md5\"\nusers_file = \"u\"\n{text}");
            Config::from_str(&text, "t").unwrap()
        };
        let old = config(
            "[pool]\nquery_timeout = \"5s\"\n[[database]]\nname = \"app\"\nservers = \"a\"\n\
             pool_size = 5\nuser = \"u\"\npassword = \"geheim\"\n[[database]]\nname = \"old\"\n\
             servers = \"a\"\n",
        );
        let new = config(
            "[pool]\nquery_timeout = \"7s\"\n[[database]]\nname = \"app\"\nservers = \"a\"\n\
             pool_size = 9\nuser = \"u\"\npassword = \"secreto\"\n\
             connect_query = \"set a.key = 'clave'\"\n[[database]]\nname = \"new\"\n\
             servers = \"a\"\n[[user]]\nname = \"ann\"\npassword = \"mima\"\n",
        );
        let changes = old.changes(&new);
        let expected = [
            "query_timeout: 5 -> 7",
            "[[database]] app: pool_size: 5 -> 9",
            "[[database]] app: connect_query changed",
            "[[database]] app: password changed",
            "[[database]] new is new",
            "[[database]] old removed",
            "[[user]] ann is new",
        ];
        let mut sorted: Vec<_> = changes.iter().map(String::as_str).collect();
        sorted.sort_unstable();
        let mut expected = expected.to_vec();
        expected.sort_unstable();
        assert_eq!(sorted, expected);
        assert!(new.changes(&new).is_empty());
    }

    #[test]
    fn a_file_that_is_all_new_does_not_fill_the_log() {
        let config = |prefix: &str| {
            let databases: String = (0..100)
                .map(|n| format!("[[database]]\nname = \"{prefix}{n}\"\nservers = \"a\"\n"))
                .collect();
            Config::from_str(&format!("{databases}[auth]\nusers_file = \"u\"\n"), "t").unwrap()
        };
        let changes = config("a").changes(&config("b"));
        assert_eq!(changes.len(), CHANGES_MAX + 1);
        assert_eq!(changes.last().unwrap(), "and 150 more changes");
    }
}
