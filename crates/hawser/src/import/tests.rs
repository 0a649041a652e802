//! pgbouncer.ini in, a configuration out.

use std::io;
use std::time::Duration;

use super::{ImportError, ImportErrors, Imported, Reason, ini, listen};
use crate::config::{AuthType, Config, Limit, LoadBalanceHosts, PoolMode, Timeout, TlsMode};

/// What a text becomes that names no other files, or the first error.
fn import(text: &str) -> Result<Imported, ImportError> {
    import_with(text.as_bytes(), &mut no_files, &mut no_files)
}

fn import_with(
    text: &[u8],
    read: ini::ReadFile<'_>,
    resolve: listen::Resolve<'_>,
) -> Result<Imported, ImportError> {
    super::import_with(text, read, resolve).map_err(|errors| errors.iter().next().unwrap().clone())
}

fn no_files<T>(_: &str) -> io::Result<T> {
    Err(io::Error::new(io::ErrorKind::Unsupported, "only a file can name others"))
}

/// The configuration that the output of the import makes.
#[track_caller]
fn imported(text: &str) -> (Config, String) {
    let output = import(text).unwrap_or_else(|error| panic!("{error}")).toml;
    match Config::from_str(&output, "/etc/hawser/hawser.toml") {
        Ok(config) => (config, output),
        Err(errors) => panic!("{errors}\nin:\n{output}"),
    }
}

fn no_names(name: &str) -> io::Result<Vec<std::net::IpAddr>> {
    panic!("{name} was looked up")
}

#[test]
fn a_small_file_keeps_pgbouncers_defaults_where_ours_differ() {
    let (config, output) = imported(
        "[databases]\napp = host=db.example port=5433\n[pgbouncer]\nlisten_addr = 127.0.0.1\nauth_file = /etc/u.txt\n",
    );
    let listen: Vec<_> = config.listen().iter().map(ToString::to_string).collect();
    assert_eq!(listen, ["127.0.0.1:6432", "/tmp/.s.PGSQL.6432"]);
    assert_eq!(config.database("app").unwrap().servers[0].to_string(), "db.example:5433");
    assert_eq!(config.database("app").unwrap().inherited.pool.pool_mode, PoolMode::Session);
    assert_eq!(config.reload.limits.max_client_conn, 100);
    assert_eq!(config.auth_type(), AuthType::Md5);
    assert_eq!(config.start.listen.backlog, 128);
    assert!(output.contains("# PgBouncer's default"));
    // Hawser's defaults of these are others, too.
    let notify = config.reload.timeouts.query_wait_notify.get();
    assert_eq!(notify, Some(Duration::from_secs(5)));
    assert_eq!(config.reload.pool.max_prepared_statements, 200);
}

/// A client that paused in the middle of a large result was cut off after two seconds.
#[test]
fn limits_that_pgbouncer_has_not_are_off() {
    let (config, _) = imported("[databases]\na = host=h\n[pgbouncer]\nauth_file = u\n");
    let reload = &config.reload;
    assert_eq!(reload.timeouts.client_write_timeout, Timeout::NEVER);
    assert_eq!(reload.timeouts.client_read_timeout, Timeout::NEVER);
    assert_eq!(reload.shutdown.shutdown_timeout, Timeout::NEVER);
    assert_eq!(reload.servers.server_lost_timeout.get(), Some(Duration::from_secs(30)));
}

/// In another case they were left out, and Hawser's default was in force: TLS was not required, rules
/// were not read.
#[test]
fn words_are_the_same_in_any_case() {
    let (config, output) = imported(
        "[databases]\na = host=h,i load_balance_hosts=Disable pool_mode=Statement\n[pgbouncer]
auth_type = HBA
auth_hba_file = hba.conf
pool_mode = Session
client_tls_sslmode = Require
client_tls_cert_file = c
client_tls_key_file = k
server_tls_sslmode = Verify-Full
client_tls_protocols = TLSv1.3
syslog_facility = LOCAL0
",
    );
    let a = config.database("a").unwrap();
    assert_eq!(
        (a.inherited.pool.pool_mode, a.load_balance_hosts),
        (PoolMode::Statement, LoadBalanceHosts::Disable)
    );
    assert_eq!(a.inherited.tls.server_tls_sslmode, TlsMode::VerifyFull);
    assert_eq!(config.reload.pool.pool_mode, PoolMode::Session);
    assert_eq!(config.auth_type(), AuthType::Hba);
    assert!(config.reload.auth.hba_file.is_some());
    assert_eq!(config.reload.client_tls.client_tls_sslmode, TlsMode::Require);
    assert!(!config.reload.client_tls.client_tls_protocols.v1_2);
    // PgBouncer compares this one by case, and takes its default.
    assert_eq!(config.start.log.syslog_facility.as_str(), "daemon");
    assert!(output.contains("# syslog_facility = LOCAL0: daemon"), "{output}");
    let (config, _) =
        imported("[databases]\na = host=h\n[pgbouncer]\nauth_type = MD5\nauth_file = u\n");
    assert_eq!(config.auth_type(), AuthType::Md5);
}

