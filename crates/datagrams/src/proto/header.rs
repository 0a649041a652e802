//! The 48 bytes before each message, big-endian (`struct rds_header`, net/rds/rds.h).
//!
//! # Model
//! ```text
//!   0 sequence(8)  8 ack(8)  16 length(4)  20 from(2)  22 to(2)  24 flags(1)  25 credit(1)
//!   26 0(4)  30 checksum(2)  32 extensions(16): type(1) data(length by type) ..., type 0 ends
//! ```
//! Over TCP ack, credit and checksum are 0 and never read: TCP acknowledges.
//!
//! # Limits
//! Extensions after one of unknown type and length cannot be read, and are ignored.

/// Bytes of a header.
pub const HEADER_BYTES: usize = 48;
/// Bytes of a message at most (RDS_MAX_MSG_SIZE).
pub const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Lanes between two hosts at most (RDS_MPATH_WORKERS).
pub const LANES_MAX: usize = 8;
/// The port that probes come from (RDS_FLAG_PROBE_PORT). No program may bind it.
pub const PROBE_PORT: u16 = 1;
/// Bytes for extension headers (RDS_HEADER_EXT_SPACE).
pub const EXTENSION_BYTES: usize = 16;

/// It is a congestion map. Only a header with no other flag is one (net/rds/tcp_recv.c).
pub const FLAG_MAP: u8 = 1;
/// An acknowledgement is wanted; TCP does that.
pub const FLAG_ACK: u8 = 2;
/// It may have come before.
pub const FLAG_AGAIN: u8 = 4;

/// Where the flags are.
pub const FLAGS_AT: usize = 24;

/// The header of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Header {
    /// Its number on its lane, from 1; 0 for congestion maps.
    pub sequence: u64,
    /// Bytes that follow.
    pub length: u32,
    /// The sender's port.
    pub from: u16,
    /// The receiver's port; 0 is a ping.
    pub to: u16,
    /// [`FLAG_MAP`], [`FLAG_ACK`], [`FLAG_AGAIN`].
    pub flags: u8,
    /// Extension headers.
    pub extensions: [u8; EXTENSION_BYTES],
}

impl Header {
    /// Reads it. Any bytes are a valid header.
    #[must_use]
    pub fn parse(bytes: &[u8; HEADER_BYTES]) -> Self {
        let two = |at: usize| u16::from_be_bytes([bytes[at], bytes[at + 1]]);
        let mut sequence = [0; 8];
        sequence.copy_from_slice(&bytes[..8]);
        let mut extensions = [0; EXTENSION_BYTES];
        extensions.copy_from_slice(&bytes[32..]);
        Self {
            sequence: u64::from_be_bytes(sequence),
            length: u32::from(two(16)) << 16 | u32::from(two(18)),
            from: two(20),
            to: two(22),
            flags: bytes[FLAGS_AT],
            extensions,
        }
    }

    /// Writes it.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(&self.sequence.to_be_bytes());
        bytes[16..20].copy_from_slice(&self.length.to_be_bytes());
        bytes[20..22].copy_from_slice(&self.from.to_be_bytes());
        bytes[22..24].copy_from_slice(&self.to.to_be_bytes());
        bytes[FLAGS_AT] = self.flags;
        bytes[32..].copy_from_slice(&self.extensions);
        bytes
    }

    /// Whether it is a congestion map, which is outside the sequence.
    #[must_use]
    pub fn is_map(&self) -> bool {
        self.flags == FLAG_MAP
    }

    /// Whether it is a probe or its answer, which say how many lanes there are.
    #[must_use]
    pub fn is_probe(&self) -> bool {
        matches!((self.from, self.to), (PROBE_PORT, 0) | (0, PROBE_PORT))
    }
}

/// Types of extension headers, and the bytes that follow each of them.
const NPATHS: u8 = 5;
const GEN_NUM: u8 = 6;
const SPORT_IDX: u8 = 8;

fn length_of(kind: u8) -> Option<usize> {
    Some(match kind {
        1 | 2 | GEN_NUM => 4, // 1 VERSION, 2 RDMA
        3 | 4 => 8,           // RDMA_DEST, RDMA_BYTES
        NPATHS => 2,
        SPORT_IDX => 1,
        _ => return None,
    })
}

/// A host's announcement of itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Announcement {
    /// How many lanes it has; `None` if it does not say, which means one.
    pub lanes: Option<u16>,
    /// Its generation: another one after a restart. 0 if it does not say.
    pub generation: u32,
    /// Whether the source ports that it dials from name lanes, by their remainder.
    pub port_is_lane: bool,
}

/// An unreadable extension header: those after it were not read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Unreadable(pub u8);

impl Announcement {
    /// Reads the extension headers of a probe, as far as they can be read.
    #[must_use]
    pub fn read(extensions: &[u8; EXTENSION_BYTES]) -> Self {
        Self::read_checked(extensions).0
    }

