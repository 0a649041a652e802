//! The shape of the source tree: lengths of files and functions, and names.

use crate::finding::Finding;
use crate::pure;
use crate::tree::Tree;

/// Past this a file has more than one subject.
const LINES_MAX: usize = 1_200;
/// Past this one should ask.
const LINES_WARN: usize = 800;

/// A function of a state machine that is longer decides more than one thing. Elsewhere one should ask.
const FUNCTION_LINES_MAX: usize = 80;

const SOURCES: [&str; 5] = [".rs", ".py", ".sh", ".c", ".h"];

/// Names that say where code was put and not what it is about.
const EMPTY_NAMES: [&str; 8] =
    ["utils", "util", "common", "helper", "helpers", "misc", "manager", "inner"];

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for suffix in SOURCES {
        for (path, text) in tree.ending(suffix) {
            let lines = text.lines().count();
            if lines > LINES_MAX {
                let message = format!("{lines} lines, {LINES_MAX} at most: split it by subject");
                findings.push(Finding::error(path, message));
            } else if lines > LINES_WARN {
                let message = format!("{lines} lines: is it one subject?");
                findings.push(Finding::warning(path, message));
            }
        }
    }
    for (path, text) in tree.ending(".rs") {
        for (function, lines) in long_functions(text) {
            let message = format!("`{function}` has {lines} lines, {FUNCTION_LINES_MAX} at most");
            findings.push(match pure::is_pure(path) {
                true if !path.contains("/tests") => Finding::error(path, message),
                true => continue,
                false if path.contains("/tests") => continue,
                false => Finding::warning(path, message),
            });
        }
        let name = path.rsplit('/').next().unwrap_or(path).trim_end_matches(".rs");
        if name == "mod" {
            findings.push(Finding::error(path, "write foo.rs beside foo/ instead of foo/mod.rs"));
        }
        if EMPTY_NAMES.contains(&name) {
            findings.push(Finding::error(path, format!("`{name}` names no subject")));
        }
    }
    findings
}

/// The functions of a formatted source that are longer than that, with their lines from the first of the
/// signature to the closing brace.
fn long_functions(text: &str) -> Vec<(&str, usize)> {
    let lines: Vec<&str> = text.lines().collect();
    let mut long = Vec::new();
    for (first, line) in lines.iter().enumerate() {
        let Some(name) = function(line) else { continue };
        let indent = line.len() - line.trim_start().len();
        let ends = |line: &&str| line.strip_prefix(&lines[first][..indent]) == Some("}");
        let length = lines[first..].iter().position(ends).map_or(0, |last| last + 1);
        // (One without a body, or with one on its line, has no brace of its own.)
        let opens = |line: &&&str| line.ends_with(['{', ';', '}']);
        let has_body = lines[first..].iter().find(opens).is_some_and(|line| line.ends_with('{'));
        if has_body && length > FUNCTION_LINES_MAX {
            long.push((name, length));
        }
    }
    long
}

/// The name of the function whose signature begins on this line.
fn function(line: &str) -> Option<&str> {
    const BEFORE: [&str; 5] = ["pub", "const", "async", "unsafe", "extern"];
    let (before, rest) = line.split_once("fn ")?;
    let known = |word: &str| BEFORE.iter().any(|known| word.starts_with(known)) || word == "in";
    let is_path = |word: &str| word.ends_with(')');
    if !before.split_whitespace().all(|word| known(word) || is_path(word)) {
        return None;
    }
    let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_'))?;
    (end > 0).then_some(&rest[..end])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finding::Level;

    fn levels(path: &str, lines: usize) -> Vec<Level> {
        check(&Tree::of(&[(path, &"x\n".repeat(lines))])).iter().map(|f| f.level).collect()
    }

    #[test]
    fn both_sides_of_the_bounds() {
        assert_eq!(levels("a.rs", LINES_WARN), []);
        assert_eq!(levels("a.rs", LINES_WARN + 1), [Level::Warning]);
        assert_eq!(levels("a.rs", LINES_MAX), [Level::Warning]);
        assert_eq!(levels("a.rs", LINES_MAX + 1), [Level::Error]);
        assert_eq!(levels("tests/a.py", LINES_MAX + 1), [Level::Error]);
        assert_eq!(levels("Cargo.lock", LINES_MAX + 1), []);
    }

    #[test]
    fn functions_of_state_machines_are_short() {
        let of = |lines: usize| {
            let body = "        x();\n".repeat(lines - 2);
            format!("impl A {{\n    pub(in crate::a) fn long(&self) {{\n{body}    }}\n}}\n")
        };
        let levels = |path: &str, lines: usize| -> Vec<Level> {
            check(&Tree::of(&[(path, &of(lines))])).iter().map(|f| f.level).collect()
        };
        assert_eq!(levels("crates/pooler/src/a.rs", FUNCTION_LINES_MAX), []);
        assert_eq!(levels("crates/pooler/src/a.rs", FUNCTION_LINES_MAX + 1), [Level::Error]);
        assert_eq!(levels("crates/pooler/src/a/tests.rs", FUNCTION_LINES_MAX + 1), []);
        assert_eq!(levels("crates/hawser/src/a.rs", FUNCTION_LINES_MAX + 1), [Level::Warning]);
        // What ends with a semicolon has no lines, nor has a word in a comment.
        let none = "trait A {\n    fn a(&self);\n}\n// the fn of\n".to_owned() + &of(80);
        assert_eq!(check(&Tree::of(&[("crates/pooler/src/a.rs", &none)])).len(), 0);
    }

    #[test]
    fn names_bear_the_domains_nouns() {
        assert_eq!(levels("crates/pooler/src/pool/mod.rs", 1), [Level::Error]);
        assert_eq!(levels("crates/pooler/src/utils.rs", 1), [Level::Error]);
        assert_eq!(levels("crates/pooler/src/pool.rs", 1), []);
    }
}
