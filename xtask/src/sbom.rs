//! The SBOM: what the program is linked from, as CycloneDX 1.5.
//!
//! # Model       from `hawser` over normal and build dependencies (not those of tests) -> components,
//!               each with version, licence, purl and the checksum of Cargo.lock
//! # Invariants  the same lock file gives the same bytes: no time, no random serial number
//! # Why not     cargo-cyclonedx: one more program to install, for what cargo's metadata has already
//! # Limits      crates only: PostgreSQL's extension links nothing, and glibc is the system's

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

/// The package whose program is described.
const PROGRAM: &str = "hawser";

/// The SBOM, from `cargo metadata` and Cargo.lock.
pub(crate) fn document(metadata: &str, lock: &str) -> Result<Value, String> {
    let metadata: Value =
        serde_json::from_str(metadata).map_err(|error| format!("cargo metadata: {error}"))?;
    let packages: BTreeMap<&str, &Value> = array(&metadata["packages"])
        .filter_map(|package| Some((package["id"].as_str()?, package)))
        .collect();
    let nodes: BTreeMap<&str, &Value> = array(&metadata["resolve"]["nodes"])
        .filter_map(|node| Some((node["id"].as_str()?, node)))
        .collect();
    let (root, program) = packages
        .iter()
        .find(|(_, package)| package["name"] == PROGRAM)
        .ok_or_else(|| format!("cargo metadata has no package `{PROGRAM}`"))?;

    let checksums = checksums(lock);
    let mut todo = vec![*root];
    let mut reached = BTreeSet::new();
    let mut components = BTreeMap::new();
    let mut edges = BTreeMap::new();
    while let Some(id) = todo.pop() {
        if !reached.insert(id) {
            continue;
        }
        let package = packages.get(id).ok_or_else(|| format!("no package {id}"))?;
        let needed: BTreeSet<&str> = nodes.get(id).map(|node| linked(node)).unwrap_or_default();
        let purls: BTreeSet<String> =
            needed.iter().filter_map(|id| packages.get(id)).map(|package| purl(package)).collect();
        edges.insert(purl(package), purls);
        if id != *root {
            components.insert(purl(package), component(package, &checksums));
        }
        todo.extend(needed);
    }
    let edges: Vec<Value> = edges
        .into_iter()
        .map(|(from, to)| json!({ "ref": from, "dependsOn": to.into_iter().collect::<Vec<_>>() }))
        .collect();
    let mut program = component(program, &checksums);
    program["type"] = json!("application");
    Ok(json!({
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": { "component": program },
        "components": components.into_values().collect::<Vec<_>>(),
        "dependencies": edges,
    }))
}

fn array(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

/// The ids of what a package is built from; a dependency of its tests only is none.
fn linked(node: &Value) -> BTreeSet<&str> {
    let wanted = |dependency: &&Value| {
        array(&dependency["dep_kinds"]).any(|kind| kind["kind"].as_str() != Some("dev"))
    };
    array(&node["deps"])
        .filter(wanted)
        .filter_map(|dependency| dependency["pkg"].as_str())
        .collect()
}

fn purl(package: &Value) -> String {
    format!("pkg:cargo/{}@{}", text(package, "name"), text(package, "version"))
}

fn text<'a>(package: &'a Value, key: &str) -> &'a str {
    package[key].as_str().unwrap_or_default()
}

fn component(package: &Value, checksums: &BTreeMap<(&str, &str), &str>) -> Value {
    let (name, version) = (text(package, "name"), text(package, "version"));
    let mut component = json!({
        "type": "library",
        "bom-ref": purl(package),
        "name": name,
        "version": version,
        "purl": purl(package),
    });
    if let Some(licence) = package["license"].as_str() {
        // SPDX's spelling of what old manifests write with a slash.
        let expression = licence.replace('/', " OR ");
        component["licenses"] = json!([{ "expression": expression }]);
    }
    if let Some(checksum) = checksums.get(&(name, version)) {
        component["hashes"] = json!([{ "alg": "SHA-256", "content": checksum }]);
    }
    component
}

/// Name and version -> checksum, of the packages of a Cargo.lock. Reads the one shape in which cargo
/// writes it, a line for each key.
fn checksums(lock: &str) -> BTreeMap<(&str, &str), &str> {
    lock.split("[[package]]")
        .skip(1)
        .filter_map(|block| {
            let key = |name: &str| {
                block.lines().find_map(|line| {
                    line.strip_prefix(name)?.strip_prefix(" = \"")?.strip_suffix('"')
                })
            };
            Some(((key("name")?, key("version")?), key("checksum")?))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = "version = 4\n\n[[package]]\nname = \"a\"\nversion = \"1.0.0\"\n\
                        checksum = \"aa11\"\n\n[[package]]\nname = \"hawser\"\nversion = \"0.1.0\"\n";

    fn metadata() -> String {
        let package = |name: &str, version: &str, licence: &str| json!({ "id": name, "name": name, "version": version, "license": licence });
        let dependency =
            |name: &str, kind: Value| json!({ "pkg": name, "dep_kinds": [{ "kind": kind }] });
        json!({
            "packages": [
                package("hawser", "0.1.0", "Apache-2.0"),
                package("a", "1.0.0", "MIT/Apache-2.0"),
                package("built-with", "2.0.0", "MIT"),
                package("tested-with", "3.0.0", "MIT"),
                package("other-member", "0.1.0", "MIT"),
            ],
            "resolve": { "nodes": [
                { "id": "hawser", "deps": [
                    dependency("a", Value::Null),
                    dependency("built-with", json!("build")),
                    dependency("tested-with", json!("dev")),
                ] },
                { "id": "a", "deps": [] },
                { "id": "built-with", "deps": [dependency("a", Value::Null)] },
            ] },
        })
        .to_string()
    }

    #[test]
    fn names_what_is_linked_and_nothing_of_the_tests() {
        let sbom = document(&metadata(), LOCK).expect("a document");
        let names: Vec<&str> =
            array(&sbom["components"]).filter_map(|c| c["name"].as_str()).collect();
        assert_eq!(names, ["a", "built-with"]);
        assert_eq!(sbom["metadata"]["component"]["purl"], "pkg:cargo/hawser@0.1.0");
        assert_eq!(sbom["metadata"]["component"]["type"], "application");
        let a = &sbom["components"][0];
        assert_eq!(a["hashes"][0]["content"], "aa11");
        assert_eq!(a["licenses"][0]["expression"], "MIT OR Apache-2.0");
        let of_hawser = array(&sbom["dependencies"]).find(|d| d["ref"] == "pkg:cargo/hawser@0.1.0");
        let expected = json!(["pkg:cargo/a@1.0.0", "pkg:cargo/built-with@2.0.0"]);
        assert_eq!(of_hawser.expect("hawser's edges")["dependsOn"], expected);
    }

    #[test]
    fn says_what_is_missing() {
        let empty = document("{\"packages\": []}", LOCK);
        assert_eq!(empty, Err("cargo metadata has no package `hawser`".into()));
        assert!(document("no json", LOCK).is_err());
    }
}
