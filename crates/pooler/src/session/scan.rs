//! Finds which statements a query's text has and which parts of the session it may touch.
//!
//! # Model   one pass over the tokens, in chunks of any size. A statement's first words give its
//!           [`Verb`]; words anywhere in it give [`Findings::flags`]: functions that take advisory
//!           locks, `set_config`, TEMPORARY where an object is created, `pg_temp` and so on. If a
//!           string is run as code (DO, CALL), all its words count as well.
//! # Invariants  never a false negative for what the text itself says: what cannot be read is
//!           `unsure`. That holds for the [`ScanOptions`] under which the server reads it, which
//!           the caller must know. A false positive costs a pin; a column that is called `temp`
//!           causes none. The findings do not depend on where the chunks end.
//! # Limits  [`STATEMENTS_MAX`] statements are listed, and after them up to [`OF_NOTE_MAX`] that
//!           count by themselves; the flags are of all. What functions,
//!           triggers and procedures do inside is not in the text. A text that the server would
//!           refuse (and so not run at all) may give anything.
//! # Why not a parser  PostgreSQL's own needs the whole text at once, allocates for each node and
//!           knows one version's grammar; this pass is paid by each query.

pub mod body;
mod keyword;
mod known;
mod plain;
mod verb;

use std::ops::Range;

use self::keyword::{Keyword, Word};
pub use self::known::KnownTexts;
pub use self::plain::is_plain;
use self::verb::{Head, Kind};
pub use self::verb::{Name, OneOrAll, SetValue, Verb};
use super::canonical::is_unsafe_encoding;
use super::part::{Part, PartSet, is_reported};
use super::settings::is_custom;
use super::token::{Lexer, NAME_BYTES_MAX, PARAMETER, Sink};

/// Statements of one text that are listed, whatever they do.
pub const STATEMENTS_MAX: usize = 64;
/// The most statements that are listed in all: after the first ones only those whose position or
/// names matter ([`Verb::is_of_note`]).
pub const OF_NOTE_MAX: usize = 256;

/// How the server will read the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ScanOptions {
    /// The setting of that name: `false` lets a backslash escape in any string.
    pub standard_conforming_strings: bool,
    /// The client's encoding has bytes below 0x80 inside characters (SJIS, BIG5, GBK, UHC,
    /// GB18030, JOHAB): a text that is not plain ASCII cannot be read byte by byte.
    pub unsafe_encoding: bool,
}

impl Default for ScanOptions {
    fn default() -> ScanOptions {
        ScanOptions { standard_conforming_strings: true, unsafe_encoding: false }
    }
}

impl ScanOptions {
    /// The options of a session for which `value` gives some settings; the others are as in `self`.
    pub fn with<'a>(self, value: impl Fn(&[u8]) -> Option<&'a [u8]>) -> ScanOptions {
        let strings = value(STRINGS);
        let encoding = value(ENCODING);
        ScanOptions {
            standard_conforming_strings: strings
                .map_or(self.standard_conforming_strings, |value| value != b"off"),
            unsafe_encoding: encoding.map_or(self.unsafe_encoding, is_unsafe_encoding),
        }
    }
}

/// The settings that [`ScanOptions`] come from.
const STRINGS: &[u8] = b"standard_conforming_strings";
const ENCODING: &[u8] = b"client_encoding";

/// The setting by which names are found.
const SEARCH_PATH: &str = "search_path";

/// Whether this setting changes how texts are read.
fn decides_reading(name: &[u8]) -> bool {
    name == STRINGS || name == ENCODING
}

/// The sessions whose statements may change their meaning by a text: see
/// [`crate::parts::statements::schema_epoch::SchemaEpoch`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub enum SchemaChange {
    /// It changes no object that a statement may name.
    #[default]
    None,
    /// Those of its own session: it makes temporary objects.
    Own,
    /// Those of all sessions of its database.
    All,
}

/// One statement of a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    /// Its number in the text, from 1.
    pub number: u32,
    /// Bytes of the text from its first to its last token, without the semicolon.
    pub range: Range<usize>,
    /// What it does.
    pub verb: Verb,
}

