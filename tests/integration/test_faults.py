"""Faults of what is around Hawser: a server that stands still, clients that read nothing, a network that is cut."""

import contextlib
import functools
import os
import shutil
import signal
import subprocess
import sys
import time

from harness import messages as m
from harness.suite import Background, Skip, equal, limit, pooler_only, until
from harness.wire import Disconnected, ServerError

SAME_FOR_ALL_SERVERS = True
ALONE = "processes"
TAKES_SECONDS = 45
BIG = "select repeat('x', 8000) from generate_series(1, 20000)"  # 160 MB


def processes(cluster):
    """The postmaster and all of its children."""
    postmaster = int((cluster.data / "postmaster.pid").read_text().split()[0])
    with open(f"/proc/{postmaster}/task/{postmaster}/children") as children:
        return [postmaster, *map(int, children.read().split())]


@contextlib.contextmanager
def stopped(cluster):
    """A server of which every process stands still: its kernel takes connections, and nobody answers."""
    stopped = processes(cluster)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


@pooler_only
@limit(90)
def test_a_server_that_is_late_again_and_again_is_warned_of_once_a_minute(env):
    """The log had 587 lines of a storm of logins."""
    with env.pooler_with(pool_size=5) as target:
        equal(env.connect(target).value("select 1"), "1")
        began = time.monotonic()
        for _ in range(3):
            time.sleep(0.06)  # past the 50 ms in which one question serves all
            with stopped(env.cluster):
                late = env.connect(target)
            equal(late.value("select 1"), "1")
            env.connect(target)
        warnings = target.pooler.text().count("does not say whether start values have changed")
        assert 1 <= warnings <= 1 + (time.monotonic() - began) // 60, f"{warnings} warnings"


@pooler_only
@limit(90)
def test_logins_do_not_wait_for_a_server_that_stands_still(env):
    """Each of 50 logins, one after the other, waited half a second for a question that was never answered: 25 s."""
    with env.pooler_with(pool_size=5) as target:
        equal(env.connect(target).value("select 1"), "1")
        with stopped(env.cluster):
            began = time.monotonic()
            clients = []
            for _ in range(50):
                clients.append(env.connect(target))
                time.sleep(0.06)  # past the 50 ms in which one question serves all
            took = time.monotonic() - began
        assert took < 50 * 0.06 + 3, f"50 logins took {took:.1f} s"
        assert "does not say whether start values have changed" in target.pooler.text()
        equal(clients[-1].value("select 2"), "2")
        # Once it answers again, a change is noticed by whoever comes next, as before.
        server = env.server()
        try:
            until(lambda: env.connect(target).value("select 3") == "3", "served again")
            time.sleep(0.2)  # past the 50 ms in which one question serves all
            env.connect(target)
            server.execute("alter role app set statement_timeout = '4321ms'")
            time.sleep(0.1)  # past the 50 ms in which one question serves all
            until(lambda: env.connect(target).value("show statement_timeout") == "4321ms", "the change is noticed")
        finally:
            server.execute("alter role app reset statement_timeout")


@pooler_only
@limit(60)
def test_a_first_login_is_refused_once_the_server_has_not_answered_in_time(env):
    """It waited up to client_login_timeout, a minute."""
    with env.pooler_with(server_connect_timeout="1s", query_wait_timeout="40s") as target, stopped(env.cluster):
        began = time.monotonic()
        try:
            target.connect()
            raise AssertionError("it logged in")
        except ServerError as refused:
            equal(refused.sqlstate, "08006")
            assert "within 1 s" in str(refused), refused
        assert time.monotonic() - began < 4


@pooler_only
@limit(60)
def test_logins_with_auth_query_wait_for_one_answer_together(env):
    """They waited for each other's: ten of them ten times `server_connect_timeout`."""
    with env.pooler_with(auth_user="postgres", users_file=None, server_connect_timeout="2s",
                         hba="local all all trust\nhost all all all scram-sha-256\n") as target:
        def login():
            began = time.monotonic()
            try:
                target.connect("app_scram")
            except (ServerError, Disconnected):
                return time.monotonic() - began
            raise AssertionError("it logged in")
        with stopped(env.cluster):
            attempts = [Background(login) for _ in range(8)]
            took = [attempt.join(30) for attempt in attempts]
        assert max(took) < 2 * 2 + 2, f"they were refused after {sorted(took)} s"


@pooler_only
@limit(90)
def test_trap_24_readers_of_nothing_hold_up_nobody_for_longer_than_seconds(env):
    """Ten of them on a pool of ten, and forty: another client waited over 30 s."""
    for readers, within in ((10, 4), (40, 12)):
        with env.pooler_with(pool_size=10, query_wait_timeout="60s") as target:
            slow = [env.connect(target) for _ in range(readers)]
            other = env.connect(target, timeout=60)
            for client in slow:
                client.send(m.query(BIG))
            time.sleep(0.5)  # the server connections are theirs
            began = time.monotonic()
            equal(other.value("select 'served'"), "served")
            waited = time.monotonic() - began
            assert waited < within, f"beside {readers} that read nothing another client waited {waited:.1f} s"
            if readers == 10:
                # They were set aside, and nobody was cut off.
                rows = 0
                while (message := slow[0].receive()) and message.kind != "Z":
                    rows += message.kind == "D"
                equal(rows, 20000)
            for client in slow:
                client.vanish()


