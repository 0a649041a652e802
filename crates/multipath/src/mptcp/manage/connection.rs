//! One connection under the path manager.
//!
//! # Model
//! Pairs are this machine's addresses that can be used times the peer's: the one it was dialled at
//! and those that it has announced. The end that accepted announces its further addresses once, and takes
//! back those that have gone. For that, the subflows between two addresses are one line, whatever
//! the ports: the other end's kernel chooses its own.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use hawser_sys::mptcp::Token;
use hawser_sys::mptcp::diagnosis::{Connection, Subflow, TcpState};
use hawser_sys::mptcp::subflow::{AddressId, Ends, Manager};
use hawser_time::Time;
use serde_json::json;

use super::announced::{Advertised, Announced, Change};
use crate::mptcp::apply;
use crate::mptcp::programs::Program;
use crate::paths::action::{Action, Flow, FlowId, Look, PairId, Role, State, Unacked};
use crate::paths::chooser::Chooser;

/// Addresses of this machine that are used for one connection.
const LOCALS_MAX: usize = 8;
/// Pairs of both.
const PAIRS_MAX: usize = 16;
/// Between two looks at this machine's addresses.
const ADDRESSES_APART: Duration = Duration::from_secs(2);

/// What a refusal of the kernel's is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The connection cannot be managed.
    Connection,
    /// This address or subflow.
    Address,
}

/// What came of a look.
#[derive(Debug, Default)]
pub struct Looked {
    /// Whether anything is sent.
    pub lively: bool,
    /// What is to be said.
    pub lines: Vec<String>,
}

/// Pairs of addresses that have ever been used, by number.
#[derive(Debug)]
struct Pairs {
    role: Role,
    numbers: BTreeMap<(IpAddr, SocketAddr), PairId>,
}

impl Pairs {
    /// The number of the pair of a subflow between these ends.
    fn number(&mut self, local: IpAddr, remote: SocketAddr) -> PairId {
        let port = match self.role {
            Role::Dials => remote.port(),
            Role::Accepts => 0,
        };
        let next = PairId(self.numbers.len() as u32);
        *self.numbers.entry((local, SocketAddr::new(remote.ip(), port))).or_insert(next)
    }
}

/// A connection, and its chooser.
#[derive(Debug)]
pub struct Managed {
    chooser: Chooser,
    role: Role,
    name: String,
    pairs: Pairs,
    locals: Vec<(IpAddr, u32)>,
    locals_at: Option<Time>,
    advertised: Advertised,
    bytes: u64,
    /// Whether the kernel manages it.
    of_kernel: bool,
}

impl Managed {
    /// One that is new.
    pub fn new(role: Role, connection: &Connection, program: Option<&Program>) -> Self {
        let socket = &connection.socket;
        let arrow = if role == Role::Dials { "->" } else { "<-" };
        let program = program.map_or_else(String::new, |p| format!("{}[{}] ", p.name, p.pid));
        Self {
            chooser: Chooser::new(role, socket.cookie ^ u64::from(connection.info.token.0) << 20),
            role,
            name: format!("{program}{} {arrow} {}", socket.local, socket.remote),
            pairs: Pairs { role, numbers: BTreeMap::new() },
            locals: Vec::new(),
            locals_at: None,
            advertised: Advertised::default(),
            bytes: 0,
            of_kernel: false,
        }
    }

    /// Looks at it, and does what is to be done.
    pub fn look(
        &mut self,
        manager: &mut Manager,
        now: Time,
        connection: &Connection,
        subflows: &[&Subflow],
        announced: &Announced,
    ) -> Looked {
        let token = connection.info.token;
        let own = connection.socket.local.ip();
        if self.refresh_locals(now, own) && self.role == Role::Accepts && !self.of_kernel {
            self.announce(manager, token, own);
        }
        let usable = self.usable_pairs(connection, announced);
        let flows: Vec<Flow> = subflows.iter().filter_map(|subflow| self.flow(subflow)).collect();
        let bytes = flows.iter().map(|flow| flow.bytes).sum();
        let lively = bytes != std::mem::replace(&mut self.bytes, bytes)
            || self.chooser.state() != State::Watching;
        let mut looked = Looked { lively, lines: Vec::new() };
        if self.of_kernel || connection.socket.state != TcpState::Established {
            return looked;
        }
        let pairs: Vec<PairId> = usable.keys().copied().collect();
        let info = &connection.info;
        let unacked = (info.unacked > 0).then(|| Unacked {
            from: info.unacked_from,
            bytes: info.unacked,
            resent: info.volume.map_or(0, |volume| volume.bytes_retransmitted),
        });
        looked.lively |= unacked.is_some();
        let look = Look { now, flows: &flows, pairs: &pairs, unacked };
        let ends: HashMap<FlowId, Ends> = subflows.iter().map(|s| (id(s), ends(s))).collect();
        let actions = self.chooser.look(&look);
        looked.lines.extend(self.endings(&actions));
        for action in actions {
            self.act(action, manager, now, token, &usable, &ends, &mut looked.lines);
        }
        for event in self.chooser.take_events() {
            looked.lines.push(format!("{}: {event}", self.name));
        }
        looked
    }

