//! What each end is given.
//!
//! # Model
//! ```text
//!   service   /etc/hawser/link-NAME.key, .peers, .conf (the arguments of `hawser link`), and the unit
//!   section   /etc/hawser/link-NAME.key, .peers, and [link.NAME] at the end of a hawser.toml
//! ```
//! The far end's half travels as one file, [`FarHalf`].

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use hawser_congestion::cc::look::Look;
use hawser_congestion::cc::report;
use hawser_link::drive::keys::{Key, PublicKey};
use serde::{Deserialize, Serialize};

use super::written::{File, below};

/// What carries the unit of packages, and of whoever builds one.
const UNIT: &str = include_str!("../../../../packaging/hawser-link@.service");
const UNIT_PROGRAM: &str = "/usr/bin/hawser";
const UNIT_NAME: &str = "hawser-link@.service";
/// Where systemd looks for units; the first is the administrator's.
const UNIT_DIRECTORIES: [&str; 4] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];
const DIRECTORY: &str = "/etc/hawser";

/// What the file for the far end says.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FarHalf {
    /// The link's name.
    pub name: String,
    /// Where the near end connects.
    pub port: u16,
    /// What it may reach.
    pub target: String,
    /// The near end's public key.
    pub peer: String,
    /// The line.
    pub bits_per_second: u64,
    /// See `bits_per_second`.
    pub rtt_us: u64,
    /// The far end's key.
    pub key: String,
}

impl FarHalf {
    /// Its file.
    #[must_use]
    pub fn to_text(&self) -> String {
        let head = "# The far end's half of a link: `hawser wan accept FILE` there, as root. It has that end's \
                    secret key: remove it then.\n";
        format!("{head}{}", toml::to_string(self).unwrap_or_default())
    }

    /// Reads its file.
    ///
    /// # Errors
    /// It cannot be read, others may read it, or it is another file.
    pub fn load(path: &Path) -> Result<Self, String> {
        let shown = path.display();
        let failed = |error: std::io::Error| format!("\"{shown}\": {error}");
        let mode = fs::metadata(path).map_err(failed)?.permissions().mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(format!(
                "\"{shown}\" has mode {mode:o}, and a secret key: others may have read it. Run `hawser wan \
                 setup` again under another --name, and copy its file by scp, which keeps mode 600"
            ));
        }
        let text = fs::read_to_string(path).map_err(failed)?;
        let other = |error: String| {
            format!("\"{shown}\" is no file of `hawser wan setup`, or was changed: {error}")
        };
        let half: Self =
            toml::from_str(&text).map_err(|error| other(error.message().to_owned()))?;
        check_name(&half.name).map_err(other)?;
        check_host(&half.target).map_err(other)?;
        Ok(half)
    }
}

/// A name is part of files' names, of a unit's and of a table's in TOML.
///
/// # Errors
/// What is allowed.
pub fn check_name(name: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_';
    match !name.is_empty() && name.len() <= 32 && name.chars().all(allowed) {
        true => Ok(()),
        false => Err(format!("\"{name}\" is no name: 1 to 32 of a to z, 0 to 9, - and _")),
    }
}

/// Hosts and targets become arguments, and strings in TOML.
///
/// # Errors
/// It has other characters than those of names, addresses and ports.
pub fn check_host(text: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || ".-_:[]%".contains(c);
    match text.chars().all(allowed) {
        true => crate::link::command::target(text).map(drop),
        false => Err(format!("\"{text}\" is no host and port")),
    }
}

/// What one end does.
#[derive(Clone, Debug)]
pub enum Role {
    /// Programs connect at `listen`, and reach `target`.
    Near {
        /// Where the far end listens, with a port.
        far: String,
        /// Where programs connect.
        listen: SocketAddr,
        /// Where the far end connects them.
        target: String,
    },
    /// Near ends connect at `listen`, and may reach `target`.
    Far {
        /// Where near ends connect.
        listen: SocketAddr,
        /// What they may reach.
        target: String,
    },
}

/// What runs an end.
#[derive(Clone, Debug)]
pub enum Host {
    /// `hawser link`, as a service.
    Service,
    /// `hawser serve`, by this configuration.
    Serve(PathBuf),
}

/// One end.
#[derive(Clone, Debug)]
pub struct Half {
    /// The link's name.
    pub name: String,
    /// What it does.
    pub role: Role,
    /// Its own key, as its file has it.
    pub key: String,
    /// The other end's key.
    pub peer: PublicKey,
    /// Of what it sends.
    pub congestion: &'static str,
}

impl Half {
    fn path(&self, what: &str) -> String {
        format!("{DIRECTORY}/link-{}.{what}", self.name)
    }

