//! Tokens to statements: recursive descent over the subset in [`sql`](super).

use std::time::Duration;

use super::lexer::{Kind, Token, tokens};
use super::{Count, Discard, Hidden, Parsed, Scalar, Select, Statement, Type};
use crate::model::error::PgError;

/// The statements of a text, in order; none where it holds only blanks and semicolons.
///
/// Nothing is executed when any part is wrong, as on the server, which parses the whole first.
///
/// # Errors
/// 42601 with the server's own words where it is not in the subset.
pub fn parse(text: &str, conforming_strings: bool) -> Result<Vec<Parsed>, PgError> {
    if let Some(question) = super::question::parse(text) {
        return question;
    }
    let (tokens, escapes) = tokens(text, conforming_strings)?;
    let mut parsed = Vec::new();
    let mut behind = 0;
    for part in tokens.split(|token| token.kind == Kind::Punct(";")) {
        behind += part.len() + 1;
        if part.is_empty() {
            continue;
        }
        let ends_with_mark = behind <= tokens.len();
        let mut parser = Parser { tokens: part, at: 0, params: Vec::new(), ends_with_mark };
        let mut statement = parser.statement()?;
        if let Statement::Prepare { text: source, .. } = &mut statement {
            text.clone_into(source);
        }
        if let Some(token) = parser.peek() {
            return Err(near(token));
        }
        let params = parser.params;
        parsed.push(Parsed { statement, params, nonstandard_escape: escapes });
    }
    Ok(parsed)
}

fn near(token: &Token) -> PgError {
    PgError::error("42601", format!("syntax error at or near \"{}\"", token.text))
}

