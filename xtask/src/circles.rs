//! No import circle among state machines: two modules that need each other are one module in two files.
//!
//! # Model       an edge from a module to each module of its crate that it names by `use`, `crate::` or
//!               `super::`, outside tests; a circle is a strongly connected part of more than one module
//! # Why not     edges of `mod x;`: a module that only declares another does not need it
//! # Limits      a `use` of a parent's re-export is an edge to the parent; methods of a type that
//!               stand in another file are no edge

use std::collections::{BTreeMap, BTreeSet};

use crate::finding::Finding;
use crate::pure;
use crate::source;
use crate::tree::Tree;

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    crates(tree).into_iter().flat_map(|krate| check_crate(tree, &krate)).collect()
}

/// The crates' sources, `crates/NAME/src/`.
pub(crate) fn crates(tree: &Tree) -> BTreeSet<String> {
    let source = |path: &str| {
        let name = path.strip_prefix("crates/")?.split_once("/src/")?.0;
        Some(format!("crates/{name}/src/"))
    };
    tree.ending(".rs").filter_map(|(path, _)| source(path)).collect()
}

fn check_crate(tree: &Tree, krate: &str) -> Vec<Finding> {
    let file = |module: &String| format!("{krate}{}.rs", module.replace("::", "/"));
    let mut edges = edges(tree, krate);
    edges.retain(|module, _| pure::is_pure(&file(module)));
    let mut findings = Vec::new();
    for circle in circles(&edges) {
        let room = circle.iter().next().map_or("", |first| first.split("::").next().unwrap_or(""));
        let names: Vec<&str> = circle.iter().map(String::as_str).collect();
        let message = format!(
            "{} modules import each other in a circle: {}; move what several need into a module \
             that imports none of them",
            names.len(),
            names.join(", ")
        );
        findings.push(Finding::error(format!("{krate}{room}"), message));
    }
    findings
}

/// Modules of a crate by their path (`relay::turn`; the root is empty), and which others each imports.
pub(crate) fn edges(tree: &Tree, krate: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut codes = BTreeMap::new();
    for (path, text) in tree.ending(".rs").filter(|(path, _)| path.starts_with(krate)) {
        let stem = path[krate.len()..].trim_end_matches(".rs");
        let name = if stem == "lib" { String::new() } else { stem.replace('/', "::") };
        if name.split("::").any(|part| part == "tests") {
            continue;
        }
        let lines = source::lines(text);
        let code: Vec<&str> =
            lines.iter().filter(|line| !line.test).map(|line| line.code.as_str()).collect();
        codes.insert(name, code.join("\n"));
    }
    let mut edges = BTreeMap::new();
    for (name, code) in &codes {
        let named = paths(code).into_iter().filter_map(|path| module(name, &path, &codes));
        edges.insert(name.clone(), named.filter(|other| other != name).collect());
    }
    edges
}

/// Paths in `use` items, one for each leaf, and other paths that begin with `crate` or `super`.
fn paths(code: &str) -> Vec<String> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("use ") {
        let line = code[..at].rfind('\n').map_or(0, |end| end + 1);
        let begins = code[line..at].trim_start();
        if begins.is_empty() || begins.starts_with("pub") {
            let item = &code[at + "use ".len()..];
            leaves("", &item[..item.find(';').unwrap_or(item.len())], &mut found);
        }
    }
    for root in ["crate::", "super::"] {
        for (at, _) in code.match_indices(root) {
            let before = code[..at].chars().next_back();
            if code[..at].ends_with("(in ") {
                continue; // a visibility names no item
            }
            if !before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
                let path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
                let end = code[at..].find(|c| !path(c)).unwrap_or(code.len() - at);
                found.push(code[at..at + end].to_owned());
            }
        }
    }
    found
}

/// The leaves of a `use` tree.
fn leaves(before: &str, tree: &str, found: &mut Vec<String>) {
    let Some((head, group)) = tree.split_once('{') else {
        let leaf = tree.split(" as ").next().unwrap_or(tree);
        found.push(format!("{before}{}", leaf.trim()));
        return;
    };
    let before = format!("{before}{}", head.trim());
    let group = group.rsplit_once('}').map_or(group, |(inside, _)| inside);
    let (mut depth, mut start) = (0, 0);
    for (at, c) in group.char_indices().chain([(group.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                let part = group[start..at].trim();
                if !part.is_empty() {
                    leaves(&before, part, found);
                }
                start = at + 1;
            }
            _ => {}
        }
    }
}

