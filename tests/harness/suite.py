"""What a test is given, and how it says what it needs.

A test is a function `test_*(env)` of a module in tests/integration. All tests of a module share one pooler, started
with the module's SETTINGS; a test that needs others takes `with env.pooler_with(pool_size=1) as target`. With --direct
both are PostgreSQL itself, unless the test is marked @pooler_only.
"""

import contextlib
import functools
import itertools
import os
import re
import shutil
import socket
import ssl
import subprocess
import threading
import time

from . import messages as m
from .pooler import Pooler
from .wire import PATIENCE_SECONDS

DEFAULT_LIMIT_SECONDS = 60
# ALL=1, as continuous integration has it: what tests by chance goes on for longer.
THOROUGH = os.environ.get("ALL") == "1"
# So many tests that fail are run once more, of the modules and of each driver: more of them are no noise.
AGAIN_MAX = 3
TCP_ULP = 31  # not in Python's socket
POOLER_NUMBERS = itertools.count(1)


class Skip(Exception):
    """The test cannot run here; the message says why."""


def installed(name, package):
    """Where a program is; without it the test is skipped."""
    # Debian keeps servers where only root's PATH leads.
    path = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if not path:
        raise Skip(f"{name} is not installed (Debian's package {package})")
    return path


def has_ktls():
    """Whether this kernel has TLS of its own, and its module is loaded: else there is no such option."""
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_connection(listener.getsockname()) as sock:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, TCP_ULP, b"tls")
        except OSError:
            return False
        return True


def create_perl(superuser):
    """CREATE EXTENSION plperl; skips where the server does not have it, or cannot load it."""
    if superuser.attempt("select 1 from pg_available_extensions where name = 'plperl'").rows != [("1",)]:
        raise Skip("the server has no PL/Perl (Debian: postgresql-plperl-15)")
    created = superuser.attempt("create extension if not exists plperl")
    if created.sqlstate == "58P01":
        raise Skip(f"the server cannot load PL/Perl: {created.errors[0]['M']}")
    equal(created.errors, [])


def pooler_only(test):
    """What it tests exists only in a pooler."""
    test.pooler_only = True
    return test


def _skipped_where(applies, reason):
    def mark(test):
        @functools.wraps(test)
        def run(env):
            if applies(env):
                raise Skip(reason)
            test(env)
        return run
    return mark


def not_yet(reason):
    """What a direct connection does and Hawser does not do yet: run directly, skipped with its reason through Hawser."""
    return _skipped_where(lambda env: env.pooler, f"not yet: {reason}")


def not_inside(reason):
    """What clients are not promised whose server serves them itself."""
    return _skipped_where(lambda env: env.cluster.inside and env.cluster.inside.serves, f"inside: {reason}")


def limit(seconds):
    """More time than DEFAULT_LIMIT_SECONDS."""
    def mark(test):
        test.limit_seconds = seconds
        return test
    return mark


