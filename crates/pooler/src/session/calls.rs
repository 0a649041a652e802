//! Finds parameters, and calls of functions whose arguments matter, in a text.
//!
//! # Limits  for texts that are known to have such a call: it allocates for each token.

use super::scan::ScanOptions;
use super::token::{Lexer, PARAMETER, Sink};

/// The function that sets what it is given the name of.
const SET_CONFIG: &[u8] = b"set_config";

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Kind {
    /// In lower case.
    Word(Box<[u8]>),
    Quoted(Box<[u8]>),
    /// Its content.
    String(Vec<u8>),
    Symbol(u8),
    Semicolon,
}

#[derive(Debug, Clone)]
pub(crate) struct Token {
    pub(crate) kind: Kind,
    pub(crate) start: usize,
}

impl Token {
    pub(crate) fn is_word(&self, words: &[&str]) -> bool {
        matches!(&self.kind, Kind::Word(word) if words.iter().any(|one| one.as_bytes() == &**word))
    }

    pub(crate) fn is_symbol(&self, symbol: u8) -> bool {
        self.kind == Kind::Symbol(symbol)
    }

    /// Whether it is this name, which is in lower case.
    pub(crate) fn is_name(&self, name: &[u8]) -> bool {
        matches!(&self.kind, Kind::Word(word) | Kind::Quoted(word) if **word == *name)
    }
}

#[derive(Debug, Default)]
pub(crate) struct Tokens {
    pub(crate) all: Vec<Token>,
    unsure: bool,
    /// A string is written so that its content does not show.
    pub(crate) disguised: bool,
}

impl Tokens {
    /// From a text that can be read with certainty.
    pub(crate) fn of(text: &[u8], options: ScanOptions) -> Option<Self> {
        if text.contains(&0) || (options.unsafe_encoding && !text.is_ascii()) {
            return None;
        }
        let mut tokens = Self::default();
        let mut lexer = Lexer::new(options.standard_conforming_strings);
        lexer.feed(text, &mut tokens);
        lexer.finish(&mut tokens);
        (!tokens.unsure).then_some(tokens)
    }

    /// From any text, as far as it can be read, with `standard_conforming_strings`.
    pub(crate) fn lenient(text: &[u8]) -> Vec<Token> {
        let mut tokens = Self::default();
        let mut lexer = Lexer::new(true);
        lexer.feed(text, &mut tokens);
        lexer.finish(&mut tokens);
        tokens.all
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
    pub(crate) fn call(&self, at: usize, name: &[u8]) -> Option<usize> {
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
    pub(crate) fn parameter(&self, text: &[u8], at: usize) -> Option<usize> {
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
}