/// What a text holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Findings {
    first: Option<Statement>, // by itself, so that a single statement allocates nothing
    rest: Vec<Statement>,
    /// Parts that the text may change or read by other means than its statements' own verbs,
    /// which [`Findings::parts`] adds.
    pub flags: PartSet,
    /// Custom names that set_config() sets for the transaction only, in lower case.
    pub defined: Vec<Name>,
    /// Other settings that it sets so.
    pub local: Vec<Name>,
    /// It may set a setting that the text does not name, at least for the transaction.
    pub sets_unnamed: bool,
    /// Settings that set_config() sets, in lower case.
    pub configured: Vec<Name>,
    /// Where set_config() gets NULL as the value of one of these, which resets it to its start
    /// value.
    pub nulls: Vec<(Name, Range<usize>)>,
    /// The value for set_config() may be a parameter, and so NULL.
    pub given: bool,
    /// Parts that functions in it may end; what its listed statements' own verbs may end is not among
    /// them.
    pub ends: PartSet,
    /// The text cannot be read, or runs code that is not in it: anything may happen.
    pub unsure: bool,
    /// It may set what decides how later texts are read, if only up to the end of the transaction:
    /// their [`ScanOptions`] may differ from its own.
    pub rereads: bool,
    /// It sets a `search_path` by `set_config()`, or up to the end of the transaction: later
    /// statements of the transaction may run under an unknown one.
    pub unseen_path: bool,
    /// There are statements of note that are not listed. `flags` has the parts of their verbs.
    pub truncated: bool,
    /// It has a statement that may make, change or drop a function, or what calls one.
    pub changes_catalog: bool,
    /// It has a NOTIFY, or may call `pg_notify()`.
    pub notifies: bool,
    /// It may change what statements mean.
    pub schema: SchemaChange,
    /// Of a function's source: it executes a text whose beginning is not in the source.
    pub dynamic: bool,
    /// Of a function's source: a text that it executes may reset settings.
    pub executes_reset: bool,
    count: u32,
}

impl Findings {
    /// The statements that are listed, in their order; empty ones are left out.
    pub fn statements(&self) -> impl Iterator<Item = &Statement> {
        self.first.iter().chain(&self.rest)
    }

    /// How many statements there are, those that are not listed included.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// The statement, if there is exactly one.
    pub fn single(&self) -> Option<&Statement> {
        self.first.as_ref().filter(|_| self.rest.is_empty())
    }

    /// All parts that the text may change or read. `reported` says whether the server reports a
    /// setting (its name in lower case).
    pub fn parts(&self, reported: impl Fn(&[u8]) -> bool) -> PartSet {
        self.statements()
            .fold(self.flags, |parts, statement| parts.union(statement.verb.parts(&reported)))
    }
}

/// Scans a whole text.
pub fn scan(text: &[u8], options: ScanOptions) -> Findings {
    let mut scanner = Scanner::new(options);
    scanner.feed(text);
    scanner.finish()
}

/// Whether a plain CREATE TABLE makes a temporary one under this `search_path`.
pub fn names_temporary_schema(search_path: &[u8]) -> bool {
    search_path
        .split(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_')
        .any(|word| keyword::lookup(word).is_some_and(|keyword| keyword.word == Word::PgTemp))
}

/// The state of reading a function's source.
#[derive(Debug, Clone)]
struct Body {
    /// It is PL/pgSQL's.
    procedural: bool,
    /// It executes concatenated strings: strings count.
    watches: bool,
    /// What follows an EXECUTE.
    execute: Executed,
    /// No word of the string, or of its statement, has been read.
    at_start: bool,
    /// In a language that is not read: the last word may quote what follows, as in Perl.
    quotes: bool,
    /// The last word of the string begins what may be a temporary object.
    creates: bool,
    /// A string has had a comment, or a block of code: its first words are not known.
    anywhere: bool,
    /// The last byte of the string, if no word has followed it.
    before: u8,
}

/// What an EXECUTE of PL/pgSQL executes, as far as it has been read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Executed {
    Nothing,
    /// The word itself has just been read.
    Text,
    /// `format`, then its parenthesis.
    Format,
    FormatText,
}

