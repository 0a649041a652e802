//! What a peer of reliable datagrams does; see the driver's own words.
#![no_main]

#[path = "../../crates/datagrams/tests/fuzz_smoke/peer.rs"]
mod peer;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| peer::play(input));
