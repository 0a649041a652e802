//! A bounded run of the fuzz target `link`, part of `cargo test`.
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
fn whatever_a_peer_of_a_link_does_its_bounds_hold() {
    let seed = from_environment("FUZZ_SEED", 1);
    for round in 0..from_environment("FUZZ_ROUNDS", ROUNDS) {
        let mut random = SplitMix::new(seed.wrapping_add(round));
        let mut input = if round % 2 == 0 { Vec::new() } else { compressing_peer(&mut random) };
        let length = random.below(600);
        input.extend((0..length).map(|_| random.byte()));
        if let Err(panic) = std::panic::catch_unwind(|| peer::play(&input)) {
            eprintln!("seed {}: {input:02x?}", seed.wrapping_add(round));
            std::panic::resume_unwind(panic);
        }
    }
}

/// A peer that opens a stream and sends compressed frames of it, right ones and others.
fn compressing_peer(random: &mut SplitMix) -> Vec<u8> {
    let far = [1];
    let paths = [[0, 0, 1], [0, 0, random.byte()]]; // the first one speaks the newest version
    let open = [0x3f, 4, 2];
    let mut input = [&far[..], paths.as_flattened(), &open].concat();
    for _ in 0..random.below(40) {
        let low = random.byte() & 0xfe;
        input.extend(match random.below(8) {
            0 => [0x7f, random.byte(), random.byte()],
            1 => [4, 4, 0xff], // the local socket takes what there is
            2 => [0x7f, 4, low | 1],
            3 => [0x7f, 4 + 0x40 * (random.byte() % 3), low],
            _ => [0x7f, 4, low],
        });
    }
    input
}

/// The peer acknowledges a part of a piece, and a copy of the rest goes by the other path.
#[test]
fn a_peer_of_a_link_acknowledges_the_middle_of_a_piece() {
    let far = [1];
    let two_paths = [[0, 0, 0]; 2];
    let open = [0x0f, 3, 2];
    let first_is_full = [7, 0, 0];
    let put = [3, 3, 255];
    let ping_by_first = [0x1f, 9, 0];
    let ack_of_2_and_4 = [0x2f, 3, 4];
    let a_tenth = [2, 0, 100];
    let ping_by_second = [0x9f, 25, 0];
    let begin = [open, first_is_full, put, ping_by_first, ack_of_2_and_4];
    let then = [a_tenth, ping_by_first, ping_by_second].repeat(20);
    let all = [&far[..], two_paths.as_flattened(), begin.as_flattened(), then.as_flattened()];
    peer::play(&all.concat());
}
