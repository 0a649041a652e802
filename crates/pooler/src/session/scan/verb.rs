//! What one statement does, by its first tokens.
//!
//! # Model   most statements are known by their first word. Of those that need more, the scan keeps
//!           up to [`HEAD_TOKENS_MAX`] tokens, and they are read when the statement ends.
//! # Invariants  a statement whose head does not match the grammar gives `None`: unsure.
//! # Source  src/backend/parser/gram.y of PostgreSQL 14 to 18.

use std::fmt;
use std::ops::Range;

use super::keyword::Word;
use crate::parts::pins::question::ASKED;
use crate::session::part::{Part, PartSet};
use crate::session::settings::{current_name, is_custom};
use crate::session::token::NAME_BYTES_MAX;

/// Tokens after the first word that are kept of a statement whose verb needs them.
pub(super) const HEAD_TOKENS_MAX: usize = 24;

/// A name as the server sees it: folded to lower case unless it was quoted, at most 63 bytes.
/// Names of settings are always folded, since the server compares them without case.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Box<[u8]>);

impl Name {
    /// Of a setting, in lower case.
    pub(super) fn new(name: &[u8]) -> Name {
        Name(current_name(name).into())
    }

    /// The bytes, in the client's encoding.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl PartialEq<str> for Name {
    fn eq(&self, other: &str) -> bool {
        *self.0 == *other.as_bytes()
    }
}

/// What a SET sets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SetValue {
    /// The text at this range of bytes: one or more literals or words, or for the time zone also
    /// `INTERVAL '...' HOUR TO MINUTE`.
    Given(Range<usize>),
    /// The start value (`TO DEFAULT`, `SET TIME ZONE LOCAL`, `SET NAMES` alone).
    Default,
    /// The value that it has (`FROM CURRENT`).
    Current,
}

/// A name, or ALL of the kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OneOrAll {
    /// That one.
    One(Name),
    /// `ALL`, or `*` of UNLISTEN.
    All,
}

/// What a statement does, as far as sessions are concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verb {
    /// DO.
    Do,
    /// CALL.
    Call,
    /// COMMIT, END, ROLLBACK, ABORT.
    End {
        /// AND CHAIN.
        chain: bool,
    },
    /// COMMIT PREPARED, ROLLBACK PREPARED.
    FinishPrepared,
    /// SET of a setting, in all its spellings: `SET TIME ZONE` is `timezone`, `SET NAMES`
    /// `client_encoding`, `SET SCHEMA` `search_path`, `SET ROLE` `role`, `SET SESSION
    /// AUTHORIZATION` `session_authorization`, `SET XML OPTION` `xmloption`.
    Set {
        /// The setting, in lower case.
        name: Name,
        /// SET LOCAL: ends with the transaction.
        local: bool,
        /// To what.
        value: SetValue,
    },
    /// SET SESSION CHARACTERISTICS AS TRANSACTION: sets `default_transaction_...`.
    SetSessionCharacteristics {
        /// SET LOCAL SESSION CHARACTERISTICS.
        local: bool,
    },
    /// RESET, with names as those of [`Verb::Set`].
    Reset(Name),
    /// RESET ALL.
    ResetAll,
    /// DISCARD ALL.
    DiscardAll,
    /// DISCARD TEMP.
    DiscardTemporary,
    /// PREPARE.
    Prepare(Name),
    /// EXECUTE.
    Execute(Name),
    /// DEALLOCATE.
    Deallocate(OneOrAll),
    /// LISTEN.
    Listen(Name),
    /// UNLISTEN.
    Unlisten(OneOrAll),
    /// NOTIFY.
    Notify,
    /// DECLARE CURSOR WITH HOLD.
    DeclareHeld,
    /// CLOSE.
    Close,
    /// LOAD.
    Load,
    /// CREATE, ALTER, DROP of what may change what new sessions start with: roles, databases, the
    /// system.
    Shared,
    /// The same of a database, by a statement that allows no other connection to it (DROP, CREATE
    /// of a copy, ALTER ... RENAME, ALTER ... SET TABLESPACE: `CountOtherDBBackends`,
    /// dbcommands.c).
    Vacate(Name),
    /// Any other change of objects, permissions or comments.
    Ddl,
    /// Anything else (SELECT, SAVEPOINT, ...), also what the server does not know.
    Other,
}

/// What outlasts a SET LOCAL: that a custom name is defined, and the state of the random numbers.
pub(super) const OUTLASTS_LOCAL: PartSet = PartSet::of(&[Part::CustomSetting, Part::Seed]);

