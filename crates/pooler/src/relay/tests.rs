//! The engine against scripted clients and servers: one situation a test.
//!
//! The simulation in the lab crate runs whole crowds; these are situations that are easier to read
//! as a script, above all the traps of other poolers.

mod cancels;
mod census;
mod channels;
mod crowds;
mod direct;
mod faults;
mod floods;
mod handing_over;
pub(crate) mod harness;
mod lanes;
mod limits;
mod moving;
mod own_names;
mod pipelines;
mod planning;
mod preparing;
mod queries;
mod reading;
mod rebasing;
mod replay;
mod restoring;
mod rules;
mod schema;
mod sequences;
mod session_report;
mod sessions;
mod simulated;
mod splitting;
mod start_again;
mod succession;
mod telling;
mod timeouts;
mod vacancy;
mod within;

use crate::ids::Slot;
use crate::relay::Token;

#[test]
fn tokens_survive_their_64_bits() {
    for token in [
        Token::Client(Slot { index: 0, generation: 0 }),
        Token::Client(Slot { index: u32::MAX, generation: 0x7fff_ffff }),
        Token::Backend(Slot { index: 7, generation: 3 }),
    ] {
        assert_eq!(Token::from_bits(token.to_bits()), token);
    }
}
