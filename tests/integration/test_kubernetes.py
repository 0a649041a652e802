"""In PgBouncer's place in the pods of Kubernetes operators: the files that they generate, the command that they run, and what
they then do to the process.

Each test writes what one operator generates, in its own words as far as Hawser reads them, and starts Hawser as the pod does:
by the name `pgbouncer`, as a user id that has no name, and with a root file system that cannot be written, as far as this
machine allows it. Read at CloudNativePG 1.30.0, Crunchy PGO 6.0.3 and Zalando postgres-operator 2.0.1. What no test here
can show is what the cluster does: docs/kubernetes.md.
"""

import contextlib
import functools
import itertools
import os
import pathlib
import re
import shutil
import signal
import string
import subprocess

from harness import messages as m
from harness.pooler import Serving, binary
from harness.postgres import free_port
from harness.suite import equal, pooler_only, until
from harness.wire import Disconnected, ServerError, Target

SAME_FOR_ALL_SERVERS = True

# What both CloudNativePG's manager and PGO's collector take log lines apart with, in one.
LOG_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} [A-Z]{3} \[\d+\] [A-Z]+ .+")

NUMBERS = itertools.count(1)

# The pod's view of files: all is read-only but the directories that are named.
SEALED = r"""
set -e
mount --make-rprivate /
for place in $WRITABLE; do mount --bind "$place" "$place"; done
mount -o remount,bind,ro /
[ ! -d /run ] || mount -t tmpfs -o ro tmpfs /run
[ ! -w /tmp ] || mount -o remount,bind,ro /tmp 2>/dev/null || true
exec setpriv --reuid "$AS_USER" --regid "$AS_GROUP" --clear-groups --no-new-privs --bounding-set=-all "$@"
"""


@functools.cache
def can_seal():
    """Whether this machine lets us have a root that is read-only, and be another user."""
    if os.geteuid() or not shutil.which("unshare") or not shutil.which("setpriv"):
        return False
    tried = subprocess.run(["unshare", "--mount", "sh", "-c", "mount --make-rprivate / && mount -o remount,bind,ro /"], capture_output=True)
    return tried.returncode == 0


class Pod(Serving):
    """A directory in place of the container's root, and the process in it. `user` and `group` are the pod's ids."""

    def __init__(self, env, name, user, group, root_is_read_only=True):
        self.root = pathlib.Path(env.directory) / f"{name}{next(NUMBERS)}"
        self.root_is_read_only = root_is_read_only
        self.certificates = env.certificates
        self.user, self.group = user, group
        self.log = self.root / "stderr"
        self.port = free_port()
        self.target = Target(self.port, str(self.root / "run"), {})
        self.writable = []
        (self.root / "bin").mkdir(parents=True)
        (self.root / "bin/pgbouncer").symlink_to(os.path.abspath(binary()))

    def file(self, path, text, mode=0o600):
        """Written beside and renamed, as the operators do: a reload never finds half of it."""
        path = self.root / path
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(path.name + ".new")
        new.write_text(text)
        new.chmod(mode)
        self.own(new)
        new.rename(path)
        return path

    def certificate(self, path, name):
        return self.file(path, pathlib.Path(self.certificates.path(name)).read_text())

    def directory(self, path):
        """One that the process may write in."""
        path = self.root / path
        path.mkdir(parents=True, exist_ok=True)
        self.own(path)
        self.writable.append(str(path))
        return path

    def own(self, path):
        if can_seal():
            os.chown(path, self.user, self.group)

    def run(self, *command, **environment):
        """`command` with the container's variables, and none of ours."""
        environment = {"PATH": f"{self.root}/bin:/usr/bin:/bin", **environment}
        if can_seal():
            seal = ("unshare", "--mount", "sh", "-c", SEALED) if self.root_is_read_only else ("sh", "-c", SEALED.splitlines()[-1])
            command = (*seal, "sh", *command)
            environment |= {"AS_USER": str(self.user), "AS_GROUP": str(self.group), "WRITABLE": " ".join(self.writable)}
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, cwd="/")
        until(self.is_ready, f"the readiness probe:\n{self.log.read_text()}", 15)
        # By this name PGO's second container finds the process.
        equal(pathlib.Path(f"/proc/{self.process.pid}/comm").read_text(), "pgbouncer\n", "name of the process")

    def is_ready(self):
        """The readiness probe: the port takes connections."""
        assert self.process.poll() is None, f"it has ended:\n{self.log.read_text()}"
        return self.listens()

    def ends(self, sign, seconds=15):
        self.process.send_signal(sign)
        equal(self.process.wait(seconds), 0, f"exit code:\n{self.log.read_text()}")

    def check_log(self):
        for line in self.log.read_text().splitlines():
            assert LOG_LINE.fullmatch(line), f"the operator cannot take apart: {line}"


