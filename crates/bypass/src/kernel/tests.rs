//! The maps and programs in the running kernel, where it lets us.

use super::*;

#[test]
fn the_kernel_verifies_the_programs_or_says_why_not() {
    match Bypass::probe() {
        Ok(()) => {}
        Err(error @ (BypassError::Refused { .. } | BypassError::Btf(_))) => panic!("{error}"),
        Err(error) => eprintln!("skipped: {error}"),
    }
}

#[test]
fn the_key_of_a_peer_s_peer_is_the_own_one() {
    let key = [1, 2, 3, 4, 5, 6 << 32 | 7];
    assert_eq!(peer_of(&key), [1, 4, 5, 2, 3, 7 << 32 | 6]);
    assert_eq!(peer_of(&peer_of(&key)), key);
}
