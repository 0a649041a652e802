//! Settings that take one of a few words.

use std::fmt;

use super::error::Rejected;
use super::setting::Setting;
use super::value::{Context, Raw, SettingType, items};

macro_rules! choices {
    ($( $(#[$doc:meta])* $Name:ident: $kind:literal { $( $(#[$vdoc:meta])* $Variant:ident = $word:literal, )+ } )+) => { $(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $Name { $( $(#[$vdoc])* $Variant, )+ }

        impl $Name {
            /// Every choice, in the order of the reference.
            pub const ALL: &'static [Self] = &[$( Self::$Variant, )+];

            /// As it is written in a configuration.
            #[must_use]
            pub fn as_str(self) -> &'static str {
                match self { $( Self::$Variant => $word, )+ }
            }

            /// The choice that is written so.
            #[must_use]
            pub fn from_word(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|choice| choice.as_str() == word)
            }
        }

        impl fmt::Display for $Name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.as_str())
            }
        }

        impl SettingType for $Name {
            const KIND: &'static str = concat!("one of ", $kind);

            fn parse(raw: &Raw<'_>, _: Context<'_>) -> Result<Self, Rejected> {
                match raw {
                    Raw::String(word) | Raw::Text(word) => Self::from_word(word).ok_or_else(|| {
                        Rejected::new(format!("`{word}` is not known: allowed is {}", Self::KIND))
                    }),
                    _ => Err(Rejected::new(format!("expected a string, {}", Self::KIND))),
                }
            }

            fn show(&self, _: &Setting) -> String {
                self.as_str().to_owned()
            }
        }

        #[cfg(test)]
        impl $Name {
            fn kind_names_every_word() -> bool {
                Self::ALL.iter().map(|c| c.as_str()).collect::<Vec<_>>().join(", ") == $kind
            }
        }
    )+

        #[cfg(test)]
        mod tests {
            #[test]
            fn the_allowed_words_in_messages_are_the_words_that_are_allowed() {
                $( assert!(super::$Name::kind_names_every_word(), stringify!($Name)); )+
            }
        }
    };
}