    /// The arguments of `hawser link`. Keys are in files: arguments are shown to all users.
    #[must_use]
    pub fn arguments(&self) -> String {
        let role = match &self.role {
            Role::Near { far, listen, target } => {
                format!("dial --far {far} --listen {listen} --to {target}")
            }
            Role::Far { listen, target } => format!("accept --listen {listen} --allow {target}"),
        };
        let (key, peers) = (self.path("key"), self.path("peers"));
        format!("{role} --key {key} --peers {peers} --congestion {}", self.congestion)
    }

    /// The section of hawser.toml.
    #[must_use]
    pub fn section(&self) -> String {
        let role = match &self.role {
            Role::Near { far, target, .. } => {
                format!(
                    "far = [\"{far}\"] # a server's name in `servers`: link://{}/{target}",
                    self.name
                )
            }
            Role::Far { listen, target } => {
                format!("listen = [\"{listen}\"]\nallow = [\"{target}\"]")
            }
        };
        let Self { name, congestion, .. } = self;
        let (key, peers) = (self.path("key"), self.path("peers"));
        format!(
            "\n[link.{name}]\n{role}\nkey = \"{key}\"\npeers_file = \"{peers}\"\ncongestion = \
             \"{congestion}\"\nsocket = \"/run/hawser/link-{name}.socket\"\n"
        )
    }

    /// Its files, those that are only added to last.
    ///
    /// # Errors
    /// The configuration cannot be read, or has such a link.
    pub fn files(&self, root: &Path, host: &Host, program: &Path) -> Result<Vec<File>, String> {
        let at = |what: &str| below(root, &self.path(what));
        let mut files = vec![
            File::secret(at("key"), self.key.clone()),
            File::new(at("peers"), format!("{}\n", self.peer)),
        ];
        match host {
            Host::Service => {
                let arguments = format!("ARGUMENTS={}\n", self.arguments());
                files.push(File::new(at("conf"), arguments));
                let there = |directory: &&str| below(root, directory).join(UNIT_NAME).exists();
                if !UNIT_DIRECTORIES.iter().any(there) {
                    let text = UNIT.replace(UNIT_PROGRAM, &program.display().to_string());
                    let path = below(root, UNIT_DIRECTORIES[0]).join(UNIT_NAME);
                    files.push(File::new(path, text));
                }
            }
            Host::Serve(config) => {
                let shown = config.display();
                let text = fs::read_to_string(config).map_err(|e| format!("\"{shown}\": {e}"))?;
                let table: toml::Table =
                    text.parse().map_err(|error| format!("\"{shown}\" is not read: {error}"))?;
                if table.get("link").and_then(|links| links.get(&self.name)).is_some() {
                    let name = &self.name;
                    return Err(format!(
                        "\"{shown}\" has a [link.{name}] already, and nothing was written: give another \
                         name by --name"
                    ));
                }
                let mut before = config.clone().into_os_string();
                before.push(format!(".before-link-{}", self.name));
                files.push(File::secret(before, text));
                files.push(File { adds: true, ..File::new(config, self.section()) });
            }
        }
        Ok(files)
    }
}

/// The congestion control of what an end sends: bbr where its process may have it. A service is root's, and so
/// may load the module, too.
#[must_use]
pub fn congestion(look: &Look, host: &Host) -> &'static str {
    let Some(found) = &look.algorithms else { return "auto" };
    let lists = match host {
        Host::Service => vec![&found.available, &found.loadable],
        Host::Serve(_) => vec![&found.allowed],
    };
    if lists.into_iter().flatten().any(|name| name == "bbr") { "bbr" } else { "auto" }
}

/// The largest buffer that a connection needs over a line, unless both are as large already.
#[must_use]
pub fn buffer_bytes(look: &Look, path: report::Path) -> Option<u64> {
    let needed = report::Report::new(look, path).buffer_bytes_needed();
    let found = [look.settings.receive?.max, look.settings.send?.max];
    let largest = found.into_iter().chain([needed]).max()?;
    found.iter().any(|max| *max < needed).then_some(largest)
}

