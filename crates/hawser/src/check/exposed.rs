//! Files with secrets that more users than ours may read or change, and a process that may do all.
//!
//! # Model  As PostgreSQL has it for keys: others nothing, the group at most to read. A path that cannot be
//!          looked at is an error elsewhere.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::config::Config;

/// Permissions that are never needed: all for others, and write and execute for the group.
const TOO_MANY: u32 = 0o037;

/// PgBouncer does not start so.
const AS_ROOT: &str =
    "it runs as root, and needs no root rights after the start: set `user` in [process]";

/// What is wrong with whose permissions, a line each.
pub(crate) fn files(config: &Config) -> Vec<String> {
    let with_password = config.users().iter().any(|user| user.password.is_some())
        || config
            .databases()
            .iter()
            .any(|db| db.forced_user.as_ref().is_some_and(|user| user.password.is_some()));
    let named = [
        (config.reload.auth.users_file.as_deref(), "passwords or verifiers"),
        (config.reload.client_tls.client_tls_key_file.as_deref(), "a private key"),
        (config.start.etcd.etcd_key_file.as_deref(), "a private key"),
        (config.start.etcd.etcd_password_file.as_deref(), "a password"),
    ];
    let hba_file = config.reload.auth.hba_file.as_deref();
    let with_secret =
        |path: &&Path| fs::read_to_string(path).is_ok_and(|text| text.contains("ldapbindpasswd="));
    let named = named.into_iter().chain([(hba_file.filter(with_secret), "a password")]);
    let of_databases = config.databases().iter().flat_map(|database| {
        [
            (database.inherited.tls.server_tls_key_file.as_deref(), "a private key"),
            (database.hand_over_secret_file.as_deref(), "a secret"),
            (database.password_file.as_deref(), "a password"),
        ]
    });
    let own = config.files().filter(|_| with_password).map(|path| (Some(path), "passwords"));
    let all = own.chain(named).chain(of_databases);
    let secret: BTreeMap<&Path, &str> =
        all.filter_map(|(path, what)| Some((path?, what))).collect();
    secret.into_iter().filter_map(|(path, what)| describe(path, what)).collect()
}

/// What is wrong with the user of a process that serves.
pub(crate) fn user(config: &Config) -> Option<&'static str> {
    let root = hawser_sys::process::is_superuser() && config.start.process.user.is_none();
    root.then_some(AS_ROOT)
}

fn describe(path: &Path, what: &str) -> Option<String> {
    let mode = fs::metadata(path).ok()?.permissions().mode() & 0o777;
    let shown = path.display();
    (mode & TOO_MANY != 0).then(|| {
        let who = if mode & 0o007 != 0 { "all users of this host" } else { "its group" };
        format!(
            "{shown} holds {what} and has mode {mode:04o}: {who} may read or change it; \
             set 0600 or 0640"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A pgbouncer.ini was looked for in the working directory, what it includes nowhere.
    #[test]
    fn a_pgbouncer_ini_and_what_it_includes_are_looked_at_where_they_are() {
        let path =
            |end| std::env::temp_dir().join(format!("hawser-ini-{}-{end}", std::process::id()));
        let (ini, databases) = (path("a"), path("b"));
        fs::write(&databases, "[databases]\na = host=h user=u password=p\n").unwrap();
        let text = format!("%include {}\n[pgbouncer]\nauth_file = u\n", databases.display());
        fs::write(&ini, text).unwrap();
        for (path, mode) in [(&ini, 0o644), (&databases, 0o660)] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
        let config = Config::load_pgbouncer(&ini, &crate::config::Overrides::default()).unwrap();
        let said = files(&config).join("\n");
        for (path, who) in [(&ini, "0644: all users"), (&databases, "0660: its group")] {
            assert!(said.contains(&format!("{} holds passwords", path.display())), "{said}");
            assert!(said.contains(who), "{said}");
            fs::remove_file(path).unwrap();
        }
    }

    #[test]
    fn permissions_beyond_the_groups_reading_are_named() {
        let path = std::env::temp_dir().join(format!("hawser-exposed-{}", std::process::id()));
        fs::write(&path, "").unwrap();
        for (mode, named) in [
            (0o600, None),
            (0o640, None),
            (0o400, None),
            (0o644, Some("all users")),
            (0o604, Some("all users")),
            (0o602, Some("all users")),
            (0o660, Some("its group")),
        ] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
            let said = describe(&path, "a private key");
            assert_eq!(said.is_some(), named.is_some(), "{mode:o}: {said:?}");
            if let (Some(said), Some(named)) = (said, named) {
                assert!(said.contains(named) && said.contains(&format!("{mode:04o}")), "{said}");
            }
        }
        fs::remove_file(&path).unwrap();
        assert_eq!(describe(&path, "a private key"), None);
    }
}
