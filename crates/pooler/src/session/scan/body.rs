//! The sources of functions: what a call of one may do to the session.
//!
//! # Model   a source is read like a text, with what PL/pgSQL adds: statements also follow BEGIN,
//!           THEN, ELSE and LOOP, and EXECUTE runs concatenated strings. If a function has an
//!           EXECUTE, the words of all its strings count; those that begin statements (SET, LISTEN
//!           ...) count only at the start of a string, because messages contain them, too.
//! # Limits  [`Findings::dynamic`]: the source does not show what a variable or a parameter passes
//!           to EXECUTE.

use super::{Body, Executed, Finder, Findings, ScanOptions, Scanner, Watch};
use crate::session::scan::keyword::Word;
use crate::session::scan::verb::Kind;
use crate::session::token::Sink;

/// Scans the source of a function: SQL, or PL/pgSQL if `procedural`. Statements also follow the
/// words that begin a block or a branch, and strings count if the function executes concatenated
/// ones.
pub fn scan_body(source: &[u8], procedural: bool) -> Findings {
    let mut scanner = Scanner::new(ScanOptions::default());
    scanner.finder.body = Some(Body::new(source, procedural));
    scanner.feed(source);
    scanner.finish()
}

/// Scans the source of a function in a language that is not read: its words count, wherever they
/// stand, and strings are what it executes.
pub fn scan_foreign(source: &[u8]) -> Findings {
    let mut finder = Finder::new();
    finder.body = Some(Body { watches: true, ..Body::new(source, false) });
    finder.watch = Watch::Everything;
    finder.content(source);
    finder.string_end();
    finder.found
}

impl Body {
    fn new(source: &[u8], procedural: bool) -> Self {
        let execute = b"execute";
        let executes = |at: &[u8]| at.eq_ignore_ascii_case(execute);
        Self {
            procedural,
            watches: procedural && source.windows(execute.len()).any(executes),
            execute: Executed::Nothing,
            at_start: true,
            quotes: false,
            creates: false,
            anywhere: false,
            before: 0,
        }
    }

    /// Whether its strings count.
    pub(super) fn watches(&self) -> bool {
        self.watches
    }

    /// A string begins.
    pub(super) fn begins_string(&mut self) {
        (self.at_start, self.creates, self.before) = (true, false, 0);
    }

    /// A byte of a word has come, in a string.
    #[inline]
    pub(super) fn in_word(&mut self) {
        self.before = 0;
    }

    /// Takes the byte after a word, in a string or in a language that is not read, where quotes of
    /// either kind begin a text.
    pub(super) fn ends_word(&mut self, byte: u8, word: &[u8]) {
        self.at_start |= matches!(byte, b';' | b'\'' | b'"' | b'`' | b'{');
        self.anywhere |= matches!((self.before, byte), (b'-', b'-') | (b'/', b'*'));
        self.before = byte;
        // Perl's q(...), qq|...| and so on. Calls have parentheses, too, and `set(` is not rare.
        if !word.is_empty() {
            self.quotes = !self.procedural && matches!(word, b"q" | b"qq");
        }
        if self.quotes && !byte.is_ascii_whitespace() {
            self.quotes = false;
            self.at_start |= !matches!(byte, b')' | b']' | b'}' | b',' | b'=' | b':' | b'.');
        }
    }

    /// Takes the next token. True if the token shows that the executed text is not in the source.
    fn execute(&mut self, kind: Kind, text: &[u8]) -> bool {
        let next = match (self.execute, kind) {
            (Executed::Nothing, _) | (Executed::Text | Executed::FormatText, Kind::String) => {
                Executed::Nothing
            }
            (Executed::Text, Kind::Word) if text.eq_ignore_ascii_case(b"format") => {
                Executed::Format
            }
            (Executed::Format, Kind::Symbol(b'(')) => Executed::FormatText,
            _ => {
                self.execute = Executed::Nothing;
                return true;
            }
        };
        self.execute = next;
        false
    }
}