/// It was a comment in the output, and what it restricts had a default.
#[test]
fn a_value_that_is_refused_is_an_error_with_its_line() {
    for line in [
        "auth_type = peer",
        "auth_type =",
        "pool_mode = foo",
        "client_tls_sslmode = required",
        "client_tls_protocols = tlsv1.4",
        "client_tls_ciphers = RC4-SHA",
        "max_client_conn = 0",
        "max_client_conn = -1",
        "max_client_conn =",
        "max_packet_size = 5",
        "query_timeout = -1",
        "query_timeout = 5s",
        "peer_id = 300",
    ] {
        let error = import(&format!("[databases]\na = host=h\n[pgbouncer]\n{line}\n")).unwrap_err();
        let key = line.split(" =").next().unwrap_or_default();
        assert!(matches!(&error.reason, Reason::Value { key: of, .. } if of == key), "{error}");
        assert_eq!(error.line, 4, "{line}");
    }
    let error = import("[databases]\na = host=h load_balance_hosts=random\n").unwrap_err();
    assert_eq!(error.line, 2);
}

#[test]
fn a_section_of_its_own_has_what_no_pgbouncer_ini_can_say() {
    let ini = "[databases]\na = host=h\n[pgbouncer]\nauth_file = u\ndefault_pool_size = 9\n[hawser]
console_version = 1.25
http_address = 127.0.0.1:9700
http_hosts = a.example, b.example
shutdown_timeout = 10s
client_write_timeout = 3
prepared_statements_memory = 64MiB
mptcp = on
fidelity = classic
pool_size = 3
";
    let (config, output) = imported(ini);
    assert_eq!(config.reload.console.console_version.as_str(), "1.25");
    assert_eq!(config.start.admin.http_address.address().unwrap().port(), 9700);
    assert_eq!(config.start.admin.http_hosts.len(), 2);
    let seconds = |timeout: Timeout| timeout.get().map(|time| time.as_secs());
    assert_eq!(seconds(config.reload.shutdown.shutdown_timeout), Some(10));
    assert_eq!(seconds(config.reload.timeouts.client_write_timeout), Some(3));
    assert_eq!(config.reload.pool.pool_size, 3, "before what PgBouncer's name says\n{output}");
    assert!(config.start.listen.mptcp);
    for (line, reason) in [
        ("htp_address = x", "did you mean `http_address`"),
        ("http_address = x", "http_address: "),
        ("servers = h:1", "unknown setting"),
    ] {
        let error = import(&format!("[hawser]\n{line}\n[pgbouncer]\n")).unwrap_err();
        assert!(error.to_string().contains(reason) && error.line == 2, "{error}");
    }
}

/// PgBouncer sets all back to its defaults there: `auth_type = hba` would be md5. Hawser kept it.
#[test]
fn a_second_header_that_sets_values_back_is_an_error_that_names_them() {
    let again = "[databases]\na = host=h\n[pgbouncer]\nauth_type = trust\ndefault_pool_size = 3\n\
                 auth_file = u\nverbose = 1\n[pgbouncer]\nauth_type = md5\n";
    let error = import(again).unwrap_err();
    assert_eq!(
        (error.line, &error.reason),
        (8, &Reason::SetBack(vec!["default_pool_size".into()]))
    );
    // What has no default there stays, and what is set again is what it is set to.
    let (config, _) = imported(&format!("{again}default_pool_size = 4\n"));
    assert_eq!((config.auth_type(), config.reload.pool.pool_size), (AuthType::Md5, 4));
    assert!(config.reload.auth.users_file.is_some());
    let mut read = |_: &str| Ok(b"[pgbouncer]\nlogfile = l\n".to_vec());
    let text = b"[pgbouncer]\nlisten_port = 1\n%include log.ini\n";
    let error = import_with(text, &mut read, &mut no_names).unwrap_err();
    assert!(error.to_string().starts_with("log.ini:1: a second [pgbouncer] sets"), "{error}");
}

/// A file that is being written may end before it.
#[test]
fn a_file_without_its_main_section_is_an_error_as_in_pgbouncer() {
    let error = import("[databases]\na = host=h\n[users]\n").unwrap_err();
    assert_eq!(error.reason, Reason::NoMainSection);
}

