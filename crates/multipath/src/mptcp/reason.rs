//! Why a connection has only one subflow, in words.
//!
//! # Model
//! The end that dialled the connection opens the further subflows: from its own `subflow` endpoints
//! to the peer's first address, and from its first address to those that the peer announces
//! (`signal` endpoints), as far as the limits of *both* ends allow. So the reasons at the end that
//! dialled are its limits and endpoints and what the peer announces; at the end that accepted, its
//! limits, what it announces, and then the peer or what is between.
//!
//! # Limits
//! What the other end does can only be inferred: such reasons say "perhaps", and where to look.

use std::net::SocketAddr;

use hawser_sys::mptcp::endpoint::{Endpoint, Flags};
use hawser_sys::mptcp::information::MptcpInfo;

/// What is known of a connection with at most one subflow.
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    /// What the kernel says of it.
    pub info: &'a MptcpInfo,
    /// Whether this end dialled it, if that is known.
    pub dialled: Option<bool>,
    /// This end's first address.
    pub local: SocketAddr,
    /// The peer's first address.
    pub remote: SocketAddr,
    /// Addresses to which further subflows are being opened without an answer.
    pub unanswered: &'a [SocketAddr],
    /// Endpoints of this end.
    pub endpoints: &'a [Endpoint],
    /// Whether the path manager is in userspace, and if so whether there is one, if that is known.
    pub userspace: Option<Option<bool>>,
}

/// Why it has only one subflow: the most certain reason first; never empty.
pub fn why_single(facts: &Facts<'_>) -> Vec<String> {
    let info = facts.info;
    if info.is_fallback() {
        return vec![format!(
            "it fell back to plain TCP: the peer {} does not speak MPTCP on this port, or something \
             between strips it",
            facts.remote.ip()
        )];
    }
    if !facts.unanswered.is_empty() {
        let places: Vec<String> = facts.unanswered.iter().map(ToString::to_string).collect();
        return vec![format!(
            "a further subflow to {} is not answered: perhaps a firewall drops it there",
            places.join(", ")
        )];
    }
    if let Some(manager) = facts.userspace {
        return vec![match manager {
            Some(false) => "the path manager is in userspace, and no program manages: sysctl \
                            net.mptcp.path_manager = kernel, or start one"
                .to_owned(),
            _ => "the path manager is in userspace: the program that manages has opened no more"
                .to_owned(),
        }];
    }
    if info.subflows_max == 0 {
        return vec![
            "the limit of further subflows is 0 here: `hawser mptcp setup` raises it".to_owned(),
        ];
    }
    match facts.dialled {
        Some(true) => dialled(facts),
        Some(false) => accepted(facts),
        None => vec!["its first subflow is closed, and none has replaced it".to_owned()],
    }
}

fn of_family(endpoint: &Endpoint, peer: SocketAddr) -> bool {
    endpoint.address.to_canonical().is_ipv4() == peer.ip().to_canonical().is_ipv4()
}

fn dialled(facts: &Facts<'_>) -> Vec<String> {
    let info = facts.info;
    let mut reasons = Vec::new();
    let own = |endpoint: &&Endpoint| {
        endpoint.flags.has(Flags::SUBFLOW) && endpoint.address != facts.local.ip()
    };
    let endpoints: Vec<&Endpoint> = facts.endpoints.iter().filter(own).collect();
    if endpoints.is_empty() {
        reasons.push(
            "no `subflow` endpoint here has another address than the one in use: `hawser mptcp \
             setup client` makes one for each network"
                .to_owned(),
        );
    } else if !endpoints.iter().any(|endpoint| of_family(endpoint, facts.remote)) {
        let family = if facts.remote.is_ipv4() { "IPv4" } else { "IPv6" };
        reasons.push(format!("no `subflow` endpoint here is of the peer's family, {family}"));
    } else {
        reasons.push(format!(
            "none from this end's `subflow` endpoints came up: perhaps the peer's limit of further \
             subflows is 0, or there is no route from them to {}",
            facts.remote.ip()
        ));
    }
    if info.accepted_max == 0 {
        reasons.push(
            "announcements of the peer are not followed (limit add_addr_accepted is 0 here): \
             `hawser mptcp setup client` raises it"
                .to_owned(),
        );
    } else if info.accepted == 0 {
        reasons.push(
            "the peer has announced no further address or port: `hawser mptcp setup server` there"
                .to_owned(),
        );
    } else {
        reasons.push(format!(
            "the peer announced {}, and no subflow to it came up: perhaps a firewall refuses its \
             ports, or the peer's limit of further subflows is 0",
            if info.accepted == 1 {
                "an address or port".to_owned()
            } else {
                format!("{} addresses or ports", info.accepted)
            }
        ));
    }
    reasons
}

