//! What a limit counts, and the keys of the store that belong to it.
//!
//! ```text
//!   limits/KIND/NAME/NUMBER   a place; its value says who has it, for people
//!   wants/KIND/NAME/LEASE     the value is how many places the node lacks
//! ```
//! Keys stand under a prefix of the operator's. Names have letters, digits, `-`, `_`, `.` and `:`;
//! all else is written as `%XX`, so a name has no `/`.

use std::fmt;

/// A lease, and so a node: each has one at a time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct LeaseId(pub i64);

/// When the store made a key: the number of a write.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Revision(pub i64);

impl Revision {
    /// Later than all.
    pub const NEVER: Self = Self(i64::MAX);
}

/// One place of a limit.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Place {
    /// The limit.
    pub scope: Scope,
    /// Its number.
    pub number: u32,
}

/// Which setting a limit comes from.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Kind {
    /// `max_server_connections`.
    Total,
    /// `max_db_connections`.
    Database,
    /// `max_user_connections`.
    User,
    /// `max_server_connections_per_server`.
    Server,
}

impl Kind {
    const ALL: [Self; 4] = [Self::Total, Self::Database, Self::User, Self::Server];

    /// Its word in keys and metrics.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Total => "total",
            Self::Database => "database",
            Self::User => "user",
            Self::Server => "server",
        }
    }

    /// The setting.
    #[must_use]
    pub fn setting(self) -> &'static str {
        match self {
            Self::Total => "max_server_connections",
            Self::Database => "max_db_connections",
            Self::User => "max_user_connections",
            Self::Server => "max_server_connections_per_server",
        }
    }
}

/// What one limit counts.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Scope {
    /// The setting.
    pub kind: Kind,
    /// Of which database, user or server; `all` of [`Kind::Total`].
    pub name: Box<str>,
}

impl Scope {
    /// What counts in all.
    #[must_use]
    pub fn total() -> Self {
        Self { kind: Kind::Total, name: "all".into() }
    }

    /// The beginning of the keys of its places, under the prefix.
    #[must_use]
    pub fn places(&self) -> String {
        format!("limits/{self}/")
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.kind.word())?;
        self.name.bytes().try_for_each(|byte| match byte {
            b'-' | b'_' | b'.' | b':' => write!(f, "{}", char::from(byte)),
            _ if byte.is_ascii_alphanumeric() => write!(f, "{}", char::from(byte)),
            _ => write!(f, "%{byte:02X}"),
        })
    }
}

/// What a key under the prefix stands for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Key {
    /// A place.
    Place(Place),
    /// A want.
    Want(Scope),
}

impl Key {
    /// The beginning of all wants, under the prefix.
    pub const WANTS: &'static str = "wants/";

    /// A place's key, under the prefix.
    #[must_use]
    pub fn of_place(place: &Place) -> String {
        format!("{}{}", place.scope.places(), place.number)
    }

    /// The key of a node's want, under the prefix.
    #[must_use]
    pub fn of_want(scope: &Scope, owner: LeaseId) -> String {
        format!("{}{scope}/{:x}", Self::WANTS, owner.0)
    }

    /// What a key stands for; `None`: it is none of ours.
    #[must_use]
    pub fn parse(key: &str) -> Option<Self> {
        let mut parts = key.split('/');
        let (what, kind, name, last) = (parts.next()?, parts.next()?, parts.next()?, parts.next()?);
        if parts.next().is_some() {
            return None;
        }
        let kind = Kind::ALL.into_iter().find(|known| known.word() == kind)?;
        let scope = Scope { kind, name: decoded(name)?.into() };
        match what {
            "limits" => Some(Self::Place(Place { scope, number: last.parse().ok()? })),
            "wants" => Some(Self::Want(scope)),
            _ => None,
        }
    }
}

fn decoded(name: &str) -> Option<String> {
    let mut bytes = name.bytes();
    let mut plain = Vec::with_capacity(name.len());
    while let Some(byte) = bytes.next() {
        plain.push(match byte {
            b'%' => {
                let digit = |byte: u8| char::from(byte).to_digit(16);
                let (high, low) = (digit(bytes.next()?)?, digit(bytes.next()?)?);
                u8::try_from(high << 4 | low).ok()?
            }
            other => other,
        });
    }
    String::from_utf8(plain).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_read_as_they_were_written_whatever_the_name() {
        for name in ["app", "a/b %2F ü", "", "db1.example:5432", "[::1]:5432"] {
            for kind in Kind::ALL {
                let scope = Scope { kind, name: name.into() };
                let place = Place { scope: scope.clone(), number: 17 };
                assert_eq!(Key::parse(&Key::of_place(&place)), Some(Key::Place(place)));
                let want = Key::of_want(&scope, LeaseId(-5));
                assert_eq!(Key::parse(&want), Some(Key::Want(scope)));
            }
        }
        for strange in ["limits/total/all", "limits/other/a/1", "limits/user/%4/1", "x/user/a/1"] {
            assert_eq!(Key::parse(strange), None, "{strange}");
        }
        for strange in ["limits/user/a/1/2", "limits/user/a/b", "limits/user/%FF/1", ""] {
            assert_eq!(Key::parse(strange), None, "{strange}");
        }
    }
}
