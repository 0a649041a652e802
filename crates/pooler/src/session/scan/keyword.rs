//! The words that the scan knows: first words of statements, words that change the meaning of their
//! neighbours, and functions that touch the session.
//!
//! # Model   a word is looked up by its first letter and its length, then compared: plain DML costs
//!           one table access for most of its words and one comparison for the others.

use crate::session::part::{Part, PartSet};

/// A word, or a stand-in for other tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Word {
    /// A token that is not a word of the table.
    None,
    Abort,
    Alter,
    As,
    Atomic,
    Begin,
    Call,
    Case,
    Close,
    Commit,
    Copy,
    Create,
    Deallocate,
    Declare,
    Default,
    Delete,
    Discard,
    Do,
    Drop,
    End,
    Execute,
    Explain,
    For,
    Global,
    Hold,
    /// IMPORT FOREIGN SCHEMA.
    Import,
    Insert,
    Into,
    Language,
    Listen,
    Load,
    Local,
    Merge,
    Notify,
    /// The function that does the same as NOTIFY.
    PgNotify,
    /// Begins a statement that changes objects, permissions or comments.
    OtherDdl,
    Prepare,
    Release,
    Replace,
    Reset,
    Rollback,
    Savepoint,
    Seed,
    /// TABLE and VALUES, which begin a query as well.
    Rows,
    Select,
    Set,
    SetConfig,
    /// The view `pg_settings`, whose UPDATE is a SET.
    Settings,
    Start,
    Temporary,
    True,
    Unlisten,
    Update,
    Using,
    With,
    /// `pg_temp` or `pg_temp_3`.
    PgTemp,
    /// The one language whose DO blocks are read.
    PlPgSql,
    /// A function or view that touches parts of the session.
    Touches,
    /// A function that may end parts of the session.
    Ends,
    /// A function that runs its argument as a query.
    Runs,
}

/// A row of the table.
#[derive(Debug)]
pub(super) struct Keyword {
    text: &'static [u8],
    pub(super) word: Word,
    /// Parts that a function touches.
    pub(super) parts: PartSet,
}

const fn word(text: &'static str, word: Word) -> Keyword {
    Keyword { text: text.as_bytes(), word, parts: PartSet::EMPTY }
}

const fn touches(text: &'static str, part: Part) -> Keyword {
    Keyword { text: text.as_bytes(), word: Word::Touches, parts: PartSet::of(&[part]) }
}

const fn ends(text: &'static str, part: Part) -> Keyword {
    Keyword { text: text.as_bytes(), word: Word::Ends, parts: PartSet::of(&[part]) }
}

