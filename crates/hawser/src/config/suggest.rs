//! What an unknown key was probably meant to be.
//!
//! # Model
//! In this order: the same name in another table; a setting of PgBouncer that has no
//! equivalent, with the reason; the nearest name of the table by edit distance (at most
//! a third of the letters differ).

use super::registry;
use super::setting::{Setting, Table};

/// Settings of PgBouncer that Hawser lacks, and what to do instead. Also what `hawser import` says.
const WITHOUT_EQUIVALENT: &[(&str, &str)] = &[
    ("auth_ldap_options", "write the options in a line of hba_file, after its method ldap"),
    ("client_tls_dheparams", "only elliptic curves are offered"),
    ("conffile", "the file is named on the command line: hawser serve -c FILE"),
    ("disable_pqexec", "the simple protocol cannot be turned off"),
    ("dns_nxdomain_ttl", "names that do not resolve are tried again with server_login_retry"),
    ("dns_zone_check_period", "names are resolved again after dns_max_ttl"),
    ("host", "write servers = [\"host:port\"] in [[database]]"),
    ("job_name", "Hawser is named by its service manager"),
    ("listen_port", "write the port in address, as in \"127.0.0.1:6432\""),
    ("pkt_buf", "buffers size themselves"),
    ("port", "write the port in servers, as in \"127.0.0.1:5432\""),
    ("resolv_conf", "the system's resolver is used"),
    ("sbuf_loopcnt", "the loops are fair by themselves"),
    ("scram_iterations", "the stored secret says the count"),
    ("server_check_delay", "dead server connections are noticed at once"),
    ("server_check_query", "dead server connections are noticed at once"),
    ("server_reset_query_always", "outside of session mode no state is left"),
    ("service_name", "Hawser is named by its service manager"),
    ("so_reuseport", "one process uses all cores: see loops in [process]"),
    ("suspend_timeout", "there is no SUSPEND"),
    ("track_extra_parameters", "every setting that the server reports moves with its client"),
    ("unix_socket_dir", "write the directory in address, beside the TCP addresses"),
    ("verbose", "use level in [log]"),
];

/// Names of which only these were allowed are listed in full; longer lists would drown the message.
const NAMES_LISTED_MAX: usize = 8;
/// Longer keys are no typing errors; it also bounds the work of comparing.
const NAME_BYTES_MAX: usize = 64;

/// Why Hawser does not need this setting of PgBouncer, if it is one of those.
pub(crate) fn without_equivalent(name: &str) -> Option<&'static str> {
    WITHOUT_EQUIVALENT.iter().find(|(known, _)| *known == name).map(|(_, reason)| *reason)
}

/// The setting of PgBouncer that `name` was probably meant to be: of `[pgbouncer]`, or of an entry of
/// `table`.
pub(crate) fn nearest_of_pgbouncer(table: Option<Table>, name: &str) -> Option<&'static str> {
    let own = registry::all().filter(|setting| match table {
        Some(table) => setting.table == table,
        None => !setting.table.is_array(),
    });
    let names = own.filter_map(|setting| setting.pgbouncer);
    nearest(name, names.chain(WITHOUT_EQUIVALENT.iter().map(|(name, _)| *name)))
}

/// The message for a key that `table` does not have.
pub(super) fn unknown_key(table: Table, name: &str) -> String {
    let elsewhere: Vec<_> = Table::ALL
        .into_iter()
        .filter(|other| *other != table && registry::find(*other, name).is_some())
        .map(|other| other.to_string())
        .collect();
    let names = || {
        registry::all()
            .filter(|s| s.table == table)
            .flat_map(|s| std::iter::once(s.name).chain(s.pgbouncer))
    };
    let hint = if !elsewhere.is_empty() {
        format!("it belongs in {}", elsewhere.join(" or "))
    } else if table == Table::Listen && name == "port" {
        "write it in address, as in \"127.0.0.1:6432\"".to_owned()
    } else if let Some(reason) = without_equivalent(name) {
        format!("this setting of PgBouncer is not needed: {reason}")
    } else if let Some(near) = nearest(name, names()) {
        format!("did you mean `{near}`?")
    } else {
        let own: Vec<_> = registry::all().filter(|s| s.table == table).map(|s| s.name).collect();
        if own.len() <= NAMES_LISTED_MAX {
            format!("allowed is {}", own.join(", "))
        } else {
            "docs/configuration.md lists what is allowed".to_owned()
        }
    };
    format!("unknown key `{}` in {table}: {hint}", shortened(name))
}

/// The message for a table or key that does not exist at the top of the file.
pub(super) fn unknown_table(name: &str, is_table: bool) -> String {
    if !is_table && let Some(setting) = registry::find_by_name(name) {
        return format!("`{name}` belongs in a table: write it under {}", setting.table);
    }
    let hint = match name {
        "databases" | "users" => format!("write [[{}]]", name.trim_end_matches('s')),
        "pgbouncer" => "`hawser import` turns a pgbouncer.ini into a hawser.toml".to_owned(),
        _ => match nearest(name, Table::ALL.into_iter().map(Table::name)) {
            Some(near) => format!("did you mean `{near}`?"),
            None => format!("allowed is {}", Table::ALL.map(|table| table.to_string()).join(", ")),
        },
    };
    format!("unknown table `{}`: {hint}", shortened(name))
}

/// The message for a name that SET does not know.
pub(crate) fn unknown_setting(name: &str) -> String {
    let names = registry::all().filter(|s| !s.table.is_array()).map(Setting::shown_name);
    let hint = match (without_equivalent(name), nearest(name, names)) {
        (Some(reason), _) => format!("this setting of PgBouncer is not needed: {reason}"),
        (_, Some(near)) => format!("did you mean `{near}`?"),
        _ => "SHOW CONFIG lists what there is".to_owned(),
    };
    format!("unknown setting `{}`: {hint}", shortened(name))
}

fn shortened(name: &str) -> String {
    name.chars().filter(|c| !c.is_control()).take(NAME_BYTES_MAX).collect()
}

/// The candidate that is fewest edits away, if those are few.
fn nearest<'a>(name: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    if name.len() > NAME_BYTES_MAX {
        return None;
    }
    candidates
        .map(|candidate| (strsim::levenshtein(name, candidate), candidate))
        .filter(|(edits, candidate)| *edits <= (name.len().max(candidate.len()) / 3).max(1))
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typing_errors_find_their_key_and_other_tables_are_named() {
        assert!(unknown_key(Table::Pool, "pool_sise").contains("did you mean `pool_size`"));
        assert!(
            unknown_key(Table::Listen, "pool_mode")
                .contains("belongs in [[database]] or [[user]] or [pool]")
        );
        assert!(unknown_key(Table::Listen, "query_timeout").contains("belongs in"));
        assert!(
            unknown_key(Table::Admin, "zzz").contains("http_address, http_hosts, control_socket")
        );
        assert!(unknown_key(Table::Listen, "port").contains("address, as in"));
        assert!(unknown_key(Table::Database, "port").contains("in servers"));
        assert!(unknown_key(Table::Pool, "so_reuseport").contains("one process uses all cores"));
        assert!(unknown_table("databases", true).contains("[[database]]"));
        assert!(unknown_table("pol", true).contains("did you mean `pool`"));
        assert!(unknown_setting("query_timeot").contains("did you mean `query_timeout`"));
    }

    #[test]
    fn no_setting_is_both_had_and_lacked() {
        for (name, _) in WITHOUT_EQUIVALENT {
            assert!(registry::find_by_name(name).is_none(), "{name}");
        }
        assert!(WITHOUT_EQUIVALENT.is_sorted());
    }
}
