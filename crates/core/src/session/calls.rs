//! Finds calls of functions in a text that can be replaced, or whose arguments can.
//!
//! # Model   the text's tokens, all at once, and for each parenthesis that is open whether it has a
//!           SELECT's list, a FROM's, or neither. A call is an item of such a list by itself, and
//!           what follows it shows whether it already has a name there; without one, its
//!           replacement must get the function's name.
//! # Invariants  a call is replaced only if the result certainly means the same, and only if that
//!           holds for all calls of the text.
//! # Limits  for texts that are known to have such a call: it allocates for each token.

pub(crate) mod sequences;

use std::ops::Range;

use super::scan::ScanOptions;
use super::token::{Lexer, PARAMETER, Sink};

/// The function that gives what a session listens on.
pub(crate) const CHANNELS: &[u8] = b"pg_listening_channels";

/// The function that sets what it is given the name of.
const SET_CONFIG: &[u8] = b"set_config";

/// The longest call, with little white space between its words.
const CALL_BYTES_MAX: usize = 64;

/// A call that can be replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Call {
    /// From its name, or the schema's, to its closing parenthesis.
    pub(crate) range: Range<usize>,
    /// Its column, or table, is called by the function's name.
    pub(crate) needs_name: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Kind {
    /// In lower case.
    Word(Box<[u8]>),
    Quoted(Box<[u8]>),
    /// Its content.
    String(Vec<u8>),
    Symbol(u8),
    Semicolon,
}

#[derive(Debug, Clone)]
struct Token {
    kind: Kind,
    start: usize,
}

impl Token {
    fn is_word(&self, words: &[&str]) -> bool {
        matches!(&self.kind, Kind::Word(word) if words.iter().any(|one| one.as_bytes() == &**word))
    }

    fn is_symbol(&self, symbol: u8) -> bool {
        self.kind == Kind::Symbol(symbol)
    }

    /// Whether it is this name, which is in lower case.
    fn is_name(&self, name: &[u8]) -> bool {
        matches!(&self.kind, Kind::Word(word) | Kind::Quoted(word) if **word == *name)
    }
}

#[derive(Debug, Default)]
struct Tokens {
    all: Vec<Token>,
    unsure: bool,
    /// A string is written so that its content does not show.
    disguised: bool,
}

impl Tokens {
    /// From a text that can be read with certainty.
    fn of(text: &[u8], options: ScanOptions) -> Option<Self> {
        if text.contains(&0) || (options.unsafe_encoding && !text.is_ascii()) {
            return None;
        }
        let mut tokens = Self::default();
        let mut lexer = Lexer::new(options.standard_conforming_strings);
        lexer.feed(text, &mut tokens);
        lexer.finish(&mut tokens);
        (!tokens.unsure).then_some(tokens)
    }

    fn push(&mut self, kind: Kind, start: usize) {
        self.all.push(Token { kind, start });
    }

    /// The token `by` places after the one at `at`.
    fn ahead(&self, at: usize, by: usize) -> Option<&Token> {
        self.all.get(at.checked_sub(by)?)
    }

    /// Where a call of a function of the server's begins, whose name is at `at`. `None` if it is no
    /// such call.
    fn call(&self, at: usize, name: &[u8]) -> Option<usize> {
        let called = self.all[at].is_name(name) && self.all.get(at + 1)?.is_symbol(b'(');
        if !called {
            return None;
        }
        if !self.ahead(at, 1).is_some_and(|token| token.is_symbol(b'.')) {
            return Some(at);
        }
        let schema = self.ahead(at, 2).is_some_and(|token| token.is_name(b"pg_catalog"));
        let whole = !self.ahead(at, 3).is_some_and(|token| token.is_symbol(b'.'));
        (schema && whole).then(|| at - 2)
    }
}

impl Sink for Tokens {
    fn word(&mut self, text: &[u8], start: usize) {
        self.push(Kind::Word(text.to_ascii_lowercase().into()), start);
    }

    fn quoted(&mut self, text: &[u8], start: usize) {
        self.push(Kind::Quoted(text.into()), start);
    }

    fn string(&mut self, start: usize, continued: bool) {
        self.disguised |= continued;
        if !continued {
            self.push(Kind::String(Vec::new()), start);
        }
    }

    fn content(&mut self, piece: &[u8]) {
        if let Some(Token { kind: Kind::String(content), .. }) = self.all.last_mut() {
            content.extend_from_slice(piece);
        }
    }

    fn escape(&mut self) {
        self.disguised = true;
    }

    fn string_end(&mut self) {}

    fn symbol(&mut self, byte: u8, start: usize) {
        self.push(Kind::Symbol(byte), start);
    }