    /// Reads them, and says which type ended the reading: an unknown one, or one whose data are cut off.
    #[must_use]
    pub fn read_checked(extensions: &[u8; EXTENSION_BYTES]) -> (Self, Option<Unreadable>) {
        let mut found = Self::default();
        let mut rest = &extensions[..];
        while let Some((kind, after)) = rest.split_first() {
            if *kind == 0 {
                break;
            }
            let Some((data, next)) = length_of(*kind).and_then(|n| after.split_at_checked(n))
            else {
                return (found, Some(Unreadable(*kind)));
            };
            match (*kind, data) {
                (NPATHS, [high, low]) => found.lanes = Some(u16::from_be_bytes([*high, *low])),
                (GEN_NUM, [a, b, c, d]) => {
                    found.generation = u32::from_be_bytes([*a, *b, *c, *d]);
                }
                (SPORT_IDX, _) => found.port_is_lane = true,
                _ => {}
            }
            rest = next;
        }
        (found, None)
    }

    /// Writes them, in the order in which kernels do.
    #[must_use]
    pub fn write(&self) -> [u8; EXTENSION_BYTES] {
        let mut bytes = [0; EXTENSION_BYTES];
        let mut at = 0;
        let mut put = |kind: u8, data: &[u8]| {
            bytes[at] = kind;
            bytes[at + 1..=at + data.len()].copy_from_slice(data);
            at += 1 + data.len();
        };
        if let Some(lanes) = self.lanes {
            put(NPATHS, &lanes.to_be_bytes());
        }
        if self.generation != 0 {
            put(GEN_NUM, &self.generation.to_be_bytes());
        }
        if self.port_is_lane {
            put(SPORT_IDX, &[0]);
        }
        bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A probe of Linux up to 6.18: sequence 1, from port 1 to port 0, eight lanes and nothing else.
    const OLD_PROBE: [u8; HEADER_BYTES] = [
        0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 5, 0, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    /// Its answer by a later one: eight lanes, a generation, and ports that name lanes.
    const NEW_ANSWER: [u8; HEADER_BYTES] = [
        0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0,
        0, 0, 5, 0, 8, 6, 0x12, 0x34, 0x56, 0x78, 8, 0, 0, 0, 0, 0, 0, 0,
    ];

    #[test]
    fn a_probe_of_an_old_kernel_names_lanes_only() {
        let header = Header::parse(&OLD_PROBE);
        assert_eq!((header.sequence, header.from, header.to), (1, PROBE_PORT, 0));
        assert!(header.is_probe() && !header.is_map());
        let said = Announcement::read(&header.extensions);
        assert_eq!(said, Announcement { lanes: Some(8), ..Announcement::default() });
        assert_eq!(said.write(), header.extensions);
    }

    #[test]
    fn the_answer_of_a_later_kernel_has_all_three() {
        let header = Header::parse(&NEW_ANSWER);
        assert!(header.is_probe());
        let said = Announcement::read(&header.extensions);
        let wanted = Announcement { lanes: Some(8), generation: 0x1234_5678, port_is_lane: true };
        assert_eq!(said, wanted);
        assert_eq!(said.write(), header.extensions);
        assert_eq!(header.encode(), NEW_ANSWER);
    }

    #[test]
    fn extensions_that_lie_end_the_reading() {
        let read = |bytes: &[u8]| {
            let mut extensions = [0; EXTENSION_BYTES];
            extensions[..bytes.len()].copy_from_slice(bytes);
            Announcement::read(&extensions)
        };
        assert_eq!(read(&[99, 5, 0, 8]), Announcement::default());
        assert_eq!(read(&[5, 0, 4, 77, 6, 1, 1, 1, 1]).lanes, Some(4));
        // A generation that begins two bytes before the end has no room.
        let cut = [3, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 6, 9];
        assert_eq!(Announcement::read(&cut), Announcement::default());
        assert_eq!(read(&[]), Announcement::default());
        assert_eq!(Announcement::read_checked(&cut).1, Some(Unreadable(6)));
        assert_eq!(Announcement::read_checked(&[99; 16]).1, Some(Unreadable(99)));
        assert_eq!(Announcement::read_checked(&[0; 16]).1, None);
    }

    #[test]
    fn only_a_map_with_no_other_flag_is_one() {
        let with = |flags| Header { flags, ..Header::default() }.is_map();
        assert!(with(FLAG_MAP) && !with(FLAG_MAP | FLAG_AGAIN) && !with(0));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_header(bytes: [u8; HEADER_BYTES]) {
            let header = Header::parse(&bytes);
            let said = Announcement::read(&header.extensions);
            prop_assert_eq!(Announcement::read(&said.write()), said);
            prop_assert_eq!(Header::parse(&header.encode()), header);
        }
    }
}
