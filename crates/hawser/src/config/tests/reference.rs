//! The registry against the parser, SHOW CONFIG and the reference page.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::super::registry;
use super::super::setting::{Change, Setting, Table};
use super::super::{Config, ConfigErrors};
use super::config;

/// Whole, with what any setting's example may need beside it, and no example's value.
const BASE: &str = r#"
[[database]]
name = "app"
servers = "h:1"
user = "u"
server_tls_cert_file = "base.crt"
server_tls_key_file = "base.key"

[[user]]
name = "u"
password = "p"

[[rule]]
name = "base"
kind = "read"
refuse = "base"

[link.main]
key = "base.key"
peers = ["ed25519:BASEAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="]
far = ["base"]

[auth]

[process]
etcd_cert_file = "base.crt"
etcd_key_file = "base.key"
etcd_user = "base"
etcd_password_file = "base.password"

[tls]
client_tls_cert_file = "base.crt"
client_tls_key_file = "base.key"
server_tls_sslmode = "verify-ca"
server_tls_ca_file = "base-ca.crt"
server_tls_cert_file = "base.crt"
server_tls_key_file = "base.key"
"#;

/// `BASE` with `setting` under `name` at its example.
fn with_example(setting: &Setting, name: &str) -> Result<Config, ConfigErrors> {
    let mut file: toml::Table = BASE.parse().unwrap();
    if setting.name == "ident_file" {
        let auth = file["auth"].as_table_mut().unwrap();
        auth.insert("hba_file".into(), "base.conf".into());
    }
    let value: toml::Table = format!("x = {}", setting.example).parse().unwrap();
    let entry = file.entry(setting.table.name()).or_insert_with(|| toml::Table::new().into());
    let table = match entry {
        toml::Value::Array(entries) => entries[0].as_table_mut(),
        other if setting.table == Table::Link => other["main"].as_table_mut(),
        other => other.as_table_mut(),
    };
    let table = table.unwrap();
    if setting.table == Table::Link && ["listen", "allow"].contains(&setting.name) {
        table.remove("far");
        table.insert("listen".into(), vec!["127.0.0.1:1"].into());
        table.insert("allow".into(), vec!["base:1"].into());
    }
    if setting.name == "hand_over" {
        table.insert("hand_over_secret_file".into(), "base.secret".into());
    }
    if setting.name == "patroni" {
        table.insert("target_session_attrs".into(), "read-write".into());
    }
    table.insert(name.to_owned(), value["x"].clone());
    config(&toml::to_string(&file).unwrap())
}

#[test]
fn every_setting_is_read_and_changes_something() {
    let base = config(BASE).unwrap();
    for setting in registry::all() {
        let changed = with_example(setting, setting.name)
            .unwrap_or_else(|errors| panic!("{} of {}: {errors}", setting.name, setting.table));
        let differs = match setting.table {
            Table::Database => changed.databases() != base.databases(),
            Table::User => changed.users() != base.users(),
            Table::Rule => changed.rules() != base.rules(),
            Table::Link => changed.reload.links != base.reload.links,
            _ if setting.change == Change::Restart => changed.start != base.start,
            _ => changed.reload != base.reload,
        };
        assert!(differs, "{} of {} changes nothing", setting.name, setting.table);
    }
}

#[test]
fn pgbouncers_name_of_a_setting_does_the_same() {
    for setting in registry::all() {
        let Some(name) = setting.pgbouncer.filter(|name| *name != setting.name) else { continue };
        let ours = with_example(setting, setting.name).unwrap();
        let theirs = with_example(setting, name).unwrap();
        assert_eq!(ours.users(), theirs.users(), "{name}");
        assert_eq!((ours.start, ours.reload), (theirs.start, theirs.reload), "{name}");
    }
}

#[test]
fn show_config_has_every_setting_and_set_reads_what_it_shows() {
    let base = config(BASE).unwrap();
    for setting in registry::all().filter(|setting| !setting.table.is_array()) {
        let changed = with_example(setting, setting.name).unwrap();
        let row = |config: &Config| {
            let mut rows = config.show().into_iter().filter(|row| row.name == setting.shown_name());
            let row = rows.next().unwrap_or_else(|| panic!("{} is not shown", setting.name));
            assert!(rows.next().is_none(), "{} is shown twice", setting.name);
            row
        };
        let shown = row(&changed);
        assert_ne!(shown.value, shown.default, "{}", setting.name);
        assert_eq!(shown.changeable, setting.change == Change::Reload, "{}", setting.name);
        if shown.changeable && setting.name != "ident_file" {
            let mut set = base.clone();
            set.set(shown.name, &shown.value)
                .unwrap_or_else(|error| panic!("SET {}: {error}", shown.name));
            assert_eq!(row(&set).value, shown.value);
        }
    }
    assert!(base.show().is_sorted_by_key(|row| row.name));
}

