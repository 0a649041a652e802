//! TOML text -> settings with their places.
//!
//! # Model
//! The parser gives values with spans; each key is looked up in the registry and its
//! value read as the setting's type. All errors are collected; what could not be read
//! keeps its default, so that one error does not bring others about.
//!
//! # Limits
//! With an error of TOML's syntax only syntax errors are reported: what follows them
//! would be guesses.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::error::{ConfigError, Lines, Position, Rejected};
use super::group::{ReloadConfig, StartConfig};
use super::registry::{self, DatabaseEntry, LinkEntry, RuleEntry, UserEntry};
use super::setting::{Setting, Table};
use super::suggest;
use super::value::{Context, Raw};

/// Where each setting that a file gives stands. The empty name is the table's head.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Places(BTreeMap<(Table, usize, &'static str), Position>);

impl Places {
    /// The place of setting `name` in the `index`th `table`; else of the table; else none.
    pub(super) fn find(&self, table: Table, index: usize, name: &'static str) -> Position {
        let place = |name| self.0.get(&(table, index, name));
        place(name).or_else(|| place("")).copied().unwrap_or_default()
    }
}

/// A file as it was read: every value valid on its own, nothing inherited, nothing compared.
#[derive(Clone, Debug)]
pub(super) struct Document {
    pub(super) start: StartConfig,
    pub(super) reload: ReloadConfig,
    pub(super) databases: Vec<DatabaseEntry>,
    pub(super) users: Vec<UserEntry>,
    pub(super) rules: Vec<RuleEntry>,
    /// With their names.
    pub(super) links: Vec<(String, LinkEntry)>,
    pub(super) places: Places,
}

impl Document {
    /// A file in which nothing stands.
    pub(super) fn empty() -> Self {
        Self {
            start: StartConfig::defaults(),
            reload: ReloadConfig::defaults(),
            databases: Vec::new(),
            users: Vec::new(),
            rules: Vec::new(),
            links: Vec::new(),
            places: Places::default(),
        }
    }

    /// Reads `text`; the errors are those of single values, in no order.
    pub(super) fn read(text: &str, file: &Path) -> (Self, Vec<ConfigError>) {
        let mut reader =
            Reader { document: Self::empty(), lines: Lines::new(text), file, errors: Vec::new() };
        let (root, syntax_errors) = DeTable::parse_recoverable(text);
        if syntax_errors.is_empty() {
            reader.root(root.get_ref());
        }
        if !syntax_errors.is_empty()
            && let Some(at) = section_of_pgbouncer(text)
        {
            let name = file.display();
            let message = format!(
                "this is a configuration of PgBouncer: `hawser import {name} > hawser.toml` makes one of Hawser of it"
            );
            reader.refuse(&at, message);
            return (reader.document, reader.errors);
        }
        for error in syntax_errors {
            let at = error.span().unwrap_or(0..0);
            reader.refuse(&at, not_toml(text, at.start, error.message()));
        }
        (reader.document, reader.errors)
    }

    pub(super) fn assign(
        &mut self,
        table: Table,
        index: usize,
        raw: &Raw<'_>,
        context: Context<'_>,
    ) -> Result<(), Rejected> {
        let known = match table {
            Table::Database => self.databases[index].assign(raw, context)?,
            Table::User => self.users[index].assign(raw, context)?,
            Table::Rule => self.rules[index].assign(raw, context)?,
            Table::Link => self.links[index].1.assign(raw, context)?,
            _ => self.start.assign(raw, context)? || self.reload.assign(raw, context)?,
        };
        debug_assert!(known, "{} of {table} is in no group", context.setting.name);
        Ok(())
    }
}

/// What is wrong with the syntax at this byte, and what to do about the fault that is made most: of a
/// word without quotes the parser says that it is no boolean, or no number.
fn not_toml(text: &str, at: usize, message: &str) -> String {
    let (before, value) = text.split_at_checked(at).unwrap_or((text, ""));
    let is_word = before.trim_end().ends_with(['=', '[', ','])
        && value.starts_with(|first: char| first.is_ascii_alphabetic());
    let hint = if is_word { " (text needs quotes, as in \"transaction\")" } else { "" };
    format!("not TOML: {message}{hint}")
}

/// Where a section begins that a pgbouncer.ini has and a hawser.toml has not.
fn section_of_pgbouncer(text: &str) -> Option<Range<usize>> {
    let mut at = 0;
    for line in text.split_inclusive('\n') {
        let word = line.trim();
        if matches!(word, "[pgbouncer]" | "[databases]") {
            return Some(at..at + word.len());
        }
        at += line.len();
    }
    None
}

struct Reader<'a> {
    document: Document,
    lines: Lines<'a>,
    file: &'a Path,
    errors: Vec<ConfigError>,
}

