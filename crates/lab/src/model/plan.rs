//! Prepared statements and portals: what Parse and Bind create.
//!
//! # Model
//! Analysis resolves names along the search path and folds date and time literals by the settings
//! of that moment. A statement keeps its analysis until the search path resolves otherwise or the
//! plans were discarded; then the next Bind analyses it again, under the settings of *that* moment
//! (`RevalidateCachedQuery` in `plancache.c`). This is what makes a statement that is shared by its
//! text alone answer wrongly.

use super::error::PgError;
use super::portal::{Analysis, Column, Datum, Prepared, Relation};
use super::session::Session;
use super::settings::zone_seconds;
use super::sql::{Count, Hidden, Parsed, Scalar, Select, Statement, Type};

/// Analyses a statement for the first time.
pub(super) fn prepare(
    session: &Session,
    parsed: Option<Parsed>,
    declared: &[Option<Type>],
) -> Result<Prepared, PgError> {
    let found = parsed.as_ref().map_or(&[][..], |parsed| &parsed.params);
    let params: Vec<Type> = (0..found.len().max(declared.len()))
        .map(|index| {
            let at = |types: &[Option<Type>]| types.get(index).copied().flatten();
            at(declared).or(at(found)).unwrap_or(Type::Text)
        })
        .collect();
    let statement = parsed.as_ref().map(|parsed| &parsed.statement);
    let analysis = analyse(session, statement, &params)?;
    Ok(Prepared { parsed, params, analysis, sent: (0, String::new()), from_sql: false })
}

/// Makes the analysis fit the present search path.
pub(super) fn revalidate(prepared: &mut Prepared, session: &Session) -> Result<(), PgError> {
    let Some(parsed) = &prepared.parsed else { return Ok(()) };
    if parsed.statement.controls_transaction() || holds(&prepared.analysis, session) {
        return Ok(());
    }
    let renewed = analyse(session, Some(&parsed.statement), &prepared.params)?;
    if renewed.columns != prepared.analysis.columns {
        return Err(PgError::changed_rows());
    }
    prepared.analysis = renewed;
    Ok(())
}

/// Resolves and folds under the session's present settings.
pub(super) fn analyse(
    session: &Session,
    statement: Option<&Statement>,
    params: &[Type],
) -> Result<Analysis, PgError> {
    let mut analysis = Analysis {
        columns: None,
        folded: Vec::new(),
        relation: None,
        path: session.search_path(),
        epoch: session.plan_epoch,
    };
    let Some(statement) = statement else { return Ok(analysis) };
    match statement {
        Statement::Insert { table, .. }
        | Statement::Update(table, _)
        | Statement::Delete(table)
        | Statement::Select(Select::Totals(table) | Select::Values(table)) => {
            analysis.relation = Some(relation(session, table)?);
        }
        Statement::Select(Select::Row(row)) => {
            for scalar in row {
                check_sequence(session, scalar)?;
                analysis.folded.push(fold(session, scalar)?);
            }
        }
        Statement::Show(name) if session.setting(name).is_none() => {
            return Err(unknown_setting(name));
        }
        _ => {}
    }
    analysis.columns = columns(session, statement, params, analysis.relation.as_ref());
    Ok(analysis)
}

fn holds(analysis: &Analysis, session: &Session) -> bool {
    let gone = |relation: &Relation| match relation {
        Relation::Temp(name) => !session.now.temp.contains_key(name),
        Relation::Table(name) => session.now.temp.contains_key(name),
        Relation::Probe(_) => session.now.temp.contains_key("probe"),
    };
    analysis.epoch == session.plan_epoch
        && analysis.path == session.search_path()
        && !analysis.relation.as_ref().is_some_and(gone)
}

/// The table that a name means now.
///
/// # Errors
/// 42P01 where it means none.
pub(super) fn relation(session: &Session, name: &str) -> Result<Relation, PgError> {
    if session.now.temp.contains_key(name) {
        return Ok(Relation::Temp(name.to_owned()));
    }
    let path = session.search_path();
    if name == "probe" {
        let probes = &super::catalog::PROBES;
        let found = path.iter().find_map(|schema| probes.iter().find(|(known, _)| known == schema));
        if let Some((_, value)) = found {
            return Ok(Relation::Probe(value));
        }
    } else if path.iter().any(|schema| schema == "public") && session.tables.contains(name) {
        return Ok(Relation::Table(name.to_owned()));
    }
    Err(PgError::error("42P01", format!("relation \"{name}\" does not exist")))
}

