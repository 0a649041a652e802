//! Manual pages and completions, from the declarations that parse the command line and the file.

use std::fs;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::roff::{Inline, Roff, bold, roman};

use super::{Arguments, print};
use crate::config::registry;
use crate::config::setting::Table;

/// What the command line's own description does not have.
const FILES: [(&str, &str); 5] = [
    ("/etc/hawser/hawser.toml", "The configuration: hawser.toml(5)."),
    ("/etc/hawser/userlist.txt", "Users with their passwords or stored secrets, one a line."),
    ("/run/hawser/hawser.sock", "The control socket, which status, top, reload and stop ask."),
    (
        "/usr/lib/hawser/pgbouncer",
        "The program under the name by which it takes PgBouncer's arguments.",
    ),
    ("/usr/share/doc/hawser/docs", "The manual."),
];

#[derive(Debug, clap::Args)]
pub(super) struct Completions {
    /// The shell: for bash, `hawser completions bash > /usr/share/bash-completion/completions/hawser`.
    shell: Shell,
}

impl Completions {
    pub(super) fn print(&self) {
        // (The library would offer hidden commands, too.)
        let whole = Arguments::command();
        let shown = whole.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
        let version = env!("CARGO_PKG_VERSION");
        let mut shown = clap::Command::new("hawser").version(version).subcommands(shown);
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut shown, "hawser", &mut script);
        print(&String::from_utf8_lossy(&script));
    }
}

#[derive(Debug, clap::Args)]
pub(super) struct Man {
    /// Where hawser.1, a page for each command, and hawser.toml.5 are written.
    directory: PathBuf,
}

impl Man {
    pub(super) fn write(&self) -> Result<(), String> {
        let to = &self.directory;
        let written = write_commands(to)
            .and_then(|()| fs::write(to.join("hawser.toml.5"), settings().to_roff()));
        written.map_err(|error| format!("{}: {error}", to.display()))
    }
}

fn write_commands(to: &Path) -> std::io::Result<()> {
    clap_mangen::generate_to(Arguments::command(), to)?;
    let mut files = Roff::new();
    files.control("SH", ["FILES"]);
    for (path, is) in FILES {
        files.control("TP", []).text([bold(path)]).text([roman(is)]);
    }
    let main = to.join("hawser.1");
    fs::write(&main, fs::read_to_string(&main)? + &files.to_roff())
}

/// hawser.toml(5).
fn settings() -> Roff {
    let mut page = Roff::new();
    page.control("TH", ["hawser.toml", "5", "", "hawser", ""]);
    page.control("SH", ["NAME"]).text([roman("hawser.toml - configuration of hawser(1)")]);
    page.control("SH", ["DESCRIPTION"]);
    page.text([roman(
        "TOML: tables, and settings in them. hawser check says what is wrong with a file, with line and \
         column. Each setting below ends with its type, what a change needs, and its default.",
    )]);
    for table in Table::ALL {
        page.control("SH", [table.to_string().as_str()]);
        for setting in registry::all().filter(|setting| setting.table == table) {
            page.control("TP", []).text([bold(setting.name)]);
            let doc = setting.doc.split_whitespace().collect::<Vec<_>>().join(" ");
            page.text(inline(&without_links(&doc)));
            page.control("IP", []).text(inline(&setting.reference()));
        }
    }
    page
}

/// What stands between backquotes is bold.
fn inline(text: &str) -> Vec<Inline> {
    let parts = text.split('`').enumerate();
    parts.map(|(at, part)| if at % 2 == 1 { bold(part) } else { roman(part) }).collect()
}

/// `[words](page.md)` becomes `words`.
fn without_links(text: &str) -> String {
    let mut parts = text.split("](");
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        if let Some(open) = out.rfind('[') {
            out.remove(open);
        }
        out += part.split_once(')').map_or(part, |(_, rest)| rest);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_become_their_words() {
        let text = "Ask the [extension](e.md) `[x]`, see [a b](c.md#d).";
        assert_eq!(without_links(text), "Ask the extension `[x]`, see a b.");
    }

    #[test]
    fn the_page_of_the_file_has_every_table_and_setting() {
        let page = settings().to_roff();
        for setting in registry::all() {
            let name = setting.name.replace('-', r"\-");
            assert!(page.contains(&format!("\\fB{name}\\fR\n")), "{name}");
        }
        assert!(!page.contains(".md"), "links to pages are gone");
        assert!(!page.contains('`'), "no markup is left");
    }
}