choices! {
    /// What becomes of session state that does not move to another server connection.
    Fidelity: "full, classic" {
        /// Nothing of a session is lost: what cannot move keeps its server connection.
        Full = "full",
        /// As other poolers do: what cannot move is lost when the transaction ends.
        Classic = "classic",
    }

    /// What a statement does, as a rule tells statements apart.
    StatementKind: "read, write, ddl" {
        /// SELECT and the like.
        Read = "read",
        /// INSERT, UPDATE, DELETE and the like.
        Write = "write",
        /// CREATE, ALTER, DROP and the like.
        Ddl = "ddl",
    }

    /// Where clients stand among those that wait.
    RulePriority: "low, high" {
        /// After the others.
        Low = "low",
        /// Before the others.
        High = "high",
    }

    /// Which queries are counted.
    TrackQueries: "off, top" {
        /// None.
        Off = "off",
        /// Those that clients send.
        Top = "top",
    }

    /// Whether the PostgreSQL extension is asked what sessions hold.
    ExtensionUse: "auto, off" {
        /// Where a server has it.
        Auto = "auto",
        /// Never.
        Off = "off",
    }

    /// What becomes of server connections when the lease of shared limits cannot be renewed.
    EtcdLost: "keep, close" {
        /// They stay.
        Keep = "keep",
        /// They are closed at the end of their transactions.
        Close = "close",
    }

    /// Whether servers are sent a header of the PROXY protocol, and which.
    ProxyProtocol: "off, v1, v2" {
        /// None.
        Off = "off",
        /// Of version 1: text.
        V1 = "v1",
        /// Of version 2: binary.
        V2 = "v2",
    }

    /// What server connections are handed over for.
    HandOver: "users, addresses" {
        /// Clients of all users share them.
        Users = "users",
        /// The server knows whose each transaction is; each user has a pool.
        Addresses = "addresses",
    }

    /// When a server connection goes back to its pool.
    PoolMode: "session, transaction, statement" {
        /// When the client disconnects.
        Session = "session",
        /// When the transaction ends.
        Transaction = "transaction",
        /// After each statement; transaction blocks are refused.
        Statement = "statement",
    }

    /// How far TLS is wanted; libpq's words.
    TlsMode: "disable, allow, prefer, require, verify-ca, verify-full" {
        /// Never.
        Disable = "disable",
        /// If the other end wants it.
        Allow = "allow",
        /// If the other end can.
        Prefer = "prefer",
        /// Always, whatever the certificate.
        Require = "require",
        /// Always, with a certificate that a known authority signed.
        VerifyCa = "verify-ca",
        /// The same, and the certificate must bear the host's name.
        VerifyFull = "verify-full",
    }

    /// How TLS with a server begins; libpq's `sslnegotiation`.
    TlsNegotiation: "postgres, direct" {
        /// By an SSLRequest, as all versions know it.
        Postgres = "postgres",
        /// At once with ALPN, one round trip less: PostgreSQL 17 and later.
        Direct = "direct",
    }

    /// Whether an end of a link compresses what it sends.
    LinkCompression: "none, auto" {
        /// Nothing.
        None = "none",
        /// Bulk that shrinks, where the paths are what limits it.
        Auto = "auto",
    }

    /// What becomes of clients that listen when the connection is lost that listens for them.
    ListenLost: "disconnect, notice" {
        /// They are disconnected, as they would be with one of their own.
        Disconnect = "disconnect",
        /// They get a warning, and are listened for again.
        Notice = "notice",
    }

    /// Whether local connections go past TCP.
    BypassUse: "off, auto, on" {
        /// They go over TCP.
        Off = "off",
        /// Past it, where the machine lets us and the self-test passes.
        Auto = "auto",
        /// Past it, or the process does not start.
        On = "on",
    }

    /// Whether connections to a server are Multipath TCP.
    MptcpUse: "off, prefer, require" {
        /// Plain TCP.
        Off = "off",
        /// MPTCP where both ends and all between speak it, else plain TCP.
        Prefer = "prefer",
        /// MPTCP, or no connection.
        Require = "require",
    }

    /// Which server of several will do; libpq's words.
    TargetSessionAttrs: "any, read-write, read-only, primary, standby, prefer-standby" {
        /// Any that lets us in.
        Any = "any",
        /// One whose sessions can write by default.
        ReadWrite = "read-write",
        /// One whose sessions cannot write by default.
        ReadOnly = "read-only",
        /// One that is not in recovery.
        Primary = "primary",
        /// One that is in recovery.
        Standby = "standby",
        /// One in recovery if there is any, else any.
        PreferStandby = "prefer-standby",
    }

    /// Which server of several a new connection tries first.
    LoadBalanceHosts: "disable, round-robin" {
        /// The first in the list that works.
        Disable = "disable",
        /// Each in turn.
        RoundRobin = "round-robin",
    }

    /// How clients prove who they are.
    AuthType: "trust, md5, scram-sha-256, cert, plain, any, hba" {
        /// By nothing; the user must be known.
        Trust = "trust",
        /// By MD5, or by SCRAM where the stored secret is one.
        Md5 = "md5",
        /// By SCRAM-SHA-256.
        ScramSha256 = "scram-sha-256",
        /// By a TLS certificate with the user's name.
        Cert = "cert",
        /// By the password itself on the wire.
        Plain = "plain",
        /// By nothing, whatever name is given: every database needs a forced user.
        Any = "any",
        /// As the rules of `hba_file` say.
        Hba = "hba",
    }

    /// Which release of PgBouncer the console on database `pgbouncer` is like.
    ConsoleVersion: "1.23, 1.24, 1.25, 1.26" {
        /// PgBouncer 1.23.
        V1_23 = "1.23",
        /// PgBouncer 1.24.
        V1_24 = "1.24",
        /// PgBouncer 1.25.
        V1_25 = "1.25",
        /// PgBouncer 1.26.
        V1_26 = "1.26",
    }

    /// The shape of log lines.
    LogFormat: "text, json, pgbouncer" {
        /// For readers.
        Text = "text",
        /// For machines, one object a line.
        Json = "json",
        /// Lines as PgBouncer writes them.
        PgBouncer = "pgbouncer",
    }

    /// Which of syslog's facilities.
    SyslogFacility: "auth, authpriv, daemon, user, local0, local1, local2, local3, local4, local5, local6, local7" {
        /// Security.
        Auth = "auth",
        /// Security, for few readers.
        AuthPriv = "authpriv",
        /// Daemons.
        Daemon = "daemon",
        /// Users' programs.
        User = "user",
        /// Of the site.
        Local0 = "local0",
        /// Of the site.
        Local1 = "local1",
        /// Of the site.
        Local2 = "local2",
        /// Of the site.
        Local3 = "local3",
        /// Of the site.
        Local4 = "local4",
        /// Of the site.
        Local5 = "local5",
        /// Of the site.
        Local6 = "local6",
        /// Of the site.
        Local7 = "local7",
    }

    /// The least important event that is logged.
    LogLevel: "error, warn, info, debug, trace" {
        /// Failures that need an operator.
        Error = "error",
        /// Events that may need an operator.
        Warn = "warn",
        /// Changes of state.
        Info = "info",
        /// What led to them.
        Debug = "debug",
        /// Every message.
        Trace = "trace",
    }
}

/// The TLS versions that are allowed; at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TlsVersions {
    /// TLS 1.2.
    pub v1_2: bool,
    /// TLS 1.3.
    pub v1_3: bool,
}

impl SettingType for TlsVersions {
    const KIND: &'static str = "one or more of secure, tlsv1.2, tlsv1.3";

    fn parse(raw: &Raw<'_>, _: Context<'_>) -> Result<Self, Rejected> {
        let mut versions = Self { v1_2: false, v1_3: false };
        let (items, mut refusals) = items::<Self>(raw)?;
        for (word, at) in items {
            match word {
                "secure" => versions = Self { v1_2: true, v1_3: true },
                "tlsv1.2" => versions.v1_2 = true,
                "tlsv1.3" => versions.v1_3 = true,
                _ => {
                    let message = format!(
                        "`{word}` is not a TLS version that is offered: allowed is {}",
                        Self::KIND
                    );
                    refusals.add(Rejected::new(message).at(at));
                }
            }
        }
        refusals.or(())?;
        if !versions.v1_2 && !versions.v1_3 {
            return Err(Rejected::new(format!("no TLS version: allowed is {}", Self::KIND)));
        }
        Ok(versions)
    }

    fn show(&self, _: &Setting) -> String {
        match (self.v1_2, self.v1_3) {
            (true, true) => "secure",
            (true, false) => "tlsv1.2",
            _ => "tlsv1.3",
        }
        .to_owned()
    }
}

impl SyslogFacility {
    /// Its code, RFC 5424 section 6.2.1.
    #[must_use]
    pub fn facility(self) -> u8 {
        match self {
            Self::User => 1,
            Self::Daemon => 3,
            Self::Auth => 4,
            Self::AuthPriv => 10,
            Self::Local0 => 16,
            Self::Local1 => 17,
            Self::Local2 => 18,
            Self::Local3 => 19,
            Self::Local4 => 20,
            Self::Local5 => 21,
            Self::Local6 => 22,
            Self::Local7 => 23,
        }
    }
}
