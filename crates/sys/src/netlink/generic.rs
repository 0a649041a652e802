//! Generic netlink: families that are found by their names.
//!
//! Source: include/uapi/linux/genetlink.h. A message's fixed part is `struct genlmsghdr`: command,
//! version, 2 bytes of nothing.

use super::attribute::{Attribute, Attributes, Writer};
use super::{ACK, Answer, Netlink, NetlinkError, Protocol, Question};

/// `GENL_ID_CTRL`, the family that knows the families.
const CONTROL_FAMILY: u16 = 0x10;
/// `CTRL_CMD_GETFAMILY`.
const GET_FAMILY: u8 = 3;
/// `CTRL_ATTR_FAMILY_ID`, `_FAMILY_NAME`, `_MCAST_GROUPS`.
const FAMILY_ID: u16 = 1;
const FAMILY_NAME: u16 = 2;
const GROUPS: u16 = 7;
/// `CTRL_ATTR_MCAST_GRP_NAME`, `_ID`.
const GROUP_NAME: u16 = 1;
const GROUP_ID: u16 = 2;
/// `struct genlmsghdr`.
const HEADER_BYTES: usize = 4;

/// A family, with a socket to ask it.
#[derive(Debug)]
pub struct Family {
    netlink: Netlink,
    id: u16,
    version: u8,
    groups: Vec<(String, u32)>,
}

impl Family {
    /// Finds the family `name`.
    ///
    /// # Errors
    /// [`NetlinkError::NoFamily`] if the kernel has none of that name.
    pub fn find(name: &'static str, version: u8) -> Result<Self, NetlinkError> {
        let mut netlink = Netlink::open(Protocol::Generic)?;
        let mut attributes = Writer::default();
        attributes.bytes(FAMILY_NAME, format!("{name}\0").as_bytes());
        let question = Question::new(CONTROL_FAMILY, ACK, &[GET_FAMILY, 1, 0, 0]).with(&attributes);
        let answers = netlink.ask(&question).map_err(|error| match error.errno() {
            Some(libc::ENOENT) => NetlinkError::NoFamily(name),
            _ => error,
        })?;
        let answer = answers.first().ok_or(NetlinkError::Malformed("no family is described"))?;
        let (id, groups) = described(answer)
            .ok_or(NetlinkError::Malformed("a family is described without its id"))?;
        Ok(Self { netlink, id, version, groups })
    }

    /// Asks: `flags` as for [`Question::new`].
    ///
    /// # Errors
    /// See [`NetlinkError`].
    pub fn ask(
        &mut self,
        command: u8,
        flags: u16,
        attributes: &Writer,
    ) -> Result<Vec<Answer>, NetlinkError> {
        let question =
            Question::new(self.id, flags, &[command, self.version, 0, 0]).with(attributes);
        self.netlink.ask(&question)
    }

    /// The number of one of its groups.
    pub fn group(&self, name: &str) -> Option<u32> {
        self.groups.iter().find(|(group, _)| group == name).map(|(_, id)| *id)
    }

    /// Turns it into a listener for the messages to one of its groups.
    ///
    /// # Errors
    /// As [`Netlink::join`]; the family has no such group.
    pub fn listen(mut self, group: &str) -> Result<Netlink, NetlinkError> {
        let id = self.group(group).ok_or(NetlinkError::Malformed("the family lacks the group"))?;
        self.netlink.join(id)?;
        Ok(self.netlink)
    }
}

/// The command and attributes of a generic message.
pub fn parts(payload: &[u8]) -> Option<(u8, Attributes<'_>)> {
    let command = *payload.first()?;
    Some((command, Attributes::new(payload.get(HEADER_BYTES..)?)))
}

fn described(answer: &Answer) -> Option<(u16, Vec<(String, u32)>)> {
    let (_, attributes) = parts(&answer.payload)?;
    let id = attributes.clone().find(|a| a.kind == FAMILY_ID)?.u16()?;
    let group = |entry: Attribute<'_>| {
        let name = entry.nested().find(|a| a.kind == GROUP_NAME)?.text()?;
        let id = entry.nested().find(|a| a.kind == GROUP_ID)?.u32()?;
        Some((name, id))
    };
    let groups = attributes
        .filter(|a| a.kind == GROUPS)
        .flat_map(|groups| groups.nested().filter_map(group))
        .collect();
    Some((id, groups))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_with_generic_netlink_has_its_control_family() {
        let family = Family::find("nlctrl", 1).unwrap();
        assert_eq!(family.id, CONTROL_FAMILY);
        assert!(family.groups.iter().any(|(name, _)| name == "notify"));
    }

    #[test]
    fn a_family_that_is_not_there_is_named() {
        let error = Family::find("hawser-none", 1).unwrap_err();
        assert!(error.to_string().contains("\"hawser-none\""), "{error}");
    }
}
