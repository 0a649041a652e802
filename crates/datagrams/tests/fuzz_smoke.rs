//! A bounded run of the fuzz target `rds`, part of `cargo test`.
//!
//! Inputs come from a seeded generator: the same ones in each run. `FUZZ_SEED` and `FUZZ_ROUNDS`
//! choose others and more.

#[path = "fuzz_smoke/peer.rs"]
mod peer;

use hawser_time::seeded::SplitMix;

/// Inputs of a run of a few seconds in a debug build.
const ROUNDS: u64 = 3_000;

fn from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect("a number"))
}

#[test]
fn whatever_a_peer_of_datagrams_does_its_bounds_hold() {
    let seed = from_environment("FUZZ_SEED", 1);
    for round in 0..from_environment("FUZZ_ROUNDS", ROUNDS) {
        let mut random = SplitMix::new(seed.wrapping_add(round));
        let length = random.below(600);
        let mut input: Vec<u8> = (0..length).map(|_| random.byte()).collect();
        // Most operations are frames: of those alone are queues filled.
        for at in (1..input.len()).step_by(3) {
            if random.below(4) > 0 {
                input[at] |= 7;
            }
        }
        // Something is sent, and a connection comes.
        if let [_, sends, _, _, connects, ..] = &mut *input {
            (*sends, *connects) = (5, 0);
        }
        if let Err(panic) = std::panic::catch_unwind(|| peer::play(&input)) {
            eprintln!("seed {}: {input:02x?}", seed.wrapping_add(round));
            std::panic::resume_unwind(panic);
        }
    }
}
