//! What of a database's sessions cannot be known without the extension: its functions.
//!
//! # Model       a session of each named database, as the database's own user, its auth_user or, where
//!               there is but one, the only user whose password is known. The catalog of functions is
//!               read by words: a word of a comment counts, and what a function calls does not
//! # Limits      words that are put together at run time are not seen: such functions are counted. C
//!               functions are not looked into

use hawser_pooler::parts::report::text::Report;
use tokio::time::timeout;

use super::asker::{Asker, Asking, Found, silent};
use super::{Grade, SERVER_WAIT};
use crate::config::{DatabaseConfig, Fidelity, InPlans, PoolMode};

/// How many functions are named.
const NAMED_MAX: usize = 10;

/// The functions of a database whose source may change what its session holds, and how: `state` by its
/// words, `dynamic` by statements that are put together, `language` in a language that has variables of
/// its own. A SET within an UPDATE is none: it stands at a statement's beginning.
const CENSUS: &str = r"
    SELECT kind, pg_catalog.format('%I.%I', nspname, proname) FROM (
        SELECT n.nspname, p.proname, CASE
            WHEN p.prosrc OPERATOR(pg_catalog.~*) '\m(set_config|setseed|pg_(try_)?advisory_lock(_shared)?|lo_import|dblink_connect)\M'
              OR p.prosrc OPERATOR(pg_catalog.~*) '\mcreate\s+(local\s+|global\s+)?temp(orary)?\M'
              OR p.prosrc OPERATOR(pg_catalog.~*) '(^|;|\mbegin|\mthen|\melse|\mloop)\s*(set\s+(?!local\M|constraints\M)|reset\s|listen\s|unlisten\s|discard\s|load\s|prepare\s|deallocate\s)'
              OR p.prosrc OPERATOR(pg_catalog.~*) '\mwith\s+hold\M'
            THEN 'state'
            WHEN NOT (l.lanname OPERATOR(pg_catalog.=) 'sql' OR l.lanname OPERATOR(pg_catalog.=) 'plpgsql') THEN 'language'
            WHEN l.lanname OPERATOR(pg_catalog.=) 'plpgsql' AND p.prosrc OPERATOR(pg_catalog.~*) '\mexecute\M' THEN 'dynamic'
        END AS kind
        FROM pg_catalog.pg_proc p
        JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) p.pronamespace
        JOIN pg_catalog.pg_language l ON l.oid OPERATOR(pg_catalog.=) p.prolang
        WHERE NOT (l.lanname OPERATOR(pg_catalog.=) 'c' OR l.lanname OPERATOR(pg_catalog.=) 'internal')
          AND NOT (n.nspname OPERATOR(pg_catalog.=) 'pg_catalog'
              OR n.nspname OPERATOR(pg_catalog.=) 'information_schema')
    ) functions WHERE kind IS NOT NULL ORDER BY 1, 2";

/// The functions that are evaluated when a statement is planned, although by their words they read a
/// setting that clients may differ in.
const PLANNED: &str = r"
    SELECT 'planned', pg_catalog.format('%I.%I', n.nspname, p.proname)
    FROM pg_catalog.pg_proc p JOIN pg_catalog.pg_namespace n ON n.oid OPERATOR(pg_catalog.=) p.pronamespace
    WHERE p.provolatile OPERATOR(pg_catalog.=) 'i' AND NOT (n.nspname OPERATOR(pg_catalog.=) 'pg_catalog'
              OR n.nspname OPERATOR(pg_catalog.=) 'information_schema')
      AND CASE WHEN p.prokind OPERATOR(pg_catalog.<>) 'a' THEN pg_catalog.pg_get_functiondef(p.oid) END
          OPERATOR(pg_catalog.~*) '\m(current_setting|pg_settings|execute)\M'
    ORDER BY 2";

/// Looks into a database in which it matters.
pub(super) async fn look(asking: &Asking<'_>, database: &DatabaseConfig) -> Vec<Found> {
    let promises = database.inherited.pool.custom_settings_in_plans == InPlans::Promised(false);
    let is_full = database.inherited.pool.fidelity == Fidelity::Full;
    if database.is_any() || !(is_full || promises) || is_native(database) {
        return Vec::new();
    }
    let name = &database.name;
    let Some(asker) = Asker::of(asking, database) else {
        let text =
            format!("database \"{name}\": functions not inspected; set `user` or `auth_user`");
        return vec![(Grade::Note, text)];
    };
    match timeout(SERVER_WAIT, ask(&asker, database)).await {
        Ok(Ok(census)) => {
            let functions =
                is_full.then(|| census.describe(name, database.inherited.pool.function_census));
            let plans = promises.then(|| census.describe_plans(name));
            functions.into_iter().flatten().chain(plans).collect()
        }
        Ok(Err(reason)) => {
            let user = asker.user();
            let text = format!(
                "database \"{name}\": functions cannot be inspected as user \"{user}\": {reason}"
            );
            vec![(Grade::Warning, text)]
        }
        Err(_) => vec![silent(database)],
    }
}

/// Sessions of clients are sessions of the server: nothing has to be known.
fn is_native(database: &DatabaseConfig) -> bool {
    database.inherited.pool.pool_mode == PoolMode::Session
}

