//! Attributes of netlink messages: type, length, value.

/// `NLA_F_NESTED`: the value is attributes.
const NESTED: u16 = 1 << 15;
/// `NLA_TYPE_MASK`: without `NLA_F_NESTED` and `NLA_F_NET_BYTEORDER`.
const KIND_MASK: u16 = 0x3fff;
/// `struct nlattr`.
const HEADER_BYTES: usize = 4;

/// Lengths are rounded up to 4 (`NLMSG_ALIGN`, `NLA_ALIGN`).
pub(crate) fn align(length: usize) -> usize {
    length.saturating_add(3) & !3
}

/// The number of 2 bytes at `at`, in the host's byte order.
pub fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..)?.first_chunk().copied().map(u16::from_ne_bytes)
}

/// The number of 4 bytes at `at`, in the host's byte order.
pub fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().copied().map(u32::from_ne_bytes)
}

/// The number of 8 bytes at `at`, in the host's byte order.
pub fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().copied().map(u64::from_ne_bytes)
}

/// An attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attribute<'a> {
    /// Its type, without flags.
    pub kind: u16,
    /// Its value.
    pub value: &'a [u8],
}

impl<'a> Attribute<'a> {
    /// As a number of 1 byte.
    pub fn u8(&self) -> Option<u8> {
        self.value.first().copied()
    }

    /// As a number of 2 bytes, in the host's byte order.
    pub fn u16(&self) -> Option<u16> {
        u16_at(self.value, 0)
    }

    /// As a number of 2 bytes, in the network's byte order.
    pub fn u16_be(&self) -> Option<u16> {
        self.u16().map(u16::from_be)
    }

    /// As a number of 4 bytes, in the host's byte order.
    pub fn u32(&self) -> Option<u32> {
        u32_at(self.value, 0)
    }

    /// As text up to its NUL; bytes that are no UTF-8 are replaced.
    pub fn text(&self) -> Option<String> {
        let end = self.value.iter().position(|byte| *byte == 0).unwrap_or(self.value.len());
        (end > 0).then(|| String::from_utf8_lossy(&self.value[..end]).into_owned())
    }

    /// As attributes.
    pub fn nested(&self) -> Attributes<'a> {
        Attributes::new(self.value)
    }
}

/// The attributes in some bytes; ends at the first whose length cannot be true.
#[derive(Clone, Debug)]
pub struct Attributes<'a>(&'a [u8]);

impl<'a> Attributes<'a> {
    /// Those in `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }
}

impl<'a> Iterator for Attributes<'a> {
    type Item = Attribute<'a>;

    fn next(&mut self) -> Option<Self::Item> {
        let bytes = std::mem::take(&mut self.0);
        let length = usize::from(u16_at(bytes, 0)?);
        let kind = u16_at(bytes, 2)? & KIND_MASK;
        if length < HEADER_BYTES {
            return None;
        }
        let value = bytes.get(HEADER_BYTES..length)?;
        self.0 = bytes.get(align(length)..).unwrap_or_default();
        Some(Attribute { kind, value })
    }
}

/// Attributes of a question.
#[derive(Clone, Debug, Default)]
pub struct Writer(Vec<u8>);

impl Writer {
    /// What was written.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Adds an attribute. At most [`u16::MAX`] bytes with its header.
    ///
    /// # Panics
    /// With more: no question of ours comes near it.
    pub fn bytes(&mut self, kind: u16, value: &[u8]) {
        let length = u16::try_from(HEADER_BYTES + value.len());
        #[expect(clippy::expect_used, reason = "values are addresses, names and numbers")]
        let length = length.expect("a netlink attribute is shorter than 64 KiB");
        self.0.extend_from_slice(&length.to_ne_bytes());
        self.0.extend_from_slice(&kind.to_ne_bytes());
        self.0.extend_from_slice(value);
        self.0.resize(align(self.0.len()), 0);
    }

    /// Adds a number of 1 byte.
    pub fn u8(&mut self, kind: u16, value: u8) {
        self.bytes(kind, &[value]);
    }

    /// Adds a number of 2 bytes.
    pub fn u16(&mut self, kind: u16, value: u16) {
        self.bytes(kind, &value.to_ne_bytes());
    }

    /// Adds a number of 4 bytes.
    pub fn u32(&mut self, kind: u16, value: u32) {
        self.bytes(kind, &value.to_ne_bytes());
    }

    /// Adds attributes as one.
    pub fn nested(&mut self, kind: u16, inner: &Self) {
        self.bytes(kind | NESTED, &inner.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_flags_are_no_part_of_the_type() {
        let mut inner = Writer::default();
        inner.u16(3, 500);
        let mut outer = Writer::default();
        outer.u8(1, 7);
        outer.nested(2, &inner);
        outer.bytes(4, b"name\0rest");
        let read: Vec<_> = Attributes::new(outer.as_bytes()).collect();
        assert_eq!(read.iter().map(|a| a.kind).collect::<Vec<_>>(), [1, 2, 4]);
        assert_eq!(read[0].u8(), Some(7));
        assert_eq!(read[1].nested().next().unwrap().u16(), Some(500));
        assert_eq!(read[2].text().as_deref(), Some("name"));
    }

    #[test]
    fn a_length_that_lies_ends_the_walk() {
        for bytes in [&[3u8, 0, 1, 0, 0, 0][..], &[9, 0, 1, 0, 5], &[4], &[]] {
            assert_eq!(Attributes::new(bytes).count(), 0, "{bytes:?}");
        }
        let mut good = Writer::default();
        good.u32(1, 1);
        let mut bytes = good.as_bytes().to_vec();
        bytes.extend_from_slice(&[0xff, 0xff, 1, 0]);
        assert_eq!(Attributes::new(&bytes).count(), 1);
    }
}
