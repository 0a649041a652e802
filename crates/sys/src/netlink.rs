//! Netlink: questions to the kernel and its answers, over a datagram socket.
//!
//! # Model
//! ```text
//!   message    header (16 bytes: length, type, flags, sequence, port) · fixed part · attributes
//!   attribute  length (2) · type (2) · payload, padded to 4 bytes
//! ```
//! A question is answered by any number of messages and then an acknowledgement (`NLM_F_ACK`), or,
//! for a dump (`NLM_F_DUMP`), by any number of messages and then `NLMSG_DONE`.
//! Source: include/uapi/linux/netlink.h, Documentation/userspace-api/netlink/intro.rst.
//!
//! # Invariants
//! * what a later kernel adds is skipped: unknown attributes never end a decode
//! * a length that lies ends the walk; nothing is read past the message
//! * a question ends: [`ANSWER_WAIT`], [`MESSAGES_MAX`]
//!
//! # Why not a crate
//! Those for the families that Hawser speaks know neither `mptcp_pm` nor MPTCP's part of sock_diag;
//! what is left is this file.

pub mod attribute;
pub mod generic;

use std::io;
use std::mem::size_of;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::time::Duration;

use attribute::{Attributes, align, u16_at, u32_at};
use rustix::io::retry_on_intr;
use rustix::net::{RecvFlags, SendFlags, sockopt};

use crate::stream::set_option;

/// How long the kernel may take for one datagram of its answer. It answers in microseconds.
const ANSWER_WAIT: Duration = Duration::from_secs(5);
/// The most messages in answer to one question: as many sockets can be dumped.
const MESSAGES_MAX: usize = 4_000_000;
/// Larger than any datagram that the kernel makes (netlink_dump() allocates at most 32 KiB).
const DATAGRAM_BYTES_MAX: usize = 64 * 1024;
/// `struct nlmsghdr`.
const HEADER_BYTES: usize = 16;
/// How often a dump that was changed under our eyes is asked for again.
const INTERRUPTED_RETRIES: u32 = 3;

/// `NLM_F_REQUEST`, on every question.
const REQUEST: u16 = 1;
/// `NLM_F_ACK`: answer even if there is nothing to say.
pub const ACK: u16 = 4;
/// `NLM_F_DUMP_INTR`: what is dumped changed meanwhile.
const DUMP_INTERRUPTED: u16 = 0x10;
/// `NLM_F_ROOT | NLM_F_MATCH`: all there is.
pub const DUMP: u16 = 0x300;
/// `NLM_F_ACK_TLVS` of an error: attributes of `nlmsgerr_attrs` follow.
const ACK_TLVS: u16 = 0x200;
/// `NLM_F_CAPPED` of an error: the question is not repeated in it.
const CAPPED: u16 = 0x100;
/// `NLMSGERR_ATTR_MSG`: the reason in words.
const ERROR_WORDS: u16 = 1;

/// `NLMSG_ERROR`, and with error 0 the acknowledgement.
const TYPE_ERROR: u16 = 2;
/// `NLMSG_DONE`.
const TYPE_DONE: u16 = 3;

/// A family of netlink sockets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// `NETLINK_ROUTE`.
    Route,
    /// `NETLINK_SOCK_DIAG`.
    SocketDiagnosis,
    /// `NETLINK_GENERIC`.
    Generic,
}

impl Protocol {
    fn number(self) -> libc::c_int {
        match self {
            Self::Route => libc::NETLINK_ROUTE,
            Self::SocketDiagnosis => libc::NETLINK_SOCK_DIAG,
            Self::Generic => libc::NETLINK_GENERIC,
        }
    }
}

/// Why a question has no answer.
#[derive(Debug, thiserror::Error)]
pub enum NetlinkError {
    /// A system call failed.
    #[error("{call} of a netlink socket: {source}")]
    System {
        /// Which.
        call: &'static str,
        /// Why.
        source: io::Error,
    },
    /// The kernel refused.
    #[error("{}", match .words {
        Some(words) => format!("{words} ({})", .source),
        None => .source.to_string(),
    })]
    Refused {
        /// Why.
        source: io::Error,
        /// Its own words (extended acknowledgement, Linux 4.12), if it has any.
        words: Option<String>,
    },
    /// An answer that is none.
    #[error("the kernel's answer is malformed: {0}")]
    Malformed(&'static str),
    /// The kernel has no such generic netlink family.
    #[error("the kernel has no netlink family \"{0}\"")]
    NoFamily(&'static str),
}

impl NetlinkError {
    /// The kernel's error number, if there is one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::System { source, .. } | Self::Refused { source, .. } => source.raw_os_error(),
            Self::Malformed(_) | Self::NoFamily(_) => None,
        }
    }

    /// Whether it needs more rights.
    pub fn is_denied(&self) -> bool {
        matches!(self.errno(), Some(libc::EPERM | libc::EACCES))
    }
}