/// What a database's catalog says.
#[derive(Debug, Default, PartialEq, Eq)]
struct Census {
    /// Whether its sessions report what they hold, in a version that is known; or why they do not.
    extension: Option<Result<(), String>>,
    /// Functions that change what a session holds, by their words.
    state: Vec<String>,
    /// Functions that put statements together.
    dynamic: usize,
    /// Functions in languages with variables of their own.
    language: Vec<String>,
    /// Functions that read settings when a statement is planned.
    planned: Vec<String>,
}

async fn ask(asker: &Asker, database: &DatabaseConfig) -> Result<Census, String> {
    let dialled = asker.dial().await.map_err(|error| error.to_string())?;
    let mut talk = dialled.talk;
    let mut census = Census {
        extension: dialled
            .entered
            .report
            .map(|text| Report::read(&text).map(drop).map_err(|error| error.to_string())),
        ..Census::default()
    };
    let named = &database.inherited.pool.stateful_functions.names;
    let mut rows = talk.query(CENSUS).await.map_err(|error| error.to_string())?.rows;
    if database.inherited.pool.custom_settings_in_plans == InPlans::Promised(false) {
        rows.extend(talk.query(PLANNED).await.map_err(|error| error.to_string())?.rows);
    }
    talk.terminate().await;
    for row in rows {
        let text = |at: usize| {
            row.get(at).and_then(Option::as_deref).map(String::from_utf8_lossy).unwrap_or_default()
        };
        match &*text(0) {
            "state" => census.state.push(text(1).into_owned()),
            "language" if named.stand_in(text(1).as_bytes()) => {}
            "language" => census.language.push(text(1).into_owned()),
            "planned" => census.planned.push(text(1).into_owned()),
            _ => census.dynamic += 1,
        }
    }
    Ok(census)
}

impl Census {
    /// What `custom_settings_in_plans = false` promises, and whether it is so.
    fn describe_plans(&self, name: &str) -> Found {
        match self.planned.len() {
            0 => (
                Grade::Ok,
                format!(
                    "database \"{name}\": no IMMUTABLE function has a source that reads a setting, as \
                     `custom_settings_in_plans = false` promises (functions in C are not inspected)"
                ),
            ),
            count => (
                Grade::Warning,
                format!(
                    "database \"{name}\": `custom_settings_in_plans = false` promises that no IMMUTABLE \
                     function reads a custom setting, and {} may: {}. Declare them STABLE, or remove the \
                     setting: a client may get a result of another client's value",
                    counted(count, "functions"),
                    listed(&self.planned)
                ),
            ),
        }
    }

    /// `sources`: the pooler looks into functions' sources as well.
    fn describe(&self, name: &str, sources: bool) -> Vec<Found> {
        let mut found = Vec::new();
        if !self.language.is_empty() {
            found.push((
                Grade::Warning,
                format!(
                    "database \"{name}\": Hawser cannot see what {} keep{} in variables of the \
                     language, unless `stateful_functions` names them: {}",
                    counted(self.language.len(), "functions"),
                    if self.language.len() == 1 { "s" } else { "" },
                    listed(&self.language)
                ),
            ));
        }
        let extension = match &self.extension {
            Some(Ok(())) => {
                found.push((
                    Grade::Ok,
                    format!(
                        "database \"{name}\": the extension reports all session state, also what functions change"
                    ),
                ));
                return found;
            }
            Some(Err(reason)) => {
                format!("the reports of its extension `hawser` are not used ({reason})")
            }
            None => "the extension `hawser` is not loaded".to_owned(),
        };
        if sources && !self.state.is_empty() {
            found.push((
                Grade::Ok,
                format!(
                    "database \"{name}\": {extension}; Hawser reads in the source what {} do{} to the session: {}",
                    counted(self.state.len(), "functions"),
                    if self.state.len() == 1 { "es" } else { "" },
                    listed(&self.state)
                ),
            ));
        }
        let mut warn = |text: String| {
            found.push((Grade::Warning, format!("database \"{name}\": {extension}, and {text}")));
        };
        if !sources && !self.state.is_empty() {
            warn(format!(
                "what {} do{} to the session is lost, unless the statement's text shows it: {}",
                counted(self.state.len(), "functions"),
                if self.state.len() == 1 { "es" } else { "" },
                listed(&self.state)
            ));
        }
        if self.dynamic > 0 {
            warn(format!(
                "{} build{} statements (EXECUTE), of which Hawser sees {}",
                counted(self.dynamic, "functions"),
                if self.dynamic == 1 { "s" } else { "" },
                if sources { "only string constants" } else { "nothing" }
            ));
        }
        if found.is_empty() {
            found.push((
                Grade::Ok,
                format!("database \"{name}\": {extension}; no function changes session state"),
            ));
        }
        found
    }
}

fn counted(count: usize, what: &str) -> String {
    format!("{count} {}", if count == 1 { what.trim_end_matches('s') } else { what })
}

fn listed(names: &[String]) -> String {
    let mut text = names[..names.len().min(NAMED_MAX)].join(", ");
    if names.len() > NAMED_MAX {
        text.push_str(&format!(" and {} more", names.len() - NAMED_MAX));
    }
    text
}
