//! What `hawser mptcp status` shows: for people, and as JSON for programs.
//!
//! # Model
//! Rates are differences between two looks at the same socket (by its cookie): bytes that the peer
//! has acknowledged where we send, bytes received where we receive, over the time between.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::net::SocketAddr;

use hawser_sys::mptcp::Token;
use hawser_sys::mptcp::diagnosis::{Connection, Dump, Subflow, TcpState};
use hawser_sys::mptcp::endpoint::{Endpoint, EndpointId};
use hawser_sys::mptcp::kernel::Version;
use serde::Serialize;

use super::look::Look;
use super::others;
use super::programs::Program;
use super::reason::{Facts, why_single};

/// All of it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// The kernel's release.
    pub kernel: String,
    /// Why there are no MPTCP sockets here.
    pub unsupported: Option<String>,
    /// What this kernel lacks of MPTCP.
    pub lacks: Vec<String>,
    /// `net.mptcp.enabled`.
    pub enabled: Option<bool>,
    /// `kernel` or `userspace`.
    pub path_manager: Option<String>,
    /// The scheduler.
    pub scheduler: Option<String>,
    /// `net.mptcp.checksum_enabled`.
    pub checksums: Option<bool>,
    /// `net.mptcp.stale_loss_cnt`.
    pub stale_loss_cnt: Option<u32>,
    /// The limits.
    pub limits: Option<LimitsReport>,
    /// The endpoints.
    pub endpoints: Vec<EndpointReport>,
    /// Sockets that listen for MPTCP.
    pub listeners: Vec<ListenerReport>,
    /// Connections.
    pub connections: Vec<ConnectionReport>,
    /// What could not be read, and what is wrong.
    pub notes: Vec<String>,
}

/// Limits of each connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct LimitsReport {
    /// Further subflows.
    pub subflows: u32,
    /// Announcements of the peer that are followed.
    pub add_addr_accepted: u32,
}

/// An endpoint.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct EndpointReport {
    /// Its number.
    pub id: u8,
    /// Its address.
    pub address: String,
    /// Its port, 0 if it has none.
    pub port: u16,
    /// `signal`, `subflow`, `backup`, `fullmesh`, `implicit`.
    pub flags: Vec<String>,
    /// Whether `hawser mptcp setup` has made it.
    pub ours: bool,
}

/// A socket that listens.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ListenerReport {
    /// Where.
    pub address: SocketAddr,
    /// Who.
    pub program: Option<Program>,
}

/// A connection.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ConnectionReport {
    /// Its number, as the kernel's tools show it.
    pub token: String,
    /// The program that has it; none if it is being closed.
    pub program: Option<Program>,
    /// This end.
    pub local: SocketAddr,
    /// The other end.
    pub remote: SocketAddr,
    /// Its state.
    pub state: &'static str,
    /// Whether this end dialled it.
    pub dialled: Option<bool>,
    /// Whether it goes on as plain TCP.
    pub fallback: bool,
    /// Bytes sent, with those sent again (Linux 6.5).
    pub bytes_sent: Option<u64>,
    /// Bytes received (Linux 6.5).
    pub bytes_received: Option<u64>,
    /// Bytes sent again on another subflow (Linux 6.5).
    pub bytes_retransmitted: Option<u64>,
    /// How many further subflows it may have.
    pub subflows_max: u8,
    /// Its subflows.
    pub subflows: Vec<SubflowReport>,
    /// Why it has only one subflow.
    pub why_single: Vec<String>,
}

/// A subflow.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct SubflowReport {
    /// This end.
    pub local: SocketAddr,
    /// The other end.
    pub remote: SocketAddr,
    /// Its state.
    pub state: &'static str,
    /// Whether it was opened after the first.
    pub joined: bool,
    /// Whether it is kept for when there is no other.
    pub backup: bool,
    /// Bits a second that were received since the last look.
    pub received_bit_s: Option<u64>,
    /// Bits a second that the peer has acknowledged since the last look.
    pub sent_bit_s: Option<u64>,
    /// What it last delivered, as the kernel estimates it.
    pub delivery_bit_s: u64,
    /// Round trip.
    pub rtt_us: u32,
    /// Segments sent again.
    pub retransmitted: u32,
    /// Congestion window, in segments.
    pub congestion_window: u32,
    /// Congestion control.
    pub congestion_control: Option<String>,
    /// Bytes that the peer has acknowledged.
    pub bytes_acked: u64,
    /// Bytes received.
    pub bytes_received: u64,
}