/// Scans a text that comes in chunks.
#[derive(Debug, Clone)]
pub struct Scanner {
    lexer: Lexer,
    finder: Finder,
    unsafe_encoding: bool,
}

impl Scanner {
    /// At the start of a text.
    #[inline]
    pub fn new(options: ScanOptions) -> Scanner {
        Scanner {
            lexer: Lexer::new(options.standard_conforming_strings),
            finder: Finder::new(),
            unsafe_encoding: options.unsafe_encoding,
        }
    }

    /// Takes the next bytes of the text, which may end anywhere.
    #[inline]
    pub fn feed(&mut self, chunk: &[u8]) {
        // The server ends a text at a NUL; the protocol has none inside one.
        if memchr::memchr(0, chunk).is_some() || (self.unsafe_encoding && !chunk.is_ascii()) {
            self.finder.found.unsure = true;
        }
        self.lexer.feed(chunk, &mut self.finder);
    }

    /// Whether what has been read of it begins a statement that may make or change a function.
    pub fn may_make_functions(&self) -> bool {
        let begun = matches!(self.finder.first, Word::Create | Word::Alter);
        self.finder.found.changes_catalog || (self.finder.started && begun)
    }

    /// Marks that it is not known how the server will read the text.
    pub fn doubt(&mut self) {
        self.finder.found.unsure = true;
    }

    /// Ends the text.
    #[inline]
    pub fn finish(mut self) -> Findings {
        let end = self.lexer.finish(&mut self.finder);
        self.finder.end_statement(end);
        std::mem::take(&mut self.finder.found)
    }
}

/// Which words of a string's content count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Watch {
    Nothing,
    /// `pg_temp`, in what may be a value of search_path.
    TemporarySchema,
    /// All, in what is run as code.
    Everything,
}

/// A call of set_config() that is being read.
#[derive(Debug, Clone)]
struct SetConfig {
    /// Parentheses open inside the call's own; 0 before its own opens.
    depth: u32,
    argument: usize,
    /// Tokens of the current argument.
    tokens: usize,
    /// The first argument, while it is one plain string.
    name: Option<Vec<u8>>,
    /// The current argument is TRUE so far.
    is_true: bool,
    /// Where the second argument is NULL, and nothing else.
    null: Option<usize>,
}

/// The value that makes a RESET of set_config().
const NULL: &[u8] = b"null";

/// The body of CREATE FUNCTION ... BEGIN ATOMIC, in which semicolons do not end the statement.
#[derive(Debug, Clone, Copy)]
struct Atomic {
    ends: usize,
    /// Its END and a semicolon have been read, and the statement ends here.
    closed: Option<usize>,
}

/// Makes findings of tokens.
#[derive(Debug, Clone)]
struct Finder {
    found: Findings,
    /// The state for a function's source, if one is read.
    body: Option<Body>,
    // The current statement.
    started: bool,
    start: usize,
    first: Word,
    tokens: usize,
    previous: Word,
    before_previous: Word,
    parentheses: u32,
    heading: bool,
    head: Head,
    for_seen: bool,
    hold: bool,
    /// UPDATE has been read: its table may follow.
    update_seen: bool,
    /// It makes a temporary object.
    makes_temporary: bool,
    /// It is a query whose rows become a table.
    makes_table: bool,
    /// The last word of a watched string is CREATE: what it creates may be temporary.
    inner_creates: bool,
    watch: Watch,
    disguised: bool,
    // Questions that the next tokens decide; `careful` if any is open.
    careful: bool,
    temporary_pending: bool,
    language_pending: bool,
    set_config: Option<SetConfig>,
    /// The name in a SET that belongs to CREATE or ALTER, as far as it has come.
    set_option: Option<Vec<u8>>,
    atomic: Option<Atomic>,
    // The word of a watched string that is being read.
    inner: [u8; NAME_BYTES_MAX],
    inner_length: usize,
}

