//! Licences of everything that is built in.
//!
//! The list of what is allowed is deny.toml's, so that cargo-deny and this check cannot disagree.

use crate::finding::Finding;
use crate::metadata::Metadata;
use crate::spdx::{self, Allowed};

/// The entries of `allow = [...]` under `[licenses]` of deny.toml.
///
/// Reads the one shape that the file has, strings in a list, instead of TOML at large.
pub(crate) fn allowed(deny: &str) -> Result<Allowed, String> {
    let section = deny.split_once("\n[licenses]").ok_or("deny.toml has no [licenses]")?.1;
    let section = section.split("\n[").next().unwrap_or(section);
    let list = section.split_once("allow = [").ok_or("[licenses] has no `allow = [`")?.1;
    let list = list.split_once(']').ok_or("the list of licences does not end")?.0;
    let mut licences = Allowed::new();
    for line in list.lines() {
        let line = line.split('#').next().unwrap_or(line);
        licences.extend(line.split('"').skip(1).step_by(2).map(Into::into));
    }
    if licences.is_empty() { Err("the list of licences is empty".into()) } else { Ok(licences) }
}

pub(crate) fn check(metadata: &Metadata, allowed: &Allowed) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in &metadata.packages {
        let place = format!("{} {}", package.name, package.version);
        let Some(licence) = &package.licence else {
            findings.push(Finding::error(place, "names no licence"));
            continue;
        };
        match spdx::is_met(licence, allowed) {
            Ok(true) => {}
            Ok(false) => findings.push(Finding::error(
                place,
                format!("licence `{licence}` is not among those of deny.toml"),
            )),
            Err(reason) => {
                findings.push(Finding::error(place, format!("licence `{licence}`: {reason}")));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Package;

    const DENY: &str = "[graph]\n[licenses]\nallow = [\n    \"MIT\", # and not \"GPL-3.0\"\n    \
                        \"ISC\",\n]\n[bans]\n";

    fn built(licence: Option<&str>) -> Metadata {
        let licence = licence.map(Into::into);
        Metadata { packages: vec![Package { name: "x".into(), licence, ..Package::default() }] }
    }

    #[test]
    fn the_list_is_deny_tomls() {
        let list = allowed(DENY).unwrap();
        assert_eq!(list.iter().collect::<Vec<_>>(), ["ISC", "MIT"]);
        assert!(allowed("[bans]\nallow = [\"MIT\"]").is_err());
        assert!(allowed("\n[licenses]\nallow = []\n").is_err());
    }

    #[test]
    fn a_licence_off_the_list_is_refused() {
        let list = allowed(DENY).unwrap();
        assert_eq!(check(&built(Some("MIT OR Apache-2.0")), &list), []);
        assert_eq!(check(&built(Some("GPL-3.0-only")), &list).len(), 1);
        assert_eq!(check(&built(Some("MIT AND")), &list).len(), 1);
        assert_eq!(check(&built(None), &list).len(), 1);
    }
}
