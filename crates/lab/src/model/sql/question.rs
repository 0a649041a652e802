//! The one query of a pooler's own about a session, word by word: the model knows no catalogs.

use hawser_pooler::parts::pins::question::{COMMENT, PARSED, PARTS, SET_IN_SESSION, SETTING};
use hawser_pooler::session::part::Part;

use super::{Parsed, Scalar, Select, Statement};
use crate::model::error::PgError;

/// The part about statements of PREPARE, with names of others.
fn statements_by_name(rest: &str) -> Option<(Vec<String>, &str)> {
    let mut expressions = PARTS.iter().filter(|(part, _)| *part == Part::SqlStatement);
    let start = expressions.next()?.1.strip_suffix(PARSED.0)?;
    let (names, after) = rest.strip_prefix(start)?.strip_prefix(PARSED.1)?.split_once(PARSED.2)?;
    let names = names.split(',').map(|name| name.trim_matches('\'').to_owned());
    Some((names.collect(), after))
}

/// The query, if it is one.
pub(super) fn parse(text: &str) -> Option<Result<Vec<Parsed>, PgError>> {
    let mut rest = text.strip_prefix(COMMENT)?;
    let mut row = Vec::new();
    loop {
        let part = PARTS.iter().find_map(|(part, words)| Some((*part, rest.strip_prefix(words)?)));
        if let Some((part, after)) = part {
            row.push(match part {
                Part::SqlStatement => Scalar::Statements(Vec::new()),
                part => Scalar::Holds(part),
            });
            rest = after;
        } else if let Some((names, after)) = statements_by_name(rest) {
            row.push(Scalar::Statements(names));
            rest = after;
        } else if let Some((name, after)) = rest
            .strip_prefix(SET_IN_SESSION.0)
            .and_then(|rest| rest.split_once(SET_IN_SESSION.1))
            .and_then(|(name, rest)| Some((name, rest.split_once(" END")?.1)))
        {
            row.push(Scalar::SetInSession(name.trim_matches('\'').to_owned()));
            rest = after;
        } else if let Some((name, after)) =
            rest.strip_prefix(SETTING.0).and_then(|rest| rest.split_once(SETTING.1))
        {
            row.push(Scalar::CurrentSetting(name.trim_matches('\'').to_owned(), true));
            rest = after;
        } else {
            return Some(Err(PgError::error("42601", format!("not a question: {rest}"))));
        }
        match rest.strip_prefix(',') {
            Some(more) => rest = more,
            None => break,
        }
    }
    if !rest.is_empty() {
        return Some(Err(PgError::error("42601", format!("not a question: {rest}"))));
    }
    let statement = Statement::Select(Select::Row(row));
    Some(Ok(vec![Parsed { statement, params: Vec::new(), nonstandard_escape: false }]))
}