impl Finder {
    #[inline]
    fn new() -> Finder {
        Finder {
            found: Findings::default(),
            body: None,
            started: false,
            start: 0,
            first: Word::None,
            tokens: 0,
            previous: Word::None,
            before_previous: Word::None,
            parentheses: 0,
            heading: false,
            head: Head::default(),
            for_seen: false,
            hold: false,
            update_seen: false,
            makes_temporary: false,
            makes_table: false,
            inner_creates: false,
            watch: Watch::Nothing,
            disguised: false,
            careful: false,
            temporary_pending: false,
            language_pending: false,
            set_config: None,
            set_option: None,
            atomic: None,
            inner: [0; NAME_BYTES_MAX],
            inner_length: 0,
        }
    }

    fn flag(&mut self, part: Part) {
        self.found.flags.insert(part);
    }

    /// Takes a token, with its row if it is a word of the table.
    #[inline]
    fn token(&mut self, keyword: Option<&'static Keyword>, kind: Kind, text: &[u8], start: usize) {
        let mut word = keyword.map_or(Word::None, |keyword| keyword.word);
        if self.body.is_some() {
            match self.of_body(word, kind, text, start) {
                Some(read) => word = read,
                None => return,
            }
        }
        if !self.started {
            self.begin_statement(word, start);
        } else if self.heading {
            self.heading = self.head.push(kind, text, start);
        }
        if self.careful {
            self.decide(word, kind);
            self.continue_set_option(kind, text);
            if let Some(SetConfig { argument: 1, tokens, null, .. }) = &mut self.set_config
                && *tokens > 0
            {
                let is_null = kind == Kind::Word && text.eq_ignore_ascii_case(NULL);
                *null = (is_null && *tokens == 1).then_some(start);
                self.found.given |= kind == Kind::Symbol(PARAMETER);
            }
        }
        if let Some(keyword) = keyword {
            self.keyword(keyword);
        }
        self.tokens += 1;
        self.before_previous = self.previous;
        self.previous = word;
    }

    fn begin_statement(&mut self, first: Word, start: usize) {
        self.started = true;
        self.start = start;
        self.first = first;
        self.tokens = 0;
        self.previous = Word::None;
        self.before_previous = Word::None;
        self.heading = verb::needs_head(first);
        self.watch = match first {
            Word::Do | Word::Call => Watch::Everything,
            Word::Set => Watch::TemporarySchema,
            _ => Watch::Nothing,
        };
        if self.body.as_ref().is_some_and(Body::watches) {
            self.watch = Watch::Everything;
        }
    }

    fn end_statement(&mut self, mut end: usize) {
        if !self.started {
            return;
        }
        if self.careful {
            self.decide(Word::None, Kind::Symbol(b';'));
            self.continue_set_option(Kind::Symbol(b';'), b"");
            if self.set_config.take().is_some() {
                self.found.unsure = true;
            }
            if let Some(atomic) = self.atomic.take() {
                // With one END and no CASE the END is the body's own. All else would need a parser:
                // END and CASE may be names of columns.
                end = atomic.closed.unwrap_or(end);
                if atomic.ends != 1 {
                    self.found.unsure = true;
                }
            }
            self.careful = false;
        }
        let verb = verb::read(self.first, &self.head, self.hold, end).unwrap_or_else(|| {
            match (&self.body, self.first) {
                (None, _) => self.found.unsure = true,
                (Some(_), Word::Set) => self.any_setting(),
                // It may be a variable's name.
                (Some(_), _) => self.found.dynamic = true,
            }
            Verb::Other
        });
        if std::mem::take(&mut self.disguised)
            && matches!(&verb, Verb::Set { name, .. } if *name == *SEARCH_PATH)
        {
            self.flag(Part::TemporaryObject);
        }
        self.found.rereads |= match &verb {
            Verb::Set { name, .. } | Verb::Reset(name) => decides_reading(name.as_bytes()),
            Verb::ResetAll | Verb::DiscardAll | Verb::Execute(_) => true,
            _ => false,
        };
        self.found.changes_catalog |= matches!(self.first, Word::Create | Word::Alter | Word::Drop);
        self.found.notifies |= matches!(&verb, Verb::Notify);
        self.found.schema = self.found.schema.max(self.schema_change(&verb));
        self.found.unseen_path |= matches!(
            &verb,
            Verb::Set { name, local: true, .. } if *name == *SEARCH_PATH
        );
        self.found.count = self.found.count.saturating_add(1);
        let statement = Statement { number: self.found.count, range: self.start..end, verb };
        let most = if statement.verb.is_of_note() { OF_NOTE_MAX } else { STATEMENTS_MAX };
        if self.found.first.is_none() {
            self.found.first = Some(statement);
        } else if self.found.rest.len() + 1 < most {
            self.found.rest.push(statement);
        } else {
            self.found.truncated |= statement.verb.is_of_note();
            self.found.flags = self.found.flags.union(statement.verb.parts(is_reported));
            self.found.ends = self.found.ends.union(statement.verb.ends());
        }
        self.started = false;
        self.head.clear();
        self.heading = false;
        self.parentheses = 0;
        self.for_seen = false;
        self.hold = false;
        self.update_seen = false;
        self.makes_temporary = false;
        self.makes_table = false;
        self.watch = Watch::Nothing;
    }

