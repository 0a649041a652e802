//! Whole configurations.

mod inheritance;
mod places;
mod reference;
mod serving_a_url;

use super::{Config, ConfigErrors};

/// The minimal configuration of the documentation, to the letter.
pub(super) const MINIMAL: &str = r#"[listen]
address = "127.0.0.1:6432"

[[database]]
name = "app"                 # what clients ask for; "*" is any
servers = ["127.0.0.1:5432"] # host:port, /path/to/socket, or link://NAME/host:port
pool_size = 20               # for each user and database

[auth]                       # without any way to log in, `check` and `serve` refuse
hba_file = "pg_hba.conf"     # PostgreSQL's format
users_file = "userlist.txt"  # PgBouncer's format; or [[user]] entries; or auth_query
"#;

pub(super) fn config(text: &str) -> Result<Config, ConfigErrors> {
    Config::from_str(text, "/etc/hawser/hawser.toml")
}

#[test]
fn the_minimal_configuration_works_verbatim() {
    let config = config(MINIMAL).unwrap();
    assert_eq!(config.listen()[0].to_string(), "127.0.0.1:6432");
    let app = config.database("app").unwrap();
    assert_eq!(app.servers[0].to_string(), "127.0.0.1:5432");
    assert_eq!(app.inherited.pool.pool_size, 20);
    assert_eq!(app.dbname_for("app"), "app");
    let auth = &config.reload.auth;
    assert_eq!(auth.hba_file.as_deref(), Some("/etc/hawser/pg_hba.conf".as_ref()));
    assert_eq!(auth.users_file.as_deref(), Some("/etc/hawser/userlist.txt".as_ref()));
    assert_eq!(config.auth_type(), super::AuthType::Hba);
    assert!(config.warnings().is_empty());
    assert!(config.database("other").is_none(), "there is no * in it");
}

mod arbitrary_text {
    use proptest::prelude::*;

    use super::super::registry;
    use super::config;

    /// Lines that are nearly right: tables and keys of the registry with values of any kind.
    fn line() -> impl Strategy<Value = String> {
        let names: Vec<_> =
            registry::all().flat_map(|s| std::iter::once(s.name).chain(s.pgbouncer)).collect();
        let examples: Vec<_> = registry::all().map(|s| s.example).collect();
        let tables: Vec<_> = crate::config::setting::Table::ALL
            .iter()
            .flat_map(|t| [t.to_string(), format!("[{}]", t.name())])
            .collect();
        let value = prop_oneof![
            prop::sample::select(examples).prop_map(str::to_owned),
            any::<i64>().prop_map(|n| n.to_string()),
            any::<f64>().prop_map(|n| format!("{n:?}")),
            "\"[0-9a-zA-Z:/.,*@%\\[\\]-]{0,20}\"",
            "\\PC{0,12}",
            Just("[[1, \"a\"], {x = 1}]".to_owned()),
        ];
        prop_oneof![
            1 => prop::sample::select(tables),
            4 => (prop::sample::select(names), value).prop_map(|(name, value)| format!("{name} = {value}")),
        ]
    }

    proptest! {
        #[test]
        fn never_panics(text in "\\PC{0,200}") {
            let _ = config(&text);
        }

        #[test]
        fn that_is_nearly_a_configuration_never_panics(lines in prop::collection::vec(line(), 0..30)) {
            let text = lines.join("\n");
            if let Err(errors) = config(&text) {
                let count = text.matches('\n').count() + 1;
                for error in errors.as_slice() {
                    prop_assert!((1..=count).contains(&error.line), "{error}");
                    prop_assert!(error.column >= 1, "{error}");
                }
            }
        }
    }
}
