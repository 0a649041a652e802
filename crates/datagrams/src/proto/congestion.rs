//! Which ports of a host take no more.
//!
//! # Model       65,536 bits: port p is bit p % 8 of byte p / 8 (net/rds/cong.c). A host sends the
//!               whole map whenever a bit changes and when a lane comes up; senders to a port whose bit
//!               is set wait
//! # Limits      a map with no bit set, which is nearly every one, takes no memory

/// Bytes of a map.
pub const MAP_BYTES: usize = 65_536 / 8;

/// The ports of one host that are congested.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Map(Option<Box<[u8; MAP_BYTES]>>);

impl Map {
    /// Whether a port takes no more.
    #[must_use]
    pub fn is_set(&self, port: u16) -> bool {
        let at = usize::from(port);
        self.0.as_ref().is_some_and(|bits| bits[at / 8] & 1 << (at % 8) != 0)
    }

    /// Sets or clears a port's bit.
    pub fn set(&mut self, port: u16, congested: bool) {
        let at = usize::from(port);
        if congested {
            let bits = self.0.get_or_insert_with(|| Box::new([0; MAP_BYTES]));
            bits[at / 8] |= 1 << (at % 8);
        } else if let Some(bits) = &mut self.0 {
            bits[at / 8] &= !(1 << (at % 8));
            if bits.iter().all(|byte| *byte == 0) {
                self.0 = None;
            }
        }
    }

    /// Reads what a peer sent; `None` if it is no map.
    #[must_use]
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let bits: &[u8; MAP_BYTES] = bytes.try_into().ok()?;
        let any = bits.iter().any(|byte| *byte != 0);
        Some(Self(any.then(|| Box::new(*bits))))
    }

    /// Writes the bytes that are sent, [`MAP_BYTES`] of them, over zeros.
    pub fn write(&self, to: &mut [u8]) {
        if let Some(bits) = &self.0 {
            to.copy_from_slice(&bits[..]);
        }
    }

    /// Ports that are set.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.as_ref().map_or(0, |bits| bits.iter().map(|b| b.count_ones() as usize).sum())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bit_is_where_the_kernel_has_it() {
        let mut map = Map::default();
        map.set(4001, true);
        let mut bytes = [0; MAP_BYTES];
        map.write(&mut bytes);
        assert_eq!((bytes.len(), bytes[4001 / 8]), (8192, 1 << 1));
        let read = Map::read(&bytes).unwrap();
        assert!(read.is_set(4001) && !read.is_set(4000) && read.count() == 1);
        map.set(4001, false);
        assert_eq!(map, Map::default(), "an empty map takes no memory");
    }

    #[test]
    fn both_ends_of_the_ports_and_a_wrong_length() {
        let mut map = Map::default();
        map.set(0, true);
        map.set(u16::MAX, true);
        assert!(map.is_set(0) && map.is_set(u16::MAX) && map.count() == 2);
        assert_eq!(Map::read(&[0; MAP_BYTES - 1]), None);
        assert_eq!(Map::read(&[0; MAP_BYTES + 1]), None);
        assert_eq!(Map::read(&[0; MAP_BYTES]), Some(Map::default()));
    }
}