    /// How the ending statement changes what statements mean. (GRANT and REVOKE decide who may run
    /// them; COMMENT, REINDEX and the like change nothing.)
    fn schema_change(&self, verb: &Verb) -> SchemaChange {
        let makes = match verb {
            Verb::FinishPrepared => return SchemaChange::All, // of whatever it has committed
            Verb::Ddl => {
                matches!(self.first, Word::Create | Word::Alter | Word::Drop | Word::Import)
            }
            _ => self.makes_table,
        };
        match (makes, self.makes_temporary) {
            (false, _) => SchemaChange::None,
            (true, true) => SchemaChange::Own,
            (true, false) => SchemaChange::All,
        }
    }

    /// INTO, or CREATE within an EXPLAIN.
    fn may_make_table(&mut self) {
        let queries = matches!(
            self.first,
            Word::Select | Word::Rows | Word::With | Word::Explain | Word::None
        );
        let inserts = matches!(self.previous, Word::Insert | Word::Merge);
        // In PL/pgSQL it is a variable that the rows go to.
        self.makes_table |= queries && !inserts && self.body.is_none();
    }

    /// A word of the table, before it is the previous one.
    fn keyword(&mut self, keyword: &'static Keyword) {
        match keyword.word {
            Word::Temporary => self.temporary(),
            Word::PgTemp => self.flag(Part::TemporaryObject),
            Word::Touches => self.found.flags = self.found.flags.union(keyword.parts),
            Word::Ends => self.found.ends = self.found.ends.union(keyword.parts),
            Word::Runs => self.found.unsure = true,
            Word::SetConfig => self.begin_set_config(),
            Word::Update => self.update_seen = true,
            Word::Settings => self.settings(),
            Word::PgNotify => self.found.notifies = true,
            Word::Execute => {
                let nested = self.first == Word::Explain
                    || (self.first == Word::Create && self.previous == Word::As);
                if nested {
                    self.found.rereads = true;
                    self.flag(Part::SqlStatement);
                }
            }
            Word::For => self.for_seen = true,
            // (A RESET of ALTER looks its name up as well.)
            Word::Set | Word::Reset if matches!(self.first, Word::Create | Word::Alter) => {
                self.set_option = Some(Vec::new());
                self.careful = true;
            }
            Word::Into => self.may_make_table(),
            Word::Create if self.first == Word::Explain => self.may_make_table(),
            Word::Hold => {
                self.hold |=
                    self.first == Word::Declare && self.previous == Word::With && !self.for_seen;
            }
            Word::Atomic if self.previous == Word::Begin && self.head.creates_routine() => {
                self.atomic = Some(Atomic { ends: 0, closed: None });
                self.careful = true;
            }
            Word::Language if self.first == Word::Do => {
                self.language_pending = true;
                self.careful = true;
            }
            _ => {}
        }
    }

    /// `pg_settings`: its rule `pg_settings_u` makes set_config() of an UPDATE (system_views.sql).
    fn settings(&mut self) {
        if self.update_seen {
            self.any_setting();
        }
    }

