//! Who may log in, and what is known about them: rules, maps, users and their secrets, from files
//! and the configuration.
//!
//! # Invariants
//! * a reload replaces it as a whole; a login uses one state from its beginning to its end
//! * keys derived from plain passwords are made when the secrets are loaded, in the background: a
//!   first login takes no longer than the next

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use hawser_pooler::wire::error::{ClientError, SqlState};
use rustls::ClientConfig;

use super::key_sets::KeySets;
use super::roles;
use crate::auth::hba::HbaRules;
use crate::auth::ident::IdentMap;
use crate::auth::scram::{Account, MockNonce, Preparation, ScramKeys};
use crate::auth::secret::{PasswordEncryption, Secret};
use crate::auth::userlist::Userlist;
use crate::config::{Config, DatabaseConfig, ForcedUser, Password};
use crate::dial::enter::Credentials;
use crate::lock::locked;
use crate::tls::connect::outward;

/// The source of a user's secret: servers may have different passwords for the same name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum SecretOrigin {
    /// The files, or the user itself.
    User,
    /// This `[[database]]`: its `password`, or a lookup there.
    Database(String),
}

/// Users whose credentials for servers are kept; beyond this number, only for users that have
/// pools.
const CREDENTIALS_MAX: usize = 10_000;

/// Plain passwords whose keys are derived in advance; beyond this number, at the first login.
const DERIVED_IN_ADVANCE_MAX: usize = 10_000;

/// How many secrets there are of each kind.
#[derive(Debug, Default, Clone, Copy)]
struct SecretKinds {
    /// Stored as md5, or in clear text, from which md5 can be computed.
    md5: u64,
    scram: u64,
}

impl SecretKinds {
    fn count(&mut self, secret: &Secret) {
        match secret {
            Secret::Plain(_) | Secret::Md5(_) => self.md5 = self.md5.saturating_add(1),
            Secret::Scram(_) => self.scram = self.scram.saturating_add(1),
            Secret::None => {}
        }
    }
}

/// Who may log in.
#[derive(Debug, Default)]
pub struct Access {
    /// The rules, if `auth_type` is `hba`.
    pub hba: Option<HbaRules>,
    /// Maps of system names.
    pub ident: Option<IdentMap>,
    /// The keys of issuers of tokens.
    pub key_sets: KeySets,
    /// TLS towards servers that check logins.
    outward: Option<Arc<ClientConfig>>,
    own: HashMap<String, Secret>,
    list: Userlist,
    /// The kinds of the secrets that the files have.
    stored: SecretKinds,
    /// The kinds of looked-up secrets, one for each lookup.
    looked_up: Mutex<SecretKinds>,
    derived: Mutex<HashMap<String, ScramKeys>>,
    /// What users have shown, and known passwords, for logins to servers.
    credentials: Mutex<HashMap<(String, SecretOrigin), Arc<Credentials>>>,
}

impl Access {
    /// Reads all files that the configuration names.
    ///
    /// # Errors
    /// All errors in them.
    pub fn load(config: &Config) -> Result<Self, Vec<String>> {
        let auth = &config.reload.auth;
        let mut errors = Vec::new();
        let mut access = Self::default();
        if let Some(path) = &auth.hba_file {
            match HbaRules::load(path) {
                Ok(rules) => {
                    rules.notices().for_each(|notice| tracing::warn!("{notice}"));
                    errors.extend(unknown_roles(config, &rules));
                    if rules.asks_others() {
                        match outward(auth.auth_ca_file.as_deref()) {
                            Ok(tls) => access.outward = Some(tls),
                            Err(error) => errors.push(error.to_string()),
                        }
                    }
                    access.hba = Some(rules);
                }
                Err(error) => errors.push(error.to_string()),
            }
        }
        if let Some(path) = &auth.ident_file {
            match IdentMap::load(path) {
                Ok(map) => access.ident = Some(map),
                Err(error) => errors.push(error.to_string()),
            }
        }
        if let Some(path) = &auth.users_file {
            match Userlist::load(path) {
                Ok(list) => access.list = list,
                Err(error) => errors.push(error.to_string()),
            }
        }
        for user in config.users() {
            let text = user.password.as_ref().map(Password::expose);
            match Secret::parse(text) {
                Ok(secret) => {
                    access.own.insert(user.name().to_owned(), secret);
                }
                Err(error) => errors.push(format!("user \"{}\": {error}", user.name())),
            }
        }
        access.stored = access.kinds_stored(auth.auth_user.as_deref());
        if errors.is_empty() { Ok(access) } else { Err(errors) }
    }

