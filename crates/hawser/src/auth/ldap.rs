//! `ldap` in pg_hba.conf: its options, and what is asked of an LDAP server.
//!
//! # Model
//! ```text
//!   simple       bind as ldapprefix + user + ldapsuffix, with the client's password
//!   search+bind  bind as ldapbinddn; search ldapbasedn for the user; bind as the one entry found
//! ```
//! The reference is PostgreSQL 18's `CheckLDAPAuth` in src/backend/libpq/auth.c, and hba.c for the options.
//!
//! # Invariants
//! * an empty password is refused before anything is asked: to LDAP it is an anonymous bind, which succeeds
//! * a user name gets into a search filter only if it has none of the characters that mean something there
//!
//! # Limits
//! `ldapserver` must be given: no server is looked for by DNS SRV records.

use crate::config::{Password, percent_decoded};

/// What a user name must not contain that is searched for, as in PostgreSQL.
const SEARCH_FORBIDDEN: [char; 5] = ['*', '(', ')', '\\', '/'];
/// What a filter's text has in place of the user's name.
const USERNAME: &str = "$username";
const DEFAULT_ATTRIBUTE: &str = "uid";
const DEFAULT_PORT: u16 = 389;
const DEFAULT_TLS_PORT: u16 = 636;

/// How a user's password is checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LdapRule {
    /// `ldap://host:port` or `ldaps://host:port`: the first that can be reached is asked. At least one.
    pub urls: Vec<String>,
    /// `ldaptls`: whether an `ldap` connection turns to TLS before anything else.
    pub start_tls: bool,
    /// Whose password it is.
    pub way: LdapWay,
}

/// How the user's entry is found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LdapWay {
    /// By its name alone.
    Simple {
        /// Before the user's name.
        prefix: String,
        /// After it.
        suffix: String,
    },
    /// By a search.
    Search(LdapSearch),
}

/// A search for a user's entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LdapSearch {
    /// Below what.
    pub base: String,
    /// How deep.
    pub scope: LdapScope,
    /// Who searches; empty: anonymous.
    pub bind_dn: String,
    /// With which password.
    pub bind_password: Option<Password>,
    filter: Filter,
}

/// How deep a search goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LdapScope {
    /// The base itself.
    Base,
    /// One level below it.
    One,
    /// All below it.
    #[default]
    Subtree,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Filter {
    /// This attribute is the user's name.
    Attribute(String),
    /// With [`USERNAME`] in it.
    Text(String),
}

/// The name that a simple bind is made with.
///
/// # Errors
/// The user's name has what would make another of it (RFC 4514, section 2.4), so that one entry had many
/// names here.
pub fn bind_name(prefix: &str, user: &str, suffix: &str) -> Result<String, String> {
    const FORBIDDEN: [char; 10] = [',', '+', '"', '\\', '<', '>', ';', '=', '#', '\0'];
    if user.contains(FORBIDDEN) || user.trim() != user {
        return Err("invalid character in user name for LDAP authentication".to_owned());
    }
    Ok(format!("{prefix}{user}{suffix}"))
}

impl LdapSearch {
    /// The filter that finds `user`.
    ///
    /// # Errors
    /// The name cannot be searched for.
    pub fn filter(&self, user: &str) -> Result<String, String> {
        if user.contains(SEARCH_FORBIDDEN) {
            return Err("invalid character in user name for LDAP authentication".to_owned());
        }
        Ok(match &self.filter {
            Filter::Attribute(attribute) => format!("({attribute}={user})"),
            Filter::Text(text) => text.replace(USERNAME, user),
        })
    }
}

/// The options of a record as they come.
#[derive(Debug, Default)]
pub(crate) struct LdapOptions {
    server: Option<String>,
    port: Option<u16>,
    scheme: Option<String>,
    start_tls: bool,
    prefix: Option<String>,
    suffix: Option<String>,
    base: Option<String>,
    scope: LdapScope,
    bind_dn: Option<String>,
    bind_password: Option<Password>,
    attribute: Option<String>,
    filter: Option<String>,
}