    /// A setting of unknown name may be set.
    fn any_setting(&mut self) {
        self.found.sets_unnamed = true;
        self.found.flags = self.found.flags.union(PartSet::ANY_SETTING);
        self.found.rereads = true;
    }

    /// TEMP or TEMPORARY: is it the key word, or a name?
    fn temporary(&mut self) {
        match self.previous {
            Word::Create | Word::Replace | Word::Global | Word::Local => {
                self.makes_temporary = true;
                self.flag(Part::TemporaryObject);
            }
            // SELECT ... INTO TEMP x, or INSERT INTO temp ...
            Word::Into => {
                let target = matches!(self.first, Word::Insert | Word::Merge) && self.tokens == 2;
                if matches!(self.before_previous, Word::Insert | Word::Merge) && !target {
                    self.temporary_pending = true;
                    self.careful = true;
                } else if !target {
                    self.makes_temporary = true;
                    self.flag(Part::TemporaryObject);
                }
            }
            _ => {}
        }
    }

    fn begin_set_config(&mut self) {
        if self.set_config.is_some() {
            // A call within a call is too rare to be parsed: take it for any setting.
            self.any_setting();
        }
        if self.watch == Watch::Nothing {
            self.watch = Watch::TemporarySchema;
        }
        self.set_config = Some(SetConfig {
            depth: 0,
            argument: 0,
            tokens: 0,
            name: None,
            is_true: false,
            null: None,
        });
        self.careful = true;
    }

    /// Decides open questions by the next token.
    fn decide(&mut self, word: Word, kind: Kind) {
        if std::mem::take(&mut self.temporary_pending) {
            // These follow a table's name in INSERT and MERGE; none can be a temporary table's
            // name: they are reserved.
            let table = matches!(kind, Kind::Symbol(b'(' | b'.'))
                || matches!(word, Word::As | Word::Default | Word::Using | Word::With)
                || word == Word::Select;
            if !table {
                self.flag(Part::TemporaryObject);
            }
        }
        if std::mem::take(&mut self.language_pending) && word != Word::PlPgSql {
            // Other languages build and run statements in their own ways, and keep variables.
            self.found.unsure = true;
            self.flag(Part::PlVariable);
        }
        if let Some(atomic) = &mut self.atomic {
            match (word, kind) {
                (_, Kind::Symbol(b';')) => {}
                (Word::End, _) => atomic.ends += 1,
                // A CASE has an END of its own, or the END was not the last.
                (Word::Case, _) => atomic.ends += 2,
                _ if atomic.ends > 0 => atomic.ends += 1,
                _ => {}
            }
        }
        self.continue_set_config(word, kind);
    }

    fn continue_set_config(&mut self, word: Word, kind: Kind) {
        let Some(call) = &mut self.set_config else { return };
        match kind {
            Kind::Symbol(b'(') => {
                call.depth += 1;
                call.tokens += usize::from(call.depth > 1);
            }
            // Not a call, but a name.
            _ if call.depth == 0 => self.set_config = None,
            Kind::Symbol(b')') if call.depth == 1 => self.end_set_config(),
            Kind::Symbol(b')') => call.depth -= 1,
            Kind::Symbol(b',') if call.depth == 1 => {
                call.argument += 1;
                call.tokens = 0;
                call.is_true = false;
            }
            _ => {
                call.tokens += 1;
                call.is_true = call.tokens == 1 && word == Word::True;
                if call.argument == 0 {
                    let plain = call.tokens == 1 && kind == Kind::String;
                    call.name = plain.then(Vec::new);
                }
            }
        }
    }