    /// Counts the secrets in the files. That of `auth_user` is no sample: it is a plain password
    /// while all others are looked up.
    fn kinds_stored(&self, auth_user: Option<&str>) -> SecretKinds {
        let own = self.own.iter().map(|(name, secret)| (name.as_str(), secret));
        let mut kinds = SecretKinds::default();
        for (_, secret) in own.chain(self.list.iter()).filter(|(name, _)| auth_user != Some(*name))
        {
            kinds.count(secret);
        }
        kinds
    }

    /// Counts the kind of a looked-up secret: Hawser knows no others of the server's secrets.
    pub fn count_looked_up(&self, secret: &Secret) {
        locked(&self.looked_up).count(secret);
    }

    /// What method `md5` asks of users without a known secret, including unknown users: the same as
    /// of most others, so that a stranger cannot distinguish them. Before any secret has been seen:
    /// md5, as the method is called.
    pub fn password_encryption(&self) -> PasswordEncryption {
        let looked_up = *locked(&self.looked_up);
        let md5 = self.stored.md5.saturating_add(looked_up.md5);
        let scram = self.stored.scram.saturating_add(looked_up.scram);
        if md5 > scram || (md5, scram) == (0, 0) {
            PasswordEncryption::Md5
        } else {
            PasswordEncryption::ScramSha256
        }
    }

    /// Takes over what users have shown since the start, and the keys of issuers that may not answer now.
    pub fn keep_from(&self, old: &Self) {
        fn taken<T: Clone>(of: &Mutex<T>) -> T {
            locked(of).clone()
        }
        *locked(&self.credentials) = taken(&old.credentials);
        *locked(&self.looked_up) = taken(&old.looked_up);
        self.key_sets.keep_from(&old.key_sets);
    }

    /// TLS towards servers that check logins; present if rules name such servers.
    pub fn outward_tls(&self) -> Option<Arc<ClientConfig>> {
        self.outward.clone()
    }

    /// The changes in the files of `new`, a line each, for the log: without secrets.
    pub fn changes(&self, new: &Self) -> Vec<String> {
        let mut all = Vec::new();
        let records = |rules: &Option<HbaRules>| rules.as_ref().map(|rules| format!("{rules:?}"));
        if records(&self.hba) != records(&new.hba) {
            all.push("the rules of hba_file changed".to_owned());
        }
        let maps = |map: &Option<IdentMap>| map.as_ref().map(|map| format!("{map:?}"));
        if maps(&self.ident) != maps(&new.ident) {
            all.push("the maps of ident_file changed".to_owned());
        }
        let in_old = |name: &str| self.list.get(name);
        let added = new.list.iter().filter(|(name, _)| in_old(name).is_none()).count();
        let gone = self.list.iter().filter(|(name, _)| new.list.get(name).is_none()).count();
        let changed =
            |(name, secret): &(&str, &Secret)| in_old(name).is_some_and(|old| old != *secret);
        let changed = new.list.iter().filter(changed).count();
        if added + gone + changed > 0 {
            all.push(format!(
                "users_file: {added} users added, {gone} removed, {changed} with a new secret"
            ));
        }
        all
    }

    /// The secret of a user, if the configuration or the users file has the user: `[[user]]` first,
    /// unless it has no password.
    pub fn secret(&self, user: &str) -> Option<&Secret> {
        let own = self.own.get(user);
        match own {
            Some(Secret::None) | None => self.list.get(user).or(own),
            own => own,
        }
    }