impl LdapOptions {
    /// Takes `name=value`.
    ///
    /// # Errors
    /// What is wrong with it; `None`: there is no such option.
    pub(crate) fn set(&mut self, name: &str, value: &str) -> Result<(), Option<String>> {
        let text = || Some(value.to_owned());
        match name {
            "ldapserver" => self.server = text(),
            "ldapport" => {
                let port = value.parse().ok().filter(|port| *port != 0);
                let wrong = || Some(format!("invalid LDAP port number: \"{value}\""));
                self.port = Some(port.ok_or_else(wrong)?);
            }
            "ldapscheme" if matches!(value, "ldap" | "ldaps") => self.scheme = text(),
            "ldapscheme" => return Err(Some(format!("invalid ldapscheme value: \"{value}\""))),
            // As PostgreSQL: whatever is not 1 is off.
            "ldaptls" => self.start_tls = value == "1",
            "ldapprefix" => self.prefix = text(),
            "ldapsuffix" => self.suffix = text(),
            "ldapbasedn" => self.base = text(),
            "ldapbinddn" => self.bind_dn = text(),
            "ldapbindpasswd" => self.bind_password = Some(Password::new(value)),
            "ldapsearchattribute" => self.attribute = text(),
            "ldapsearchfilter" => self.filter = text(),
            "ldapurl" => self.set_url(value).map_err(Some)?,
            _ => return Err(None),
        }
        Ok(())
    }