def table(console, what):
    """Rows as dictionaries, by their columns."""
    result = console.attempt(f"SHOW {what};")
    assert not result.errors, result.errors
    return result.columns, [dict(zip(result.columns, row)) for row in result.rows]


def pool_size(console):
    return dict(row[:2] for row in console.rows("SHOW CONFIG"))["default_pool_size"]


def is_refused(connect, **how):
    try:
        connect(**how).sock.close()
    except (ServerError, Disconnected, ConnectionError):
        return True
    return False


def login_role(env, name, secret):
    server = env.server("postgres")
    if not server.rows(f"select from pg_roles where rolname = '{name}'"):
        server.execute(f"create role {name} login")
    server.execute(f"alter role {name} password '{secret.replace(chr(39), chr(39) * 2)}'")


def lookup(env, database, schema, function, role, body):
    """The function of an operator for auth_query, and its right to it."""
    session = env.server(database)
    session.execute(f'create schema if not exists "{schema}"')
    session.execute(f'create or replace function "{schema}".{function}')
    session.execute(f'revoke all on function "{schema}".{body} from public')
    session.execute(f'grant execute on function "{schema}".{body} to "{role}"')
    session.execute(f'grant usage on schema "{schema}" to "{role}"')


# CloudNativePG: the manager in the pod writes the files, runs the program, and uses its console over the unix socket.

CLOUDNATIVEPG_INI = """\

[databases]
* = host=localhost port={server_port}

[pgbouncer]
pool_mode = transaction
auth_user = app_cert
auth_query = SELECT usename, passwd FROM public.user_search($1)
auth_dbname = postgres

admin_users = pgbouncer
auth_hba_file = {configs}/pg_hba.conf
auth_type = hba
client_tls_ca_file = {configs}/client-ca/ca.crt
client_tls_cert_file = {configs}/client-tls/tls.crt
client_tls_key_file = {configs}/client-tls/tls.key
client_tls_sslmode = prefer
default_pool_size = {pool_size}
ignore_startup_parameters = extra_float_digits,options
listen_addr = *
listen_port = {port}
log_stats = 0
max_client_conn = 1000
server_tls_ca_file = {configs}/server-tls/ca.crt
server_tls_cert_file = {configs}/authUser/tls.crt
server_tls_key_file = {configs}/authUser/tls.key
server_tls_sslmode = verify-ca
unix_socket_dir = {run}
"""
CLOUDNATIVEPG_HBA = """
local pgbouncer pgbouncer peer



host all all 0.0.0.0/0 md5
host all all ::/0 md5
"""
# What its exporter knows: any other name is an error of the collection.
CLOUDNATIVEPG_LISTS = {"databases", "users", "pools", "free_clients", "used_clients", "login_clients", "free_servers", "used_servers",
                       "dns_names", "dns_zones", "dns_queries", "dns_pending"}
# What PgBouncer has as well, and the exporter logs as missing.
LATER_LISTS = {"peers", "peer_pools"}


