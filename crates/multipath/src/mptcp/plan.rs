//! What `setup` and `undo` will do: endpoints and limits, from what is asked for and what there is.
//!
//! # Model
//! ```text
//!   server   each address announced (`signal`); with --ports, further ports of each address: the
//!            client dials every one, and a link that limits flows gives each its share
//!   client   each address a `subflow` endpoint, bound to its interface; `fullmesh` where there are
//!            several, for then each is to reach each announced address
//!   limits   raised to what that needs, never lowered
//! ```
//!
//! # Invariants
//! * what another program has made is never changed or removed; if it is in the way, nothing is
//!   done at all
//! * done twice, it changes nothing
//! * `undo` takes away what is still as `setup` has made it, and nothing else

use std::net::IpAddr;

use hawser_sys::mptcp::endpoint::{ENDPOINTS_MAX, Endpoint, EndpointId, Flags, Limits};

use super::record::Record;

/// An address of this machine that can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The address.
    pub address: IpAddr,
    /// Its interface.
    pub interface: u32,
}

/// What is asked for; endpoints have no id yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wish {
    /// Endpoints.
    pub endpoints: Vec<Endpoint>,
    /// Limits, at least.
    pub limits: Limits,
}

/// What will be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Whether MPTCP must be turned on.
    pub enable: bool,
    /// Endpoints of an earlier `setup` that are not wanted any more.
    pub remove: Vec<Endpoint>,
    /// Endpoints that exist already, also of other programs.
    pub keep: Vec<Endpoint>,
    /// Endpoints to make.
    pub add: Vec<Endpoint>,
    /// Limits to set, if others are in force.
    pub limits: Option<Limits>,
}

/// Why nothing can be done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanError {
    /// There is no address to work with.
    #[error(
        "no address of this machine can be used: none is on an interface that is up and has \
             a default route; name some by --address"
    )]
    NoAddress,
    /// More endpoints than the kernel takes.
    #[error(
        "{wanted} endpoints would be needed, and the kernel takes {ENDPOINTS_MAX}{}: ask for fewer \
         --ports, or name the addresses by --address",
        match .others {
            0 => String::new(),
            others => format!(" ({others} of them are there already, made by somebody else)"),
        }
    )]
    TooMany {
        /// Those that there would be.
        wanted: usize,
        /// Those of others among them.
        others: usize,
    },
    /// Another program has an endpoint with this address and port, for another purpose.
    #[error(
        "endpoint {} ({endpoint}) is there already for another purpose, made by somebody else; it is \
         left as it is, and nothing was changed",
        .0.id.0,
        endpoint = .0
    )]
    Taken(Endpoint),
}

fn wanted(address: Address, port: u16, flags: Flags, bound: bool) -> Endpoint {
    Endpoint {
        id: EndpointId(0),
        address: address.address,
        port,
        flags,
        interface: if bound { address.interface } else { 0 },
    }
}

/// What a server needs: `ports` are further ports, announced on each address.
pub fn server(addresses: &[Address], ports: &[u16]) -> Wish {
    let mut endpoints = Vec::new();
    // A client already has the address that it dialled: one alone need not be announced.
    let same_family = |a: &Address| {
        addresses.iter().filter(|b| b.address.is_ipv4() == a.address.is_ipv4()).count()
    };
    for address in addresses {
        if ports.is_empty() || same_family(address) > 1 {
            endpoints.push(wanted(*address, 0, Flags::SIGNAL, false));
        }
        for port in ports {
            endpoints.push(wanted(*address, *port, Flags::SIGNAL, false));
        }
    }
    let subflows = u32::try_from(endpoints.len()).unwrap_or(u32::MAX);
    // A client with several addresses joins from each.
    let subflows = subflows.clamp(ENDPOINTS_MAX / 2, ENDPOINTS_MAX);
    Wish { endpoints, limits: Limits { add_addr_accepted: 0, subflows } }
}