impl From<NetlinkError> for io::Error {
    /// With the kernel's error number, where there is one.
    fn from(error: NetlinkError) -> Self {
        match error.errno() {
            Some(code) => Self::from_raw_os_error(code),
            None => Self::new(io::ErrorKind::InvalidData, error),
        }
    }
}

/// A message of the kernel, without its header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// `nlmsg_type`.
    pub kind: u16,
    /// The fixed part and the attributes.
    pub payload: Vec<u8>,
}

/// A socket for questions, one at a time; or for the kernel's own notifications.
#[derive(Debug)]
pub struct Netlink {
    fd: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Netlink {
    /// A socket in the calling thread's network namespace.
    ///
    /// # Errors
    /// As socket(2) and bind(2): EPROTONOSUPPORT if the kernel lacks the family.
    pub fn open(protocol: Protocol) -> Result<Self, NetlinkError> {
        let system = |call| move |source: io::Error| NetlinkError::System { call, source };
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: socket(2) takes no pointers; a result that is no error is a new descriptor.
        let fd = unsafe {
            let fd = libc::socket(libc::AF_NETLINK, kind, protocol.number());
            if fd < 0 {
                return Err(system("socket")(io::Error::last_os_error()));
            }
            OwnedFd::from_raw_fd(fd)
        };
        // Bound to a port of the kernel's choice: one that is not bound gets no groups. SAFETY: an
        // all-zero sockaddr_nl is a valid value, and lives through the call.
        let bound = unsafe {
            let mut address: libc::sockaddr_nl = std::mem::zeroed();
            address.nl_family = libc::AF_NETLINK as libc::sa_family_t;
            let length = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
            libc::bind(fd.as_raw_fd(), (&raw const address).cast(), length)
        };
        if bound != 0 {
            return Err(system("bind")(io::Error::last_os_error()));
        }
        // Both only make errors better (Linux 4.12, 4.3): kernels without them are no worse off.
        for option in [libc::NETLINK_EXT_ACK, libc::NETLINK_CAP_ACK] {
            let _ = set_option(&fd, libc::SOL_NETLINK, option, &1u32.to_ne_bytes());
        }
        sockopt::set_socket_timeout(&fd, sockopt::Timeout::Recv, Some(ANSWER_WAIT))
            .map_err(|error| system("setsockopt")(error.into()))?;
        Ok(Self { fd, sequence: 0, buffer: vec![0; DATAGRAM_BYTES_MAX] })
    }

    /// Listens to a group of the family. Such a socket is for [`Self::receive`] alone.
    ///
    /// # Errors
    /// As setsockopt(2): EPERM for groups that need CAP_NET_ADMIN.
    pub fn join(&mut self, group: u32) -> Result<(), NetlinkError> {
        set_option(&self.fd, libc::SOL_NETLINK, libc::NETLINK_ADD_MEMBERSHIP, &group.to_ne_bytes())
            .map_err(|source| NetlinkError::System { call: "joining a group", source })
    }

    /// Asks, and gives each message of the answer to `each`.
    ///
    /// A dump during which the kernel's table changed is asked for again, some times; then what
    /// there is is taken: what a busy host has at one moment is never complete.
    ///
    /// # Errors
    /// See [`NetlinkError`].
    pub fn ask(&mut self, question: &Question) -> Result<Vec<Answer>, NetlinkError> {
        let mut tries = 0;
        loop {
            let (answers, interrupted) = self.ask_once(question)?;
            tries += 1;
            if !interrupted || tries > INTERRUPTED_RETRIES {
                return Ok(answers);
            }
        }
    }

    fn ask_once(&mut self, question: &Question) -> Result<(Vec<Answer>, bool), NetlinkError> {
        self.sequence = self.sequence.wrapping_add(1);
        let bytes = question.encode(self.sequence);
        rustix::net::send(&self.fd, &bytes, SendFlags::empty())
            .map_err(|error| NetlinkError::System { call: "send", source: error.into() })?;
        let mut answers = Vec::new();
        let mut interrupted = false;
        loop {
            let length = self.datagram()?;
            for message in Messages(&self.buffer[..length]) {
                let message = message?;
                if message.sequence != self.sequence {
                    // The rest of an answer that was given up.
                    continue;
                }
                interrupted |= message.flags & DUMP_INTERRUPTED != 0;
                match message.kind {
                    TYPE_DONE => {
                        return done(message.payload).map(|()| (answers, interrupted));
                    }
                    TYPE_ERROR => {
                        return acknowledged(&message).map(|()| (answers, interrupted));
                    }
                    kind => answers.push(Answer { kind, payload: message.payload.to_vec() }),
                }
                if answers.len() > MESSAGES_MAX {
                    return Err(NetlinkError::Malformed("it does not end"));
                }
            }
        }
    }

    /// The next messages that the kernel sends of its own accord; waits for them, at most
    /// [`ANSWER_WAIT`], and gives none if there are none by then.
    ///
    /// # Errors
    /// ENOBUFS: some were lost, because the socket was full.
    pub fn receive(&mut self) -> Result<Vec<Answer>, NetlinkError> {
        let length = match self.datagram() {
            Err(NetlinkError::System { source, .. })
                if source.kind() == io::ErrorKind::WouldBlock =>
            {
                return Ok(Vec::new());
            }
            other => other?,
        };
        let mut answers = Vec::new();
        for message in Messages(&self.buffer[..length]) {
            let message = message?;
            answers.push(Answer { kind: message.kind, payload: message.payload.to_vec() });
        }
        Ok(answers)
    }

    fn datagram(&mut self) -> Result<usize, NetlinkError> {
        let received =
            retry_on_intr(|| rustix::net::recv(&self.fd, &mut self.buffer[..], RecvFlags::TRUNC));
        let (read, whole) = received
            .map_err(|error| NetlinkError::System { call: "recv", source: error.into() })?;
        if whole > self.buffer.len() {
            return Err(NetlinkError::Malformed("a datagram is larger than any should be"));
        }
        Ok(read)
    }
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// A question: its type, flags, fixed part and attributes.
#[derive(Clone, Debug)]
pub struct Question {
    kind: u16,
    flags: u16,
    payload: Vec<u8>,
}

impl Question {
    /// A question of type `kind`; [`ACK`] or [`DUMP`] say how its answer ends. `fixed` is the part
    /// before the attributes.
    pub fn new(kind: u16, flags: u16, fixed: &[u8]) -> Self {
        let mut payload = fixed.to_vec();
        payload.resize(align(payload.len()), 0);
        Self { kind, flags, payload }
    }

    /// With attributes after what there is.
    #[must_use]
    pub fn with(mut self, attributes: &attribute::Writer) -> Self {
        self.payload.extend_from_slice(attributes.as_bytes());
        self
    }

    fn encode(&self, sequence: u32) -> Vec<u8> {
        let length = HEADER_BYTES + self.payload.len();
        // Questions are tens of bytes; the kernel refuses one whose length is not its own.
        let length = u32::try_from(length).unwrap_or(u32::MAX);
        let mut bytes = Vec::with_capacity(HEADER_BYTES + self.payload.len());
        bytes.extend_from_slice(&length.to_ne_bytes());
        bytes.extend_from_slice(&self.kind.to_ne_bytes());
        bytes.extend_from_slice(&(self.flags | REQUEST).to_ne_bytes());
        bytes.extend_from_slice(&sequence.to_ne_bytes());
        bytes.extend_from_slice(&0u32.to_ne_bytes());
        bytes.extend_from_slice(&self.payload);
        bytes
    }
}

/// A message, as it lies in a datagram.
#[derive(Debug)]
struct Message<'a> {
    kind: u16,
    flags: u16,
    sequence: u32,
    payload: &'a [u8],
}

/// The messages of a datagram.
struct Messages<'a>(&'a [u8]);