impl Report {
    /// What is shown of `now`; with rates since `before`. `ours` are the endpoints of `setup`.
    pub fn new(now: &Look, before: Option<&Look>, ours: &[EndpointId]) -> Self {
        let mut notes = Vec::new();
        let lacks = Version::parse(&now.release).map(Version::lacks).unwrap_or_default();
        let userspace = now.sysctls.path_manager.as_deref() == Some("userspace");
        if userspace && now.has_listener == Some(false) {
            notes.push(
                "the path manager is in userspace and no program manages: every join that a peer \
                 asks for is refused. sysctl net.mptcp.path_manager = kernel puts it back"
                    .to_owned(),
            );
        }
        notes.extend(others::lines(&now.others));
        let (endpoints, limits) = match &now.manager {
            Ok((endpoints, limits)) => (endpoints.as_slice(), Some(*limits)),
            Err(error) => {
                if now.unsupported.is_none() {
                    notes.push(format!("endpoints and limits cannot be read: {error}"));
                }
                (&[][..], None)
            }
        };
        let empty = Dump::default();
        let sockets = now.sockets.as_ref().unwrap_or_else(|error| {
            if now.unsupported.is_none() {
                notes.push(format!("connections cannot be read: {error}"));
            }
            &empty
        });
        let context = Context {
            endpoints,
            userspace: userspace.then_some(now.has_listener),
            earlier: before.map(|before| Earlier::new(before, now)),
            listeners: sockets.listeners.iter().map(|listener| listener.local.port()).collect(),
        };
        Self {
            kernel: now.release.clone(),
            unsupported: now.unsupported.map(|reason| reason.to_string()),
            lacks,
            enabled: now.sysctls.enabled,
            path_manager: now.sysctls.path_manager.clone(),
            scheduler: now.sysctls.scheduler.clone(),
            checksums: now.sysctls.checksum_enabled,
            stale_loss_cnt: now.sysctls.stale_loss_cnt,
            limits: limits.map(|limits| LimitsReport {
                subflows: limits.subflows,
                add_addr_accepted: limits.add_addr_accepted,
            }),
            endpoints: endpoints.iter().map(|endpoint| endpoint_report(endpoint, ours)).collect(),
            listeners: sockets
                .listeners
                .iter()
                // The kernel's own, for endpoints with a port, are no program's.
                .filter(|listener| listener.local.port() != 0)
                .map(|listener| ListenerReport {
                    address: listener.local,
                    program: now.programs.get(&listener.inode).cloned(),
                })
                .collect(),
            connections: connections(sockets, &now.programs, &context),
            notes,
        }
    }
}

fn endpoint_report(endpoint: &Endpoint, ours: &[EndpointId]) -> EndpointReport {
    EndpointReport {
        id: endpoint.id.0,
        address: endpoint.address.to_string(),
        port: endpoint.port,
        flags: endpoint.flags.names(),
        ours: ours.contains(&endpoint.id),
    }
}

/// What all connections share.
struct Context<'a> {
    endpoints: &'a [Endpoint],
    userspace: Option<Option<bool>>,
    earlier: Option<Earlier>,
    listeners: Vec<u16>,
}

/// Bytes of subflows at the look before.
struct Earlier {
    seconds: f64,
    bytes: HashMap<u64, (u64, u64)>,
}

impl Earlier {
    fn new(before: &Look, now: &Look) -> Self {
        let subflows = before.sockets.as_ref().map(|dump| dump.subflows.as_slice());
        Self {
            seconds: now.at.duration_since(before.at).as_secs_f64(),
            bytes: subflows
                .unwrap_or_default()
                .iter()
                .map(|s| (s.socket.cookie, s.bytes()))
                .collect(),
        }
    }

    fn bit_s(&self, cookie: u64, now: (u64, u64)) -> Option<(u64, u64)> {
        let (received, acked) = self.bytes.get(&cookie)?;
        if self.seconds <= 0.0 {
            return None;
        }
        let rate = |now: u64, before: u64| {
            (now.saturating_sub(before) as f64 * 8.0 / self.seconds).round() as u64
        };
        Some((rate(now.0, *received), rate(now.1, *acked)))
    }
}

