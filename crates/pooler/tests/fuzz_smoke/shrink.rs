//! Random inputs, and the smallest input that still fails.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

pub(crate) use hawser_time::seeded::SplitMix as Random;

use super::driver::{self, HEAD, OPERATION};

thread_local! {
    /// What a panic that is caught here has said.
    static SAID: std::cell::RefCell<Option<String>> = const { std::cell::RefCell::new(None) };
}

/// What is wrong with an input: a broken invariant or a panic.
pub(crate) fn outcome(input: &[u8]) -> Result<(), String> {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let ours = SAID.with_borrow_mut(|said| match said {
                Some(said) => {
                    *said = info.to_string();
                    true
                }
                None => false,
            });
            if !ours {
                before(info);
            }
        }));
    });
    SAID.set(Some(String::new()));
    let result = catch_unwind(AssertUnwindSafe(|| driver::play(input, false)));
    let said = SAID.take().unwrap_or_default();
    result.unwrap_or(Err(said))
}

/// A smaller input that fails too, and how: operations are left out in halves, quarters and so
/// on, then bytes are made zero.
pub(crate) fn shrink(mut input: Vec<u8>, mut wrong: String) -> (Vec<u8>, String) {
    let operations = |input: &[u8]| input.len().saturating_sub(HEAD) / OPERATION;
    loop {
        let before = input.clone();
        let mut size = operations(&input).max(1);
        while size > 0 {
            let mut at = 0;
            while at < operations(&input) {
                let mut smaller = input.clone();
                let end = (HEAD + (at + size) * OPERATION).min(input.len());
                smaller.drain(HEAD + at * OPERATION..end);
                match outcome(&smaller) {
                    Err(other) => (input, wrong) = (smaller, other),
                    Ok(()) => at += size,
                }
            }
            size /= 2;
        }
        for at in 0..input.len() {
            for value in [0, input[at] & 0x1f, input[at] & 0x7f] {
                let mut smaller = input.clone();
                smaller[at] = value;
                if value < input[at]
                    && let Err(other) = outcome(&smaller)
                {
                    (input, wrong) = (smaller, other);
                    break;
                }
            }
        }
        if input == before {
            return (input, wrong);
        }
    }
}

/// In hexadecimal, operation by operation.
pub(crate) fn hex(input: &[u8]) -> String {
    let digits = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let (head, rest) = input.split_at(HEAD.min(input.len()));
    let mut parts = vec![digits(head)];
    parts.extend(rest.chunks(OPERATION).map(digits));
    parts.join(" ")
}

/// From hexadecimal; spaces and line ends do not count.
pub(crate) fn from_hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|digit| digit.to_digit(16)).collect();
    digits
        .chunks(2)
        .map(|pair| pair.iter().fold(0, |byte, digit| byte << 4 | *digit as u8))
        .collect()
}
