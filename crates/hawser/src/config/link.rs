//! `[link.NAME]`: one end of a link that the pooler runs.
//!
//! # Invariants
//! * an end dials or accepts, never both: it has `far`, or `listen` and `allow`
//! * a link needs a key of the other end: without one, no peer could be let in

use std::time::Duration;

use hawser_link::drive::keys::PublicKey;
use hawser_link::drive::resolving::{split, with_port};
pub use hawser_link::drive::worker::Options as LinkConfig;
use hawser_link::drive::worker::{Far, Near, Options, Role};
use hawser_link::proto::compression::Compression;
use hawser_link::proto::session::{PATHS_MAX, Paths};

use super::choice::LinkCompression;
use super::error::Rejected;
use super::registry::LinkEntry;
use super::setting::Setting;
use super::value::{Context, Raw, SettingType};

/// The port of far ends, unless another is given.
pub const LINK_PORT_DEFAULT: u16 = 6433;

/// `paths`: how many TCP connections a near end has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LinkPaths(pub Paths);

impl SettingType for LinkPaths {
    const KIND: &'static str = "1 to 64, or \"auto\"";

    fn parse(raw: &Raw<'_>, _: Context<'_>) -> Result<Self, Rejected> {
        let number = match raw {
            Raw::String("auto") | Raw::Text("auto") => return Ok(Self(Paths::Auto)),
            Raw::Integer(number, _) => usize::try_from(*number).ok(),
            Raw::String(text) | Raw::Text(text) => text.parse().ok(),
            _ => None,
        };
        let number = number.filter(|number| (1..=PATHS_MAX).contains(number));
        number.map(|number| Self(Paths::Fixed(number))).ok_or_else(|| raw.instead_of::<Self>())
    }

    fn show(&self, _: &Setting) -> String {
        match self.0 {
            Paths::Auto => "auto".to_owned(),
            Paths::Fixed(number) => number.to_string(),
        }
    }
}

impl From<LinkCompression> for Compression {
    fn from(choice: LinkCompression) -> Self {
        match choice {
            LinkCompression::None => Self::None,
            LinkCompression::Auto => Self::Auto,
        }
    }
}

/// A setting that is wrong, and why.
pub(super) type Wrong = (&'static str, String);

/// The link that `entry` describes.
///
/// # Errors
/// The first setting that is wrong.
pub(super) fn link_of(name: &str, entry: &LinkEntry) -> Result<Options, Wrong> {
    let key = entry.key.clone().ok_or(("key", "key: it is required".to_owned()))?;
    let peers = each("peers", &entry.peers, PublicKey::parse)?;
    if peers.is_empty() && entry.peers_file.is_none() {
        let message = "peers: without a key of the other end, no peer could connect";
        return Err(("peers", message.to_owned()));
    }
    let grace = entry.grace;
    if !(Duration::from_secs(1)..=Duration::from_secs(3600)).contains(&grace) {
        return Err(("grace", "grace: 1s to 1h is allowed".to_owned()));
    }
    let role = match (entry.far.is_empty(), entry.listen.is_empty()) {
        (false, true) => near(entry)?,
        (true, false) => far(entry)?,
        _ => {
            let message = "an end that dials has `far`, one that accepts has `listen`: give one";
            return Err(("far", format!("far: {message}")));
        }
    };
    Ok(Options {
        name: name.to_owned(),
        key,
        peers,
        peers_file: entry.peers_file.clone(),
        grace,
        congestion: entry.congestion,
        compression: entry.compression.into(),
        socket: entry.socket.clone(),
        role,
    })
}

fn near(entry: &LinkEntry) -> Result<Role, Wrong> {
    if !entry.allow.is_empty() {
        return Err(("allow", "allow: only an end that accepts has targets".to_owned()));
    }
    let host = |text: &str| {
        let far = with_port(text, LINK_PORT_DEFAULT);
        far.ok_or_else(|| format!("`{text}` is not a host, or host:port"))
    };
    let far = each("far", &entry.far, host)?;
    let from = each("from", &entry.from, |text| {
        text.parse().map_err(|_| format!("`{text}` is not an address"))
    })?;
    Ok(Role::Near(Near { to: far, from, paths: entry.paths.0, forwards: Vec::new() }))
}

fn far(entry: &LinkEntry) -> Result<Role, Wrong> {
    let listen = each("listen", &entry.listen, |text| {
        text.parse().map_err(|_| format!("`{text}` is not address:port, as in 0.0.0.0:6433"))
    })?;
    let allow = each("allow", &entry.allow, |text| match split(text) {
        Some(_) => Ok(text.to_ascii_lowercase()),
        None => Err(format!("`{text}` is not host:port")),
    })?;
    if allow.is_empty() {
        return Err(("allow", "allow: without a target nothing could be reached".to_owned()));
    }
    Ok(Role::Far(Far { listen, allow }))
}

fn each<T>(
    name: &'static str,
    texts: &[String],
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<Vec<T>, Wrong> {
    let read = |text: &String| read(text).map_err(|error| (name, format!("{name}: {error}")));
    texts.iter().map(read).collect()
}
