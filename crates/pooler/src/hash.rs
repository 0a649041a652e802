//! Hashers for keys of outsiders and of our own.

use std::collections::HashMap;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher};

use siphasher::sip::SipHasher13;

/// A hasher for keys that come from outside: SipHash under a secret of the process.
#[derive(Clone, Copy, Debug)]
pub struct Keyed(pub u64);

impl BuildHasher for Keyed {
    type Hasher = SipHasher13;
    fn build_hasher(&self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.0, self.0.rotate_left(32) ^ 0x9e37_79b9_7f4a_7c15)
    }
}

/// A hasher for ids of our own making, which no outsider chooses.
#[derive(Default, Debug)]
pub struct IdHasher(u64);

impl Hasher for IdHasher {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.write_u64(u64::from(*byte));
        }
    }
    fn write_u64(&mut self, id: u64) {
        // Fibonacci hashing: the table uses the high bits as tags and the low ones as index.
        self.0 = (self.0 ^ id).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(32);
    }
    fn write_u32(&mut self, id: u32) {
        self.write_u64(u64::from(id));
    }
}

/// A map keyed by ids of our own making.
pub type IdMap<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;
