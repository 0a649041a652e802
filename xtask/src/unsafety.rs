//! `unsafe` stands where it may, and says why it is sound.

use crate::finding::Finding;
use crate::source::{self, Line};
use crate::tree::Tree;

/// The crates whose business it is.
const MAY_BE_UNSAFE: [&str; 1] = ["crates/sys/"];

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.ending(".rs") {
        let lines = source::lines(text);
        let allowed = MAY_BE_UNSAFE.iter().any(|prefix| path.starts_with(prefix));
        for (index, line) in lines.iter().enumerate() {
            if !source::has_word(&line.code, "unsafe") {
                continue;
            }
            if !allowed {
                findings.push(Finding::at(path, index, "`unsafe` belongs to crates/sys"));
            } else if !is_justified(&lines, index) {
                findings.push(Finding::at(
                    path,
                    index,
                    "`unsafe` without a comment `SAFETY:` (or `# Safety` on a function)",
                ));
            }
        }
    }
    findings
}

/// Whether the line, its statement or the comment right above says why it is sound.
fn is_justified(lines: &[Line], index: usize) -> bool {
    let says = |line: &Line| line.comment.contains("SAFETY:") || line.comment.contains("# Safety");
    if says(&lines[index]) {
        return true;
    }
    let mut in_comment = false;
    for line in lines[..index].iter().rev() {
        if says(line) {
            return true;
        }
        let code = line.code.trim();
        if code.is_empty() {
            if line.comment.is_empty() {
                return false; // a blank line: the comment above belongs to something else
            }
            in_comment = true;
        } else {
            let attribute = code.starts_with("#[");
            let ends_another = code.ends_with([';', '{', '}', ',']);
            if in_comment || (ends_another && !attribute) {
                return false;
            }
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, code: &str) -> usize {
        check(&Tree::of(&[(path, code)])).len()
    }

    #[test]
    fn unsafe_belongs_to_sys() {
        let code = "// SAFETY: no\nunsafe { x() }";
        assert_eq!(found("crates/hawser/src/reactor.rs", code), 1);
        assert_eq!(found("fuzz/x.rs", code), 1);
        assert_eq!(found("crates/sys/src/epoll.rs", code), 0);
    }

    #[test]
    fn unsafe_says_why_it_is_sound() {
        for justified in [
            "// SAFETY: it is\nunsafe { x() }",
            "// SAFETY: it is,\n// really\nlet x =\n    unsafe { x() };",
            "let x = unsafe { x() }; // SAFETY: it is",
            "/// # Safety\n/// The caller holds it.\n#[inline]\npub unsafe fn f() {}",
        ] {
            assert_eq!(found("crates/sys/src/a.rs", justified), 0, "{justified}");
        }
        for bare in [
            "unsafe { x() }",
            "// quick\nunsafe { x() }",
            "// SAFETY: of y\nunsafe { y() };\nunsafe { x() };",
            "// SAFETY: of what was here\n\nunsafe { x() }",
        ] {
            assert_eq!(found("crates/sys/src/a.rs", bare), 1, "{bare}");
        }
    }
}
