//! Headers and strings of protocol messages, read without copying.

use memchr::memchr;

/// Bytes of a message's header: kind and length.
pub const HEADER_BYTES: usize = 5;

/// The largest body that a message may have. PostgreSQL itself takes at most 1 GiB - 1 in one
/// message (`PQ_LARGE_MESSAGE_LIMIT`, src/include/libpq/libpq.h).
pub const BODY_BYTES_MAX: usize = 0x3fff_ffff - 4;

/// A message's header.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Header {
    /// The kind of message.
    pub kind: u8,
    /// Bytes that follow the header.
    pub body: usize,
}

impl Header {
    /// Bytes of the whole message.
    pub fn total(self) -> usize {
        HEADER_BYTES + self.body
    }
}

/// What is at the start of some bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Framed {
    /// A header; the body may still be on its way.
    Header(Header),
    /// Fewer bytes than a header has.
    Short,
    /// A length that no message may have: framing is lost.
    BadLength {
        /// The kind of message that had it.
        kind: u8,
        /// The length as it was sent.
        length: u32,
    },
}

/// Reads the header at the start of `bytes`.
#[inline]
pub fn header(bytes: &[u8]) -> Framed {
    let Some(head) = bytes.first_chunk::<HEADER_BYTES>() else {
        return Framed::Short;
    };
    let [kind, a, b, c, d] = *head;
    let length = u32::from_be_bytes([a, b, c, d]);
    if length < 4 || length as usize - 4 > BODY_BYTES_MAX {
        return Framed::BadLength { kind, length };
    }
    Framed::Header(Header { kind, body: length as usize - 4 })
}

/// Takes a NUL-terminated string off the front of `bytes`: the string without its NUL, and what
/// follows. `None` if there is no NUL.
#[inline]
pub fn take_string(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = end_of_string(bytes)?;
    Some((&bytes[..end], &bytes[end + 1..]))
}

/// The index of the first NUL. Most strings are short names that end within one word: a call of
/// memchr costs five times as much as a test of that word.
#[inline]
fn end_of_string(bytes: &[u8]) -> Option<usize> {
    const ONES: u64 = u64::from_ne_bytes([0x01; 8]);
    const HIGHS: u64 = u64::from_ne_bytes([0x80; 8]);
    if let Some(word) = bytes.first_chunk::<8>() {
        let word = u64::from_le_bytes(*word);
        // The lowest set bit is the high bit of the first byte that is 0.
        let zeros = word.wrapping_sub(ONES) & !word & HIGHS;
        if zeros != 0 {
            return Some(zeros.trailing_zeros() as usize / 8);
        }
    }
    memchr(0, bytes)
}

/// Takes a big-endian u32 off the front of `bytes`.
#[inline]
pub fn take_u32(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<4>()?;
    Some((u32::from_be_bytes(*head), rest))
}

/// Takes a big-endian u16 off the front of `bytes`.
#[inline]
pub fn take_u16(bytes: &[u8]) -> Option<(u16, &[u8])> {
    let (head, rest) = bytes.split_first_chunk::<2>()?;
    Some((u16::from_be_bytes(*head), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_needs_five_bytes_and_a_length_of_at_least_four() {
        assert_eq!(header(b"Q\0\0\0"), Framed::Short);
        assert_eq!(header(b"S\0\0\0\x04"), Framed::Header(Header { kind: b'S', body: 0 }));
        assert_eq!(header(b"Q\0\0\0\x03"), Framed::BadLength { kind: b'Q', length: 3 });
        assert_eq!(
            header(b"Q\xff\xff\xff\xff"),
            Framed::BadLength { kind: b'Q', length: u32::MAX }
        );
        assert_eq!(
            header(b"Q\x3f\xff\xff\xff"),
            Framed::Header(Header { kind: b'Q', body: BODY_BYTES_MAX })
        );
        assert!(matches!(header(b"Q\x40\0\0\0"), Framed::BadLength { .. }));
    }

    #[test]
    fn strings_end_at_their_nul() {
        assert_eq!(take_string(b"ab\0c"), Some((&b"ab"[..], &b"c"[..])));
        assert_eq!(take_string(b"\0"), Some((&b""[..], &b""[..])));
        assert_eq!(take_string(b"ab"), None);
        for filler in [1, 0x7f, 0x80, 0xff] {
            for end in 0..40 {
                let mut bytes = vec![filler; 40];
                assert_eq!(take_string(&bytes[..end]), None);
                (bytes[end], bytes[39]) = (0, 0);
                assert_eq!(take_string(&bytes), Some((&bytes[..end], &bytes[end + 1..])));
            }
        }
    }
}
