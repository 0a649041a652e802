//! What a peer of a link does; see the driver's own words.
#![no_main]

#[path = "../../crates/link/tests/fuzz_smoke/peer.rs"]
mod peer;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| peer::play(input));