    /// The users that the configuration and the users file have, each perhaps twice, in no order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.own.keys().map(String::as_str).chain(self.list.iter().map(|(name, _)| name))
    }

    /// The credentials for logins to servers as this user.
    pub fn credentials(&self, user: &str) -> Arc<Credentials> {
        let secret = self.secret(user).unwrap_or(&Secret::None);
        self.credentials_from((user, SecretOrigin::User), secret)
    }

    /// The same for the user of the `[[database]]` of that name.
    ///
    /// # Errors
    /// Its password cannot be used.
    pub fn credentials_of(
        &self,
        forced: &ForcedUser,
        database: &str,
    ) -> Result<Arc<Credentials>, ClientError> {
        let Some(password) = &forced.password else {
            return Ok(self.credentials(&forced.name));
        };
        let secret = Secret::parse(Some(password.expose())).map_err(|error| {
            ClientError::fatal(
                SqlState::INVALID_AUTHORIZATION,
                format!("the password of user \"{}\" cannot be used: {error}", forced.name),
            )
        })?;
        let origin = SecretOrigin::Database(database.to_owned());
        Ok(self.credentials_from((&forced.name, origin), &secret))
    }

    /// The source of the secret of a user that logs in to a database.
    pub fn origin(&self, user: &str, secret: &Secret, database: &str) -> SecretOrigin {
        match (secret, self.secret(user)) {
            (Secret::None, _) | (_, Some(Secret::Plain(_) | Secret::Md5(_) | Secret::Scram(_))) => {
                SecretOrigin::User
            }
            _ => SecretOrigin::Database(database.to_owned()),
        }
    }

    /// The same for a user whose secret is known.
    pub fn credentials_from(
        &self,
        (user, origin): (&str, SecretOrigin),
        secret: &Secret,
    ) -> Arc<Credentials> {
        self.keep((user, origin), secret, || Credentials::new(secret, None))
    }

    /// The same for a user that has sent the password for `stored`. The password stays when the
    /// user's next client proves itself without sending one.
    pub fn credentials_shown(
        &self,
        (user, origin): (&str, SecretOrigin),
        sent: &str,
        stored: &Secret,
    ) -> Arc<Credentials> {
        let secret = Secret::Plain(sent.into());
        self.keep((user, origin), &secret, || Credentials::shown(sent, stored))
    }

    fn keep(
        &self,
        (user, origin): (&str, SecretOrigin),
        secret: &Secret,
        make: impl Fn() -> Credentials,
    ) -> Arc<Credentials> {
        let key = (user.to_owned(), origin);
        let mut all = locked(&self.credentials);
        if all.len() >= CREDENTIALS_MAX && !all.contains_key(&key) {
            all.retain(|_, known| Arc::strong_count(known) > 1); // those in use by pools
        }
        match all.get_mut(&key) {
            Some(known) if known.cover(secret) => known.clone(),
            Some(known) => {
                *known = Arc::new(make());
                known.clone()
            }
            None => all.entry(key).or_insert_with(|| Arc::new(make())).clone(),
        }
    }

    /// The account that SCRAM checks a user against, if no keys have to be derived for it. Unknown
    /// users have one too, so that they take the same time.
    pub fn account_at_hand(
        &self,
        user: &str,
        secret: &Secret,
        mock: &MockNonce,
    ) -> Option<Account> {
        match Account::prepare(user, secret, mock) {
            Preparation::Ready(account) => Some(account),
            Preparation::Derive(_) => {
                let derived = locked(&self.derived);
                derived.get(user).map(|keys| Account::known(keys.verifier().clone()))
            }
        }
    }

    /// The account that SCRAM checks a user against. Slow if keys have to be derived: never on a
    /// loop.
    pub fn account(&self, user: &str, secret: &Secret, mock: &MockNonce) -> Account {
        let derivation = match Account::prepare(user, secret, mock) {
            Preparation::Ready(account) => return account,
            Preparation::Derive(derivation) => derivation,
        };
        let derived = locked(&self.derived);
        if let Some(keys) = derived.get(user) {
            return Account::known(keys.verifier().clone());
        }
        drop(derived);
        let keys = derivation.run();
        let account = Account::known(keys.verifier().clone());
        // A looked-up secret may change without a reload.
        if self.secret(user) == Some(secret) {
            let mut derived = locked(&self.derived);
            derived.insert(user.to_owned(), keys);
        }
        account
    }

    /// Derives the keys of plain passwords. Takes milliseconds for each.
    pub fn derive_in_advance(&self, mock: &MockNonce) {
        let plain = |(name, secret): (&str, &Secret)| {
            matches!(secret, Secret::Plain(_)).then(|| name.to_owned())
        };
        let own = self.own.iter().map(|(name, secret)| (name.as_str(), secret));
        let names = own.chain(self.list.iter()).filter_map(plain).take(DERIVED_IN_ADVANCE_MAX);
        for name in names {
            if let Some(secret) = self.secret(&name) {
                self.account(&name, secret, mock);
            }
        }
    }
}

