//! Every setting, once: its type, default, unit, range, PgBouncer's name, and what a change needs.
//!
//! # Model
//! One declaration makes the field of a typed group, its parser, its line of SHOW
//! CONFIG, its entry of the reference and its candidate for "did you mean"
//!
//! # Invariants
//! Within a table a name is unique; every default and every example parses; the
//! example is not the default, so that a setting that no code reads fails a test.
//!
//! # Why not
//! A derive macro: one more crate for what a declarative macro does.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::address::{ListenAddress, ServerAddress};
use super::choice::{
    AuthType, BypassUse, ConsoleVersion, EtcdLost, ExtensionUse, Fidelity, HandOver,
    LinkCompression, ListenLost, LoadBalanceHosts, LogFormat, LogLevel, PoolMode, ProxyProtocol,
    RulePriority, StatementKind, SyslogFacility, TargetSessionAttrs, TlsMode, TlsNegotiation,
    TlsVersions, TrackQueries,
};
use super::ciphers::{Tls13Ciphers, TlsCiphers, TlsCurves};
use super::congestion::Congestion;
use super::error::Rejected;
use super::inherited::Inherited;
use super::link::LinkPaths;
use super::peer::Peer;
use super::proxy::ProxySources;
use super::setting::{Change, Setting, Table, Unit};
use super::value::{
    Context, FileMode, Functions, InPlans, Limit, OptionalAddress, Password, Raw, SettingType,
    Size, Timeout,
};

/// The largest number without a range of its own.
const COUNT_MAX: u64 = u32::MAX as u64;
/// More server connections than any PostgreSQL takes (its own limit on max_connections is 262143).
const POOL_SIZE_MAX: u64 = 262_143;
/// Its number has a place of 24 bits: more is of no use to any server.
const INSIDE_SIZE_MAX: u64 = 1024;
/// PostgreSQL's own limit on one message, 1 GiB less one, with room for what clients may send.
const PACKET_MAX: u64 = 2_147_483_647;

/// What each group can do.
pub(super) trait Group {
    /// The value of each setting as SHOW CONFIG prints it.
    fn shown(&self) -> Vec<(&'static Setting, String)>;

    /// Puts what is set here `over` what holds for all.
    fn put_on(&self, general: &mut Inherited);
}

macro_rules! or {
    ($default:expr) => {
        $default
    };
    ($default:expr, $given:expr) => {
        $given
    };
}

/// Declares a group of settings: a struct with a field for each.
macro_rules! settings {
    ($(
        $(#[doc = $gdoc:literal])+
        $Group:ident in $table:ident, $change:ident {
            $(
                $(#[doc = $doc:literal])+
                $name:ident: $ty:ty = $default:literal $(, over $over:ident)?, example $example:literal
                    $(, range $range:expr)? $(, at_least $least:expr)? $(, unit $unit:ident)?
                    $(, pgbouncer $pgbouncer:literal)?;
            )+
        }
    )+) => { $(
        $(#[doc = $gdoc])+
        #[derive(Clone, Debug, PartialEq)]
        pub struct $Group { $( $(#[doc = $doc])+ pub $name: $ty, )+ }

        impl $Group {
            pub(super) const SETTINGS: &'static [Setting] = &[$( Setting {
                table: Table::$table,
                name: stringify!($name),
                kind: <$ty as SettingType>::KIND,
                form: <$ty as SettingType>::FORM,
                default: $default,
                default_in_words: <$ty as SettingType>::DEFAULT_IN_WORDS,
                unit: or!(Unit::None $(, Unit::$unit)?),
                range: or!(0..=COUNT_MAX $(, $range)?),
                has_range: <$ty as SettingType>::HAS_RANGE,
                min_duration: or!(Duration::ZERO $(, $least)?),
                pgbouncer: or!(None $(, Some($pgbouncer))?),
                change: Change::$change,
                doc: concat!($($doc, "\n"),+),
                example: $example,
            }, )+];

            pub(super) fn defaults() -> Self {
                let mut settings = Self::SETTINGS.iter();
                // The fields are in the order of SETTINGS: both come from the same repetition.
                $( let $name = <$ty as SettingType>::default_of(
                    settings.next().expect("SETTINGS has an entry for each field")); )+
                Self { $( $name, )+ }
            }

            /// Sets the field of `context.setting`; false if that is not of this group.
            pub(super) fn assign(&mut self, raw: &Raw<'_>, context: Context<'_>)
                -> Result<bool, Rejected>
            {
                if context.setting.table != Table::$table {
                    return Ok(false);
                }
                match context.setting.name {
                    $( stringify!($name) => {
                        self.$name = <$ty as SettingType>::parse(raw, context)?;
                    } )+
                    _ => return Ok(false),
                }
                Ok(true)
            }

        }

        impl Group for $Group {
            fn shown(&self) -> Vec<(&'static Setting, String)> {
                let mut settings = Self::SETTINGS.iter();
                vec![$( {
                    let setting = settings.next().expect("SETTINGS has an entry for each field");
                    (setting, self.$name.show(setting))
                }, )+]
            }

            fn put_on(&self, general: &mut Inherited) {
                let Inherited { .. } = general; // most groups stand over no other
                $( $( if let Some(value) = &self.$name {
                    Arc::make_mut(&mut general.$over).$name = value.clone().into();
                } )? )+
            }
        }
    )+

        /// Every setting, in the order of declaration.
        pub fn all() -> impl Iterator<Item = &'static Setting> {
            [$( $Group::SETTINGS ),+].into_iter().flatten()
        }
    };
}

/// The setting `name` of `table`, by our name or PgBouncer's.
#[must_use]
pub fn find(table: Table, name: &str) -> Option<&'static Setting> {
    all()
        .find(|s| s.table == table && s.name == name)
        .or_else(|| all().find(|s| s.table == table && s.pgbouncer == Some(name)))
}

/// The setting `name` of any table, those that stand alone first: what SET means by a name.
#[must_use]
pub fn find_by_name(name: &str) -> Option<&'static Setting> {
    let named = |s: &&Setting| s.pgbouncer == Some(name) || s.name == name;
    all().filter(|s| !s.table.is_array()).find(named).or_else(|| all().find(named))
}

/// The same, of a table that stands alone: not one of a single database or user.
#[must_use]
pub fn find_alone(name: &str) -> Option<&'static Setting> {
    find_by_name(name).filter(|setting| !setting.table.is_array())
}