    fn end_set_config(&mut self) {
        let Some(call) = self.set_config.take() else { return };
        let local = call.argument == 2 && call.is_true;
        let mut outlasts = verb::OUTLASTS_LOCAL;
        let parts = match call.name {
            Some(mut name) if name.len() < NAME_BYTES_MAX => {
                name.make_ascii_lowercase();
                self.found.rereads |= decides_reading(&name);
                self.found.unseen_path |= name == SEARCH_PATH.as_bytes();
                if let Some(start) = call.null.filter(|_| call.argument == 2)
                    && self.found.nulls.len() < STATEMENTS_MAX
                {
                    self.found.nulls.push((Name::new(&name), start..start + NULL.len()));
                }
                let parts = Part::of_setting(&name, is_reported).into_iter().collect();
                let found = &self.found;
                let known = found.configured.len() + found.defined.len() + found.local.len();
                if known >= STATEMENTS_MAX {
                    self.found.truncated = true;
                } else if local {
                    let names = &mut self.found;
                    let of = if is_custom(&name) { &mut names.defined } else { &mut names.local };
                    of.push(Name::new(&name));
                } else {
                    self.found.configured.push(Name::new(&name));
                }
                parts
            }
            _ => {
                self.found.rereads = true;
                self.found.sets_unnamed = true;
                self.found.unseen_path |= local;
                outlasts.remove(Part::Seed); // assumed not to be the seed
                PartSet::ANY_SETTING
            }
        };
        let parts = if local { parts.intersection(outlasts) } else { parts };
        self.found.flags = self.found.flags.union(parts);
    }

    /// A custom name in a SET of CREATE or ALTER (of a function, role or database) is known to the server from
    /// then on (`validate_option_array_item`, guc.c), and stays so when the transaction has ended.
    fn continue_set_option(&mut self, kind: Kind, text: &[u8]) {
        let Some(name) = &mut self.set_option else { return };
        let begins = name.last().is_none_or(|last| *last == b'.');
        match kind {
            Kind::Word | Kind::Quoted if begins && name.len() + text.len() < NAME_BYTES_MAX => {
                name.extend_from_slice(text);
            }
            Kind::Word | Kind::Quoted if begins => {
                self.set_option = None;
                self.any_setting();
            }
            Kind::Symbol(b'.') if !begins => name.push(b'.'),
            _ => {
                let mut name = self.set_option.take().unwrap_or_default();
                name.make_ascii_lowercase();
                if !is_custom(&name) {
                    return;
                }
                self.flag(Part::CustomSetting);
                if self.found.configured.len() + self.found.defined.len() >= STATEMENTS_MAX {
                    self.found.truncated = true;
                } else {
                    self.found.defined.push(Name::new(&name));
                }
            }
        }
    }

    fn changes_schema(&mut self, change: SchemaChange) {
        self.found.schema = self.found.schema.max(change);
    }

    /// A watched string is written so that its words do not show.
    fn disguise(&mut self) {
        match self.watch {
            Watch::Nothing => {}
            Watch::TemporarySchema if self.first == Word::Set => self.disguised = true,
            Watch::Everything if self.body.is_some() => self.found.dynamic = true,
            Watch::TemporarySchema | Watch::Everything => self.found.unsure = true,
        }
    }

    /// The end of a word in a watched string.
    fn end_inner(&mut self) {
        let length = std::mem::take(&mut self.inner_length);
        if length == 0 {
            return;
        }
        let known =
            if length > NAME_BYTES_MAX { None } else { keyword::lookup(&self.inner[..length]) };
        if std::mem::take(&mut self.inner_creates) {
            let temporary = known.is_some_and(|keyword| {
                matches!(keyword.word, Word::Temporary | Word::Local | Word::Global)
            });
            self.changes_schema(if temporary { SchemaChange::Own } else { SchemaChange::All });
        }
        let Some(keyword) = known else {
            self.is_executed(Word::None);
            return;
        };
        if !self.is_executed(keyword.word) {
            return;
        }
        match (self.watch, keyword.word) {
            (_, Word::PgTemp) => self.flag(Part::TemporaryObject),
            (Watch::Everything, word) => match word {
                Word::Set | Word::SetConfig => self.any_setting(),
                Word::Reset => {
                    self.any_setting();
                    self.found.executes_reset = true;
                }
                Word::Update => self.update_seen = true,
                Word::Settings => self.settings(),
                Word::Notify | Word::PgNotify => self.found.notifies = true,
                Word::Temporary => self.flag(Part::TemporaryObject),
                Word::Listen => self.flag(Part::Listen),
                // DEALLOCATE ALL also removes the shared statements of others.
                Word::Prepare | Word::Deallocate => self.flag(Part::SqlStatement),
                Word::Hold => self.flag(Part::HeldCursor),
                Word::Load => self.flag(Part::LoadedLibrary),
                Word::Seed => self.flag(Part::Seed),
                Word::Touches => self.found.flags = self.found.flags.union(keyword.parts),
                Word::Create => self.inner_creates = true,
                Word::Alter | Word::Drop | Word::Import => self.changes_schema(SchemaChange::All),
                // It may run a text that is concatenated from parts.
                Word::Execute | Word::Runs => self.found.unsure = true,
                _ => {}
            },
            _ => {}
        }
    }
}