/// What a client needs; `backup` are the addresses that are used only when no other is left.
/// `fullmesh`: whether the kernel knows it (5.15).
pub fn client(addresses: &[Address], backup: &[IpAddr], fullmesh: bool) -> Wish {
    let mesh = if fullmesh && addresses.len() > 1 { Flags::FULLMESH } else { Flags::default() };
    let endpoints = if addresses.len() > 1 || !backup.is_empty() {
        addresses
            .iter()
            .map(|address| {
                let last = backup.contains(&address.address);
                let backup = if last { Flags::BACKUP } else { Flags::default() };
                wanted(*address, 0, Flags::SUBFLOW.and(mesh).and(backup), true)
            })
            .collect()
    } else {
        // From a single address the announced ones are dialled without an endpoint.
        Vec::new()
    };
    let limits = Limits { add_addr_accepted: ENDPOINTS_MAX, subflows: ENDPOINTS_MAX };
    Wish { endpoints, limits }
}

fn same_place(a: &Endpoint, b: &Endpoint) -> bool {
    a.address == b.address && a.port == b.port
}

/// Whether `there` is still what was made; the kernel may have added flags of its own.
fn is_still(there: &Endpoint, made: &Endpoint) -> bool {
    there.id == made.id && same_place(there, made) && there.flags.has(made.flags)
}

/// What is to be done for `wish` where there are these `endpoints` and `limits`.
///
/// # Errors
/// See [`PlanError`].
pub fn plan(
    wish: &Wish,
    endpoints: &[Endpoint],
    limits: Limits,
    enabled: bool,
    record: Option<&Record>,
) -> Result<Plan, PlanError> {
    let made = record.map(Record::endpoints).unwrap_or_default();
    let is_ours = |there: &Endpoint| made.iter().any(|ours| is_still(there, ours));
    let serves = |there: &Endpoint, wanted: &Endpoint| {
        same_place(there, wanted)
            && there.flags == wanted.flags
            && (wanted.interface == 0 || there.interface == wanted.interface)
    };
    let mut plan = Plan {
        enable: !enabled,
        remove: Vec::new(),
        keep: Vec::new(),
        add: Vec::new(),
        limits: None,
    };
    for there in endpoints {
        let implicit = there.flags.has(Flags::IMPLICIT);
        if wish.endpoints.iter().any(|wanted| serves(there, wanted)) {
            plan.keep.push(there.clone());
        } else if is_ours(there) {
            plan.remove.push(there.clone());
        } else if !implicit && wish.endpoints.iter().any(|wanted| same_place(there, wanted)) {
            return Err(PlanError::Taken(there.clone()));
        }
    }
    let stays: Vec<&Endpoint> =
        endpoints.iter().filter(|there| !plan.remove.contains(there)).collect();
    let mut ids = (1..=u8::MAX).filter(|id| !endpoints.iter().any(|e| e.id.0 == *id));
    for wanted in &wish.endpoints {
        if !endpoints.iter().any(|there| serves(there, wanted)) {
            // At most 255 endpoints are ever wanted or there: the bound below is far smaller.
            let id = EndpointId(ids.next().unwrap_or(0));
            plan.add.push(Endpoint { id, ..wanted.clone() });
        }
    }
    let total = stays.len() + plan.add.len();
    if total > ENDPOINTS_MAX as usize {
        return Err(PlanError::TooMany {
            wanted: total,
            others: stays.iter().filter(|there| !is_ours(there)).count(),
        });
    }
    let raised = Limits {
        add_addr_accepted: limits.add_addr_accepted.max(wish.limits.add_addr_accepted),
        subflows: limits.subflows.max(wish.limits.subflows),
    };
    plan.limits = (raised != limits).then_some(raised);
    Ok(plan)
}

impl Plan {
    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        !self.enable && self.remove.is_empty() && self.add.is_empty() && self.limits.is_none()
    }

    /// Its steps, in words.
    pub fn lines(&self, limits: Limits) -> Vec<String> {
        let mut lines = Vec::new();
        if self.enable {
            lines.push("turn MPTCP on (sysctl net.mptcp.enabled = 1)".to_owned());
        }
        lines.extend(self.remove.iter().map(|e| format!("take away endpoint {} {e}", e.id.0)));
        lines.extend(
            self.keep.iter().map(|e| format!("keep endpoint {} {e}, which is there", e.id.0)),
        );
        lines.extend(self.add.iter().map(|e| format!("make endpoint {} {e}", e.id.0)));
        if let Some(new) = self.limits {
            lines.push(format!(
                "set limits: {} further subflows (now {}), {} announcements followed (now {})",
                new.subflows, limits.subflows, new.add_addr_accepted, limits.add_addr_accepted
            ));
        }
        if self.is_empty() {
            lines.push("nothing to do".to_owned());
        }
        lines
    }
}