settings! {
    /// Where clients connect. Kept by a reload: the sockets are open.
    ListenSettings in Listen, Restart {
        /// Where clients connect: `host:port`, `[v6]:port`, `*:port`, or a directory for a unix socket
        /// (`/run/postgresql`, `/run/postgresql:6433`), whose name has the port of the first TCP
        /// address, as libpq expects. `@name` in place of a directory is an abstract socket, which
        /// has no file: every user in this network namespace can connect to it. One string or a
        /// list.
        address: Vec<ListenAddress> = "127.0.0.1:6432", example "[\"127.0.0.1:7000\", \"/run/hawser\"]",
            pgbouncer "listen_addr";
        /// Permission bits of the unix sockets. Everyone who can write to a socket can connect.
        unix_socket_mode: FileMode = "0777", example "\"0770\"", pgbouncer "unix_socket_mode";
        /// The user that the unix sockets are given to. Only root can give them away.
        unix_socket_owner: Option<String> = "not set", example "\"postgres\"";
        /// The group that the unix sockets are given to.
        unix_socket_group: Option<String> = "not set", example "\"postgres\"",
            pgbouncer "unix_socket_group";
        /// How many connections the kernel holds before they are accepted. The kernel caps it at
        /// `net.core.somaxconn`, which is 4096 on today's systems: a storm of thousands of clients
        /// overflows PgBouncer's 128.
        backlog: u32 = "4096", example "128", range 1..=65535, pgbouncer "listen_backlog";
        /// Let the kernel hold a TCP connection back until its client has sent something, or for about
        /// a second: port scans then cost nothing. Addresses that take MPTCP (`mptcp = true`) are left
        /// out: the kernel would drop the handshakes of further subflows.
        tcp_defer_accept: bool = "true", example "false", pgbouncer "tcp_defer_accept";
        /// Take Multipath TCP on the TCP addresses: one connection over several paths, for clients
        /// that speak it; plain TCP from all others. Further subflows need endpoints: `hawser mptcp
        /// setup server`, see [MPTCP](mptcp.md). Where the kernel has no MPTCP, plain TCP is
        /// served, and `hawser status` says so.
        mptcp: bool = "false", example "true";
    }

    /// Options of every connection, of clients and to servers; those that are open keep theirs.
    NetworkSettings in Listen, Reload {
        /// TCP keepalive, towards clients and servers. The next three settings are for clients;
        /// servers are probed so that `server_lost_timeout` holds, by these only where it is 0.
        tcp_keepalive: bool = "true", example "false", pgbouncer "tcp_keepalive";
        /// Silence before the first keepalive probe; 0 leaves it to the system, which waits two
        /// hours. A client whose machine has vanished is disconnected after two minutes, and
        /// releases its place and its locks; a shorter outage of the network ends no connection.
        /// Most load balancers and NAT devices forget idle connections after four minutes or more:
        /// a probe each minute keeps them.
        tcp_keepidle: Timeout = "60s", example "\"30s\"", unit Seconds, pgbouncer "tcp_keepidle";
        /// Time between keepalive probes; 0 leaves it to the system.
        tcp_keepintvl: Timeout = "15s", example "\"10s\"", unit Seconds, pgbouncer "tcp_keepintvl";
        /// Probes without an answer after which the other end counts as dead; 0 leaves it to the
        /// system.
        tcp_keepcnt: u32 = "4", example "3", range 0..=127, pgbouncer "tcp_keepcnt";
        /// How long sent bytes may stay unacknowledged before the connection is given up; 0 leaves it
        /// to the system, which takes about a quarter of an hour.
        tcp_user_timeout: Timeout = "0", example "\"30s\"", unit Milliseconds,
            pgbouncer "tcp_user_timeout";
        /// The kernel's send and receive buffers of each connection; 0 leaves them to the system, which
        /// tunes them by itself. Setting a size ends that.
        tcp_socket_buffer: Size = "0", example "\"256KiB\"", range 0..=1 << 30, unit Bytes,
            pgbouncer "tcp_socket_buffer";
        /// The congestion control of TCP connections that clients open. The side that sends
        /// decides, and results go to clients. `default` is the kernel's, unchanged; `auto` tries
        /// another if loss without a queue holds a connection back, and keeps it if it delivers at
        /// least 20 % more; a name (`bbr`, `cubic`) sets that algorithm. If the kernel does not
        /// have it, the log says so once, and `hawser status` shows it. `hawser cc list` shows what
        /// this machine has, [congestion control](congestion-control.md) how `auto` decides.
        congestion: Congestion = "default", example "\"auto\"";
        /// Manage the subflows of MPTCP connections, as `hawser mptcp manage` does: of every
        /// program in this network namespace, not only of Hawser. A separate process, which ends
        /// with this one, sets `net.mptcp.path_manager = userspace` meanwhile. It needs root or
        /// CAP_NET_ADMIN: with `user` set, turning it on takes a restart. Without the rights,
        /// without support in the kernel, or beside another manager, Hawser serves without it:
        /// `hawser status` says why. See [the path manager](mptcp.md#the-path-manager).
        mptcp_manage: bool = "false", example "true";
        /// Load balancers whose connections begin with a header of the PROXY protocol, version 1 or
        /// 2, which names the client: addresses, networks (`10.0.0.0/8`), `unix` for unix sockets.
        /// `@PORT` after one: only where Hawser listens on that port. The client's address then
        /// counts in `hba_file`, limits, the log and SHOW CLIENTS. A connection from here without
        /// such a header is refused, and so is a header from anywhere else. The header comes before
        /// TLS, within `client_login_timeout`. See [behind a load
        /// balancer](operations.md#behind-a-load-balancer).
        proxy_protocol_from: ProxySources = "", example "[\"10.0.0.0/8\", \"192.0.2.7@6433\"]";
        /// The largest single message that is allowed: a query, a bind or a row. A result as a
        /// whole may be larger. A client that sends a longer message is disconnected (54000); a
        /// server connection that does is closed. PostgreSQL's own limit of 1 GiB applies in any
        /// case.
        max_packet_size: Size = "2147483647", example "\"64MiB\"", range 1024..=PACKET_MAX, unit Bytes,
            pgbouncer "max_packet_size";
    }

    /// TLS with clients.
    ClientTlsSettings in Tls, Reload {
        /// `disable`: TLS is not offered. `allow` and `prefer`: the client chooses. `require`:
        /// clients without TLS are refused. `verify-ca` and `verify-full`: the client must also
        /// send a certificate of an authority in `client_tls_ca_file`.
        client_tls_sslmode: TlsMode = "disable", example "\"require\"", pgbouncer "client_tls_sslmode";
        /// The certificate chain that Hawser sends to clients (PEM). Read again by a reload.
        client_tls_cert_file: Option<PathBuf> = "not set", example "\"server.crt\"",
            pgbouncer "client_tls_cert_file";
        /// Its private key (PEM). Read again by a reload.
        client_tls_key_file: Option<PathBuf> = "not set", example "\"server.key\"",
            pgbouncer "client_tls_key_file";
        /// The authorities whose client certificates are accepted (PEM).
        client_tls_ca_file: Option<PathBuf> = "not set", example "\"ca.crt\"",
            pgbouncer "client_tls_ca_file";
        /// The TLS versions that clients may use; `secure` is 1.2 and 1.3. Older ones are not offered.
        client_tls_protocols: TlsVersions = "secure", example "\"tlsv1.3\"",
            pgbouncer "client_tls_protocols";
        /// The ciphers of TLS 1.2 that clients may use, by OpenSSL's names and groups; `default` is all
        /// that are offered: ECDHE with AES-GCM or ChaCha20-Poly1305.
        client_tls_ciphers: TlsCiphers = "default", example "\"ECDHE+AESGCM\"",
            pgbouncer "client_tls_ciphers";
        /// The same for TLS 1.3: `TLS_AES_256_GCM_SHA384`, `TLS_AES_128_GCM_SHA256`,
        /// `TLS_CHACHA20_POLY1305_SHA256`. Empty: all three.
        client_tls13_ciphers: Tls13Ciphers = "", example "\"TLS_AES_256_GCM_SHA384\"",
            pgbouncer "client_tls13_ciphers";
        /// The curves of the key exchange with clients: `X25519`, `prime256v1`, `secp384r1`. `auto`: all.
        client_tls_ecdhcurve: TlsCurves = "auto", example "\"prime256v1\"",
            pgbouncer "client_tls_ecdhcurve";
    }

    /// TLS with servers, where `[[database]]` says nothing else.
    ServerTlsSettings in Tls, Reload {
        /// libpq's `sslmode` towards servers. `verify-ca` and `verify-full` need
        /// `server_tls_ca_file`. With `prefer`, a server with which TLS fails is used without it,
        /// with a warning, and `hawser status` shows it while it lasts. Unix sockets never use TLS.
        /// A change replaces server connections.
        server_tls_sslmode: TlsMode = "prefer", example "\"require\"", pgbouncer "server_tls_sslmode";
        /// The authorities whose server certificates are accepted (PEM).
        server_tls_ca_file: Option<PathBuf> = "not set", example "\"ca.crt\"",
            pgbouncer "server_tls_ca_file";
        /// The certificate that Hawser sends to servers if they ask for one (PEM).
        server_tls_cert_file: Option<PathBuf> = "not set", example "\"client.crt\"",
            pgbouncer "server_tls_cert_file";
        /// Its private key (PEM).
        server_tls_key_file: Option<PathBuf> = "not set", example "\"client.key\"",
            pgbouncer "server_tls_key_file";
        /// The TLS versions that servers may use; `secure` is 1.2 and 1.3.
        server_tls_protocols: TlsVersions = "secure", example "\"tlsv1.3\"",
            pgbouncer "server_tls_protocols";
        /// The ciphers of TLS 1.2 that servers may use: as `client_tls_ciphers`.
        server_tls_ciphers: TlsCiphers = "default", example "\"ECDHE+AESGCM\"",
            pgbouncer "server_tls_ciphers";
        /// The ciphers of TLS 1.3 that servers may use: as `client_tls13_ciphers`.
        server_tls13_ciphers: Tls13Ciphers = "", example "\"TLS_AES_256_GCM_SHA384\"",
            pgbouncer "server_tls13_ciphers";
        /// How TLS begins: `postgres` asks first, `direct` starts with it and saves a round trip, which
        /// PostgreSQL 17 and later understand. libpq's `sslnegotiation`.
        server_tls_negotiation: TlsNegotiation = "postgres", example "\"direct\"";
    }

    /// How clients log in.
    AuthSettings in Auth, Reload {
        /// Rules in PostgreSQL's pg_hba.conf format. Read again by a reload. Implies `auth_type =
        /// "hba"`. If a rule names a host, a client's address is looked up both ways, as PostgreSQL
        /// does, and the answer is used for `dns_max_ttl`. A rule with `trust`, `cert` or `peer`
        /// accepts only known users (`users_file`, `[[user]]`, `auth_query`), as in PgBouncer; for
        /// a database with `hand_over_secret_file` the server knows them. With `ldap`, `pam` and
        /// `oauth` the directory or the issuer knows the users.
        hba_file: Option<PathBuf> = "not set", example "\"pg_hba.conf\"", pgbouncer "auth_hba_file";
        /// Maps of system names to database users, in PostgreSQL's pg_ident.conf format.
        ident_file: Option<PathBuf> = "not set", example "\"pg_ident.conf\"",
            pgbouncer "auth_ident_file";
        /// The authorities, in PEM, of LDAP servers and of addresses from which keys of tokens are read.
        auth_ca_file: Option<PathBuf> = "the system's", example "\"ca.crt\"";
        /// Users and their passwords or stored secrets, in PgBouncer's format: `"name" "secret"` a line.
        users_file: Option<PathBuf> = "not set", example "\"userlist.txt\"", pgbouncer "auth_file";
        /// How clients authenticate if there is no `hba_file`: `scram-sha-256`, `md5` (SCRAM if the
        /// stored secret is SCRAM; unknown users get what most secrets need, stored ones and those
        /// that were looked up, or md5 while none is known), `cert` (the user must still be known),
        /// `plain`, `trust` (likewise), `any` (every database needs a forced `user`), or `hba`.
        /// PgBouncer's default is `md5`.
        auth_type: Option<AuthType> = "hba with an hba_file, else scram-sha-256", example "\"md5\"",
            pgbouncer "auth_type";
        /// The user that looks up, by `auth_query`, users that are neither in `users_file` nor in
        /// `[[user]]`. Its own password is taken from there.
        auth_user: Option<String> = "not set", example "\"hawser\"", pgbouncer "auth_user";
        /// The query that gives name and stored secret of user `$1`; a secret that is NULL refuses
        /// the login. Only a superuser may read pg_authid: use a function that is SECURITY DEFINER
        /// instead. The connection has the search_path `pg_catalog, public`, whatever the
        /// database's is: write the schema of everything else.
        auth_query: String = "SELECT rolname, CASE WHEN rolvaliduntil OPERATOR(pg_catalog.<) pg_catalog.now() THEN NULL ELSE rolpassword END FROM pg_catalog.pg_authid WHERE rolname OPERATOR(pg_catalog.=) $1 AND rolcanlogin",
            example "\"SELECT * FROM auth.lookup($1)\"", pgbouncer "auth_query";
        /// The `[[database]]` in which `auth_query` runs; without it, the one that the client asks for.
        auth_dbname: Option<String> = "not set", example "\"app\"", pgbouncer "auth_dbname";
        /// The longest time for which an address is refused (28000) after failed logins. After ten wrong
        /// passwords for a user it is refused for that user for a second after each further one, then for
        /// two, four and so on up to this. No other address is refused, and no user that has logged in
        /// from there before. 0: never, as in PostgreSQL. See [failed logins](security.md#failed-logins).
        failed_login_delay_max: Timeout = "0", example "\"60s\"", unit Seconds;
        /// Users who may use all commands on the admin database. One string with commas, or a list.
        admin_users: Vec<String> = "", example "[\"alice\"]", pgbouncer "admin_users";
        /// Users who may use SHOW on the admin database.
        stats_users: Vec<String> = "", example "[\"prometheus\"]", pgbouncer "stats_users";
    }

    /// The shape of pools, where `[[database]]` and `[[user]]` say nothing else.
    PoolSettings in Pool, Reload {
        /// When a server connection goes back to its pool: after the client's `session`, after each
        /// `transaction`, or after each `statement` (transaction blocks are then refused). PgBouncer's
        /// default is `session`.
        pool_mode: PoolMode = "transaction", example "\"session\"", pgbouncer "pool_mode";
        /// What becomes of session state that cannot move to another server connection (temporary
        /// tables, advisory locks ...) where `pool_mode` is not `session`. `full`: its client keeps
        /// the connection while the state exists. `classic`: as with other poolers it is lost when
        /// the transaction ends; no other client finds it. Neither holds if the server is [another
        /// pooler in transaction mode](other-poolers.md).
        fidelity: Fidelity = "full", example "\"classic\"";
        /// Whether the [extension](extension.md) is asked what each session holds: what functions and
        /// triggers do to it is known then. `auto`: where a server has it, and in a version that is
        /// understood; others are served as with `off`. A change replaces server connections.
        extension: ExtensionUse = "auto", example "\"off\"";
        /// Server connections for clients at most, for each pair of user and database. Hawser's own
        /// connections are not counted: one for each database and role that asks for start values
        /// and the [census](sessions/functions.md), one for each that asks `auth_query` (both are
        /// closed when unused for 5 s), and one for each pool whose clients LISTEN. So a pool of 10
        /// may have 12 connections on the server. [`max_db_connections`](#max_db_connections),
        /// `max_user_connections`, `max_server_connections` and `max_server_connections_per_server`
        /// count these, too: set one of them to keep a promise to a DBA. No limit counts probes
        /// (see [`server_probe_interval`](#server_probe_interval)) and the connections of `hawser
        /// check` (two at a time).
        pool_size: u32 = "20", example "7", range 1..=POOL_SIZE_MAX, pgbouncer "default_pool_size";
        /// Server connections that are kept open even when no client needs them, for pools that
        /// have a client or a forced `user`. Never more than `pool_size`.
        min_pool_size: u32 = "0", example "2", range 0..=POOL_SIZE_MAX, pgbouncer "min_pool_size";
        /// Server connections that a pool may open beyond its size once a client has waited
        /// `reserve_pool_timeout`.
        reserve_pool_size: u32 = "0", example "5", range 0..=POOL_SIZE_MAX,
            pgbouncer "reserve_pool_size";
        /// How long a client waits before the reserve is opened for it; 0 never opens it.
        reserve_pool_timeout: Timeout = "5s", example "\"2s\"", unit Seconds,
            pgbouncer "reserve_pool_timeout";
        /// How many more server connections may open while clients idle inside transactions:
        /// transactions left open then delay no other client, and a pool of 20 can reach 40. A
        /// connection counts as idle, too, if its client has read nothing of its results for a
        /// second, or has sent nothing more of a message. Count them all against the server's
        /// max_connections. 0: `pool_size` bounds all, as in PgBouncer.
        idle_transaction_reserve: Option<u32> = "as pool_size", example "3", range 0..=POOL_SIZE_MAX;
        /// Server connections that a pool may open beyond its size when a client has waited for a
        /// second and all of the pool's own wait for locks, or are idle in a transaction or pinned:
        /// the client that has the locks may need another connection. If programs wait for one lock
        /// (migrations that start together), give as many as may start. While clients wait, Hawser
        /// asks the server once a second which connections wait for locks. 0: none are opened, and
        /// the hint of the error at `query_wait_timeout` has the number.
        lock_wait_reserve: u32 = "0", example "10", range 0..=POOL_SIZE_MAX;
        /// How many server connections of a pool clients may keep between transactions, for session
        /// state that does not move (SHOW PINS). One client more gets an error (53400) and is
        /// disconnected after the transaction that would let it keep one. By default, one
        /// connection is left for all others. 0: no bound.
        max_pinned: Option<Limit> = "`pool_size` and `idle_transaction_reserve` together, less one (at least 1)",
            example "5";
        /// What is sent to a server connection when a client of session mode has left it. "" sends
        /// nothing: the next client of session mode then finds what the last one has left. If the
        /// query fails, the connection is closed. Connections that clients of transaction mode have
        /// pinned get DISCARD ALL.
        server_reset_query: String = "DISCARD ALL", example "\"DEALLOCATE ALL\"",
            pgbouncer "server_reset_query";
        /// Lend the server connection that has been idle longest, not the one used last. For servers
        /// behind a balancer; costs a little, because the caches of the last one are warm.
        server_round_robin: bool = "false", example "true", pgbouncer "server_round_robin";
        /// Prepared statements kept on each server connection; beyond that, the one used longest
        /// ago is closed. A plain one takes some 12 kB of the server's memory. Raise it if clients
        /// have many different statements, or settings of their own: fewer statements are then
        /// prepared again. 0: no support of the protocol's prepared statements in transaction and
        /// statement mode.
        max_prepared_statements: u32 = "500", example "50", range 0..=1_000_000,
            pgbouncer "max_prepared_statements";
        /// How old a prepared statement on the server may be to be given to a client that parses
        /// the same text, without asking the server. Changes of the schema that pass through Hawser
        /// count at once; after any other change, a new client may get the old parameter types for
        /// this long. "0": each Parse goes to the server.
        parse_max_age: Duration = "1s", example "\"100ms\"", unit Seconds;
        /// Functions that keep something in variables of their language (SD and GD of PL/Python,
        /// %_SHARED of PL/Perl), with or without their schema: Hawser cannot find them by itself. A
        /// client whose statement has such a name as a word keeps its server connection until it
        /// disconnects, and the connection is closed after it; so does a client whose text is
        /// longer than 16 KiB, because longer texts are not searched. `hawser check` lists the
        /// functions in such languages.
        stateful_functions: Functions = "", example "[\"app.counts\"]";
        /// Whether clients with different custom settings (`my.user`) must not share a prepared
        /// statement. They must not if a function reads a custom setting although it is declared
        /// IMMUTABLE: it is evaluated when the statement is planned, and its plan is kept.
        /// `"auto"`: as the census says (`function_census`). If there is no such function, clients
        /// that differ in nothing else share statements, which saves most of what settings of their
        /// own cost. `true`: they never share them. `false`: they always do; you promise that there
        /// is no such function, also in extensions and in C (a function that reads a setting should
        /// be STABLE, as `current_setting` is). If the promise is broken, a client may get a result
        /// that follows from another client's setting; `hawser check` looks for such functions.
        custom_settings_in_plans: InPlans = "auto", example "false";
        /// Read the sources of the functions of the database for what they do to sessions: a client
        /// keeps what a function has set, made or locked, also if a trigger calls it. Hawser reads
        /// them once for each database, again after CREATE, ALTER and DROP, and, while the database
        /// is in use, once a second or more often if anything has changed (one query, by a server
        /// connection of Hawser's own). If the server has the extension `hawser`, its reports count
        /// instead. Functions in C are not read; those that EXECUTE a text which is not in their
        /// source cost a query after each transaction that may call them.
        function_census: bool = "true", example "false";
        /// Memory for the texts of all prepared statements of all clients together, and for the
        /// names that clients have given them. At the limit, Hawser forgets those that no client
        /// names any more. If that is not enough, a new statement is not shared, and its client
        /// keeps the server connection that has it. The same applies to the 8,193rd statement of
        /// one client, and to one with which its names and their texts would take more than a
        /// sixteenth of this memory (1 MiB at least).
        prepared_statements_memory: Size = "256MiB", example "\"32MiB\"", range 1 << 20..=1 << 40,
            unit Bytes;
        /// What happens to clients of transaction and statement mode that LISTEN when the server
        /// connection that listens for them is lost. `disconnect`: they are disconnected with the
        /// server's error, as with a connection of their own. `notice`: they get a warning that
        /// notifications may have been lost, and Hawser listens for them again.
        listen_lost: ListenLost = "disconnect", example "\"notice\"";
        /// Startup parameters that PgBouncer had to ignore by configuration. All are honoured here;
        /// those named here are dropped instead, as PgBouncer does.
        ignore_startup_parameters: Vec<String> = "", example "[\"extra_float_digits\"]",
            pgbouncer "ignore_startup_parameters";
    }

    /// How many connections there may be. 0 is no limit.
    LimitSettings in Pool, Reload {
        /// Clients in all. PgBouncer's default is 100. An idle client costs about a hundred bytes here,
        /// so the default only has to fit the descriptors that a process gets without asking: half of
        /// the 20,000 that strict containers allow.
        max_client_conn: u32 = "10000", example "500", range 1..=10_000_000, pgbouncer "max_client_conn";
        /// Clients of each database.
        max_db_client_connections: Limit = "0", example "100", pgbouncer "max_db_client_connections";
        /// Clients of each user.
        max_user_client_connections: Limit = "0", example "100",
            pgbouncer "max_user_client_connections";
        /// Clients that may wait for a server connection of one pool, beyond those for which one is
        /// being opened. One more is refused at once with 53300 and disconnected, so that it can
        /// try again elsewhere or later; without a limit it waits for `query_wait_timeout`. While
        /// the pool is paused, all wait.
        queue_limit: Limit = "0", example "200";
        /// Server connections of each database, of all users together, Hawser's own (see
        /// `pool_size`) included, except probes.
        max_db_connections: Limit = "0", example "50", pgbouncer "max_db_connections";
        /// Server connections of each user, whatever the database is.
        max_user_connections: Limit = "0", example "50", pgbouncer "max_user_connections";
        /// Server connections in all. At the limit, idle ones of other pools are closed to make room:
        /// of the pool that has most of them, the one idle longest. Where none is idle, the pool with
        /// most gives one up when it is released, until all busy pools have about as many.
        max_server_connections: Limit = "0", example "200";
        /// Server connections to each server address: keep it below the server's max_connections.
        max_server_connections_per_server: Limit = "0", example "90";
    }

    /// The life of a server connection.
    ServerSettings in Pool, Reload {
        /// Age at which an unused server connection is closed. 0: each is used once.
        server_lifetime: Duration = "3600s", example "\"30min\"", unit Seconds,
            pgbouncer "server_lifetime";
        /// Idle time after which a server connection is closed.
        server_idle_timeout: Timeout = "600s", example "\"5min\"", unit Seconds,
            pgbouncer "server_idle_timeout";
        /// How long a pool is remembered that has neither clients nor server connections. What it has
        /// counted stays in SHOW STATS and SHOW TOTALS; its series of `/metrics` end. 0: for ever.
        /// PgBouncer's default is 0.
        pool_idle_timeout: Timeout = "60s", example "\"1h\"", unit Seconds, pgbouncer "pool_idle_timeout";
        /// The same for pools of databases that only `*` matches; the shorter of both counts. PgBouncer's
        /// default is an hour.
        autodb_idle_timeout: Timeout = "60s", example "\"1h\"", unit Seconds,
            pgbouncer "autodb_idle_timeout";
        /// Transactions after which a server connection is replaced. 0: never.
        server_max_transactions: u32 = "0", example "10000";
        /// Disconnect clients that keep a server connection between transactions (of session mode, or pinned)
        /// as soon as they sit idle on one that is no longer what the configuration says: after RECONNECT, a
        /// reload that changes the servers, or a change of their addresses. Else such a connection is closed
        /// when its client leaves it.
        server_fast_close: bool = "false", example "true", pgbouncer "server_fast_close";
        /// Private memory (RssAnon) of a backend beyond which it is replaced once it is free. Only for
        /// servers on this host. 0: never.
        server_max_memory: Size = "0", example "\"512MiB\"", range 0..=1 << 50, unit Bytes;
        /// Time for connect and login together. A login that waits for the first server connection of
        /// its pool fails when an attempt that began after it has taken so long; clients that are logged
        /// in wait for another attempt, up to `query_wait_timeout`.
        server_connect_timeout: Duration = "15s", example "\"5s\"", at_least Duration::from_millis(1),
            unit Seconds, pgbouncer "server_connect_timeout";
        /// The longest pause between attempts to reach a server that fails. The first pauses are shorter
        /// and double: up to 0.4 s while a server cannot be reached or is not ready (20 ms for each
        /// pool that fails, if that is more), up to this where it refuses the login. One connection
        /// of a pool tries at a time. Clients wait meanwhile, up to `query_wait_timeout`, or are refused: see
        /// `server_down_timeout`.
        server_login_retry: Duration = "15s", example "\"3s\"", at_least Duration::from_millis(1),
            unit Seconds, pgbouncer "server_login_retry";
        /// How long no server of a database may have answered before its clients are refused at
        /// once instead of waiting, until a server answers again: clients that wait, and those that
        /// send a query, or log in with a login for which the server is asked. Hawser tries the
        /// servers as `server_login_retry` says. Clients of a paused database wait, and so do those
        /// of a pool whose server connections still serve others. 0: clients wait, up to
        /// `query_wait_timeout`.
        server_down_timeout: Timeout = "0", example "\"2s\"", unit Seconds;
        /// Time between two probes of each server of databases with `target_session_attrs` or
        /// `max_replica_lag`: one short connection, which no limit counts, asks whether the server
        /// is a primary, read-only, how far its WAL has come, and whether it takes sessions. A
        /// server that is no longer what its database asks for is left at once: idle server
        /// connections are closed, others at the end of their transaction. 0: servers are asked at
        /// connect alone, and `max_replica_lag` has no effect.
        server_probe_interval: Timeout = "1s", example "\"5s\"", unit Seconds;
        /// How long a server's machine may be silent on TCP before a connection to it is given up:
        /// no answer to a connect, no acknowledgement of what was sent, no answer to a keepalive
        /// probe. A machine that answers is not given up, however long a query takes, or the server
        /// does not read. Not for unix sockets; without probes if `tcp_keepalive` is off.
        server_lost_timeout: Timeout = "5s", example "\"20s\"", unit Seconds;
        /// How long Hawser uses the addresses of a server's name, and the names of clients that
        /// rules of `hba_file` ask for, before it looks them up again.
        dns_max_ttl: Duration = "15s", example "\"60s\"", unit Seconds, pgbouncer "dns_max_ttl";
    }

    /// How long anything may take.
    TimeoutSettings in Pool, Reload {
        /// How long a client waits for a server connection before it gets an error.
        query_wait_timeout: Timeout = "120s", example "\"10s\"", unit Seconds,
            pgbouncer "query_wait_timeout";
        /// After how long a client that waits for a server connection gets a notice that it waits.
        /// 0: never.
        query_wait_notify: Timeout = "0", example "\"5s\"", unit Seconds,
            pgbouncer "query_wait_notify";
        /// How long a query may run before its client is cut off. For broken networks; for slow queries
        /// the server's statement_timeout is better.
        query_timeout: Timeout = "0", example "\"5min\"", unit Seconds, pgbouncer "query_timeout";
        /// How long a cancel request may wait to reach the server. Also how long Hawser may take to
        /// clean up a server connection that a client has left in the middle of something, before
        /// it closes it: a minute if this is 0.
        cancel_wait_timeout: Timeout = "10s", example "\"3s\"", unit Seconds,
            pgbouncer "cancel_wait_timeout";
        /// How long a client may be idle outside of a transaction.
        client_idle_timeout: Timeout = "0", example "\"1h\"", unit Seconds,
            pgbouncer "client_idle_timeout";
        /// How long a client may take to log in.
        client_login_timeout: Timeout = "60s", example "\"10s\"", unit Seconds,
            pgbouncer "client_login_timeout";
        /// How long a client may be idle inside of a transaction. A COPY that waits for the client's
        /// data counts as a query at work: `query_timeout` and `transaction_timeout` end it.
        idle_transaction_timeout: Timeout = "0", example "\"90s\"", unit Seconds,
            pgbouncer "idle_transaction_timeout";
        /// How long a client of transaction or statement mode may be idle outside of a transaction
        /// while it keeps a server connection for session state that does not move. It is then
        /// disconnected (57P05), and its state is lost.
        pin_timeout: Timeout = "0", example "\"10min\"", unit Seconds;
        /// How long a transaction may take.
        transaction_timeout: Timeout = "0", example "\"10min\"", unit Seconds,
            pgbouncer "transaction_timeout";
        /// How long a client may read nothing of its result while another client of its pool waits
        /// and no server connection can be had for that one. The time begins when the other has
        /// waited for a second; by then the connection of the client that does not read no longer
        /// counts against `pool_size`, up to `idle_transaction_reserve`. The client is then
        /// disconnected, and its server connection closed. A client that keeps reading, however
        /// slowly, is not disconnected. Never in session mode or replication.
        client_write_timeout: Timeout = "2s", example "\"10s\"", unit Seconds;
        /// How long a client may stop sending within a message of more than 16 KiB while another
        /// client of its pool has waited for a second and no server connection can be had for that
        /// one. The whole message must arrive within this time, and a second more for each 64 KiB.
        /// After a client has ended its session, its last query gets as long for the answer, also
        /// in session mode; then it is cancelled.
        client_read_timeout: Timeout = "30s", example "\"10s\"", unit Seconds;
    }

    /// What answers outside of the PostgreSQL protocol.
    AdminSettings in Admin, Restart {
        /// Where metrics (`/metrics`), health (`/healthz`, `/readyz`) and the dashboard (`/`) are.
        /// They have no password: use loopback or a proxy. "" turns them off. If no address is set
        /// here and the default is taken, Hawser logs a warning and runs without them.
        http_address: OptionalAddress = "127.0.0.1:9632", example "\"127.0.0.1:9700\"";
        /// Host names to which these pages are shown, beside IP addresses, `localhost`, names
        /// without a dot and the host's own name; others get 421. Otherwise a web page could read
        /// them by DNS rebinding, with a name of its own that leads here. A name that begins with a
        /// dot stands for all names below it, `*` for every name. `/healthz` is shown to any. One
        /// string with commas, or a list.
        http_hosts: Vec<String> = "", example "[\"hawser.example.org\", \".svc.cluster.local\"]";
        /// The socket that `hawser status` asks. Without it, `hawser.sock` in `$RUNTIME_DIRECTORY`
        /// (systemd's) or `$XDG_RUNTIME_DIR`; without those in `/run/hawser` for root, in `/run/user/UID`
        /// or `/tmp/hawser-UID` for others. There `hawser status` looks for it by itself.
        control_socket: Option<PathBuf> = "not set", example "\"/run/hawser/control.sock\"";
    }

    /// The admin console, and what is counted for it.
    ConsoleSettings in Admin, Reload {
        /// Which queries are counted, each with its calls, errors, rows and times, for SHOW QUERIES, `hawser
        /// top`, the dashboard and `/metrics`. `top`: those that clients send, as
        /// `pg_stat_statements.track` has it; what functions run within them only the server knows.
        /// `off` forgets what was counted. See [which query, whose, how long](queries.md).
        track_queries: TrackQueries = "top", example "\"off\"";
        /// Keep the text with which each counted query was first sent, with the values in it, and
        /// show it in SHOW QUERIES. It is shown nowhere else.
        query_examples: bool = "true", example "false";
        /// The release of PgBouncer whose columns SHOW has on database `pgbouncer`, and which SHOW VERSION
        /// names there: for tools that count columns, set what they know. On database `hawser`, and
        /// with `SHOW ... EXTENDED`, all columns are there, Hawser's own too.
        console_version: ConsoleVersion = "1.26", example "\"1.24\"";
    }

    /// Local connections past TCP.
    BypassSettings in Bypass, Restart {
        /// Whether TCP connections of clients and to servers on this host go past the kernel's
        /// TCP/IP stack, by BPF. `auto`: if the machine allows it (Linux 6.2, BTF, cgroup v2, root
        /// or CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN) and a self-test at the start passes, which
        /// takes up to 2 s; otherwise over TCP, and `hawser status` says why. `on`: as `auto`, but
        /// otherwise the process does not start. `hawser bypass off` turns it off while it runs.
        enable: BypassUse = "off", example "\"auto\"";
    }

    /// The shape of the log.
    LogStartSettings in Log, Restart {
        /// Lines for readers (`text`) or one JSON object a line (`json`), on standard error;
        /// `pgbouncer` for lines in PgBouncer's form. In systemd's journal lines have their priority
        /// (`journalctl -p warning`), and those for readers no time of their own.
        format: LogFormat = "text", example "\"json\"";
        /// A file to which lines are appended, beside standard error. SIGHUP and RELOAD open it again:
        /// for logrotate. It is opened before the process becomes another `user`, and given to that user
        /// if it is made then; one that is there already must be that user's.
        logfile: Option<PathBuf> = "not set", example "\"/var/log/hawser.log\"", pgbouncer "logfile";
        /// Send lines to syslog as well, by /dev/log.
        syslog: bool = "false", example "true", pgbouncer "syslog";
        /// The name of lines in syslog.
        syslog_ident: String = "hawser", example "\"pgbouncer\"", pgbouncer "syslog_ident";
        /// The facility of lines in syslog.
        syslog_facility: SyslogFacility = "daemon", example "\"local0\"", pgbouncer "syslog_facility";
        /// A file to which statements that a [rule](rules.md#the-audit) with `audit` matches are appended,
        /// each as a line of JSON; it is made with mode 0640, and opened again as `logfile` is.
        audit_file: Option<PathBuf> = "not set", example "\"/var/log/hawser-audit.log\"";
        /// Send them to syslog, with `syslog_ident` and `syslog_facility`.
        audit_syslog: bool = "false", example "true";
        /// Send the transactions of `log_min_duration` to an OpenTelemetry collector as well, as traces by OTLP
        /// over HTTP: each with its database, user, client, and the wait for a server connection as a
        /// span of its own. The URL has http:// and a path. Nothing waits for the collector; what it does
        /// not take is lost, the log says so, and `hawser_spans_lost_total` counts it.
        otlp_endpoint: Option<String> = "not set", example "\"http://127.0.0.1:4318/v1/traces\"";
    }

    /// The names that clients get, and the notices at their login.
    NameSettings in Pool, Reload {
        /// Append a client's address and port to the application_name with which it logs in: `psql
        /// - 10.0.0.7:40123`. A client without a name gets `app`. The name is cut so that both fit
        /// into the server's 63 bytes. Each client then has a value of its own to be set on
        /// servers.
        application_name_add_host: bool = "false", example "true", pgbouncer "application_name_add_host";
        /// A notice that each client gets at its login: that it has reached a pooler, or that the server
        /// will soon be down. Empty: none. The admin console sends none.
        login_notify_message: String = "", example "\"This is a pooler.\"", pgbouncer "login_notify_message";
    }

    /// What is logged.
    LogSettings in Log, Reload {
        /// The least important event that is logged.
        level: LogLevel = "info", example "\"debug\"";
        /// Log each login.
        log_connections: bool = "true", example "false", pgbouncer "log_connections";
        /// Log each disconnect, with its reason.
        log_disconnections: bool = "true", example "false", pgbouncer "log_disconnections";
        /// Log each error that Hawser itself sends to a client.
        log_pooler_errors: bool = "true", example "false", pgbouncer "log_pooler_errors";
        /// Log each transaction that took so long or longer, from the client's first message to the
        /// end, with its database, user, the time for which it waited for a server connection
        /// (`wait_ms`), and that for which it had one (`duration_ms`). 0: none is logged.
        /// Replication is left out. See [logs](metrics.md#logs).
        log_min_duration: Timeout = "0", example "\"250ms\"", unit Milliseconds;
        /// Log the totals every `stats_period`.
        log_stats: bool = "true", example "false", pgbouncer "log_stats";
        /// The period of the averages in SHOW STATS, and of the totals in the log.
        stats_period: Duration = "60s", example "\"10s\"", at_least Duration::from_secs(1), unit Seconds,
            pgbouncer "stats_period";
    }

    /// The process itself.
    ProcessSettings in Process, Restart {
        /// Event loops. 0: one for each core that the process may use.
        loops: u32 = "0", example "2", range 0..=1024;
        /// Threads for TLS handshakes and password hashes, with a lower priority than the loops. 0:
        /// one for each core.
        login_threads: u32 = "0", example "2", range 0..=1024;
        /// The user to become once the sockets are open, if the process starts as root. This user
        /// gets the control socket, and the socket that the server's extension asks: so PostgreSQL
        /// should run as the same user.
        user: Option<String> = "not set", example "\"hawser\"", pgbouncer "user";
        /// A file for the process id. It is given to `user`.
        pidfile: Option<PathBuf> = "not set", example "\"/run/hawser/hawser.pid\"", pgbouncer "pidfile";
        /// Descriptors to ask the system for. 0: as many as the configured clients and servers can need.
        max_open_files: u32 = "0", example "20000", range 0..=1 << 30;
        /// The number of this pooler among `peers`: its clients get process ids by which its peers
        /// recognise them. 0: it has none. [Several poolers](operations.md#several-poolers).
        peer_id: u32 = "0", example "1", range 0..=255, pgbouncer "peer_id";
        /// Reload when the configuration or a file that it names has changed (`users_file`,
        /// `hba_file`, `ident_file`, certificates, keys and other secrets). Hawser looks at them
        /// every second, and reads them when they have been unchanged for another second. Use it if
        /// an orchestrator changes files and sends no signal.
        watch_files: bool = "false", example "true";
        /// Whether the kernel may write the process's memory to a file when it crashes, and
        /// debuggers of the same user may read it. It holds passwords and keys: set it to true only
        /// while you look for a fault.
        core_dumps: bool = "false", example "true";
    }

    /// Limits on server connections that hold for several poolers together.
    EtcdSettings in Process, Restart {
        /// The members of an etcd cluster (version 3.4 or later), each `http://host:port` or `https://host:port`.
        /// With them `max_server_connections`, `max_server_connections_per_server`, `max_db_connections` and
        /// `max_user_connections` hold for all poolers with the same `etcd_prefix` together, which should have the
        /// same limits and names of databases. [Several poolers](limits.md#one-limit-for-several-poolers).
        /// Empty: limits are this pooler's own.
        etcd: Vec<String> = "", example "[\"http://etcd1.example:2379\", \"http://etcd2.example:2379\"]";
        /// What all keys begin with.
        etcd_prefix: String = "/hawser/", example "\"/hawser/production/\"";
        /// How long after a pooler's death, or after it was cut off from etcd, others may take its places.
        /// Whole seconds; renewed three times as often.
        etcd_lease: Duration = "10s", example "\"5s\"", at_least Duration::from_secs(2), unit Seconds;
        /// What a pooler does if it cannot renew its lease in time. `keep`: it keeps as many server
        /// connections as it had; others may take its places meanwhile, so the sum may exceed the
        /// limit. `close`: in the last third of the lease it begins to close its server
        /// connections, each at the end of its transaction, and opens none until etcd answers.
        etcd_lost: EtcdLost = "keep", example "\"close\"";
        /// The authorities, in PEM, of certificates of `https` endpoints.
        etcd_ca_file: Option<PathBuf> = "the system's", example "\"etcd-ca.crt\"";
        /// The certificate that Hawser sends to etcd (PEM).
        etcd_cert_file: Option<PathBuf> = "not set", example "\"etcd.crt\"";
        /// Its private key (PEM).
        etcd_key_file: Option<PathBuf> = "not set", example "\"etcd.key\"";
        /// The user of etcd's own authentication. It needs to read and write the keys of `etcd_prefix`.
        etcd_user: Option<String> = "not set", example "\"hawser\"";
        /// A file with the password of `etcd_user`: one line. It is read again at each login to etcd.
        etcd_password_file: Option<PathBuf> = "not set", example "\"etcd.password\"";
    }

    /// Other poolers to which the same clients connect.
    PeerSettings in Process, Reload {
        /// The poolers that share an address with this one (behind a load balancer, in several
        /// pods), this one among them or not: `NUMBER=host:port`, or the path of a unix socket. A
        /// cancel request that comes here for a client of a peer is sent on to that peer. Each has
        /// its own `peer_id`, and an address at which no other one answers.
        peers: Vec<Peer> = "", example "[\"1=10.0.0.1:6432\", \"2=10.0.0.2:6432\"]";
    }

    /// The end of the process.
    ShutdownSettings in Process, Reload {
        /// How long open transactions may go on after SIGTERM. Shorter than the 30 s after which
        /// Kubernetes kills, and the 90 s of systemd. 0: until they end.
        shutdown_timeout: Timeout = "25s", example "\"5s\"", unit Seconds;
    }

    /// One `[[database]]` as it is written; [`super::DatabaseConfig`] is what it comes to.
    DatabaseEntry in Database, Reload {
        /// What clients ask for; `*` is every name that has no entry of its own.
        name: Option<String> = "required", example "\"other\"";
        /// The database on the server.
        dbname: Option<String> = "the name that the client asks for", example "\"app_v2\"",
            pgbouncer "dbname";
        /// Where the database is: `host:port`, `[v6]:port`, or a directory or path of a unix
        /// socket. One string or a list; with several, see `target_session_attrs` and
        /// `load_balance_hosts`. `@name` in place of a directory is an abstract socket.
        /// `?mptcp=prefer` after a TCP address uses Multipath TCP if both ends have it,
        /// `?mptcp=require` nothing else (`"10.0.0.1:5432?mptcp=prefer"`, see [MPTCP](mptcp.md)).
        /// `?congestion=auto`, or the name of an algorithm, is for what is sent to that server as
        /// `congestion` in `[listen]` is for clients; `&` joins both.
        servers: Vec<ServerAddress> = "required", example "[\"db1.example:5432\", \"/run/postgresql\"]";
        /// Log in to the server as this one user for all clients: one pool serves all.
        user: Option<String> = "the client's own", example "\"app\"", pgbouncer "user";
        /// The password of `user`; without it, the one in `users_file` or `[[user]]`.
        password: Option<Password> = "not set", example "\"secret\"", pgbouncer "password";
        /// A file with the password of `user`, in place of `password`: one line, in plain text. It
        /// is read again for each server connection that is opened. See [passwords that
        /// change](operations.md#passwords-that-change).
        password_file: Option<PathBuf> = "not set", example "\"db.token\"";
        /// A command that prints the password of `user` (a token of a cloud, for example), in place of
        /// `password`: the program and its arguments, without a shell. It finds the user in `PGUSER`, has
        /// `server_connect_timeout`, and runs again after `password_max_age`, and when a server has refused
        /// what it printed.
        password_command: Vec<String> = "", example "[\"/usr/local/bin/token\", \"--host\", \"db1\"]";
        /// How long what `password_command` printed is used. 0: for one server connection.
        password_max_age: Duration = "5min", example "\"10min\"", unit Seconds;
        /// Send servers a header of the PROXY protocol first, where they, or a proxy in between, ask for
        /// one: `v1` or `v2`. It names Hawser's own address: clients share the connection. A change counts
        /// for new server connections.
        proxy_protocol: ProxyProtocol = "off", example "\"v2\"";
        /// The file with the secret of the server's `hawser.secret_file`. With it clients of all users
        /// share one pool, and still have sessions of their own users: its server connections log in as
        /// `user`, which is the server's `hawser.pooler_role`, and are
        /// [handed over](extension.md#one-pool-for-many-users) to each client. Others must not be able to
        /// read the file. A change of its content counts on reload.
        hand_over_secret_file: Option<PathBuf> = "not set", example "\"hawser.secret\"";
        /// What `hand_over_secret_file` is for. `users`: clients of all users share one pool.
        /// `addresses`: pools are as without it, and the server [learns of each
        /// client](extension.md#address-and-tls-alone) that gets a server connection. A change
        /// replaces server connections.
        hand_over: HandOver = "users", example "\"addresses\"";
        /// Server connections for each user, beside those of the pool, on which the server itself serves
        /// clients that are at rest ([inside](inside.md)): for a server on this host, with the extension and
        /// `hawser.inside = on`. 0: none.
        inside_size: u32 = "0", example "10", range 0..=INSIDE_SIZE_MAX;
        /// How many of the `inside_size` look for work at once: another one does for each that runs a
        /// statement for longer than 20 ms, or waits for its client in a transaction. 0: one for each
        /// core that the process may use.
        inside_places: u32 = "0", example "4", range 0..=INSIDE_SIZE_MAX;
        /// `auth_user` of this database.
        auth_user: Option<String> = "as in [auth]", over auth, example "\"other\"", pgbouncer "auth_user";
        /// `auth_query` of this database.
        auth_query: Option<String> = "as in [auth]", over auth, example "\"SELECT * FROM f($1)\"",
            pgbouncer "auth_query";
        /// `auth_dbname` of this database.
        auth_dbname: Option<String> = "as in [auth]", over auth, example "\"app\"", pgbouncer "auth_dbname";
        /// `pool_mode` of this database.
        pool_mode: Option<PoolMode> = "as in [pool]", over pool, example "\"session\"", pgbouncer "pool_mode";
        /// `fidelity` of this database.
        fidelity: Option<Fidelity> = "as in [pool]", over pool, example "\"classic\"";
        /// `stateful_functions` of this database.
        stateful_functions: Option<Functions> = "as in [pool]", over pool, example "[\"app.counts\"]";
        /// `custom_settings_in_plans` of this database.
        custom_settings_in_plans: Option<InPlans> = "as in [pool]", over pool, example "false";
        /// `function_census` of this database.
        function_census: Option<bool> = "as in [pool]", over pool, example "false";
        /// `extension` of this database.
        extension: Option<ExtensionUse> = "as in [pool]", over pool, example "\"off\"";
        /// `pool_size` of this database, for each user.
        pool_size: Option<u32> = "as in [pool]", over pool, example "7", range 1..=POOL_SIZE_MAX,
            pgbouncer "pool_size";
        /// `min_pool_size` of this database.
        min_pool_size: Option<u32> = "as in [pool]", over pool, example "2", range 0..=POOL_SIZE_MAX,
            pgbouncer "min_pool_size";
        /// `reserve_pool_size` of this database.
        reserve_pool_size: Option<u32> = "as in [pool]", over pool, example "5", range 0..=POOL_SIZE_MAX,
            pgbouncer "reserve_pool_size";
        /// `reserve_pool_timeout` of this database.
        reserve_pool_timeout: Option<Timeout> = "as in [pool]", over pool, example "\"2s\"", unit Seconds;
        /// `idle_transaction_reserve` of this database.
        idle_transaction_reserve: Option<u32> = "as in [pool], else as pool_size", over pool, example "3",
            range 0..=POOL_SIZE_MAX;
        /// `lock_wait_reserve` of this database.
        lock_wait_reserve: Option<u32> = "as in [pool]", over pool, example "10", range 0..=POOL_SIZE_MAX;
        /// `max_pinned` of this database.
        max_pinned: Option<Limit> = "as in [pool]", over pool, example "5";
        /// `max_db_connections` of this database.
        max_db_connections: Option<Limit> = "as in [pool]", over limits,
            example "50", pgbouncer "max_db_connections";
        /// `max_db_client_connections` of this database.
        max_db_client_connections: Option<Limit> = "as in [pool]", over limits, example "100",
            pgbouncer "max_db_client_connections";
        /// `server_down_timeout` of this database.
        server_down_timeout: Option<Timeout> = "as in [pool]", over servers, example "\"2s\"", unit Seconds;
        /// `server_lifetime` of this database.
        server_lifetime: Option<Duration> = "as in [pool]", over servers, example "\"30min\"", unit Seconds,
            pgbouncer "server_lifetime";
        /// `query_wait_timeout` of this database.
        query_wait_timeout: Option<Timeout> = "as in [pool]", over timeouts, example "\"10s\"", unit Seconds,
            pgbouncer "query_wait_timeout";
        /// The `client_encoding` with which server connections begin: that of clients which ask for
        /// none. A change of this and of the next three replaces server connections.
        client_encoding: Option<String> = "the server's own", example "\"UTF8\"",
            pgbouncer "client_encoding";
        /// The same for `DateStyle`.
        datestyle: Option<String> = "the server's own", example "\"German\"", pgbouncer "datestyle";
        /// The same for `TimeZone`.
        timezone: Option<String> = "the server's own", example "\"UTC\"", pgbouncer "timezone";
        /// The same for `application_name`.
        application_name: Option<String> = "the server's own", example "\"pool\"",
            pgbouncer "application_name";
        /// A query sent on each new server connection before a client gets it. What it sets is what
        /// sessions begin with. An error in it is logged and otherwise ignored. If it leaves a
        /// transaction open, ends the session or takes longer than `server_connect_timeout`, the server
        /// connection is not used.
        connect_query: Option<String> = "not set", example "\"SELECT 1\"", pgbouncer "connect_query";
        /// Which of several servers may serve: `any`, `read-write`, `read-only`, `primary`,
        /// `standby`, `prefer-standby`. libpq's words.
        target_session_attrs: TargetSessionAttrs = "any", example "\"primary\"";
        /// How much a standby may lag before Hawser leaves it until it has caught up: the age of
        /// the first WAL that the primary has written and the standby has not replayed, measured
        /// every `server_probe_interval`. Without a primary in `servers`: the age of the last
        /// transaction replayed, while received WAL waits for replay. Clients wait if no other
        /// server is fit; with `prefer-standby` they get the primary. 0: no limit.
        max_replica_lag: Timeout = "0", example "\"10s\"", unit Seconds;
        /// The addresses of Patroni's REST interface, `http://host:port` or `https://host:port` of each node.
        /// Hawser then pauses the database for switchovers that Patroni has scheduled, and leaves a primary
        /// that is not Patroni's leader. Certificates are verified by `server_tls_ca_file`, or the system's
        /// authorities. See [Patroni](failover.md#patroni).
        patroni: Vec<String> = "", example "[\"http://10.0.0.1:8008\", \"http://10.0.0.2:8008\"]";
        /// Which of several servers a new connection tries first: the first that works (`disable`), or
        /// each in turn (`round-robin`, PgBouncer's default).
        load_balance_hosts: LoadBalanceHosts = "disable", example "\"round-robin\"",
            pgbouncer "load_balance_hosts";
        /// `server_tls_sslmode` of this database.
        server_tls_sslmode: Option<TlsMode> = "as in [tls]", over tls, example "\"require\"";
        /// `server_tls_ca_file` of this database.
        server_tls_ca_file: Option<PathBuf> = "as in [tls]", over tls, example "\"ca.crt\"";
        /// `server_tls_cert_file` of this database.
        server_tls_cert_file: Option<PathBuf> = "as in [tls]", over tls, example "\"client.crt\"";
        /// `server_tls_key_file` of this database.
        server_tls_key_file: Option<PathBuf> = "as in [tls]", over tls, example "\"client.key\"";
        /// `server_tls_protocols` of this database.
        server_tls_protocols: Option<TlsVersions> = "as in [tls]", over tls, example "\"tlsv1.3\"";
        /// `server_tls_negotiation` of this database.
        server_tls_negotiation: Option<TlsNegotiation> = "as in [tls]", over tls, example "\"direct\"";
    }

    /// One `[[user]]`. What it does not set is as in `[pool]` or as in its database: [`super::Inherited`].
    UserEntry in User, Reload {
        /// The user's name.
        name: Option<String> = "required", example "\"other\"";
        /// The user's password, or a stored secret of it: plain, `md5...` or `SCRAM-SHA-256$...`. Before
        /// `users_file`.
        password: Option<Password> = "not set", example "\"secret\"";
        /// `pool_mode` of this user, before the database's.
        pool_mode: Option<PoolMode> = "as in [[database]]", over pool, example "\"session\"",
            pgbouncer "pool_mode";
        /// `pool_size` of this user, before the database's.
        pool_size: Option<u32> = "as in [[database]]", over pool, example "7", range 1..=POOL_SIZE_MAX,
            pgbouncer "pool_size";
        /// `reserve_pool_size` of this user, before the database's.
        reserve_pool_size: Option<u32> = "as in [[database]]", over pool,
            example "5", range 0..=POOL_SIZE_MAX,
            pgbouncer "reserve_pool_size";
        /// `idle_transaction_reserve` of this user, before the database's.
        idle_transaction_reserve: Option<u32> = "as in [[database]]", over pool, example "3",
            range 0..=POOL_SIZE_MAX;
        /// `max_user_connections` of this user.
        max_user_connections: Option<Limit> = "as in [pool]", over limits, example "50",
            pgbouncer "max_user_connections";
        /// `max_user_client_connections` of this user.
        max_user_client_connections: Option<Limit> = "as in [pool]", over limits, example "100",
            pgbouncer "max_user_client_connections";
        /// `query_wait_timeout` of this user, before the database's.
        query_wait_timeout: Option<Timeout> = "as in [[database]]", over timeouts,
            example "\"10s\"", unit Seconds,
            pgbouncer "query_wait_timeout";
        /// `query_timeout` of this user.
        query_timeout: Option<Timeout> = "as in [pool]", over timeouts, example "\"5min\"", unit Seconds,
            pgbouncer "query_timeout";
        /// `idle_transaction_timeout` of this user.
        idle_transaction_timeout: Option<Timeout> = "as in [pool]", over timeouts,
            example "\"90s\"", unit Seconds,
            pgbouncer "idle_transaction_timeout";
        /// `pin_timeout` of this user.
        pin_timeout: Option<Timeout> = "as in [pool]", over timeouts, example "\"10min\"", unit Seconds;
        /// `transaction_timeout` of this user.
        transaction_timeout: Option<Timeout> = "as in [pool]", over timeouts,
            example "\"10min\"", unit Seconds,
            pgbouncer "transaction_timeout";
        /// `client_idle_timeout` of this user.
        client_idle_timeout: Option<Timeout> = "as in [pool]", over timeouts, example "\"1h\"", unit Seconds,
            pgbouncer "client_idle_timeout";
        /// `target_session_attrs` of this user, before the database's: `prefer-standby` sends a user that only
        /// reads to replicas.
        target_session_attrs: Option<TargetSessionAttrs> = "as in [[database]]",
            example "\"prefer-standby\"";
        /// `max_replica_lag` of this user, before the database's.
        max_replica_lag: Option<Timeout> = "as in [[database]]", example "\"5s\"", unit Seconds;
        /// `load_balance_hosts` of this user, before the database's.
        load_balance_hosts: Option<LoadBalanceHosts> = "as in [[database]]",
            example "\"round-robin\"";
    }

    /// One `[[rule]]` as it is written: see [`super::rule`].
    RuleEntry in Rule, Reload {
        /// The rule's name: SHOW RULES, RULE DROP, metrics and the errors of clients have it. See
        /// [rules](rules.md).
        name: Option<String> = "required", example "\"other\"";
        /// It matches statements of this user.
        user: Option<String> = "any", example "\"report\"";
        /// It matches statements in this database, by the name that clients ask for.
        database: Option<String> = "any", example "\"app\"";
        /// It matches statements of clients with this `application_name`, at the start of the
        /// session or by SET.
        application_name: Option<String> = "any", example "\"metabase\"";
        /// It matches statements of clients with such an address: an address, or a network in
        /// CIDR notation. Clients on a unix socket have none.
        network: Option<String> = "any", example "\"10.1.0.0/16\"";
        /// It matches statements that read (SELECT, SHOW, COPY TO), that write (INSERT, UPDATE,
        /// DELETE, MERGE, TRUNCATE, COPY FROM) or that change the schema (CREATE, ALTER, DROP,
        /// GRANT), by their first words. What functions do does not count.
        kind: Option<StatementKind> = "any", example "\"ddl\"";
        /// It matches all executions of one statement, whatever its constants are: 16 hexadecimal
        /// digits, as SHOW QUERIES shows them.
        digest: Option<String> = "any", example "\"00f1e2d3c4b5a697\"";
        /// It matches statements whose text has this regular expression, in the syntax of Rust's
        /// `regex` (no look-around): `(?i)` ignores case. Of a text of more than 16 KiB its first
        /// part is searched.
        text: Option<String> = "any", example "\"(?i)from big_table\"";
        /// A statement that matches fails with this message.
        refuse: Option<String> = "not set", example "\"Reports run after 20:00.\"";
        /// The SQLSTATE of `refuse`. By default it is that of a statement that was cancelled: no
        /// driver closes its connection for it or tries again by itself.
        sqlstate: Option<String> = "57014", example "\"53000\"";
        /// How many statements that match may run at once, in all pools together; one more fails
        /// with 53400. Those that wait for a server connection count. 0: any number.
        max_running: u32 = "0", example "2";
        /// A query or pipeline that matches is cancelled after this time, as by
        /// `statement_timeout`, with 57014; the time that it waits for a server connection does not
        /// count. 0: never.
        max_time: Timeout = "0", example "\"10s\"", unit Seconds;
        /// One of so many statements that match goes to the log, with its text; 1: each, 0: none.
        log: u32 = "0", example "100";
        /// Where a client stands that waits for a server connection to run a statement that matches:
        /// `high` before the others, `low` after them. It passes, or is passed by, those that have
        /// waited for less than five seconds only, so nobody waits for ever. Of several rules the first
        /// counts. A rule without `kind`, `digest` and `text` is for BEGIN, too.
        priority: Option<RulePriority> = "not set", example "\"low\"";
        /// Each statement that matches goes to the [audit](rules.md#the-audit): to `audit_file` or
        /// `audit_syslog` of `[log]`, to the log if there is neither.
        audit: bool = "false", example "true";
        /// The rule may match every statement of every client. Without it a rule has at least one
        /// of the settings above that say what it matches.
        force: bool = "false", example "true";
    }

    /// One `[link.NAME]` as it is written; [`super::LinkConfig`] is what it comes to.
    LinkEntry in Link, Reload {
        /// This end's key: a file of `hawser link keygen`, which only its user may read.
        key: Option<PathBuf> = "required", example "\"other.key\"";
        /// Public keys of the other end, each `ed25519:...`; more than one while a key is changed.
        /// A key that a reload removes is revoked: its paths are closed. A reload that changes only
        /// keys of the other end ends no other connection; any other change of a link ends the
        /// connections that it carries.
        peers: Vec<String> = "", example "[\"ed25519:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAE=\"]";
        /// A file of further public keys, one a line, a comment after each. A reload reads it
        /// again.
        peers_file: Option<PathBuf> = "not set", example "\"near.keys\"";
        /// The end that dials: where the far end listens, each `host` or `host:port` (6433).
        /// Several are several lines.
        far: Vec<String> = "", example "[\"db.example\", \"db2.example:6433\"]";
        /// The end that dials: this host's addresses to dial from, for several lines. Empty: the
        /// route's. With as many as in `far`, the first belongs to the first, and so on; otherwise
        /// each is dialled from each.
        from: Vec<String> = "", example "[\"192.0.2.1\"]";
        /// The end that dials: TCP connections. `auto` is one for each line, and as many more as carry more
        /// while something large is carried.
        paths: LinkPaths = "auto", example "12";
        /// The end that accepts: where near ends connect, each `address:port`.
        listen: Vec<String> = "", example "[\"0.0.0.0:6433\"]";
        /// The end that accepts: what may be reached, each `host:port`. Nothing else is.
        allow: Vec<String> = "", example "[\"127.0.0.1:5432\"]";
        /// How long connections wait while no path works, 1s to 1h.
        grace: Duration = "20s", example "\"45s\"", unit Seconds;
        /// The congestion control of this end's paths, as `congestion` in `[listen]` is for clients: of what
        /// this end sends.
        congestion: Congestion = "default", example "\"auto\"";
        /// Whether this end compresses what it sends, with zstd: `auto` does so for bulk that
        /// shrinks, if the paths are the limit. The length of compressed data reveals a little of
        /// its content: see [compression](link.md#compression) before you set it.
        compression: LinkCompression = "none", example "\"auto\"";
        /// A unix socket for `hawser link status` and `hawser link top`, for its user alone.
        socket: Option<PathBuf> = "not set", example "\"/run/hawser/link.sock\"";
    }
}