/// A waiter had `query_wait_timeout` alone: with `query_timeout = 3` it waited for two minutes.
#[test]
fn query_timeout_bounds_the_wait_too() {
    for (query, wait, all, database, user) in [
        ("3", "", 3, 3, 3),
        ("0x10", "", 16, 9, 16),
        ("3", "query_wait_timeout = 0", 3, 3, 3),
        ("30", "query_wait_timeout = 2", 2, 9, 30),
        ("0", "query_wait_timeout = 2", 2, 9, 50),
        ("0.0000001", "", 120, 9, 50),
        ("500", "", 120, 9, 50),
        // Ours begins when the query runs, and says nothing of the wait.
        ("3", "[hawser]\nquery_timeout = 4", 120, 9, 50),
        ("3", "[hawser]\nquery_wait_timeout = 5", 5, 3, 3),
    ] {
        let (config, output) = imported(&format!(
            "[databases]\na = host=h query_wait_timeout=9\nb = host=h\n[users]\n\
             u = query_wait_timeout=50 query_timeout=1\nv = query_timeout=1\n[pgbouncer]\n\
             auth_file = u\nquery_timeout = {query}\n{wait}\n"
        ));
        let waits = |database: &str, user: &str| {
            let limits = config.resolve(config.database(database).unwrap(), user);
            limits.timeouts.query_wait_timeout.get().map(|wait| wait.as_secs())
        };
        let found = (waits("b", "v"), waits("a", "v"), waits("b", "u"));
        assert_eq!(found, (Some(all), Some(database), Some(user)), "{query}, {wait}\n{output}");
    }
}

/// It was noted, and auth_query ran on the client's database, whose owner may define what it reads.
#[test]
fn an_auth_dbname_without_an_entry_is_an_error() {
    for (text, line) in [
        ("[databases]\na = host=h auth_dbname=b\n[pgbouncer]\n", 2),
        ("[databases]\n* = host=h\n[pgbouncer]\nauth_dbname = pgbouncer\n", 4),
        ("[databases]\n* = host=h auth_dbname=hawser\n[pgbouncer]\n", 2),
        ("[databases]\na = host=h\n[pgbouncer]\nauth_dbname =\n", 4),
        ("[databases]\na = host=h\n[pgbouncer]\nauth_dbname = b\n", 4),
        // An empty one lets no user in there; here it was the default query.
        ("[databases]\na = host=h\n[pgbouncer]\nauth_query =\n", 4),
    ] {
        let error = import(text).unwrap_err();
        assert!(matches!(error.reason, Reason::Value { .. }), "{error}");
        assert_eq!(error.line, line, "{error}");
    }
}

/// Any local user can listen in /tmp; and the clients of a database that is left out get `*`.
#[test]
fn a_server_is_looked_for_where_pgbouncer_does_or_nowhere() {
    let ini = |host: &str, directory: &str| {
        format!(
            "[databases]\na ={host}\n* = host=other\n[pgbouncer]\nauth_file = u\n\
             listen_addr = 127.0.0.1\nlisten_port = 7000\n{directory}"
        )
    };
    for (host, directory) in [("", "unix_socket_dir ="), (" dbname=b", "unix_socket_dir =")] {
        let error = import(&ini(host, directory)).unwrap_err();
        assert_eq!(error.line, 2, "{error}");
        assert!(error.to_string().contains("host of a: "), "{error}");
    }
    for (host, directory, socket, listens) in [
        ("", "", "/tmp/.s.PGSQL.5432", "/tmp/.s.PGSQL.7000"),
        (" port=05433", "", "/tmp/.s.PGSQL.5433", "/tmp/.s.PGSQL.7000"),
        // Digits after a colon were a port.
        (
            "",
            "unix_socket_dir = /run/a:6000",
            "/run/a:6000/.s.PGSQL.5432",
            "/run/a:6000/.s.PGSQL.7000",
        ),
        (" host=/run/b:1", "", "/run/b:1/.s.PGSQL.5432", "/tmp/.s.PGSQL.7000"),
        // Abstract sockets: what PgBouncer writes the NUL byte over is shown.
        ("", "unix_socket_dir = @run", "@run/.s.PGSQL.5432", "@run/.s.PGSQL.7000"),
        (" host=@a/b port=1", "", "@a/b/.s.PGSQL.1", "/tmp/.s.PGSQL.7000"),
    ] {
        let (config, output) = imported(&ini(host, directory));
        assert_eq!(config.database("a").unwrap().servers[0].to_string(), socket, "{output}");
        assert_eq!(config.listen()[1].to_string(), listens, "{output}");
    }
}

