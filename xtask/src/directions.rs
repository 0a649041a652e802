//! Which crate may depend on which.
//!
//! # Model       time <- pooler, rows <- hawser; sys <- rows, lab <- hawser: an edge that is not in the table is
//!               refused, and so is a crate that is not in it
//! # Invariants  what is pure as a whole has no dependency that does I/O: the crates that it may use are
//!               listed; the pooler and the rows beside it do not know each other
//! # Why not     leave it to review: a manifest's one line undoes the purity of a crate, and Cargo
//!               does not object
//! # Limits      reads manifests: what is re-exported through an allowed crate is not seen

use crate::finding::Finding;
use crate::metadata::{Dependency, Metadata, Package};

/// Each crate of ours and which of ours it may use, in the program and in build scripts.
const ALLOWED: [(&str, &[&str]); 11] = [
    ("hawser-time", &[]),
    ("hawser-pooler", &["hawser-time"]),
    ("hawser-sys", &[]),
    ("hawser-multipath", &["hawser-sys", "hawser-time"]),
    ("hawser-congestion", &["hawser-sys", "hawser-time"]),
    ("hawser-bypass", &["hawser-sys", "hawser-time"]),
    ("hawser-datagrams", &["hawser-multipath", "hawser-sys", "hawser-time"]),
    ("hawser-link", &["hawser-congestion", "hawser-multipath", "hawser-sys", "hawser-time"]),
    ("hawser-lab", &["hawser-pooler", "hawser-sys"]),
    (
        "hawser",
        &[
            "hawser-bypass",
            "hawser-congestion",
            "hawser-pooler",
            "hawser-datagrams",
            "hawser-lab",
            "hawser-link",
            "hawser-multipath",
            "hawser-sys",
            "hawser-time",
        ],
    ),
    ("xtask", &[]),
];

/// The crates that are pure as a whole, and what they may use of others. A new entry must do no I/O, read no
/// clock and draw no randomness.
const PURE: [(&str, &[&str]); 2] =
    [("hawser-time", &[]), ("hawser-pooler", &["memchr", "siphasher"])];

/// Members outside `crates/` that exist to drive the product from outside.
const TEST_DIRECTORIES: [&str; 3] = ["tests", "bench", "fuzz"];

pub(crate) fn check(metadata: &Metadata) -> Vec<Finding> {
    let ours: Vec<&str> = metadata.members().map(|(package, _)| package.name.as_str()).collect();
    let mut findings = Vec::new();
    for (package, directory) in metadata.members() {
        let for_tests = TEST_DIRECTORIES.iter().any(|d| directory.split('/').next() == Some(d));
        if for_tests {
            continue; // may use any of ours; nothing of ours may use it, for it is in no table
        }
        let Some((_, allowed)) = ALLOWED.iter().find(|(name, _)| *name == package.name) else {
            findings.push(Finding::error(
                directory,
                format!("crate `{}` has no place in xtask's table of directions", package.name),
            ));
            continue;
        };
        for dependency in &package.dependencies {
            let name = dependency.name.as_str();
            if ours.contains(&name) {
                if !allowed.contains(&name) && !allowed_in_tests(package, dependency) {
                    findings.push(Finding::error(
                        directory,
                        format!("`{}` may not depend on `{name}`", package.name),
                    ));
                }
            } else if let Some((_, may_use)) = PURE.iter().find(|(pure, _)| *pure == package.name)
                && !dependency.dev
                && !may_use.contains(&name)
            {
                findings.push(Finding::error(
                    directory,
                    format!(
                        "{} is pure: `{name}` is not among the crates that it may use \
                         (xtask/src/directions.rs)",
                        package.name
                    ),
                ));
            }
        }
    }
    findings
}

/// Tests of a crate may use the laboratory, whose simulation runs them; not so tests of what the
/// laboratory is made of and of itself, which Cargo would build against a second copy of themselves.
fn allowed_in_tests(package: &Package, dependency: &Dependency) -> bool {
    let circular = ["hawser-pooler", "hawser-sys", "hawser-lab"].contains(&package.name.as_str());
    dependency.dev && dependency.name == "hawser-lab" && !circular
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Members at `crates/NAME`, from (name, dependencies); a dependency with `?` is for tests.
    fn workspace(members: &[(&str, &[&str])]) -> Metadata {
        let package = |(name, dependencies): &(&str, &[&str])| Package {
            name: (*name).into(),
            member_directory: Some(match name.strip_prefix("tests-") {
                Some(rest) => format!("tests/{rest}"),
                None => format!("crates/{name}"),
            }),
            dependencies: dependencies
                .iter()
                .map(|d| Dependency { name: d.trim_end_matches('?').into(), dev: d.ends_with('?') })
                .collect(),
            ..Package::default()
        };
        Metadata { packages: members.iter().map(package).collect() }
    }

    fn messages(members: &[(&str, &[&str])]) -> Vec<String> {
        check(&workspace(members)).into_iter().map(|f| f.message).collect()
    }

    #[test]
    fn the_intended_directions_pass() {
        let found = messages(&[
            ("hawser-pooler", &["memchr", "proptest?"]),
            ("hawser-sys", &["libc"]),
            ("hawser-bypass", &["hawser-sys", "tokio", "hawser-time?"]),
            ("hawser", &["hawser-pooler", "hawser-sys", "tokio", "hawser-lab", "hawser-lab?"]),
            ("hawser-lab", &["hawser-pooler", "hawser-sys"]),
            ("tests-drivers", &["hawser", "hawser-lab"]),
        ]);
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn the_pooler_may_not_use_ours() {
        let found = messages(&[("hawser-pooler", &["hawser-sys"]), ("hawser-sys", &[])]);
        assert_eq!(found, ["`hawser-pooler` may not depend on `hawser-sys`"]);
    }

    #[test]
    fn the_pooler_and_the_rows_do_not_know_each_other() {
        let found = messages(&[
            ("hawser-pooler", &["hawser-bypass"]),
            ("hawser-bypass", &["hawser-pooler"]),
        ]);
        assert_eq!(found.len(), 2, "{found:?}");
    }

    #[test]
    fn the_pooler_may_not_use_a_crate_that_is_not_listed() {
        let found = messages(&[("hawser-pooler", &["tokio"])]);
        assert!(found[0].contains("`tokio` is not among"), "{found:?}");
    }

    #[test]
    fn nothing_but_tests_depends_on_the_program() {
        let found = messages(&[("hawser-lab", &["hawser", "hawser?"]), ("hawser", &[])]);
        assert_eq!(found.len(), 2, "{found:?}");
    }

    #[test]
    fn the_pooler_is_not_tested_through_a_second_copy_of_itself() {
        let found = messages(&[("hawser-pooler", &["hawser-lab?"]), ("hawser-lab", &[])]);
        assert_eq!(found.len(), 1, "{found:?}");
    }

    #[test]
    fn a_crate_without_a_place_is_refused() {
        let found = messages(&[("hawser-utils", &[])]);
        assert!(found[0].contains("no place"), "{found:?}");
    }
}
