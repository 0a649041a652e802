"""Patroni: switchovers that it announces, and which server leads; by a stub of its REST interface, and once by a real one."""

import contextlib
import datetime
import http.server
import itertools
import json
import pathlib
import shlex
import shutil
import subprocess
import tempfile
import threading

from harness import etcd, patroni
from harness.postgres import SECRETS, Standby
from harness.suite import Background, Skip, equal, limit, pooler_only, until
from harness.wire import ServerError

SAME_FOR_ALL_SERVERS = True
TAKES_SECONDS = 75

NUMBERS = itertools.count(1)
SETTINGS = {"server_probe_interval": "200ms", "query_wait_timeout": "60s", "server_login_retry": "100ms", "pool_size": 4}


class Stub:
    """Patroni's REST interface of a cluster with these servers, the first of which leads."""

    def __init__(self, *servers):
        self.servers, self.leader, self.scheduled, self.answers = servers, servers[0], None, True
        stub = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                status = 200 if stub.answers and self.path == "/cluster" else 503
                body = json.dumps(stub.cluster()).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def cluster(self):
        members = [{"name": str(one.port), "role": "leader" if one is self.leader else "replica",
                    "state": "running" if one is self.leader else "streaming", "host": "127.0.0.1", "port": one.port}
                   for one in self.servers]
        scheduled = {"scheduled_switchover": {"at": self.scheduled.isoformat(), "from": str(self.leader.port)}} if self.scheduled else {}
        return {"members": members, "scope": "app", **scheduled}

    def schedule(self, seconds):
        self.scheduled = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)

    @property
    def address(self):
        return f"http://127.0.0.1:{self.server.server_address[1]}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()


@contextlib.contextmanager
def pair(env):
    """Two servers, the second of which follows the first; each by its TCP address."""
    with Standby(env.cluster, f"{env.directory}/standby{next(NUMBERS)}") as first:
        first.promote()
        with Standby(first, f"{env.directory}/standby{next(NUMBERS)}") as second:
            yield first, second


def by_tcp(*servers):
    return [f"127.0.0.1:{server.port}" for server in servers]


@pooler_only
@limit(90)
def test_a_scheduled_switchover_costs_no_client_an_error(env):
    """Clients wait from before its time on; what stops the primary then asks nobody."""
    with pair(env) as (first, second), Stub(first, second) as stub:
        with env.pooler_with(servers=by_tcp(first, second), target_session_attrs="primary", patroni=[stub.address], **SETTINGS) as target:
            ends, ran = threading.Event(), []

            def work():
                with target.connect(timeout=60) as client:
                    while not ends.is_set():
                        ran.append(client.value("begin; select pg_sleep(0.01); commit"))
            clients = [Background(work) for _ in range(8)]
            until(lambda: len(ran) > 50, "the clients run")
            stub.schedule(2)
            until(lambda: "Patroni has announced a switchover" in target.pooler.text(), "it is seen")
            until(lambda: not target.pooler.show("servers"), "clients wait")
            assert datetime.datetime.now(datetime.UTC) < stub.scheduled, "they wait from before its time on"
            first.stop("fast")
            second.promote()
            stub.leader, stub.scheduled = second, None
            before = len(ran)
            until(lambda: len(ran) > before + 50, "the clients go on", seconds=20)
            ends.set()
            for client in clients:
                client.join(30)
            equal(env.connect(target).value("show port"), str(second.port))


@pooler_only
@limit(90)
def test_clients_go_on_when_patroni_calls_a_switchover_off(env):
    with pair(env) as (first, second), Stub(first, second) as stub:
        with env.pooler_with(servers=by_tcp(first, second), target_session_attrs="primary", patroni=[stub.address], **SETTINGS) as target:
            client = env.connect(target)
            client.execute("select 1")
            stub.schedule(1.5)
            until(lambda: not target.pooler.show("servers"), "clients wait")
            waits = Background(client.value, "select 1")
            stub.scheduled = None
            equal(waits.join(10), "1")
            assert "Patroni has called the switchover off" in target.pooler.text()


