//! A bounded run of the fuzz targets, part of `cargo test`.
//!
//! Inputs come from a seeded generator: the same ones in each run. `FUZZ_SEED` and `FUZZ_ROUNDS`
//! choose others and more; `FUZZ_INPUT` (hex) plays one input and tells what happens in it. A
//! failing input is shrunk and printed as a line for `fuzz_smoke/kept.rs`; `FUZZ_FAILURES` asks for
//! more than the first.

#[path = "fuzz_smoke/driver.rs"]
mod driver;
#[path = "fuzz_smoke/kept.rs"]
mod kept;
#[path = "fuzz_smoke/link_peer.rs"]
mod link_peer;
#[path = "fuzz_smoke/peer.rs"]
mod peer;
#[path = "fuzz_smoke/shrink.rs"]
mod shrink;
#[path = "fuzz_smoke/splits.rs"]
mod splits;
#[path = "fuzz_smoke/texts.rs"]
mod texts;

use shrink::{Random, outcome, shrink};

/// Inputs of a run of a few seconds in a debug build.
const ROUNDS: u64 = 1_200;
/// Inputs of the target `rds`.
const PEER_ROUNDS: u64 = 3_000;
/// Inputs of the target `link`.
const LINK_ROUNDS: u64 = 3_000;

fn from_environment(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect("a number"))
}

/// An input: bytes, with operations in likely proportions (see `driver::Play::operate`).
fn input(random: &mut Random) -> Vec<u8> {
    let mut input: Vec<u8> = (0..driver::HEAD).map(|_| random.byte()).collect();
    let operations = 10 + random.below(150);
    // Some inputs are without faults, so that everything in them must be right to the byte.
    let faults = random.below(3) == 0;
    for _ in 0..operations {
        let [mut what, who, how] = [random.byte(), random.byte(), random.byte()];
        if !faults && matches!(what % 32, 10 | 19 | 20 | 30 | 31) {
            what = 14;
        }
        input.extend_from_slice(&[what, who, how]);
    }
    input
}

#[test]
fn random_sequences_keep_all_invariants() {
    if let Ok(hex) = std::env::var("FUZZ_INPUT") {
        if let Err(wrong) = driver::play(&shrink::from_hex(&hex), true) {
            panic!("{wrong}");
        }
        return;
    }
    let seed = from_environment("FUZZ_SEED", 1);
    let mut failures: Vec<String> = Vec::new();
    let failures_max = from_environment("FUZZ_FAILURES", 1) as usize;
    for round in 0..from_environment("FUZZ_ROUNDS", ROUNDS) {
        let input = input(&mut Random::new(seed.wrapping_add(round)));
        if let Err(wrong) = outcome(&input) {
            let (small, wrong_small) = shrink(input, wrong.clone());
            failures.push(format!(
                "seed {}: {wrong}\nshrunk: {wrong_small}\n    kept(\"{}\");\n",
                seed.wrapping_add(round),
                shrink::hex(&small),
            ));
            if failures.len() >= failures_max {
                break;
            }
        }
    }
    assert!(failures.is_empty(), "\n{}", failures.join("\n"));
}

#[test]
fn whatever_a_peer_of_datagrams_does_its_bounds_hold() {
    let seed = from_environment("FUZZ_SEED", 1);
    for round in 0..from_environment("FUZZ_ROUNDS", PEER_ROUNDS) {
        let mut random = Random::new(seed.wrapping_add(round));
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
            eprintln!("seed {}: {}", seed.wrapping_add(round), shrink::hex(&input));
            std::panic::resume_unwind(panic);
        }
    }
}

#[test]
fn whatever_a_peer_of_a_link_does_its_bounds_hold() {
    let seed = from_environment("FUZZ_SEED", 1);
    for round in 0..from_environment("FUZZ_ROUNDS", LINK_ROUNDS) {
        let mut random = Random::new(seed.wrapping_add(round));
        let mut input = if round % 2 == 0 { Vec::new() } else { compressing_peer(&mut random) };
        let length = random.below(600);
        input.extend((0..length).map(|_| random.byte()));
        if let Err(panic) = std::panic::catch_unwind(|| link_peer::play(&input)) {
            eprintln!("seed {}: {}", seed.wrapping_add(round), shrink::hex(&input));
            std::panic::resume_unwind(panic);
        }
    }
}

/// A peer that opens a stream and sends compressed frames of it, right ones and others.
fn compressing_peer(random: &mut Random) -> Vec<u8> {
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
    link_peer::play(&all.concat());
}