@pooler_only
@limit(60)
def test_a_query_of_a_transaction_that_took_long_is_answered_though_others_wait(env):
    """Its answer waits for the end of the event loop's turn: a client was taken for one that does not read, and cut off."""
    with env.pooler_with(pool_size=1, idle_transaction_reserve=0, query_wait_timeout="50s") as target:
        client, waiting = env.connect(target, timeout=30), env.connect(target, timeout=30)
        client.execute("begin")
        waiting.send(m.query("select 'in the end'"))
        for turn in range(8):
            client.execute(f"select pg_sleep(2.1{turn})")
        client.execute("commit")
        equal(waiting.collect().value, "in the end")


# A network that is cut

RELAY = """
import socket, sys, threading

def copy(source, sink):
    try:
        while piece := source.recv(65536):
            sink.sendall(piece)
    except OSError:
        pass
    for end in (source, sink):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
listener = socket.create_server((sys.argv[1], 5432))
print("listens", flush=True)
while True:
    near = listener.accept()[0]
    far = socket.socket(socket.AF_UNIX)
    far.connect(sys.argv[2])
    for ends in ((near, far), (far, near)):
        threading.Thread(target=copy, args=ends, daemon=True).start()
"""


def ip(*arguments, check=True):
    return subprocess.run(["ip", *arguments], check=check, capture_output=True, text=True)


class Far:
    """A network namespace with a relay to the server, and a cable to it that can be cut: packets vanish, and nobody says so."""

    def __init__(self, env):
        self.name = f"hwf{os.getpid()}"
        self.near = f"hwf{os.getpid() % 100000}n"
        self.socket = f"{env.cluster.socket_dir}/.s.PGSQL.{env.cluster.port}"
        number = os.getpid() % 250
        self.addresses = f"10.213.{number}.1", f"10.213.{number}.2"

    def __enter__(self):
        near, far = self.addresses
        ip("netns", "add", self.name)
        self.relay = None
        try:
            ip("link", "add", self.near, "type", "veth", "peer", "name", "eth0", "netns", self.name)
            ip("addr", "add", f"{near}/30", "dev", self.near)
            ip("link", "set", self.near, "up")
            ip("-n", self.name, "addr", "add", f"{far}/30", "dev", "eth0")
            ip("-n", self.name, "link", "set", "eth0", "up")
            self.relay = subprocess.Popen(["ip", "netns", "exec", self.name, sys.executable, "-c", RELAY, far, self.socket],
                                          stdout=subprocess.PIPE, text=True)
            equal(self.relay.stdout.readline().strip(), "listens")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self.relay:
            self.relay.kill()
            self.relay.wait()
        ip("route", "del", "blackhole", f"{self.addresses[1]}/32", check=False)
        ip("link", "del", self.near, check=False)
        ip("netns", "del", self.name, check=False)

    @property
    def address(self):
        return f"{self.addresses[1]}:5432"

    def cut(self):
        """Frames go to a machine that is not there, on both sides."""
        near, far = self.addresses
        ip("neigh", "replace", far, "lladdr", "02:00:00:00:00:99", "nud", "permanent", "dev", self.near)
        ip("-n", self.name, "neigh", "replace", near, "lladdr", "02:00:00:00:00:99", "nud", "permanent", "dev", "eth0")

    def lose_the_route(self):
        """This host has no route any more: packets do not leave it."""
        ip("route", "add", "blackhole", f"{self.addresses[1]}/32")

    def clog(self):
        """A queue of this host that is full drops what is sent."""
        tried = subprocess.run(["tc", "qdisc", "add", "dev", self.near, "root", "tbf", "rate", "8bit", "burst", "10", "limit", "10"],
                               check=False, capture_output=True, text=True)
        if tried.returncode:
            raise Skip(f"no queue of a bounded rate here: {tried.stderr.strip()}")

    def mend(self):
        near, far = self.addresses
        ip("neigh", "del", far, "dev", self.near)
        ip("-n", self.name, "neigh", "del", near, "dev", "eth0")


def with_far(test):
    @pooler_only
    @functools.wraps(test)
    def run(env):
        if os.geteuid() != 0 or not shutil.which("ip"):
            raise Skip("a network that can be cut needs root and ip(8)")
        tried = ip("netns", "add", f"hwf{os.getpid()}t", check=False)
        if tried.returncode:
            raise Skip(f"no network namespaces here: {tried.stderr.strip()}")
        ip("netns", "del", f"hwf{os.getpid()}t")
        with Far(env) as far:
            test(env, far)
    return run


