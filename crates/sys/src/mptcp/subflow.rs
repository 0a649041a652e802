//! What a path manager in userspace tells the kernel: open, close and pause subflows.
//!
//! # Model
//! The kernel keeps the connections; a process with CAP_NET_ADMIN in their network namespace
//! manages those that began under `net.mptcp.path_manager = userspace`, whether it ran at that
//! moment or not. A subflow is named by its two ends. Source: include/uapi/linux/mptcp_pm.h,
//! net/mptcp/pm_userspace.c.
//!
//! # Limits
//! Linux 5.19. [`Manager::pause`] at the end that receives goes to the other as MP_PRIO, which is
//! sent once: where that segment is lost, nothing changes. A dialler gets no event of a join that
//! is refused later (the peer has no listener on its events): it must look.

use std::net::{IpAddr, SocketAddr};

use super::Token;
use super::endpoint::{ADDR, FAMILY, Flags, VERSION, addr, write_ip};
use crate::netlink::attribute::Writer;
use crate::netlink::generic::Family;
use crate::netlink::{ACK, NetlinkError};

/// `enum mptcp_pm_cmd`.
mod command {
    pub(super) const SET_FLAGS: u8 = 7;
    pub(super) const ANNOUNCE: u8 = 8;
    pub(super) const REMOVE: u8 = 9;
    pub(super) const SUBFLOW_CREATE: u8 = 10;
    pub(super) const SUBFLOW_DESTROY: u8 = 11;
}

/// `MPTCP_PM_ATTR_*`.
const TOKEN: u16 = 4;
const LOCAL_ID: u16 = 5;
const ADDR_REMOTE: u16 = 6;

/// The number of a local address in a connection (RFC 8684 section 3.4.1). The same address needs
/// the same number in each call, and one of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressId(pub u8);

/// A subflow by its ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ends {
    /// This end.
    pub local: SocketAddr,
    /// The other end.
    pub remote: SocketAddr,
}

/// A path manager.
#[derive(Debug)]
pub struct Manager(Family);

/// How an address is written: IPv4 in a socket of IPv6 is a mapped address there.
#[derive(Clone, Copy)]
enum Form {
    Plain,
    Mapped,
}

impl Manager {
    /// Finds the kernel's family.
    ///
    /// # Errors
    /// [`NetlinkError::NoFamily`] without MPTCP.
    pub fn open() -> Result<Self, NetlinkError> {
        Family::find(FAMILY, VERSION).map(Self)
    }

    /// Dials a subflow from `local`, at a port of the kernel's choice, to `remote`. It is only begun
    /// when this returns.
    ///
    /// # Errors
    /// EINVAL if the connection is not under the userspace path manager, ESRCH or EINVAL if there
    /// is none of this token, ENOTCONN if it is not established at both ends yet.
    pub fn create(
        &mut self,
        token: Token,
        id: AddressId,
        local: IpAddr,
        interface: u32,
        remote: SocketAddr,
    ) -> Result<(), NetlinkError> {
        let mut from = address(local, 0, Form::Plain);
        from.u8(addr::ID, id.0);
        if interface != 0 {
            from.u32(addr::INTERFACE, interface);
        }
        let to = address(remote.ip(), remote.port(), Form::Plain);
        self.ask(command::SUBFLOW_CREATE, token, &from, Some(&to))
    }

    /// Ends a subflow. What was sent over it and is not acknowledged goes over the others.
    ///
    /// # Errors
    /// ESRCH if there is no such subflow.
    pub fn destroy(&mut self, token: Token, ends: Ends) -> Result<(), NetlinkError> {
        self.of_subflow(command::SUBFLOW_DESTROY, token, ends, None)
    }

    /// Has a subflow carry nothing new while there are others that are not paused, or has it carry
    /// data again: its backup flag, here and at the peer.
    ///
    /// # Errors
    /// EINVAL if there is no such subflow.
    pub fn pause(&mut self, token: Token, ends: Ends, paused: bool) -> Result<(), NetlinkError> {
        let flags = if paused { Flags::BACKUP } else { Flags::default() };
        self.of_subflow(command::SET_FLAGS, token, ends, Some(flags))
    }

