//! Unpredictable numbers, from the kernel (getrandom(2), Linux 3.17).

use rustix::io::Errno;
use rustix::rand::{GetRandomFlags, getrandom};

/// Fills `bytes` with unpredictable ones.
///
/// # Panics
/// If the kernel has no randomness to give, which it has on every system that has booted: no login could be
/// safe then.
pub fn random_bytes(bytes: &mut [u8]) {
    let mut filled = 0;
    while filled < bytes.len() {
        match getrandom(&mut bytes[filled..], GetRandomFlags::empty()) {
            Ok(count) => filled += count,
            Err(Errno::INTR) => {}
            Err(error) => panic!("the kernel gives no random bytes: {error}"),
        }
    }
}

/// A random number.
///
/// # Panics
/// As [`random_bytes`].
pub fn random_u64() -> u64 {
    let mut bytes = [0; 8];
    random_bytes(&mut bytes);
    u64::from_ne_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_of_it_is_filled() {
        // As many zeros at the end come once in 2^128 times.
        let mut bytes = [0; 4096];
        random_bytes(&mut bytes);
        assert_ne!(bytes[4080..], [0; 16]);
        assert_ne!(random_u64(), random_u64());
        random_bytes(&mut []);
    }
}
