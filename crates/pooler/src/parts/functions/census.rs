//! What the functions of a database do to the sessions that call them, by their sources: a text
//! does not show it.
//!
//! # Model
//! The sources of all functions are scanned ([`scan_body`]). A function does what its source does,
//! and what the functions do that its source names; so do triggers for those who write to their
//! table, and what a view, a policy, a default or a constraint calls for those who name the
//! relation. All of that is kept by words: a text that has one of them as a word, at any place, may
//! do as much as a call of it. The schema is left out, for a `search_path` may stand in for it. No
//! word shows what operators, casts, the order of types and the checks of domains call: any text may
//! call that ([`ANY_TEXT`]). Nor does one show what a foreign key's action writes to, or what ANALYZE computes:
//! any text that writes may call what defaults, constraints, domains, indexes, statistics and rules do
//! ([`ANY_WRITE`]).
//!
//! # Limits
//! Functions in C are not examined, and of EXECUTE only the text in strings is known: one whose
//! text comes from elsewhere may have created what the server can be asked for
//! ([`crate::parts::pins::question`]). A function that was changed by a text that did not come through
//! the pool counts as unchanged until the next census.

mod foreseen;
pub(crate) mod functions;
mod unseen;
mod word;

use std::cell::LazyCell;
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, LazyLock};

pub use self::unseen::Names;
pub use self::word::{ANY_TEXT, ANY_WRITE};
use crate::hash::Keyed;
use crate::parts::functions::census::unseen::{Calls, Seen, Unseen};
use crate::parts::functions::census::word::{
    IN_UTF8, NAME_BYTES_MAX, NOT_IN_UTF8, QUOTED, Word, key, lower, truncated,
};
use crate::parts::functions::variables::is_of_a_word;
use crate::parts::pins::question::ASKED;
use crate::relay::effects::executed::{has_statement, shows_statement};
use crate::relay::effects::{Effect, EffectSet, Effects};
use crate::session::commands::may_draw;
use crate::session::part::{Part, PartSet};
use crate::session::scan::SchemaChange;
use crate::session::scan::body::{scan_body, scan_foreign};
use crate::session::settings::PlanReads;

/// How a function's source is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// As SQL.
    Sql,
    /// As PL/pgSQL.
    PlPgSql,
    /// By its words.
    Other,
    /// Not at all: there is none.
    Compiled,
}

/// A function of a database, or several of one name.
#[derive(Clone, Debug)]
pub struct Function {
    /// Its name, without a schema, in any case.
    pub name: Word,
    /// What its source is written in.
    pub language: Language,
    /// It is declared IMMUTABLE: the planner calls it.
    pub immutable: bool,
    /// Its source.
    pub source: Box<[u8]>,
}

/// How one object of a database leads to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// Naming the one calls the other (a view, a policy, a default).
    Calls,
    /// Writing to the one calls the other (a trigger).
    WriteCalls,
    /// Writing to the one writes to the other (a foreign key that cascades).
    WriteWrites,
    /// The one stands for the other (a view of a table, a table of its partition).
    StandsFor,
}

/// What a word may do, and what it may do as well in a text that writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Reach {
    call: Effects,
    write: Effects,
    /// It reads settings.
    reads: bool,
}

/// What the functions of a database do.
#[derive(Debug, PartialEq, Eq)]
pub struct Census {
    words: HashMap<Word, Reach, Keyed>,
    /// For each length, a bit for each first byte that a word has.
    shapes: Box<[u64]>,
    plans_read: PlanReads,
    /// There are functions whose plans a server process keeps.
    keeps_plans: bool,
    /// The same for what no report of a server shows ([`Effects::unreported`]), if there is any.
    unreported: Option<Arc<Self>>,
    /// Words that lead to functions which draw from sequences. They are apart, because most
    /// databases have some that insert, and they matter only where clients ask for the values.
    drawing: Option<Arc<Self>>,
    /// The names that there are; `None`: not known.
    seen: Option<Box<Seen>>,
    unseen: Unseen,
}

/// Words after which a text writes, whatever else it says.
const WRITING: [&[u8]; 6] = [b"copy", b"delete", b"insert", b"merge", b"truncate", b"update"];

/// Words after which a text may compute indexes or statistics anew, of tables that it does not name.
const COMPUTING: [&[u8]; 11] = [
    b"alter",
    b"analyse",
    b"analyze",
    b"brin_summarize_new_values",
    b"brin_summarize_range",
    b"bt_index_check",
    b"bt_index_parent_check",
    b"cluster",
    b"refresh",
    b"reindex",
    b"vacuum",
];

/// Words by which a source reads settings, or who the session is.
const READING: [&[u8]; 11] = [
    b"current_role",
    b"current_setting",
    b"current_user",
    b"execute",
    b"pg_has_role",
    b"pg_settings",
    b"row_security_active",
    b"session_user",
    b"show",
    b"system_user",
    b"user",
];

