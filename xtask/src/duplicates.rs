//! Packages that are built in more than one incompatible version.
//!
//! A warning: it costs build time and size, and often cannot be mended here.

use std::collections::{BTreeMap, BTreeSet};

use crate::finding::Finding;
use crate::metadata::Metadata;

pub(crate) fn check(metadata: &Metadata) -> Vec<Finding> {
    let mut majors: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for package in &metadata.packages {
        majors.entry(&package.name).or_default().insert(major(&package.version));
    }
    let several = majors.into_iter().filter(|(_, majors)| majors.len() > 1);
    several
        .map(|(name, majors)| {
            let list: Vec<String> = majors.into_iter().collect();
            Finding::warning(name, format!("built in versions {}", list.join(" and ")))
        })
        .collect()
}

/// The part of a version within which Cargo takes versions for compatible: `1`, `0.3`, `0.0.7`.
fn major(version: &str) -> String {
    let parts: Vec<&str> = version.split(['.', '-', '+']).take(3).collect();
    let significant = parts.iter().position(|part| *part != "0").unwrap_or(parts.len() - 1);
    parts[..=significant].join(".")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Package;

    fn reported(versions: &[&str]) -> usize {
        let package =
            |v: &&str| Package { name: "x".into(), version: (*v).into(), ..Package::default() };
        check(&Metadata { packages: versions.iter().map(package).collect() }).len()
    }

    #[test]
    fn only_incompatible_versions_are_duplicates() {
        assert_eq!(reported(&["1.2.0"]), 0);
        assert_eq!(reported(&["1.2.0", "1.9.1"]), 0);
        assert_eq!(reported(&["1.2.0", "2.0.0"]), 1);
        assert_eq!(reported(&["0.2.1", "0.2.9"]), 0);
        assert_eq!(reported(&["0.2.1", "0.3.0"]), 1);
        assert_eq!(reported(&["0.0.1", "0.0.2"]), 1);
        assert_eq!(reported(&["1.0.0-alpha", "1.0.0"]), 0);
    }
}