/// A name was left out with a note; without other addresses Hawser listened on loopback.
#[test]
fn names_to_listen_on_are_looked_up_and_nothing_stands_in_for_what_is_missing() {
    let ini =
        |lines: &str| format!("[databases]\na = host=h\n[pgbouncer]\nauth_file = u\n{lines}\n");
    let mut known = |name: &str| match name {
        "inside.example" => Ok(vec!["127.0.0.2".parse().unwrap(), "::1".parse().unwrap()]),
        "bare.example" => Ok(Vec::new()),
        _ => Err(io::ErrorKind::NotFound.into()),
    };
    let mut run = |lines: &str| import_with(ini(lines).as_bytes(), &mut |_| panic!(), &mut known);
    let lines = "listen_port = 014442\nunix_socket_dir =\nlisten_addr = inside.example, ::1";
    let output = run(lines).unwrap();
    assert!(output.toml.contains("# what inside.example is at the import"), "{}", output.toml);
    assert!(!output.notes().any(|note| note.contains("inside.example")));
    let config = Config::from_str(&output.toml, "x.toml").unwrap();
    let listen: Vec<_> = config.listen().iter().map(ToString::to_string).collect();
    assert_eq!(listen, ["127.0.0.2:6434", "[::1]:6434"], "a port is read as other numbers");
    for lines in [
        "listen_addr = other.example",
        "listen_addr = 127.0.0.1, bare.example",
        "unix_socket_dir =",
        "unix_socket_dir = run",
        "listen_port = 06439",
        "verbose = yes",
        "peer_id = one",
    ] {
        let error = run(lines).unwrap_err();
        assert_eq!(error.line, 5, "{error}");
        let key = lines.split(" =").next().unwrap_or_default();
        assert!(matches!(&error.reason, Reason::Value { key: of, .. } if of == key), "{error}");
    }
    let own = "unix_socket_dir =\nlisten_addr = other.example\n[hawser]\naddress = 127.0.0.1:7001";
    let config = Config::from_str(&run(own).unwrap().toml, "x.toml").unwrap();
    assert_eq!(config.listen()[0].to_string(), "127.0.0.1:7001");
}

/// `pool_size=020` was 16 in silence.
#[test]
fn numbers_are_decimal_where_pgbouncer_reads_them_so() {
    let (config, output) = imported(
        "[databases]\na = host=h pool_size=020 max_db_connections=0100 server_lifetime=00 \
         query_wait_timeout=010\n[users]\nu = query_timeout=010 max_user_connections=+00\n[pgbouncer]\n\
         auth_file = u\ntcp_keepidle = 0x1e\nquery_timeout = 0x10\ndefault_pool_size = 020\n\
         client_idle_timeout = 1e1\npeer_id = 0x0\nverbose = 00\nmax_user_connections = 7\n[peers]\n",
    );
    let a = config.database("a").unwrap();
    assert_eq!(
        (a.inherited.pool.pool_size, a.inherited.limits.max_db_connections),
        (20, Limit::new(100))
    );
    assert_eq!(a.inherited.servers.server_lifetime, Duration::from_secs(3600), "inherited");
    assert_eq!(a.inherited.timeouts.query_wait_timeout, Timeout::after(Duration::from_secs(10)));
    let u = config.resolve(a, "u");
    assert_eq!(u.timeouts.query_timeout, Timeout::after(Duration::from_secs(10)));
    assert_eq!(config.reload.pool.pool_size, 16);
    assert_eq!(config.reload.network.tcp_keepidle.get(), Some(Duration::from_secs(30)));
    let idle = config.reload.timeouts.client_idle_timeout.get();
    assert_eq!(idle, Some(Duration::from_secs(10)));
    assert!(!output.contains("level = "), "{output}");
    for text in [
        "[databases]\na = host=h pool_size=0x10",
        "[databases]\na = host=h pool_size=5s",
        "[databases]\na = host=h server_lifetime=1.5",
        "[pgbouncer]\ntcp_keepidle = 1.5",
        "[pgbouncer]\nstats_period = 1e1",
    ] {
        let error = import(text).unwrap_err();
        assert!(error.line == 2 && error.to_string().contains("is not a number"), "{error}");
    }
}

/// Some of what SET takes is no TOML without quotes: `5.`, `010`.
#[test]
fn settings_of_its_own_are_written_as_toml() {
    let (config, output) = imported(
        "[databases]\na = host=h function_census=off max_replica_lag=1.5s server_tls_sslmode=Require\n\
         [pgbouncer]\nauth_file = u\nadmin_users = a b,c\n[hawser]\nshutdown_timeout = 5.\n\
         client_write_timeout = .5\nmax_client_conn = 010\nreserve_pool_size = 0\n\
         fidelity = Classic\n",
    );
    let seconds = |timeout: Timeout| timeout.get().map(|time| time.as_secs_f64());
    assert_eq!(seconds(config.reload.shutdown.shutdown_timeout), Some(5.0), "{output}");
    assert_eq!(seconds(config.reload.timeouts.client_write_timeout), Some(0.5));
    assert_eq!(config.reload.limits.max_client_conn, 10);
    assert_eq!(config.database("a").unwrap().inherited.tls.server_tls_sslmode, TlsMode::Require);
    assert!(config.is_admin("b") && config.is_admin("c"), "spaces are between, too");
    let error = import("[hawser]\nmax_client_conn =\n[pgbouncer]\n").unwrap_err();
    assert!(error.line == 2 && error.to_string().contains("max_client_conn: "), "{error}");
}