/// Whether a source with this word may read settings, or who the session is.
fn reads(word: &[u8]) -> bool {
    READING.contains(&word)
        || (word.starts_with(b"has_") && word.ends_with(b"_privilege"))
        || word.windows(7).any(|part| part == b"_to_xml") // they run texts
}

fn writes(word: &[u8]) -> bool {
    (4..=8).contains(&word.len()) && WRITING.contains(&word)
}

fn shape(word: &[u8]) -> (usize, u64) {
    (word.len(), 1 << (word.first().copied().unwrap_or(0) & 63))
}

/// After this word a query has the name of a table that it creates, which calls an event trigger.
const INTO: &[u8] = b"into";

/// Whether INTO after this word says where the rows go, and creates nothing.
fn inserts(word: &[u8]) -> bool {
    word == b"insert" || word == b"merge"
}

/// The words of a source, in lower case; with its quotes, if it has any. Without the INTO of an INSERT.
fn words(source: &[u8]) -> impl Iterator<Item = Word> {
    let mut inserting = false;
    let words = source.split(|byte| !is_of_a_word(*byte)).filter(move |word| {
        if word.is_empty() {
            return false;
        }
        let inserted = inserting && word.eq_ignore_ascii_case(INTO);
        inserting = inserts(&lower(word));
        !inserted
    });
    let quoted = source.contains(&b'"').then(|| QUOTED.into());
    words.map(|word| lower(truncated(word))).chain(quoted)
}

/// The key that stands for names that are not ASCII, written like this one or not, in texts that
/// write them otherwise.
fn written_as(word: &[u8]) -> Option<&'static [u8]> {
    let utf8 = || if std::str::from_utf8(word).is_ok() { IN_UTF8 } else { NOT_IN_UTF8 };
    (!word.is_ascii()).then(utf8)
}

/// What a text from elsewhere may create, as far as the server is asked for it.
const MADE_BY_TEXTS: PartSet = ASKED.minus(PartSet::of(&[Part::TemporarySlot]));

/// Words by which the sources of other languages execute texts, beside `execute`.
const EXECUTING: [&[u8]; 8] = [
    b"cursor",            // plpy
    b"spi_exec",          // PL/Tcl
    b"spi_exec_prepared", // PL/Perl, as the next four
    b"spi_exec_query",
    b"spi_prepare",
    b"spi_query",
    b"spi_query_prepared",
    b"spi_execp", // PL/Tcl
];

/// Whether a source in another language has the first word of a statement: its strings are not told from the
/// rest, and other first words are the language's own.
fn names_statement(source: &[u8]) -> bool {
    words(source)
        .any(|word| writes(&word) || matches!(&*word, b"alter" | b"create" | b"drop" | b"select"))
}

fn effects_of(function: &Function, reported: &impl Fn(&[u8]) -> bool) -> Effects {
    let mut found = match function.language {
        Language::Sql => scan_body(&function.source, false),
        Language::PlPgSql => scan_body(&function.source, true),
        Language::Other => scan_foreign(&function.source),
        Language::Compiled => return Effects::default(),
    };
    let is_shown = match function.language {
        Language::Other => {
            found.dynamic |= words(&function.source).any(|word| EXECUTING.contains(&&*word));
            names_statement(&function.source)
        }
        _ => shows_statement(&function.source),
    };
    let mut effects = Effects::of_body(&found, reported);
    if may_draw(&function.source) {
        effects.add(&[Effect::Draws]);
    }
    if found.dynamic {
        effects.pins = effects.pins.union(MADE_BY_TEXTS);
        effects.ends = effects.ends.union(ASKED);
        effects.schema = SchemaChange::All;
        effects.add(&[Effect::ExecutesStrings]);
        if !is_shown {
            effects.add(&[Effect::ExecutesUnshown]);
        }
    }
    effects
}

impl Default for Census {
    /// Of a database without functions.
    fn default() -> Self {
        let words = HashMap::with_hasher(Keyed(0));
        let shapes = Box::default();
        let plans_read = PlanReads::Own;
        Self {
            words,
            shapes,
            plans_read,
            keeps_plans: false,
            unreported: None,
            drawing: None,
            seen: None,
            unseen: Unseen::default(),
        }
    }
}

/// How one object takes over what another may do.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Its source names the other; if it also `writes`, what writing to the other does, too.
    Names {
        writes: bool,
    },
    By(Link),
}

impl Reach {
    /// Takes out what draws from sequences.
    fn take_drawing(&mut self) -> Self {
        let take = |effects: &mut Effects| {
            let does = effects.does.only(&[Effect::Draws]);
            effects.remove(&[Effect::Draws]);
            Effects { does, ..Effects::default() }
        };
        Self { call: take(&mut self.call), write: take(&mut self.write), reads: false }
    }