/// The module that a path leads to, as `from` writes it: the longest part of it that is one.
fn module(from: &str, path: &str, modules: &BTreeMap<String, String>) -> Option<String> {
    let mut at: Vec<&str> = from.split("::").filter(|part| !part.is_empty()).collect();
    let mut parts = path.split("::").filter(|part| !part.is_empty()).peekable();
    match *parts.peek()? {
        "crate" => at.clear(),
        "super" | "self" => {}
        child => {
            let own = [&at[..], &[child]].concat().join("::");
            modules.contains_key(&own).then_some(())?;
        }
    }
    for part in parts {
        match part {
            "crate" | "self" => {}
            "super" => drop(at.pop()),
            name => at.push(name),
        }
    }
    while !at.is_empty() && !modules.contains_key(&at.join("::")) {
        at.pop();
    }
    Some(at.join("::"))
}

/// Strongly connected parts of more than one module: each is what its modules reach, and are reached by.
pub(crate) fn circles(edges: &BTreeMap<String, BTreeSet<String>>) -> Vec<BTreeSet<String>> {
    let reaches = |from: &String| {
        let mut reached = BTreeSet::new();
        let mut open = vec![from];
        while let Some(next) = open.pop() {
            for to in edges.get(next).into_iter().flatten() {
                if reached.insert(to) {
                    open.push(to);
                }
            }
        }
        reached
    };
    let reached: BTreeMap<&String, BTreeSet<&String>> =
        edges.keys().map(|from| (from, reaches(from))).collect();
    let mut found: Vec<BTreeSet<String>> = Vec::new();
    for (from, to) in &reached {
        let back = to.iter().filter(|to| reached.get(*to).is_some_and(|to| to.contains(from)));
        let circle: BTreeSet<String> = back.map(|name| (*name).clone()).collect();
        if circle.len() > 1 && !found.contains(&circle) {
            found.push(circle);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let files: Vec<(String, &str)> = files
            .iter()
            .map(|(name, code)| (format!("crates/pooler/src/{name}.rs"), *code))
            .collect();
        let files: Vec<(&str, &str)> = files.iter().map(|(name, code)| (&**name, *code)).collect();
        check(&Tree::of(&files)).into_iter().map(|finding| finding.message).collect()
    }

    #[test]
    fn two_that_import_each_other_are_a_circle() {
        for code in ["use crate::b::B;", "use super::b::{self, B};", "fn f() -> crate::b::B {}"] {
            let found = found(&[("a", code), ("b", "use super::a;")]);
            assert_eq!(found.len(), 1, "{code}");
            assert!(found[0].starts_with("2 modules import each other in a circle: a, b;"));
        }
    }

    #[test]
    fn a_child_that_needs_its_parent_which_needs_it_is_one() {
        let files = [("a", "mod c;\nuse c::C;"), ("a/c", "use super::A;")];
        assert_eq!(found(&files).len(), 1);
        let files = [("a", "mod c;\npub use c::{C, d::{D, E}};"), ("a/c", "use super::{A, B};")];
        assert_eq!(found(&files).len(), 1);
    }

    #[test]
    fn what_goes_one_way_is_none() {
        let files = [
            ("lib", "pub mod a;\npub mod b;"),
            ("a", "mod c;\nuse crate::b::{B, x::Y};\n// use c::C;"),
            ("a/c", "use super::super::b::B;\nuse super::A;"),
            (
                "b",
                "use std::a;\npub(in crate::a) fn f() {}\n#[cfg(test)]\nmod tests {\n    use crate::a::A;\n}",
            ),
        ];
        assert_eq!(found(&files), Vec::<String>::new());
    }

    #[test]
    fn what_is_no_state_machine_is_left_alone() {
        let of = |module: &str| format!("use crate::{module};");
        let (a, b) = (of("b"), of("a"));
        let files = [("crates/sys/src/a.rs", &*a), ("crates/sys/src/b.rs", &*b)];
        assert!(check(&Tree::of(&files)).is_empty());
        let (a, b) = (of("rule::b"), of("rule::a"));
        let files = [("crates/bypass/src/rule/a.rs", &*a), ("crates/bypass/src/rule/b.rs", &*b)];
        assert_eq!(check(&Tree::of(&files)).len(), 1);
    }

    #[test]
    fn a_longer_circle_is_one_finding() {
        let files = [("a", "use crate::b;"), ("b", "use crate::c;"), ("c", "use crate::a;")];
        assert_eq!(found(&files).len(), 1);
    }
}