/// The advice of the note was refused: auth_type stood beside hba_file.
#[test]
fn rules_of_its_own_are_in_place_of_a_method_that_is_not_supported() {
    for method in ["auth_type = ldap\nauth_ldap_options = x\n", "auth_type = pam\n", ""] {
        let ini = format!(
            "[databases]\na = host=h\n[pgbouncer]\nauth_file = u\n{method}[hawser]\nhba_file = h.conf\n"
        );
        let (config, output) = imported(&ini);
        assert_eq!(config.auth_type(), AuthType::Hba);
        assert!(!output.contains("auth_type"), "{output}");
    }
}

/// It was a comment of the output, and a warning in the log.
#[test]
fn a_password_of_ldap_is_not_in_the_comment() {
    let (_, output) = imported(
        "[databases]\na = host=h\n[pgbouncer]\nauth_file = u\n\
         auth_ldap_options = ldapurl=\"ldap://h\" ldapbindpasswd=hunter2\n",
    );
    assert!(output.contains("# auth_ldap_options = ... has no equivalent"), "{output}");
    assert!(!output.contains("hunter2"));
}

#[test]
fn the_last_of_a_name_holds_and_a_database_twice_is_noted() {
    let (config, output) = imported(
        "[databases]\na = host=h user=u password=x\na = host=i reserve_pool_size=5 reserve_pool=3\n\
         [pgbouncer]\nauth_file = u\n",
    );
    let a = config.database("a").unwrap();
    assert_eq!(
        (a.servers[0].to_string().as_str(), a.inherited.pool.reserve_pool_size),
        ("i:5432", 3)
    );
    assert!(output.contains("# database a is there twice: the later entry holds"), "{output}");
}

#[test]
fn an_auth_query_that_leaves_its_schema_open_is_noted() {
    let query = "SELECT * FROM lookup($1)";
    let ini = format!(
        "[databases]\na = host=h auth_user=x auth_query='{query}'\n[pgbouncer]\nauth_user = x\n\
         auth_query = {query}\n"
    );
    let (_, output) = imported(&ini);
    assert_eq!(output.matches("# auth_query reads from lookup").count(), 2, "{output}");
    assert!(!imported(&ini.replace("lookup(", "own.lookup(")).1.contains("# auth_query"));
}

#[test]
fn the_bounds_on_server_connections_are_pgbouncers() {
    let (config, _) = imported(
        "[databases]\n* = host=h\n[pgbouncer]\nauth_file = u\ndefault_pool_size = 15\nreserve_pool_size = 3\n",
    );
    let database = config.database("any").unwrap();
    let limits = (
        database.inherited.pool.pool_size,
        database.inherited.pool.reserve_pool_size,
        database.inherited.pool.idle_transaction_reserve,
    );
    assert_eq!(limits, (15, 3, Some(0)));
}

#[test]
fn databases_and_users_keep_their_settings() {
    let (config, output) = imported(
        "[databases]
forced = host=10.0.0.1,10.0.0.2 dbname=real user=u password='it''s' pool_size=7 reserve_pool=3 pool_mode=statement connect_query='SELECT 1' server_lifetime=60 timezone=UTC client_encoding=LATIN1 query_wait_timeout=9
local =
v6 = host=::1 max_db_connections=0 max_db_client_connections=9
sock = host=/run/pg port=5433 load_balance_hosts=disable
'odd name' = host=h auth_user=a
* = host=h2 auth_dbname=local
[users]
alice = pool_mode=transaction pool_size=2 max_user_connections=5 query_timeout=30 idle_transaction_timeout=0 query_wait_timeout=4
[pgbouncer]
unix_socket_dir = /run/pgb
listen_port = 7000
auth_type = trust
auth_file = u.txt
query_timeout = 12.5
",
    );
    let forced = config.database("forced").unwrap();
    assert_eq!(forced.servers.len(), 2);
    assert_eq!(forced.load_balance_hosts, LoadBalanceHosts::RoundRobin);
    assert_eq!(forced.dbname_for("forced"), "real");
    assert_eq!((forced.inherited.pool.pool_size, forced.inherited.pool.reserve_pool_size), (7, 3));
    assert_eq!(forced.inherited.pool.pool_mode, PoolMode::Statement);
    assert_eq!(forced.connect_query.as_deref(), Some("SELECT 1"));
    assert_eq!(forced.inherited.servers.server_lifetime, Duration::from_secs(60));
    let user = forced.forced_user.as_ref().unwrap();
    assert_eq!((user.name.as_str(), user.password.as_ref().unwrap().expose()), ("u", "it's"));
    let server = |name: &str| config.database(name).unwrap().servers[0].to_string();
    assert_eq!(server("local"), "/run/pgb/.s.PGSQL.5432");
    assert_eq!(server("v6"), "[::1]:5432");
    assert_eq!(server("sock"), "/run/pg/.s.PGSQL.5433");
    assert_eq!(server("odd name"), "h:5432");
    assert_eq!(
        config.database("v6").unwrap().inherited.limits.max_db_client_connections,
        Limit::new(9)
    );
    assert_eq!(
        config.database("other").unwrap().inherited.auth.auth_dbname.as_deref(),
        Some("local")
    );
    let alice = config.resolve(forced, "alice");
    assert_eq!((alice.pool.pool_size, alice.pool.pool_mode), (2, PoolMode::Transaction));
    assert_eq!(alice.timeouts.query_timeout, Timeout::after(Duration::from_secs(30)));
    assert_eq!(config.reload.timeouts.query_timeout.get(), Some(Duration::from_millis(12_500)));
    assert_eq!(config.listen()[0].to_string(), "/run/pgb/.s.PGSQL.7000");
    let start = [("client_encoding", "LATIN1"), ("TimeZone", "UTC")];
    assert_eq!(forced.start_values, start.map(|(name, value)| (name, value.to_owned())));
    assert_eq!(
        forced.inherited.timeouts.query_wait_timeout,
        Timeout::after(Duration::from_secs(9))
    );
    assert_eq!(alice.timeouts.query_wait_timeout, Timeout::after(Duration::from_secs(4)));
    assert_eq!(config.reload.servers.pool_idle_timeout, Timeout::NEVER);
    assert!(output.contains("autodb_idle_timeout = \"3600s\""), "{output}");
}

