"""Multipath TCP: `hawser mptcp`, a pooler that takes it and one that dials it, between network namespaces.

Two namespaces of this test stand for two machines, with one or two networks between them. Nothing outside of them is
touched. Without root, iproute2 or MPTCP in the kernel every test is skipped, with the reason.
"""

import contextlib
import fcntl
import functools
import itertools
import json
import os
import pathlib
import pty
import shutil
import signal
import socket
import subprocess
import sys
import termios
import time

from harness import messages as m
from harness.pooler import Pooler, binary
from harness.suite import Skip, equal, limit, pooler_only, until

SAME_FOR_ALL_SERVERS = True
ALONE = "networks"

IPPROTO_MPTCP = 262
NUMBERS = itertools.count(1)


def why_not():
    """Why these tests cannot run here; None if they can."""
    if os.geteuid() != 0:
        return "namespaces need root"
    if not shutil.which("ip"):
        return "iproute2 is not installed"
    try:
        socket.socket(socket.AF_INET, socket.SOCK_STREAM, IPPROTO_MPTCP).close()
    except OSError as error:
        return f"this kernel has no MPTCP: {error}"
    return None


def needs_mptcp(test):
    @pooler_only
    @functools.wraps(test)
    def run(env):
        if reason := why_not():
            raise Skip(reason)
        test(env)
    return run


class Machine:
    """A network namespace, and the processes that the test has started in it."""

    def __init__(self, name):
        self.name = f"hawser-test-{name}-{os.getpid()}-{next(NUMBERS)}"
        self.started = []
        ip("netns", "add", self.name)
        self.ip("link", "set", "lo", "up")

    def ip(self, *words):
        return ip("-n", self.name, *words)

    def start(self, *command, **how):
        process = subprocess.Popen(["ip", "netns", "exec", self.name, *map(str, command)], **how)
        self.started.append(process)
        return process

    def run(self, *command, code=0):
        done = subprocess.run(["ip", "netns", "exec", self.name, *map(str, command)], capture_output=True, text=True, timeout=30)
        equal(done.returncode, code, f"exit code of {command} ({done.stdout}{done.stderr})")
        return done.stdout if code == 0 else done.stderr

    def hawser(self, *words, code=0):
        return self.run(binary(), "mptcp", *words, code=code)

    def status(self):
        return json.loads(self.hawser("status", "--json"))

    def connections(self, **wanted):
        """Established ones, with the listed values."""
        return [c for c in self.status()["connections"]
                if c["state"] == "established" and all(c[name] == value for name, value in wanted.items())]

    def stop(self):
        for process in self.started:
            if process.poll() is None:
                process.kill()
            process.wait()
        # What outlives its starter: a server below `mptcp run`, whose second supervisor takes over from one that is killed.
        for _ in range(50):
            left = ip("netns", "pids", self.name).split()
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            if not left:
                break
            time.sleep(0.02)
        # What is remembered of a namespace would otherwise stay until the machine stops.
        subprocess.run(["ip", "netns", "exec", self.name, binary(), "mptcp", "undo"], capture_output=True, timeout=20)
        ip("netns", "del", self.name)