def cloudnativepg(env):
    """Its pod, with all files but pgbouncer.ini, and a function that writes that one."""
    lookup(env, "postgres", "public", "user_search(uname text) returns table (usename name, passwd text) language sql security definer "
           "set search_path = pg_catalog, pg_temp as 'select usename, passwd from pg_catalog.pg_shadow where usename = $1'",
           "app_cert", "user_search(text)")
    pod = Pod(env, "cloudnativepg", 998, 996)
    controller = pod.directory("controller")
    configs, run = controller / "configs", pod.directory("controller/run")
    pod.target.socket_dir = str(run)
    pod.file(configs / "pg_hba.conf", CLOUDNATIVEPG_HBA)
    for path, name in (("server-tls/ca.crt", "ca.crt"), ("client-ca/ca.crt", "ca.crt"), ("client-tls/tls.crt", "server.crt"),
                       ("client-tls/tls.key", "server.key"), ("authUser/tls.crt", "client.crt"), ("authUser/tls.key", "client.key")):
        pod.certificate(configs / path, name)

    def write(pool_size):
        text = CLOUDNATIVEPG_INI.format(server_port=env.cluster.port, configs=configs, run=run, port=pod.port, pool_size=pool_size)
        return pod.file(configs / "pgbouncer.ini", text)
    return pod, write


@pooler_only
def test_cloudnativepg(env):
    pod, write = cloudnativepg(env)
    with pod:
        pod.run("pgbouncer", str(write(5)), PGUSER="pgbouncer", PGDATABASE="pgbouncer", PGHOST=pod.target.socket_dir,
                HAWSER_SETTINGS="console_version = 1.25\n")
        secret = env.cluster.target.secrets["app"]
        assert is_refused(pod.target.connect, user="app", secret="wrong")
        for tls in (None, env.tls()):
            client = pod.target.connect(user="app", secret=secret, tls=tls, hostname="localhost" if tls else None)
            equal(client.value("select current_user || ' ' || (select ssl from pg_stat_ssl where pid = pg_backend_pid())"), "app true")
        # The manager: pgx with the simple protocol over the unix socket, as the user of the process, without a password.
        if can_seal():
            assert is_refused(pod.target.connect, user="pgbouncer", database="pgbouncer", host=pod.target.socket_dir, secret="x"), \
                "another user id, without a password"
        with as_user(pod.user if can_seal() else os.geteuid()):
            console = pod.target.connect(user="pgbouncer", database="pgbouncer", host=pod.target.socket_dir, client_encoding="UTF8")
        scanned_as_by_its_exporter(console)
        console.execute("PAUSE")
        client.send(m.query("select 7"))
        assert not client.pending(0.3), "a client is served while the Pooler is paused"
        console.execute("RESUME")
        equal(client.collect().value, "7")
        write(7)
        console.execute("RELOAD")
        equal(pool_size(console), "7")
        equal(table(console, "VERSION")[1][0]["version"].split()[:2], ["PgBouncer", "1.25.2"])
        pod.ends(signal.SIGINT)
        pod.check_log()


@contextlib.contextmanager
def as_user(user):
    """Connections of this process have another effective user, as the server's peer sees it."""
    before = os.geteuid()
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(before)


def scanned_as_by_its_exporter(console):
    """Go's database/sql: the number of columns is fixed, NULL is no number and no text."""
    _, lists = table(console, "LISTS")
    equal({row["list"] for row in lists} - CLOUDNATIVEPG_LISTS - LATER_LISTS, set(), "lists that the exporter does not know")
    assert all(int(row["items"]) >= 0 for row in lists), lists
    columns, pools = table(console, "POOLS")
    equal(len(columns), 17, "columns of SHOW POOLS")
    assert {"app"} <= {row["database"] for row in pools}, pools
    for row in pools:
        assert row["database"] and row["user"] and row["pool_mode"], row
        assert all(int(row[name]) >= 0 for name in columns[2:15]), row
        assert row["load_balance_hosts"] is None or row["load_balance_hosts"].isdigit(), row
    columns, stats = table(console, "STATS")
    equal(len(columns), 23, "columns of SHOW STATS")
    for row in stats:
        assert all(int(row[name]) >= 0 for name in columns[1:]), row