impl Reader<'_> {
    fn refuse(&mut self, at: &Range<usize>, message: String) {
        let position = self.lines.position(at.start);
        self.errors.push(ConfigError::new(self.file, position, message));
    }

    fn root(&mut self, root: &DeTable<'_>) {
        for (key, value) in root {
            let name = key.get_ref().as_ref();
            let Some(table) = Table::ALL.into_iter().find(|table| table.name() == name) else {
                self.refuse(&key.span(), suggest::unknown_table(name, value.get_ref().is_table()));
                continue;
            };
            if table == Table::Link {
                self.links(&key.span(), value.get_ref());
                continue;
            }
            match (value.get_ref(), table.is_array()) {
                (DeValue::Table(content), false) => self.table(table, 0, &key.span(), content),
                (DeValue::Array(items), true) => {
                    for item in items.iter() {
                        match item.get_ref() {
                            DeValue::Table(content) => {
                                let index = self.begin_entry(table);
                                self.table(table, index, &item.span(), content);
                            }
                            other => self.refuse(
                                &item.span(),
                                format!("{table} is a table, found {}", other.type_str()),
                            ),
                        }
                    }
                }
                (_, true) => self.refuse(
                    &key.span(),
                    format!("there may be several of these: write {table} with two brackets"),
                ),
                (_, false) => self.refuse(
                    &key.span(),
                    format!("`{name}` is a table of which there is one: write {table}"),
                ),
            }
        }
    }

    /// `[link.NAME]`: the tables of one table.
    fn links(&mut self, at: &Range<usize>, value: &DeValue<'_>) {
        let DeValue::Table(links) = value else {
            return self.refuse(at, "each link has a name: write [link.NAME]".to_owned());
        };
        for (name, value) in links {
            let DeValue::Table(content) = value.get_ref() else {
                let message = "each link has a name: write it under [link.NAME]";
                self.refuse(&name.span(), message.to_owned());
                continue;
            };
            let links = &mut self.document.links;
            links.push((name.get_ref().to_string(), LinkEntry::defaults()));
            let index = links.len() - 1;
            self.table(Table::Link, index, &name.span(), content);
        }
    }

    fn begin_entry(&mut self, table: Table) -> usize {
        let document = &mut self.document;
        if table == Table::Database {
            document.databases.push(DatabaseEntry::defaults());
            document.databases.len() - 1
        } else if table == Table::Rule {
            document.rules.push(RuleEntry::defaults());
            document.rules.len() - 1
        } else {
            document.users.push(UserEntry::defaults());
            document.users.len() - 1
        }
    }

    fn table(&mut self, table: Table, index: usize, head: &Range<usize>, content: &DeTable<'_>) {
        let position = self.lines.position(head.start);
        self.document.places.0.insert((table, index, ""), position);
        // In the order of the file: of two names for one setting, the second is the one too many.
        let mut keys: Vec<_> = content.iter().collect();
        keys.sort_by_key(|(key, _)| key.span().start);
        for (key, value) in keys {
            let name = key.get_ref().as_ref();
            match registry::find(table, name) {
                Some(setting) => self.setting(setting, index, key, value),
                None => self.refuse(&key.span(), suggest::unknown_key(table, name)),
            }
        }
    }

    fn setting(
        &mut self,
        setting: &'static Setting,
        index: usize,
        key: &Spanned<std::borrow::Cow<'_, str>>,
        value: &Spanned<DeValue<'_>>,
    ) {
        let place = (setting.table, index, setting.name);
        let position = self.lines.position(value.span().start);
        if self.document.places.0.insert(place, position).is_some() {
            let message =
                format!("`{}` is given twice: it is also `{}`", setting.name, setting.shown_name());
            return self.refuse(&key.span(), message);
        }
        let base = self.file.parent().unwrap_or(Path::new(""));
        let raw = raw(value.get_ref());
        let context = Context { setting, base };
        if let Err(rejected) = self.document.assign(setting.table, index, &raw, context) {
            for rejected in rejected.all() {
                let at = rejected.at.clone().unwrap_or_else(|| value.span());
                self.refuse(&at, format!("{}: {}", setting.name, rejected.message));
            }
        }
    }
}

fn raw<'a>(value: &'a DeValue<'_>) -> Raw<'a> {
    match value {
        DeValue::String(text) => Raw::String(text),
        DeValue::Integer(number) => i64::from_str_radix(number.as_str(), number.radix())
            .map_or(Raw::Other("an integer beyond 64 bits"), |value| {
                Raw::Integer(value, number.radix())
            }),
        DeValue::Float(number) => number.as_str().parse().map_or(Raw::Other("a float"), Raw::Float),
        DeValue::Boolean(value) => Raw::Boolean(*value),
        DeValue::Array(items) => {
            Raw::List(items.iter().map(|item| (raw(item.get_ref()), item.span())).collect())
        }
        DeValue::Datetime(_) => Raw::Other("a date"),
        DeValue::Table(_) => Raw::Other("a table"),
    }
}

/// Whether `setting` takes `text`, as SET would read it; else why not.
pub(crate) fn accepts(setting: &'static Setting, text: &str) -> Result<(), String> {
    let mut document = Document::empty();
    document.databases.push(DatabaseEntry::defaults());
    document.users.push(UserEntry::defaults());
    document.rules.push(RuleEntry::defaults());
    document.links.push((String::new(), LinkEntry::defaults()));
    let context = Context { setting, base: Path::new("") };
    document
        .assign(setting.table, 0, &Raw::Text(text), context)
        .map_err(|rejected| rejected.message)
}