fn connections(
    sockets: &Dump,
    programs: &BTreeMap<u32, Program>,
    context: &Context<'_>,
) -> Vec<ConnectionReport> {
    let mut by_token: HashMap<Token, Vec<&Subflow>> = HashMap::new();
    for subflow in &sockets.subflows {
        by_token.entry(subflow.token).or_default().push(subflow);
    }
    let mut reports: Vec<ConnectionReport> = sockets
        .connections
        .iter()
        .map(|connection| {
            let mut subflows = by_token.remove(&connection.info.token).unwrap_or_default();
            subflows.sort_by_key(|s| (s.flags.joined(), s.socket.local, s.socket.remote));
            let program = programs.get(&connection.socket.inode).cloned();
            connection_report(connection, &subflows, program, context)
        })
        .collect();
    reports.sort_by_key(|report| (report.local, report.remote));
    reports
}

fn connection_report(
    connection: &Connection,
    subflows: &[&Subflow],
    program: Option<Program>,
    context: &Context<'_>,
) -> ConnectionReport {
    let info = &connection.info;
    let socket = &connection.socket;
    let first = subflows.iter().find(|subflow| !subflow.flags.joined());
    let listens = context.listeners.contains(&socket.local.port());
    let dialled = match first {
        Some(first) => Some(first.flags.asked()),
        None => listens.then_some(false),
    };
    let living =
        subflows.iter().filter(|subflow| subflow.socket.state == TcpState::Established).count();
    let unanswered: Vec<SocketAddr> = subflows
        .iter()
        .filter(|subflow| subflow.socket.state == TcpState::SynSent)
        .map(|subflow| subflow.socket.remote)
        .collect();
    let why = if socket.state == TcpState::Established && living <= 1 {
        why_single(&Facts {
            info,
            dialled,
            local: socket.local,
            remote: socket.remote,
            unanswered: &unanswered,
            endpoints: context.endpoints,
            userspace: context.userspace,
        })
    } else {
        Vec::new()
    };
    ConnectionReport {
        token: format!("{:#010x}", info.token.0),
        program,
        local: socket.local,
        remote: socket.remote,
        state: socket.state.name(),
        dialled,
        fallback: info.is_fallback(),
        bytes_sent: info.volume.map(|volume| volume.bytes_sent),
        bytes_received: info.volume.map(|volume| volume.bytes_received),
        bytes_retransmitted: info.volume.map(|volume| volume.bytes_retransmitted),
        subflows_max: info.subflows_max,
        subflows: subflows
            .iter()
            .map(|subflow| subflow_report(subflow, context.earlier.as_ref()))
            .collect(),
        why_single: why,
    }
}

fn subflow_report(subflow: &Subflow, earlier: Option<&Earlier>) -> SubflowReport {
    let info = &subflow.info;
    let (bytes_received, bytes_acked) = subflow.bytes();
    let rates = earlier.and_then(|earlier| earlier.bit_s(subflow.socket.cookie, subflow.bytes()));
    SubflowReport {
        local: subflow.socket.local,
        remote: subflow.socket.remote,
        state: subflow.socket.state.name(),
        joined: subflow.flags.joined(),
        backup: subflow.flags.backup(),
        received_bit_s: rates.map(|(received, _)| received),
        sent_bit_s: rates.map(|(_, sent)| sent),
        delivery_bit_s: info.delivery_rate.unwrap_or(0).saturating_mul(8),
        rtt_us: info.rtt_us,
        retransmitted: info.segments_again,
        congestion_window: info.window,
        congestion_control: subflow.congestion.clone(),
        bytes_acked,
        bytes_received,
    }
}

impl Report {
    /// As text for a terminal.
    pub fn to_text(&self) -> String {
        let mut text = String::new();
        // Writing to a String does not fail.
        let _ = self.write_text(&mut text);
        text
    }