    /// Takes over what another may do. Returns whether that changed anything.
    fn take_over(&mut self, other: &Self, step: Step) -> bool {
        let mut changed = false;
        match step {
            Step::Names { writes } => {
                changed |= self.call.absorb(&other.call);
                changed |= writes && self.call.absorb(&other.write);
            }
            Step::By(Link::Calls) => changed |= self.call.absorb(&other.call),
            Step::By(Link::WriteCalls) => changed |= self.write.absorb(&other.call),
            Step::By(Link::WriteWrites) => changed |= self.write.absorb(&other.write),
            Step::By(Link::StandsFor) => {
                changed |= self.call.absorb(&other.call);
                changed |= self.write.absorb(&other.write);
            }
        }
        let reads = other.reads && !matches!(step, Step::By(Link::WriteCalls));
        changed |= reads && !std::mem::replace(&mut self.reads, true);
        changed
    }
}

/// What words may do by themselves, and what they lead to. A word that leads to another is examined
/// again when that other may do more: what a word may do only grows.
fn grown(
    mut words_of: HashMap<Word, Reach, Keyed>,
    functions: &[Function],
    links: &[(Word, Link, Word)],
) -> HashMap<Word, Reach, Keyed> {
    let mut leading: HashMap<Word, Vec<(Word, Step)>, Keyed> =
        HashMap::with_hasher(*words_of.hasher());
    for function in functions.iter().filter(|one| one.language != Language::Compiled) {
        let name = key(&function.name);
        let mut named: Vec<_> = words(&function.source).collect();
        let writes = named.iter().any(|word| writes(word));
        // In PL/pgSQL INTO gives the rows to a variable.
        let into_variables = function.language == Language::PlPgSql;
        named.retain(|word| {
            *word != name && words_of.contains_key(word) && !(into_variables && **word == *INTO)
        });
        if writes {
            named.push(ANY_WRITE.into());
        }
        named.sort();
        named.dedup();
        for word in named {
            leading.entry(word).or_default().push((name.clone(), Step::Names { writes }));
        }
    }
    for (from, link, to) in links {
        leading.entry(to.clone()).or_default().push((from.clone(), Step::By(*link)));
    }
    let none = Reach::default();
    let grows = words_of.iter().filter(|(_, reach)| **reach != none);
    let mut due: Vec<Word> = grows.map(|(word, _)| word.clone()).collect();
    due.sort(); // equal catalogs give equal censuses
    let mut due = VecDeque::from(due);
    let mut is_due: HashSet<Word> = due.iter().cloned().collect();
    while let Some(word) = due.pop_front() {
        is_due.remove(&word);
        let (Some(reach), Some(leading)) = (words_of.get(&word).cloned(), leading.get(&word))
        else {
            continue;
        };
        for (from, step) in leading {
            let Some(other) = words_of.get_mut(from) else { continue };
            if other.take_over(&reach, *step) && is_due.insert(from.clone()) {
                due.push_back(from.clone());
            }
        }
    }
    words_of
}

impl Census {
    /// From the functions of a database, and the links between its objects, by name: `(from, link,
    /// to)`. `reported` says whether the server reports a setting, given in lower case; `hash_key`
    /// keys the table.
    pub fn take(
        functions: &[Function],
        links: &[(Word, Link, Word)],
        reported: impl Fn(&[u8]) -> bool,
        hash_key: u64,
    ) -> Self {
        let mut words_of: HashMap<Word, Reach, Keyed> = HashMap::with_hasher(Keyed(hash_key));
        let giving: LazyCell<HashSet<Word>, _> = LazyCell::new(|| {
            let giving = functions.iter().filter(|one| has_statement(&one.source));
            giving.map(|one| key(&one.name)).collect()
        });
        for function in functions {
            let reach = words_of.entry(key(&function.name)).or_default();
            let mut effects = effects_of(function, &reported);
            // What it executes may be what another one gives it.
            if effects.may(Effect::ExecutesUnshown)
                && words(&function.source).any(|word| giving.contains(&word))
            {
                effects.remove(&[Effect::ExecutesUnshown]);
            }
            reach.call.absorb(&effects);
            reach.reads |= function.language != Language::Compiled
                && words(&function.source).any(|word| reads(&word));
        }
        let mut links: Vec<_> =
            links.iter().map(|(from, link, to)| (key(from), *link, key(to))).collect();
        links.push((ANY_TEXT.into(), Link::WriteCalls, ANY_WRITE.into()));
        links.extend(COMPUTING.map(|word| (word.into(), Link::Calls, ANY_WRITE.into())));
        for (from, _, to) in &links {
            words_of.entry(from.clone()).or_default();
            words_of.entry(to.clone()).or_default();
        }
        let mut words_of = grown(words_of, functions, &links);
        // What they give to functions that execute it.
        let mut more = false;
        for function in functions.iter().filter(|one| one.language != Language::Compiled) {
            let reach = words_of.entry(key(&function.name)).or_default();
            if reach.call.may(Effect::ExecutesStrings) {
                more |= reach.call.absorb(&Effects::of_strings(&function.source, &reported));
            }
        }
        if more {
            words_of = grown(words_of, functions, &links);
        }
        // A cast or an operator is called without a word.
        let any_reads = words_of.get(ANY_TEXT).is_some_and(|reach| reach.reads);
        let reads = |function: &Function| match function.language {
            _ if any_reads || words_of[&key(&function.name)].reads => PlanReads::All,
            Language::Compiled => PlanReads::Custom, // it is not known what it does
            _ => PlanReads::Own,
        };
        let immutable = functions.iter().filter(|function| function.immutable);
        let plans_read = immutable.map(reads).max().unwrap_or(PlanReads::Own);
        // A text may be in another client_encoding than the answer that had the names.
        let not_ascii: Vec<_> = words_of
            .iter()
            .filter_map(|(word, reach)| Some((written_as(word)?, reach.clone())))
            .collect();
        for (written, reach) in not_ascii {
            let all = words_of.entry(written.into()).or_default();
            all.call.absorb(&reach.call);
            all.write.absorb(&reach.write);
        }
        words_of.remove(ANY_WRITE);
        if let Some(of_any) = words_of.get_mut(ANY_TEXT) {
            of_any.call.forget_changes();
            of_any.write.forget_changes();
            // The text itself shows whether it draws, and a default that asks does so after that.
            of_any.write.remove(&[Effect::Draws, Effect::ReadsSequences]);
        }
        let none = Reach::default();
        words_of.retain(|word, reach| {
            reach.reads = false;
            (1..=NAME_BYTES_MAX).contains(&word.len()) && *reach != none
        });
        let keeps_plans = functions.iter().any(|one| one.language == Language::PlPgSql);
        Self { keeps_plans, ..Self::with_words(words_of, plans_read) }
    }

