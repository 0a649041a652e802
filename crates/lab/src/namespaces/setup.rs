//! From a description to namespaces with devices, addresses and routes.
//!
//! # Rights
//! CAP_SYS_ADMIN and CAP_NET_ADMIN, or else an ordinary user's own user namespace, where the host
//! allows them; and `/dev/net/tun` for links that are emulated.
//!
//! # Model
//! Link N has the networks 10.77.N.0/24 and fd77:0:0:N::/64, its first end .1 and its second .2.
//! Hosts between others forward. If several links join two hosts, packets with the source address
//! of one leave by that one, to any address of the other host: as at a site with two providers.

use std::ffi::CString;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

use hawser_sys::namespace;
use hawser_sys::rtnetlink::{MAIN_TABLE, Routing};
use hawser_sys::tun::Tun;

use crate::wan::Description;
use crate::wan::description::Host;
use crate::wan::network::{End, Port};

/// Packets that wait for the emulator: 10 ms of small ones at full speed. The default of 500 is
/// overrun by one burst of a sender.
pub(super) const DEVICE_QUEUE_PACKETS: u32 = 10_000;
/// Tables of routes by source, one for each link, begin here; so do their rules' priorities.
const SOURCE_TABLE: u32 = 1000;

/// The kernel's own default; that of this machine, which namespaces inherit, may be another. It is
/// set where the kernel lets, and [`congestion_control`] says what came of it.
const CONGESTION_CONTROL: &str = "net.ipv4.tcp_congestion_control";
const CONGESTION_CONTROL_DEFAULT: &str = "cubic";

/// Kernel settings of every host, before those of the description.
const SETTINGS: [(&str, &str); 6] = [
    // Else what one run has learnt of a path decides how the next begins.
    ("net.ipv4.tcp_no_metrics_save", "1"),
    // With several links, answers may take another than questions.
    ("net.ipv4.conf.all.rp_filter", "0"),
    ("net.ipv4.conf.default.rp_filter", "0"),
    // No packets but those of the experiment.
    ("net.ipv6.conf.default.accept_ra", "0"),
    ("net.ipv6.conf.default.router_solicitations", "0"),
    ("net.ipv6.conf.default.accept_dad", "0"),
];

/// Why there is no laboratory.
#[derive(Debug, thiserror::Error)]
pub enum UpError {
    /// This user may not.
    #[error(
        "no right to make a network namespace ({source}): it needs CAP_SYS_ADMIN and \
             CAP_NET_ADMIN (root has them), or user namespaces for ordinary users \
             (user.max_user_namespaces above 0, kernel.unprivileged_userns_clone=1 and \
             kernel.apparmor_restrict_unprivileged_userns=0 where the system has these)"
    )]
    Rights {
        /// What the kernel said.
        source: io::Error,
    },
    /// There is no use of `/dev/net/tun`.
    #[error(
        "no TUN device ({source}): links with a rate, a delay or a loss need /dev/net/tun \
             (modprobe tun), which this user may open, and CAP_NET_ADMIN; links without any \
             need neither"
    )]
    Device {
        /// What the kernel said.
        source: io::Error,
    },
    /// A setting of the description was refused.
    #[error(
        "host `{host}`: setting `{name}` was refused: {source}{}",
        if .name == CONGESTION_CONTROL {
            " (a namespace may have what the machine's net.ipv4.tcp_allowed_congestion_control names; a \
             program with CAP_NET_ADMIN may choose any for its own sockets)"
        } else {
            ""
        }
    )]
    Setting {
        /// On which host.
        host: String,
        /// Which.
        name: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The kernel refused something else.
    #[error("{step}: {source}")]
    Kernel {
        /// What was to be done.
        step: String,
        /// What the kernel said.
        source: io::Error,
    },
}

/// For `map_err`: the kernel refused `step`.
pub(super) fn at(step: impl Into<String>) -> impl FnOnce(io::Error) -> UpError {
    move |source| UpError::Kernel { step: step.into(), source }
}

