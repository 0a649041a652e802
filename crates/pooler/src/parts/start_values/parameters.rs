//! What a server reports when a connection is opened.

/// Name and value.
pub type Parameter = (Box<[u8]>, Box<[u8]>);

/// What a server of this pool reports at connect, in its order: settings, with the values of a
/// session in which no client has set anything.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ServerParameters {
    /// Name and value of each ParameterStatus.
    pub pairs: Vec<Parameter>,
}

/// Settings that a server reports and no client can set.
const FIXED: [&[u8]; 6] = [
    b"server_version",
    b"server_encoding",
    b"integer_datetimes",
    b"in_hot_standby",
    b"is_superuser",
    b"session_authorization",
];

impl ServerParameters {
    /// Whether this one is reported, and no client can set it.
    pub fn is_fixed(name: &[u8]) -> bool {
        FIXED.contains(&name)
    }

    /// Those that a session can set.
    pub fn settable(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let pairs = self.pairs.iter().filter(|(name, _)| !Self::is_fixed(name));
        pairs.map(|(name, value)| (&**name, &**value))
    }

    /// The value of a setting, whatever the case of its name.
    pub fn get(&self, name: &[u8]) -> Option<&[u8]> {
        self.pairs.iter().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, value)| &**value)
    }

    /// Whether it is a standby, where nothing can listen.
    pub(crate) fn is_standby(&self) -> bool {
        self.get(b"in_hot_standby") == Some(b"on")
    }

    /// The first number of the server's version; 0 if it reports none.
    pub fn major_version(&self) -> u32 {
        let version = self.get(b"server_version").unwrap_or_default();
        let digits = version.split(|byte| !byte.is_ascii_digit()).next().unwrap_or_default();
        std::str::from_utf8(digits).ok().and_then(|major| major.parse().ok()).unwrap_or(0)
    }

    /// Puts a value in.
    pub fn set(&mut self, name: &[u8], value: &[u8]) {
        match self.pairs.iter_mut().find(|(n, _)| n.eq_ignore_ascii_case(name)) {
            Some((_, old)) => *old = value.into(),
            None => self.pairs.push((name.into(), value.into())),
        }
    }
}