pub(super) fn unknown_setting(name: &str) -> PgError {
    PgError::error("42704", format!("unrecognized configuration parameter \"{name}\""))
}

fn check_sequence(session: &Session, scalar: &Scalar) -> Result<(), PgError> {
    let (Scalar::Nextval(name) | Scalar::Currval(name)) = scalar else { return Ok(()) };
    let visible = session.search_path().iter().any(|schema| schema == "public");
    if visible && session.known_sequences.contains(name) {
        return Ok(());
    }
    Err(PgError::error("42P01", format!("relation \"{name}\" does not exist")))
}

fn fold(session: &Session, scalar: &Scalar) -> Result<Datum, PgError> {
    let setting = |name| session.setting(name).unwrap_or_default();
    Ok(match scalar {
        Scalar::EpochOfTimestamp(text) => {
            Some((timestamp(text)? - zone_seconds(setting("timezone"))).to_string())
        }
        Scalar::EpochOfInterval(text) => {
            Some(interval(text, setting("intervalstyle") == "sql_standard")?.to_string())
        }
        Scalar::DaysBetween(to, from) => {
            let order = setting("datestyle");
            Some((date(to, order)? - date(from, order)?).to_string())
        }
        _ => None,
    })
}

fn not_a(kind: &str, text: &str) -> PgError {
    PgError::error("22007", format!("invalid input syntax for type {kind}: \"{text}\""))
}

/// Days since 1970-01-01 in the proleptic Gregorian calendar (Hinnant, "days_from_civil").
fn days(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let year_of_era = year - era * 400;
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + year_of_era * 365 + year_of_era / 4 - year_of_era / 100 + day_of_year - 719_468
}

fn date(text: &str, style: &str) -> Result<i64, PgError> {
    let numbers = |mark| {
        let parts: Option<Vec<i64>> = text.split(mark).map(|part| part.parse().ok()).collect();
        parts.filter(|parts| parts.len() == 3)
    };
    if let Some(ymd) = numbers('-') {
        return Ok(days(ymd[0], ymd[1], ymd[2]));
    }
    let parts = numbers('/').ok_or_else(|| not_a("date", text))?;
    let (month, day) =
        if style.ends_with("DMY") { (parts[1], parts[0]) } else { (parts[0], parts[1]) };
    if !(1..=12).contains(&month) || style.ends_with("YMD") {
        let message = format!("date/time field value out of range: \"{text}\"");
        return Err(PgError::error("22008", message));
    }
    Ok(days(parts[2], month, day))
}

fn clock(text: &str) -> Option<i64> {
    let parts: Option<Vec<i64>> = text.split(':').map(|part| part.parse().ok()).collect();
    let parts = parts.filter(|parts| parts.len() == 3)?;
    Some(parts[0] * 3600 + parts[1] * 60 + parts[2])
}

fn timestamp(text: &str) -> Result<i64, PgError> {
    let bad = || not_a("timestamp with time zone", text);
    let (day, time) = text.split_once(' ').ok_or_else(bad)?;
    Ok(date(day, "")? * 86_400 + clock(time).ok_or_else(bad)?)
}

/// `[-]days hours:minutes:seconds`; the leading sign counts for all of it in SQL's own style.
fn interval(text: &str, sql_standard: bool) -> Result<i64, PgError> {
    let bad = || not_a("interval", text);
    let (days, time) = text.split_once(' ').ok_or_else(bad)?;
    let (days, time): (i64, i64) = (days.parse().map_err(|_| bad())?, clock(time).ok_or_else(bad)?);
    Ok(days * 86_400 + if sql_standard && days < 0 { -time } else { time })
}

fn columns(
    session: &Session,
    statement: &Statement,
    params: &[Type],
    relation: Option<&Relation>,
) -> Option<Vec<Column>> {
    let one = |name: &str, kind| Some(vec![Column { name: name.to_owned(), kind }]);
    match statement {
        Statement::Select(select) => Some(select_columns(select, params, relation)),
        Statement::Insert { returning: true, .. } => one("v", Type::Int4),
        Statement::Show(name) => one(super::settings::spelling(name), Type::Text),
        Statement::Execute(name, _) => session.statements.get(name)?.analysis.columns.clone(),
        Statement::Fetch(_, name) => session.portals.get(name)?.analysis.columns.clone(),
        _ => None,
    }
}

