//! Who inherits what, and what SET and a reload make of it.

use std::time::Duration;

use super::super::{Limit, PoolMode, SetError, Timeout, TlsMode};
use super::config;

const TEXT: &str = r#"
[pool]
default_pool_size = 15
query_timeout = "7s"
max_user_connections = 40
max_db_connections = 30

[[database]]
name = "plain"
servers = "h:1"

[[database]]
name = "own"
dbname = "real"
servers = ["h:1", "/run/pg"]
pool_mode = "session"
pool_size = 5
min_pool_size = 9
max_db_connections = 0
server_lifetime = 60
server_tls_sslmode = "require"
user = "forced"
password = "x"

[[database]]
name = "*"
servers = "h:2"

[[user]]
name = "alice"
password = "a"
pool_size = 3
query_timeout = 0
max_user_connections = 2
"#;

#[test]
fn a_database_inherits_what_it_does_not_say() {
    let config = config(TEXT).unwrap();
    let plain = config.database("plain").unwrap();
    assert_eq!(
        (plain.inherited.pool.pool_size, plain.inherited.pool.pool_mode),
        (15, PoolMode::Transaction)
    );
    assert_eq!(plain.inherited.limits.max_db_connections, Limit::new(30));
    assert_eq!(plain.inherited.servers.server_lifetime, Duration::from_secs(3600));
    assert_eq!(plain.inherited.tls.server_tls_sslmode, TlsMode::Prefer);
    assert_eq!(plain.forced_user, None);

    let own = config.database("own").unwrap();
    assert_eq!(
        (own.inherited.pool.pool_size, own.inherited.pool.pool_mode),
        (5, PoolMode::Session)
    );
    assert_eq!(own.inherited.pool.min_pool_size, 5, "never more than the pool");
    assert_eq!(own.inherited.limits.max_db_connections, Limit::NONE, "0 lifts the general limit");
    assert_eq!(own.inherited.servers.server_lifetime, Duration::from_secs(60));
    assert_eq!(own.inherited.tls.server_tls_sslmode, TlsMode::Require);
    assert_eq!(own.dbname_for("own"), "real");
    assert_eq!(own.servers[1].to_string(), "/run/pg/.s.PGSQL.5432");
    assert_eq!(own.forced_user.as_ref().map(|u| u.name.as_str()), Some("forced"));
}

#[test]
fn the_star_is_for_names_without_an_entry_and_never_for_the_admin_databases() {
    let config = config(TEXT).unwrap();
    let any = config.database("whatever").unwrap();
    assert!(any.is_any());
    assert_eq!(any.dbname_for("whatever"), "whatever");
    assert_eq!(config.database("plain").unwrap().name, "plain");
    assert!(config.database("*").unwrap().is_any());
    assert!(config.database("hawser").is_none());
    assert!(config.database("pgbouncer").is_none());
}

#[test]
fn a_users_own_limits_come_before_the_databases_before_the_general() {
    let config = config(TEXT).unwrap();
    let own = config.database("own").unwrap();
    let alice = config.resolve(own, "alice");
    assert_eq!((alice.pool.pool_size, alice.pool.pool_mode), (3, PoolMode::Session));
    assert_eq!(alice.pool.min_pool_size, 3);
    assert_eq!(alice.idle_transaction_reserve(), 3, "as the size of that very pool");
    assert_eq!(alice.timeouts.query_timeout, Timeout::NEVER, "0 lifts the general timeout");
    assert_eq!(alice.limits.max_user_connections, Limit::new(2));

    let bob = config.resolve(own, "bob");
    assert_eq!((bob.pool.pool_size, bob.idle_transaction_reserve()), (5, 5));
    assert_eq!(bob.timeouts.query_timeout.get(), Some(Duration::from_secs(7)));
    assert_eq!(bob.limits.max_user_connections, Limit::new(40));
}

#[test]
fn set_changes_what_databases_and_users_inherit_and_a_refused_set_changes_nothing() {
    let mut config = config(TEXT).unwrap();
    config.set("default_pool_size", "33").unwrap();
    config.set("query_timeout", "90s").unwrap();
    assert_eq!(config.database("plain").unwrap().inherited.pool.pool_size, 33);
    assert_eq!(config.database("own").unwrap().inherited.pool.pool_size, 5);
    let plain = config.database("plain").unwrap();
    assert_eq!(
        config.resolve(plain, "bob").timeouts.query_timeout.get(),
        Some(Duration::from_secs(90))
    );
    assert_eq!(config.resolve(plain, "alice").timeouts.query_timeout, Timeout::NEVER);

    let before = config.reload.clone();
    for (name, value) in
        [("default_pool_size", "0"), ("pool_mode", "x"), ("client_tls_sslmode", "require")]
    {
        assert!(matches!(config.set(name, value), Err(SetError::Refused(_))), "{name}");
    }
    assert!(matches!(config.set("listen_backlog", "1"), Err(SetError::NotChangeable(_))));
    assert!(matches!(config.set("servers", "h:1"), Err(SetError::NotChangeable(_))));
    assert!(matches!(config.set("pool_sise", "1"), Err(SetError::Unknown(_))));
    assert_eq!(config.reload, before);
}

#[test]
fn a_reload_names_what_it_leaves_alone() {
    let running = config(TEXT).unwrap();
    let new = config(&format!(
        "{TEXT}\n[listen]\nbacklog = 7\ntcp_keepidle = 3\n[log]\nformat = \"json\"\nlevel = \"debug\"\n"
    ))
    .unwrap();
    assert_eq!(running.diff_restart(&new), ["listen_backlog", "format"]);
    assert!(running.diff_restart(&running).is_empty());
    let merged = new.reloaded_over(&running);
    assert_eq!(merged.start, running.start);
    assert_eq!(merged.reload.network.tcp_keepidle.get(), Some(Duration::from_secs(3)));
}

#[test]
fn a_limit_admits_up_to_its_number() {
    assert!(Limit::NONE.admits_one_more(usize::MAX));
    assert!(Limit::new(2).admits_one_more(1));
    assert!(!Limit::new(2).admits_one_more(2));
    assert_eq!(Limit::new(0), Limit::NONE);
}
