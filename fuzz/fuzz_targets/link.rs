//! What a peer of a link does; see the driver's own words.
#![no_main]

#[path = "../../crates/core/tests/fuzz_smoke/link_peer.rs"]
mod link_peer;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| link_peer::play(input));
