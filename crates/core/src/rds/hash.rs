//! Which lane the messages of a port go by.
//!
//! # Model       `jhash_1word(port, key) & (lanes - 1)` (RDS_MPATH_HASH, net/rds/rds.h; jhash.h), with a
//!               key that the sender draws once and keeps: a receiver takes any port on any lane
//! # Limits      as in the kernel the number of lanes is used as a mask: of a number that is no power
//!               of two, some lanes stay empty

/// `JHASH_INITVAL` and the length that jhash_1word adds.
const START: u32 = 0xdead_beef + (1 << 2);

/// Bob Jenkins's hash of one word, as the kernel computes it.
#[must_use]
pub fn jhash(word: u32, key: u32) -> u32 {
    let start = START.wrapping_add(key);
    let (mut a, mut b, mut c) = (word.wrapping_add(start), start, start);
    let mix = |to: &mut u32, by: u32, left: u32| {
        *to = (*to ^ by).wrapping_sub(by.rotate_left(left));
    };
    mix(&mut c, b, 14);
    mix(&mut a, c, 11);
    mix(&mut b, a, 25);
    mix(&mut c, b, 16);
    mix(&mut a, c, 4);
    mix(&mut b, a, 14);
    mix(&mut c, b, 24);
    c
}

/// The lane of a port among `lanes`.
#[must_use]
pub fn lane_of(port: u16, key: u32, lanes: usize) -> usize {
    jhash(port.into(), key) as usize & lanes.saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// By the kernel's macros, compiled as C.
    const KNOWN: [(u32, u32, u32); 6] = [
        (4001, 0x0, 0xbc7d_f522),
        (65535, 0x0, 0x1e1e_8ecb),
        (4001, 0xdead_beef, 0xe001_3cfb),
        (16385, 0xdead_beef, 0x894a_596a),
        (4001, 0x1, 0xb2d_2cde),
        (16385, 0x1, 0x5089_01c5),
    ];

    #[test]
    fn it_is_the_kernels() {
        for (word, key, hash) in KNOWN {
            assert_eq!(jhash(word, key), hash, "{word} {key:#x}");
        }
    }

    #[test]
    fn every_lane_is_used_and_none_beyond() {
        for lanes in [1, 2, 4, 8] {
            let mut used = [0; 8];
            for port in 4001..4129 {
                used[lane_of(port, 7, lanes)] += 1;
            }
            let (these, beyond) = used.split_at(lanes);
            assert!(these.iter().all(|count| *count > 0), "{used:?}");
            assert!(beyond.iter().all(|count| *count == 0), "{used:?}");
        }
    }
}