@pooler_only
def test_settings_of_the_environment_hold_for_a_pgbouncer_ini_that_an_operator_writes(env):
    """CloudNativePG refuses names that PgBouncer does not have, and its ini has no section of ours."""
    pod, write = cloudnativepg(env)
    with pod:
        ini = str(write(5))
        run = subprocess.run([pod.root / "bin/pgbouncer", ini], capture_output=True, text=True, timeout=20,
                             env={**os.environ, "HAWSER_SETTINGS": "console_version = 1.25\npool_sise = 3"})
        assert run.returncode == 1 and "HAWSER_SETTINGS: " in run.stderr and "unknown setting `pool_sise`" in run.stderr, run
        run = subprocess.run([binary(), "check", "--pgbouncer", ini], capture_output=True, text=True, timeout=20,
                             env={**os.environ, "HAWSER_SETTINGS": "console_version = 0.1"})
        assert run.returncode == 1 and "console_version" in run.stdout, run
        pod.run("pgbouncer", ini, HAWSER_SETTINGS="\n# a comment\nconsole_version=1.24\n")
        with as_user(pod.user if can_seal() else os.geteuid()):
            console = pod.target.connect(user="pgbouncer", database="pgbouncer", host=pod.target.socket_dir)
        assert table(console, "VERSION")[1][0]["version"].startswith("PgBouncer 1.24."), "the setting"
        write(9)
        console.execute("RELOAD")
        equal(pool_size(console), "9")
        assert table(console, "VERSION")[1][0]["version"].startswith("PgBouncer 1.24."), "the setting after a reload"


# Crunchy PGO: files of a projected volume, a second container that sends SIGHUP, and a collector that logs in with a password.

CRUNCHY_INI = """\
# Generated. Your changes will not be saved.

[pgbouncer]
%include {etc}/pgbouncer.ini

[pgbouncer]
auth_file = {etc}/~postgres-operator/users.txt
auth_query = SELECT username, password from pgbouncer.get_auth($1)
auth_user = _crunchypgbouncer
client_tls_ca_file = {etc}/~postgres-operator/frontend-ca.crt
client_tls_cert_file = {etc}/~postgres-operator/frontend-tls.crt
client_tls_key_file = {etc}/~postgres-operator/frontend-tls.key
client_tls_sslmode = require
conffile = {etc}/~postgres-operator.ini
ignore_startup_parameters = extra_float_digits
listen_addr = *
listen_port = {port}
server_tls_ca_file = {etc}/~postgres-operator/backend-ca.crt
server_tls_sslmode = verify-full
stats_users = _crunchypgbouncer
unix_socket_dir =

[databases]
* = host=localhost port={server_port}{more}
"""
# The columns of which its collector makes values, and those of which it makes labels: none may be NULL.
CRUNCHY_QUERIES = {
    "CLIENTS": (["wait"], ["database", "user", "state", "application_name", "link"]),
    "DATABASES": (["pool_size", "min_pool_size", "reserve_pool_size", "max_connections", "current_connections", "paused", "disabled"],
                  ["name", "port", "database"]),
    "LISTS": (["items"], ["list"]),
    "POOLS": (["cl_active", "cl_waiting", "sv_active", "sv_idle", "sv_used"], ["database", "user"]),
    "SERVERS": (["close_needed"], ["database", "user", "state", "application_name", "link"]),
}