    #[expect(clippy::too_many_arguments, reason = "what one action may need")]
    fn act(
        &mut self,
        action: Action,
        manager: &mut Manager,
        now: Time,
        token: Token,
        usable: &BTreeMap<PairId, (IpAddr, u32, SocketAddr)>,
        ends: &HashMap<FlowId, Ends>,
        lines: &mut Vec<String>,
    ) {
        let done = match action {
            Action::Dial(pair) => {
                let Some((local, interface, remote)) = usable.get(&pair).copied() else { return };
                if self.of_kernel {
                    return;
                }
                let done = manager.create(token, address_id(local), local, interface, remote);
                if let Err(error) = &done {
                    self.chooser.refused(pair, now);
                    lines.push(format!(
                        "{}: no subflow from {local} to {remote}: {error}",
                        self.name
                    ));
                }
                done
            }
            Action::Pause(flow) | Action::Resume(flow) => {
                let Some(ends) = ends.get(&flow) else { return };
                manager.pause(token, *ends, matches!(action, Action::Pause(_)))
            }
            Action::Close(flow, _) => {
                let Some(ends) = ends.get(&flow) else { return };
                manager.destroy(token, *ends)
            }
        };
        // A subflow that has gone meanwhile is what was wanted, or is seen by the next look.
        if let Err(error) = &done
            && Refused::from(error) == Refused::Connection
        {
            self.of_kernel = true;
            lines.push(format!(
                "{}: it began under the kernel's own path manager, and is left to it",
                self.name
            ));
        }
    }

    /// What is ended, in a line for each reason.
    fn endings(&self, actions: &[Action]) -> Vec<String> {
        let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
        for action in actions {
            if let Action::Close(_, reason) = action {
                *counts.entry(reason.name()).or_default() += 1;
            }
        }
        let line = |(reason, count)| format!("{}: ends {count} subflows: {reason}", self.name);
        counts.into_iter().map(line).collect()
    }

    fn flow(&mut self, subflow: &Subflow) -> Option<Flow> {
        let open = match subflow.socket.state {
            TcpState::Established => true,
            TcpState::SynSent => false,
            _ => return None,
        };
        let info = &subflow.info;
        let rtt = info.rtt_min_us.filter(|rtt| *rtt > 0).unwrap_or(info.rtt_us);
        let (received, acked) = subflow.bytes();
        Some(Flow {
            id: id(subflow),
            pair: self.pairs.number(subflow.socket.local.ip(), subflow.socket.remote),
            open,
            bytes: received.saturating_add(acked),
            acked,
            unacked: info.unacked_segments > 0,
            timeouts: info.timeouts.max(info.backoff).into(),
            held: subflow.socket.unacked.into(),
            backup: subflow.flags.backup(),
            rtt: Duration::from_micros(rtt.into()),
        })
    }

    /// Where subflows may be dialled: the addresses in use first.
    fn usable_pairs(
        &mut self,
        connection: &Connection,
        announced: &Announced,
    ) -> BTreeMap<PairId, (IpAddr, u32, SocketAddr)> {
        if self.role == Role::Accepts {
            return BTreeMap::new();
        }
        let first = connection.socket.remote;
        let remotes = announced.remotes(first);
        let mut usable = BTreeMap::new();
        for (local, interface) in self.locals.clone() {
            for remote in &remotes {
                let families = [local.is_ipv4(), remote.is_ipv4()];
                // A socket of one family has subflows of that family.
                if families == [first.is_ipv4(); 2] && usable.len() < PAIRS_MAX {
                    let of = if local == connection.socket.local.ip() { 0 } else { interface };
                    usable.insert(self.pairs.number(local, *remote), (local, of, *remote));
                }
            }
        }
        usable
    }

    /// Reads this machine's addresses, if it is time to; whether it was.
    fn refresh_locals(&mut self, now: Time, own: IpAddr) -> bool {
        if self.locals_at.is_some_and(|at| now.since(at) < ADDRESSES_APART) {
            return false;
        }
        self.locals_at = Some(now);
        self.locals = vec![(own, 0)];
        if own.is_loopback() {
            return true;
        }
        for address in apply::usable_addresses() {
            let family = address.address.is_ipv4() == own.is_ipv4();
            if family && address.address != own && self.locals.len() < LOCALS_MAX {
                self.locals.push((address.address, address.interface));
            }
        }
        true
    }

