"""Hawser before another pooler: one in transaction mode mixes clients' session state, and must not pass as a server."""

import contextlib
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
import threading
import time

from harness import messages as m
from harness.pooler import Pooler, binary
from harness.postgres import free_port
from harness.suite import Skip, equal, pooler_only, until
from harness.wire import Connection, ServerError

SAME_FOR_ALL_SERVERS = True

PGBOUNCER = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")


@contextlib.contextmanager
def pgbouncer(env, mode):
    if not PGBOUNCER:
        raise Skip("there is no pgbouncer (Debian: pgbouncer)")
    directory, port = pathlib.Path(tempfile.mkdtemp(prefix="pgbouncer-", dir="/tmp")), free_port()
    user = "user = nobody\n" if os.geteuid() == 0 else ""  # as root it refuses to run
    (directory / "users").write_text('"app_trust" ""\n')
    (directory / "ini").write_text(
        f"[databases]\napp = host=127.0.0.1 port={env.cluster.port} user=app_trust\n[pgbouncer]\nlisten_addr = "
        f"127.0.0.1\nlisten_port = {port}\n"
        f"auth_type = trust\nauth_file = {directory}/users\npool_mode = {mode}\nunix_socket_dir =\n{user}")
    directory.chmod(0o755)
    with open(directory / "log", "wb") as log:
        process = subprocess.Popen([PGBOUNCER, directory / "ini"], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + 10
        while subprocess.run(["bash", "-c", f": < /dev/tcp/127.0.0.1/{port}"], capture_output=True).returncode:
            assert process.poll() is None and time.monotonic() < deadline, (directory / "log").read_text()
            time.sleep(0.05)
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)
        shutil.rmtree(directory)


class Turns:
    """A pooler that announces the process of one of its two servers, and uses them in turn, a transaction each."""

    def __init__(self, env):
        self.to = ("127.0.0.1", env.cluster.port)
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.server = f"127.0.0.1:{self.listener.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def __enter__(self):
        return self.server

    def __exit__(self, *_):
        self.listener.close()

    def accept(self):
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=self.serve, args=(self.listener.accept()[0],), daemon=True).start()

    def serve(self, accepted):
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            client, *servers = [stack.enter_context(Connection(one))
                                for one in (accepted, *(socket.create_connection(self.to) for _ in range(2)))]
            while (startup := self.packet(client)) == m.SSL_REQUEST:
                client.send(b"N")
            if startup is None:  # it has only looked whether somebody listens
                return
            for server in servers:
                server.send(startup)
            announced, _ = [self.answer(server) for server in servers]
            client.send(announced)
            for kind, body in iter(client.receive, None):
                servers[0].send(m.message(kind, body))
                if kind in "QS":
                    client.send(self.answer(servers[0]))
                    if servers[0].status == "I":
                        servers.reverse()

    @staticmethod
    def packet(client):
        size = client.receive_raw(4)
        return size and size + client.receive_raw(int.from_bytes(size, "big") - 4)

    @staticmethod
    def answer(server):
        return b"".join(m.message(*message) for message in server.collect().messages)


def entry_of(server, more=""):
    return f'\n[[database]]\nname = "there"\ndbname = "app"\nservers = ["{server}"]\nuser = "app_trust"\n{more}'


def checked(env, server, more="", exits=0):
    pooler = Pooler(tempfile.mkdtemp(dir=env.directory) + "/there", env.cluster, append=entry_of(server, more))
    done = subprocess.run([binary(), "check", "-c", str(pooler.config)], capture_output=True, text=True, timeout=60)
    equal(done.returncode, exits, done.stdout)
    return [line for line in done.stdout.splitlines() if '"there"' in line and "pooler" in line]


def is_pooler(pooler):
    """{database: value} of the metric."""
    return {line.split('"')[1]: int(line.split()[-1]) for line in pooler.http("/metrics")[1].splitlines()
            if line.startswith("hawser_server_is_pooler{")}


def is_refused(target):
    try:
        with target.connect(user="app_trust", database="there") as client:
            client.execute("select 1")
    except ServerError as error:
        equal(error.sqlstate, "08006", str(error))
    else:
        raise AssertionError("it was served")


def status(pooler):
    return subprocess.run([binary(), "status", "-c", str(pooler.config)], capture_output=True, text=True, check=True, timeout=60).stdout


@pooler_only
def test_check_finds_a_pooler_in_transaction_mode(env):
    with pgbouncer(env, "transaction") as server:
        (line,) = checked(env, server, exits=1)
        assert line.startswith("error") and "is another pooler in transaction mode" in line, line
        equal(checked(env, server, 'fidelity = "classic"\n'), [])


@pooler_only
def test_a_pooler_that_announces_a_server_is_seen_by_its_second_transaction(env):
    with Turns(env) as server:
        (line,) = checked(env, server, exits=1)
        assert line.startswith("error") and "is another pooler in transaction mode" in line, line
        with env.pooler_with(append=entry_of(server)) as target:
            is_refused(target)
            equal(is_pooler(target.pooler), {"there": 1})


@pooler_only
def test_check_asks_to_look_where_a_pooler_may_be_in_session_mode(env):
    with pgbouncer(env, "session") as server:
        (line,) = checked(env, server)
        assert line.startswith("warn") and "make sure that it is in session mode" in line, line


@pooler_only
def test_check_says_nothing_of_a_server_itself(env):
    equal(checked(env, env.cluster.address), [])


@pooler_only
def test_serve_refuses_a_pooler_in_transaction_mode(env):
    """Settings went from one client to another without a word: 342 of 400 reads were wrong."""
    with pgbouncer(env, "transaction") as server, env.pooler_with(append=entry_of(server)) as target:
        is_refused(target)
        until(lambda: any("is another pooler in transaction mode" in line for line in target.pooler.log.read_text().splitlines()),
              "the log says why")
        equal(is_pooler(target.pooler), {"there": 1})
        assert "is another pooler in transaction mode" in status(target.pooler)
    with pgbouncer(env, "transaction") as server, env.pooler_with(append=entry_of(server, 'fidelity = "classic"\n')) as target:
        with target.connect(user="app_trust", database="there") as client:
            equal(client.value("select 1"), "1")


@pooler_only
def test_serve_takes_a_pooler_in_session_mode_and_warns(env):
    with pgbouncer(env, "session") as server, env.pooler_with(append=entry_of(server), pool_size=5) as target:
        with target.connect(user="app_trust", database="there") as client:
            client.execute("set work_mem = '77kB'")
            equal(client.value("show work_mem"), "77kB")
        with target.connect() as client:
            equal(client.value("select 1"), "1")
        until(lambda: "sessions are right only if it is in session mode" in target.pooler.log.read_text(), "the log warns")
        equal(is_pooler(target.pooler), {"there": 1, "app": 0})
        assert "its server is another pooler" in status(target.pooler)
