"""A running `hawser serve`: its configuration, its process, its log, its admin console and metrics.

# States      start() -> (reload(), signal())* -> stop()
# Invariants  a panic in the log, a death nobody asked for, or a process that does not end on SIGTERM fails the test
"""

import contextlib
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import time
import urllib.request

from .postgres import HBA, SECRETS, free_port
from .wire import Target

START_SECONDS = 10.0
STOP_SECONDS = 15.0
ROOT = pathlib.Path(__file__).resolve().parents[2]

# In which table of hawser.toml a setting stands, where that is not [pool].
TABLE = {
    "servers": "database", "dbname": "database", "pool_size": "database", "min_pool_size": "database",
    "reserve_pool_size": "database", "user": "database", "password_file": "database",
    "password_command": "database", "password_max_age": "database", "proxy_protocol": "database", "hand_over": "database",
    "hand_over_secret_file": "database", "inside_size": "database", "inside_places": "database",
    "password": "database", "target_session_attrs": "database", "patroni": "database",
    "max_replica_lag": "database",
    "address": "listen", "unix_socket_mode": "listen", "max_packet_size": "listen", "tcp_socket_buffer": "listen",
    "tcp_defer_accept": "listen", "proxy_protocol_from": "listen", "congestion": "listen",
    "mptcp": "listen", "mptcp_manage": "listen", "tcp_user_timeout": "listen",
    "auth_type": "auth", "hba_file": "auth", "ident_file": "auth", "users_file": "auth", "auth_query": "auth", "auth_user": "auth",
    "auth_dbname": "auth", "auth_ca_file": "auth", "failed_login_delay_max": "auth",
    "admin_users": "auth", "stats_users": "auth",
    "http_address": "admin", "control_socket": "admin", "console_version": "admin", "track_queries": "admin",
    "query_examples": "admin",
    "shutdown_timeout": "process", "pidfile": "process", "watch_files": "process", "core_dumps": "process", "loops": "process",
    "peer_id": "process", "peers": "process",
    **{f"etcd{name}": "process" for name in ("", "_prefix", "_lease", "_lost", "_ca_file", "_cert_file", "_key_file", "_user",
                                             "_password_file")},
    "format": "log", "level": "log", "log_min_duration": "log", "stats_period": "log", "otlp_endpoint": "log", "log_disconnections": "log",
    "logfile": "log", "audit_file": "log", "audit_syslog": "log",
    "client_tls_sslmode": "tls", "client_tls_cert_file": "tls", "client_tls_key_file": "tls", "client_tls_ca_file": "tls",
    "client_tls_ciphers": "tls", "client_tls13_ciphers": "tls", "client_tls_ecdhcurve": "tls",
    "server_tls_sslmode": "tls", "server_tls_ca_file": "tls", "server_tls_cert_file": "tls", "server_tls_key_file": "tls",
    "server_tls_protocols": "tls",
}


class NotBuilt(Exception):
    """There is no hawser to test."""


def binary():
    """$HAWSER, else the newest profile's build: release before debug, $CARGO_TARGET_DIR before target/."""
    if "HAWSER" in os.environ:
        return os.environ["HAWSER"]
    places = [pathlib.Path(os.environ[name]) for name in ("CARGO_TARGET_DIR",) if name in os.environ] + [ROOT / "target"]
    for place in places:
        for profile in ("release", "debug"):
            if os.access(place / profile / "hawser", os.X_OK):
                return str(place / profile / "hawser")
    raise NotBuilt("no hawser binary: set HAWSER, or run cargo build")


def toml_value(value):
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


def userlist(cluster):
    """PgBouncer's format, with one user of each kind of secret."""
    secrets = {name: secret for name, secret in SECRETS.items() if name != "app_scram"}
    secrets["app_scram"] = cluster.verifier("app_scram")
    secrets["app_md5"] = cluster.verifier("app_md5")
    return "".join('"{}" "{}"\n'.format(name, secret.replace('"', '""')) for name, secret in secrets.items())


class Serving:
    """A process with a configuration that a test has written: `process` once it runs, its `target`, and the file of its `log`."""

    process = None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def listens(self):
        with contextlib.suppress(OSError):
            self.target.open(timeout=1).sock.close()
            return True
        return False

    def has_logged(self, text):
        return text in self.log.read_text()


