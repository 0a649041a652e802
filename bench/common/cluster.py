"""A throw-away PostgreSQL with the tables of the benchmarks.

Everything lives in one temporary directory and ends with the context. Root cannot run PostgreSQL:
then it, and every pooler, runs as the user `postgres`.
"""

import glob
import os
import pwd
import resource
import shutil
import signal
import socket
import subprocess
import tempfile
import time

DATABASE = "bench"
USER = "postgres"
FEW_ROWS = 10
BULK_BYTES = 100_000_000
START_LIMIT_S = 30


class Unavailable(Exception):
    """Something that a benchmark needs is not there; the text says what."""


def find_postgres():
    """The directory of PostgreSQL's server programs: PG_BINDIR, PATH, or Debian's newest."""
    places = [os.environ.get("PG_BINDIR", "")]
    if path := shutil.which("initdb"):
        places.append(os.path.dirname(os.path.realpath(path)))
    debian = glob.glob("/usr/lib/postgresql/*/bin")
    places += sorted(debian, key=lambda place: float(place.split("/")[4]), reverse=True)
    for place in places:
        if place and os.path.exists(os.path.join(place, "initdb")):
            return place
    raise Unavailable("PostgreSQL's server is not installed (looked for initdb; PG_BINDIR names it)")


def free_port():
    """A TCP port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def raise_descriptor_limit():
    """Takes all descriptors that are allowed; children inherit it. Returns the number."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def unprivileged():
    """Arguments of subprocess that drop root, or none where there is none to drop."""
    if os.getuid() != 0:
        return {}
    try:
        account = pwd.getpwnam("postgres")
    except KeyError:
        raise Unavailable("root cannot run PostgreSQL, and there is no user `postgres`") from None
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}


def wait_for_port(port, process, log_path):
    """Waits until somebody accepts on 127.0.0.1:port; raises with the log's end otherwise."""
    deadline = time.monotonic() + START_LIMIT_S
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if process.poll() is not None:
            break
        time.sleep(0.02)
    with open(log_path, errors="replace") as log:
        tail = " / ".join(line.strip() for line in log.readlines()[-3:])
    raise Unavailable(f"it does not serve: {tail or 'no word in its log'}")


