"""`hawser mptcp manage`: the path manager, in the laboratory. Skipped without root, MPTCP or its userspace path manager."""

import contextlib
import functools
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

from harness.suite import Skip, equal, limit, until
from integration.test_lab import lab, network
from integration.test_mptcp import Serving, needs_mptcp, two_machines

SETTING = pathlib.Path("/proc/sys/net/mptcp/path_manager")
LOCKS = pathlib.Path("/run/hawser-mptcp")

SOURCE = """
import hashlib, socket, sys
family, port, count = int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
listener = socket.socket(family, socket.SOCK_STREAM, 262)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("::" if family == socket.AF_INET6 else "0.0.0.0", port))
listener.listen()
print("listens", flush=True)
connection = listener.accept()[0]
digest = hashlib.sha256()
for number in range(count):
    piece = number.to_bytes(4, "big") * 16384
    digest.update(piece)
    connection.sendall(piece)
connection.shutdown(socket.SHUT_WR)
connection.recv(1)
print(digest.hexdigest(), flush=True)
"""

SAME_FOR_ALL_SERVERS = True
ALONE = "lines"
TAKES_SECONDS = 90
SINK = """
import hashlib, socket, sys, time
connection = socket.socket(int(sys.argv[1]), socket.SOCK_STREAM, 262)
connection.connect((sys.argv[2], int(sys.argv[3])))
digest, began = hashlib.sha256(), time.monotonic()
while piece := connection.recv(1 << 18):
    digest.update(piece)
print(digest.hexdigest(), time.monotonic() - began, flush=True)
"""


def needs_manager(test):
    @needs_mptcp
    @functools.wraps(test)
    def run(env):
        if not SETTING.exists():
            raise Skip("this kernel has no net.mptcp.path_manager")
        test(env)
    return run


def setting(machine):
    return machine.run("cat", SETTING).strip()


