//! State machines stay pure: no I/O, clock, threads, randomness or unsafe.
//!
//! # Model       words that may not stand outside tests in the code of what `pure` lists
//! # Why not     only clippy's `disallowed_methods` (which crates that are pure as a whole have, too): it sees calls and types,
//!               not modules, and an attribute switches it off
//! # Limits      names, not meanings: what is imported under another name through an allowed crate
//!               is not seen; `directions` keeps the list of those crates short

use std::collections::BTreeSet;

use crate::finding::Finding;
use crate::pure;
use crate::source::{self, Line};
use crate::tree::Tree;

/// Modules of std that do what a state machine may not, and what to use instead. `std::io` is not among them:
/// its errors are the vocabulary of the sockets that one is handed.
const MODULES: [(&str, &str); 6] = [
    ("fs", "state machines do no I/O"),
    ("net", "state machines do no I/O; addresses as values are in core::net"),
    ("os", "state machines know no operating system"),
    ("process", "state machines do no I/O"),
    ("env", "what differs between processes is an argument"),
    ("thread", "threads belong to those who run a state machine"),
];

/// Other words, and what to use instead.
const WORDS: [(&str, &str); 20] = [
    ("unsafe", "unsafe code belongs to crates/sys"),
    ("Instant::now", "`now` is an argument"),
    ("SystemTime", "`now` is an argument"),
    ("thread::spawn", "threads belong to those who run a state machine"),
    ("RandomState", "hashers are keyed by an argument"),
    ("DefaultHasher", "hashers are keyed by an argument"),
    // These constructors exist for RandomState only.
    ("HashMap::new", "it hashes with RandomState; hashers are keyed by an argument"),
    ("HashMap::with_capacity", "it hashes with RandomState; hashers are keyed by an argument"),
    ("HashSet::new", "it hashes with RandomState; hashers are keyed by an argument"),
    ("HashSet::with_capacity", "it hashes with RandomState; hashers are keyed by an argument"),
    ("rand::", "randomness is an argument"),
    ("getrandom", "randomness is an argument"),
    ("stdin", "state machines do no I/O"),
    ("stdout", "state machines do no I/O"),
    ("stderr", "state machines do no I/O"),
    ("println!", "state machines do no I/O"),
    ("eprintln!", "state machines do no I/O"),
    ("hawser_sys", "state machines do no I/O"),
    ("tokio", "state machines do no I/O"),
    ("thread_local!", "state belongs to the machine that is handed in"),
];

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let files: Vec<(&str, Vec<Line>)> = tree
        .ending(".rs")
        .filter(|(path, _)| pure::is_pure(path))
        .map(|(path, text)| (path, source::lines(text)))
        .collect();
    let tests: BTreeSet<String> =
        files.iter().flat_map(|(path, lines)| source::test_stems(path, lines)).collect();

    let mut findings = Vec::new();
    for (path, lines) in files.iter().filter(|(path, _)| !source::is_test(path, &tests)) {
        for (index, line) in lines.iter().enumerate().filter(|(_, line)| !line.test) {
            for (word, reason) in WORDS {
                if source::has_word(&line.code, word) {
                    findings.push(Finding::at(path, index, format!("`{word}`: {reason}")));
                }
            }
        }
        for (index, module) in std_modules(lines) {
            if let Some((_, reason)) = MODULES.iter().find(|(name, _)| *name == module) {
                findings.push(Finding::at(path, index, format!("`std::{module}`: {reason}")));
            }
        }
    }
    findings
}

/// Modules of std that are named outside tests, with the line: `std::fs` and `std::{fs, io::Read}`.
fn std_modules(lines: &[Line]) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (index, line) in lines.iter().enumerate().filter(|(_, line)| !line.test) {
        for (at, _) in line.code.match_indices("std::") {
            let inside_word = line.code[..at]
                .chars()
                .next_back()
                .is_some_and(|c| c.is_alphanumeric() || c == '_');
            if inside_word {
                continue;
            }
            let after = &line.code[at + "std::".len()..];
            if let Some(group) = after.strip_prefix('{') {
                let rest = lines[index + 1..].iter().map(|line| line.code.as_str());
                let text: Vec<&str> = std::iter::once(group).chain(rest).collect();
                found.extend(group_heads(&text.join("\n")).into_iter().map(|name| (index, name)));
            } else {
                found.push((index, head(after)));
            }
        }
    }
    found
}

/// The first name of each entry of a `use` group, whose opening brace is gone.
fn group_heads(text: &str) -> Vec<String> {
    let mut depth = 0;
    let mut heads = Vec::new();
    let mut begins = true;
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' => begins = depth == 0,
            _ if c.is_whitespace() => {}
            _ if begins => {
                heads.push(head(&text[at..]));
                begins = false;
            }
            _ => {}
        }
    }
    heads
}

fn head(path: &str) -> String {
    path.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(files: &[(&str, &str)]) -> Vec<String> {
        check(&Tree::of(files)).into_iter().map(|finding| finding.place).collect()
    }

    fn is_refused(code: &str) -> bool {
        !places(&[("crates/pooler/src/pool.rs", code)]).is_empty()
    }

    #[test]
    fn what_touches_the_world_is_refused() {
        for code in [
            "use std::net::TcpStream;",
            "use std::{collections::BTreeMap, fs};",
            "use std::{\n    collections::{BTreeMap, BTreeSet},\n    net::{TcpStream, UdpSocket},\n};",
            "let x = std::io::stdin();",
            "let now = std::time::Instant::now();",
            "let now = SystemTime::now();",
            "std::thread::spawn(|| ());",
            "use std::thread; fn f() { thread::spawn(|| ()); }",
            "let s = RandomState::new();",
            "let m: HashMap<u8, u8> = HashMap::new();",
            "let x: u8 = rand::random();",
            "unsafe { x() }",
            "use hawser_sys::stream::recv;",
            "tokio::spawn(x);",
        ] {
            assert!(is_refused(code), "{code}");
        }
    }

    #[test]
    fn what_is_pure_passes() {
        for code in [
            "use std::collections::{BTreeMap, HashMap};",
            "use std::{fmt, collections::VecDeque};",
            "use core::net::IpAddr; use std::time::{Duration, Instant};",
            "let m = HashMap::with_hasher(hasher);",
            "// std::fs is for others\nlet s = \"std::net\";",
            "use crate::{fs::X, net};",
            "fn read(&mut self) -> std::io::Result<usize>;",
        ] {
            assert!(!is_refused(code), "{code}");
        }
    }

    #[test]
    fn tests_may_do_what_they_like() {
        let found = places(&[
            ("crates/pooler/src/lib.rs", "mod a;\n#[cfg(test)]\nmod sim;"),
            (
                "crates/pooler/src/a.rs",
                "#[cfg(test)]\nmod tests {\n use std::fs;\n}\n#[cfg(test)]\nmod far;",
            ),
            ("crates/pooler/src/a/far.rs", "use std::fs;"),
            ("crates/pooler/src/sim.rs", "use std::fs;"),
            ("crates/pooler/src/sim/world.rs", "use std::fs;"),
            ("crates/pooler/src/simple.rs", "use std::fs;"),
            ("crates/bypass/src/rule.rs", "use std::fs;"),
            ("crates/bypass/src/place.rs", "use std::fs;"),
            ("crates/pooler/tests/x.rs", "use std::fs;"),
            ("crates/sys/src/x.rs", "use std::fs;"),
        ]);
        assert_eq!(found, ["crates/bypass/src/rule.rs:1", "crates/pooler/src/simple.rs:1"]);
    }
}