/// If this process has no right to namespaces, gives it a user namespace in which it has. To be
/// called before there are threads. Says whether it did.
///
/// # Errors
/// It has none, and may have no user namespace.
pub fn obtain_rights() -> Result<bool, UpError> {
    let probe = std::thread::spawn(namespace::unshare_network);
    // A thread that has ended is one no longer: unshare(CLONE_NEWUSER) sees a single one again.
    let probed = probe.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    match probed {
        Ok(()) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            namespace::unshare_user().map_err(|source| UpError::Rights { source })?;
            Ok(true)
        }
        Err(source) => Err(UpError::Rights { source }),
    }
}

/// A device at each end of each link that is emulated.
pub(super) type Devices = Vec<(Port, Tun)>;

/// A new namespace, for `whom`.
pub(super) fn namespace(whom: &str) -> Result<OwnedFd, UpError> {
    let made =
        std::thread::spawn(|| namespace::unshare_network().and_then(|()| namespace::own_network()));
    let made = made.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    made.map_err(|source| match source.kind() {
        io::ErrorKind::PermissionDenied => UpError::Rights { source },
        _ => at(format!("making the namespace of {whom}"))(source),
    })
}

/// The namespaces of the hosts, with all that joins them, and the devices of what is emulated.
pub(super) fn build(description: &Description) -> Result<(Vec<OwnedFd>, Devices), UpError> {
    let mut hosts = Vec::new();
    for host in &description.hosts {
        hosts.push(namespace(&format!("host `{}`", host.name))?);
    }
    let mut devices = Vec::new();
    for (index, host) in description.hosts.iter().enumerate() {
        inside(&hosts[index], || prepare(host))?;
    }
    for (index, link) in description.links.iter().enumerate() {
        if link.is_plain() {
            let name = CString::new(link.name.as_str()).expect("names have no NUL");
            let [first, second] = link.between.map(|host| &hosts[host]);
            inside(first, || {
                let pair =
                    Routing::open().and_then(|mut routing| routing.add_pair(&name, &name, second));
                pair.map_err(at(format!("making the pair of interfaces `{}`", link.name)))
            })?;
            continue;
        }
        for end in End::BOTH {
            let make = || Tun::create(&link.name).map_err(|source| UpError::Device { source });
            devices.push((Port { link: index, end }, inside(&hosts[link.host(end)], make)?));
        }
    }
    // Both ends of every link must be there before any route leads over it.
    for (index, namespace) in hosts.iter().enumerate() {
        inside(namespace, || {
            connect(description, index)
                .map_err(at(format!("addresses of host `{}`", description.hosts[index].name)))
        })?;
    }
    for (index, namespace) in hosts.iter().enumerate() {
        inside(namespace, || {
            route(description, index)
                .map_err(at(format!("routes of host `{}`", description.hosts[index].name)))?;
            configure(&description.hosts[index])
        })?;
    }
    Ok((hosts, devices))
}

pub(super) fn inside<R: Send>(
    network: impl AsFd + Sync,
    work: impl FnOnce() -> Result<R, UpError> + Send,
) -> Result<R, UpError> {
    namespace::within(network, work).map_err(at("entering a namespace"))?
}

/// Writes a setting of this thread's namespace: what `/proc/sys/net` shows is the reader's own.
fn set(name: &str, value: &str) -> io::Result<()> {
    std::fs::write(format!("/proc/sys/{}", name.replace('.', "/")), value)
}

/// The congestion control algorithm that sockets of a namespace get.
///
/// # Errors
/// It cannot be entered, or has none.
pub(super) fn congestion_control(network: impl AsFd + Sync) -> io::Result<String> {
    let path = format!("/proc/sys/{}", CONGESTION_CONTROL.replace('.', "/"));
    Ok(namespace::within(network, || std::fs::read_to_string(path))??.trim().to_owned())
}

fn prepare(host: &Host) -> Result<(), UpError> {
    for (name, value) in SETTINGS {
        match set(name, value) {
            // A kernel without IPv6.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            outcome => outcome.map_err(|source| UpError::Setting {
                host: host.name.clone(),
                name: name.to_owned(),
                source,
            })?,
        }
    }
    // EPERM where the machine does not allow it to namespaces: the report shows what they have.
    let _ = set(CONGESTION_CONTROL, CONGESTION_CONTROL_DEFAULT);
    let up = || {
        let mut routing = Routing::open()?;
        let loopback = routing.interface("lo")?;
        routing.set_up(loopback)
    };
    up().map_err(at(format!("loopback of host `{}`", host.name)))
}