/// A new key: as its file has it, and its public half.
///
/// # Errors
/// The kernel gives no random bytes.
pub fn new_key() -> Result<(String, PublicKey), String> {
    let text = Key::new_pem().map_err(|error| format!("no key was made: {error}"))?;
    let public = Key::of_pem(text.as_bytes())?.public();
    Ok((text, public))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hawser_congestion::cc::look::look;

    fn half(role: Role) -> Half {
        let (key, peer) = new_key().unwrap();
        Half { name: "wan".to_owned(), role, key, peer, congestion: "bbr" }
    }

    fn near() -> Half {
        let (far, target) = ("db:6433".to_owned(), "127.0.0.1:5432".to_owned());
        half(Role::Near { far, listen: ([127, 0, 0, 1], 5433).into(), target })
    }

    fn directory() -> PathBuf {
        let name = format!("hawser-wan-{:x}", hawser_sys::random::random_u64());
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        path
    }

    #[test]
    fn no_key_is_among_the_arguments_and_only_the_owner_reads_the_secret_one() {
        let root = directory();
        let half = near();
        let files = half.files(&root, &Host::Service, Path::new("/opt/hawser")).unwrap();
        super::super::written::write_all(&files, None).unwrap();
        let conf = fs::read_to_string(root.join("etc/hawser/link-wan.conf")).unwrap();
        assert!(conf.starts_with("ARGUMENTS=dial --far db:6433 --listen 127.0.0.1:5433"), "{conf}");
        assert!(!conf.contains("ed25519"), "{conf}");
        let unit = root.join("etc/systemd/system/hawser-link@.service");
        assert!(
            fs::read_to_string(unit).unwrap().contains("\nExecStart=/opt/hawser link $ARGUMENTS")
        );
        assert!(Key::load(&root.join("etc/hawser/link-wan.key")).is_ok(), "mode 600");
        // The unit is there now, and the rest is not replaced.
        let again = half.files(&root, &Host::Service, Path::new("/opt/hawser")).unwrap();
        assert_eq!(again.len(), 3);
        let refused = super::super::written::refuse_existing(&again).unwrap_err();
        assert!(refused.contains("link-wan.key") && refused.contains("--name"), "{refused}");
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn a_section_is_added_to_a_configuration_that_stays_beside_it() {
        let root = directory();
        let config = root.join("hawser.toml");
        fs::write(root.join("hba"), "local all all trust\n").unwrap();
        let far = Role::Far { listen: ([0; 4], 7).into(), target: "db:5432".into() };
        for (role, server) in [(near().role, "link://wan/127.0.0.1:5432"), (far, "db:5432")] {
            let before = format!(
                "[[database]]\nname = \"app\"\nservers = [\"{server}\"]\n[auth]\nhba_file = \"hba\"\n"
            );
            fs::write(&config, &before).unwrap();
            let files =
                half(role).files(&root, &Host::Serve(config.clone()), Path::new("/h")).unwrap();
            super::super::written::write_all(&files, None).unwrap();
            let loaded = crate::config::Config::load(&config);
            assert!(loaded.is_ok(), "{}", loaded.unwrap_err());
            let kept = root.join("hawser.toml.before-link-wan");
            assert_eq!(fs::read_to_string(&kept).unwrap(), before);
            let again = near().files(&root, &Host::Serve(config.clone()), Path::new("/h"));
            assert!(again.unwrap_err().contains("[link.wan] already"));
            super::super::written::take_back(&files);
            assert_eq!(fs::read_to_string(&config).unwrap(), before);
            assert!(!kept.exists() && !root.join("etc/hawser/link-wan.key").exists());
        }
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn the_far_ends_file_is_read_as_it_was_written_and_by_its_owner_alone() {
        let root = directory();
        let path = root.join("link-wan.far");
        let (key, peer) = new_key().unwrap();
        let half = FarHalf {
            name: "wan".to_owned(),
            port: 6433,
            target: "127.0.0.1:5432".to_owned(),
            peer: peer.to_string(),
            bits_per_second: 95_000_000,
            rtt_us: 217_000,
            key,
        };
        fs::write(&path, half.to_text()).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(FarHalf::load(&path).unwrap_err().contains("mode 644"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(FarHalf::load(&path), Ok(half.clone()));
        for wrong in [
            FarHalf { name: "../x".to_owned(), ..half.clone() },
            FarHalf { target: "db --allow x:1".to_owned(), ..half },
        ] {
            fs::write(&path, wrong.to_text()).unwrap();
            assert!(FarHalf::load(&path).unwrap_err().contains("link-wan.far"));
        }
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn buffers_are_raised_for_both_directions_and_never_lowered() {
        use hawser_sys::congestion::Buffer;
        let path = report::Path { bits_per_second: 95_000_000, rtt_us: 217_000 };
        let of = |receive, send| {
            let mut look = look();
            let buffer = |max| Some(Buffer { min: 4096, initial: 16_384, max });
            (look.settings.receive, look.settings.send) = (buffer(receive), buffer(send));
            buffer_bytes(&look, path)
        };
        assert_eq!(of(6 << 20, 4 << 20), Some(10_307_500));
        assert_eq!(of(64 << 20, 4 << 20), Some(64 << 20));
        assert_eq!(of(16 << 20, 16 << 20), None);
    }
}