    fn semicolon(&mut self, token_end: usize) {
        self.push(Kind::Semicolon, token_end);
    }

    fn unsure(&mut self) {
        self.unsure = true;
    }
}

/// Which part of a SELECT is being read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Clause {
    /// Outside of a SELECT.
    No,
    List,
    From,
    /// After these.
    Other,
}

/// Words that end an item of a SELECT's list that has no name.
const END_LIST: [&str; 14] = [
    "except",
    "fetch",
    "for",
    "from",
    "group",
    "having",
    "intersect",
    "into",
    "limit",
    "offset",
    "order",
    "union",
    "where",
    "window",
];
/// The same of FROM.
const END_FROM: [&str; 20] = [
    "cross",
    "except",
    "fetch",
    "for",
    "full",
    "group",
    "having",
    "inner",
    "intersect",
    "join",
    "left",
    "limit",
    "natural",
    "offset",
    "on",
    "order",
    "right",
    "union",
    "using",
    "where",
];
/// Words that make another expression, or another function scan, of what precedes them.
const GO_ON: [&str; 21] = [
    "and",
    "at",
    "between",
    "collate",
    "filter",
    "ilike",
    "in",
    "is",
    "isnull",
    "like",
    "not",
    "notnull",
    "operator",
    "or",
    "over",
    "overlaps",
    "similar",
    "tablesample",
    "window",
    "with",
    "within",
];

impl Clause {
    /// What follows a word within the same parentheses.
    fn after(self, token: &Token, previous: Option<&Token>) -> Self {
        const OTHERS: [&str; 9] =
            ["fetch", "for", "group", "having", "limit", "offset", "order", "where", "window"];
        if token.is_word(&["select"]) {
            return Self::List;
        }
        if token.is_word(&["union", "intersect", "except"]) {
            return Self::No;
        }
        match self {
            Self::List | Self::From if token.is_word(&OTHERS) => Self::Other,
            Self::List if token.is_word(&["from"]) => {
                let compares = previous.is_some_and(|token| token.is_word(&["distinct"]));
                if compares { Self::List } else { Self::From }
            }
            _ => self,
        }
    }
}

/// Whether a call that is an item of a list needs a name there: what follows it decides. `None` if
/// that is not certain.
fn needs_name(clause: Clause, next: Option<&Token>) -> Option<bool> {
    let Some(next) = next else { return Some(true) };
    let ends = if clause == Clause::List { &END_LIST[..] } else { &END_FROM[..] };
    match &next.kind {
        Kind::Semicolon | Kind::Symbol(b')' | b',') => Some(true),
        Kind::Symbol(symbol) => {
            // An operator's result has no name; a cast keeps that of the call.
            (clause == Clause::List && b"+-*/<>=~!@#%^&|?".contains(symbol)).then_some(false)
        }
        Kind::Word(_) if next.is_word(ends) => Some(true),
        Kind::Word(_) if next.is_word(&GO_ON) => None,
        Kind::Word(_) | Kind::Quoted(_) => Some(false),
        Kind::String(_) => None,
    }
}

/// The calls of `pg_listening_channels()` in a text. `None` if one of them is not certain.
pub(crate) fn of_channels(text: &[u8], options: ScanOptions) -> Option<Vec<Call>> {
    let tokens = Tokens::of(text, options)?;
    let mut calls = Vec::new();
    let mut clauses = vec![Clause::No];
    let mut reads = false;
    for (at, token) in tokens.all.iter().enumerate() {
        let previous = tokens.ahead(at, 1);
        if previous.is_none_or(|token| token.kind == Kind::Semicolon) {
            clauses = vec![Clause::No];
            reads = token.is_word(&["select", "with"]) || token.is_symbol(b'(');
        }
        let clause = clauses.last_mut()?;
        *clause = clause.after(token, previous);
        let clause = *clause;
        match token.kind {
            Kind::Symbol(b'(' | b'[') => clauses.push(Clause::No),
            Kind::Symbol(b')' | b']') => drop(clauses.pop()),
            _ => {}
        }
        if !token.is_name(CHANNELS) || !tokens.all.get(at + 1).is_some_and(|t| t.is_symbol(b'(')) {
            continue;
        }
        let start = tokens.call(at, CHANNELS).filter(|_| reads)?;
        let end = tokens.all.get(at + 2).filter(|token| token.is_symbol(b')'))?.start + 1;
        let ahead = tokens.ahead(start, 1)?;
        let begins_item = match clause {
            Clause::List => {
                let begins = ["select"];
                let second = tokens.ahead(start, 2).is_some_and(|token| token.is_word(&begins));
                ahead.is_word(&begins)
                    || ahead.is_symbol(b',')
                    || (second && ahead.is_word(&["all", "distinct"]))
            }
            Clause::From => ahead.is_word(&["from", "join", "lateral"]) || ahead.is_symbol(b','),
            Clause::No | Clause::Other => false,
        };
        let needs_name = needs_name(clause, tokens.all.get(at + 3)).filter(|_| begins_item)?;
        let range = tokens.all[start].start..end;
        if range.len() > CALL_BYTES_MAX || !text[range.clone()].is_ascii() {
            return None; // a comment within it
        }
        calls.push(Call { range, needs_name });
    }
    Some(calls)
}

