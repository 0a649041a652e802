//! What a text that is being sent creates, before a census can see it.
//!
//! # Model
//! A text that creates or changes a function, trigger, view ... contains the source. From the
//! moment at which it is sent, its name (of a trigger, rule or policy: the name of its table) may
//! do what the source does, and what the words of the text lead to. If the text fails, that costs
//! questions until the next census.
//!
//! # Limits
//! All pools of the database know this at once, and no census that could not see it replaces it
//! ([`crate::parts::functions::known::KnownFunctions`]). What functions create is not seen before a census, nor is what
//! EXECUTE creates from a text that is no string of a DO block, nor the part of a streaming text
//! after `limits::MADE_BYTES_MAX`.

use std::sync::Arc;

use crate::parts::functions::census::{
    ANY_TEXT, Census, Function, Language, PlanReads, Reach, Reader, Word, effects_of, key, lower,
};
use crate::session::calls::{Kind, Token, Tokens};

/// The name of the created object follows these words.
const NAMED: [&[u8]; 11] = [
    b"aggregate",
    b"domain",
    b"function",
    b"inherit",
    b"inherits",
    b"of",
    b"procedure",
    b"references",
    b"routine",
    b"table",
    b"view",
];
/// Two names follow these words: the second is the new name, or that of a table which gets the
/// triggers of another.
const NAMED_BY_TWO: [[&[u8]; 2]; 2] = [[b"rename", b"to"], [b"attach", b"partition"]];
/// These belong to a table, which ON names.
const OF_A_TABLE: [&[u8]; 3] = [b"policy", b"rule", b"trigger"];
/// Any text may call what is created after these: see [`ANY_TEXT`].
const CALLED_BY_ANY: [[&[u8]; 2]; 9] = [
    [b"alter", b"domain"],
    [b"alter", b"operator"],
    [b"create", b"cast"],
    [b"create", b"domain"],
    [b"create", b"index"],
    [b"create", b"operator"],
    [b"create", b"statistics"],
    [b"create", b"type"],
    [b"unique", b"index"],
];
/// Strings that a block has executed may have strings in turn.
const BLOCKS_WITHIN: u8 = 3;
/// Words that may stand before a name.
const BEFORE_NAMES: [&[u8]; 5] = [b"concurrently", b"exists", b"if", b"not", b"only"];

/// What a text creates.
#[derive(Default)]
struct Made {
    names: Vec<Word>,
    sources: Vec<Box<[u8]>>,
    language: Option<Word>,
    immutable: bool,
    /// Its body is no string (RETURN, BEGIN ATOMIC), or it has none.
    inline: bool,
}

impl Made {
    /// What a text makes by itself, or by a block in it.
    fn read_all(text: &[u8]) -> Self {
        let tokens = Tokens::lenient(text);
        let mut made = Self::read(&tokens);
        if tokens.first().is_some_and(|first| first.is_word(&["do"])) {
            made.read_within(&tokens, BLOCKS_WITHIN);
        }
        made
    }

    /// Adds what the strings of a text make.
    fn read_within(&mut self, tokens: &[Token], depth: u8) {
        for token in tokens {
            let Kind::String(within) = &token.kind else { continue };
            let within = Tokens::lenient(within);
            let mut more = Self::read(&within);
            self.names.append(&mut more.names);
            self.sources.append(&mut more.sources);
            self.language = self.language.take().or(more.language);
            self.immutable |= more.immutable;
            self.inline |= more.inline;
            if depth > 1 {
                self.read_within(&within, depth - 1);
            }
        }
    }

