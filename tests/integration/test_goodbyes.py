"""The end of a connection: its reason arrives, and TLS ends with a close_notify."""

import os
import pathlib
import signal
import struct
import subprocess
import sys

from harness import messages as m
from harness.drivers import HERE as DRIVERS
from harness.suite import Skip, equal, pooler_only, until
from harness.wire import ServerError

SAME_FOR_ALL_SERVERS = True

# A client of libpq that learns of each transaction's end, and asks again a moment later.
LIBPQ = """
import sys, time
sys.path.insert(0, sys.argv[1])
import psycopg
connection = psycopg.connect(sys.argv[2], autocommit=True)
print("ready", flush=True)
sys.stdin.readline()
try:
    connection.execute(sys.argv[3])
    time.sleep(float(sys.argv[4]))
    connection.execute("select 1")
    print("served")
except psycopg.Error as error:
    print(error.sqlstate, str(error).splitlines()[0])
"""


def libpq(target, *arguments):
    packages = pathlib.Path(DRIVERS) / "psycopg/.packages"
    if not packages.exists():
        raise Skip("psycopg is not fetched: run with ALL=1")
    dsn = f"host={target.host} port={target.port} user=app dbname=app sslmode=disable"
    environment = {**os.environ, "PGPASSWORD": target.secrets["app"]}
    return subprocess.Popen([sys.executable, "-c", LIBPQ, packages, dsn, *map(str, arguments)], stdin=subprocess.PIPE,
                            stdout=subprocess.PIPE, text=True, env=environment)


def encrypted(env, target):
    """A socket whose end is an error if no close_notify has come."""
    client = target.open()
    client.send(m.SSL_REQUEST)
    equal(client.receive_raw(1), b"S")
    return env.tls().wrap_socket(client.sock, server_hostname="localhost", suppress_ragged_eofs=False)


def rest(sock):
    """All that comes up to the end."""
    data = b""
    while part := sock.recv(65536):
        data += part
    return data


@pooler_only
def test_libpq_gets_the_reason_at_sigterm(env):
    """libpq drops an error that it reads together with the ReadyForQuery before it."""
    with env.pooler_with(start=False, shutdown_timeout="10s", pool_size=8) as target:
        target.pooler.start()
        clients = [libpq(target, "select pg_sleep(1.5)", pause) for pause in (0, 0.3) for _ in range(4)]
        for client in clients:
            equal(client.stdout.readline().strip(), "ready")
        for client in clients:
            client.stdin.write("\n")
            client.stdin.flush()
        env.cluster.wait_for_backends("state = 'active' and query like 'select pg_sleep(1.5)%'", len(clients))
        target.pooler.signal(signal.SIGTERM)
        for client in clients:
            equal(client.communicate()[0].split()[0], "57P01")
        equal(target.pooler.wait(), 0)
        target.pooler.process = None


@pooler_only
def test_libpq_gets_the_reason_at_max_pinned(env):
    with env.pooler_with(max_pinned=1) as target:
        keeper = env.connect(target)
        keeper.execute("create temp table kept (i int)")
        clients = [libpq(target, "create temp table kept (i int)", pause) for pause in (0, 0.3) for _ in range(4)]
        for client in clients:
            equal(client.communicate("\n")[0].split()[:2], ["ready", "53400"])


def test_tls_ends_with_a_close_notify_after_a_cancel_request_and_after_garbage(env):
    client = env.connect()
    for last in (m.cancel_request(client.pid, client.key), struct.pack("!iiii", 16, 80877102, 1, 2), struct.pack("!ii", 3, 0),
                 struct.pack("!ii", 9, 5) + b"x"):
        with encrypted(env, env.target) as sock:
            sock.sendall(last)
            rest(sock)


@pooler_only
def test_tls_ends_with_a_close_notify_when_a_login_is_refused_or_times_out(env):
    with env.pooler_with(client_login_timeout="1s") as target:
        for last, code in ((m.startup({"user": "nobody", "database": "app"}) + m.password("x"), b"FATAL"),
                           (m.startup({"user": "app", "database": "app"}), b"57014"), (b"", b"57014")):
            with encrypted(env, target) as sock:
                sock.sendall(last)
                data = rest(sock)
                assert code in data, data


@pooler_only
def test_tls_ends_with_a_close_notify_when_clients_are_ended(env):
    def connect(target):
        client = target.open()
        client.send(m.SSL_REQUEST)
        equal(client.receive_raw(1), b"S")
        client.sock = env.tls().wrap_socket(client.sock, server_hostname="localhost", suppress_ragged_eofs=False)
        client.send(m.startup({"user": "app", "database": "app"}))
        client.login(target.secrets["app"], "app")
        return client

    with env.pooler_with(start=False, client_idle_timeout="1s", shutdown_timeout="10s") as target:
        target.pooler.start()
        idle = connect(target)
        assert b"57P05" in rest(idle.sock)
        left = connect(target)
        left.send(m.TERMINATE)
        equal(rest(left.sock), b"")
        busy = connect(target)
        busy.execute("begin")
        target.pooler.signal(signal.SIGTERM)
        until(lambda: "shutting down" in target.pooler.text(), "it is about to end")
        busy.execute("commit")
        assert b"57P01" in rest(busy.sock)
        equal(target.pooler.wait(), 0)
        target.pooler.process = None


@pooler_only
def test_the_consoles_last_words_come_apart_and_its_tls_ends_with_a_close_notify(env):
    """A client that does not wait for the answer before it sends what ends its session, as libpq in pipeline mode."""
    with env.pooler_with() as target:
        for last in (b"F\0\0\0\x04", b"Q\x7f\xff\xff\xff", b"Q\0\0\0\1"):
            came_apart = []
            for _ in range(5):  # where this process is held up, both have come by then
                console = target.connect("admin", "hawser", tls=env.tls(), hostname="localhost")
                console.sock.suppress_ragged_eofs = False
                console.send(m.query("show version") + last)
                console.collect()
                came_apart.append(not console.pending(0.01))
                error = console.receive()
                equal((error.kind, error.sqlstate()), ("E", "08P01"), last)
                equal(rest(console.sock), b"")
            assert any(came_apart), f"both come in one read: {last}"


@pooler_only
def test_what_hawser_says_itself_has_file_line_and_routine(env):
    with env.pooler_with(client_idle_timeout="1s") as target:
        try:
            target.connect(secret="wrong")
        except ServerError as error:
            fields = [error.fields]
        with target.connect() as idle, target.pooler.admin() as console:
            fields += console.attempt("show nothing").errors + idle.attempt("select 1/0").errors + idle.collect().errors
        equal([(of["C"], of.get("F"), of.get("R")) for of in fields], [
            ("28P01", "hawser", "invalid_password"),
            ("42601", "hawser", "syntax_error"),
            ("22012", "int.c", "int4div"),
            ("57P05", "hawser", "idle_session_timeout")])
        assert all(of["L"].isdecimal() for of in fields)
