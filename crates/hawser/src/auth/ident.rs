//! `pg_ident.conf`: which user of the system may log in as which user of the database.
//!
//! # Model
//! A line is `map system-user database-user`. Lines of one map are tried in turn and the first that fits both names
//! allows the login. A system user `/expression` is a regular expression; its first group replaces the first `\1` in
//! the database user, and the result is then compared literally. A database user may be `all`, or `/expression` as of PostgreSQL 16.
//!
//! # Limits
//! `+group` is refused: the server is asked for members by pg_hba.conf alone.

use std::path::Path;

use super::pattern::NamePattern;
use super::records::{self, Disk, FileError, FileErrors, Files, Record};

const BACK_REFERENCE: &str = r"\1";

/// The maps of a `pg_ident.conf`.
#[derive(Debug, Clone, Default)]
pub struct IdentMap {
    lines: Vec<Line>,
}

#[derive(Debug, Clone)]
struct Line {
    map: String,
    system_user: NamePattern,
    database_user: DatabaseUser,
}

#[derive(Debug, Clone)]
enum DatabaseUser {
    Pattern(NamePattern),
    /// What stands before and after `\1`.
    Substituted(String, String),
}

impl IdentMap {
    /// Reads the file `path` and what it includes. All errors of the file are returned.
    pub fn load(path: &Path) -> Result<Self, FileErrors> {
        Self::load_from(&Disk, path)
    }

    /// The same from `files`.
    pub fn load_from(files: &dyn Files, path: &Path) -> Result<Self, FileErrors> {
        let mut errors = Vec::new();
        let mut lines = Vec::new();
        for record in records::read(files, path, &mut errors) {
            match Line::parse(&record) {
                Ok(line) => lines.push(line),
                Err(error) => errors.push(error),
            }
        }
        FileErrors::unless_any(errors, Self { lines })
    }

    /// Whether the map exists: a rule that names another one can never let anyone in.
    pub fn has_map(&self, map: &str) -> bool {
        self.lines.iter().any(|line| line.map == map)
    }

    /// Whether `system_user` may log in as `database_user` under `map`. No map, or an empty name, asks for equal names.
    pub fn allows(&self, map: Option<&str>, system_user: &str, database_user: &str) -> bool {
        let Some(map) = map.filter(|map| !map.is_empty()) else {
            return system_user == database_user;
        };
        for line in self.lines.iter().filter(|line| line.map == map) {
            match line.check(system_user, database_user) {
                Check::Allowed => return true,
                Check::OtherName => {}
                Check::Failed => return false,
            }
        }
        false
    }
}

enum Check {
    Allowed,
    OtherName,
    /// `\1` asks for a group that took no part in the match: PostgreSQL gives up on the whole map.
    Failed,
}

impl Line {
    fn parse(record: &Record) -> Result<Self, FileError> {
        let field = |index: usize| match record.fields.get(index) {
            Some(field) => field.single("an ident field"),
            None => Err(FileError {
                location: record.end.clone(),
                message: "missing entry at end of line: a line is MAP SYSTEM-USER DATABASE-USER"
                    .to_owned(),
            }),
        };
        let (map, system_token, database_token) = (field(0)?, field(1)?, field(2)?);

        // `all` and `+` are nothing special in this column.
        let system_user = NamePattern::of(system_token)?;
        let database_user = NamePattern::of_user(database_token)?;
        let database_user = match (&system_user, database_user) {
            (NamePattern::Regex(regex), NamePattern::Literal(name)) => {
                match name.split_once(BACK_REFERENCE) {
                    Some(_) if regex.captures_len() < 2 => {
                        return Err(database_token.error(format!(
                            "regular expression \"{}\" has no subexpressions as requested by \
                             backreference in \"{name}\"",
                            &system_token.text[1..]
                        )));
                    }
                    Some((before, after)) => {
                        DatabaseUser::Substituted(before.to_owned(), after.to_owned())
                    }
                    None => DatabaseUser::Pattern(NamePattern::Literal(name)),
                }
            }
            (_, pattern) => DatabaseUser::Pattern(pattern),
        };
        Ok(Self { map: map.text.clone(), system_user, database_user })
    }

