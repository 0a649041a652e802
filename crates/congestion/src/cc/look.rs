//! Reads all that `hawser cc list` shows, once.

use hawser_sys::congestion::discipline::{Discipline, disciplines};
use hawser_sys::congestion::{Algorithms, Settings, algorithms, settings};
use hawser_sys::interfaces::with_default_route;
use hawser_sys::mptcp::kernel::{Version, release};

/// What was read.
#[derive(Clone, Debug, Default)]
pub struct Look {
    /// As `uname -r` has it.
    pub release: String,
    /// The same, as numbers.
    pub version: Option<Version>,
    /// `None` if /proc does not say.
    pub algorithms: Option<Algorithms>,
    /// Buffers and the like.
    pub settings: Settings,
    /// Those of interfaces with a default route; of all, if none has one.
    pub disciplines: Vec<Discipline>,
}

/// Reads it.
pub fn look() -> Look {
    let release = release();
    Look {
        version: Version::parse(&release),
        release,
        algorithms: algorithms().ok(),
        settings: settings(),
        disciplines: outward(),
    }
}

fn outward() -> Vec<Discipline> {
    // Where netlink is forbidden there is nothing to show.
    let all = disciplines().unwrap_or_default();
    let outward = with_default_route();
    let (outward, rest): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|one| outward.contains(&one.number));
    if outward.is_empty() { rest } else { outward }
}
