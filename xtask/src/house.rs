//! The size of the house, as a table: `cargo xtask house`. It judges nothing; who reads it compares it with the
//! table of the run before.
//!
//! # Model       code: a line that is neither blank nor only a comment, outside tests (`tests.rs`, `tests/`,
//!               `#[cfg(test)]`, also of a module's declaration); a type's methods: `fn`s in its `impl` blocks, also those of traits, by the
//!               type's name within a crate
//! # Limits      text, not syntax: what macros write is not seen

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::circles;
use crate::source;
use crate::tree::Tree;

const RELAY: [&str; 2] = ["crates/pooler/src/relay", "crates/pooler/src/parts"];
/// Subjects that are to have a room: the words by which other files name one, and where it is.
const ROOMS: [(&str, &str, &str); 3] = [
    ("listen", "listen", "parts/listen"),
    ("sequences", "sequence", "parts/sequences"),
    ("replay", "replay", "replay"),
];
const LONGEST: usize = 10;

/// A file of a crate without its tests.
struct File<'a> {
    krate: &'a str,
    path: &'a str,
    lines: Vec<String>,
}

/// A type's name with its crate.
type Type = (String, String);

/// The table.
pub(crate) fn table(tree: &Tree) -> String {
    let rust = || tree.ending(".rs").filter(|(path, _)| path.starts_with("crates/"));
    let tests: BTreeSet<String> =
        rust().flat_map(|(path, text)| source::test_stems(path, &source::lines(text))).collect();
    let product = rust().filter(|(path, _)| !source::is_test(path, &tests));
    let files: Vec<File<'_>> = product.filter_map(|(path, text)| file(path, text)).collect();
    let mut out = String::new();
    let mut row = |name: &str, value: String| {
        let _ = writeln!(out, "{name:<46} {value}");
    };
    let count = |wanted: &dyn Fn(&File<'_>) -> bool| {
        files.iter().filter(|file| wanted(file)).map(|file| file.lines.len()).sum::<usize>()
    };
    let crates: BTreeSet<&str> = files.iter().map(|file| file.krate).collect();
    for krate in &crates {
        row(&format!("code of {krate}, lines"), count(&|file| file.krate == *krate).to_string());
    }
    row("code of all crates, lines", count(&|_| true).to_string());
    row("code of relay and parts, lines", count(&|file| is_relay(file.path)).to_string());
    if let Some(((krate, name), (methods, places))) =
        methods(&files).into_iter().max_by_key(|(_, (methods, _))| *methods)
    {
        let value = format!("{krate}::{name}, {methods} in {} files", places.len());
        row("type with most methods", value);
    }
    let structs = fields(&files);
    if let Some(((krate, name), fields)) = structs.iter().max_by_key(|(_, fields)| **fields) {
        row("largest struct", format!("{krate}::{name}, {fields} fields"));
    }
    let effects = structs.get(&("pooler".to_owned(), "Effects".to_owned()));
    row("fields of Effects", effects.map_or_else(|| "there is none".into(), usize::to_string));
    for what in ["pub(in ", "pub(super)"] {
        row(
            &format!("{what}{}", if what.ends_with(' ') { "...)" } else { "" }),
            says(&files, what).to_string(),
        );
    }
    for (subject, word, room) in ROOMS {
        let named = files.iter().filter(|file| file.krate == "pooler" && !file.path.contains(room));
        let named =
            named.filter(|file| file.lines.iter().any(|line| line.to_lowercase().contains(word)));
        row(
            &format!("the pooler's files outside its room that name {subject}"),
            named.count().to_string(),
        );
    }
    let (largest, climbing) = crates.iter().fold((0, 0), |(largest, climbing), krate| {
        let edges = circles::edges(tree, &format!("crates/{krate}/src/"));
        let circle = circles::circles(&edges).iter().map(BTreeSet::len).max().unwrap_or(0);
        (largest.max(circle), climbing + climbs(&edges))
    });
    row("largest circle of files", largest.to_string());
    row("arrows that climb (a module uses one above it)", climbing.to_string());
    row("Result<_, String>", string_errors(&files).to_string());
    let mut longest: Vec<_> = files.iter().map(|file| (file.lines.len(), file.path)).collect();
    longest.sort_unstable_by(|one, other| other.cmp(one));
    for (lines, path) in longest.into_iter().take(LONGEST) {
        row(path, format!("{lines} lines of code"));
    }
    out
}

/// Every circle of files with the arrows that make it, the largest first.
pub(crate) fn circles(tree: &Tree) -> String {
    let mut out = String::new();
    let crates = circles::crates(tree).into_iter();
    let of_crate = |krate: String| {
        let edges = circles::edges(tree, &krate);
        let circles = circles::circles(&edges).into_iter();
        circles.map(move |circle| (krate.clone(), edges.clone(), circle)).collect::<Vec<_>>()
    };
    let mut all: Vec<_> = crates.flat_map(of_crate).collect();
    all.sort_by_key(|(.., circle)| std::cmp::Reverse(circle.len()));
    for (krate, edges, circle) in all {
        let _ = writeln!(out, "{krate}: a circle of {}", circle.len());
        for name in &circle {
            let within = edges[name].intersection(&circle).map(String::as_str);
            let within: Vec<&str> = within.collect();
            let _ = writeln!(out, "  {name} -> {}", within.join(", "));
        }
    }
    out
}

