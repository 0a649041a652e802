//! Whether a text reads, writes or changes the schema, by its first words.
//!
//! # Source  `GetCommandLogLevel`, utility.c: `log_statement` tells `ddl` and `mod` apart in this way
//! # Limits  what functions do does not show. A Query of several statements is of each one's kind

use crate::session::calls::{Kind as Content, Token, Tokens};
use crate::session::commands::{after_comments, begins_with_any};

/// What a statement does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// SELECT, VALUES, TABLE, SHOW, FETCH, COPY TO.
    Read,
    /// INSERT, UPDATE, DELETE, MERGE, TRUNCATE, COPY FROM.
    Write,
    /// CREATE, ALTER, DROP, GRANT and the like.
    Ddl,
}

const READS: [&str; 7] = ["select", "values", "table", "show", "fetch", "move", "declare"];
const WRITES: [&str; 5] = ["insert", "update", "delete", "merge", "truncate"];
const CHANGES_SCHEMA: [&str; 11] = [
    "create", "alter", "drop", "comment", "grant", "revoke", "cluster", "refresh", "reassign",
    "import", "security",
];

/// Statements that begin and end transactions.
const TRANSACTIONS: [&[u8]; 8] =
    [b"abort", b"begin", b"commit", b"end", b"release", b"rollback", b"savepoint", b"start"];

/// Whether a text is nothing but statements that begin and end transactions, or is empty.
pub(crate) fn only_controls_transactions(text: &[u8]) -> bool {
    let mut rest = after_comments(text);
    while !rest.is_empty() {
        if !begins_with_any(rest, &TRANSACTIONS) {
            return false;
        }
        let end = memchr::memchr(b';', rest).map_or(rest.len(), |at| at + 1);
        rest = after_comments(&rest[end..]);
    }
    true
}

/// Whether a statement of this text is of this kind.
pub(crate) fn has(text: &[u8], kind: Kind) -> bool {
    let tokens = Tokens::lenient(text);
    let mut statements = tokens.split(|token| token.kind == Content::Semicolon);
    statements.any(|statement| of(statement) == Some(kind))
}

/// The kind of one statement.
fn of(statement: &[Token]) -> Option<Kind> {
    let mut rest = statement;
    loop {
        let begins = rest.iter().position(|token| !token.is_symbol(b'('))?;
        let first = &rest[begins];
        let after = &rest[begins + 1..];
        if first.is_word(&["explain"]) {
            let options = after.iter().take_while(|token| token.is_word(&["analyze", "verbose"]));
            let skipped = match after.first() {
                Some(token) if token.is_symbol(b'(') => within_brackets(after),
                _ => options.count(),
            };
            rest = &after[skipped..];
        } else if first.is_word(&["prepare"]) {
            rest = &after[outside_brackets(after, &["as"])? + 1..];
        } else if first.is_word(&["with"]) {
            return Some(if writes_with(after) { Kind::Write } else { reads(after) });
        } else if first.is_word(&["copy"]) {
            let from = outside_brackets(after, &["from", "to"]).map(|at| &after[at]);
            let writes = from.is_some_and(|word| word.is_word(&["from"]));
            return Some(if writes { Kind::Write } else { Kind::Read });
        } else if first.is_word(&READS) {
            return Some(reads(after));
        } else if first.is_word(&WRITES) {
            return Some(Kind::Write);
        } else {
            return first.is_word(&CHANGES_SCHEMA).then_some(Kind::Ddl);
        }
    }
}

/// Of a query: SELECT INTO creates a table.
fn reads(after: &[Token]) -> Kind {
    match outside_brackets(after, &["into"]) {
        Some(_) => Kind::Ddl,
        None => Kind::Read,
    }
}

/// Whether a statement that begins with WITH writes, in one of its parts: such a part begins in
/// brackets, or after them.
fn writes_with(after: &[Token]) -> bool {
    after.windows(2).any(|pair| {
        (pair[0].is_symbol(b'(') || pair[0].is_symbol(b')')) && pair[1].is_word(&WRITES)
    })
}

/// How many tokens a pair of brackets has with what is in it.
fn within_brackets(tokens: &[Token]) -> usize {
    let end = tokens.iter().position(|token| token.is_symbol(b')'));
    end.map_or(tokens.len(), |end| end + 1)
}

/// Where one of these words stands outside of brackets.
fn outside_brackets(tokens: &[Token], words: &[&str]) -> Option<usize> {
    let mut depth = 0u32;
    tokens.iter().position(|token| {
        match token.kind {
            Content::Symbol(b'(') => depth += 1,
            Content::Symbol(b')') => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth == 0 && token.is_word(words)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [(&str, Kind); 3] =
        [("read", Kind::Read), ("write", Kind::Write), ("ddl", Kind::Ddl)];

    fn kinds(text: &str) -> Vec<&'static str> {
        let all = ALL.iter().filter(|(_, kind)| has(text.as_bytes(), *kind));
        all.map(|(word, _)| *word).collect()
    }

    #[test]
    fn the_first_words_say_what_a_statement_does() {
        for text in [
            "select 1",
            "/* a */ (SELECT 1) union select 2",
            "values (1)",
            "with a as (select 'insert') select * from a for update",
            "explain (analyze, verbose) select 1",
            "copy (insert into t values (1) returning 1) to stdout",
            "prepare p(int) as select $1",
            "declare c cursor for select 1",
        ] {
            assert_eq!(kinds(text), ["read"], "{text}");
        }
        for text in [
            "insert into t select 1",
            "UPDATE t SET a = 1",
            "with a as (delete from t returning 1) select * from a",
            "with a as (select 1) insert into t select * from a",
            "explain analyze delete from t",
            "copy t (a, b) from stdin",
            "prepare p as update t set a = 1",
            "truncate t",
        ] {
            assert_eq!(kinds(text), ["write"], "{text}");
        }
        for text in ["create table t (a int)", "select 1 into t", "grant select on t to a"] {
            assert_eq!(kinds(text), ["ddl"], "{text}");
        }
        for text in ["", "begin", "set a = 1", "vacuum", "execute p", "prepare transaction 'a'"] {
            assert_eq!(kinds(text), [""; 0], "{text}");
        }
        assert_eq!(kinds("select 1; drop table t"), ["read", "ddl"]);
    }

    #[test]
    fn what_ends_a_transaction_is_known_and_nothing_else() {
        for text in ["", ";", "COMMIT", "begin; -- a\n savepoint b;", "rollback to savepoint a"] {
            assert!(only_controls_transactions(text.as_bytes()), "{text}");
        }
        for text in ["select 1", "begin; select 1", "commit; drop table t", "set a = 1"] {
            assert!(!only_controls_transactions(text.as_bytes()), "{text}");
        }
    }
}