fn configure(host: &Host) -> Result<(), UpError> {
    for (name, value) in &host.sysctl {
        set(name, value).map_err(|source| UpError::Setting {
            host: host.name.clone(),
            name: name.clone(),
            source,
        })?;
    }
    Ok(())
}

/// Both addresses, with the lengths of their networks.
fn both((v4, v6): (impl Into<IpAddr>, impl Into<IpAddr>)) -> [(IpAddr, u8); 2] {
    [(v4.into(), 24), (v6.into(), 64)]
}

fn has_ipv6() -> bool {
    std::path::Path::new("/proc/net/if_inet6").exists()
}

fn connect(description: &Description, host: usize) -> io::Result<()> {
    let mut routing = Routing::open()?;
    for port in description.ports(host) {
        let link = &description.links[port.link];
        let interface = routing.interface(&link.name)?;
        if !link.is_plain() && has_ipv6() {
            // No link-local address, so that no neighbour discovery is sent, as between a pair's
            // ends.
            set(&format!("net.ipv6.conf.{}.addr_gen_mode", link.name), "1")?;
        }
        routing.set_sizes(interface, link.mtu_bytes, DEVICE_QUEUE_PACKETS)?;
        for (address, bits) in both(description.addresses(port)) {
            if address.is_ipv4() || has_ipv6() {
                routing.add_address(interface, address, bits)?;
            }
        }
        routing.set_up(interface)?;
    }
    let forwards = description.hosts.len() > 2 && description.ports(host).count() > 1;
    if forwards {
        set("net.ipv4.ip_forward", "1")?;
        if has_ipv6() {
            set("net.ipv6.conf.all.forwarding", "1")?;
        }
    }
    Ok(())
}

fn route(description: &Description, host: usize) -> io::Result<()> {
    let mut routing = Routing::open()?;
    let is_usable = |address: &IpAddr| address.is_ipv4() || has_ipv6();
    for link in 0..description.links.len() {
        let Some(by) = description.next_port(host, link) else { continue };
        let interface = routing.interface(&description.links[by.link].name)?;
        let there = both(description.addresses(Port { link, end: End::First }));
        let via = both(description.addresses(Port { end: by.end.other(), ..by }));
        for ((to, bits), (via, _)) in
            there.into_iter().zip(via).filter(|((to, _), _)| is_usable(to))
        {
            routing.add_route((network(to), bits), interface, Some(via), MAIN_TABLE)?;
        }
    }
    for port in description.ports(host) {
        let neighbour = |port: Port| description.links[port.link].host(port.end.other());
        let siblings: Vec<Port> = description
            .ports(host)
            .filter(|p| *p != port && neighbour(*p) == neighbour(port))
            .collect();
        if siblings.is_empty() {
            continue;
        }
        let table = SOURCE_TABLE + u32::try_from(port.link).expect("LINKS_MAX fits");
        let interface = routing.interface(&description.links[port.link].name)?;
        let own = both(description.addresses(port));
        let via = both(description.addresses(Port { end: port.end.other(), ..port }));
        for ((own, bits), (via, _)) in
            own.into_iter().zip(via).filter(|((own, _), _)| is_usable(own))
        {
            routing.add_route((network(own), bits), interface, None, table)?;
            for sibling in &siblings {
                let there = both(description.addresses(*sibling));
                let (to, bits) = there[usize::from(own.is_ipv6())];
                routing.add_route((network(to), bits), interface, Some(via), table)?;
            }
            routing.add_rule(own, table, table)?;
        }
    }
    Ok(())
}

/// The network of an end's address: its last byte is the host's part.
fn network(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V4(address) => IpAddr::V4((u32::from(address) & !0xFF).into()),
        IpAddr::V6(address) => IpAddr::V6((u128::from(address) & !0xFF).into()),
    }
}