    fn check(&self, system_user: &str, database_user: &str) -> Check {
        let fits = match (&self.system_user, &self.database_user) {
            (NamePattern::Regex(regex), DatabaseUser::Substituted(before, after)) => {
                let Some(captures) = regex.captures(system_user) else { return Check::OtherName };
                let Some(group) = captures.get(1) else { return Check::Failed };
                database_user
                    .strip_prefix(before.as_str())
                    .and_then(|rest| rest.strip_suffix(after.as_str()))
                    == Some(group.as_str())
            }
            (system, DatabaseUser::Pattern(pattern)) => {
                system.matches(system_user) && pattern.matches(database_user)
            }
            // Only an expression is paired with a substitution.
            (_, DatabaseUser::Substituted(..)) => false,
        };
        if fits { Check::Allowed } else { Check::OtherName }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::records::testing::Memory;
    use super::*;

    fn load(text: &str) -> Result<IdentMap, FileErrors> {
        IdentMap::load_from(&Memory::new([("ident", text)]), Path::new("ident"))
    }

    #[test]
    fn without_a_map_the_names_must_be_equal() {
        let map = load("").unwrap();
        assert!(map.allows(None, "joe", "joe"));
        assert!(map.allows(Some(""), "joe", "joe"));
        assert!(!map.allows(None, "joe", "Joe"));
        assert!(!map.allows(Some("m"), "joe", "joe"), "an unknown map allows nobody");
    }

    #[test]
    fn maps_expressions_and_substitution_follow_the_documented_example() {
        let map = load(
            r#"# the example of PostgreSQL's documentation
omicron         bryanh                  bryanh
omicron         ann                     ann
omicron         robert                  bob
omicron         bryanh                  guest1
mymap   /^(.*)@mydomain\.com$      \1
mymap   /^(.*)@otherdomain\.com$   guest
mymap   "two words"                "x ""y"""
any     root                       all
any     ann                        /^app_
quoted  root                       "all"
"#,
        )
        .unwrap();
        assert!(map.allows(Some("omicron"), "bryanh", "guest1"));
        assert!(map.allows(Some("omicron"), "robert", "bob"));
        assert!(!map.allows(Some("omicron"), "robert", "robert"));
        assert!(map.allows(Some("mymap"), "joe@mydomain.com", "joe"));
        assert!(!map.allows(Some("mymap"), "joe@mydomain.com", "jo"));
        assert!(!map.allows(Some("mymap"), "joe@mydomainxcom", "joe"));
        assert!(map.allows(Some("mymap"), "joe@otherdomain.com", "guest"));
        assert!(map.allows(Some("mymap"), "two words", "x \"y\""));
        assert!(map.allows(Some("any"), "root", "whoever"));
        assert!(map.allows(Some("any"), "ann", "app_1"));
        assert!(!map.allows(Some("any"), "ann", "xapp_1"));
        assert!(!map.allows(Some("quoted"), "root", "whoever"));
        assert!(map.allows(Some("quoted"), "root", "all"));
        assert!(map.has_map("any") && !map.has_map("none"));
    }

    #[test]
    fn a_substituted_name_has_no_special_meaning() {
        let map = load("m /^(.*)$ \\1").unwrap();
        assert!(!map.allows(Some("m"), "all", "bob"));
        assert!(map.allows(Some("m"), "all", "all"));
        assert!(!map.allows(Some("m"), "/b", "bob"));
        let map = load("m /^(a)|b$ x\\1y\nm b xy").unwrap();
        assert!(map.allows(Some("m"), "a", "xay"));
        assert!(!map.allows(Some("m"), "b", "xy"), "a group without a match ends the search");
        let map = load("m /^(.+)$ aba\\1aba").unwrap();
        assert!(!map.allows(Some("m"), "x", "aba"), "prefix and suffix do not overlap");
    }

    #[test]
    fn errors_say_where_and_what() {
        let text = "m joe\nm a,b c\nm joe +admins\nm /^x$ \\1\nm /( x\n";
        let errors = load(text).unwrap_err().to_string();
        let lines: Vec<&str> = errors.lines().collect();
        assert_eq!(
            lines[0],
            "ident:1:6: missing entry at end of line: a line is MAP SYSTEM-USER DATABASE-USER"
        );
        assert_eq!(lines[1], "ident:2:5: multiple values specified for an ident field");
        assert!(lines[2].starts_with("ident:3:7: group membership (\"+admins\")"), "{}", lines[2]);
        assert_eq!(
            lines[3],
            "ident:4:8: regular expression \"^x$\" has no subexpressions as requested by backreference in \"\\1\""
        );
        assert!(
            lines[4].starts_with("ident:5:3: invalid regular expression \"(\""),
            "{}",
            lines[4]
        );
        assert_eq!(lines.len(), 5);
    }

    proptest! {
        #[test]
        fn parsing_never_panics(text in r#"[a-z"@#,/\\+()\[\]. \t\r\n]{0,80}"#) {
            if let Ok(map) = load(&text) {
                map.allows(Some("m"), &text, "x");
            }
        }
    }
}