@pooler_only
def test_crunchy_pgo(env):
    role, secret = "_crunchypgbouncer", 'generated"secret'
    login_role(env, role, secret)
    lookup(env, "app", "pgbouncer", "get_auth(username text) returns table (username text, password text) language sql stable "
                                    "security definer "
           "as 'select rolname::text, rolpassword::text from pg_catalog.pg_authid where rolname = $1 and rolcanlogin and not rolsuper'",
           role, "get_auth(text)")
    with Pod(env, "crunchy", 2, 2) as pod:
        etc = pod.root / "etc/pgbouncer"

        def project(more=""):
            """The kubelet's way: a new directory of files, and a link that is exchanged."""
            data = etc / f"..{free_port()}"
            pod.file(data / "pgbouncer.ini", "[hawser]\nconsole_version = 1.25\n")  # a file of spec.proxy.pgBouncer.config.files
            pod.file(data / "~postgres-operator.ini", CRUNCHY_INI.format(etc=etc, port=pod.port, server_port=env.cluster.port, more=more))
            quoted = secret.replace('"', '""')
            pod.file(data / "~postgres-operator/users.txt", f'"{role}" "{quoted}"\n')
            for path, name in (("frontend-ca.crt", "ca.crt"), ("frontend-tls.crt", "server.crt"), ("frontend-tls.key", "server.key"),
                               ("backend-ca.crt", "ca.crt")):
                pod.certificate(data / "~postgres-operator" / path, name)
            (etc / "..data_tmp").symlink_to(data.name)
            (etc / "..data_tmp").rename(etc / "..data")
        project()
        for name in ("pgbouncer.ini", "~postgres-operator.ini", "~postgres-operator"):
            (etc / name).symlink_to(f"..data/{name}")
        pod.run("sh", "-c", "--", 'exec "$@"', "--", "pgbouncer", str(etc / "~postgres-operator.ini"))
        tls = {"tls": env.tls(), "hostname": "localhost"}
        assert is_refused(pod.target.connect, user="app", secret=env.cluster.target.secrets["app"]), "a client without TLS"
        assert is_refused(pod.target.connect, user="app", secret="wrong", **tls)
        client = pod.target.connect(user="app", secret=env.cluster.target.secrets["app"], **tls)
        equal(client.value("select current_user || ' ' || (select ssl from pg_stat_ssl where pid = pg_backend_pid())"), "app true")
        collector = pod.target.connect(user=role, database="pgbouncer", secret=secret, extra_float_digits="2", client_encoding="UTF8",
                                       datestyle="ISO, MDY", **tls)
        assert table(collector, "VERSION")[1][0]["version"].startswith("PgBouncer 1.25."), "the setting of the file that the ini includes"
        for what, (values, labels) in CRUNCHY_QUERIES.items():
            columns, rows = table(collector, what)
            assert rows and set(values + labels) <= set(columns), (what, columns)
            for row in rows:
                assert all(float(row[name]) >= 0 for name in values), (what, row)
                assert all(row[name] is not None for name in labels), (what, row)
        project(more="\napp2 = host=localhost dbname=app port=" + str(env.cluster.port))
        pod.process.send_signal(signal.SIGHUP)
        until(lambda: pod.has_logged("app2"), "the reload", 10)
        again = pod.target.connect(user="app", database="app2", secret=env.cluster.target.secrets["app"], **tls)
        equal(again.value("select current_database()"), "app")
        equal(client.value("select 1"), "1")
        client.sock.close()
        again.sock.close()
        collector.sock.close()
        pod.ends(signal.SIGTERM)
        pod.check_log()


# Zalando: an entry point that fills a template from the environment, makes a certificate where there is none, and runs the program.

ZALANDO_INI = """\
[databases]
* = host=$PGHOST port=$PGPORT auth_user=$PGUSER
postgres = host=$PGHOST port=$PGPORT auth_user=$PGUSER

[pgbouncer]
pool_mode = $CONNECTION_POOLER_MODE
listen_port = $CONNECTION_POOLER_PORT
listen_addr = *
admin_users = $PGUSER
stats_users = $INFRASTRUCTURE_ROLES
auth_dbname = postgres
auth_file = $ETC/pgbouncer/userlist.txt
auth_query = SELECT * FROM $PGSCHEMA.user_lookup($$1)
auth_type = md5
logfile = $VAR/log/pgbouncer/pgbouncer.log
pidfile = $VAR/run/pgbouncer/pgbouncer.pid
server_tls_sslmode = require
server_tls_ca_file = $ETC/ssl/certs/pgbouncer.crt
server_tls_protocols = secure
client_tls_sslmode = require
client_tls_key_file = $ETC/ssl/certs/pgbouncer.key
client_tls_cert_file = $ETC/ssl/certs/pgbouncer.crt
log_connections = 0
log_disconnections = 0
max_prepared_statements = 200
default_pool_size = $CONNECTION_POOLER_DEFAULT_SIZE
reserve_pool_size = $CONNECTION_POOLER_RESERVE_SIZE
max_client_conn = $CONNECTION_POOLER_MAX_CLIENT_CONN
max_db_connections = $CONNECTION_POOLER_MAX_DB_CONN
idle_transaction_timeout = 600
server_login_retry = 5
ignore_startup_parameters = extra_float_digits,options
"""