struct Parser<'a> {
    tokens: &'a [Token],
    at: usize,
    params: Vec<Option<Type>>,
    /// A semicolon follows, which an error at the end then names.
    ends_with_mark: bool,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<&'a Token> {
        self.tokens.get(self.at)
    }

    fn fail<T>(&self) -> Result<T, PgError> {
        Err(self.peek().map_or_else(
            || match self.ends_with_mark {
                true => PgError::error("42601", "syntax error at or near \";\""),
                false => PgError::error("42601", "syntax error at end of input"),
            },
            near,
        ))
    }

    fn is(&self, word: &str) -> bool {
        matches!(self.peek(), Some(Token { kind: Kind::Word(found), .. }) if found == word)
    }

    fn accept(&mut self, word: &str) -> bool {
        let found = self.is(word);
        self.at += usize::from(found);
        found
    }

    fn accept_mark(&mut self, mark: &'static str) -> bool {
        let found = self.peek().is_some_and(|token| token.kind == Kind::Punct(mark));
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, word: &str) -> Result<(), PgError> {
        if self.accept(word) { Ok(()) } else { self.fail() }
    }

    fn expect_mark(&mut self, mark: &'static str) -> Result<(), PgError> {
        if self.accept_mark(mark) { Ok(()) } else { self.fail() }
    }

    fn name(&mut self) -> Result<String, PgError> {
        match self.peek() {
            Some(Token { kind: Kind::Word(name) | Kind::Quoted(name), .. }) => {
                self.at += 1;
                Ok(name.clone())
            }
            _ => self.fail(),
        }
    }

    fn dotted_name(&mut self) -> Result<String, PgError> {
        let mut name = self.name()?;
        while self.accept_mark(".") {
            name = format!("{name}.{}", self.name()?);
        }
        Ok(name)
    }

    fn text(&mut self) -> Result<String, PgError> {
        match self.peek() {
            Some(Token { kind: Kind::Text(text), .. }) => {
                self.at += 1;
                Ok(text.clone())
            }
            _ => self.fail(),
        }
    }

    fn number(&mut self) -> Result<String, PgError> {
        let sign = if self.accept_mark("-") { "-" } else { "" };
        match self.peek() {
            Some(Token { kind: Kind::Number(digits), .. }) => {
                self.at += 1;
                Ok(format!("{sign}{digits}"))
            }
            _ => self.fail(),
        }
    }

    fn integer<N: std::str::FromStr>(&mut self) -> Result<N, PgError> {
        let digits = self.number()?;
        digits.parse().map_err(|_| PgError::error("22003", "integer out of range"))
    }

    fn param(&mut self, number: usize, kind: Option<Type>) {
        if self.params.len() < number {
            self.params.resize(number, None);
        }
        if kind.is_some() {
            self.params[number - 1] = kind;
        }
    }

    fn type_name(&mut self) -> Result<Type, PgError> {
        match self.name()?.as_str() {
            "int4" | "int" | "integer" => Ok(Type::Int4),
            "int8" | "bigint" => Ok(Type::Int8),
            "text" => Ok(Type::Text),
            other => Err(PgError::error("42704", format!("type \"{other}\" does not exist"))),
        }
    }

    fn statement(&mut self) -> Result<Statement, PgError> {
        let Some(Token { kind: Kind::Word(word), .. }) = self.peek() else { return self.fail() };
        self.at += 1;
        match word.as_str() {
            "begin" => self.begin("BEGIN"),
            "start" => {
                self.expect("transaction")?;
                self.begin("START TRANSACTION")
            }
            "commit" | "end" => Ok(Statement::Commit),
            "rollback" if self.accept("to") => {
                self.accept("savepoint");
                Ok(Statement::RollbackTo(self.name()?))
            }
            "rollback" | "abort" => Ok(Statement::Rollback),
            "savepoint" => Ok(Statement::Savepoint(self.name()?)),
            "release" => {
                self.accept("savepoint");
                Ok(Statement::Release(self.name()?))
            }
            "set" => self.set(),
            "reset" if self.accept("all") => Ok(Statement::ResetAll),
            "reset" => Ok(Statement::Set {
                local: false,
                name: self.setting_name()?,
                value: None,
                reset: true,
            }),
            "show" => Ok(Statement::Show(self.setting_name()?)),
            "discard" => self.discard(),
            "prepare" => self.prepare(),
            "execute" => self.execute(),
            "deallocate" => {
                self.accept("prepare");
                let all = self.accept("all");
                Ok(Statement::Deallocate(if all { None } else { Some(self.name()?) }))
            }
            "listen" => Ok(Statement::Listen(self.name()?)),
            "unlisten" if self.accept_mark("*") => Ok(Statement::Unlisten(None)),
            "unlisten" => Ok(Statement::Unlisten(Some(self.name()?))),
            "notify" => {
                let channel = self.name()?;
                let payload = if self.accept_mark(",") { self.text()? } else { String::new() };
                Ok(Statement::Notify(channel, payload))
            }
            "create" => self.create_temp(),
            "drop" => {
                self.expect("table")?;
                Ok(Statement::Drop(self.name()?))
            }
            "declare" => self.declare(),
            "fetch" => {
                let count = self.integer()?;
                self.expect("from")?;
                Ok(Statement::Fetch(count, self.name()?))
            }
            "close" if self.accept("all") => Ok(Statement::Close(None)),
            "close" => Ok(Statement::Close(Some(self.name()?))),
            "copy" => self.copy(),
            "insert" => self.insert(),
            "update" => self.update(),
            "delete" => {
                self.expect("from")?;
                Ok(Statement::Delete(self.name()?))
            }
            "select" => Ok(Statement::Select(self.select()?)),
            _ => {
                self.at -= 1;
                self.fail()
            }
        }
    }

    fn update(&mut self) -> Result<Statement, PgError> {
        let table = self.name()?;
        for word in ["set", "v"] {
            self.expect(word)?;
        }
        self.expect_mark("=")?;
        self.expect("v")?;
        self.expect_mark("+")?;
        Ok(Statement::Update(table, self.integer()?))
    }

    fn begin(&mut self, tag: &'static str) -> Result<Statement, PgError> {
        self.accept("transaction");
        if !self.accept("read") {
            return Ok(Statement::Begin(None, tag));
        }
        let only = self.accept("only");
        if !only {
            self.expect("write")?;
        }
        Ok(Statement::Begin(Some(only), tag))
    }

    /// A setting's name, with SQL's own spellings of some.
    fn setting_name(&mut self) -> Result<String, PgError> {
        if self.accept("session") {
            self.expect("authorization")?;
            return Ok("session_authorization".to_owned());
        }
        if self.accept("time") {
            self.expect("zone")?;
            return Ok("timezone".to_owned());
        }
        Ok(self.dotted_name()?.to_lowercase())
    }

    fn set(&mut self) -> Result<Statement, PgError> {
        let local = self.accept("local");
        // SET SESSION x is SET x; SET SESSION AUTHORIZATION is a name of its own.
        if self.is("session")
            && !matches!(self.tokens.get(self.at + 1), Some(Token { kind: Kind::Word(word), .. }) if word == "authorization")
        {
            self.at += 1;
        }
        if self.accept("names") {
            let value = Some(vec![self.text()?]);
            return Ok(Statement::Set {
                local,
                name: "client_encoding".to_owned(),
                value,
                reset: false,
            });
        }
        let name = self.setting_name()?;
        if !self.accept("to") {
            self.accept_mark("=");
        }
        let value = if self.accept("default") { None } else { Some(self.setting_values()?) };
        Ok(Statement::Set { local, name, value, reset: false })
    }

    fn setting_values(&mut self) -> Result<Vec<String>, PgError> {
        let mut values = Vec::new();
        loop {
            values.push(match self.peek() {
                Some(Token { kind: Kind::Text(_), .. }) => self.text()?,
                Some(Token { kind: Kind::Number(_) | Kind::Punct("-"), .. }) => self.number()?,
                _ => self.name()?,
            });
            if !self.accept_mark(",") {
                return Ok(values);
            }
        }
    }

    fn discard(&mut self) -> Result<Statement, PgError> {
        let what = match self.name()?.as_str() {
            "all" => Discard::All,
            "plans" => Discard::Plans,
            "sequences" => Discard::Sequences,
            "temp" | "temporary" => Discard::Temp,
            _ => {
                self.at -= 1;
                return self.fail();
            }
        };
        Ok(Statement::Discard(what))
    }

    fn prepare(&mut self) -> Result<Statement, PgError> {
        let name = self.name()?;
        let mut types = Vec::new();
        if self.accept_mark("(") {
            loop {
                types.push(self.type_name()?);
                if !self.accept_mark(",") {
                    break;
                }
            }
            self.expect_mark(")")?;
        }
        self.expect("as")?;
        let start = self.at;
        let statement = self.statement()?;
        if !statement.is_query() {
            self.at = start;
            return self.fail();
        }
        let params = std::mem::take(&mut self.params);
        let body = Box::new(Parsed { statement, params, nonstandard_escape: false });
        Ok(Statement::Prepare { name, types, body, text: String::new() })
    }

    fn execute(&mut self) -> Result<Statement, PgError> {
        let name = self.name()?;
        let mut arguments = Vec::new();
        if self.accept_mark("(") {
            loop {
                arguments.push(self.scalar()?);
                if !self.accept_mark(",") {
                    break;
                }
            }
            self.expect_mark(")")?;
        }
        Ok(Statement::Execute(name, arguments))
    }

    fn create_temp(&mut self) -> Result<Statement, PgError> {
        if !self.accept("temp") {
            self.expect("temporary")?;
        }
        self.expect("table")?;
        let name = self.name()?;
        self.expect_mark("(")?;
        self.expect("v")?;
        self.type_name()?;
        self.expect_mark(")")?;
        let drop = self.accept("on");
        if drop {
            self.expect("commit")?;
            self.expect("drop")?;
        }
        Ok(Statement::CreateTemp(name, drop))
    }

    fn declare(&mut self) -> Result<Statement, PgError> {
        let name = self.name()?;
        self.expect("cursor")?;
        let hold = self.accept("with");
        if hold {
            self.expect("hold")?;
        }
        self.expect("for")?;
        self.expect("select")?;
        Ok(Statement::Declare { name, hold, query: self.select()? })
    }

    fn copy(&mut self) -> Result<Statement, PgError> {
        if self.accept_mark("(") {
            for word in ["select", "v", "from"] {
                self.expect(word)?;
            }
            let table = self.name()?;
            for word in ["order", "by", "v"] {
                self.expect(word)?;
            }
            self.expect_mark(")")?;
            self.expect("to")?;
            self.expect("stdout")?;
            return Ok(Statement::CopyOut(table));
        }
        let table = self.name()?;
        self.expect("from")?;
        self.expect("stdin")?;
        Ok(Statement::CopyIn(table))
    }

    fn insert(&mut self) -> Result<Statement, PgError> {
        self.expect("into")?;
        let table = self.name()?;
        self.expect("values")?;
        self.expect_mark("(")?;
        let value = if let Some(Token { kind: Kind::Param(number), .. }) = self.peek() {
            self.at += 1;
            self.param(*number, Some(Type::Int4));
            Scalar::Param(*number)
        } else {
            Scalar::Int(self.integer()?)
        };
        self.expect_mark(")")?;
        let returning = self.accept("returning");
        if returning {
            self.expect("v")?;
        }
        Ok(Statement::Insert { table, value, returning })
    }

    fn select(&mut self) -> Result<Select, PgError> {
        if self.accept("count") {
            self.expect_mark("(")?;
            self.expect_mark("*")?;
            self.expect_mark(")")?;
            self.expect_mark(",")?;
            self.expect("sum")?;
            self.expect_mark("(")?;
            self.expect("v")?;
            self.expect_mark(")")?;
            self.expect("from")?;
            return Ok(Select::Totals(self.name()?));
        }
        if self.accept("v") {
            self.expect("from")?;
            return Ok(Select::Values(self.name()?));
        }
        if self.accept("lpad") {
            self.expect_mark("(")?;
            self.expect("g")?;
            self.expect_mark("::")?;
            self.expect("text")?;
            self.expect_mark(",")?;
            let width = self.integer()?;
            self.expect_mark(",")?;
            self.text()?;
            self.expect_mark(")")?;
            return Ok(Select::Series { count: self.series()?, width });
        }
        let start = self.at;
        if self.accept("pg_catalog")
            && self.accept_mark(".")
            && self.accept("pg_listening_channels")
        {
            self.expect_mark("(")?;
            self.expect_mark(")")?;
            return Ok(Select::Channels);
        }
        self.at = start;
        let mut row = vec![self.scalar()?];
        if let ([Scalar::Int(dividend)], true) = (row.as_slice(), self.accept_mark("/")) {
            let dividend = *dividend;
            if !self.accept_mark("(") {
                row = vec![Scalar::Divide(dividend, self.integer()?)];
            } else {
                let fails_at = self.integer()?;
                self.expect_mark("-")?;
                self.expect("g")?;
                self.expect_mark(")")?;
                return Ok(Select::Failing { dividend, fails_at, count: self.series()? });
            }
        }
        while self.accept_mark(",") {
            row.push(self.scalar()?);
        }
        Ok(Select::Row(row))
    }

    fn series(&mut self) -> Result<Count, PgError> {
        self.expect("from")?;
        self.expect("generate_series")?;
        self.expect_mark("(")?;
        self.integer::<i32>()?;
        self.expect_mark(",")?;
        let count = if let Some(Token { kind: Kind::Param(number), .. }) = self.peek() {
            self.at += 1;
            self.param(*number, Some(Type::Int4));
            Count::Param(*number)
        } else {
            Count::Fixed(self.integer()?)
        };
        self.expect_mark(")")?;
        self.expect("g")?;
        Ok(count)
    }

    fn scalar(&mut self) -> Result<Scalar, PgError> {
        match self.peek() {
            Some(Token { kind: Kind::Param(number), .. }) => {
                self.at += 1;
                let kind = if self.accept_mark("::") { Some(self.type_name()?) } else { None };
                self.param(*number, kind);
                Ok(kind.map_or(Scalar::Param(*number), |kind| Scalar::Cast(*number, kind)))
            }
            Some(Token { kind: Kind::Number(_) | Kind::Punct("-"), .. }) => {
                Ok(Scalar::Int(self.integer()?))
            }
            Some(Token { kind: Kind::Text(_), .. }) => {
                let text = self.text()?;
                if !self.accept_mark("::") {
                    return Ok(Scalar::Text(text));
                }
                self.expect("date")?;
                self.expect_mark("-")?;
                let from = self.text()?;
                self.expect_mark("::")?;
                self.expect("date")?;
                Ok(Scalar::DaysBetween(text, from))
            }
            _ => self.call(),
        }
    }

    fn call(&mut self) -> Result<Scalar, PgError> {
        let mut function = self.name()?;
        if function == "pg_catalog" && self.accept_mark(".") {
            function = self.name()?;
        }
        if function == "current_user" {
            return Ok(Scalar::CurrentUser);
        }
        if function == "null" {
            return Ok(Scalar::Null);
        }
        self.expect_mark("(")?;
        let value = match function.as_str() {
            "set_config" => {
                let name = self.scalar()?;
                self.expect_mark(",")?;
                let value = self.scalar()?;
                self.expect_mark(",")?;
                for scalar in [&name, &value] {
                    if let Scalar::Param(number) = scalar {
                        self.param(*number, Some(Type::Text));
                    }
                }
                let call = Scalar::SetConfig(Box::new(name), Box::new(value), self.boolean()?);
                self.expect_mark(")")?;
                if !self.accept("is") {
                    return Ok(call);
                }
                self.expect("null")?;
                return Ok(Scalar::IsNull(Box::new(call)));
            }
            "current_setting" => {
                let name = self.text()?;
                let missing_ok = if self.accept_mark(",") { self.boolean()? } else { false };
                Scalar::CurrentSetting(name.to_lowercase(), missing_ok)
            }
            "nextval" => Scalar::Nextval(self.text()?),
            "currval" => Scalar::Currval(self.text()?),
            "lastval" => Scalar::Lastval,
            "pg_advisory_lock" => Scalar::Lock(self.integer()?),
            "pg_try_advisory_lock" => Scalar::TryLock(self.integer()?),
            "pg_advisory_unlock" => Scalar::Unlock(self.integer()?),
            "pg_advisory_unlock_all" => Scalar::UnlockAll,
            "hides_setting" => {
                let name = self.text()?.to_lowercase();
                self.expect_mark(",")?;
                Scalar::Hidden(Hidden::Set(name, self.text()?))
            }
            "hides_reset" => Scalar::Hidden(Hidden::Reset(self.text()?.to_lowercase())),
            "hides_lock" => Scalar::Hidden(Hidden::Lock(self.integer()?)),
            "hides_unlock" => Scalar::Hidden(Hidden::Unlock(self.integer()?)),
            "hides_temp" => Scalar::Hidden(Hidden::Temp(self.text()?)),
            "pg_backend_pid" => Scalar::BackendPid,
            "int4in" => Scalar::NoNumber(self.text()?),
            "pg_sleep" => {
                let seconds: f64 = self.number()?.parse().or_else(|_| self.fail())?;
                Scalar::Sleep(Duration::try_from_secs_f64(seconds).unwrap_or_default())
            }
            "extract" => return self.extract(),
            other => {
                return Err(PgError::error("42883", format!("function {other}() does not exist")));
            }
        };
        self.expect_mark(")")?;
        Ok(value)
    }

    fn boolean(&mut self) -> Result<bool, PgError> {
        if self.accept("true") {
            return Ok(true);
        }
        self.expect("false")?;
        Ok(false)
    }

    fn extract(&mut self) -> Result<Scalar, PgError> {
        self.expect("epoch")?;
        self.expect("from")?;
        let text = self.text()?;
        self.expect_mark("::")?;
        let interval = self.accept("interval");
        if !interval {
            self.expect("timestamptz")?;
        }
        self.expect_mark(")")?;
        self.expect_mark("::")?;
        self.expect("int8")?;
        Ok(if interval { Scalar::EpochOfInterval(text) } else { Scalar::EpochOfTimestamp(text) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_a_text_counts_when_its_end_is_wrong() {
        let error = parse("SELECT 1; SELEC 2", true).expect_err("misspelt");
        assert_eq!(error.code, "42601");
        assert_eq!(error.message, "syntax error at or near \"SELEC\"");
    }

    #[test]
    fn blanks_comments_and_semicolons_are_no_statement() {
        assert_eq!(parse(" ; -- x\n /* y */ ;", true), Ok(Vec::new()));
    }

    #[test]
    fn a_backslash_depends_on_the_setting() {
        let value = |conforming| match &parse(r"SELECT 'a\tb'", conforming).unwrap()[0].statement {
            Statement::Select(Select::Row(row)) => row[0].clone(),
            other => panic!("{other:?}"),
        };
        assert_eq!(value(true), Scalar::Text(r"a\tb".to_owned()));
        assert_eq!(value(false), Scalar::Text("a\tb".to_owned()));
    }
}