    /// `ldap[s]://host[:port]/basedn[?[attribute][?[scope][?[filter]]]]`
    fn set_url(&mut self, url: &str) -> Result<(), String> {
        let wrong = |why: &str| format!("could not parse LDAP URL \"{url}\": {why}");
        let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong("it has no scheme"))?;
        if !matches!(scheme, "ldap" | "ldaps") {
            return Err(format!("unsupported LDAP URL scheme: {scheme}"));
        }
        let (authority, rest) = rest.split_once('/').unwrap_or((rest, ""));
        let (host, port) = match authority.rsplit_once(':') {
            // The colons of an IPv6 address stand in brackets.
            Some((host, port)) if !port.contains(']') => {
                (host, Some(port.parse().map_err(|_| wrong("its port is no number"))?))
            }
            _ => (authority, None),
        };
        let mut parts = rest.split('?').map(percent_decoded);
        let mut part = || match parts.next() {
            Some(part) => {
                part.ok_or_else(|| wrong("a % is not followed by two hexadecimal digits"))
            }
            None => Ok(String::new()),
        };
        let (base, attribute, scope, filter) = (part()?, part()?, part()?, part()?);
        let given = |text: String| (!text.is_empty()).then_some(text);
        self.scheme = Some(scheme.to_owned());
        self.server = given(host.to_owned()).or(self.server.take());
        self.port = port.or(self.port);
        self.base = given(base).or(self.base.take());
        self.attribute = given(attribute).or(self.attribute.take());
        self.scope = match scope.as_str() {
            "base" => LdapScope::Base,
            "one" => LdapScope::One,
            "sub" => LdapScope::Subtree,
            // RFC 4516: base. PostgreSQL's manual names no default; OpenLDAP's parser gives base.
            "" => LdapScope::Base,
            _ => return Err(wrong("its scope is none of base, one and sub")),
        };
        self.filter = given(filter).or(self.filter.take());
        Ok(())
    }

    /// The rule.
    ///
    /// # Errors
    /// What is missing, or does not go together: PostgreSQL's words.
    pub(crate) fn finish(self) -> Result<LdapRule, String> {
        let missing = |what: &str| {
            Err(format!("authentication method \"ldap\" requires argument {what} to be set"))
        };
        let tls = self.scheme.as_deref() == Some("ldaps");
        let scheme = if tls { "ldaps" } else { "ldap" };
        let port = self.port.unwrap_or(if tls { DEFAULT_TLS_PORT } else { DEFAULT_PORT });
        let hosts = self.server.as_deref().unwrap_or_default().split_whitespace();
        let urls: Vec<_> = hosts
            .map(|host| match host.contains(':') && !host.starts_with('[') {
                true => format!("{scheme}://[{host}]:{port}"),
                false => format!("{scheme}://{host}:{port}"),
            })
            .collect();
        if urls.is_empty() {
            return missing("\"ldapserver\"");
        }
        let searches = self.base.is_some()
            || self.bind_dn.is_some()
            || self.bind_password.is_some()
            || self.attribute.is_some()
            || self.filter.is_some();
        let way = if self.prefix.is_some() || self.suffix.is_some() {
            if searches {
                return Err("cannot mix options for simple bind and search+bind modes".to_owned());
            }
            let (prefix, suffix) =
                (self.prefix.unwrap_or_default(), self.suffix.unwrap_or_default());
            LdapWay::Simple { prefix, suffix }
        } else {
            let Some(base) = self.base else {
                return missing("\"ldapbasedn\", \"ldapprefix\", or \"ldapsuffix\"");
            };
            let filter = match (self.attribute, self.filter) {
                (Some(_), Some(_)) => {
                    return Err(
                        "cannot use ldapsearchattribute together with ldapsearchfilter".to_owned()
                    );
                }
                (_, Some(text)) => Filter::Text(text),
                (attribute, None) => {
                    Filter::Attribute(attribute.unwrap_or_else(|| DEFAULT_ATTRIBUTE.to_owned()))
                }
            };
            LdapWay::Search(LdapSearch {
                base,
                scope: self.scope,
                bind_dn: self.bind_dn.unwrap_or_default(),
                bind_password: self.bind_password,
                filter,
            })
        };
        Ok(LdapRule { urls, start_tls: self.start_tls, way })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(options: &[(&str, &str)]) -> Result<LdapRule, String> {
        let mut all = LdapOptions::default();
        for (name, value) in options {
            all.set(name, value).map_err(Option::unwrap_or_default)?;
        }
        all.finish()
    }

    fn search(rule: LdapRule) -> LdapSearch {
        match rule.way {
            LdapWay::Search(search) => search,
            LdapWay::Simple { .. } => panic!("{rule:?}"),
        }
    }

    #[test]
    fn a_name_that_would_make_another_of_the_bind_is_refused() {
        let name = |user: &str| bind_name("uid=", user, ",ou=people");
        assert_eq!(name("ann o'hara").as_deref(), Ok("uid=ann o'hara,ou=people"));
        for user in ["x,ou=admins", "a+b", " ann", "ann ", "a=b", "a\\2c", "a\0", "a#b", "\"a\""] {
            assert!(name(user).is_err(), "{user:?}");
        }
    }

    #[test]
    fn servers_are_urls_in_their_order() {
        let urls = |options: &[(&str, &str)]| {
            let options = [options, &[("ldapprefix", "x")]].concat();
            rule(&options).unwrap().urls
        };
        assert_eq!(urls(&[("ldapserver", "a b")]), ["ldap://a:389", "ldap://b:389"]);
        assert_eq!(urls(&[("ldapserver", "a"), ("ldapscheme", "ldaps")]), ["ldaps://a:636"]);
        assert_eq!(urls(&[("ldapserver", "::1"), ("ldapport", "3")]), ["ldap://[::1]:3"]);
    }

    #[test]
    fn a_url_gives_all_of_a_search() {
        let url = "ldaps://ldap.example:7/dc=example,dc=net?mail?one?(x=%24username)";
        let with_both = rule(&[("ldapurl", url)]).unwrap_err();
        assert!(with_both.contains("together"), "{with_both}");
        let url = "ldap://[::1]:7/dc=example,dc=net??sub?(%26(x=y)(mail=$username))";
        let found = rule(&[("ldapurl", url)]).unwrap();
        assert_eq!(found.urls, ["ldap://[::1]:7"]);
        let found = search(found);
        assert_eq!((found.base.as_str(), found.scope), ("dc=example,dc=net", LdapScope::Subtree));
        assert_eq!(found.filter("ann").unwrap(), "(&(x=y)(mail=ann))");
        let url = search(rule(&[("ldapurl", "ldap://a/dc=b?cn")]).unwrap());
        assert_eq!((url.filter("ann").unwrap().as_str(), url.scope), ("(cn=ann)", LdapScope::Base));
        for wrong in ["ldapi:///x", "ldap//a", "ldap://a:b/c", "ldap://a/%2", "ldap://a/b??deep"] {
            rule(&[("ldapurl", wrong)]).expect_err(wrong);
        }
    }

    #[test]
    fn options_that_do_not_go_together_are_refused() {
        let server = ("ldapserver", "a");
        let base = ("ldapbasedn", "b");
        for (options, words) in [
            (&[base][..], "requires argument \"ldapserver\""),
            (&[server], "\"ldapbasedn\", \"ldapprefix\", or \"ldapsuffix\""),
            (&[server, base, ("ldapprefix", "x")], "cannot mix options"),
            (&[server, ("ldapsuffix", "x"), ("ldapbinddn", "x")], "cannot mix options"),
            (&[server, ("ldapport", "0")], "invalid LDAP port number: \"0\""),
            (&[server, ("ldapscheme", "ldapi")], "invalid ldapscheme value: \"ldapi\""),
        ] {
            let error = rule(options).unwrap_err();
            assert!(error.contains(words), "{options:?}: {error}");
        }
    }

    #[test]
    fn a_name_that_would_change_a_filter_is_not_searched_for() {
        let found = search(rule(&[("ldapserver", "a"), ("ldapbasedn", "b")]).unwrap());
        assert_eq!(found.filter("ann").unwrap(), "(uid=ann)");
        for name in ["*", "a)(uid=*", "a\\2a", "a/b"] {
            assert!(found.filter(name).is_err(), "{name}");
        }
    }
}