@pooler_only
def test_zalando_postgres_operator(env):
    role, secret = "pooler", "pooler's secret"
    login_role(env, role, secret)
    for database in ("postgres", "app"):
        lookup(env, database, "pooler", "user_lookup(in i_username text, out uname text, out phash text) returns record as "
               "$$ begin select usename, passwd from pg_catalog.pg_shadow where usename = i_username into uname, phash; return; end; $$ "
               "language plpgsql security definer", role, "user_lookup(text)")
    with Pod(env, "zalando", 100, 101, root_is_read_only=False) as pod:
        etc, var = pod.root / "etc", pod.root / "var"
        certificates = pod.directory("etc/ssl/certs")
        for path in ("etc/pgbouncer", "var/log/pgbouncer", "var/run/pgbouncer", "tmp"):
            pod.directory(path)
        subprocess.run(["openssl", "req", "-nodes", "-new", "-x509", "-subj", "/CN=spilo.dummy.org",
                        "-keyout", certificates / "pgbouncer.key",
                        "-out", certificates / "pgbouncer.crt"], check=True, capture_output=True)
        pod.own(certificates / "pgbouncer.key")
        pod.file(etc / "pgbouncer/userlist.txt", f'"{role}" "{secret}"\n')
        variables = {"PGHOST": "localhost", "PGPORT": env.cluster.port, "PGUSER": role, "PGSCHEMA": "pooler",
                     "CONNECTION_POOLER_PORT": pod.port,
                     "CONNECTION_POOLER_MODE": "transaction", "CONNECTION_POOLER_DEFAULT_SIZE": 15, "CONNECTION_POOLER_RESERVE_SIZE": 7,
                     "CONNECTION_POOLER_MAX_CLIENT_CONN": 10000, "CONNECTION_POOLER_MAX_DB_CONN": 30, "INFRASTRUCTURE_ROLES": "",
                     "ETC": etc, "VAR": var}
        ini = pod.file(etc / "pgbouncer/pgbouncer.ini", string.Template(ZALANDO_INI).substitute(variables))
        # The operator's variables are there when the program runs, PGPASSWORD among them.
        pod.run("pgbouncer", str(ini), PGPASSWORD=secret, **{name: str(value) for name, value in variables.items() if name.isupper()})
        tls = {"tls": env.tls(verify=False)}
        assert is_refused(pod.target.connect, user="app", secret=env.cluster.target.secrets["app"]), "a client without TLS"
        assert is_refused(pod.target.connect, user="nobody_at_all", secret="wrong", **tls)
        client = pod.target.connect(user="app", secret=env.cluster.target.secrets["app"], options="-c work_mem=3MB", **tls)
        equal(client.value("select current_user || ' ' || (select ssl from pg_stat_ssl where pid = pg_backend_pid())"), "app true")
        console = pod.target.connect(user=role, database="pgbouncer", secret=secret, **tls)
        equal({row["name"] for row in table(console, "DATABASES")[1]} >= {"app", "postgres"}, True)
        console.execute("PAUSE")
        client.send(m.query("select 7"))
        assert not client.pending(0.3), "a client is served while all is paused"
        console.execute("RESUME")
        equal(client.collect().value, "7")
        pod.file(ini, string.Template(ZALANDO_INI).substitute(variables | {"CONNECTION_POOLER_DEFAULT_SIZE": 12}))
        console.execute("RELOAD")
        equal(pool_size(console), "12")
        equal((var / "run/pgbouncer/pgbouncer.pid").read_text().strip(), str(pod.process.pid))
        client.sock.close()
        console.sock.close()
        # The pod ends by SIGTERM, when the grace period of 5 minutes begins: as PgBouncer, it waits for its clients.
        waits = pod.target.connect(user="app", secret=env.cluster.target.secrets["app"], **tls)
        pod.process.send_signal(signal.SIGTERM)
        until(lambda: is_refused(pod.target.connect, user="app", secret=env.cluster.target.secrets["app"], **tls),
              "that no client is taken any more", 10)
        equal(waits.value("select 1"), "1")
        waits.sock.close()
        equal(pod.process.wait(15), 0)
        pod.check_log()
        for line in (var / "log/pgbouncer/pgbouncer.log").read_text().splitlines():
            assert LOG_LINE.fullmatch(line), line

