"""The contestants: how each is found, configured and started.

All get the same: 10 server connections over the server's unix socket, transaction pooling, trust,
clients over TCP on loopback, no log lines for connections, no root. Each measurement starts its
own, so that nobody carries another's past.
"""

import os
import pwd
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import time

import users
from cluster import DATABASE, USER, Unavailable, free_port, stop, unprivileged, wait_for_port
from extension import POOLER_ROLE
from targets import INSIDE

POOL_SIZE = 10
# From the first answer on a port to the measurement.
SETTLE_S = 0.1
# Most clients that a pooler is told to expect, if the descriptor limit has room for them.
MAX_CLIENTS = 110_000
# Descriptors of a pooler that are not its clients'.
DESCRIPTORS_ASIDE = 500

PGBOUNCER_INI = """
[databases]
{database} = host={directory} port={server_port} dbname={database}
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
so_reuseport = {reuseport}
pool_mode = transaction
default_pool_size = {pool_size}
max_client_conn = {max_clients}
max_prepared_statements = 200
auth_type = trust
auth_file = {own}/userlist.txt
client_tls_sslmode = {tls_mode}
client_tls_cert_file = {certificate}
client_tls_key_file = {key}
log_connections = 0
log_disconnections = 0
log_stats = 0
"""

HAWSER_TOML = """
[listen]
address = "127.0.0.1:{port}"

[[database]]
name = "{database}"
servers = ["{directory}:{server_port}"]
pool_size = {pool_size}
{extra}
[pool]
{pool}
max_client_conn = {max_clients}

[auth]
hba_file = "{own}/pg_hba.conf"
users_file = "{own}/userlist.txt"
admin_users = ["{user}"]

[log]
log_connections = false
log_disconnections = false

[admin]
http_address = "{http_address}"
control_socket = "{socket}"
{tls}"""
HAWSER_SHARED = """\
user = "{pooler_role}"
hand_over_secret_file = "{secret}"
"""
HAWSER_TLS = """
[tls]
client_tls_sslmode = "allow"
client_tls_cert_file = "{certificate}"
client_tls_key_file = "{key}"
"""

ODYSSEY_CONF = """
daemonize no
unix_socket_dir "{directory}"
unix_socket_mode "0644"
log_format "%p %t %l [%i %s] (%c) %m\\n"
log_to_stdout yes
log_session no
log_query no
log_stats no
workers {cores}
client_max {max_clients}
listen {{
  host "127.0.0.1"
  port {port}
  {tls}
}}
storage "server" {{
  type "remote"
  port {server_port}
}}
database "{database}" {{
  user "{user}" {{
    authentication "none"
    storage "server"
    pool "transaction"
    pool_size {pool_size}
    pool_reserve_prepared_statement yes
  }}
}}
"""
ODYSSEY_TLS = 'tls "allow"\n  tls_cert_file "{certificate}"\n  tls_key_file "{key}"'

# PgDog reaches servers by TCP only.
PGDOG_TOML = """
[general]
host = "127.0.0.1"
port = {port}
workers = {cores}
default_pool_size = {pool_size}
pooler_mode = "transaction"
auth_type = "trust"
{tls}
[[databases]]
name = "{database}"
host = "127.0.0.1"
port = {server_port}
"""
PGDOG_TLS = 'tls_certificate = "{certificate}"\ntls_private_key = "{key}"\n'
PGDOG_USERS = '[[users]]\nname = "{user}"\ndatabase = "{database}"\npassword = "unused"\n'

# Its transaction pipeline asks for known users, and for a pool that is filled at the start.
PGAGROAL_CONF = """
[pgagroal]
host = 127.0.0.1
port = {port}
log_type = console
log_level = fatal
max_connections = {pool_size}
pipeline = transaction
allow_unknown_users = off
track_prepared_statements = on
blocking_timeout = 0
ev_backend = epoll
unix_socket_dir = {own}
{tls}
[primary]
host = {directory}
port = {server_port}
"""
PGAGROAL_TLS = "tls = on\ntls_cert_file = {certificate}\ntls_key_file = {key}\n"

# With and without the promise that no plan depends on custom settings.
OURS = ("hawser", "hawser_plans")
OF_MANY_USERS = ("hawser_shared", "hawser_pools", "pgbouncer_pools")

HBA = "local all all trust\nhost all all 127.0.0.0/8 trust\n"
PGAGROAL_HBA = "host all all all trust\n"
PGAGROAL_DATABASES = "{database} {user} {pool_size} {pool_size} {pool_size}\n"
# Passwords in its file of users are encrypted with a key in the home directory of whom it runs as.
PGAGROAL_START = """
[ -e "{home}/.pgagroal/master.key" ] || "{admin}" master-key -P benchmark-key || exit 1
"{admin}" -f "{own}/pgagroal_users.conf" -U "{user}" -P unused user add || exit 1
exec "{program}" -c "{own}/pgagroal.conf" -a "{own}/pgagroal_hba.conf" \\
    -l "{own}/pgagroal_databases.conf" -u "{own}/pgagroal_users.conf"
"""


