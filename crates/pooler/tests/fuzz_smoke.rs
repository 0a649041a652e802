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
#[path = "fuzz_smoke/shrink.rs"]
mod shrink;
#[path = "fuzz_smoke/splits.rs"]
mod splits;
#[path = "fuzz_smoke/texts.rs"]
mod texts;

use shrink::{Random, outcome, shrink};

/// Inputs of a run of a few seconds in a debug build.
const ROUNDS: u64 = 1_200;

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