@contextlib.contextmanager
def managed(start):
    """`manage`, started by a function that takes its further arguments of Popen; gives the process and what it has said."""
    process = start(stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    said = [process.stdout.readline()]
    try:
        yield process, said
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        said.extend(process.communicate(timeout=10)[0].splitlines())


def hawser():
    return os.environ["HAWSER"]


@needs_manager
def test_the_setting_is_put_back_at_the_end_and_after_a_kill(env):
    with two_machines() as (server, _):
        equal(setting(server), "kernel")
        command = [hawser(), "mptcp", "manage"]
        before = set(LOCKS.glob("manage-*.lock"))
        with managed(lambda **how: server.start(*command, **how)) as (first, said):
            assert "managing" in said[0], said
            equal(setting(server), "userspace")
            locks = set(LOCKS.glob("manage-*.lock")) - before
            assert locks
            assert "another `hawser mptcp manage`" in server.run(*command, code=1)
            assert not any("no program manages" in note for note in server.status()["notes"])
        equal(first.returncode, 0)
        equal(setting(server), "kernel")
        equal([one for one in locks if one.exists()], [], "its lock's file has gone")
        with managed(lambda **how: server.start(*command, **how)) as (second, said):
            os.kill(second.pid, signal.SIGKILL)
            second.wait()
            until(lambda: setting(server) == "kernel", "the watchdog has put it back", 5)
        # Killed together with its watchdog: it says so, and the next one takes over.
        server.run("sh", "-c", f"echo userspace > {SETTING}")
        assert any("no program manages" in note for note in server.status()["notes"])
        with managed(lambda **how: server.start(*command, **how)) as (_, said):
            assert "managing" in said[0], said
        equal(setting(server), "kernel")


@needs_manager
def test_a_bound_on_unsent_bytes_that_the_operator_has_set_stays(env):
    unsent = "/proc/sys/net/ipv4/tcp_notsent_lowat"
    for before, meanwhile in (("131072", "131072"), ("65536", "65536"), ("4294967295", "131072")):
        for end in (signal.SIGTERM, signal.SIGKILL):
            with two_machines() as (server, _):
                server.run("sh", "-c", f"echo {before} > {unsent}")
                with managed(lambda **how: server.start(hawser(), "mptcp", "manage", **how)) as (process, said):
                    assert "managing" in said[0], said
                    equal(server.run("cat", unsent).strip(), meanwhile)
                    process.send_signal(end)
                    until(lambda: setting(server) == "kernel", "put back", 5)
                equal(server.run("cat", unsent).strip(), before, f"after {end.name}")


@needs_manager
def test_without_rights_nothing_is_changed(env):
    with two_machines() as (server, _):
        error = server.run("setpriv", "--bounding-set=-net_admin", "--inh-caps=-all", hawser(), "mptcp", "manage", code=1)
        assert "CAP_NET_ADMIN" in error, error
        equal(setting(server), "kernel")


def transfer(name, family, address, count, during=lambda: None):
    """Sends `count` pieces of 64 KiB from far to near; gives the seconds that it took. `during` runs meanwhile."""
    run = [hawser(), "lab", "run", name, "--accept-unfaithful"]
    port = 7000
    source = subprocess.Popen([*run, "--on", "far", "--", sys.executable, "-c", SOURCE, str(int(family)), str(port), str(count)],
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        equal(source.stdout.readline(), "listens\n")
        sink = subprocess.Popen([*run, "--", sys.executable, "-c", SINK, str(int(family)), address, str(port)],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        during()
        said, errors = sink.communicate(timeout=80)
        assert said, errors
        digest, seconds = said.split()
        equal(digest, source.stdout.readline().strip(), "what was received is what was sent")
        return float(seconds)
    finally:
        source.kill()
        source.communicate()


@contextlib.contextmanager
def both_managed(name):
    run = [hawser(), "lab", "run", name, "--accept-unfaithful"]
    command = [hawser(), "mptcp", "manage"]
    with managed(lambda **how: subprocess.Popen([*run, "--on", "far", "--", *command], **how)) as far:
        with managed(lambda **how: subprocess.Popen([*run, "--on", "near", "--", *command], **how)) as near:
            yield far, near


def established(name):
    status = json.loads(lab("run", name, "--accept-unfaithful", "--", hawser(), "mptcp", "status", "--json").stdout)
    return [s for c in status["connections"] for s in c["subflows"] if s["state"] == "established"]


@needs_manager
@limit(100)
def test_a_transfer_takes_several_limits_over_ipv4_and_ipv6(env):
    import socket
    for family, address in ((socket.AF_INET, "10.77.0.2"), (socket.AF_INET6, "fd77::2")):
        with network("per-flow", "--seed", "1") as name, both_managed(name) as (_, (_, said)):
            pieces = 400
            seconds = transfer(name, family, address, pieces)
            goodput = pieces * 65536 * 8 / 1e6 / seconds
        # One flow carries 9.4; a busy machine costs a part of what there is.
        assert goodput > 14, (goodput, said)
        assert any("watching -> dialling" in line for line in said), said
        assert any("limits found" in line for line in said), said


@needs_manager
@limit(100)
def test_a_killed_manager_and_its_successor_lose_no_byte(env):
    with network("per-flow", "--seed", "2") as name:
        run = [hawser(), "lab", "run", name, "--accept-unfaithful", "--"]
        lab("run", name, "--on", "far", "--accept-unfaithful", "--", "sh", "-c", "true")
        far = [hawser(), "lab", "run", name, "--accept-unfaithful", "--on", "far", "--", hawser(), "mptcp", "manage"]
        with managed(lambda **how: subprocess.Popen(far, **how)):
            first = subprocess.Popen([*run, hawser(), "mptcp", "manage"], stdout=subprocess.PIPE, text=True)
            first.stdout.readline()
            second = []

            def replace():
                until(lambda: len(established(name)) > 1, "further subflows", 15)
                inside = pathlib.Path(f"/proc/{first.pid}/task/{first.pid}/children").read_text().split()
                os.kill(int(inside[0]), signal.SIGKILL)
                first.communicate()
                # The connections that are there are its successor's.
                until(lambda: lab("run", name, "--accept-unfaithful", "--", "cat", str(SETTING)).stdout == "kernel\n", "put back", 5)
                second.append(subprocess.Popen([*run, hawser(), "mptcp", "manage"], stdout=subprocess.PIPE, text=True))
                second[0].stdout.readline()
            transfer(name, 2, "10.77.0.2", 500, replace)
            second[0].terminate()
            said = second[0].communicate(timeout=10)[0]
            assert "watching -> " in said and "kernel's own" not in said, said


TWO_LINES = """
[[link]]
name = "fibre"
rate = "50Mbit/s"
rtt = "20ms"
queue = "200packets"
outages = [{ at = "9s", lasts = "30s", every = "600s" }]

[[link]]
name = "dsl"
rate = "10Mbit/s"
rtt = "80ms"
queue = "100packets"
"""

WATCHING_SINK = """
import socket, time
connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
connection.connect(("10.77.0.2", 7000))
began = last = time.monotonic()
worst, late = 0.0, 0
while last - began < 15:
    size = len(connection.recv(1 << 18))
    now = time.monotonic()
    if last - began > 4:
        worst = max(worst, now - last)
    if last - began > 13:
        late += size
    last = now
print(worst, late, flush=True)
"""


@needs_manager
@limit(90)
def test_a_cut_line_stalls_a_transfer_for_less_than_two_seconds(env):
    import tempfile
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as description:
        description.write(TWO_LINES)
        description.flush()
        with network(description.name, "--seed", "4") as name, both_managed(name) as (_, (_, said)):
            run = [hawser(), "lab", "run", name, "--accept-unfaithful"]
            endless = [*run, "--on", "far", "--", sys.executable, "-c", SOURCE, "2", "7000", "1000000"]
            source = subprocess.Popen(endless, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
            try:
                equal(source.stdout.readline(), "listens\n")
                done = subprocess.run([*run, "--", sys.executable, "-c", WATCHING_SINK], capture_output=True, text=True, timeout=60)
                assert done.stdout, done.stderr
                worst, late = done.stdout.split()
            finally:
                source.kill()
                source.communicate()
        assert float(worst) < 2, (worst, said)
        # The second line carries 10 Mbit/s of its own.
        assert int(late) > 1_000_000, (late, said)


class Host:
    """A host of a laboratory, for `Serving`."""

    def __init__(self, name, host):
        self.inside = [hawser(), "lab", "run", name, "--on", host, "--accept-unfaithful", "--"]

    def start(self, *command, **how):
        return subprocess.Popen([*self.inside, *map(str, command)], **how)

    def counter(self, wanted):
        """One of MPTcpExt in /proc/net/netstat."""
        text = subprocess.run([*self.inside, "cat", "/proc/net/netstat"], capture_output=True, text=True, check=True).stdout
        names, values = [line.split() for line in text.splitlines() if line.startswith("MPTcpExt")]
        return int(dict(zip(names, values))[wanted])


class ServingThere(Serving):
    def __exit__(self, kind, *more):
        # `lab run`, which stands between, ends by the signal itself.
        inside = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        os.kill(int(inside[0]), signal.SIGTERM)
        self.process.wait(15)
        super().__exit__(kind, *more)


@needs_manager
@limit(150)
def test_a_copy_through_the_pooler_takes_several_limits(env):
    import tempfile
    for rtt in ("1ms", "20ms"):
        with tempfile.NamedTemporaryFile("w", suffix=".toml") as description:
            description.write(f'[[link]]\nname = "wan"\nrtt = "{rtt}"\n[link.limit]\nclasses = 8\nrate = "10Mbit/s"\nqueue = '
                              f'"100packets"\n')
            description.flush()
            with network(description.name, "--seed", "1") as name, both_managed(name) as (_, (_, said)):
                far = Host(name, "far")
                serving = ServingThere(env, far, mptcp=True, servers=[env.cluster.address])
                serving.pooler.write(address=["10.77.0.2:7000", f"{serving.pooler.directory}:{serving.pooler.port}"])
                with serving:
                    rows, row = 25_000, 1000
                    copy = f"copy (select repeat('x', {row - 1}) from generate_series(1, {rows})) to stdout"
                    psql = [hawser(), "lab", "run", name, "--accept-unfaithful", "--", hawser(), "mptcp", "run", "--", "psql",
                            "-Xq", "-h", "10.77.0.2", "-p", "7000", "-U", "app", "-d", "app", "-c", copy]
                    began = time.monotonic()
                    secret = serving.pooler.target.secrets["app"]
                    done = subprocess.run(psql, capture_output=True, timeout=60, env={**os.environ, "PGPASSWORD": secret})
                    seconds = time.monotonic() - began
                    equal(len(done.stdout), rows * row, done.stderr)
                    assert far.counter("MPJoinAckRx") > 0, "a subflow has joined"
        goodput = rows * row * 8 / 1e6 / seconds
        assert goodput > 14, (rtt, goodput, said)


@needs_manager
@limit(60)
def test_a_connection_of_the_kernel_s_path_manager_is_left_to_it(env):
    with network("per-flow") as name:
        run = [hawser(), "lab", "run", name, "--accept-unfaithful", "--", hawser(), "mptcp", "manage"]
        late = []

        def begin():
            until(lambda: established(name), "a connection", 10)
            late.append(subprocess.Popen(run, stdout=subprocess.PIPE, text=True))
        transfer(name, 2, "10.77.0.2", 80, begin)
        late[0].terminate()
        said = late[0].communicate(timeout=10)[0]
        assert "began under the kernel's own path manager" in said, said


def manager_of(serving):
    """What SHOW STATE and `hawser status` say of it, which is the same: not both at once, so perhaps at the second look."""
    def both():
        shown = {row["key"]: row["value"] for row in serving.show("STATE")}["mptcp_manager"]
        return shown if (serving.status()["mptcp_manager"] or "off") == shown else None
    return until(both, "SHOW STATE and status say the same of the manager", 3)


def fallbacks(serving):
    return [line for line in serving.status()["fallbacks"] if "mptcp_manage" in line]


@needs_manager
@limit(100)
def test_serve_manages_while_it_is_told_to(env):
    with two_machines() as (server, _):
        with Serving(env, server, mptcp_manage=True, http_address="127.0.0.1:9930") as serving:
            until(lambda: "MPTCP path manager: managing" in serving.pooler.text(), "it manages", 10)
            until(lambda: manager_of(serving).startswith("process "), "it is seen", 5)
            equal(setting(server), "userspace")
            read = "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9930/metrics').read().decode())"
            assert "hawser_mptcp_manager 1" in server.run(sys.executable, "-c", read)
            assert "`hawser serve`" in server.run(hawser(), "mptcp", "manage", code=1)

            serving.pooler.write(mptcp_manage=False)
            serving.process.send_signal(signal.SIGHUP)
            until(lambda: setting(server) == "kernel", "put back by a reload", 5)
            until(lambda: manager_of(serving) == "off", "off", 5)
            assert "hawser_mptcp_manager 0" in server.run(sys.executable, "-c", read)
            serving.pooler.write(mptcp_manage=True)
            serving.process.send_signal(signal.SIGHUP)
            until(lambda: manager_of(serving).startswith("process "), "it manages again", 10)
            equal(setting(server), "userspace")

            os.kill(int(manager_of(serving).split()[1]), signal.SIGKILL)
            until(lambda: setting(server) == "kernel", "the watchdog has put it back", 5)
            until(lambda: manager_of(serving) == "not running", "it is missed", 5)
            assert "signal: 9" in fallbacks(serving)[0], fallbacks(serving)
            equal(serving.pooler.text().count("(mptcp_manage) does not run"), 1, "said once")
            with serving.connect() as session:
                equal(session.value("select 1"), "1", "service goes on")
            until(lambda: manager_of(serving).startswith("process "), "it is started again", 30)
            equal(fallbacks(serving), [])
        equal(setting(server), "kernel", "when serve has ended")


@needs_manager
@limit(60)
def test_a_killed_serve_leaves_no_manager(env):
    with two_machines() as (server, _):
        serving = Serving(env, server, mptcp_manage=True)
        serving.__enter__()
        until(lambda: setting(server) == "userspace", "it manages", 10)
        serving.process.send_signal(signal.SIGKILL)
        serving.process.wait()
        until(lambda: setting(server) == "kernel", "put back", 5)


@needs_manager
@limit(60)
def test_serve_without_the_rights_serves_and_says_so(env):
    with two_machines() as (server, _):
        serving = Serving(env, server, mptcp_manage=True)
        serving.pooler.launcher = ["setpriv", "--bounding-set=-net_admin", "--inh-caps=-all"]
        with serving:
            until(lambda: fallbacks(serving), "a fallback", 10)
            assert "CAP_NET_ADMIN" in fallbacks(serving)[0], fallbacks(serving)
            equal(setting(server), "kernel")
            with serving.connect() as session:
                equal(session.value("select 1"), "1")


@needs_manager
@limit(60)
def test_a_manager_of_serve_keeps_the_rights_that_serve_gives_up(env):
    with two_machines() as (server, _):
        serving = Serving(env, server, mptcp_manage=True)
        os.chmod(serving.pooler.directory, 0o777)
        serving.pooler.append = "\n"
        text = serving.pooler.config.read_text().replace("[process]\n", '[process]\nuser = "nobody"\n')
        serving.pooler.config.write_text(text)
        with serving:
            until(lambda: manager_of(serving).startswith("process "), "it manages", 10)
            equal(setting(server), "userspace")
        equal(setting(server), "kernel", "when serve has ended")


# Accepts, and announces hundreds of addresses, as the userspace path manager of a peer may.
ANNOUNCER = """
import socket, struct, sys, time
def attribute(kind, value):
    return struct.pack("HH", 4 + len(value), kind) + value + b"\\0" * (-len(value) % 4)
def attributes(data):
    while len(data) >= 4:
        length, kind = struct.unpack_from("HH", data)
        yield kind & 0x3fff, data[4:length]
        data = data[(length + 3) & ~3:]
def open_generic():
    opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 16)
    opened.bind((0, 0))
    return opened
def ask(family, command, payload):
    payload = struct.pack("BBH", command, 1, 0) + payload
    netlink.send(struct.pack("IHHII", 16 + len(payload), family, 5, 1, 0) + payload)
    answer = netlink.recv(65536)
    return struct.unpack_from("i", answer, 16)[0] if struct.unpack_from("H", answer, 4)[0] == 2 else answer
netlink = open_generic()
found = dict(attributes(ask(16, 3, attribute(2, b"mptcp_pm\\0"))[20:]))
netlink.recv(65536)
family = struct.unpack("H", found[1])[0]
groups = [dict(attributes(value)) for _, value in attributes(found[7])]
events = open_generic()
events.setsockopt(270, 1, next(struct.unpack("I", g[2])[0] for g in groups if g[1] == b"mptcp_pm_events\\0"))
listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
listener.bind(("10.77.0.1", 7000))
listener.listen()
print("listens", flush=True)
connection = listener.accept()[0]
events.settimeout(5)
while True:
    event = events.recv(65536)
    if event[16] == 2:
        token = dict(attributes(event[20:]))[1]
        break
done = 0
for number in range(1, 251):
    ip = bytes([10, 99, number // 16, number % 16 + 1])
    address = attribute(1, struct.pack("H", 2)) + attribute(2, bytes([number])) + attribute(3, ip) + attribute(6, struct.pack("I", 1))
    for _ in range(50):
        code = ask(family, 8, attribute(4, token) + attribute(1 | 0x8000, address))
        connection.sendall(bytes(2000))
        time.sleep(0.002)
        if code == 0:
            done += 1
            break
print(done, flush=True)
for _ in range(200):
    connection.sendall(bytes(1 << 17))
    time.sleep(0.02)
connection.shutdown(socket.SHUT_WR)
connection.recv(1)
"""

TAKER = """
import socket
connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
connection.connect(("10.77.0.1", 7000))
total = 0
while piece := connection.recv(1 << 18):
    total += len(piece)
print(total, flush=True)
"""


@needs_manager
@limit(90)
def test_a_peer_that_announces_hundreds_of_addresses_costs_eight(env):
    with two_machines() as (server, client):
        server.run("sh", "-c", f"echo userspace > {SETTING}")
        client.ip("route", "add", "default", "via", "10.77.0.1")
        peer = server.start(sys.executable, "-c", ANNOUNCER, stdout=subprocess.PIPE, text=True)
        equal(peer.stdout.readline(), "listens\n")
        with managed(lambda **how: client.start(hawser(), "mptcp", "manage", **how)) as (process, said):
            taker = client.start(sys.executable, "-c", TAKER, stdout=subprocess.PIPE, text=True)
            announced = int(peer.stdout.readline())
            assert announced > 200, announced
            remotes = set()
            while taker.poll() is None:
                for connection in client.status()["connections"]:
                    remotes |= {subflow["remote"].rsplit(":", 1)[0] for subflow in connection["subflows"]}
            assert int(taker.stdout.read()) >= 200 << 17, "all that was sent has come"
            assert process.poll() is None, "the manager lives"
        assert 1 < len(remotes) <= 8, remotes
        equal(setting(client), "kernel")
        assert len(said) < 100, said


# Sends at a steady rate, without an end.
STEADY = """
import socket, sys, time
listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("0.0.0.0", 7000))
listener.listen()
print("listens", flush=True)
connection = listener.accept()[0]
while True:
    connection.sendall(bytes(100000))
    time.sleep(0.04)
"""


def counted(machine, name):
    """A counter of nstat's, since the namespace began."""
    lines = [line.split() for line in machine.run("nstat", "-az", name).splitlines()]
    return next(int(words[1]) for words in lines if words and words[0] == name)


def subflows_to(machine, address):
    """Subflows to an address, those whose handshake is not answered too; not those that are ending."""
    subflows = [s for c in machine.status()["connections"] for s in c["subflows"]]
    return [s for s in subflows if s["remote"].startswith(f"{address}:") and s["state"] in ("established", "syn-sent")]


@needs_manager
@limit(90)
def test_an_address_that_has_gone_is_taken_back_and_dialled_no_more(env):
    for by in ("manage", "kernel"):
        with two_machines() as (server, client):
            server.ip("addr", "add", "10.77.0.3/24", "dev", "net0")
            with contextlib.ExitStack() as stack:
                if by == "manage":
                    stack.enter_context(managed(lambda **how: server.start(hawser(), "mptcp", "manage", **how)))
                else:
                    server.ip("mptcp", "limits", "set", "subflows", "8", "add_addr_accepted", "8")
                    server.ip("mptcp", "endpoint", "add", "10.77.0.3", "dev", "net0", "id", "3", "signal")
                stack.enter_context(managed(lambda **how: client.start(hawser(), "mptcp", "manage", **how)))
                source = server.start(sys.executable, "-c", STEADY, stdout=subprocess.PIPE, text=True)
                equal(source.stdout.readline(), "listens\n")
                client.start(sys.executable, "-c", TAKER, stderr=subprocess.DEVNULL)
                until(lambda: subflows_to(client, "10.77.0.3"), "the further address is used", 20)
                if by == "kernel":
                    server.ip("mptcp", "endpoint", "del", "id", "3")
                server.ip("addr", "del", "10.77.0.3/24", "dev", "net0")
                until(lambda: counted(client, "MPTcpExtRmAddr"), "the address is taken back", 10)
                until(lambda: not subflows_to(client, "10.77.0.3"), "its subflows have ended", 5)
                end = time.monotonic() + 5
                while time.monotonic() < end:
                    equal(subflows_to(client, "10.77.0.3"), [], f"no dial of an address that has gone, taken back by {by}")
                    time.sleep(0.1)
                # It comes back.
                server.ip("addr", "add", "10.77.0.3/24", "dev", "net0")
                if by == "kernel":
                    server.ip("mptcp", "endpoint", "add", "10.77.0.3", "dev", "net0", "id", "3", "signal")
                until(lambda: subflows_to(client, "10.77.0.3"), "it is used again", 20)