    /// Tells the peer of a further address of this end.
    ///
    /// # Errors
    /// EINVAL if it was announced already under another number, or the connection is not managed.
    pub fn announce(
        &mut self,
        token: Token,
        id: AddressId,
        local: IpAddr,
    ) -> Result<(), NetlinkError> {
        let mut what = address(local, 0, Form::Plain);
        what.u8(addr::ID, id.0);
        what.u32(addr::FLAGS, Flags::SIGNAL.0);
        self.ask(command::ANNOUNCE, token, &what, None)
    }

    /// Takes back an address of this end that was announced. The subflows from it end.
    ///
    /// # Errors
    /// EINVAL if none of this number was announced.
    pub fn withdraw(&mut self, token: Token, id: AddressId) -> Result<(), NetlinkError> {
        let mut attributes = Writer::default();
        attributes.u32(TOKEN, token.0);
        attributes.u8(LOCAL_ID, id.0);
        self.0.ask(command::REMOVE, ACK, &attributes).map(drop)
    }

    /// Tried as what the addresses are, and then as an IPv6 socket would have them.
    fn of_subflow(
        &mut self,
        command: u8,
        token: Token,
        ends: Ends,
        flags: Option<Flags>,
    ) -> Result<(), NetlinkError> {
        let mut tried = Ok(());
        for form in [Form::Plain, Form::Mapped] {
            let mut from = address(ends.local.ip(), ends.local.port(), form);
            if let Some(flags) = flags {
                from.u32(addr::FLAGS, flags.0);
            }
            let to = address(ends.remote.ip(), ends.remote.port(), form);
            let result = self.ask(command, token, &from, Some(&to));
            if result.is_ok() || ends.local.is_ipv6() {
                return result;
            }
            if matches!(form, Form::Plain) {
                tried = result;
            }
        }
        tried
    }

    fn ask(
        &mut self,
        command: u8,
        token: Token,
        local: &Writer,
        remote: Option<&Writer>,
    ) -> Result<(), NetlinkError> {
        let mut attributes = Writer::default();
        attributes.u32(TOKEN, token.0);
        attributes.nested(ADDR, local);
        if let Some(remote) = remote {
            attributes.nested(ADDR_REMOTE, remote);
        }
        self.0.ask(command, ACK, &attributes).map(drop)
    }
}

fn address(ip: IpAddr, port: u16, form: Form) -> Writer {
    let mut writer = Writer::default();
    let ip = match (ip, form) {
        (IpAddr::V4(v4), Form::Mapped) => IpAddr::V6(v4.to_ipv6_mapped()),
        _ => ip,
    };
    write_ip(&mut writer, ip);
    if port != 0 {
        // In the host's byte order (mptcp_pm_parse_pm_addr_attr()).
        writer.u16(addr::PORT, port);
    }
    writer
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::attribute::Attributes;

    #[test]
    fn an_address_is_written_as_the_socket_has_it() {
        let of = |form| {
            let writer = address("10.0.0.1".parse().unwrap(), 5432, form);
            let read: Vec<(u16, Vec<u8>)> = Attributes::new(writer.as_bytes())
                .map(|attribute| (attribute.kind, attribute.value.to_vec()))
                .collect();
            read
        };
        let port = (addr::PORT, 5432u16.to_ne_bytes().to_vec());
        let plain = of(Form::Plain);
        assert_eq!(plain[1], (addr::V4, vec![10, 0, 0, 1]));
        assert_eq!(plain[2], port);
        let mapped = of(Form::Mapped);
        assert_eq!(mapped[0].1, (libc::AF_INET6 as u16).to_ne_bytes());
        assert_eq!((mapped[1].0, &mapped[1].1[10..]), (addr::V6, &[255, 255, 10, 0, 0, 1][..]));
    }

    #[test]
    fn a_connection_that_is_not_there_is_refused() {
        let mut manager = match Manager::open() {
            Ok(manager) => manager,
            Err(error) => return eprintln!("skipped: {error}"),
        };
        let local = "127.0.0.1:1".parse().unwrap();
        let ends = Ends { local, remote: local };
        let error = manager.destroy(Token(0), ends).unwrap_err();
        assert!(error.errno().is_some(), "{error}");
        let error = manager.create(Token(0), AddressId(1), local.ip(), 0, local).unwrap_err();
        assert!(error.errno().is_some(), "{error}");
    }
}