impl<'a> Iterator for Messages<'a> {
    type Item = Result<Message<'a>, NetlinkError>;

    fn next(&mut self) -> Option<Self::Item> {
        let bytes = self.0;
        if bytes.is_empty() {
            return None;
        }
        self.0 = &[];
        let short = || Some(Err(NetlinkError::Malformed("a message is cut")));
        let (Some(length), Some(kind), Some(flags), Some(sequence)) =
            (u32_at(bytes, 0), u16_at(bytes, 4), u16_at(bytes, 6), u32_at(bytes, 8))
        else {
            return short();
        };
        let length = length as usize;
        if length < HEADER_BYTES || length > bytes.len() {
            return short();
        }
        self.0 = bytes.get(align(length)..).unwrap_or_default();
        Some(Ok(Message { kind, flags, sequence, payload: &bytes[HEADER_BYTES..length] }))
    }
}

/// The end of a dump: an error number that is zero or less (Linux 4.14), or nothing.
fn done(payload: &[u8]) -> Result<(), NetlinkError> {
    match u32_at(payload, 0).map(u32::cast_signed) {
        Some(code) if code < 0 => Err(NetlinkError::Refused {
            source: io::Error::from_raw_os_error(code.saturating_neg()),
            words: None,
        }),
        _ => Ok(()),
    }
}

