//! No file names a place on one person's machine.
//!
//! Such a path works only for its author. Paths that every Linux has are fine.

use crate::finding::Finding;
use crate::tree::Tree;

/// Directories below which only one machine or one person has files.
/// Assembled, so that this file does not find itself.
const PRIVATE: [&str; 4] =
    [concat!("/ho", "me/"), concat!("/ro", "ot/"), concat!("/Use", "rs/"), concat!("/wo", "rk/")];

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.ending("") {
        for (index, line) in text.lines().enumerate() {
            for private in PRIVATE {
                if line.match_indices(private).any(|(at, _)| begins_a_path(line, at)) {
                    let message = format!("`{private}...` is a path of one machine");
                    findings.push(Finding::at(path, index, message));
                }
            }
        }
    }
    findings
}

/// Whether the slash at `at` is a path's first: that of `docs/x` or of `$home/x` is not.
fn begins_a_path(line: &str, at: usize) -> bool {
    let before = line[..at].chars().next_back();
    !before.is_some_and(|c| c.is_alphanumeric() || "/._-~})]*".contains(c))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(line: &str) -> usize {
        check(&Tree::of(&[("any", line)])).len()
    }

    #[test]
    fn a_machines_path_is_found() {
        assert_eq!(found(concat!("open(\"/ho", "me/ann/x\")")), 1);
        assert_eq!(found(concat!("cd /ro", "ot/.cargo")), 1);
        assert_eq!(found(concat!("a\nTARGET=/wo", "rk/target")), 1);
    }

    #[test]
    fn a_path_of_everyone_is_not() {
        assert_eq!(found("/usr/lib/postgresql /etc/hawser /run/hawser"), 0);
        assert_eq!(found(concat!("https://example.com/ho", "me/x docs/wo", "rk/y")), 0);
        assert_eq!(found(concat!("$dir/wo", "rk/x ${dir}/wo", "rk/x")), 0);
    }
}