impl Finder {
    /// A token of a function's source. `None` if it begins a block or a branch, and no statement; or
    /// what it counts as.
    #[cold]
    pub(super) fn of_body(
        &mut self,
        word: Word,
        kind: Kind,
        text: &[u8],
        start: usize,
    ) -> Option<Word> {
        let body = self.body.as_mut()?;
        if body.procedural && kind == Kind::Word && self.parentheses == 0 {
            let begins = [&b"then"[..], b"else", b"loop"];
            let begins = begins.iter().any(|begins| text.eq_ignore_ascii_case(begins));
            if begins || matches!(word, Word::Begin | Word::Declare) {
                self.end_statement(start);
                return None;
            }
        }
        self.found.dynamic |= body.execute(kind, text);
        if !body.procedural {
            return Some(word);
        }
        let creates_trigger = self.started && self.first == Word::Create;
        if word == Word::Execute && !creates_trigger {
            body.execute = Executed::Text;
            return Some(Word::None); // not SQL's
        }
        // These begin statements of the language itself, or cannot be there.
        let ours = matches!(
            word,
            Word::Abort
                | Word::Close
                | Word::Commit
                | Word::End
                | Word::Release
                | Word::Rollback
                | Word::Savepoint
                | Word::Start
        );
        Some(if ours && !self.started { Word::None } else { word })
    }