#[test]
fn what_has_no_equivalent_is_a_comment_with_its_reason() {
    let (config, output) = imported(
        "[databases]\na = host=h\nb = host=h password=hunter2\nhawser = host=h\n[peers]\n1 = host=/x
[pgbouncer]
listen_addr = *
auth_type = ldap
auth_ldap_options = ldapurl=\"ldap://h\"
auth_file = u.txt
auth_hba_file = hba.conf
so_reuseport = 1
logfile = /var/log/x.log
verbose = 2
default_pool_size = 0
unix_socket_mode = 448
client_tls_protocols = all
server_tls_sslmode = verify-full
tcp_user_timeout = 250
tcp_keepidle = 60
",
    );
    for comment in [
        "# password was left out",
        "# database hawser was left out",
        "# [peers] 1: without peer_id",
        "# auth_type = ldap is not supported",
        "# auth_hba_file = hba.conf: only",
        "# so_reuseport = 1 has no equivalent: one process",
        "logfile = \"/var/log/x.log\"",
        "# client_tls_protocols = all: TLS 1.0",
    ] {
        assert!(output.contains(comment), "no `{comment}` in:\n{output}");
    }
    assert!(!output.contains("hunter2"));
    assert_eq!(config.reload.pool.pool_size, 262_143, "no limit");
    assert_eq!(config.start.listen.unix_socket_mode.0, 0o700, "decimal, as C reads it");
    assert_eq!(config.database("b").unwrap().inherited.tls.server_tls_sslmode, TlsMode::VerifyFull);
    assert_eq!(config.reload.network.tcp_user_timeout.get(), Some(Duration::from_millis(250)));
    assert_eq!(config.reload.network.tcp_keepidle.get(), Some(Duration::from_secs(60)));
}

#[test]
fn rules_are_kept_where_pgbouncer_reads_them() {
    let (config, _) = imported(
        "[databases]\na = host=h\n[pgbouncer]\nauth_type = hba\nauth_hba_file = /x/hba.conf\nauth_ident_file = /x/ident.conf\nauth_file = /x/u\nadmin_users = a, b\n",
    );
    assert_eq!(config.auth_type(), AuthType::Hba);
    assert_eq!(config.reload.auth.ident_file.as_deref(), Some("/x/ident.conf".as_ref()));
    assert!(config.is_admin("b"));
}

#[test]
fn what_pgbouncer_refuses_is_refused_with_its_line_and_without_passwords() {
    for (line, reason) in [
        ("[databases]\na = password=hun ter2=x", Reason::Pairs("a".into())),
        ("[databases]\na = password=hunter2 x", Reason::Pairs("a".into())),
        ("[users]\na = password=hunter2", Reason::UnknownKey("password".into())),
        // Each was a key twice in the output.
        ("[databases]\na = host=h name=b", Reason::UnknownKey("name".into())),
        ("[databases]\na = host=h servers=i", Reason::UnknownKey("servers".into())),
    ] {
        let error = import(line).unwrap_err();
        assert_eq!((error.line, &error.reason), (2, &reason));
        assert!(!error.to_string().contains("ter2"), "{error}");
    }
    for line in [
        "[pgbouncer]\ndefault_pool_size = many",
        "[pgbouncer]\nlisten_port = 0",
        "[databases]\na = port=x",
        "[databases]\na = host=a/b",
        "[databases]\npgbouncer = host=h",
    ] {
        let error = import(line).unwrap_err();
        assert!(matches!(error.reason, Reason::Value { .. }), "{error}");
        assert_eq!(error.line, 2);
    }
}