    fn announce(&mut self, manager: &mut Manager, token: Token, own: IpAddr) {
        let further: Vec<IpAddr> =
            self.locals.iter().map(|(local, _)| *local).filter(|local| *local != own).collect();
        for change in self.advertised.update(&further, apply::addresses_here().as_ref()) {
            // A refusal: it was announced already, by a manager before this one, or the connection has ended.
            let _ = match change {
                Change::Announce(local) => manager.announce(token, address_id(local), local),
                // By its number: that of another address is that one's.
                Change::Withdraw(local)
                    if further.iter().any(|one| is_same_number(*one, local)) =>
                {
                    Ok(())
                }
                Change::Withdraw(local) => manager.withdraw(token, address_id(local)),
            };
        }
    }

    /// What the trace has of a look.
    pub fn traced(
        &self,
        now: Time,
        connection: &Connection,
        subflows: &[&Subflow],
    ) -> serde_json::Value {
        let flows: Vec<_> = subflows
            .iter()
            .map(|s| {
                json!({"cookie": s.socket.cookie, "local": s.socket.local, "remote": s.socket.remote,
                       "state": s.socket.state.name(), "backup": s.flags.backup(),
                       "received": s.bytes().0, "acked": s.bytes().1,
                       "unread": s.socket.unread, "unacked": s.info.unacked_segments, "unsent": s.info.unsent,
                       "backoff": s.info.backoff, "retransmitted": s.info.segments_again,
                       "rtt_us": s.info.rtt_us})
            })
            .collect();
        let info = &connection.info;
        let volume = info.volume.map(|v| {
            json!({"retransmits": v.retransmits, "retransmitted": v.bytes_retransmitted,
                   "sent": v.bytes_sent, "received": v.bytes_received, "acked": v.bytes_acked})
        });
        json!({"seconds": now.since(Time::ZERO).as_secs_f64(), "connection": self.name,
               "state": super::state_name(self.chooser.state()), "limits": self.chooser.limits(),
               "unread": connection.socket.unread, "unacked": info.unacked,
               "unacked_from": info.unacked_from, "volume": volume, "subflows": flows})
    }
}

fn id(subflow: &Subflow) -> FlowId {
    FlowId(subflow.socket.cookie)
}

fn ends(subflow: &Subflow) -> Ends {
    Ends { local: subflow.socket.local, remote: subflow.socket.remote }
}

/// The number of an address: the same in each run, because the kernel keeps it with the connection.
/// Two addresses of one machine may meet in one number, by a chance of 1 in 254: the second is
/// refused.
fn address_id(address: IpAddr) -> AddressId {
    let octets = match address {
        IpAddr::V4(v4) => v4.octets().to_vec(),
        IpAddr::V6(v6) => v6.octets().to_vec(),
    };
    let hash = octets
        .iter()
        .fold(17u32, |hash, octet| hash.wrapping_mul(31).wrapping_add(u32::from(*octet)));
    AddressId((hash % 254) as u8 + 1)
}

fn is_same_number(one: IpAddr, other: IpAddr) -> bool {
    address_id(one) == address_id(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each join from a port of its own was a line of its own to the end that accepted: one that lagged was
    /// taken for a cut line beside the others.
    #[test]
    fn to_the_end_that_accepted_the_joins_from_one_address_are_one_line() {
        let local = "10.77.0.1".parse().unwrap();
        let of = |role, remotes: [&str; 3]| {
            let mut pairs = Pairs { role, numbers: BTreeMap::new() };
            remotes.map(|remote| pairs.number(local, remote.parse().unwrap()).0)
        };
        let joins = ["10.77.0.2:40001", "10.77.0.2:40002", "10.77.1.2:40001"];
        assert_eq!(of(Role::Accepts, joins), [0, 0, 1]);
        // Ports that a peer has announced are places to dial.
        let dialled = ["10.77.0.2:5432", "10.77.0.2:6433", "10.77.0.2:5432"];
        assert_eq!(of(Role::Dials, dialled), [0, 1, 0]);
    }

    #[test]
    fn neighbouring_addresses_have_numbers_of_their_own() {
        let of = |text: &str| address_id(text.parse().unwrap());
        let all: std::collections::BTreeSet<u8> =
            (1..=100).map(|n| of(&format!("10.77.{n}.1")).0).collect();
        assert!(!all.contains(&0) && all.len() > 90, "{all:?}");
        assert_eq!(of("10.77.0.1"), of("10.77.0.1"));
        assert_ne!(of("10.77.0.1"), of("10.77.0.2"));
        assert_ne!(of("fd77::1"), of("fd77::2"));
    }
}