/// What `undo` will do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Undo {
    /// Endpoints to take away.
    pub remove: Vec<Endpoint>,
    /// Endpoints that are no longer as they were made: another program's now.
    pub leave: Vec<Endpoint>,
    /// Limits to restore; `None` if another program has changed them since, or nothing did.
    pub limits: Option<Limits>,
    /// Whether limits are left because another program has changed them.
    pub limits_changed: bool,
    /// Whether MPTCP is to be turned off again.
    pub disable: bool,
}

/// How to undo what `record` says.
pub fn undo(record: &Record, endpoints: &[Endpoint], limits: Limits) -> Undo {
    let (mut remove, mut leave) = (Vec::new(), Vec::new());
    for made in record.endpoints() {
        if let Some(there) = endpoints.iter().find(|there| is_still(there, &made)) {
            remove.push(there.clone());
        } else if let Some(there) = endpoints.iter().find(|there| there.id == made.id) {
            leave.push(there.clone());
        }
    }
    let (before, set) = (record.limits_before(), record.limits_set());
    Undo {
        remove,
        leave,
        limits: (limits == set && before != set).then_some(before),
        limits_changed: limits != set,
        disable: record.enabled_mptcp,
    }
}

impl Undo {
    /// Its steps, in words.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        lines.extend(self.remove.iter().map(|e| format!("take away endpoint {} {e}", e.id.0)));
        lines.extend(
            self.leave
                .iter()
                .map(|e| format!("leave endpoint {} {e}: it is not what setup has made", e.id.0)),
        );
        if let Some(limits) = self.limits {
            lines.push(format!(
                "put limits back: {} further subflows, {} announcements followed",
                limits.subflows, limits.add_addr_accepted
            ));
        }
        if self.limits_changed {
            lines.push("leave the limits: somebody else has changed them since".to_owned());
        }
        if self.disable {
            lines.push("turn MPTCP off again (sysctl net.mptcp.enabled = 0)".to_owned());
        }
        if lines.is_empty() {
            lines.push("nothing to do".to_owned());
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Limits = Limits { add_addr_accepted: 0, subflows: 2 };

    fn address(text: &str, interface: u32) -> Address {
        Address { address: text.parse().unwrap(), interface }
    }

    fn applied(plan: &Plan, there: &[Endpoint]) -> Vec<Endpoint> {
        let mut all: Vec<Endpoint> =
            there.iter().filter(|e| !plan.remove.contains(e)).cloned().collect();
        all.extend(plan.add.iter().cloned());
        all
    }

    #[test]
    fn a_server_with_one_address_announces_its_ports_and_not_the_address() {
        let wish = server(&[address("10.0.0.1", 2)], &[6433, 6434]);
        let plan = plan(&wish, &[], NONE, true, None).unwrap();
        let places: Vec<String> = plan.add.iter().map(ToString::to_string).collect();
        assert_eq!(places, ["10.0.0.1:6433 signal", "10.0.0.1:6434 signal"]);
        assert_eq!(plan.limits, Some(Limits { add_addr_accepted: 0, subflows: 4 }));
        let both = server(&[address("10.0.0.1", 2), address("10.0.1.1", 3)], &[]);
        assert_eq!(both.endpoints.len(), 2);
    }

    #[test]
    fn a_client_with_one_address_needs_limits_alone() {
        let wish = client(&[address("10.0.0.2", 2)], &[], true);
        assert!(wish.endpoints.is_empty());
        assert_eq!(wish.limits.add_addr_accepted, 8);
        let metered = "10.9.0.2".parse().unwrap();
        let two = [address("10.0.0.2", 2), address("10.9.0.2", 3)];
        let wish = client(&two, &[metered], true);
        assert_eq!(wish.endpoints[0].flags.names(), ["subflow", "fullmesh"]);
        assert_eq!(wish.endpoints[1].flags.names(), ["subflow", "backup", "fullmesh"]);
        assert_eq!(wish.endpoints[1].interface, 3);
        assert_eq!(client(&two, &[], false).endpoints[0].flags, Flags::SUBFLOW);
    }

    #[test]
    fn done_twice_it_changes_nothing_and_undone_there_is_what_was_before() {
        let wish = server(&[address("10.0.0.1", 2)], &[6433, 6434]);
        let other = Endpoint {
            id: EndpointId(1),
            address: "10.7.0.1".parse().unwrap(),
            port: 0,
            flags: Flags::SUBFLOW,
            interface: 0,
        };
        let first = plan(&wish, std::slice::from_ref(&other), NONE, true, None).unwrap();
        assert!(first.add.iter().all(|endpoint| endpoint.id != other.id));
        let record = Record::new(&first, NONE, None);
        let there = applied(&first, std::slice::from_ref(&other));
        let set = first.limits.unwrap();
        assert!(plan(&wish, &there, set, true, Some(&record)).unwrap().is_empty());
        let undo = undo(&record, &there, set);
        assert_eq!(undo.remove.len(), 2);
        assert!(!undo.remove.contains(&other));
        assert_eq!(undo.limits, Some(NONE));
    }

    #[test]
    fn what_another_has_made_is_left_alone() {
        let wish = server(&[address("10.0.0.1", 2)], &[6433]);
        let mut theirs = wish.endpoints[0].clone();
        theirs.id = EndpointId(5);
        let same = plan(&wish, &[theirs.clone()], NONE, true, None).unwrap();
        assert!(same.add.is_empty());
        let record = Record::new(&same, NONE, None);
        assert!(undo(&record, &[theirs.clone()], NONE).remove.is_empty());
        theirs.flags = Flags::SUBFLOW;
        let error = plan(&wish, &[theirs.clone()], NONE, true, None).unwrap_err();
        assert_eq!(error, PlanError::Taken(theirs));
    }

    #[test]
    fn what_has_changed_since_is_not_undone() {
        let wish = server(&[address("10.0.0.1", 2)], &[6433]);
        let first = plan(&wish, &[], NONE, true, None).unwrap();
        let record = Record::new(&first, NONE, None);
        let mut there = first.add.clone();
        there[0].address = "10.0.0.9".parse().unwrap();
        let limits = Limits { add_addr_accepted: 7, subflows: 7 };
        let undo = undo(&record, &there, limits);
        assert!(undo.remove.is_empty() && undo.limits.is_none() && undo.limits_changed);
        assert_eq!(undo.leave.len(), 1);
    }

    #[test]
    fn another_setup_replaces_the_one_before() {
        let first = server(&[address("10.0.0.1", 2)], &[6433, 6434]);
        let first = plan(&first, &[], NONE, true, None).unwrap();
        let record = Record::new(&first, NONE, None);
        let second = server(&[address("10.0.0.1", 2)], &[6434, 6435]);
        let set = first.limits.unwrap();
        let second = plan(&second, &first.add, set, true, Some(&record)).unwrap();
        assert_eq!(second.remove[0].port, 6433);
        assert_eq!(second.keep[0].port, 6434);
        assert_eq!(second.add[0].port, 6435);
        let record = Record::new(&second, set, Some(&record));
        let there = applied(&second, &first.add);
        let undone = undo(&record, &there, set);
        assert_eq!(undone.remove.len(), 2);
        assert_eq!(undone.limits, Some(NONE));
    }

    #[test]
    fn more_than_the_kernel_takes_is_refused_before_anything_is_done() {
        let ports: Vec<u16> = (6433..6440).collect();
        let two = [address("10.0.0.1", 2), address("10.0.1.1", 3)];
        let error = plan(&server(&two, &ports), &[], NONE, true, None).unwrap_err();
        assert_eq!(error, PlanError::TooMany { wanted: 16, others: 0 });
    }
}
