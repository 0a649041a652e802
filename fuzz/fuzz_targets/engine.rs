//! Sequences of what clients, servers, loops and operators do; see the driver's own words.
#![no_main]

#[path = "../../crates/pooler/tests/fuzz_smoke/driver.rs"]
mod driver;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    if let Err(wrong) = driver::play(input, false) {
        panic!("{wrong}");
    }
});