/// How many parameters a statement has beyond the declared ones, if the server analyses it at its
/// Parse and so searches it for them (`parse_variable_parameters`, parse_param.c). `None` if that
/// is not certain.
pub(crate) fn parameters(text: &[u8], options: ScanOptions) -> Option<usize> {
    const ANALYSED: [&str; 6] = ["delete", "insert", "select", "update", "values", "with"];
    let tokens = Tokens::of(text, options)?;
    if !tokens.all.first()?.is_word(&ANALYSED) {
        return None;
    }
    let numbers = (0..tokens.all.len()).filter_map(|at| tokens.parameter(text, at));
    Some(numbers.map(|number| number + 1).max().unwrap_or(0))
}

/// A setting to which set_config() gives a parameter.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Given {
    /// Which one.
    pub(crate) setting: Setting,
    /// The parameter's place, from 0.
    pub(crate) value: usize,
}

/// How a setting is named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Setting {
    /// In lower case.
    Named(Box<[u8]>),
    /// By a parameter, whose place this is, from 0.
    Parameter(usize),
}

impl Tokens {
    /// The number of the parameter at `at`, less one.
    fn parameter(&self, text: &[u8], at: usize) -> Option<usize> {
        let Token { kind: Kind::Symbol(PARAMETER), start } = self.all.get(at)? else { return None };
        let digits = text.get(start + 1..)?;
        let length = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
        let number: u16 = std::str::from_utf8(&digits[..length]).ok()?.parse().ok()?;
        usize::from(number).checked_sub(1)
    }

    /// What stands after the argument at `at`, of one token and, perhaps, a cast to text, if that is a
    /// comma.
    fn after_argument(&self, at: usize) -> Option<usize> {
        let mut next = at + 1;
        let cast = self.all.get(next)?.is_symbol(b':') && self.all.get(next + 1)?.is_symbol(b':');
        if cast {
            self.all.get(next + 2).filter(|token| token.is_word(&["text", "varchar"]))?;
            next += 3;
        }
        self.all.get(next)?.is_symbol(b',').then_some(next + 1)
    }
}