#[test]
fn defaults_that_pgbouncer_shares_are_shown_in_its_format() {
    let shown: BTreeMap<_, _> =
        config(BASE).unwrap().show().into_iter().map(|row| (row.name, row.default)).collect();
    for (name, default) in [
        ("default_pool_size", "20"),
        ("query_wait_timeout", "120"),
        ("server_lifetime", "3600"),
        ("tcp_keepalive", "1"),
        ("server_round_robin", "0"),
        ("max_packet_size", "2147483647"),
        ("unix_socket_mode", "0777"),
        ("client_tls_protocols", "secure"),
        ("auth_file", ""),
        ("tcp_user_timeout", "0"),
    ] {
        assert_eq!(shown.get(name).map(String::as_str), Some(default), "{name}");
    }
}

#[test]
fn names_are_unique_within_their_table() {
    let mut seen = BTreeSet::new();
    for setting in registry::all() {
        let other = setting.pgbouncer.filter(|name| *name != setting.name);
        for name in std::iter::once(setting.name).chain(other) {
            assert!(seen.insert((setting.table, name)), "{name} of {}", setting.table);
        }
    }
}

fn repository_file(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// What is under each `### name`, by table, as one line of words.
fn reference_page() -> BTreeMap<(String, String), String> {
    let text = repository_file("docs/configuration.md");
    let (mut table, mut name) = (String::new(), String::new());
    let mut found = BTreeMap::new();
    for line in text.lines() {
        if let Some(heading) = line.strip_prefix("## ") {
            (table, name) = (heading.trim_matches('`').to_owned(), String::new());
        } else if let Some(heading) = line.strip_prefix("### ") {
            heading.clone_into(&mut name);
            let new = found.insert((table.clone(), name.clone()), String::new()).is_none();
            assert!(new, "### {heading} is twice under {table}");
        } else if !name.is_empty() {
            let words = found.get_mut(&(table.clone(), name.clone())).unwrap();
            line.split_whitespace().for_each(|word| *words += &format!("{word} "));
        }
    }
    found
}

/// The manual page is made of the declarations: both say the same.
#[test]
fn the_reference_page_has_each_setting_in_the_words_of_its_declaration() {
    let mut page = reference_page();
    for setting in registry::all() {
        let key = (setting.table.to_string(), setting.name.to_owned());
        let words: Vec<_> = setting.doc.split_whitespace().collect();
        let wanted = format!("{} {} ", words.join(" "), setting.reference());
        assert_eq!(page.remove(&key), Some(wanted), "### {} under {}", setting.name, setting.table);
    }
    assert!(page.is_empty(), "headings without a setting: {:?}", page.keys());
}

/// README and the pages of docs, those of folders apart.
fn pages() -> impl Iterator<Item = String> {
    let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs");
    let files =
        std::fs::read_dir(docs).unwrap().map(|entry| PathBuf::from(entry.unwrap().file_name()));
    let pages = files.filter(|file| file.extension().is_some_and(|extension| extension == "md"));
    let pages = pages.map(|file| format!("docs/{}", file.display()));
    std::iter::once("README.md".to_owned()).chain(pages)
}

#[test]
fn the_examples_of_all_pages_are_accepted() {
    let key = ["ed25519:", "A".repeat(43).as_str(), "="].concat();
    let mut examples = 0;
    // The laboratory's descriptions are no configurations.
    for page in pages().filter(|page| page != "docs/laboratory.md") {
        let text = repository_file(&page);
        for block in text.split("```toml\n").skip(1) {
            let mut example = block.split("```").next().unwrap().replace("ed25519:9Iq...", &key);
            if example.starts_with("server_tls_") {
                example.insert_str(0, "[tls]\n");
            }
            if !example.contains("[[database]]") {
                example += "[[database]]\nname = \"a\"\nservers = \"h:1\"\n";
            }
            example += "[[user]]\nname = \"of the test\"\npassword = \"p\"\n";
            config(&example).unwrap_or_else(|errors| panic!("{page}: {errors}\nin:\n{example}"));
            examples += 1;
        }
    }
    assert!(examples > 20, "{examples}");
}

#[test]
fn the_packaged_file_is_accepted_as_it_is_and_with_every_comment_taken_away() {
    let text = repository_file("packaging/hawser.toml");
    config(&text).unwrap();
    let setting = |line: &str| {
        let name = line.strip_prefix('#').and_then(|line| line.split_once(" = ")).map(|(n, _)| n);
        name.is_some_and(|name| name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'))
    };
    let mut uncommented = 0;
    let whole: String = text
        .lines()
        .map(|line| {
            let is_setting = setting(line) || line.starts_with("#[");
            uncommented += usize::from(is_setting);
            format!("{}\n", if is_setting { &line[1..] } else { line })
        })
        .collect();
    assert!(uncommented > 50, "{uncommented}");
    config(&whole).unwrap_or_else(|errors| panic!("{errors}"));
}

#[test]
fn the_control_socket_is_looked_for_where_services_and_users_have_theirs() {
    let base = config(BASE).unwrap();
    let run = |name: &str| (name == "XDG_RUNTIME_DIR").then(|| PathBuf::from("/run/user/7"));
    let admin = &base.start.admin;
    assert_eq!(admin.control_socket_path(run), Some(PathBuf::from("/run/user/7/hawser.sock")));
    assert_eq!(admin.control_socket_path(|_| None), None);
}