impl Verb {
    /// The parts of the session that the verb by itself may change. What a statement may end
    /// (RESET, CLOSE, UNLISTEN, DEALLOCATE, DISCARD) is not among them, but for custom names,
    /// which a RESET may define. `reported` says whether the server reports a setting.
    pub fn parts(&self, reported: impl FnOnce(&[u8]) -> bool) -> PartSet {
        let part = match self {
            Verb::Set { name, local, value } => {
                let part = Part::of_setting(name.as_bytes(), reported);
                let lasts = !local && *value != SetValue::Default;
                part.filter(|&part| lasts || OUTLASTS_LOCAL.contains(part))
            }
            Verb::Reset(name) if is_custom(name.as_bytes()) => Some(Part::CustomSetting),
            Verb::SetSessionCharacteristics { local: false } => Some(Part::Setting),
            Verb::Prepare(_) => Some(Part::SqlStatement),
            Verb::Listen(_) => Some(Part::Listen),
            Verb::DeclareHeld => Some(Part::HeldCursor),
            Verb::Load => Some(Part::LoadedLibrary),
            _ => None,
        };
        part.into_iter().collect()
    }
}

impl Verb {
    /// Whether the setting, statement or channel that it names, or its position in the text,
    /// matters: for all others [`Verb::parts`] and [`Verb::ends`] say everything.
    pub fn is_of_note(&self) -> bool {
        match self {
            Verb::Set { .. }
            | Verb::SetSessionCharacteristics { .. }
            | Verb::Reset(_)
            | Verb::ResetAll
            | Verb::DiscardAll
            | Verb::Deallocate(_)
            | Verb::Listen(_)
            | Verb::Unlisten(_)
            | Verb::Shared
            | Verb::Vacate(_) => true,
            Verb::Do
            | Verb::Call
            | Verb::End { .. }
            | Verb::FinishPrepared
            | Verb::DiscardTemporary
            | Verb::Prepare(_)
            | Verb::Execute(_)
            | Verb::Notify
            | Verb::DeclareHeld
            | Verb::Close
            | Verb::Load
            | Verb::Ddl
            | Verb::Other => false,
        }
    }

