//! The shape of the source tree: file lengths and names.

use crate::finding::Finding;
use crate::tree::Tree;

/// Past this a file has more than one subject.
const LINES_MAX: usize = 1_200;
/// Past this one should ask.
const LINES_WARN: usize = 800;

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
    for (path, _) in tree.ending(".rs") {
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
    fn names_bear_the_domains_nouns() {
        assert_eq!(levels("crates/core/src/pool/mod.rs", 1), [Level::Error]);
        assert_eq!(levels("crates/core/src/utils.rs", 1), [Level::Error]);
        assert_eq!(levels("crates/core/src/pool.rs", 1), []);
    }
}
