"""Where the suites run: a throw-away cluster as `make check` makes it, and Hawser in front of it.

The pooler lets everybody in by trust, as the cluster does: the suites make users, log in as them and drop them.
"""

import os
import pathlib
import pwd
import re
import subprocess
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))

from suites import as_server, give_to_server
from harness.pooler import binary, toml_value
from harness.postgres import Cluster, free_port
from harness.wire import Target

# As pg_regress's own temporary instance; files are not flushed, since nothing of them outlives the run.
SETTINGS = """\
listen_addresses = '127.0.0.1'
max_connections = 200
max_prepared_transactions = 10
fsync = off
full_page_writes = off
"""
# Fewer than a suite's clients, so that they share.
INSIDE_SIZE = 4
START_SECONDS = 10.0
STOP_SECONDS = 20.0
ROOT = pathlib.Path(__file__).resolve().parents[2]

class Server(Cluster):
    """Nothing but what initdb makes. `preload` is the extension's library. `asks` is the control socket of the pooler that
    knows of the clients: then the extension is in each database, and clients have their process ids in SQL, too. `serves`: it
    serves that pooler's clients itself."""

    def __init__(self, directory, bin_directory, preload=None, asks=None, serves=False):
        self.directory = pathlib.Path(directory)
        self.bin = pathlib.Path(bin_directory)
        self.data = self.directory / "data"
        self.socket_dir = self.directory / "server"
        self.port = free_port()
        self.target = Target(self.port, str(self.socket_dir), {})
        self.preload = preload
        self.asks = asks
        self.serves = serves

    def preloads(self):
        """Lines of postgresql.conf."""
        lines = f"shared_preload_libraries = '{self.preload}'\nhawser.control_sockets = '{self.asks}'\n"
        return lines + ("hawser.inside = on\n" if self.serves else "")

    def create(self):
        self.socket_dir.mkdir(parents=True)
        if os.getuid() == 0:
            owner = pwd.getpwnam("postgres")
            for path in (self.directory, self.socket_dir):
                os.chown(path, owner.pw_uid, owner.pw_gid)
            self.directory.chmod(0o755)
        self._program("initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-N", "--locale=C.UTF-8", "-E", "UTF8")
        with open(self.data / "postgresql.conf", "a") as conf:
            conf.write(f"{SETTINGS}port = {self.port}\nunix_socket_directories = '{self.socket_dir}'\n")
            if self.asks:
                conf.write(self.preloads())
            elif self.preload:
                conf.write(f"session_preload_libraries = '{self.preload}'\n")
        self.start()
        if self.asks:
            script = (ROOT / "extension/hawser--0.1.0.sql").read_text().replace("MODULE_PATHNAME", str(self.preload))
            with self.superuser("postgres") as owner:
                owner.execute("alter database template0 allow_connections true")  # the suite's database is made of it
            with self.superuser("template0") as owner:
                owner.execute("\n".join(line for line in script.splitlines() if not line.startswith("\\")))
        return self

    @property
    def place(self):
        return "127.0.0.1", self.port


class Hawser:
    """`hawser serve` in front of a Server. It runs as the server does, which may ask it then. With `certificates` clients may use TLS."""

    def __init__(self, directory, server, mode, pool_size, certificates=None):
        self.directory = directory
        self.port = free_port()
        self.log = directory / "hawser.log"
        directory.mkdir(parents=True)
        give_to_server(directory)
        (directory / "pg_hba.conf").write_text("host all all all trust\n")
        tables = {
            "listen": {"address": [f"127.0.0.1:{self.port}"]},
            "[database]": {"name": "*", "servers": [f"{server.socket_dir}:{server.port}"], "pool_size": pool_size,
                           "inside_size": INSIDE_SIZE if server.serves else 0},
            # Whoever is a role may ask; whether it may log in is the server's to say.
            "auth": {"hba_file": "pg_hba.conf", "auth_user": "postgres", "auth_dbname": "postgres",
                     "auth_query": "SELECT rolname, '' FROM pg_catalog.pg_authid WHERE rolname = $1"},
            # Waiting for a server connection is what a hang looks like: it shall be an error that says so.
            "pool": {"pool_mode": mode, "query_wait_timeout": "60s"},
            "admin": {"control_socket": "hawser.sock", "http_address": f"127.0.0.1:{free_port()}"},
            "process": {"shutdown_timeout": "1s"},
        }
        if certificates:
            tables["tls"] = {"client_tls_sslmode": "allow", "client_tls_cert_file": certificates.path("server.crt"),
                             "client_tls_key_file": certificates.path("server.key")}
        lines = []
        for table, settings in tables.items():
            lines += [f"[{table}]", *(f"{name} = {toml_value(value)}" for name, value in settings.items()), ""]
        (directory / "hawser.toml").write_text("\n".join(lines))

    def __enter__(self):
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(as_server([binary(), "serve", "-c", "hawser.toml"]), cwd=self.directory,
                                            stdin=subprocess.DEVNULL,
                                            stdout=log, stderr=subprocess.STDOUT)
        end = time.monotonic() + START_SECONDS
        while "listening" not in self.said().lower() and self.process.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        if self.process.poll() is not None:
            raise RuntimeError(f"hawser ended with {self.process.returncode} at its start:\n{self.said()[-2000:]}")
        return self

    def __exit__(self, *_):
        self.died = self.process.poll()
        if self.died is None:
            self.process.terminate()
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()

    def said(self):
        return self.log.read_text(errors="replace")

    def fault(self):
        """What no run may end with, or None."""
        if found := re.search(r".*panicked at.*(\n.*){0,3}", self.said()):
            return f"hawser panicked: {found.group()}"
        return f"hawser died by itself with {self.died}" if self.died is not None else None

    @property
    def place(self):
        return "127.0.0.1", self.port