fn is_relay(path: &str) -> bool {
    RELAY
        .iter()
        .any(|room| path.strip_prefix(room).is_some_and(|rest| rest.starts_with(['/', '.'])))
}

fn file<'a>(path: &'a str, text: &str) -> Option<File<'a>> {
    let (krate, inside) = path.strip_prefix("crates/")?.split_once("/src/")?;
    if inside.split('/').any(|part| part == "tests" || part == "tests.rs") {
        return None;
    }
    let code =
        source::lines(text).into_iter().filter(|line| !line.test && !line.code.trim().is_empty());
    Some(File { krate, path, lines: code.map(|line| line.code).collect() })
}

fn says(files: &[File<'_>], what: &str) -> usize {
    files.iter().flat_map(|file| &file.lines).map(|line| line.matches(what).count()).sum()
}

/// Each item that begins with `word` at the beginning of a line: its head up to `{`, and its body.
fn items<'a>(file: &'a File<'_>, word: &'a str) -> impl Iterator<Item = (String, &'a [String])> {
    let starts = file.lines.iter().enumerate().filter(move |(_, line)| {
        let rest = line.strip_prefix("pub ").or_else(|| {
            line.strip_prefix("pub(").map(|rest| rest.split_once(") ").map_or("", |(_, rest)| rest))
        });
        let rest = rest.unwrap_or(line);
        rest.strip_prefix(word).is_some_and(|rest| rest.starts_with([' ', '<']))
    });
    starts.filter_map(|(at, _)| {
        let rest = &file.lines[at..];
        let opens = rest.iter().position(|line| line.contains('{') || line.ends_with(';'))?;
        let head = rest[..=opens].join(" ");
        let ends = rest.iter().position(|line| line.starts_with('}')).unwrap_or(opens);
        Some((head, &rest[(opens + 1).min(rest.len())..ends.max(opens + 1).min(rest.len())]))
    })
}

/// The type that an `impl`'s head is for.
fn implemented(head: &str) -> Option<String> {
    let head = without_generics(head);
    let head = head.split(" where ").next()?.trim_end_matches('{').trim();
    let name = head.rsplit(" for ").next()?.trim_start_matches("impl").trim();
    let name = name.rsplit("::").next()?.trim_start_matches(['&', '*']);
    name.chars().next().is_some_and(char::is_uppercase).then(|| name.to_owned())
}

fn without_generics(head: &str) -> String {
    let (mut depth, mut before, mut out) = (0, ' ', String::new());
    for c in head.chars() {
        match c {
            '<' => depth += 1,
            '>' if before != '-' => depth -= 1,
            c if depth == 0 => out.push(c),
            _ => {}
        }
        before = c;
    }
    out
}

/// How many methods each type has, and in which files.
fn methods<'a>(files: &'a [File<'_>]) -> BTreeMap<Type, (usize, BTreeSet<&'a str>)> {
    let mut found: BTreeMap<Type, (usize, BTreeSet<&str>)> = BTreeMap::new();
    for file in files {
        for (head, body) in items(file, "impl") {
            let Some(name) = implemented(&head) else { continue };
            let methods = body.iter().filter(|line| is_method(line)).count();
            if methods > 0 {
                let entry = found.entry((file.krate.to_owned(), name)).or_default();
                entry.0 += methods;
                entry.1.insert(file.path);
            }
        }
    }
    found
}

/// Indented by one step, as formatting has it.
fn is_method(line: &str) -> bool {
    let Some(line) = line.strip_prefix("    ").filter(|line| !line.starts_with(' ')) else {
        return false;
    };
    let before = line.split("fn ").next().unwrap_or("");
    before.len() < line.len() && !before.contains(['=', '!', '"', '/'])
}