class Env:
    """`target` is where clients connect; `cluster` the server behind it; `pooler` None with --direct."""

    def __init__(self, cluster, directory, direct, settings):
        self.cluster = cluster
        self.directory = directory
        self.direct = direct
        self.settings = settings
        self.pooler = None
        self.open = []

    @property
    def target(self):
        return self.pooler.target if self.pooler else self.cluster.target

    @property
    def certificates(self):
        return self.cluster.certificates

    # Life, called by run.py

    def begin_module(self):
        if not self.direct:
            self.pooler = self._pooler(self.settings).start()

    def end_module(self):
        if self.pooler:
            pooler, self.pooler = self.pooler, None
            pooler.stop()

    def end_test(self):
        """Close what the test left open. The pooler must have survived, and must give back every backend."""
        for connection in self.open:
            with contextlib.suppress(OSError):
                connection.sock.close()
        self.open.clear()
        if self.pooler:
            self.pooler.check_log()
            assert self.pooler.is_alive(), f"hawser died:\n{self.pooler.tail()}"
            try:
                self.cluster.wait_for_backends("state <> 'idle'")
            except AssertionError:
                self.cluster.terminate_backends()  # the next test deserves a clean server
                raise

    def _pooler(self, settings, append="", **more):
        return Pooler(f"{self.directory}/pooler{next(POOLER_NUMBERS)}", self.cluster, settings, append, **more)

    # For tests

    def connect(self, target=None, **how):
        """A client that is closed when the test ends."""
        connection = (target or self.target).connect(**how)
        self.open.append(connection)
        return connection

    def raw(self, target=None, **how):
        """A connection on which nothing has been sent."""
        connection = (target or self.target).open(**how)
        self.open.append(connection)
        return connection

    def server(self, database="app", **how):
        """A direct superuser connection."""
        connection = self.cluster.superuser(database, **how)
        self.open.append(connection)
        return connection

    @contextlib.contextmanager
    def pooler_with(self, append="", hba=None, start=True, **settings):
        """Another pooler in front of the same server: gives a Target with the attribute `pooler` (None with --direct)."""
        if self.direct:
            self.cluster.target.pooler = None
            yield self.cluster.target
            return
        more = {"hba": hba} if hba else {}
        pooler = self._pooler({**self.settings, **settings}, append, **more)
        pooler.target.pooler = pooler
        if start:
            pooler.start()
        try:
            yield pooler.target
        except BaseException:
            with contextlib.suppress(AssertionError):
                pooler.stop()  # what the test found comes first
            raise
        pooler.stop()

    def tls(self, verify=True, client=None, direct=False):
        """A client's TLS context: `verify` is sslmode=verify-full with the test CA; `client` names a client certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if verify:
            context.load_verify_locations(self.certificates.path("ca.crt"))
        else:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if client:
            context.load_cert_chain(self.certificates.path(f"{client}.crt"), self.certificates.path(f"{client}.key"))
        if direct:
            context.set_alpn_protocols(["postgresql"])
        return context

    def program_path(self, name):
        """Where the program is: beside the server's, else in PATH. Skips if there is none, or only one of an older PostgreSQL
        that does not work with a newer server: that is all but pgbench."""
        path = self.cluster.bin / name
        if path.exists():
            return str(path)
        command = shutil.which(name)
        if command is None:
            raise Skip(f"{name} is not installed")
        said = subprocess.run([command, "--version"], capture_output=True, text=True).stdout
        version = re.search(r"(\d+)(\.\d+|devel|beta\d+|rc\d+)", said)
        if name != "pgbench" and (not version or int(version.group(1)) < self.cluster.version):
            raise Skip(f"{said.strip() or name} is older than the server, which is {self.cluster.version}")
        return command

    def program(self, name, *arguments, user="app", target=None, database=None, check=True, timeout=60, text=True, stdin=None, **variables):
        """Run a PostgreSQL client program against the target. Returns the finished process; fails on a bad exit code."""
        command = self.program_path(name)
        target = target or self.target
        environment = {"PATH": "/usr/bin:/bin", "PGHOST": target.host, "PGPORT": str(target.port), "PGUSER": user,
                       "PGPASSWORD": target.secrets[user], "PGSSLMODE": "disable", **variables}
        if database:
            environment["PGDATABASE"] = database
        done = subprocess.run([command, *map(str, arguments)], env=environment, capture_output=True, text=text,
                              timeout=timeout, input=stdin)
        if check and done.returncode:
            raise AssertionError(f"{name} {arguments} ended with {done.returncode}:\n{done.stdout[-1000:]}\n{done.stderr[-2000:]}")
        return done


# Words for assertions

def equal(got, expected, what="value"):
    if got != expected:
        raise AssertionError(f"{what}: got {got!r:.2000}, expected {expected!r:.2000}")


def until(probe, what, seconds=PATIENCE_SECONDS):
    """Wait until probe() is true, and return its value."""
    end = time.monotonic() + seconds
    while not (value := probe()):
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.02)
    return value


def on_every_backend(clients, sql):
    """Run a statement by all clients at once, each in a transaction that stays open while any other can be served: with
    as many clients as backends, each free backend is used. Gives the results in order."""
    for client in clients:
        client.send(m.query("begin"), m.query(sql))
    results, waiting = {}, list(enumerate(clients))
    while waiting:
        served = [(n, client) for n, client in waiting if client.pending(0.1)] or waiting[:1]
        for n, client in served:
            client.collect()
            results[n] = client.collect()
        for _, client in served:
            client.execute("rollback")
        waiting = [entry for entry in waiting if entry not in served]
    return [results[n] for n in range(len(clients))]


class Background:
    """A function on a thread of its own. join() gives its value, or raises what it raised."""

    def __init__(self, work, *arguments):
        self.value = self.error = None
        self.thread = threading.Thread(target=self._run, args=(work, *arguments), daemon=True)
        self.thread.start()

    def _run(self, work, *arguments):
        try:
            self.value = work(*arguments)
        except BaseException as error:  # handed to join()
            self.error = error

    def is_running(self):
        return self.thread.is_alive()

    def join(self, seconds=20.0):
        self.thread.join(seconds)
        assert not self.thread.is_alive(), f"still running after {seconds} s"
        if self.error:
            raise self.error
        return self.value


def crowd(count, work, seconds=60.0):
    """work(0) ... work(count - 1) at the same time; their values in order."""
    end = time.monotonic() + seconds
    members = [Background(work, number) for number in range(count)]
    return [member.join(max(0.1, end - time.monotonic())) for member in members]