/// `struct nlmsgerr`: an error number that is zero or less, the header of the question, its payload
/// unless `NLM_F_CAPPED`, and attributes if `NLM_F_ACK_TLVS`.
fn acknowledged(message: &Message<'_>) -> Result<(), NetlinkError> {
    let code = u32_at(message.payload, 0)
        .map(u32::cast_signed)
        .ok_or(NetlinkError::Malformed("an acknowledgement is cut"))?;
    if code == 0 {
        return Ok(());
    }
    let mut words = None;
    if message.flags & ACK_TLVS != 0 {
        let repeated = match u32_at(message.payload, 4) {
            Some(length) if message.flags & CAPPED == 0 => align(length as usize),
            _ => HEADER_BYTES,
        };
        let rest = message.payload.get(4usize.saturating_add(repeated)..).unwrap_or_default();
        words = Attributes::new(rest)
            .find(|attribute| attribute.kind == ERROR_WORDS)
            .and_then(|attribute| attribute.text());
    }
    Err(NetlinkError::Refused {
        source: io::Error::from_raw_os_error(code.saturating_neg()),
        words,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u16, flags: u16, payload: &[u8]) -> Vec<u8> {
        Question { kind, flags, payload: payload.to_vec() }.encode(9)
    }

    #[test]
    fn a_question_is_laid_out_as_the_kernel_wants_it() {
        let mut attributes = attribute::Writer::default();
        attributes.u8(2, 7);
        let question = Question::new(0x1d, ACK, &[1, 2, 3]).with(&attributes);
        let bytes = question.encode(5);
        assert_eq!(u32_at(&bytes, 0), Some(28));
        assert_eq!(u16_at(&bytes, 4), Some(0x1d));
        assert_eq!(u16_at(&bytes, 6), Some(REQUEST | ACK));
        assert_eq!(u32_at(&bytes, 8), Some(5));
        assert_eq!(&bytes[16..20], [1, 2, 3, 0]);
        assert_eq!(
            &bytes[20..],
            [&5u16.to_ne_bytes()[..], &2u16.to_ne_bytes(), &[7, 0, 0, 0]].concat()
        );
    }

    #[test]
    fn a_cut_datagram_is_an_error_and_never_read_past() {
        let whole = [message(20, 0, &[1; 8]), message(21, 0, &[2; 4])].concat();
        for length in 0..whole.len() {
            let read: Vec<_> = Messages(&whole[..length]).collect();
            let complete = [0, 24].contains(&length);
            assert_eq!(read.iter().all(Result::is_ok), complete, "{length}");
        }
        let mut lies = whole.clone();
        lies[..4].copy_from_slice(&3u32.to_ne_bytes());
        assert!(Messages(&lies).next().unwrap().is_err());
    }

    #[test]
    fn a_refusal_has_the_kernel_s_own_words() {
        let mut attributes = attribute::Writer::default();
        attributes.bytes(ERROR_WORDS, b"address already in use\0");
        let mut payload = (-libc::EEXIST).to_ne_bytes().to_vec();
        payload.extend_from_slice(&message(30, 0, &[]));
        payload.extend_from_slice(attributes.as_bytes());
        for flags in [ACK_TLVS, ACK_TLVS | CAPPED] {
            let bytes = message(TYPE_ERROR, flags, &payload);
            let error = acknowledged(&Messages(&bytes).next().unwrap().unwrap()).unwrap_err();
            assert_eq!(error.errno(), Some(libc::EEXIST));
            assert!(error.to_string().starts_with("address already in use"), "{error}");
        }
    }

    #[test]
    fn answers_are_read_as_the_kernel_writes_them() {
        let verdict = |bytes: &[u8]| acknowledged(&Messages(bytes).next().unwrap()?);
        let mut answer = message(TYPE_ERROR, 0, &[0; 4]);
        assert!(verdict(&answer).is_ok());
        assert_eq!(Messages(&answer).next().unwrap().unwrap().sequence, 9, "whose it is");
        answer[16..20].copy_from_slice(&(-17i32).to_ne_bytes());
        assert_eq!(io::Error::from(verdict(&answer).unwrap_err()).raw_os_error(), Some(17));
        for length in 1..20 {
            assert!(verdict(&answer[..length]).is_err());
        }
    }

    #[test]
    fn any_bytes_are_survived() {
        let mut state = 1u32;
        for _ in 0..20_000 {
            let mut bytes = Vec::new();
            for _ in 0..state % 80 {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                bytes.push((state >> 24) as u8 & if state & 1 == 0 { 0x1f } else { 0xff });
            }
            state = state.wrapping_add(12345);
            for message in Messages(&bytes).flatten() {
                let _ = acknowledged(&message);
                let _ = done(message.payload);
                for attribute in Attributes::new(message.payload) {
                    let _ = (attribute.text(), attribute.u32(), attribute.nested().count());
                }
            }
        }
    }
}