    fn read(tokens: &[Token]) -> Self {
        let mut made = Self::default();
        let mut tokens = tokens.iter().map(|token| &token.kind).peekable();
        let (mut names_next, mut on_names, mut language_next) = (false, false, false);
        let mut previous = Word::default();
        while let Some(token) = tokens.next() {
            let (word, quoted) = match token {
                Kind::String(value) => {
                    match std::mem::take(&mut language_next) {
                        true => made.language = Some(lower(value)),
                        false => made.sources.push(value.as_slice().into()),
                    }
                    continue;
                }
                Kind::Symbol(_) | Kind::Semicolon => continue,
                Kind::Word(word) => (word, false),
                Kind::Quoted(name) => (name, true),
            };
            let small = lower(word);
            let is = |words: &[&[u8]]| !quoted && words.contains(&&*small);
            let by_two = !quoted && NAMED_BY_TWO.contains(&[&*previous, &*small]);
            if !quoted && CALLED_BY_ANY.contains(&[&*previous, &*small]) {
                made.names.push(ANY_TEXT.into());
            }
            previous = if quoted { Word::default() } else { small.clone() };
            if std::mem::take(&mut language_next) {
                made.language = Some(small);
            } else if names_next && !is(&BEFORE_NAMES) {
                names_next = false;
                let mut name = word;
                while tokens.next_if_eq(&&Kind::Symbol(b'.')).is_some() {
                    match tokens.next() {
                        Some(Kind::Word(part) | Kind::Quoted(part)) => name = part,
                        _ => break,
                    }
                }
                made.names.push(key(name));
            } else if is(&NAMED) || by_two {
                names_next = true;
            } else if is(&OF_A_TABLE) {
                on_names = true;
            } else if is(&[b"on"]) && on_names {
                (on_names, names_next) = (false, true);
            } else if is(&[b"language"]) {
                language_next = true;
            } else {
                made.immutable |= is(&[b"immutable"]);
                made.inline |=
                    is(&[b"atomic", b"return", b"select", b"default", b"check", b"using"]);
            }
        }
        made
    }
}