/// The parameters that a text passes to set_config() as values and uses nowhere else.
pub(crate) fn of_set_config(text: &[u8], options: ScanOptions) -> Vec<Given> {
    let Some(tokens) = Tokens::of(text, options).filter(|tokens| !tokens.disguised) else {
        return Vec::new();
    };
    let parameters: Vec<usize> =
        (0..tokens.all.len()).filter_map(|at| tokens.parameter(text, at)).collect();
    let given = |at: usize| {
        tokens.call(at, SET_CONFIG)?;
        let name = at + 2;
        let setting = match (&tokens.all.get(name)?.kind, tokens.parameter(text, name)) {
            (Kind::String(name), _) => Setting::Named(name.to_ascii_lowercase().into()),
            (_, number) => Setting::Parameter(number?),
        };
        let at = tokens.after_argument(name)?;
        let value = tokens.parameter(text, at)?;
        tokens.after_argument(at)?;
        let alone = parameters.iter().filter(|number| **number == value).count() == 1;
        alone.then_some(Given { setting, value })
    };
    (0..tokens.all.len()).filter_map(given).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_as_many_as_the_greatest_number() {
        for (text, expected) in [
            ("select 1", Some(0)),
            ("select $2::int, '$3', $1 /* $4 */", Some(2)),
            ("with a as (select $1) insert into t select $12", Some(12)),
            ("explain select $1", None),
            ("create table t (a int)", None),
            ("rollback", None),
            ("", None),
        ] {
            assert_eq!(parameters(text.as_bytes(), ScanOptions::default()), expected, "{text}");
        }
    }

    #[test]
    fn values_that_are_parameters_are_found() {
        let given = |text: &str| {
            let all = of_set_config(text.as_bytes(), ScanOptions::default());
            let one = |given: &Given| match &given.setting {
                Setting::Named(name) => {
                    format!("{}={}", String::from_utf8_lossy(name), given.value)
                }
                Setting::Parameter(name) => format!("#{name}={}", given.value),
            };
            all.iter().map(one).collect::<Vec<_>>().join(" ")
        };
        for (text, expected) in [
            ("select set_config('My.X', $1, false)", "my.x=0"),
            ("SELECT pg_catalog.Set_Config ( 'a'::text , $12::TEXT, $1 )", "a=11"),
            ("select set_config($1,$2,$3), set_config($4, $5, false)", "#0=1 #3=4"),
            ("select set_config('a', $1, true) from t where u = $2", "a=0"),
            ("select set_config('a', coalesce($1, 'b'), true)", ""),
            ("select set_config('a', $1 || 'b', true)", ""),
            ("select set_config('a', $1::int::text, true)", ""),
            ("select set_config('a', $1, true), $1 is null", ""),
            ("select set_config('a' 'b', $1, true)", ""),
            ("select set_config(E'\\141', $1, true)", ""),
            ("select own.set_config('a', $1, true)", ""),
            ("select set_config('a', '$1', true)", ""),
            ("select set_config('a', $0, true)", ""),
            ("select set_config('a', $99999, true)", ""),
            ("select set_config('a', $1, true), 'open", ""),
        ] {
            assert_eq!(given(text), expected, "{text}");
        }
    }

    /// The text with `X` in place of each call, `X N` where it needs a name.
    fn written(text: &str) -> String {
        let Some(calls) = of_channels(text.as_bytes(), ScanOptions::default()) else {
            return "-".to_owned();
        };
        let (mut out, mut from) = (String::new(), 0);
        for call in calls {
            out += &text[from..call.range.start];
            out += if call.needs_name { "X N" } else { "X" };
            from = call.range.end;
        }
        out + &text[from..]
    }

    #[test]
    fn calls_that_are_items_of_lists_are_certain() {
        for (text, expected) in [
            ("select pg_listening_channels()", "select X N"),
            ("SELECT PG_Listening_Channels ( ) ORDER BY 1;", "SELECT X N ORDER BY 1;"),
            ("select pg_catalog.pg_listening_channels() as c", "select X as c"),
            ("select distinct \"pg_listening_channels\"() c", "select distinct X c"),
            ("select 1, pg_listening_channels(), 2", "select 1, X N, 2"),
            ("select pg_listening_channels() || 'x'", "select X || 'x'"),
            ("select * from pg_listening_channels()", "select * from X N"),
            ("select c from pg_listening_channels() c", "select c from X c"),
            ("select c from pg_listening_channels() as t(c)", "select c from X as t(c)"),
            (
                "select * from t, pg_listening_channels() where pg_listening_channels = 'a'",
                "select * from t, X N where pg_listening_channels = 'a'",
            ),
            (
                "select 'a' in (select pg_listening_channels()), 1 is distinct from 2",
                "select 'a' in (select X N), 1 is distinct from 2",
            ),
            (
                "with a as (select pg_listening_channels()) select f(1, 2), count(*) from a left join pg_listening_channels() b on true",
                "with a as (select X N) select f(1, 2), count(*) from a left join X b on true",
            ),
            (
                "select array(select pg_listening_channels() union select 'a')",
                "select array(select X N union select 'a')",
            ),
            ("(select pg_listening_channels()) limit 1", "(select X N) limit 1"),
            ("begin; select pg_listening_channels(); commit", "begin; select X N; commit"),
            (
                "select pg_listening_channels from pg_listening_channels",
                "select pg_listening_channels from pg_listening_channels",
            ),
            (
                "select 'pg_listening_channels()' /* pg_listening_channels() */",
                "select 'pg_listening_channels()' /* pg_listening_channels() */",
            ),
        ] {
            assert_eq!(written(text), expected, "{text}");
        }
    }

    #[test]
    fn of_others_nothing_is_written() {
        for text in [
            "select (pg_listening_channels())",
            "select pg_listening_channels()::text",
            "select upper(pg_listening_channels())",
            "select f(1, pg_listening_channels())",
            "select array[1, pg_listening_channels()]",
            "select 'x' || pg_listening_channels()",
            "select pg_listening_channels() collate \"C\"",
            "select pg_listening_channels() order by pg_listening_channels()",
            "select * from pg_listening_channels() with ordinality",
            "select * from rows from (pg_listening_channels(), f())",
            "select own.pg_listening_channels()",
            "select x.pg_catalog.pg_listening_channels()",
            "select pg_listening_channels(1)",
            "explain select pg_listening_channels()",
            "create view v as select pg_listening_channels()",
            "prepare p as select pg_listening_channels()",
            "insert into t select pg_listening_channels()",
            "select pg_listening_channels(), 'open",
        ] {
            assert_eq!(written(text), "-", "{text}");
        }
    }
}