impl Sink for Finder {
    #[inline]
    fn word(&mut self, text: &[u8], start: usize) {
        self.token(keyword::lookup(text), Kind::Word, text, start);
    }

    fn quoted(&mut self, text: &[u8], start: usize) {
        // In quotes key words are plain names, but functions and views keep their meaning.
        let keyword = keyword::lookup(text).filter(|keyword| {
            use Word::{Ends, PgTemp, Runs, SetConfig, Settings, Touches};
            matches!(keyword.word, SetConfig | Settings | PgTemp | Touches | Ends | Runs)
        });
        self.token(keyword, Kind::Quoted, text, start);
    }

    fn string(&mut self, start: usize, continued: bool) {
        if continued {
            self.disguise(); // 'SE' 'T' on two lines is the word SET
            return;
        }
        self.inner_length = 0;
        self.token(None, Kind::String, b"", start);
        if let Some(body) = &mut self.body {
            body.begins_string();
        }
    }

    #[inline]
    fn content(&mut self, piece: &[u8]) {
        if self.watch == Watch::Nothing {
            return;
        }
        if let Some(SetConfig { argument: 0, name: Some(name), .. }) = &mut self.set_config {
            let room = NAME_BYTES_MAX - name.len().min(NAME_BYTES_MAX);
            name.extend_from_slice(&piece[..piece.len().min(room)]);
        }
        for &byte in piece {
            // A dollar sign ends words here: it may be the end of a nested quote's tag.
            if byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80 {
                if let Some(place) = self.inner.get_mut(self.inner_length) {
                    *place = byte;
                }
                self.inner_length = (self.inner_length + 1).min(NAME_BYTES_MAX + 1);
                if let Some(body) = &mut self.body {
                    body.in_word();
                }
            } else {
                let length = self.inner_length;
                self.end_inner();
                if let Some(body) = &mut self.body {
                    body.ends_word(byte, self.inner.get(..length).unwrap_or_default());
                }
            }
        }
    }

    fn escape(&mut self) {
        self.disguise(); // \x53ET is the word SET
    }

    fn string_end(&mut self) {
        if self.watch != Watch::Nothing {
            self.end_inner();
        }
        if std::mem::take(&mut self.inner_creates) {
            self.changes_schema(SchemaChange::All); // the text does not show what it creates
        }
    }

    #[inline]
    fn symbol(&mut self, byte: u8, start: usize) {
        match byte {
            b'(' => self.parentheses = self.parentheses.saturating_add(1),
            b')' => self.parentheses = self.parentheses.saturating_sub(1),
            _ => {}
        }
        let begins = !self.started;
        self.token(None, Kind::Symbol(byte), b"", start);
        if begins && byte == b'(' {
            self.first = Word::Select; // only a query begins with a parenthesis
        }
    }

    fn semicolon(&mut self, token_end: usize) {
        if let Some(atomic) = &mut self.atomic {
            if atomic.ends == 1 && atomic.closed.is_none() {
                atomic.closed = Some(token_end);
            }
            return;
        }
        // CREATE RULE ... DO (one; two)
        if self.parentheses == 0 {
            self.end_statement(token_end);
        }
    }

    fn unsure(&mut self) {
        self.found.unsure = true;
    }
}

#[cfg(test)]
mod tests;