    fn write_text(&self, out: &mut String) -> std::fmt::Result {
        let or = |value: &Option<String>| value.clone().unwrap_or_else(|| "unknown".to_owned());
        let on = |value: Option<bool>| match value {
            Some(true) => "on",
            Some(false) => "off",
            None => "unknown",
        };
        writeln!(out, "kernel         Linux {}", self.kernel)?;
        for missing in &self.lacks {
            writeln!(out, "  lacks        {missing}")?;
        }
        if let Some(reason) = &self.unsupported {
            writeln!(out, "mptcp          {reason}")?;
        } else {
            writeln!(out, "mptcp          {}", on(self.enabled))?;
        }
        writeln!(out, "path manager   {}", or(&self.path_manager))?;
        writeln!(out, "scheduler      {}", or(&self.scheduler))?;
        writeln!(
            out,
            "settings       checksums {}, stale after {} timeouts",
            on(self.checksums),
            self.stale_loss_cnt.map_or_else(|| "unknown".to_owned(), |count| count.to_string())
        )?;
        if let Some(limits) = self.limits {
            writeln!(
                out,
                "limits         {} further subflows, {} announcements of the peer followed",
                limits.subflows, limits.add_addr_accepted
            )?;
        }
        if self.endpoints.is_empty() {
            writeln!(out, "endpoints      none")?;
        }
        for endpoint in &self.endpoints {
            let place = match (endpoint.port, endpoint.address.contains(':')) {
                (0, _) => endpoint.address.clone(),
                (port, false) => format!("{}:{port}", endpoint.address),
                (port, true) => format!("[{}]:{port}", endpoint.address),
            };
            let ours = if endpoint.ours { " (by `hawser mptcp setup`)" } else { "" };
            let flags = endpoint.flags.join(",");
            writeln!(out, "endpoint {:<5} {place} {flags}{ours}", endpoint.id)?;
        }
        for listener in &self.listeners {
            writeln!(
                out,
                "listens        {} {}",
                listener.address,
                name(listener.program.as_ref())
            )?;
        }
        for note in &self.notes {
            writeln!(out, "note           {note}")?;
        }
        writeln!(out, "connections    {}", self.connections.len())?;
        for connection in &self.connections {
            connection.write_text(out)?;
        }
        Ok(())
    }
}

impl ConnectionReport {
    fn write_text(&self, out: &mut String) -> std::fmt::Result {
        let arrow = match self.dialled {
            Some(true) => "->",
            Some(false) => "<-",
            None => "--",
        };
        let program = name(self.program.as_ref());
        let kind = if self.fallback { "fell back to TCP" } else { "mptcp" };
        write!(
            out,
            "\n{program} {} {arrow} {}  {}, {kind}, token {}",
            self.local, self.remote, self.state, self.token
        )?;
        if let (Some(sent), Some(received)) = (self.bytes_sent, self.bytes_received) {
            write!(out, ", sent {}, received {}", size(sent), size(received))?;
        }
        out.push('\n');
        if !self.subflows.is_empty() {
            writeln!(
                out,
                "    {:<24} {:<24} {:<12} {:>10} {:>10} {:>9} {:>8}  {:<6}",
                "local", "remote", "state", "in Mbit/s", "out Mbit/s", "rtt ms", "retrans", "cc"
            )?;
        }
        for subflow in &self.subflows {
            let notes = if subflow.backup { "  backup" } else { "" };
            writeln!(
                out,
                "    {:<24} {:<24} {:<12} {:>10} {:>10} {:>9.3} {:>8}  {:<6}{notes}",
                subflow.local.to_string(),
                subflow.remote.to_string(),
                subflow.state,
                megabits(subflow.received_bit_s),
                megabits(subflow.sent_bit_s),
                f64::from(subflow.rtt_us) / 1000.0,
                subflow.retransmitted,
                subflow.congestion_control.as_deref().unwrap_or("?"),
            )?;
        }
        for reason in &self.why_single {
            writeln!(out, "    one subflow only: {reason}")?;
        }
        Ok(())
    }
}

fn name(program: Option<&Program>) -> String {
    program.map_or_else(|| "-".to_owned(), |program| format!("{}[{}]", program.name, program.pid))
}

fn megabits(bit_s: Option<u64>) -> String {
    bit_s.map_or_else(|| "-".to_owned(), |rate| format!("{:.2}", rate as f64 / 1e6))
}

fn size(bytes: u64) -> String {
    match bytes {
        0..10_240 => format!("{bytes} B"),
        10_240..10_485_760 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}