impl Census {
    /// The census, with what a text that is being sent creates; `None` if that adds nothing.
    /// `reported` as for [`Self::take`].
    pub(crate) fn foreseeing(
        self: &Arc<Self>,
        text: &[u8],
        reported: impl Fn(&[u8]) -> bool,
    ) -> Option<Self> {
        let made = Made::read_all(text);
        if made.names.is_empty() {
            return None;
        }
        let language = match made.language.as_deref() {
            Some(b"sql") => Language::Sql,
            Some(b"plpgsql") => Language::PlPgSql,
            Some(b"c" | b"internal") => Language::Compiled,
            _ => Language::Other,
        };
        let mut reach = Reach::default();
        let mut add = |source: Box<[u8]>, language| {
            let function = Function { name: Box::default(), language, immutable: false, source };
            reach.call.absorb(&effects_of(&function, &reported));
        };
        if made.inline {
            add(text.into(), Language::Other);
        }
        for source in made.sources {
            add(source, language);
        }
        for census in std::iter::once(self).chain(&self.drawing) {
            let mut reader = Reader::new(census.clone());
            reader.feed(text);
            let known = reader.reach();
            reach.call.absorb(&known.call);
            reach.write.absorb(&known.write); // of a renamed table, or a partition
        }
        let keeps_plans = self.keeps_plans || language == Language::PlPgSql;
        // What it names may read settings.
        let plans_read = if made.immutable { PlanReads::All } else { self.plans_read };
        let mut news = keeps_plans != self.keeps_plans || plans_read != self.plans_read;
        if reach == Reach::default() && !news {
            return None;
        }
        let mut words_of = self.all_words();
        let mut seen = self.seen.clone();
        for name in made.names {
            if let Some(seen) = &mut seen {
                seen.add(name.clone());
            }
            let mut call = reach.call.clone();
            if *name == *ANY_TEXT {
                call.forget_changes();
            }
            let known = words_of.entry(name).or_default();
            news |= known.call.absorb(&call);
            news |= known.write.absorb(&reach.write);
        }
        news.then(|| Self { keeps_plans, seen, ..Self::with_words(words_of, plans_read) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::effects::Effects;
    use crate::session::part::Part;

    fn foreseen(census: &Arc<Census>, text: &str) -> Option<Arc<Census>> {
        census.foreseeing(text.as_bytes(), |_| false).map(Arc::new)
    }

    fn of(census: &Arc<Census>, text: &str) -> Effects {
        census.of_text(text.as_bytes()).unwrap_or_default()
    }

    const LOCKS: &str = "create or replace function s.\"Locks\"(a int) returns void language plpgsql as \
                         $$ begin perform pg_advisory_lock(a); end $$";

    #[test]
    fn a_function_does_what_its_source_does_from_the_start() {
        let none = Arc::new(Census::default());
        for (text, call, part) in [
            (LOCKS, "select s.\"Locks\"(1)", Part::AdvisoryLock),
            (
                "create function f() returns int as 'select pg_advisory_lock(1); select ''a''' language sql",
                "select f()",
                Part::AdvisoryLock,
            ),
            (
                "create function f() returns int language sql return pg_advisory_lock(1)",
                "select F()",
                Part::AdvisoryLock,
            ),
            (
                "CREATE PROCEDURE f() LANGUAGE 'plpgsql' AS $x$ begin execute 'create ' || 'temp table t'; end $x$",
                "call f()",
                Part::TemporaryObject,
            ),
            ("create view v as select pg_advisory_lock(1)", "select * from v", Part::AdvisoryLock),
            (
                "create table if not exists t (a int default pg_advisory_lock(1))",
                "insert into t values (1)",
                Part::AdvisoryLock,
            ),
            (
                "select 1; /* on */ create function f() returns int language plpgsql as $$begin listen c; end$$",
                "select f()",
                Part::Listen,
            ),
        ] {
            let census = foreseen(&none, text).unwrap_or_else(|| panic!("nothing in {text}"));
            assert!(of(&census, call).pins.contains(part), "{text}");
            assert_eq!(census.of_text(b"select 1 from a"), None, "{text}");
            assert!(foreseen(&census, text).is_none(), "nothing more in {text}");
        }
    }

    #[test]
    fn what_no_report_tells_is_known_from_the_start_too() {
        let text =
            "create function f() returns text language sql as 'select dblink_connect(''a'', '''')'";
        let census = foreseen(&Arc::new(Census::default()), text).expect("a connection of dblink");
        let unreported = census.unreported.as_ref().expect("no report tells of it");
        assert_ne!(of(unreported, "select f()"), Effects::default());
        let census = foreseen(&census, "create view v as select f()").expect("a view of it");
        let unreported = census.unreported.as_ref().expect("no report tells of it");
        assert_ne!(of(unreported, "select * from v"), Effects::default());
    }

    #[test]
    fn what_calls_it_does_the_same() {
        let census = foreseen(&Arc::new(Census::default()), LOCKS).expect("a lock");
        let census = foreseen(
            &census,
            "create trigger t before insert on public.audited for each row execute function locks()",
        );
        let census = census.expect("a trigger");
        assert!(of(&census, "insert into audited values (1)").pins.contains(Part::AdvisoryLock));
        assert_eq!(census.of_text(b"select t from public.other"), None);
    }

    #[test]
    fn another_name_does_the_same() {
        let census = foreseen(&Arc::new(Census::default()), LOCKS).expect("a lock");
        let census = foreseen(
            &census,
            "create trigger t before insert on audited for each row execute function locks()",
        );
        let mut words = census.expect("a trigger").words.clone();
        let audited = words.get_mut(&b"audited"[..]).expect("a table");
        audited.write = std::mem::take(&mut audited.call); // as a census has it
        let census = Arc::new(Census::with_words(words, PlanReads::Own));
        for (text, call) in [
            ("alter function locks(int) rename to \"Holds\"", "select \"Holds\"(1)"),
            ("alter table audited rename to kept", "insert into kept values (1)"),
            (
                "create table part partition of audited for values in (1)",
                "insert into part values (1)",
            ),
            (
                "alter table audited attach partition s.other for values in (2)",
                "insert into other values (1)",
            ),
            ("alter table audited add foreign key (a) references one", "delete from one"),
        ] {
            let then = foreseen(&census, text).unwrap_or_else(|| panic!("nothing in {text}"));
            assert!(of(&then, call).pins.contains(Part::AdvisoryLock), "{text}");
            assert_eq!(census.of_text(call.as_bytes()), None, "before {text}");
            assert_eq!(then.of_text(b"select t from kept, part, other, one"), None, "{text}");
        }
        assert!(foreseen(&census, "alter table audited rename a to b").is_none());
    }

    #[test]
    fn what_no_word_shows_any_text_may_call_from_the_start() {
        let census = foreseen(&Arc::new(Census::default()), LOCKS).expect("a lock");
        for text in [
            "create operator @#@ (leftarg = int, rightarg = int, function = locks)",
            "create cast (a as text) with function locks(a)",
            "create operator class o for type a using btree as function 1 locks(a, a)",
            "alter operator family o using btree add function 1 locks(a, a)",
            "create type r as range (subtype = a, subtype_diff = locks)",
        ] {
            let then = foreseen(&census, text).unwrap_or_else(|| panic!("nothing in {text}"));
            assert!(of(&then, "select 1 @#@ 2").pins.contains(Part::AdvisoryLock), "{text}");
        }
        assert!(foreseen(&census, "create type r as range (subtype = a)").is_none());
    }

    #[test]
    fn what_does_nothing_is_nothing() {
        let none = Arc::new(Census::default());
        for text in [
            "create function f() returns int language sql as 'select 1'",
            "create function f() returns int language c as 'file', 'pg_advisory_lock'",
            "create table t (a int)",
            "create index on t (a)",
            "drop function f()",
            "create function",
            "create function f() returns int as $$",
            "create view v.",
            "'",
            "$a",
        ] {
            assert!(foreseen(&none, text).is_none(), "{text}");
        }
    }
}