@limit(90)
@with_far
def test_a_server_whose_packets_vanish_holds_its_pool_for_seconds(env, far):
    """With an unanswered query, with bytes on the way, and idle: it was more than 20 s, up to a quarter of an hour."""
    with env.pooler_with(servers=[far.address], pool_size=3, query_wait_timeout="40s") as target:
        clients = [env.connect(target, timeout=40) for _ in range(3)]
        for client in clients:
            client.execute("begin")
        asking, sending, resting = clients
        asking.send(m.query("select pg_sleep(60)"))
        time.sleep(0.5)  # the query has come to the server
        far.cut()
        began = time.monotonic()
        sending.send(m.query("select 1"))
        other = env.connect(target, timeout=40)
        other.send(m.query("select 'served'"))
        for client in (asking, sending):
            result = client.collect()
            assert result.closed and result.sqlstate in ("08006", None), result.errors
        lost = time.monotonic() - began
        assert lost < 6, f"the queries were given up after {lost:.1f} s"
        far.mend()
        equal(other.collect().value, "served")
        took = time.monotonic() - began
        assert took < 25, f"another client was served after {took:.1f} s"
        until(lambda: resting.attempt("select 1").closed, "the idle one has gone as well")
        env.cluster.terminate_backends()


def all_are_told(env, far, cut):
    """Of twelve clients, six wait for their answer when the way is cut, and six send then: each is told within seconds."""
    with env.pooler_with(servers=[far.address], pool_size=20, query_wait_timeout="40s") as target:
        clients = [env.connect(target, timeout=40) for _ in range(12)]
        for client in clients:
            client.execute("begin")
        for client in clients[:6]:
            client.send(m.query("select pg_sleep(40)"))
        env.cluster.wait_for_backends("state = 'active' and query = 'select pg_sleep(40)'", 6)
        cut()
        began = time.monotonic()
        for client in clients[6:]:
            client.send(m.query("select 1"))
        for client in clients:
            result = client.collect()
            equal((result.closed, result.sqlstate, result.errors[0]["M"]), (True, "08006", "server does not answer any more"))
        lost = time.monotonic() - began
        assert lost < 8, f"the queries were given up after {lost:.1f} s"
        env.cluster.terminate_backends()


@limit(90)
@with_far
def test_a_server_to_which_this_host_has_no_route_any_more_is_given_up_as_soon(env, far):
    """Nothing is under way, and the server repeats what it gets no acknowledgement of: it took 12 s."""
    all_are_told(env, far, far.lose_the_route)


@limit(90)
@with_far
def test_a_server_for_which_a_queue_of_this_host_drops_all_is_given_up_as_soon(env, far):
    """The kernel does not count keepalive probes that it drops itself: queries that waited for their answer waited on."""
    all_are_told(env, far, far.clog)


@limit(60)
@with_far
def test_a_silent_server_delays_new_queries_no_longer_than_those_under_way(env, far):
    """The next server serves them after server_lost_timeout: a connect was waited for through server_connect_timeout, 15 s."""
    with env.pooler_with(servers=[far.address, env.cluster.address], pool_size=5, query_wait_timeout="40s") as target:
        first, others = env.connect(target, timeout=40), [env.connect(target, timeout=40) for _ in range(4)]
        first.execute("begin")
        far.cut()
        began = time.monotonic()
        for client in others:
            client.send(m.query("select 'served'"))
        equal([client.collect().value for client in others], ["served"] * 4)
        took = time.monotonic() - began
        assert 4 < took < 9, f"served after {took:.1f} s"
        # One that connects a moment later does not wait for it again.
        late, began = [env.connect(target, timeout=40) for _ in range(6)], time.monotonic()
        for client in late:
            client.send(m.query("begin"))
        until(lambda: sum(client.pending(0.01) for client in late) >= 4, "the whole pool serves at once", 3)
        env.cluster.terminate_backends()


@limit(60)
@with_far
def test_a_long_query_and_a_server_that_does_not_read_are_left_alone(env, far):
    """The machine answers probes: nothing is given up, be the query long or the window full for longer than the timeout."""
    server = env.server()
    server.execute("drop table if exists kept_waiting; create table kept_waiting (t text); grant all on kept_waiting to app")
    with env.pooler_with(servers=[far.address], pool_size=3) as target:
        long, copying = env.connect(target, timeout=30), env.connect(target, timeout=30)
        holder = env.server()
        holder.execute("begin; lock table kept_waiting")
        long.send(m.query("select pg_sleep(12), 'long'"))
        copying.send(m.query("insert into kept_waiting select 'first'"))
        rest = Background(lambda: copying.send(m.query("insert into kept_waiting values ('" + "x" * (32 << 20) + "')")))
        time.sleep(11)  # longer than the timeout, and shorter than the query
        holder.execute("commit")
        equal(long.collect().rows[0][1], "long")
        rest.join(30)
        result = copying.collect(2)
        equal((result.errors, result.tags), ([], ["INSERT 0 1", "INSERT 0 1"]))
    server.execute("drop table kept_waiting")