def ip(*words):
    done = subprocess.run(["ip", *words], capture_output=True, text=True, timeout=20)
    if done.returncode:
        raise Skip(f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


@contextlib.contextmanager
def two_machines(networks=1):
    """Server and client; in network N they are 10.77.N.1 and 10.77.N.2."""
    with contextlib.ExitStack() as stack:
        machines = []
        for name in ("server", "client"):
            machines.append(Machine(name))
            stack.callback(machines[-1].stop)
        for number in range(networks):
            machines[0].ip("link", "add", f"net{number}", "type", "veth", "peer", "name", f"net{number}", "netns", machines[1].name)
            for host, machine in enumerate(machines, 1):
                machine.ip("addr", "add", f"10.77.{number}.{host}/24", "dev", f"net{number}")
                machine.ip("link", "set", f"net{number}", "up")
        yield machines


SINK = """
import socket, sys, threading
listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, int(sys.argv[1]))
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("0.0.0.0", 7000))
listener.listen()
print("listens", flush=True)
def take(connection):
    while connection.recv(1 << 16):
        pass
while True:
    threading.Thread(target=take, args=(listener.accept()[0],), daemon=True).start()
"""

SOURCE = """
import socket, time
connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
connection.connect(("10.77.0.1", 7000))
while True:
    connection.sendall(bytes(20000))
    time.sleep(0.01)
"""


def sink(machine, protocol=IPPROTO_MPTCP):
    process = machine.start(sys.executable, "-c", SINK, protocol, stdout=subprocess.PIPE, text=True)
    equal(process.stdout.readline(), "listens\n")
    return process


def source(machine):
    return machine.start(sys.executable, "-c", SOURCE, stderr=subprocess.DEVNULL)


@needs_mptcp
def test_status_says_why_there_is_one_subflow_and_setup_makes_five(env):
    with two_machines() as (server, client):
        sink(server)
        before = source(client)
        until(client.connections, "a connection")
        far, near = server.connections()[0], client.connections()[0]
        equal((far["dialled"], near["dialled"]), (False, True))
        equal([len(end["subflows"]) for end in (far, near)], [1, 1])
        assert "no `signal` endpoint" in far["why_single"][0], far
        assert any("add_addr_accepted is 0" in reason for reason in near["why_single"]), near
        assert near["program"]["name"].startswith("python"), near
        equal(near["remote"], "10.77.0.1:7000")
        assert near["subflows"][0]["sent_bit_s"] > 0 and far["subflows"][0]["received_bit_s"] > 0, (near, far)

        server.hawser("setup", "server")
        client.hawser("setup", "client")
        source(client)
        five = until(lambda: [c for c in client.connections() if len(c["subflows"]) == 5], "five subflows")[0]
        equal(five["why_single"], [])
        ports = sorted(int(s["remote"].rsplit(":", 1)[1]) for s in five["subflows"])
        equal(ports, [6434, 6435, 6436, 6437, 7000])
        equal(sum(s["joined"] for s in five["subflows"]), 4)
        text = client.hawser("status")
        assert text.count("10.77.0.1:643") == 4 and "mptcp          on" in text, text
        before.kill()


@needs_mptcp
def test_undo_takes_away_what_setup_made_and_nothing_else(env):
    with two_machines() as (server, _):
        server.ip("mptcp", "endpoint", "add", "10.77.0.1", "subflow", "id", "1")
        server.ip("mptcp", "limits", "set", "subflow", "3", "add_addr_accepted", "1")
        before = server.ip("mptcp", "endpoint"), server.ip("mptcp", "limits")
        assert "make endpoint 2 10.77.0.1:6434 signal" in server.hawser("setup", "server", "--dry-run")
        equal((server.ip("mptcp", "endpoint"), server.ip("mptcp", "limits")), before, "after a dry run")

        server.hawser("setup", "server", "--ports", "2")
        once = server.ip("mptcp", "endpoint")
        assert "port 6434 id 2 signal" in once and "id 1 subflow" in once, once
        assert "nothing to do" in server.hawser("setup", "server", "--ports", "2")
        equal(server.ip("mptcp", "endpoint"), once, "after the second setup")
        ours = {e["id"]: e["ours"] for e in server.status()["endpoints"]}
        equal(ours, {1: False, 2: True, 3: True})

        # Another port in place of the first; the limits before the first setup are the ones to go back to.
        server.hawser("setup", "server", "--ports", "1", "--first-port", "6435")
        now = server.ip("mptcp", "endpoint")
        assert "6435" in now and "6434" not in now, now
        server.hawser("undo")
        equal((server.ip("mptcp", "endpoint"), server.ip("mptcp", "limits")), before, "after undo")
        assert "nothing was set up here" in server.hawser("undo")

        # Limits that somebody else has raised are theirs, also where `setup` is run again.
        server.hawser("setup", "server", "--ports", "2")
        server.ip("mptcp", "limits", "set", "subflow", "8", "add_addr_accepted", "5")
        raised = server.ip("mptcp", "limits")
        assert "nothing to do" in server.hawser("setup", "server", "--ports", "2")
        server.hawser("undo")
        equal(server.ip("mptcp", "limits"), raised, "after undo")


@needs_mptcp
def test_setup_refuses_before_it_changes_anything(env):
    with two_machines() as (server, _):
        before = server.ip("mptcp", "endpoint"), server.ip("mptcp", "limits")
        assert "no address of this machine" in server.hawser("setup", "server", "--address", "10.77.9.9", code=1)
        server.run("ip", "addr", "add", "10.77.0.7/24", "dev", "net0")
        assert "the kernel takes 8" in server.hawser("setup", "server", "--ports", "8", code=1)
        equal((server.ip("mptcp", "endpoint"), server.ip("mptcp", "limits")), before)
        server.run("sh", "-c", "echo 1 > /proc/sys/net/mptcp/pm_type")
        assert "path manager is in userspace" in server.hawser("setup", "server", code=1)
        assert any("no program manages" in note for note in server.status()["notes"])
        server.run("sh", "-c", "echo 0 > /proc/sys/net/mptcp/pm_type")
        server.run("sh", "-c", "echo 0 > /proc/sys/net/mptcp/enabled")
        assert "MPTCP is off here" in server.hawser("status")
        server.hawser("setup", "server")
        equal(server.status()["enabled"], True)
        server.hawser("undo")
        equal(server.status()["enabled"], False)


@needs_mptcp
def test_setup_needs_rights_and_says_so(env):
    with two_machines() as (server, _):
        if not shutil.which("setpriv"):
            raise Skip("setpriv is not installed")
        error = server.run("setpriv", "--bounding-set=-net_admin", "--inh-caps=-all", binary(), "mptcp", "setup", "server", code=1)
        assert "CAP_NET_ADMIN" in error, error
        equal(server.ip("mptcp", "endpoint"), "")


@needs_mptcp
def test_a_client_uses_both_its_networks_and_a_metered_one_last(env):
    with two_machines(networks=2) as (server, client):
        server.hawser("setup", "server")
        client.hawser("setup", "client", "--backup", "10.77.1.2")
        sink(server)
        source(client)

        def joined():
            found = client.connections()
            return found and [s for s in found[0]["subflows"] if s["joined"] and s["state"] == "established"]
        until(lambda: joined() and any(s["local"].startswith("10.77.1.2:") for s in joined()), "a subflow over the second network")
        metered = [s for s in joined() if s["local"].startswith("10.77.1.2:")]
        assert metered and all(s["backup"] for s in metered), metered
        time.sleep(0.5)  # data flows meanwhile
        sent = {"10.77.0.2": 0, "10.77.1.2": 0}
        for subflow in client.connections()[0]["subflows"]:
            sent[subflow["local"].rsplit(":", 1)[0]] += subflow["bytes_acked"]
        assert sent["10.77.1.2"] < 1000 < sent["10.77.0.2"], f"the metered line carries data: {sent}"


@needs_mptcp
def test_status_names_a_fallback_and_a_silent_port(env):
    with two_machines() as (server, client):
        server.hawser("setup", "server", "--ports", "1")
        client.hawser("setup", "client")
        plain = sink(server, 0)
        gone = source(client)
        found = until(client.connections, "a connection that fell back")[0]
        equal(found["fallback"], True)
        assert "fell back to plain TCP" in found["why_single"][0], found
        gone.kill()
        plain.kill()
        plain.wait()

        # As a firewall does it: what goes to this address is for a machine that is not there.
        server.hawser("undo")
        server.ip("addr", "add", "10.77.9.1/32", "dev", "lo")
        server.hawser("setup", "server", "--ports", "1", "--address", "10.77.9.1")
        client.ip("route", "add", "10.77.9.1/32", "dev", "net0")
        client.ip("neigh", "add", "10.77.9.1", "lladdr", "02:00:00:00:00:99", "dev", "net0")
        sink(server)
        source(client)

        def reasons():
            return [reason for c in client.connections(fallback=False) for reason in c["why_single"]]
        until(lambda: any("10.77.9.1:6434 is not answered" in reason for reason in reasons()), "the silent port is named")


class Serving:
    """`hawser serve` on a machine, reached by its unix socket: files are shared between namespaces."""

    def __init__(self, env, machine, **settings):
        self.pooler = Pooler(f"{env.directory}/mptcp{next(NUMBERS)}", env.cluster, {"http_address": "", **settings})
        self.machine = machine

    def __enter__(self):
        with open(self.pooler.log, "ab") as log:
            self.process = self.machine.start(*self.pooler.launcher, binary(), "serve", "-c", self.pooler.config, cwd=self.pooler.directory,
                                              stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until(lambda: "ready" in self.pooler.text() or self.process.poll() is not None, "ready", 10)
        assert self.process.poll() is None, self.pooler.tail()
        return self

    def __exit__(self, kind, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(15)
        self.pooler.check_log()
        if kind is None:
            equal(self.process.returncode, 0, f"exit code\n{self.pooler.tail()}")

    def connect(self, **how):
        return self.pooler.target.connect(host=self.pooler.target.socket_dir, **how)

    def cancel(self, session):
        with contextlib.closing(self.pooler.target.open(host=self.pooler.target.socket_dir).sock) as other:
            other.sendall(m.cancel_request(session.pid, session.key))
            while other.recv(64):
                pass  # closed once it is with the loop

    def show(self, what):
        with self.connect(user="admin", database="hawser") as console:
            result = console.execute(f"SHOW {what}")
            return [dict(zip(result.columns, row)) for row in result.rows]

    def status(self):
        done = subprocess.run([binary(), "status", "--json", "--socket", str(self.pooler.directory / "hawser.sock")],
                              capture_output=True, text=True, timeout=20)
        return json.loads(done.stdout)


def server_side(env, machine, **more):
    serving = Serving(env, machine, servers=[env.cluster.address], **more)
    serving.pooler.write(address=["10.77.0.1:7000", f"{serving.pooler.directory}:{serving.pooler.port}"])
    return serving


def client_side(env, machine, wanted, **more):
    """Its clients come by a unix socket; its servers are the other machine's pooler."""
    serving = Serving(env, machine, servers=[f"10.77.0.1:7000?mptcp={wanted}"], server_tls_sslmode="disable", **more)
    serving.pooler.write(address=[f"127.0.0.1:{serving.pooler.port}", str(serving.pooler.directory)])
    return serving


def transports(serving, kind):
    return {row["transport"] for row in serving.show("SOCKETS") if row["type"] == kind and row["database"] == "app"}


@needs_mptcp
@limit(60)
def test_a_pooler_takes_mptcp_and_another_dials_it(env):
    with two_machines() as (server, client):
        server.hawser("setup", "server", "--ports", "2")
        client.hawser("setup", "client")
        with server_side(env, server, mptcp=True) as far, client_side(env, client, "require") as near:
            with near.connect() as session:
                equal(session.value("select count(*) from generate_series(1, 100000)"), "100000")
                equal(len(session.execute("select repeat('x', 1000) from generate_series(1, 5000)").rows), 5000)
                equal(transports(near, "S"), {"mptcp"})
                equal(transports(near, "C"), {"unix"})
                equal(transports(far, "C"), {"mptcp"})
                until(lambda: [c for c in client.connections() if len(c["subflows"]) == 3], "three subflows")
                equal(client.connections()[0]["program"]["name"], pathlib.Path(binary()).name[:15])
            equal(near.status()["fallbacks"], [])
            equal(far.status()["fallbacks"], [])


@needs_mptcp
@limit(60)
def test_a_cancel_request_goes_over_plain_tcp(env):
    with two_machines() as (server, client):
        with server_side(env, server, mptcp=True), client_side(env, client, "require") as near:
            with near.connect() as session:
                session.send(m.query("select pg_sleep(20)"))
                running = "select pid from pg_stat_activity where query like 'select pg_sleep(20)%'"
                watcher = env.server()
                until(lambda: watcher.execute(running).rows, "the query")
                before = asked_for_mptcp(client)
                near.cancel(session)
                equal(session.collect().errors[0]["C"], "57014")
                equal(asked_for_mptcp(client), before, "handshakes that asked for MPTCP")


def asked_for_mptcp(machine):
    """How many handshakes did (MPTcpExt of /proc/net/netstat)."""
    names, values = [line.split() for line in machine.run("cat", "/proc/net/netstat").splitlines() if line.startswith("MPTcpExt")]
    return int(dict(zip(names, values))["MPCapableSYNTX"])


@needs_mptcp
@limit(60)
def test_a_fallback_is_served_and_said_once_and_require_refuses(env):
    with two_machines() as (server, client):
        with server_side(env, server) as far:
            with client_side(env, client, "prefer") as near:
                with near.connect() as session, near.connect() as other:
                    session.execute("begin")
                    other.execute("begin; select 1")
                    equal(session.value("select 'over tcp'"), "over tcp")
                    equal(transports(near, "S"), {"tcp (mptcp fell back)"})
                fallbacks = near.status()["fallbacks"]
                equal(len(fallbacks), 1)
                assert "10.77.0.1:7000" in fallbacks[0] and "does not speak MPTCP" in fallbacks[0], fallbacks
                equal(near.pooler.text().count("plain TCP in place of MPTCP"), 1, "times that it was said")
            with client_side(env, client, "require") as near:
                try:
                    near.connect()
                    raise AssertionError("served over plain TCP although MPTCP is required")
                except Exception as error:
                    assert "mptcp=require" in str(error), error
        assert far


@needs_mptcp
@limit(60)
def test_a_plain_client_is_taken_and_a_kernel_without_mptcp_is_named(env):
    with two_machines() as (server, client):
        with server_side(env, server, mptcp=True) as far, client_side(env, client, "off") as near:
            with near.connect() as session:
                equal(session.value("select 1"), "1")
                equal(transports(far, "C"), {"tcp"})
                equal(transports(near, "S"), {"tcp"})
        server.run("sh", "-c", "echo 0 > /proc/sys/net/mptcp/enabled")
        client.run("sh", "-c", "echo 0 > /proc/sys/net/mptcp/enabled")
        with server_side(env, server, mptcp=True) as far:
            with client_side(env, client, "prefer") as near:
                with near.connect() as session:
                    equal(session.value("select 1"), "1")
                assert "net.mptcp.enabled" in near.status()["fallbacks"][0], near.status()
            with client_side(env, client, "require") as near:
                try:
                    near.connect()
                    raise AssertionError("served over plain TCP although MPTCP is required")
                except Exception as error:
                    assert "net.mptcp.enabled" in str(error), error


@needs_mptcp
@limit(60)
def test_a_dead_peer_is_given_up_after_tcp_user_timeout(env):
    with two_machines() as (server, client):
        with server_side(env, server, mptcp=True), client_side(env, client, "require", tcp_user_timeout="2s",
                                                               query_wait_timeout="20s") as near:
            with near.connect() as session:
                equal(session.value("select 1"), "1")
                session.execute("begin")
                client.ip("link", "set", "net0", "down")
                began = time.monotonic()
                session.send(m.query("select 2"))
                try:
                    answer = session.collect()
                    assert answer.errors, answer
                except (OSError, EOFError, AssertionError):
                    pass  # closed: as a server that has gone is seen
                took = time.monotonic() - began
                assert 1.8 < took < 6, f"given up after {took:.1f} s"


PROTOCOLS = """
import os, socket, subprocess, sys
def protocol(s):
    return s.getsockopt(socket.SOL_SOCKET, 38)
def refused(level, name, value):
    s = socket.socket()
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.setblocking(False)
    s.setsockopt(level, name, value)
    return [protocol(s), s.getsockopt(level, name), s.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR), os.get_blocking(s.fileno()),
            os.get_inheritable(s.fileno())]
ask = "import socket; print(socket.socket().getsockopt(socket.SOL_SOCKET, 38))"
listener = socket.socket()
listener.bind(("127.0.0.1", 0))
listener.listen()
late = socket.socket()
late.connect(listener.getsockname())
try:
    late.setsockopt(6, 18, 1000)
    error = 0
except OSError as e:
    error = e.errno
import json
print(json.dumps({
    "tcp": protocol(socket.socket()), "tcp6": protocol(socket.socket(socket.AF_INET6)),
    "udp": protocol(socket.socket(socket.AF_INET, socket.SOCK_DGRAM)), "unix": protocol(socket.socket(socket.AF_UNIX)),
    "accepted": protocol(listener.accept()[0]), "user_timeout": refused(6, 18, 5000), "ttl": refused(0, 2, 33), "late": error,
    "child": int(subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True).stdout),
    "turned off": int(subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, env={"PGMPTCP": "0"}).stdout),
    "variable": os.environ["PGMPTCP"],
}))
"""


@needs_mptcp
def test_run_turns_tcp_sockets_into_mptcp_and_leaves_all_others(env):
    with two_machines() as (server, _):
        # The interpreter of this test may be root's alone.
        python = "/usr/bin/python3" if os.path.exists("/usr/bin/python3") else sys.executable
        for user in ("root", "nobody"):
            command = ["setpriv", "--reuid", user, "--clear-groups"] if user != "root" and shutil.which("setpriv") else []
            got = json.loads(server.run(*command, binary(), "mptcp", "run", "--", python, "-c", PROTOCOLS))
            equal(got, {"tcp": 262, "tcp6": 262, "udp": 17, "unix": 0, "accepted": 262, "child": 262, "turned off": 6, "variable": "1",
                        # back to TCP, as it was set, and the option is in force
                        "user_timeout": [6, 5000, 1, False, False], "ttl": [6, 33, 1, False, False],
                        # connected: the kernel's own error, ENOPROTOOPT
                        "late": 92}, user)


@needs_mptcp
def test_run_has_the_exit_code_of_the_program(env):
    with two_machines() as (server, _):
        run = [binary(), "mptcp", "run", "--"]
        server.run(*run, "sh", "-c", "exit 7", code=7)
        server.run(*run, "sh", "-c", "kill -9 $$", code=137)
        server.run(*run, "/no/such/program", code=127)
        server.run(*run, "/etc/passwd", code=126)
        assert "supervisor here already" in server.run(*run, *run, "true", code=125)
        server.run("sh", "-c", "echo 0 > /proc/sys/net/mptcp/enabled")
        assert "MPTCP is off here" in server.run(*run, "true", code=125)


KILLED = """
import os, pathlib, signal, socket, sys, time
def supervisors():
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if sys.argv[1].encode() in path.read_bytes() and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
        except OSError:
            pass
    return sorted(found)
killed = set()
for turn in range(4):
    while len(living := [pid for pid in supervisors() if pid not in killed]) < 2:
        time.sleep(0.01)
    victim = living[turn % 2]
    os.kill(victim, signal.SIGKILL)
    killed.add(victim)
    protocols = {socket.socket().getsockopt(socket.SOL_SOCKET, 38) for _ in range(50)}
    assert protocols == {262}, protocols
pathlib.Path(sys.argv[2]).write_text("survived")
"""


@needs_mptcp
def test_a_killed_supervisor_does_not_take_the_program_s_sockets_along(env):
    with two_machines() as (server, _):
        mark, done = f"mark-{os.getpid()}", pathlib.Path(env.directory) / f"survived{next(NUMBERS)}"
        process = server.start(binary(), "mptcp", "run", "--", sys.executable, "-c", KILLED, mark, done)
        until(done.exists, "four deaths of supervisors survived", 15)
        process.wait(5)

        def left():
            lines = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True).stdout.splitlines()
            return [line for line in lines if mark in line]
        until(lambda: not left(), "the end of the last supervisor")


STATIC = """
#include <stdio.h>
#include <sys/socket.h>
int main(void) {
    int protocol = 0; socklen_t length = sizeof protocol;
    getsockopt(socket(AF_INET, SOCK_STREAM, 0), SOL_SOCKET, SO_PROTOCOL, &protocol, &length);
    return printf("%d\\n", protocol) < 0;
}
"""


@needs_mptcp
def test_run_takes_static_programs_too(env):
    if not shutil.which("gcc"):
        raise Skip("gcc is not installed")
    source = pathlib.Path(env.directory) / "static.c"
    source.write_text(STATIC)
    program = source.with_suffix("")
    if subprocess.run(["gcc", "-static", "-o", program, source], capture_output=True).returncode:
        raise Skip("there is no static C library")
    with two_machines() as (server, _):
        equal(server.run(binary(), "mptcp", "run", "--", program), "262\n")


@needs_mptcp
@limit(60)
def test_psql_under_run_has_five_subflows(env):
    with two_machines() as (server, client):
        server.hawser("setup", "server")
        client.hawser("setup", "client")
        with server_side(env, server, mptcp=True) as far:
            psql = env.program_path("psql")
            conninfo = "host=10.77.0.1 port=7000 user=app dbname=app sslmode=disable"
            client.start(binary(), "mptcp", "run", "--", psql, conninfo, "-c", "select 1", "-c", "select pg_sleep(3)",
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
                         env={**os.environ, "PGPASSWORD": far.pooler.target.secrets["app"]})
            found = until(lambda: [c for c in client.connections() if len(c["subflows"]) == 5], "five subflows")[0]
            equal((found["program"]["name"], found["fallback"]), ("psql", False))
            equal(until(lambda: transports(far, "C"), "the login"), {"mptcp"})  # (subflows are there before it)


@needs_mptcp
def test_a_server_under_run_accepts_mptcp(env):
    with two_machines() as (server, client):
        process = server.start(binary(), "mptcp", "run", "--", sys.executable, "-c", SINK, 0, stdout=subprocess.PIPE, text=True)
        equal(process.stdout.readline(), "listens\n")
        source(client)
        equal(until(client.connections, "a connection")[0]["fallback"], False)
        assert server.connections()[0]["program"]["name"].startswith("python")
        process.send_signal(signal.SIGTERM)
        equal(process.wait(5), 128 + signal.SIGTERM)


SAYS_SIGNALS = """
import os, signal
signals = [signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGABRT, signal.SIGALRM, signal.SIGWINCH,
           signal.SIGXCPU, signal.SIGRTMIN + 6]
signal.pthread_sigmask(signal.SIG_BLOCK, [*signals, signal.SIGTERM])
print(*map(int, signals), flush=True)
while (came := signal.sigtimedwait([*signals, signal.SIGTERM], 30)) and came.si_signo != signal.SIGTERM:
    print(came.si_signo, flush=True)
print("none came" if came is None else "SIGTERM", flush=True)
os._exit(7)
"""


@needs_mptcp
def test_run_passes_every_signal_on_and_a_key_of_the_terminal_comes_once(env):
    """SIGINT and SIGQUIT are PostgreSQL's fast and immediate shutdown."""
    command = (binary(), "mptcp", "run", "--", sys.executable, "-c", SAYS_SIGNALS)
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, bufsize=1) as run:
        for number in map(int, run.stdout.readline().split()):
            run.send_signal(number)
            equal(run.stdout.readline(), f"{number}\n")
        run.send_signal(signal.SIGTERM)
        equal(run.wait(20), 7)
    # The terminal sends SIGINT to both; what comes next is not that one again.
    keyboard, terminal = pty.openpty()
    with subprocess.Popen(command, stdin=terminal, stdout=subprocess.PIPE, text=True, bufsize=1,
                          preexec_fn=lambda: own_terminal(terminal)) as run:
        run.stdout.readline()
        os.write(keyboard, b"\x03")
        equal(run.stdout.readline(), f"{signal.SIGINT:d}\n")
        run.send_signal(signal.SIGQUIT)
        equal(run.stdout.readline(), f"{signal.SIGQUIT:d}\n")
        run.send_signal(signal.SIGTERM)
        equal(run.wait(20), 7)
    os.close(keyboard)
    os.close(terminal)


def own_terminal(terminal):
    os.setsid()
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