#[test]
fn a_comment_after_a_value_is_named_as_part_of_it() {
    for text in [
        "[pgbouncer]\ndefault_pool_size = 20 ; for the web",
        "[pgbouncer]\npool_mode = session\t# as before",
        "[databases]\na = host=h ; the primary",
        "[databases]\na = host=h pool_size=5 ;primary",
        "[users]\nu = pool_mode=session ; batch",
        "[hawser]\nfidelity = full ; by default",
    ] {
        let error = import(text).unwrap_err();
        assert!(matches!(error.reason, Reason::WithComment(_)), "{error}");
        let said = error.to_string();
        assert!(said.starts_with("line 2: ") && said.contains("as part of the value"), "{said}");
    }
    let mut read = |_: &str| Ok(b"\ndefault_pool_size = 7 ; more\n".to_vec());
    let text = "[pgbouncer]\n%include /etc/more.ini\n";
    let error = import_with(text.as_bytes(), &mut read, &mut no_names).unwrap_err();
    assert!(error.to_string().starts_with("/etc/more.ini:2: default_pool_size: "), "{error}");
    // Without a blank before it nothing looks like a comment. What is not wrong is no error.
    let error = import("[pgbouncer]\ndefault_pool_size = 20;").unwrap_err();
    assert!(matches!(error.reason, Reason::Value { .. }), "{error}");
    assert!(
        import("[databases]\na = host=h password='a ;b'\n[pgbouncer]\nauth_file = u\n").is_ok()
    );
}

#[test]
fn all_errors_are_said() {
    let errors = |text: &str| -> Vec<String> {
        let all: ImportErrors =
            super::import_with(text.as_bytes(), &mut no_files, &mut no_files).unwrap_err();
        all.iter().map(|error| error.in_file("p.ini".as_ref())).collect()
    };
    let found = errors(
        "[databases]\na = host=h load_balance_hosts=random\n[pgbouncer]\npool_mode = frob\ndefault_pool_size = x ; more\nauth_file = u\n",
    );
    let begins = ["p.ini:5: default_pool_size: ", "p.ini:4: pool_mode: ", "p.ini:2: "];
    for begin in begins {
        assert!(found.iter().any(|error| error.starts_with(begin)), "{begin}: {found:?}");
    }
    assert_eq!(found.len(), begins.len(), "{found:?}");
    // What cannot be read at all comes first. What stands in an unknown section says nothing.
    let found = errors("[databses]\na = host=h\n[pgbouncer]\npool_mode\nb = 2\n%include x\n");
    let lines: Vec<_> = found.iter().map(|error| error.split(' ').next().unwrap()).collect();
    assert_eq!(lines, ["p.ini:1:", "p.ini:4:", "p.ini:6:"], "{found:?}");
    assert_eq!(errors(&"x\n".repeat(1000)).len(), ImportErrors::MANY);
}

#[test]
fn includes_are_read_in_place_and_the_last_value_counts() {
    let mut read = |name: &str| {
        assert_eq!(name, "/etc/more.ini");
        Ok(b"default_pool_size = 7\n[databases]\na = host=second\n".to_vec())
    };
    let text = "[databases]\na = host=first\n[pgbouncer]\nauth_file = u\ndefault_pool_size = 3\n%include /etc/more.ini\n";
    let output = import_with(text.as_bytes(), &mut read, &mut no_names).unwrap().toml;
    let config = Config::from_str(&output, "x.toml").unwrap();
    assert_eq!(config.database("a").unwrap().servers[0].to_string(), "second:5432");
    assert_eq!(config.reload.pool.pool_size, 7);
    assert!(import(text).unwrap_err().to_string().contains("line 6: %include /etc/more.ini"));
}

#[test]
fn what_is_missing_for_a_whole_configuration_is_said_in_the_output() {
    let output = import("[pgbouncer]\n").unwrap().toml;
    assert!(output.contains("# There was no [databases]"), "{output}");
    assert!(output.contains("# There was neither auth_file nor auth_user"), "{output}");
}

#[test]
fn empty_values_are_not_set_as_in_pgbouncer() {
    let (config, output) = imported(
        "[databases]\na = host=h\n[pgbouncer]\nauth_file = u\nclient_tls_cert_file =\nresolv_conf =\nserver_reset_query =\n",
    );
    assert!(!output.contains("client_tls_cert_file") && !output.contains("resolv_conf"));
    assert_eq!(config.reload.pool.server_reset_query, "", "an empty query is none");
}

mod any_file {
    use proptest::prelude::*;

    use super::super::{OTHER_DEFAULTS, Reason};
    use super::import;
    use crate::config::{Config, registry};