    /// The parts of the session that the verb may remove entirely.
    pub fn ends(&self) -> PartSet {
        const MADE_BY_SQL: PartSet = PartSet::of(&[Part::SqlStatement]);
        match self {
            // A DROP, of whatever kind.
            Verb::Ddl | Verb::DiscardTemporary => PartSet::of(&[Part::TemporaryObject]),
            Verb::Close => PartSet::of(&[Part::HeldCursor]),
            Verb::Deallocate(_) => MADE_BY_SQL,
            Verb::Do | Verb::Call | Verb::DiscardAll => ASKED,
            Verb::Execute(_) => ASKED.minus(MADE_BY_SQL),
            _ => PartSet::EMPTY,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Word,
    Quoted,
    String,
    Symbol(u8),
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct Token {
    kind: Kind,
    start: usize,
    /// End of its text in [`Head::text`]; it begins where that of the token before ends.
    text_end: usize,
}

/// The tokens after a statement's first word.
#[derive(Debug, Clone, Default)]
pub(super) struct Head {
    tokens: Vec<Token>,
    text: Vec<u8>,
}

impl Head {
    pub(super) fn clear(&mut self) {
        self.tokens.clear();
        self.text.clear();
    }

    /// Adds a token; says whether there is room for more.
    pub(super) fn push(&mut self, kind: Kind, text: &[u8], start: usize) -> bool {
        if self.tokens.is_empty() {
            // Room for a usual SET, at once.
            self.tokens.reserve(6);
            self.text.reserve(64);
        }
        let from = self.text.len();
        self.text.extend_from_slice(text);
        if kind == Kind::Word {
            self.text[from..].make_ascii_lowercase();
        }
        self.tokens.push(Token { kind, start, text_end: self.text.len() });
        self.tokens.len() < HEAD_TOKENS_MAX
    }

    fn kind(&self, i: usize) -> Option<Kind> {
        self.tokens.get(i).map(|token| token.kind)
    }

    fn text(&self, i: usize) -> &[u8] {
        let from = if i == 0 { 0 } else { self.tokens[i - 1].text_end };
        &self.text[from..self.tokens[i].text_end]
    }

    fn is(&self, i: usize, word: &str) -> bool {
        self.kind(i) == Some(Kind::Word) && self.text(i) == word.as_bytes()
    }

    fn ends(&self, i: usize) -> bool {
        i >= self.tokens.len()
    }

    /// Of a CREATE: whether it is one of a function or procedure.
    pub(super) fn creates_routine(&self) -> bool {
        let at = if self.is(0, "or") { 2 } else { 0 };
        self.is(at, "function") || self.is(at, "procedure")
    }

    /// The identifier at `i`. `None` for one that the server would cut: where it cuts depends on
    /// the encoding. (How the server folds letters beyond ASCII of a name without quotes depends on
    /// its encoding and locale: `downcase_identifier`, scansup.c.)
    fn name(&self, i: usize) -> Option<Name> {
        let kind = self.kind(i)?;
        let text = self.text(i);
        let named = kind == Kind::Quoted || (kind == Kind::Word && text.is_ascii());
        (named && !text.is_empty() && text.len() < NAME_BYTES_MAX).then(|| Name(text.into()))
    }

    /// A setting's name at `i`, with its dots, and the index after it.
    fn setting(&self, mut i: usize) -> Option<(Name, usize)> {
        let mut name = self.name(i)?.0.into_vec();
        i += 1;
        while self.kind(i) == Some(Kind::Symbol(b'.')) {
            name.push(b'.');
            name.extend_from_slice(self.name(i + 1)?.as_bytes());
            i += 2;
        }
        name.make_ascii_lowercase();
        Some((Name::new(&name), i))
    }

    fn one_or_all(&self, i: usize) -> Option<OneOrAll> {
        if self.is(i, "all") || self.kind(i) == Some(Kind::Symbol(b'*')) {
            return Some(OneOrAll::All);
        }
        self.name(i).map(OneOrAll::One)
    }

    /// The index after WORK or TRANSACTION.
    fn after_work(&self) -> usize {
        usize::from(self.is(0, "work") || self.is(0, "transaction"))
    }

    fn chain(&self) -> bool {
        let i = self.after_work();
        self.is(i, "and") && self.is(i + 1, "chain")
    }
}

/// Whether the tokens after this first word must be kept.
pub(super) fn needs_head(first: Word) -> bool {
    matches!(
        first,
        Word::Abort
            | Word::Alter
            | Word::Commit
            | Word::Create
            | Word::Deallocate
            | Word::Discard
            | Word::Drop
            | Word::End
            | Word::Execute
            | Word::Listen
            | Word::Prepare
            | Word::Reset
            | Word::Rollback
            | Word::Set
            | Word::Unlisten
    )
}

/// The verb of a statement that ends at `end`, or `None` if its head does not match the grammar.
pub(super) fn read(first: Word, head: &Head, hold: bool, end: usize) -> Option<Verb> {
    Some(match first {
        Word::Do => Verb::Do,
        Word::Call => Verb::Call,
        Word::Commit | Word::End | Word::Rollback | Word::Abort if head.is(0, "prepared") => {
            Verb::FinishPrepared
        }
        Word::Commit | Word::End => Verb::End { chain: head.chain() },
        Word::Rollback | Word::Abort if head.is(head.after_work(), "to") => Verb::Other,
        Word::Rollback | Word::Abort => Verb::End { chain: head.chain() },
        Word::Set => read_set(head, end)?,
        Word::Reset => read_reset(head)?,
        Word::Discard => match head.kind(0)? {
            Kind::Word => match head.text(0) {
                b"all" => Verb::DiscardAll,
                b"temp" | b"temporary" => Verb::DiscardTemporary,
                b"plans" | b"sequences" => Verb::Other,
                _ => return None,
            },
            _ => return None,
        },
        Word::Prepare if head.is(0, "transaction") && head.kind(1) == Some(Kind::String) => {
            Verb::Other
        }
        Word::Prepare => Verb::Prepare(head.name(0)?),
        Word::Execute => Verb::Execute(head.name(0)?),
        Word::Deallocate => {
            let i = usize::from(head.is(0, "prepare") && !head.ends(1));
            Verb::Deallocate(head.one_or_all(i)?)
        }
        Word::Listen => Verb::Listen(head.name(0)?),
        Word::Unlisten => Verb::Unlisten(head.one_or_all(0)?),
        Word::Notify => Verb::Notify,
        Word::Declare if hold => Verb::DeclareHeld,
        Word::Close => Verb::Close,
        Word::Load => Verb::Load,
        Word::Create | Word::Alter | Word::Drop if head.is(0, "database") => {
            vacated(first, head).map_or(Verb::Shared, Verb::Vacate)
        }
        Word::Create | Word::Alter | Word::Drop => read_ddl(head),
        Word::OtherDdl | Word::Import => Verb::Ddl,
        _ => Verb::Other,
    })
}

fn read_ddl(head: &Head) -> Verb {
    if head.kind(0) != Some(Kind::Word) {
        return Verb::Ddl;
    }
    match head.text(0) {
        b"user" if head.is(1, "mapping") => Verb::Ddl,
        b"role" | b"user" | b"group" | b"system" => Verb::Shared,
        _ => Verb::Ddl,
    }
}

/// The database that must have no other connection for a statement on databases.
fn vacated(word: Word, head: &Head) -> Option<Name> {
    match word {
        Word::Drop if head.is(1, "if") && head.is(2, "exists") => head.name(3),
        Word::Drop => head.name(1),
        Word::Alter => {
            let moves = head.is(2, "set") && head.is(3, "tablespace");
            if moves || head.is(2, "rename") { head.name(1) } else { None }
        }
        _ => {
            let option = (2..HEAD_TOKENS_MAX).find(|&i| !head.ends(i) && head.is(i, "template"));
            let Some(option) = option else { return Some(named(TEMPLATE)) };
            let value = option + 1 + usize::from(head.kind(option + 1) == Some(Kind::Symbol(b'=')));
            if head.is(value, "default") { Some(named(TEMPLATE)) } else { head.name(value) }
        }
    }
}

/// The database that CREATE DATABASE copies by default.
const TEMPLATE: &str = "template1";

fn named(name: &str) -> Name {
    Name(name.as_bytes().into())
}

fn read_reset(head: &Head) -> Option<Verb> {
    Some(if head.is(0, "all") {
        Verb::ResetAll
    } else if head.is(0, "time") && head.is(1, "zone") {
        Verb::Reset(named("timezone"))
    } else if head.is(0, "transaction") && head.is(1, "isolation") {
        Verb::Reset(named("transaction_isolation"))
    } else if head.is(0, "session") && head.is(1, "authorization") {
        Verb::Reset(named("session_authorization"))
    } else {
        let (name, after) = head.setting(0)?;
        if !head.ends(after) {
            return None;
        }
        Verb::Reset(name)
    })
}

/// SET after its first word. `session` and the like are key words that may also be names of
/// settings: the grammar decides by what follows.
fn read_set(head: &Head, end: usize) -> Option<Verb> {
    let assigns =
        |i: usize| matches!(head.kind(i), Some(Kind::Symbol(b'=' | b'.'))) || head.is(i, "to");
    let characteristics = |i: usize| {
        head.is(i, "session") && head.is(i + 1, "characteristics") && head.is(i + 2, "as")
    };
    let mut i = 0;
    let mut local = false;
    if head.is(0, "local") && !assigns(1) {
        local = true;
        i = 1;
    } else if head.is(0, "session")
        && !assigns(1)
        && !head.is(1, "authorization")
        && !characteristics(0)
    {
        i = 1;
    }
    let set = |name: &str, at: usize, defaults: &[&str]| {
        let value = if defaults.iter().any(|word| head.is(at, word)) {
            SetValue::Default
        } else {
            SetValue::Given(head.tokens.get(at)?.start..end)
        };
        Some(Verb::Set { name: named(name), local, value })
    };
    if characteristics(i) {
        return Some(Verb::SetSessionCharacteristics { local });
    }
    if head.is(i, "session") && head.is(i + 1, "authorization") {
        return set("session_authorization", i + 2, &["default"]);
    }
    if !assigns(i + 1) && !head.is(i + 1, "from") && head.kind(i) == Some(Kind::Word) {
        match head.text(i) {
            b"transaction" | b"constraints" => return Some(Verb::Other),
            b"time" if head.is(i + 1, "zone") => {
                return set("timezone", i + 2, &["default", "local"]);
            }
            b"schema" => return set("search_path", i + 1, &[]),
            b"role" => return set("role", i + 1, &[]),
            b"xml" if head.is(i + 1, "option") => return set("xmloption", i + 2, &[]),
            b"names" if head.ends(i + 1) => {
                let name = named("client_encoding");
                return Some(Verb::Set { name, local, value: SetValue::Default });
            }
            b"names" => return set("client_encoding", i + 1, &["default"]),
            _ => return None,
        }
    }
    let (name, i) = head.setting(i)?;
    let value = if head.is(i, "from") && head.is(i + 1, "current") {
        SetValue::Current
    } else if head.kind(i) != Some(Kind::Symbol(b'=')) && !head.is(i, "to") {
        return None;
    } else if head.is(i + 1, "default") {
        SetValue::Default
    } else {
        SetValue::Given(head.tokens.get(i + 1)?.start..end)
    };
    Some(Verb::Set { name, local, value })
}
