//! The lane of a port's messages.
//!
//! # Model       `jhash_1word(port, key) & (lanes - 1)` (RDS_MPATH_HASH, net/rds/rds.h; jhash.h), with a
//!               key that the sender draws once and keeps: a receiver takes any port on any lane.
//!               The choice is among the lanes with the fewest ports when a port is bound
//! # Why not     the hash alone, as in the kernel: 8 ports use 5.3 lanes of 8, and with 32 ports
//!               one lane is empty in one case of nine
//! # Limits      as in the kernel the number of lanes is used as a mask: if it is no power of two,
//!               some lanes stay empty

use std::cmp::Ordering;

use super::header::LANES_MAX;

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

/// How many ports each lane has.
#[derive(Clone, Debug, Default)]
pub struct Shares([u32; LANES_MAX]);

impl Shares {
    /// The lane, of [`LANES_MAX`], of a port that is bound: by its hash, among those with the fewest
    /// ports, so that it is one of the fewest also where there are fewer lanes.
    pub fn take(&mut self, port: u16, key: u32) -> usize {
        let hash = jhash(port.into(), key) as usize;
        let mut lane = 0;
        let mut lanes = 1;
        while lanes < LANES_MAX {
            let ports = |lane: usize| -> u32 {
                let same = |other: &usize| among(*other, 2 * lanes) == lane;
                (0..LANES_MAX).filter(same).map(|other| self.0[other]).sum()
            };
            let other = lane + lanes;
            let takes_other = match ports(lane).cmp(&ports(other)) {
                Ordering::Less => false,
                Ordering::Greater => true,
                Ordering::Equal => hash & lanes != 0,
            };
            lane = if takes_other { other } else { lane };
            lanes *= 2;
        }
        self.0[lane] += 1;
        lane
    }

    /// A port of this lane is released.
    pub fn give_back(&mut self, lane: usize) {
        self.0[lane] = self.0[lane].saturating_sub(1);
    }
}

/// Maps one of [`LANES_MAX`] lanes to one of fewer.
#[must_use]
pub fn among(lane: usize, lanes: usize) -> usize {
    lane & lanes.saturating_sub(1)
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
    fn each_lane_has_as_many_ports_as_each_other_and_none_beyond_has_any() {
        for lanes in [1, 2, 4, 8] {
            for key in 0..20 {
                let (mut shares, mut used) = (Shares::default(), [0; LANES_MAX]);
                for port in 4001..4033 {
                    used[among(shares.take(port, key), lanes)] += 1;
                }
                let (these, beyond) = used.split_at(lanes);
                assert!(these.iter().all(|count| *count == 32 / lanes), "{used:?}");
                assert!(beyond.iter().all(|count| *count == 0), "{used:?}");
            }
        }
    }

    #[test]
    fn a_lane_that_ports_have_left_is_next() {
        let mut shares = Shares::default();
        let lanes: Vec<usize> = (4001..4017).map(|port| shares.take(port, 7)).collect();
        let emptied = lanes[3];
        (0..2).for_each(|_| shares.give_back(emptied));
        assert_eq!((shares.take(9, 7), shares.take(10, 7)), (emptied, emptied));
    }

    #[test]
    fn the_first_port_has_the_kernels_lane() {
        for port in [2, 4001, u16::MAX] {
            let lane = Shares::default().take(port, 0x1234);
            assert_eq!(lane, jhash(port.into(), 0x1234) as usize % LANES_MAX);
        }
    }
}
