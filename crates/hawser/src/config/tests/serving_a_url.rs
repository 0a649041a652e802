//! `serve --server URL` without a file.

use super::super::{AuthType, Config, TlsMode};

const URL: &str = "postgres://alice:hunter2@db.example:5433/app?sslmode=require";

#[test]
fn every_database_is_served_and_the_urls_user_logs_in() {
    let config = Config::from_server_url(URL, Some("0.0.0.0:7000"), Some(5)).unwrap();
    assert_eq!(config.listen()[0].to_string(), "0.0.0.0:7000");
    let any = config.database("anything").unwrap();
    assert_eq!(any.servers[0].to_string(), "db.example:5433");
    assert_eq!((any.pool_size, any.tls.mode), (5, TlsMode::Require));
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