    /// Of a database whose functions have not been looked into: any text may do anything.
    pub(crate) fn of_unknown() -> Arc<Self> {
        static UNKNOWN: LazyLock<Arc<Census>> = LazyLock::new(|| {
            let does = EffectSet::of(&[Effect::Spoils]);
            let call = Effects { does, ..Effects::default() };
            let mut words = HashMap::with_hasher(Keyed(0));
            words.insert(ANY_TEXT.into(), Reach { call, ..Reach::default() });
            let census = Census::with_words(words, PlanReads::All);
            Arc::new(Census { keeps_plans: true, ..census })
        });
        UNKNOWN.clone()
    }

    fn with_words(mut words: HashMap<Word, Reach, Keyed>, plans_read: PlanReads) -> Self {
        let none = Reach::default();
        let mut drawing_of = HashMap::with_hasher(*words.hasher());
        drawing_of.extend(words.iter_mut().filter_map(|(word, reach)| {
            let reach = reach.take_drawing();
            (reach != none).then(|| (word.clone(), reach))
        }));
        words.retain(|_, reach| *reach != none);
        let mut unreported_of = HashMap::with_hasher(*words.hasher());
        unreported_of.extend(words.iter().filter_map(|(word, reach)| {
            let (call, write) = (reach.call.unreported(), reach.write.unreported());
            let unreported = Reach { call, write, reads: false };
            (unreported != none).then(|| (word.clone(), unreported))
        }));
        let some = |of: HashMap<Word, Reach, Keyed>| {
            (!of.is_empty()).then(|| Arc::new(Self::of_words(of, PlanReads::Own)))
        };
        let (unreported, drawing) = (some(unreported_of), some(drawing_of));
        Self { unreported, drawing, ..Self::of_words(words, plans_read) }
    }

    fn of_words(words: HashMap<Word, Reach, Keyed>, plans_read: PlanReads) -> Self {
        let mut shapes = vec![0; NAME_BYTES_MAX + 1].into_boxed_slice();
        for word in words.keys() {
            let (length, bit) = shape(word);
            if let Some(shapes) = shapes.get_mut(length) {
                *shapes |= bit;
            }
        }
        Self { words, shapes, plans_read, ..Self::default() }
    }

    /// Whether no text can reach a function that does anything to a session.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// The number of words by which a text may reach such a function.
    pub fn len(&self) -> usize {
        self.words.len()
    }

    /// With the names of all that there is: of the server itself, and of the database.
    #[must_use]
    pub fn with_names(self, servers: Arc<Names>, own: impl Iterator<Item = Box<[u8]>>) -> Self {
        Self { seen: Some(Box::new(Seen::new(servers, own))), ..self }
    }

    /// Whether texts have called what it has not seen.
    pub fn has_unseen(&self) -> bool {
        !self.unseen.is_empty()
    }

    /// What texts have called that it has not seen, once.
    pub fn take_unseen(&self) -> HashSet<Box<[u8]>> {
        self.unseen.take()
    }

    /// The same, where these names were looked for and are not there.
    #[must_use]
    pub fn without(&self, names: HashSet<Box<[u8]>>) -> Self {
        let mut seen = self.seen.clone();
        if let Some(seen) = &mut seen {
            seen.are_absent(names.into_iter());
        }
        Self {
            words: self.words.clone(),
            shapes: self.shapes.clone(),
            plans_read: self.plans_read,
            keeps_plans: self.keeps_plans,
            unreported: self.unreported.clone(),
            drawing: self.drawing.clone(),
            seen,
            unseen: Unseen::default(),
        }
    }