@pooler_only
@limit(90)
def test_of_two_primaries_patronis_leader_serves(env):
    """The old one keeps running, and is the first in the list."""
    with pair(env) as (first, second), Stub(first, second) as stub:
        with env.pooler_with(servers=by_tcp(first, second), target_session_attrs="primary", patroni=[stub.address], **SETTINGS) as target:
            client = env.connect(target)
            equal(client.value("show port"), str(first.port))
            second.promote()
            stub.leader = second
            until(lambda: client.value("show port") == str(second.port), "the leader serves")
            assert "not the leader of its Patroni cluster" in target.pooler.text()
            # Without Patroni probes alone count: what serves goes on.
            stub.answers = False
            until(lambda: "no node of Patroni answers" in target.pooler.text(), "it is said")
            stub.leader, stub.answers = first, True
            until(lambda: client.value("show port") == str(first.port), "the leader serves again")


@pooler_only
def test_patroni_needs_a_database_that_wants_a_primary(env):
    for settings, reason in (({"patroni": ["http://127.0.0.1:8008"]}, "it needs target_session_attrs"),
                             ({"patroni": ["10.0.0.1:8008"], "target_session_attrs": "primary"}, "is not http://host:port")):
        try:
            with env.pooler_with(**settings):
                raise AssertionError("it started")
        except (AssertionError, ServerError) as error:
            assert reason in str(error), error


@pooler_only
@limit(180)
def test_a_real_patroni_switches_over_unnoticed(env):
    """Once announced and once at once, where its before_stop runs SWITCHOVER; the full form is bench/pooler/switchover.py."""
    if not etcd.program():
        raise Skip("there is no etcd: `scripts/setup.sh all` installs it")
    try:
        patroni.fetch()
    except RuntimeError as error:
        raise Skip(str(error)) from error
    # (The server's user cannot reach the directory of the tests.)
    directory = pathlib.Path(tempfile.mkdtemp(prefix="hawser-patroni-"))
    directory.chmod(0o755)
    with contextlib.ExitStack() as ends:
        ends.callback(shutil.rmtree, directory, ignore_errors=True)
        store = etcd.Etcd(directory / "etcd").start()
        ends.callback(store.kill)
        switch = directory / "switch"  # where Hawser listens is known later
        nodes = [patroni.Node(directory, name, store.port, f"sh {switch}") for name in ("one", "two")]
        for node in nodes:
            node.start()
            ends.callback(node.stop)
            patroni.wait_for(f"Patroni {node.name}", node.state)
        leader = patroni.wait_for("a cluster", lambda: patroni.whole(nodes))
        rest = [f"http://127.0.0.1:{node.rest}" for node in nodes]
        login = {"user": "postgres", "dbname": "postgres"}
        target = ends.enter_context(env.pooler_with(servers=by_tcp(*nodes), target_session_attrs="primary", patroni=rest,
                                                    **{**SETTINGS, **login}))
        switch.write_text("true")
        with target.connect() as client:
            client.execute("create table numbers (number int)")
        for after in (2, None):
            other = next(node for node in nodes if node is not leader)
            if after is None:
                password, console = shlex.quote(SECRETS["admin"]), f"psql -h 127.0.0.1 -p {target.port} -U admin -d hawser"
                switch.write_text(f"PGPASSWORD={password} {console} -c 'SWITCHOVER app'")
            run = load(directory, target)
            leader.switch_over(other, after)
            said, status = run.communicate()[0], run.returncode
            equal((status, said.count("aborted")), (0, 0), said)
            equal(other.state().get(other.name), ("leader", "running"))
            if after:
                leader = patroni.wait_for("a whole cluster", lambda: patroni.whole(nodes))


def load(directory, target):
    """pgbench with a few clients, for longer than a switchover."""
    script = directory / "script"
    script.write_text("begin;\ninsert into numbers values (1);\nend;\n")
    command = ["pgbench", "-n", "-h", "127.0.0.1", "-p", str(target.port), "-U", "app_trust", "-c", "8", "-T", "8", "-f", str(script),
               "app"]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