/// Databases whose server cannot be asked for the members of roles that `rules` need.
fn unknown_roles(config: &Config, rules: &HbaRules) -> Vec<String> {
    let Some(location) = rules.asks_for_roles() else { return Vec::new() };
    let unknown = |database: &&DatabaseConfig| roles::place(config, database).is_none();
    let error = |database: &DatabaseConfig| {
        let name = &database.name;
        format!(
            "{location}: the server is asked for the members of a role: database \"{name}\" needs \
             auth_user, or user, to ask as, and where it has no dbname and is \"*\" auth_dbname to \
             ask in"
        )
    };
    config.databases().iter().filter(unknown).map(error).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRAM: &str = "SCRAM-SHA-256$4096:c2FsdHNhbHRzYWx0c2FsdA==$WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY=:wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU=";

    /// Unknown users were asked by SCRAM, which distinguished them from known ones by method md5.
    #[test]
    fn nothing_stored_counts_as_most_secrets_are() {
        let md5 = format!("md5{}", "a".repeat(32));
        for (secrets, auth_user, expected) in [
            (&["plain"][..], None, PasswordEncryption::Md5),
            (&[md5.as_str(), "", SCRAM, "plain"], None, PasswordEncryption::Md5),
            (&[SCRAM, SCRAM, "plain"], None, PasswordEncryption::ScramSha256),
            (&[SCRAM, "plain"], Some("1"), PasswordEncryption::ScramSha256),
            (&["plain"], Some("0"), PasswordEncryption::Md5),
            (&[], None, PasswordEncryption::Md5),
        ] {
            let mut access = Access::default();
            for (name, secret) in secrets.iter().enumerate() {
                access.own.insert(name.to_string(), Secret::parse(Some(secret)).unwrap());
            }
            access.stored = access.kinds_stored(auth_user);
            assert_eq!(access.password_encryption(), expected, "{secrets:?}");
        }
    }

    /// If all are looked up, one packet distinguished unknown users from known ones.
    #[test]
    fn looked_up_secrets_count_and_are_remembered_by_a_reload() {
        let scram = Secret::parse(Some(SCRAM)).unwrap();
        let md5 = Secret::parse(Some(&format!("md5{}", "a".repeat(32)))).unwrap();
        let access = Access::default();
        access.count_looked_up(&Secret::None);
        assert_eq!(access.password_encryption(), PasswordEncryption::Md5, "none has been seen");
        access.count_looked_up(&scram);
        assert_eq!(access.password_encryption(), PasswordEncryption::ScramSha256);
        access.count_looked_up(&md5);
        access.count_looked_up(&md5);
        assert_eq!(access.password_encryption(), PasswordEncryption::Md5);
        let new = Access::default();
        new.count_looked_up(&scram);
        new.keep_from(&access);
        assert_eq!(new.password_encryption(), PasswordEncryption::Md5);
    }

    #[test]
    fn a_password_that_was_shown_outlives_clients_that_show_none() {
        let access = Access::default();
        let md5 = |digit: &str| Secret::parse(Some(&format!("md5{}", digit.repeat(32)))).unwrap();
        let (stored, changed) = (md5("a"), md5("b"));
        let ann = || ("ann", SecretOrigin::User);
        let shown = access.credentials_shown(ann(), "secret", &stored);
        assert!(Arc::ptr_eq(&shown, &access.credentials_from(ann(), &stored)), "by certificate");
        assert!(Arc::ptr_eq(&shown, &access.credentials_shown(ann(), "secret", &stored)));
        assert!(!Arc::ptr_eq(&shown, &access.credentials_from(ann(), &changed)));
    }

    /// Each of them replaced the other at every login, and so dropped the keys that its clients had
    /// shown.
    #[test]
    fn databases_with_another_password_for_one_user_keep_their_own() {
        let mut access = Access::default();
        access.own.insert("app".to_owned(), Secret::Plain("of the list".into()));
        let forced = |password: Option<&str>| ForcedUser {
            name: "app".to_owned(),
            password: password.map(|text| Password::new(text.to_owned())),
        };
        let (one, two) = (forced(Some("one")), forced(Some("two")));
        let first = access.credentials_of(&one, "one").unwrap();
        let second = access.credentials_of(&two, "two").unwrap();
        let listed = access.credentials("app");
        assert!(Arc::ptr_eq(&first, &access.credentials_of(&one, "one").unwrap()));
        assert!(Arc::ptr_eq(&second, &access.credentials_of(&two, "two").unwrap()));
        assert!(Arc::ptr_eq(&listed, &access.credentials_of(&forced(None), "three").unwrap()));
        assert!(!Arc::ptr_eq(&first, &second) && !Arc::ptr_eq(&first, &listed));
        let scram = Secret::parse(Some(SCRAM)).unwrap();
        assert_eq!(access.origin("app", &scram, "one"), SecretOrigin::User);
        assert_eq!(access.origin("ann", &scram, "one"), SecretOrigin::Database("one".to_owned()));
        assert_eq!(access.origin("ann", &Secret::None, "one"), SecretOrigin::User);
    }
}
