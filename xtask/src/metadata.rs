//! What `cargo metadata --format-version 1` says, as far as the checks need it.

use std::collections::BTreeSet;

use serde_json::Value;

/// One package of the resolved graph.
#[derive(Debug, Default, Clone)]
pub(crate) struct Package {
    pub(crate) name: String,
    pub(crate) version: String,
    /// SPDX expression; absent where the package names a file instead, or nothing.
    pub(crate) licence: Option<String>,
    /// Directory from the workspace's root, of members; `None` for others' packages.
    pub(crate) member_directory: Option<String>,
    pub(crate) dependencies: Vec<Dependency>,
}

/// One line of a manifest's dependency tables.
#[derive(Debug, Clone)]
pub(crate) struct Dependency {
    pub(crate) name: String,
    pub(crate) dev: bool,
}

/// All packages that are built here, ordered by name and version.
#[derive(Debug, Default)]
pub(crate) struct Metadata {
    pub(crate) packages: Vec<Package>,
}

impl Metadata {
    pub(crate) fn parse(json: &str) -> Result<Self, String> {
        let value: Value =
            serde_json::from_str(json).map_err(|error| format!("cargo metadata: {error}"))?;
        let root = string(&value, "workspace_root")?;
        let members: BTreeSet<&str> =
            list(&value, "workspace_members")?.iter().filter_map(Value::as_str).collect();
        // `packages` also has those of other systems; the resolved graph has only what is built.
        let resolve = value.get("resolve").ok_or("cargo metadata: no `resolve`")?;
        let mut built = BTreeSet::new();
        for node in list(resolve, "nodes")? {
            built.insert(string(node, "id")?);
        }
        let mut packages = Vec::new();
        for package in list(&value, "packages")? {
            let id = string(package, "id")?;
            if built.contains(id) {
                packages.push(Package::parse(package, root, members.contains(id))?);
            }
        }
        packages.sort_by(|a, b| (&a.name, &a.version).cmp(&(&b.name, &b.version)));
        Ok(Self { packages })
    }

    pub(crate) fn members(&self) -> impl Iterator<Item = (&Package, &str)> {
        self.packages.iter().filter_map(|p| Some((p, p.member_directory.as_deref()?)))
    }
}

impl Package {
    fn parse(value: &Value, root: &str, member: bool) -> Result<Self, String> {
        let manifest = string(value, "manifest_path")?;
        let directory = manifest.strip_prefix(root).and_then(|p| p.strip_suffix("/Cargo.toml"));
        let mut dependencies = Vec::new();
        for dependency in list(value, "dependencies")? {
            dependencies.push(Dependency {
                name: string(dependency, "name")?.into(),
                dev: dependency.get("kind").and_then(Value::as_str) == Some("dev"),
            });
        }
        Ok(Self {
            name: string(value, "name")?.into(),
            version: string(value, "version")?.into(),
            licence: value.get("license").and_then(Value::as_str).map(Into::into),
            member_directory: directory
                .filter(|_| member)
                .map(|d| d.trim_start_matches('/').to_owned()),
            dependencies,
        })
    }
}

fn string<'a>(value: &'a Value, key: &str) -> Result<&'a str, String> {
    value.get(key).and_then(Value::as_str).ok_or_else(|| format!("cargo metadata: no `{key}`"))
}

fn list<'a>(value: &'a Value, key: &str) -> Result<&'a Vec<Value>, String> {
    value.get(key).and_then(Value::as_array).ok_or_else(|| format!("cargo metadata: no `{key}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLE: &str = r#"{
        "workspace_root": "/w", "workspace_members": ["a-id"],
        "resolve": {"nodes": [{"id": "a-id"}, {"id": "b-id"}]},
        "packages": [
            {"id": "b-id", "name": "b", "version": "1.0.0", "license": "MIT",
             "manifest_path": "/elsewhere/b/Cargo.toml", "dependencies": []},
            {"id": "c-id", "name": "only-on-windows", "version": "1.0.0", "license": null,
             "manifest_path": "/elsewhere/c/Cargo.toml", "dependencies": []},
            {"id": "a-id", "name": "a", "version": "0.1.0", "license": null,
             "manifest_path": "/w/crates/a/Cargo.toml",
             "dependencies": [{"name": "b", "kind": null}, {"name": "t", "kind": "dev"}]}
        ]}"#;

    #[test]
    fn reads_members_and_what_is_built() {
        let metadata = Metadata::parse(SAMPLE).unwrap();
        let names: Vec<_> = metadata.packages.iter().map(|p| p.name.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        let (member, directory) = metadata.members().next().unwrap();
        assert_eq!((member.name.as_str(), directory), ("a", "crates/a"));
        let kinds: Vec<_> = member.dependencies.iter().map(|d| (d.name.as_str(), d.dev)).collect();
        assert_eq!(kinds, [("b", false), ("t", true)]);
        assert_eq!(metadata.packages[1].licence.as_deref(), Some("MIT"));
    }

    #[test]
    fn refuses_what_it_does_not_understand() {
        assert!(Metadata::parse("{}").is_err());
        assert!(Metadata::parse("nonsense").is_err());
    }
}