fn accepted(facts: &Facts<'_>) -> Vec<String> {
    let info = facts.info;
    let signal = facts.endpoints.iter().any(|endpoint| endpoint.flags.has(Flags::SIGNAL));
    let peer = facts.remote.ip();
    let mut reasons = Vec::new();
    if !signal {
        reasons.push(
            "no `signal` endpoint here: nothing further is announced to the peer; `hawser mptcp \
             setup server` makes some"
                .to_owned(),
        );
    } else if info.announced == 0 {
        reasons.push(
            "nothing has been announced to the peer yet: it was connected before the endpoints were \
             made, or has not yet proved to speak MPTCP"
                .to_owned(),
        );
    } else {
        reasons.push(format!(
            "{} announced, and the peer {peer} has opened no subflow to it: perhaps its limits are 0 \
             (`hawser mptcp setup client` there), or a firewall refuses the ports",
            if info.announced == 1 { "1 address or port was".to_owned() } else { format!("{} addresses or ports were", info.announced) }
        ));
    }
    reasons
}

#[cfg(test)]
mod tests {
    use hawser_sys::mptcp::Token;
    use hawser_sys::mptcp::endpoint::EndpointId;

    use super::*;

    fn info() -> MptcpInfo {
        MptcpInfo {
            subflows_further: 0,
            announced: 0,
            accepted: 0,
            subflows_max: 2,
            announced_max: 0,
            accepted_max: 0,
            flags: 2,
            token: Token(1),
            unacked_from: 0,
            unacked: 0,
            local_used: 0,
            local_max: 0,
            checksums: false,
            volume: None,
        }
    }

    fn endpoint(address: &str, flags: Flags) -> Endpoint {
        Endpoint {
            id: EndpointId(1),
            address: address.parse().unwrap(),
            port: 0,
            flags,
            interface: 0,
        }
    }

    fn why(info: &MptcpInfo, dialled: Option<bool>, endpoints: &[Endpoint]) -> String {
        why_single(&Facts {
            info,
            dialled,
            local: "10.0.0.1:4000".parse().unwrap(),
            remote: "10.0.0.2:5432".parse().unwrap(),
            unanswered: &[],
            endpoints,
            userspace: None,
        })
        .join("\n")
    }

    #[test]
    fn a_fallback_explains_everything() {
        let fallback = MptcpInfo { flags: 1, subflows_max: 0, ..info() };
        assert!(why(&fallback, Some(true), &[]).starts_with("it fell back to plain TCP"));
    }

    #[test]
    fn a_limit_of_zero_is_named_before_endpoints() {
        let text = why(&MptcpInfo { subflows_max: 0, ..info() }, Some(true), &[]);
        assert!(text.contains("limit of further subflows is 0 here"), "{text}");
        assert!(!text.contains("endpoint"), "{text}");
    }

    #[test]
    fn the_dialler_gets_its_endpoints_and_announcements() {
        let text = why(&info(), Some(true), &[]);
        assert!(text.contains("no `subflow` endpoint"), "{text}");
        assert!(text.contains("add_addr_accepted is 0 here"), "{text}");
        // The address in use is no other path.
        let own = endpoint("10.0.0.1", Flags::SUBFLOW);
        assert!(why(&info(), Some(true), &[own]).contains("no `subflow` endpoint"));
        let v6 = endpoint("fd00::1", Flags::SUBFLOW);
        assert!(why(&info(), Some(true), &[v6]).contains("family, IPv4"));
        let follows = MptcpInfo { accepted_max: 8, ..info() };
        let text = why(&follows, Some(true), &[endpoint("10.0.1.1", Flags::SUBFLOW)]);
        assert!(text.contains("none from this end's"), "{text}");
        assert!(text.contains("`hawser mptcp setup server` there"), "{text}");
        let followed = MptcpInfo { accepted: 2, ..follows };
        assert!(why(&followed, Some(true), &[]).contains("a firewall refuses its ports"));
    }

    #[test]
    fn the_accepting_end_gets_what_it_announces() {
        assert!(why(&info(), Some(false), &[]).contains("no `signal` endpoint"));
        let signal = [endpoint("10.0.0.1", Flags::SIGNAL)];
        assert!(why(&info(), Some(false), &signal).contains("nothing has been announced"));
        let announced = MptcpInfo { announced: 4, ..info() };
        assert!(why(&announced, Some(false), &signal).contains("4 addresses or ports were"));
    }

    #[test]
    fn a_silent_port_and_an_absent_manager_are_named() {
        let info = info();
        let facts = Facts {
            info: &info,
            dialled: Some(true),
            local: "10.0.0.1:4000".parse().unwrap(),
            remote: "10.0.0.2:5432".parse().unwrap(),
            unanswered: &["10.0.0.2:5433".parse().unwrap()],
            endpoints: &[],
            userspace: None,
        };
        assert!(why_single(&facts)[0].contains("10.0.0.2:5433 is not answered"));
        let absent = Facts { unanswered: &[], userspace: Some(Some(false)), ..facts };
        assert!(why_single(&absent)[0].contains("no program manages"));
    }
}
