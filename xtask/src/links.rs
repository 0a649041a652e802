//! Relative links in Markdown name files and headings that exist, and paths of modules (`pooler::wire`) files.
//!
//! Links to other sites are left alone: a check that needs the network fails for others' reasons.

use std::collections::BTreeMap;

use crate::finding::Finding;
use crate::tree::Tree;

pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (path, text) in tree.ending(".md") {
        for (index, target) in targets(text) {
            if let Some(reason) = broken(tree, path, text, &target) {
                findings.push(Finding::at(path, index, format!("link `{target}`: {reason}")));
            }
        }
        for (index, line) in text.lines().enumerate() {
            let moved =
                line.split('`').skip(1).step_by(2).filter(|code| is_of_no_module(tree, code));
            for code in moved {
                findings.push(Finding::at(
                    path,
                    index,
                    format!("`{code}`: there is no such module"),
                ));
            }
        }
    }
    findings
}

/// Whether this has the form of a module's path in a crate of the workspace, and there is none, nor one that has an
/// item of the last name.
fn is_of_no_module(tree: &Tree, code: &str) -> bool {
    let Some((name, path)) = code.split_once("::") else { return false };
    let source = format!("crates/{name}/src");
    let is_plain =
        |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_lowercase() || b == b'_');
    if !path.split("::").all(is_plain) || !tree.has(&format!("{source}/lib.rs")) {
        return false;
    }
    let file = |path: &str| format!("{source}/{}.rs", path.replace("::", "/"));
    let (above, last) = path.rsplit_once("::").unwrap_or(("lib", path));
    let names_it = |text: &str| {
        text.contains(&format!(" {last}(")) || text.contains(&format!("mod {last} {{"))
    };
    !tree.has(&file(path)) && !tree.text(&file(above)).is_some_and(names_it)
}

/// Why a link does not work, if so.
fn broken(tree: &Tree, from: &str, text: &str, target: &str) -> Option<&'static str> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, heading) = target.split_once('#').unwrap_or((target, ""));
    let directory = from.rsplit_once('/').map_or("", |(directory, _)| directory);
    let Some(path) = resolve(directory, file) else { return Some("leaves the repository") };
    let there = if file.is_empty() { from.to_owned() } else { path };
    if !tree.has(&there) {
        return Some("there is no such file");
    }
    let page = if file.is_empty() { Some(text) } else { tree.text(&there) };
    match page {
        Some(page) if !heading.is_empty() && there.ends_with(".md") => {
            (!anchors(page).contains(&heading.to_owned())).then_some("there is no such heading")
        }
        _ => None,
    }
}

/// `file` as seen from `directory`, or `None` where it climbs out of the root.
fn resolve(directory: &str, file: &str) -> Option<String> {
    let (mut parts, file) = match file.strip_prefix('/') {
        Some(rooted) => (Vec::new(), rooted), // GitHub takes a leading slash for the root
        None => (directory.split('/').filter(|part| !part.is_empty()).collect(), file),
    };
    for part in file.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()?),
            _ => parts.push(part),
        }
    }
    Some(parts.join("/"))
}

/// Lines outside fenced code, with inline code blanked.
fn prose(text: &str) -> Vec<(usize, String)> {
    let mut fenced = false;
    let mut lines = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        if !fenced && !fence {
            let outside = line.split('`').step_by(2).collect::<Vec<_>>();
            lines.push((index, outside.join("``")));
        }
    }
    lines
}

/// Targets of `[x](target)`, `[x]: target`, `src="target"` and `href="target"`, with their lines.
fn targets(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (index, line) in prose(text) {
        for (opening, close) in [("](", ')'), ("src=\"", '"'), ("href=\"", '"')] {
            for (at, _) in line.match_indices(opening) {
                let target = line[at + opening.len()..].split([close, ' ']).next();
                found.extend(target.map(|t| (index, t.to_owned())));
            }
        }
        if let (true, Some((_, target))) = (line.starts_with('['), line.split_once("]: ")) {
            found.extend(target.split_whitespace().next().map(|t| (index, t.to_owned())));
        }
    }
    found
}

/// The names under which GitHub reaches the headings of a page.
fn anchors(text: &str) -> Vec<String> {
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    let mut anchors = Vec::new();
    let mut fenced = false;
    for line in text.lines() {
        fenced ^= line.trim_start().starts_with("```");
        let title = line.trim_start_matches('#');
        if fenced || title.len() == line.len() || !title.starts_with(' ') {
            continue;
        }
        let kept = title.trim().chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
        let name: String = kept.collect::<String>().to_lowercase().replace(' ', "-");
        let before = seen.entry(name.clone()).or_default();
        anchors.push(if *before == 0 { name } else { format!("{name}-{before}") });
        *before += 1;
    }
    anchors
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<String> {
        let files = [
            ("docs/page.md", text),
            ("docs/other.md", "# Other page: `serve`\n## Twice\n## Twice\n"),
            ("docs/images/a.svg", "<svg/>"),
            ("README.md", "# Hawser"),
            ("crates/pooler/src/lib.rs", "pub mod wire;"),
            ("crates/pooler/src/wire/frame.rs", "pub fn header() {}"),
        ];
        check(&Tree::of(&files)).into_iter().map(|f| format!("{} {}", f.place, f.message)).collect()
    }

    #[test]
    fn links_that_work() {
        let none: Vec<String> = Vec::new();
        assert_eq!(found("[a](other.md) [b](../README.md#hawser) [c](images)"), none);
        assert_eq!(found("![d](images/a.svg \"title\") <img src=\"images/a.svg\">"), none);
        assert_eq!(
            found("[e](other.md#other-page-serve) [f](other.md#twice-1) [g](/README.md)"),
            none
        );
        assert_eq!(found("# Here\n[h](#here) [i](https://example.com/x) <a href=\"#here\">"), none);
        assert_eq!(found("[k]\n\n[k]: other.md"), none);
    }

    #[test]
    fn modules_that_are_there_and_not() {
        for text in [
            "`pooler::wire::frame`",
            "`pooler::wire::frame::header`",
            "`std::io`",
            "`pooler::Engine`",
        ] {
            assert_eq!(found(text).len(), 0, "{text}");
        }
        for text in [
            "`pooler::relay`",
            "see `a`, `pooler::wire::frames` and `b`",
            "`pooler::wire::frame::head`",
        ] {
            assert_eq!(found(text).len(), 1, "{text}");
        }
    }

    #[test]
    fn links_that_do_not() {
        for text in [
            "[a](absent.md)",
            "[a](other.md#absent)",
            "[a](#absent)",
            "[a](../../outside.md)",
            "![a](images/b.svg)",
            "[k]: absent.md",
            "<img src=\"absent.svg\">",
            "fine\n\n```\ncode\n```\n[a](absent.md)",
        ] {
            assert_eq!(found(text).len(), 1, "{text}");
        }
        assert!(found("fine\n[a](absent.md)")[0].starts_with("docs/page.md:2 "));
    }

    #[test]
    fn code_is_no_link() {
        let none: Vec<String> = Vec::new();
        assert_eq!(found("`[a](absent.md)`\n```\n[a](absent.md)\n```"), none);
    }
}