    /// Whether a word of a string counts, in a function that executes concatenated strings. The
    /// first words of statements count only at the start of a string, because messages contain
    /// them, too.
    pub(super) fn is_executed(&mut self, word: Word) -> bool {
        let Some(body) = &mut self.body else { return true };
        body.anywhere |= word == Word::Do;
        let first = std::mem::take(&mut body.at_start) || body.anywhere;
        let creates = std::mem::replace(
            &mut body.creates,
            matches!(word, Word::Create | Word::Replace | Word::Global | Word::Local | Word::Into),
        );
        match word {
            Word::Set
            | Word::Reset
            | Word::Listen
            | Word::Notify
            | Word::Prepare
            | Word::Deallocate
            | Word::Load => first,
            Word::Temporary => first || creates,
            Word::Execute => {
                // A language that is not read calls it in this form; in SQL it is a statement.
                self.found.dynamic = true;
                false
            }
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::part::{Part, PartSet};

    fn body(source: &str) -> Findings {
        scan_body(source.as_bytes(), true)
    }

    #[test]
    fn what_does_nothing_to_the_session_is_nothing() {
        for source in [
            "BEGIN UPDATE t SET a = 1 WHERE b = 2; RETURN NEW; END",
            "DECLARE a int; BEGIN a := 1; IF a THEN RAISE NOTICE 'set x'; END IF; END;",
            "BEGIN INSERT INTO t VALUES (1) ON CONFLICT (a) DO UPDATE SET a = 2; END",
            "BEGIN EXECUTE 'UPDATE t SET a = 1'; END",
            "BEGIN EXECUTE format('INSERT INTO %I VALUES ($1.*)', n) USING NEW; RETURN NULL; END",
            "BEGIN EXECUTE 'select 1'; RAISE 'could not set this, reset that, listen'; END",
            "begin loop fetch c into x; exit when not found; end loop; close c; end",
            "BEGIN CASE x WHEN 1 THEN y := 2; ELSE y := 3; END CASE; RETURN y; END",
            "BEGIN COMMIT; ROLLBACK; END",
        ] {
            let found = body(source);
            let parts = found.parts(|_| false).minus(PartSet::of(&[Part::HeldCursor]));
            assert!(parts.is_empty() && !found.unsure && !found.dynamic, "{source}: {found:?}");
        }
    }

    #[test]
    fn statements_follow_the_words_of_blocks() {
        for (source, part) in [
            ("BEGIN SET work_mem = 1; END", Part::Setting),
            ("DECLARE a int; BEGIN IF a THEN SET ROLE x; END IF; END", Part::Role),
            ("BEGIN FOR i IN 1..2 LOOP RESET my.x; END LOOP; END", Part::CustomSetting),
            ("BEGIN PERFORM set_config('my.x', v, false); END", Part::CustomSetting),
            ("BEGIN PERFORM pg_advisory_lock(1); END", Part::AdvisoryLock),
            ("BEGIN CREATE TEMP TABLE t (a int); END", Part::TemporaryObject),
            ("BEGIN EXECUTE 'CREATE TEMP TABLE ' || n; END", Part::TemporaryObject),
            ("BEGIN q := 'create ' || 'temp table x ()'; EXECUTE q; END", Part::TemporaryObject),
            ("BEGIN EXECUTE 'LISTEN ' || n; END", Part::Listen),
            ("BEGIN EXECUTE format($f$set role %I$f$, n); END", Part::Role),
            ("BEGIN LISTEN x; END", Part::Listen),
            ("BEGIN PREPARE p AS SELECT 1; END", Part::SqlStatement),
            ("BEGIN EXECUTE 'prepare p as select 1'; END", Part::SqlStatement),
            ("BEGIN EXECUTE E'-- c\n set work_mem = 1'; END", Part::Setting),
            ("BEGIN EXECUTE '/* tenant */ set my.cm = 1'; END", Part::CustomSetting),
            ("BEGIN EXECUTE 'create /* x */ temp table t ()'; END", Part::TemporaryObject),
            ("BEGIN EXECUTE $q$do $x$ begin listen x; end $x$ $q$; END", Part::Listen),
        ] {
            let found = body(source);
            assert!(found.parts(|_| false).contains(part) && !found.unsure, "{source}: {found:?}");
        }
        let named = body("BEGIN PERFORM set_config('My.X', v, false); END");
        assert_eq!(named.configured[0], *"my.x");
        assert!(!named.flags.contains(Part::Setting));
    }

    #[test]
    fn what_is_executed_may_not_stand_there() {
        for source in [
            "BEGIN EXECUTE q; END",
            "BEGIN RETURN QUERY EXECUTE $1; END",
            "BEGIN FOR r IN EXECUTE q LOOP END LOOP; END",
            "BEGIN EXECUTE format(q, 1); END",
            "BEGIN EXECUTE E'\\x53ET x = 1'; END",
        ] {
            assert!(body(source).dynamic, "{source}");
        }
        assert!(!body("BEGIN EXECUTE FORMAT ( 'select 1' ); END").dynamic);
        assert!(
            !body("BEGIN CREATE TRIGGER t AFTER INSERT ON a EXECUTE FUNCTION f(); END").dynamic
        );
    }

    #[test]
    fn of_other_languages_words_count() {
        let python = scan_foreign(b"plpy.execute(\"SET work_mem = '1MB'\")");
        assert!(python.dynamic && python.flags.contains(Part::Setting));
        for perl in [
            "q(set my.x = 1)",
            "qq |RESET my.x|",
            "q{ set role a}",
            "q[set a = 1]",
            "q<set a to 1>",
        ] {
            let found = scan_foreign(format!("spi_exec_query({perl});").as_bytes());
            assert!(found.flags.contains(Part::Setting), "{perl}");
        }
        for plain in ["f(q, set(x))", "q = set(x)", "len(set(x))", "return [set(x)]"] {
            assert!(scan_foreign(plain.as_bytes()).flags.is_empty(), "{plain}");
        }
        let plain = scan_foreign(b"a = set(x)\nreturn a.listen()");
        assert!(plain.flags.is_empty() && !plain.dynamic && !plain.unsure);
        let sql = scan_body(b"SELECT set_config('a.b', $1, false); SET x = 1", false);
        assert!(sql.flags.contains(Part::CustomSetting) && sql.count() == 2);
    }
}
