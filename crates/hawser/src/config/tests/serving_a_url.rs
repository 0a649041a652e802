//! `serve --server URL` without a file, and options on top of one.

use super::super::{AuthType, Config, Overrides, ServerUrl, TlsMode};

const URL: &str = "postgres://alice:hunter2@db.example:5433/app?sslmode=require";

#[test]
fn every_database_is_served_and_the_urls_user_logs_in() {
    let config = Config::from_server_url(URL, Some("0.0.0.0:7000"), Some(5)).unwrap();
    assert_eq!(config.listen()[0].to_string(), "0.0.0.0:7000");
    let any = config.database("anything").unwrap();
    assert_eq!(any.servers[0].to_string(), "db.example:5433");
    assert_eq!(
        (any.inherited.pool.pool_size, any.inherited.tls.server_tls_sslmode),
        (5, TlsMode::Require)
    );
    assert_eq!(config.auth_type(), AuthType::ScramSha256);
    let alice = config.user("alice").unwrap();
    assert_eq!(alice.password.as_ref().map(super::super::Password::expose), Some("hunter2"));
    assert!(config.is_admin("alice"));
    assert!(config.file().is_none());
    assert!(!format!("{config:?}").contains("hunter2"));
}

#[test]
fn without_a_password_it_trusts_on_local_addresses_only() {
    let url = "postgres://alice@127.0.0.1/app";
    for listen in [None, Some("[::1]:7000"), Some("127.0.0.1:7000,/run/hawser")] {
        let config = Config::from_server_url(url, listen, None).unwrap();
        assert_eq!(config.auth_type(), AuthType::Trust);
    }
    let error = Config::from_server_url(url, Some("127.0.0.1:7000,*:7001"), None).unwrap_err();
    assert!(error.to_string().starts_with("--server: the URL has no password"), "{error}");
}

#[test]
fn wrong_arguments_are_named_by_their_option_and_never_repeat_the_url() {
    let error = Config::from_server_url("mysql://a:hunter2@h", Some("x"), Some(0)).unwrap_err();
    let text = error.to_string();
    for option in ["--server: ", "--listen: ", "--pool-size: "] {
        assert!(text.contains(option), "{text}");
    }
    assert!(!text.contains("hunter2"), "{text}");
    let url = "postgres://a:hunter2@h?sslmode=verify-full";
    let text = Config::from_server_url(url, None, None).unwrap_err().to_string();
    assert!(text.contains("sslrootcert=FILE") && !text.contains("hunter2"), "{text}");
}

#[test]
fn parameters_that_mean_nothing_to_a_pooler_are_warned_of() {
    let config = Config::from_server_url("postgres://a:b@h/db?schema=x", None, None).unwrap();
    assert_eq!(config.warnings().len(), 1);
    assert!(config.warnings()[0].to_string().contains("schema of the URL"));
}

const FILE: &str = r#"
[listen]
address = "127.0.0.1:1"
[pool]
pool_size = 3
[[database]]
name = "app"
servers = "file.example:1"
pool_size = 4
server_tls_sslmode = "disable"
[[database]]
name = "other"
servers = "file.example:2"
[[user]]
name = "alice"
password = "old"
pool_size = 5
[[user]]
name = "bob"
password = "bobs"
"#;

fn on_top(text: &str, overrides: &Overrides) -> Result<Config, super::super::ConfigErrors> {
    Config::with_overrides(text, std::path::Path::new("/etc/hawser.toml"), overrides)
}

#[test]
fn options_go_before_a_file_and_leave_the_rest_of_it() {
    let overrides = Overrides {
        listen: Some("127.0.0.1:7000,[::1]:7000".to_owned()),
        server: Some(ServerUrl::parse(URL).unwrap()),
        pool_size: Some(9),
        ..Overrides::default()
    };
    let config = on_top(FILE, &overrides).unwrap();
    let listen: Vec<_> = config.listen().iter().map(ToString::to_string).collect();
    assert_eq!(listen, ["127.0.0.1:7000", "[::1]:7000"]);
    for database in config.databases() {
        assert_eq!(database.servers.len(), 1);
        assert_eq!(database.servers[0].to_string(), "db.example:5433");
        assert_eq!(
            (database.inherited.pool.pool_size, database.inherited.tls.server_tls_sslmode),
            (9, TlsMode::Require)
        );
        for user in ["alice", "bob", "carol"] {
            assert_eq!(config.resolve(database, user).pool.pool_size, 9, "{user}");
        }
    }
    assert!(config.database("third").is_none(), "the file lists two");
    let password = |name| config.user(name).and_then(|user| user.password.as_ref()).unwrap();
    assert_eq!((password("alice").expose(), password("bob").expose()), ("hunter2", "bobs"));
    assert!(!config.is_admin("alice"), "the file says who is");
    assert!(!format!("{config:?}").contains("hunter2"));
}

#[test]
fn each_option_alone_changes_nothing_else() {
    let plain = on_top(FILE, &Overrides::default()).unwrap();
    let listen =
        on_top(FILE, &Overrides { listen: Some("127.0.0.1:2".into()), ..Overrides::default() })
            .unwrap();
    assert_eq!(listen.reload, plain.reload);
    assert_eq!(listen.listen().len(), 1);
    let size = on_top(FILE, &Overrides { pool_size: Some(9), ..Overrides::default() }).unwrap();
    assert_eq!(size.start, plain.start);
    assert_eq!(size.databases()[0].servers, plain.databases()[0].servers);
}

#[test]
fn a_file_without_databases_serves_all_of_the_servers() {
    let overrides =
        Overrides { server: Some(ServerUrl::parse(URL).unwrap()), ..Overrides::default() };
    let config = on_top("[pool]\npool_size = 2\n", &overrides).unwrap();
    assert_eq!(config.database("any").unwrap().inherited.pool.pool_size, 2);
    assert_eq!(config.auth_type(), AuthType::ScramSha256);
    // Trust is for trials without a file: a file says how clients log in.
    let without = Overrides {
        server: Some(ServerUrl::parse("postgres://alice@127.0.0.1").unwrap()),
        ..Overrides::default()
    };
    let error = on_top("[pool]\npool_size = 2\n", &without).unwrap_err().to_string();
    assert!(error.contains("no client could log in"), "{error}");
}

#[test]
fn a_wrong_option_is_named_beside_what_is_wrong_in_the_file() {
    let overrides = Overrides {
        listen: Some("nowhere".into()),
        pool_size: Some(0),
        server: Some(ServerUrl::parse("postgres://a:hunter2@h?sslmode=verify-full").unwrap()),
        ..Overrides::default()
    };
    let text = on_top("[pool]\npool_sise = 2\n", &overrides).unwrap_err().to_string();
    for part in ["--listen: ", "--pool-size: ", "--server: ", "/etc/hawser.toml:2:1: "] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    assert!(!text.contains("hunter2"), "{text}");
}