def stop(process, how=signal.SIGTERM, limit_s=10):
    """Ends a process that we have started."""
    if process.poll() is None:
        process.send_signal(how)
        try:
            process.wait(limit_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


class Cluster:
    """The server; use it as a context manager.

    directory   for data, socket, certificates and the poolers' files
    port        of 127.0.0.1 and of the unix socket
    extension   what it has of the extension, if it was asked for: a function that makes it
    """

    def __init__(self, scale, max_connections, extension=None):
        self.scale = scale
        self.extension = extension
        self.max_connections = max_connections
        self.bindir = find_postgres()
        self.directory = tempfile.mkdtemp(prefix="hawser-bench-")
        self.data = os.path.join(self.directory, "data")
        self.log = os.path.join(self.directory, "postgres.log")
        self.certificate = os.path.join(self.directory, "server.crt")
        self.key = os.path.join(self.directory, "server.key")
        self.has_tls = False
        self.port = free_port()
        self.process = None
        self.identity = {}

    def __enter__(self):
        try:
            self._create()
            self._fill()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self.process:
            stop(self.process, signal.SIGINT)
        shutil.rmtree(self.directory, ignore_errors=True)

    def program(self, name):
        return os.path.join(self.bindir, name)

    def _run(self, *command):
        done = subprocess.run(command, capture_output=True, text=True, cwd="/", **self.identity)
        if done.returncode != 0:
            raise Unavailable(f"{os.path.basename(command[0])}: {done.stderr.strip()[-500:]}")
        return done.stdout.strip()

    def _create(self):
        self.identity = unprivileged()
        os.chmod(self.directory, 0o755)
        if self.identity:
            os.chown(self.directory, self.identity["user"], self.identity["group"])
        if openssl := shutil.which("openssl"):
            self._run(
                openssl, "req", "-x509", "-newkey", "ec", "-pkeyopt",
                "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                "-keyout", self.key, "-out", self.certificate,
            )  # fmt: skip
            os.chmod(self.key, 0o600)
            self.has_tls = True
        self._run(
            self.program("initdb"), "-D", self.data, "-U", USER, "-A", "trust", "--no-sync",
            "-E", "UTF8", "--locale=C",
        )  # fmt: skip
        # The generator's logins come from many addresses of the loopback.
        with open(os.path.join(self.data, "pg_hba.conf"), "a") as hba:
            hba.write("host all all 127.0.0.0/8 trust\n")
        settings = {
            "listen_addresses": "127.0.0.1",
            "port": self.port,
            "unix_socket_directories": self.directory,
            "max_connections": self.max_connections,
            # A table below a quarter of this stays in it when it is read as a whole: bulk results.
            "shared_buffers": "1GB" if memory_bytes() >= 4 << 30 else "256MB",
            # The network and the pooler are measured here, not the disk.
            "fsync": "off",
            "synchronous_commit": "off",
            "full_page_writes": "off",
            "max_wal_size": "8GB",
            "autovacuum": "off",
            "jit": "off",
            "synchronize_seqscans": "off",
            "log_min_messages": "fatal",
        }
        if self.has_tls:
            settings |= {"ssl": "on", "ssl_cert_file": self.certificate, "ssl_key_file": self.key}
        if self.extension:
            self.extension = self.extension(self)
            settings |= self.extension.settings()
        with open(os.path.join(self.data, "postgresql.auto.conf"), "w") as conf:
            conf.writelines(f"{name} = '{value}'\n" for name, value in settings.items())
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(
                [self.program("postgres"), "-D", self.data],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", **self.identity,
            )  # fmt: skip
        wait_for_port(self.port, self.process, self.log)
        self._wait_until_ready()

    def _wait_until_ready(self):
        """A server listens a little before it lets anybody in."""
        deadline = time.monotonic() + START_LIMIT_S
        while True:
            try:
                return self.psql("SELECT 1", database="postgres")
            except Unavailable:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)

    def _fill(self):
        self.psql(f"CREATE DATABASE {DATABASE}", database="postgres")
        self._run(
            self.program("pgbench"), "-i", "-q", "-s", str(self.scale), "-h", self.directory,
            "-p", str(self.port), "-U", USER, DATABASE,
        )  # fmt: skip
        self.psql(
            # Room for updates in the page: the contention is about locks, not about bloat.
            "CREATE TABLE bench_few (id int PRIMARY KEY, value bigint) WITH (fillfactor = 10)"
        )
        self.psql(f"INSERT INTO bench_few SELECT g, 0 FROM generate_series(1, {FEW_ROWS}) g")
        for table, width in (("bulk_100", 100), ("bulk_8k", 8000)):
            # In the row itself, as it is: neither compressed nor out of line.
            self.psql(f"CREATE UNLOGGED TABLE {table} (value text)")
            self.psql(f"ALTER TABLE {table} ALTER value SET STORAGE PLAIN")
            self.psql(
                f"INSERT INTO {table} SELECT repeat('x', {width}) "
                f"FROM generate_series(1, {BULK_BYTES // width})"
            )
        self.psql("VACUUM (FREEZE, ANALYZE)")
        self.psql("CHECKPOINT")
        for table in ("pgbench_accounts", "bulk_100", "bulk_8k"):
            self.psql(f"SELECT count(*) FROM {table}")

    def psql(self, sql, database=DATABASE):
        """Runs one statement on the unix socket and returns its result as text."""
        return self._run(
            self.program("psql"), "-XAtq", "-v", "ON_ERROR_STOP=1", "-h", self.directory,
            "-p", str(self.port), "-U", USER, "-d", database, "-c", sql,
        )  # fmt: skip

    def version(self):
        return self.psql("SHOW server_version")

    def settle(self):
        """Between two measurements: the traces of the last one's updates go."""
        self.psql("VACUUM bench_few")


def memory_bytes():
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