class Running:
    """A contestant that serves: its port and its processes. `direct` has none of its own.

    http_address    of Hawser's metrics
    log             what its processes have said
    """

    def __init__(self, port, processes=(), http_address="", log=""):
        self.port = port
        self.log = log
        self.http_address = http_address
        self.processes = list(processes)
        self.pids = [process.pid for process in self.processes]

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            stop(process, signal.SIGTERM, 5)


class Contestant:
    """name in data; title for people; program, and the reason why it is not there if it is not.

    users       it takes the server of many users
    extra       lines for Hawser's [[database]]
    pool        lines for Hawser's [pool]
    """

    def __init__(self, name, title, program=None, missing=None, extra="", pool=""):
        self.name, self.title, self.program, self.missing = name, title, program, missing
        self.extra, self.pool = extra, pool
        self.users = name in OF_MANY_USERS

    def start(self, cluster, tls):
        """Starts it; `tls` says whether clients will ask for TLS.

        Raises Unavailable if it does not serve.
        """
        if self.name == "direct":
            return Running(cluster.port)
        port = free_port()
        # Not by the port: the kernel gives the same one again.
        own = tempfile.mkdtemp(prefix=f"{self.name}-", dir=cluster.directory)
        os.chmod(own, 0o755)
        values = {
            "own": own,
            "directory": cluster.directory,
            "server_port": cluster.port,
            "port": port,
            "http_address": f"127.0.0.1:{free_port()}",
            "database": DATABASE,
            "user": USER,
            "pool_size": POOL_SIZE,
            "max_clients": max_clients(),
            "certificate": cluster.certificate,
            "key": cluster.key,
            "cores": len(os.sched_getaffinity(0)),
            "tls": "",
            "extra": self.extra,
            "pool": self.pool,
            "users": f'"{USER}" ""\n',
            "pooler_role": POOLER_ROLE,
            "secret": cluster.extension.secret if cluster.extension else "",
            "socket": getattr(cluster.extension, "socket", f"{own}/hawser.sock"),
        }
        files, commands = LAYOUTS[self.name](self.program, values, tls and cluster.has_tls)
        for name, text in files.items():
            with open(os.path.join(own, name), "w") as out:
                out.write(text)
        if identity := unprivileged():
            for place in [own, *(os.path.join(own, name) for name in files)]:
                os.chown(place, identity["user"], identity["group"])
        log_path = os.path.join(own, "log")
        running = Running(port, http_address=values["http_address"], log=log_path)
        try:
            with open(log_path, "w") as log:
                for command in commands:
                    process = subprocess.Popen(
                        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=own,
                        **identity,
                    )  # fmt: skip
                    running.processes.append(process)
                    running.pids.append(process.pid)
            for process in running.processes:
                wait_for_port(port, process, log_path)
            # Where two share a port, the first answers for the second: a failed one shows by now.
            time.sleep(SETTLE_S)
            for process in running.processes:
                if process.poll() is not None:
                    raise Unavailable(f"it has ended with status {process.returncode}")
        except BaseException:
            running.__exit__()
            raise
        return running