    /// With the names that were looked for in vain before: they are not there now either, or it has them.
    #[must_use]
    pub fn remembering(mut self, before: &Self) -> Self {
        if let (Some(seen), Some(before)) = (&mut self.seen, &before.seen) {
            **seen = seen.and(before);
        }
        self
    }

    /// What either says.
    #[must_use]
    pub(crate) fn and(&self, other: &Self) -> Self {
        let mut words_of = self.all_words();
        for (word, reach) in other.all_words() {
            let known = words_of.entry(word).or_default();
            known.call.absorb(&reach.call);
            known.write.absorb(&reach.write);
        }
        let seen = match (&self.seen, &other.seen) {
            (Some(seen), Some(more)) => Some(Box::new(seen.and(more))),
            (seen, _) => seen.clone(),
        };
        Self {
            keeps_plans: self.keeps_plans || other.keeps_plans,
            seen,
            ..Self::with_words(words_of, self.plans_read.max(other.plans_read))
        }
    }

    /// What its words do, drawing from sequences included.
    fn all_words(&self) -> HashMap<Word, Reach, Keyed> {
        let mut words_of = self.words.clone();
        for (word, drawing) in self.drawing.iter().flat_map(|drawing| &drawing.words) {
            let known = words_of.entry(word.clone()).or_default();
            known.call.absorb(&drawing.call);
            known.write.absorb(&drawing.write);
        }
        words_of
    }

    /// Whether it has something to say of texts.
    pub(crate) fn speaks(&self) -> bool {
        !self.is_empty() || self.seen.is_some()
    }

    /// What cached plans may depend on: a function that the planner calls may read settings.
    pub fn plans_read(&self) -> PlanReads {
        self.plans_read
    }

    /// Whether there are functions of PL/pgSQL: a server process keeps their plans, for all its
    /// clients.
    pub fn keeps_plans(&self) -> bool {
        self.keeps_plans
    }

    #[cfg(test)]
    pub(crate) fn keeping_no_plans(self) -> Self {
        Self { keeps_plans: false, ..self }
    }

    /// What a text may do through the functions that it reaches; `None` if nothing.
    pub(crate) fn of_text(self: &Arc<Self>, text: &[u8]) -> Option<Effects> {
        let mut reader = Reader::new(self.clone());
        reader.feed(text);
        reader.finish()
    }

    fn get(&self, word: &[u8]) -> Option<&Reach> {
        let (length, bit) = shape(word);
        if self.shapes.get(length).is_none_or(|bits| bits & bit == 0) {
            return None;
        }
        self.words.get(word)
    }
}

/// Reads a text that comes in chunks.
#[derive(Clone, Debug)]
pub(crate) struct Reader {
    census: Arc<Census>,
    word: [u8; NAME_BYTES_MAX + 1],
    length: usize,
    calls: Option<Effects>,
    /// What its words do if it writes.
    if_writing: Option<Effects>,
    writes: bool,
    /// The last word is one of [`inserts`].
    inserts: bool,
    called: Calls,
}

impl Reader {
    pub(crate) fn new(census: Arc<Census>) -> Self {
        let word = [0; NAME_BYTES_MAX + 1];
        let (calls, if_writing) = (None, None);
        let called = Calls::default();
        let (writes, inserts) = (false, false);
        let mut reader =
            Self { census, word, length: 0, calls, if_writing, writes, inserts, called };
        reader.take(ANY_TEXT);
        reader
    }

    pub(crate) fn feed(&mut self, chunk: &[u8]) {
        for &byte in chunk {
            if is_of_a_word(byte) {
                if let Some(place) = self.word.get_mut(self.length) {
                    *place = byte.to_ascii_lowercase();
                    self.length += 1;
                }
            } else {
                if self.length > 0 {
                    self.end_word();
                }
                if byte == b'"' {
                    self.take(QUOTED);
                }
                if let Some(seen) = &self.census.seen {
                    self.called.byte(byte, seen, &self.census.unseen);
                }
            }
        }
    }

    fn end_word(&mut self) {
        let (word, length) = (self.word, std::mem::take(&mut self.length));
        if self.census.seen.is_some() {
            self.called.word(&word, length);
        }
        let word = truncated(&word[..length]);
        self.writes |= writes(word);
        if !(std::mem::replace(&mut self.inserts, inserts(word)) && word == INTO) {
            self.take(word);
        }
        if let Some(written) = written_as(word) {
            self.take(NOT_IN_UTF8);
            if written == NOT_IN_UTF8 {
                self.take(IN_UTF8);
            }
        }
    }