pub(super) fn select_columns(
    select: &Select,
    params: &[Type],
    relation: Option<&Relation>,
) -> Vec<Column> {
    let column = |name: &str, kind| Column { name: name.to_owned(), kind };
    match select {
        Select::Row(row) => row
            .iter()
            .map(|scalar| {
                let (name, kind) = scalar_column(scalar, params);
                column(name, kind)
            })
            .collect(),
        Select::Channels => vec![column("pg_listening_channels", Type::Text)],
        Select::Series { .. } => vec![column("lpad", Type::Text)],
        Select::Failing { .. } => vec![column("?column?", Type::Int4)],
        Select::Totals(_) => vec![column("count", Type::Int8), column("sum", Type::Int8)],
        Select::Values(_) => {
            let text =
                matches!(relation, Some(Relation::Probe(value)) if value.parse::<i32>().is_err());
            vec![column("v", if text { Type::Text } else { Type::Int4 })]
        }
    }
}

fn scalar_column(scalar: &Scalar, params: &[Type]) -> (&'static str, Type) {
    match scalar {
        Scalar::Text(_) | Scalar::Null => ("?column?", Type::Text),
        Scalar::Int(_) | Scalar::Divide(..) | Scalar::DaysBetween(..) => ("?column?", Type::Int4),
        Scalar::NoNumber(_) => ("int4in", Type::Int4),
        Scalar::Param(number) => {
            let kind = params.get(number - 1).copied().unwrap_or(Type::Text);
            ("?column?", kind)
        }
        Scalar::Cast(_, Type::Int4) => ("int4", Type::Int4),
        Scalar::Cast(_, Type::Int8) => ("int8", Type::Int8),
        Scalar::Cast(_, kind) => ("text", *kind),
        Scalar::SetConfig(..) => ("set_config", Type::Text),
        Scalar::IsNull(_) => ("?column?", Type::Bool),
        Scalar::Hidden(Hidden::Set(..)) => ("hides_setting", Type::Text),
        Scalar::Hidden(Hidden::Lock(_)) => ("hides_lock", Type::Void),
        Scalar::Hidden(Hidden::Unlock(_)) => ("hides_unlock", Type::Bool),
        Scalar::Hidden(Hidden::Temp(_)) => ("hides_temp", Type::Void),
        Scalar::Hidden(Hidden::Reset(_)) => ("hides_reset", Type::Void),
        Scalar::CurrentSetting(..) => ("current_setting", Type::Text),
        Scalar::Nextval(_) => ("nextval", Type::Int8),
        Scalar::Currval(_) => ("currval", Type::Int8),
        Scalar::Lastval => ("lastval", Type::Int8),
        Scalar::Lock(_) => ("pg_advisory_lock", Type::Void),
        Scalar::TryLock(_) => ("pg_try_advisory_lock", Type::Bool),
        Scalar::Unlock(_) => ("pg_advisory_unlock", Type::Bool),
        Scalar::UnlockAll => ("pg_advisory_unlock_all", Type::Void),
        Scalar::Statements(_) => ("case", Type::Text),
        Scalar::Holds(_) => ("exists", Type::Bool),
        Scalar::SetInSession(_) => ("case", Type::Text),
        Scalar::Sleep(_) => ("pg_sleep", Type::Void),
        Scalar::CurrentUser => ("current_user", Type::Name),
        Scalar::BackendPid => ("pg_backend_pid", Type::Int4),
        Scalar::EpochOfTimestamp(_) | Scalar::EpochOfInterval(_) => ("extract", Type::Int8),
    }
}

/// How many rows, once the parameters are known.
pub(super) fn count(count: Count, params: &[Datum]) -> i32 {
    match count {
        Count::Fixed(count) => count,
        Count::Param(number) => {
            params.get(number - 1).and_then(|value| value.as_ref()?.parse().ok()).unwrap_or(0)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_mean_what_the_style_says() {
        assert_eq!(days(2024, 6, 1), 19_875);
        let day = |style| date("01/02/2024", style).unwrap() - date("2024-01-01", style).unwrap();
        assert_eq!((day("ISO, MDY"), day("ISO, DMY")), (1, 31));
        assert_eq!(interval("-1 02:00:00", false).unwrap(), -79_200);
        assert_eq!(interval("-1 02:00:00", true).unwrap(), -93_600);
    }
}
