//! Which packets are lost by chance.
//!
//! # Model
//! Independent: each packet with the same probability. Bursty, after Gilbert (1960) and Elliott
//! (1963): a chain of two states, good and bad, steps with each packet, and each state has a
//! probability of its own. Mean loss is
//! `(good_to_bad * loss_in_bad + bad_to_good * loss_in_good) / (good_to_bad + bad_to_good)`,
//! the mean length of a bad spell `1 / bad_to_good` packets.
//!
//! # Invariants  the n-th packet's fate follows from the seed and n, not from what was dropped for
//!               other reasons: two runs with other timing lose the same packets
//! # Limits      the chain steps by packets, not by time: a flow that pauses is not forgiven

use super::quantity::Share;

/// How packets are lost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Loss {
    /// Each with this probability.
    Independent(Share),
    /// In bursts.
    GilbertElliott(GilbertElliott),
}

/// The four numbers of the chain; netem calls them p, r, 1-h and 1-k.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct GilbertElliott {
    /// From good to bad, with each packet.
    pub good_to_bad: Share,
    /// From bad to good, with each packet.
    pub bad_to_good: Share,
    /// Loss in the bad state.
    pub loss_in_bad: Share,
    /// Loss in the good state.
    pub loss_in_good: Share,
}

impl Loss {
    /// The share of packets that are lost in the long run.
    #[must_use]
    pub fn mean(self) -> f64 {
        match self {
            Self::Independent(share) => share.get(),
            Self::GilbertElliott(chain) => {
                let (p, r) = (chain.good_to_bad.get(), chain.bad_to_good.get());
                if p + r == 0.0 {
                    return chain.loss_in_good.get(); // it never leaves the state it begins in
                }
                (p * chain.loss_in_bad.get() + r * chain.loss_in_good.get()) / (p + r)
            }
        }
    }

    /// Whether any packet can be lost.
    #[must_use]
    pub fn is_none(self) -> bool {
        self == Self::default()
    }
}

impl Default for Loss {
    fn default() -> Self {
        Self::Independent(Share::default())
    }
}

/// Loss as it goes on; begins in the good state.
#[derive(Clone, Debug, Default)]
pub struct Lottery {
    loss: Loss,
    bad: bool,
}

impl Lottery {
    /// Before the first packet.
    #[must_use]
    pub fn new(loss: Loss) -> Self {
        Self { loss, bad: false }
    }

    /// Whether the next packet is lost. To be called once for each packet, with two draws of its own.
    pub fn next(&mut self, draws: [u64; 2]) -> bool {
        match self.loss {
            Loss::Independent(share) => share.includes(draws[0]),
            Loss::GilbertElliott(chain) => {
                let leaves = if self.bad { chain.bad_to_good } else { chain.good_to_bad };
                self.bad ^= leaves.includes(draws[1]);
                let share = if self.bad { chain.loss_in_bad } else { chain.loss_in_good };
                share.includes(draws[0])
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rng::Rng;

    fn share(share: f64) -> Share {
        Share::new(share).unwrap()
    }

    /// Lost packets of a million, and the mean length of runs of lost ones.
    fn run(loss: Loss) -> (f64, f64) {
        let (mut lottery, mut rng) = (Lottery::new(loss), Rng::new(7));
        let (mut lost, mut runs, mut before) = (0.0, 0.0, false);
        for _ in 0..1_000_000 {
            let now = lottery.next([rng.next_u64(), rng.next_u64()]);
            lost += f64::from(u8::from(now));
            runs += f64::from(u8::from(now && !before));
            before = now;
        }
        (lost / 1e6, lost / runs)
    }

    #[test]
    fn independent_loss_is_what_was_asked() {
        let loss = Loss::Independent(share(0.03));
        let (lost, length) = run(loss);
        assert!((lost / loss.mean() - 1.0).abs() < 0.02, "{lost}");
        assert!((length - 1.0 / 0.97).abs() < 0.02, "{length}");
    }

    #[test]
    fn bursts_have_the_mean_and_the_length_that_were_asked() {
        let loss = Loss::GilbertElliott(GilbertElliott {
            good_to_bad: share(0.01),
            bad_to_good: share(0.2),
            loss_in_bad: share(1.0),
            loss_in_good: share(0.0),
        });
        assert!((loss.mean() - 0.01 / 0.21).abs() < 1e-9);
        let (lost, length) = run(loss);
        assert!((lost / loss.mean() - 1.0).abs() < 0.02, "{lost}");
        assert!((length / 5.0 - 1.0).abs() < 0.04, "{length}");
    }
}