const KEYWORDS: [Keyword; 116] = [
    word("abort", Word::Abort),
    word("alter", Word::Alter),
    word("as", Word::As),
    word("atomic", Word::Atomic),
    word("begin", Word::Begin),
    word("call", Word::Call),
    word("case", Word::Case),
    word("close", Word::Close),
    word("comment", Word::OtherDdl),
    word("commit", Word::Commit),
    word("copy", Word::Copy),
    word("create", Word::Create),
    word("deallocate", Word::Deallocate),
    word("declare", Word::Declare),
    word("default", Word::Default),
    word("delete", Word::Delete),
    word("discard", Word::Discard),
    word("do", Word::Do),
    word("drop", Word::Drop),
    word("end", Word::End),
    word("execute", Word::Execute),
    word("explain", Word::Explain),
    word("for", Word::For),
    word("global", Word::Global),
    word("grant", Word::OtherDdl),
    word("hold", Word::Hold),
    word("import", Word::Import),
    word("insert", Word::Insert),
    word("into", Word::Into),
    word("language", Word::Language),
    word("listen", Word::Listen),
    word("load", Word::Load),
    word("local", Word::Local),
    word("merge", Word::Merge),
    word("notify", Word::Notify),
    word("plpgsql", Word::PlPgSql),
    word("prepare", Word::Prepare),
    word("reassign", Word::OtherDdl),
    word("refresh", Word::OtherDdl),
    word("reindex", Word::OtherDdl),
    word("release", Word::Release),
    word("replace", Word::Replace),
    word("reset", Word::Reset),
    word("revoke", Word::OtherDdl),
    word("rollback", Word::Rollback),
    word("savepoint", Word::Savepoint),
    word("security", Word::OtherDdl),
    word("seed", Word::Seed),
    word("select", Word::Select),
    word("set", Word::Set),
    word("set_config", Word::SetConfig),
    word("start", Word::Start),
    word("table", Word::Rows),
    word("temp", Word::Temporary),
    word("temporary", Word::Temporary),
    word("true", Word::True),
    word("truncate", Word::OtherDdl),
    word("unlisten", Word::Unlisten),
    word("update", Word::Update),
    word("using", Word::Using),
    word("values", Word::Rows),
    word("with", Word::With),
    // Functions and views of the server.
    word("pg_settings", Word::Settings),
    word("pg_notify", Word::PgNotify),
    touches("currval", Part::SequenceValue),
    touches("lastval", Part::SequenceValue),
    touches("setseed", Part::Seed),
    touches("pg_advisory_lock", Part::AdvisoryLock),
    touches("pg_advisory_lock_shared", Part::AdvisoryLock),
    touches("pg_try_advisory_lock", Part::AdvisoryLock),
    touches("pg_try_advisory_lock_shared", Part::AdvisoryLock),
    ends("pg_advisory_unlock", Part::AdvisoryLock),
    ends("pg_advisory_unlock_shared", Part::AdvisoryLock),
    ends("pg_advisory_unlock_all", Part::AdvisoryLock),
    // The names of their implementations are not listed: calling them needs CREATE FUNCTION ...
    // LANGUAGE internal, and so a superuser.
    touches("pg_backup_start", Part::BackupInProgress),
    touches("pg_start_backup", Part::BackupInProgress), // up to 14
    touches("pg_create_physical_replication_slot", Part::TemporarySlot),
    touches("pg_create_logical_replication_slot", Part::TemporarySlot),
    touches("pg_copy_physical_replication_slot", Part::TemporarySlot),
    touches("pg_copy_logical_replication_slot", Part::TemporarySlot),
    ends("pg_drop_replication_slot", Part::TemporarySlot),
    touches("create_replication_slot", Part::TemporarySlot), // the replication protocol's command
    touches("pg_replication_origin_session_setup", Part::ReplicationOrigin),
    touches("pg_prepared_statements", Part::SessionCatalog),
    touches("pg_prepared_statement", Part::SessionCatalog),
    touches("pg_cursors", Part::SessionCatalog),
    touches("pg_cursor", Part::SessionCatalog),
    touches("pg_listening_channels", Part::SessionCatalog),
    // Functions of extensions that come with the server.
    touches("dblink_connect", Part::NamedConnection),
    touches("dblink_connect_u", Part::NamedConnection),
    touches("set_limit", Part::CustomSetting), // pg_trgm
    // Of others that are widely used: no command takes back what they leave.
    touches("hypopg_create_index", Part::CustomSetting), // HypoPG: indexes that only the planner sees
    touches("hypopg_hide_index", Part::CustomSetting),
    touches("set_session_auth", Part::CustomSetting), // set_user, as the next
    touches("set_user", Part::CustomSetting),
    word("connectby", Word::Runs), // tablefunc
    word("crosstab", Word::Runs),
    word("crosstab2", Word::Runs),
    word("crosstab3", Word::Runs),
    word("crosstab4", Word::Runs),
    word("xpath_table", Word::Runs), // xml2
    // Functions of the server that run a query given as text.
    word("cursor_to_xml", Word::Runs),
    word("cursor_to_xmlschema", Word::Runs),
    word("query_to_xml", Word::Runs),
    word("query_to_xmlschema", Word::Runs),
    word("query_to_xml_and_xmlschema", Word::Runs),
    word("ts_rewrite", Word::Runs),
    word("ts_stat", Word::Runs),
    // These run a query for each relation that they get, or that the schema or database has; those
    // for the schema alone (table_to_xmlschema and the like) run none.
    word("table_to_xml", Word::Runs),
    word("table_to_xml_and_xmlschema", Word::Runs),
    word("schema_to_xml", Word::Runs),
    word("schema_to_xml_and_xmlschema", Word::Runs),
    word("database_to_xml", Word::Runs),
    word("database_to_xml_and_xmlschema", Word::Runs),
    // Words that only a command of the replication protocol begins with.
    word("base_backup", Word::Runs),
    word("start_replication", Word::Runs),
];

const PG_TEMP: Keyword = word("pg_temp", Word::PgTemp);

