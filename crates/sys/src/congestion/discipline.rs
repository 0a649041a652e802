//! Queueing disciplines of this machine's interfaces: rtnetlink(7), RTM_GETLINK.
//!
//! BBR paces. Before Linux 4.13 only the discipline `fq` does that for it.

use crate::netlink::attribute::{Attributes, u32_at};
use crate::netlink::{DUMP, Netlink, NetlinkError, Protocol, Question};

/// `struct ifinfomsg`.
const FIXED_BYTES: usize = 16;
/// `ifi_index` in it.
const AT_INDEX: usize = 4;

/// An interface with the discipline at its root.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Discipline {
    /// The interface's number, as `ip link` shows it.
    pub number: u32,
    /// Its name.
    pub interface: String,
    /// `fq`, `fq_codel`, `mq`, `noqueue` and so on. Under `mq` each queue has one of its own, which
    /// is net.core.default_qdisc unless it was changed.
    pub discipline: String,
}

/// Those of all interfaces of the calling thread's network namespace.
///
/// # Errors
/// See [`NetlinkError`].
pub fn disciplines() -> Result<Vec<Discipline>, NetlinkError> {
    let mut netlink = Netlink::open(Protocol::Route)?;
    let answers = netlink.ask(&Question::new(libc::RTM_GETLINK, DUMP, &[0; FIXED_BYTES]))?;
    Ok(answers.iter().filter_map(|answer| discipline(&answer.payload)).collect())
}

fn discipline(payload: &[u8]) -> Option<Discipline> {
    let (mut interface, mut discipline) = (None, None);
    for attribute in Attributes::new(payload.get(FIXED_BYTES..)?) {
        match attribute.kind {
            libc::IFLA_IFNAME => interface = attribute.text(),
            libc::IFLA_QDISC => discipline = attribute.text(),
            _ => {}
        }
    }
    let number = u32_at(payload, AT_INDEX)?;
    Some(Discipline { number, interface: interface?, discipline: discipline? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_has_one() {
        let all = disciplines().unwrap();
        let loopback = all.iter().find(|one| one.interface == "lo").unwrap();
        assert!(!loopback.discipline.is_empty() && loopback.number > 0);
    }

    #[test]
    fn an_answer_that_is_cut_off_is_none() {
        assert_eq!(discipline(&[0; FIXED_BYTES - 1]), None);
        assert_eq!(discipline(&[0; FIXED_BYTES]), None);
    }
}