/// The number of named fields of each struct.
fn fields(files: &[File<'_>]) -> BTreeMap<Type, usize> {
    let mut found = BTreeMap::new();
    for file in files {
        for (head, body) in items(file, "struct") {
            let Some(name) = head.split("struct ").nth(1) else { continue };
            let name: String =
                name.chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
            let is_field = |line: &&String| {
                line.strip_prefix("    ").is_some_and(|line| {
                    !line.starts_with([' ', '#', ')', '}', '>']) && line.contains(':')
                })
            };
            found.insert((file.krate.to_owned(), name), body.iter().filter(is_field).count());
        }
    }
    found
}

/// Edges from a module to one that it lies in.
fn climbs(edges: &BTreeMap<String, BTreeSet<String>>) -> usize {
    let above = |from: &str, to: &str| {
        to.is_empty() || from.strip_prefix(to).is_some_and(|rest| rest.starts_with("::"))
    };
    edges.iter().map(|(from, to)| to.iter().filter(|to| above(from, to)).count()).sum()
}

/// `Result<_, String>`: the error says neither whose fault it is nor what to do.
fn string_errors(files: &[File<'_>]) -> usize {
    let text = |file: &File<'_>| file.lines.join("\n");
    files.iter().map(|file| string_errors_of(&text(file))).sum()
}

fn string_errors_of(code: &str) -> usize {
    let of = |at: usize| {
        let rest = &code[at + "Result<".len()..];
        let (mut depth, mut comma) = (1, 0);
        for (at, c) in rest.char_indices() {
            match c {
                '<' | '(' | '[' => depth += 1,
                '>' if rest[..at].ends_with('-') => {}
                '>' | ')' | ']' => depth -= 1,
                ',' if depth == 1 => comma = at + 1,
                _ => {}
            }
            if depth == 0 {
                return rest[comma..at].trim().trim_end_matches(',') == "String" && comma > 0;
            }
        }
        false
    };
    code.match_indices("Result<").filter(|(at, _)| of(*at)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(files: &[(&str, &str)], name: &str) -> String {
        let table = table(&Tree::of(files));
        let line = table
            .lines()
            .find(|line| line.starts_with(name))
            .unwrap_or_else(|| panic!("{name}: {table}"));
        line[name.len()..].trim().to_owned()
    }

    #[test]
    fn code_is_counted_without_comments_and_tests() {
        let code = "//! Of.\n\nfn a() {\n    // b\n    b(); // c\n}\n\n#[cfg(test)]\nmod tests {\n    fn c() {}\n}\n";
        let files = [
            ("crates/pooler/src/relay/a.rs", code),
            ("crates/pooler/src/a/tests.rs", code),
            ("crates/pooler/tests/b.rs", code),
        ];
        assert_eq!(row(&files, "code of pooler, lines"), "3");
        assert_eq!(row(&files, "code of relay and parts, lines"), "3");
        assert_eq!(row(&files, "crates/pooler/src/relay/a.rs"), "3 lines of code");
    }

    #[test]
    fn a_file_that_is_declared_for_tests_is_none_of_the_product() {
        let files = [
            ("crates/sys/src/a.rs", "fn a() {}\n#[cfg(test)]\nmod b;\nmod c;\n"),
            ("crates/sys/src/a/b.rs", "fn b() {}\nmod d;\n"),
            ("crates/sys/src/a/b/d.rs", "fn d() {}\n"),
            ("crates/sys/src/a/c.rs", "fn c() {}\n"),
            ("crates/sys/src/a/bc.rs", "fn bc() {}\n"),
        ];
        assert_eq!(row(&files, "code of sys, lines"), "4");
    }

    #[test]
    fn methods_of_a_type_are_those_of_all_its_files() {
        let one = "pub struct A<T> {\n    a: u8,\n    pub(super) b: Vec<(u8, T)>,\n}\nimpl<T: Fn() -> u8> A<T> {\n    fn a() {\n        fn inner() {}\n    }\n    pub const fn b() {}\n}\n";
        let two = "use super::A;\nimpl<T> Drop for A<T>\nwhere\n    T: Copy,\n{\n    fn drop(&mut self) {}\n}\nstruct B {\n    c: u8,\n}\nimpl B {\n    fn c() {}\n}\n";
        let files = [("crates/pooler/src/a.rs", one), ("crates/pooler/src/a/two.rs", two)];
        assert_eq!(row(&files, "type with most methods"), "pooler::A, 3 in 2 files");
        assert_eq!(row(&files, "largest struct"), "pooler::A, 2 fields");
        assert_eq!(row(&files, "fields of Effects"), "there is none");
        assert_eq!(row(&files, "pub(super)"), "1");
        assert_eq!(row(&files, "arrows that climb (a module uses one above it)"), "1");
    }

    #[test]
    fn errors_that_are_text_are_counted() {
        let code = "fn a() -> Result<Vec<(u8, u8)>, String> {}\nfn b() -> Result<(), Error> {}\nfn c() -> Result<String> {}\nfn d(f: impl Fn() -> Result<u8, String>) {}\n";
        assert_eq!(row(&[("crates/pooler/src/a.rs", code)], "Result<_, String>"), "2");
    }

    #[test]
    fn circles_are_those_of_all_crates() {
        let files = [
            ("crates/sys/src/a.rs", "use crate::b;\n"),
            ("crates/sys/src/b.rs", "use crate::a;\n"),
            ("crates/pooler/src/c.rs", ""),
        ];
        assert_eq!(row(&files, "largest circle of files"), "2");
        let printed = circles(&Tree::of(&files));
        assert_eq!(printed, "crates/sys/src/: a circle of 2\n  a -> b\n  b -> a\n");
    }
}
