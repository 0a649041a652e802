//! The user to become, and the places where files and sockets are made: what `serve` would not start
//! without.
//!
//! # Limits   nothing is made to find it out, so a file system that is full or read-only is not seen

use std::path::Path;

use hawser_sys::listen::abstract_name;

use super::Grade;
use crate::config::{Config, ListenAddress};
use crate::process;

/// The packaged unit's RuntimeDirectory: before its first start it is not there, or another unit's.
const OF_THE_UNIT: &str = "/run/hawser";

/// What is wrong, a line each.
pub(super) fn take(config: &Config) -> Vec<(Grade, String)> {
    let mut found = Vec::new();
    let start = &config.start;
    if let Err(error) = process::account_to_become(start.process.user.as_deref()) {
        found.push((Grade::Error, format!("user in [process]: {error}")));
    }
    let sockets = config.listen().iter().filter_map(|address| match address {
        ListenAddress::Unix(path) if abstract_name(path).is_some() => None,
        ListenAddress::Unix(path) => Some(("address", path.as_path())),
        ListenAddress::Tcp(_) => None,
    });
    let files =
        [("logfile", start.log.logfile.as_deref()), ("pidfile", start.process.pidfile.as_deref())];
    let files = files.into_iter().filter_map(|(name, path)| Some((name, path?)));
    let control = start.admin.control_socket.as_deref().map(|path| ("control_socket", path));
    let wrong = files.filter_map(|(name, path)| Some((name, file(path)?)));
    let wrong = wrong.map(|(name, why)| (Grade::Error, format!("{name}: {why}")));
    let sockets = sockets.chain(control).filter_map(|(name, path)| {
        let why = socket(path)?;
        Some(if path.parent() == Some(Path::new(OF_THE_UNIT)) {
            let text =
                "does not exist yet, or belongs to another user: hawser.service creates it at its start";
            (Grade::Warning, format!("{name}: {OF_THE_UNIT} {text}"))
        } else {
            (Grade::Error, format!("{name}: {why}"))
        })
    });
    found.extend(wrong.chain(sockets));
    found
}

/// Why this file cannot be written, if it cannot.
fn file(path: &Path) -> Option<String> {
    match path.metadata() {
        Ok(metadata) if metadata.is_dir() => Some(format!("{} is a directory", path.display())),
        Ok(_) => hawser_sys::process::may_write(path)
            .err()
            .map(|error| format!("{} cannot be written: {error}", path.display())),
        Err(_) => socket(path),
    }
}

/// Why nothing can be made with this name, if nothing can.
fn socket(path: &Path) -> Option<String> {
    let directory = match path.parent() {
        Some(directory) if directory.as_os_str().is_empty() => Path::new("."),
        Some(directory) => directory,
        None => path,
    };
    let (shown, of) = (directory.display(), path.display());
    if !directory.is_dir() {
        return Some(format!("there is no directory {shown} for {of}: create it"));
    }
    let error = hawser_sys::process::may_write(directory).err()?;
    Some(format!("{of} cannot be created in {shown}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_serve_would_refuse_is_an_error() {
        let text = "[[database]]\nname = \"a\"\nservers = \"h:1\"\n[[user]]\nname = \"u\"\npassword = \"p\"\n\
             [listen]\naddress = [\"127.0.0.1:6432\", \"/no/such/run\"]\n\
             [log]\nlogfile = \"/no/such/x.log\"\n\
             [process]\nuser = \"nosuchuser\"\npidfile = \"/tmp\"\n\
             [admin]\ncontrol_socket = \"/no/such/h.sock\"\n";
        let found = take(&Config::from_str(text, "/etc/x.toml").unwrap());
        let expected = [
            "user in [process]: there is no user \"nosuchuser\"",
            "logfile: there is no directory /no/such for /no/such/x.log",
            "pidfile: /tmp is a directory",
            "address: there is no directory /no/such/run",
            "control_socket: there is no directory /no/such",
        ];
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for ((grade, text), expected) in found.iter().zip(expected) {
            assert_eq!(*grade, Grade::Error);
            assert!(text.starts_with(expected), "{text}");
        }
        let right = text.replace("/no/such", "/tmp").replace("\"nosuchuser\"", "\"root\"");
        let right = right.replace("/tmp/run", "/tmp").replace("pidfile = \"/tmp\"", "");
        assert_eq!(take(&Config::from_str(&right, "/etc/x.toml").unwrap()), []);
    }

    #[test]
    fn the_directory_that_the_unit_makes_is_no_error() {
        let text = "[[database]]\nname = \"a\"\nservers = \"h:1\"\n[[user]]\nname = \"u\"\npassword = \"p\"\n\
             [listen]\naddress = [\"127.0.0.1:6432\", \"/run/hawser\"]\n";
        let found = take(&Config::from_str(text, "/etc/x.toml").unwrap());
        assert!(found.iter().all(|(grade, _)| *grade == Grade::Warning), "{found:?}");
    }
}