    fn keys() -> Vec<&'static str> {
        registry::all()
            .filter(|s| !s.table.is_array())
            .filter_map(|s| s.pgbouncer)
            .chain(OTHER_DEFAULTS.iter().map(|d| d.0))
            .collect()
    }

    proptest! {
        #[test]
        fn never_panics(text in "\\PC{0,80}", rest in "[\\[\\]a-z=' %\n;*]{0,200}") {
            let _ = import(&text);
            let _ = import(&rest);
            let _ = import(&format!("[databases]\n{rest}"));
        }

        /// Whatever numbers stand in a file, it is refused for one of them, or its import is one that
        /// Hawser takes.
        #[test]
        fn that_is_imported_is_accepted(
            settings in prop::collection::vec(
                (prop::sample::select(keys()), prop_oneof![0..100_000u32, Just(0), Just(1)]), 0..20),
            value in "[ -~]{1,12}",
        ) {
            // Those that are words or name files, whose presence asks for others.
            let words = ["auth_type", "listen_addr", "unix_socket_dir", "auth_dbname"];
            let mut text = format!("[databases]\na = host=h user=u password='{}'\n", value.replace('\'', "''"));
            text += "[pgbouncer]\nauth_file = u.txt\n";
            for (key, number) in settings {
                if !words.contains(&key) && !key.ends_with("_file") {
                    text += &format!("{key} = {number}\n");
                }
            }
            let output = match import(&text) {
                Ok(imported) => imported.toml,
                Err(error) => {
                    prop_assert!(matches!(error.reason, Reason::Value { .. }), "{error}");
                    return Ok(());
                }
            };
            let loaded = Config::from_str(&output, "x.toml");
            prop_assert!(loaded.is_ok(), "{}\nin:\n{output}\nof:\n{text}", loaded.unwrap_err());
        }
    }
}

#[test]
fn a_key_that_pgbouncer_does_not_have_is_a_comment_with_the_nearest_name_and_no_value() {
    let text = "[databases]\na = host=h max_db_conections=5\n[pgbouncer]\nauth_file = u\n\
                max_client_con = 7\nnonsense_of_somebody = x\nlogfile = /var/log/p.log\n\
                [users]\nu = pol_mode=session\n";
    let imported = import(text).unwrap();
    Config::from_str(&imported.toml, "x.toml").unwrap_or_else(|errors| panic!("{errors}"));
    let unknown = [
        "5: PgBouncer has no setting `max_client_con`: left out, did you mean `max_client_conn`?",
        "6: PgBouncer has no setting `nonsense_of_somebody`: left out",
        "2: PgBouncer has no setting `max_db_conections` (of a): left out, did you mean \
         `max_db_connections`?",
        "9: PgBouncer has no setting `pol_mode` (of u): left out, did you mean `pool_mode`?",
    ];
    assert_eq!(imported.unknown, unknown);
    for line in unknown {
        let (_, note) = line.split_once(": ").unwrap();
        assert!(imported.toml.contains(&format!("# {note}\n")), "{}", imported.toml);
        assert!(imported.notes().any(|noted| noted == note), "{note}");
    }
    assert!(imported.toml.contains("logfile = \"/var/log/p.log\""), "{}", imported.toml);
    // The rest of a password with a space in it may look like a key.
    let secret = import("[databases]\na = host=h password=geh eim=1\n").unwrap_err();
    assert!(!secret.to_string().contains("eim"), "{secret}");
}

#[test]
fn peers_of_a_process_with_a_number_become_one_setting() {
    let peers =
        "[peers]\n1 = host=/tmp/a port=7000 pool_size=3\n2 = host=h\n3=host=10.0.0.3 port=6433\n";
    let ini =
        format!("[databases]\na = host=h\n{peers}[pgbouncer]\nauth_file = u.txt\npeer_id = 2\n");
    let (config, output) = imported(&ini);
    assert_eq!(config.start.process.peer_id, 2, "{output}");
    let list: Vec<_> = config
        .reload
        .peers
        .peers
        .iter()
        .map(|peer| format!("{} {}", peer.id, peer.address))
        .collect();
    assert_eq!(list, ["1 /tmp/a/.s.PGSQL.7000", "2 h:6432", "3 10.0.0.3:6433"]);
    for (peer, reason) in [
        ("0 = host=h", "number of peer 0"),
        ("256 = host=h", "1 to 255"),
        ("x = host=h", "1 to 255"),
        ("1 = port=3", "host of peer 1"),
        ("1 = host=h port=x", "port of peer 1"),
        ("1 = host=h user=u", "user"),
    ] {
        let text = format!("[databases]\na = host=h\n[peers]\n{peer}\n[pgbouncer]\npeer_id = 2\n");
        let error = import(&text).unwrap_err().to_string();
        assert!(error.contains(reason), "{peer}: {error}");
    }
}