    fn take(&mut self, word: &[u8]) {
        let Some(reach) = self.census.get(word) else { return };
        if reach.call != Effects::default() {
            self.calls.get_or_insert_default().absorb(&reach.call);
        }
        if reach.write != Effects::default() {
            self.if_writing.get_or_insert_default().absorb(&reach.write);
        }
    }

    /// What was read may do, by itself and in a text that writes.
    fn reach(mut self) -> Reach {
        self.end_word();
        let write = self.if_writing.clone().unwrap_or_default();
        Reach { write, call: self.finish().unwrap_or_default(), reads: false }
    }

    pub(crate) fn finish(mut self) -> Option<Effects> {
        self.end_word();
        if self.called.any() {
            self.calls.get_or_insert_default().add(&[Effect::Spoils]);
        }
        let written = self.if_writing.filter(|_| self.writes);
        match (self.calls, written) {
            (Some(mut calls), Some(written)) => {
                calls.absorb(&written);
                Some(calls)
            }
            (calls, written) => calls.or(written),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(name: &str, source: &str) -> Function {
        Function {
            name: name.as_bytes().into(),
            language: Language::PlPgSql,
            immutable: false,
            source: source.as_bytes().into(),
        }
    }

    fn take(functions: &[Function], links: &[(&str, Link, &str)]) -> Arc<Census> {
        let links: Vec<_> = links
            .iter()
            .map(|(from, link, to)| (from.as_bytes().into(), *link, to.as_bytes().into()))
            .collect();
        Arc::new(Census::take(functions, &links, |name| name == b"timezone", 7))
    }

    fn of(census: &Arc<Census>, text: &str) -> Effects {
        census.of_text(text.as_bytes()).unwrap_or_default()
    }

    #[test]
    fn functions_in_other_languages_execute_what_they_are_given() {
        let other = |name: &str, source: &str| Function {
            language: Language::Other,
            ..function(name, source)
        };
        let census = take(
            &[
                other("perl", "spi_exec_query($_[0]);"),
                other("tcl", "spi_exec $1"),
                other("python", "for row in plpy.cursor(q): pass"),
                other("shown", "spi_exec_query(\"SELECT $_[0]\");"),
                other("plain", "return $_[0] + 1;"),
            ],
            &[],
        );
        for name in ["perl", "tcl", "python"] {
            let effects = of(&census, &format!("select {name}(a)"));
            assert!(effects.may(Effect::ExecutesUnshown) && effects.may(Effect::ExecutesStrings));
        }
        let shown = of(&census, "select shown(a)");
        assert!(shown.may(Effect::ExecutesStrings) && !shown.may(Effect::ExecutesUnshown));
        assert!(of(&census, "select plain(a)").is_none());
    }

    #[test]
    fn a_function_that_shows_none_of_what_it_executes_is_told_from_others() {
        let census = take(
            &[
                function("run", "begin return query execute q; end"),
                function(
                    "reads",
                    "begin for r in select t from texts loop execute r.t; end loop; end",
                ),
                function(
                    "both",
                    "begin execute 'select 1'; execute format('select %L', a); execute q; end",
                ),
                function("shows", "begin q := 'select ' || a; execute q; end"),
                function("gives", "begin return 'select 1'; end"),
                function("takes", "begin execute gives(); end"),
            ],
            &[],
        );
        let unshown = |text: &str| of(&census, text).may(Effect::ExecutesUnshown);
        assert!(unshown("select run(a) from t") && unshown("select reads()"));
        assert!(unshown("select both()"));
        assert!(!unshown("select shows(1)") && !unshown("select takes()"));
    }

    #[test]
    fn a_call_does_what_the_source_does() {
        let census = take(
            &[
                function("Enter", "BEGIN PERFORM set_config('app.user', who, false); END"),
                function("plain", "BEGIN RETURN 1; END"),
                function("zone", "BEGIN SET timezone = 'UTC'; END"),
                function("back", "BEGIN RESET work_mem; END"),
                function("makes", "BEGIN EXECUTE q; END"),
                function("lifts", "BEGIN SET log_min_messages = debug5; END"),
            ],
            &[],
        );
        let enter = of(&census, "select app.ENTER('ann')");
        assert_eq!(*enter.names, [b"app.user"[..].into()]);
        assert!(
            enter.pins.contains(Part::CustomSetting)
                && !enter.may(Effect::Spoils)
                && !enter.may(Effect::SetsUnnamed)
        );
        let quoted = take(&[function("My func", "BEGIN LISTEN x; END")], &[]);
        assert!(of(&quoted, "select \"My func\"()").pins.contains(Part::Listen));
        let zone = of(&census, "select zone()");
        assert!(zone.pins.is_empty() && zone.sets == Some(PlanReads::Own), "the server reports it");
        for nothing in ["select plain()", "select entered()", "update t set a = 1"] {
            assert_eq!(census.of_text(nothing.as_bytes()), None, "{nothing}");
        }
        assert_eq!(*of(&census, "select back()").names, [b"work_mem"[..].into()]);
        assert_eq!(of(&census, "select makes()").pins, MADE_BY_TEXTS);
        assert_eq!(census.plans_read(), PlanReads::Own);
        assert!(!census.is_empty() && census.len() == 5);
        let lifts = of(&census, "select lifts()");
        assert!(
            lifts.names.is_empty() && lifts.may(Effect::SetsUnnamed) && lifts.may(Effect::Spoils),
            "its caller may not"
        );
    }

    #[test]
    fn what_calls_a_function_does_the_same() {
        let locks = function("locks", "BEGIN PERFORM pg_advisory_lock(1); END");
        let outer = function("outer_one", "BEGIN PERFORM middle(); END");
        let middle = function("middle", "BEGIN RETURN locks(); END");
        let fills = function("fills", "BEGIN INSERT INTO child VALUES (1); END");
        let census = take(
            &[outer, middle, locks, fills],
            &[
                ("watched", Link::WriteCalls, "locks"),
                ("seen", Link::Calls, "middle"),
                ("over", Link::StandsFor, "watched"),
                ("parent", Link::WriteWrites, "child"),
                ("child", Link::WriteCalls, "locks"),
            ],
        );
        for text in [
            "select outer_one()",
            "select * from seen",
            "insert into watched values (1)",
            "copy over from stdin",
            "delete from parent",
            "select fills()",
            "with a as (update watched set a = 1 returning a) select 1",
        ] {
            assert!(of(&census, text).pins.contains(Part::AdvisoryLock), "{text}");
        }
        for text in ["select * from watched", "select * from over, parent", "delete from other"] {
            assert_eq!(census.of_text(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn what_functions_give_to_one_that_executes_it_is_read() {
        let census = take(
            &[
                function("runs", "BEGIN EXECUTE q; END"),
                function("gives", "BEGIN PERFORM runs('set my.a = 1'); END"),
                function("calls", "BEGIN PERFORM gives(); END"),
                function("says", "BEGIN RAISE NOTICE 'set my.b'; END"),
            ],
            &[],
        );
        for text in ["select gives()", "select calls()"] {
            assert_eq!(*of(&census, text).names, [b"my.a"[..].into()], "{text}");
        }
        assert!(of(&census, "select runs('x')").names.is_empty());
        assert_eq!(census.of_text(b"select says()"), None);
    }

    #[test]
    fn what_no_word_shows_any_text_may_call() {
        let any = |source: &str| Function {
            name: ANY_TEXT.into(),
            language: Language::Sql,
            ..function("", source)
        };
        let census = take(
            &[
                function("compares", "BEGIN PERFORM set_config('app.user', 'x', false); END"),
                function("runs", "BEGIN EXECUTE 'create table t (a int)'; END"),
                any("SELECT compares()"),
                any("SELECT runs()"),
            ],
            &[],
        );
        for text in ["select 1 @#@ 2", "begin", ""] {
            let effects = of(&census, text);
            assert_eq!(*effects.names, [b"app.user"[..].into()], "{text}");
            assert_eq!(effects.schema, SchemaChange::None, "{text}");
        }
        let census = take(&[function("pure", "BEGIN RETURN 1; END"), any("SELECT pure()")], &[]);
        assert_eq!(census.of_text(b"select 1 @#@ 2"), None);
        assert!(census.is_empty());
    }

    #[test]
    fn a_view_of_the_servers_lists_is_known_with_reports_too() {
        let census = take(&[function("mine", "BEGIN TABLE pg_prepared_statements; END")], &[]);
        let unreported = census.unreported.as_ref().expect("no report tells of it");
        for census in [&census, unreported] {
            let looks = of(census, "select * from mine");
            assert!(looks.pins.contains(Part::SessionCatalog) && !looks.may(Effect::Spoils));
        }
    }

    #[test]
    fn an_event_trigger_is_called_by_the_into_that_makes_a_table() {
        let sql = |name, source| Function { language: Language::Sql, ..function(name, source) };
        let census = take(
            &[
                function("locks", "BEGIN PERFORM pg_advisory_lock(1); END"),
                function("reads", "BEGIN SELECT 1 INTO a; INSERT INTO t VALUES (1); END"),
                sql("adds", "INSERT INTO t VALUES (1)"),
                sql("makes", "SELECT 1 AS a INTO t"),
            ],
            &[("into", Link::Calls, "locks")],
        );
        for text in ["select 1 as a INTO x", "select makes()"] {
            assert!(of(&census, text).pins.contains(Part::AdvisoryLock), "{text}");
        }
        for text in ["insert into x values (1)", "MERGE INTO x", "select reads()", "select adds()"]
        {
            assert_eq!(census.of_text(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn what_draws_from_sequences_is_known_apart() {
        let census = take(
            &[
                function("adds", "BEGIN INSERT INTO t VALUES (1); END"),
                function("calls", "BEGIN PERFORM adds(); END"),
                function("audits", "BEGIN INSERT INTO log VALUES (NEW.a); RETURN NEW; END"),
                function("locks", "BEGIN PERFORM pg_advisory_lock(1); END"),
            ],
            &[("watched", Link::WriteCalls, "audits")],
        );
        let draws = |text: &str| {
            census.drawing.as_ref().is_some_and(|of| of.of_text(text.as_bytes()).is_some())
        };
        for text in ["select calls()", "call adds()", "update watched set a = 1"] {
            assert!(draws(text) && census.of_text(text.as_bytes()).is_none(), "{text}");
        }
        assert!(!draws("select locks()") && !draws("select * from watched"));
        assert_eq!(census.len(), 1, "what only draws costs no text a look");
    }

    #[test]
    fn the_planner_calls_what_is_immutable() {
        let immutable =
            |name: &str, source: &str| Function { immutable: true, ..function(name, source) };
        let reads = function("who", "BEGIN RETURN current_setting('app.user'); END");
        assert_eq!(take(std::slice::from_ref(&reads), &[]).plans_read(), PlanReads::Own);
        let pure = immutable("twice", "BEGIN RETURN 2 * a; END");
        assert_eq!(take(&[reads.clone(), pure], &[]).plans_read(), PlanReads::Own);
        let through = immutable("me", "BEGIN RETURN who(); END");
        assert_eq!(take(&[reads.clone(), through], &[]).plans_read(), PlanReads::All);
        let role = immutable("i", "BEGIN RETURN current_user; END");
        assert_eq!(take(&[role], &[]).plans_read(), PlanReads::All);
        let compiled =
            Function { language: Language::Compiled, ..immutable("c", "current_setting") };
        assert_eq!(take(&[compiled], &[]).plans_read(), PlanReads::Custom);
    }

    #[test]
    fn a_text_may_come_in_pieces() {
        let census = take(&[function("locks", "BEGIN PERFORM pg_advisory_lock(1); END")], &[]);
        let mut reader = Reader::new(census.clone());
        for piece in ["select lo", "ck", "s", "(1)"] {
            reader.feed(piece.as_bytes());
        }
        assert_eq!(reader.finish(), census.of_text(b"select locks(1)"));
        let long = "x".repeat(100) + "locks";
        assert_eq!(census.of_text(long.as_bytes()), None);
    }

    #[test]
    fn names_of_any_kind_are_found() {
        let locks = |name: &str| function(name, "BEGIN PERFORM pg_advisory_lock(1); END");
        let finds = |name: &str, text: &[u8]| take(&[locks(name)], &[]).of_text(text).is_some();
        // A server cuts what is too long, and no character in two.
        for (name, more) in [("f".repeat(63), "g"), ("f".repeat(61) + "\u{e9}", "\u{e9}\u{e9}")] {
            assert!(finds(&name, format!("select {name}{more}()").as_bytes()), "{name}");
            assert!(finds(&name, format!("select {name}()").as_bytes()), "{name}");
        }
        let cut = "f".repeat(62);
        assert!(finds(&cut, format!("select {cut}\u{e9}\u{e9}()").as_bytes()));
        let calls = function("calls", &format!("BEGIN PERFORM {}(); END", "l".repeat(70)));
        assert!(take(&[locks(&"l".repeat(63)), calls], &[]).of_text(b"call calls()").is_some());
        assert!(finds("+", b"select \"+\"()") && !finds("+", b"select 1 + 1"));
        // Latin-1, and UTF-8 of a server in Latin-1.
        assert!(finds("gr\u{f6}\u{df}e", b"select gr\xf6\xdfe()"));
        assert!(!finds("gr\u{f6}\u{df}e", "select 'm\u{fc}ller', f()".as_bytes()));
        let latin = Function { name: b"gr\xf6\xdfe"[..].into(), ..locks("") };
        assert!(take(&[latin], &[]).of_text("select gr\u{f6}\u{df}e()".as_bytes()).is_some());
    }

    #[test]
    fn a_long_chain_of_calls_is_looked_at_once() {
        let calls = |n: u32| format!("BEGIN PERFORM f{}(); END", n + 1);
        let mut functions: Vec<_> =
            (0..20_000).map(|n| function(&format!("f{n}"), &calls(n))).collect();
        functions.push(function("f20000", "BEGIN PERFORM pg_advisory_lock(1); END"));
        let census = take(&functions, &[]);
        assert!(of(&census, "select f0()").pins.contains(Part::AdvisoryLock));
        assert_eq!(census.len(), 20_001);
    }

    #[test]
    fn calls_in_circles_come_to_an_end() {
        let census = take(
            &[
                function("one", "BEGIN PERFORM two(); END"),
                function("two", "BEGIN PERFORM one(); PERFORM setseed(0.5); END"),
            ],
            &[("a", Link::StandsFor, "b"), ("b", Link::StandsFor, "a"), ("a", Link::Calls, "one")],
        );
        for text in ["select one()", "select * from b"] {
            assert!(of(&census, text).may(Effect::Spoils), "{text}");
        }
    }
}