const LENGTH_MAX: usize = 36;
const LETTERS: usize = 26;
const NOTHING: u8 = u8::MAX;

/// For each first letter and length (none is longer than [`LENGTH_MAX`]), the first row; for each row,
/// the next one of the same kind.
static INDEX: ([[u8; LENGTH_MAX + 2]; LETTERS], [u8; KEYWORDS.len()]) = {
    let mut first = [[NOTHING; LENGTH_MAX + 2]; LETTERS];
    let mut next = [NOTHING; KEYWORDS.len()];
    let mut i = 0;
    while i < KEYWORDS.len() {
        let text = KEYWORDS[i].text;
        let letter = (text[0] - b'a') as usize;
        next[i] = first[letter][text.len()];
        first[letter][text.len()] = i as u8;
        i += 1;
    }
    (first, next)
};

static TABLE: [Keyword; KEYWORDS.len()] = KEYWORDS;
static TEMP_SCHEMA: Keyword = PG_TEMP;

/// The row of a word in any case.
#[inline]
pub(super) fn lookup(word: &[u8]) -> Option<&'static Keyword> {
    if may_be_known(word) { find(word) } else { None }
}

/// For each first letter, the lengths of the words that begin with it.
static LENGTHS: [u64; LETTERS] = {
    let mut lengths = [0; LETTERS];
    let mut i = 0;
    while i < KEYWORDS.len() {
        let text = KEYWORDS[i].text;
        lengths[(text[0] - b'a') as usize] |= 1 << text.len();
        i += 1;
    }
    lengths
};

/// Whether there may be a row for a word with this first letter and length: that suffices for most
/// words.
#[inline]
fn may_be_known(word: &[u8]) -> bool {
    let Some(first) = word.first() else { return false };
    let letter = usize::from((first | 0x20).wrapping_sub(b'a'));
    let Some(lengths) = LENGTHS.get(letter) else { return false };
    let has_length = lengths >> word.len().min(LENGTH_MAX + 1) & 1 != 0;
    // (Names of temporary schemas have any length.)
    has_length || (letter == usize::from(b'p' - b'a') && word.get(2) == Some(&b'_'))
}

fn find(word: &[u8]) -> Option<&'static Keyword> {
    let letter = usize::from((word.first()? | 0x20).wrapping_sub(b'a'));
    let mut row = *INDEX.0.get(letter)?.get(word.len().min(LENGTH_MAX + 1))?;
    while row != NOTHING {
        let keyword = &TABLE[usize::from(row)];
        if keyword.text.eq_ignore_ascii_case(word) {
            return Some(keyword);
        }
        row = INDEX.1[usize::from(row)];
    }
    (letter == usize::from(b'p' - b'a') && is_temp_schema(word)).then_some(&TEMP_SCHEMA)
}

/// `pg_temp`, and `pg_temp_3` by which the server itself calls the third backend's schema.
fn is_temp_schema(word: &[u8]) -> bool {
    word.len() >= PG_TEMP.text.len()
        && word[..PG_TEMP.text.len()].eq_ignore_ascii_case(PG_TEMP.text)
        && matches!(word.get(PG_TEMP.text.len()), None | Some(b'_'))
}

/// The texts of all rows.
#[cfg(test)]
pub(super) fn all() -> impl Iterator<Item = &'static [u8]> {
    TABLE.iter().map(|keyword| keyword.text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_word_is_found_in_any_case_and_nothing_else_is() {
        for keyword in &TABLE {
            let found = lookup(keyword.text).unwrap();
            assert_eq!(found.word, keyword.word);
            let upper = keyword.text.to_ascii_uppercase();
            assert!(std::ptr::eq(lookup(&upper).unwrap(), found));
            let longer = [keyword.text, b"q"].concat();
            assert!(lookup(&longer).is_none(), "{:?}", keyword.text);
            assert!(keyword.text.len() <= LENGTH_MAX);
        }
        for other in ["", "abalance", "pgbench_accounts", "\u{e9}", "_set", "1", "pg_temperature"] {
            assert!(lookup(other.as_bytes()).is_none(), "{other}");
        }
        assert_eq!(lookup(b"PG_TEMP_12").unwrap().word, Word::PgTemp);
    }

    #[test]
    fn no_word_stands_twice() {
        for (i, keyword) in TABLE.iter().enumerate() {
            assert!(TABLE[..i].iter().all(|other| other.text != keyword.text));
        }
    }
}
