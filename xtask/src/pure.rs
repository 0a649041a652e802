//! Where the state machines are: no I/O, clock, threads, randomness or unsafe; functions that are short.

/// Files and directories, without `.rs` and `/`.
const PURE: [&str; 7] = [
    "crates/bypass/src/rule",
    "crates/congestion/src/tuner",
    "crates/pooler/src",
    "crates/datagrams/src/proto",
    "crates/link/src/proto",
    "crates/multipath/src/paths",
    "crates/time/src",
];

/// Whether a source file is of a state machine.
pub(crate) fn is_pure(path: &str) -> bool {
    let within =
        |pure: &str| path.strip_prefix(pure).is_some_and(|rest| rest.starts_with(['/', '.']));
    PURE.iter().any(|pure| within(pure))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_module_is_its_file_and_its_directory() {
        for path in
            ["crates/pooler/src/a.rs", "crates/bypass/src/rule.rs", "crates/bypass/src/rule/a.rs"]
        {
            assert!(is_pure(path), "{path}");
        }
        for path in
            ["crates/bypass/src/ruler.rs", "crates/bypass/src/lib.rs", "crates/pooler/tests/a.rs"]
        {
            assert!(!is_pure(path), "{path}");
        }
    }
}