def max_clients():
    """Programs that check their limit at the start shall not be asked for more than it allows."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return min(MAX_CLIENTS, limit - DESCRIPTORS_ASIDE)


def _pgbouncer(processes):
    def layout(program, values, tls):
        values |= {"reuseport": int(processes > 1), "tls_mode": "allow" if tls else "disable"}
        # The same number of backends for everybody, also where several processes share them.
        values["pool_size"] //= processes
        files = {
            "pgbouncer.ini": PGBOUNCER_INI.format(**values),
            "userlist.txt": values["users"],
        }
        return files, [[program, f"{values['own']}/pgbouncer.ini"]] * processes

    return layout


def _hawser(program, values, tls, pool=""):
    values["tls"] = HAWSER_TLS.format(**values) if tls else ""
    values["pool"] = pool or values["pool"]
    files = {
        "hawser.toml": HAWSER_TOML.format(**values),
        "pg_hba.conf": HBA,
        "userlist.txt": values["users"],
    }
    return files, [[program, "serve", "-c", f"{values['own']}/hawser.toml"]]


def _hawser_plans(program, values, tls):
    """With the promise that no plan depends on what clients differ in."""
    return _hawser(program, values, tls, "custom_settings_in_plans = false")


def _hawser_inside(program, values, tls):
    values["extra"] = f"inside_size = {values['pool_size']}\n{values['extra']}"
    return _hawser(program, values, tls)


def _odyssey(program, values, tls):
    values["tls"] = ODYSSEY_TLS.format(**values) if tls else ""
    files = {"odyssey.conf": ODYSSEY_CONF.format(**values)}
    return files, [[program, f"{values['own']}/odyssey.conf"]]


def _pgdog(program, values, tls):
    values["tls"] = PGDOG_TLS.format(**values) if tls else ""
    own = values["own"]
    files = {"pgdog.toml": PGDOG_TOML.format(**values), "users.toml": PGDOG_USERS.format(**values)}
    return files, [[program, "--config", f"{own}/pgdog.toml", "--users", f"{own}/users.toml"]]


def _pgagroal(program, values, tls):
    values["tls"] = PGAGROAL_TLS.format(**values) if tls else ""
    files = {
        "pgagroal.conf": PGAGROAL_CONF.format(**values),
        "pgagroal_hba.conf": PGAGROAL_HBA,
        "pgagroal_databases.conf": PGAGROAL_DATABASES.format(**values),
    }
    account = pwd.getpwuid(unprivileged().get("user", os.getuid()))
    names = {"admin": f"{program}-admin", "program": program, "home": account.pw_dir}
    return files, [["sh", "-c", PGAGROAL_START.format(**values, **names)]]


def _pools_by_user(layout):
    """A pool of one server connection for each of the many users."""

    def of_users(program, values, tls):
        return layout(program, values | {"pool_size": 1, "users": users.users_file()}, tls)

    return of_users


def _shared_by_users(program, values, tls):
    values |= {"pool_size": users.SHARED_POOL_SIZE, "users": users.users_file()}
    values["extra"] = HAWSER_SHARED.format(**values)
    return _hawser(program, values, tls)


LAYOUTS = {
    "hawser": _hawser,
    "hawser_plans": _hawser_plans,
    INSIDE: _hawser_inside,
    "hawser_shared": _shared_by_users,
    "hawser_pools": _pools_by_user(_hawser),
    "pgbouncer_pools": _pools_by_user(_pgbouncer(1)),
    "pgbouncer": _pgbouncer(1),
    "pgbouncer2": _pgbouncer(2),
    "odyssey": _odyssey,
    "pgdog": _pgdog,
    "pgagroal": _pgagroal,
}


def version_of(program):
    """The version that a program gives for itself, or an empty text."""
    try:
        done = subprocess.run([program, "--version"], capture_output=True, text=True, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(r"\d+\.\d+(\.\d+)?", done.stdout + done.stderr)
    return found.group() if found else ""


def find_all(built_hawser):
    """Every contestant that this project knows, in the order of their turns.

    built_hawser    where cargo puts Hawser; HAWSER names another
    """
    bouncer = os.environ.get("PGBOUNCER") or shutil.which("pgbouncer") or "/usr/sbin/pgbouncer"
    hawser = os.environ.get("HAWSER") or built_hawser
    found = [Contestant("direct", "direct")]
    candidates = [
        ("pgbouncer", "PgBouncer {}", bouncer, "PGBOUNCER"),
        ("pgbouncer2", "PgBouncer {}, two processes", bouncer, "PGBOUNCER"),
        ("hawser", "Hawser {}", hawser, "HAWSER"),
        ("hawser_plans", "Hawser {}, custom_settings_in_plans = false", hawser, "HAWSER"),
        (INSIDE, "Hawser {}, inside the server", hawser, "HAWSER"),
        ("odyssey", "Odyssey {}", os.environ.get("ODYSSEY"), "ODYSSEY"),
        ("pgdog", "PgDog {}", os.environ.get("PGDOG"), "PGDOG"),
        ("pgagroal", "pgagroal {}", os.environ.get("PGAGROAL"), "PGAGROAL"),
        ("hawser_shared", "Hawser {}, one pool (extension)", hawser, "HAWSER"),
        ("hawser_pools", "Hawser {}, a pool for each user", hawser, "HAWSER"),
        ("pgbouncer_pools", "PgBouncer {}, a pool for each user", bouncer, "PGBOUNCER"),
    ]
    for name, title, program, variable in candidates:
        if program and os.access(program, os.X_OK):
            program = os.path.abspath(program)
            found.append(Contestant(name, title.format(version_of(program)).strip(), program))
        elif program or name in ("pgbouncer", "pgbouncer2", *OURS, INSIDE, *OF_MANY_USERS):
            missing = f"there is no program; {variable} names it"
            found.append(Contestant(name, title.format("").strip(), None, missing))
    return found


def check_starts(contestant, cluster):
    """Notes the reason if it does not come up at all: said once, not at every point."""
    if contestant.missing:
        return
    try:
        with contestant.start(cluster, tls=False):
            pass
    except (Unavailable, OSError) as error:
        contestant.missing = str(error).replace(cluster.directory, "...")