class Pooler:
    """`settings` override the suite's defaults; a name stands in the table that TABLE says. `append` is TOML put at the end."""

    def __init__(self, directory, cluster, settings=None, append="", hba=HBA):
        self.directory = pathlib.Path(directory)
        self.directory.mkdir()
        self.cluster = cluster
        self.port, self.http_port = free_port(), free_port()
        self.process = None
        self.options = []  # of the command line, beside the file
        self.launcher = []  # a command that runs the rest of its arguments as a command
        self.environment = {}
        self.pass_fds = ()
        self.settings = {
            "address": [f"127.0.0.1:{self.port}", f"[::1]:{self.port}", str(self.directory)],
            "servers": [cluster.address],
            "pool_size": 5,
            "hba_file": "pg_hba.conf",
            "users_file": "userlist.txt",
            "admin_users": ["admin"],
            "pool_mode": "transaction",
            "query_wait_timeout": "5s",
            "http_address": f"127.0.0.1:{self.http_port}",
            "control_socket": "hawser.sock",
            # Tests end with transactions open: a short drain.
            "shutdown_timeout": "200ms",
            "client_tls_sslmode": "allow",
            "client_tls_cert_file": cluster.certificates.path("server.crt"),
            "client_tls_key_file": cluster.certificates.path("server.key"),
            "client_tls_ca_file": cluster.certificates.path("ca.crt"),
        }
        if os.geteuid():  # its descriptors can be looked at by others than root only then
            self.settings["core_dumps"] = True
        self.append = append
        (self.directory / "pg_hba.conf").write_text(hba)
        (self.directory / "userlist.txt").write_text(userlist(cluster))
        if cluster.inside:
            self.settings |= cluster.inside.settings()
            self.append = cluster.inside.append() + append
            cluster.inside.give(self.directory, cluster.certificates.directory)
        self.write(**(settings or {}))
        self.target = Target(self.port, str(self.directory), SECRETS)

    # Configuration

    @property
    def config(self):
        return self.directory / "hawser.toml"

    @property
    def log(self):
        return self.directory / "hawser.log"

    def write(self, **settings):
        """Change settings in the file (None removes one); a running pooler sees them at reload()."""
        self.settings = {name: value for name, value in {**self.settings, **settings}.items() if value is not None}
        tables = {"listen": [], "database": ['name = "*"'], "auth": [], "pool": [], "admin": [], "tls": [],
                  "log": [], "process": []}
        for name, value in self.settings.items():
            tables[TABLE.get(name, "pool")].append(f"{name} = {toml_value(value)}")
        lines = []
        for table, entries in tables.items():
            lines += ["[[database]]" if table == "database" else f"[{table}]", *entries, ""]
        self.config.write_text("\n".join(lines) + self.append)

    # Process

    def start(self):
        program = os.environ.get("HAWSER_OLDER") or binary()
        if self.cluster.inside:
            self.cluster.inside.starts(self)
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen([*self.launcher, program, "serve", "-c", str(self.config), *self.options], cwd=self.directory,
                                            stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                                            env={**os.environ, **self.environment}, pass_fds=self.pass_fds)
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                self.target.open(timeout=1).sock.close()
                if self.settings.get("http_address") == f"127.0.0.1:{self.http_port}":  # pages are there a moment later
                    socket.create_connection(("127.0.0.1", self.http_port), timeout=1).close()
                return self
            except OSError:
                if self.process.poll() is not None:
                    raise AssertionError(f"hawser ended with {self.process.returncode} at its start:\n{self.tail()}") from None
                if time.monotonic() > end:
                    self.kill()
                    raise AssertionError(f"hawser does not listen after {START_SECONDS} s:\n{self.tail()}") from None
                time.sleep(0.02)

    def signal(self, number):
        self.process.send_signal(number)

    def reload(self):
        """SIGHUP, then wait until it is done: the admin console answers after the new configuration is in force."""
        mark = self.log.stat().st_size
        self.signal(signal.SIGHUP)
        end = time.monotonic() + 5
        while "reload" not in self.text(mark).lower():
            assert time.monotonic() < end, f"no word of a reload in the log:\n{self.tail()}"
            time.sleep(0.02)

    def wait(self, seconds=STOP_SECONDS):
        """The exit code, or None if it still runs."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def kill(self):
        self.process.kill()
        self.process.wait()

    def is_alive(self):
        return self.process is not None and self.process.poll() is None

    def stop(self):
        """SIGTERM, and the checks that hold for every run."""
        if self.process is None:
            return
        died = self.process.poll()
        if died is None:
            self.signal(signal.SIGTERM)
        code = self.wait()
        if code is None:
            self.kill()
        self.process = None
        self.check_log()
        assert died is None, f"hawser died by itself with {died}:\n{self.tail()}"
        assert code is not None, f"hawser still runs {STOP_SECONDS} s after SIGTERM:\n{self.tail()}"
        assert code == 0, f"hawser ended with {code} on SIGTERM:\n{self.tail()}"

    # What it says

    def text(self, offset=0):
        with open(self.log, "rb") as log:
            log.seek(offset)
            return log.read().decode("utf-8", "replace")

    def tail(self, lines=25):
        return "\n".join(self.text().splitlines()[-lines:])

    def check_log(self):
        if found := re.search(r".*panicked at.*(\n.*){0,3}", self.text()):
            raise AssertionError(f"hawser panicked: {found.group()}")

    def rss_bytes(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", status).group(1)) * 1024

    def cpu_seconds(self):
        times = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(times[11]) + int(times[12])) / os.sysconf("SC_CLK_TCK")

    def open_files(self):
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    # Administration

    def admin(self, database="hawser", user="admin"):
        return self.target.connect(user, database)

    def show(self, what):
        """SHOW as a list of {column: text}."""
        with self.admin() as console:
            result = console.execute(f"SHOW {what}")
            return [dict(zip(result.columns, row)) for row in result.rows]

    def http(self, path):
        """(status, body)."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.http_port}{path}", timeout=5) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def remove(self):
        shutil.rmtree(self.directory, ignore_errors=True)
